/* Row ops for AVX2 + FMA + F16C; see avx2.c. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <math.h>
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/ops.h"

static void rms_norm(const float *x, const float *weight, int64_t k, float eps, float *out) {
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 32 <= k; i += 32) {
        __m256 p = _mm256_loadu_ps(x + i), q = _mm256_loadu_ps(x + i + 8), r = _mm256_loadu_ps(x + i + 16), s = _mm256_loadu_ps(x + i + 24);
        a = _mm256_fmadd_ps(p, p, a);
        b = _mm256_fmadd_ps(q, q, b);
        c = _mm256_fmadd_ps(r, r, c);
        d = _mm256_fmadd_ps(s, s, d);
    }
    float sum = fold(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
    for (int64_t j = i; j < k; j++) sum += x[j] * x[j];
    float by = 1.0f / sqrtf(sum / (float)k + eps);
    __m256 v = _mm256_set1_ps(by);
    for (i = 0; i + 8 <= k; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), v), _mm256_loadu_ps(weight + i)));
    for (; i < k; i++) out[i] = x[i] * by * weight[i];
}

INLINE __m256 silu8(__m256 g) {
    __m256 one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(g, _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), g))));
}

static void silu_mul(const float *gate, const float *up, int64_t k, float *out) {
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(silu8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    if (i == k) return;
    float rest[8] = { 0 };
    memcpy(rest, gate + i, (size_t)(k - i) * sizeof *rest);
    _mm256_storeu_ps(rest, silu8(_mm256_loadu_ps(rest)));
    for (int j = 0; i + j < k; j++) out[i + j] = rest[j] * up[i + j];
}

static void rope(float *x, int n_head, const struct fo_rope *r, const float *cosine, const float *sine) {
    const int half = r->n_rot / 2;
    for (int h = 0; h < n_head; h++, x += r->head_dim) {
        int i = 0;
        if (r->kind == FO_ROPE_PAIRS) {
            for (; i + 4 <= half; i += 4) { /* cos and sin twice each; a pair's partner by a swap; minus for the first of each pair */
                __m128 c = _mm_loadu_ps(cosine + i), s = _mm_loadu_ps(sine + i);
                __m256 cc = _mm256_setr_m128(_mm_unpacklo_ps(c, c), _mm_unpackhi_ps(c, c)), ss = _mm256_setr_m128(_mm_unpacklo_ps(s, s), _mm_unpackhi_ps(s, s));
                __m256 v = _mm256_loadu_ps(x + 2 * i);
                _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, cc), _mm256_mul_ps(_mm256_permute_ps(v, 0xB1), ss)));
            }
        } else {
            for (; i + 8 <= half; i += 8) {
                __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i), a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
                _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
                _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
            }
        }
        for (; i < half; i++) {
            float *p = r->kind == FO_ROPE_PAIRS ? x + 2 * i : x + i, *q = r->kind == FO_ROPE_PAIRS ? p + 1 : p + half, a = *p, b = *q;
            *p = a * cosine[i] - b * sine[i];
            *q = a * sine[i] + b * cosine[i];
        }
    }
}

static void scale(float *x, int64_t n, float by) {
    int64_t i = 0;
    __m256 v = _mm256_set1_ps(by);
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), v));
    for (; i < n; i++) x[i] *= by;
}

void fo_cpu_avx2_rows(struct fo_cpu_kernels *k) {
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->rope = rope;
    k->scale = scale;
    fo_cpu_avx2_attn(&k->attn);
}
#endif
