/* Answers and chunks: see sse.h. Clients' accumulators concatenate what repeats, so a role comes once per choice, finish_reason is
 * null but in the last chunk of a choice, and `choices` is a list even where it is empty. */
#include "daemon/sse.h"

#include <string.h>
#include <time.h>

#include "daemon/logprobs.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/responses.h"
#include "daemon/whose.h"
#include "engine/version.h"
#include "foundry/base/buf.h"

static const char *finish_name(enum pn_finish f) {
    static const char *const names[] = { [PN_FINISH_STOP] = "stop", [PN_FINISH_LENGTH] = "length", [PN_FINISH_CALLS] = "tool_calls" };
    return names[f];
}

void pd_answer_init(struct pd_answer *a, const struct pd_params *p, const char *model, size_t cap_bytes) {
    bool responses = p->api == PD_API_RESPONSES;
    *a = (struct pd_answer){ .api = p->api, .created = time(NULL), .model = model, .params = p };
    a->writer = responses ? &pd_writer_responses : &pd_writer_choices;
    a->usage_asked = p->stream && p->include_usage;
    pd_answer_id(a->id, sizeof a->id, responses ? "resp_" : p->api == PD_API_CHAT ? "chatcmpl-" : "cmpl-");
    pd_parts_init(&a->parts, cap_bytes);
}

void pd_answer_done(struct pd_answer *a) {
    pd_parts_done(&a->parts);
}

static void put_usage(const struct pn_usage *u, struct fo_buf *out) {
    fo_buf_printf(out, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%u},"
                       "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
                  u->prompt_tokens, u->completion_tokens, (unsigned long long)u->prompt_tokens + u->completion_tokens, u->cached_tokens, u->reasoning_tokens);
}

/* a / b, 0 where that says nothing. */
static double rate(double a, double b) {
    return b > 0 ? a / b : 0;
}

static const char *reason_name(enum pn_cache_miss m) {
    static const char *const names[] = { [PN_CACHE_FULL] = "full", [PN_CACHE_OFF] = "off", [PN_CACHE_EMPTY] = "empty", [PN_CACHE_DIVERGED] = "diverged",
                                         [PN_CACHE_EVICTED] = "evicted", [PN_CACHE_WINDOW] = "window", [PN_CACHE_STATE] = "state" };
    return names[m];
}

void pd_put_timings(const struct pd_timings *t, struct fo_buf *out) {
    fo_buf_printf(out, "{\"cache_n\":%llu,\"prompt_n\":%llu,\"prompt_ms\":%.3f,\"prompt_per_token_ms\":%.3f,\"prompt_per_second\":%.3f,",
                  (unsigned long long)t->cache_n, (unsigned long long)t->prompt_n, t->prompt_ms, rate(t->prompt_ms, (double)t->prompt_n),
                  rate((double)t->prompt_n * 1e3, t->prompt_ms));
    fo_buf_printf(out, "\"predicted_n\":%llu,\"predicted_ms\":%.3f,\"predicted_per_token_ms\":%.3f,\"predicted_per_second\":%.3f,\"draft_n\":%llu,\"draft_n_accepted\":%llu,\"queue_ms\":%.3f,",
                  (unsigned long long)t->predicted_n, t->predicted_ms, rate(t->predicted_ms, (double)t->predicted_n),
                  rate((double)t->predicted_n * 1e3, t->predicted_ms), (unsigned long long)t->draft_n, (unsigned long long)t->draft_n_accepted, t->queue_ms);
    fo_buf_printf(out, "\"cache\":{\"hit\":%llu,\"shared\":%llu,\"reason\":\"%s\"", (unsigned long long)t->cache_hit, (unsigned long long)t->cache_shared, reason_name(t->cache_reason));
    if (t->cache_small) fo_buf_printf(out, ",\"floor\":%llu", (unsigned long long)t->cache_small);
    fo_buf_puts(out, "}}");
}

/* Everything up to the choices. */
static void begin(const struct pd_answer *a, const char *object, struct fo_buf *out) {
    fo_buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id, object, (long long)a->created);
    pd_json_text(out, a->model, strlen(a->model));
    fo_buf_printf(out, ",\"system_fingerprint\":\"pantheon-%s\"", pn_build());
    if (a->params->has_tier) fo_buf_printf(out, ",\"service_tier\":\"%s\"", pd_whose_tier_name(a->priority));
    fo_buf_puts(out, ",\"choices\":[");
}

static void chunk_begin(const struct pd_answer *a, struct fo_buf *out) {
    fo_buf_puts(out, "data: ");
    begin(a, a->api == PD_API_CHAT ? "chat.completion.chunk" : "text_completion", out);
}

/* Everything behind the choices; either may be NULL. */
static void end(const struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    fo_buf_puts(out, "]");
    if (usage) {
        fo_buf_puts(out, ",\"usage\":");
        put_usage(usage, out);
    } else if (a->usage_asked) {
        fo_buf_puts(out, ",\"usage\":null");
    }
    if (t) {
        fo_buf_puts(out, ",\"timings\":");
        pd_put_timings(t, out);
    }
    fo_buf_puts(out, "}");
}

