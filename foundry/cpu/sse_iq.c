/* Dots with the types that name runs of elements in a code book (IQ1, IQ2, IQ3), for SSSE3 and SSE4.1. Entries are fetched as bytes (books.h),
 * signs applied, and the dot of sse_256.h does the rest. Scales are odd integers, so d takes their common fraction; IQ1's shift of an eighth is made
 * whole the same way: its elements are 8 q + 1 or 8 q - 1. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/sse_256.h"

/* Scales 2 s + 1 of sixteen sub-blocks of 16, from nibbles. */
INLINE void nibble_scales(const uint8_t packed[8], struct head *ret) {
    __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)packed), low = _mm_set1_epi8(15);
    both = _mm_unpacklo_epi8(_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low));
    both = _mm_or_si128(_mm_add_epi8(both, both), _mm_set1_epi8(1));
    ret->scale[0] = _mm_cvtepu8_epi16(both);
    ret->scale[1] = _mm_cvtepu8_epi16(_mm_unpackhi_epi64(both, both));
}

INLINE __m128i odd(__m128i s) {
    return _mm_or_si128(_mm_add_epi16(s, s), _mm_set1_epi16(1));
}

/* The three bits of IQ1_M: four to a word of which two are taken here. */
INLINE __m128i threes(const uint16_t packed[2]) {
    __m128i words = _mm_shuffle_epi8(_mm_cvtsi32_si128((int)word_of(packed)), _mm_set_epi64x(0x0302030203020302, 0x0100010001000100));
    words = _mm_mullo_epi16(words, _mm_set1_epi64x(1LL << 13 | 1LL << (16 + 10) | 1LL << (32 + 7) | 1LL << (48 + 4)));
    return odd(_mm_srli_epi16(words, 13)); /* the three bits went to the top of their word */
}

INLINE void head_of(const enum fo_dtype type, const unsigned char *p, struct head *ret) {
    const struct fo_block_iq2_xxs *xxs = (const void *)p;
    const struct fo_block_iq3_xxs *xxs3 = (const void *)p;
    const struct fo_block_iq3_s *s3 = (const void *)p;
    const struct fo_block_iq1_s *s1 = (const void *)p;
    const uint16_t *s = ((const struct fo_block_iq1_m *)(const void *)p)->scales;
    uint16_t d = half_of(p); /* the first two bytes of all but IQ1_M */
    float unit = 0.125f;
    switch (type) {
    case FO_IQ2_XXS:
#define S(i) (short)(word_of(xxs->sub[i].word) >> 28)
        ret->scale[0] = odd(_mm_setr_epi16(S(0), S(1), S(2), S(3), S(4), S(5), S(6), S(7)));
#undef S
        break;
    case FO_IQ3_XXS:
#define S(i) (short)(word_of(xxs3->word[i]) >> 28)
        ret->scale[0] = odd(_mm_setr_epi16(S(0), S(1), S(2), S(3), S(4), S(5), S(6), S(7)));
#undef S
        unit = 0.25f;
        break;
    case FO_IQ3_S: {
        __m128i both = _mm_cvtsi32_si128((int)word_of(s3->scales)), low = _mm_set1_epi8(15);
        both = _mm_unpacklo_epi8(_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low));
        ret->scale[0] = odd(_mm_cvtepu8_epi16(both));
        unit = 1;
        break;
    }
    case FO_IQ2_XS: nibble_scales(((const struct fo_block_iq2_xs *)(const void *)p)->scales, ret); break;
    case FO_IQ2_S: nibble_scales(((const struct fo_block_iq2_s *)(const void *)p)->scales, ret); break;
    case FO_IQ1_S: ret->scale[0] = odd(_mm_and_si128(_mm_srli_epi16(load(s1->qh), 12), _mm_set1_epi16(7))); break;
    default: /* IQ1_M */
        ret->scale[0] = threes(s);
        ret->scale[1] = threes(s + 2);
        d = (uint16_t)(s[0] >> 12 | (s[1] >> 8 & 0xF0) | (s[2] >> 4 & 0xF00) | (s[3] & 0xF000));
    }
    ret->d = _mm_mul_ps(two_halves(d), _mm_set1_ps(unit));
}

INLINE __m128i two_entries(uint64_t low, uint64_t high) {
    return _mm_set_epi64x((long long)high, (long long)low);
}

INLINE uint64_t four_and_four(uint32_t low, uint32_t high) {
    return low | (uint64_t)high << 32;
}

