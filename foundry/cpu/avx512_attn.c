/* Attention for AVX-512 with VNNI; see avx512.c, attn.h for where K and V lie, and avx2_attn.c, on top of which this is: a register holds what two
 * hold there, and one instruction multiplies whole numbers and adds them up (vpdpwssd, vpdpbusd) where there it takes two or three. What is
 * stored, and the forms of queries, are AVX2's. Sums of whole numbers are kept in two registers each, since four queries alone do not cover
 * an instruction's latency. */
#include "foundry/cpu/avx512.h"
#include "foundry/cpu/kernels.h"

#ifdef HAS_AVX512
#include <string.h>

#include "foundry/cpu/avx_attn.h"
#include "foundry/cpu/tile.h"

/* 32 bits in every lane. */
INLINE __m512i lanes_of(const void *p) {
    int v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

INLINE __m512 floats16(const void *p, int64_t i, const bool half) {
    if (half) return _mm512_cvtph_ps(load32((const uint16_t *)p + i));
    return _mm512_loadu_ps((const float *)p + i);
}

INLINE float float1(const void *p, int64_t i, const bool half) {
    if (!half) return ((const float *)p)[i];
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(((const uint16_t *)p)[i])));
}

/* --- scores ---------------------------------------------------------------------------------------------------------------------- */

INLINE void qk_wide_float(const bool f16, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    const size_t step = fo_query_bytes(FO_KV_KIND_F32, head_dim) / sizeof(float), group = (size_t)head_dim * G * (f16 ? 2 : 4);
    const float *x = q;
    const __m512 scale = _mm512_set1_ps(by);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + (size_t)(t / G) * group;
        if (f16) fetch(k->ahead, (size_t)(t / G) * group, group);
#define ZERO(h) __m512 a##h = _mm512_setzero_ps(), b##h = a##h;
#define EVEN(h) if (h < N) a##h = _mm512_fmadd_ps(u, _mm512_set1_ps(x[h * step + (size_t)d]), a##h);
#define ODD(h) if (h < N) b##h = _mm512_fmadd_ps(w, _mm512_set1_ps(x[h * step + (size_t)d + 1]), b##h);
#define PUT(h) if (h < N) _mm512_storeu_ps(columns(s, k, t) + h * S, _mm512_mul_ps(_mm512_add_ps(a##h, b##h), scale));
        EACH(ZERO)
        int d = 0;
        for (; d + 2 <= head_dim; d += 2) {
            __m512 u = floats16(in, (int64_t)d * G, f16), w = floats16(in, (int64_t)(d + 1) * G, f16);
            EACH(EVEN)
            EACH(ODD)
        }
        if (d < head_dim) {
            __m512 u = floats16(in, (int64_t)d * G, f16);
            EACH(EVEN)
        }
        EACH(PUT)
#undef ZERO
#undef EVEN
#undef ODD
#undef PUT
    }
}

