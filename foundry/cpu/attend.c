/* KV pages and attention of the cpu device. Page layout: [layer][kv head] { K block | V block }, the blocks as in attn.h.
 *
 * A place may hold small pages, of the floor types, instead (ops.h): each page's number says what it is, and one sequence may have both kinds. So
 * a tile's queries are there in the form of each kind of K that it meets. Q4_0 is stored turned (attn.h): its queries are turned, and what V of it
 * adds up to has a sum of its own, which is turned back and added at the end of a span.
 *
 * The order of a query's sum is a matter of positions only, whatever the page size, the batch, the chunks of a prefill or the threads:
 *
 *     chunk   64 positions (FO_ATTN_CHUNK): scores, one step of the running softmax, weighted values. Scores never leave the first cache.
 *     span    SPAN positions: chunks from the left, into a partial result (largest score, sum of weights, weighted values)
 *     row     partial results of its spans from the left (add_span)
 *
 * A query is one head of one row; those that share a KV head are numbered row by row. The work is cut into tiles of TILE_QUERIES of them,
 * so that a chunk of K and V comes from memory once for all of a tile; where few tiles would leave threads idle (decoding), each span of a
 * tile is an item of its own, and who ends a tile's last one adds them up. Threads share the items, the long ones of a sequence first. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/cpu/cpu_impl.h"

#ifdef FO_DEBUG
enum { SPAN = FO_ATTN_CHUNK }; /* so that every test that is a little longer has several */
#else
enum { SPAN = 512 };
#endif

enum {
    TILE_QUERIES = 32,
    TILE_FLOATS = 8192,  /* of queries, and of outputs: heads of more than 256 dimensions have fewer queries a tile, more than this none */
    SPLIT_TILES = 64,    /* most tiles that are cut into spans */
    TILES_A_THREAD = 8,  /* with so many tiles for each thread they need not be cut */
    SPLIT_ROWS = 64,     /* spans of whole rows whose partial results there is room for */
    N_FORMS = 2,         /* pages, small pages */
    N_SUMS = 2,          /* of V as it is, of turned V */
    PART_EXTRA = 2       /* floats of a partial result besides the output: largest score, sum */
};

/* A thread's own. */
struct tile_scratch {
    _Alignas(64) unsigned char q[N_FORMS][TILE_FLOATS * sizeof(float) + TILE_QUERIES * 64]; /* queries as K of a page, and of a small page, wants them */
    _Alignas(64) float acc[N_SUMS][TILE_FLOATS]; /* [queries][head_dim] of the span: of V as it is, and of turned V; then [0] is both */
    unsigned char has[TILE_QUERIES];             /* which of these sums there is something in, a bit each */
    float m[TILE_QUERIES], sum[TILE_QUERIES];                                     /* of the span */
    float row_m[TILE_QUERIES], row_sum[TILE_QUERIES];                             /* of the spans before it */
};

uint64_t fo_cpu_attend_bytes(void) {
    return sizeof(struct tile_scratch);
}

uint64_t fo_cpu_attend_parts(int n_threads, int max_rows, int64_t max_k, int64_t max_ctx) {
    if (n_threads == 1 || max_ctx <= SPAN) return 0;
    uint64_t spans = ((uint64_t)max_ctx + SPAN - 1) / SPAN;
    spans = spans > SPLIT_ROWS ? SPLIT_ROWS : spans * (uint64_t)max_rows;
    return (spans > SPLIT_ROWS ? SPLIT_ROWS : spans) * (uint64_t)(max_k + max_k / 8);
}

/* --- pages ----------------------------------------------------------------------------------------------------------------------- */

static const enum fo_dtype kv_types[FO_N_KV_KINDS] = {
    [FO_KV_KIND_F32] = FO_F32, [FO_KV_KIND_F16] = FO_F16, [FO_KV_KIND_Q8_0] = FO_Q8_0, [FO_KV_KIND_Q4_0] = FO_Q4_0
};

static int kv_kind(enum fo_dtype type) {
    for (int i = 0; i < FO_N_KV_KINDS; i++)
        if (kv_types[i] == type) return i;
    return -1;
}

