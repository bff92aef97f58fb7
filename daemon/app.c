/* The shared state of the daemon: see app.h. */
#include "daemon/app.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "config/manifest.h"
#include "daemon/oai.h"
#include "engine/engine.h"
#include "foundry/base/buf.h"

struct pd_entry pd_app_entry(struct pd_app *app, size_t i) {
    pthread_mutex_lock(&app->lock);
    struct pd_entry e = app->entries[i];
    pthread_mutex_unlock(&app->lock);
    return e;
}

void pd_app_set(struct pd_app *app, size_t i, enum pd_model_state state, const char *reason) {
    pthread_mutex_lock(&app->lock);
    struct pd_entry *e = &app->entries[i];
    e->state = state;
    e->since = time(NULL);
    snprintf(e->reason, sizeof e->reason, "%s", reason ? reason : "");
    pthread_mutex_unlock(&app->lock);
}

const char *pd_model_state_name(enum pd_model_state s) {
    static const char *const names[] = { "waiting", "loading", "ready", "failed" };
    return names[s];
}

long pd_app_index(const struct pd_app *app, const char *name) {
    for (size_t i = 0; i < app->manifest->n_models; i++) {
        const struct cf_model *m = &app->manifest->models[i];
        if (strcmp(m->name, name) == 0) return (long)i;
        for (size_t k = 0; k < m->n_aliases; k++)
            if (strcmp(m->aliases[k], name) == 0) return (long)i;
    }
    return -1;
}

static bool not_found(const struct pd_app *app, const char *name, struct pd_error *x) {
    struct fo_buf list;
    fo_buf_init(&list, 400); /* the message is bounded; more names than fit are left out */
    for (size_t i = 0; i < app->manifest->n_models && !list.failed; i++)
        fo_buf_printf(&list, "%s%s", i ? ", " : "", app->manifest->models[i].name);
    pd_error_set(x, PD_ERR_NO_MODEL, "model", "The model '%.100s' does not exist here. %s%s%s", name, list.len ? "There is: " : "No model is declared",
                 fo_buf_str(&list), list.failed ? ", ..." : ".");
    fo_buf_done(&list);
    return false;
}

bool pd_app_find(struct pd_app *app, const char *name, struct pn_served **ret, const struct cf_model **ret_decl, struct pd_error *x) {
    long i = pd_app_index(app, name);
    if (i < 0) return not_found(app, name, x);
    struct pd_entry e = pd_app_entry(app, (size_t)i);
    switch (e.state) {
    case PD_MODEL_WAITING:
    case PD_MODEL_LOADING:
        pd_error_set(x, PD_ERR_LOADING, "model", "The model '%s' is %s; it will serve when that is done.", e.decl->name,
                     e.state == PD_MODEL_LOADING ? "being loaded" : "waiting for the models before it to load");
        x->retry_after_s = e.state == PD_MODEL_LOADING ? 2 : 5;
        return false;
    case PD_MODEL_FAILED:
        pd_error_set(x, PD_ERR_UNAVAILABLE, "model", "The model '%s' failed to load: %s", e.decl->name, e.reason);
        x->retry_after_s = 60;
        return false;
    case PD_MODEL_READY:
        break;
    }
    struct pn_served *s = pn_engine_get(app->engine, e.decl->name);
    if (!s) {
        pd_error_set(x, PD_ERR_UNAVAILABLE, "model", "The model '%s' is not in the engine any more.", e.decl->name);
        x->retry_after_s = 60;
        return false;
    }
    *ret = s;
    *ret_decl = e.decl;
    return true;
}
