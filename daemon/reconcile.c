/* One pass: look at dies and copies; gather the facts; measure model files that are not measured yet (the loader's work); plan; take the
 * plan's first step. A step on live keys is done here and now; any other goes to the loader, and the pass is over until it comes
 * back. No step left: settled, and after the first time READY=1.
 *
 * Failures. A load that fails, and a copy that fails while it serves, make their model wait: 10 s, doubled each time up to 5 minutes,
 * forgotten after a minute of good service or with a new manifest. A die that is lost is nobody's fault: its models go elsewhere or wait
 * for it. */
#include "daemon/reconcile.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "config/plan.h"
#include "daemon/actuate.h"
#include "daemon/app.h"
#include "daemon/cert.h"
#include "daemon/facts.h"
#include "daemon/fetch.h"
#include "daemon/files.h"
#include "daemon/gate.h"
#include "daemon/http.h"
#include "daemon/log.h"
#include "daemon/loop.h"
#include "daemon/notify.h"
#include "daemon/pressure.h"
#include "daemon/sessions.h"
#include "daemon/source.h"
#include "daemon/status.h"
#include "daemon/world.h"
#include "engine/engine.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

enum {
    TICK_MS = 250,           /* how often copies and dies are looked at */
    LOOK_MS = 5000,          /* how often everything is, though nothing seems to have changed */
    LOAD_LEAVES_MS = 1000,   /* while stopping: how long a load may take to notice it */
    DRAIN_LOOK_MS = 20,      /* while stopping: how often the rest is counted */
    CANCEL_MS = 5000,        /* after the drain's deadline: time for cancelled requests to end with their error event */
    BACKOFF_MS = 10 * 1000,  /* PANTHEON_BACKOFF_MS replaces it */
    GOOD_SERVICE_MS = 60 * 1000,
    WISH_MS = 120 * 1000,    /* how long a model is wanted after the last request for it: no client comes back later */
    MAX_STEPS_AT_ONCE = 256, /* live changes in one pass */
    EXTEND_MS = 60 * 1000,   /* systemd waits this much more, said every LOOK_MS while a step is at work */
};

/* --- what is shown --- */

/* Says once that a model does not fit, or that its file cannot be served. */
static void say_refusals(struct pd_loop *l, const struct pd_view *before, const struct pd_view *v) {
    for (size_t i = 0; i < v->n; i++) {
        const struct pd_entry *e = &v->entries[i];
        bool refused = e->state == PD_MODEL_REFUSED || strcmp(e->conditions[PD_C_READY].reason, "FileNotUsable") == 0, same = false;
        for (size_t k = 0; before && k < before->n && !same; k++)
            same = strcmp(before->entries[k].decl->name, e->decl->name) == 0 && before->entries[k].state == e->state && strcmp(before->entries[k].reason, e->reason) == 0;
        if (refused && !same) pd_app_event(l->app, PD_EV_MODEL_REFUSED, e->decl->name, "%s", e->reason);
    }
}

static void publish(struct pd_loop *l) {
    struct fo_err e;
    struct cf_facts *facts;
    pd_files_look(l);
    if (pd_facts_gather(&l->world, l->app->engine, l->opts.no_mmap, fo_now_ms(), &facts, &e)) {
        fo_log(FO_LOG_WARN, "reconcile", "event=no_memory_to_publish next=\"pages show the state before\"");
        return;
    }
    struct pd_view *before = pd_app_view(l->app);
    struct pd_status_input in = {
        .world = &l->world,
        .manifest = l->manifest,
        .facts = facts,
        .plan = l->plan_manifest == l->manifest ? l->plan : NULL,
        .step = l->step,
        .before = before,
        .asked = l->asked,
        .now_ms = fo_now_ms(),
        .step_started_ms = l->step_started_ms,
        .settled = l->settled,
        .first_pass_over = l->first_pass_over,
        .manifest_ok = l->manifest_ok,
        .from_kept = l->from_kept,
        .draining = l->draining,
        .report = l->report ? l->report : "",
        .restart = l->restart,
        .keys = pd_gate_keys(l->app->gate),
        .tls = pd_cert_state(l->app->cert),
    };
    struct pd_view *v = pd_status_view(&in);
    if (v) {
        pd_show_plan(l, v);
        say_refusals(l, before, v);
        pd_app_publish(l->app, v);
    }
    pd_view_put(before);
}

