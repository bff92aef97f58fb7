/* Levels of memory pressure from made-up readings and a made-up clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/mem/pressure.h"
#include "foundry/base/rng.h"

static const struct pn_thresholds T = { .at = { 0, 80, 90, 96 }, .leave = 5, .hold_ms = 1000 };

/* A reading of so many per mille in use. */
static struct pn_reading used(unsigned per_mille) {
    return (struct pn_reading){ .total = 1000, .available = 1000 - per_mille };
}

static void take(struct pn_pressure *p, unsigned per_mille, uint64_t now, enum pn_level want) {
    struct pn_reading r = used(per_mille);
    enum pn_level before = p->level;
    assert_int_equal(pn_pressure_take(p, &T, &r, now), before != want);
    assert_int_equal(p->level, want);
}

static void a_threshold_is_the_first_use_of_its_level(void **state) {
    (void)state;
    static const struct {
        unsigned per_mille;
        enum pn_level level;
    } rows[] = { { 0, PN_NORMAL }, { 799, PN_NORMAL }, { 800, PN_WATCH }, { 899, PN_WATCH }, { 900, PN_TIGHT }, { 959, PN_TIGHT }, { 960, PN_CRITICAL }, { 1000, PN_CRITICAL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pn_reading r = used(rows[i].per_mille);
        assert_int_equal(pn_pressure_of(&T, &r), rows[i].level);
    }
    struct pn_reading unknown = { 0, 0, 0, 0 }, more = { .total = 10, .available = 20 };
    assert_int_equal(pn_pressure_of(&T, &unknown), PN_NORMAL); /* what was not read is no pressure */
    assert_int_equal(pn_pressure_of(&T, &more), PN_NORMAL);
    struct pn_reading huge = { .total = UINT64_MAX, .available = 1 };
    assert_int_equal(pn_pressure_of(&T, &huge), PN_CRITICAL);
    assert_string_equal(pn_level_name(PN_NORMAL), "normal");
    assert_string_equal(pn_level_name(PN_CRITICAL), "critical");
}

static void stalls_bind_where_use_does_not(void **state) {
    (void)state;
    static const struct {
        double some, full;
        enum pn_level level;
    } rows[] = { { 9.9, 0, PN_NORMAL }, { 10, 0, PN_WATCH }, { 29.9, 9.9, PN_WATCH }, { 30, 0, PN_TIGHT }, { 12, 10, PN_TIGHT }, { 99, 19.9, PN_TIGHT }, { 20, 20, PN_CRITICAL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pn_reading r = used(100);
        r.psi_some = rows[i].some;
        r.psi_full = rows[i].full;
        assert_int_equal(pn_pressure_of(&T, &r), rows[i].level);
    }
    /* left at half of the threshold */
    struct pn_pressure p = { .level = PN_WATCH };
    struct pn_reading r = used(100);
    r.psi_some = 5;
    pn_pressure_take(&p, &T, &r, 0);
    pn_pressure_take(&p, &T, &r, 5000);
    assert_int_equal(p.level, PN_WATCH);
    r.psi_some = 4.9;
    pn_pressure_take(&p, &T, &r, 6000);
    assert_true(pn_pressure_take(&p, &T, &r, 7000));
    assert_int_equal(p.level, PN_NORMAL);
}

static void up_at_once_and_down_one_by_one(void **state) {
    (void)state;
    struct pn_pressure p = { 0 };
    take(&p, 970, 0, PN_CRITICAL);
    take(&p, 100, 10, PN_CRITICAL);
    take(&p, 100, 1009, PN_CRITICAL);
    take(&p, 100, 1010, PN_TIGHT); /* a second after the first reading below */
    take(&p, 100, 1011, PN_TIGHT); /* from here another */
    take(&p, 100, 2010, PN_TIGHT);
    take(&p, 100, 2011, PN_WATCH);
    take(&p, 100, 2500, PN_WATCH);
    take(&p, 910, 2600, PN_TIGHT); /* and up again */
    take(&p, 100, 2700, PN_TIGHT);
    take(&p, 100, 3699, PN_TIGHT);
    take(&p, 100, 3700, PN_WATCH);
}

static void near_the_threshold_nothing_changes(void **state) {
    (void)state;
    struct pn_pressure p = { 0 };
    take(&p, 900, 0, PN_TIGHT);
    for (uint64_t at = 1; at < 100000; at += 100) take(&p, at % 200 == 1 ? 899 : 850, at, PN_TIGHT); /* not 5 points below */
    take(&p, 849, 100000, PN_TIGHT);
    take(&p, 850, 100999, PN_TIGHT); /* not long enough: from the start */
    take(&p, 849, 101000, PN_TIGHT);
    take(&p, 849, 101999, PN_TIGHT);
    take(&p, 849, 102000, PN_WATCH);
    take(&p, 760, 102001, PN_WATCH); /* a level is left by its own threshold */
    take(&p, 760, 200000, PN_WATCH);
}

static void a_hold_of_nothing_goes_down_with_each_reading(void **state) {
    (void)state;
    struct pn_thresholds t = T;
    struct pn_pressure p = { .level = PN_CRITICAL };
    struct pn_reading r = used(0);
    t.hold_ms = 0;
    for (int level = PN_TIGHT; level >= PN_NORMAL; level--) {
        assert_true(pn_pressure_take(&p, &t, &r, 5));
        assert_int_equal(p.level, level);
    }
    assert_false(pn_pressure_take(&p, &t, &r, 5));
}

/* Whatever comes: never below what a reading says, and down by one at a time. */
static void random_readings_obey_the_rules(void **state) {
    (void)state;
    struct fo_rng rng;
    fo_rng_seed(&rng, 18);
    struct pn_pressure p = { 0 };
    uint64_t now = 0, changed = 0;
    for (int i = 0; i < 100000; i++) {
        struct pn_reading r = used((unsigned)(fo_rng_u64(&rng) % 1001));
        if (fo_rng_u64(&rng) % 8 == 0) r.psi_some = (double)(fo_rng_u64(&rng) % 60);
        if (fo_rng_u64(&rng) % 32 == 0) r.psi_full = (double)(fo_rng_u64(&rng) % 30);
        if (fo_rng_u64(&rng) % 4 == 0) r = used((unsigned)(fo_rng_u64(&rng) % 300)); /* quiet for a while, now and then */
        enum pn_level before = p.level, says = pn_pressure_of(&T, &r);
        now += fo_rng_u64(&rng) % 3000;
        bool told = pn_pressure_take(&p, &T, &r, now);
        assert_int_equal(told, p.level != before);
        assert_true(p.level >= says);
        assert_true(p.level >= before || p.level + 1 == before);
        changed += told;
    }
    assert_true(changed > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_threshold_is_the_first_use_of_its_level),
        cmocka_unit_test(stalls_bind_where_use_does_not),
        cmocka_unit_test(up_at_once_and_down_one_by_one),
        cmocka_unit_test(near_the_threshold_nothing_changes),
        cmocka_unit_test(a_hold_of_nothing_goes_down_with_each_reading),
        cmocka_unit_test(random_readings_obey_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
