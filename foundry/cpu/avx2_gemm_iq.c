/* The types with code books (IQ1, IQ2, IQ3), IQ4_XS, TQ1_0, TQ2_0 and NVFP4 by batches of activations for AVX2 + FMA: what the dots of avx2_iq.c,
 * avx2_k.c and avx2_legacy.c compute for one row of weights, these compute for sixteen rows and up to three tokens at a time, with the same
 * integers and the same floats in the same order, so that a token's numbers do not depend on which of the two computed them. avx2_strip.h
 * tells how a strip lies. Looking up a book's entries is the larger part of a dot; here a batch shares it.
 *
 * 256 elements a block. As in avx2_gemm_k.c: vpmaddubsw takes quants without a sign, so an offset is added to all of them and taken off at the
 * start of a sum of 16 bits, modulo 2^16. What must fit is two products with the offset and, of the steps that share a start, the sum without:
 *
 *   IQ1          |8 q + shift| <= 9    8 steps: 16 * 9 * 127 = 18288
 *   IQ2          |q| <= 43             2 steps:  4 * 43 * 127 = 21844
 *   IQ3_XXS      |q| <= 62, all even:  4 steps of halves, 8 * 31 * 127 = 31496, with twice the scale
 *   IQ3_S        |q| <= 15             8 steps: 16 * 15 * 127 = 30480
 *   TQ1_0, TQ2_0 |q| <= 1              the whole block, 64 steps: 128 * 127 = 16256 (with the offset twice that, 32512)
 *
 * IQ4_XS leaves no room for an offset, |q| <= 127: there |q| meets the activations with the sign of q, and the scale widens at once.
 *
 * NVFP4 has a float scale every 16 elements: as in avx2_gemm.c, with sub-blocks in place of blocks. Its dot keeps sub-block j in a lane of its own
 * for every j % 8, here these classes have sums of their own, folded in the same way. */
#include "foundry/cpu/avx2_strip.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "foundry/cpu/avx2_iq.h"

/* --- 256 elements a block: unpacking ------------------------------------------------------------------------------------------------ */

/* One block of a strip: q[4 columns][row][column], with the offset; of IQ4_XS q as it is, and |q|. Scales stand twice, one for each of the two
 * sums of a dword. */
struct super {
    uint8_t q[64][ROWS][4], u[64][ROWS][4];
    int16_t scale[16][ROWS][2];
    float d[ROWS];
};

/* Of a token: block b counts with f[b % 4], which are folded as the lanes of the dot. */
struct sums {
    float f[4][ROWS];
};

/* scratch: one block, the tokens' sums, and for every token and `run` steps what their sum starts with in the two words of a dword. */
struct work {
    struct super w;
    struct sums sum[TOKENS];
    int32_t start[];
};

INLINE bool is_ternary(const enum fo_dtype type) {
    return type == FO_TQ1_0 || type == FO_TQ2_0;
}

/* Steps of four columns that share a start. */
INLINE int run_of(const enum fo_dtype type) {
    switch (type) {
    case FO_IQ2_XXS:
    case FO_IQ2_XS:
    case FO_IQ2_S: return 2;
    case FO_IQ1_M: /* has a scale every 16 */
    case FO_IQ3_XXS: return 4;
    case FO_TQ1_0:
    case FO_TQ2_0: return 64;
    default: return 8;
    }
}

/* And a scale. */
INLINE int steps_of(const enum fo_dtype type) {
    return is_ternary(type) ? 64 : type == FO_IQ2_XS || type == FO_IQ2_S || type == FO_IQ1_M ? 4 : 8;
}

INLINE int offset_from(const enum fo_dtype type) {
    switch (type) {
    case FO_IQ1_S:
    case FO_IQ1_M: return 9;
    case FO_IQ3_XXS: return 31;
    case FO_IQ3_S: return 15;
    case FO_TQ1_0:
    case FO_TQ2_0: return 1;
    case FO_IQ4_XS: return 0;
    default: return 43;
    }
}

_Static_assert(sizeof(struct work) <= FO_GEMM_FIXED_BYTES && TOKENS * 16 * sizeof(int32_t) <= FO_GEMM_BYTES, "scratch");

