/* The registry: see engine.h.
 *
 * A served model is counted: the registry holds one reference, everybody who looked it up one more. Unloading takes the name out and
 * stops the worker; the memory goes with the last reference. Names are guarded by a read-write lock that no worker takes; the only
 * writer is the loader, so what it found stays where it is between its own calls. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/mem/admit.h"
#include "engine/request_worker.h"
#include "engine/sched.h"

enum { QUEUE_DEPTH = 8, QUEUE_TIMEOUT_MS = 120000 };

struct pn_served {
    atomic_int refs;
    char **names; /* [n_names]: the id, then the aliases */
    int n_names;
    uint32_t max_tokens_default;
    int64_t loaded_at;
    struct pn_model *model;
    struct pn_sched *sched;
};

struct pn_engine {
    pthread_rwlock_t lock; /* guards the list and draining */
    struct pn_served **list;
    size_t n;
    bool draining;
};

int pn_engine_new(struct pn_engine **ret, struct fo_err *e) {
    struct pn_engine *en = calloc(1, sizeof *en);
    if (!en) return fo_fail(e, FO_ENOMEM, "no memory for the registry");
    pthread_rwlock_init(&en->lock, NULL);
    *ret = en;
    return 0;
}

static void served_free(struct pn_served *s) {
    pn_sched_free(s->sched);
    pn_model_free(s->model);
    for (int i = 0; i < s->n_names; i++) free(s->names[i]);
    free(s->names);
    free(s);
}

void pn_served_put(struct pn_served *s) {
    if (s && atomic_fetch_sub(&s->refs, 1) == 1) served_free(s);
}

void pn_engine_free(struct pn_engine *en) {
    if (!en) return;
    for (size_t i = 0; i < en->n; i++) {
        pn_sched_stop(en->list[i]->sched);
        pn_served_put(en->list[i]);
    }
    free(en->list);
    pthread_rwlock_destroy(&en->lock);
    free(en);
}

/* Under the lock. */
static struct pn_served *find(const struct pn_engine *en, const char *name) {
    for (size_t i = 0; i < en->n; i++)
        for (int k = 0; k < en->list[i]->n_names; k++)
            if (strcmp(en->list[i]->names[k], name) == 0) return en->list[i];
    return NULL;
}

static int names_free(struct pn_engine *en, const struct pn_serve_opts *o, struct fo_err *e) {
    int rc = 0;
    pthread_rwlock_rdlock(&en->lock);
    for (int i = -1; i < o->n_aliases && rc == 0; i++) {
        const char *name = i < 0 ? o->name : o->aliases[i];
        if (find(en, name)) rc = fo_fail(e, FO_EINVAL, "a model named '%s' is already loaded", name);
    }
    pthread_rwlock_unlock(&en->lock);
    return rc;
}

