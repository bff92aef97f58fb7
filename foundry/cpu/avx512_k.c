/* Dots with Q2_K, Q3_K and IQ4_XS for AVX-512; avx512.c tells the rules and avx2_k.c the forms. Products of bytes in 16 bits, then VPDPWSSD with
 * the integer scale. */
#include "foundry/cpu/avx512.h"
#include "foundry/cpu/kernels.h"

#ifdef HAS_AVX512
#include <string.h>

#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

/* 32 bytes are four quarters of half a block, two bits each: two at a time. */
INLINE void dot_two_bits(const bool three, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                         size_t y_stride, const int T) {
    const int size = three ? sizeof(struct fo_block_q3_k) : sizeof(struct fo_block_q2_k), n_blocks = (int)(a->k / 256);
    const __m512i low = _mm512_set1_epi8(3), third = _mm512_set1_epi8(4);
    const __m512i at0 = four_scales(0), at1 = four_scales(1), at2 = four_scales(2), at3 = four_scales(3), down0 = turns(0, 2), down1 = turns(4, 6);
    const __m512i turn0 = turns(-2, -1), turn1 = turns(0, 1), turn2 = turns(2, 3), turn3 = turns(4, 5);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n)                                                                                                                         \
    __m512i s##n = _mm512_setzero_si512();                                                                                               \
    __m256i m##n = _mm256_setzero_si256();                                                                                               \
    if (n < T) {                                                                                                                         \
        m##n = _mm256_madd_epi16(mins, load32(x##n.sum16 + b * 16));                                                                     \
        if (three) s##n = _mm512_inserti64x4(s##n, _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(m##n, 2)), 0);             \
    }
#define MAC(n)                                                                                                                           \
    if (n < T)                                                                                                                           \
        s##n = _mm512_dpwssd_epi32(s##n, _mm512_maddubs_epi16(q, load(x##n.q + b * 256 + at)), by);
#define SUB(i, v, down)                                                                                                                  \
    {                                                                                                                                    \
        const int at = 64 * i;                                                                                                           \
        __m512i q = _mm512_and_si512(_mm512_srlv_epi64(v, down), low), by = _mm512_permutexvar_epi16(at##i, scales);                     \
        if (three) q = _mm512_ternarylogic_epi64(q, _mm512_rorv_epi64(h, turn##i), third, 0xF8); /* q | h & third */                     \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        __m128i m = _mm_setzero_si128();                                                                                                 \
        if (!three) m = _mm_add_epi32(_mm256_castsi256_si128(m##n), _mm256_extracti128_si256(m##n, 1));                                  \
        f##n = _mm_fmadd_ps(sums_of16(s##n, m), _mm_mul_ps(d, _mm_broadcast_ss(x##n.d + b)), f##n);                                        \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = _mm_cvtss_f32(three ? f##n : _mm_sub_ss(f##n, _mm_movehdup_ps(f##n)));
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const unsigned char *p = w + b * size;
            const struct fo_block_q2_k *two_k = (const void *)p;
            const struct fo_block_q3_k *three_k = (const void *)p;
            ahead(p), ahead(p + 64);
            __m256i words, mins;
            const uint8_t *qs = three ? three_k->qs : two_k->qs;
            __m512i u = load_twice(qs), v = load_twice(qs + 32), h = v;
            int halves = 0; /* d, dmin */
            if (three) {
                words = mins = _mm256_cvtepi8_epi16(scales_q3_k(three_k->scales)), h = load_twice(three_k->hmask);
                memcpy(&halves, &three_k->d, sizeof three_k->d);
            } else {
                __m128i both = load16(two_k->scales), nibble = _mm_set1_epi8(15);
                words = _mm256_cvtepu8_epi16(_mm_and_si128(both, nibble));
                mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), nibble));
                memcpy(&halves, &two_k->d, sizeof halves);
            }
            __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
            __m512i scales = _mm512_castsi256_si512(words);
            EACH(START)
            SUB(0, u, down0) SUB(1, u, down1) SUB(2, v, down0) SUB(3, v, down1)
            EACH(BLOCK_END)
        }
        EACH(OUT)
#undef ZERO
#undef START
#undef MAC
#undef SUB
#undef BLOCK_END
#undef OUT
    }
}
DOT_SLOT(dot_q2_k, dot_two_bits, false)
DOT_SLOT(dot_q3_k, dot_two_bits, true)

