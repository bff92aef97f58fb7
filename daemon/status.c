/* Conditions say yes or no with one word why, for machines, and a message, for people. They are computed anew each time; only the time
 * since when they hold is carried over. */
#include "daemon/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/facts.h"
#include "config/judge.h"
#include "config/manifest.h"
#include "config/plan.h"
#include "daemon/actuate.h"
#include "daemon/app.h"
#include "daemon/pressure.h"
#include "daemon/watch.h"
#include "daemon/world.h"
#include "engine/mem/ladder.h"

/* What there is of one model. */
struct sum {
    const struct cf_verdict *verdict;
    const struct pd_history *history;
    size_t want, ready, failed, loading, placed;
    const struct cf_instance *a_failed;
    const struct pd_instance *chat; /* a copy that serves: what it says of chats */
    uint64_t observed;
    enum pn_level level; /* of memory: the highest of the copies that serve */
};

static const struct cf_verdict *verdict_of(const struct cf_plan *p, const char *name) {
    for (size_t i = 0; p && i < p->n_verdicts; i++)
        if (strcmp(p->verdicts[i].model, name) == 0) return &p->verdicts[i];
    return NULL;
}

static struct sum sum_up(const struct pd_status_input *in, const struct pd_entry *e) {
    const char *name = e->decl->name;
    struct sum s = { .verdict = verdict_of(in->plan, name), .history = pd_world_find_history(in->world, name), .want = e->decl->n_replicas ? e->decl->n_replicas : 1 };
    s.observed = UINT64_MAX;
    for (size_t i = 0; i < in->facts->n_instances; i++) {
        const struct cf_instance *inst = &in->facts->instances[i];
        if (strcmp(inst->name, name) != 0) continue;
        if (inst->generation < s.observed) s.observed = inst->generation;
        s.ready += inst->state == CF_I_READY;
        s.loading += inst->state == CF_I_LOADING;
        s.placed += inst->state == CF_I_READY || inst->state == CF_I_LOADING;
        s.failed += inst->state == CF_I_FAILED;
        if (inst->state == CF_I_FAILED) s.a_failed = inst;
    }
    for (size_t i = 0; i < in->world->n_instances && !s.chat; i++) {
        const struct pd_instance *inst = in->world->instances[i];
        if (inst->state == CF_I_READY && inst->chat_word && strcmp(inst->name, name) == 0) s.chat = inst;
    }
    for (size_t i = 0; i < in->world->n_instances; i++) {
        const struct pd_instance *inst = in->world->instances[i];
        if (inst->state == CF_I_READY && strcmp(inst->name, name) == 0 && inst->level > s.level) s.level = inst->level;
    }
    if (s.observed == UINT64_MAX) s.observed = 0;
    return s;
}

static void set_condition(struct pd_condition *c, const struct pd_condition *before, bool is, const char *reason, const char *message) {
    c->is = is;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    snprintf(c->message, sizeof c->message, "%s", message);
    c->since = before && before->reason[0] && before->is == is && strcmp(before->reason, reason) == 0 ? before->since : time(NULL);
}

static bool waits_for_retry(const struct pd_status_input *in, const struct sum *s) {
    return s->history && s->history->failures > 0 && s->history->retry_at_ms > in->now_ms;
}

static bool file_is_bad(const struct pd_status_input *in, const struct pd_entry *e) {
    for (size_t i = 0; i < in->facts->n_estimates; i++) {
        const struct cf_estimate *x = &in->facts->estimates[i];
        if (x->error && cf_estimate_is_of(x, e->decl)) return true;
    }
    return false;
}

/* A word for a file that is on its way, or does not come; NULL = it is there, or nobody said that it would come. */
static const char *file_word(const struct cf_file *f, uint64_t now_ms) {
    if (!f || f->state == CF_FILE_PRESENT) return NULL;
    if (f->state == CF_FILE_FETCHING) return "Downloading";
    if (f->state == CF_FILE_VERIFYING) return "Verifying";
    if (f->reason && (f->state == CF_FILE_WRONG || f->retry_at_ms > now_ms)) return f->reason;
    return "Pending";
}

