/* Text to nodes: places, the caps, and that time and memory stay small whatever the text holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "config/manifest.h"
#include "config/report.h"
#include "config/text.h"
#include "config/yaml.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"

struct world {
    struct fo_region region;
    struct cf_report rep;
    struct fo_err e;
    struct cf_node *root;
    bool whole;
    int rc;
};

static void read_text(struct world *w, const char *text, size_t len) {
    *w = (struct world){ 0 };
    fo_region_init(&w->region, 16 << 20);
    assert_int_equal(cf_report_init(&w->rep, &w->e), FO_OK);
    w->rc = cf_yaml_read(text, len, NULL, &w->region, &w->rep, &w->root, &w->whole, &w->e);
}

static void done(struct world *w) {
    cf_report_done(&w->rep);
    fo_region_done(&w->region);
}

static void is_scalar(const struct cf_node *n, const char *text, bool plain, int line, int col, int width) {
    assert_non_null(n);
    assert_int_equal(n->kind, CF_NODE_SCALAR);
    assert_string_equal(n->text, text);
    assert_int_equal(n->len, strlen(text));
    assert_int_equal(n->plain, plain);
    assert_int_equal(n->line, line);
    assert_int_equal(n->col, col);
    assert_int_equal(n->width, width);
}

static void every_node_knows_its_place(void **state) {
    (void)state;
    static const char text[] = "\xEF\xBB\xBF"
                               "a: 1\r\n"
                               "'b': [ \"x\\ty\", [ ], {} ]\n"
                               "\xC3\xA9: \xE6\x97\xA5\xE6\x9C\xAC  # two\n"
                               "c:\n"
                               "  - d\n";
    struct world w;
    read_text(&w, text, sizeof text - 1);
    assert_int_equal(w.rc, FO_OK);
    assert_true(w.whole);
    assert_int_equal(w.rep.n, 0);
    assert_int_equal(w.root->kind, CF_NODE_MAP);
    assert_int_equal(w.root->n, 4);
    const struct cf_node *a = w.root->first, *b = a->next, *e = b->next, *c = e->next;
    is_scalar(a->key, "a", true, 1, 1, 1);
    is_scalar(a, "1", true, 1, 4, 1);
    is_scalar(b->key, "b", false, 2, 1, 3);
    assert_int_equal(b->kind, CF_NODE_LIST);
    assert_int_equal(b->n, 3);
    assert_int_equal(b->col, 6);
    is_scalar(b->first, "x\ty", false, 2, 8, 6);
    assert_int_equal(b->first->next->kind, CF_NODE_LIST);
    assert_int_equal(b->first->next->next->kind, CF_NODE_MAP);
    is_scalar(e->key, "\xC3\xA9", true, 3, 1, 1);
    is_scalar(e, "\xE6\x97\xA5\xE6\x9C\xAC", true, 3, 4, 2);
    is_scalar(c->first, "d", true, 5, 5, 1);
    assert_ptr_equal(cf_node_find(w.root, "c"), c);
    assert_null(cf_node_find(w.root, "d"));
    assert_null(cf_node_find(c, "d"));
    assert_null(cf_node_find(NULL, "d"));
    done(&w);
}

static void what_stands_before_a_syntax_error_is_kept(void **state) {
    (void)state;
    static const char text[] = "a: 1\nb: [ 2\nc: 3\n";
    struct world w;
    read_text(&w, text, sizeof text - 1);
    assert_int_equal(w.rc, FO_OK);
    assert_false(w.whole);
    assert_int_equal(w.rep.n, 1);
    is_scalar(cf_node_find(w.root, "a"), "1", true, 1, 4, 1);
    done(&w);
}

/* `text` repeated up to len bytes, between head and tail. */
static char *filled(const char *head, const char *unit, const char *tail, size_t len) {
    char *s = malloc(len + strlen(head) + strlen(tail) + strlen(unit) + 1);
    assert_non_null(s);
    size_t n = 0;
    n += (size_t)sprintf(s, "%s", head);
    while (n < len - strlen(tail) - strlen(unit)) {
        memcpy(s + n, unit, strlen(unit));
        n += strlen(unit);
    }
    memcpy(s + n, tail, strlen(tail) + 1);
    return s;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CPU seconds to parse and to format all that is said. */
static double cost(const char *text, size_t len, int *ret_code) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    double from = seconds();
    *ret_code = cf_manifest_parse(text, len, &m, &rep, &e);
    for (size_t i = 0; i < rep.n; i++) free(cf_finding_format(&rep.findings[i], "f", text, len));
    double took = seconds() - from;
    cf_manifest_free(m);
    cf_report_done(&rep);
    return took;
}

