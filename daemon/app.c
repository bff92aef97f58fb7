/* The shared state of the daemon: see app.h. */
#include "daemon/app.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/log.h"
#include "daemon/oai.h"
#include "engine/engine.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

enum { MAX_RETRY_AFTER_S = 120 }; /* what clients' libraries wait; of more they take none */

int pd_app_init(struct pd_app *app, struct fo_err *e) {
    pthread_condattr_t attr;
    *app = (struct pd_app){ .started_at = time(NULL), .next_ask = 1, .next_event = 1 };
    app->asks_end = &app->asks;
    pthread_mutex_init(&app->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&app->changed, &attr);
    pthread_condattr_destroy(&attr);
    app->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return app->bell < 0 ? fo_fail_errno(e, errno, "eventfd") : FO_OK;
}

void pd_app_done(struct pd_app *app) {
    for (struct pd_ask *a = pd_app_take_asks(app), *next; a; a = next) {
        next = a->next;
        pd_ask_free(a);
    }
    pd_view_put(app->view);
    if (app->bell >= 0) close(app->bell);
    pthread_cond_destroy(&app->changed);
    pthread_mutex_destroy(&app->lock);
}

/* --- views --- */

void pd_counted_manifest_put(struct pd_counted_manifest *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1) return;
    cf_manifest_free(m->m);
    free(m);
}

void pd_view_put(struct pd_view *v) {
    if (!v || atomic_fetch_sub(&v->refs, 1) != 1) return;
    cf_facts_free(v->facts);
    pd_counted_manifest_put(v->manifest);
    free(v->entries);
    free(v->report);
    free(v->sensors);
    free(v->plan_json);
    free(v->plan_text);
    free(v);
}

struct pd_view *pd_app_view(struct pd_app *app) {
    pthread_mutex_lock(&app->lock);
    struct pd_view *v = app->view;
    if (v) atomic_fetch_add(&v->refs, 1);
    pthread_mutex_unlock(&app->lock);
    return v;
}

struct pd_view *pd_app_wait(struct pd_app *app, uint64_t seq, bool settled, uint64_t event, int timeout_ms) {
    struct timespec until = fo_deadline(timeout_ms);
    pthread_mutex_lock(&app->lock);
    while (!(app->view && app->view->asked >= seq && (!settled || app->view->settled)) && !(event && app->next_event > event + 1))
        if (pthread_cond_timedwait(&app->changed, &app->lock, &until)) break;
    struct pd_view *v = app->view;
    if (v) atomic_fetch_add(&v->refs, 1);
    pthread_mutex_unlock(&app->lock);
    return v;
}

void pd_app_publish(struct pd_app *app, struct pd_view *v) {
    atomic_init(&v->refs, 1);
    pthread_mutex_lock(&app->lock);
    struct pd_view *old = app->view;
    app->view = v;
    pthread_cond_broadcast(&app->changed);
    pthread_mutex_unlock(&app->lock);
    pd_view_put(old);
}

/* --- asks --- */

void pd_ask_free(struct pd_ask *a) {
    if (!a) return;
    free(a->name);
    cf_model_free(a->spec);
    free(a);
}

static int queue_ask(struct pd_app *app, enum pd_ask_kind kind, const char *name, struct cf_model *spec, const char *who, bool wake, uint64_t *ret_seq, struct fo_err *e) {
    struct pd_ask *a = calloc(1, sizeof *a);
    if (!a) {
        cf_model_free(spec);
        return fo_fail(e, FO_ENOMEM, "no memory for the request");
    }
    *a = (struct pd_ask){ .kind = kind, .name = name ? strdup(name) : NULL, .spec = spec };
    snprintf(a->who, sizeof a->who, "%s", who);
    if (name && !a->name) {
        pd_ask_free(a);
        return fo_fail(e, FO_ENOMEM, "no memory for the request");
    }
    pthread_mutex_lock(&app->lock);
    bool full = app->n_asks == PD_MAX_ASKS;
    if (!full) {
        *ret_seq = a->seq = app->next_ask++;
        *app->asks_end = a;
        app->asks_end = &a->next;
        app->n_asks++;
    }
    pthread_mutex_unlock(&app->lock);
    if (full) {
        pd_ask_free(a);
        return fo_fail_need(e, FO_EBUSY, PD_MAX_ASKS + 1, PD_MAX_ASKS, "too many administration requests wait");
    }
    uint64_t one = 1;
    if (wake && write(app->bell, &one, sizeof one) < 0) FO_DEBUGF("reconcile", "event=bell_full");
    return FO_OK;
}

