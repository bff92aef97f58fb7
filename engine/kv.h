/* Paged KV: a pool of equal pages, and the sequences that hold them. A page keeps `page_tokens` consecutive positions of one text
 * for every layer (foundry/ops.h owns what lies where inside), so one number a page is all that sharing, evicting and counting need.
 * A model split over several dies has a pool on each, of as many pages; page n of a sequence is page n of all of them.
 *
 * A page's number says what it is (foundry/ops.h): below n_pages a page of the model's KV type, which fills a place of the pool; from there on a
 * small one, of the floor type, n_small of which lie in a place. A place holds a page, or small pages, or nothing:
 *
 *     free     nothing; on free_pages by the number of its page
 *     partly   small pages and room for more; on `partly`. Such room is filled before another place is begun
 *     full     a page, or n_small small ones
 *
 * While `floor` is set, what is taken is small. A sequence's pages may be of both kinds.
 *
 * Sequences that begin with the same tokens may hold the same pages. refs[] counts who holds a page; whoever lets go last frees it. A page
 * that more than one holds is full and is never written to again: sharing is by whole pages of computed tokens, and a sequence that
 * is cut within such a page keeps nothing of it.
 *
 * The pool belongs to a model and, like its sequences, to the model's one worker thread: no locks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/state.h"
#include "foundry/ops.h"

struct fo_arena;
struct fo_err;
struct pn_model;

struct pn_kv {
    uint32_t page_tokens;
    uint64_t n_pages;
    uint32_t ctx_cap;        /* most tokens of one sequence */
    uint32_t max_seq_pages;  /* pages that ctx_cap tokens take */
    uint32_t window;         /* positions that any layer looks back, itself included; 0 = all. Pages that lie before it are given back */
    uint32_t held_pages;     /* most pages that one sequence holds at a time: max_seq_pages, or fewer under a window. Besides, as many as it shares */
    uint32_t *free_pages;    /* [n_pages], a stack: the place given back last is taken first, so that few are ever touched */
    uint32_t n_free;
    uint32_t n_small;        /* small pages in a place; 0 = there are none */
    bool floor;              /* take small pages */
    uint32_t *partly, n_partly; /* [n_pages] places */
    uint32_t *at;            /* [n_pages] where a place is on `partly` */
    uint8_t *in_place;       /* [n_pages] small pages in it */
    uint32_t n_small_held, n_small_free; /* all small pages; room for more of them in places that are partly held */
    bool *touched;           /* [n_pages] written to, since the host has had it back: it takes memory there */
    uint32_t n_touched, n_free_touched; /* all, and of the free ones */
    uint32_t *refs;          /* [pn_kv_numbers] sequences that hold it, 0 = free */
    struct pn_states states; /* blocks of recurrent state; none in most families */
};

/* A timeline of tokens. pages[i] holds positions [i * page_tokens, (i + 1) * page_tokens); of them pages [first_page, n_pages) are held.
 * Those before it lie where no position from `len` on can see. */
struct pn_seq {
    struct pn_kv *kv;
    uint32_t len;        /* tokens whose KV is written */
    uint32_t first_page; /* 0 without a window */
    uint32_t n_pages;    /* at least what `len` needs */
    uint32_t want_pages; /* what was reserved: under a window more than n_pages, and met by pages that fall out of it */
    uint32_t room;       /* tokens that it may grow to: ctx_cap, or what it had when it was packed */
    struct pn_seq_state state; /* behind the `len` tokens */
    int32_t *tokens;     /* [room], the first `len` count */
    uint32_t *pages;     /* [pages of room] */
};

/* Pages that n tokens need. */
uint32_t pn_kv_pages(const struct pn_kv *kv, uint32_t n_tokens);

/* The first position that the token behind n others sees. */
uint32_t pn_kv_first_seen(const struct pn_kv *kv, uint32_t n);

/* Sets window and held_pages, from ctx_cap, page_tokens and what a step may append. */
void pn_kv_set_window(struct pn_kv *kv, uint32_t window, uint32_t max_batch);