/* v with a minus where a bit of the sixteen is set. */
INLINE __m128i with_signs(__m128i v, const uint8_t *two) {
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201ULL);
    __m128i set = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128(half_of(two)), _mm_set_epi64x(0x0101010101010101, 0)), bit);
    __m128i minus = _mm_cmpeq_epi8(set, bit);
    return _mm_sub_epi8(_mm_xor_si128(v, minus), minus);
}

/* Entries of 0, 1 and 2 to eight times themselves less one, and the shift of each eight. */
INLINE __m128i shifted(__m128i v, bool low_down, bool high_down) {
    const uint64_t down = 0xF7F7F7F7F7F7F7F7, up = 0xF9F9F9F9F9F9F9F9; /* bytes of -9 and -7 */
    return _mm_add_epi8(_mm_slli_epi16(v, 3), two_entries(low_down ? down : up, high_down ? down : up));
}

/* The 16 elements of a run from 8 g on; g is even. */
INLINE __m128i half_run(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *k, const int j, const int g) {
    const struct fo_block_iq2_xxs *xxs = (const void *)p;
    const struct fo_block_iq2_xs *xs = (const void *)p;
    const struct fo_block_iq2_s *s = (const void *)p;
    const struct fo_block_iq3_xxs *xxs3 = (const void *)p;
    const struct fo_block_iq3_s *s3 = (const void *)p;
    const struct fo_block_iq1_s *s1 = (const void *)p;
    const struct fo_block_iq1_m *m1 = (const void *)p;
    const int at = 4 * j + g;
    uint32_t word;
    switch (type) {
    case FO_IQ2_XXS:
        word = word_of(xxs->sub[j].word) >> 7 * g;
        return _mm_sign_epi8(two_entries(k->iq2_xxs[xxs->sub[j].index[g]], k->iq2_xxs[xxs->sub[j].index[g + 1]]),
                             two_entries(k->signs[word & 127], k->signs[word >> 7 & 127]));
    case FO_IQ2_XS:
        return _mm_sign_epi8(two_entries(k->iq2_xs[xs->qs[at] & 511], k->iq2_xs[xs->qs[at + 1] & 511]),
                             two_entries(k->signs[xs->qs[at] >> 9], k->signs[xs->qs[at + 1] >> 9]));
    case FO_IQ2_S:
        return with_signs(two_entries(k->iq2_s[s->qs[at] | (s->qh[j] >> 2 * g & 3) << 8], k->iq2_s[s->qs[at + 1] | (s->qh[j] >> (2 * g + 2) & 3) << 8]),
                          s->signs + at);
    case FO_IQ3_XXS: {
        const uint8_t *q = xxs3->qs + 2 * at;
        word = word_of(xxs3->word[j]) >> 7 * g;
        return _mm_sign_epi8(two_entries(four_and_four(k->iq3_xxs[q[0]], k->iq3_xxs[q[1]]), four_and_four(k->iq3_xxs[q[2]], k->iq3_xxs[q[3]])),
                             two_entries(k->signs[word & 127], k->signs[word >> 7 & 127]));
    }
    case FO_IQ3_S: {
        const uint8_t *q = s3->qs + 2 * at;
        const unsigned high = (unsigned)s3->qh[j] << 8 >> 2 * g; /* bit 8 and up: the top bits of the four */
#define ENTRY(i) k->iq3_s[q[i] | (high >> (i) & 256)]
        return with_signs(two_entries(four_and_four(ENTRY(0), ENTRY(1)), four_and_four(ENTRY(2), ENTRY(3))), s3->signs + at);
#undef ENTRY
    }
    case FO_IQ1_S: {
        const unsigned qh = s1->qh[j];
        return shifted(two_entries(k->iq1[s1->qs[at] | (qh >> 3 * g & 7) << 8], k->iq1[s1->qs[at + 1] | (qh >> (3 * g + 3) & 7) << 8]), qh >> 15, qh >> 15);
    }
    default: { /* IQ1_M */
        const unsigned qh = m1->qh[at / 2];
        return shifted(two_entries(k->iq1[m1->qs[at] | (qh & 7) << 8], k->iq1[m1->qs[at + 1] | (qh >> 4 & 7) << 8]), qh >> 3 & 1, qh >> 7);
    }
    }
}

INLINE struct run run_of(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *books, const int j) {
    return (struct run){ half_run(type, p, books, j, 0), half_run(type, p, books, j, 2) };
}

#define DOTS(X) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M)
#define SLOT(type) DOT_SLOT(dot_##type, dot_256, FO_##type)
DOTS(SLOT)
#undef SLOT

void fo_cpu_sse_iq(struct fo_cpu_kernels *k) {
#define FILL(type) k->dot[FO_##type] = dot_##type;
    DOTS(FILL)
#undef FILL
}
#endif
