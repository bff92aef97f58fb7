/* Responses: see responses.h. One message is the whole output, and one part of text is its whole content:
 *
 *     response.created, response.in_progress
 *       response.output_item.added
 *         response.content_part.added
 *           response.output_text.delta ...
 *           response.output_text.done
 *         response.content_part.done
 *       response.output_item.done
 *     response.completed | response.incomplete
 *
 * and no [DONE]: the last event says that it is the last. An error is told twice, because clients look in different places: in
 * response.failed, which ends the Response, and in an `error` event, which has the fields where the API's description puts them and the
 * object where the API itself and every other endpoint have it. */
#include "daemon/responses.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/logprobs.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/text.h"

enum { MAX_ERROR_BYTES = 64 << 10 };

/* --- parts of the object --- */

/* Fields of the request that the object repeats: as they came where they are of the type, else `otherwise`. */
static const struct given {
    const char *name;
    json_type type;
    const char *otherwise;
} given[] = {
    { "instructions", JSON_STRING, "null" },     { "metadata", JSON_OBJECT, "{}" }, { "parallel_tool_calls", JSON_FALSE, "true" }, { "prompt_cache_key", JSON_STRING, "null" },
    { "safety_identifier", JSON_STRING, "null" }, { "tools", JSON_ARRAY, "[]" },     { "user", JSON_STRING, "null" },
};

static void put_given(const struct pd_answer *a, const struct given *g, struct fo_buf *out) {
    const json_t *v = json_object_get(a->params->root, g->name);
    fo_buf_printf(out, ",\"%s\":", g->name);
    if (!v || json_typeof(v) != g->type) {
        fo_buf_puts(out, g->otherwise);
        return;
    }
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text) fo_buf_puts(out, text);
    else out->failed = true;
    free(text);
}

/* The part of text; logprobs is a JSON list. */
static void put_part(const char *text, size_t len, const char *logprobs, struct fo_buf *out) {
    fo_buf_puts(out, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":");
    fo_buf_puts(out, logprobs);
    fo_buf_puts(out, ",\"text\":");
    pd_json_text(out, text, len);
    fo_buf_putc(out, '}');
}

static void put_item(const struct pd_answer *a, const char *status, const char *text, size_t len, const char *logprobs, struct fo_buf *out) {
    fo_buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", a->item, status);
    if (text) put_part(text, len, logprobs, out);
    fo_buf_puts(out, "]}");
}

static void put_usage(const struct pn_usage *u, struct fo_buf *out) {
    fo_buf_printf(out, "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":0},\"output_tokens\":%u,"
                       "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%llu}",
                  u->prompt_tokens, u->cached_tokens, u->completion_tokens, (unsigned long long)u->prompt_tokens + u->completion_tokens);
}

/* {"code","message"}, of the few codes that a Response's error has. */
static void put_error(const struct pd_error *x, const struct fo_buf *message, struct fo_buf *out) {
    int status = pd_error_row(x->id)->status;
    fo_buf_printf(out, "{\"code\":\"%s\",\"message\":", status == 429 ? "rate_limit_exceeded" : status < 500 ? "invalid_prompt" : "server_error");
    pd_json_text(out, fo_buf_str(message), message->len);
    fo_buf_putc(out, '}');
}

static const char *status_of(enum pn_finish f) {
    return f == PN_FINISH_LENGTH ? "incomplete" : "completed";
}

/* The object up to its output: status, and what an error says. */
static void begin(const struct pd_answer *a, const char *status, const struct pd_error *x, const struct fo_buf *message, struct fo_buf *out) {
    fo_buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"background\":false,\"error\":", a->id, (long long)a->created, status);
    if (x) put_error(x, message, out);
    else fo_buf_puts(out, "null");
    fo_buf_puts(out, ",\"incomplete_details\":");
    fo_buf_puts(out, strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    fo_buf_puts(out, ",\"model\":");
    pd_json_text(out, a->model, strlen(a->model));
    fo_buf_puts(out, ",\"output\":[");
}

