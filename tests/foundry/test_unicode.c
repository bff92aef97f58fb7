/* Unicode tables and UTF-8. */
#include "foundry/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/unicode_nfc.h"

static void knows_the_category_of_characters_of_every_kind(void **state) {
    (void)state;
    static const struct {
        uint32_t cp;
        enum fo_ucat cat;
    } known[] = {
        { 'a', FO_UC_LL },     { 'Z', FO_UC_LU },     { '0', FO_UC_ND },     { ' ', FO_UC_ZS },     { '\n', FO_UC_CC },    { 0x7F, FO_UC_CC },
        { '_', FO_UC_PC },     { '-', FO_UC_PD },     { '(', FO_UC_PS },     { ']', FO_UC_PE },     { 0xAB, FO_UC_PI },    { 0xBB, FO_UC_PF },
        { '!', FO_UC_PO },     { '+', FO_UC_SM },     { '$', FO_UC_SC },     { '^', FO_UC_SK },     { 0xA9, FO_UC_SO },    { 0xBD, FO_UC_NO },
        { 0x1C5, FO_UC_LT },   { 0x2B0, FO_UC_LM },   { 0x4E00, FO_UC_LO },  { 0x9FFF, FO_UC_LO },  { 0x301, FO_UC_MN },   { 0x903, FO_UC_MC },
        { 0x488, FO_UC_ME },   { 0x2160, FO_UC_NL },  { 0x2028, FO_UC_ZL },  { 0x2029, FO_UC_ZP },  { 0x200D, FO_UC_CF },  { 0xD800, FO_UC_CS },
        { 0xE000, FO_UC_CO },  { 0x378, FO_UC_CN },   { 0x1F600, FO_UC_SO }, { 0xAC00, FO_UC_LO },  { 0x20000, FO_UC_LO }, { 0x10FFFF, FO_UC_CN },
        { 0x110000, FO_UC_CN }, { UINT32_MAX, FO_UC_CN }, { 0, FO_UC_CC },   { 0x16D40, FO_UC_LM } /* Unicode 16 */,
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (fo_unicode_category(known[i].cp) != known[i].cat) fail_msg("U+%04X: %d", known[i].cp, fo_unicode_category(known[i].cp));
    }
}

static void counts_what_the_unicode_standard_counts(void **state) {
    (void)state;
    uint32_t n[FO_UC_N] = { 0 }, spaces = 0;
    for (uint32_t cp = 0; cp < FO_UNICODE_END; cp++) {
        n[fo_unicode_category(cp)]++;
        spaces += fo_unicode_is_space(cp);
    }
    assert_int_equal(spaces, 25);
    assert_int_equal(n[FO_UC_CC], 65);
    assert_int_equal(n[FO_UC_CS], 2048);
    assert_int_equal(n[FO_UC_CO], 6400 + 2 * 65534);
    assert_int_equal(n[FO_UC_LT], 31);
    assert_int_equal(n[FO_UC_ZL] + n[FO_UC_ZP], 2);
    assert_int_equal(n[FO_UC_ZS], 17);
    assert_int_equal(n[FO_UC_ND] % 10, 0); /* decimal digits come in tens */
    assert_true(atoi(fo_unicode_version) >= 16);
}

static void has_sorted_ranges_from_zero(void **state) {
    (void)state;
    assert_int_equal(fo_unicode_ranges[0] >> 8, 0);
    for (size_t i = 0; i < fo_unicode_n_ranges; i++) {
        assert_true((fo_unicode_ranges[i] & 0x7F) < FO_UC_N);
        if (i) assert_true(fo_unicode_ranges[i - 1] >> 8 < fo_unicode_ranges[i] >> 8);
    }
}

static size_t put_utf8(uint32_t cp, char *out) {
    if (cp < 0x80) return out[0] = (char)cp, 1;
    if (cp < 0x800) return out[0] = (char)(0xC0 | cp >> 6), out[1] = (char)(0x80 | (cp & 63)), 2;
    if (cp < 0x10000) return out[0] = (char)(0xE0 | cp >> 12), out[1] = (char)(0x80 | (cp >> 6 & 63)), out[2] = (char)(0x80 | (cp & 63)), 3;
    return out[0] = (char)(0xF0 | cp >> 18), out[1] = (char)(0x80 | (cp >> 12 & 63)), out[2] = (char)(0x80 | (cp >> 6 & 63)),
           out[3] = (char)(0x80 | (cp & 63)), 4;
}

static void decodes_every_character_and_no_piece_of_one(void **state) {
    (void)state;
    char s[4];
    for (uint32_t cp = 0; cp < FO_UNICODE_END; cp++) {
        size_t n = put_utf8(cp, s), len;
        uint32_t got = fo_utf8_next(s, n, &len);
        if (cp >= 0xD800 && cp < 0xE000) {
            assert_int_equal(got, FO_UNICODE_END);
            assert_int_equal(len, 1);
            continue;
        }
        assert_int_equal(got, cp);
        assert_int_equal(len, n);
        if (n > 1) {
            assert_int_equal(fo_utf8_next(s, n - 1, &len), FO_UNICODE_END);
            assert_int_equal(len, n - 1);
        }
    }
}

