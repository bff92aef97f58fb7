/* Reading a blob: its head and tokens are checked, then one errand makes room for all of it, and each section goes to its place in one of its own. */
#include <stdlib.h>

#include "engine/blob_impl.h"
#include "engine/engine_impl.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/prefix.h"
#include "engine/sched.h"

struct restoring {
    struct pn_transfer t; /* first */
    const char *tenant, *session;
    bool spare;
    struct pn_blob_head head;
    int32_t *tokens;
    unsigned char *kinds, *buf;
    enum pn_section_kind what; /* where buf goes */
    uint32_t index;
};

static void room_errand(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct restoring *x = ctx;
    const struct pn_blob_head *h = &x->head;
    const struct pn_text_shape shape = { .tokens = x->tokens, .n = h->n_tokens, .first_page = h->first_page, .n_blocks = h->n_blocks, .newest = h->newest, .marks = h->marks, .n_marks = h->n_marks, .kinds = x->kinds, .n_small = h->n_small, .spare = x->spare };
    (void)m;
    x->t.rc = pn_prefix_room(p, x->tenant, x->session, &shape, &x->t.hidden, &x->t.err);
}

static void fill_errand(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct restoring *x = ctx;
    const struct pn_seq *seq = pn_transfer_seq(&x->t, p);
    const struct pn_blob_head *h = &x->head;
    if (!seq) return;
    if (x->what == PN_SECTION_PAGE) {
        x->t.rc = pn_blob_move_page(m, seq->pages[x->index], PN_BLOB_IN, x->buf, &x->t.err);
    } else {
        uint32_t block = seq->state.block;
        for (uint32_t i = 0; i < h->n_marks; i++)
            if (h->marks[i].block == x->index) block = seq->state.marks[i].block;
        x->t.rc = pn_blob_move_state(m, block, PN_BLOB_IN, x->buf, &x->t.err);
    }
}

static void show_errand(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct restoring *x = ctx;
    (void)m;
    x->t.rc = 0;
    if (!pn_prefix_show(p, x->t.hidden)) pn_transfer_gave_way(&x->t);
}

static int get_section(const struct pn_blob_source *from, enum pn_section_kind kind, uint32_t index, void *payload, uint64_t bytes, struct fo_err *e) {
    struct pn_section_head h;
    uint64_t sum;
    int rc = from->read(from->ctx, &h, sizeof h, e);
    if (rc == 0 && (h.kind != kind || h.index != index || h.bytes != bytes)) rc = fo_fail(e, FO_EFORMAT, "section %u/%u is not where it should be", kind, index);
    if (rc == 0 && bytes > 0) rc = from->read(from->ctx, payload, bytes, e);
    if (rc == 0) rc = from->read(from->ctx, &sum, sizeof sum, e);
    if (rc == 0 && sum != pn_section_sum(&h, payload)) rc = fo_fail(e, FO_EFORMAT, "section %u/%u was altered", kind, index);
    return rc;
}

/* What comes before memory of the model is taken. */
static int get_front(const struct pn_model *m, struct restoring *x, const struct pn_blob_source *from, const char **ret_field, struct fo_err *e) {
    struct pn_blob_head *h = &x->head;
    int rc = from->read(from->ctx, h, sizeof *h, e);
    if (rc == 0) rc = pn_blob_check(m, h, ret_field, e);
    if (rc != 0) return rc;
    x->tokens = malloc(h->n_tokens * sizeof *x->tokens);
    x->kinds = calloc(1, h->n_pages + 1);
    if (!x->tokens || !x->kinds) return fo_fail(e, FO_ENOMEM, "no memory for %u tokens", h->n_tokens);
    rc = get_section(from, PN_SECTION_TOKENS, 0, x->tokens, h->n_tokens * sizeof *x->tokens, e);
    for (uint32_t i = 0; rc == 0 && i < h->n_tokens; i++)
        if (x->tokens[i] < 0 || (uint32_t)x->tokens[i] >= pn_model_info(m)->n_vocab) rc = fo_fail(e, FO_EFORMAT, "token %u is %d, and the vocabulary has %u", i, x->tokens[i], pn_model_info(m)->n_vocab);
    if (rc == 0 && h->n_pages > 0) rc = get_section(from, PN_SECTION_KINDS, 0, x->kinds, h->n_pages, e);
    uint32_t n_small = 0;
    for (uint32_t i = 0; rc == 0 && i < h->n_pages; i++) {
        if (x->kinds[i] > 1) rc = fo_fail(e, FO_EFORMAT, "page %u is of kind %u, which is none", i, x->kinds[i]);
        n_small += x->kinds[i] == 1;
    }
    return rc == 0 && n_small != h->n_small ? (int)fo_fail(e, FO_EFORMAT, "%u pages are small, and its head says %u", n_small, h->n_small) : rc;
}

/* Then the rest, into the memory that was taken. */
static int get_rest(struct pn_sched *s, const struct pn_model *m, struct restoring *x, const struct pn_blob_source *from, struct fo_err *e) {
    const struct pn_blob_head *h = &x->head;
    const uint64_t page[] = { pn_blob_page_bytes(m, false), pn_blob_page_bytes(m, true) }, block = pn_blob_state_bytes(m);
    int rc = 0;
    x->what = PN_SECTION_STATE;
    for (x->index = 0; rc == 0 && x->index < h->n_blocks; x->index++) {
        rc = get_section(from, PN_SECTION_STATE, x->index, x->buf, block, e);
        if (rc == 0) rc = pn_transfer_run(s, fill_errand, &x->t, e);
    }
    x->what = PN_SECTION_PAGE;
    for (x->index = h->first_page; rc == 0 && x->index < h->first_page + h->n_pages; x->index++) {
        rc = get_section(from, PN_SECTION_PAGE, x->index, x->buf, page[x->kinds[x->index - h->first_page]], e);
        if (rc == 0) rc = pn_transfer_run(s, fill_errand, &x->t, e);
    }
    return rc == 0 && from->end ? from->end(from->ctx, e) : rc;
}

int pn_served_restore(struct pn_served *s, const char *tenant, const char *session, const struct pn_blob_source *from, uint32_t *ret_tokens, const char **ret_field,
                      struct fo_err *e) {
    const struct pn_model *m = s->model;
    uint64_t page = pn_blob_page_bytes(m, false), block = pn_blob_state_bytes(m);
    struct restoring x = { .tenant = tenant, .session = session, .spare = from->spare };
    x.buf = malloc(page > block ? page : block);
    int rc = x.buf ? get_front(m, &x, from, ret_field, e) : (int)fo_fail_need(e, FO_ENOMEM, page, 0, "no memory for a page of a session");
    if (rc == 0) rc = pn_transfer_run(s->sched, room_errand, &x.t, e);
    if (rc == 0) rc = get_rest(s->sched, m, &x, from, e);
    if (rc == 0) rc = pn_transfer_run(s->sched, show_errand, &x.t, e);
    if (rc != 0) pn_transfer_end(s->sched, &x.t);
    if (rc == 0) *ret_tokens = x.head.n_tokens;
    free(x.tokens);
    free(x.kinds);
    free(x.buf);
    return rc;
}
