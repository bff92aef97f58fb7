/* Types of 256 elements a block by batches of activations for AVX-512 with VNNI: what the dots of avx512.c and avx512_k.c compute for one row
 * of weights, these compute for 32 rows and up to six tokens at a time, with the same integers and the same floats in the same order, so that
 * a token's numbers do not depend on which of the two computed them. avx512_strip.h tells how a strip lies.
 *
 * One block of 32 rows is unpacked (11 KiB: it stays in the first cache) and all tokens pass it; their sums wait in scratch. The integer of a
 * sub-block times its integer scale, added up in 32 bits: VPDPWSSD does both where the sum fits 16 bits (Q2_K: 16 * 3 * 127 = 6096, Q3_K: 16
 * * 4 * 127 = 8128). Elsewhere VPMULLD and VPADDD, for which AMD has units that VPDPBUSD does not use.
 *
 * Q6_K and Q3_K have an offset, which is taken off at the start of such a sum. */
#include "foundry/cpu/avx512_strip.h"

#ifdef HAS_AVX512
/* One block of a strip: q[4 columns][row][column]. Scales for VPDPWSSD have zero in their upper words; mins are in pairs of neighbouring
 * sub-blocks. */
struct super {
    uint8_t q[64][ROWS][4];
    int32_t scale[16][ROWS];
    int16_t min[8][ROWS][2];
    float d[ROWS], d_min[ROWS];
};

/* Of a token: the sums of a strip's rows so far, and of its mins. */
struct sums {
    float f[ROWS], g[ROWS];
};

/* scratch: one block, the tokens' sums, and what their integers start with, [token][16 columns]. */
struct super_work {
    struct super w;
    struct sums sum[TOKENS];
    int32_t start[];
};
_Static_assert(sizeof(struct super_work) <= FO_GEMM_FIXED_BYTES && TOKENS * 16 * sizeof(int32_t) <= FO_GEMM_BYTES, "scratch");

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

INLINE void put_scales(int32_t to[ROWS], const int g, __m128i bytes, const bool word) {
    __m512i v = _mm512_cvtepi8_epi32(bytes);
    _mm512_store_si512(to + 16 * g, word ? _mm512_and_si512(v, _mm512_set1_epi32(0xFFFF)) : v);
}

INLINE void unpack_q45_k(const bool five, const struct strip *s, const int g, size_t at, struct super *out) {
    const size_t qs = five ? offsetof(struct fo_block_q5_k, qs) : offsetof(struct fo_block_q4_k, qs), qh = offsetof(struct fo_block_q5_k, qh);
    for (int half = 0; half < 2; half++) {
        struct quads h = { { _mm512_setzero_si512() } };
        if (five) h = quads_of(s, g, at + qh + (size_t)half * 16);
#define SIXTY_FOUR(c)                                                                                                                    \
    {                                                                                                                                    \
        struct quads v = quads_of(s, g, at + qs + (c)*32 + (size_t)half * 16);                                                           \
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {                                                                            \
            __m512i low = low_nibbles(v.q[i]), high = high_nibbles(v.q[i]);                                                              \
            if (five) low = _mm512_or_si512(low, bits_up(h.q[i], 4 - 2 * (c), 16));                                                      \
            if (five) high = _mm512_or_si512(high, bits_up(h.q[i], 3 - 2 * (c), 16));                                                    \
            put_quad(out->q[(c)*16 + half * 4 + i], g, low);                                                                             \
            put_quad(out->q[(c)*16 + 8 + half * 4 + i], g, high);                                                                        \
        }                                                                                                                                \
    }
        SIXTY_FOUR(0) SIXTY_FOUR(1) SIXTY_FOUR(2) SIXTY_FOUR(3)
#undef SIXTY_FOUR
    }
    __m128i v[16];
    for (int r = 0; r < 16; r++) v[r] = scales_q45_k(s->row[16 * g + r] + at + offsetof(struct fo_block_q4_k, scales));
    turn_bytes(v);
    for (int j = 0; j < 8; j++) put_scales(out->scale[j], g, v[j], false);
    for (int j = 0; j < 4; j++) put_beside(out->min[j] + 16 * g, v[8 + 2 * j], v[9 + 2 * j]);
    _mm512_store_ps(out->d + 16 * g, halves_of(s, g, at + offsetof(struct fo_block_q4_k, d))); /* d, dmin and scales lie in the same places in both */
    _mm512_store_ps(out->d_min + 16 * g, halves_of(s, g, at + offsetof(struct fo_block_q4_k, dmin)));
}

