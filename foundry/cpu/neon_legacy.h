/* NEON dots of the types in blocks of 32 (and NVFP4's 64). Included by neon.c and dotprod.c.
 *
 * Four blocks at a time: each block's sum stays an integer until four of them share a register, so they take one conversion and one product
 * with their scales. Mins (Q4_1, Q5_1) and the offset of Q4_0 are one product with the activations' s. A last group of fewer blocks takes the
 * quants that are missing from the row's last block, so that nothing past the row is read, and zero for their scales: the activations' padding,
 * 0, cancels the ones and would make an infinite one of the others NaN. */
#pragma once
#if defined(__aarch64__)
#include "foundry/cpu/neon.h"
#include "foundry/quant.h"

/* Where the quants of a block lie. */
INLINE int quants_at(const enum fo_dtype type) {
    switch (type) {
    case FO_Q4_1: return offsetof(struct fo_block_q4_1, qs);
    case FO_Q5_0: return offsetof(struct fo_block_q5_0, qs);
    case FO_Q5_1: return offsetof(struct fo_block_q5_1, qs);
    case FO_MXFP4: return offsetof(struct fo_block_mxfp4, qs);
    default: return 2;
    }
}

INLINE int block_bytes(const enum fo_dtype type) {
    return quants_at(type) + (type == FO_Q8_0 ? FO_QK : FO_QK / 2);
}

/* The integers of a block that its scale multiplies: those of Q4_0 lack their offset. */
INLINE struct bytes32 quants(const enum fo_dtype type, const unsigned char *p) {
    const unsigned char *qs = p + quants_at(type);
    if (type == FO_Q8_0) return load32((const int8_t *)qs);
    struct bytes32 v = nibbles(vld1q_u8(qs));
    if (type == FO_IQ4_NL || type == FO_MXFP4) {
        int8x16_t values = vld1q_s8(type == FO_MXFP4 ? fo_fp4_values : fo_iq4_values);
        return (struct bytes32){ vqtbl1q_s8(values, vreinterpretq_u8_s8(v.lo)), vqtbl1q_s8(values, vreinterpretq_u8_s8(v.hi)) };
    }
    if (type == FO_Q5_0 || type == FO_Q5_1) {
        uint8x16_t lo = spread(qs - 4), hi = spread(qs - 2), bit = vdupq_n_u8(type == FO_Q5_0 ? 0xF0 : 0x10);
        lo = type == FO_Q5_0 ? vbicq_u8(bit, lo) : vandq_u8(bit, lo); /* q - 16 where the fifth bit is clear, or 16 more where set */
        hi = type == FO_Q5_0 ? vbicq_u8(bit, hi) : vandq_u8(bit, hi);
        return (struct bytes32){ vorrq_s8(v.lo, vreinterpretq_s8_u8(lo)), vorrq_s8(v.hi, vreinterpretq_s8_u8(hi)) };
    }
    return v;
}

/* The scales of four blocks, and what multiplies the activations' sums. */
INLINE float32x4_t scales(const enum fo_dtype type, const unsigned char *const p[4], float32x4_t *ret_m) {
    *ret_m = vdupq_n_f32(0);
    if (type == FO_MXFP4) { /* 2^(e - 128): a float of exponent e - 1, subnormal for 0 and 1 */
        const uint32_t bytes[4] = { p[0][0], p[1][0], p[2][0], p[3][0] };
        uint32x4_t e = vld1q_u32(bytes), one = vdupq_n_u32(1);
        uint32x4_t small = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e));
        return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(e, one), vshlq_n_u32(vsubq_u32(e, one), 23), small));
    }
    if (type == FO_Q4_1 || type == FO_Q5_1) {
        uint32x4_t both = vdupq_n_u32(0);
        both = vld1q_lane_u32((const uint32_t *)(const void *)p[0], both, 0);
        both = vld1q_lane_u32((const uint32_t *)(const void *)p[1], both, 1);
        both = vld1q_lane_u32((const uint32_t *)(const void *)p[2], both, 2);
        both = vld1q_lane_u32((const uint32_t *)(const void *)p[3], both, 3);
        *ret_m = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(both, 16)));
        return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(both)));
    }
    uint16x4_t h = vdup_n_u16(0);
    h = vld1_lane_u16((const uint16_t *)(const void *)p[0], h, 0);
    h = vld1_lane_u16((const uint16_t *)(const void *)p[1], h, 1);
    h = vld1_lane_u16((const uint16_t *)(const void *)p[2], h, 2);
    h = vld1_lane_u16((const uint16_t *)(const void *)p[3], h, 3);
    float32x4_t d = vcvt_f32_f16(vreinterpret_f16_u16(h));
    if (type == FO_Q4_0) *ret_m = vmulq_n_f32(d, -8);
    return d;
}

