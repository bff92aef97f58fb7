/* The types with one scale per 32 elements: layouts in quant.h. The order of operations is part of the definition: the product of
 * scale and quant first, then the offset, each rounded to float32. */
#include "foundry/quant.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "foundry/dtype.h"

enum { F16_NAN = 0x7E00 };

void fo_q4_0_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q4_0 *b = blocks;
    for (const struct fo_block_q4_0 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK / 2; i++) {
            out[i] = (float)((b->qs[i] & 15) - 8) * d;
            out[i + FO_QK / 2] = (float)((b->qs[i] >> 4) - 8) * d;
        }
    }
}

void fo_q4_1_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q4_1 *b = blocks;
    for (const struct fo_block_q4_1 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d), m = fo_f16_to_f32(b->m);
        for (int i = 0; i < FO_QK / 2; i++) {
            out[i] = (float)(b->qs[i] & 15) * d + m;
            out[i + FO_QK / 2] = (float)(b->qs[i] >> 4) * d + m;
        }
    }
}

/* The fifth bit of element i, in its place. */
static int fifth(const uint8_t qh[4], int i) {
    return (qh[i / 8] >> (i & 7) & 1) << 4;
}

void fo_q5_0_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q5_0 *b = blocks;
    for (const struct fo_block_q5_0 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK / 2; i++) {
            out[i] = (float)(((b->qs[i] & 15) | fifth(b->qh, i)) - 16) * d;
            out[i + FO_QK / 2] = (float)(((b->qs[i] >> 4) | fifth(b->qh, i + FO_QK / 2)) - 16) * d;
        }
    }
}

void fo_q5_1_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q5_1 *b = blocks;
    for (const struct fo_block_q5_1 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d), m = fo_f16_to_f32(b->m);
        for (int i = 0; i < FO_QK / 2; i++) {
            out[i] = (float)((b->qs[i] & 15) | fifth(b->qh, i)) * d + m;
            out[i + FO_QK / 2] = (float)((b->qs[i] >> 4) | fifth(b->qh, i + FO_QK / 2)) * d + m;
        }
    }
}

void fo_q8_0_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q8_0 *b = blocks;
    for (const struct fo_block_q8_0 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK; i++) out[i] = (float)b->qs[i] * d;
    }
}

/* Scale = the value of largest magnitude / -8, so that this value is met exactly; quants are rounded half up, in the unrounded
 * scale. */
void fo_q4_0_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q4_0 *b = blocks;
    for (struct fo_block_q4_0 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float top = fo_abs_max(in, FO_QK), extreme = 0;
        for (int i = 0; i < FO_QK && !isnan(top); i++)
            if (fabsf(in[i]) == top) {
                extreme = in[i];
                break;
            }
        float d = extreme / -8.0f, inv = fo_inverse(d);
        b->d = isnan(top) ? F16_NAN : fo_f32_to_f16(d);
        for (int i = 0; i < FO_QK / 2; i++) {
            int lo = isnan(top) ? 0 : (int)(in[i] * inv + 8.5f), hi = isnan(top) ? 0 : (int)(in[i + FO_QK / 2] * inv + 8.5f);
            b->qs[i] = (uint8_t)((lo < 15 ? lo : 15) | (hi < 15 ? hi : 15) << 4);
        }
    }
}

/* The grid of 16 steps runs from the smallest to the largest value. */
void fo_q4_1_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q4_1 *b = blocks;
    for (struct fo_block_q4_1 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float min = in[0], max = in[0];
        for (int i = 1; i < FO_QK; i++) {
            min = in[i] < min ? in[i] : min;
            max = in[i] > max ? in[i] : max;
        }
        float d = (max - min) / 15.0f, inv = fo_inverse(d);
        bool bad = isnan(fo_abs_max(in, FO_QK)) || isinf(d);
        b->d = bad ? F16_NAN : fo_f32_to_f16(d);
        b->m = bad ? F16_NAN : fo_f32_to_f16(min);
        for (int i = 0; i < FO_QK / 2; i++) {
            int lo = bad ? 0 : (int)((in[i] - min) * inv + 0.5f), hi = bad ? 0 : (int)((in[i + FO_QK / 2] - min) * inv + 0.5f);
            b->qs[i] = (uint8_t)((lo < 15 ? lo : 15) | (hi < 15 ? hi : 15) << 4);
        }
    }
}

/* Five-bit quants q[32] into the nibbles and the word of top bits. */
static void pack5(const uint8_t q[FO_QK], uint8_t qh[4], uint8_t qs[FO_QK / 2]) {
    memset(qh, 0, 4);
    for (int i = 0; i < FO_QK; i++) qh[i / 8] |= (uint8_t)(q[i] >> 4 << (i & 7));
    for (int i = 0; i < FO_QK / 2; i++) qs[i] = (uint8_t)((q[i] & 15) | (q[i + FO_QK / 2] & 15) << 4);
}

/* As Q4_0: the value of largest magnitude becomes -16. */
void fo_q5_0_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q5_0 *b = blocks;
    for (struct fo_block_q5_0 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float extreme = fo_extreme(in, FO_QK), d = extreme / -16.0f, inv = fo_inverse(d);
        uint8_t q[FO_QK];
        b->d = isnan(extreme) ? F16_NAN : fo_f32_to_f16(d);
        for (int i = 0; i < FO_QK; i++) {
            int v = isnan(extreme) ? 0 : (int)(in[i] * inv + 16.5f);
            q[i] = (uint8_t)(v < 31 ? v : 31);
        }
        pack5(q, b->qh, b->qs);
    }
}

/* As Q4_1, in 32 steps. */
void fo_q5_1_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q5_1 *b = blocks;
    for (struct fo_block_q5_1 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float min = in[0], max = in[0];
        for (int i = 1; i < FO_QK; i++) {
            min = in[i] < min ? in[i] : min;
            max = in[i] > max ? in[i] : max;
        }
        float d = (max - min) / 31.0f, inv = fo_inverse(d);
        bool bad = isnan(fo_abs_max(in, FO_QK)) || isinf(d);
        uint8_t q[FO_QK];
        b->d = bad ? F16_NAN : fo_f32_to_f16(d);
        b->m = bad ? F16_NAN : fo_f32_to_f16(min);
        for (int i = 0; i < FO_QK; i++) {
            int v = bad ? 0 : (int)((in[i] - min) * inv + 0.5f);
            q[i] = (uint8_t)(v < 31 ? v : 31);
        }
        pack5(q, b->qh, b->qs);
    }
}

/* Scale = largest magnitude / 127, quants rounded to nearest even with the unrounded scale. A scale too small to invert gives
 * zeros. */
void fo_q8_0_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q8_0 *b = blocks;
    for (struct fo_block_q8_0 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float top = fo_abs_max(in, FO_QK), d = top / 127.0f, inv = fo_inverse(d);
        b->d = isnan(top) ? F16_NAN : fo_f32_to_f16(d);
        for (int i = 0; i < FO_QK; i++) b->qs[i] = inv > 0 ? (int8_t)rintf(in[i] * inv) : 0;
    }
}
