/* Every slot of every overlay against the reference: kernels.h states what each may differ by. An overlay runs where the CPU has it; AVX-512
 * runs by emulation where not (tests/support/avx512_emulated.h), and `make check-arm` runs Arm's under an emulator of the whole CPU. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/cpu/kernels.h"
#include "foundry/ops.h"
#include "foundry/quant.h"
#include "tests/support/avx512_emulated.h"

static struct fo_rng rng;
static struct fo_cpu_kernels ref;

/* The overlays that can run here; `name` says how. One that `base` names replaces some of its slots. */
static struct overlay {
    const char *name;
    struct fo_cpu_kernels k;
    const struct overlay *base;
} overlays[6];
static int n_overlays;

static int find_overlays(void **state) {
    (void)state;
    struct fo_err e;
    const char *name;
    fo_cpu_ref(&ref);
    n_overlays = 0;
    for (int i = 0; (name = fo_cpu_overlay(i)); i++) {
        struct overlay *o = &overlays[n_overlays];
        *o = (struct overlay){ .name = name };
        assert_true(n_overlays < (int)(sizeof overlays / sizeof *overlays) - 1); /* the last is for the emulated one */
        if (fo_cpu_kernels_for(name, &o->k, &e) == FO_OK) n_overlays++;
    }
    const struct overlay *avx2 = NULL;
    for (int i = 0; i < n_overlays; i++)
        if (strcmp(overlays[i].name, "avx2") == 0) avx2 = &overlays[i];
    struct overlay *emulated = &overlays[n_overlays];
    if (avx2) *emulated = (struct overlay){ .name = "avx512 emulated", .k = avx2->k, .base = avx2 };
    if (avx2 && fo_cpu_avx512_emulated(&emulated->k)) n_overlays++;
    return 0;
}

static void need_overlays(void) {
    if (n_overlays == 0) {
        print_message("no overlay runs on this CPU\n");
        skip();
    }
}

static void runs_the_overlays_that_this_machine_should(void **state) {
    (void)state;
    need_overlays();
    bool avx512 = false;
    for (int i = 0; i < n_overlays; i++) {
        print_message("checked: %s\n", overlays[i].name);
        avx512 |= strncmp(overlays[i].name, "avx512", 6) == 0;
        bool any = false;
        for (int t = 0; t < FO_N_DTYPES; t++) any |= overlays[i].k.dot[t] != ref.dot[t];
        assert_true(any);
        for (int t = 0; t < FO_N_DTYPES; t++) assert_true(!ref.dot[t] == !overlays[i].k.dot[t]);
    }
#if defined(__x86_64__)
    if (!avx512) {
        print_message("avx512 is neither in this CPU nor emulated (libsimde-dev is not installed)\n");
        skip();
    }
#else
    assert_false(avx512);
#endif
}

static float uniform(float lo, float hi) {
    return lo + (hi - lo) * (float)fo_rng_unit(&rng);
}

/* Values of very different size, and what breaks conversions: zeros of both signs, ties, subnormals, the largest, the not finite. */
static void fill(float *x, int64_t n, int flavour) {
    static const float edge[] = { 0, -0.0f, 0.5f, -0.5f, 1.5f, 1e-30f, 1e-38f, 1e-45f, -1e-41f, 3e38f, -3e38f, 127, -127, 65504, 65520, 6e-8f, 2e-8f };
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    for (int64_t i = 0; i < n; i++) x[i] = flavour == 1 ? uniform(-1, 1) * powf(10, uniform(-6, 6)) : uniform(-1, 1);
    if (flavour == 2)
        for (int64_t i = 0; i < n; i++) x[i] = (float)((int)uniform(-254, 254)) / 2; /* many ties */
    if (flavour == 3)
        for (int64_t i = 0; i < n; i += 1 + (int64_t)uniform(0, 9)) x[i] = edge[(int)uniform(0, 16.99f)];
    if (flavour == 4)
        for (int64_t i = 0; i < n; i += 1 + (int64_t)uniform(0, 300)) x[i] = bad[(int)uniform(0, 3.99f)];
    if (flavour == 5) memset(x, 0, (size_t)n * sizeof *x);
    if (flavour == 6)
        for (int64_t i = 0; i < n; i++) x[i] *= 1e-36f;
    if (flavour == 7)
        for (int64_t i = 0; i < n; i++) x[i] *= 3e38f;
}
enum { N_FLAVOURS = 8 };

static struct fo_act act_of(enum fo_dtype type, int64_t k, const float *x, int n) {
    struct fo_act a = { .type = type, .k = k, .x = x, .row_bytes = fo_act_row_bytes(type, k) };
    a.rows = aligned_alloc(64, a.row_bytes * (size_t)n + 64);
    assert_non_null(a.rows);
    memset(a.rows, 0x5A, a.row_bytes * (size_t)n);
    return a;
}

static void quantise(const struct fo_cpu_kernels *k, const struct fo_act *a, const float *x, int n) {
    for (int i = 0; i < n; i++) {
        if (a->type == FO_Q8_0) k->quant_q8_0(x + i * a->k, a->k, fo_act_q8_0(a, i));
        if (a->type == FO_Q8_K) k->quant_q8_k(x + i * a->k, a->k, fo_act_q8_k(a, i));
    }
}

/* NaNs may differ in their bits. */
static void check_scales(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) assert_true((isnan(a[i]) && isnan(b[i])) || memcmp(&a[i], &b[i], sizeof *a) == 0);
}

static void quantises_activations_to_the_same_bits(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 1);
    for (int o = 0; o < n_overlays; o++)
        for (int flavour = 0; flavour < N_FLAVOURS; flavour++)
            for (int64_t k = 32; k <= 1536; k += 32) {
                float *x = malloc((size_t)k * sizeof *x);
                fill(x, k, flavour);
                struct fo_act a = act_of(FO_Q8_0, k, x, 1), b = act_of(FO_Q8_0, k, x, 1);
                quantise(&ref, &a, x, 1);
                quantise(&overlays[o].k, &b, x, 1);
                struct fo_act_q8_0 p = fo_act_q8_0(&a, 0), q = fo_act_q8_0(&b, 0);
                assert_memory_equal(p.q, q.q, (size_t)fo_act_padded(k));
                assert_memory_equal(p.p, q.p, (size_t)fo_act_padded(k));
                check_scales(p.d, q.d, fo_act_padded(k) / 32);
                check_scales(p.s, q.s, fo_act_padded(k) / 32);
                free(a.rows), free(b.rows);
                if (k % 256 == 0) {
                    a = act_of(FO_Q8_K, k, x, 1), b = act_of(FO_Q8_K, k, x, 1);
                    quantise(&ref, &a, x, 1);
                    quantise(&overlays[o].k, &b, x, 1);
                    struct fo_act_q8_k u = fo_act_q8_k(&a, 0), v = fo_act_q8_k(&b, 0);
                    assert_memory_equal(u.q, v.q, (size_t)k);
                    assert_memory_equal(u.sum16, v.sum16, (size_t)k / 16 * sizeof *u.sum16);
                    assert_memory_equal(u.sum32, v.sum32, (size_t)k / 32 * sizeof *u.sum32);
                    check_scales(u.d, v.d, k / 256);
                    free(a.rows), free(b.rows);
                }
                free(x);
            }
}

