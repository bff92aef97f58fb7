/* Speculation: what is guessed and when it pays, as pure functions; and that answers are the same with and without, whatever the request asks
 * for and whoever runs beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/request_worker.h"
#include "engine/spec.h"
#include "foundry/base/rng.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* --- drafts ------------------------------------------------------------------------------------ */
static struct pn_spec *spec(uint32_t n_tokens) {
    struct pn_spec *s;
    struct fo_err e;
    assert_int_equal(pn_spec_new(n_tokens, &s, &e), 0);
    return s;
}

/* Letters as tokens. */
static void prompt(struct pn_spec *s, const char *text) {
    for (; *text; text++) pn_spec_prompt(s, (const int32_t[]){ *text }, 1);
}

static void answer(struct pn_spec *s, const char *text) {
    while (*text) pn_spec_add(s, *text++);
}

static void drafts(const struct pn_spec *s, const char *expected) {
    int32_t ids[PN_DRAFT_MAX];
    float odds[PN_DRAFT_MAX];
    char got[PN_DRAFT_MAX + 1] = "";
    uint32_t n = pn_spec_draft(s, PN_DRAFT_MAX, ids, odds);
    for (uint32_t i = 0; i < n; i++) {
        got[i] = (char)ids[i];
        assert_true(odds[i] > 0 && odds[i] <= (i ? odds[i - 1] : 1));
    }
    if (strncmp(got, expected, strlen(expected)) != 0 || (n == 0) != (*expected == '\0')) fail_msg("drafts '%s', expected '%s'", got, expected);
}

static void guesses_what_came_the_last_time(void **state) {
    (void)state;
    struct pn_spec *s = spec(100);
    prompt(s, "one two three. one two six. ");
    drafts(s, "one two "); /* ". " */
    answer(s, "one t");
    drafts(s, "wo six. "); /* the newer of the two places */
    answer(s, "wo thr");
    drafts(s, "ee. one");
    pn_spec_free(s);
}

static void follows_the_place_that_is_like_this_one_for_longest(void **state) {
    (void)state;
    struct pn_spec *s = spec(200);
    prompt(s, "a quick brown fox ran. the slow brown cat sat. ");
    answer(s, "a quick brown ");
    drafts(s, "fox ran."); /* although "brown " was last followed by "cat" */
    answer(s, "c");
    drafts(s, "at sat. "); /* and looks anew where that was wrong */
    pn_spec_free(s);
}

static void a_draft_past_the_end_goes_on_with_itself(void **state) {
    (void)state;
    struct pn_spec *s = spec(100);
    prompt(s, "x");
    answer(s, "ababab");
    drafts(s, "abababab");
    pn_spec_free(s);
}

static void guesses_nothing_where_nothing_came_before(void **state) {
    (void)state;
    struct pn_spec *s = spec(100);
    int32_t id;
    float odds;
    assert_int_equal(pn_spec_draft(s, 1, &id, &odds), 0);
    prompt(s, "abcdefgh");
    drafts(s, "");
    answer(s, "ijb"); /* one letter is no run */
    drafts(s, "");
    answer(s, "c");
    drafts(s, "defghijb");
    answer(s, "x");
    drafts(s, "");
    pn_spec_free(s);
}

/* Against looking through the whole text: what is guessed always came behind a run that is here again, and if there is one of 4 that the table has
 * room for, something is guessed. */
static void every_guess_came_before(void **state) {
    (void)state;
    struct fo_rng r;
    fo_rng_seed(&r, 1);
    enum { N = 3000 };
    static int32_t ids[N];
    struct pn_spec *s = spec(N);
    uint32_t guesses = 0;
    for (uint32_t n = 0; n < N;) {
        uint32_t part = 1 + (uint32_t)(fo_rng_u64(&r) % 40), from = n ? (uint32_t)(fo_rng_u64(&r) % n) : 0;
        for (uint32_t i = 0; i < part && n < N; i++, n++) { /* something new, or a piece of what was */
            ids[n] = part % 2 ? (int32_t)(fo_rng_u64(&r) % 50) : ids[from + i];
            pn_spec_add(s, ids[n]);
            int32_t d[PN_DRAFT_MAX];
            float odds[PN_DRAFT_MAX];
            uint32_t k = pn_spec_draft(s, PN_DRAFT_MAX, d, odds);
            bool two = false, four = false;
            for (uint32_t at = 2; at <= n; at++) {
                if (ids[at - 1] != ids[n] || ids[at - 2] != ids[n - 1]) continue;
                two |= k > 0 && ids[at] == d[0];
                four |= at >= 4 && n >= 3 && ids[at - 3] == ids[n - 2] && ids[at - 4] == ids[n - 3];
            }
            assert_true(k == 0 || two);
            if (k == 0) assert_false(four);
            guesses += k > 0;
        }
    }
    assert_true(guesses > N / 4);
    pn_spec_free(s);
}

static float first_odds(const struct pn_spec *s) {
    int32_t id;
    float odds;
    assert_int_equal(pn_spec_draft(s, 1, &id, &odds), 1);
    return odds;
}