int pd_app_ask(struct pd_app *app, enum pd_ask_kind kind, const char *name, struct cf_model *spec, const char *who, uint64_t *ret_seq, struct fo_err *e) {
    return queue_ask(app, kind, name, spec, who, true, ret_seq, e);
}

/* Unless it is queued already. */
static void queue_once(struct pd_app *app, enum pd_ask_kind kind, const char *name, bool wake) {
    struct fo_err ignored; /* who is told to come back asks again */
    uint64_t seq;
    bool there = false;
    pthread_mutex_lock(&app->lock);
    for (const struct pd_ask *a = app->asks; a && !there; a = a->next) there = a->kind == kind && strcmp(a->name, name) == 0;
    pthread_mutex_unlock(&app->lock);
    if (!there) (void)queue_ask(app, kind, name, NULL, "", wake, &seq, &ignored);
}

void pd_app_want(struct pd_app *app, const struct pd_entry *e) {
    if (e->decl->state != CF_STATE_ON_DEMAND || e->state == PD_MODEL_HELD || e->state == PD_MODEL_LEAVING) return;
    queue_once(app, PD_ASK_WANT, e->decl->name, !e->wanted);
}

struct pd_ask *pd_app_take_asks(struct pd_app *app) {
    pthread_mutex_lock(&app->lock);
    struct pd_ask *list = app->asks;
    app->asks = NULL;
    app->asks_end = &app->asks;
    app->n_asks = 0;
    pthread_mutex_unlock(&app->lock);
    return list;
}

/* --- words --- */

const char *pd_model_state_name(enum pd_model_state s) {
    static const char *const names[] = { "waiting", "loading", "ready", "failed", "refused", "held", "absent", "on_demand", "leaving" };
    return names[s];
}

const char *pd_condition_name(enum pd_condition_id id) {
    static const char *const names[PD_N_CONDITIONS] = { "Ready", "Loaded", "Placed", "Current", "Degraded", "Healthy", "Fetched", "Chat" };
    return names[id];
}

const char *pd_server_condition_name(enum pd_server_condition_id id) {
    static const char *const names[PD_N_SERVER_CONDITIONS] = { "ManifestValid", "Reconciled", "Draining", "KeysValid", "TlsValid" };
    return names[id];
}

/* --- finding a model --- */

const struct pd_entry *pd_view_find(const struct pd_view *v, const char *name) {
    for (size_t i = 0; i < v->n; i++) {
        const struct cf_model *m = v->entries[i].decl;
        if (strcmp(m->name, name) == 0) return &v->entries[i];
        for (size_t k = 0; k < m->n_aliases && v->entries[i].state != PD_MODEL_LEAVING; k++)
            if (strcmp(m->aliases[k], name) == 0) return &v->entries[i];
    }
    return NULL;
}

bool pd_view_not_found(const struct pd_view *v, const char *name, struct pd_error *x) {
    struct fo_buf list;
    fo_buf_init(&list, 400); /* the message is bounded; more names than fit are left out */
    for (size_t i = 0; i < v->n && !list.failed; i++) fo_buf_printf(&list, "%s%s", i ? ", " : "", v->entries[i].decl->name);
    pd_error_set(x, PD_ERR_NO_MODEL, "model", "The model '%.100s' does not exist here. %s%s%s", name, list.len ? "There is: " : "No model is declared",
                 fo_buf_str(&list), list.failed ? ", ..." : ".");
    fo_buf_done(&list);
    return false;
}

bool pd_entry_comes(const struct pd_entry *e) {
    return e->decl->state == CF_STATE_ON_DEMAND && (e->state == PD_MODEL_ON_DEMAND || e->state == PD_MODEL_WAITING || e->state == PD_MODEL_LOADING);
}

