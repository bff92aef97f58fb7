/* What the overlays of AVX2 and of AVX-512, which is above it, share. Nothing where the compiler does not make AVX2, FMA and F16C. */
#pragma once
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "foundry/dtype.h"
#include "foundry/quant.h"

#ifdef FO_EMULATE_AVX512
#define INLINE static __attribute__((noinline, unused)) /* an emulated instruction is dozens of lines: one copy of each template will do */
#else
#include <immintrin.h>
#ifdef __SANITIZE_ADDRESS__
#define INLINE static inline __attribute__((unused)) /* checks around every load make one inlined strip a compiler's minutes */
#else
#define INLINE static inline __attribute__((always_inline))
#endif
#endif

INLINE __m128i load16(const void *p) {
    return _mm_loadu_si128(p);
}

/* The next page of the stream: compute hides the latency that the hardware's own prefetcher, stopping at 4 KiB, leaves. */
INLINE void ahead(const void *p) {
    _mm_prefetch((const char *)p + 4096, _MM_HINT_T0);
}

INLINE float fold(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* The sums of s and of m in lanes 0 and 1, as floats. */
INLINE __m128 sums_of(__m256i s, __m128i m) {
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(_mm_unpacklo_epi32(h, m), _mm_unpackhi_epi32(h, m)); /* s m s m */
    return _mm_cvtepi32_ps(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E)));
}

/* Sums of the lanes of eight vectors of integers, one a lane in their order. */
INLINE __m256i sums_of_eight(__m256i a, __m256i b, __m256i c, __m256i d, __m256i e, __m256i f, __m256i g, __m256i h) {
    __m256i abcd = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)); /* a b c d of the low half, then of the high one */
    __m256i efgh = _mm256_hadd_epi32(_mm256_hadd_epi32(e, f), _mm256_hadd_epi32(g, h));
    return _mm256_add_epi32(_mm256_permute2x128_si256(abcd, efgh, 0x20), _mm256_permute2x128_si256(abcd, efgh, 0x31));
}

/* Of four: the sums of a block, v, for the float sums of a row and a token that dots with types of 256 elements a block keep in four lanes, block
 * b in lane b % 4. One conversion serves four blocks; what that takes is as cheap as a conversion of all lanes of each. Missing blocks are 0. */
INLINE __m128 add_four(__m128 f, const __m256i v[4], __m128 d, const float *xd, __m128i there) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m128 sum = _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)));
    return _mm_fmadd_ps(sum, _mm_mul_ps(d, _mm_maskload_ps(xd, there)), f);
}

/* For a group of n blocks: v with zeros for those that are missing, the mask of those that are there, and their scales, `size` bytes apart. */
INLINE __m128i begin_four(__m256i (*v)[4], const int n_rows, int n) {
    for (int i = n; i < 4; i++)
        for (int j = 0; j < n_rows; j++) v[j][i] = _mm256_setzero_si256();
    return _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3));
}

INLINE __m128 scales4(const unsigned char *p, const int size, int n) {
#define HALF(i) (*(const short *)(const void *)(p + (i)*size))
    if (n == 4) return _mm_cvtph_ps(_mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), 0, 0, 0, 0));
    return _mm_cvtph_ps(_mm_setr_epi16(HALF(0), n > 1 ? HALF(1) : 0, n > 2 ? HALF(2) : 0, 0, 0, 0, 0, 0));
#undef HALF
}

INLINE float fold4(__m128 v) {
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

/* Token n's sums of the group's blocks v[n], and its result: names as the dots of blocks of 256 have them. */
#define FOLD_FOUR(n) if (n < T) f##n = add_four(f##n, v[n], d, x##n.d + group, there);
#define OUT_FOUR(n) if (n < T) y[n * y_stride + (size_t)r] = fold4(f##n);

/* 2^(e - 128) by bits; exponents 0 and 1 are subnormal floats. */
INLINE __m256 powers(__m256i e) {
    const __m256i one = _mm256_set1_epi32(1);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23), small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
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

/* The eight 6-bit scales and then the eight mins of Q4_K and Q5_K: fo_q4_k_scale_min for all at once. Reads four bytes past them. */
INLINE __m128i scales_q45_k(const void *packed) {
    __m128i v = load16(packed); /* words a b c: the lower six bits of scales 0..3, mins 0..3, nibbles of the other scales and mins */
    __m128i low = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(v, 0x98), _mm_setr_epi32(0, 0, 0, 4)),
                                _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
    return _mm_or_si128(low, _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi32(v, 0x40), 2), _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

/* The eight scales of IQ4_XS less 32, in words. */
INLINE __m128i scales_iq4_xs(const struct fo_block_iq4_xs *p) {
    int four;
    memcpy(&four, p->scales_l, sizeof four);
    __m128i nibbles = _mm_cvtsi32_si128(four), low = _mm_set1_epi8(15);
    nibbles = _mm_unpacklo_epi8(_mm_and_si128(nibbles, low), _mm_and_si128(_mm_srli_epi16(nibbles, 4), low));
    __m128i top = _mm_mullo_epi16(_mm_set1_epi16((short)p->scales_h), _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
    top = _mm_slli_epi16(_mm_srli_epi16(top, 14), 4); /* bits 2j and 2j + 1 of word j went to its top */
    return _mm_sub_epi16(_mm_or_si128(_mm_cvtepu8_epi16(nibbles), top), _mm_set1_epi16(32));
}

/* fo_dtype_info's figure, as a constant for the templates. */
INLINE int block_bytes(const enum fo_dtype type) {
    switch (type) {
    case FO_Q4_0: return sizeof(struct fo_block_q4_0);
    case FO_Q4_1: return sizeof(struct fo_block_q4_1);
    case FO_Q5_0: return sizeof(struct fo_block_q5_0);
    case FO_Q5_1: return sizeof(struct fo_block_q5_1);
    case FO_Q8_0: return sizeof(struct fo_block_q8_0);
    case FO_IQ4_NL: return sizeof(struct fo_block_iq4_nl);
    case FO_MXFP4: return sizeof(struct fo_block_mxfp4);
    case FO_Q2_K: return sizeof(struct fo_block_q2_k);
    case FO_Q3_K: return sizeof(struct fo_block_q3_k);
    case FO_Q4_K: return sizeof(struct fo_block_q4_k);
    case FO_Q5_K: return sizeof(struct fo_block_q5_k);
    case FO_IQ1_S: return sizeof(struct fo_block_iq1_s);
    case FO_IQ1_M: return sizeof(struct fo_block_iq1_m);
    case FO_IQ2_XXS: return sizeof(struct fo_block_iq2_xxs);
    case FO_IQ2_XS: return sizeof(struct fo_block_iq2_xs);
    case FO_IQ2_S: return sizeof(struct fo_block_iq2_s);
    case FO_IQ3_XXS: return sizeof(struct fo_block_iq3_xxs);
    case FO_IQ3_S: return sizeof(struct fo_block_iq3_s);
    case FO_IQ4_XS: return sizeof(struct fo_block_iq4_xs);
    case FO_TQ1_0: return sizeof(struct fo_block_tq1_0);
    case FO_TQ2_0: return sizeof(struct fo_block_tq2_0);
    default: return sizeof(struct fo_block_q6_k);
    }
}
#endif