static void trusts_a_text_as_far_as_it_repeats_itself(void **state) {
    (void)state;
    struct pn_spec *s = spec(4000), *t = spec(4000);
    prompt(s, "ab"), prompt(t, "ab");
    answer(s, "-ab"), answer(t, "-ab");
    float before = first_odds(s);
    for (int i = 0; i < 40; i++) { /* what follows "ab" is the same each time, and another each time */
        answer(s, "-ab");
        for (int k = 0; k < 3; k++) pn_spec_add(t, 1000 + 3 * i + k);
        answer(t, "ab");
    }
    assert_true(first_odds(s) > 0.9F);
    assert_true(first_odds(t) < before / 2);
    pn_spec_free(s);
    pn_spec_free(t);
}

static void a_text_longer_than_was_said_is_not_guessed_at(void **state) {
    (void)state;
    struct pn_spec *s = spec(8);
    prompt(s, "abc");
    answer(s, "abcab");
    drafts(s, "cabcabca");
    answer(s, "c");
    drafts(s, "");
    answer(s, "abcabc");
    drafts(s, "");
    pn_spec_free(s);
}

static void without_memory_nothing_is_guessed(void **state) {
    (void)state;
    struct pn_spec *s = NULL;
    struct fo_err e = { 0 };
    test_fail_alloc(1);
    assert_int_equal(pn_spec_new(100, &s, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
    s = spec(5000);
    test_fail_alloc(1);
    answer(s, "abab");
    assert_true(test_alloc_failed());
    drafts(s, "");
    pn_spec_free(s);
    s = spec(5000);
    for (int i = 0; i < 512; i++) answer(s, "ab");
    drafts(s, "abab");
    test_fail_alloc(1); /* the text has outgrown its first room */
    answer(s, "ab");
    assert_true(test_alloc_failed());
    drafts(s, "");
    pn_spec_free(s);
}

static void takes_no_more_memory_than_it_says(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 1 << 20; n *= 4) {
        test_fail_alloc(0);
        struct pn_spec *s = spec(n);
        assert_true(test_alloc_bytes() <= pn_spec_bytes(n));
        pn_spec_free(s);
    }
    assert_true(pn_spec_bytes(1 << 20) < 6 << 20);
}

/* A step for each token must not look through the text: twenty times as much text, about the same time each. */
static double us_per_token(uint32_t n) {
    struct pn_spec *s = spec(n);
    struct fo_rng r;
    struct timespec from, to;
    fo_rng_seed(&r, n);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (uint32_t i = 0; i < n; i++) pn_spec_add(s, (int32_t)(fo_rng_u64(&r) % 300));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    pn_spec_free(s);
    return ((double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3) / n;
}

static void a_token_costs_the_same_in_a_long_text(void **state) {
    (void)state;
    double few = 1e9, many = 1e9;
    for (int i = 0; i < 5; i++) {
        double a = us_per_token(10000), b = us_per_token(200000);
        if (a < few) few = a;
        if (b < many) many = b;
    }
    print_message("    %.3f us a token of 10,000, %.3f of 200,000\n", few, many);
    assert_true(many < 10 * few + 1); /* caches differ, lengths do not count */
}

/* --- costs ------------------------------------------------------------------------------------- */
static const float likely[8] = { 0.95F, 0.9F, 0.86F, 0.82F, 0.78F, 0.74F, 0.7F, 0.66F };
static const float doubtful[8] = { 0.3F, 0.09F, 0.03F, 0.01F };

/* Steps of 1 .. 9 rows, one of them first_ms and each more row_ms. */
static void measured(struct pn_spec_costs *c, double first_ms, double row_ms) {
    for (int i = 0; i < 20; i++)
        for (uint32_t n = 9; n >= 1; n--) pn_spec_cost_add(c, n, first_ms + row_ms * (n - 1));
}

static void drafts_only_what_pays(void **state) {
    (void)state;
    struct pn_spec_costs c = { 0 };
    assert_int_equal(pn_spec_worth(&c, 1, likely, 8), 0); /* nothing is known */
    measured(&c, 10, 0.2);
    assert_int_equal(pn_spec_worth(&c, 1, likely, 8), 8);
    assert_in_range(pn_spec_worth(&c, 1, doubtful, 4), 1, 3);
    c = (struct pn_spec_costs){ 0 };
    measured(&c, 10, 4); /* as cpus are */
    assert_in_range(pn_spec_worth(&c, 1, likely, 8), 5, 8);
    assert_int_equal(pn_spec_worth(&c, 1, doubtful, 4), 0);
    assert_int_equal(pn_spec_worth(&c, 1, likely, 1), 1);
    c = (struct pn_spec_costs){ 0 };
    measured(&c, 10, 10); /* a row more costs a step more: nothing to win */
    assert_int_equal(pn_spec_worth(&c, 1, likely, 8), 0);
}

/* With eight answers in a step its rows are no longer nearly free, and drafts end. */
static void drafts_shrink_under_load(void **state) {
    (void)state;
    struct pn_spec_costs c = { 0 };
    for (int i = 0; i < 20; i++)
        for (uint32_t n = 20; n >= 1; n--) pn_spec_cost_add(&c, n, n <= 4 ? 10 : 10 + 4 * (n - 4));
    uint32_t before = 8;
    for (uint32_t answers = 1; answers <= 12; answers++) {
        uint32_t n = pn_spec_worth(&c, answers, likely, 8);
        assert_true(n <= before);
        before = n;
    }
    assert_int_equal(pn_spec_worth(&c, 2, likely, 8) > 0, 1);
    assert_int_equal(before, 0);
}

static void guesses_costs_that_were_not_measured(void **state) {
    (void)state;
    struct pn_spec_costs c = { 0 };
    assert_true(pn_spec_cost(&c, 3) == 0);
    pn_spec_cost_add(&c, 1, 10);
    assert_true(pn_spec_cost(&c, 1) == 10);
    assert_true(pn_spec_cost(&c, 2) > 10 && pn_spec_cost(&c, 9) > pn_spec_cost(&c, 2));
    assert_true(pn_spec_worth(&c, 1, likely, 8) > 0); /* likely enough to find out */
    assert_int_equal(pn_spec_worth(&c, 1, doubtful, 4), 0);
    pn_spec_cost_add(&c, 5, 30);
    assert_true(pn_spec_cost(&c, 3) > 19 && pn_spec_cost(&c, 3) < 21);
    pn_spec_cost_add(&c, 0, 1);
    pn_spec_cost_add(&c, PN_SPEC_MAX_ROWS + 1, 1);
    pn_spec_cost_add(&c, 2, -1);
    assert_true(pn_spec_cost(&c, PN_SPEC_MAX_ROWS + 5) == 0);
    assert_true(pn_spec_cost(&c, PN_SPEC_MAX_ROWS) > 30);
}

/* One slow step on a busy machine switches nothing off for good, nor on. */
static void one_slow_step_is_forgotten(void **state) {
    (void)state;
    struct pn_spec_costs c = { 0 };
    for (uint32_t n = 9; n >= 2; n--) pn_spec_cost_add(&c, n, 1000);
    pn_spec_cost_add(&c, 1, 10);
    assert_int_equal(pn_spec_worth(&c, 1, likely, 8), 0);
    int steps = 0;
    uint32_t n;
    for (; (n = pn_spec_worth(&c, 1, likely, 8)) == 0 && steps < 2000; steps++) pn_spec_cost_add(&c, 1, 10);
    assert_in_range(steps, 100, 1000); /* tried again, but not all the time */
    for (int i = 0; i < 100; i++) {
        n = pn_spec_worth(&c, 1, likely, 8);
        pn_spec_cost_add(&c, 1 + n, 10 + 3 * n);
    }
    assert_true(pn_spec_worth(&c, 1, likely, 8) > 0 || c.step - c.seen[1] > 64);
    pn_spec_cost_add(&c, 1, 500); /* a slow step without drafts makes drafts look cheap, until the next */
    pn_spec_cost_add(&c, 1, 10);
    assert_true(pn_spec_cost(&c, 1) < 12);
}

static void now_and_then_a_step_goes_without(void **state) {
    (void)state;
    struct pn_spec_costs c = { 0 };
    int plain = 0;
    for (int i = 0; i < 1000; i++) {
        uint32_t n = pn_spec_worth(&c, 1, likely, 8);
        plain += n == 0;
        pn_spec_cost_add(&c, 1 + n, 10 + 0.2 * n);
    }
    assert_in_range(plain, 10, 20);
}

/* --- answers ----------------------------------------------------------------------------------- */
struct world {
    struct test_die die;
    struct pn_engine *en;
    struct pn_served *s[3]; /* one for each way */
};

static const char *const ways[3] = { "auto", "off", "always" }; /* as enum pn_speculation */

static void open_file(struct world *w, const char *path, enum fo_dtype kv, uint32_t slots) {
    struct fo_err e = { 0 };
    test_die_open(&w->die);
    assert_int_equal(pn_engine_new(&w->en, &e), 0);
    for (int i = 0; i < 3; i++) {
        struct pn_serve_opts o = { .name = ways[i],
                                   .model = { .dev = &w->die.dev, .max_sessions = slots + 2, .max_concurrent = slots, .max_batch = 64, .k_type = kv, .v_type = kv,
                                              .draft_rows = PN_DRAFT_MAX },
                                   .queue_depth = 32,
                                   .speculation = (enum pn_speculation)i };
        if (pn_engine_load(w->en, path, &o, &e) != 0) fail_msg("%s", e.msg);
        w->s[i] = pn_engine_get(w->en, ways[i]);
        assert_non_null(w->s[i]);
    }
}

static void open_world(struct world *w, uint32_t slots) {
    char path[64];
    test_model_file(path, 512, true, 1);
    open_file(w, path, FO_F16, slots);
    unlink(path);
}

static void close_world(struct world *w) {
    for (int i = 0; i < 3; i++) pn_served_put(w->s[i]);
    pn_engine_free(w->en);
    test_die_close(&w->die);
}

static struct pn_served_status status(const struct world *w, int way) {
    struct pn_served_status st;
    pn_served_status(w->s[way], &st);
    return st;
}

static void same(const struct test_answer *a, const struct test_answer *b) {
    assert_int_equal(a->code, b->code);
    assert_string_equal(a->msg, b->msg);
    assert_int_equal(a->n_ids, b->n_ids);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->usage.completion_tokens, b->usage.completion_tokens);
}

/* Asks all three; what they say is the same, and `off` drafted nothing. Returns the answer, statically. */
static const struct test_answer *ask_all(struct world *w, const struct pn_request_opts *o) {
    static struct test_answer a[3];
    for (int i = 0; i < 3; i++) {
        test_ask(w->s[i], o, &a[i]);
        same(&a[i], &a[0]);
        assert_true(a[i].usage.accepted <= a[i].usage.drafted);
    }
    assert_int_equal(a[PN_SPECULATION_OFF].usage.drafted, 0);
    return &a[PN_SPECULATION_ALWAYS];
}

/* A prompt in which a piece stands several times. */
static void repeating(int32_t *ids, uint32_t n, uint64_t seed) {
    test_prompt(ids, n, seed);
    uint32_t piece = 5 + (uint32_t)(seed % 20);
    for (uint32_t i = piece; i < n; i++)
        if (i / piece % 2) ids[i] = ids[i % piece];
}

#ifdef FO_DEBUG
enum { N_ANSWERS = 50 }; /* sanitizers take their time */
#else
enum { N_ANSWERS = 200 };
#endif

static void two_hundred_answers_are_the_same(void **state) {
    (void)state;
    struct world w;
    int32_t ids[90];
    open_world(&w, 2);
    for (uint32_t i = 0; i < N_ANSWERS; i++) {
        uint32_t n = 2 + i * 7 % 88;
        repeating(ids, n, i + 1);
        struct pn_request_opts o = test_opts(ids, n, 1 + i * 13 % 60);
        if (i % 2) {
            o.sampling.temperature = 0.2F + 0.05F * (float)(i % 17);
            o.sampling.seed = i;
            if (i % 3 == 0) o.sampling.top_k = 5;
            if (i % 5 == 0) o.sampling.repeat_penalty = 1.1F, o.sampling.repeat_last_n = 16;
        }
        ask_all(&w, &o);
    }
    struct pn_served_status st = status(&w, PN_SPECULATION_ALWAYS), off = status(&w, PN_SPECULATION_OFF);
    print_message("    %llu drafted, %llu accepted of %llu generated\n", (unsigned long long)st.tokens_drafted, (unsigned long long)st.tokens_accepted,
                  (unsigned long long)st.tokens_generated);
    assert_true(st.tokens_accepted > N_ANSWERS && st.tokens_accepted < st.tokens_drafted); /* both kinds were there */
    assert_int_equal(st.tokens_generated, off.tokens_generated);
    assert_int_equal(st.tokens_decoded, off.tokens_decoded);
    assert_int_equal(off.tokens_drafted, 0);
    close_world(&w);
}

/* Every way of keeping KV, windows that slide under the drafts, matrices of several types. */
static void the_same_for_every_kind_of_memory_and_window(void **state) {
    (void)state;
    static const struct {
        enum fo_dtype kv, type;
        uint32_t window;
    } kinds[] = { { FO_F32, FO_F32, 0 },    { FO_F16, FO_Q4_0, 0 },  { FO_Q8_0, FO_Q8_0, 0 },   { FO_Q4_0, FO_Q4_1, 0 },  { FO_F16, FO_Q4_K, 0 },  { FO_F16, FO_Q6_K, 1 },
                  { FO_F16, FO_Q5_K, 20 }, { FO_Q8_0, FO_F16, 33 }, { FO_Q4_0, FO_Q8_0, 64 }, { FO_F16, FO_BF16, 100 }, { FO_F16, FO_IQ4_NL, 7 } };
    int32_t ids[100];
    for (size_t k = 0; k < COUNT(kinds); k++) {
        struct world w;
        const char *path = odd_path((int)(k % 8));
        struct odd t = { .type = kinds[k].type, .window = kinds[k].window, .seed = k + 1 };
        odd_write(path, &t);
        open_file(&w, path, kinds[k].kv, 1);
        unlink(path);
        for (uint32_t i = 0; i < 6; i++) {
            uint32_t n = 3 + i * 16;
            for (uint32_t j = 0; j < n; j++) ids[j] = (int32_t)((j % (5 + i)) * 7 % 90) + 3;
            struct pn_request_opts o = test_opts(ids, n, 80);
            o.want_text = false;
            if (i % 3 == 2) o.sampling.temperature = 0.3F, o.sampling.seed = i;
            ask_all(&w, &o);
        }
        struct pn_served_status st = status(&w, PN_SPECULATION_ALWAYS);
        assert_true(st.tokens_accepted > 50);
        close_world(&w);
    }
}

static void the_same_where_a_grammar_decides(void **state) {
    (void)state;
    static const char *const grammars[] = { "root ::= ( \"ab\" [0-9] \";\" )+", "root ::= [a-c]+ \".\" [d-f]{3,40}", "root ::= ( [^a-z\\x00] | \"abc\" )*",
                                            "root ::= \"{\" pair ( \",\" pair )* \"}\"\npair ::= \"\\\"key\\\":\" [0-9]+" };
    struct world w;
    int32_t ids[60];
    uint64_t accepted = 0;
    open_world(&w, 2);
    for (uint32_t i = 0; i < 40; i++) {
        static struct test_answer a[3];
        repeating(ids, 60, i + 1);
        for (uint32_t k = 0; k < 30; k++) ids[k] = "ab1;ab2;abc.def,{\"key\":12,\"key\":"[k] + 0; /* some of it may be repeated, some not */
        for (int way = 0; way < 3; way++) {
            struct pn_request_opts o = test_opts(ids, 60, 80);
            struct fo_err e = { 0 };
            const char *text = grammars[i % COUNT(grammars)];
            if (pn_served_grammar(w.s[way], PN_GRAMMAR_GBNF, text, strlen(text), &o.grammar, &e)) fail_msg("%s", e.msg);
            o.ignore_end = i % 2;
            if (i % 4 > 1) o.sampling.temperature = 1, o.sampling.seed = i;
            test_ask(w.s[way], &o, &a[way]);
            pn_grammar_put(o.grammar);
            same(&a[way], &a[0]);
        }
        accepted += a[PN_SPECULATION_ALWAYS].usage.accepted;
    }
    assert_true(accepted > 100);
    close_world(&w);
}

/* A scripted model has a token a byte. */
static void tokens_of(const struct world *w, const char *text, int32_t *ids, size_t n) {
    struct fo_tok_ids got;
    struct fo_err e;
    assert_int_equal(fo_tok_encode(pn_model_tok(pn_served_model(w->s[0])), text, strlen(text), NULL, 0, 0, &got, &e), 0);
    assert_int_equal(got.n, n);
    memcpy(ids, got.ids, n * sizeof *ids);
    free(got.ids);
}

/* pains 64, vllm#52620: a drafted token that the grammar forbids is cut off before it is computed. */
static void a_draft_that_the_grammar_forbids_is_not_computed(void **state) {
    (void)state;
    struct world w;
    char path[64];
    struct fo_err e = { 0 };
    snprintf(path, sizeof path, "%s", odd_path(0));
    struct test_script t = test_script_default();
    t.text = "cat sat. cat sat. cat sat. ";
    t.endless = true;
    if (test_script_write(&t, path, &e)) fail_msg("%s", e.msg);
    open_file(&w, path, FO_F16, 1);
    unlink(path);
    int32_t ids[14];
    tokens_of(&w, "cat sQ cat sQ ", ids, 14);
    static const char text[] = "root ::= [a-z. ]+";
    for (int held = 0; held < 2; held++) {
        struct pn_request_opts o = test_opts(ids, 14, 12);
        static struct test_answer a;
        if (held && pn_served_grammar(w.s[2], PN_GRAMMAR_GBNF, text, sizeof text - 1, &o.grammar, &e)) fail_msg("%s", e.msg);
        atomic_store(&w.die.watch, ids[5]);
        atomic_store(&w.die.seen, 0);
        test_ask(w.s[2], &o, &a);
        pn_grammar_put(o.grammar);
        assert_true(a.usage.drafted > 0);
        int seen = atomic_load(&w.die.seen);
        if (held) assert_int_equal(seen, 1); /* the prompt's alone */
        else assert_true(seen > 1);
    }
    close_world(&w);
}

static void looking_ahead_in_a_grammar_moves_nothing(void **state) {
    (void)state;
    struct world w;
    char path[64];
    struct fo_err e = { 0 };
    snprintf(path, sizeof path, "%s", odd_path(3));
    struct test_script t = test_script_default();
    if (test_script_write(&t, path, &e)) fail_msg("%s", e.msg);
    open_file(&w, path, FO_F16, 1);
    unlink(path);
    static const char text[] = "root ::= ( \"ab\" [0-9] \";\" ){2,3}";
    static const struct {
        const char *ahead;
        uint32_t allowed;
    } rows[] = { { "ab1;ab2;ab3;ab4;", 12 }, { "ab1;abc", 6 }, { "b", 0 }, { "ab12", 3 } };
    struct pn_grammar *g;
    struct pn_grammar_run *run;
    bool over;
    int32_t ids[16];
    if (pn_served_grammar(w.s[0], PN_GRAMMAR_GBNF, text, sizeof text - 1, &g, &e) || pn_grammar_run_new(g, &run, &e)) fail_msg("%s", e.msg);
    for (size_t i = 0; i < COUNT(rows); i++) {
        size_t n = strlen(rows[i].ahead);
        tokens_of(&w, rows[i].ahead, ids, n);
        for (int again = 0; again < 2; again++) assert_int_equal(pn_grammar_run_allows(run, ids, (uint32_t)n), rows[i].allowed);
    }
    assert_int_equal(pn_grammar_run_allows(run, (const int32_t[]){ -1 }, 1) + pn_grammar_run_allows(run, (const int32_t[]){ INT32_MAX }, 1), 0);
    tokens_of(&w, "ab1;ab2;", ids, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(pn_grammar_run_accept(run, ids[i], &over, &e), 0); /* from the very start */
    assert_true(pn_grammar_run_may_end(run) && !over);
    pn_grammar_run_free(run);
    pn_grammar_put(g);
    close_world(&w);
}

/* What a reader is told of each token besides, in order. */
struct told {
    uint32_t n;
    struct pn_logprobs lp[200];
};

static void read_logprobs(struct pn_served *s, const struct pn_request_opts *o, struct told *t, struct test_answer *a) {
    struct pn_request *r = test_submit(s, o);
    struct pn_event ev;
    memset(a, 0, sizeof *a);
    t->n = 0;
    do {
        pn_request_next(r, 30000, &ev);
        assert_int_not_equal(ev.kind, PN_EV_TIMEOUT);
        assert_int_not_equal(ev.kind, PN_EV_ERROR);
        if (ev.kind == PN_EV_LOGPROBS) t->lp[t->n++] = *ev.logprobs;
        if (ev.kind == PN_EV_TEXT) memcpy(a->text + a->len, ev.text, ev.text_len + 1), a->len += ev.text_len;
    } while (ev.kind != PN_EV_DONE);
    pn_request_release(r);
}

static void the_same_with_stop_strings_and_log_probabilities(void **state) {
    (void)state;
    struct world w;
    int32_t ids[80];
    static struct told t[3];
    static struct test_answer a[3], whole;
    open_world(&w, 1);
    for (uint32_t i = 0; i < 20; i++) {
        repeating(ids, 80, i + 1);
        struct pn_request_opts o = test_opts(ids, 80, 60);
        test_ask(w.s[1], &o, &whole);
        char stop[8] = "";
        if (whole.len > 40) memcpy(stop, whole.text + 20 + i, 3);
        const char *stops[] = { stop, "never said" };
        o.stops = stops;
        o.n_stops = *stop && (stop[0] & 0x80) == 0 ? 2 : 0;
        o.logprobs = true;
        o.n_top_logprobs = i % 6;
        for (int way = 0; way < 3; way++) {
            read_logprobs(w.s[way], &o, &t[way], &a[way]);
            assert_string_equal(a[way].text, a[0].text);
            assert_int_equal(t[way].n, t[0].n);
            for (uint32_t k = 0; k < t[0].n; k++) {
                assert_int_equal(t[way].lp[k].token.id, t[0].lp[k].token.id);
                assert_memory_equal(&t[way].lp[k].token.logprob, &t[0].lp[k].token.logprob, sizeof t[0].lp[k].token.logprob);
            }
        }
    }
    close_world(&w);
}

static void the_same_beside_others_and_in_kept_conversations(void **state) {
    (void)state;
    enum { N = 8 };
    struct world w;
    static int32_t ids[N][400];
    static struct test_answer alone[N], a;
    struct pn_request_opts o[N];
    struct pn_request *r[N];
    open_world(&w, 4);
    for (uint32_t i = 0; i < N; i++) {
        repeating(ids[i], 60, i + 1);
        o[i] = test_opts(ids[i], 20 + 5 * i, 70);
        o[i].want_text = false; /* it may have a NUL */
        if (i % 2) o[i].sampling.temperature = 0.5F, o[i].sampling.seed = i;
        test_ask(w.s[PN_SPECULATION_OFF], &o[i], &alone[i]);
    }
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < N; i++) r[i] = test_submit(w.s[way], &o[i]); /* four at a time; prompts come in beside running answers */
        for (int i = 0; i < N; i++) {
            test_read_all(r[i], &a);
            same(&a, &alone[i]);
        }
    }
    /* turn after turn: what an answer with drafts left behind is what one without leaves */
    for (int i = 0; i < N; i++) {
        uint32_t n = o[i].n_tokens;
        char session[16];
        snprintf(session, sizeof session, "s%d", i);
        for (int turn = 0; turn < 3; turn++) {
            struct pn_request_opts next = o[i];
            next.n_tokens = n;
            next.max_tokens = 40;
            next.session = session;
            const struct test_answer *got = ask_all(&w, &next);
            if (turn > 0) assert_true(got->usage.cached_tokens >= n - 45);
            memcpy(ids[i] + n, got->ids, got->n_ids * sizeof *ids[i]);
            n += got->n_ids;
            test_prompt(ids[i] + n, 3, (uint64_t)turn);
            n += 3;
        }
    }
    close_world(&w);
}

