/* GET /, /health and /ready: what is running, from snapshots only. */
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/page.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "foundry/device.h"

void pd_get_root(struct pd_app *app, struct pd_call *c, const char *param) {
    const char *accept = pd_head_get(c->head, "accept");
    (void)param;
    if (accept && strstr(accept, "text/html")) {
        pd_page_reply(app, c);
        return;
    }
    struct pd_view *v = pd_app_view(app);
    json_t *models = json_array();
    for (size_t i = 0; i < v->n; i++)
        json_array_append_new(models, json_pack("{s:s, s:s}", "id", v->entries[i].decl->name, "status", pd_model_state_name(v->entries[i].state)));
    pd_view_put(v);
    pd_reply_object(c, 200, json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", "pantheon", "version", pn_version(), "build", pn_build(), "backend", fo_device_build_backend(), "models",
                       models));
}

/* The counters of all copies of a model. */
static void add_counters(struct pd_app *app, const struct pd_view *v, const char *name, json_t *m) {
    json_int_t running = 0, queued = 0, requests = 0, refused = 0, failed = 0, cancelled = 0, prefilled = 0, decoded = 0, heartbeat = 0;
    bool has = false;
    for (size_t i = 0; i < v->facts->n_instances; i++) {
        const struct cf_instance *inst = &v->facts->instances[i];
        struct pn_served *s = strcmp(inst->name, name) == 0 ? pn_engine_get_replica(app->engine, name, (uint32_t)inst->replica) : NULL;
        struct pn_served_status st;
        if (!s) continue;
        pn_served_status(s, &st);
        pn_served_put(s);
        has = true;
        running += st.running;
        queued += st.queued;
        requests += (json_int_t)st.requests;
        refused += (json_int_t)st.refused;
        failed += (json_int_t)st.failed;
        cancelled += (json_int_t)st.cancelled;
        prefilled += (json_int_t)st.tokens_prefilled;
        decoded += (json_int_t)st.tokens_decoded;
        heartbeat += (json_int_t)st.heartbeat;
    }
    if (!has) return;
    json_t *more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "running", running, "queued", queued, "requests", requests, "refused", refused, "failed", failed,
                             "cancelled", cancelled, "tokens_prefilled", prefilled, "tokens_decoded", decoded, "heartbeat", heartbeat);
    json_object_update(m, more);
    json_decref(more);
}

void pd_get_health(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_view *v = pd_app_view(app);
    json_t *models = json_array();
    for (size_t i = 0; i < v->n; i++) {
        const char *name = v->entries[i].decl->name;
        json_t *m = json_pack("{s:s, s:s}", "id", name, "status", pd_model_state_name(v->entries[i].state));
        add_counters(app, v, name, m);
        json_array_append_new(models, m);
    }
    pd_view_put(v);
    pd_reply_object(c, 200, json_pack("{s:s, s:I, s:I, s:o}", "status", atomic_load(&app->draining) ? "draining" : "ok", "uptime_seconds",
                       (json_int_t)(time(NULL) - app->started_at), "connections", (json_int_t)pd_http_connections(app->http), "models", models));
}

void pd_get_ready(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_view *v = pd_app_view(app);
    size_t declared = 0, serving = 0, on_demand = 0;
    const struct pd_entry *not_serving = NULL;
    for (size_t i = 0; i < v->n; i++) {
        if (!v->entries[i].declared || v->entries[i].state == PD_MODEL_ABSENT) continue;
        declared++;
        if (v->entries[i].state == PD_MODEL_READY) serving++;
        else if (pd_entry_comes(&v->entries[i])) on_demand++;
        else if (!not_serving) not_serving = &v->entries[i];
    }
    bool draining = atomic_load(&app->draining), ready = !draining && v->first_pass_over && (serving + on_demand > 0 || declared == 0);
    if (ready) {
        pd_reply_object(c, 200, json_pack("{s:s, s:I, s:I, s:I}", "status", "ready", "serving", (json_int_t)serving, "on_demand", (json_int_t)on_demand, "declared", (json_int_t)declared));
    } else {
        struct pd_error x;
        if (draining) pd_error_set(&x, PD_ERR_DRAINING, NULL, "The server is stopping.");
        else if (!v->first_pass_over) pd_error_set(&x, PD_ERR_LOADING, NULL, "The first pass over the manifest is not done: %zu of %zu models serve.", serving, declared);
        else pd_error_set(&x, PD_ERR_UNAVAILABLE, NULL, "None of %zu declared models serves; '%s' is %s: %.400s", declared, not_serving->decl->name,
                          pd_model_state_name(not_serving->state), not_serving->reason);
        pd_error_reply(c, &x);
    }
    pd_view_put(v);
}
