/* Attention for AVX2 + FMA + F16C; see avx2.c, and attn.h for where K and V lie. Scores of 16 positions and outputs of 16 dimensions of up to
 * four queries stay in registers while dimensions, or positions, pass; a query is broadcast against K, a weight against V.
 *
 * Q8_0, and V of Q4_0: a pair of 16-bit products a lane (vpmaddwd), twice the rate of float FMA on this width, against queries and weights
 * of 16 bits. K of Q4_0: nibbles against a query of 8 bits (vpmaddubsw), eight of whose pairs fit in 16 bits before they are widened. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <math.h>
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/cpu/avx_attn.h"
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

/* Sums that the compiler is to leave in their registers, step by step: it otherwise multiplies for all of them first and then spills some. */
#define STAY(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))

INLINE __m256 load8(const void *p, int64_t i, const bool half) {
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i)));
    return _mm256_loadu_ps((const float *)p + i);
}

INLINE float load1(const void *p, int64_t i, const bool half) {
    return half ? half_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE __m256i int_pair(const void *p) {
    int v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

/* --- storing and queries --------------------------------------------------------------------------------------------------------- */

/* Where group and position `token` of K of `bits` a dimension begin, and how far apart its pieces of 2 bytes (Q8_0) and so on lie: G of them. */
INLINE size_t k_place(int head_dim, int token, size_t bits, size_t piece) {
    return (size_t)(token / G) * (size_t)head_dim * G * bits / 8 + (size_t)(token % G) * piece;
}

static void put_k_f32(const float *x, int head_dim, void *block, int tokens, int token) {
    (void)tokens;
    float *out = (float *)block + k_place(head_dim, token, 32, 4) / 4;
    for (int d = 0; d < head_dim; d++) out[d * G] = x[d];
}

static void put_k_f16(const float *x, int head_dim, void *block, int tokens, int token) {
    (void)tokens;
    uint16_t *out = (uint16_t *)block + k_place(head_dim, token, 16, 2) / 2, h[8];
    int d = 0;
    for (; d + 8 <= head_dim; d += 8) {
        _mm_storeu_si128((__m128i *)(void *)h, _mm256_cvtps_ph(_mm256_loadu_ps(x + d), _MM_FROUND_TO_NEAREST_INT));
        for (int i = 0; i < 8; i++) out[(d + i) * G] = h[i];
    }
    for (; d < head_dim; d++) out[d * G] = (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x[d]), _MM_FROUND_TO_NEAREST_INT));
}

static void put_v_f16(const float *x, int head_dim, void *block, int tokens, int token) {
    (void)tokens;
    uint16_t *out = (uint16_t *)block + (size_t)token * (size_t)head_dim;
    int d = 0;
    for (; d + 8 <= head_dim; d += 8) _mm_storeu_si128((__m128i *)(void *)(out + d), _mm256_cvtps_ph(_mm256_loadu_ps(x + d), _MM_FROUND_TO_NEAREST_INT));
    for (; d < head_dim; d++) out[d] = (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x[d]), _MM_FROUND_TO_NEAREST_INT));
}

INLINE __m256i bits8(const float *x) {
    return _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x)), _mm256_set1_epi32(0x7FFFFFFF));
}

INLINE float largest32(const float *x) {
    return largest(_mm256_max_epi32(_mm256_max_epi32(bits8(x), bits8(x + 8)), _mm256_max_epi32(bits8(x + 16), bits8(x + 24))));
}

/* 32 floats times `by` to bytes, to nearest; all within 8 bits. */
INLINE __m256i bytes32(const float *x, float by) {
    const __m256 v = _mm256_set1_ps(by);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), v)), b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), v));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), v)), d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), v));
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE uint16_t half_of(float d) {
    return d != d ? 0x7E00 : (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(d), _MM_FROUND_TO_NEAREST_INT));
}

/* fo_q8_0_from_f32 of one block: the quants, and the scale into *d. */
INLINE __m256i block_q8(const float *x, uint16_t *d) {
    float step = largest32(x) / 127.0f, inv = fo_inverse(step);
    *d = half_of(step);
    return inv > 0 ? bytes32(x, inv) : _mm256_setzero_si256();
}

