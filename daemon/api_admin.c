/* /admin/...: what is there, why, and what an administrator may ask for. Pages read the newest view and the engine's snapshots; what
 * changes something is an ask to the loop, and waiting for it is waiting for a newer view. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/facts.h"
#include "config/judge.h"
#include "config/manifest.h"
#include "daemon/api_events.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

enum {
    SLICE_MS = 250,                 /* how often one who waits looks whether its client is still there */
    TURN_MS = 50,                   /* how often a model on demand is looked after that waits for its turn */
    ACCEPT_MS = 30 * 1000,          /* longest wait for the loop to look at an ask */
    SETTLE_MS = 24 * 3600 * 1000,   /* and for everything to be done: loads have their own limits */
    LOOK_MS = 1000,                 /* for fresh facts; then those there are */
    PING_MS = 10 * 1000,            /* a stream of steps is silent no longer than this */
    MAX_EVENTS = 8                  /* of a model, newest */
};

/* --- small things --- */

static bool asked_for(const struct pd_call *c, const char *key) {
    char value[32];
    return pd_query_get(c->head->query, key, value, sizeof value) && strcmp(value, "0") != 0 && strcmp(value, "false") != 0;
}

/* Asks, and answers the error when the queue is full. */
static bool ask(struct pd_app *app, struct pd_call *c, enum pd_ask_kind kind, const char *name, struct cf_model *spec, uint64_t *ret_seq) {
    struct fo_err e;
    struct pd_error x;
    char who[PD_MAX_WHO];
    if (pd_app_ask(app, kind, name, spec, pd_call_who(c, who, sizeof who), ret_seq, &e) == FO_OK) return true;
    pd_error_set(&x, e.code == FO_EBUSY ? PD_ERR_ADMIN_BUSY : PD_ERR_MEMORY, NULL, "%s.", e.msg);
    pd_error_reply(c, &x);
    return false;
}

/* Whether a model on demand still waits for its turn, though there is nothing to do but to let the time pass. */
static bool has_a_turn(const struct pd_view *v, const char *name) {
    const struct pd_entry *e = name ? pd_view_find(v, name) : NULL;
    return e && e->wanted && pd_entry_comes(e);
}

/* A view that has looked at ask `seq` (and is settled, and in which model `turn`, unless NULL, has had its turn); NULL when the client left, the server stops, or time is over (*ret_late). */
static struct pd_view *await(struct pd_app *app, struct pd_call *c, uint64_t seq, bool settled, const char *turn, int64_t limit_ms, bool *ret_late) {
    uint64_t end = fo_now_ms() + limit_ms;
    *ret_late = false;
    for (;;) {
        struct pd_view *v = pd_app_wait(app, seq, settled, 0, SLICE_MS);
        bool there = v && v->asked >= seq && (!settled || v->settled), early = there && has_a_turn(v, turn);
        if (there && !early) return v;
        if (early) pd_view_put(pd_app_wait(app, UINT64_MAX, false, 0, TURN_MS));
        pd_view_put(v);
        if (pd_client_gone(c) || atomic_load(&app->draining)) return NULL;
        if (fo_now_ms() >= end) {
            *ret_late = true;
            return NULL;
        }
    }
}

/* --- pages --- */

static void reply_text(struct pd_call *c, char *text) {
    struct fo_buf out;
    fo_buf_init(&out, CF_MAX_FACTS_BYTES * 2);
    if (text) fo_buf_puts(&out, text);
    else out.failed = true;
    pd_json_reply(c, 200, &out);
    fo_buf_done(&out);
    free(text);
}

void pd_get_admin_facts(struct pd_app *app, struct pd_call *c, const char *param) {
    uint64_t seq;
    (void)param;
    if (!ask(app, c, PD_ASK_LOOK, NULL, NULL, &seq)) return;
    struct pd_view *v = pd_app_wait(app, seq, false, 0, LOOK_MS);
    reply_text(c, cf_facts_write(v->facts));
    pd_view_put(v);
}

/* What a die's driver says; nothing of what it does not. */
static void add_sensors(json_t *die, const struct fo_sensors *s) {
    if (s->has_temperature) json_object_set_new(die, "temperature_celsius", json_real(s->temperature_celsius));
    if (s->has_power) json_object_set_new(die, "power_watts", json_real(s->power_watts));
    if (!s->has_ecc) return;
    json_object_set_new(die, "ecc_corrected", json_integer((json_int_t)s->ecc_corrected));
    json_object_set_new(die, "ecc_uncorrected", json_integer((json_int_t)s->ecc_uncorrected));
}

