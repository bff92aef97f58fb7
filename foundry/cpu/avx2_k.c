/* Dots with the types of 256 elements a block that avx2.c lacks and that need no code book, for AVX2 + FMA + F16C: Q2_K, Q3_K, IQ4_XS, TQ1_0 and
 * TQ2_0. The rules are avx2.c's: integer scales apply to integer sums, exactly, and a block has one conversion to float. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "foundry/cpu/avx2_iq.h"
#include "foundry/cpu/tile.h"

/* Q2_K and Q3_K, 32 elements at a time, two sub-blocks of 16. Mins of Q2_K, and the offset of -4 of Q3_K, are one product with the sums of 16. */
INLINE void dot_two_bits(const bool three, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                         size_t y_stride, const int T) {
    const int size = three ? sizeof(struct fo_block_q3_k) : sizeof(struct fo_block_q2_k), n_blocks = (int)(a->k / 256);
    const __m256i low = _mm256_set1_epi8(3), third = _mm256_set1_epi8(4);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n)                                                                                                                         \
    __m256i s##n = _mm256_setzero_si256(), m##n = s##n;                                                                                  \
    if (n < T) m##n = _mm256_madd_epi16(mins, load(x##n.sum16 + b * 16));                                                                \
    if (three) s##n = m##n;
#define MAC(n) if (n < T) s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(q, load(x##n.q + b * 256 + at)), by));
#define SUB(j, half, pairs, bit)                                                                                                         \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i q = _mm256_and_si256(pairs, low), by = SCALE_PAIR(half, (j) % 4);                                                        \
        if (three) q = _mm256_or_si256(q, _mm256_and_si256(bit, third));                                                                 \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        __m128i m = _mm_setzero_si128();                                                                                                 \
        if (!three) m = _mm_add_epi32(_mm256_castsi256_si128(m##n), _mm256_extracti128_si256(m##n, 1));                                  \
        f##n = _mm_fmadd_ps(sums_of(s##n, m), _mm_mul_ps(d, _mm_broadcast_ss(x##n.d + b)), f##n);                                        \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = _mm_cvtss_f32(three ? f##n : _mm_sub_ss(f##n, _mm_movehdup_ps(f##n)));
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const unsigned char *p = w + b * size;
            const struct fo_block_q2_k *two_k = (const void *)p;
            const struct fo_block_q3_k *three_k = (const void *)p;
            ahead(p), ahead(p + 64);
            __m256i scales, mins, h = _mm256_setzero_si256();
            __m128 d; /* and dmin */
            if (three) {
                scales = _mm256_cvtepi8_epi16(scales_q3_k(three_k->scales)), mins = _mm256_mullo_epi16(scales, _mm256_set1_epi16(-4));
                d = _mm_cvtph_ps(_mm_cvtsi32_si128(three_k->d)), h = load(three_k->hmask);
            } else {
                __m128i both = load16(two_k->scales), nibble = _mm_set1_epi8(15);
                scales = _mm256_cvtepu8_epi16(_mm_and_si128(both, nibble));
                mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), nibble));
                int halves;
                memcpy(&halves, &two_k->d, sizeof halves);
                d = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
            }
            __m256i first = _mm256_permute2x128_si256(scales, scales, 0), second = _mm256_permute2x128_si256(scales, scales, 0x11);
            const uint8_t *qs = three ? three_k->qs : two_k->qs;
            EACH(START)
            __m256i v = load(qs);
            SUB(0, first, v, _mm256_slli_epi16(h, 2)) SUB(1, first, _mm256_srli_epi16(v, 2), _mm256_slli_epi16(h, 1))
            SUB(2, first, _mm256_srli_epi16(v, 4), h) SUB(3, first, _mm256_srli_epi16(v, 6), _mm256_srli_epi16(h, 1))
            v = load(qs + 32);
            SUB(4, second, v, _mm256_srli_epi16(h, 2)) SUB(5, second, _mm256_srli_epi16(v, 2), _mm256_srli_epi16(h, 3))
            SUB(6, second, _mm256_srli_epi16(v, 4), _mm256_srli_epi16(h, 4)) SUB(7, second, _mm256_srli_epi16(v, 6), _mm256_srli_epi16(h, 5))
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

