/* THE rungs that a model gives way by when memory is short, the least harmful first: what each does to the limits that are in force, and how
 * it is undone. A level stands for all rungs up to its last; they are applied in their order and undone in reverse, never one without those
 * before it. What was in force before comes back exactly. ctx_cap is no limit of these: a conversation that was promised stays possible.
 *
 * Pure: a ladder changes a value, and its owner (the scheduler) acts by that. One thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/mem/pressure.h"

/* Limits of a model, as declared or as they are in force. */
struct pn_effective {
    uint32_t max_concurrent; /* requests that may run; those that run above it end in their own time. At least 1 */
    uint32_t prefill_chunk;  /* most tokens in a step, those of running answers aside. At least 1 */
    bool kv_floor;           /* new KV is written at the model's floor type */
    bool requantise;         /* kept texts' KV is turned into it */
    bool evict;              /* kept texts that were not used for a while are given up */
    bool drop_cache;         /* the page cache of weights that nobody uses is let go */
};

struct pn_rung {
    const char *name;
    enum pn_level level; /* from which on it is applied */
    const char *what;    /* for people: what it does */
    /* Changes *e, to which all rungs before this one are applied; `d` is as declared. undo is the way back. */
    void (*apply)(struct pn_effective *e, const struct pn_effective *d);
    void (*undo)(struct pn_effective *e, const struct pn_effective *d);
};

size_t pn_rung_count(void);
const struct pn_rung *pn_rung_at(size_t i); /* NULL = past the last */
/* Rungs that are applied at a level: the first so many. */
size_t pn_rungs_at_level(enum pn_level level);

struct pn_ladder {
    struct pn_effective declared, now;
    size_t n; /* rungs applied */
    /* Told of each rung as it is applied (on) or undone. NULL = nobody is. */
    void (*told)(void *ctx, const struct pn_rung *r, bool on);
    void *ctx;
};

/* No rung applied. */
void pn_ladder_init(struct pn_ladder *l, const struct pn_effective *declared);
/* Other declared limits, under the rungs that are applied. */
void pn_ladder_declare(struct pn_ladder *l, const struct pn_effective *declared);
/* Applies or undoes rungs until they are those of the level; true when there were any. */
bool pn_ladder_set(struct pn_ladder *l, enum pn_level level);
