/* Several instances of one name: routing, loading and unloading one by one, values that are set while they serve, instances whose die is
 * lost, and prompts that do not hold up running answers. On sim dies, with scripted models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "engine/sched.h"
#include "engine/wake.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { MIB = 1 << 20 };

static struct fo_device *die(const char *name, const char *script) {
    struct fo_device *d = NULL;
    struct fo_err e = { 0 };
    struct fo_device_opts o = { .n_threads = 1, .memory_bytes = 64 * MIB, .script = script };
    if (fo_device_open("sim", name, &o, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

static struct pn_engine *engine(void) {
    struct pn_engine *en = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(pn_engine_new(&en, &e), FO_OK);
    return en;
}

static const char *model_file(const char *text, uint32_t pace_us, uint32_t row_us) {
    struct test_script t = test_script_default();
    struct fo_err e = { 0 };
    t.text = text;
    t.pace_us = pace_us;
    t.row_us = row_us;
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    return odd_path(0);
}

static struct pn_serve_opts serve_opts(const char *name, uint32_t replica, struct fo_device *d) {
    return (struct pn_serve_opts){
        .name = name,
        .replica = replica,
        .model = { .dev = d, .max_sessions = 4, .max_concurrent = 2, .max_batch = 512, .ctx_cap = 4096, .kv_default = true },
    };
}

static void load(struct pn_engine *en, const char *path, const struct pn_serve_opts *o) {
    struct fo_err e = { 0 };
    if (pn_engine_load(en, path, o, &e)) fail_msg("%s", e.msg);
}

static struct pn_served_status status(struct pn_engine *en, const char *name, uint32_t replica) {
    struct pn_served_status st;
    struct pn_served *s = pn_engine_get_replica(en, name, replica);
    assert_non_null(s);
    pn_served_status(s, &st);
    pn_served_put(s);
    return st;
}

/* A request that is chosen by name and runs until it is cancelled. */
static struct pn_request *start(struct pn_engine *en, const char *name, uint32_t *ret_replica) {
    struct pn_served *s = pn_engine_get(en, name);
    assert_non_null(s);
    if (ret_replica) *ret_replica = pn_served_replica(s);
    int32_t ids[4];
    test_prompt(ids, 4, 3);
    struct pn_request_opts o = test_opts(ids, 4, 3000);
    struct pn_request *r = test_submit(s, &o);
    pn_served_put(s);
    return r;
}

static void a_request_goes_to_the_least_busy_instance(void **state) {
    (void)state;
    struct fo_device *d[3] = { die("s0", NULL), die("s1", NULL), die("s2", NULL) };
    struct pn_engine *en = engine();
    const char *path = model_file("abc", 2000, 0), *const alias = "other";
    for (uint32_t i = 0; i < 3; i++) {
        struct pn_serve_opts o = serve_opts("m", i, d[i]);
        o.aliases = &alias;
        o.n_aliases = 1;
        if (i == 2) o.max_concurrent = 1;
        load(en, path, &o);
    }
    /* Shares of slots taken: 0 0 0 -> 0.5 0 0 -> 0.5 0.5 0 -> 0.5 0.5 1 -> 1 0.5 1 -> ... */
    static const uint32_t want[] = { 0, 1, 2, 0, 1 };
    struct pn_request *r[6];
    uint32_t at;
    for (int i = 0; i < 5; i++) {
        r[i] = start(en, i % 2 ? "other" : "m", &at);
        assert_int_equal(at, want[i]);
    }
    /* All alike: the one with the fewest requests so far. */
    r[5] = start(en, "m", &at);
    assert_int_equal(at, 2);
    pn_request_release(r[1]);
    pn_request_release(r[4]);
    struct pn_served *one = pn_engine_get_replica(en, "m", 1);
    test_wait_idle(one);
    pn_served_put(one);
    struct pn_request *again = start(en, "m", &at);
    assert_int_equal(at, 1);
    pn_request_release(again);
    for (int i = 0; i < 6; i++)
        if (i != 1 && i != 4) pn_request_release(r[i]);
    pn_engine_free(en);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fo_device_contexts(d[i]), 0);
        fo_device_close(d[i]);
    }
    unlink(path);
}

