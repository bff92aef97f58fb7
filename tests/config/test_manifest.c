/* The manifest as people write it: every case of tests/cases/manifest is a text and what is said about it (an empty .err: it is
 * accepted). UPDATE=1 rewrites the .err files for review. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/manifest.h"
#include "config/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"

#define CASES "tests/cases/manifest"

/* Parses `text` and appends what is said about it to *out. */
static int said(const char *file, const char *text, size_t len, struct fo_buf *out) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    int rc = cf_manifest_parse(text, len, &m, &rep, &e);
    if (rc == FO_OK) {
        assert_non_null(m);
        assert_int_equal(rep.n, 0);
    } else {
        assert_null(m);
        assert_true(rep.n > 0);
        char *s = cf_report_format(&rep, &(struct cf_text){ file, text, len });
        assert_non_null(s);
        fo_buf_puts(out, s);
        free(s);
    }
    cf_manifest_free(m);
    cf_report_done(&rep);
    return rc;
}

static int is_yaml(const struct dirent *d) {
    size_t n = strlen(d->d_name);
    return n > 5 && strcmp(d->d_name + n - 5, ".yaml") == 0;
}

static void says_what_each_case_expects(void **state) {
    (void)state;
    struct dirent **list;
    int n = scandir(CASES, &list, is_yaml, alphasort), n_bad = 0;
    bool update = getenv("UPDATE") != NULL;
    assert_true(n >= 60);
    for (int i = 0; i < n; i++) {
        char path[512], expected_path[512], *text, *expected = NULL;
        size_t len, expected_len = 0;
        struct fo_err e;
        snprintf(path, sizeof path, CASES "/%s", list[i]->d_name);
        snprintf(expected_path, sizeof expected_path, CASES "/%.*s.err", (int)strlen(list[i]->d_name) - 5, list[i]->d_name);
        assert_int_equal(fo_file_read(path, 4 << 20, &text, &len, &e), FO_OK);
        struct fo_buf out;
        fo_buf_init(&out, 1 << 20);
        said(list[i]->d_name, text, len, &out);
        assert_false(out.failed);
        if (update) {
            FILE *f = fopen(expected_path, "w");
            assert_non_null(f);
            fwrite(fo_buf_str(&out), 1, out.len, f);
            fclose(f);
        } else if (fo_file_read(expected_path, 4 << 20, &expected, &expected_len, &e) != FO_OK || strcmp(expected, fo_buf_str(&out)) != 0) {
            print_error("%s: expected\n%s\ngot\n%s\n", path, expected ? expected : e.msg, fo_buf_str(&out));
            n_bad++;
        }
        fo_buf_done(&out);
        free(expected);
        free(text);
        free(list[i]);
    }
    free(list);
    assert_int_equal(n_bad, 0);
}

/* pains.md 71: a typo must not be ignored, nor drop the whole file in silence. */
static void three_mistakes_are_three_messages(void **state) {
    (void)state;
    static const char text[] = "version: 1\nmodels:\n  - name: chat\n    source: { path: chat.gguf }\n    ctx_kap: 8192\n"
                               "    max_sessions: yes\n    max_concurrent: 1\n    max_concurrent: 2\n";
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    assert_int_equal(cf_manifest_parse(text, sizeof text - 1, &m, &rep, &e), FO_EFORMAT);
    assert_null(m);
    assert_int_equal(rep.n, 3);
    assert_int_equal(rep.findings[0].class, CF_UNKNOWN_KEY);
    assert_string_equal(rep.findings[0].text, "'ctx_kap': no such key in a model; did you mean 'ctx_cap'?");
    assert_int_equal(rep.findings[1].class, CF_TYPE);
    assert_int_equal(rep.findings[2].class, CF_DUPLICATE);
    assert_int_equal(e.code, FO_EFORMAT);
    assert_int_equal(e.line, 5);
    assert_int_equal(e.col, 5);
    assert_non_null(strstr(e.msg, "did you mean 'ctx_cap'? (and 2 more)"));
    char *s = cf_finding_format(&rep.findings[0], "models.yaml", text, sizeof text - 1);
    assert_string_equal(s, "models.yaml:5:5: error: 'ctx_kap': no such key in a model; did you mean 'ctx_cap'?\n"
                           "    5 |     ctx_kap: 8192\n"
                           "      |     ^~~~~~~\n");
    free(s);
    cf_report_done(&rep);
}

