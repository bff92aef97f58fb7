/* The scheduler with a tiny real model: what a request says never depends on its mates, and each way of going wrong stays with the
 * request it belongs to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/request_worker.h"
#include "engine/wake.h"
#include "foundry/ops.h"
#include "tests/support/serve.h"

enum { CTX = 256, PAGE = FO_KV_PAGE_TOKENS, END = 2 /* <|im_end|> */ };


static struct pn_served_status status(const struct test_world *w) {
    struct pn_served_status st;
    pn_served_status(w->s, &st);
    return st;
}

/* Reads events until the first text, then leaves the rest. */
static void read_first(struct pn_request *r, struct test_answer *a) {
    memset(a, 0, sizeof *a);
    while (a->n_ids == 0) assert_true(test_take(r, 30000, a, NULL));
}

static void same(const struct test_answer *a, const struct test_answer *b) {
    assert_int_equal(a->code, 0);
    assert_int_equal(b->code, 0);
    assert_int_equal(a->n_ids, b->n_ids);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->finish, b->finish);
}

static void the_same_text_alone_and_with_three_mates(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer alone[4], together[4];
    int32_t ids[4][100];
    struct pn_request_opts o[4];
    struct pn_request *r[4];
    test_world_open(&w, CTX, 4, 4, 32, 8, 0);
    for (int i = 0; i < 4; i++) {
        test_prompt(ids[i], 100, (uint64_t)i + 1);
        o[i] = test_opts(ids[i], 10 + 30 * (uint32_t)i, 40);
        if (i % 2) o[i].sampling.temperature = 1.2F, o[i].sampling.top_p = 0.9F, o[i].sampling.seed = (uint64_t)i;
        test_ask(w.s, &o[i], &alone[i]);
        assert_int_equal(alone[i].n_ids, 40);
        assert_int_equal(alone[i].usage.prompt_tokens, 10 + 30 * i);
        assert_int_equal(alone[i].usage.completion_tokens, 40);
        assert_int_equal(alone[i].usage.cached_tokens, 0);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) r[i] = test_submit(w.s, &o[(i + round) % 4]);
        for (int i = 0; i < 4; i++) {
            test_read_all(r[i], &together[i]);
            same(&alone[(i + round) % 4], &together[i]);
        }
    }
    test_world_close(&w);
}

static void the_same_seed_gives_the_same_text_and_another_seed_another(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a, b, c;
    int32_t ids[20];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 20, 5);
    struct pn_request_opts o = test_opts(ids, 20, 50);
    o.sampling.temperature = 1;
    o.sampling.seed = 11;
    test_ask(w.s, &o, &a);
    test_ask(w.s, &o, &b);
    same(&a, &b);
    o.sampling.seed = 12;
    test_ask(w.s, &o, &c);
    assert_memory_not_equal(a.ids, c.ids, sizeof a.ids[0] * 50);
    test_world_close(&w);
}

static void a_running_answer_never_waits_for_a_whole_prompt(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a, b;
    int32_t ids[220];
    test_world_open(&w, CTX, 2, 2, 16, 8, 0);
    atomic_store(&w.die.delay_ms, 10); /* a reader that a busy machine keeps from looking for some steps still sees most */
    test_prompt(ids, 220, 6);
    struct pn_request_opts oa = test_opts(ids, 4, 100), ob = test_opts(ids, 220, 2);
    struct pn_request *ra = test_submit(w.s, &oa);
    read_first(ra, &a);
    struct pn_request *rb = test_submit(w.s, &ob);
    memset(&b, 0, sizeof b);
    uint32_t before = 0;
    while (b.n_ids == 0) { /* the long prompt takes 220 / 15 = 15 steps */
        test_take(ra, 0, &a, NULL);
        if (!b.started) before = a.n_ids;
        test_take(rb, 0, &b, NULL);
    }
    assert_true(a.n_ids >= before + 10);
    assert_true(a.n_ids < 60); /* nor does the prompt wait for the whole answer */
    assert_true(atomic_load(&w.die.most_rows) <= 16);
    pn_request_release(ra);
    pn_request_release(rb);
    test_wait_idle(w.s);
    test_world_close(&w);
}

