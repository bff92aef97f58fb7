/* `pantheon router`: one address in front of several servers of the OpenAI API. This is its table of backends, and which of them a request goes to.
 *
 * Threads: main (signals, keys, certificate), one connection each (http.h), which asks its backend itself (hop.h), and one that probes
 * (router_probe.h). `lock` guards what a backend says of itself and is held for pointer work only. Like the daemon's handlers, the router's get a
 * struct pd_app, which stands at the front of its own struct; it has no engine. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/app.h"
#include "daemon/hop.h"
#include "daemon/router_health.h"

struct fo_err;
struct pd_error;
struct pd_models;
struct pd_source;

enum { PD_MAX_BACKENDS = 64, PD_MAX_BACKEND_URL = 1024, PD_DEFAULT_ROOM = 4 };

/* How a try at a backend ended. */
enum pd_try { PD_TRY_ANSWERED, PD_TRY_REFUSED /* 429, 503 */, PD_TRY_UNREACHED, PD_TRY_DIED, PD_TRY_BROKE, PD_TRY_TIMEOUT, PD_TRY_LEFT /* the client did */, PD_N_TRIES };

struct pd_backend {
    char name[PD_MAX_BACKEND_URL]; /* as people write it, without a slash at its end */
    char url[PD_MAX_BACKEND_URL];
    const char *socket;            /* of a Unix socket: into name; else NULL */
    uint64_t id;                   /* for router_ring.h */
    struct pd_lanes lanes;
    /* under the router's lock */
    struct pd_health health;
    struct pd_models *models;      /* what it listed last; NULL = it never has */
    bool any;                      /* it keeps its list from who has no key: asked for whatever nobody lists */
    uint32_t load;                 /* requests that it has now */
    uint64_t tries[PD_N_TRIES], retries /* requests that went on to another */;
};

struct pd_router_opts {
    const char *const *backends; /* [n_backends] as on the command line */
    size_t n_backends;
    char *bearer;                /* for the backends, heap, taken over; NULL = none */
    bool pass_keys;              /* requests go with their client's own key, the bearer is for probes */
    uint64_t connect_ms, head_ms, idle_ms;
};

struct pd_router {
    struct pd_app app;   /* the first member */
    char *bearer; /* of probes and, unless pass_keys, of requests; NULL = none */
    bool pass_keys;
    uint64_t connect_ms, head_ms, idle_ms;
    atomic_bool cut;     /* the time to drain is over: answers end now */
    pthread_mutex_t lock;
    size_t n;
    struct pd_backend list[PD_MAX_BACKENDS];
};

/* A backend's address into name, url and socket: "http://host:port", "https://host", "unix:/path". FO_EINVAL: the message says what is wrong with it. */
int pd_backend_parse(const char *text, struct pd_backend *ret, struct fo_err *e);

/* FO_EINVAL for an address that is none or stands there twice, FO_ELIMIT, FO_ENOMEM. *ret has no HTTP server yet. */
int pd_router_new(struct pd_router_opts *o, struct pd_router **ret, struct fo_err *e);
void pd_router_free(struct pd_router *r); /* no request is under way; NULL is allowed */

/* The backend for a model and a conversation among those not in `tried` (bit i: backend i), counted as one more request of it; give it back with
 * pd_router_end. NULL with the error when there is none. */
struct pd_backend *pd_router_choose(struct pd_router *r, const char *model, uint64_t key, uint64_t tried, struct pd_error *x);
/* The error for a model that nobody has; lists those there are. */
void pd_router_unknown(struct pd_router *r, const char *model, struct pd_error *x);
/* How that ended, and whether it goes on to another; status of an answer, why of a failure. */
void pd_router_end(struct pd_router *r, struct pd_backend *b, enum pd_try how, int status, const char *why, bool goes_on);

/* What a probe found: why NULL = it is well. Takes a reference of `models` over, NULL = those before stay. */
void pd_router_probed(struct pd_router *r, struct pd_backend *b, const char *why, struct pd_models *models, bool any);

/* All backends for the pages of router_models.h, [PD_MAX_BACKENDS]; returns how many. Give them back. */
size_t pd_router_sources(struct pd_router *r, struct pd_source *ret);
void pd_router_sources_put(const struct pd_source *s, size_t n);
