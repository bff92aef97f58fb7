/* Attention in plain C: the definition of every kind of KV, of blocks of any number of tokens. What is fixed:
 *   scores       F32, F16: element i is added to lane i % 32, the lanes are folded in halves (see ref.c). Quantised: a block's products are
 *                summed in integers; each block is then one float product added to the running sum of its score, in order.
 *   outputs      F32, F16: position by position. Quantised: in integers over a run of positions, then one float product.
 *   softmax      the sum of a chunk in order of positions, exp is fo_ref_exp. */
#include <math.h>
#include <string.h>

#include "foundry/cpu/kernels.h"
#include "foundry/quant.h"

enum { LANES = 32, BLOCK = 32 };

/* Sums and differences of what lies 1 and 2 apart, then of ever larger distances, in the same order on every CPU. */
void fo_hadamard(float *x, int head_dim) {
    const int n = head_dim & -head_dim;
    const float by = 1.0f / sqrtf((float)n);
    int h = 1;
    if (n >= 4)
        for (int i = 0; i < head_dim; i += 4, h = 4) {
            float a = x[i] + x[i + 1], b = x[i] - x[i + 1], c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];
            x[i] = (a + c) * by;
            x[i + 1] = (b + d) * by;
            x[i + 2] = (a - c) * by;
            x[i + 3] = (b - d) * by;
        }
    for (; h >= 4 && h < n; h *= 2)
        for (int i = 0; i < head_dim; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}

/* --- where things lie: attn.h ---------------------------------------------------------------------------------------------------- */

/* Element of dimension d and position t. */
static size_t k_at(int head_dim, int tokens, int t, int d) {
    int g = fo_kv_group(tokens);
    return ((size_t)(t / g) * (size_t)head_dim + (size_t)d) * (size_t)g + (size_t)(t % g);
}

static uint16_t *scale_at(const void *block, int tokens, int t, int b) {
    return (uint16_t *)(uintptr_t)block + (size_t)b * (size_t)tokens + (size_t)t;
}

static unsigned char *quants(const void *block, int head_dim, int tokens) {
    return (unsigned char *)(uintptr_t)block + (size_t)head_dim / BLOCK * (size_t)tokens * sizeof(uint16_t);
}

static int8_t *k_q8(const void *block, int head_dim, int tokens, int t, int d) {
    int g = fo_kv_group(tokens);
    return (int8_t *)quants(block, head_dim, tokens) + (((size_t)(t / g) * (size_t)(head_dim / 2) + (size_t)(d / 2)) * (size_t)g + (size_t)(t % g)) * 2 + (size_t)(d % 2);
}

static int8_t *v_q8(const void *block, int head_dim, int tokens, int t, int d) {
    return (int8_t *)quants(block, head_dim, tokens) + (((size_t)(d / 16) * (size_t)(tokens / 2) + (size_t)(t / 2)) * 16 + (size_t)(d % 16)) * 2 + (size_t)(t % 2);
}

/* Bytes with a nibble, and by how much it is shifted in it. */
static uint8_t *k_q4(const void *block, int head_dim, int tokens, int t, int d, int *ret_shift) {
    int g = fo_kv_group(tokens);
    *ret_shift = d % 8 / 4 * 4;
    return quants(block, head_dim, tokens) + (((size_t)(t / g) * (size_t)(head_dim / 8) + (size_t)(d / 8)) * (size_t)g + (size_t)(t % g)) * 4 + (size_t)(d % 4);
}

static uint8_t *v_q4(const void *block, int head_dim, int tokens, int t, int d, int *ret_shift) {
    int nibble = t % 2 * 4 + t % 8 / 2;
    *ret_shift = nibble % 2 * 4;
    return quants(block, head_dim, tokens) + (((size_t)(d / 16) * (size_t)(tokens / 8) + (size_t)(t / 8)) * 16 + (size_t)(d % 16)) * 4 + (size_t)(nibble / 2);
}

static int nibble(const uint8_t *p, int shift) {
    return *p >> shift & 15;
}

static void put_nibble(uint8_t *p, int shift, int q) {
    *p = (uint8_t)((*p & ~(15 << shift)) | q << shift);
}

/* --- storing --------------------------------------------------------------------------------------------------------------------- */

static void put_k_f32(const float *x, int head_dim, void *block, int tokens, int token) {
    float *out = block;
    for (int d = 0; d < head_dim; d++) out[k_at(head_dim, tokens, token, d)] = x[d];
}

