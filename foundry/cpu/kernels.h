/* The CPU's kernels as one flat table. ref.c fills every slot in plain C and is the definition of each; an overlay (sse.c, avx2.c,
 * avx512.c; neon.c, dotprod.c) then overwrites the slots that it does better, so a missing kernel is slow, never absent. A slot is pure: it allocates nothing, keeps
 * nothing, may run on any thread, and trusts the shapes that ops.h checked.
 *
 * THE rule of every dot slot: an output depends only on its own row of weights and its own row of activations. A kernel may unpack
 * weights once for several rows of activations, but each of these sees the same operations in the same order as if it were alone.
 * So a token's numbers do not change with its batch mates, the prefill chunk, or the number of threads.
 *
 * Tolerances, overlay against reference (tests/foundry/test_kernels.c): conversions and quantisers are equal bit by bit; a dot
 * differs by at most FO_TOL_DOT * sum(|w * x|) over the same converted activations, for only the order of float additions differs; the
 * others by FO_TOL_ROW relative to the largest output of the row. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/cpu/attn.h"
#include "foundry/dtype.h"

struct fo_err;
struct fo_rope;

#define FO_TOL_DOT 1e-6f
#define FO_TOL_ROW 2e-6f

enum { FO_TILE = 4 /* most activation rows that one call of a dot slot takes */ };

/* A batch of activations as the dots want them. In type FO_F32 they are the caller's x. Else each row is one piece of `row_bytes`:
 *   FO_Q8_0   int8 q[k padded to 256] | int8 p[the same] | float d[one a 32] | float s[one a 32]
 *             s = d * sum of the block's q; p is q with the blocks in fours, the first halves of all and then the second halves, as
 *             the nibbles of two or four blocks of weights fall out of a register
 *   FO_Q8_K   int8 q[k]               | int16 sum16[one a 16] | int16 sum32[one a 32] | float d[one a 256]
 * d is the scale; q is in [-127, 127], never -128 (the sums of products then fit 16 bits where a kernel relies on it). The padding is
 * zeros with scale 0. A block with a NaN or an infinity has q = 0 and d = NaN: what follows is NaN and nothing is undefined. */
struct fo_act {
    enum fo_dtype type;
    int64_t k;
    const float *x; /* [n][k], FO_F32 only */
    unsigned char *rows;
    size_t row_bytes;
};

struct fo_act_q8_0 {
    int8_t *q, *p;
    float *d, *s;
};
struct fo_act_q8_k {
    int8_t *q;
    int16_t *sum16, *sum32;
    float *d;
};

static inline int64_t fo_act_padded(int64_t k) {
    return (k + 255) / 256 * 256;
}

/* Where the first half of block b is in p. The second lies FO_ACT_HALF behind it. */
enum { FO_ACT_HALF = 64 };
static inline int64_t fo_act_place(int64_t b) {
    return b / 4 * 128 + b % 4 * 16;
}

/* Bytes of one row of k activations, a multiple of 64. */
static inline size_t fo_act_row_bytes(enum fo_dtype type, int64_t k) {
    size_t blocks = (size_t)fo_act_padded(k) / 256;
    return type == FO_F32 ? 0 : type == FO_Q8_0 ? blocks * (256 + 256 + 64) : (blocks * (256 + 32 + 16 + 4) + 63) / 64 * 64;
}

static inline struct fo_act_q8_0 fo_act_q8_0(const struct fo_act *a, int64_t t) {
    unsigned char *p = a->rows + (size_t)t * a->row_bytes;
    int64_t kp = fo_act_padded(a->k);
    float *d = (float *)(void *)(p + 2 * kp);
    return (struct fo_act_q8_0){ .q = (int8_t *)p, .p = (int8_t *)p + kp, .d = d, .s = d + kp / 32 };
}

/* Zeros behind the last block of a row. */
static inline void fo_act_pad(struct fo_act_q8_0 out, int64_t k) {
    int64_t padded = fo_act_padded(k);
    for (int64_t b = k / 32; b < padded / 32; b++) {
        out.d[b] = out.s[b] = 0;
        for (int i = 0; i < 32; i++) out.q[b * 32 + i] = out.p[fo_act_place(b) + i / 16 * FO_ACT_HALF + i % 16] = 0;
    }
}

static inline struct fo_act_q8_k fo_act_q8_k(const struct fo_act *a, int64_t t) {
    unsigned char *p = a->rows + (size_t)t * a->row_bytes;
    int16_t *sums = (int16_t *)(void *)(p + a->k);
    return (struct fo_act_q8_k){ .q = (int8_t *)p, .sum16 = sums, .sum32 = sums + a->k / 16, .d = (float *)(void *)(sums + a->k / 16 + a->k / 32) };
}

/* The scale of a block of activations whose largest magnitude is `max` (NaN: one is not finite); x * *ret_inv rounds to q. Magnitudes
 * so small that 127 / max would overflow count as zero. *ret_inv == 0 means q = 0 throughout. */
static inline float fo_act_scale(float max, float *ret_inv) {
    bool tiny = max < 1e-30f;
    *ret_inv = tiny || max != max ? 0.0f : 127.0f / max;
    return tiny ? 0.0f : max / 127.0f;
}

/* y[j][r] = dot(row r of w, row t + j of a) for r < n_rows and j < n_t <= FO_TILE; y's rows are y_stride floats apart. */
typedef void fo_dot_fn(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, int n_t, float *y,
                       size_t y_stride);

/* A batch: y[j][r] for r < n_rows and j < n, bit for bit what the dot of the same type gives. `scratch` is the thread's own,
 * fo_gemm_scratch_bytes(k) aligned to 64. For batches that repay unpacking the weights into another order first. */
typedef void fo_gemm_fn(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int n, float *y, size_t y_stride,
                        void *scratch);

