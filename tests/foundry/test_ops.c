/* Ops on the cpu device, as the engine calls them: against naive double arithmetic, the same bits however the work is cut, and refused
 * shapes. Whatever the kernels are (PANTHEON_ISA), each test runs on the exact device too. */
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
#include "foundry/device.h"
#include "foundry/ops.h"

enum { MAX_ROWS = 40, MAX_K = 2048, MAX_CTX = 800 };

static struct fo_rng rng;

static float uniform(float lo, float hi) {
    return lo + (hi - lo) * (float)fo_rng_unit(&rng);
}

static float *random_floats(size_t n, float lo, float hi) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = uniform(lo, hi);
    return x;
}

/* Any bits are valid quants; the scales get sane values. */
static void *random_weights(enum fo_dtype type, int64_t k, int64_t rows) {
    const struct fo_dtype_info *t = fo_dtype_info(type);
    size_t bytes = fo_dtype_bytes(type, (uint64_t)k) * (size_t)rows, n = bytes / t->block_bytes;
    unsigned char *w = malloc(bytes);
    assert_non_null(w);
    for (size_t i = 0; i < bytes; i++) w[i] = (unsigned char)fo_rng_u64(&rng);
    for (size_t i = 0; i < n; i++) {
        unsigned char *b = w + i * t->block_bytes;
        float f = uniform(-1, 1);
        uint16_t h = fo_f32_to_f16(f * 0.01f), m = fo_f32_to_f16(uniform(-0.1f, 0.1f)), bf = fo_f32_to_bf16(f), half = fo_f32_to_f16(f);
        switch (type) {
        case FO_F32:
            memcpy(b, &f, 4);
            break;
        case FO_F16:
            memcpy(b, &half, 2);
            break;
        case FO_BF16:
            memcpy(b, &bf, 2);
            break;
        case FO_Q2_K:
            memcpy(b + 82, &m, 2); /* fall through */
        case FO_Q3_K:
        case FO_Q6_K:
        case FO_TQ1_0:
        case FO_TQ2_0:
            memcpy(b + (type == FO_Q2_K ? 80 : t->block_bytes - 2), &h, 2);
            break;
        case FO_IQ1_M: /* a nibble of the scale on top of each of the last four words */
            for (int j = 0; j < 4; j++) b[49 + 2 * j] = (unsigned char)((b[49 + 2 * j] & 15) | (h >> 4 * j & 15) << 4);
            break;
        case FO_MXFP4:
            b[0] = (unsigned char)(118 + b[0] % 8);
            break;
        case FO_NVFP4:
            for (int j = 0; j < 4; j++) b[j] &= 0x3F; /* below 2 */
            break;
        case FO_Q4_1:
        case FO_Q5_1:
        case FO_Q4_K:
        case FO_Q5_K:
            memcpy(b + 2, &m, 2); /* fall through */
        default:
            memcpy(b, &h, 2);
        }
    }
    return w;
}

/* Those without a dot of their own (here from Q5_0 on) are dequantised on the way. */
static const enum fo_dtype types[] = { FO_F32,    FO_F16,   FO_BF16,  FO_Q4_0,  FO_Q4_1,   FO_Q8_0,   FO_Q4_K,    FO_Q5_K,  FO_Q6_K,
                                       FO_Q5_0,   FO_Q5_1,  FO_Q2_K,  FO_Q3_K,  FO_IQ4_NL, FO_IQ4_XS, FO_IQ3_XXS, FO_IQ3_S, FO_IQ2_XXS,
                                       FO_IQ2_XS, FO_IQ2_S, FO_IQ1_S, FO_IQ1_M, FO_TQ1_0,  FO_TQ2_0,  FO_MXFP4,   FO_NVFP4 };
enum { N_TYPES = sizeof types / sizeof types[0] };

struct bench {
    struct fo_device *dev;
    struct fo_stream *s;
};

static struct bench open_bench(bool exact, int n_threads) {
    struct bench b = { 0 };
    struct fo_err e;
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .exact = exact, .n_threads = n_threads }, &b.dev, &e), FO_OK);
    assert_int_equal(b.dev->stream_open(b.dev, MAX_ROWS, MAX_K, MAX_CTX, &b.s, &e), FO_OK);
    return b;
}

static void close_bench(struct bench b) {
    b.dev->stream_close(b.s);
    fo_device_close(b.dev);
}

/* --- matmul -------------------------------------------------------------------------------------------------------------------- */

static void multiplies_as_double_arithmetic_does(void **state) {
    (void)state;
    fo_rng_seed(&rng, 1);
    static const int64_t ks[] = { 256, 512, 1536 };
    struct fo_cpu_kernels ref;
    fo_cpu_ref(&ref);
    for (int exact = 0; exact < 2; exact++) {
        struct bench b = open_bench(exact, 2);
        for (int i = 0; i < N_TYPES; i++)
            for (int j = 0; j < 3; j++) {
                int64_t k = ks[j], rows = 37;
                int n = 5;
                void *w = random_weights(types[i], k, rows);
                float *x = random_floats((size_t)(n * k), -1, 1), *y = malloc((size_t)(n * rows) * sizeof *y),
                      *line = malloc((size_t)k * sizeof *line);
                struct fo_tensor t = fo_tensor_2d(types[i], k, rows, w);
                struct fo_err e;
                assert_int_equal(fo_matmul(b.s, &t, x, n, y, &e), FO_OK);
                bool quantised = !exact && ref.dot[types[i]] && fo_dtype_info(types[i])->act != FO_F32;
                for (int64_t r = 0; r < rows; r++) {
                    fo_dtype_info(types[i])->to_f32((char *)w + (size_t)r * fo_dtype_bytes(types[i], (uint64_t)k), line, (size_t)k);
                    for (int row = 0; row < n; row++) {
                        double want = 0, norm = 0, abs_sum = 0;
                        for (int64_t c = 0; c < k; c++) {
                            double p = (double)line[c] * (double)x[row * k + c];
                            want += p;
                            abs_sum += fabs(p);
                            norm += (double)line[c] * (double)line[c];
                        }
                        /* 8-bit activations: an error of at most half a step of 1/127 each, with random signs; 8 sigma */
                        double tolerance = quantised ? 8 * sqrt(norm) * (1.0 / 127) / sqrt(12) : 2e-6 * abs_sum;
                        double got = (double)y[row * rows + r];
                        if (!(fabs(got - want) <= tolerance))
                            fail_msg("%s exact %d k %d row %d,%d: %g, expected %g +- %g", fo_dtype_name(types[i]), exact, (int)k, row,
                                     (int)r, got, want, tolerance);
                    }
                }
                free(w), free(x), free(y), free(line);
            }
        close_bench(b);
    }
}

