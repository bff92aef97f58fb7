/* The public embedding API, used as a stranger would: through include/pantheon.h alone (the tiny model and the allocator aside). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foundry/ops.h"
#include "include/pantheon.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

static struct pn_llm *load(uint32_t ctx, uint32_t slots, bool exact) {
    char path[64];
    struct pn_llm_options o;
    struct pn_llm *m = NULL;
    struct pn_error e = { 0 };
    pn_llm_options_init(&o);
    o.max_sessions = o.max_concurrent = slots;
    o.threads = 1;
    o.exact = exact;
    test_model_file(path, ctx, true, 1);
    if (pn_llm_load(path, &o, &m, &e) != PN_OK) fail_msg("%s", e.message);
    unlink(path);
    return m;
}

/* Says something every 2 ms for 8 seconds: however long a busy machine keeps this thread from its next line, the answer still runs then. */
static struct pn_llm *load_endless(void) {
    struct test_script t = test_script_default();
    struct fo_err fe = { 0 };
    struct pn_llm_options o;
    struct pn_llm *m = NULL;
    struct pn_error e = { 0 };
    t.text = "and so on";
    t.endless = true;
    t.pace_us = 2000;
    if (test_script_write(&t, odd_path(0), &fe)) fail_msg("%s", fe.msg);
    pn_llm_options_init(&o);
    o.max_sessions = o.max_concurrent = 1;
    o.threads = 1;
    if (pn_llm_load(odd_path(0), &o, &m, &e) != PN_OK) fail_msg("%s", e.message);
    return m;
}

static struct pn_session *session(struct pn_llm *m) {
    struct pn_session *s = NULL;
    struct pn_error e = { 0 };
    assert_int_equal(pn_session_open(m, &s, &e), PN_OK);
    return s;
}

static struct pn_gen_options raw(const char *prompt, uint32_t max_tokens) {
    struct pn_gen_options o;
    pn_gen_options_init(&o);
    o.prompt = prompt;
    o.max_tokens = max_tokens;
    o.temperature = 0;
    o.ignore_end = true;
    return o;
}

struct heard {
    char text[8192];
    size_t len;
    int n_tokens, stop_at;
};

static int hear(void *ctx, const char *text, size_t len, int32_t token) {
    struct heard *h = ctx;
    assert_int_equal(strlen(text), len);
    memcpy(h->text + h->len, text, len + 1);
    h->len += len;
    h->n_tokens += token >= 0;
    return h->stop_at > 0 && h->n_tokens >= h->stop_at;
}

static void what_a_callback_hears_is_what_a_puller_gets(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 1, false);
    struct pn_session *s = session(m);
    struct pn_error e = { 0 };
    struct pn_result r;
    struct heard a = { .len = 0 }, b = { .len = 0 };
    struct pn_gen_options o = raw("Hello the world", 30);
    assert_int_equal(pn_generate(s, &o, hear, &a, &r, &e), PN_OK);
    assert_int_equal(r.end, PN_END_LENGTH);
    assert_int_equal(r.completion_tokens, 30);
    assert_int_equal(a.n_tokens, 30);
    assert_true(r.prompt_tokens > 0);
    assert_int_equal(r.cached_tokens, 0);
    assert_true(a.len > 0);

    struct pn_gen *g = NULL;
    struct pn_chunk c;
    assert_int_equal(pn_gen_start(s, &o, &g, &e), PN_OK);
    do {
        assert_int_equal(pn_gen_next(g, 30000, &c, &e), PN_OK);
        assert_int_not_equal(c.kind, PN_CHUNK_NONE);
        if (c.kind == PN_CHUNK_TEXT) hear(&b, c.text, c.len, c.token);
    } while (c.kind != PN_CHUNK_END);
    assert_int_equal(pn_gen_next(g, 0, &c, &e), PN_OK);
    assert_int_equal(c.kind, PN_CHUNK_END);
    assert_int_equal(c.result.completion_tokens, 30);
    assert_int_equal(c.result.cached_tokens, (r.prompt_tokens - 1) / FO_KV_PAGE_TOKENS * FO_KV_PAGE_TOKENS); /* what was computed is remembered, by the page */
    assert_string_equal(a.text, b.text);
    pn_gen_free(g);

    assert_int_equal(pn_generate(s, &o, NULL, NULL, NULL, &e), PN_OK);
    pn_session_close(s);
    pn_llm_unload(m);
}

