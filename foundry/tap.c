/* The tap: see tap.h. Every slot has the same five steps:
 *
 *     fetch     FO_TAP_SAME: the inputs, from the subject to the host, before the op can overwrite them
 *     compute   the subject's slot
 *     feed      FO_TAP_SAME: the inputs, rounded as the op rounds them, to the reference's copies of these buffers
 *     compute   the reference, through ops.h, since it need not have the slots that the subject has
 *     show      both results side by side to the caller
 *
 * A block of the subject has a mirror on the reference, of the same size and allocated when it is first touched; an address in a block is the
 * same offset in its mirror, one in no block is read in place by both. The pages of KV have another size where the reference keeps
 * another type. */
#include "foundry/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/cpu/kernels.h"
#include "foundry/device.h"
#include "foundry/ops.h"

struct block {
    struct block *next;
    unsigned char *sub, *ref; /* ref: NULL = not yet */
    uint64_t bytes, ref_bytes;
    bool constant; /* weights: uploaded once, to both */
};

/* Host memory that grows with what passes. */
struct line {
    float *at;
    uint64_t cap_bytes;
};

struct tap {
    struct fo_device dev;
    struct fo_device *sub, *ref;
    struct fo_cpu_kernels kern; /* the reference's conversions of activations */
    enum fo_tap_mode mode;
    fo_tap_fn *fn;
    void *ctx;
    struct block *blocks;
    struct line a, b, c, k, v, got, want, norms, rounded;
    void *spare; /* a block of the subject, for the parts of what it fuses */
    uint64_t spare_bytes;
};

struct tap_stream {
    struct fo_stream base;
    struct fo_stream *sub, *ref;
};

static struct tap *tap_of(const struct fo_stream *s) {
    return s->dev->priv;
}
static struct fo_stream *sub_of(const struct fo_stream *s) {
    return ((const struct tap_stream *)s)->sub;
}
static struct fo_stream *ref_of(const struct fo_stream *s) {
    return ((const struct tap_stream *)s)->ref;
}

/* --- tolerances ---------------------------------------------------------------------------------------------------------------- */

/* With the inputs equal and the same things rounded, what is left is float32: another order of a sum, another exp. A sum of k products differs
 * by about sqrt(k) * 1e-7 of the row's RMS, k up to 30,000; attend has the error of its scores in an exponent. Over KV in whole numbers
 * it may round what it multiplies them with to 16 bits. Wrong kernels are wrong by 1e-2 and more. */
static const struct {
    const char *op;
    double tolerance;
} tolerances[] = {
    { "get_rows", 1e-6 }, { "matmul", 2e-4 },   { "rms_norm", 1e-5 }, { "add", 1e-6 },      { "add_rows", 1e-6 },
    { "silu_mul", 1e-5 }, { "rope", 1e-5 },     { "kv_store", 0 },    { "attend", 5e-4 }, { "matmul_fused", 1e-6 },
};
static const struct {
    enum fo_dtype type;
    double tolerance;
} kv_tolerances[] = { { FO_Q8_0, 5e-3 }, { FO_Q4_0, 5e-3 } };

double fo_tap_tolerance(const char *op, enum fo_dtype kv_type) {
    if (strcmp(op, "attend") == 0)
        for (size_t i = 0; i < sizeof kv_tolerances / sizeof *kv_tolerances; i++)
            if (kv_tolerances[i].type == kv_type) return kv_tolerances[i].tolerance;
    for (size_t i = 0; i < sizeof tolerances / sizeof *tolerances; i++)
        if (strcmp(tolerances[i].op, op) == 0) return tolerances[i].tolerance;
    return 0;
}

/* --- memory -------------------------------------------------------------------------------------------------------------------- */

static int grow(struct line *l, uint64_t bytes, struct fo_err *e) {
    if (bytes <= l->cap_bytes) return FO_OK;
    free(l->at);
    *l = (struct line){ malloc(bytes), bytes };
    if (l->at) return FO_OK;
    *l = (struct line){ NULL, 0 };
    return fo_fail_need(e, FO_ENOMEM, bytes, 0, "no memory to compare %llu bytes", (unsigned long long)bytes);
}

static struct block *block_of(const struct tap *t, const void *p) {
    struct block *b = t->blocks;
    while (b && !((uintptr_t)p >= (uintptr_t)b->sub && (uintptr_t)p - (uintptr_t)b->sub < b->bytes)) b = b->next;
    return b;
}

static int touch(struct tap *t, struct block *b, uint64_t bytes, struct fo_err *e) {
    void *data;
    if (b->ref) return FO_OK;
    if (t->ref->alloc(t->ref, bytes, &data, e)) return fo_wrap(e, "the reference");
    b->ref = data;
    b->ref_bytes = bytes;
    return FO_OK;
}

/* The reference's address for one of the subject's. */
static int mirror(struct tap *t, const void *p, void **ret, struct fo_err *e) {
    struct block *b = block_of(t, p);
    if (b && touch(t, b, b->bytes, e)) return e->code;
    *ret = b ? b->ref + ((uintptr_t)p - (uintptr_t)b->sub) : (void *)(uintptr_t)p;
    return FO_OK;
}

