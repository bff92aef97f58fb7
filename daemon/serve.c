/* Who does what: the main thread waits for signals and for the loader, and does nothing that takes long, so that a signal is answered
 * at once. HTTP listens before the first load: bring-up can be watched, and a client is told "loading" and not "connection refused".
 * The loader thread loads the models in manifest order; one that fails is logged, listed with its reason, and the others serve.
 *
 * Stopping: new requests get 503 draining (the listeners stay open to say so), running ones go on until they are done or `drain` has
 * passed, then they are cancelled and end with an error event; then the connections are cut and everything is freed. */
#include "daemon/serve.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/log.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

enum {
    MAX_TEMPLATE_BYTES = 1 << 20,
    DRAIN_LOOK_MS = 20,        /* while stopping: how often the rest is counted */
    CANCEL_MS = 5000           /* after the deadline: time for cancelled requests to end with their error event */
};

struct serve {
    struct pd_app app;
    const char *dir;
    const struct pd_serve_opts *opts;
    struct fo_device *dev;
    uint64_t memory_bytes;   /* available on the host before the first load */
    uint64_t promised_bytes; /* KV and scratch of the models loaded since: untouched pages do not show as used. The loader's. */
    int signals;     /* signalfd */
    int loader_done; /* eventfd: the first pass is over */
    atomic_bool stop_loading;
    pthread_t loader;
    bool loading;
};

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

/* `path` as the manifest means it: relative to the manifest's folder. Heap; NULL without memory. */
static char *resolve(const char *dir, const char *path) {
    char *out = NULL;
    if (*path == '/' || !dir || !*dir) return strdup(path);
    return asprintf(&out, "%s/%s", dir, path) < 0 ? NULL : out;
}

static uint32_t count(int64_t v, uint32_t auto_value) {
    return v < 0 ? auto_value : v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

/* --- the loader thread --- */

/* Whether a model's KV and scratch fit what the host has without going below host.ram_reserve. Weights are a mapped file, whose pages
 * the kernel takes back when it must; read into memory they count. */
static int check_reserve(struct serve *s, const char *path, const struct pn_model_opts *o, struct fo_err *e) {
    struct pn_model_info info;
    char why[256], need_text[16], have_text[16], reserve_text[16];
    uint64_t total, now, reserve = s->app.manifest->host.ram_reserve_bytes;
    if (pn_model_measure(path, o, &info, why, sizeof why, e) || s->dev->memory(s->dev, &total, &now, e)) return e->code;
    uint64_t left = s->memory_bytes > s->promised_bytes ? s->memory_bytes - s->promised_bytes : 0;
    uint64_t have = now < left ? now : left, need = info.kv_bytes + info.scratch_bytes + (o->no_mmap ? info.weights_bytes : 0);
    if (have < reserve || have - reserve < need)
        return fo_fail_need(e, FO_ENOMEM, need, have < reserve ? 0 : have - reserve,
                            "needs %s of memory for KV and scratch; of %s available, host.ram_reserve keeps %s", fo_format_bytes(need, need_text, sizeof need_text),
                            fo_format_bytes(have, have_text, sizeof have_text), fo_format_bytes(reserve, reserve_text, sizeof reserve_text));
    s->promised_bytes += need;
    return FO_OK;
}

static int load_model(struct serve *s, const struct cf_model *d, struct fo_err *e) {
    char *path = resolve(s->dir, d->source_path), *template_path = d->chat_template ? resolve(s->dir, d->chat_template) : NULL, *text = NULL;
    size_t len;
    int code = FO_OK;
    if (!path || (d->chat_template && !template_path)) code = fo_fail(e, FO_ENOMEM, "no memory for the path");
    if (code == FO_OK && template_path && fo_file_read(template_path, MAX_TEMPLATE_BYTES, &text, &len, e)) code = fo_wrap(e, "chat_template");
    if (code == FO_OK) {
        struct pn_serve_opts o = {
            .name = d->name,
            .aliases = (const char *const *)d->aliases,
            .n_aliases = (int)d->n_aliases,
            .model = { .dev = s->dev,
                       .ctx_cap = count(d->ctx_cap, 0),
                       .max_sessions = count(d->max_sessions, 0),
                       .max_concurrent = count(d->max_concurrent, 0),
                       .kv_default = true,
                       .no_mmap = s->opts->no_mmap,
                       .chat_template = text },
            .queue_depth = d->queue_depth == 0 ? PN_QUEUE_NONE : count(d->queue_depth, 0),
            .queue_timeout_ms = d->queue_timeout_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)d->queue_timeout_ms,
        };
        uint64_t promised = s->promised_bytes;
        code = check_reserve(s, path, &o.model, e);
        if (code == FO_OK && (code = pn_engine_load(s->app.engine, path, &o, e)) != FO_OK) s->promised_bytes = promised;
    }
    free(path);
    free(template_path);
    free(text);
    return code;
}

