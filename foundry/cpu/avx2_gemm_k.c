/* Types of 256 elements a block by batches of activations for AVX2 + FMA: what the dots of avx2.c and avx2_k.c compute for one row of weights,
 * these compute for sixteen rows and up to three tokens at a time, with the same integers and the same floats in the same order, so that
 * a token's numbers do not depend on which of the two computed them. avx2_strip.h tells how a strip lies.
 *
 * One block of sixteen rows is unpacked (6 KiB: it stays in the first cache) and all tokens pass it; their sums wait in scratch. vpmaddubsw
 * adds two products in 16 bits, and sums of these stay there as long as they fit, before one vpmaddwd multiplies them by the sub-block's
 * integer scale: eight steps for quants up to 15 (8 * 2 * 15 * 127 = 30480), four up to 31.
 *
 * Q6_K and Q3_K have an offset, which is taken off at the start of such a sum: q - 32 of four steps fits, 8 * 32 * 127 = 32512, and that the
 * sum of q alone, up to 63, would not, does not matter modulo 2^16. */
#include "foundry/cpu/avx2_strip.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
/* One block of a strip: q[4 columns][row][column]. Scales stand twice, one for each of the two sums of a dword; mins in pairs of
 * neighbouring sub-blocks. */
struct super {
    uint8_t q[64][ROWS][4];
    int16_t scale[16][ROWS][2], min[8][ROWS][2];
    float d[ROWS], d_min[ROWS];
};

/* Of a token: the sums of a strip's rows so far, and of its mins. */
struct sums {
    float f[ROWS], g[ROWS];
};

/* scratch: one block, the tokens' sums, and for every token and 16 columns what their sum starts with in the two words of a dword. */
struct work {
    struct super w;
    struct sums sum[TOKENS];
    int32_t start[];
};
_Static_assert(sizeof(struct work) <= FO_GEMM_FIXED_BYTES && TOKENS * 16 * sizeof(int32_t) <= FO_GEMM_BYTES, "scratch");

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

INLINE void unpack_q45_k(const bool five, const struct strip *s, size_t at, struct super *out) {
    const size_t qs = five ? offsetof(struct fo_block_q5_k, qs) : offsetof(struct fo_block_q4_k, qs), qh = offsetof(struct fo_block_q5_k, qh);
    __m256i h[8][2];
    if (five)
        for (int half = 0; half < 2; half++)
            for (int g = 0; g < 2; g++) {
                struct quads v = quads_of(s, g, at + qh + (size_t)half * 16);
                for (int i = 0; i < 4; i++) h[half * 4 + i][g] = v.q[i];
            }
#define SIXTY_FOUR(c)                                                                                                                    \
    for (int half = 0; half < 2; half++)                                                                                                 \
        for (int g = 0; g < 2; g++) {                                                                                                    \
            struct quads v = quads_of(s, g, at + qs + (c)*32 + (size_t)half * 16);                                                       \
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {                                                                        \
                __m256i low = low_nibbles(v.q[i]), high = high_nibbles(v.q[i]);                                                          \
                if (five) low = _mm256_or_si256(low, bits_up(h[half * 4 + i][g], 4 - 2 * (c), 16));                                      \
                if (five) high = _mm256_or_si256(high, bits_up(h[half * 4 + i][g], 3 - 2 * (c), 16));                                    \
                put_quad(out->q[(c)*16 + half * 4 + i], g, low);                                                                         \
                put_quad(out->q[(c)*16 + 8 + half * 4 + i], g, high);                                                                    \
            }                                                                                                                            \
        }
    SIXTY_FOUR(0) SIXTY_FOUR(1) SIXTY_FOUR(2) SIXTY_FOUR(3)
#undef SIXTY_FOUR
    __m128i v[16];
    for (int r = 0; r < ROWS; r++) v[r] = scales_q45_k(s->row[r] + at + offsetof(struct fo_block_q4_k, scales));
    turn_bytes(v);
    for (int j = 0; j < 8; j++) put_twice(out->scale[j], v[j]);
    for (int j = 0; j < 4; j++) put_beside(out->min[j], v[8 + 2 * j], v[9 + 2 * j]);
    put_halves(s, at + offsetof(struct fo_block_q4_k, d), out->d); /* d, dmin and scales lie in the same places in both */
    put_halves(s, at + offsetof(struct fo_block_q4_k, dmin), out->d_min);
}

