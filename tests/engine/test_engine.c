/* The registry and the one admission: names, refusals with their numbers, unload and drain under load, files that vanish, and a crowd
 * of clients that behave in every way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/wake.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"
#include "tests/support/serve.h"

enum { CTX = 256 };

struct world {
    struct test_die die;
    struct pn_engine *en;
};

static void open_world(struct world *w) {
    struct fo_err e = { 0 };
    test_die_open(&w->die);
    assert_int_equal(pn_engine_new(&w->en, &e), 0);
}

static void close_world(struct world *w) {
    pn_engine_free(w->en);
    test_die_close(&w->die);
}

static struct pn_served *serve(struct world *w, const char *name, uint32_t slots, uint32_t queue) {
    char path[64];
    test_model_file(path, CTX, true, 1);
    struct pn_served *s = test_serve(w->en, &w->die, path, name, slots, slots, 32, queue, 0);
    unlink(path);
    return s;
}

static int refusal(struct pn_served *s, const struct pn_request_opts *o, struct pn_budget *b, struct fo_err *e) {
    struct pn_request *r = NULL;
    memset(b, 0xAB, sizeof *b);
    *e = (struct fo_err){ 0 };
    int rc = pn_submit(s, o, &r, b, e);
    assert_int_not_equal(rc, 0);
    assert_int_equal(rc, e->code);
    assert_null(r);
    assert_int_equal(b->ctx_cap, CTX); /* filled in every case */
    return rc;
}

static void count(void *ctx, struct pn_served *s) {
    char *names = ctx;
    strncat(names, pn_served_name(s), 32);
    strncat(names, " ", 2);
}

static void models_are_found_by_name_and_alias_and_listed_in_load_order(void **state) {
    (void)state;
    struct world w;
    char path[64], names[256] = "";
    struct fo_err e = { 0 };
    open_world(&w);
    test_model_file(path, CTX, true, 1);
    static const char *const aliases[] = { "default", "small" };
    struct pn_serve_opts o = { .name = "b", .aliases = aliases, .n_aliases = 2, .model = { .dev = &w.die.dev, .kv_default = true } };
    assert_int_equal(pn_engine_load(w.en, path, &o, &e), 0);
    struct pn_served *other = serve(&w, "a", 1, 0);
    struct pn_served *s = pn_engine_get(w.en, "small");
    assert_non_null(s);
    assert_string_equal(pn_served_name(s), "b");
    assert_null(pn_engine_get(w.en, "nothing"));
    pn_engine_each(w.en, count, names);
    assert_string_equal(names, "b a ");

    static const char *const taken[] = { "b", "small", "a" };
    for (int i = 0; i < 3; i++) {
        struct pn_serve_opts again = { .name = taken[i], .model = o.model };
        assert_int_equal(pn_engine_load(w.en, path, &again, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, taken[i]));
    }
    struct pn_serve_opts c = { .name = "c", .model = o.model };
    assert_int_equal(pn_engine_load(w.en, "/nowhere/model.gguf", &c, &e), FO_ENOENT);
    assert_null(pn_engine_get(w.en, "c"));
    assert_int_equal(pn_engine_unload(w.en, "c", 0, &e), FO_ENOENT);

    assert_int_equal(pn_engine_unload(w.en, "b", 0, &e), 0);
    assert_null(pn_engine_get(w.en, "b"));
    assert_null(pn_engine_get(w.en, "default"));
    struct pn_served_status st; /* who still holds it can still look */
    pn_served_status(s, &st);
    assert_false(st.ready);
    assert_true(st.loaded_at > 1600000000);
    struct pn_budget b;
    int32_t id = 5;
    struct pn_request_opts q = test_opts(&id, 1, 1);
    assert_int_equal(refusal(s, &q, &b, &e), FO_EUNAVAIL);
    pn_served_put(s);
    pn_served_put(other);
    pn_served_put(NULL);
    unlink(path);
    close_world(&w);
}