/* What a model takes and allows, once, when it serves. */
static void log_loaded(struct serve *s, const struct cf_model *d, int64_t ms) {
    struct pn_served *served = pn_engine_get(s->app.engine, d->name);
    if (!served) return;
    const struct pn_model_info *i = pn_model_info(pn_served_model(served));
    char name[128], weights[16], kv[16], scratch[16];
    fo_log(FO_LOG_INFO, "serve",
           "event=model_ready model=%s arch=%s type=%s ctx_cap=%u ctx_trained=%u max_sessions=%u max_concurrent=%u weights=\"%s\" kv=\"%s\" scratch=\"%s\" ms=%lld",
           pd_log_quote(d->name, name, sizeof name), i->arch, i->ftype, i->ctx_cap, i->n_ctx_train, i->max_sessions, i->max_concurrent,
           fo_format_bytes(i->weights_bytes, weights, sizeof weights), fo_format_bytes(i->kv_bytes, kv, sizeof kv),
           fo_format_bytes(i->scratch_bytes, scratch, sizeof scratch), (long long)ms);
    if (!i->has_tokenizer)
        fo_log(FO_LOG_WARN, "serve", "event=no_tokenizer model=%s reason=%s next=\"takes token ids only\"", name,
               pd_log_quote(i->tokenizer_error ? i->tokenizer_error : "", weights, sizeof weights));
    pn_served_put(served);
}

static void *loader_main(void *arg) {
    struct serve *s = arg;
    const struct cf_manifest *m = s->app.manifest;
    size_t failed = 0;
    for (size_t i = 0; i < m->n_models && !atomic_load(&s->stop_loading); i++) {
        const struct cf_model *d = &m->models[i];
        struct fo_err e;
        int64_t start = now_ms();
        pd_app_set(&s->app, i, PD_MODEL_LOADING, NULL);
        pd_notify_status("Loading %s (%zu of %zu)", d->name, i + 1, m->n_models);
        pd_notify_extend(600ull * 1000 * 1000);
        if (load_model(s, d, &e)) {
            char name[128], why[512];
            failed++;
            fo_log(FO_LOG_ERROR, "serve", "event=model_failed model=%s code=%s reason=%s next=\"the others serve; requests to it get 503\"",
                   pd_log_quote(d->name, name, sizeof name), fo_code_name(e.code), pd_log_quote(e.msg, why, sizeof why));
            pd_app_set(&s->app, i, PD_MODEL_FAILED, e.msg);
            continue;
        }
        pd_app_set(&s->app, i, PD_MODEL_READY, NULL);
        log_loaded(s, d, now_ms() - start);
    }
    if (!atomic_load(&s->stop_loading)) {
        fo_log(FO_LOG_INFO, "serve", "event=ready models=%zu failed=%zu", m->n_models, failed);
        pd_notify_ready();
        pd_notify_status("Serving %zu of %zu models", m->n_models - failed, m->n_models);
    }
    uint64_t one = 1;
    if (write(s->loader_done, &one, sizeof one) < 0) fo_log(FO_LOG_WARN, "serve", "event=wake_failed");
    return NULL;
}

/* --- signals --- */

/* Waits up to timeout_ms (-1 = for ever) for a signal (returned), or for the loader to be done (then it is joined); 0 = neither. */
static int wait_event(struct serve *s, int timeout_ms) {
    struct pollfd p[2] = { { .fd = s->signals, .events = POLLIN }, { .fd = s->loading ? s->loader_done : -1, .events = POLLIN } };
    struct signalfd_siginfo si;
    if (poll(p, 2, timeout_ms) <= 0) return 0;
    if (p[1].revents) {
        pthread_join(s->loader, NULL);
        s->loading = false;
    }
    if (!p[0].revents || read(s->signals, &si, sizeof si) != (ssize_t)sizeof si) return 0;
    return (int)si.ssi_signo;
}

static void wait_for_stop(struct serve *s) {
    for (;;) {
        int sig = wait_event(s, -1);
        if (sig == SIGTERM || sig == SIGINT) {
            fo_log(FO_LOG_INFO, "serve", "event=stopping signal=%s", sig == SIGTERM ? "SIGTERM" : "SIGINT");
            return;
        }
        if (sig == SIGHUP)
            fo_log(FO_LOG_WARN, "serve", "event=reload_ignored reason=\"this version reads the manifest at start only\" next=\"restart to apply a change\"");
    }
}

/* Lets go on what is running until it is done, or until the deadline; then cancels it. A load cannot be cut in the middle, and a model
 * half loaded is nothing to keep the process for: it ends with the process. SIGINT ends everything at once. */