/* IQ4_XS: |q| by x with the sign of q; two products, 2 * 127 * 127, fit 16 bits. */
INLINE void dot_values(const bool four, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                       size_t y_stride, const int T) {
    (void)four;
    const int n_blocks = (int)(a->k / 256);
    const __m256i low = _mm256_set1_epi8(15), turn = _mm256_setr_epi64x(0, 0, 4, 4), values = _mm256_broadcastsi128_si256(load16(fo_iq4_values));
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n)                                                                                                                           \
    if (n < T)                                                                                                                           \
        s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(load(x##n.q + b * 256 + at), q)), by));
#define SUB(j)                                                                                                                           \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i q = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(load16(p->qs + 16 * (j))), turn);                                      \
        q = _mm256_shuffle_epi8(values, _mm256_and_si256(q, low));                                                                       \
        __m256i u = _mm256_abs_epi8(q), by = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)((2 * (j) + 1) << 8 | 2 * (j))));      \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) v[n][i] = s##n;
        EACH(ZERO)
        for (int64_t group = 0; group < n_blocks; group += 4) {
            const int n = (int)(n_blocks - group < 4 ? n_blocks - group : 4);
            __m256i v[FO_TILE][4];
            const __m128i there = begin_four(v, T, n);
            for (int i = 0; i < n; i++) {
                const int64_t b = group + i;
                const struct fo_block_iq4_xs *p = (const struct fo_block_iq4_xs *)(const void *)w + b;
                ahead(p), ahead((const char *)p + 64), ahead((const char *)p + 128);
                __m256i scales = _mm256_broadcastsi128_si256(scales_iq4_xs(p));
                EACH(START)
                SUB(0) SUB(1) SUB(2) SUB(3) SUB(4) SUB(5) SUB(6) SUB(7)
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

/* TQ1_0 and TQ2_0: elements 0..2 less 1. Without scales inside the block all sums stay in 16 bits, 16 * 2 * 127; the offset is the sum of the
 * activations. With so little to do for a block, four share one conversion to float, a lane each. */
INLINE void dot_ternary(const bool packed, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                        size_t y_stride, const int T) {
    const int size = packed ? sizeof(struct fo_block_tq1_0) : sizeof(struct fo_block_tq2_0), n_blocks = (int)(a->k / 256), rest = n_blocks % 4;
    const __m256i low = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)0x80);
    const __m128i all = _mm_set1_epi32(-1), there = _mm_cmpgt_epi32(_mm_set1_epi32(rest), _mm_setr_epi32(0, 1, 2, 3));
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define SUMS(n) __m256i v##n##_0 = _mm256_setzero_si256(), v##n##_1 = v##n##_0, v##n##_2 = v##n##_0, v##n##_3 = v##n##_0;
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n) if (n < T) s##n = _mm256_add_epi16(s##n, _mm256_maddubs_epi16(q, load(x##n.q + in_row + at)));
#define SUB(j, elements)                                                                                                                 \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i q = elements;                                                                                                            \
        EACH(MAC)                                                                                                                        \
    }
#define END(n, i)                                                                                                                        \
    if (n < T) v##n##_##i = _mm256_madd_epi16(_mm256_sub_epi16(s##n, load(x##n.sum16 + (b + (i)) * 16)), one);
