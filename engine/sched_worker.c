/* The worker: requests come from the queue into slots, and leave them. See sched_impl.h. */
#include "engine/sched_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/kv.h"
#include "engine/mem/relief.h"
#include "engine/model.h"
#include "engine/prefix.h"
#include "engine/request_worker.h"
#include "engine/wake.h"
#include "foundry/base/log.h"

enum {
    TICK_MS = 1000,
    ERRANDS_MS = 10 /* of errands between two steps; the first is run in any case */
};

/* --- the end of a request -------------------------------------------------------------------- */
/* What becomes of a slot's sequence: tokens and KV that are sound may serve other requests. */
static void part_with(struct pn_sched *s, struct pn_seq *seq, const struct pn_request *r, const struct fo_err *err) {
    if (r->keep_nothing) pn_seq_free(seq);
    else if (!s->failed && (!err || err->code == FO_ECANCELLED)) pn_prefix_put(s->idle, r->session, seq);
    else pn_prefix_drop(s->idle, seq);
}

void pn_sched_publish_kv(struct pn_sched *s) {
    uint64_t page = s->info->page_tokens * s->info->kv_bytes_per_token, free_pages = pn_model_free_pages(s->m);
    s->kv_used = (s->info->n_pages - free_pages) * page;
    const struct pn_kv *kv = pn_model_kv(s->m);
    uint64_t idle = pn_prefix_pages(s->idle);
    s->kv_available = (free_pages + idle) * page;
    s->kv_resident = (kv->n_free_touched + idle) * page;
    s->kv_small = kv->n_small_held;
    pn_sched_publish_promised(s);
}

void pn_sched_publish_promised(struct pn_sched *s) {
    s->kv_promised = pn_model_kv_promised(s->m) * pn_model_kv_host_bytes(s->m);
}

/* A slot that was taken or became free, for pages; under the lock, as the next. */
static void publish_slot(struct pn_sched *s, const struct pn_slot *sl) {
    const struct pn_request *r = sl->r;
    struct pn_slot_status *to = &s->shown[sl - s->slots];
    *to = (struct pn_slot_status){ .busy = r != NULL };
    if (!r) return;
    if (r->id) snprintf(to->request, sizeof to->request, "%.31s", r->id);
    to->prompt_tokens = r->n_tokens;
    to->cached_tokens = to->computed_tokens = sl->cached;
    to->max_tokens = r->max_tokens;
    to->started_ms = sl->started_ms;
}

void pn_slot_publish(struct pn_sched *s, const struct pn_slot *sl) {
    if (!sl->r) return;
    s->shown[sl - s->slots].computed_tokens = pn_seq_len(sl->seq);
    s->shown[sl - s->slots].generated_tokens = sl->r->n_out;
}

void pn_slot_end(struct pn_sched *s, struct pn_slot *sl, enum pn_finish finish, const struct fo_err *err) {
    struct pn_request *r = sl->r;
    double now = pn_now_ms(), first = sl->first_ms > 0 ? sl->first_ms : now;
    struct pn_usage usage = { .prompt_tokens = r->n_tokens,
                              .cached_tokens = sl->cached,
                              .cached_small = sl->cached_small,
                              .cache_miss = sl->miss,
                              .cache_shared = sl->shared,
                              .completion_tokens = r->n_out,
                              .reasoning_tokens = r->n_reasoning,
                              .thought = r->thought,
                              .drafted = sl->drafted,
                              .accepted = sl->accepted,
                              .queue_ms = sl->started_ms - r->submitted_ms,
                              .prefill_ms = first - sl->started_ms,
                              .decode_ms = now - first };
    uint32_t len = pn_seq_len(sl->seq), forgone = len < r->n_tokens ? r->n_tokens - len : 0;
    part_with(s, sl->seq, r, err);
    pn_spec_free(sl->spec);
    *sl = (struct pn_slot){ 0 };
    s->n_run--;
    FO_DEBUGF("sched", "end id=%s prompt=%u cached=%u completion=%u error=%s", r->id ? r->id : "-", usage.prompt_tokens, usage.cached_tokens,
              usage.completion_tokens, err ? err->msg : "-");

    pthread_mutex_lock(&s->lock);
    s->n_running--;
    pn_fair_forgo(r->account, forgone);
    pn_fair_leave(&s->queue.fair, r->account);
    r->account = NULL;
    publish_slot(s, sl);
    s->queue_s += usage.queue_ms / 1e3;
    s->prefill_s += usage.prefill_ms / 1e3;
    s->decode_s += usage.decode_ms / 1e3;
    s->reasoning += usage.reasoning_tokens;
    s->calls += r->turn ? pn_turn_n_calls(r->turn) : 0;
    if (err && err->code == FO_ECANCELLED) {
        s->cancelled++;
    } else if (err) {
        s->n_failed++;
    } else {
        s->completed++;
        pn_learn(&s->mean_answer, usage.completion_tokens);
    }
    pn_sched_publish_kv(s);
    pn_sched_say_idle(s);
    pthread_mutex_unlock(&s->lock);
    pn_request_end(r, finish, &usage, err);
}

