/* NEON: the quants and scales of the types with code books (IQ1, IQ2, IQ3), for neon_k.h. The books are those of books.h: an entry is the
 * bytes of eight (IQ3: four) elements. Scales are odd integers, so d takes their common fraction. IQ1's shift of an eighth is made whole the
 * same way: its bytes are 8 q + 1 or 8 q - 1. */
#pragma once
#if defined(__aarch64__)
#include "foundry/cpu/books.h"
#include "foundry/cpu/neon.h"
#include "foundry/quant.h"

INLINE bool has_book(const enum fo_dtype type) {
    return type == FO_IQ2_XXS || type == FO_IQ2_XS || type == FO_IQ2_S || type == FO_IQ3_XXS || type == FO_IQ3_S || type == FO_IQ1_S ||
           type == FO_IQ1_M;
}

INLINE uint32_t word_of(const uint8_t b[4]) {
    uint32_t w;
    memcpy(&w, b, sizeof w);
    return w;
}

/* The integer scales of a block, sixteen or (one for each 32 elements) eight; what the integers are to be multiplied with. */
INLINE float iq_scales(const enum fo_dtype type, const unsigned char *p, int32_t scale[16]) {
    const struct fo_block_iq2_xxs *xxs = (const void *)p;
    const struct fo_block_iq2_xs *xs = (const void *)p;
    const struct fo_block_iq2_s *s = (const void *)p;
    const struct fo_block_iq3_xxs *xxs3 = (const void *)p;
    const struct fo_block_iq3_s *s3 = (const void *)p;
    const struct fo_block_iq1_s *s1 = (const void *)p;
    const struct fo_block_iq1_m *m1 = (const void *)p;
    unsigned d = 0;
    switch (type) {
    case FO_IQ2_XXS:
        for (int j = 0; j < 8; j++) scale[j] = (int32_t)(word_of(xxs->sub[j].word) >> 28) * 2 + 1;
        return half_to_f32(xxs->d) * 0.125f;
    case FO_IQ2_XS:
        for (int j = 0; j < 16; j++) scale[j] = (xs->scales[j / 2] >> 4 * (j % 2) & 15) * 2 + 1;
        return half_to_f32(xs->d) * 0.125f;
    case FO_IQ2_S:
        for (int j = 0; j < 16; j++) scale[j] = (s->scales[j / 2] >> 4 * (j % 2) & 15) * 2 + 1;
        return half_to_f32(s->d) * 0.125f;
    case FO_IQ3_XXS:
        for (int j = 0; j < 8; j++) scale[j] = (int32_t)(word_of(xxs3->word[j]) >> 28) * 2 + 1;
        return half_to_f32(xxs3->d) * 0.25f;
    case FO_IQ3_S:
        for (int j = 0; j < 8; j++) scale[j] = (s3->scales[j / 2] >> 4 * (j % 2) & 15) * 2 + 1;
        return half_to_f32(s3->d);
    case FO_IQ1_S:
        for (int j = 0; j < 8; j++) scale[j] = (s1->qh[j] >> 12 & 7) * 2 + 1;
        return half_to_f32(s1->d) * 0.125f;
    default: /* IQ1_M */
        for (int j = 0; j < 16; j++) scale[j] = (m1->scales[j / 4] >> 3 * (j % 4) & 7) * 2 + 1;
        for (int i = 0; i < 4; i++) d |= (unsigned)(m1->scales[i] >> 12) << 4 * i;
        return half_to_f32((uint16_t)d) * 0.125f;
    }
}

INLINE int8x16_t two_entries(uint64_t low, uint64_t high) {
    return vcombine_s8(vcreate_s8(low), vcreate_s8(high));
}

INLINE uint64_t four_and_four(uint32_t low, uint32_t high) {
    return low | (uint64_t)high << 32;
}

/* v with a minus where a bit of the sixteen is set. */
INLINE int8x16_t with_signs(int8x16_t v, const uint8_t *two) {
    int8x16_t minus = vreinterpretq_s8_u8(spread(two));
    return vsubq_s8(veorq_s8(v, minus), minus);
}

/* Entries of 0, 1 and 2 to eight times themselves less one, and the shift of each eight. */
INLINE int8x16_t shifted(int8x16_t v, bool low_down, bool high_down) {
    int8x16_t by = vcombine_s8(vdup_n_s8(low_down ? -9 : -7), vdup_n_s8(high_down ? -9 : -7));
    return vaddq_s8(vshlq_n_s8(v, 3), by);
}

/* The half of a run that its 16 elements from 8 g on are; g is even. */
INLINE int8x16_t iq_half(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *k, const int j, const int g) {
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
        return vmulq_s8(two_entries(k->iq2_xxs[xxs->sub[j].index[g]], k->iq2_xxs[xxs->sub[j].index[g + 1]]),
                        two_entries(k->signs[word & 127], k->signs[word >> 7 & 127]));
    case FO_IQ2_XS:
        return vmulq_s8(two_entries(k->iq2_xs[xs->qs[at] & 511], k->iq2_xs[xs->qs[at + 1] & 511]),
                        two_entries(k->signs[xs->qs[at] >> 9], k->signs[xs->qs[at + 1] >> 9]));
    case FO_IQ2_S:
        return with_signs(two_entries(k->iq2_s[s->qs[at] | (s->qh[j] >> 2 * g & 3) << 8], k->iq2_s[s->qs[at + 1] | (s->qh[j] >> (2 * g + 2) & 3) << 8]),
                          s->signs + at);
    case FO_IQ3_XXS: {
        const uint8_t *q = xxs3->qs + 2 * at;
        word = word_of(xxs3->word[j]) >> 7 * g;
        return vmulq_s8(two_entries(four_and_four(k->iq3_xxs[q[0]], k->iq3_xxs[q[1]]), four_and_four(k->iq3_xxs[q[2]], k->iq3_xxs[q[3]])),
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
        return shifted(two_entries(k->iq1[s1->qs[at] | (qh >> 3 * g & 7) << 8], k->iq1[s1->qs[at + 1] | (qh >> (3 * g + 3) & 7) << 8]), qh >> 15,
                       qh >> 15);
    }
    default: { /* IQ1_M */
        const unsigned qh = m1->qh[at / 2];
        return shifted(two_entries(k->iq1[m1->qs[at] | (qh & 7) << 8], k->iq1[m1->qs[at + 1] | (qh >> 4 & 7) << 8]), qh >> 3 & 1, qh >> 7);
    }
    }
}

INLINE struct bytes32 iq_run(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *books, const int j) {
    return (struct bytes32){ iq_half(type, p, books, j, 0), iq_half(type, p, books, j, 2) };
}
#endif
