/* How AVX2 takes the blocks apart of the types with code books (IQ1, IQ2, IQ3), of IQ4_XS, TQ1_0 and NVFP4: for their dots (avx2_iq.c, avx2_k.c,
 * avx2_legacy.c) and their batched products (avx2_gemm_iq.c). Entries of books are fetched as bytes (books.h), 32 elements at a time. Nothing
 * where the compiler does not make AVX2, FMA and F16C. */
#pragma once
#include "foundry/cpu/avx2.h"
#include "foundry/cpu/books.h"
#include "foundry/dtype.h"
#include "foundry/quant.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

INLINE uint32_t word_of(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* --- IQ2 and IQ3: magnitudes and signs ------------------------------------------------------------------------------------------- */

/* Two entries of a book of eights: MOVHPS takes the second from memory in one step. */
INLINE __m128i two_eights(const uint64_t *low, const uint64_t *high) {
    __m128 v = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)low));
    return _mm_castps_si128(_mm_loadh_pi(v, (const __m64 *)(const void *)high));
}

/* Four. */
#define EIGHTS(book, a, b, c, d) _mm256_setr_m128i(two_eights((book) + (a), (book) + (b)), two_eights((book) + (c), (book) + (d)))

/* Eight entries of a book of fours, joined in pairs outside the vector unit. */
#define FOURS(book, at)                                                                                                                  \
    _mm256_setr_epi64x(two_fours(book, (at)[0], (at)[1]), two_fours(book, (at)[2], (at)[3]), two_fours(book, (at)[4], (at)[5]),          \
                       two_fours(book, (at)[6], (at)[7]))
INLINE long long two_fours(const uint32_t *book, uint32_t low, uint32_t high) {
    return (long long)(book[low] | (uint64_t)book[high] << 32);
}

/* 32 bits of signs as bytes, 1 or -1. */
INLINE __m256i signs_of(const uint8_t bits[4]) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ULL);
    __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word_of(bits)), spread), bit);
    return _mm256_or_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(1));
}

/* Indices of IQ2_S and IQ3_S, whose top bits lie apart, put together for a whole block: one by one it takes several times as many steps. They
 * go through memory, so whoever is in a hurry makes those of the next block while this one's are in use. */
struct names {
    _Alignas(32) uint16_t entry[64];
};

INLINE void put_names(const uint8_t low[16], __m256i high, const short bits, uint16_t *to) {
    high = _mm256_and_si256(high, _mm256_set1_epi16(bits));
    _mm256_store_si256((__m256i *)(void *)to, _mm256_or_si256(_mm256_cvtepu8_epi16(load16(low)), high));
}

INLINE void names_of(const enum fo_dtype type, const unsigned char *p, struct names *out) {
    if (type == FO_IQ2_S) { /* a byte of qh for four entries: bits 0..1, 2..3, 4..5 and 6..7 to bits 8..9 */
        const struct fo_block_iq2_s *b = (const void *)p;
        const __m256i high = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)b->qh));
        const __m256i up = _mm256_set1_epi64x(1LL << 8 | 1LL << (16 + 6) | 1LL << (32 + 4) | 1LL << (48 + 2));
        const __m256i first = _mm256_setr_epi64x((long long)0x8000800080008000ULL, (long long)0x8001800180018001ULL, (long long)0x8002800280028002ULL,
                                                 (long long)0x8003800380038003ULL);
        for (int c = 0; c < 2; c++) {
            __m256i h = _mm256_shuffle_epi8(high, _mm256_add_epi16(first, _mm256_set1_epi16((short)(4 * c))));
            put_names(b->qs + 16 * c, _mm256_mullo_epi16(h, up), 0x300, out->entry + 16 * c);
        }
    }
    if (type == FO_IQ3_S) { /* a byte for eight: bits 0..7 to bit 8 */
        const struct fo_block_iq3_s *b = (const void *)p;
        const __m256i high = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)b->qh));
        const __m256i up = _mm256_broadcastsi128_si256(_mm_setr_epi16(1 << 8, 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1));
        for (int c = 0; c < 4; c++) {
            __m256i h = _mm256_shuffle_epi8(high, _mm256_setr_m128i(_mm_set1_epi16((short)(0x8000 + 2 * c)), _mm_set1_epi16((short)(0x8001 + 2 * c))));
            put_names(b->qs + 16 * c, _mm256_mullo_epi16(h, up), 0x100, out->entry + 16 * c);
        }
    }
}