static void deep_nesting_is_refused_at_once(void **state) {
    (void)state;
    static const char *const units[] = { "[", "{", "- ", "{a: ", "? ", "[{" };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char *s = filled("", units[i], "", 200000);
        struct world w;
        double from = seconds();
        read_text(&w, s, strlen(s));
        if (seconds() - from > 1) fail_msg("'%s' took %.1f s", units[i], seconds() - from);
        assert_int_equal(w.rc, FO_ELIMIT);
        assert_int_equal(w.rep.n > 0, 1);
        assert_int_equal(w.e.line, 1);
        done(&w);
        free(s);
    }
}

static void sixteen_levels_are_read_and_seventeen_are_not(void **state) {
    (void)state;
    struct world w;
    char text[64];
    for (int n = 15; n <= 18; n++) {
        int len = snprintf(text, sizeof text, "%.*s%.*s", n, "[[[[[[[[[[[[[[[[[[[[", n, "]]]]]]]]]]]]]]]]]]]]");
        read_text(&w, text, (size_t)len);
        assert_int_equal(w.rc, n <= CF_MAX_DEPTH ? FO_OK : FO_ELIMIT);
        done(&w);
    }
}

static void a_megabyte_is_read_and_a_byte_more_is_not(void **state) {
    (void)state;
    struct world w;
    char *s = filled("version: 1\n", "# comment\n", "", CF_MAX_TEXT_BYTES);
    size_t len = strlen(s);
    while (len < CF_MAX_TEXT_BYTES) s[len++] = ' ';
    read_text(&w, s, len);
    assert_int_equal(w.rc, FO_OK);
    done(&w);
    s[len++] = ' ';
    read_text(&w, s, len);
    assert_int_equal(w.rc, FO_ELIMIT);
    assert_int_equal(w.rep.n, 1);
    assert_int_equal(w.e.need, CF_MAX_TEXT_BYTES + 1);
    done(&w);
    free(s);
}

static void too_many_values_are_refused_with_a_place(void **state) {
    (void)state;
    struct world w;
    char *s = filled("", "- a\n", "", 400000);
    read_text(&w, s, strlen(s));
    assert_int_equal(w.rc, FO_ELIMIT);
    assert_int_equal(w.e.line, CF_MAX_NODES);
    done(&w);
    free(s);
}

static void twenty_thousand_keys_take_linear_time(void **state) {
    (void)state;
    struct fo_buf b;
    int rc;
    double t[2];
    for (int round = 0; round < 2; round++) {
        int n = round ? 20000 : 5000;
        fo_buf_init(&b, 1 << 20);
        fo_buf_puts(&b, "version: 1\n");
        for (int i = 0; i < n; i++) fo_buf_printf(&b, "key_%d: %d\n", i, i);
        t[round] = 1e9;
        for (int i = 0; i < 3; i++) { /* the least of three: others use the machine too */
            double took = cost(b.data, b.len, &rc);
            assert_int_equal(rc, FO_EFORMAT);
            if (took < t[round]) t[round] = took;
        }
        fo_buf_done(&b);
    }
    assert_true(t[1] < 1);
    if (t[1] > 0.02 && t[1] > 12 * t[0]) fail_msg("5,000 keys: %.4f s, 20,000 keys: %.4f s", t[0], t[1]);
}

static void a_thousand_models_with_aliases_take_linear_time(void **state) {
    (void)state;
    struct fo_buf b;
    int rc;
    fo_buf_init(&b, 1 << 20);
    fo_buf_puts(&b, "version: 1\nmodels:\n");
    for (int i = 0; i < 1000; i++) {
        fo_buf_printf(&b, "- { name: m%d, source: { path: p }, aliases: [ a%d", i, i * 20);
        for (int j = 1; j < 20; j++) fo_buf_printf(&b, ", a%d", i * 20 + j);
        fo_buf_puts(&b, " ] }\n");
    }
    double t = cost(b.data, b.len, &rc);
    assert_int_equal(rc, FO_OK);
    assert_true(t < 1);
    fo_buf_done(&b);
}

static void no_megabyte_takes_longer_than_a_few_seconds(void **state) {
    (void)state;
    static const char *const shapes[][3] = {
        { "version: 1\nmodels: [ ", "{ctx_kap: 1}, ", "]" },
        { "a: [ ", "b, ", "]" },
        { "a: { ", "b: 1, ", "}" },
        { "a: \"", "x", "\"" },
        { "a: \"", "\\t", "\"" },
        { "a: |\n", " x\n", "" },
        { "a: >\n", " x\n\n", "" },
        { "a: '", "\n\n", "'" },
        { "", "a: b\n", "" },
        { "", "\t", "" },
        { "", "\n", "" },
        { "", "- ", "" },
        { "", "&a ", "" },
        { "a: [ ", "*a, ", "]" },
        { "", "? a\n", "" },
        { "", "--- a\n", "" },
        { "a: ", "x ", "" },
        { "", "\xFF", "" },
        { "", "\xE2\x80\xA8", "" },
        { "", "%TAG ! a\n", "" },
        { "a: [ ", "!a b, ", "]" },
        { "a: [", "a\n: ", "]" },
        { "{", "\"a\":1,", "}" },
        { "a: [ ", "[],", "]" },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char *s = filled(shapes[i][0], shapes[i][1], shapes[i][2], CF_MAX_TEXT_BYTES);
        int rc;
        double t = cost(s, strlen(s), &rc);
        if (getenv("VERBOSE")) print_message("%-24s %-12s %d %.3f s\n", shapes[i][0], shapes[i][1], rc, t);
        if (t > 5) fail_msg("'%s%s' took %.1f s", shapes[i][0], shapes[i][1], t);
        free(s);
    }
}

