/* The worker: one step. What it holds is in sched.h. */
#include "engine/sched_impl.h"

#include <assert.h>

#include "engine/choose.h"
#include "engine/embed.h"
#include "engine/model.h"
#include "engine/request_worker.h"
#include "engine/wake.h"

/* A drafted token beside prompts is worth its row from here on: it takes about what a token of a prompt does. */
static const float ODDS_BESIDE_PROMPTS = 0.5F;

/* --- what it holds --------------------------------------------------------------------------- */
/* Most prompt tokens in a step beside n_decode answers: see sched.h. */
static uint32_t prefill_budget(struct pn_sched *s, uint32_t n_decode) {
    uint32_t most = s->info->max_batch - n_decode;
    pthread_mutex_lock(&s->lock);
    most = pn_least(most, s->ladder.now.prefill_chunk);
    double stall = s->limits.decode_stall_ms / 1e3, doubled = s->chunk ? 2.0 * s->chunk : PN_FIRST_CHUNK;
    pthread_mutex_unlock(&s->lock);
    if (n_decode == 0) return most;
    double fits = s->chunk_tps > 0 ? s->chunk_tps * stall * 2 / 3 : PN_FIRST_CHUNK;
    if (fits > doubled) fits = doubled;
    return fits >= most ? most : fits < 1 ? 1 : (uint32_t)fits;
}

/* The spec of a slot that decodes, made when it is first asked for; NULL = there is no memory for one. */
static struct pn_spec *spec_of(struct pn_slot *sl) {
    struct fo_err ignored; /* then it decodes without */
    if (sl->spec || pn_spec_new(sl->r->n_tokens + sl->r->max_tokens, &sl->spec, &ignored)) return sl->spec;
    pn_spec_prompt(sl->spec, pn_seq_tokens(sl->seq), pn_seq_len(sl->seq));
    pn_spec_prompt(sl->spec, sl->tokens, 1);
    return sl->spec;
}

/* The likeliest of all drafted tokens of items[0..n), at most `most`, become their slots' drafts: the odds of each fall along it, so taking
 * the likeliest again and again takes drafts from their fronts. ret_odds [most]; returns how many. */
static uint32_t likeliest(struct pn_sched *s, uint32_t n, uint32_t most, uint32_t *drafts, float *ret_odds, uint32_t *ret_from) {
    for (uint32_t k = 0; k < most; k++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = s->slots[s->item_slot[i]].n_draft;
            if (at < drafts[i] && (best == n || s->odds[i][at] > s->odds[best][s->slots[s->item_slot[best]].n_draft])) best = i;
        }
        if (best == n) return k;
        struct pn_slot *sl = &s->slots[s->item_slot[best]];
        ret_odds[k] = s->odds[best][sl->n_draft++];
        ret_from[k] = best;
    }
    return most;
}

/* Puts drafts behind the tokens of items[0..n_decode): see sched.h. The step has n_items, and room for so many rows more. */
static void add_drafts(struct pn_sched *s, uint32_t n_decode, uint32_t n_items, uint32_t room_rows) {
    float odds[PN_DRAFT_MAX];
    uint32_t from[PN_DRAFT_MAX], drafts[PN_SPEC_MAX_ROWS] = { 0 }, n, worth;
    uint32_t most = pn_least(pn_least(PN_DRAFT_MAX, room_rows), s->info->logit_rows - n_items);
    pthread_mutex_lock(&s->lock);
    enum pn_speculation how = s->limits.speculation;
    pthread_mutex_unlock(&s->lock);
    if (n_decode > PN_SPEC_MAX_ROWS) return;
    for (uint32_t i = 0; i < n_decode; i++) {
        struct pn_slot *sl = &s->slots[s->item_slot[i]];
        uint32_t cap = pn_least(most, sl->r->max_tokens - sl->r->n_out - 1); /* what is chosen last is never computed on */
        sl->n_draft = 0;
        if (how == PN_SPECULATION_OFF) {
            pn_spec_free(sl->spec);
            sl->spec = NULL;
        } else if (cap > 0 && spec_of(sl)) {
            drafts[i] = pn_spec_draft(sl->spec, pn_seq_drafts(sl->seq, cap), sl->tokens + 1, s->odds[i]);
        }
    }
    n = likeliest(s, n_decode, most, drafts, odds, from);
    if (how == PN_SPECULATION_ALWAYS) worth = n;
    else if (n_items > n_decode) for (worth = 0; worth < n && odds[worth] >= ODDS_BESIDE_PROMPTS;) worth++;
    else worth = pn_spec_worth(&s->costs, n_decode, odds, n);
    while (n > worth) s->slots[s->item_slot[from[--n]]].n_draft--;
    for (uint32_t i = 0; i < n_decode; i++) {
        struct pn_slot *sl = &s->slots[s->item_slot[i]];
        if (sl->n_draft > 0) sl->n_draft = pn_request_may_choose(sl->r, s->tok, sl->tokens + 1, sl->n_draft);
        if (sl->n_draft == 0) continue;
        s->items[i].n += sl->n_draft;
        s->items[i].want = PN_WANT_ALL;
    }
}

