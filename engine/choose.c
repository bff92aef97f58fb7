/* From logits to a token: see choose.h. */
#include "engine/choose.h"

#include "engine/grammar/grammar.h"
#include "engine/request_worker.h"

/* Why no token could be chosen of logits that the sampler has seen: what a request or its grammar bans is minus infinity there. */
static int fail_unusable(const struct pn_request *r, const float *logits, uint32_t n_vocab, struct fo_err *e) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) n += logits[i] == logits[i];
    if (r->grammar ? n == n_vocab : n > 0)
        return fo_fail(e, FO_EINVAL, "'logit_bias' bans every token that %s", r->grammar ? "the grammar allows" : "could come");
    return fo_fail(e, FO_EIO, "the model computes no numbers (not-a-number for every token): its file is damaged");
}

/* id was drawn. */
static int take(struct pn_request *r, const struct fo_tok *tok, int32_t id, struct pn_chosen *ret, struct fo_err *e) {
    bool end = tok && !r->ignore_end && fo_tok_is_end(tok, id), stopped = false;
    r->n_out++;
    pn_sampler_accept(r->sampler, id, 1);
    if (!end && pn_request_put(r, tok, id, &stopped, e)) return e->code;
    if (!end && r->grammar && pn_grammar_run_accept(r->grammar, id, &end, e)) return e->code; /* and nothing may follow it */
    bool last = end || stopped || r->n_out == r->max_tokens;
    if (last && !stopped && pn_request_put_rest(r, e)) return e->code;
    pn_request_flush(r);
    *ret = (struct pn_chosen){ id, last, end || stopped ? PN_FINISH_STOP : PN_FINISH_LENGTH };
    return 0;
}

int pn_request_choose(struct pn_request *r, const struct fo_tok *tok, float *logits, uint32_t n_vocab, struct pn_chosen *ret, struct fo_err *e) {
    bool over = false;
    if (r->lp) pn_lp_see(r->lp, logits);
    if (r->grammar && pn_grammar_run_mask(r->grammar, r->ignore_end, logits, n_vocab, &over, e)) return e->code;
    if (over) {
        if (pn_request_put_rest(r, e)) return e->code;
        pn_request_flush(r);
        *ret = (struct pn_chosen){ -1, true, PN_FINISH_STOP };
        return 0;
    }
    int32_t id = pn_sampler_pick(r->sampler, logits);
    return id < 0 ? fail_unusable(r, logits, n_vocab, e) : take(r, tok, id, ret, e);
}
