/* Responses: see responses.h. The parts of an answer are the items of the output, in the order in which the model said them: a thought is an item of
 * type reasoning, text a message, a call a function_call. An answer that has nothing at all has an empty message.
 *
 *     response.created, response.in_progress
 *       for each item
 *         response.output_item.added
 *           of a message          response.content_part.added, response.output_text.delta ..., response.output_text.done, response.content_part.done
 *           of reasoning          response.content_part.added, response.reasoning_text.delta ..., response.reasoning_text.done,
 *                                 response.content_part.done
 *           of a function_call    response.function_call_arguments.delta ..., response.function_call_arguments.done
 *         response.output_item.done
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
#include "daemon/tools.h"
#include "daemon/whose.h"

enum { MAX_ERROR_BYTES = 64 << 10 };

/* --- parts of the object --- */

/* Fields of the request that the object repeats: as they came where they are of the type, else `otherwise`. */
static const struct given {
    const char *name;
    json_type type;
    const char *otherwise;
} given[] = {
    { "instructions", JSON_STRING, "null" },      { "metadata", JSON_OBJECT, "{}" }, { "parallel_tool_calls", JSON_FALSE, "true" }, { "prompt_cache_key", JSON_STRING, "null" },
    { "safety_identifier", JSON_STRING, "null" }, { "user", JSON_STRING, "null" },
};

static void put_json(const json_t *v, struct fo_buf *out) {
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text) fo_buf_puts(out, text);
    else out->failed = true;
    free(text);
}

static void put_given(const struct pd_answer *a, const struct given *g, struct fo_buf *out) {
    const json_t *v = json_object_get(a->params->root, g->name);
    fo_buf_printf(out, ",\"%s\":", g->name);
    if (v && json_typeof(v) == g->type) put_json(v, out);
    else fo_buf_puts(out, g->otherwise);
}

static bool is_thought(const struct pd_part *p) {
    return p->kind == PN_PART_REASONING;
}

/* What a message or a thought consists of; logprobs are the members of a list. */
static void put_part(const struct pd_part *p, bool whole, struct fo_buf *out) {
    fo_buf_puts(out, is_thought(p) ? "{\"type\":\"reasoning_text\",\"text\":" : "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
    if (!is_thought(p)) {
        if (whole) fo_buf_append(out, fo_buf_str(&p->logprobs), p->logprobs.len);
        fo_buf_puts(out, "],\"text\":");
    }
    pd_json_text(out, whole ? fo_buf_str(&p->text) : "", whole ? p->text.len : 0);
    fo_buf_putc(out, '}');
}

/* `whole`: with what it consists of. */
static void put_item(const struct pd_part *p, const char *status, bool whole, struct fo_buf *out) {
    static const char *const types[] = { [PN_PART_CONTENT] = "message", [PN_PART_REASONING] = "reasoning", [PN_PART_CALL] = "function_call" };
    fo_buf_printf(out, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\"", p->item, types[p->kind], status);
    if (p->kind == PN_PART_CALL) {
        fo_buf_printf(out, ",\"call_id\":\"%s\",\"name\":", p->call);
        pd_json_text(out, fo_buf_str(&p->name), p->name.len);
        fo_buf_puts(out, ",\"arguments\":");
        pd_json_text(out, whole ? fo_buf_str(&p->text) : "", whole ? p->text.len : 0);
        fo_buf_putc(out, '}');
        return;
    }
    fo_buf_puts(out, is_thought(p) ? ",\"summary\":[],\"content\":[" : ",\"role\":\"assistant\",\"content\":[");
    if (whole) put_part(p, true, out);
    fo_buf_puts(out, "]}");
}

static void put_items(const struct pd_parts *parts, const char *status, struct fo_buf *out) {
    for (size_t i = 0; i < parts->n; i++) {
        if (i) fo_buf_putc(out, ',');
        put_item(&parts->list[i], i + 1 < parts->n ? "completed" : status, true, out);
    }
}

static void put_usage(const struct pn_usage *u, struct fo_buf *out) {
    fo_buf_printf(out, "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":0},\"output_tokens\":%u,"
                       "\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%llu}",
                  u->prompt_tokens, u->cached_tokens, u->completion_tokens, u->reasoning_tokens, (unsigned long long)u->prompt_tokens + u->completion_tokens);
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
    const json_t *choice = json_object_get(p->root, "tool_choice");
    fo_buf_putc(out, ']');
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) put_given(a, &given[i], out);
    fo_buf_puts(out, ",\"tools\":");
    pd_tools_repeat(p, out);
    fo_buf_puts(out, ",\"tool_choice\":");
    if (json_is_string(choice) || json_is_object(choice)) put_json(choice, out);
    else fo_buf_puts(out, "\"auto\"");
    if (p->has_max_tokens) fo_buf_printf(out, ",\"max_output_tokens\":%lld", (long long)p->max_tokens);
    else fo_buf_puts(out, ",\"max_output_tokens\":null");
    fo_buf_puts(out, ",\"previous_response_id\":null,\"reasoning\":{\"effort\":");
    if (p->effort) pd_json_text(out, p->effort, strlen(p->effort));
    else fo_buf_puts(out, "null");
    fo_buf_printf(out, ",\"summary\":null},\"service_tier\":\"%s\",\"store\":false,\"text\":{\"format\":", pd_whose_tier_name(a->priority));
    const json_t *format = json_object_get(json_object_get(p->root, "text"), "format");
    if (json_is_object(format)) put_json(format, out);
    else fo_buf_puts(out, "{\"type\":\"text\"}");
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

