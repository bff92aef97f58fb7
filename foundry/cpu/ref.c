/* Every kernel in plain C: the specification that overlays and devices are measured against, and in exact mode the arithmetic itself.
 *
 * What is fixed here, so that another device can give the same bits:
 *   float sums   element i is added to lane i % 32, in order of i, product and sum rounded apart; the 32 lanes are then folded in halves
 *                (lane l += lane l + 16, then 8, 4, 2, 1). A warp of 32 threads does this naturally, and so does SSE.
 *   quantised    a block's products are summed in integers, exactly; each block is then one float product added to the running sum of
 *   dots         its row, in order.
 *   exp          fo_ref_exp below, made of float additions and products only.
 *   attention    see ref_attn.c and attend.c. */
#include <math.h>
#include <string.h>

#include "foundry/cpu/kernels.h"
#include "foundry/ops.h"
#include "foundry/quant.h"

enum { LANES = 32 };

static float fold(float *lane) {
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

static float dot_f32(const float *a, const float *b, int64_t k) {
    float lane[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l];
    for (int l = 0; i + l < k; l++) lane[l] += a[i + l] * b[i + l];
    return fold(lane);
}

/* e^x to about 1.5 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor to degree 7, times 2^n. 0 below the smallest normal number, a
 * large finite number above 2^127.5; NaN stays NaN. */
float fo_ref_exp(float x) {
    if (x < -87.33f) return 0.0f;
    if (x > 88.37f) x = 88.37f;
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f; /* 1.5 * 2^23: rounds to an integer in the low bits */
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* the bits above the exponent fall out */
    float two_n;
    memcpy(&two_n, &bits, sizeof two_n);
    return p * two_n;
}

/* --- activations --------------------------------------------------------------------------------------------------------------- */

static int act_round(float x, float inv) {
    float shifted = inv != 0.0f ? x * inv + 12582912.0f : 12582912.0f; /* nearest, ties to even; NaN * 0 never gets here */
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (int)(bits - 0x4B400000);
}

static void quant_q8_0(const float *x, int64_t k, struct fo_act_q8_0 out) {
    for (int64_t b = 0; b < k / 32; b++) {
        float inv, d = fo_act_scale(fo_abs_max(x + b * 32, 32), &inv);
        int sum = 0;
        for (int i = 0; i < 32; i++) {
            int q = act_round(x[b * 32 + i], inv);
            out.q[b * 32 + i] = out.p[fo_act_place(b) + i / 16 * FO_ACT_HALF + i % 16] = (int8_t)q;
            sum += q;
        }
        out.d[b] = d;
        out.s[b] = d * (float)sum;
    }
    fo_act_pad(out, k);
}

static void quant_q8_k(const float *x, int64_t k, struct fo_act_q8_k out) {
    for (int64_t b = 0; b < k / 256; b++) {
        float inv;
        out.d[b] = fo_act_scale(fo_abs_max(x + b * 256, 256), &inv);
        for (int64_t j = b * 16; j < b * 16 + 16; j++) {
            int sum = 0;
            for (int64_t i = j * 16; i < j * 16 + 16; i++) {
                int q = act_round(x[i], inv);
                out.q[i] = (int8_t)q;
                sum += q;
            }
            out.sum16[j] = (int16_t)sum;
        }
        for (int64_t j = b * 8; j < b * 8 + 8; j++) out.sum32[j] = (int16_t)(out.sum16[2 * j] + out.sum16[2 * j + 1]);
    }
}

/* --- dots ---------------------------------------------------------------------------------------------------------------------- */

/* A dot slot from a function on one row of weights and one of activations. */
#define DOT_SLOT(name, row)                                                                                                              \
    static void name(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, int n_t, float *y,   \
                     size_t y_stride) {                                                                                                  \
        for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes)                                                                           \
            for (int j = 0; j < n_t; j++) y[(size_t)j * y_stride + (size_t)r] = row(w, a, t + j);                                        \
    }

static float row_f32(const unsigned char *w, const struct fo_act *a, int64_t t) {
    return dot_f32((const float *)(const void *)w, a->x + t * a->k, a->k);
}
DOT_SLOT(dot_f32_rows, row_f32)