static void a_few_tokens_and_a_full_context_are_kept_to(void **state) {
    (void)state;
    struct world w;
    int32_t ids[500];
    open_world(&w, 1);
    for (uint32_t i = 0; i < 500; i++) ids[i] = 3 + (int32_t)(i % 7);
    for (uint32_t most = 1; most <= 12; most++) {
        struct pn_request_opts o = test_opts(ids, 30, most);
        const struct test_answer *a = ask_all(&w, &o);
        assert_int_equal(a->n_ids, most);
        assert_true(a->usage.drafted <= (most > 1 ? PN_DRAFT_MAX * (most - 1) : 0));
        o.n_tokens = 500; /* to the last place of the context of 512 */
        a = ask_all(&w, &o);
        assert_int_equal(a->n_ids, most);
    }
    close_world(&w);
}

static void a_reader_that_is_slow_or_leaves_changes_nothing(void **state) {
    (void)state;
    struct world w;
    int32_t ids[50];
    static struct test_answer whole, a;
    open_world(&w, 2);
    repeating(ids, 50, 3);
    struct pn_request_opts o = test_opts(ids, 50, 400);
    test_ask(w.s[PN_SPECULATION_OFF], &o, &whole);
    for (int i = 0; i < 3; i++) {
        struct pn_request *r = test_submit(w.s[2], &o), *leaves = test_submit(w.s[2], &o);
        enum pn_event_kind kind = PN_EV_TIMEOUT;
        memset(&a, 0, sizeof a);
        while (a.n_ids < 30) test_take(leaves, 30000, &a, NULL);
        assert_memory_equal(a.ids, whole.ids, a.n_ids * sizeof a.ids[0]);
        pn_request_cancel(leaves);
        memset(&a, 0, sizeof a);
        struct timespec nap = { 0, 200000 };
        do nanosleep(&nap, NULL); /* in debug builds the ring holds a few dozen tokens: it is full again and again */
        while (test_take(r, 30000, &a, &kind));
        assert_int_equal(kind, PN_EV_DONE);
        pn_request_release(r);
        pn_request_release(leaves);
        same(&a, &whole);
        test_wait_idle(w.s[2]);
    }
    close_world(&w);
}

