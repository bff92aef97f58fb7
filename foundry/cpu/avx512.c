/* Quantised dots for AVX-512 F, BW, DQ, VL, VNNI and VBMI (Ice Lake, Zen 4 and later), on top of avx2.c, whose rules hold here too: one row
 * at a time, named accumulators, one fold a row, the same operations on a row of activations alone or in a tile. Floats are added in the
 * order of the dots of AVX2, bit for bit (sums of products are integers, exact in any order), so that AVX2's dots of floats and strips serve beside them.
 *
 * The tests also compile this file for CPUs without AVX-512, against an emulation (FO_EMULATE_AVX512), so that every slot is compared with
 * the reference wherever they run. */
#include "foundry/cpu/avx512.h"
#include "foundry/cpu/kernels.h"

#ifdef HAS_AVX512
#include <string.h>

#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

/* --- blocks of 32 -------------------------------------------------------------------------------------------------------------- */

/* Where things lie in four blocks of Q4_0 (18 bytes) or Q4_1 (20 bytes), seen through a load at 0 and one that ends with the fourth
 * block: the 64 bytes of nibbles (VPERMI2B), and in two groups of four the scales and mins of eight blocks (VPERMI2W). */
struct order {
    _Alignas(64) uint8_t nibbles[64];
    _Alignas(64) uint16_t d[32], m[32];
};

static void order_init(struct order *o, int size, int at) {
    for (int i = 0; i < 64; i++) {
        int byte = i / 16 * size + at + i % 16;
        o->nibbles[i] = (uint8_t)(byte < 64 ? byte : 64 + byte - (4 * size - 64));
    }
    for (int i = 0; i < 32; i++) {
        o->d[i] = (uint16_t)(i % 4 * (size / 2) + i % 8 / 4 * 32);
        o->m[i] = (uint16_t)(o->d[i] + 1);
    }
}

/* Q4_0 and Q4_1, eight blocks at a time: two registers of nibbles, each against the activations' p (VPDPBUSD); the sums of the two are
 * folded so that all eight blocks share one conversion, one vector of scales and one product. The offset (-8) or the min is one product
 * with the activations' s. A last group of fewer blocks is loaded
 * under masks: nothing past the row is read, and what is missing is zero. */
INLINE void dot_nibbles(const bool mins, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                        size_t y_stride, const int T) {
    const int size = mins ? sizeof(struct fo_block_q4_1) : sizeof(struct fo_block_q4_0), at = mins ? 4 : 2, second = 4 * size - 64;
    const int n_blocks = (int)(a->k / 32), rest = n_blocks % 8 * size;
    struct order o;
    order_init(&o, size, at);
    const __m512i low = _mm512_set1_epi8(15), nibbles = load(o.nibbles), at_d = load(o.d), at_m = load(o.m);
    const __m256 minus_8 = _mm256_set1_ps(-8);
    const __mmask64 m0 = first_bytes(rest), m1 = first_bytes(rest - second), m2 = first_bytes(rest - 4 * size),
                    m3 = first_bytes(rest - 4 * size - second);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const unsigned char *p = w;
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
#define SUM(n, half, from)                                                                                                               \
    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), lo##half, load(x##n.p + b * 32 + (from))), hi##half,                 \
                        load(x##n.p + b * 32 + (from) + FO_ACT_HALF))
#define STEP(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m512i u = SUM(n, 0, 0), v = SUM(n, 1, 128);                                                                                    \
        __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(u, v), _mm512_unpackhi_epi64(u, v));                                          \
        f##n = _mm256_fmadd_ps(m, _mm256_loadu_ps(x##n.s + b), f##n);                                                                    \
        f##n = _mm256_fmadd_ps(sums_of_blocks(s), _mm256_mul_ps(d, _mm256_loadu_ps(x##n.d + b)), f##n);                                  \
    }
#define GROUP(w0, w1, w2, w3)                                                                                                            \
    {                                                                                                                                    \
        __m512i v0 = w0, v2 = w2, q0 = _mm512_permutex2var_epi8(v0, nibbles, w1), q1 = _mm512_permutex2var_epi8(v2, nibbles, w3);        \
        __m512i lo0 = _mm512_and_si512(q0, low), hi0 = _mm512_and_si512(_mm512_srli_epi16(q0, 4), low);                                  \
        __m512i lo1 = _mm512_and_si512(q1, low), hi1 = _mm512_and_si512(_mm512_srli_epi16(q1, 4), low);                                  \
        __m256 d = _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutex2var_epi16(v0, at_d, v2))), m = _mm256_mul_ps(d, minus_8);      \
        if (mins) m = _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutex2var_epi16(v0, at_m, v2)));                                  \
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
#undef SUM
#undef STEP
#undef GROUP
#undef OUT
    }
}
DOT_SLOT(dot_q4_0, dot_nibbles, false)
DOT_SLOT(dot_q4_1, dot_nibbles, true)

