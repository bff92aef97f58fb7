/* Log-probabilities: against a log-softmax in double, and, of whole answers, against the logits that the model computes for them; none is
 * lost, doubled or out of order however text is held back, and none is told of what a stop string cut away. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/logprobs.h"
#include "engine/request.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

static double log_softmax(const float *logits, int32_t n, int32_t id) {
    double max = -HUGE_VAL, sum = 0;
    for (int32_t i = 0; i < n; i++) max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] > -INFINITY) sum += exp((double)logits[i] - max);
    return logits[id] > -INFINITY ? (double)logits[id] - max - log(sum) : -HUGE_VAL;
}

static void close_to(float got, double want) {
    if (want == -HUGE_VAL) assert_true(got == -INFINITY);
    else if (!(fabs((double)got - want) <= 3e-7 + 1e-7 * fabs(want))) fail_msg("%.9g, not %.9g", (double)got, want);
}

static void fill(float *logits, int32_t n, double scale, uint64_t seed) {
    struct fo_rng r;
    fo_rng_seed(&r, seed);
    for (int32_t i = 0; i < n; i++) {
        double u = 0;
        for (int k = 0; k < 6; k++) u += fo_rng_unit(&r);
        logits[i] = (float)((u - 3) * scale);
    }
}

/* --- of logits --- */
static void agrees_with_a_log_softmax_and_sums_to_1(void **state) {
    (void)state;
    static const int32_t sizes[] = { 1, 2, 7, 8, 9, 127, 128, 129, 1000, 49152 };
    static const double scales[] = { 0, 0.1, 3, 40, 3000 };
    float *logits = malloc(49152 * sizeof *logits);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
            int32_t n = sizes[k], step = n > 1000 ? 97 : 1;
            struct pn_logprobs p;
            fill(logits, n, scales[s], k * 10 + s);
            for (int32_t id = 0; id < n; id += step) {
                pn_logprobs_of(logits, n, id, 0, &p);
                assert_int_equal(p.token.id, id);
                assert_int_equal(p.n_top, 0);
                assert_true(p.token.logprob <= 0);
                close_to(p.token.logprob, log_softmax(logits, n, id));
            }
            if (n > 1000) continue;
            double sum = 0;
            for (int32_t id = 0; id < n; id++) {
                pn_logprobs_of(logits, n, id, 0, &p);
                sum += exp((double)p.token.logprob);
            }
            assert_true(fabs(sum - 1) < 1e-5);
        }
    free(logits);
}

/* The place of id in falling order of logits, from 0. */
static int32_t rank_of(const float *logits, int32_t n, int32_t id) {
    int32_t rank = 0;
    for (int32_t i = 0; i < n; i++) rank += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
    return rank;
}

static void the_likeliest_come_in_order_and_equals_by_their_id(void **state) {
    (void)state;
    enum { N = 300 };
    float logits[N];
    struct pn_logprobs p;
    for (uint64_t seed = 0; seed < 200; seed++) {
        fill(logits, N, 5, seed);
        if (seed % 2) /* many equals */
            for (int i = 0; i < N; i++) logits[i] = floorf(logits[i]);
        for (uint32_t k = 0; k <= PN_MAX_TOP_LOGPROBS; k++) {
            pn_logprobs_of(logits, N, 7, k, &p);
            assert_int_equal(p.n_top, k);
            for (uint32_t i = 0; i < k; i++) {
                assert_int_equal(rank_of(logits, N, p.top[i].id), i);
                close_to(p.top[i].logprob, log_softmax(logits, N, p.top[i].id));
            }
        }
    }
    pn_logprobs_of(logits, 3, 1, 20, &p); /* as many as there are */
    assert_int_equal(p.n_top, 3);
}

static void odd_numbers_have_their_limits(void **state) {
    (void)state;
    float logits[] = { -INFINITY, NAN, 2, -1, NAN, 2, -INFINITY, -3e38F, 1, 0 };
    struct pn_logprobs p;
    pn_logprobs_of(logits, 10, 2, 10, &p);
    assert_int_equal(p.n_top, 10);
    static const int32_t order[] = { 2, 5, 8, 9, 3, 7, 0, 1, 4, 6 };
    float clean[10];
    for (int i = 0; i < 10; i++) clean[i] = logits[i] == logits[i] ? logits[i] : -INFINITY;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(p.top[i].id, order[i]);
        close_to(p.top[i].logprob, log_softmax(clean, 10, order[i]));
    }
    logits[3] = logits[8] = INFINITY; /* two that are certain share it */
    pn_logprobs_of(logits, 10, 8, 3, &p);
    close_to(p.token.logprob, -log(2));
    assert_int_equal(p.top[0].id, 3);
    close_to(p.top[0].logprob, -log(2));
    assert_true(p.top[2].logprob == -INFINITY);
}