/* pains 19, 21: one admission, exact at the edges, never a truncation. */
static void a_prompt_past_the_cap_is_refused_with_the_numbers(void **state) {
    (void)state;
    struct world w;
    struct pn_budget b;
    struct fo_err e;
    static struct test_answer a;
    int32_t ids[CTX + 1];
    open_world(&w);
    struct pn_served *s = serve(&w, "m", 1, 0);
    test_prompt(ids, CTX + 1, 1);
    struct pn_request_opts o = test_opts(ids, CTX + 1, 0);
    assert_int_equal(refusal(s, &o, &b, &e), FO_EBUDGET);
    assert_non_null(strstr(e.msg, "maximum context length is 256 tokens. However, your request has 258 tokens (257 in the prompt, 1 for the"));
    assert_int_equal(b.prompt_tokens, CTX + 1);
    assert_int_equal(b.max_tokens_that_fit, 0);
    assert_string_equal(b.limited_by, "manifest");
    o.n_tokens = CTX;
    assert_int_equal(refusal(s, &o, &b, &e), FO_EBUDGET);
    o.n_tokens = CTX - 1;
    o.max_tokens = 2;
    assert_int_equal(refusal(s, &o, &b, &e), FO_EBUDGET);
    assert_int_equal(b.max_tokens_that_fit, 1);
    o.max_tokens = 1;
    test_ask(s, &o, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.usage.prompt_tokens, CTX - 1);
    assert_int_equal(a.usage.completion_tokens, 1);
    o.max_tokens = 0;
    test_ask(s, &o, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.usage.completion_tokens, 1);
    pn_served_put(s);
    close_world(&w);
}

static void bad_parameters_are_refused_by_name(void **state) {
    (void)state;
    struct world w;
    struct pn_budget b;
    struct fo_err e;
    int32_t ids[4] = { 5, 6, 7, 8 };
    open_world(&w);
    struct pn_served *s = serve(&w, "m", 1, 0);
    struct pn_request_opts o = test_opts(ids, 0, 4);
    assert_int_equal(refusal(s, &o, &b, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "prompt is empty"));
    ids[2] = 512;
    o = test_opts(ids, 4, 4);
    assert_int_equal(refusal(s, &o, &b, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "token 512 at place 2"));
    ids[2] = 7;
    o.sampling.top_p = 2;
    assert_int_equal(refusal(s, &o, &b, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "top_p"));
    o = test_opts(ids, 4, 4);
    const char *stop = "";
    o.stops = &stop;
    o.n_stops = 1;
    assert_int_equal(refusal(s, &o, &b, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "stop"));
    pn_served_put(s);
    close_world(&w);
}

static void a_model_without_a_tokenizer_serves_ids_and_refuses_text(void **state) {
    (void)state;
    struct world w;
    struct pn_budget b;
    struct fo_err e;
    char path[64];
    static struct test_answer a;
    int32_t ids[4] = { 5, 6, 7, 8 };
    open_world(&w);
    test_model_file(path, CTX, false, 1);
    struct pn_served *s = test_serve(w.en, &w.die, path, "m", 1, 1, 32, 0, 0);
    struct pn_request_opts o = test_opts(ids, 4, 4);
    assert_int_equal(refusal(s, &o, &b, &e), FO_EUNSUPPORTED);
    o.want_text = false;
    test_ask(s, &o, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.n_ids, 4);
    assert_int_equal(a.len, 0);
    pn_served_put(s);
    unlink(path);
    close_world(&w);
}

