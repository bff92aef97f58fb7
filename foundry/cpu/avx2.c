/* Activations and dots for AVX2 + FMA + F16C: Haswell, Zen and everything since. The forms are those that measured best.
 *
 * One row of weights at a time, one contiguous stream; 8 float lanes live over the whole row and are folded once, at its end. What is
 * unpacked of a block serves up to FO_TILE rows of activations, each with accumulators of its own, so the operations on a row of
 * activations are the same alone or in a tile. Accumulators are named variables: in arrays, gcc keeps them in memory.
 *
 * Integer sums: vpmaddubsw adds two products u8 * s8 in 16 bits, saturating. 15 * 127 * 2, 31 * 127 * 2, 63 * 127 * 2 and (Q8_0, |w| by
 * x with the sign of w) 128 * 127 * 2 all fit, because q of an activation is never -128. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

INLINE int fold_int(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* --- activations --------------------------------------------------------------------------------------------------------------- */

INLINE __m256i magnitudes(const float *x) {
    return _mm256_and_si256(load(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/* As fo_abs_max: magnitudes compared as integers, and NaN when one is not finite. */
INLINE float largest(__m256i m) {
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    int top = _mm_cvtsi128_si32(s);
    float f;
    memcpy(&f, &top, sizeof f);
    return top >= 0x7F800000 ? NAN : f;
}

/* 32 floats to 32 integers in order; inv != 0. */
INLINE __m256i round32(const float *x, float inv) {
    __m256 by = _mm256_set1_ps(inv);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), by)), b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), by));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), by)), d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), by));
    __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)); /* dwords a0 b0 c0 d0 a1 b1 c1 d1 */
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of four neighbours. */
INLINE __m256i sums4(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

static void quant_q8_0(const float *x, int64_t k, struct fo_act_q8_0 out) {
    for (int64_t b = 0; b < k / 32; b++, x += 32) {
        __m256i m = _mm256_max_epi32(_mm256_max_epi32(magnitudes(x), magnitudes(x + 8)), _mm256_max_epi32(magnitudes(x + 16), magnitudes(x + 24)));
        float inv, d = fo_act_scale(largest(m), &inv);
        __m256i q = inv != 0.0f ? round32(x, inv) : _mm256_setzero_si256();
        _mm256_storeu_si256((__m256i *)(void *)(out.q + b * 32), q);
        _mm_storeu_si128((__m128i *)(void *)(out.p + fo_act_place(b)), _mm256_castsi256_si128(q));
        _mm_storeu_si128((__m128i *)(void *)(out.p + fo_act_place(b) + FO_ACT_HALF), _mm256_extracti128_si256(q, 1));
        out.d[b] = d;
        out.s[b] = d * (float)fold_int(sums4(q));
    }
    fo_act_pad(out, k);
}

static void quant_q8_k(const float *x, int64_t k, struct fo_act_q8_k out) {
    for (int64_t b = 0; b < k / 256; b++) {
        __m256i m = magnitudes(x + b * 256);
        for (int i = 8; i < 256; i += 8) m = _mm256_max_epi32(m, magnitudes(x + b * 256 + i));
        float inv;
        out.d[b] = fo_act_scale(largest(m), &inv);
        for (int64_t j = b * 8; j < b * 8 + 8; j++) {
            __m256i q = inv != 0.0f ? round32(x + j * 32, inv) : _mm256_setzero_si256();
            _mm256_storeu_si256((__m256i *)(void *)(out.q + j * 32), q);
            __m256i s = sums4(q);
            s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4E));
            s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xB1));
            int lo = _mm256_extract_epi32(s, 0), hi = _mm256_extract_epi32(s, 4);
            out.sum16[2 * j] = (int16_t)lo;
            out.sum16[2 * j + 1] = (int16_t)hi;
            out.sum32[j] = (int16_t)(lo + hi);
        }
    }
}

/* --- floats -------------------------------------------------------------------------------------------------------------------- */