/* What the reference makes of activations is right by itself: within half a step, sums included, never -128. */
static void quantises_activations_to_within_half_a_step(void **state) {
    (void)state;
    fo_rng_seed(&rng, 2);
    enum { K = 768 };
    float x[K];
    for (int flavour = 0; flavour < 4; flavour++) {
        fill(x, K, flavour);
        struct fo_act a = act_of(FO_Q8_0, K, x, 1), b = act_of(FO_Q8_K, K, x, 1);
        quantise(&ref, &a, x, 1);
        quantise(&ref, &b, x, 1);
        struct fo_act_q8_0 p = fo_act_q8_0(&a, 0);
        struct fo_act_q8_k q = fo_act_q8_k(&b, 0);
        int sum = 0;
        for (int i = 0; i < K; i++) {
            assert_true(p.q[i] >= -127 && q.q[i] >= -127);
            assert_true(fabs((double)p.d[i / 32] * p.q[i] - (double)x[i]) <= 0.501 * (double)p.d[i / 32] + 1e-30);
            assert_true(fabs((double)q.d[i / 256] * q.q[i] - (double)x[i]) <= 0.501 * (double)q.d[i / 256] + 1e-30);
            assert_int_equal(p.q[i], p.p[i / 128 * 128 + i % 32 / 16 * 64 + i / 32 % 4 * 16 + i % 16]);
            sum = i % 16 ? sum + q.q[i] : q.q[i];
            if (i % 16 == 15) assert_int_equal(q.sum16[i / 16], sum);
            if (i % 32 == 31) assert_int_equal(q.sum32[i / 32], q.sum16[i / 16 - 1] + q.sum16[i / 16]);
        }
        free(a.rows), free(b.rows);
    }
}

/* Where a block has its scales, and how large the part is that a kernel may add apart from the product: `offset` scales, or `mins` times the
 * min. Types that have all their bits in quants are not here. */
static const struct place {
    enum fo_dtype type;
    int d_at, m_at; /* bytes; m_at 0: no min */
    double offset, mins;
} places[] = {
    { FO_Q4_0, 0, 0, 8, 0 },
    { FO_Q4_1, 0, 2, 0, 1 },
    { FO_Q5_0, 0, 0, 16, 0 },
    { FO_Q5_1, 0, 2, 0, 1 },
    { FO_Q8_0, 0, 0, 0, 0 },
    { FO_IQ4_NL, 0, 0, 128, 0 },
    { FO_MXFP4, 0, 0, 12, 0 }, /* its d is a power of two in a byte */
    { FO_Q2_K, offsetof(struct fo_block_q2_k, d), offsetof(struct fo_block_q2_k, dmin), 0, 15 },
    { FO_Q3_K, offsetof(struct fo_block_q3_k, d), 0, 0, 0 },
    { FO_Q4_K, 0, 2, 0, 63 },
    { FO_Q5_K, 0, 2, 0, 63 },
    { FO_Q6_K, offsetof(struct fo_block_q6_k, d), 0, 0, 0 },
    { FO_IQ4_XS, 0, 0, 0, 0 },
    { FO_TQ1_0, offsetof(struct fo_block_tq1_0, d), 0, 1, 0 },
    { FO_TQ2_0, offsetof(struct fo_block_tq2_0, d), 0, 1, 0 },
    { FO_IQ2_XXS, 0, 0, 0, 0 },
    { FO_IQ2_XS, 0, 0, 0, 0 },
    { FO_IQ2_S, 0, 0, 0, 0 },
    { FO_IQ3_XXS, 0, 0, 0, 0 },
    { FO_IQ3_S, 0, 0, 0, 0 },
    { FO_IQ1_S, 0, 0, 0, 0 },
};

static const struct place *place_of(enum fo_dtype type) {
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].type == type) return &places[i];
    return NULL;
}

/* Halves d and m as the scale and min of a block. */
static void put_scales(enum fo_dtype type, unsigned char *block, uint16_t d, uint16_t m) {
    const struct place *at = place_of(type);
    if (at) memcpy(block + at->d_at, &d, 2);
    if (at && at->m_at) memcpy(block + at->m_at, &m, 2);
    if (type == FO_IQ1_M)
        for (int i = 0; i < 4; i++) { /* a nibble at the top of each of four words */
            unsigned char *top = block + offsetof(struct fo_block_iq1_m, scales) + 2 * i + 1;
            *top = (unsigned char)((*top & 15) | (d >> 4 * i & 15) << 4);
        }
}

/* What a block's quants are filled with: bits of any kind, or the same byte throughout, for the sums that must not overflow. */
static const int bytes[] = { -1, 0xFF, 0x80, 0x00, 0x7F, 0x0F, 0x88 };
enum { N_BYTES = sizeof bytes / sizeof *bytes };

/* Quants of the kind `extreme` with scales of sane size. The block ends where the heap ends, so that a sanitiser sees a read past it. */
static unsigned char *weights(enum fo_dtype type, int64_t k, int64_t rows, int extreme) {
    const struct fo_dtype_info *t = fo_dtype_info(type);
    size_t size = fo_dtype_bytes(type, (uint64_t)k) * (size_t)rows;
    unsigned char *w = malloc(size);
    assert_non_null(w);
    for (size_t i = 0; i < size; i++) w[i] = bytes[extreme] < 0 ? (unsigned char)fo_rng_u64(&rng) : (unsigned char)bytes[extreme];
    for (size_t i = 0; i < size / t->block_bytes; i++) {
        unsigned char *b = w + i * t->block_bytes;
        float f = uniform(-1, 1);
        uint16_t bf = fo_f32_to_bf16(f), half = fo_f32_to_f16(f);
        switch (type) {
        case FO_F32: memcpy(b, &f, 4); break;
        case FO_F16: memcpy(b, &half, 2); break;
        case FO_BF16: memcpy(b, &bf, 2); break;
        case FO_MXFP4: b[0] = (unsigned char)uniform(112, 140); break;
        case FO_NVFP4: break; /* every code is a scale of sane size */
        default: put_scales(type, b, fo_f32_to_f16(f * 0.01f), fo_f32_to_f16(uniform(-0.1f, 0.1f)));
        }
    }
    return w;
}

/* sum |w * x| over the converted activations, with the parts that a kernel adds apart (offset or min, and product) each counted: the
 * measure of FO_TOL_DOT. */
static double magnitude(enum fo_dtype type, const unsigned char *w, const struct fo_act *a, int t) {
    const struct fo_dtype_info *info = fo_dtype_info(type);
    const struct place *at = place_of(type);
    float *line = malloc((size_t)a->k * sizeof *line);
    info->to_f32(w, line, (size_t)a->k);
    double sum = 0;
    for (int64_t i = 0; i < a->k; i++) {
        double x = 0, part = 0;
        if (a->type == FO_F32) x = (double)a->x[t * a->k + i];
        if (a->type == FO_Q8_0) x = fo_act_q8_0(a, t).q[i] * (double)fo_act_q8_0(a, t).d[i / 32];
        if (a->type == FO_Q8_K) x = fo_act_q8_k(a, t).q[i] * (double)fo_act_q8_k(a, t).d[i / 256];
        if (at) {
            const unsigned char *block = w + i / info->block * info->block_bytes;
            uint16_t half, m = 0;
            memcpy(&half, block + at->d_at, 2);
            if (at->m_at) memcpy(&m, block + at->m_at, 2);
            double d = type == FO_MXFP4 ? ldexp(1, block[0] - 128) : (double)fo_f16_to_f32(half);
            part = at->offset * fabs(d) + at->mins * fabs((double)fo_f16_to_f32(m));
        }
        sum += (fabs((double)line[i]) + 2 * part) * fabs(x);
    }
    free(line);
    return sum;
}

