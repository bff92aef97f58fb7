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

/* 1 / d, or 0 where that is no finite number: zero, too small, infinite, NaN. */
static inline float fo_inverse(float d) {
    return fabsf(d) >= 0x1p-126f && fabsf(d) <= 0x1p126f ? 1.0f / d : 0.0f;
}

/* The rows of the dtype table call these; n is a multiple of the block. A quantiser never fails: a block that holds a NaN or an
 * infinity comes back as NaN throughout where the type has a scale to carry it, so that bad activations stay visible. */
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