static void put_k_f16(const float *x, int head_dim, void *block, int tokens, int token) {
    uint16_t *out = block;
    for (int d = 0; d < head_dim; d++) out[k_at(head_dim, tokens, token, d)] = fo_f32_to_f16(x[d]);
}

static void put_v_f32(const float *x, int head_dim, void *block, int tokens, int token) {
    (void)tokens;
    memcpy((float *)block + (size_t)token * (size_t)head_dim, x, (size_t)head_dim * sizeof *x);
}

static void put_v_f16(const float *x, int head_dim, void *block, int tokens, int token) {
    (void)tokens;
    uint16_t *out = (uint16_t *)block + (size_t)token * (size_t)head_dim;
    for (int d = 0; d < head_dim; d++) out[d] = fo_f32_to_f16(x[d]);
}

static void put_q8(const float *x, int head_dim, void *block, int tokens, int token, int8_t *at(const void *, int, int, int, int)) {
    for (int b = 0; b < head_dim / BLOCK; b++) {
        struct fo_block_q8_0 q;
        fo_q8_0_from_f32(x + b * BLOCK, &q, BLOCK);
        *scale_at(block, tokens, token, b) = q.d;
        for (int i = 0; i < BLOCK; i++) *at(block, head_dim, tokens, token, b * BLOCK + i) = q.qs[i];
    }
}

static void put_k_q8(const float *x, int head_dim, void *block, int tokens, int token) {
    put_q8(x, head_dim, block, tokens, token, k_q8);
}

static void put_v_q8(const float *x, int head_dim, void *block, int tokens, int token) {
    put_q8(x, head_dim, block, tokens, token, v_q8);
}

/* A block of turned values in Q4_0's bytes. Where weights take their step of the largest value (fo_q4_0_from_f32), three steps are tried here, each
 * fitted to its quants in the least squares, and the one is kept that is nearest to the values: of what is nearly normal a tenth less is lost.
 * Sums are in an order that eight lanes can keep. */
static void turned_q4(const float *x, struct fo_block_q4_0 *ret) {
    float top = fo_abs_max(x, BLOCK), extreme = 0, best = -1;
    *ret = (struct fo_block_q4_0){ .d = fo_f32_to_f16(NAN) };
    if (!isfinite(top)) return;
    for (int i = BLOCK - 1; i >= 0; i--)
        if (fabsf(x[i]) == top) extreme = x[i];
    for (int c = 0; c < FO_KV_Q4_STEPS; c++) {
        struct fo_block_q4_0 b = { .d = 0 };
        float step = extreme / fo_kv_q4_steps[c], inv = fo_inverse(step), sums[8] = { 0 };
        int squares = 0;
        for (int i = 0; i < BLOCK; i++) {
            int q = (int)(x[i] * inv + 8.5f);
            q = q < 0 ? 0 : q > 15 ? 15 : q;
            b.qs[i % 16] |= (uint8_t)(q << i / 16 * 4);
            sums[i % 8] += x[i] * (float)(q - 8);
            squares += (q - 8) * (q - 8);
        }
        for (int n = 4; n > 0; n /= 2)
            for (int i = 0; i < n; i++) sums[i] += sums[i + n];
        float fitted = squares > 0 ? sums[0] / (float)squares : step, nearness = sums[0] * fitted;
        b.d = fo_f32_to_f16(fitted);
        if (nearness > best) best = nearness, *ret = b;
    }
}

void fo_kv_keep(enum fo_dtype type, float *x, size_t n, int head_dim) {
    const struct fo_dtype_info *info = fo_dtype_info(type);
    struct fo_block_q4_0 turned;
    float rounded[BLOCK];
    if (type == FO_Q4_0)
        for (float *at = x; at < x + n; at += head_dim) {
            fo_hadamard(at, head_dim);
            for (int i = 0; i < head_dim; i += BLOCK) {
                turned_q4(at + i, &turned);
                fo_q4_0_to_f32(&turned, at + i, BLOCK);
            }
            fo_hadamard(at, head_dim);
        }
    else if (type != FO_F32)
        for (size_t i = 0; i < n; i += BLOCK) {
            size_t some = n - i < BLOCK ? n - i : BLOCK;
            info->from_f32(x + i, rounded, some);
            info->to_f32(rounded, x + i, some);
        }
}

static void put_q4(const float *x, int head_dim, void *block, int tokens, int token, uint8_t *at(const void *, int, int, int, int, int *)) {
    for (int b = 0; b < head_dim / BLOCK; b++) {
        struct fo_block_q4_0 q;
        turned_q4(x + b * BLOCK, &q);
        *scale_at(block, tokens, token, b) = q.d;
        for (int i = 0; i < BLOCK; i++) {
            int shift;
            uint8_t *p = at(block, head_dim, tokens, token, b * BLOCK + i, &shift);
            put_nibble(p, shift, q.qs[i % 16] >> i / 16 * 4 & 15);
        }
    }
}

