/* Dots with the types that name runs of elements in a code book (IQ1, IQ2, IQ3), for AVX2 + FMA + F16C. The rules are avx2.c's. Entries are
 * fetched as bytes (books.h), 32 elements at a time, and everything that is integer of a type's scales applies to integer sums. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/cpu/books.h"
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

INLINE uint32_t word_of(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* --- IQ2 and IQ3: magnitudes and signs ------------------------------------------------------------------------------------------------ */

/* Two entries of a book of eights: MOVHPS takes the second from memory in one step. */
INLINE __m128i two_eights(const uint64_t *low, const uint64_t *high) {
    __m128 v = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)low));
    return _mm_castps_si128(_mm_loadh_pi(v, (const __m64 *)(const void *)high));
}

/* Four. */
#define EIGHTS(book, a, b, c, d) _mm256_setr_m128i(two_eights((book) + (a), (book) + (b)), two_eights((book) + (c), (book) + (d)))

/* Eight entries of a book of fours, joined in pairs outside the vector unit. */
INLINE __m256i fours(const uint32_t *book, const uint8_t *index, uint32_t high) {
#define AT(i) (book[index[i] | (high << (8 - (i)) & 0x100)])
#define TWO(i) ((long long)(AT(i) | (uint64_t)AT((i) + 1) << 32))
    return _mm256_setr_epi64x(TWO(0), TWO(2), TWO(4), TWO(6));
#undef TWO
#undef AT
}

/* 32 bits of signs as bytes, 1 or -1. */
INLINE __m256i signs_of(const uint8_t bits[4]) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ULL);
    __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word_of(bits)), spread), bit);
    return _mm256_or_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(1));
}

/* The magnitudes of elements 32 j .. 32 j + 31. */
INLINE __m256i magnitudes_of(const enum fo_dtype type, const struct fo_cpu_books *k, const unsigned char *p, const int j) {
    if (type == FO_IQ2_XXS) {
        const uint8_t *i = ((const struct fo_block_iq2_xxs *)(const void *)p)->sub[j].index;
        return EIGHTS(k->iq2_xxs, i[0], i[1], i[2], i[3]);
    }
    if (type == FO_IQ2_XS) {
        const uint16_t *i = ((const struct fo_block_iq2_xs *)(const void *)p)->qs + 4 * j;
        return EIGHTS(k->iq2_xs, i[0] & 511, i[1] & 511, i[2] & 511, i[3] & 511);
    }
    if (type == FO_IQ2_S) {
        const struct fo_block_iq2_s *b = (const void *)p;
        const uint8_t *i = b->qs + 4 * j;
        uint32_t h = b->qh[j];
        return EIGHTS(k->iq2_s, i[0] | (h << 8 & 0x300), i[1] | (h << 6 & 0x300), i[2] | (h << 4 & 0x300), i[3] | (h << 2 & 0x300));
    }
    if (type == FO_IQ3_XXS) return fours(k->iq3_xxs, ((const struct fo_block_iq3_xxs *)(const void *)p)->qs + 8 * j, 0);
    const struct fo_block_iq3_s *b = (const void *)p;
    return fours(k->iq3_s, b->qs + 8 * j, b->qh[j]);
}

INLINE __m256i block_signs(const enum fo_dtype type, const struct fo_cpu_books *k, const unsigned char *p, const int j) {
    if (type == FO_IQ2_S) return signs_of(((const struct fo_block_iq2_s *)(const void *)p)->signs + 4 * j);
    if (type == FO_IQ3_S) return signs_of(((const struct fo_block_iq3_s *)(const void *)p)->signs + 4 * j);
    if (type == FO_IQ2_XS) {
        const uint16_t *i = ((const struct fo_block_iq2_xs *)(const void *)p)->qs + 4 * j;
        return EIGHTS(k->signs, i[0] >> 9, i[1] >> 9, i[2] >> 9, i[3] >> 9);
    }
    uint32_t word = word_of(type == FO_IQ2_XXS ? ((const struct fo_block_iq2_xxs *)(const void *)p)->sub[j].word
                                               : ((const struct fo_block_iq3_xxs *)(const void *)p)->word[j]);
    return EIGHTS(k->signs, word & 127, word >> 7 & 127, word >> 14 & 127, word >> 21 & 127);
}

