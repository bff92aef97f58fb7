#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kv.h"
#include "engine/model.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"

enum { PAGE = FO_KV_PAGE_TOKENS, PAGES = 10, CAP = 6 * PAGE };

struct pool {
    struct pn_kv kv;
    void *host;
};

/* With n_small small pages in a place; 0 = none. */
static void pool_init_small(struct pool *p, uint32_t n_small) {
    struct fo_err e;
    struct fo_arena host, device;
    unsigned char *states;
    p->kv = (struct pn_kv){
        .ctx_cap = CAP,
        .max_seq_pages = 6,
        .page_tokens = PAGE,
        .n_pages = PAGES,
        .n_small = n_small,
    };
    pn_kv_set_window(&p->kv, 0, PAGE);
    struct fo_kv_geom geom = { .k_type = FO_F16, .v_type = FO_F16, .n_layer = 2, .n_head_kv = 1, .n_head = 1, .head_dim = 32, .page_tokens = PAGE, .n_pages = PAGES };
    fo_arena_init_measure(&host);
    fo_arena_init_measure(&device);
    assert_int_equal(pn_kv_layout(&p->kv, &host, &e), FO_OK);
    assert_int_equal(pn_kv_pool_layout(&geom, 128, &device, NULL, &states, &e), FO_OK);
    assert_null(geom.pool);
    assert_null(states);
    uint64_t host_bytes = host.used, device_bytes = device.used;
    assert_true(device_bytes >= PAGES * fo_kv_page_bytes(&geom));
    p->host = aligned_alloc(64, (host_bytes + 63) & ~(uint64_t)63);
    assert_non_null(p->host);
    static unsigned char block[1]; /* offsets only: nothing is written through it */
    fo_arena_init_host(&host, p->host, host_bytes);
    fo_arena_init_device(&device, device_bytes);
    assert_int_equal(pn_kv_layout(&p->kv, &host, &e), FO_OK);
    assert_int_equal(pn_kv_pool_layout(&geom, 128, &device, block, &states, &e), FO_OK);
    assert_int_equal(host.used, host_bytes);
    assert_int_equal(device.used, device_bytes);
    assert_ptr_equal(geom.pool, block);
    assert_ptr_equal(states, block + PAGES * fo_kv_page_bytes(&geom));
    pn_kv_clear(&p->kv);
}

static void pool_init(struct pool *p) {
    pool_init_small(p, 0);
}

static struct pn_seq *seq(struct pool *p) {
    struct fo_err e;
    struct pn_seq *s;
    assert_int_equal(pn_kv_seq_new(&p->kv, p->kv.ctx_cap, &s, &e), FO_OK);
    return s;
}

/* As the forward pass does: pages first, then the tokens count. */
static void grow(struct pn_seq *s, uint32_t n) {
    struct fo_err e;
    assert_int_equal(pn_seq_reserve(s, n, &e), FO_OK);
    while (s->len < n) {
        s->tokens[s->len] = (int32_t)s->len;
        s->len++;
    }
}

static void takes_a_page_only_when_a_token_needs_it(void **state) {
    (void)state;
    struct pool p;
    pool_init(&p);
    struct pn_seq *s = seq(&p);
    assert_int_equal(p.kv.n_free, PAGES);
    grow(s, 1);
    assert_int_equal(p.kv.n_free, PAGES - 1);
    grow(s, PAGE);
    assert_int_equal(p.kv.n_free, PAGES - 1);
    grow(s, PAGE + 1);
    assert_int_equal(p.kv.n_free, PAGES - 2);
    pn_seq_free(s);
    assert_int_equal(p.kv.n_free, PAGES);
    free(p.host);
}

static void truncate_keeps_the_first_tokens_and_gives_pages_back(void **state) {
    (void)state;
    struct pool p;
    pool_init(&p);
    struct pn_seq *s = seq(&p);
    grow(s, 3 * PAGE + 1);
    uint32_t first = s->pages[0], second = s->pages[1];
    assert_int_equal(pn_seq_truncate(s, PAGE + 1), PAGE + 1);
    assert_int_equal(pn_seq_len(s), PAGE + 1);
    assert_int_equal(p.kv.n_free, PAGES - 2);
    assert_int_equal(s->pages[0], first);
    assert_int_equal(s->pages[1], second);
    assert_int_equal(pn_seq_tokens(s)[PAGE], PAGE);
    assert_int_equal(pn_seq_truncate(s, 5 * PAGE), PAGE + 1); /* it cannot grow one */
    assert_int_equal(pn_seq_truncate(s, 0), 0);
    assert_int_equal(p.kv.n_free, PAGES);
    pn_seq_free(s);
    free(p.host);
}

