/* Serving in tests: see serve.h. */
#include "tests/support/serve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "tests/support/tiny.h"

/* --- the die --------------------------------------------------------------------------------- */
static void sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

/* The first op of every step, and the one that sees the ids. */
static int hooked_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e) {
    struct test_die *d = (struct test_die *)s->dev;
    int ms = atomic_load(&d->delay_ms), poison = atomic_load(&d->poison), watch = atomic_load(&d->watch);
    atomic_fetch_add(&d->steps, 1);
    if (n > atomic_load(&d->most_rows)) atomic_store(&d->most_rows, n);
    if (ms > 0) sleep_ms(ms);
    for (int i = 0; i < n; i++)
        if (ids[i] == watch) {
            atomic_fetch_add(&d->seen, 1);
            break;
        }
    for (int i = 0; i < n; i++)
        if (ids[i] == poison) return fo_fail(e, (enum fo_code)atomic_load(&d->poison_code), "the die failed on token %d", poison);
    return d->real->get_rows(s, table, ids, n, out, e);
}

static int hooked_stream_open(struct fo_device *dev, int max_rows, int64_t max_k, int64_t max_ctx, struct fo_stream **ret, struct fo_err *e) {
    struct test_die *d = (struct test_die *)dev;
    if (d->real->stream_open(d->real, max_rows, max_k, max_ctx, ret, e) != 0) return e->code;
    (*ret)->dev = dev;
    return 0;
}

void test_die_open(struct test_die *d) {
    struct fo_err e = { 0 };
    struct fo_device_opts o = { .n_threads = 2 };
    memset(d, 0, sizeof *d);
    if (fo_device_open("cpu", "", &o, &d->real, &e) != 0) fail_msg("%s", e.msg);
    d->dev = *d->real;
    d->dev.get_rows = hooked_get_rows;
    d->dev.stream_open = hooked_stream_open;
    atomic_store(&d->poison, -1);
    atomic_store(&d->watch, -1);
}

void test_die_close(struct test_die *d) {
    fo_device_close(d->real);
}

/* --- the guard over mapped files ------------------------------------------------------------- */
static struct sigaction guard;

void test_guard_keep(const char *any_file) {
    struct fo_map *m;
    struct fo_err e;
    if (fo_map_open(any_file, &m, &e) != 0) return; /* then the tests that need it end badly, and say where */
    fo_map_close(m);
    sigaction(SIGBUS, NULL, &guard);
}

void test_guard_use(void) {
    assert_true(guard.sa_flags & SA_SIGINFO);
    sigaction(SIGBUS, &guard, NULL);
}

