/* GET /admin/events and /admin/plan: what happened, and what is being done about the manifest. */
#include "daemon/api_events.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "daemon/sse.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"

enum {
    SLICE_MS = 250,        /* how often a stream looks whether its client is still there */
    PING_MS = 10 * 1000,   /* it is silent no longer than this */
    USUAL_EVENTS = 100,    /* of an answer without `limit` */
    EVENT_BYTES = 16 * 1024
};

json_t *pd_event_object(const struct pd_event *ev) {
    json_t *o = json_pack("{s:I, s:I, s:s, s:s}", "seq", (json_int_t)ev->seq, "time", (json_int_t)ev->time, "event", pd_event_kind(ev->id)->name, "text", ev->text);
    if (o && *ev->model) json_object_set_new(o, "model", json_string(ev->model));
    if (o && *ev->who) json_object_set_new(o, "who", json_string(ev->who));
    if (o && pd_event_kind(ev->id)->bad) json_object_set_new(o, "bad", json_true());
    return o;
}

/* A number of the query; false after the error was answered. */
static bool number_of(struct pd_call *c, const char *key, uint64_t most, uint64_t *ret) {
    char value[24];
    struct pd_error x;
    if (!pd_query_get(c->head->query, key, value, sizeof value)) return true;
    char *end;
    uint64_t n = *value >= '0' && *value <= '9' ? strtoull(value, &end, 10) : UINT64_MAX;
    if (n <= most && *end == '\0') {
        *ret = n;
        return true;
    }
    pd_error_set(&x, PD_ERR_INVALID, key, "%s takes a number from 0 to %llu.", key, (unsigned long long)most);
    pd_error_reply(c, &x);
    return false;
}

bool pd_stream_event(struct pd_call *c, const struct pd_event *ev) {
    struct fo_buf out;
    json_t *o = pd_event_object(ev);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    fo_buf_init(&out, EVENT_BYTES);
    if (text) fo_buf_printf(&out, "id: %llu\nevent: %s\ndata: %s\n\n", (unsigned long long)ev->seq, pd_event_kind(ev->id)->name, text);
    free(text);
    bool ok = out.len > 0 && !out.failed && pd_stream_write(c, out.data, out.len);
    fo_buf_done(&out);
    return ok;
}

bool pd_stream_begin(struct pd_call *c) {
    return pd_stream_open(c, 200, PD_SSE_TYPE, PD_SSE_HEADERS) && strcmp(c->head->method, "HEAD") != 0;
}

/* Those there are, then each as it happens, until the client leaves or the server stops. */
static void stream_events(struct pd_app *app, struct pd_call *c, uint64_t after, const char *model) {
    uint64_t said = fo_now_ms();
    struct pd_event ev;
    bool ok = pd_stream_begin(c);
    while (ok && !pd_client_gone(c)) {
        bool last = atomic_load(&app->draining);
        uint64_t newest = pd_app_last_event(app);
        for (; ok && pd_app_next_event(app, after, model, &ev) && ev.seq <= newest; after = ev.seq, said = fo_now_ms()) ok = pd_stream_event(c, &ev);
        if (last) break;
        if (newest > after) after = newest; /* what is of other models counts as seen */
        if (ok && fo_now_ms() - said >= PING_MS) {
            ok = pd_stream_write(c, PD_SSE_PING, sizeof PD_SSE_PING - 1);
            said = fo_now_ms();
        }
        if (ok) pd_view_put(pd_app_wait(app, UINT64_MAX, false, after, SLICE_MS));
    }
    pd_stream_close(c);
}

bool pd_wants_stream(const struct pd_call *c) {
    const char *accept = pd_head_get(c->head, "accept");
    return accept && strstr(accept, "text/event-stream");
}

void pd_get_admin_events(struct pd_app *app, struct pd_call *c, const char *param) {
    char model[128] = "";
    uint64_t since = 0, limit = USUAL_EVENTS;
    struct pd_event ev;
    (void)param;
    bool paged = pd_query_get(c->head->query, "since", model, sizeof model);
    bool one = pd_query_get(c->head->query, "model", model, sizeof model);
    if (!number_of(c, "since", INT64_MAX, &since) || !number_of(c, "limit", PD_MAX_EVENTS, &limit)) return;
    if (pd_wants_stream(c)) {
        const char *last = pd_head_get(c->head, "last-event-id"); /* where a client that comes back was */
        if (last && *last && strspn(last, "0123456789") == strlen(last) && strlen(last) < 20) since = strtoull(last, NULL, 10);
        stream_events(app, c, since, one ? model : NULL);
        return;
    }
    json_t *list = json_array();
    uint64_t newest = pd_app_last_event(app);
    for (uint64_t after = since; pd_app_next_event(app, after, one ? model : NULL, &ev); after = ev.seq) {
        if (paged && json_array_size(list) >= limit) break;
        json_array_append_new(list, pd_event_object(&ev));
        if (json_array_size(list) > limit) json_array_remove(list, 0);
    }
    pd_reply_object(c, 200, json_pack("{s:o, s:I, s:I}", "events", list, "oldest", (json_int_t)(newest < PD_MAX_EVENTS ? newest > 0 : newest - PD_MAX_EVENTS + 1), "newest", (json_int_t)newest));
}

const char *pd_step_result_name(const struct pd_performed *d) {
    return d->result == PD_STEP_RUNS ? "running" : d->result == PD_STEP_DONE ? "done" : "failed";
}

static json_t *performed_object(const struct pd_performed *d) {
    json_t *o = json_pack("{s:I, s:s, s:s, s:I, s:s, s:s}", "time", (json_int_t)d->at, "step", d->step, "model", d->model, "replica", (json_int_t)d->replica, "why", d->why, "result", pd_step_result_name(d));
    if (o && d->result != PD_STEP_RUNS) json_object_set_new(o, "ms", json_integer((json_int_t)d->took_ms));
    if (o && *d->error) json_object_set_new(o, "error", json_string(d->error));
    return o;
}

void pd_get_admin_plan(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_view *v = pd_app_view(app);
    json_t *performed = json_array(), *plan = v->plan_json ? json_loads(v->plan_json, 0, NULL) : json_null();
    for (size_t i = 0; i < v->n_performed; i++) json_array_append_new(performed, performed_object(&v->performed[i]));
    json_t *o = json_pack("{s:I, s:I, s:I, s:b, s:o, s:s, s:o}", "generation", (json_int_t)v->manifest->generation, "observed_generation", (json_int_t)v->observed_generation, "made_at", (json_int_t)v->plan_at,
                          "settled", v->settled, "plan", plan, "text", v->plan_text ? v->plan_text : "", "performed", performed);
    pd_view_put(v);
    pd_reply_object(c, 200, o);
}
