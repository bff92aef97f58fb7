/* Row ops for NEON; see neon.c. */
#include "foundry/cpu/kernels.h"

#if defined(__aarch64__)
#include <math.h>

#include "foundry/cpu/neon.h"
#include "foundry/ops.h"

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

static void scale(float *x, int64_t n, float by) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vmulq_n_f32(vld1q_f32(x + i), by));
    for (; i < n; i++) x[i] *= by;
}

void fo_cpu_neon_rows(struct fo_cpu_kernels *k) {
    k->rms_norm = rms_norm;
    k->add = add;
    k->silu_mul = silu_mul;
    k->rope = rope;
    k->scale = scale;
    fo_cpu_neon_attn(&k->attn);
}
#endif
