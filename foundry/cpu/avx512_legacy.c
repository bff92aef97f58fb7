/* Dots with the types of 32 elements a scale that avx512.c lacks: Q5_0, Q5_1, IQ4_NL and MXFP4. The plan is that of its Q4_0: four blocks of
 * nibbles in a register, two registers folded into one conversion. VPDPBUSD wants its quants unsigned: Q5 and FP4 (raised by 12) have an offset,
 * which is one product with the activations' s; of IQ4_NL, |q| meets x negated where q is. */
#include "foundry/cpu/avx512.h"
#include "foundry/cpu/kernels.h"

#ifdef HAS_AVX512
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

/* Where things lie in four blocks of `size` bytes, seen through a load at 0 and one that ends with the fourth block: the nibbles; for each of
 * them the byte that holds its fifth bit, of the first half of a block and of the second (VPERMI2B); the block's scale and min (VPERMI2W),
 * or exponent in a dword (MXFP4, VPERMI2B): in two groups of four, of which each is right in its half. */
struct places {
    _Alignas(64) uint8_t nibbles[64], fifths[2][64], e[64];
    _Alignas(64) uint16_t d[32], m[32];
};

static void places_init(struct places *o, int size) {
    int second = 4 * size - 64;
#define SEEN(byte) ((byte) < 64 ? (byte) : 64 + (byte)-second)
    for (int i = 0; i < 64; i++) {
        int block = i / 16 * size, nibble = block + size - 16 + i % 16, fifth = block + size - 20 + i % 16 / 8, e = i / 4 % 4 * size;
        o->nibbles[i] = (uint8_t)SEEN(nibble);
        o->fifths[0][i] = (uint8_t)(size > 20 ? SEEN(fifth) : 0);
        o->fifths[1][i] = (uint8_t)(size > 20 ? SEEN(fifth + 2) : 0);
        o->e[i] = (uint8_t)SEEN(e);
    }
    for (int i = 0; i < 32; i++) {
        int d = i % 4 * size, m = d + 2; /* an odd size has no halves */
        o->d[i] = (uint16_t)(SEEN(d) / 2);
        o->m[i] = (uint16_t)(SEEN(m) / 2);
    }
#undef SEEN
}

/* Sixteen values in each quarter, plus `offset`. */
INLINE __m512i raised(const int8_t values[16], int offset) {
    int8_t v[64];
    for (int i = 0; i < 64; i++) v[i] = (int8_t)(values[i % 16] + offset);
    return load(v);
}

INLINE void dot_pairs(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                      size_t y_stride, const int T) {
    const bool five = type == FO_Q5_0 || type == FO_Q5_1, mins = type == FO_Q5_1, fp4 = type == FO_MXFP4;
    const int size = type == FO_Q5_0 ? sizeof(struct fo_block_q5_0)
                     : mins          ? sizeof(struct fo_block_q5_1)
                     : fp4           ? sizeof(struct fo_block_mxfp4)
                                     : sizeof(struct fo_block_iq4_nl);
    const int n_blocks = (int)(a->k / 32), rest = n_blocks % 8 * size, second = 4 * size - 64;
    struct places o;
    places_init(&o, size);
    const __m512i low = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16), bit = _mm512_set1_epi64((long long)0x8040201008040201ULL);
    const __m512i nibbles = load(o.nibbles), first = load(o.fifths[0]), last = load(o.fifths[1]), at_d = load(o.d), at_m = load(o.m), at_e = load(o.e);
    const __m512i values = fp4 ? raised(fo_fp4_values, 12) : raised(fo_iq4_values, 0), zero = _mm512_setzero_si512();
    const __m256i byte = _mm256_set1_epi32(255);
    const __m256 minus_16 = _mm256_set1_ps(-16), minus_12 = _mm256_set1_ps(-12);
    const __mmask64 m0 = first_bytes(rest), m1 = first_bytes(rest - second), m2 = first_bytes(rest - 4 * size),
                    m3 = first_bytes(rest - 4 * size - second);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const unsigned char *p = w;
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
/* x, negated where quants below zero are taken without their sign. */
#define SIGNED(x, minus) (five || fp4 ? (x) : _mm512_mask_sub_epi8(x, minus, zero, x))
#define SUM(n, half, from)                                                                                                               \
    _mm512_dpbusd_epi32(                                                                                                                 \
        _mm512_dpbusd_epi32(zero, lo##half, SIGNED(load(x##n.p + b * 32 + (from)), lo##half##_minus)), hi##half,                         \
        SIGNED(load(x##n.p + b * 32 + (from) + FO_ACT_HALF), hi##half##_minus))
#define STEP(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m512i u = SUM(n, 0, 0), v = SUM(n, 1, 128);                                                                                    \
        __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(u, v), _mm512_unpackhi_epi64(u, v));                                          \
        if (fp4) f##n = _mm256_fmadd_ps(m, _mm256_mul_ps(_mm256_loadu_ps(x##n.s + b), minus_12), f##n);                                  \
        if (five) f##n = _mm256_fmadd_ps(m, _mm256_loadu_ps(x##n.s + b), f##n);                                                          \
        f##n = _mm256_fmadd_ps(sums_of_blocks(s), _mm256_mul_ps(d, _mm256_loadu_ps(x##n.d + b)), f##n);                                  \
    }
/* The quants of the four blocks seen in u and v, low nibbles to lo and high ones to hi. */
#define QUANTS(lo, hi, u, v)                                                                                                             \
    __m512i lo = _mm512_permutex2var_epi8(u, nibbles, v), hi = _mm512_and_si512(_mm512_srli_epi16(lo, 4), low);                          \
    lo = _mm512_and_si512(lo, low);                                                                                                      \
    if (five) {                                                                                                                          \
        lo = _mm512_mask_add_epi8(lo, _mm512_test_epi8_mask(_mm512_permutex2var_epi8(u, first, v), bit), lo, sixteen);                   \
        hi = _mm512_mask_add_epi8(hi, _mm512_test_epi8_mask(_mm512_permutex2var_epi8(u, last, v), bit), hi, sixteen);                    \
    } else {                                                                                                                             \
        lo = _mm512_shuffle_epi8(values, lo), hi = _mm512_shuffle_epi8(values, hi);                                                      \
    }                                                                                                                                    \
    __mmask64 lo##_minus = five || fp4 ? 0 : _mm512_movepi8_mask(lo), hi##_minus = five || fp4 ? 0 : _mm512_movepi8_mask(hi);            \
    if (!five && !fp4) lo = _mm512_abs_epi8(lo), hi = _mm512_abs_epi8(hi);
/* Words `at` of the four blocks in v0 and v1, and behind them those of v2 and v3, as floats. */
#define HALVES(at)                                                                                                                       \
    _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_mask_blend_epi16(0xF0, _mm512_permutex2var_epi16(v0, at, v1), _mm512_permutex2var_epi16(v2, at, v3))))
