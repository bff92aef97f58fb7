/* From logits to a token: see choose.h. */
#include "engine/choose.h"

#include <math.h>

#include "engine/grammar/grammar.h"
#include "engine/loop.h"
#include "engine/request_worker.h"

enum { MAX_HEAD_BYTES = 4 << 20 /* more than a turn holds of one (turn.c), with the rest of a token's text */ };

/* Why no token could be chosen of logits that the sampler has seen: what a request or its grammar bans is minus infinity there. */
static int fail_unusable(const struct pn_request *r, const float *logits, uint32_t n_vocab, struct fo_err *e) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) n += logits[i] == logits[i];
    if (r->grammar ? n == n_vocab : n > 0)
        return fo_fail(e, FO_EINVAL, "'logit_bias' bans every token that %s", r->grammar ? "the grammar allows" : "could come");
    return fo_fail(e, FO_EIO, "the model computes no numbers (not-a-number for every token): its file is damaged");
}

static bool in_thought(const struct pn_request *r) {
    return r->turn && pn_turn_in_reasoning(r->turn);
}

/* --- calls ------------------------------------------------------------------------------------- */
static int begin_call(struct pn_request *r, int function, const char *rest, size_t n, bool *ret_fits, struct fo_err *e) {
    struct pn_grammar_run *run = NULL;
    struct fo_buf head;
    if (pn_grammar_run_new(r->calls, &run, e)) return e->code;
    fo_buf_init(&head, MAX_HEAD_BYTES);
    pn_tools_head(r->tools, r->dialect, function, &head);
    fo_buf_append(&head, rest, n);
    fo_buf_append(&head, (const char *)r->detok.held, r->detok.n_held); /* of a character that the token only begins */
    int rc = head.failed ? (int)fo_fail(e, FO_ENOMEM, "no memory for a call") : pn_grammar_run_bytes(run, fo_buf_str(&head), head.len, ret_fits, e);
    fo_buf_done(&head);
    if (rc == 0 && *ret_fits) r->grammar = run;
    else pn_grammar_run_free(run);
    return rc;
}

bool pn_request_begin_call(void *ctx, int function, const char *rest, size_t n) {
    struct pn_request *r = ctx;
    bool fits = true;
    if (r->grammar || !r->calls) return true;
    if (begin_call(r, function, rest, n, &fits, &r->hook_err)) return false;
    /* Arguments as a text, or in front of the name, are in no grammar; they are read all the same, where nothing has to be held. */
    return fits || !pn_tools_is_strict(r->tools, function);
}

/* --- thoughts ---------------------------------------------------------------------------------- */
/* The thought ends here: what a model says then is said for it. */
static void end_thought(struct pn_request *r, enum pn_thought why) {
    r->thought = why;
    pn_turn_cut(r->turn);
    r->forced = pn_dialect_close_ids(r->dialect, &r->n_forced);
}

/* A token of a thought was drawn, and did not end it. */
static void follow_thought(struct pn_request *r, int32_t id) {
    r->n_reasoning++;
    if (r->loop && pn_loop_push(r->loop, id)) end_thought(r, PN_THOUGHT_LOOP);
}

/* A thought ended of itself. What came behind it with the same token (r->piece: content, as put leaves it) is held to the grammar that waited;
 * where nothing did, the blanks come that a model puts there. */
static int thought_ended(struct pn_request *r, struct fo_err *e) {
    bool alive = true;
    r->thought = PN_THOUGHT_FREE;
    if (!r->grammar) return 0;
    if (r->piece.len == 0) {
        r->forced = pn_dialect_after_ids(r->dialect, &r->n_forced);
        return 0;
    }
    if (pn_grammar_run_bytes(r->grammar, fo_buf_str(&r->piece), r->piece.len, &alive, e)) return e->code;
    return alive ? 0 : fo_fail(e, FO_EINVAL, "the model's thought ended in a token that goes on with what the grammar does not allow");
}

/* What must not come: an end of the answer within a thought, while a grammar waits; another thought, behind one that had to end. */
static void ban(const struct pn_request *r, float *logits, uint32_t n_vocab) {
    int32_t open = r->turn ? pn_dialect_open_id(r->dialect) : -1;
    if (open >= 0 && (uint32_t)open < n_vocab && r->thought != PN_THOUGHT_FREE && !in_thought(r)) logits[open] = -INFINITY;
    if (r->grammar && in_thought(r)) pn_grammar_run_ban_ends(r->grammar, logits, n_vocab);
}

