/* The loop: observe, plan, hand the first step to the loader, observe again. Level, not edge: a signal, an administrator, the timer, a
 * worker that failed, the loader that is done only say "look again"; what to do follows from the manifest and the facts alone. So
 * events may be lost, doubled or late, and a daemon that was killed has nothing to resume.
 *
 * Runs on the main thread, which never loads, drains or reads a model file: it answers a signal within 100 ms. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cf_manifest;
struct fo_err;
struct pd_app;
struct pd_loop;
struct pd_reading;

struct pd_loop_opts {
    const char *config;    /* read again at every reload; NULL = the manifest is fixed */
    const char *dir;       /* what relative paths are relative to; NULL = the working directory */
    const char *state_dir; /* where the last accepted manifest is kept; NULL = nowhere */
    const char *isa;
    bool no_mmap;
    bool must_serve; /* as in struct pd_serve_opts */
};

/* Takes the reading's manifest over (a good one). `generation` is what it was accepted as before, 0 = it is new. `bad_report` is not NULL
 * when it is the kept copy, serving because the file is bad. Opens the dies and starts the loader; signals must be blocked already
 * (pd_loop_run reads them). */
int pd_loop_new(struct pd_app *app, struct pd_reading *r, uint64_t generation, const char *bad_report, const struct pd_loop_opts *opts, struct pd_loop **ret,
                struct fo_err *e);
/* The manifest's limits as the HTTP server takes them; asks the system for as many files as they need. The loop sets them anew with each
 * manifest. */
struct pd_http_limits;
void pd_loop_limits(const struct cf_manifest *m, struct pd_http_limits *ret);
/* Until SIGTERM or SIGINT; then drains. A second SIGINT ends the process at once. False when it ended because no model can serve (must_serve). */
bool pd_loop_run(struct pd_loop *l);
/* After the engine's models are gone: closes the dies. NULL is allowed. */
void pd_loop_free(struct pd_loop *l);
