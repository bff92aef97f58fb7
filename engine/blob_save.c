/* Writing a blob: the first errand holds the text and copies what is not shared of it, each further one a block of state or a page. */
#include <stdlib.h>
#include <string.h>

#include "engine/blob_impl.h"
#include "engine/engine_impl.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/prefix.h"
#include "engine/sched.h"
#include "foundry/base/hash.h"

/* --- which texts there are ------------------------------------------------------------------- */
struct looking {
    const char *tenant, *session;
    struct pn_text_info best;
    bool found;
    struct pn_text_info *list; /* the idle ones, or NULL */
    size_t n, cap;
    bool failed;
    uint32_t dropped;
};

static void newest(void *ctx, const struct pn_kept *k) {
    struct looking *x = ctx;
    if (!pn_same_name(k->tenant, x->tenant) || !pn_same_name(k->session, x->session) || k->seq->len == 0 || (x->found && k->used_ms < x->best.used_ms)) return;
    x->found = true;
    x->best = (struct pn_text_info){ .id = k->id, .tokens = k->seq->len, .used_ms = k->used_ms };
}

static void find_newest(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    (void)m;
    pn_prefix_each(p, newest, ctx);
}

int pn_served_text(struct pn_served *s, const char *tenant, const char *session, struct pn_text_info *ret, struct fo_err *e) {
    struct looking x = { .tenant = tenant, .session = session };
    if (pn_sched_errand(s->sched, find_newest, &x, e)) return e->code;
    if (!x.found) return fo_fail(e, FO_ENOENT, "nothing is kept of this session");
    *ret = x.best;
    return FO_OK;
}

static char *copy(const char *s, bool *failed) {
    char *c = s ? strdup(s) : NULL;
    *failed |= s && !c;
    return c;
}

static void note(void *ctx, const struct pn_kept *k) {
    struct looking *x = ctx;
    if (!k->idle || x->failed) return;
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 16;
        struct pn_text_info *list = realloc(x->list, cap * sizeof *list);
        if (!list) {
            x->failed = true;
            return;
        }
        x->list = list;
        x->cap = cap;
    }
    x->list[x->n++] = (struct pn_text_info){ .id = k->id, .tokens = k->seq->len, .sum = fo_sum64(0, k->seq->tokens, k->seq->len * sizeof *k->seq->tokens), .used_ms = k->used_ms,
                                             .tenant = copy(k->tenant, &x->failed), .session = copy(k->session, &x->failed) };
}

static void list_all(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    (void)m;
    pn_prefix_each(p, note, ctx);
}

void pn_texts_free(struct pn_text_info *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(list[i].tenant);
        free(list[i].session);
    }
    free(list);
}

int pn_served_texts(struct pn_served *s, struct pn_text_info **ret, size_t *ret_n, struct fo_err *e) {
    struct looking x = { 0 };
    int rc = pn_sched_errand(s->sched, list_all, &x, e);
    if (rc == 0 && x.failed) rc = fo_fail(e, FO_ENOMEM, "no memory for a list of sessions");
    if (rc) {
        pn_texts_free(x.list, x.n);
        return rc;
    }
    for (size_t i = 0; i < x.n / 2; i++) {
        struct pn_text_info t = x.list[i];
        x.list[i] = x.list[x.n - 1 - i];
        x.list[x.n - 1 - i] = t;
    }
    *ret = x.list;
    *ret_n = x.n;
    return FO_OK;
}

static void drop(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct looking *x = ctx;
    (void)m;
    x->dropped = pn_prefix_forget(p, x->tenant, x->session);
}

int pn_served_drop(struct pn_served *s, const char *tenant, const char *session, uint32_t *ret_n, struct fo_err *e) {
    struct looking x = { .tenant = tenant, .session = session };
    if (pn_sched_errand(s->sched, drop, &x, e)) return e->code;
    *ret_n = x.dropped;
    return FO_OK;
}

/* --- saving one ------------------------------------------------------------------------------ */
struct saving {
    struct pn_transfer t; /* first */
    uint64_t id;          /* of the text */
    const struct pn_seq *seq;
    struct pn_blob_head head;
    int32_t *tokens;
    unsigned char *kinds; /* [n_pages] 1 = small */
    uint32_t blocks[PN_MAX_MARKS + 1];
    bool has_tail; /* its last page is not full */
    unsigned char *tail, *buf; /* [a page], [a page or a block of state] */
    enum pn_section_kind what; /* the next to be copied to buf */
    uint32_t index;
};

static void match(void *ctx, const struct pn_kept *k) {
    struct saving *x = ctx;
    if (k->id == x->id) x->seq = k->seq;
}

/* Blocks of state in the order of a blob: each checkpoint's, and the newest, which may be the last checkpoint's too. */
static void number_blocks(struct saving *x, const struct pn_seq_state *st) {
    struct pn_blob_head *h = &x->head;
    for (uint32_t i = 0; i < st->n_marks; i++) {
        x->blocks[h->n_blocks] = st->marks[i].block;
        h->marks[h->n_marks++] = (struct pn_mark){ st->marks[i].len, h->n_blocks++ };
    }
    if (st->block == PN_NO_BLOCK) return;
    bool marked = st->n_marks > 0 && st->marks[st->n_marks - 1].block == st->block;
    if (!marked) x->blocks[h->n_blocks++] = st->block;
    h->newest = h->n_blocks - 1;
}

