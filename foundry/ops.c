/* Shape checks in front of the device's slots. Every slot may trust what stands here: sizes are positive, buffers are there, types are
 * served, a stream's scratch suffices, ids and pages exist. n = 0 rows is allowed and does nothing. */
#include "foundry/ops.h"

#include <limits.h>
#include <stddef.h>

#include "foundry/base/err.h"
#include "foundry/device.h"

/* At most what an int counts, so that kernels may index rows and elements without thinking. */
static const int64_t MAX_DIM = INT_MAX / 8;

static int check_rows(const struct fo_stream *s, const char *op, int n, int64_t k, struct fo_err *e) {
    if (!s || n < 0 || k <= 0 || k > MAX_DIM)
        return fo_fail(e, FO_EINTERNAL, "%s: %d rows of %lld elements%s", op, n, (long long)k, s ? "" : " and no stream");
    if (n > s->max_rows)
        return fo_fail(e, FO_EINTERNAL, "%s: %d rows, the stream was opened for %d", op, n, s->max_rows);
    return FO_OK;
}

static int missing(const char *op, struct fo_err *e) {
    return fo_fail(e, FO_EINTERNAL, "%s: a buffer is missing", op);
}

static int check_table(const struct fo_stream *s, const char *op, const struct fo_tensor *w, struct fo_err *e) {
    if (!w || !w->data) return fo_fail(e, FO_EINTERNAL, "%s: a tensor is missing", op);
    if (!s->dev->serves(s->dev, w->type))
        return fo_fail(e, FO_EUNSUPPORTED, "%s: %s does not serve %s", op, s->dev->die.name, fo_dtype_name(w->type));
    if (w->ne[0] <= 0 || w->ne[1] <= 0 || w->ne[2] != 1 || w->ne[3] != 1 || w->ne[0] > MAX_DIM || w->ne[1] > MAX_DIM)
        return fo_fail(e, FO_EINTERNAL, "%s: not a matrix: [%lld, %lld, %lld, %lld]", op, (long long)w->ne[0], (long long)w->ne[1],
                       (long long)w->ne[2], (long long)w->ne[3]);
    if (fo_dtype_bytes(w->type, (uint64_t)w->ne[0]) == 0)
        return fo_fail(e, FO_EINTERNAL, "%s: rows of %lld are no multiple of a %s block", op, (long long)w->ne[0], fo_dtype_name(w->type));
    return FO_OK;
}

int fo_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e) {
    int rc = check_rows(s, "get_rows", n, 1, e);
    if (!rc) rc = check_table(s, "get_rows", table, e);
    if (rc || n == 0) return rc;
    if (!ids || !out) return missing("get_rows", e);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= table->ne[1])
            return fo_fail(e, FO_EINTERNAL, "get_rows: id %d, the table has %lld rows", (int)ids[i], (long long)table->ne[1]);
    return s->dev->get_rows(s, table, ids, n, out, e);
}

static int check_matmul(const struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y, struct fo_err *e) {
    if (!w || n_w <= 0 || !y) return missing("matmul", e);
    int64_t rows = 0;
    for (int i = 0; i < n_w; i++) {
        int rc = check_rows(s, "matmul", n, w[i] ? w[i]->ne[0] : 0, e);
        if (!rc) rc = check_table(s, "matmul", w[i], e);
        if (rc) return rc;
        if (w[i]->ne[0] != w[0]->ne[0] || w[i]->ne[0] > s->max_k)
            return fo_fail(e, FO_EINTERNAL, "matmul: [%lld, %lld] after [%lld, %lld] on a stream for rows of %lld", (long long)w[i]->ne[0],
                           (long long)w[i]->ne[1], (long long)w[0]->ne[0], (long long)w[0]->ne[1], (long long)s->max_k);
        if (n && !y[i]) return missing("matmul", e);
        rows += w[i]->ne[1];
        if (rows > MAX_DIM) return fo_fail(e, FO_EINTERNAL, "matmul: %lld rows of weights in one call", (long long)rows);
    }
    return n && !x ? missing("matmul", e) : FO_OK;
}

int fo_matmul_many(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y, struct fo_err *e) {
    int rc = check_matmul(s, w, n_w, x, n, y, e);
    return rc || n == 0 ? rc : s->dev->matmul_many(s, w, n_w, x, n, y, e);
}

int fo_matmul_fused(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                    struct fo_err *e) {
    int rc = check_matmul(s, w, n_w, x, n, y, e);
    if (rc || n == 0) return rc;
    if (f->norm && !f->work) return missing("matmul", e);
    if ((f->gated && (n_w != 2 || w[0]->ne[1] != w[1]->ne[1])) || (f->add_to && n_w != 1))
        return fo_fail(e, FO_EINTERNAL, "matmul: %d matrices do not make a %s", n_w, f->gated ? "gate" : "sum");
    if (s->dev->matmul_fused) return s->dev->matmul_fused(s, f, w, n_w, x, n, y, e);
    int64_t rows = w[0]->ne[1];
    if (f->norm && fo_rms_norm(s, x, f->norm, n, w[0]->ne[0], f->eps, f->work, e)) return e->code;
    if (fo_matmul_many(s, w, n_w, f->norm ? f->work : x, n, y, e) || (f->gated && fo_silu_mul(s, y[0], y[1], n, rows, y[0], e)) ||
        (f->add_to && fo_add(s, f->add_to, y[0], n, rows, false, f->add_to, e)))
        return e->code;
    return FO_OK;
}