/* turned_q4 of ref_attn.c, a quant a byte. */
INLINE __m256i block_q4(const float *x, uint16_t *d) {
    float top = largest32(x);
    if (!isfinite(top)) {
        *d = half_of(NAN);
        return _mm256_setzero_si256();
    }
    unsigned is_top = 0;
    for (int i = 0; i < 32; i += 8)
        is_top |= (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_castsi256_ps(bits8(x + i)), _mm256_set1_ps(top), _CMP_EQ_OQ)) << i;
    const float extreme = x[__builtin_ctz(is_top)];
    const __m256 half = _mm256_set1_ps(8.5f);
    __m256i best = _mm256_setzero_si256();
    float nearest = -1;
    for (int c = 0; c < FO_KV_Q4_STEPS; c++) {
        float step = extreme / fo_kv_q4_steps[c];
        const __m256 inv = _mm256_set1_ps(fo_inverse(step));
        __m256 sums = _mm256_setzero_ps();
        __m256i q[4], squares = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            __m256 v = _mm256_loadu_ps(x + 8 * i);
            q[i] = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_mul_ps(v, inv), half));
            q[i] = _mm256_max_epi32(_mm256_min_epi32(q[i], _mm256_set1_epi32(15)), _mm256_setzero_si256());
            __m256i centred = _mm256_sub_epi32(q[i], _mm256_set1_epi32(8));
            sums = _mm256_add_ps(sums, _mm256_mul_ps(v, _mm256_cvtepi32_ps(centred)));
            squares = _mm256_add_epi32(squares, _mm256_mullo_epi32(centred, centred));
        }
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
        __m128i n = _mm_add_epi32(_mm256_castsi256_si128(squares), _mm256_extracti128_si256(squares, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4E));
        float sum = _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
        int of = _mm_cvtsi128_si32(_mm_add_epi32(n, _mm_shuffle_epi32(n, 0xB1)));
        float fitted = of > 0 ? sum / (float)of : step, nearness = sum * fitted;
        if (!(nearness > nearest)) continue;
        nearest = nearness;
        *d = half_of(fitted);
        best = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    }
    return _mm256_permutevar8x32_epi32(best, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE unsigned char *quants(void *block, int head_dim, int tokens) {
    return (unsigned char *)block + (size_t)(head_dim / BLOCK) * (size_t)tokens * 2;
}

static void put_k_q8(const float *x, int head_dim, void *block, int tokens, int token) {
    unsigned char *out = quants(block, head_dim, tokens) + k_place(head_dim, token, 8, 2);
    for (int i = 0; i < head_dim / BLOCK; i++) {
        uint16_t pair[16];
        _mm256_storeu_si256((__m256i *)(void *)pair, block_q8(x + i * BLOCK, (uint16_t *)block + i * tokens + token));
        for (int j = 0; j < 16; j++) memcpy(out + (i * 16 + j) * 2 * G, &pair[j], 2);
    }
}

static void put_v_q8(const float *x, int head_dim, void *block, int tokens, int token) {
    unsigned char *out = quants(block, head_dim, tokens) + (size_t)(token / 2) * 32;
    const __m256i other = _mm256_set1_epi16((short)(token % 2 ? 0x00FF : 0xFF00));
    for (int i = 0; i < head_dim / BLOCK; i++) {
        __m256i q = block_q8(x + i * BLOCK, (uint16_t *)block + i * tokens + token);
        __m256i half[2] = { _mm256_cvtepu8_epi16(_mm256_castsi256_si128(q)), _mm256_cvtepu8_epi16(_mm256_extracti128_si256(q, 1)) };
        for (int j = 0; j < 2; j++) {
            unsigned char *at = out + (size_t)(2 * i + j) * (size_t)tokens * 16;
            __m256i own = token % 2 ? _mm256_slli_epi16(half[j], 8) : half[j];
            _mm256_storeu_si256((__m256i *)(void *)at, _mm256_or_si256(_mm256_and_si256(load(at), other), own));
        }
    }
}

static void put_k_q4(const float *x, int head_dim, void *block, int tokens, int token) {
    unsigned char *out = quants(block, head_dim, tokens) + k_place(head_dim, token, 4, 4);
    for (int i = 0; i < head_dim / BLOCK; i++) {
        uint64_t eight[4];
        _mm256_storeu_si256((__m256i *)(void *)eight, block_q4(x + i * BLOCK, (uint16_t *)block + i * tokens + token));
        for (int j = 0; j < 4; j++) {
            uint32_t nibbles = (uint32_t)(eight[j] | eight[j] >> 28);
            memcpy(out + (i * 4 + j) * 4 * G, &nibbles, 4);
        }
    }
}

static void put_v_q4(const float *x, int head_dim, void *block, int tokens, int token) {
    unsigned char *out = quants(block, head_dim, tokens) + (size_t)(token / 8) * 64;
    const int shift = 4 * (token % 2 * 4 + token % 8 / 2);
    const __m256i other = _mm256_set1_epi32((int)~(15u << shift));
    for (int i = 0; i < head_dim / BLOCK; i++) {
        uint8_t q[32];
        _mm256_storeu_si256((__m256i *)(void *)q, block_q4(x + i * BLOCK, (uint16_t *)block + i * tokens + token));
        for (int j = 0; j < 4; j++) {
            unsigned char *at = out + (size_t)(2 * i + j / 2) * (size_t)tokens * 8 + (size_t)(j % 2) * 32;
            __m256i own = _mm256_sll_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(q + 8 * j))), _mm_cvtsi32_si128(shift));
            _mm256_storeu_si256((__m256i *)(void *)at, _mm256_or_si256(_mm256_and_si256(load(at), other), own));
        }
    }
}

