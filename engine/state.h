/* Recurrent state: what a family without, or not only with, attention carries from token to token. A sequence has one block of it on each
 * die, of a size that does not grow; block n of a sequence is block n of all dies. What is drawn here is one sequence's:
 *
 *     tokens        0 ......... 128 ...... 192 .... 205
 *     checkpoints              block 7    block 3
 *     the newest                                    block 9   <- pn_seq_state.block
 *
 * A step reads a sequence's newest block and writes another, which takes its place once the step has succeeded: a failed step leaves
 * everything as it was, and a checkpoint is no copy but a block that is not given back. Sequences that share a beginning share its
 * checkpoints; refs[] counts who holds a block.
 *
 * A step needs a free block for each of its sequences, `n_float` of them, and gives back as many, but for a sequence whose newest block is
 * held by a checkpoint too, or that has none yet: that one is promised a block beforehand. So n_free >= n_promised + n_float between steps.
 *
 * Checkpoints are made on page boundaries: the last two of a prompt, where the next turn is likely to part from this one, and every
 * PN_MARK_PAGES pages, while blocks are free; those of an answer drive out no others. The worker's, like the pages: no locks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fo_arena;
struct fo_err;
struct pn_seq;

enum {
    PN_NO_BLOCK = UINT32_MAX,
    PN_MAX_MARKS = 8,   /* checkpoints of one sequence */
    PN_MARK_PAGES = 16, /* pages between those that are not at the end of a prompt */
    PN_SEQ_BLOCKS = 4   /* blocks that there are for each session: its newest, two checkpoints, and the next */
};

struct pn_states {
    uint32_t n_blocks; /* 0 = the family has no such state, and nothing else counts */
    uint32_t n_free, n_promised, n_float;
    uint32_t *free_blocks; /* [n_blocks], a stack */
    uint32_t *refs;        /* [n_blocks] */
};

struct pn_mark {
    uint32_t len;   /* tokens before it, a multiple of a page's */
    uint32_t block;
};

struct pn_seq_state {
    uint32_t block;  /* PN_NO_BLOCK for an empty sequence */
    uint32_t prompt; /* tokens of the prompt, whose last pages get checkpoints; 0 = none is wanted */
    uint32_t n_marks;
    bool promised;
    struct pn_mark marks[PN_MAX_MARKS]; /* [n_marks] ascending */
};

/* Lays out the lists; the arena may be measuring. */
int pn_states_layout(struct pn_states *p, struct fo_arena *host, struct fo_err *e);
void pn_states_clear(struct pn_states *p);

/* A free block, which there must be; and one holder of a block less (PN_NO_BLOCK is allowed). */
uint32_t pn_states_take(struct pn_states *p);
void pn_states_put(struct pn_states *p, uint32_t block);

/* Promises s the block that its next step needs. FO_ENOMEM with need and have in blocks. Nothing to do without recurrent state. */
int pn_state_reserve(struct pn_seq *s, struct fo_err *e);
/* The step that wrote `block` for s has succeeded: what it read is let go of. */
void pn_state_commit(struct pn_seq *s, uint32_t block);
/* Of the checkpoints at the end of its prompt, how many s has not come to yet. */
uint32_t pn_state_marks_to_come(const struct pn_seq *s);
/* When all sequences of a step have committed, and s->len counts its tokens: a checkpoint, if one is due. */
void pn_state_keep(struct pn_seq *s);
/* A checkpoint at the end of s, if a page ends there: for a sequence that does not grow any more. */
void pn_state_mark_end(struct pn_seq *s);

/* The last checkpoint of s at or before n tokens, 0 when there is none. */
uint32_t pn_state_mark(const struct pn_seq *s, uint32_t n);
/* s keeps its first n tokens: none, all, or up to one of its checkpoints. */
void pn_state_cut(struct pn_seq *s, uint32_t n);
/* `to`, which is empty, begins with the first n tokens of `from`, where one of its checkpoints is. */
void pn_state_share(const struct pn_seq *from, uint32_t n, struct pn_seq *to);
void pn_state_move(struct pn_seq *from, struct pn_seq *to);
void pn_state_free(struct pn_seq *s);
/* Gives up a checkpoint of s: not one of the last two, or when there are no others, and any may be, the first. 0 = there is none such. */
int pn_state_drop_mark(struct pn_seq *s, bool any);

/* Of n more tokens, how many a step should append to end where a checkpoint is due: n without recurrent state. At least 1. */
uint32_t pn_state_chunk(const struct pn_seq *s, uint32_t n);