/* Elements 8i.. go to one of two accumulators in turn; what is left of a row below 8 elements goes there from a padded copy. */
INLINE void dot_floats(const enum float_kind kind, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t,
                       float *y, size_t y_stride, const int T) {
    const int64_t k = a->k, whole = k / 8 * 8, size = kind == F32 ? 4 : 2;
    const float *x = a->x + t * k;
    _Alignas(32) float xt[FO_TILE][8] = { { 0 } };
    for (int j = 0; j < T; j++)
        if (k > whole) memcpy(xt[j], x + j * k + whole, (size_t)(k - whole) * sizeof *x);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m256 fa##n = _mm256_setzero_ps(), fb##n = fa##n;
#define STEP_A(n) if (n < T) fa##n = _mm256_fmadd_ps(v, _mm256_loadu_ps(x + n * k + i), fa##n);
#define STEP_B(n) if (n < T) fb##n = _mm256_fmadd_ps(u, _mm256_loadu_ps(x + n * k + i + 8), fb##n);
#define LAST(n) if (n < T) fb##n = _mm256_fmadd_ps(v, _mm256_load_ps(xt[n]), fb##n);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(_mm256_add_ps(fa##n, fb##n));
        EACH(ZERO)
        int64_t i = 0;
        for (; i + 16 <= k; i += 16) {
            ahead(w + i * size);
            __m256 v = load_floats(w, i, kind), u = load_floats(w, i + 8, kind);
            EACH(STEP_A)
            EACH(STEP_B)
        }
        if (i < whole) {
            __m256 v = load_floats(w, i, kind);
            EACH(STEP_A)
        }
        if (whole < k) {
            unsigned char rest[32] = { 0 };
            memcpy(rest, w + whole * size, (size_t)((k - whole) * size));
            __m256 v = load_floats(rest, 0, kind);
            EACH(LAST)
        }
        EACH(OUT)
#undef ZERO
#undef STEP_A
#undef STEP_B
#undef LAST
#undef OUT
    }
}
DOT_SLOT(dot_f32, dot_floats, F32)
DOT_SLOT(dot_f16, dot_floats, F16)
DOT_SLOT(dot_bf16, dot_floats, BF16)

/* --- blocks of 32 -------------------------------------------------------------------------------------------------------------- */

/* Q4_0 and Q4_1, eight blocks at a time. Two blocks of weights fill a register, whose low and high nibbles meet the activations' p.
 * All sums stay in 16 bits, at most 16 * 15 * 127 = 30480, while they are folded until each block has one pair of words left:
 *
 *     pair 01: 0 0 0 0 0 0 0 0 | 1 1 1 1 1 1 1 1      with 23:  0 0 0 0 2 2 2 2 | 1 1 1 1 3 3 3 3      with 4567:  0 0 2 2 4 4 6 6 | 1 1 3 3 5 5 7 7
 *
 * One vpmaddwd then leaves one integer a block, and the eight take one conversion and one product with their scales. The offset of the
 * quants (-8) or the min is one product with the activations' s. A last group of fewer blocks has zeros for the pairs that are missing. */
INLINE void dot_nibbles(const bool mins, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                        size_t y_stride, const int T) {
    const int size = mins ? sizeof(struct fo_block_q4_1) : sizeof(struct fo_block_q4_0), at = mins ? 4 : 2;
    const int n_blocks = (int)(a->k / 32), rest = n_blocks % 8;
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 minus_8 = _mm256_set1_ps(-8);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const unsigned char *p = w;
        __m256 d, m;
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
/* Blocks i and i + 1 of the group; `last` is the second's number, i itself when there is none. */
#define PAIR(i, last)                                                                                                                    \
    {                                                                                                                                    \
        __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p + (i)*size + at))), \
                                            _mm_loadu_si128((const __m128i *)(const void *)(p + (last)*size + at)), 1);                  \
        __m256i lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);                                      \
        MAC(0, i) MAC(1, i) MAC(2, i) MAC(3, i)                                                                                          \
    }
