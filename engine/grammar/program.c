/* From rules to code: see program.h.
 *
 * Each node is written with what comes behind it known (`next`), from the end of a sequence to its start, so that a call in last place is a
 * jump and rules that end in themselves need no stack.
 *
 * Empty loops: the body of a repetition is written without its empty text. X{m,n} of an X that may be empty is the same language as
 * (X without empty){0,n}, and "without empty" goes down the tree: of an alternative each part without it; of a sequence whose parts may all
 * be empty, the first part without it and then the rest, or else the rest without it. A rule that is wanted both ways has two codes.
 *
 * Before that two things are worked out for every node by one pass over who is part of whom: whether it may be empty, and whether any text
 * at all is of it. What has none is left out, so that an automaton never walks into a blind alley that it cannot leave. */
#include "engine/grammar/program.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/ir_impl.h"

enum { PC_RETURN, PC_FAIL, MAX_EMITTED = 1 << 21 };

struct compiler {
    const struct pn_ir *ir;
    struct fo_err *e;
    bool *nullable, *productive; /* [nodes] */
    uint32_t *entry;             /* [rules * 2] of a rule, and of it without the empty text; UINT32_MAX = not wanted */
    uint32_t *wanted, n_wanted;  /* [rules * 2] in order of being wanted */
    uint32_t cap_ops, cap_targets, cap_loops, cap_sets;
    uint32_t byte_set[256]; /* the set that is one byte; UINT32_MAX = not made */
    uint32_t *set_of;       /* [sets of the builder] the program's; UINT32_MAX = not made */
    uint32_t n_emitted;
    struct pn_program *p;
};

/* --- who may be empty, who matches anything ---------------------------------------------------- */
/* What each node waits for: [at[i] .. at[i + 1]) are the nodes that i is a part of. */
struct users {
    uint32_t *at, *list;
};

static int users_new(const struct pn_ir *ir, struct users *ret, struct fo_err *e) {
    uint32_t n = ir->nodes.n;
    size_t edges = (size_t)ir->parts.n + n;
    ret->at = calloc((size_t)n + 2, sizeof *ret->at);
    ret->list = malloc(edges * sizeof *ret->list);
    if (!ret->at || !ret->list) return fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    for (int fill = 0; fill < 2; fill++) { /* counts, then places */
        for (uint32_t i = 0; i < n; i++) {
            const struct pn_ir_node *d = pn_ir_node_at(ir, i);
            const uint32_t *parts = pn_ir_parts_of(ir, d);
            uint32_t one = d->kind == PN_IR_REPEAT ? d->at : d->kind == PN_IR_REF ? pn_ir_rule_at(ir, d->at)->node : 0;
            uint32_t n_parts = d->kind == PN_IR_SEQ || d->kind == PN_IR_ALT ? d->n : one != 0;
            for (uint32_t k = 0; k < n_parts; k++) {
                uint32_t part = one ? one : parts[k];
                if (fill)
                    ret->list[ret->at[part + 1]++] = i;
                else
                    ret->at[part + 2]++;
            }
        }
        for (uint32_t i = 2; i < n + 2 && !fill; i++) ret->at[i] += ret->at[i - 1];
    }
    return 0;
}

/* true where a node may be empty, or (productive) where it matches any text. A sequence needs all its parts, all else one of them. */
static int solve(const struct pn_ir *ir, const struct users *u, bool productive, bool *truth, struct fo_err *e) {
    uint32_t n = ir->nodes.n, n_queue = 0;
    uint32_t *queue = malloc((size_t)n * 2 * sizeof *queue), *need = queue ? queue + n : NULL;
    if (!queue) return fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    for (uint32_t i = 0; i < n; i++) {
        const struct pn_ir_node *d = pn_ir_node_at(ir, i);
        need[i] = d->kind == PN_IR_SEQ ? d->n : 1;
        truth[i] = d->kind == PN_IR_EMPTY || (productive && (d->kind == PN_IR_LITERAL || d->kind == PN_IR_SET)) ||
                   (d->kind == PN_IR_REPEAT && d->n == 0);
        if (truth[i]) queue[n_queue++] = i;
    }
    for (uint32_t at = 0; at < n_queue; at++)
        for (uint32_t k = u->at[queue[at]]; k < u->at[queue[at] + 1]; k++) {
            uint32_t user = u->list[k];
            if (truth[user] || --need[user] > 0) continue;
            truth[user] = true;
            queue[n_queue++] = user;
        }
    free(queue);
    return 0;
}

