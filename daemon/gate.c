/* Rules are a value: requests take a counted reference to the newest, and the main thread replaces it. So a key that is taken out of the
 * file is refused from the next look on, and a request that runs goes on.
 *
 * The file is looked at once a second by the main thread (one stat) and read when it changed (watch.h); one that could not be used is read at
 * every look, until it can. A file that is bad changes nothing but the condition KeysValid. */
#include "daemon/gate.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/manifest.h"
#include "daemon/access.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/log.h"
#include "daemon/oai.h"
#include "daemon/reach.h"
#include "daemon/watch.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/log.h"

enum {
    LOOK_MS = 1000,  /* between two looks at the file of keys */
    GRACE_MS = 200,  /* a key that has all its requests: time for one that is just ending */
    PREFLIGHT_S = 600
};

struct rules {
    atomic_int refs;
    struct pd_counted_manifest *manifest; /* whose lists `r` points into */
    struct pd_keys *keys;
    struct pd_rules r;
};

struct pd_gate {
    pthread_mutex_t lock; /* guards the next two; pointer work only */
    pthread_cond_t left;  /* a counted request is over */
    struct rules *rules;  /* NULL before pd_gate_use */
    struct pd_call *held; /* requests that count against their key */
    /* the main thread's */
    char *path;           /* of the file of keys; NULL = the manifest names none */
    struct pd_watch watch;
    bool open;            /* others than its owner may read or write it */
    uint8_t digest[FO_SHA256_BYTES]; /* of the text of the keys in force */
    uint64_t next_look_ms;
    struct pd_file_state state;
};

static void rules_put(struct rules *x) {
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1) return;
    pd_counted_manifest_put(x->manifest);
    pd_keys_put(x->keys);
    free(x);
}

static struct rules *rules_get(struct pd_gate *g) {
    pthread_mutex_lock(&g->lock);
    struct rules *x = g->rules;
    if (x) atomic_fetch_add(&x->refs, 1);
    pthread_mutex_unlock(&g->lock);
    return x;
}

/* Puts rules in force; takes references of its own. */
static int install(struct pd_gate *g, struct pd_counted_manifest *m, struct pd_keys *keys, struct fo_err *e) {
    const struct cf_server *s = &m->m->server;
    struct rules *x = calloc(1, sizeof *x), *old;
    if (!x) return fo_fail(e, FO_ENOMEM, "no memory for the rules of access");
    atomic_init(&x->refs, 1);
    atomic_fetch_add(&m->refs, 1);
    if (keys) atomic_fetch_add(&keys->refs, 1);
    x->manifest = m;
    x->keys = keys;
    x->r = (struct pd_rules){ .keyed = s->api_keys_file != NULL, .keys = keys, .hosts = (const char *const *)s->allowed_hosts, .n_hosts = s->n_allowed_hosts, .origins = (const char *const *)s->cors_origins, .n_origins = s->n_cors_origins };
    pthread_mutex_lock(&g->lock);
    old = g->rules;
    g->rules = x;
    pthread_mutex_unlock(&g->lock);
    rules_put(old);
    return FO_OK;
}

int pd_gate_new(struct pd_gate **ret, struct fo_err *e) {
    struct pd_gate *g = calloc(1, sizeof *g);
    pthread_condattr_t attr;
    if (!g) return fo_fail(e, FO_ENOMEM, "no memory for the gate");
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->left, &attr);
    pthread_condattr_destroy(&attr);
    g->state = (struct pd_file_state){ .ok = true, .reason = "NotConfigured" };
    *ret = g;
    return FO_OK;
}