#define MAC(n, i)                                                                                                                        \
    if (n < T)                                                                                                                           \
        v##n##_##i = _mm256_add_epi16(_mm256_maddubs_epi16(lo, load(x##n.p + b * 32 + fo_act_place(i))),                                 \
                                      _mm256_maddubs_epi16(hi, load(x##n.p + b * 32 + fo_act_place(i) + FO_ACT_HALF)));
#define SUMS(n) __m256i v##n##_0 = _mm256_setzero_si256(), v##n##_2 = v##n##_0, v##n##_4 = v##n##_0, v##n##_6 = v##n##_0;
#define FOLD(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m256i u = _mm256_add_epi16(_mm256_unpacklo_epi64(v##n##_0, v##n##_2), _mm256_unpackhi_epi64(v##n##_0, v##n##_2));              \
        __m256i v = _mm256_add_epi16(_mm256_unpacklo_epi64(v##n##_4, v##n##_6), _mm256_unpackhi_epi64(v##n##_4, v##n##_6));              \
        __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(u), _mm256_castsi256_ps(v), 0x88);                                           \
        __m256 odd = _mm256_shuffle_ps(_mm256_castsi256_ps(u), _mm256_castsi256_ps(v), 0xDD);                                            \
        __m256i s = _mm256_madd_epi16(_mm256_add_epi16(_mm256_castps_si256(even), _mm256_castps_si256(odd)), one);                       \
        __m256 sum = _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(s, order));                                                          \
        f##n = _mm256_fmadd_ps(m, _mm256_loadu_ps(x##n.s + b), f##n);                                                                    \
        f##n = _mm256_fmadd_ps(sum, _mm256_mul_ps(d, _mm256_loadu_ps(x##n.d + b)), f##n);                                                \
    }
#define SCALES(n_left)                                                                                                                   \
    if (mins)                                                                                                                            \
        scales_mins8(p, size, n_left, &d, &m);                                                                                                 \
    else                                                                                                                                 \
        d = scales8(p, size, n_left), m = _mm256_mul_ps(d, minus_8);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        int b = 0;
        for (; b + 8 <= n_blocks; b += 8, p += 8 * size) {
            ahead(p), ahead(p + 64), ahead(p + 128);
            SCALES(8)
            EACH(SUMS)
            PAIR(0, 1) PAIR(2, 3) PAIR(4, 5) PAIR(6, 7)
            EACH(FOLD)
        }
        if (rest) {
            SCALES(rest)
            EACH(SUMS)
            PAIR(0, rest > 1)
            if (rest > 2) PAIR(2, 2 + (rest > 3))
            if (rest > 4) PAIR(4, 4 + (rest > 5))
            if (rest > 6) PAIR(6, 6)
            EACH(FOLD)
        }
        EACH(OUT)
#undef ZERO
#undef PAIR
#undef MAC
#undef SUMS
#undef FOLD
#undef SCALES
#undef OUT
    }
}
DOT_SLOT(dot_q4_0, dot_nibbles, false)
DOT_SLOT(dot_q4_1, dot_nibbles, true)

/* Q8_0: |w| by x with the sign of w. Eight blocks are folded to one integer each, so that they take one conversion and one product with
 * their scales. A last group of fewer blocks has zeros for those that are missing. */
INLINE void dot_bytes(const bool eight, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                      size_t y_stride, const int T) {
    (void)eight;
    const int size = sizeof(struct fo_block_q8_0), n_blocks = (int)(a->k / 32), rest = n_blocks % 8;
    const __m256i one = _mm256_set1_epi16(1);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const unsigned char *p = w;
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
/* Eight sums of four products of block i of the group. The weights come from L1 for every token but the first. */
#define SUMS(to, x, i)                                                                                                                   \
    {                                                                                                                                    \
        __m256i q = load(p + (i)*size + 2), u = _mm256_sign_epi8(q, q);                                                                  \
        to = _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(load((x) + (i)*32), q)), one);                                   \
    }
#define BLOCK(x, i)                                                                                                                      \
    __m256i s##i = _mm256_setzero_si256();                                                                                               \
    if ((i) < left) SUMS(s##i, x, i)
#define GROUP(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        const int8_t *x = x##n.q + b * 32;                                                                                               \
        BLOCK(x, 0) BLOCK(x, 1) BLOCK(x, 2) BLOCK(x, 3) BLOCK(x, 4) BLOCK(x, 5) BLOCK(x, 6) BLOCK(x, 7)                                  \
        __m256 sum = _mm256_cvtepi32_ps(sums_of_eight(s0, s1, s2, s3, s4, s5, s6, s7));                                                          \
        f##n = _mm256_fmadd_ps(sum, _mm256_mul_ps(d, _mm256_loadu_ps(x##n.d + b)), f##n);                                                \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        int b = 0;
        for (; b + 8 <= n_blocks; b += 8, p += 8 * size) {
            const int left = 8;
            ahead(p), ahead(p + 64), ahead(p + 128), ahead(p + 192), ahead(p + 256);
            __m256 d = scales8(p, size, left);
            EACH(GROUP)
        }
        if (rest) {
            const int left = rest;
            __m256 d = scales8(p, size, left);
            EACH(GROUP)
        }
        EACH(OUT)
#undef ZERO
#undef SUMS
#undef BLOCK
#undef GROUP
#undef OUT
    }
}
DOT_SLOT(dot_q8_0, dot_bytes, true)

