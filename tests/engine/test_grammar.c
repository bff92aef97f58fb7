/* Grammars: which texts each notation lets through, read byte by byte; what is refused, with its place; hostile ones; and that what is let
 * through token by token is the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/regex.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"
#include "tests/support/clock.h"

enum { GBNF, REGEX };

static int compile(int kind, const char *text, size_t len, struct pn_program **ret, struct fo_err *e) {
    struct pn_ir *ir;
    if (pn_ir_new(&ir, e)) return e->code;
    int rc = kind == REGEX ? pn_regex_build(ir, text, len, e) : pn_gbnf_build(ir, text, len, e);
    if (rc == 0) rc = pn_program_new(ir, ret, e);
    pn_ir_free(ir);
    return rc;
}

static struct pn_program *program(int kind, const char *text) {
    struct pn_program *p = NULL;
    struct fo_err e = { 0 };
    if (compile(kind, text, strlen(text), &p, &e)) fail_msg("%s: %d:%d: %s", text, e.line, e.col, e.msg);
    return p;
}

/* -1 = dead on the way, 0 = a beginning, 1 = a whole text. */
static int runs(const struct pn_program *p, const char *text, size_t n) {
    struct pn_pda *a;
    struct fo_err e = { 0 };
    assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 18, 1 << 24, &a, &e), 0);
    uint32_t s = pn_pda_start(a, &e);
    for (size_t i = 0; i < n && s != PN_STATE_NONE && s != PN_STATE_DEAD; i++) {
        if (pn_pda_full(a)) assert_int_equal(pn_pda_keep(a, &s, 1, &e), 0);
        s = pn_pda_step(a, s, (uint8_t)text[i], &e);
    }
    if (s == PN_STATE_NONE) fail_msg("%.60s: %s", text, e.msg);
    int rc = s == PN_STATE_DEAD ? -1 : pn_pda_state(a, s)->may_end;
    pn_pda_free(a);
    return rc;
}

/* Words are separated by \x01; "" = none. */
struct language {
    int kind;
    const char *grammar, *yes, *no;
};

static void hold(const struct language *l) {
    struct pn_program *p = program(l->kind, l->grammar);
    for (int side = 0; side < 2; side++)
        for (const char *w = side ? l->no : l->yes; w;) {
            size_t n = strcspn(w, "\x01");
            int got = runs(p, w, n);
            if ((got == 1) != (side == 0)) fail_msg("%s\n%s: '%.*s'", l->grammar, side ? "lets through" : "refuses", (int)n, w);
            w = w[n] ? w + n + 1 : NULL;
        }
    pn_program_free(p);
}

#define W "\x01"

