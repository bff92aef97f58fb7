/* K-quants: 256 elements a block, 6-bit (or 8-bit) scales for its sub-blocks, one half-precision scale of scales. Layouts in
 * quant.h. As everywhere, the order of operations is part of the definition. */
#include "foundry/quant.h"

#include <math.h>

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
        float inv = b->d >= 0x1p-126f ? 1.0f / b->d : 0.0f;
        for (int i = 0; i < FO_QK_K; i++) b->qs[i] = inv > 0 ? (int8_t)rintf(in[i] * inv) : 0;
        for (int j = 0; j < FO_QK_K / 16; j++) {
            int sum = 0;
            for (int i = 0; i < 16; i++) sum += b->qs[16 * j + i];
            b->bsums[j] = (int16_t)sum;
        }
    }
}
