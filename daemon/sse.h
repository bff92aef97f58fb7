/* The JSON of answers: whole ones and the chunks of a stream, in the exact shapes that OpenAI's clients parse. All functions append to
 * `out`; its `failed` tells of missing memory. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/request.h"

struct fo_buf;
struct pd_error;
struct pd_logprobs;

#define PD_SSE_TYPE "text/event-stream; charset=utf-8"
#define PD_SSE_HEADERS "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
#define PD_SSE_PING ": ping\n\n"
#define PD_SSE_DONE "data: [DONE]\n\n"

/* What all chunks of an answer have in common. */
struct pd_answer {
    unsigned api;      /* PD_API_CHAT or PD_API_TEXT */
    char id[48];       /* "chatcmpl-..." */
    int64_t created;
    const char *model;
    bool usage_asked;  /* stream_options.include_usage: earlier chunks carry usage: null */
};
/* What an answer took, over all its choices; as JSON under llama-server's names, and queue_ms. */
struct pd_timings {
    uint64_t cache_n, prompt_n, predicted_n; /* prompt tokens that were not computed again, that were, and tokens of answers */
    double queue_ms, prompt_ms, predicted_ms;
};

void pd_answer_init(struct pd_answer *a, unsigned api, const char *model, bool usage_asked);

void pd_sse_role(const struct pd_answer *a, int64_t index, struct fo_buf *out); /* chat: the first delta of a choice */
/* Takes what l has; NULL = null. */
void pd_sse_text(const struct pd_answer *a, int64_t index, const char *text, size_t len, struct pd_logprobs *l, struct fo_buf *out);
/* The last chunk of an answer has the timings: that of the usage if asked for, else the finish of the last choice; NULL in all others. */
void pd_sse_finish(const struct pd_answer *a, int64_t index, enum pn_finish finish, const struct pd_timings *t, struct fo_buf *out);
void pd_sse_usage(const struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out);
void pd_sse_error(const struct pd_error *x, const char *request_id, struct fo_buf *out);

/* The part of the reference page about what answers hold beside the text. */
void pd_sse_doc(struct fo_buf *out);

/* A whole answer. */
struct pd_choice {
    char *text; /* heap, may be NULL = "" */
    size_t len;
    enum pn_finish finish;
    char *logprobs; /* heap, a JSON value; NULL = null */
};
void pd_whole(const struct pd_answer *a, const struct pd_choice *choices, size_t n, const struct pn_usage *usage, const struct pd_timings *t,
              struct fo_buf *out);