/* A batch has the bits that the dot has. */
static void check_gemm(const struct overlay *o, enum fo_dtype type, const unsigned char *w, size_t row_bytes, int64_t rows, const struct fo_act *a, int n,
                       const float *want) {
    if (!o->k.gemm[type]) return;
    void *scratch = aligned_alloc(64, fo_gemm_scratch_bytes(a->k));
    float *got = malloc((size_t)(n * rows + 1) * sizeof *got);
    got[n * rows] = 7;
    o->k.gemm[type](w, row_bytes, rows, a, n, got, (size_t)rows, scratch);
    for (int64_t i = 0; i < n * rows; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s %s k %d: row %d of %d, token %d of %d: %g in a batch, %g alone", o->name, fo_dtype_name(type), (int)a->k, (int)(i % rows),
                     (int)rows, (int)(i / rows), n, (double)got[i], (double)want[i]);
    assert_true(got[n * rows] == 7);
    free(got);
    free(scratch);
}

/* What a test multiplies: ordinary weights by activations of a flavour, or extreme ones by activations of one size. */
static void fill_for(float *x, int64_t n, int flavour, int extreme) {
    fill(x, n, extreme ? 0 : flavour);
    if (extreme)
        for (int64_t i = 0; i < n; i++) x[i] = flavour ? -1 : extreme % 2 ? 1 : fo_rng_u64(&rng) & 1 ? 1 : -1;
}

/* A batch against the overlay's own dot; one row of ordinary weights has a scale that is not finite. */
static void check_batch(const struct overlay *o, enum fo_dtype type, int64_t k, int64_t rows, int n, int flavour, int extreme) {
    static const uint16_t bad[] = { 0x7E00, 0xFE00, 0x7C00, 0xFC00 };
    float *x = malloc((size_t)(n * k) * sizeof *x), *want = malloc((size_t)(n * rows) * sizeof *want);
    fill_for(x, n * k, flavour, extreme);
    unsigned char *w = weights(type, k, rows, extreme);
    size_t row_bytes = fo_dtype_bytes(type, (uint64_t)k);
    if (rows > 1 && !extreme && type != FO_MXFP4) put_scales(type, w + row_bytes, bad[n % 4], bad[rows % 4]);
    struct fo_act a = act_of(fo_dtype_info(type)->act, k, x, n);
    quantise(&ref, &a, x, n);
    for (int t = 0; t < n; t += FO_TILE)
        o->k.dot[type](w, row_bytes, rows, &a, t, n - t < FO_TILE ? n - t : FO_TILE, want + t * rows, (size_t)rows);
    check_gemm(o, type, w, row_bytes, rows, &a, n, want);
    free(x), free(want), free(w), free(a.rows);
}

static void check_dot(const struct overlay *o, enum fo_dtype type, int64_t k, int64_t rows, int n, int flavour, int extreme) {
    float *x = malloc((size_t)(n * k) * sizeof *x), *want = malloc((size_t)(n * rows) * sizeof *want), *got = malloc((size_t)(n * rows) * sizeof *got);
    float *alone = malloc((size_t)rows * sizeof *alone);
    fill_for(x, n * k, flavour, extreme);
    unsigned char *w = weights(type, k, rows, extreme);
    size_t row_bytes = fo_dtype_bytes(type, (uint64_t)k);
    struct fo_act a = act_of(fo_dtype_info(type)->act, k, x, n);
    quantise(&ref, &a, x, n);
    for (int t = 0; t < n; t += FO_TILE) {
        int tile = n - t < FO_TILE ? n - t : FO_TILE;
        ref.dot[type](w, row_bytes, rows, &a, t, tile, want + t * rows, (size_t)rows);
        o->k.dot[type](w, row_bytes, rows, &a, t, tile, got + t * rows, (size_t)rows);
    }
    for (int t = 0; t < n; t++) {
        for (int64_t r = 0; r < rows; r++) {
            float p = want[t * rows + r], q = got[t * rows + r];
            if (!isfinite(p)) {
                assert_false(isfinite(q) && flavour == 4);
                continue;
            }
            double size = magnitude(type, w + (size_t)r * row_bytes, &a, t), tolerance = (double)FO_TOL_DOT * size;
            if (size > (double)FLT_MAX) continue; /* in one order a sum overflows and in another not */
            if (!(fabs((double)p - (double)q) <= tolerance))
                fail_msg("%s %s k %d row %d of %d, token %d of %d, flavour %d/%d: %g, the reference has %g (+- %g)", o->name, fo_dtype_name(type), (int)k,
                         (int)r, (int)rows, t, n, flavour, extreme, (double)q, (double)p, tolerance);
        }
        /* alone and one row after the other: the same bits */
        for (int64_t r = 0; r < rows; r++) o->k.dot[type](w + (size_t)r * row_bytes, row_bytes, 1, &a, t, 1, alone + r, 1);
        for (int64_t r = 0; r < rows; r++)
            assert_true(memcmp(&alone[r], &got[t * rows + r], sizeof *alone) == 0 || (isnan(alone[r]) && isnan(got[t * rows + r])));
    }
    check_gemm(o, type, w, row_bytes, rows, &a, n, got);
    free(x), free(want), free(got), free(alone), free(w), free(a.rows);
}

static void dots_agree_with_the_reference(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 3);
    for (int o = 0; o < n_overlays; o++)
        for (int type = 0; type < FO_N_DTYPES; type++) {
            if (!ref.dot[type] || (overlays[o].base && overlays[o].k.dot[type] == overlays[o].base->k.dot[type])) continue;
            int block = fo_dtype_info((uint32_t)type)->block;
            for (int n = 1; n <= 17; n++) check_dot(&overlays[o], (enum fo_dtype)type, block > 64 ? 768 : 576, 3, n, n % 3, 0);
            for (int64_t k = block; k <= (block == 1 ? 70 : 20 * block); k += block)
                check_dot(&overlays[o], (enum fo_dtype)type, k, 1 + k / block % 5, (int)(1 + k / block % 4), 0, 0);
            if (overlays[o].k.gemm[type])
                for (int64_t rows = 1; rows < 40; rows += 5) check_dot(&overlays[o], (enum fo_dtype)type, block > 64 ? 768 : 480 / block * block, rows, (int)(rows % 9 + 1), 1, 0);
            if (overlays[o].k.gemm[type] && block == 1) { /* every part of a strip, of its pieces and of its tokens left over */
                for (int n = 1; n <= 40; n++) check_dot(&overlays[o], (enum fo_dtype)type, n % 2 ? 72 : 100, 1 + n * 7 % 19, n, n % 3, 0);
                for (int64_t k = 1296; k <= 1312; k++) check_dot(&overlays[o], (enum fo_dtype)type, k, 9, 7, 0, 0);
                check_dot(&overlays[o], (enum fo_dtype)type, 1307, 5, FO_GEMM_TOKENS + 4, 0, 0);
            }
            for (int flavour = 0; flavour < N_FLAVOURS; flavour++) check_dot(&overlays[o], (enum fo_dtype)type, block > 64 ? 1024 : 352 / block * block, 5, 4, flavour, 0);
            for (int extreme = 1; extreme < N_BYTES; extreme++)
                for (int minus = 0; minus < 2; minus++)
                    check_dot(&overlays[o], (enum fo_dtype)type, block > 64 ? 2048 : 1056 / block * block, 2, 3, minus, extreme);
        }
}