/* Where a request with this prompt goes. */
static uint32_t route(struct pn_engine *en, const struct pn_request_opts *o) {
    struct pn_served *s = pn_engine_get(en, "m"), *to = pn_engine_route(en, s, o);
    uint32_t at = pn_served_replica(to);
    pn_served_put(to);
    pn_served_put(s);
    return at;
}

static void a_conversation_stays_where_its_prefix_is_unless_that_is_twice_as_loaded(void **state) {
    (void)state;
    enum { TURNS = 10, BEGINS = 150, GROWS = 70 };
    struct fo_device *d[3] = { die("s0", NULL), die("s1", NULL), die("s2", NULL) };
    struct pn_engine *en = engine();
    const char *path = model_file("abc", 100, 0);
    static struct test_answer a;
    static int32_t ids[BEGINS + TURNS * GROWS];
    for (uint32_t i = 0; i < 3; i++) {
        struct pn_serve_opts o = serve_opts("m", i, d[i]);
        o.model.max_concurrent = 4;
        load(en, path, &o);
    }
    test_prompt(ids, BEGINS + TURNS * GROWS, 5);
    struct pn_request_opts o = test_opts(ids, BEGINS, 4);
    o.tenant = "a";
    uint32_t home = route(en, &o), n_cached = 0;
    struct pn_served *s = pn_engine_get_replica(en, "m", home);
    for (int turn = 0; turn < TURNS; turn++, o.n_tokens += GROWS) {
        assert_int_equal(route(en, &o), home); /* though it had more requests than the others from the first on */
        test_ask(s, &o, &a);
        assert_int_equal(a.code, 0);
        n_cached += a.usage.cached_tokens > 0;
    }
    assert_int_equal(n_cached, TURNS - 1);
    o.n_tokens -= GROWS;
    o.tenant = "b"; /* another's begins the same way: it is not found */
    assert_int_not_equal(route(en, &o), home);
    o.tenant = "a";
    o.keep_nothing = true;
    assert_int_not_equal(route(en, &o), home);
    o.keep_nothing = false;

    /* One more there: twice as loaded, with this one; two: more than that. */
    struct pn_request *r[2];
    int32_t other[4];
    test_prompt(other, 4, 9);
    struct pn_request_opts long_one = test_opts(other, 4, 3000);
    r[0] = test_submit(s, &long_one);
    assert_int_equal(route(en, &o), home);
    r[1] = test_submit(s, &long_one);
    assert_int_not_equal(route(en, &o), home);
    o.goes_on = true; /* a choice stays where the first of it ran, as long as that serves */
    struct pn_served *to = pn_engine_route(en, s, &o);
    assert_ptr_equal(to, s);
    pn_served_put(to);
    o.goes_on = false;
    for (int i = 0; i < 2; i++) pn_request_release(r[i]);
    test_wait_idle(s);
    assert_int_equal(route(en, &o), home); /* it comes back to what is kept */
    pn_served_put(s);
    pn_engine_free(en);
    for (int i = 0; i < 3; i++) fo_device_close(d[i]);
    unlink(path);
}

static void count_names(void *ctx, struct pn_served *s) {
    snprintf((char *)ctx + strlen(ctx), 16, "%s/%u ", pn_served_name(s), pn_served_replica(s));
}