/* Both 16-bit types: the definition's own conversion, then the order of dot_f32. */
static float row_16bit(const unsigned char *w, const struct fo_act *a, int64_t t, float to_f32(uint16_t)) {
    const uint16_t *h = (const uint16_t *)(const void *)w;
    const float *x = a->x + t * a->k;
    float lane[LANES] = { 0 };
    for (int64_t i = 0; i < a->k; i++) lane[i % LANES] += to_f32(h[i]) * x[i];
    return fold(lane);
}

static float row_f16(const unsigned char *w, const struct fo_act *a, int64_t t) {
    return row_16bit(w, a, t, fo_f16_to_f32);
}
DOT_SLOT(dot_f16_rows, row_f16)

static float row_bf16(const unsigned char *w, const struct fo_act *a, int64_t t) {
    return row_16bit(w, a, t, fo_bf16_to_f32);
}
DOT_SLOT(dot_bf16_rows, row_bf16)

/* sum of q * x over 32, q the nibbles of a legacy block. */
static int nibbles_dot(const uint8_t *qs, const int8_t *x) {
    int sum = 0;
    for (int i = 0; i < 16; i++) sum += (qs[i] & 15) * x[i] + (qs[i] >> 4) * x[i + 16];
    return sum;
}

static float row_q4_0(const unsigned char *w, const struct fo_act *a, int64_t t) {
    const struct fo_block_q4_0 *b = (const void *)w;
    struct fo_act_q8_0 x = fo_act_q8_0(a, t);
    float sum = 0;
    for (int64_t i = 0; i < a->k / 32; i++)
        sum += fo_f16_to_f32(b[i].d) * ((float)nibbles_dot(b[i].qs, x.q + i * 32) * x.d[i] - 8.0f * x.s[i]);
    return sum;
}
DOT_SLOT(dot_q4_0, row_q4_0)

static float row_q4_1(const unsigned char *w, const struct fo_act *a, int64_t t) {
    const struct fo_block_q4_1 *b = (const void *)w;
    struct fo_act_q8_0 x = fo_act_q8_0(a, t);
    float sum = 0;
    for (int64_t i = 0; i < a->k / 32; i++)
        sum += fo_f16_to_f32(b[i].d) * ((float)nibbles_dot(b[i].qs, x.q + i * 32) * x.d[i]) + fo_f16_to_f32(b[i].m) * x.s[i];
    return sum;
}
DOT_SLOT(dot_q4_1, row_q4_1)

static float row_q8_0(const unsigned char *w, const struct fo_act *a, int64_t t) {
    const struct fo_block_q8_0 *b = (const void *)w;
    struct fo_act_q8_0 x = fo_act_q8_0(a, t);
    float sum = 0;
    for (int64_t i = 0; i < a->k / 32; i++) {
        int s = 0;
        for (int j = 0; j < 32; j++) s += b[i].qs[j] * x.q[i * 32 + j];
        sum += fo_f16_to_f32(b[i].d) * ((float)s * x.d[i]);
    }
    return sum;
}
DOT_SLOT(dot_q8_0, row_q8_0)

/* One super-block of Q4_K or Q5_K: the integer scales and mins apply to integer sums, so both totals are exact. */
static float block_k(uint16_t d, uint16_t dmin, const uint8_t *scales, const uint8_t *qs, const uint8_t *qh, const int8_t *x,
                     const int16_t *sum32, float x_d) {
    int total = 0, mins = 0;
    for (int j = 0; j < 8; j++) {
        uint8_t scale, min;
        fo_q4_k_scale_min(scales, j, &scale, &min);
        int s = 0;
        for (int l = 0; l < 32; l++) {
            int q = qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            if (qh) q |= (qh[l] >> j & 1) << 4;
            s += q * x[j * 32 + l];
        }
        total += s * scale;
        mins += min * sum32[j];
    }
    return fo_f16_to_f32(d) * x_d * (float)total - fo_f16_to_f32(dmin) * x_d * (float)mins;
}