/* pains 28: of ten queued streams nine leave; only one prompt is computed besides the running one. */
static void a_request_cancelled_in_the_queue_never_starts(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    struct pn_request *r[10];
    int32_t ids[50], other[50];
    test_world_open(&w, CTX, 1, 1, 64, 16, 0);
    test_prompt(ids, 50, 7);
    test_prompt(other, 50, 8);
    other[3] = 300;
    atomic_store(&w.die.watch, 300);
    atomic_store(&w.die.delay_ms, 5);
    struct pn_request_opts o = test_opts(ids, 50, 150), q = test_opts(other, 50, 1);
    struct pn_request *running = test_submit(w.s, &o);
    read_first(running, &a);
    for (int i = 0; i < 10; i++) r[i] = test_submit(w.s, &q);
    for (int i = 0; i < 9; i++) pn_request_release(r[i]);
    pn_request_cancel(running);
    test_read_all(r[9], &a);
    assert_int_equal(a.code, 0);
    pn_request_release(running);
    test_wait_idle(w.s);
    assert_int_equal(status(&w).tokens_prefilled, 100);
    assert_int_equal(atomic_load(&w.die.seen), 1);
    assert_int_equal(status(&w).cancelled, 10);
    test_world_close(&w);
}

static void a_cancel_stops_a_prefill_before_its_next_chunk(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    int32_t ids[240];
    test_world_open(&w, CTX, 1, 1, 8, 8, 0);
    atomic_store(&w.die.delay_ms, 10);
    test_prompt(ids, 240, 9);
    struct pn_request_opts o = test_opts(ids, 240, 5);
    struct pn_request *r = test_submit(w.s, &o);
    enum pn_event_kind kind;
    memset(&a, 0, sizeof a);
    test_take(r, 30000, &a, &kind);
    assert_int_equal(kind, PN_EV_STARTED);
    pn_request_cancel(r);
    while (test_take(r, 30000, &a, NULL)) {}
    assert_int_equal(a.code, FO_ECANCELLED);
    assert_int_equal(a.n_ids, 0);
    assert_true(status(&w).tokens_prefilled < 100);
    assert_int_equal(status(&w).tokens_decoded, 0);
    pn_request_release(r);
    test_world_close(&w);
}

static void a_cancel_stops_a_decode_before_its_next_step(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 8, 0);
    atomic_store(&w.die.delay_ms, 5);
    test_prompt(ids, 10, 10);
    struct pn_request_opts o = test_opts(ids, 10, 200);
    struct pn_request *r = test_submit(w.s, &o);
    read_first(r, &a);
    pn_request_cancel(r);
    uint64_t steps = (uint64_t)atomic_load(&w.die.steps);
    while (test_take(r, 30000, &a, NULL)) {}
    assert_int_equal(a.code, FO_ECANCELLED);
    assert_true((uint64_t)atomic_load(&w.die.steps) <= steps + 1);
    pn_request_release(r);
    test_wait_idle(w.s);
    assert_true((uint64_t)atomic_load(&w.die.steps) <= steps + 1);
    test_world_close(&w);
}

/* pains 32: one slot, two places: the fourth is told at once, with a time to come back. */
static void a_full_queue_refuses_at_once_and_says_when_to_come_back(void **state) {
    (void)state;
    struct test_world w;
    struct pn_request *r[3], *no = NULL;
    struct pn_budget b;
    struct fo_err e = { 0 };
    int32_t ids[10];
    static struct test_answer a;
    test_world_open(&w, CTX, 1, 1, 64, 2, 0);
    test_prompt(ids, 10, 11);
    struct pn_request_opts o = test_opts(ids, 10, 30);
    test_ask(w.s, &o, &a); /* rates are known now */
    atomic_store(&w.die.delay_ms, 200);
    for (int i = 0; i < 3; i++) r[i] = test_submit(w.s, &o);
    double fastest = 1e9; /* of a few: the host may be busy */
    for (int i = 0; i < 5; i++) {
        double start = pn_now_ms();
        assert_int_equal(pn_submit(w.s, &o, &no, &b, &e), FO_EBUSY);
        double ms = pn_now_ms() - start;
        if (ms < fastest) fastest = ms;
        assert_null(no);
    }
    assert_true(fastest < 20);
    assert_in_range(b.retry_after_s, 1, 120);
    assert_null(strstr(e.msg, "context"));
    assert_null(strstr(e.msg, "too many tokens"));
    assert_int_equal(status(&w).refused, 5);
    /* A place that a client gave up is free at once, though the worker is in the middle of a step. */
    pn_request_release(r[2]);
    r[2] = test_submit(w.s, &o);
    atomic_store(&w.die.delay_ms, 0);
    for (int i = 0; i < 3; i++) {
        test_read_all(r[i], &a);
        assert_int_equal(a.code, 0);
    }
    test_world_close(&w);
}