static void query_q8(const float *x, int head_dim, void *ret_q) {
    int16_t *q = ret_q;
    float inv;
    __m256i m = _mm256_setzero_si256();
    for (int d = 0; d < head_dim; d += 8) m = _mm256_max_epi32(m, bits8(x + d));
    float step = step_of(largest(m), 32767, &inv);
    memcpy(q + head_dim, &step, sizeof step);
    if (inv == 0.0f) {
        memset(q, 0, (size_t)head_dim * sizeof *q);
        return;
    }
    const __m256 by = _mm256_set1_ps(inv);
    for (int d = 0; d < head_dim; d += 16) {
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + d), by)), b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + d + 8), by));
        _mm256_storeu_si256((__m256i *)(void *)(q + d), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8));
    }
}

static void query_q4(const float *x, int head_dim, void *ret_q) {
    unsigned char *q = ret_q;
    const int n_blocks = head_dim / BLOCK;
    for (int i = 0; i < n_blocks; i++) {
        float inv, step = step_of(largest32(x + i * BLOCK), 127, &inv);
        __m256i v = inv != 0.0f ? bytes32(x + i * BLOCK, inv) : _mm256_setzero_si256();
        __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), v);
        __m128i s = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0x4E));
        s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0xB1));
        int start = _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), _mm_slli_epi16(s, 3)));
        _mm256_storeu_si256((__m256i *)(void *)(q + i * BLOCK), v);
        memcpy(q + head_dim + 4 * i, &step, 4);
        memcpy(q + head_dim + 4 * n_blocks + 4 * i, &start, 4);
    }
}

/* --- scores ---------------------------------------------------------------------------------------------------------------------- */

INLINE void qk_float(const bool f16, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    const size_t q_bytes = fo_query_bytes(FO_KV_KIND_F32, head_dim), group = (size_t)head_dim * G * (f16 ? 2 : 4);
    const float *x = q;
    const size_t step = q_bytes / sizeof *x;
    const __m256 scale = _mm256_set1_ps(by);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + (size_t)(t / G) * group;
        if (f16) fetch(k->ahead, (size_t)(t / G) * group, group);
#define ZERO(h) __m256 a##h = _mm256_setzero_ps(), b##h = a##h;
#define STEP(h) if (h < N) { __m256 v = _mm256_broadcast_ss(x + h * step + d); a##h = _mm256_fmadd_ps(u, v, a##h); b##h = _mm256_fmadd_ps(w, v, b##h); STAY(a##h, b##h); }
#define PUT(h) if (h < N) { float *o = columns(s, k, t) + h * S; _mm256_storeu_ps(o, _mm256_mul_ps(a##h, scale)); _mm256_storeu_ps(o + 8, _mm256_mul_ps(b##h, scale)); }
        EACH(ZERO)
        for (int d = 0; d < head_dim; d++) {
            __m256 u = load8(in, (int64_t)d * G, f16), w = load8(in, (int64_t)d * G + 8, f16);
            EACH(STEP)
        }
        EACH(PUT)
#undef ZERO
#undef STEP
#undef PUT
    }
}

