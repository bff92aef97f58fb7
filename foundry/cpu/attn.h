/* The attention part of the kernel table, and what lies where in a page of KV. attend.c calls the slots; ref_attn.c defines them.
 *
 * A page holds K and then V of one head after the other, for each layer; a block below is the K or the V of one head in one page, `tokens`
 * positions of them. The quantised kinds keep the types' own blocks (32 dimensions, an f16 scale; Q4_0 with a step of its own, ref_attn.c), so their head_dim is
 * a multiple of 32, and their tokens are a multiple of 8 (fo_kv_block_tokens). G = fo_kv_group(tokens), 16 in every release build.
 *
 *     K  F32, F16   [tokens / G][head_dim][G]
 *        Q8_0       f16 d[head_dim / 32][tokens] | int8 [tokens / G][head_dim / 2][G][2]
 *        Q4_0       f16 d[head_dim / 32][tokens] | bytes [tokens / G][head_dim / 8][G][4], the low nibbles are dimensions 8i .. 8i + 3 and
 *                   the high ones 8i + 4 .. 8i + 7
 *     V  F32, F16   [tokens][head_dim]
 *        Q8_0       f16 d[head_dim / 32][tokens] | int8 [head_dim / 16][tokens / 2][16][2]
 *        Q4_0       f16 d[head_dim / 32][tokens] | 32 bits [head_dim / 16][tokens / 8][16]: of the eight tokens the even ones are
 *                   nibbles 0 to 3 and the odd ones nibbles 4 to 7, so that each shift leaves a pair in two 16-bit halves
 *
 * So a load of K holds the same dimensions of neighbouring positions, whose scores grow side by side without a horizontal sum; a load of
 * quantised V holds pairs of positions for a multiply that adds them. What is not yet stored may be anything. Q4_0 holds heads that
 * fo_hadamard has turned. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/dtype.h"

enum {
    FO_ATTN_HEADS = 4,  /* most queries that one call of an attention slot takes */
    FO_ATTN_CHUNK = 64, /* positions between two rescalings of the running softmax; chunk edges are multiples of it. Also the stride of scores */
    FO_KV_GROUP = 16
};

enum fo_kv_kind { FO_KV_KIND_F32, FO_KV_KIND_F16, FO_KV_KIND_Q8_0, FO_KV_KIND_Q4_0, FO_N_KV_KINDS };

static inline int fo_kv_group(int tokens) {
    return tokens % FO_KV_GROUP ? tokens : FO_KV_GROUP;
}

/* What a query becomes before it meets K of a kind, [fo_query_bytes]:
 *   F32, F16   float q[head_dim]
 *   Q8_0       int16 q[head_dim] | float d             q in [-32767, 32767]: the query is as good as exact
 *   Q4_0       int8 q[head_dim] | float d[head_dim / 32] | int16 start[head_dim / 32][2], -8 times the sum of the block's q in
 *              dimensions 4i, 4i + 1 and in dimensions 4i + 2, 4i + 3: what the unsigned nibbles are too large by
 * A query with a NaN or an infinity has q = 0 and d = NaN. */
static inline size_t fo_query_bytes(enum fo_kv_kind kind, int head_dim) {
    size_t n = (size_t)head_dim;
    size_t bytes = kind == FO_KV_KIND_Q8_0 ? 2 * n + sizeof(float) : kind == FO_KV_KIND_Q4_0 ? n + n / 4 : n * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

/* Positions [lo, hi) of a block. */
struct fo_kv_run {
    const void *block;
    int tokens; /* of the block */
    int lo, hi;
    int at;            /* the column of the scores that position lo has; at - lo is a multiple of G */
    const void *ahead; /* a block of the same shape that is read next, or NULL */
};

/* s[h][at + i - lo] = scale * q[h] . K[i] for h < n_q <= FO_ATTN_HEADS, q [n_q] queries of the kind's form, s [FO_ATTN_HEADS][FO_ATTN_CHUNK].
 * May also write the other columns of the groups that the run touches. */
typedef void fo_qk_fn(const void *q, int n_q, int head_dim, const struct fo_kv_run *k, float scale, float *s);
/* out[h] = r[h] * out[h] + the sum over i, in order, of s[h][at + i - lo] * V[i]; out [n_q][head_dim]. Quantised kinds round the products of
 * s and V's scale to 16 bits of (the largest s) * (the largest scale) of the run first, and then sum exactly. Nothing outside the run has a part in it. */
typedef void fo_pv_fn(const float *s, const float *r, int n_q, int head_dim, const struct fo_kv_run *v, float *out);

/* Overlays may take it that `tokens` is a multiple of FO_KV_GROUP: other pages (those of debug builds) are the reference's. A query's numbers do
 * not depend on the queries beside it. Tolerances: put and query are equal bit by bit; scores differ by FO_TOL_ROW * head_dim of the largest
 * |q||K|, and outputs by FO_TOL_ROW of the row's largest. */
struct fo_attn_kernels {
    /* Writes position `token` of a block from x [head_dim], and nothing else of it. */
    void (*put_k[FO_N_KV_KINDS])(const float *x, int head_dim, void *block, int tokens, int token);
    void (*put_v[FO_N_KV_KINDS])(const float *x, int head_dim, void *block, int tokens, int token);
    /* The other way, of a position that was stored. */
    void (*get_k[FO_N_KV_KINDS])(const void *block, int head_dim, int tokens, int token, float *ret_x);
    void (*get_v[FO_N_KV_KINDS])(const void *block, int head_dim, int tokens, int token, float *ret_x);
    void (*query[FO_N_KV_KINDS])(const float *x, int head_dim, void *ret_q);
    fo_qk_fn *qk[FO_N_KV_KINDS];
    /* One chunk of the running softmax, s [n_q][FO_ATTN_CHUNK] with -inf where nothing is visible: m = max(m, s), s = exp(s - m),
     * sum = sum * r + (sum of s) with r = exp(m before - m), which the output is to be multiplied by. m, sum and r are [n_q]. */
    void (*softmax)(float *s, int n_q, float *m, float *sum, float *ret_r);
    fo_pv_fn *pv[FO_N_KV_KINDS];
};

/* Whether K or V of a kind is stored turned by fo_hadamard: four bits hold a few large dimensions of a head badly, and of the turned head none is
 * large. Who stores turns; scores are those of a turned query, and outputs come out turned. */
static inline bool fo_kv_turned(enum fo_kv_kind kind) {
    return kind == FO_KV_KIND_Q4_0;
}

/* The steps that are tried for a turned block of Q4_0, before they are fitted: its largest value over these. */
enum { FO_KV_Q4_STEPS = 3 };
static const float fo_kv_q4_steps[FO_KV_Q4_STEPS] = { -8.0f, -8.5f, -9.0f };

/* x [head_dim] by the orthogonal Hadamard matrix, in blocks of the largest power of two that divides head_dim; twice is as if never, but for rounding. */
void fo_hadamard(float *x, int head_dim);

/* x [n], whole heads, becomes what KV of the type (F32, F16, Q8_0 or Q4_0) keeps of it: what a page's reader would see, turned back. */
void fo_kv_keep(enum fo_dtype type, float *x, size_t n, int head_dim);

/* e^x as the reference computes it: see ref.c. */
float fo_ref_exp(float x);