/* 576 = 18 blocks of 32 and no multiple of 256: only types in blocks of 32 or less can have it. */
static void gives_the_same_bits_alone_batched_and_threaded(void **state) {
    (void)state;
    fo_rng_seed(&rng, 2);
    static const int64_t ks[] = { 32, 96, 576, 1024 };
    for (int exact = 0; exact < 2; exact++) {
        struct bench one = open_bench(exact, 1), two = open_bench(exact, 2), three = open_bench(exact, 3);
        for (int i = 0; i < N_TYPES; i++)
            for (int j = 0; j < 4; j++) {
                int64_t k = ks[j], rows = 301;
                if (k % fo_dtype_info(types[i])->block) continue;
                void *w = random_weights(types[i], k, rows);
                float *x = random_floats((size_t)(MAX_ROWS * k), -3, 3), *y = malloc((size_t)(MAX_ROWS * rows) * sizeof *y),
                      *z = malloc((size_t)(MAX_ROWS * rows) * sizeof *z);
                struct fo_tensor t = fo_tensor_2d(types[i], k, rows, w);
                struct fo_err e;
                for (int r = 0; r < MAX_ROWS; r++) assert_int_equal(fo_matmul(one.s, &t, x + r * k, 1, y + r * rows, &e), FO_OK);
                for (int n = 1; n <= MAX_ROWS; n = n < 17 ? n + 1 : MAX_ROWS + (n == MAX_ROWS)) {
                    const struct bench *benches[] = { &one, &two, &three };
                    for (int m = 0; m < 3; m++) {
                        memset(z, 0xFF, (size_t)(MAX_ROWS * rows) * sizeof *z);
                        assert_int_equal(fo_matmul(benches[m]->s, &t, x, n, z, &e), FO_OK);
                        if (memcmp(y, z, (size_t)(n * rows) * sizeof *y) != 0)
                            fail_msg("%s exact %d k %d n %d on %d threads: other bits", fo_dtype_name(types[i]), exact, (int)k, n, m + 1);
                        if (n < MAX_ROWS) assert_true(isnan(z[n * rows])); /* nothing past the rows asked for */
                    }
                }
                free(w), free(x), free(y), free(z);
            }
        close_bench(one), close_bench(two), close_bench(three);
    }
}

static void multiplies_several_matrices_of_mixed_types_at_once(void **state) {
    (void)state;
    fo_rng_seed(&rng, 3);
    for (int exact = 0; exact < 2; exact++) {
        struct bench b = open_bench(exact, 2);
        enum { K = 512, N = 6 };
        struct fo_tensor t[N_TYPES];
        const struct fo_tensor *w[N_TYPES];
        float *y[N_TYPES], *x = random_floats(N * K, -1, 1), alone[N * (7 + 3 * N_TYPES)];
        struct fo_err e;
        for (int i = 0; i < N_TYPES; i++) {
            t[i] = fo_tensor_2d(types[i], K, 7 + 3 * i, random_weights(types[i], K, 7 + 3 * i));
            w[i] = &t[i];
            y[i] = malloc(sizeof alone);
        }
        assert_int_equal(fo_matmul_many(b.s, w, N_TYPES, x, N, y, &e), FO_OK);
        for (int i = 0; i < N_TYPES; i++) {
            assert_int_equal(fo_matmul(b.s, &t[i], x, N, alone, &e), FO_OK);
            assert_memory_equal(alone, y[i], (size_t)(N * t[i].ne[1]) * sizeof(float));
            free(t[i].data), free(y[i]);
        }
        free(x);
        close_bench(b);
    }
}

