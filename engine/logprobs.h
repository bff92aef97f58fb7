/* Log-probabilities of the tokens of an answer, for requests that ask: of each token, and of the likeliest in its place.
 *
 * They are the log-softmax of the model's own logits, before bias, penalties, temperature and whatever else shapes the draw, as OpenAI
 * and vLLM give them: what the model thought, not what the sampler made of it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_lp;

enum { PN_MAX_TOP_LOGPROBS = 20 };

struct pn_logprob {
    int32_t id;
    float logprob; /* <= 0; -infinity for what cannot come */
};

/* One token of an answer. */
struct pn_logprobs {
    uint64_t text_at; /* where the token's text begins, in characters of the answer; within one that it ends: where that begins */
    struct pn_logprob token;
    uint32_t n_top;
    struct pn_logprob top[PN_MAX_TOP_LOGPROBS]; /* [n_top] falling; of equals the lowest id first */
};

/* Of logits [n_vocab], of which one at least is above -infinity and `id` is one: fills token and the n_top likeliest (fewer when the
 * vocabulary has fewer). Not-a-number counts as -infinity. The exponentials are the sampler's in float, their sum is in double: the
 * error is below 2e-7 and a rounding to float. Pure: any thread. */
void pn_logprobs_of(const float *logits, int32_t n_vocab, int32_t id, uint32_t n_top, struct pn_logprobs *ret);

/* The tokens of one answer on their way to its reader. A token goes out with its text: while the text is held back (an incomplete
 * character, what may become a stop string), so is the token, and one whose text a stop string cut away is forgotten. One whose text is
 * shown in part goes out. All memory is taken when it is made. One owner: the worker. */
int pn_lp_new(uint32_t n_top, int32_t n_vocab, bool stops, struct pn_lp **ret, struct fo_err *e); /* FO_EINVAL (too many), FO_ENOMEM */
void pn_lp_free(struct pn_lp *q); /* NULL is allowed */

/* Keeps a copy of logits [n_vocab], before the sampler changes them. */
void pn_lp_see(struct pn_lp *q, const float *logits);
/* `id` was drawn of them; nothing may be due. */
void pn_lp_add(struct pn_lp *q, int32_t id);

/* What became of the newest token's text, or of the last that was held: `decoded` is what came out of detokenisation and `shown` what of all
 * decoded text may go to the reader now (whole characters, both). mid_character: bytes of one more are held. stopped: a stop string was
 * completed, and what is not shown never will be. */
void pn_lp_text(struct pn_lp *q, const char *decoded, size_t n_decoded, const char *shown, size_t n_shown, bool mid_character, bool stopped);

/* The next token that goes out, until _sent; NULL = none does now. */
const struct pn_logprobs *pn_lp_due(const struct pn_lp *q);
void pn_lp_sent(struct pn_lp *q);
