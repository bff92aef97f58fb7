/* The page pool: see kv.h. */
#include "engine/kv.h"

#include <stdlib.h>

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
    uint64_t off;
    if (kv->n_pages > UINT32_MAX)
        return fo_fail(e, FO_ELIMIT, "%llu pages of KV are more than this build can count", (unsigned long long)kv->n_pages);
    if (fo_arena_take(host, kv->n_pages * sizeof *kv->free_pages, _Alignof(uint32_t), &off, e)) return e->code;
    kv->free_pages = fo_arena_ptr(host, off);
    return FO_OK;
}

int pn_kv_pool_layout(struct fo_kv_geom *g, struct fo_arena *device, unsigned char *block, struct fo_err *e) {
    uint64_t bytes, off;
    if (__builtin_mul_overflow(fo_kv_page_bytes(g), g->n_pages, &bytes))
        return fo_fail(e, FO_ELIMIT, "%llu pages of KV pass 2^64 bytes", (unsigned long long)g->n_pages);
    if (fo_arena_take(device, bytes, 64, &off, e)) return e->code;
    g->pool = block ? block + off : NULL;
    return FO_OK;
}

void pn_kv_clear(struct pn_kv *kv) {
    kv->n_free = (uint32_t)kv->n_pages;
    for (uint32_t i = 0; i < kv->n_free; i++) kv->free_pages[i] = kv->n_free - 1 - i; /* page 0 is taken first */
}

size_t pn_kv_seq_bytes(const struct pn_kv *kv) {
    return sizeof(struct pn_seq) + (size_t)kv->ctx_cap * sizeof(int32_t) + (size_t)kv->max_seq_pages * sizeof(uint32_t);
}

int pn_kv_seq_new(struct pn_kv *kv, struct pn_seq **ret, struct fo_err *e) {
    struct pn_seq *s = calloc(1, pn_kv_seq_bytes(kv));
    if (!s) return fo_fail_need(e, FO_ENOMEM, pn_kv_seq_bytes(kv), 0, "no memory for a sequence of %u tokens", kv->ctx_cap);
    s->kv = kv;
    s->tokens = (int32_t *)(s + 1);
    s->pages = (uint32_t *)(s->tokens + kv->ctx_cap);
    *ret = s;
    return FO_OK;
}

void pn_kv_seq_shrink(struct pn_seq *s, uint32_t n_pages) {
    uint32_t need = pn_kv_pages(s->kv, s->len);
    if (n_pages < need) n_pages = need;
    if (n_pages < s->first_page) n_pages = s->first_page;
    while (s->n_pages > n_pages) s->kv->free_pages[s->kv->n_free++] = s->pages[--s->n_pages];
    if (s->len == 0 && s->n_pages == s->first_page) s->first_page = s->n_pages = 0;
}

void pn_kv_seq_slide(struct pn_seq *s) {
    struct pn_kv *kv = s->kv;
    if (!kv->window || s->len < kv->window) return;
    /* the next position, len, sees those from len - window + 1 on */
    for (uint32_t first = (s->len - kv->window + 1) / kv->page_tokens; s->first_page < first; s->first_page++) {
        uint32_t page = s->pages[s->first_page];
        if (s->n_pages < s->want_pages)
            s->pages[s->n_pages++] = page;
        else
            kv->free_pages[kv->n_free++] = page;
    }
}
