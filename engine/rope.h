/* How positions are turned into angles: the scaling that a file names, folded into inverse frequencies and one factor. */
#pragma once
#include <stdint.h>

#include "foundry/ops.h"

struct fo_err;
struct fo_gguf;
struct pn_bind;
struct pn_hparams;

enum pn_rope_scaling_kind {
    PN_ROPE_UNSCALED,
    PN_ROPE_LINEAR, /* positions divided by factor (Chen et al., arXiv 2306.15595) */
    PN_ROPE_YARN    /* Peng et al., arXiv 2309.00071, section 3.4 */
};
struct pn_rope_scaling {
    enum pn_rope_scaling_kind kind;
    float factor;                 /* > 0, 1 = none */
    float attn_factor;            /* multiplies cos and sin, besides what YaRN says itself */
    float beta_fast, beta_slow;   /* YaRN: rotations over the original context above which a dimension is left, below which it is scaled */
    uint32_t n_ctx_orig;          /* the context before scaling */
    uint32_t n_ctx_reach;         /* what scaling stretches that to, where the file names both; 0 = not said */
};

/* Reads "<arch>.rope.scaling.*" and the older "<arch>.rope.scale_linear". FO_EUNSUPPORTED names a kind that is not here. */
int pn_rope_scaling_probe(const struct fo_gguf *g, const char *arch, uint32_t n_ctx_train, struct pn_rope_scaling *ret, struct fo_err *e);

/* The family's rope; `kind` is how its rows of q and k are ordered. Binds the tensors of divisors that a file may have: rope_freqs.weight
 * (Llama 3), or rope_factors_long.weight and rope_factors_short.weight (LongRoPE, Ding et al., arXiv 2402.13753: long ones when the
 * model's ctx_cap exceeds the original context, so that they never change within a session). */
int pn_rope_bind(struct pn_bind *b, const struct pn_hparams *h, enum fo_rope_kind kind, struct fo_rope *ret, struct fo_err *e);
