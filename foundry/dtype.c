/* THE dtype table, and the two 16-bit float formats. Block sizes are those of the GGUF format (ggml project); the quantised types
 * are defined in quant_legacy.c, quant_k.c, quant_iq.c and quant_fp4.c. */
#include "foundry/dtype.h"

#include <stdio.h>
#include <string.h>

#include "foundry/quant.h"

static void f32_to_f32(const void *blocks, float *out, size_t n) {
    memcpy(out, blocks, n * sizeof *out);
}

static void f32_from_f32(const float *in, void *blocks, size_t n) {
    memcpy(blocks, in, n * sizeof *in);
}

static void f16_to_f32(const void *blocks, float *out, size_t n) {
    const uint16_t *h = blocks;
    for (size_t i = 0; i < n; i++) out[i] = fo_f16_to_f32(h[i]);
}

static void f16_from_f32(const float *in, void *blocks, size_t n) {
    uint16_t *h = blocks;
    for (size_t i = 0; i < n; i++) h[i] = fo_f32_to_f16(in[i]);
}

static void bf16_to_f32(const void *blocks, float *out, size_t n) {
    const uint16_t *h = blocks;
    for (size_t i = 0; i < n; i++) out[i] = fo_bf16_to_f32(h[i]);
}

static void bf16_from_f32(const float *in, void *blocks, size_t n) {
    uint16_t *h = blocks;
    for (size_t i = 0; i < n; i++) h[i] = fo_f32_to_bf16(in[i]);
}

/* clang-format off */
static const struct fo_dtype_info table[FO_N_DTYPES] = {
    /*             name      block bytes act      to_f32             from_f32 */
    [FO_F32]     = { "F32",       1,   4, FO_F32,  f32_to_f32,        f32_from_f32 },
    [FO_F16]     = { "F16",       1,   2, FO_F32,  f16_to_f32,        f16_from_f32 },
    [FO_Q4_0]    = { "Q4_0",     32,  18, FO_Q8_0, fo_q4_0_to_f32,    fo_q4_0_from_f32 },
    [FO_Q4_1]    = { "Q4_1",     32,  20, FO_Q8_0, fo_q4_1_to_f32,    fo_q4_1_from_f32 },
    [FO_Q5_0]    = { "Q5_0",     32,  22, FO_Q8_0, fo_q5_0_to_f32,    fo_q5_0_from_f32 },
    [FO_Q5_1]    = { "Q5_1",     32,  24, FO_Q8_0, fo_q5_1_to_f32,    fo_q5_1_from_f32 },
    [FO_Q8_0]    = { "Q8_0",     32,  34, FO_Q8_0, fo_q8_0_to_f32,    fo_q8_0_from_f32 },
    [FO_Q8_1]    = { "Q8_1",     32,  36, FO_Q8_0, NULL,              NULL },
    [FO_Q2_K]    = { "Q2_K",    256,  84, FO_Q8_K, fo_q2_k_to_f32,    fo_q2_k_from_f32 },
    [FO_Q3_K]    = { "Q3_K",    256, 110, FO_Q8_K, fo_q3_k_to_f32,    fo_q3_k_from_f32 },
    [FO_Q4_K]    = { "Q4_K",    256, 144, FO_Q8_K, fo_q4_k_to_f32,    fo_q4_k_from_f32 },
    [FO_Q5_K]    = { "Q5_K",    256, 176, FO_Q8_K, fo_q5_k_to_f32,    fo_q5_k_from_f32 },
    [FO_Q6_K]    = { "Q6_K",    256, 210, FO_Q8_K, fo_q6_k_to_f32,    fo_q6_k_from_f32 },
    [FO_Q8_K]    = { "Q8_K",    256, 292, FO_Q8_K, fo_q8_k_to_f32,    fo_q8_k_from_f32 },
    [FO_IQ2_XXS] = { "IQ2_XXS", 256,  66, FO_Q8_K, fo_iq2_xxs_to_f32, NULL },
    [FO_IQ2_XS]  = { "IQ2_XS",  256,  74, FO_Q8_K, fo_iq2_xs_to_f32,  NULL },
    [FO_IQ3_XXS] = { "IQ3_XXS", 256,  98, FO_Q8_K, fo_iq3_xxs_to_f32, NULL },
    [FO_IQ1_S]   = { "IQ1_S",   256,  50, FO_Q8_K, fo_iq1_s_to_f32,   NULL },
    [FO_IQ4_NL]  = { "IQ4_NL",   32,  18, FO_Q8_0, fo_iq4_nl_to_f32,  fo_iq4_nl_from_f32 },
    [FO_IQ3_S]   = { "IQ3_S",   256, 110, FO_Q8_K, fo_iq3_s_to_f32,   NULL },
    [FO_IQ2_S]   = { "IQ2_S",   256,  82, FO_Q8_K, fo_iq2_s_to_f32,   NULL },
    [FO_IQ4_XS]  = { "IQ4_XS",  256, 136, FO_Q8_K, fo_iq4_xs_to_f32,  fo_iq4_xs_from_f32 },
    [FO_I8]      = { "I8",        1,   1, FO_F32,  NULL,              NULL },
    [FO_I16]     = { "I16",       1,   2, FO_F32,  NULL,              NULL },
    [FO_I32]     = { "I32",       1,   4, FO_F32,  NULL,              NULL },
    [FO_I64]     = { "I64",       1,   8, FO_F32,  NULL,              NULL },
    [FO_F64]     = { "F64",       1,   8, FO_F32,  NULL,              NULL },
    [FO_IQ1_M]   = { "IQ1_M",   256,  56, FO_Q8_K, fo_iq1_m_to_f32,   NULL },
    [FO_BF16]    = { "BF16",      1,   2, FO_F32,  bf16_to_f32,       bf16_from_f32 },
    [FO_TQ1_0]   = { "TQ1_0",   256,  54, FO_Q8_K, fo_tq1_0_to_f32,   fo_tq1_0_from_f32 },
    [FO_TQ2_0]   = { "TQ2_0",   256,  66, FO_Q8_K, fo_tq2_0_to_f32,   fo_tq2_0_from_f32 },
    [FO_MXFP4]   = { "MXFP4",    32,  17, FO_Q8_0, fo_mxfp4_to_f32,   fo_mxfp4_from_f32 },
    [FO_NVFP4]   = { "NVFP4",    64,  36, FO_Q8_0, fo_nvfp4_to_f32,   fo_nvfp4_from_f32 },
};
/* clang-format on */