static bool has_prompt(const struct pn_slot *sl) {
    return sl->r && sl->r->n_out == 0 && !sl->in_step;
}

/* Of the prompts that are not in the step yet, whose turn it is; NULL = there is none. The order is the queue's, but that only what was computed
 * counts: so two long prompts take turns. */
static struct pn_slot *next_prompt(struct pn_sched *s, double now_ms) {
    struct pn_slot *best = NULL;
    uint32_t most = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (has_prompt(&s->slots[i]) && pn_fair_urgency(s->slots[i].r->priority) > most) most = pn_fair_urgency(s->slots[i].r->priority);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct pn_slot *sl = &s->slots[i];
        if (!has_prompt(sl) || pn_fair_reach(sl->r->priority, now_ms - sl->r->submitted_ms, s->limits.queue_timeout_ms / 4.0) < most) continue;
        bool before = best && pn_fair_before(sl->r->account, best->r->account, false), after = best && pn_fair_before(best->r->account, sl->r->account, false);
        if (!best || before || (!after && sl->order < best->order)) best = sl;
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}

uint32_t pn_sched_build(struct pn_sched *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct pn_slot *sl = &s->slots[i];
        if (!sl->r || sl->r->n_out == 0 || !pn_request_flush(sl->r)) continue;
        s->item_slot[n] = i;
        s->items[n++] = (struct pn_batch_item){ sl->seq, sl->tokens, 1, PN_WANT_LAST };
    }
    uint32_t budget = prefill_budget(s, n), left = budget, total = n, n_decode = n;
    double now = pn_now_ms();
    for (uint32_t i = 0; i < s->n_slots; i++) s->slots[i].in_step = false;
    for (struct pn_slot *sl; left > 0 && (sl = next_prompt(s, now));) {
        uint32_t pos = pn_seq_len(sl->seq), rest = sl->r->n_tokens - pos, take = pn_seq_chunk(sl->seq, rest < left ? rest : left);
        s->item_slot[n] = (uint32_t)(sl - s->slots);
        enum pn_want want = sl->r->pooled ? pn_pooled_want(sl->r->pooled, take) : take == rest ? PN_WANT_LAST : PN_WANT_NONE;
        s->items[n++] = (struct pn_batch_item){ sl->seq, sl->r->tokens + pos, take, want };
        left -= take;
        total += take;
        sl->in_step = true;
    }
    assert(n <= s->n_slots && total <= s->info->max_batch);
    if (n_decode > 0) add_drafts(s, n_decode, n, total > n_decode ? left : s->info->max_batch - total); /* prompts come first */
    if (n_decode > 0 && total > n_decode) {
        pthread_mutex_lock(&s->lock);
        s->chunk = budget;
        pthread_mutex_unlock(&s->lock);
    }
    return n;
}

/* --- what comes of it ------------------------------------------------------------------------- */
/* The next tokens of logits [n_rows][n_vocab]: the row behind the newest token, and those behind what was drafted as long as the draft is
 * right and the reader keeps up. The rest is taken back. Returns how many rows were chosen from. */
static uint32_t choose(struct pn_sched *s, struct pn_slot *sl, uint32_t n_rows, float *logits) {
    struct pn_chosen next;
    struct fo_err e;
    uint32_t rows = 0, accepted = 0, first = pn_seq_len(sl->seq) - (n_rows - 1);
    bool decodes = sl->r->n_out > 0, right;
    int rc;
    do {
        pthread_mutex_lock(&s->lock); /* before its reader sees it */
        s->generated++;
        s->decoded += decodes;
        pn_fair_answer(sl->r->account, 1);
        pthread_mutex_unlock(&s->lock);
        rc = pn_request_choose(sl->r, s->tok, logits, s->info->n_vocab, &next, &e);
        logits += s->info->n_vocab;
        rows++;
        if (sl->first_ms == 0 && sl->r->n_out > 0) sl->first_ms = pn_now_ms();
        if (rc == 0 && next.id >= 0 && sl->spec) pn_spec_add(sl->spec, next.id);
        right = rc == 0 && rows < n_rows && next.id == sl->tokens[rows];
        accepted += right;
    } while (right && !next.last && pn_request_flush(sl->r));
    if (rc == 0) sl->tokens[0] = next.id;
    sl->drafted += n_rows - 1;
    sl->accepted += accepted;
    if (accepted > 0) {
        pthread_mutex_lock(&s->lock);
        s->accepted += accepted;
        pthread_mutex_unlock(&s->lock);
    }
    if (rows < n_rows) pn_seq_take_back(sl->seq, first + rows - 1);
    if (rc != 0 || next.last) pn_slot_end(s, sl, rc ? PN_FINISH_STOP : next.finish, rc ? &e : NULL);
    return rows;
}

