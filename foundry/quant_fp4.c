/* The types whose elements are 4-bit floats (sign, two bits of exponent, one of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6, kept doubled so that
 * they are integers): MXFP4 with a power of two per 32 elements, as the Open Compute Project's microscaling formats define it, and NVFP4
 * with an 8-bit float per 16. Layouts: quant.h. */
#include <math.h>

#include "foundry/dtype.h"
#include "foundry/quant.h"

enum { E4M3_TOP = 0x7E }; /* 448, the largest number; 0x7F is NaN and means zero here */

const int8_t fo_fp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

void fo_mxfp4_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_mxfp4 *b = blocks;
    for (const struct fo_block_mxfp4 *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = ldexpf(1.0f, b->e - 128);
        for (int i = 0; i < FO_QK / 2; i++) {
            out[i] = d * (float)fo_fp4_values[b->qs[i] & 15];
            out[i + FO_QK / 2] = d * (float)fo_fp4_values[b->qs[i] >> 4];
        }
    }
}

/* Half of an unsigned 8-bit float with four bits of exponent; the top bit counts for nothing. */
static float half_e4m3(uint8_t code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    if (code == 0x7F) return 0;
    return exponent ? ldexpf((float)(8 + fraction), exponent - 11) : ldexpf((float)fraction, -10);
}

void fo_nvfp4_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_nvfp4 *b = blocks;
    for (const struct fo_block_nvfp4 *end = b + n / 64; b < end; b++)
        for (int j = 0; j < 4; j++, out += 16) {
            float d = half_e4m3(b->d[j]);
            for (int i = 0; i < 8; i++) {
                out[i] = d * (float)fo_fp4_values[b->qs[8 * j + i] & 15];
                out[i + 8] = d * (float)fo_fp4_values[b->qs[8 * j + i] >> 4];
            }
        }
}

/* The exponent at which the largest magnitude lies between 4 and 8, of which 6 is the most that an element holds. A block with a value
 * that is not finite becomes infinite throughout. */
void fo_mxfp4_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_mxfp4 *b = blocks;
    for (struct fo_block_mxfp4 *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        float top = fo_abs_max(in, FO_QK);
        int e = isnan(top) ? 255 : top > 0 ? ilogbf(top) - 2 + 127 : 0;
        b->e = (uint8_t)(e > 0 ? e : 0);
        for (int i = 0; i < FO_QK / 2; i++) {
            int lo = isnan(top) ? 7 : fo_nearest(fo_fp4_values, ldexpf(in[i], 128 - b->e));
            int hi = isnan(top) ? 7 : fo_nearest(fo_fp4_values, ldexpf(in[i + FO_QK / 2], 128 - b->e));
            b->qs[i] = (uint8_t)(lo | hi << 4);
        }
    }
}

/* The scale is the nearest that makes the largest magnitude a 6. */
void fo_nvfp4_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_nvfp4 *b = blocks;
    for (struct fo_block_nvfp4 *end = b + n / 64; b < end; b++)
        for (int j = 0; j < 4; j++, in += 16) {
            float top = fo_abs_max(in, 16), want = top / 12.0f;
            uint8_t code = 0;
            for (uint8_t c = 1; c <= E4M3_TOP; c++)
                if (isnan(top) || fabsf(half_e4m3(c) - want) < fabsf(half_e4m3(code) - want)) code = c;
            float inv = fo_inverse(half_e4m3(code));
            b->d[j] = code;
            for (int i = 0; i < 8; i++) {
                int lo = isnan(top) ? 7 : fo_nearest(fo_fp4_values, in[i] * inv),
                    hi = isnan(top) ? 7 : fo_nearest(fo_fp4_values, in[i + 8] * inv);
                b->qs[8 * j + i] = (uint8_t)(lo | hi << 4);
            }
        }
}
