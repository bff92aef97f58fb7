/* THE dtype table: one row a type. A row whose to_f32 is NULL is known (its size is, so a file can be inspected) but not served.
 * Everything here is pure and may be called from any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* The numbers are GGUF's own ids (ggml_type), so that a file's field is an index. Gaps are types that were withdrawn. */
enum fo_dtype {
    FO_F32 = 0,
    FO_F16 = 1,
    FO_Q4_0 = 2,
    FO_Q4_1 = 3,
    FO_Q5_0 = 6,
    FO_Q5_1 = 7,
    FO_Q8_0 = 8,
    FO_Q8_1 = 9,
    FO_Q2_K = 10,
    FO_Q3_K = 11,
    FO_Q4_K = 12,
    FO_Q5_K = 13,
    FO_Q6_K = 14,
    FO_Q8_K = 15,
    FO_IQ2_XXS = 16,
    FO_IQ2_XS = 17,
    FO_IQ3_XXS = 18,
    FO_IQ1_S = 19,
    FO_IQ4_NL = 20,
    FO_IQ3_S = 21,
    FO_IQ2_S = 22,
    FO_IQ4_XS = 23,
    FO_I8 = 24,
    FO_I16 = 25,
    FO_I32 = 26,
    FO_I64 = 27,
    FO_F64 = 28,
    FO_IQ1_M = 29,
    FO_BF16 = 30,
    FO_TQ1_0 = 34,
    FO_TQ2_0 = 35,
    FO_MXFP4 = 39,
    FO_NVFP4 = 40,
    FO_N_DTYPES
};

struct fo_dtype_info {
    const char *name;      /* "Q4_K"; NULL in a gap */
    uint16_t block;        /* elements a block */
    uint16_t block_bytes;  /* bytes a block */
    enum fo_dtype act;     /* what activations become before a dot with this type: FO_Q8_0, FO_Q8_K, FO_F16 or FO_F32 */
    /* n is a multiple of `block`; the definition of the type, in plain C, fixed order. NULL: not served. */
    void (*to_f32)(const void *blocks, float *out, size_t n);
    void (*from_f32)(const float *in, void *blocks, size_t n); /* reference quantiser; NULL: cannot be written yet */
};

/* The row, or NULL for a number that is no type. */
const struct fo_dtype_info *fo_dtype_info(uint32_t type);

/* "Q4_K", or "type 77" in a static thread-local buffer for numbers that are no type. */
const char *fo_dtype_name(uint32_t type);

/* Bytes of n elements (a multiple of the block); 0 when n is not, the type is unknown, or the product overflows. */
uint64_t fo_dtype_bytes(uint32_t type, uint64_t n);

/* IEEE half and bfloat16, round to nearest even, NaN stays NaN, subnormals kept. */
float fo_f16_to_f32(uint16_t h);
uint16_t fo_f32_to_f16(float f);
float fo_bf16_to_f32(uint16_t h);
uint16_t fo_f32_to_bf16(float f);
