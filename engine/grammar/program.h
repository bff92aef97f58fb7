/* A compiled grammar: the code of a pushdown automaton over bytes. Immutable and without pointers to what it was made from: any thread.
 *
 * An automaton that runs it (pda.h) stands at an op with a stack of frames. Only PN_OP_BYTE reads; all others are walked through on the way
 * to the next byte. Counters are frames too: PN_OP_ENTER puts one with 0 on the stack and goes into the body, PN_OP_LOOP at the body's end
 * finds it on top, counts, and goes round again or takes it off and leaves. What is repeated never matches the empty text (program.c sees to
 * that), so a way from byte to byte passes through each loop at most once and always ends. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_ir;

enum pn_op_kind {
    PN_OP_RETURN, /* to what the frame on top says; with none the text may end here */
    PN_OP_BYTE,   /* one byte of set a, then b */
    PN_OP_SPLIT,  /* all of targets[a .. a + b) */
    PN_OP_CALL,   /* a, and back to b */
    PN_OP_JUMP,   /* a */
    PN_OP_ENTER,  /* loop a */
    PN_OP_LOOP    /* the end of loop a's body */
};

struct pn_op {
    uint32_t kind, a, b;
};

struct pn_loop {
    uint32_t min, max; /* max PN_IR_INFINITE: no end */
    uint32_t body, exit;
};

enum { PN_PROGRAM_MAX_OPS = 1 << 19 };

struct pn_program {
    struct pn_op *ops; /* [n_ops] */
    uint32_t *targets; /* [n_targets] */
    struct pn_loop *loops;
    uint64_t *sets; /* [n_sets][4] */
    uint32_t n_ops, n_targets, n_loops, n_sets, start;
    uint32_t n_classes;      /* bytes that no set tells apart are one class */
    uint8_t class_of[256], byte_of[256]; /* of a byte; of a class: one of its bytes */
    size_t bytes;            /* of memory, all of it */
};

/* FO_EINVAL: the grammar has no root, refers to a rule that is not defined, has a rule that begins with itself (left recursion), or no text
 * at all; the message names the rule, and line and col are its. FO_ELIMIT, FO_ENOMEM. Time is linear in the grammar and in its code. */
int pn_program_new(const struct pn_ir *ir, struct pn_program **ret, struct fo_err *e);
void pn_program_free(struct pn_program *p); /* NULL is allowed */
