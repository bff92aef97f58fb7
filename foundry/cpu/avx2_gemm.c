/* Types of 32 elements a block by batches of activations for AVX2 + FMA. What the dots of avx2.c and avx2_legacy.c compute for one row of
 * weights, these compute for sixteen rows and up to three tokens at a time, with the same integers and the same floats in the same order, so
 * that a token's numbers do not depend on which of the two computed them. avx2_strip.h tells how a strip lies.
 *
 * Quants up to 15: vpmaddubsw adds two products in 16 bits, and eight of these fit (8 * 2 * 15 * 127 = 30480), up to 31 four. Bytes with a
 * sign (Q8_0) leave no room: |w| by the activations with the sign of w, widened at once. The sign is an exclusive or, which makes -1 - x of x
 * where w < 0; the |w| too many that it takes off are known of the weights alone, and the sum starts with them. vpsignb would do
 * without, but it competes with the multiplications for their two ports, the exclusive or with nothing. The least sum of two products is
 * -2 * 128 * 128, which 16 bits just hold. (Two planes of nibbles: two thirds; words by words: as vpsignb, with more to read.)
 *
 * Order. A dot keeps block b in lane b % 8 and folds the eight lanes at the end of the row; here each class of blocks, b % 8, has sums of its own
 * for every row and token, folded in the same way. A piece of a strip that stays in the first cache is unpacked and all tokens pass it, a
 * class at a time; meanwhile their sums wait in scratch. */
#include "foundry/cpu/avx2_strip.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
enum { CLASSES = 8, NIBBLE_BLOCKS = 32, BYTE_BLOCKS = 16 /* blocks of a piece, whole rounds of classes */ };

/* Sixteen rows of a block: q[4 columns][row][column]. */
struct nibbles {
    uint8_t q[8][ROWS][4];
    float d[ROWS], m[ROWS];
};
struct bytes {
    uint8_t u[8][ROWS][4]; /* |q| */
    uint8_t m[8][ROWS][4]; /* ones where q is below 0 */
    int32_t below[ROWS];   /* the sum of |q| there */
    float d[ROWS];
};

/* scratch: a piece, and the sums of a strip's rows for every token and class. */
struct work {
    union {
        struct nibbles nibbles[NIBBLE_BLOCKS];
        struct bytes bytes[BYTE_BLOCKS];
    };
    float sum[TOKENS][CLASSES][ROWS];
};
_Static_assert(sizeof(struct work) <= FO_GEMM_FIXED_BYTES, "scratch");

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

/* Types of which quants are without a sign, and what is added for all of them is a multiple of the activations' sum. */
INLINE bool is_nibbles(const enum fo_dtype type) {
    return type != FO_Q8_0 && type != FO_IQ4_NL;
}

INLINE bool is_five(const enum fo_dtype type) {
    return type == FO_Q5_0 || type == FO_Q5_1;
}

/* Words of rows 8 g.., `at` bytes into them. */
INLINE __m256i words_of_rows(const struct strip *s, const int g, size_t at) {
    int w[8];
    for (int i = 0; i < 8; i++) memcpy(&w[i], s->row[8 * g + i] + at, sizeof w[i]);
    return _mm256_setr_epi32(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
}

/* 16 in byte i of every word whose bit 4 * `quad` + i is set. */
INLINE __m256i fifths_of(__m256i words, const int quad) {
    const __m256i bit = _mm256_set1_epi32(quad % 2 ? (int)0x80402010 : 0x08040201);
    const int byte = quad / 2 * 0x01010101;
    __m256i v = _mm256_shuffle_epi8(words, _mm256_setr_epi32(byte, byte + 0x04040404, byte + 0x08080808, byte + 0x0C0C0C0C, byte, byte + 0x04040404,
                                                             byte + 0x08080808, byte + 0x0C0C0C0C));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit), _mm256_set1_epi8(16));
}