INLINE void unpack_q6_k(const struct strip *s, size_t at, struct super *out) {
    for (int i = 0; i < 4; i++) /* sixteen elements of a half, of each quarter of it */
        for (int g = 0; g < 2; g++) {
            const size_t half = (size_t)i / 2, piece = (size_t)i % 2 * 16;
            struct quads u = quads_of(s, g, at + half * 64 + piece), v = quads_of(s, g, at + half * 64 + 32 + piece);
            struct quads h = quads_of(s, g, at + offsetof(struct fo_block_q6_k, qh) + half * 32 + piece);
            uint8_t(*to)[ROWS][4] = out->q + i / 2 * 32 + i % 2 * 4;
            _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) {
                put_quad(to[q], g, _mm256_or_si256(low_nibbles(u.q[q]), bits_up(h.q[q], 4, 0x30)));
                put_quad(to[q + 8], g, _mm256_or_si256(low_nibbles(v.q[q]), bits_up(h.q[q], 2, 0x30)));
                put_quad(to[q + 16], g, _mm256_or_si256(high_nibbles(u.q[q]), bits_up(h.q[q], 0, 0x30)));
                put_quad(to[q + 24], g, _mm256_or_si256(high_nibbles(v.q[q]), bits_up(h.q[q], -2, 0x30)));
            }
        }
    __m128i v[16];
    for (int r = 0; r < ROWS; r++) v[r] = load16(s->row[r] + at + offsetof(struct fo_block_q6_k, scales));
    turn_bytes(v);
    for (int j = 0; j < 16; j++) put_twice(out->scale[j], v[j]);
    put_halves(s, at + offsetof(struct fo_block_q6_k, d), out->d);
}

INLINE void unpack_q23_k(const bool three, const struct strip *s, size_t at, struct super *out) {
    const size_t qs = three ? offsetof(struct fo_block_q3_k, qs) : offsetof(struct fo_block_q2_k, qs);
    for (int piece = 0; piece < 2; piece++)
        for (int g = 0; g < 2; g++) {
            struct quads u = quads_of(s, g, at + qs + (size_t)piece * 16), v = quads_of(s, g, at + qs + 32 + (size_t)piece * 16), h = u;
            if (three) h = quads_of(s, g, at + offsetof(struct fo_block_q3_k, hmask) + (size_t)piece * 16);
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
#define BITS(w, j, bit)                                                                                                                  \
    put_quad(out->q[(bit)*8 + piece * 4 + i], g, three ? _mm256_or_si256(bits_up(w.q[i], -2 * (j), 3), bits_up(h.q[i], 2 - (bit), 4)) : bits_up(w.q[i], -2 * (j), 3));
                BITS(u, 0, 0) BITS(u, 1, 1) BITS(u, 2, 2) BITS(u, 3, 3)
                BITS(v, 0, 4) BITS(v, 1, 5) BITS(v, 2, 6) BITS(v, 3, 7)
#undef BITS
            }
        }
    __m128i v[16], low = _mm_set1_epi8(15);
    for (int r = 0; r < ROWS; r++) v[r] = three ? scales_q3_k(s->row[r] + at + offsetof(struct fo_block_q3_k, scales))
                     : load16(s->row[r] + at + offsetof(struct fo_block_q2_k, scales));
    turn_bytes(v);
    for (int j = 0; j < 16; j++) put_twice(out->scale[j], three ? v[j] : _mm_and_si128(v[j], low));
    put_halves(s, at + (three ? offsetof(struct fo_block_q3_k, d) : offsetof(struct fo_block_q2_k, d)), out->d);
    if (three) return;
    for (int j = 0; j < 8; j++)
        put_beside(out->min[j], _mm_and_si128(_mm_srli_epi16(v[2 * j], 4), low), _mm_and_si128(_mm_srli_epi16(v[2 * j + 1], 4), low));
    put_halves(s, at + offsetof(struct fo_block_q2_k, dmin), out->d_min);
}

