/* Inside the JSON Schema front end. The story is in schema.c.
 *
 * All memory is one region's, freed at the end; the first failure stays in err, every function returns something harmless after it, and
 * loops look at it. Lists are linked and never changed once made, so that shapes share them. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/grammar/ir.h"
#include "engine/grammar/schema.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"

struct json_t;

enum {
    PN_SC_MAX_DEPTH = 128,      /* of JSON in the schema */
    PN_SC_MAX_INLINE = 64,      /* of schemas applied in place of one another: $ref, allOf, ... */
    PN_SC_MAX_SHAPES = 4096,    /* ways in which one place of an instance may look */
    PN_SC_MAX_STATES = 1 << 14, /* of one automaton over characters */
    PN_SC_MAX_WORK = 3000000,
    PN_SC_MAX_CELLS = 1 << 13, /* members times counts, where members are counted */
    PN_SC_REGION_BYTES = 48 << 20
};
#define PN_SC_MAX_CHAR 0x10FFFFu
#define PN_SC_NO_END   UINT32_MAX /* as a greatest length or count */

/* --- automata over characters ------------------------------------------------------------------ */
/* Complete: the edges of each state cover all characters, in ascending order. State 0 is the start. */
struct pn_dfa_edge {
    uint32_t last, to;
};
struct pn_dfa {
    uint32_t n;
    bool *accept; /* [n] */
    uint32_t *at; /* [n + 1] */
    struct pn_dfa_edge *edges;
    bool some;            /* accepts anything at all */
    uint32_t string_rule; /* its rule as the rest of a JSON string, quote included; 0 = none yet */
};

/* --- what a place may hold --------------------------------------------------------------------- */
enum pn_sc_type { PN_T_NULL, PN_T_FALSE, PN_T_TRUE, PN_T_NUMBER, PN_T_STRING, PN_T_ARRAY, PN_T_OBJECT, PN_N_TYPES };

/* A schema, or its opposite. schema NULL: anything. */
struct pn_term {
    const struct json_t *schema;
    bool neg;
};
/* All of them at once. */
struct pn_terms {
    const struct pn_term *list;
    uint32_t n;
};

struct pn_prop {
    const char *name;
    struct pn_term term;
    const struct pn_prop *next;
};
struct pn_pattern {
    const struct pn_dfa *dfa;
    struct pn_term term;
    const struct pn_pattern *next;
};
/* properties, patternProperties and additionalProperties of one schema; or prefixItems and items. */
struct pn_group {
    const struct pn_prop *props;
    const struct pn_pattern *patterns;
    const struct pn_term *prefix; /* [n_prefix] */
    uint32_t n_prefix;
    bool has_rest, evaluates; /* evaluates: for unevaluatedProperties and -Items */
    struct pn_term rest;
    const struct pn_group *next;
};
struct pn_contains {
    struct pn_term term;
    uint32_t min, max;
    bool evaluates;
    const struct pn_contains *next;
};
struct pn_name {
    const char *name;
    const struct pn_name *next;
};
struct pn_names_term {
    struct pn_term term;
    const struct pn_names_term *next;
};

/* One way to look, of one type. Everything in it holds at once. */
struct pn_shape {
    enum pn_sc_type type;
    const struct json_t *const *values; /* [n_values] only these; NULL = not listed */
    uint32_t n_values;
    const struct pn_dfa *dfa; /* strings: over characters; numbers: over their decimal digits; NULL = any */
    uint32_t min, max;        /* characters, items, properties */
    const struct pn_group *groups;
    const struct pn_contains *contains;
    const struct pn_name *required;
    const struct pn_names_term *names;
    bool unique;
};
/* Any of them. */
struct pn_set {
    struct pn_shape *list;
    uint32_t n;
};

/* --- the compilation --------------------------------------------------------------------------- */
struct pn_sc_place {
    const struct json_t *value;
    const struct json_t *parent; /* NULL: the root */
    const char *key;             /* in its parent; NULL = an element */
    uint32_t index;
    const struct json_t *resource; /* the nearest schema with an $id, or the root */
    const char *uri;               /* that one's; NULL = none */
};

struct pn_sc_rule {
    struct pn_terms terms;
    uint32_t rule, next; /* next in its bucket */
};

struct pn_regex_memo {
    const char *text;
    size_t len;
    const struct pn_dfa *dfa;
    struct pn_regex_memo *next;
};

/* What was made of two automata, or of two lengths, before. */
struct pn_dfa_memo {
    uintptr_t a, b;
    const struct pn_dfa *dfa;
    struct pn_dfa_memo *next;
};
/* The rule of one character of a set, within a string. */
struct pn_chars_memo {
    const struct pn_ir_span *spans;
    uint32_t n, rule;
    struct pn_chars_memo *next;
};

