/* Rows against nodes: the generic half of the manifest. A table of rows says what keys a mapping may hold, how each is written, its
 * bounds, its default, where the value goes, and what changing it costs; cf_schema_read walks a tree and a table together, writes
 * values through offsets, and reports everything that does not fit. What rows cannot say (two keys that must agree) is manifest.c's.
 * Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/manifest.h"

struct cf_node;
struct fo_region;

/* How a value is written, and the C type behind its offset. */
enum cf_kind {
    CF_FLAG,    /* bool: true, false */
    CF_COUNT,   /* int64_t: decimal digits */
    CF_NUMBER,  /* double: digits, optional sign and fraction */
    CF_BYTES,   /* uint64_t: 300MiB */
    CF_MS,      /* uint64_t: 10s, in milliseconds */
    CF_PERCENT, /* double: 80% is 80 */
    CF_TEXT,    /* char *: any text */
    CF_PATH,    /* char *: a text; '~' and variables are not expanded, so they are refused */
    CF_NAME,    /* char *: [A-Za-z0-9][A-Za-z0-9._:/-]*, at most 128 */
    CF_URL,     /* char *: https://..., http://..., hf:... (config/url.h) */
    CF_SHA256,  /* char *: 64 hexadecimal digits, stored in small letters */
    CF_ADDRESS, /* char *: 127.0.0.1:8080, [::1]:8080 */
    CF_CHOICE,  /* int: index in `words` */
    CF_GROUP,   /* a mapping with rows of its own, in the same C object at `at` */
    CF_LIST,    /* pointer at `at`, size_t at `count`; elements are of kind `each`; of CF_LIST: struct cf_names */
    CF_N_KINDS
};

struct cf_keys {
    const char *in;            /* "a model", "'server'": completes "no such key in ..." */
    const struct cf_key *rows; /* [n] */
    size_t n;
    size_t size; /* bytes of one object: elements of lists */
};

struct cf_key {
    const char *name;
    enum cf_kind kind;
    bool stored; /* `at` is meant; else the value is checked and dropped */
    bool autos;  /* also accepts auto: CF_AUTO in a count, NULL in a text */
    bool must;
    bool one;              /* of a list of scalars: one of them may stand alone, without the brackets */
    bool later;            /* known, not honoured by this version */
    bool above_min;        /* the minimum itself is not allowed */
    bool below_max;        /* the maximum itself is not allowed */
    enum cf_kind each;     /* of a list */
    enum cf_change change; /* a group's is that of its keys */
    size_t at, count;      /* offsets */
    size_t has;            /* with has_flag: offset of a bool that tells whether the key was written */
    bool has_flag;
    size_t from; /* with has_from, of a list of groups: offset of an object that each element starts as */
    bool has_from;
    double min, max;            /* numbers; of a list: how many elements */
    const char *def;            /* as people write it; NULL = none, or what `help` says */
    const char *words;          /* choices, or examples: "a|b|c" */
    const char *only;           /* the choices that this version honours: "a|b" */
    const char *also;           /* what the same thing is called elsewhere, space separated: for did-you-mean */
    const struct cf_keys *keys; /* of a group, or of a list's elements */
    const char *help;           /* one sentence or two, markdown */
};

#define CF_AT(type, field)  .stored = true, .at = offsetof(type, field)
#define CF_HAS(type, field) .has_flag = true, .has = offsetof(type, field)

/* Writes the defaults of `keys` and of its groups into `object`. FO_ENOMEM. */
int cf_schema_defaults(const struct cf_keys *keys, void *object, struct fo_region *r, struct fo_err *e);

/* Reads a mapping into `object`, which holds defaults. `root` is where did-you-mean looks for keys that stand at the wrong place;
 * `whole` false suppresses what is missing. Values live in the region. FO_OK also with findings (a value that did not fit leaves
 * what was there); FO_ENOMEM. */
struct cf_schema {
    const struct cf_keys *root;
    struct fo_region *region;
    struct cf_report *rep;
    struct fo_err *e;
    bool whole;
};
int cf_schema_read(const struct cf_schema *s, const struct cf_keys *keys, const struct cf_node *map, void *object);

/* What an element of a list takes. */
size_t cf_key_item_size(const struct cf_key *list);

/* Edits (insert, delete, replace, swap neighbours) from a to b, at most `most`; more than that returns most + 1. Optimal string
 * alignment; texts over 40 bytes are never near. '-' and '_', and cases, are the same. */
int cf_distance(const char *a, const char *b, int most);

/* "a size with a unit, 64KiB to 1GiB": what a row accepts, for messages and pages. */
struct fo_buf;
void cf_key_accepts(const struct cf_key *k, struct fo_buf *out);