/* On a device with a slot for them, and on one whose ops are put together. Every pair of neighbouring types: converted alike, and not. */
static void fused_forms_give_the_bits_of_what_they_stand_for(void **state) {
    (void)state;
    fo_rng_seed(&rng, 33);
    enum { K = 512, ROWS = 37, MOST = 24 };
    static const int batches[] = { 1, 3, 7, MOST };
    for (int exact = 0; exact < 2; exact++)
        for (int i = 0; i < N_TYPES; i++) {
            struct bench b = open_bench(exact, 2);
            assert_non_null(b.dev->matmul_fused);
            struct fo_err e;
            struct fo_tensor t[2];
            const struct fo_tensor *w[2] = { &t[0], &t[1] };
            for (int j = 0; j < 2; j++) t[j] = fo_tensor_2d(types[(i + j) % N_TYPES], K, ROWS, random_weights(types[(i + j) % N_TYPES], K, ROWS));
            float *x = random_floats(MOST * K, -1, 1), *norm = random_floats(K, 0, 2), *before = random_floats(MOST * ROWS, -1, 1), *work = malloc(MOST * K * sizeof *work);
            for (size_t j = 0; j < sizeof batches / sizeof *batches; j++) {
                int n = batches[j];
                float *h = malloc(MOST * K * sizeof *h), *plain[2], *fused[2], *sum = malloc(MOST * ROWS * sizeof *sum), *sum2 = malloc(MOST * ROWS * sizeof *sum2);
                for (int l = 0; l < 2; l++) plain[l] = malloc(MOST * ROWS * sizeof **plain), fused[l] = malloc(MOST * ROWS * sizeof **fused);
                size_t bytes = (size_t)n * ROWS * sizeof(float);
                memcpy(sum, before, bytes), memcpy(sum2, before, bytes);
                /* two matrices behind a norm; then gated; then a sum */
                assert_int_equal(fo_rms_norm(b.s, x, norm, n, K, 1e-5f, h, &e), FO_OK);
                assert_int_equal(fo_matmul_many(b.s, w, 2, h, n, plain, &e), FO_OK);
                for (int put_together = 0; put_together < 2; put_together++) {
                    int (*slot)(struct fo_stream *, const struct fo_fused *, const struct fo_tensor *const *, int, const float *, int, float *const *,
                                struct fo_err *) = b.dev->matmul_fused;
                    if (put_together) b.dev->matmul_fused = NULL;
                    struct fo_fused f = { .norm = norm, .eps = 1e-5f, .work = work };
                    assert_int_equal(fo_matmul_fused(b.s, &f, w, 2, x, n, fused, &e), FO_OK);
                    for (int l = 0; l < 2; l++) assert_memory_equal(plain[l], fused[l], bytes);

                    float gated[MOST * ROWS];
                    assert_int_equal(fo_silu_mul(b.s, plain[0], plain[1], n, ROWS, gated, &e), FO_OK);
                    f.gated = true;
                    assert_int_equal(fo_matmul_fused(b.s, &f, w, 2, x, n, fused, &e), FO_OK);
                    assert_memory_equal(gated, fused[0], bytes);

                    f = (struct fo_fused){ .add_to = sum };
                    assert_int_equal(fo_matmul_fused(b.s, &f, w, 1, h, n, fused, &e), FO_OK);
                    memcpy(sum2, before, bytes);
                    assert_int_equal(fo_add(b.s, sum2, plain[0], n, ROWS, false, sum2, &e), FO_OK);
                    assert_memory_equal(sum, sum2, bytes);
                    memcpy(sum, before, bytes);
                    b.dev->matmul_fused = slot;
                }
                free(h), free(sum), free(sum2), free(plain[0]), free(plain[1]), free(fused[0]), free(fused[1]);
            }
            free(x), free(norm), free(before), free(work), free(t[0].data), free(t[1].data);
            close_bench(b);
        }
}

static void lives_through_nan_and_infinity(void **state) {
    (void)state;
    fo_rng_seed(&rng, 4);
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY, 3e38f, 1e-45f, -0.0f, 1e-38f };
    for (int exact = 0; exact < 2; exact++) {
        struct bench b = open_bench(exact, 2);
        for (int i = 0; i < N_TYPES; i++) {
            enum { K = 768, ROWS = 9 };
            void *w = random_weights(types[i], K, ROWS);
            struct fo_tensor t = fo_tensor_2d(types[i], K, ROWS, w);
            struct fo_err e;
            for (size_t j = 0; j < sizeof bad / sizeof bad[0]; j++) {
                float *x = random_floats(2 * K, -1, 1), y[2 * ROWS], clean[ROWS];
                assert_int_equal(fo_matmul(b.s, &t, x + K, 1, clean, &e), FO_OK);
                x[700] = bad[j];
                assert_int_equal(fo_matmul(b.s, &t, x, 2, y, &e), FO_OK);
                assert_memory_equal(clean, y + ROWS, sizeof clean); /* the row beside it is not touched */
                if (!isfinite(bad[j])) assert_false(isfinite(y[0]));
                free(x);
            }
            /* and weights of any bits at all */
            memset(w, 0xFF, fo_dtype_bytes(types[i], K) * ROWS);
            float *x = random_floats(K, -1, 1), y[ROWS];
            assert_int_equal(fo_matmul(b.s, &t, x, 1, y, &e), FO_OK);
            free(x), free(w);
        }
        close_bench(b);
    }
}

/* --- rows ---------------------------------------------------------------------------------------------------------------------- */

static void looks_up_rows_of_every_type(void **state) {
    (void)state;
    fo_rng_seed(&rng, 5);
    struct bench b = open_bench(false, 2);
    for (int i = 0; i < N_TYPES; i++) {
        enum { K = 512, ROWS = 11 };
        void *w = random_weights(types[i], K, ROWS);
        struct fo_tensor t = fo_tensor_2d(types[i], K, ROWS, w);
        int32_t ids[] = { 10, 0, 3, 3 };
        float out[4 * K], want[K];
        struct fo_err e;
        assert_int_equal(fo_get_rows(b.s, &t, ids, 4, out, &e), FO_OK);
        for (int r = 0; r < 4; r++) {
            fo_dtype_info(types[i])->to_f32((char *)w + (size_t)ids[r] * fo_dtype_bytes(types[i], K), want, K);
            assert_memory_equal(want, out + r * K, sizeof want);
        }
        ids[2] = ROWS;
        assert_int_equal(fo_get_rows(b.s, &t, ids, 4, out, &e), FO_EINTERNAL);
        ids[2] = -1;
        assert_int_equal(fo_get_rows(b.s, &t, ids, 4, out, &e), FO_EINTERNAL);
        free(w);
    }
    close_bench(b);
}

static void check_row(const char *what, const float *got, const double *want, int64_t k, double tolerance) {
    double top = 0;
    for (int64_t i = 0; i < k; i++) top = fmax(top, fabs(want[i]));
    for (int64_t i = 0; i < k; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * top))
            fail_msg("%s[%d]: %g, expected %g", what, (int)i, (double)got[i], want[i]);
}

