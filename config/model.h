/* One model apart from a manifest: its rows, and reading it from any tree of nodes (YAML's, or made from JSON). The rest of what can be
 * done with a model is in manifest.h. Pure; any thread. */
#pragma once
#include <stdbool.h>

struct cf_keys;
struct cf_model;
struct cf_node;
struct cf_report;
struct fo_err;
struct fo_region;

/* The rows of a model. Static storage. */
const struct cf_keys *cf_model_keys(void);

/* Reads a mapping over `start` (NULL = the table's own). FO_OK also with findings; FO_ENOMEM. Texts live in the region, or are those of
 * `start`. `whole` false suppresses what is missing. */
int cf_model_read(const struct cf_node *map, bool whole, const struct cf_model *start, struct fo_region *r, struct cf_report *rep,
                  struct cf_model *ret, struct fo_err *e);

/* A copy whose texts live in the region. FO_ENOMEM. */
int cf_model_copy_to(const struct cf_model *m, struct fo_region *r, struct cf_model *ret, struct fo_err *e);
