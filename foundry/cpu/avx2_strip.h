/* Strips of sixteen rows of weights for AVX2's batched products (avx2_gemm.c, avx2_gemm_k.c): lanes are rows. Four columns of a row are a
 * dword, and the same columns of eight rows a register, which meets four activations of a token in every lane. Rows are turned while
 * their quants are still packed; nibbles and bits come apart afterwards. Nothing where the compiler does not make AVX2, FMA and F16C. */
#pragma once
#include "foundry/cpu/avx2.h"
#include "foundry/cpu/strip.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
enum {
    ROWS = 16,
    TOKENS = FO_GEMM_TOKENS /* that share one unpacking */
};

/* Sixteen bytes of rows 8 g.. of a strip, `at` bytes into each: dwords 0..3 of the eight rows side by side. */
struct quads {
    __m256i q[4];
};
INLINE struct quads quads_of(const struct strip *s, const int g, size_t at) {
    const unsigned char *const *row = s->row + 8 * g;
#define TWO(i) _mm256_inserti128_si256(_mm256_castsi128_si256(load16(row[i] + at)), load16(row[(i) + 4] + at), 1)
    __m256i a = TWO(0), b = TWO(1), c = TWO(2), d = TWO(3);
#undef TWO
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b), cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    return (struct quads){ { _mm256_unpacklo_epi64(ab0, cd0), _mm256_unpackhi_epi64(ab0, cd0), _mm256_unpacklo_epi64(ab1, cd1),
                             _mm256_unpackhi_epi64(ab1, cd1) } };
}

/* Four columns of rows 8 g.. */
INLINE void put_quad(uint8_t to[ROWS][4], const int g, __m256i v) {
    _mm256_store_si256((__m256i *)(void *)to[8 * g], v);
}

INLINE __m256i low_nibbles(__m256i v) {
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

INLINE __m256i high_nibbles(__m256i v) {
    return low_nibbles(_mm256_srli_epi16(v, 4));
}

/* Bit or bits `mask` of every byte, moved up (down, when negative) by `up`. */
INLINE __m256i bits_up(__m256i v, const int up, const char mask) {
    return _mm256_and_si256(up > 0 ? _mm256_slli_epi16(v, up) : up < 0 ? _mm256_srli_epi16(v, -up) : v, _mm256_set1_epi8(mask));
}

/* Sixteen halves, one a row and `at` bytes into it, as floats. */
INLINE void put_halves(const struct strip *s, size_t at, float to[ROWS]) {
#define H(r) (*(const short *)(const void *)(s->row[r] + at))
    _mm256_store_ps(to, _mm256_cvtph_ps(_mm_setr_epi16(H(0), H(1), H(2), H(3), H(4), H(5), H(6), H(7))));
    _mm256_store_ps(to + 8, _mm256_cvtph_ps(_mm_setr_epi16(H(8), H(9), H(10), H(11), H(12), H(13), H(14), H(15))));
#undef H
}

/* Scales of sixteen rows, each twice: for the two sums of a dword. */
INLINE void put_twice(int16_t to[ROWS][2], __m128i bytes) {
    __m256i v = _mm256_permute4x64_epi64(_mm256_cvtepi8_epi16(bytes), 0xD8);
    _mm256_store_si256((__m256i *)(void *)to, _mm256_unpacklo_epi16(v, v));
    _mm256_store_si256((__m256i *)(void *)to[8], _mm256_unpackhi_epi16(v, v));
}

#define EACH_TOKEN(X) X(0) X(1) X(2)

/* Four activations of a token, or a pair of words, in every lane. */
INLINE __m256i four(const void *x) {
    int v;
    memcpy(&v, x, sizeof v);
    return _mm256_set1_epi32(v);
}

/* The additions stay in the order in which they are written: gcc turns the sum of many steps into a tree, whose leaves it then spills. */
INLINE __m256i add_words(__m256i sum, __m256i v) {
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(v));
    return sum;
}

INLINE __m256i add_dwords(__m256i sum, __m256i v) {
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(v));
    return sum;
}

/* The sums of token n, a (rows 0..7) and b (8..15), in 16 or 32 bits. */
#define SUMS(n) __m256i a##n = _mm256_setzero_si256(), b##n = a##n;
/* One step of four columns in 16 bits, the first step starting the sums. */
#define STEP_FIRST(n)                                                                                                                    \
    if (n < T) {                                                                                                                         \
        __m256i x = four(p##n);                                                                                                          \
        a##n = _mm256_maddubs_epi16(w0, x);                                                                                              \
        b##n = _mm256_maddubs_epi16(w1, x);                                                                                              \
    }
#define STEP(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m256i x = four(p##n + 4 * step);                                                                                               \
        a##n = add_words(a##n, _mm256_maddubs_epi16(w0, x));                                                                             \
        b##n = add_words(b##n, _mm256_maddubs_epi16(w1, x));                                                                             \
    }
/* `n_steps` steps from q on, of activations from p on. */
#define RUN(q, n_steps)                                                                                                                  \
    {                                                                                                                                    \
        __m256i w0 = load((q)[0]), w1 = load((q)[0][8]);                                                                                 \
        EACH_TOKEN(STEP_FIRST)                                                                                                           \
        _Pragma("GCC unroll 8") for (int step = 1; step < (n_steps); step++) {                                                           \
            w0 = load((q)[step]), w1 = load((q)[step][8]);                                                                               \
            EACH_TOKEN(STEP)                                                                                                             \
        }                                                                                                                                \
    }

/* part(first token, tokens) for n tokens, by threes as far as that goes: twelve sums and four words of weights and activations are what the
 * registers hold; of four tokens three and one take a sixth less time than four. */
#define BY_TOKENS(n, part)                                                                                                               \
    {                                                                                                                                    \
        int t = 0;                                                                                                                       \
        for (; (n)-t >= 3; t += 3) { part(t, 3) }                                                                                        \
        if ((n)-t == 2) { part(t, 2) }                                                                                                   \
        if ((n)-t == 1) { part(t, 1) }                                                                                                   \
    }
#define N_GROUPS(n) (((n) + 2) / 3)
#endif
