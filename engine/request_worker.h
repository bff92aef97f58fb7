/* The worker's side of a request: for the scheduler and the function that submits. Connection threads use request.h.
 *
 * Fields say who may touch them: `fixed` since it was made; `worker` from the queue to the end, then the reader's; `lock`. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "engine/request.h"
#include "engine/tools.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"

struct pn_account;
struct pn_grammar_run;
struct pn_loop;
struct pn_pooled;
struct pn_seq;
struct pn_stop;
struct pn_wake;

#ifdef FO_DEBUG
enum { PN_RING_BYTES = 512, PN_CHUNK_BYTES = 24 }; /* small, so that wrap, split and pause run in every test */
#else
enum { PN_RING_BYTES = 64 * 1024, PN_CHUNK_BYTES = 4096 };
#endif

enum { PN_TEXT_BYTES = (int)PN_CHUNK_BYTES > (int)PN_TOOL_NAME_BYTES ? (int)PN_CHUNK_BYTES : (int)PN_TOOL_NAME_BYTES };

struct pn_request {
    /* fixed */
    uint32_t n_tokens, max_tokens; /* max_tokens: what admission granted, >= 1 but for an embedding */
    int32_t *tokens;               /* [n_tokens] */
    struct pn_sampler *sampler;    /* worker; NULL for an embedding */
    struct pn_stop *stop;          /* worker; NULL = none */
    struct pn_grammar_run *grammar; /* worker; NULL = free. What the answer is held to, or from a call's beginning on that of `calls` */
    struct pn_lp *lp;              /* worker; NULL = not asked for */
    struct pn_pooled *pooled;      /* worker, then the reader's; NULL = it generates. Who submits sets it */
    struct pn_turn *turn;          /* worker; NULL = all is content */
    const struct pn_dialect *dialect; /* of the turn */
    struct pn_tools *tools;        /* NULL = none */
    struct pn_grammar *calls;      /* NULL = calls are not held to one */
    int32_t reasoning_budget;      /* -1 = none */
    enum pn_priority priority;
    bool ignore_end, want_text, goes_on;
    bool keep_nothing;             /* as asked; an embedding's always */
    char *tenant, *session, *id;   /* or NULL */
    double submitted_ms;
    void (*leave_home)(void *home); /* with `home`, at its end; NULL = there is none */
    void *home;

    atomic_int holders;
    atomic_bool cancelled;

    /* the queue's, under its lock */
    struct pn_request *next;
    struct pn_account *account; /* whose tokens it takes; NULL = it neither waits nor runs */
    bool first;                 /* it comes before the others */

    uint32_t n_out; /* worker: tokens of the answer so far */

    /* worker, choose.c: */
    uint32_t n_reasoning;     /* tokens of thoughts so far */
    enum pn_thought thought;  /* how the last of them ended */
    struct pn_loop *loop;     /* NULL = no thoughts come */
    const int32_t *forced;    /* [n_forced] the next tokens, whatever the model says */
    uint32_t n_forced;
    struct fo_err hook_err;   /* why a call could not be held to its grammar */

    /* worker: text that is on its way to the ring. At most one token's worth with what it released. */
    struct fo_detok detok;
    struct fo_buf piece; /* scratch: the text of one token as it was decoded */
    struct fo_buf parts; /* scratch: what the turn made of it */
    struct fo_buf shown; /* scratch: what stop matching let out of content */
    struct fo_buf out;   /* parts, as turn.h has them */
    size_t out_at, out_off; /* the part that goes next, and how much of it is gone */
    int32_t out_token; /* goes out with the first chunk; -1 = none or gone */
    bool out_any;      /* something (if only a token without text) is on its way; what is due in lp goes in front of it */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t ready;
    struct pn_wake *wake; /* of the worker that has it */
    bool started, started_shown, ended;
    bool paused; /* the worker waits for room: ring the bell when there is */
    enum pn_finish finish;
    struct pn_usage usage;
    struct fo_err err; /* code 0 = a good end */
    size_t ring_at, ring_used;
    unsigned char ring[PN_RING_BYTES];

    char text[PN_TEXT_BYTES + 1]; /* the reader's: what the last event shows */
    struct pn_logprobs logprobs;   /* the same */
};

/* Copies what opts points to. max_tokens is the granted count; dialect, for opts' `parts`, outlives the request. Parameters are checked (FO_EINVAL names the field); token ids
 * against n_vocab. The bell is rung on cancel and when a paused reader made room. Two holders from the start. */
int pn_request_new(const struct pn_request_opts *opts, uint32_t max_tokens, int32_t n_vocab, const struct pn_dialect *dialect, struct pn_wake *wake,
                   struct pn_request **ret, struct fo_err *e);

/* A request that was never queued: frees it whole. */
void pn_request_discard(struct pn_request *r);

bool pn_request_cancelled(const struct pn_request *r);
/* The error that such a request ends with. */
void pn_request_fail_cancelled(struct fo_err *e);

/* Another worker gets a request that has not started: that one's bell is rung from now on. */
void pn_request_rewire(struct pn_request *r, struct pn_wake *wake);
/* What it refers to of who made it stays till its end: leave_home(home) is called then, or now if there is one already. */
void pn_request_settle(struct pn_request *r, void (*leave_home)(void *home), void *home);

void pn_request_start(struct pn_request *r);

/* A token was chosen: its text goes through detokenisation, the turn and, where it is content, stop matching towards the ring (tok NULL: ids
 * only). *ret_stopped is set when a stop string ended the answer. told: its log-probability is, if asked for. FO_ENOMEM. Only while nothing is on its way (pn_request_flush said true). */
int pn_request_put(struct pn_request *r, const struct fo_tok *tok, int32_t id, bool told, bool *ret_stopped, struct fo_err *e);

/* The answer ends without a stop string: what was held back is put on its way behind the last token. */
int pn_request_put_rest(struct pn_request *r, struct fo_err *e);

/* Moves what is on its way into the ring; true = all of it. False: no room, the request is paused until the reader makes some. */
bool pn_request_flush(struct pn_request *r);

/* The end, good (err NULL) or not; then the worker's hold is gone and r must not be touched. What did not fit the ring goes to the
 * reader with the object, so a slow reader does not keep a slot for its last words. */
void pn_request_end(struct pn_request *r, enum pn_finish finish, const struct pn_usage *usage, const struct fo_err *err);

/* The turn's hook (pn_turn_opts.begin_call), in choose.c: ctx is the request, whose grammar of calls the answer is held to from here on. */
bool pn_request_begin_call(void *ctx, int function, const char *rest, size_t n);
