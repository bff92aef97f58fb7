/* GET / and GET /health: what is running, from snapshots only. */
#include <jansson.h>
#include <time.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "foundry/device.h"

/* "ready", "failed", ...: what the loader reached, unless the model failed since. */
static const char *status_of(struct pd_app *app, size_t i, struct pn_served_status *ret, bool *ret_has) {
    struct pd_entry e = pd_app_entry(app, i);
    struct pn_served *s = e.state == PD_MODEL_READY ? pn_engine_get(app->engine, e.decl->name) : NULL;
    *ret_has = s != NULL;
    if (!s) return e.state == PD_MODEL_READY ? "failed" : pd_model_state_name(e.state);
    pn_served_status(s, ret);
    pn_served_put(s);
    return ret->ready ? "ready" : "failed";
}

void pd_get_root(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    json_t *models = json_array();
    for (size_t i = 0; i < app->manifest->n_models; i++) {
        struct pn_served_status st;
        bool has;
        json_array_append_new(models, json_pack("{s:s, s:s}", "id", app->manifest->models[i].name, "status", status_of(app, i, &st, &has)));
    }
    pd_reply_object(c, 200, json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", "pantheon", "version", pn_version(), "build", pn_build(), "backend", fo_device_build_backend(), "models",
                       models));
}

void pd_get_health(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    json_t *models = json_array();
    for (size_t i = 0; i < app->manifest->n_models; i++) {
        struct pn_served_status st;
        bool has;
        const char *status = status_of(app, i, &st, &has);
        json_t *m = json_pack("{s:s, s:s}", "id", app->manifest->models[i].name, "status", status);
        if (has) {
            json_t *more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "running", (json_int_t)st.running, "queued", (json_int_t)st.queued, "requests",
                                     (json_int_t)st.requests, "refused", (json_int_t)st.refused, "failed", (json_int_t)st.failed, "cancelled",
                                     (json_int_t)st.cancelled, "tokens_prefilled", (json_int_t)st.tokens_prefilled, "tokens_decoded",
                                     (json_int_t)st.tokens_decoded, "heartbeat", (json_int_t)st.heartbeat);
            json_object_update(m, more);
            json_decref(more);
        }
        json_array_append_new(models, m);
    }
    pd_reply_object(c, 200, json_pack("{s:s, s:I, s:I, s:o}", "status", atomic_load(&app->draining) ? "draining" : "ok", "uptime_seconds",
                       (json_int_t)(time(NULL) - app->started_at), "connections", (json_int_t)pd_http_connections(app->http), "models", models));
}
