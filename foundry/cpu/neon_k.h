/* NEON dots of the types in blocks of 256, but for those with code books (neon_iq.h, which this file includes for their quants). Included by
 * neon.c and dotprod.c.
 *
 * A block is eight runs of 32 elements. Each run is unpacked once, to bytes with their offset in them, and meets every row of activations;
 * the integer scales apply to integer sums, lane by lane, so a block ends as one integer and takes one conversion, as in the reference. Mins
 * are one integer product with the activations' sums. */
#pragma once
#if defined(__aarch64__)
#include "foundry/cpu/neon.h"
#include "foundry/cpu/neon_iq.h"
#include "foundry/quant.h"

#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* What stands around the quants of a block. Integer scales are one for each run or, in types that `halves` names, one for each half of a run;
 * mins go with the activations' sums of as many elements. */
struct head {
    float d, d_min;
    int32x4_t scale[4];
    int16x8_t min[2];
};

INLINE bool halves(const enum fo_dtype type) {
    return type == FO_Q2_K || type == FO_Q3_K || type == FO_Q6_K || type == FO_IQ2_XS || type == FO_IQ2_S || type == FO_IQ1_M;
}

INLINE bool has_scales(const enum fo_dtype type) {
    return type != FO_TQ1_0 && type != FO_TQ2_0;
}

INLINE bool has_mins(const enum fo_dtype type) {
    return type == FO_Q2_K || type == FO_Q4_K || type == FO_Q5_K;
}

INLINE void widen8(int8x8_t v, int32x4_t ret[2]) {
    int16x8_t w = vmovl_s8(v);
    ret[0] = vmovl_s16(vget_low_s16(w));
    ret[1] = vmovl_high_s16(w);
}

INLINE void widen16(int8x16_t v, int32x4_t ret[4]) {
    widen8(vget_low_s8(v), ret);
    widen8(vget_high_s8(v), ret + 2);
}

/* The eight 6-bit scales and mins of Q4_K and Q5_K: fo_q4_k_scale_min for all at once. */
INLINE void scales_and_mins(const uint8_t packed[12], struct head *h) {
    uint32_t a, b, c;
    memcpy(&a, packed, 4);
    memcpy(&b, packed + 4, 4);
    memcpy(&c, packed + 8, 4);
    uint32_t scales_hi = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), mins_hi = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
    widen8(vcreate_s8((a & 0x3F3F3F3F) | (uint64_t)scales_hi << 32), h->scale);
    h->min[0] = vmovl_s8(vcreate_s8((b & 0x3F3F3F3F) | (uint64_t)mins_hi << 32));
}

/* The sixteen of Q3_K, less 32: fo_q3_k_scale for all at once. */
INLINE int8x16_t q3_scales(const uint8_t packed[12]) {
    uint32_t c;
    memcpy(&c, packed + 8, 4);
    struct bytes32 low = nibbles(vcombine_u8(vld1_u8(packed), vdup_n_u8(0)));
    const int32_t by_two[4] = { 4, 2, 0, -2 };
    uint8x16_t high = vandq_u8(vreinterpretq_u8_u32(vshlq_u32(vdupq_n_u32(c), vld1q_s32(by_two))), vdupq_n_u8(0x30));
    int8x16_t all = vcombine_s8(vget_low_s8(low.lo), vget_low_s8(low.hi));
    return vsubq_s8(vorrq_s8(all, vreinterpretq_s8_u8(high)), vdupq_n_s8(32));
}

INLINE int8x8_t iq4_scales(const struct fo_block_iq4_xs *p) {
    uint32_t low;
    memcpy(&low, p->scales_l, sizeof low);
    const int16_t by_two[8] = { 4, 2, 0, -2, -4, -6, -8, -10 };
    uint8x8_t high = vand_u8(vmovn_u16(vshlq_u16(vdupq_n_u16(p->scales_h), vld1q_s16(by_two))), vdup_n_u8(0x30));
    uint8x8_t both = vcreate_u8(low), l = vzip1_u8(vand_u8(both, vdup_n_u8(15)), vshr_n_u8(both, 4));
    return vsub_s8(vreinterpret_s8_u8(vorr_u8(l, high)), vdup_n_s8(32));
}