static int served_new(const char *path, const struct pn_serve_opts *o, struct pn_served **ret, struct fo_err *e) {
    struct pn_served *s = calloc(1, sizeof *s);
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for a model");
    atomic_init(&s->refs, 1);
    s->max_tokens_default = o->max_tokens_default;
    s->loaded_at = (int64_t)time(NULL);
    int rc = 0;
    s->names = calloc((size_t)o->n_aliases + 1, sizeof *s->names);
    if (!s->names) rc = fo_fail(e, FO_ENOMEM, "no memory for names");
    for (int i = 0; rc == 0 && i <= o->n_aliases; i++) {
        s->names[i] = strdup(i == 0 ? o->name : o->aliases[i - 1]);
        if (!s->names[i]) rc = fo_fail(e, FO_ENOMEM, "no memory for names");
        else s->n_names++;
    }
    if (rc == 0) rc = pn_model_open(path, &o->model, &s->model, e);
    if (rc == 0)
        rc = pn_sched_new(s->model, o->queue_depth ? o->queue_depth : QUEUE_DEPTH, o->queue_timeout_ms ? o->queue_timeout_ms : QUEUE_TIMEOUT_MS,
                          &s->sched, e);
    if (rc != 0) {
        served_free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

int pn_engine_load(struct pn_engine *en, const char *path, const struct pn_serve_opts *o, struct fo_err *e) {
    if (names_free(en, o, e) != 0) return e->code;
    struct pn_served *s = NULL;
    int rc = served_new(path, o, &s, e);
    if (rc != 0) return rc;
    pthread_rwlock_wrlock(&en->lock);
    struct pn_served **list = realloc(en->list, (en->n + 1) * sizeof(struct pn_served *));
    if (list) {
        en->list = list;
        list[en->n++] = s;
        if (en->draining) pn_sched_drain(s->sched);
    } else {
        rc = fo_fail(e, FO_ENOMEM, "no memory for the registry");
    }
    pthread_rwlock_unlock(&en->lock);
    if (rc != 0) pn_served_put(s);
    return rc;
}

int pn_engine_unload(struct pn_engine *en, const char *name, uint32_t drain_ms, struct fo_err *e) {
    struct pn_served *s = pn_engine_get(en, name);
    if (!s) return fo_fail(e, FO_ENOENT, "no model named '%s' is loaded", name);
    pn_sched_drain(s->sched);
    if (!pn_sched_wait_idle(s->sched, drain_ms)) pn_sched_cancel_all(s->sched, "the model is being unloaded");
    pn_sched_stop(s->sched);
    pthread_rwlock_wrlock(&en->lock);
    for (size_t i = 0; i < en->n; i++) {
        if (en->list[i] != s) continue;
        memmove(&en->list[i], &en->list[i + 1], (--en->n - i) * sizeof(struct pn_served *));
        pn_served_put(s); /* the registry's; ours is still there */
        break;
    }
    pthread_rwlock_unlock(&en->lock);
    pn_served_put(s);
    return 0;
}

void pn_engine_drain(struct pn_engine *en) {
    pthread_rwlock_wrlock(&en->lock);
    en->draining = true;
    for (size_t i = 0; i < en->n; i++) pn_sched_drain(en->list[i]->sched);
    pthread_rwlock_unlock(&en->lock);
}

/* The lock's state changes, the registry does not: reading is const for the caller. */
static void read_lock(const struct pn_engine *en) {
    pthread_rwlock_rdlock(&((struct pn_engine *)(uintptr_t)en)->lock);
}

static void read_unlock(const struct pn_engine *en) {
    pthread_rwlock_unlock(&((struct pn_engine *)(uintptr_t)en)->lock);
}

uint32_t pn_engine_active(const struct pn_engine *en) {
    uint32_t n = 0;
    read_lock(en);
    for (size_t i = 0; i < en->n; i++) {
        struct pn_served_status st;
        pn_sched_status(en->list[i]->sched, &st);
        n += st.running + st.queued;
    }
    read_unlock(en);
    return n;
}

void pn_engine_cancel_all(struct pn_engine *en) {
    read_lock(en);
    for (size_t i = 0; i < en->n; i++) pn_sched_cancel_all(en->list[i]->sched, "the server is shutting down");
    read_unlock(en);
}

struct pn_served *pn_engine_get(struct pn_engine *en, const char *name) {
    read_lock(en);
    struct pn_served *s = find(en, name);
    if (s) atomic_fetch_add(&s->refs, 1);
    read_unlock(en);
    return s;
}

void pn_engine_each(struct pn_engine *en, void (*fn)(void *ctx, struct pn_served *s), void *ctx) {
    read_lock(en);
    for (size_t i = 0; i < en->n; i++) fn(ctx, en->list[i]);
    read_unlock(en);
}

const char *pn_served_name(const struct pn_served *s) {
    return s->names[0];
}

const struct pn_model *pn_served_model(const struct pn_served *s) {
    return s->model;
}

void pn_served_status(const struct pn_served *s, struct pn_served_status *ret) {
    pn_sched_status(s->sched, ret);
    ret->loaded_at = s->loaded_at;
}

void pn_served_forget(struct pn_served *s, const char *session) {
    pn_sched_forget(s->sched, session);
}

/* --- admission ------------------------------------------------------------------------------- */
int pn_submit(struct pn_served *s, const struct pn_request_opts *o, struct pn_request **ret, struct pn_budget *ret_budget, struct fo_err *e) {
    const struct pn_model_info *info = pn_model_info(s->model);
    const struct pn_admit_facts facts = {
        .ctx_cap = info->ctx_cap,
        .limited_by = "manifest",
        .kv_bytes_per_token = info->kv_bytes_per_token,
        .kv_bytes_available = pn_sched_kv_available(s->sched),
        .max_tokens_default = s->max_tokens_default,
    };
    int rc = pn_admit(&facts, o->n_tokens, o->max_tokens, ret_budget, e);
    if (rc == 0 && (o->want_text || o->n_stops > 0) && !info->has_tokenizer)
        rc = fo_fail(e, FO_EUNSUPPORTED, "this model has no tokenizer that can write text: %s", info->tokenizer_error);
    if (rc == 0) rc = pn_sched_room(s->sched, o->goes_on, e); /* before anything is copied: a full queue answers at once */
    struct pn_request *r = NULL;
    if (rc == 0)
        rc = pn_request_new(o, (uint32_t)ret_budget->max_tokens, (int32_t)info->n_vocab, pn_sched_wake(s->sched), &r, e);
    if (rc == 0 && pn_sched_submit(s->sched, r, e) != 0) {
        rc = e->code;
        pn_request_discard(r);
    }
    if (rc == FO_EBUSY || rc == FO_EUNAVAIL) {
        struct pn_served_status st;
        pn_sched_status(s->sched, &st);
        ret_budget->retry_after_s = st.retry_after_s;
    }
    if (rc == 0) *ret = r;
    return rc;
}
