/* The sampler: the chain against a slow reference made by sorting, determinism, bounds, and its speed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/sampler.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"

enum { V = 500 };

static struct pn_sampler *make(const struct pn_sampling *p, int32_t n_vocab) {
    struct pn_sampler *s;
    struct fo_err e = { 0 };
    assert_int_equal(pn_sampler_new(p, n_vocab, &s, &e), 0);
    return s;
}

/* Picks once over a copy. */
static int32_t pick(struct pn_sampler *s, const float *logits, int32_t n) {
    float *copy = malloc((size_t)n * sizeof *copy);
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    int32_t id = pn_sampler_pick(s, copy);
    free(copy);
    return id;
}

static void random_logits(float *l, int32_t n, uint64_t seed, double spread) {
    struct fo_rng r;
    fo_rng_seed(&r, seed);
    for (int32_t i = 0; i < n; i++) l[i] = (float)((fo_rng_unit(&r) + fo_rng_unit(&r) + fo_rng_unit(&r) - 1.5) * spread);
}

static void greedy_takes_the_largest_and_the_lowest_id_among_equals(void **state) {
    (void)state;
    struct pn_sampling p = pn_sampling_default;
    p.temperature = 0;
    struct pn_sampler *s = make(&p, 5);
    assert_int_equal(pick(s, (float[]){ 1, 3, 2, 3, 0 }, 5), 1);
    assert_int_equal(pick(s, (float[]){ -5, -5, -5, -5, -5 }, 5), 0);
    assert_int_equal(pick(s, (float[]){ 0, 1, INFINITY, INFINITY, 2 }, 5), 2);
    pn_sampler_free(s);
}

static void nan_never_wins_and_all_nan_is_an_error(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct pn_sampling p = pn_sampling_default;
        p.temperature = (float)t;
        p.top_k = t ? 2 : 0;
        struct pn_sampler *s = make(&p, 4);
        for (int i = 0; i < 100; i++) assert_int_equal(pick(s, (float[]){ NAN, NAN, -3, NAN }, 4), 2);
        assert_int_equal(pick(s, (float[]){ NAN, NAN, NAN, NAN }, 4), -1);
        assert_int_equal(pick(s, (float[]){ -INFINITY, NAN, -INFINITY, NAN }, 4), -1);
        pn_sampler_free(s);
    }
}

/* --- against a reference that sorts ----------------------------------------------------------- */
static const float *by;
static int cmp_desc(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (by[x] != by[y]) return by[x] > by[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Which ids may come, and their exact probabilities, by the definition: sort, cut, cut, cut. */
static void reference(const struct pn_sampling *p, const float *logits, int32_t n, double *prob) {
    int32_t *order = malloc((size_t)n * sizeof *order);
    double *w = malloc((size_t)n * sizeof *w), sum = 0, seen = 0, kept = 0;
    for (int32_t i = 0; i < n; i++) order[i] = i, prob[i] = 0;
    by = logits;
    qsort(order, (size_t)n, sizeof *order, cmp_desc);
    int32_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    for (int32_t i = 0; i < k; i++) w[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)p->temperature), sum += w[i];
    int32_t m = 0;
    for (int32_t i = 0; i < k; i++) {
        if (p->top_p < 1 && i > 0 && seen >= (double)p->top_p * sum) break;
        seen += w[i];
        m = i + 1;
    }
    while (m > 1 && w[m - 1] < (double)p->min_p) m--;
    for (int32_t i = 0; i < m; i++) kept += w[i];
    for (int32_t i = 0; i < m; i++) prob[order[i]] = w[i] / kept;
    free(order);
    free(w);
}

static void draws_follow_the_sorted_definition_for_every_mix_of_cuts(void **state) {
    (void)state;
    static const struct {
        float t, top_p, min_p;
        int top_k;
    } mixes[] = {
        { 1, 1, 0, 0 },     { 0.8F, 0.95F, 0, 0 }, { 0.8F, 0.95F, 0.05F, 40 }, { 1.5F, 1, 0.1F, 0 },   { 0.7F, 1, 0, 20 },  { 2, 0.5F, 0, 0 },
        { 1, 0.001F, 0, 0 }, { 1, 1, 0, 1 },       { 1, 0.9F, 0, 3 },           { 0.3F, 0.99F, 0, 500 }, { 1, 0.8F, 0.3F, 0 }, { 100, 0.97F, 0, 0 },
    };
    enum { DRAWS = 20000 };
    float l[V];
    double prob[V];
    static int count[V];
    for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
        struct pn_sampling p = pn_sampling_default;
        p.temperature = mixes[m].t;
        p.top_p = mixes[m].top_p;
        p.min_p = mixes[m].min_p;
        p.top_k = mixes[m].top_k;
        p.seed = m;
        random_logits(l, V, 7 + m, 8);
        reference(&p, l, V, prob);
        struct pn_sampler *s = make(&p, V);
        memset(count, 0, sizeof count);
        for (int i = 0; i < DRAWS; i++) {
            int32_t id = pick(s, l, V);
            assert_in_range(id, 0, V - 1);
            count[id]++;
        }
        for (int32_t i = 0; i < V; i++) {
            if (prob[i] == 0) assert_int_equal(count[i], 0);
            double sd = sqrt(DRAWS * prob[i] * (1 - prob[i])) + 1;
            assert_true(fabs(count[i] - DRAWS * prob[i]) < 6 * sd);
        }
        pn_sampler_free(s);
    }
}