static void gbnf_lets_through_its_language_and_nothing_else(void **state) {
    (void)state;
    static const struct language table[] = {
        { GBNF, "root ::= \"ab\"", "ab", "" W "a" W "abc" W "b" },
        { GBNF, "root ::= \"a\" | \"ab\" | \"abc\"", "a" W "ab" W "abc", "" W "b" W "abcd" W "ac" },
        { GBNF, "root ::= \"a\"*", "" W "a" W "aaaaaaaaaaaa", "b" W "ab" },
        { GBNF, "root ::= \"ab\"+ \"c\"?", "ab" W "ababc" W "abab", "" W "c" W "abcc" W "aba" },
        { GBNF, "root ::= [a-c]{2}", "ab" W "cc", "a" W "abc" W "ad" },
        { GBNF, "root ::= [a-c]{2,}", "ab" W "cc" W "aaaaa", "a" W "abd" },
        { GBNF, "root ::= [a-c]{2,4} \"c\"", "abc" W "ccc" W "ccccc" W "abcac", "ab" W "cc" W "cccccc" W "ababa" },
        { GBNF, "root ::= ( \"x\"{2,3} \",\" ){1,2}", "xx," W "xxx,xx," W "xx,xxx,", "x," W "xx" W "xx,xx,xx," W "xxxx," },
        { GBNF, "root ::= ( \"x\"{0,3} ){2,3}", "" W "x" W "xxxxxxxxx", "xxxxxxxxxx" W "y" },
        { GBNF, "root ::= ( \"a\"? \"b\"? ){3}", "" W "a" W "ab" W "ba" W "ababab" W "bbb", "abababa" W "bbbb" W "c" },
        { GBNF, "root ::= ( \"a\"* )* \"b\"", "b" W "ab" W "aaaab", "" W "ba" },
        { GBNF, "root ::= ( ( ( \"\" ){3} ){4,}  | \"z\" )+", "" W "z" W "zzz", "y" },
        { GBNF, "root ::= \"(\" root \")\" | \"\"", "" W "()" W "(((())))", "(" W ")" W "(()" W "())" W "()()" },
        { GBNF, "root ::= s\ns ::= \"(\" s \")\" s | \"\"", "" W "()()" W "(()())()", "(" W ")(" W "(()" },
        { GBNF, "root ::= \"a\" root \"a\" | \"b\" root \"b\" | [ab]?", "" W "a" W "aba" W "abba" W "babab", "ab" W "aab" W "abab" },
        { GBNF, "root ::= e\ne ::= t ( [-+] t )*\nt ::= f ( [*/] f )*\nf ::= [0-9]+ | \"(\" e \")\"", "1" W "1+2*(3-4)/5" W "((7))",
          "" W "1+" W "(1" W "1)" W "+1" },
        { GBNF, "root ::= \"a\" root | \"b\"", "b" W "aaaaaaaaaaaaaaaaab", "" W "a" W "bb" },
        { GBNF, "root ::= x{3} # three\n# more\nx ::= \"1\" |\n  \"2\"\n  | \"3\"\n", "123" W "333", "12" W "1234" W "4" },
        { GBNF, "root ::=\n  \"a\" (\n \"b\"\n | \"c\" # or\n )\n", "ab" W "ac", "a" W "abc" },
        { GBNF, "root ::= [^a-z\\]\\n]", "A" W "\xc3\xa9" W "\xe2\x82\xac" W "\xf0\x9f\x98\x80" W "-", "a" W "]" W "\n" W "\xc3" W "\xff" W "AA" },
        { GBNF, "root ::= [-a] [a-] [\\x41-\\x43] [\\u20AC\\U0001F600]", "-aA\xe2\x82\xac" W "a-C\xf0\x9f\x98\x80", "baA\xe2\x82\xac" W "-aD\xe2\x82\xac" W "-aA\xe2\x82\xad" },
        { GBNF, "root ::= \"\\xe9\\u00e9\\\"\\\\\\t\\[\"", "\xc3\xa9\xc3\xa9\"\\\t[", "\xe9\xe9\"\\\t[" },
        { GBNF, "root ::= .", "a" W "\n" W "\xdf\xbf" W "\xe0\xa0\x80" W "\xed\x9f\xbf" W "\xee\x80\x80" W "\xef\xbf\xbf" W "\xf0\x90\x80\x80" W "\xf4\x8f\xbf\xbf",
          "" W "ab" W "\x80" W "\xc0\x80" W "\xc1\xbf" W "\xc3" W "\xe0\x80\x80" W "\xe0\x9f\xbf" W "\xed\xa0\x80" W "\xed\xbf\xbf" W "\xf0\x8f\xbf\xbf" W
          "\xf4\x90\x80\x80" W "\xf5\x80\x80\x80" W "\xe2\x82" W "\xe2\x82\x80\x80" },
        { GBNF, "root ::= [\\u07ff-\\u0801] [\\ud7ff-\\ue001] [\\uffff-\\U00010001]", "\xdf\xbf\xed\x9f\xbf\xef\xbf\xbf" W "\xe0\xa0\x81\xee\x80\x81\xf0\x90\x80\x81",
          "\xdf\xbe\xed\x9f\xbf\xef\xbf\xbf" W "\xe0\xa0\x82\xed\x9f\xbf\xef\xbf\xbf" W "\xdf\xbf\xed\x9f\xbe\xef\xbf\xbf" W "\xdf\xbf\xed\x9f\xbf\xf0\x90\x80\x82" },
        { GBNF, "root ::= a_b-C1 a_b-C1\na_b-C1 ::= \"k\"", "kk", "k" W "kkk" },
        { GBNF, "root ::= \"a\" | dead\ndead ::= \"b\" dead", "a", "b" W "ba" },
        { GBNF, "root ::= a b c\na ::= \"a\"?\nb ::= a \"b\"?\nc ::= b \"c\"?", "" W "c" W "aabac" W "aaa" W "b", "cb" W "aaaa" W "ca" },
        { GBNF, "root ::= ( a | b ){2}\na ::= \"\" | \"x\"\nb ::= a a", "" W "x" W "xx" W "xxx" W "xxxx", "xxxxx" W "y" },
        { GBNF, "root ::= item{2,3}\nitem ::= [a-z]{1,2} \";\" | \"(\" item{1,2} \")\"", "a;bc;" W "a;(b;)" W "(a;b;)((c;))d;", "a;" W "abc;d;" W "()" W "a;b;c;d;" W "(a;b;c;)d;" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) hold(&table[i]);
}

static void expressions_let_through_their_language_and_nothing_else(void **state) {
    (void)state;
    static const struct language table[] = {
        { REGEX, "abc", "abc", "ab" W "abcd" W "xabc" },
        { REGEX, "^abc$", "abc", "ab" W "abcd" },
        { REGEX, "^(a|b)$|^c$", "a" W "b" W "c", "" W "ab" W "^a" },
        { REGEX, "(^a|b)c", "ac" W "bc", "c" W "abc" },
        { REGEX, "a|bc|", "" W "a" W "bc", "b" W "abc" },
        { REGEX, "(?:ab)+?c*?", "ab" W "ababcc", "" W "c" W "abac" },
        { REGEX, "(?P<n>a)(?<m>b)", "ab", "a" W "nb" },
        { REGEX, "a{2}b{1,}c{,2}", "aab" W "aabbbcc", "ab" W "aa" W "aabccc" },
        { REGEX, "a{x}{", "a{x}{", "a" W "a{x}" },
        { REGEX, "\\d{3}-\\w+\\s", "123-a_9Z\t" W "000-x ", "12-a " W "123- " W "123-a" W "\xd9\xa3" "23-a " },
        { REGEX, "[\\d\\-a-c^]+", "1-a^" W "9", "d" W "" },
        { REGEX, "[^\\d\\s]", "a" W "\xc3\xa9", "1" W " " W "ab" },
        { REGEX, "\\D\\W\\S", "a!b" W "\xc3\xa9\xe2\x82\xac.", "1!b" W "aab" W "a! " },
        { REGEX, ".", "a" W "\xf0\x9f\x98\x80", "\n" W "" W "ab" },
        { REGEX, "\\u00e9\\u{1F600}\\x41\\.\\/\\0?", "\xc3\xa9\xf0\x9f\x98\x80" "A./", "\xc3\xa9" },
        { REGEX, "(a*)*b", "b" W "aaab", "" W "a" },
        { REGEX, "(a|a|aa)+", "a" W "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "" W "b" },
        { REGEX, "(a?){30}a{30}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa" },
        { REGEX, "(x{2,3}){2,3}", "xxxx" W "xxxxxxxxx" W "xxxxx", "xxx" W "xxxxxxxxxx" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) hold(&table[i]);
}

/* tests/gen/regex_cases.py says what Python's re makes of random expressions. */
static void expressions_mean_what_pythons_re_means(void **state) {
    (void)state;
    char line[4096];
    FILE *f = fopen("tests/data/regex.txt", "r");
    int n_lines = 0, n_texts = 0;
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n_lines++) {
        char *field[3], *save = NULL, *at = line;
        for (int i = 0; i < 3; i++) {
            field[i] = at;
            at += strcspn(at, "\t\n");
            *at++ = '\0';
        }
        struct pn_ir *ir;
        struct pn_program *p = NULL;
        struct fo_err e = { 0 };
        assert_int_equal(pn_ir_new(&ir, &e), 0);
        if (pn_regex_build(ir, field[0], strlen(field[0]), &e)) fail_msg("%s: %s", field[0], e.msg);
        if (pn_program_new(ir, &p, &e)) fail_msg("%s: %s", field[0], e.msg);
        pn_ir_free(ir);
        for (int side = 1; side < 3; side++)
            for (char *w = strtok_r(field[side], " ", &save); w; w = strtok_r(NULL, " ", &save), n_texts++) {
                if (strcmp(w, "~") == 0) w[0] = '\0';
                if ((runs(p, w, strlen(w)) == 1) != (side == 1)) fail_msg("%s: '%s' %s", field[0], w, side == 1 ? "is refused" : "is let through");
            }
        pn_program_free(p);
    }
    fclose(f);
    assert_true(n_lines == 1500 && n_texts > 10000);
}

static void a_count_of_a_million_is_exact_and_costs_what_three_costs(void **state) {
    (void)state;
    struct pn_program *small = program(GBNF, "root ::= [ab]{2,3} \"c\""), *big = program(GBNF, "root ::= [ab]{999999,1000000} \"c\"");
    assert_int_equal(small->n_ops, big->n_ops);
    assert_int_equal(small->bytes, big->bytes);
    enum { N = 1000000 };
    char *text = malloc(N + 2);
    memset(text, 'a', N + 2);
    text[N - 1] = 'c';
    assert_int_equal(runs(big, text, N), 1); /* 999,999 */
    text[N - 1] = 'a';
    text[N] = 'c';
    assert_int_equal(runs(big, text, N + 1), 1);
    text[N] = 'a';
    text[N + 1] = 'c';
    assert_int_equal(runs(big, text, N + 2), -1);
    text[N - 2] = 'c';
    assert_int_equal(runs(big, text, N - 1), -1);
    free(text);
    pn_program_free(small);
    pn_program_free(big);
    pn_program_free(program(GBNF, "root ::= \"a\"{2147483647} | \"b\"{7,2147483647}"));
}

static void what_nests_deeper_than_the_limit_is_not_of_the_language(void **state) {
    (void)state;
    struct pn_program *p = program(GBNF, "root ::= \"(\" root \")\" | \"x\"");
    char text[2 * PN_PDA_MAX_FRAMES + 4];
    for (int extra = 0; extra < 2; extra++) {
        size_t n = PN_PDA_MAX_FRAMES + (size_t)extra;
        memset(text, '(', n);
        text[n] = 'x';
        memset(text + n + 1, ')', n);
        assert_int_equal(runs(p, text, 2 * n + 1), extra ? -1 : 1);
    }
    pn_program_free(p);
}

static void what_does_not_parse_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        int kind;
        const char *text;
        int line, col;
        enum fo_code code;
        const char *says;
    } table[] = {
        { GBNF, "", 0, 0, FO_EINVAL, "no rule 'root'" },
        { GBNF, "a ::= \"b\"", 0, 0, FO_EINVAL, "no rule 'root'" },
        { GBNF, "root = \"b\"", 1, 6, FO_EINVAL, "::=" },
        { GBNF, "root ::= \"b", 1, 10, FO_EINVAL, "closing quote" },
        { GBNF, "root ::= \"a\"\nb ::= [a-\n", 2, 7, FO_EINVAL, "closing bracket" },
        { GBNF, "root ::= ( \"a\"", 1, 10, FO_EINVAL, "closing parenthesis" },
        { GBNF, "root ::= \"a\" )", 1, 14, FO_EINVAL, "without its group" },
        { GBNF, "root ::= *", 1, 10, FO_EINVAL, "neither" },
        { GBNF, "root ::= \"\\q\"", 1, 11, FO_EINVAL, "escape" },
        { GBNF, "root ::= \"\\x4\"", 1, 14, FO_EINVAL, "hexadecimal" },
        { GBNF, "root ::= \"\\ud800\"", 1, 13, FO_EINVAL, "U+D800" },
        { GBNF, "root ::= [z-a]", 1, 11, FO_EINVAL, "before its start" },
        { GBNF, "root ::= \"a\"{3,2}", 1, 13, FO_EINVAL, "at least 3" },
        { GBNF, "root ::= \"a\"{99999999999}", 1, 14, FO_ELIMIT, "count above" },
        { GBNF, "root ::= \"a\"{2", 1, 15, FO_EINVAL, "{m,n}" },
        { GBNF, "root ::= \"\xc3\xa9\"\nroot ::= \"b\"", 2, 1, FO_EINVAL, "'root' is defined twice" },
        { GBNF, "root ::= \"a\"\n  thing", 2, 8, FO_EINVAL, "::=" },
        { GBNF, "root ::= \"a\" thing", 1, 14, FO_EINVAL, "'thing' is not defined" },
        { GBNF, "root ::= \"a\"\nx ::= nowhere", 2, 7, FO_EINVAL, "'nowhere' is not defined" },
        { GBNF, "root ::= x\nx ::= x \"a\" | \"b\"", 1, 10, FO_EINVAL, "'x' begins with itself" },
        { GBNF, "root ::= x\nx ::= y\ny ::= \"\" z\nz ::= \"q\"? x", 1, 10, FO_EINVAL, "'x' begins with itself" },
        { GBNF, "root ::= root", 1, 1, FO_EINVAL, "'root' begins with itself" },
        { GBNF, "root ::= ( \"a\"? root )*", 1, 1, FO_EINVAL, "'root' begins with itself" },
        { GBNF, "root ::= \"a\" root", 1, 1, FO_EINVAL, "never comes to an end" },
        { GBNF, "root ::= [^\\x00-\\U0010FFFF]", 1, 1, FO_EINVAL, "never comes to an end" },
        { GBNF, "root ::= <think>", 1, 10, FO_EUNSUPPORTED, "angle brackets" },
        { GBNF, "root ::= \"\xff\"", 1, 11, FO_EFORMAT, "UTF-8" },
        { REGEX, "a(b", 1, 2, FO_EINVAL, "closing parenthesis" },
        { REGEX, "ab)", 1, 3, FO_EINVAL, "without its group" },
        { REGEX, "[ab", 1, 1, FO_EINVAL, "closing bracket" },
        { REGEX, "[]", 1, 1, FO_EINVAL, "empty class" },
        { REGEX, "[b-a]", 1, 2, FO_EINVAL, "before its start" },
        { REGEX, "[a-\\d]", 1, 2, FO_EINVAL, "kind" },
        { REGEX, "*a", 1, 1, FO_EINVAL, "nothing in front" },
        { REGEX, "a**", 1, 3, FO_EINVAL, "count behind a count" },
        { REGEX, "a++", 1, 3, FO_EUNSUPPORTED, "possessive" },
        { REGEX, "a{3,1}", 1, 2, FO_EINVAL, "at least 3" },
        { REGEX, "a\\", 1, 2, FO_EINVAL, "backslash" },
        { REGEX, "x(?=a)", 1, 2, FO_EUNSUPPORTED, "look-ahead" },
        { REGEX, "x(?!a)", 1, 2, FO_EUNSUPPORTED, "look-ahead" },
        { REGEX, "(?<=a)", 1, 1, FO_EUNSUPPORTED, "look-behind" },
        { REGEX, "(?<!a)", 1, 1, FO_EUNSUPPORTED, "look-behind" },
        { REGEX, "(a)\\1", 1, 4, FO_EUNSUPPORTED, "back-reference" },
        { REGEX, "(?P=n)", 1, 1, FO_EUNSUPPORTED, "back-reference" },
        { REGEX, "a\\b", 1, 2, FO_EUNSUPPORTED, "word boundary" },
        { REGEX, "\\p{L}", 1, 1, FO_EUNSUPPORTED, "Unicode" },
        { REGEX, "(?i)a", 1, 1, FO_EUNSUPPORTED, "setting" },
        { REGEX, "(?>a)", 1, 1, FO_EUNSUPPORTED, "atomic" },
        { REGEX, "a^b", 1, 2, FO_EUNSUPPORTED, "alternative begins" },
        { REGEX, "a$b", 1, 3, FO_EUNSUPPORTED, "alternative ends" },
        { REGEX, "^*", 1, 2, FO_EINVAL, "count of ^" },
        { REGEX, "(^a)*", 1, 5, FO_EUNSUPPORTED, "^" },
        { REGEX, "\\q", 1, 1, FO_EINVAL, "escape" },
        { REGEX, "\\u{110000}", 1, 4, FO_EINVAL, "no character" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct pn_program *p = NULL;
        struct fo_err e = { 0 };
        int rc = compile(table[i].kind, table[i].text, strlen(table[i].text), &p, &e);
        if (rc != (int)table[i].code || e.line != table[i].line || e.col != table[i].col || !strstr(e.msg, table[i].says) || p)
            fail_msg("%s: %d, %d:%d: %s", table[i].text, rc, e.line, e.col, e.msg);
    }
}

static void hostile_grammars_end_soon(void **state) {
    (void)state;
    enum { N = 1 << 18 };
    char *text = malloc(N + 64);
    struct pn_program *p;
    struct fo_err e;
    for (int kind = 0; kind < 5; kind++) {
        size_t n = 0;
        p = NULL;
        if (kind == 0) { /* each rule is the next one twice: exponentially many texts, and stacks */
            n += (size_t)sprintf(text, "root ::= r0\n");
            for (int i = 0; i < 60; i++) n += (size_t)sprintf(text + n, "r%d ::= r%d \"x\"? | r%d \"y\"? \"z\"\n", i, i + 1, i + 1);
            n += (size_t)sprintf(text + n, "r60 ::= \"a\"");
        } else if (kind == 1) { /* rules in the worst order for a search of fixed points */
            n += (size_t)sprintf(text, "root ::= r0\n");
            for (int i = 0; i < 8000; i++) n += (size_t)sprintf(text + n, "r%d ::= r%d\n", i, i + 1);
            n += (size_t)sprintf(text + n, "r8000 ::= \"a\"");
        } else if (kind == 2) { /* counts in counts of what may be empty */
            n += (size_t)sprintf(text, "root ::= ");
            for (int i = 0; i < 90; i++) n += (size_t)sprintf(text + n, "(");
            n += (size_t)sprintf(text + n, "\"a\"?");
            for (int i = 0; i < 90; i++) n += (size_t)sprintf(text + n, "){0,1000000}");
        } else if (kind == 3) { /* many classes that cut the bytes differently */
            n += (size_t)sprintf(text, "root ::= ");
            for (int i = 0; i < 8000; i++) n += (size_t)sprintf(text + n, "[\\x%02x-\\x7f\\u%04x] ", i % 96 + 32, i + 256);
        } else {
            n += (size_t)sprintf(text, "root ::= ");
            for (int i = 0; i < 100000; i++) n += (size_t)sprintf(text + n, "(");
        }
        double from = test_cpu_ms();
        int rc = compile(GBNF, text, n, &p, &e);
        if (rc == 0) {
            struct pn_pda *a;
            assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 18, 1 << 24, &a, &e), 0);
            uint32_t s = pn_pda_start(a, &e);
            for (int i = 0; i < 50 && s != PN_STATE_NONE && s != PN_STATE_DEAD; i++) s = pn_pda_step(a, s, 'a', &e);
            if (s == PN_STATE_NONE) assert_int_equal(e.code, FO_ELIMIT);
            pn_pda_free(a);
        }
        pn_program_free(p);
        double ms = test_cpu_ms() - from;
        if (ms > 1000) fail_msg("kind %d took %.0f ms", kind, ms);
    }
    free(text);
}

