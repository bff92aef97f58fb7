/* Stop strings: against a slow reference over the whole text, cut into pieces in every way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/request.h"
#include "engine/stop.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"

static struct pn_stop *make(const char *const *stops, int n) {
    struct pn_stop *s = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(pn_stop_new(stops, n, &s, &e), 0);
    return s;
}

/* What must be shown of text: all before the stop that is complete first, the longest of those that end there. */
static size_t shown_of(const char *text, size_t len, const char *const *stops, int n, bool *ret_stopped) {
    for (size_t end = 1; end <= len; end++) {
        size_t best = 0;
        for (int i = 0; i < n; i++) {
            size_t k = strlen(stops[i]);
            if (k <= end && k > best && memcmp(text + end - k, stops[i], k) == 0) best = k;
        }
        if (best > 0) {
            *ret_stopped = true;
            return end - best;
        }
    }
    *ret_stopped = false;
    return len;
}

/* What must be held back after len bytes without a match: the longest end of the text that begins a stop string. */
static size_t held_of(const char *text, size_t len, const char *const *stops, int n) {
    size_t best = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 1; k < strlen(stops[i]) && k <= len; k++)
            if (k > best && memcmp(text + len - k, stops[i], k) == 0) best = k;
    return best;
}

static void a_stop_is_found_across_any_cut_and_never_leaks(void **state) {
    (void)state;
    static const char *const stops[] = { "STOP", "\n\nUser:", "</s>" };
    static const char text[] = "one S ST STO two\n\nUse three\n\nUser: four STOP five";
    size_t len = strlen(text);
    for (size_t a = 0; a <= len; a++)
        for (size_t b = a; b <= len; b++) {
            struct pn_stop *s = make(stops, 3);
            struct fo_buf out;
            fo_buf_init(&out, 1000);
            bool hit = pn_stop_push(s, text, a, &out) || pn_stop_push(s, text + a, b - a, &out) || pn_stop_push(s, text + b, len - b, &out);
            assert_true(hit);
            assert_string_equal(fo_buf_str(&out), "one S ST STO two\n\nUse three");
            fo_buf_done(&out);
            pn_stop_free(s);
        }
}

static void agrees_with_the_reference_on_random_texts_and_pieces(void **state) {
    (void)state;
    struct fo_rng r;
    fo_rng_seed(&r, 99);
    for (int round = 0; round < 20000; round++) {
        char words[16][8], text[64];
        const char *stops[16];
        int n = 1 + (int)(fo_rng_u64(&r) % 16);
        for (int i = 0; i < n; i++) {
            size_t k = 1 + fo_rng_u64(&r) % 6;
            for (size_t j = 0; j < k; j++) words[i][j] = (char)('a' + fo_rng_u64(&r) % 2);
            words[i][k] = '\0';
            if (round % 3) snprintf(words[i] + k - 1, 2, "c"); /* rarer, so that texts run on */
            stops[i] = words[i];
        }
        size_t len = 1 + fo_rng_u64(&r) % 60;
        for (size_t j = 0; j < len; j++) text[j] = (char)('a' + fo_rng_u64(&r) % (round % 3 ? 3 : 2));

        struct pn_stop *s = make(stops, n);
        struct fo_buf out;
        fo_buf_init(&out, 1000);
        bool want_hit, hit = false;
        size_t want = shown_of(text, len, stops, n, &want_hit), at = 0;
        while (at < len && !hit) {
            size_t k = 1 + fo_rng_u64(&r) % 5;
            if (k > len - at) k = len - at;
            hit = pn_stop_push(s, text + at, k, &out);
            at += k;
            if (!hit) assert_int_equal(out.len, at - held_of(text, at, stops, n)); /* held back no more and no less than needed */
        }
        assert_int_equal(hit, want_hit);
        if (!hit) pn_stop_end(s, &out);
        assert_int_equal(out.len, want);
        assert_memory_equal(fo_buf_str(&out), text, want);
        fo_buf_done(&out);
        pn_stop_free(s);
    }
}