static int mirror_floats(struct tap *t, const float *p, float **ret, struct fo_err *e) {
    void *at;
    if (mirror(t, p, &at, e)) return e->code;
    *ret = at;
    return FO_OK;
}

static int tap_memory(struct fo_device *d, uint64_t *ret_total, uint64_t *ret_free, struct fo_err *e) {
    struct tap *t = d->priv;
    return t->sub->memory(t->sub, ret_total, ret_free, e);
}

static int tap_alloc(struct fo_device *d, uint64_t bytes, void **ret, struct fo_err *e) {
    struct tap *t = d->priv;
    struct block *b = calloc(1, sizeof *b);
    void *data;
    if (!b) return fo_fail_need(e, FO_ENOMEM, sizeof *b, 0, "no memory for a block");
    if (t->sub->alloc(t->sub, bytes, &data, e)) {
        free(b);
        return e->code;
    }
    *b = (struct block){ .next = t->blocks, .sub = data, .bytes = bytes };
    t->blocks = b;
    *ret = data;
    return FO_OK;
}

static void tap_free(struct fo_device *d, void *data, uint64_t bytes) {
    struct tap *t = d->priv;
    struct block **at = &t->blocks;
    while (*at && (*at)->sub != data) at = &(*at)->next;
    struct block *b = *at;
    if (!b) return;
    *at = b->next;
    t->sub->free(t->sub, data, bytes);
    if (b->ref) t->ref->free(t->ref, b->ref, b->ref_bytes);
    free(b);
}

static int tap_upload(struct fo_device *d, void *dst, const void *host, uint64_t bytes, struct fo_err *e) {
    struct tap *t = d->priv;
    struct block *b = block_of(t, dst);
    void *to;
    if (!b) return fo_fail(e, FO_EINTERNAL, "upload: the target is in no block of the tap");
    b->constant = true;
    if (t->sub->upload(t->sub, dst, host, bytes, e) || mirror(t, dst, &to, e)) return e->code;
    return t->ref->upload(t->ref, to, host, bytes, e);
}

static int tap_download(struct fo_device *d, void *host, const void *src, uint64_t bytes, struct fo_err *e) {
    struct tap *t = d->priv;
    return t->sub->download(t->sub, host, src, bytes, e);
}

static void tap_discard(struct fo_device *d, void *p, uint64_t bytes) {
    struct tap *t = d->priv;
    t->sub->discard(t->sub, p, bytes);
}

static bool tap_serves(struct fo_device *d, uint32_t dtype) {
    struct tap *t = d->priv;
    return t->sub->serves(t->sub, dtype) && t->ref->serves(t->ref, dtype);
}

/* --- streams ------------------------------------------------------------------------------------------------------------------- */

static uint64_t tap_stream_bytes(struct fo_device *d, int max_rows, int64_t max_k, int64_t max_ctx) {
    struct tap *t = d->priv;
    return t->sub->stream_bytes(t->sub, max_rows, max_k, max_ctx);
}

static void tap_stream_close(struct fo_stream *base) {
    if (!base) return;
    struct tap *t = tap_of(base);
    struct tap_stream *s = (struct tap_stream *)base;
    if (s->sub) t->sub->stream_close(s->sub);
    if (s->ref) t->ref->stream_close(s->ref);
    free(s);
}

static int tap_stream_open(struct fo_device *d, int max_rows, int64_t max_k, int64_t max_ctx, struct fo_stream **ret, struct fo_err *e) {
    struct tap *t = d->priv;
    struct tap_stream *s = calloc(1, sizeof *s);
    if (!s) return fo_fail_need(e, FO_ENOMEM, sizeof *s, 0, "no memory for a stream");
    s->base = (struct fo_stream){ .dev = d, .max_rows = max_rows, .max_k = max_k, .max_ctx = max_ctx };
    if (t->sub->stream_open(t->sub, max_rows, max_k, max_ctx, &s->sub, e) || t->ref->stream_open(t->ref, max_rows, max_k, max_ctx, &s->ref, e)) {
        tap_stream_close(&s->base);
        return e->code;
    }
    *ret = &s->base;
    return FO_OK;
}

static int tap_sync(struct fo_stream *s, struct fo_err *e) {
    struct tap *t = tap_of(s);
    return t->sub->sync(sub_of(s), e);
}

/* --- fetch, feed, show --------------------------------------------------------------------------------------------------------- */

static uint64_t floats(int n, int64_t k) {
    return (uint64_t)n * (uint64_t)k * sizeof(float);
}

/* From the subject to the host. */
static int fetch(struct fo_stream *s, struct line *to, const void *p, uint64_t bytes, struct fo_err *e) {
    struct tap *t = tap_of(s);
    if (grow(to, bytes, e) || t->sub->sync(sub_of(s), e)) return e->code;
    return t->sub->download(t->sub, to->at, p, bytes, e);
}

static int fetch_if_same(struct fo_stream *s, struct line *to, const void *p, uint64_t bytes, struct fo_err *e) {
    return tap_of(s)->mode == FO_TAP_SAME ? fetch(s, to, p, bytes, e) : FO_OK;
}