/* What a model is called that has no file to be loaded from; NULL = its file is no matter. */
static const char *find_file_state(const struct pd_status_input *in, struct pd_entry *e) {
    const struct cf_file *f = cf_file_find(in->facts, e->decl);
    const struct cf_verdict *v = verdict_of(in->plan, e->decl->name);
    const char *word = file_word(f, in->now_ms);
    if (!word || e->decl->state == CF_STATE_ABSENT || (v && v->kind == CF_V_HELD) || (f->state == CF_FILE_UNVERIFIED && f->retry_at_ms <= in->now_ms)) return NULL;
    e->state = PD_MODEL_WAITING;
    if (f->state == CF_FILE_WRONG || f->retry_at_ms > in->now_ms) e->state = PD_MODEL_FAILED;
    if (f->state != CF_FILE_WRONG && f->retry_at_ms > in->now_ms) {
        e->retry_after_s = (uint32_t)((f->retry_at_ms - in->now_ms) / 1000 + 1);
        snprintf(e->reason, sizeof e->reason, "%.300s (next try in %u s)", f->error ? f->error : word, e->retry_after_s);
    } else {
        snprintf(e->reason, sizeof e->reason, "%s", v ? v->why : f->error ? f->error : word);
    }
    return word;
}

/* The state, and the word that conditions use for it. */
static const char *find_state(const struct pd_status_input *in, const struct sum *s, struct pd_entry *e) {
    const struct cf_verdict *v = s->verdict;
    const char *why = v ? v->why : "";
    bool at_work = in->step && in->step->kind != PD_STEP_PROBE && in->step->kind != PD_STEP_UNLOAD && strcmp(in->step->model, e->decl->name) == 0;
    e->state = PD_MODEL_WAITING;
    if (s->ready > 0) {
        e->state = PD_MODEL_READY;
        return "Serving";
    }
    if (!e->declared && !e->ad_hoc) {
        e->state = PD_MODEL_LEAVING;
        return "Leaving";
    }
    if (s->loading > 0 || at_work) {
        e->state = PD_MODEL_LOADING;
        return "Loading";
    }
    const char *of_file = find_file_state(in, e);
    if (of_file) return of_file;
    if (waits_for_retry(in, s)) {
        e->state = PD_MODEL_FAILED;
        uint64_t left = s->history->retry_at_ms - in->now_ms;
        e->retry_after_s = (uint32_t)(left / 1000 + 1);
        snprintf(e->reason, sizeof e->reason, "%.300s (next try in %u s)", s->history->last_error, e->retry_after_s);
        return "Backoff";
    }
    snprintf(e->reason, sizeof e->reason, "%s", why);
    if (s->a_failed) {
        e->state = PD_MODEL_FAILED;
        snprintf(e->reason, sizeof e->reason, "%s", s->a_failed->reason ? s->a_failed->reason : why);
        return "Failed";
    }
    if (!v) return "NotLookedAt";
    switch (v->kind) {
    case CF_V_REFUSED:
        e->state = file_is_bad(in, e) ? PD_MODEL_FAILED : PD_MODEL_REFUSED;
        if (v->would_fit && e->state == PD_MODEL_REFUSED) snprintf(e->reason, sizeof e->reason, "%.250s; would fit: %.100s", why, v->would_fit);
        e->pinned = e->state == PD_MODEL_REFUSED && v->code;
        e->need_bytes = e->state == PD_MODEL_REFUSED ? v->need_bytes : 0;
        e->have_bytes = v->have_bytes;
        return e->state == PD_MODEL_FAILED ? "FileNotUsable" : e->pinned ? "WouldEvictPinned" : "DoesNotFit";
    case CF_V_HELD:
        e->state = PD_MODEL_HELD;
        return "AdminUnloaded";
    case CF_V_IN_SYNC:
        e->state = e->decl->state == CF_STATE_ABSENT ? PD_MODEL_ABSENT : e->decl->state == CF_STATE_ON_DEMAND ? PD_MODEL_ON_DEMAND : PD_MODEL_WAITING;
        return e->state == PD_MODEL_ON_DEMAND ? "OnDemand" : "Absent";
    case CF_V_WAITING:
        return "Waiting";
    case CF_V_CHANGES:
        break;
    }
    return "Pending";
}

/* Where memory is short, and what follows for the model. */
static void memory_text(const struct pd_status_input *in, enum pn_level level, char *ret, size_t size) {
    pd_pressure_text(in->world, ret, size);
    size_t len = strlen(ret), n = pn_rungs_at_level(level);
    for (size_t i = 0; i < n && len < size; i++) len += (size_t)snprintf(ret + len, size - len, "%s%s", i == 0 ? ": " : ", ", pn_rung_at(i)->name);
}