/* What a page is. */
struct kv_form {
    enum fo_kv_kind k_kind, v_kind;
    int k_tokens, v_tokens; /* of a block */
    uint64_t k_bytes, head_bytes;
    size_t q_bytes; /* of a query in its form */
    int queries;    /* which of a tile's scratch it meets */
};

struct kv_view {
    const struct fo_kv_geom *g;
    struct kv_form form[N_FORMS];
    uint64_t page_bytes, small_bytes;
    uint32_t n_small; /* in a place */
    int layer;
};

static int form_of(const struct fo_kv_geom *g, enum fo_dtype k_type, enum fo_dtype v_type, struct kv_form *ret, struct fo_err *e) {
    int k = kv_kind(k_type), v = kv_kind(v_type);
    if (k < 0 || v < 0) return fo_fail(e, FO_EUNSUPPORTED, "the cpu keeps no KV of type %s", fo_dtype_name(k < 0 ? k_type : v_type));
    uint64_t k_bytes = fo_kv_block_bytes(k_type, g->head_dim, g->page_tokens);
    *ret = (struct kv_form){ .k_kind = (enum fo_kv_kind)k,
                             .v_kind = (enum fo_kv_kind)v,
                             .k_tokens = (int)fo_kv_block_tokens(k_type, g->page_tokens),
                             .v_tokens = (int)fo_kv_block_tokens(v_type, g->page_tokens),
                             .k_bytes = k_bytes,
                             .head_bytes = k_bytes + fo_kv_block_bytes(v_type, g->head_dim, g->page_tokens),
                             .q_bytes = fo_query_bytes((enum fo_kv_kind)k, g->head_dim) };
    return FO_OK;
}

static int view_of(const struct fo_kv_geom *g, int layer, struct kv_view *ret, struct fo_err *e) {
    if (g->head_dim > TILE_FLOATS)
        return fo_fail(e, FO_EUNSUPPORTED, "the cpu attends with heads of at most %d dimensions, not %d", (int)TILE_FLOATS, g->head_dim);
    *ret = (struct kv_view){ .g = g, .page_bytes = fo_kv_page_bytes(g), .small_bytes = fo_kv_small_bytes(g), .n_small = fo_kv_small(g), .layer = layer };
    if (form_of(g, g->k_type, g->v_type, &ret->form[0], e) || (ret->n_small && form_of(g, g->k_floor, g->v_floor, &ret->form[1], e))) return e->code;
    ret->form[1].queries = ret->form[1].k_kind != ret->form[0].k_kind;
    return FO_OK;
}

static const struct kv_form *form_at(const struct kv_view *v, uint32_t page) {
    return &v->form[page >= v->g->n_pages];
}

static unsigned char *k_block(const struct kv_view *v, uint32_t page, int head) {
    uint64_t in_page = ((uint64_t)v->layer * (uint64_t)v->g->n_head_kv + (uint64_t)head) * form_at(v, page)->head_bytes;
    if (page < v->g->n_pages) return v->g->pool + page * v->page_bytes + in_page;
    uint64_t n = page - v->g->n_pages;
    return v->g->pool + n / v->n_small * v->page_bytes + n % v->n_small * v->small_bytes + in_page;
}

static unsigned char *v_block(const struct kv_view *v, uint32_t page, int head) {
    return k_block(v, page, head) + form_at(v, page)->k_bytes;
}

/* --- storing --------------------------------------------------------------------------------------------------------------------- */

struct store_job {
    const struct fo_attn_kernels *kern;
    struct tile_scratch *scratch; /* [threads] */
    struct kv_view kv;
    const struct fo_attn_batch *b;
    const float *k, *v; /* [n_rows][n_head_kv * head_dim] */
};

/* A head as its kind holds it: x itself, or turned in `line`. */
static const float *as_kept(enum fo_kv_kind kind, const float *x, int head_dim, float *line) {
    if (!fo_kv_turned(kind)) return x;
    if (x != line) memcpy(line, x, (size_t)head_dim * sizeof *line);
    fo_hadamard(line, head_dim);
    return line;
}

