/* The request's ring: what the worker puts in comes out whole, in order, and one reader never disturbs another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/grammar.h"
#include "engine/request_worker.h"
#include "engine/wake.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"
#include "tests/support/tok_vocab.h"

static const int32_t prompt[3] = { 1, 2, 3 };

static struct pn_request *make(struct pn_wake *w) {
    struct pn_request_opts o = { .tokens = prompt, .n_tokens = 3, .sampling = pn_sampling_default, .want_text = true, .id = "r1", .session = "s" };
    struct pn_request *r = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(pn_request_new(&o, 10, 100, NULL, w, &r, &e), 0);
    return r;
}

/* As if the worker had decoded this text for this token. */
static bool offer(struct pn_request *r, int32_t token, const char *text, size_t len) {
    fo_buf_clear(&r->out);
    if (len > 0) pn_part_put(&r->out, PN_PART_CONTENT, text, len);
    assert_false(r->out.failed);
    r->out_at = r->out_off = 0;
    r->out_token = token;
    r->out_any = true;
    return pn_request_flush(r);
}

static void end_well(struct pn_request *r) {
    struct pn_usage u = { .completion_tokens = 7 };
    pn_request_end(r, PN_FINISH_LENGTH, &u, NULL);
}

static void events_come_in_order_and_the_end_comes_again(void **state) {
    (void)state;
    struct pn_wake *w = pn_wake_new();
    struct pn_request *r = make(w);
    struct pn_event ev;
    pn_request_next(r, 0, &ev);
    assert_int_equal(ev.kind, PN_EV_TIMEOUT);
    pn_request_start(r);
    assert_true(offer(r, 5, "ab", 2));
    assert_true(offer(r, 6, "", 0));
    assert_true(offer(r, -1, "c", 1));
    end_well(r);
    pn_request_next(r, 0, &ev);
    assert_int_equal(ev.kind, PN_EV_STARTED);
    static const struct {
        int32_t token;
        const char *text;
    } want[] = { { 5, "ab" }, { 6, "" }, { -1, "c" } };
    for (int i = 0; i < 3; i++) {
        pn_request_next(r, 0, &ev);
        assert_int_equal(ev.kind, PN_EV_TEXT);
        assert_int_equal(ev.token, want[i].token);
        assert_string_equal(ev.text, want[i].text);
        assert_int_equal(ev.text_len, strlen(want[i].text));
    }
    for (int i = 0; i < 3; i++) {
        pn_request_next(r, 1000, &ev);
        assert_int_equal(ev.kind, PN_EV_DONE);
        assert_int_equal(ev.finish, PN_FINISH_LENGTH);
        assert_int_equal(ev.usage.completion_tokens, 7);
    }
    pn_request_release(r);
    pn_wake_unref(w);
}

/* Random pieces of text with characters of every length, pulled at random moments: nothing lost, nothing cut inside a character, each
 * token told once, and the worker is paused whenever the ring is full. */
static void any_text_survives_wrap_split_and_pause(void **state) {
    (void)state;
    static const char *const chars[] = { "a", "é", "→", "😀" };
    struct fo_rng rng;
    fo_rng_seed(&rng, 3);
    for (int round = 0; round < 300; round++) {
        struct pn_wake *w = pn_wake_new();
        struct pn_request *r = make(w);
        struct pn_event ev;
        struct fo_buf in, out;
        fo_buf_init(&in, 1 << 22);
        fo_buf_init(&out, 1 << 22);
        int n_tokens = round % 20 == 0 ? 200 : 10, next_token = 0, pauses = 0;
        pn_request_start(r);
        pn_request_next(r, 0, &ev);
        for (int t = 0; t < n_tokens; t++) {
            struct fo_buf piece;
            fo_buf_init(&piece, 1 << 20);
            size_t n = fo_rng_u64(&rng) % (round % 20 == 0 ? 3000 : 40);
            for (size_t i = 0; i < n; i++) fo_buf_puts(&piece, chars[fo_rng_u64(&rng) % 4]);
            fo_buf_append(&in, fo_buf_str(&piece), piece.len);
            bool all = offer(r, t, fo_buf_str(&piece), piece.len), last = t == n_tokens - 1;
            if (last) end_well(r); /* whatever is still on its way goes with the request */
            fo_buf_done(&piece);
            while (last || !all || fo_rng_u64(&rng) % 3 == 0) {
                uint64_t rung = pn_wake_count(w);
                pn_request_next(r, 0, &ev);
                if (ev.kind != PN_EV_TEXT) break;
                assert_true(((unsigned char)ev.text[0] & 0xC0) != 0x80);
                if (ev.token >= 0) assert_int_equal(ev.token, next_token++);
                fo_buf_append(&out, ev.text, ev.text_len);
                if (!last && !all && pn_wake_count(w) != rung) { /* room was announced: the worker goes on */
                    pauses++;
                    all = pn_request_flush(r);
                }
            }
        }
        assert_int_equal(ev.kind, PN_EV_DONE);
        assert_int_equal(next_token, n_tokens);
        assert_int_equal(in.len, out.len);
        assert_memory_equal(fo_buf_str(&in), fo_buf_str(&out), in.len);
        if (round % 20 == 0) assert_true(pauses > 0);
        fo_buf_done(&in);
        fo_buf_done(&out);
        pn_request_release(r);
        pn_wake_unref(w);
    }
}

