/* The block layouts of the quantised types, as they lie in GGUF files (formats of the ggml project), and the functions that fill
 * the dtype table. Kernels of the cpu device read these structs straight from the mapped file: no field may need alignment beyond
 * 2 bytes, and every block is a multiple of 2 bytes but Q6_K's neighbours in a row start wherever the last one ended, so 16-bit
 * fields are aligned and nothing wider is. Everything here is pure: any thread.
 *
 * Conventions: a scale `d` is an IEEE half as bits; elements of a "legacy" block of 32 are stored as two halves (low nibbles are
 * elements 0..15, high nibbles 16..31); a K-quant block has 256 elements in sub-blocks of 32 or 16. */
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { FO_QK = 32, FO_QK_K = 256 };

/* x = d * (q - 8) */
struct fo_block_q4_0 {
    uint16_t d;
    uint8_t qs[FO_QK / 2];
};

/* x = d * q + m */
struct fo_block_q4_1 {
    uint16_t d, m;
    uint8_t qs[FO_QK / 2];
};

/* x = d * (q - 16): bit i of the 32-bit little-endian word qh is the fifth bit of element i. */
struct fo_block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[FO_QK / 2];
};

/* x = d * q + m */
struct fo_block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[FO_QK / 2];
};

/* x = d * fo_iq4_values[q] */
struct fo_block_iq4_nl {
    uint16_t d;
    uint8_t qs[FO_QK / 2];
};

/* x = 2^(e - 128) * fo_fp4_values[q] (OCP microscaling: E2M1 elements, here doubled, and an E8M0 scale) */
struct fo_block_mxfp4 {
    uint8_t e;
    uint8_t qs[FO_QK / 2];
};

/* x = d[j] / 2 * fo_fp4_values[q] for sub-block j of 16; d is an unsigned E4M3, 0x7F (its NaN) means zero. Low nibbles of the eight
 * bytes of a sub-block are its first half. */
struct fo_block_nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
};

/* x = d * q. Also what activations become before a dot with a legacy type. */
struct fo_block_q8_0 {
    uint16_t d;
    int8_t qs[FO_QK];
};

/* x = d * scale[j] * q - dmin * min[j] for sub-block j of 32; the eight 6-bit scales and mins are packed in 12 bytes, see
 * fo_q4_k_scale_min. qs: 32 bytes hold two sub-blocks, low nibbles the first. */
struct fo_block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[FO_QK_K / 2];
};

/* As Q4_K with a fifth bit: bit j of qh[l] belongs to element l of sub-block j. */
struct fo_block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[FO_QK_K / 8];
    uint8_t qs[FO_QK_K / 2];
};

/* x = d * scale[i] * (q - 32) for sub-block i of 16. Each half of 128 elements takes 64 bytes of ql and 32 of qh: element l of
 * quarter r has its low nibble in ql[l + 32 * (r & 1)] (high nibble for r >= 2) and its top two bits at bit 2r of qh[l]. */
struct fo_block_q6_k {
    uint8_t ql[FO_QK_K / 2];
    uint8_t qh[FO_QK_K / 4];
    int8_t scales[FO_QK_K / 16];
    uint16_t d;
};

/* x = d * (scale & 15) * q - dmin * (scale >> 4) for sub-block i of 16. Two bits an element, as qh of Q6_K. */
struct fo_block_q2_k {
    uint8_t scales[FO_QK_K / 16];
    uint8_t qs[FO_QK_K / 4];
    uint16_t d, dmin;
};

/* x = d * (scale[i] - 32) * q for sub-block i of 16, q from -4 to 3: two bits as in Q2_K, less 4 where bit j of hmask[l] (element l of
 * the j-th 32) is clear. Six-bit scales: see fo_q3_k_scale. */
struct fo_block_q3_k {
    uint8_t hmask[FO_QK_K / 8];
    uint8_t qs[FO_QK_K / 4];
    uint8_t scales[12];
    uint16_t d;
};

