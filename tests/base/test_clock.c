#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

#include "foundry/base/clock.h"

static void time_never_goes_back_and_the_units_agree(void **state) {
    (void)state;
    uint64_t ns = fo_now_ns(), ms = fo_now_ms();
    usleep(20000);
    uint64_t ns2 = fo_now_ns(), ms2 = fo_now_ms();
    assert_true(ms >= ns / 1000000 && ms2 - ms >= 19);
    assert_true(ns2 - ns >= 20000000);
}

static int64_t left_ms(struct timespec t) {
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 - (int64_t)fo_now_ms();
}

static void a_deadline_is_that_far_away_and_well_formed(void **state) {
    (void)state;
    static const int64_t waits[] = { 0, 1, 999, 1000, 1001, 123456 };
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        struct timespec t = fo_deadline(waits[i]);
        assert_in_range(t.tv_nsec, 0, 999999999);
        assert_true(left_ms(t) <= waits[i] + 1 && left_ms(t) > waits[i] - 2000);
    }
    assert_true(left_ms(fo_deadline(-5)) <= 1); /* the past is now */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_never_goes_back_and_the_units_agree),
        cmocka_unit_test(a_deadline_is_that_far_away_and_well_formed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
