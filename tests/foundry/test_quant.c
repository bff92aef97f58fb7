/* Each quantised type against dequantised values made by another implementation (tests/data/quants, or $GOLDENS/quants when that is
 * set: rows of blocks as NAME.raw.bin, their values as NAME.f32.bin; the first rows have zero, subnormal, largest and negative scales
 * and extreme quants). */
#include "foundry/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/dtype.h"

static void *load(const char *name, const char *suffix, size_t *ret_len) {
    const char *goldens = getenv("GOLDENS");
    char path[512], *data;
    struct fo_err e;
    snprintf(path, sizeof path, "%s/quants/%s.%s.bin", goldens ? goldens : "tests/data", name, suffix);
    if (fo_file_read(path, 1 << 20, &data, ret_len, &e)) fail_msg("%s", e.msg);
    return data;
}

static bool same(float a, float b) {
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0 || (a == 0 && b == 0); /* -0.0 equals 0.0 */
}

static void compare(const char *name, const struct fo_dtype_info *t, const char *raw_suffix, const char *f32_suffix) {
    size_t raw_bytes, f32_bytes;
    void *raw = load(name, raw_suffix, &raw_bytes);
    float *want = load(name, f32_suffix, &f32_bytes);
    size_t n = f32_bytes / sizeof *want;
    assert_true(n > 0);
    assert_int_equal(raw_bytes, n / t->block * t->block_bytes);
    float *got = malloc(n * sizeof *got);
    assert_non_null(got);
    t->to_f32(raw, got, n);
    for (size_t i = 0; i < n; i++)
        if (!same(got[i], want[i])) fail_msg("%s: element %zu is %a, expected %a", name, i, (double)got[i], (double)want[i]);
    free(got);
    free(want);
    free(raw);
}

static void every_served_type_dequantises_bit_for_bit(void **state) {
    (void)state;
    int n_checked = 0;
    for (uint32_t i = 0; i < FO_N_DTYPES; i++) {
        const struct fo_dtype_info *t = fo_dtype_info(i);
        if (t && !t->to_f32) print_message("left out: type %s\n", t->name);
        if (!t || !t->to_f32 || i == FO_F32 || i == FO_Q8_K) continue; /* these two have no golden: one is a copy, one never in files */
        compare(t->name, t, "raw", "f32");
        print_message("equal: type %s\n", t->name);
        n_checked++;
    }
    assert_int_equal(n_checked, 25);
}

static void infinities_nans_and_subnormals_of_the_16_bit_types_pass(void **state) {
    (void)state;
    compare("F16", fo_dtype_info(FO_F16), "special.raw", "special.f32");
    compare("BF16", fo_dtype_info(FO_BF16), "special.raw", "special.f32");
}

/* Largest error a value may have, relative to the largest magnitude of its block: half a step of the type's grid, and the rounding
 * of the scales. */
static const struct {
    enum fo_dtype type;
    double step;
} grids[] = {
    { FO_F32, 0 },
    { FO_F16, 0x1p-11 },
    { FO_BF16, 0x1p-8 },
    { FO_Q4_0, 1.0 / 8 + 0x1p-10 }, /* a whole step at the end that the extreme value does not stand at */
    { FO_Q4_1, 1.0 / 15 + 0x1p-9 },
    { FO_Q8_0, 0.51 / 127 + 0x1p-11 },
    { FO_Q4_K, 1.0 / 15 + 3.0 / 63 },
    { FO_Q5_K, 1.0 / 31 + 3.0 / 63 },
    { FO_Q6_K, 0.5 / 31 + 1.0 / 127 },
    { FO_Q8_K, 0.51 / 127 },
    { FO_Q5_0, 1.0 / 16 + 0x1p-10 },
    { FO_Q5_1, 1.0 / 31 + 0x1p-9 },
    { FO_Q2_K, 1.0 / 3 + 1.5 / 15 },
    { FO_Q3_K, 1.0 / 4 + 1.0 / 31 },
    { FO_IQ4_NL, 14.0 / 127 + 0x1p-10 }, /* the sixteen values end at 113 on the one side */
    { FO_IQ4_XS, 14.0 / 127 + 1.0 / 31 },
    { FO_TQ1_0, 0.5 + 0x1p-10 },
    { FO_TQ2_0, 0.5 + 0x1p-10 },
    { FO_MXFP4, 2.0 / 8 }, /* the largest magnitude may be just under 8 where 6 is the most */
};

