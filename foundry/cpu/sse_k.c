/* Dots with the types of 256 elements a block that need no code book, for SSSE3 and SSE4.1: Q2_K to Q6_K, IQ4_XS, TQ1_0 and TQ2_0. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/sse_256.h"

/* The eight 6-bit scales and mins of Q4_K and Q5_K: fo_q4_k_scale_min for all at once. */
INLINE void scales_and_mins(const uint8_t packed[12], struct head *ret) {
    uint32_t a = word_of(packed), b = word_of(packed + 4), c = word_of(packed + 8);
    uint32_t scales_hi = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), mins_hi = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
    ret->scale[0] = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)((a & 0x3F3F3F3F) | (uint64_t)scales_hi << 32)));
    ret->min[0] = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)((b & 0x3F3F3F3F) | (uint64_t)mins_hi << 32)));
}

INLINE void widen(__m128i signed_bytes, __m128i ret[2]) {
    ret[0] = _mm_cvtepi8_epi16(signed_bytes);
    ret[1] = _mm_cvtepi8_epi16(_mm_unpackhi_epi64(signed_bytes, signed_bytes));
}

/* The sixteen scales of Q3_K less 32: fo_q3_k_scale for all at once. */
INLINE __m128i scales_q3_k(const uint8_t packed[12]) {
    const __m128i low = _mm_set1_epi8(15);
    uint32_t top = word_of(packed + 8);
    __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)packed);
    v = _mm_and_si128(_mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4)), low);
    __m128i high = _mm_and_si128(_mm_setr_epi32((int)(top << 4), (int)(top << 2), (int)top, (int)(top >> 2)), _mm_set1_epi8(0x30));
    return _mm_sub_epi8(_mm_or_si128(v, high), _mm_set1_epi8(32));
}

