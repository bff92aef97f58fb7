/* Splits against every possible one, and suggestions against what they promise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/place.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/base/rng.h"

enum { N_DIES = 3, MAX_LAYERS = 9, N_ROUNDS = 5000 };

struct bench {
    struct fo_region region;
    struct cf_facts f;
    struct cf_die_fact dies[N_DIES];
    struct cf_estimate est;
    uint64_t layers[MAX_LAYERS], kv[MAX_LAYERS];
    struct cf_placer placer;
};

static char die_a[] = "a", die_b[] = "b", die_c[] = "c", file[] = "p", *names[N_DIES] = { die_a, die_b, die_c };

static void bench_make(struct bench *b, struct fo_rng *rng) {
    struct fo_err e;
    *b = (struct bench){ .f = { .dies = b->dies, .n_dies = N_DIES, .estimates = &b->est, .n_estimates = 1 } };
    fo_region_init(&b->region, 1 << 20);
    for (size_t i = 0; i < N_DIES; i++) {
        snprintf(b->dies[i].name, sizeof b->dies[i].name, "%s", names[i]);
        b->dies[i].accelerator = i < 2;
        b->dies[i].host = i == 2;
    }
    b->est = (struct cf_estimate){
        .path = file, .ctx_cap = 4096, .n_layers = 3 + fo_rng_u64(rng) % (MAX_LAYERS - 2), .layer_bytes = b->layers, .layer_kv_bytes = b->kv
    };
    b->est.n_layer_kv = b->est.n_layers;
    for (size_t i = 0; i < b->est.n_layers; i++) {
        b->layers[i] = fo_rng_u64(rng) % 20;
        b->kv[i] = fo_rng_u64(rng) % 3 ? 4096 * (fo_rng_u64(rng) % 2) / 1024 : 0;
    }
    b->est.input_bytes = fo_rng_u64(rng) % 30;
    b->est.output_bytes = fo_rng_u64(rng) % 5;
    b->est.tied_bytes = fo_rng_u64(rng) % 2 ? b->est.input_bytes : 0;
    b->est.die_kv_bytes = fo_rng_u64(rng) % 2;
    b->est.scratch_bytes = fo_rng_u64(rng) % 4;
    b->est.logits_bytes = fo_rng_u64(rng) % 4;
    b->est.host_bytes = fo_rng_u64(rng) % 3;
    b->est.staging_bytes = fo_rng_u64(rng) % 3;
    assert_int_equal(cf_placer_init(&b->placer, &b->f, &b->region, &e), FO_OK);
    for (size_t i = 0; i < N_DIES; i++) b->placer.die_room[i] = fo_rng_u64(rng) % 120;
    b->placer.host_room = fo_rng_u64(rng) % 160;
}

static uint64_t bytes_on(const struct bench *b, size_t from, size_t to) {
    uint64_t n = b->est.scratch_bytes + b->est.die_kv_bytes;
    for (size_t i = from; i < to; i++) n += b->layers[i] + b->kv[i];
    if (from == 0) n += b->est.input_bytes;
    if (to == b->est.n_layers) n += b->est.output_bytes + b->est.logits_bytes + (from ? b->est.tied_bytes : 0);
    return n;
}

/* The fullest die's share of its room, for cuts at c1 and c2; what the host has left bounds its die. */
static double fullness(const struct bench *b, size_t c1, size_t c2) {
    const size_t at[N_DIES + 1] = { 0, c1, c2, b->est.n_layers };
    uint64_t off = b->est.host_bytes + b->est.staging_bytes, host = b->placer.host_room > off ? b->placer.host_room - off : 0;
    double worst = 0;
    for (size_t i = 0; i < N_DIES; i++) {
        uint64_t room = b->placer.die_room[i];
        if (b->dies[i].host && host < room) room = host;
        double full = (double)bytes_on(b, at[i], at[i + 1]) / (double)(room ? room : 1);
        if (full > worst) worst = full;
    }
    return worst;
}

static void splits_as_well_as_can_be(void **state) {
    (void)state;
    struct fo_rng rng;
    size_t n_placed = 0;
    fo_rng_seed(&rng, 17);
    for (int round = 0; round < N_ROUNDS; round++) {
        struct bench b;
        struct cf_place got;
        bench_make(&b, &rng);
        cf_place(&b.placer, &b.est, &(struct cf_names){ names, N_DIES }, false, &got);
        double best = 1e300;
        for (size_t c1 = 1; c1 < b.est.n_layers; c1++)
            for (size_t c2 = c1 + 1; c2 < b.est.n_layers; c2++)
                if (fullness(&b, c1, c2) < best) best = fullness(&b, c1, c2);
        uint64_t other = b.est.host_bytes + b.est.staging_bytes;
        assert_int_equal(got.kind == CF_PLACED, best <= 1 && other <= b.placer.host_room);
        assert_int_equal(got.n_parts, N_DIES);
        size_t c1 = (size_t)got.parts[1].first_layer, c2 = (size_t)got.parts[2].first_layer;
        assert_int_equal(got.parts[0].first_layer, 0);
        assert_int_equal(got.parts[2].first_layer + got.parts[2].n_layers, b.est.n_layers);
        assert_true(c1 > 0 && c2 > c1 && c2 < b.est.n_layers);
        assert_true(fullness(&b, c1, c2) <= best * 1.000001);
        for (size_t i = 0; i < N_DIES; i++)
            assert_int_equal(got.parts[i].weights_bytes + got.parts[i].kv_bytes + got.parts[i].scratch_bytes,
                             bytes_on(&b, (size_t)got.parts[i].first_layer, (size_t)(got.parts[i].first_layer + got.parts[i].n_layers)));
        n_placed += got.kind == CF_PLACED;
        fo_region_done(&b.region);
    }
    assert_true(n_placed > N_ROUNDS / 10 && n_placed < N_ROUNDS * 9 / 10);
}