/* What the sums of every 16 columns of a token start with: -offset times the activations that the even pairs meet, and the odd. */
INLINE void put_starts(const struct fo_act *a, int64_t t, const int offset, int32_t *out) {
    const int8_t *q = fo_act_q8_k(a, t).q;
    const __m256i one = _mm256_set1_epi8(1), by = _mm256_set1_epi16((short)-offset);
    for (int64_t i = 0; i < a->k; i += 32) {
        __m256i v = _mm256_maddubs_epi16(one, load(q + i));
        v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4E));
        v = _mm256_mullo_epi16(_mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xB1)), by);
        out[i / 16] = _mm256_extract_epi32(v, 0);
        out[i / 16 + 1] = _mm256_extract_epi32(v, 4);
    }
}

/* --- products ------------------------------------------------------------------------------------------------------------------ */

enum { NO_MINS, MINS_16, MINS_32 };

/* Adds the products of block b with tokens t.. to their sums. Sub-blocks have 4 * `steps` columns, `run` steps of which fit 16 bits. Mins:
 * pairs of them with the activations' sums of 16 or 32. `start`, [T][start_stride], counts with `offset` only: see put_starts. */
INLINE void tokens_super(const struct super *w, int64_t b, const struct fo_act *a, int64_t t, struct sums *sum, const int32_t *start, size_t start_stride,
                         const int steps, const int run, const int mins, const bool offset, const int T) {
    struct fo_act_q8_k x0 = fo_act_q8_k(a, t);
    struct fo_act_q8_k x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2);
    const int8_t *p0 = x0.q + b * 256, *p1 = x1.q + b * 256, *p2 = x2.q + b * 256;
    const size_t ahead_by = (size_t)T * a->row_bytes;
    start += b * 16;
#define ZERO(n) __m256i u##n = _mm256_setzero_si256(), v##n = u##n;
#define AHEAD(n) if (n < T) _mm_prefetch((const char *)p##n + ahead_by, _MM_HINT_T0);
#define START(n)                                                                                                                         \
    if (offset && n < T) {                                                                                                               \
        __m256i from = four(start + n * start_stride + j);                                                                               \
        a##n = _mm256_add_epi16(a##n, from), b##n = _mm256_add_epi16(b##n, from);                                                        \
    }
#define WIDEN(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(a##n, s0));                                                                      \
        v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(b##n, s1));                                                                      \
        p##n += 4 * run;                                                                                                                 \
    }
#define PAIRS(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        __m256i s = four((mins == MINS_32 ? x##n.sum32 + b * 8 : x##n.sum16 + b * 16) + 2 * j);                                          \
        u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(m0, s));                                                                         \
        v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(m1, s));                                                                         \
    }
