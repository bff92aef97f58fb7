/* Row ops and attention for NEON; see neon.c. */
#include "foundry/cpu/kernels.h"

#if defined(__aarch64__)
#include <math.h>

#include "foundry/cpu/neon.h"
#include "foundry/ops.h"

_Static_assert(FO_ATTN_HEADS == 4, "a register holds the scores of a position");

/* ref.c's ref_exp on four lanes, with fused products. */
INLINE float32x4_t exp4(float32x4_t x) {
    const float32x4_t round = vdupq_n_f32(12582912.0f);
    uint32x4_t zero = vcltq_f32(x, vdupq_n_f32(-87.33f));
    x = vminq_f32(x, vdupq_n_f32(88.37f)); /* a NaN stays */
    float32x4_t shifted = vfmaq_n_f32(round, x, 1.44269504f), n = vsubq_f32(shifted, round);
    float32x4_t r = vfmaq_n_f32(vfmaq_n_f32(x, n, -0.693359375f), n, 2.12194440e-4f);
    float32x4_t p = vdupq_n_f32(1.98412698e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.38888889e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.33333333e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.16666667e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.66666667e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    uint32x4_t two_n = vshlq_n_u32(vaddq_u32(vreinterpretq_u32_f32(shifted), vdupq_n_u32(127)), 23);
    p = vmulq_f32(p, vreinterpretq_f32_u32(two_n));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), zero));
}

static void rms_norm(const float *x, const float *weight, int64_t k, float eps, float *out) {
    float32x4_t a = vdupq_n_f32(0), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        float32x4_t p = vld1q_f32(x + i), q = vld1q_f32(x + i + 4), r = vld1q_f32(x + i + 8), s = vld1q_f32(x + i + 12);
        a = vfmaq_f32(a, p, p);
        b = vfmaq_f32(b, q, q);
        c = vfmaq_f32(c, r, r);
        d = vfmaq_f32(d, s, s);
    }
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d)));
    for (; i < k; i++) sum += x[i] * x[i];
    float by = 1.0f / sqrtf(sum / (float)k + eps);
    for (i = 0; i + 4 <= k; i += 4) vst1q_f32(out + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), by), vld1q_f32(weight + i)));
    for (; i < k; i++) out[i] = x[i] * by * weight[i];
}

static void add(const float *a, const float *b, int64_t k, float *out) {
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) vst1q_f32(out + i, vaddq_f32(vld1q_f32(a + i), vld1q_f32(b + i)));
    for (; i < k; i++) out[i] = a[i] + b[i];
}

INLINE float32x4_t silu4(float32x4_t g) {
    return vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), exp4(vnegq_f32(g))));
}

static void silu_mul(const float *gate, const float *up, int64_t k, float *out) {
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) vst1q_f32(out + i, vmulq_f32(silu4(vld1q_f32(gate + i)), vld1q_f32(up + i)));
    for (; i < k; i++) out[i] = vgetq_lane_f32(silu4(vdupq_n_f32(gate[i])), 0) * up[i];
}

static void rope(float *x, int n_head, const struct fo_rope *r, const float *cosine, const float *sine) {
    const int half = r->n_rot / 2;
    const bool pairs = r->kind == FO_ROPE_PAIRS;
    for (int h = 0; h < n_head; h++, x += r->head_dim) {
        int i = 0;
        for (; i + 4 <= half; i += 4) {
            float32x4_t c = vld1q_f32(cosine + i), s = vld1q_f32(sine + i);
            float32x4x2_t v = pairs ? vld2q_f32(x + 2 * i) : (float32x4x2_t){ { vld1q_f32(x + i), vld1q_f32(x + half + i) } };
            float32x4x2_t turned = { { vsubq_f32(vmulq_f32(v.val[0], c), vmulq_f32(v.val[1], s)),
                                       vaddq_f32(vmulq_f32(v.val[0], s), vmulq_f32(v.val[1], c)) } };
            if (pairs) {
                vst2q_f32(x + 2 * i, turned);
            } else {
                vst1q_f32(x + i, turned.val[0]);
                vst1q_f32(x + half + i, turned.val[1]);
            }
        }
        for (; i < half; i++) {
            float *p = pairs ? x + 2 * i : x + i, *q = pairs ? p + 1 : p + half, a = *p, b = *q;
            *p = a * cosine[i] - b * sine[i];
            *q = a * sine[i] + b * cosine[i];
        }
    }
}

static void to_f16(const float *in, uint16_t *out, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(in + i))));
    for (; i < n; i++) out[i] = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(in[i]))), 0);
}

static void scale(float *x, int64_t n, float by) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vmulq_n_f32(vld1q_f32(x + i), by));
    for (; i < n; i++) x[i] *= by;
}

/* --- attention ----------------------------------------------------------------------------------------------------------------- */

INLINE float32x4_t load4(const void *p, int64_t i, const bool half) {
    if (half) return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + i)));
    return vld1q_f32((const float *)p + i);
}