INLINE void qk_wide_int8(const int kind, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    (void)kind;
    const size_t q_bytes = fo_query_bytes(FO_KV_KIND_Q8_0, head_dim), n_blocks = (size_t)head_dim / BLOCK, group = (size_t)head_dim * G;
    const uint16_t *scales = k->block;
    const size_t scale_bytes = n_blocks * (size_t)k->tokens * sizeof *scales;
    const char *x = q;
    if (k->lo == 0) fetch(k->ahead, 0, scale_bytes);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + scale_bytes + (size_t)(t / G) * group;
        fetch(k->ahead, scale_bytes + (size_t)(t / G) * group, group);
#define NONE(h) __m512 f##h = _mm512_setzero_ps();
#define ZERO(h) __m512i a##h = _mm512_setzero_si512(), b##h = a##h;
#define EVEN(h) if (h < N) a##h = _mm512_dpwssd_epi32(a##h, u, lanes_of(x + h * q_bytes + d * 4));
#define ODD(h) if (h < N) b##h = _mm512_dpwssd_epi32(b##h, w, lanes_of(x + h * q_bytes + d * 4 + 4));
#define ADD(h) if (h < N) f##h = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(a##h, b##h)), scale, f##h);
#define PUT(h)                                                                                                                           \
    if (h < N) {                                                                                                                         \
        float x_d;                                                                                                                       \
        memcpy(&x_d, x + h * q_bytes + 2 * (size_t)head_dim, sizeof x_d);                                                                \
        _mm512_storeu_ps(columns(s, k, t) + h * S, _mm512_mul_ps(f##h, _mm512_set1_ps(by * x_d)));                                       \
    }
        EACH(NONE)
        for (size_t i = 0; i < n_blocks; i++) {
            EACH(ZERO)
            for (size_t d = i * (BLOCK / 2); d < (i + 1) * (BLOCK / 2); d += 2) {
                __m512i u = _mm512_cvtepi8_epi16(load32(in + d * 2 * G)), w = _mm512_cvtepi8_epi16(load32(in + d * 2 * G + 2 * G));
                EACH(EVEN)
                EACH(ODD)
            }
            const __m512 scale = floats16(scales, (int64_t)(i * (size_t)k->tokens) + t, true);
            EACH(ADD)
        }
        EACH(PUT)
#undef NONE
#undef ZERO
#undef EVEN
#undef ODD
#undef ADD
#undef PUT
    }
}

INLINE void qk_wide_int4(const int kind, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    (void)kind;
    const size_t q_bytes = fo_query_bytes(FO_KV_KIND_Q4_0, head_dim), n_blocks = (size_t)head_dim / BLOCK, group = (size_t)head_dim * G / 2;
    const uint16_t *scales = k->block;
    const size_t scale_bytes = n_blocks * (size_t)k->tokens * sizeof *scales;
    const char *x = q;
    const __m512i low = _mm512_set1_epi8(15);
    if (k->lo == 0) fetch(k->ahead, 0, scale_bytes);
    for (int t = k->lo / G * G; t < k->hi; t += G) {
        const char *in = (const char *)k->block + scale_bytes + (size_t)(t / G) * group;
        fetch(k->ahead, scale_bytes + (size_t)(t / G) * group, group);
#define NONE(h) __m512 f##h = _mm512_setzero_ps();
#define START(h)                                                                                                                         \
    __m512i a##h = _mm512_setzero_si512(), b##h = a##h;                                                                                  \
    if (h < N) {                                                                                                                         \
        int16_t start[2];                                                                                                                \
        memcpy(start, x + h * q_bytes + (size_t)head_dim + n_blocks * 4 + i * 4, sizeof start);                                          \
        a##h = _mm512_set1_epi32(start[0] + start[1]);                                                                                   \
    }
#define STEP(h)                                                                                                                          \
    if (h < N) {                                                                                                                         \
        a##h = _mm512_dpbusd_epi32(a##h, lo, lanes_of(x + h * q_bytes + d * 8));                                                         \
        b##h = _mm512_dpbusd_epi32(b##h, hi, lanes_of(x + h * q_bytes + d * 8 + 4));                                                     \
    }
#define ADD(h)                                                                                                                           \
    if (h < N) {                                                                                                                         \
        float x_d;                                                                                                                       \
        memcpy(&x_d, x + h * q_bytes + (size_t)head_dim + i * 4, sizeof x_d);                                                            \
        f##h = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(a##h, b##h)), _mm512_mul_ps(scale, _mm512_set1_ps(x_d)), f##h);       \
    }
#define PUT(h) if (h < N) _mm512_storeu_ps(columns(s, k, t) + h * S, _mm512_mul_ps(f##h, _mm512_set1_ps(by)));
        EACH(NONE)
        for (size_t i = 0; i < n_blocks; i++) {
            EACH(START)
            for (size_t d = i * (BLOCK / 8); d < (i + 1) * (BLOCK / 8); d++) {
                __m512i u = load(in + d * 4 * G), lo = _mm512_and_si512(u, low), hi = _mm512_and_si512(_mm512_srli_epi16(u, 4), low);
                EACH(STEP)
            }
            const __m512 scale = floats16(scales, (int64_t)(i * (size_t)k->tokens) + t, true);
            EACH(ADD)
        }
        EACH(PUT)
#undef NONE
#undef START
#undef STEP
#undef ADD
#undef PUT
    }
}

QK_SLOT(qk_wide_f32, qk_wide_float, false)
QK_SLOT(qk_wide_f16, qk_wide_float, true)
QK_SLOT(qk_wide_q8, qk_wide_int8, 0)
QK_SLOT(qk_wide_q4, qk_wide_int4, 0)

/* --- softmax --------------------------------------------------------------------------------------------------------------------- */

INLINE float max16(__m512 v) {
    __m256 e = _mm256_max_ps(_mm512_castps512_ps256(v), _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(v), 1)));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* e^x of avx_attn.h. */