INLINE int32x4_t fold4(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

/* The scale and min of a block that a last group lacks. */
static const unsigned char none[4];

INLINE void dot_legacy(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t,
                       float *y, size_t y_stride, const int T) {
    const int size = block_bytes(type), n_blocks = (int)(a->k / FO_QK);
    const bool small = type != FO_Q8_0 && type != FO_IQ4_NL, sums = type == FO_Q4_0 || type == FO_Q4_1 || type == FO_Q5_1;
    const int32x4_t zero = vdupq_n_s32(0);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) float32x4_t f##n = vdupq_n_f32(0), g##n = f##n;
#define SUM(n, i) dot32(zero, q##i, load32(x##n.q + (b + i) * FO_QK), small)
#define MAC(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        float32x4_t s = vcvtq_f32_s32(fold4(SUM(n, 0), SUM(n, 1), SUM(n, 2), SUM(n, 3)));                                                \
        f##n = vfmaq_f32(f##n, s, vmulq_f32(d, vld1q_f32(x##n.d + b)));                                                                  \
        if (sums) g##n = vfmaq_f32(g##n, m, vld1q_f32(x##n.s + b));                                                                      \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = vaddvq_f32(vaddq_f32(f##n, g##n));
        EACH(ZERO)
        for (int b = 0; b < n_blocks; b += 4) {
            const int last = n_blocks - 1 - b;
            const unsigned char *first = w + (size_t)b * (size_t)size;
            const unsigned char *const p[4] = { first, first + (last < 1 ? last : 1) * size, first + (last < 2 ? last : 2) * size,
                                                first + (last < 3 ? last : 3) * size };
            struct bytes32 q0 = quants(type, p[0]), q1 = quants(type, p[1]), q2 = quants(type, p[2]), q3 = quants(type, p[3]);
            const unsigned char *const scaled[4] = { p[0], last < 1 ? none : p[1], last < 2 ? none : p[2], last < 3 ? none : p[3] };
            float32x4_t m, d = scales(type, scaled, &m);
            EACH(MAC)
        }
        EACH(OUT)
#undef ZERO
#undef SUM
#undef MAC
#undef OUT
    }
}
DOT_SLOT(dot_q4_0, dot_legacy, FO_Q4_0)
DOT_SLOT(dot_q4_1, dot_legacy, FO_Q4_1)
DOT_SLOT(dot_q5_0, dot_legacy, FO_Q5_0)
DOT_SLOT(dot_q5_1, dot_legacy, FO_Q5_1)
DOT_SLOT(dot_q8_0, dot_legacy, FO_Q8_0)
DOT_SLOT(dot_iq4_nl, dot_legacy, FO_IQ4_NL)
DOT_SLOT(dot_mxfp4, dot_legacy, FO_MXFP4)

/* Halves of four 8-bit floats: their bits, as those of a float, make one 2^119 too small, subnormal ones included. */
INLINE float32x4_t half_e4m3(const uint8_t d[4]) {
    const uint32_t bytes[4] = { d[0], d[1], d[2], d[3] };
    uint32x4_t code = vld1q_u32(bytes), bits = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(0x7F)), 20);
    bits = vbicq_u32(bits, vceqq_u32(code, vdupq_n_u32(0x7F)));
    return vmulq_n_f32(vreinterpretq_f32_u32(bits), 0x1p119f);
}

INLINE void dot_fp4(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                    size_t y_stride, const int T) {
    (void)type;
    const int n_blocks = (int)(a->k / 64);
    const int32x4_t zero = vdupq_n_s32(0);
    const int8x16_t values = vld1q_s8(fo_fp4_values);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const struct fo_block_nvfp4 *p = (const void *)w;
#define ZERO(n) float32x4_t f##n = vdupq_n_f32(0);
/* Sub-blocks 2i and 2i + 1 lie in 16 bytes: the low nibbles of eight are its first half. */
#define PAIR(i)                                                                                                                          \
    struct bytes32 v##i = nibbles(vld1q_u8(p[b].qs + 16 * (i)));                                                                         \
    int64x2_t lo##i = vreinterpretq_s64_s8(vqtbl1q_s8(values, vreinterpretq_u8_s8(v##i.lo)));                                            \
    int64x2_t hi##i = vreinterpretq_s64_s8(vqtbl1q_s8(values, vreinterpretq_u8_s8(v##i.hi)));                                            \
    int8x16_t a##i = vreinterpretq_s8_s64(vzip1q_s64(lo##i, hi##i)), b##i = vreinterpretq_s8_s64(vzip2q_s64(lo##i, hi##i));
#define MAC(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        struct bytes32 u = load32(x##n.q + b * 64), v = load32(x##n.q + b * 64 + 32);                                                    \
        int32x4_t s = fold4(dot16(zero, a0, u.lo), dot16(zero, b0, u.hi), dot16(zero, a1, v.lo), dot16(zero, b1, v.hi));                 \
        float32x2_t by = vld1_f32(x##n.d + b * 2);                                                                                       \
        f##n = vfmaq_f32(f##n, vcvtq_f32_s32(s), vmulq_f32(d, vcombine_f32(vdup_lane_f32(by, 0), vdup_lane_f32(by, 1))));                \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = vaddvq_f32(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            PAIR(0) PAIR(1)
            float32x4_t d = half_e4m3(p[b].d);
            EACH(MAC)
        }
        EACH(OUT)
#undef ZERO
#undef PAIR
#undef MAC
#undef OUT
    }
}
DOT_SLOT(dot_nvfp4, dot_fp4, FO_NVFP4)

static void fill_legacy(struct fo_cpu_kernels *k) {
    k->dot[FO_Q4_0] = dot_q4_0;
    k->dot[FO_Q4_1] = dot_q4_1;
    k->dot[FO_Q5_0] = dot_q5_0;
    k->dot[FO_Q5_1] = dot_q5_1;
    k->dot[FO_Q8_0] = dot_q8_0;
    k->dot[FO_IQ4_NL] = dot_iq4_nl;
    k->dot[FO_MXFP4] = dot_mxfp4;
    k->dot[FO_NVFP4] = dot_nvfp4;
}
#endif
