/* What rows of the key table cannot say: keys that must agree, names that must differ, words that must be declared. Runs after
 * cf_schema_read, on the tree and what was read from it. Pure; any thread. */
#pragma once
#include <stddef.h>

struct cf_manifest;
struct cf_model;
struct cf_node;
struct cf_report;
struct fo_err;
struct fo_region;

/* One text of the manifest, read: which of its models are this one's. */
struct cf_part {
    const char *name;           /* of the text */
    const struct cf_node *tree; /* NULL: nothing that could be read */
    size_t first, n;            /* models[first, first + n) */
};

/* Adds findings, fills the `line` fields, and lowers an unwritten max_concurrent to max_sessions. parts[0] is the manifest's own text. FO_ENOMEM. */
int cf_check_manifest(const struct cf_part *parts, size_t n_parts, struct cf_manifest *m, struct fo_region *scratch, struct cf_report *rep, struct fo_err *e);

/* The same for one model that stands alone; which dies there are is not known then. */
void cf_check_model(const struct cf_node *map, struct cf_model *m, struct cf_report *rep);