INLINE __m512 exp_below16(__m512 x) {
    const __m512 round = _mm512_set1_ps(EXP_ROUND);
    __mmask16 there = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_LEAST), _CMP_NLT_UQ);
    __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(EXP_LOG2E), round), n = _mm512_sub_ps(shifted, round);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2), x), p = _mm512_set1_ps(EXP_FIRST);
#define TERM(c) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    EXP_TERMS(TERM)
#undef TERM
    return _mm512_maskz_mul_ps(there, p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

static void softmax_wide(float *s, int n_q, float *m, float *sum, float *ret_r) {
    float below[16] = { 0 }, now[FO_ATTN_HEADS], r[16];
    for (int h = 0; h < n_q; h++) {
        const float *row = s + h * S;
        __m512 a = _mm512_set1_ps(m[h]), b = a; /* max(x, y) is y when x is a NaN: it is passed over, as in the reference */
        for (int i = 0; i < S; i += 32) {
            a = _mm512_max_ps(_mm512_loadu_ps(row + i), a);
            b = _mm512_max_ps(_mm512_loadu_ps(row + i + 16), b);
        }
        now[h] = max16(_mm512_max_ps(a, b));
        below[h] = m[h] - now[h];
        m[h] = now[h];
    }
    for (int h = 0; h < n_q; h++, s += S) {
        __m512 top = _mm512_set1_ps(now[h]), a = _mm512_setzero_ps(), b = a;
        for (int i = 0; i < S; i += 32) {
            __m512 p = exp_below16(_mm512_sub_ps(_mm512_loadu_ps(s + i), top)), q = exp_below16(_mm512_sub_ps(_mm512_loadu_ps(s + i + 16), top));
            _mm512_storeu_ps(s + i, p);
            _mm512_storeu_ps(s + i + 16, q);
            a = _mm512_add_ps(a, p);
            b = _mm512_add_ps(b, q);
        }
        now[h] = fold16(_mm512_add_ps(a, b));
    }
    _mm512_storeu_ps(r, exp_below16(_mm512_loadu_ps(below)));
    for (int h = 0; h < n_q; h++) {
        sum[h] = sum[h] * r[h] + now[h];
        ret_r[h] = r[h];
    }
}

/* --- outputs --------------------------------------------------------------------------------------------------------------------- */

/* V registers, 16 dimensions each, of all queries stay in registers while the positions pass, in order. */
INLINE void pv_wide_dims(const bool f16, const int V, const float *s, const float *r, int head_dim, int d, const struct fo_kv_run *v, float *out, const int N) {
    const size_t size = f16 ? 2 : 4, row = (size_t)head_dim * size;
    const char *in = (const char *)v->block + (size_t)v->lo * row + (size_t)d * size;
#define GET(h)                                                                                                                           \
    __m512 a##h = _mm512_setzero_ps(), b##h = a##h, c##h = a##h, e##h = a##h;                                                            \
    if (h < N) {                                                                                                                         \
        const __m512 by = _mm512_set1_ps(r[h]);                                                                                          \
        a##h = _mm512_mul_ps(_mm512_loadu_ps(out + h * head_dim + d), by);                                                               \
        if (V > 1) b##h = _mm512_mul_ps(_mm512_loadu_ps(out + h * head_dim + d + 16), by);                                               \
        if (V > 2) c##h = _mm512_mul_ps(_mm512_loadu_ps(out + h * head_dim + d + 32), by);                                               \
        if (V > 2) e##h = _mm512_mul_ps(_mm512_loadu_ps(out + h * head_dim + d + 48), by);                                               \
    }
#define STEP(h)                                                                                                                          \
    if (h < N) {                                                                                                                         \
        __m512 p = _mm512_set1_ps(s[h * S + i]);                                                                                         \
        a##h = _mm512_fmadd_ps(p, x, a##h);                                                                                              \
        if (V > 1) b##h = _mm512_fmadd_ps(p, y, b##h);                                                                                   \
        if (V > 2) c##h = _mm512_fmadd_ps(p, z, c##h), e##h = _mm512_fmadd_ps(p, u, e##h);                                               \
    }
#define PUT(h)                                                                                                                           \
    if (h < N) {                                                                                                                         \
        _mm512_storeu_ps(out + h * head_dim + d, a##h);                                                                                  \
        if (V > 1) _mm512_storeu_ps(out + h * head_dim + d + 16, b##h);                                                                  \
        if (V > 2) _mm512_storeu_ps(out + h * head_dim + d + 32, c##h), _mm512_storeu_ps(out + h * head_dim + d + 48, e##h);             \
    }
    EACH(GET)
    for (int i = 0; i < v->hi - v->lo; i++, in += row) {
        __m512 x = floats16(in, 0, f16), y = V > 1 ? floats16(in, 16, f16) : x, z = V > 2 ? floats16(in, 32, f16) : x, u = V > 2 ? floats16(in, 48, f16) : x;
        EACH(STEP)
    }
    EACH(PUT)
#undef GET
#undef STEP
#undef PUT
}

INLINE void pv_wide_float(const bool f16, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    const size_t size = f16 ? 2 : 4, row = (size_t)head_dim * size;
    s += v->at;
    int d = 0;
    if (f16) fetch(v->ahead, 0, row * (size_t)v->tokens);
    for (; d + 64 <= head_dim; d += 64) pv_wide_dims(f16, 4, s, r, head_dim, d, v, out, N);
    for (; d + 32 <= head_dim; d += 32) pv_wide_dims(f16, 2, s, r, head_dim, d, v, out, N);
    for (; d + 16 <= head_dim; d += 16) pv_wide_dims(f16, 1, s, r, head_dim, d, v, out, N);
    for (; d < head_dim; d++)
        for (int h = 0; h < N; h++) {
            float sum = out[h * head_dim + d] * r[h];
            for (int i = 0; i < v->hi - v->lo; i++) sum += s[h * S + i] * float1(v->block, (int64_t)(v->lo + i) * head_dim + d, f16);
            out[h * head_dim + d] = sum;
        }
}

/* As weights(), which has what is left when the octets are of odd number. */
INLINE float weights_wide(const struct shares *in, int h, int n, int16_t *w, int *ret_sum) {
    if ((n + 7) / 8 % 2) return weights(in, h, n, w, ret_sum);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(in->p[h] + i), _mm512_loadu_ps(in->d + i)));
        sum = _mm512_add_epi32(sum, q);
        _mm256_storeu_si256((__m256i *)(void *)(w + i), _mm512_cvtsepi32_epi16(q));
    }
    __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    __m128i total = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    total = _mm_add_epi32(total, _mm_shuffle_epi32(total, 0x4E));
    *ret_sum = _mm_cvtsi128_si32(_mm_add_epi32(total, _mm_shuffle_epi32(total, 0xB1)));
    return in->p_max[h] * in->d_max / 32767.0f;
}

/* out = out * r + sums * step, 16 dimensions of a query. */
INLINE void put_wide_sums(float *o, __m512i a, __m512i b, float step, float r) {
    __m512 before = _mm512_mul_ps(_mm512_loadu_ps(o), _mm512_set1_ps(r));
    _mm512_storeu_ps(o, _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(a, b)), _mm512_set1_ps(step), before));
}