static void the_page_given_back_last_is_taken_first(void **state) {
    (void)state;
    struct pool p;
    pool_init(&p);
    struct pn_seq *s = seq(&p);
    grow(s, 2 * PAGE);
    assert_int_equal(s->pages[0], 0);
    uint32_t last = s->pages[1];
    pn_seq_truncate(s, PAGE);
    grow(s, 2 * PAGE);
    assert_int_equal(s->pages[1], last);
    pn_seq_free(s);
    free(p.host);
}

static void refuses_a_prompt_past_the_cap(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    pool_init(&p);
    struct pn_seq *s = seq(&p);
    assert_int_equal(pn_seq_reserve(s, CAP + 1, &e), FO_EBUDGET);
    assert_int_equal(e.need, CAP + 1);
    assert_int_equal(e.have, CAP);
    assert_int_equal(p.kv.n_free, PAGES);
    assert_int_equal(pn_seq_reserve(s, CAP, &e), FO_OK);
    pn_seq_free(s);
    free(p.host);
}

static void an_empty_pool_refuses_with_pages_and_takes_none(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    pool_init(&p);
    struct pn_seq *a = seq(&p), *b = seq(&p);
    grow(a, 6 * PAGE);
    grow(b, PAGE);
    assert_int_equal(pn_seq_reserve(b, 6 * PAGE, &e), FO_ENOMEM);
    assert_int_equal(e.need, 5);
    assert_int_equal(e.have, 3);
    assert_int_equal(p.kv.n_free, 3);
    assert_int_equal(b->n_pages, 1);
    pn_seq_truncate(a, 0);
    assert_int_equal(pn_seq_reserve(b, 6 * PAGE, &e), FO_OK);
    pn_seq_free(a);
    pn_seq_free(b);
    free(p.host);
}

static void no_page_is_ever_held_twice_or_lost(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    struct fo_rng rng;
    pool_init(&p);
    fo_rng_seed(&rng, 7);
    struct pn_seq *s[4];
    for (int i = 0; i < 4; i++) s[i] = seq(&p);
    for (int step = 0; step < 20000; step++) {
        struct pn_seq *q = s[fo_rng_u64(&rng) % 4];
        uint32_t n = (uint32_t)(fo_rng_u64(&rng) % (CAP + 1));
        if (n <= q->len)
            pn_seq_truncate(q, n);
        else if (pn_seq_reserve(q, n, &e) == FO_OK)
            q->len = n;
        else
            assert_int_equal(e.code, FO_ENOMEM);
        int holders[PAGES] = { 0 };
        for (uint32_t i = 0; i < p.kv.n_free; i++) holders[p.kv.free_pages[i]]++;
        for (int i = 0; i < 4; i++)
            for (uint32_t j = 0; j < s[i]->n_pages; j++) holders[s[i]->pages[j]]++;
        for (int i = 0; i < PAGES; i++) assert_int_equal(holders[i], 1);
    }
    for (int i = 0; i < 4; i++) pn_seq_free(s[i]);
    assert_int_equal(p.kv.n_free, PAGES);
    free(p.host);
}

/* Who holds which page, and that places hold a page, or small ones, or nothing. */
static void check_places(const struct pn_kv *kv, struct pn_seq *const *s, int n) {
    uint32_t held[PAGES * 9] = { 0 }, n_free = 0, partly = 0, room = 0, small = 0;
    for (int i = 0; i < n; i++)
        for (uint32_t j = 0; j < s[i]->n_pages; j++) held[s[i]->pages[j]]++;
    for (uint32_t i = 0; i < pn_kv_numbers(kv); i++) assert_int_equal(held[i], kv->refs[i]);
    for (uint32_t place = 0; place < PAGES; place++) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < kv->n_small; i++) k += held[PAGES + place * kv->n_small + i] > 0;
        assert_true(k == 0 || held[place] == 0);
        n_free += k == 0 && held[place] == 0;
        small += k;
        partly += k > 0 && k < kv->n_small;
        room += k > 0 ? kv->n_small - k : 0;
    }
    assert_int_equal(kv->n_free, n_free);
    assert_int_equal(kv->n_partly, partly);
    assert_int_equal(kv->n_small_held, small);
    assert_int_equal(kv->n_small_free, room);
    for (uint32_t i = 0; i < kv->n_partly; i++) assert_int_equal(kv->at[kv->partly[i]], i);
}

