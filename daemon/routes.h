/* THE endpoint table, and how a request finds its row. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_buf;
struct pd_app;
struct pd_call;
struct pd_head;

/* `param` is what {id} in the row's path matched, percent-decoded; else "". */
typedef void pd_route_fn(struct pd_app *app, struct pd_call *call, const char *param);

struct pd_route {
    const char *method, *path; /* "/v1/models/{id}": {id} takes the rest of the path, slashes included */
    pd_route_fn *fn;
    bool while_draining;       /* answered although the server is stopping */
    const char *doc;
    unsigned fields;   /* PD_API_...: whose rows of the table of fields its body has; 0 = none */
    const char *query; /* names of what the query may have, a space between them; who has any may answer 202 */
    bool answers_at_once; /* it never does */
    const char *takes; /* the type of a body that its handler reads in pieces (pd_body_read); NULL = none */
    const char *type;  /* of its answer; NULL = application/json */
    bool polled;       /* what monitors and balancers ask every second: a good answer is a debug note, not a line of the log */
};

/* The row of a table, which ends with one that is all zero, for a method and a path as sent (still encoded; a slash at its end does not count). HEAD finds GET's row. NULL with
 * *ret_allow "" when the path is nobody's, else with the methods that it has ("GET, HEAD, OPTIONS"), in `allow` [size]. `param` gets
 * the decoded {id}; false in *ret_ok when its escapes are broken. */
const struct pd_route *pd_route_find(const struct pd_route *rows, const char *method, const char *path, char *param, size_t param_size, char *allow, size_t allow_size, bool *ret_ok);
const struct pd_route *pd_routes(void);       /* the daemon's own table */
const struct pd_route *pd_route_at(size_t i); /* NULL past the last */

/* Whether it is a row's that `takes` a body in pieces: the hook of http.h. */
bool pd_route_in_pieces(const struct pd_head *head);

/* Answers any call that was let in (gate.h): the handler of http.h, with a struct pd_app as ctx. */
void pd_dispatch(void *app, struct pd_call *call);

/* The same by another table. */
void pd_dispatch_by(const struct pd_route *rows, struct pd_app *app, struct pd_call *call);

/* The reference page docs/http-api.md, from the tables of routes, fields and errors. */
void pd_routes_doc(struct fo_buf *out);

/* The handlers, one file per family of paths. */
pd_route_fn pd_get_root, pd_get_health, pd_get_ready;    /* api_root.c */
pd_route_fn pd_get_models, pd_get_model;                 /* api_models.c */
pd_route_fn pd_post_chat, pd_post_responses;             /* api_chat.c */
pd_route_fn pd_post_completions;                         /* api_completions.c */
pd_route_fn pd_post_embeddings;                          /* api_embeddings.c */
pd_route_fn pd_post_tokenize, pd_post_detokenize, pd_post_apply_template; /* api_text.c */
pd_route_fn pd_get_session, pd_put_session, pd_delete_session; /* api_sessions.c */
pd_route_fn pd_get_slots;                                /* api_slots.c */
pd_route_fn pd_get_metrics;                              /* api_metrics.c */
pd_route_fn pd_get_openapi;                              /* openapi.c */
pd_route_fn pd_get_admin_events, pd_get_admin_plan;      /* api_events.c */
pd_route_fn pd_get_admin_live;                           /* api_live.c */
pd_route_fn pd_get_admin_dies, pd_get_admin_models, pd_get_admin_facts;
pd_route_fn pd_post_admin_load, pd_post_admin_unload, pd_post_admin_reconcile; /* api_admin.c */