/* Scales are 2 s + 1. Those of sixteen sub-blocks of 16 (IQ2_XS and IQ2_S) as words. */
INLINE __m256i nibble_scales(const uint8_t packed[8]) {
    __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)packed), low = _mm_set1_epi8(15);
    both = _mm_unpacklo_epi8(_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low));
    return _mm256_cvtepu8_epi16(_mm_or_si128(_mm_add_epi8(both, both), _mm_set1_epi8(1)));
}

/* That of sub-block j of 32. */
INLINE int scale_of(const enum fo_dtype type, const unsigned char *p, const int j) {
    if (type == FO_IQ2_XXS) return (int)(word_of(((const struct fo_block_iq2_xxs *)(const void *)p)->sub[j].word) >> 28) * 2 + 1;
    if (type == FO_IQ3_XXS) return (int)(word_of(((const struct fo_block_iq3_xxs *)(const void *)p)->word[j]) >> 28) * 2 + 1;
    return (((const struct fo_block_iq3_s *)(const void *)p)->scales[j / 2] >> 4 * (j & 1) & 15) * 2 + 1;
}

INLINE void dot_signed(const enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                       size_t y_stride, const int T) {
    const bool sixteens = type == FO_IQ2_XS || type == FO_IQ2_S;
    const int size = type == FO_IQ2_XXS   ? sizeof(struct fo_block_iq2_xxs)
                     : type == FO_IQ2_XS  ? sizeof(struct fo_block_iq2_xs)
                     : type == FO_IQ2_S   ? sizeof(struct fo_block_iq2_s)
                     : type == FO_IQ3_XXS ? sizeof(struct fo_block_iq3_xxs)
                                          : sizeof(struct fo_block_iq3_s);
    const float unit = type == FO_IQ3_S ? 1 : type == FO_IQ3_XXS ? 0.25f : 0.125f;
    const int n_blocks = (int)(a->k / 256);
    const struct fo_cpu_books *books = fo_cpu_books();
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n)                                                                                                                           \
    if (n < T)                                                                                                                           \
        s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(load(x##n.q + b * 256 + at), sign)), by));
#define SUB(j, half)                                                                                                                     \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i u = magnitudes_of(type, books, p, j), sign = block_signs(type, books, p, j);                                             \
        __m256i by = sixteens ? SCALE_PAIR(half, (j) % 4) : _mm256_set1_epi16((short)scale_of(type, p, j));                              \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s##n), _mm256_set1_ps(d * x##n.d[b]), f##n);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const unsigned char *p = w + b * size;
            ahead(p), ahead(p + 64);
            __m256i first = _mm256_setzero_si256(), second = first;
            if (sixteens) {
                __m256i scales = nibble_scales(type == FO_IQ2_XS ? ((const struct fo_block_iq2_xs *)(const void *)p)->scales
                                                                 : ((const struct fo_block_iq2_s *)(const void *)p)->scales);
                first = _mm256_permute2x128_si256(scales, scales, 0), second = _mm256_permute2x128_si256(scales, scales, 0x11);
            }
            float d = half_to_f32((uint16_t)word_of(p)) * unit; /* d is the first two bytes of each */
            EACH(START)
            SUB(0, first) SUB(1, first) SUB(2, first) SUB(3, first) SUB(4, second) SUB(5, second) SUB(6, second) SUB(7, second)
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
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n) if (n < T) s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, load(x##n.q + b * 256 + at)), by));
#define SUB(j)                                                                                                                           \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        const uint8_t *i = p->qs + 4 * (j);                                                                                              \
        uint32_t h = p->qh[j];                                                                                                           \
        __m256i u = EIGHTS(books->iq1, i[0] | (h << 8 & 0x700), i[1] | (h << 5 & 0x700), i[2] | (h << 2 & 0x700), i[3] | (h >> 1 & 0x700)); \
        __m256i by = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)((2 * (j) + 1) << 8 | 2 * (j))));                              \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        __m128i shift = _mm_madd_epi16(shifts, load16(x##n.sum32 + b * 8));                                                              \
        s##n = _mm256_add_epi32(_mm256_slli_epi32(s##n, 3), _mm256_inserti128_si256(_mm256_setzero_si256(), shift, 0));                  \
        f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s##n), _mm256_set1_ps(d * x##n.d[b]), f##n);                                           \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const struct fo_block_iq1_s *p = (const struct fo_block_iq1_s *)(const void *)w + b;
            ahead(p);
            __m128i top = load16(p->qh), three = _mm_and_si128(_mm_srli_epi16(top, 12), _mm_set1_epi16(7)), down = _mm_srai_epi16(top, 15);
            three = _mm_or_si128(_mm_add_epi16(three, three), _mm_set1_epi16(1));
            __m128i shifts = _mm_mullo_epi16(three, _mm_add_epi16(_mm_add_epi16(down, down), _mm_set1_epi16(-7))); /* -7, or -9 where down is -1 */
            __m256i scales = _mm256_broadcastsi128_si256(three);
            float d = half_to_f32(p->d) * 0.125f;
            EACH(START)
            SUB(0) SUB(1) SUB(2) SUB(3) SUB(4) SUB(5) SUB(6) SUB(7)
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
DOT_SLOT(dot_iq1_s, dot_iq1_s_rows, true)

/* The sixteen scales of IQ1_M, 2 s + 1, as words: s is three bits of the first, second, third or fourth word, four to a word. */
INLINE __m256i scales_iq1_m(const uint16_t packed[4]) {
    __m256i words = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)packed));
    words = _mm256_shuffle_epi8(words, _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706));
    words = _mm256_mullo_epi16(words, _mm256_set1_epi64x(1LL << 13 | 1LL << (16 + 10) | 1LL << (32 + 7) | 1LL << (48 + 4)));
    words = _mm256_srli_epi16(words, 13); /* the three bits went to the top of their word */
    return _mm256_or_si256(_mm256_add_epi16(words, words), _mm256_set1_epi16(1));
}