static void equal_logits_at_a_cut_keep_the_lowest_ids(void **state) {
    (void)state;
    float l[V];
    for (int32_t i = 0; i < V; i++) l[i] = 1;
    struct pn_sampling p = pn_sampling_default;
    p.top_k = 7;
    struct pn_sampler *s = make(&p, V);
    for (int i = 0; i < 500; i++) assert_in_range(pick(s, l, V), 0, 6);
    pn_sampler_free(s);
    p.top_k = 0;
    p.top_p = 0.1F; /* 50 of 500 equal ones; 0.1F is a little above a tenth */
    s = make(&p, V);
    for (int i = 0; i < 2000; i++) assert_in_range(pick(s, l, V), 0, 50);
    pn_sampler_free(s);
}

static void the_same_seed_gives_the_same_tokens_and_another_seed_others(void **state) {
    (void)state;
    float l[V];
    struct pn_sampling p = pn_sampling_default;
    p.top_p = 0.95F;
    p.seed = 42;
    struct pn_sampler *a = make(&p, V), *b = make(&p, V);
    p.seed = 43;
    struct pn_sampler *c = make(&p, V);
    int differ = 0;
    for (int i = 0; i < 200; i++) {
        random_logits(l, V, (uint64_t)i, 3);
        int32_t x = pick(a, l, V);
        assert_int_equal(x, pick(b, l, V));
        differ += x != pick(c, l, V);
    }
    assert_true(differ > 50);
    pn_sampler_free(a);
    pn_sampler_free(b);
    pn_sampler_free(c);
}

/* These numbers were drawn once; they must come out on every host, compiler and flavour. */
static void a_known_seed_gives_the_known_tokens_on_every_host(void **state) {
    (void)state;
    static const int32_t known[12] = { 274, 118, 24, 68, 140, 382, 117, 366, 167, 349, 151, 75 };
    float l[V];
    struct pn_sampling p = pn_sampling_default;
    p.temperature = 0.8F;
    p.top_p = 0.95F;
    p.top_k = 100;
    p.min_p = 0.01F;
    p.seed = 12345;
    struct pn_sampler *s = make(&p, V);
    for (int i = 0; i < 12; i++) {
        random_logits(l, V, (uint64_t)i + 1000, 3);
        assert_int_equal(pick(s, l, V), known[i]);
    }
    pn_sampler_free(s);
}

