/* Quantisers of the K-quants of 2 to 6 bits. All work alike: each sub-block finds its best scale (and offset) by the searches of
 * quant_fit.h, these are rounded to the block's grid of scales, and then each value is rounded once more with the scale that the file
 * will hold. A block with a value that is not finite gets a NaN as its scale. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "foundry/dtype.h"
#include "foundry/quant.h"
#include "foundry/quant_fit.h"

enum { F16_NAN = 0x7E00 };

/* Scales and offsets of a block's n sub-blocks, whole numbers up to `top`, and what they count in. */
struct offsets {
    uint16_t d, dmin;
    uint8_t scale[16], min[16];
};

static void fit_offsets(const struct fo_fit_grid *g, const float *in, int n, int top, struct offsets *o) {
    float scale[16], low[16], top_scale = 0, top_low = 0;
    bool bad = isnan(fo_abs_max(in, FO_QK_K));
    int len = FO_QK_K / n;
    for (int j = 0; j < n; j++) {
        scale[j] = bad ? 0 : fo_fit_offset(g, in + len * j, len, &low[j]);
        if (bad) low[j] = 0;
        top_scale = scale[j] > top_scale ? scale[j] : top_scale;
        top_low = low[j] > top_low ? low[j] : top_low;
    }
    o->d = bad ? F16_NAN : fo_f32_to_f16(top_scale / (float)top);
    o->dmin = bad ? F16_NAN : fo_f32_to_f16(top_low / (float)top);
    float inv_d = fo_inverse(fo_f16_to_f32(o->d)), inv_dmin = fo_inverse(fo_f16_to_f32(o->dmin));
    for (int j = 0; j < n; j++) {
        o->scale[j] = (uint8_t)fo_round_clamp(scale[j] * inv_d, 0, top);
        o->min[j] = (uint8_t)fo_round_clamp(low[j] * inv_dmin, 0, top);
    }
}

/* The quant of a value of sub-block j, up to `top`. */
static int quant_of(const struct offsets *o, int j, float v, int top) {
    float scale = fo_f16_to_f32(o->d) * (float)o->scale[j], min = fo_f16_to_f32(o->dmin) * (float)o->min[j];
    return fo_round_clamp((v + min) * fo_inverse(scale), 0, top);
}

/* Scales and mins of eight sub-blocks, six bits each, as fo_q4_k_scale_min reads them. */
static void pack_scale_mins(const struct offsets *o, uint8_t scales[12]) {
    memset(scales, 0, 12);
    for (int j = 0; j < 8; j++) {
        int s = o->scale[j], m = o->min[j];
        if (j < 4) {
            scales[j] |= (uint8_t)s;
            scales[j + 4] |= (uint8_t)m;
        } else {
            scales[j + 4] = (uint8_t)((s & 15) | (m & 15) << 4);
            scales[j - 4] |= (uint8_t)(s >> 4 << 6);
            scales[j] |= (uint8_t)(m >> 4 << 6);
        }
    }
}

void fo_q4_k_from_f32(const float *in, void *blocks, size_t n) {
    static const struct fo_fit_grid grid = { .top = 15, .n_tries = 21, .first = -1.0f, .with_rms = true };
    struct fo_block_q4_k *b = blocks;
    for (struct fo_block_q4_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        struct offsets o;
        fit_offsets(&grid, in, 8, 63, &o);
        b->d = o.d;
        b->dmin = o.dmin;
        pack_scale_mins(&o, b->scales);
        for (int i = 0; i < FO_QK_K / 2; i++) { /* sub-blocks 2k and 2k + 1 share 32 bytes */
            int j = i / 32 * 2, at = 32 * j + i % 32;
            b->qs[i] = (uint8_t)(quant_of(&o, j, in[at], 15) | quant_of(&o, j + 1, in[at + 32], 15) << 4);
        }
    }
}

void fo_q5_k_from_f32(const float *in, void *blocks, size_t n) {
    static const struct fo_fit_grid grid = { .top = 31, .n_tries = 16, .first = -0.5f, .with_rms = true };
    struct fo_block_q5_k *b = blocks;
    for (struct fo_block_q5_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        struct offsets o;
        fit_offsets(&grid, in, 8, 63, &o);
        b->d = o.d;
        b->dmin = o.dmin;
        pack_scale_mins(&o, b->scales);
        memset(b->qh, 0, sizeof b->qh);
        for (int i = 0; i < FO_QK_K / 2; i++) {
            int j = i / 32 * 2, at = 32 * j + i % 32;
            int lo = quant_of(&o, j, in[at], 31), hi = quant_of(&o, j + 1, in[at + 32], 31);
            b->qs[i] = (uint8_t)((lo & 15) | (hi & 15) << 4);
            b->qh[i % 32] |= (uint8_t)(lo >> 4 << j | hi >> 4 << (j + 1));
        }
    }
}

