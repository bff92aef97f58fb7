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
    uint64_t list, refs, touched;
    if (kv->n_pages > UINT32_MAX)
        return fo_fail(e, FO_ELIMIT, "%llu pages of KV are more than this build can count", (unsigned long long)kv->n_pages);
    if (fo_arena_take(host, kv->n_pages * sizeof *kv->free_pages, _Alignof(uint32_t), &list, e) ||
        fo_arena_take(host, kv->n_pages * sizeof *kv->refs, _Alignof(uint32_t), &refs, e) ||
        fo_arena_take(host, kv->n_pages * sizeof *kv->touched, _Alignof(bool), &touched, e))
        return e->code;
    kv->free_pages = fo_arena_ptr(host, list);
    kv->refs = fo_arena_ptr(host, refs);
    kv->touched = fo_arena_ptr(host, touched);
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
        kv->refs[i] = 0;
        kv->touched[i] = false;
    }
    kv->n_touched = kv->n_free_touched = 0;
    pn_states_clear(&kv->states);
}

void pn_kv_put_page(struct pn_kv *kv, uint32_t page) {
    assert(kv->refs[page] > 0);
    if (--kv->refs[page] > 0) return;
    kv->free_pages[kv->n_free++] = page;
    kv->n_free_touched += kv->touched[page];
}

uint32_t pn_kv_take_page(struct pn_kv *kv) {
    uint32_t page = kv->free_pages[--kv->n_free];
    kv->n_free_touched -= kv->touched[page];
    kv->refs[page] = 1;
    return page;
}

void pn_kv_seq_touch(struct pn_seq *s, uint32_t n) {
    struct pn_kv *kv = s->kv;
    for (uint32_t i = s->len / kv->page_tokens; i < pn_kv_pages(kv, s->len + n); i++) {
        uint32_t page = s->pages[i];
        kv->n_touched += !kv->touched[page];
        kv->touched[page] = true;
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