static void put_k_q4(const float *x, int head_dim, void *block, int tokens, int token) {
    put_q4(x, head_dim, block, tokens, token, k_q4);
}

static void put_v_q4(const float *x, int head_dim, void *block, int tokens, int token) {
    put_q4(x, head_dim, block, tokens, token, v_q4);
}

/* --- reading what was stored ----------------------------------------------------------------------------------------------------- */

static void get_k_f32(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    for (int d = 0; d < head_dim; d++) ret_x[d] = ((const float *)block)[k_at(head_dim, tokens, token, d)];
}

static void get_k_f16(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    for (int d = 0; d < head_dim; d++) ret_x[d] = fo_f16_to_f32(((const uint16_t *)block)[k_at(head_dim, tokens, token, d)]);
}

static void get_v_f32(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    (void)tokens;
    memcpy(ret_x, (const float *)block + (size_t)token * (size_t)head_dim, (size_t)head_dim * sizeof *ret_x);
}

static void get_v_f16(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    (void)tokens;
    for (int d = 0; d < head_dim; d++) ret_x[d] = fo_f16_to_f32(((const uint16_t *)block)[(size_t)token * (size_t)head_dim + (size_t)d]);
}

static void get_k_q8(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    for (int d = 0; d < head_dim; d++)
        ret_x[d] = fo_f16_to_f32(*scale_at(block, tokens, token, d / BLOCK)) * (float)*k_q8(block, head_dim, tokens, token, d);
}

static void get_v_q8(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    for (int d = 0; d < head_dim; d++)
        ret_x[d] = fo_f16_to_f32(*scale_at(block, tokens, token, d / BLOCK)) * (float)*v_q8(block, head_dim, tokens, token, d);
}

static void get_q4(const void *block, int head_dim, int tokens, int token, float *ret_x, uint8_t *at(const void *, int, int, int, int, int *)) {
    for (int d = 0, shift; d < head_dim; d++) {
        const uint8_t *p = at(block, head_dim, tokens, token, d, &shift);
        ret_x[d] = fo_f16_to_f32(*scale_at(block, tokens, token, d / BLOCK)) * (float)(nibble(p, shift) - 8);
    }
}

static void get_k_q4(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    get_q4(block, head_dim, tokens, token, ret_x, k_q4);
}

static void get_v_q4(const void *block, int head_dim, int tokens, int token, float *ret_x) {
    get_q4(block, head_dim, tokens, token, ret_x, v_q4);
}

/* --- queries --------------------------------------------------------------------------------------------------------------------- */

/* The step in which the largest of n floats becomes `top`, and by what the others are multiplied; NaN and 0 where one is not finite. */
static float step(const float *x, int n, float top, float *ret_inv) {
    float max = fo_abs_max(x, n);
    bool tiny = max < 1e-30f;
    *ret_inv = tiny || max != max ? 0.0f : top / max;
    return tiny ? 0.0f : max / top;
}

/* x * inv to the nearest integer, ties to even; 0 for inv = 0. |x * inv| is below 2^22. */
static int round_by(float x, float inv) {
    float shifted = inv != 0.0f ? x * inv + 12582912.0f : 12582912.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (int)(bits - 0x4B400000);
}

static void query_float(const float *x, int head_dim, void *ret_q) {
    memcpy(ret_q, x, (size_t)head_dim * sizeof *x);
}

static void query_q8(const float *x, int head_dim, void *ret_q) {
    int16_t *q = ret_q;
    float inv, *d = (float *)(void *)(q + head_dim);
    *d = step(x, head_dim, 32767, &inv);
    for (int i = 0; i < head_dim; i++) q[i] = (int16_t)round_by(x[i], inv);
}

static void query_q4(const float *x, int head_dim, void *ret_q) {
    int8_t *q = ret_q;
    float inv, *d = (float *)(void *)(q + head_dim);
    int16_t *start = (int16_t *)(void *)(d + head_dim / BLOCK);
    for (int b = 0; b < head_dim / BLOCK; b++) {
        d[b] = step(x + b * BLOCK, BLOCK, 127, &inv);
        int sum[2] = { 0 };
        for (int i = 0; i < BLOCK; i++) {
            int v = round_by(x[b * BLOCK + i], inv);
            q[b * BLOCK + i] = (int8_t)v;
            sum[i % 4 / 2] += v;
        }
        for (int i = 0; i < 2; i++) start[2 * b + i] = (int16_t)(-8 * sum[i]);
    }
}