INLINE void pv_wide_int8(const int kind, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    (void)kind;
    const size_t n_blocks = (size_t)head_dim / BLOCK, scale_bytes = n_blocks * (size_t)v->tokens * 2, half = (size_t)v->tokens * 16;
    const int first = v->lo / 8 * 4, n = ((v->hi + 7) / 8 * 8 - v->lo / 8 * 8) / 2; /* pairs; weights behind the last position are zeros */
    int16_t w[FO_ATTN_HEADS][S];
    float d[FO_ATTN_HEADS];
    struct shares part;
    shares_of_p(s, v, &part, N);
    int sum;
    fetch(v->ahead, 0, scale_bytes);
    for (size_t i = 0; i < n_blocks; i++) {
        shares_of_d(v, i, &part);
        for (int h = 0; h < N; h++) d[h] = weights_wide(&part, h, v->hi - v->lo / 8 * 8, w[h], &sum);
        for (size_t j = 2 * i; j < 2 * i + 2; j++) {
            const char *in = (const char *)v->block + scale_bytes + j * half + (size_t)first * 32;
            fetch(v->ahead, scale_bytes + j * half, half);
#define ZERO(h) __m512i a##h = _mm512_setzero_si512(), b##h = a##h;
#define EVEN(h) if (h < N) a##h = _mm512_dpwssd_epi32(a##h, x, lanes_of(&w[h][2 * t]));
#define ODD(h) if (h < N) b##h = _mm512_dpwssd_epi32(b##h, y, lanes_of(&w[h][2 * t + 2]));
#define PUT(h) if (h < N) put_wide_sums(out + h * head_dim + j * 16, a##h, b##h, d[h], r[h]);
            EACH(ZERO)
            for (int t = 0; t < n; t += 2) {
                __m512i x = _mm512_cvtepi8_epi16(load32(in + t * 32)), y = _mm512_cvtepi8_epi16(load32(in + t * 32 + 32));
                EACH(EVEN)
                EACH(ODD)
            }
            EACH(PUT)
#undef ZERO
#undef EVEN
#undef ODD
#undef PUT
        }
    }
}