/* Units are the K and the V of each head: positions side by side may share a byte, so they are one thread's. */
static void store_part(void *arg, int lo, int hi, int thread) {
    const struct store_job *j = arg;
    const struct fo_kv_geom *g = j->kv.g;
    float *line = j->scratch[thread].acc[0];
    for (int unit = lo; unit < hi; unit++)
        for (int i = 0; i < j->b->n_seqs; i++) {
            const struct fo_attn_seq *seq = &j->b->seqs[i];
            for (int n = 0; n < seq->n; n++) {
                int head = unit / 2, pos = seq->pos + n, token = pos % g->page_tokens;
                int64_t at = ((int64_t)(seq->row + n) * g->n_head_kv + head) * g->head_dim;
                uint32_t page = seq->pages[pos / g->page_tokens];
                const struct kv_form *f = form_at(&j->kv, page);
                if (unit % 2)
                    j->kern->put_v[f->v_kind](as_kept(f->v_kind, j->v + at, g->head_dim, line), g->head_dim, v_block(&j->kv, page, head), f->v_tokens, token);
                else
                    j->kern->put_k[f->k_kind](as_kept(f->k_kind, j->k + at, g->head_dim, line), g->head_dim, k_block(&j->kv, page, head), f->k_tokens, token);
            }
        }
}

/* Overlays know whole groups only (attn.h). */
static const struct fo_attn_kernels *kernels(const struct cpu *c, const struct fo_kv_geom *g) {
    return g->page_tokens % FO_KV_GROUP ? &c->ref_attn : &c->kern.attn;
}

int fo_cpu_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                    struct fo_err *e) {
    struct cpu *c = cpu_of(s);
    struct store_job j = { .kern = kernels(c, g), .scratch = ((struct cpu_stream *)s)->tiles, .b = b, .k = k, .v = v };
    int rc = view_of(g, layer, &j.kv, e);
    if (rc) return rc;
    run(c, store_part, &j, 2 * g->n_head_kv, (uint64_t)b->n_rows * (uint64_t)g->n_head_kv * (uint64_t)g->head_dim * 2 * sizeof(float));
    return FO_OK;
}

/* --- storing again as a small page ----------------------------------------------------------------------------------------------- */

struct requantise_job {
    const struct fo_attn_kernels *kern;
    struct tile_scratch *scratch; /* [threads] */
    struct kv_view kv; /* layer: 0 */
    uint32_t from, to;
    bool in_place; /* blocks are read whole, into the thread's scratch, before their places are written */
};

static void unturn(enum fo_kv_kind kind, float *x, int head_dim) {
    if (fo_kv_turned(kind)) fo_hadamard(x, head_dim);
}

/* Units are the heads of all layers, in the order in which they lie. */
static void requantise_part(void *arg, int lo, int hi, int thread) {
    struct requantise_job *j = arg;
    const struct fo_kv_geom *g = j->kv.g;
    const struct kv_form *from = form_at(&j->kv, j->from), *to = form_at(&j->kv, j->to);
    float *x = j->scratch[thread].acc[0];
    void *whole = j->scratch[thread].q;
    for (int unit = lo; unit < hi; unit++) {
        const void *k = k_block(&j->kv, j->from, unit), *v = v_block(&j->kv, j->from, unit);
        unsigned char *k_to = k_block(&j->kv, j->to, unit), *v_to = v_block(&j->kv, j->to, unit);
        if (from->k_kind == to->k_kind) {
            memmove(k_to, k, from->k_bytes);
        } else {
            if (j->in_place) k = memcpy(whole, k, from->k_bytes);
            for (int t = 0; t < g->page_tokens; t++) {
                j->kern->get_k[from->k_kind](k, g->head_dim, from->k_tokens, t, x);
                unturn(from->k_kind, x, g->head_dim);
                j->kern->put_k[to->k_kind](as_kept(to->k_kind, x, g->head_dim, x), g->head_dim, k_to, to->k_tokens, t);
            }
        }
        if (from->v_kind == to->v_kind) {
            memmove(v_to, v, from->head_bytes - from->k_bytes);
        } else {
            if (j->in_place) v = memcpy(whole, v, from->head_bytes - from->k_bytes);
            for (int t = 0; t < g->page_tokens; t++) {
                j->kern->get_v[from->v_kind](v, g->head_dim, from->v_tokens, t, x);
                unturn(from->v_kind, x, g->head_dim);
                j->kern->put_v[to->v_kind](as_kept(to->v_kind, x, g->head_dim, x), g->head_dim, v_to, to->v_tokens, t);
            }
        }
    }
}