/* A die that fails on a token which is drafted but never said: the answer does not know. */
static void a_draft_that_fails_fails_nobody(void **state) {
    (void)state;
    struct world w;
    char path[64];
    struct fo_err e = { 0 };
    snprintf(path, sizeof path, "%s", odd_path(1));
    struct test_script t = test_script_default();
    t.text = "abcabcabcabc";
    t.endless = true;
    if (test_script_write(&t, path, &e)) fail_msg("%s", e.msg);
    open_file(&w, path, FO_F16, 2);
    unlink(path);
    int32_t ids[8];
    tokens_of(&w, "abcZabcZ", ids, 8);
    static struct test_answer a;
    struct pn_request_opts o = test_opts(ids + 4, 4, 9); /* first the prompt that fails of itself */
    atomic_store(&w.die.poison_code, FO_EIO);
    struct pn_request *r = test_submit(w.s[2], &(struct pn_request_opts){ .tokens = ids, .n_tokens = 8, .max_tokens = 40, .want_text = true, .ignore_end = true,
                                                                         .sampling = o.sampling });
    memset(&a, 0, sizeof a);
    while (a.n_ids == 0) test_take(r, 30000, &a, NULL); /* the prompt is computed */
    atomic_store(&w.die.poison, ids[3]);
    enum pn_event_kind kind;
    while (test_take(r, 30000, &a, &kind)) {}
    if (a.code) fail_msg("%s", a.msg);
    assert_int_equal(a.n_ids, 40);
    pn_request_release(r);
    test_ask(w.s[2], &o, &a);
    assert_int_equal(a.code, FO_EIO);
    close_world(&w);
}

