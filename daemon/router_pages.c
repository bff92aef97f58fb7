/* See router_pages.h. What is open to everybody (/health, /ready) names no backend: where they are is nobody's business outside. */
#include "daemon/router_pages.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

#include "daemon/oai.h"
#include "daemon/router.h"
#include "daemon/router_metrics.h"
#include "daemon/router_models.h"
#include "daemon/router_proxy.h"
#include "daemon/routes.h"
#include "engine/version.h"
#include "foundry/base/buf.h"

enum { MAX_PAGE = 64 << 20 };

static json_t *backend_object(const struct pd_backend *b) {
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:b, s:I}", "url", b->name, "status", pd_health_name(b->health.state), "in_progress", (json_int_t)b->load, "models",
                          (json_int_t)(b->models ? b->models->n : 0), "keeps_its_list", b->any, "downs", (json_int_t)b->health.downs);
    if (b->health.state == PD_HEALTH_DOWN) json_object_set_new(o, "reason", json_string(b->health.why));
    return o;
}

static void get_root(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_router *r = (struct pd_router *)app;
    (void)param;
    json_t *list = json_array();
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) json_array_append_new(list, backend_object(&r->list[i]));
    pthread_mutex_unlock(&r->lock);
    pd_reply_object(c, 200, json_pack("{s:s, s:s, s:s, s:o}", "name", "pantheon router", "version", pn_version(), "build", pn_build(), "backends", list));
}

static size_t up(struct pd_router *r) {
    size_t n = 0;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) n += r->list[i].health.state == PD_HEALTH_UP;
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void get_health(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_router *r = (struct pd_router *)app;
    (void)param;
    pd_reply_object(c, 200, json_pack("{s:s, s:I, s:I, s:I, s:I}", "status", atomic_load(&app->draining) ? "draining" : "ok", "uptime_seconds", (json_int_t)(time(NULL) - app->started_at), "connections",
                       (json_int_t)pd_http_connections(app->http), "backends", (json_int_t)r->n, "backends_up", (json_int_t)up(r)));
}

static void get_ready(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_router *r = (struct pd_router *)app;
    struct pd_error x;
    size_t n = up(r);
    (void)param;
    if (n && !atomic_load(&app->draining)) {
        pd_reply_object(c, 200, json_pack("{s:s, s:I, s:I}", "status", "ready", "backends", (json_int_t)r->n, "backends_up", (json_int_t)n));
        return;
    }
    if (n) pd_error_set(&x, PD_ERR_DRAINING, NULL, "The server is stopping.");
    else pd_error_set(&x, PD_ERR_NO_BACKEND, NULL, "None of %zu backends can be asked.", r->n);
    pd_error_reply(c, &x);
}

static void get_models(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_router *r = (struct pd_router *)app;
    struct pd_source s[PD_MAX_BACKENDS];
    struct fo_buf out;
    (void)param;
    size_t n = pd_router_sources(r, s);
    fo_buf_init(&out, MAX_PAGE);
    pd_models_merge(s, n, &out);
    pd_router_sources_put(s, n);
    pd_json_reply(c, 200, &out);
    fo_buf_done(&out);
}

static void get_model(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_router *r = (struct pd_router *)app;
    struct pd_source s[PD_MAX_BACKENDS];
    struct fo_buf out;
    struct pd_error x;
    size_t n = pd_router_sources(r, s);
    fo_buf_init(&out, MAX_PAGE);
    if (pd_models_merge_one(s, n, param, &out)) {
        pd_json_reply(c, 200, &out);
    } else {
        pd_router_unknown(r, param, &x);
        pd_error_reply(c, &x);
    }
    pd_router_sources_put(s, n);
    fo_buf_done(&out);
}

static void refuse_admin(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_error x;
    (void)app, (void)param;
    pd_error_set(&x, PD_ERR_FORBIDDEN, NULL, "The router passes no administration on: each server behind it is administered by itself, at its admin socket or its own address.");
    pd_error_reply(c, &x);
}

static const struct pd_route routes[] = {
    { "GET", "/", get_root, true, .doc = "The backends: whether each is up, why not, what it does now." },
    { "GET", "/health", get_health, true, .doc = "That the process answers, and how many backends are up.", .polled = true },
    { "GET", "/ready", get_ready, true, .doc = "200 while one backend at the least is up, else 503 with the reason.", .polled = true },
    { "GET", "/metrics", pd_router_metrics, true, .doc = "For Prometheus: the metrics below.", .polled = true },
    { "GET", "/v1/models", get_models, false, .doc = "The models of all backends, each once; `backends` says who has it, and whether it serves there." },
    { "GET", "/v1/models/{id}", get_model, false, .doc = "One of them, by id or alias." },
    { "POST", "/v1/{path}", pd_router_forward, false, .doc = "Passed on by the body's `model`." },
    { "POST", "/tokenize", pd_router_forward, false, .doc = "The same." },
    { "POST", "/detokenize", pd_router_forward, false, .doc = "The same." },
    { "POST", "/apply-template", pd_router_forward, false, .doc = "The same." },
    { "GET", "/admin/{path}", refuse_admin, true, .doc = "403: administration is each server's own." },
    { "POST", "/admin/{path}", refuse_admin, true, .doc = "403: administration is each server's own." },
    { 0 },
};

const struct pd_route *pd_router_routes(void) {
    return routes;
}

void pd_router_dispatch(void *ctx, struct pd_call *c) {
    pd_dispatch_by(routes, ctx, c);
}
