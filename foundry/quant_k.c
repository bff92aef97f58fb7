/* K-quants: 256 elements a block, 6-bit (or 8-bit) scales for its sub-blocks, one half-precision scale of scales. Layouts in
 * quant.h. As everywhere, the order of operations is part of the definition. */
#include "foundry/quant.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "foundry/dtype.h"

void fo_q4_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q4_k *b = blocks;
    for (const struct fo_block_q4_k *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d), dmin = fo_f16_to_f32(b->dmin);
        for (int j = 0; j < 8; j++, out += 32) {
            uint8_t scale, min;
            fo_q4_k_scale_min(b->scales, j, &scale, &min);
            float ds = d * (float)scale, m = dmin * (float)min;
            const uint8_t *q = b->qs + 32 * (j / 2);
            for (int i = 0; i < 32; i++) out[i] = ds * (float)(j & 1 ? q[i] >> 4 : q[i] & 15) - m;
        }
    }
}

void fo_q5_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q5_k *b = blocks;
    for (const struct fo_block_q5_k *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d), dmin = fo_f16_to_f32(b->dmin);
        for (int j = 0; j < 8; j++, out += 32) {
            uint8_t scale, min;
            fo_q4_k_scale_min(b->scales, j, &scale, &min);
            float ds = d * (float)scale, m = dmin * (float)min;
            const uint8_t *q = b->qs + 32 * (j / 2);
            for (int i = 0; i < 32; i++) {
                int low = j & 1 ? q[i] >> 4 : q[i] & 15, high = (b->qh[i] >> j & 1) << 4;
                out[i] = ds * (float)(low | high) - m;
            }
        }
    }
}

void fo_q6_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q6_k *b = blocks;
    for (const struct fo_block_q6_k *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int j = 0; j < 8; j++, out += 32) { /* 32 elements: quarter j % 4 of half j / 4 */
            int r = j & 3;
            const uint8_t *ql = b->ql + 64 * (j / 4) + 32 * (r & 1), *qh = b->qh + 32 * (j / 4);
            for (int i = 0; i < 32; i++) {
                int low = r >= 2 ? ql[i] >> 4 : ql[i] & 15, high = (qh[i] >> 2 * r & 3) << 4;
                out[i] = d * (float)b->scales[2 * j + i / 16] * (float)((low | high) - 32);
            }
        }
    }
}

/* Two bits an element: each half of 128 has 32 bytes, whose bits 2r belong to its quarter r. */
static int two_bits(const uint8_t qs[64], int i) {
    return qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 & 3) & 3;
}

static void put_two_bits(uint8_t qs[64], int i, int q) {
    qs[32 * (i / 128) + i % 32] |= (uint8_t)(q << 2 * (i / 32 & 3));
}

void fo_q2_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q2_k *b = blocks;
    for (const struct fo_block_q2_k *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K) {
        float d = fo_f16_to_f32(b->d), dmin = fo_f16_to_f32(b->dmin);
        for (int j = 0; j < 16; j++) {
            float ds = d * (float)(b->scales[j] & 15), m = dmin * (float)(b->scales[j] >> 4);
            for (int i = 16 * j; i < 16 * j + 16; i++) out[i] = ds * (float)two_bits(b->qs, i) - m;
        }
    }
}

void fo_q3_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q3_k *b = blocks;
    for (const struct fo_block_q3_k *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K) {
        float d = fo_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            float ds = d * (float)(fo_q3_k_scale(b->scales, j) - 32);
            for (int i = 16 * j; i < 16 * j + 16; i++) out[i] = ds * (float)(two_bits(b->qs, i) - (b->hmask[i % 32] >> i / 32 & 1 ? 0 : 4));
        }
    }
}

/* Where element i of a TQ1_0 block lies: the byte, of qs and then qh, and the digit within it, the highest 0. */
static int tq1_0_byte(int i, int *ret_digit) {
    if (i < 160) return *ret_digit = i / 32, i % 32;
    if (i < 240) return *ret_digit = (i - 160) / 16, 32 + i % 16;
    return *ret_digit = (i - 240) / 4, 48 + i % 4;
}

void fo_tq1_0_to_f32(const void *blocks, float *out, size_t n) {
    static const uint8_t shift[5] = { 1, 3, 9, 27, 81 };
    const struct fo_block_tq1_0 *b = blocks;
    for (const struct fo_block_tq1_0 *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK_K; i++) {
            int digit, at = tq1_0_byte(i, &digit);
            uint8_t rest = (uint8_t)((at < 48 ? b->qs[at] : b->qh[at - 48]) * shift[digit]); /* a fraction of 256: higher digits drop out */
            out[i] = d * (float)((rest * 3 >> 8) - 1);
        }
    }
}

void fo_tq2_0_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_tq2_0 *b = blocks;
    for (const struct fo_block_tq2_0 *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK_K; i++) out[i] = d * (float)(two_bits(b->qs, i) - 1);
    }
}

/* --- quantisers ------------------------------------------------------------------------------------------------------------- *
 * Straightforward ones: each sub-block's grid spans its values, then the scales are rounded to the block's. A search for the scales
 * with the least error would be some per cent better. */