static void each_class_of_mistake_is_told_apart(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rc;
        enum cf_class class;
    } rows[] = {
        { "version: 1\nmodels: [", FO_EFORMAT, CF_SYNTAX },
        { "version: 1\n\xFF", FO_EFORMAT, CF_SYNTAX },
        { "[[[[[[[[[[[[[[[[[[", FO_ELIMIT, CF_SYNTAX },
        { "version: 1\nx9: 1", FO_EFORMAT, CF_UNKNOWN_KEY },
        { "version: 1\nversion: 1", FO_EFORMAT, CF_DUPLICATE },
        { "version: one", FO_EFORMAT, CF_TYPE },
        { "version: 2", FO_EFORMAT, CF_RANGE },
        { "", FO_EFORMAT, CF_MISSING },
        { "models: []", FO_EFORMAT, CF_MISSING },
        { "version: 1\nserver: { listen: [ \"0.0.0.0:80\" ] }", FO_EFORMAT, CF_CONFLICT },
        { "version: 1\ndies: [ { name: a, kind: cuda } ]", FO_EFORMAT, CF_NOT_YET },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cf_manifest *m = NULL;
        struct cf_report rep;
        struct fo_err e;
        assert_int_equal(cf_manifest_parse(rows[i].text, strlen(rows[i].text), &m, &rep, &e), rows[i].rc);
        assert_true(rep.n > 0);
        assert_int_equal(rep.findings[0].class, rows[i].class);
        cf_report_done(&rep);
    }
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    assert_int_equal(cf_manifest_parse(NULL, 0, &m, &rep, &e), FO_EFORMAT);
    cf_report_done(&rep);
}

/* Parses a text that must be right. */
static struct cf_manifest *accepted(const char *text) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    if (cf_manifest_parse(text, strlen(text), &m, &rep, &e) != FO_OK) fail_msg("%d:%d: %s", e.line, e.col, e.msg);
    cf_report_done(&rep);
    return m;
}

static void fills_in_the_defaults(void **state) {
    (void)state;
    struct cf_manifest *m = accepted("version: 1\nmodels: [ { name: m, source: { path: a.gguf } } ]");
    assert_int_equal(m->version, 1);
    assert_int_equal(m->server.n_listen, 1);
    assert_string_equal(m->server.listen[0], "127.0.0.1:8080");
    assert_false(m->server.insecure);
    assert_int_equal(m->server.limits.body_bytes, 32 << 20);
    assert_int_equal(m->server.limits.header_time_ms, 10000);
    assert_int_equal(m->server.limits.body_idle_ms, 30000);
    assert_int_equal(m->server.limits.write_idle_ms, 60000);
    assert_int_equal(m->server.limits.connections, 512);
    assert_int_equal(m->server.limits.connections_per_address, 64);
    assert_int_equal(m->server.drain_ms, 30000);
    assert_int_equal(m->host.ram_reserve_bytes, 1 << 30);
    assert_int_equal(m->host.threads, CF_AUTO);
    assert_int_equal(m->n_models, 1);
    const struct cf_model *a = &m->models[0];
    assert_string_equal(a->name, "m");
    assert_string_equal(a->source_path, "a.gguf");
    assert_int_equal(a->n_aliases, 0);
    assert_int_equal(a->ctx_cap, CF_AUTO);
    assert_int_equal(a->max_sessions, 4);
    assert_int_equal(a->max_concurrent, 2);
    assert_int_equal(a->queue_depth, 8);
    assert_int_equal(a->queue_timeout_ms, 120000);
    assert_null(a->chat_template);
    assert_false(a->sampling.has_temperature);
    assert_int_equal(a->line, 2);
    cf_manifest_free(m);
}