static void a_cancel_rings_once_and_hides_what_was_left(void **state) {
    (void)state;
    struct pn_wake *w = pn_wake_new();
    struct pn_request *r = make(w);
    struct pn_event ev;
    struct fo_err e;
    struct pn_usage u = { 0 };
    offer(r, 5, "left", 4);
    uint64_t before = pn_wake_count(w);
    pn_request_cancel(r);
    pn_request_cancel(r);
    assert_int_equal(pn_wake_count(w), before + 1);
    assert_true(pn_request_cancelled(r));
    fo_fail(&e, FO_ECANCELLED, "gone");
    pn_request_end(r, PN_FINISH_STOP, &u, &e);
    pn_request_next(r, 0, &ev);
    assert_int_equal(ev.kind, PN_EV_ERROR);
    assert_int_equal(ev.err->code, FO_ECANCELLED);
    pn_request_release(r);
    pn_wake_unref(w);
}

static void the_last_holder_frees_whoever_it_is(void **state) {
    (void)state;
    struct pn_usage u = { 0 };
    for (int reader_first = 0; reader_first < 2; reader_first++) {
        struct pn_wake *w = pn_wake_new();
        struct pn_request *r = make(w);
        pn_wake_unref(w); /* the request keeps its bell */
        if (reader_first) {
            pn_request_release(r);
            pn_request_end(r, PN_FINISH_STOP, &u, NULL);
        } else {
            pn_request_end(r, PN_FINISH_STOP, &u, NULL);
            pn_request_release(r);
        }
    }
    pn_request_release(NULL);
}

static void refuses_bad_prompts_and_survives_every_failing_allocation(void **state) {
    (void)state;
    struct pn_wake *w = pn_wake_new();
    struct fo_err e = { 0 };
    struct pn_request *r = NULL;
    static const int32_t bad[2] = { 1, 100 }, negative[1] = { -1 };
    const char *stop = "x";
    struct pn_request_opts o = { .tokens = prompt, .n_tokens = 0, .sampling = pn_sampling_default, .stops = &stop, .n_stops = 1 };
    assert_int_equal(pn_request_new(&o, 1, 100, NULL, w, &r, &e), FO_EINVAL);
    o.tokens = bad;
    o.n_tokens = 2;
    assert_int_equal(pn_request_new(&o, 1, 100, NULL, w, &r, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "token 100 at place 1"));
    o.tokens = negative;
    o.n_tokens = 1;
    assert_int_equal(pn_request_new(&o, 1, 100, NULL, w, &r, &e), FO_EINVAL);
    o.tokens = prompt;
    o.n_tokens = 3;
    o.sampling.top_k = 5;
    struct fo_buf file;
    struct fo_gguf *gguf;
    struct fo_tok *tok;
    struct pn_grammars *grammars;
    assert_true(test_vocab_load("tests/data/tokenizers/bpe352-smollm", &file));
    assert_int_equal(fo_gguf_parse(file.data, file.len, "vocabulary", &gguf, &e) || fo_tok_open(gguf, &tok, &e) || pn_grammars_new(tok, &grammars, &e), 0);
    assert_int_equal(pn_grammars_get(grammars, PN_GRAMMAR_JSON_OBJECT, "", 0, &o.grammar, &e), 0);
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int rc = pn_request_new(&o, 1, 100, NULL, w, &r, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            assert_true(n > 4);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
        assert_null(r);
    }
    pn_grammars_free(grammars); /* the request has a reference of its own */
    pn_grammar_put(o.grammar);
    pn_request_discard(r);
    pn_wake_unref(w);
    fo_tok_free(tok);
    fo_gguf_close(gguf);
    fo_buf_done(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_in_order_and_the_end_comes_again),
        cmocka_unit_test(any_text_survives_wrap_split_and_pause),
        cmocka_unit_test(a_cancel_rings_once_and_hides_what_was_left),
        cmocka_unit_test(the_last_holder_frees_whoever_it_is),
        cmocka_unit_test(refuses_bad_prompts_and_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
