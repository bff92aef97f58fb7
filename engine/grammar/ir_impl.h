/* What a built grammar looks like: for ir.c, which writes it, and program.c, which reads it. Everyone else: ir.h. */
#pragma once
#include "engine/grammar/ir.h"
#include "foundry/base/err.h"

enum pn_ir_kind { PN_IR_EMPTY, PN_IR_NEVER, PN_IR_LITERAL, PN_IR_SET, PN_IR_SEQ, PN_IR_ALT, PN_IR_REPEAT, PN_IR_REF };

/* A node's parts have smaller numbers than it has. */
struct pn_ir_node {
    uint8_t kind;
    uint16_t depth;
    uint32_t at; /* LITERAL: into bytes; SET: into sets; SEQ, ALT: into parts; REPEAT: the node; REF: the rule */
    uint32_t n;  /* LITERAL, SEQ, ALT: how many; REPEAT: the least */
    uint32_t max;
};

struct pn_ir_rule {
    uint32_t node; /* 0 = not defined */
    uint32_t next; /* in its bucket */
    int line, col;
    uint32_t name, n_name; /* into bytes */
};

/* A growing array of one kind of thing. */
struct pn_ir_array {
    void *at;
    uint32_t n, cap;
};

enum { PN_IR_BUCKETS = 1024 };

struct pn_ir {
    struct pn_ir_array nodes; /* struct pn_ir_node; 0 is none */
    struct pn_ir_array rules; /* struct pn_ir_rule; 0 is none */
    struct pn_ir_array parts; /* uint32_t */
    struct pn_ir_array bytes; /* char */
    struct pn_ir_array sets;  /* uint64_t[4], each once */
    uint32_t root;
    size_t total_bytes;
    struct fo_err err; /* the first failure */
    uint32_t names[PN_IR_BUCKETS], set_index[PN_IR_BUCKETS * 4];
};

static inline const struct pn_ir_node *pn_ir_node_at(const struct pn_ir *ir, uint32_t i) {
    return (const struct pn_ir_node *)ir->nodes.at + i;
}
static inline const struct pn_ir_rule *pn_ir_rule_at(const struct pn_ir *ir, uint32_t i) {
    return (const struct pn_ir_rule *)ir->rules.at + i;
}
/* Of a SEQ or an ALT; NULL for others. */
static inline const uint32_t *pn_ir_parts_of(const struct pn_ir *ir, const struct pn_ir_node *d) {
    return d->kind == PN_IR_SEQ || d->kind == PN_IR_ALT ? (const uint32_t *)ir->parts.at + d->at : NULL;
}
static inline const uint64_t *pn_ir_set_at(const struct pn_ir *ir, uint32_t i) {
    return (const uint64_t *)ir->sets.at + (size_t)i * 4;
}
/* For messages: the first bytes of a rule's name, not terminated. */
const char *pn_ir_rule_name(const struct pn_ir *ir, uint32_t rule, int *ret_len);
