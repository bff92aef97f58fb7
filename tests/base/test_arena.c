/* The bump arena: measuring and allocating agree, nothing is handed out twice, redzones find what was overrun. */
#include "foundry/base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"

static _Alignas(4096) unsigned char block[1 << 16];

/* The same layout code for both modes, as admission relies on. */
static int lay_out(struct fo_arena *a, uint64_t seed, uint64_t offs[20], uint64_t sizes[20], struct fo_err *e) {
    struct fo_rng r;
    fo_rng_seed(&r, seed);
    for (int i = 0; i < 20; i++) {
        uint64_t align = (uint64_t)1 << fo_rng_u64(&r) % 9;
        sizes[i] = fo_rng_u64(&r) % 2000;
        int rc = fo_arena_take(a, sizes[i], align, &offs[i], e);
        if (rc) return rc;
        assert_int_equal(offs[i] % align, 0);
    }
    return FO_OK;
}

static void what_is_measured_is_what_is_used(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct fo_arena m, h, d;
        uint64_t om[20], oh[20], od[20], sizes[20];
        struct fo_err e;
        fo_arena_init_measure(&m);
        assert_int_equal(lay_out(&m, seed, om, sizes, &e), 0);
        assert_null(fo_arena_ptr(&m, om[3]));
        fo_arena_init_host(&h, block, m.used); /* exactly enough */
        assert_int_equal(lay_out(&h, seed, oh, sizes, &e), 0);
        fo_arena_init_device(&d, m.used);
        assert_int_equal(lay_out(&d, seed, od, sizes, &e), 0);
        assert_memory_equal(om, oh, sizeof om);
        assert_memory_equal(om, od, sizeof om);
        assert_true(h.used == m.used && d.used == m.used && h.peak == m.used);
        for (int i = 0; i < 20; i++) {
            memset(fo_arena_ptr(&h, oh[i]), i, sizes[i]); /* pieces may be filled to their last byte */
            if (i) assert_true(oh[i] >= oh[i - 1] + sizes[i - 1]);
        }
        assert_true(fo_arena_check(&h));
        fo_arena_init_host(&h, block, m.used - 1); /* one byte short */
        assert_int_equal(lay_out(&h, seed, oh, sizes, &e), FO_ENOMEM);
        assert_true(e.need > e.have);
    }
}

static void a_full_arena_says_what_it_needs_and_has(void **state) {
    (void)state;
    struct fo_arena a;
    struct fo_err e;
    uint64_t off = 7;
    fo_arena_init_host(&a, block, 1024);
    assert_int_equal(fo_arena_take(&a, 2000, 1, &off, &e), FO_ENOMEM);
    assert_true(off == 7 && a.used == 0);
    assert_true(e.need >= 2000 && e.have == 1024);
    assert_int_equal(fo_arena_take(&a, 0, 64, &off, &e), 0); /* nothing is allowed */
    assert_int_equal(off, 0);
}

static void sums_that_overflow_are_refused_in_every_mode(void **state) {
    (void)state;
    struct fo_arena arenas[3];
    struct fo_err e;
    fo_arena_init_measure(&arenas[0]);
    fo_arena_init_host(&arenas[1], block, sizeof block);
    fo_arena_init_device(&arenas[2], UINT64_MAX);
    for (int i = 0; i < 3; i++) {
        uint64_t off;
        assert_int_equal(fo_arena_take(&arenas[i], 100, 1, &off, &e), 0);
        uint64_t used = arenas[i].used;
        assert_int_equal(fo_arena_take(&arenas[i], UINT64_MAX, 1, &off, &e), FO_ENOMEM);
        assert_int_equal(fo_arena_take(&arenas[i], UINT64_MAX - 50, 4096, &off, &e), FO_ENOMEM);
        assert_true(arenas[i].used == used);
    }
}

static void reset_starts_over_and_keeps_the_peak(void **state) {
    (void)state;
    struct fo_arena a;
    struct fo_err e;
    uint64_t first, again;
    fo_arena_init_host(&a, block, sizeof block);
    assert_int_equal(fo_arena_take(&a, 5000, 64, &first, &e), 0);
    uint64_t peak = a.used;
    fo_arena_reset(&a);
    assert_true(a.used == 0 && a.peak == peak && fo_arena_check(&a));
    assert_int_equal(fo_arena_take(&a, 10, 64, &again, &e), 0);
    assert_true(again == first && a.peak == peak);
}

static void a_debug_build_finds_what_was_overrun(void **state) {
    (void)state;
    struct fo_arena a;
    struct fo_err e;
    uint64_t offs[3];
    fo_arena_init_host(&a, block, sizeof block);
    for (int i = 0; i < 3; i++) assert_int_equal(fo_arena_take(&a, 100, 1, &offs[i], &e), 0);
    assert_true(fo_arena_check(&a));
    unsigned char *past = (unsigned char *)fo_arena_ptr(&a, offs[0]) + 100;
#ifdef FO_DEBUG
    for (int i = 0; i < 32; i += 9) { /* links and pattern of the oldest zone */
        unsigned char was = past[i];
        past[i] ^= 0x40;
        assert_false(fo_arena_check(&a));
        past[i] = was;
        assert_true(fo_arena_check(&a));
    }
#else
    assert_ptr_equal(past, fo_arena_ptr(&a, offs[1])); /* a release build spends nothing on zones */
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_measured_is_what_is_used),
        cmocka_unit_test(a_full_arena_says_what_it_needs_and_has),
        cmocka_unit_test(sums_that_overflow_are_refused_in_every_mode),
        cmocka_unit_test(reset_starts_over_and_keeps_the_peak),
        cmocka_unit_test(a_debug_build_finds_what_was_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