/* As above, but each eight have their own shift: the elements, eight times as large, are made first and multiplied with their signs. */
INLINE void dot_iq1_m_rows(const bool m, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                           size_t y_stride, const int T) {
    (void)m;
    const int n_blocks = (int)(a->k / 256);
    const struct fo_cpu_books *books = fo_cpu_books();
    const __m256i shift_bits = _mm256_setr_epi64x(0x0008000800080008, 0x0080008000800080, 0x0800080008000800, (long long)0x8000800080008000ULL);
    const __m256i minus_7 = _mm256_set1_epi8(-7);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n)                                                                                                                           \
    if (n < T)                                                                                                                           \
        s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(load(x##n.q + b * 256 + at), q)), by));
#define SUB(j, half)                                                                                                                     \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        const uint8_t *i = p->qs + 4 * (j);                                                                                              \
        uint32_t h = p->qh[2 * (j)] | (uint32_t)p->qh[2 * (j) + 1] << 8;                                                                 \
        __m256i q = EIGHTS(books->iq1, i[0] | (h << 8 & 0x700), i[1] | (h << 4 & 0x700), i[2] | (h & 0x700), i[3] | (h >> 4 & 0x700));   \
        __m256i down = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)h), shift_bits), shift_bits);                        \
        q = _mm256_add_epi8(_mm256_add_epi8(_mm256_slli_epi16(q, 3), minus_7), _mm256_add_epi8(down, down));                             \
        __m256i u = _mm256_abs_epi8(q), by = SCALE_PAIR(half, (j) % 4);                                                                  \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s##n), _mm256_set1_ps(d * x##n.d[b]), f##n);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const struct fo_block_iq1_m *p = (const struct fo_block_iq1_m *)(const void *)w + b;
            ahead(p);
            const uint16_t *s = p->scales;
            __m256i scales = scales_iq1_m(s);
            __m256i first = _mm256_permute2x128_si256(scales, scales, 0), second = _mm256_permute2x128_si256(scales, scales, 0x11);
            float d = half_to_f32((uint16_t)(s[0] >> 12 | (s[1] >> 8 & 0xF0) | (s[2] >> 4 & 0xF00) | (s[3] & 0xF000))) * 0.125f;
            EACH(START)
            SUB(0, first) SUB(1, first) SUB(2, first) SUB(3, first) SUB(4, second) SUB(5, second) SUB(6, second) SUB(7, second)
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