/* --- on their way to the reader --- */
static struct pn_lp *make(bool stops) {
    struct pn_lp *q = NULL;
    struct fo_err e = { 0 };
    static const float logits[4] = { 1, 2, 3, 4 };
    assert_int_equal(pn_lp_new(2, 4, stops, &q, &e), 0);
    pn_lp_see(q, logits);
    return q;
}

/* A token of which this is decoded and that is shown; what is due then, as digits of ids. */
static const char *put(struct pn_lp *q, int32_t id, const char *decoded, const char *shown, bool mid, bool stopped) {
    static char due[1024];
    size_t n = 0;
    if (id >= 0) pn_lp_add(q, id);
    pn_lp_text(q, decoded, strlen(decoded), shown, strlen(shown), mid, stopped);
    for (const struct pn_logprobs *p; (p = pn_lp_due(q)); pn_lp_sent(q)) due[n++] = (char)('0' + p->token.id);
    due[n] = '\0';
    return due;
}

static void a_token_goes_out_with_its_text(void **state) {
    (void)state;
    struct pn_lp *q = make(true);
    assert_string_equal(put(q, 0, "ab", "ab", false, false), "0");
    assert_string_equal(put(q, 1, "", "", true, false), ""); /* the beginning of a character, */
    assert_string_equal(put(q, 2, "", "", true, false), "");
    assert_string_equal(put(q, 3, "\xE2\x86\x92", "\xE2\x86\x92", false, false), "123"); /* and its end */
    assert_string_equal(put(q, 0, "", "", false, false), "0"); /* no text at all */
    assert_string_equal(put(q, 1, "xS", "x", false, false), "1"); /* in part */
    assert_string_equal(put(q, 2, "T", "", false, false), "");
    assert_string_equal(put(q, 3, "", "", false, false), ""); /* no text, behind some that is held */
    assert_string_equal(put(q, 0, "u", "STu", false, false), "230");
    assert_string_equal(put(q, 1, "S", "", false, false), "");
    assert_string_equal(put(q, -1, "", "S", false, false), "1"); /* the end: what was held is shown */
    pn_lp_free(q);
    q = make(true);
    assert_string_equal(put(q, 0, "a", "a", false, false), "0");
    assert_string_equal(put(q, 1, "bS", "b", false, false), "1");
    assert_string_equal(put(q, 2, "T", "", false, false), "");
    assert_string_equal(put(q, 3, "OP.", "", false, true), ""); /* cut away */
    pn_lp_free(q);
    q = make(true);
    assert_string_equal(put(q, 0, "aS", "a", false, false), "0");
    assert_string_equal(put(q, 1, "T", "", false, false), "");
    assert_string_equal(put(q, 2, "SST", "STS", false, false), "12"); /* that was none, but the next is */
    assert_string_equal(put(q, 3, "OP", "", false, true), "");
    pn_lp_free(q);
}

static void more_tokens_without_text_than_can_be_held_go_out_early(void **state) {
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        struct pn_lp *q = make(stops);
        int n = 0, first = -1, total = 0;
        assert_string_equal(put(q, 0, "S", "", true, false), "");
        for (n = 1; n < 1000; n++) {
            size_t out = strlen(put(q, n % 4, "", "", true, false));
            assert_true(out <= 1);
            if (out && first < 0) first = n;
            total += (int)out;
        }
        assert_true(first >= (stops ? PN_MAX_STOP_BYTES : 4));
        assert_int_equal(total + (int)strlen(put(q, 1, "x", "Sx", false, false)), 1001);
        pn_lp_free(q);
    }
}

