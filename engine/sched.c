/* The scheduler: see sched.h, and sched_impl.h for who owns what. Here is what any thread does; the worker's half is in sched_worker.c. */
#include "engine/sched_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/model.h"
#include "engine/prefix.h"
#include "engine/request_worker.h"
#include "engine/wake.h"
#include "foundry/base/clock.h"
#include "foundry/base/log.h"
#include "foundry/base/signals.h"

enum { RETRY_MAX_S = 120, RETRY_DRAINING_S = 10, RETRY_FAILED_S = 60, GUESS_TOKENS = 128 };

struct pn_request *pn_sched_take_out(struct pn_sched *s, bool all) {
    uint32_t cancelled, others;
    struct pn_request *list = pn_queue_sweep(&s->queue, all, &cancelled, &others);
    s->cancelled += cancelled;
    s->n_failed += others;
    pn_sched_say_idle(s);
    return list;
}

/* Tokens that an answer should still get: as many as answers lately had, unless it may not. */
static double answer_left(const struct pn_sched *s, uint32_t max_tokens, uint32_t n) {
    double all = s->mean_answer > 0 ? s->mean_answer : GUESS_TOKENS;
    if (all > max_tokens) all = max_tokens;
    return all > n ? all - n : n < max_tokens;
}

/* When a place should be free: the tokens that are left of all that runs and waits, at the measured rates, shared by the slots. */
static uint32_t retry_after(const struct pn_sched *s) {
    if (s->failed) return RETRY_FAILED_S;
    if (s->draining) return RETRY_DRAINING_S;
    /* of prompts, what was lately found in kept KV is not computed */
    double fresh = (double)(s->prefilled + 1) / (double)(s->prefilled + s->cached + 1), prompts = 0, answers = 0, seconds = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct pn_slot_status *x = &s->shown[i];
        if (!x->busy) continue;
        if (x->prompt_tokens > x->computed_tokens) prompts += x->prompt_tokens - x->computed_tokens;
        answers += answer_left(s, x->max_tokens, x->generated_tokens);
    }
    for (const struct pn_request *r = s->queue.head; r; r = r->next) {
        prompts += fresh * r->n_tokens;
        answers += answer_left(s, r->max_tokens, 0);
    }
    if (s->prefill_tps > 0) seconds += prompts / s->prefill_tps;
    if (s->decode_tps > 0) seconds += answers / s->decode_tps;
    seconds /= pn_sched_slots_now(s);
    return seconds >= RETRY_MAX_S ? RETRY_MAX_S : seconds <= 1 ? 1 : (uint32_t)(seconds + 0.999);
}

static int state_check(struct pn_sched *s, bool goes_on, struct fo_err *e) {
    if (s->failed) return fo_fail(e, FO_EUNAVAIL, "the model failed: %s", s->reason);
    if (s->draining && (!goes_on || s->stop || s->over_all)) return fo_fail(e, FO_EUNAVAIL, "draining: no new requests are taken");
    return 0;
}

static bool takes(const struct pn_sched *s, const char *tenant, enum pn_priority priority) {
    return pn_queue_takes(&s->queue, tenant, priority, s->n_running, pn_sched_slots_now(s), s->limits.queue_depth);
}

static int full(const struct pn_sched *s, enum pn_priority priority, struct fo_err *e) {
    uint32_t n = pn_queue_ahead(&s->queue, priority);
    return fo_fail_need(e, FO_EBUSY, (uint64_t)n + 1, s->limits.queue_depth, "the queue is full: %u requests run and %u wait (at most %u)", s->n_running, n,
                        s->limits.queue_depth);
}

/* Under the lock; what had been cancelled leaves first, through *ret_gone. */
static int room(struct pn_sched *s, const char *tenant, enum pn_priority priority, bool goes_on, struct pn_request **ret_gone, struct fo_err *e) {
    *ret_gone = NULL;
    int rc = state_check(s, goes_on, e);
    if (rc == 0 && !goes_on && !takes(s, tenant, priority)) {
        *ret_gone = pn_sched_take_out(s, false);
        if (!takes(s, tenant, priority))
            rc = full(s, priority, e);
    }
    if (rc != 0) s->refused++;
    return rc;
}

