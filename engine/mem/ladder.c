/* The table, and the walk along it: see ladder.h. What each rung costs stands in docs/memory.md. */
#include "engine/mem/ladder.h"

enum { LEAST_CHUNK = 16, CLAMP = 4 };

static uint32_t half(uint32_t n) {
    return n > 1 ? n / 2 : 1;
}

static void kv_floor_apply(struct pn_effective *e, const struct pn_effective *d) {
    (void)d;
    e->kv_floor = true;
}

static void kv_floor_undo(struct pn_effective *e, const struct pn_effective *d) {
    e->kv_floor = d->kv_floor;
}

static void requantise_apply(struct pn_effective *e, const struct pn_effective *d) {
    (void)d;
    e->requantise = true;
}

static void requantise_undo(struct pn_effective *e, const struct pn_effective *d) {
    e->requantise = d->requantise;
}

static void half_apply(struct pn_effective *e, const struct pn_effective *d) {
    e->max_concurrent = half(d->max_concurrent);
}

static void half_undo(struct pn_effective *e, const struct pn_effective *d) {
    e->max_concurrent = d->max_concurrent;
}

/* Scratch that no step has touched takes no page, and a chunk touches what is its own. */
static void clamp_apply(struct pn_effective *e, const struct pn_effective *d) {
    uint32_t chunk = d->prefill_chunk / CLAMP, least = d->prefill_chunk < LEAST_CHUNK ? d->prefill_chunk : LEAST_CHUNK;
    e->prefill_chunk = chunk < least ? least : chunk;
}

static void clamp_undo(struct pn_effective *e, const struct pn_effective *d) {
    e->prefill_chunk = d->prefill_chunk;
}

static void evict_apply(struct pn_effective *e, const struct pn_effective *d) {
    (void)d;
    e->evict = true;
}

static void evict_undo(struct pn_effective *e, const struct pn_effective *d) {
    e->evict = d->evict;
}

static void drop_apply(struct pn_effective *e, const struct pn_effective *d) {
    (void)d;
    e->drop_cache = true;
}

static void drop_undo(struct pn_effective *e, const struct pn_effective *d) {
    e->drop_cache = d->drop_cache;
}

static void one_apply(struct pn_effective *e, const struct pn_effective *d) {
    (void)d;
    e->max_concurrent = 1;
}

static const struct pn_rung rungs[] = {
    { "kv_floor", PN_WATCH, "new KV is written at the floor type", kv_floor_apply, kv_floor_undo },
    { "requantise_cold", PN_WATCH, "KV of kept conversations is turned into the floor type", requantise_apply, requantise_undo },
    { "half_concurrency", PN_TIGHT, "half as many requests run", half_apply, half_undo },
    { "prefill_clamp", PN_TIGHT, "a quarter as many tokens of prompts in a step", clamp_apply, clamp_undo },
    { "evict_cold", PN_TIGHT, "kept conversations that nobody has used lately are given up", evict_apply, evict_undo },
    { "drop_page_cache", PN_TIGHT, "weights of models that nobody uses leave the page cache", drop_apply, drop_undo },
    { "one_slot", PN_CRITICAL, "one request runs, the others wait", one_apply, half_apply },
};
enum { N_RUNGS = sizeof rungs / sizeof *rungs };

size_t pn_rung_count(void) {
    return N_RUNGS;
}

const struct pn_rung *pn_rung_at(size_t i) {
    return i < N_RUNGS ? &rungs[i] : NULL;
}

size_t pn_rungs_at_level(enum pn_level level) {
    size_t n = 0;
    while (n < N_RUNGS && rungs[n].level <= level) n++;
    return n;
}

void pn_ladder_init(struct pn_ladder *l, const struct pn_effective *declared) {
    *l = (struct pn_ladder){ .declared = *declared, .now = *declared };
}

static void move(struct pn_ladder *l, size_t n) {
    while (l->n < n) {
        const struct pn_rung *r = &rungs[l->n++];
        r->apply(&l->now, &l->declared);
        if (l->told) l->told(l->ctx, r, true);
    }
    while (l->n > n) {
        const struct pn_rung *r = &rungs[--l->n];
        r->undo(&l->now, &l->declared);
        if (l->told) l->told(l->ctx, r, false);
    }
}

void pn_ladder_declare(struct pn_ladder *l, const struct pn_effective *declared) {
    l->declared = l->now = *declared;
    for (size_t i = 0; i < l->n; i++) rungs[i].apply(&l->now, &l->declared);
}

bool pn_ladder_set(struct pn_ladder *l, enum pn_level level) {
    size_t n = pn_rungs_at_level(level), before = l->n;
    move(l, n);
    return n != before;
}
