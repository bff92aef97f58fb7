/* What a model would take, from its file's header: the engine's own layout code in measuring mode, in the planner's words. Reading a
 * header can take a while on a slow disk, so the daemon does it on its loader thread and remembers the result as long as the file is
 * the same. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "config/facts.h"

struct cf_model;
struct fo_device;
struct fo_err;
struct pn_model_opts;

struct pd_estimate {
    struct cf_estimate v; /* owns its texts and arrays */
    uint64_t identity;    /* of the files that were measured (pn_model_identity) */
};

/* `path` as the manifest means it: relative to the manifest's folder (NULL = the working directory). Heap; NULL without memory. */
char *pd_resolve(const char *dir, const char *path);

/* The keys of a model that decide what it takes, as options of the engine: what measures and what loads agree by it. */
void pd_model_opts(const struct cf_model *spec, struct pn_model_opts *o);

/* Blocking. A file that cannot be served is no failure: v.error says why. `dev`: any open device, whose kernels the scratch is measured
 * for. FO_ENOMEM. */
int pd_estimate_make(const char *dir, const struct cf_model *spec, struct fo_device *dev, struct pd_estimate **ret, struct fo_err *e);
/* The same of the file at `path` with options that need not be a manifest's; v.path and the keys beside it stay unset. */
int pd_estimate_measure(const char *path, const struct pn_model_opts *o, struct pd_estimate **ret, struct fo_err *e);
void pd_estimate_free(struct pd_estimate *p); /* NULL is allowed */

/* Whether a file of the model is another one by now. One stat a file. */
bool pd_estimate_stale(const struct pd_estimate *p, const char *dir);