/* Eight rows of 32 columns to eight steps of four. */
INLINE void put_rows(__m256i v[8], uint8_t (*to)[ROWS][4], const int g) {
    __m256i u[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
        u[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        u[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) { /* dword i of rows 0..3 and 4..7, of each half */
        const int from = i / 2;
        __m256i low = i % 2 ? _mm256_unpackhi_epi64(u[from], u[2 + from]) : _mm256_unpacklo_epi64(u[from], u[2 + from]);
        __m256i high = i % 2 ? _mm256_unpackhi_epi64(u[4 + from], u[6 + from]) : _mm256_unpacklo_epi64(u[4 + from], u[6 + from]);
        put_quad(to[i], g, _mm256_permute2x128_si256(low, high, 0x20));
        put_quad(to[4 + i], g, _mm256_permute2x128_si256(low, high, 0x31));
    }
}

/* Elements 32 j .. 32 j + 31 of a block with a book, with the offset. */
INLINE __m256i elements_of(const enum fo_dtype type, const struct fo_cpu_books *k, const unsigned char *p, const struct names *n, __m256i down,
                           const int j) {
    const __m256i offset = _mm256_set1_epi8((char)offset_from(type));
    if (type == FO_IQ1_S) { /* 8 u - 7 or - 9, and the offset: 8 u + 2, or without the 2 where down */
        __m256i u = _mm256_slli_epi16(entries_iq1_s(k, (const struct fo_block_iq1_s *)(const void *)p, j), 3), two = _mm256_set1_epi8(2);
        return _mm256_add_epi8(u, _mm256_andnot_si256(_mm256_shuffle_epi8(down, _mm256_set1_epi8((char)(2 * j))), two));
    }
    if (type == FO_IQ1_M) return _mm256_add_epi8(elements_iq1_m(k, (const struct fo_block_iq1_m *)(const void *)p, j), offset);
    __m256i u = magnitudes_of(type, k, p, n, j);
    if (type == FO_IQ3_XXS) u = _mm256_srli_epi16(u, 1);
    return _mm256_add_epi8(_mm256_sign_epi8(u, block_signs(type, k, p, j)), offset);
}

/* The scales of a block with a book as bytes, eight or sixteen; of IQ1_S also the directions of its shifts as words, in both halves. */
INLINE __m128i scales_of(const enum fo_dtype type, const unsigned char *p, __m256i *ret_down) {
    if (type == FO_IQ1_S) {
        __m128i down, s = scales_iq1_s((const struct fo_block_iq1_s *)(const void *)p, &down);
        *ret_down = _mm256_broadcastsi128_si256(down);
        return _mm_packs_epi16(s, s);
    }
    if (type == FO_IQ1_M || type == FO_IQ2_XS || type == FO_IQ2_S) {
        __m256i s = type == FO_IQ1_M    ? scales_iq1_m(((const struct fo_block_iq1_m *)(const void *)p)->scales)
                    : type == FO_IQ2_XS ? nibble_scales(((const struct fo_block_iq2_xs *)(const void *)p)->scales)
                                        : nibble_scales(((const struct fo_block_iq2_s *)(const void *)p)->scales);
        return _mm_packs_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    }
    const int by = type == FO_IQ3_XXS ? 2 : 1;
#define S(j) (char)(by * scale_of(type, p, j))
    return _mm_setr_epi8(S(0), S(1), S(2), S(3), S(4), S(5), S(6), S(7), 0, 0, 0, 0, 0, 0, 0, 0);
#undef S
}

INLINE void put_scales(__m128i v[16], const int n, struct super *out) {
    turn_bytes(v);
    for (int j = 0; j < n; j++) put_twice(out->scale[j], v[j]);
}

INLINE void unpack_book(const enum fo_dtype type, const struct strip *s, size_t at, struct super *out) {
    const struct fo_cpu_books *books = fo_cpu_books();
    __m128i scales[16];
    __m256i down[16];
    for (int r = 0; r < ROWS; r++) scales[r] = scales_of(type, s->row[r] + at, &down[r]);
    put_scales(scales, 64 / steps_of(type), out);
    for (int g = 0; g < 2; g++) {
        struct names names[8];
        for (int r = 0; r < 8; r++) names_of(type, s->row[8 * g + r] + at, &names[r]);
#define SUB(j)                                                                                                                           \
    {                                                                                                                                    \
        __m256i v[8];                                                                                                                    \
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++)                                                                              \
            v[r] = elements_of(type, books, s->row[8 * g + r] + at, &names[r], down[8 * g + r], j);                                      \
        put_rows(v, out->q + 8 * (j), g);                                                                                                \
    }
        SUB(0) SUB(1) SUB(2) SUB(3) SUB(4) SUB(5) SUB(6) SUB(7)
#undef SUB
    }
    if (type == FO_IQ1_M)
        for (int r = 0; r < ROWS; r++) out->d[r] = half_to_f32((uint16_t)d_iq1_m(((const struct fo_block_iq1_m *)(const void *)(s->row[r] + at))->scales));
    else
        put_halves(s, at, out->d);
    for (int r = 0; r < ROWS; r++) out->d[r] *= unit_of(type);
}

INLINE void unpack_iq4_xs(const struct strip *s, size_t at, struct super *out) {
    const __m256i values = _mm256_broadcastsi128_si256(load16(fo_iq4_values));
    for (int j = 0; j < 8; j++)
        for (int g = 0; g < 2; g++) {
            struct quads v = quads_of(s, g, at + offsetof(struct fo_block_iq4_xs, qs) + (size_t)j * 16);
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
                __m256i low = _mm256_shuffle_epi8(values, low_nibbles(v.q[i])), high = _mm256_shuffle_epi8(values, high_nibbles(v.q[i]));
                put_quad(out->q[j * 8 + i], g, low);
                put_quad(out->u[j * 8 + i], g, _mm256_abs_epi8(low));
                put_quad(out->q[j * 8 + 4 + i], g, high);
                put_quad(out->u[j * 8 + 4 + i], g, _mm256_abs_epi8(high));
            }
        }
    __m128i scales[16];
    for (int r = 0; r < ROWS; r++) {
        __m128i words = scales_iq4_xs((const struct fo_block_iq4_xs *)(const void *)(s->row[r] + at));
        scales[r] = _mm_packs_epi16(words, words);
    }
    put_scales(scales, 8, out);
    put_halves(s, at, out->d);
}

