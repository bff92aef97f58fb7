/* Strips of rows of weights for the batched products of AVX2 (16 rows; of floats, 8) and AVX-512 (32): what they share whatever their width.
 * Nothing where the compiler does not make AVX2, FMA and F16C. */
#pragma once
#include "foundry/cpu/avx.h"
#include "foundry/cpu/kernels.h"
#include "foundry/quant.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

/* The rows of a strip; behind the last one it stands again, and what becomes of it is not used. */
struct strip {
    const unsigned char *row[32];
    size_t next; /* bytes to the strip behind this one */
};

/* `n` rows, of which the matrix has n_rows left. */
INLINE struct strip strip_of(const unsigned char *w, size_t row_bytes, int64_t n_rows, const int n) {
    struct strip s;
    for (int r = 0; r < n; r++) s.row[r] = w + (size_t)(r < n_rows ? r : n_rows - 1) * row_bytes;
    s.next = (size_t)n * row_bytes;
    return s;
}

/* Ahead of a thread's loads, weights of the next strip go to the second cache, for so many streams are more than the hardware's prefetchers
 * follow. What measured best differs: of short blocks, the same block of every row as this one is unpacked; of those of 256, which are several
 * lines a row, the rows' bytes in their order, a few lines before each group of tokens, because a whole strip's block at once holds up the
 * loads behind it (at eight tokens Q4_K lost a fifth of its speed from memory, Q6_K two fifths). */
INLINE void strip_ahead(const struct strip *s, size_t at, const int bytes, const int n) {
    for (int r = 0; r < n; r++)
        for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)(s->row[r] + s->next + at + (size_t)i), _MM_HINT_T1);
}

/* What of the next strip, whose rows lie one behind the other, is still to be fetched beside a block: so many bytes for each group of tokens. */
struct fetch {
    const char *next, *end;
    size_t step;
};

INLINE struct fetch fetch_of(const struct strip *s, size_t first, size_t bytes, int n_groups) {
    const char *from = (const char *)s->row[0] + s->next + first;
    return (struct fetch){ .next = from, .end = from + bytes, .step = (bytes / (size_t)n_groups + 64) / 64 * 64 };
}

INLINE void fetch_some(struct fetch *f) {
    const char *to = f->next + f->step < f->end ? f->next + f->step : f->end;
    for (; f->next < to; f->next += 64) _mm_prefetch(f->next, _MM_HINT_T1);
}

/* What quants of a type of 256 in a file stand for is so much less; 0 where mins, or nothing, are subtracted instead. */
INLINE int offset_of(const enum fo_dtype type) {
    return type == FO_Q6_K ? 32 : type == FO_Q3_K ? 4 : 0;
}

/* The powers of `n` rows of MXFP4, whose exponents are `at` bytes into them. */
INLINE void put_powers(const struct strip *s, size_t at, float *to, const int n) {
    for (int r = 0; r < n; r += 8) {
#define E(i) s->row[r + (i)][at]
        _mm256_store_ps(to + r, powers(_mm256_setr_epi32(E(0), E(1), E(2), E(3), E(4), E(5), E(6), E(7))));
#undef E
    }
}

/* Mins of two neighbouring sub-blocks side by side, of sixteen rows. */
INLINE void put_beside(int16_t (*to)[2], __m128i even, __m128i odd) {
    _mm256_store_si256((__m256i *)(void *)to, _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(even, odd)));
    _mm256_store_si256((__m256i *)(void *)to[8], _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(even, odd)));
}

/* Sixteen rows of sixteen bytes to sixteen columns. */
INLINE void turn_bytes(__m128i v[16]) {
    for (int stage = 0; stage < 4; stage++) {
        __m128i u[16];
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
            u[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 8]);
            u[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 8]);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) v[i] = u[i];
    }
}

/* A gemm slot. Of tokens [t, t + n_t): `begin` prepares the scratch, `sums` makes the sums of a strip's rows, `put` stores a token's. */
#define NOTHING(...) (void)0
#define GEMM_SLOT(name, type, work, begin, sums, put)                                                                                    \
    static void name(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int n, float *y, size_t y_stride, \
                     void *scratch) {                                                                                                    \
        struct work *k = scratch;                                                                                                        \
        for (int t = 0; t < n; t += TOKENS) {                                                                                            \
            const int n_t = n - t < TOKENS ? n - t : TOKENS;                                                                             \
            begin(type, a, t, n_t, k);                                                                                                   \
            for (int64_t r = 0; r < n_rows; r += ROWS) {                                                                                 \
                const int rows = n_rows - r < ROWS ? (int)(n_rows - r) : ROWS;                                                           \
                const struct strip s = strip_of(w + (size_t)r * w_row_bytes, w_row_bytes, rows, ROWS);                                   \
                sums(type, &s, a, t, n_t, k);                                                                                            \
                for (int i = 0; i < n_t; i++) put(k->sum + i, y + (size_t)(t + i) * y_stride + r, rows);                                 \
            }                                                                                                                            \
        }                                                                                                                                \
    }
#endif