static void end_running(struct pn_sched *s, const struct fo_err *err) {
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].r) pn_slot_end(s, &s->slots[i], PN_FINISH_STOP, err);
}

/* What had not started goes to another worker; what none takes, or was cancelled, ends here. n: how many were not cancelled when they left
 * the queue. */
static void bequeath(struct pn_sched *s, struct pn_request *list, uint32_t n, const struct fo_err *err) {
    struct pn_request *rest = NULL, **end = &rest;
    uint32_t taken = 0;
    while (list) {
        struct pn_request *r = list;
        list = r->next;
        r->next = NULL;
        if (s->heir && !pn_request_cancelled(r) && s->heir(s->heir_ctx, r)) {
            taken++; /* and is another's */
            continue;
        }
        *end = r;
        end = &r->next;
    }
    pn_queue_end(rest, err);
    pthread_mutex_lock(&s->lock);
    s->handed_over += taken;
    s->n_failed += n - taken;
    s->n_leaving = 0;
    pn_sched_say_idle(s);
    pthread_mutex_unlock(&s->lock);
}

void pn_sched_model_failed(struct pn_sched *s, const struct fo_err *err) {
    uint32_t cancelled, others;
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    s->failed_code = err->code;
    snprintf(s->reason, sizeof s->reason, "%.255s", err->msg);
    struct pn_request *list = pn_queue_sweep(&s->queue, true, &cancelled, &others);
    s->cancelled += cancelled;
    s->n_leaving = cancelled + others;
    pthread_mutex_unlock(&s->lock);
    bequeath(s, list, others, err);
    end_running(s, err);
    pn_sched_errands_end(s);
    while (pn_prefix_evict(s->idle)) {}
    pthread_mutex_lock(&s->lock);
    pn_sched_publish_kv(s);
    pthread_mutex_unlock(&s->lock);
}

/* --- coming and going ------------------------------------------------------------------------ */
void pn_sched_forget_all(struct pn_sched *s, struct pn_over *list) {
    while (list) {
        struct pn_over *note = list;
        list = note->next;
        pn_prefix_forget(s->idle, NULL, note->session);
        free(note);
    }
}

/* What was cancelled, waited too long, or is ended by order leaves. False = the worker is to stop (and nothing is left). */
static bool sweep(struct pn_sched *s) {
    struct fo_err why, late, gone;
    double now = pn_now_ms();
    pthread_mutex_lock(&s->lock);
    s->heartbeat++;
    bool stop = s->stop, all = s->end_all || stop;
    fo_fail(&why, FO_EUNAVAIL, "%s", s->end_all ? s->end_reason : "the model was unloaded");
    s->end_all = false;
    uint32_t timeout_ms = s->limits.queue_timeout_ms, n_expired;
    struct pn_request *list = pn_sched_take_out(s, all), *expired = pn_queue_expire(&s->queue, now, timeout_ms, &n_expired);
    s->n_failed += n_expired;
    pn_sched_say_idle(s);
    struct pn_over *over = s->over;
    s->over = NULL;
    pthread_mutex_unlock(&s->lock);
    if (over) {
        pn_sched_forget_all(s, over);
        pthread_mutex_lock(&s->lock);
        pn_sched_publish_kv(s);
        pthread_mutex_unlock(&s->lock);
    }
    pn_queue_end(list, &why);
    fo_fail_need(&late, FO_ETIMEOUT, timeout_ms, timeout_ms, "waited %u ms in the queue, the longest that is allowed", timeout_ms);
    pn_queue_end(expired, &late);

    pn_request_fail_cancelled(&gone);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct pn_slot *sl = &s->slots[i];
        if (!sl->r) continue;
        if (pn_request_cancelled(sl->r))
            pn_slot_end(s, sl, PN_FINISH_STOP, &gone);
        else if (all)
            pn_slot_end(s, sl, PN_FINISH_STOP, &why);
    }
    return !stop;
}

/* A sequence for r, in sl, with room for all it may become. Idle texts give way to it. */
static int sequence_for(struct pn_sched *s, const struct pn_request *r, struct pn_slot *sl, struct fo_err *e) {
    struct pn_seq *seq;
    sl->miss = PN_CACHE_OFF;
    if (!r->keep_nothing) {
        if (pn_prefix_begin(s->idle, r->tenant, r->tokens, r->n_tokens, &seq, &sl->miss, &sl->shared, e)) return e->code;
    } else {
        while (pn_seq_new(s->m, &seq, e) != 0)
            if (!pn_prefix_evict(s->idle)) return e->code;
    }
    /* The last token of an answer is shown but never computed on. */
    uint32_t n = r->pooled ? r->n_tokens : r->n_tokens + r->max_tokens - 1;
    int rc = pn_prefix_reserve(s->idle, seq, n, e);
    if (rc == 0 && s->n_run > 0 && !pn_sched_has_room(s)) rc = fo_fail(e, FO_ENOMEM, "the host has no memory for its KV while others run");
    if (rc != 0) {
        part_with(s, seq, r, NULL); /* what it began with is there again when it is tried once more */
        return e->code;
    }
    if (!r->keep_nothing) pn_prefix_name(s->idle, seq, r->session);
    sl->seq = seq;
    sl->cached = pn_seq_len(seq);
    sl->cached_small = pn_kv_seq_small(seq);
    return 0;
}

