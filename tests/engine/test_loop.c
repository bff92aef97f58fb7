/* Circles in what a model says: found when a run is said twice, and not before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/loop.h"
#include "foundry/base/rng.h"

/* Feeds `lead` random tokens, then a run of `period` random ones over and over: how many of the latter it takes until the loop is noticed. */
static uint32_t noticed_after(uint64_t seed, uint32_t lead, uint32_t period, uint32_t most) {
    struct pn_loop *l = calloc(1, sizeof *l);
    struct fo_rng r;
    int32_t *run = malloc(period * sizeof *run);
    uint32_t n = 0;
    fo_rng_seed(&r, seed);
    for (uint32_t i = 0; i < lead; i++) assert_false(pn_loop_push(l, (int32_t)(fo_rng_u64(&r) % 100000)));
    for (uint32_t i = 0; i < period; i++) run[i] = (int32_t)(100000 + i);
    while (n < most && !pn_loop_push(l, run[n % period])) n++;
    free(run);
    free(l);
    return n + 1;
}

static void a_run_said_twice_is_a_loop(void **state) {
    (void)state;
    static const uint32_t leads[] = { 0, 1, 31, 500, 3000 };
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        for (uint32_t period = PN_LOOP_RUN; period <= PN_LOOP_LAG; period += 31) assert_int_equal(noticed_after(i, leads[i], period, 4096), 2 * period);
        assert_int_equal(noticed_after(i, leads[i], PN_LOOP_LAG, 4096), 2 * PN_LOOP_LAG);
    }
}

static void a_short_run_is_one_when_it_fills_a_long_one(void **state) {
    (void)state;
    for (uint32_t period = 1; period < PN_LOOP_RUN; period++) assert_int_equal(noticed_after(period, 40, period, 4096), period + PN_LOOP_RUN);
}

static void what_is_longer_or_only_alike_is_none(void **state) {
    (void)state;
    assert_int_equal(noticed_after(1, 10, PN_LOOP_LAG + 1, 8192), 8193);
    struct pn_loop *l = calloc(1, sizeof *l);
    for (int32_t i = 0; i < 8000; i++) assert_false(pn_loop_push(l, i % 32 == 7 ? 1000 + i : i % 32)); /* one token differs in each */
    free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_said_twice_is_a_loop),
        cmocka_unit_test(a_short_run_is_one_when_it_fills_a_long_one),
        cmocka_unit_test(what_is_longer_or_only_alike_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
