/* The IQ types. IQ4: the quant names one of sixteen values that lie denser around zero. IQ1, IQ2, IQ3: an index names a run of 8 (IQ3: 4)
 * elements in a code book (quant_iq_grids.c), all positive in IQ2 and IQ3, which store the signs beside it.
 *
 * Signs of eight elements are a byte, or, in the types called XXS and XS, seven bits: the eighth makes the number of minus signs even.
 * Every index is as wide as its book is long (8, 9, 10 or 11 bits), so that no file can name an entry that is not there. As everywhere
 * the order of operations is part of the definition: the scale of the sub-block is rounded before it meets the element. Layouts: quant.h.
 */
#include <math.h>
#include <string.h>

#include "foundry/dtype.h"
#include "foundry/quant.h"
#include "foundry/quant_fit.h"

const int8_t fo_iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

/* What the indices within an entry stand for; the books use no index 3 of IQ2 and IQ1. */
static const float iq2_levels[4] = { 8, 25, 43 };
static const float iq3_xxs_levels[16] = { 4, 12, 20, 28, 36, 44, 52, 62 };
static const float iq3_s_levels[16] = { 1, 3, 5, 7, 9, 11, 13, 15 };

static uint32_t word_of(const uint8_t b[4]) {
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* The sign byte of a seven-bit index. */
static unsigned signs_of(uint32_t seven) {
    seven &= 127;
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

static void put8(float *out, float scale, uint16_t entry, unsigned signs) {
    for (int i = 0; i < 8; i++) {
        float x = scale * iq2_levels[entry >> 2 * i & 3];
        out[i] = signs >> i & 1 ? -x : x;
    }
}

static void put4(float *out, float scale, const float levels[16], uint16_t entry, unsigned signs) {
    for (int i = 0; i < 4; i++) {
        float x = scale * levels[entry >> 4 * i & 15];
        out[i] = signs >> i & 1 ? -x : x;
    }
}

void fo_iq2_xxs_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq2_xxs *b = blocks;
    for (const struct fo_block_iq2_xxs *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int j = 0; j < 8; j++) {
            uint32_t word = word_of(b->sub[j].word);
            float scale = d * (0.5f + (float)(word >> 28)) * 0.25f;
            for (int g = 0; g < 4; g++, out += 8) put8(out, scale, fo_iq2_xxs_grid[b->sub[j].index[g]], signs_of(word >> 7 * g));
        }
    }
}

void fo_iq2_xs_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq2_xs *b = blocks;
    for (const struct fo_block_iq2_xs *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++, out += 8) { /* two groups of eight share a scale */
            float scale = d * (0.5f + (float)(b->scales[g / 4] >> 4 * (g / 2 & 1) & 15)) * 0.25f;
            put8(out, scale, fo_iq2_xs_grid[b->qs[g] & 511], signs_of(b->qs[g] >> 9));
        }
    }
}

void fo_iq2_s_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq2_s *b = blocks;
    for (const struct fo_block_iq2_s *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++, out += 8) {
            float scale = d * (0.5f + (float)(b->scales[g / 4] >> 4 * (g / 2 & 1) & 15)) * 0.25f;
            int index = b->qs[g] | (b->qh[g / 4] >> 2 * (g & 3) & 3) << 8;
            put8(out, scale, fo_iq2_s_grid[index], b->signs[g]);
        }
    }
}

void fo_iq3_xxs_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq3_xxs *b = blocks;
    for (const struct fo_block_iq3_xxs *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int g = 0; g < 64; g++, out += 4) {
            uint32_t word = word_of(b->word[g / 8]);
            float scale = d * (0.5f + (float)(word >> 28)) * 0.5f;
            put4(out, scale, iq3_xxs_levels, fo_iq3_xxs_grid[b->qs[g]], signs_of(word >> 7 * (g / 2 & 3)) >> 4 * (g & 1));
        }
    }
}

void fo_iq3_s_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq3_s *b = blocks;
    for (const struct fo_block_iq3_s *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int g = 0; g < 64; g++, out += 4) {
            float scale = d * (float)(1 + 2 * (b->scales[g / 16] >> 4 * (g / 8 & 1) & 15));
            int index = b->qs[g] | (b->qh[g / 8] >> (g & 7) & 1) << 8;
            put4(out, scale, iq3_s_levels, fo_iq3_s_grid[index], b->signs[g / 2] >> 4 * (g & 1));
        }
    }
}

/* Elements of IQ1 are -1, 0 or 1, all eight shifted by an eighth up or down. */
static void put_shifted(float *out, float scale, uint16_t entry, float shift) {
    for (int i = 0; i < 8; i++) out[i] = scale * ((float)((entry >> 2 * i & 3) - 1) + shift);
}