/* --- left recursion ---------------------------------------------------------------------------- */
static int fail_rule(const struct pn_ir *ir, uint32_t rule, struct fo_err *e, const char *fmt) {
    int len;
    const char *name = pn_ir_rule_name(ir, rule, &len);
    char shown[80];
    memcpy(shown, name, (size_t)len);
    shown[len] = '\0';
    const struct pn_ir_rule *r = pn_ir_rule_at(ir, rule);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    return fo_fail_at(e, FO_EINVAL, r->line, r->col, fmt, shown);
#pragma GCC diagnostic pop
}

/* Every rule that is referred to is defined, and none begins with itself: a walk over what a text of each rule may begin with, on which a
 * rule that is met again on the way that leads to it begins with itself. */
static int check_rules(const struct compiler *c) {
    const struct pn_ir *ir = c->ir;
    struct step {
        uint32_t node, part;
    } *way = malloc(((size_t)ir->nodes.n + 1) * sizeof *way);
    uint8_t *seen = calloc(ir->nodes.n, 1); /* 1 = on the way, 2 = done */
    int rc = way && seen ? 0 : fo_fail(c->e, FO_ENOMEM, "no memory for a grammar");
    for (uint32_t i = 1; i < ir->nodes.n && rc == 0; i++) {
        const struct pn_ir_node *d = pn_ir_node_at(ir, i);
        if (d->kind == PN_IR_REF && !pn_ir_defined(ir, d->at)) rc = fail_rule(ir, d->at, c->e, "rule '%s' is not defined");
    }
    for (uint32_t r = 1; r < ir->rules.n && rc == 0; r++) {
        uint32_t n = 0, start = pn_ir_rule_at(ir, r)->node;
        if (start == 0 || seen[start]) continue;
        way[n++] = (struct step){ start, 0 };
        seen[start] = 1;
        while (n > 0 && rc == 0) {
            struct step *s = &way[n - 1];
            const struct pn_ir_node *d = pn_ir_node_at(ir, s->node);
            uint32_t next = 0, n_parts = d->kind == PN_IR_SEQ || d->kind == PN_IR_ALT ? d->n : d->kind == PN_IR_REPEAT || d->kind == PN_IR_REF;
            const uint32_t *parts = pn_ir_parts_of(ir, d);
            bool more = s->part < n_parts && !(d->kind == PN_IR_SEQ && s->part > 0 && !c->nullable[parts[s->part - 1]]);
            if (!more) {
                seen[s->node] = 2;
                n--;
                continue;
            }
            next = d->kind == PN_IR_REPEAT ? d->at : d->kind == PN_IR_REF ? pn_ir_rule_at(ir, d->at)->node : parts[s->part];
            s->part++;
            if (seen[next] == 1) /* nodes are made of older ones, so a way back leads through a reference */
                rc = d->kind == PN_IR_REF ? fail_rule(ir, d->at, c->e, "rule '%s' begins with itself (left recursion): write it with what repeats behind, as in a b*") : 0;
            else if (seen[next] == 0) {
                seen[next] = 1;
                way[n++] = (struct step){ next, 0 };
            }
        }
    }
    free(way);
    free(seen);
    return rc;
}

/* --- code -------------------------------------------------------------------------------------- */
/* Room for n more; false with the error set. */
static bool room(struct compiler *c, void *array, uint32_t *cap, uint32_t have, uint32_t n, size_t size) {
    void *at;
    memcpy(&at, array, sizeof at);
    if ((uint64_t)have + n > PN_PROGRAM_MAX_OPS) {
        fo_fail_need(c->e, FO_ELIMIT, (uint64_t)have + n, PN_PROGRAM_MAX_OPS, "the grammar is too big: its code may have %d steps", PN_PROGRAM_MAX_OPS);
        return false;
    }
    if (have + n <= *cap) return true;
    uint32_t more = *cap ? *cap * 2 : 64;
    while (more < have + n) more *= 2;
    at = realloc(at, more * size);
    if (!at) {
        fo_fail(c->e, FO_ENOMEM, "no memory for a grammar");
        return false;
    }
    memcpy(array, &at, sizeof at);
    *cap = more;
    return true;
}

