/* What is kept of texts: found by the longest common beginning, shared by the page or moved, given up in turn; and why a prompt was not found. A
 * thousand conversations at random are in test_branches.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/index.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/prefix.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"

enum { PAGE = FO_KV_PAGE_TOKENS, CTX = 16 * PAGE, VOCAB = 96 };

static struct fo_device *dev;

struct world {
    struct pn_model *m;
    struct pn_prefix *cache;
    int32_t text[CTX]; /* that the others begin with */
};

static void open_world(struct world *w, const char *path, uint32_t sessions) {
    struct fo_err e;
    struct pn_model_opts o = { .dev = dev, .k_type = FO_F16, .v_type = FO_F16, .max_sessions = sessions, .max_concurrent = sessions, .max_batch = 2 * PAGE };
    if (pn_model_open(path, &o, &w->m, &e) || pn_prefix_new(w->m, sessions, &w->cache, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < CTX; i++) w->text[i] = 3 + i * 7 % (VOCAB - 3);
    unlink(path);
}

static void open_tiny(struct world *w, uint32_t sessions, uint32_t window) {
    odd_write(odd_path(0), &(struct odd){ .n_layer = 1, .n_embd = 32, .n_ff = 32, .n_head = 1, .n_head_kv = 1, .n_vocab = VOCAB, .n_ctx = CTX, .window = window });
    open_world(w, odd_path(0), sessions);
}

static void open_stateful(struct world *w, uint32_t sessions) {
    struct fo_err e;
    struct test_script t = test_script_default();
    t.n_ctx = CTX;
    t.state_bytes = 64;
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    open_world(w, odd_path(0), sessions);
}

static void check(const struct world *w) {
    assert_true(pn_prefix_check(w->cache, NULL, 0));
}

static void close_world(struct world *w) {
    check(w);
    while (pn_prefix_evict(w->cache)) {}
    check(w); /* the index is empty too */
    pn_prefix_free(w->cache);
    assert_int_equal(pn_model_free_pages(w->m), pn_model_info(w->m)->n_pages);
    pn_model_free(w->m);
}

/* What came of a prompt. */
struct begun {
    struct pn_seq *seq;
    uint32_t cached, shared;
    enum pn_cache_miss miss;
};

static struct begun begin_only(struct world *w, const char *tenant, const int32_t *tokens, uint32_t n) {
    struct begun b;
    struct fo_err e;
    if (pn_prefix_begin(w->cache, tenant, tokens, n, &b.seq, &b.miss, &b.shared, &e)) fail_msg("%s", e.msg);
    b.cached = pn_seq_len(b.seq);
    check(w);
    return b;
}

static struct begun begin(struct world *w, const char *tenant, const int32_t *tokens, uint32_t n) {
    struct begun b = begin_only(w, tenant, tokens, n);
    struct fo_err e;
    if (pn_prefix_reserve(w->cache, b.seq, n, &e)) fail_msg("%s", e.msg);
    check(w);
    return b;
}

/* Computes what is new of the prompt. */
static void feed(struct world *w, struct pn_seq *seq, const int32_t *tokens, uint32_t n) {
    struct fo_err e;
    float *logits;
    for (uint32_t at = pn_seq_len(seq), k; at < n; at += k) {
        k = pn_seq_chunk(seq, n - at < 2 * PAGE ? n - at : 2 * PAGE);
        struct pn_batch_item it = { seq, tokens + at, k, PN_WANT_LAST };
        if (pn_model_forward(w->m, &it, 1, &logits, &e)) fail_msg("%s", e.msg);
    }
    check(w);
}

static void keep(struct world *w, const char *tenant, const char *session, const int32_t *tokens, uint32_t n) {
    struct begun b = begin(w, tenant, tokens, n);
    feed(w, b.seq, tokens, n);
    pn_prefix_put(w->cache, session, b.seq);
    check(w);
}

/* What a prompt would find, which is not kept. A text that it moves out is put back. */
static struct begun probe(struct world *w, const char *tenant, const int32_t *tokens, uint32_t n) {
    struct begun b = begin_only(w, tenant, tokens, n);
    if (b.cached % PAGE) pn_prefix_put(w->cache, NULL, b.seq);
    else pn_prefix_drop(w->cache, b.seq);
    check(w);
    return b;
}

#define FOUND(b, c, s, why)                                                                                                                          \
    do {                                                                                                                                             \
        struct begun found_ = (b);                                                                                                                   \
        assert_int_equal(found_.cached, c);                                                                                                          \
        assert_int_equal(found_.shared, s);                                                                                                          \
        assert_int_equal(found_.miss, why);                                                                                                          \
    } while (0)

static void whole_pages_are_shared_wherever_a_prompt_parts(void **state) {
    (void)state;
    struct world w;
    int32_t other[CTX];
    open_tiny(&w, 2, 0);
    const uint32_t n = 3 * PAGE + 2, pages = 4;
    keep(&w, NULL, NULL, w.text, n);
    uint64_t was_free = pn_model_free_pages(w.m);
    for (uint32_t cut = 0; cut < n; cut++) { /* within a page, at its edges, at the first token */
        memcpy(other, w.text, sizeof other);
        other[cut] = 1;
        struct begun b = begin(&w, NULL, other, n);
        assert_int_equal(b.cached, cut / PAGE * PAGE);
        assert_int_equal(b.shared, cut);
        assert_int_equal(b.miss, cut >= (n - 1) / PAGE * PAGE ? PN_CACHE_FULL : PN_CACHE_DIVERGED);
        assert_int_equal(pn_model_free_pages(w.m), was_free - (pages - cut / PAGE)); /* what is shared takes no page */
        feed(&w, b.seq, other, n);
        pn_prefix_drop(w.cache, b.seq);
        assert_int_equal(pn_model_free_pages(w.m), was_free);
    }
    FOUND(probe(&w, NULL, w.text, n), 3 * PAGE, n, PN_CACHE_FULL); /* equal to what is kept */
    FOUND(probe(&w, NULL, w.text, 2 * PAGE), PAGE, 2 * PAGE, PN_CACHE_FULL); /* the last token is computed, and with it its page */
    FOUND(probe(&w, NULL, w.text, 2 * PAGE + 1), 2 * PAGE, 2 * PAGE + 1, PN_CACHE_FULL);
    FOUND(probe(&w, NULL, w.text, 1), 0, 1, PN_CACHE_FULL);
    close_world(&w);
}

static void a_text_that_is_all_of_it_a_beginning_is_moved(void **state) {
    (void)state;
    struct world w;
    open_tiny(&w, 3, 0);
    keep(&w, NULL, "s", w.text, 2 * PAGE + 3);
    uint64_t was_free = pn_model_free_pages(w.m);
    struct begun a = begin(&w, NULL, w.text, 3 * PAGE), b;
    FOUND(a, 2 * PAGE + 3, 2 * PAGE + 3, PN_CACHE_FULL);
    assert_int_equal(pn_prefix_count(w.cache), 0);
    assert_int_equal(pn_model_free_pages(w.m), was_free);
    feed(&w, a.seq, w.text, 3 * PAGE - 1);
    b = begin(&w, NULL, w.text, 3 * PAGE); /* of what runs, the full pages */
    FOUND(b, 2 * PAGE, 3 * PAGE - 1, PN_CACHE_FULL);
    assert_int_equal(pn_model_free_pages(w.m), was_free - 1);
    feed(&w, b.seq, w.text, 3 * PAGE);
    feed(&w, a.seq, w.text, 3 * PAGE);
    pn_prefix_put(w.cache, "s", a.seq); /* the other goes on alone */
    pn_prefix_put(w.cache, "s", b.seq);
    assert_int_equal(pn_prefix_count(w.cache), 1); /* the same text of the same session: one of them */
    assert_int_equal(pn_prefix_pages(w.cache), 3);
    assert_int_equal(pn_model_free_pages(w.m), was_free);
    close_world(&w);
}

static void the_longest_beginning_is_found_of_idle_and_running_texts(void **state) {
    (void)state;
    struct world w;
    int32_t other[CTX];
    open_tiny(&w, 4, 0);
    for (uint32_t i = 1; i <= 5; i++) { /* texts that have 1 .. 5 pages in common with it */
        memcpy(other, w.text, sizeof other);
        other[i * PAGE] = 1;
        keep(&w, NULL, i % 2 ? "s" : NULL, other, (i + 1) * PAGE);
    }
    assert_int_equal(pn_prefix_count(w.cache), 5);
    assert_int_equal(pn_prefix_pages(w.cache), 5 + 5); /* the common pages are there once */
    FOUND(probe(&w, NULL, w.text, 8 * PAGE), 5 * PAGE, 5 * PAGE, PN_CACHE_DIVERGED);
    struct begun r = begin(&w, NULL, w.text, 8 * PAGE);
    feed(&w, r.seq, w.text, 7 * PAGE + 1);
    FOUND(probe(&w, NULL, w.text, 9 * PAGE), 7 * PAGE, 7 * PAGE + 1, PN_CACHE_FULL);
    pn_prefix_drop(w.cache, r.seq);
    FOUND(probe(&w, NULL, w.text, 8 * PAGE), 5 * PAGE, 5 * PAGE, PN_CACHE_DIVERGED);
    close_world(&w);
}

static void nothing_is_found_of_another_tenant_nor_forgotten_with_it(void **state) {
    (void)state;
    static const char *const tenants[] = { NULL, "", "a", "b" };
    struct world w;
    open_tiny(&w, 4, 0);
    for (int i = 0; i < 4; i++) {
        FOUND(probe(&w, tenants[i], w.text, 3 * PAGE), 0, 0, PN_CACHE_EMPTY);
        assert_int_equal(pn_prefix_kept(w.cache, tenants[i], w.text, 3 * PAGE), 0);
        keep(&w, tenants[i], "s", w.text, 2 * PAGE);
        assert_int_equal(pn_prefix_kept(w.cache, tenants[i], w.text, 3 * PAGE), 2 * PAGE);
        assert_int_equal(pn_prefix_pages(w.cache), 2 * (i + 1));
    }
    pn_prefix_forget(w.cache, "a", "t");
    pn_prefix_forget(w.cache, "a", NULL);
    assert_int_equal(pn_prefix_count(w.cache), 4);
    pn_prefix_forget(w.cache, "a", "s");
    check(&w);
    assert_int_equal(pn_prefix_count(w.cache), 3);
    FOUND(probe(&w, "a", w.text, 3 * PAGE), 0, 0, PN_CACHE_EMPTY); /* forgotten: not that it gave way */
    FOUND(probe(&w, "b", w.text, 2 * PAGE), PAGE, 2 * PAGE, PN_CACHE_FULL);
    close_world(&w);
}

static void one_session_keeps_several_conversations(void **state) {
    (void)state;
    struct world w;
    int32_t other[CTX];
    open_tiny(&w, 4, 0);
    memcpy(other, w.text, sizeof other);
    other[PAGE] = 1;
    keep(&w, "t", "s", w.text, 2 * PAGE);
    keep(&w, "t", "s", other, 3 * PAGE);
    assert_int_equal(pn_prefix_count(w.cache), 2);
    keep(&w, "t", "s", w.text, 4 * PAGE); /* the next turn takes the place of the one before */
    assert_int_equal(pn_prefix_count(w.cache), 2);
    keep(&w, "t", "u", w.text, 3 * PAGE); /* of another session: it shares all pages but that of its last token, and outlives the first */
    assert_int_equal(pn_prefix_count(w.cache), 3);
    assert_int_equal(pn_prefix_pages(w.cache), 4 + 2 + 1);
    pn_prefix_forget(w.cache, "t", "s");
    assert_int_equal(pn_prefix_count(w.cache), 1);
    assert_int_equal(pn_prefix_pages(w.cache), 3);
    FOUND(probe(&w, "t", w.text, 4 * PAGE), 3 * PAGE, 3 * PAGE, PN_CACHE_FULL);
    close_world(&w);
}

static void the_least_recently_used_gives_way_if_that_frees_something(void **state) {
    (void)state;
    struct world w;
    int32_t other[3][CTX];
    open_tiny(&w, 2, 0); /* 32 pages */
    for (int i = 0; i < 3; i++) {
        memcpy(other[i], w.text, sizeof other[i]);
        other[i][0] = 50 + i;
        keep(&w, NULL, NULL, other[i], 4 * PAGE);
    }
    keep(&w, NULL, "long", w.text, 8 * PAGE);
    struct begun b = begin(&w, NULL, w.text, 4 * PAGE + 1), r;
    pn_prefix_put(w.cache, "part", b.seq); /* cancelled at once: all its pages are the long one's too */
    for (int i = 2; i >= 0; i--) probe(&w, NULL, other[i], 3 * PAGE); /* "part" is the oldest but one now, the long one the oldest */
    probe(&w, NULL, w.text, 8 * PAGE);
    assert_int_equal(pn_prefix_count(w.cache), 5);
    assert_int_equal(pn_prefix_pages(w.cache), 3 * 4 + 8);
    r = begin(&w, NULL, other[1], 13 * PAGE); /* moved; nothing has to give way */
    FOUND(r, 4 * PAGE, 4 * PAGE, PN_CACHE_FULL);
    assert_int_equal(pn_prefix_count(w.cache), 4);
    assert_int_equal(pn_model_free_pages(w.m), 3);
    b = begin(&w, NULL, &other[0][1], 4 * PAGE); /* one page too few: of those that would free any, other[2] was used before all others */
    assert_int_equal(pn_prefix_count(w.cache), 3);
    assert_int_equal(pn_model_free_pages(w.m), 3 + 4 - 4);
    FOUND(probe(&w, NULL, other[2], 5 * PAGE), 0, 0, PN_CACHE_EVICTED);
    assert_true(pn_prefix_evict(w.cache)); /* other[0] */
    FOUND(probe(&w, NULL, other[0], 5 * PAGE), 0, 0, PN_CACHE_EVICTED);
    assert_true(pn_prefix_evict(w.cache)); /* the long one: the part has half of it still */
    FOUND(probe(&w, NULL, w.text, 8 * PAGE), 4 * PAGE, 4 * PAGE, PN_CACHE_EVICTED);
    assert_int_equal(pn_prefix_pages(w.cache), 0); /* the probe has moved that, and dropped it */
    assert_false(pn_prefix_evict(w.cache));
    pn_prefix_drop(w.cache, b.seq);
    pn_prefix_drop(w.cache, r.seq);
    close_world(&w);
}

static void what_cannot_be_had_drives_nobody_out(void **state) {
    (void)state;
    struct world w;
    struct fo_err e;
    int32_t other[CTX];
    enum pn_cache_miss miss;
    uint32_t shared;
    struct pn_seq *seq;
    open_tiny(&w, 2, 0);
    memcpy(other, w.text, sizeof other);
    other[0] = 1;
    keep(&w, NULL, NULL, other, 2 * PAGE);
    struct begun a = begin(&w, NULL, w.text, 16 * PAGE), b;
    other[1] = 1;
    b = begin(&w, NULL, other, 10 * PAGE);
    assert_int_equal(pn_prefix_begin(w.cache, NULL, other, 8 * PAGE, &seq, &miss, &shared, &e), FO_OK);
    assert_int_equal(pn_prefix_reserve(w.cache, seq, 8 * PAGE, &e), FO_ENOMEM);
    assert_int_equal(pn_prefix_count(w.cache), 1);
    assert_int_equal(pn_prefix_reserve(w.cache, seq, CTX + 1, &e), FO_EBUDGET);
    assert_int_equal(pn_prefix_reserve(w.cache, seq, 6 * PAGE, &e), FO_OK); /* and what can, does */
    assert_int_equal(pn_prefix_count(w.cache), 0);
    check(&w);
    pn_prefix_drop(w.cache, seq);
    pn_prefix_drop(w.cache, a.seq);
    pn_prefix_drop(w.cache, b.seq);
    close_world(&w);
}

static void many_short_texts_are_kept_in_bounded_memory(void **state) {
    (void)state;
    struct world w;
    int32_t text[2 * PAGE];
    char session[200];
    struct begun many[400];
    open_tiny(&w, 2, 0);
    memcpy(text, w.text, sizeof text);
    for (int i = 0; i < 32; i++) {
        text[0] = 3 + i;
        keep(&w, "somebody", "s", text, PAGE);
    }
    assert_int_equal(pn_prefix_count(w.cache), 32); /* a page each, where two of full length fit */
    memset(session, 'x', sizeof session);
    session[sizeof session - 1] = '\0';
    while (pn_prefix_evict(w.cache)) {}
    keep(&w, "somebody", NULL, text, 2 * PAGE);
    text[PAGE] = 1;
    for (int i = 0; i < 400; i++) many[i] = begin_only(&w, "somebody", text, PAGE + 1);
    for (int i = 0; i < 400; i++) { /* they take no page more, but memory: the check looks at its sum */
        session[0] = (char)('a' + i % 20);
        session[1] = (char)('a' + i / 20);
        pn_prefix_put(w.cache, session, many[i].seq);
        check(&w);
    }
    assert_in_range(pn_prefix_count(w.cache), 8, 399);
    assert_true(pn_prefix_pages(w.cache) <= 2);
    char *huge = calloc(1, 1 << 20);
    memset(huge, 'y', (1 << 20) - 1);
    uint32_t was = pn_prefix_count(w.cache);
    struct begun b = begin(&w, "somebody else", text, PAGE + 1);
    feed(&w, b.seq, text, PAGE + 1);
    pn_prefix_put(w.cache, huge, b.seq); /* more than there is for all: not kept, and it drives nobody out */
    assert_int_equal(pn_prefix_count(w.cache), was);
    free(huge);
    close_world(&w);
}

static void a_window_lets_go_of_what_would_be_seen(void **state) {
    (void)state;
    struct world w;
    int32_t other[CTX];
    open_tiny(&w, 3, PAGE + 1);
    keep(&w, NULL, NULL, w.text, 8 * PAGE + 2);
    memcpy(other, w.text, sizeof other);
    other[3 * PAGE] = 1;
    FOUND(probe(&w, NULL, other, 10 * PAGE), 0, 3 * PAGE, PN_CACHE_WINDOW);
    other[3 * PAGE] = w.text[3 * PAGE];
    other[8 * PAGE - 1] = 1; /* the page that the one before it sees is gone */
    FOUND(probe(&w, NULL, other, 10 * PAGE), 0, 8 * PAGE - 1, PN_CACHE_WINDOW);
    other[8 * PAGE - 1] = w.text[8 * PAGE - 1];
    other[8 * PAGE + 1] = 1;
    FOUND(probe(&w, NULL, other, 10 * PAGE), 8 * PAGE, 8 * PAGE + 1, PN_CACHE_DIVERGED);
    struct begun a = begin(&w, NULL, w.text, 8 * PAGE + 3); /* all of it is moved */
    FOUND(a, 8 * PAGE + 2, 8 * PAGE + 2, PN_CACHE_FULL);
    FOUND(probe(&w, NULL, w.text, 9 * PAGE), 8 * PAGE, 8 * PAGE + 2, PN_CACHE_FULL); /* it has all its pages, and shares them */
    struct fo_err e;
    assert_int_equal(pn_prefix_reserve(w.cache, a.seq, 14 * PAGE, &e), FO_OK); /* now it counts on some when they are out of sight */
    FOUND(probe(&w, NULL, w.text, 10 * PAGE), 0, 8 * PAGE + 2, PN_CACHE_WINDOW);
    feed(&w, a.seq, w.text, 14 * PAGE);
    pn_prefix_put(w.cache, NULL, a.seq);
    close_world(&w);
}

static void a_state_goes_on_from_its_checkpoints(void **state) {
    (void)state;
    struct world w;
    int32_t other[CTX];
    open_stateful(&w, 2);
    const uint32_t n = 6 * PAGE + 2, last = 6 * PAGE;
    keep(&w, NULL, NULL, w.text, n);
    memcpy(other, w.text, sizeof other);
    other[n - 1] = 1;
    FOUND(probe(&w, NULL, other, n), last, n - 1, PN_CACHE_FULL);
    other[last - 1] = 1; /* within the page before: the last boundary but one */
    FOUND(probe(&w, NULL, other, n), last - PAGE, last - 1, PN_CACHE_DIVERGED);
    other[last - PAGE - 1] = 1;
    FOUND(probe(&w, NULL, other, n), 0, last - PAGE - 1, PN_CACHE_STATE);
    struct begun a = begin(&w, NULL, w.text, n + 5), b; /* the end of it */
    FOUND(a, n, n, PN_CACHE_FULL);
    assert_int_equal(pn_seq_drafts(a.seq, 4), 0);
    b = begin(&w, NULL, w.text, n);
    FOUND(b, last, n, PN_CACHE_FULL);
    feed(&w, b.seq, w.text, n);
    feed(&w, a.seq, w.text, n + 5);
    assert_int_equal(pn_seq_truncate(a.seq, n), last);
    feed(&w, a.seq, w.text, n + 5);
    assert_int_equal(pn_seq_truncate(a.seq, PAGE), 0);
    feed(&w, a.seq, w.text, 3);
    pn_prefix_put(w.cache, NULL, a.seq);
    pn_prefix_drop(w.cache, b.seq);
    close_world(&w);
}

/* Blocks are few: idle texts give theirs, then what runs gives its checkpoints, and every sequence that there may be goes on. */
static void every_sequence_finds_a_block_for_its_state(void **state) {
    (void)state;
    enum { N = 3 };
    struct world w;
    int32_t text[N][CTX];
    struct begun b[N];
    open_stateful(&w, N);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < N; i++) {
            memcpy(text[i], w.text, sizeof text[i]);
            text[i][round] = 40 + i;
            keep(&w, NULL, NULL, text[i], 4 * PAGE + (uint32_t)round);
        }
        for (int i = 0; i < N; i++) {
            b[i] = begin(&w, NULL, text[i], 8 * PAGE);
            assert_true(b[i].cached > 0);
        }
        for (int i = 0; i < N; i++) feed(&w, b[i].seq, text[i], 8 * PAGE - (uint32_t)i);
        for (int i = 0; i < N; i++) pn_prefix_put(w.cache, NULL, b[i].seq);
        check(&w);
    }
    assert_true(pn_prefix_count(w.cache) > 1);
    close_world(&w);
}

