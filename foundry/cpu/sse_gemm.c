/* Weights by batches of activations for SSSE3 and SSE4.1: prefill. As avx2_gemm.c, and here too with the bits that the overlay's own dots give.
 *
 * A strip of sixteen rows is unpacked once into scratch, four columns of a row to a dword (Q8_0: two, as words) and the dwords of the rows side by side:
 * lanes are rows, and four registers of sums are the sixteen of one token. Each step loads weights, meets them with four activations of the token in
 * every lane and adds; sums of products stay in 16 bits as long as they fit: eight steps for quants up to 15 (8 * 2 * 15 * 127 = 30480), four up to 31,
 * two up to 63. One token fills the registers, because a product overwrites its weights; so a block of the strip passes TOKENS tokens, one by one,
 * while it is in the first cache, and their running sums wait in memory.
 *
 * Order. A dot of blocks of 32 keeps block b in lane b % 4 and folds the four at the end of the row; here each class of blocks, b % 4, has sums of its
 * own for every row and token, folded in the same way. A dot of blocks of 256 adds block after block; so does this. Integers are exact in any order. */
#include "foundry/cpu/kernels.h"

#if defined(__SSSE3__) && defined(__SSE4_1__)
#include "foundry/cpu/sse.h"
#include "foundry/quant.h"

enum { ROWS = 16, TOKENS = 16, CLASSES = 4 };

/* Sixteen rows of a block: q[4 columns][row][column]. */
struct nibbles {
    uint8_t q[8][ROWS][4];
    float d[ROWS], m[ROWS];
};
struct words {
    int16_t q[16][ROWS][2];
    float d[ROWS];
};
/* Scales stand twice, one for each of the two sums of a dword; mins (or offsets) in pairs of neighbouring sub-blocks. */
struct super {
    uint8_t q[64][ROWS][4];
    int16_t scale[16][ROWS][2], min[8][ROWS][2];
    float d[ROWS], d_min[ROWS];
};
_Static_assert(8 * sizeof(struct nibbles) <= FO_GEMM_BYTES && 8 * sizeof(struct words) <= FO_GEMM_BYTES && sizeof(struct super) <= FO_GEMM_BYTES,
               "scratch of 256 columns");

#define EACH_ROWS(X) X(0) X(1) X(2) X(3)

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

/* Four rows of four dwords, transposed: column i goes to `to` + i * ROWS dwords. */
INLINE void put_columns(__m128i a, __m128i b, __m128i c, __m128i d, void *to) {
    __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b), cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
    __m128i *out = to;
    _mm_store_si128(out, _mm_unpacklo_epi64(ab0, cd0));
    _mm_store_si128(out + 4, _mm_unpackhi_epi64(ab0, cd0));
    _mm_store_si128(out + 8, _mm_unpacklo_epi64(ab1, cd1));
    _mm_store_si128(out + 12, _mm_unpackhi_epi64(ab1, cd1));
}

/* Four dwords of all rows: row(r) gives them in order. */
#define PUT(row, to)                                                                                                                     \
    put_columns(row(0), row(1), row(2), row(3), to);                                                                                     \
    put_columns(row(4), row(5), row(6), row(7), (unsigned char *)(to) + 16);                                                             \
    put_columns(row(8), row(9), row(10), row(11), (unsigned char *)(to) + 32);                                                           \
    put_columns(row(12), row(13), row(14), row(15), (unsigned char *)(to) + 48);

/* The rows of a strip; behind the last one it stands again, and what becomes of it is not used. */
struct strip {
    const unsigned char *row[ROWS];
};

/* The halves at byte `at` of all rows. */
INLINE void put_halves(const struct strip *s, size_t at, float *to) {
    for (int r = 0; r < ROWS; r += 4) {
#define UPPER(i) (int)((uint32_t)half_of(s->row[r + (i)] + at) << 16)
        _mm_store_ps(to + r, halves4(_mm_setr_epi32(UPPER(0), UPPER(1), UPPER(2), UPPER(3))));
#undef UPPER
    }
}

