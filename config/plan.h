/* The planner: manifest x facts -> verdicts and steps. Pure: no clock, files, threads or globals; the same inputs give the same
 * plan. The daemon performs only the first step, observes again and plans again; --plan prints all of them. Same function, so the
 * dry run cannot lie, and a crash leaves nothing to resume. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/facts.h"
#include "config/manifest.h"

enum cf_step_kind {
    CF_STEP_UNLOAD, /* drain, then free */
    CF_STEP_LOAD,
    CF_STEP_SET,   /* change live keys in place */
    CF_STEP_RELOAD, /* unload the old form, load the new one; the old one comes back when that fails */
    CF_STEP_FETCH   /* get the model's files from where it declares, or hold them against its sha256; other steps go on meanwhile */
};

struct cf_step {
    enum cf_step_kind kind;
    const char *model; /* a name in the manifest or the facts, as in verdicts */
    int64_t replica;
    const struct cf_model *spec; /* LOAD, SET, RELOAD, FETCH: the new form, in the manifest (or ad hoc in the facts); UNLOAD: NULL */
    char *why;                   /* "declared", "no longer declared", "ctx_cap 8192 -> 4096 needs a reload", ... */
    struct cf_part *parts;       /* LOAD, RELOAD: where it goes */
    size_t n_parts;
    uint64_t host_bytes, staging_bytes; /* LOAD, RELOAD: host memory besides the parts; and while it loads */
    uint64_t bytes;                     /* FETCH: still to come; 0 = not known */
    bool ad_hoc;                        /* of a model that is not declared */
    bool trusted;                       /* the gate says no and `memory: trust` overrides it; `why` has the numbers */
};

enum cf_verdict_kind {
    CF_V_IN_SYNC, /* runs as declared, or is declared absent and does not run */
    CF_V_CHANGES, /* has steps */
    CF_V_REFUSED, /* does not fit, or its file cannot be served: need, have and what would fit */
    CF_V_HELD,    /* AdminUnloaded: until it is loaded by hand or a new manifest comes */
    CF_V_WAITING  /* backoff until retry_at_ms; a load, a drain or memory still to come back; its die is lost; not probed yet; its file is on its way */
};

struct cf_verdict {
    const char *model;
    enum cf_verdict_kind kind;
    bool declared;                   /* else it is ad hoc, or goes */
    char *why;                       /* never NULL */
    uint64_t need_bytes, have_bytes; /* REFUSED for memory */
    const char *code;                /* REFUSED: "would_evict_pinned" = it is loaded on demand, and what is there does not give way; else NULL */
    char *would_fit;                 /* "ctx_cap 2048 on s0; auto:2", or NULL */
    uint64_t retry_at_ms;
    bool fetching;                   /* WAITING for its file, which is fetched meanwhile: nothing has to be looked at again soon */
};

/* A die's line in the plan's table: now, after all steps, and the highest in between. Each is ours + foreign + reserve, so that
 * peak <= budget is the gate. The host's is what is taken of its total, the reserve counted in. */
struct cf_die_plan {
    const char *die;
    uint64_t budget_bytes, now_bytes, after_bytes, peak_bytes;
};

struct cf_plan {
    struct cf_step *steps; /* in the order they will be performed */
    size_t n_steps;
    struct cf_verdict *verdicts; /* one a declared model in manifest order, then one an undeclared name */
    size_t n_verdicts;
    struct cf_die_plan *dies; /* in facts order */
    size_t n_dies;
    struct cf_die_plan host;
    uint64_t look_at_ms; /* the next plan may be another one from then on, whatever else happens; 0 = it will not */
    void *memory;
};

enum { CF_PLAN_PRUNE = 1 /* ad hoc models are unloaded too */, CF_MAX_PLAN_BYTES = 64 << 20 };

/* Both inputs outlive the plan. FO_ENOMEM; FO_ELIMIT past CF_MAX_PLAN_BYTES. Free with cf_plan_free. */
int cf_plan_make(const struct cf_manifest *m, const struct cf_facts *f, unsigned flags, struct cf_plan **ret, struct fo_err *e);
void cf_plan_free(struct cf_plan *p); /* NULL is allowed */

/* Applies step i to facts (of cf_facts_parse or cf_facts_copy) as the daemon would see them afterwards, loads having succeeded. FO_ENOMEM,
 * FO_ELIMIT. */
int cf_plan_apply(const struct cf_plan *p, size_t i, struct cf_facts *f, struct fo_err *e);

/* What --plan prints (one line a change with its mark, a table per die, the order of steps, a summary), and the same as JSON. `f` are the
 * facts it was made of. Heap text (free it); NULL without memory. */
char *cf_plan_text(const struct cf_plan *p, const struct cf_facts *f);
char *cf_plan_json(const struct cf_plan *p);

/* The exit status of --plan: 0 in sync (or held), 2 changes pending or waited for, 3 at least one refused. */
int cf_plan_exit(const struct cf_plan *p);
