/* One step, from gate to settled memory. Gates are checked again here, against what the dies and the host say at this moment: the plan
 * was made a moment ago, and others use the machine too. After an unload the step lasts until the dies have their memory back: drivers
 * give it back late, and a load that starts before then fails although there is room. */
#include "daemon/actuate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/hostmem.h"
#include "daemon/log.h"
#include "daemon/sessions.h"
#include "engine/engine.h"
#include "foundry/base/clock.h"
#include "foundry/base/file.h"
#include "foundry/base/log.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

enum { MAX_TEMPLATE_BYTES = 1 << 20, LOOK_MS = 20, MAX_DEVICES = 64 };

struct pd_loader {
    struct pd_app *app;
    int bell;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct pd_step *todo, *done;
    bool stop;
    atomic_bool cancel;
};

/* --- steps as values --- */

static void form_done(struct pd_form *f) {
    cf_model_free(f->spec);
    free(f->parts);
    free(f->devices);
}

int pd_form_set(struct pd_form *f, const struct cf_model *spec, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes, uint64_t staging_bytes,
                struct fo_err *e) {
    if (cf_model_copy(spec, &f->spec, e)) return e->code;
    f->parts = calloc(n_parts ? n_parts : 1, sizeof *f->parts);
    f->devices = calloc(n_parts ? n_parts : 1, sizeof(struct fo_device *));
    if (!f->parts || !f->devices) return fo_fail(e, FO_ENOMEM, "no memory for a step");
    for (size_t i = 0; i < n_parts; i++) f->parts[i] = parts[i];
    f->n_parts = n_parts;
    f->host_bytes = host_bytes;
    f->staging_bytes = staging_bytes;
    return FO_OK;
}

struct pd_step *pd_step_new(enum pd_step_kind kind) {
    struct pd_step *s = calloc(1, sizeof *s);
    if (s) s->kind = kind;
    return s;
}

void pd_step_free(struct pd_step *s) {
    if (!s) return;
    form_done(&s->want);
    form_done(&s->had);
    for (size_t i = 0; i < s->n_ask; i++) {
        cf_model_free(s->ask[i]);
        if (s->found) pd_estimate_free(s->found[i]);
    }
    free(s->ask);
    free(s->found);
    free(s->model);
    free(s->dir);
    free(s);
}

/* --- gates --- */

static uint64_t part_bytes(const struct cf_part *p) {
    return p->weights_bytes + p->kv_bytes + p->scratch_bytes;
}

/* Bytes of a form on a die. */
static uint64_t form_on(const struct pd_form *f, const char *die) {
    uint64_t n = 0;
    for (size_t i = 0; f && i < f->n_parts; i++)
        if (strcmp(f->parts[i].die, die) == 0) n += part_bytes(&f->parts[i]);
    return n;
}

/* What a form takes of the host as long as it is loaded. */
static struct pd_held held_by(const struct pd_step *s, const struct pd_form *f) {
    struct pd_held held = { .anonymous_bytes = f->host_bytes };
    for (size_t i = 0; i < f->n_parts; i++) {
        const struct cf_part *p = &f->parts[i];
        if (!f->devices[i]->weights_in_place) continue;
        held.anonymous_bytes += p->kv_bytes + p->scratch_bytes + (s->no_mmap ? p->weights_bytes : 0);
        held.mapped_bytes += s->no_mmap ? 0 : p->weights_bytes;
    }
    return held;
}

/* The host's gate, as the planner's: what is available, less what others were promised, and what `leaving` gives back. Staging counts while it loads. */
static int check_host(const struct pd_step *s, const struct pd_form *f, const struct pd_form *leaving, struct fo_err *e) {
    struct pd_hostmem host;
    struct pd_held need = held_by(s, f), back = { 0 }, there = s->others;
    char need_text[16], have_text[16], reserve_text[16];
    if (leaving) back = held_by(s, leaving);
    there.anonymous_bytes += back.anonymous_bytes;
    there.mapped_bytes += back.mapped_bytes;
    pd_hostmem_read(pd_hostmem_root(), &host);
    uint64_t promised = pd_facts_promised(&there), taken = promised + s->ram_reserve_bytes, on_host = need.anonymous_bytes + need.mapped_bytes + f->staging_bytes;
    uint64_t all = host.available_bytes + back.anonymous_bytes + back.mapped_bytes, have = all > taken ? all - taken : 0;
    if (!host.total_bytes || on_host <= have) return FO_OK;
    return fo_fail_need(e, FO_ENOMEM, on_host, have, "host memory: asked %s, available %s above the reserve of %s", fo_format_bytes(on_host, need_text, sizeof need_text),
                        fo_format_bytes(have, have_text, sizeof have_text), fo_format_bytes(s->ram_reserve_bytes, reserve_text, sizeof reserve_text));
}

