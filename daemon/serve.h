/* The daemon proper: `pantheond` and `pantheon serve` are both this one function over a manifest. */
#pragma once
#include <stdbool.h>

struct cf_manifest;
struct fo_err;

struct pd_serve_opts {
    const char *isa; /* cpu overlay, NULL = auto */
    bool no_mmap;
};

/* Exit statuses of the daemon. */
enum { PD_SERVED = 0, PD_CANNOT_SERVE = 1, PD_BAD_MANIFEST = 78 };

/* Listens, loads the manifest's models one after the other, serves until SIGTERM or SIGINT, drains. Returns the exit status; every
 * event and error is logged (pd_log_open comes before). `dir` is what relative paths of models and templates are relative to, NULL =
 * the working directory. Called once, on the main thread, before other threads exist: signals are blocked for the process. A
 * second SIGINT ends the process at once. */
int pd_serve(const struct cf_manifest *m, const char *dir, const struct pd_serve_opts *opts);