static void reads_every_honoured_key(void **state) {
    (void)state;
    struct cf_manifest *m = accepted("models:\n"
                                     "- name: \"a/b:c-1.0\"\n"
                                     "  aliases: [ x, 'y' ]\n"
                                     "  source:\n"
                                     "    path: 'dir with space/m.gguf'\n"
                                     "  ctx_cap: 4096\n"
                                     "  max_sessions: 9\n"
                                     "  max_concurrent: 7\n"
                                     "  queue: { depth: 0, timeout: 1.5s }\n"
                                     "  kv: { type: f16 }\n"
                                     "  state: loaded\n"
                                     "  memory: gated\n"
                                     "  chat_template: t.jinja\n"
                                     "  reasoning_budget: 512\n"
                                     "  sampling: { temperature: 0.7, top_p: 0.95, top_k: 40, min_p: 0.05, repeat_penalty: 1.1,\n"
                                     "              presence_penalty: -0.5, frequency_penalty: 2 }\n"
                                     "- { name: second, source: { path: b } }\n"
                                     "defaults: { max_sessions: 6, max_concurrent: 5, queue: { depth: 3 } }\n"
                                     "host: { ram_reserve: 512MiB, threads: 2 }\n"
                                     "server:\n"
                                     "  listen: [ \"0.0.0.0:0\", \"[::1]:65535\" ]\n"
                                     "  insecure: true\n"
                                     "  drain: 0s\n"
                                     "  limits: { body: 1MB, header_time: 1s, body_idle: 2s, write_idle: 3s, connections: 5,\n"
                                     "            connections_per_address: 4 }\n"
                                     "version: 1\n");
    const struct cf_model *a = &m->models[0], *b = &m->models[1];
    assert_int_equal(m->n_models, 2);
    assert_string_equal(a->name, "a/b:c-1.0");
    assert_int_equal(a->n_aliases, 2);
    assert_string_equal(a->aliases[0], "x");
    assert_string_equal(a->aliases[1], "y");
    assert_string_equal(a->source_path, "dir with space/m.gguf");
    assert_int_equal(a->ctx_cap, 4096);
    assert_int_equal(a->max_sessions, 9);
    assert_int_equal(a->max_concurrent, 7);
    assert_int_equal(a->queue_depth, 0);
    assert_int_equal(a->queue_timeout_ms, 1500);
    assert_string_equal(a->chat_template, "t.jinja");
    const struct cf_sampling *s = &a->sampling;
    assert_true(s->has_temperature && s->has_top_p && s->has_top_k && s->has_min_p && s->has_repeat_penalty && s->has_presence_penalty &&
                s->has_frequency_penalty && s->has_reasoning_budget);
    assert_int_equal(s->reasoning_budget, 512);
    assert_false(b->sampling.has_reasoning_budget);
    assert_true(s->temperature == 0.7 && s->top_p == 0.95 && s->top_k == 40 && s->min_p == 0.05 && s->repeat_penalty == 1.1 &&
                s->presence_penalty == -0.5 && s->frequency_penalty == 2);
    assert_int_equal(b->max_sessions, 6);
    assert_int_equal(b->max_concurrent, 5);
    assert_int_equal(b->queue_depth, 3);
    assert_int_equal(b->queue_timeout_ms, 120000);
    assert_false(b->sampling.has_top_k);
    assert_int_equal(m->host.ram_reserve_bytes, 512 << 20);
    assert_int_equal(m->host.threads, 2);
    assert_int_equal(m->server.n_listen, 2);
    assert_string_equal(m->server.listen[1], "[::1]:65535");
    assert_true(m->server.insecure);
    assert_int_equal(m->server.drain_ms, 0);
    assert_int_equal(m->server.limits.body_bytes, 1000000);
    assert_int_equal(m->server.limits.write_idle_ms, 3000);
    assert_int_equal(m->server.limits.connections_per_address, 4);
    cf_manifest_free(m);
}

static void an_unwritten_max_concurrent_follows_a_lower_max_sessions(void **state) {
    (void)state;
    struct cf_manifest *m = accepted("version: 1\nmodels: [ { name: m, source: { path: a }, max_sessions: 1 } ]");
    assert_int_equal(m->models[0].max_concurrent, 1);
    cf_manifest_free(m);
}