static void instances_come_and_go_one_by_one(void **state) {
    (void)state;
    struct fo_device *d = die("s0", NULL);
    struct pn_engine *en = engine();
    struct fo_err e = { 0 };
    const char *path = model_file("abc", 0, 0), *alias = "a";
    struct pn_serve_opts o = serve_opts("m", 0, d), other = serve_opts("n", 0, d);
    o.aliases = &alias;
    o.n_aliases = 1;
    load(en, path, &o);
    o.replica = 5;
    load(en, path, &o);
    load(en, path, &other);
    assert_int_equal(pn_engine_load(en, path, &o, &e), FO_EINVAL); /* the same again */
    assert_non_null(strstr(e.msg, "replica 5"));
    static const char *const taken[] = { "m", "a" };
    for (int i = 0; i < 2; i++) {
        other.replica = 1;
        other.aliases = &taken[i];
        other.n_aliases = 1;
        assert_int_equal(pn_engine_load(en, path, &other, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, taken[i]));
    }
    other = serve_opts("a", 0, d);
    assert_int_equal(pn_engine_load(en, path, &other, &e), FO_EINVAL);
    char names[64] = "";
    pn_engine_each(en, count_names, names);
    assert_string_equal(names, "m/0 m/5 n/0 ");

    assert_null(pn_engine_get_replica(en, "m", 1));
    assert_null(pn_engine_get_replica(en, "a", 0));
    assert_int_equal(pn_engine_unload_replica(en, "m", 1, 0, &e), FO_ENOENT);
    struct pn_request *r = start(en, "m", NULL); /* on 0, and still there afterwards */
    assert_int_equal(pn_engine_unload_replica(en, "m", 5, 0, &e), FO_OK);
    uint32_t at;
    struct pn_request *more = start(en, "a", &at);
    assert_int_equal(at, 0);
    pn_request_release(more);
    pn_request_release(r);
    o.replica = 7;
    load(en, path, &o);
    assert_int_equal(pn_engine_unload(en, "a", 1000, &e), FO_OK); /* all of them */
    names[0] = '\0';
    pn_engine_each(en, count_names, names);
    assert_string_equal(names, "n/0 ");
    assert_int_equal(pn_engine_unload(en, "m", 0, &e), FO_ENOENT);
    assert_int_equal(pn_engine_unload(en, "n", 0, &e), FO_OK);
    assert_int_equal(fo_device_contexts(d), 0);
    pn_engine_free(en);
    fo_device_close(d);
    unlink(path);
}

static void values_are_set_while_answers_run(void **state) {
    (void)state;
    struct fo_device *d = die("s0", NULL);
    struct pn_engine *en = engine();
    struct fo_err e = { 0 };
    const char *path = model_file("abc", 1000, 0);
    struct pn_serve_opts o = serve_opts("m", 0, d), other = serve_opts("n", 0, d);
    o.model.max_concurrent = other.model.max_concurrent = 4;
    o.max_concurrent = 1;
    o.queue_depth = 1;
    load(en, path, &o);
    load(en, path, &other);
    struct pn_request *r[3];
    r[0] = start(en, "m", NULL);
    struct pn_event ev;
    do pn_request_next(r[0], 30000, &ev); while (ev.kind == PN_EV_STARTED);
    assert_int_equal(ev.kind, PN_EV_TEXT);
    r[1] = start(en, "m", NULL); /* waits, and with it the queue is full */
    struct pn_served *s = pn_engine_get(en, "m");
    struct pn_request *none;
    struct pn_budget b;
    int32_t ids[4] = { 5, 6, 7, 8 };
    struct pn_request_opts ask = test_opts(ids, 4, 10);
    assert_int_equal(pn_submit(s, &ask, &none, &b, &e), FO_EBUSY);
    pn_request_next(r[1], 50, &ev);
    assert_int_equal(ev.kind, PN_EV_TIMEOUT);
    assert_int_equal(status(en, "m", 0).max_concurrent, 1);

    /* More at once: it starts. */
    static const char *const aliases[] = { "x", "y" };
    o.max_concurrent = 3;
    o.queue_depth = 8;
    o.aliases = aliases;
    o.n_aliases = 2;
    assert_int_equal(pn_engine_set(en, &o, &e), FO_OK);
    pn_request_next(r[1], 30000, &ev);
    assert_int_equal(ev.kind, PN_EV_STARTED);
    assert_int_equal(status(en, "m", 0).max_concurrent, 3);
    struct pn_served *y = pn_engine_get(en, "y");
    assert_ptr_equal(y, s);
    pn_served_put(y);
    r[2] = start(en, "x", NULL);
    do pn_request_next(r[2], 30000, &ev); while (ev.kind == PN_EV_STARTED);
    assert_int_equal(ev.kind, PN_EV_TEXT);

    /* What is refused changes nothing. */
    struct pn_serve_opts bad = o;
    static const char *const stolen[] = { "z", "n" };
    bad.max_concurrent = 5;
    assert_int_equal(pn_engine_set(en, &bad, &e), FO_EINVAL);
    assert_int_equal(e.need, 5);
    assert_int_equal(e.have, 4);
    bad = o;
    bad.aliases = stolen;
    assert_int_equal(pn_engine_set(en, &bad, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "'n'"));
    assert_null(pn_engine_get(en, "z"));
    y = pn_engine_get(en, "x");
    assert_non_null(y);
    pn_served_put(y);
    bad.replica = 9;
    assert_int_equal(pn_engine_set(en, &bad, &e), FO_ENOENT);
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int rc = pn_engine_set(en, &o, &e);
        if (!test_alloc_failed()) break;
        assert_int_equal(rc, FO_ENOMEM);
    }

    /* Fewer at once: what runs goes on. Aliases go. */
    o.max_concurrent = 1;
    o.n_aliases = 0;
    o.max_tokens_default = 7;
    assert_int_equal(pn_engine_set(en, &o, &e), FO_OK);
    assert_null(pn_engine_get(en, "x"));
    for (int i = 0; i < 3; i++) {
        pn_request_next(r[i], 30000, &ev);
        assert_true(ev.kind == PN_EV_TEXT || (ev.kind == PN_EV_DONE && ev.finish == PN_FINISH_LENGTH));
        pn_request_release(r[i]);
    }
    static struct test_answer a;
    ask.max_tokens = 0;
    test_ask(s, &ask, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.n_ids, 7);
    pn_served_put(s);
    pn_engine_free(en);
    fo_device_close(d);
    unlink(path);
}