/* The magnitudes of elements 32 j .. 32 j + 31. */
INLINE __m256i magnitudes_of(const enum fo_dtype type, const struct fo_cpu_books *k, const unsigned char *p, const struct names *n, const int j) {
    if (type == FO_IQ2_XXS) {
        const uint8_t *i = ((const struct fo_block_iq2_xxs *)(const void *)p)->sub[j].index;
        return EIGHTS(k->iq2_xxs, i[0], i[1], i[2], i[3]);
    }
    if (type == FO_IQ2_XS) {
        const uint16_t *i = ((const struct fo_block_iq2_xs *)(const void *)p)->qs + 4 * j;
        return EIGHTS(k->iq2_xs, i[0] & 511, i[1] & 511, i[2] & 511, i[3] & 511);
    }
    if (type == FO_IQ2_S) return EIGHTS(k->iq2_s, n->entry[4 * j], n->entry[4 * j + 1], n->entry[4 * j + 2], n->entry[4 * j + 3]);
    if (type == FO_IQ3_XXS) return FOURS(k->iq3_xxs, ((const struct fo_block_iq3_xxs *)(const void *)p)->qs + 8 * j);
    return FOURS(k->iq3_s, n->entry + 8 * j);
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

/* What is left of a weight beside d, the integer scale and the integers below. */
INLINE float unit_of(const enum fo_dtype type) {
    return type == FO_IQ3_S ? 1 : type == FO_IQ3_XXS ? 0.25f : 0.125f;
}

/* --- IQ1: -1, 0 or 1, shifted by an eighth -------------------------------------------------------------------------------------------- */

/* Elements of sub-block j of 32 plus one: 0..2. */
INLINE __m256i entries_iq1_s(const struct fo_cpu_books *k, const struct fo_block_iq1_s *p, const int j) {
    const uint8_t *i = p->qs + 4 * j;
    uint32_t h = p->qh[j];
    return EIGHTS(k->iq1, i[0] | (h << 8 & 0x700), i[1] | (h << 5 & 0x700), i[2] | (h << 2 & 0x700), i[3] | (h >> 1 & 0x700));
}

/* The eight scales of IQ1_S, 2 s + 1; and -1 where the shift is down, else 0. */
INLINE __m128i scales_iq1_s(const struct fo_block_iq1_s *p, __m128i *ret_down) {
    __m128i top = load16(p->qh), three = _mm_and_si128(_mm_srli_epi16(top, 12), _mm_set1_epi16(7));
    *ret_down = _mm_srai_epi16(top, 15);
    return _mm_or_si128(_mm_add_epi16(three, three), _mm_set1_epi16(1));
}

/* Elements of sub-block j of 32, eight times as large, shift included: each eight have their own. */
INLINE __m256i elements_iq1_m(const struct fo_cpu_books *k, const struct fo_block_iq1_m *p, const int j) {
    const __m256i shift_bits = _mm256_setr_epi64x(0x0008000800080008, 0x0080008000800080, 0x0800080008000800, (long long)0x8000800080008000ULL);
    const uint8_t *i = p->qs + 4 * j;
    uint32_t h = p->qh[2 * j] | (uint32_t)p->qh[2 * j + 1] << 8;
    __m256i q = EIGHTS(k->iq1, i[0] | (h << 8 & 0x700), i[1] | (h << 4 & 0x700), i[2] | (h & 0x700), i[3] | (h >> 4 & 0x700));
    __m256i down = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)h), shift_bits), shift_bits);
    return _mm256_add_epi8(_mm256_add_epi8(_mm256_slli_epi16(q, 3), _mm256_set1_epi8(-7)), _mm256_add_epi8(down, down));
}

/* The sixteen scales of IQ1_M, 2 s + 1, as words: s is three bits of the first, second, third or fourth word, four to a word. */
INLINE __m256i scales_iq1_m(const uint16_t packed[4]) {
    __m256i words = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)packed));
    words = _mm256_shuffle_epi8(words, _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706));
    words = _mm256_mullo_epi16(words, _mm256_set1_epi64x(1LL << 13 | 1LL << (16 + 10) | 1LL << (32 + 7) | 1LL << (48 + 4)));
    words = _mm256_srli_epi16(words, 13); /* the three bits went to the top of their word */
    return _mm256_or_si256(_mm256_add_epi16(words, words), _mm256_set1_epi16(1));
}

/* Its d, bits of a half: the top nibbles of the words. */
INLINE int d_iq1_m(const uint16_t s[4]) {
    return s[0] >> 12 | (s[1] >> 8 & 0xF0) | (s[2] >> 4 & 0xF00) | (s[3] & 0xF000);
}

/* --- without books ---------------------------------------------------------------------------------------------------------------- */

/* The highest digit of base 3 of bytes v, floor(3 v / 256), from v - 128 as signed bytes. */
INLINE __m256i digit(__m256i v) {
    return _mm256_abs_epi8(_mm256_add_epi8(_mm256_cmpgt_epi8(v, _mm256_set1_epi8(85 - 128)), _mm256_cmpgt_epi8(v, _mm256_set1_epi8(170 - 128))));
}

/* The next digit to the top: times 3 modulo 256. The 128 stays: 3 (v - 128) = 3 v - 128 modulo 256. */
INLINE __m256i times3(__m256i v) {
    return _mm256_add_epi8(v, _mm256_add_epi8(v, v));
}

/* Scales of NVFP4 over 2, exactly, from eight codes in words: shifted to the fields of a half they are 2^8 too small, subnormals too. The top
 * bit counts for nothing, but 0x7F alone is zero. */
INLINE __m256 halves_of_e4m3(__m128i codes) {
    const __m128i nan = _mm_set1_epi16(0x7F);
    codes = _mm_slli_epi16(_mm_and_si128(_mm_andnot_si128(_mm_cmpeq_epi16(codes, nan), codes), nan), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(codes), _mm256_set1_ps(128));
}
#endif