static void normalises_adds_and_gates(void **state) {
    (void)state;
    fo_rng_seed(&rng, 6);
    for (int exact = 0; exact < 2; exact++)
        for (int64_t k = 1; k <= 2000; k = k < 70 ? k + 1 : k * 3) {
            struct bench b = open_bench(exact, 2);
            enum { N = 5 };
            float *x = random_floats((size_t)(N * k), -9, 9), *y = random_floats((size_t)(N * k), -2, 2),
                  *out = malloc((size_t)(N * k) * sizeof *out);
            double *want = malloc((size_t)k * sizeof *want);
            struct fo_err e;
            assert_int_equal(fo_rms_norm(b.s, x, y, N, k, 1e-5f, out, &e), FO_OK);
            for (int r = 0; r < N; r++) {
                double sum = 0;
                for (int64_t i = 0; i < k; i++) sum += (double)x[r * k + i] * (double)x[r * k + i];
                for (int64_t i = 0; i < k; i++) want[i] = (double)x[r * k + i] / sqrt(sum / (double)k + 1e-5) * (double)y[i];
                check_row("rms_norm", out + r * k, want, k, 2e-6);
            }
            assert_int_equal(fo_silu_mul(b.s, x, y, N, k, out, &e), FO_OK);
            for (int r = 0; r < N; r++) {
                for (int64_t i = 0; i < k; i++) want[i] = (double)x[r * k + i] / (1 + exp(-(double)x[r * k + i])) * (double)y[r * k + i];
                check_row("silu_mul", out + r * k, want, k, 2e-6);
            }
            for (int bias = 0; bias < 2; bias++) {
                assert_int_equal(fo_add(b.s, x, y, N, k, bias, out, &e), FO_OK);
                for (int64_t i = 0; i < N * k; i++) assert_true(out[i] == x[i] + y[bias ? i % k : i]);
            }
            /* in place */
            float *copy = malloc((size_t)(N * k) * sizeof *copy);
            memcpy(copy, x, (size_t)(N * k) * sizeof *copy);
            assert_int_equal(fo_silu_mul(b.s, x, y, N, k, out, &e), FO_OK);
            assert_int_equal(fo_silu_mul(b.s, copy, y, N, k, copy, &e), FO_OK);
            assert_memory_equal(copy, out, (size_t)(N * k) * sizeof *copy);
            assert_int_equal(fo_rms_norm(b.s, x, y, N, k, 1e-5f, out, &e), FO_OK);
            assert_int_equal(fo_rms_norm(b.s, x, y, N, k, 1e-5f, x, &e), FO_OK);
            assert_memory_equal(x, out, (size_t)(N * k) * sizeof *x);
            free(x), free(y), free(out), free(want), free(copy);
            close_bench(b);
        }
}

static void adds_scaled_rows_where_they_belong(void **state) {
    (void)state;
    enum { N = 3, OUT = 5, K = 37 };
    const int32_t row[N] = { 0, 2, 4 };
    const float scale[N] = { 0.5f, -2, 3 };
    fo_rng_seed(&rng, 7);
    struct bench b = open_bench(false, 2);
    struct fo_err e;
    float *a = random_floats(N * K, -9, 9), *out = random_floats(OUT * K, -9, 9), was[OUT * K];
    memcpy(was, out, sizeof was);
    assert_int_equal(fo_add_rows(b.s, a, row, scale, N, K, out, OUT, &e), FO_OK);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < K; j++) was[row[i] * K + j] += scale[i] * a[i * K + j];
    assert_memory_equal(out, was, sizeof was);
    assert_int_equal(fo_add_rows(b.s, a, row, scale, 0, K, out, OUT, &e), FO_OK);
    assert_memory_equal(out, was, sizeof was);
    free(a), free(out);
    close_bench(b);
}

static void gates_extreme_values_without_surprise(void **state) {
    (void)state;
    struct bench b = open_bench(false, 1);
    float gate[] = { 0, -0.0f, 80, -80, 100, -100, 1e30f, -1e30f, INFINITY, NAN, 1e-30f, -87.5f, 88.5f, -3e38f }, up[14], out[14];
    for (int i = 0; i < 14; i++) up[i] = 1;
    struct fo_err e;
    assert_int_equal(fo_silu_mul(b.s, gate, up, 1, 14, out, &e), FO_OK);
    for (int i = 0; i < 14; i++) {
        if (i == 9)
            assert_true(isnan(out[i]));
        else if (gate[i] > 80)
            assert_true(out[i] == gate[i]);
        else
            assert_true(fabs((double)out[i] - (double)gate[i] / (1 + exp(-(double)gate[i]))) <= 1e-6 * fabs((double)gate[i]));
    }
    close_bench(b);
}

static void rotates_pairs_and_halves(void **state) {
    (void)state;
    fo_rng_seed(&rng, 7);
    static const struct { int head_dim, n_rot; } shapes[] = { { 64, 64 }, { 128, 128 }, { 80, 32 }, { 6, 4 }, { 256, 256 }, { 32, 2 } };
    for (int exact = 0; exact < 2; exact++) {
        struct bench b = open_bench(exact, 2);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int kind = 0; kind < 2; kind++) {
                enum { N = 4, HEADS = 3 };
                int dim = shapes[i].head_dim, half = shapes[i].n_rot / 2;
                double freq[128];
                for (int j = 0; j < half; j++) freq[j] = pow(10000, -2.0 * j / shapes[i].n_rot);
                struct fo_rope r = {
                    .kind = (enum fo_rope_kind)kind, .head_dim = dim, .n_rot = shapes[i].n_rot, .inv_freq = freq, .attn_factor = 1.25f
                };
                int32_t pos[N] = { 0, 1, 4000, 131071 };
                struct fo_err e;
                for (int twice = 0; twice < 2; twice++) { /* the second time from the stream's table */
                    float *x = random_floats((size_t)(N * HEADS * dim), -1, 1), *before = malloc((size_t)(N * HEADS * dim) * sizeof *x);
                    memcpy(before, x, (size_t)(N * HEADS * dim) * sizeof *x);
                    assert_int_equal(fo_rope(b.s, &r, x, pos, N, HEADS, &e), FO_OK);
                    for (int row = 0; row < N * HEADS; row++)
                        for (int d = 0; d < dim; d++) {
                            double want = (double)before[row * dim + d];
                            if (d < 2 * half) {
                                int pair = kind == FO_ROPE_PAIRS ? d / 2 : d % half;
                                bool second = kind == FO_ROPE_PAIRS ? d % 2 : d >= half;
                                int other = kind == FO_ROPE_PAIRS ? d ^ 1 : second ? d - half : d + half;
                                double angle = pos[row / HEADS] * freq[pair], o = (double)before[row * dim + other];
                                want = 1.25 * (second ? o * sin(angle) + want * cos(angle) : want * cos(angle) - o * sin(angle));
                            }
                            assert_true(fabs((double)x[row * dim + d] - want) < 1e-6);
                        }
                    free(x), free(before);
                }
                freq[0] *= 2; /* another rotation at the same address and positions is noticed */
                float y[256] = { 1, 1 };
                assert_int_equal(fo_rope(b.s, &r, y, pos + 1, 1, 1, &e), FO_OK);
                assert_true(fabs((double)y[0] - 1.25 * (cos(freq[0]) - (kind == FO_ROPE_PAIRS || half == 1 ? sin(freq[0]) : 0))) < 1e-6);
            }
        close_bench(b);
    }
}

