/* The daemon proper: `pantheond` and `pantheon serve` are both this one function over a manifest. */
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/http.h"

struct cf_manifest;
struct fo_err;
struct pd_app;
struct pd_passed;
struct pd_reading;

struct pd_serve_opts {
    const char *config;     /* the manifest's file, read again at every reload; NULL = it is fixed */
    const char *dir;        /* what relative paths of models and templates are relative to; NULL = the working directory */
    const char *state_dir;  /* where the last accepted manifest is kept; NULL = nowhere */
    const char *isa;        /* cpu overlay, NULL = auto */
    bool no_mmap;
    bool must_serve;        /* ends with PD_CANNOT_SERVE when the first pass is over and no model serves: nobody changes what cannot be changed */
    uint64_t generation;    /* what the manifest was accepted as by the process before; 0 = it is new */
    const char *bad_report; /* the manifest is the kept copy, because the file is bad: why; NULL */
};

/* Exit statuses of the daemon. */
enum { PD_SERVED = 0, PD_CANNOT_SERVE = 1, PD_BAD_MANIFEST = 78 };

/* Listens, makes what runs what the manifest declares and keeps it so, until SIGTERM or SIGINT; drains. `r` is a good reading, whose
 * manifest is taken over. Returns the exit status; every event and error is logged (pd_log_open comes before). Called once, on the
 * main thread, before other threads exist: signals are blocked for the process. A second SIGINT ends the process at once. */
int pd_serve(struct pd_reading *r, const struct pd_serve_opts *opts);

/* --- what the router (router_serve.h) shares --- */

/* First of all: SIGTERM, SIGINT and SIGHUP are blocked for the whole process, which are in *ret, SIGPIPE and SIGXFSZ are ignored, and the heap is set up for many threads. */
void pd_serve_prepare(sigset_t *ret);

/* Binds what the manifest's `listen` names, and admin_socket unless NULL, behind the app's gate and certificate. Before anything that takes long, so that an address in use is said at once. */
int pd_serve_open(struct pd_app *app, const struct cf_manifest *m, const struct pd_passed *passed, const char *admin_socket, pd_http_handler *handler, struct fo_err *e);