static void takes_its_memory_when_it_is_made_and_survives_every_failing_allocation(void **state) {
    (void)state;
    struct pn_lp *q = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(pn_lp_new(PN_MAX_TOP_LOGPROBS + 1, 4, false, &q, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "top_logprobs"));
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int rc = pn_lp_new(20, 1000, true, &q, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            assert_int_equal(n, 3);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
    }
    assert_true(test_alloc_bytes() < 64 * 1024);
    float logits[1000];
    fill(logits, 1000, 3, 1);
    test_fail_alloc(0);
    for (int i = 0; i < 500; i++) {
        pn_lp_see(q, logits);
        put(q, i, i % 9 ? "" : "text", i % 9 ? "" : "text", i % 9 != 8, false);
    }
    assert_int_equal(test_allocs(), 0);
    pn_lp_free(q);
    pn_lp_free(NULL);
}

/* --- of whole answers --- */
struct told {
    struct pn_logprobs p[512];
    uint64_t chars[512]; /* that had been shown before */
    int n;
};

static void read_told(struct pn_request *r, struct test_answer *a, struct told *t, bool slowly) {
    struct pn_event ev;
    uint64_t chars = 0;
    memset(a, 0, sizeof *a);
    t->n = 0;
    do {
        if (slowly && t->n % 16 == 0) usleep(2000);
        pn_request_next(r, 30000, &ev);
        if (ev.kind == PN_EV_LOGPROBS) {
            assert_in_range(t->n, 0, 511);
            t->chars[t->n] = chars;
            t->p[t->n++] = *ev.logprobs;
        } else if (ev.kind == PN_EV_TEXT) {
            for (size_t i = 0; i < ev.text_len; i++) chars += ((unsigned char)ev.text[i] & 0xC0) != 0x80;
            memcpy(a->text + a->len, ev.text, ev.text_len + 1);
            a->len += ev.text_len;
            if (ev.token >= 0) a->ids[a->n_ids++] = ev.token;
        }
    } while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR);
    if (ev.kind == PN_EV_ERROR) fail_msg("%s", ev.err->msg);
    a->finish = ev.finish;
    a->usage = ev.usage;
    pn_request_release(r);
}

/* The logits behind ids [n]. */
static float *logits_behind(struct pn_model *m, const int32_t *ids, uint32_t n) {
    struct pn_seq *s;
    struct fo_err e;
    float *logits;
    assert_int_equal(pn_seq_new(m, &s, &e), 0);
    assert_int_equal(pn_seq_reserve(s, n, &e), 0);
    struct pn_batch_item item = { s, ids, n, PN_WANT_LAST };
    assert_int_equal(pn_model_forward(m, &item, 1, &logits, &e), 0);
    pn_seq_free(s);
    return logits;
}

/* Bias, penalties, temperature and top_k shape what is drawn; what is told is the model's. */
static void they_are_the_model_s_own_whatever_shapes_the_draw(void **state) {
    (void)state;
    enum { PROMPT = 12, ANSWER = 40 };
    struct test_die die;
    struct pn_engine *en;
    struct pn_model *m;
    struct fo_err e = { 0 };
    char path[64];
    int32_t ids[PROMPT + ANSWER];
    static struct test_answer a, plain;
    static struct told t;
    test_die_open(&die);
    assert_int_equal(pn_engine_new(&en, &e), 0);
    test_model_file(path, 256, true, 1);
    struct pn_served *s = test_serve(en, &die, path, "m", 2, 2, 64, 8, 0);
    struct pn_model_opts mo = { .dev = &die.dev, .max_batch = 256, .kv_default = true };
    if (pn_model_open(path, &mo, &m, &e)) fail_msg("%s", e.msg);
    uint32_t n_vocab = pn_model_info(m)->n_vocab;
    test_prompt(ids, PROMPT, 3);
    for (int round = 0; round < 3; round++) {
        struct pn_request_opts o = test_opts(ids, PROMPT, ANSWER);
        struct pn_logit_bias bias[] = { { 40, -100 }, { 50, 8 } };
        if (round > 0) {
            o.sampling.temperature = 1.3F;
            o.sampling.top_k = 200;
            o.sampling.repeat_penalty = 1.2F;
            o.sampling.repeat_last_n = 64;
            o.sampling.frequency_penalty = 0.5F;
            o.sampling.bias = bias;
            o.sampling.n_bias = 2;
            o.sampling.seed = 9;
        }
        test_ask(s, &o, &plain);
        o.logprobs = true;
        o.n_top_logprobs = round == 2 ? 0 : 5;
        read_told(test_submit(s, &o), &a, &t, false);
        assert_int_equal(a.n_ids, ANSWER); /* the same answer as without */
        assert_memory_equal(a.ids, plain.ids, sizeof a.ids[0] * ANSWER);
        assert_string_equal(a.text, plain.text);
        assert_int_equal(t.n, ANSWER);
        bool another = false;
        for (int i = 0; i < ANSWER; i++) {
            const struct pn_logprobs *p = &t.p[i];
            const float *logits = logits_behind(m, ids, PROMPT + (uint32_t)i);
            assert_int_equal(p->token.id, a.ids[i]);
            close_to(p->token.logprob, log_softmax(logits, (int32_t)n_vocab, a.ids[i]));
            assert_int_equal(p->n_top, o.n_top_logprobs);
            for (uint32_t k = 0; k < p->n_top; k++) {
                assert_int_equal(rank_of(logits, (int32_t)n_vocab, p->top[k].id), k);
                close_to(p->top[k].logprob, log_softmax(logits, (int32_t)n_vocab, p->top[k].id));
            }
            if (round == 0) assert_int_equal(p->top[0].id, a.ids[i]); /* the greedy token is the likeliest */
            another |= rank_of(logits, (int32_t)n_vocab, a.ids[i]) > 0;
            ids[PROMPT + i] = a.ids[i];
        }
        assert_int_equal(another, round > 0);
    }
    pn_model_free(m);
    pn_served_put(s);
    pn_engine_free(en);
    test_die_close(&die);
    unlink(path);
}

