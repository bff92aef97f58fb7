/* What the files of the AVX2 overlay share. Nothing where the compiler does not make AVX2, FMA and F16C. */
#pragma once
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "foundry/cpu/avx.h"

INLINE __m256i load(const void *p) {
    return _mm256_loadu_si256(p);
}

enum float_kind { F32, F16, BF16 };

/* Eight weights from the i-th on, as floats. */
INLINE __m256 load_floats(const unsigned char *w, int64_t i, const enum float_kind kind) {
    if (kind == F32) return _mm256_loadu_ps((const float *)(const void *)w + i);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(w + i * 2));
    return kind == F16 ? _mm256_cvtph_ps(h) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE float half_to_f32(uint16_t h) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* fo_ref_exp on eight lanes, with fused products. */
INLINE __m256 exp8(__m256 x) {
    const __m256 round = _mm256_set1_ps(12582912.0f);
    __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33f), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(88.37f), x); /* in this order a NaN stays */
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), round), n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x));
    __m256 p = _mm256_set1_ps(1.98412698e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.38888889e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.33333333e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.16666667e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.66666667e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i two_n = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(zero, _mm256_mul_ps(p, _mm256_castsi256_ps(two_n)));
}

/* Scales of eight blocks `size` bytes apart, as floats in the order of the blocks. Scale i is word i of the sixteen bytes that begin i words
 * before it, so a blend with each of them gathers all: half the operations of inserting words. A last group has zeros for the missing ones,
 * which the activations' padding, 0, does not make NaN as it would an infinity. */
INLINE __m256 scales8(const unsigned char *p, const int size, const int n) {
    if (n == 8) {
#define WITH(v, i) _mm_blend_epi16(v, load16(p + (i) * (size - 2)), 1 << (i))
        __m128i even = WITH(WITH(WITH(load16(p), 2), 4), 6), odd = WITH(WITH(WITH(load16(p + size - 2), 3), 5), 7);
        return _mm256_cvtph_ps(_mm_blend_epi16(even, odd, 0xAA));
#undef WITH
    }
#define HALF(i) ((i) < n ? *(const short *)(const void *)(p + (i)*size) : (short)0)
    return _mm256_cvtph_ps(_mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), HALF(4), HALF(5), HALF(6), HALF(7)));
#undef HALF
}

/* The same for scales and mins that lie together (Q4_1, Q5_1): half as many inserts. */
INLINE void scales_mins8(const unsigned char *p, const int size, const int n, __m256 *ret_d, __m256 *ret_m) {
#define BOTH(i) ((i) < n ? *(const int *)(const void *)(p + (i)*size) : 0)
    const __m128i apart = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m128i a = _mm_shuffle_epi8(_mm_setr_epi32(BOTH(0), BOTH(1), BOTH(2), BOTH(3)), apart);
    __m128i b = _mm_shuffle_epi8(_mm_setr_epi32(BOTH(4), BOTH(5), BOTH(6), BOTH(7)), apart);
    *ret_d = _mm256_cvtph_ps(_mm_unpacklo_epi64(a, b));
    *ret_m = _mm256_cvtph_ps(_mm_unpackhi_epi64(a, b));
#undef BOTH
}

/* Scales of sub-blocks 2j and 2j + 1 (of 16), eight words each: `half` holds words 0..7 or 8..15 of the scales in both halves. */
#define SCALE_PAIR(half, j)                                                                                                              \
    _mm256_shuffle_epi8(half, _mm256_setr_m128i(_mm_set1_epi16((short)((4 * (j) + 1) << 8 | (4 * (j)))),                                 \
                                                _mm_set1_epi16((short)((4 * (j) + 3) << 8 | (4 * (j) + 2)))))
#endif
