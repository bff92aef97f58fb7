/* The types with one scale per 32 elements: layouts in quant.h. The order of operations is part of the definition: the product of
 * scale and quant first, then the offset, each rounded to float32. */
#include "foundry/quant.h"

#include <math.h>

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

void fo_q8_0_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_q8_0 *b = blocks;
    for (const struct fo_block_q8_0 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK; i++) out[i] = (float)b->qs[i] * d;
    }
}

/* Scale = largest magnitude / 127, quants rounded to nearest even with the unrounded scale. A scale too small to invert gives
 * zeros. */
void fo_q8_0_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q8_0 *b = blocks;
    for (struct fo_block_q8_0 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float top = fo_abs_max(in, FO_QK), d = top / 127.0f;
        float inv = d >= 0x1p-126f ? 1.0f / d : 0.0f; /* 0 for NaN too */
        b->d = isnan(top) ? F16_NAN : fo_f32_to_f16(d);
        for (int i = 0; i < FO_QK; i++) b->qs[i] = inv > 0 ? (int8_t)rintf(in[i] * inv) : 0;
    }
}