INLINE void head_of(const enum fo_dtype type, const unsigned char *p, struct head *h) {
    const struct fo_block_q2_k *q2 = (const void *)p;
    const struct fo_block_q3_k *q3 = (const void *)p;
    const struct fo_block_q4_k *q4 = (const void *)p; /* Q5_K begins alike */
    const struct fo_block_q6_k *q6 = (const void *)p;
    const struct fo_block_tq1_0 *t1 = (const void *)p;
    const struct fo_block_tq2_0 *t2 = (const void *)p;
    const struct fo_block_iq4_xs *i4 = (const void *)p;
    struct bytes32 both;
    switch (type) {
    case FO_Q2_K:
        h->d = half_to_f32(q2->d), h->d_min = half_to_f32(q2->dmin);
        both = nibbles(vld1q_u8(q2->scales));
        widen16(both.lo, h->scale);
        h->min[0] = vmovl_s8(vget_low_s8(both.hi)), h->min[1] = vmovl_high_s8(both.hi);
        return;
    case FO_Q3_K:
        h->d = half_to_f32(q3->d);
        widen16(q3_scales(q3->scales), h->scale);
        return;
    case FO_Q4_K:
    case FO_Q5_K:
        h->d = half_to_f32(q4->d), h->d_min = half_to_f32(q4->dmin);
        scales_and_mins(q4->scales, h);
        return;
    case FO_Q6_K:
        h->d = half_to_f32(q6->d);
        widen16(vld1q_s8(q6->scales), h->scale);
        return;
    case FO_IQ4_XS:
        h->d = half_to_f32(i4->d);
        widen8(iq4_scales(i4), h->scale);
        return;
    case FO_TQ1_0: h->d = half_to_f32(t1->d); return;
    case FO_TQ2_0: h->d = half_to_f32(t2->d); return;
    default: {
        int32_t scale[16];
        h->d = iq_scales(type, p, scale);
        for (int i = 0; i < (halves(type) ? 4 : 2); i++) h->scale[i] = vld1q_s32(scale + 4 * i);
    }
    }
}

/* Two bits of each byte. */
INLINE int8x16_t two_bits(const uint8_t *p, const int r) {
    return vreinterpretq_s8_u8(vandq_u8(vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)(-2 * r))), vdupq_n_u8(3)));
}

/* `value` where bit `j` of a byte is set. */
INLINE int8x16_t where_bit(const uint8_t *p, const int j, const int value) {
    return vreinterpretq_s8_u8(vandq_u8(vtstq_u8(vld1q_u8(p), vdupq_n_u8((uint8_t)(1 << j))), vdupq_n_u8((uint8_t)value)));
}

/* A digit of base 3, less one, of bytes that hold it as a fraction of 256: 86 and up is 1, 171 and up is 2. */
INLINE int8x16_t digit(uint8x16_t v, uint8x16_t shift) {
    uint8x16_t rest = vmulq_u8(v, shift); /* the higher digits drop out */
    uint8x16_t minus = vaddq_u8(vcgtq_u8(rest, vdupq_n_u8(85)), vcgtq_u8(rest, vdupq_n_u8(170)));
    return vsubq_s8(vdupq_n_s8(-1), vreinterpretq_s8_u8(minus));
}

