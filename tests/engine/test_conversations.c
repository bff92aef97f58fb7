/* Conversations that branch at random through the scheduler: several at once, with drafts, some cancelled, of several tenants and sessions, over pages
 * that are too few for all. Each answer is the one without a cache, and nothing stays when all are forgotten. What is kept page by page is
 * looked at in test_branches.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/spec.h"
#include "foundry/base/rng.h"
#include "foundry/ops.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { PAGE = FO_KV_PAGE_TOKENS, CTX = PAGE > 16 ? 6 * PAGE : 32 * PAGE, AT_ONCE = 4, ANSWER = 24, TREE = 32, SESSIONS = 3 };

static const char *const tenants[] = { NULL, "a" };
static const char *const sessions[SESSIONS] = { "x", "y", "z" };

struct talk {
    int32_t ids[CTX];
    uint32_t n;
};

struct world {
    struct test_die die;
    struct pn_engine *en;
    struct pn_served *s;
    struct fo_rng rng;
    struct talk tree[TREE];
    uint32_t n_tree;
    uint64_t cached, cancelled;
};

static uint32_t below(struct world *w, uint32_t n) {
    return (uint32_t)(fo_rng_u64(&w->rng) % n);
}

static void open_world(struct world *w, const char *path, enum fo_dtype kv) {
    struct fo_err e = { 0 };
    struct pn_serve_opts o = { .name = "m",
                               .model = { .dev = &w->die.dev, .max_sessions = 3, .max_concurrent = 3, .max_batch = 48, .k_type = kv, .v_type = kv, .draft_rows = PN_DRAFT_MAX },
                               .queue_depth = 16,
                               .speculation = PN_SPECULATION_ALWAYS };
    memset(w, 0, sizeof *w);
    fo_rng_seed(&w->rng, 5);
    test_die_open(&w->die);
    if (pn_engine_new(&w->en, &e) || pn_engine_load(w->en, path, &o, &e)) fail_msg("%s", e.msg);
    w->s = pn_engine_get(w->en, "m");
    assert_non_null(w->s);
    unlink(path);
}

static void close_world(struct world *w) {
    pn_served_put(w->s);
    pn_engine_free(w->en);
    test_die_close(&w->die);
}

/* What an earlier one begins with, or all of it, and something new, some of which it has said before. */
static void branch(struct world *w, struct talk *t, uint32_t n_vocab) {
    t->n = 0;
    if (w->n_tree > 0 && below(w, 6) > 0) {
        *t = w->tree[below(w, w->n_tree < TREE ? w->n_tree : TREE)];
        if (below(w, 2) == 0) t->n = below(w, t->n + 1);
    }
    uint32_t most = CTX - ANSWER, more = 1 + below(w, 3 * PAGE);
    if (t->n >= most) t->n = most - 1;
    for (; more > 0 && t->n < most; more--, t->n++) t->ids[t->n] = t->n > 8 && below(w, 2) ? t->ids[t->n - 8] : (int32_t)(3 + below(w, n_vocab - 3));
}

static void round_of(struct world *w, uint32_t n_vocab) {
    static struct test_answer want[AT_ONCE], got;
    static struct talk t[AT_ONCE];
    struct pn_request_opts o[AT_ONCE];
    struct pn_request *r[AT_ONCE];
    bool cancels[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        branch(w, &t[i], n_vocab);
        o[i] = test_opts(t[i].ids, t[i].n, 1 + below(w, ANSWER));
        o[i].want_text = false;
        if (below(w, 3) == 0) o[i].sampling.temperature = 0.7F, o[i].sampling.seed = below(w, 1000);
        o[i].keep_nothing = true;
        test_ask(w->s, &o[i], &want[i]);
        assert_int_equal(want[i].code, 0);
        assert_int_equal(want[i].usage.cached_tokens, 0);
        o[i].keep_nothing = false;
        o[i].tenant = tenants[below(w, 2)];
        o[i].session = sessions[below(w, SESSIONS)];
        cancels[i] = below(w, 6) == 0;
    }
    for (int i = 0; i < AT_ONCE; i++) r[i] = test_submit(w->s, &o[i]);
    for (int i = 0; i < AT_ONCE; i++) {
        memset(&got, 0, sizeof got);
        if (cancels[i]) {
            for (uint32_t k = below(w, 6); k > 0 && test_take(r[i], 30000, &got, NULL); k--) {}
            pn_request_cancel(r[i]);
            w->cancelled++;
        }
        while (test_take(r[i], 30000, &got, NULL)) {}
        pn_request_release(r[i]);
        assert_true(got.code == 0 || (cancels[i] && got.code == FO_ECANCELLED));
        if (!cancels[i]) assert_int_equal(got.n_ids, want[i].n_ids);
        assert_true(got.n_ids <= want[i].n_ids);
        assert_memory_equal(got.ids, want[i].ids, got.n_ids * sizeof *got.ids);
        w->cached += got.usage.cached_tokens;
        struct talk *to = &w->tree[w->n_tree++ % TREE];
        *to = t[i];
        memcpy(to->ids + to->n, got.ids, got.n_ids * sizeof *got.ids);
        to->n += got.n_ids;
    }
}

static void talk(const char *path, enum fo_dtype kv, int rounds) {
    static struct world w;
    struct pn_served_status st;
    open_world(&w, path, kv);
    uint32_t n_vocab = pn_model_info(pn_served_model(w.s))->n_vocab;
    for (int i = 0; i < rounds; i++) round_of(&w, n_vocab);
    pn_served_status(w.s, &st);
    print_message("    %d conversations, %d at once, %llu cancelled: %llu tokens of prompts were kept, %llu of %llu drafted were right\n", rounds * AT_ONCE, AT_ONCE,
                  (unsigned long long)w.cancelled, (unsigned long long)w.cached, (unsigned long long)st.tokens_accepted, (unsigned long long)st.tokens_drafted);
    assert_true(w.cached > 0 && w.cancelled > 0);
    assert_int_equal(st.failed, 0);
    close_world(&w); /* which asserts that every page is free */
}

static void answers_are_the_same_with_drafts_and_what_is_kept(void **state) {
    (void)state;
    static const enum fo_dtype types[] = { FO_F16, FO_Q8_0, FO_Q4_0, FO_F32 };
    for (int i = 0; i < 4; i++) {
        odd_write(odd_path(0), &(struct odd){ .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_head = 2, .n_head_kv = 1, .n_vocab = 96, .n_ctx = CTX });
        talk(odd_path(0), types[i], i == 0 ? 100 : 20);
    }
}

static void under_a_sliding_window(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_head = 2, .n_head_kv = 1, .n_vocab = 96, .n_ctx = CTX, .window = PAGE + 3 });
    talk(odd_path(0), FO_F16, 60);
}

static void with_recurrent_state(void **state) {
    (void)state;
    struct fo_err e;
    struct test_script t = test_script_default();
    t.n_ctx = CTX;
    t.state_bytes = 200;
    t.text = "What is said is said again, and what is said again is said.";
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    talk(odd_path(0), FO_F16, 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_with_drafts_and_what_is_kept),
        cmocka_unit_test(under_a_sliding_window),
        cmocka_unit_test(with_recurrent_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
