/* Floats (F32, F16, BF16) by batches of activations for AVX2 + FMA + F16C, with the bits that dot_floats of avx2.c gives: elements 16 i .. 16 i + 7
 * of a row go to one vector of sums and 16 i + 8 .. 16 i + 15 to another, in order, and the two are added and folded at the row's end.
 *
 * Eight rows of weights, as floats and a piece of K at a time, lie in the first cache, and all tokens pass them. A tile is four rows and
 * three tokens: twelve sums, three vectors of activations and one of weights are the sixteen registers, and twelve products take seven loads.
 * It goes over its piece twice, for the one kind of sums and then for the other. Between pieces the sums wait in scratch, as floats without
 * loss. The weights are copied even where they are floats already: rows of a power of two in bytes would fall on one another in the cache. */
#include "foundry/cpu/avx2.h"
#include "foundry/cpu/strip.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
enum {
    ROWS = 8,
    PIECE = 640, /* most columns of a piece: with three tokens' beside them 28 KiB */
    TOKENS = FO_GEMM_TOKENS /* that share one copy of the weights */
};

/* Of a token: both vectors of sums of every row. */
struct sums {
    float f[ROWS][2][8];
};

struct work {
    float w[ROWS * PIECE];
    struct sums sum[TOKENS];
};
_Static_assert(sizeof(struct work) <= FO_GEMM_FIXED_BYTES, "scratch");

/* Adds `n` columns, a multiple of 16, of four rows from w on and T tokens from x on to sums of rows r.. ; `start`: the first columns of all. */
INLINE void tile(const float *w, int n, const float *x, size_t x_stride, struct sums *sum, const int r, const bool start, const int T) {
    for (int half = 0; half < 2; half++) {
        const float *p = w + 8 * half, *x0 = x + 8 * half, *x1 = x0 + (T > 1 ? x_stride : 0), *x2 = x1 + (T > 2 ? x_stride : 0);
#define EACH_ROW(X, t) X(0, t) X(1, t) X(2, t) X(3, t)
#define EACH_SUM(X) EACH_ROW(X, 0) EACH_ROW(X, 1) EACH_ROW(X, 2)
#define OPEN(i, t)                                                                                                                       \
    __m256 f##i##t = _mm256_setzero_ps();                                                                                                \
    if (t < T && !start) f##i##t = _mm256_load_ps(sum[t].f[r + (i)][half]);
#define ADD(i, t) if (t < T) f##i##t = _mm256_fmadd_ps(v, u##t, f##i##t);
#define ROW(i)                                                                                                                           \
    {                                                                                                                                    \
        __m256 v = _mm256_load_ps(p + (i)*n + c);                                                                                        \
        ADD(i, 0) ADD(i, 1) ADD(i, 2)                                                                                                    \
    }
#define CLOSE(i, t) if (t < T) _mm256_store_ps(sum[t].f[r + (i)][half], f##i##t);
        EACH_SUM(OPEN)
        for (int c = 0; c < n; c += 16) {
            __m256 u0 = _mm256_loadu_ps(x0 + c), u1 = T > 1 ? _mm256_loadu_ps(x1 + c) : u0, u2 = T > 2 ? _mm256_loadu_ps(x2 + c) : u0;
            ROW(0) ROW(1) ROW(2) ROW(3)
        }
        EACH_SUM(CLOSE)
#undef EACH_ROW
#undef EACH_SUM
#undef OPEN
#undef ADD
#undef ROW
#undef CLOSE
    }
}

/* The tiles of all tokens from x on with a piece. */
INLINE void pass(const float *w, int n, const float *x, size_t x_stride, int n_t, struct sums *sum, const bool start) {
    for (int t = 0; t < n_t;) {
        const int left = n_t - t, T = left == 4 || left == 2 ? 2 : left == 1 ? 1 : 3;
        for (int r = 0; r < ROWS; r += 4) {
            const float *from = x + (size_t)t * x_stride;
            if (T == 3) tile(w + r * n, n, from, x_stride, sum + t, r, start, 3);
            if (T == 2) tile(w + r * n, n, from, x_stride, sum + t, r, start, 2);
            if (T == 1) tile(w + r * n, n, from, x_stride, sum + t, r, start, 1);
        }
        t += T;
    }
}

/* Folds a token's eight rows, each as `fold` does. */
INLINE __m256 fold_rows(const __m256 v[ROWS]) {
    __m256 s[4];
    for (int i = 0; i < 4; i++) s[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(s[0], s[1]), _mm256_unpackhi_ps(s[0], s[1]));
    __m256 b = _mm256_add_ps(_mm256_unpacklo_ps(s[2], s[3]), _mm256_unpackhi_ps(s[2], s[3]));
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
}

