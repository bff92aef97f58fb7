/* The page pool: see kv.h. */
#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/arena.h"
#include "foundry/base/err.h"

uint32_t pn_kv_pages(const struct pn_kv *kv, uint32_t n_tokens) {
    return n_tokens / kv->page_tokens + (n_tokens % kv->page_tokens != 0);
}

void pn_kv_set_window(struct pn_kv *kv, uint32_t window, uint32_t max_batch) {
    /* The first of a step's tokens sees window - 1 before it: so many positions, wherever in a page they begin. */
    uint64_t run = (uint64_t)window + max_batch - 1, pages = (run + kv->page_tokens - 2) / kv->page_tokens + 1;
    kv->window = window;
    kv->held_pages = window && pages < kv->max_seq_pages ? (uint32_t)pages : kv->max_seq_pages;
}

int pn_kv_layout(struct pn_kv *kv, struct fo_arena *host, struct fo_err *e) {
    uint64_t list, refs, touched, partly, at, in_place, n = kv->n_pages, n_small = kv->n_small ? n : 0;
    if (n > UINT32_MAX / (1 + (uint64_t)kv->n_small))
        return fo_fail(e, FO_ELIMIT, "%llu pages of KV are more than this build can count", (unsigned long long)n);
    if (kv->n_small > UINT8_MAX) return fo_fail(e, FO_ELIMIT, "%u small pages of KV in a page's place are more than this build can count", kv->n_small);
    if (fo_arena_take(host, n * sizeof *kv->free_pages, _Alignof(uint32_t), &list, e) ||
        fo_arena_take(host, pn_kv_numbers(kv) * sizeof *kv->refs, _Alignof(uint32_t), &refs, e) ||
        fo_arena_take(host, n * sizeof *kv->touched, _Alignof(bool), &touched, e) ||
        fo_arena_take(host, n_small * sizeof *kv->partly, _Alignof(uint32_t), &partly, e) ||
        fo_arena_take(host, n_small * sizeof *kv->at, _Alignof(uint32_t), &at, e) ||
        fo_arena_take(host, n_small * sizeof *kv->in_place, 1, &in_place, e))
        return e->code;
    kv->free_pages = fo_arena_ptr(host, list);
    kv->refs = fo_arena_ptr(host, refs);
    kv->touched = fo_arena_ptr(host, touched);
    kv->partly = fo_arena_ptr(host, partly);
    kv->at = fo_arena_ptr(host, at);
    kv->in_place = fo_arena_ptr(host, in_place);
    return pn_states_layout(&kv->states, host, e);
}

int pn_kv_pool_layout(struct fo_kv_geom *g, uint64_t state_bytes, struct fo_arena *device, unsigned char *block, unsigned char **ret_states, struct fo_err *e) {
    uint64_t pages, bytes, off;
    if (__builtin_mul_overflow(fo_kv_page_bytes(g), g->n_pages, &pages) || __builtin_add_overflow(pages, state_bytes, &bytes))
        return fo_fail(e, FO_ELIMIT, "%llu pages of KV pass 2^64 bytes", (unsigned long long)g->n_pages);
    if (fo_arena_take(device, bytes, 64, &off, e)) return e->code;
    g->pool = block ? block + off : NULL;
    *ret_states = block ? block + off + pages : NULL;
    return FO_OK;
}

void pn_kv_clear(struct pn_kv *kv) {
    kv->n_free = (uint32_t)kv->n_pages;
    for (uint32_t i = 0; i < kv->n_free; i++) {
        kv->free_pages[i] = kv->n_free - 1 - i; /* page 0 is taken first */
        kv->touched[i] = false;
        if (kv->n_small) kv->in_place[i] = 0;
    }
    memset(kv->refs, 0, pn_kv_numbers(kv) * sizeof *kv->refs);
    kv->n_touched = kv->n_free_touched = 0;
    kv->n_partly = kv->n_small_held = kv->n_small_free = 0;
    pn_states_clear(&kv->states);
}

/* --- places ---------------------------------------------------------------------------------- */
static void free_place(struct pn_kv *kv, uint32_t place) {
    kv->free_pages[kv->n_free++] = place;
    kv->n_free_touched += kv->touched[place];
}

