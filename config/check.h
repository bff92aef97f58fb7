/* What rows of the key table cannot say: keys that must agree, names that must differ, words that must be declared. Runs after
 * cf_schema_read, on the tree and what was read from it. Pure; any thread. */
#pragma once

struct cf_manifest;
struct cf_model;
struct cf_node;
struct cf_report;
struct fo_err;
struct fo_region;

/* Adds findings, fills the `line` fields, and lowers an unwritten max_concurrent to max_sessions. FO_ENOMEM. */
int cf_check_manifest(const struct cf_node *tree, struct cf_manifest *m, struct fo_region *scratch, struct cf_report *rep,
                      struct fo_err *e);

/* The same for one model that stands alone; which dies there are is not known then. */
void cf_check_model(const struct cf_node *map, struct cf_model *m, struct cf_report *rep);