/* pains 64 (llama.cpp#27852): drafts are of the request's own text alone, so the fiftieth time is as the first. */
static void the_same_prompt_fifty_times_is_drafted_for_alike(void **state) {
    (void)state;
    struct world w;
    int32_t ids[70], other[70];
    uint32_t drafted = 0, accepted = 0;
    open_world(&w, 1);
    repeating(ids, 70, 5);
    struct pn_request_opts o = test_opts(ids, 70, 30);
    for (uint32_t i = 0; i < 50; i++) {
        static struct test_answer noise;
        const struct test_answer *a = ask_all(&w, &o);
        if (i == 0) drafted = a->usage.drafted, accepted = a->usage.accepted;
        assert_true(drafted > 0 && accepted > 0);
        assert_int_equal(a->usage.drafted, drafted);
        assert_int_equal(a->usage.accepted, accepted);
        repeating(other, 70, 100 + i); /* what others say in between is none of its business */
        struct pn_request_opts x = test_opts(other, 70, 10);
        test_ask(w.s[PN_SPECULATION_ALWAYS], &x, &noise);
    }
    close_world(&w);
}

static void may_be_switched_while_it_runs(void **state) {
    (void)state;
    struct world w;
    int32_t ids[50];
    static struct test_answer whole, a;
    struct fo_err e = { 0 };
    open_world(&w, 1);
    repeating(ids, 50, 3);
    struct pn_request_opts o = test_opts(ids, 50, 300);
    test_ask(w.s[PN_SPECULATION_OFF], &o, &whole);
    atomic_store(&w.die.delay_ms, 1);
    struct pn_request *r = test_submit(w.s[PN_SPECULATION_OFF], &o);
    memset(&a, 0, sizeof a);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t until = a.n_ids + 20;
        while (a.n_ids < until) assert_true(test_take(r, 30000, &a, NULL));
        struct pn_serve_opts set = { .name = "off", .queue_depth = 32, .speculation = i % 2 ? PN_SPECULATION_OFF : PN_SPECULATION_ALWAYS };
        assert_int_equal(pn_engine_set(w.en, &set, &e), 0);
    }
    while (test_take(r, 30000, &a, NULL)) {}
    pn_request_release(r);
    same(&a, &whole);
    assert_true(a.usage.drafted > 0);
    close_world(&w);
}