enum {
    FO_GEMM_FROM = 4,            /* from so many rows of activations on, unpacking the weights for a batch pays, if the type has no other number */
    FO_GEMM_TOKENS = 128,        /* most rows of activations that a gemm of avx2 or avx512 serves with one unpacking of the weights */
    FO_GEMM_FIXED_BYTES = 151552, /* of scratch, */
    FO_GEMM_BYTES = 8832         /* and for every 256 columns */
};

static inline uint64_t fo_gemm_scratch_bytes(int64_t k) {
    return FO_GEMM_FIXED_BYTES + (uint64_t)fo_act_padded(k) / 256 * FO_GEMM_BYTES;
}

struct fo_cpu_kernels {
    const char *isa;
    /* Activations: one row of k floats into its place. k is a multiple of 32 (Q8_0) or 256 (Q8_K). */
    void (*quant_q8_0)(const float *x, int64_t k, struct fo_act_q8_0 out);
    void (*quant_q8_k)(const float *x, int64_t k, struct fo_act_q8_k out);
    fo_dot_fn *dot[FO_N_DTYPES]; /* by weight type; NULL = the row is dequantised and goes through dot[FO_F32] */

    fo_gemm_fn *gemm[FO_N_DTYPES]; /* by weight type; NULL = the dot serves */
    int gemm_from[FO_N_DTYPES];    /* rows of activations from which on it pays; 0 = FO_GEMM_FROM */

    void (*rms_norm)(const float *x, const float *weight, int64_t k, float eps, float *out);
    void (*add)(const float *a, const float *b, int64_t k, float *out);
    void (*silu_mul)(const float *gate, const float *up, int64_t k, float *out);
    /* cos and sin are [n_rot / 2], for one position, attn_factor included; x is [n_head][head_dim]. */
    void (*rope)(float *x, int n_head, const struct fo_rope *r, const float *cosine, const float *sine);

    void (*scale)(float *x, int64_t n, float by);
    struct fo_attn_kernels attn;
};

/* Fills every slot but the dots of types that no file's weights have. */
void fo_cpu_ref(struct fo_cpu_kernels *k);
void fo_cpu_ref_dots(struct fo_cpu_kernels *k); /* the part of fo_cpu_ref in ref_dots.c */
void fo_cpu_ref_attn(struct fo_attn_kernels *k); /* and in ref_attn.c */
/* Overwrite slots; false when this build has no such overlay (another architecture). Whether the CPU has it is the caller's to ask. */
bool fo_cpu_sse(struct fo_cpu_kernels *k);
void fo_cpu_sse_legacy(struct fo_cpu_kernels *k); /* the parts of fo_cpu_sse in sse_legacy.c and so on */
void fo_cpu_sse_k(struct fo_cpu_kernels *k);
void fo_cpu_sse_iq(struct fo_cpu_kernels *k);
void fo_cpu_sse_gemm(struct fo_cpu_kernels *k);
void fo_cpu_sse_rows(struct fo_cpu_kernels *k);
void fo_cpu_sse_attn(struct fo_attn_kernels *k);
bool fo_cpu_avx2(struct fo_cpu_kernels *k);
void fo_cpu_avx2_legacy(struct fo_cpu_kernels *k); /* the parts of fo_cpu_avx2 in avx2_legacy.c and so on */
void fo_cpu_avx2_k(struct fo_cpu_kernels *k);
void fo_cpu_avx2_iq(struct fo_cpu_kernels *k);
void fo_cpu_avx2_gemm(struct fo_cpu_kernels *k);
void fo_cpu_avx2_gemm_k(struct fo_cpu_kernels *k);
void fo_cpu_avx2_gemm_iq(struct fo_cpu_kernels *k);
void fo_cpu_avx2_gemm_f(struct fo_cpu_kernels *k);
void fo_cpu_avx2_rows(struct fo_cpu_kernels *k);
void fo_cpu_avx2_attn(struct fo_attn_kernels *k);
bool fo_cpu_avx512(struct fo_cpu_kernels *k);
void fo_cpu_avx512_legacy(struct fo_cpu_kernels *k); /* the parts of fo_cpu_avx512, likewise */
void fo_cpu_avx512_k(struct fo_cpu_kernels *k);
void fo_cpu_avx512_gemm(struct fo_cpu_kernels *k);
void fo_cpu_avx512_gemm_k(struct fo_cpu_kernels *k);
void fo_cpu_avx512_attn(struct fo_attn_kernels *k);
bool fo_cpu_neon(struct fo_cpu_kernels *k);
void fo_cpu_neon_rows(struct fo_cpu_kernels *k); /* the parts of fo_cpu_neon in neon_rows.c and so on */
void fo_cpu_neon_attn(struct fo_attn_kernels *k);
bool fo_cpu_dotprod(struct fo_cpu_kernels *k);

/* OpenBLAS over the best table, in builds with USE_BLAS=1; blas.c says why by name alone. FO_EUNSUPPORTED: another build, or no library. */
int fo_cpu_blas(struct fo_cpu_kernels *k, struct fo_err *e);

/* The table for "scalar", an overlay by name or "blas", or the best for NULL and "auto". FO_EUNSUPPORTED names what this CPU lacks. */
int fo_cpu_kernels_for(const char *isa, struct fo_cpu_kernels *ret, struct fo_err *e);
/* The name of overlay i, from 0 on, whatever this CPU has; NULL behind the last. */
const char *fo_cpu_overlay(int i);

/* The backend's row in device.c. */
struct fo_die;
struct fo_device;
struct fo_device_opts;
int fo_cpu_probe(struct fo_die *ret, int cap, char *why, size_t why_size);
int fo_cpu_open(const char *address, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e);
const char *fo_cpu_isa(const struct fo_device *d);