static void a_typed_value_survives_quoting(void **state) {
    (void)state;
    static const char *const texts[] = { "a b",
                                         "\"x\\y'",
                                         "yes",
                                         "010",
                                         "# no comment",
                                         "&a *b !c",
                                         "tab\there",
                                         "\xC2\x85\xE2\x80\xA8\xEF\xBB\xBF",
                                         "日本 \xF0\x9F\x98\x80",
                                         "\x7F\xC2\x9F",
                                         "a: b",
                                         "- x",
                                         "1.10" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct fo_buf b;
        fo_buf_init(&b, 1 << 12);
        fo_buf_puts(&b, "version: 1\nmodels: [ { name: m, source: { path: ");
        assert_true(cf_quote(texts[i], &b));
        fo_buf_puts(&b, " } } ]\n");
        bool control = strpbrk(texts[i], "\t\x7F") != NULL; /* a path may not hold one, and it must be the path reader who says so */
        if (control) {
            struct cf_manifest *none = NULL;
            struct cf_report rep;
            struct fo_err e;
            assert_int_equal(cf_manifest_parse(b.data, b.len, &none, &rep, &e), FO_EFORMAT);
            assert_non_null(strstr(e.msg, "control character"));
            cf_report_done(&rep);
        } else {
            struct cf_manifest *m = accepted(b.data);
            assert_string_equal(m->models[0].source_path, texts[i]);
            cf_manifest_free(m);
        }
        fo_buf_done(&b);
    }
    struct fo_buf b;
    fo_buf_init(&b, 1 << 12);
    assert_false(cf_quote("not \xFF UTF-8", &b));
    assert_int_equal(b.len, 0);
    fo_buf_done(&b);
}

