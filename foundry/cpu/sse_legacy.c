/* Dots with the types of 32 elements a scale, for SSSE3 and SSE4.1, and NVFP4 with a scale a 16.
 *
 * Four blocks at a time: each block's sum stays an integer until four of them share a register, so that they take one conversion and one product
 * with their scales; lane i of a row's sum has blocks i, i + 4, i + 8... A last group of fewer blocks takes the quants that are
 * missing from the row's last block, so that nothing past the row is read, and zero for their scales: the activations' padding, 0, cancels
 * the ones and would make an infinite one of the others NaN.
 *
 * pmaddubsw adds two products u8 * s8 in 16 bits, saturating; how far sums of products can stay there:
 *
 *   Q4_0, Q4_1     q <= 15: all of a block's, folded to pairs of words, 16 * 15 * 127 = 30480
 *   Q5_0, Q5_1     q <= 31: four, 4 * 31 * 127 = 15748
 *   MXFP4          |q| <= 12: the same
 *   Q8_0, IQ4_NL   |q| <= 128 by x with the sign of q: two, 2 * 128 * 127 = 32512
 *
 * The offset of the quants (-8 in Q4_0, -16 in Q5_0) or the min is a product with the activations' s, in the reference's own order. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/sse.h"
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

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

INLINE bool with_sign(const enum fo_dtype type) {
    return type == FO_Q8_0 || type == FO_IQ4_NL || type == FO_MXFP4;
}

INLINE bool with_min(const enum fo_dtype type) {
    return type == FO_Q4_1 || type == FO_Q5_1;
}

struct quants {
    __m128i lo, hi; /* elements 0..15 and 16..31 */
};

/* Sixteen bits one to a byte: 16 where set. */
INLINE __m128i fifths(const void *two) {
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201ULL);
    __m128i v = _mm_shuffle_epi8(_mm_cvtsi32_si128(half_of(two)), _mm_set_epi64x(0x0101010101010101, 0));
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(v, bit), bit), _mm_set1_epi8(16));
}

INLINE struct quants quants_of(const enum fo_dtype type, const unsigned char *p) {
    const unsigned char *qs = p + quants_at(type);
    const __m128i low = _mm_set1_epi8(15), v = load(qs);
    if (type == FO_Q8_0) return (struct quants){ v, load(qs + 16) };
    struct quants q = { _mm_and_si128(v, low), _mm_and_si128(_mm_srli_epi16(v, 4), low) };
    if (type == FO_IQ4_NL || type == FO_MXFP4) {
        __m128i values = load(type == FO_MXFP4 ? fo_fp4_values : fo_iq4_values);
        q.lo = _mm_shuffle_epi8(values, q.lo), q.hi = _mm_shuffle_epi8(values, q.hi);
    }
    if (type == FO_Q5_0 || type == FO_Q5_1) q.lo = _mm_or_si128(q.lo, fifths(qs - 4)), q.hi = _mm_or_si128(q.hi, fifths(qs - 2));
    return q;
}

/* The scales of blocks at a, b, c and d, and their mins where the type has them. */
INLINE __m128 scales4(const enum fo_dtype type, const unsigned char *a, const unsigned char *b, const unsigned char *c, const unsigned char *d,
                      __m128 *ret_m) {
    if (type == FO_MXFP4) { /* 2^(e - 128): a float of exponent e - 1, subnormal for 0 and 1 */
        __m128i e = _mm_setr_epi32(a[0], b[0], c[0], d[0]), one = _mm_set1_epi32(1);
        return _mm_castsi128_ps(choose(_mm_cmpgt_epi32(e, one), _mm_slli_epi32(_mm_sub_epi32(e, one), 23), _mm_slli_epi32(_mm_add_epi32(e, one), 21)));
    }
    if (with_min(type)) {
        __m128i both = _mm_setr_epi32((int)word_of(a), (int)word_of(b), (int)word_of(c), (int)word_of(d));
        *ret_m = halves4(both);
        return halves4(_mm_slli_epi32(both, 16));
    }
    __m128i h = _mm_setzero_si128();
    h = _mm_insert_epi16(h, half_of(a), 1);
    h = _mm_insert_epi16(h, half_of(b), 3);
    h = _mm_insert_epi16(h, half_of(c), 5);
    return halves4(_mm_insert_epi16(h, half_of(d), 7));
}