/* What is behind the output: what the request asked for, and what it took; usage NULL = not known yet. */
static void end(const struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    const struct pd_params *p = a->params;
    const char *choice = pd_json_word(json_object_get(p->root, "tool_choice"));
    fo_buf_putc(out, ']');
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) put_given(a, &given[i], out);
    fo_buf_puts(out, choice && strcmp(choice, "none") == 0 ? ",\"tool_choice\":\"none\"" : ",\"tool_choice\":\"auto\"");
    if (p->has_max_tokens) fo_buf_printf(out, ",\"max_output_tokens\":%lld", (long long)p->max_tokens);
    else fo_buf_puts(out, ",\"max_output_tokens\":null");
    fo_buf_puts(out, ",\"previous_response_id\":null,\"reasoning\":{\"effort\":null,\"summary\":null},\"service_tier\":\"default\",\"store\":false,\"text\":{\"format\":");
    const json_t *format = json_object_get(json_object_get(p->root, "text"), "format");
    char *held = json_is_object(format) ? json_dumps(format, JSON_COMPACT) : NULL;
    if (json_is_object(format) && !held) out->failed = true;
    fo_buf_puts(out, held ? held : "{\"type\":\"text\"}");
    free(held);
    fo_buf_puts(out, "},\"truncation\":\"disabled\"");
    fo_buf_printf(out, ",\"temperature\":%.7g,\"top_p\":%.7g,\"top_logprobs\":%d,\"usage\":", (double)p->sampling.temperature, (double)p->sampling.top_p, p->n_top > 0 ? (int)p->n_top : 0);
    if (usage) put_usage(usage, out);
    else fo_buf_puts(out, "null");
    if (t) {
        fo_buf_puts(out, ",\"timings\":");
        pd_put_timings(t, out);
    }
    fo_buf_putc(out, '}');
}

/* --- a stream --- */

/* An event up to its own members. */
static void event(struct pd_answer *a, const char *type, struct fo_buf *out) {
    fo_buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%llu", type, type, (unsigned long long)a->n_events++);
}

static void event_of_part(struct pd_answer *a, const char *type, struct fo_buf *out) {
    event(a, type, out);
    fo_buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":0,\"content_index\":0", a->item);
}

static void event_end(struct fo_buf *out) {
    fo_buf_puts(out, "}\n\n");
}

/* A Response that has no output yet. */
static void event_of_response(struct pd_answer *a, const char *type, struct fo_buf *out) {
    event(a, type, out);
    fo_buf_puts(out, ",\"response\":");
    begin(a, "in_progress", NULL, NULL, out);
    end(a, NULL, NULL, out);
    event_end(out);
}

static void responses_open(struct pd_answer *a, struct fo_buf *out) {
    event_of_response(a, "response.created", out);
    event_of_response(a, "response.in_progress", out);
}

static void responses_begin(struct pd_answer *a, int64_t index, const char *echo, size_t n_echo, struct fo_buf *out) {
    (void)index; /* the only choice, and echo is a field of completions */
    (void)echo;
    (void)n_echo;
    event(a, "response.output_item.added", out);
    fo_buf_puts(out, ",\"output_index\":0,\"item\":");
    put_item(a, "in_progress", NULL, 0, NULL, out);
    event_end(out);
    event_of_part(a, "response.content_part.added", out);
    fo_buf_puts(out, ",\"part\":");
    put_part("", 0, "[]", out);
    event_end(out);
}

static void responses_text(struct pd_answer *a, int64_t index, const char *text, size_t len, struct pd_logprobs *l, struct fo_buf *out) {
    (void)index;
    event_of_part(a, "response.output_text.delta", out);
    fo_buf_puts(out, ",\"delta\":");
    pd_json_text(out, text, len);
    fo_buf_puts(out, ",\"logprobs\":");
    size_t at = out->len;
    pd_logprobs_take(l, out); /* [...] */
    if (!out->failed && out->len > at + 2) {
        if (a->logprobs.len) fo_buf_putc(&a->logprobs, ',');
        fo_buf_append(&a->logprobs, out->data + at + 1, out->len - at - 2);
    }
    event_end(out);
    fo_buf_append(&a->text, text, len);
    if (a->text.failed || a->logprobs.failed) out->failed = true;
}

/* The list of all log-probabilities so far, NUL-terminated; "" when memory was missing, which fails out. */
static const char *all_logprobs(const struct pd_answer *a, struct fo_buf *list, struct fo_buf *out) {
    fo_buf_init(list, SIZE_MAX / 2);
    fo_buf_putc(list, '[');
    fo_buf_append(list, fo_buf_str(&a->logprobs), a->logprobs.len);
    fo_buf_putc(list, ']');
    if (list->failed) out->failed = true;
    return fo_buf_str(list);
}

