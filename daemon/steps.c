/* One step of the loop: what the loader is given, and what becomes of what it brings back: see loop.h and reconcile.h. Model files are measured
 * by a step too, since they are read for it. */
#include "daemon/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/judge.h"
#include "config/manifest.h"
#include "config/plan.h"
#include "daemon/actuate.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/log.h"
#include "daemon/text.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

enum { MAX_BACKOFF = 30 /* times the first: 5 minutes */ };

/* --- what is shown --- */

uint64_t pd_note_step(struct pd_loop *l, const struct cf_step *p) {
    static const char *const words[] = { [CF_STEP_UNLOAD] = "unload", [CF_STEP_LOAD] = "load", [CF_STEP_SET] = "set", [CF_STEP_RELOAD] = "reload", [CF_STEP_FETCH] = "fetch" };
    struct pd_performed *d = &l->performed[l->n_performed++ % PD_MAX_PERFORMED];
    *d = (struct pd_performed){ .at = time(NULL), .replica = p->replica };
    snprintf(d->step, sizeof d->step, "%s", words[p->kind]);
    snprintf(d->model, sizeof d->model, "%s", p->model);
    snprintf(d->why, sizeof d->why, "%s", p->why);
    return l->n_performed - 1;
}

void pd_note_step_end(struct pd_loop *l, uint64_t no, int code, const char *error, uint64_t took_ms) {
    struct pd_performed *d = &l->performed[no % PD_MAX_PERFORMED];
    if (l->n_performed - no > PD_MAX_PERFORMED) return; /* a long download: forgotten by now */
    d->result = code ? PD_STEP_FAILED : PD_STEP_DONE;
    d->took_ms = took_ms;
    snprintf(d->error, sizeof d->error, "%s", code ? error : "");
}

void pd_show_plan(const struct pd_loop *l, struct pd_view *v) {
    uint64_t first = l->n_performed > PD_MAX_PERFORMED ? l->n_performed - PD_MAX_PERFORMED : 0;
    size_t n = 0;
    for (uint64_t i = first; i < l->n_performed; i++) v->performed[v->n_performed++] = l->performed[i % PD_MAX_PERFORMED];
    v->sensors = calloc(v->facts->n_dies + 1, sizeof *v->sensors);
    for (size_t i = 0; v->sensors && i < l->world.n_dies && n < v->facts->n_dies; i++) /* in the order of pd_facts_gather */
        if (l->world.dies[i].wanted) fo_device_sensors(l->world.dies[i].dev, &v->sensors[n++]);
    if (!l->plan) return;
    v->observed_generation = l->plan_manifest->generation;
    v->plan_at = l->plan_at;
    v->plan_json = cf_plan_json(l->plan);
    v->plan_text = cf_plan_text(l->plan, l->facts);
}

/* --- failures --- */

uint64_t pd_backoff_ms(const struct pd_loop *l, uint32_t n) {
    uint64_t wait = l->backoff_ms, most = l->backoff_ms * MAX_BACKOFF;
    for (uint32_t i = 1; i < n && wait < most; i++) wait *= 2;
    return wait < most ? wait : most;
}

void pd_note_failure(struct pd_loop *l, const char *name, const char *why) {
    struct pd_history *h = pd_world_history(&l->world, name);
    char text[16];
    if (!h) return;
    h->failures = ++h->streak;
    uint64_t wait = pd_backoff_ms(l, h->streak);
    h->retry_at_ms = fo_now_ms() + wait;
    h->load_failures++;
    snprintf(h->last_error, sizeof h->last_error, "%s", why);
    pd_app_event(l->app, PD_EV_MODEL_FAILED, name, "%.300s; next try in %s", why, fo_format_ms(wait, text, sizeof text));
}

/* --- measuring --- */

static struct pd_estimate *estimate_of(struct pd_loop *l, const struct cf_model *spec) {
    for (size_t i = 0; i < l->world.n_estimates; i++)
        if (cf_estimate_is_of(&l->world.estimates[i]->v, spec)) return l->world.estimates[i];
    return NULL;
}