/* x = d * (q - 1), q of 0..2. Base 3: a byte holds ceil(v * 256 / 243) of a number v of five digits (qh: four, the fifth 0), the first
 * digit highest. 32 bytes for 160 elements (digit n of byte l is element 32 n + l), 16 for 80, then qh for the last 16. */
struct fo_block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
};

/* x = d * (q - 1), two bits an element as in Q2_K */
struct fo_block_tq2_0 {
    uint8_t qs[FO_QK_K / 4];
    uint16_t d;
};

/* x = d * (scale[j] - 32) * fo_iq4_values[q] for sub-block j of 32: four low bits of a scale in a nibble of scales_l, two high ones in
 * scales_h. */
struct fo_block_iq4_xs {
    uint16_t d, scales_h;
    uint8_t scales_l[FO_QK_K / 64];
    uint8_t qs[FO_QK_K / 2];
};

/* The IQ1, IQ2 and IQ3 types name runs of 8 (IQ3: 4) elements by an entry of a code book; see quant_iq.c. A `word` is 32 bits, little
 * endian: four sign indices of 7 bits and a scale of 4. */
struct fo_block_iq2_xxs {
    uint16_t d;
    struct {
        uint8_t index[4], word[4];
    } sub[FO_QK_K / 32];
};

struct fo_block_iq2_xs {
    uint16_t d;
    uint16_t qs[FO_QK_K / 8]; /* nine bits of index, seven of signs */
    uint8_t scales[FO_QK_K / 32];
};

struct fo_block_iq2_s {
    uint16_t d;
    uint8_t qs[FO_QK_K / 8];
    uint8_t signs[FO_QK_K / 8];
    uint8_t qh[FO_QK_K / 32]; /* two top bits of four indices */
    uint8_t scales[FO_QK_K / 32];
};

struct fo_block_iq3_xxs {
    uint16_t d;
    uint8_t qs[FO_QK_K / 4];
    uint8_t word[FO_QK_K / 32][4];
};

struct fo_block_iq3_s {
    uint16_t d;
    uint8_t qs[FO_QK_K / 4];
    uint8_t qh[FO_QK_K / 32]; /* the top bit of eight indices */
    uint8_t signs[FO_QK_K / 8];
    uint8_t scales[FO_QK_K / 64];
};

struct fo_block_iq1_s {
    uint16_t d;
    uint8_t qs[FO_QK_K / 8];
    uint16_t qh[FO_QK_K / 32]; /* three top bits of four indices, three of scale, the sign of the shift */
};

struct fo_block_iq1_m {
    uint8_t qs[FO_QK_K / 8];
    uint8_t qh[FO_QK_K / 16];      /* three top bits of an index and the sign of its shift, twice */
    uint16_t scales[FO_QK_K / 64]; /* four scales of three bits; the top nibbles are the four of d, lowest first */
};

/* What activations become before a dot with a K-quant: x = d * q, and the sum of q over each 16, for the mins. Never in a file's
 * weights. */
struct fo_block_q8_k {
    float d;
    int8_t qs[FO_QK_K];
    int16_t bsums[FO_QK_K / 16];
};

_Static_assert(sizeof(struct fo_block_q4_0) == 18, "layout of the file");
_Static_assert(sizeof(struct fo_block_q4_1) == 20, "layout of the file");
_Static_assert(sizeof(struct fo_block_q8_0) == 34, "layout of the file");
_Static_assert(sizeof(struct fo_block_q4_k) == 144, "layout of the file");
_Static_assert(sizeof(struct fo_block_q5_k) == 176, "layout of the file");
_Static_assert(sizeof(struct fo_block_q6_k) == 210, "layout of the file");
_Static_assert(sizeof(struct fo_block_q5_0) == 22, "layout of the file");
_Static_assert(sizeof(struct fo_block_q5_1) == 24, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq4_nl) == 18, "layout of the file");
_Static_assert(sizeof(struct fo_block_mxfp4) == 17, "layout of the file");
_Static_assert(sizeof(struct fo_block_nvfp4) == 36, "layout of the file");
_Static_assert(sizeof(struct fo_block_q2_k) == 84, "layout of the file");
_Static_assert(sizeof(struct fo_block_q3_k) == 110, "layout of the file");
_Static_assert(sizeof(struct fo_block_tq1_0) == 54, "layout of the file");
_Static_assert(sizeof(struct fo_block_tq2_0) == 66, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq4_xs) == 136, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq2_xxs) == 66, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq2_xs) == 74, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq2_s) == 82, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq3_xxs) == 98, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq3_s) == 110, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq1_s) == 50, "layout of the file");
_Static_assert(sizeof(struct fo_block_iq1_m) == 56, "layout of the file");
_Static_assert(sizeof(struct fo_block_q8_k) == 292, "layout of the activation block");