/* Every number of tokens and of rows around the sizes that kernels work in, rows of every number of blocks, and one more token than share an
 * unpacking: the bits of the dot. */
static void batches_have_the_bits_of_dots(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 12);
    for (int o = 0; o < n_overlays; o++)
        for (int type = 0; type < FO_N_DTYPES; type++) {
            const struct overlay *base = overlays[o].base;
            if (!overlays[o].k.gemm[type] || (base && overlays[o].k.gemm[type] == base->k.gemm[type])) continue;
            const int block = fo_dtype_info((uint32_t)type)->block;
            const int64_t some = block > 64 ? 512 : block == 64 ? 320 : 288;
            for (int n = 1; n <= 40; n++) check_batch(&overlays[o], (enum fo_dtype)type, some, 3, n, n % N_FLAVOURS, 0);
            for (int64_t rows = 1; rows <= 70; rows += rows < 28 || rows > 36 ? 3 : 1)
                check_batch(&overlays[o], (enum fo_dtype)type, some, rows, 7, 1, 0);
            for (int64_t k = block; k <= (block > 64 ? 1536 : 1152); k += block) check_batch(&overlays[o], (enum fo_dtype)type, k, 2, 6, 0, 0);
            check_batch(&overlays[o], (enum fo_dtype)type, some, 2, FO_GEMM_TOKENS + 1, 0, 0);
            for (int extreme = 1; extreme < N_BYTES; extreme++)
                for (int minus = 0; minus < 2; minus++) check_batch(&overlays[o], (enum fo_dtype)type, 1024, 2, 6, minus, extreme);
        }
}

/* With and without the dot-product instruction the sums are the same integers, and the floats around them are added in the same order. */
static void dotprod_only_saves_instructions(void **state) {
    (void)state;
    const struct overlay *neon = NULL, *dotprod = NULL;
    for (int i = 0; i < n_overlays; i++) {
        if (strcmp(overlays[i].name, "neon") == 0) neon = &overlays[i];
        if (strcmp(overlays[i].name, "dotprod") == 0) dotprod = &overlays[i];
    }
    if (!dotprod) {
        print_message("this CPU has no dot-product instruction of Arm's\n");
        skip();
    }
    enum { K = 1536, ROWS = 3, N = 4 };
    static float x[N * K], y[2][N * ROWS];
    fo_rng_seed(&rng, 9);
    for (int type = 0; type < FO_N_DTYPES; type++) {
        if (!ref.dot[type]) continue;
        fill(x, N * K, 0);
        unsigned char *w = weights((enum fo_dtype)type, K, ROWS, 0);
        struct fo_act a = act_of(fo_dtype_info((uint32_t)type)->act, K, x, N);
        quantise(&neon->k, &a, x, N);
        neon->k.dot[type](w, fo_dtype_bytes((uint32_t)type, K), ROWS, &a, 0, N, y[0], ROWS);
        dotprod->k.dot[type](w, fo_dtype_bytes((uint32_t)type, K), ROWS, &a, 0, N, y[1], ROWS);
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        free(w), free(a.rows);
    }
}

/* A scale or min that is NaN or infinite makes its row so, in every kernel, and no other row. */
static void bad_scales_spoil_their_own_row_alone(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 9);
    enum { ROWS = 3, N = 2 };
    static const uint16_t bad[] = { 0x7E00, 0xFE00, 0x7C00, 0xFC00 };
    for (int o = -1; o < n_overlays; o++)
        for (int type = 0; type < FO_N_DTYPES; type++) {
            const struct place *at = place_of((enum fo_dtype)type);
            if (!ref.dot[type] || type == FO_MXFP4 || (!at && type != FO_IQ1_M)) continue;
            const struct fo_dtype_info *info = fo_dtype_info((uint32_t)type);
            const struct fo_cpu_kernels *k = o < 0 ? &ref : &overlays[o].k;
            for (int64_t blocks = 1; blocks <= 9; blocks += 4)
                for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
                    for (int min = 0; min <= (at && at->m_at); min++) {
                        int64_t len = blocks * info->block;
                        float *x = malloc((size_t)(N * len) * sizeof *x), y[N * ROWS], want[N * ROWS];
                        for (int64_t j = 0; j < N * len; j++) x[j] = uniform(0.5f, 1);
                        unsigned char *w = weights((enum fo_dtype)type, len, ROWS, 0);
                        size_t row_bytes = fo_dtype_bytes((uint32_t)type, (uint64_t)len);
                        unsigned char *block = w + row_bytes + (size_t)(blocks / 2) * info->block_bytes;
                        uint16_t one = fo_f32_to_f16(0.01f);
                        put_scales((enum fo_dtype)type, block, min ? one : bad[i], min ? bad[i] : one);
                        if (min && type != FO_Q4_1 && type != FO_Q5_1) memset(block + (at->d_at ? 0 : 4), 0xFF, 12); /* no min times zero */
                        struct fo_act a = act_of(info->act, len, x, N);
                        quantise(&ref, &a, x, N);
                        ref.dot[type](w, row_bytes, ROWS, &a, 0, N, want, ROWS);
                        k->dot[type](w, row_bytes, ROWS, &a, 0, N, y, ROWS);
                        for (int j = 0; j < N * ROWS; j++) {
                            if (!isfinite(y[j]) != (j % ROWS == 1))
                                fail_msg("%s: %s row %d is %g with a scale of %x", o < 0 ? "ref" : overlays[o].name, info->name, j % ROWS, (double)y[j], bad[i]);
                            assert_int_equal(!isfinite(want[j]), !isfinite(y[j]));
                            if (info->block == 32 && at && !at->offset && !at->m_at) assert_int_equal(!isnan(want[j]), !isnan(y[j])); /* nothing to take from infinity */
                        }
                        free(x), free(w), free(a.rows);
                    }
        }
}

/* Every exponent of MXFP4: scales from the subnormal to 2^127, small activations beside large scales so that sums stay finite. */
static void every_exponent_of_mxfp4_is_a_power_of_two(void **state) {
    (void)state;
    need_overlays();
    for (int o = -1; o < n_overlays; o++)
        for (int e = 0; e < 256; e++) {
            const struct fo_cpu_kernels *k = o < 0 ? &ref : &overlays[o].k;
            struct fo_block_mxfp4 w = { .e = (uint8_t)e };
            float x[32] = { 0 }, y;
            w.qs[3] = 0x01; /* element 3 is 1 / 2, doubled 1 */
            x[3] = e < 140 ? 127 : 0x1p-20f;
            struct fo_act a = act_of(FO_Q8_0, 32, x, 1);
            quantise(&ref, &a, x, 1);
            k->dot[FO_MXFP4]((const unsigned char *)&w, sizeof w, 1, &a, 0, 1, &y, 1);
            double want = ldexp((double)x[3], e - 128);
            assert_true(fabs((double)y - want) <= 4e-6 * want + 1e-44);
            free(a.rows);
        }
}

