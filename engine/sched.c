/* The scheduler: see sched.h.
 *
 * Who owns what. `lock` guards the queue, the flags and the counters; it is held for pointer work only, never over a step, so
 * submitting and looking at the status never wait for the model. Slots, sequences and idle conversations are the worker's alone.
 * The worker sleeps on a bell (wake.h) that submit, cancel, a reader that made room, and drain ring; otherwise it looks around
 * once a second, which is also its heartbeat.
 *
 * A slot goes: prefill (pos < n_tokens) -> decode (one token a step, or more with drafts) -> end; an embedding ends with its prompt. A slot whose text does not fit its ring stays as it is
 * and is left out of the steps until the reader has pulled. */
#include "engine/sched.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/choose.h"
#include "engine/embed.h"
#include "engine/engine.h"
#include "engine/prefix.h"
#include "engine/request_worker.h"
#include "engine/spec.h"
#include "engine/wake.h"
#include "foundry/base/clock.h"
#include "foundry/base/log.h"
#include "foundry/base/signals.h"

/* A drafted token beside prompts is worth its row from here on: it takes about what a token of a prompt does. */
static const float ODDS_BESIDE_PROMPTS = 0.5F;

enum { TICK_MS = 1000, RETRY_MAX_S = 120, RETRY_DRAINING_S = 10, RETRY_FAILED_S = 60, GUESS_TOKENS = 128 };

struct slot {
    struct pn_request *r; /* NULL = free */
    struct pn_seq *seq;
    uint64_t order;       /* of starting: prefill is first come first served */
    uint32_t cached;
    int32_t tokens[1 + PN_DRAFT_MAX]; /* the newest token, not yet in the sequence, and what a step guesses to follow */
    uint32_t n_draft;
    struct pn_spec *spec; /* NULL until it decodes with speculation on */
    uint32_t drafted, accepted;
    double started_ms, first_ms;
};

/* A conversation that is over. */
struct note {
    struct note *next;
    char session[];
};