/* Calls fn for every form of a model that the planner will ask about. */
static void each_spec(struct pd_loop *l, void (*fn)(struct pd_loop *l, const struct cf_model *spec, void *ctx), void *ctx) {
    for (size_t i = 0; i < l->manifest->m->n_models; i++) fn(l, &l->manifest->m->models[i], ctx);
    for (size_t i = 0; i < l->world.n_histories; i++)
        if (l->world.histories[i]->ad_hoc) fn(l, l->world.histories[i]->ad_hoc, ctx);
    for (size_t i = 0; i < l->world.n_instances; i++) fn(l, l->world.instances[i]->spec, ctx);
}

static void mark_used(struct pd_loop *l, const struct cf_model *spec, void *ctx) {
    bool *used = ctx;
    for (size_t i = 0; i < l->world.n_estimates; i++)
        if (cf_estimate_is_of(&l->world.estimates[i]->v, spec)) used[i] = true;
}

/* Drops what nobody asks about any more, and what was measured of another file. */
static void sweep_estimates(struct pd_loop *l) {
    struct pd_world *w = &l->world;
    bool *used = calloc(w->n_estimates + 1, sizeof *used);
    if (!used) return;
    each_spec(l, mark_used, used);
    size_t n = 0;
    for (size_t i = 0; i < w->n_estimates; i++) {
        if (used[i] && !pd_estimate_stale(w->estimates[i], l->opts.dir)) w->estimates[n++] = w->estimates[i];
        else pd_estimate_free(w->estimates[i]);
    }
    w->n_estimates = n;
    free(used);
}

static void collect_missing(struct pd_loop *l, const struct cf_model *spec, void *ctx) {
    struct pd_step *s = ctx;
    struct fo_err e;
    if (estimate_of(l, spec)) return;
    for (size_t i = 0; i < s->n_ask; i++)
        if (cf_same_needs(s->ask[i], spec)) return;
    struct cf_model **list = realloc(s->ask, (s->n_ask + 1) * sizeof(struct cf_model *));
    if (!list) return;
    s->ask = list;
    if (cf_model_copy(spec, &list[s->n_ask], &e) == FO_OK) s->n_ask++;
}

/* --- steps --- */

static bool begin(struct pd_loop *l, struct pd_step *s) {
    const struct cf_host *h = &l->manifest->m->host;
    s->dir = l->opts.dir ? strdup(l->opts.dir) : NULL;
    if (l->opts.dir && !s->dir) return false;
    s->settle_timeout_ms = h->settle_timeout_ms;
    s->settle_stable_ms = h->settle_stable_ms;
    s->load_timeout_ms = h->load_timeout_ms;
    s->ram_reserve_bytes = h->ram_reserve_bytes;
    s->drain_ms = l->manifest->m->server.drain_ms;
    s->no_mmap = l->opts.no_mmap;
    s->generation = l->manifest->generation;
    l->step = s;
    l->settled = false;
    l->step_started_ms = fo_now_ms();
    pd_loader_start(l->loader, s);
    return true;
}

bool pd_start_probe(struct pd_loop *l) {
    sweep_estimates(l);
    if (l->probe_failed || l->world.n_dies == 0) return false;
    struct pd_step *s = pd_step_new(PD_STEP_PROBE);
    if (!s) return false;
    each_spec(l, collect_missing, s);
    s->probe_device = l->world.dies[0].dev;
    if (s->n_ask == 0 || !begin(l, s)) {
        pd_step_free(s);
        return false;
    }
    return true;
}

static int find_devices(struct pd_loop *l, struct pd_form *f, struct fo_err *e) {
    for (size_t i = 0; i < f->n_parts; i++) {
        const struct pd_die *d = pd_world_die(&l->world, f->parts[i].die);
        if (!d) return fo_fail(e, FO_EINTERNAL, "the plan names die '%s', which is not there", f->parts[i].die);
        f->devices[i] = d->dev;
        if (i < sizeof f->reserve_bytes / sizeof *f->reserve_bytes) f->reserve_bytes[i] = d->reserve_bytes;
    }
    return FO_OK;
}

