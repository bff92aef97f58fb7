/* Dots with the types of 32 elements a scale that avx2.c lacks, for AVX2 + FMA + F16C: Q5_0, Q5_1, IQ4_NL, MXFP4, and NVFP4 with a scale a 16.
 * The rules are avx2.c's, and so is the plan: two blocks of weights fill a register, whose nibbles meet the activations' p, and eight
 * blocks share one conversion to float. What differs is when the sums must leave 16 bits:
 *
 *   Q5_0, Q5_1     q <= 31: eight products, 8 * 31 * 127 = 31496, stay in 16 bits
 *   MXFP4          q + 12 <= 24: the same
 *   NVFP4          |q| <= 12: the four of a sub-block, wherever they lie
 *   IQ4_NL         |q| <= 127: two, 2 * 127 * 127 = 32258 */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "foundry/cpu/avx2_iq.h"
#include "foundry/cpu/tile.h"

INLINE __m256i values16(const int8_t values[16]) {
    return _mm256_broadcastsi128_si256(load16(values));
}

/* The powers of eight blocks of MXFP4. Missing blocks have the least: see scales8. */
INLINE __m256 powers8(const unsigned char *p, const int n) {
#define E(i) (char)((i) < n ? p[(i) * (int)sizeof(struct fo_block_mxfp4)] : 0)
    return powers(_mm256_cvtepu8_epi32(_mm_setr_epi8(E(0), E(1), E(2), E(3), E(4), E(5), E(6), E(7), 0, 0, 0, 0, 0, 0, 0, 0)));
#undef E
}

/* Bits of two blocks' 32-bit words (a block a half), the word's `first` byte and the next, one to a byte: 16 where set. */
INLINE __m256i fifths(__m256i words, const char first) {
    const __m128i spread = _mm_set_epi64x((first + 1) * 0x0101010101010101LL, first * 0x0101010101010101LL);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ULL);
    __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(spread)), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(16));
}

INLINE __m256i words_of(const void *a, const void *b) {
    int x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return _mm256_setr_m128i(_mm_set1_epi32(x), _mm_set1_epi32(y));
}

/* Sums of two neighbouring products of quants and activations, in 16 bits; u is |q|. */
#define PRODUCTS(q, u, x) (with_sign ? _mm256_maddubs_epi16(u, _mm256_sign_epi8(x, q)) : _mm256_maddubs_epi16(q, x))

/* Eight blocks at a time; what lies where while the sums are folded is told at dot_nibbles in avx2.c. The offset of the quants (-16 in Q5_0, -12
 * here in MXFP4) or the min of Q5_1 is one product with the activations' s. */
INLINE void dot_pairs(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                      size_t y_stride, const int T) {
    const bool five = type == FO_Q5_0 || type == FO_Q5_1, fp4 = type == FO_MXFP4, with_sign = type == FO_IQ4_NL;
    const int size = type == FO_Q5_0   ? sizeof(struct fo_block_q5_0)
                     : type == FO_Q5_1 ? sizeof(struct fo_block_q5_1)
                     : fp4             ? sizeof(struct fo_block_mxfp4)
                                       : sizeof(struct fo_block_iq4_nl);
    const int at = size - 16, n_blocks = (int)(a->k / 32), rest = n_blocks % 8;
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i values = fp4 ? _mm256_add_epi8(values16(fo_fp4_values), _mm256_set1_epi8(12)) : values16(fo_iq4_values);
    const __m256 minus_16 = _mm256_set1_ps(-16), minus_12 = _mm256_set1_ps(-12);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const unsigned char *p = w;
        __m256 d, m = _mm256_setzero_ps();
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
/* Blocks i and i + 1 of the group; `last` is the second's number, i itself when there is none. */
#define PAIR(i, last)                                                                                                                    \
    {                                                                                                                                    \
        __m256i v = _mm256_setr_m128i(load16(p + (i)*size + at), load16(p + (last)*size + at));                                          \
        __m256i lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);                                      \
        if (five) {                                                                                                                      \
            __m256i h = words_of(p + (i)*size + at - 4, p + (last)*size + at - 4);                                                       \
            lo = _mm256_or_si256(lo, fifths(h, 0)), hi = _mm256_or_si256(hi, fifths(h, 2));                                              \
        } else {                                                                                                                         \
            lo = _mm256_shuffle_epi8(values, lo), hi = _mm256_shuffle_epi8(values, hi);                                                  \
        }                                                                                                                                \
        __m256i lo_u = _mm256_abs_epi8(lo), hi_u = _mm256_abs_epi8(hi);                                                                  \
        MAC(0, i) MAC(1, i) MAC(2, i) MAC(3, i)                                                                                          \
    }