const struct fo_dtype_info *fo_dtype_info(uint32_t type) {
    return type < FO_N_DTYPES && table[type].name ? &table[type] : NULL;
}

const char *fo_dtype_name(uint32_t type) {
    static _Thread_local char unknown[24];
    const struct fo_dtype_info *t = fo_dtype_info(type);
    if (t) return t->name;
    snprintf(unknown, sizeof unknown, "type %u", (unsigned)type);
    return unknown;
}

uint64_t fo_dtype_bytes(uint32_t type, uint64_t n) {
    const struct fo_dtype_info *t = fo_dtype_info(type);
    uint64_t bytes;
    if (!t || n % t->block != 0 || __builtin_mul_overflow(n / t->block, (uint64_t)t->block_bytes, &bytes)) return 0;
    return bytes;
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float fo_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FF;
    if (exponent == 31) return float_of(sign | 0x7F800000 | fraction << 13);
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in float */
        float magnitude = (float)fraction * 0x1p-24f;
        return float_of(sign | bits_of(magnitude));
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t fo_f32_to_f16(float f) {
    uint32_t x = bits_of(f), sign = x >> 16 & 0x8000;
    x &= 0x7FFFFFFF;
    if (x > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (x >> 13 & 0x3FF)); /* NaN, quiet */
    if (x >= 0x477FF000) return (uint16_t)(sign | 0x7C00);                    /* 65520 and up round to infinity */
    if (x >= 0x38800000)                                                      /* normal: rebias, drop 13 bits to nearest even */
        return (uint16_t)(sign | (x - (112u << 23) + 0xFFF + (x >> 13 & 1)) >> 13);
    if (x < 0x33000000) return (uint16_t)sign; /* below half of the smallest subnormal, 2^-24 */
    uint32_t shift = 126 - (x >> 23), fraction = (x & 0x7FFFFF) | 0x800000;
    uint32_t q = fraction >> shift, rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    return (uint16_t)(sign | q);
}

float fo_bf16_to_f32(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

uint16_t fo_f32_to_bf16(float f) {
    uint32_t x = bits_of(f);
    if ((x & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(x >> 16 | 0x40); /* NaN, quiet */
    return (uint16_t)((x + 0x7FFF + (x >> 16 & 1)) >> 16);
}
