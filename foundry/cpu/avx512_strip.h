/* Strips of 32 rows of weights for the batched products of AVX-512 (avx512_gemm.c, avx512_gemm_k.c): avx2_strip.h at twice the width. Lanes
 * are rows; the same four columns of sixteen rows are a register, which VPDPBUSD multiplies by four activations of a token, the same in every
 * lane, and adds up in 32 bits: no sum is short of room, and the quants, which are its unsigned side, need no second copy for their signs. */
#pragma once
#include "foundry/cpu/avx512.h"
#include "foundry/cpu/strip.h"

#ifdef HAS_AVX512
enum {
    ROWS = 32,
    TOKENS = FO_GEMM_TOKENS, /* that share one unpacking */
    AT_ONCE = 6              /* tokens: 12 sums of integers and 12 of floats, weights, scales and one activation are what 32 registers hold */
};

/* Sixteen bytes of rows 16 g.. of a strip, `at` bytes into each: dwords 0..3 of the sixteen rows side by side. */
struct quads {
    __m512i q[4];
};
INLINE struct quads quads_of(const struct strip *s, const int g, size_t at) {
    const unsigned char *const *row = s->row + 16 * g;
#define FOUR(i)                                                                                                                          \
    _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(load16(row[i] + at)), load16(row[(i) + 4] + at), 1), \
                                          load16(row[(i) + 8] + at), 2),                                                                \
                       load16(row[(i) + 12] + at), 3)
    __m512i a = FOUR(0), b = FOUR(1), c = FOUR(2), d = FOUR(3);
#undef FOUR
    __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b), cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
    return (struct quads){ { _mm512_unpacklo_epi64(ab0, cd0), _mm512_unpackhi_epi64(ab0, cd0), _mm512_unpacklo_epi64(ab1, cd1),
                             _mm512_unpackhi_epi64(ab1, cd1) } };
}

/* Four columns of rows 16 g.. */
INLINE void put_quad(uint8_t to[ROWS][4], const int g, __m512i v) {
    _mm512_store_si512(to[16 * g], v);
}

INLINE __m512i low_nibbles(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

INLINE __m512i high_nibbles(__m512i v) {
    return low_nibbles(_mm512_srli_epi16(v, 4));
}

/* Bit or bits `mask` of every byte, moved up (down, when negative) by `up`. */
INLINE __m512i bits_up(__m512i v, const int up, const char mask) {
    const unsigned by = (unsigned)(up < 0 ? -up : up);
    return _mm512_and_si512(up < 0 ? _mm512_srli_epi16(v, by) : _mm512_slli_epi16(v, by), _mm512_set1_epi8(mask));
}

/* Halves of rows 16 g.., one a row and `at` bytes into it, as floats. */
INLINE __m512 halves_of(const struct strip *s, const int g, size_t at) {
#define H(r) (*(const short *)(const void *)(s->row[16 * g + (r)] + at))
    return _mm512_cvtph_ps(
        _mm256_setr_epi16(H(0), H(1), H(2), H(3), H(4), H(5), H(6), H(7), H(8), H(9), H(10), H(11), H(12), H(13), H(14), H(15)));
#undef H
}

/* Named registers, never arrays of them, which gcc 12 keeps on the stack and stores to after every product. */
#define EACH_TOKEN(X) X(0) X(1) X(2) X(3) X(4) X(5)

/* Four activations of a token, or a pair of words, in every lane. */
INLINE __m512i four(const void *x) {
    int v;
    memcpy(&v, x, sizeof v);
    return _mm512_set1_epi32(v);
}

/* One step of four columns: sums a (rows 0..15) and b (16..31) of token n. */
#define VNNI_STEP(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m512i x = four(p##n + 4 * step);                                                                                               \
        a##n = _mm512_dpbusd_epi32(a##n, w0, x);                                                                                         \
        b##n = _mm512_dpbusd_epi32(b##n, w1, x);                                                                                         \
    }
/* `n_steps` steps from q on, of activations from p on. */
#define RUN(q, n_steps)                                                                                                                  \
    _Pragma("GCC unroll 8") for (int step = 0; step < (n_steps); step++) {                                                               \
        const __m512i w0 = load((q)[step]), w1 = load((q)[step][16]);                                                                    \
        EACH_TOKEN(VNNI_STEP)                                                                                                                 \
    }

/* part(first token, tokens) for n tokens in groups as even as can be: few tokens leave the multipliers waiting for each other's sums. */
#define BY_TOKENS(n, part)                                                                                                               \
    for (int t = 0, groups = ((n) + AT_ONCE - 1) / AT_ONCE, n_part; groups; t += n_part, groups--) {                                     \
        n_part = ((n)-t + groups - 1) / groups;                                                                                          \
        part(t, n_part);                                                                                                                 \
    }

#define N_GROUPS(n) (((n) + AT_ONCE - 1) / AT_ONCE)

/* `call` with the number of tokens, T, a constant. */
#define WITH_T(n, call)                                                                                                                  \
    switch (n) {                                                                                                                         \
    case 1: call(1); break;                                                                                                              \
    case 2: call(2); break;                                                                                                              \
    case 3: call(3); break;                                                                                                              \
    case 4: call(4); break;                                                                                                              \
    case 5: call(5); break;                                                                                                              \
    default: call(6); break;                                                                                                             \
    }
#endif