/* The caps of one text hold for all of them. */
static void several_texts_have_the_limits_of_one(void **state) {
    (void)state;
    enum { VALUES = 40000, MODELS = 600 };
    struct fo_buf values, models;
    fo_buf_init(&values, 1 << 20);
    fo_buf_init(&models, 1 << 20);
    fo_buf_puts(&values, "models: [");
    for (int i = 0; i < VALUES; i++) fo_buf_puts(&values, "x,");
    fo_buf_puts(&values, "]\n");
    fo_buf_puts(&models, "models:\n");
    for (int i = 0; i < MODELS; i++) fo_buf_printf(&models, "- { name: m%d, source: { path: p } }\n", i);
    struct fo_buf twice;
    fo_buf_init(&twice, 1 << 20);
    fo_buf_puts(&twice, "models:\n");
    for (int i = 0; i < MODELS; i++) fo_buf_printf(&twice, "- { name: n%d, source: { path: p } }\n", i);
    const struct cf_text head = { "m.yaml", "version: 1\n", 11 };
    const struct {
        struct cf_text texts[3];
        int rc;
        const char *says;
    } rows[] = {
        { { head, { "a", values.data, values.len }, { "b", values.data, values.len } }, FO_ELIMIT, "too many values" },
        { { head, { "a", models.data, models.len }, { "b", twice.data, twice.len } }, FO_EFORMAT, "with this file there are 1200 models; at most 1000" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cf_manifest *m = NULL;
        struct cf_report rep;
        struct fo_err e;
        assert_int_equal(cf_manifest_parse_files(rows[i].texts, 3, NULL, 0, &m, &rep, &e), rows[i].rc);
        assert_null(m);
        if (!strstr(e.msg, rows[i].says)) fail_msg("%s", e.msg);
        cf_report_done(&rep);
    }
    fo_buf_done(&values);
    fo_buf_done(&models);
    fo_buf_done(&twice);
}

static void several_texts_survive_each_failing_allocation(void **state) {
    (void)state;
    static const char own[] = "version: 1\ninclude: [ a, b ]\nmodels: [ { name: x, source: { path: p } } ]\n", other[] = "models: [ { name: y1, source: { path: p } } ]\n";
    static const struct cf_text texts[] = { { "m", own, sizeof own - 1 }, { "a", other, sizeof other - 1 } };
    static char gone[] = "gone";
    static const struct cf_finding fault = { .class = CF_MISSING, .line = 2, .col = 15, .width = 1, .text = gone };
    for (size_t with = 0; with < 2; with++)
        for (long n = 1;; n++) {
            struct cf_manifest *m = NULL;
            struct cf_report rep;
            struct cf_includes in;
            struct fo_err e;
            test_fail_alloc(n);
            int rc = cf_manifest_includes(texts[0].text, texts[0].len, &in, &e);
            if (rc == FO_OK) rc = cf_manifest_parse_files(texts, 2, &fault, with, &m, &rep, &e);
            else rep = (struct cf_report){ 0 };
            bool failed = test_alloc_failed();
            assert_int_equal(rc, failed ? FO_ENOMEM : with ? FO_EFORMAT : FO_OK);
            if (!failed) assert_int_equal(in.n, 2);
            if (rc == FO_OK) assert_int_equal(m->n_models, 2);
            if (rc == FO_OK) cf_manifest_free(m);
            cf_includes_done(&in);
            cf_report_done(&rep);
            if (!failed) break;
        }
}

static void parse_file(const char *path) {
    char *text;
    size_t len;
    struct fo_err e;
    struct fo_buf out;
    assert_int_equal(fo_file_read(path, 1 << 20, &text, &len, &e), FO_OK);
    fo_buf_init(&out, 1 << 20);
    if (said(path, text, len, &out) != FO_OK) fail_msg("%s", fo_buf_str(&out));
    fo_buf_done(&out);
    free(text);
}

static void accepts_the_installed_example(void **state) {
    (void)state;
    parse_file("etc/models.yaml");
}

static void accepts_the_demo(void **state) {
    (void)state;
    parse_file("etc/demo.yaml");
}

static void survives_each_failing_allocation(void **state) {
    (void)state;
    static const char *const texts[] = {
        "version: 1\nserver: { listen: [ \"127.0.0.1:1\" ] }\nmodels:\n- { name: a, aliases: [ b, c ], source: { path: p }, chat_template: "
        "t }\n",
        "version: 1\nmodles: 3\nmodels:\n- { name: a, aliases: [ a ], ctx_kap: 3 }\n",
    };
    for (size_t i = 0; i < 2; i++)
        for (long n = 1;; n++) {
            struct cf_manifest *m = NULL;
            struct cf_report rep;
            struct fo_err e;
            test_fail_alloc(n);
            int rc = cf_manifest_parse(texts[i], strlen(texts[i]), &m, &rep, &e);
            bool failed = test_alloc_failed();
            if (failed)
                assert_int_equal(rc, FO_ENOMEM);
            else
                assert_int_equal(rc, i == 0 ? FO_OK : FO_EFORMAT);
            assert_true((rc == FO_OK) == (m != NULL));
            if (!failed && rep.n) {
                for (long k = 1;; k++) {
                    test_fail_alloc(k);
                    char *s = k % 2 ? cf_report_format(&rep, &(struct cf_text){ "f", texts[i], strlen(texts[i]) })
                                    : cf_finding_format(&rep.findings[0], "f", texts[i], strlen(texts[i]));
                    bool lost = test_alloc_failed();
                    assert_true(lost == (s == NULL));
                    free(s);
                    if (!lost) break;
                }
            }
            cf_manifest_free(m);
            cf_report_done(&rep);
            if (!failed) break;
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_each_case_expects),
        cmocka_unit_test(three_mistakes_are_three_messages),
        cmocka_unit_test(each_class_of_mistake_is_told_apart),
        cmocka_unit_test(fills_in_the_defaults),
        cmocka_unit_test(reads_every_honoured_key),
        cmocka_unit_test(an_unwritten_max_concurrent_follows_a_lower_max_sessions),
        cmocka_unit_test(a_typed_value_survives_quoting),
        cmocka_unit_test(accepts_the_installed_example),
        cmocka_unit_test(accepts_the_demo),
        cmocka_unit_test(survives_each_failing_allocation),
        cmocka_unit_test(several_texts_have_the_limits_of_one),
        cmocka_unit_test(several_texts_survive_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