#define TO(n, to)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        __m256 d = _mm256_broadcast_ss(x##n.d + b);                                                                                      \
        _mm256_store_ps(sum[n].to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(u##n), _mm256_mul_ps(d0, d), _mm256_load_ps(sum[n].to)));          \
        _mm256_store_ps(sum[n].to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(v##n), _mm256_mul_ps(d1, d), _mm256_load_ps(sum[n].to + 8)));  \
    }
#define TO_F(n) TO(n, f)
#define TO_G(n) TO(n, g)
    {
        EACH_TOKEN(ZERO)
        for (int j = 0; j < 64 / steps; j++) {
            if (j * steps % 16 == 0) {
                EACH_TOKEN(AHEAD)
            }
            for (int at = j * steps; at < (j + 1) * steps; at += run) {
                EACH_TOKEN(SUMS)
                RUN(w->q + at, run)
                EACH_TOKEN(START)
                __m256i s0 = load(w->scale[j]), s1 = load(w->scale[j] + 8);
                EACH_TOKEN(WIDEN)
            }
        }
        __m256 d0 = _mm256_load_ps(w->d), d1 = _mm256_load_ps(w->d + 8);
        EACH_TOKEN(TO_F)
    }
    if (mins != NO_MINS) {
        EACH_TOKEN(ZERO)
        for (int j = 0; j < (mins == MINS_32 ? 4 : 8); j++) {
            __m256i m0 = load(w->min[j]), m1 = load(w->min[j] + 8);
            EACH_TOKEN(PAIRS)
        }
        __m256 d0 = _mm256_load_ps(w->d_min), d1 = _mm256_load_ps(w->d_min + 8);
        EACH_TOKEN(TO_G)
    }
#undef ZERO
#undef AHEAD
#undef START
#undef WIDEN
#undef PAIRS
#undef TO
#undef TO_F
#undef TO_G
}

/* Sums of the strip's rows for tokens [t0, t0 + n_t). */
INLINE void strip_super(const enum fo_dtype type, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct work *k) {
    const bool q45 = type == FO_Q4_K || type == FO_Q5_K, q23 = type == FO_Q2_K || type == FO_Q3_K;
    const int steps = q45 ? 8 : 4, run = type == FO_Q4_K ? 8 : 4, mins = q45 ? MINS_32 : type == FO_Q2_K ? MINS_16 : NO_MINS;
    const int size = block_bytes(type);
    const size_t n_starts = (size_t)a->k / 16;
    memset(k->sum, 0, (size_t)n_t * sizeof *k->sum);
    for (int64_t b = 0; b < a->k / 256; b++) {
        const size_t at = (size_t)b * (size_t)size;
        struct fetch fetch = fetch_of(s, at * ROWS, (size_t)size * ROWS, N_GROUPS(n_t));
        if (q45) unpack_q45_k(type == FO_Q5_K, s, at, &k->w);
        if (q23) unpack_q23_k(type == FO_Q3_K, s, at, &k->w);
        if (type == FO_Q6_K) unpack_q6_k(s, at, &k->w);
#define PART(t, T)                                                                                                                       \
    fetch_some(&fetch);                                                                                                                  \
    tokens_super(&k->w, b, a, t0 + (t), k->sum + (t), k->start + (size_t)(t)*n_starts, n_starts, steps, run, mins, offset_of(type) != 0, T);
        BY_TOKENS(n_t, PART)
#undef PART
    }
    if (mins != NO_MINS)
        for (int i = 0; i < n_t; i++)
            for (int l = 0; l < ROWS; l++) k->sum[i].f[l] -= k->sum[i].g[l];
}

INLINE void begin(const enum fo_dtype type, const struct fo_act *a, int t, int n_t, struct work *k) {
    if (!offset_of(type)) return;
    for (int i = 0; i < n_t; i++) put_starts(a, t + i, offset_of(type), k->start + (size_t)i * (size_t)(a->k / 16));
}

INLINE void put_sums(const struct sums *sum, float *y, int rows) {
    memcpy(y, sum->f, (size_t)rows * sizeof *y);
}

GEMM_SLOT(gemm_q2_k, FO_Q2_K, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_q3_k, FO_Q3_K, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_q4_k, FO_Q4_K, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_q5_k, FO_Q5_K, work, begin, strip_super, put_sums)
GEMM_SLOT(gemm_q6_k, FO_Q6_K, work, begin, strip_super, put_sums)

void fo_cpu_avx2_gemm_k(struct fo_cpu_kernels *k) {
    k->gemm[FO_Q2_K] = gemm_q2_k;
    k->gemm[FO_Q3_K] = gemm_q3_k;
    k->gemm[FO_Q4_K] = gemm_q4_k;
    k->gemm[FO_Q5_K] = gemm_q5_k;
    k->gemm[FO_Q6_K] = gemm_q6_k;
}
#endif
