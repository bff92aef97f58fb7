/* The SSE overlay's dot with types of 256 elements a block, for sse_k.c and sse_iq.c. The including file says what is in a block: head_of its
 * scales, run_of the quants of 32 elements.
 *
 * Each run is unpacked once and meets every row of activations. The integer scales apply to integer sums while these are widened (pmaddwd), so a
 * block ends as one integer and has one conversion to float; the floats of a row are added block by block, which is what sse_gemm.c does too. Mins
 * and offsets are one integer product with the activations' sums.
 *
 * Quants of either sign are |q| by x with the sign of q. Two products and, but for IQ4_XS with its |q| <= 127, four stay in 16 bits: 4 * 62 * 127. */
#pragma once
#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/books.h"
#include "foundry/cpu/sse.h"
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

/* Scales as words: eight in the first register or, in types that `halves` names, sixteen in both. The mins go with the activations' sums of as many
 * elements, but those of `has_offset` always with the sums of 16; these are already negative and belong to the sum itself. */
struct head {
    __m128i scale[2], min[2];
    __m128 d; /* d, and d_min in lane 1 */
};

struct run {
    __m128i lo, hi;
};

INLINE bool halves(const enum fo_dtype type) {
    return type == FO_Q2_K || type == FO_Q3_K || type == FO_Q6_K || type == FO_IQ2_XS || type == FO_IQ2_S || type == FO_IQ1_M;
}

INLINE bool has_mins(const enum fo_dtype type) {
    return type == FO_Q2_K || type == FO_Q4_K || type == FO_Q5_K;
}

INLINE bool has_offset(const enum fo_dtype type) {
    return type == FO_Q3_K || type == FO_Q6_K || type == FO_TQ1_0 || type == FO_TQ2_0;
}

INLINE bool with_sign(const enum fo_dtype type) {
    return !has_mins(type) && !has_offset(type);
}

static void head_of(const enum fo_dtype type, const unsigned char *p, struct head *ret);
static struct run run_of(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *books, const int j);

INLINE __m128 two_halves(uint32_t both) {
    return halves4(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_cvtsi32_si128((int)both)));
}

/* Scale i in all words. */
#define SCALE(i) _mm_shuffle_epi32((i) % 8 < 4 ? _mm_unpacklo_epi16(h.scale[(i) / 8], h.scale[(i) / 8]) : _mm_unpackhi_epi16(h.scale[(i) / 8], h.scale[(i) / 8]), (i) % 4 * 0x55)

#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* x.d * (d * sum - d_min * mins), in that order. */
INLINE float block_value(const bool mins, __m128 d, __m128i s, __m128i m, float x_d) {
    __m128i both = mins ? _mm_add_epi32(_mm_unpacklo_epi32(s, m), _mm_unpackhi_epi32(s, m)) : _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    __m128 v = _mm_mul_ps(_mm_cvtepi32_ps(_mm_add_epi32(both, _mm_shuffle_epi32(both, 0x4E))), d);
    if (mins) v = _mm_sub_ss(v, _mm_shuffle_ps(v, v, 0x55));
    return _mm_cvtss_f32(v) * x_d;
}

INLINE void dot_256(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                    size_t y_stride, const int T) {
    const size_t size = w_row_bytes / (size_t)(a->k / FO_QK_K);
    const int n_blocks = (int)(a->k / FO_QK_K);
    const struct fo_cpu_books *books = with_sign(type) && type != FO_IQ4_XS ? fo_cpu_books() : NULL;
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) float f##n = 0;
#define START(n)                                                                                                                         \
    __m128i s##n = _mm_setzero_si128(), m##n = s##n;                                                                                     \
    if (n < T && (has_mins(type) || has_offset(type))) {                                                                                 \
        const bool eight = type == FO_Q4_K || type == FO_Q5_K;                                                                           \
        const int16_t *sums = eight ? x##n.sum32 + b * 8 : x##n.sum16 + b * 16;                                                          \
        m##n = _mm_madd_epi16(h.min[0], load_aligned(sums));                                                                             \
        if (!eight) m##n = _mm_add_epi32(m##n, _mm_madd_epi16(h.min[1], load_aligned(sums + 8)));                                        \
        if (has_offset(type)) s##n = m##n;                                                                                               \
    }
#define PRODUCTS(q, u, x) (with_sign(type) ? _mm_maddubs_epi16(u, _mm_sign_epi8(x, q)) : _mm_maddubs_epi16(q, x))
#define MAC(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        const int8_t *x = x##n.q + b * FO_QK_K + at;                                                                                     \
        __m128i u = PRODUCTS(v.lo, lo_u, load_aligned(x)), z = PRODUCTS(v.hi, hi_u, load_aligned(x + 16));                               \
        if (halves(type) || type == FO_IQ4_XS)                                                                                           \
            s##n = _mm_add_epi32(s##n, _mm_add_epi32(_mm_madd_epi16(u, lo_by), _mm_madd_epi16(z, hi_by)));                               \
        else                                                                                                                             \
            s##n = _mm_add_epi32(s##n, _mm_madd_epi16(_mm_add_epi16(u, z), lo_by));                                                      \
    }
#define RUN(j)                                                                                                                           \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        struct run v = run_of(type, p, books, j);                                                                                        \
        __m128i lo_by = halves(type) ? SCALE(2 * (j)) : SCALE(j), hi_by = halves(type) ? SCALE(2 * (j) + 1) : lo_by;                     \
        __m128i lo_u = v.lo, hi_u = v.hi;                                                                                                \
        if (with_sign(type)) lo_u = _mm_abs_epi8(v.lo), hi_u = _mm_abs_epi8(v.hi);                                                       \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) f##n += block_value(has_mins(type), h.d, s##n, m##n, x##n.d[b]);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = f##n;
        EACH(ZERO)
        const unsigned char *p = w;
        for (int64_t b = 0; b < n_blocks; b++, p += size) {
            for (size_t i = 0; i < size; i += 64) ahead(p + i);
            struct head h;
            head_of(type, p, &h);
            EACH(START)
            EACH8(RUN)
            EACH(BLOCK_END)
        }
        EACH(OUT)
#undef ZERO
#undef START
#undef PRODUCTS
#undef MAC
#undef RUN
#undef BLOCK_END
#undef OUT
    }
}
#endif
