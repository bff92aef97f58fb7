/* Types of 32 elements a block by batches of activations for AVX-512 with VNNI. What the dots of avx512.c and avx512_legacy.c compute for one
 * row of weights, these compute for 32 rows and up to six tokens at a time, with the same integers and the same floats in the same order, so
 * that a token's numbers do not depend on which of the two computed them. avx512_strip.h tells how a strip lies.
 *
 * VPDPBUSD wants its weights unsigned. Quants with an offset that the dot takes off as a float, by the activations' sum, are so already.
 * Q8_0 and the values of IQ4_NL are raised by 128, and the sum of integers starts with -128 times the activations' sum: the same integer.
 *
 * Order. A dot keeps block b in lane b % 8 and folds the eight lanes at the end of the row; here each class of blocks, b % 8, has sums of its
 * own for every row and token, folded in the same way. A piece of a strip that stays in the first cache is unpacked and all tokens pass it, a
 * class at a time; meanwhile their sums wait in scratch. */
#include "foundry/cpu/avx512_strip.h"

#ifdef HAS_AVX512
enum { CLASSES = 8, PIECE = 16 /* blocks, whole rounds of classes */ };

/* The rows of a block: q[4 columns][row][column]. */
struct block {
    uint8_t q[8][ROWS][4];
    float d[ROWS], m[ROWS];
};

/* scratch: a piece; the sums of a strip's rows for every token and class; what the integers start with, [token][block]. */
struct piece_work {
    struct block w[PIECE];
    float sum[TOKENS][CLASSES][ROWS];
    int32_t start[];
};
_Static_assert(sizeof(struct piece_work) <= FO_GEMM_FIXED_BYTES && TOKENS * 8 * sizeof(int32_t) <= FO_GEMM_BYTES, "scratch");

/* What is added for all quants of a block together. */
enum extra {
    TIMES_SUM,  /* m times the activations' s */
    TWELVE_OFF, /* -12 m times that: of MXFP4 the 12 is beside s, for its d times 12 may overflow */
    STARTED     /* nothing: the integers started with it */
};

INLINE enum extra extra_of(const enum fo_dtype type) {
    return type == FO_Q8_0 || type == FO_IQ4_NL ? STARTED : type == FO_MXFP4 ? TWELVE_OFF : TIMES_SUM;
}

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

/* v, with 16 added to byte i of every word of which bit 4 * `quad` + i is set in `words`. */
INLINE __m512i with_fifths(__m512i v, __m512i words, const int quad) {
    const __m512i bit = _mm512_set1_epi32(quad % 2 ? (int)0x80402010 : 0x08040201);
    const int byte = quad / 2 * 0x01010101;
    const __m128i spread = _mm_setr_epi32(byte, byte + 0x04040404, byte + 0x08080808, byte + 0x0C0C0C0C);
    __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(spread)), bit);
    return _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(16));
}

/* Block `at` bytes into each row. */
INLINE void unpack_block(const enum fo_dtype type, const struct strip *s, size_t at, const int size, struct block *out) {
    const bool five = type == FO_Q5_0 || type == FO_Q5_1, mins = type == FO_Q4_1 || type == FO_Q5_1, coded = type == FO_MXFP4 || type == FO_IQ4_NL;
    const __m512i sign = _mm512_set1_epi8(-128);
    __m512i values = _mm512_broadcast_i32x4(load16(type == FO_MXFP4 ? fo_fp4_values : fo_iq4_values));
    values = type == FO_MXFP4 ? _mm512_add_epi8(values, _mm512_set1_epi8(12)) : _mm512_xor_si512(values, sign);
    for (int g = 0; g < 2; g++) {
        if (type == FO_Q8_0) {
            for (int half = 0; half < 2; half++) {
                struct quads v = quads_of(s, g, at + 2 + (size_t)half * 16);
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) put_quad(out->q[half * 4 + i], g, _mm512_xor_si512(v.q[i], sign));
            }
        } else {
            struct quads v = quads_of(s, g, at + (size_t)size - 16), h = v;
            if (five) h = quads_of(s, g, at + (size_t)size - 20); /* of which the first */
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
                __m512i low = low_nibbles(v.q[i]), high = high_nibbles(v.q[i]);
                if (five) low = with_fifths(low, h.q[0], i), high = with_fifths(high, h.q[0], 4 + i);
                if (coded) low = _mm512_shuffle_epi8(values, low), high = _mm512_shuffle_epi8(values, high);
                put_quad(out->q[i], g, low);
                put_quad(out->q[4 + i], g, high);
            }
        }
        if (type == FO_MXFP4) continue;
        __m512 d = halves_of(s, g, at);
        _mm512_store_ps(out->d + 16 * g, d);
        if (mins) d = halves_of(s, g, at + 2);
        if (extra_of(type) == TIMES_SUM) _mm512_store_ps(out->m + 16 * g, mins ? d : _mm512_mul_ps(d, _mm512_set1_ps(five ? -16 : -8)));
    }
    if (type == FO_MXFP4) {
        put_powers(s, at, out->d, ROWS);
        memcpy(out->m, out->d, sizeof out->m);
    }
}