/* Every entry of every code book, with every sign, against the type's definition: rows of which each names entries of its own. */
static void every_entry_of_a_code_book_is_the_definitions(void **state) {
    (void)state;
    need_overlays();
    static const enum fo_dtype types[] = { FO_IQ1_S, FO_IQ1_M, FO_IQ2_XXS, FO_IQ2_XS, FO_IQ2_S, FO_IQ3_XXS, FO_IQ3_S };
    float x[256], line[256];
    for (int o = 0; o < n_overlays; o++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            const struct fo_dtype_info *info = fo_dtype_info(types[i]);
            fo_rng_seed(&rng, 10);
            for (int n = 0; n < 1024; n++) { /* 32 or 64 entries a block: each of 2048 a dozen times and more */
                unsigned char *w = weights(types[i], 256, 1, 0);
                put_scales(types[i], w, 0x3C00, 0);
                for (int j = 0; j < 256; j++) x[j] = (float)(int)uniform(-127, 127);
                x[0] = 127;
                struct fo_act a = act_of(FO_Q8_K, 256, x, 1);
                quantise(&ref, &a, x, 1);
                float y;
                overlays[o].k.dot[types[i]](w, info->block_bytes, 1, &a, 0, 1, &y, 1);
                info->to_f32(w, line, 256);
                double want = 0; /* a sum of eighths below 2^21: exact in float too */
                for (int j = 0; j < 256; j++) want += (double)line[j] * (double)x[j];
                if ((double)y != want) fail_msg("%s %s: %.9g, the definition has %.9g", overlays[o].name, info->name, (double)y, want);
                free(w), free(a.rows);
            }
        }
}

/* The reference itself, against double over the same converted activations. */
static void the_reference_dots_agree_with_double(void **state) {
    (void)state;
    fo_rng_seed(&rng, 4);
    enum { ROWS = 3, N = 2 };
    for (int type = 0; type < FO_N_DTYPES; type++) {
        if (!ref.dot[type]) continue;
        const struct fo_dtype_info *info = fo_dtype_info((uint32_t)type);
        for (int64_t k = 256; k <= 2304; k += 256) {
            float *x = malloc((size_t)(N * k) * sizeof *x), *line = malloc((size_t)k * sizeof *line), y[N * ROWS];
            fill(x, N * k, 0);
            unsigned char *w = weights((enum fo_dtype)type, k, ROWS, 0);
            size_t row_bytes = fo_dtype_bytes((uint32_t)type, (uint64_t)k);
            struct fo_act a = act_of(info->act, k, x, N);
            quantise(&ref, &a, x, N);
            ref.dot[type](w, row_bytes, ROWS, &a, 0, N, y, ROWS);
            for (int t = 0; t < N; t++)
                for (int r = 0; r < ROWS; r++) {
                    info->to_f32(w + (size_t)r * row_bytes, line, (size_t)k);
                    double want = 0;
                    for (int64_t i = 0; i < k; i++) {
                        double q = a.type == FO_F32 ? (double)x[t * k + i]
                                   : a.type == FO_Q8_0 ? fo_act_q8_0(&a, t).q[i] * (double)fo_act_q8_0(&a, t).d[i / 32]
                                                       : fo_act_q8_k(&a, t).q[i] * (double)fo_act_q8_k(&a, t).d[i / 256];
                        want += q * (double)line[i];
                    }
                    assert_true(fabs(want - (double)y[t * ROWS + r]) <= (double)FO_TOL_DOT * magnitude((enum fo_dtype)type, w + (size_t)r * row_bytes, &a, t));
                }
            free(x), free(line), free(w), free(a.rows);
        }
    }
}

static void check_row(const char *name, const char *what, const float *want, const float *got, int64_t n) {
    float top = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i]) && fabsf(want[i]) > top) top = fabsf(want[i]);
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (isinf(want[i]) && want[i] == got[i]) continue;
        if (!(fabs((double)want[i] - (double)got[i]) <= (double)FO_TOL_ROW * (double)top))
            fail_msg("%s %s[%d] of %d: %g, the reference has %g", name, what, (int)i, (int)n, (double)got[i], (double)want[i]);
    }
}

static void row_ops_agree_with_the_reference(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 5);
    enum { MAX = 600 };
    float x[MAX], y[MAX], want[MAX], got[MAX];
    for (int o = 0; o < n_overlays; o++) {
        const struct fo_cpu_kernels *k = &overlays[o].k;
        const char *name = overlays[o].name;
        for (int64_t n = 1; n <= MAX; n += n < 70 ? 1 : 53)
            for (int flavour = 0; flavour < N_FLAVOURS; flavour++) {
                fill(x, n, flavour);
                fill(y, n, 0);
                ref.add(x, y, n, want);
                k->add(x, y, n, got);
                check_row(name, "add", want, got, n);
                memcpy(want, x, sizeof x), memcpy(got, x, sizeof x);
                ref.scale(want, n, 0.37f);
                k->scale(got, n, 0.37f);
                check_scales(want, got, n);
                if (flavour == 3 || flavour == 7) continue; /* squares overflow */
                ref.rms_norm(x, y, n, 1e-5f, want);
                k->rms_norm(x, y, n, 1e-5f, got);
                check_row(name, "rms_norm", want, got, n);
                for (int64_t i = 0; i < n; i++) x[i] *= 10;
                ref.silu_mul(x, y, n, want);
                k->silu_mul(x, y, n, got);
                check_row(name, "silu_mul", want, got, n);
            }
        for (int i = 0; i < 2000; i++) { /* each by itself: relative to itself, not to a larger neighbour */
            float g = uniform(-87, 87), one = 1, a, b;
            ref.silu_mul(&g, &one, 1, &a);
            k->silu_mul(&g, &one, 1, &b);
            double exact = (double)g / (1 + exp(-(double)g));
            assert_true(fabs((double)a - exact) <= 5e-7 * fabs(exact) && fabs((double)b - exact) <= 5e-7 * fabs(exact));
        }
    }
}

static void rotations_agree_with_the_reference(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 6);
    enum { HEADS = 3, MAX = 256 };
    for (int o = 0; o < n_overlays; o++)
        for (int dim = 2; dim <= MAX; dim += dim < 40 ? 2 : 24)
            for (int n_rot = 2; n_rot <= dim; n_rot += n_rot < 20 ? 2 : 22)
                for (int kind = 0; kind < 2; kind++) {
                    float want[HEADS * MAX], got[HEADS * MAX], cosine[MAX / 2], sine[MAX / 2];
                    fill(want, HEADS * dim, 0);
                    memcpy(got, want, sizeof want);
                    fill(cosine, n_rot / 2, 0);
                    fill(sine, n_rot / 2, 0);
                    struct fo_rope r = { .kind = (enum fo_rope_kind)kind, .head_dim = dim, .n_rot = n_rot, .attn_factor = 1 };
                    ref.rope(want, HEADS, &r, cosine, sine);
                    overlays[o].k.rope(got, HEADS, &r, cosine, sine);
                    check_row(overlays[o].name, "rope", want, got, HEADS * dim);
                }
}