/* --- attention ----------------------------------------------------------------------------------------------------------------- */

struct kv_case {
    enum fo_dtype k_type, v_type;
    int n_head, n_head_kv, head_dim, page_tokens, window, len, chunk;
};

/* Two sequences of different lengths, stored and attended chunk by chunk in one batch, on scattered pages; `out` gets their rows one
 * after the other. */
static void attend_case(struct bench b, const struct kv_case *c, const float *q, const float *k, const float *v, float *out) {
    int lens[2] = { c->len, c->len / 2 + 1 }, pages_each = (c->len + c->page_tokens - 1) / c->page_tokens;
    struct fo_kv_geom g = { .k_type = c->k_type,
                            .v_type = c->v_type,
                            .n_layer = 2,
                            .n_head_kv = c->n_head_kv,
                            .head_dim = c->head_dim,
                            .page_tokens = c->page_tokens,
                            .n_pages = (uint64_t)(2 * pages_each + 1),
                            .scale = 1 / sqrtf((float)c->head_dim),
                            .n_head = c->n_head,
                            .window = c->window };
    uint64_t bytes = fo_kv_page_bytes(&g) * g.n_pages;
    assert_int_equal(fo_kv_page_bytes(&g) % 64, 0);
    struct fo_err e;
    void *pool = NULL;
    assert_int_equal(b.dev->alloc(b.dev, bytes, &pool, &e), FO_OK);
    memset(pool, 0xFF, bytes); /* NaN wherever nothing was stored */
    g.pool = pool;
    uint32_t *pages[2];
    for (int s = 0; s < 2; s++) {
        pages[s] = malloc((size_t)pages_each * sizeof *pages[s]);
        for (int i = 0; i < pages_each; i++) pages[s][i] = (uint32_t)(2 * (pages_each - 1 - i) + s);
    }
    int kvw = c->n_head_kv * c->head_dim, qw = c->n_head * c->head_dim;
    float *bq = malloc((size_t)(2 * c->chunk * qw) * sizeof *bq), *bo = malloc((size_t)(2 * c->chunk * qw) * sizeof *bo),
          *bk = malloc((size_t)(2 * c->chunk * kvw) * sizeof *bk), *bv = malloc((size_t)(2 * c->chunk * kvw) * sizeof *bv);
    for (int at = 0; at < c->len; at += c->chunk) {
        struct fo_attn_seq seqs[2];
        int n_seqs = 0, rows = 0, first[2] = { 0, lens[0] };
        for (int s = 0; s < 2; s++) {
            int n = lens[s] - at < c->chunk ? lens[s] - at : c->chunk;
            if (n <= 0) continue;
            seqs[n_seqs++] = (struct fo_attn_seq){ .row = rows, .n = n, .pos = at, .pages = pages[s] };
            memcpy(bq + rows * qw, q + (first[s] + at) * qw, (size_t)(n * qw) * sizeof *q);
            memcpy(bk + rows * kvw, k + (first[s] + at) * kvw, (size_t)(n * kvw) * sizeof *k);
            memcpy(bv + rows * kvw, v + (first[s] + at) * kvw, (size_t)(n * kvw) * sizeof *v);
            rows += n;
        }
        struct fo_attn_batch batch = { .seqs = seqs, .n_seqs = n_seqs, .n_rows = rows };
        assert_int_equal(fo_kv_store(b.s, &g, bk, bv, &batch, 1, &e), FO_OK);
        assert_int_equal(fo_attend(b.s, &g, bq, &batch, 1, bo, &e), FO_OK);
        for (int i = 0; i < n_seqs; i++) {
            int s = seqs[i].pages == pages[1];
            memcpy(out + (first[s] + at) * qw, bo + seqs[i].row * qw, (size_t)(seqs[i].n * qw) * sizeof *out);
        }
    }
    for (uint64_t i = 0; i < bytes / 2; i++) /* layer 0, and the page of nobody, were left alone */
        if (i * 2 / fo_kv_page_bytes(&g) == g.n_pages - 1) assert_int_equal(((uint16_t *)pool)[i], 0xFFFF);
    b.dev->free(b.dev, pool, bytes);
    free(pages[0]), free(pages[1]), free(bq), free(bo), free(bk), free(bv);
}

static float *as_stored(enum fo_dtype type, const float *x, size_t n, int head_dim) {
    float *out = malloc(n * sizeof *out);
    memcpy(out, x, n * sizeof *out);
    fo_kv_keep(type, out, n, head_dim);
    return out;
}

