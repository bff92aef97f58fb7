/* The `logprobs` member of a choice, in OpenAI's two shapes: of chat {"content":[{"token","logprob","bytes","top_logprobs"}],"refusal":null},
 * of completions {"tokens","token_logprobs","top_logprobs","text_offset"}; of Responses it is chat's list alone. It is written as text token by token, so that it takes a
 * hundredth of the memory that objects would and a buffer's cap bounds it. One owner: the connection. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "foundry/base/buf.h"

struct pn_logprobs;
struct pn_model;

enum { PD_LOGPROB_LISTS = 4 };

struct pd_logprobs {
    unsigned api;             /* PD_API_CHAT, PD_API_TEXT or PD_API_RESPONSES */
    const struct pn_model *m; /* NULL = not asked for */
    size_t n;                 /* tokens since it was taken */
    struct fo_buf list[PD_LOGPROB_LISTS]; /* what stands between the brackets: completions have four, the others one */
    struct fo_buf bytes, name;            /* scratch */
};

/* m NULL: not asked for, nothing is ever added. No list passes cap_bytes. */
void pd_logprobs_init(struct pd_logprobs *l, unsigned api, const struct pn_model *m, size_t cap_bytes);
void pd_logprobs_done(struct pd_logprobs *l);

/* A token that cannot come has -9999 for minus infinity, which JSON lacks. Of completions' tokens that read the same, the likeliest stays. */
void pd_logprobs_add(struct pd_logprobs *l, const struct pn_logprobs *p);

/* Of chat and Responses: appends what was added since the last time to the members of a list, without its brackets. */
void pd_logprobs_join(struct pd_logprobs *l, struct fo_buf *members);

/* Appends the value of what was added since the last time ("null" when not asked for, of Responses "[]"); a list that failed fails out. */
void pd_logprobs_take(struct pd_logprobs *l, struct fo_buf *out);
