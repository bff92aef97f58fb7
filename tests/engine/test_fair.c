/* Whose turn it is: the queue and its accounts alone, with made-up clocks and workers, and the scheduler over a scripted model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "engine/queue.h"
#include "engine/request_worker.h"
#include "engine/wake.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { NEVER_MS = 1000000 };

/* --- the queue alone ------------------------------------------------------------------------- */
/* What waits there: only what the queue looks at. */
static struct pn_request *put(struct pn_queue *q, const char *tenant, const char *session, uint32_t n_tokens, uint32_t max_tokens, double now_ms) {
    struct pn_account *t = pn_account_new(tenant), *s = pn_account_new(session);
    struct pn_request *r = calloc(1, sizeof *r);
    assert_true(t && s && r);
    r->n_tokens = n_tokens;
    r->max_tokens = max_tokens;
    r->submitted_ms = now_ms;
    atomic_init(&r->cancelled, false);
    r->account = pn_fair_enter(&q->fair, &t, &s);
    pn_queue_push(q, r, false);
    pn_account_free(t);
    pn_account_free(s);
    return r;
}

static struct pn_request *put_urgent(struct pn_queue *q, const char *tenant, enum pn_priority p, double now_ms) {
    struct pn_request *r = put(q, tenant, NULL, 1, 1, now_ms);
    r->priority = p;
    return r;
}

/* The next one, taken from start to end at once; whose it was. */
static const char *serve_next(struct pn_queue *q, double now_ms, uint32_t timeout_ms) {
    static char name[64];
    struct pn_request *r = pn_queue_pop(q, now_ms, timeout_ms);
    if (!r) return "";
    snprintf(name, sizeof name, "%s", r->account->of->name);
    pn_fair_start(&q->fair, r->account, r->n_tokens);
    pn_fair_prompt(r->account, r->n_tokens);
    pn_fair_answer(r->account, r->max_tokens);
    pn_fair_leave(&q->fair, r->account);
    free(r);
    return name;
}

static void empty(struct pn_queue *q) {
    while (*serve_next(q, 0, NEVER_MS)) {}
    assert_int_equal(q->n, 0);
    pn_queue_done(q);
}

static void of_equals_the_one_that_started_longer_ago_is_next(void **state) {
    (void)state;
    struct pn_queue q;
    pn_queue_init(&q);
    for (int i = 0; i < 3; i++) put(&q, "a", NULL, 10, 10, 0);
    for (int i = 0; i < 3; i++) put(&q, "b", NULL, 10, 10, 0);
    static const char *const want[] = { "a", "b", "a", "b", "a", "b" };
    for (int i = 0; i < 6; i++) assert_string_equal(serve_next(&q, 0, NEVER_MS), want[i]);
    empty(&q);
}

static void a_newcomer_is_not_owed_the_past(void **state) {
    (void)state;
    struct pn_queue q;
    pn_queue_init(&q);
    for (int i = 0; i < 200; i++) put(&q, "a", NULL, 100, 100, 0);
    for (int i = 0; i < 100; i++) assert_string_equal(serve_next(&q, 0, NEVER_MS), "a"); /* 20,000 tokens */
    for (int i = 0; i < 200; i++) put(&q, "b", NULL, 100, 100, 0);
    int of_b = 0;
    for (int i = 0; i < 100; i++) of_b += strcmp(serve_next(&q, 0, NEVER_MS), "b") == 0;
    assert_int_equal(of_b, 50);
    empty(&q);
}

/* One that comes and goes keeps what it had: leaving does not make it new. */
static void leaving_and_coming_back_is_no_advantage(void **state) {
    (void)state;
    struct pn_queue q;
    int of_a = 0;
    pn_queue_init(&q);
    put(&q, "a", NULL, 5000, 10, 0);
    assert_string_equal(serve_next(&q, 0, NEVER_MS), "a"); /* and is gone; */
    for (int i = 0; i < 20; i++) put(&q, "b", NULL, 100, 100, 0);
    assert_string_equal(serve_next(&q, 0, NEVER_MS), "b"); /* b begins where a left */
    put(&q, "a", NULL, 5000, 10, 0);
    assert_string_equal(serve_next(&q, 0, NEVER_MS), "a"); /* its turn, and then it has had 5000 more: */
    for (int i = 0; i < 19; i++) {
        if (q.fair.tenants.n_idle == 1) put(&q, "a", NULL, 100, 100, 0);
        of_a += strcmp(serve_next(&q, 0, NEVER_MS), "a") == 0;
    }
    assert_int_equal(of_a, 0);
    empty(&q);
}