static void responses_finish(struct pd_answer *a, int64_t index, enum pn_finish finish, const struct pd_timings *t, struct fo_buf *out) {
    (void)index;
    (void)t; /* the last event has them */
    struct fo_buf list;
    const char *logprobs = all_logprobs(a, &list, out), *text = fo_buf_str(&a->text);
    a->finish = finish;
    event_of_part(a, "response.output_text.done", out);
    fo_buf_puts(out, ",\"text\":");
    pd_json_text(out, text, a->text.len);
    fo_buf_puts(out, ",\"logprobs\":");
    fo_buf_puts(out, logprobs);
    event_end(out);
    event_of_part(a, "response.content_part.done", out);
    fo_buf_puts(out, ",\"part\":");
    put_part(text, a->text.len, logprobs, out);
    event_end(out);
    event(a, "response.output_item.done", out);
    fo_buf_puts(out, ",\"output_index\":0,\"item\":");
    put_item(a, status_of(finish), text, a->text.len, logprobs, out);
    event_end(out);
    fo_buf_done(&list);
}

static void responses_close(struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    struct fo_buf list;
    const char *logprobs = all_logprobs(a, &list, out), *status = status_of(a->finish);
    event(a, a->finish == PN_FINISH_LENGTH ? "response.incomplete" : "response.completed", out);
    fo_buf_puts(out, ",\"response\":");
    begin(a, status, NULL, NULL, out);
    put_item(a, status, fo_buf_str(&a->text), a->text.len, logprobs, out);
    end(a, usage, t, out);
    event_end(out);
    fo_buf_done(&list);
}

static void responses_error(struct pd_answer *a, const struct pd_error *x, const char *request_id, struct fo_buf *out) {
    const struct pd_error_row *row = pd_error_row(x->id);
    struct fo_buf message, object;
    fo_buf_init(&message, MAX_ERROR_BYTES);
    fo_buf_init(&object, MAX_ERROR_BYTES);
    pd_utf8_clean(x->message, strlen(x->message), &message);
    pd_error_json(x, request_id, &object); /* {"error":{...}} */
    event(a, "response.failed", out);
    fo_buf_puts(out, ",\"response\":");
    begin(a, "failed", x, &message, out);
    end(a, NULL, NULL, out);
    event_end(out);
    event(a, "error", out);
    if (row->code) fo_buf_printf(out, ",\"code\":\"%s\"", row->code);
    else fo_buf_puts(out, ",\"code\":null");
    fo_buf_puts(out, ",\"message\":");
    pd_json_text(out, fo_buf_str(&message), message.len);
    fo_buf_puts(out, ",\"param\":");
    if (x->param[0]) pd_json_text(out, x->param, strlen(x->param));
    else fo_buf_puts(out, "null");
    fo_buf_putc(out, ',');
    fo_buf_puts(out, fo_buf_str(&object) + (object.len > 0)); /* behind its brace */
    fo_buf_puts(out, "\n\n");
    if (message.failed || object.failed) out->failed = true;
    fo_buf_done(&message);
    fo_buf_done(&object);
}

static void responses_whole(struct pd_answer *a, const struct pd_choice *choices, size_t n, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    (void)n;
    const char *status = status_of(choices->finish);
    begin(a, status, NULL, NULL, out);
    put_item(a, status, choices->text ? choices->text : "", choices->len, choices->logprobs ? choices->logprobs : "[]", out);
    end(a, usage, t, out);
}

const struct pd_writer pd_writer_responses = {
    .open = responses_open,
    .begin = responses_begin,
    .text = responses_text,
    .finish = responses_finish,
    .close = responses_close,
    .error = responses_error,
    .whole = responses_whole,
};

void pd_responses_doc(struct fo_buf *out) {
    fo_buf_puts(out, "\n## Responses\n\nThe part of OpenAI's Responses API that is a chat: the items of `input` become the messages of a conversation, so that the answer is that of "
                     "/v1/chat/completions for the same messages, as one item of type message with one part of type output_text. Nothing is stored: `store` is false in every answer, whatever the "
                     "request says, an answer cannot be fetched by its id (404), and what needs a stored one is refused by name.\n\n"
                     "`status` is completed, or incomplete with `incomplete_details.reason` max_output_tokens when max_output_tokens or the model's cap cut the answer. Beside what the API has, "
                     "sampling fields of the other endpoints are taken, and the answer has `timings`.\n\n"
                     "The events of a stream have their type in an `event:` line too, and a `sequence_number` that counts from 0: response.created, response.in_progress, "
                     "response.output_item.added, response.content_part.added, response.output_text.delta as often as it takes, response.output_text.done, response.content_part.done, "
                     "response.output_item.done, and response.completed or response.incomplete, which is the last: there is no [DONE]. An error ends a stream by response.failed and an event `error` "
                     "with `code`, `message` and `param`, and the `error` object of the other endpoints.\n");
}
