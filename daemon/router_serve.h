/* The router as a process: its listeners, keys and certificate, and its end. */
#pragma once

struct pd_reading;
struct pd_router;

/* Listens as the manifest's `server` says and passes requests on until SIGTERM or SIGINT; drains. `r` is a good reading, whose manifest is taken
 * over. Returns the exit status of serve.h; everything is logged. Called once, on the main thread, before other threads exist. */
int pd_router_serve(struct pd_router *router, struct pd_reading *r);