/* A moving average; 0 = nothing known yet. */
static void learn(double *v, double x) {
    *v = *v == 0 ? x : *v + 0.2 * (x - *v);
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

struct pn_sched {
    struct pn_model *m;
    const struct pn_model_info *info;
    const struct fo_tok *tok; /* NULL = ids only */
    struct pn_wake *wake;
    pthread_t thread;

    /* the worker's */
    uint32_t n_slots, n_run;
    struct slot *slots;          /* [n_slots] */
    struct pn_batch_item *items; /* [n_slots] */
    uint32_t *item_slot;         /* [n_slots] */
    struct pn_prefix *idle;
    struct pn_spec_costs costs;
    float (*odds)[PN_DRAFT_MAX]; /* [n_slots] of the drafts of a step */
    uint64_t order;
    double chunk_tps; /* of prompts, for choosing the next chunk: falls at once, rises slowly; 0 = nothing measured yet */

    pthread_mutex_t lock; /* guards the rest */
    struct pn_sched_limits limits;
    pthread_cond_t idle_now;
    struct pn_request *head, **tail;
    uint32_t n_queued, n_running;
    bool stop, draining;
    bool over_all; /* the drain's deadline has passed: nothing goes on either */
    bool failed; /* written by the worker, which reads it without the lock */
    enum fo_code failed_code;
    bool end_all, joined;
    struct note *over; /* conversations to forget */
    char end_reason[160];
    char reason[256];
    uint32_t chunk;
    uint64_t requests, refused, completed, n_failed, cancelled, prefilled, decoded, cached, generated, drafted, accepted, reasoning, calls, heartbeat;
    double queue_s, prefill_s, decode_s;
    struct pn_slot_status *shown; /* [n_slots] the slots as pages see them */
    uint64_t kv_used, kv_available;
    double prefill_tps, decode_tps, mean_prompt, mean_answer;
};

/* --- the queue (any thread) ------------------------------------------------------------------ */
static void queue_push(struct pn_sched *s, struct pn_request *r) {
    r->next = NULL;
    *s->tail = r;
    s->tail = &r->next;
    s->n_queued++;
}

static void queue_push_front(struct pn_sched *s, struct pn_request *r) {
    r->next = s->head;
    if (!s->head) s->tail = &r->next;
    s->head = r;
    s->n_queued++;
}

/* Unlinks *link. */
static struct pn_request *queue_remove(struct pn_sched *s, struct pn_request **link) {
    struct pn_request *r = *link;
    *link = r->next;
    if (s->tail == &r->next) s->tail = link;
    s->n_queued--;
    return r;
}

static void say_idle(struct pn_sched *s) {
    if (s->n_queued + s->n_running == 0) pthread_cond_broadcast(&s->idle_now);
}

/* Takes out of the queue whatever was cancelled, and when `all` everything else too: a list linked by next. */
static struct pn_request *queue_sweep(struct pn_sched *s, bool all) {
    struct pn_request *out = NULL, **end = &out;
    for (struct pn_request **link = &s->head; *link;) {
        if (!all && !pn_request_cancelled(*link)) {
            link = &(*link)->next;
            continue;
        }
        struct pn_request *r = queue_remove(s, link);
        r->next = NULL;
        *end = r;
        end = &r->next;
        if (pn_request_cancelled(r)) s->cancelled++;
        else s->n_failed++;
    }
    say_idle(s);
    return out;
}

static void fail_cancelled(struct fo_err *e) {
    fo_fail(e, FO_ECANCELLED, "the request was cancelled");
}

/* Ends a list of requests that never started: the cancelled ones as such, the others with `why`. */
static void end_list(struct pn_request *list, const struct fo_err *why) {
    struct fo_err gone;
    fail_cancelled(&gone);
    double now = pn_now_ms();
    while (list) {
        struct pn_request *r = list;
        list = r->next;
        struct pn_usage usage = { .prompt_tokens = r->n_tokens, .queue_ms = now - r->submitted_ms };
        pn_request_end(r, PN_FINISH_STOP, &usage, pn_request_cancelled(r) || !why ? &gone : why);
    }
}

/* When a place should be free: what a request takes at the measured rates, shared by those that run together. */
static uint32_t retry_after(const struct pn_sched *s) {
    if (s->failed) return RETRY_FAILED_S;
    if (s->draining) return RETRY_DRAINING_S;
    double answer = s->mean_answer > 0 ? s->mean_answer : GUESS_TOKENS, seconds = 0;
    if (s->prefill_tps > 0) seconds += s->mean_prompt / s->prefill_tps;
    if (s->decode_tps > 0) seconds += answer / s->decode_tps;
    return seconds >= RETRY_MAX_S ? RETRY_MAX_S : seconds <= 1 ? 1 : (uint32_t)(seconds + 0.999);
}

static int state_check(struct pn_sched *s, bool goes_on, struct fo_err *e) {
    if (s->failed) return fo_fail(e, FO_EUNAVAIL, "the model failed: %s", s->reason);
    if (s->draining && (!goes_on || s->stop || s->over_all)) return fo_fail(e, FO_EUNAVAIL, "draining: no new requests are taken");
    return 0;
}

/* Slots that may run now. */
static uint32_t slots_now(const struct pn_sched *s) {
    return s->limits.max_concurrent < s->n_slots ? s->limits.max_concurrent : s->n_slots;
}

/* Free slots count as places: a burst that comes before the worker has woken is not refused for it. */
static bool full(const struct pn_sched *s) {
    return s->n_queued + s->n_running >= slots_now(s) + s->limits.queue_depth;
}

/* Under the lock; what had been cancelled leaves first, through *ret_gone. */
static int room(struct pn_sched *s, bool goes_on, struct pn_request **ret_gone, struct fo_err *e) {
    *ret_gone = NULL;
    int rc = state_check(s, goes_on, e);
    if (rc == 0 && !goes_on && full(s)) {
        *ret_gone = queue_sweep(s, false);
        if (full(s))
            rc = fo_fail_need(e, FO_EBUSY, (uint64_t)s->n_queued + 1, s->limits.queue_depth,
                              "the queue is full: %u requests run and %u wait (at most %u)", s->n_running, s->n_queued, s->limits.queue_depth);
    }
    if (rc != 0) s->refused++;
    return rc;
}

void pn_sched_set(struct pn_sched *s, const struct pn_sched_limits *l) {
    pthread_mutex_lock(&s->lock);
    s->limits = *l;
    pthread_mutex_unlock(&s->lock);
    pn_wake_ring(s->wake);
}

bool pn_sched_load(struct pn_sched *s, uint32_t *ret_busy, uint32_t *ret_slots, uint64_t *ret_requests) {
    pthread_mutex_lock(&s->lock);
    *ret_busy = s->n_running + s->n_queued;
    *ret_slots = slots_now(s);
    *ret_requests = s->requests;
    bool serves = !s->failed && !s->draining;
    pthread_mutex_unlock(&s->lock);
    return serves;
}

int pn_sched_room(struct pn_sched *s, bool goes_on, struct fo_err *e) {
    struct pn_request *gone;
    pthread_mutex_lock(&s->lock);
    int rc = room(s, goes_on, &gone, e);
    pthread_mutex_unlock(&s->lock);
    end_list(gone, NULL);
    return rc;
}

int pn_sched_submit(struct pn_sched *s, struct pn_request *r, struct fo_err *e) {
    struct pn_request *gone;
    r->submitted_ms = pn_now_ms();
    pthread_mutex_lock(&s->lock);
    int rc = room(s, r->goes_on, &gone, e);
    if (rc == 0) {
        s->requests++;
        /* A choice has its predecessor's place. The next of two thousand inputs lets those pass who waited while the one before it ran: it
         * is neither refused nor timed out, and nobody waits for all of them. */
        if (r->goes_on && !r->pooled) queue_push_front(s, r);
        else queue_push(s, r);
    }
    pthread_mutex_unlock(&s->lock);
    end_list(gone, NULL);
    if (rc == 0) pn_wake_ring(s->wake);
    return rc;
}

void pn_sched_forget(struct pn_sched *s, const char *session) {
    size_t n = strlen(session) + 1;
    struct note *note = malloc(sizeof *note + n);
    if (!note) return;
    memcpy(note->session, session, n);
    pthread_mutex_lock(&s->lock);
    note->next = s->over;
    s->over = note;
    pthread_mutex_unlock(&s->lock);
    pn_wake_ring(s->wake);
}

void pn_sched_drain(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

bool pn_sched_wait_idle(struct pn_sched *s, uint32_t timeout_ms) {
    struct timespec until = fo_deadline(timeout_ms);
    pthread_mutex_lock(&s->lock);
    while (s->n_queued + s->n_running > 0 && pthread_cond_timedwait(&s->idle_now, &s->lock, &until) == 0) {}
    bool idle = s->n_queued + s->n_running == 0;
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
        .max_concurrent = slots_now(s),
        .prefill_chunk = s->chunk,
        .running = s->n_running,
        .queued = s->n_queued,
        .requests = s->requests,
        .refused = s->refused,
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
        .retry_after_s = retry_after(s),
    };
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
    uint64_t n = s->kv_available;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* --- the end of a request (the worker, as all below) ----------------------------------------- */
/* Whether the tokens and KV of a slot are sound and may serve the next turn of the conversation. */
static bool keeps(const struct pn_sched *s, const struct slot *sl, const struct fo_err *err) {
    return !s->failed && sl->r->session && !sl->r->keep_nothing && pn_seq_len(sl->seq) > 0 && (!err || err->code == FO_ECANCELLED);
}

static void publish_kv(struct pn_sched *s) {
    uint64_t page = s->info->page_tokens * s->info->kv_bytes_per_token, free_pages = pn_model_free_pages(s->m);
    s->kv_used = (s->info->n_pages - free_pages) * page;
    s->kv_available = (free_pages + pn_prefix_pages(s->idle)) * page;
}

/* A slot that was taken or became free, for pages; under the lock, as the next. */
static void publish_slot(struct pn_sched *s, const struct slot *sl) {
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

/* How far it is, unless it has just ended. */
static void publish_progress(struct pn_sched *s, const struct slot *sl) {
    if (!sl->r) return;
    s->shown[sl - s->slots].computed_tokens = pn_seq_len(sl->seq);
    s->shown[sl - s->slots].generated_tokens = sl->r->n_out;
}

static void slot_end(struct pn_sched *s, struct slot *sl, enum pn_finish finish, const struct fo_err *err) {
    struct pn_request *r = sl->r;
    double now = pn_now_ms(), first = sl->first_ms > 0 ? sl->first_ms : now;
    struct pn_usage usage = { .prompt_tokens = r->n_tokens,
                              .cached_tokens = sl->cached,
                              .completion_tokens = r->n_out,
                              .reasoning_tokens = r->n_reasoning,
                              .thought = r->thought,
                              .drafted = sl->drafted,
                              .accepted = sl->accepted,
                              .queue_ms = sl->started_ms - r->submitted_ms,
                              .prefill_ms = first - sl->started_ms,
                              .decode_ms = now - first };
    if (keeps(s, sl, err)) {
        pn_prefix_put(s->idle, r->session, sl->seq);
        r->session = NULL;
    } else {
        pn_seq_free(sl->seq);
    }
    pn_spec_free(sl->spec);
    *sl = (struct slot){ 0 };
    s->n_run--;
    FO_DEBUGF("sched", "end id=%s prompt=%u cached=%u completion=%u error=%s", r->id ? r->id : "-", usage.prompt_tokens, usage.cached_tokens,
              usage.completion_tokens, err ? err->msg : "-");

    pthread_mutex_lock(&s->lock);
    s->n_running--;
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
        learn(&s->mean_answer, usage.completion_tokens);
    }
    publish_kv(s);
    say_idle(s);
    pthread_mutex_unlock(&s->lock);
    pn_request_end(r, finish, &usage, err);
}

static void end_running(struct pn_sched *s, const struct fo_err *err) {
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].r) slot_end(s, &s->slots[i], PN_FINISH_STOP, err);
}