/* Q8_0, a block a half register: |w| by x with the sign of w; eight blocks folded to one integer each, as in avx2.c. */
INLINE void dot_bytes(const bool eight, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                      size_t y_stride, const int T) {
    (void)eight;
    const int n_blocks = (int)(a->k / 32);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2), x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        const struct fo_block_q8_0 *p = (const void *)w;
#define ZERO(n) __m256 f##n = _mm256_setzero_ps();
#define BLOCK(n, i)                                                                                                                      \
    __m256i s##i = _mm256_setzero_si256();                                                                                               \
    if ((i) < left) {                                                                                                                    \
        __m256i q = load32(p[b + (i)].qs);                                                                                               \
        s##i = _mm256_dpbusd_epi32(s##i, _mm256_abs_epi8(q), _mm256_sign_epi8(load32(x##n.q + (b + (i)) * 32), q));                      \
    }
#define GROUP(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        BLOCK(n, 0) BLOCK(n, 1) BLOCK(n, 2) BLOCK(n, 3) BLOCK(n, 4) BLOCK(n, 5) BLOCK(n, 6) BLOCK(n, 7)                                  \
        f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums_of_eight(s0, s1, s2, s3, s4, s5, s6, s7)), _mm256_mul_ps(d, _mm256_loadu_ps(x##n.d + b)), f##n);      \
    }
#define HALF(i) ((i) < left ? (short)p[b + (i)].d : (short)0)
#define SCALES _mm256_cvtph_ps(_mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), HALF(4), HALF(5), HALF(6), HALF(7)))
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = fold(f##n);
        EACH(ZERO)
        int b = 0;
        for (; b + 8 <= n_blocks; b += 8) {
            const int left = 8;
            for (int i = 0; i < left; i += 2) ahead(p + b + i);
            __m256 d = SCALES;
            EACH(GROUP)
        }
        if (b < n_blocks) {
            const int left = n_blocks - b;
            __m256 d = SCALES;
            EACH(GROUP)
        }
        EACH(OUT)
#undef ZERO
#undef BLOCK
#undef GROUP
#undef HALF
#undef SCALES
#undef OUT
    }
}
DOT_SLOT(dot_q8_0, dot_bytes, true)

/* --- blocks of 256 ------------------------------------------------------------------------------------------------------------- */

/* See avx2.c. */
INLINE void scales_and_mins(const uint8_t packed[12], uint64_t *ret_scales, uint64_t *ret_mins) {
    uint32_t a, b, c;
    memcpy(&a, packed, 4);
    memcpy(&b, packed + 4, 4);
    memcpy(&c, packed + 8, 4);
    uint32_t scales_hi = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), mins_hi = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
    *ret_scales = (a & 0x3F3F3F3F) | (uint64_t)scales_hi << 32;
    *ret_mins = (b & 0x3F3F3F3F) | (uint64_t)mins_hi << 32;
}

/* A shuffle that puts byte `low` of eight scale bytes into the words of the lower half, and byte `high` into those of the upper. */
INLINE __m512i spread(int low, int high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi16((short)(0x8000 | low))), _mm256_set1_epi16((short)(0x8000 | high)), 1);
}

/* Q4_K and Q5_K: 64 bytes of quants are sub-blocks 0 and 2 (low nibbles) and 1 and 3 (high); products of bytes in 16 bits, then VPDPWSSD
 * with the integer scale: multiplied and added in one. The activations' halves are joined instead of the weights' shifted apart, as Q2_K's are: 3 % faster here. */
INLINE void dot_q45_k(const bool five, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                      size_t y_stride, const int T) {
    const size_t size = five ? sizeof(struct fo_block_q5_k) : sizeof(struct fo_block_q4_k);
    const int n_blocks = (int)(a->k / 256);
    const __m512i low = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
    const __m512i at02 = spread(0, 2), at13 = spread(1, 3), at46 = spread(4, 6), at57 = spread(5, 7);
    const __m512i turn02 = turns(-4, -2), turn13 = turns(-3, -1), turn46 = turns(0, 2), turn57 = turns(1, 3);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n) __m512i s##n = _mm512_setzero_si512();
