/* Attention for NEON; see neon.c, and attn.h for where K and V lie. Float kinds have kernels of their own: scores of eight positions, and
 * outputs of 16 dimensions, of up to four queries stay in registers. Quantised kinds and all storing are the reference's. */
#include "foundry/cpu/kernels.h"

#if defined(__aarch64__)
#include "foundry/cpu/neon.h"

enum { S = FO_ATTN_CHUNK, G = FO_KV_GROUP };

INLINE float32x4_t load4(const void *p, int64_t i, const bool half) {
    if (half) return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + i)));
    return vld1q_f32((const float *)p + i);
}

INLINE float load1(const void *p, int64_t i, const bool half) {
    return half ? half_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE void qk_float(const bool f16, const void *q, int head_dim, const struct fo_kv_run *k, float by, float *s, const int N) {
    const float *x = q;
    const size_t step = fo_query_bytes(FO_KV_KIND_F32, head_dim) / sizeof *x;
    for (int t = k->lo / 8 * 8; t < k->hi; t += 8) {
        const int64_t first = (int64_t)(t / G) * head_dim * G + t % G;
#define ZERO(h) float32x4_t a##h = vdupq_n_f32(0), b##h = a##h;
#define STEP(h) if (h < N) a##h = vfmaq_n_f32(a##h, u, x[h * step + d]), b##h = vfmaq_n_f32(b##h, w, x[h * step + d]);
#define PUT(h) if (h < N) { float *o = s + (h * S + k->at + t - k->lo); vst1q_f32(o, vmulq_n_f32(a##h, by)); vst1q_f32(o + 4, vmulq_n_f32(b##h, by)); }
        EACH(ZERO)
        for (size_t d = 0; d < (size_t)head_dim; d++) {
            float32x4_t u = load4(k->block, first + (int64_t)d * G, f16), w = load4(k->block, first + (int64_t)d * G + 4, f16);
            EACH(STEP)
        }
        EACH(PUT)
#undef ZERO
#undef STEP
#undef PUT
    }
}

static void softmax(float *s, int n_q, float *m, float *sum, float *ret_r) {
    for (int h = 0; h < n_q; h++, s += S) {
        float32x4_t top = vdupq_n_f32(m[h]), total = vdupq_n_f32(0);
        for (int i = 0; i < S; i += 4) {
            float32x4_t v = vld1q_f32(s + i);
            top = vbslq_f32(vcgtq_f32(v, top), v, top); /* as the reference compares: a NaN is passed over */
        }
        float now = vmaxvq_f32(top);
        for (int i = 0; i < S; i += 4) {
            float32x4_t p = exp4(vsubq_f32(vld1q_f32(s + i), vdupq_n_f32(now)));
            vst1q_f32(s + i, p);
            total = vaddq_f32(total, p);
        }
        ret_r[h] = vgetq_lane_f32(exp4(vdupq_n_f32(m[h] - now)), 0);
        sum[h] = sum[h] * ret_r[h] + vaddvq_f32(total);
        m[h] = now;
    }
}

/* 16 dimensions of all queries stay in registers while the positions pass. */
INLINE void pv_float(const bool f16, const float *s, const float *r, int head_dim, const struct fo_kv_run *v, float *out, const int N) {
    const int n = v->hi - v->lo;
    s += v->at;
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) {
#define GET(h)                                                                                                                           \
    float32x4_t a##h = vdupq_n_f32(0), b##h = a##h, c##h = a##h, d##h = a##h;                                                            \
    if (h < N) {                                                                                                                         \
        const float *o = out + h * head_dim + d;                                                                                         \
        a##h = vmulq_n_f32(vld1q_f32(o), r[h]), b##h = vmulq_n_f32(vld1q_f32(o + 4), r[h]);                                              \
        c##h = vmulq_n_f32(vld1q_f32(o + 8), r[h]), d##h = vmulq_n_f32(vld1q_f32(o + 12), r[h]);                                         \
    }
#define STEP(h)                                                                                                                          \
    if (h < N) {                                                                                                                         \
        float p = s[h * S + i];                                                                                                          \
        a##h = vfmaq_n_f32(a##h, x0, p), b##h = vfmaq_n_f32(b##h, x1, p);                                                                \
        c##h = vfmaq_n_f32(c##h, x2, p), d##h = vfmaq_n_f32(d##h, x3, p);                                                                \
    }
#define PUT(h)                                                                                                                           \
    if (h < N) {                                                                                                                         \
        float *o = out + h * head_dim + d;                                                                                               \
        vst1q_f32(o, a##h), vst1q_f32(o + 4, b##h), vst1q_f32(o + 8, c##h), vst1q_f32(o + 12, d##h);                                     \
    }
        EACH(GET)
        for (int i = 0; i < n; i++) {
            int64_t at = (int64_t)(v->lo + i) * head_dim + d;
            float32x4_t x0 = load4(v->block, at, f16), x1 = load4(v->block, at + 4, f16), x2 = load4(v->block, at + 8, f16), x3 = load4(v->block, at + 12, f16);
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
            for (int i = 0; i < n; i++) sum += s[h * S + i] * load1(v->block, (int64_t)(v->lo + i) * head_dim + d, f16);
            out[h * head_dim + d] = sum;
        }
}

QK_SLOT(qk_f32, qk_float, false)
QK_SLOT(qk_f16, qk_float, true)
PV_SLOT(pv_f32, pv_float, false)
PV_SLOT(pv_f16, pv_float, true)

void fo_cpu_neon_attn(struct fo_attn_kernels *k) {
    k->qk[FO_KV_KIND_F32] = qk_f32;
    k->qk[FO_KV_KIND_F16] = qk_f16;
    k->softmax = softmax;
    k->pv[FO_KV_KIND_F32] = pv_f32;
    k->pv[FO_KV_KIND_F16] = pv_f16;
}
#endif