/* An event about the last item, up to its own members. */
static void event_of_item(struct pd_answer *a, const char *type, struct fo_buf *out) {
    event(a, type, out);
    fo_buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":%zu", a->parts.list[a->parts.n - 1].item, a->parts.n - 1);
}

/* An event about what it consists of. */
static void event_of_part(struct pd_answer *a, const char *type, struct fo_buf *out) {
    event_of_item(a, type, out);
    fo_buf_puts(out, ",\"content_index\":0");
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
    (void)a; /* items come as the model says them */
    (void)index; /* the only choice, and echo is a field of completions */
    (void)echo;
    (void)n_echo;
    (void)out;
}

static void open_item(struct pd_answer *a, const struct pd_part *p, struct fo_buf *out) {
    event(a, "response.output_item.added", out);
    fo_buf_printf(out, ",\"output_index\":%zu,\"item\":", a->parts.n - 1);
    put_item(p, "in_progress", false, out);
    event_end(out);
    if (p->kind == PN_PART_CALL) return;
    event_of_part(a, "response.content_part.added", out);
    fo_buf_puts(out, ",\"part\":");
    put_part(p, false, out);
    event_end(out);
}

/* The last item is whole: its text is said once more, then what it consists of, then all of it. */
static void close_item(struct pd_answer *a, const char *status, struct fo_buf *out) {
    const struct pd_part *p = &a->parts.list[a->parts.n - 1];
    if (p->kind == PN_PART_CALL) {
        event_of_item(a, "response.function_call_arguments.done", out);
        fo_buf_puts(out, ",\"name\":");
        pd_json_text(out, fo_buf_str(&p->name), p->name.len);
        fo_buf_puts(out, ",\"arguments\":");
        pd_json_text(out, fo_buf_str(&p->text), p->text.len);
        event_end(out);
    } else {
        event_of_part(a, is_thought(p) ? "response.reasoning_text.done" : "response.output_text.done", out);
        fo_buf_puts(out, ",\"text\":");
        pd_json_text(out, fo_buf_str(&p->text), p->text.len);
        if (!is_thought(p)) {
            fo_buf_puts(out, ",\"logprobs\":[");
            fo_buf_append(out, fo_buf_str(&p->logprobs), p->logprobs.len);
            fo_buf_putc(out, ']');
        }
        event_end(out);
        event_of_part(a, "response.content_part.done", out);
        fo_buf_puts(out, ",\"part\":");
        put_part(p, true, out);
        event_end(out);
    }
    event(a, "response.output_item.done", out);
    fo_buf_printf(out, ",\"output_index\":%zu,\"item\":", a->parts.n - 1);
    put_item(p, status, true, out);
    event_end(out);
}

/* Text of this kind: the item that it belongs to, which is announced when it is new. NULL fails out. */
static struct pd_part *item_of(struct pd_answer *a, enum pn_part part, const char *text, size_t len, struct fo_buf *out) {
    bool begins = pd_parts_begins(&a->parts, part);
    if (begins && a->parts.n) close_item(a, "completed", out);
    struct pd_part *p = pd_parts_add(&a->parts, part, text, len);
    if (!p) out->failed = true;
    else if (begins) open_item(a, p, out);
    return p;
}