void pd_get_admin_dies(struct pd_app *app, struct pd_call *c, const char *param) {
    struct fo_buf out;
    (void)param;
    struct pd_view *v = pd_app_view(app);
    fo_buf_init(&out, CF_MAX_FACTS_BYTES);
    cf_facts_write_some(v->facts, CF_FACTS_DIES, &out);
    json_t *o = out.failed ? NULL : json_loadb(fo_buf_str(&out), out.len, 0, NULL);
    for (size_t i = 0; o && v->sensors && i < v->facts->n_dies; i++) add_sensors(json_array_get(json_object_get(o, "dies"), i), &v->sensors[i]);
    fo_buf_done(&out);
    pd_view_put(v);
    pd_reply_object(c, 200, o);
}

static json_t *condition_object(const char *type, const struct pd_condition *k) {
    return json_pack("{s:s, s:s, s:s, s:s, s:I}", "type", type, "status", k->is ? "True" : "False", "reason", k->reason, "message", k->message, "since", (json_int_t)k->since);
}

static const char *instance_state_name(enum cf_instance_state s) {
    static const char *const names[] = { [CF_I_LOADING] = "loading", [CF_I_READY] = "ready", [CF_I_DRAINING] = "draining", [CF_I_UNLOADING] = "unloading", [CF_I_FAILED] = "failed" };
    return names[s];
}

/* How short memory is where a copy is, what it gives way by, and what is in force for it. */
static json_t *memory_object(const struct pn_served *s, const struct pn_model_info *info) {
    struct pn_served_status st;
    json_t *rungs = json_array();
    char kv[32];
    pn_served_status(s, &st);
    for (uint32_t i = 0; i < st.rungs; i++) json_array_append_new(rungs, json_string(pn_rung_at(i)->name));
    bool floor = st.effective.kv_floor;
    snprintf(kv, sizeof kv, "%s/%s", pn_kv_type_name(floor ? info->k_floor : info->k_type), pn_kv_type_name(floor ? info->v_floor : info->v_type));
    json_t *o = json_pack("{s:s, s:o, s:{s:I, s:I, s:I, s:s}, s:I, s:I, s:I}", "pressure", pn_level_name(st.level), "rungs", rungs, "effective", "ctx", (json_int_t)info->ctx_cap, "max_concurrent",
                          (json_int_t)st.effective.max_concurrent, "prefill_chunk", (json_int_t)st.effective.prefill_chunk, "kv", kv, "kv_bytes_used", (json_int_t)st.kv_bytes_used,
                          "kv_bytes_promised", (json_int_t)st.promised_bytes, "kv_floor_pages", (json_int_t)st.kv_small_pages);
    if (o && st.room_bytes != UINT64_MAX) json_object_set_new(o, "room_bytes", json_integer((json_int_t)st.room_bytes));
    return o;
}

/* A copy: where it is, what that was estimated to take, and what was taken. */
static json_t *placement_object(struct pd_app *app, const struct cf_instance *i) {
    json_t *parts = json_array(), *obj;
    struct cf_kv kv = cf_model_kv(i->spec);
    char kv_text[CF_KV_TEXT];
    for (size_t k = 0; k < i->n_parts; k++) {
        const struct cf_part *p = &i->parts[k];
        json_array_append_new(parts, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "die", p->die, "first_layer", (json_int_t)p->first_layer, "n_layers", (json_int_t)p->n_layers, "weights_bytes",
                                               (json_int_t)p->weights_bytes, "kv_bytes", (json_int_t)p->kv_bytes, "scratch_bytes", (json_int_t)p->scratch_bytes));
    }
    obj = json_pack("{s:I, s:s, s:I, s:I, s:s, s:I, s:o}", "replica", (json_int_t)i->replica, "state", instance_state_name(i->state), "generation", (json_int_t)i->generation, "running",
                    (json_int_t)i->running, "kv_type", cf_kv_text(&kv, kv_text), "host_bytes", (json_int_t)i->host_bytes, "estimated", parts);
    if (obj && i->reason) json_object_set_new(obj, "reason", json_string(i->reason));
    struct pn_served *s = i->state == CF_I_LOADING ? NULL : pn_engine_get_replica(app->engine, i->name, (uint32_t)i->replica);
    if (s && obj) {
        const struct pn_model_info *info = pn_model_info(pn_served_model(s));
        json_t *measured = json_array();
        for (int k = 0; k < info->n_parts; k++) {
            const struct pn_part_info *p = &info->parts[k];
            json_array_append_new(measured, json_pack("{s:s, s:I, s:I, s:I, s:b}", "die", p->dev->die.name, "weights_bytes", (json_int_t)p->weights_bytes, "kv_bytes", (json_int_t)p->kv_bytes,
                                                      "scratch_bytes", (json_int_t)p->scratch_bytes, "mapped", p->mapped));
        }
        json_object_set_new(obj, "measured", measured);
        json_object_set_new(obj, "memory", memory_object(s, info));
    }
    pn_served_put(s);
    return obj;
}

