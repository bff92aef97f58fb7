/* Answers and chunks: see sse.h. Clients' accumulators concatenate what repeats, so a role comes once per choice, finish_reason is
 * null but in the last chunk of a choice, and `choices` is a list even where it is empty. */
#include "daemon/sse.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/oai.h"
#include "daemon/params.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/rng.h"

static const char *finish_name(enum pn_finish f) {
    return f == PN_FINISH_LENGTH ? "length" : "stop";
}

void pd_answer_init(struct pd_answer *a, unsigned api, const char *model, bool usage_asked) {
    *a = (struct pd_answer){ .api = api, .created = time(NULL), .model = model, .usage_asked = usage_asked };
    snprintf(a->id, sizeof a->id, "%s-%016llx%08x", api == PD_API_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)fo_rng_entropy(),
             (unsigned)fo_rng_entropy());
}

static json_t *usage_object(const struct pn_usage *u) {
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:i}}", "prompt_tokens", (json_int_t)u->prompt_tokens, "completion_tokens",
                     (json_int_t)u->completion_tokens, "total_tokens", (json_int_t)u->prompt_tokens + (json_int_t)u->completion_tokens,
                     "prompt_tokens_details", "cached_tokens", (json_int_t)u->cached_tokens, "completion_tokens_details", "reasoning_tokens", 0);
}

/* The text of an object that is then freed; NULL (no memory) fails the buffer. */
static void put(struct fo_buf *out, const char *before, json_t *obj, const char *after) {
    char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
    json_decref(obj);
    if (!text) {
        out->failed = true;
        return;
    }
    fo_buf_puts(out, before);
    fo_buf_puts(out, text);
    fo_buf_puts(out, after);
    free(text);
}

static json_t *envelope(const struct pd_answer *a, const char *object, json_t *choices) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s+, s:o}", "id", a->id, "object", object, "created", (json_int_t)a->created, "model", a->model,
                     "system_fingerprint", "pantheon-", pn_build(), "choices", choices);
}

static const char *chunk_object(const struct pd_answer *a) {
    return a->api == PD_API_CHAT ? "chat.completion.chunk" : "text_completion";
}

/* One chunk with one choice. */
static void chunk(const struct pd_answer *a, json_t *choice, struct fo_buf *out) {
    json_t *obj = envelope(a, chunk_object(a), json_pack("[o]", choice));
    if (obj && a->usage_asked) json_object_set_new(obj, "usage", json_null());
    put(out, "data: ", obj, "\n\n");
}

void pd_sse_role(const struct pd_answer *a, int64_t index, struct fo_buf *out) {
    chunk(a, json_pack("{s:I, s:{s:s, s:s}, s:n, s:n}", "index", (json_int_t)index, "delta", "role", "assistant", "content", "", "logprobs", "finish_reason"),
          out);
}

void pd_sse_text(const struct pd_answer *a, int64_t index, const char *text, size_t len, struct fo_buf *out) {
    json_t *t = json_stringn(text, len);
    if (a->api == PD_API_CHAT) chunk(a, json_pack("{s:I, s:{s:o}, s:n, s:n}", "index", (json_int_t)index, "delta", "content", t, "logprobs", "finish_reason"), out);
    else chunk(a, json_pack("{s:I, s:o, s:n, s:n}", "index", (json_int_t)index, "text", t, "logprobs", "finish_reason"), out);
}

void pd_sse_finish(const struct pd_answer *a, int64_t index, enum pn_finish finish, struct fo_buf *out) {
    const char *f = finish_name(finish);
    if (a->api == PD_API_CHAT) chunk(a, json_pack("{s:I, s:{}, s:n, s:s}", "index", (json_int_t)index, "delta", "logprobs", "finish_reason", f), out);
    else chunk(a, json_pack("{s:I, s:s, s:n, s:s}", "index", (json_int_t)index, "text", "", "logprobs", "finish_reason", f), out);
}

void pd_sse_usage(const struct pd_answer *a, const struct pn_usage *usage, struct fo_buf *out) {
    json_t *obj = envelope(a, chunk_object(a), json_array());
    if (obj) json_object_set_new(obj, "usage", usage_object(usage));
    put(out, "data: ", obj, "\n\n");
}

void pd_sse_error(const struct pd_error *x, const char *request_id, struct fo_buf *out) {
    fo_buf_puts(out, "data: ");
    pd_error_json(x, request_id, out);
    fo_buf_puts(out, "\n\n");
}

void pd_whole(const struct pd_answer *a, const struct pd_choice *choices, size_t n, const struct pn_usage *usage, struct fo_buf *out) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *text = json_stringn(choices[i].text ? choices[i].text : "", choices[i].len);
        const char *f = finish_name(choices[i].finish);
        json_t *c = a->api == PD_API_CHAT ? json_pack("{s:I, s:{s:s, s:o, s:n}, s:n, s:s}", "index", (json_int_t)i, "message", "role", "assistant", "content", text,
                                                      "refusal", "logprobs", "finish_reason", f)
                                          : json_pack("{s:I, s:o, s:n, s:s}", "index", (json_int_t)i, "text", text, "logprobs", "finish_reason", f);
        if (!c || json_array_append_new(list, c)) out->failed = true;
    }
    json_t *obj = envelope(a, a->api == PD_API_CHAT ? "chat.completion" : "text_completion", list);
    if (obj) json_object_set_new(obj, "usage", usage_object(usage));
    put(out, "", obj, "");
}