#define NONE UINT32_MAX /* an error is set */

static uint32_t put_op(struct compiler *c, enum pn_op_kind kind, uint32_t a, uint32_t b) {
    if (!room(c, &c->p->ops, &c->cap_ops, c->p->n_ops, 1, sizeof *c->p->ops)) return NONE;
    c->p->ops[c->p->n_ops] = (struct pn_op){ kind, a, b };
    return c->p->n_ops++;
}

static uint32_t put_set(struct compiler *c, const uint64_t set[4]) {
    if (!room(c, &c->p->sets, &c->cap_sets, c->p->n_sets, 1, 32)) return NONE;
    memcpy(c->p->sets + (size_t)c->p->n_sets * 4, set, 32);
    return c->p->n_sets++;
}

/* The op that is all of these targets; room for n of them is taken now and filled later. */
static uint32_t put_split(struct compiler *c, uint32_t n) {
    if (!room(c, &c->p->targets, &c->cap_targets, c->p->n_targets, n, sizeof *c->p->targets)) return NONE;
    uint32_t at = c->p->n_targets, op = put_op(c, PN_OP_SPLIT, at, n);
    if (op == NONE) return NONE;
    for (uint32_t i = 0; i < n; i++) c->p->targets[at + i] = PC_FAIL;
    c->p->n_targets += n;
    return op;
}

static uint32_t put_either(struct compiler *c, uint32_t x, uint32_t y) {
    if (x == NONE || y == NONE) return NONE;
    if (x == PC_FAIL || x == y) return y;
    if (y == PC_FAIL) return x;
    uint32_t op = put_split(c, 2);
    if (op == NONE) return NONE;
    c->p->targets[c->p->ops[op].a] = x;
    c->p->targets[c->p->ops[op].a + 1] = y;
    return op;
}

static uint32_t emit(struct compiler *c, uint32_t node, uint32_t next, bool full);

static uint32_t emit_literal(struct compiler *c, const struct pn_ir_node *d, uint32_t next) {
    const unsigned char *text = (const unsigned char *)c->ir->bytes.at + d->at;
    for (uint32_t i = d->n; i-- > 0 && next != NONE;) {
        uint32_t *set = &c->byte_set[text[i]];
        if (*set == NONE) {
            uint64_t bits[4] = { 0 };
            bits[text[i] >> 6] = 1ULL << (text[i] & 63);
            if ((*set = put_set(c, bits)) == NONE) return NONE;
        }
        next = put_op(c, PN_OP_BYTE, *set, next);
    }
    return next;
}

static uint32_t emit_seq(struct compiler *c, const struct pn_ir_node *d, uint32_t next, bool full) {
    const uint32_t *parts = pn_ir_parts_of(c->ir, d);
    if (full) {
        for (uint32_t i = d->n; i-- > 0 && next != NONE;) next = emit(c, parts[i], next, true);
        return next;
    }
    uint32_t rest = PC_FAIL; /* the parts behind, without their empty text */
    for (uint32_t i = d->n; i-- > 0 && next != NONE && rest != NONE;) {
        rest = put_either(c, emit(c, parts[i], next, false), rest);
        if (i > 0) next = emit(c, parts[i], next, true);
    }
    return next == NONE ? NONE : rest;
}

static uint32_t emit_alt(struct compiler *c, const struct pn_ir_node *d, uint32_t next, bool full) {
    uint32_t split = put_split(c, d->n), n = 0;
    if (split == NONE) return NONE;
    uint32_t at = c->p->ops[split].a;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t to = emit(c, pn_ir_parts_of(c->ir, d)[i], next, full);
        if (to == NONE) return NONE;
        if (to != PC_FAIL) c->p->targets[at + n++] = to;
    }
    c->p->ops[split].b = n;
    return n == 0 ? PC_FAIL : n == 1 ? c->p->targets[at] : split;
}