/* What a load of the model will take, in milliseconds: what its last one did, else by its bytes. */
static uint64_t load_ms(const struct pd_status_input *in, const char *name) {
    enum { FIRST_MS = 500, BYTES_A_MS = 256 * 1024 }; /* of a disk that is not slow */
    const struct pd_history *h = pd_world_find_history(in->world, name);
    if (h && h->load_ms) return h->load_ms;
    const struct cf_step *load = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; in->plan && i < in->plan->n_steps && !load; i++)
        if (in->plan->steps[i].kind == CF_STEP_LOAD && strcmp(in->plan->steps[i].model, name) == 0) load = &in->plan->steps[i];
    for (size_t i = 0; load && i < load->n_parts; i++) bytes += load->parts[i].weights_bytes;
    return FIRST_MS + bytes / BYTES_A_MS;
}

/* When somebody who asked for a model on demand does well to come back: the step at work ends, its turn comes, it is loaded. */
static uint32_t comes_in_s(const struct pd_status_input *in, const struct pd_entry *e, const struct cf_verdict *v) {
    uint64_t ms = load_ms(in, e->decl->name), spent = in->now_ms - in->step_started_ms;
    if (in->step && in->step->kind != PD_STEP_PROBE && in->step->kind != PD_STEP_UNLOAD && strcmp(in->step->model, e->decl->name) != 0) ms += load_ms(in, in->step->model);
    if (in->step) ms = ms > spent ? ms - spent : 0;
    if (!in->step && v && v->kind == CF_V_WAITING && v->retry_at_ms > in->now_ms) ms += v->retry_at_ms - in->now_ms;
    return (uint32_t)(ms / 1000 < 119 ? ms / 1000 + 1 : 120);
}

static void fill_entry(const struct pd_status_input *in, const struct pd_entry *before, struct pd_entry *e) {
    struct sum s = sum_up(in, e);
    const char *word = find_state(in, &s, e);
    const char *why = e->reason[0] ? e->reason : pd_model_state_name(e->state);
    const struct pd_condition *old = before ? before->conditions : NULL;
    char text[320];
    e->observed_generation = s.observed;
    e->wanted = s.history && s.history->wanted_at_ms;
    if (pd_entry_comes(e) || (e->state == PD_MODEL_READY && e->decl->state == CF_STATE_ON_DEMAND)) e->retry_after_s = comes_in_s(in, e, s.verdict);
    e->since = before && before->state == e->state ? before->since : time(NULL);
    if (s.history) {
        e->loads = s.history->loads;
        e->load_failures = s.history->load_failures;
    }
#define SET(id, is, reason, message) set_condition(&e->conditions[id], old ? &old[id] : NULL, is, reason, message)
    snprintf(text, sizeof text, "%zu of %zu serve", s.ready, s.want);
    SET(PD_C_READY, s.ready > 0, word, s.ready > 0 ? text : why);
    SET(PD_C_LOADED, s.ready >= s.want, s.ready >= s.want ? "Loaded" : s.ready > 0 ? "Partly" : word, s.ready > 0 ? text : why);
    SET(PD_C_PLACED, s.placed > 0, s.placed > 0 ? "Placed" : word, s.placed > 0 ? "" : why);
    bool current = s.verdict && s.verdict->kind == CF_V_IN_SYNC;
    bool behind = s.ready > 0 && s.history && s.history->failures > 0, refused = s.ready > 0 && s.verdict && s.verdict->kind == CF_V_REFUSED;
    SET(PD_C_CURRENT, current, current ? "AsDeclared" : behind ? "OldForm" : refused ? "Refused" : "Pending", current ? "" : behind ? s.history->last_error : s.verdict ? s.verdict->why : "");
    bool degraded = s.ready > 0 && (s.ready < s.want || behind || refused);
    bool short_of_memory = !degraded && s.level > PN_NORMAL;
    if (short_of_memory) memory_text(in, s.level, text, sizeof text);
    SET(PD_C_DEGRADED, degraded || short_of_memory, short_of_memory ? "MemoryPressure" : degraded ? (behind || refused ? "OldForm" : "Partly") : s.ready > 0 ? "AsDeclared" : "NotServing",
        degraded || short_of_memory ? text : "");
    bool sick = s.failed > 0 || (s.history && s.history->failures > 0) || e->state == PD_MODEL_FAILED;
    SET(PD_C_HEALTHY, !sick, s.failed ? "Failed" : sick ? "LoadFailed" : "Ok",
        s.a_failed && s.a_failed->reason ? s.a_failed->reason : sick && s.history && s.history->last_error[0] ? s.history->last_error : sick ? why : "");
    const struct cf_file *file = cf_file_find(in->facts, e->decl);
    const char *of_file = file_word(file, in->now_ms);
    SET(PD_C_FETCHED, !of_file, of_file ? of_file : file ? "Present" : "NotDeclared", of_file ? (file->error ? file->error : s.verdict ? s.verdict->why : "") : "");
    SET(PD_C_CHAT, s.chat && strcmp(s.chat->chat_word, "Template") == 0, s.chat ? s.chat->chat_word : "NotServing", s.chat ? s.chat->chat_why : "");
#undef SET
}