/* Through the ring, at its fullest: 21 numbers a token and a reader that is behind. */
static void a_slow_reader_hears_of_every_token_once(void **state) {
    (void)state;
    struct test_die die;
    struct pn_engine *en;
    struct fo_err e = { 0 };
    char path[64];
    int32_t ids[10];
    static struct test_answer a, b;
    static struct told fast, slow;
    test_die_open(&die);
    assert_int_equal(pn_engine_new(&en, &e), 0);
    test_model_file(path, 512, true, 1);
    struct pn_served *s = test_serve(en, &die, path, "m", 2, 2, 64, 8, 0);
    test_prompt(ids, 10, 4);
    struct pn_request_opts o = test_opts(ids, 10, 400);
    o.sampling.temperature = 1.5F;
    o.logprobs = true;
    o.n_top_logprobs = PN_MAX_TOP_LOGPROBS;
    read_told(test_submit(s, &o), &a, &fast, false);
    read_told(test_submit(s, &o), &b, &slow, true);
    assert_int_equal(fast.n, 400);
    assert_int_equal(slow.n, 400);
    for (int i = 0; i < 400; i++) {
        assert_int_equal(fast.p[i].token.id, a.ids[i]);
        assert_memory_equal(&fast.p[i], &slow.p[i], sizeof fast.p[i]);
    }
    assert_string_equal(a.text, b.text);
    pn_served_put(s);
    pn_engine_free(en);
    test_die_close(&die);
    unlink(path);
}

/* What the tokens of an answer say when they are put together. */
static const char *joined(const struct pn_model *m, const struct told *t) {
    static char text[1024];
    struct fo_buf bytes, name;
    fo_buf_init(&bytes, sizeof text - 1);
    fo_buf_init(&name, 1 << 20);
    for (int i = 0; i < t->n; i++) pn_text_token(m, t->p[i].token.id, &bytes, &name);
    memcpy(text, fo_buf_str(&bytes), bytes.len + 1);
    fo_buf_done(&bytes);
    fo_buf_done(&name);
    return text;
}