/* The reference's place for the subject's p, with what the host has in `from` there under FO_TAP_SAME. */
static int feed(struct tap *t, const struct line *from, const float *p, uint64_t bytes, float **ret, struct fo_err *e) {
    if (mirror_floats(t, p, ret, e)) return e->code;
    return t->mode == FO_TAP_SAME ? t->ref->upload(t->ref, *ret, from->at, bytes, e) : FO_OK;
}

/* Both results to the host. */
static int fetch_results(struct fo_stream *s, const float *sub, const float *ref, uint64_t bytes, struct fo_err *e) {
    struct tap *t = tap_of(s);
    if (fetch(s, &t->got, sub, bytes, e) || grow(&t->want, bytes, e)) return e->code;
    if (t->ref->sync(ref_of(s), e) || t->ref->download(t->ref, t->want.at, ref, bytes, e)) return fo_wrap(e, "the reference");
    return FO_OK;
}

static double row_norm(const float *x, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double row_rms(const float *x, int64_t k) {
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < k; i++)
        if (isfinite(x[i])) {
            sum += (double)x[i] * (double)x[i];
            n++;
        }
    return n ? sqrt(sum / (double)n) : 0;
}

/* Of the results in t->got and t->want, n rows of k. w_norms[k] and x_norms[n] widen the tolerance of sums; NULL: not yet known. */
static void compare(const struct tap *t, struct fo_tap_seen *seen, double tolerance, const float *w_norms, const float *x_norms) {
    seen->compared = true;
    seen->got = t->got.at;
    seen->want = t->want.at;
    seen->sum2 = seen->ref2 = seen->max = 0;
    seen->share = -1;
    for (int row = 0; row < seen->n; row++) {
        const float *got = t->got.at + row * seen->k, *want = t->want.at + row * seen->k;
        double rms = row_rms(want, seen->k);
        for (int64_t i = 0; i < seen->k; i++) {
            double a = (double)got[i], b = (double)want[i], diff = fabs(a - b);
            if ((isnan(a) && isnan(b)) || a == b) diff = 0;
            if (isnan(diff)) diff = HUGE_VAL;
            double allowed = tolerance * (rms + (isfinite(b) ? fabs(b) : 0)) + 1e-30;
            if (w_norms) allowed = fmax(allowed, FO_TAP_SUM * (double)w_norms[i] * (double)x_norms[row]);
            if (!isfinite(allowed)) allowed = tolerance * rms + 1e-30;
            double share = diff / allowed;
            if (isfinite(diff)) seen->sum2 += diff * diff;
            if (isfinite(b)) seen->ref2 += b * b;
            if (diff > seen->max) seen->max = diff;
            if (share <= seen->share) continue;
            seen->share = share;
            seen->row = row;
            seen->index = i;
            seen->sub = got[i];
            seen->ref = want[i];
            seen->diff = diff;
            seen->allowed = allowed;
        }
    }
}

static int show(const struct tap *t, const struct fo_tap_seen *seen, struct fo_err *e) {
    return t->fn(t->ctx, seen, e);
}

/* An op that has one result of n rows of k. */
static int show_result(struct fo_stream *s, struct fo_tap_seen seen, const float *sub, const float *ref, struct fo_err *e) {
    struct tap *t = tap_of(s);
    if (fetch_results(s, sub, ref, floats(seen.n, seen.k), e)) return e->code;
    compare(t, &seen, fo_tap_tolerance(seen.op, FO_F32), NULL, NULL);
    return show(t, &seen, e);
}

/* --- matmul -------------------------------------------------------------------------------------------------------------------- */

/* t->rounded = x [n][k] as activations of this type are. */
static int round_activations(struct tap *t, enum fo_dtype type, const float *x, int n, int64_t k, struct fo_err *e) {
    size_t row_bytes = fo_act_row_bytes(type, k), room = (row_bytes + 63) / 64 * 64;
    if (grow(&t->rounded, floats(n, k) + room + 64, e)) return e->code;
    float *out = t->rounded.at;
    unsigned char *row = (unsigned char *)(((uintptr_t)(out + (size_t)n * (size_t)k) + 63) / 64 * 64);
    struct fo_act act = { .type = type, .k = k, .rows = row, .row_bytes = row_bytes };
    for (int i = 0; i < n; i++, x += k, out += k) {
        if (type == FO_Q8_0) {
            struct fo_act_q8_0 q = fo_act_q8_0(&act, 0);
            t->kern.quant_q8_0(x, k, q);
            for (int64_t j = 0; j < k; j++) out[j] = (float)q.q[j] * q.d[j / 32];
        } else {
            struct fo_act_q8_k q = fo_act_q8_k(&act, 0);
            t->kern.quant_q8_k(x, k, q);
            for (int64_t j = 0; j < k; j++) out[j] = (float)q.q[j] * q.d[j / 256];
        }
    }
    return FO_OK;
}

/* Row r of a matrix of the reference, as floats. */
static int weights_row(struct tap *t, const struct fo_tensor *w, int64_t r, float *out, struct fo_err *e) {
    uint64_t bytes = fo_dtype_bytes(w->type, (uint64_t)w->ne[0]);
    if (grow(&t->b, bytes, e)) return e->code;
    const unsigned char *from = (const unsigned char *)w->data + (uint64_t)r * bytes;
    if (t->ref->weights_in_place)
        memcpy(t->b.at, from, bytes);
    else if (t->ref->download(t->ref, t->b.at, from, bytes, e))
        return e->code;
    fo_dtype_info(w->type)->to_f32(t->b.at, out, (size_t)w->ne[0]);
    return FO_OK;
}