/* Grids of a Q4_K or Q5_K block, quants up to `top` into q[256]. */
static void grid_of_mins(const float *in, int top, uint16_t *ret_d, uint16_t *ret_dmin, uint8_t scales[12], uint8_t *q) {
    float scale[8], low[8], top_scale = 0, top_low = 0;
    bool bad = isnan(fo_abs_max(in, FO_QK_K));
    for (int j = 0; j < 8; j++) {
        const float *x = in + 32 * j;
        float min = 0, max = 0;
        for (int i = 0; i < 32; i++) {
            min = x[i] < min ? x[i] : min;
            max = x[i] > max ? x[i] : max;
        }
        scale[j] = (max - min) / (float)top;
        low[j] = -min;
        top_scale = scale[j] > top_scale ? scale[j] : top_scale;
        top_low = low[j] > top_low ? low[j] : top_low;
    }
    *ret_d = fo_f32_to_f16(bad ? NAN : top_scale / 63);
    *ret_dmin = fo_f32_to_f16(bad ? NAN : top_low / 63);
    float d = fo_f16_to_f32(*ret_d), dmin = fo_f16_to_f32(*ret_dmin), inv_d = fo_inverse(d), inv_dmin = fo_inverse(dmin);
    memset(scales, 0, 12);
    for (int j = 0; j < 8; j++) {
        int s = fo_round_clamp(scale[j] * inv_d, 0, 63), m = fo_round_clamp(low[j] * inv_dmin, 0, 63);
        if (j < 4) {
            scales[j] |= (uint8_t)s;
            scales[j + 4] |= (uint8_t)m;
        } else {
            scales[j + 4] = (uint8_t)((s & 15) | (m & 15) << 4);
            scales[j - 4] |= (uint8_t)(s >> 4 << 6);
            scales[j] |= (uint8_t)(m >> 4 << 6);
        }
        float inv = fo_inverse(d * (float)s), min = dmin * (float)m;
        for (int i = 0; i < 32; i++) q[32 * j + i] = (uint8_t)fo_round_clamp((in[32 * j + i] + min) * inv, 0, top);
    }
}

void fo_q4_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q4_k *b = blocks;
    uint8_t q[FO_QK_K];
    for (struct fo_block_q4_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        grid_of_mins(in, 15, &b->d, &b->dmin, b->scales, q);
        for (int i = 0; i < FO_QK_K / 2; i++) {
            const uint8_t *pair = q + i / 32 * 64 + i % 32; /* sub-blocks 2k and 2k + 1 share 32 bytes */
            b->qs[i] = (uint8_t)(pair[0] | pair[32] << 4);
        }
    }
}

void fo_q5_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q5_k *b = blocks;
    uint8_t q[FO_QK_K];
    for (struct fo_block_q5_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        grid_of_mins(in, 31, &b->d, &b->dmin, b->scales, q);
        memset(b->qh, 0, sizeof b->qh);
        for (int i = 0; i < FO_QK_K; i++) b->qh[i % 32] |= (uint8_t)((q[i] >> 4) << i / 32);
        for (int i = 0; i < FO_QK_K / 2; i++) {
            const uint8_t *pair = q + i / 32 * 64 + i % 32;
            b->qs[i] = (uint8_t)((pair[0] & 15) | (pair[32] & 15) << 4);
        }
    }
}

void fo_q6_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q6_k *b = blocks;
    for (struct fo_block_q6_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        float top = fo_abs_max(in, FO_QK_K); /* the largest scale is top / 31, stored as 127 */
        b->d = fo_f32_to_f16(top / (31 * 127));
        float d = fo_f16_to_f32(b->d), inv_d = fo_inverse(d);
        memset(b->ql, 0, sizeof b->ql);
        memset(b->qh, 0, sizeof b->qh);
        for (int i = 0; i < FO_QK_K; i++) {
            if (i % 16 == 0) b->scales[i / 16] = (int8_t)fo_round_clamp(fo_abs_max(in + i, 16) / 31 * inv_d, 0, 127);
            float inv = fo_inverse(d * (float)b->scales[i / 16]);
            int q = fo_round_clamp(in[i] * inv, -32, 31) + 32, half = i / 128, r = i % 128 / 32, l = i % 32;
            b->ql[64 * half + 32 * (r & 1) + l] |= (uint8_t)((q & 15) << 4 * (r >> 1));
            b->qh[32 * half + l] |= (uint8_t)((q >> 4) << 2 * r);
        }
    }
}