static void say_status(struct pd_loop *l) {
    struct pd_view *v = pd_app_view(l->app);
    size_t serving = 0, declared = 0;
    char refused[48] = "", failing[48] = "", bad[48] = "", memory[160] = "", fetching[160] = "";
    pd_pressure_text(&l->world, memory, sizeof memory);
    for (size_t i = 0; v && i < v->n; i++) {
        declared += v->entries[i].declared;
        serving += v->entries[i].declared && v->entries[i].state == PD_MODEL_READY;
    }
    pd_files_text(l, fetching, sizeof fetching);
    if (v && v->n_refused) snprintf(refused, sizeof refused, "; %zu refused", v->n_refused);
    if (v && v->n_failing) snprintf(failing, sizeof failing, "; %zu failing", v->n_failing);
    if (!l->manifest_ok) snprintf(bad, sizeof bad, "; MANIFEST %s", l->from_kept ? "BAD, serving the last good one" : "REFUSED, serving the one before");
    if (l->step && l->step->kind == PD_STEP_PROBE) pd_notify_status("Measuring %zu model files", l->step->n_ask);
    else if (l->step && l->step->kind == PD_STEP_UNLOAD) pd_notify_status("Unloading %s; serving %zu of %zu models%s", l->step->model, serving, declared, bad);
    else if (l->step) pd_notify_status("Loading %s (%zu of %zu)%s", l->step->model, serving + (serving < declared), declared, bad);
    else pd_notify_status("Serving %zu of %zu models; generation %llu%s%s%s%s%s%s", serving, declared, (unsigned long long)l->manifest->generation, refused, failing, fetching, bad, *memory ? "; " : "", memory);
    pd_view_put(v);
}

/* --- failures --- */

static void forget_failure(struct pd_history *h) {
    h->failures = h->streak = 0;
    h->retry_at_ms = 0;
    h->last_error[0] = '\0';
    h->fetch_failures = 0;
    h->fetch_retry_at_ms = 0;
}

/* Whether a copy serves. */
static bool serves(const struct pd_world *w, const char *name) {
    for (size_t i = 0; i < w->n_instances; i++)
        if (w->instances[i]->state == CF_I_READY && strcmp(w->instances[i]->name, name) == 0) return true;
    return false;
}

/* A request, or an administrator, asks for a model that is loaded on demand. */
static void want(struct pd_loop *l, struct pd_history *h) {
    if (serves(&l->world, h->name)) return; /* it is there by now */
    h->asked_at_ms = fo_now_ms();
    if (h->wanted_at_ms) return;
    h->wanted_at_ms = h->asked_at_ms;
    l->next_look_ms = 0;
}

/* A request has come to a model on demand: also one that no worker sees, as for its vocabulary. */
static void use(struct pd_loop *l, struct pd_history *h) {
    uint64_t now = fo_now_ms();
    for (size_t i = 0; i < l->world.n_instances; i++) {
        struct pd_instance *inst = l->world.instances[i];
        if (inst->state != CF_I_READY || strcmp(inst->name, h->name) != 0) continue;
        if (inst->used_at_ms == 0) l->next_look_ms = 0; /* others may wait for that */
        inst->used_at_ms = h->used_at_ms = now;
    }
}

/* Wishes of clients that have not come back. */
static void forget_old_wishes(struct pd_loop *l) {
    uint64_t now = fo_now_ms();
    for (size_t i = 0; i < l->world.n_histories; i++) {
        struct pd_history *h = l->world.histories[i];
        if (!h->wanted_at_ms || now - h->asked_at_ms < WISH_MS) continue;
        h->wanted_at_ms = 0;
        l->next_look_ms = 0;
    }
}