static void begin_and_put_survive_every_failing_allocation(void **state) {
    (void)state;
    for (int stateful = 0; stateful < 2; stateful++) {
        struct world w;
        struct fo_err e = { 0 };
        enum pn_cache_miss miss;
        uint32_t shared, failed = 0;
        struct pn_prefix *none = NULL;
        if (stateful) open_stateful(&w, 2);
        else open_tiny(&w, 2, 0);
        for (long n = 1;; n++) {
            test_fail_alloc(n);
            int rc = pn_prefix_new(w.m, 2, &none, &e);
            if (!test_alloc_failed()) break;
            assert_int_equal(rc, FO_ENOMEM);
            assert_null(none);
        }
        pn_prefix_free(none);
        for (int moved = 0; moved < 2; moved++) {
            for (long n = 1;; n++) { /* with something idle, which gives way to what is begun, and without */
                struct pn_seq *seq = NULL;
                keep(&w, "t", "s", w.text, 2 * PAGE + 1);
                test_fail_alloc(n);
                int rc = pn_prefix_begin(w.cache, "t", w.text, moved ? 3 * PAGE : 2 * PAGE + 1, &seq, &miss, &shared, &e);
                if (rc == FO_OK) pn_prefix_put(w.cache, "s", seq);
                bool any = test_alloc_failed();
                failed += any;
                check(&w);
                assert_int_equal(rc, FO_OK); /* there was something to give up */
                while (pn_prefix_evict(w.cache)) {}
                test_fail_alloc(n);
                rc = pn_prefix_begin(w.cache, "t", w.text, 3 * PAGE, &seq, &miss, &shared, &e);
                bool begun = rc == FO_OK;
                assert_true(begun || (rc == FO_ENOMEM && test_alloc_failed()));
                if (begun) pn_prefix_put(w.cache, "s", seq);
                test_alloc_failed();
                check(&w);
                if (!any) break;
            }
        }
        assert_true(failed >= 6);
        close_world(&w);
    }
}