static void naive_attend(const struct kv_case *c, const float *q, const float *k, const float *v, double *out) {
    int lens[2] = { c->len, c->len / 2 + 1 }, group = c->n_head / c->n_head_kv;
    double *s = malloc((size_t)c->len * sizeof *s);
    for (int seq = 0, first = 0; seq < 2; first += lens[seq++])
        for (int i = 0; i < lens[seq]; i++)
            for (int h = 0; h < c->n_head; h++) {
                int from = c->window && i - c->window + 1 > 0 ? i - c->window + 1 : 0, dim = c->head_dim;
                double top = -(double)INFINITY, sum = 0, *o = out + ((first + i) * c->n_head + h) * dim;
                for (int j = from; j <= i; j++) {
                    s[j] = 0;
                    for (int d = 0; d < dim; d++)
                        s[j] += (double)q[((first + i) * c->n_head + h) * dim + d] *
                                (double)k[((first + j) * c->n_head_kv + h / group) * dim + d];
                    s[j] /= sqrt(dim);
                    top = fmax(top, s[j]);
                }
                memset(o, 0, (size_t)dim * sizeof *o);
                for (int j = from; j <= i; j++) {
                    double p = exp(s[j] - top);
                    sum += p;
                    for (int d = 0; d < dim; d++)
                        o[d] += p * (double)v[((first + j) * c->n_head_kv + h / group) * dim + d];
                }
                for (int d = 0; d < dim; d++) o[d] /= sum;
            }
    free(s);
}

/* How far from double arithmetic on the stored values: queries and weights of 16 bits beside quantised K and V; of 8 bits beside K of Q4_0,
 * which moves these scores by up to some hundredths. */
static double attend_tolerance(const struct kv_case *c) {
    if (c->k_type == FO_Q4_0) return 0.1;
    return c->k_type == FO_Q8_0 || c->v_type == FO_Q8_0 || c->v_type == FO_Q4_0 ? 2e-4 : 3e-6;
}

static bool quantised(const struct kv_case *c) {
    return fo_dtype_info(c->k_type)->block > 1 || fo_dtype_info(c->v_type)->block > 1;
}

/* Another page size that gives the same bits: pages of whole groups of 16 go through the overlay, others through the reference; quantised
 * values are weighted page by page. */
static int other_page(const struct kv_case *c) {
    if (quantised(c)) return c->page_tokens;
    return c->page_tokens % 16 ? c->page_tokens == 4 ? 5 : 4 : c->page_tokens == 64 ? 16 : 64;
}

static void attends_as_double_arithmetic_does(void **state) {
    (void)state;
    fo_rng_seed(&rng, 8);
    static const struct kv_case cases[] = {
        { FO_F32, FO_F32, 4, 4, 64, FO_KV_PAGE_TOKENS, 0, 70, 20 },
        { FO_F16, FO_F16, 9, 3, 64, FO_KV_PAGE_TOKENS, 0, 150, 17 },
        { FO_F16, FO_F16, 8, 2, 32, FO_KV_PAGE_TOKENS, 0, 66, 1 },
        { FO_F16, FO_F32, 8, 1, 128, 4, 0, 140, 13 },
        { FO_F32, FO_F16, 6, 6, 80, 16, 0, 65, 7 },
        { FO_F16, FO_F16, 4, 2, 64, 8, 16, 200, 20 },
        { FO_F32, FO_F32, 10, 2, 64, FO_KV_PAGE_TOKENS, 70, 200, 20 },
        { FO_F16, FO_F16, 5, 1, 64, 3, 1, 80, 11 },
        { FO_F16, FO_F16, 2, 1, 20, 64, 5, 130, 20 },
        { FO_F32, FO_F32, 1, 1, 7, 5, 0, 64, 16 },
        { FO_F16, FO_F16, 32, 8, 64, 64, 0, 300, 20 },
        { FO_F16, FO_F16, 3, 1, 256, 32, 64, 129, 20 },
        { FO_Q8_0, FO_Q8_0, 9, 3, 64, 64, 0, 150, 17 },
        { FO_Q8_0, FO_Q8_0, 5, 1, 96, FO_KV_PAGE_TOKENS, 0, 131, 20 },
        { FO_Q8_0, FO_Q8_0, 4, 4, 32, 64, 40, 200, 13 },
        { FO_Q8_0, FO_Q8_0, 3, 1, 256, 16, 0, 100, 20 },
        { FO_Q4_0, FO_Q4_0, 8, 2, 64, 64, 0, 150, 20 },
        { FO_Q4_0, FO_Q4_0, 5, 1, 128, FO_KV_PAGE_TOKENS, 70, 200, 20 },
        { FO_Q4_0, FO_Q4_0, 2, 2, 96, 3, 0, 90, 11 },
        { FO_Q8_0, FO_Q4_0, 6, 2, 128, 64, 0, 130, 7 },
        { FO_F16, FO_Q8_0, 4, 1, 64, 64, 0, 130, 20 },
        { FO_Q8_0, FO_F16, 4, 1, 64, 64, 0, 130, 1 },
        /* several spans of 512 */
        { FO_F16, FO_F16, 3, 1, 64, 64, 0, 600, 20 },
        { FO_Q8_0, FO_Q8_0, 3, 1, 32, 64, 0, 560, 19 },
        { FO_Q4_0, FO_Q4_0, 2, 1, 32, 64, 300, 600, 20 },
        { FO_F32, FO_F32, 2, 1, 32, 64, 530, 600, 20 },
    };
    for (int exact = 0; exact < 2; exact++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const struct kv_case *c = &cases[i];
            struct bench b = open_bench(exact, 2), one = open_bench(exact, 1);
            size_t rows = (size_t)(c->len + c->len / 2 + 1), qn = rows * (size_t)(c->n_head * c->head_dim),
                   kn = rows * (size_t)(c->n_head_kv * c->head_dim);
            float *q = random_floats(qn, -3, 3), *k = random_floats(kn, -2, 2), *v = random_floats(kn, -1, 1),
                  *out = malloc(qn * sizeof *out), *again = malloc(qn * sizeof *again);
            double *want = malloc(qn * sizeof *want);
            float *kept_k = as_stored(c->k_type, k, kn, c->head_dim), *kept_v = as_stored(c->v_type, v, kn, c->head_dim);
            attend_case(b, c, q, k, v, out);
            naive_attend(c, q, kept_k, kept_v, want);
            for (size_t j = 0; j < qn; j++)
                if (!(fabs((double)out[j] - want[j]) < attend_tolerance(c)))
                    fail_msg("case %d exact %d at %d: %g, expected %g", (int)i, exact, (int)j, (double)out[j], want[j]);
            /* other pages, other chunks, another number of threads: the same bits */
            struct kv_case d = *c;
            d.page_tokens = other_page(c);
            d.chunk = c->chunk == 20 ? 3 : 20;
            attend_case(one, &d, q, k, v, again);
            assert_memory_equal(out, again, qn * sizeof *out);
            free(q), free(k), free(v), free(kept_k), free(kept_v), free(out), free(again), free(want);
            close_bench(b), close_bench(one);
        }
}