static void add_counters(struct pd_app *app, const struct pd_view *v, const struct pd_entry *e, json_t *obj) {
    struct pn_served_status sum = { 0 };
    for (size_t i = 0; i < v->facts->n_instances; i++) {
        const struct cf_instance *inst = &v->facts->instances[i];
        if (strcmp(inst->name, e->decl->name) != 0) continue;
        struct pn_served *s = pn_engine_get_replica(app->engine, inst->name, (uint32_t)inst->replica);
        struct pn_served_status st;
        if (!s) continue;
        pn_served_status(s, &st);
        pn_served_put(s);
        sum.running += st.running;
        sum.queued += st.queued;
        sum.requests += st.requests;
        sum.refused += st.refused;
        sum.failed += st.failed;
        sum.cancelled += st.cancelled;
        sum.tokens_prefilled += st.tokens_prefilled;
        sum.tokens_decoded += st.tokens_decoded;
    }
    json_object_set_new(obj, "counters",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "running", (json_int_t)sum.running, "queued", (json_int_t)sum.queued, "requests",
                                  (json_int_t)sum.requests, "refused", (json_int_t)sum.refused, "failed", (json_int_t)sum.failed, "cancelled", (json_int_t)sum.cancelled,
                                  "tokens_prefilled", (json_int_t)sum.tokens_prefilled, "tokens_decoded", (json_int_t)sum.tokens_decoded, "loads", (json_int_t)e->loads, "load_failures",
                                  (json_int_t)e->load_failures));
}

static json_t *events_of(struct pd_app *app, const char *model) {
    json_t *list = json_array();
    struct pd_event ev;
    for (uint64_t after = 0; pd_app_next_event(app, after, model, &ev); after = ev.seq) {
        json_array_append_new(list, pd_event_object(&ev));
        if (json_array_size(list) > MAX_EVENTS) json_array_remove(list, 0);
    }
    return list;
}

static json_t *model_status(struct pd_app *app, const struct pd_view *v, const struct pd_entry *e) {
    json_t *aliases = json_array(), *placement = json_array(), *conditions = json_array();
    const struct cf_model *d = e->decl;
    int64_t ctx = d->ctx_cap;
    for (size_t i = 0; i < d->n_aliases; i++) json_array_append_new(aliases, json_string(d->aliases[i]));
    for (size_t i = 0; i < v->facts->n_instances; i++)
        if (strcmp(v->facts->instances[i].name, d->name) == 0) json_array_append_new(placement, placement_object(app, &v->facts->instances[i]));
    for (int i = 0; i < PD_N_CONDITIONS; i++) json_array_append_new(conditions, condition_object(pd_condition_name(i), &e->conditions[i]));
    for (size_t i = 0; i < v->facts->n_estimates; i++) {
        const struct cf_estimate *est = &v->facts->estimates[i];
        if (!est->error && cf_estimate_is_of(est, d)) ctx = est->ctx_cap;
    }
    json_t *o = json_pack("{s:s, s:o, s:b, s:b, s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "name", d->name, "aliases", aliases, "declared", e->declared, "ad_hoc", e->ad_hoc, "status",
                          pd_model_state_name(e->state), "reason", e->reason, "since", (json_int_t)e->since, "generation", (json_int_t)v->manifest->generation, "observed_generation",
                          (json_int_t)e->observed_generation, "placement", placement, "conditions", conditions);
    if (!o) return NULL;
    json_object_set_new(o, "limits",
                        json_pack("{s:I, s:I, s:s, s:I, s:I, s:I}", "ctx_cap", (json_int_t)ctx, "effective_ctx", (json_int_t)ctx, "limited_by", "manifest", "max_sessions",
                                  (json_int_t)d->max_sessions, "max_concurrent", (json_int_t)d->max_concurrent, "queue_depth", (json_int_t)d->queue_depth));
    add_counters(app, v, e, o);
    json_object_set_new(o, "events", events_of(app, d->name));
    return o;
}

