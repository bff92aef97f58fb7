/* Errands: what other threads have the worker do between two steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine_impl.h"
#include "engine/sched.h"
#include "engine/wake.h"
#include "tests/support/serve.h"

enum { CTX = 512, THREADS = 16, EACH = 50 };

/* Not atomic: only the worker touches it. */
struct seen {
    long calls;
    struct pn_model *m;
    struct pn_prefix *p;
    useconds_t us;
};

static void look(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct seen *x = ctx;
    x->calls++;
    x->m = m;
    x->p = p;
    if (x->us) usleep(x->us);
}

static void wakes_a_worker_that_sleeps(void **state) {
    (void)state;
    struct test_world w;
    struct fo_err e;
    struct seen x = { 0 };
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    double start = pn_now_ms();
    for (int i = 0; i < EACH; i++) assert_int_equal(pn_sched_errand(w.s->sched, look, &x, &e), 0);
    assert_int_equal(x.calls, EACH);
    assert_ptr_equal(x.m, pn_served_model(w.s));
    assert_non_null(x.p);
    assert_true(pn_now_ms() - start < EACH * 500); /* a worker that is not woken looks around once a second */
    test_world_close(&w);
}

struct asker {
    struct pn_sched *s;
    struct seen *x;
    int rc, n_good;
};

static void *ask(void *arg) {
    struct asker *a = arg;
    struct fo_err e;
    for (int i = 0; i < EACH && a->rc == 0; i++) {
        a->rc = pn_sched_errand(a->s, look, a->x, &e);
        a->n_good += a->rc == 0;
    }
    return NULL;
}

static void many_threads_have_theirs_run_one_at_a_time_between_the_steps_of_answers(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer alone, beside;
    struct seen x = { 0 };
    pthread_t t[THREADS];
    struct asker a[THREADS];
    int32_t ids[40];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 40, 3);
    struct pn_request_opts o = test_opts(ids, 40, 60);
    test_ask(w.s, &o, &alone);
    struct pn_request *r = test_submit(w.s, &o);
    for (int i = 0; i < THREADS; i++) {
        a[i] = (struct asker){ .s = w.s->sched, .x = &x };
        assert_int_equal(pthread_create(&t[i], NULL, ask, &a[i]), 0);
    }
    test_read_all(r, &beside);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(a[i].rc, 0);
    }
    assert_int_equal(x.calls, THREADS * EACH);
    assert_int_equal(beside.code, 0);
    assert_string_equal(beside.text, alone.text);
    test_world_close(&w);
}

static void a_model_that_drains_runs_them_and_one_that_is_gone_refuses_them(void **state) {
    (void)state;
    struct test_world w;
    struct fo_err e;
    struct seen x = { 0 };
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    pn_engine_drain(w.en);
    assert_int_equal(pn_sched_errand(w.s->sched, look, &x, &e), 0);
    assert_int_equal(pn_engine_unload(w.en, "m", 0, &e), 0);
    assert_int_equal(pn_sched_errand(w.s->sched, look, &x, &e), FO_EUNAVAIL);
    assert_int_equal(x.calls, 1);
    test_world_close(&w);
}

static void what_waits_when_a_model_is_unloaded_ends_and_was_run_or_refused(void **state) {
    (void)state;
    struct test_world w;
    struct fo_err e;
    struct seen x = { .us = 1000 };
    pthread_t t[THREADS];
    struct asker a[THREADS];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    for (int i = 0; i < THREADS; i++) {
        a[i] = (struct asker){ .s = w.s->sched, .x = &x };
        assert_int_equal(pthread_create(&t[i], NULL, ask, &a[i]), 0);
    }
    usleep(20000);
    assert_int_equal(pn_engine_unload(w.en, "m", 0, &e), 0);
    long good = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        assert_true(a[i].rc == FO_EUNAVAIL || a[i].n_good == EACH);
        good += a[i].n_good;
    }
    assert_int_equal(x.calls, good);
    test_world_close(&w);
}

static void a_failed_model_refuses_them_with_its_reason(void **state) {
    (void)state;
    struct test_world w;
    static struct test_answer a;
    struct fo_err e;
    struct seen x = { 0 };
    int32_t ids[4];
    test_world_open(&w, CTX, 2, 2, 64, 8, 0);
    test_prompt(ids, 4, 1);
    atomic_store(&w.die.poison, ids[0]);
    atomic_store(&w.die.poison_code, FO_ELOST);
    struct pn_request_opts o = test_opts(ids, 4, 4);
    test_ask(w.s, &o, &a);
    assert_int_equal(a.code, FO_ELOST);
    assert_int_equal(pn_sched_errand(w.s->sched, look, &x, &e), FO_EUNAVAIL);
    assert_non_null(strstr(e.msg, "the model failed: "));
    assert_int_equal(x.calls, 0);
    test_world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wakes_a_worker_that_sleeps),
        cmocka_unit_test(many_threads_have_theirs_run_one_at_a_time_between_the_steps_of_answers),
        cmocka_unit_test(a_model_that_drains_runs_them_and_one_that_is_gone_refuses_them),
        cmocka_unit_test(what_waits_when_a_model_is_unloaded_ends_and_was_run_or_refused),
        cmocka_unit_test(a_failed_model_refuses_them_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