#define MAC(n, i)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        const int8_t *x = x##n.p + b * 32 + fo_act_place(i);                                                                             \
        __m256i s = PRODUCTS(lo, lo_u, load(x)), u = PRODUCTS(hi, hi_u, load(x + FO_ACT_HALF));                                          \
        v##n##_##i = !with_sign ? _mm256_add_epi16(s, u) : _mm256_add_epi32(_mm256_madd_epi16(s, one), _mm256_madd_epi16(u, one));     \
    }
#define SUMS(n) __m256i v##n##_0 = _mm256_setzero_si256(), v##n##_2 = v##n##_0, v##n##_4 = v##n##_0, v##n##_6 = v##n##_0;
#define ADD(u, v) (!with_sign ? _mm256_add_epi16(u, v) : _mm256_add_epi32(u, v))
#define FOLD(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m256i u = ADD(_mm256_unpacklo_epi64(v##n##_0, v##n##_2), _mm256_unpackhi_epi64(v##n##_0, v##n##_2));                           \
        __m256i v = ADD(_mm256_unpacklo_epi64(v##n##_4, v##n##_6), _mm256_unpackhi_epi64(v##n##_4, v##n##_6));                           \
        if (!with_sign) u = _mm256_madd_epi16(u, one), v = _mm256_madd_epi16(v, one);                                                          \
        __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(u), _mm256_castsi256_ps(v), 0x88));                     \
        __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(u), _mm256_castsi256_ps(v), 0xDD));                      \
        __m256 sum = _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(_mm256_add_epi32(even, odd), order));                                \
        if (fp4) f##n = _mm256_fmadd_ps(m, _mm256_mul_ps(_mm256_loadu_ps(x##n.s + b), minus_12), f##n);                                  \
        if (five) f##n = _mm256_fmadd_ps(m, _mm256_loadu_ps(x##n.s + b), f##n);                                                          \
        f##n = _mm256_fmadd_ps(sum, _mm256_mul_ps(d, _mm256_loadu_ps(x##n.d + b)), f##n);                                                \
    }
#define SCALES(n_left)                                                                                                                   \
    if (type == FO_Q5_1)                                                                                                                 \
        scales_mins8(p, size, n_left, &d, &m);                                                                                           \
    else                                                                                                                                 \
        d = fp4 ? powers8(p, n_left) : scales8(p, size, n_left), m = fp4 ? d : _mm256_mul_ps(d, minus_16);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        int b = 0;
        for (; b + 8 <= n_blocks; b += 8, p += 8 * size) {
            ahead(p), ahead(p + 64), ahead(p + 128);
            SCALES(8)
            EACH(SUMS)
            PAIR(0, 1) PAIR(2, 3) PAIR(4, 5) PAIR(6, 7)
            EACH(FOLD)
        }
        if (rest) {
            SCALES(rest)
            EACH(SUMS)
            PAIR(0, rest > 1)
            if (rest > 2) PAIR(2, 2 + (rest > 3))
            if (rest > 4) PAIR(4, 4 + (rest > 5))
            if (rest > 6) PAIR(6, 6)
            EACH(FOLD)
        }
        EACH(OUT)
#undef ZERO
#undef PAIR
#undef MAC
#undef SUMS
#undef ADD
#undef FOLD
#undef SCALES
#undef OUT
    }
}
DOT_SLOT(dot_q5_0, dot_pairs, FO_Q5_0)
DOT_SLOT(dot_q5_1, dot_pairs, FO_Q5_1)
DOT_SLOT(dot_iq4_nl, dot_pairs, FO_IQ4_NL)
DOT_SLOT(dot_mxfp4, dot_pairs, FO_MXFP4)