#define MAC(n) if (n < T) s##n = _mm512_dpwssd_epi32(s##n, _mm512_maddubs_epi16(q, load_two(x##n.q + b * 256 + at, x##n.q + b * 256 + at + 64)), by);
#define SUB(from, nibbles, which)                                                                                                        \
    {                                                                                                                                    \
        const int at = from;                                                                                                             \
        __m512i q = _mm512_and_si512(nibbles, low), by = _mm512_shuffle_epi8(scales, at##which);                                         \
        if (five) q = _mm512_ternarylogic_epi64(q, _mm512_rorv_epi64(h, turn##which), fifth, 0xF8); /* q | h & fifth */                  \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n)                                                                                                                     \
    if (n < T) {                                                                                                                         \
        __m128 by = _mm_mul_ps(d, _mm_broadcast_ss(x##n.d + b));                                                                         \
        __m128i m = _mm_madd_epi16(mins, _mm_loadu_si128((const __m128i *)(const void *)(x##n.sum32 + b * 8)));                          \
        f##n = _mm_fmadd_ps(sums_of16(s##n, m), by, f##n);                                                                                 \
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
            __m512i scales = _mm512_set1_epi64((long long)scale_bytes);
            __m128i mins = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)min_bytes));
            uint32_t both;
            memcpy(&both, p, sizeof both);
            __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)both)); /* d, dmin */
            const uint8_t *qs = five ? five_k->qs : four_k->qs;
            __m512i v = load(qs), u = load(qs + 64), h = v;
            if (five) h = load_twice(five_k->qh);
            EACH(START)
            SUB(0, v, 02) SUB(32, _mm512_srli_epi16(v, 4), 13) SUB(128, u, 46) SUB(160, _mm512_srli_epi16(u, 4), 57)
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

/* Q6_K: 64 bytes at a time lie in the order of the activations; the offset of -32 is one product of the scales with the sums of 16. */
INLINE void dot_q6(const bool six, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, float *y,
                   size_t y_stride, const int T) {
    (void)six;
    const int n_blocks = (int)(a->k / 256);
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(0x30), turn0 = turns(-4, -2), turn1 = turns(0, 2);
    const __m512i at0 = four_scales(0), at1 = four_scales(1), at2 = four_scales(2), at3 = four_scales(3);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2), x3 = fo_act_q8_k(a, t + (T > 3) * 3);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
#define ZERO(n) __m128 f##n = _mm_setzero_ps();
#define START(n)                                                                                                                         \
    __m512i s##n = _mm512_setzero_si512();                                                                                               \
    if (n < T)                                                                                                                           \
        s##n = _mm512_inserti64x4(                                                                                                       \
            s##n, _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(_mm256_madd_epi16(words, load32(x##n.sum16 + b * 16)), 5)), 0);
#define MAC(n) if (n < T) s##n = _mm512_dpwssd_epi32(s##n, _mm512_maddubs_epi16(q, load(x##n.q + b * 256 + at)), by);
#define SUB(i, nibbles, bits, turn)                                                                                                      \
    {                                                                                                                                    \
        const int at = 64 * i;                                                                                                           \
        __m512i q = _mm512_ternarylogic_epi64(_mm512_and_si512(nibbles, low), _mm512_rorv_epi64(bits, turn), high, 0xF8);                \
        __m512i by = _mm512_permutexvar_epi16(at##i, scales);                                                                            \
        EACH(MAC)                                                                                                                        \
    }
#define BLOCK_END(n) if (n < T) f##n = _mm_fmadd_ss(sums_of16(s##n, _mm_setzero_si128()), _mm_set_ss(d * x##n.d[b]), f##n);
#define OUT(n) if (n < T) y[n * y_stride + (size_t)r] = _mm_cvtss_f32(f##n);
        EACH(ZERO)
        for (int64_t b = 0; b < n_blocks; b++) {
            const struct fo_block_q6_k *p = (const struct fo_block_q6_k *)(const void *)w + b;
            for (int i = 0; i < 210; i += 64) ahead((const char *)p + i);
            __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p->scales));
            __m512i scales = _mm512_castsi256_si512(words);
            float d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p->d)));
            __m512i u = load(p->ql), v = load(p->ql + 64), h0 = load_twice(p->qh), h1 = load_twice(p->qh + 32);
            EACH(START)
            SUB(0, u, h0, turn0) SUB(1, _mm512_srli_epi16(u, 4), h0, turn1) SUB(2, v, h1, turn0) SUB(3, _mm512_srli_epi16(v, 4), h1, turn1)
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

bool fo_cpu_avx512(struct fo_cpu_kernels *k) {
    k->isa = "avx512";
    k->dot[FO_Q4_0] = dot_q4_0;
    k->dot[FO_Q4_1] = dot_q4_1;
    k->dot[FO_Q8_0] = dot_q8_0;
    k->dot[FO_Q4_K] = dot_q4_k;
    k->dot[FO_Q5_K] = dot_q5_k;
    k->dot[FO_Q6_K] = dot_q6_k;
    fo_cpu_avx512_legacy(k);
    fo_cpu_avx512_k(k);
    fo_cpu_avx512_gemm(k);
    fo_cpu_avx512_attn(&k->attn);
    return true;
}
#else
bool fo_cpu_avx512(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
#endif