static json_t *server_object(const struct pd_app *app, const struct pd_view *v) {
    json_t *conditions = json_array();
    for (int i = 0; i < PD_N_SERVER_CONDITIONS; i++) json_array_append_new(conditions, condition_object(pd_server_condition_name(i), &v->conditions[i]));
    return json_pack("{s:s, s:I, s:I, s:b, s:o, s:I, s:I, s:s}", "config", app->config ? app->config : "", "generation", (json_int_t)v->manifest->generation, "observed_generation", (json_int_t)v->observed_generation, "settled", v->settled, "conditions", conditions, "refused", (json_int_t)v->n_refused,
                     "failing", (json_int_t)v->n_failing, "report", v->report);
}

void pd_get_admin_models(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_view *v = pd_app_view(app);
    json_t *list = json_array(), *o = server_object(app, v);
    for (size_t i = 0; i < v->n; i++) json_array_append_new(list, model_status(app, v, &v->entries[i]));
    if (o) json_object_set_new(o, "models", list);
    else json_decref(list);
    pd_view_put(v);
    pd_reply_object(c, 200, o);
}

/* --- load and unload --- */

/* Answers with the model's status: 202 at once, or 200 or the reason why not when ?wait was given and it is settled. */
static void reply_model(struct pd_app *app, struct pd_call *c, const char *name, uint64_t seq, bool gone_is_good) {
    bool late, wait = asked_for(c, "wait");
    struct pd_error x;
    struct pd_view *v = await(app, c, seq, wait, wait && !gone_is_good ? name : NULL, wait ? SETTLE_MS : ACCEPT_MS, &late);
    if (!v) {
        pd_error_set(&x, late ? PD_ERR_ADMIN_BUSY : PD_ERR_DRAINING, NULL, late ? "The loop did not look in time; what was asked for is still to be done." : "The server is stopping; what was asked for was not waited for.");
        pd_error_reply(c, &x);
        return;
    }
    const struct pd_entry *e = pd_view_find(v, name);
    if (wait && !gone_is_good && e && e->state != PD_MODEL_READY) {
        pd_entry_refusal(e, &x);
        pd_error_reply(c, &x);
    } else if (e) {
        pd_reply_object(c, wait ? 200 : 202, model_status(app, v, e));
    } else {
        pd_reply_object(c, wait ? 200 : 202, json_pack("{s:s, s:s}", "name", name, "status", "absent"));
    }
    pd_view_put(v);
}

/* The body's `name`; its object in *ret (give it up). False after the error was answered. */
static bool body_name(struct pd_call *c, json_t **ret, const char **ret_name) {
    struct pd_error x;
    json_error_t at;
    json_t *o = json_loadb(c->body, c->n_body, JSON_REJECT_DUPLICATES, &at), *name = o ? json_object_get(o, "name") : NULL;
    if (o && json_is_string(name)) {
        *ret = o;
        *ret_name = json_string_value(name);
        return true;
    }
    if (!o) pd_error_set(&x, PD_ERR_INVALID, NULL, "The body is not a JSON object: %.200s (line %d).", at.text, at.line);
    else pd_error_set(&x, PD_ERR_INVALID, "name", "The body needs `name`, the model's.");
    pd_error_reply(c, &x);
    json_decref(o);
    return false;
}