static void tokens_text_and_messages_are_three_ways_to_ask(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 1, false);
    struct pn_session *s = session(m);
    struct pn_error e = { 0 };
    struct pn_result r;
    struct heard a = { .len = 0 }, b = { .len = 0 }, c = { .len = 0 };
    static const char templated[] = "<|im_start|>user\nHello you<|im_end|>\n<|im_start|>assistant\n";
    struct pn_gen_options o = raw(NULL, 12);
    o.messages_json = "[{\"role\":\"user\",\"content\":\"Hello you\"}]";
    assert_int_equal(pn_generate(s, &o, hear, &a, &r, &e), PN_OK);

    int32_t *ids = NULL;
    size_t n = 0, len = 0;
    char *text = NULL;
    assert_int_equal(pn_llm_tokenize(m, templated, sizeof templated - 1, true, false, &ids, &n, &e), PN_OK);
    assert_int_equal(n, r.prompt_tokens);
    assert_int_equal(pn_llm_detokenize(m, ids, n, true, &text, &len, &e), PN_OK);
    assert_int_equal(len, sizeof templated - 1);
    assert_string_equal(text, templated);
    free(text);
    assert_int_equal(pn_llm_detokenize(m, ids, 0, true, &text, &len, &e), PN_OK);
    assert_string_equal(text, "");
    free(text);
    o.messages_json = NULL;
    o.tokens = ids;
    o.n_tokens = n;
    assert_int_equal(pn_generate(s, &o, hear, &b, &r, &e), PN_OK);
    assert_string_equal(a.text, b.text);

    /* Plain text never makes control tokens. */
    o = raw(templated, 12);
    assert_int_equal(pn_generate(s, &o, hear, &c, &r, &e), PN_OK);
    assert_true(r.prompt_tokens > n);

    o.tokens = ids;
    o.n_tokens = n;
    assert_int_equal(pn_generate(s, &o, hear, &c, &r, &e), PN_ERR_INVALID);
    assert_non_null(strstr(e.message, "exactly one"));
    free(ids);
    const int32_t out[1] = { 100000 };
    assert_int_equal(pn_llm_detokenize(m, out, 1, true, &text, &len, &e), PN_ERR_INVALID);
    pn_session_close(s);
    pn_llm_unload(m);
}

static void a_callback_or_a_cancel_ends_an_answer_early(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 1, false);
    struct pn_session *s = session(m);
    struct pn_error e = { 0 };
    struct pn_result r;
    struct heard h = { .stop_at = 5 };
    struct pn_gen_options o = raw("Hello", 0);
    assert_int_equal(pn_generate(s, &o, hear, &h, &r, &e), PN_OK);
    assert_int_equal(r.end, PN_END_CANCELLED);
    assert_int_equal(h.n_tokens, 5);
    assert_in_range(r.completion_tokens, 5, 255);
    assert_true(r.prompt_tokens > 0);

    struct pn_gen *g = NULL;
    struct pn_chunk c;
    pn_session_close(s);
    pn_llm_unload(m);
    m = load_endless();
    s = session(m);
    assert_int_equal(pn_gen_start(s, &o, &g, &e), PN_OK);
    pn_gen_cancel(g);
    int rc;
    while ((rc = pn_gen_next(g, 30000, &c, &e)) == PN_OK && c.kind != PN_CHUNK_END) {}
    assert_int_equal(rc, PN_ERR_CANCELLED);
    assert_int_equal(e.code, PN_ERR_CANCELLED);
    assert_int_equal(pn_gen_next(g, 0, &c, &e), PN_ERR_CANCELLED);
    pn_gen_free(g);
    pn_session_close(s);
    pn_llm_unload(m);
}

