/* Row ops and attention for AVX2 + FMA + F16C; see avx2.c. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <math.h>
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/cpu/tile.h"
#include "foundry/ops.h"

_Static_assert(FO_ATTN_HEADS == 4, "half a register holds the scores of a position");

/* ref.c's ref_exp on eight lanes, with fused products. */
INLINE __m256 exp8(__m256 x) {
    const __m256 round = _mm256_set1_ps(12582912.0f);
    __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33f), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(88.37f), x); /* in this order a NaN stays */
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), round), n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x));
    __m256 p = _mm256_set1_ps(1.98412698e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.38888889e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.33333333e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.16666667e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.66666667e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i two_n = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(zero, _mm256_mul_ps(p, _mm256_castsi256_ps(two_n)));
}

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

static void to_f16(const float *in, uint16_t *out, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(void *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) out[i] = (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(in[i]), _MM_FROUND_TO_NEAREST_INT));
}

static void scale(float *x, int64_t n, float by) {
    int64_t i = 0;
    __m256 v = _mm256_set1_ps(by);
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), v));
    for (; i < n; i++) x[i] *= by;
}

/* --- attention ----------------------------------------------------------------------------------------------------------------- */

INLINE __m256 load8(const void *p, int64_t i, const bool half) {
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i)));
    return _mm256_loadu_ps((const float *)p + i);
}

INLINE float load1(const void *p, int64_t i, const bool half) {
    return half ? _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(((const uint16_t *)p)[i]))) : ((const float *)p)[i];
}

/* One position at a time: K is loaded once for all heads, whose sums are folded together into the four scores of the position. */
INLINE void qk(const bool f16, const float *q, int head_dim, const void *k, int n, float by, float *s, const int N) {
    for (int i = 0; i < n; i++) {
        int64_t row = (int64_t)i * head_dim;
        int d = 0;
#define ZERO(h) __m256 a##h = _mm256_setzero_ps();
#define STEP(h) if (h < N) a##h = _mm256_fmadd_ps(_mm256_loadu_ps(q + h * head_dim + d), v, a##h);
        EACH(ZERO)
        for (; d + 8 <= head_dim; d += 8) {
            __m256 v = load8(k, row + d, f16);
            EACH(STEP)
        }
#undef ZERO
#undef STEP
        __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a0, a1), _mm256_hadd_ps(a2, a3));
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
        for (; d < head_dim; d++) {
            __m128 qs = _mm_setr_ps(q[d], N > 1 ? q[head_dim + d] : 0, N > 2 ? q[2 * head_dim + d] : 0, N > 3 ? q[3 * head_dim + d] : 0);
            sum = _mm_fmadd_ps(qs, _mm_set1_ps(load1(k, row + d, f16)), sum);
        }
        _mm_storeu_ps(s + i * FO_ATTN_HEADS, _mm_mul_ps(sum, _mm_set1_ps(by)));
    }
}

/* 16 dimensions of all heads stay in registers while the positions pass. */
INLINE void pv(const bool f16, const float *s, int head_dim, const void *v, int n, float *out, const int N) {
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) {
#define GET(h) __m256 a##h = _mm256_setzero_ps(), b##h = a##h; if (h < N) a##h = _mm256_loadu_ps(out + h * head_dim + d), b##h = _mm256_loadu_ps(out + h * head_dim + d + 8);
#define STEP(h) if (h < N) { __m256 p = _mm256_broadcast_ss(s + i * FO_ATTN_HEADS + h); a##h = _mm256_fmadd_ps(p, x, a##h); b##h = _mm256_fmadd_ps(p, y, b##h); }
#define PUT(h) if (h < N) _mm256_storeu_ps(out + h * head_dim + d, a##h), _mm256_storeu_ps(out + h * head_dim + d + 8, b##h);
        EACH(GET)
        for (int i = 0; i < n; i++) {
            __m256 x = load8(v, (int64_t)i * head_dim + d, f16), y = load8(v, (int64_t)i * head_dim + d + 8, f16);
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

/* Two positions of four heads a register; even and odd positions are summed apart and joined at the end. */
static void softmax(float *s, float *m, float *sum, float *ret_r) {
    __m256 top = _mm256_loadu_ps(s);
    for (int i = 8; i < FO_ATTN_CHUNK * FO_ATTN_HEADS; i += 8) top = _mm256_max_ps(_mm256_loadu_ps(s + i), top);
    __m128 before = _mm_loadu_ps(m);
    __m128 now = _mm_max_ps(_mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1)), before);
    __m256 both = _mm256_setr_m128(now, now), total = _mm256_setzero_ps();
    for (int i = 0; i < FO_ATTN_CHUNK * FO_ATTN_HEADS; i += 8) {
        __m256 p = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + i), both));
        _mm256_storeu_ps(s + i, p);
        total = _mm256_add_ps(total, p);
    }
    __m128 r = _mm256_castps256_ps128(exp8(_mm256_castps128_ps256(_mm_sub_ps(before, now))));
    __m128 add = _mm_add_ps(_mm256_castps256_ps128(total), _mm256_extractf128_ps(total, 1));
    _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_loadu_ps(sum), r, add));
    _mm_storeu_ps(ret_r, r);
    _mm_storeu_ps(m, now);
}

void fo_cpu_avx2_rows(struct fo_cpu_kernels *k) {
    k->rms_norm = rms_norm;
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