static void a_lost_die_fails_its_instance_and_the_others_serve_on(void **state) {
    (void)state;
    char lost[128], script[200];
    struct fo_err e = { 0 };
    snprintf(lost, sizeof lost, "%s.lost", odd_path(1));
    snprintf(script, sizeof script, "lost file=%s", lost);
    struct fo_device *d[2] = { die("s0", script), die("s1", NULL) };
    struct pn_engine *en = engine();
    const char *path = model_file("abc", 1000, 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct pn_serve_opts o = serve_opts("m", i, d[i]);
        load(en, path, &o);
    }
    uint32_t at[2];
    struct pn_request *r[2];
    struct pn_event ev;
    for (int i = 0; i < 2; i++) {
        r[i] = start(en, "m", &at[i]);
        assert_int_equal(at[i], i);
        do pn_request_next(r[i], 30000, &ev); while (ev.kind == PN_EV_STARTED);
        assert_int_equal(ev.kind, PN_EV_TEXT);
    }
    FILE *f = fopen(lost, "w");
    assert_non_null(f);
    fclose(f);
    do pn_request_next(r[0], 30000, &ev); while (ev.kind == PN_EV_TEXT);
    assert_int_equal(ev.kind, PN_EV_ERROR);
    assert_int_equal(ev.err->code, FO_ELOST);
    assert_non_null(strstr(ev.err->msg, "s0"));
    pn_request_release(r[0]);
    struct pn_served_status st = status(en, "m", 0);
    assert_false(st.ready);
    assert_int_equal(st.failed_code, FO_ELOST);
    assert_non_null(strstr(st.reason, "s0"));
    assert_true(status(en, "m", 1).ready);
    for (int i = 0; i < 3; i++) { /* however busy the other is */
        struct pn_request *more = start(en, "m", &at[0]);
        assert_int_equal(at[0], 1);
        pn_request_release(more);
    }
    pn_request_release(r[1]);

    /* It stays failed when the die is back; loaded anew it serves. */
    unlink(lost);
    uint64_t total, left;
    assert_int_equal(d[0]->memory(d[0], &total, &left, &e), FO_OK);
    assert_false(status(en, "m", 0).ready);
    assert_int_equal(pn_engine_unload_replica(en, "m", 0, 1000, &e), FO_OK);
    assert_int_equal(fo_device_contexts(d[0]), 0);
    struct pn_serve_opts o = serve_opts("m", 0, d[0]);
    load(en, path, &o);
    struct pn_request *again = start(en, "m", &at[0]);
    assert_int_equal(at[0], 0);
    do pn_request_next(again, 30000, &ev); while (ev.kind == PN_EV_STARTED);
    assert_int_equal(ev.kind, PN_EV_TEXT);
    pn_request_release(again);

    /* Of an idle instance it is found out within a tick of the worker. */
    struct pn_served *one = pn_engine_get_replica(en, "m", 0);
    test_wait_idle(one);
    pn_served_put(one);
    f = fopen(lost, "w");
    assert_non_null(f);
    fclose(f);
    double until = pn_now_ms() + 30000;
    while (status(en, "m", 0).ready) {
        assert_true(pn_now_ms() < until);
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    }
    assert_int_equal(status(en, "m", 0).failed_code, FO_ELOST);
    unlink(lost);
    pn_engine_free(en);
    fo_device_close(d[0]);
    fo_device_close(d[1]);
    unlink(path);
}