static void a_request_that_waited_too_long_is_told_so(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 2, 100);
    atomic_store(&w.die.delay_ms, 20);
    test_prompt(ids, 10, 12);
    struct pn_request_opts o = test_opts(ids, 10, 200);
    struct pn_request *running = test_submit(w.s, &o), *late = test_submit(w.s, &o);
    double start = pn_now_ms();
    test_read_all(late, &a);
    assert_int_equal(a.code, FO_ETIMEOUT);
    assert_false(a.started);
    assert_true(pn_now_ms() - start < 2000);
    assert_true(a.usage.queue_ms >= 100);
    pn_request_release(running);
    test_wait_idle(w.s);
    test_world_close(&w);
}

static void a_choice_that_goes_on_passes_a_full_queue_and_a_drain_until_its_deadline(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a, b;
    int32_t ids[10];
    struct pn_request *running, *waiting, *r;
    struct pn_budget budget;
    struct fo_err e = { 0 };
    test_world_open(&w, CTX, 1, 1, 64, 1, 300);
    atomic_store(&w.die.delay_ms, 5);
    test_prompt(ids, 10, 7);
    struct pn_request_opts o = test_opts(ids, 10, 100), on = test_opts(ids, 10, 2);
    on.goes_on = true;
    running = test_submit(w.s, &o);
    read_first(running, &a);
    waiting = test_submit(w.s, &o);
    assert_int_equal(pn_submit(w.s, &on, &r, &budget, &e), 0); /* where any other is refused: */
    on.goes_on = false;
    assert_int_equal(pn_submit(w.s, &on, &(struct pn_request *){ NULL }, &budget, &e), FO_EBUSY);
    on.goes_on = true;
    test_read_all(waiting, &b); /* the one behind it still has its timeout, */
    assert_int_equal(b.code, FO_ETIMEOUT);
    pn_engine_drain(w.en);
    pn_request_release(running);
    test_read_all(r, &b); /* and it itself has none */
    assert_int_equal(b.code, 0);
    assert_int_equal(b.n_ids, 2);
    assert_int_equal(pn_submit(w.s, &on, &r, &budget, &e), 0);
    test_read_all(r, &b);
    assert_int_equal(b.code, 0);
    pn_engine_cancel_all(w.en);
    assert_int_equal(pn_submit(w.s, &on, &r, &budget, &e), FO_EUNAVAIL);
    test_world_close(&w);
}

static void a_slow_reader_pauses_its_own_request_and_no_other(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer alone, fast, slow;
    int32_t ids[10];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 10, 13);
    struct pn_request_opts o = test_opts(ids, 10, 200);
    test_ask(w.s, &o, &alone);
    uint64_t before = status(&w).tokens_decoded;
    struct pn_request *r = test_submit(w.s, &o);
    for (int i = 0; i < 3; i++) {
        test_ask(w.s, &o, &fast);
        same(&alone, &fast);
    }
#ifdef FO_DEBUG /* the ring is small: it has long been full */
    uint64_t by_slow = status(&w).tokens_decoded - before - 3 * 199;
    assert_true(by_slow < 100);
    assert_int_equal(status(&w).running, 1);
    usleep(50000);
    assert_int_equal(status(&w).tokens_decoded - before - 3 * 199, by_slow);
#else
    (void)before;
#endif
    test_read_all(r, &slow);
    same(&alone, &slow);
    test_world_close(&w);
}

