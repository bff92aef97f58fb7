/* A hash table of chains and how many keep each, open, with linear probing: see index.h. A slot is free when nobody keeps its chain, and
 * taking one out moves back those that were pushed on by it, so that a probe may stop at the first free slot. */
#include "engine/index.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/hash.h"

enum { BATCH = 64 /* probes under the lock at a time */ };
static const uint64_t MAX_CHAINS = 1 << 30;

struct kept {
    uint64_t chain;
    uint32_t n; /* 0 = free */
};

struct pn_index {
    pthread_mutex_t lock; /* guards the rest */
    uint64_t n_slots, used; /* a power of two, at least twice the chains there is room for */
    struct kept slots[];
};

uint64_t pn_chain_start(const char *tenant) {
    uint64_t h = tenant ? 1 : 0;
    for (const char *c = tenant; c && *c; c++) h = fo_mix64(h + (unsigned char)*c + UINT64_C(0x9e3779b97f4a7c15));
    return h;
}

uint64_t pn_chain_next(uint64_t chain, const int32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) chain = fo_mix64(chain + (uint32_t)tokens[i] + UINT64_C(0x9e3779b97f4a7c15));
    return chain;
}

static uint64_t slots_for(uint64_t n_chains) {
    uint64_t n = 64;
    while (n < 2 * n_chains) n *= 2;
    return n;
}

uint64_t pn_index_bytes(uint64_t n_chains) {
    return n_chains > MAX_CHAINS ? UINT64_MAX : sizeof(struct pn_index) + slots_for(n_chains) * sizeof(struct kept);
}

int pn_index_new(uint64_t n_chains, struct pn_index **ret, struct fo_err *e) {
    if (n_chains > MAX_CHAINS) return fo_fail_need(e, FO_ELIMIT, n_chains, MAX_CHAINS, "%llu pages of kept texts are more than this build can list", (unsigned long long)n_chains);
    struct pn_index *x = calloc(1, (size_t)pn_index_bytes(n_chains));
    if (!x) return fo_fail(e, FO_ENOMEM, "no memory for a list of %llu pages", (unsigned long long)n_chains);
    x->n_slots = slots_for(n_chains);
    pthread_mutex_init(&x->lock, NULL);
    *ret = x;
    return FO_OK;
}

void pn_index_free(struct pn_index *x) {
    if (!x) return;
    pthread_mutex_destroy(&x->lock);
    free(x);
}

/* The slot of a chain, or the free one where it would go. */
static uint64_t slot_of(const struct pn_index *x, uint64_t chain) {
    uint64_t at = fo_mix64(chain) & (x->n_slots - 1);
    while (x->slots[at].n > 0 && x->slots[at].chain != chain) at = (at + 1) & (x->n_slots - 1);
    return at;
}

void pn_index_add(struct pn_index *x, uint64_t chain) {
    pthread_mutex_lock(&x->lock);
    struct kept *k = &x->slots[slot_of(x, chain)];
    if (k->n > 0) {
        k->n++;
    } else if (x->used < x->n_slots / 2) {
        *k = (struct kept){ chain, 1 };
        x->used++;
    }
    pthread_mutex_unlock(&x->lock);
}

static void take_out(struct pn_index *x, uint64_t at) {
    uint64_t mask = x->n_slots - 1;
    for (uint64_t next = (at + 1) & mask; x->slots[next].n > 0; next = (next + 1) & mask) {
        uint64_t home = fo_mix64(x->slots[next].chain) & mask;
        if (((next - home) & mask) < ((next - at) & mask)) continue; /* it is at, or behind, where it belongs only there */
        x->slots[at] = x->slots[next];
        at = next;
    }
    x->slots[at].n = 0;
    x->used--;
}

void pn_index_drop(struct pn_index *x, uint64_t chain) {
    pthread_mutex_lock(&x->lock);
    uint64_t at = slot_of(x, chain);
    if (x->slots[at].n > 0 && --x->slots[at].n == 0) take_out(x, at);
    pthread_mutex_unlock(&x->lock);
}

uint64_t pn_index_count(struct pn_index *x) {
    pthread_mutex_lock(&x->lock);
    uint64_t n = x->used;
    pthread_mutex_unlock(&x->lock);
    return n;
}

uint32_t pn_index_find(struct pn_index *x, const char *tenant, const int32_t *tokens, uint32_t n, uint32_t page_tokens) {
    uint64_t chains[BATCH], chain = pn_chain_start(tenant);
    uint32_t found = 0;
    for (uint32_t page = 0; page < n / page_tokens;) {
        uint32_t k = 0, first = page;
        for (; k < BATCH && page < n / page_tokens; k++, page++)
            chains[k] = chain = pn_chain_next(chain, tokens + (size_t)page * page_tokens, page_tokens);
        pthread_mutex_lock(&x->lock);
        while (k > 0 && x->slots[slot_of(x, chains[k - 1])].n == 0) k--;
        pthread_mutex_unlock(&x->lock);
        if (k > 0) found = (first + k) * page_tokens;
    }
    return found;
}
