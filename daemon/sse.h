/* The JSON of answers: whole ones and the chunks of a stream, in the exact shapes that OpenAI's clients parse. All functions append to
 * `out`; its `failed` tells of missing memory. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/parts.h"
#include "engine/request.h"
#include "foundry/base/buf.h"

struct pd_error;
struct pd_logprobs;
struct pd_params;
struct pd_writer;

#define PD_SSE_TYPE "text/event-stream; charset=utf-8"
#define PD_SSE_HEADERS "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
#define PD_SSE_PING ": ping\n\n"

/* What all chunks of an answer have in common. */
struct pd_answer {
    const struct pd_writer *writer;
    unsigned api;      /* PD_API_CHAT, PD_API_TEXT or PD_API_RESPONSES */
    char id[48];       /* "chatcmpl-..." */
    int64_t created;
    const char *model;
    enum pn_priority priority; /* that it has */
    bool usage_asked;  /* stream_options.include_usage: earlier chunks carry usage: null */
    const struct pd_params *params;
    /* of a stream of choices, of the choice under way: */
    int64_t n_calls;   /* that have begun */
    bool spoke;        /* it has content */
    /* of a stream of a Response: */
    uint64_t n_events;
    struct pd_parts parts; /* so far: its last events say them again */
    enum pn_finish finish;
};
/* What an answer took, over all its choices; as JSON under llama-server's names, and queue_ms. */
struct pd_timings {
    uint64_t cache_n, prompt_n, predicted_n; /* prompt tokens that were not computed again, that were, and tokens of answers */
    uint64_t draft_n, draft_n_accepted; /* tokens that were drafted, and those of them that are in answers */
    double queue_ms, prompt_ms, predicted_ms;
    /* of each prompt's first choice: tokens that were found in kept KV, those that it has in common with what is kept, and why not more of the
     * prompt of which most had to be computed */
    uint64_t cache_hit, cache_small, cache_shared, cache_missed;
    enum pn_cache_miss cache_reason;
};

/* A whole answer. */
struct pd_choice {
    struct pd_parts parts;
    enum pn_finish finish;
    char *logprobs; /* heap, a JSON value; NULL = none asked for */
};

/* How an API words its answers: a row of functions for each form. Of a stream, `open` comes once, then for each choice `begin`, `part` any
 * number of times and `finish`, then `close` once; or `error` in the place of all that is left. */
struct pd_writer {
    void (*open)(struct pd_answer *a, struct fo_buf *out);
    void (*begin)(struct pd_answer *a, int64_t index, const char *echo, size_t n_echo, struct fo_buf *out); /* echo NULL = none */
    void (*part)(struct pd_answer *a, int64_t index, enum pn_part part, const char *text, size_t len, struct pd_logprobs *l, struct fo_buf *out); /* takes what l has, NULL = nothing */
    void (*finish)(struct pd_answer *a, int64_t index, enum pn_finish finish, const struct pd_timings *t, struct fo_buf *out); /* t: of the last choice, else NULL */
    void (*close)(struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out);
    void (*error)(struct pd_answer *a, const struct pd_error *x, const char *request_id, struct fo_buf *out);
    void (*whole)(struct pd_answer *a, const struct pd_choice *choices, size_t n, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out);
};
extern const struct pd_writer pd_writer_choices; /* chat and completions; sse.c */

/* params and model must outlive it. What it keeps of a stream's text never passes cap_bytes. */
void pd_answer_init(struct pd_answer *a, const struct pd_params *params, const char *model, size_t cap_bytes);
void pd_answer_done(struct pd_answer *a);

void pd_put_timings(const struct pd_timings *t, struct fo_buf *out);

/* The part of the reference page about what answers hold beside the text. */
void pd_sse_doc(struct fo_buf *out);
