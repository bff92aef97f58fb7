/* What the files of the AVX-512 overlay share: HAS_AVX512 where the compiler makes (or the tests emulate) AVX-512 F, BW, DQ, VL, VNNI and VBMI,
 * and nothing elsewhere. */
#pragma once
#if defined(FO_EMULATE_AVX512) || (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
                                   defined(__AVX512VNNI__) && defined(__AVX512VBMI__))
#define HAS_AVX512
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef FO_EMULATE_AVX512
#define INLINE static __attribute__((noinline, unused)) /* an emulated instruction is dozens of lines: one copy of each template will do */
#else
#include <immintrin.h>
#define INLINE static inline __attribute__((always_inline))
#endif

INLINE __m512i load(const void *p) {
    return _mm512_loadu_si512(p);
}

INLINE __m256i load32(const void *p) {
    return _mm256_loadu_si256(p);
}

INLINE __m128i load16(const void *p) {
    return _mm_loadu_si128(p);
}

/* 32 bytes from each of two places. */
INLINE __m512i load_two(const void *low, const void *high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load32(low)), load32(high), 1);
}

INLINE float fold8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE float fold16(__m512 v) {
    return fold8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(v), 1))));
}

INLINE void ahead(const void *p) {
    _mm_prefetch((const char *)p + 4096, _MM_HINT_T0);
}

/* The first n bytes. */
INLINE __mmask64 first_bytes(int n) {
    return n >= 64 ? ~(__mmask64)0 : n <= 0 ? 0 : ((__mmask64)1 << n) - 1;
}

/* The sums of s and of m in lanes 0 and 1, as floats: the order of avx2.h. */
INLINE __m128 sums_of(__m512i s, __m128i m) {
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    h = _mm_add_epi32(_mm_unpacklo_epi32(h, m), _mm_unpackhi_epi32(h, m)); /* s m s m */
    return _mm_cvtepi32_ps(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E)));
}

/* Sums of the lanes of eight vectors of integers, one a lane in their order. */
INLINE __m256i eight_sums(__m256i a, __m256i b, __m256i c, __m256i d, __m256i e, __m256i f, __m256i g, __m256i h) {
    __m256i abcd = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)); /* of the low half, then of the high one */
    __m256i efgh = _mm256_hadd_epi32(_mm256_hadd_epi32(e, f), _mm256_hadd_epi32(g, h));
    return _mm256_add_epi32(_mm256_permute2x128_si256(abcd, efgh, 0x20), _mm256_permute2x128_si256(abcd, efgh, 0x31));
}

/* Sixteen sums, two a block in the order 0 0 4 4 1 1 5 5 2 2 6 6 3 3 7 7, to one a block in theirs. */
INLINE __m256 sums_of_blocks(__m512i s) {
    __m256i a = _mm512_castsi512_si256(s), b = _mm512_extracti64x4_epi64(s, 1); /* 0 0 4 4 1 1 5 5, 2 2 6 6 3 3 7 7 */
    __m256i h = _mm256_hadd_epi32(a, b);                                         /* 0 4 2 6 1 5 3 7 */
    return _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(h, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7)));
}

/* The sixteen scales of Q3_K: fo_q3_k_scale - 32 for all at once. */
INLINE __m128i scales_q3_k(const uint8_t packed[12]) {
    int top;
    memcpy(&top, packed + 8, sizeof top);
    __m128i low = _mm_loadl_epi64((const __m128i *)(const void *)packed);
    low = _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4)), _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(top), _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
}

/* Rotations of the high bits to where they belong, one for each half. */
INLINE __m512i turns(int low, int high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi64x(low & 63)), _mm256_set1_epi64x(high & 63), 1);
}
#endif
