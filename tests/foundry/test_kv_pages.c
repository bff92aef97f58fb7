/* Pages of two kinds in one sequence (ops.h): where they lie, what attention makes of them, and writing a page again as a small one. */
#include "foundry/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/cpu/kernels.h"
#include "foundry/device.h"
#include "foundry/dtype.h"

enum { MAX_CTX = 1200, MAX_ROWS = 64, N_LAYER = 2, LAYER = 1 };

static struct fo_rng rng;

static float *random_floats(size_t n, float by) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = by * (2 * (float)fo_rng_unit(&rng) - 1);
    return x;
}

/* --- a sequence and its pages ---------------------------------------------------------------------------------------------------- */

struct kv_case {
    enum fo_dtype k_type, v_type, k_floor, v_floor;
    int n_head, n_head_kv, head_dim, page_tokens, window, len;
};

struct cache {
    struct fo_device *dev;
    struct fo_stream *s;
    struct fo_kv_geom g;
    uint64_t bytes;
    uint32_t *pages;
    int n_pages; /* of the sequence */
};

static struct cache cache_open(const struct kv_case *c, bool exact, int threads) {
    struct cache k = { .n_pages = (c->len + c->page_tokens - 1) / c->page_tokens };
    struct fo_err e;
    k.g = (struct fo_kv_geom){ .k_type = c->k_type, .v_type = c->v_type, .k_floor = c->k_floor, .v_floor = c->v_floor, .n_layer = N_LAYER, .n_head_kv = c->n_head_kv,
                               .head_dim = c->head_dim, .page_tokens = c->page_tokens, .n_pages = (uint64_t)(2 * k.n_pages + 2), .scale = 1 / sqrtf((float)c->head_dim),
                               .n_head = c->n_head, .window = c->window };
    k.bytes = fo_kv_page_bytes(&k.g) * k.g.n_pages;
    void *pool = NULL;
    if (fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = threads, .exact = exact }, &k.dev, &e) ||
        k.dev->stream_open(k.dev, MAX_ROWS, c->n_head * c->head_dim, MAX_CTX, &k.s, &e) || k.dev->alloc(k.dev, k.bytes, &pool, &e))
        fail_msg("%s", e.msg);
    memset(pool, 0xFF, k.bytes); /* NaN wherever nothing was stored */
    k.g.pool = pool;
    k.pages = malloc((size_t)k.n_pages * sizeof *k.pages);
    assert_non_null(k.pages);
    return k;
}

static void cache_close(struct cache *k) {
    k->dev->free(k->dev, k->g.pool, k->bytes);
    k->dev->stream_close(k->s);
    fo_device_close(k->dev);
    free(k->pages);
}

/* Small page i of place p. */
static uint32_t small_page(const struct fo_kv_geom *g, uint32_t p, uint32_t i) {
    return (uint32_t)g->n_pages + p * fo_kv_small(g) + i;
}

/* Page p of the sequence is small where bit p % 8 of `mask` is set; small ones lie together, as many in a place as there is room for. */
static void take_pages(struct cache *k, unsigned mask) {
    uint32_t place = (uint32_t)k->g.n_pages - 2, in = 0, shared = UINT32_MAX;
    for (int p = 0; p < k->n_pages; p++) {
        if (!(mask >> p % 8 & 1)) {
            k->pages[p] = place--;
            continue;
        }
        if (shared == UINT32_MAX || in == fo_kv_small(&k->g)) shared = place--, in = 0;
        k->pages[p] = small_page(&k->g, shared, in++);
    }
}

/* Stores all positions and attends from them, `chunk` at a time. */
static void attend_all(struct cache *c, const float *q, const float *k, const float *v, int len, int chunk, float *out) {
    struct fo_err e;
    int kv = c->g.n_head_kv * c->g.head_dim, row = c->g.n_head * c->g.head_dim;
    for (int at = 0; at < len; at += chunk) {
        struct fo_attn_seq seq = { .n = len - at < chunk ? len - at : chunk, .pos = at, .pages = c->pages };
        struct fo_attn_batch b = { .seqs = &seq, .n_seqs = 1, .n_rows = seq.n };
        if ((k && fo_kv_store(c->s, &c->g, k + at * kv, v + at * kv, &b, LAYER, &e)) || fo_attend(c->s, &c->g, q + at * row, &b, LAYER, out + at * row, &e))
            fail_msg("%s", e.msg);
    }
}

