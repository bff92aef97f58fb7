/* What decoder families share: the attention block, the gated feed-forward block and the output head, each with its binding. All work
 * on a step's buffers in place; none allocates. */
#pragma once
#include <stdint.h>

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
    struct fo_tensor o;                      /* [n_embd][n_head * head_dim] */
    struct fo_tensor q_bias, k_bias, v_bias; /* [heads * head_dim] */
    struct fo_tensor o_bias;                 /* [n_embd] */
};

/* SwiGLU (Shazeer, arXiv 2002.05202) behind an RMSNorm. */
struct pn_ffn {
    struct fo_tensor norm;                /* [n_embd] */
    struct fo_tensor gate, up;            /* [n_ff][n_embd] */
    struct fo_tensor down;                /* [n_embd][n_ff] */
    struct fo_tensor gate_bias, up_bias;  /* [n_ff] */
    struct fo_tensor down_bias;           /* [n_embd] */
};

int pn_attn_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, struct pn_attn *ret, struct fo_err *e);
int pn_ffn_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, struct pn_ffn *ret, struct fo_err *e);

/* The buffers of struct pn_buffers that these blocks use: all of them. As pn_family.layout. */
int pn_blocks_layout(const struct pn_hparams *h, int rows, int logit_rows, struct fo_arena *a, unsigned char *block, struct pn_buffers *ret,
                     struct fo_err *e);

/* x += Attention(RMSNorm(x)): rotates q and k, appends k and v to the sequences' pages. */
int pn_attn_forward(const struct pn_step *s, const struct pn_attn *w, const struct fo_rope *rope, int layer, struct fo_err *e);
/* x += Down(SiLU(Gate(h)) * Up(h)), h = RMSNorm(x). */
int pn_ffn_forward(const struct pn_step *s, const struct pn_ffn *w, struct fo_err *e);
/* logits = Output(RMSNorm(x)) for the rows that are wanted. */
int pn_head_forward(const struct pn_step *s, const struct fo_tensor *norm, const struct fo_tensor *output, struct fo_err *e);