INLINE void pv_wide_int4(const int kind, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    (void)kind;
    const size_t n_blocks = (size_t)head_dim / BLOCK, scale_bytes = n_blocks * (size_t)v->tokens * 2, half = (size_t)v->tokens * 8;
    const int first = v->lo / 8, n = (v->hi + 7) / 8 - first; /* octets */
    const __m512i low = _mm512_set1_epi16(15);
    int16_t w[FO_ATTN_HEADS][S];
    float d[FO_ATTN_HEADS];
    struct shares part;
    shares_of_p(s, v, &part, N);
    int sum[FO_ATTN_HEADS];
    fetch(v->ahead, 0, scale_bytes);
    for (size_t i = 0; i < n_blocks; i++) {
        shares_of_d(v, i, &part);
        for (int h = 0; h < N; h++) d[h] = weights_wide(&part, h, v->hi - v->lo / 8 * 8, w[h], &sum[h]);
        for (size_t j = 2 * i; j < 2 * i + 2; j++) {
            const char *in = (const char *)v->block + scale_bytes + j * half + (size_t)first * 64;
            fetch(v->ahead, scale_bytes + j * half, half);
#define START(h) __m512i a##h = _mm512_setzero_si512(), b##h = a##h; if (h < N) a##h = _mm512_set1_epi32(-8 * sum[h]);
#define EVEN(h) if (h < N) a##h = _mm512_dpwssd_epi32(a##h, x, lanes_of(&w[h][8 * t + 2 * c]));
#define ODD(h) if (h < N) b##h = _mm512_dpwssd_epi32(b##h, y, lanes_of(&w[h][8 * t + 2 * c + 2]));
#define PAIRS(shift)                                                                                                                     \
    {                                                                                                                                    \
        enum { c = (shift) / 4 };                                                                                                        \
        __m512i x = _mm512_and_si512(_mm512_srli_epi16(u, shift), low), y = _mm512_and_si512(_mm512_srli_epi16(u, (shift) + 4), low);    \
        EACH(EVEN)                                                                                                                       \
        EACH(ODD)                                                                                                                        \
    }
#define PUT(h) if (h < N) put_wide_sums(out + h * head_dim + j * 16, a##h, b##h, d[h], r[h]);
            EACH(START)
            for (int t = 0; t < n; t++) {
                __m512i u = load(in + t * 64);
                PAIRS(0)
                PAIRS(8)
            }
            EACH(PUT)
#undef START
#undef EVEN
#undef ODD
#undef PAIRS
#undef PUT
        }
    }
}

PV_SLOT(pv_wide_f32, pv_wide_float, false)
PV_SLOT(pv_wide_f16, pv_wide_float, true)
PV_SLOT(pv_wide_q8, pv_wide_int8, 0)
PV_SLOT(pv_wide_q4, pv_wide_int4, 0)

void fo_cpu_avx512_attn(struct fo_attn_kernels *k) {
    k->qk[FO_KV_KIND_F32] = qk_wide_f32;
    k->qk[FO_KV_KIND_F16] = qk_wide_f16;
    k->qk[FO_KV_KIND_Q8_0] = qk_wide_q8;
    k->qk[FO_KV_KIND_Q4_0] = qk_wide_q4;
    k->softmax = softmax_wide;
    k->pv[FO_KV_KIND_F32] = pv_wide_f32;
    k->pv[FO_KV_KIND_F16] = pv_wide_f16;
    k->pv[FO_KV_KIND_Q8_0] = pv_wide_q8;
    k->pv[FO_KV_KIND_Q4_0] = pv_wide_q4;
}
#endif
