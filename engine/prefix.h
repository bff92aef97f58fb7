/* Idle conversations: the tokens and KV of a finished request wait here for the next turn of the same conversation, which then only
 * prefills what is new. Bounded by the model's max_sessions together with the running sequences, and given up, least recently used
 * first, whenever a new request needs the sequence or its pages. Belongs to the worker: no locks. */
#pragma once
#include <stdint.h>

struct fo_err;
struct pn_prefix;
struct pn_seq;

/* Room for `cap` idle sequences. FO_ENOMEM. */
int pn_prefix_new(uint32_t cap, struct pn_prefix **ret, struct fo_err *e);
void pn_prefix_free(struct pn_prefix *p); /* frees the sequences too; NULL is allowed */

uint32_t pn_prefix_count(const struct pn_prefix *p);
/* Pages that the idle sequences hold. */
uint64_t pn_prefix_pages(const struct pn_prefix *p);

/* Takes out the sequence kept under `key` that shares the longest prefix with tokens[0..n), cut to that prefix (at most n - 1: the
 * last token has to be computed for its logits). NULL when nothing is shared; empty when nothing of it could be kept (pn_seq_truncate). The caller owns what comes back. */
struct pn_seq *pn_prefix_take(struct pn_prefix *p, const char *key, const int32_t *tokens, uint32_t n);

/* Keeps a sequence; takes over both (key is heap). Room is made by giving up the least recently used one. */
void pn_prefix_put(struct pn_prefix *p, char *key, struct pn_seq *seq);

/* Gives up the least recently used one; 0 when there is none. */
int pn_prefix_evict(struct pn_prefix *p);

/* Gives up every sequence kept under `key`. */
void pn_prefix_forget(struct pn_prefix *p, const char *key);