static void an_op_that_fails_once_fails_the_instance_when_nothing_else_runs(void **state) {
    (void)state;
    struct fo_device *d = die("s0", "op 30 fails");
    struct pn_engine *en = engine();
    const char *path = model_file("abc", 0, 0);
    struct pn_serve_opts o = serve_opts("m", 0, d);
    load(en, path, &o);
    struct pn_request *r = start(en, "m", NULL);
    static struct test_answer a;
    test_read_all(r, &a);
    assert_int_equal(a.code, FO_ELOST);
    assert_non_null(strstr(a.msg, "op 30"));
    assert_int_equal(status(en, "m", 0).failed_code, FO_ELOST);
    pn_engine_free(en);
    fo_device_close(d);
    unlink(path);
}

/* --- an instance that fails hands over what waits --------------------------------------------- */
enum { WAITING = 20 };

/* Two instances of one slot each, the first on a die that is lost when the file is there; both answer until they are told not to. */
struct pair {
    char lost[160];
    struct fo_device *d[2];
    struct pn_engine *en;
    struct pn_served *s[2];
    struct pn_request *runs[2];
    const char *path;
};

static void open_pair(struct pair *p, uint32_t queue_timeout_ms) {
    char script[200];
    snprintf(p->lost, sizeof p->lost, "%s.lost", odd_path(1));
    snprintf(script, sizeof script, "lost file=%s", p->lost);
    p->d[0] = die("s0", script);
    p->d[1] = die("s1", NULL);
    p->en = engine();
    p->path = model_file("abcabc", 500, 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct pn_serve_opts o = serve_opts("m", i, p->d[i]);
        o.model.max_concurrent = 1;
        o.queue_depth = 2; /* of those that are handed over none is refused for it */
        if (i == 0) o.queue_depth = WAITING;
        o.queue_timeout_ms = queue_timeout_ms;
        load(p->en, p->path, &o);
        p->s[i] = pn_engine_get_replica(p->en, "m", i);
        int32_t ids[4];
        test_prompt(ids, 4, 3);
        struct pn_request_opts ask = test_opts(ids, 4, 4000);
        p->runs[i] = test_submit(p->s[i], &ask);
        struct pn_event ev;
        do pn_request_next(p->runs[i], 30000, &ev); while (ev.kind == PN_EV_STARTED);
        assert_int_equal(ev.kind, PN_EV_TEXT);
    }
}

static void lose(const struct pair *p) {
    FILE *f = fopen(p->lost, "w");
    assert_non_null(f);
    fclose(f);
}

static void close_pair(struct pair *p) {
    for (int i = 0; i < 2; i++) {
        pn_request_release(p->runs[i]);
        pn_served_put(p->s[i]);
    }
    pn_engine_free(p->en);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fo_device_contexts(p->d[i]), 0);
        fo_device_close(p->d[i]);
    }
    unlink(p->lost);
    unlink(p->path);
}

static void wait_failed(struct pair *p) {
    struct pn_event ev;
    lose(p);
    do pn_request_next(p->runs[0], 30000, &ev); while (ev.kind == PN_EV_TEXT);
    assert_int_equal(ev.kind, PN_EV_ERROR);
    assert_int_equal(ev.err->code, FO_ELOST);
}