INLINE struct bytes32 tq1_run(const struct fo_block_tq1_0 *p, const int j) {
    const uint8_t shift[5] = { 1, 3, 9, 27, 81 };
    if (j < 5) return (struct bytes32){ digit(vld1q_u8(p->qs), vdupq_n_u8(shift[j])), digit(vld1q_u8(p->qs + 16), vdupq_n_u8(shift[j])) };
    uint8x16_t v = vld1q_u8(p->qs + 32);
    if (j < 7) return (struct bytes32){ digit(v, vdupq_n_u8(shift[2 * j - 10])), digit(v, vdupq_n_u8(shift[2 * j - 9])) };
    uint32_t last;
    memcpy(&last, p->qh, sizeof last);
    const uint8_t four[16] = { 1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27 };
    return (struct bytes32){ digit(v, vdupq_n_u8(shift[4])), digit(vreinterpretq_u8_u32(vdupq_n_u32(last)), vld1q_u8(four)) };
}

/* Elements 32j and up of a block, as the bytes that scales multiply. */
INLINE struct bytes32 run_of(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *books, const int j) {
    const struct fo_block_q2_k *q2 = (const void *)p;
    const struct fo_block_q3_k *q3 = (const void *)p;
    const struct fo_block_q4_k *q4 = (const void *)p;
    const struct fo_block_q5_k *q5 = (const void *)p;
    const struct fo_block_q6_k *q6 = (const void *)p;
    const struct fo_block_tq2_0 *t2 = (const void *)p;
    const struct fo_block_iq4_xs *i4 = (const void *)p;
    struct bytes32 v = { .lo = vdupq_n_s8(0) };
    const uint8_t *qs;
    switch (type) {
    case FO_Q2_K: return (struct bytes32){ two_bits(q2->qs + j / 4 * 32, j % 4), two_bits(q2->qs + j / 4 * 32 + 16, j % 4) };
    case FO_TQ2_0:
        v.lo = vsubq_s8(two_bits(t2->qs + j / 4 * 32, j % 4), vdupq_n_s8(1));
        v.hi = vsubq_s8(two_bits(t2->qs + j / 4 * 32 + 16, j % 4), vdupq_n_s8(1));
        return v;
    case FO_Q3_K: /* 4 less unless its bit is set */
        v.lo = vsubq_s8(vorrq_s8(two_bits(q3->qs + j / 4 * 32, j % 4), where_bit(q3->hmask, j, 4)), vdupq_n_s8(4));
        v.hi = vsubq_s8(vorrq_s8(two_bits(q3->qs + j / 4 * 32 + 16, j % 4), where_bit(q3->hmask + 16, j, 4)), vdupq_n_s8(4));
        return v;
    case FO_Q4_K:
    case FO_Q5_K: {
        qs = (type == FO_Q5_K ? q5->qs : q4->qs) + j / 2 * 32;
        struct bytes32 a = nibbles(vld1q_u8(qs)), b = nibbles(vld1q_u8(qs + 16));
        v = j % 2 ? (struct bytes32){ a.hi, b.hi } : (struct bytes32){ a.lo, b.lo };
        if (type == FO_Q5_K) v.lo = vorrq_s8(v.lo, where_bit(q5->qh, j, 16)), v.hi = vorrq_s8(v.hi, where_bit(q5->qh + 16, j, 16));
        return v;
    }
    case FO_Q6_K: {
        qs = q6->ql + j / 4 * 64 + j % 2 * 32;
        const uint8_t *qh = q6->qh + j / 4 * 32;
        struct bytes32 a = nibbles(vld1q_u8(qs)), b = nibbles(vld1q_u8(qs + 16));
        v = j % 4 / 2 ? (struct bytes32){ a.hi, b.hi } : (struct bytes32){ a.lo, b.lo };
        v.lo = vsubq_s8(vorrq_s8(v.lo, vshlq_n_s8(two_bits(qh, j % 4), 4)), vdupq_n_s8(32));
        v.hi = vsubq_s8(vorrq_s8(v.hi, vshlq_n_s8(two_bits(qh + 16, j % 4), 4)), vdupq_n_s8(32));
        return v;
    }
    case FO_IQ4_XS: {
        int8x16_t values = vld1q_s8(fo_iq4_values);
        v = nibbles(vld1q_u8(i4->qs + 16 * j));
        return (struct bytes32){ vqtbl1q_s8(values, vreinterpretq_u8_s8(v.lo)), vqtbl1q_s8(values, vreinterpretq_u8_s8(v.hi)) };
    }
    case FO_TQ1_0: return tq1_run((const void *)p, j);
    default: return iq_run(type, p, books, j);
    }
}