void pn_sched_set(struct pn_sched *s, const struct pn_sched_limits *l) {
    pthread_mutex_lock(&s->lock);
    s->limits = *l;
    struct pn_effective declared = pn_sched_declared(s, l);
    pn_ladder_declare(&s->ladder, &declared);
    pthread_mutex_unlock(&s->lock);
    pn_wake_ring(s->wake);
}

void pn_sched_set_memory(struct pn_sched *s, enum pn_level level, uint64_t room_bytes) {
    pthread_mutex_lock(&s->lock);
    bool other = pn_ladder_set(&s->ladder, level) || (room_bytes > s->room_bytes && s->queue.n > 0);
    s->level = level;
    s->room_bytes = room_bytes;
    s->room_is_new = true;
    pthread_mutex_unlock(&s->lock);
    if (other) pn_wake_ring(s->wake);
}

bool pn_sched_load(struct pn_sched *s, uint32_t *ret_busy, uint32_t *ret_slots, uint64_t *ret_requests) {
    pthread_mutex_lock(&s->lock);
    *ret_busy = s->n_running + s->queue.n;
    *ret_slots = pn_sched_slots_now(s);
    *ret_requests = s->requests;
    bool serves = !s->failed && !s->draining;
    pthread_mutex_unlock(&s->lock);
    return serves;
}

uint32_t pn_sched_kept(struct pn_sched *s, const char *tenant, const int32_t *tokens, uint32_t n) {
    return pn_prefix_kept(s->idle, tenant, tokens, n);
}

int pn_sched_room(struct pn_sched *s, const struct pn_request_opts *o, struct fo_err *e) {
    struct pn_request *gone;
    pthread_mutex_lock(&s->lock);
    int rc = room(s, o->tenant, o->priority, o->goes_on, &gone, e);
    pthread_mutex_unlock(&s->lock);
    pn_queue_end(gone, NULL);
    return rc;
}

/* Into the queue; `taken_over` from another's. */
static int enqueue(struct pn_sched *s, struct pn_request *r, bool taken_over, struct fo_err *e) {
    struct pn_request *gone = NULL;
    struct pn_account *tenant = pn_account_new(r->tenant), *session = pn_account_new(r->session);
    if (!tenant || !session) {
        pn_account_free(tenant);
        pn_account_free(session);
        return fo_fail(e, FO_ENOMEM, "no memory for a request");
    }
    pthread_mutex_lock(&s->lock);
    int rc = taken_over ? state_check(s, true, e) : room(s, r->tenant, r->priority, r->goes_on, &gone, e);
    if (rc == 0) {
        s->requests += !taken_over;
        r->account = pn_fair_enter(&s->queue.fair, &tenant, &session);
        /* A choice has its predecessor's place. The next of two thousand inputs lets those pass who waited while the one before it ran: it
         * is neither refused nor timed out, and nobody waits for all of them. */
        pn_queue_push(&s->queue, r, r->goes_on && !r->pooled);
    }
    pthread_mutex_unlock(&s->lock);
    pn_account_free(tenant);
    pn_account_free(session);
    pn_queue_end(gone, NULL);
    if (rc == 0) pn_wake_ring(s->wake);
    return rc;
}

int pn_sched_submit(struct pn_sched *s, struct pn_request *r, struct fo_err *e) {
    r->submitted_ms = pn_now_ms();
    return enqueue(s, r, false, e);
}

int pn_sched_take_over(struct pn_sched *s, struct pn_request *r, struct fo_err *e) {
    pn_request_rewire(r, s->wake); /* before the queue has it: a cancel either is seen there or rings there */
    return enqueue(s, r, true, e);
}

bool pn_sched_failed(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed;
    pthread_mutex_unlock(&s->lock);
    return failed;
}