static void sessions_share_what_their_tenant_has(void **state) {
    (void)state;
    struct pn_queue q;
    int n[3] = { 0 };
    pn_queue_init(&q);
    for (int i = 0; i < 60; i++) put(&q, "a", i % 3 == 0 ? "x" : "y", 10, 10, 0); /* y asks twice as often */
    for (int i = 0; i < 60; i++) put(&q, "b", NULL, 10, 10, 0);
    for (int i = 0; i < 80; i++) {
        struct pn_request *r = pn_queue_pop(&q, 0, NEVER_MS);
        n[strcmp(r->account->of->name, "b") == 0 ? 2 : strcmp(r->account->name, "y") == 0]++;
        pn_fair_start(&q.fair, r->account, 10);
        pn_fair_prompt(r->account, 10);
        pn_fair_answer(r->account, 10);
        pn_fair_leave(&q.fair, r->account);
        free(r);
    }
    assert_int_equal(n[0], 20);
    assert_int_equal(n[1], 20);
    assert_int_equal(n[2], 40);
    empty(&q);
}

/* Workers of several slots, each taking one request to its end, a token at a time; all have more work than there is time. */
static void shares_are_equal_whatever_the_lengths(void **state) {
    (void)state;
    enum { TENANTS = 4, SLOTS = 3, STEPS = 60000, EACH = 6 };
    static const struct { const char *name; uint32_t n_prompt, n_answer; } of[TENANTS] = { { "a", 400, 5 }, { "b", 5, 300 }, { "c", 20, 20 }, { "d", 1, 1 } };
    struct pn_queue q;
    struct pn_request *run[SLOTS] = { 0 };
    uint32_t left[SLOTS] = { 0 };
    uint64_t had[TENANTS] = { 0 }, all = 0;
    struct fo_rng rng;
    fo_rng_seed(&rng, 7);
    pn_queue_init(&q);
    for (int t = 0; t < TENANTS; t++)
        for (int i = 0; i < EACH; i++) put(&q, of[t].name, NULL, of[t].n_prompt, of[t].n_answer, 0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < SLOTS; i++) {
            if (!run[i]) {
                struct pn_request *r = run[i] = pn_queue_pop(&q, 0, NEVER_MS);
                assert_non_null(r);
                left[i] = r->n_tokens + r->max_tokens;
                pn_fair_start(&q.fair, r->account, r->n_tokens);
            }
            struct pn_request *r = run[i];
            int t = r->account->of->name[0] - 'a';
            if (left[i] > r->max_tokens) pn_fair_prompt(r->account, 1);
            else pn_fair_answer(r->account, 1);
            had[t]++;
            all++;
            if (--left[i] > 0) continue;
            /* the next of the same tenant comes, and is somewhat longer or shorter */
            put(&q, of[t].name, NULL, of[t].n_prompt + (uint32_t)(fo_rng_u64(&rng) % 5), of[t].n_answer + (uint32_t)(fo_rng_u64(&rng) % 5), 0);
            pn_fair_leave(&q.fair, r->account);
            free(r);
            run[i] = NULL;
        }
    }
    for (int t = 0; t < TENANTS; t++) assert_in_range(had[t] * 1000 / all, 225, 275); /* a quarter each, within a tenth */
    for (int i = 0; i < SLOTS; i++) {
        if (!run[i]) continue;
        if (left[i] > run[i]->max_tokens) pn_fair_forgo(run[i]->account, left[i] - run[i]->max_tokens);
        pn_fair_leave(&q.fair, run[i]->account);
        free(run[i]);
    }
    empty(&q);
}