/* Pages of both kinds come, go and are made small at random. */
static void small_pages_share_places_and_none_is_lost(void **state) {
    (void)state;
    static const uint32_t per_place[] = { 1, 2, 3, 7 };
    for (size_t v = 0; v < sizeof per_place / sizeof *per_place; v++) {
        struct pool p;
        struct fo_err e;
        struct fo_rng rng;
        struct pn_seq *s[4];
        uint64_t made = 0, refused = 0;
        pool_init_small(&p, per_place[v]);
        fo_rng_seed(&rng, 70 + v);
        for (int i = 0; i < 4; i++) s[i] = seq(&p);
        for (int step = 0; step < 20000; step++) {
            struct pn_seq *q = s[fo_rng_u64(&rng) % 4];
            uint32_t n = (uint32_t)(fo_rng_u64(&rng) % (CAP + 1)), at = (uint32_t)(fo_rng_u64(&rng) % 6);
            if (fo_rng_u64(&rng) % 16 == 0) p.kv.floor = !p.kv.floor;
            if (at < q->n_pages && !pn_kv_is_small(&p.kv, q->pages[at])) {
                uint32_t to = pn_kv_small_to(&p.kv, q->pages[at]);
                pn_kv_made_small(&p.kv, q->pages[at], to);
                q->pages[at] = to;
                made++;
            }
            uint64_t room = pn_kv_room(&p.kv, pn_kv_takes_small(&p.kv));
            uint32_t more = pn_kv_pages(&p.kv, n) > q->n_pages ? pn_kv_pages(&p.kv, n) - q->n_pages : 0;
            if (n <= q->len) {
                pn_seq_truncate(q, n);
            } else if (pn_seq_reserve(q, n, &e) == FO_OK) {
                assert_true(more <= room);
                pn_kv_seq_touch(q, n - q->len);
                q->len = n;
            } else {
                assert_int_equal(e.code, FO_ENOMEM);
                assert_true(more > room && e.need == more && e.have == room);
                refused++;
            }
            check_places(&p.kv, s, 4);
        }
        assert_true(made > 100 && (refused > 0 || per_place[v] > 2));
        for (int i = 0; i < 4; i++) pn_seq_free(s[i]);
        assert_int_equal(p.kv.n_free, PAGES);
        assert_int_equal(p.kv.n_small_held, 0);
        assert_int_equal(p.kv.n_free_touched, p.kv.n_touched);
        free(p.host);
    }
}

/* What a sequence under a window must be able to see, and no page more than it may hold; pages are lost or doubled nowhere. */
static void check_window(const struct pool *p, struct pn_seq *const *s, int n) {
    int holders[PAGES] = { 0 };
    for (uint32_t i = 0; i < p->kv.n_free; i++) holders[p->kv.free_pages[i]]++;
    for (int i = 0; i < n; i++) {
        uint32_t sees = s[i]->len >= p->kv.window ? s[i]->len - p->kv.window + 1 : 0;
        assert_true(s[i]->first_page <= sees / PAGE);
        assert_true(s[i]->n_pages >= pn_kv_pages(&p->kv, s[i]->len));
        assert_true(pn_seq_pages(s[i]) <= p->kv.held_pages);
        for (uint32_t j = s[i]->first_page; j < s[i]->n_pages; j++) holders[s[i]->pages[j]]++;
    }
    for (int i = 0; i < PAGES; i++) assert_int_equal(holders[i], 1);
}