/* A chunk of one choice up to its delta, or its text. */
static void open_choice(const struct pd_answer *a, int64_t index, struct fo_buf *out) {
    chunk_begin(a, out);
    fo_buf_printf(out, "{\"index\":%lld,%s", (long long)index, a->api == PD_API_CHAT ? "\"delta\":{" : "\"text\":");
}

/* What is behind it; logprobs NULL = null, finish NULL = not over. */
static void close_choice(const struct pd_answer *a, struct pd_logprobs *l, const char *finish, const struct pd_timings *t, struct fo_buf *out) {
    fo_buf_puts(out, a->api == PD_API_CHAT ? "},\"logprobs\":" : ",\"logprobs\":");
    if (l) pd_logprobs_take(l, out);
    else fo_buf_puts(out, "null");
    if (finish) fo_buf_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    else fo_buf_puts(out, ",\"finish_reason\":null}");
    end(a, NULL, t, out);
    fo_buf_puts(out, "\n\n");
}

static void choices_open(struct pd_answer *a, struct fo_buf *out) {
    (void)a; /* the first event is a choice's */
    (void)out;
}

/* A piece of a part into the delta, or of completions the text. */
static void put_piece(struct pd_answer *a, enum pn_part part, const char *text, size_t len, struct fo_buf *out) {
    if (part == PN_PART_CALL) {
        char id[PD_ID_BYTES];
        pd_answer_id(id, sizeof id, "call_");
        fo_buf_printf(out, "\"tool_calls\":[{\"index\":%lld,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", (long long)a->n_calls++, id);
        pd_json_text(out, text, len);
        fo_buf_puts(out, ",\"arguments\":\"\"}}]");
    } else if (part == PN_PART_ARGUMENTS) {
        fo_buf_printf(out, "\"tool_calls\":[{\"index\":%lld,\"function\":{\"arguments\":", (long long)a->n_calls - 1);
        pd_json_text(out, text, len);
        fo_buf_puts(out, "}}]");
    } else {
        if (a->api == PD_API_CHAT) fo_buf_puts(out, part == PN_PART_REASONING ? "\"reasoning_content\":" : "\"content\":");
        pd_json_text(out, text, len);
        if (part == PN_PART_CONTENT) a->spoke = true;
    }
}

static void choices_part(struct pd_answer *a, int64_t index, enum pn_part part, const char *text, size_t len, struct pd_logprobs *l, struct fo_buf *out) {
    open_choice(a, index, out);
    put_piece(a, part, text, len, out);
    close_choice(a, l, NULL, NULL, out);
}

/* Where functions are offered, the content that a stream begins with is null like that of a whole answer which turns out to be calls alone. */
static void choices_begin(struct pd_answer *a, int64_t index, const char *echo, size_t n_echo, struct fo_buf *out) {
    a->n_calls = 0;
    a->spoke = false;
    if (a->api == PD_API_CHAT) {
        open_choice(a, index, out);
        fo_buf_puts(out, a->params->tools ? "\"role\":\"assistant\",\"content\":null" : "\"role\":\"assistant\",\"content\":\"\"");
        close_choice(a, NULL, NULL, NULL, out);
    } else if (echo) {
        choices_part(a, index, PN_PART_CONTENT, echo, n_echo, NULL, out);
    }
}

/* The last chunk of an answer has the timings: that of the usage if asked for, else this one of the last choice. */
static void choices_finish(struct pd_answer *a, int64_t index, enum pn_finish finish, const struct pd_timings *t, struct fo_buf *out) {
    if (a->params->tools && a->n_calls == 0 && !a->spoke) choices_part(a, index, PN_PART_CONTENT, "", 0, NULL, out);
    open_choice(a, index, out);
    if (a->api == PD_API_TEXT) pd_json_text(out, "", 0);
    close_choice(a, NULL, finish_name(finish), a->usage_asked ? NULL : t, out);
}

static void choices_close(struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    if (a->usage_asked) {
        chunk_begin(a, out);
        end(a, usage, t, out);
        fo_buf_puts(out, "\n\n");
    }
    fo_buf_puts(out, "data: [DONE]\n\n");
}

static void choices_error(struct pd_answer *a, const struct pd_error *x, const char *request_id, struct fo_buf *out) {
    (void)a;
    fo_buf_puts(out, "data: ");
    pd_error_json(x, request_id, out);
    fo_buf_puts(out, "\n\n");
}

/* All text of a kind as one JSON string. */
static void put_all(const struct pd_parts *p, enum pn_part kind, struct fo_buf *out) {
    struct fo_buf all;
    const struct pd_part *one = NULL;
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i].kind == kind) one = &p->list[i];
    if (pd_parts_count(p, kind) < 2) {
        pd_json_text(out, one ? fo_buf_str(&one->text) : "", one ? one->text.len : 0);
        return;
    }
    fo_buf_init(&all, p->cap_bytes);
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i].kind == kind) fo_buf_append(&all, fo_buf_str(&p->list[i].text), p->list[i].text.len);
    if (all.failed) out->failed = true;
    pd_json_text(out, fo_buf_str(&all), all.len);
    fo_buf_done(&all);
}