static void urgent_ones_start_first_and_nothing_waits_for_ever(void **state) {
    (void)state;
    enum { TIMEOUT = 8000 }; /* each 2 s of waiting are one priority more */
    struct pn_queue q;
    pn_queue_init(&q);
    put_urgent(&q, "low", PN_PRIORITY_LOW, 0);
    put_urgent(&q, "normal", PN_PRIORITY_NORMAL, 0);
    for (int i = 0; i < 100; i++) put_urgent(&q, "high", PN_PRIORITY_HIGH, 0);
    double starts_low = 0, starts_normal = 0, now = 0;
    for (int i = 0; i < 100; i++, now += 100) {
        const char *who = serve_next(&q, now, TIMEOUT);
        if (strcmp(who, "low") == 0) starts_low = now;
        if (strcmp(who, "normal") == 0) starts_normal = now;
        put_urgent(&q, "high", PN_PRIORITY_HIGH, now);
    }
    assert_in_range((int)starts_normal, 2000, 2100);
    assert_in_range((int)starts_low, 4000, 4100);
    empty(&q);
    /* What waited long does not pass its own kind: a flood grows old too. */
    pn_queue_init(&q);
    for (int i = 0; i < 10; i++) put(&q, "flood", NULL, 1, 1, 0);
    assert_string_equal(serve_next(&q, 7000, TIMEOUT), "flood");
    put(&q, "new", NULL, 1, 1, 7000);
    assert_string_equal(serve_next(&q, 7000, TIMEOUT), "new");
    empty(&q);
}

static void each_priority_sees_the_queue_filled_by_its_own_and_higher_ones(void **state) {
    (void)state;
    struct pn_queue q;
    pn_queue_init(&q);
    assert_true(pn_queue_takes(&q, "a", PN_PRIORITY_LOW, 2, 2, 3));
    assert_false(pn_queue_takes(&q, "a", PN_PRIORITY_HIGH, 2, 2, 0)); /* no places at all */
    for (int i = 0; i < 3; i++) put_urgent(&q, "a", PN_PRIORITY_LOW, 0);
    assert_false(pn_queue_takes(&q, "a", PN_PRIORITY_LOW, 2, 2, 3));
    assert_true(pn_queue_takes(&q, "a", PN_PRIORITY_LOW, 1, 2, 3)); /* a free slot is a place */
    assert_true(pn_queue_takes(&q, "a", PN_PRIORITY_NORMAL, 2, 2, 3));
    for (int i = 0; i < 3; i++) put_urgent(&q, "a", PN_PRIORITY_HIGH, 0);
    assert_false(pn_queue_takes(&q, "a", PN_PRIORITY_NORMAL, 2, 2, 3));
    assert_false(pn_queue_takes(&q, "a", PN_PRIORITY_HIGH, 2, 2, 3));
    assert_int_equal(pn_queue_ahead(&q, PN_PRIORITY_LOW), 6);
    assert_int_equal(pn_queue_ahead(&q, PN_PRIORITY_HIGH), 3);
    /* Another tenant has one place whatever a sends, and not two. */
    assert_true(pn_queue_takes(&q, "b", PN_PRIORITY_LOW, 2, 2, 3));
    assert_true(pn_queue_takes(&q, NULL, PN_PRIORITY_LOW, 2, 2, 3));
    assert_false(pn_queue_takes(&q, "b", PN_PRIORITY_LOW, 2, 2, 0));
    put_urgent(&q, "b", PN_PRIORITY_LOW, 0);
    assert_false(pn_queue_takes(&q, "b", PN_PRIORITY_LOW, 2, 2, 3));
    empty(&q);
}

static void accounts_that_say_nothing_are_gone(void **state) {
    (void)state;
    struct pn_queue q;
    char name[32];
    uint32_t most = 0;
    pn_queue_init(&q);
    put(&q, "stays", NULL, 1, 1, 0);
    struct pn_request *stays = pn_queue_pop(&q, 0, NEVER_MS);
    pn_fair_start(&q.fair, stays->account, 1);
    for (int i = 0; i < 3000; i++) { /* each has more than "stays", whose count keeps the floor down */
        snprintf(name, sizeof name, "t%d", i);
        put(&q, name, name, 10, 10 + (uint32_t)i % 7, 0);
        assert_string_equal(serve_next(&q, 0, NEVER_MS), name);
        if (q.fair.tenants.n_idle > most) most = q.fair.tenants.n_idle;
    }
    assert_true(most > 0 && most <= 256);
    pn_fair_answer(stays->account, 1000); /* now they say nothing */
    put(&q, "one more", NULL, 1, 1, 0);
    assert_string_equal(serve_next(&q, 0, NEVER_MS), "one more");
    assert_true(q.fair.tenants.n_idle <= 1);
    pn_fair_forgo(stays->account, 1);
    pn_fair_leave(&q.fair, stays->account);
    free(stays);
    empty(&q);
}