/* Block i of the group. */
#define BLOCK(i)                                                                                                                         \
    {                                                                                                                                    \
        const unsigned char *p = w + (b + (i)) * size;                                                                                   \
        const int64_t in_row = (b + (i)) * 256;                                                                                          \
        ahead(p);                                                                                                                        \
        EACH(START)                                                                                                                      \
        if (packed) {                                                                                                                    \
            const struct fo_block_tq1_0 *q1 = (const void *)p;                                                                           \
            int four;                                                                                                                    \
            memcpy(&four, q1->qh, sizeof four);                                                                                          \
            __m256i v = _mm256_xor_si256(load(q1->qs), flip), u = v;                                                                     \
            SUB(0, digit(v))                                                                                                             \
            v = times3(v);                                                                                                               \
            SUB(1, digit(v))                                                                                                             \
            v = times3(v);                                                                                                               \
            SUB(2, digit(v))                                                                                                             \
            v = times3(v);                                                                                                               \
            SUB(3, digit(v))                                                                                                             \
            v = times3(v);                                                                                                               \
            SUB(4, digit(v))                                                                                                             \
            u = _mm256_xor_si256(_mm256_broadcastsi128_si256(load16(q1->qs + 32)), flip);                                                \
            u = _mm256_blend_epi32(u, times3(u), 0xF0); /* digits 0 and 1 of the sixteen bytes, then 2 and 3 */                          \
            SUB(5, digit(u))                                                                                                             \
            u = times3(times3(u));                                                                                                       \
            SUB(6, digit(u))                                                                                                             \
            u = times3(times3(u)); /* digit 4 below; above, digits 0, 1, 2, 3 of the last four bytes */                                  \
            __m256i last = _mm256_xor_si256(_mm256_set1_epi32(four), flip), third = times3(last), ninth = times3(third);                 \
            last = _mm256_blend_epi32(_mm256_blend_epi32(last, third, 0x20), _mm256_blend_epi32(ninth, times3(ninth), 0x80), 0xC0);      \
            SUB(7, digit(_mm256_blend_epi32(u, last, 0xF0)))                                                                             \
        } else {                                                                                                                         \
            __m256i v = load(p);                                                                                                         \
            SUB(0, _mm256_and_si256(v, low)) SUB(1, _mm256_and_si256(_mm256_srli_epi16(v, 2), low))                                      \
            SUB(2, _mm256_and_si256(_mm256_srli_epi16(v, 4), low)) SUB(3, _mm256_and_si256(_mm256_srli_epi16(v, 6), low))                \
            v = load(p + 32);                                                                                                            \
            SUB(4, _mm256_and_si256(v, low)) SUB(5, _mm256_and_si256(_mm256_srli_epi16(v, 2), low))                                      \
            SUB(6, _mm256_and_si256(_mm256_srli_epi16(v, 4), low)) SUB(7, _mm256_and_si256(_mm256_srli_epi16(v, 6), low))                \
        }                                                                                                                                \
        END(0, i) END(1, i) END(2, i) END(3, i)                                                                                          \
    }
#define FOLD(n, there)                                                                                                                   \
    if (n < T) {                                                                                                                         \
        const __m256i v[4] = { v##n##_0, v##n##_1, v##n##_2, v##n##_3 };                                                                 \
        f##n = add_four(f##n, v, d, x##n.d + b, there);                                                                                  \
    }
        EACH(ZERO)
        __m128 d;
        int64_t b = 0;
        for (; b + 4 <= n_blocks; b += 4) {
            EACH(SUMS)
            BLOCK(0) BLOCK(1) BLOCK(2) BLOCK(3)
            d = scales4(w + b * size + size - 2, size, 4);
            FOLD(0, all) FOLD(1, all) FOLD(2, all) FOLD(3, all)
        }
        if (rest) {
            EACH(SUMS)
            BLOCK(0)
            if (rest > 1) BLOCK(1)
            if (rest > 2) BLOCK(2)
            d = scales4(w + b * size + size - 2, size, rest);
            FOLD(0, there) FOLD(1, there) FOLD(2, there) FOLD(3, there)
        }
        EACH(OUT_FOUR)
#undef ZERO
#undef SUMS
#undef START
#undef MAC
#undef SUB
#undef END
#undef BLOCK
#undef FOLD
    }
}
DOT_SLOT(dot_tq1_0, dot_ternary, true)
DOT_SLOT(dot_tq2_0, dot_ternary, false)

void fo_cpu_avx2_k(struct fo_cpu_kernels *k) {
    k->dot[FO_Q2_K] = dot_q2_k;
    k->dot[FO_Q3_K] = dot_q3_k;
    k->dot[FO_IQ4_XS] = dot_iq4_xs;
    k->dot[FO_TQ1_0] = dot_tq1_0;
    k->dot[FO_TQ2_0] = dot_tq2_0;
}
#endif
