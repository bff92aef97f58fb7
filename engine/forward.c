/* A step of a model: see model.h. The batch becomes rows, the rows go through the layers die by die, and between two dies the residual
 * stream is carried over the host:
 *
 *     die 0   embedding, layers [0, a)   -> x [rows][n_embd] -> host -> die 1   layers [a, b)   -> ...   layers [.., n), logits -> host
 *
 * The same operations on the same numbers as on one die, so the logits are the same, bit for bit, when the dies' kernels are. */
#include <string.h>

#include "engine/model_impl.h"
#include "foundry/device.h"

/* Whether row j of an item is one whose state is wanted. */
static bool is_stated(const struct pn_batch_item *it, uint32_t j) {
    return it->want == PN_WANT_ALL_STATES || (it->want == PN_WANT_LAST_STATE && j + 1 == it->n) || (it->want == PN_WANT_FIRST_STATE && j == 0);
}

static int check_batch(const struct pn_model *m, const struct pn_batch_item *items, int n_items, struct fo_err *e) {
    uint64_t rows = 0, wanted = 0;
    if (n_items < 1 || (uint32_t)n_items > m->info.max_concurrent)
        return fo_fail(e, FO_EINVAL, "a step of %d sequences, expected 1 to %u", n_items, m->info.max_concurrent);
    for (int i = 0; i < n_items; i++) {
        const struct pn_batch_item *it = &items[i];
        if (it->seq->kv != &m->kv) return fo_fail(e, FO_EINTERNAL, "sequence %d of a step belongs to another model", i);
        for (int j = 0; j < i; j++)
            if (items[j].seq == it->seq) return fo_fail(e, FO_EINTERNAL, "sequence %d of a step is also its sequence %d", i, j);
        if (it->n == 0) return fo_fail(e, FO_EINVAL, "sequence %d of a step has no tokens", i);
        rows += it->n;
        wanted += it->want == PN_WANT_ALL ? it->n : it->want == PN_WANT_LAST;
    }
    if (rows > m->info.max_batch)
        return fo_fail_need(e, FO_EINVAL, rows, m->info.max_batch, "a step of %llu tokens, the most is %u", (unsigned long long)rows, m->info.max_batch);
    if (wanted > m->logit_rows)
        return fo_fail_need(e, FO_EINVAL, wanted, m->logit_rows, "logits of %llu rows are wanted, the model was opened for %u",
                            (unsigned long long)wanted, m->logit_rows);
    for (int i = 0; i < n_items; i++)
        for (uint32_t j = 0; j < items[i].n; j++)
            if ((uint32_t)items[i].tokens[j] >= m->h.n_vocab)
                return fo_fail(e, FO_EINVAL, "token %d at %u is outside the vocabulary of %u", items[i].tokens[j], j, m->h.n_vocab);
    return FO_OK;
}

/* Rows in item order: ids, positions, and which of them the output is asked for. Tokens go behind the sequences' ends, where they count
 * once the step has succeeded. */
static void fill_rows(struct pn_model *m, const struct pn_batch_item *items, int n_items, struct pn_step *s) {
    int row = 0, wanted = 0, stated = 0;
    for (int i = 0; i < n_items; i++) {
        const struct pn_batch_item *it = &items[i];
        memcpy(it->seq->tokens + it->seq->len, it->tokens, it->n * sizeof *it->seq->tokens);
        m->tokens[i] = it->seq->tokens;
        m->seqs[i] = (struct fo_attn_seq){ .row = row, .n = (int)it->n, .pos = (int32_t)it->seq->len, .pages = it->seq->pages };
        for (uint32_t j = 0; j < it->n; j++, row++) {
            m->ids[row] = it->tokens[j];
            m->pos[row] = (int32_t)(it->seq->len + j);
            if (it->want == PN_WANT_ALL || (it->want == PN_WANT_LAST && j + 1 == it->n)) m->wanted[wanted++] = row;
            if (is_stated(it, j)) m->stated[stated++] = row;
        }
    }
    *s = (struct pn_step){
        .h = &m->h,
        .n_rows = row,
        .ids = m->ids,
        .pos = m->pos,
        .batch = { .seqs = m->seqs, .n_seqs = n_items, .n_rows = row },
        .tokens = m->tokens,
        .wanted = m->wanted,
        .n_wanted = wanted,
        .stated = m->stated,
        .n_stated = stated,
        .routes = m->routes,
    };
}