static float row_q4_k(const unsigned char *w, const struct fo_act *a, int64_t t) {
    const struct fo_block_q4_k *b = (const void *)w;
    struct fo_act_q8_k x = fo_act_q8_k(a, t);
    float sum = 0;
    for (int64_t i = 0; i < a->k / 256; i++)
        sum += block_k(b[i].d, b[i].dmin, b[i].scales, b[i].qs, NULL, x.q + i * 256, x.sum32 + i * 8, x.d[i]);
    return sum;
}
DOT_SLOT(dot_q4_k, row_q4_k)

static float row_q5_k(const unsigned char *w, const struct fo_act *a, int64_t t) {
    const struct fo_block_q5_k *b = (const void *)w;
    struct fo_act_q8_k x = fo_act_q8_k(a, t);
    float sum = 0;
    for (int64_t i = 0; i < a->k / 256; i++)
        sum += block_k(b[i].d, b[i].dmin, b[i].scales, b[i].qs, b[i].qh, x.q + i * 256, x.sum32 + i * 8, x.d[i]);
    return sum;
}
DOT_SLOT(dot_q5_k, row_q5_k)

static float row_q6_k(const unsigned char *w, const struct fo_act *a, int64_t t) {
    const struct fo_block_q6_k *b = (const void *)w;
    struct fo_act_q8_k x = fo_act_q8_k(a, t);
    float sum = 0;
    for (int64_t i = 0; i < a->k / 256; i++) {
        int total = 0;
        for (int j = 0; j < 256; j++) {
            int half = j / 128, quarter = j / 32 % 4, l = j % 32;
            int low = b[i].ql[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
            int high = b[i].qh[half * 32 + l] >> (2 * quarter) & 3;
            total += ((low | high << 4) - 32) * x.q[i * 256 + j] * b[i].scales[j / 16];
        }
        sum += fo_f16_to_f32(b[i].d) * x.d[i] * (float)total;
    }
    return sum;
}
DOT_SLOT(dot_q6_k, row_q6_k)

/* --- rows ---------------------------------------------------------------------------------------------------------------------- */

static void rms_norm(const float *x, const float *weight, int64_t k, float eps, float *out) {
    float r = 1.0f / sqrtf(dot_f32(x, x, k) / (float)k + eps);
    for (int64_t i = 0; i < k; i++) out[i] = x[i] * r * weight[i];
}

static void add(const float *a, const float *b, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++) out[i] = a[i] + b[i];
}

static void silu_mul(const float *gate, const float *up, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i++) out[i] = gate[i] / (1.0f + fo_ref_exp(-gate[i])) * up[i];
}

static void rope(float *x, int n_head, const struct fo_rope *r, const float *cosine, const float *sine) {
    int half = r->n_rot / 2, step = r->kind == FO_ROPE_PAIRS ? 2 : 1, apart = r->kind == FO_ROPE_PAIRS ? 1 : half;
    for (int h = 0; h < n_head; h++, x += r->head_dim)
        for (int i = 0; i < half; i++) {
            float *p = x + i * step, a = p[0], b = p[apart];
            p[0] = a * cosine[i] - b * sine[i];
            p[apart] = a * sine[i] + b * cosine[i];
        }
}

static void scale(float *x, int64_t n, float by) {
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

void fo_cpu_ref(struct fo_cpu_kernels *k) {
    *k = (struct fo_cpu_kernels){
        .isa = "scalar",
        .quant_q8_0 = quant_q8_0,
        .quant_q8_k = quant_q8_k,
        .dot = { [FO_F32] = dot_f32_rows,
                 [FO_F16] = dot_f16_rows,
                 [FO_BF16] = dot_bf16_rows,
                 [FO_Q4_0] = dot_q4_0,
                 [FO_Q4_1] = dot_q4_1,
                 [FO_Q8_0] = dot_q8_0,
                 [FO_Q4_K] = dot_q4_k,
                 [FO_Q5_K] = dot_q5_k,
                 [FO_Q6_K] = dot_q6_k },
        .rms_norm = rms_norm,
        .add = add,
        .silu_mul = silu_mul,
        .rope = rope,
        .scale = scale,
    };
    fo_cpu_ref_dots(k);
    fo_cpu_ref_attn(&k->attn);
}