static void refusals_carry_code_numbers_and_text(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 1, false);
    struct pn_session *s = session(m);
    struct pn_error e = { 0 };
    struct pn_llm *none = NULL;
    struct pn_gen_options o = raw("Hello", 1000);
    assert_int_equal(pn_generate(s, &o, NULL, NULL, NULL, &e), PN_ERR_BUDGET);
    assert_int_equal(e.have, 256);
    assert_true(e.need > 1000);
    assert_non_null(strstr(e.message, "maximum context length is 256 tokens"));
    o = raw("Hello", 5);
    o.top_p = 3;
    assert_int_equal(pn_generate(s, &o, NULL, NULL, NULL, &e), PN_ERR_INVALID);
    assert_non_null(strstr(e.message, "top_p"));
    o = raw(NULL, 5);
    assert_int_equal(pn_generate(s, &o, NULL, NULL, NULL, &e), PN_ERR_INVALID);
    assert_int_equal(pn_llm_load("/nowhere/x.gguf", NULL, &none, &e), PN_ERR_NOT_FOUND);
    assert_non_null(strstr(e.message, "/nowhere/x.gguf"));
    assert_int_equal(pn_llm_load("tests/engine/test_api.c", NULL, &none, &e), PN_ERR_FORMAT);
    struct pn_llm_options lo;
    pn_llm_options_init(&lo);
    lo.threads = -1;
    assert_int_equal(pn_llm_load("x", &lo, &none, &e), PN_ERR_INVALID);
    assert_null(none);
    pn_session_close(s);
    pn_llm_unload(m);
}

static void info_says_what_was_loaded(void **state) {
    (void)state;
    struct pn_llm *m = load(512, 3, true);
    struct pn_llm_info i;
    pn_llm_info(m, &i);
    assert_string_equal(i.architecture, "llama");
    assert_int_equal(i.vocabulary, 512);
    assert_int_equal(i.ctx_trained, 512);
    assert_int_equal(i.ctx_cap, 512);
    assert_int_equal(i.max_sessions, 3);
    assert_int_equal(i.max_concurrent, 3);
    assert_true(i.has_tokenizer);
    assert_true(i.parameters > 10000 && i.weight_bytes > i.parameters && i.kv_bytes > 0);
    assert_true(strlen(pn_version()) > 0 && strlen(pn_build()) > 0);
    pn_llm_unload(m);
}

static void handles_outlive_an_unload(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 1, false);
    struct pn_session *s = session(m), *t = session(m);
    struct pn_error e = { 0 };
    struct pn_gen *g = NULL, *queued = NULL, *late = NULL;
    struct pn_chunk c;
    struct pn_gen_options o = raw("Hello", 0);
    assert_int_equal(pn_gen_start(s, &o, &g, &e), PN_OK);
    assert_int_equal(pn_gen_start(t, &o, &queued, &e), PN_OK);
    pn_llm_unload(m);
    int rc;
    while ((rc = pn_gen_next(queued, 30000, &c, &e)) == PN_OK && c.kind != PN_CHUNK_END) {}
    assert_true(rc == PN_ERR_UNAVAILABLE || rc == PN_OK);
    while ((rc = pn_gen_next(g, 30000, &c, &e)) == PN_OK && c.kind != PN_CHUNK_END) {}
    assert_true(rc == PN_ERR_UNAVAILABLE || rc == PN_OK);
    assert_int_equal(pn_gen_start(s, &o, &late, &e), PN_ERR_UNAVAILABLE);
    pn_session_close(s);
    pn_session_close(t);
    pn_gen_free(g);
    pn_gen_free(queued);
    pn_llm_unload(NULL);
    pn_session_close(NULL);
    pn_gen_free(NULL);
}

struct asker {
    struct pn_llm *m;
    const char *want;
    pthread_t thread;
};

