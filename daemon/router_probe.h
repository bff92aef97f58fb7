/* Looks after the backends: one thread for each asks it GET /ready and GET /v1/models, every second while it is well, and after its backoff while it
 * is not. A thread each, because one backend that answers slowly must not keep the news of the others. */
#pragma once

struct fo_err;
struct pd_router;
struct pd_probes;

int pd_probes_start(struct pd_router *r, struct pd_probes **ret, struct fo_err *e);
void pd_probes_stop(struct pd_probes *p); /* waits for them; NULL is allowed */