int fo_matmul(struct fo_stream *s, const struct fo_tensor *w, const float *x, int n, float *y, struct fo_err *e) {
    return fo_matmul_many(s, &w, 1, x, n, &y, e);
}

int fo_rms_norm(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e) {
    int rc = check_rows(s, "rms_norm", n, k, e);
    if (rc || n == 0) return rc;
    if (!x || !weight || !out) return missing("rms_norm", e);
    return s->dev->rms_norm(s, x, weight, n, k, eps, out, e);
}

int fo_add(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e) {
    int rc = check_rows(s, "add", n, k, e);
    if (rc || n == 0) return rc;
    if (!a || !b || !out) return missing("add", e);
    return s->dev->add(s, a, b, n, k, broadcast_b, out, e);
}

int fo_add_rows(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out, struct fo_err *e) {
    int rc = check_rows(s, "add_rows", n, k, e);
    if (!rc) rc = check_rows(s, "add_rows", n_out, k, e);
    if (rc || n == 0) return rc;
    if (!a || !row || !scale || !out) return missing("add_rows", e);
    for (int i = 0; i < n; i++)
        if (row[i] < 0 || row[i] >= n_out || (i && row[i] <= row[i - 1]))
            return fo_fail(e, FO_EINTERNAL, "add_rows: row %d at %d, expected ascending ones below %d", (int)row[i], i, n_out);
    return s->dev->add_rows(s, a, row, scale, n, k, out, n_out, e);
}

int fo_silu_mul(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e) {
    int rc = check_rows(s, "silu_mul", n, k, e);
    if (rc || n == 0) return rc;
    if (!gate || !up || !out) return missing("silu_mul", e);
    return s->dev->silu_mul(s, gate, up, n, k, out, e);
}

int fo_rope(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e) {
    if (!r || !r->inv_freq) return missing("rope", e);
    if (r->head_dim <= 0 || r->n_rot <= 0 || r->n_rot % 2 || r->n_rot > r->head_dim || n_head <= 0 || (r->kind != FO_ROPE_PAIRS && r->kind != FO_ROPE_HALVES))
        return fo_fail(e, FO_EINTERNAL, "rope: kind %d turns %d of %d dimensions of %d heads", (int)r->kind, r->n_rot, r->head_dim, n_head);
    int rc = check_rows(s, "rope", n, (int64_t)n_head * r->head_dim, e);
    if (rc || n == 0) return rc;
    if (!x || !pos) return missing("rope", e);
    return s->dev->rope(s, r, x, pos, n, n_head, e);
}

uint64_t fo_kv_block_tokens(enum fo_dtype type, int page_tokens) {
    const struct fo_dtype_info *t = fo_dtype_info(type);
    uint64_t n = (uint64_t)page_tokens;
    return t && t->block > 1 ? (n + 7) / 8 * 8 : n;
}

uint64_t fo_kv_block_bytes(enum fo_dtype type, int head_dim, int page_tokens) {
    uint64_t row, bytes;
    if (head_dim <= 0 || page_tokens <= 0) return 0;
    row = fo_dtype_bytes(type, (uint64_t)head_dim);
    return __builtin_mul_overflow(row, fo_kv_block_tokens(type, page_tokens), &bytes) ? 0 : bytes;
}

static uint64_t page_bytes(const struct fo_kv_geom *g, enum fo_dtype k_type, enum fo_dtype v_type) {
    if (g->n_layer <= 0 || g->n_head_kv <= 0) return 0;
    uint64_t k = fo_kv_block_bytes(k_type, g->head_dim, g->page_tokens), v = fo_kv_block_bytes(v_type, g->head_dim, g->page_tokens), bytes;
    if (!k || !v || __builtin_add_overflow(k, v, &bytes) || __builtin_mul_overflow(bytes, (uint64_t)g->n_layer, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)g->n_head_kv, &bytes) || bytes > UINT64_MAX - 63)
        return 0;
    return (bytes + 63) / 64 * 64;
}

uint64_t fo_kv_page_bytes(const struct fo_kv_geom *g) {
    return page_bytes(g, g->k_type, g->v_type);
}

uint64_t fo_kv_small_bytes(const struct fo_kv_geom *g) {
    uint64_t page = fo_kv_page_bytes(g), small = page_bytes(g, g->k_floor, g->v_floor);
    if (fo_kv_block_bytes(g->k_floor, g->head_dim, g->page_tokens) > fo_kv_block_bytes(g->k_type, g->head_dim, g->page_tokens) ||
        fo_kv_block_bytes(g->v_floor, g->head_dim, g->page_tokens) > fo_kv_block_bytes(g->v_type, g->head_dim, g->page_tokens))
        return 0;
    return small < page ? small : 0;
}

