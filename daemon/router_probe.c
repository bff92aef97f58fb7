/* See router_probe.h. A server that has no /ready (404, 405), or keeps it for those with a key, is judged by its list of models alone. */
#include "daemon/router_probe.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/body.h"
#include "daemon/oai.h"
#include "daemon/router.h"
#include "daemon/router_models.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"

enum { STACK_BYTES = 512 * 1024, SLICE_MS = 50 /* between two looks at the clock: a failure of a request changes when the next probe is due */, ANSWER_MS = 3000, LIST_EVERY_MS = 5000 };

struct prober {
    struct pd_probes *probes;
    struct pd_backend *b;
    uint64_t list_ms; /* when its list of models is due again */
    bool any;         /* it kept that to itself */
    pthread_t thread;
};

struct pd_probes {
    struct pd_router *r;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    size_t n;
    struct prober list[PD_MAX_BACKENDS];
};

/* An answer that is read whole. */
struct read {
    struct pd_probes *p;
    int status;
    struct fo_buf body;
};

static bool take_head(void *ctx, int status, const char *lines, size_t n) {
    (void)lines, (void)n;
    ((struct read *)ctx)->status = status;
    return true;
}

static bool take_bytes(void *ctx, const char *bytes, size_t n) {
    return fo_buf_append(&((struct read *)ctx)->body, bytes, n);
}

static bool go_on(void *ctx) {
    return !atomic_load(&((struct read *)ctx)->p->stop);
}

/* False: why says so. */
static bool get(struct prober *k, const char *path, struct read *ret, char *why, size_t size) {
    struct pd_router *r = k->probes->r;
    char lines[4200] = "", reason[PD_HOP_WHY];
    if (r->bearer) snprintf(lines, sizeof lines, "Authorization: Bearer %s\n", r->bearer);
    struct pd_hop h = { .method = "GET", .path = path, .lines = lines, .connect_ms = r->connect_ms, .head_ms = ANSWER_MS, .idle_ms = ANSWER_MS, .head = take_head, .bytes = take_bytes, .go_on = go_on, .ctx = ret };
    *ret = (struct read){ .p = k->probes };
    fo_buf_init(&ret->body, PD_MAX_LIST_BYTES);
    enum pd_hop_end end = pd_hop_run(&k->b->lanes, &h, reason);
    if (end == PD_HOP_DONE) return true;
    if (end == PD_HOP_STOPPED) snprintf(why, size, "%s is too long", path);
    else snprintf(why, size, "%.140s", reason);
    return false;
}

/* An answer that says no, in its own words where it is an error of the API. False. */
static bool refused(const char *path, const struct read *got, char *why, size_t size) {
    struct pd_body body = { 0 };
    struct pd_error unused;
    const char *message = NULL;
    if (pd_body_parse(fo_buf_str(&got->body), got->body.len, &body, &unused)) message = pd_json_word(json_object_get(json_object_get(body.root, "error"), "message"));
    snprintf(why, size, "%s answers %d%s%.120s", path, got->status, message ? ": " : "", message ? message : "");
    pd_body_done(&body);
    return false;
}

/* Whether it may be asked, as far as it says itself. One that has no /ready is taken for well; *ret_says: it has one. */
static bool is_ready(struct prober *k, bool *ret_says, char *why, size_t size) {
    struct read got;
    bool ok = get(k, "/ready", &got, why, size);
    *ret_says = ok && got.status == 200;
    if (ok && got.status != 200 && got.status != 401 && got.status != 404 && got.status != 405) ok = refused("/ready", &got, why, size);
    fo_buf_done(&got.body);
    return ok;
}

/* Its models; *ret_any instead when it asks for a key. */
static bool read_models(struct prober *k, struct pd_models **ret, bool *ret_any, char *why, size_t size) {
    struct read got;
    struct fo_err e;
    bool ok = get(k, "/v1/models", &got, why, size);
    *ret_any = ok && got.status == 401 && !k->probes->r->bearer;
    if (ok && !*ret_any && got.status != 200) ok = refused("/v1/models", &got, why, size);
    if (ok && !*ret_any && pd_models_parse(fo_buf_str(&got.body), got.body.len, ret, &e)) {
        ok = false;
        snprintf(why, size, "%.150s", e.msg);
    }
    fo_buf_done(&got.body);
    return ok;
}

static void probe(struct prober *k) {
    struct pd_models *models = NULL;
    char why[160] = "";
    bool says, ok = is_ready(k, &says, why, sizeof why);
    if (ok && (!says || fo_now_ms() >= k->list_ms)) {
        ok = read_models(k, &models, &k->any, why, sizeof why);
        k->list_ms = fo_now_ms() + LIST_EVERY_MS;
    }
    if (!ok) k->list_ms = 0; /* it may come back as another */
    pd_router_probed(k->probes->r, k->b, ok ? NULL : why, models, k->any);
}

static void *prober_main(void *arg) {
    struct prober *k = arg;
    struct pd_probes *p = k->probes;
    while (!atomic_load(&p->stop)) {
        pthread_mutex_lock(&p->r->lock);
        bool due = pd_health_probe(&k->b->health, fo_now_ms());
        pthread_mutex_unlock(&p->r->lock);
        if (due) probe(k);
        struct timespec until = fo_deadline(SLICE_MS);
        pthread_mutex_lock(&p->lock);
        if (!atomic_load(&p->stop)) pthread_cond_timedwait(&p->stopped, &p->lock, &until);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

int pd_probes_start(struct pd_router *r, struct pd_probes **ret, struct fo_err *e) {
    struct pd_probes *p = calloc(1, sizeof *p);
    pthread_condattr_t cond;
    pthread_attr_t attr;
    int rc = 0;
    if (!p) return fo_fail(e, FO_ENOMEM, "no memory for probes");
    p->r = r;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&cond);
    pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
    pthread_cond_init(&p->stopped, &cond);
    pthread_condattr_destroy(&cond);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (size_t i = 0; i < r->n && rc == 0; i++) {
        p->list[i] = (struct prober){ .probes = p, .b = &r->list[i] };
        rc = pthread_create(&p->list[i].thread, &attr, prober_main, &p->list[i]);
        p->n += rc == 0;
    }
    pthread_attr_destroy(&attr);
    if (rc) {
        pd_probes_stop(p);
        return fo_fail_errno(e, rc, "cannot start a thread that probes");
    }
    *ret = p;
    return FO_OK;
}

void pd_probes_stop(struct pd_probes *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->stopped);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n; i++) pthread_join(p->list[i].thread, NULL);
    pthread_cond_destroy(&p->stopped);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
