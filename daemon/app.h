/* What the handlers share: the engine, the manifest, and for each declared model how far it has come. The loader thread writes the
 * entries, everybody else reads copies of them; the engine has its own locks. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cf_manifest;
struct cf_model;
struct pd_error;
struct pd_http;
struct pn_engine;
struct pn_served;

enum pd_model_state { PD_MODEL_WAITING, PD_MODEL_LOADING, PD_MODEL_READY, PD_MODEL_FAILED };

struct pd_entry {
    const struct cf_model *decl;
    enum pd_model_state state;
    char reason[384]; /* why it failed */
    int64_t since;    /* seconds since 1970 */
};

struct pd_app {
    const struct cf_manifest *manifest;
    struct pn_engine *engine;
    struct pd_http *http;
    int64_t started_at;      /* seconds since 1970 */
    atomic_bool draining;
    pthread_mutex_t lock;    /* guards the entries; pointer work only */
    struct pd_entry *entries; /* [manifest->n_models], in manifest order */
};

/* A copy of entry i. */
struct pd_entry pd_app_entry(struct pd_app *app, size_t i);
void pd_app_set(struct pd_app *app, size_t i, enum pd_model_state state, const char *reason);

/* "waiting", "loading", "ready", "failed": as /v1/models says it. */
const char *pd_model_state_name(enum pd_model_state s);

/* The model that a request names, by name or alias: *ret (give it back with pn_served_put) and *ret_decl. False with the error: not
 * found (the message lists what there is), loading, failed. */
bool pd_app_find(struct pd_app *app, const char *name, struct pn_served **ret, const struct cf_model **ret_decl, struct pd_error *ret_error);
/* The index of a declared model by name or alias; -1 = none. */
long pd_app_index(const struct pd_app *app, const char *name);
