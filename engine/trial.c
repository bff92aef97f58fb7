/* The first steps, before a model serves: see model.h. A die's driver may allocate with the first launch of a kernel or with its largest one;
 * after the largest steps it has nothing left to allocate, and one that cannot compute them is found out by the load and not by a user. On a host
 * die nothing is allocated by a step (tests/engine/test_model.c), so that one token shows that it computes; what there is to find out is whether
 * the memory of a step, which the system has only promised so far, is there: it is touched. */
#include <stdlib.h>

#include "engine/model_impl.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

enum { OS_PAGE_BYTES = 4096 };

static void touch(volatile unsigned char *block, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += OS_PAGE_BYTES) block[at] = block[at];
}

/* A sequence that stands as deep in its context as it may with n tokens still to come. What lies before them was never computed: its values do
 * not matter, and attention takes as long over them as over any. Recurrent state must belong to its tokens, so there it starts empty. */
static int deep_seq(struct pn_model *m, uint32_t n, struct pn_seq **ret, struct fo_err *e) {
    const struct pn_kv *kv = &m->kv;
    if (pn_seq_new(m, ret, e)) return e->code;
    struct pn_seq *s = *ret;
    if (kv->states.n_blocks > 0) return FO_OK;
    s->len = kv->ctx_cap - n;
    s->first_page = s->n_pages = pn_kv_first_seen(kv, s->len) / kv->page_tokens;
    return FO_OK;
}

/* One step: n_seqs sequences, the first with n tokens, at the end of its context, and the others with one each. */
static int try_step(struct pn_model *m, uint32_t n_seqs, uint32_t n, enum pn_want want, struct fo_err *e) {
    static const int32_t tokens[1] = { 0 };
    struct pn_batch_item *items = calloc(n_seqs, sizeof *items);
    int32_t *many = calloc(n, sizeof *many);
    float *ignored;
    int rc = items && many ? FO_OK : fo_fail_need(e, FO_ENOMEM, n_seqs * sizeof *items + n * sizeof *many, 0, "no memory to try a step");
    for (uint32_t i = 0; rc == FO_OK && i < n_seqs; i++) {
        items[i] = (struct pn_batch_item){ .tokens = i ? tokens : many, .n = i ? 1 : n, .want = i ? PN_WANT_LAST : want };
        rc = i ? pn_seq_new(m, &items[i].seq, e) : deep_seq(m, n, &items[i].seq, e);
        if (rc == FO_OK) rc = pn_seq_reserve(items[i].seq, items[i].seq->len + items[i].n, e);
    }
    if (rc == FO_OK) rc = pn_model_forward(m, items, (int)n_seqs, &ignored, e);
    for (uint32_t i = 0; items && i < n_seqs; i++) pn_seq_free(items[i].seq);
    free(items);
    free(many);
    return rc;
}

int pn_model_try(struct pn_model *m, struct fo_err *e) {
    const struct pn_model_info *i = &m->info;
    bool host = true;
    for (int p = 0; p < m->n_parts; p++) {
        const struct pn_part *part = &m->part[p];
        host = host && part->dev->weights_in_place;
        if (part->dev->weights_in_place) touch(part->block[PN_COMPUTE].data, part->block[PN_COMPUTE].bytes);
    }
    if (host) return try_step(m, 1, 1, PN_WANT_LAST, e) || pn_model_state(m, e) ? fo_wrap(e, "the first step") : FO_OK;
    uint32_t n_seqs = i->max_concurrent < i->max_sessions ? i->max_concurrent : i->max_sessions;
    if (n_seqs > 1 && m->kv.n_pages < (uint64_t)m->kv.held_pages + n_seqs - 1) n_seqs = 1; /* a pool that is promised more than once */
    uint32_t rows = i->max_batch - (n_seqs - 1), wanted = m->logit_rows - (n_seqs - 1);
    if (rows > i->ctx_cap) rows = i->ctx_cap;
    if (wanted > rows) wanted = rows;
    if (try_step(m, n_seqs, rows, PN_WANT_LAST, e) || try_step(m, n_seqs, wanted, PN_WANT_ALL, e) || pn_model_state(m, e))
        return fo_wrap(e, "the first steps (the largest is %u tokens of %u sequences at %u)", rows + n_seqs - 1, n_seqs, i->ctx_cap);
    return FO_OK;
}