/* A block's products, somehow over eight words (Q4_0, Q4_1) or four dwords; u is |q|. */
INLINE __m128i products(const enum fo_dtype type, struct quants q, struct quants u, const int8_t *x) {
    const __m128i one = _mm_set1_epi16(1);
    __m128i lo = load_aligned(x), hi = load_aligned(x + 16);
    lo = with_sign(type) ? _mm_maddubs_epi16(u.lo, _mm_sign_epi8(lo, q.lo)) : _mm_maddubs_epi16(q.lo, lo);
    hi = with_sign(type) ? _mm_maddubs_epi16(u.hi, _mm_sign_epi8(hi, q.hi)) : _mm_maddubs_epi16(q.hi, hi);
    if (type == FO_Q8_0 || type == FO_IQ4_NL) return _mm_add_epi32(_mm_madd_epi16(lo, one), _mm_madd_epi16(hi, one));
    lo = _mm_add_epi16(lo, hi);
    return type == FO_Q4_0 || type == FO_Q4_1 ? lo : _mm_madd_epi16(lo, one);
}

/* Lanes 0 and 2, or 1 and 3, of two registers side by side. */
INLINE __m128i even(__m128i a, __m128i b) {
    return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88));
}

INLINE __m128i odd(__m128i a, __m128i b) {
    return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0xDD));
}

/* The sums of four blocks, one a lane. In words the last two are joined by pmaddwd. */
INLINE __m128 fold4(const enum fo_dtype type, __m128i a, __m128i b, __m128i c, __m128i d) {
#define SUM(add) add(even(u, v), odd(u, v))
#define PAIR(add, a, b) add(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b))
    __m128i u, v;
    if (type == FO_Q4_0 || type == FO_Q4_1) {
        u = PAIR(_mm_add_epi16, a, b), v = PAIR(_mm_add_epi16, c, d);
        return _mm_cvtepi32_ps(_mm_madd_epi16(SUM(_mm_add_epi16), _mm_set1_epi16(1)));
    }
    u = PAIR(_mm_add_epi32, a, b), v = PAIR(_mm_add_epi32, c, d);
    return _mm_cvtepi32_ps(SUM(_mm_add_epi32));
#undef SUM
#undef PAIR
}

/* The scale and min of a block that a last group lacks. */
static const unsigned char none[4];

INLINE void dot_legacy(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                       size_t y_stride, const int T) {
    const int size = block_bytes(type), n_blocks = (int)(a->k / FO_QK), rest = n_blocks % 4;
    const __m128 offset = _mm_set1_ps(type == FO_Q5_0 ? 16 : 8);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const unsigned char *p = w;
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define SUMS(n) __m128i s##n##_0, s##n##_1, s##n##_2, s##n##_3;
#define MAC(n, i) if (n < T) s##n##_##i = products(type, q, u, x##n.q + (b + i) * FO_QK);
#define BLOCK(i, last)                                                                                                                   \
    {                                                                                                                                    \
        struct quants q = quants_of(type, p + ((i) < (last) ? (i) : (last)) * size), u = q;                                              \
        if (with_sign(type)) u = (struct quants){ _mm_abs_epi8(q.lo), _mm_abs_epi8(q.hi) };                                              \
        MAC(0, i) MAC(1, i) MAC(2, i) MAC(3, i)                                                                                          \
    }
#define ADD(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        __m128 v = _mm_mul_ps(fold4(type, s##n##_0, s##n##_1, s##n##_2, s##n##_3), _mm_load_ps(x##n.d + b)), xs = _mm_load_ps(x##n.s + b); \
        if (type == FO_Q4_0 || type == FO_Q5_0) v = _mm_sub_ps(v, _mm_mul_ps(offset, xs));                                               \
        v = _mm_mul_ps(d, v);                                                                                                            \
        f##n = _mm_add_ps(f##n, with_min(type) ? _mm_add_ps(v, _mm_mul_ps(m, xs)) : v);                                                  \
    }
