/* What the files of the SSE overlay share. Nothing where the compiler does not make SSSE3 and SSE4.1.
 *
 * There is no fused multiply-add: every product is rounded, and then the sum of it. */
#pragma once
#if defined(__SSSE3__) && defined(__SSE4_1__)
#include <smmintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m128i load(const void *p) {
    return _mm_loadu_si128(p);
}

/* Of activations and scratch, whose pieces are aligned: as an operand in memory it costs no instruction. */
INLINE __m128i load_aligned(const void *p) {
    return _mm_load_si128(p);
}

INLINE uint32_t word_of(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint16_t half_of(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The sum of four lanes, in the order of put_classes in sse_gemm.c. */
INLINE float fold(__m128 v) {
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 0x55)));
}

INLINE int fold_int(__m128i v) {
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}

/* The next page of the stream: compute hides the latency that the hardware's own prefetcher, stopping at 4 KiB, leaves. */
INLINE void ahead(const void *p) {
    _mm_prefetch((const char *)p + 4096, _MM_HINT_T0);
}

/* a where the mask is set, else b. */
INLINE __m128i choose(__m128i mask, __m128i a, __m128i b) {
    return _mm_or_si128(_mm_and_si128(mask, a), _mm_andnot_si128(mask, b));
}

/* Four halves, each in the upper half of its lane, as floats: exactly, and without an operation on subnormal floats, for which many CPUs call
 * their microcode. The exponent is raised by 224, 112 too much, so that all ones stay all ones; a subnormal half then stands at 2^97 (1 + x)
 * where 2^98 x is meant, and alone is below 2^98: twice itself less 2^98. */
INLINE __m128 halves4(__m128i upper) {
    __m128i v = _mm_and_si128(_mm_srai_epi32(upper, 3), _mm_set1_epi32(0x0FFFE000)), sign = _mm_and_si128(upper, _mm_set1_epi32((int)0x80000000));
    __m128 f = _mm_castsi128_ps(_mm_add_epi32(v, _mm_set1_epi32((int)(224u << 23))));
    f = _mm_add_ps(f, _mm_min_ps(_mm_sub_ps(f, _mm_set1_ps(0x1p98f)), _mm_setzero_ps()));
    return _mm_or_ps(_mm_mul_ps(f, _mm_set1_ps(0x1p-112f)), _mm_castsi128_ps(sign));
}

INLINE float half_to_f32(uint16_t h) {
    return _mm_cvtss_f32(halves4(_mm_cvtsi32_si128((int)((uint32_t)h << 16))));
}

/* fo_ref_exp on four lanes, operation for operation. */
INLINE __m128 exp4(__m128 x) {
    const __m128 round = _mm_set1_ps(12582912.0f);
    __m128 zero = _mm_cmplt_ps(x, _mm_set1_ps(-87.33f));
    x = _mm_min_ps(_mm_set1_ps(88.37f), x); /* in this order a NaN stays */
    __m128 shifted = _mm_add_ps(_mm_mul_ps(x, _mm_set1_ps(1.44269504f)), round), n = _mm_sub_ps(shifted, round);
    __m128 r = _mm_sub_ps(_mm_sub_ps(x, _mm_mul_ps(n, _mm_set1_ps(0.693359375f))), _mm_mul_ps(n, _mm_set1_ps(-2.12194440e-4f)));
    __m128 p = _mm_set1_ps(1.98412698e-4f);
#define TERM(c) p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(c));
    TERM(1.38888889e-3f) TERM(8.33333333e-3f) TERM(4.16666667e-2f) TERM(1.66666667e-1f) TERM(0.5f) TERM(1.0f) TERM(1.0f)
#undef TERM
    __m128i two_n = _mm_slli_epi32(_mm_add_epi32(_mm_castps_si128(shifted), _mm_set1_epi32(127)), 23);
    return _mm_andnot_ps(zero, _mm_mul_ps(p, _mm_castsi128_ps(two_n)));
}

/* Four activations of a token in every lane: number i of the four dwords. */
#define FOUR(v, i) _mm_shuffle_epi32(v, (i) * 0x55)
#endif