static float *as_kept(const struct cache *c, const float *x, int len, bool of_v) {
    size_t row = (size_t)(c->g.n_head_kv * c->g.head_dim);
    float *kept = malloc((size_t)len * row * sizeof *kept);
    memcpy(kept, x, (size_t)len * row * sizeof *kept);
    for (int t = 0; t < len; t++) {
        struct fo_kv_place p = fo_kv_place(&c->g, c->pages[t / c->g.page_tokens]);
        fo_kv_keep(of_v ? p.v_type : p.k_type, kept + (size_t)t * row, row, c->g.head_dim);
    }
    return kept;
}

static void naive_attend(const struct kv_case *c, const float *q, const float *k, const float *v, double *out) {
    int group = c->n_head / c->n_head_kv, dim = c->head_dim;
    double *s = malloc((size_t)c->len * sizeof *s);
    for (int i = 0; i < c->len; i++)
        for (int h = 0; h < c->n_head; h++) {
            int from = c->window && i - c->window + 1 > 0 ? i - c->window + 1 : 0;
            double top = -(double)INFINITY, sum = 0, *o = out + (i * c->n_head + h) * dim;
            for (int j = from; j <= i; j++) {
                s[j] = 0;
                for (int d = 0; d < dim; d++) s[j] += (double)q[(i * c->n_head + h) * dim + d] * (double)k[(j * c->n_head_kv + h / group) * dim + d];
                s[j] /= sqrt(dim);
                top = fmax(top, s[j]);
            }
            memset(o, 0, (size_t)dim * sizeof *o);
            for (int j = from; j <= i; j++) {
                double p = exp(s[j] - top);
                sum += p;
                for (int d = 0; d < dim; d++) o[d] += p * (double)v[(j * c->n_head_kv + h / group) * dim + d];
            }
            for (int d = 0; d < dim; d++) o[d] /= sum;
        }
    free(s);
}

/* As test_ops.c has it, for the less exact of both kinds. */
static double tolerance(const struct kv_case *c) {
    if (c->k_type == FO_Q4_0 || c->k_floor == FO_Q4_0) return 0.1;
    return c->k_floor == FO_Q8_0 || c->v_floor == FO_Q8_0 || c->v_floor == FO_Q4_0 ? 2e-4 : 3e-6;
}