uint32_t fo_kv_small(const struct fo_kv_geom *g) {
    uint64_t small = fo_kv_small_bytes(g);
    return small ? (uint32_t)(fo_kv_page_bytes(g) / small) : 0;
}

struct fo_kv_place fo_kv_place(const struct fo_kv_geom *g, uint32_t page) {
    uint64_t bytes = fo_kv_page_bytes(g), small = fo_kv_small_bytes(g), n = page - g->n_pages;
    if (page < g->n_pages || !small) return (struct fo_kv_place){ page * bytes, bytes, g->k_type, g->v_type };
    return (struct fo_kv_place){ n / (bytes / small) * bytes + n % (bytes / small) * small, small, g->k_floor, g->v_floor };
}

static int check_geom(const char *op, const struct fo_kv_geom *g, struct fo_err *e) {
    if (fo_kv_page_bytes(g) && g->window >= 0 && g->n_head > 0 && g->n_head % g->n_head_kv == 0) return FO_OK;
    return fo_fail(e, FO_EINTERNAL, "%s: K and V of %s and %s, %d layers, %d of %d heads, %d dimensions, pages of %d, window %d", op,
                   fo_dtype_name(g->k_type), fo_dtype_name(g->v_type), g->n_layer, g->n_head_kv, g->n_head, g->head_dim, g->page_tokens, g->window);
}

static int check_page(const char *op, const struct fo_kv_geom *g, uint64_t n_numbers, uint32_t page, struct fo_err *e) {
    if (page < n_numbers) return FO_OK;
    return fo_fail(e, FO_EINTERNAL, "%s: page %u of %llu and %llu small ones", op, (unsigned)page, (unsigned long long)g->n_pages,
                   (unsigned long long)(n_numbers - g->n_pages));
}

static int check_kv(const struct fo_stream *s, const char *op, const struct fo_kv_geom *g, const struct fo_attn_batch *b, int layer,
                    struct fo_err *e) {
    if (!g || !b || !g->pool || (b->n_seqs && !b->seqs)) return missing(op, e);
    if (check_geom(op, g, e)) return e->code;
    if (layer < 0 || layer >= g->n_layer) return fo_fail(e, FO_EINTERNAL, "%s: layer %d of %d", op, layer, g->n_layer);
    int rc = check_rows(s, op, b->n_rows, (int64_t)g->n_head * g->head_dim, e);
    if (rc) return rc;
    const uint64_t n_numbers = g->n_pages * (1 + (uint64_t)fo_kv_small(g));
    for (int i = 0; i < b->n_seqs; i++) {
        const struct fo_attn_seq *q = &b->seqs[i];
        if (q->row < 0 || q->n < 0 || q->row > b->n_rows - q->n || q->pos < 0 || (int64_t)q->pos + q->n > s->max_ctx || !q->pages)
            return fo_fail(e, FO_EINTERNAL, "%s: rows %d..+%d of %d at positions %d.. of %lld", op, q->row, q->n, b->n_rows, (int)q->pos,
                           (long long)s->max_ctx);
        for (int64_t p = 0; p < ((int64_t)q->pos + q->n + g->page_tokens - 1) / g->page_tokens; p++)
            if (check_page(op, g, n_numbers, q->pages[p], e)) return e->code;
    }
    return FO_OK;
}

int fo_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                struct fo_err *e) {
    int rc = check_kv(s, "kv_store", g, b, layer, e);
    if (rc || b->n_rows == 0) return rc;
    if (!k || !v) return missing("kv_store", e);
    return s->dev->kv_store(s, g, k, v, b, layer, e);
}

int fo_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
              struct fo_err *e) {
    int rc = check_kv(s, "attend", g, b, layer, e);
    if (rc || b->n_rows == 0) return rc;
    if (!q || !out) return missing("attend", e);
    return s->dev->attend(s, g, q, b, layer, out, e);
}

int fo_kv_requantise(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e) {
    if (!s || !g || !g->pool) return missing("kv_requantise", e);
    if (check_geom("kv_requantise", g, e)) return e->code;
    const uint64_t small = fo_kv_small(g), n_numbers = g->n_pages * (1 + small);
    if (check_page("kv_requantise", g, n_numbers, from, e) || check_page("kv_requantise", g, n_numbers, to, e)) return e->code;
    if (to < g->n_pages || to == from || (from < g->n_pages && (to - g->n_pages) / small == from && (to - g->n_pages) % small))
        return fo_fail(e, FO_EINTERNAL, "kv_requantise: page %u as page %u, with %llu pages and %llu small ones in the place of each", (unsigned)from, (unsigned)to,
                       (unsigned long long)g->n_pages, (unsigned long long)small);
    if (!s->dev->kv_requantise) return fo_fail(e, FO_EUNSUPPORTED, "kv_requantise: %s does not do it", s->dev->die.name);
    return s->dev->kv_requantise(s, g, from, to, e);
}