#define GROUP(w0, w1, w2, w3)                                                                                                            \
    {                                                                                                                                    \
        __m512i v0 = w0, v1 = w1, v2 = w2, v3 = w3;                                                                                      \
        QUANTS(lo0, hi0, v0, v1)                                                                                                         \
        QUANTS(lo1, hi1, v2, v3)                                                                                                         \
        __m256 d, m;                                                                                                                     \
        if (fp4) {                                                                                                                       \
            __m512i e0 = _mm512_permutex2var_epi8(v0, at_e, v1), e1 = _mm512_permutex2var_epi8(v2, at_e, v3);                            \
            d = powers(_mm256_and_si256(_mm512_castsi512_si256(_mm512_mask_blend_epi32(0xF0, e0, e1)), byte));                           \
        } else {                                                                                                                         \
            d = HALVES(at_d);                                                                                                            \
        }                                                                                                                                \
        m = mins ? HALVES(at_m) : fp4 ? d : _mm256_mul_ps(d, minus_16);                                                                  \
        EACH(STEP)                                                                                                                       \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        int b = 0;
        for (; b + 8 <= n_blocks; b += 8, p += 8 * size) {
            ahead(p), ahead(p + 64), ahead(p + 128);
            GROUP(load(p), load(p + second), load(p + 4 * size), load(p + 4 * size + second))
        }
        if (rest)
            GROUP(_mm512_maskz_loadu_epi8(m0, p), _mm512_maskz_loadu_epi8(m1, p + second), _mm512_maskz_loadu_epi8(m2, p + 4 * size),
                  _mm512_maskz_loadu_epi8(m3, p + 4 * size + second))
        EACH(OUT)
#undef ZERO
#undef SIGNED
#undef SUM
#undef STEP
#undef QUANTS
#undef HALVES
#undef GROUP
#undef OUT
    }
}
DOT_SLOT(dot_q5_0, dot_pairs, FO_Q5_0)
DOT_SLOT(dot_q5_1, dot_pairs, FO_Q5_1)
DOT_SLOT(dot_iq4_nl, dot_pairs, FO_IQ4_NL)
DOT_SLOT(dot_mxfp4, dot_pairs, FO_MXFP4)

void fo_cpu_avx512_legacy(struct fo_cpu_kernels *k) {
    k->dot[FO_Q5_0] = dot_q5_0;
    k->dot[FO_Q5_1] = dot_q5_1;
    k->dot[FO_IQ4_NL] = dot_iq4_nl;
    k->dot[FO_MXFP4] = dot_mxfp4;
}
#endif