/* Blocks b .. b + last of the row. */
#define GROUP(last)                                                                                                                      \
    {                                                                                                                                    \
        EACH(SUMS)                                                                                                                       \
        BLOCK(0, last) BLOCK(1, last) BLOCK(2, last) BLOCK(3, last)                                                                      \
        __m128 m = _mm_setzero_ps();                                                                                                     \
        __m128 d = scales4(type, p, (last) < 1 ? none : p + size, (last) < 2 ? none : p + 2 * size, (last) < 3 ? none : p + 3 * size, &m); \
        EACH(ADD)                                                                                                                        \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        int b = 0;
        for (; b + 4 <= n_blocks; b += 4, p += 4 * size) {
            ahead(p), ahead(p + 64);
            if (type == FO_Q8_0) ahead(p + 128);
            GROUP(3)
        }
        if (rest) GROUP(rest - 1)
        EACH(OUT)
#undef ZERO
#undef SUMS
#undef MAC
#undef BLOCK
#undef ADD
#undef GROUP
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

/* Halves of four 8-bit floats: shifted to the fields of a half they are 2^8 too small, subnormals too. The top bit counts for nothing, but 0x7F
 * alone is zero. */
INLINE __m128 half_e4m3(const uint8_t d[4]) {
    __m128i c = _mm_cvtsi32_si128((int)word_of(d)), nan = _mm_cmpeq_epi8(c, _mm_set1_epi8(0x7F));
    c = _mm_cvtepu8_epi32(_mm_and_si128(_mm_andnot_si128(nan, c), _mm_set1_epi8(0x7F)));
    return _mm_mul_ps(halves4(_mm_slli_epi32(c, 16 + 7)), _mm_set1_ps(128));
}

INLINE void dot_fp4(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                    size_t y_stride, const int T) {
    (void)type;
    const int n_blocks = (int)(a->k / 64);
    const __m128i values = load(fo_fp4_values), low = _mm_set1_epi8(15), one = _mm_set1_epi16(1);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const struct fo_block_nvfp4 *p = (const void *)w;
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
/* Sub-blocks 2i and 2i + 1 lie in 16 bytes: the low nibbles of eight are its first half. */
#define PAIR(i)                                                                                                                          \
    __m128i v##i = load(p[b].qs + 16 * (i));                                                                                             \
    __m128i lo##i = _mm_shuffle_epi8(values, _mm_and_si128(v##i, low)), hi##i = _mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(v##i, 4), low)); \
    __m128i a##i = _mm_unpacklo_epi64(lo##i, hi##i), b##i = _mm_unpackhi_epi64(lo##i, hi##i), ua##i = _mm_abs_epi8(a##i), ub##i = _mm_abs_epi8(b##i);
#define SUM(q, u, x) _mm_maddubs_epi16(u, _mm_sign_epi8(load_aligned(x), q))
/* At most 4 * 12 * 127 in a word, and after the folding 16. */
#define MAC(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        const int8_t *x = x##n.q + b * 64;                                                                                               \
        __m128i u = _mm_hadd_epi16(SUM(a0, ua0, x), SUM(b0, ub0, x + 16)), v = _mm_hadd_epi16(SUM(a1, ua1, x + 32), SUM(b1, ub1, x + 48)); \
        __m128i s = _mm_madd_epi16(_mm_hadd_epi16(u, v), one);                                                                           \
        __m128 by = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)(x##n.d + b * 2)));                                  \
        f##n = _mm_add_ps(f##n, _mm_mul_ps(_mm_cvtepi32_ps(s), _mm_mul_ps(d, _mm_unpacklo_ps(by, by))));                                 \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            ahead(p + b);
            PAIR(0) PAIR(1)
            __m128 d = half_e4m3(p[b].d);
            EACH(MAC)
        }
        EACH(OUT)
#undef ZERO
#undef PAIR
#undef SUM
#undef MAC
#undef OUT
    }
}
DOT_SLOT(dot_nvfp4, dot_fp4, FO_NVFP4)

void fo_cpu_sse_legacy(struct fo_cpu_kernels *k) {
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
