/* Straight-line code on the connection's thread: choose a backend, ask it, and while it answers, write what comes to the client before more is read.
 *
 * What may be tried again at another backend: a request that could not be sent, one that was refused for now (429, 503), and, once, one whose
 * backend went away before it said anything: it began no answer that anybody saw. One alone, so that a request which kills its backend does not
 * kill the fleet. After the first byte of a head nothing is tried again.
 *
 * An answer that is no stream is held until it is whole, while it is not large: where its backend breaks off, the client gets an error and not
 * half of it. A stream of events that breaks off ends with an error event in the form of its API. */
#include "daemon/router_proxy.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/router.h"
#include "daemon/router_ask.h"
#include "daemon/router_events.h"
#include "daemon/router_head.h"
#include "daemon/sse.h"
#include "foundry/base/buf.h"

enum { WHOLE_BYTES = 1 << 20 /* of an answer that is held */, MAX_REQUEST_LINES = 64 << 10, MAX_DEATHS = 2 /* backends that one request may see die */, MAX_FAILURE = 64 << 10 };

/* An answer as far as it has come. */
struct answer {
    int status; /* 0 = no head yet */
    struct pd_router_answer about;
    struct fo_buf lines, body;
};

struct forward {
    struct pd_router *r;
    struct pd_call *call;
    bool responses; /* the API whose streams have a form of their own */
    struct pd_router_ask ask;
    struct answer now, refused; /* refused: what to say when nobody else takes it; status 0 = nothing */
    struct pd_events events;
    struct fo_buf out;
    enum { WHOLE, EVENTS, PIECES } form;
    bool open; /* the client has the answer's head */
};

static void answer_init(struct answer *a) {
    *a = (struct answer){ 0 };
    fo_buf_init(&a->lines, 2 * PD_MAX_ANSWER_HEAD);
    fo_buf_init(&a->body, WHOLE_BYTES + (64 << 10));
}

static void answer_done(struct answer *a) {
    fo_buf_done(&a->lines);
    fo_buf_done(&a->body);
}

/* --- the way back: calls of hop.h --- */