static uint32_t emit_repeat(struct compiler *c, const struct pn_ir_node *d, uint32_t next, bool full) {
    bool body_full = !c->nullable[d->at];
    uint32_t min = body_full ? d->n : 0;
    if (!c->productive[d->at]) return full && min == 0 ? next : PC_FAIL;
    if (!full && min == 0) min = 1;
    if (d->max == 1) {
        uint32_t body = emit(c, d->at, next, body_full);
        return min == 0 ? put_either(c, body, next) : body;
    }
    if (d->max == PN_IR_INFINITE && min <= 1) {
        uint32_t again = put_split(c, 2), body = again == NONE ? NONE : emit(c, d->at, again, body_full);
        if (body == NONE) return NONE;
        if (body == PC_FAIL) return min == 0 ? next : PC_FAIL;
        c->p->targets[c->p->ops[again].a] = body;
        c->p->targets[c->p->ops[again].a + 1] = next;
        return min == 0 ? again : body;
    }
    if (!room(c, &c->p->loops, &c->cap_loops, c->p->n_loops, 1, sizeof *c->p->loops)) return NONE;
    uint32_t loop = c->p->n_loops++;
    uint32_t end = put_op(c, PN_OP_LOOP, loop, 0), body = end == NONE ? NONE : emit(c, d->at, end, body_full);
    if (body == NONE) return NONE;
    if (body == PC_FAIL) return min == 0 ? next : PC_FAIL;
    c->p->loops[loop] = (struct pn_loop){ .min = min, .max = d->max, .body = body, .exit = next };
    return put_op(c, PN_OP_ENTER, loop, 0);
}

static uint32_t emit_ref(struct compiler *c, const struct pn_ir_node *d, uint32_t next, bool full) {
    uint32_t which = d->at * 2 + (full || !c->nullable[pn_ir_rule_at(c->ir, d->at)->node] ? 0 : 1);
    if (c->entry[which] == NONE) {
        c->entry[which] = PC_FAIL; /* wanted; its place comes later */
        c->wanted[c->n_wanted++] = which;
    }
    return next == PC_RETURN ? put_op(c, PN_OP_JUMP, which, 0) : put_op(c, PN_OP_CALL, which, next);
}

/* The code of a node, with (full) or without its empty text, that goes on at `next`; PC_FAIL when there is no text. */
static uint32_t emit(struct compiler *c, uint32_t node, uint32_t next, bool full) {
    const struct pn_ir_node *d = pn_ir_node_at(c->ir, node);
    if (++c->n_emitted > MAX_EMITTED) { /* a node that is used again and again may be nothing each time, and yet much work */
        fo_fail(c->e, FO_ELIMIT, "the grammar is too big: what is used often must be a rule of its own");
        return NONE;
    }
    if (!c->productive[node] || next == PC_FAIL) return PC_FAIL;
    if (!full && !c->nullable[node]) full = true; /* the same */
    switch ((enum pn_ir_kind)d->kind) {
    case PN_IR_EMPTY: return full ? next : PC_FAIL;
    case PN_IR_NEVER: return PC_FAIL;
    case PN_IR_LITERAL: return emit_literal(c, d, next);
    case PN_IR_SET:
        if (c->set_of[d->at] == NONE && (c->set_of[d->at] = put_set(c, pn_ir_set_at(c->ir, d->at))) == NONE) return NONE;
        return put_op(c, PN_OP_BYTE, c->set_of[d->at], next);
    case PN_IR_SEQ: return emit_seq(c, d, next, full);
    case PN_IR_ALT: return emit_alt(c, d, next, full);
    case PN_IR_REPEAT: return emit_repeat(c, d, next, full);
    case PN_IR_REF: return emit_ref(c, d, next, full);
    }
    return PC_FAIL;
}