/* The end of character i of a text. */
static size_t char_end(const char *s, size_t i) {
    i++;
    while (((unsigned char)s[i] & 0xC0) == 0x80) i++;
    return i;
}

static void stop_strings_end_the_answer_wherever_tokens_are_cut(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer whole, a;
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 8, 0);
    test_prompt(ids, 10, 14);
    struct pn_request_opts o = test_opts(ids, 10, 60);
    o.sampling.temperature = 1.5F;
    test_ask(w.s, &o, &whole);
    int tried = 0;
    for (size_t at = 0; at + 8 < whole.len && tried < 25; at = char_end(whole.text, at)) {
        size_t end = at;
        for (int k = 0; k < 3; k++) end = char_end(whole.text, end); /* three characters: as a rule several tokens */
        char stop[64];
        memcpy(stop, whole.text + at, end - at);
        stop[end - at] = '\0';
        const char *stops[2] = { "never in any text", stop };
        o.stops = stops;
        o.n_stops = 2;
        test_ask(w.s, &o, &a);
        const char *first = strstr(whole.text, stop);
        assert_int_equal(a.code, 0);
        assert_int_equal(a.finish, PN_FINISH_STOP);
        assert_int_equal(a.len, (size_t)(first - whole.text));
        assert_memory_equal(a.text, whole.text, a.len);
        tried++;
    }
    assert_true(tried > 10);
    test_world_close(&w);
}

static void max_tokens_ends_with_length(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 8, 0);
    test_prompt(ids, 10, 15);
    for (uint32_t n = 1; n < 6; n++) {
        struct pn_request_opts o = test_opts(ids, 10, n);
        test_ask(w.s, &o, &a);
        assert_int_equal(a.code, 0);
        assert_int_equal(a.finish, PN_FINISH_LENGTH);
        assert_int_equal(a.n_ids, n);
        assert_int_equal(a.usage.completion_tokens, n);
    }
    test_world_close(&w);
}

/* pains 23: a model that cannot end stops at the cap, with "length". */
static void a_banned_end_runs_to_the_cap_and_a_forced_one_stops(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 8, 0);
    test_prompt(ids, 10, 16);
    struct pn_request_opts o = test_opts(ids, 10, 0);
    o.ignore_end = false;
    struct pn_logit_bias bias[3] = { { END, 100 } };
    o.sampling.bias = bias;
    o.sampling.n_bias = 1;
    test_ask(w.s, &o, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.finish, PN_FINISH_STOP);
    assert_int_equal(a.len, 0);
    assert_int_equal(a.n_ids, 0); /* the end token is not part of the text */
    assert_int_equal(a.usage.completion_tokens, 1);

    for (int i = 0; i < 3; i++) bias[i] = (struct pn_logit_bias){ i, -100 };
    o.sampling.n_bias = 3;
    test_ask(w.s, &o, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.finish, PN_FINISH_LENGTH);
    assert_int_equal(a.usage.prompt_tokens + a.usage.completion_tokens, CTX);
    test_world_close(&w);
}