/* The weights or the device are gone: everything here ends with the reason, and nothing new is taken. The process lives. */
static void model_failed(struct pn_sched *s, const struct fo_err *err) {
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    s->failed_code = err->code;
    snprintf(s->reason, sizeof s->reason, "%.255s", err->msg);
    struct pn_request *list = queue_sweep(s, true);
    pthread_mutex_unlock(&s->lock);
    end_list(list, err);
    end_running(s, err);
    while (pn_prefix_evict(s->idle)) {}
    pthread_mutex_lock(&s->lock);
    publish_kv(s);
    pthread_mutex_unlock(&s->lock);
}

/* --- coming and going ------------------------------------------------------------------------ */
static void forget(struct pn_sched *s, struct note *list) {
    while (list) {
        struct note *note = list;
        list = note->next;
        pn_prefix_forget(s->idle, note->session);
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
    struct pn_request *list = queue_sweep(s, all), *expired = NULL;
    uint32_t timeout_ms = s->limits.queue_timeout_ms;
    for (struct pn_request **link = &s->head; *link;) { /* oldest first, but for what goes on */
        if ((*link)->goes_on) {
            link = &(*link)->next;
            continue;
        }
        if (now - (*link)->submitted_ms < timeout_ms) break;
        struct pn_request *r = queue_remove(s, link);
        r->next = expired;
        expired = r;
        s->n_failed++;
    }
    say_idle(s);
    struct note *over = s->over;
    s->over = NULL;
    pthread_mutex_unlock(&s->lock);
    if (over) {
        forget(s, over);
        pthread_mutex_lock(&s->lock);
        publish_kv(s);
        pthread_mutex_unlock(&s->lock);
    }
    end_list(list, &why);
    fo_fail_need(&late, FO_ETIMEOUT, timeout_ms, timeout_ms, "waited %u ms in the queue, the longest that is allowed", timeout_ms);
    end_list(expired, &late);

    fail_cancelled(&gone);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *sl = &s->slots[i];
        if (!sl->r) continue;
        if (pn_request_cancelled(sl->r))
            slot_end(s, sl, PN_FINISH_STOP, &gone);
        else if (all)
            slot_end(s, sl, PN_FINISH_STOP, &why);
    }
    return !stop;
}

