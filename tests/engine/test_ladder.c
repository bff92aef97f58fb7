/* The ladder of rungs under levels as they come, without a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/mem/ladder.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"

/* What was heard of rungs: they are numbered by the table. */
struct heard {
    size_t applied; /* rungs [0, applied) are on */
    uint64_t n;
};

static void hear(void *ctx, const struct pn_rung *r, bool on) {
    struct heard *h = ctx;
    if (on) assert_ptr_equal(r, pn_rung_at(h->applied++)); /* the next one, */
    else assert_ptr_equal(r, pn_rung_at(--h->applied));    /* or the last */
    h->n++;
}

static void the_table_is_in_the_order_of_harm(void **state) {
    (void)state;
    static const char *const order[] = { "kv_floor", "requantise_cold", "half_concurrency", "prefill_clamp", "evict_cold", "drop_page_cache", "one_slot" };
    assert_int_equal(pn_rung_count(), sizeof order / sizeof *order);
    for (size_t i = 0; i < pn_rung_count(); i++) {
        const struct pn_rung *r = pn_rung_at(i);
        assert_string_equal(r->name, order[i]);
        assert_true(r->level > PN_NORMAL && r->what[0]);
        if (i > 0) assert_true(r->level >= pn_rung_at(i - 1)->level);
    }
    assert_null(pn_rung_at(pn_rung_count()));
    assert_int_equal(pn_rungs_at_level(PN_NORMAL), 0);
    assert_int_equal(pn_rungs_at_level(PN_WATCH), 2);
    assert_int_equal(pn_rungs_at_level(PN_TIGHT), 6);
    assert_int_equal(pn_rungs_at_level(PN_CRITICAL), pn_rung_count());
}

static void levels_lower_what_they_say(void **state) {
    (void)state;
    struct pn_effective d = { .max_concurrent = 5, .prefill_chunk = 256 };
    struct pn_ladder l;
    pn_ladder_init(&l, &d);
    assert_true(pn_ladder_set(&l, PN_WATCH));
    assert_false(pn_ladder_set(&l, PN_WATCH));
    assert_true(l.now.kv_floor && l.now.requantise && !l.now.evict && !l.now.drop_cache);
    assert_int_equal(l.now.max_concurrent, 5);
    assert_int_equal(l.now.prefill_chunk, 256);
    pn_ladder_set(&l, PN_TIGHT);
    assert_true(l.now.kv_floor && l.now.requantise && l.now.evict && l.now.drop_cache);
    assert_int_equal(l.now.max_concurrent, 2);
    assert_int_equal(l.now.prefill_chunk, 64);
    pn_ladder_set(&l, PN_CRITICAL);
    assert_int_equal(l.now.max_concurrent, 1);
    pn_ladder_set(&l, PN_TIGHT);
    assert_int_equal(l.now.max_concurrent, 2);
    pn_ladder_set(&l, PN_NORMAL);
    assert_memory_equal(&l.now, &d, sizeof d);
}

/* The page for people has every rung, in order. */
static void the_page_has_the_rungs_in_order(void **state) {
    (void)state;
    struct fo_err e;
    char *page, name[64];
    size_t len;
    if (fo_file_read("docs/memory.md", 1 << 20, &page, &len, &e)) fail_msg("%s", e.msg);
    const char *at = page;
    for (size_t i = 0; i < pn_rung_count(); i++) {
        snprintf(name, sizeof name, "\n| `%s` | %s |", pn_rung_at(i)->name, pn_level_name(pn_rung_at(i)->level));
        at = strstr(at, name);
        if (!at) fail_msg("docs/memory.md lacks %s in its place", name + 1);
    }
    free(page);
}