void pd_gate_free(struct pd_gate *g) {
    if (!g) return;
    rules_put(g->rules);
    free(g->path);
    pthread_cond_destroy(&g->left);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

const struct pd_file_state *pd_gate_keys(const struct pd_gate *g) {
    return &g->state;
}

/* --- the file of keys --- */

static bool refuse_file(struct pd_app *app, const char *why) {
    struct pd_gate *g = app->gate;
    struct pd_file_state was = g->state;
    g->state = (struct pd_file_state){ .reason = "Refused" };
    snprintf(g->state.message, sizeof g->state.message, "%.300s; %s", why, g->rules->keys ? "the keys before stay in force" : "nobody is let in until it is repaired");
    if (!was.ok && strcmp(was.message, g->state.message) == 0) return false;
    pd_app_event(app, PD_EV_KEYS_REFUSED, NULL, "%s", g->state.message);
    return true;
}

/* Reads the file and puts its keys in force; the manifest's other rules stay. True = the state has changed. */
static bool read_file(struct pd_app *app) {
    struct pd_gate *g = app->gate;
    struct pd_keys *keys;
    struct fo_err e;
    char *text;
    size_t len;
    uint8_t digest[FO_SHA256_BYTES];
    pd_watch_mark(&g->watch, g->path);
    if (fo_file_read(g->path, PD_MAX_KEYS_BYTES, &text, &len, &e)) {
        pd_reach_explain(g->path, &e);
        return refuse_file(app, e.msg);
    }
    bool open = g->watch.seen.st_mode & (S_IRWXG | S_IRWXO);
    fo_sha256(text, len, digest);
    if (g->state.ok && g->rules->keys && open == g->open && memcmp(digest, g->digest, sizeof digest) == 0) {
        free(text);
        return false;
    }
    int code = pd_keys_parse(g->path, text, len, &keys, &e);
    free(text);
    if (code) return refuse_file(app, e.msg);
    size_t n = keys->n;
    code = install(g, g->rules->manifest, keys, &e);
    pd_keys_put(keys);
    if (code) return refuse_file(app, e.msg);
    memcpy(g->digest, digest, sizeof digest);
    g->open = open;
    g->state = (struct pd_file_state){ .ok = true, .reason = "Accepted" };
    snprintf(g->state.message, sizeof g->state.message, "%zu key%s%s", n, n == 1 ? "" : "s", open ? "; others than the file's owner may read or write it: chmod 600" : "");
    pd_app_event(app, open ? PD_EV_KEYS_EXPOSED : PD_EV_KEYS_ACCEPTED, NULL, "%.200s: %s", g->path, g->state.message);
    return true;
}

bool pd_gate_look(struct pd_app *app, bool now) {
    struct pd_gate *g = app->gate;
    if (!g->path || (!now && fo_now_ms() < g->next_look_ms)) return false;
    g->next_look_ms = fo_now_ms() + LOOK_MS;
    return (now || !g->state.ok || pd_watch_changed(&g->watch, g->path)) && read_file(app);
}

int pd_gate_check(const struct cf_manifest *m, const char *dir, struct fo_err *e) {
    struct pd_keys *keys = NULL;
    char *path, *text = NULL;
    size_t len;
    if (!m->server.api_keys_file) return FO_OK;
    path = pd_resolve(dir, m->server.api_keys_file);
    int code = path ? FO_OK : fo_fail(e, FO_ENOMEM, "no memory for a path");
    if (code == FO_OK && (code = fo_file_read(path, PD_MAX_KEYS_BYTES, &text, &len, e))) pd_reach_explain(path, e);
    if (code == FO_OK) code = pd_keys_parse(path, text, len, &keys, e);
    if (code) fo_wrap(e, "server.api_keys_file");
    pd_keys_put(keys);
    free(text);
    free(path);
    return code;
}

int pd_gate_may_use(struct pd_app *app, const struct cf_manifest *m, struct fo_err *e) {
    const char *outside = pd_http_outside(app->http);
    if (!outside || m->server.api_keys_file || m->server.insecure) return FO_OK;
    return fo_fail(e, FO_EACCES, "the daemon listens at %s, which is reachable from outside, and nothing protects the API; name an 'api_keys_file', or write 'insecure: true' in 'server'", outside);
}

int pd_gate_use(struct pd_app *app, struct pd_counted_manifest *m, const char *dir, struct fo_err *e) {
    struct pd_gate *g = app->gate;
    const char *named = m->m->server.api_keys_file;
    char *path = named ? pd_resolve(dir, named) : NULL;
    if (named && !path) return fo_fail(e, FO_ENOMEM, "no memory for a path");
    bool same = path && g->path && strcmp(path, g->path) == 0;
    if (install(g, m, named && g->rules ? g->rules->keys : NULL, e)) {
        free(path);
        return e->code;
    }
    free(g->path);
    g->path = path;
    if (!path) {
        g->state = (struct pd_file_state){ .ok = true, .reason = "NotConfigured" };
    } else {
        if (!same) memset(g->digest, 0, sizeof g->digest); /* of no text */
        pd_gate_look(app, true);
    }
    return FO_OK;
}

/* --- requests --- */

/* Whether a key has as many requests as it may; counts this one when not. Under the lock. */
static bool hold(struct pd_gate *g, struct pd_call *c, uint32_t most) {
    uint32_t n = 0;
    for (const struct pd_call *k = g->held; k; k = k->held) n += strcmp(k->note.key, c->note.key) == 0;
    if (n >= most) return false;
    c->held = g->held;
    c->held_link = &g->held;
    if (c->held) c->held->held_link = &c->held;
    g->held = c;
    return true;
}

static bool count(struct pd_gate *g, struct pd_call *c, const struct pd_key *key, struct pd_error *x) {
    struct timespec until = fo_deadline(GRACE_MS);
    pthread_mutex_lock(&g->lock);
    bool ok = hold(g, c, key->max_concurrent);
    while (!ok && pthread_cond_timedwait(&g->left, &g->lock, &until) == 0) ok = hold(g, c, key->max_concurrent);
    pthread_mutex_unlock(&g->lock);
    if (ok) return true;
    return pd_error_set(x, PD_ERR_KEY_BUSY, NULL, "The API key '%s' has all the %u requests it may have at one time (max_concurrent).", key->name, key->max_concurrent);
}

/* What a listed origin's page may see. */
static void put_cors(struct pd_call *c, const struct pd_leave *leave) {
    int n = 0;
    if (leave->vary) n = snprintf(c->headers, sizeof c->headers, "Vary: Origin\r\n");
    if (leave->allow_origin)
        snprintf(c->headers + n, sizeof c->headers - (size_t)n, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: x-request-id, x-pantheon-pressure, Retry-After, x-should-retry\r\n", leave->allow_origin);
}

static void answer_preflight(struct pd_call *c) {
    const char *asked = pd_head_get(c->head, "access-control-request-headers");
    char lines[1024];
    /* a client library's own headers are many and change: what is asked for is granted, when it is a list of names */
    bool names = asked && *asked && strlen(asked) < 700 && strspn(asked, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-, ") == strlen(asked);
    snprintf(lines, sizeof lines, "Access-Control-Allow-Methods: GET, HEAD, POST, PUT, DELETE, OPTIONS\r\n%s%s%sAccess-Control-Max-Age: %d\r\n", names ? "Access-Control-Allow-Headers: " : "", names ? asked : "",
             names ? "\r\n" : "", PREFLIGHT_S);
    pd_reply(c, 204, NULL, lines, "", 0);
}

bool pd_gate_admit(void *ctx, struct pd_call *c) {
    struct pd_app *app = ctx;
    struct pd_gate *g = app->gate;
    struct rules *rules = rules_get(g);
    struct pd_asked q;
    struct pd_leave leave;
    struct pd_error x;
    char own[46];
    assert(rules); /* requests come after the loop's first manifest */
    pd_asked_of(c->head, c->from, pd_call_own_address(c, own), &q);
    q.page = q.page && app->engine; /* a router has no page: its / names its backends, and is for keys */
    bool ok = pd_access_judge(&rules->r, &q, &leave, &x);
    put_cors(c, &leave);
    c->most_priority = leave.key ? leave.key->priority : PN_PRIORITY_HIGH;
    c->admin = leave.admin;
    if (leave.key) memcpy(c->note.key, leave.key->name, sizeof c->note.key);
    if (ok && leave.counted) ok = count(g, c, leave.key, &x);
    rules_put(rules);
    if (!ok) pd_error_reply(c, &x);
    else if (leave.kind == PD_LEAVE_PREFLIGHT) answer_preflight(c);
    return ok && leave.kind == PD_LEAVE;
}

/* --- the log --- */

static void say(const struct pd_call *c) {
    const struct pd_note *n = &c->note;
    bool quiet = n->polled && c->status == 200;
    if (quiet && !fo_log_debug_on("http")) return;
    char path[300], model[160] = "", key[80] = "", code[64] = "", backend[400] = "", thought[64] = "", calls[32] = "", work[256] = "", why[sizeof n->why + 64] = "", quoted[sizeof n->why + 32];
    const char *event = n->verdict ? n->verdict : c->status == 0 ? "client_left" : c->status >= 400 ? "refused" : "answered";
    if (n->key[0]) snprintf(key, sizeof key, " key=\"%s\"", n->key);
    if (n->code) snprintf(code, sizeof code, " code=%s", n->code);
    if (n->model[0]) snprintf(model, sizeof model, " model=%s", pd_log_quote(n->model, quoted, 140));
    if (n->backend) snprintf(backend, sizeof backend, " backend=%s tries=%u", pd_log_quote(n->backend, quoted, 360), n->tries);
    if (n->reasoning_tokens || n->thought)
        snprintf(thought, sizeof thought, " reasoning_tokens=%u%s%s", n->reasoning_tokens, n->thought ? " thought_ended_by=" : "", n->thought ? n->thought : "");
    if (n->calls) snprintf(calls, sizeof calls, " calls=%u", n->calls);
    if (n->generates)
        snprintf(work, sizeof work, " stream=%d prompt_tokens=%u completion_tokens=%u%s%s queue_ms=%.0f prefill_ms=%.0f decode_ms=%.0f kv_need=%llu kv_have=%llu", n->stream, n->prompt_tokens, n->completion_tokens, thought, calls,
                 n->queue_ms, n->prefill_ms, n->decode_ms, (unsigned long long)n->kv_need, (unsigned long long)n->kv_have);
    if (n->why[0]) snprintf(why, sizeof why, " reason=%s", pd_log_quote(n->why, quoted, sizeof quoted));
    fo_log(n->why[0] ? FO_LOG_WARN : quiet ? FO_LOG_DEBUG : FO_LOG_INFO, "http", "event=%s request=%s client=\"%s\" method=\"%s\" path=%s status=%d%s%s%s%s%s ms=%llu%s", event, c->id, c->client, c->head ? c->head->method : "",
           pd_log_quote(c->head ? c->head->path : "", path, sizeof path), c->status, code, key, model, backend, work, (unsigned long long)(fo_now_ms() - c->start_ms), why);
}

void pd_gate_done(void *ctx, struct pd_call *c) {
    struct pd_app *app = ctx;
    struct pd_gate *g = app->gate;
    pthread_mutex_lock(&g->lock);
    if (c->held_link) { /* its neighbours in the list write there too */
        *c->held_link = c->held;
        if (c->held) c->held->held_link = c->held_link;
        pthread_cond_broadcast(&g->left);
    }
    pthread_mutex_unlock(&g->lock);
    say(c);
}