/* Adds a block's part, integers a and b times scales u and w, to the scores. */
INLINE void add_block(float *o, __m256i a, __m256i b, __m256 u, __m256 w, bool first) {
    __m256 x = _mm256_cvtepi32_ps(a), y = _mm256_cvtepi32_ps(b);
    _mm256_storeu_ps(o, first ? _mm256_mul_ps(x, u) : _mm256_fmadd_ps(x, u, _mm256_loadu_ps(o)));
    _mm256_storeu_ps(o + 8, first ? _mm256_mul_ps(y, w) : _mm256_fmadd_ps(y, w, _mm256_loadu_ps(o + 8)));
}

INLINE void scale16(float *o, float by) {
    __m256 v = _mm256_set1_ps(by);
    _mm256_storeu_ps(o, _mm256_mul_ps(_mm256_loadu_ps(o), v));
    _mm256_storeu_ps(o + 8, _mm256_mul_ps(_mm256_loadu_ps(o + 8), v));
}

INLINE void qk_int8(const int kind, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    (void)kind;
    const size_t q_bytes = fo_query_bytes(FO_KV_KIND_Q8_0, head_dim), n_blocks = (size_t)head_dim / BLOCK, group = (size_t)head_dim * G;
    const uint16_t *scales = k->block;
    const size_t scale_bytes = n_blocks * (size_t)k->tokens * sizeof *scales;
    const char *x = q;
    if (k->lo == 0) fetch(k->ahead, 0, scale_bytes);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + scale_bytes + (size_t)(t / G) * group;
        float *o = columns(s, k, t);
        fetch(k->ahead, scale_bytes + (size_t)(t / G) * group, group);
        for (size_t i = 0; i < n_blocks; i++) {
#define ZERO(h) __m256i a##h = _mm256_setzero_si256(), b##h = a##h;
#define STEP(h) if (h < N) { __m256i v = int_pair(x + h * q_bytes + d * 4); a##h = _mm256_add_epi32(a##h, _mm256_madd_epi16(u, v)); b##h = _mm256_add_epi32(b##h, _mm256_madd_epi16(w, v)); STAY(a##h, b##h); }
#define PUT(h) if (h < N) add_block(o + h * S, a##h, b##h, u, w, i == 0);
            EACH(ZERO)
            for (size_t d = i * (BLOCK / 2); d < (i + 1) * (BLOCK / 2); d++) {
                __m256i u = _mm256_cvtepi8_epi16(load16(in + d * 2 * G)), w = _mm256_cvtepi8_epi16(load16(in + d * 2 * G + 16));
                EACH(STEP)
            }
            __m256 u = halves8(scales + i * (size_t)k->tokens + t), w = halves8(scales + i * (size_t)k->tokens + t + 8);
            EACH(PUT)
#undef ZERO
#undef STEP
#undef PUT
        }
        for (int h = 0; h < N; h++) scale16(o + h * S, by * *(const float *)(const void *)(x + (size_t)h * q_bytes + 2 * (size_t)head_dim));
    }
}