/* Small limits stay what can still answer somebody, and a clamp never raises one. */
static void nothing_falls_below_one(void **state) {
    (void)state;
    for (uint32_t slots = 1; slots < 9; slots++)
        for (uint32_t chunk = 1; chunk < 200; chunk++) {
            struct pn_effective d = { .max_concurrent = slots, .prefill_chunk = chunk };
            struct pn_ladder l;
            pn_ladder_init(&l, &d);
            for (int level = PN_NORMAL; level < PN_N_LEVELS; level++) {
                pn_ladder_set(&l, (enum pn_level)level);
                assert_in_range(l.now.max_concurrent, 1, slots);
                assert_in_range(l.now.prefill_chunk, 1, chunk);
                if (chunk >= 16) assert_true(l.now.prefill_chunk >= 16);
            }
            assert_int_equal(l.now.max_concurrent, 1);
        }
}

static void declared_limits_change_under_the_rungs(void **state) {
    (void)state;
    struct pn_effective d = { .max_concurrent = 8, .prefill_chunk = 256 }, less = { .max_concurrent = 4, .prefill_chunk = 128 };
    struct pn_ladder l;
    pn_ladder_init(&l, &d);
    pn_ladder_set(&l, PN_TIGHT);
    pn_ladder_declare(&l, &less);
    assert_int_equal(l.now.max_concurrent, 2);
    assert_int_equal(l.now.prefill_chunk, 32);
    assert_true(l.now.evict);
    pn_ladder_set(&l, PN_NORMAL);
    assert_memory_equal(&l.now, &less, sizeof less);
}

/* The whole way: readings make levels, levels make rungs. No rung out of order, undone in reverse, one slot at least, and what is in force
 * depends on the level alone, however it came about. */
static void a_hundred_thousand_readings_leave_no_trace(void **state) {
    (void)state;
    const struct pn_thresholds t = { .at = { 0, 80, 90, 96 }, .leave = 5, .hold_ms = 400 };
    struct pn_effective d = { .max_concurrent = 6, .prefill_chunk = 512 };
    struct pn_ladder l, fresh;
    struct pn_pressure p = { 0 };
    struct heard h = { 0, 0 };
    struct fo_rng rng;
    uint64_t now = 0, use = 0, seen[PN_N_LEVELS] = { 0 };
    fo_rng_seed(&rng, 100000);
    pn_ladder_init(&l, &d);
    l.told = hear;
    l.ctx = &h;
    for (int i = 0; i < 100000; i++) {
        uint64_t dice = fo_rng_u64(&rng);
        if (dice % 5 == 0) use = dice / 5 % 1001; /* else it stays for a while */
        if (dice % 997 == 0) {
            d.max_concurrent = 1 + (uint32_t)(dice / 997 % 8);
            pn_ladder_declare(&l, &d);
        }
        now += dice / 11 % 250;
        struct pn_reading r = { .total = 1000, .available = 1000 - use, .psi_some = dice % 13 == 0 ? (double)(dice / 13 % 40) : 0 };
        pn_pressure_take(&p, &t, &r, now);
        pn_ladder_set(&l, p.level);
        seen[p.level]++;
        assert_int_equal(l.n, pn_rungs_at_level(p.level));
        assert_int_equal(h.applied, l.n);
        assert_true(l.now.max_concurrent >= 1 && l.now.max_concurrent <= d.max_concurrent);
        pn_ladder_init(&fresh, &d);
        pn_ladder_set(&fresh, p.level);
        assert_memory_equal(&fresh.now, &l.now, sizeof l.now);
    }
    for (int i = 0; i < PN_N_LEVELS; i++) assert_true(seen[i] > 1000);
    pn_ladder_set(&l, PN_NORMAL);
    assert_memory_equal(&l.now, &d, sizeof d);
    assert_int_equal(h.applied, 0);
    assert_true(h.n > 10000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_in_the_order_of_harm),
        cmocka_unit_test(the_page_has_the_rungs_in_order),
        cmocka_unit_test(levels_lower_what_they_say),
        cmocka_unit_test(nothing_falls_below_one),
        cmocka_unit_test(declared_limits_change_under_the_rungs),
        cmocka_unit_test(a_hundred_thousand_readings_leave_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
