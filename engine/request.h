/* A request: the one object that crosses threads. The connection thread submits and pulls events; the model's worker fills them.
 * It has exactly two holders and the last to leave frees it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/logprobs.h"
#include "engine/miss.h"
#include "engine/sampler.h"
#include "engine/turn.h"

struct fo_err;
struct pn_grammar;
struct pn_request;

enum { PN_MAX_STOPS = 16, PN_MAX_STOP_BYTES = 256 };

enum pn_priority { PN_PRIORITY_LOW = -1, PN_PRIORITY_NORMAL /* 0: of who does not say */, PN_PRIORITY_HIGH }; /* ascending */

struct pn_request_opts {
    const int32_t *tokens;  /* [n_tokens], copied */
    uint32_t n_tokens;      /* >= 1 */
    uint32_t max_tokens;    /* 0 = unset: as many as fit the cap */
    struct pn_sampling sampling; /* bias is copied */
    const char *const *stops;    /* [n_stops], copied: text that ends the answer and is never shown, in part or whole */
    int n_stops;
    struct pn_grammar *grammar;  /* what the answer is held to (grammar/grammar.h), or NULL; the request takes a reference. The answer ends where
                             * the grammar ends it too; max_tokens cuts it anywhere */
    bool ignore_end;        /* do not stop at EOS and its kin (benchmarks) */
    const char *tenant;     /* whose request it is (the API key's name), NULL = nobody's: KV is shared and kept within one only. Copied */
    const char *session;    /* which conversation it is part of, or NULL: a hint for fairness and routing, and what pn_served_text and pn_served_forget call it; what is reused is
                             * found by the tokens. Copied */
    enum pn_priority priority;
    bool keep_nothing;      /* its KV is neither looked up nor kept */
    const char *id;         /* request id for debug notes; copied */
    bool parts;             /* the answer's thoughts and calls are told apart (turn.h) by the dialect of the model's template; else all is content */
    bool in_reasoning;      /* with parts: the prompt ends within a thought (pn_ids) */
    struct pn_tools *tools; /* with parts: the functions that were offered, NULL = none; the request takes a reference */
    struct pn_grammar *calls;  /* of pn_tools_grammar, which the answer is held to from where a call begins; the request takes a reference. May be
                             * `grammar` too, and then all of it is. A thought is held to neither */
    int32_t reasoning_budget;  /* with parts: most tokens of a thought, which is then ended as the model would; -1 = as many as it likes */
    bool embed;             /* an embedding of the prompt instead of an answer to it (engine/embed.h): of the options that follow only goes_on
                             * counts, of those before only the tokens and the id. max_tokens is 0 */
    bool want_text;         /* detokenise (false: events carry token ids only) */
    bool logprobs;          /* tell the log-probability of each token, and of the n_top_logprobs likeliest (at most PN_MAX_TOP_LOGPROBS) */
    uint32_t n_top_logprobs;
    bool goes_on;           /* one more choice of an answer, or input to embed, of a request whose first was admitted: it is part of what runs
                             * already, so neither a full queue, nor its timeout, nor draining (but for the deadline) ends it half-way. A choice
                             * starts before what waits, an embedding behind it */
};

enum pn_event_kind {
    PN_EV_TIMEOUT, /* nothing within timeout_ms; ask again */
    PN_EV_STARTED, /* left the queue: prefill begins */
    PN_EV_LOGPROBS, /* one token's, in front of the event that has its text; only when asked for, and not for an end token */
    PN_EV_TEXT,    /* text and/or a token */
    PN_EV_DONE,    /* the last event: finish and usage are set, and with `embed` the embedding */
    PN_EV_ERROR    /* the last event: err is set */
};

enum pn_finish { PN_FINISH_STOP, PN_FINISH_LENGTH, PN_FINISH_CALLS /* it ended of itself and has calls */ };

enum pn_thought { PN_THOUGHT_FREE /* none, or ended as the model would */, PN_THOUGHT_BUDGET, PN_THOUGHT_LOOP /* the same run of tokens twice (loop.h) */ };

struct pn_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint32_t reasoning_tokens; /* of the latter: drawn within a thought, that which ends it and what was forced left out */
    enum pn_thought thought; /* how the last thought ended */
    uint32_t drafted, accepted; /* tokens of drafts that were computed, and those of them that the answer took (engine/spec.h) */
    enum pn_cache_miss cache_miss;
    uint32_t cached_small; /* of cached_tokens: those whose KV is of the floor type, which memory pressure turned it into */
    uint32_t cache_shared; /* tokens that the prompt has in common with what is kept, at its longest; cached_tokens of them were reused */
    double queue_ms, prefill_ms, decode_ms;
};

struct pn_event {
    enum pn_event_kind kind;
    enum pn_part part; /* of PN_EV_TEXT: what its text is part of. PN_PART_CALL begins a call, and has all of the name */
    const char *text; /* whole UTF-8 characters, NUL-terminated, may be ""; valid until the next call */
    size_t text_len;
    const struct pn_logprobs *logprobs; /* of PN_EV_LOGPROBS; valid until the next call */
    int32_t token;    /* -1 = text that was held back (stop matching, an incomplete character) is now released */
    enum pn_finish finish;
    struct pn_usage usage;
    const float *embedding; /* of PN_EV_DONE, [n_embedding] of unit length; NULL without `embed`. Valid until the request is released */
    uint32_t n_embedding;
    const struct fo_err *err;
};

/* Waits up to timeout_ms (0 = do not wait) for the next event. A reader that does not pull pauses its own request, no other. */
void pn_request_next(struct pn_request *r, int timeout_ms, struct pn_event *ret);

/* Asks the worker to stop: a queued request never starts, a decode stops before its next step, a prefill before its next chunk. Safe
 * from any thread, any number of times. The end still comes as an event (PN_EV_ERROR, FO_ECANCELLED) to whoever pulls. */
void pn_request_cancel(struct pn_request *r);

/* The reader leaves (an unfinished request is cancelled). NULL is allowed. */
void pn_request_release(struct pn_request *r);