INLINE void unpack_q6_k(const struct strip *s, const int g, size_t at, struct super *out) {
    for (int i = 0; i < 4; i++) { /* sixteen elements of a half, of each quarter of it */
        const size_t half = (size_t)i / 2, piece = (size_t)i % 2 * 16;
        struct quads u = quads_of(s, g, at + half * 64 + piece), v = quads_of(s, g, at + half * 64 + 32 + piece);
        struct quads h = quads_of(s, g, at + offsetof(struct fo_block_q6_k, qh) + half * 32 + piece);
        uint8_t(*to)[ROWS][4] = out->q + i / 2 * 32 + i % 2 * 4;
        _Pragma("GCC unroll 4") for (int q = 0; q < 4; q++) {
            put_quad(to[q], g, _mm512_or_si512(low_nibbles(u.q[q]), bits_up(h.q[q], 4, 0x30)));
            put_quad(to[q + 8], g, _mm512_or_si512(low_nibbles(v.q[q]), bits_up(h.q[q], 2, 0x30)));
            put_quad(to[q + 16], g, _mm512_or_si512(high_nibbles(u.q[q]), bits_up(h.q[q], 0, 0x30)));
            put_quad(to[q + 24], g, _mm512_or_si512(high_nibbles(v.q[q]), bits_up(h.q[q], -2, 0x30)));
        }
    }
    __m128i v[16];
    for (int r = 0; r < 16; r++) v[r] = load16(s->row[16 * g + r] + at + offsetof(struct fo_block_q6_k, scales));
    turn_bytes(v);
    for (int j = 0; j < 16; j++) put_scales(out->scale[j], g, v[j], false);
    _mm512_store_ps(out->d + 16 * g, halves_of(s, g, at + offsetof(struct fo_block_q6_k, d)));
}

INLINE void unpack_q23_k(const bool three, const struct strip *s, const int g, size_t at, struct super *out) {
    const size_t qs = three ? offsetof(struct fo_block_q3_k, qs) : offsetof(struct fo_block_q2_k, qs);
    for (int piece = 0; piece < 2; piece++) {
        struct quads u = quads_of(s, g, at + qs + (size_t)piece * 16), v = quads_of(s, g, at + qs + 32 + (size_t)piece * 16), h = u;
        if (three) h = quads_of(s, g, at + offsetof(struct fo_block_q3_k, hmask) + (size_t)piece * 16);
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
#define BITS(w, j, bit)                                                                                                                  \
    put_quad(out->q[(bit)*8 + piece * 4 + i], g,                                                                                         \
             three ? _mm512_or_si512(bits_up(w.q[i], -2 * (j), 3), bits_up(h.q[i], 2 - (bit), 4)) : bits_up(w.q[i], -2 * (j), 3));
            BITS(u, 0, 0) BITS(u, 1, 1) BITS(u, 2, 2) BITS(u, 3, 3)
            BITS(v, 0, 4) BITS(v, 1, 5) BITS(v, 2, 6) BITS(v, 3, 7)
#undef BITS
        }
    }
    __m128i v[16], low = _mm_set1_epi8(15);
    for (int r = 0; r < 16; r++) {
        const unsigned char *block = s->row[16 * g + r] + at;
        v[r] = three ? scales_q3_k(block + offsetof(struct fo_block_q3_k, scales)) : load16(block + offsetof(struct fo_block_q2_k, scales));
    }
    turn_bytes(v);
    for (int j = 0; j < 16; j++) put_scales(out->scale[j], g, three ? v[j] : _mm_and_si128(v[j], low), true);
    _mm512_store_ps(out->d + 16 * g, halves_of(s, g, at + (three ? offsetof(struct fo_block_q3_k, d) : offsetof(struct fo_block_q2_k, d))));
    if (three) return;
    for (int j = 0; j < 8; j++)
        put_beside(out->min[j] + 16 * g, _mm_and_si128(_mm_srli_epi16(v[2 * j], 4), low), _mm_and_si128(_mm_srli_epi16(v[2 * j + 1], 4), low));
    _mm512_store_ps(out->d_min + 16 * g, halves_of(s, g, at + offsetof(struct fo_block_q2_k, dmin)));
}

/* What the sums of every 16 columns of a token start with. */
INLINE void put_super_starts(const struct fo_act *a, int64_t t, const int offset, int32_t *out) {
    const int16_t *sums = fo_act_q8_k(a, t).sum16;
    for (int64_t i = 0; i < a->k / 16; i += 16)
        _mm512_storeu_si512(out + i, _mm512_mullo_epi32(_mm512_cvtepi16_epi32(load32(sums + i)), _mm512_set1_epi32(-offset)));
}

