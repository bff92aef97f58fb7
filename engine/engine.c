/* The registry: see engine.h.
 *
 * An instance is counted: the registry holds one reference, everybody who looked it up one more. Unloading takes it out and stops the
 * worker; the memory goes with the last reference. Names are guarded by a read-write lock, which a worker takes for reading when its model has
 * failed (route.c), and which nobody holds who waits for a worker; the only
 * writer is the loader, so what it found stays where it is between its own calls. */
#include "engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/chat.h"
#include "engine/embed.h"
#include "engine/mem/admit.h"
#include "engine/request_worker.h"
#include "engine/sched.h"
#include "engine/wake.h"

enum { QUEUE_DEPTH = 8, QUEUE_TIMEOUT_MS = 120000, DECODE_STALL_MS = 500 };

int pn_engine_new(struct pn_engine **ret, struct fo_err *e) {
    struct pn_engine *en = calloc(1, sizeof *en);
    if (!en) return fo_fail(e, FO_ENOMEM, "no memory for the registry");
    pthread_rwlock_init(&en->lock, NULL);
    *ret = en;
    return 0;
}

static void names_done(struct pn_names *a) {
    for (int i = 0; i < a->n; i++) free(a->name[i]);
    free(a->name);
}

static int names_copy(const char *const *from, int n, struct pn_names *ret, struct fo_err *e) {
    struct pn_names a = { 0 };
    if (n > 0 && !(a.name = calloc((size_t)n, sizeof *a.name))) return fo_fail(e, FO_ENOMEM, "no memory for names");
    for (; a.n < n; a.n++)
        if (!(a.name[a.n] = strdup(from[a.n]))) {
            names_done(&a);
            return fo_fail(e, FO_ENOMEM, "no memory for names");
        }
    *ret = a;
    return 0;
}

static void served_free(struct pn_served *s) {
    pn_sched_free(s->sched);
    pn_grammars_free(s->grammars);
    pn_model_free(s->model);
    names_done(&s->aliases);
    free(s->name);
    free(s);
}

struct pn_served *pn_served_ref(struct pn_served *s) {
    atomic_fetch_add(&s->refs, 1);
    return s;
}

void pn_served_put(struct pn_served *s) {
    if (s && atomic_fetch_sub(&s->refs, 1) == 1) served_free(s);
}

void pn_engine_free(struct pn_engine *en) {
    if (!en) return;
    pthread_rwlock_wrlock(&en->lock);
    size_t n = en->n;
    en->n = 0; /* no worker that fails now hands its requests to one that is gone */
    pthread_rwlock_unlock(&en->lock);
    for (size_t i = 0; i < n; i++) {
        pn_sched_stop(en->list[i]->sched);
        pn_served_put(en->list[i]);
    }
    free(en->list);
    pthread_rwlock_destroy(&en->lock);
    free(en);
}

/* --- names (under the lock) ------------------------------------------------------------------- */
/* An instance of this very name. */
static struct pn_served *find_replica(const struct pn_engine *en, const char *name, uint32_t replica) {
    for (size_t i = 0; i < en->n; i++)
        if (en->list[i]->replica == replica && strcmp(en->list[i]->name, name) == 0) return en->list[i];
    return NULL;
}

/* Names belong to one model each; its instances share them. */
static int check_names(const struct pn_engine *en, const struct pn_serve_opts *o, struct fo_err *e) {
    for (size_t i = 0; i < en->n; i++) {
        const struct pn_served *s = en->list[i];
        if (strcmp(s->name, o->name) == 0) continue;
        for (int k = -1; k < o->n_aliases; k++) {
            const char *name = k < 0 ? o->name : o->aliases[k];
            if (pn_served_is_called(s, name)) return fo_fail(e, FO_EINVAL, "the name '%s' is already one of model '%s'", name, s->name);
        }
    }
    return 0;
}

/* --- coming and going ------------------------------------------------------------------------ */
/* What 0 stands for is filled in; FO_EINVAL above what the model was laid out for. */
static int resolve(const struct pn_serve_opts *o, const struct pn_model *m, struct pn_sched_limits *ret, struct fo_err *e) {
    uint32_t laid_out = pn_model_info(m)->max_concurrent;
    if (o->max_concurrent > laid_out)
        return fo_fail_need(e, FO_EINVAL, o->max_concurrent, laid_out, "max_concurrent %u is above the %u that the model was loaded for",
                            o->max_concurrent, laid_out);
    *ret = (struct pn_sched_limits){
        .max_concurrent = o->max_concurrent ? o->max_concurrent : laid_out,
        .queue_depth = o->queue_depth == PN_QUEUE_NONE ? 0 : o->queue_depth ? o->queue_depth : QUEUE_DEPTH,
        .queue_timeout_ms = o->queue_timeout_ms ? o->queue_timeout_ms : QUEUE_TIMEOUT_MS,
        .decode_stall_ms = o->decode_stall_ms ? o->decode_stall_ms : DECODE_STALL_MS,
        .speculation = o->speculation,
    };
    return 0;
}

