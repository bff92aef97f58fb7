/* Sequences: the public half (model.h) over the page pool (kv.h). */
#include <assert.h>
#include <stdlib.h>

#include "engine/kv.h"
#include "engine/model.h"
#include "foundry/base/err.h"

void pn_seq_free(struct pn_seq *s) {
    if (!s) return;
    s->len = 0;
    pn_kv_seq_shrink(s, 0);
    if (s->kv->states.n_blocks > 0) pn_state_free(s);
    free(s);
}

uint32_t pn_seq_truncate(struct pn_seq *s, uint32_t n) {
    const struct pn_kv *kv = s->kv;
    if (n < s->len) {
        if (kv->states.n_blocks > 0) n = pn_state_mark(s, n);
        uint32_t page = n / kv->page_tokens;
        if (page >= s->first_page && kv->refs[s->pages[page]] > 1) n -= n % kv->page_tokens; /* others have it as it is */
        if (pn_kv_first_seen(kv, n) / kv->page_tokens < s->first_page) n = 0;
        if (kv->states.n_blocks > 0) pn_state_cut(s, n);
        s->len = n;
    }
    pn_kv_seq_shrink(s, 0);
    s->want_pages = s->n_pages;
    return s->len;
}

uint32_t pn_seq_drafts(const struct pn_seq *s, uint32_t n) {
    const struct pn_kv *kv = s->kv;
    if (kv->states.n_blocks > 0) return 0; /* there is no way back */
    /* Pages go when the last position on them is out of sight (pn_kv_seq_slide): all lengths must look at the same first page. */
    uint32_t left = kv->page_tokens - 1 - pn_kv_first_seen(kv, s->len + 1) % kv->page_tokens;
    if (!kv->window || s->len + 1 + n < kv->window) return n;
    if (s->len + 1 < kv->window) left += kv->window - 1 - (s->len + 1); /* the first of them see everything */
    return n < left ? n : left;
}

void pn_seq_take_back(struct pn_seq *s, uint32_t n) {
    assert(n <= s->len && pn_kv_first_seen(s->kv, n) / s->kv->page_tokens >= s->first_page);
    s->len = n;
}

uint32_t pn_seq_pages(const struct pn_seq *s) {
    return s->n_pages - s->first_page;
}

uint32_t pn_seq_len(const struct pn_seq *s) {
    return s->len;
}

const int32_t *pn_seq_tokens(const struct pn_seq *s) {
    return s->tokens;
}

int pn_seq_reserve(struct pn_seq *s, uint32_t n, struct fo_err *e) {
    struct pn_kv *kv = s->kv;
    if (n > kv->ctx_cap)
        return fo_fail_need(e, FO_EBUDGET, n, kv->ctx_cap, "%u tokens do not fit the context cap of %u", n, kv->ctx_cap);
    uint32_t need = pn_kv_pages(kv, n), want = need, most = s->first_page + kv->held_pages;
    /* Pages that others hold too are of no use when they fall out of the window. */
    for (uint32_t i = s->first_page; kv->window && i < s->n_pages; i++) most += kv->refs[s->pages[i]] > 1;
    if (need > most) need = most;
    if (need < s->n_pages) need = s->n_pages;
    bool small = pn_kv_takes_small(kv);
    uint64_t free_pages = pn_kv_room(kv, small);
    if (need - s->n_pages > free_pages)
        return fo_fail_need(e, FO_ENOMEM, need - s->n_pages, free_pages, "kv: %u more pages are needed and %llu are free", need - s->n_pages,
                            (unsigned long long)free_pages);
    if (pn_state_reserve(s, e)) return e->code;
    while (s->n_pages < need) {
        s->pages[s->n_pages++] = pn_kv_take(kv, small);
    }
    if (want > s->want_pages) s->want_pages = want;
    return FO_OK;
}

uint32_t pn_seq_chunk(const struct pn_seq *s, uint32_t n) {
    return pn_state_chunk(s, n);
}