static int begin(struct saving *x, struct pn_model *m, struct pn_prefix *p, struct fo_err *e) {
    const struct pn_kv *kv = pn_model_kv(m);
    uint32_t page = kv->page_tokens;
    pn_prefix_each(p, match, x);
    if (!x->seq) return fo_fail(e, FO_ENOENT, "the text is not kept any more");
    uint32_t len = x->seq->len, last = len % page ? x->seq->pages[len / page] : 0;
    if (pn_prefix_hold(p, x->id, &x->t.hidden, e)) return e->code;
    const struct pn_seq *held = pn_prefix_held(p, x->t.hidden);
    x->has_tail = held->len % page != 0;
    x->head.n_tokens = held->len;
    x->head.first_page = held->first_page;
    x->head.n_pages = pn_kv_pages(kv, held->len) - held->first_page;
    number_blocks(x, &held->state);
    x->tokens = malloc(held->len * sizeof *x->tokens);
    x->kinds = calloc(1, x->head.n_pages + 1);
    if (!x->tokens || !x->kinds) return fo_fail(e, FO_ENOMEM, "no memory for %u tokens", held->len);
    memcpy(x->tokens, held->tokens, held->len * sizeof *x->tokens);
    for (uint32_t i = 0; i < x->head.n_pages; i++) {
        uint32_t at = held->first_page + i;
        x->kinds[i] = (at < held->n_pages ? held->pages[at] : last) >= kv->n_pages;
        x->head.n_small += x->kinds[i];
    }
    if (!x->has_tail) return FO_OK;
    return pn_blob_clear(m, last, len % page, e) ? e->code : (enum fo_code)pn_blob_move_page(m, last, PN_BLOB_OUT, x->tail, e);
}

static void begin_errand(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct saving *x = ctx;
    x->t.rc = begin(x, m, p, &x->t.err);
}

static void copy_errand(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct saving *x = ctx;
    const struct pn_seq *held = pn_transfer_seq(&x->t, p);
    if (!held) return;
    if (x->what == PN_SECTION_STATE) x->t.rc = pn_blob_move_state(m, x->blocks[x->index], PN_BLOB_OUT, x->buf, &x->t.err);
    else x->t.rc = pn_blob_move_page(m, held->pages[x->index], PN_BLOB_OUT, x->buf, &x->t.err);
}

static int put(const struct pn_blob_sink *to, const void *bytes, size_t n, struct fo_err *e) {
    return n ? to->write(to->ctx, bytes, n, e) : 0;
}

static int put_section(const struct pn_blob_sink *to, enum pn_section_kind kind, uint32_t index, const void *payload, uint64_t bytes, struct fo_err *e) {
    const struct pn_section_head h = { kind, index, bytes };
    uint64_t sum = pn_section_sum(&h, payload);
    int rc = put(to, &h, sizeof h, e);
    if (rc == 0) rc = put(to, payload, bytes, e);
    return rc ? rc : put(to, &sum, sizeof sum, e);
}

/* What follows the head. */
static int put_all(struct pn_sched *s, const struct pn_model *m, struct saving *x, const struct pn_blob_sink *to, struct fo_err *e) {
    const struct pn_blob_head *h = &x->head;
    const uint64_t page[] = { pn_blob_page_bytes(m, false), pn_blob_page_bytes(m, true) }, block = pn_blob_state_bytes(m);
    int rc = put_section(to, PN_SECTION_TOKENS, 0, x->tokens, h->n_tokens * sizeof *x->tokens, e);
    if (rc == 0 && h->n_pages > 0) rc = put_section(to, PN_SECTION_KINDS, 0, x->kinds, h->n_pages, e);
    x->what = PN_SECTION_STATE;
    for (x->index = 0; rc == 0 && x->index < h->n_blocks; x->index++) {
        rc = pn_transfer_run(s, copy_errand, &x->t, e);
        if (rc == 0) rc = put_section(to, PN_SECTION_STATE, x->index, x->buf, block, e);
    }
    x->what = PN_SECTION_PAGE;
    uint32_t end = h->first_page + h->n_pages, full = end - x->has_tail;
    for (x->index = h->first_page; rc == 0 && x->index < full; x->index++) {
        rc = pn_transfer_run(s, copy_errand, &x->t, e);
        if (rc == 0) rc = put_section(to, PN_SECTION_PAGE, x->index, x->buf, page[x->kinds[x->index - h->first_page]], e);
    }
    return rc == 0 && x->has_tail ? put_section(to, PN_SECTION_PAGE, full, x->tail, page[x->kinds[full - h->first_page]], e) : rc;
}

int pn_served_save(struct pn_served *s, uint64_t id, const struct pn_blob_sink *to, uint32_t *ret_tokens, struct fo_err *e) {
    const struct pn_model *m = s->model;
    uint64_t page = pn_blob_page_bytes(m, false), block = pn_blob_state_bytes(m);
    struct saving x = { .id = id, .head = { .magic = PN_BLOB_MAGIC, .version = PN_BLOB_VERSION, .head_bytes = sizeof x.head } };
    x.tail = malloc(page);
    x.buf = malloc(page > block ? page : block);
    int rc = x.tail && x.buf ? 0 : (int)fo_fail_need(e, FO_ENOMEM, 2 * page, 0, "no memory for two pages of a session");
    if (rc == 0) pn_print_of(m, &x.head.print);
    if (rc == 0) rc = pn_transfer_run(s->sched, begin_errand, &x.t, e);
    x.head.bytes = pn_blob_bytes(m, &x.head);
    pn_blob_seal(&x.head);
    if (rc == 0 && to->begin) rc = to->begin(to->ctx, x.head.bytes, x.head.n_tokens, e);
    if (rc == 0) rc = put(to, &x.head, sizeof x.head, e);
    if (rc == 0) rc = put_all(s->sched, m, &x, to, e);
    pn_transfer_end(s->sched, &x.t);
    if (rc == 0) *ret_tokens = x.head.n_tokens;
    free(x.tokens);
    free(x.kinds);
    free(x.tail);
    free(x.buf);
    return rc;
}