/* The residual stream from one die to the next. */
static int carry(struct pn_model *m, const struct pn_part *from, const struct pn_part *to, int n_rows, struct fo_err *e) {
    uint64_t bytes = (uint64_t)n_rows * m->h.n_embd * sizeof(float);
    if (from->dev->sync(from->stream, e) || from->dev->download(from->dev, m->carried, from->buf.x, bytes, e) ||
        to->dev->upload(to->dev, to->buf.x, m->carried, bytes, e))
        return fo_wrap(e, "from die %s to die %s", from->dev->die.name, to->dev->die.name);
    return FO_OK;
}

static int compute(struct pn_model *m, struct pn_step *s, float **ret_logits, struct fo_err *e) {
    const struct pn_part *last = &m->part[m->n_parts - 1];
    for (const struct pn_part *p = m->part; p <= last; p++) {
        if (p > m->part && carry(m, p - 1, p, s->n_rows, e)) return e->code;
        s->stream = p->stream;
        s->first_layer = p->first_layer;
        s->end_layer = p->end_layer;
        s->kv = &p->kv;
        s->buf = p->buf;
        s->state = (struct pn_step_state){ p->states, pn_model_state_bytes(m, p->end_layer - p->first_layer), m->states_from, m->states_to };
        if (m->family->forward(m->weights, s, e)) return e->code;
    }
    if (last->dev->sync(last->stream, e)) return e->code;
    float *logits = last->buf.logits;
    if (m->host_logits && s->n_wanted) {
        uint64_t bytes = (uint64_t)s->n_wanted * m->h.n_vocab * sizeof *logits;
        if (last->dev->download(last->dev, m->host_logits, logits, bytes, e)) return e->code;
        logits = m->host_logits;
    }
    *ret_logits = logits;
    m->states = last->buf.h;
    if (!last->dev->weights_in_place && s->n_stated) {
        uint64_t bytes = (uint64_t)s->n_stated * m->h.n_embd * sizeof *m->carried;
        if (last->dev->download(last->dev, m->carried, last->buf.h, bytes, e)) return e->code;
        m->states = m->carried;
    }
    return FO_OK;
}

/* Each sequence's state is read from one block and written to another. */
static void take_states(struct pn_model *m, const struct pn_batch_item *items, int n_items) {
    for (int i = 0; i < n_items && m->states_to; i++) {
        m->states_from[i] = items[i].seq->state.block;
        m->states_to[i] = pn_states_take(&m->kv.states);
    }
}

/* The step has succeeded: its tokens count. */
static void commit(struct pn_model *m, const struct pn_batch_item *items, int n_items) {
    for (int i = 0; i < n_items; i++) {
        struct pn_seq *q = items[i].seq;
        q->len += items[i].n;
        pn_kv_seq_slide(q);
        if (m->states_to) pn_state_commit(q, m->states_to[i]);
    }
    for (int i = 0; i < n_items && m->states_to; i++) pn_state_keep(items[i].seq);
}

int pn_model_forward(struct pn_model *m, const struct pn_batch_item *items, int n_items, float **ret_logits, struct fo_err *e) {
    struct pn_step s;
    int reserved = 0;
    if (check_batch(m, items, n_items, e)) return e->code;
    for (; reserved < n_items; reserved++) {
        struct pn_seq *q = items[reserved].seq;
        m->pages_before[reserved] = q->n_pages;
        if (pn_seq_reserve(q, q->len + items[reserved].n, e)) goto undo;
        pn_kv_seq_touch(q, items[reserved].n);
    }
    fill_rows(m, items, n_items, &s);
    take_states(m, items, n_items);
    if (compute(m, &s, ret_logits, e) == FO_OK) {
        commit(m, items, n_items);
        return FO_OK;
    }
    for (int i = 0; i < n_items && m->states_to; i++) pn_states_put(&m->kv.states, m->states_to[i]);
undo:
    while (reserved-- > 0) pn_kv_seq_shrink(items[reserved].seq, m->pages_before[reserved]);
    return e->code;
}

const float *pn_model_states(const struct pn_model *m) {
    return m->states;
}
