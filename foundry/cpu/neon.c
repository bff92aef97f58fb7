/* Activations and dots for NEON, which every 64-bit Arm CPU has. The dots of quantised types are in neon_legacy.h and neon_k.h, templates that
 * dotprod.c compiles again for CPUs with the dot-product instruction; the results are the same to the bit.
 *
 * One row of weights at a time. What is unpacked of a block serves up to FO_TILE rows of activations, each with accumulators of its own, so
 * the operations on a row of activations are the same alone or in a tile. Accumulators are named variables: in arrays, gcc keeps them in
 * memory. */
#include "foundry/cpu/kernels.h"

#if defined(__aarch64__)
#include <math.h>

#include "foundry/cpu/neon.h"
#include "foundry/cpu/neon_k.h"
#include "foundry/cpu/neon_legacy.h"

/* --- activations --------------------------------------------------------------------------------------------------------------- */

INLINE uint32x4_t magnitudes(const float *x) {
    return vbicq_u32(vreinterpretq_u32_f32(vld1q_f32(x)), vdupq_n_u32(0x80000000));
}

/* As fo_abs_max: magnitudes compared as integers, and NaN when one is not finite. */
INLINE float largest(const float *x, const int n) {
    uint32x4_t a = magnitudes(x), b = magnitudes(x + 4);
    for (int i = 8; i < n; i += 8) a = vmaxq_u32(a, magnitudes(x + i)), b = vmaxq_u32(b, magnitudes(x + i + 4));
    uint32_t top = vmaxvq_u32(vmaxq_u32(a, b));
    float f;
    memcpy(&f, &top, sizeof f);
    return top >= 0x7F800000 ? NAN : f;
}

/* 16 floats to 16 integers in order. */
INLINE int8x16_t round16(const float *x, float inv) {
    if (inv == 0.0f) return vdupq_n_s8(0); /* one may be a NaN */
#define ROUND(i) vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * (i)), inv))
    int16x8_t lo = vcombine_s16(vmovn_s32(ROUND(0)), vmovn_s32(ROUND(1))), hi = vcombine_s16(vmovn_s32(ROUND(2)), vmovn_s32(ROUND(3)));
#undef ROUND
    return vcombine_s8(vmovn_s16(lo), vmovn_s16(hi));
}

static void quant_q8_0(const float *x, int64_t k, struct fo_act_q8_0 out) {
    for (int64_t b = 0; b < k / 32; b++, x += 32) {
        float inv, d = fo_act_scale(largest(x, 32), &inv);
        struct bytes32 q = { round16(x, inv), round16(x + 16, inv) };
        vst1q_s8(out.q + b * 32, q.lo);
        vst1q_s8(out.q + b * 32 + 16, q.hi);
        vst1q_s8(out.p + fo_act_place(b), q.lo);
        vst1q_s8(out.p + fo_act_place(b) + FO_ACT_HALF, q.hi);
        out.d[b] = d;
        out.s[b] = d * (float)(vaddlvq_s8(q.lo) + vaddlvq_s8(q.hi));
    }
    fo_act_pad(out, k);
}

static void quant_q8_k(const float *x, int64_t k, struct fo_act_q8_k out) {
    for (int64_t b = 0; b < k / 256; b++) {
        float inv;
        out.d[b] = fo_act_scale(largest(x + b * 256, 256), &inv);
        for (int64_t j = b * 8; j < b * 8 + 8; j++) {
            struct bytes32 q = { round16(x + j * 32, inv), round16(x + j * 32 + 16, inv) };
            vst1q_s8(out.q + j * 32, q.lo);
            vst1q_s8(out.q + j * 32 + 16, q.hi);
            out.sum16[2 * j] = vaddlvq_s8(q.lo);
            out.sum16[2 * j + 1] = vaddlvq_s8(q.hi);
            out.sum32[j] = (int16_t)(out.sum16[2 * j] + out.sum16[2 * j + 1]);
        }
    }
}

/* --- floats -------------------------------------------------------------------------------------------------------------------- */

INLINE float32x4_t load4(const unsigned char *w, int64_t i, const enum fo_dtype type) {
    if (type == FO_F32) return vld1q_f32((const float *)(const void *)w + i);
    uint16x4_t h = vld1_u16((const uint16_t *)(const void *)w + i);
    return type == FO_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

/* Elements 4i.. go to one of two accumulators in turn; what is left of a row below 4 elements goes there from a padded copy. */
INLINE void dot_floats(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t,
                       float *y, size_t y_stride, const int T) {
    const int64_t k = a->k, whole = k / 4 * 4, size = type == FO_F32 ? 4 : 2;
    const float *x = a->x + t * k;
    float xt[FO_TILE][4] = { { 0 } };
    for (int j = 0; j < T; j++)
        if (k > whole) memcpy(xt[j], x + j * k + whole, (size_t)(k - whole) * sizeof *x);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) float32x4_t fa##n = vdupq_n_f32(0), fb##n = fa##n;
#define STEP_A(n) if (n < T) fa##n = vfmaq_f32(fa##n, v, vld1q_f32(x + n * k + i));
#define STEP_B(n) if (n < T) fb##n = vfmaq_f32(fb##n, u, vld1q_f32(x + n * k + i + 4));
#define LAST(n) if (n < T) fb##n = vfmaq_f32(fb##n, v, vld1q_f32(xt[n]));
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = vaddvq_f32(vaddq_f32(fa##n, fb##n));
        EACH(ZERO)
        int64_t i = 0;
        for (; i + 8 <= k; i += 8) {
            float32x4_t v = load4(w, i, type), u = load4(w, i + 4, type);
            EACH(STEP_A)
            EACH(STEP_B)
        }
        if (i < whole) {
            float32x4_t v = load4(w, i, type);
            EACH(STEP_A)
        }
        if (whole < k) {
            _Alignas(16) unsigned char rest[16] = { 0 };
            memcpy(rest, w + whole * size, (size_t)((k - whole) * size));
            float32x4_t v = load4(rest, 0, type);
            EACH(LAST)
        }
        EACH(OUT)
#undef ZERO
#undef STEP_A
#undef STEP_B
#undef LAST
#undef OUT
    }
}
DOT_SLOT(dot_f32, dot_floats, FO_F32)
DOT_SLOT(dot_f16, dot_floats, FO_F16)
DOT_SLOT(dot_bf16, dot_floats, FO_BF16)

bool fo_cpu_neon(struct fo_cpu_kernels *k) {
    k->isa = "neon";
    k->quant_q8_0 = quant_q8_0;
    k->quant_q8_k = quant_q8_k;
    k->dot[FO_F32] = dot_f32;
    k->dot[FO_F16] = dot_f16;
    k->dot[FO_BF16] = dot_bf16;
    fill_legacy(k);
    fill_256(k);
    fo_cpu_neon_rows(k);
    return true;
}
#else
bool fo_cpu_neon(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
#endif
