/* Activations and dots for x86-64-v2, SSSE3 and SSE4.1: Nehalem to Ivy Bridge, and every Atom, whose 128-bit registers have neither AVX's forms
 * nor fused products nor conversions of halves. What can be learned of the forms is told in avx2.c; here is what differs.
 *
 * Sixteen registers of 128 bits, and operations that overwrite their first operand, leave room for one row of weights and four lanes; blocks of 32
 * come by fours (sse_legacy.c), blocks of 256 are summed as integers (sse_256.h). For batches weights are unpacked once (sse_gemm.c). */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/sse.h"
#include "foundry/cpu/tile.h"
#include "foundry/quant.h"

/* --- activations --------------------------------------------------------------------------------------------------------------- */

INLINE __m128i magnitudes(const float *x) {
    return _mm_and_si128(load(x), _mm_set1_epi32(0x7FFFFFFF));
}

/* As fo_abs_max: magnitudes compared as integers, and NaN when one is not finite. */
INLINE float largest(const float *x, const int n) {
    __m128i a = magnitudes(x), b = magnitudes(x + 4);
    for (int i = 8; i < n; i += 8) a = _mm_max_epi32(a, magnitudes(x + i)), b = _mm_max_epi32(b, magnitudes(x + i + 4));
    a = _mm_max_epi32(a, b);
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1));
    int top = _mm_cvtsi128_si32(a);
    float f;
    memcpy(&f, &top, sizeof f);
    return top >= 0x7F800000 ? NAN : f;
}

/* 16 floats to 16 integers in order. */
INLINE __m128i round16(const float *x, float inv) {
    if (inv == 0.0f) return _mm_setzero_si128(); /* one may be a NaN */
    const __m128 by = _mm_set1_ps(inv);
#define ROUND(i) _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + 4 * (i)), by))
    return _mm_packs_epi16(_mm_packs_epi32(ROUND(0), ROUND(1)), _mm_packs_epi32(ROUND(2), ROUND(3)));
#undef ROUND
}

INLINE int sum16(__m128i q) {
    return fold_int(_mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), q), _mm_set1_epi16(1)));
}

INLINE void store(void *to, __m128i v) {
    _mm_storeu_si128(to, v);
}

static void quant_q8_0(const float *x, int64_t k, struct fo_act_q8_0 out) {
    for (int64_t b = 0; b < k / 32; b++, x += 32) {
        float inv, d = fo_act_scale(largest(x, 32), &inv);
        __m128i lo = round16(x, inv), hi = round16(x + 16, inv);
        store(out.q + b * 32, lo);
        store(out.q + b * 32 + 16, hi);
        store(out.p + fo_act_place(b), lo);
        store(out.p + fo_act_place(b) + FO_ACT_HALF, hi);
        out.d[b] = d;
        out.s[b] = d * (float)(sum16(lo) + sum16(hi));
    }
    fo_act_pad(out, k);
}

static void quant_q8_k(const float *x, int64_t k, struct fo_act_q8_k out) {
    for (int64_t b = 0; b < k / 256; b++) {
        float inv;
        out.d[b] = fo_act_scale(largest(x + b * 256, 256), &inv);
        for (int64_t j = b * 8; j < b * 8 + 8; j++) {
            __m128i lo = round16(x + j * 32, inv), hi = round16(x + j * 32 + 16, inv);
            store(out.q + j * 32, lo);
            store(out.q + j * 32 + 16, hi);
            out.sum16[2 * j] = (int16_t)sum16(lo);
            out.sum16[2 * j + 1] = (int16_t)sum16(hi);
            out.sum32[j] = (int16_t)(out.sum16[2 * j] + out.sum16[2 * j + 1]);
        }
    }
}

/* --- floats -------------------------------------------------------------------------------------------------------------------- */

enum float_kind { F32, F16, BF16 };

