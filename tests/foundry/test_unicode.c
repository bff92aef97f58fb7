/* Unicode tables and UTF-8. */
#include "foundry/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_the_category_of_characters_of_every_kind),
        cmocka_unit_test(counts_what_the_unicode_standard_counts),
        cmocka_unit_test(has_sorted_ranges_from_zero),
        cmocka_unit_test(decodes_every_character_and_no_piece_of_one),
        cmocka_unit_test(refuses_what_is_not_utf8_by_its_longest_valid_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
