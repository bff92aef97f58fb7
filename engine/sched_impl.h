/* Inside the scheduler, whose files are: sched.c (any thread: submitting, limits, status; making and freeing), sched_worker.c (the worker:
 * requests come and go), sched_step.c (the worker: what a step holds, and what comes of it) and sched_memory.c (what is given back when memory is
 * short).
 *
 * Who owns what. `lock` guards the queue, the flags and the counters; it is held for pointer work only, never over a step, so
 * submitting and looking at the status never wait for the model. Slots, sequences and idle conversations are the worker's alone.
 * The worker sleeps on a bell (wake.h) that submit, cancel, a reader that made room, and drain ring; otherwise it looks around
 * once a second, which is also its heartbeat.
 *
 * A slot goes: prefill (pos < n_tokens) -> decode (one token a step, or more with drafts) -> end; an embedding ends with its prompt. A
 * slot whose text does not fit its ring stays as it is and is left out of the steps until the reader has pulled. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/queue.h"
#include "engine/sched.h"
#include "engine/spec.h"
#include "foundry/base/err.h"

struct fo_tok;
struct pn_prefix;
struct pn_seq;

struct pn_slot {
    struct pn_request *r; /* NULL = free */
    struct pn_seq *seq;
    uint64_t order;       /* of starting: prefill is first come first served among equals */
    bool in_step;         /* its prompt is, already */
    uint32_t cached, shared; /* tokens of the prompt that were not computed; that something kept has too */
    uint32_t cached_small;   /* of the former: in pages of the floor type */
    enum pn_cache_miss miss; /* why not more */
    int32_t tokens[1 + PN_DRAFT_MAX]; /* the newest token, not yet in the sequence, and what a step guesses to follow */
    uint32_t n_draft;
    struct pn_spec *spec; /* NULL until it decodes with speculation on */
    uint32_t drafted, accepted;
    double started_ms, first_ms;
};

/* A conversation that is over. */
struct pn_over {
    struct pn_over *next;
    char session[];
};

/* On the stack of the thread that waits for it; every field but the first four under the lock. */
struct pn_errand {
    pn_sched_errand_fn *fn;
    void *ctx;
    struct pn_errand *next;
    int rc; /* with done: 0 = fn was called */
    bool done;
};

struct pn_sched {
    struct pn_model *m;
    const struct pn_model_info *info;
    const struct fo_tok *tok; /* NULL = ids only */
    struct pn_wake *wake;
    pn_sched_heir *heir; /* or NULL */
    void *heir_ctx;
    pthread_t thread;

    /* the worker's */
    uint32_t n_slots, n_run;
    struct pn_slot *slots;       /* [n_slots] */
    struct pn_batch_item *items; /* [n_slots] */
    uint32_t *item_slot;         /* [n_slots] */
    struct pn_prefix *idle;
    struct pn_spec_costs costs;
    float (*odds)[PN_DRAFT_MAX]; /* [n_slots] of the drafts of a step */
    uint64_t order;
    uint64_t touched_before;   /* places of KV that had been, when `room_bytes` was read */
    double busy_ms;            /* when something ran last (pn_now_ms) */
    bool cache_dropped;        /* since then */
    bool cannot_requantise;    /* a die of the model's */
    double requantise_ms;      /* when cold texts are looked through again */
    double chunk_tps; /* of prompts, for choosing the next chunk: falls at once, rises slowly; 0 = nothing measured yet */

    pthread_mutex_t lock; /* guards the rest */
    struct pn_sched_limits limits; /* as declared */
    struct pn_ladder ladder;       /* and what of them is in force */
    enum pn_level level;
    uint64_t room_bytes;
    bool room_is_new;              /* the worker has not looked at it yet */
    pthread_cond_t idle_now;
    pthread_cond_t errand_done;
    struct pn_errand *errands, **errands_end; /* in the order of asking */
    bool gone; /* the worker looks at nothing any more */
    struct pn_queue queue;
    uint32_t n_running;
    uint32_t n_leaving; /* out of the queue of a model that failed: nobody's yet */
    bool stop, draining;
    bool over_all; /* the drain's deadline has passed: nothing goes on either */
    bool failed; /* written by the worker, which reads it without the lock */
    enum fo_code failed_code;
    bool end_all, joined;
    struct pn_over *over; /* conversations to forget */
    char end_reason[160];
    char reason[256];
    uint32_t chunk;
    uint64_t requests, refused, handed_over, completed, n_failed, cancelled, prefilled, decoded, cached, generated, drafted, accepted, reasoning, calls, heartbeat;
    uint64_t misses[PN_N_CACHE_MISSES];
    double queue_s, prefill_s, decode_s;
    struct pn_slot_status *shown; /* [n_slots] the slots as pages see them */
    uint64_t kv_used, kv_available, kv_promised, kv_small;
    uint64_t kv_resident; /* of what is available, what needs no more memory of the host */
    double prefill_tps, decode_tps, mean_answer;
};

/* A moving average; 0 = nothing known yet. */
static inline void pn_learn(double *v, double x) {
    *v = *v == 0 ? x : *v + 0.2 * (x - *v);
}

static inline uint32_t pn_least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* --- under the lock -------------------------------------------------------------------------- */
/* Slots that may run now. */
static inline uint32_t pn_sched_slots_now(const struct pn_sched *s) {
    return s->ladder.now.max_concurrent < s->n_slots ? s->ladder.now.max_concurrent : s->n_slots;
}

static inline uint32_t pn_sched_active(const struct pn_sched *s) {
    return s->queue.n + s->n_running + s->n_leaving;
}

/* Tells who waits for it when nothing runs or waits any more. */
static inline void pn_sched_say_idle(struct pn_sched *s) {
    if (pn_sched_active(s) == 0) pthread_cond_broadcast(&s->idle_now);
}

/* As pn_queue_sweep, and counts them. */
struct pn_request *pn_sched_take_out(struct pn_sched *s, bool all);

/* --- the worker ------------------------------------------------------------------------------ */
void *pn_sched_worker(void *sched);
/* Conversations that are over; frees the list. */
void pn_sched_forget_all(struct pn_sched *s, struct pn_over *list);
/* What pages see of the KV; under the lock, as the next. */
void pn_sched_publish_kv(struct pn_sched *s);
void pn_sched_publish_promised(struct pn_sched *s);
/* How far a slot is, unless it has just ended. */
void pn_slot_publish(struct pn_sched *s, const struct pn_slot *sl);
/* The end of a running request; err NULL = a good one. The slot is free afterwards. */
void pn_slot_end(struct pn_sched *s, struct pn_slot *sl, enum pn_finish finish, const struct fo_err *err);
/* Errands that wait are over without having been run. */
void pn_sched_errands_end(struct pn_sched *s);
/* The weights or the device are gone: everything here ends with the reason, and nothing new is taken. The process lives. */
void pn_sched_model_failed(struct pn_sched *s, const struct fo_err *err);

/* Does a little of what the rungs in force ask for, between two steps; true when there is more to do. */
bool pn_sched_relieve(struct pn_sched *s);
/* Whether the host has room for what running sequences, this one with them, hold of KV and have not touched yet. */
bool pn_sched_has_room(struct pn_sched *s);
/* The limits as the ladder knows them. */
struct pn_effective pn_sched_declared(const struct pn_sched *s, const struct pn_sched_limits *l);

/* Fills items for the next step; returns how many. */
uint32_t pn_sched_build(struct pn_sched *s);
/* Computes items[0..n), shows what came of it, ends what has ended or failed. */
void pn_sched_step(struct pn_sched *s, uint32_t n);