/* Whether each die, and the host, has room now for what the form takes, when `leaving` (NULL = none) has gone. */
static int check_gates(const struct pd_step *s, const struct pd_form *f, const struct pd_form *leaving, struct fo_err *e) {
    char need_text[16], have_text[16], reserve_text[16];
    for (size_t i = 0; i < f->n_parts; i++) {
        const struct cf_part *p = &f->parts[i];
        uint64_t total, free_bytes, need = part_bytes(p), reserve = i < MAX_DEVICES ? f->reserve_bytes[i] : 0;
        struct fo_device *d = f->devices[i];
        if (d->weights_in_place) continue; /* its memory is the host's */
        if (d->memory(d, &total, &free_bytes, e)) return fo_wrap(e, "die %s", p->die);
        free_bytes += form_on(leaving, p->die);
        uint64_t have = free_bytes > reserve ? free_bytes - reserve : 0;
        if (need <= have) continue;
        const char *part = p->weights_bytes > have ? "weights" : p->weights_bytes + p->kv_bytes > have ? "kv" : "compute";
        return fo_fail_need(e, FO_ENOMEM, need, have, "die %s: asked %s, free %s above the reserve of %s (part=%s)", p->die, fo_format_bytes(need, need_text, sizeof need_text),
                            fo_format_bytes(have, have_text, sizeof have_text), fo_format_bytes(reserve, reserve_text, sizeof reserve_text), part);
    }
    return check_host(s, f, leaving, e);
}

/* --- unload and settle --- */

struct settle {
    struct fo_device *devices[MAX_DEVICES];
    uint64_t best[MAX_DEVICES], expected[MAX_DEVICES];
    size_t n;
};

/* What the dies of a form have free before it goes. */
static void settle_begin(struct settle *t, const struct pd_form *f) {
    struct fo_err e;
    uint64_t total, free_bytes;
    t->n = 0;
    for (size_t i = 0; i < f->n_parts && t->n < MAX_DEVICES; i++) {
        struct fo_device *d = f->devices[i];
        if (!d || d->weights_in_place || d->memory(d, &total, &free_bytes, &e)) continue; /* a lost die gives nothing back */
        t->devices[t->n] = d;
        t->best[t->n] = free_bytes;
        t->expected[t->n] = free_bytes + part_bytes(&f->parts[i]);
        t->n++;
    }
}

/* Waits until each has all of it back, or its free memory has not risen for the stable time, or the timeout. */
static void settle_end(struct pd_loader *l, struct pd_step *s, struct settle *t) {
    uint64_t start = fo_now_ms(), last_rise = start;
    while (t->n) {
        bool all = true;
        for (size_t i = 0; i < t->n; i++) {
            struct fo_err e;
            uint64_t total, free_bytes;
            if (t->devices[i]->memory(t->devices[i], &total, &free_bytes, &e)) continue;
            if (free_bytes > t->best[i]) {
                t->best[i] = free_bytes;
                last_rise = fo_now_ms();
            }
            if (free_bytes < t->expected[i]) all = false;
        }
        uint64_t now = fo_now_ms();
        if (all || now - last_rise >= s->settle_stable_ms || now - start >= s->settle_timeout_ms || atomic_load(&l->cancel)) break;
        usleep(LOOK_MS * 1000);
    }
    s->settled_ms = fo_now_ms() - start;
    if (s->settled_ms >= LOOK_MS) pd_app_event(l->app, PD_EV_SETTLED, s->model, "the memory came back after %llu ms", (unsigned long long)s->settled_ms);
}

