/* Row ops and attention for SSSE3 and SSE4.1; see sse.c. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include <math.h>

#include "foundry/cpu/sse.h"
#include "foundry/cpu/tile.h"
#include "foundry/ops.h"

/* ref.c's ref_exp on four lanes, operation for operation. */
INLINE __m128 exp4(__m128 x) {
    const __m128 round = _mm_set1_ps(12582912.0f);
    __m128 zero = _mm_cmplt_ps(x, _mm_set1_ps(-87.33f));
    x = _mm_min_ps(_mm_set1_ps(88.37f), x); /* in this order a NaN stays */
    __m128 shifted = _mm_add_ps(_mm_mul_ps(x, _mm_set1_ps(1.44269504f)), round), n = _mm_sub_ps(shifted, round);
    __m128 r = _mm_sub_ps(_mm_sub_ps(x, _mm_mul_ps(n, _mm_set1_ps(0.693359375f))), _mm_mul_ps(n, _mm_set1_ps(-2.12194440e-4f)));
    __m128 p = _mm_set1_ps(1.98412698e-4f);
#define TERM(c) p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(c));
    TERM(1.38888889e-3f) TERM(8.33333333e-3f) TERM(4.16666667e-2f) TERM(1.66666667e-1f) TERM(0.5f) TERM(1.0f) TERM(1.0f)
#undef TERM
    __m128i two_n = _mm_slli_epi32(_mm_add_epi32(_mm_castps_si128(shifted), _mm_set1_epi32(127)), 23);
    return _mm_andnot_ps(zero, _mm_mul_ps(p, _mm_castsi128_ps(two_n)));
}

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

/* fo_f32_to_f16 on four lanes: a half that will be subnormal is rounded by an addition to 1/2, whose last place is its own. */
INLINE __m128i halves_of(__m128 f) {
    const __m128i v = _mm_castps_si128(f), x = _mm_and_si128(v, _mm_set1_epi32(0x7FFFFFFF)), half = _mm_set1_epi32(0x3F000000);
    const __m128i sign = _mm_and_si128(_mm_srli_epi32(v, 16), _mm_set1_epi32(0x8000)), shifted = _mm_srli_epi32(x, 13);
    __m128i normal = _mm_add_epi32(x, _mm_add_epi32(_mm_set1_epi32(0xFFF - (112 << 23)), _mm_and_si128(shifted, _mm_set1_epi32(1))));
    __m128i small = _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(x), _mm_castsi128_ps(half))), half);
    __m128i h = choose(_mm_cmplt_epi32(x, _mm_set1_epi32(0x38800000)), small, _mm_srli_epi32(normal, 13));
    h = choose(_mm_cmpgt_epi32(x, _mm_set1_epi32(0x477FEFFF)), _mm_set1_epi32(0x7C00), h);
    __m128i nan = _mm_or_si128(_mm_set1_epi32(0x7E00), _mm_and_si128(shifted, _mm_set1_epi32(0x3FF)));
    return _mm_or_si128(sign, choose(_mm_cmpgt_epi32(x, _mm_set1_epi32(0x7F800000)), nan, h));
}

static void to_f16(const float *in, uint16_t *out, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm_packus_epi32(halves_of(_mm_loadu_ps(in + i)), halves_of(_mm_loadu_ps(in + i + 4))));
    for (; i < n; i++) out[i] = (uint16_t)_mm_cvtsi128_si32(halves_of(_mm_set_ss(in[i])));
}

static void scale(float *x, int64_t n, float by) {
    int64_t i = 0;
    __m128 v = _mm_set1_ps(by);
    for (; i + 4 <= n; i += 4) _mm_storeu_ps(x + i, _mm_mul_ps(_mm_loadu_ps(x + i), v));
    for (; i < n; i++) x[i] *= by;
}

/* The four heads of a position are a register. */
static void softmax(float *s, float *m, float *sum, float *ret_r) {
    const __m128 before = _mm_loadu_ps(m);
    __m128 now = before, total = _mm_setzero_ps();
    for (int i = 0; i < FO_ATTN_CHUNK; i++) now = _mm_max_ps(_mm_loadu_ps(s + i * FO_ATTN_HEADS), now); /* in this order a NaN is passed over */
    for (int i = 0; i < FO_ATTN_CHUNK; i++) {
        __m128 p = exp4(_mm_sub_ps(_mm_loadu_ps(s + i * FO_ATTN_HEADS), now));
        _mm_storeu_ps(s + i * FO_ATTN_HEADS, p);
        total = _mm_add_ps(total, p);
    }
    __m128 r = exp4(_mm_sub_ps(before, now));
    _mm_storeu_ps(sum, _mm_add_ps(_mm_mul_ps(_mm_loadu_ps(sum), r), total));
    _mm_storeu_ps(ret_r, r);
    _mm_storeu_ps(m, now);
}

void fo_cpu_sse_rows(struct fo_cpu_kernels *k) {
    k->rms_norm = rms_norm;
    k->add = add;
    k->silu_mul = silu_mul;
    k->rope = rope;
    k->to_f16 = to_f16;
    k->scale = scale;
    k->softmax = softmax;
}
#endif