/* --- blocks of 256 ------------------------------------------------------------------------------------------------------------- */

/* The eight 6-bit scales and mins of Q4_K and Q5_K, each as eight bytes: fo_q4_k_scale_min for all at once. */
INLINE void scales_and_mins(const uint8_t packed[12], uint64_t *ret_scales, uint64_t *ret_mins) {
    uint32_t a, b, c;
    memcpy(&a, packed, 4);
    memcpy(&b, packed + 4, 4);
    memcpy(&c, packed + 8, 4);
    uint32_t scales_hi = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), mins_hi = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
    *ret_scales = (a & 0x3F3F3F3F) | (uint64_t)scales_hi << 32;
    *ret_mins = (b & 0x3F3F3F3F) | (uint64_t)mins_hi << 32;
}

/* Byte j of each half of eight scale bytes, in all 16 words: 0x80 in a shuffle gives the zero above it. */
#define SCALE(j) _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(0x8000 | (j))))

/* The products of a sub-block are multiplied by its integer scale while they are widened (vpmaddwd), and a block is summed as integers:
 * it has one conversion to float, and the floats of a row are added block by block, as avx2_gemm.c adds them. Mins: one vpmaddwd of the
 * eight mins with the activations' sums of 32. */
INLINE void dot_q45_k(const bool five, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                      size_t y_stride, const int T) {
    const size_t size = five ? sizeof(struct fo_block_q5_k) : sizeof(struct fo_block_q4_k);
    const int n_blocks = (int)(a->k / 256);
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m256i s##n = _mm256_setzero_si256();
#define MAC(n) if (n < T) s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(q, load(x##n.q + b * 256 + at)), by));
#define SUB(j, nibbles, bit)                                                                                                             \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i q = _mm256_and_si256(nibbles, low), by = SCALE(j);                                                                       \
        if (five) q = _mm256_or_si256(q, _mm256_and_si256(bit, fifth));                                                                  \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        __m128 by = _mm_mul_ps(d, _mm_broadcast_ss(x##n.d + b));                                                                         \
        __m128i m = _mm_madd_epi16(mins, _mm_loadu_si128((const __m128i *)(const void *)(x##n.sum32 + b * 8)));                          \
        f##n = _mm_fmadd_ps(sums_of(s##n, m), by, f##n);                                                                                 \
    }
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = _mm_cvtss_f32(_mm_sub_ss(f##n, _mm_movehdup_ps(f##n)));
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const unsigned char *p = w + (size_t)b * size;
            ahead(p), ahead(p + 64), ahead(p + 128);
            const struct fo_block_q4_k *four_k = (const void *)p;
            const struct fo_block_q5_k *five_k = (const void *)p;
            uint64_t scale_bytes, min_bytes;
            scales_and_mins(four_k->scales, &scale_bytes, &min_bytes); /* the same place in both */
            __m256i scales = _mm256_set1_epi64x((long long)scale_bytes);
            __m128i mins = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)min_bytes));
            uint32_t both;
            memcpy(&both, p, sizeof both);
            __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)both)); /* d, dmin */
            const uint8_t *qs = five ? five_k->qs : four_k->qs;
            __m256i v, h = five ? load(five_k->qh) : _mm256_setzero_si256();
            EACH(START)
            v = load(qs);
            SUB(0, v, _mm256_slli_epi16(h, 4)) SUB(1, _mm256_srli_epi16(v, 4), _mm256_slli_epi16(h, 3))
            v = load(qs + 32);
            SUB(2, v, _mm256_slli_epi16(h, 2)) SUB(3, _mm256_srli_epi16(v, 4), _mm256_slli_epi16(h, 1))
            v = load(qs + 64);
            SUB(4, v, h) SUB(5, _mm256_srli_epi16(v, 4), _mm256_srli_epi16(h, 1))
            v = load(qs + 96);
            SUB(6, v, _mm256_srli_epi16(h, 2)) SUB(7, _mm256_srli_epi16(v, 4), _mm256_srli_epi16(h, 3))
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
DOT_SLOT(dot_q4_k, dot_q45_k, false)
DOT_SLOT(dot_q5_k, dot_q45_k, true)

/* As above; the offset of -32 is one product of the scales with the activations' sums of 16. */
INLINE void dot_q6(const bool six, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                   size_t y_stride, const int T) {
    (void)six;
    const int n_blocks = (int)(a->k / 256);
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n)                                                                                                                         \
    __m256i s##n = _mm256_setzero_si256();                                                                                               \
    if (n < T) s##n = _mm256_sub_epi32(s##n, _mm256_slli_epi32(_mm256_madd_epi16(scales, load(x##n.sum16 + b * 16)), 5));
#define MAC(n) if (n < T) s##n = _mm256_add_epi32(s##n, _mm256_madd_epi16(_mm256_maddubs_epi16(q, load(x##n.q + b * 256 + at)), by));
#define SUB(j, half, nibbles, bits)                                                                                                      \
    {                                                                                                                                    \
        const int at = 32 * (j);                                                                                                         \
        __m256i q = _mm256_or_si256(_mm256_and_si256(nibbles, low), _mm256_and_si256(bits, high)), by = SCALE_PAIR(half, (j) % 4);       \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) f##n = _mm_fmadd_ss(sums_of(s##n, _mm_setzero_si128()), _mm_set_ss(d * x##n.d[b]), f##n);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = _mm_cvtss_f32(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const struct fo_block_q6_k *p = (const struct fo_block_q6_k *)(const void *)w + b;
            for (int i = 0; i < 210; i += 64) ahead((const char *)p + i);
            __m256i scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p->scales));
            __m256i first = _mm256_permute2x128_si256(scales, scales, 0), second = _mm256_permute2x128_si256(scales, scales, 0x11);
            float d = half_to_f32(p->d);
            EACH(START)
            __m256i h = load(p->qh), u = load(p->ql), v = load(p->ql + 32);
            SUB(0, first, u, _mm256_slli_epi16(h, 4)) SUB(1, first, v, _mm256_slli_epi16(h, 2))
            SUB(2, first, _mm256_srli_epi16(u, 4), h) SUB(3, first, _mm256_srli_epi16(v, 4), _mm256_srli_epi16(h, 2))
            h = load(p->qh + 32), u = load(p->ql + 64), v = load(p->ql + 96);
            SUB(4, second, u, _mm256_slli_epi16(h, 4)) SUB(5, second, v, _mm256_slli_epi16(h, 2))
            SUB(6, second, _mm256_srli_epi16(u, 4), h) SUB(7, second, _mm256_srli_epi16(v, 4), _mm256_srli_epi16(h, 2))
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
DOT_SLOT(dot_q6_k, dot_q6, true)

bool fo_cpu_avx2(struct fo_cpu_kernels *k) {
    k->isa = "avx2";
    memset(k->gemm_from, 0, sizeof k->gemm_from); /* what the overlay below measured is of its own kernels */
    k->quant_q8_0 = quant_q8_0;
    k->quant_q8_k = quant_q8_k;
    k->dot[FO_F32] = dot_f32;
    k->dot[FO_F16] = dot_f16;
    k->dot[FO_BF16] = dot_bf16;
    k->dot[FO_Q4_0] = dot_q4_0;
    k->dot[FO_Q4_1] = dot_q4_1;
    k->dot[FO_Q8_0] = dot_q8_0;
    k->dot[FO_Q4_K] = dot_q4_k;
    k->dot[FO_Q5_K] = dot_q5_k;
    k->dot[FO_Q6_K] = dot_q6_k;
    fo_cpu_avx2_legacy(k);
    fo_cpu_avx2_k(k);
    fo_cpu_avx2_iq(k);
    fo_cpu_avx2_gemm(k);
    fo_cpu_avx2_gemm_f(k);
    fo_cpu_avx2_rows(k);
    return true;
}
#else
bool fo_cpu_avx2(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
#endif