INLINE void unpack_nibbles(const bool mins, const struct strip *s, int n_blocks, struct nibbles *out) {
    const size_t size = mins ? sizeof(struct fo_block_q4_1) : sizeof(struct fo_block_q4_0), at = mins ? 4 : 2;
    const __m128i low = _mm_set1_epi8(15);
    for (int b = 0; b < n_blocks; b++, out++) {
        const size_t block = (size_t)b * size;
#define LOW(r) _mm_and_si128(load(s->row[r] + block + at), low)
#define HIGH(r) _mm_and_si128(_mm_srli_epi16(load(s->row[r] + block + at), 4), low)
        PUT(LOW, out->q[0])
        PUT(HIGH, out->q[4])
#undef LOW
#undef HIGH
        put_halves(s, block, out->d);
        if (mins) put_halves(s, block + 2, out->m);
    }
}

INLINE void unpack_bytes(const bool eight, const struct strip *s, int n_blocks, struct words *out) {
    (void)eight;
    for (int b = 0; b < n_blocks; b++, out++) {
        const size_t block = (size_t)b * sizeof(struct fo_block_q8_0);
        for (int i = 0; i < 4; i++) {
#define EIGHT(r) _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(s->row[r] + block + 2 + 8 * i)))
            PUT(EIGHT, out->q[4 * i])
#undef EIGHT
        }
        put_halves(s, block, out->d);
    }
}

INLINE void put_scale(struct super *out, int j, int r, int scale) {
    out->scale[j][r][0] = out->scale[j][r][1] = (int16_t)scale;
}

INLINE void unpack_q45_k(const bool five, const struct strip *s, int n_blocks, struct super *out) {
    const size_t size = five ? sizeof(struct fo_block_q5_k) : sizeof(struct fo_block_q4_k);
    const __m128i low = _mm_set1_epi8(15), fifth = _mm_set1_epi8(16);
    for (int b = 0; b < n_blocks; b++, out++) {
        for (int j = 0; j < 8; j++) { /* 16 bytes of quants: halves j % 2 of sub-blocks 2 (j / 2) and the next */
            const int up = 4 - j / 2 * 2;
            const size_t qs = (size_t)b * size + (five ? offsetof(struct fo_block_q5_k, qs) : offsetof(struct fo_block_q4_k, qs)) + (size_t)(16 * j);
            const size_t qh = (size_t)b * size + offsetof(struct fo_block_q5_k, qh) + (size_t)(j % 2 * 16);
            const __m128i left = _mm_cvtsi32_si128(up < 0 ? 0 : up), right = _mm_cvtsi32_si128(up < 0 ? -up : 0);
            const __m128i left_high = _mm_cvtsi32_si128(up < 1 ? 0 : up - 1), right_high = _mm_cvtsi32_si128(up < 1 ? 1 - up : 0);
#define BIT(r, by_left, by_right) _mm_and_si128(_mm_srl_epi16(_mm_sll_epi16(load(s->row[r] + qh), by_left), by_right), fifth)
#define LOW(r) _mm_or_si128(_mm_and_si128(load(s->row[r] + qs), low), five ? BIT(r, left, right) : _mm_setzero_si128())
#define HIGH(r) _mm_or_si128(_mm_and_si128(_mm_srli_epi16(load(s->row[r] + qs), 4), low), five ? BIT(r, left_high, right_high) : _mm_setzero_si128())
            PUT(LOW, out->q[j / 2 * 16 + j % 2 * 4])
            PUT(HIGH, out->q[j / 2 * 16 + 8 + j % 2 * 4])
#undef BIT
#undef LOW
#undef HIGH
        }
        put_halves(s, (size_t)b * size, out->d);
        put_halves(s, (size_t)b * size + 2, out->d_min);
        for (int r = 0; r < ROWS; r++) {
            const struct fo_block_q4_k *p = (const void *)(s->row[r] + (size_t)b * size); /* scales lie in the same place in both */
            for (int j = 0; j < 8; j++) {
                uint8_t scale, min;
                fo_q4_k_scale_min(p->scales, j, &scale, &min);
                put_scale(out, j, r, scale);
                out->min[j / 2][r][j % 2] = min;
            }
        }
    }
}

