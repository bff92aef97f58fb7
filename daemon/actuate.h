/* The loader: one thread that performs one step at a time, so that the main thread never waits for a disk, a die or a drain. A job is
 * a value that owns its inputs; the main thread hands it over, and takes it back with its results when the bell has rung. Between
 * the two nobody else touches it. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/facts.h"
#include "daemon/facts.h"
#include "foundry/base/err.h"

struct fo_device;
struct pd_app;
struct pd_estimate;
struct pd_loader;

enum pd_step_kind {
    PD_STEP_PROBE, /* measure model files */
    PD_STEP_LOAD,
    PD_STEP_UNLOAD,
    PD_STEP_RELOAD /* unload the old form, load the new one, or the old one again when that fails */
};

/* A form that a copy of a model has or shall have. Owns everything. */
struct pd_form {
    struct cf_model *spec;
    struct cf_part *parts;
    struct fo_device **devices; /* [n_parts], borrowed: open as long as the job runs */
    size_t n_parts;
    uint64_t reserve_bytes[64]; /* of the die of parts[i] */
    uint64_t host_bytes, staging_bytes;
};

struct pd_step {
    enum pd_step_kind kind;
    char *model;
    int64_t replica;
    uint64_t generation;
    bool ad_hoc, trusted;
    struct pd_form want; /* LOAD, RELOAD */
    struct pd_form had;  /* UNLOAD, RELOAD */
    struct pd_held others; /* of the host, by all other copies: they stay while the step runs */
    /* the rules in force */
    char *dir;
    uint64_t settle_timeout_ms, settle_stable_ms, drain_ms, load_timeout_ms, ram_reserve_bytes;
    bool no_mmap;
    /* PROBE */
    struct cf_model **ask; /* [n_ask] */
    size_t n_ask;
    struct fo_device *probe_device;

    /* results */
    int code; /* of the step; FO_OK */
    struct fo_err err;
    bool unloaded;  /* the old form is gone */
    bool restored;  /* RELOAD failed and the old form serves again */
    uint64_t took_ms, settled_ms;
    struct pd_estimate **found; /* PROBE: [n_ask], NULL where memory ran out */
};

struct pd_step *pd_step_new(enum pd_step_kind kind); /* NULL without memory */
void pd_step_free(struct pd_step *s);                /* NULL is allowed */
int pd_form_set(struct pd_form *f, const struct cf_model *spec, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes, uint64_t staging_bytes,
                struct fo_err *e);

/* Starts the thread. `bell` (an eventfd) rings whenever a step is done. */
int pd_loader_new(struct pd_app *app, int bell, struct pd_loader **ret, struct fo_err *e);
/* Hands a step over; there is none at work. */
void pd_loader_start(struct pd_loader *l, struct pd_step *s);
/* The step that is done, or NULL while it is at work or there is none. */
struct pd_step *pd_loader_take(struct pd_loader *l);
/* Asks the step at work to end early: a drain is cut short, a load stops at its next chance. */
void pd_loader_cancel(struct pd_loader *l);
/* Waits for the step at work, joins, frees. NULL is allowed. */
void pd_loader_free(struct pd_loader *l);

/* Live keys of a copy that runs, in place: cheap, on the main thread. */
int pd_actuate_set(struct pd_app *app, int64_t replica, const struct cf_model *spec, struct fo_err *e);