INLINE void qk_int4(const int kind, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    (void)kind;
    const size_t q_bytes = fo_query_bytes(FO_KV_KIND_Q4_0, head_dim), n_blocks = (size_t)head_dim / BLOCK, group = (size_t)head_dim * G / 2;
    const uint16_t *scales = k->block;
    const size_t scale_bytes = n_blocks * (size_t)k->tokens * sizeof *scales;
    const char *x = q;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    if (k->lo == 0) fetch(k->ahead, 0, scale_bytes);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + scale_bytes + (size_t)(t / G) * group;
        float *o = columns(s, k, t);
        fetch(k->ahead, scale_bytes + (size_t)(t / G) * group, group);
        for (size_t i = 0; i < n_blocks; i++) {
#define START(h) __m256i a##h = _mm256_setzero_si256(), b##h; if (h < N) a##h = int_pair(x + h * q_bytes + head_dim + n_blocks * 4 + i * 4); b##h = a##h;
#define STEP(h)                                                                                                                          \
    if (h < N) {                                                                                                                         \
        __m256i v = int_pair(x + h * q_bytes + d * 8), z = int_pair(x + h * q_bytes + d * 8 + 4);                                        \
        a##h = _mm256_add_epi16(a##h, _mm256_maddubs_epi16(u_lo, v)), b##h = _mm256_add_epi16(b##h, _mm256_maddubs_epi16(w_lo, v));      \
        a##h = _mm256_add_epi16(a##h, _mm256_maddubs_epi16(u_hi, z)), b##h = _mm256_add_epi16(b##h, _mm256_maddubs_epi16(w_hi, z));      \
        STAY(a##h, b##h);                                                                                                                \
    }
#define PUT(h)                                                                                                                           \
    if (h < N) {                                                                                                                         \
        __m256 x_d = _mm256_broadcast_ss((const float *)(const void *)(x + h * q_bytes + head_dim) + i);                                 \
        add_block(o + h * S, _mm256_madd_epi16(a##h, ones), _mm256_madd_epi16(b##h, ones), _mm256_mul_ps(u, x_d), _mm256_mul_ps(w, x_d), i == 0); \
    }
            EACH(START)
            for (size_t d = i * (BLOCK / 8); d < (i + 1) * (BLOCK / 8); d++) {
                __m256i u = load(in + d * 4 * G), w = load(in + d * 4 * G + 32);
                __m256i u_lo = _mm256_and_si256(u, low), u_hi = _mm256_and_si256(_mm256_srli_epi16(u, 4), low);
                __m256i w_lo = _mm256_and_si256(w, low), w_hi = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
                EACH(STEP)
            }
            __m256 u = halves8(scales + i * (size_t)k->tokens + t), w = halves8(scales + i * (size_t)k->tokens + t + 8);
            EACH(PUT)
#undef START
#undef STEP
#undef PUT
        }
        for (int h = 0; h < N; h++) scale16(o + h * S, by);
    }
}

QK_SLOT(qk_f32, qk_float, false)
QK_SLOT(qk_f16, qk_float, true)
QK_SLOT(qk_q8, qk_int8, 0)
QK_SLOT(qk_q4, qk_int4, 0)

/* --- softmax --------------------------------------------------------------------------------------------------------------------- */

INLINE float max8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* e^x of avx_attn.h. */
INLINE __m256 exp_below8(__m256 x) {
    const __m256 round = _mm256_set1_ps(EXP_ROUND);
    __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_LEAST), _CMP_LT_OQ);
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(EXP_LOG2E), round), n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2), x), p = _mm256_set1_ps(EXP_FIRST);
#define TERM(c) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    EXP_TERMS(TERM)
#undef TERM
    __m256i two_n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_andnot_ps(zero, _mm256_mul_ps(p, _mm256_castsi256_ps(two_n)));
}

/* The maxima of all queries come first: the chains of one then hide behind those of the others. */
static void softmax(float *s, int n_q, float *m, float *sum, float *ret_r) {
    float below[8] = { 0 }, now[FO_ATTN_HEADS], r[8];
    for (int h = 0; h < n_q; h++) {
        const float *row = s + h * S;
        __m256 a = _mm256_set1_ps(m[h]), b = a; /* max(x, y) is y when x is a NaN: it is passed over, as in the reference */
        for (int i = 0; i < S; i += 16) {
            a = _mm256_max_ps(_mm256_loadu_ps(row + i), a);
            b = _mm256_max_ps(_mm256_loadu_ps(row + i + 8), b);
        }
        now[h] = max8(_mm256_max_ps(a, b));
        below[h] = m[h] - now[h];
        m[h] = now[h];
    }
    for (int h = 0; h < n_q; h++, s += S) {
        __m256 top = _mm256_set1_ps(now[h]), a = _mm256_setzero_ps(), b = a;
        for (int i = 0; i < S; i += 16) {
            __m256 p = exp_below8(_mm256_sub_ps(_mm256_loadu_ps(s + i), top)), q = exp_below8(_mm256_sub_ps(_mm256_loadu_ps(s + i + 8), top));
            _mm256_storeu_ps(s + i, p);
            _mm256_storeu_ps(s + i + 8, q);
            a = _mm256_add_ps(a, p);
            b = _mm256_add_ps(b, q);
        }
        now[h] = fold(_mm256_add_ps(a, b));
    }
    _mm256_storeu_ps(r, exp_below8(_mm256_loadu_ps(below)));
    for (int h = 0; h < n_q; h++) {
        sum[h] = sum[h] * r[h] + now[h];
        ret_r[h] = r[h];
    }
}