INLINE void unpack_tq2_0(const struct strip *s, size_t at, struct super *out) {
    for (int i = 0; i < 4; i++) /* sixteen bytes: of each quarter of a half of the elements, the first or second sixteen */
        for (int g = 0; g < 2; g++) {
            struct quads v = quads_of(s, g, at + (size_t)i * 16);
            uint8_t(*to)[ROWS][4] = out->q + i / 2 * 32 + i % 2 * 4;
            _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) {
                put_quad(to[q], g, bits_up(v.q[q], 0, 3));
                put_quad(to[q + 8], g, bits_up(v.q[q], -2, 3));
                put_quad(to[q + 16], g, bits_up(v.q[q], -4, 3));
                put_quad(to[q + 24], g, bits_up(v.q[q], -6, 3));
            }
        }
    put_halves(s, at + offsetof(struct fo_block_tq2_0, d), out->d);
}

/* The first n digits of the bytes v, `apart` steps from one to the next. */
INLINE void put_digits(__m256i v, const int n, uint8_t (*to)[ROWS][4], const int apart, const int g) {
    v = _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
    _Pragma("GCC unroll 5") for (int i = 0; i < n; i++, v = times3(v)) put_quad(to[i * apart], g, digit(v));
}

INLINE void unpack_tq1_0(const struct strip *s, size_t at, struct super *out) {
    for (int g = 0; g < 2; g++) {
        struct quads v = quads_of(s, g, at), u = quads_of(s, g, at + 16), t = quads_of(s, g, at + 32);
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            put_digits(v.q[i], 5, out->q + i, 8, g);
            put_digits(u.q[i], 5, out->q + 4 + i, 8, g);
            put_digits(t.q[i], 5, out->q + 40 + i, 4, g);
        }
        put_digits(quads_of(s, g, at + offsetof(struct fo_block_tq1_0, qh) - 12).q[3], 4, out->q + 60, 1, g);
    }
    put_halves(s, at + offsetof(struct fo_block_tq1_0, d), out->d);
}