static uint32_t clip(uint64_t v) {
    return v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static int unload(struct pd_loader *l, struct pd_step *s, struct fo_err *e) {
    struct settle t;
    settle_begin(&t, &s->had);
    if (pn_engine_unload_replica(l->app->engine, s->model, (uint32_t)s->replica, clip(s->drain_ms), e)) return e->code;
    s->unloaded = true;
    settle_end(l, s, &t);
    return FO_OK;
}

/* --- load --- */

static uint32_t count(int64_t v) {
    return v < 0 ? 0 : clip((uint64_t)v);
}

/* What may change while it runs. Aliases are the daemon's: a request's name is looked up in the newest view. */
static void serve_opts(const struct cf_model *d, int64_t replica, struct pn_serve_opts *ret) {
    *ret = (struct pn_serve_opts){
        .name = d->name,
        .replica = (uint32_t)replica,
        .max_concurrent = count(d->max_concurrent),
        .queue_depth = d->queue_depth == 0 ? PN_QUEUE_NONE : count(d->queue_depth),
        .queue_timeout_ms = clip(d->queue_timeout_ms),
        .decode_stall_ms = clip(d->decode_stall_ms),
        .speculation = d->speculation == CF_SPECULATION_OFF ? PN_SPECULATION_OFF : PN_SPECULATION_AUTO,
    };
}

/* What a load asks between two pieces of weights. */
struct leave {
    struct pd_loader *l;
    uint64_t start_ms, timeout_ms;
};

static int too_long(uint64_t timeout_ms, struct fo_err *e) {
    char text[16];
    return fo_fail(e, FO_ETIMEOUT, "the load took longer than host.load_timeout (%s)", fo_format_ms(timeout_ms, text, sizeof text));
}

static int go_on(void *ctx, struct fo_err *e) {
    const struct leave *leave = ctx;
    if (atomic_load(&leave->l->cancel)) return fo_fail(e, FO_ECANCELLED, "the load was given up: the daemon is stopping");
    return fo_now_ms() - leave->start_ms > leave->timeout_ms ? too_long(leave->timeout_ms, e) : FO_OK;
}

static int load_form(struct pd_loader *l, struct pd_step *s, const struct pd_form *f, struct fo_err *e) {
    struct leave leave = { .l = l, .start_ms = fo_now_ms(), .timeout_ms = s->load_timeout_ms };
    const struct cf_model *d = f->spec;
    char *path = pd_resolve(s->dir, d->source_path), *template_path = d->chat_template ? pd_resolve(s->dir, d->chat_template) : NULL, *text = NULL;
    size_t len;
    int code = FO_OK;
    if (!path || (d->chat_template && !template_path)) code = fo_fail(e, FO_ENOMEM, "no memory for the path");
    if (code == FO_OK && template_path && fo_file_read(template_path, MAX_TEMPLATE_BYTES, &text, &len, e)) code = fo_wrap(e, "chat_template");
    if (code == FO_OK) {
        struct pn_serve_opts o;
        serve_opts(d, s->replica, &o);
        o.model = (struct pn_model_opts){
            .n_parts = (int)f->n_parts,
            .no_mmap = s->no_mmap,
            .chat_template = text,
            .go_on = go_on,
            .go_on_ctx = &leave,
        };
        pd_model_opts(d, &o.model);
        for (size_t i = 0; i < f->n_parts && i < PN_MAX_PARTS; i++)
            o.model.parts[i] = (struct pn_model_part){ .dev = f->devices[i], .first_layer = count(f->parts[i].first_layer), .n_layers = count(f->parts[i].n_layers) };
        code = f->n_parts > PN_MAX_PARTS ? (int)fo_fail(e, FO_ELIMIT, "a split over %zu dies; at most %d", f->n_parts, PN_MAX_PARTS) : pn_engine_load(l->app->engine, path, &o, e);
    }
    free(path);
    free(template_path);
    free(text);
    return code;
}

/* Gate, load, and not slower than the load timeout: a die that needs that long once will need it again. */
static int load(struct pd_loader *l, struct pd_step *s, const struct pd_form *f, struct fo_err *e) {
    uint64_t start = fo_now_ms();
    if (!s->trusted && check_gates(s, f, NULL, e)) return e->code;
    if (load_form(l, s, f, e)) return e->code;
    if (fo_now_ms() - start > s->load_timeout_ms) {
        struct fo_err ignored;
        pn_engine_unload_replica(l->app->engine, s->model, (uint32_t)s->replica, 0, &ignored);
        return too_long(s->load_timeout_ms, e);
    }
    struct pn_served *served = pn_engine_get_replica(l->app->engine, s->model, (uint32_t)s->replica);
    if (served) pd_sessions_restore(l->app, served, f->spec->save_on_unload);
    pn_served_put(served);
    return FO_OK;
}

/* --- the thread --- */

static void probe(struct pd_step *s) {
    s->found = calloc(s->n_ask ? s->n_ask : 1, sizeof(struct pd_estimate *));
    if (!s->found) {
        s->code = fo_fail(&s->err, FO_ENOMEM, "no memory to measure %zu models", s->n_ask);
        return;
    }
    for (size_t i = 0; i < s->n_ask && s->code == FO_OK; i++) s->code = pd_estimate_make(s->dir, s->ask[i], s->probe_device, &s->found[i], &s->err);
}

static void perform(struct pd_loader *l, struct pd_step *s) {
    uint64_t start = fo_now_ms();
    struct fo_err again;
    switch (s->kind) {
    case PD_STEP_PROBE:
        probe(s);
        break;
    case PD_STEP_LOAD:
        s->code = load(l, s, &s->want, &s->err);
        break;
    case PD_STEP_UNLOAD:
        s->code = unload(l, s, &s->err);
        break;
    case PD_STEP_RELOAD:
        s->code = s->trusted ? FO_OK : (int)check_gates(s, &s->want, &s->had, &s->err);
        if (s->code == FO_OK) s->code = unload(l, s, &s->err);
        if (s->code == FO_OK) s->code = load(l, s, &s->want, &s->err);
        if (s->code == FO_OK || !s->unloaded || atomic_load(&l->cancel)) break;
        if (load(l, s, &s->had, &again) == FO_OK) s->restored = true;
        else pd_app_event(l->app, PD_EV_ROLLBACK_FAILED, s->model, "%s", again.msg);
        break;
    }
    s->took_ms = fo_now_ms() - start;
}

static void *loader_main(void *arg) {
    struct pd_loader *l = arg;
    uint64_t one = 1;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        while (!l->todo && !l->stop) pthread_cond_wait(&l->work, &l->lock);
        struct pd_step *s = l->todo;
        pthread_mutex_unlock(&l->lock);
        if (!s) return NULL;
        perform(l, s);
        pthread_mutex_lock(&l->lock);
        l->todo = NULL;
        l->done = s;
        pthread_mutex_unlock(&l->lock);
        if (write(l->bell, &one, sizeof one) < 0) fo_log(FO_LOG_WARN, "reconcile", "event=wake_failed");
    }
}

