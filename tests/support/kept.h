/* What KV pages keep of the numbers that are stored in them, for tests that compute with those. */
#pragma once
#include <stddef.h>

#include "foundry/dtype.h"

/* x [n], whole heads of head_dim, becomes what the type keeps of it, by the reference's store and load (foundry/cpu/ref_attn.c); Q4_0 as ops keep it, each
 * head turned before and turned back after. */
void test_kv_kept(enum fo_dtype type, float *x, size_t n, int head_dim);
/* The same of one head as the kernels have it: nobody turns it. */
void test_kv_row(enum fo_dtype type, float *x, int head_dim);
