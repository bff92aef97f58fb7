/* Pre-tokenizer rules and the expressions they are made of. */
#include "foundry/tok_pre.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/tok_re.h"
#include "tests/support/alloc.h"

/* All matches in s, "|" behind each; unmatched text in parentheses. */
static const char *matches(const char *re, const char *skip, const char *s) {
    static char out[4096];
    struct fo_err e;
    struct fo_re *r = NULL;
    size_t n = strlen(s), len = 0;
    if (fo_re_compile(re, skip, &r, &e)) fail_msg("%s: %s", re, e.msg);
    for (size_t at = 0; at < n;) {
        size_t pass, read;
        size_t m = fo_re_match(r, s + at, n - at, &pass, &read);
        len += (size_t)snprintf(out + len, sizeof out - len, m ? "%.*s|" : "(%.*s)", (int)(m ? m : pass), s + at);
        at += m ? m : pass;
    }
    out[len] = '\0';
    fo_re_free(r);
    return out;
}

static void matches_as_a_backtracking_matcher_would(void **state) {
    (void)state;
    assert_string_equal(matches("a|ab", NULL, "ab"), "a|(b)"); /* the first alternative, not the longest */
    assert_string_equal(matches("ab|a", NULL, "aba"), "ab|a|");
    assert_string_equal(matches("a+b|a", NULL, "aaab aa"), "aaab|( )a|a|");
    assert_string_equal(matches("x*y|x", NULL, "xxxz"), "x|x|x|(z)");
    assert_string_equal(matches("[^\\sa-c]+", NULL, "xyz abc d"), "xyz|( )(a)(b)(c)( )d|");
    assert_string_equal(matches("(?i:'s|'ll)|'", NULL, "'S'lL'x's"), "'S|'lL|'|(x)'s|");
    assert_string_equal(matches("\\d{2,3}", NULL, "1234567 1 12"), "123|456|(7)( )(1)( )12|");
    assert_string_equal(matches("\\d{3}|\\d{1}", NULL, "12345"), "123|4|5|");
    assert_string_equal(matches("(?:ab){2}c?", NULL, "ababcabab ab"), "ababc|abab|( )(a)(b)");
    assert_string_equal(matches("\\s+(?!\\S)|\\s+", NULL, "a   b  "), "(a)  | |(b)  |");
    assert_string_equal(matches("a(?=b)", NULL, "aab a"), "(a)a|(b)( )(a)");
    assert_string_equal(matches("\\s+$", "\\s+", "a  b  "), "(a)(  )(b)  |");
    assert_string_equal(matches("[\\p{L}&&[^a-z]]+", NULL, "abCD\xC3\xA9"), "(a)(b)CD\xC3\xA9|");
    assert_string_equal(matches("\\p{Lu}\\P{Lu}*", NULL, "Ab1Cd"), "Ab1|Cd|");
    assert_string_equal(matches("[]a]+", NULL, "a]b"), "a]|(b)");
    assert_string_equal(matches("[a-]+", NULL, "a-b"), "a-|(b)");
    assert_string_equal(matches("[^\\p{L}]+", NULL, "\xFF\xFE" "a"), "\xFF\xFE|(a)"); /* broken UTF-8 is in no class but every "not" */
}

static void refuses_expressions_outside_its_syntax(void **state) {
    (void)state;
    static const char *const bad[] = { "(",      "(a",     "a)",      "[a",     "*a",       "a{",       "a{2,1}",   "a{1000}", "\\",       "\\q",
                                       "\\p{}",  "\\p{Xx}", "\\p{L",  "(?<a>b)", "(?=ab)",  "[z-a]",    "[a-\\s]",  "[a&&b]",  "a{,2}",    "(?>a)" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fo_err e = { 0 };
        struct fo_re *r = NULL;
        if (fo_re_compile(bad[i], NULL, &r, &e) != FO_EUNSUPPORTED || r) fail_msg("'%s' was taken", bad[i]);
        assert_true(e.msg[0] != '\0');
    }
}

static void survives_running_out_of_memory(void **state) {
    (void)state;
    long n = 1;
    for (bool failed = true; failed; n++) {
        struct fo_err e;
        struct fo_pre *p = NULL;
        unsigned flags;
        test_fail_alloc(n);
        int rc = fo_pre_open("deepseek-llm", 12, &p, &flags, &e);
        failed = test_alloc_failed();
        if (failed) {
            assert_int_equal(rc, FO_ENOMEM);
            assert_null(p);
        } else {
            assert_int_equal(rc, 0);
        }
        fo_pre_free(p);
    }
    assert_true(n > 20);
}

static int add_word(void *ctx, const char *s, size_t n) {
    struct fo_buf *out = ctx;
    fo_buf_append(out, s, n);
    fo_buf_putc(out, '|');
    return 0;
}