/* NVFP4, two blocks of 64 at a time: interleaved by eights, low and high nibbles become sub-blocks 0 and 2, 1 and 3, the order of the
 * activations' p; |q| <= 12. A lane gets the sum of one sub-block: 0 1 of both blocks, then 2 3. */
INLINE void dot_nvfp4_rows(const bool four, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                           size_t y_stride, const int T) {
    const bool with_sign = four;
    const int n_blocks = (int)(a->k / 64);
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1), values = values16(fo_fp4_values);
    const __m256i order = _mm256_setr_epi32(0, 0, 2, 2, 1, 1, 3, 3);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const struct fo_block_nvfp4 *p = (const void *)w;
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
#define SUMS(n) __m256i v##n##_0 = _mm256_setzero_si256(), v##n##_1 = v##n##_0;
#define MAC(n, i)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        const int8_t *x = x##n.p + fo_act_place(2 * (b + (i)));                                                                          \
        __m256i s = PRODUCTS(even, even_u, load(x)), u = PRODUCTS(odd, odd_u, load(x + FO_ACT_HALF));                                    \
        v##n##_##i = _mm256_madd_epi16(_mm256_add_epi16(_mm256_unpacklo_epi64(s, u), _mm256_unpackhi_epi64(s, u)), one);                 \
    }
#define BLOCK(i)                                                                                                                         \
    {                                                                                                                                    \
        __m256i v = load(p[b + (i)].qs), lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);             \
        lo = _mm256_shuffle_epi8(values, lo), hi = _mm256_shuffle_epi8(values, hi);                                                      \
        __m256i even = _mm256_unpacklo_epi64(lo, hi), odd = _mm256_unpackhi_epi64(lo, hi);                                               \
        __m256i even_u = _mm256_abs_epi8(even), odd_u = _mm256_abs_epi8(odd);                                                            \
        MAC(0, i) MAC(1, i) MAC(2, i) MAC(3, i)                                                                                          \
    }
#define FOLD(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m256 xd = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(x##n.d + b * 2)), order);                               \
        f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_hadd_epi32(v##n##_0, v##n##_1)), _mm256_mul_ps(d, xd), f##n);                   \
    }
/* Of a missing second block the scales are zero. */
#define SCALES(second)                                                                                                                   \
    {                                                                                                                                    \
        int c0, c1 = 0;                                                                                                                  \
        memcpy(&c0, p[b].d, sizeof c0);                                                                                                  \
        if (second) memcpy(&c1, p[b + 1].d, sizeof c1);                                                                                  \
        d = halves_of_e4m3(_mm_cvtepu8_epi16(_mm_unpacklo_epi16(_mm_cvtsi32_si128(c0), _mm_cvtsi32_si128(c1))));                         \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        __m256 d;
        int b = 0;
        for (; b + 2 <= n_blocks; b += 2) {
            ahead(p + b), ahead((const char *)(p + b) + 64);
            SCALES(true)
            EACH(SUMS)
            BLOCK(0) BLOCK(1)
            EACH(FOLD)
        }
        if (b < n_blocks) {
            SCALES(false)
            EACH(SUMS)
            BLOCK(0)
            EACH(FOLD)
        }
        EACH(OUT)
#undef ZERO
#undef SUMS
#undef MAC
#undef BLOCK
#undef FOLD
#undef SCALES
#undef OUT
    }
}
DOT_SLOT(dot_nvfp4, dot_nvfp4_rows, true)

void fo_cpu_avx2_legacy(struct fo_cpu_kernels *k) {
    k->dot[FO_Q5_0] = dot_q5_0;
    k->dot[FO_Q5_1] = dot_q5_1;
    k->dot[FO_IQ4_NL] = dot_iq4_nl;
    k->dot[FO_MXFP4] = dot_mxfp4;
    k->dot[FO_NVFP4] = dot_nvfp4;
}
#endif