/* Block `at` bytes into each row. */
INLINE void unpack_nibbles(const enum fo_dtype type, const struct strip *s, size_t at, const int size, struct nibbles *out) {
    const bool mins = type == FO_Q4_1 || type == FO_Q5_1;
    const __m256i values = _mm256_add_epi8(_mm256_broadcastsi128_si256(load16(fo_fp4_values)), _mm256_set1_epi8(12));
    for (int g = 0; g < 2; g++) {
        struct quads v = quads_of(s, g, at + (size_t)size - 16);
        __m256i h = is_five(type) ? words_of_rows(s, g, at + (size_t)size - 20) : _mm256_setzero_si256();
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            __m256i low = low_nibbles(v.q[i]), high = high_nibbles(v.q[i]);
            if (is_five(type)) low = _mm256_or_si256(low, fifths_of(h, i)), high = _mm256_or_si256(high, fifths_of(h, 4 + i));
            if (type == FO_MXFP4) low = _mm256_shuffle_epi8(values, low), high = _mm256_shuffle_epi8(values, high);
            put_quad(out->q[i], g, low);
            put_quad(out->q[4 + i], g, high);
        }
    }
    if (type == FO_MXFP4)
        put_powers(s, at, out->d, ROWS);
    else
        put_halves(s, at, out->d);
    const float offset = type == FO_MXFP4 ? 1 : is_five(type) ? -16 : -8; /* of MXFP4 beside the activations' sum: its d times 12 may overflow */
    if (mins)
        put_halves(s, at + 2, out->m);
    else
        for (int r = 0; r < ROWS; r++) out->m[r] = out->d[r] * offset;
}

/* Four columns of rows 8 g.. , with their part of `below` added to it. */
INLINE __m256i put_bytes(struct bytes *out, const int column, const int g, __m256i q, __m256i below) {
    __m256i u = _mm256_abs_epi8(q), m = _mm256_cmpgt_epi8(_mm256_setzero_si256(), q);
    put_quad(out->u[column], g, u);
    put_quad(out->m[column], g, m);
    return _mm256_add_epi32(below, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(u, m), _mm256_set1_epi8(1)), _mm256_set1_epi16(1)));
}

INLINE void unpack_bytes(const enum fo_dtype type, const struct strip *s, size_t at, struct bytes *out) {
    const __m256i values = _mm256_broadcastsi128_si256(load16(fo_iq4_values));
    for (int g = 0; g < 2; g++) {
        __m256i below = _mm256_setzero_si256();
        for (int half = 0; half < (type == FO_Q8_0 ? 2 : 1); half++) {
            struct quads v = quads_of(s, g, at + 2 + (size_t)half * 16);
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
                __m256i q = v.q[i], high = q;
                if (type == FO_IQ4_NL) q = _mm256_shuffle_epi8(values, low_nibbles(v.q[i])), high = _mm256_shuffle_epi8(values, high_nibbles(v.q[i]));
                below = put_bytes(out, half * 4 + i, g, q, below);
                if (type == FO_IQ4_NL) below = put_bytes(out, 4 + i, g, high, below);
            }
        }
        _mm256_store_si256((__m256i *)(void *)(out->below + 8 * g), below);
    }
    put_halves(s, at, out->d);
}

/* --- products ------------------------------------------------------------------------------------------------------------------ */

/* Blocks [b, b + n_blocks) of a row of activations, of which b is a multiple of 8, with tokens t.., added to their sums. */
#define TOKENS_OF(a, t)                                                                                                                  \
    struct fo_act_q8_0 x0 = fo_act_q8_0(a, t);                                                                                           \
    struct fo_act_q8_0 x1 = fo_act_q8_0(a, t + (T > 1)), x2 = fo_act_q8_0(a, t + (T > 2) * 2);
#define PLACES(i) const int8_t *p0 = x0.q + (b + (i)) * 32, *p1 = x1.q + (b + (i)) * 32, *p2 = x2.q + (b + (i)) * 32;
#define AHEAD(n) if (n < T && i % 2 == 0) _mm_prefetch((const char *)p##n + ahead_by, _MM_HINT_T0);
#define SUM_LOAD(n)                                                                                                                      \
    __m256 f##n = _mm256_setzero_ps(), g##n = f##n;                                                                                      \
    if (n < T) f##n = _mm256_load_ps(sum[n][c]), g##n = _mm256_load_ps(sum[n][c] + 8);
#define SUM_STORE(n) if (n < T) _mm256_store_ps(sum[n][c], f##n), _mm256_store_ps(sum[n][c] + 8, g##n);

