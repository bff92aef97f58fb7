/* KV pages and attention of the cpu device.
 *
 * A unit is one token row and one KV head with the query heads that share it. Positions are taken in chunks whose edges
 * are multiples of FO_ATTN_CHUNK, whatever the page size, the batch or the window, so the order is a matter of positions.
 * Rows are dealt from both ends, since late ones see more.
 *
 * Page layout: [layer][kv head] { K [page_tokens][head_dim] | V [page_tokens][head_dim] }. */
#include <math.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/cpu/cpu_impl.h"

static const enum fo_dtype kv_types[FO_N_KV_KINDS] = { [FO_KV_KIND_F32] = FO_F32, [FO_KV_KIND_F16] = FO_F16 };

static int kv_kind(enum fo_dtype type) {
    for (int i = 0; i < FO_N_KV_KINDS; i++)
        if (kv_types[i] == type) return i;
    return -1;
}

static int check_kv_types(const struct fo_kv_geom *g, struct fo_err *e) {
    enum fo_dtype bad = kv_kind(g->k_type) < 0 ? g->k_type : g->v_type;
    return kv_kind(bad) >= 0 ? FO_OK : fo_fail(e, FO_EUNSUPPORTED, "the cpu keeps no KV of type %s", fo_dtype_name(bad));
}

struct kv_view {
    const struct fo_kv_geom *g;
    uint64_t page_bytes, k_row, v_row, head_bytes;
    int layer;
};

static struct kv_view kv_view(const struct fo_kv_geom *g, int layer) {
    uint64_t k = fo_dtype_bytes(g->k_type, (uint64_t)g->head_dim), v = fo_dtype_bytes(g->v_type, (uint64_t)g->head_dim);
    return (struct kv_view){ .g = g, .page_bytes = fo_kv_page_bytes(g), .k_row = k, .v_row = v, .head_bytes = (k + v) * (uint64_t)g->page_tokens, .layer = layer };
}

/* K of position `in_page` of a page; V of position 0 lies page_tokens rows of K behind K of position 0. */
static unsigned char *kv_k(const struct kv_view *v, uint32_t page, int head, int in_page) {
    uint64_t block = (uint64_t)v->layer * (uint64_t)v->g->n_head_kv + (uint64_t)head;
    return v->g->pool + page * v->page_bytes + block * v->head_bytes + (uint64_t)in_page * v->k_row;
}

static unsigned char *kv_v(const struct kv_view *v, uint32_t page, int head, int in_page) {
    return kv_k(v, page, head, 0) + (uint64_t)v->g->page_tokens * v->k_row + (uint64_t)in_page * v->v_row;
}

static void store_row(const struct fo_cpu_kernels *kern, enum fo_dtype type, const float *in, void *out, int n) {
    if (type == FO_F32)
        memcpy(out, in, (size_t)n * sizeof *in);
    else
        kern->to_f16(in, out, n);
}

struct attn_job {
    const struct fo_cpu_kernels *kern;
    struct kv_view kv;
    const struct fo_attn_batch *b;
    const float *q, *k, *v; /* [n_rows][heads * head_dim] */
    float *out;
};

/* The sequence that a row belongs to; NULL for a row of none, whose output is left alone. */
static const struct fo_attn_seq *seq_of(const struct fo_attn_batch *b, int row) {
    for (int i = 0; i < b->n_seqs; i++)
        if (row >= b->seqs[i].row && row < b->seqs[i].row + b->seqs[i].n) return &b->seqs[i];
    return NULL;
}

static void store_part(void *arg, int lo, int hi, int thread) {
    (void)thread;
    const struct attn_job *j = arg;
    const struct fo_kv_geom *g = j->kv.g;
    for (int row = lo; row < hi; row++) {
        const struct fo_attn_seq *seq = seq_of(j->b, row);
        if (!seq) continue;
        int pos = seq->pos + (row - seq->row);
        uint32_t page = seq->pages[pos / g->page_tokens];
        for (int h = 0; h < g->n_head_kv; h++) {
            int64_t at = ((int64_t)row * g->n_head_kv + h) * g->head_dim;
            store_row(j->kern, g->k_type, j->k + at, kv_k(&j->kv, page, h, pos % g->page_tokens), g->head_dim);
            store_row(j->kern, g->v_type, j->v + at, kv_v(&j->kv, page, h, pos % g->page_tokens), g->head_dim);
        }
    }
}