/* Judges again with what float32 can be blamed for, and asks double precision about what is past that too. x [n][k] is what both had. */
static int judge_sums(struct tap *t, struct fo_tap_seen *seen, const struct fo_tensor *w, const float *x, struct fo_err *e) {
    int64_t k = w->ne[0], rows = w->ne[1];
    if (grow(&t->norms, (uint64_t)(rows + seen->n) * sizeof(float), e) || grow(&t->c, (uint64_t)k * sizeof(float), e)) return e->code;
    float *w_norms = t->norms.at, *x_norms = w_norms + rows;
    for (int64_t r = 0; r < rows; r++) {
        if (weights_row(t, w, r, t->c.at, e)) return e->code;
        w_norms[r] = (float)row_norm(t->c.at, k);
    }
    for (int i = 0; i < seen->n; i++) x_norms[i] = (float)row_norm(x + i * k, k);
    compare(t, seen, fo_tap_tolerance(seen->op, FO_F32), w_norms, x_norms);
    if (seen->share <= 1) return FO_OK;
    if (weights_row(t, w, seen->index, t->c.at, e)) return e->code;
    seen->truth = 0;
    for (int64_t i = 0; i < k; i++) seen->truth += (double)t->c.at[i] * (double)x[seen->row * k + i];
    seen->has_truth = true;
    return FO_OK;
}

/* The reference's product for x [n][k] on the host, against the subject's. */
static int try_input(struct fo_stream *s, const struct fo_tensor *w, const struct line *x, const float *sub_x, const float *sub_y,
                     struct fo_tap_seen *seen, struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_x = NULL, *ref_y = NULL;
    if (feed(t, x, sub_x, floats(seen->n, seen->k_in), &ref_x, e) || mirror_floats(t, sub_y, &ref_y, e)) return e->code;
    if (fo_matmul(ref_of(s), w, ref_x, seen->n, ref_y, e)) return fo_wrap(e, "the reference");
    if (fetch_results(s, sub_y, ref_y, floats(seen->n, seen->k), e)) return e->code;
    compare(t, seen, fo_tap_tolerance(seen->op, FO_F32), NULL, NULL);
    return t->mode == FO_TAP_SAME && seen->share > 1 ? judge_sums(t, seen, w, x->at, e) : FO_OK;
}

static int tap_matmul_many(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                           struct fo_err *e) {
    struct tap *t = tap_of(s);
    int64_t k = w[0]->ne[0];
    if (fetch_if_same(s, &t->a, x, floats(n, k), e) || t->sub->matmul_many(sub_of(s), w, n_w, x, n, y, e)) return e->code;
    for (int i = 0; i < n_w; i++) {
        struct fo_tensor ref = *w[i];
        enum fo_dtype act = fo_dtype_info(ref.type)->act;
        struct fo_tap_seen seen = { .op = "matmul", .w = w[i], .layer = -1, .n = n, .k_in = k, .k = ref.ne[1] };
        if (mirror(t, w[i]->data, &ref.data, e)) return e->code;
        bool rounds = t->mode == FO_TAP_SAME && (act == FO_Q8_0 || act == FO_Q8_K);
        if (rounds && (round_activations(t, act, t->a.at, n, k, e) || try_input(s, &ref, &t->rounded, x, y[i], &seen, e))) return e->code;
        if (!rounds || seen.share > 1) { /* or the subject does not round */
            struct fo_tap_seen plain = seen;
            plain.has_truth = false;
            if (try_input(s, &ref, &t->a, x, y[i], &plain, e)) return e->code;
            if (!rounds || plain.share <= 1) seen = plain;
        }
        if (rounds && seen.share > 1 && !t->ref->exact)
            seen.note = "one side may compute with activations in 8 bits where the other does not: only the exact path can tell that from a fault";
        if (show(t, &seen, e)) return e->code;
    }
    return FO_OK;
}

/* --- rows ---------------------------------------------------------------------------------------------------------------------- */

static int tap_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e) {
    struct tap *t = tap_of(s);
    struct fo_tensor ref = *table;
    float *ref_out = NULL;
    const struct block *b = block_of(t, table->data);
    bool activations = b && !b->constant; /* the rows that ask an expert */
    uint64_t bytes = fo_tensor_bytes(table);
    if ((activations && fetch_if_same(s, &t->a, table->data, bytes, e)) || t->sub->get_rows(sub_of(s), table, ids, n, out, e) ||
        mirror(t, table->data, &ref.data, e) || mirror_floats(t, out, &ref_out, e) ||
        (activations && t->mode == FO_TAP_SAME && t->ref->upload(t->ref, ref.data, t->a.at, bytes, e)))
        return e->code;
    if (fo_get_rows(ref_of(s), &ref, ids, n, ref_out, e)) return fo_wrap(e, "the reference");
    return show_result(s, (struct fo_tap_seen){ .op = "get_rows", .w = table, .layer = -1, .n = n, .k_in = 1, .k = table->ne[0] }, out, ref_out, e);
}

