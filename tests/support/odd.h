/* Decoder GGUF files (llama by default) with every option of the family, as odd and as broken as wished: where the models of tiny.h are always good
 * ones, these choose biases, windows, frequency divisors and head sizes, and replace or drop any key or tensor. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "foundry/dtype.h"

struct odd_key {
    const char *key;  /* replaces the key of that name, or is added; NULL ends the list */
    int kind;         /* 'u' u32, 'f' f32, 's' string, 'b' bool, '-' leaves the key out */
    double number;
    const char *text;
};
struct odd_tensor {
    const char *name; /* replaces the tensor of that name, or is added; NULL ends the list */
    int64_t ne0, ne1; /* 0 = leaves the tensor out */
    int type;         /* enum fo_dtype */
};

struct odd {
    const char *arch;       /* NULL = "llama"; decides the keys' prefix, not the tensors */
    uint32_t n_layer, n_embd, n_ff, n_head, n_head_kv, n_vocab, n_ctx; /* 0 = 2, 256, 256, 8, 2, 96, 256 */
    uint32_t head_dim;      /* 0 = n_embd / n_head, and no key_length key */
    enum fo_dtype type;     /* of every matrix */
    enum fo_dtype vectors;  /* of norms and biases: F32, F16 or BF16 */
    enum fo_dtype rounded;  /* their values are those that this type has (F16, BF16), whatever they are written as; F32: any */
    bool untied, biases;
    bool qk_norm;           /* attn_q_norm and attn_k_norm */
    uint32_t n_expert, n_expert_used; /* 0 = one feed-forward block */
    bool expert_files;      /* a tensor for each expert, not one for all; the same values */
    bool fused;             /* attn_qkv, and gate and up in ffn_up; only without biases */
    uint32_t window;        /* 0 = no key */
    const float *rope_freqs; /* [head_dim / 2], or NULL */
    const float *rope_long, *rope_short; /* [head_dim / 2], or NULL: rope_factors_*.weight */
    uint64_t seed;
    const struct odd_key *keys;       /* or NULL */
    const struct odd_tensor *tensors; /* or NULL */
};

/* Writes the file; fails the running test when it cannot. */
void odd_write(const char *path, const struct odd *t);
/* A path under the build folder that is this process's own: "odd-<pid>-<n>.gguf" in $TMPDIR or /tmp. Static storage of 8 names. */
const char *odd_path(int n);