/* In its own place a small page is written behind the reader: head h of it ends no later than K, or V, of the page's head h. One thread then. */
int fo_cpu_kv_requantise(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e) {
    struct cpu *c = cpu_of(s);
    struct requantise_job j = { .kern = kernels(c, g), .scratch = ((struct cpu_stream *)s)->tiles, .from = from, .to = to };
    if (view_of(g, 0, &j.kv, e)) return e->code;
    const struct kv_form *f = form_at(&j.kv, from);
    j.in_place = from < g->n_pages && (to - g->n_pages) / j.kv.n_small == from;
    const uint64_t room = sizeof j.scratch->q;
    if (j.in_place && (f->k_bytes > room || f->head_bytes - f->k_bytes > room))
        return fo_fail(e, FO_EUNSUPPORTED, "kv_requantise: heads of %d dimensions, in pages of %d, in their own place", g->head_dim, g->page_tokens);
    int units = g->n_layer * g->n_head_kv;
    if (j.in_place)
        requantise_part(&j, 0, units, 0);
    else
        run(c, requantise_part, &j, units, j.kv.page_bytes);
    return FO_OK;
}

/* --- attending ------------------------------------------------------------------------------------------------------------------- */

/* Queries [first, first + n) of a sequence's rows under one KV head. */
struct tile {
    const struct fo_attn_seq *seq;
    int head, first, n;
    int first_span, n_spans; /* that any of them sees */
};

/* A tile whose spans are items. */
struct split_tile {
    struct tile t;
    int first_item;
    float *parts; /* [n_spans][n] partial results */
    atomic_int left;
};

struct attend_job {
    const struct fo_attn_kernels *kern;
    struct kv_view kv;
    const struct fo_attn_batch *b;
    const float *q; /* [n_rows][n_head * head_dim] */
    float *out;
    struct tile_scratch *scratch; /* [threads] */
    int group, tile_queries, n_items;
    int n_split; /* 0: items are whole tiles */
    struct split_tile *split; /* [n_split] */
};

static int pos_of(const struct attend_job *j, const struct tile *t, int i) {
    return t->seq->pos + (t->first + i) / j->group;
}