static const struct kv_case cases[] = {
    { FO_F16, FO_F16, FO_Q8_0, FO_Q8_0, 6, 2, 64, 64, 0, 300 },
    { FO_F16, FO_F16, FO_Q4_0, FO_Q4_0, 4, 1, 128, 64, 0, 300 },
    { FO_F16, FO_F16, FO_F16, FO_Q4_0, 4, 4, 64, 64, 70, 400 },
    { FO_F16, FO_F16, FO_Q8_0, FO_F16, 3, 1, 96, 16, 0, 150 },
    { FO_F32, FO_F32, FO_Q8_0, FO_Q4_0, 2, 1, 64, 64, 0, 200 },
    { FO_Q8_0, FO_Q8_0, FO_Q4_0, FO_Q4_0, 9, 3, 64, 64, 0, 260 },
    { FO_Q8_0, FO_F16, FO_Q8_0, FO_Q4_0, 4, 2, 32, 64, 130, 330 },
    { FO_F32, FO_F32, FO_F16, FO_F16, 4, 2, 64, 4, 0, 90 },
    { FO_F32, FO_F32, FO_Q8_0, FO_Q8_0, 2, 2, 32, 4, 33, 90 }, /* pages of a few positions, as debug builds have */
    { FO_F16, FO_F16, FO_Q4_0, FO_Q4_0, 2, 1, 32, 3, 0, 70 },
    { FO_F32, FO_F32, FO_Q8_0, FO_Q8_0, 2, 1, 32, 64, 0, 1100 }, /* several spans */
    { FO_F16, FO_F16, FO_Q4_0, FO_Q4_0, 2, 1, 64, 64, 600, 1100 },
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* --- where they lie -------------------------------------------------------------------------------------------------------------- */

static void counts_small_pages_and_says_where_they_lie(void **state) {
    (void)state;
    static const struct {
        enum fo_dtype k_type, v_type, k_floor, v_floor;
        uint32_t small;
    } rows[] = {
        { FO_F16, FO_F16, FO_F16, FO_F16, 0 },   { FO_F16, FO_F16, FO_Q8_0, FO_Q8_0, 1 },   { FO_F16, FO_F16, FO_Q4_0, FO_Q4_0, 3 },
        { FO_F32, FO_F32, FO_Q8_0, FO_Q8_0, 3 }, { FO_F32, FO_F32, FO_Q4_0, FO_Q4_0, 7 },   { FO_Q8_0, FO_Q8_0, FO_Q4_0, FO_Q4_0, 1 },
        { FO_F16, FO_F16, FO_Q8_0, FO_Q4_0, 2 }, { FO_Q4_0, FO_Q4_0, FO_Q8_0, FO_Q8_0, 0 }, { FO_F16, FO_Q4_0, FO_Q4_0, FO_Q8_0, 0 }, /* V would grow */
        { FO_F16, FO_F16, FO_F32, FO_F32, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fo_kv_geom g = { .k_type = rows[i].k_type, .v_type = rows[i].v_type, .k_floor = rows[i].k_floor, .v_floor = rows[i].v_floor, .n_layer = 3,
                                .n_head_kv = 2, .n_head = 2, .head_dim = 96, .page_tokens = 64, .n_pages = 5 };
        uint64_t page = fo_kv_page_bytes(&g), small = fo_kv_small_bytes(&g);
        assert_int_equal(fo_kv_small(&g), rows[i].small);
        assert_int_equal(small == 0, rows[i].small == 0);
        assert_int_equal(small % 64, 0);
        assert_true(small * rows[i].small <= page && (!small || small * (rows[i].small + 1) > page));
        for (uint32_t p = 0; p < g.n_pages; p++) {
            struct fo_kv_place at = fo_kv_place(&g, p);
            assert_true(at.off == p * page && at.bytes == page && at.k_type == g.k_type && at.v_type == g.v_type);
            for (uint32_t n = 0; n < rows[i].small; n++) {
                at = fo_kv_place(&g, small_page(&g, p, n));
                assert_true(at.off == p * page + n * small && at.bytes == small && at.k_type == g.k_floor && at.v_type == g.v_floor);
            }
        }
    }
}

/* --- turning -------------------------------------------------------------------------------------------------------------------- */

static void turning_keeps_products_and_undoes_itself(void **state) {
    (void)state;
    static const int dims[] = { 32, 64, 96, 128, 160, 256, 4096 };
    fo_rng_seed(&rng, 34);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        size_t n = (size_t)dims[i];
        float *a = random_floats(n, 1), *b = random_floats(n, 1), *before = malloc(n * sizeof *before);
        double want = 0, got = 0, largest = 0;
        memcpy(before, a, n * sizeof *a);
        for (size_t d = 0; d < n; d++) want += (double)a[d] * (double)b[d];
        fo_hadamard(a, dims[i]), fo_hadamard(b, dims[i]);
        for (size_t d = 0; d < n; d++) got += (double)a[d] * (double)b[d];
        assert_true(fabs(got - want) < 1e-5 * sqrt((double)n));
        fo_hadamard(a, dims[i]);
        for (size_t d = 0; d < n; d++) assert_true(fabs((double)a[d] - (double)before[d]) < 1e-5);
        /* one large dimension is shared out among its block's */
        memset(a, 0, n * sizeof *a);
        a[n / 2 + 1] = 8;
        fo_hadamard(a, dims[i]);
        for (size_t d = 0; d < n; d++) largest = fmax(largest, fabs((double)a[d]));
        assert_true(largest <= 8 / sqrt(32) + 1e-5);
        free(a), free(b), free(before);
    }
}

/* --- attending ------------------------------------------------------------------------------------------------------------------- */

static void attends_over_pages_of_both_kinds_as_double_arithmetic_does(void **state) {
    (void)state;
    static const unsigned masks[] = { 0x55, 0xFE, 0x01, 0x0C };
    fo_rng_seed(&rng, 31);
    for (int exact = 0; exact < 2; exact++)
        for (int i = 0; i < N_CASES; i++)
            for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
                const struct kv_case *c = &cases[i];
                size_t kn = (size_t)(c->len * c->n_head_kv * c->head_dim), qn = (size_t)(c->len * c->n_head * c->head_dim);
                float *q = random_floats(qn, 3), *k = random_floats(kn, 2), *v = random_floats(kn, 1), *out = malloc(qn * sizeof *out), *again = malloc(qn * sizeof *again);
                double *want = malloc(qn * sizeof *want);
                struct cache two = cache_open(c, exact, 2), one = cache_open(c, exact, 1);
                take_pages(&two, masks[m]), take_pages(&one, masks[m]);
                attend_all(&two, q, k, v, c->len, 20, out);
                float *kept_k = as_kept(&two, k, c->len, false), *kept_v = as_kept(&two, v, c->len, true);
                naive_attend(c, q, kept_k, kept_v, want);
                for (size_t j = 0; j < qn; j++)
                    if (!(fabs((double)out[j] - want[j]) < tolerance(c)))
                        fail_msg("case %d exact %d mask %x at %d: %g, expected %g", i, exact, masks[m], (int)j, (double)out[j], want[j]);
                /* other chunks, another number of threads: the same bits */
                attend_all(&one, q, k, v, c->len, 64, again);
                assert_memory_equal(out, again, qn * sizeof *out);
                attend_all(&one, q, NULL, NULL, c->len, 1, again);
                assert_memory_equal(out, again, qn * sizeof *out);
                free(q), free(k), free(v), free(out), free(again), free(want), free(kept_k), free(kept_v);
                cache_close(&two), cache_close(&one);
            }
}