static const struct pd_entry *entry_before(const struct pd_view *v, const char *name) {
    for (size_t i = 0; v && i < v->n; i++)
        if (strcmp(v->entries[i].decl->name, name) == 0) return &v->entries[i];
    return NULL;
}

static bool has_entry(const struct pd_view *v, const char *name) {
    return entry_before(v, name) != NULL;
}

static void fill_server(const struct pd_status_input *in, struct pd_view *v) {
    const struct pd_condition *old = in->before ? in->before->conditions : NULL;
    char text[384];
    size_t waiting = 0;
    for (size_t i = 0; i < v->n; i++) {
        const struct pd_entry *e = &v->entries[i];
        v->n_refused += e->state == PD_MODEL_REFUSED || strcmp(e->conditions[PD_C_CURRENT].reason, "Refused") == 0 || (e->state == PD_MODEL_FAILED && strcmp(e->conditions[PD_C_READY].reason, "FileNotUsable") == 0);
        v->n_failing += (e->state == PD_MODEL_FAILED && strcmp(e->conditions[PD_C_READY].reason, "FileNotUsable") != 0) || strcmp(e->conditions[PD_C_CURRENT].reason, "OldForm") == 0;
        waiting += e->state == PD_MODEL_WAITING;
    }
#define SET(id, is, reason, message) set_condition(&v->conditions[id], old ? &old[id] : NULL, is, reason, message)
    if (in->manifest_ok) SET(PD_S_MANIFEST_VALID, true, "Accepted", "");
    else SET(PD_S_MANIFEST_VALID, false, in->from_kept ? "ServingLastAccepted" : "Refused", in->report);
    snprintf(text, sizeof text, "%zu refused, %zu failing, %zu waiting%s%s", v->n_refused, v->n_failing, waiting, *in->restart ? "; needs a restart: " : "", in->restart);
    if (!v->settled) SET(PD_S_RECONCILED, false, "Working", in->step ? in->step->model ? in->step->model : "measuring files" : "");
    else if (*in->restart) SET(PD_S_RECONCILED, false, "RestartNeeded", text);
    else if (v->n_refused) SET(PD_S_RECONCILED, false, "Refused", text);
    else if (v->n_failing) SET(PD_S_RECONCILED, false, "Failing", text);
    else if (waiting) SET(PD_S_RECONCILED, false, "Waiting", text);
    else SET(PD_S_RECONCILED, true, "AsDeclared", "");
    SET(PD_S_DRAINING, in->draining, in->draining ? "Stopping" : "Serving", "");
    SET(PD_S_KEYS_VALID, in->keys->ok, in->keys->reason, in->keys->message);
    SET(PD_S_TLS_VALID, in->tls->ok, in->tls->reason, in->tls->message);
#undef SET
}

struct pd_view *pd_status_view(const struct pd_status_input *in) {
    const struct cf_manifest *m = in->manifest->m;
    struct cf_facts *f = in->facts;
    struct pd_view *v = calloc(1, sizeof *v);
    if (v) v->entries = calloc(m->n_models + f->n_histories + f->n_instances + 1, sizeof *v->entries);
    if (v) v->report = strdup(in->report);
    if (!v || !v->entries || !v->report) {
        if (v) free(v->entries);
        if (v) free(v->report);
        free(v);
        cf_facts_free(f);
        return NULL;
    }
    v->manifest = in->manifest;
    atomic_fetch_add(&v->manifest->refs, 1);
    v->facts = f;
    v->asked = in->asked;
    v->settled = in->settled;
    v->first_pass_over = in->first_pass_over;
    v->manifest_ok = in->manifest_ok;
    for (size_t i = 0; i < m->n_models; i++) v->entries[v->n++] = (struct pd_entry){ .decl = &m->models[i], .declared = true };
    for (size_t i = 0; i < f->n_histories; i++)
        if (f->histories[i].ad_hoc && !has_entry(v, f->histories[i].name)) v->entries[v->n++] = (struct pd_entry){ .decl = f->histories[i].ad_hoc, .ad_hoc = true };
    for (size_t i = 0; i < f->n_instances; i++)
        if (!has_entry(v, f->instances[i].name)) v->entries[v->n++] = (struct pd_entry){ .decl = f->instances[i].spec };
    for (size_t i = 0; i < v->n; i++) fill_entry(in, entry_before(in->before, v->entries[i].decl->name), &v->entries[i]);
    fill_server(in, v);
    return v;
}