/* --- scores ---------------------------------------------------------------------------------------------------------------------- */

static float fold(float *lane) {
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

static void qk_f32(const void *q, int n_q, int head_dim, const struct fo_kv_run *k, float scale, float *s) {
    const float *in = k->block;
    for (int h = 0; h < n_q; h++) {
        const float *x = (const float *)(const void *)((const char *)q + (size_t)h * fo_query_bytes(FO_KV_KIND_F32, head_dim));
        for (int t = k->lo; t < k->hi; t++) {
            float lane[LANES] = { 0 };
            for (int d = 0; d < head_dim; d++) lane[d % LANES] += x[d] * in[k_at(head_dim, k->tokens, t, d)];
            s[h * FO_ATTN_CHUNK + k->at + t - k->lo] = scale * fold(lane);
        }
    }
}

static void qk_f16(const void *q, int n_q, int head_dim, const struct fo_kv_run *k, float scale, float *s) {
    const uint16_t *in = k->block;
    for (int h = 0; h < n_q; h++) {
        const float *x = (const float *)(const void *)((const char *)q + (size_t)h * fo_query_bytes(FO_KV_KIND_F16, head_dim));
        for (int t = k->lo; t < k->hi; t++) {
            float lane[LANES] = { 0 };
            for (int d = 0; d < head_dim; d++) lane[d % LANES] += x[d] * fo_f16_to_f32(in[k_at(head_dim, k->tokens, t, d)]);
            s[h * FO_ATTN_CHUNK + k->at + t - k->lo] = scale * fold(lane);
        }
    }
}

static void qk_q8(const void *q, int n_q, int head_dim, const struct fo_kv_run *k, float scale, float *s) {
    for (int h = 0; h < n_q; h++) {
        const int16_t *x = (const int16_t *)(const void *)((const char *)q + (size_t)h * fo_query_bytes(FO_KV_KIND_Q8_0, head_dim));
        float x_d = *(const float *)(const void *)(x + head_dim);
        for (int t = k->lo; t < k->hi; t++) {
            float sum = 0;
            for (int b = 0; b < head_dim / BLOCK; b++) {
                int total = 0;
                for (int d = b * BLOCK; d < (b + 1) * BLOCK; d++) total += x[d] * *k_q8(k->block, head_dim, k->tokens, t, d);
                sum += fo_f16_to_f32(*scale_at(k->block, k->tokens, t, b)) * (float)total;
            }
            s[h * FO_ATTN_CHUNK + k->at + t - k->lo] = scale * x_d * sum;
        }
    }
}

static void qk_q4(const void *q, int n_q, int head_dim, const struct fo_kv_run *k, float scale, float *s) {
    for (int h = 0; h < n_q; h++) {
        const int8_t *x = (const int8_t *)q + (size_t)h * fo_query_bytes(FO_KV_KIND_Q4_0, head_dim);
        const float *x_d = (const float *)(const void *)(x + head_dim);
        for (int t = k->lo; t < k->hi; t++) {
            float sum = 0;
            for (int b = 0; b < head_dim / BLOCK; b++) {
                int total = 0, shift;
                for (int d = b * BLOCK; d < (b + 1) * BLOCK; d++) {
                    const uint8_t *p = k_q4(k->block, head_dim, k->tokens, t, d, &shift);
                    total += x[d] * (nibble(p, shift) - 8);
                }
                sum += fo_f16_to_f32(*scale_at(k->block, k->tokens, t, b)) * x_d[b] * (float)total;
            }
            s[h * FO_ATTN_CHUNK + k->at + t - k->lo] = scale * sum;
        }
    }
}

static void softmax(float *s, int n_q, float *m, float *sum, float *ret_r) {
    for (int h = 0; h < n_q; h++, s += FO_ATTN_CHUNK) {
        float top = m[h], total = 0;
        for (int i = 0; i < FO_ATTN_CHUNK; i++) top = s[i] > top ? s[i] : top;
        for (int i = 0; i < FO_ATTN_CHUNK; i++) {
            s[i] = fo_ref_exp(s[i] - top);
            total += s[i];
        }
        ret_r[h] = fo_ref_exp(m[h] - top);
        sum[h] = sum[h] * ret_r[h] + total;
        m[h] = top;
    }
}

/* --- outputs --------------------------------------------------------------------------------------------------------------------- */

static void rescale(float *out, const float *r, int n_q, int head_dim) {
    for (int h = 0; h < n_q; h++)
        for (int d = 0; d < head_dim; d++) out[h * head_dim + d] *= r[h];
}

static void pv_f32(const float *s, const float *r, int n_q, int head_dim, const struct fo_kv_run *v, float *out) {
    const float *in = v->block;
    rescale(out, r, n_q, head_dim);
    for (int t = v->lo; t < v->hi; t++)
        for (int h = 0; h < n_q; h++)
            for (int d = 0; d < head_dim; d++)
                out[h * head_dim + d] += s[h * FO_ATTN_CHUNK + v->at + t - v->lo] * in[(size_t)t * (size_t)head_dim + (size_t)d];
}

static void pv_f16(const float *s, const float *r, int n_q, int head_dim, const struct fo_kv_run *v, float *out) {
    const uint16_t *in = v->block;
    rescale(out, r, n_q, head_dim);
    for (int t = v->lo; t < v->hi; t++)
        for (int d = 0; d < head_dim; d++) {
            float x = fo_f16_to_f32(in[(size_t)t * (size_t)head_dim + (size_t)d]);
            for (int h = 0; h < n_q; h++) out[h * head_dim + d] += s[h * FO_ATTN_CHUNK + v->at + t - v->lo] * x;
        }
}

/* x [n] becomes shares of `top`; returns the largest magnitude, NaN where one is not finite (the shares are zeros then). */
static float to_shares(float *x, int n, float top) {
    float max = fo_abs_max(x, n), inv;
    step(x, n, top, &inv);
    for (int i = 0; i < n; i++) x[i] = inv != 0.0f ? x[i] * inv : 0.0f;
    return inv == 0.0f && max == max ? 0.0f : max;
}

/* The weights of a run's positions, times V's scales, in 16 bits: products of shares, so that neither maximum is looked for twice. Returns their
 * step. */
static float weights(const float *s, const struct fo_kv_run *v, int b, int *w) {
    float p[FO_ATTN_CHUNK], d[FO_ATTN_CHUNK];
    int n = v->hi - v->lo;
    for (int i = 0; i < n; i++) p[i] = s[v->at + i], d[i] = fo_f16_to_f32(*scale_at(v->block, v->tokens, v->lo + i, b));
    float p_max = to_shares(p, n, 32767), d_max = to_shares(d, n, 1);
    for (int i = 0; i < n; i++) w[i] = round_by(p[i], d[i]);
    return p_max * d_max / 32767.0f;
}

static void pv_q8(const float *s, const float *r, int n_q, int head_dim, const struct fo_kv_run *v, float *out) {
    int w[FO_ATTN_CHUNK];
    for (int h = 0; h < n_q; h++)
        for (int b = 0; b < head_dim / BLOCK; b++) {
            float d = weights(s + h * FO_ATTN_CHUNK, v, b, w);
            for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
                int sum = 0;
                for (int t = v->lo; t < v->hi; t++) sum += w[t - v->lo] * *v_q8(v->block, head_dim, v->tokens, t, i);
                out[h * head_dim + i] = out[h * head_dim + i] * r[h] + d * (float)sum;
            }
        }
}