/* --- models ---------------------------------------------------------------------------------- */
void test_model_file(char *path, uint32_t n_ctx, bool tokenizer, uint64_t seed) {
    struct fo_err e = { 0 };
    const char *dir = getenv("TMPDIR");
    snprintf(path, 64, "%s/pantheon-test-XXXXXX", dir && strlen(dir) < 32 ? dir : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct test_tiny t = test_tiny_default();
    t.n_ctx = n_ctx;
    t.tokenizer = tokenizer;
    t.chat_template = tokenizer ? test_tiny_chatml() : NULL;
    t.seed = seed;
    if (test_tiny_write(&t, path, &e) != 0) fail_msg("%s", e.msg);
}

struct pn_served *test_serve(struct pn_engine *en, struct test_die *d, const char *path, const char *name, uint32_t max_concurrent,
                             uint32_t max_sessions, uint32_t max_batch, uint32_t queue_depth, uint32_t queue_timeout_ms) {
    struct fo_err e = { 0 };
    struct pn_serve_opts o = { .name = name,
                               .model = { .dev = &d->dev,
                                          .max_sessions = max_sessions,
                                          .max_concurrent = max_concurrent,
                                          .max_batch = max_batch,
                                          .kv_default = true },
                               .queue_depth = queue_depth,
                               .queue_timeout_ms = queue_timeout_ms };
    if (pn_engine_load(en, path, &o, &e) != 0) fail_msg("%s", e.msg);
    struct pn_served *s = pn_engine_get(en, name);
    assert_non_null(s);
    return s;
}

/* --- requests -------------------------------------------------------------------------------- */
void test_prompt(int32_t *ids, uint32_t n, uint64_t seed) {
    struct fo_rng r;
    fo_rng_seed(&r, seed);
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(3 + fo_rng_u64(&r) % 256);
}

struct pn_request_opts test_opts(const int32_t *ids, uint32_t n, uint32_t max_tokens) {
    struct pn_request_opts o = { .tokens = ids, .n_tokens = n, .max_tokens = max_tokens, .sampling = pn_sampling_default };
    o.sampling.temperature = 0;
    o.want_text = true;
    o.ignore_end = true;
    return o;
}

struct pn_request *test_submit(struct pn_served *s, const struct pn_request_opts *o) {
    struct pn_request *r = NULL;
    struct pn_budget b;
    struct fo_err e = { 0 };
    if (pn_submit(s, o, &r, &b, &e) != 0) fail_msg("%s", e.msg);
    return r;
}

bool test_take(struct pn_request *r, int timeout_ms, struct test_answer *a, enum pn_event_kind *ret_kind) {
    struct pn_event ev;
    pn_request_next(r, timeout_ms, &ev);
    if (ret_kind) *ret_kind = ev.kind;
    assert_non_null(ev.text);
    assert_int_equal(strlen(ev.text), ev.text_len);
    switch (ev.kind) {
    case PN_EV_TIMEOUT: return true;
    case PN_EV_STARTED: assert_false(a->started); a->started = true; return true;
    case PN_EV_LOGPROBS: assert_non_null(ev.logprobs); return true;
    case PN_EV_TEXT:
        assert_true(a->started);
        assert_true(a->len + ev.text_len < sizeof a->text);
        memcpy(a->text + a->len, ev.text, ev.text_len + 1);
        a->len += ev.text_len;
        if (ev.token >= 0) {
            assert_true(a->n_ids < 4096);
            a->ids[a->n_ids++] = ev.token;
        }
        return true;
    case PN_EV_DONE: a->code = 0; break;
    case PN_EV_ERROR:
        a->code = ev.err->code;
        assert_int_not_equal(a->code, 0);
        snprintf(a->msg, sizeof a->msg, "%s", ev.err->msg);
        break;
    }
    a->finish = ev.finish;
    a->usage = ev.usage;
    return false;
}

void test_read_all(struct pn_request *r, struct test_answer *a) {
    enum pn_event_kind kind;
    memset(a, 0, sizeof *a);
    while (test_take(r, 30000, a, &kind)) assert_int_not_equal(kind, PN_EV_TIMEOUT);
    pn_request_release(r);
}

void test_ask(struct pn_served *s, const struct pn_request_opts *o, struct test_answer *a) {
    test_read_all(test_submit(s, o), a);
}

void test_wait_idle(struct pn_served *s) {
    struct pn_served_status st;
    for (int i = 0; i < 30000; i++) {
        pn_served_status(s, &st);
        if (st.running + st.queued == 0) return;
        sleep_ms(1);
    }
    fail_msg("requests still run after 30 s");
}

void test_world_open(struct test_world *w, uint32_t n_ctx, uint32_t max_concurrent, uint32_t max_sessions, uint32_t max_batch, uint32_t queue_depth, uint32_t queue_timeout_ms) {
    char path[64];
    struct fo_err e = { 0 };
    test_die_open(&w->die);
    assert_int_equal(pn_engine_new(&w->en, &e), 0);
    test_model_file(path, n_ctx, true, 1);
    w->s = test_serve(w->en, &w->die, path, "m", max_concurrent, max_sessions, max_batch, queue_depth, queue_timeout_ms);
    unlink(path);
}

void test_world_close(struct test_world *w) {
    pn_served_put(w->s);
    pn_engine_free(w->en);
    test_die_close(&w->die);
}
