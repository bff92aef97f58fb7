/* What attention on AVX2 and on AVX-512 shares: where scores lie, and the weights of positions in 16 bits that meet quantised V. */
#pragma once
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "foundry/cpu/attn.h"
#include "foundry/cpu/avx.h"

enum { S = FO_ATTN_CHUNK, G = FO_KV_GROUP, BLOCK = 32 };

/* Into the second cache: K and V of this page and of the next would fill the first, and lie at the same places of it. Blocks of F32 are so long that
 * the hardware's own prefetching serves them better. */
INLINE void fetch(const void *ahead, size_t at, size_t bytes) {
    if (!ahead) return;
    for (size_t i = at; i < at + bytes; i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T1);
}

INLINE __m256 halves8(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The column of the scores that the group of position `t` begins in. */
INLINE float *columns(float *s, const struct fo_kv_run *k, int t) {
    return s + (k->at + t - k->lo);
}

/* The largest of eight floats without a sign, as integers; a NaN where one is not finite. */
INLINE float largest(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return _mm_cvtsi128_si32(m) >= 0x7F800000 ? __builtin_nanf("") : _mm_cvtss_f32(_mm_castsi128_ps(m));
}

/* e^x for x <= 0, NaN for NaN, to 2e-7: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 5 that is 1 at 0 and whose largest relative
 * error is least otherwise, times 2^n; 0 below EXP_LEAST. The constant that rounds to an integer has the bias of the exponent in it. */
#define EXP_ROUND (12582912.0f + 127.0f)
#define EXP_LEAST (-87.33f)
#define EXP_LOG2E 1.44269504f
#define EXP_LN2   0.693147181f
#define EXP_FIRST 0.00829027221f
#define EXP_TERMS(X) X(0.0418981612f) X(0.166676387f) X(0.499991477f) X(0.999999702f) X(1.0f)

/* The step in which `max` becomes `top`, and its inverse; NaN and 0 for a NaN. */
INLINE float step_of(float max, float top, float *ret_inv) {
    bool tiny = max < 1e-30f;
    *ret_inv = tiny || max != max ? 0.0f : top / max;
    return tiny ? 0.0f : max / top;
}

/* Of a run: what the positions weigh for each query and how large V's scales are in each block, both as shares of their largest. Position 0 of
 * the arrays is lo / 8 * 8; positions outside the run have zeros. */
struct shares {
    _Alignas(32) float p[FO_ATTN_HEADS][S]; /* of 32767 */
    float p_max[FO_ATTN_HEADS];
    _Alignas(32) float d[S];
    float d_max;
};

/* x[i] for positions t + i of the run, else 0. */
INLINE __m256 within(const struct fo_kv_run *v, int t, __m256 x) {
    __m256i at = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(t));
    __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(v->lo - 1)), _mm256_cmpgt_epi32(_mm256_set1_epi32(v->hi), at));
    return _mm256_and_ps(_mm256_castsi256_ps(in), x);
}

INLINE __m256i magnitude(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/* x [n] becomes shares of `top`; the largest magnitude is returned, a NaN where one is not finite (the shares are zeros then). */
INLINE float to_shares(float *x, int n, __m256i max, float top) {
    float m = largest(max), inv;
    step_of(m, top, &inv);
    const __m256 by = _mm256_set1_ps(inv);
    for (int i = 0; i < n; i += 8) _mm256_store_ps(x + i, inv != 0.0f ? _mm256_mul_ps(_mm256_load_ps(x + i), by) : _mm256_setzero_ps());
    return inv == 0.0f && m == m ? 0 : m;
}

INLINE void shares_of_p(const float *s, const struct fo_kv_run *v, struct shares *ret, const int N) {
    const int first = v->lo / 8 * 8, n = v->hi - first;
    for (int h = 0; h < N; h++) {
        const float *p = s + (h * S + v->at - (v->lo - first));
        __m256i max = _mm256_setzero_si256();
        for (int i = 0; i < n; i += 8) {
            __m256 x = within(v, first + i, _mm256_loadu_ps(p + i));
            max = _mm256_max_epi32(max, magnitude(x));
            _mm256_store_ps(ret->p[h] + i, x);
        }
        ret->p_max[h] = to_shares(ret->p[h], n, max, 32767);
    }
}

INLINE void shares_of_d(const struct fo_kv_run *v, size_t i, struct shares *ret) {
    const int first = v->lo / 8 * 8, n = v->hi - first;
    const uint16_t *scales = (const uint16_t *)v->block + i * (size_t)v->tokens + first;
    __m256i max = _mm256_setzero_si256();
    for (int t = 0; t < n; t += 8) {
        __m256 x = within(v, first + t, halves8(scales + t));
        max = _mm256_max_epi32(max, magnitude(x));
        _mm256_store_ps(ret->d + t, x);
    }
    ret->d_max = to_shares(ret->d, n, max, 1);
}

/* The products of both in 16 bits, w [n rounded up to 8]; returns their step, *ret_sum is the sum of all. */
INLINE float weights(const struct shares *in, int h, int n, int16_t *w, int *ret_sum) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) {
        __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(in->p[h] + i), _mm256_load_ps(in->d + i)));
        sum = _mm256_add_epi32(sum, q);
        _mm_storeu_si128((__m128i *)(void *)(w + i), _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)));
    }
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4E));
    *ret_sum = _mm_cvtsi128_si32(_mm_add_epi32(total, _mm_shuffle_epi32(total, 0xB1)));
    return in->p_max[h] * in->d_max / 32767.0f;
}
#endif