enum { MAX_DIM = 264, MAX_TOKENS = 64 };

/* The K and the V of one head, `tokens` positions, each in its own block of the heap's size. */
struct kv {
    enum fo_kv_kind kind;
    int dim, tokens;
    size_t bytes;
    unsigned char *k, *v;
};

static const enum fo_dtype kv_types[FO_N_KV_KINDS] = { FO_F32, FO_F16, FO_Q8_0, FO_Q4_0 };

static struct kv kv_new(enum fo_kv_kind kind, int dim, int tokens) {
    struct kv b = { .kind = kind, .dim = dim, .tokens = tokens, .bytes = fo_kv_block_bytes(kv_types[kind], dim, tokens) };
    assert_true(b.bytes > 0 && fo_kv_block_tokens(kv_types[kind], tokens) == (uint64_t)tokens);
    b.k = malloc(b.bytes), b.v = malloc(b.bytes);
    assert_true(b.k && b.v);
    memset(b.k, 0xFF, b.bytes), memset(b.v, 0xFF, b.bytes); /* NaN in every place that holds a float */
    return b;
}

static void kv_free(struct kv b) {
    free(b.k), free(b.v);
}

/* Positions [lo, hi) from x [tokens][dim], the last first. */
static void kv_put(const struct fo_attn_kernels *a, struct kv b, const float *x, int lo, int hi) {
    for (int t = hi; t-- > lo;) {
        a->put_k[b.kind](x + t * b.dim, b.dim, b.k, b.tokens, t);
        a->put_v[b.kind](x + t * b.dim, b.dim, b.v, b.tokens, t);
    }
}

static const int kv_dims[] = { 1, 7, 16, 20, 31, 32, 64, 72, 80, 96, 128, 256, 264 };
enum { N_KV_DIMS = sizeof kv_dims / sizeof *kv_dims };

static bool kv_fits(int kind, int dim) {
    return kind < FO_KV_KIND_Q8_0 || dim % 32 == 0;
}

static void stores_and_queries_have_the_references_bits(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 7);
    static float x[MAX_TOKENS * MAX_DIM];
    static _Alignas(64) unsigned char q[2][MAX_DIM * 4 + 64];
    for (int o = 0; o < n_overlays; o++)
        for (int kind = 0; kind < FO_N_KV_KINDS; kind++)
            for (int i = 0; i < N_KV_DIMS; i++)
                for (int flavour = 0; flavour < N_FLAVOURS && kv_fits(kind, kv_dims[i]); flavour++) {
                    const struct fo_attn_kernels *a = &overlays[o].k.attn;
                    int dim = kv_dims[i];
                    struct kv want = kv_new((enum fo_kv_kind)kind, dim, 48), got = kv_new((enum fo_kv_kind)kind, dim, 48);
                    fill(x, 48 * dim, flavour);
                    kv_put(&ref.attn, want, x, 3, 46), kv_put(a, got, x, 3, 46);
                    assert_memory_equal(want.k, got.k, want.bytes);
                    assert_memory_equal(want.v, got.v, want.bytes);
                    memset(q, 0x5A, sizeof q);
                    ref.attn.query[kind](x, dim, q[0]), a->query[kind](x, dim, q[1]);
                    assert_memory_equal(q[0], q[1], sizeof q[0]);
                    assert_int_equal(q[0][fo_query_bytes((enum fo_kv_kind)kind, dim)], 0x5A);
                    kv_free(want), kv_free(got);
                }
}

/* x [dim] becomes what the reference keeps of it in a place of its own. */
static void keep(int kind, float *x, int dim) {
    struct kv b = kv_new((enum fo_kv_kind)kind, dim, (int)fo_kv_block_tokens(kv_types[kind], 1));
    ref.attn.put_k[kind](x, dim, b.k, b.tokens, 0);
    ref.attn.get_k[kind](b.k, dim, b.tokens, 0, x);
    kv_free(b);
}

static double largest_of(const float *x, int n) {
    double most = 0;
    for (int i = 0; i < n; i++) most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    return most;
}

/* Q8_0 is kept as the type's own quantiser says. Q4_0 has its blocks' bytes with another step: of what is nearly normal it keeps more than the
 * type's quantiser does, and what no step holds is NaN. Two steps and the rounding are the most that something is off by: a value as large as the
 * largest, of the other sign, where there are 7 of up to 9 steps. */
static void quantised_kv_keeps_what_its_type_can(void **state) {
    (void)state;
    fo_rng_seed(&rng, 10);
    unsigned char block[64];
    float x[32], kept[32], own[32];
    double errors[2] = { 0 };
    for (int n = 0; n < 4000; n++) {
        float top = 0;
        for (int i = 0; i < 32; i++) {
            x[i] = 0;
            for (int k = 0; k < 12; k++) x[i] += (float)uniform(-0.5, 0.5);
            x[i] *= (float)(1 + n % 7);
            top = fmaxf(top, fabsf(x[i]));
        }
        for (int kind = FO_KV_KIND_Q8_0; kind <= FO_KV_KIND_Q4_0; kind++) {
            memcpy(kept, x, sizeof x);
            keep(kind, kept, 32);
            fo_dtype_info(kv_types[kind])->from_f32(x, block, 32);
            fo_dtype_info(kv_types[kind])->to_f32(block, own, 32);
            if (kind == FO_KV_KIND_Q8_0) assert_memory_equal(kept, own, sizeof own);
            for (int i = 0; i < 32 && kind == FO_KV_KIND_Q4_0; i++) {
                assert_true(fabsf(kept[i] - x[i]) < 0.25f * top);
                errors[0] += pow((double)(kept[i] - x[i]) / (1 + n % 7), 2), errors[1] += pow((double)(own[i] - x[i]) / (1 + n % 7), 2);
            }
        }
    }
    print_message("    Q4_0 errs by %.3f of what its own quantiser does\n", errors[0] / errors[1]);
    assert_true(errors[0] < 0.95 * errors[1]);
    static const float odd[] = { 0, 1e-45f, 1e38f, INFINITY, -INFINITY, NAN };
    for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
        memset(x, 0, sizeof x);
        x[5] = odd[k];
        keep(FO_KV_KIND_Q4_0, x, 32);
        assert_true(k < 2 ? x[5] == 0.0f && x[6] == 0.0f : !isfinite(x[5]));
    }
}

/* The reference against double arithmetic on what is kept, in blocks of any number of positions. An 8-bit query (Q4_0) is off by up to half a
 * step of 1 / 127 in each dimension, with random signs; the others by less than 1e-4 of |q||K|. */