/* The grid of each 16 spans its values; scales and mins are rounded to fifteenths of the block's largest. */
void fo_q2_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q2_k *b = blocks;
    for (struct fo_block_q2_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        float scale[16], low[16], top_scale = 0, top_low = 0;
        bool bad = isnan(fo_abs_max(in, FO_QK_K));
        for (int j = 0; j < 16; j++) {
            float min = 0, max = 0;
            for (int i = 16 * j; i < 16 * j + 16; i++) {
                min = in[i] < min ? in[i] : min;
                max = in[i] > max ? in[i] : max;
            }
            scale[j] = (max - min) / 3;
            low[j] = -min;
            top_scale = scale[j] > top_scale ? scale[j] : top_scale;
            top_low = low[j] > top_low ? low[j] : top_low;
        }
        b->d = fo_f32_to_f16(bad ? NAN : top_scale / 15);
        b->dmin = fo_f32_to_f16(bad ? NAN : top_low / 15);
        float d = fo_f16_to_f32(b->d), dmin = fo_f16_to_f32(b->dmin), inv_d = fo_inverse(d), inv_dmin = fo_inverse(dmin);
        memset(b->qs, 0, sizeof b->qs);
        for (int j = 0; j < 16; j++) {
            int s = fo_round_clamp(scale[j] * inv_d, 0, 15), m = fo_round_clamp(low[j] * inv_dmin, 0, 15);
            float inv = fo_inverse(d * (float)s), min = dmin * (float)m;
            b->scales[j] = (uint8_t)(s | m << 4);
            for (int i = 16 * j; i < 16 * j + 16; i++) put_two_bits(b->qs, i, fo_round_clamp((in[i] + min) * inv, 0, 3));
        }
    }
}

/* The value of largest magnitude of each 16 becomes -4; its scale is rounded to a 31st of the block's largest. */
void fo_q3_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q3_k *b = blocks;
    for (struct fo_block_q3_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        b->d = fo_f32_to_f16(fo_abs_max(in, FO_QK_K) / (4 * 31));
        float d = fo_f16_to_f32(b->d), inv_d = fo_inverse(d);
        memset(b->hmask, 0, sizeof b->hmask);
        memset(b->qs, 0, sizeof b->qs);
        memset(b->scales, 0, sizeof b->scales);
        for (int j = 0; j < 16; j++) {
            int s = fo_round_clamp(fo_extreme(in + 16 * j, 16) / -4 * inv_d, -32, 31);
            float inv = fo_inverse(d * (float)s);
            b->scales[j & 7] |= (uint8_t)(((s + 32) & 15) << 4 * (j >> 3));
            b->scales[8 + (j & 3)] |= (uint8_t)((s + 32) >> 4 << 2 * (j >> 2));
            for (int i = 16 * j; i < 16 * j + 16; i++) {
                int q = fo_round_clamp(in[i] * inv, -4, 3) + 4;
                put_two_bits(b->qs, i, q & 3);
                b->hmask[i % 32] |= (uint8_t)(q >> 2 << i / 32);
            }
        }
    }
}

/* Ternary: scale = largest magnitude, the rest rounded to -1, 0 or 1 of it. */
void fo_tq1_0_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_tq1_0 *b = blocks;
    for (struct fo_block_tq1_0 *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        static const uint8_t weight[5] = { 81, 27, 9, 3, 1 };
        float top = fo_abs_max(in, FO_QK_K), inv = fo_inverse(top);
        unsigned v[52] = { 0 };
        b->d = fo_f32_to_f16(top);
        for (int i = 0; i < FO_QK_K; i++) {
            int digit, at = tq1_0_byte(i, &digit);
            v[at] += weight[digit] * (unsigned)(fo_round_clamp(in[i] * inv, -1, 1) + 1);
        }
        for (int i = 0; i < 52; i++) *(i < 48 ? &b->qs[i] : &b->qh[i - 48]) = (uint8_t)((v[i] * 256 + 242) / 243);
    }
}

void fo_tq2_0_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_tq2_0 *b = blocks;
    for (struct fo_block_tq2_0 *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        float top = fo_abs_max(in, FO_QK_K), inv = fo_inverse(top);
        b->d = fo_f32_to_f16(top);
        memset(b->qs, 0, sizeof b->qs);
        for (int i = 0; i < FO_QK_K; i++) put_two_bits(b->qs, i, fo_round_clamp(in[i] * inv, -1, 1) + 1);
    }
}

/* --- the activation block -------------------------------------------------------------------------------------------------- */

void fo_q8_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q8_k *b = blocks;
    for (const struct fo_block_q8_k *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K)
        for (int i = 0; i < FO_QK_K; i++) out[i] = (float)b->qs[i] * b->d;
}

/* Scale = largest magnitude / 127, quants rounded to nearest even. A block with a NaN or an infinity becomes NaN throughout (its
 * scale is), one whose scale is too small to invert becomes zeros. */
void fo_q8_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q8_k *b = blocks;
    for (struct fo_block_q8_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        b->d = fo_abs_max(in, FO_QK_K) / 127.0f;
        float inv = fo_inverse(b->d);
        for (int i = 0; i < FO_QK_K; i++) b->qs[i] = inv > 0 ? (int8_t)rintf(in[i] * inv) : 0;
        for (int j = 0; j < FO_QK_K / 16; j++) {
            int sum = 0;
            for (int i = 0; i < 16; i++) sum += b->qs[16 * j + i];
            b->bsums[j] = (int16_t)sum;
        }
    }
}