static void pages_behind_the_window_serve_again(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    pool_init(&p);
    p.kv.ctx_cap = 100 * PAGE;
    p.kv.max_seq_pages = 100;
    pn_kv_set_window(&p.kv, PAGE + 3, 2);
    assert_int_equal(p.kv.held_pages, 3);
    struct pn_seq *s = seq(&p);
    assert_int_equal(pn_seq_reserve(s, 90 * PAGE, &e), FO_OK); /* once for all: what follows takes nothing more */
    assert_int_equal(p.kv.n_free, PAGES - 3);
    for (uint32_t n = 0; n < 90 * PAGE; n += 2) {
        assert_int_equal(pn_seq_reserve(s, n + 2, &e), FO_OK);
        assert_true(p.kv.n_free == PAGES - 3 || s->n_pages == 90); /* the last ones are free again: nothing is left to reserve */
        s->len = n + 2;
        pn_kv_seq_slide(s);
        check_window(&p, &s, 1);
    }
    /* A cut within what is kept is one; before it there is nothing to go on from. */
    assert_int_equal(pn_seq_truncate(s, 90 * PAGE - 1), 90 * PAGE - 1);
    check_window(&p, &s, 1);
    assert_int_equal(pn_seq_truncate(s, 87 * PAGE), 0);
    assert_int_equal(pn_seq_pages(s), 0);
    assert_int_equal(p.kv.n_free, PAGES);
    pn_seq_free(s);
    free(p.host);
}

static void no_page_is_lost_under_a_window(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    struct fo_rng rng;
    fo_rng_seed(&rng, 11);
    for (int round = 0; round < 50; round++) {
        pool_init(&p);
        p.kv.ctx_cap = 40 * PAGE;
        p.kv.max_seq_pages = 40;
        uint32_t step = 1 + (uint32_t)(fo_rng_u64(&rng) % (2 * PAGE));
        pn_kv_set_window(&p.kv, 1 + (uint32_t)(fo_rng_u64(&rng) % (3 * PAGE)), step);
        struct pn_seq *s[3];
        for (int i = 0; i < 3; i++) s[i] = seq(&p);
        for (int turn = 0; turn < 1000; turn++) {
            struct pn_seq *q = s[fo_rng_u64(&rng) % 3];
            uint32_t n = q->len + 1 + (uint32_t)(fo_rng_u64(&rng) % step);
            if (fo_rng_u64(&rng) % 50 == 0) {
                pn_seq_truncate(q, (uint32_t)(fo_rng_u64(&rng) % (q->len + 1)));
            } else if (n <= p.kv.ctx_cap && pn_seq_reserve(q, fo_rng_u64(&rng) % 3 ? n : p.kv.ctx_cap, &e) == FO_OK) {
                assert_int_equal(pn_seq_reserve(q, n, &e), FO_OK);
                q->len = n;
                pn_kv_seq_slide(q);
            }
            check_window(&p, s, 3);
        }
        for (int i = 0; i < 3; i++) pn_seq_free(s[i]);
        assert_int_equal(p.kv.n_free, PAGES);
        free(p.host);
    }
}

/* What it needs when the pages that it shares fall out of its window was reserved beforehand: nobody else has to let go of any. */
static void a_sequence_that_shares_pages_goes_on_when_they_are_out_of_sight(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    pool_init(&p);
    p.kv.ctx_cap = 40 * PAGE;
    p.kv.max_seq_pages = 40;
    pn_kv_set_window(&p.kv, 2 * PAGE, 1);
    assert_int_equal(p.kv.held_pages, 3);
    struct pn_seq *a = seq(&p), *b = seq(&p), *hog[2] = { seq(&p), seq(&p) };
    grow(a, 2 * PAGE);
    pn_seq_truncate(a, 2 * PAGE); /* idle: it counts on no pages */
    assert_int_equal(pn_kv_seq_start(a, 2 * PAGE), 2 * PAGE);
    pn_kv_seq_share(a, 2 * PAGE, b);
    assert_int_equal(p.kv.n_free, PAGES - 2);
    assert_int_equal(pn_seq_reserve(b, 20 * PAGE, &e), FO_OK);
    assert_int_equal(pn_seq_pages(b), 3 + 2);
    assert_int_equal(pn_kv_seq_start(b, 2 * PAGE), 0); /* it counts on its own when they are out of sight */
    grow(hog[0], 3 * PAGE);
    grow(hog[1], 2 * PAGE);
    assert_int_equal(p.kv.n_free, 0);
    while (b->len < 20 * PAGE) {
        assert_int_equal(pn_seq_reserve(b, b->len + 1, &e), FO_OK);
        b->len++;
        pn_kv_seq_slide(b);
        for (uint32_t i = b->first_page; i < b->n_pages; i++) assert_true(p.kv.refs[b->pages[i]] == 1 || i < 2);
    }
    assert_int_equal(p.kv.refs[a->pages[0]], 1);
    assert_int_equal(p.kv.refs[a->pages[1]], 1);
    pn_seq_free(a);
    pn_seq_free(b);
    for (int i = 0; i < 2; i++) pn_seq_free(hog[i]);
    assert_int_equal(p.kv.n_free, PAGES);
    free(p.host);
}

