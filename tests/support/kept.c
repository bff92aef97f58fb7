#include "tests/support/kept.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "foundry/cpu/kernels.h"
#include "foundry/ops.h"

void test_kv_row(enum fo_dtype type, float *x, int head_dim) {
    static const enum fo_dtype types[FO_N_KV_KINDS] = { FO_F32, FO_F16, FO_Q8_0, FO_Q4_0 };
    struct fo_attn_kernels ref;
    int kind = 0, tokens = (int)fo_kv_block_tokens(type, 1);
    void *block = calloc(1, fo_kv_block_bytes(type, head_dim, tokens));
    assert_non_null(block);
    fo_cpu_ref_attn(&ref);
    while (types[kind] != type) kind++;
    ref.put_k[kind](x, head_dim, block, tokens, 0);
    ref.get_k[kind](block, head_dim, tokens, 0, x);
    free(block);
}

void test_kv_kept(enum fo_dtype type, float *x, size_t n, int head_dim) {
    for (float *end = x + n; x < end; x += head_dim) {
        if (type == FO_Q4_0) fo_hadamard(x, head_dim);
        test_kv_row(type, x, head_dim);
        if (type == FO_Q4_0) fo_hadamard(x, head_dim);
    }
}
