/* Embeddings: a prompt's states after the output norm (what the output matrix would make logits of), pooled into one vector of unit
 * length. How they are pooled is the model's to say, in `<architecture>.pooling_type` of its metadata, whose numbers are llama.cpp's:
 *
 *     absent   the last token's: of a model that looks back only, it alone has seen all of the prompt
 *     1 mean   the mean over all tokens
 *     2 cls    the first token's
 *     3 last   the last token's
 *     0 none, 4 rank   no vector of a whole prompt: the model generates, and embeddings are refused
 *
 * A vector does not depend on how the prompt was cut into steps, on what else was computed in them, or on the number of threads: states do
 * not, and they are added token by token, in double precision. */
#pragma once
#include <stdint.h>

#include "engine/model.h"

struct fo_err;
struct fo_gguf;
struct pn_pooled;

/* What the metadata says, for every architecture. FO_EFORMAT (no such number), FO_EUNSUPPORTED (attention that looks ahead). */
int pn_pooling_probe(const struct fo_gguf *g, const char *arch, enum pn_pooling *ret, struct fo_err *e);
/* "none", "mean", "cls", "last", "rank". */
const char *pn_pooling_name(enum pn_pooling p);
/* FO_EUNSUPPORTED, naming the pooling, when a model that says this has no vectors of prompts. */
int pn_pooling_check(enum pn_pooling p, struct fo_err *e);

/* The vector of one prompt on its way: n_embd doubles and as many floats. One owner at a time. FO_ENOMEM, and as pn_pooling_check. */
int pn_pooled_new(enum pn_pooling p, uint32_t n_embd, uint32_t n_tokens, struct pn_pooled **ret, struct fo_err *e);
void pn_pooled_free(struct pn_pooled *v); /* NULL is allowed */

/* Whose states are needed of the next n tokens of the prompt: what to put into pn_batch_item.want. */
enum pn_want pn_pooled_want(const struct pn_pooled *v, uint32_t n);
/* The next n tokens were computed, and these are the states that were wanted of them: [rows][n_embd], of which it returns how many there
 * are. */
uint32_t pn_pooled_add(struct pn_pooled *v, uint32_t n, const float *states);
/* All of the prompt is there: the vector is made. FO_EIO when it has no direction, because the model computes no numbers. */
int pn_pooled_finish(struct pn_pooled *v, struct fo_err *e);

/* [*ret_n] of unit length; valid as long as v. Only after pn_pooled_finish. */
const float *pn_pooled_vector(const struct pn_pooled *v, uint32_t *ret_n);