/* A sequence for r with room for all it may become. Idle conversations give way, least recently used first. */
static int sequence_for(struct pn_sched *s, struct pn_request *r, struct pn_seq **ret, struct fo_err *e) {
    struct pn_seq *seq = r->session && !r->keep_nothing ? pn_prefix_take(s->idle, r->session, r->tokens, r->n_tokens) : NULL;
    if (!seq) {
        if (s->n_run + pn_prefix_count(s->idle) >= s->info->max_sessions) pn_prefix_evict(s->idle);
        while (pn_seq_new(s->m, &seq, e) != 0)
            if (!pn_prefix_evict(s->idle)) return e->code;
    }
    /* The last token of an answer is shown but never computed on. */
    uint32_t n = r->pooled ? r->n_tokens : r->n_tokens + r->max_tokens - 1;
    while (pn_seq_reserve(seq, n, e) != 0) {
        if (e->code == FO_ENOMEM && pn_prefix_evict(s->idle)) continue;
        pn_seq_free(seq);
        return e->code;
    }
    *ret = seq;
    return 0;
}

/* From the queue into a slot; false = nothing more can start now. */
static bool start_one(struct pn_sched *s) {
    struct fo_err e;
    struct slot *sl = s->slots;
    if (s->n_run == s->n_slots) return false;
    while (sl->r) sl++;
    pthread_mutex_lock(&s->lock);
    struct pn_request *r = s->head && s->n_run < slots_now(s) ? queue_remove(s, &s->head) : NULL;
    if (r) s->n_running++;
    pthread_mutex_unlock(&s->lock);
    if (!r) return false;

    struct pn_seq *seq = NULL;
    if (sequence_for(s, r, &seq, &e) != 0) {
        bool wait = e.code == FO_ENOMEM && s->n_run > 0; /* what runs now gives its memory back */
        pthread_mutex_lock(&s->lock);
        s->n_running--;
        if (wait)
            queue_push_front(s, r);
        else
            s->n_failed++;
        say_idle(s);
        pthread_mutex_unlock(&s->lock);
        if (wait) return false;
        r->next = NULL;
        end_list(r, &e);
        return true;
    }
    *sl = (struct slot){ .r = r, .seq = seq, .order = s->order++, .cached = pn_seq_len(seq), .started_ms = pn_now_ms() };
    s->n_run++;
    for (uint32_t i = 0; i < r->n_tokens && !r->pooled; i++) pn_sampler_accept(r->sampler, r->tokens[i], 0);
    pthread_mutex_lock(&s->lock);
    learn(&s->mean_prompt, r->n_tokens - sl->cached);
    s->cached += sl->cached;
    publish_slot(s, sl);
    publish_kv(s);
    pthread_mutex_unlock(&s->lock);
    FO_DEBUGF("sched", "start id=%s prompt=%u cached=%u max_tokens=%u", r->id ? r->id : "-", r->n_tokens, sl->cached, r->max_tokens);
    pn_request_start(r);
    return true;
}