/* Copies that failed since the last look, and models that have served well for a while. */
static void look(struct pd_loop *l, bool *ret_changed) {
    struct pd_world *w = &l->world;
    uint64_t now = fo_now_ms();
    bool was_lost[64];
    size_t n = w->n_dies < 64 ? w->n_dies : 64;
    for (size_t i = 0; i < n; i++) was_lost[i] = w->dies[i].lost;
    pd_facts_look(w, l->app->engine, ret_changed);
    for (size_t i = 0; i < n; i++) {
        if (was_lost[i] == w->dies[i].lost) continue;
        if (w->dies[i].lost) pd_app_event(l->app, PD_EV_DIE_LOST, NULL, "%s: %s", w->dies[i].name, w->dies[i].reason);
        else pd_app_event(l->app, PD_EV_DIE_BACK, NULL, "die %s answers again", w->dies[i].name);
    }
    for (size_t i = 0; i < w->n_instances; i++) {
        struct pd_instance *inst = w->instances[i];
        struct pd_history *h = pd_world_find_history(w, inst->name);
        if (inst->state == CF_I_FAILED && !inst->mourned) {
            inst->mourned = true;
            pd_note_failure(l, inst->name, inst->reason);
        } else if (inst->state == CF_I_READY && h && h->failures == 0 && h->streak && now - h->served_since_ms >= GOOD_SERVICE_MS) {
            forget_failure(h);
        }
    }
}

/* --- the manifest --- */

static void set_report(struct pd_loop *l, const char *text) {
    free(l->report);
    l->report = text ? strdup(text) : NULL;
}

static void keep_manifest(struct pd_loop *l) {
    struct fo_err e;
    if (!l->opts.config || !l->opts.state_dir) return;
    if (pd_source_keep(l->opts.state_dir, &l->texts, l->manifest->generation, &e))
        pd_app_event(l->app, PD_EV_MANIFEST_NOT_KEPT, NULL, "%s; it serves, but a restart with a bad file would have no copy of it", e.msg);
}

/* What was refused: the manifest in force stays. */
static void refuse_manifest(struct pd_loop *l, const char *report) {
    l->manifest_ok = false;
    set_report(l, report);
    /* the log gets all of it, a line each; the event its first line */
    for (const char *p = report; *p;) {
        size_t n = strcspn(p, "\n");
        fo_log(FO_LOG_ERROR, "reconcile", "%.*s", (int)n, p);
        p += n + (p[n] == '\n');
    }
    pd_app_event(l->app, PD_EV_MANIFEST_REFUSED, NULL, "%.*s; the manifest before stays in force", (int)strcspn(report, "\n"), report);
}

/* Connections are file descriptors: asks for as many as the limits name. Returns how many there may be, so that some are left for files. */
static uint32_t raise_file_limit(uint32_t connections) {
    enum { FOR_FILES = 256 };
    struct rlimit r;
    rlim_t want = (rlim_t)connections + FOR_FILES;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= want) return connections;
    rlim_t before = r.rlim_cur;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &r)) r.rlim_cur = before;
    if (r.rlim_cur >= want) return connections;
    uint32_t most = (uint32_t)(r.rlim_cur > 2 * FOR_FILES ? r.rlim_cur - FOR_FILES : r.rlim_cur / 2);
    fo_log(FO_LOG_WARN, "serve", "event=few_files limit=%llu wanted=%llu connections=%u next=\"raise the limit of open files (LimitNOFILE)\"", (unsigned long long)r.rlim_cur,
           (unsigned long long)want, most);
    return most;
}