/* Bytes that every set has or lacks together become one class. */
static void make_classes(struct pn_program *p) {
    unsigned n = 1;
    memset(p->class_of, 0, sizeof p->class_of);
    for (uint32_t s = 0; s < p->n_sets && n < 256; s++) {
        const uint64_t *set = p->sets + (size_t)s * 4;
        int out[256], in[256]; /* what a class becomes for bytes outside and inside the set */
        memset(out, -1, sizeof out);
        memset(in, -1, sizeof in);
        unsigned more = 0;
        for (int b = 0; b < 256; b++) {
            int *to = (set[b >> 6] >> (b & 63) & 1) ? &in[p->class_of[b]] : &out[p->class_of[b]];
            if (*to < 0) *to = (int)more++;
            p->class_of[b] = (uint8_t)*to;
        }
        n = more;
    }
    p->n_classes = n;
    for (int b = 255; b >= 0; b--) p->byte_of[p->class_of[b]] = (uint8_t)b;
}

static int compile(struct compiler *c) {
    const struct pn_ir *ir = c->ir;
    struct pn_program *p = c->p;
    if (check_rules(c)) return c->e->code;
    uint32_t root = pn_ir_rule_at(ir, ir->root)->node;
    if (!c->productive[root]) return fail_rule(ir, ir->root, c->e, "no text is of this grammar: rule '%s' never comes to an end");
    if (put_op(c, PN_OP_RETURN, 0, 0) == NONE || put_op(c, PN_OP_SPLIT, 0, 0) == NONE) return c->e->code;
    c->wanted[c->n_wanted++] = ir->root * 2;
    c->entry[ir->root * 2] = PC_FAIL;
    for (uint32_t i = 0; i < c->n_wanted; i++) {
        uint32_t which = c->wanted[i], at = emit(c, pn_ir_rule_at(ir, which / 2)->node, PC_RETURN, which % 2 == 0);
        if (at == NONE) return c->e->code;
        c->entry[which] = at;
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == PN_OP_CALL || p->ops[i].kind == PN_OP_JUMP) p->ops[i].a = c->entry[p->ops[i].a];
    p->start = c->entry[ir->root * 2];
    make_classes(p);
    p->bytes = sizeof *p + (size_t)c->cap_ops * sizeof *p->ops + (size_t)c->cap_targets * sizeof *p->targets + (size_t)c->cap_loops * sizeof *p->loops +
               (size_t)c->cap_sets * 32;
    return 0;
}

void pn_program_free(struct pn_program *p) {
    if (!p) return;
    free(p->ops);
    free(p->targets);
    free(p->loops);
    free(p->sets);
    free(p);
}

int pn_program_new(const struct pn_ir *ir, struct pn_program **ret, struct fo_err *e) {
    if (pn_ir_state(ir, e)) return e->code;
    if (ir->root == 0) return fo_fail(e, FO_EINVAL, "the grammar has no root");
    if (!pn_ir_defined(ir, ir->root)) return fail_rule(ir, ir->root, e, "rule '%s' is not defined");
    size_t n = ir->nodes.n, r = (size_t)ir->rules.n * 2;
    struct users u = { 0 };
    struct compiler c = { .ir = ir, .e = e, .nullable = calloc(n, 1), .productive = calloc(n, 1) };
    c.entry = malloc(r * sizeof *c.entry);
    c.wanted = malloc(r * sizeof *c.wanted);
    c.p = calloc(1, sizeof *c.p);
    c.set_of = malloc(((size_t)ir->sets.n + 1) * sizeof *c.set_of);
    if (c.set_of) memset(c.set_of, 0xFF, ((size_t)ir->sets.n + 1) * sizeof *c.set_of);
    memset(c.byte_set, 0xFF, sizeof c.byte_set);
    if (c.entry) memset(c.entry, 0xFF, r * sizeof *c.entry);
    int rc = users_new(ir, &u, e);
    if (rc == 0 && !(c.nullable && c.productive && c.entry && c.wanted && c.set_of && c.p)) rc = fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    if (rc == 0) rc = solve(ir, &u, false, c.nullable, e);
    if (rc == 0) rc = solve(ir, &u, true, c.productive, e);
    if (rc == 0) rc = compile(&c);
    free(u.at);
    free(u.list);
    free(c.nullable);
    free(c.productive);
    free(c.entry);
    free(c.wanted);
    free(c.set_of);
    if (rc != 0) {
        pn_program_free(c.p);
        return rc;
    }
    *ret = c.p;
    return 0;
}