INLINE float load1(const void *p, int64_t i, const bool half) {
    return half ? half_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* One position at a time: K is loaded once for all heads, whose sums are folded together into the four scores of the position. */
INLINE void qk(const bool f16, const float *q, int head_dim, const void *k, int n, float by, float *s, const int N) {
    for (int i = 0; i < n; i++) {
        int64_t row = (int64_t)i * head_dim;
        int d = 0;
#define ZERO(h) float32x4_t a##h = vdupq_n_f32(0), b##h = a##h;
#define STEP(h) if (h < N) a##h = vfmaq_f32(a##h, vld1q_f32(q + h * head_dim + d), u), b##h = vfmaq_f32(b##h, vld1q_f32(q + h * head_dim + d + 4), v);
#define REST(h) if (h < N) sums[h] += q[h * head_dim + d] * x;
        EACH(ZERO)
        for (; d + 8 <= head_dim; d += 8) {
            float32x4_t u = load4(k, row + d, f16), v = load4(k, row + d + 4, f16);
            EACH(STEP)
        }
        float32x4_t sum = vpaddq_f32(vpaddq_f32(vaddq_f32(a0, b0), vaddq_f32(a1, b1)), vpaddq_f32(vaddq_f32(a2, b2), vaddq_f32(a3, b3)));
        if (d < head_dim) {
            float sums[FO_ATTN_HEADS];
            vst1q_f32(sums, sum);
            for (; d < head_dim; d++) {
                float x = load1(k, row + d, f16);
                EACH(REST)
            }
            sum = vld1q_f32(sums);
        }
        vst1q_f32(s + i * FO_ATTN_HEADS, vmulq_n_f32(sum, by));
#undef ZERO
#undef STEP
#undef REST
    }
}

/* 16 dimensions of all heads stay in registers while the positions pass. */
INLINE void pv(const bool f16, const float *s, int head_dim, const void *v, int n, float *out, const int N) {
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) {
#define GET(h)                                                                                                                           \
    float32x4_t a##h = vdupq_n_f32(0), b##h = a##h, c##h = a##h, d##h = a##h;                                                            \
    if (h < N) {                                                                                                                         \
        const float *o = out + h * head_dim + d;                                                                                         \
        a##h = vld1q_f32(o), b##h = vld1q_f32(o + 4), c##h = vld1q_f32(o + 8), d##h = vld1q_f32(o + 12);                                 \
    }
#define STEP(h)                                                                                                                          \
    if (h < N) {                                                                                                                         \
        a##h = vfmaq_laneq_f32(a##h, x0, p, h), b##h = vfmaq_laneq_f32(b##h, x1, p, h);                                                  \
        c##h = vfmaq_laneq_f32(c##h, x2, p, h), d##h = vfmaq_laneq_f32(d##h, x3, p, h);                                                  \
    }
#define PUT(h)                                                                                                                           \
    if (h < N) {                                                                                                                         \
        float *o = out + h * head_dim + d;                                                                                               \
        vst1q_f32(o, a##h), vst1q_f32(o + 4, b##h), vst1q_f32(o + 8, c##h), vst1q_f32(o + 12, d##h);                                     \
    }
        EACH(GET)
        for (int i = 0; i < n; i++) {
            int64_t at = (int64_t)i * head_dim + d;
            float32x4_t p = vld1q_f32(s + i * FO_ATTN_HEADS);
            float32x4_t x0 = load4(v, at, f16), x1 = load4(v, at + 4, f16), x2 = load4(v, at + 8, f16), x3 = load4(v, at + 12, f16);
            EACH(STEP)
        }
        EACH(PUT)
#undef GET
#undef STEP
#undef PUT
    }
    for (; d < head_dim; d++)
        for (int h = 0; h < N; h++) {
            float sum = out[h * head_dim + d];
            for (int i = 0; i < n; i++) sum += s[i * FO_ATTN_HEADS + h] * load1(v, (int64_t)i * head_dim + d, f16);
            out[h * head_dim + d] = sum;
        }
}

QK_SLOT(qk_f32, false)
QK_SLOT(qk_f16, true)
PV_SLOT(pv_f32, false)
PV_SLOT(pv_f16, true)

/* The four heads of a position are a register. */
static void softmax(float *s, float *m, float *sum, float *ret_r) {
    float32x4_t before = vld1q_f32(m), now = before, total = vdupq_n_f32(0);
    for (int i = 0; i < FO_ATTN_CHUNK; i++) {
        float32x4_t v = vld1q_f32(s + i * FO_ATTN_HEADS);
        now = vbslq_f32(vcgtq_f32(v, now), v, now); /* as the reference compares: a NaN is passed over */
    }
    for (int i = 0; i < FO_ATTN_CHUNK; i++) {
        float32x4_t p = exp4(vsubq_f32(vld1q_f32(s + i * FO_ATTN_HEADS), now));
        vst1q_f32(s + i * FO_ATTN_HEADS, p);
        total = vaddq_f32(total, p);
    }
    float32x4_t r = exp4(vsubq_f32(before, now));
    vst1q_f32(sum, vfmaq_f32(total, vld1q_f32(sum), r));
    vst1q_f32(ret_r, r);
    vst1q_f32(m, now);
}

void fo_cpu_neon_rows(struct fo_cpu_kernels *k) {
    k->rms_norm = rms_norm;
    k->add = add;
    k->silu_mul = silu_mul;
    k->rope = rope;
    k->to_f16 = to_f16;
    k->scale = scale;
    k->qk[FO_KV_KIND_F32] = qk_f32;
    k->qk[FO_KV_KIND_F16] = qk_f16;
    k->pv[FO_KV_KIND_F32] = pv_f32;
    k->pv[FO_KV_KIND_F16] = pv_f16;
    k->softmax = softmax;
}
#endif
