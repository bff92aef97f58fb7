/* Attention for AVX2 + FMA + F16C; see avx2.c, and attn.h for where K and V lie. Scores of 16 positions and outputs of 16 dimensions of up to
 * four queries stay in registers while dimensions, or positions, pass; a query is broadcast against K, a weight against V.
 *
 * Q8_0, and V of Q4_0: a pair of 16-bit products a lane (vpmaddwd), twice the rate of float FMA on this width, against queries and weights
 * of 16 bits. K of Q4_0: nibbles against a query of 8 bits (vpmaddubsw), eight of whose pairs fit in 16 bits before they are widened. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/cpu/tile.h"

enum { S = FO_ATTN_CHUNK, G = FO_KV_GROUP, BLOCK = 32 };

INLINE void fetch(const void *ahead, size_t at, size_t bytes) {
    if (!ahead) return;
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)ahead + at + i, _MM_HINT_T0);
}

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

INLINE __m256 halves8(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The column of the scores that the group of position `t` begins in. */
INLINE float *columns(float *s, const struct fo_kv_run *k, int t) {
    return s + (k->at + t - k->lo);
}

/* --- scores ---------------------------------------------------------------------------------------------------------------------- */

INLINE void qk_float(const bool f16, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    const size_t q_bytes = fo_query_bytes(FO_KV_KIND_F32, head_dim), group = (size_t)head_dim * G * (f16 ? 2 : 4);
    const float *x = q;
    const size_t step = q_bytes / sizeof *x;
    const __m256 scale = _mm256_set1_ps(by);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + (size_t)(t / G) * group;
        fetch(k->ahead, (size_t)(t / G) * group, group);
#define ZERO(h) __m256 a##h = _mm256_setzero_ps(), b##h = a##h;
#define STEP(h) if (h < N) { __m256 v = _mm256_broadcast_ss(x + h * step + d); a##h = _mm256_fmadd_ps(u, v, a##h); b##h = _mm256_fmadd_ps(w, v, b##h); }
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
#define STEP(h) if (h < N) { __m256i v = int_pair(x + h * q_bytes + d * 4); a##h = _mm256_add_epi32(a##h, _mm256_madd_epi16(u, v)); b##h = _mm256_add_epi32(b##h, _mm256_madd_epi16(w, v)); }
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

static void softmax(float *s, int n_q, float *m, float *sum, float *ret_r) {
    float before[8] = { 0 };
    for (int h = 0; h < n_q; h++, s += S) {
        __m256 top = _mm256_set1_ps(m[h]); /* max(a, b) is b when a is a NaN: it is passed over, as in the reference */
        for (int i = 0; i < S; i += 8) top = _mm256_max_ps(_mm256_loadu_ps(s + i), top);
        float now = max8(top);
        __m256 all = _mm256_set1_ps(now), a = _mm256_setzero_ps(), b = a;
        for (int i = 0; i < S; i += 16) {
            __m256 p = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + i), all)), q = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + i + 8), all));
            _mm256_storeu_ps(s + i, p);
            _mm256_storeu_ps(s + i + 8, q);
            a = _mm256_add_ps(a, p);
            b = _mm256_add_ps(b, q);
        }
        before[h] = m[h] - now;
        before[h + 4] = fold(_mm256_add_ps(a, b));
        m[h] = now;
    }
    float r[8];
    _mm256_storeu_ps(r, exp8(_mm256_loadu_ps(before)));
    for (int h = 0; h < n_q; h++) {
        sum[h] = sum[h] * r[h] + before[h + 4];
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
        if (d % 64 == 0 && v->ahead) /* a line of four passes at a time */
            for (int t = v->lo; t < v->hi; t++) fetch((const char *)v->ahead + (size_t)t * row, (size_t)d * (f16 ? 2 : 4), f16 ? 128 : 256);
#define GET(h)                                                                                                                           \
    __m256 a##h = _mm256_setzero_ps(), b##h = a##h;                                                                                      \
    if (h < N) {                                                                                                                         \
        __m256 by = _mm256_broadcast_ss(r + h);                                                                                          \
        a##h = _mm256_mul_ps(_mm256_loadu_ps(out + h * head_dim + d), by), b##h = _mm256_mul_ps(_mm256_loadu_ps(out + h * head_dim + d + 8), by); \
    }
#define STEP(h) if (h < N) { __m256 p = _mm256_broadcast_ss(s + h * S + i); a##h = _mm256_fmadd_ps(p, x, a##h); b##h = _mm256_fmadd_ps(p, y, b##h); }
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

/* The weights of a run's positions times the scales of V's block i, in 16 bits: w[0] belongs to position lo / 8 * 8, positions outside the run
 * have none. Returns the step; *ret_sum is the sum of all. */
INLINE float weights(const float *s, const struct fo_kv_run *v, size_t i, int16_t *w, int *ret_sum) {
    const uint16_t *scales = (const uint16_t *)v->block + i * (size_t)v->tokens;
    const int first = v->lo / 8 * 8;
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), lo = _mm256_set1_epi32(v->lo - 1), hi = _mm256_set1_epi32(v->hi);
    __m256 x[S / 8];
    __m256i top = _mm256_setzero_si256();
    const int column = v->at - v->lo; /* of position 0 */
    int n = 0;
    for (int t = first; t < v->hi; t += 8, n++) {
        __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32(t)), in = _mm256_and_si256(_mm256_cmpgt_epi32(at, lo), _mm256_cmpgt_epi32(hi, at));
        x[n] = _mm256_and_ps(_mm256_castsi256_ps(in), _mm256_mul_ps(_mm256_loadu_ps(s + (column + t)), halves8(scales + t)));
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(x[n]), _mm256_set1_epi32(0x7FFFFFFF)));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1)); /* floats without a sign compare as integers */
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    float max = _mm_cvtss_f32(_mm_castsi128_ps(m));
    bool tiny = max < 1e-30f, bad = _mm_cvtsi128_si32(m) >= 0x7F800000;
    __m256 inv = _mm256_set1_ps(tiny || bad ? 0 : 32767.0f / max);
    __m256i sum = _mm256_setzero_si256();
    for (int j = 0; j < n; j++) {
        __m256i q = bad ? _mm256_setzero_si256() : _mm256_cvtps_epi32(_mm256_mul_ps(x[j], inv));
        sum = _mm256_add_epi32(sum, q);
        q = _mm256_permute4x64_epi64(_mm256_packs_epi32(q, q), 0x08);
        _mm_storeu_si128((__m128i *)(void *)(w + j * 8), _mm256_castsi256_si128(q));
    }
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4E));
    *ret_sum = _mm_cvtsi128_si32(_mm_add_epi32(total, _mm_shuffle_epi32(total, 0xB1)));
    if (bad) return __builtin_nanf("");
    return tiny ? 0 : max / 32767.0f;
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
    int sum;
    fetch(v->ahead, 0, scale_bytes);
    for (size_t i = 0; i < n_blocks; i++) {
        for (int h = 0; h < N; h++) d[h] = weights(s + h * S, v, i, w[h], &sum);
        for (size_t j = 2 * i; j < 2 * i + 2; j++) {
            const char *in = (const char *)v->block + scale_bytes + j * half + (size_t)first * 32;
            fetch(v->ahead, scale_bytes + j * half, half);
#define ZERO(h) __m256i a##h = _mm256_setzero_si256(), b##h = a##h;
#define STEP(h) if (h < N) { __m256i p = int_pair(&w[h][2 * t]); a##h = _mm256_add_epi32(a##h, _mm256_madd_epi16(x, p)); b##h = _mm256_add_epi32(b##h, _mm256_madd_epi16(y, p)); }
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
    int sum[FO_ATTN_HEADS];
    fetch(v->ahead, 0, scale_bytes);
    for (size_t i = 0; i < n_blocks; i++) {
        for (int h = 0; h < N; h++) d[h] = weights(s + h * S, v, i, w[h], &sum[h]);
        for (size_t j = 2 * i; j < 2 * i + 2; j++) {
            const char *in = (const char *)v->block + scale_bytes + j * half + (size_t)first * 64;
            fetch(v->ahead, scale_bytes + j * half, half);
#define START(h) __m256i a##h = _mm256_setzero_si256(), b##h; if (h < N) a##h = _mm256_set1_epi32(-8 * sum[h]); b##h = a##h;
#define STEP(h) if (h < N) { __m256i p = int_pair(&w[h][8 * t + 2 * c]); a##h = _mm256_add_epi32(a##h, _mm256_madd_epi16(x, p)); b##h = _mm256_add_epi32(b##h, _mm256_madd_epi16(y, p)); }
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