/* Lays out the free list and the counts; the arena may be measuring. FO_ELIMIT past 2^32 pages. */
int pn_kv_layout(struct pn_kv *kv, struct fo_arena *host, struct fo_err *e);
/* Lays out a die's pages, and behind them state_bytes of recurrent state; the arena may be measuring. *g is set but for the pool, which
 * becomes `block` plus the offset taken, as *ret_states does (NULL when measuring). FO_ELIMIT past 2^64 bytes. */
int pn_kv_pool_layout(struct fo_kv_geom *g, uint64_t state_bytes, struct fo_arena *device, unsigned char *block, unsigned char **ret_states, struct fo_err *e);

/* Puts every page, and every block of state, on its free list. */
void pn_kv_clear(struct pn_kv *kv);

/* How many numbers pages have. */
static inline uint64_t pn_kv_numbers(const struct pn_kv *kv) {
    return kv->n_pages * (1 + (uint64_t)kv->n_small);
}
static inline bool pn_kv_is_small(const struct pn_kv *kv, uint32_t page) {
    return page >= kv->n_pages;
}
/* The place that a page lies in. */
static inline uint32_t pn_kv_place(const struct pn_kv *kv, uint32_t page) {
    return page < kv->n_pages ? page : (uint32_t)((page - kv->n_pages) / kv->n_small);
}
/* Pages of a kind that could be taken now; small only where there are small ones. */
uint64_t pn_kv_room(const struct pn_kv *kv, bool small);
/* One of them, now held by one. There is room. */
uint32_t pn_kv_take(struct pn_kv *kv, bool small);
/* What is taken now. */
static inline bool pn_kv_takes_small(const struct pn_kv *kv) {
    return kv->floor && kv->n_small > 0;
}

/* A page that one sequence holds, and that is not small, as a small one: the number that it is to be written to (pn_kv_small_to), and, when that has
 * happened, the change of its holder to it. */
uint32_t pn_kv_small_to(const struct pn_kv *kv, uint32_t page);
void pn_kv_made_small(struct pn_kv *kv, uint32_t page, uint32_t to);
/* One holder of a page less. */
void pn_kv_put_page(struct pn_kv *kv, uint32_t page);

/* An empty sequence that may grow to n_tokens: one heap block, of pn_kv_seq_bytes. FO_ENOMEM. */
size_t pn_kv_seq_bytes(const struct pn_kv *kv, uint32_t n_tokens);
int pn_kv_seq_new(struct pn_kv *kv, uint32_t n_tokens, struct pn_seq **ret, struct fo_err *e);

/* A step is about to write n tokens behind those that are there. */
void pn_kv_seq_touch(struct pn_seq *s, uint32_t n);

/* Of its tokens, those in small pages. */
uint32_t pn_kv_seq_small(const struct pn_seq *s);
/* Gives back the pages that neither `len` nor the first n_pages pages need. */
void pn_kv_seq_shrink(struct pn_seq *s, uint32_t n_pages);
/* Lets go of the pages that the window has left behind: they become pages that were reserved, or free. */
void pn_kv_seq_slide(struct pn_seq *s);

/* All that `from` holds, but what was only reserved, becomes `to`'s, which was empty and has room for it. `from` is freed. */
void pn_kv_seq_move(struct pn_seq *from, struct pn_seq *to);

/* The most of the first n tokens of s (n <= len) that another sequence can share: whole pages, whose last sees all it has to, and that
 * end at a checkpoint of recurrent state. 0 = nothing. */
uint32_t pn_kv_seq_start(const struct pn_seq *s, uint32_t n);
/* `to`, which is empty, begins with the first n tokens of `from`, as pn_kv_seq_start gave them: the pages are held by both. */
void pn_kv_seq_share(const struct pn_seq *from, uint32_t n, struct pn_seq *to);

/* The pool of a model, for who keeps its sequences. */
struct pn_kv *pn_model_kv(struct pn_model *m);