static void drain(struct serve *s) {
    uint64_t drain_ms = s->app.manifest->server.drain_ms;
    int64_t deadline = now_ms() + (int64_t)drain_ms, end = deadline + CANCEL_MS;
    bool cancelled = false;
    char text[16];
    atomic_store(&s->stop_loading, true);
    atomic_store(&s->app.draining, true);
    pd_http_drain(s->app.http);
    pn_engine_drain(s->app.engine);
    pd_notify_stopping();
    fo_log(FO_LOG_INFO, "serve", "event=draining requests=%u drain=\"%s\"", pn_engine_active(s->app.engine), fo_format_ms(drain_ms, text, sizeof text));
    for (uint32_t last = UINT32_MAX;;) {
        uint32_t left = pn_engine_active(s->app.engine), busy = pd_http_busy(s->app.http);
        if (left == 0 && busy == 0 && !s->loading) return;
        if (left != last) pd_notify_status("Stopping: %u requests still running", left);
        last = left;
        if (!cancelled && now_ms() >= deadline) {
            cancelled = true;
            fo_log(FO_LOG_WARN, "serve", "event=drain_over requests=%u next=\"cancelling them\"", left);
            pn_engine_cancel_all(s->app.engine);
        }
        if (now_ms() >= end) break;
        if (wait_event(s, DRAIN_LOOK_MS) == SIGINT) {
            fo_log(FO_LOG_WARN, "serve", "event=interrupted next=\"ending at once\"");
            _exit(130);
        }
    }
    if (!s->loading) return;
    fo_log(FO_LOG_WARN, "serve", "event=stopped_while_loading");
    _exit(0);
}

/* --- bring-up --- */

/* Connections are file descriptors: asks for as many as the limits name. */
static void raise_file_limit(const struct cf_manifest *m) {
    struct rlimit r;
    rlim_t want = (rlim_t)count(m->server.limits.connections, 512) + 256;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= want) return;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur < want)
        fo_log(FO_LOG_WARN, "serve", "event=few_files limit=%llu wanted=%llu next=\"connections may be refused earlier\"", (unsigned long long)r.rlim_cur,
               (unsigned long long)want);
}

static int open_all(struct serve *s, struct fo_err *e) {
    const struct cf_manifest *m = s->app.manifest;
    const struct cf_limits *l = &m->server.limits;
    struct fo_device_opts dev = { .n_threads = m->host.threads < 0 ? 0 : (int)m->host.threads, .isa = s->opts->isa };
    struct pd_http_opts http = {
        .listen = (const char *const *)m->server.listen,
        .n_listen = m->server.n_listen,
        .body_bytes = l->body_bytes,
        .header_time_ms = l->header_time_ms,
        .body_idle_ms = l->body_idle_ms,
        .write_idle_ms = l->write_idle_ms,
        .connections = count(l->connections, 512),
        .connections_per_address = count(l->connections_per_address, 64),
        .handler = pd_dispatch,
        .ctx = &s->app,
    };
    s->app.entries = calloc(m->n_models ? m->n_models : 1, sizeof *s->app.entries);
    s->loader_done = eventfd(0, EFD_CLOEXEC);
    if (!s->app.entries || s->loader_done < 0) return fo_fail(e, FO_ENOMEM, "no memory for %zu models", m->n_models);
    for (size_t i = 0; i < m->n_models; i++) {
        s->app.entries[i].decl = &m->models[i];
        pd_app_set(&s->app, i, PD_MODEL_WAITING, NULL);
    }
    if (fo_device_open("cpu", "", &dev, &s->dev, e)) return e->code;
    uint64_t total;
    if (s->dev->memory(s->dev, &total, &s->memory_bytes, e)) return e->code;
    fo_log(FO_LOG_INFO, "serve", "event=start version=%s build=%s backend=%s device=\"%s\" isa=%s", pn_version(), pn_build(), fo_device_build_backend(),
           s->dev->die.model, fo_device_isa(s->dev));
    if (pn_engine_new(&s->app.engine, e) || pd_http_open(&http, &s->app.http, e) || pd_http_start(s->app.http, e)) return e->code;
    int rc = pthread_create(&s->loader, NULL, loader_main, s);
    if (rc) return fo_fail_errno(e, rc, "cannot start the loader");
    s->loading = true;
    return FO_OK;
}

int pd_serve(const struct cf_manifest *m, const char *dir, const struct pd_serve_opts *opts) {
    struct serve s = { .app = { .manifest = m, .started_at = time(NULL) }, .dir = dir, .opts = opts, .signals = -1, .loader_done = -1 };
    struct fo_err e;
    sigset_t mask;
    /* hundreds of connection threads would each keep their own heap arena */
    mallopt(M_ARENA_MAX, 2);
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &mask, NULL); /* inherited by every thread: signals are read by the main thread alone */
    signal(SIGPIPE, SIG_IGN);
    int status = PD_SERVED;
    s.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    pthread_mutex_init(&s.app.lock, NULL);
    raise_file_limit(m);
    if (s.signals < 0) fo_fail_errno(&e, errno, "signalfd");
    if (s.signals >= 0 && open_all(&s, &e) == FO_OK) {
        wait_for_stop(&s);
        drain(&s);
        pd_http_close(s.app.http);
        fo_log(FO_LOG_INFO, "serve", "event=stopped");
    } else {
        char why[512];
        fo_log(FO_LOG_ERROR, "serve", "event=cannot_start code=%s reason=%s", fo_code_name(e.code), pd_log_quote(e.msg, why, sizeof why));
        pd_http_close(s.app.http);
        status = PD_CANNOT_SERVE;
    }
    pn_engine_free(s.app.engine);
    fo_device_close(s.dev);
    free(s.app.entries);
    pthread_mutex_destroy(&s.app.lock);
    if (s.loader_done >= 0) close(s.loader_done);
    if (s.signals >= 0) close(s.signals);
    return status;
}
