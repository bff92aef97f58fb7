/* The tap knows every op: a slot that struct fo_device gains must go through it, or `pantheon drift` would not see that op. (What the tap says of
 * right and wrong ops: tests/engine/test_drift.c.) */
#include "foundry/tap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/ops.h"

static int seen_nothing(void *ctx, const struct fo_tap_seen *seen, struct fo_err *e) {
    (void)ctx, (void)seen, (void)e;
    return FO_OK;
}

typedef void slot_fn(void);

static slot_fn *slot(const struct fo_device *d, size_t at) {
    slot_fn *f;
    memcpy(&f, (const char *)d + at, sizeof f);
    return f;
}

static void every_compute_slot_that_a_device_has_goes_through_the_tap(void **state) {
    (void)state;
    struct fo_device *cpu, *tap;
    struct fo_err e;
    assert_int_equal(fo_device_open("cpu", "", NULL, &cpu, &e), FO_OK);
    assert_int_equal(fo_tap_open(cpu, cpu, seen_nothing, NULL, &tap, &e), FO_OK);
    size_t first = offsetof(struct fo_device, get_rows), n = (sizeof(struct fo_device) - first) / sizeof(slot_fn *);
    assert_true(n >= 10);
    assert_int_equal(first + n * sizeof(slot_fn *), sizeof(struct fo_device)); /* nothing but slots behind the first op */
    for (size_t i = 0; i < n; i++) {
        size_t at = first + i * sizeof(slot_fn *);
        if (!slot(cpu, at)) continue;
        if (!slot(tap, at) || slot(tap, at) == slot(cpu, at)) fail_msg("op %zu of struct fo_device (from get_rows = 0 on) is not in foundry/tap.c", i);
    }
    fo_device_close(tap);
    fo_device_close(cpu);
}

static void every_op_has_a_tolerance_and_kv_in_whole_numbers_a_wider_one(void **state) {
    (void)state;
    static const char *const ops[] = { "get_rows", "matmul", "rms_norm", "add", "add_rows", "silu_mul", "rope", "attend", "matmul_fused" };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) assert_true(fo_tap_tolerance(ops[i], FO_F32) > 0 && fo_tap_tolerance(ops[i], FO_F32) < 1e-2);
    assert_true(fo_tap_tolerance("attend", FO_Q8_0) > fo_tap_tolerance("attend", FO_F16));
    assert_true(fo_tap_tolerance("attend", FO_Q4_0) > fo_tap_tolerance("attend", FO_F16));
}

/* --- attention over every type of KV, where the engine's models have one ----------------------------------------------------- */

enum { HEADS = 4, HEADS_KV = 2, DIM = 64, POSITIONS = 150, PAGES = (POSITIONS + FO_KV_PAGE_TOKENS - 1) / FO_KV_PAGE_TOKENS };

struct shares {
    double attend;
    int n_attend, n_stored;
};

static int see_attention(void *ctx, const struct fo_tap_seen *seen, struct fo_err *e) {
    struct shares *s = ctx;
    (void)e;
    if (strcmp(seen->op, "attend") == 0) {
        s->n_attend++;
        if (seen->share > s->attend) s->attend = seen->share;
    }
    s->n_stored += strcmp(seen->op, "kv_store") == 0;
    return FO_OK;
}

static float *floats_on(struct fo_device *d, int64_t n, struct fo_rng *rng, float by) {
    struct fo_err e;
    void *p;
    float *host = malloc((size_t)n * sizeof *host);
    assert_non_null(host);
    for (int64_t i = 0; i < n; i++) host[i] = by * (float)(fo_rng_unit(rng) * 2 - 1);
    if (d->alloc(d, (uint64_t)n * sizeof *host, &p, &e) || d->upload(d, p, host, (uint64_t)n * sizeof *host, &e)) fail_msg("%s", e.msg);
    free(host);
    return p;
}

static void attention_over_kv_of_every_type_is_within_its_tolerance(void **state) {
    (void)state;
    static const enum fo_dtype types[] = { FO_F32, FO_F16, FO_Q8_0, FO_Q4_0 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct shares seen = { -1, 0, 0 };
        struct fo_device *cpu, *exact, *tap;
        struct fo_stream *s;
        struct fo_err e;
        struct fo_rng rng;
        fo_rng_seed(&rng, 7);
        assert_int_equal(fo_device_open("cpu", "", NULL, &cpu, &e), FO_OK);
        assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .exact = true }, &exact, &e), FO_OK);
        assert_int_equal(fo_tap_open(cpu, exact, see_attention, &seen, &tap, &e), FO_OK);
        assert_int_equal(tap->stream_open(tap, POSITIONS, HEADS * DIM, POSITIONS, &s, &e), FO_OK);
        struct fo_kv_geom g = { .k_type = types[i], .v_type = types[i], .n_layer = 1, .n_head_kv = HEADS_KV, .head_dim = DIM, .page_tokens = FO_KV_PAGE_TOKENS,
                                .n_pages = PAGES, .scale = 0.125f, .n_head = HEADS };
        void *pool;
        assert_int_equal(tap->alloc(tap, g.n_pages * fo_kv_page_bytes(&g), &pool, &e), FO_OK);
        g.pool = pool;
        float *q = floats_on(tap, POSITIONS * HEADS * DIM, &rng, 4), *k = floats_on(tap, POSITIONS * HEADS_KV * DIM, &rng, 2);
        float *v = floats_on(tap, POSITIONS * HEADS_KV * DIM, &rng, 1), *out = floats_on(tap, POSITIONS * HEADS * DIM, &rng, 1);
        uint32_t pages[PAGES];
        for (uint32_t p = 0; p < PAGES; p++) pages[p] = PAGES - 1 - p;
        /* most of them as one batch, then one alone */
        for (int at = 0, n; at < POSITIONS; at += n) {
            n = at == 0 ? POSITIONS - 1 : 1;
            struct fo_attn_seq seq = { .row = 0, .n = n, .pos = at, .pages = pages };
            struct fo_attn_batch b = { .seqs = &seq, .n_seqs = 1, .n_rows = n };
            if (fo_kv_store(s, &g, k + at * HEADS_KV * DIM, v + at * HEADS_KV * DIM, &b, 0, &e) || fo_attend(s, &g, q + at * HEADS * DIM, &b, 0, out + at * HEADS * DIM, &e))
                fail_msg("%s: %s", fo_dtype_name(types[i]), e.msg);
        }
        print_message("  %s: %.3f of what is allowed\n", fo_dtype_name(types[i]), seen.attend);
        assert_int_equal(seen.n_attend, 2);
        assert_int_equal(seen.n_stored, 2);
        assert_true(seen.attend >= 0 && seen.attend <= 0.5);
        tap->stream_close(s);
        fo_device_close(tap); /* with what was not freed */
        fo_device_close(exact);
        fo_device_close(cpu);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_compute_slot_that_a_device_has_goes_through_the_tap),
        cmocka_unit_test(attention_over_kv_of_every_type_is_within_its_tolerance),
        cmocka_unit_test(every_op_has_a_tolerance_and_kv_in_whole_numbers_a_wider_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