enum { PN_SC_BUCKETS = 4096, PN_SC_MEMO_BUCKETS = 256 };
struct pn_sc {
    struct pn_ir *ir;
    struct fo_region r;
    struct fo_err err;
    char pointer[PN_SCHEMA_POINTER_BYTES]; /* where err is */
    const struct json_t *root;
    struct pn_sc_place *places; /* [n_places], by value */
    uint32_t n_places, cap_places;
    struct pn_sc_rule *rules;
    uint32_t n_rules, cap_rules, buckets[PN_SC_BUCKETS];
    uint64_t *work;          /* so far, over all schemas of a grammar */
    unsigned depth, tracked; /* tracked: within a schema that asks for what was not evaluated */
    struct pn_regex_memo *regexes;
    struct pn_dfa_memo *ands[PN_SC_MEMO_BUCKETS], *lengths;
    struct pn_chars_memo *chars[PN_SC_MEMO_BUCKETS];
    const struct pn_dfa *decimal, *integer, *fraction; /* fraction: no integer, however written */
    const struct json_t *at;                           /* the schema that is being looked at: where a failure is */
    const char *at_key;
    uint32_t character; /* the rule of one, within a string */
    uint32_t escaped;   /* this one is never bare within a string; 0 = none */
    bool begun;         /* the rule being written is PN_SCHEMA_BEGUN's */
};