/* What the sums of every `run` steps of a token start with: -offset times the activations that the even pairs meet, and the odd. */
INLINE void put_starts(const int8_t *q, int64_t k, const int run, const int offset, int32_t *out) {
    const __m256i one = _mm256_set1_epi8(1), by = _mm256_set1_epi16((short)-offset);
    const int columns = run == 64 ? 256 : 32;
    for (int64_t i = 0; i < k; i += columns) {
        __m256i v = _mm256_maddubs_epi16(one, load(q + i));
        for (int c = 32; c < columns; c += 32) v = _mm256_add_epi16(v, _mm256_maddubs_epi16(one, load(q + i + c)));
        v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xB1));
        if (run >= 4) v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4E));
        if (run >= 8) v = _mm256_add_epi16(v, _mm256_permute2x128_si256(v, v, 1));
        v = _mm256_mullo_epi16(v, by);
        int32_t sums[8];
        _mm256_storeu_si256((__m256i *)(void *)sums, v);
        const int apart = run == 2 ? 2 : run == 4 ? 4 : 8; /* dwords */
        for (int d = 0; d < 8; d += apart) *out++ = sums[d];
    }
}

/* --- 256 elements a block: products ------------------------------------------------------------------------------------------------- */

/* Adds the products of block b with tokens t.. to their sums. `start` is [T][start_stride]. */
INLINE void tokens_super(const enum fo_dtype type, const struct super *w, int64_t b, const struct fo_act *a, int64_t t, struct sums *sum,
                         const int32_t *start, size_t start_stride, const int T) {
    const int run = run_of(type), steps = steps_of(type);
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2);
    const int8_t *p0 = x0.q + b * 256, *p1 = x1.q + b * 256, *p2 = x2.q + b * 256;
    const size_t ahead_by = (size_t)T * a->row_bytes;
    start += b * (64 / run);
#define ZERO(n) __m256i u##n = _mm256_setzero_si256(), v##n = u##n;
#define AHEAD(n)                                                                                                                         \
    if (n < T)                                                                                                                           \
        for (int i = 0; i < 256; i += 64) _mm_prefetch((const char *)p##n + ahead_by + i, _MM_HINT_T0);
#define START(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        __m256i from = four(start + n * start_stride + at / run);                                                                        \
        a##n = _mm256_add_epi16(a##n, from), b##n = _mm256_add_epi16(b##n, from);                                                        \
    }
#define WIDEN(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(a##n, s0));                                                                      \
        v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(b##n, s1));                                                                      \
        p##n += 4 * run;                                                                                                                 \
    }
#define SIGNED(n)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        __m256i x = four(p##n + 4 * (at + i));                                                                                           \
        u##n = add_dwords(u##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u_0, _mm256_sign_epi8(x, q_0)), s0));                             \
        v##n = add_dwords(v##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u_1, _mm256_sign_epi8(x, q_1)), s1));                             \
    }
