/* The registry: which models exist, by name and alias; one worker each; routing. A name may have several instances (replicas), loaded and
 * unloaded one by one, each numbered; a request goes to the least busy one that serves. When an instance fails, those of its requests that have
 * not started go to another one of the same files, and their readers see nothing of it; without another they end with the reason. The daemon's
 * main thread (through its loader) is the only writer; connection threads look up and submit. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/grammar.h"
#include "engine/mem/ladder.h"
#include "engine/model.h"
#include "engine/request.h"
#include "engine/spec.h"
#include "foundry/base/err.h"

struct fo_buf;
struct pn_engine;
struct pn_served; /* a loaded model with its worker and queue; counted references */

int pn_engine_new(struct pn_engine **ret, struct fo_err *e);
/* Removes every model (drain 0) and frees. NULL is allowed. */
void pn_engine_free(struct pn_engine *en);

enum { PN_QUEUE_NONE = 0x7FFFFFFF }; /* as queue_depth: no request may wait */

struct pn_serve_opts {
    const char *name;            /* the id clients send; copied */
    uint32_t replica;            /* which instance of it */
    const char *const *aliases;  /* [n_aliases], copied */
    int n_aliases;
    struct pn_model_opts model;  /* its max_concurrent is what is laid out */
    uint32_t max_concurrent;     /* requests that run at once; 0 = all that is laid out, which it may not pass */
    uint32_t queue_depth;        /* requests that may wait; 0 = 8, PN_QUEUE_NONE = none */
    uint32_t queue_timeout_ms;   /* longest wait; 0 = 120,000 */
    uint32_t decode_stall_ms;    /* longest that a prompt may hold up running answers in a step; 0 = 500 (see sched.h) */
    uint32_t max_tokens_default; /* 0 = what fits the cap */
    enum pn_speculation speculation; /* drafts; the model's draft_rows are what they may take when all slots are busy */
};

/* Loads the file and starts its worker. Blocking; called by the loader. FO_EINVAL when this replica is loaded already, or the name or an
 * alias is another model's. */
int pn_engine_load(struct pn_engine *en, const char *path, const struct pn_serve_opts *opts, struct fo_err *e);
/* Stops taking requests (503), lets running ones finish up to drain_ms, cancels the rest, joins the worker, frees when the last
 * reference is gone. All instances of the name (or alias), or one. FO_ENOENT. */
int pn_engine_unload(struct pn_engine *en, const char *name, uint32_t drain_ms, struct fo_err *e);
int pn_engine_unload_replica(struct pn_engine *en, const char *name, uint32_t replica, uint32_t drain_ms, struct fo_err *e);

/* Called for each instance that is unloaded (but by pn_engine_free), on the thread that does it, when it has drained and before its worker stops: errands still
 * run. Set before the first load. */
void pn_engine_on_leave(struct pn_engine *en, void (*fn)(void *ctx, struct pn_served *s), void *ctx);

/* What may change while an instance serves: aliases and all of pn_serve_opts that is not `model`, with its meanings of 0. The opts' model is
 * not read. FO_ENOENT when opts name no loaded instance; FO_EINVAL (an alias is another model's, or max_concurrent is above what was laid
 * out: need and have) and FO_ENOMEM change nothing. */
int pn_engine_set(struct pn_engine *en, const struct pn_serve_opts *opts, struct fo_err *e);
/* All models stop taking requests: submit gives FO_EUNAVAIL "draining". */
void pn_engine_drain(struct pn_engine *en);
/* Running and queued requests over all models. */
uint32_t pn_engine_active(const struct pn_engine *en);
/* Cancels every request of every model (the drain deadline). */
void pn_engine_cancel_all(struct pn_engine *en);

/* By name or alias; NULL when there is none. Of several instances the one with the smallest share of its slots taken (running and waiting
 * requests), then the one that has had the fewest requests; one that does not serve (failed, draining) only when none does. Give it back
 * with pn_served_put. Any thread; never waits for a worker. */
struct pn_served *pn_engine_get(struct pn_engine *en, const char *name);
/* One instance, by name (no alias). */
struct pn_served *pn_engine_get_replica(struct pn_engine *en, const char *name, uint32_t replica);
/* The instance of s's name that a request with these opts best goes to, now that its tokens (of s's vocabulary) are known: s itself or another of
 * the same files. That is the one which keeps most of the prompt (prefix.h), unless it is twice as loaded (this request counted) as the least busy
 * one; where none keeps more, as pn_engine_get. One that goes_on stays at s, where the first of it ran, unless that has failed. What was compiled for s (grammars, tools)
 * serves there too. Give it back with pn_served_put. Any thread; never waits for a worker. */
struct pn_served *pn_engine_route(struct pn_engine *en, struct pn_served *s, const struct pn_request_opts *opts);
struct pn_served *pn_served_ref(struct pn_served *s); /* one reference more */
void pn_served_put(struct pn_served *s); /* NULL is allowed */

const char *pn_served_name(const struct pn_served *s);
uint32_t pn_served_replica(const struct pn_served *s);
const struct pn_model *pn_served_model(const struct pn_served *s); /* immutable parts only: info, tok, chat */

/* What an answer can be held to (grammar/grammar.h), compiled for this instance's vocabulary or found: the caller's reference, for
 * pn_request_opts.grammar. Errors as pn_grammars_get. */
