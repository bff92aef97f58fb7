/* Beginnings of texts that are kept, as numbers: for whoever asks from another thread where a prompt would find most of itself, without
 * waiting for the worker that keeps it. A beginning of so many whole pages is a chain: each page's tokens folded into the number of those
 * before, the first of them into that of the tenant, so that nobody finds another's. What is found is a hint: two texts may have the
 * same number, and the worker compares the tokens themselves. Any thread: a lock of its own, held for a few probes. */
#pragma once
#include <stdint.h>

struct fo_err;
struct pn_index;

/* The chain before the first page of a tenant's texts (NULL: nobody's), and one with n more tokens. */
uint64_t pn_chain_start(const char *tenant);
uint64_t pn_chain_next(uint64_t chain, const int32_t *tokens, uint32_t n);

/* Room for n_chains different ones. FO_ENOMEM, and FO_ELIMIT past 2^30. */
int pn_index_new(uint64_t n_chains, struct pn_index **ret, struct fo_err *e);
void pn_index_free(struct pn_index *x); /* NULL is allowed */
uint64_t pn_index_bytes(uint64_t n_chains);

/* One more that keeps a chain, and one less: it is there until as many have dropped it as added it. A chain too many is left out. */
void pn_index_add(struct pn_index *x, uint64_t chain);
void pn_index_drop(struct pn_index *x, uint64_t chain);

/* How many of the chains are there: for tests. */
uint64_t pn_index_count(struct pn_index *x);

/* The longest beginning of tokens[0..n) that is there: a multiple of page_tokens, 0 = none. */
uint32_t pn_index_find(struct pn_index *x, const char *tenant, const int32_t *tokens, uint32_t n, uint32_t page_tokens);