static void cuts_text_as_each_rule_says(void **state) {
    (void)state;
    static const struct {
        const char *name, *text, *words;
    } cases[] = {
        { "gpt-2", "Hello  world! I'm 1234 x\n\n  y", "Hello| | world|!| I|'m| 1234| x|\n\n | y|" },
        { "smollm", "x 1234 y2", "x| |1|2|3|4| y|2|" },
        { "llama-bpe", "I'LL go, 12345!\n\nNow", "I|'LL| go|,| |123|45|!\n\n|Now|" },
        { "qwen2", "123 a", "1|2|3| a|" },
        { "qwen35", "cafe\xCC\x81s 12", "cafe\xCC\x81s| |1|2|" },
        { "qwen2", "cafe\xCC\x81s", "cafe|\xCC\x81s|" },
        { "tekken", "HTTPServer camelCase/x", "HTTPServer| camel|Case|/x|" },
        { "gpt-4o", "HTTPServer's 12345", "HTTPServer's| |123|45|" },
        { "deepseek-llm", "a b  \n 12 \xE4\xBD\xA0\xE5\xA5\xBD", "a| b|  |\n| |12| |\xE4\xBD\xA0\xE5\xA5\xBD|" },
        { "deepseek-coder", "x = 12;\n", "x| = |1|2|;|\n|" },
        { "falcon", "a+b=1234!", "a|+|b|=|123|4|!|" },
        { "default", "a+b=1234!", "a|+|b|=|123|4|!|" },
        { "bloom", "a b, c", "a| b|,| c|" },
        { "jais-2", "a       b", "a|    |  | b|" },
        { "jais-2", "a   \n  b", "a|   \n| | b|" },
        { "chameleon", "IMGIMGABZ<sentinel:12>  x", "IMGIMGABZ|<|sentinel|:|1|2|>|  |x|" },
        { "exaone-moe", "one two, 3", "one two|,| |3|" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fo_err e;
        struct fo_pre *p = NULL;
        struct fo_buf out;
        unsigned flags;
        fo_buf_init(&out, 4096);
        if (fo_pre_open(cases[i].name, strlen(cases[i].name), &p, &flags, &e)) fail_msg("%s", e.msg);
        assert_int_equal(fo_pre_split(p, cases[i].text, strlen(cases[i].text), add_word, &out, NULL), 0);
        if (strcmp(fo_buf_str(&out), cases[i].words)) fail_msg("%s: '%s' gives '%s'", cases[i].name, cases[i].text, fo_buf_str(&out));
        fo_buf_done(&out);
        fo_pre_free(p);
    }
}

struct cover {
    const char *at;
    size_t words;
};

static int expect_next(void *ctx, const char *s, size_t n) {
    struct cover *c = ctx;
    if (s != c->at || !n) return 1;
    c->at += n;
    c->words++;
    return 0;
}

/* Whatever the text, its words follow each other without gaps, and no rule looks at it more often than its passes and a look
 * ahead need: a rule that reads far and gives up would show here. */
static void reads_hostile_text_in_linear_time_under_every_rule(void **state) {
    (void)state;
    static const char *const parts[] = { "a",  "A",  "aA", " ", "\n", " \n", "  \n", "\t ", "1", "1a", "'", "'s", "\xCC\x81", "a\xCC\x81", "\xE4\xBD\xA0",
                                         "\xEF\xBC\x8C", "!", "!a", " !", "a ", "\xFF", "\xE4\xBD", "I", "IMG", "<sentinel:1", "x'l", "\xF0\x9F\x98\x80", "_ ", "\r" };
    enum { N = 6000, RANDOM = 30 };
    char *text = malloc(N);
    assert_non_null(text);
    struct fo_rng rng;
    fo_rng_seed(&rng, 7);
    size_t n_parts = sizeof parts / sizeof parts[0];
    for (size_t rule = 0; fo_pre_name(rule); rule++) {
        struct fo_err e;
        struct fo_pre *p = NULL;
        unsigned flags;
        if (fo_pre_open(fo_pre_name(rule), strlen(fo_pre_name(rule)), &p, &flags, &e)) fail_msg("%s", e.msg);
        for (size_t k = 0; k < 2 * n_parts + RANDOM; k++) {
            size_t n = 0, read;
            while (n < N - 16) {
                const char *s = parts[k < n_parts ? k : k < 2 * n_parts ? k - n_parts : fo_rng_u64(&rng) % n_parts];
                size_t len = strlen(s);
                memcpy(text + n, s, len);
                n += len;
            }
            if (k >= n_parts) text[n++] = 'x'; /* a long run that ends otherwise */
            struct cover c = { text, 0 };
            if (fo_pre_split(p, text, n, expect_next, &c, &read) || c.at != text + n) fail_msg("%s: gap at %zd", fo_pre_name(rule), c.at - text);
            if (read > 16 * n) fail_msg("%s, text %zu: looked at %zu bytes of %zu", fo_pre_name(rule), k, read, n);
        }
        fo_pre_free(p);
    }
    free(text);
}

static int stop_at_second(void *ctx, const char *s, size_t n) {
    (void)s, (void)n;
    return ++*(int *)ctx == 2 ? 42 : 0;
}

static void stops_when_the_caller_says_so(void **state) {
    (void)state;
    struct fo_err e;
    struct fo_pre *p = NULL;
    unsigned flags;
    int n = 0;
    assert_int_equal(fo_pre_open("smollm", 6, &p, &flags, &e), 0);
    assert_int_equal(fo_pre_split(p, "a b c 1 2 3", 11, stop_at_second, &n, NULL), 42);
    assert_int_equal(n, 2);
    fo_pre_free(p);
}

static void refuses_a_rule_it_does_not_know_by_name(void **state) {
    (void)state;
    struct fo_err e;
    struct fo_pre *p = NULL;
    unsigned flags;
    assert_int_equal(fo_pre_open("no-such-rule", 12, &p, &flags, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "no-such-rule"));
    assert_int_equal(fo_pre_open("smollm2", 7, &p, &flags, &e), FO_EUNSUPPORTED);
    assert_int_equal(fo_pre_open("smol", 4, &p, &flags, &e), FO_EUNSUPPORTED);
    assert_null(p);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_as_a_backtracking_matcher_would),
        cmocka_unit_test(refuses_expressions_outside_its_syntax),
        cmocka_unit_test(survives_running_out_of_memory),
        cmocka_unit_test(cuts_text_as_each_rule_says),
        cmocka_unit_test(reads_hostile_text_in_linear_time_under_every_rule),
        cmocka_unit_test(stops_when_the_caller_says_so),
        cmocka_unit_test(refuses_a_rule_it_does_not_know_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