static void the_references_attention_agrees_with_double(void **state) {
    (void)state;
    fo_rng_seed(&rng, 8);
    static float x[MAX_TOKENS * MAX_DIM], q[MAX_DIM], row[MAX_DIM], out[MAX_DIM];
    static double want[MAX_DIM];
    static _Alignas(64) unsigned char query[MAX_DIM * 4 + 64];
    static const int tokens[] = { 3, 4, 8, 16, 24, 64 };
    for (int kind = 0; kind < FO_N_KV_KINDS; kind++)
        for (int i = 0; i < N_KV_DIMS; i++)
            for (size_t p = 0; p < sizeof tokens / sizeof *tokens && kv_fits(kind, kv_dims[i]); p++) {
                int dim = kv_dims[i], page = tokens[p], n = (int)fo_kv_block_tokens(kv_types[kind], page), lo = page / 3;
                struct kv b = kv_new((enum fo_kv_kind)kind, dim, n);
                float s[FO_ATTN_CHUNK], r = 0.5f;
                fill(x, page * dim, 0), fill(q, dim, 0), fill(out, dim, 0);
                kv_put(&ref.attn, b, x, lo, page);
                ref.attn.query[kind](q, dim, query);
                struct fo_kv_run k = { .block = b.k, .tokens = n, .lo = lo, .hi = page, .at = 5 % (FO_ATTN_CHUNK - page + 1) }, v = k;
                v.block = b.v;
                ref.attn.qk[kind](query, 1, dim, &k, 0.25f, s);
                for (int d = 0; d < dim; d++) want[d] = 0.5 * (double)out[d];
                double largest = 0;
                for (int t = lo; t < page; t++) {
                    double sum = 0, norm = 0, abs_sum = 0;
                    memcpy(row, x + t * dim, (size_t)dim * sizeof *row);
                    keep(kind, row, dim);
                    for (int d = 0; d < dim; d++) {
                        sum += (double)q[d] * (double)row[d];
                        abs_sum += fabs((double)q[d] * (double)row[d]);
                        norm += (double)row[d] * (double)row[d];
                    }
                    double tolerance = kind == FO_KV_KIND_Q4_0 ? 6 * sqrt(norm) / 127 / sqrt(12) : kind == FO_KV_KIND_Q8_0 ? 1e-4 * sqrt(norm) : 1e-6 * abs_sum;
                    double got = (double)s[k.at + t - lo];
                    if (!(fabs(got - 0.25 * sum) <= 0.25 * tolerance + 1e-30))
                        fail_msg("%s dim %d of %d, score %d: %g, expected %g +- %g", fo_dtype_name(kv_types[kind]), dim, page, t, got, 0.25 * sum, 0.25 * tolerance);
                    float w = s[k.at + t - lo] = uniform(0, 1);
                    for (int d = 0; d < dim; d++) want[d] += (double)w * (double)row[d];
                    largest = fmax(largest, largest_of(row, dim));
                }
                ref.attn.pv[kind](s, &r, 1, dim, &v, out);
                for (int d = 0; d < dim; d++) /* weights of 16 bits: half a step each */
                    if (!(fabs((double)out[d] - want[d]) <= (double)(page - lo) * largest * (kind < FO_KV_KIND_Q8_0 ? 1e-6 : 2e-5) + 1e-6))
                        fail_msg("%s dim %d of %d, output %d: %g, expected %g", fo_dtype_name(kv_types[kind]), dim, page, d, (double)out[d], want[d]);
                kv_free(b);
            }
}

static void attention_agrees_with_the_reference(void **state) {
    (void)state;
    need_overlays();
    fo_rng_seed(&rng, 9);
    static float x[MAX_TOKENS * MAX_DIM], q[FO_ATTN_HEADS * MAX_DIM], s[2][FO_ATTN_HEADS * FO_ATTN_CHUNK], alone[FO_ATTN_CHUNK], out[2][FO_ATTN_HEADS * MAX_DIM],
        start[FO_ATTN_HEADS * MAX_DIM];
    static _Alignas(64) unsigned char query[FO_ATTN_HEADS * (MAX_DIM * 4 + 64)];
    static const struct {
        int tokens, lo, hi, at;
    } runs[] = { { 64, 0, 64, 0 }, { 64, 0, 1, 0 }, { 64, 3, 61, 3 }, { 64, 63, 64, 63 }, { 64, 17, 20, 17 }, { 16, 0, 16, 32 }, { 16, 5, 9, 21 }, { 48, 10, 33, 26 } };
    for (int o = 0; o < n_overlays; o++)
        for (int kind = 0; kind < FO_N_KV_KINDS; kind++)
            for (int i = 0; i < N_KV_DIMS; i++)
                for (size_t p = 0; p < sizeof runs / sizeof *runs && kv_fits(kind, kv_dims[i]); p++)
                    for (int n_q = 1; n_q <= FO_ATTN_HEADS; n_q++) {
                        const struct fo_attn_kernels *a = &overlays[o].k.attn, *both[2] = { &ref.attn, a };
                        const char *name = overlays[o].name;
                        int dim = kv_dims[i], lo = runs[p].lo, hi = runs[p].hi, at = runs[p].at, n = hi - lo;
                        size_t q_bytes = fo_query_bytes((enum fo_kv_kind)kind, dim);
                        struct kv b = kv_new((enum fo_kv_kind)kind, dim, runs[p].tokens);
                        fill(x, runs[p].tokens * dim, 0), fill(q, n_q * dim, 0), fill(start, n_q * dim, 0);
                        kv_put(&ref.attn, b, x, lo, hi);
                        for (int h = 0; h < n_q; h++) ref.attn.query[kind](q + h * dim, dim, query + (size_t)h * q_bytes);
                        struct fo_kv_run k = { .block = b.k, .tokens = b.tokens, .lo = lo, .hi = hi, .at = at }, v = k;
                        v.block = b.v;
                        for (int j = 0; j < 2; j++) {
                            k.ahead = j ? b.k : NULL, v.ahead = j ? b.v : NULL;
                            both[j]->qk[kind](query, n_q, dim, &k, 0.7f, s[j]);
                        }
                        for (int h = 0; h < n_q; h++) {
                            a->qk[kind](query + (size_t)h * q_bytes, 1, dim, &k, 0.7f, alone);
                            assert_memory_equal(alone + at, s[1] + h * FO_ATTN_CHUNK + at, (size_t)n * sizeof *alone);
                            for (int c = 0; c < FO_ATTN_CHUNK; c++) {
                                float *want = &s[0][h * FO_ATTN_CHUNK + c], *got = &s[1][h * FO_ATTN_CHUNK + c];
                                if (c < at || c >= at + n)
                                    *want = *got = -INFINITY;
                                else if (!(fabs((double)*want - (double)*got) <= (double)FO_TOL_ROW * dim))
                                    fail_msg("%s %s dim %d run %d query %d of %d, score %d: %g, the reference has %g", name, fo_dtype_name(kv_types[kind]), dim, (int)p,
                                             h, n_q, c - at, (double)*got, (double)*want);
                            }
                        }
                        memcpy(s[1], s[0], sizeof s[0]);
                        for (int j = 0; j < 2; j++) {
                            float m[FO_ATTN_HEADS], sum[FO_ATTN_HEADS], r[FO_ATTN_HEADS];
                            for (int h = 0; h < n_q; h++) m[h] = h % 2 ? -INFINITY : 0.25f, sum[h] = h % 2 ? 0 : 3;
                            both[j]->softmax(s[j], n_q, m, sum, r);
                            for (int h = 0; h < n_q; h++) {
                                double top = h % 2 ? -(double)INFINITY : 0.25, total = h % 2 ? 0 : 3;
                                assert_true(m[h] >= (float)top);
                                total *= exp(top - (double)m[h]);
                                assert_true(fabs((double)r[h] - exp(top - (double)m[h])) < 1e-6);
                                for (int c = 0; c < FO_ATTN_CHUNK; c++) {
                                    float w = s[j][h * FO_ATTN_CHUNK + c];
                                    assert_true(c < at || c >= at + n ? w == 0 : w >= 0 && w <= 1.000001f);
                                    assert_true(fabs((double)w - (double)s[0][h * FO_ATTN_CHUNK + c]) <= 1e-6);
                                    total += (double)w;
                                }
                                assert_true(fabs(total - (double)sum[h]) <= 1e-6 * total);
                            }
                        }
                        memcpy(s[1], s[0], sizeof s[0]);
                        static const float r[FO_ATTN_HEADS] = { 1, 0.5f, 0, 0.3f };
                        for (int j = 0; j < 2; j++) {
                            memcpy(out[j], start, sizeof start);
                            both[j]->pv[kind](s[j], r, n_q, dim, &v, out[j]);
                        }
                        check_row(name, "pv", out[0], out[1], n_q * dim);
                        for (int h = 0; h < n_q; h++) {
                            a->pv[kind](s[1] + h * FO_ATTN_CHUNK, r + h, 1, dim, &v, start + h * dim);
                            assert_memory_equal(start + h * dim, out[1] + h * dim, (size_t)dim * sizeof *start);
                        }
                        kv_free(b);
                    }
}