static uint32_t take_place(struct pn_kv *kv) {
    uint32_t place = kv->free_pages[--kv->n_free];
    kv->n_free_touched -= kv->touched[place];
    return place;
}

static void add_partly(struct pn_kv *kv, uint32_t place) {
    kv->at[place] = kv->n_partly;
    kv->partly[kv->n_partly++] = place;
}

static void drop_partly(struct pn_kv *kv, uint32_t place) {
    uint32_t last = kv->partly[--kv->n_partly];
    kv->partly[kv->at[place]] = last;
    kv->at[last] = kv->at[place];
}

static uint32_t small_at(const struct pn_kv *kv, uint32_t place, uint32_t i) {
    return (uint32_t)kv->n_pages + place * kv->n_small + i;
}

/* Room in a place that is partly held. */
static uint32_t small_in(const struct pn_kv *kv, uint32_t place) {
    uint32_t i = 0;
    while (kv->refs[small_at(kv, place, i)] > 0) i++;
    return small_at(kv, place, i);
}

/* One more small page in a place that is on `partly`. */
static void fill(struct pn_kv *kv, uint32_t place, uint32_t page) {
    kv->refs[page] = 1;
    kv->n_small_held++;
    kv->n_small_free--;
    if (++kv->in_place[place] == kv->n_small) drop_partly(kv, place);
}

/* One less. */
static void empty(struct pn_kv *kv, uint32_t place) {
    if (kv->in_place[place]-- == kv->n_small) add_partly(kv, place);
    kv->n_small_held--;
    kv->n_small_free++;
    if (kv->in_place[place] > 0) return;
    drop_partly(kv, place);
    kv->n_small_free -= kv->n_small;
    free_place(kv, place);
}

uint64_t pn_kv_room(const struct pn_kv *kv, bool small) {
    return small ? (uint64_t)kv->n_free * kv->n_small + kv->n_small_free : kv->n_free;
}

uint32_t pn_kv_take(struct pn_kv *kv, bool small) {
    if (!small) {
        uint32_t page = take_place(kv);
        kv->refs[page] = 1;
        return page;
    }
    if (kv->n_partly == 0) {
        add_partly(kv, take_place(kv));
        kv->n_small_free += kv->n_small;
    }
    uint32_t place = kv->partly[kv->n_partly - 1], page = small_in(kv, place);
    fill(kv, place, page);
    return page;
}

void pn_kv_put_page(struct pn_kv *kv, uint32_t page) {
    assert(kv->refs[page] > 0);
    if (--kv->refs[page] > 0) return;
    if (pn_kv_is_small(kv, page)) empty(kv, pn_kv_place(kv, page));
    else free_place(kv, page);
}

uint32_t pn_kv_small_to(const struct pn_kv *kv, uint32_t page) {
    return kv->n_partly > 0 ? small_in(kv, kv->partly[kv->n_partly - 1]) : small_at(kv, page, 0);
}

void pn_kv_made_small(struct pn_kv *kv, uint32_t page, uint32_t to) {
    uint32_t place = pn_kv_place(kv, to);
    assert(kv->refs[page] == 1 && kv->refs[to] == 0 && !pn_kv_is_small(kv, page));
    kv->refs[page] = 0;
    if (place == page) {
        add_partly(kv, place);
        kv->n_small_free += kv->n_small;
    } else {
        kv->n_touched += !kv->touched[place];
        kv->touched[place] = true;
        free_place(kv, page);
    }
    fill(kv, place, to);
}

/* --- sequences ------------------------------------------------------------------------------- */
void pn_kv_seq_touch(struct pn_seq *s, uint32_t n) {
    struct pn_kv *kv = s->kv;
    for (uint32_t i = s->len / kv->page_tokens; i < pn_kv_pages(kv, s->len + n); i++) {
        uint32_t place = pn_kv_place(kv, s->pages[i]);
        kv->n_touched += !kv->touched[place];
        kv->touched[place] = true;
    }
}

size_t pn_kv_seq_bytes(const struct pn_kv *kv, uint32_t n_tokens) {
    return sizeof(struct pn_seq) + (size_t)n_tokens * sizeof(int32_t) + (size_t)pn_kv_pages(kv, n_tokens) * sizeof(uint32_t);
}