INLINE int dot_mins(const enum fo_dtype type, const struct head *h, struct fo_act_q8_k x, int64_t b) {
    const int16_t *sums = type == FO_Q2_K ? x.sum16 + b * 16 : x.sum32 + b * 8;
    int16x8_t s = vld1q_s16(sums);
    int32x4_t m = vmlal_high_s16(vmull_s16(vget_low_s16(h->min[0]), vget_low_s16(s)), h->min[0], s);
    if (type == FO_Q2_K) {
        s = vld1q_s16(sums + 8);
        m = vmlal_high_s16(vmlal_s16(m, vget_low_s16(h->min[1]), vget_low_s16(s)), h->min[1], s);
    }
    return vaddvq_s32(m);
}

INLINE void dot_256(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                    size_t y_stride, const int T) {
    const size_t size = fo_dtype_info(type)->block_bytes;
    const int n_blocks = (int)(a->k / FO_QK_K);
    const bool small = type != FO_IQ4_XS;
    const struct fo_cpu_books *books = has_book(type) ? fo_cpu_books() : NULL;
    const int32x4_t zero = vdupq_n_s32(0);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) float f##n = 0;
#define START(n) int32x4_t s##n = zero;
#define SCALED(n, i, products) s##n = vmlaq_laneq_s32(s##n, products, h.scale[(i) / 4], (i) % 4);
#define MAC(n, j)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        struct bytes32 x = load32(x##n.q + b * FO_QK_K + 32 * (j));                                                                      \
        if (!has_scales(type)) {                                                                                                         \
            s##n = dot32(s##n, v, x, small);                                                                                             \
        } else if (halves(type)) {                                                                                                       \
            SCALED(n, 2 * (j), dot16(zero, v.lo, x.lo)) SCALED(n, 2 * (j) + 1, dot16(zero, v.hi, x.hi))                                  \
        } else {                                                                                                                         \
            SCALED(n, j, dot32(zero, v, x, small))                                                                                       \
        }                                                                                                                                \
    }
#define RUN(j)                                                                                                                           \
    {                                                                                                                                    \
        struct bytes32 v = run_of(type, p, books, j);                                                                                    \
        MAC(0, j) MAC(1, j) MAC(2, j) MAC(3, j)                                                                                          \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        float product = h.d * x##n.d[b] * (float)vaddvq_s32(s##n);                                                                       \
        f##n += has_mins(type) ? product - h.d_min * x##n.d[b] * (float)dot_mins(type, &h, x##n, b) : product;                           \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = f##n;
        EACH(ZERO)
        const unsigned char *p = w;
        for (int64_t b = 0; b < n_blocks; b++, p += size) {
            struct head h;
            head_of(type, p, &h);
            EACH(START)
            EACH8(RUN)
            EACH(BLOCK_END)
        }
        EACH(OUT)
#undef ZERO
#undef START
#undef SCALED
#undef MAC
#undef RUN
#undef BLOCK_END
#undef OUT
    }
}

#define DOTS_256(X)                                                                                                                      \
    X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS) X(TQ1_0) X(TQ2_0) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M)
#define SLOT(type) DOT_SLOT(dot_##type, dot_256, FO_##type)
DOTS_256(SLOT)
#undef SLOT

static void fill_256(struct fo_cpu_kernels *k) {
#define FILL(type) k->dot[FO_##type] = dot_##type;
    DOTS_256(FILL)
#undef FILL
}
#endif
