/* A feed-forward block of which each token passes a few of many: a mixture of experts (Shazeer et al., arXiv 1701.06538), as Mixtral has
 * it (Jiang et al., arXiv 2401.04088). */
#pragma once
#include <stdint.h>

#include "foundry/tensor.h"

struct fo_err;
struct pn_bind;
struct pn_hparams;
struct pn_step;

/* One matrix of every expert, in either way that files have them. */
struct pn_experts {
    struct fo_tensor all;   /* [n_expert][n_out][n_in] */
    struct fo_tensor *each; /* [n_expert] of [n_out][n_in]: instead, or NULL */
};

struct pn_moe {
    struct fo_tensor norm;      /* [n_embd] */
    struct fo_tensor router;    /* [n_expert][n_embd] */
    struct pn_experts gate, up; /* [n_ff][n_embd] each */
    struct pn_experts down;     /* [n_embd][n_ff] each */
};

/* Where the rows of a step go, on the host: the model's, for the longest step. */
struct pn_routes {
    float *share; /* [max_batch][n_expert] what an expert counts for a row, 0 = it is not asked */
    int32_t *row; /* [max_batch] rows of one expert */
    float *scale; /* [max_batch] their shares */
};

/* The experts' matrices are three tensors a layer ("ffn_gate_exps.weight", ...) or one each ("ffn_gate.0.weight", ...), as older GGUF
 * files and HuggingFace have them. */
int pn_moe_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, struct pn_moe *ret, struct fo_err *e);
/* x += sum over the chosen experts of share * Expert(h), h = RMSNorm(x). Waits for the stream: the router's logits are read on the host. */
int pn_moe_forward(const struct pn_step *s, const struct pn_moe *w, struct fo_err *e);
/* In place: logits [n] become shares. The `used` largest are chosen (of equal ones the first), their softmax is taken over them alone,
 * which is the softmax over all, renormalised over the chosen. */
void pn_route(float *logits, uint32_t n, uint32_t used);