static uint32_t count(int64_t v, uint32_t auto_value) {
    return v < 0 ? auto_value : v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

void pd_loop_limits(const struct cf_manifest *m, struct pd_http_limits *ret) {
    const struct cf_limits *l = &m->server.limits;
    *ret = (struct pd_http_limits){
        .body_bytes = l->body_bytes,
        .header_time_ms = l->header_time_ms,
        .body_idle_ms = l->body_idle_ms,
        .write_idle_ms = l->write_idle_ms,
        .connections = count(l->connections, 512),
        .connections_per_address = count(l->connections_per_address, 64),
    };
    ret->connections = raise_file_limit(ret->connections);
}

/* Keys outside the models whose change needs more than this process. */
static void note_restart(struct pd_loop *l, const struct cf_manifest *is) {
    struct cf_diff diffs[CF_MAX_DIFFS];
    size_t n = cf_manifest_diff(l->started->m, is, diffs);
    for (size_t i = 0; i < n; i++) {
        if (diffs[i].change == CF_LIVE) continue;
        if (strcmp(diffs[i].key, "dies") == 0) continue; /* the world says which */
        size_t len = strlen(l->restart);
        snprintf(l->restart + len, sizeof l->restart - len, "%s%s changed", len ? ", " : "", diffs[i].key);
    }
}

/* Puts a good reading in force. False when its dies cannot be had: then it is refused as a whole. */
static bool accept_manifest(struct pd_loop *l, struct pd_reading *r, uint64_t generation) {
    struct fo_err e;
    char dies[192];
    struct pd_counted_manifest *c = calloc(1, sizeof *c);
    int code = c ? FO_OK : fo_fail(&e, FO_ENOMEM, "no memory for the manifest");
    if (code == FO_OK) code = pd_world_set_dies(&l->world, r->manifest, dies, sizeof dies, &e);
    if (code == FO_OK) {
        atomic_init(&c->refs, 1);
        c->m = r->manifest;
        c->generation = generation;
        code = pd_gate_may_use(l->app, c->m, &e);
        if (code == FO_OK) code = pd_cert_use(l->app, c->m, l->opts.dir, &e);
        if (code == FO_OK) code = pd_gate_use(l->app, c, l->opts.dir, &e);
    }
    if (code) {
        free(c);
        refuse_manifest(l, e.msg);
        return false;
    }
    snprintf(l->restart, sizeof l->restart, "%s", dies);
    if (l->started) note_restart(l, r->manifest);
    r->manifest = NULL;
    if (!l->started) {
        l->started = c;
        atomic_fetch_add(&c->refs, 1);
    }
    pd_counted_manifest_put(l->manifest);
    l->manifest = c;
    pd_texts_done(&l->texts);
    l->texts = r->texts;
    r->texts = (struct pd_texts){ 0 };
    for (size_t i = 0; i < l->world.n_histories; i++) {
        l->world.histories[i]->admin_unloaded = false;
        forget_failure(l->world.histories[i]);
    }
    pd_world_forget(&l->world, c->m);
    if (!l->step) pd_world_close_dies(&l->world);
    l->probe_failed = false;
    struct pd_http_limits limits;
    pd_loop_limits(c->m, &limits);
    pd_http_set_limits(l->app->http, &limits);
    atomic_store(&l->app->sse_ping_ms, c->m->server.sse_ping_ms);
    return true;
}

static void reload(struct pd_loop *l) {
    struct pd_reading r;
    if (!l->opts.config) {
        pd_app_event(l->app, PD_EV_RELOAD_IGNORED, NULL, "the models were given on the command line: there is no manifest to read again");
        return;
    }
    if (l->first_pass_over) pd_notify_reloading();
    if (!pd_source_read(l->opts.config, &r)) {
        refuse_manifest(l, r.report ? r.report : "no memory to read the manifest");
    } else if (pd_texts_equal(&l->texts, &r.texts)) {
        l->manifest_ok = true;
        l->from_kept = false;
        set_report(l, NULL);
        pd_gate_look(l->app, true);
        pd_cert_look(l->app, true);
        pd_app_event(l->app, PD_EV_MANIFEST_UNCHANGED, NULL, "generation %llu", (unsigned long long)l->manifest->generation);
    } else if (accept_manifest(l, &r, l->manifest->generation + 1)) {
        l->manifest_ok = true;
        l->from_kept = false;
        set_report(l, NULL);
        pd_app_event(l->app, PD_EV_MANIFEST_ACCEPTED, NULL, "generation %llu, %zu models", (unsigned long long)l->manifest->generation, l->manifest->m->n_models);
        keep_manifest(l);
    }
    pd_reading_done(&r);
    if (l->first_pass_over) pd_notify_ready();
}

/* --- what administrators ask --- */

/* Nobody wants these by hand any more: what the manifest does not declare goes. NULL = any. */
static void forget_wishes(struct pd_loop *l, const char *name) {
    for (size_t i = 0; i < l->world.n_histories; i++) {
        struct pd_history *h = l->world.histories[i];
        if (name && strcmp(h->name, name) != 0) continue;
        cf_model_free(h->ad_hoc);
        h->ad_hoc = NULL;
    }
    for (size_t i = 0; i < l->world.n_instances; i++)
        if (!name || strcmp(l->world.instances[i]->name, name) == 0) l->world.instances[i]->ad_hoc = false;
}

static bool is_declared(const struct pd_loop *l, const char *name) {
    for (size_t i = 0; i < l->manifest->m->n_models; i++)
        if (strcmp(l->manifest->m->models[i].name, name) == 0) return true;
    return false;
}

static void take_asks(struct pd_loop *l) {
    bool read_again = false;
    for (struct pd_ask *a = pd_app_take_asks(l->app), *next; a; a = next) {
        next = a->next;
        struct pd_history *h = a->name ? pd_world_history(&l->world, a->name) : NULL;
        l->asked = a->seq;
        switch (a->kind) {
        case PD_ASK_LOOK:
            break;
        case PD_ASK_WANT:
            if (h) want(l, h);
            break;
        case PD_ASK_USED:
            if (h) use(l, h);
            break;
        case PD_ASK_RELOAD: /* many at once are one: the file is read after all that was asked */
            pd_app_event_by(l->app, PD_EV_ADMIN_RELOAD, NULL, a->who, "asked for over the admin API");
            read_again = true;
            break;
        case PD_ASK_LOAD:
            if (!h) break;
            h->admin_unloaded = false;
            forget_failure(h);
            want(l, h);
            if (a->spec && !is_declared(l, a->name)) {
                cf_model_free(h->ad_hoc);
                h->ad_hoc = a->spec;
                a->spec = NULL;
            }
            pd_app_event_by(l->app, PD_EV_ADMIN_LOAD, a->name, a->who, "asked for over the admin API");
            break;
        case PD_ASK_UNLOAD:
            if (!h) break;
            h->admin_unloaded = is_declared(l, a->name);
            forget_wishes(l, a->name);
            pd_app_event_by(l->app, PD_EV_ADMIN_UNLOAD, a->name, a->who, h->admin_unloaded ? "held until it is loaded over the admin API or a new manifest comes" : "asked for over the admin API");
            break;
        case PD_ASK_PRUNE:
            pd_app_event_by(l->app, PD_EV_ADMIN_PRUNE, NULL, a->who, "asked for over the admin API");
            forget_wishes(l, NULL);
            break;
        }
        pd_ask_free(a);
    }
    if (read_again) reload(l);
}

/* --- the pass --- */

static void drop_plan(struct pd_loop *l) {
    cf_plan_free(l->plan);
    cf_facts_free(l->facts);
    pd_counted_manifest_put(l->plan_manifest);
    l->plan = NULL;
    l->facts = NULL;
    l->plan_manifest = NULL;
}

static int make_plan(struct pd_loop *l, struct fo_err *e) {
    struct cf_facts *facts;
    struct cf_plan *plan;
    pd_files_look(l);
    if (pd_facts_gather(&l->world, l->app->engine, l->opts.no_mmap, fo_now_ms(), &facts, e)) return e->code;
    if (cf_plan_make(l->manifest->m, facts, 0, &plan, e)) {
        cf_facts_free(facts);
        return e->code;
    }
    drop_plan(l);
    l->plan = plan;
    l->plan_at = time(NULL);
    l->facts = facts;
    l->plan_manifest = l->manifest;
    atomic_fetch_add(&l->manifest->refs, 1);
    for (size_t i = 0; i < plan->n_verdicts; i++) {
        if (plan->verdicts[i].kind != CF_V_IN_SYNC) continue;
        for (size_t k = 0; k < l->world.n_instances; k++)
            if (strcmp(l->world.instances[k]->name, plan->verdicts[i].model) == 0) l->world.instances[k]->generation = l->manifest->generation;
    }
    return FO_OK;
}

static void first_pass(struct pd_loop *l) {
    size_t failed = 0, serving = 0;
    char name[160], why[448];
    struct pd_view *v = pd_app_view(l->app);
    for (size_t i = 0; i < v->n; i++) {
        serving += v->entries[i].declared && v->entries[i].state == PD_MODEL_READY;
        bool bad = v->entries[i].declared && (v->entries[i].state == PD_MODEL_FAILED || v->entries[i].state == PD_MODEL_REFUSED);
        failed += bad;
        if (bad && l->opts.must_serve) fo_log(FO_LOG_ERROR, "serve", "event=model_unusable model=%s reason=%s", pd_log_quote(v->entries[i].decl->name, name, sizeof name), pd_log_quote(v->entries[i].reason, why, sizeof why));
    }
    l->useless = l->opts.must_serve && failed == l->manifest->m->n_models;
    if (!l->useless) fo_log(FO_LOG_INFO, "serve", "event=ready models=%zu serving=%zu failed=%zu", l->manifest->m->n_models, serving, failed);
    if (!l->useless) pd_notify_ready();
    pd_view_put(v);
}

static void think(struct pd_loop *l) {
    struct fo_err e;
    bool first = false;
    e.code = FO_OK;
    l->next_look_ms = fo_now_ms() + LOOK_MS;
    look(l, NULL);
    for (int n = 0; !l->step && !l->draining && n < MAX_STEPS_AT_ONCE; n++) {
        if (pd_start_probe(l)) break;
        if (make_plan(l, &e)) break;
        if (l->plan->n_steps == 0) {
            first = !l->first_pass_over;
            l->settled = l->first_pass_over = true;
            break;
        }
        l->settled = false;
        const struct cf_step *p = &l->plan->steps[0];
        if (p->kind == CF_STEP_FETCH) {
            if (pd_start_fetch(l, p, &e)) break;
            continue;
        }
        if (p->kind == CF_STEP_SET ? pd_set_live(l, p, &e) : pd_start_step(l, p, &e)) {
            pd_note_failure(l, p->model, e.msg);
            break;
        }
    }
    if (e.code) fo_log(FO_LOG_WARN, "reconcile", "event=pass_failed code=%s reason=\"%s\" next=\"again in %d ms\"", fo_code_name(e.code), e.msg, LOOK_MS);
    publish(l);
    if (first) first_pass(l);
    say_status(l);
}

/* When to look again, in milliseconds: for a model whose backoff ends, or for memory that is still to come back. */
static int next_timeout(const struct pd_loop *l) {
    uint64_t now = fo_now_ms(), at = l->next_look_ms;
    for (size_t i = 0; i < l->world.n_histories; i++) {
        uint64_t retry = l->world.histories[i]->retry_at_ms;
        if (retry > now && retry < at) at = retry;
    }
    if (l->plan && l->plan->look_at_ms > now && l->plan->look_at_ms < at) at = l->plan->look_at_ms;
    uint64_t left = at > now ? at - now : 0;
    return left < TICK_MS ? (int)left : TICK_MS;
}

static bool due(struct pd_loop *l) {
    uint64_t now = fo_now_ms();
    bool due = now >= l->next_look_ms;
    for (size_t i = 0; i < l->world.n_histories && !l->step; i++) {
        struct pd_history *h = l->world.histories[i];
        if (h->retry_at_ms && h->retry_at_ms <= now && h->failures && !h->retry_seen) {
            h->retry_seen = true;
            due = true;
        }
        if (h->retry_at_ms > now) h->retry_seen = false;
    }
    if (l->plan && l->plan->look_at_ms && l->plan->look_at_ms <= now && !l->step) due = true; /* one is idle, or another's turn has come */
    for (size_t i = 0; l->plan && i < l->plan->n_verdicts && !l->step; i++) /* memory to come back, a die to answer */
        due = due || (l->plan->verdicts[i].kind == CF_V_WAITING && l->plan->verdicts[i].retry_at_ms == 0 && !l->plan->verdicts[i].fetching);
    return due;
}

/* --- systemd --- */

/* Fed only when every serving copy's scheduler has moved since the last time: one that is stuck in a step stops it. */
static void feed_watchdog(struct pd_loop *l) {
    if (!l->watchdog_ms) return;
    size_t n = 0;
    uint64_t *now = calloc(l->world.n_instances + 1, sizeof *now);
    if (!now) return;
    bool moved = true;
    for (size_t i = 0; i < l->world.n_instances; i++) {
        const struct pd_instance *inst = l->world.instances[i];
        struct pn_served *s = inst->state == CF_I_READY ? pn_engine_get_replica(l->app->engine, inst->name, (uint32_t)inst->replica) : NULL;
        struct pn_served_status st;
        if (!s) continue;
        pn_served_status(s, &st);
        pn_served_put(s);
        if (n < l->n_heartbeats && l->heartbeats[n] == st.heartbeat) moved = false;
        now[n++] = st.heartbeat;
    }
    if (!moved && n == l->n_heartbeats) {
        free(now);
        return;
    }
    free(l->heartbeats);
    l->heartbeats = now;
    l->n_heartbeats = n;
    pd_notify_watchdog();
}

/* A start or a reload takes as long as its loads, each within its own limit. */
static void extend(struct pd_loop *l) {
    uint64_t now = fo_now_ms();
    if (!l->step || now - l->extended_ms < LOOK_MS || now - l->step_started_ms > l->manifest->m->host.load_timeout_ms + l->manifest->m->server.drain_ms) return;
    l->extended_ms = now;
    pd_notify_extend(EXTEND_MS * 1000ull);
}

/* --- signals and stopping --- */

/* Waits up to timeout_ms for a signal (returned, and who sent it in l->signalled), the loader, or an ask; 0 = no signal. */
static int wait_event(struct pd_loop *l, int timeout_ms) {
    struct pollfd p[3] = { { .fd = l->signals, .events = POLLIN }, { .fd = l->done_bell, .events = POLLIN }, { .fd = l->app->bell, .events = POLLIN } };
    struct signalfd_siginfo si;
    uint64_t n;
    if (poll(p, 3, timeout_ms) <= 0) return 0;
    if (p[1].revents && read(l->done_bell, &n, sizeof n) == sizeof n) {
        pd_finish_step(l);
        l->next_look_ms = 0;
    }
    if (p[2].revents && read(l->app->bell, &n, sizeof n) == sizeof n) l->next_look_ms = 0;
    if (!p[0].revents || read(l->signals, &si, sizeof si) != (ssize_t)sizeof si) return 0;
    snprintf(l->signalled, sizeof l->signalled, "uid %u, pid %u", si.ssi_uid, si.ssi_pid);
    return (int)si.ssi_signo;
}

static void drain(struct pd_loop *l) {
    struct pd_app *app = l->app;
    uint64_t drain_ms = l->manifest->m->server.drain_ms, deadline = fo_now_ms() + drain_ms, end = deadline + CANCEL_MS;
    bool cancelled = false;
    char text[16];
    l->draining = true;
    atomic_store(&app->draining, true);
    pd_loader_cancel(l->loader);
    (void)pd_files_tick(l);
    pd_http_drain(app->http);
    pn_engine_drain(app->engine);
    pd_notify_stopping();
    pd_notify_extend((drain_ms + 2 * CANCEL_MS + PD_SESSIONS_SAVE_MS) * 1000ull);
    publish(l);
    fo_log(FO_LOG_INFO, "serve", "event=draining requests=%u drain=\"%s\"", pn_engine_active(app->engine), fo_format_ms(drain_ms, text, sizeof text));
    for (uint32_t last = UINT32_MAX;;) {
        uint32_t left = pn_engine_active(app->engine), busy = pd_http_busy(app->http);
        if (left == 0 && busy == 0 && !l->step) return;
        /* nobody is waited for but the loader, which leaves between two pieces of weights unless a die holds it */
        if (left == 0 && busy == 0 && l->step->kind != PD_STEP_UNLOAD && fo_now_ms() >= deadline - drain_ms + LOAD_LEAVES_MS) break;
        if (left != last) pd_notify_status("Stopping: %u requests still running", left);
        last = left;
        feed_watchdog(l);
        if (!cancelled && fo_now_ms() >= deadline) {
            cancelled = true;
            fo_log(FO_LOG_WARN, "serve", "event=drain_over requests=%u next=\"cancelling them\"", left);
            pn_engine_cancel_all(app->engine);
        }
        if (fo_now_ms() >= end + (l->step && l->step->kind != PD_STEP_LOAD ? PD_SESSIONS_SAVE_MS : 0)) break;
        if (wait_event(l, DRAIN_LOOK_MS) == SIGINT) {
            fo_log(FO_LOG_WARN, "serve", "event=interrupted next=\"ending at once\"");
            _exit(130);
        }
    }
    if (!l->step) return;
    /* a die that does not answer holds the load, and a model half loaded is nothing to keep the process for */
    fo_log(FO_LOG_WARN, "serve", "event=stopped_while_loading");
    pd_http_close(app->http);
    _exit(0);
}

bool pd_loop_run(struct pd_loop *l) {
    for (;;) {
        bool changed = false;
        take_asks(l);
        forget_old_wishes(l);
        if (pd_files_tick(l)) l->next_look_ms = 0;
        look(l, &changed);
        bool keys = pd_gate_look(l->app, false), tls = pd_cert_look(l->app, false);
        bool memory = pd_pressure_look(l->app, &l->world, l->manifest->m, fo_now_ms());
        if (keys || tls || memory) publish(l);
        if (memory) say_status(l);
        if (changed || due(l)) think(l);
        if (l->useless) break;
        feed_watchdog(l);
        extend(l);
        int sig = wait_event(l, next_timeout(l));
        if (sig == SIGHUP) {
            pd_app_event_by(l->app, PD_EV_ADMIN_RELOAD, NULL, l->signalled, "asked for by a signal (SIGHUP)");
            reload(l);
            l->next_look_ms = 0;
        } else if (sig == SIGTERM || sig == SIGINT) {
            fo_log(FO_LOG_INFO, "serve", "event=stopping signal=%s who=\"%s\"", sig == SIGTERM ? "SIGTERM" : "SIGINT", l->signalled);
            break;
        }
    }
    drain(l);
    return !l->useless;
}

/* --- making and freeing --- */

int pd_loop_new(struct pd_app *app, struct pd_reading *r, uint64_t generation, const char *bad_report, const struct pd_loop_opts *opts, struct pd_loop **ret,
                struct fo_err *e) {
    struct pd_loop *l = calloc(1, sizeof *l);
    sigset_t mask;
    if (!l) return fo_fail(e, FO_ENOMEM, "no memory for the loop");
    l->app = app;
    l->opts = *opts;
    l->signals = l->done_bell = -1;
    pd_verified_init(&l->verified, opts->state_dir);
    l->world.isa = opts->isa;
    l->world.threads = r->manifest->host.threads < 0 ? 0 : (int)r->manifest->host.threads;
    const char *base = getenv("PANTHEON_BACKOFF_MS");
    l->backoff_ms = base && *base >= '1' && *base <= '9' ? strtoull(base, NULL, 10) : BACKOFF_MS;
    if (l->backoff_ms > 24ull * 3600 * 1000) l->backoff_ms = BACKOFF_MS;
    l->watchdog_ms = pd_notify_watchdog_ms();
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    int code = FO_OK;
    bool is_new = generation == 0;
    l->manifest_ok = true;
    if (!accept_manifest(l, r, is_new ? 1 : generation)) code = fo_fail(e, FO_EUNSUPPORTED, "%s", l->report ? l->report : "no memory");
    if (code == FO_OK) {
        l->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
        l->done_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (l->signals < 0 || l->done_bell < 0) code = fo_fail_errno(e, errno, "signalfd");
    }
    if (code == FO_OK) code = pd_loader_new(app, l->done_bell, &l->loader, e);
    if (code != FO_OK) {
        pd_loop_free(l);
        return code;
    }
    if (bad_report) {
        l->manifest_ok = false;
        l->from_kept = true;
        set_report(l, bad_report);
        pd_app_event(app, PD_EV_MANIFEST_KEPT_SERVES, NULL, "THE MANIFEST IS BAD; the last accepted one (generation %llu) serves: %.*s", (unsigned long long)generation,
                     (int)strcspn(bad_report, "\n"), bad_report);
    } else {
        keep_manifest(l);
    }
    publish(l);
    *ret = l;
    return FO_OK;
}

void pd_loop_free(struct pd_loop *l) {
    if (!l) return;
    pd_loader_free(l->loader);
    pd_fetcher_free(l->fetcher);
    pd_verified_done(&l->verified);
    drop_plan(l);
    pd_world_done(&l->world);
    pd_counted_manifest_put(l->manifest);
    pd_counted_manifest_put(l->started);
    pd_texts_done(&l->texts);
    free(l->report);
    free(l->heartbeats);
    if (l->signals >= 0) close(l->signals);
    if (l->done_bell >= 0) close(l->done_bell);
    free(l);
}
