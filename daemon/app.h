/* What the handlers share: the engine, and a view of the daemon's state. Only the main thread decides what the state is; it publishes
 * each change as a new view, a value that nobody changes any more, and handlers take a counted reference to the newest one. So a page
 * never waits for the loop, and a manifest that was replaced lives as long as somebody reads it. What handlers want done they put into
 * a queue (pd_app_ask), which only says "look again". The engine has its own locks. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/events.h"

struct cf_facts;
struct cf_manifest;
struct cf_model;
struct cf_sampling;
struct fo_err;
struct fo_sensors;
struct pd_cert;
struct pd_error;
struct pd_gate;
struct pd_http;
struct pn_budget;
struct pn_engine;
struct pn_request;
struct pn_request_opts;
struct pn_served;

enum pd_model_state {
    PD_MODEL_WAITING, /* its turn, memory or a backoff is still to come */
    PD_MODEL_LOADING,
    PD_MODEL_READY,
    PD_MODEL_FAILED,  /* its file cannot be served, or a load failed; tried again */
    PD_MODEL_REFUSED, /* does not fit */
    PD_MODEL_HELD,    /* unloaded by hand */
    PD_MODEL_ABSENT,  /* declared so */
    PD_MODEL_ON_DEMAND, /* loaded by its first request */
    PD_MODEL_LEAVING  /* no longer wanted; ends what it is doing */
};

enum pd_condition_id { PD_C_READY, PD_C_LOADED, PD_C_PLACED, PD_C_CURRENT, PD_C_DEGRADED, PD_C_HEALTHY, PD_C_FETCHED, PD_C_CHAT, PD_N_CONDITIONS };
enum pd_server_condition_id { PD_S_MANIFEST_VALID, PD_S_RECONCILED, PD_S_DRAINING, PD_S_KEYS_VALID, PD_S_TLS_VALID, PD_N_SERVER_CONDITIONS };

struct pd_condition {
    bool is;
    char reason[32]; /* one word */
    char message[384];
    int64_t since; /* seconds since 1970: when `is` or `reason` last changed */
};

/* One model that clients may name. */
struct pd_entry {
    const struct cf_model *decl; /* its keys: in the view's manifest, or in its facts when it is ad hoc; a leaving one's last */
    bool declared, ad_hoc;
    enum pd_model_state state;
    char reason[384]; /* of a state that is not ready */
    int64_t since;    /* seconds since 1970 */
    uint32_t retry_after_s;
    bool wanted;      /* requests wait for it to be loaded on demand */
    bool pinned;      /* REFUSED: it would fit, but what is loaded does not give way to it: */
    uint64_t need_bytes, have_bytes; /* of PD_MODEL_REFUSED */
    uint64_t observed_generation; /* of the newest manifest that its instances run as declared in; 0 = none yet */
    uint64_t loads, load_failures;
    struct pd_condition conditions[PD_N_CONDITIONS];
};

/* A step that was taken, or is being taken. */
struct pd_performed {
    int64_t at;      /* seconds since 1970 */
    char step[8];    /* "load", "unload", "set", "reload" */
    char model[128];
    int64_t replica;
    char why[192];
    uint64_t took_ms;
    enum { PD_STEP_RUNS, PD_STEP_DONE, PD_STEP_FAILED } result;
    char error[192]; /* of FAILED */
};
enum { PD_MAX_PERFORMED = 32 };

struct pd_counted_manifest {
    atomic_int refs;
    struct cf_manifest *m;
    uint64_t generation;
};

struct pd_view {
    atomic_int refs;
    struct pd_counted_manifest *manifest;
    struct cf_facts *facts;    /* as last observed */
    struct fo_sensors *sensors; /* [facts->n_dies] what their drivers say; NULL = no memory for it */
    uint64_t observed_generation; /* of the manifest that the last plan was made for; 0 = none yet */
    int64_t plan_at;           /* when that was made, seconds since 1970 */
    char *plan_json, *plan_text; /* as cf_plan_json and cf_plan_text make them; NULL = none yet, or no memory */
    struct pd_performed performed[PD_MAX_PERFORMED]; /* [n_performed] the last steps, newest last */
    size_t n_performed;
    struct pd_entry *entries;  /* [n]: declared ones in manifest order, then ad hoc and leaving ones */
    size_t n;
    struct pd_condition conditions[PD_N_SERVER_CONDITIONS];
    uint64_t asked;            /* everything asked up to this number has been looked at */
    bool settled;              /* nothing is being done and nothing is left to do now */
    bool first_pass_over;
    bool manifest_ok;          /* of the last reading */
    char *report;              /* why not; "" */
    size_t n_refused, n_failing;
};

