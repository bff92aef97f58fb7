/* Error objects: {"error":{"message","type","param","code"[,"budget"][,"request_id"]}}, all four of the first always there, because
 * typed clients require them. Wordings matter: agents search the message of a 400 for a context overflow ("maximum context length
 * is N tokens", ...) and compact their history when they find it, so no other refusal uses those words, and an overflow never
 * speaks of rates. */
#include "daemon/oai.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http.h"
#include "daemon/log.h"
#include "daemon/text.h"
#include "engine/engine.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

#define INVALID "invalid_request_error"
#define SERVER "server_error"

static const struct pd_error_row rows[PD_N_ERRORS] = {
    [PD_ERR_INVALID] = { 400, INVALID, NULL, "The body is not JSON, a field is missing or has the wrong type; `param` is its path.", false },
    [PD_ERR_VALUE] = { 400, INVALID, "invalid_value", "A value is out of range or not one of those allowed; `param` is its path.", false },
    [PD_ERR_UNKNOWN_PARAM] = { 400, INVALID, "unknown_parameter", "A field that this server does not know.", false },
    [PD_ERR_UNSUPPORTED] = { 400, INVALID, "unsupported_parameter", "A field or value that this version knows and does not honour.", false },
    [PD_ERR_SCHEMA] = { 400, INVALID, "unsupported_schema", "A JSON Schema that no answer can be held to: `param` and the message name the place and the keyword.", false },
    [PD_ERR_TEMPLATE] = { 400, INVALID, "chat_template_invalid", "The model's chat template does not parse, so it cannot chat; /v1/completions works.", false },
    [PD_ERR_BUDGET] = { 400, "context_over_budget", "context_length_exceeded", "Prompt and max_tokens pass the model's cap; `budget` has the numbers.", false },
    [PD_ERR_MALFORMED] = { 400, INVALID, "malformed_request", "The bytes are not a well-formed HTTP request.", false },
    [PD_ERR_TLS] = { 400, INVALID, "tls_required", "HTTP in the clear to a port that speaks TLS.", false },
    [PD_ERR_SESSION] = { 400, INVALID, "session_invalid", "The body is no session, or it was cut or altered; nothing of it is kept.", true },
    [PD_ERR_MANIFEST] = { 400, INVALID, "manifest_invalid", "The manifest has mistakes; `report` lists them, and the one before stays in force.", true },
    [PD_ERR_KEY] = { 401, INVALID, "invalid_api_key", "No API key, or none of this server's (server.api_keys_file). Carries `WWW-Authenticate: Bearer`.", false },
    [PD_ERR_FORBIDDEN] = { 403, INVALID, "admin_forbidden", "Administration, and neither from the admin socket, nor plainly from this machine, nor with a key that may.", true },
    [PD_ERR_HOST] = { 403, "permission_error", "host_not_allowed", "A Host that is neither loopback, nor the address asked at, nor in server.allowed_hosts.", false },
    [PD_ERR_ORIGIN] = { 403, "permission_error", "origin_not_allowed", "Without keys: a POST of a web page whose origin is not in server.cors_origins.", false },
    [PD_ERR_NO_MODEL] = { 404, INVALID, "model_not_found", "No model of that name; the message lists those that are there.", false },
    [PD_ERR_NO_SESSION] = { 404, INVALID, "session_not_found", "Nothing is kept of this session, or nothing that could be gone on from yet.", false },
    [PD_ERR_NO_ROUTE] = { 404, INVALID, NULL, "No such path.", false },
    [PD_ERR_METHOD] = { 405, INVALID, "method_not_allowed", "The path has other methods; the Allow header lists them.", false },
    [PD_ERR_CONFLICT] = { 409, INVALID, "conflict", "It contradicts what is in force; the message says what.", true },
    [PD_ERR_SESSION_OTHER] = { 409, INVALID, "session_mismatch", "The session goes with something else than this model: `param` is what differs (weights, tokenizer, chat_template, rope, vocabulary, layers, heads, window, state, kv.k, kv.v, kv.floor, page_tokens, page_layout, ctx_cap, version).", true },
    [PD_ERR_TIMEOUT] = { 408, INVALID, "request_timeout", "The request did not arrive in time (server.limits).", false },
    [PD_ERR_BODY_SIZE] = { 413, INVALID, "body_too_large", "The body is larger than server.limits.body; a session, than one of this model can be.", false },
    [PD_ERR_URI_SIZE] = { 414, INVALID, "uri_too_long", "The request target is longer than 8,192 bytes.", false },
    [PD_ERR_EXPECT] = { 417, INVALID, "expectation_failed", "An Expect header that is not 100-continue.", false },
    [PD_ERR_HEAD_SIZE] = { 431, INVALID, "headers_too_large", "More than 32 KiB or 100 lines of headers.", false },
    [PD_ERR_QUEUE_FULL] = { 429, "rate_limit_error", "queue_full", "The model's queue is full; Retry-After comes from measured rates.", false },
    [PD_ERR_KEY_BUSY] = { 429, "rate_limit_error", "key_limit", "The API key has all the requests it may have at one time (its max_concurrent).", false, .retry_after_s = 1 },
    [PD_ERR_INTERNAL] = { 500, SERVER, "internal_error", "A bug of this server; the log has the request id.", true },
    [PD_ERR_CODING] = { 501, INVALID, "unsupported_coding", "A Transfer-Encoding that is not chunked.", true },
    [PD_ERR_LOADING] = { 503, SERVER, "model_loading", "The model is being loaded or waits for its turn.", false, .retry_after_s = 2 },
    [PD_ERR_UNAVAILABLE] = { 503, SERVER, "model_unavailable", "The model failed; the message says why.", true, .retry_after_s = 2 },
    [PD_ERR_PINNED] = { 503, SERVER, "would_evict_pinned", "The model is loaded on demand, and would fit if models that are `loaded`, or of a higher priority, gave way: they do not. `need_bytes` and `have_bytes` are beside the message.", true, .retry_after_s = 60 },
    [PD_ERR_DRAINING] = { 503, SERVER, "draining", "The server is stopping.", false, .retry_after_s = 5 },
    [PD_ERR_KEYS] = { 503, SERVER, "keys_unavailable", "The file of API keys cannot be used, so nobody is let in; the log says why.", false, .retry_after_s = 10 },
    [PD_ERR_QUEUE_TIMEOUT] = { 429, "rate_limit_error", "queue_timeout", "The request waited longer than the queue's timeout.", false },
    [PD_ERR_ADMIN_BUSY] = { 503, SERVER, "admin_busy", "Too many administration requests wait, or the loop did not answer.", false, .retry_after_s = 1 },
    [PD_ERR_CONNECTIONS] = { 503, SERVER, "connection_limit", "All connections are in use, or all that one address may have.", false, .retry_after_s = 1 },
    [PD_ERR_MEMORY] = { 503, SERVER, "out_of_memory", "Memory ran out for this request; others go on.", false, .retry_after_s = 1 },
    [PD_ERR_NO_ROOM] = { 503, SERVER, "session_no_room", "There is no KV for the session beside what runs; the message has how much it needs and how much there is.", false, .retry_after_s = 5 },
    [PD_ERR_DEVICE] = { 503, SERVER, "device_error", "The device or the model's file failed under the request.", false, .retry_after_s = 1 },
    [PD_ERR_BACKEND] = { 502, SERVER, "backend_failed", "Of `pantheon router`: the server behind it broke off, or what it says is no HTTP.", false },
    [PD_ERR_BACKEND_TIME] = { 504, SERVER, "backend_timeout", "Of `pantheon router`: the server behind it said nothing in time.", false },
    [PD_ERR_NO_BACKEND] = { 503, SERVER, "no_backend", "Of `pantheon router`: none of the servers behind it that have the model answers.", false, .retry_after_s = 2 },
    [PD_ERR_HTTP_VERSION] = { 505, INVALID, "http_version", "Not HTTP/1.1 or HTTP/1.0.", true },
};

