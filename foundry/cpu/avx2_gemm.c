/* Weights by batches of activations for AVX2 + FMA: prefill. What the dots of avx2.c compute for one row of weights, these compute for
 * sixteen rows and three tokens at a time, with the same integers and the same floats in the same order, so that a token's numbers do
 * not depend on which of the two computed them.
 *
 * A strip of sixteen rows is unpacked once into scratch, four columns of a row to a dword and the dwords of the rows side by side:
 * lanes are rows. vpmaddubsw meets it with four activations of a token in every lane, and sums of products stay in 16 bits as long as
 * they fit: eight steps for quants up to 15 (8 * 2 * 15 * 127 = 30480), four up to 31, two up to 63. Bytes (Q8_0) are two planes of
 * nibbles, the high one counting 16 times.
 *
 * Order. A dot of blocks of 32 keeps block b in lane b % 8 and folds the eight lanes at the end of the row; here each class of blocks,
 * b % 8, has sums of its own for every row and token, folded in the same way. A dot of blocks of 256 adds block after block; so does
 * this. Integers are exact in any order. */
#include "foundry/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <string.h>

#include "foundry/cpu/avx2.h"
#include "foundry/quant.h"

enum { ROWS = 16, TOKENS = 3, CLASSES = 8 };

/* Sixteen rows of a block: q[4 columns][row][column]. */
struct nibbles {
    uint8_t q[8][ROWS][4];
    float d[ROWS], m[ROWS];
};
struct bytes {
    uint8_t high[8][ROWS][4], low[8][ROWS][4];
    float d[ROWS];
};
/* Scales stand twice, one for each of the two sums of a dword; mins (or offsets) in pairs of neighbouring sub-blocks. */
struct super {
    uint8_t q[64][ROWS][4];
    int16_t scale[16][ROWS][2], min[8][ROWS][2];
    float d[ROWS], d_min[ROWS];
};
_Static_assert(8 * sizeof(struct nibbles) <= FO_GEMM_BYTES && 8 * sizeof(struct bytes) <= FO_GEMM_BYTES && sizeof(struct super) <= FO_GEMM_BYTES,
               "scratch of 256 columns");

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

/* Eight rows of eight dwords, transposed: column i goes to `to` + i * ROWS dwords. */
INLINE void put_columns(__m256i a, __m256i b, __m256i c, __m256i d, __m256i e, __m256i f, __m256i g, __m256i h, void *to) {
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    __m256i ef0 = _mm256_unpacklo_epi32(e, f), ef1 = _mm256_unpackhi_epi32(e, f);
    __m256i gh0 = _mm256_unpacklo_epi32(g, h), gh1 = _mm256_unpackhi_epi32(g, h);
    __m256i p0 = _mm256_unpacklo_epi64(ab0, cd0), p1 = _mm256_unpackhi_epi64(ab0, cd0);
    __m256i p2 = _mm256_unpacklo_epi64(ab1, cd1), p3 = _mm256_unpackhi_epi64(ab1, cd1);
    __m256i q0 = _mm256_unpacklo_epi64(ef0, gh0), q1 = _mm256_unpackhi_epi64(ef0, gh0);
    __m256i q2 = _mm256_unpacklo_epi64(ef1, gh1), q3 = _mm256_unpackhi_epi64(ef1, gh1);
    __m256i *out = to;
    _mm256_store_si256(out, _mm256_permute2x128_si256(p0, q0, 0x20));
    _mm256_store_si256(out + 2, _mm256_permute2x128_si256(p1, q1, 0x20));
    _mm256_store_si256(out + 4, _mm256_permute2x128_si256(p2, q2, 0x20));
    _mm256_store_si256(out + 6, _mm256_permute2x128_si256(p3, q3, 0x20));
    _mm256_store_si256(out + 8, _mm256_permute2x128_si256(p0, q0, 0x31));
    _mm256_store_si256(out + 10, _mm256_permute2x128_si256(p1, q1, 0x31));
    _mm256_store_si256(out + 12, _mm256_permute2x128_si256(p2, q2, 0x31));
    _mm256_store_si256(out + 14, _mm256_permute2x128_si256(p3, q3, 0x31));
}