static int served_new(struct pn_engine *en, const char *path, const struct pn_serve_opts *o, struct pn_served **ret, struct fo_err *e) {
    struct pn_served *s = calloc(1, sizeof *s);
    struct pn_sched_limits limits;
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for a model");
    atomic_init(&s->refs, 1);
    atomic_init(&s->max_tokens_default, o->max_tokens_default);
    s->en = en;
    s->replica = o->replica;
    s->loaded_at = (int64_t)time(NULL);
    int rc = (s->name = strdup(o->name)) ? 0 : fo_fail(e, FO_ENOMEM, "no memory for names");
    if (rc == 0) rc = names_copy(o->aliases, o->n_aliases, &s->aliases, e);
    s->identity = pn_model_identity(path); /* before it is read: what is replaced meanwhile is another one's */
    if (rc == 0) rc = pn_model_open(path, &o->model, &s->model, e);
    if (rc == 0) rc = pn_grammars_new(pn_model_tok(s->model), &s->grammars, e);
    if (rc == 0) rc = resolve(o, s->model, &limits, e);
    if (rc == 0) rc = pn_model_try(s->model, e); /* before anybody is told that it serves: what is loaded has computed */
    if (rc == 0) rc = pn_sched_new(s->model, &limits, pn_route_hand_over, s, &s->sched, e);
    if (rc != 0) {
        served_free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

/* The loader is the only writer: what it checked still holds when it has loaded. */
int pn_engine_load(struct pn_engine *en, const char *path, const struct pn_serve_opts *o, struct fo_err *e) {
    pthread_rwlock_rdlock(&en->lock);
    int rc = check_names(en, o, e);
    if (rc == 0 && find_replica(en, o->name, o->replica))
        rc = fo_fail(e, FO_EINVAL, "replica %u of model '%s' is already loaded", o->replica, o->name);
    pthread_rwlock_unlock(&en->lock);
    struct pn_served *s = NULL;
    if (rc == 0) rc = served_new(en, path, o, &s, e);
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

void pn_engine_on_leave(struct pn_engine *en, void (*fn)(void *ctx, struct pn_served *s), void *ctx) {
    en->leave = fn;
    en->leave_ctx = ctx;
}

/* Out of the registry, once nothing runs there any more or drain_ms have passed. */
static void unload(struct pn_engine *en, struct pn_served *s, uint32_t drain_ms) {
    pn_sched_drain(s->sched);
    if (!pn_sched_wait_idle(s->sched, drain_ms)) pn_sched_cancel_all(s->sched, "the model is being unloaded");
    if (en->leave) en->leave(en->leave_ctx, s);
    pn_sched_stop(s->sched);
    pthread_rwlock_wrlock(&en->lock);
    for (size_t i = 0; i < en->n; i++) {
        if (en->list[i] != s) continue;
        memmove(&en->list[i], &en->list[i + 1], (--en->n - i) * sizeof(struct pn_served *));
        pn_served_put(s); /* the registry's; the caller's is still there */
        break;
    }
    pthread_rwlock_unlock(&en->lock);
}

int pn_engine_unload_replica(struct pn_engine *en, const char *name, uint32_t replica, uint32_t drain_ms, struct fo_err *e) {
    struct pn_served *s = pn_engine_get_replica(en, name, replica);
    if (!s) return fo_fail(e, FO_ENOENT, "replica %u of a model named '%s' is not loaded", replica, name);
    unload(en, s, drain_ms);
    pn_served_put(s);
    return 0;
}

int pn_engine_unload(struct pn_engine *en, const char *name, uint32_t drain_ms, struct fo_err *e) {
    struct pn_served *s = pn_engine_get(en, name);
    if (!s) return fo_fail(e, FO_ENOENT, "no model named '%s' is loaded", name);
    pthread_rwlock_rdlock(&en->lock); /* all of them at once, so that none takes what the others refuse */
    for (size_t i = 0; i < en->n; i++)
        if (strcmp(en->list[i]->name, s->name) == 0) pn_sched_drain(en->list[i]->sched);
    pthread_rwlock_unlock(&en->lock);
    double until = pn_now_ms() + drain_ms;
    while (s) {
        double left = until - pn_now_ms();
        unload(en, s, left > 0 ? (uint32_t)left : 0);
        struct pn_served *another = pn_engine_get(en, s->name);
        pn_served_put(s);
        s = another;
    }
    return 0;
}

int pn_engine_set(struct pn_engine *en, const struct pn_serve_opts *o, struct fo_err *e) {
    struct pn_names aliases;
    struct pn_sched_limits limits;
    struct pn_served *s = pn_engine_get_replica(en, o->name, o->replica);
    if (!s) return fo_fail(e, FO_ENOENT, "replica %u of a model named '%s' is not loaded", o->replica, o->name);
    int rc = resolve(o, s->model, &limits, e);
    if (rc == 0) rc = names_copy(o->aliases, o->n_aliases, &aliases, e);
    if (rc == 0) {
        pthread_rwlock_wrlock(&en->lock);
        rc = check_names(en, o, e);
        if (rc == 0) {
            struct pn_names old = s->aliases;
            s->aliases = aliases;
            aliases = old;
        }
        pthread_rwlock_unlock(&en->lock);
        names_done(&aliases);
    }
    if (rc == 0) {
        atomic_store(&s->max_tokens_default, o->max_tokens_default);
        pn_sched_set(s->sched, &limits);
    }
    pn_served_put(s);
    return rc;
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
    struct pn_served *s = pn_route_find(en, name);
    if (s) atomic_fetch_add(&s->refs, 1);
    read_unlock(en);
    return s;
}

struct pn_served *pn_engine_get_replica(struct pn_engine *en, const char *name, uint32_t replica) {
    read_lock(en);
    struct pn_served *s = find_replica(en, name, replica);
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
    return s->name;
}

uint32_t pn_served_replica(const struct pn_served *s) {
    return s->replica;
}

const struct pn_model *pn_served_model(const struct pn_served *s) {
    return s->model;
}

int pn_served_grammar(struct pn_served *s, enum pn_grammar_kind kind, const char *text, size_t len, struct pn_grammar **ret, struct fo_err *e) {
    return pn_grammars_get(s->grammars, kind, text, len, ret, e);
}

int pn_served_made_grammar(struct pn_served *s, const char *key, size_t n_key, int (*write)(void *ctx, struct fo_buf *ret, struct fo_err *e), void *ctx,
                           struct pn_grammar **ret, struct fo_err *e) {
    return pn_grammars_made(s->grammars, key, n_key, write, ctx, ret, e);
}

void pn_served_status(const struct pn_served *s, struct pn_served_status *ret) {
    struct pn_grammars_info g;
    pn_sched_status(s->sched, ret);
    pn_grammars_info(s->grammars, &g);
    ret->loaded_at = s->loaded_at;
    ret->grammars_compiled = g.compiled;
    ret->grammars_found = g.found;
    ret->grammar_compile_s = g.compile_s;
    ret->grammar_bytes = g.bytes;
}

void pn_served_set_memory(struct pn_served *s, enum pn_level level, uint64_t room_bytes) {
    pn_sched_set_memory(s->sched, level, room_bytes);
}

uint32_t pn_served_slots(const struct pn_served *s, struct pn_slot_status *ret, uint32_t cap) {
    return pn_sched_slots(s->sched, ret, cap);
}

void pn_served_forget(struct pn_served *s, const char *session) {
    pn_sched_forget(s->sched, session);
}

/* --- admission ------------------------------------------------------------------------------- */
int pn_fits(const struct pn_served *s, const struct pn_request_opts *o, struct pn_budget *ret_budget, struct fo_err *e) {
    const struct pn_model_info *info = pn_model_info(s->model);
    const struct pn_admit_facts facts = {
        .ctx_cap = info->ctx_cap,
        .limited_by = "manifest",
        .kv_bytes_per_token = info->kv_bytes_per_token,
        .kv_tokens_cap = (uint64_t)info->seq_pages * info->page_tokens,
        .kv_bytes_available = pn_sched_kv_available(s->sched),
        .max_tokens_default = atomic_load(&s->max_tokens_default),
        .prompt_only = o->embed,
    };
    return pn_admit(&facts, o->n_tokens, o->embed ? 0 : o->max_tokens, ret_budget, e);
}

int pn_submit(struct pn_served *s, const struct pn_request_opts *o, struct pn_request **ret, struct pn_budget *ret_budget, struct fo_err *e) {
    const struct pn_model_info *info = pn_model_info(s->model);
    int rc = pn_fits(s, o, ret_budget, e);
    if (rc == 0 && o->embed) rc = pn_pooling_check(info->pooling, e);
    if (rc == 0 && !o->embed && (o->want_text || o->n_stops > 0) && !info->has_tokenizer)
        rc = fo_fail(e, FO_EUNSUPPORTED, "this model has no tokenizer that can write text: %s", info->tokenizer_error);
    if (rc == 0) rc = pn_sched_room(s->sched, o, e); /* before anything is copied: a full queue answers at once */
    struct pn_request *r = NULL;
    if (rc == 0)
        rc = pn_request_new(o, (uint32_t)ret_budget->max_tokens, (int32_t)info->n_vocab, info->has_tokenizer ? pn_chat_dialect(pn_model_chat(s->model)) : NULL,
                            pn_sched_wake(s->sched), &r, e);
    if (rc == 0 && o->embed && pn_pooled_new(info->pooling, info->n_embd, o->n_tokens, &r->pooled, e) != 0) {
        rc = e->code;
        pn_request_discard(r);
    }
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