static void a_bias_bans_and_forces(void **state) {
    (void)state;
    float l[V];
    random_logits(l, V, 1, 10);
    struct pn_sampling p = pn_sampling_default;
    p.temperature = 0;
    struct pn_sampler *s = make(&p, V);
    int32_t best = pick(s, l, V);
    pn_sampler_free(s);

    struct pn_logit_bias bias[2] = { { best, -100 }, { 17, 100 } };
    p.bias = bias;
    p.n_bias = 1;
    l[best] = 5000; /* a ban is a ban, however sure the model is */
    s = make(&p, V);
    bias[0].id = 0; /* it was copied */
    assert_int_not_equal(pick(s, l, V), best);
    pn_sampler_free(s);

    l[best] = 1;
    bias[0].id = best;
    p.n_bias = 2;
    s = make(&p, V);
    assert_int_equal(pick(s, l, V), 17);
    pn_sampler_free(s);
}

static void repeat_penalty_counts_each_id_once_within_its_window(void **state) {
    (void)state;
    struct pn_sampling p = pn_sampling_default;
    p.temperature = 0;
    p.repeat_penalty = 2;
    p.repeat_last_n = 2;
    struct pn_sampler *s = make(&p, 3);
    float l[3] = { 4, 3, -1 };
    assert_int_equal(pick(s, l, 3), 0);
    pn_sampler_accept(s, 0, 0);
    pn_sampler_accept(s, 0, 1);
    assert_int_equal(pick(s, l, 3), 1); /* 4 / 2 < 3, once and not twice */
    float negative[3] = { -4, -7, -9 };
    assert_int_equal(pick(s, negative, 3), 1); /* -4 * 2 */
    pn_sampler_accept(s, 1, 1);
    pn_sampler_accept(s, 2, 1); /* the window holds 1 and 2 now */
    assert_int_equal(pick(s, l, 3), 0);
    pn_sampler_free(s);

    p.repeat_last_n = -1;
    s = make(&p, 3);
    pn_sampler_accept(s, 0, 0);
    for (int i = 0; i < 1000; i++) pn_sampler_accept(s, 2, 1);
    assert_int_equal(pick(s, l, 3), 1);
    pn_sampler_free(s);
}

static void presence_and_frequency_count_generated_tokens_only(void **state) {
    (void)state;
    struct pn_sampling p = pn_sampling_default;
    p.temperature = 0;
    p.presence_penalty = 1;
    p.frequency_penalty = 0.5F;
    struct pn_sampler *s = make(&p, 2);
    float l[2] = { 3, 0.9F };
    for (int i = 0; i < 10; i++) pn_sampler_accept(s, 0, 0);
    assert_int_equal(pick(s, l, 2), 0);
    pn_sampler_accept(s, 0, 1); /* 3 - 1 - 0.5 */
    assert_int_equal(pick(s, l, 2), 0);
    pn_sampler_accept(s, 0, 1); /* 3 - 1 - 1.0 = 1 > 0.9 */
    assert_int_equal(pick(s, l, 2), 0);
    pn_sampler_accept(s, 0, 1); /* 3 - 1 - 1.5 = 0.5 */
    assert_int_equal(pick(s, l, 2), 1);
    pn_sampler_free(s);
}