INLINE void tokens_nibbles(const struct nibbles *w, int b, int n_blocks, const struct fo_act *a, int64_t t, float (*sum)[CLASSES][ROWS],
                           const enum fo_dtype type, const int T) {
    const int run = type == FO_Q4_0 || type == FO_Q4_1 ? 8 : 4; /* steps whose sums fit 16 bits */
    const __m256i one = _mm256_set1_epi16(1);
    const size_t ahead_by = (size_t)T * a->row_bytes;
    TOKENS_OF(a, t)
    for (int c = 0; c < CLASSES && c < n_blocks; c++) {
        EACH_TOKEN(SUM_LOAD)
        for (int i = c; i < n_blocks; i += CLASSES) {
            PLACES(i)
            EACH_TOKEN(AHEAD)
#define WIDEN(n) __m256i u##n = _mm256_madd_epi16(a##n, one), v##n = _mm256_madd_epi16(b##n, one);
#define WIDEN_MORE(n)                                                                                                                    \
    u##n = _mm256_add_epi32(u##n, _mm256_madd_epi16(a##n, one)), v##n = _mm256_add_epi32(v##n, _mm256_madd_epi16(b##n, one));
#define MOVE(n) p##n += 4 * run;
#define SCALE(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        __m256 d = _mm256_broadcast_ss(x##n.d + b + i), s = _mm256_broadcast_ss(x##n.s + b + i);                                         \
        if (type == FO_MXFP4) s = _mm256_mul_ps(s, _mm256_set1_ps(-12));                                                                 \
        f##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(u##n), _mm256_mul_ps(d0, d), _mm256_fmadd_ps(m0, s, f##n));                            \
        g##n = _mm256_fmadd_ps(_mm256_cvtepi32_ps(v##n), _mm256_mul_ps(d1, d), _mm256_fmadd_ps(m1, s, g##n));                            \
    }
            EACH_TOKEN(SUMS)
            RUN(w[i].q, run)
            EACH_TOKEN(WIDEN)
            if (run < 8) {
                EACH_TOKEN(MOVE)
                RUN(w[i].q + run, run)
                EACH_TOKEN(WIDEN_MORE)
            }
            __m256 d0 = _mm256_load_ps(w[i].d), d1 = _mm256_load_ps(w[i].d + 8), m0 = _mm256_load_ps(w[i].m), m1 = _mm256_load_ps(w[i].m + 8);
            EACH_TOKEN(SCALE)
#undef WIDEN
#undef WIDEN_MORE
#undef MOVE
#undef SCALE
        }
        EACH_TOKEN(SUM_STORE)
    }
}

#define EACH_FOUR(X) X(0) X(1) X(2) X(3)