/* Words 2 i and 2 i + 1 of the eight scales, sixteen times each. */
INLINE __m512i two_scales(int i) {
    int16_t lane[32];
    for (int l = 0; l < 32; l++) lane[l] = (int16_t)(2 * i + l / 16);
    return load(lane);
}

/* IQ4_XS, two sub-blocks at a time: the sixteen bytes of each, twice, the second time shifted to the high nibbles. |q| by x negated where q is. */
INLINE void dot_values(const bool four, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                       size_t y_stride, const int T) {
    (void)four;
    const int n_blocks = (int)(a->k / 256);
    const __m512i low = _mm512_set1_epi8(15), zero = _mm512_setzero_si512(), values = _mm512_broadcast_i32x4(load16(fo_iq4_values));
    const __m512i twice = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), turn = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    const __m512i at0 = two_scales(0), at1 = two_scales(1), at2 = two_scales(2), at3 = two_scales(3);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m512i s##n = _mm512_setzero_si512();
#define MAC(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        __m512i x = load(x##n.q + b * 256 + at);                                                                                         \
        s##n = _mm512_dpwssd_epi32(s##n, _mm512_maddubs_epi16(u, _mm512_mask_sub_epi8(x, minus, zero, x)), by);                          \
    }
#define SUB(i)                                                                                                                           \
    {                                                                                                                                    \
        const int at = 64 * i;                                                                                                           \
        __m512i q = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(load32(p->qs + 32 * i)));                                     \
        q = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srlv_epi64(q, turn), low));                                              \
        __m512i u = _mm512_abs_epi8(q), by = _mm512_permutexvar_epi16(at##i, scales);                                                    \
        __mmask64 minus = _mm512_movepi8_mask(q);                                                                                        \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) v[n][i] = _mm256_add_epi32(_mm512_castsi512_si256(s##n), _mm512_extracti64x4_epi64(s##n, 1));
        EACH(ZERO)
        for (int64_t group = 0; group < n_blocks; group += 4) {
            const int n = (int)(n_blocks - group < 4 ? n_blocks - group : 4);
            __m256i v[FO_TILE][4];
            const __m128i there = begin_four(v, T, n);
            for (int i = 0; i < n; i++) {
                const int64_t b = group + i;
                const struct fo_block_iq4_xs *p = (const struct fo_block_iq4_xs *)(const void *)w + b;
                ahead(p), ahead((const char *)p + 64), ahead((const char *)p + 128);
                __m512i scales = _mm512_castsi128_si512(scales_iq4_xs(p));
                EACH(START)
                SUB(0) SUB(1) SUB(2) SUB(3)
                EACH(BLOCK_END)
            }
            __m128 d = scales4(w + group * (int)sizeof(struct fo_block_iq4_xs), sizeof(struct fo_block_iq4_xs), n);
            EACH(FOLD_FOUR)
        }
        EACH(OUT_FOUR)
#undef ZERO
#undef START
#undef MAC
#undef SUB
#undef BLOCK_END
    }
}
DOT_SLOT(dot_iq4_xs, dot_values, true)

void fo_cpu_avx512_k(struct fo_cpu_kernels *k) {
    k->dot[FO_Q2_K] = dot_q2_k;
    k->dot[FO_Q3_K] = dot_q3_k;
    k->dot[FO_IQ4_XS] = dot_iq4_xs;
}
#endif