/* A page that others hold is neither cut nor written to. */
static void a_cut_within_a_shared_page_keeps_nothing_of_it(void **state) {
    (void)state;
    struct pool p;
    pool_init(&p);
    struct pn_seq *a = seq(&p), *b = seq(&p);
    grow(a, 3 * PAGE + 1);
    pn_kv_seq_share(a, pn_kv_seq_start(a, 3 * PAGE - 1), b);
    assert_int_equal(pn_seq_len(b), 2 * PAGE);
    assert_int_equal(pn_seq_truncate(a, 3 * PAGE - 1), 3 * PAGE - 1); /* its own */
    assert_int_equal(pn_seq_truncate(a, 2 * PAGE - 1), PAGE);
    assert_int_equal(p.kv.refs[b->pages[0]], 2);
    assert_int_equal(p.kv.refs[b->pages[1]], 1);
    assert_int_equal(pn_seq_truncate(b, 2 * PAGE - 1), 2 * PAGE - 1); /* nobody else has it any more */
    assert_int_equal(pn_seq_truncate(b, 1), 0);
    pn_seq_free(a);
    pn_seq_free(b);
    assert_int_equal(p.kv.n_free, PAGES);
    free(p.host);
}

static void refuses_more_pages_than_can_be_counted(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    struct fo_arena a;
    unsigned char *states;
    pool_init(&p);
    for (int i = 0; i < 2; i++) {
        fo_arena_init_measure(&a);
        p.kv.n_pages = i ? UINT64_MAX : (uint64_t)UINT32_MAX + 1;
        assert_int_equal(pn_kv_layout(&p.kv, &a, &e), FO_ELIMIT);
    }
    fo_arena_init_measure(&a);
    p.kv.n_pages = UINT32_MAX / 2; /* small ones have numbers too */
    p.kv.n_small = 2;
    assert_int_equal(pn_kv_layout(&p.kv, &a, &e), FO_ELIMIT);
    struct fo_kv_geom geom = { .k_type = FO_F16, .v_type = FO_F16, .n_layer = 2, .n_head_kv = 1, .n_head = 1, .head_dim = 32, .page_tokens = PAGE, .n_pages = UINT64_MAX };
    assert_int_equal(pn_kv_pool_layout(&geom, 0, &a, NULL, &states, &e), FO_ELIMIT);
    geom.n_pages = 1;
    assert_int_equal(pn_kv_pool_layout(&geom, UINT64_MAX, &a, NULL, &states, &e), FO_ELIMIT);
    free(p.host);
}

static void a_sequence_that_finds_no_memory_is_an_error(void **state) {
    (void)state;
    struct pool p;
    struct fo_err e;
    struct pn_seq *s = NULL;
    pool_init(&p);
    test_fail_alloc(1);
    assert_int_equal(pn_kv_seq_new(&p.kv, CAP, &s, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
    assert_null(s);
    pn_seq_free(NULL);
    free(p.host);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_a_page_only_when_a_token_needs_it),
        cmocka_unit_test(truncate_keeps_the_first_tokens_and_gives_pages_back),
        cmocka_unit_test(the_page_given_back_last_is_taken_first),
        cmocka_unit_test(refuses_a_prompt_past_the_cap),
        cmocka_unit_test(an_empty_pool_refuses_with_pages_and_takes_none),
        cmocka_unit_test(no_page_is_ever_held_twice_or_lost),
        cmocka_unit_test(small_pages_share_places_and_none_is_lost),
        cmocka_unit_test(pages_behind_the_window_serve_again),
        cmocka_unit_test(no_page_is_lost_under_a_window),
        cmocka_unit_test(a_sequence_that_shares_pages_goes_on_when_they_are_out_of_sight),
        cmocka_unit_test(a_cut_within_a_shared_page_keeps_nothing_of_it),
        cmocka_unit_test(refuses_more_pages_than_can_be_counted),
        cmocka_unit_test(a_sequence_that_finds_no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