/* --- a step ---------------------------------------------------------------------------------- */
/* Most prompt tokens in a step beside n_decode answers: see sched.h. */
static uint32_t prefill_budget(struct pn_sched *s, uint32_t n_decode) {
    uint32_t most = s->info->max_batch - n_decode;
    if (n_decode == 0) return most;
    pthread_mutex_lock(&s->lock);
    double stall = s->limits.decode_stall_ms / 1e3, doubled = s->chunk ? 2.0 * s->chunk : PN_FIRST_CHUNK;
    pthread_mutex_unlock(&s->lock);
    double fits = s->chunk_tps > 0 ? s->chunk_tps * stall * 2 / 3 : PN_FIRST_CHUNK;
    if (fits > doubled) fits = doubled;
    return fits >= most ? most : fits < 1 ? 1 : (uint32_t)fits;
}

/* The spec of a slot that decodes, made when it is first asked for; NULL = there is no memory for one. */
static struct pn_spec *spec_of(struct slot *sl) {
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
        struct slot *sl = &s->slots[s->item_slot[best]];
        ret_odds[k] = s->odds[best][sl->n_draft++];
        ret_from[k] = best;
    }
    return most;
}

/* Puts drafts behind the tokens of items[0..n_decode): see sched.h. The step has n_items, and room for so many rows more. */
static void add_drafts(struct pn_sched *s, uint32_t n_decode, uint32_t n_items, uint32_t room_rows) {
    float odds[PN_DRAFT_MAX];
    uint32_t from[PN_DRAFT_MAX], drafts[PN_SPEC_MAX_ROWS] = { 0 }, n, worth;
    uint32_t most = least(least(PN_DRAFT_MAX, room_rows), s->info->logit_rows - n_items);
    pthread_mutex_lock(&s->lock);
    enum pn_speculation how = s->limits.speculation;
    pthread_mutex_unlock(&s->lock);
    if (n_decode > PN_SPEC_MAX_ROWS) return;
    for (uint32_t i = 0; i < n_decode; i++) {
        struct slot *sl = &s->slots[s->item_slot[i]];
        uint32_t cap = least(most, sl->r->max_tokens - sl->r->n_out - 1); /* what is chosen last is never computed on */
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
        struct slot *sl = &s->slots[s->item_slot[i]];
        if (sl->n_draft > 0) sl->n_draft = pn_request_may_choose(sl->r, s->tok, sl->tokens + 1, sl->n_draft);
        if (sl->n_draft == 0) continue;
        s->items[i].n += sl->n_draft;
        s->items[i].want = PN_WANT_ALL;
    }
}