#define ADD(n)                                                                                                                           \
    if (n < T) {                                                                                                                         \
        __m256 d = _mm256_broadcast_ss(x##n.d + b);                                                                                      \
        float *to = sum[n].f[b % 4];                                                                                                     \
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(u##n), _mm256_mul_ps(d0, d), _mm256_load_ps(to)));                        \
        _mm256_store_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(v##n), _mm256_mul_ps(d1, d), _mm256_load_ps(to + 8)));                \
    }
    EACH_TOKEN(ZERO)
    EACH_TOKEN(AHEAD)
    for (int at = 0; at < 64; at += run) {
        __m256i s0 = _mm256_set1_epi16(1), s1 = s0;
        if (steps < 64) s0 = load(w->scale[at / steps]), s1 = load(w->scale[at / steps] + 8);
        if (type == FO_IQ4_XS) {
            _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
                __m256i q_0 = load(w->q[at + i]), q_1 = load(w->q[at + i][8]), u_0 = load(w->u[at + i]), u_1 = load(w->u[at + i][8]);
                EACH_TOKEN(SIGNED)
            }
        } else {
            EACH_TOKEN(SUMS)
            RUN(w->q + at, run)
            EACH_TOKEN(START)
            EACH_TOKEN(WIDEN)
        }
    }
    __m256 d0 = _mm256_load_ps(w->d), d1 = _mm256_load_ps(w->d + 8);
    EACH_TOKEN(ADD)
#undef ZERO
#undef AHEAD
#undef START
#undef WIDEN
#undef SIGNED
#undef ADD
}

/* Sums of the strip's rows for tokens [t0, t0 + n_t). */
INLINE void strip_super(const enum fo_dtype type, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct work *k) {
    const int size = block_bytes(type);
    const size_t n_starts = (size_t)a->k / 256 * (size_t)(64 / run_of(type));
    memset(k->sum, 0, (size_t)n_t * sizeof *k->sum);
    for (int64_t b = 0; b < a->k / 256; b++) {
        const size_t at = (size_t)b * (size_t)size;
        struct fetch fetch = fetch_of(s, at * ROWS, (size_t)size * ROWS, N_GROUPS(n_t));
        switch (type) {
        case FO_IQ4_XS: unpack_iq4_xs(s, at, &k->w); break;
        case FO_TQ1_0: unpack_tq1_0(s, at, &k->w); break;
        case FO_TQ2_0: unpack_tq2_0(s, at, &k->w); break;
        default: unpack_book(type, s, at, &k->w);
        }
#define PART(t, T)                                                                                                                       \
    fetch_some(&fetch);                                                                                                                  \
    tokens_super(type, &k->w, b, a, t0 + (t), k->sum + (t), k->start + (size_t)(t)*n_starts, n_starts, T);
        BY_TOKENS(n_t, PART)
#undef PART
    }
}

INLINE void begin(const enum fo_dtype type, const struct fo_act *a, int t, int n_t, struct work *k) {
    if (!offset_from(type)) return;
    const size_t n_starts = (size_t)a->k / 256 * (size_t)(64 / run_of(type));
    for (int i = 0; i < n_t; i++) put_starts(fo_act_q8_k(a, t + i).q, a->k, run_of(type), offset_from(type), k->start + (size_t)i * n_starts);
}

INLINE void put_sums(const struct sums *sum, float *y, int rows) {
    for (int r = 0; r < rows; r++) y[r] = (sum->f[0][r] + sum->f[2][r]) + (sum->f[1][r] + sum->f[3][r]);
}

GEMM_SLOT(gemm_iq4_xs, FO_IQ4_XS, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_tq1_0, FO_TQ1_0, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_tq2_0, FO_TQ2_0, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_iq1_s, FO_IQ1_S, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_iq1_m, FO_IQ1_M, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_iq3_xxs, FO_IQ3_XXS, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_iq3_s, FO_IQ3_S, work, begin, strip_super, put_sums)

/* IQ2 has twice as many starts: half as many tokens at a time have room for them. */
#define HALF_SLOT(name, type)                                                                                                            \
    GEMM_SLOT(name##_64, type, work, begin, strip_super, put_sums)                                                                       \
    static void name(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int n, float *y, size_t y_stride, \
                     void *scratch) {                                                                                                    \
        struct fo_act part = *a;                                                                                                         \
        for (int t = 0; t < n; t += TOKENS / 2) {                                                                                        \
            part.rows = a->rows + (size_t)t * a->row_bytes;                                                                              \
            name##_64(w, w_row_bytes, n_rows, &part, n - t < TOKENS / 2 ? n - t : TOKENS / 2, y + (size_t)t * y_stride, y_stride, scratch); \
        }                                                                                                                                \
    }
HALF_SLOT(gemm_iq2_xxs, FO_IQ2_XXS)
HALF_SLOT(gemm_iq2_xs, FO_IQ2_XS)
HALF_SLOT(gemm_iq2_s, FO_IQ2_S)

/* --- NVFP4 ---------------------------------------------------------------------------------------------------------------------- */

enum { CLASSES = 8, FP4_SUBS = 64 /* of a piece: 20 KiB, which stay in the first cache; whole rounds of classes */ };

/* Sixteen rows of a sub-block of 16: q[4 columns][row][column], raised by 12. */
struct fp4 {
    uint8_t q[4][ROWS][4];
    float d[ROWS];
};

/* scratch: a piece, the sums of a strip's rows for every token and class, and the starts: one for each sub-block of every token. */
struct fp4_work {
    struct fp4 w[FP4_SUBS];
    float sum[TOKENS][CLASSES][ROWS];
    int32_t start[];
};
_Static_assert(sizeof(struct fp4_work) <= FO_GEMM_FIXED_BYTES, "scratch");

/* The four sub-blocks of a block `at` bytes into each row. */
INLINE void unpack_nvfp4(const struct strip *s, size_t at, struct fp4 out[4]) {
    const __m256i values = _mm256_add_epi8(_mm256_broadcastsi128_si256(load16(fo_fp4_values)), _mm256_set1_epi8(12)), byte = _mm256_set1_epi32(0xFF);
    for (int g = 0; g < 2; g++) {
        for (int half = 0; half < 2; half++) {
            struct quads v = quads_of(s, g, at + offsetof(struct fo_block_nvfp4, qs) + (size_t)half * 16);
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
                put_quad(out[half * 2 + i / 2].q[i % 2], g, _mm256_shuffle_epi8(values, low_nibbles(v.q[i])));
                put_quad(out[half * 2 + i / 2].q[2 + i % 2], g, _mm256_shuffle_epi8(values, high_nibbles(v.q[i])));
            }
        }
        __m256i codes = quads_of(s, g, at).q[0];
        for (int j = 0; j < 4; j++, codes = _mm256_srli_epi32(codes, 8)) {
            __m256i c = _mm256_and_si256(codes, byte);
            _mm256_store_ps(out[j].d + 8 * g, halves_of_e4m3(_mm_packus_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1))));
        }
    }
}