/* Thirty-two columns of all rows: row(r) gives them in order. */
#define PUT(row, to)                                                                                                                     \
    put_columns(row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7), to);                                                     \
    put_columns(row(8), row(9), row(10), row(11), row(12), row(13), row(14), row(15), (unsigned char *)(to) + 32);

/* The rows of a strip; behind the last one it stands again, and what becomes of it is not used. */
struct strip {
    const unsigned char *row[ROWS];
};

INLINE __m256i nibbles32(const uint8_t *qs) {
    __m128i v = load16(qs);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), _mm256_set1_epi8(15));
}

INLINE void unpack_nibbles(const bool mins, const struct strip *s, int n_blocks, struct nibbles *out) {
    const int size = mins ? sizeof(struct fo_block_q4_1) : sizeof(struct fo_block_q4_0), at = mins ? 4 : 2;
    for (int b = 0; b < n_blocks; b++, out++) {
#define ROW(r) nibbles32(s->row[r] + b * size + at)
        PUT(ROW, out->q)
#undef ROW
        for (int r = 0; r < ROWS; r++) {
            uint16_t h[2];
            memcpy(h, s->row[r] + b * size, mins ? 4 : 2);
            out->d[r] = half_to_f32(h[0]);
            out->m[r] = mins ? half_to_f32(h[1]) : out->d[r] * -8.0f;
        }
    }
}

INLINE void unpack_bytes(const bool eight, const struct strip *s, int n_blocks, struct bytes *out) {
    (void)eight;
    const __m256i low = _mm256_set1_epi8(15), offset = _mm256_set1_epi8(-128);
    for (int b = 0; b < n_blocks; b++, out++) {
#define Q(r) _mm256_xor_si256(load(s->row[r] + b * (int)sizeof(struct fo_block_q8_0) + 2), offset)
#define HIGH(r) _mm256_and_si256(_mm256_srli_epi16(Q(r), 4), low)
#define LOW(r) _mm256_and_si256(Q(r), low)
        PUT(HIGH, out->high)
        PUT(LOW, out->low)
#undef Q
#undef HIGH
#undef LOW
        for (int r = 0; r < ROWS; r++) {
            uint16_t h;
            memcpy(&h, s->row[r] + b * (int)sizeof(struct fo_block_q8_0), sizeof h);
            out->d[r] = half_to_f32(h);
        }
    }
}

INLINE void put_scale(struct super *out, int j, int r, int scale) {
    out->scale[j][r][0] = out->scale[j][r][1] = (int16_t)scale;
}

INLINE void unpack_q45_k(const bool five, const struct strip *s, int n_blocks, struct super *out) {
    const size_t size = five ? sizeof(struct fo_block_q5_k) : sizeof(struct fo_block_q4_k);
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    for (int b = 0; b < n_blocks; b++, out++) {
#define BLOCK(r) (s->row[r] + (size_t)b * size)
#define QS(r) (five ? ((const struct fo_block_q5_k *)(const void *)BLOCK(r))->qs : ((const struct fo_block_q4_k *)(const void *)BLOCK(r))->qs)
#define BIT(r, shift) (five ? _mm256_and_si256(shift(load(((const struct fo_block_q5_k *)(const void *)BLOCK(r))->qh)), fifth) : _mm256_setzero_si256())
#define LOW(r) _mm256_or_si256(_mm256_and_si256(load(QS(r) + 32 * J), low), BIT(r, UP))
#define HIGH(r) _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(load(QS(r) + 32 * J), 4), low), BIT(r, DOWN))
#define J 0
#define UP(h) _mm256_slli_epi16(h, 4)
#define DOWN(h) _mm256_slli_epi16(h, 3)
        PUT(LOW, out->q[0])
        PUT(HIGH, out->q[8])
#undef J
#undef UP
#undef DOWN
#define J 1
#define UP(h) _mm256_slli_epi16(h, 2)
#define DOWN(h) _mm256_slli_epi16(h, 1)
        PUT(LOW, out->q[16])
        PUT(HIGH, out->q[24])
#undef J
#undef UP
#undef DOWN
#define J 2
#define UP(h) (h)
#define DOWN(h) _mm256_srli_epi16(h, 1)
        PUT(LOW, out->q[32])
        PUT(HIGH, out->q[40])
#undef J
#undef UP
#undef DOWN
#define J 3
#define UP(h) _mm256_srli_epi16(h, 2)
#define DOWN(h) _mm256_srli_epi16(h, 3)
        PUT(LOW, out->q[48])
        PUT(HIGH, out->q[56])
#undef J
#undef UP
#undef DOWN
        for (int r = 0; r < ROWS; r++) {
            const struct fo_block_q4_k *p = (const void *)BLOCK(r); /* d, dmin and scales lie in the same places in both */
            out->d[r] = half_to_f32(p->d);
            out->d_min[r] = half_to_f32(p->dmin);
            for (int j = 0; j < 8; j++) {
                uint8_t scale, min;
                fo_q4_k_scale_min(p->scales, j, &scale, &min);
                put_scale(out, j, r, scale);
                out->min[j / 2][r][j % 2] = min;
            }
        }
#undef BLOCK
#undef QS
#undef BIT
#undef LOW
#undef HIGH
    }
}