/* The file shrinks under a stream: an error event with the reason, no crash; the model is out, its neighbour goes on. */
static void a_file_truncated_in_mid_stream_fails_its_model_and_nothing_else(void **state) {
    (void)state;
    struct world w;
    char path[64];
    struct pn_budget b;
    struct fo_err e;
    static struct test_answer a, first;
    struct pn_request *r[3];
    int32_t ids[10];
    open_world(&w);
    atomic_store(&w.die.delay_ms, 2);
    test_model_file(path, CTX, true, 1);
    struct pn_served *s = test_serve(w.en, &w.die, path, "m", 2, 2, 32, 8, 0), *other = serve(&w, "other", 1, 0);
    test_prompt(ids, 10, 2);
    struct pn_request_opts o = test_opts(ids, 10, 200);
    for (int i = 0; i < 3; i++) r[i] = test_submit(s, &o);
    memset(&first, 0, sizeof first);
    while (first.n_ids == 0) assert_true(test_take(r[0], 30000, &first, NULL));
    test_guard_use();
    assert_int_equal(truncate(path, 4096), 0);
    while (test_take(r[0], 30000, &first, NULL)) {}
    pn_request_release(r[0]);
    assert_int_equal(first.code, FO_ELOST);
    for (int i = 1; i < 3; i++) {
        test_read_all(r[i], &a);
        assert_int_equal(a.code, FO_ELOST);
        assert_true(strlen(a.msg) > 10);
    }
    struct pn_served_status st;
    pn_served_status(s, &st);
    assert_false(st.ready);
    assert_non_null(strstr(st.reason, "failed"));
    assert_int_equal(st.running + st.queued, 0);
    assert_int_equal(refusal(s, &o, &b, &e), FO_EUNAVAIL);
    assert_in_range(b.retry_after_s, 1, 120);
    test_ask(other, &o, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(pn_engine_unload(w.en, "m", 0, &e), 0);
    pn_served_put(s);
    pn_served_put(other);
    unlink(path);
    close_world(&w);
}

static void a_file_truncated_while_idle_is_noticed_before_anybody_asks(void **state) {
    (void)state;
    struct world w;
    char path[64];
    struct pn_served_status st;
    open_world(&w);
    test_model_file(path, CTX, true, 1);
    struct pn_served *s = test_serve(w.en, &w.die, path, "m", 1, 1, 32, 8, 0);
    test_guard_use();
    assert_int_equal(truncate(path, 4096), 0);
    for (int i = 0; i < 300; i++) {
        pn_served_status(s, &st);
        if (!st.ready) break;
        usleep(10000);
    }
    assert_false(st.ready);
    pn_served_put(s);
    unlink(path);
    close_world(&w);
}

struct unloading {
    struct pn_engine *en;
    uint32_t drain_ms;
    pthread_t thread;
};

static void *unload_m(void *arg) {
    struct unloading *u = arg;
    struct fo_err e;
    return pn_engine_unload(u->en, "m", u->drain_ms, &e) == 0 ? NULL : u;
}

static void unload_lets_streams_finish_within_the_drain_and_ends_the_rest_with_a_reason(void **state) {
    (void)state;
    static struct test_answer a;
    for (int patient = 0; patient < 2; patient++) {
        struct world w;
        struct pn_request *r[4];
        struct pn_budget b;
        struct fo_err e;
        int32_t ids[10];
        open_world(&w);
        atomic_store(&w.die.delay_ms, 5);
        struct pn_served *s = serve(&w, "m", 2, 8);
        test_prompt(ids, 10, 3);
        struct pn_request_opts o = test_opts(ids, 10, 40);
        for (int i = 0; i < 4; i++) r[i] = test_submit(s, &o);
        memset(&a, 0, sizeof a);
        while (a.n_ids == 0) assert_true(test_take(r[0], 30000, &a, NULL));
        struct unloading u = { .en = w.en, .drain_ms = patient ? 30000 : 20 };
        double start = pn_now_ms();
        assert_int_equal(pthread_create(&u.thread, NULL, unload_m, &u), 0);
        struct pn_served_status st;
        do pn_served_status(s, &st);
        while (st.ready);
        assert_int_equal(refusal(s, &o, &b, &e), FO_EUNAVAIL); /* 503 while it drains */
        assert_in_range(b.retry_after_s, 1, 120);
        for (int i = 0; i < 4; i++) {
            if (i == 0) {
                while (test_take(r[0], 30000, &a, NULL)) {}
                pn_request_release(r[0]);
            } else {
                test_read_all(r[i], &a);
            }
            if (patient) {
                assert_int_equal(a.code, 0);
                assert_int_equal(a.n_ids, 40);
            } else {
                assert_int_equal(a.code, FO_EUNAVAIL);
                assert_non_null(strstr(a.msg, "unloaded"));
            }
        }
        void *failed;
        pthread_join(u.thread, &failed);
        assert_null(failed);
        assert_null(pn_engine_get(w.en, "m"));
        if (!patient) assert_true(pn_now_ms() - start < 2000);
        pn_served_put(s);
        close_world(&w);
    }
}

/* pains 37. */
static void draining_refuses_new_requests_and_lets_running_ones_end(void **state) {
    (void)state;
    struct world w;
    struct pn_budget b;
    struct fo_err e;
    static struct test_answer a;
    int32_t ids[10];
    open_world(&w);
    atomic_store(&w.die.delay_ms, 2);
    struct pn_served *s = serve(&w, "m", 1, 8), *t = serve(&w, "n", 1, 8);
    test_prompt(ids, 10, 4);
    struct pn_request_opts o = test_opts(ids, 10, 30);
    struct pn_request *r = test_submit(s, &o), *late = test_submit(t, &o);
    pn_engine_drain(w.en);
    assert_int_equal(pn_engine_active(w.en), 2);
    assert_int_equal(refusal(s, &o, &b, &e), FO_EUNAVAIL);
    assert_non_null(strstr(e.msg, "draining"));
    assert_int_equal(refusal(t, &o, &b, &e), FO_EUNAVAIL);
    test_read_all(r, &a);
    assert_int_equal(a.code, 0);
    assert_int_equal(a.n_ids, 30);
    pn_engine_cancel_all(w.en); /* the deadline */
    test_read_all(late, &a);
    assert_true(a.code == 0 || (a.code == FO_EUNAVAIL && strstr(a.msg, "shutting down")));
    assert_int_equal(pn_engine_active(w.en), 0);
    pn_served_put(s);
    pn_served_put(t);
    close_world(&w);
}

static void submit_survives_every_failing_allocation(void **state) {
    (void)state;
    struct world w;
    static struct test_answer a;
    int32_t ids[10];
    open_world(&w);
    struct pn_served *s = serve(&w, "m", 1, 8);
    test_prompt(ids, 10, 5);
    const char *stops[] = { "abc" };
    struct pn_logit_bias bias = { 3, 1 };
    struct pn_request_opts o = test_opts(ids, 10, 3);
    o.stops = stops;
    o.n_stops = 1;
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    o.sampling.temperature = 1;
    o.sampling.top_k = 10;
    o.sampling.repeat_penalty = 1.1F;
    o.sampling.repeat_last_n = 64;
    for (long n = 1;; n++) {
        struct pn_request *r = NULL;
        struct pn_budget b;
        struct fo_err e = { 0 };
        test_fail_alloc(n);
        int rc = pn_submit(s, &o, &r, &b, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            assert_true(n > 5);
            test_read_all(r, &a);
            assert_int_equal(a.code, 0);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
        assert_null(r);
        assert_int_equal(pn_engine_active(w.en), 0);
    }
    pn_served_put(s);
    close_world(&w);
}

static void load_survives_every_failing_allocation(void **state) {
    (void)state;
    struct world w;
    char path[64];
    open_world(&w);
    test_model_file(path, CTX, true, 1);
    static const char *const aliases[] = { "x", "y" };
    struct pn_serve_opts o = { .name = "m", .aliases = aliases, .n_aliases = 2, .model = { .dev = &w.die.dev, .kv_default = true } };
    for (long n = 1;; n++) {
        struct fo_err e = { 0 };
        test_fail_alloc(n);
        int rc = pn_engine_load(w.en, path, &o, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            break;
        }
        if (rc == 0) { /* something that may be missing was (the tokenizer): a model that serves ids is loaded */
            assert_int_equal(pn_engine_unload(w.en, "m", 0, &e), 0);
            continue;
        }
        assert_int_equal(rc, FO_ENOMEM);
        assert_null(pn_engine_get(w.en, "m"));
    }
    unlink(path);
    close_world(&w);
}

/* --- two hundred clients ---------------------------------------------------------------------- */
enum { N_THREADS = 8, N_EACH = 25 };

struct crowd {
    struct pn_engine *en;
    const struct test_answer *known; /* [4] what each prompt says when read to the end */
    int32_t (*ids)[120];
    uint64_t seed;
    atomic_int *done, *good;
};

static void *cancel_it(void *r) {
    usleep(500);
    pn_request_cancel(r);
    return NULL;
}

/* One client: submits and then does one of the things that clients do. */
static bool client(struct crowd *c, struct fo_rng *rng) {
    int which = (int)(fo_rng_u64(rng) % 4), how = (int)(fo_rng_u64(rng) % 8);
    struct pn_served *s = pn_engine_get(c->en, "m");
    if (!s) return false;
    struct test_answer *a = calloc(1, sizeof *a);
    struct pn_request_opts o = test_opts(c->ids[which], 20 + 30 * (uint32_t)which, how == 6 ? 10000 : 30);
    char key[16];
    snprintf(key, sizeof key, "k%d", (int)(fo_rng_u64(rng) % 3));
    o.session = key;
    if (how == 7) o.sampling.temperature = -1;
    struct pn_request *r = NULL;
    struct pn_budget b;
    struct fo_err e;
    bool ok;
    int rc = pn_submit(s, &o, &r, &b, &e);
    if (rc != 0) {
        ok = rc == FO_EBUSY || (rc == FO_EBUDGET && how == 6) || (rc == FO_EINVAL && how == 7);
    } else {
        pthread_t t;
        ok = how < 6;
        switch (how) {
        case 0: /* leaves at once */
            break;
        case 1: /* leaves after a few events */
            for (int i = (int)(fo_rng_u64(rng) % 10); i > 0 && test_take(r, 20, a, NULL); i--) {}
            break;
        case 2: /* cancels and waits for the end */
            pn_request_cancel(r);
            while (test_take(r, 30000, a, NULL)) {}
            ok = a->code == FO_ECANCELLED || a->code == 0;
            break;
        case 3: /* is cancelled by somebody else */
            ok = pthread_create(&t, NULL, cancel_it, r) == 0;
            while (test_take(r, 30000, a, NULL)) {}
            pthread_join(t, NULL);
            ok = ok && (a->code == FO_ECANCELLED || a->code == 0);
            break;
        case 4: /* reads slowly */
            while (test_take(r, 30000, a, NULL)) usleep(300);
            ok = a->code == 0 && strcmp(a->text, c->known[which].text) == 0;
            break;
        default: /* reads */
            while (test_take(r, 30000, a, NULL)) {}
            ok = a->code == 0 && strcmp(a->text, c->known[which].text) == 0;
        }
        if (how == 4 || how == 5) atomic_fetch_add(c->good, 1);
        pn_request_release(r);
    }
    free(a);
    pn_served_put(s);
    return ok;
}

static void *clients(void *arg) {
    struct crowd *c = arg;
    struct fo_rng rng;
    fo_rng_seed(&rng, c->seed);
    for (int i = 0; i < N_EACH; i++) {
        if (client(c, &rng)) atomic_fetch_add(c->done, 1);
    }
    return NULL;
}

static void two_hundred_clients_of_every_kind_leave_nothing_behind(void **state) {
    (void)state;
    struct world w;
    static struct test_answer known[4];
    static int32_t ids[4][120];
    struct crowd c[N_THREADS];
    pthread_t t[N_THREADS];
    atomic_int done = 0, good = 0;
    struct pn_served_status st;
    open_world(&w);
    struct pn_served *s = serve(&w, "m", 3, 4);
    for (int i = 0; i < 4; i++) {
        test_prompt(ids[i], 120, (uint64_t)i + 50);
        struct pn_request_opts o = test_opts(ids[i], 20 + 30 * (uint32_t)i, 30);
        o.keep_nothing = true;
        test_ask(s, &o, &known[i]);
        assert_int_equal(known[i].code, 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        c[i] = (struct crowd){ w.en, known, ids, (uint64_t)i + 1, &done, &good };
        assert_int_equal(pthread_create(&t[i], NULL, clients, &c[i]), 0);
    }
    for (int i = 0; i < 100; i++) { /* somebody always looks at the status */
        pn_served_status(s, &st);
        assert_true(st.running <= 3);
        assert_true(st.queued <= 4 + 3);
        usleep(500);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&done), N_THREADS * N_EACH);
    assert_true(atomic_load(&good) > 10);
    test_wait_idle(s);
    for (int i = 0; i < 3; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        pn_served_forget(s, key);
    }
    for (int i = 0; i < 2000; i++) {
        pn_served_status(s, &st);
        if (st.kv_bytes_used == 0) break;
        usleep(1000);
    }
    assert_int_equal(st.kv_bytes_used, 0);
    assert_true(st.ready);
    pn_served_put(s);
    close_world(&w);
}

int main(int argc, char **argv) {
    (void)argc;
    test_guard_keep(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_found_by_name_and_alias_and_listed_in_load_order),
        cmocka_unit_test(a_prompt_past_the_cap_is_refused_with_the_numbers),
        cmocka_unit_test(bad_parameters_are_refused_by_name),
        cmocka_unit_test(a_model_without_a_tokenizer_serves_ids_and_refuses_text),
        cmocka_unit_test(a_file_truncated_in_mid_stream_fails_its_model_and_nothing_else),
        cmocka_unit_test(a_file_truncated_while_idle_is_noticed_before_anybody_asks),
        cmocka_unit_test(unload_lets_streams_finish_within_the_drain_and_ends_the_rest_with_a_reason),
        cmocka_unit_test(draining_refuses_new_requests_and_lets_running_ones_end),
        cmocka_unit_test(submit_survives_every_failing_allocation),
        cmocka_unit_test(load_survives_every_failing_allocation),
        cmocka_unit_test(two_hundred_clients_of_every_kind_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