/* Sub-blocks [b, b + n) of a row of activations, of which b is a multiple of 8, with tokens t.., added to their sums. `start` is [T][start_stride]. */
INLINE void tokens_nvfp4(const struct fp4 *w, int b, int n, const struct fo_act *a, int64_t t, float (*sum)[CLASSES][ROWS], const int32_t *start,
                         size_t start_stride, const int T) {
    const __m256i one = _mm256_set1_epi16(1);
    const size_t ahead_by = (size_t)T * a->row_bytes;
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2);
    for (int c = 0; c < CLASSES && c < n; c++) {
#define SUM_LOAD(n)                                                                                                                      \
    __m256 f##n = _mm256_setzero_ps(), g##n = f##n;                                                                                      \
    if (n < T) f##n = _mm256_load_ps(sum[n][c]), g##n = _mm256_load_ps(sum[n][c] + 8);
#define PLACE(n) const int8_t *p##n = x##n.q + (b + i) * 16;
#define AHEAD(n) if (n < T && i % 4 == 0) _mm_prefetch((const char *)p##n + ahead_by, _MM_HINT_T0);
#define SCALE(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        __m256i from = four(start + n * start_stride + b + i);                                                                           \
        __m256i u = _mm256_madd_epi16(_mm256_add_epi16(a##n, from), one), v = _mm256_madd_epi16(_mm256_add_epi16(b##n, from), one);      \
        __m256 d = _mm256_broadcast_ss(x##n.d + (b + i) / 2);                                                                            \
        f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(u), _mm256_mul_ps(d0, d), f##n);                                                       \
        g##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(v), _mm256_mul_ps(d1, d), g##n);                                                       \
    }
#define SUM_STORE(n) if (n < T) _mm256_store_ps(sum[n][c], f##n), _mm256_store_ps(sum[n][c] + 8, g##n);
        EACH_TOKEN(SUM_LOAD)
        for (int i = c; i < n; i += CLASSES) {
            EACH_TOKEN(PLACE)
            EACH_TOKEN(AHEAD)
            EACH_TOKEN(SUMS)
            RUN(w[i].q, 4)
            __m256 d0 = _mm256_load_ps(w[i].d), d1 = _mm256_load_ps(w[i].d + 8);
            EACH_TOKEN(SCALE)
        }
        EACH_TOKEN(SUM_STORE)
#undef SUM_LOAD
#undef PLACE
#undef AHEAD
#undef SCALE
#undef SUM_STORE
    }
}

INLINE void strip_nvfp4(const enum fo_dtype type, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct fp4_work *k) {
    (void)type;
    const int all = (int)(a->k / 16), size = sizeof(struct fo_block_nvfp4);
    const size_t n_starts = (size_t)fo_act_padded(a->k) / 16;
    memset(k->sum, 0, (size_t)n_t * sizeof *k->sum);
    for (int b = 0; b < all; b += FP4_SUBS) {
        const int n = all - b < FP4_SUBS ? all - b : FP4_SUBS;
        for (int i = 0; i < n; i += 4) {
            const size_t at = (size_t)((b + i) / 4) * (size_t)size;
            strip_ahead(s, at, size, ROWS);
            unpack_nvfp4(s, at, k->w + i);
        }
#define PART(t, T) tokens_nvfp4(k->w, b, n, a, t0 + (t), k->sum + (t), k->start + (size_t)(t)*n_starts, n_starts, T);
        BY_TOKENS(n_t, PART)
#undef PART
    }
}

INLINE void begin_nvfp4(const enum fo_dtype type, const struct fo_act *a, int t, int n_t, struct fp4_work *k) {
    (void)type;
    const int64_t padded = fo_act_padded(a->k);
    for (int i = 0; i < n_t; i++) put_starts(fo_act_q8_0(a, t + i).q, padded, 4, 12, k->start + (size_t)i * (size_t)(padded / 16));
}

/* Folds a token's classes as the dot's lanes, which are sub-blocks 0 1 4 5 2 3 6 7. */
INLINE void put_nvfp4(float (*sum)[CLASSES][ROWS], float *y, int rows) {
    float(*f)[ROWS] = *sum;
    _Alignas(32) float out[ROWS];
    for (int h = 0; h < ROWS; h += 8) {
#define L(i) _mm256_load_ps(f[i] + h)
        __m256 even = _mm256_add_ps(_mm256_add_ps(L(0), L(2)), _mm256_add_ps(L(4), L(6)));
        __m256 odd = _mm256_add_ps(_mm256_add_ps(L(1), L(3)), _mm256_add_ps(L(5), L(7)));
        _mm256_store_ps(out + h, _mm256_add_ps(even, odd));
#undef L
    }
    memcpy(y, out, (size_t)rows * sizeof *y);
}

GEMM_SLOT(gemm_nvfp4, FO_NVFP4, fp4_work, begin_nvfp4, strip_nvfp4, put_nvfp4)

void fo_cpu_avx2_gemm_iq(struct fo_cpu_kernels *k) {
    k->gemm[FO_IQ4_XS] = gemm_iq4_xs;
    k->gemm[FO_TQ1_0] = gemm_tq1_0;
    k->gemm[FO_TQ2_0] = gemm_tq2_0;
    k->gemm[FO_NVFP4] = gemm_nvfp4;
    k->gemm[FO_IQ1_S] = gemm_iq1_s;
    k->gemm[FO_IQ1_M] = gemm_iq1_m;
    k->gemm[FO_IQ2_XXS] = gemm_iq2_xxs;
    k->gemm[FO_IQ2_XS] = gemm_iq2_xs;
    k->gemm[FO_IQ2_S] = gemm_iq2_s;
    k->gemm[FO_IQ3_XXS] = gemm_iq3_xxs;
    k->gemm[FO_IQ3_S] = gemm_iq3_s;
    static const enum fo_dtype books[] = { FO_IQ1_S, FO_IQ1_M, FO_IQ2_XXS, FO_IQ2_XS, FO_IQ2_S, FO_IQ3_XXS, FO_IQ3_S };
    for (size_t i = 0; i < sizeof books / sizeof *books; i++) k->gemm_from[books[i]] = 6; /* at fewer their dots are as fast */
    k->gemm_from[FO_IQ1_S] = 8;
}
#endif