static void runs_out_of_memory_cleanly(void **state) {
    (void)state;
    static const char gbnf[] = "root ::= ( a | \"(\" root \")\" ){1,5} [^x]\na ::= \"b\"? [\\u0100-\\u2000]{2,} # c\n", regex[] = "^(a|[^b\\d]){2,5}\\w$";
    for (int kind = 0; kind < 2; kind++)
        for (long n = 1;; n++) {
            struct pn_program *p = NULL;
            struct pn_pda *a = NULL;
            struct fo_err e = { 0 };
            test_fail_alloc(n);
            int rc = compile(kind, kind == REGEX ? regex : gbnf, kind == REGEX ? sizeof regex - 1 : sizeof gbnf - 1, &p, &e);
            if (rc == 0) rc = pn_pda_new(p, UINT32_MAX, 1 << 12, 1 << 24, &a, &e);
            uint32_t s = rc == 0 ? pn_pda_start(a, &e) : PN_STATE_NONE;
            for (int i = 0; i < 40 && s != PN_STATE_NONE && s != PN_STATE_DEAD; i++) {
                if (pn_pda_full(a) && pn_pda_keep(a, &s, 1, &e)) s = PN_STATE_NONE;
                if (s != PN_STATE_NONE) s = pn_pda_step(a, s, kind == REGEX ? 'a' : '(', &e);
            }
            bool failed = test_alloc_failed();
            pn_pda_free(a);
            pn_program_free(p);
            if (!failed) {
                assert_int_equal(rc, 0);
                break;
            }
            assert_true(s == PN_STATE_NONE);
            assert_int_equal(e.code, FO_ENOMEM);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gbnf_lets_through_its_language_and_nothing_else),
        cmocka_unit_test(expressions_let_through_their_language_and_nothing_else),
        cmocka_unit_test(expressions_mean_what_pythons_re_means),
        cmocka_unit_test(a_count_of_a_million_is_exact_and_costs_what_three_costs),
        cmocka_unit_test(what_nests_deeper_than_the_limit_is_not_of_the_language),
        cmocka_unit_test(what_does_not_parse_is_refused_with_its_place),
        cmocka_unit_test(hostile_grammars_end_soon),
        cmocka_unit_test(runs_out_of_memory_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
