/* Sequences: the public half (model.h) over the page pool (kv.h). */
#include <stdlib.h>

#include "engine/kv.h"
#include "engine/model.h"
#include "foundry/base/err.h"

void pn_seq_free(struct pn_seq *s) {
    if (!s) return;
    s->len = 0;
    pn_kv_seq_shrink(s, 0);
    free(s);
}

uint32_t pn_seq_truncate(struct pn_seq *s, uint32_t n) {
    const struct pn_kv *kv = s->kv;
    if (n < s->len) {
        uint32_t sees = kv->window && n >= kv->window ? n - kv->window + 1 : 0; /* from where the token after the cut looks */
        s->len = sees / kv->page_tokens < s->first_page ? 0 : n;
    }
    pn_kv_seq_shrink(s, 0);
    s->want_pages = s->n_pages;
    return s->len;
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
    uint32_t need = pn_kv_pages(kv, n), want = need;
    if (need > s->first_page + kv->held_pages) need = s->first_page + kv->held_pages;
    if (need < s->n_pages) need = s->n_pages;
    if (need - s->n_pages > kv->n_free)
        return fo_fail_need(e, FO_ENOMEM, need - s->n_pages, kv->n_free, "kv: %u more pages are needed and %u are free", need - s->n_pages,
                            kv->n_free);
    while (s->n_pages < need) s->pages[s->n_pages++] = kv->free_pages[--kv->n_free];
    if (want > s->want_pages) s->want_pages = want;
    return FO_OK;
}