/* --- the index ----------------------------------------------------------------------------------- */
static void an_index_has_what_was_added_more_often_than_dropped(void **state) {
    (void)state;
    enum { CHAINS = 300, SLOTS = 100 };
    struct pn_index *x;
    struct fo_err e;
    struct fo_rng rng;
    uint32_t n[CHAINS] = { 0 }, distinct = 0;
    uint64_t chain[CHAINS];
    int32_t token;
    fo_rng_seed(&rng, 3);
    assert_int_equal(pn_index_new(SLOTS, &x, &e), FO_OK);
    for (int i = 0; i < CHAINS; i++) token = i, chain[i] = pn_chain_next(pn_chain_start("t"), &token, 1);
    for (int step = 0; step < 100000; step++) {
        int i = (int)(fo_rng_u64(&rng) % CHAINS);
        bool add = n[i] == 0 ? distinct < SLOTS : fo_rng_u64(&rng) % 3 == 0;
        if (add) pn_index_add(x, chain[i]), distinct += n[i]++ == 0;
        else pn_index_drop(x, chain[i]), distinct -= n[i] > 0 && --n[i] == 0; /* dropping what is not there is nothing */
        assert_int_equal(pn_index_count(x), distinct);
        token = i;
        assert_int_equal(pn_index_find(x, "t", &token, 1, 1), n[i] > 0);
        token = (int32_t)(fo_rng_u64(&rng) % CHAINS);
        assert_int_equal(pn_index_find(x, "t", &token, 1, 1), n[token] > 0);
        assert_int_equal(pn_index_find(x, NULL, &token, 1, 1), 0);
    }
    pn_index_free(x);
    pn_index_free(NULL);
    assert_int_equal(pn_index_new(UINT64_MAX, &x, &e), FO_ELIMIT);
    test_fail_alloc(1);
    assert_int_equal(pn_index_new(1, &x, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
}

static void an_index_finds_the_longest_beginning(void **state) {
    (void)state;
    enum { LONG = 700 };
    struct pn_index *x;
    struct fo_err e;
    int32_t text[LONG];
    assert_int_equal(pn_index_new(LONG, &x, &e), FO_OK);
    for (int i = 0; i < LONG; i++) text[i] = i % 13;
    uint64_t chain = pn_chain_start("t");
    for (uint32_t at = 0; at < 600; at += 3) {
        chain = pn_chain_next(chain, text + at, 3);
        if (at % 2 == 0) pn_index_add(x, chain); /* not every one: a window, or a state, begins at some only */
        assert_int_equal(pn_index_find(x, "t", text, LONG, 3), at / 6 * 6 + 3);
        assert_int_equal(pn_index_find(x, "t", text, at + 2, 3), at == 0 ? 0 : (at - 3) / 6 * 6 + 3);
    }
    pn_index_free(x);
}

struct asker {
    struct world *w;
    atomic_bool over;
    uint32_t found;
};

static void *ask(void *arg) {
    struct asker *a = arg;
    while (!atomic_load(&a->over)) a->found += pn_prefix_kept(a->w->cache, "t", a->w->text, 4 * PAGE) > 0;
    return NULL;
}

static void any_thread_is_told_what_is_kept(void **state) {
    (void)state;
    struct world w;
    pthread_t t;
    struct asker a = { .w = &w };
    open_tiny(&w, 2, 0);
    atomic_init(&a.over, false);
    assert_int_equal(pthread_create(&t, NULL, ask, &a), 0);
    for (int i = 0; i < 300; i++) {
        keep(&w, "t", NULL, w.text, 3 * PAGE);
        assert_int_equal(pn_prefix_kept(w.cache, "t", w.text, 4 * PAGE), 3 * PAGE);
        assert_int_equal(pn_prefix_kept(w.cache, "t", w.text, 3 * PAGE), 2 * PAGE);
        struct begun b = begin(&w, "t", w.text, 4 * PAGE);
        assert_int_equal(pn_prefix_kept(w.cache, "t", w.text, 4 * PAGE), 3 * PAGE); /* it runs, and is still here */
        pn_prefix_drop(w.cache, b.seq);
        assert_int_equal(pn_prefix_kept(w.cache, "t", w.text, 4 * PAGE), 0);
    }
    atomic_store(&a.over, true);
    pthread_join(t, NULL);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_pages_are_shared_wherever_a_prompt_parts),
        cmocka_unit_test(a_text_that_is_all_of_it_a_beginning_is_moved),
        cmocka_unit_test(the_longest_beginning_is_found_of_idle_and_running_texts),
        cmocka_unit_test(nothing_is_found_of_another_tenant_nor_forgotten_with_it),
        cmocka_unit_test(one_session_keeps_several_conversations),
        cmocka_unit_test(the_least_recently_used_gives_way_if_that_frees_something),
        cmocka_unit_test(what_cannot_be_had_drives_nobody_out),
        cmocka_unit_test(many_short_texts_are_kept_in_bounded_memory),
        cmocka_unit_test(a_window_lets_go_of_what_would_be_seen),
        cmocka_unit_test(a_state_goes_on_from_its_checkpoints),
        cmocka_unit_test(every_sequence_finds_a_block_for_its_state),
        cmocka_unit_test(begin_and_put_survive_every_failing_allocation),
        cmocka_unit_test(an_index_has_what_was_added_more_often_than_dropped),
        cmocka_unit_test(an_index_finds_the_longest_beginning),
        cmocka_unit_test(any_thread_is_told_what_is_kept),
    };
    struct fo_err e = { 0 };
    if (fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &dev, &e)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fo_device_close(dev);
    return failed;
}