/* What the instance looks like while its new form is loaded. */
static int adopt(struct pd_instance *i, const struct pd_form *f, struct fo_err *e) {
    struct cf_model *spec;
    if (cf_model_copy(f->spec, &spec, e)) return e->code;
    struct cf_part *parts = calloc(f->n_parts ? f->n_parts : 1, sizeof *parts);
    if (!parts) {
        cf_model_free(spec);
        return fo_fail(e, FO_ENOMEM, "no memory for an instance");
    }
    for (size_t k = 0; k < f->n_parts; k++) parts[k] = f->parts[k];
    cf_model_free(i->spec);
    free(i->parts);
    i->spec = spec;
    i->parts = parts;
    i->n_parts = f->n_parts;
    i->host_bytes = f->host_bytes;
    i->concurrent_room = spec->max_concurrent;
    return FO_OK;
}

static void where(const struct pd_form *f, char *out, size_t size) {
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < f->n_parts && n < size; i++) n += (size_t)snprintf(out + n, size - n, "%s%s", i ? " + " : "", f->parts[i].die);
}

int pd_start_step(struct pd_loop *l, const struct cf_step *p, struct fo_err *e) {
    static const enum pd_step_kind kinds[] = { [CF_STEP_UNLOAD] = PD_STEP_UNLOAD, [CF_STEP_LOAD] = PD_STEP_LOAD, [CF_STEP_RELOAD] = PD_STEP_RELOAD };
    struct pd_instance *inst = pd_world_instance(&l->world, p->model, p->replica);
    struct pd_step *s = pd_step_new(kinds[p->kind]);
    char dies[160];
    if (!s || !(s->model = strdup(p->model))) {
        pd_step_free(s);
        return fo_fail(e, FO_ENOMEM, "no memory for a step");
    }
    s->replica = p->replica;
    s->ad_hoc = p->ad_hoc;
    s->trusted = p->trusted;
    int code = FO_OK;
    if (p->kind != CF_STEP_UNLOAD) {
        code = pd_form_set(&s->want, p->spec, p->parts, p->n_parts, p->host_bytes, p->staging_bytes, e);
        if (code == FO_OK) code = find_devices(l, &s->want, e);
    }
    if (code == FO_OK && p->kind != CF_STEP_LOAD) {
        if (!inst) code = fo_fail(e, FO_EINTERNAL, "the plan unloads what is not there");
        else code = pd_form_set(&s->had, inst->spec, inst->parts, inst->n_parts, inst->host_bytes, 0, e);
        if (code == FO_OK) code = find_devices(l, &s->had, e);
    }
    if (code == FO_OK && p->kind == CF_STEP_LOAD) {
        if (inst) code = fo_fail(e, FO_EINTERNAL, "the plan loads what is there");
        else if (!(inst = pd_world_add(&l->world, p->model, p->replica))) code = fo_fail(e, FO_ENOMEM, "no memory for an instance");
        else if ((code = adopt(inst, &s->want, e)) != FO_OK) pd_world_remove(&l->world, inst);
        else inst->state = CF_I_LOADING;
    }
    if (code) {
        pd_step_free(s);
        return code;
    }
    s->others = pd_facts_held(&l->world, l->opts.no_mmap, inst);
    where(p->kind == CF_STEP_UNLOAD ? &s->had : &s->want, dies, sizeof dies);
    enum cf_instance_state before = inst->state;
    inst->ad_hoc = p->kind == CF_STEP_UNLOAD ? inst->ad_hoc : p->ad_hoc;
    if (p->kind != CF_STEP_LOAD && before != CF_I_FAILED) inst->state = CF_I_DRAINING;
    static const enum pd_event_id started[] = { [CF_STEP_UNLOAD] = PD_EV_UNLOAD_STARTED, [CF_STEP_LOAD] = PD_EV_LOAD_STARTED, [CF_STEP_RELOAD] = PD_EV_RELOAD_STARTED };
    if (p->trusted) pd_app_event(l->app, PD_EV_GATE_OVERRIDDEN, p->model, "memory: trust; %s", p->why);
    pd_app_event(l->app, started[p->kind], p->model, "on %s: %s", dies, p->why);
    if (begin(l, s)) {
        l->step_no = pd_note_step(l, p);
        return FO_OK;
    }
    inst->state = before;
    if (p->kind == CF_STEP_LOAD) pd_world_remove(&l->world, inst);
    pd_step_free(s);
    return fo_fail(e, FO_ENOMEM, "no memory for a step");
}

