/* Grammars while they are built: what every front end (GBNF, regular expressions, JSON Schema) writes its language in, and what
 * engine/grammar/program.h compiles.
 *
 * A grammar is a set of rules, and a rule is a node. Nodes are made from the leaves up and are only ever named by number, so that a builder
 * is plain memory without pointers to keep alive. A front end writes straight on and looks once at the end: the first failure (a limit
 * passed, no memory) stays, every later call returns node 0 and does nothing, and pn_ir_state tells it. 0 is no node; passing it on is
 * allowed and keeps the failure.
 *
 *     uint32_t digit = pn_ir_range(ir, '0', '9');
 *     uint32_t list = pn_ir_rule(ir, "list", 4, 1, 1);               // a number for the name, to be defined once
 *     uint32_t more[] = { pn_ir_literal(ir, ",", 1), pn_ir_ref(ir, list) };
 *     uint32_t body[] = { pn_ir_repeat(ir, digit, 1, 1000000), pn_ir_repeat(ir, pn_ir_seq(ir, more, 2), 0, 1) };
 *     pn_ir_define(ir, list, pn_ir_seq(ir, body, 2));
 *     pn_ir_root(ir, list);
 *
 * Everything is bytes in the end: characters become the UTF-8 of their code points here, in one place for all front ends. A repetition is a
 * counter and costs the same for {3} and for {0,1000000}. A node may be used more than once, and its code is then made once for each use;
 * what is used often is a rule. One owner, no locks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_ir;

enum {
    PN_IR_MAX_NODES = 1 << 18,
    PN_IR_MAX_RULES = 1 << 14,
    PN_IR_MAX_DEPTH = 400,      /* of nodes in nodes within one rule; a reference is a leaf, so rules nest as they like */
    PN_IR_MAX_BYTES = 16 << 20, /* of memory for all of it */
    PN_IR_NAME_BYTES = 1024     /* of a rule's name */
};
#define PN_IR_INFINITE UINT32_MAX /* as the most of a repetition */

int pn_ir_new(struct pn_ir **ret, struct fo_err *e);
void pn_ir_free(struct pn_ir *ir); /* NULL is allowed */

/* FO_OK, or the first failure so far: FO_ELIMIT says which limit, FO_ENOMEM. */
int pn_ir_state(const struct pn_ir *ir, struct fo_err *e);
/* Makes a failure of the front end's own the builder's: after it everything is as after any failure. The first one stays. */
void pn_ir_fail(struct pn_ir *ir, const struct fo_err *e);

/* --- nodes ------------------------------------------------------------------------------------- */
uint32_t pn_ir_empty(struct pn_ir *ir); /* the empty text */
uint32_t pn_ir_never(struct pn_ir *ir); /* no text at all: an alternative that is not one */
/* These very bytes; n may be 0. */
uint32_t pn_ir_literal(struct pn_ir *ir, const char *bytes, size_t n);
/* UTF-8 of a code point; returns its length. */
int pn_ir_utf8(uint32_t c, char ret[4]);
/* One byte of a set: bit b & 63 of word b >> 6. */
uint32_t pn_ir_bytes(struct pn_ir *ir, const uint64_t set[4]);
/* One character of those spans (in any order, overlapping or not), or one of all others when `negated`, as UTF-8. Surrogates are no
 * characters and what lies past U+10FFFF is none either: both never match. */
struct pn_ir_span {
    uint32_t first, last; /* code points, both in it */
};
uint32_t pn_ir_chars(struct pn_ir *ir, const struct pn_ir_span *spans, size_t n, bool negated);
uint32_t pn_ir_range(struct pn_ir *ir, uint32_t first, uint32_t last); /* one span */
uint32_t pn_ir_seq(struct pn_ir *ir, const uint32_t *nodes, size_t n); /* one behind the other; n = 0 is the empty text */
uint32_t pn_ir_alt(struct pn_ir *ir, const uint32_t *nodes, size_t n); /* one of them; n = 0 is never */
/* min to max times, max PN_IR_INFINITE for no end; min > max is a failure (FO_EINVAL). */
uint32_t pn_ir_repeat(struct pn_ir *ir, uint32_t node, uint32_t min, uint32_t max);
uint32_t pn_ir_ref(struct pn_ir *ir, uint32_t rule);

/* --- rules ------------------------------------------------------------------------------------- */
/* The number of the rule of that name, new or not. line and col (0 = not known) are where a message about it points: those of the
 * first call that has them. Names are copied; a rule without a name (n = 0) is always a new one. Rules count from 1; 0 is none. */
uint32_t pn_ir_rule(struct pn_ir *ir, const char *name, size_t n, int line, int col);
bool pn_ir_defined(const struct pn_ir *ir, uint32_t rule);
/* What the rule is. Once. */
void pn_ir_define(struct pn_ir *ir, uint32_t rule, uint32_t node);
/* Where the grammar begins: its whole text is one of this rule. */
void pn_ir_root(struct pn_ir *ir, uint32_t rule);