/* --- with a worker --------------------------------------------------------------------------- */
struct world {
    struct fo_device *die;
    struct pn_engine *en;
    struct pn_served *s;
    const char *path;
};

static void open_world(struct world *w, uint32_t slots, uint32_t queue, uint32_t pace_us, uint32_t row_us) {
    struct test_script t = test_script_default();
    struct fo_device_opts d = { .n_threads = 1, .memory_bytes = 64 << 20 };
    struct fo_err e = { 0 };
    t.text = "abc";
    t.endless = true;
    t.pace_us = pace_us;
    t.row_us = row_us;
    w->path = odd_path(0);
    if (test_script_write(&t, w->path, &e) || fo_device_open("sim", "s0", &d, &w->die, &e)) fail_msg("%s", e.msg);
    assert_int_equal(pn_engine_new(&w->en, &e), 0);
    struct pn_serve_opts o = { .name = "m", .queue_depth = queue, .model = { .dev = w->die, .max_sessions = slots + 4, .max_concurrent = slots, .max_batch = 256, .ctx_cap = 4096, .kv_default = true } };
    if (pn_engine_load(w->en, w->path, &o, &e)) fail_msg("%s", e.msg);
    w->s = pn_engine_get(w->en, "m");
}

static void close_world(struct world *w) {
    pn_served_put(w->s);
    pn_engine_free(w->en);
    fo_device_close(w->die);
    unlink(w->path);
}

static struct pn_request *ask(const struct world *w, const char *tenant, const char *session, enum pn_priority priority, uint32_t n_prompt, uint32_t n_answer) {
    static int32_t ids[4096];
    test_prompt(ids, n_prompt, 3);
    struct pn_request_opts o = test_opts(ids, n_prompt, n_answer);
    o.tenant = tenant;
    o.session = session;
    o.priority = priority;
    return test_submit(w->s, &o);
}

static bool started(struct pn_request *r) {
    pthread_mutex_lock(&r->lock);
    bool yes = r->started;
    pthread_mutex_unlock(&r->lock);
    return yes;
}

static void wait_for_text(struct pn_request *r) {
    struct pn_event ev;
    do pn_request_next(r, 30000, &ev); while (ev.kind == PN_EV_STARTED);
    assert_int_equal(ev.kind, PN_EV_TEXT);
}

/* Fifty wait; the fifty-first is another's and starts next. */
static void check_next(const char *tenant, const char *session, enum pn_priority priority) {
    enum { N = 50 };
    struct world w;
    struct pn_request *r[N];
    open_world(&w, 1, 60, 1000, 0);
    struct pn_request *running = ask(&w, "a", "x", PN_PRIORITY_NORMAL, 10, 4000);
    wait_for_text(running);
    for (int i = 0; i < N; i++) r[i] = ask(&w, "a", "x", PN_PRIORITY_NORMAL, 10, 4000);
    struct pn_request *other = ask(&w, tenant, session, priority, 10, 4000);
    pn_request_release(running);
    wait_for_text(other);
    for (int i = 0; i < N; i++) assert_false(started(r[i]));
    pn_request_release(other);
    wait_for_text(r[0]); /* and then the oldest */
    for (int i = 1; i < N; i++) assert_false(started(r[i]));
    for (int i = 0; i < N; i++) pn_request_release(r[i]);
    close_world(&w);
}

static void a_flood_does_not_hold_up_another_tenant(void **state) {
    (void)state;
    check_next("b", "x", PN_PRIORITY_NORMAL);
    check_next(NULL, NULL, PN_PRIORITY_NORMAL);
}

static void nor_another_session_nor_what_is_more_urgent(void **state) {
    (void)state;
    check_next("a", "y", PN_PRIORITY_NORMAL);
    check_next("a", NULL, PN_PRIORITY_NORMAL);
    check_next("a", "x", PN_PRIORITY_HIGH);
}