/* The columns behind the last whole sixteen, which belong to one kind of sums if they are eight and to the other if they are fewer; zeros fill
 * up the latter. */
struct rest {
    bool eight, fewer;
    __m256 w[ROWS][2];
};

INLINE __m256 first_floats(const float *p, int n) {
    _Alignas(32) float v[8] = { 0 };
    memcpy(v, p, (size_t)n * sizeof *p);
    return _mm256_load_ps(v);
}

INLINE struct rest rest_of(const enum float_kind kind, const struct strip *s, int64_t k) {
    const int n = (int)(k % 16), size = kind == F32 ? 4 : 2;
    struct rest rest = { .eight = n >= 8, .fewer = n % 8 != 0 };
    if (!n) return rest;
    for (int r = 0; r < ROWS; r++) {
        const unsigned char *w = s->row[r] + k / 16 * 16 * size;
        unsigned char last[32] = { 0 };
        if (rest.eight) rest.w[r][0] = load_floats(w, 0, kind), w += 8 * size;
        memcpy(last, w, (size_t)(n % 8 * size));
        rest.w[r][1] = load_floats(last, 0, kind);
    }
    return rest;
}

/* Finishes a token's sums, into the first of them; x are its activations from the rest on. */
INLINE void fold_sums(struct sums *sum, const struct rest *rest, const float *x, int n) {
    __m256 v[ROWS], x0 = _mm256_setzero_ps(), x1 = x0;
    if (rest->eight) x0 = _mm256_loadu_ps(x);
    if (rest->fewer) x1 = first_floats(x + n / 8 * 8, n % 8);
    for (int r = 0; r < ROWS; r++) {
        __m256 a = _mm256_load_ps(sum->f[r][0]), b = _mm256_load_ps(sum->f[r][1]);
        if (rest->eight) a = _mm256_fmadd_ps(rest->w[r][0], x0, a);
        if (rest->fewer) b = _mm256_fmadd_ps(rest->w[r][1], x1, b);
        v[r] = _mm256_add_ps(a, b);
    }
    _mm256_store_ps(sum->f[0][0], fold_rows(v));
}

/* Sums of the strip's rows for tokens [t0, t0 + n_t). */
INLINE void strip_floats(const enum float_kind kind, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct work *work) {
    const int64_t k = a->k, whole = k / 16 * 16;
    const size_t size = kind == F32 ? 4 : 2;
    const float *x = a->x + t0 * k;
    const int64_t n_pieces = (whole + PIECE - 1) / PIECE, piece = n_pieces ? (whole / 16 + n_pieces - 1) / n_pieces * 16 : 0;
    if (!whole) memset(work->sum, 0, (size_t)n_t * sizeof *work->sum);
    for (int64_t c = 0; c < whole; c += piece) {
        const int n = (int)(whole - c < piece ? whole - c : piece);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < n; i += 16) {
                _mm_prefetch((const char *)s->row[r] + s->next + (size_t)(c + i) * size, _MM_HINT_T1); /* the strip behind this one */
                _mm256_store_ps(work->w + r * n + i, load_floats(s->row[r], c + i, kind));
                _mm256_store_ps(work->w + r * n + i + 8, load_floats(s->row[r], c + i + 8, kind));
            }
        if (c == 0)
            pass(work->w, n, x + c, (size_t)k, n_t, work->sum, true);
        else
            pass(work->w, n, x + c, (size_t)k, n_t, work->sum, false);
    }
    const struct rest rest = rest_of(kind, s, k);
    for (int t = 0; t < n_t; t++) fold_sums(&work->sum[t], &rest, x + t * k + whole, (int)(k % 16));
}

INLINE void put_sums(const struct sums *sum, float *y, int rows) {
    memcpy(y, sum->f[0][0], (size_t)rows * sizeof *y);
}

GEMM_SLOT(gemm_f32, F32, work, NOTHING, strip_floats, put_sums)
GEMM_SLOT(gemm_f16, F16, work, NOTHING, strip_floats, put_sums)
GEMM_SLOT(gemm_bf16, BF16, work, NOTHING, strip_floats, put_sums)

void fo_cpu_avx2_gemm_f(struct fo_cpu_kernels *k) {
    k->gemm[FO_F32] = gemm_f32;
    k->gemm[FO_F16] = gemm_f16;
    k->gemm[FO_BF16] = gemm_bf16;
    k->gemm_from[FO_F32] = k->gemm_from[FO_F16] = k->gemm_from[FO_BF16] = 9; /* from memory the dot is ahead up to 8: 27 GFLOP/s against 25, F32 */
}
#endif