static void refuses_values_out_of_range_and_names_the_field(void **state) {
    (void)state;
    struct pn_logit_bias bias = { 3, 1 };
#define CASE(field, value) { #field, { .temperature = 1, .top_p = 1, .repeat_penalty = 1, .field = (value) } }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
    const struct {
        const char *field;
        struct pn_sampling p;
    } cases[] = {
        CASE(temperature, -0.1F),     CASE(temperature, NAN),         CASE(temperature, 101), CASE(top_k, -1),
        CASE(top_p, 0),               CASE(top_p, 1.1F),              CASE(top_p, NAN),       CASE(min_p, -0.1F),
        CASE(min_p, 1),               CASE(repeat_penalty, 0),        CASE(repeat_last_n, -2), CASE(presence_penalty, 2.1F),
        CASE(frequency_penalty, -3),  CASE(repeat_penalty, INFINITY), CASE(repeat_last_n, INT32_MAX),
    };
#pragma GCC diagnostic pop
#undef CASE
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pn_sampler *s = NULL;
        struct fo_err e = { 0 };
        assert_int_equal(pn_sampler_new(&cases[i].p, V, &s, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, cases[i].field));
        assert_null(s);
    }
    static const struct pn_logit_bias bad[] = { { -1, 0 }, { V, 0 }, { 0, 101 }, { 0, -101 }, { 0, NAN } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pn_sampling p = pn_sampling_default;
        struct pn_sampler *s = NULL;
        struct fo_err e = { 0 };
        bias = bad[i];
        p.bias = &bias;
        p.n_bias = 1;
        assert_int_equal(pn_sampler_new(&p, V, &s, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, "logit_bias"));
    }
}

static void survives_every_failing_allocation(void **state) {
    (void)state;
    struct pn_logit_bias bias = { 3, 1 };
    struct pn_sampling p = pn_sampling_default;
    p.top_k = 10;
    p.repeat_penalty = 1.1F;
    p.repeat_last_n = 64;
    p.presence_penalty = 1;
    p.bias = &bias;
    p.n_bias = 1;
    for (long n = 1;; n++) {
        struct pn_sampler *s = NULL;
        struct fo_err e = { 0 };
        test_fail_alloc(n);
        int rc = pn_sampler_new(&p, V, &s, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            assert_true(n > 4);
            pn_sampler_free(s);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
        assert_null(s);
    }
    pn_sampler_free(NULL);
}

static void a_pick_allocates_nothing_and_takes_under_a_millisecond(void **state) {
    (void)state;
    enum { BIG = 49152, N = 50 };
    struct pn_sampling p = pn_sampling_default;
    p.temperature = 0.8F;
    p.top_p = 0.95F;
    static const double spreads[] = { 20, 4, 0.01 }; /* peaked, broad, and nearly flat: the worst for a selection. Models are peaked */
    float *l = malloc(BIG * sizeof *l), *copy = malloc(BIG * sizeof *copy);
    for (int k = 0; k < 2; k++)
        for (size_t m = 0; m < 3; m++) {
            p.top_k = k ? 40 : 0;
            struct pn_sampler *s = make(&p, BIG);
            random_logits(l, BIG, 5, spreads[m]);
            double best = 1e9;
            test_fail_alloc(0);
            for (int i = 0; i < N; i++) {
                struct timespec a, b;
                memcpy(copy, l, BIG * sizeof *copy);
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
                pn_sampler_pick(s, copy);
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
                double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
                if (ms < best) best = ms;
            }
            assert_int_equal(test_allocs(), 0);
            print_message("pick over %d tokens, top_k %d, spread %g: %.3f ms\n", BIG, p.top_k, spreads[m], best);
#ifndef FO_DEBUG
            if (spreads[m] > 10) assert_true(best < 1.0);
#endif
            pn_sampler_free(s);
        }
    free(l);
    free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_among_equals),
        cmocka_unit_test(nan_never_wins_and_all_nan_is_an_error),
        cmocka_unit_test(draws_follow_the_sorted_definition_for_every_mix_of_cuts),
        cmocka_unit_test(equal_logits_at_a_cut_keep_the_lowest_ids),
        cmocka_unit_test(the_same_seed_gives_the_same_tokens_and_another_seed_others),
        cmocka_unit_test(a_known_seed_gives_the_known_tokens_on_every_host),
        cmocka_unit_test(a_bias_bans_and_forces),
        cmocka_unit_test(repeat_penalty_counts_each_id_once_within_its_window),
        cmocka_unit_test(presence_and_frequency_count_generated_tokens_only),
        cmocka_unit_test(refuses_values_out_of_range_and_names_the_field),
        cmocka_unit_test(survives_every_failing_allocation),
        cmocka_unit_test(a_pick_allocates_nothing_and_takes_under_a_millisecond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