int pn_kv_seq_new(struct pn_kv *kv, uint32_t n_tokens, struct pn_seq **ret, struct fo_err *e) {
    struct pn_seq *s = calloc(1, pn_kv_seq_bytes(kv, n_tokens));
    if (!s) return fo_fail_need(e, FO_ENOMEM, pn_kv_seq_bytes(kv, n_tokens), 0, "no memory for a sequence of %u tokens", n_tokens);
    s->kv = kv;
    s->room = n_tokens;
    s->state.block = PN_NO_BLOCK;
    s->tokens = (int32_t *)(s + 1);
    s->pages = (uint32_t *)(s->tokens + n_tokens);
    *ret = s;
    return FO_OK;
}

uint32_t pn_kv_seq_small(const struct pn_seq *s) {
    const uint32_t page = s->kv->page_tokens;
    uint32_t n = 0;
    for (uint32_t i = s->first_page; i < s->n_pages && (uint64_t)i * page < s->len; i++)
        if (pn_kv_is_small(s->kv, s->pages[i])) n += s->len - i * page < page ? s->len - i * page : page;
    return n;
}

void pn_kv_seq_shrink(struct pn_seq *s, uint32_t n_pages) {
    uint32_t need = pn_kv_pages(s->kv, s->len);
    if (n_pages < need) n_pages = need;
    if (n_pages < s->first_page) n_pages = s->first_page;
    while (s->n_pages > n_pages) pn_kv_put_page(s->kv, s->pages[--s->n_pages]);
    if (s->len == 0 && s->n_pages == s->first_page) s->first_page = s->n_pages = 0;
}

uint32_t pn_kv_first_seen(const struct pn_kv *kv, uint32_t n) {
    return kv->window && n >= kv->window ? n - kv->window + 1 : 0;
}

void pn_kv_seq_slide(struct pn_seq *s) {
    struct pn_kv *kv = s->kv;
    for (uint32_t first = pn_kv_first_seen(kv, s->len) / kv->page_tokens; s->first_page < first; s->first_page++) {
        uint32_t page = s->pages[s->first_page];
        if (s->n_pages < s->want_pages && kv->refs[page] == 1)
            s->pages[s->n_pages++] = page;
        else
            pn_kv_put_page(kv, page);
    }
}

void pn_kv_seq_move(struct pn_seq *from, struct pn_seq *to) {
    assert(to->len == 0 && to->n_pages == 0 && from->len <= to->room);
    pn_kv_seq_shrink(from, 0);
    memcpy(to->tokens, from->tokens, from->len * sizeof *to->tokens);
    memcpy(to->pages, from->pages, from->n_pages * sizeof *to->pages);
    to->len = from->len;
    to->first_page = from->first_page;
    to->n_pages = to->want_pages = from->n_pages;
    pn_state_move(from, to);
    free(from);
}

uint32_t pn_kv_seq_start(const struct pn_seq *s, uint32_t n) {
    const struct pn_kv *kv = s->kv;
    if (kv->window && s->want_pages > s->n_pages) return 0; /* it counts on its pages when they fall out of the window */
    n -= n % kv->page_tokens;
    if (kv->states.n_blocks > 0) n = pn_state_mark(s, n);
    return pn_kv_first_seen(kv, n) / kv->page_tokens < s->first_page ? 0 : n;
}

void pn_kv_seq_share(const struct pn_seq *from, uint32_t n, struct pn_seq *to) {
    struct pn_kv *kv = to->kv;
    uint32_t first = pn_kv_first_seen(kv, n) / kv->page_tokens;
    assert(to->len == 0 && to->n_pages == 0 && n > 0 && n % kv->page_tokens == 0 && n <= from->len);
    memcpy(to->tokens, from->tokens, n * sizeof *to->tokens);
    to->len = n;
    to->first_page = first;
    to->n_pages = to->want_pages = n / kv->page_tokens;
    for (uint32_t i = first; i < to->n_pages; i++) {
        to->pages[i] = from->pages[i];
        kv->refs[to->pages[i]]++;
    }
    if (kv->states.n_blocks > 0) pn_state_share(from, n, to);
}