/* Fills items; returns how many. */
static uint32_t build_batch(struct pn_sched *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *sl = &s->slots[i];
        if (!sl->r || sl->r->n_out == 0 || !pn_request_flush(sl->r)) continue;
        s->item_slot[n] = i;
        s->items[n++] = (struct pn_batch_item){ sl->seq, sl->tokens, 1, PN_WANT_LAST };
    }
    uint32_t budget = prefill_budget(s, n), left = budget, total = n, n_decode = n;
    uint64_t from = 0;
    while (left > 0) { /* the prompts in order of starting */
        uint32_t next = s->n_slots;
        for (uint32_t i = 0; i < s->n_slots; i++) {
            const struct slot *sl = &s->slots[i];
            if (sl->r && sl->r->n_out == 0 && sl->order >= from && (next == s->n_slots || sl->order < s->slots[next].order)) next = i;
        }
        if (next == s->n_slots) break;
        struct slot *sl = &s->slots[next];
        uint32_t pos = pn_seq_len(sl->seq), rest = sl->r->n_tokens - pos, take = rest < left ? rest : left;
        s->item_slot[n] = next;
        enum pn_want want = sl->r->pooled ? pn_pooled_want(sl->r->pooled, take) : take == rest ? PN_WANT_LAST : PN_WANT_NONE;
        s->items[n++] = (struct pn_batch_item){ sl->seq, sl->r->tokens + pos, take, want };
        left -= take;
        total += take;
        from = sl->order + 1;
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

/* The next tokens of logits [n_rows][n_vocab]: the row behind the newest token, and those behind what was drafted as long as the draft is
 * right and the reader keeps up. The rest is taken back. Returns how many rows were chosen from. */
static uint32_t choose(struct pn_sched *s, struct slot *sl, uint32_t n_rows, float *logits) {
    struct pn_chosen next;
    struct fo_err e;
    uint32_t rows = 0, accepted = 0, first = pn_seq_len(sl->seq) - (n_rows - 1);
    bool decodes = sl->r->n_out > 0, right;
    int rc;
    do {
        pthread_mutex_lock(&s->lock); /* before its reader sees it */
        s->generated++;
        s->decoded += decodes;
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
    if (rc != 0 || next.last) slot_end(s, sl, rc ? PN_FINISH_STOP : next.finish, rc ? &e : NULL);
    return rows;
}

/* n more tokens of a prompt that is embedded were computed. Returns how many rows of `states` were its. */
static uint32_t states_taken(struct pn_sched *s, struct slot *sl, uint32_t n, const float *states) {
    struct pn_pooled *v = sl->r->pooled;
    struct fo_err e;
    uint32_t rows = pn_pooled_add(v, n, states);
    if (pn_seq_len(sl->seq) < sl->r->n_tokens) return rows;
    slot_end(s, sl, PN_FINISH_STOP, pn_pooled_finish(v, &e) ? &e : NULL);
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
    /* In a mixed step the decodes are counted at their known rate, the rest of the time is the prefill's, and that of drafts beside it. */
    double seconds = ms / 1e3, rest = seconds - (s->decode_tps > 0 ? decoding / s->decode_tps : 0);
    if (prefilled > 0 && rest > 0) {
        double tps = (prefilled + drafted) / rest;
        learn(&s->prefill_tps, tps);
        if (prefilled >= PN_FIRST_CHUNK || prefilled >= s->chunk) { /* the last few tokens of a prompt cost more than their share */
            s->chunk_tps = s->chunk_tps == 0 || tps < s->chunk_tps ? tps : s->chunk_tps + (tps - s->chunk_tps) / 4;
        }
    }
    pthread_mutex_unlock(&s->lock);

    const float *states = pn_model_states(s->m);
    for (uint32_t i = lo; i < lo + n; i++) {
        struct slot *sl = &s->slots[s->item_slot[i]];
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
    learn(&s->decode_tps, rows / seconds);
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
        model_failed(s, &state);
        return MODEL_FAILED;
    }
    if (rc != 0) return FAILED;
    take_results(s, lo, n, logits, pn_now_ms() - start);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = lo; i < lo + n; i++) publish_progress(s, &s->slots[s->item_slot[i]]);
    pthread_mutex_unlock(&s->lock);
    return COMPUTED;
}

/* A failed batch is tried again one by one and without drafts, so that only what fails alone is failed. A lost device that fails every one of them has
 * taken the model with it. */
static void step(struct pn_sched *s, uint32_t n) {
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
            model_failed(s, &e);
        else
            slot_end(s, &s->slots[s->item_slot[i]], PN_FINISH_STOP, &e);
    }
}

