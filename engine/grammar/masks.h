/* Which tokens may come next: a bit for each token of the vocabulary, found by walking all of them through the automaton at once and
 * remembered by what decides about it (pda.h's import: counters far from their bounds are one, and so are stacks that differ far below). One
 * grammar over one vocabulary; guarded by the grammar's lock. */
#pragma once
#include <stdint.h>

#include "engine/grammar/pda.h"
#include "engine/grammar/tokens.h"

struct fo_err;
struct pn_masks;

struct pn_mask {
    uint32_t n_allowed;
    uint64_t bits[]; /* [n_vocab / 64, rounded up] 1 = this token's bytes are the beginning of what may follow. End tokens are 0 */
};

enum {
    PN_MASKS_BYTES = 8 << 20, /* of masks; and as much of states */
    PN_MASK_WORK = 1 << 23    /* ops of the automaton for one mask */
};

/* p and v outlive it. */
int pn_masks_new(const struct pn_program *p, const struct pn_tokens *v, struct pn_masks **ret, struct fo_err *e);
void pn_masks_free(struct pn_masks *m); /* NULL is allowed */

/* The mask of a state of `from`, which runs the same program; valid until the next call. FO_ELIMIT (too ambiguous to decide in bounded time
 * and memory), FO_ENOMEM. */
int pn_masks_get(struct pn_masks *m, const struct pn_pda *from, uint32_t state, const struct pn_mask **ret, struct fo_err *e);

/* For the log and for benchmarks. */
struct pn_masks_stats {
    uint64_t hits, walks;
    uint32_t n_masks, n_states;
};
size_t pn_masks_bytes(const struct pn_masks *m);
void pn_masks_stats(const struct pn_masks *m, struct pn_masks_stats *ret);
