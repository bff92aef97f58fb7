/* Errors as values: what a message keeps, what it defuses, and which code an errno becomes. */
#include "foundry/base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_failure_sets_everything_and_returns_its_code(void **state) {
    (void)state;
    struct fo_err e;
    memset(&e, 0xAA, sizeof e);
    assert_int_equal(fo_fail(&e, FO_EFORMAT, "tensor %s: %d", "x", 7), FO_EFORMAT);
    assert_string_equal(e.msg, "tensor x: 7");
    assert_true(e.code == FO_EFORMAT && e.line == 0 && e.col == 0 && e.need == 0 && e.have == 0);
    assert_int_equal(fo_fail_need(&e, FO_ENOMEM, 10, 3, "full"), FO_ENOMEM);
    assert_true(e.need == 10 && e.have == 3 && e.line == 0);
    assert_int_equal(fo_fail_at(&e, FO_EINVAL, 4, 9, "bad"), FO_EINVAL);
    assert_true(e.line == 4 && e.col == 9 && e.need == 0);
}

static void wrapping_puts_text_in_front_and_keeps_the_rest(void **state) {
    (void)state;
    struct fo_err e;
    fo_fail_need(&e, FO_ENOMEM, 10, 3, "full");
    assert_int_equal(fo_wrap(&e, "model '%s'", "chat"), FO_ENOMEM);
    assert_string_equal(e.msg, "model 'chat': full");
    assert_true(e.need == 10 && e.have == 3);
    fo_fail_at(&e, FO_EINVAL, 4, 9, "bad");
    fo_wrap(&e, "a");
    fo_wrap(&e, "b");
    assert_string_equal(e.msg, "b: a: bad");
    assert_true(e.line == 4 && e.col == 9);
}

static void a_message_too_long_is_cut_at_a_character_and_says_so(void **state) {
    (void)state;
    struct fo_err e;
    char text[1000];
    for (int offset = 0; offset < 4; offset++) { /* the cut falls on every byte of a character */
        memset(text, 'a', sizeof text);
        for (size_t i = (size_t)offset; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 3);
        text[sizeof text - 1] = '\0';
        fo_fail(&e, FO_EINVAL, "%s", text);
        size_t n = strlen(e.msg);
        assert_true(n < sizeof e.msg && n > sizeof e.msg - 8);
        assert_string_equal(e.msg + n - 3, "...");
        assert_null(strchr(e.msg, '?'));
        assert_int_equal((n - 3 - (size_t)offset) % 3, 0);
        fo_fail(&e, FO_EINVAL, "the reason");
        fo_wrap(&e, "%s", text);
        assert_true(strlen(e.msg) < sizeof e.msg);
        assert_null(strchr(e.msg, '?'));
    }
    fo_fail(&e, FO_EINVAL, "%.380s", text);
    fo_wrap(&e, "front");
    assert_memory_equal(e.msg, "front: ", 7);
    assert_string_equal(e.msg + strlen(e.msg) - 3, "...");
}

static void hostile_text_is_defused(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        { "plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80", "plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80" },
        { "a\nb\tc\x1b[31m\x7F", "a?b?c?[31m?" },
        { "\xC2\x9B" "31m", "??31m" },                    /* a control character of two bytes */
        { "\xC2\xA0", "\xC2\xA0" },
        { "\xFF\xFE", "??" },
        { "\x80\xBF", "??" },                             /* continuation without a lead */
        { "\xC0\xAF", "??" },                             /* overlong */
        { "\xE0\x80\xAF", "???" },
        { "\xED\xA0\x80", "???" },                        /* a surrogate */
        { "\xF4\x90\x80\x80", "????" },                   /* past U+10FFFF */
        { "\xF5\x80\x80\x80", "????" },
        { "\xE2\x82", "??" },                             /* cut */
        { "\xE2\x82x", "??x" },
        { "\xF0\x9F\x98", "???" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fo_err e;
        fo_fail(&e, FO_EINVAL, "%s", cases[i].in);
        assert_string_equal(e.msg, cases[i].out);
    }
}

static void an_errno_chooses_the_code_and_its_reason_survives_a_long_path(void **state) {
    (void)state;
    static const struct {
        int err;
        enum fo_code code;
    } cases[] = {
        { ENOENT, FO_ENOENT }, { EACCES, FO_EACCES }, { EPERM, FO_EACCES }, { ENOMEM, FO_ENOMEM }, { EIO, FO_EIO }, { EMFILE, FO_EIO },
    };
    struct fo_err e;
    char path[5000];
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(fo_fail_errno(&e, cases[i].err, "%s", "file"), cases[i].code);
        assert_memory_equal(e.msg, "file: ", 6);
        fo_fail_errno(&e, cases[i].err, "%s", path);
        assert_true(strlen(e.msg) < sizeof e.msg);
        assert_non_null(strstr(e.msg, "p...: "));
        assert_non_null(strstr(e.msg, strerror(cases[i].err)));
    }
}

static void every_code_has_its_own_name(void **state) {
    (void)state;
    for (int i = 0; i < FO_N_CODES; i++) {
        assert_non_null(fo_code_name((enum fo_code)i));
        for (int j = 0; j < i; j++) assert_string_not_equal(fo_code_name((enum fo_code)i), fo_code_name((enum fo_code)j));
    }
    assert_string_equal(fo_code_name(FO_N_CODES), "unknown");
    assert_string_equal(fo_code_name((enum fo_code)1000), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_sets_everything_and_returns_its_code),
        cmocka_unit_test(wrapping_puts_text_in_front_and_keeps_the_rest),
        cmocka_unit_test(a_message_too_long_is_cut_at_a_character_and_says_so),
        cmocka_unit_test(hostile_text_is_defused),
        cmocka_unit_test(an_errno_chooses_the_code_and_its_reason_survives_a_long_path),
        cmocka_unit_test(every_code_has_its_own_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