const struct pd_error_row *pd_error_row(enum pd_error_id id) {
    return &rows[id];
}

bool pd_error_set(struct pd_error *x, enum pd_error_id id, const char *param, const char *fmt, ...) {
    *x = (struct pd_error){ .id = id, .retry_after_s = rows[id].retry_after_s };
    if (param) snprintf(x->param, sizeof x->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(x->message, sizeof x->message, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof x->message) { /* cut at a character: the text becomes JSON */
        size_t k = sizeof x->message - 4;
        while (k > 0 && ((unsigned char)x->message[k] & 0xC0) == 0x80) k--;
        memcpy(x->message + k, "...", 4);
    }
    return false;
}

bool pd_error_memory(struct pd_error *x) {
    return pd_error_set(x, PD_ERR_MEMORY, NULL, "There is no memory for this request.");
}

void pd_error_from(struct pd_error *x, const struct fo_err *e, bool draining) {
    static const enum pd_error_id ids[FO_N_CODES] = {
        [FO_OK] = PD_ERR_INTERNAL,
        [FO_EINVAL] = PD_ERR_VALUE,
        [FO_EFORMAT] = PD_ERR_INVALID,
        [FO_EUNSUPPORTED] = PD_ERR_UNSUPPORTED,
        [FO_ENOENT] = PD_ERR_NO_MODEL,
        [FO_EACCES] = PD_ERR_INTERNAL,
        [FO_EIO] = PD_ERR_DEVICE,
        [FO_ENOMEM] = PD_ERR_MEMORY,
        [FO_ELIMIT] = PD_ERR_INVALID,
        [FO_EBUDGET] = PD_ERR_BUDGET,
        [FO_EBUSY] = PD_ERR_QUEUE_FULL,
        [FO_EUNAVAIL] = PD_ERR_UNAVAILABLE,
        [FO_ECANCELLED] = PD_ERR_INTERNAL, /* nobody is left to read it, but for a drain */
        [FO_ETIMEOUT] = PD_ERR_QUEUE_TIMEOUT,
        [FO_ELOST] = PD_ERR_DEVICE,
        [FO_EINTERNAL] = PD_ERR_INTERNAL,
    };
    enum pd_error_id id = (unsigned)e->code < FO_N_CODES ? ids[e->code] : PD_ERR_INTERNAL;
    if (draining && (e->code == FO_EUNAVAIL || e->code == FO_ECANCELLED)) id = PD_ERR_DRAINING;
    pd_error_set(x, id, NULL, "%s", id == PD_ERR_DRAINING ? "The server is stopping; the request was not finished." : e->msg);
}

static json_t *budget_object(const struct pd_error *x) {
    const struct pn_budget *b = x->budget;
    return json_pack("{s:s*, s:I, s:I, s:I, s:I, s:s*, s:I, s:I, s:I, s:I}", "model", x->model, "prompt_tokens", (json_int_t)b->prompt_tokens, "max_tokens",
                     (json_int_t)b->max_tokens, "ctx_cap", (json_int_t)b->ctx_cap, "effective_ctx", (json_int_t)b->effective_ctx, "limited_by",
                     b->limited_by, "kv_bytes_per_token", (json_int_t)b->kv_bytes_per_token, "kv_bytes_needed", (json_int_t)b->kv_bytes_needed,
                     "kv_bytes_available", (json_int_t)b->kv_bytes_available, "max_tokens_that_fit", (json_int_t)b->max_tokens_that_fit);
}

/* What a client wrote is quoted, and cut where it is long: what is no UTF-8 then becomes U+FFFD. NULL without memory. */
static json_t *quoted(const char *text) {
    struct fo_buf clean;
    fo_buf_init(&clean, SIZE_MAX / 2);
    pd_utf8_clean(text, strlen(text), &clean);
    json_t *s = clean.failed ? NULL : json_stringn(fo_buf_str(&clean), clean.len);
    fo_buf_done(&clean);
    return s;
}

void pd_error_json(const struct pd_error *x, const char *request_id, struct fo_buf *out) {
    const struct pd_error_row *row = &rows[x->id];
    json_t *err = json_object(), *text = quoted(x->message), *param = x->param[0] ? quoted(x->param) : NULL;
    json_object_set_new(err, "message", text ? text : json_string("The server has no memory for this text."));
    json_object_set_new(err, "type", json_string(row->type));
    json_object_set_new(err, "param", param ? param : json_null());
    json_object_set_new(err, "code", row->code ? json_string(row->code) : json_null());
    if (x->budget) json_object_set_new(err, "budget", budget_object(x));
    if (x->need_bytes) {
        json_object_set_new(err, "need_bytes", json_integer((json_int_t)x->need_bytes));
        json_object_set_new(err, "have_bytes", json_integer((json_int_t)x->have_bytes));
    }
    if (request_id) json_object_set_new(err, "request_id", json_string(request_id));
    json_t *all = json_pack("{s:o}", "error", err);
    char *dump = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    /* without memory for the object, one that needs none */
    if (dump) fo_buf_puts(out, dump);
    else fo_buf_printf(out, "{\"error\":{\"message\":\"The server has no memory for this answer.\",\"type\":\"%s\",\"param\":null,\"code\":null}}", row->type);
    free(dump);
}

void pd_error_note(const struct pd_error *x, struct pd_call *c) {
    c->note.code = rows[x->id].code ? rows[x->id].code : "null";
    if (rows[x->id].status >= 500) snprintf(c->note.why, sizeof c->note.why, "%.500s", x->message);
}

const char *pd_json_word(const json_t *v) {
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

void pd_json_text(struct fo_buf *out, const char *text, size_t n) {
    size_t plain = 0;
    while (plain < n && (unsigned char)text[plain] >= 0x20 && (unsigned char)text[plain] < 0x7F && text[plain] != '"' && text[plain] != '\\') plain++;
    if (plain == n) { /* most are: no objects for them */
        fo_buf_putc(out, '"');
        fo_buf_append(out, text, n);
        fo_buf_putc(out, '"');
        return;
    }
    json_t *s = json_stringn(text, n);
    char *dump = s ? json_dumps(s, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(s);
    if (dump) fo_buf_puts(out, dump);
    else out->failed = true;
    free(dump);
}

void pd_error_reply(struct pd_call *c, const struct pd_error *x) {
    const struct pd_error_row *row = &rows[x->id];
    struct fo_buf body, head;
    fo_buf_init(&body, 64 * 1024); /* a control character becomes six bytes */
    fo_buf_init(&head, 1024);
    pd_error_json(x, NULL, &body);
    if (x->retry_after_s) fo_buf_printf(&head, "Retry-After: %u\r\n", x->retry_after_s);
    if (row->no_retry) fo_buf_puts(&head, "x-should-retry: false\r\n");
    if (row->status == 401) fo_buf_puts(&head, "WWW-Authenticate: Bearer\r\n");
    if (x->allow) fo_buf_printf(&head, "Allow: %s\r\n", x->allow);
    pd_error_note(x, c);
    char param[sizeof x->param + 16], said[sizeof x->message + 64]; /* both may hold what a client wrote: not for everybody's eyes */
    FO_DEBUGF("http", "event=refusal request=%s status=%d code=%s param=%s message=%s", c->id, row->status, row->code ? row->code : "null",
              pd_log_quote(x->param, param, sizeof param), pd_log_quote(x->message, said, sizeof said));
    static const char none[] = "{\"error\":{\"message\":\"No memory.\",\"type\":\"server_error\",\"param\":null,\"code\":\"out_of_memory\"}}";
    if (body.failed) pd_reply(c, 503, "application/json", NULL, none, sizeof none - 1);
    else pd_reply(c, row->status, "application/json", fo_buf_str(&head), body.data, body.len);
    fo_buf_done(&body);
    fo_buf_done(&head);
}

void pd_json_reply(struct pd_call *c, int status, struct fo_buf *body) {
    if (!body->failed && body->len > 0) {
        pd_reply(c, status, "application/json", NULL, body->data, body->len);
        return;
    }
    struct pd_error x;
    pd_error_set(&x, PD_ERR_MEMORY, NULL, "There is no memory for the answer.");
    pd_error_reply(c, &x);
}

void pd_reply_object(struct pd_call *c, int status, json_t *obj) {
    struct fo_buf out;
    char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
    fo_buf_init(&out, SIZE_MAX / 2);
    if (text) fo_buf_puts(&out, text);
    pd_json_reply(c, status, &out);
    fo_buf_done(&out);
    free(text);
    json_decref(obj);
}