int pd_loader_new(struct pd_app *app, int bell, struct pd_loader **ret, struct fo_err *e) {
    struct pd_loader *l = calloc(1, sizeof *l);
    if (!l) return fo_fail(e, FO_ENOMEM, "no memory for the loader");
    l->app = app;
    l->bell = bell;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    int rc = pthread_create(&l->thread, NULL, loader_main, l);
    if (rc) {
        pthread_cond_destroy(&l->work);
        pthread_mutex_destroy(&l->lock);
        free(l);
        return fo_fail_errno(e, rc, "cannot start the loader");
    }
    *ret = l;
    return FO_OK;
}

void pd_loader_start(struct pd_loader *l, struct pd_step *s) {
    pthread_mutex_lock(&l->lock);
    l->todo = s;
    atomic_store(&l->cancel, false);
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
}

struct pd_step *pd_loader_take(struct pd_loader *l) {
    pthread_mutex_lock(&l->lock);
    struct pd_step *s = l->done;
    l->done = NULL;
    pthread_mutex_unlock(&l->lock);
    return s;
}

void pd_loader_cancel(struct pd_loader *l) {
    atomic_store(&l->cancel, true);
}

void pd_loader_free(struct pd_loader *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pd_step_free(l->done);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int pd_actuate_set(struct pd_app *app, int64_t replica, const struct cf_model *spec, struct fo_err *e) {
    struct pn_serve_opts o;
    serve_opts(spec, replica, &o);
    return pn_engine_set(app->engine, &o, e);
}
