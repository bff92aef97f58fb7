/* Row ops for SSSE3 and SSE4.1; see sse.c. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include <math.h>

#include "foundry/cpu/sse.h"
#include "foundry/ops.h"

static void rms_norm(const float *x, const float *weight, int64_t k, float eps, float *out) {
    __m128 a = _mm_setzero_ps(), b = a, c = a, d = a;
    int64_t i = 0;
#define SQUARE(sum, at) sum = _mm_add_ps(sum, _mm_mul_ps(_mm_loadu_ps(x + (at)), _mm_loadu_ps(x + (at))));
    for (; i + 16 <= k; i += 16) {
        SQUARE(a, i) SQUARE(b, i + 4) SQUARE(c, i + 8) SQUARE(d, i + 12)
    }
#undef SQUARE
    float sum = fold(_mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d)));
    for (int64_t j = i; j < k; j++) sum += x[j] * x[j];
    float by = 1.0f / sqrtf(sum / (float)k + eps);
    __m128 v = _mm_set1_ps(by);
    for (i = 0; i + 4 <= k; i += 4) _mm_storeu_ps(out + i, _mm_mul_ps(_mm_mul_ps(_mm_loadu_ps(x + i), v), _mm_loadu_ps(weight + i)));
    for (; i < k; i++) out[i] = x[i] * by * weight[i];
}

static void add(const float *a, const float *b, int64_t k, float *out) {
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) _mm_storeu_ps(out + i, _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i)));
    for (; i < k; i++) out[i] = a[i] + b[i];
}

INLINE __m128 silu4(__m128 g) {
    return _mm_div_ps(g, _mm_add_ps(_mm_set1_ps(1.0f), exp4(_mm_xor_ps(g, _mm_set1_ps(-0.0f)))));
}

static void silu_mul(const float *gate, const float *up, int64_t k, float *out) {
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) _mm_storeu_ps(out + i, _mm_mul_ps(silu4(_mm_loadu_ps(gate + i)), _mm_loadu_ps(up + i)));
    for (; i < k; i++) out[i] = _mm_cvtss_f32(silu4(_mm_set1_ps(gate[i]))) * up[i];
}

static void rope(float *x, int n_head, const struct fo_rope *r, const float *cosine, const float *sine) {
    const int half = r->n_rot / 2;
    const bool pairs = r->kind == FO_ROPE_PAIRS;
    for (int h = 0; h < n_head; h++, x += r->head_dim) {
        int i = 0;
        for (; i + 4 <= half; i += 4) {
            float *p = pairs ? x + 2 * i : x + i, *q = pairs ? p + 4 : p + half;
            __m128 c = _mm_loadu_ps(cosine + i), s = _mm_loadu_ps(sine + i), u = _mm_loadu_ps(p), v = _mm_loadu_ps(q);
            __m128 a = pairs ? _mm_shuffle_ps(u, v, 0x88) : u, b = pairs ? _mm_shuffle_ps(u, v, 0xDD) : v;
            u = _mm_sub_ps(_mm_mul_ps(a, c), _mm_mul_ps(b, s));
            v = _mm_add_ps(_mm_mul_ps(a, s), _mm_mul_ps(b, c));
            _mm_storeu_ps(p, pairs ? _mm_unpacklo_ps(u, v) : u);
            _mm_storeu_ps(q, pairs ? _mm_unpackhi_ps(u, v) : v);
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
    __m128 v = _mm_set1_ps(by);
    for (; i + 4 <= n; i += 4) _mm_storeu_ps(x + i, _mm_mul_ps(_mm_loadu_ps(x + i), v));
    for (; i < n; i++) x[i] *= by;
}

void fo_cpu_sse_rows(struct fo_cpu_kernels *k) {
    k->rms_norm = rms_norm;
    k->add = add;
    k->silu_mul = silu_mul;
    k->rope = rope;
    k->scale = scale;
    fo_cpu_sse_attn(&k->attn);
}
#endif