static int tap_rms_norm(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_x = NULL, *ref_weight = NULL, *ref_out = NULL;
    if (fetch_if_same(s, &t->a, x, floats(n, k), e) || t->sub->rms_norm(sub_of(s), x, weight, n, k, eps, out, e) ||
        feed(t, &t->a, x, floats(n, k), &ref_x, e) || mirror_floats(t, weight, &ref_weight, e) || mirror_floats(t, out, &ref_out, e))
        return e->code;
    if (fo_rms_norm(ref_of(s), ref_x, ref_weight, n, k, eps, ref_out, e)) return fo_wrap(e, "the reference");
    return show_result(s, (struct fo_tap_seen){ .op = "rms_norm", .vector = weight, .layer = -1, .n = n, .k_in = k, .k = k }, out, ref_out, e);
}

static int tap_add(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_a = NULL, *ref_b = NULL, *ref_out = NULL;
    uint64_t bytes = floats(n, k);
    if (fetch_if_same(s, &t->a, a, bytes, e) || (!broadcast_b && fetch_if_same(s, &t->b, b, bytes, e)) ||
        t->sub->add(sub_of(s), a, b, n, k, broadcast_b, out, e) || feed(t, &t->a, a, bytes, &ref_a, e) ||
        (broadcast_b ? mirror_floats(t, b, &ref_b, e) : feed(t, &t->b, b, bytes, &ref_b, e)) || mirror_floats(t, out, &ref_out, e))
        return e->code;
    if (fo_add(ref_of(s), ref_a, ref_b, n, k, broadcast_b, ref_out, e)) return fo_wrap(e, "the reference");
    return show_result(s, (struct fo_tap_seen){ .op = "add", .vector = broadcast_b ? b : NULL, .layer = -1, .n = n, .k_in = k, .k = k }, out, ref_out, e);
}

static int tap_add_rows(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out,
                        struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_a = NULL, *ref_out = NULL;
    if (fetch_if_same(s, &t->a, a, floats(n, k), e) || fetch_if_same(s, &t->b, out, floats(n_out, k), e) ||
        t->sub->add_rows(sub_of(s), a, row, scale, n, k, out, n_out, e) || feed(t, &t->a, a, floats(n, k), &ref_a, e) ||
        feed(t, &t->b, out, floats(n_out, k), &ref_out, e))
        return e->code;
    if (fo_add_rows(ref_of(s), ref_a, row, scale, n, k, ref_out, n_out, e)) return fo_wrap(e, "the reference");
    return show_result(s, (struct fo_tap_seen){ .op = "add_rows", .layer = -1, .n = n_out, .k_in = k, .k = k }, out, ref_out, e);
}

static int tap_silu_mul(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_gate = NULL, *ref_up = NULL, *ref_out = NULL;
    uint64_t bytes = floats(n, k);
    if (fetch_if_same(s, &t->a, gate, bytes, e) || fetch_if_same(s, &t->b, up, bytes, e) ||
        t->sub->silu_mul(sub_of(s), gate, up, n, k, out, e) || feed(t, &t->a, gate, bytes, &ref_gate, e) ||
        feed(t, &t->b, up, bytes, &ref_up, e) || mirror_floats(t, out, &ref_out, e))
        return e->code;
    if (fo_silu_mul(ref_of(s), ref_gate, ref_up, n, k, ref_out, e)) return fo_wrap(e, "the reference");
    return show_result(s, (struct fo_tap_seen){ .op = "silu_mul", .layer = -1, .n = n, .k_in = k, .k = k }, out, ref_out, e);
}

static int tap_rope(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_x = NULL;
    int64_t k = (int64_t)n_head * r->head_dim;
    if (fetch_if_same(s, &t->a, x, floats(n, k), e) || t->sub->rope(sub_of(s), r, x, pos, n, n_head, e) || feed(t, &t->a, x, floats(n, k), &ref_x, e))
        return e->code;
    if (fo_rope(ref_of(s), r, ref_x, pos, n, n_head, e)) return fo_wrap(e, "the reference");
    return show_result(s, (struct fo_tap_seen){ .op = "rope", .layer = -1, .n = n, .k_in = k, .k = k }, x, ref_x, e);
}

/* --- what is fused ------------------------------------------------------------------------------------------------------------- */

/* Room on the subject for n_parts results of bytes[i] each. */
static int spare(struct tap *t, const uint64_t *bytes, int n_parts, float **ret, struct fo_err *e) {
    uint64_t all = 0;
    for (int i = 0; i < n_parts; i++) all += (bytes[i] + 63) / 64 * 64;
    if (all > t->spare_bytes) {
        void *data;
        if (tap_alloc(&t->dev, all, &data, e)) return e->code;
        if (t->spare) tap_free(&t->dev, t->spare, t->spare_bytes);
        t->spare = data;
        t->spare_bytes = all;
    }
    unsigned char *at = t->spare;
    for (int i = 0; i < n_parts; i++) {
        ret[i] = (float *)(void *)at;
        at += (bytes[i] + 63) / 64 * 64;
    }
    return FO_OK;
}