/* --- sequences and memory ---------------------------------------------------------------------- */
/* What a sequence says may be taken back can be, at every length and window, and what is computed then is as if it had never been there. */
static void what_was_appended_in_vain_leaves_no_trace(void **state) {
    (void)state;
    static const uint32_t windows[] = { 0, 1, 2, 15, 16, 17, 31, 40, 64 };
    for (size_t k = 0; k < COUNT(windows); k++) {
        const char *path = odd_path(2);
        struct test_die die;
        struct pn_model *m;
        struct pn_seq *plain, *drafted;
        struct fo_err e = { 0 };
        struct odd t = { .type = FO_Q8_0, .window = windows[k], .seed = 9 };
        odd_write(path, &t);
        test_die_open(&die);
        struct pn_model_opts o = { .dev = &die.dev, .max_sessions = 2, .max_concurrent = 2, .max_batch = 16, .k_type = FO_F16, .v_type = FO_F16, .draft_rows = PN_DRAFT_MAX };
        if (pn_model_open(path, &o, &m, &e)) fail_msg("%s", e.msg);
        unlink(path);
        uint32_t n_vocab = pn_model_info(m)->n_vocab, most = 0, least = UINT32_MAX;
        assert_int_equal(pn_model_info(m)->logit_rows, 2 + PN_DRAFT_MAX);
        float *logits, *first = malloc(n_vocab * sizeof *first);
        assert_non_null(first);
        assert_int_equal(pn_seq_new(m, &plain, &e) | pn_seq_new(m, &drafted, &e), 0);
        assert_int_equal(pn_seq_reserve(plain, 200, &e) | pn_seq_reserve(drafted, 200, &e), 0);
        for (uint32_t i = 0; i < 180; i++) {
            int32_t ids[1 + PN_DRAFT_MAX] = { (int32_t)(3 + i * 5 % 90) };
            for (uint32_t j = 1; j <= PN_DRAFT_MAX; j++) ids[j] = (int32_t)(3 + (i * 31 + j) % 90);
            struct pn_batch_item one = { plain, ids, 1, PN_WANT_LAST };
            uint32_t extra = pn_seq_drafts(drafted, PN_DRAFT_MAX);
            if (extra > most) most = extra;
            if (extra < least) least = extra;
            assert_int_equal(pn_model_forward(m, &one, 1, &logits, &e), 0);
            memcpy(first, logits, n_vocab * sizeof *first);
            struct pn_batch_item more = { drafted, ids, 1 + extra, PN_WANT_ALL };
            assert_int_equal(pn_model_forward(m, &more, 1, &logits, &e), 0);
            assert_memory_equal(first, logits, n_vocab * sizeof *first);
            pn_seq_take_back(drafted, i + 1);
            assert_int_equal(pn_seq_len(drafted), i + 1);
        }
        uint32_t page = pn_model_info(m)->page_tokens; /* under a window no more than one, and debug builds have small ones */
        assert_true(most >= (page - 1 < PN_DRAFT_MAX ? page - 1 : PN_DRAFT_MAX));
        if (!windows[k]) assert_int_equal(least, PN_DRAFT_MAX);
        free(first);
        pn_seq_free(plain);
        pn_seq_free(drafted);
        pn_model_free(m);
        test_die_close(&die);
    }
}