/* What ?dry_run answers: the keys that loading `spec` (NULL: as it was) would change, and what each costs; all are new where there is no entry. */
static json_t *change_object(const struct pd_entry *there, const char *name, const struct cf_model *spec) {
    static const char *const costs[] = { [CF_LIVE] = "live", [CF_DRAIN] = "drain", [CF_RELOAD] = "reload" };
    struct cf_diff diffs[CF_MAX_DIFFS];
    json_t *changes = json_array();
    size_t n = there && spec ? cf_model_diff(there->decl, spec, diffs) : 0;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(changes, json_pack("{s:s, s:s, s:s, s:s}", "key", diffs[i].key, "change", costs[diffs[i].change], "was", diffs[i].was, "is", diffs[i].is));
    return json_pack("{s:s, s:b, s:s, s:s, s:o}", "name", name, "dry_run", 1, "status", there ? pd_model_state_name(there->state) : "absent", "reason", there ? there->reason : "",
                     "changes", changes);
}

void pd_post_admin_load(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_error x;
    struct cf_report report = { 0 };
    struct cf_model *spec = NULL;
    struct fo_err e;
    json_t *o;
    const char *name;
    uint64_t seq;
    (void)param;
    if (!body_name(c, &o, &name)) return;
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *there = pd_view_find(v, name);
    bool ok = true, bare = json_object_size(o) == 1;
    if (there && strcmp(there->decl->name, name) != 0)
        ok = pd_error_set(&x, PD_ERR_CONFLICT, "name", "'%.100s' is an alias of the model '%s'.", name, there->decl->name);
    else if (there && there->declared && !bare)
        ok = pd_error_set(&x, PD_ERR_CONFLICT, "name", "The model '%.100s' is declared in the manifest: its keys are changed there; here its name alone loads it again.", name);
    else if (!bare && cf_model_parse(c->body, c->n_body, &v->manifest->m->defaults, &spec, &report, &e))
        ok = pd_error_set(&x, PD_ERR_INVALID, NULL, "%.500s", report.n ? report.findings[0].text : e.msg);
    else if (bare && !there)
        ok = pd_error_set(&x, PD_ERR_NO_MODEL, "name", "The model '%.100s' is not declared: loading it needs its keys, at least `source`.", name);
    for (size_t i = 0; ok && spec && i < spec->n_aliases; i++) {
        const struct pd_entry *other = pd_view_find(v, spec->aliases[i]);
        if (other && other != there) ok = pd_error_set(&x, PD_ERR_CONFLICT, "aliases", "'%.100s' means the model '%s' already.", spec->aliases[i], other->decl->name);
    }
    bool dry = ok && asked_for(c, "dry_run");
    json_t *would = dry ? change_object(there, name, spec) : NULL;
    cf_report_done(&report);
    pd_view_put(v);
    if (!ok || dry) {
        cf_model_free(spec);
        if (dry) pd_reply_object(c, 200, would);
        else pd_error_reply(c, &x);
    } else if (ask(app, c, PD_ASK_LOAD, name, spec, &seq)) {
        reply_model(app, c, name, seq, false);
    }
    json_decref(o);
}

void pd_post_admin_unload(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_error x;
    json_t *o;
    const char *name;
    uint64_t seq;
    (void)param;
    if (!body_name(c, &o, &name)) return;
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *there = pd_view_find(v, name);
    bool ok = there && strcmp(there->decl->name, name) == 0;
    pd_view_put(v);
    if (!ok) {
        pd_error_set(&x, PD_ERR_NO_MODEL, "name", "There is no model '%.100s' to unload.", name);
        pd_error_reply(c, &x);
    } else if (ask(app, c, PD_ASK_UNLOAD, name, NULL, &seq)) {
        reply_model(app, c, name, seq, true);
    }
    json_decref(o);
}

/* --- reconcile --- */

static json_t *verdict_object(const struct pd_app *app, const struct pd_view *v, const char *result) {
    json_t *o = server_object(app, v), *models = json_array();
    for (size_t i = 0; i < v->n; i++) {
        const struct pd_entry *e = &v->entries[i];
        json_array_append_new(models, json_pack("{s:s, s:s, s:s, s:b}", "name", e->decl->name, "status", pd_model_state_name(e->state), "reason", e->reason, "declared", e->declared));
    }
    if (!o) {
        json_decref(models);
        return NULL;
    }
    json_object_set_new(o, "models", models);
    json_object_set_new(o, "result", json_string(result));
    return o;
}