static void what_is_quantised_comes_back_within_half_a_step(void **state) {
    (void)state;
    enum { N = 1024 };
    float x[N], y[N];
    static _Alignas(64) unsigned char blocks[N * 4 + 64];
    struct fo_rng r;
    fo_rng_seed(&r, 7);
    for (int i = 0; i < N; i++) x[i] = ldexpf((float)(fo_rng_unit(&r) * 2 - 1), i / 256 * 5 - 2);
    for (size_t k = 0; k < sizeof grids / sizeof *grids; k++) {
        const struct fo_dtype_info *t = fo_dtype_info(grids[k].type);
        double worst = 0;
        t->from_f32(x, blocks, N);
        t->to_f32(blocks, y, N);
        for (int i = 0; i < N; i += t->block) {
            double top = (double)fo_abs_max(x + i, t->block);
            for (int j = 0; j < t->block; j++) {
                double err = fabs((double)x[i + j] - (double)y[i + j]);
                worst = fmax(worst, err / top);
                if (err > top * grids[k].step) fail_msg("%s: %g came back as %g", t->name, (double)x[i + j], (double)y[i + j]);
            }
        }
        assert_true(worst >= grids[k].step / 8); /* the bound is no wider than it must be */
    }
}

/* Bell-shaped weights, as trained ones are nearly. The figures are the relative root mean square errors of ggml's own quantisers (llama.cpp
 * as in llama-cpp-python 0.3.36, without an importance matrix) on the same values. */
