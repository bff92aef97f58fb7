/* Sizes and durations, both ways. */
#include "foundry/base/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void sizes_need_their_unit_and_nothing_else(void **state) {
    (void)state;
    static const struct {
        const char *s;
        uint64_t v;
    } good[] = {
        { "0B", 0 },
        { "512B", 512 },
        { "300MiB", 300ull << 20 },
        { "1.5GiB", 3ull << 29 },
        { "0.1KB", 100 },
        { "1KB", 1000 },
        { "2TiB", 2ull << 40 },
        { "3TB", 3000000000000 },
        { "007KiB", 7168 },
        { "1.999999999999KiB", 2047 }, /* rounded down, digits past the ninth ignored */
        { "18446744073709551615B", UINT64_MAX },
        { "16777215TiB", 16777215ull << 40 },
    };
    static const char *const bad[] = {
        "", "1", "12345", "B", "MiB", "1 MiB", " 1MiB", "1MiB ", "-1MiB", "+1MiB", "1mib", "1Mb", "1M", "1e3B", "0x10B", ".5GiB", "1.GiB",
        "1.5.5GiB", "1,5GiB", "1_000B", "18446744073709551616B", "16777216TiB", "99999999999999999999TiB", "18446744073709551615.5KB", "10s", "80%",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 7;
        if (!fo_parse_bytes(good[i].s, &v) || v != good[i].v) fail_msg("%s is %llu", good[i].s, (unsigned long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v = 7;
        if (fo_parse_bytes(bad[i], &v)) fail_msg("'%s' passed for a size", bad[i]);
        assert_int_equal(v, 7);
    }
}

static void durations_need_their_unit_too(void **state) {
    (void)state;
    static const struct {
        const char *s;
        uint64_t v;
    } good[] = { { "0s", 0 }, { "250ms", 250 }, { "10s", 10000 }, { "1.5s", 1500 }, { "10min", 600000 }, { "15m", 900000 }, { "2h", 7200000 }, { "1d", 86400000 } };
    static const char *const bad[] = { "", "10", "10 s", "10sec", "s", "-1s", "1.s", "300000000000d", "10MiB" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t v = 7;
        if (!fo_parse_ms(good[i].s, &v) || v != good[i].v) fail_msg("%s is %llu", good[i].s, (unsigned long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t v = 7;
        if (fo_parse_ms(bad[i], &v)) fail_msg("'%s' passed for a duration", bad[i]);
    }
}

static void sizes_are_shown_with_three_digits(void **state) {
    (void)state;
    static const struct {
        uint64_t v;
        const char *s;
    } cases[] = {
        { 0, "0 B" },
        { 1, "1 B" },
        { 1023, "1023 B" },
        { 1024, "1 KiB" },
        { 1536, "1.50 KiB" },
        { 10 * 1024 + 512, "10.5 KiB" },
        { 100 * 1024 + 512, "100 KiB" },
        { 1024 * 1024 - 1, "1.00 MiB" }, /* not 1024 KiB */
        { 1023 * 1024, "1023 KiB" },
        { 3ull << 29, "1.50 GiB" },
        { 10239, "10.0 KiB" },
        { 8ull << 30, "8 GiB" },
        { UINT64_MAX, "16 EiB" },
    };
    char out[16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ptr_equal(fo_format_bytes(cases[i].v, out, sizeof out), out);
        assert_string_equal(out, cases[i].s);
    }
}

static void durations_are_shown_in_the_unit_that_suits_them(void **state) {
    (void)state;
    static const struct {
        uint64_t v;
        const char *s;
    } cases[] = {
        { 0, "0 ms" },           { 250, "250 ms" },     { 1000, "1 s" },   { 1500, "1.50 s" },
        { 90000, "90 s" },       { 600000, "10 min" },  { 7200000, "2 h" }, { 172800000, "2 d" },
    };
    char out[16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_string_equal(fo_format_ms(cases[i].v, out, sizeof out), cases[i].s);
    fo_format_ms(UINT64_MAX, out, sizeof out); /* fits */
    assert_true(out[0] != '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_need_their_unit_and_nothing_else),
        cmocka_unit_test(durations_need_their_unit_too),
        cmocka_unit_test(sizes_are_shown_with_three_digits),
        cmocka_unit_test(durations_are_shown_in_the_unit_that_suits_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