static void attends_over_infinite_values_without_crashing(void **state) {
    (void)state;
    fo_rng_seed(&rng, 9);
    struct kv_case c = { FO_F16, FO_F16, 4, 1, 64, 8, 0, 70, 10 };
    struct bench b = open_bench(false, 2);
    size_t rows = 70 + 36;
    float *q = random_floats(rows * 4 * 64, -1, 1), *k = random_floats(rows * 64, -1, 1), *v = random_floats(rows * 64, -1, 1),
          *out = malloc(rows * 4 * 64 * sizeof *out);
    k[5 * 64] = INFINITY, k[20 * 64 + 1] = NAN, v[33 * 64] = -INFINITY, q[3] = NAN, q[64 * 4 * 8] = INFINITY;
    attend_case(b, &c, q, k, v, out);
    assert_true(isfinite(out[4 * 64]));      /* position 1 sees none of it */
    assert_true(isfinite(out[70 * 4 * 64])); /* nor does the other sequence */
    free(q), free(k), free(v), free(out);
    close_bench(b);
}

/* --- refusals ------------------------------------------------------------------------------------------------------------------ */

#define REFUSED(call) assert_int_equal((call), FO_EINTERNAL)

static void refuses_wrong_shapes(void **state) {
    (void)state;
    struct bench b = open_bench(false, 1);
    struct fo_err e;
    float x[512] = { 0 }, y[512];
    float *ys[2] = { y, y };
    unsigned char weights[4096] = { 0 };
    struct fo_tensor t = fo_tensor_2d(FO_Q8_0, 64, 4, weights), u = fo_tensor_2d(FO_Q8_0, 96, 4, weights), bad = t;
    const struct fo_tensor *both[2] = { &t, &u };
    assert_int_equal(fo_matmul(b.s, &t, x, 0, y, &e), FO_OK);
    assert_int_equal(fo_matmul(b.s, &t, NULL, 0, NULL, &e), FO_OK);
    REFUSED(fo_matmul(b.s, &t, x, -1, y, &e));
    REFUSED(fo_matmul(b.s, &t, x, MAX_ROWS + 1, y, &e));
    assert_non_null(strstr(e.msg, "41"));
    REFUSED(fo_matmul(b.s, &t, NULL, 1, y, &e));
    REFUSED(fo_matmul(b.s, &t, x, 1, NULL, &e));
    REFUSED(fo_matmul(b.s, NULL, x, 1, y, &e));
    REFUSED(fo_matmul(NULL, &t, x, 1, y, &e));
    REFUSED(fo_matmul_many(b.s, both, 2, x, 1, ys, &e)); /* 64 and 96 */
    assert_non_null(strstr(e.msg, "96"));
    REFUSED(fo_matmul_many(b.s, both, 0, x, 1, ys, &e));
    REFUSED(fo_matmul_many(b.s, NULL, 1, x, 1, ys, &e));
    const struct fo_tensor v = fo_tensor_2d(FO_Q8_0, 64, 3, weights), *uneven[2] = { &t, &v };
    REFUSED(fo_matmul_fused(b.s, &(struct fo_fused){ .gated = true }, uneven, 2, x, 1, ys, &e)); /* 4 rows and 3 */
    REFUSED(fo_matmul_fused(b.s, &(struct fo_fused){ .gated = true }, uneven, 1, x, 1, ys, &e));
    REFUSED(fo_matmul_fused(b.s, &(struct fo_fused){ .add_to = y }, uneven, 2, x, 1, ys, &e));
    REFUSED(fo_matmul_fused(b.s, &(struct fo_fused){ .norm = x }, uneven, 1, x, 1, ys, &e)); /* nowhere to normalise */
    bad.ne[0] = 65;
    REFUSED(fo_matmul(b.s, &bad, x, 1, y, &e)); /* no multiple of the block */
    bad.ne[0] = MAX_K + 32;
    REFUSED(fo_matmul(b.s, &bad, x, 1, y, &e));
    bad = t, bad.ne[2] = 2;
    REFUSED(fo_matmul(b.s, &bad, x, 1, y, &e));
    bad = t, bad.ne[1] = 0;
    REFUSED(fo_matmul(b.s, &bad, x, 1, y, &e));
    bad = t, bad.ne[1] = INT64_MAX;
    REFUSED(fo_matmul(b.s, &bad, x, 1, y, &e));
    bad = t, bad.data = NULL;
    REFUSED(fo_matmul(b.s, &bad, x, 1, y, &e));
    bad = t, bad.type = FO_Q8_1;
    assert_int_equal(fo_matmul(b.s, &bad, x, 1, y, &e), FO_EUNSUPPORTED);
    bad.type = (enum fo_dtype)4;
    assert_int_equal(fo_matmul(b.s, &bad, x, 1, y, &e), FO_EUNSUPPORTED);

    REFUSED(fo_rms_norm(b.s, x, y, 1, 0, 1e-5f, y, &e));
    REFUSED(fo_rms_norm(b.s, x, NULL, 1, 8, 1e-5f, y, &e));
    REFUSED(fo_rms_norm(b.s, x, y, MAX_ROWS + 1, 8, 1e-5f, y, &e));
    REFUSED(fo_add(b.s, x, NULL, 1, 8, true, y, &e));
    REFUSED(fo_add(b.s, x, x, -1, 8, true, y, &e));
    const int32_t order[] = { 0, 2 }, wrong[] = { 2, 0 }, twice[] = { 1, 1 }, below[] = { -1, 0 };
    const float shares[] = { 1, 1 };
    REFUSED(fo_add_rows(b.s, x, order, shares, 2, 8, y, 2, &e));
    REFUSED(fo_add_rows(b.s, x, wrong, shares, 2, 8, y, 3, &e));
    REFUSED(fo_add_rows(b.s, x, twice, shares, 2, 8, y, 3, &e));
    REFUSED(fo_add_rows(b.s, x, below, shares, 2, 8, y, 3, &e));
    REFUSED(fo_add_rows(b.s, x, order, NULL, 2, 8, y, 3, &e));
    REFUSED(fo_add_rows(b.s, x, order, shares, 2, 8, y, MAX_ROWS + 1, &e));
    REFUSED(fo_silu_mul(b.s, x, x, 1, INT64_MAX, y, &e));
    REFUSED(fo_silu_mul(b.s, NULL, x, 1, 8, y, &e));

    double freq[4] = { 1, 1, 1, 1 };
    int32_t pos[1] = { 0 };
    struct fo_rope r = { .kind = FO_ROPE_PAIRS, .head_dim = 8, .n_rot = 8, .inv_freq = freq, .attn_factor = 1 }, rb = r;
    assert_int_equal(fo_rope(b.s, &r, x, pos, 1, 1, &e), FO_OK);
    rb.n_rot = 10;
    REFUSED(fo_rope(b.s, &rb, x, pos, 1, 1, &e));
    rb = r, rb.n_rot = 3;
    REFUSED(fo_rope(b.s, &rb, x, pos, 1, 1, &e));
    rb = r, rb.inv_freq = NULL;
    REFUSED(fo_rope(b.s, &rb, x, pos, 1, 1, &e));
    REFUSED(fo_rope(b.s, &r, x, pos, 1, 0, &e));
    REFUSED(fo_rope(b.s, &r, NULL, pos, 1, 1, &e));

    unsigned char *pool = calloc(1, 65536);
    uint32_t pages[8] = { 0, 1, 2, 3, 1, 1, 1, 1 };
    struct fo_kv_geom g = { .k_type = FO_F16,
                            .v_type = FO_F16,
                            .n_layer = 1,
                            .n_head_kv = 1,
                            .head_dim = 8,
                            .page_tokens = 4,
                            .pool = pool,
                            .n_pages = 4,
                            .scale = 1,
                            .n_head = 2 },
                      gb = g;
    struct fo_attn_seq seq = { .row = 0, .n = 2, .pos = 3, .pages = pages }, sb = seq;
    struct fo_attn_batch batch = { .seqs = &seq, .n_seqs = 1, .n_rows = 2 };
    assert_int_equal(fo_kv_store(b.s, &g, x, x, &batch, 0, &e), FO_OK);
    assert_int_equal(fo_attend(b.s, &g, x, &batch, 0, y, &e), FO_OK);
    REFUSED(fo_attend(b.s, &g, x, &batch, 1, y, &e));
    REFUSED(fo_attend(b.s, &g, x, &batch, -1, y, &e));
    REFUSED(fo_attend(b.s, &g, NULL, &batch, 0, y, &e));
    REFUSED(fo_kv_store(b.s, &g, x, NULL, &batch, 0, &e));
    gb.n_head = 3, gb.n_head_kv = 2;
    REFUSED(fo_attend(b.s, &gb, x, &batch, 0, y, &e));
    gb = g, gb.page_tokens = 0;
    REFUSED(fo_attend(b.s, &gb, x, &batch, 0, y, &e));
    gb = g, gb.window = -1;
    REFUSED(fo_attend(b.s, &gb, x, &batch, 0, y, &e));
    gb = g, gb.n_pages = 1;
    REFUSED(fo_attend(b.s, &gb, x, &batch, 0, y, &e));
    gb = g, gb.k_type = FO_Q4_1, gb.head_dim = 32;
    assert_int_equal(fo_attend(b.s, &gb, x, &batch, 0, y, &e), FO_EUNSUPPORTED);
    gb = g, gb.k_type = FO_Q8_0;
    gb.head_dim = 33;
    REFUSED(fo_attend(b.s, &gb, x, &batch, 0, y, &e));
    assert_int_equal(fo_kv_page_bytes(&gb), 0);
    batch.seqs = &sb;
    sb.row = 1;
    REFUSED(fo_attend(b.s, &g, x, &batch, 0, y, &e));
    sb = seq, sb.row = -1;
    REFUSED(fo_attend(b.s, &g, x, &batch, 0, y, &e));
    sb = seq, sb.pos = MAX_CTX - 1;
    REFUSED(fo_attend(b.s, &g, x, &batch, 0, y, &e));
    sb = seq, sb.pos = -1;
    REFUSED(fo_attend(b.s, &g, x, &batch, 0, y, &e));
    sb = seq, sb.pages = NULL;
    REFUSED(fo_attend(b.s, &g, x, &batch, 0, y, &e));
    batch.seqs = NULL;
    REFUSED(fo_attend(b.s, &g, x, &batch, 0, y, &e));
    free(pool);
    close_bench(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multiplies_as_double_arithmetic_does),
        cmocka_unit_test(gives_the_same_bits_alone_batched_and_threaded),
        cmocka_unit_test(multiplies_several_matrices_of_mixed_types_at_once),
        cmocka_unit_test(fused_forms_give_the_bits_of_what_they_stand_for),
        cmocka_unit_test(lives_through_nan_and_infinity),
        cmocka_unit_test(looks_up_rows_of_every_type),
        cmocka_unit_test(normalises_adds_and_gates),
        cmocka_unit_test(adds_scaled_rows_where_they_belong),
        cmocka_unit_test(gates_extreme_values_without_surprise),
        cmocka_unit_test(rotates_pairs_and_halves),
        cmocka_unit_test(attends_as_double_arithmetic_does),
        cmocka_unit_test(attends_over_infinite_values_without_crashing),
        cmocka_unit_test(refuses_wrong_shapes),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