/* The eight scales of IQ4_XS less 32, as words. */
INLINE __m128i scales_iq4_xs(const struct fo_block_iq4_xs *p) {
    __m128i nibbles = _mm_cvtsi32_si128((int)word_of(p->scales_l)), low = _mm_set1_epi8(15);
    nibbles = _mm_unpacklo_epi8(_mm_and_si128(nibbles, low), _mm_and_si128(_mm_srli_epi16(nibbles, 4), low));
    __m128i top = _mm_mullo_epi16(_mm_set1_epi16((short)p->scales_h), _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
    top = _mm_slli_epi16(_mm_srli_epi16(top, 14), 4); /* bits 2j and 2j + 1 of word j went to its top */
    return _mm_sub_epi16(_mm_or_si128(_mm_cvtepu8_epi16(nibbles), top), _mm_set1_epi16(32));
}

INLINE void head_of(const enum fo_dtype type, const unsigned char *p, struct head *ret) {
    const struct fo_block_q2_k *q2 = (const void *)p;
    const struct fo_block_q3_k *q3 = (const void *)p;
    const struct fo_block_q4_k *q4 = (const void *)p; /* Q5_K begins alike */
    const struct fo_block_q6_k *q6 = (const void *)p;
    const struct fo_block_iq4_xs *i4 = (const void *)p;
    const __m128i low = _mm_set1_epi8(15);
    switch (type) {
    case FO_Q2_K: {
        __m128i both = load(q2->scales);
        ret->d = two_halves(word_of(&q2->d));
        widen(_mm_and_si128(both, low), ret->scale);
        widen(_mm_and_si128(_mm_srli_epi16(both, 4), low), ret->min);
        return;
    }
    case FO_Q3_K:
        ret->d = two_halves(q3->d);
        widen(scales_q3_k(q3->scales), ret->scale);
        for (int i = 0; i < 2; i++) ret->min[i] = _mm_slli_epi16(_mm_sub_epi16(_mm_setzero_si128(), ret->scale[i]), 2); /* -4 of each quant */
        return;
    case FO_Q4_K:
    case FO_Q5_K:
        ret->d = two_halves(word_of(&q4->d));
        scales_and_mins(q4->scales, ret);
        return;
    case FO_Q6_K:
        ret->d = two_halves(q6->d);
        widen(load(q6->scales), ret->scale);
        for (int i = 0; i < 2; i++) ret->min[i] = _mm_slli_epi16(_mm_sub_epi16(_mm_setzero_si128(), ret->scale[i]), 5); /* -32 */
        return;
    case FO_IQ4_XS:
        ret->d = two_halves(i4->d);
        ret->scale[0] = scales_iq4_xs(i4);
        return;
    default: /* TQ1_0, TQ2_0: no scales, and an offset of -1 */
        ret->d = two_halves(type == FO_TQ1_0 ? ((const struct fo_block_tq1_0 *)(const void *)p)->d : ((const struct fo_block_tq2_0 *)(const void *)p)->d);
        ret->scale[0] = _mm_set1_epi16(1);
        ret->min[0] = ret->min[1] = _mm_set1_epi16(-1);
    }
}

/* Two bits of each byte from bit 2 r on. */
INLINE __m128i two_bits(const uint8_t *p, const int r) {
    return _mm_and_si128(_mm_srli_epi16(load(p), 2 * r), _mm_set1_epi8(3));
}

/* Bit `from` of each byte as bit `to`. */
INLINE __m128i bit(const uint8_t *p, const int from, const int to) {
    __m128i v = load(p);
    return _mm_and_si128(from > to ? _mm_srli_epi16(v, from - to) : _mm_slli_epi16(v, to - from), _mm_set1_epi8((char)(1 << to)));
}

INLINE __m128i nibble(const uint8_t *p, const int high) {
    __m128i v = load(p);
    return _mm_and_si128(high ? _mm_srli_epi16(v, 4) : v, _mm_set1_epi8(15));
}

/* Two bits of each byte from bit 2 r on, as bits 4 and 5. */
INLINE __m128i bits_4_5(const uint8_t *p, const int r) {
    __m128i v = load(p);
    return _mm_and_si128(r > 2 ? _mm_srli_epi16(v, 2 * r - 4) : _mm_slli_epi16(v, 4 - 2 * r), _mm_set1_epi8(0x30));
}

/* Digit n of base 3 of bytes that hold the first as floor(3 v / 256): the digits above it drop out of v times 3^n. Signed bytes compare after 128
 * is taken off, which 3^n, odd, keeps: 3^n (v - 128) = 3^n v - 128 modulo 256. */
INLINE __m128i digit(__m128i v, const int n) {
    v = _mm_xor_si128(v, _mm_set1_epi8((char)0x80));
    for (int i = 0; i < n; i++) v = _mm_add_epi8(v, _mm_add_epi8(v, v));
    return _mm_abs_epi8(_mm_add_epi8(_mm_cmpgt_epi8(v, _mm_set1_epi8(85 - 128)), _mm_cmpgt_epi8(v, _mm_set1_epi8(170 - 128))));
}

INLINE struct run tq1_run(const struct fo_block_tq1_0 *p, const int j) {
    if (j < 5) return (struct run){ digit(load(p->qs), j), digit(load(p->qs + 16), j) };
    __m128i v = load(p->qs + 32);
    if (j < 7) return (struct run){ digit(v, 2 * j - 10), digit(v, 2 * j - 9) };
    __m128i last = _mm_cvtsi32_si128((int)word_of(p->qh)); /* its four digits, four bytes each */
    return (struct run){ digit(v, 4), _mm_unpacklo_epi64(_mm_unpacklo_epi32(digit(last, 0), digit(last, 1)), _mm_unpacklo_epi32(digit(last, 2), digit(last, 3))) };
}

INLINE struct run run_of(const enum fo_dtype type, const unsigned char *p, const struct fo_cpu_books *books, const int j) {
    (void)books;
    const struct fo_block_q2_k *q2 = (const void *)p;
    const struct fo_block_q3_k *q3 = (const void *)p;
    const struct fo_block_q4_k *q4 = (const void *)p;
    const struct fo_block_q5_k *q5 = (const void *)p;
    const struct fo_block_q6_k *q6 = (const void *)p;
    const struct fo_block_tq2_0 *t2 = (const void *)p;
    const uint8_t *qs;
    switch (type) {
    case FO_Q2_K: return (struct run){ two_bits(q2->qs + j / 4 * 32, j % 4), two_bits(q2->qs + j / 4 * 32 + 16, j % 4) };
    case FO_TQ2_0: return (struct run){ two_bits(t2->qs + j / 4 * 32, j % 4), two_bits(t2->qs + j / 4 * 32 + 16, j % 4) };
    case FO_Q3_K:
        return (struct run){ _mm_or_si128(two_bits(q3->qs + j / 4 * 32, j % 4), bit(q3->hmask, j, 2)),
                             _mm_or_si128(two_bits(q3->qs + j / 4 * 32 + 16, j % 4), bit(q3->hmask + 16, j, 2)) };
    case FO_Q4_K: qs = q4->qs + j / 2 * 32; return (struct run){ nibble(qs, j % 2), nibble(qs + 16, j % 2) };
    case FO_Q5_K:
        qs = q5->qs + j / 2 * 32;
        return (struct run){ _mm_or_si128(nibble(qs, j % 2), bit(q5->qh, j, 4)), _mm_or_si128(nibble(qs + 16, j % 2), bit(q5->qh + 16, j, 4)) };
    case FO_Q6_K: {
        const uint8_t *qh = q6->qh + j / 4 * 32;
        qs = q6->ql + j / 4 * 64 + j % 2 * 32;
        return (struct run){ _mm_or_si128(nibble(qs, j % 4 / 2), bits_4_5(qh, j % 4)), _mm_or_si128(nibble(qs + 16, j % 4 / 2), bits_4_5(qh + 16, j % 4)) };
    }
    case FO_IQ4_XS: {
        const __m128i values = load(fo_iq4_values);
        qs = ((const struct fo_block_iq4_xs *)(const void *)p)->qs + 16 * j;
        return (struct run){ _mm_shuffle_epi8(values, nibble(qs, 0)), _mm_shuffle_epi8(values, nibble(qs, 1)) };
    }
    default: return tq1_run((const void *)p, j);
    }
}

#define DOTS(X) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS) X(TQ1_0) X(TQ2_0)
#define SLOT(type) DOT_SLOT(dot_##type, dot_256, FO_##type)
DOTS(SLOT)
#undef SLOT

void fo_cpu_sse_k(struct fo_cpu_kernels *k) {
#define FILL(type) k->dot[FO_##type] = dot_##type;
    DOTS(FILL)
#undef FILL
}
#endif