/* Scale and min (0..63) of sub-block j (0..7) of Q4_K and Q5_K. Sub-blocks 0..3 have the low six bits of bytes j and j + 4; 4..7
 * have a nibble each of byte j + 4 and, on top, the two bits left over in bytes j - 4 and j. */
static inline void fo_q4_k_scale_min(const uint8_t scales[12], int j, uint8_t *ret_scale, uint8_t *ret_min) {
    if (j < 4) {
        *ret_scale = scales[j] & 63;
        *ret_min = scales[j + 4] & 63;
    } else {
        *ret_scale = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *ret_min = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6) << 4);
    }
}

/* Scale (0..63, 32 means zero) of sub-block j (0..15) of Q3_K: nibbles of bytes 0..7 hold the low four bits (low nibbles the scales 0..7),
 * bytes 8..11 the high two, four scales to a byte. */
static inline int fo_q3_k_scale(const uint8_t scales[12], int j) {
    return (scales[j & 7] >> 4 * (j >> 3) & 15) | (scales[8 + (j & 3)] >> 2 * (j >> 2) & 3) << 4;
}

/* Two bits an element: each half of 128 has 32 bytes, whose bits 2r belong to its quarter r. */
static inline int fo_two_bits(const uint8_t qs[64], int i) {
    return qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 & 3) & 3;
}

/* Into bits that are clear. */
static inline void fo_put_two_bits(uint8_t qs[64], int i, int q) {
    qs[32 * (i / 128) + i % 32] |= (uint8_t)(q << 2 * (i / 32 & 3));
}

/* The sixteen values of IQ4_NL and IQ4_XS, and twice those of a 4-bit float with two bits of exponent and one of fraction. */
extern const int8_t fo_iq4_values[16], fo_fp4_values[16];

/* Code books of the IQ types (quant_iq_grids.c): 16 bits an entry, eight indices of two bits or, in IQ3, four of four, the first lowest. */
extern const uint16_t fo_iq2_xxs_grid[256], fo_iq2_xs_grid[512], fo_iq2_s_grid[1024], fo_iq3_xxs_grid[256], fo_iq3_s_grid[512],
    fo_iq1_grid[2048];

/* The q of which values[q] is nearest to v, the first of equals; 0 for a NaN. */
static inline int fo_nearest(const int8_t values[16], float v) {
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(v - (float)values[i]) < fabsf(v - (float)values[best])) best = i;
    return best;
}

/* Largest magnitude of x[n], or NaN if a value is not finite. Compares the bits, where a NaN or an infinity is larger than any
 * number, so the loop has no branch. */
static inline float fo_abs_max(const float *x, int n) {
    uint32_t top = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7FFFFFFF;
        top = u > top ? u : top;
    }
    if (top >= 0x7F800000) return NAN;
    float f;
    memcpy(&f, &top, sizeof f);
    return f;
}

/* v rounded to nearest even and clamped to [lo, hi]; lo for a NaN. */
static inline int fo_round_clamp(float v, int lo, int hi) {
    return v >= (float)hi ? hi : v > (float)lo ? (int)rintf(v) : lo;
}

/* The first value of largest magnitude, with its sign; NaN if a value is not finite. */
static inline float fo_extreme(const float *x, int n) {
    float top = fo_abs_max(x, n);
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) == top) return x[i];
    return top;
}