/* -128 times the sums of a token's blocks, padding included. */
INLINE void put_block_starts(const struct fo_act *a, int64_t t, int32_t *out) {
    const int8_t *q = fo_act_q8_0(a, t).q;
    const __m256i by = _mm256_set1_epi8(-128), zero = _mm256_setzero_si256(); /* 128, unsigned */
#define SUM(i) _mm256_dpbusd_epi32(zero, by, load32(q + b * 32 + (i)*32))
    for (int64_t b = 0; b < fo_act_padded(a->k) / 32; b += 8)
        _mm256_storeu_si256((__m256i *)(void *)(out + b),
                            _mm256_sub_epi32(zero, sums_of_eight(SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5), SUM(6), SUM(7))));
#undef SUM
}

/* --- products ------------------------------------------------------------------------------------------------------------------ */

/* Blocks [b, b + n_blocks) of a row of activations, of which b is a multiple of 8, with tokens t.., added to their sums. `start`,
 * [T][start_stride], counts with STARTED only. */
INLINE void tokens_piece(const enum extra extra, const struct block *w, int b, int n_blocks, const struct fo_act *a, int64_t t,
                         float (*sum)[CLASSES][ROWS], const int32_t *start, size_t start_stride, const int T) {
    const size_t ahead_by = (size_t)T * a->row_bytes;
    const __m512 minus_12 = _mm512_set1_ps(-12);
    const struct fo_act_q8_0 x0 = fo_act_q8_0(a, t), x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2),
                             x3 = fo_act_q8_0(a, t + (T > 3) * 3), x4 = fo_act_q8_0(a, t + (T > 4) * 4), x5 = fo_act_q8_0(a, t + (T > 5) * 5);
    for (int c = 0; c < CLASSES && c < n_blocks; c++) {
#define SUM_LOAD(n)                                                                                                                      \
    __m512 f##n = _mm512_setzero_ps(), g##n = f##n;                                                                                      \
    if (n < T) f##n = _mm512_load_ps(sum[n][c]), g##n = _mm512_load_ps(sum[n][c] + 16);
#define PLACE(n)                                                                                                                         \
    const int8_t *p##n = x##n.q + (b + i) * 32;                                                                                          \
    if (n < T && i % 2 == 0) _mm_prefetch((const char *)p##n + ahead_by, _MM_HINT_T0);
#define START(n)                                                                                                                         \
    __m512i a##n = _mm512_setzero_si512();                                                                                               \
    if (extra == STARTED && n < T) a##n = four(start + n * start_stride + b + i);                                                        \
    __m512i b##n = a##n;
#define SCALE(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        const __m512 d = _mm512_set1_ps(x##n.d[b + i]);                                                                                  \
        if (extra != STARTED) {                                                                                                          \
            __m512 s = _mm512_set1_ps(x##n.s[b + i]);                                                                                    \
            if (extra == TWELVE_OFF) s = _mm512_mul_ps(s, minus_12);                                                                     \
            f##n = _mm512_fmadd_ps(m0, s, f##n);                                                                                         \
            g##n = _mm512_fmadd_ps(m1, s, g##n);                                                                                         \
        }                                                                                                                                \
        f##n = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a##n), _mm512_mul_ps(d0, d), f##n);                                                    \
        g##n = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b##n), _mm512_mul_ps(d1, d), g##n);                                                    \
    }
#define SUM_STORE(n) if (n < T) _mm512_store_ps(sum[n][c], f##n), _mm512_store_ps(sum[n][c] + 16, g##n);
        EACH_TOKEN(SUM_LOAD)
        for (int i = c; i < n_blocks; i += CLASSES) {
            EACH_TOKEN(PLACE)
            EACH_TOKEN(START)
            RUN(w[i].q, 8)
            const __m512 d0 = _mm512_load_ps(w[i].d), d1 = _mm512_load_ps(w[i].d + 16);
            __m512 m0 = d0, m1 = d1;
            if (extra == TIMES_SUM) m0 = _mm512_load_ps(w[i].m), m1 = _mm512_load_ps(w[i].m + 16);
            EACH_TOKEN(SCALE)
        }
        EACH_TOKEN(SUM_STORE)
#undef SUM_LOAD
#undef PLACE
#undef START
#undef SCALE
#undef SUM_STORE
    }
}

#define PIECE_TOKENS(name, call)                                                                                                         \
    static __attribute__((noinline)) void name(const struct block *w, int b, int n_blocks, const struct fo_act *a, int64_t t, int n_t,   \
                                               float (*sum)[CLASSES][ROWS], const int32_t *start, size_t start_stride) {                 \
        WITH_T(n_t, call)                                                                                                                \
    }