/* --- outputs --------------------------------------------------------------------------------------------------------------------- */

/* 16 dimensions of all queries stay in registers while the positions pass. */
INLINE void pv_float(const bool f16, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    const char *in = v->block;
    const size_t row = (size_t)head_dim * (f16 ? 2 : 4);
    const int n = v->hi - v->lo;
    s += v->at;
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) {
        if (f16 && d == 0) fetch(v->ahead, 0, row * (size_t)v->tokens);
#define GET(h)                                                                                                                           \
    __m256 a##h = _mm256_setzero_ps(), b##h = a##h;                                                                                      \
    if (h < N) {                                                                                                                         \
        __m256 by = _mm256_broadcast_ss(r + h);                                                                                          \
        a##h = _mm256_mul_ps(_mm256_loadu_ps(out + h * head_dim + d), by), b##h = _mm256_mul_ps(_mm256_loadu_ps(out + h * head_dim + d + 8), by); \
    }
#define STEP(h) if (h < N) { __m256 p = _mm256_broadcast_ss(s + h * S + i); a##h = _mm256_fmadd_ps(p, x, a##h); b##h = _mm256_fmadd_ps(p, y, b##h); STAY(a##h, b##h); }
#define PUT(h) if (h < N) _mm256_storeu_ps(out + h * head_dim + d, a##h), _mm256_storeu_ps(out + h * head_dim + d + 8, b##h);
        EACH(GET)
        const char *p_in = in + (size_t)v->lo * row + (size_t)d * (f16 ? 2 : 4);
        for (int i = 0; i < n; i++, p_in += row) {
            __m256 x = load8(p_in, 0, f16), y = load8(p_in, 8, f16);
            EACH(STEP)
        }
        EACH(PUT)
#undef GET
#undef STEP
#undef PUT
    }
    for (; d < head_dim; d++)
        for (int h = 0; h < N; h++) {
            float sum = out[h * head_dim + d] * r[h];
            for (int i = 0; i < n; i++) sum += s[h * S + i] * load1(in, (int64_t)(v->lo + i) * head_dim + d, f16);
            out[h * head_dim + d] = sum;
        }
}

/* out = out * r + sums * step, 16 dimensions of a query. */
INLINE void put_sums(float *o, __m256i a, __m256i b, float step, float r) {
    __m256 d = _mm256_set1_ps(step), by = _mm256_set1_ps(r);
    _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), d, _mm256_mul_ps(_mm256_loadu_ps(o), by)));
    _mm256_storeu_ps(o + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), d, _mm256_mul_ps(_mm256_loadu_ps(o + 8), by)));
}

INLINE void pv_int8(const int kind, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    (void)kind;
    const size_t n_blocks = (size_t)head_dim / BLOCK, scale_bytes = n_blocks * (size_t)v->tokens * 2, half = (size_t)v->tokens * 16;
    const int first = v->lo / 8 * 4, n = (v->hi + 1) / 2 - first; /* pairs */
    int16_t w[FO_ATTN_HEADS][S];
    float d[FO_ATTN_HEADS];
    struct shares part;
    shares_of_p(s, v, &part, N);
    int sum;
    fetch(v->ahead, 0, scale_bytes);
    for (size_t i = 0; i < n_blocks; i++) {
        shares_of_d(v, i, &part);
        for (int h = 0; h < N; h++) d[h] = weights(&part, h, v->hi - v->lo / 8 * 8, w[h], &sum);
        for (size_t j = 2 * i; j < 2 * i + 2; j++) {
            const char *in = (const char *)v->block + scale_bytes + j * half + (size_t)first * 32;
            fetch(v->ahead, scale_bytes + j * half, half);
#define ZERO(h) __m256i a##h = _mm256_setzero_si256(), b##h = a##h;
#define STEP(h) if (h < N) { __m256i p = int_pair(&w[h][2 * t]); a##h = _mm256_add_epi32(a##h, _mm256_madd_epi16(x, p)); b##h = _mm256_add_epi32(b##h, _mm256_madd_epi16(y, p)); STAY(a##h, b##h); }
#define PUT(h) if (h < N) put_sums(out + h * head_dim + j * 16, a##h, b##h, d[h], r[h]);
            EACH(ZERO)
            for (int t = 0; t < n; t++) {
                __m256i x = _mm256_cvtepi8_epi16(load16(in + t * 32)), y = _mm256_cvtepi8_epi16(load16(in + t * 32 + 16));
                EACH(STEP)
            }
            EACH(PUT)
#undef ZERO
#undef STEP
#undef PUT
        }
    }
}