/* 1 / d, or 0 where that is no finite number: zero, too small, infinite, NaN. */
static inline float fo_inverse(float d) {
    return fabsf(d) >= 0x1p-126f && fabsf(d) <= 0x1p126f ? 1.0f / d : 0.0f;
}

/* The rows of the dtype table call these; n is a multiple of the block. A quantiser never fails: a block that holds a NaN or an
 * infinity comes back as NaN throughout where the type has a scale to carry it, so that bad activations stay visible (as infinity in
 * MXFP4; NVFP4 has nothing to say it with and takes the largest value). IQ1, IQ2 and IQ3 have no quantiser: theirs is a search. */
void fo_q4_0_to_f32(const void *blocks, float *out, size_t n);
void fo_q4_1_to_f32(const void *blocks, float *out, size_t n);
void fo_q8_0_to_f32(const void *blocks, float *out, size_t n);
void fo_q4_k_to_f32(const void *blocks, float *out, size_t n);
void fo_q5_k_to_f32(const void *blocks, float *out, size_t n);
void fo_q6_k_to_f32(const void *blocks, float *out, size_t n);
void fo_q8_k_to_f32(const void *blocks, float *out, size_t n);

void fo_q4_0_from_f32(const float *in, void *blocks, size_t n);
void fo_q4_1_from_f32(const float *in, void *blocks, size_t n);
void fo_q8_0_from_f32(const float *in, void *blocks, size_t n);
void fo_q4_k_from_f32(const float *in, void *blocks, size_t n);
void fo_q5_k_from_f32(const float *in, void *blocks, size_t n);
void fo_q6_k_from_f32(const float *in, void *blocks, size_t n);
void fo_q8_k_from_f32(const float *in, void *blocks, size_t n);

void fo_q5_0_to_f32(const void *blocks, float *out, size_t n);
void fo_q5_1_to_f32(const void *blocks, float *out, size_t n);
void fo_iq4_nl_to_f32(const void *blocks, float *out, size_t n);
void fo_mxfp4_to_f32(const void *blocks, float *out, size_t n);
void fo_nvfp4_to_f32(const void *blocks, float *out, size_t n);
void fo_q2_k_to_f32(const void *blocks, float *out, size_t n);
void fo_q3_k_to_f32(const void *blocks, float *out, size_t n);
void fo_tq1_0_to_f32(const void *blocks, float *out, size_t n);
void fo_tq2_0_to_f32(const void *blocks, float *out, size_t n);
void fo_iq4_xs_to_f32(const void *blocks, float *out, size_t n);
void fo_iq2_xxs_to_f32(const void *blocks, float *out, size_t n);
void fo_iq2_xs_to_f32(const void *blocks, float *out, size_t n);
void fo_iq2_s_to_f32(const void *blocks, float *out, size_t n);
void fo_iq3_xxs_to_f32(const void *blocks, float *out, size_t n);
void fo_iq3_s_to_f32(const void *blocks, float *out, size_t n);
void fo_iq1_s_to_f32(const void *blocks, float *out, size_t n);
void fo_iq1_m_to_f32(const void *blocks, float *out, size_t n);

void fo_q5_0_from_f32(const float *in, void *blocks, size_t n);
void fo_q5_1_from_f32(const float *in, void *blocks, size_t n);
void fo_iq4_nl_from_f32(const float *in, void *blocks, size_t n);
void fo_mxfp4_from_f32(const float *in, void *blocks, size_t n);
void fo_nvfp4_from_f32(const float *in, void *blocks, size_t n);
void fo_q2_k_from_f32(const float *in, void *blocks, size_t n);
void fo_q3_k_from_f32(const float *in, void *blocks, size_t n);
void fo_tq1_0_from_f32(const float *in, void *blocks, size_t n);
void fo_tq2_0_from_f32(const float *in, void *blocks, size_t n);
void fo_iq4_xs_from_f32(const float *in, void *blocks, size_t n);