enum { MOST_FUSED = 8 }; /* matrices of one call */

/* FO_TAP_SAME: the subject's own parts, each judged like any other op, with their results in spare memory. */
static int fused_parts(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n,
                       float **ret_y, struct fo_err *e) {
    struct tap *t = tap_of(s);
    int64_t k = w[0]->ne[0], rows = w[0]->ne[1];
    uint64_t bytes[MOST_FUSED + 2];
    float *at[MOST_FUSED + 2];
    for (int i = 0; i < n_w; i++) bytes[i] = floats(n, w[i]->ne[1]);
    bytes[n_w] = floats(n, k);
    bytes[n_w + 1] = floats(n, rows);
    if (spare(t, bytes, n_w + 2, at, e) || (f->norm && tap_rms_norm(s, x, f->norm, n, k, f->eps, at[n_w], e)) ||
        tap_matmul_many(s, w, n_w, f->norm ? at[n_w] : x, n, at, e) || (f->gated && tap_silu_mul(s, at[0], at[1], n, rows, at[0], e)) ||
        (f->add_to && tap_add(s, f->add_to, at[0], n, rows, false, at[n_w + 1], e)))
        return e->code;
    for (int i = 0; i < n_w; i++) ret_y[i] = at[i];
    if (f->add_to) ret_y[0] = at[n_w + 1];
    return FO_OK;
}

/* Two of the subject's results: what it fused is what its parts make. */
static int show_fused(struct fo_stream *s, struct fo_tap_seen seen, const float *got, const float *want, struct fo_err *e) {
    struct tap *t = tap_of(s);
    uint64_t bytes = floats(seen.n, seen.k);
    if (fetch(s, &t->got, got, bytes, e) || fetch(s, &t->want, want, bytes, e)) return e->code;
    compare(t, &seen, fo_tap_tolerance(seen.op, FO_F32), NULL, NULL);
    if (seen.share > 1) seen.note = "held against the same device's rms_norm, matmul, silu_mul and add, which it stands for";
    return show(t, &seen, e);
}

static int tap_matmul_fused(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n,
                            float *const *y, struct fo_err *e) {
    struct tap *t = tap_of(s);
    bool same = t->mode == FO_TAP_SAME;
    int n_results = f->gated ? 1 : n_w;
    float *want[MOST_FUSED] = { NULL };
    struct fo_tensor ref_w[MOST_FUSED];
    const struct fo_tensor *ref_ws[MOST_FUSED];
    struct fo_fused ref = *f;
    float *ref_x = NULL, *norm = NULL;
    if (n_w > MOST_FUSED) return fo_fail(e, FO_EINTERNAL, "matmul_fused: %d matrices, the tap takes %d", n_w, MOST_FUSED);
    if ((same && fused_parts(s, f, w, n_w, x, n, want, e)) || t->sub->matmul_fused(sub_of(s), f, w, n_w, x, n, y, e)) return e->code;
    if (!same) {
        if (mirror_floats(t, x, &ref_x, e) || (f->norm && (mirror_floats(t, f->norm, &norm, e) || mirror_floats(t, f->work, &ref.work, e))) ||
            (f->add_to && mirror_floats(t, f->add_to, &ref.add_to, e)))
            return e->code;
        ref.norm = norm;
        for (int i = 0; i < n_w; i++) {
            ref_w[i] = *w[i];
            ref_ws[i] = &ref_w[i];
            if (mirror(t, w[i]->data, &ref_w[i].data, e) || mirror_floats(t, y[i], &want[i], e)) return e->code;
        }
        if (fo_matmul_fused(ref_of(s), &ref, ref_ws, n_w, ref_x, n, want, e)) return fo_wrap(e, "the reference");
        if (f->add_to) want[0] = ref.add_to;
    }
    for (int i = 0; i < n_results; i++) {
        struct fo_tap_seen seen = { .op = "matmul_fused", .w = w[i], .layer = -1, .n = n, .k_in = w[i]->ne[0], .k = w[i]->ne[1] };
        const float *got = f->add_to ? f->add_to : y[i];
        if (same ? show_fused(s, seen, got, want[i], e) : show_result(s, seen, got, want[i], e)) return e->code;
    }
    return FO_OK;
}

/* --- attention ----------------------------------------------------------------------------------------------------------------- */

/* The reference's pages: of float32 where it is exact. */
static int ref_geom(struct tap *t, const struct fo_kv_geom *g, struct fo_kv_geom *ret, struct fo_err *e) {
    struct block *b = block_of(t, g->pool);
    struct fo_kv_geom r = *g;
    uint64_t bytes, before = (uint64_t)(g->pool - (b ? b->sub : g->pool));
    if (!b) return fo_fail(e, FO_EINTERNAL, "the KV pool is in no block of the tap");
    if (t->ref->exact) {
        r.n_pages *= 1 + (uint64_t)fo_kv_small(g); /* a page for each number */
        r.k_type = r.v_type = r.k_floor = r.v_floor = FO_F32;
    }
    if (__builtin_mul_overflow(r.n_pages, fo_kv_page_bytes(&r), &bytes) || __builtin_add_overflow(bytes, before, &bytes))
        return fo_fail(e, FO_ELIMIT, "the KV pool of the reference passes 2^64 bytes");
    if (touch(t, b, bytes, e)) return e->code;
    r.pool = b->ref + before;
    *ret = r;
    return FO_OK;
}