static void the_rows_of_drafts_are_counted(void **state) {
    (void)state;
    char path[64], why[256];
    struct fo_err e = { 0 };
    struct test_die die;
    struct pn_estimate with, without;
    test_model_file(path, 256, true, 1);
    test_die_open(&die);
    struct pn_model_opts o = { .dev = &die.dev, .max_sessions = 3, .max_concurrent = 3, .kv_default = true };
    assert_int_equal(pn_model_estimate(path, &o, &without, why, sizeof why, &e), 0);
    o.draft_rows = PN_DRAFT_MAX;
    assert_int_equal(pn_model_estimate(path, &o, &with, why, sizeof why, &e), 0);
    assert_string_equal(why, "");
    assert_int_equal(with.logits_bytes - without.logits_bytes, (uint64_t)PN_DRAFT_MAX * 512 * sizeof(float));
    assert_true(with.host_bytes >= without.host_bytes + 3 * pn_spec_bytes(256));
    pn_estimate_done(&with);
    pn_estimate_done(&without);
    o.draft_rows = UINT32_MAX;
    struct pn_model_info info;
    assert_int_equal(pn_model_measure(path, &o, &info, why, sizeof why, &e), 0);
    assert_non_null(strstr(why, "draft_rows"));
    unlink(path);
    test_die_close(&die);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_what_came_the_last_time),
        cmocka_unit_test(follows_the_place_that_is_like_this_one_for_longest),
        cmocka_unit_test(a_draft_past_the_end_goes_on_with_itself),
        cmocka_unit_test(guesses_nothing_where_nothing_came_before),
        cmocka_unit_test(every_guess_came_before),
        cmocka_unit_test(trusts_a_text_as_far_as_it_repeats_itself),
        cmocka_unit_test(a_text_longer_than_was_said_is_not_guessed_at),
        cmocka_unit_test(without_memory_nothing_is_guessed),
        cmocka_unit_test(takes_no_more_memory_than_it_says),
        cmocka_unit_test(a_token_costs_the_same_in_a_long_text),
        cmocka_unit_test(drafts_only_what_pays),
        cmocka_unit_test(drafts_shrink_under_load),
        cmocka_unit_test(guesses_costs_that_were_not_measured),
        cmocka_unit_test(one_slow_step_is_forgotten),
        cmocka_unit_test(now_and_then_a_step_goes_without),
        cmocka_unit_test(two_hundred_answers_are_the_same),
        cmocka_unit_test(the_same_for_every_kind_of_memory_and_window),
        cmocka_unit_test(the_same_where_a_grammar_decides),
        cmocka_unit_test(a_draft_that_the_grammar_forbids_is_not_computed),
        cmocka_unit_test(looking_ahead_in_a_grammar_moves_nothing),
        cmocka_unit_test(the_same_with_stop_strings_and_log_probabilities),
        cmocka_unit_test(the_same_beside_others_and_in_kept_conversations),
        cmocka_unit_test(a_few_tokens_and_a_full_context_are_kept_to),
        cmocka_unit_test(a_reader_that_is_slow_or_leaves_changes_nothing),
        cmocka_unit_test(a_draft_that_fails_fails_nobody),
        cmocka_unit_test(the_same_prompt_fifty_times_is_drafted_for_alike),
        cmocka_unit_test(may_be_switched_while_it_runs),
        cmocka_unit_test(what_was_appended_in_vain_leaves_no_trace),
        cmocka_unit_test(the_rows_of_drafts_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