static void refuses_what_is_not_utf8_by_its_longest_valid_beginning(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t n, len;
    } bad[] = {
        { "\x80", 1, 1 },         { "\xBF\xBF", 2, 1 },     { "\xC0\xAF", 2, 1 },         { "\xC1\xBF", 2, 1 },         { "\xC3", 1, 1 },
        { "\xC3(", 2, 1 },        { "\xE0\x80\x80", 3, 1 }, { "\xE0\x9F\xBF", 3, 1 },     { "\xE4\xBD", 2, 2 },         { "\xE4\xBD" "b", 3, 2 },
        { "\xED\xA0\x80", 3, 1 }, { "\xF0\x8F\xBF\xBF", 4, 1 }, { "\xF0\x9F\x98", 3, 3 }, { "\xF4\x90\x80\x80", 4, 1 }, { "\xF5\x80\x80\x80", 4, 1 },
        { "\xFE", 1, 1 },         { "\xFF\xFF", 2, 1 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t len;
        char *exact = malloc(bad[i].n);
        assert_non_null(exact);
        memcpy(exact, bad[i].s, bad[i].n);
        assert_int_equal(fo_utf8_next(exact, bad[i].n, &len), FO_UNICODE_END);
        if (len != bad[i].len) fail_msg("case %zu: %zu bytes", i, len);
        free(exact);
    }
}

static const char *nfc(const char *s) {
    static char out[256];
    struct fo_err e;
    struct fo_buf b;
    fo_buf_init(&b, sizeof out - 1);
    if (fo_nfc(s, strlen(s), &b, &e)) fail_msg("%s", e.msg);
    memcpy(out, fo_buf_str(&b), b.len + 1);
    assert_true(!fo_nfc_is_certain(s, strlen(s)) || !strcmp(out, s));
    fo_buf_done(&b);
    return out;
}

static void brings_text_to_form_c(void **state) {
    (void)state;
    assert_string_equal(nfc("plain \u4E2D\u6587 \u00E9"), "plain \u4E2D\u6587 \u00E9");
    assert_string_equal(nfc("e\u0301"), "\u00E9");
    assert_string_equal(nfc("xe\u0301y e\u0301"), "x\u00E9y \u00E9");
    assert_string_equal(nfc("a\u0323\u0302"), "\u1EAD");       /* two marks join */
    assert_string_equal(nfc("a\u0302\u0323"), "\u1EAD");       /* in either order: they are sorted */
    assert_string_equal(nfc("a\u0301\u0300"), "\u00E1\u0300"); /* the second of one class stays */
    assert_string_equal(nfc("a\u0327\u0335\u0301"), "\u00E1\u0335\u0327"); /* the mark over jumps those below */
    assert_string_equal(nfc("\u212B"), "\u00C5");               /* decomposes for good: the Angstrom sign */
    assert_string_equal(nfc("\u0958"), "\u0915\u093C");         /* never composed */
    assert_string_equal(nfc("\u1112\u1161\u11AB"), "\uD55C");   /* Hangul */
    assert_string_equal(nfc("\uD558\u11AB"), "\uD55C");
    assert_string_equal(nfc("\u0301e"), "\u0301e");
    assert_string_equal(nfc("e\xFF\u0301"), "e\xFF\u0301"); /* nothing joins across a broken byte */
    assert_string_equal(nfc("\xCC"), "\xCC");
    assert_false(fo_nfc_is_certain("e\u0301", 3));
    assert_true(fo_nfc_is_certain("\u00E9\u4E2D\uD55C", 8));
}

/* Ten million bytes of marks in descending order of class, which have to be sorted. */
static void form_c_of_hostile_text_takes_linear_time(void **state) {
    (void)state;
    enum { N = 10000000 };
    struct fo_err e;
    struct fo_buf b;
    char *s = malloc(N);
    for (size_t i = 0; i < N; i += 4) memcpy(s + i, i % 8 ? "\u0301\u0327" : "\u0323\u0300", 4);
    fo_buf_init(&b, 4 * (size_t)N);
    assert_int_equal(fo_nfc(s, N, &b, &e), 0);
    assert_int_equal(b.len, N);
    assert_memory_equal(b.data, "\u0327\u0327", 4);
    assert_memory_equal(b.data + N - 4, "\u0300\u0301", 4);
    fo_buf_done(&b);
    free(s);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_the_category_of_characters_of_every_kind),
        cmocka_unit_test(counts_what_the_unicode_standard_counts),
        cmocka_unit_test(has_sorted_ranges_from_zero),
        cmocka_unit_test(decodes_every_character_and_no_piece_of_one),
        cmocka_unit_test(refuses_what_is_not_utf8_by_its_longest_valid_beginning),
        cmocka_unit_test(brings_text_to_form_c),
        cmocka_unit_test(form_c_of_hostile_text_takes_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