INLINE void unpack_q6_k(const bool six, const struct strip *s, int n_blocks, struct super *out) {
    (void)six;
    const __m128i low = _mm_set1_epi8(15), high = _mm_set1_epi8(0x30);
    for (int b = 0; b < n_blocks; b++, out++) {
        const size_t block = (size_t)b * sizeof(struct fo_block_q6_k);
        for (int i = 0; i < 4; i++) { /* sixteen elements of each quarter of a half */
            const size_t ql = block + offsetof(struct fo_block_q6_k, ql) + (size_t)(i / 2 * 64 + i % 2 * 16);
            const size_t qh = block + offsetof(struct fo_block_q6_k, qh) + (size_t)(i / 2 * 32 + i % 2 * 16);
            uint8_t(*to)[ROWS][4] = out->q + i / 2 * 32 + i % 2 * 4;
#define QUARTER(nibble, bits) _mm_or_si128(_mm_and_si128(nibble, low), _mm_and_si128(bits, high))
#define R0(r) QUARTER(load(s->row[r] + ql), _mm_slli_epi16(load(s->row[r] + qh), 4))
#define R1(r) QUARTER(load(s->row[r] + ql + 32), _mm_slli_epi16(load(s->row[r] + qh), 2))
#define R2(r) QUARTER(_mm_srli_epi16(load(s->row[r] + ql), 4), load(s->row[r] + qh))
#define R3(r) QUARTER(_mm_srli_epi16(load(s->row[r] + ql + 32), 4), _mm_srli_epi16(load(s->row[r] + qh), 2))
            PUT(R0, to[0])
            PUT(R1, to[8])
            PUT(R2, to[16])
            PUT(R3, to[24])
#undef QUARTER
#undef R0
#undef R1
#undef R2
#undef R3
        }
        put_halves(s, block + offsetof(struct fo_block_q6_k, d), out->d);
        for (int r = 0; r < ROWS; r++) {
            const struct fo_block_q6_k *p = (const void *)(s->row[r] + block);
            for (int j = 0; j < 16; j++) {
                put_scale(out, j, r, p->scales[j]);
                out->min[j / 2][r][j % 2] = (int16_t)(-32 * p->scales[j]);
            }
        }
    }
}

/* --- blocks of 32 -------------------------------------------------------------------------------------------------------------- */

/* Keeps the additions in the order in which they are written: gcc turns the sum of many steps into a tree, whose leaves it then spills. */
#define KEEP(r) __asm__("" : "+x"(a##r));

/* One step of four columns, the first of which starts the sums a of rows 4 r and up. */
#define PRODUCT(r) _mm_maddubs_epi16(load_aligned(q + 4 * (r)), x)
#define START(r) a##r = PRODUCT(r);
#define NEXT(r) a##r = _mm_add_epi16(a##r, PRODUCT(r));
#define STEP(step, rows, v, i)                                                                                                           \
    {                                                                                                                                    \
        const uint8_t(*q)[4] = rows;                                                                                                     \
        const __m128i x = FOUR(v, i);                                                                                                    \
        EACH_ROWS(step)                                                                                                                  \
        EACH_ROWS(KEEP)                                                                                                                  \
    }

/* Folds one token's classes into y. */
INLINE void put_classes(float f[CLASSES][ROWS], float *y, int n_rows) {
    _Alignas(16) float sum[ROWS];
    for (int r = 0; r < ROWS; r += 4) {
#define L(i) _mm_load_ps(f[i] + r)
        _mm_store_ps(sum + r, _mm_add_ps(_mm_add_ps(L(0), L(2)), _mm_add_ps(L(1), L(3))));
#undef L
    }
    memcpy(y, sum, (size_t)n_rows * sizeof *y);
}

