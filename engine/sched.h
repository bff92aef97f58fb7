/* The scheduler: one worker thread that owns a model's sequences and runs its steps, and the bounded queue in front of it.
 *
 * One step: whatever was cancelled goes; requests come in from the queue while slots are free, in its order (queue.h); then one batch is computed
 * that holds one token for every request that is decoding and fills up with chunks of the prompts that are not: by urgency, then that of whom
 * least was computed (fair.h), then first come first served. So a running answer never waits for a whole prompt, nor a short prompt of one
 * tenant for all of another's long one. KV for prompt and answer is reserved when a request starts: what has started is
 * not failed for memory.
 *
 * When memory is short, rungs of a ladder (mem/ladder.h) lower what is in force: fewer slots, smaller steps, kept texts that go. What runs above the
 * lowered number of slots goes on to its end; the rest waits.
 *
 * How long a chunk is: beside running answers, all chunks of a step together are as many tokens as take two thirds of decode_stall at the
 * measured rate, so that the gap between two tokens of an answer stays within decode_stall and one step of decoding although steps vary
 * (deeper in a context, on a busy machine). The measured rate falls with a slower step at once and rises with faster ones by a quarter of
 * the difference. Before anything was measured a chunk is PN_FIRST_CHUNK tokens, and from step to step it doubles at most, since small
 * chunks say little of big ones. Without running answers a step is as big as the model was opened for.
 *
 * Drafts (spec.h): behind the token of a running answer a step may hold some that are guessed to follow. Their rows are chosen from in order as
 * far as the guess was right, and the rest is taken back, so an answer says the same with and without. They take what the tokens of running
 * answers and the prompts leave of a step, and of the rows of logits, and of that only what pays at the measured costs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/mem/ladder.h"
#include "engine/spec.h"

struct fo_err;
struct pn_model;
struct pn_prefix;
struct pn_request;
struct pn_request_opts;
struct pn_sched;
struct pn_served_status;
struct pn_slot_status;
struct pn_wake;

enum { PN_FIRST_CHUNK = 16 };

/* What may change while it runs. None of the numbers is 0, but queue_depth may be. */
struct pn_sched_limits {
    uint32_t max_concurrent; /* at most the model's */
    uint32_t queue_depth, queue_timeout_ms, decode_stall_ms;
    enum pn_speculation speculation;
};

/* Asked by a worker whose model has failed, for each request that had not started, with no lock held: true = another has taken it over. */
typedef bool pn_sched_heir(void *ctx, struct pn_request *r);

/* Starts the worker. heir NULL = what waits ends with the model. The model outlives the scheduler; from here on only the worker touches its sequences. FO_ENOMEM. */
int pn_sched_new(struct pn_model *m, const struct pn_sched_limits *l, pn_sched_heir *heir, void *ctx, struct pn_sched **ret, struct fo_err *e);
/* What runs or waits already goes on, even when it is more than the new limits allow. Any thread. */
void pn_sched_set(struct pn_sched *s, const struct pn_sched_limits *l);
/* How short memory is where the model is, and how many bytes of the host's its KV may still take that it has not touched yet (UINT64_MAX: any number),
 * as read just now: see mem/ladder.h for what follows from the level. A request that has started ends as it was promised; one whose KV passes the room
 * waits while others run. Any thread. */
void pn_sched_set_memory(struct pn_sched *s, enum pn_level level, uint64_t room_bytes);
/* Ends every request with FO_EUNAVAIL and joins the worker; submit and status still answer. Called by one thread at a time. */
void pn_sched_stop(struct pn_sched *s);
/* Stops and frees. NULL is allowed. */
void pn_sched_free(struct pn_sched *s);

/* The bell to make requests with. */
struct pn_wake *pn_sched_wake(struct pn_sched *s);

/* How busy it is, for routing: requests that run or wait, slots, and all requests so far. False when it takes none (failed, draining). */
bool pn_sched_load(struct pn_sched *s, uint32_t *ret_busy, uint32_t *ret_slots, uint64_t *ret_requests);

/* How many of these tokens of a prompt a new request of this tenant would find here. Never waits for a step. */
uint32_t pn_sched_kept(struct pn_sched *s, const char *tenant, const int32_t *tokens, uint32_t n);

/* FO_OK when a request with opts' tenant, priority and goes_on would be taken now; FO_EBUSY, FO_EUNAVAIL as below. Any thread, as all that
 * follows. */
int pn_sched_room(struct pn_sched *s, const struct pn_request_opts *opts, struct fo_err *e);
/* Queues it: the worker's hold is now the worker's. FO_EBUSY (queue full: need and have are places), FO_EUNAVAIL (draining, or the
 * model failed, with the reason) or FO_ENOMEM: it is still the caller's. */
int pn_sched_submit(struct pn_sched *s, struct pn_request *r, struct fo_err *e);

/* Takes over a request that another scheduler had taken and let go of: it keeps the time that it has waited, and neither a full queue nor
 * draining (but for the deadline) refuses it. FO_EUNAVAIL, FO_ENOMEM: it is still the caller's. */
int pn_sched_take_over(struct pn_sched *s, struct pn_request *r, struct fo_err *e);

/* Whether its model has failed. */
bool pn_sched_failed(struct pn_sched *s);

/* The conversation under this key is over: what is kept of it goes when the worker next looks around. Without memory for the note it
 * goes by age. */
void pn_sched_forget(struct pn_sched *s, const char *session);

/* Has the worker call fn between two steps, and waits until it has: the way to look at sequences, pages and what is kept from another thread. What
 * takes long goes in pieces, an errand each: steps come in between. Never from the worker itself. FO_EUNAVAIL when it has stopped, or the model
 * failed, and fn was not called. A scheduler that drains still runs errands. */
typedef void pn_sched_errand_fn(void *ctx, struct pn_model *m, struct pn_prefix *p);
int pn_sched_errand(struct pn_sched *s, pn_sched_errand_fn *fn, void *ctx, struct fo_err *e);

/* Takes no new requests from now on. */
void pn_sched_drain(struct pn_sched *s);
/* Waits until nothing runs or waits; false when timeout_ms passed first. */
bool pn_sched_wait_idle(struct pn_sched *s, uint32_t timeout_ms);
/* Ends all that runs or waits with FO_EUNAVAIL and this reason. */
void pn_sched_cancel_all(struct pn_sched *s, const char *reason);

/* Fills all but loaded_at and what grammars took. Never waits for a step. */
void pn_sched_status(struct pn_sched *s, struct pn_served_status *ret);
/* As pn_served_slots. */
uint32_t pn_sched_slots(struct pn_sched *s, struct pn_slot_status *ret, uint32_t cap);
/* Bytes of the KV pool that running requests do not hold, as far as the host has memory for them. */
uint64_t pn_sched_kv_available(struct pn_sched *s);
