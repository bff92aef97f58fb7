/* YAML text to nodes with places. Only what a manifest needs: one document of mappings, lists and scalars. Anchors, aliases, tags,
 * directives and further documents are findings: a value that stands in two places would make "what does changing this line cost"
 * unanswerable, and a file without them cannot be an alias bomb. Nothing is interpreted: a scalar is its text, and whether it was
 * quoted. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cf_report;
struct fo_err;
struct fo_region;

enum { CF_MAX_TEXT_BYTES = 1 << 20, CF_MAX_DEPTH = 16, CF_MAX_NODES = 1 << 16 };

enum cf_node_kind { CF_NODE_BAD, CF_NODE_SCALAR, CF_NODE_LIST, CF_NODE_MAP }; /* BAD: a finding tells, say no more about it */

struct cf_node {
    enum cf_node_kind kind;
    bool plain;                   /* a scalar without quotes */
    int line, col, width;         /* from 1; characters; width of containers is 1 */
    uint32_t len;                 /* of text */
    uint32_t n;                   /* children */
    const char *text;             /* scalar: NUL-terminated UTF-8 without NUL inside */
    struct cf_node *key;          /* in a map: the key of this value */
    struct cf_node *first, *next; /* children, siblings */
};

/* Reads `text`. *n_nodes counts the nodes of all texts of one manifest: 0 before the first; NULL: there is one. FO_OK also when it has mistakes: they are in the report, and the tree is what was understood; *ret_whole is false
 * when reading stopped early, so that what is missing from the tree may still be in the text. *ret_root is NULL when the text holds
 * no value. FO_ELIMIT past a cap (the report tells where), FO_ENOMEM. Nodes live in the region. */
int cf_yaml_read(const char *text, size_t len, int *n_nodes, struct fo_region *r, struct cf_report *rep, struct cf_node **ret_root, bool *ret_whole,
                 struct fo_err *e);

/* The value of `key` in a map, or NULL. Of a key written twice: the first. */
struct cf_node *cf_node_find(const struct cf_node *map, const char *key);