/* pains 1: the request that needed what was not there gets the error, its mates do not notice. */
static void a_step_that_fails_for_one_request_fails_no_other(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer alone, a;
    int32_t ids[40], bad[40];
    test_world_open(&w, CTX, 4, 4, 64, 8, 0);
    test_prompt(ids, 40, 17);
    test_prompt(bad, 40, 18);
    bad[20] = 400;
    struct pn_request_opts o = test_opts(ids, 40, 60), ob = test_opts(bad, 40, 60);
    struct pn_logit_bias ban = { 400, -100 };
    o.sampling.bias = &ban;
    o.sampling.n_bias = 1;
    o.keep_nothing = ob.keep_nothing = true;
    test_ask(w.s, &o, &alone);
    atomic_store(&w.die.delay_ms, 1);
    static const enum fo_code codes[] = { FO_ENOMEM, FO_ELOST, FO_EINTERNAL };
    for (int k = 0; k < 3; k++) {
        atomic_store(&w.die.poison_code, codes[k]);
        atomic_store(&w.die.poison, 400);
        struct pn_request *good[3], *r;
        for (int i = 0; i < 3; i++) good[i] = test_submit(w.s, &o);
        r = test_submit(w.s, &ob);
        test_read_all(r, &a);
        assert_int_equal(a.code, codes[k]);
        assert_non_null(strstr(a.msg, "the die failed on token 400"));
        for (int i = 0; i < 3; i++) {
            test_read_all(good[i], &a);
            same(&alone, &a);
        }
        assert_true(status(&w).ready);
        assert_int_equal(status(&w).failed, k + 1);
    }
    atomic_store(&w.die.poison, -1);
    test_ask(w.s, &ob, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(status(&w).kv_bytes_used, 0); /* whatever failed gave its pages back */
    test_world_close(&w);
}

static void a_die_lost_under_all_requests_fails_the_model_and_not_the_process(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    struct pn_request *r[3], *no = NULL;
    struct pn_budget b;
    struct fo_err e = { 0 };
    int32_t ids[10];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    atomic_store(&w.die.delay_ms, 5);
    test_prompt(ids, 10, 19);
    ids[5] = 401;
    struct pn_request_opts o = test_opts(ids, 10, 100);
    atomic_store(&w.die.poison_code, FO_ELOST);
    atomic_store(&w.die.poison, 401);
    for (int i = 0; i < 3; i++) r[i] = test_submit(w.s, &o);
    for (int i = 0; i < 3; i++) {
        test_read_all(r[i], &a);
        assert_int_equal(a.code, FO_ELOST);
    }
    assert_false(status(&w).ready);
    assert_non_null(strstr(status(&w).reason, "the die failed"));
    assert_int_equal(pn_submit(w.s, &o, &no, &b, &e), FO_EUNAVAIL);
    assert_non_null(strstr(e.msg, "the die failed"));
    assert_in_range(b.retry_after_s, 1, 120);
    test_world_close(&w);
}

static void a_request_that_bans_every_token_gets_an_error_of_its_own(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    static struct pn_logit_bias ban[512];
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 8, 0);
    test_prompt(ids, 10, 20);
    for (int i = 0; i < 512; i++) ban[i] = (struct pn_logit_bias){ i, -100 };
    struct pn_request_opts o = test_opts(ids, 10, 5);
    o.sampling.bias = ban;
    o.sampling.n_bias = 512;
    test_ask(w.s, &o, &a);
    assert_int_equal(a.code, FO_EINVAL); /* the request's fault, not a bug */
    assert_non_null(strstr(a.msg, "logit_bias"));
    o.sampling.n_bias = 0;
    test_ask(w.s, &o, &a);
    assert_int_equal(a.code, 0);
    test_world_close(&w);
}

static void told(const struct test_answer *a, uint32_t cached, uint32_t shared, enum pn_cache_miss miss) {
    assert_int_equal(a->code, 0);
    assert_int_equal(a->usage.cached_tokens, cached);
    assert_int_equal(a->usage.cache_shared, shared);
    assert_int_equal(a->usage.cache_miss, miss);
}

