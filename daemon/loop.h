/* What reconcile.c and steps.c share: the loop's state. Everyone else: reconcile.h. Main thread only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/app.h"
#include "daemon/reconcile.h"
#include "daemon/source.h"
#include "daemon/verified.h"
#include "daemon/world.h"

struct cf_facts;
struct cf_plan;
struct cf_step;
struct pd_fetch_job;
struct pd_fetcher;
struct pd_loader;
struct pd_step;

struct pd_loop {
    struct pd_app *app;
    struct pd_loop_opts opts;
    struct pd_world world;
    struct pd_loader *loader;
    struct pd_fetcher *fetcher; /* NULL = nothing was fetched yet */
    struct pd_fetch_job *fetch; /* at work, beside the step */
    struct pd_verified verified;
    uint64_t step_no, fetch_no; /* of the two at work, among those performed */
    struct pd_step *step; /* at work; its results are the loader's until it is taken back */
    int signals, done_bell;
    char signalled[PD_MAX_WHO]; /* who sent the last signal */

    struct pd_counted_manifest *manifest;
    struct pd_counted_manifest *started; /* the first one: what needs a restart is measured by it */
    struct pd_texts texts; /* of the manifest in force */
    bool manifest_ok, from_kept;
    char *report;
    char restart[256];

    struct cf_facts *facts; /* what the plan was made from */
    struct cf_plan *plan;
    struct pd_counted_manifest *plan_manifest;
    int64_t plan_at; /* seconds since 1970 */
    struct pd_performed performed[PD_MAX_PERFORMED]; /* step n is at n % PD_MAX_PERFORMED */
    uint64_t n_performed;
    uint64_t asked;
    bool settled, first_pass_over, draining, probe_failed, useless;
    uint64_t backoff_ms, next_look_ms, step_started_ms, extended_ms;

    uint64_t watchdog_ms;  /* systemd's; 0 = none */
    uint64_t *heartbeats;  /* [n_heartbeats] of the serving copies when the watchdog was fed last */
    size_t n_heartbeats;
};

/* Notes that a step of the plan is taken, and returns its number; what became of it is noted when it ends. */
uint64_t pd_note_step(struct pd_loop *l, const struct cf_step *p);
void pd_note_step_end(struct pd_loop *l, uint64_t no, int code, const char *error, uint64_t took_ms);
/* Puts the plan, the steps and what the dies' drivers say into a view that nobody has yet. */
void pd_show_plan(const struct pd_loop *l, struct pd_view *v);
/* The model waits, longer after each failure in a row, and pages and the log say why. */
void pd_note_failure(struct pd_loop *l, const char *name, const char *why);
/* How long what failed n times in a row waits. */
uint64_t pd_backoff_ms(const struct pd_loop *l, uint32_t n);
/* Hands to the loader what is to be measured; false = nothing is, or it cannot be done now. */
bool pd_start_probe(struct pd_loop *l);
/* Hands a step of the plan to the loader. On failure nothing has changed. */
int pd_start_step(struct pd_loop *l, const struct cf_step *p, struct fo_err *e);
/* Changes live keys, in place. */
int pd_set_live(struct pd_loop *l, const struct cf_step *p, struct fo_err *e);
/* Takes back what the loader has done; nothing when it has not. */
void pd_finish_step(struct pd_loop *l);