static void responses_part(struct pd_answer *a, int64_t index, enum pn_part part, const char *text, size_t len, struct pd_logprobs *l, struct fo_buf *out) {
    static const char *const deltas[] = { [PN_PART_CONTENT] = "response.output_text.delta", [PN_PART_REASONING] = "response.reasoning_text.delta",
                                          [PN_PART_ARGUMENTS] = "response.function_call_arguments.delta" };
    (void)index;
    struct pd_part *p = item_of(a, part, text, len, out);
    if (!p || part == PN_PART_CALL) return; /* its item has the name already */
    if (part == PN_PART_ARGUMENTS) event_of_item(a, deltas[part], out);
    else event_of_part(a, deltas[part], out);
    fo_buf_puts(out, ",\"delta\":");
    pd_json_text(out, text, len);
    if (part == PN_PART_CONTENT) {
        size_t at = p->logprobs.len;
        pd_logprobs_join(l, &p->logprobs);
        if (at && p->logprobs.len > at) at++; /* behind the comma */
        fo_buf_puts(out, ",\"logprobs\":[");
        if (p->logprobs.failed) out->failed = true;
        else fo_buf_append(out, fo_buf_str(&p->logprobs) + at, p->logprobs.len - at);
        fo_buf_putc(out, ']');
    }
    event_end(out);
}

static void responses_finish(struct pd_answer *a, int64_t index, enum pn_finish finish, const struct pd_timings *t, struct fo_buf *out) {
    (void)index;
    (void)t; /* the last event has them */
    a->finish = finish;
    if (a->parts.n || item_of(a, PN_PART_CONTENT, "", 0, out)) close_item(a, status_of(finish), out);
}

static void responses_close(struct pd_answer *a, const struct pn_usage *usage, const struct pd_timings *t, struct fo_buf *out) {
    const char *status = status_of(a->finish);
    event(a, a->finish == PN_FINISH_LENGTH ? "response.incomplete" : "response.completed", out);
    fo_buf_puts(out, ",\"response\":");
    begin(a, status, NULL, NULL, out);
    put_items(&a->parts, status, out);
    end(a, usage, t, out);
    event_end(out);
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
    if (choices->parts.n) put_items(&choices->parts, status, out);
    else if (pd_parts_add(&a->parts, PN_PART_CONTENT, "", 0)) put_items(&a->parts, status, out);
    else out->failed = true;
    end(a, usage, t, out);
}

const struct pd_writer pd_writer_responses = {
    .open = responses_open,
    .begin = responses_begin,
    .part = responses_part,
    .finish = responses_finish,
    .close = responses_close,
    .error = responses_error,
    .whole = responses_whole,
};

void pd_responses_doc(struct fo_buf *out) {
    fo_buf_puts(out, "\n## Responses\n\nThe part of OpenAI's Responses API that is a chat: the items of `input` become the messages of a conversation, so that the answer is that of "
                     "/v1/chat/completions for the same messages. What was thought, said and called are items of their own in the order in which the model said them: reasoning (`content` has the thought, `summary` is "
                     "empty), message with one part of type output_text, function_call; an answer without anything has an empty message. Nothing is stored: `store` is false in every answer, whatever the "
                     "request says, an answer cannot be fetched by its id (404), and what needs a stored one is refused by name.\n\n"
                     "`status` is completed, or incomplete with `incomplete_details.reason` max_output_tokens when max_output_tokens or the model's cap cut the answer. Beside what the API has, "
                     "sampling fields of the other endpoints are taken, and the answer has `timings`.\n\n"
                     "The events of a stream have their type in an `event:` line too, and a `sequence_number` that counts from 0: response.created, response.in_progress, "
                     "and for each item, whose `output_index` rises, response.output_item.added, response.content_part.added, response.output_text.delta or response.reasoning_text.delta as often as it takes, their "
                     "`.done`, response.content_part.done, response.output_item.done; of a call response.function_call_arguments.delta and `.done` stand between the outer two. Then comes response.completed or response.incomplete, which is the last: there is no [DONE]. An error ends a stream by response.failed and an event `error` "
                     "with `code`, `message` and `param`, and the `error` object of the other endpoints.\n");
}