static void *ask(void *arg) {
    struct asker *a = arg;
    struct pn_error e;
    struct pn_session *s;
    struct heard h = { .len = 0 };
    struct pn_gen_options o = raw("The world and you", 25);
    if (pn_session_open(a->m, &s, &e) != PN_OK) return a;
    int rc = pn_generate(s, &o, hear, &h, NULL, &e);
    pn_session_close(s);
    return rc == PN_OK && strcmp(h.text, a->want) == 0 ? NULL : a;
}

/* --- sessions that are saved ------------------------------------------------------------------- */
struct bytes {
    unsigned char *p;
    size_t n, at, most; /* most: of one read; 0 = as many as are asked for */
    bool fails;
};

static int keep_bytes(void *ctx, const void *bytes, size_t n) {
    struct bytes *b = ctx;
    if (b->fails) return 1;
    b->p = realloc(b->p, b->n + n);
    memcpy(b->p + b->n, bytes, n);
    b->n += n;
    return 0;
}

static ptrdiff_t give_bytes(void *ctx, void *bytes, size_t n) {
    struct bytes *b = ctx;
    if (b->fails) return -1;
    if (b->most && n > b->most) n = b->most;
    if (n > b->n - b->at) n = b->n - b->at;
    memcpy(bytes, b->p + b->at, n);
    b->at += n;
    return (ptrdiff_t)n;
}

static void a_session_goes_on_in_another_process_as_it_would_have(void **state) {
    (void)state;
    static const char first[] = "Once upon a time there was a long beginning of a story, and it went on.", more[] = "Once upon a time there was a long beginning of a story, and it went on. And then?";
    char path[] = "/tmp/pantheon-session-XXXXXX";
    for (int way = 0; way < 2; way++) { /* functions, a file */
        struct pn_error e = { 0 };
        struct pn_result r;
        struct bytes b = { .most = 100 };
        static struct heard unbroken, restored;
        uint32_t saved = 0, back = 0;
        struct pn_gen_options o = raw(first, 1);
        struct pn_llm *m = load(256, 1, true);
        struct pn_session *s = session(m);
        memset(&unbroken, 0, sizeof unbroken);
        memset(&restored, 0, sizeof restored);
        assert_int_equal(pn_session_save(s, keep_bytes, &b, &saved, &e), PN_ERR_NOT_FOUND);
        assert_int_equal(pn_generate(s, &o, NULL, NULL, &r, &e), PN_OK);
        if (way == 1) close(mkstemp(path));
        int rc = way ? pn_session_save_file(s, path, &saved, &e) : pn_session_save(s, keep_bytes, &b, &saved, &e);
        if (rc != PN_OK) fail_msg("%s", e.message);
        assert_int_equal(saved, r.prompt_tokens);
        o = raw(more, 20);
        assert_int_equal(pn_generate(s, &o, hear, &unbroken, &r, &e), PN_OK);
        assert_int_equal(r.cached_tokens, saved);
        pn_session_close(s);
        pn_llm_unload(m);

        m = load(256, 1, true);
        s = session(m);
        rc = way ? pn_session_restore_file(s, path, &back, &e) : pn_session_restore(s, give_bytes, &b, &back, &e);
        if (rc != PN_OK) fail_msg("%s", e.message);
        assert_int_equal(back, saved);
        assert_int_equal(pn_generate(s, &o, hear, &restored, &r, &e), PN_OK);
        assert_int_equal(r.cached_tokens, saved);
        assert_string_equal(restored.text, unbroken.text);
        pn_session_close(s);
        pn_llm_unload(m);
        free(b.p);
    }
    unlink(path);
}