INLINE __m128 load4(const unsigned char *w, int64_t i, const enum float_kind kind) {
    if (kind == F32) return _mm_loadu_ps((const float *)(const void *)w + i);
    __m128i upper = _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(const void *)(w + i * 2)));
    return kind == F16 ? halves4(upper) : _mm_castsi128_ps(upper);
}

/* One row with T = 1 or 2 rows of activations, which are k floats apart: elements 4i.. go to one of four accumulators in turn, and what is left
 * of the row below 4 elements, from padded copies, to the last. */
INLINE void row_floats(const enum float_kind kind, const unsigned char *w, const float *x, int64_t k, const unsigned char *w_rest,
                       const float (*x_rest)[4], float *y, size_t y_stride, const int T) {
    const int64_t size = kind == F32 ? 4 : 2;
#define EACH2(X) X(0) X(1)
#define ZERO(n) __m128 a##n = _mm_setzero_ps(), b##n = a##n, c##n = a##n, d##n = a##n;
#define ADD(n, to, v, xs) if (n < T) to##n = _mm_add_ps(to##n, _mm_mul_ps(v, xs));
#define STEP(to, at)                                                                                                                     \
    {                                                                                                                                    \
        const __m128 v = load4(w, i + (at), kind);                                                                                       \
        ADD(0, to, v, _mm_loadu_ps(x + i + (at))) ADD(1, to, v, _mm_loadu_ps(x + k + i + (at)))                                          \
    }
#define OUT(n) if (n < T) y[n * y_stride] = fold(_mm_add_ps(_mm_add_ps(a##n, b##n), _mm_add_ps(c##n, d##n)));
    EACH2(ZERO)
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        ahead(w + i * size);
        STEP(a, 0) STEP(b, 4) STEP(c, 8) STEP(d, 12)
    }
    if (i + 4 <= k) STEP(a, 0)
    if (i + 8 <= k) STEP(b, 4)
    if (i + 12 <= k) STEP(c, 8)
    if (k % 4) {
        const __m128 v = load4(w_rest, 0, kind);
        ADD(0, d, v, _mm_loadu_ps(x_rest[0])) ADD(1, d, v, _mm_loadu_ps(x_rest[1]))
    }
    EACH2(OUT)
#undef EACH2
#undef ZERO
#undef ADD
#undef STEP
#undef OUT
}

INLINE void dot_floats(const enum float_kind kind, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t,
                       float *y, size_t y_stride, const int T) {
    const int64_t k = a->k, whole = k / 4 * 4, size = kind == F32 ? 4 : 2;
    const float *x = a->x + t * k;
    float x_rest[FO_TILE][4] = { { 0 } };
    for (int j = 0; j < T; j++)
        if (k > whole) memcpy(x_rest[j], x + j * k + whole, (size_t)(k - whole) * sizeof *x);
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        unsigned char w_rest[16] = { 0 };
        if (k > whole) memcpy(w_rest, w + whole * size, (size_t)((k - whole) * size));
        float *to = y + r;
        row_floats(kind, w, x, k, w_rest, x_rest, to, y_stride, T < 2 ? T : 2);
        if (T > 2) row_floats(kind, w, x + 2 * k, k, w_rest, x_rest + 2, to + 2 * y_stride, y_stride, T - 2);
    }
}
DOT_SLOT(dot_f32, dot_floats, F32)
DOT_SLOT(dot_f16, dot_floats, F16)
DOT_SLOT(dot_bf16, dot_floats, BF16)

bool fo_cpu_sse(struct fo_cpu_kernels *k) {
    k->isa = "sse";
    k->quant_q8_0 = quant_q8_0;
    k->quant_q8_k = quant_q8_k;
    k->dot[FO_F32] = dot_f32;
    k->dot[FO_F16] = dot_f16;
    k->dot[FO_BF16] = dot_bf16;
    fo_cpu_sse_legacy(k);
    fo_cpu_sse_k(k);
    fo_cpu_sse_iq(k);
    fo_cpu_sse_gemm(k);
    fo_cpu_sse_rows(k);
    return true;
}
#else
bool fo_cpu_sse(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
#endif