/* Adds a block's sums to those of a token's class: d * (sum * x.d - 8 x.s), or with the min m d * (sum * x.d) + m * x.s. */
INLINE void tokens_nibbles(const bool mins, const struct nibbles *w, int n_blocks, const struct fo_act *act, int64_t t, float *y, size_t y_stride,
                           int n_rows, const int T) {
    const __m128i one = _mm_set1_epi16(1);
    struct fo_act_q8_0 xs[TOKENS];
    _Alignas(16) float f[TOKENS][CLASSES][ROWS] = { { { 0 } } };
    for (int n = 0; n < T; n++) xs[n] = fo_act_q8_0(act, t + n);
    for (int b = 0; b < n_blocks; b++)
        for (int n = 0; n < T; n++) {
            const __m128i lo = load_aligned(xs[n].q + b * FO_QK), hi = load_aligned(xs[n].q + b * FO_QK + 16);
            __m128i a0, a1, a2, a3;
            STEP(START, w[b].q[0], lo, 0) STEP(NEXT, w[b].q[1], lo, 1) STEP(NEXT, w[b].q[2], lo, 2) STEP(NEXT, w[b].q[3], lo, 3)
            STEP(NEXT, w[b].q[4], hi, 0) STEP(NEXT, w[b].q[5], hi, 1) STEP(NEXT, w[b].q[6], hi, 2) STEP(NEXT, w[b].q[7], hi, 3)
            const __m128 x_d = _mm_set1_ps(xs[n].d[b]), s = _mm_set1_ps(mins ? xs[n].s[b] : 8 * xs[n].s[b]);
            float *to = f[n][b % CLASSES];
#define SCALE(r)                                                                                                                         \
    {                                                                                                                                    \
        __m128 v = _mm_mul_ps(_mm_cvtepi32_ps(_mm_madd_epi16(a##r, one)), x_d), d = _mm_load_ps(w[b].d + 4 * (r));                       \
        v = mins ? _mm_add_ps(_mm_mul_ps(d, v), _mm_mul_ps(_mm_load_ps(w[b].m + 4 * (r)), s)) : _mm_mul_ps(d, _mm_sub_ps(v, s));         \
        _mm_store_ps(to + 4 * (r), _mm_add_ps(_mm_load_ps(to + 4 * (r)), v));                                                            \
    }
            EACH_ROWS(SCALE)
#undef SCALE
        }
    for (int n = 0; n < T; n++) put_classes(f[n], y + (size_t)n * y_stride, n_rows);
}

INLINE void tokens_words(const bool eight, const struct words *w, int n_blocks, const struct fo_act *act, int64_t t, float *y, size_t y_stride, int n_rows,
                         const int T) {
    (void)eight;
    struct fo_act_q8_0 xs[TOKENS];
    _Alignas(16) float f[TOKENS][CLASSES][ROWS] = { { { 0 } } };
    for (int n = 0; n < T; n++) xs[n] = fo_act_q8_0(act, t + n);
    for (int b = 0; b < n_blocks; b++)
        for (int n = 0; n < T; n++) {
            __m128i a0 = _mm_setzero_si128(), a1 = a0, a2 = a0, a3 = a0;
#define ADD(r) a##r = _mm_add_epi32(a##r, _mm_madd_epi16(load_aligned(q + 4 * (r)), x));
#define PAIR(i)                                                                                                                          \
    {                                                                                                                                    \
        const int16_t(*q)[2] = w[b].q[4 * at + (i)];                                                                                     \
        const __m128i x = FOUR(v, i);                                                                                                    \
        EACH_ROWS(ADD)                                                                                                                   \
        EACH_ROWS(KEEP)                                                                                                                  \
    }
            for (int at = 0; at < 4; at++) {
                const __m128i v = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(xs[n].q + b * FO_QK + 8 * at)));
                PAIR(0) PAIR(1) PAIR(2) PAIR(3)
            }
#undef ADD
#undef PAIR
            const __m128 x_d = _mm_set1_ps(xs[n].d[b]);
            float *to = f[n][b % CLASSES];
#define SCALE(r)                                                                                                                         \
    _mm_store_ps(to + 4 * (r), _mm_add_ps(_mm_load_ps(to + 4 * (r)), _mm_mul_ps(_mm_load_ps(w[b].d + 4 * (r)), _mm_mul_ps(_mm_cvtepi32_ps(a##r), x_d))));
            EACH_ROWS(SCALE)
#undef SCALE
        }
    for (int n = 0; n < T; n++) put_classes(f[n], y + (size_t)n * y_stride, n_rows);
}

/* --- blocks of 256 ------------------------------------------------------------------------------------------------------------- */

/* Of Q4_K, Q5_K (mins with the activations' sums of 32) or Q6_K (offsets with the sums of 16, which belong to the sums themselves). */
INLINE void tokens_super(const enum fo_dtype type, const struct super *w, int n_blocks, const struct fo_act *act, int64_t t, float *y, size_t y_stride,
                         int n_rows, const int T) {
    const bool mins = type != FO_Q6_K;
    struct fo_act_q8_k xs[TOKENS];
    _Alignas(16) float f[TOKENS][ROWS] = { { 0 } };
    for (int n = 0; n < T; n++) xs[n] = fo_act_q8_k(act, t + n);
    for (int b = 0; b < n_blocks; b++, w++)
        for (int n = 0; n < T; n++) {
            const int8_t *quants = xs[n].q + b * FO_QK_K;
            const __m128i *sums = (const __m128i *)(const void *)(mins ? xs[n].sum32 + b * 8 : xs[n].sum16 + b * 16);
            __m128i u0 = _mm_setzero_si128(), u1 = u0, u2 = u0, u3 = u0;
            __m128i m0 = u0, m1 = u0, m2 = u0, m3 = u0;
#define MIN(r) m##r = _mm_add_epi32(m##r, _mm_madd_epi16(load_aligned(w->min[4 * at + i] + 4 * (r)), s));
#define MINS(j)                                                                                                                          \
    {                                                                                                                                    \
        const int i = j;                                                                                                                 \
        const __m128i s = FOUR(v, j);                                                                                                    \
        EACH_ROWS(MIN)                                                                                                                   \
    }
            for (int at = 0; at < (mins ? 1 : 2); at++) {
                const __m128i v = load_aligned(sums + at);
                MINS(0) MINS(1) MINS(2) MINS(3)
            }
            if (!mins) u0 = m0, u1 = m1, u2 = m2, u3 = m3;
#undef MIN
#undef MINS
/* Sums of products to sums of what their sub-block, number j, makes of them. */
#define WIDEN(r) u##r = _mm_add_epi32(u##r, _mm_madd_epi16(a##r, load_aligned(w->scale[j] + 4 * (r))));
            for (int at = 0; at < 64; at += 8) {
                const __m128i lo = load_aligned(quants + 4 * at), hi = load_aligned(quants + 4 * at + 16);
                __m128i a0, a1, a2, a3;
                int j = type == FO_Q6_K ? at / 4 : at / 8;
                STEP(START, w->q[at], lo, 0) STEP(NEXT, w->q[at + 1], lo, 1)
                if (type == FO_Q6_K) {
                    EACH_ROWS(WIDEN)
                    STEP(START, w->q[at + 2], lo, 2)
                } else {
                    STEP(NEXT, w->q[at + 2], lo, 2)
                }
                STEP(NEXT, w->q[at + 3], lo, 3)
                if (type != FO_Q4_K) {
                    EACH_ROWS(WIDEN)
                    j += type == FO_Q6_K;
                    STEP(START, w->q[at + 4], hi, 0)
                } else {
                    STEP(NEXT, w->q[at + 4], hi, 0)
                }
                STEP(NEXT, w->q[at + 5], hi, 1)
                if (type == FO_Q6_K) {
                    EACH_ROWS(WIDEN)
                    STEP(START, w->q[at + 6], hi, 2)
                } else {
                    STEP(NEXT, w->q[at + 6], hi, 2)
                }
                STEP(NEXT, w->q[at + 7], hi, 3)
                EACH_ROWS(WIDEN)
            }
#undef WIDEN
            const __m128 x_d = _mm_set1_ps(xs[n].d[b]);
#define SCALE(r)                                                                                                                         \
    {                                                                                                                                    \
        __m128 v = _mm_mul_ps(_mm_cvtepi32_ps(u##r), _mm_load_ps(w->d + 4 * (r)));                                                       \
        if (mins) v = _mm_sub_ps(v, _mm_mul_ps(_mm_cvtepi32_ps(m##r), _mm_load_ps(w->d_min + 4 * (r))));                                 \
        _mm_store_ps(f[n] + 4 * (r), _mm_add_ps(_mm_load_ps(f[n] + 4 * (r)), _mm_mul_ps(v, x_d)));                                       \
    }
            EACH_ROWS(SCALE)
#undef SCALE
        }
    for (int n = 0; n < T; n++) memcpy(y + (size_t)n * y_stride, f[n], (size_t)n_rows * sizeof *y);
}

/* --- the slots ----------------------------------------------------------------------------------------------------------------- */

#define GEMM_SLOT(name, part, block, unpack, unpack_kind, tokens, kind)                                                                  \
    static void name(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int n, float *y, size_t y_stride, \
                     void *scratch) {                                                                                                    \
        const int n_blocks = (int)(a->k / (block));                                                                                      \
        struct part *p = scratch;                                                                                                        \
        for (int64_t r = 0; r < n_rows; r += ROWS) {                                                                                     \
            const int rows = n_rows - r < ROWS ? (int)(n_rows - r) : ROWS;                                                               \
            struct strip s;                                                                                                              \
            for (int i = 0; i < ROWS; i++) s.row[i] = w + (size_t)(r + (i < rows ? i : rows - 1)) * w_row_bytes;                         \
            unpack(unpack_kind, &s, n_blocks, p);                                                                                        \
            for (int t = 0; t < n; t += TOKENS)                                                                                          \
                tokens(kind, p, n_blocks, a, t, y + (size_t)t * y_stride + r, y_stride, rows, n - t < TOKENS ? n - t : TOKENS);          \
        }                                                                                                                                \
    }
GEMM_SLOT(gemm_q4_0, nibbles, FO_QK, unpack_nibbles, false, tokens_nibbles, false)
GEMM_SLOT(gemm_q4_1, nibbles, FO_QK, unpack_nibbles, true, tokens_nibbles, true)
GEMM_SLOT(gemm_q8_0, words, FO_QK, unpack_bytes, true, tokens_words, true)
GEMM_SLOT(gemm_q4_k, super, FO_QK_K, unpack_q45_k, false, tokens_super, FO_Q4_K)
GEMM_SLOT(gemm_q5_k, super, FO_QK_K, unpack_q45_k, true, tokens_super, FO_Q5_K)
GEMM_SLOT(gemm_q6_k, super, FO_QK_K, unpack_q6_k, true, tokens_super, FO_Q6_K)

void fo_cpu_sse_gemm(struct fo_cpu_kernels *k) {
    k->gemm[FO_Q4_0] = gemm_q4_0;
    k->gemm[FO_Q4_1] = gemm_q4_1;
    k->gemm[FO_Q8_0] = gemm_q8_0;
    k->gemm[FO_Q4_K] = gemm_q4_k;
    k->gemm[FO_Q5_K] = gemm_q5_k;
    k->gemm[FO_Q6_K] = gemm_q6_k;
    /* From memory, 2,048 columns, the dots and the strips give alike (GOP/s at 8, 16 tokens): Q4_0 65, 61 and 75; Q8_0 45, 44 and 51; Q4_K 65, 56 and 70;
     * Q5_K 62, 50 and 68; Q6_K 54, 25 and 52. */
    for (int type = 0; type < FO_N_DTYPES; type++) k->gemm_from[type] = 9;
    k->gemm_from[FO_Q6_K] = 17;
}
#endif