INLINE void unpack_q6_k(const bool six, const struct strip *s, int n_blocks, struct super *out) {
    (void)six;
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30);
    for (int b = 0; b < n_blocks; b++, out++) {
#define P(r) ((const struct fo_block_q6_k *)(const void *)s->row[r] + b)
#define QUARTER(r, at, nibble, bits)                                                                                                     \
    _mm256_or_si256(_mm256_and_si256(nibble(load(P(r)->ql + 64 * HALF + (at))), low), _mm256_and_si256(bits(load(P(r)->qh + 32 * HALF)), high))
#define SAME(v) (v)
#define NEXT(v) _mm256_srli_epi16(v, 4)
#define UP4(v) _mm256_slli_epi16(v, 4)
#define UP2(v) _mm256_slli_epi16(v, 2)
#define DOWN2(v) _mm256_srli_epi16(v, 2)
#define R0(r) QUARTER(r, 0, SAME, UP4)
#define R1(r) QUARTER(r, 32, SAME, UP2)
#define R2(r) QUARTER(r, 0, NEXT, SAME)
#define R3(r) QUARTER(r, 32, NEXT, DOWN2)
#define HALF 0
        PUT(R0, out->q[0])
        PUT(R1, out->q[8])
        PUT(R2, out->q[16])
        PUT(R3, out->q[24])
#undef HALF
#define HALF 1
        PUT(R0, out->q[32])
        PUT(R1, out->q[40])
        PUT(R2, out->q[48])
        PUT(R3, out->q[56])
#undef HALF
        for (int r = 0; r < ROWS; r++) {
            out->d[r] = half_to_f32(P(r)->d);
            for (int j = 0; j < 16; j++) {
                put_scale(out, j, r, P(r)->scales[j]);
                out->min[j / 2][r][j % 2] = (int16_t)(-32 * P(r)->scales[j]);
            }
        }
#undef P
#undef QUARTER
#undef SAME
#undef NEXT
#undef UP4
#undef UP2
#undef DOWN2
#undef R0
#undef R1
#undef R2
#undef R3
    }
}

/* --- blocks of 32 -------------------------------------------------------------------------------------------------------------- */

#define EACH3(X) X(0) X(1) X(2)

/* Four activations of a token in every lane. */
INLINE __m256i four(const int8_t *x) {
    int v;
    memcpy(&v, x, sizeof v);
    return _mm256_set1_epi32(v);
}