static void what_was_held_comes_out_whole_characters(void **state) {
    (void)state;
    static const char *const stops[] = { "naïve→" };
    struct pn_stop *s = make(stops, 1);
    struct fo_buf out;
    fo_buf_init(&out, 1000);
    assert_false(pn_stop_push(s, "na", 2, &out));
    assert_int_equal(out.len, 0);
    assert_false(pn_stop_push(s, "ï", 2, &out));
    assert_int_equal(out.len, 0);
    assert_false(pn_stop_push(s, "v", 1, &out));
    assert_false(pn_stop_push(s, "é", 2, &out));
    assert_string_equal(fo_buf_str(&out), "naïvé");
    assert_false(pn_stop_push(s, "naïve", 6, &out));
    pn_stop_end(s, &out);
    assert_string_equal(fo_buf_str(&out), "naïvénaïve");
    fo_buf_done(&out);
    pn_stop_free(s);
}

static void the_longest_allowed_strings_work(void **state) {
    (void)state;
    char a[PN_MAX_STOP_BYTES + 1], text[2 * PN_MAX_STOP_BYTES];
    memset(a, 'x', PN_MAX_STOP_BYTES);
    a[PN_MAX_STOP_BYTES - 1] = 'y';
    a[PN_MAX_STOP_BYTES] = '\0';
    const char *stops[PN_MAX_STOPS];
    for (int i = 0; i < PN_MAX_STOPS; i++) stops[i] = a;
    struct pn_stop *s = make(stops, PN_MAX_STOPS);
    struct fo_buf out;
    fo_buf_init(&out, 10000);
    memset(text, 'x', sizeof text);
    assert_false(pn_stop_push(s, text, sizeof text, &out));
    assert_int_equal(out.len, sizeof text - (PN_MAX_STOP_BYTES - 1));
    assert_true(pn_stop_push(s, "yz", 2, &out));
    assert_int_equal(out.len, sizeof text - (PN_MAX_STOP_BYTES - 1));
    fo_buf_done(&out);
    pn_stop_free(s);
}

static void refuses_bad_strings_and_says_stop(void **state) {
    (void)state;
    char big[PN_MAX_STOP_BYTES + 2];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    const char *bad[] = { "", big, "\x80", "a\xC3", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xC0\x80", "\xE0\x80\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pn_stop *s = NULL;
        struct fo_err e = { 0 };
        assert_int_equal(pn_stop_new(&bad[i], 1, &s, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, "stop"));
    }
    const char *many[PN_MAX_STOPS + 1];
    for (int i = 0; i <= PN_MAX_STOPS; i++) many[i] = "ä€😀";
    struct pn_stop *s = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(pn_stop_new(many, PN_MAX_STOPS + 1, &s, &e), FO_EINVAL);
    assert_int_equal(pn_stop_new(many, PN_MAX_STOPS, &s, &e), 0);
    pn_stop_free(s);
}

static void no_stops_pass_everything(void **state) {
    (void)state;
    struct pn_stop *s = make(NULL, 0);
    assert_null(s);
    struct fo_buf out;
    fo_buf_init(&out, 100);
    assert_false(pn_stop_push(s, "abc", 3, &out));
    pn_stop_end(s, &out);
    assert_string_equal(fo_buf_str(&out), "abc");
    fo_buf_done(&out);
    pn_stop_free(s);
}

static void survives_every_failing_allocation(void **state) {
    (void)state;
    const char *stop = "abc";
    struct pn_stop *s = NULL;
    struct fo_err e = { 0 };
    test_fail_alloc(1);
    assert_int_equal(pn_stop_new(&stop, 1, &s, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
    s = make(&stop, 1);
    struct fo_buf out;
    fo_buf_init(&out, 100);
    test_fail_alloc(1);
    assert_false(pn_stop_push(s, "xyz", 3, &out));
    assert_true(test_alloc_failed());
    assert_true(out.failed);
    fo_buf_done(&out);
    pn_stop_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_is_found_across_any_cut_and_never_leaks),
        cmocka_unit_test(agrees_with_the_reference_on_random_texts_and_pieces),
        cmocka_unit_test(what_was_held_comes_out_whole_characters),
        cmocka_unit_test(the_longest_allowed_strings_work),
        cmocka_unit_test(refuses_bad_strings_and_says_stop),
        cmocka_unit_test(no_stops_pass_everything),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