void fo_q2_k_from_f32(const float *in, void *blocks, size_t n) {
    static const struct fo_fit_grid grid = { .top = 3, .n_tries = 16, .first = -0.5f, .absolute = true };
    struct fo_block_q2_k *b = blocks;
    for (struct fo_block_q2_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        struct offsets o;
        fit_offsets(&grid, in, 16, 15, &o);
        b->d = o.d;
        b->dmin = o.dmin;
        memset(b->qs, 0, sizeof b->qs);
        for (int j = 0; j < 16; j++) {
            b->scales[j] = (uint8_t)(o.scale[j] | o.min[j] << 4);
            for (int i = 16 * j; i < 16 * j + 16; i++) fo_put_two_bits(b->qs, i, quant_of(&o, j, in[i], 3));
        }
    }
}

/* The scales of sixteen sub-blocks as whole numbers from -top to top - 1 of the block's `d`, the largest -top. */
static uint16_t round_scales(const float scale[16], int top, int ret[16]) {
    float extreme = fo_extreme(scale, 16);
    uint16_t d = fo_f32_to_f16(extreme / -(float)top);
    float inverse = fo_inverse(fo_f16_to_f32(d));
    for (int j = 0; j < 16; j++) ret[j] = fo_round_clamp(scale[j] * inverse, -top, top - 1);
    return d;
}

void fo_q3_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q3_k *b = blocks;
    for (struct fo_block_q3_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        bool bad = isnan(fo_abs_max(in, FO_QK_K));
        float scale[16];
        int s[16];
        for (int j = 0; j < 16; j++) scale[j] = fo_fit_by_turns(in + 16 * j, 16, 4);
        b->d = round_scales(scale, 32, s);
        memset(b->hmask, 0, sizeof b->hmask);
        memset(b->qs, 0, sizeof b->qs);
        memset(b->scales, 0, sizeof b->scales);
        for (int j = 0; j < 16; j++) {
            float inverse = fo_inverse(fo_f16_to_f32(b->d) * (float)s[j]);
            b->scales[j & 7] |= (uint8_t)(((s[j] + 32) & 15) << 4 * (j >> 3));
            b->scales[8 + (j & 3)] |= (uint8_t)((s[j] + 32) >> 4 << 2 * (j >> 2));
            for (int i = 16 * j; i < 16 * j + 16; i++) {
                int q = fo_round_clamp(in[i] * inverse, -4, 3) + 4;
                fo_put_two_bits(b->qs, i, q & 3);
                b->hmask[i % 32] |= (uint8_t)(q >> 2 << i / 32);
            }
        }
        if (bad) b->d = F16_NAN;
    }
}

void fo_q6_k_from_f32(const float *in, void *blocks, size_t n) {
    struct fo_block_q6_k *b = blocks;
    for (struct fo_block_q6_k *end = b + n / FO_QK_K; b < end; b++, in += FO_QK_K) {
        bool bad = isnan(fo_abs_max(in, FO_QK_K));
        float scale[16];
        int s[16];
        for (int j = 0; j < 16; j++) scale[j] = fo_fit_whole(in + 16 * j, 16, 32);
        b->d = round_scales(scale, 128, s);
        memset(b->ql, 0, sizeof b->ql);
        memset(b->qh, 0, sizeof b->qh);
        for (int j = 0; j < 16; j++) {
            float inverse = fo_inverse(fo_f16_to_f32(b->d) * (float)s[j]);
            b->scales[j] = (int8_t)s[j];
            for (int i = 16 * j; i < 16 * j + 16; i++) {
                int q = fo_round_clamp(in[i] * inverse, -32, 31) + 32, half = i / 128, r = i % 128 / 32, l = i % 32;
                b->ql[64 * half + 32 * (r & 1) + l] |= (uint8_t)((q & 15) << 4 * (r >> 1));
                b->qh[32 * half + l] |= (uint8_t)((q >> 4) << 2 * r);
            }
        }
        if (bad) b->d = F16_NAN;
    }
}