int pd_set_live(struct pd_loop *l, const struct cf_step *p, struct fo_err *e) {
    struct pd_instance *inst = pd_world_instance(&l->world, p->model, p->replica);
    struct cf_model *spec;
    if (!inst) return fo_fail(e, FO_EINTERNAL, "the plan changes what is not there");
    if (cf_model_copy(p->spec, &spec, e)) return e->code;
    if (pd_actuate_set(l->app, p->replica, spec, e)) {
        cf_model_free(spec);
        return e->code;
    }
    cf_model_free(inst->spec);
    inst->spec = spec;
    inst->ad_hoc = p->ad_hoc;
    pd_note_step_end(l, pd_note_step(l, p), FO_OK, "", 0);
    pd_app_event(l->app, PD_EV_CHANGED, p->model, "%s", p->why);
    return FO_OK;
}

/* --- what the loader brings back --- */

static void log_loaded(struct pd_loop *l, const struct pd_step *s) {
    struct pn_served *served = pn_engine_get_replica(l->app->engine, s->model, (uint32_t)s->replica);
    char name[128], weights[16], kv[16], scratch[16], dies[160], why[300];
    if (!served) return;
    const struct pn_model_info *i = pn_model_info(pn_served_model(served));
    where(&s->want, dies, sizeof dies);
    fo_log(FO_LOG_INFO, "serve",
           "event=model_ready model=%s replica=%lld dies=\"%s\" arch=%s type=%s ctx_cap=%u ctx_trained=%u max_sessions=%u max_concurrent=%u weights=\"%s\" kv=\"%s\" scratch=\"%s\" ms=%llu",
           pd_log_quote(s->model, name, sizeof name), (long long)s->replica, dies, i->arch, i->ftype, i->ctx_cap, i->n_ctx_train, i->max_sessions, i->max_concurrent,
           fo_format_bytes(i->weights_bytes, weights, sizeof weights), fo_format_bytes(i->kv_bytes, kv, sizeof kv),
           fo_format_bytes(i->scratch_bytes, scratch, sizeof scratch), (unsigned long long)s->took_ms);
    if (i->ctx_cap > i->n_ctx_train)
        fo_log(FO_LOG_WARN, "serve", "event=beyond_trained model=%s ctx_cap=%u ctx_trained=%u next=\"positions past the trained length are scaled as the file says\"", name, i->ctx_cap,
               i->n_ctx_train);
    if (!i->has_tokenizer)
        fo_log(FO_LOG_WARN, "serve", "event=no_tokenizer model=%s reason=%s next=\"takes token ids only\"", name,
               pd_log_quote(i->tokenizer_error ? i->tokenizer_error : "", why, sizeof why));
    pn_served_put(served);
}

static void take_estimates(struct pd_loop *l, struct pd_step *s) {
    struct pd_world *w = &l->world;
    l->probe_failed = s->code != FO_OK;
    struct pd_estimate **list = realloc(w->estimates, (w->n_estimates + s->n_ask + 1) * sizeof(struct pd_estimate *));
    if (!list) {
        l->probe_failed = true;
        return;
    }
    w->estimates = list;
    for (size_t i = 0; s->found && i < s->n_ask; i++) {
        if (!s->found[i]) continue;
        list[w->n_estimates++] = s->found[i];
        s->found[i] = NULL;
    }
}

static void now_serves(struct pd_instance *inst, uint64_t generation) {
    inst->state = CF_I_READY;
    inst->mourned = false;
    inst->reason[0] = '\0';
    inst->generation = generation;
    inst->loaded_at_ms = fo_now_ms();
    inst->used_at_ms = inst->requests = 0;
}