static void what_waits_at_an_instance_that_fails_goes_to_another(void **state) {
    (void)state;
    struct pair p;
    struct fo_err e = { 0 };
    static struct test_answer a, alone;
    struct pn_request *r[WAITING];
    int32_t ids[6];
    open_pair(&p, 0);
    test_prompt(ids, 6, 4);
    struct pn_request_opts o = test_opts(ids, 6, 12);
    struct pn_grammar *g;
    assert_int_equal(pn_served_grammar(p.s[0], PN_GRAMMAR_REGEX, "(abc)*", 6, &g, &e), FO_OK);
    for (int i = 0; i < WAITING; i++) {
        char session[8];
        snprintf(session, sizeof session, "s%d", i % 3);
        o.tenant = i % 2 ? "a" : "b";
        o.session = session;
        o.grammar = i % 4 == 0 ? g : NULL;
        o.parts = i % 4 == 1;
        r[i] = test_submit(p.s[0], &o);
    }
    pn_grammar_put(g);
    pn_request_cancel(r[3]);
    pn_request_release(r[7]); /* its reader is gone */
    r[7] = NULL;
    wait_failed(&p);
    struct pn_served_status st = status(p.en, "m", 0);
    assert_false(st.ready);
    double until = pn_now_ms() + 30000;
    while ((st = status(p.en, "m", 0)).handed_over < WAITING - 2) {
        assert_true(pn_now_ms() < until);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(st.handed_over, WAITING - 2);
    assert_int_equal(st.failed, 1); /* the one that ran */
    assert_int_equal(st.cancelled, 2);
    assert_int_equal(st.running + st.queued, 0);
    st = status(p.en, "m", 1);
    assert_int_equal(st.queued, WAITING - 2);
    assert_int_equal(st.requests, 1);
    struct pn_event ev;
    for (int i = 0; i < WAITING; i++) { /* readers see nothing of it */
        if (i == 3 || i == 7) continue;
        pn_request_next(r[i], 0, &ev);
        assert_int_equal(ev.kind, PN_EV_TIMEOUT);
    }
    test_read_all(r[3], &a);
    assert_int_equal(a.code, FO_ECANCELLED);
    pn_request_cancel(r[5]); /* and the bell that a cancel rings is the other's */
    test_read_all(r[5], &a);
    assert_int_equal(a.code, FO_ECANCELLED);
    assert_false(a.started);

    /* The first may go meanwhile. */
    pn_served_put(p.s[0]);
    p.s[0] = NULL;
    assert_int_equal(pn_engine_unload_replica(p.en, "m", 0, 1000, &e), FO_OK);
    pn_request_release(p.runs[1]);
    p.runs[1] = NULL;
    for (int i = 0; i < WAITING; i++) {
        if (i == 3 || i == 5 || i == 7) continue;
        test_read_all(r[i], &a);
        assert_int_equal(a.code, 0);
        assert_true(a.started);
        assert_int_equal(a.n_ids, 12);
        if (i % 4 == 0) assert_string_equal(a.text, "abcabcabcabc"); /* held to its grammar there too */
    }
    while (fo_device_contexts(p.d[0]) > 0) { /* the last of them lets go of it */
        assert_true(pn_now_ms() < until + 30000);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    o.grammar = NULL;
    o.parts = false;
    o.session = NULL;
    test_ask(p.s[1], &o, &alone);
    assert_int_equal(alone.n_ids, 12);
    close_pair(&p);
}

static void time_that_was_waited_at_the_one_counts_at_the_other(void **state) {
    (void)state;
    enum { TIMEOUT = 1500 };
    struct pair p;
    static struct test_answer a;
    struct pn_request *r[4];
    int32_t ids[6];
    open_pair(&p, TIMEOUT);
    test_prompt(ids, 6, 4);
    struct pn_request_opts o = test_opts(ids, 6, 12);
    double sent = pn_now_ms();
    for (int i = 0; i < 4; i++) r[i] = test_submit(p.s[0], &o);
    nanosleep(&(struct timespec){ .tv_nsec = 700000000 }, NULL);
    wait_failed(&p);
    for (int i = 0; i < 4; i++) {
        test_read_all(r[i], &a);
        assert_int_equal(a.code, FO_ETIMEOUT);
        assert_true(a.usage.queue_ms >= TIMEOUT);
    }
    assert_true(pn_now_ms() - sent < TIMEOUT + 700 + 500); /* not as long again */
    assert_int_equal(status(p.en, "m", 1).failed, 4);
    close_pair(&p);
}

static void without_another_of_the_same_files_it_ends_with_the_reason(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    char lost[160], script[200], other[160];
    snprintf(lost, sizeof lost, "%s.lost", odd_path(1));
    snprintf(script, sizeof script, "lost file=%s", lost);
    struct fo_device *d[2] = { die("s0", script), die("s1", NULL) };
    struct pn_engine *en = engine();
    const char *path = model_file("abcabc", 500, 0);
    struct test_script t = test_script_default();
    snprintf(other, sizeof other, "%s", odd_path(2));
    if (test_script_write(&t, other, &e)) fail_msg("%s", e.msg);
    for (uint32_t i = 0; i < 2; i++) {
        struct pn_serve_opts o = serve_opts("m", i, d[i]);
        o.model.max_concurrent = 1;
        load(en, i ? other : path, &o);
    }
    struct pn_served *s = pn_engine_get_replica(en, "m", 0);
    int32_t ids[4];
    test_prompt(ids, 4, 3);
    struct pn_request_opts o = test_opts(ids, 4, 4000);
    struct pn_request *runs = test_submit(s, &o), *waits = test_submit(s, &o);
    struct pn_event ev;
    do pn_request_next(runs, 30000, &ev); while (ev.kind == PN_EV_STARTED);
    FILE *f = fopen(lost, "w");
    assert_non_null(f);
    fclose(f);
    static struct test_answer a;
    test_read_all(waits, &a);
    assert_int_equal(a.code, FO_ELOST);
    assert_non_null(strstr(a.msg, "s0"));
    pn_request_release(runs);
    assert_int_equal(status(en, "m", 0).handed_over, 0);
    pn_served_put(s);
    pn_engine_free(en);
    for (int i = 0; i < 2; i++) fo_device_close(d[i]);
    unlink(lost);
    unlink(other);
    unlink(path);
}

struct crowd {
    struct pair *p;
    unsigned seed;
    int good, cancelled, other;
};

/* Sends, waits a little, cancels or reads on, whatever happens to the instances meanwhile. */
static void *one_of_a_crowd(void *arg) {
    struct crowd *c = arg;
    int32_t ids[6] = { 5, 6, 7, 8, 9, 10 };
    struct pn_request_opts o = test_opts(ids, 6, 3);
    o.session = "x";
    for (int i = 0; i < 40; i++) {
        struct pn_request *r;
        struct pn_budget b;
        struct pn_event ev;
        struct fo_err e;
        struct pn_served *to = pn_engine_route(c->p->en, c->p->s[0], &o);
        int rc = pn_submit(to, &o, &r, &b, &e);
        pn_served_put(to);
        if (rc != 0) {
            c->other += rc != FO_EBUSY && rc != FO_EUNAVAIL;
            nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
            continue;
        }
        int after = rand_r(&c->seed) % 4;
        do {
            if (after-- == 0) pn_request_cancel(r);
            pn_request_next(r, 3, &ev);
        } while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR);
        if (ev.kind == PN_EV_DONE) c->good++;
        else if (ev.err->code == FO_ECANCELLED) c->cancelled++;
        else c->other += ev.err->code != FO_ELOST; /* it ran when the die went */
        pn_request_release(r);
    }
    return NULL;
}

static void a_crowd_survives_the_hand_over(void **state) {
    (void)state;
    enum { N = 6 };
    struct pair p;
    struct crowd c[N];
    pthread_t t[N];
    open_pair(&p, 0);
    for (int i = 0; i < N; i++) {
        c[i] = (struct crowd){ .p = &p, .seed = (unsigned)i + 1 };
        assert_int_equal(pthread_create(&t[i], NULL, one_of_a_crowd, &c[i]), 0);
    }
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    pn_request_release(p.runs[1]);
    p.runs[1] = NULL;
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    lose(&p);
    int good = 0;
    for (int i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].other, 0);
        good += c[i].good;
    }
    assert_true(good > 0);
    double until = pn_now_ms() + 30000;
    while (status(p.en, "m", 0).failed_code != FO_ELOST) {
        assert_true(pn_now_ms() < until);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    close_pair(&p);
}