void fo_iq1_s_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq1_s *b = blocks;
    for (const struct fo_block_iq1_s *end = b + n / FO_QK_K; b < end; b++) {
        float d = fo_f16_to_f32(b->d);
        for (int g = 0; g < 32; g++, out += 8) {
            uint16_t qh = b->qh[g / 4];
            int index = b->qs[g] | (qh >> 3 * (g & 3) & 7) << 8;
            put_shifted(out, d * (float)(2 * (qh >> 12 & 7) + 1), fo_iq1_grid[index], qh >> 15 ? -0.125f : 0.125f);
        }
    }
}

void fo_iq1_m_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq1_m *b = blocks;
    for (const struct fo_block_iq1_m *end = b + n / FO_QK_K; b < end; b++) {
        unsigned bits = 0;
        for (int i = 0; i < 4; i++) bits |= (unsigned)(b->scales[i] >> 12) << 4 * i;
        float d = fo_f16_to_f32((uint16_t)bits);
        for (int g = 0; g < 32; g++, out += 8) { /* two groups of eight share a scale */
            int high = b->qh[g / 2] >> 4 * (g & 1), index = b->qs[g] | (high & 7) << 8;
            float scale = d * (float)(2 * (b->scales[g / 8] >> 3 * (g / 2 & 3) & 7) + 1);
            put_shifted(out, scale, fo_iq1_grid[index], high & 8 ? -0.125f : 0.125f);
        }
    }
}

void fo_iq4_nl_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq4_nl *b = blocks;
    for (const struct fo_block_iq4_nl *end = b + n / FO_QK; b < end; b++, out += FO_QK) {
        float d = fo_f16_to_f32(b->d);
        for (int i = 0; i < FO_QK / 2; i++) {
            out[i] = d * (float)fo_iq4_values[b->qs[i] & 15];
            out[i + FO_QK / 2] = d * (float)fo_iq4_values[b->qs[i] >> 4];
        }
    }
}

void fo_iq4_xs_to_f32(const void *blocks, float *out, size_t n) {
    const struct fo_block_iq4_xs *b = blocks;
    for (const struct fo_block_iq4_xs *end = b + n / FO_QK_K; b < end; b++)
        for (int j = 0; j < 8; j++, out += 32) {
            int scale = (b->scales_l[j / 2] >> 4 * (j & 1) & 15) | (b->scales_h >> 2 * j & 3) << 4;
            float ds = fo_f16_to_f32(b->d) * (float)(scale - 32);
            for (int i = 0; i < 16; i++) {
                out[i] = ds * (float)fo_iq4_values[b->qs[16 * j + i] & 15];
                out[i + 16] = ds * (float)fo_iq4_values[b->qs[16 * j + i] >> 4];
            }
        }
}

/* --- quantisers: scales by search (quant_fit.h), then the nearest of the sixteen ---------------------------------------------- */

void fo_iq4_nl_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_iq4_nl *b = blocks;
    for (struct fo_block_iq4_nl *end = b + n / FO_QK; b < end; b++, in += FO_QK) {
        bool bad = isnan(fo_abs_max(in, FO_QK));
        float d = bad ? NAN : fo_fit_values(in, FO_QK, fo_iq4_values), inverse = fo_inverse(d);
        b->d = fo_f32_to_f16(d);
        for (int i = 0; i < FO_QK / 2; i++)
            b->qs[i] = (uint8_t)(fo_nearest(fo_iq4_values, in[i] * inverse) | fo_nearest(fo_iq4_values, in[i + FO_QK / 2] * inverse) << 4);
    }
}

void fo_iq4_xs_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_iq4_xs *b = blocks;
    for (struct fo_block_iq4_xs *end = b + n / FO_QK_K; b < end; b++) {
        bool bad = isnan(fo_abs_max(in, FO_QK_K));
        float scale[8];
        for (int j = 0; j < 8; j++) scale[j] = bad ? 0 : fo_fit_values(in + 32 * j, 32, fo_iq4_values);
        b->d = fo_f32_to_f16(bad ? NAN : fo_extreme(scale, 8) / -32);
        b->scales_h = 0;
        memset(b->scales_l, 0, sizeof b->scales_l);
        float d = fo_f16_to_f32(b->d);
        for (int j = 0; j < 8; j++, in += 32) {
            int s = fo_round_clamp(scale[j] * fo_inverse(d), -32, 31);
            float inverse = fo_inverse(d * (float)s);
            b->scales_l[j / 2] |= (uint8_t)(((s + 32) & 15) << 4 * (j & 1));
            b->scales_h |= (uint16_t)((s + 32) >> 4 << 2 * j);
            for (int i = 0; i < 16; i++)
                b->qs[16 * j + i] = (uint8_t)(fo_nearest(fo_iq4_values, in[i] * inverse) | fo_nearest(fo_iq4_values, in[i + 16] * inverse) << 4);
        }
    }
}
