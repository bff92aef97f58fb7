/* A turn on a host without memory: every allocation of it, on the thread that asks and on the worker, fails once. The request ends with an error
 * that says so or answers as ever, nothing stays behind, and the model goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "engine/engine_impl.h"
#include "engine/prefix.h"
#include "engine/sched.h"
#include "tests/support/alloc.h"
#include "tests/support/serve.h"

enum { CTX = 512, PROMPT = 150, ANSWER = 24 };

/* Errands: what only the worker may touch, or only its thread counts. */
static void arm(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    (void)m;
    (void)p;
    test_fail_alloc(*(long *)ctx);
}

static void disarm(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    (void)m;
    (void)p;
    *(bool *)ctx = test_alloc_failed();
}

/* Everything is given up, and must be there again. */
static void count_all(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    bool *good = ctx;
    *good = pn_prefix_check(p, NULL, 0);
    while (pn_prefix_evict(p)) {}
    *good = *good && pn_prefix_check(p, NULL, 0) && pn_model_free_pages(m) == pn_model_info(m)->n_pages;
}

static void errand(const struct test_world *w, pn_sched_errand_fn *fn, void *ctx) {
    struct fo_err e;
    if (pn_sched_errand(w->s->sched, fn, ctx, &e)) fail_msg("%s", e.msg);
}

/* What a request asks for besides an answer: each has allocations of its own. */
enum variant { PLAIN, KEPT, STOPS, LOGPROBS, HELD, EMBED, N_VARIANTS };

static const char *const stops[] = { "never said, this one", "nor this" };

static struct pn_request_opts ask_for(enum variant v, const int32_t *ids) {
    struct pn_request_opts o = test_opts(ids, PROMPT, ANSWER);
    o.keep_nothing = v == PLAIN;
    o.tenant = v == KEPT ? "somebody" : NULL;
    o.session = v == KEPT || v == HELD ? "conversation" : NULL;
    if (v == STOPS) o.stops = stops, o.n_stops = 2;
    if (v == LOGPROBS) o.logprobs = true, o.n_top_logprobs = 3;
    if (v == EMBED) o.embed = true, o.max_tokens = 0, o.want_text = false;
    return o;
}

static int held_to(const struct test_world *w, enum variant v, struct pn_request_opts *o, struct fo_err *e) {
    static const char text[] = "root ::= [a-z ]+";
    return v == HELD ? pn_served_grammar(w->s, PN_GRAMMAR_GBNF, text, sizeof text - 1, &o->grammar, e) : 0;
}

/* One turn; its code. */
static int turn(const struct test_world *w, enum variant v, const int32_t *ids, struct test_answer *a) {
    struct pn_request *r;
    struct pn_budget budget;
    struct fo_err e = { 0 };
    struct pn_request_opts o = ask_for(v, ids);
    memset(a, 0, sizeof *a);
    int rc = held_to(w, v, &o, &e);
    if (rc == 0) rc = pn_submit(w->s, &o, &r, &budget, &e);
    pn_grammar_put(o.grammar);
    if (rc) {
        memcpy(a->msg, e.msg, sizeof a->msg);
        return rc;
    }
    test_read_all(r, a);
    return a->code;
}

static void each_allocation_fails_once(const struct test_world *w, enum variant v, bool on_worker) {
    static struct test_answer want, got;
    int32_t ids[PROMPT];
    bool failed = true, good;
    test_prompt(ids, PROMPT, 7);
    if (turn(w, v, ids, &want)) fail_msg("%s", want.msg);
    errand(w, count_all, &good);
    assert_true(good);
    long n = 1;
    for (; failed; n++) {
        if (on_worker) errand(w, arm, &n);
        else test_fail_alloc(n);
        int rc = turn(w, v, ids, &got);
        if (on_worker) errand(w, disarm, &failed);
        else failed = test_alloc_failed();
        if (rc && (rc != FO_ENOMEM || !*got.msg)) fail_msg("variant %d, allocation %ld: %d '%s'", (int)v, n, rc, got.msg);
        if (rc && !failed) fail_msg("variant %d, allocation %ld did not fail, but the request: %s", (int)v, n, got.msg);
        if (!rc && v != EMBED) assert_memory_equal(got.ids, want.ids, sizeof *want.ids * want.n_ids);
        if (!rc) assert_int_equal(got.n_ids, want.n_ids);
        test_wait_idle(w->s);
        errand(w, count_all, &good);
        if (!good) fail_msg("variant %d: after allocation %ld failed, counts are wrong", (int)v, n);
    }
    if (!on_worker || v == KEPT) assert_true(n > 3);
    struct pn_served_status st;
    pn_served_status(w->s, &st);
    assert_true(st.ready);
    if (turn(w, v, ids, &got)) fail_msg("%s", got.msg);
    assert_int_equal(got.n_ids, want.n_ids);
    errand(w, count_all, &good);
}

static void any_allocation_of_whoever_asks_may_fail(void **state) {
    (void)state;
    struct test_world w;
    test_world_open(&w, CTX, 2, 3, 64, 8, 0);
    for (enum variant v = 0; v < N_VARIANTS; v++) each_allocation_fails_once(&w, v, false);
    test_world_close(&w);
}

static void any_allocation_of_the_worker_may_fail(void **state) {
    (void)state;
    struct test_world w;
    test_world_open(&w, CTX, 2, 3, 64, 8, 0);
    for (enum variant v = 0; v < N_VARIANTS; v++) each_allocation_fails_once(&w, v, true);
    test_world_close(&w);
}

/* What runs beside the one that fails says the same as ever. */
static void who_runs_beside_notices_nothing(void **state) {
    (void)state;
    static struct test_answer want, beside, got;
    struct test_world w;
    int32_t ids[PROMPT], other[PROMPT];
    bool failed = true;
    test_world_open(&w, CTX, 2, 3, 64, 8, 0);
    test_prompt(ids, PROMPT, 7);
    test_prompt(other, PROMPT, 8);
    struct pn_request_opts o = test_opts(other, PROMPT, 60);
    o.keep_nothing = true;
    test_ask(w.s, &o, &want);
    for (long n = 1; failed; n++) {
        struct pn_request *r = test_submit(w.s, &o);
        memset(&beside, 0, sizeof beside);
        while (beside.n_ids == 0) assert_true(test_take(r, 30000, &beside, NULL)); /* it has what it needs */
        errand(&w, arm, &n);
        int rc = turn(&w, KEPT, ids, &got);
        errand(&w, disarm, &failed);
        if (rc) assert_int_equal(rc, FO_ENOMEM);
        while (test_take(r, 30000, &beside, NULL)) {}
        pn_request_release(r);
        if (beside.code) fail_msg("allocation %ld: %s", n, beside.msg);
        assert_int_equal(beside.n_ids, want.n_ids);
        assert_memory_equal(beside.ids, want.ids, sizeof *want.ids * want.n_ids);
    }
    test_world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_of_whoever_asks_may_fail),
        cmocka_unit_test(any_allocation_of_the_worker_may_fail),
        cmocka_unit_test(who_runs_beside_notices_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