/* --- decode_stall ---------------------------------------------------------------------------- */
enum { STALL_MS = 60, ROW_US = 1000, LONG = 1500 };

/* The longest gap between two tokens of a running answer while a prompt of LONG tokens comes in; *ret_chunk = the chunk last chosen. */
static double longest_gap(uint32_t stall_ms, uint32_t *ret_chunk) {
    struct fo_device *d = die("s0", NULL);
    struct pn_engine *en = engine();
    const char *path = model_file("abc", 0, ROW_US);
    struct pn_serve_opts o = serve_opts("m", 0, d);
    o.decode_stall_ms = stall_ms;
    load(en, path, &o);
    struct pn_served *s = pn_engine_get(en, "m");
    struct pn_request *r = start(en, "m", NULL);
    struct pn_event ev;
    do pn_request_next(r, 30000, &ev); while (ev.kind == PN_EV_STARTED);
    static int32_t ids[LONG];
    static struct test_answer a;
    test_prompt(ids, LONG, 1);
    struct pn_request_opts ask = test_opts(ids, LONG, 1);
    struct pn_request *big = test_submit(s, &ask);
    double last = pn_now_ms(), gap = 0;
    bool waiting = true;
    memset(&a, 0, sizeof a);
    while (waiting) {
        pn_request_next(r, 30000, &ev);
        assert_int_equal(ev.kind, PN_EV_TEXT);
        double now = pn_now_ms();
        if (now - last > gap) gap = now - last;
        last = now;
        enum pn_event_kind kind;
        do waiting = test_take(big, 0, &a, &kind); while (waiting && kind != PN_EV_TIMEOUT);
    }
    assert_int_equal(a.code, 0);
    struct pn_served_status st;
    pn_served_status(s, &st);
    *ret_chunk = st.prefill_chunk;
    pn_request_release(big);
    pn_request_release(r);
    pn_served_put(s);
    pn_engine_free(en);
    fo_device_close(d);
    unlink(path);
    return gap;
}

