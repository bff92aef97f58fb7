/* What the NEON overlay's files share. Compiled twice: for any 64-bit Arm CPU, and (dotprod.c) for those that add four products of bytes to
 * a 32-bit lane in one instruction. Empty on other architectures. */
#pragma once
#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "foundry/cpu/tile.h"

#define INLINE static inline __attribute__((always_inline))

struct bytes32 {
    int8x16_t lo, hi;
};

INLINE float half_to_f32(uint16_t bits) {
    __fp16 h;
    memcpy(&h, &bits, sizeof h);
    return (float)h;
}

/* fo_ref_exp on four lanes, with fused products. */
INLINE float32x4_t exp4(float32x4_t x) {
    const float32x4_t round = vdupq_n_f32(12582912.0f);
    uint32x4_t zero = vcltq_f32(x, vdupq_n_f32(-87.33f));
    x = vminq_f32(x, vdupq_n_f32(88.37f)); /* a NaN stays */
    float32x4_t shifted = vfmaq_n_f32(round, x, 1.44269504f), n = vsubq_f32(shifted, round);
    float32x4_t r = vfmaq_n_f32(vfmaq_n_f32(x, n, -0.693359375f), n, 2.12194440e-4f);
    float32x4_t p = vdupq_n_f32(1.98412698e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.38888889e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.33333333e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.16666667e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.66666667e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    uint32x4_t two_n = vshlq_n_u32(vaddq_u32(vreinterpretq_u32_f32(shifted), vdupq_n_u32(127)), 23);
    p = vmulq_f32(p, vreinterpretq_f32_u32(two_n));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), zero));
}

INLINE struct bytes32 load32(const int8_t *p) {
    return (struct bytes32){ vld1q_s8(p), vld1q_s8(p + 16) };
}

/* s + products of 16 bytes, somehow over its lanes. |w| <= 128 and |x| <= 127: without the extension two products meet in 16 bits. */
INLINE int32x4_t dot16(int32x4_t s, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(s, w, x);
#else
    return vpadalq_s16(s, vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x));
#endif
}

/* The same of 32 bytes; with |w| <= 64 four products meet in 16 bits. */
INLINE int32x4_t dot32(int32x4_t s, struct bytes32 w, struct bytes32 x, const bool small) {
#if !defined(__ARM_FEATURE_DOTPROD)
    if (small) {
        int16x8_t p = vmlal_high_s8(vmull_s8(vget_low_s8(w.lo), vget_low_s8(x.lo)), w.lo, x.lo);
        return vpadalq_s16(s, vmlal_high_s8(vmlal_s8(p, vget_low_s8(w.hi), vget_low_s8(x.hi)), w.hi, x.hi));
    }
#endif
    (void)small;
    return dot16(dot16(s, w.lo, x.lo), w.hi, x.hi);
}

/* Bytes as two nibbles each, low ones first. */
INLINE struct bytes32 nibbles(uint8x16_t v) {
    return (struct bytes32){ vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(v, 4)) };
}

/* Two bytes of bits, each bit as a byte of ones or zeros. */
INLINE uint8x16_t spread(const uint8_t *two) {
    static const uint8_t bit[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    return vtstq_u8(vcombine_u8(vdup_n_u8(two[0]), vdup_n_u8(two[1])), vld1q_u8(bit));
}
#endif
