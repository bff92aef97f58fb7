/* One token of an answer, from the logits to what the reader sees: what the request's grammar allows, the sampler's draw, and what the token
 * means for the answer (an end token, a stop string, a grammar, a thought's budget or max_tokens that is used up). For the worker.
 *
 * A thought (turn.h) is held to no grammar, and cannot end the answer while there is one: what comes behind it is held. A thought that is as
 * long as it may be, or goes round in circles (loop.h), is ended with the tokens that the model would say, through the same turn; they are put
 * in the place of a draw. So they are where a grammar waits for a thought that ended of itself, for the blanks that come behind it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/request.h"

struct fo_err;
struct fo_tok;

struct pn_chosen {
    int32_t id;  /* -1: none, the answer ended in front of it */
    bool last;   /* the answer is over, and why: */
    enum pn_finish finish;
};

/* The next token of logits [n_vocab], which are changed, is chosen, counted (r->n_out) and put on its way (tok NULL: ids only), as far as the
 * ring takes it (pn_request_flush). Only while nothing is on its way. FO_EINVAL: what a request bans leaves no token; FO_EIO: the logits are no
 * numbers; what the grammar says; FO_ENOMEM. After a failure the request is to be ended with it. */
int pn_request_choose(struct pn_request *r, const struct fo_tok *tok, float *logits, uint32_t n_vocab, struct pn_chosen *ret, struct fo_err *e);

/* How many of the drafted ids[0..n) are worth computing logits behind: those that can be chosen one after the other and end nothing, as far
 * as that is cheap to say. What is chosen does not depend on it. */
uint32_t pn_request_may_choose(struct pn_request *r, const struct fo_tok *tok, const int32_t *ids, uint32_t n);
