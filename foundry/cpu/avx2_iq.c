/* Dots with the types that name runs of elements in a code book (IQ1, IQ2, IQ3), for AVX2 + FMA + F16C. The rules are avx2.c's: everything that
 * is integer of a type's scales applies to integer sums, and a block has one conversion to float. avx2_iq.h takes blocks apart. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "foundry/cpu/avx2_iq.h"
#include "foundry/cpu/tile.h"

/* --- IQ2 and IQ3 ------------------------------------------------------------------------------------------------------------------- */

INLINE void dot_signed(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                       size_t y_stride, const int T) {
    const bool sixteens = type == FO_IQ2_XS || type == FO_IQ2_S;
    const int size = block_bytes(type);
    const float unit = unit_of(type);
    const int n_blocks = (int)(a->k / 256);
    const struct fo_cpu_books *books = fo_cpu_books();
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n)                                                                                                                           \
    if (n < T)                                                                                                                           \
        s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(load(x##n.q + b * 256 + at), sign)), by));
#define SUB(j, half)                                                                                                                     \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i u = magnitudes_of(type, books, p, &names[b % 2], j), sign = block_signs(type, books, p, j);                              \
        __m256i by = sixteens ? SCALE_PAIR(half, (j) % 4) : _mm256_set1_epi16((short)scale_of(type, p, j));                              \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) v[n][i] = s##n;
        EACH(ZERO)
        struct names names[2];
        names_of(type, w, &names[0]);
        for (int64_t group = 0; group < n_blocks; group += 4) {
            const int n = (int)(n_blocks - group < 4 ? n_blocks - group : 4);
            __m256i v[FO_TILE][4];
            const __m128i there = begin_four(v, T, n);
            for (int i = 0; i < n; i++) {
                const int64_t b = group + i;
                const unsigned char *p = w + b * size;
                ahead(p), ahead(p + 64);
                names_of(type, b + 1 < n_blocks ? p + size : p, &names[(b + 1) % 2]);
                __m256i first = _mm256_setzero_si256(), second = first;
                if (sixteens) {
                    __m256i scales = nibble_scales(type == FO_IQ2_XS ? ((const struct fo_block_iq2_xs *)(const void *)p)->scales
                                                                     : ((const struct fo_block_iq2_s *)(const void *)p)->scales);
                    first = _mm256_permute2x128_si256(scales, scales, 0), second = _mm256_permute2x128_si256(scales, scales, 0x11);
                }
                EACH(START)
                SUB(0, first) SUB(1, first) SUB(2, first) SUB(3, first) SUB(4, second) SUB(5, second) SUB(6, second) SUB(7, second)
                EACH(BLOCK_END)
            }
            __m128 d = _mm_mul_ps(scales4(w + group * size, size, n), _mm_set1_ps(unit));
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
DOT_SLOT(dot_iq2_xxs, dot_signed, FO_IQ2_XXS)
DOT_SLOT(dot_iq2_xs, dot_signed, FO_IQ2_XS)
DOT_SLOT(dot_iq2_s, dot_signed, FO_IQ2_S)
DOT_SLOT(dot_iq3_xxs, dot_signed, FO_IQ3_XXS)
DOT_SLOT(dot_iq3_s, dot_signed, FO_IQ3_S)

/* --- IQ1: -1, 0 or 1, shifted by an eighth -------------------------------------------------------------------------------------------- */

/* Entries are 0..2; eight times an element is 8 u - 8 + 1 or - 1. The constant is the same for 32 elements, and its part one product with the
 * activations' sums of 32. */
INLINE void dot_iq1_s_rows(const bool s, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                           size_t y_stride, const int T) {
    (void)s;
    const int n_blocks = (int)(a->k / 256);
    const struct fo_cpu_books *books = fo_cpu_books();
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n) if (n < T) s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, load(x##n.q + b * 256 + at)), by));
#define SUB(j)                                                                                                                           \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i u = entries_iq1_s(books, p, j);                                                                                          \
        __m256i by = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)((2 * (j) + 1) << 8 | 2 * (j))));                              \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        __m128i shift = _mm_madd_epi16(shifts, load16(x##n.sum32 + b * 8));                                                              \
        s##n = _mm256_add_epi32(_mm256_slli_epi32(s##n, 3), _mm256_inserti128_si256(_mm256_setzero_si256(), shift, 0));                  \
        v[n][i] = s##n;                                        \
    }
        EACH(ZERO)
        for (int64_t group = 0; group < n_blocks; group += 4) {
            const int n = (int)(n_blocks - group < 4 ? n_blocks - group : 4);
            __m256i v[FO_TILE][4];
            const __m128i there = begin_four(v, T, n);
            for (int i = 0; i < n; i++) {
                const int64_t b = group + i;
                const struct fo_block_iq1_s *p = (const struct fo_block_iq1_s *)(const void *)w + b;
                ahead(p);
                __m128i down, three = scales_iq1_s(p, &down);
                __m128i shifts = _mm_mullo_epi16(three, _mm_add_epi16(_mm_add_epi16(down, down), _mm_set1_epi16(-7))); /* -7, or -9 where down is -1 */
                __m256i scales = _mm256_broadcastsi128_si256(three);
                EACH(START)
                SUB(0) SUB(1) SUB(2) SUB(3) SUB(4) SUB(5) SUB(6) SUB(7)
                EACH(BLOCK_END)
            }
            __m128 d = _mm_mul_ps(scales4(w + group * (int)sizeof(struct fo_block_iq1_s), sizeof(struct fo_block_iq1_s), n), _mm_set1_ps(0.125f));
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
DOT_SLOT(dot_iq1_s, dot_iq1_s_rows, true)

/* The scales over eight of up to four blocks. */
INLINE __m128 scales4_iq1_m(const struct fo_block_iq1_m *p, int n) {
#define D(i) ((i) < n ? d_iq1_m(p[i].scales) : 0)
    return _mm_mul_ps(_mm_cvtph_ps(_mm_setr_epi16((short)D(0), (short)D(1), (short)D(2), (short)D(3), 0, 0, 0, 0)), _mm_set1_ps(0.125f));
#undef D
}

/* As above, but each eight have their own shift: the elements, eight times as large, are made first and multiplied with their signs. */
INLINE void dot_iq1_m_rows(const bool m, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                           size_t y_stride, const int T) {
    (void)m;
    const int n_blocks = (int)(a->k / 256);
    const struct fo_cpu_books *books = fo_cpu_books();
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n)                                                                                                                           \
    if (n < T)                                                                                                                           \
        s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(load(x##n.q + b * 256 + at), q)), by));
#define SUB(j, half)                                                                                                                     \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i q = elements_iq1_m(books, p, j);                                                                                         \
        __m256i u = _mm256_abs_epi8(q), by = SCALE_PAIR(half, (j) % 4);                                                                  \
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
                const struct fo_block_iq1_m *p = (const struct fo_block_iq1_m *)(const void *)w + b;
                ahead(p);
                __m256i scales = scales_iq1_m(p->scales);
                __m256i first = _mm256_permute2x128_si256(scales, scales, 0), second = _mm256_permute2x128_si256(scales, scales, 0x11);
                EACH(START)
                SUB(0, first) SUB(1, first) SUB(2, first) SUB(3, first) SUB(4, second) SUB(5, second) SUB(6, second) SUB(7, second)
                EACH(BLOCK_END)
            }
            __m128 d = scales4_iq1_m((const struct fo_block_iq1_m *)(const void *)w + group, n);
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
DOT_SLOT(dot_iq1_m, dot_iq1_m_rows, true)

void fo_cpu_avx2_iq(struct fo_cpu_kernels *k) {
    k->dot[FO_IQ2_XXS] = dot_iq2_xxs;
    k->dot[FO_IQ2_XS] = dot_iq2_xs;
    k->dot[FO_IQ2_S] = dot_iq2_s;
    k->dot[FO_IQ3_XXS] = dot_iq3_xxs;
    k->dot[FO_IQ3_S] = dot_iq3_s;
    k->dot[FO_IQ1_S] = dot_iq1_s;
    k->dot[FO_IQ1_M] = dot_iq1_m;
}
#endif