static void small_pages_alone_are_pages_of_their_types(void **state) {
    (void)state;
    fo_rng_seed(&rng, 32);
    for (int i = 0; i < N_CASES; i++) {
        struct kv_case c = cases[i], plain = c;
        plain.k_type = c.k_floor, plain.v_type = c.v_floor;
        size_t kn = (size_t)(c.len * c.n_head_kv * c.head_dim), qn = (size_t)(c.len * c.n_head * c.head_dim);
        float *q = random_floats(qn, 3), *k = random_floats(kn, 2), *v = random_floats(kn, 1), *out = malloc(qn * sizeof *out), *want = malloc(qn * sizeof *want);
        struct cache a = cache_open(&c, false, 2), b = cache_open(&plain, false, 2);
        if (fo_kv_small(&a.g) == 0) fail_msg("case %d has no small pages", i);
        assert_int_equal(fo_kv_small(&b.g), 0);
        take_pages(&a, 0xFF), take_pages(&b, 0);
        attend_all(&a, q, k, v, c.len, 33, out);
        attend_all(&b, q, k, v, c.len, 33, want);
        assert_memory_equal(out, want, qn * sizeof *out);
        free(q), free(k), free(v), free(out), free(want);
        cache_close(&a), cache_close(&b);
    }
}

/* --- writing again --------------------------------------------------------------------------------------------------------------- */

static unsigned char *copy_of(const struct cache *c) {
    unsigned char *copy = malloc(c->bytes);
    assert_non_null(copy);
    memcpy(copy, c->g.pool, c->bytes);
    return copy;
}

/* The pool is what it was but for page `page` and what is left of place `lost`, if there is one. */
static void nothing_else_changed(const struct cache *c, const unsigned char *before, uint32_t page, uint32_t lost) {
    struct fo_kv_place at = fo_kv_place(&c->g, page), of = fo_kv_place(&c->g, lost);
    for (uint64_t i = 0; i < c->bytes; i++) {
        if ((i >= at.off && i < at.off + at.bytes) || (lost < c->g.n_pages && i >= of.off && i < of.off + of.bytes)) continue;
        if (before[i] != c->g.pool[i]) fail_msg("byte %llu of the pool changed", (unsigned long long)i);
    }
}

static void a_page_written_again_is_one_that_was_stored_so(void **state) {
    (void)state;
    fo_rng_seed(&rng, 33);
    for (int threads = 1; threads <= 2; threads++)
        for (int i = 0; i < N_CASES; i++) {
            const struct kv_case *c = &cases[i];
            size_t kn = (size_t)(c->len * c->n_head_kv * c->head_dim), qn = (size_t)(c->len * c->n_head * c->head_dim);
            float *q = random_floats(qn, 3), *k = random_floats(kn, 2), *v = random_floats(kn, 1), *out = malloc(qn * sizeof *out), *want = malloc(qn * sizeof *want);
            struct cache a = cache_open(c, false, threads), b = cache_open(c, false, threads);
            struct fo_err e;
            take_pages(&a, 0);
            attend_all(&a, q, k, v, c->len, 20, out);
            float *kept_k = as_kept(&a, k, c->len, false), *kept_v = as_kept(&a, v, c->len, true);
            for (int p = 0; p < a.n_pages; p++) {
                unsigned char *before = copy_of(&a);
                uint32_t from = a.pages[p], own = small_page(&a.g, from, 0), other = small_page(&a.g, (uint32_t)a.g.n_pages - 1, fo_kv_small(&a.g) - 1);
                bool in_place = p % 2 == 0;
                a.pages[p] = in_place ? own : other;
                if (fo_kv_requantise(a.s, &a.g, from, a.pages[p], &e)) fail_msg("case %d: %s", i, e.msg);
                nothing_else_changed(&a, before, a.pages[p], in_place ? from : UINT32_MAX);
                if (!in_place) { /* and back beside where it was, as small as it is */
                    memcpy(before, a.g.pool, a.bytes);
                    if (fo_kv_requantise(a.s, &a.g, other, own, &e)) fail_msg("case %d: %s", i, e.msg);
                    nothing_else_changed(&a, before, own, UINT32_MAX);
                    a.pages[p] = own;
                }
                free(before);
            }
            take_pages(&b, 0xFF);
            attend_all(&a, q, NULL, NULL, c->len, 20, out);
            attend_all(&b, q, kept_k, kept_v, c->len, 20, want);
            assert_memory_equal(out, want, qn * sizeof *out);
            free(q), free(k), free(v), free(out), free(want), free(kept_k), free(kept_v);
            cache_close(&a), cache_close(&b);
        }
}