INLINE void pv_int4(const int kind, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    (void)kind;
    const size_t n_blocks = (size_t)head_dim / BLOCK, scale_bytes = n_blocks * (size_t)v->tokens * 2, half = (size_t)v->tokens * 8;
    const int first = v->lo / 8, n = (v->hi + 7) / 8 - first; /* octets */
    const __m256i low = _mm256_set1_epi16(15);
    int16_t w[FO_ATTN_HEADS][S];
    float d[FO_ATTN_HEADS];
    struct shares part;
    shares_of_p(s, v, &part, N);
    int sum[FO_ATTN_HEADS];
    fetch(v->ahead, 0, scale_bytes);
    for (size_t i = 0; i < n_blocks; i++) {
        shares_of_d(v, i, &part);
        for (int h = 0; h < N; h++) d[h] = weights(&part, h, v->hi - v->lo / 8 * 8, w[h], &sum[h]);
        for (size_t j = 2 * i; j < 2 * i + 2; j++) {
            const char *in = (const char *)v->block + scale_bytes + j * half + (size_t)first * 64;
            fetch(v->ahead, scale_bytes + j * half, half);
#define START(h) __m256i a##h = _mm256_setzero_si256(), b##h; if (h < N) a##h = _mm256_set1_epi32(-8 * sum[h]); b##h = a##h;
#define STEP(h) if (h < N) { __m256i p = int_pair(&w[h][8 * t + 2 * c]); a##h = _mm256_add_epi32(a##h, _mm256_madd_epi16(x, p)); b##h = _mm256_add_epi32(b##h, _mm256_madd_epi16(y, p)); STAY(a##h, b##h); }
#define PAIR(shift) { enum { c = shift / 4 }; __m256i x = _mm256_and_si256(_mm256_srli_epi16(u, shift), low), y = _mm256_and_si256(_mm256_srli_epi16(z, shift), low); EACH(STEP) }
#define PUT(h) if (h < N) put_sums(out + h * head_dim + j * 16, a##h, b##h, d[h], r[h]);
            EACH(START)
            for (int t = 0; t < n; t++) {
                __m256i u = load(in + t * 64), z = load(in + t * 64 + 32);
                PAIR(0)
                PAIR(4)
                PAIR(8)
                PAIR(12)
            }
            EACH(PUT)
#undef START
#undef STEP
#undef PAIR
#undef PUT
        }
    }
}

PV_SLOT(pv_f32, pv_float, false)
PV_SLOT(pv_f16, pv_float, true)
PV_SLOT(pv_q8, pv_int8, 0)
PV_SLOT(pv_q4, pv_int4, 0)

void fo_cpu_avx2_attn(struct fo_attn_kernels *k) {
    k->put_k[FO_KV_KIND_F32] = put_k_f32;
    k->put_k[FO_KV_KIND_F16] = put_k_f16;
    k->put_k[FO_KV_KIND_Q8_0] = put_k_q8;
    k->put_k[FO_KV_KIND_Q4_0] = put_k_q4;
    k->put_v[FO_KV_KIND_F16] = put_v_f16;
    k->put_v[FO_KV_KIND_Q8_0] = put_v_q8;
    k->put_v[FO_KV_KIND_Q4_0] = put_v_q4;
    k->query[FO_KV_KIND_Q8_0] = query_q8;
    k->query[FO_KV_KIND_Q4_0] = query_q4;
    k->qk[FO_KV_KIND_F32] = qk_f32;
    k->qk[FO_KV_KIND_F16] = qk_f16;
    k->qk[FO_KV_KIND_Q8_0] = qk_q8;
    k->qk[FO_KV_KIND_Q4_0] = qk_q4;
    k->softmax = softmax;
    k->pv[FO_KV_KIND_F32] = pv_f32;
    k->pv[FO_KV_KIND_F16] = pv_f16;
    k->pv[FO_KV_KIND_Q8_0] = pv_q8;
    k->pv[FO_KV_KIND_Q4_0] = pv_q4;
}
#endif