/* --- products ------------------------------------------------------------------------------------------------------------------ */

enum { NO_MINS, MINS_16, MINS_32 };

/* Adds the products of block b with tokens t.. to their sums. Sub-blocks have 4 * `steps` columns, sums that are words or not. Mins: pairs
 * of them with the activations' sums of 16 or 32. `start`, [T][start_stride], counts with `offset` only. */
INLINE void tokens_super(const struct super *w, int64_t b, const struct fo_act *a, int64_t t, struct sums *sum, const int32_t *start, size_t start_stride,
                         const int steps, const bool word, const int mins, const bool offset, const int T) {
    const struct fo_act_q8_k x0 = fo_act_q8_k(a, t), x1 = fo_act_q8_k(a, t + (T > 1)), x2 = fo_act_q8_k(a, t + (T > 2) * 2),
                             x3 = fo_act_q8_k(a, t + (T > 3) * 3), x4 = fo_act_q8_k(a, t + (T > 4) * 4), x5 = fo_act_q8_k(a, t + (T > 5) * 5);
    const int8_t *p0 = x0.q + b * 256, *p1 = x1.q + b * 256, *p2 = x2.q + b * 256, *p3 = x3.q + b * 256, *p4 = x4.q + b * 256, *p5 = x5.q + b * 256;
    const size_t ahead_by = (size_t)T * a->row_bytes;
    start += b * 16;
#define ZERO(n) __m512i u##n = _mm512_setzero_si512(), v##n = u##n;
#define AHEAD(n) if (n < T) _mm_prefetch((const char *)p##n + ahead_by, _MM_HINT_T0);
#define START(n)                                                                                                                         \
    __m512i a##n = _mm512_setzero_si512();                                                                                               \
    if (offset && n < T) a##n = four(start + n * start_stride + j);                                                                      \
    __m512i b##n = a##n;
#define WIDEN(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        u##n = word ? _mm512_dpwssd_epi32(u##n, a##n, s0) : _mm512_add_epi32(u##n, _mm512_mullo_epi32(a##n, s0));                        \
        v##n = word ? _mm512_dpwssd_epi32(v##n, b##n, s1) : _mm512_add_epi32(v##n, _mm512_mullo_epi32(b##n, s1));                        \
        p##n += 4 * steps;                                                                                                               \
    }
#define PAIRS(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        const __m512i s = four((mins == MINS_32 ? x##n.sum32 + b * 8 : x##n.sum16 + b * 16) + 2 * j);                                    \
        u##n = _mm512_dpwssd_epi32(u##n, m0, s);                                                                                         \
        v##n = _mm512_dpwssd_epi32(v##n, m1, s);                                                                                         \
    }