/* --- characters ------------------------------------------------------------------------------------------------------------- */
static void tells_utf_8_from_what_is_not(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t n, want;
        uint32_t c;
    } rows[] = {
        { "a", 1, 1, 'a' },
        { "", 1, 1, 0 },
        { "\xC2\x80", 2, 2, 0x80 },
        { "\xDF\xBF", 2, 2, 0x7FF },
        { "\xE0\xA0\x80", 3, 3, 0x800 },
        { "\xED\x9F\xBF", 3, 3, 0xD7FF },
        { "\xF0\x90\x80\x80", 4, 4, 0x10000 },
        { "\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF },
        { "\x80", 1, 0, 0 },
        { "\xC0\x80", 2, 0, 0 },
        { "\xC1\xBF", 2, 0, 0 },
        { "\xE0\x9F\xBF", 3, 0, 0 },
        { "\xED\xA0\x80", 3, 0, 0 },
        { "\xF0\x8F\xBF\xBF", 4, 0, 0 },
        { "\xF4\x90\x80\x80", 4, 0, 0 },
        { "\xF5\x80\x80\x80", 4, 0, 0 },
        { "\xE2\x82\xAC", 2, 0, 0 },
        { "\xC3\x28", 2, 0, 0 },
        { "\xE2\x28\xA1", 3, 0, 0 },
        { "a", 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t c = 0;
        if (cf_utf8(rows[i].s, rows[i].n, &c) != rows[i].want || c != rows[i].c) fail_msg("row %zu", i);
    }
}

static void keeps_the_first_hundred_findings_in_order(void **state) {
    (void)state;
    struct cf_report r;
    struct fo_err e;
    assert_int_equal(cf_report_init(&r, &e), FO_OK);
    for (int i = 300; i > 0; i--) cf_report_add(&r, CF_TYPE, i, i % 7 + 1, 1, "finding %d", i);
    cf_report_add(&r, CF_RANGE, 1, 2, 1, "same place, later");
    cf_report_sort(&r);
    assert_int_equal(r.n, CF_MAX_FINDINGS);
    assert_true(r.cut);
    assert_string_equal(r.findings[0].text, "finding 1");
    assert_string_equal(r.findings[1].text, "same place, later");
    for (int i = 2; i < CF_MAX_FINDINGS; i++) {
        char want[32];
        snprintf(want, sizeof want, "finding %d", i);
        assert_int_equal(r.findings[i].line, i);
        assert_string_equal(r.findings[i].text, want);
    }
    cf_report_done(&r);
    cf_report_done(&r);
    cf_report_done(NULL);
}

static void a_place_outside_the_text_is_drawn_without_source(void **state) {
    (void)state;
    struct cf_finding f = { .class = CF_TYPE, .line = 9, .col = 9, .width = 1, .text = (char[]){ "t" } };
    char *s = cf_finding_format(&f, "f", "a\nb\n", 4);
    assert_string_equal(s, "f:9:9: error: t\n");
    free(s);
    f.line = 3;
    s = cf_finding_format(&f, "f", "a\nb\n", 4);
    assert_string_equal(s, "f:3:9: error: t\n    3 | \n      | ^\n");
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_node_knows_its_place),
        cmocka_unit_test(what_stands_before_a_syntax_error_is_kept),
        cmocka_unit_test(deep_nesting_is_refused_at_once),
        cmocka_unit_test(sixteen_levels_are_read_and_seventeen_are_not),
        cmocka_unit_test(a_megabyte_is_read_and_a_byte_more_is_not),
        cmocka_unit_test(too_many_values_are_refused_with_a_place),
        cmocka_unit_test(twenty_thousand_keys_take_linear_time),
        cmocka_unit_test(a_thousand_models_with_aliases_take_linear_time),
        cmocka_unit_test(no_megabyte_takes_longer_than_a_few_seconds),
        cmocka_unit_test(tells_utf_8_from_what_is_not),
        cmocka_unit_test(keeps_the_first_hundred_findings_in_order),
        cmocka_unit_test(a_place_outside_the_text_is_drawn_without_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