static void a_long_prompt_does_not_hold_up_running_answers(void **state) {
    (void)state;
    uint32_t chunk;
    /* A row takes 1 ms and a little more, so a step of the whole batch would take half a second and a chunk has at most 60 rows. */
    double gap = longest_gap(STALL_MS, &chunk);
    assert_true(chunk >= 1 && chunk <= STALL_MS);
    if (gap > STALL_MS + 20) { /* another process took the processor: what would have been is far away all the same */
        print_message("longest gap %.0f ms\n", gap);
        assert_true(gap < 300);
    }
    /* With time enough the chunks grow to what the batch holds, by doubling. */
    gap = longest_gap(60000, &chunk);
    assert_int_equal(chunk, 511);
    assert_true(gap >= 300); /* of 511 and more, less what its reader was late for the token before */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_to_the_least_busy_instance),
        cmocka_unit_test(a_conversation_stays_where_its_prefix_is_unless_that_is_twice_as_loaded),
        cmocka_unit_test(instances_come_and_go_one_by_one),
        cmocka_unit_test(values_are_set_while_answers_run),
        cmocka_unit_test(a_lost_die_fails_its_instance_and_the_others_serve_on),
        cmocka_unit_test(an_op_that_fails_once_fails_the_instance_when_nothing_else_runs),
        cmocka_unit_test(what_waits_at_an_instance_that_fails_goes_to_another),
        cmocka_unit_test(time_that_was_waited_at_the_one_counts_at_the_other),
        cmocka_unit_test(without_another_of_the_same_files_it_ends_with_the_reason),
        cmocka_unit_test(a_crowd_survives_the_hand_over),
        cmocka_unit_test(a_long_prompt_does_not_hold_up_running_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