/* "ctx_cap N": fits with KV for N, and not with 256 more. "dies: x": fits there. */
static void what_would_fit_does(void **state) {
    (void)state;
    struct fo_rng rng;
    size_t n_ctx = 0, n_dies = 0;
    fo_rng_seed(&rng, 4);
    for (int round = 0; round < N_ROUNDS; round++) {
        struct bench b;
        struct cf_place got;
        struct fo_buf out;
        struct cf_names where = { names, 1 + fo_rng_u64(&rng) % 2 };
        bench_make(&b, &rng);
        fo_buf_init(&out, 1 << 10);
        for (size_t i = 0; i < b.est.n_layers; i++) b.kv[i] = 16; /* one for 256 tokens */
        cf_place(&b.placer, &b.est, &where, false, &got);
        if (got.kind == CF_NO_ROOM) {
            cf_place_instead(&b.placer, &b.est, &where, &out);
            const char *said = fo_buf_str(&out), *dies = strstr(said, "dies: ");
            long long ctx = strncmp(said, "ctx_cap ", 8) == 0 ? strtoll(said + 8, NULL, 10) : 0;
            assert_int_equal(ctx % 256, 0);
            for (size_t i = 0; i < b.est.n_layers; i++) b.kv[i] = (uint64_t)ctx / 256;
            cf_place(&b.placer, &b.est, &where, false, &got);
            assert_true(!ctx || got.kind == CF_PLACED);
            for (size_t i = 0; i < b.est.n_layers; i++) b.kv[i] = (uint64_t)ctx / 256 + 1;
            cf_place(&b.placer, &b.est, &where, false, &got);
            assert_int_equal(got.kind, CF_NO_ROOM);
            for (size_t i = 0; i < b.est.n_layers; i++) b.kv[i] = 16;
            if (dies) {
                char name[16], *list = name;
                snprintf(name, sizeof name, "%s", dies + 6);
                cf_place(&b.placer, &b.est, &(struct cf_names){ &list, 1 }, false, &got);
                assert_int_equal(got.kind, CF_PLACED);
            }
            n_ctx += ctx > 0;
            n_dies += dies != NULL;
        }
        fo_buf_done(&out);
        fo_region_done(&b.region);
    }
    assert_true(n_ctx > N_ROUNDS / 50 && n_dies > N_ROUNDS / 50);
}

static void absurd_figures_never_fit(void **state) {
    (void)state;
    struct fo_rng rng;
    struct bench b;
    struct cf_place got;
    fo_rng_seed(&rng, 1);
    bench_make(&b, &rng);
    for (size_t i = 0; i < N_DIES; i++) b.placer.die_room[i] = UINT64_MAX - 1;
    b.placer.host_room = UINT64_MAX;
    for (size_t i = 0; i < b.est.n_layers; i++) b.layers[i] = UINT64_MAX / 2;
    for (size_t n = 0; n <= N_DIES; n++) {
        cf_place(&b.placer, &b.est, &(struct cf_names){ names, n }, false, &got);
        assert_int_equal(got.kind, CF_NO_ROOM);
        cf_place(&b.placer, &b.est, &(struct cf_names){ names, n }, true, &got);
        assert_int_equal(got.kind, CF_NO_ROOM); /* no trust in what is no number */
    }
    fo_region_done(&b.region);
}

/* The largest that facts may hold: a plan stays instant. */
static void splits_the_largest_model_over_the_most_dies(void **state) {
    (void)state;
    static struct cf_die_fact dies[CF_MAX_PARTS];
    static uint64_t layers[CF_MAX_LAYERS], kv[CF_MAX_LAYERS];
    struct cf_estimate est = {
        .path = file, .ctx_cap = 4096, .layer_bytes = layers, .n_layers = CF_MAX_LAYERS, .layer_kv_bytes = kv, .n_layer_kv = CF_MAX_LAYERS
    };
    struct cf_facts f = { .dies = dies, .n_dies = CF_MAX_PARTS, .estimates = &est, .n_estimates = 1 };
    char *list[CF_MAX_PARTS];
    struct fo_region r;
    struct cf_placer p;
    struct cf_place got;
    struct fo_err e;
    fo_region_init(&r, 8 << 20);
    for (size_t i = 0; i < CF_MAX_PARTS; i++) {
        snprintf(dies[i].name, sizeof dies[i].name, "d%zu", i);
        list[i] = dies[i].name;
    }
    for (size_t i = 0; i < CF_MAX_LAYERS; i++) layers[i] = 100 + i % 7;
    assert_int_equal(cf_placer_init(&p, &f, &r, &e), FO_OK);
    for (size_t i = 0; i < CF_MAX_PARTS; i++) p.die_room[i] = 1700;
    cf_place(&p, &est, &(struct cf_names){ list, CF_MAX_PARTS }, false, &got);
    assert_int_equal(got.kind, CF_PLACED);
    for (size_t i = 0; i < CF_MAX_PARTS; i++) assert_int_equal(got.parts[i].n_layers, CF_MAX_LAYERS / CF_MAX_PARTS);
    fo_region_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_as_well_as_can_be),
        cmocka_unit_test(what_would_fit_does),
        cmocka_unit_test(absurd_figures_never_fit),
        cmocka_unit_test(splits_the_largest_model_over_the_most_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