/* n more tokens of a prompt that is embedded were computed. Returns how many rows of `states` were its. */
static uint32_t states_taken(struct pn_sched *s, struct pn_slot *sl, uint32_t n, const float *states) {
    struct pn_pooled *v = sl->r->pooled;
    struct fo_err e;
    uint32_t rows = pn_pooled_add(v, n, states);
    if (pn_seq_len(sl->seq) < sl->r->n_tokens) return rows;
    pn_slot_end(s, sl, PN_FINISH_STOP, pn_pooled_finish(v, &e) ? &e : NULL);
    return rows;
}

/* Tokens from the logits of items[lo, lo + n), and vectors from the states. */
static void take_results(struct pn_sched *s, uint32_t lo, uint32_t n, float *logits, double ms) {
    uint32_t prefilled = 0, decoding = 0, drafted = 0, rows = 0;
    for (uint32_t i = lo; i < lo + n; i++) {
        if (s->slots[s->item_slot[i]].r->n_out == 0) {
            prefilled += s->items[i].n;
        } else {
            decoding++;
            drafted += s->items[i].n - 1;
        }
    }
    if (prefilled == 0) pn_spec_cost_add(&s->costs, decoding + drafted, ms);
    pthread_mutex_lock(&s->lock);
    s->prefilled += prefilled;
    s->drafted += drafted;
    for (uint32_t i = lo; i < lo + n; i++)
        if (s->slots[s->item_slot[i]].r->n_out == 0) pn_fair_prompt(s->slots[s->item_slot[i]].r->account, s->items[i].n);
    /* In a mixed step the decodes are counted at their known rate, the rest of the time is the prefill's, and that of drafts beside it. */
    double seconds = ms / 1e3, rest = seconds - (s->decode_tps > 0 ? decoding / s->decode_tps : 0);
    if (prefilled > 0 && rest > 0) {
        double tps = (prefilled + drafted) / rest;
        pn_learn(&s->prefill_tps, tps);
        if (prefilled >= PN_FIRST_CHUNK || prefilled >= s->chunk) { /* the last few tokens of a prompt cost more than their share */
            s->chunk_tps = s->chunk_tps == 0 || tps < s->chunk_tps ? tps : s->chunk_tps + (tps - s->chunk_tps) / 4;
        }
    }
    pthread_mutex_unlock(&s->lock);

    const float *states = pn_model_states(s->m);
    for (uint32_t i = lo; i < lo + n; i++) {
        struct pn_slot *sl = &s->slots[s->item_slot[i]];
        if (sl->r->pooled) {
            states += (size_t)states_taken(s, sl, s->items[i].n, states) * s->info->n_embd;
            continue;
        }
        if (s->items[i].want == PN_WANT_NONE) continue;
        uint32_t n_rows = s->items[i].want == PN_WANT_ALL ? s->items[i].n : 1;
        rows += choose(s, sl, n_rows, logits);
        logits += (size_t)n_rows * s->info->n_vocab;
    }
    if (prefilled > 0 || seconds <= 0) return;
    pthread_mutex_lock(&s->lock);
    pn_learn(&s->decode_tps, rows / seconds);
    pthread_mutex_unlock(&s->lock);
}

enum outcome { COMPUTED, FAILED, MODEL_FAILED };

/* Computes items[lo, lo + n). Nothing is shown before the model has said that its weights were sound throughout; when they were not,
 * everything has ended on return. FAILED: *e says why, the sequences are as before. */
static enum outcome compute(struct pn_sched *s, uint32_t lo, uint32_t n, struct fo_err *e) {
    float *logits;
    struct fo_err state;
    double start = pn_now_ms();
    int rc = pn_model_forward(s->m, s->items + lo, (int)n, &logits, e);
    if (pn_model_state(s->m, &state) != 0) {
        pn_sched_model_failed(s, &state);
        return MODEL_FAILED;
    }
    if (rc != 0) return FAILED;
    take_results(s, lo, n, logits, pn_now_ms() - start);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = lo; i < lo + n; i++) pn_slot_publish(s, &s->slots[s->item_slot[i]]);
    pn_sched_publish_promised(s);
    pthread_mutex_unlock(&s->lock);
    return COMPUTED;
}

/* A failed batch is tried again one by one and without drafts, so that only what fails alone is failed. A lost device that fails every one of them has
 * taken the model with it. */
void pn_sched_step(struct pn_sched *s, uint32_t n) {
    struct fo_err e;
    enum outcome all = compute(s, 0, n, &e);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < n && all == FAILED; i++) {
        struct pn_batch_item *it = &s->items[i];
        bool drafted = it->want == PN_WANT_ALL;
        if (drafted) it->n = 1, it->want = PN_WANT_LAST;
        enum outcome one = n > 1 || drafted ? compute(s, i, 1, &e) : FAILED;
        if (one == MODEL_FAILED) return;
        if (one == COMPUTED) continue;
        if (e.code == FO_ELOST && ++lost == n)
            pn_sched_model_failed(s, &e);
        else
            pn_slot_end(s, &s->slots[s->item_slot[i]], PN_FINISH_STOP, &e);
    }
}