static void a_conversation_computes_only_what_is_new(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer fresh, first, again;
    int32_t ids[CTX];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 40, 21);
    struct pn_request_opts o = test_opts(ids, 40, 20);
    o.session = "c1";
    test_ask(w.s, &o, &first);
    told(&first, 0, 0, PN_CACHE_EMPTY);
    memcpy(ids + 40, first.ids, 20 * sizeof *ids); /* the answer is part of the next prompt, then new words */
    test_prompt(ids + 60, 10, 22);
    o.n_tokens = 70;
    o.keep_nothing = true;
    uint64_t used = status(&w).kv_bytes_used;
    test_ask(w.s, &o, &fresh);
    told(&fresh, 0, 0, PN_CACHE_OFF);
    assert_int_equal(status(&w).kv_bytes_used, used);
    o.keep_nothing = false;
    o.session = "c2"; /* another name changes nothing */
    uint64_t before = status(&w).tokens_prefilled;
    test_ask(w.s, &o, &again);
    told(&again, 59, 59, PN_CACHE_FULL); /* all but the last token of the answer, which was never computed on */
    assert_int_equal(status(&w).tokens_prefilled - before, 11);
    same(&fresh, &again);

    /* The same again, whole: the last token is computed for its logits. A prompt that parts earlier keeps what it shares, in whole pages. */
    test_ask(w.s, &o, &again);
    told(&again, 69 / PAGE * PAGE, 70, PN_CACHE_FULL);
    same(&fresh, &again);
    ids[30] = 7;
    test_ask(w.s, &o, &again);
    told(&again, 30 / PAGE * PAGE, 30, PN_CACHE_DIVERGED);

    pn_served_forget(w.s, "c1");
    pn_served_forget(w.s, "c2");
    for (int i = 0; i < 2000 && status(&w).kv_bytes_used > 0; i++) usleep(1000);
    assert_int_equal(status(&w).kv_bytes_used, 0);
    test_ask(w.s, &o, &again);
    told(&again, 0, 0, PN_CACHE_EMPTY);
    o.tenant = "somebody else";
    test_ask(w.s, &o, &again); /* shares nothing, whatever the session is called */
    told(&again, 0, 0, PN_CACHE_EMPTY);
    test_ask(w.s, &o, &again);
    told(&again, 69 / PAGE * PAGE, 70, PN_CACHE_FULL);
    test_world_close(&w);
}

static void idle_conversations_give_way_oldest_first(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    int32_t ids[9][65];
    test_world_open(&w, CTX, 1, 2, 64, 8, 0); /* pages for eight times 64 tokens */
    for (int i = 0; i < 9; i++) test_prompt(ids[i], 65, 100 + (uint64_t)i);
    for (int i = 0; i < 8; i++) {
        struct pn_request_opts o = test_opts(ids[i], 64, 1);
        test_ask(w.s, &o, &a);
        told(&a, 0, 0, i ? PN_CACHE_DIVERGED : PN_CACHE_EMPTY);
    }
    /* A request that may fill the cap takes the pages of whoever is idle, the oldest first, and no more than it needs. */
    struct pn_request_opts o = test_opts(ids[8], 64, 0), old = test_opts(ids[3], 65, 1), young = test_opts(ids[7], 65, 1);
    test_ask(w.s, &o, &a);
    assert_int_equal(a.finish, PN_FINISH_LENGTH);
    test_ask(w.s, &young, &a);
    told(&a, 64, 64, PN_CACHE_FULL);
    test_ask(w.s, &old, &a);
    told(&a, 0, 0, PN_CACHE_EVICTED);
    test_world_close(&w);
}

static void requests_that_run_together_share_what_they_begin_with(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer alone, a, b;
    int32_t ids[200];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 200, 31);
    struct pn_request_opts o = test_opts(ids, 200, 40);
    o.keep_nothing = true;
    test_ask(w.s, &o, &alone);
    o.keep_nothing = false;
    atomic_store(&w.die.delay_ms, 5);
    struct pn_request *r = test_submit(w.s, &o);
    read_first(r, &a);
    test_ask(w.s, &o, &b);
    told(&b, 199 / PAGE * PAGE, 200, PN_CACHE_FULL);
    while (test_take(r, 30000, &a, NULL)) {}
    pn_request_release(r);
    same(&alone, &a);
    same(&alone, &b);
    test_world_close(&w);
}

static void an_idle_worker_ticks_and_burns_nothing(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    struct rusage before, after;
    int32_t ids[10];
    test_world_open(&w, CTX, 1, 1, 64, 8, 0);
    test_prompt(ids, 10, 24);
    struct pn_request_opts o = test_opts(ids, 10, 5);
    test_ask(w.s, &o, &a);
    usleep(100000); /* compute threads go to sleep */
    uint64_t beat = status(&w).heartbeat;
    getrusage(RUSAGE_SELF, &before);
    usleep(2300000);
    getrusage(RUSAGE_SELF, &after);
    double ms = (double)(after.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_utime.tv_sec - before.ru_stime.tv_sec) * 1e3 +
                (double)(after.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_utime.tv_usec - before.ru_stime.tv_usec) / 1e3;
    assert_in_range(status(&w).heartbeat - beat, 2, 5);
#ifndef FO_DEBUG
    assert_true(ms < 2.0); /* 50 ms a minute */
#else
    assert_true(ms < 20.0);
#endif
    test_world_close(&w);
}