static void refuses_pages_that_it_cannot_write(void **state) {
    (void)state;
    struct cache c = cache_open(&cases[1], false, 1), none = cache_open(&(struct kv_case){ FO_F16, FO_F16, FO_F16, FO_F16, 2, 1, 64, 64, 0, 100 }, false, 1);
    struct fo_err e;
    assert_int_equal(fo_kv_small(&c.g), 3);
    uint32_t n = (uint32_t)c.g.n_pages;
    assert_int_equal(fo_kv_requantise(c.s, &c.g, 1, 0, &e), FO_EINTERNAL);                         /* no small page */
    assert_int_equal(fo_kv_requantise(c.s, &c.g, 4 * n, small_page(&c.g, 0, 0), &e), FO_EINTERNAL); /* beyond all */
    assert_int_equal(fo_kv_requantise(c.s, &c.g, 1, 4 * n, &e), FO_EINTERNAL);
    assert_int_equal(fo_kv_requantise(c.s, &c.g, 1, small_page(&c.g, 1, 1), &e), FO_EINTERNAL); /* in the midst of what it is to read */
    assert_int_equal(fo_kv_requantise(c.s, &c.g, n + 1, n + 1, &e), FO_EINTERNAL);
    assert_int_equal(fo_kv_requantise(none.s, &none.g, 0, (uint32_t)none.g.n_pages, &e), FO_EINTERNAL);
    /* a page past them in a batch */
    float x[1024] = { 0 }, out[1024];
    uint32_t page = 4 * n;
    struct fo_attn_seq seq = { .n = 1, .pages = &page };
    struct fo_attn_batch b = { .seqs = &seq, .n_seqs = 1, .n_rows = 1 };
    assert_int_equal(fo_attend(c.s, &c.g, x, &b, 0, out, &e), FO_EINTERNAL);
    page--;
    assert_int_equal(fo_kv_store(c.s, &c.g, x, x, &b, 0, &e), FO_OK);
    assert_int_equal(fo_attend(c.s, &c.g, x, &b, 0, out, &e), FO_OK);
    cache_close(&c), cache_close(&none);
}

/* --- giving memory back ---------------------------------------------------------------------------------------------------------- */

static void what_is_discarded_goes_back_to_the_host(void **state) {
    (void)state;
    enum { BYTES = 1 << 20, FROM = 5000, LEN = 300000 };
    struct fo_device *d;
    struct fo_err e;
    void *block;
    assert_int_equal(fo_device_open("cpu", "", NULL, &d, &e), FO_OK);
    assert_int_equal(d->alloc(d, BYTES, &block, &e), FO_OK);
    unsigned char *p = block;
    memset(p, 7, BYTES);
    d->discard(d, p + FROM, LEN);
    d->discard(d, p + 100, 50); /* no whole page in it */
    int back = 0;
    for (int i = 0; i < BYTES; i++) {
        bool inside = i >= FROM && i < FROM + LEN;
        if (p[i] != 7 && !inside) fail_msg("byte %d beside what was discarded is gone", i);
        back += inside && p[i] == 0;
    }
    assert_true(back > LEN - 2 * 65536 && back % 4096 == 0); /* zeros: the pages are the system's again */
    memset(p, 9, BYTES);
    assert_int_equal(p[FROM + 10000], 9);
    d->free(d, block, BYTES);
    fo_device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_small_pages_and_says_where_they_lie),
        cmocka_unit_test(turning_keeps_products_and_undoes_itself),
        cmocka_unit_test(attends_over_pages_of_both_kinds_as_double_arithmetic_does),
        cmocka_unit_test(small_pages_alone_are_pages_of_their_types),
        cmocka_unit_test(a_page_written_again_is_one_that_was_stored_so),
        cmocka_unit_test(refuses_pages_that_it_cannot_write),
        cmocka_unit_test(what_is_discarded_goes_back_to_the_host),
    };
    return cmocka_run_group_tests_name("kv_pages", tests, NULL, NULL);
}
