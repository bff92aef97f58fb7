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

void fo_q2_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q2_k *b = blocks;
    for (const struct fo_block_q2_k *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K) {
        float d = fo_f16_to_f32(b->d), dmin = fo_f16_to_f32(b->dmin);
        for (int j = 0; j < 16; j++) {
            float ds = d * (float)(b->scales[j] & 15), m = dmin * (float)(b->scales[j] >> 4);
            for (int i = 16 * j; i < 16 * j + 16; i++) out[i] = ds * (float)fo_two_bits(b->qs, i) - m;
        }
    }
}

void fo_q3_k_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q3_k *b = blocks;
    for (const struct fo_block_q3_k *end = b + n / FO_QK_K; b < end; b++, out += FO_QK_K) {
        float d = fo_f16_to_f32(b->d);
        for (int j = 0; j < 16; j++) {
            float ds = d * (float)(fo_q3_k_scale(b->scales, j) - 32);
            for (int i = 16 * j; i < 16 * j + 16; i++) out[i] = ds * (float)(fo_two_bits(b->qs, i) - (b->hmask[i % 32] >> i / 32 & 1 ? 0 : 4));
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
        for (int i = 0; i < FO_QK_K; i++) out[i] = d * (float)(fo_two_bits(b->qs, i) - 1);
    }
}

/* --- quantisers of the types that need no search; the others are in quant_k_fit.c ------------------------------------------------ */

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
        for (int i = 0; i < FO_QK_K; i++) fo_put_two_bits(b->qs, i, fo_round_clamp(in[i] * inv, -1, 1) + 1);
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