int pn_served_grammar(struct pn_served *s, enum pn_grammar_kind kind, const char *text, size_t len, struct pn_grammar **ret, struct fo_err *e);
/* As pn_grammars_made. */
int pn_served_made_grammar(struct pn_served *s, const char *key, size_t n_key, int (*write)(void *ctx, struct fo_buf *ret, struct fo_err *e), void *ctx,
                           struct pn_grammar **ret, struct fo_err *e);

/* A snapshot for status pages; never waits for a worker. */
struct pn_served_status {
    bool ready;               /* serves; false = failed or draining, `reason` says why */
    bool draining;
    enum fo_code failed_code; /* FO_OK = healthy. FO_ELOST: a die or the file is gone. A failed instance stays so: unload and load it */
    char reason[256];
    int64_t loaded_at;        /* seconds since 1970 */
    uint32_t running, queued; /* requests now */
    uint32_t max_concurrent;  /* as set */
    uint64_t requests, refused, completed, failed, cancelled, tokens_prefilled, tokens_decoded;
    uint64_t handed_over;      /* requests that another instance took when this one failed: they count here as sent, there as how they ended */
    uint64_t cache_misses[PN_N_CACHE_MISSES]; /* prompts that started, by why not more of them was found; embeddings look nothing up */
    uint64_t tokens_cached;    /* of prompts, found in KV that was kept */
    uint64_t tokens_drafted, tokens_accepted; /* of drafts: computed, and of these taken into answers */
    uint64_t tokens_generated; /* of answers: decoded ones, and the first of each, which its prompt's last step gives */
    double queue_s, prefill_s, decode_s; /* of all requests that have run, summed up when each ends */
    uint32_t prefill_chunk;   /* most prompt tokens in a step beside running answers, as last chosen; 0 = not yet */
    uint64_t heartbeat;       /* grows with every step and idle tick of the worker */
    double prefill_tps, decode_tps; /* recent rates, 0 = not known yet */
    uint64_t kv_bytes_used;
    enum pn_level level;      /* of memory pressure, as last told */
    uint32_t rungs;           /* of the ladder that are applied: the first so many */
    struct pn_effective declared, effective; /* limits without and with them */
    uint64_t promised_bytes;  /* host memory that KV of running requests will take besides what it has touched */
    uint64_t kv_small_pages;  /* pages of KV at the floor type that are held */
    uint64_t room_bytes;      /* host memory that KV which was not touched yet may take; UINT64_MAX = any */
    uint64_t tokens_reasoning, calls; /* of tokens_generated; of functions. Summed up when each request ends */
    uint64_t grammars_compiled, grammars_found; /* for requests: made, or there already */
    double grammar_compile_s;
    uint64_t grammar_bytes;   /* host memory of those that are kept, with what they remember */
    uint32_t retry_after_s;   /* what a 429 would say now: from measured rates, 1 .. 120 */
};
void pn_served_status(const struct pn_served *s, struct pn_served_status *ret);
/* As pn_sched_set_memory. */
void pn_served_set_memory(struct pn_served *s, enum pn_level level, uint64_t room_bytes);

/* A place for a running request, and which one has it. Nothing of what it says. */
struct pn_slot_status {
    bool busy;
    char request[32];         /* pn_request_opts.id, cut; "" */
    uint32_t prompt_tokens, cached_tokens, max_tokens;
    uint32_t computed_tokens; /* in the KV: of the prompt, then of the answer too */
    uint32_t generated_tokens;
    double started_ms;        /* on fo_now_ms's clock */
};
/* At most cap of them; returns how many there are. As of the last step; never waits for one. */
uint32_t pn_served_slots(const struct pn_served *s, struct pn_slot_status *ret, uint32_t cap);

/* The conversation under this key (pn_request_opts.session, of no tenant) is over: what is kept of it is given up soon. */
void pn_served_forget(struct pn_served *s, const char *session);

/* Instances in load order for lists: calls fn for each, under a lock that a worker needs when its model fails: fn waits for none. fn does not call back into the registry. */
void pn_engine_each(struct pn_engine *en, void (*fn)(void *ctx, struct pn_served *s), void *ctx);

/* The numbers behind a verdict: the `budget` member of context_over_budget. */
struct pn_budget {
    uint64_t prompt_tokens, max_tokens, ctx_cap, effective_ctx;
    const char *limited_by; /* "manifest" */
    uint64_t kv_bytes_per_token, kv_bytes_needed, kv_bytes_available, max_tokens_that_fit;
    uint32_t retry_after_s; /* with FO_EBUSY and FO_EUNAVAIL */
};

/* THE admission of every endpoint. FO_EBUDGET: prompt + max_tokens pass the cap (or the prompt leaves no room for one token; an embedding needs none), with the message that openai.md 3.8's
 * matchers know; FO_EBUSY: the queue is full; FO_EUNAVAIL: draining or the model failed; FO_EINVAL: a bad parameter or token id; FO_EUNSUPPORTED:
 * text of a model without tokenizer, an embedding of one whose pooling makes none.
 * *ret_budget is filled in every case. On FO_OK *ret is queued and its reader must release it. */
int pn_submit(struct pn_served *s, const struct pn_request_opts *opts, struct pn_request **ret, struct pn_budget *ret_budget, struct fo_err *e);
/* Its verdict on the length alone (FO_EBUDGET), of opts' n_tokens, max_tokens and embed: for whoever has several to submit, one after the other. */
int pn_fits(const struct pn_served *s, const struct pn_request_opts *opts, struct pn_budget *ret_budget, struct fo_err *e);