/* --- schema.c ---------------------------------------------------------------------------------- */
void *pn_sc_alloc(struct pn_sc *c, size_t n, size_t size);
void pn_sc_work(struct pn_sc *c, uint64_t n); /* counts it; fails at the limit */
/* A failure at keyword `key` (NULL: itself) of schema s. */
void pn_sc_fail(struct pn_sc *c, enum fo_code code, const struct json_t *s, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* What a $ref of schema s means; NULL with the failure noted. */
const struct json_t *pn_sc_resolve(struct pn_sc *c, const struct json_t *s, const char *key, const char *ref);
/* Where a $dynamicRef leads in the end that leads to target at first: every evaluation begins at the root, so an anchor of that name in the
 * root's own resource is the outermost there is; else the only one of its name. NULL: it depends. */
const struct json_t *pn_sc_dynamic(struct pn_sc *c, const struct json_t *target, const char *ref);
/* The number of a rule that is all of the terms, to be written when its turn comes. */
uint32_t pn_sc_rule(struct pn_sc *c, const struct pn_term *terms, uint32_t n);

/* --- schema_expand.c, schema_types.c ----------------------------------------------------------- */
struct pn_set pn_sc_expand(struct pn_sc *c, struct pn_term t);
struct pn_set pn_sc_expand_all(struct pn_sc *c, struct pn_terms t);
/* A count: a whole number from 0; fails otherwise. Cut at PN_SC_NO_END. */
uint32_t pn_sc_count(struct pn_sc *c, const struct json_t *s, const char *key, const struct json_t *v);
/* What keyword `key` of schema s, with value v, allows, or the opposite of it. What it means for another type than its own is anything. */
typedef struct pn_set pn_keyword_fn(struct pn_sc *c, const struct json_t *s, const char *key, const struct json_t *v, bool neg);
/* schema_types.c: of one type of value each; schema_expand.c: of schemas applied in place. */
pn_keyword_fn pn_kw_type, pn_kw_enum, pn_kw_bound, pn_kw_multiple, pn_kw_length, pn_kw_pattern, pn_kw_format, pn_kw_items, pn_kw_contains,
    pn_kw_unique, pn_kw_properties, pn_kw_required, pn_kw_names, pn_kw_dependent;
pn_keyword_fn pn_kw_ref, pn_kw_all, pn_kw_any, pn_kw_one, pn_kw_not, pn_kw_if;
/* What is left of every shape of a set by unevaluatedProperties or unevaluatedItems. */
struct pn_set pn_kw_unevaluated(struct pn_sc *c, const struct json_t *s, const char *key, const struct json_t *v, struct pn_set set);
/* Refuses the opposite of a keyword. */
struct pn_set pn_sc_no_opposite(struct pn_sc *c, const struct json_t *s, const char *key, const char *why);

/* schema_keywords.c */
struct pn_keyword {
    struct pn_schema_row row;
    pn_keyword_fn *fn; /* NULL: handled with another keyword, or nothing to do */
    bool in_place;     /* comes behind what is the schema's own, for the order of properties */
};
const struct pn_keyword *pn_keyword_find(const char *name); /* NULL: an annotation */

/* --- schema_shape.c ---------------------------------------------------------------------------- */
struct pn_shape pn_shape_any(enum pn_sc_type type);
struct pn_set pn_set_any(struct pn_sc *c);
struct pn_set pn_set_one(struct pn_sc *c, struct pn_shape s);
/* Anything, but of s's type only s. */
struct pn_set pn_set_if(struct pn_sc *c, struct pn_shape s);
struct pn_set pn_set_or(struct pn_sc *c, struct pn_set a, struct pn_set b);
struct pn_set pn_set_and(struct pn_sc *c, struct pn_set a, struct pn_set b);
/* True: surely nothing. False: not known. */
bool pn_set_empty(struct pn_sc *c, struct pn_set s, int depth);
bool pn_sc_equal(const struct json_t *a, const struct json_t *b);
enum pn_sc_type pn_sc_type_of(const struct json_t *v); /* true and false are two */
bool pn_sc_holds(struct pn_sc *c, struct pn_term t, const struct json_t *v);
/* What a property of that name, or the item at that index, must be; an array of the region's. */
struct pn_terms pn_shape_property(struct pn_sc *c, const struct pn_shape *s, const char *name);
struct pn_terms pn_shape_item(struct pn_sc *c, const struct pn_shape *s, uint32_t index);

/* --- schema_dfa.c ------------------------------------------------------------------------------ */
const struct pn_dfa *pn_dfa_and(struct pn_sc *c, const struct pn_dfa *a, const struct pn_dfa *b); /* NULL operands: any */
const struct pn_dfa *pn_dfa_not(struct pn_sc *c, const struct pn_dfa *a);
const struct pn_dfa *pn_dfa_words(struct pn_sc *c, const char *const *words, const size_t *lens, uint32_t n);
const struct pn_dfa *pn_dfa_length(struct pn_sc *c, uint32_t min, uint32_t max);
/* The texts behind which `end` has the first `mark` there is, counted from their begin; mark "": NULL, any. */
const struct pn_dfa *pn_dfa_before(struct pn_sc *c, const char *mark, const char *end);
bool pn_dfa_run(const struct pn_dfa *a, const char *utf8, size_t len);
uint32_t pn_utf8_next(const char **p, const char *end); /* the next character, which p then stands behind */
/* From a function: code 0 is the start; next returns PN_DFA_DEAD for none. Over the characters of decimal numbers. */
#define PN_DFA_DEAD UINT64_MAX
const struct pn_dfa *pn_dfa_digits(struct pn_sc *c, uint64_t (*next)(const void *ctx, uint64_t code, char ch),
                                   bool (*accept)(const void *ctx, uint64_t code), const void *ctx);
/* Subset construction (schema_regex.c) and products share it. */
struct pn_dfa_build {
    struct pn_sc *c;
    uint32_t n, cap, n_edges, cap_edges;
    bool *accept;
    uint32_t *at;
    struct pn_dfa_edge *edges;
};
uint32_t pn_dfa_state(struct pn_dfa_build *b, bool accept); /* states must get their edges in this order */
void pn_dfa_edge(struct pn_dfa_build *b, uint32_t last, uint32_t to);
const struct pn_dfa *pn_dfa_done(struct pn_dfa_build *b);

/* --- schema_regex.c, schema_number.c, schema_format.c ------------------------------------------ */
/* A regular expression of ECMA-262, found anywhere in the text unless it says otherwise. s and key: where, for a refusal. */
const struct pn_dfa *pn_regex_dfa(struct pn_sc *c, const struct json_t *s, const char *key, const char *text, size_t len);
const char *pn_format_regex(const char *name); /* NULL: an annotation */
/* Its decimal digits, without an exponent; at most 400 characters. */
enum { PN_DECIMAL_BYTES = 420 };
bool pn_decimal(const struct json_t *v, char out[PN_DECIMAL_BYTES]);
void pn_sc_numbers(struct pn_sc *c); /* decimal and integer */
const struct pn_dfa *pn_number_compare(struct pn_sc *c, const char *decimal, bool less, bool equal, bool greater);
const struct pn_dfa *pn_number_multiple(struct pn_sc *c, const struct json_t *s, const char *decimal);
const struct pn_dfa *pn_number_not(struct pn_sc *c, const struct pn_dfa *a);

/* --- schema_text.c, schema_emit.c -------------------------------------------------------------- */
/* pn_ir_chars, as a character within a JSON string: itself where it may stand, and each of its escapes. */
uint32_t pn_json_chars(struct pn_sc *c, const struct pn_ir_span *spans, size_t n, bool negated);
uint32_t pn_text_string(struct pn_sc *c, const char *s, size_t len); /* in its shortest spelling, with quotes */
uint32_t pn_text_value(struct pn_sc *c, const struct json_t *v, unsigned depth);
uint32_t pn_text_any_string(struct pn_sc *c);
uint32_t pn_text_any_number(struct pn_sc *c);
uint32_t pn_text_string_of(struct pn_sc *c, const struct pn_dfa *a, uint32_t min, uint32_t max); /* with quotes */
uint32_t pn_text_number_of(struct pn_sc *c, const struct pn_dfa *a);
/* The strings of a set as they are, and `end` behind each (pn_schema_part). */
uint32_t pn_text_bare(struct pn_sc *c, struct pn_set set, const char *mark, const char *end);
uint32_t pn_text_comma(struct pn_sc *c);
uint32_t pn_text_colon(struct pn_sc *c);
uint32_t pn_sc_emit(struct pn_sc *c, struct pn_set set);