/* Heads as four bits hold them (cpu/attn.h), or back. */
static void turn(float *x, int64_t n, int head_dim) {
    for (int64_t i = 0; i < n; i += head_dim) fo_hadamard(x + i, head_dim);
}

static void round_kv(struct tap *t, const struct fo_kv_geom *g, const struct fo_attn_batch *b, int64_t row) {
    for (int i = 0; i < b->n_seqs; i++)
        for (int n = 0; n < b->seqs[i].n; n++) {
            struct fo_kv_place p = fo_kv_place(g, b->seqs[i].pages[(b->seqs[i].pos + n) / g->page_tokens]);
            fo_kv_keep(p.k_type, t->k.at + (b->seqs[i].row + n) * row, (size_t)row, g->head_dim);
            fo_kv_keep(p.v_type, t->v.at + (b->seqs[i].row + n) * row, (size_t)row, g->head_dim);
        }
}

/* The least exact of what a page may be: 0 = K, 1 = V. */
static double kv_tolerance(const struct fo_kv_geom *g, bool of_v) {
    double page = fo_tap_tolerance("attend", of_v ? g->v_type : g->k_type);
    return fo_kv_small(g) ? fmax(page, fo_tap_tolerance("attend", of_v ? g->v_floor : g->k_floor)) : page;
}

static int tap_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                        struct fo_err *e) {
    struct tap *t = tap_of(s);
    struct fo_kv_geom ref;
    float *ref_k = NULL, *ref_v = NULL;
    int64_t row = (int64_t)g->n_head_kv * g->head_dim;
    uint64_t bytes = floats(b->n_rows, row);
    if (fetch_if_same(s, &t->k, k, bytes, e) || fetch_if_same(s, &t->v, v, bytes, e) || t->sub->kv_store(sub_of(s), g, k, v, b, layer, e) ||
        ref_geom(t, g, &ref, e))
        return e->code;
    if (t->mode == FO_TAP_SAME) round_kv(t, g, b, row);
    if (feed(t, &t->k, k, bytes, &ref_k, e) || feed(t, &t->v, v, bytes, &ref_v, e))
        return e->code;
    if (fo_kv_store(ref_of(s), &ref, ref_k, ref_v, b, layer, e)) return fo_wrap(e, "the reference");
    return show(t, &(struct fo_tap_seen){ .op = "kv_store", .g = g, .layer = layer, .n = b->n_rows, .k_in = row, .k = row }, e);
}

/* A window of one position shows V as it lies in the page. Whether that is what was stored, of the rows of this step. */
static int reads_back(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, bool *ret,
                      struct fo_err *e) {
    struct tap *t = tap_of(s);
    struct fo_kv_geom one = *g;
    int64_t row = (int64_t)g->n_head * g->head_dim, group = g->n_head / g->n_head_kv;
    uint64_t bytes = floats(b->n_rows, row);
    void *out;
    one.window = 1;
    if (t->sub->alloc(t->sub, bytes, &out, e)) return e->code;
    int rc = t->sub->attend(sub_of(s), &one, q, b, layer, out, e);
    if (!rc) rc = fetch(s, &t->c, out, bytes, e);
    t->sub->free(t->sub, out, bytes);
    if (rc) return rc;
    *ret = true;
    for (int i = 0; i < b->n_seqs; i++)
        for (int64_t j = b->seqs[i].row; j < b->seqs[i].row + b->seqs[i].n; j++)
            for (int64_t h = 0; h < g->n_head; h++) {
                const float *got = t->c.at + j * row + h * g->head_dim, *want = t->v.at + (j * g->n_head_kv + h / group) * g->head_dim;
                double allowed = kv_tolerance(g, true) * 2 * row_rms(want, g->head_dim) + 1e-30;
                for (int d = 0; d < g->head_dim; d++)
                    if (!(fabs((double)got[d] - (double)want[d]) <= allowed + fabs((double)want[d]) * allowed)) *ret = false;
            }
    return FO_OK;
}

/* The reference's attention to q, which the host has in `x`, against the subject's out. */
static int try_query(struct fo_stream *s, const struct fo_kv_geom *g, const struct fo_kv_geom *ref, const struct line *x, const float *q,
                     const struct fo_attn_batch *b, int layer, const float *out, struct fo_tap_seen *seen, struct fo_err *e) {
    struct tap *t = tap_of(s);
    float *ref_q = NULL, *ref_out = NULL;
    int64_t row = seen->k;
    uint64_t bytes = floats(b->n_rows, row);
    if (feed(t, x, q, bytes, &ref_q, e) || mirror_floats(t, out, &ref_out, e)) return e->code;
    if (fo_attend(ref_of(s), ref, ref_q, b, layer, ref_out, e)) return fo_wrap(e, "the reference");
    if (fetch_results(s, out, ref_out, bytes, e)) return e->code;
    for (int i = 0; i < b->n_rows; i++) { /* a row of no sequence is left alone */
        bool covered = false;
        for (int j = 0; j < b->n_seqs; j++) covered |= i >= b->seqs[j].row && i < b->seqs[j].row + b->seqs[j].n;
        if (!covered) memcpy(t->got.at + i * row, t->want.at + i * row, (size_t)row * sizeof(float));
    }
    compare(t, seen, fmax(kv_tolerance(g, false), kv_tolerance(g, true)), NULL, NULL);
    return FO_OK;
}