void pd_entry_refusal(const struct pd_entry *e, struct pd_error *x) {
    const char *name = e->decl->name;
    switch (e->state) {
    case PD_MODEL_WAITING:
        pd_error_set(x, PD_ERR_LOADING, "model", "The model '%s' is waiting: %s", name, e->reason[0] ? e->reason : "for the models before it to load");
        break;
    case PD_MODEL_LOADING:
        pd_error_set(x, PD_ERR_LOADING, "model", "The model '%s' is being loaded; it will serve when that is done.", name);
        break;
    case PD_MODEL_FAILED:
        pd_error_set(x, PD_ERR_UNAVAILABLE, "model", "The model '%s' failed: %s", name, e->reason);
        break;
    case PD_MODEL_REFUSED:
        pd_error_set(x, e->pinned ? PD_ERR_PINNED : PD_ERR_UNAVAILABLE, "model", "The model '%s' is not loaded: %s", name, e->reason);
        x->need_bytes = e->need_bytes;
        x->have_bytes = e->have_bytes;
        break;
    case PD_MODEL_HELD:
        pd_error_set(x, PD_ERR_UNAVAILABLE, "model", "The model '%s' was unloaded by hand: %s", name, e->reason);
        break;
    case PD_MODEL_ABSENT:
        pd_error_set(x, PD_ERR_UNAVAILABLE, "model", "The model '%s' is declared absent.", name);
        break;
    case PD_MODEL_ON_DEMAND:
        pd_error_set(x, PD_ERR_LOADING, "model", "The model '%s' is loaded on demand: it is being loaded now.", name);
        break;
    case PD_MODEL_READY:
        if (e->decl->state == CF_STATE_ON_DEMAND) { /* it has just gone, and comes back */
            pd_error_set(x, PD_ERR_LOADING, "model", "The model '%s' is loaded on demand: it has given way to another, and is loaded again in its turn.", name);
            break;
        } /* fall through */
    case PD_MODEL_LEAVING:
        pd_error_set(x, PD_ERR_UNAVAILABLE, "model", "The model '%s' is being unloaded.", name);
        break;
    }
    x->retry_after_s = e->retry_after_s > MAX_RETRY_AFTER_S ? MAX_RETRY_AFTER_S : e->retry_after_s ? e->retry_after_s : x->id == PD_ERR_LOADING && e->state != PD_MODEL_WAITING ? 2 : e->state == PD_MODEL_WAITING ? 5 : 60;
}

/* Its model was on its way out when the request came: what a client is told who comes a little later. */
static bool just_gone(struct pd_app *app, const struct pn_served *s, struct pd_error *x) {
    struct pn_served_status st;
    pn_served_status(s, &st);
    if (!st.draining || st.failed_code) return false;
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *e = pd_view_find(v, pn_served_name(s));
    bool comes_back = e && e->decl->state == CF_STATE_ON_DEMAND && e->state != PD_MODEL_HELD;
    if (comes_back) {
        pd_entry_refusal(e, x);
        pd_app_want(app, e);
    }
    pd_view_put(v);
    return comes_back;
}

void pd_app_error(struct pd_app *app, const struct pn_served *s, const struct fo_err *e, struct pd_error *x) {
    struct pn_served_status st;
    if (e->code == FO_EUNAVAIL && !atomic_load(&app->draining) && just_gone(app, s, x)) return;
    pd_error_from(x, e, atomic_load(&app->draining));
    if (pd_error_row(x->id)->status != 429) return;
    pn_served_status(s, &st);
    x->retry_after_s = st.retry_after_s ? st.retry_after_s : 1;
}

bool pd_app_find(struct pd_app *app, const char *name, struct pn_served **ret, struct cf_sampling *ret_sampling, struct pd_error *x) {
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *e = pd_view_find(v, name);
    struct pn_served *s = NULL;
    if (!e) {
        pd_view_not_found(v, name, x);
    } else if (e->state != PD_MODEL_READY || !(s = pn_engine_get(app->engine, e->decl->name))) {
        pd_entry_refusal(e, x);
        pd_app_want(app, e);
    } else {
        *ret = s;
        *ret_sampling = e->decl->sampling;
        if (e->decl->state == CF_STATE_ON_DEMAND) queue_once(app, PD_ASK_USED, e->decl->name, false);
    }
    pd_view_put(v);
    return s != NULL;
}

int pd_submit(struct pd_app *app, struct pn_served **at, const struct pn_request_opts *o, struct pn_request **ret, struct pn_budget *ret_budget, struct fo_err *e) {
    for (int tries = 0;; tries++) {
        struct pn_served *to = pn_engine_route(app->engine, *at, o);
        bool moved = to != *at;
        pn_served_put(*at);
        *at = to;
        int rc = pn_submit(to, o, ret, ret_budget, e);
        if (rc != FO_EUNAVAIL || (tries > 0 && !moved) || tries == 2) return rc;
    }
}