/* The first position that one at `pos` sees. */
static int sees_from(const struct attend_job *j, int pos) {
    int window = j->kv.g->window;
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Floats in front of query i in q and out. */
static int64_t query_at(const struct attend_job *j, const struct tile *t, int i) {
    const struct fo_kv_geom *g = j->kv.g;
    int64_t row = t->seq->row + (t->first + i) / j->group, head = (int64_t)t->head * j->group + (t->first + i) % j->group;
    return (row * g->n_head + head) * g->head_dim;
}

/* Up to FO_ATTN_HEADS queries from i on over positions [lo, hi) of one chunk, all of which they see. */
static void attend_chunk(const struct attend_job *j, const struct tile *t, struct tile_scratch *w, int i, int n_q, int lo, int hi, bool ahead) {
    const struct fo_kv_geom *g = j->kv.g;
    const int chunk = lo / FO_ATTN_CHUNK * FO_ATTN_CHUNK, P = g->page_tokens;
    _Alignas(64) float s[FO_ATTN_HEADS * FO_ATTN_CHUNK];
    float r[N_SUMS][FO_ATTN_HEADS];
    bool met[N_SUMS] = { false };
    for (int at = lo, n; at < hi; at += n) {
        n = hi - at < P - at % P ? hi - at : P - at % P;
        const uint32_t *page = &t->seq->pages[at / P];
        const struct kv_form *f = form_at(&j->kv, *page);
        struct fo_kv_run k = { .block = k_block(&j->kv, *page, t->head), .tokens = f->k_tokens, .lo = at % P, .hi = at % P + n, .at = at - chunk };
        if (ahead && form_at(&j->kv, page[1]) == f) k.ahead = k_block(&j->kv, page[1], t->head);
        j->kern->qk[f->k_kind](w->q[f->queries] + (size_t)i * f->q_bytes, n_q, g->head_dim, &k, g->scale, s);
    }
    for (int h = 0; h < n_q && hi - lo < FO_ATTN_CHUNK; h++) {
        for (int c = 0; c < lo - chunk; c++) s[h * FO_ATTN_CHUNK + c] = -INFINITY;
        for (int c = hi - chunk; c < FO_ATTN_CHUNK; c++) s[h * FO_ATTN_CHUNK + c] = -INFINITY;
    }
    j->kern->softmax(s, n_q, w->m + i, w->sum + i, r[0]);
    memcpy(r[1], r[0], sizeof r[1]);
    for (int at = lo, n; at < hi; at += n) {
        n = hi - at < P - at % P ? hi - at : P - at % P;
        const uint32_t *page = &t->seq->pages[at / P];
        const struct kv_form *f = form_at(&j->kv, *page);
        struct fo_kv_run v = { .block = v_block(&j->kv, *page, t->head), .tokens = f->v_tokens, .lo = at % P, .hi = at % P + n, .at = at - chunk };
        if (ahead && form_at(&j->kv, page[1]) == f) v.ahead = v_block(&j->kv, page[1], t->head);
        const int sum = fo_kv_turned(f->v_kind);
        j->kern->pv[f->v_kind](s, r[sum], n_q, g->head_dim, &v, w->acc[sum] + (int64_t)i * g->head_dim);
        for (int h = 0; h < n_q; h++) r[sum][h] = 1;
        met[sum] = true;
    }
    for (int sum = 0; sum < N_SUMS; sum++)
        for (int h = 0; h < n_q; h++) {
            if (met[sum]) {
                w->has[i + h] |= (unsigned char)(1 << sum);
            } else if (w->has[i + h] >> sum & 1) {
                float *out = w->acc[sum] + (int64_t)(i + h) * g->head_dim;
                for (int d = 0; d < g->head_dim; d++) out[d] *= r[sum][h];
            }
        }
}

/* All queries of a tile over one span: m, sum and acc of the scratch. */
static void attend_span(const struct attend_job *j, const struct tile *t, struct tile_scratch *w, int span) {
    const int head_dim = j->kv.g->head_dim, first = pos_of(j, t, 0), last = pos_of(j, t, t->n - 1), end = (span + 1) * SPAN;
    for (int i = 0; i < t->n; i++) w->m[i] = -INFINITY, w->sum[i] = 0, w->has[i] = 0;
    for (int sum = 0; sum < N_SUMS; sum++) memset(w->acc[sum], 0, (size_t)t->n * (size_t)head_dim * sizeof *w->acc[sum]);
    int chunk = sees_from(j, first) / FO_ATTN_CHUNK * FO_ATTN_CHUNK;
    if (chunk < span * SPAN) chunk = span * SPAN;
    for (; chunk < end && chunk <= last; chunk += FO_ATTN_CHUNK) {
        const int next = chunk + FO_ATTN_CHUNK;
        bool all = next <= first + 1 && chunk >= sees_from(j, last); /* every query sees all of it: rows need not be told apart */
        bool ahead = j->kv.g->page_tokens == FO_ATTN_CHUNK && next < end && next <= last;
        for (int i = 0, n_q; i < t->n; i += n_q) {
            n_q = t->n - i < FO_ATTN_HEADS ? t->n - i : FO_ATTN_HEADS;
            int lo = chunk, hi = next;
            if (!all) {
                int pos = pos_of(j, t, i), rest = j->group - (t->first + i) % j->group;
                if (n_q > rest) n_q = rest;
                if (lo < sees_from(j, pos)) lo = sees_from(j, pos);
                if (hi > pos + 1) hi = pos + 1;
            }
            if (lo < hi) attend_chunk(j, t, w, i, n_q, lo, hi, ahead && i == 0);
        }
    }
    for (int i = 0; i < t->n; i++) {
        if (!(w->has[i] & 2)) continue;
        float *plain = w->acc[0] + (int64_t)i * head_dim, *turned = w->acc[1] + (int64_t)i * head_dim;
        fo_hadamard(turned, head_dim);
        for (int d = 0; d < head_dim; d++) plain[d] += turned[d];
    }
}

/* out, *m and *sum of the spans before, and one more. Zeros and -INFINITY are those of none. */
static void add_span(float *out, float *m, float *sum, const float *acc, float acc_m, float acc_sum, int head_dim) {
    float top = acc_m > *m ? acc_m : *m, a = fo_ref_exp(*m - top), b = fo_ref_exp(acc_m - top);
    for (int d = 0; d < head_dim; d++) out[d] = out[d] * a + acc[d] * b;
    *sum = *sum * a + acc_sum * b;
    *m = top;
}

static void divide(float *out, const float *in, float by, int head_dim) {
    float inv = 1.0f / by;
    for (int d = 0; d < head_dim; d++) out[d] = in[d] * inv;
}

/* Query i's part of a span into its row of the output; spans come in order. */
static void take_span(const struct attend_job *j, const struct tile *t, int i, int span, const float *acc, float m, float sum, float *row_m, float *row_sum) {
    const int head_dim = j->kv.g->head_dim, pos = pos_of(j, t, i), first = sees_from(j, pos) / SPAN, last = pos / SPAN;
    float *out = j->out + query_at(j, t, i);
    if (span < first || span > last) return;
    if (first == last) {
        divide(out, acc, sum, head_dim);
        return;
    }
    if (span == first) {
        memset(out, 0, (size_t)head_dim * sizeof *out);
        *row_m = -INFINITY;
        *row_sum = 0;
    }
    add_span(out, row_m, row_sum, acc, m, sum, head_dim);
    if (span == last) divide(out, out, *row_sum, head_dim);
}

/* In the forms that pages of these spans want. */
static void make_queries(const struct attend_job *j, const struct tile *t, struct tile_scratch *w, int span, int n_spans) {
    const struct fo_kv_geom *g = j->kv.g;
    bool made[N_FORMS] = { false };
    int lo = sees_from(j, pos_of(j, t, 0)), hi = pos_of(j, t, t->n - 1);
    if (lo < span * SPAN) lo = span * SPAN;
    if (hi >= (span + n_spans) * SPAN) hi = (span + n_spans) * SPAN - 1;
    for (int p = lo / g->page_tokens; p <= hi / g->page_tokens; p++) {
        const struct kv_form *f = form_at(&j->kv, t->seq->pages[p]);
        if (made[f->queries]) continue;
        made[f->queries] = true;
        for (int i = 0; i < t->n; i++)
            j->kern->query[f->k_kind](as_kept(f->k_kind, j->q + query_at(j, t, i), g->head_dim, w->acc[0]), g->head_dim, w->q[f->queries] + (size_t)i * f->q_bytes);
    }
}

static void attend_tile(const struct attend_job *j, const struct tile *t, struct tile_scratch *w) {
    make_queries(j, t, w, t->first_span, t->n_spans);
    for (int span = t->first_span; span < t->first_span + t->n_spans; span++) {
        attend_span(j, t, w, span);
        for (int i = 0; i < t->n; i++)
            take_span(j, t, i, span, w->acc[0] + (int64_t)i * j->kv.g->head_dim, w->m[i], w->sum[i], &w->row_m[i], &w->row_sum[i]);
    }
}

/* One span of a tile into its partial results; after the last of them all are added up. */
static void attend_split(const struct attend_job *j, struct split_tile *s, int n, struct tile_scratch *w) {
    const struct tile *t = &s->t;
    const int head_dim = j->kv.g->head_dim;
    const int64_t size = head_dim + PART_EXTRA;
    make_queries(j, t, w, t->first_span + n, 1);
    attend_span(j, t, w, t->first_span + n);
    for (int i = 0; i < t->n; i++) {
        float *part = s->parts + ((int64_t)n * t->n + i) * size;
        memcpy(part, w->acc[0] + (int64_t)i * head_dim, (size_t)head_dim * sizeof *part);
        part[head_dim] = w->m[i];
        part[head_dim + 1] = w->sum[i];
    }
    if (atomic_fetch_sub(&s->left, 1) > 1) return;
    for (int i = 0; i < t->n; i++)
        for (int span = 0; span < t->n_spans; span++) {
            const float *part = s->parts + ((int64_t)span * t->n + i) * size;
            take_span(j, t, i, t->first_span + span, part, part[head_dim], part[head_dim + 1], &w->row_m[i], &w->row_sum[i]);
        }
}

static int seq_tiles(const struct attend_job *j, const struct fo_attn_seq *seq) {
    return (seq->n * j->group + j->tile_queries - 1) / j->tile_queries;
}

/* Tile n of all: sequence by sequence, a sequence's late rows first because they see most, its heads side by side. */
static struct tile tile_at(const struct attend_job *j, int n) {
    const struct fo_attn_seq *seq = j->b->seqs;
    for (int in_seq; n >= (in_seq = seq_tiles(j, seq) * j->kv.g->n_head_kv); seq++) n -= in_seq;
    int heads = j->kv.g->n_head_kv, first = (seq_tiles(j, seq) - 1 - n / heads) * j->tile_queries, left = seq->n * j->group - first;
    struct tile t = { .seq = seq, .head = n % heads, .first = first, .n = left < j->tile_queries ? left : j->tile_queries };
    t.first_span = sees_from(j, pos_of(j, &t, 0)) / SPAN;
    t.n_spans = pos_of(j, &t, t.n - 1) / SPAN + 1 - t.first_span;
    return t;
}

static void attend_part(void *arg, int lo, int hi, int thread) {
    struct attend_job *j = arg;
    struct tile_scratch *w = &j->scratch[thread];
    for (int item = lo; item < hi; item++) {
        if (!j->n_split) {
            struct tile t = tile_at(j, item);
            attend_tile(j, &t, w);
            continue;
        }
        int i = 0;
        while (i + 1 < j->n_split && j->split[i + 1].first_item <= item) i++;
        attend_split(j, &j->split[i], item - j->split[i].first_item, w);
    }
}

/* Makes the spans of all tiles items, if there is room for their partial results. */
static void split_tiles(struct attend_job *j, struct split_tile *split, int n_tiles, float *parts, uint64_t n_floats) {
    int n_items = 0;
    uint64_t used = 0;
    for (int i = 0; i < n_tiles; i++) {
        struct split_tile *s = &split[i];
        s->t = tile_at(j, i);
        s->first_item = n_items;
        s->parts = parts + used;
        atomic_init(&s->left, s->t.n_spans);
        n_items += s->t.n_spans;
        used += (uint64_t)s->t.n_spans * (uint64_t)s->t.n * (uint64_t)(j->kv.g->head_dim + PART_EXTRA);
        if (used > n_floats) return;
    }
    if (n_items == n_tiles) return;
    j->split = split;
    j->n_split = n_tiles;
    j->n_items = n_items;
}

int fo_cpu_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                  struct fo_err *e) {
    struct cpu *c = cpu_of(s);
    struct cpu_stream *cs = (struct cpu_stream *)s;
    struct split_tile split[SPLIT_TILES];
    struct attend_job j = { .kern = kernels(c, g), .b = b, .q = q, .out = out, .scratch = cs->tiles, .group = g->n_head / g->n_head_kv };
    int rc = view_of(g, layer, &j.kv, e);
    if (rc) return rc;
    int room = TILE_FLOATS / g->head_dim;
    j.tile_queries = room < TILE_QUERIES ? room : TILE_QUERIES;
    uint64_t bytes = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        const struct fo_attn_seq *seq = &b->seqs[i];
        j.n_items += seq_tiles(&j, seq) * g->n_head_kv;
        bytes += (uint64_t)seq->n * (uint64_t)(seq->pos + seq->n) * j.kv.page_bytes / (uint64_t)g->n_layer / (uint64_t)g->page_tokens;
    }
    if (j.n_items < fo_pool_threads(c->pool) * TILES_A_THREAD && j.n_items <= SPLIT_TILES) split_tiles(&j, split, j.n_items, cs->parts, cs->parts_floats);
    share(c, attend_part, &j, j.n_items, 1, bytes);
    return FO_OK;
}