/* A model without a usable template serves all the same, but for chats: its condition, and a line now. */
static void look_at_chat(struct pd_loop *l, struct pd_instance *inst) {
    struct pn_served *served = pn_engine_get_replica(l->app->engine, inst->name, (uint32_t)inst->replica);
    if (!served) return;
    const struct pn_model *m = pn_served_model(served);
    const struct pn_chat *chat = pn_model_chat(m);
    const char *error = pn_model_info(m)->tokenizer_error;
    char name[128], why[400];
    struct fo_err e = { 0 };
    inst->chat_why[0] = '\0';
    if (!chat) {
        inst->chat_word = "NoTokenizer";
        snprintf(inst->chat_why, sizeof inst->chat_why, "%s", error ? error : "the model has no tokenizer");
    } else if (pn_chat_state(chat, &e)) {
        inst->chat_word = pn_chat_source(chat) == PN_CHAT_NONE ? "NoTemplate" : "TemplateInvalid";
        snprintf(inst->chat_why, sizeof inst->chat_why, "%s", e.msg);
        if (pn_chat_source(chat) != PN_CHAT_NONE)
            fo_log(FO_LOG_WARN, "serve", "event=chat_template_invalid model=%s reason=%s next=\"serves completions only\"", pd_log_quote(inst->name, name, sizeof name),
                   pd_log_quote(e.msg, why, sizeof why));
    } else {
        inst->chat_word = "Template";
        struct pd_dialect_words w = pd_dialect_words(m);
        fo_log(FO_LOG_INFO, "serve", "event=dialect model=%s tools=%s reasoning=%s", pd_log_quote(inst->name, name, sizeof name), w.tools ? w.tools : "none",
               w.reasoning ? pd_log_quote(w.reasoning, why, sizeof why) : "none");
    }
    pn_served_put(served);
}

static void loaded(struct pd_loop *l, struct pd_instance *inst, const struct pd_step *s) {
    struct pd_history *h = pd_world_history(&l->world, s->model);
    char text[16];
    now_serves(inst, s->generation);
    if (h) {
        h->loads++;
        h->failures = 0;
        h->retry_at_ms = 0;
        h->served_since_ms = h->used_at_ms = fo_now_ms();
        h->wanted_at_ms = 0;
        if (s->kind == PD_STEP_LOAD) h->load_ms = s->took_ms ? s->took_ms : 1;
    }
    log_loaded(l, s);
    look_at_chat(l, inst);
    pd_app_event(l->app, s->kind == PD_STEP_RELOAD ? PD_EV_RELOAD_DONE : PD_EV_LOAD_DONE, s->model, "after %s", fo_format_ms(s->took_ms, text, sizeof text));
}

void pd_finish_step(struct pd_loop *l) {
    struct pd_step *s = pd_loader_take(l->loader);
    struct fo_err e;
    char text[16];
    if (!s) return;
    l->step = NULL;
    struct pd_instance *inst = s->kind == PD_STEP_PROBE ? NULL : pd_world_instance(&l->world, s->model, s->replica);
    if (inst) pd_note_step_end(l, l->step_no, (int)s->code, s->err.msg, s->took_ms);
    switch (s->kind) {
    case PD_STEP_PROBE:
        take_estimates(l, s);
        break;
    case PD_STEP_LOAD:
        if (s->code == FO_OK) {
            loaded(l, inst, s);
        } else {
            pd_world_remove(&l->world, inst);
            pd_note_failure(l, s->model, s->err.msg);
        }
        break;
    case PD_STEP_UNLOAD:
        pd_world_remove(&l->world, inst);
        pd_app_event(l->app, PD_EV_UNLOAD_DONE, s->model, "after %s", fo_format_ms(s->took_ms, text, sizeof text));
        break;
    case PD_STEP_RELOAD:
        if (s->code == FO_OK && adopt(inst, &s->want, &e) == FO_OK) {
            loaded(l, inst, s);
        } else if (s->code == FO_OK || (s->unloaded && !s->restored)) {
            pd_world_remove(&l->world, inst); /* when it runs but there was no memory to note it, the engine's copy is drift: found by name */
            pd_note_failure(l, s->model, s->code ? s->err.msg : e.msg);
        } else {
            now_serves(inst, inst->generation);
            pd_note_failure(l, s->model, s->err.msg);
            pd_app_event(l->app, PD_EV_ROLLED_BACK, s->model, "the old form serves%s", s->unloaded ? " again" : " on");
        }
        break;
    }
    pd_step_free(s);
    pd_world_close_dies(&l->world);
}