static void pv_q4(const float *s, const float *r, int n_q, int head_dim, const struct fo_kv_run *v, float *out) {
    int w[FO_ATTN_CHUNK];
    for (int h = 0; h < n_q; h++)
        for (int b = 0; b < head_dim / BLOCK; b++) {
            float d = weights(s + h * FO_ATTN_CHUNK, v, b, w);
            for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
                int sum = 0, shift;
                for (int t = v->lo; t < v->hi; t++) {
                    const uint8_t *p = v_q4(v->block, head_dim, v->tokens, t, i, &shift);
                    sum += w[t - v->lo] * (nibble(p, shift) - 8);
                }
                out[h * head_dim + i] = out[h * head_dim + i] * r[h] + d * (float)sum;
            }
        }
}

void fo_cpu_ref_attn(struct fo_attn_kernels *k) {
    *k = (struct fo_attn_kernels){
        .put_k = { put_k_f32, put_k_f16, put_k_q8, put_k_q4 },
        .put_v = { put_v_f32, put_v_f16, put_v_q8, put_v_q4 },
        .get_k = { get_k_f32, get_k_f16, get_k_q8, get_k_q4 },
        .get_v = { get_v_f32, get_v_f16, get_v_q8, get_v_q4 },
        .query = { query_float, query_float, query_q8, query_q4 },
        .qk = { qk_f32, qk_f16, qk_q8, qk_q4 },
        .softmax = softmax,
        .pv = { pv_f32, pv_f16, pv_q8, pv_q4 },
    };
}