/* How long to sleep: a tick, or until the oldest in the queue has waited too long. */
static int wait_ms(struct pn_sched *s) {
    double left = TICK_MS;
    pthread_mutex_lock(&s->lock);
    struct pn_request *oldest = s->head;
    while (oldest && oldest->goes_on) oldest = oldest->next;
    if (oldest) left = oldest->submitted_ms + s->limits.queue_timeout_ms - pn_now_ms() + 1;
    pthread_mutex_unlock(&s->lock);
    return left < 1 ? 1 : left > TICK_MS ? TICK_MS : (int)left;
}

static void *worker(void *arg) {
    struct pn_sched *s = arg;
    struct fo_err e;
    for (;;) {
        uint64_t seen = pn_wake_count(s->wake);
        if (!sweep(s)) return NULL;
        while (start_one(s)) {}
        uint32_t n = build_batch(s);
        if (n > 0) {
            step(s, n);
            continue;
        }
        pn_wake_wait(s->wake, seen, wait_ms(s));
        if (!s->failed && pn_model_check(s->m, &e) != 0) model_failed(s, &e);
    }
}

/* --- making and freeing ---------------------------------------------------------------------- */
static int thread_start(struct pn_sched *s, struct fo_err *e) {
    sigset_t all, old;
    fo_signals_for_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&s->thread, NULL, worker, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 ? 0 : fo_fail_errno(e, rc, "cannot start a worker");
}

static void sched_done(struct pn_sched *s) {
    forget(s, s->over);
    pn_prefix_free(s->idle);
    pn_wake_unref(s->wake);
    free(s->slots);
    free(s->items);
    free(s->item_slot);
    free(s->odds);
    free(s->shown);
    pthread_cond_destroy(&s->idle_now);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int pn_sched_new(struct pn_model *m, const struct pn_sched_limits *l, struct pn_sched **ret, struct fo_err *e) {
    struct pn_sched *s = calloc(1, sizeof *s);
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for a scheduler");
    s->m = m;
    s->info = pn_model_info(m);
    s->tok = pn_model_tok(m);
    s->limits = *l;
    s->tail = &s->head;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle_now, &attr);
    pthread_condattr_destroy(&attr);
    /* A sequence each, and a token each in a step. */
    s->n_slots = least(least(s->info->max_concurrent, s->info->max_sessions), s->info->max_batch);
    s->wake = pn_wake_new();
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    s->items = calloc(s->n_slots, sizeof *s->items);
    s->item_slot = calloc(s->n_slots, sizeof *s->item_slot);
    s->odds = calloc(s->n_slots, sizeof *s->odds);
    s->shown = calloc(s->n_slots, sizeof *s->shown);
    int rc = s->wake && s->slots && s->items && s->item_slot && s->odds && s->shown ? 0 : fo_fail(e, FO_ENOMEM, "no memory for a scheduler of %u slots", s->n_slots);
    if (rc == 0) rc = pn_prefix_new(s->info->max_sessions, &s->idle, e);
    if (rc == 0) publish_kv(s);
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
