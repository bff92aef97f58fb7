/* Whose turn it is, and whose KV: what a request says of itself, and what its key lets it. The tenant is the API key's name, the session the header
 * X-Session-Id, else the field session_id, else prompt_cache_key; the priority is service_tier's, at most the key's. Pure: any thread. */
#pragma once
#include <stdbool.h>

#include "engine/request.h"

struct fo_buf;
struct json_t;
struct pd_call;
struct pd_error;
struct pd_params;

enum { PD_MAX_SESSION_BYTES = 256 };

/* Fields of a body: see params.c. */
bool pd_whose_tier(struct pd_params *p, struct json_t *v, struct pd_error *x);
bool pd_whose_session(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x);

/* What a tier of that priority is called. */
const char *pd_whose_tier_name(enum pn_priority p);

/* The opts' tenant, session, priority and keep_nothing; texts stay the call's and the params'. False with the error: the header's value is none that a
 * field could have. */
bool pd_whose_fill(const struct pd_params *p, const struct pd_call *c, struct pn_request_opts *o, struct pd_error *x);

/* Its part of the reference page. */
void pd_whose_doc(struct fo_buf *out);