INLINE void tokens_bytes(const struct bytes *w, int b, int n_blocks, const struct fo_act *a, int64_t t, float (*sum)[CLASSES][ROWS], const int T) {
    const __m256i one = _mm256_set1_epi16(1);
    const size_t ahead_by = (size_t)T * a->row_bytes;
    TOKENS_OF(a, t)
    const struct fo_act_q8_0 x3 = fo_act_q8_0(a, t + (T > 3) * 3);
    for (int c = 0; c < CLASSES && c < n_blocks; c++) {
        for (int i = c; i < n_blocks; i += CLASSES) {
            PLACES(i)
            const int8_t *p3 = x3.q + (b + i) * 32;
            EACH_FOUR(AHEAD)
#define SIGNED(n)                                                                                                                        \
    if (n < T) {                                                                                                                         \
        __m256i x = four(p##n + 4 * j);                                                                                                  \
        a##n = add_dwords(a##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u0, _mm256_xor_si256(x, m0)), one));                              \
        b##n = add_dwords(b##n, _mm256_madd_epi16(_mm256_maddubs_epi16(u1, _mm256_xor_si256(x, m1)), one));                              \
    }
#define SCALE(n)                                                                                                                         \
    if (n < T) {                                                                                                                         \
        __m256 d = _mm256_broadcast_ss(x##n.d + b + i);                                                                                  \
        float *f = sum[n][c]; /* in memory: no register is left for it */                                                                \
        _mm256_store_ps(f, _mm256_fmadd_ps(_mm256_cvtepi32_ps(a##n), _mm256_mul_ps(d0, d), _mm256_load_ps(f)));                          \
        _mm256_store_ps(f + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(b##n), _mm256_mul_ps(d1, d), _mm256_load_ps(f + 8)));                  \
    }
            __m256i below0 = load(w[i].below), below1 = load(w[i].below + 8);
#define BELOW(n) __m256i a##n = below0, b##n = below1;
            EACH_FOUR(BELOW)
            _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                __m256i u0 = load(w[i].u[j]), u1 = load(w[i].u[j][8]), m0 = load(w[i].m[j]), m1 = load(w[i].m[j][8]);
                EACH_FOUR(SIGNED)
            }
            __m256 d0 = _mm256_load_ps(w[i].d), d1 = _mm256_load_ps(w[i].d + 8);
            EACH_FOUR(SCALE)
#undef BELOW
#undef SIGNED
#undef SCALE
        }
    }
}

/* Folds a token's classes. */
INLINE void put_sums(float (*sum)[CLASSES][ROWS], float *y, int rows) {
    float(*f)[ROWS] = *sum;
    _Alignas(32) float out[ROWS];
    for (int h = 0; h < ROWS; h += 8) {
#define L(i) _mm256_load_ps(f[i] + h)
        __m256 even = _mm256_add_ps(_mm256_add_ps(L(0), L(4)), _mm256_add_ps(L(2), L(6)));
        __m256 odd = _mm256_add_ps(_mm256_add_ps(L(1), L(5)), _mm256_add_ps(L(3), L(7)));
        _mm256_store_ps(out + h, _mm256_add_ps(even, odd));
#undef L
    }
    memcpy(y, out, (size_t)rows * sizeof *y);
}

/* --- the slots ----------------------------------------------------------------------------------------------------------------- */

/* Sums of the strip's rows for tokens [t0, t0 + n_t). */
INLINE void strip_sums(const enum fo_dtype type, const struct strip *s, const struct fo_act *a, int t0, int n_t, struct work *k) {
    const int size = block_bytes(type);
    const int most = is_nibbles(type) ? NIBBLE_BLOCKS : BYTE_BLOCKS;
    const int all = (int)(a->k / 32);
    memset(k->sum, 0, (size_t)n_t * sizeof *k->sum);
    for (int b = 0; b < all; b += most) {
        const int n = all - b < most ? all - b : most;
        for (int i = 0; i < n; i++) {
            const size_t at = (size_t)(b + i) * (size_t)size;
            strip_ahead(s, at, size, ROWS);
            if (is_nibbles(type))
                unpack_nibbles(type, s, at, size, &k->nibbles[i]);
            else
                unpack_bytes(type, s, at, &k->bytes[i]);
        }
#define NIBBLES(t, T) tokens_nibbles(k->nibbles, b, n, a, t0 + (t), k->sum + (t), type, T);
#define BYTES(t, T) tokens_bytes(k->bytes, b, n, a, t0 + (t), k->sum + (t), T);
        if (is_nibbles(type)) {
            BY_TOKENS(n_t, NIBBLES)
        } else {
            int t = 0;
            for (; n_t - t >= 4; t += 4) BYTES(t, 4) /* bytes are summed in 32 bits at once: half the registers */
            if (n_t - t == 3) BYTES(t, 3)
            if (n_t - t == 2) BYTES(t, 2)
            if (n_t - t == 1) BYTES(t, 1)
        }
#undef NIBBLES
#undef BYTES
    }
}

GEMM_SLOT(gemm_q4_0, FO_Q4_0, work, NOTHING, strip_sums, put_sums)
GEMM_SLOT(gemm_q4_1, FO_Q4_1, work, NOTHING, strip_sums, put_sums)
GEMM_SLOT(gemm_q5_0, FO_Q5_0, work, NOTHING, strip_sums, put_sums)
GEMM_SLOT(gemm_q5_1, FO_Q5_1, work, NOTHING, strip_sums, put_sums)
GEMM_SLOT(gemm_q8_0, FO_Q8_0, work, NOTHING, strip_sums, put_sums)
GEMM_SLOT(gemm_iq4_nl, FO_IQ4_NL, work, NOTHING, strip_sums, put_sums)
GEMM_SLOT(gemm_mxfp4, FO_MXFP4, work, NOTHING, strip_sums, put_sums)

void fo_cpu_avx2_gemm(struct fo_cpu_kernels *k) {
    k->gemm[FO_Q4_0] = gemm_q4_0;
    k->gemm[FO_Q4_1] = gemm_q4_1;
    k->gemm[FO_Q5_0] = gemm_q5_0;
    k->gemm[FO_Q5_1] = gemm_q5_1;
    k->gemm[FO_Q8_0] = gemm_q8_0;
    k->gemm[FO_IQ4_NL] = gemm_iq4_nl;
    k->gemm[FO_MXFP4] = gemm_mxfp4;
    fo_cpu_avx2_gemm_k(k);
    fo_cpu_avx2_gemm_iq(k);
}
#endif