/* One step of four columns: sums a (rows 0..7) and b (8..15) of token n, the first step starting them. */
#define STEP_FIRST(n)                                                                                                                    \
    __m256i a##n = _mm256_setzero_si256(), b##n = a##n;                                                                                  \
    if (n < T) {                                                                                                                         \
        __m256i v = four(p##n);                                                                                                          \
        a##n = _mm256_maddubs_epi16(w0, v);                                                                                              \
        b##n = _mm256_maddubs_epi16(w1, v);                                                                                              \
    }
#define STEP(n)                                                                                                                          \
    if (n < T) {                                                                                                                         \
        __m256i v = four(p##n + 4 * i);                                                                                                  \
        a##n = _mm256_add_epi16(a##n, _mm256_maddubs_epi16(w0, v));                                                                      \
        b##n = _mm256_add_epi16(b##n, _mm256_maddubs_epi16(w1, v));                                                                      \
    }
/* Keeps the additions in the order in which they are written: gcc turns the sum of many steps into a tree, whose leaves it then spills. */
#define KEEP(n) if (n < T) __asm__("" : "+x"(a##n), "+x"(b##n));
/* `n_steps` steps from q on. */
#define RUN(q, n_steps)                                                                                                                  \
    __m256i w0 = load((q)[0]), w1 = load((q)[0] + 8);                                                                                    \
    EACH3(STEP_FIRST)                                                                                                                    \
    _Pragma("GCC unroll 8") for (int i = 1; i < (n_steps); i++) {                                                                        \
        w0 = load((q)[i]), w1 = load((q)[i] + 8);                                                                                        \
        EACH3(STEP)                                                                                                                      \
        EACH3(KEEP)                                                                                                                      \
    }

/* Folds all tokens' classes into y. */
INLINE void put_classes(float f[TOKENS][CLASSES][ROWS], float *y, size_t y_stride, int n_rows, const int T) {
    for (int n = 0; n < T; n++) {
        _Alignas(32) float sum[ROWS];
        for (int h = 0; h < ROWS; h += 8) {
#define L(i) _mm256_load_ps(f[n][i] + h)
            __m256 even = _mm256_add_ps(_mm256_add_ps(L(0), L(4)), _mm256_add_ps(L(2), L(6)));
            __m256 odd = _mm256_add_ps(_mm256_add_ps(L(1), L(5)), _mm256_add_ps(L(3), L(7)));
            _mm256_store_ps(sum + h, _mm256_add_ps(even, odd));
#undef L
        }
        memcpy(y + (size_t)n * y_stride, sum, (size_t)n_rows * sizeof *y);
    }
}

INLINE void tokens_nibbles(const struct nibbles *w, int n_blocks, const struct fo_act *a, int64_t t, float *y, size_t y_stride, int n_rows, const int T) {
    const __m256i one = _mm256_set1_epi16(1);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t), x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2);
    _Alignas(32) float f[TOKENS][CLASSES][ROWS] = { { { 0 } } };
    for (int b = 0; b < n_blocks; b++) {
        const int8_t *p0 = x0.q + b * 32, *p1 = x1.q + b * 32, *p2 = x2.q + b * 32;
        RUN(w[b].q, 8)
        __m256 d0 = _mm256_load_ps(w[b].d), d1 = _mm256_load_ps(w[b].d + 8), m0 = _mm256_load_ps(w[b].m), m1 = _mm256_load_ps(w[b].m + 8);
#define SCALE(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        float *to = f[n][b % CLASSES];                                                                                                   \
        __m256 d = _mm256_broadcast_ss(x##n.d + b), s = _mm256_broadcast_ss(x##n.s + b);                                                 \
        __m256 u = _mm256_fmadd_ps(m0, s, _mm256_load_ps(to)), v = _mm256_fmadd_ps(m1, s, _mm256_load_ps(to + 8));                       \
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(a##n, one)), _mm256_mul_ps(d0, d), u));                 \
        _mm256_store_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(b##n, one)), _mm256_mul_ps(d1, d), v));             \
    }
        EACH3(SCALE)
#undef SCALE
    }
    put_classes(f, y, y_stride, n_rows, T);
}

INLINE int sum32(const int8_t *q) {
    __m256i s = _mm256_sad_epu8(_mm256_xor_si256(load(q), _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    __m128i h = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    return _mm_cvtsi128_si32(_mm_add_epi64(h, _mm_unpackhi_epi64(h, h))) - 32 * 128;
}

INLINE void tokens_bytes(const struct bytes *w, int n_blocks, const struct fo_act *a, int64_t t, float *y, size_t y_stride, int n_rows, const int T) {
    const __m256i one = _mm256_set1_epi16(1), sixteen = _mm256_set1_epi16(16);
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t), x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2);
    _Alignas(32) float f[TOKENS][CLASSES][ROWS] = { { { 0 } } };
    for (int b = 0; b < n_blocks; b++) {
        const int8_t *p0 = x0.q + b * 32, *p1 = x1.q + b * 32, *p2 = x2.q + b * 32;
        /* The quants stand 128 too high: so much of the activations is taken off first. */
#define START(n)                                                                                                                         \
    __m256i u##n = _mm256_setzero_si256(), v##n = u##n;                                                                                  \
    if (n < T) u##n = v##n = _mm256_set1_epi32(-128 * sum32(p##n));
        EACH3(START)
#undef START
        {
            RUN(w[b].high, 8)
#define HIGH(n)                                                                                                                          \
    u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(a##n, sixteen));                                                                     \
    v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(b##n, sixteen));
            EACH3(HIGH)
#undef HIGH
        }
        RUN(w[b].low, 8)
        __m256 d0 = _mm256_load_ps(w[b].d), d1 = _mm256_load_ps(w[b].d + 8);
#define SCALE(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        float *to = f[n][b % CLASSES];                                                                                                   \
        __m256 d = _mm256_broadcast_ss(x##n.d + b);                                                                                      \
        u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(a##n, one));                                                                     \
        v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(b##n, one));                                                                     \
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(u##n), _mm256_mul_ps(d0, d), _mm256_load_ps(to)));                        \
        _mm256_store_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(v##n), _mm256_mul_ps(d1, d), _mm256_load_ps(to + 8)));                \
    }
        EACH3(SCALE)
#undef SCALE
    }
    put_classes(f, y, y_stride, n_rows, T);
}

/* --- blocks of 256 ------------------------------------------------------------------------------------------------------------- */

/* Sub-blocks of 4 * `steps` columns, `run` steps of which fit 16 bits. `mins`: pairs of mins with the activations' sums of 32, subtracted
 * at the end; else pairs of offsets with the sums of 16, which belong to the sums themselves. */
INLINE void tokens_super(const struct super *w, int n_blocks, const struct fo_act *a, int64_t t, float *y, size_t y_stride, int n_rows, const int steps,
                         const int run, const bool mins, const int T) {
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t), x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2);
    _Alignas(32) float f[TOKENS][ROWS] = { { 0 } }, g[TOKENS][ROWS] = { { 0 } };
    for (int b = 0; b < n_blocks; b++) {
#define ZERO(n) __m256i u##n = _mm256_setzero_si256(), v##n = u##n;
#define SUMS(n) (const int8_t *)(mins ? x##n.sum32 + b * 8 : x##n.sum16 + b * 16)
#define PAIRS(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        __m256i s = four(SUMS(n) + 4 * j);                                                                                               \
        u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(m0, s));                                                                         \
        v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(m1, s));                                                                         \
    }
        EACH3(ZERO)
        for (int j = 0; j < (mins ? 4 : 8); j++) {
            __m256i m0 = load(w[b].min[j]), m1 = load(w[b].min[j] + 8);
            EACH3(PAIRS)
        }
        if (mins) {
            __m256 d0 = _mm256_load_ps(w[b].d_min), d1 = _mm256_load_ps(w[b].d_min + 8);
#define TO(sum, n, d0, d1)                                                                                                               \
    if (n < T) {                                                                                                                         \
        __m256 d = _mm256_broadcast_ss(x##n.d + b);                                                                                      \
        _mm256_store_ps(sum[n], _mm256_fmadd_ps(_mm256_cvtepi32_ps(u##n), _mm256_mul_ps(d0, d), _mm256_load_ps(sum[n])));                \
        _mm256_store_ps(sum[n] + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(v##n), _mm256_mul_ps(d1, d), _mm256_load_ps(sum[n] + 8)));        \
        u##n = v##n = _mm256_setzero_si256();                                                                                            \
    }
            TO(g, 0, d0, d1) TO(g, 1, d0, d1) TO(g, 2, d0, d1)
        }
        for (int j = 0; j < 64 / steps; j++) {
            __m256i s0 = load(w[b].scale[j]), s1 = load(w[b].scale[j] + 8);
            for (int at = j * steps; at < (j + 1) * steps; at += run) {
                const int8_t *p0 = x0.q + b * 256 + at * 4, *p1 = x1.q + b * 256 + at * 4, *p2 = x2.q + b * 256 + at * 4;
                RUN(w[b].q + at, run)
#define WIDEN(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(a##n, s0));                                                                      \
        v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(b##n, s1));                                                                      \
    }
                EACH3(WIDEN)
#undef WIDEN
            }
        }
        __m256 d0 = _mm256_load_ps(w[b].d), d1 = _mm256_load_ps(w[b].d + 8);
        TO(f, 0, d0, d1) TO(f, 1, d0, d1) TO(f, 2, d0, d1)
#undef TO
#undef ZERO
#undef SUMS
#undef PAIRS
    }
    for (int n = 0; n < T; n++) {
        if (mins)
            for (int r = 0; r < ROWS; r++) f[n][r] -= g[n][r];
        memcpy(y + (size_t)n * y_stride, f[n], (size_t)n_rows * sizeof *y);
    }
}

/* --- the slots ----------------------------------------------------------------------------------------------------------------- */

INLINE void strip_of(const unsigned char *w, size_t row_bytes, int64_t n_rows, struct strip *ret) {
    for (int r = 0; r < ROWS; r++) ret->row[r] = w + (size_t)(r < n_rows ? r : n_rows - 1) * row_bytes;
}

#define GEMM_SLOT(name, part, block, unpack, kind, tokens, ...)                                                                          \
    static void name(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int n, float *y, size_t y_stride, \
                     void *scratch) {                                                                                                    \
        const int n_blocks = (int)(a->k / (block));                                                                                      \
        struct part *p = scratch;                                                                                                        \
        for (int64_t r = 0; r < n_rows; r += ROWS) {                                                                                     \
            const int rows = n_rows - r < ROWS ? (int)(n_rows - r) : ROWS;                                                               \
            struct strip s;                                                                                                              \
            strip_of(w + (size_t)r * w_row_bytes, w_row_bytes, rows, &s);                                                                \
            unpack(kind, &s, n_blocks, p);                                                                                               \
            int t = 0;                                                                                                                   \
            for (; t + TOKENS <= n; t += TOKENS) tokens(p, n_blocks, a, t, y + (size_t)t * y_stride + r, y_stride, rows, __VA_ARGS__ 3); \
            if (n - t == 2) tokens(p, n_blocks, a, t, y + (size_t)t * y_stride + r, y_stride, rows, __VA_ARGS__ 2);                      \
            if (n - t == 1) tokens(p, n_blocks, a, t, y + (size_t)t * y_stride + r, y_stride, rows, __VA_ARGS__ 1);                      \
        }                                                                                                                                \
    }
#define COMMA ,
GEMM_SLOT(gemm_q4_0, nibbles, 32, unpack_nibbles, false, tokens_nibbles, )
GEMM_SLOT(gemm_q4_1, nibbles, 32, unpack_nibbles, true, tokens_nibbles, )
GEMM_SLOT(gemm_q8_0, bytes, 32, unpack_bytes, true, tokens_bytes, )
GEMM_SLOT(gemm_q4_k, super, 256, unpack_q45_k, false, tokens_super, 8 COMMA 8 COMMA true COMMA)
GEMM_SLOT(gemm_q5_k, super, 256, unpack_q45_k, true, tokens_super, 8 COMMA 4 COMMA true COMMA)
GEMM_SLOT(gemm_q6_k, super, 256, unpack_q6_k, true, tokens_super, 4 COMMA 2 COMMA false COMMA)

void fo_cpu_avx2_gemm(struct fo_cpu_kernels *k) {
    k->gemm[FO_Q4_0] = gemm_q4_0;
    k->gemm[FO_Q4_1] = gemm_q4_1;
    k->gemm[FO_Q8_0] = gemm_q8_0;
    k->gemm[FO_Q4_K] = gemm_q4_k;
    k->gemm[FO_Q5_K] = gemm_q5_k;
    k->gemm[FO_Q6_K] = gemm_q6_k;
}
#endif