#define TO(n, to)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        const __m512 d = _mm512_set1_ps(x##n.d[b]);                                                                                      \
        _mm512_store_ps(sum[n].to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(u##n), _mm512_mul_ps(d0, d), _mm512_load_ps(sum[n].to)));          \
        _mm512_store_ps(sum[n].to + 16, _mm512_fmadd_ps(_mm512_cvtepi32_ps(v##n), _mm512_mul_ps(d1, d), _mm512_load_ps(sum[n].to + 16)));  \
    }
#define TO_F(n) TO(n, f)
#define TO_G(n) TO(n, g)
    {
        EACH_TOKEN(ZERO)
        for (int j = 0; j < 64 / steps; j++) {
            if (j * steps % 16 == 0) {
                EACH_TOKEN(AHEAD)
            }
            EACH_TOKEN(START)
            RUN(w->q + j * steps, steps)
            const __m512i s0 = load(w->scale[j]), s1 = load(w->scale[j] + 16);
            EACH_TOKEN(WIDEN)
        }
        const __m512 d0 = _mm512_load_ps(w->d), d1 = _mm512_load_ps(w->d + 16);
        EACH_TOKEN(TO_F)
    }
    if (mins != NO_MINS) {
        EACH_TOKEN(ZERO)
        for (int j = 0; j < (mins == MINS_32 ? 4 : 8); j++) {
            const __m512i m0 = load(w->min[j]), m1 = load(w->min[j] + 16);
            EACH_TOKEN(PAIRS)
        }
        const __m512 d0 = _mm512_load_ps(w->d_min), d1 = _mm512_load_ps(w->d_min + 16);
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

#define SUPER_TOKENS(name, call)                                                                                                         \
    static __attribute__((noinline)) void name(const struct super *w, int64_t b, const struct fo_act *a, int64_t t, int n_t,             \
                                               struct sums *sum, const int32_t *start, size_t start_stride) {                            \
        WITH_T(n_t, call)                                                                                                                \
    }
#define CALL_Q45(T) tokens_super(w, b, a, t, sum, start, start_stride, 8, false, MINS_32, false, T)
#define CALL_Q6(T) tokens_super(w, b, a, t, sum, start, start_stride, 4, false, NO_MINS, true, T)
#define CALL_Q3(T) tokens_super(w, b, a, t, sum, start, start_stride, 4, true, NO_MINS, true, T)
#define CALL_Q2(T) tokens_super(w, b, a, t, sum, start, start_stride, 4, true, MINS_16, false, T)
SUPER_TOKENS(tokens_q45_k, CALL_Q45)
SUPER_TOKENS(tokens_q6_k, CALL_Q6)
SUPER_TOKENS(tokens_q3_k, CALL_Q3)
SUPER_TOKENS(tokens_q2_k, CALL_Q2)

/* Sums of the strip's rows for tokens [t0, t0 + n_t). */
INLINE void strip_super(const enum fo_dtype type, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct super_work *k) {
    const int size = block_bytes(type);
    const size_t n_starts = (size_t)a->k / 16;
    memset(k->sum, 0, (size_t)n_t * sizeof *k->sum);
    for (int64_t b = 0; b < a->k / 256; b++) {
        const size_t at = (size_t)b * (size_t)size;
        struct fetch fetch = fetch_of(s, at * ROWS, (size_t)size * ROWS, N_GROUPS(n_t));
        for (int g = 0; g < 2; g++) {
            if (type == FO_Q4_K || type == FO_Q5_K) unpack_q45_k(type == FO_Q5_K, s, g, at, &k->w);
            if (type == FO_Q2_K || type == FO_Q3_K) unpack_q23_k(type == FO_Q3_K, s, g, at, &k->w);
            if (type == FO_Q6_K) unpack_q6_k(s, g, at, &k->w);
        }
#define PART(t, n_part)                                                                                                                  \
    fetch_some(&fetch);                                                                                                                  \
    (type == FO_Q6_K   ? tokens_q6_k                                                                                                     \
     : type == FO_Q3_K ? tokens_q3_k                                                                                                     \
     : type == FO_Q2_K ? tokens_q2_k                                                                                                     \
                       : tokens_q45_k)(&k->w, b, a, t0 + (t), n_part, k->sum + (t), k->start + (size_t)(t)*n_starts, n_starts)
        BY_TOKENS(n_t, PART)
#undef PART
    }
    if (type != FO_Q6_K && type != FO_Q3_K)
        for (int i = 0; i < n_t; i++)
            for (int l = 0; l < ROWS; l++) k->sum[i].f[l] -= k->sum[i].g[l];
}

INLINE void begin_super(const enum fo_dtype type, const struct fo_act *a, int t, int n_t, struct super_work *k) {
    if (!offset_of(type)) return;
    for (int i = 0; i < n_t; i++) put_super_starts(a, t + i, offset_of(type), k->start + (size_t)i * (size_t)(a->k / 16));
}

INLINE void put_super(const struct sums *sum, float *y, int rows) {
    memcpy(y, sum->f, (size_t)rows * sizeof *y);
}

GEMM_SLOT(gemm_q2_k, FO_Q2_K, super_work, begin_super, strip_super, put_super)
GEMM_SLOT(gemm_q3_k, FO_Q3_K, super_work, begin_super, strip_super, put_super)
GEMM_SLOT(gemm_q4_k, FO_Q4_K, super_work, begin_super, strip_super, put_super)
GEMM_SLOT(gemm_q5_k, FO_Q5_K, super_work, begin_super, strip_super, put_super)
GEMM_SLOT(gemm_q6_k, FO_Q6_K, super_work, begin_super, strip_super, put_super)

void fo_cpu_avx512_gemm_k(struct fo_cpu_kernels *k) {
    k->gemm[FO_Q2_K] = gemm_q2_k;
    k->gemm[FO_Q3_K] = gemm_q3_k;
    k->gemm[FO_Q4_K] = gemm_q4_k;
    k->gemm[FO_Q5_K] = gemm_q5_k;
    k->gemm[FO_Q6_K] = gemm_q6_k;
}
#endif