/* From the queue into a slot; false = nothing more can start now. */
static bool start_one(struct pn_sched *s) {
    struct fo_err e;
    struct pn_slot *sl = s->slots;
    if (s->n_run == s->n_slots) return false;
    while (sl->r) sl++;
    pthread_mutex_lock(&s->lock);
    struct pn_request *r = s->n_run < pn_sched_slots_now(s) ? pn_queue_pop(&s->queue, pn_now_ms(), s->limits.queue_timeout_ms) : NULL;
    if (r) s->n_running++;
    pthread_mutex_unlock(&s->lock);
    if (!r) return false;

    *sl = (struct pn_slot){ .order = s->order, .started_ms = pn_now_ms() };
    if (sequence_for(s, r, sl, &e) != 0) {
        bool wait = e.code == FO_ENOMEM && s->n_run > 0; /* what runs now gives its memory back */
        pthread_mutex_lock(&s->lock);
        s->n_running--;
        if (wait) {
            pn_queue_push(&s->queue, r, true);
        } else {
            pn_fair_drop(&s->queue.fair, r->account);
            s->n_failed++;
        }
        pn_sched_say_idle(s);
        pthread_mutex_unlock(&s->lock);
        if (wait) return false;
        pn_queue_end(r, &e);
        return true;
    }
    sl->r = r;
    s->order++;
    s->n_run++;
    for (uint32_t i = 0; i < r->n_tokens && !r->pooled; i++) pn_sampler_accept(r->sampler, r->tokens[i], 0);
    pthread_mutex_lock(&s->lock);
    pn_fair_start(&s->queue.fair, r->account, r->n_tokens - sl->cached);
    s->cached += sl->cached;
    if (!r->pooled) s->misses[sl->miss]++;
    publish_slot(s, sl);
    pn_sched_publish_kv(s);
    pthread_mutex_unlock(&s->lock);
    FO_DEBUGF("sched", "start id=%s prompt=%u cached=%u max_tokens=%u", r->id ? r->id : "-", r->n_tokens, sl->cached, r->max_tokens);
    pn_request_start(r);
    return true;
}

/* --- errands --------------------------------------------------------------------------------- */
/* The first that waits; NULL = there is none. */
static struct pn_errand *next_errand(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    struct pn_errand *x = s->errands;
    if (x && !(s->errands = x->next)) s->errands_end = &s->errands;
    pthread_mutex_unlock(&s->lock);
    return x;
}

/* x is its caller's again, and not to be touched behind this. Under the lock. */
static void errand_over(struct pn_sched *s, struct pn_errand *x, int rc) {
    x->rc = rc;
    x->done = true;
    pthread_cond_broadcast(&s->errand_done);
}

/* Answers that run wait for them no longer than for a small step. True = some are left. */
static bool run_errands(struct pn_sched *s) {
    double until = pn_now_ms() + ERRANDS_MS;
    for (struct pn_errand *x; (x = next_errand(s));) {
        x->fn(x->ctx, s->m, s->idle);
        pthread_mutex_lock(&s->lock);
        pn_sched_publish_kv(s);
        errand_over(s, x, 0);
        pthread_mutex_unlock(&s->lock);
        if (s->n_run > 0 && pn_now_ms() >= until) return true;
    }
    return false;
}

void pn_sched_errands_end(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    for (struct pn_errand *x = s->errands, *next; x; x = next) {
        next = x->next;
        errand_over(s, x, FO_EUNAVAIL);
    }
    s->errands = NULL;
    s->errands_end = &s->errands;
    pthread_mutex_unlock(&s->lock);
}

/* --- the loop -------------------------------------------------------------------------------- */
/* How long to sleep: a tick, or until the oldest in the queue has waited too long. */
static int wait_ms(struct pn_sched *s) {
    double left = TICK_MS;
    pthread_mutex_lock(&s->lock);
    double expires = pn_queue_expires_ms(&s->queue, s->limits.queue_timeout_ms);
    if (expires > 0) left = expires - pn_now_ms() + 1;
    pthread_mutex_unlock(&s->lock);
    return left < 1 ? 1 : left > TICK_MS ? TICK_MS : (int)left;
}

void *pn_sched_worker(void *sched) {
    struct pn_sched *s = sched;
    struct fo_err e;
    for (;;) {
        uint64_t seen = pn_wake_count(s->wake);
        if (!sweep(s)) break;
        bool more = run_errands(s);
        more = pn_sched_relieve(s) || more;
        while (start_one(s)) {}
        uint32_t n = pn_sched_build(s);
        if (n > 0) {
            pn_sched_step(s, n);
            continue;
        }
        if (!more) pn_wake_wait(s->wake, seen, wait_ms(s));
        if (!s->failed && pn_model_check(s->m, &e) != 0) pn_sched_model_failed(s, &e);
    }
    pthread_mutex_lock(&s->lock);
    s->gone = true;
    pthread_mutex_unlock(&s->lock);
    pn_sched_errands_end(s);
    return NULL;
}