int fo_cpu_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                    struct fo_err *e) {
    int rc = check_kv_types(g, e);
    if (rc) return rc;
    struct cpu *c = cpu_of(s);
    struct attn_job j = { .kern = &c->kern, .kv = kv_view(g, layer), .b = b, .k = k, .v = v };
    run(c, store_part, &j, b->n_rows, (uint64_t)b->n_rows * (uint64_t)g->n_head_kv * (uint64_t)g->head_dim * 2 * sizeof(float));
    return FO_OK;
}

/* One position's query heads of one KV head, n_q of them, over positions [from, pos]. */
static void attend_heads(const struct attn_job *j, const struct fo_attn_seq *seq, int pos, int head, const float *q, int n_q, float *out) {
    const struct fo_kv_geom *g = j->kv.g;
    int from = g->window && pos - g->window + 1 > 0 ? pos - g->window + 1 : 0;
    float m[FO_ATTN_HEADS], sum[FO_ATTN_HEADS] = { 0 }, r[FO_ATTN_HEADS];
    _Alignas(64) float s[FO_ATTN_CHUNK * FO_ATTN_HEADS];
    for (int h = 0; h < FO_ATTN_HEADS; h++) m[h] = -INFINITY;
    memset(out, 0, (size_t)n_q * (size_t)g->head_dim * sizeof *out);
    for (int chunk = from / FO_ATTN_CHUNK * FO_ATTN_CHUNK; chunk <= pos; chunk += FO_ATTN_CHUNK) {
        int lo = from > chunk ? from : chunk, hi = pos + 1 < chunk + FO_ATTN_CHUNK ? pos + 1 : chunk + FO_ATTN_CHUNK;
        if (hi - lo < FO_ATTN_CHUNK || n_q < FO_ATTN_HEADS)
            for (int i = 0; i < FO_ATTN_CHUNK * FO_ATTN_HEADS; i++) s[i] = -INFINITY;
        for (int at = lo, n; at < hi; at += n) {
            int in_page = at % g->page_tokens;
            n = hi - at < g->page_tokens - in_page ? hi - at : g->page_tokens - in_page;
            j->kern->qk[kv_kind(g->k_type)](q, n_q, g->head_dim, kv_k(&j->kv, seq->pages[at / g->page_tokens], head, in_page), n, g->scale,
                                            s + (at - chunk) * FO_ATTN_HEADS);
        }
        j->kern->softmax(s, m, sum, r);
        if (chunk > from)
            for (int h = 0; h < n_q; h++)
                if (r[h] != 1.0f) j->kern->scale(out + h * g->head_dim, g->head_dim, r[h]);
        for (int at = lo, n; at < hi; at += n) {
            int in_page = at % g->page_tokens;
            n = hi - at < g->page_tokens - in_page ? hi - at : g->page_tokens - in_page;
            j->kern->pv[kv_kind(g->v_type)](s + (at - chunk) * FO_ATTN_HEADS, n_q, g->head_dim,
                                            kv_v(&j->kv, seq->pages[at / g->page_tokens], head, in_page), n, out);
        }
    }
    for (int h = 0; h < n_q; h++) j->kern->scale(out + h * g->head_dim, g->head_dim, 1.0f / sum[h]);
}

static void attend_part(void *arg, int lo, int hi, int thread) {
    (void)thread;
    const struct attn_job *j = arg;
    const struct fo_kv_geom *g = j->kv.g;
    int group = g->n_head / g->n_head_kv, n = j->b->n_rows;
    for (int unit = lo; unit < hi; unit++) {
        int i = unit / g->n_head_kv, head = unit % g->n_head_kv;
        int row = i % 2 ? n - 1 - i / 2 : i / 2;
        const struct fo_attn_seq *seq = seq_of(j->b, row);
        if (!seq) continue;
        for (int h = 0; h < group; h += FO_ATTN_HEADS) {
            int64_t at = ((int64_t)row * g->n_head + head * group + h) * g->head_dim;
            attend_heads(j, seq, seq->pos + (row - seq->row), head, j->q + at, group - h < FO_ATTN_HEADS ? group - h : FO_ATTN_HEADS, j->out + at);
        }
    }
}

int fo_cpu_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                  struct fo_err *e) {
    int rc = check_kv_types(g, e);
    if (rc) return rc;
    struct cpu *c = cpu_of(s);
    struct attn_job j = { .kern = &c->kern, .kv = kv_view(g, layer), .b = b, .q = q, .out = out };
    uint64_t bytes = 0;
    for (int i = 0; i < b->n_seqs; i++)
        bytes += (uint64_t)b->seqs[i].n * (uint64_t)(b->seqs[i].pos + b->seqs[i].n) * (j.kv.k_row + j.kv.v_row) * (uint64_t)g->n_head_kv;
    run(c, attend_part, &j, b->n_rows * g->n_head_kv, bytes);
    return FO_OK;
}