/* --- a token ----------------------------------------------------------------------------------- */
/* id was drawn, or forced. held: the grammar had its say. */
static int take(struct pn_request *r, const struct fo_tok *tok, int32_t id, bool forced, bool held, struct pn_chosen *ret, struct fo_err *e) {
    bool end = tok && !r->ignore_end && fo_tok_is_end(tok, id), stopped = false, thought = in_thought(r);
    const struct pn_grammar_run *before = r->grammar;
    r->n_out++;
    pn_sampler_accept(r->sampler, id, 1);
    if (!end && pn_request_put(r, tok, id, !forced, &stopped, e)) return e->code;
    if (r->hook_err.code) {
        *e = r->hook_err;
        return e->code;
    }
    if (thought && !forced && !end && in_thought(r)) follow_thought(r, id);
    if (thought && !forced && !in_thought(r) && thought_ended(r, e)) return e->code;
    /* A call that has begun with this token has fed it to its grammar. A thought that has is none of the grammar's. */
    bool cut = false;
    if (!end && held && r->grammar == before && !in_thought(r) && pn_grammar_run_accept(r->grammar, id, &end, e)) {
        cut = e->code == FO_ELIMIT && r->turn && pn_turn_n_calls(r->turn) > 0; /* deeper than is followed: as long as a call can be */
        if (!cut) return e->code;
    }
    if (r->turn && pn_turn_is_over(r->turn)) end = true;
    bool last = end || stopped || cut || r->n_out == r->max_tokens;
    if (last && !stopped && pn_request_put_rest(r, e)) return e->code;
    pn_request_flush(r);
    enum pn_finish whole = !stopped && r->turn && pn_turn_n_calls(r->turn) > 0 ? PN_FINISH_CALLS : PN_FINISH_STOP;
    *ret = (struct pn_chosen){ id, last, end || stopped ? whole : PN_FINISH_LENGTH };
    return 0;
}

int pn_request_choose(struct pn_request *r, const struct fo_tok *tok, float *logits, uint32_t n_vocab, struct pn_chosen *ret, struct fo_err *e) {
    if (in_thought(r) && r->n_forced == 0 && r->reasoning_budget >= 0 && r->n_reasoning >= (uint32_t)r->reasoning_budget) end_thought(r, PN_THOUGHT_BUDGET);
    if (r->n_forced > 0) {
        r->n_forced--;
        return take(r, tok, *r->forced++, true, false, ret, e);
    }
    bool over = false, held = r->grammar && !in_thought(r);
    if (r->lp) pn_lp_see(r->lp, logits);
    ban(r, logits, n_vocab);
    if (held) {
        /* A model that thinks of itself may do so in front of what is held to a grammar. */
        int32_t open = r->turn && r->n_out == 0 ? pn_dialect_open_id(r->dialect) : -1;
        float of_open = open >= 0 && (uint32_t)open < n_vocab ? logits[open] : -INFINITY;
        if (r->turn && r->n_out > 0 && pn_turn_n_calls(r->turn) == 0) pn_turn_settle(r->turn);
        if (pn_grammar_run_mask(r->grammar, r->ignore_end, logits, n_vocab, &over, e)) return e->code;
        if (open >= 0 && (uint32_t)open < n_vocab) logits[open] = of_open;
    }
    if (over) {
        if (pn_request_put_rest(r, e)) return e->code;
        pn_request_flush(r);
        *ret = (struct pn_chosen){ -1, true, r->turn && pn_turn_n_calls(r->turn) > 0 ? PN_FINISH_CALLS : PN_FINISH_STOP };
        return 0;
    }
    int32_t id = pn_sampler_pick(r->sampler, logits);
    return id < 0 ? fail_unusable(r, logits, n_vocab, e) : take(r, tok, id, false, held, ret, e);
}

uint32_t pn_request_may_choose(struct pn_request *r, const struct fo_tok *tok, const int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; tok && !r->ignore_end && i < n; i++)
        if (fo_tok_is_end(tok, ids[i])) n = i;
    return r->grammar && !in_thought(r) ? pn_grammar_run_allows(r->grammar, ids, n) : n;
}