/* A position's score, and with float KV a dimension's sum, do not depend on where a run ends. */
static void attention_is_the_same_in_pieces(void **state) {
    (void)state;
    fo_rng_seed(&rng, 10);
    enum { DIM = 96, N = FO_ATTN_CHUNK };
    static float x[N * DIM], q[FO_ATTN_HEADS * DIM], s[2][FO_ATTN_HEADS * N], out[2][FO_ATTN_HEADS * DIM];
    static _Alignas(64) unsigned char query[FO_ATTN_HEADS * (DIM * 4 + 64)];
    for (int o = -1; o < n_overlays; o++)
        for (int kind = 0; kind < FO_N_KV_KINDS; kind++)
            for (int n_q = 1; n_q <= FO_ATTN_HEADS; n_q++)
                for (int piece = 1; piece < N; piece += 6) {
                    const struct fo_attn_kernels *a = o < 0 ? &ref.attn : &overlays[o].k.attn;
                    static const float zero[FO_ATTN_HEADS], one[FO_ATTN_HEADS] = { 1, 1, 1, 1 };
                    struct kv b = kv_new((enum fo_kv_kind)kind, DIM, N);
                    fill(x, N * DIM, 0), fill(q, n_q * DIM, 0);
                    kv_put(&ref.attn, b, x, 0, N);
                    for (int h = 0; h < n_q; h++) ref.attn.query[kind](q + h * DIM, DIM, query + (size_t)h * fo_query_bytes((enum fo_kv_kind)kind, DIM));
                    memset(out, 0, sizeof out);
                    struct fo_kv_run k = { .block = b.k, .tokens = N, .lo = 0, .hi = N, .at = 0 }, v = k;
                    v.block = b.v;
                    a->qk[kind](query, n_q, DIM, &k, 0.5f, s[0]);
                    a->pv[kind](s[0], zero, n_q, DIM, &v, out[0]);
                    for (int i = 0; i < N; i += piece) {
                        k.lo = k.at = v.lo = v.at = i, k.hi = v.hi = i + piece < N ? i + piece : N;
                        a->qk[kind](query, n_q, DIM, &k, 0.5f, s[1]);
                        for (int h = 0; h < n_q; h++) assert_memory_equal(s[0] + h * N + i, s[1] + h * N + i, (size_t)(k.hi - i) * sizeof(float));
                        a->pv[kind](s[0], i ? one : zero, n_q, DIM, &v, out[1]);
                    }
                    if (kind < FO_KV_KIND_Q8_0) assert_memory_equal(out[0], out[1], (size_t)(n_q * DIM) * sizeof(float));
                    kv_free(b);
                }
}

/* What is not finite spoils the query that sees it, and no other. */
static void bad_values_spoil_their_own_query_alone(void **state) {
    (void)state;
    fo_rng_seed(&rng, 11);
    enum { DIM = 64, N = FO_ATTN_CHUNK };
    static float x[N * DIM], q[2 * DIM], s[2 * N], out[2 * DIM];
    static _Alignas(64) unsigned char query[2 * (DIM * 4 + 64)];
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    for (int o = -1; o < n_overlays; o++)
        for (int kind = 0; kind < FO_N_KV_KINDS; kind++)
            for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
                const struct fo_attn_kernels *a = o < 0 ? &ref.attn : &overlays[o].k.attn;
                size_t q_bytes = fo_query_bytes((enum fo_kv_kind)kind, DIM);
                struct kv b = kv_new((enum fo_kv_kind)kind, DIM, N);
                struct fo_kv_run k = { .block = b.k, .tokens = N, .lo = 0, .hi = N, .at = 0 }, v = k;
                v.block = b.v;
                fill(x, N * DIM, 0), fill(q, 2 * DIM, 0);
                kv_put(&ref.attn, b, x, 0, N);
                q[DIM + 9] = bad[i];
                for (int h = 0; h < 2; h++) a->query[kind](q + h * DIM, DIM, query + (size_t)h * q_bytes);
                a->qk[kind](query, 2, DIM, &k, 0.5f, s);
                for (int t = 0; t < N; t++) assert_true(isfinite(s[t]) && !isfinite(s[N + t]));
                x[7 * DIM + 40] = bad[i]; /* a V that only the second query gives weight to */
                kv_put(a, b, x, 7, 8);
                for (int t = 0; t < N; t++) s[t] = s[N + t] = uniform(0, 1);
                const float r[2] = { 0, 0 };
                memset(out, 0, sizeof out);
                v.lo = 8;
                v.at = 8;
                a->pv[kind](s, r, 1, DIM, &v, out);
                v.lo = v.at = 0;
                a->pv[kind](s + N, r, 1, DIM, &v, out + DIM);
                for (int d = 0; d < DIM; d++) assert_true(isfinite(out[d]));
                assert_false(isfinite(out[DIM + 40]));
                kv_free(b);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_the_overlays_that_this_machine_should),
        cmocka_unit_test(quantises_activations_to_the_same_bits),
        cmocka_unit_test(quantises_activations_to_within_half_a_step),
        cmocka_unit_test(dots_agree_with_the_reference),
        cmocka_unit_test(batches_have_the_bits_of_dots),
        cmocka_unit_test(dotprod_only_saves_instructions),
        cmocka_unit_test(bad_scales_spoil_their_own_row_alone),
        cmocka_unit_test(every_exponent_of_mxfp4_is_a_power_of_two),
        cmocka_unit_test(every_entry_of_a_code_book_is_the_definitions),
        cmocka_unit_test(the_reference_dots_agree_with_double),
        cmocka_unit_test(row_ops_agree_with_the_reference),
        cmocka_unit_test(rotations_agree_with_the_reference),
        cmocka_unit_test(stores_and_queries_have_the_references_bits),
        cmocka_unit_test(quantised_kv_keeps_what_its_type_can),
        cmocka_unit_test(the_references_attention_agrees_with_double),
        cmocka_unit_test(attention_agrees_with_the_reference),
        cmocka_unit_test(attention_is_the_same_in_pieces),
        cmocka_unit_test(bad_values_spoil_their_own_query_alone),
    };
    return cmocka_run_group_tests_name("kernels", tests, find_overlays, NULL);
}