static void quantisers_lose_no_more_than_those_of_ggml(void **state) {
    (void)state;
    static const struct {
        enum fo_dtype type;
        double error;
    } peers[] = {
        { FO_Q4_0, 0.08462 }, { FO_Q4_1, 0.07717 }, { FO_Q5_0, 0.04204 }, { FO_Q5_1, 0.03743 },
        { FO_Q8_0, 0.00524 }, { FO_Q2_K, 0.29442 }, { FO_Q3_K, 0.14938 }, { FO_Q4_K, 0.07053 },
        { FO_Q5_K, 0.03572 }, { FO_Q6_K, 0.01758 }, { FO_IQ4_NL, 0.07527 }, { FO_IQ4_XS, 0.07585 },
        { FO_TQ1_0, 0.79635 }, { FO_TQ2_0, 0.79635 }, { FO_MXFP4, 0.11763 }, { FO_NVFP4, 0.09589 },
    };
    enum { N = 65536 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    void *blocks = malloc(N * sizeof *x);
    struct fo_rng r;
    fo_rng_seed(&r, 5);
    for (int i = 0; i < N; i++) fo_rng_u64(&r);
    for (int i = 0; i < N; i++) {
        double v = 0;
        fo_rng_u64(&r);
        for (int j = 0; j < 12; j++) v += fo_rng_unit(&r) - 0.5; /* a sum of twelve: nearly normal, the same everywhere */
        x[i] = (float)(v * 0.05);
    }
    for (size_t k = 0; k < sizeof peers / sizeof *peers; k++) {
        const struct fo_dtype_info *t = fo_dtype_info(peers[k].type);
        double diff = 0, all = 0;
        t->from_f32(x, blocks, N);
        t->to_f32(blocks, y, N);
        for (int i = 0; i < N; i++) {
            diff += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            all += (double)x[i] * (double)x[i];
        }
        double error = sqrt(diff / all);
        if (error > 1.001 * peers[k].error || error < 0.9 * peers[k].error) fail_msg("%s: error %.5f, there %.5f", t->name, error, peers[k].error);
    }
    free(x);
    free(y);
    free(blocks);
}

static void every_served_type_but_those_with_code_books_can_be_written(void **state) {
    (void)state;
    for (uint32_t i = 0; i < FO_N_DTYPES; i++)
        if (fo_dtype_info(i) && fo_dtype_info(i)->to_f32) {
            bool book = strncmp(fo_dtype_name(i), "IQ", 2) == 0 && fo_dtype_name(i)[2] < '4';
            assert_int_equal(fo_dtype_info(i)->from_f32 == NULL, book);
        }
}

/* Every bit pattern of a block is one that a hostile file may hold. Under ASan this is the proof that no index leaves its book. */
static void any_bits_are_a_block(void **state) {
    (void)state;
    struct fo_rng r;
    fo_rng_seed(&r, 8);
    for (uint32_t i = 0; i < FO_N_DTYPES; i++) {
        const struct fo_dtype_info *t = fo_dtype_info(i);
        if (!t || !t->to_f32) continue;
        float *y = malloc(t->block * sizeof *y);
        unsigned char *b = malloc(t->block_bytes);
        for (int round = 0; round < 2000; round++) {
            for (int j = 0; j < t->block_bytes; j++) b[j] = (unsigned char)(round == 0 ? 0xFF : fo_rng_u64(&r));
            memset(y, 0x55, t->block * sizeof *y);
            t->to_f32(b, y, t->block);
            for (int j = 0; j < t->block && i != FO_F32; j++) { /* each element is written */
                uint32_t u;
                memcpy(&u, &y[j], sizeof u);
                assert_true(u != 0x55555555);
            }
        }
        free(b);
        free(y);
    }
}

static void nvfp4_keeps_what_its_scales_reach_and_saturates_beyond(void **state) {
    (void)state;
    float x[64], y[64];
    struct fo_block_nvfp4 b;
    struct fo_rng r;
    fo_rng_seed(&r, 9);
    for (int i = 0; i < 64; i++) x[i] = (float)(fo_rng_unit(&r) * 6 - 3);
    fo_nvfp4_from_f32(x, &b, 64);
    fo_nvfp4_to_f32(&b, y, 64);
    for (int i = 0; i < 64; i++) assert_true(fabsf(x[i] - y[i]) <= 3 * (1.0f / 6 + 1.0f / 16));
    for (int i = 0; i < 64; i++) x[i] = i < 16 ? 1e6f : i < 32 ? -1e6f : i < 48 ? NAN : 0;
    fo_nvfp4_from_f32(x, &b, 64);
    fo_nvfp4_to_f32(&b, y, 64);
    for (int i = 0; i < 64; i++) assert_true(y[i] == (i < 16 ? 2688.0f : i < 32 ? -2688.0f : i < 48 ? 2688.0f : 0));
}

static void a_bad_value_makes_a_block_of_mxfp4_infinite(void **state) {
    (void)state;
    float x[32] = { 1, NAN }, y[32];
    struct fo_block_mxfp4 b;
    fo_mxfp4_from_f32(x, &b, 32);
    fo_mxfp4_to_f32(&b, y, 32);
    for (int i = 0; i < 32; i++) assert_true(isinf(y[i]));
    x[1] = 3e38f; /* the largest that there are keep finite */
    fo_mxfp4_from_f32(x, &b, 32);
    fo_mxfp4_to_f32(&b, y, 32);
    assert_true(y[1] > 2.5e38f && isfinite(y[1]));
    memset(x, 0, sizeof x);
    fo_mxfp4_from_f32(x, &b, 32);
    fo_mxfp4_to_f32(&b, y, 32);
    for (int i = 0; i < 32; i++) assert_true(y[i] == 0);
}

static void sums_of_q8_k_are_those_of_its_quants(void **state) {
    (void)state;
    float x[FO_QK_K];
    struct fo_block_q8_k b;
    for (int i = 0; i < FO_QK_K; i++) x[i] = i < 16 ? 1.0f : sinf((float)i);
    fo_q8_k_from_f32(x, &b, FO_QK_K);
    assert_int_equal(b.bsums[0], 16 * 127);
    for (int j = 0; j < 16; j++) {
        int sum = 0;
        for (int i = 0; i < 16; i++) sum += b.qs[16 * j + i];
        assert_int_equal(b.bsums[j], sum);
    }
}

static void a_block_of_zeros_stays_zero_and_a_bad_value_is_seen(void **state) {
    (void)state;
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    static const enum fo_dtype types[] = { FO_Q4_0, FO_Q4_1, FO_Q8_0, FO_Q4_K,   FO_Q5_K,   FO_Q6_K,  FO_Q8_K, FO_Q5_0,
                                           FO_Q5_1, FO_Q2_K, FO_Q3_K, FO_IQ4_NL, FO_IQ4_XS, FO_TQ1_0, FO_TQ2_0 };
    float x[FO_QK_K] = { 0 }, y[FO_QK_K];
    static _Alignas(64) unsigned char blocks[512];
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        const struct fo_dtype_info *t = fo_dtype_info(types[k]);
        x[3] = 0;
        t->from_f32(x, blocks, FO_QK_K);
        t->to_f32(blocks, y, FO_QK_K);
        for (int i = 0; i < FO_QK_K; i++) assert_true(y[i] == 0);
        x[3] = 1e-42f; /* too small to invert */
        t->from_f32(x, blocks, FO_QK_K);
        t->to_f32(blocks, y, FO_QK_K);
        for (int i = 0; i < FO_QK_K; i++) assert_true(fabsf(y[i]) <= 1e-42f);
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            x[3] = bad[j];
            t->from_f32(x, blocks, FO_QK_K);
            t->to_f32(blocks, y, FO_QK_K);
            for (int i = 0; i < t->block; i++) assert_true(isnan(y[i]));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_served_type_dequantises_bit_for_bit),
        cmocka_unit_test(infinities_nans_and_subnormals_of_the_16_bit_types_pass),
        cmocka_unit_test(what_is_quantised_comes_back_within_half_a_step),
        cmocka_unit_test(quantisers_lose_no_more_than_those_of_ggml),
        cmocka_unit_test(every_served_type_but_those_with_code_books_can_be_written),
        cmocka_unit_test(any_bits_are_a_block),
        cmocka_unit_test(nvfp4_keeps_what_its_scales_reach_and_saturates_beyond),
        cmocka_unit_test(a_bad_value_makes_a_block_of_mxfp4_infinite),
        cmocka_unit_test(sums_of_q8_k_are_those_of_its_quants),
        cmocka_unit_test(a_block_of_zeros_stays_zero_and_a_bad_value_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