/* The answer's id is the backend's, so that its log, ours and the client's tell of one request. */
static void take_id(struct pd_call *c, const char *id) {
    size_t n = strlen(id);
    if (n && n < sizeof c->id && strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.") == n) memcpy(c->id, id, n + 1);
}

static const char *type_of(const struct answer *a) {
    return a->about.type[0] ? a->about.type : NULL;
}

static bool open_stream(struct forward *f) {
    take_id(f->call, f->now.about.id);
    f->open = true;
    return pd_stream_open(f->call, f->now.status, type_of(&f->now), fo_buf_str(&f->now.lines));
}

static bool take_head(void *ctx, int status, const char *lines, size_t n) {
    struct forward *f = ctx;
    f->now.status = status;
    pd_router_answer_lines(lines, n, &f->now.about, &f->now.lines);
    f->form = f->now.about.events && status == 200 ? EVENTS : WHOLE;
    return !f->now.lines.failed && (f->form == WHOLE || open_stream(f));
}

static bool take_bytes(void *ctx, const char *bytes, size_t n) {
    struct forward *f = ctx;
    if (f->form == WHOLE && f->now.body.len + n > WHOLE_BYTES) {
        f->form = PIECES;
        if (!open_stream(f) || !pd_stream_write(f->call, fo_buf_str(&f->now.body), f->now.body.len)) return false;
    }
    if (f->form == WHOLE) return fo_buf_append(&f->now.body, bytes, n);
    if (f->form == PIECES) return pd_stream_write(f->call, bytes, n);
    bool ok = pd_events_feed(&f->events, bytes, n, &f->out) && pd_stream_write(f->call, fo_buf_str(&f->out), f->out.len);
    fo_buf_clear(&f->out);
    return ok;
}

static bool go_on(void *ctx) {
    struct forward *f = ctx;
    return !atomic_load(&f->r->cut) && !pd_client_gone(f->call);
}

/* --- the end --- */

/* What the stream's first event says of the Response. */
static void name_response(struct pd_answer *a, const struct pd_events *v) {
    json_t *root = json_loadb(fo_buf_str(&v->first), v->first.len, 0, NULL), *o = json_object_get(root, "response");
    const char *id = pd_json_word(json_object_get(o, "id"));
    if (id && strlen(id) < sizeof a->id && strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(id)) memcpy(a->id, id, strlen(id) + 1);
    if (json_is_integer(json_object_get(o, "created_at"))) a->created = json_integer_value(json_object_get(o, "created_at"));
    a->n_events = v->n;
    json_decref(root);
}

/* The event that ends a stream which broke off, as the server itself would say it. */
static void put_failure(struct forward *f, const struct pd_error *x) {
    struct pd_params p = { 0 };
    struct pd_answer a;
    struct pd_error unused;
    /* another server's request may have fields that ours does not know: then the Response repeats less of it */
    if (!f->responses || !pd_params_parse(PD_API_RESPONSES, f->call->body, f->call->n_body, &p, &unused))
        p = (struct pd_params){ .api = f->responses ? PD_API_RESPONSES : PD_API_CHAT, .sampling = pn_sampling_default };
    pd_answer_init(&a, &p, f->ask.model, MAX_FAILURE);
    if (f->responses) name_response(&a, &f->events);
    a.writer->error(&a, x, f->call->id, &f->out);
    pd_answer_done(&a);
    pd_params_done(&p);
}

/* Ends the answer with an error: as a status while nothing is sent, else by what its form has. */
static void fail(struct forward *f, const struct pd_error *x) {
    if (!f->open) {
        pd_error_reply(f->call, x);
        return;
    }
    pd_error_note(x, f->call);
    f->call->note.verdict = "failed";
    if (f->form == PIECES) {
        pd_stream_cut(f->call);
        return;
    }
    fo_buf_clear(&f->out);
    if (f->events.passing) fo_buf_puts(&f->out, "\n\n"); /* half of it is out: it ends here */
    if (!f->events.ended) put_failure(f, x);
    if (f->out.failed || !pd_stream_write(f->call, fo_buf_str(&f->out), f->out.len)) pd_stream_cut(f->call);
    else pd_stream_close(f->call);
}

static void reply(struct forward *f, const struct answer *a) {
    take_id(f->call, a->about.id);
    pd_reply(f->call, a->status, type_of(a), fo_buf_str(&a->lines), fo_buf_str(&a->body), a->body.len);
}

static void finish(struct forward *f) {
    if (f->form == WHOLE) {
        reply(f, &f->now);
        return;
    }
    pd_events_finish(&f->events, &f->out);
    if (pd_stream_write(f->call, fo_buf_str(&f->out), f->out.len)) pd_stream_close(f->call);
}

/* What came of a try, in words for the client. */
static void explain(const struct forward *f, const struct pd_backend *b, enum pd_hop_end end, const char *why, struct pd_error *x) {
    bool begun = f->now.status != 0;
    switch (end) {
    case PD_HOP_NO_HEAD:
    case PD_HOP_SILENT: pd_error_set(x, PD_ERR_BACKEND_TIME, NULL, "The backend %.100s %s: %s (%s).", b->name, begun ? "fell silent in its answer" : "did not begin to answer", why, begun ? "--idle-timeout" : "--head-timeout"); break;
    case PD_HOP_UNREACHED: pd_error_set(x, PD_ERR_NO_BACKEND, NULL, "The backend %.100s cannot be reached: %s.", b->name, why); break;
    case PD_HOP_NO_HTTP: pd_error_set(x, PD_ERR_BACKEND, NULL, "What the backend %.100s says is no answer: %s.", b->name, why); break;
    case PD_HOP_NO_MEMORY: pd_error_memory(x); break;
    case PD_HOP_STOPPED: pd_error_set(x, PD_ERR_DRAINING, NULL, "The server is stopping; the request was not finished."); break;
    case PD_HOP_DONE:
    case PD_HOP_DIED:
    case PD_HOP_BROKE: pd_error_set(x, PD_ERR_BACKEND, NULL, "The backend %.100s broke off %s: %s.", b->name, begun ? "in its answer" : "before it answered", why); break;
    }
}

/* --- the way there --- */

static enum pd_hop_end try(struct forward *f, struct pd_backend *b, char why[PD_HOP_WHY]) {
    struct pd_router *r = f->r;
    const struct pd_head *head = f->call->head;
    struct pd_via via = { .client = f->call->client, .id = f->call->id, .bearer = r->pass_keys ? NULL : r->bearer };
    struct fo_buf lines, path;
    fo_buf_init(&lines, MAX_REQUEST_LINES);
    fo_buf_init(&path, 2 * PD_MAX_URI_BYTES);
    pd_router_request_lines(head, &via, &lines);
    fo_buf_printf(&path, "%s%s%s", head->path, *head->query ? "?" : "", head->query);
    struct pd_hop h = { .method = "POST", .path = fo_buf_str(&path), .lines = fo_buf_str(&lines), .body = f->call->body, .n_body = f->call->n_body,
                        .connect_ms = r->connect_ms, .head_ms = r->head_ms, .idle_ms = r->idle_ms, .head = take_head, .bytes = take_bytes, .go_on = go_on, .ctx = f };
    snprintf(why, PD_HOP_WHY, "no memory for the request");
    enum pd_hop_end end = lines.failed || path.failed ? PD_HOP_NO_MEMORY : pd_hop_run(&b->lanes, &h, why);
    fo_buf_done(&lines);
    fo_buf_done(&path);
    return end;
}

static bool is_refusal(const struct answer *a) {
    return a->status == 429 || a->status == 503;
}

static enum pd_try try_of(const struct forward *f, enum pd_hop_end end) {
    switch (end) {
    case PD_HOP_UNREACHED: return PD_TRY_UNREACHED;
    case PD_HOP_DIED: return PD_TRY_DIED;
    case PD_HOP_NO_HTTP:
    case PD_HOP_BROKE: return PD_TRY_BROKE;
    case PD_HOP_NO_HEAD:
    case PD_HOP_SILENT: return PD_TRY_TIMEOUT;
    case PD_HOP_NO_MEMORY:
    case PD_HOP_STOPPED: return PD_TRY_LEFT;
    case PD_HOP_DONE: break;
    }
    return is_refusal(&f->now) ? PD_TRY_REFUSED : PD_TRY_ANSWERED;
}

/* Tries backends until one answers, and passes its answer on. */
static void forward(struct forward *f) {
    struct pd_router *r = f->r;
    struct pd_error x;
    uint64_t tried = 0;
    int deaths = 0;
    struct pd_backend *b = pd_router_choose(r, f->ask.model, f->ask.key, tried, &x);
    if (!b) {
        pd_error_reply(f->call, &x);
        return;
    }
    for (;;) {
        char why[PD_HOP_WHY];
        f->call->note.backend = b->name;
        f->call->note.tries++;
        enum pd_hop_end end = try(f, b, why);
        enum pd_try how = try_of(f, end);
        deaths += how == PD_TRY_DIED;
        tried |= UINT64_C(1) << (b - r->list);
        struct pd_error none;
        bool again = how == PD_TRY_UNREACHED || how == PD_TRY_REFUSED || (how == PD_TRY_DIED && deaths < MAX_DEATHS);
        struct pd_backend *next = again ? pd_router_choose(r, f->ask.model, f->ask.key, tried, &none) : NULL;
        pd_router_end(r, b, how, f->now.status, why, next != NULL);
        if (end == PD_HOP_STOPPED && !atomic_load(&r->cut)) {
            f->call->note.verdict = "client_left"; /* or takes nothing any more: there is nobody to tell */
            if (f->open) pd_stream_cut(f->call);
            return;
        }
        if (!next) {
            if (end == PD_HOP_DONE) finish(f);
            else if (f->refused.status) reply(f, &f->refused);
            else explain(f, b, end, why, &x), fail(f, &x);
            return;
        }
        if (how == PD_TRY_REFUSED) {
            answer_done(&f->refused);
            f->refused = f->now;
        } else {
            answer_done(&f->now);
        }
        answer_init(&f->now);
        b = next;
    }
}

/* Nothing that another server could read as a way out of /v1. */
static bool is_plain(const char *path) {
    size_t n = strlen(path);
    if (strpbrk(path, "\\#?") || strstr(path, "//") || *path == '/' || strstr(path, "..")) return false;
    return strncmp(path, "./", 2) != 0 && !strstr(path, "/./") && !(n && path[n - 1] == '.' && (n == 1 || path[n - 2] == '/'));
}

void pd_router_forward(struct pd_app *app, struct pd_call *c, const char *param) {
    struct forward f = { .r = (struct pd_router *)app, .call = c, .responses = strcmp(param, "responses") == 0 };
    const char *whose = c->note.key[0] ? c->note.key : pd_head_get(c->head, "authorization");
    struct pd_error x;
    answer_init(&f.now);
    answer_init(&f.refused);
    pd_events_init(&f.events);
    fo_buf_init(&f.out, 2 * (size_t)PD_MAX_EVENT_BYTES);
    if (!is_plain(param)) {
        pd_error_set(&x, PD_ERR_NO_ROUTE, NULL, "There is no path '%.200s' here.", c->head->path);
        pd_error_reply(c, &x);
    } else if (!pd_router_ask(c->head, c->body, c->n_body, whose ? whose : "", &f.ask, &x)) {
        pd_error_reply(c, &x);
    } else {
        snprintf(c->note.model, sizeof c->note.model, "%.127s", f.ask.model);
        forward(&f);
    }
    pd_body_done(&f.ask.body);
    answer_done(&f.now);
    answer_done(&f.refused);
    pd_events_done(&f.events);
    fo_buf_done(&f.out);
}
