/* Running a program: the states of its automaton, made when they are first met and remembered with where each byte leads.
 *
 * The automaton does not choose between ways; a state is all places where it may stand, each with its stack. Stacks and states are kept once
 * each however often they come about, so a state is a number, equal states have equal numbers, and a step that was made before is a look
 * into a table. Memory is bounded: when a pool is full, pn_pda_keep throws away all but the states its owner still needs. One owner. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/program.h"

struct fo_err;

enum {
    PN_PDA_MAX_PLACES = 1 << 12, /* where one state may stand at once */
    PN_PDA_MAX_FRAMES = 1 << 12, /* of one stack: what nests deeper is not of the language */
    PN_PDA_MAX_WALK = 1 << 18    /* ops on the way from one byte to the next, over all places */
};

enum { PN_STATE_DEAD = 0 }; /* the text so far is none of the language's, however it goes on */
#define PN_STATE_NONE UINT32_MAX
#define PN_STATE_UNKNOWN (UINT32_MAX - 1) /* a way leads through a part of a stack that was left out (pn_pda_import) */

struct pn_place {
    uint32_t op, stack; /* a PN_OP_BYTE; the frame on top, 0 = none */
};

struct pn_frame {
    uint32_t below;
    uint32_t what;  /* an op to return to, or a loop with IS_LOOP */
    uint32_t count; /* of a loop */
    uint32_t depth; /* frames from here down, itself included */
};

struct pn_state {
    uint32_t at, n; /* places */
    uint32_t row;   /* into rows; PN_STATE_NONE = no step was made from here yet */
    bool may_end;   /* the text may end here */
};

struct pn_pda_array {
    void *at;
    uint32_t n, cap;
};

struct pn_pda {
    const struct pn_program *p;
    uint32_t horizon;
    struct pn_frame *frames; /* 0 is none */
    struct pn_place *places;
    struct pn_state *states;
    uint32_t *rows; /* [program's classes] each: the next state, PN_STATE_NONE = not known yet */
    uint32_t n_frames, n_places, n_states, n_rows, cap_frames, cap_places, cap_states, cap_rows;
    uint32_t *frame_index, *state_index; /* open addressing; [2 ^ bits] */
    unsigned frame_bits, state_bits;
    size_t bytes, soft_bytes, full_bytes, hard_bytes;
    uint64_t work, work_end;             /* ops walked through so far, ever; how far this step may go */
    /* of the step under way */
    struct pn_place *next, *todo, *met; /* places found; ways to follow; branches taken */
    uint32_t n_next, n_todo, n_met, cap_next, cap_todo, cap_met;
    bool may_end, unknown;
};

/* The program outlives it. It is full at soft_bytes, and a step that would take it past hard_bytes fails. Counters that `horizon` more rounds
 * cannot bring to one of their bounds stand where it is furthest from them: whoever follows no text for more than so many bytes sees no
 * difference, and has far fewer states. UINT32_MAX: counters are exact. */
int pn_pda_new(const struct pn_program *p, uint32_t horizon, size_t soft_bytes, size_t hard_bytes, struct pn_pda **ret, struct fo_err *e);
void pn_pda_free(struct pn_pda *a); /* NULL is allowed */

/* Where a text begins; PN_STATE_NONE with *e set: FO_ELIMIT (too many places, too much to walk, no room), FO_ENOMEM. */
uint32_t pn_pda_start(struct pn_pda *a, struct fo_err *e);
/* One byte on; the same. */
uint32_t pn_pda_step(struct pn_pda *a, uint32_t state, uint8_t byte, struct fo_err *e);

static inline const struct pn_state *pn_pda_state(const struct pn_pda *a, uint32_t state) {
    return a->states + state;
}

/* Full: the owner calls pn_pda_keep before it goes on. */
static inline bool pn_pda_full(const struct pn_pda *a) {
    return a->bytes > a->full_bytes;
}
/* Forgets all but states[0..n), whose numbers become new ones. */
int pn_pda_keep(struct pn_pda *a, uint32_t *states, uint32_t n, struct fo_err *e);

/* The state of `from` as far as it decides about the next bytes, up to the horizon of `a`, which runs the same program: of each stack the
 * n_frames frames on top. States that differ in the rest become one. A step that leads below those frames ends in PN_STATE_UNKNOWN: ask with
 * more of them (n_frames of PN_PDA_MAX_FRAMES leaves nothing out). */
uint32_t pn_pda_import(struct pn_pda *a, const struct pn_pda *from, uint32_t state, uint32_t n_frames, struct fo_err *e);
