/* What the files of the AVX-512 overlay share: HAS_AVX512 where the compiler makes (or the tests emulate) AVX-512 F, BW, DQ, VL, VNNI and VBMI,
 * and nothing elsewhere. */
#pragma once
#if defined(FO_EMULATE_AVX512) || (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
                                   defined(__AVX512VNNI__) && defined(__AVX512VBMI__))
#define HAS_AVX512
#include "foundry/cpu/avx.h"

INLINE __m512i load(const void *p) {
    return _mm512_loadu_si512(p);
}

INLINE __m256i load32(const void *p) {
    return _mm256_loadu_si256(p);
}

/* 32 bytes from each of two places. */
INLINE __m512i load_two(const void *low, const void *high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load32(low)), load32(high), 1);
}

/* 32 bytes, twice: what one shift a half makes 64 elements of, in the order of the activations. */
INLINE __m512i load_twice(const void *p) {
    return _mm512_broadcast_i64x4(load32(p));
}

INLINE float fold16(__m512 v) {
    return fold(_mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(v), 1))));
}

/* The first n bytes. */
INLINE __mmask64 first_bytes(int n) {
    return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1;
}

/* sums_of for sixteen lanes. */
INLINE __m128 sums_of16(__m512i s, __m128i m) {
    return sums_of(_mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1)), m);
}

/* Sixteen sums, two a block in the order 0 0 4 4 1 1 5 5 2 2 6 6 3 3 7 7, to one a block in theirs. */
INLINE __m256 sums_of_blocks(__m512i s) {
    __m256i a = _mm512_castsi512_si256(s), b = _mm512_extracti64x4_epi64(s, 1); /* 0 0 4 4 1 1 5 5, 2 2 6 6 3 3 7 7 */
    __m256i h = _mm256_hadd_epi32(a, b);                                         /* 0 4 2 6 1 5 3 7 */
    return _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(h, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7)));
}

/* Shifts, or rotations of the high bits to where they belong, one for each half. */
INLINE __m512i turns(int low, int high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi64x(low & 63)), _mm256_set1_epi64x(high & 63), 1);
}

/* Words 4 i.. of the sixteen scales, eight times each: the scales of four sub-blocks of 16. */
INLINE __m512i four_scales(int i) {
    int16_t lane[32];
    for (int l = 0; l < 32; l++) lane[l] = (int16_t)(4 * i + l / 8);
    return load(lane);
}
#endif