enum pd_ask_kind { PD_ASK_LOOK, PD_ASK_WANT /* a request, for a model that is loaded on demand */, PD_ASK_USED /* one that has come to it */, PD_ASK_RELOAD, PD_ASK_LOAD, PD_ASK_UNLOAD, PD_ASK_PRUNE };
struct pd_ask {
    struct pd_ask *next;
    enum pd_ask_kind kind;
    uint64_t seq;
    char *name;            /* WANT, USED, LOAD, UNLOAD */
    struct cf_model *spec; /* LOAD of an undeclared model: its keys (cf_model_free); else NULL */
    char who[PD_MAX_WHO];  /* asks, for the log and the events; "" = the daemon itself */
};
enum { PD_MAX_ASKS = 1024 };

struct pd_app {
    struct pn_engine *engine;
    struct pd_http *http;
    struct pd_gate *gate;
    struct pd_cert *cert;
    const char *config; /* the manifest's file; NULL = it is fixed */
    int64_t started_at; /* seconds since 1970 */
    atomic_bool draining;
    atomic_uint_fast64_t fetched_bytes; /* of model files, over the network, by downloads that have ended */
    atomic_uint_fast64_t sse_ping_ms; /* server.sse_ping of the manifest in force */
    int bell;           /* eventfd: the main thread shall look again */
    pthread_mutex_t lock; /* guards what follows; pointer work only */
    pthread_cond_t changed; /* a new view or event */
    struct pd_view *view;
    struct pd_ask *asks, **asks_end;
    size_t n_asks;
    uint64_t next_ask, next_event;
    struct pd_event events[PD_MAX_EVENTS]; /* event n is at n % PD_MAX_EVENTS */
};

int pd_app_init(struct pd_app *app, struct fo_err *e);
void pd_app_done(struct pd_app *app); /* no other thread uses it any more */

/* A reference to the newest view; never NULL once serving. Give it back. Any thread. */
struct pd_view *pd_app_view(struct pd_app *app);
void pd_view_put(struct pd_view *v); /* NULL is allowed */
/* Waits up to timeout_ms for a view that has looked at ask `seq` (and has nothing left to do, when `settled`), or for an event newer
 * than `event` (0 = events do not count). The newest view, whatever came; give it back. */
struct pd_view *pd_app_wait(struct pd_app *app, uint64_t seq, bool settled, uint64_t event, int timeout_ms);

/* The main thread's: replaces the view (takes it over), and wakes who waits. */
void pd_app_publish(struct pd_app *app, struct pd_view *v);
void pd_counted_manifest_put(struct pd_counted_manifest *m); /* NULL is allowed */

/* Queues an ask and rings the bell; takes `spec` over in every case. `who` asks (pd_call_who). FO_EBUSY when there are too many, FO_ENOMEM. Any thread. */
int pd_app_ask(struct pd_app *app, enum pd_ask_kind kind, const char *name, struct cf_model *spec, const char *who, uint64_t *ret_seq, struct fo_err *e);
/* Asks for the load of a model that is declared on_demand and does not serve: many at once are one, and what is known already wakes nobody. Any thread. */
void pd_app_want(struct pd_app *app, const struct pd_entry *e);
/* The main thread's: takes all asks. Free each with pd_ask_free. */
struct pd_ask *pd_app_take_asks(struct pd_app *app);
void pd_ask_free(struct pd_ask *a);

/* "waiting", "loading", "ready", ...: as /v1/models says it. */
const char *pd_model_state_name(enum pd_model_state s);
const char *pd_condition_name(enum pd_condition_id id);
const char *pd_server_condition_name(enum pd_server_condition_id id);

/* The entry that a name or alias means; NULL = none. */
const struct pd_entry *pd_view_find(const struct pd_view *v, const char *name);

/* The error for a name that nobody has; lists those there are. Returns false. */
bool pd_view_not_found(const struct pd_view *v, const char *name, struct pd_error *ret_error);

/* What the engine says of a request to a model, as its client is told; of a full queue also when to come back. One that is on its way out and is loaded on
 * demand is asked for. */
void pd_app_error(struct pd_app *app, const struct pn_served *s, const struct fo_err *e, struct pd_error *ret_error);

/* The model that a request names, by name or alias: *ret (give it back with pn_served_put) and its sampling defaults. False with the
 * error: not found (the message lists what there is), loading, failed, held. */
bool pd_app_find(struct pd_app *app, const char *name, struct pn_served **ret, struct cf_sampling *ret_sampling, struct pd_error *ret_error);
/* Submits to the instance that the request best goes to, *at or another of its name, which *at then is (a reference of the caller's). Another try elsewhere when that
 * one stopped serving just then. As pn_submit. */
int pd_submit(struct pd_app *app, struct pn_served **at, const struct pn_request_opts *o, struct pn_request **ret, struct pn_budget *ret_budget, struct fo_err *e);
/* Whether a model that does not serve is loaded on demand, and nothing stands against that now. */
bool pd_entry_comes(const struct pd_entry *e);
/* The error that says why an entry does not serve. */
void pd_entry_refusal(const struct pd_entry *e, struct pd_error *ret_error);
