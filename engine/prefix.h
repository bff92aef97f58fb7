/* What is kept of texts, so that a request only computes what is new. The tokens and KV of a request that has ended wait here, idle; one that
 * begins takes as much as it has in common with any of them, or with any that runs, of the same tenant:
 *
 *     an idle text that is all of it a beginning of the prompt is moved into the new sequence, to the last token
 *     else whole pages are shared: held by both (kv.h), never copied and never written to
 *
 * Texts are found by their tokens, whatever their session is called. Idle ones are bounded by the pages, which running sequences take from them
 * when they need any, the least recently used first, and by host memory: that of `cap` sequences of full length, or of as many short ones as
 * there are pages. What was given up leaves its chain (index.h) behind for a while, so that a miss can be told from a text never seen.
 *
 * The worker's, without locks, but for pn_prefix_kept. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/miss.h"

struct fo_err;
struct pn_kv;
struct pn_mark;
struct pn_model;
struct pn_prefix;
struct pn_seq;

/* Whether two names of tenants or sessions are one; NULL is nobody's. */
bool pn_same_name(const char *a, const char *b);

/* Room for the tokens of `cap` idle sequences of full length. FO_ENOMEM, FO_ELIMIT. */
int pn_prefix_new(struct pn_model *m, uint32_t cap, struct pn_prefix **ret, struct fo_err *e);
void pn_prefix_free(struct pn_prefix *p); /* frees the idle sequences too; none runs any more. NULL is allowed */
/* The most host memory that one takes, idle sequences included. */
uint64_t pn_prefix_bytes(const struct pn_kv *kv, uint32_t cap);

/* A new sequence that begins with what is kept of tokens[0..n), n >= 1, for this tenant (NULL: nobody's): at most n - 1, the last token is
 * computed for its logits. *ret_miss says why not more, *ret_shared how many the prompt has in common with what is kept, at its longest.
 * Idle sequences give way to it. It ends with pn_prefix_put or pn_prefix_drop. FO_ENOMEM. */
int pn_prefix_begin(struct pn_prefix *p, const char *tenant, const int32_t *tokens, uint32_t n, struct pn_seq **ret, enum pn_cache_miss *ret_miss,
                    uint32_t *ret_shared, struct fo_err *e);
/* As pn_seq_reserve of any sequence of the model; idle sequences give way to it, unless all of them would not be enough. */
int pn_prefix_reserve(struct pn_prefix *p, struct pn_seq *seq, uint32_t n, struct fo_err *e);
/* Keeps a sequence of pn_prefix_begin as the most recently used, for the tenant that it began for; takes it over. Kept texts of the same session (NULL: of
 * none) that it goes on from are given up: they are part of it. Without memory for it, it is freed. */
void pn_prefix_put(struct pn_prefix *p, const char *session, struct pn_seq *seq);
/* What session a sequence of pn_prefix_begin is part of, for who saves it while it runs (pn_prefix_each). */
void pn_prefix_name(struct pn_prefix *p, struct pn_seq *seq, const char *session);
/* Frees a sequence of pn_prefix_begin that is not to be kept. NULL is allowed. */
void pn_prefix_drop(struct pn_prefix *p, struct pn_seq *seq);

/* Gives up an idle sequence that frees something: the least recently used of those, hidden ones last; when there is none such, of all. 0 = there is none. */
int pn_prefix_evict(struct pn_prefix *p);
/* Gives up an idle sequence that was not used since before_ms (pn_now_ms); first of those without recurrent state, whose checkpoints are dear. 0 = there is
 * none. */
int pn_prefix_evict_cold(struct pn_prefix *p, double before_ms);
/* Gives up every idle sequence of this tenant's session; how many there were. */
uint32_t pn_prefix_forget(struct pn_prefix *p, const char *tenant, const char *session);

/* --- texts that are saved and restored, in several visits (blob.h) ---
 * Between the visits they are hidden: idle ones that nobody finds and that give way last, but do. */
struct pn_kept {
    uint64_t id;
    const char *tenant, *session; /* or NULL */
    const struct pn_seq *seq;     /* valid during the call, as all of it */
    double used_ms;               /* when it was last put here or begun (pn_now_ms) */
    bool idle;                    /* else it runs */
};
/* Every text but hidden ones: the idle ones, least recently used first, then those that run. */
void pn_prefix_each(const struct pn_prefix *p, void (*fn)(void *ctx, const struct pn_kept *k), void *ctx);
/* *ret is a hidden text that shares what a kept one has now: of an idle one all its tokens, all full pages and its state; of one that runs what another
 * could begin with. FO_ENOENT, FO_ENOMEM; FO_EBUSY: it runs, and there is nothing yet. */
int pn_prefix_hold(struct pn_prefix *p, uint64_t id, uint64_t *ret, struct fo_err *e);

struct pn_text_shape {
    const int32_t *tokens;       /* [n], n >= 1 */
    uint32_t n, first_page;      /* pages [first_page, those of n) are taken */
    const unsigned char *kinds;  /* of each of these: 1 = a small one, n_small in all */
    uint32_t n_small;
    bool spare;                  /* no idle text gives way to it */
    uint32_t n_blocks, newest;   /* blocks of state that are taken, numbered from 0; which one lies behind all tokens */
    const struct pn_mark *marks; /* [n_marks] of these blocks, ascending, each block used by one or as the newest */
    uint32_t n_marks;
};
/* *ret is a hidden text of that shape, whose pages and blocks the caller fills in. Idle texts give way to it, unless all of them would not be enough:
 * FO_ENOMEM with need and have, and nothing has changed. */
int pn_prefix_room(struct pn_prefix *p, const char *tenant, const char *session, const struct pn_text_shape *x, uint64_t *ret, struct fo_err *e);

/* The sequence of a hidden text, now the most recently used; NULL = it had to give way. */
struct pn_seq *pn_prefix_held(struct pn_prefix *p, uint64_t id);
/* A hidden text becomes one like others, as pn_prefix_put leaves them. False = it had to give way. */
bool pn_prefix_show(struct pn_prefix *p, uint64_t id);
void pn_prefix_let_go(struct pn_prefix *p, uint64_t id); /* a hidden text; nothing to do when it had to give way */

uint32_t pn_prefix_count(const struct pn_prefix *p); /* idle sequences */
/* Turns up to `most` pages of idle sequences that were not used since before_ms and that no other holds into small ones (kv.h), of the least recently used
 * first: `write` writes page `from` again as page `to`; other than 0 ends it, and the text with it where it was written over itself. Returns how many were. */
uint32_t pn_prefix_requantise(struct pn_prefix *p, double before_ms, uint32_t most, int (*write)(void *ctx, uint32_t from, uint32_t to), void *ctx);

/* Places for pages that giving up all idle sequences would free: each once, however many hold what is in it. */
uint64_t pn_prefix_pages(const struct pn_prefix *p);
/* Whether all counts are those of the sequences here and of others[0..n_others), which were not begun here: for tests. */
bool pn_prefix_check(const struct pn_prefix *p, struct pn_seq *const *others, uint32_t n_others);

/* Any thread: how many of tokens[0..n) a new request of this tenant would find here, in whole pages, of texts as they were when they began and
 * ended. Never waits for a step. A hint: nothing is reused by it. */
uint32_t pn_prefix_kept(const struct pn_prefix *p, const char *tenant, const int32_t *tokens, uint32_t n);