static void what_is_wrong_with_a_saved_session_is_said(void **state) {
    (void)state;
    struct pn_error e = { 0 };
    struct pn_result r;
    struct bytes b = { 0 };
    struct pn_gen_options o = raw("Some text that is long enough.", 1);
    uint32_t n = 77;
    struct pn_llm *m = load(256, 1, true), *other = load(256, 1, false);
    struct pn_session *s = session(m), *t = session(other);
    assert_int_equal(pn_generate(s, &o, NULL, NULL, &r, &e), PN_OK);
    assert_int_equal(pn_session_save(s, keep_bytes, &b, NULL, &e), PN_OK);
    assert_int_equal(pn_session_restore(t, give_bytes, &b, &n, &e), PN_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "kv.k"));
    b.at = 0;
    b.p[b.n / 2] ^= 1;
    assert_int_equal(pn_session_restore(s, give_bytes, &b, &n, &e), PN_ERR_FORMAT);
    b.p[b.n / 2] ^= 1;
    b.at = 0;
    b.n--;
    assert_int_equal(pn_session_restore(s, give_bytes, &b, &n, &e), PN_ERR_FORMAT);
    b.fails = true;
    assert_int_equal(pn_session_restore(s, give_bytes, &b, &n, &e), PN_ERR_CANCELLED);
    assert_int_equal(pn_session_save(s, keep_bytes, &b, &n, &e), PN_ERR_CANCELLED);
    assert_int_equal(pn_session_restore_file(s, "/nowhere/at/all", &n, &e), PN_ERR_NOT_FOUND);
    assert_int_equal(pn_session_save_file(s, "/nowhere/at/all", &n, &e), PN_ERR_NOT_FOUND);
    assert_int_equal(pn_session_restore_file(s, "/tmp", &n, &e), PN_ERR_IO);
    assert_int_equal(n, 77);
    o = raw("Some text that is long enough. And more.", 1);
    assert_int_equal(pn_generate(s, &o, NULL, NULL, &r, &e), PN_OK);
    assert_true(r.cached_tokens > 0); /* it is what it was */
    pn_llm_unload(m);
    assert_int_equal(pn_session_save(s, keep_bytes, &b, &n, &e), PN_ERR_UNAVAILABLE);
    pn_session_close(s);
    pn_session_close(t);
    pn_llm_unload(other);
    free(b.p);
}

static void many_threads_share_one_model(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 4, false);
    struct pn_session *s = session(m);
    struct pn_error e = { 0 };
    struct heard h = { .len = 0 };
    struct pn_gen_options o = raw("The world and you", 25);
    assert_int_equal(pn_generate(s, &o, hear, &h, NULL, &e), PN_OK);
    struct asker a[8];
    for (int i = 0; i < 8; i++) {
        a[i] = (struct asker){ .m = m, .want = h.text };
        assert_int_equal(pthread_create(&a[i].thread, NULL, ask, &a[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        void *failed;
        pthread_join(a[i].thread, &failed);
        assert_null(failed);
    }
    pn_session_close(s);
    pn_llm_unload(m);
}

static void starting_survives_every_failing_allocation(void **state) {
    (void)state;
    struct pn_llm *m = load(256, 1, false);
    struct pn_gen_options o = raw("Hello the world", 3);
    for (long n = 1;; n++) {
        struct pn_session *s = NULL;
        struct pn_gen *g = NULL;
        struct pn_error e = { 0 };
        test_fail_alloc(n);
        int rc = pn_session_open(m, &s, &e);
        if (rc == PN_OK) rc = pn_gen_start(s, &o, &g, &e);
        bool failed = test_alloc_failed();
        pn_gen_free(g);
        pn_session_close(s);
        if (!failed) {
            assert_int_equal(rc, PN_OK);
            assert_true(n > 3);
            break;
        }
        assert_int_equal(rc, PN_ERR_NO_MEMORY);
    }
    pn_llm_unload(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_callback_hears_is_what_a_puller_gets),
        cmocka_unit_test(tokens_text_and_messages_are_three_ways_to_ask),
        cmocka_unit_test(a_callback_or_a_cancel_ends_an_answer_early),
        cmocka_unit_test(refusals_carry_code_numbers_and_text),
        cmocka_unit_test(info_says_what_was_loaded),
        cmocka_unit_test(handles_outlive_an_unload),
        cmocka_unit_test(a_session_goes_on_in_another_process_as_it_would_have),
        cmocka_unit_test(what_is_wrong_with_a_saved_session_is_said),
        cmocka_unit_test(many_threads_share_one_model),
        cmocka_unit_test(starting_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