/* The queries beside K of four bits: turned and rounded, and turned back. */
static int round_queries(struct tap *t, const struct fo_kv_geom *g, int64_t n, struct fo_err *e) {
    if (grow(&t->b, (uint64_t)n * sizeof(float), e)) return e->code;
    memcpy(t->b.at, t->a.at, (size_t)n * sizeof(float));
    turn(t->b.at, n, g->head_dim);
    if (round_activations(t, FO_Q8_0, t->b.at, (int)(n / g->head_dim), g->head_dim, e)) return e->code;
    turn(t->rounded.at, n, g->head_dim);
    return FO_OK;
}

static int tap_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                      struct fo_err *e) {
    struct tap *t = tap_of(s);
    struct fo_kv_geom ref;
    int64_t row = (int64_t)g->n_head * g->head_dim;
    struct fo_tap_seen seen = { .op = "attend", .g = g, .layer = layer, .n = b->n_rows, .k_in = row, .k = row };
    if (fetch_if_same(s, &t->a, q, floats(b->n_rows, row), e) || t->sub->attend(sub_of(s), g, q, b, layer, out, e) || ref_geom(t, g, &ref, e))
        return e->code;
    bool same = t->mode == FO_TAP_SAME, rounds = same && (g->k_type == FO_Q4_0 || (fo_kv_small(g) && g->k_floor == FO_Q4_0)); /* the queries, as activations are for such weights */
    if (rounds && (round_queries(t, g, b->n_rows * row, e) ||
                   try_query(s, g, &ref, &t->rounded, q, b, layer, out, &seen, e)))
        return e->code;
    if (!rounds || seen.share > 1) {
        struct fo_tap_seen plain = seen;
        if (try_query(s, g, &ref, &t->a, q, b, layer, out, &plain, e)) return e->code;
        if (!rounds || plain.share <= 1) seen = plain;
    }
    bool back = true, past = same && seen.share > 1;
    if (past && reads_back(s, g, q, b, layer, &back, e)) return e->code;
    if (past)
        seen.note = back ? "a single position gives its own V back, so V is stored well; K or attend itself is at fault"
                         : "a single position does not give its own V back: kv_store may be at fault";
    return show(t, &seen, e);
}

/* What is stored is not looked at, and a reference in float32 has nothing to round it from: nobody changes pages under a tap. */
static int tap_kv_requantise(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e) {
    (void)s, (void)g, (void)from, (void)to;
    return fo_fail(e, FO_EUNSUPPORTED, "kv_requantise: a tap does not do it");
}

/* --- the device ---------------------------------------------------------------------------------------------------------------- */

static void tap_close(struct fo_device *d) {
    struct tap *t = d->priv;
    struct line *lines[] = { &t->a, &t->b, &t->c, &t->k, &t->v, &t->got, &t->want, &t->norms, &t->rounded };
    while (t->blocks) tap_free(d, t->blocks->sub, t->blocks->bytes);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) free(lines[i]->at);
    free(t);
}

int fo_tap_open(struct fo_device *subject, struct fo_device *reference, fo_tap_fn *fn, void *ctx, struct fo_device **ret, struct fo_err *e) {
    struct tap *t = calloc(1, sizeof *t);
    if (!t) return fo_fail_need(e, FO_ENOMEM, sizeof *t, 0, "no memory for a tap");
    t->sub = subject;
    t->ref = reference;
    t->fn = fn;
    t->ctx = ctx;
    fo_cpu_ref(&t->kern);
    t->dev = (struct fo_device){
        .kind = "tap",
        .die = subject->die,
        .priv = t,
        .close = tap_close,
        .memory = tap_memory,
        .alloc = tap_alloc,
        .free = tap_free,
        .upload = tap_upload,
        .download = tap_download,
        .discard = subject->discard ? tap_discard : NULL,
        .weights_in_place = subject->weights_in_place && reference->weights_in_place,
        .exact = subject->exact,
        .serves = tap_serves,
        .stream_bytes = tap_stream_bytes,
        .stream_open = tap_stream_open,
        .stream_close = tap_stream_close,
        .sync = tap_sync,
        .get_rows = tap_get_rows,
        .matmul_many = tap_matmul_many,
        .matmul_fused = subject->matmul_fused ? tap_matmul_fused : NULL,
        .rms_norm = tap_rms_norm,
        .add = tap_add,
        .add_rows = tap_add_rows,
        .silu_mul = tap_silu_mul,
        .rope = tap_rope,
        .kv_store = tap_kv_store,
        .attend = tap_attend,
        .kv_requantise = tap_kv_requantise,
    };
    *ret = &t->dev;
    return FO_OK;
}

void fo_tap_set_mode(struct fo_device *tap, enum fo_tap_mode mode) {
    ((struct tap *)tap->priv)->mode = mode;
}