static void put_calls(const struct pd_parts *p, struct fo_buf *out) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct pd_part *c = &p->list[i];
        if (c->kind != PN_PART_CALL) continue;
        fo_buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", n++ ? "," : "", c->call);
        pd_json_text(out, fo_buf_str(&c->name), c->name.len);
        fo_buf_puts(out, ",\"arguments\":");
        pd_json_text(out, fo_buf_str(&c->text), c->text.len);
        fo_buf_puts(out, "}}");
    }
}

static void put_message(const struct pd_parts *p, struct fo_buf *out) {
    bool calls = pd_parts_count(p, PN_PART_CALL) > 0;
    fo_buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (calls && pd_parts_count(p, PN_PART_CONTENT) == 0) fo_buf_puts(out, "null");
    else put_all(p, PN_PART_CONTENT, out);
    fo_buf_puts(out, ",\"refusal\":null");
    if (pd_parts_count(p, PN_PART_REASONING)) {
        fo_buf_puts(out, ",\"reasoning_content\":");
        put_all(p, PN_PART_REASONING, out);
    }
    if (calls) {
        fo_buf_puts(out, ",\"tool_calls\":[");
        put_calls(p, out);
        fo_buf_putc(out, ']');
    }
    fo_buf_putc(out, '}');
}

static void choices_whole(struct pd_answer *a, const struct pd_choice *choices, size_t n, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    bool chat = a->api == PD_API_CHAT;
    begin(a, chat ? "chat.completion" : "text_completion", out);
    for (size_t i = 0; i < n; i++) {
        const struct pd_choice *c = &choices[i];
        fo_buf_printf(out, "%s{\"index\":%zu,%s", i ? "," : "", i, chat ? "" : "\"text\":");
        if (chat) put_message(&c->parts, out);
        else put_all(&c->parts, PN_PART_CONTENT, out);
        fo_buf_puts(out, ",\"logprobs\":");
        fo_buf_puts(out, c->logprobs ? c->logprobs : "null");
        fo_buf_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(c->finish));
    }
    end(a, usage, t, out);
}

const struct pd_writer pd_writer_choices = {
    .open = choices_open,
    .begin = choices_begin,
    .part = choices_part,
    .finish = choices_finish,
    .close = choices_close,
    .error = choices_error,
    .whole = choices_whole,
};

void pd_sse_doc(struct fo_buf *out) {
    fo_buf_puts(out, "\n## Log-probabilities\n\nWith `logprobs` a choice has, for each token of its answer, the natural logarithm of the probability that the model itself gives it: the "
                     "log-softmax of its logits, before logit_bias, penalties, temperature, top_k, top_p and min_p shape the draw; and those of the likeliest tokens in its place, as many as asked, "
                     "falling. -9999 is a token that cannot come.\n\n"
                     "Chat: `{\"content\":[{\"token\",\"logprob\",\"bytes\",\"top_logprobs\":[{\"token\",\"logprob\",\"bytes\"}]}],\"refusal\":null}`. `bytes` put together are the text, also where a "
                     "token is part of a character (its `token` then has `\\xNN` for such bytes); a control token has its name and no bytes (null). "
                     "Responses have the list of `content` alone, and [] for no bytes.\n\n"
                     "Completions: `{\"tokens\",\"token_logprobs\",\"top_logprobs\",\"text_offset\"}`, four lists of one length. `top_logprobs` are objects of token to number; the token of the answer is "
                     "always among them, and of tokens that read the same the likeliest stays. `text_offset` counts characters of the choice's text. A token that is part of a character is written "
                     "`bytes:\\xNN`.\n\n"
                     "In a stream they come with the text of their token, and with text that was held back (an incomplete character, what might have become a stop text) when that comes. Neither the "
                     "token that ends an answer nor one that a stop text cut away is told; one of which a part is shown is.\n"
                     "\n## Timings\n\nEvery whole answer, and the last chunk of a stream (that of the usage where it is asked for), has `timings`, under llama-server's names and over all choices: `prompt_n` "
                     "tokens of prompts computed in `prompt_ms`, `cache_n` more that were there already, `predicted_n` tokens of answers in `predicted_ms` (the first is part of `prompt_ms`), of both "
                     "`_per_token_ms` and `_per_second`; `draft_n` tokens that were guessed and checked (speculation), `draft_n_accepted` of them right; and `queue_ms`, the wait for a turn.\n\n"
                     "`cache` says what kept KV was worth, of the first choice of each prompt: `hit` tokens were found, `shared` are those that the prompt has in common with what is kept (found are whole "
                     "pages of them), and `reason` is why not more: `full` (all but the last token, or what a page cannot share, was), `off` (cache_prompt is false), `empty` (nothing is kept for this key), `diverged` (what is kept goes on "
                     "differently), `evicted` (more was kept once, and gave way), `window` (the sliding window has let go of it), `state` (there is no checkpoint of the recurrent state further on). /metrics counts the reasons.\n");
}