void pn_sched_forget(struct pn_sched *s, const char *session) {
    size_t n = strlen(session) + 1;
    struct pn_over *note = malloc(sizeof *note + n);
    if (!note) return;
    memcpy(note->session, session, n);
    pthread_mutex_lock(&s->lock);
    note->next = s->over;
    s->over = note;
    pthread_mutex_unlock(&s->lock);
    pn_wake_ring(s->wake);
}

/* Under the lock. */
static int errand_check(const struct pn_sched *s, struct fo_err *e) {
    if (s->failed) return fo_fail(e, FO_EUNAVAIL, "the model failed: %s", s->reason);
    if (s->stop || s->gone) return fo_fail(e, FO_EUNAVAIL, "the model was unloaded");
    return 0;
}

int pn_sched_errand(struct pn_sched *s, pn_sched_errand_fn *fn, void *ctx, struct fo_err *e) {
    struct pn_errand x = { .fn = fn, .ctx = ctx };
    pthread_mutex_lock(&s->lock);
    int rc = errand_check(s, e);
    if (rc == 0) {
        *s->errands_end = &x;
        s->errands_end = &x.next;
        pthread_mutex_unlock(&s->lock);
        pn_wake_ring(s->wake);
        pthread_mutex_lock(&s->lock);
        while (!x.done) pthread_cond_wait(&s->errand_done, &s->lock);
        rc = x.rc ? errand_check(s, e) : 0;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void pn_sched_drain(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

bool pn_sched_wait_idle(struct pn_sched *s, uint32_t timeout_ms) {
    struct timespec until = fo_deadline(timeout_ms);
    pthread_mutex_lock(&s->lock);
    while (pn_sched_active(s) > 0 && pthread_cond_timedwait(&s->idle_now, &s->lock, &until) == 0) {}
    bool idle = pn_sched_active(s) == 0;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

void pn_sched_cancel_all(struct pn_sched *s, const char *reason) {
    pthread_mutex_lock(&s->lock);
    s->end_all = true;
    s->over_all = s->draining;
    snprintf(s->end_reason, sizeof s->end_reason, "%s", reason);
    pthread_mutex_unlock(&s->lock);
    pn_wake_ring(s->wake);
}

void pn_sched_status(struct pn_sched *s, struct pn_served_status *ret) {
    struct fo_err why = { 0 };
    pthread_mutex_lock(&s->lock);
    *ret = (struct pn_served_status){
        .ready = state_check(s, false, &why) == 0,
        .draining = s->draining,
        .failed_code = s->failed_code,
        .max_concurrent = pn_sched_slots_now(s),
        .prefill_chunk = s->chunk,
        .running = s->n_running,
        .queued = s->queue.n + s->n_leaving,
        .requests = s->requests,
        .refused = s->refused,
        .handed_over = s->handed_over,
        .completed = s->completed,
        .failed = s->n_failed,
        .cancelled = s->cancelled,
        .tokens_prefilled = s->prefilled,
        .tokens_decoded = s->decoded,
        .tokens_cached = s->cached,
        .tokens_generated = s->generated,
        .tokens_drafted = s->drafted,
        .tokens_accepted = s->accepted,
        .tokens_reasoning = s->reasoning,
        .calls = s->calls,
        .queue_s = s->queue_s,
        .prefill_s = s->prefill_s,
        .decode_s = s->decode_s,
        .heartbeat = s->heartbeat,
        .prefill_tps = s->prefill_tps,
        .decode_tps = s->decode_tps,
        .kv_bytes_used = s->kv_used,
        .level = s->level,
        .rungs = (uint32_t)s->ladder.n,
        .declared = s->ladder.declared,
        .effective = s->ladder.now,
        .promised_bytes = s->kv_promised,
        .room_bytes = s->room_bytes,
        .kv_small_pages = s->kv_small,
        .retry_after_s = retry_after(s),
    };
    memcpy(ret->cache_misses, s->misses, sizeof ret->cache_misses);
    pthread_mutex_unlock(&s->lock);
    memcpy(ret->reason, why.msg, sizeof ret->reason - 1);
}

uint32_t pn_sched_slots(struct pn_sched *s, struct pn_slot_status *ret, uint32_t cap) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_slots && i < cap; i++) ret[i] = s->shown[i];
    pthread_mutex_unlock(&s->lock);
    return s->n_slots;
}

uint64_t pn_sched_kv_available(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->kv_available, room = s->room_bytes > s->kv_promised ? s->room_bytes - s->kv_promised : 0;
    if (s->room_bytes != UINT64_MAX && n > s->kv_resident && n - s->kv_resident > room) n = s->kv_resident + room;
    pthread_mutex_unlock(&s->lock);
    return n;
}
/* --- making and freeing ---------------------------------------------------------------------- */
static int thread_start(struct pn_sched *s, struct fo_err *e) {
    sigset_t all, old;
    fo_signals_for_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&s->thread, NULL, pn_sched_worker, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 ? 0 : fo_fail_errno(e, rc, "cannot start a worker");
}

static void sched_done(struct pn_sched *s) {
    pn_sched_forget_all(s, s->over);
    pn_prefix_free(s->idle);
    pn_queue_done(&s->queue);
    pn_wake_unref(s->wake);
    free(s->slots);
    free(s->items);
    free(s->item_slot);
    free(s->odds);
    free(s->shown);
    pthread_cond_destroy(&s->idle_now);
    pthread_cond_destroy(&s->errand_done);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void say_rung(void *ctx, const struct pn_rung *r, bool on) {
    const struct pn_sched *s = ctx;
    FO_DEBUGF("sched", "rung %s %s max_concurrent=%u prefill_chunk=%u", r->name, on ? "applied" : "undone", s->ladder.now.max_concurrent, s->ladder.now.prefill_chunk);
}

int pn_sched_new(struct pn_model *m, const struct pn_sched_limits *l, pn_sched_heir *heir, void *ctx, struct pn_sched **ret, struct fo_err *e) {
    struct pn_sched *s = calloc(1, sizeof *s);
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for a scheduler");
    s->m = m;
    s->info = pn_model_info(m);
    s->tok = pn_model_tok(m);
    s->limits = *l;
    s->room_bytes = UINT64_MAX;
    s->heir = heir;
    s->heir_ctx = ctx;
    pn_queue_init(&s->queue);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle_now, &attr);
    pthread_cond_init(&s->errand_done, &attr);
    s->errands_end = &s->errands;
    pthread_condattr_destroy(&attr);
    /* A sequence each, and a token each in a step. */
    s->n_slots = pn_least(pn_least(s->info->max_concurrent, s->info->max_sessions), s->info->max_batch);
    struct pn_effective declared = pn_sched_declared(s, l);
    pn_ladder_init(&s->ladder, &declared);
    s->ladder.told = say_rung;
    s->ladder.ctx = s;
    s->busy_ms = pn_now_ms();
    s->wake = pn_wake_new();
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    s->items = calloc(s->n_slots, sizeof *s->items);
    s->item_slot = calloc(s->n_slots, sizeof *s->item_slot);
    s->odds = calloc(s->n_slots, sizeof *s->odds);
    s->shown = calloc(s->n_slots, sizeof *s->shown);
    int rc = s->wake && s->slots && s->items && s->item_slot && s->odds && s->shown ? 0 : fo_fail(e, FO_ENOMEM, "no memory for a scheduler of %u slots", s->n_slots);
    if (rc == 0) rc = pn_prefix_new(m, s->info->max_sessions, &s->idle, e);
    if (rc == 0) pn_sched_publish_kv(s);
    if (rc == 0) rc = thread_start(s, e);
    if (rc != 0) {
        sched_done(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void pn_sched_stop(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    s->draining = s->stop = true;
    pthread_mutex_unlock(&s->lock);
    pn_wake_ring(s->wake);
    if (!s->joined) pthread_join(s->thread, NULL);
    s->joined = true;
}

void pn_sched_free(struct pn_sched *s) {
    if (!s) return;
    pn_sched_stop(s);
    sched_done(s);
}

struct pn_wake *pn_sched_wake(struct pn_sched *s) {
    return s->wake;
}