static void a_short_prompt_does_not_wait_for_anothers_long_one(void **state) {
    (void)state;
    struct world w;
    struct pn_slot_status slots[4];
    open_world(&w, 4, 8, 0, 500); /* 3,500 tokens of prompt: 1.75 s, in steps of 256 */
    struct pn_request *big[2] = { ask(&w, "a", NULL, 0, 3500, 4), ask(&w, "a", NULL, 0, 3500, 4) };
    double until = pn_now_ms() + 30000;
    do {
        assert_true(pn_now_ms() < until);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        pn_served_slots(w.s, slots, 4);
    } while (slots[0].computed_tokens < 256);
    struct pn_request *small = ask(&w, "b", NULL, 0, 20, 1);
    wait_for_text(small);
    pn_served_slots(w.s, slots, 4);
    assert_true(slots[0].busy && slots[0].computed_tokens < 2000); /* two steps at most came in between */
    assert_true(slots[1].busy && slots[1].computed_tokens < 1000);
    for (int i = 0; i < 2; i++) pn_request_release(big[i]);
    pn_request_release(small);
    close_world(&w);
}

static void two_long_prompts_of_two_tenants_take_turns(void **state) {
    (void)state;
    struct world w;
    struct pn_slot_status slots[2];
    int32_t most = 0;
    open_world(&w, 2, 8, 0, 100);
    struct pn_request *r[2] = { ask(&w, "a", NULL, 0, 3500, 4), ask(&w, "b", NULL, 0, 3500, 4) };
    double until = pn_now_ms() + 30000;
    do {
        assert_true(pn_now_ms() < until);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        pn_served_slots(w.s, slots, 2);
        int32_t apart = (int32_t)slots[0].computed_tokens - (int32_t)slots[1].computed_tokens;
        if (slots[1].busy && abs(apart) > most) most = abs(apart);
    } while (slots[0].computed_tokens < 3500);
    assert_true(most <= 2 * 256); /* the first began before the second was there */
    for (int i = 0; i < 2; i++) pn_request_release(r[i]);
    close_world(&w);
}

/* Equal demand, other lengths: a's are prompts, b's are answers. */
static void tenants_get_the_same_tokens_over_a_long_run(void **state) {
    (void)state;
    enum { N = 200, LONG = 60, SHORT = 4 };
    struct world w;
    struct pn_request *r[2][N];
    uint64_t had[2] = { 0 };
    open_world(&w, 2, 2 * N, 200, 0);
    for (int i = 0; i < N; i++) { /* by turns: who is there alone has all */
        r[0][i] = ask(&w, "a", NULL, 0, LONG, SHORT);
        r[1][i] = ask(&w, "b", NULL, 0, SHORT, LONG);
    }
    struct pn_served_status st;
    double until = pn_now_ms() + 60000;
    do {
        assert_true(pn_now_ms() < until);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        pn_served_status(w.s, &st);
    } while (st.completed < N); /* when both still have work */
    pn_engine_cancel_all(w.en);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++) {
            static struct test_answer a;
            test_read_all(r[k][i], &a);
            had[k] += a.usage.completion_tokens + (a.usage.completion_tokens > 0 ? a.usage.prompt_tokens - a.usage.cached_tokens : 0);
        }
    assert_in_range(had[0] * 1000 / (had[0] + had[1]), 450, 550);
    close_world(&w);
}

static void a_flood_leaves_the_others_their_place_and_says_when_to_come_back(void **state) {
    (void)state;
    struct world w;
    struct pn_request *r[5], *no = NULL;
    struct pn_budget b;
    struct pn_served_status st;
    struct fo_err e = { 0 };
    int32_t ids[10];
    open_world(&w, 1, 2, 1000, 0);
    test_prompt(ids, 10, 1);
    struct pn_request_opts o = test_opts(ids, 10, 4000);
    o.tenant = "a";
    for (int i = 0; i < 3; i++) r[i] = ask(&w, "a", NULL, 0, 10, 4000);
    assert_int_equal(pn_submit(w.s, &o, &no, &b, &e), FO_EBUSY);
    assert_in_range(b.retry_after_s, 1, 120);
    o.tenant = "b";
    assert_int_equal(pn_submit(w.s, &o, &r[3], &b, &e), FO_OK);
    assert_int_equal(pn_submit(w.s, &o, &no, &b, &e), FO_EBUSY); /* one place, not two */
    o.priority = PN_PRIORITY_HIGH;
    assert_int_equal(pn_submit(w.s, &o, &r[4], &b, &e), FO_OK); /* of its own priority nobody waits */
    pn_served_status(w.s, &st);
    assert_int_equal(st.queued + st.running, 5);
    for (int i = 0; i < 5; i++) pn_request_release(r[i]);
    close_world(&w);
}

