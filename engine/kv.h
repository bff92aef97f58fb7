/* Paged KV: a pool of equal pages, and the sequences that hold them. A page keeps `page_tokens` consecutive positions of one sequence
 * for every layer (foundry/ops.h owns what lies where inside), so one number a page is all that sharing, evicting and counting need.
 * A model split over several dies has a pool on each, of as many pages; page n of a sequence is page n of all of them. The pool belongs to a model and, like its sequences, to the model's one worker thread: no locks. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "foundry/ops.h"

struct fo_arena;
struct fo_err;

struct pn_kv {
    uint32_t page_tokens;
    uint64_t n_pages;
    uint32_t ctx_cap;        /* most tokens of one sequence */
    uint32_t max_seq_pages;  /* pages that ctx_cap tokens take */
    uint32_t window;         /* positions that any layer looks back, itself included; 0 = all. Pages that lie before it are given back */
    uint32_t held_pages;     /* most pages that one sequence holds at a time: max_seq_pages, or fewer under a window */
    uint32_t *free_pages;    /* [n_pages], a stack: the page given back last is taken first, so that few pages are ever touched */
    uint32_t n_free;
};

/* A timeline of tokens. pages[i] holds positions [i * page_tokens, (i + 1) * page_tokens); of them pages [first_page, n_pages) are held.
 * Those before it lie where no position from `len` on can see. */
struct pn_seq {
    struct pn_kv *kv;
    uint32_t len;        /* tokens whose KV is written */
    uint32_t first_page; /* 0 without a window */
    uint32_t n_pages;    /* at least what `len` needs */
    uint32_t want_pages; /* what was reserved: under a window more than n_pages, and met by pages that fall out of it */
    int32_t *tokens;     /* [ctx_cap], the first `len` count */
    uint32_t *pages;     /* [max_seq_pages] */
};

/* Pages that n tokens need. */
uint32_t pn_kv_pages(const struct pn_kv *kv, uint32_t n_tokens);

/* Sets window and held_pages, from ctx_cap, page_tokens and what a step may append. */
void pn_kv_set_window(struct pn_kv *kv, uint32_t window, uint32_t max_batch);

/* Lays out the free list; the arena may be measuring. FO_ELIMIT past 2^32 pages. */
int pn_kv_layout(struct pn_kv *kv, struct fo_arena *host, struct fo_err *e);
/* Lays out a die's pages; the arena may be measuring. *g is set but for the pool, which becomes `block` plus the offset taken (NULL when
 * measuring). FO_ELIMIT past 2^64 bytes. */
int pn_kv_pool_layout(struct fo_kv_geom *g, struct fo_arena *device, unsigned char *block, struct fo_err *e);

/* Puts every page on the free list. */
void pn_kv_clear(struct pn_kv *kv);

/* An empty sequence: one heap block, of pn_kv_seq_bytes. FO_ENOMEM. */
size_t pn_kv_seq_bytes(const struct pn_kv *kv);
int pn_kv_seq_new(struct pn_kv *kv, struct pn_seq **ret, struct fo_err *e);

/* Gives back the pages that neither `len` nor the first n_pages pages need. */
void pn_kv_seq_shrink(struct pn_seq *s, uint32_t n_pages);
/* Lets go of the pages that the window has left behind: they become pages that were reserved, or free. */
void pn_kv_seq_slide(struct pn_seq *s);
