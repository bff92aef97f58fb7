/* What decoder families share: the attention block, the gated feed-forward block and the output head, each with its binding. All work
 * on a step's buffers in place; none allocates. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/moe.h"
#include "foundry/ops.h"
#include "foundry/tensor.h"

struct fo_arena;
struct fo_err;
struct pn_bind;
struct pn_buffers;
struct pn_hparams;
struct pn_step;

/* Grouped-query attention (Ainslie et al., arXiv 2305.13245) behind an RMSNorm. A bias whose data is NULL is absent. */
struct pn_attn {
    struct fo_tensor norm;                   /* [n_embd] */
    struct fo_tensor q, k, v;                /* [heads * head_dim][n_embd], k and v with n_head_kv heads */
    struct fo_tensor qkv;                    /* instead of the three: their rows, one below the other */
    struct fo_tensor o;                      /* [n_embd][n_head * head_dim] */
    struct fo_tensor q_bias, k_bias, v_bias; /* [heads * head_dim] */
    struct fo_tensor o_bias;                 /* [n_embd] */
    struct fo_tensor q_norm, k_norm;         /* [head_dim]: an RMSNorm of each head before it turns; or absent */
};

/* SwiGLU (Shazeer, arXiv 2002.05202) behind an RMSNorm. */
struct pn_ffn {
    struct fo_tensor norm;                /* [n_embd] */
    struct fo_tensor gate, up;            /* [n_ff][n_embd] */
    struct fo_tensor gate_up;             /* instead of the two: their rows, one below the other */
    struct fo_tensor down;                /* [n_embd][n_ff] */
    struct fo_tensor gate_bias, up_bias;  /* [n_ff] */
    struct fo_tensor down_bias;           /* [n_embd] */
};

/* What a family of plain decoders chooses. */
struct pn_decoder_kind {
    enum fo_rope_kind rope;
    bool fused;   /* attn_qkv and an ffn_up that holds gate and up, instead of five matrices */
    bool qk_norm; /* attn_q_norm and attn_k_norm */
};

/* An attention and a feed-forward block a layer, between an embedding and a normalised output matrix. */
struct pn_decoder_layer {
    struct pn_attn attn;
    struct pn_ffn ffn; /* or, with experts: */
    struct pn_moe moe;
};
struct pn_decoder {
    struct fo_tensor embed; /* [n_vocab][n_embd] */
    struct pn_decoder_layer *layers; /* [n_layer] */
    struct fo_tensor norm;   /* [n_embd] */
    struct fo_tensor output; /* [n_vocab][n_embd]; tied: the embedding's values */
    struct fo_rope rope;
};

/* *ret_weights is a struct pn_decoder in the model's region. */
int pn_decoder_bind(struct pn_bind *b, const struct pn_hparams *h, const struct pn_decoder_kind *kind, void **ret_weights, struct fo_err *e);

/* The buffers of struct pn_buffers that these blocks use: all of them. As pn_family.layout. */
int pn_blocks_layout(const struct pn_hparams *h, int rows, int logit_rows, struct fo_arena *a, unsigned char *block, struct pn_buffers *ret,
                     struct fo_err *e);

/* Ids to logits: as pn_family.forward. */
int pn_decoder_forward(const void *decoder, const struct pn_step *s, struct fo_err *e);