static uint32_t retry_after(const struct world *w) {
    struct pn_served_status st;
    pn_served_status(w->s, &st);
    return st.retry_after_s;
}

static void retry_after_follows_what_runs_and_waits(void **state) {
    (void)state;
    struct world w;
    static struct test_answer a;
    struct pn_request *r[40];
    open_world(&w, 2, 64, 10000, 0); /* 100 steps a second: 200 tokens of two answers */
    assert_int_equal(retry_after(&w), 1);
    test_read_all(ask(&w, "a", NULL, 0, 4, 200), &a); /* an answer of 200 tokens, and the rates */
    assert_int_equal(retry_after(&w), 1);             /* nothing runs */
    uint32_t before = 0, first = 0;
    for (int i = 0; i < 40; i++) {
        r[i] = ask(&w, "a", NULL, 0, 4, 200);
        uint32_t now = retry_after(&w);
        assert_true(now + 1 >= before); /* it grows, but for what is done meanwhile */
        before = now;
        if (i == 1) first = now;
    }
    /* 8000 tokens at 100 a second and more, over two slots; a busy machine is slower, and then says so. */
    assert_in_range(before, 15, 120);
    assert_true(before > 4 * first);
    for (int i = 20; i < 40; i++) pn_request_cancel(r[i]);
    for (int i = 20; i < 40; i++) test_read_all(r[i], &a);
    assert_true(retry_after(&w) < before);
    for (int i = 0; i < 20; i++) pn_request_release(r[i]);
    test_wait_idle(w.s);
    assert_int_equal(retry_after(&w), 1);
    close_world(&w);
}

/* What is said depends neither on whose it is nor on who is there. */
static void the_same_text_whoever_asks_and_beside_whomever(void **state) {
    (void)state;
    enum { N = 8 };
    struct world w;
    static struct test_answer alone[2], a;
    struct pn_request *r[N];
    static int32_t ids[40];
    open_world(&w, 4, 16, 0, 0);
    test_prompt(ids, 40, 9);
    for (int seeded = 0; seeded < 2; seeded++) {
        struct pn_request_opts o = test_opts(ids, 40, 30);
        if (seeded) o.sampling.temperature = 1.5F, o.sampling.seed = 4;
        o.keep_nothing = true;
        test_ask(w.s, &o, &alone[seeded]);
        assert_int_equal(alone[seeded].n_ids, 30);
        o.keep_nothing = false;
        for (int i = 0; i < N; i++) {
            char session[8];
            snprintf(session, sizeof session, "s%d", i % 3);
            o.tenant = i % 2 ? "a" : "b";
            o.session = session;
            o.priority = (enum pn_priority)(i % 3);
            r[i] = test_submit(w.s, &o);
        }
        for (int i = 0; i < N; i++) {
            test_read_all(r[i], &a);
            assert_int_equal(a.code, 0);
            assert_int_equal(a.n_ids, 30);
            assert_memory_equal(a.ids, alone[seeded].ids, 30 * sizeof *a.ids);
        }
    }
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_equals_the_one_that_started_longer_ago_is_next),
        cmocka_unit_test(a_newcomer_is_not_owed_the_past),
        cmocka_unit_test(leaving_and_coming_back_is_no_advantage),
        cmocka_unit_test(sessions_share_what_their_tenant_has),
        cmocka_unit_test(shares_are_equal_whatever_the_lengths),
        cmocka_unit_test(urgent_ones_start_first_and_nothing_waits_for_ever),
        cmocka_unit_test(each_priority_sees_the_queue_filled_by_its_own_and_higher_ones),
        cmocka_unit_test(accounts_that_say_nothing_are_gone),
        cmocka_unit_test(a_flood_does_not_hold_up_another_tenant),
        cmocka_unit_test(nor_another_session_nor_what_is_more_urgent),
        cmocka_unit_test(a_short_prompt_does_not_wait_for_anothers_long_one),
        cmocka_unit_test(two_long_prompts_of_two_tenants_take_turns),
        cmocka_unit_test(tenants_get_the_same_tokens_over_a_long_run),
        cmocka_unit_test(a_flood_leaves_the_others_their_place_and_says_when_to_come_back),
        cmocka_unit_test(retry_after_follows_what_runs_and_waits),
        cmocka_unit_test(the_same_text_whoever_asks_and_beside_whomever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