#define CALL_TIMES_SUM(T) tokens_piece(TIMES_SUM, w, b, n_blocks, a, t, sum, start, start_stride, T)
#define CALL_TWELVE_OFF(T) tokens_piece(TWELVE_OFF, w, b, n_blocks, a, t, sum, start, start_stride, T)
#define CALL_STARTED(T) tokens_piece(STARTED, w, b, n_blocks, a, t, sum, start, start_stride, T)
PIECE_TOKENS(tokens_times_sum, CALL_TIMES_SUM)
PIECE_TOKENS(tokens_twelve_off, CALL_TWELVE_OFF)
PIECE_TOKENS(tokens_started, CALL_STARTED)

/* Folds a token's classes. */
INLINE void put_pieces(float (*sum)[CLASSES][ROWS], float *y, int rows) {
    float(*f)[ROWS] = *sum;
    _Alignas(64) float out[ROWS];
    for (int h = 0; h < ROWS; h += 16) {
#define L(i) _mm512_load_ps(f[i] + h)
        __m512 even = _mm512_add_ps(_mm512_add_ps(L(0), L(4)), _mm512_add_ps(L(2), L(6)));
        __m512 odd = _mm512_add_ps(_mm512_add_ps(L(1), L(5)), _mm512_add_ps(L(3), L(7)));
        _mm512_store_ps(out + h, _mm512_add_ps(even, odd));
#undef L
    }
    memcpy(y, out, (size_t)rows * sizeof *y);
}

/* --- the slots ----------------------------------------------------------------------------------------------------------------- */

/* Sums of the strip's rows for tokens [t0, t0 + n_t). */
INLINE void strip_pieces(const enum fo_dtype type, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct piece_work *k) {
    const int size = block_bytes(type);
    const int all = (int)(a->k / 32);
    const size_t n_starts = (size_t)fo_act_padded(a->k) / 32;
    memset(k->sum, 0, (size_t)n_t * sizeof *k->sum);
    for (int b = 0; b < all; b += PIECE) {
        const int n = all - b < PIECE ? all - b : PIECE;
        for (int i = 0; i < n; i++) {
            const size_t at = (size_t)(b + i) * (size_t)size;
            strip_ahead(s, at, size, ROWS);
            unpack_block(type, s, at, size, &k->w[i]);
        }
#define PART(t, n_part)                                                                                                                  \
    (extra_of(type) == STARTED      ? tokens_started                                                                                     \
     : extra_of(type) == TWELVE_OFF ? tokens_twelve_off                                                                                  \
                                    : tokens_times_sum)(k->w, b, n, a, t0 + (t), n_part, k->sum + (t), k->start + (size_t)(t)*n_starts, n_starts)
        BY_TOKENS(n_t, PART)
#undef PART
    }
}

INLINE void begin_pieces(const enum fo_dtype type, const struct fo_act *a, int t, int n_t, struct piece_work *k) {
    if (extra_of(type) != STARTED) return;
    for (int i = 0; i < n_t; i++) put_block_starts(a, t + i, k->start + (size_t)i * (size_t)fo_act_padded(a->k) / 32);
}

GEMM_SLOT(gemm_q4_0, FO_Q4_0, piece_work, begin_pieces, strip_pieces, put_pieces)
GEMM_SLOT(gemm_q4_1, FO_Q4_1, piece_work, begin_pieces, strip_pieces, put_pieces)
GEMM_SLOT(gemm_q5_0, FO_Q5_0, piece_work, begin_pieces, strip_pieces, put_pieces)
GEMM_SLOT(gemm_q5_1, FO_Q5_1, piece_work, begin_pieces, strip_pieces, put_pieces)
GEMM_SLOT(gemm_q8_0, FO_Q8_0, piece_work, begin_pieces, strip_pieces, put_pieces)
GEMM_SLOT(gemm_iq4_nl, FO_IQ4_NL, piece_work, begin_pieces, strip_pieces, put_pieces)
GEMM_SLOT(gemm_mxfp4, FO_MXFP4, piece_work, begin_pieces, strip_pieces, put_pieces)

void fo_cpu_avx512_gemm(struct fo_cpu_kernels *k) {
    k->gemm[FO_Q4_0] = gemm_q4_0;
    k->gemm[FO_Q4_1] = gemm_q4_1;
    k->gemm[FO_Q5_0] = gemm_q5_0;
    k->gemm[FO_Q5_1] = gemm_q5_1;
    k->gemm[FO_Q8_0] = gemm_q8_0;
    k->gemm[FO_IQ4_NL] = gemm_iq4_nl;
    k->gemm[FO_MXFP4] = gemm_mxfp4;
    fo_cpu_avx512_gemm_k(k);
}
#endif