static void slots_and_counters_show_what_runs_and_what_ran(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    struct pn_slot_status slot[2];
    int32_t ids[45];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 40, 25);
    struct pn_request_opts o = test_opts(ids, 40, 5);
    test_ask(w.s, &o, &a);
    memcpy(ids + 40, a.ids, 4 * sizeof *ids);
    ids[44] = 9;
    o.n_tokens = 45;
    test_ask(w.s, &o, &a);
    struct pn_served_status st = status(&w);
    assert_int_equal(st.requests, 2);
    assert_int_equal(st.completed, 2);
    assert_int_equal(st.failed + st.cancelled, 0);
    assert_int_equal(st.tokens_cached, 44);
    assert_int_equal(st.tokens_generated, 10);
    assert_int_equal(st.tokens_prefilled + st.tokens_cached, 85);
    assert_true(st.prefill_s > 0 && st.decode_s > 0 && st.queue_s >= 0);
    assert_int_equal(pn_served_slots(w.s, slot, 1), 2);
    assert_false(slot[0].busy);

    atomic_store(&w.die.delay_ms, 2);
    o = test_opts(ids, 40, 200);
    o.id = "req_1";
    struct pn_request *r = test_submit(w.s, &o);
    read_first(r, &a);
    uint32_t busy = 2;
    do { /* it is shown just after its token was */
        assert_int_equal(pn_served_slots(w.s, slot, 2), 2);
        busy = slot[0].busy ? 0 : 1;
    } while (slot[busy].generated_tokens == 0);
    assert_false(slot[1 - busy].busy);
    assert_string_equal(slot[busy].request, "req_1");
    assert_int_equal(slot[busy].prompt_tokens, 40);
    assert_int_equal(slot[busy].max_tokens, 200);
    assert_int_equal(slot[busy].computed_tokens, 40 + slot[busy].generated_tokens - 1);
    assert_true(slot[busy].started_ms > 0);
    pn_request_release(r);
    test_wait_idle(w.s);
    assert_int_equal(status(&w).cancelled, 1);
    assert_int_equal(status(&w).completed, 2);
    pn_served_slots(w.s, slot, 2);
    assert_false(slot[0].busy || slot[1].busy);
    test_world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_text_alone_and_with_three_mates),
        cmocka_unit_test(the_same_seed_gives_the_same_text_and_another_seed_another),
        cmocka_unit_test(a_running_answer_never_waits_for_a_whole_prompt),
        cmocka_unit_test(a_request_cancelled_in_the_queue_never_starts),
        cmocka_unit_test(a_cancel_stops_a_prefill_before_its_next_chunk),
        cmocka_unit_test(a_cancel_stops_a_decode_before_its_next_step),
        cmocka_unit_test(a_full_queue_refuses_at_once_and_says_when_to_come_back),
        cmocka_unit_test(a_request_that_waited_too_long_is_told_so),
        cmocka_unit_test(a_choice_that_goes_on_passes_a_full_queue_and_a_drain_until_its_deadline),
        cmocka_unit_test(a_slow_reader_pauses_its_own_request_and_no_other),
        cmocka_unit_test(stop_strings_end_the_answer_wherever_tokens_are_cut),
        cmocka_unit_test(max_tokens_ends_with_length),
        cmocka_unit_test(a_banned_end_runs_to_the_cap_and_a_forced_one_stops),
        cmocka_unit_test(a_step_that_fails_for_one_request_fails_no_other),
        cmocka_unit_test(a_die_lost_under_all_requests_fails_the_model_and_not_the_process),
        cmocka_unit_test(a_request_that_bans_every_token_gets_an_error_of_its_own),
        cmocka_unit_test(a_conversation_computes_only_what_is_new),
        cmocka_unit_test(idle_conversations_give_way_oldest_first),
        cmocka_unit_test(requests_that_run_together_share_what_they_begin_with),
        cmocka_unit_test(an_idle_worker_ticks_and_burns_nothing),
        cmocka_unit_test(slots_and_counters_show_what_runs_and_what_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