static bool write_line(struct pd_call *c, json_t *o) {
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    struct fo_buf out;
    json_decref(o);
    if (!text) return false;
    fo_buf_init(&out, 4 << 20);
    fo_buf_printf(&out, "%s\n", text);
    free(text);
    bool ok = !out.failed && pd_stream_write(c, out.data, out.len);
    fo_buf_done(&out);
    return ok;
}

/* One JSON object a line: events as they happen, then the result. */
static void stream_steps(struct pd_app *app, struct pd_call *c, uint64_t seq, uint64_t event) {
    struct pd_event ev;
    uint64_t said = fo_now_ms();
    if (!pd_stream_open(c, 200, "application/x-ndjson", "Cache-Control: no-store\r\n")) return;
    for (;;) {
        struct pd_view *v = pd_app_wait(app, seq, true, event, SLICE_MS);
        bool looked = v->asked >= seq, done = looked && (v->settled || !v->manifest_ok), ok = true;
        while (ok && pd_app_next_event(app, event, NULL, &ev)) {
            event = ev.seq;
            ok = write_line(c, pd_event_object(&ev));
            said = fo_now_ms();
        }
        if (ok && done) ok = write_line(c, verdict_object(app, v, v->manifest_ok ? "applied" : "manifest_invalid")) && false;
        else if (ok && atomic_load(&app->draining)) ok = write_line(c, verdict_object(app, v, "draining")) && false;
        else if (ok && fo_now_ms() - said >= PING_MS) ok = pd_stream_write(c, "\n", 1);
        pd_view_put(v);
        if (!ok || pd_client_gone(c)) break;
        if (fo_now_ms() - said >= PING_MS) said = fo_now_ms();
    }
    pd_stream_close(c);
}

void pd_post_admin_reconcile(struct pd_app *app, struct pd_call *c, const char *param) {
    char value[32] = "";
    struct pd_error x;
    uint64_t seq, event;
    bool late, applied;
    (void)param;
    if (pd_query_get(c->head->query, "if_generation", value, sizeof value)) {
        if (!*value || strspn(value, "0123456789") != strlen(value)) {
            pd_error_set(&x, PD_ERR_INVALID, "if_generation", "if_generation takes a number.");
            pd_error_reply(c, &x);
            return;
        }
        struct pd_view *v = pd_app_view(app);
        uint64_t is = v->manifest->generation;
        pd_view_put(v);
        if (strtoull(value, NULL, 10) != is) {
            pd_error_set(&x, PD_ERR_CONFLICT, "if_generation", "The generation in force is %llu, not %.20s: somebody else changed the manifest.", (unsigned long long)is, value);
            pd_error_reply(c, &x);
            return;
        }
    }
    event = pd_app_last_event(app);
    if (asked_for(c, "prune") && !ask(app, c, PD_ASK_PRUNE, NULL, NULL, &seq)) return;
    if (!ask(app, c, PD_ASK_RELOAD, NULL, NULL, &seq)) return;
    if (asked_for(c, "stream")) {
        stream_steps(app, c, seq, event);
        return;
    }
    if (!asked_for(c, "wait")) {
        pd_reply_object(c, 202, json_pack("{s:s}", "result", "asked"));
        return;
    }
    pd_query_get(c->head->query, "wait", value, sizeof value);
    applied = strcmp(value, "applied") == 0;
    struct pd_view *v = await(app, c, seq, false, NULL, ACCEPT_MS, &late);
    if (v && v->manifest_ok && applied) {
        pd_view_put(v);
        v = await(app, c, seq, true, NULL, SETTLE_MS, &late);
    }
    if (!v) {
        pd_error_set(&x, late ? PD_ERR_ADMIN_BUSY : PD_ERR_DRAINING, NULL, late ? "The loop did not look within 30 s." : "The server is stopping.");
        pd_error_reply(c, &x);
        return;
    }
    bool ok = v->manifest_ok;
    json_t *o = verdict_object(app, v, ok ? applied ? "applied" : "accepted" : "manifest_invalid");
    if (!ok && o) { /* the report is the answer; the error object is what every error has */
        const struct pd_error_row *row = pd_error_row(PD_ERR_MANIFEST);
        json_object_set_new(o, "error", json_pack("{s:s%, s:s, s:n, s:s}", "message", v->report, strcspn(v->report, "\n"), "type", row->type, "param", "code", row->code));
    }
    pd_view_put(v);
    pd_reply_object(c, ok ? 200 : 400, o);
}