/* A script says a byte a token: characters come in up to four, and the texts that end it are cut out of the middle. */
static void held_back_text_keeps_its_tokens_and_cut_text_has_none(void **state) {
    (void)state;
    static const char *const stops[] = { "STOP", "\xE2\x86\x92!" };
    static const struct {
        const char *text, *shown;
        int n_stops;
    } rows[] = {
        { "na\xC3\xAFve \xE2\x86\x92 \xF0\x9F\x98\x80.", NULL, 0 },
        { "na\xC3\xAFve \xE2\x86\x92 \xF0\x9F\x98\x80.", NULL, 2 }, /* the arrow is held until what follows is not the mark */
        { "ST STO \xE2\x86\x92 STOP and on", "ST STO \xE2\x86\x92 ", 2 },
        { "yes \xE2\x86\x92! no", "yes ", 2 },
        { "it ends in STO", NULL, 2 },
        { "STOP", "", 2 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct test_die die;
        struct pn_engine *en;
        struct fo_err e = { 0 };
        struct pn_ids prompt;
        static struct test_answer a;
        static struct told t;
        struct test_script script = test_script_default();
        script.text = rows[i].text;
        test_die_open(&die);
        assert_int_equal(pn_engine_new(&en, &e), 0);
        if (test_script_write(&script, odd_path(0), &e)) fail_msg("%s", e.msg);
        struct pn_served *s = test_serve(en, &die, odd_path(0), "m", 1, 1, 64, 8, 0);
        const struct pn_model *m = pn_served_model(s);
        assert_int_equal(pn_text_encode(m, "Go.", 3, false, true, 0, &prompt, &e), 0);
        struct pn_request_opts o = test_opts(prompt.ids, prompt.n, 200);
        o.ignore_end = false;
        o.logprobs = true;
        o.n_top_logprobs = 3;
        o.stops = stops;
        o.n_stops = rows[i].n_stops;
        read_told(test_submit(s, &o), &a, &t, false);
        const char *want = rows[i].shown ? rows[i].shown : rows[i].text;
        assert_string_equal(a.text, want);
        assert_int_equal(a.finish, PN_FINISH_STOP);
        assert_string_equal(joined(m, &t), want);
        assert_int_equal(t.n, strlen(want));
        uint64_t chars = 0;
        for (int k = 0; k < t.n; k++) { /* a byte within a character is where that begins, and comes just in front of its text */
            if (k > 0 && ((unsigned char)want[k] & 0xC0) != 0x80) chars++;
            assert_int_equal(t.p[k].text_at, chars);
            assert_true(t.chars[k] <= chars);
            assert_true(t.p[k].token.logprob == 0 && t.p[k].top[0].id == t.p[k].token.id);
        }
        free(prompt.ids);
        pn_served_put(s);
        pn_engine_free(en);
        test_die_close(&die);
        unlink(odd_path(0));
    }
}

static void an_end_token_is_not_told_and_too_many_are_refused(void **state) {
    (void)state;
    struct test_die die;
    struct pn_engine *en;
    struct pn_request *r = NULL;
    struct pn_budget budget;
    struct fo_err e = { 0 };
    static struct test_answer a;
    static struct told t;
    struct test_script script = test_script_default();
    struct pn_ids prompt;
    test_die_open(&die);
    assert_int_equal(pn_engine_new(&en, &e), 0);
    if (test_script_write(&script, odd_path(0), &e)) fail_msg("%s", e.msg);
    struct pn_served *s = test_serve(en, &die, odd_path(0), "m", 1, 1, 64, 8, 0);
    assert_int_equal(pn_text_encode(pn_served_model(s), "Go.", 3, false, true, 0, &prompt, &e), 0);
    struct pn_request_opts o = test_opts(prompt.ids, prompt.n, 200);
    o.ignore_end = false;
    o.logprobs = true;
    read_told(test_submit(s, &o), &a, &t, false);
    assert_int_equal(t.n + 1, a.usage.completion_tokens);
    o.n_top_logprobs = PN_MAX_TOP_LOGPROBS + 1;
    assert_int_equal(pn_submit(s, &o, &r, &budget, &e), FO_EINVAL);
    o.n_top_logprobs = 2;
    o.want_text = false; /* ids alone */
    read_told(test_submit(s, &o), &a, &t, false);
    assert_int_equal(a.len, 0);
    assert_int_equal(t.n, a.n_ids);
    free(prompt.ids);
    pn_served_put(s);
    pn_engine_free(en);
    test_die_close(&die);
    unlink(odd_path(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_log_softmax_and_sums_to_1),
        cmocka_unit_test(the_likeliest_come_in_order_and_equals_by_their_id),
        cmocka_unit_test(odd_numbers_have_their_limits),
        cmocka_unit_test(a_token_goes_out_with_its_text),
        cmocka_unit_test(more_tokens_without_text_than_can_be_held_go_out_early),
        cmocka_unit_test(takes_its_memory_when_it_is_made_and_survives_every_failing_allocation),
        cmocka_unit_test(they_are_the_model_s_own_whatever_shapes_the_draw),
        cmocka_unit_test(a_slow_reader_hears_of_every_token_once),
        cmocka_unit_test(held_back_text_keeps_its_tokens_and_cut_text_has_none),
        cmocka_unit_test(an_end_token_is_not_told_and_too_many_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
