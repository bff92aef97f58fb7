/* Attention for SSSE3 and SSE4.1; see sse.c, and attn.h for where K and V lie. Scores of eight positions, and outputs of eight dimensions, of up to
 * four queries stay in registers while dimensions, or positions, pass; a query is broadcast against K, a weight against V. Quantised kinds and all
 * storing are the reference's. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/sse.h"
#include "foundry/cpu/tile.h"

enum { S = FO_ATTN_CHUNK, G = FO_KV_GROUP };

struct eight {
    __m128 lo, hi;
};

INLINE struct eight load8(const void *p, size_t i, const bool half) {
    if (!half) return (struct eight){ _mm_loadu_ps((const float *)p + i), _mm_loadu_ps((const float *)p + i + 4) };
    const __m128i h = load((const uint16_t *)p + i), zero = _mm_setzero_si128();
    return (struct eight){ halves4(_mm_unpacklo_epi16(zero, h)), halves4(_mm_unpackhi_epi16(zero, h)) };
}

INLINE float load1(const void *p, size_t i, const bool half) {
    return half ? half_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

#define ADD(h, by, v) a##h = _mm_add_ps(a##h, _mm_mul_ps(by, (v).lo)), b##h = _mm_add_ps(b##h, _mm_mul_ps(by, (v).hi));
#define ZERO(h) __m128 a##h = _mm_setzero_ps(), b##h = a##h;

INLINE void qk_float(const bool f16, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    const float *x = q;
    const size_t step = fo_query_bytes(FO_KV_KIND_F32, head_dim) / sizeof *x, dims = (size_t)head_dim;
    const __m128 scale = _mm_set1_ps(by);
    for (int t = k->lo / 8 * 8; t < k->hi; t += 8) {
        const size_t first = (size_t)(t / G) * dims * G + (size_t)(t % G);
#define STEP(h) if (h < N) { const __m128 p = _mm_set1_ps(x[h * step + d]); ADD(h, p, v) }
#define PUT(h) if (h < N) { float *o = s + (h * S + k->at + t - k->lo); _mm_storeu_ps(o, _mm_mul_ps(a##h, scale)), _mm_storeu_ps(o + 4, _mm_mul_ps(b##h, scale)); }
        EACH(ZERO)
        for (size_t d = 0; d < dims; d++) {
            const struct eight v = load8(k->block, first + d * G, f16);
            EACH(STEP)
        }
        EACH(PUT)
#undef STEP
#undef PUT
    }
}

static void softmax(float *s, int n_q, float *m, float *sum, float *ret_r) {
    for (int h = 0; h < n_q; h++, s += S) {
        __m128 top = _mm_set1_ps(m[h]), a = _mm_setzero_ps(), b = a; /* max(a, b) is b when a is a NaN: it is passed over, as in the reference */
        for (int i = 0; i < S; i += 4) top = _mm_max_ps(_mm_loadu_ps(s + i), top);
        top = _mm_max_ps(top, _mm_movehl_ps(top, top));
        top = _mm_max_ps(top, _mm_shuffle_ps(top, top, 0x55));
        const __m128 now = _mm_shuffle_ps(top, top, 0);
        for (int i = 0; i < S; i += 8) {
            __m128 p = exp4(_mm_sub_ps(_mm_loadu_ps(s + i), now)), q = exp4(_mm_sub_ps(_mm_loadu_ps(s + i + 4), now));
            _mm_storeu_ps(s + i, p);
            _mm_storeu_ps(s + i + 4, q);
            a = _mm_add_ps(a, p);
            b = _mm_add_ps(b, q);
        }
        ret_r[h] = _mm_cvtss_f32(exp4(_mm_sub_ps(_mm_set1_ps(m[h]), now)));
        sum[h] = sum[h] * ret_r[h] + fold(_mm_add_ps(a, b));
        m[h] = _mm_cvtss_f32(now);
    }
}

INLINE void pv_float(const bool f16, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    const size_t dims = (size_t)head_dim, lo = (size_t)v->lo, n = (size_t)(v->hi - v->lo);
    s += v->at;
    size_t d = 0;
    for (; d + 8 <= dims; d += 8) {
#define GET(h)                                                                                                                           \
    ZERO(h)                                                                                                                              \
    if (h < N) {                                                                                                                         \
        const __m128 by = _mm_set1_ps(r[h]);                                                                                             \
        a##h = _mm_mul_ps(_mm_loadu_ps(out + h * dims + d), by), b##h = _mm_mul_ps(_mm_loadu_ps(out + h * dims + d + 4), by);            \
    }
#define STEP(h) if (h < N) { const __m128 p = _mm_set1_ps(s[h * S + i]); ADD(h, p, x) }
#define PUT(h) if (h < N) _mm_storeu_ps(out + h * dims + d, a##h), _mm_storeu_ps(out + h * dims + d + 4, b##h);
        EACH(GET)
        for (size_t i = 0; i < n; i++) {
            const struct eight x = load8(v->block, (lo + i) * dims + d, f16);
            EACH(STEP)
        }
        EACH(PUT)
#undef GET
#undef STEP
#undef PUT
    }
    for (; d < dims; d++)
        for (int h = 0; h < N; h++) {
            float *o = out + (size_t)h * dims + d, sum = *o * r[h];
            for (size_t i = 0; i < n; i++) sum += s[(size_t)h * S + i] * load1(v->block, (lo + i) * dims + d, f16);
            *o = sum;
        }
}

QK_SLOT(qk_f32, qk_float, false)
QK_SLOT(qk_f16, qk_float, true)
PV_SLOT(pv_f32, pv_float, false)
PV_SLOT(pv_f16, pv_float, true)

void fo_cpu_sse_attn(struct fo_attn_kernels *k) {
    k->qk[FO_KV_KIND_F32] = qk_f32;
    k->qk[FO_KV_KIND_F16] = qk_f16;
    k->softmax = softmax;
    k->pv[FO_KV_KIND_F32] = pv_f32;
    k->pv[FO_KV_KIND_F16] = pv_f16;
}
#endif
