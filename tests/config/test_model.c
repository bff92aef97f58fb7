/* One model apart from a manifest: parsed from a body, written, copied, compared; and what a manifest's change costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/manifest.h"
#include "foundry/base/buf.h"
#include "tests/support/alloc.h"

static const char full[] =
    "name: chat\naliases: [ a, \"1.10\" ]\nsource: { path: \"dir/quote\\\"back\\\\slash\xE2\x80\xA8.gguf\", url: \"hf:o/r@v1/f.gguf\", sha256: \"0000000000000000000000000000000000000000000000000000000000000000\", mirrors: [ \"https://example.org/f.gguf?x=1&y\", \"http://10.0.0.1/f\" ] }\nreplicas: [ [ s0 ], [ s1, s2 "
    "], [ \"auto:2\" ] ]\n"
    "ctx_cap: 512\nmax_sessions: 7\nmax_concurrent: 3\nqueue: { depth: 0, timeout: 90s }\ndecode_stall: 1500ms\nspeculation: off\nkv: { type: q8_0 }\nstate: "
    "absent\npriority: 9\nmemory: trust\nsampling: { temperature: 0.7, top_p: 0.123456789, top_k: 40, min_p: 0, repeat_penalty: 1.00001, "
    "presence_penalty: -2, frequency_penalty: 0.5 }\nreasoning_budget: 0\nchat_template: t.jinja\n";

static struct cf_model *parse(const char *text, const struct cf_model *defaults) {
    struct cf_model *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    if (cf_model_parse(text, strlen(text), defaults, &m, &rep, &e)) fail_msg("%d:%d %s\n%s", e.line, e.col, e.msg, text);
    assert_int_equal(rep.n, 0);
    cf_report_done(&rep);
    return m;
}

static struct cf_manifest *manifest(const char *text) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    if (cf_manifest_parse(text, strlen(text), &m, &rep, &e)) fail_msg("%s\n%s", e.msg, text);
    cf_report_done(&rep);
    return m;
}

static void assert_same(const struct cf_model *a, const struct cf_model *b) {
    struct cf_diff d[CF_MAX_DIFFS];
    if (cf_model_diff(a, b, d)) fail_msg("%s: %s -> %s", d[0].key, d[0].was, d[0].is);
}

static void a_body_may_be_json_or_yaml(void **state) {
    (void)state;
    struct cf_model *a = parse("{\"name\":\"chat\",\"source\":{\"path\":\"c.gguf\"},\"ctx_cap\":512,\"dies\":[\"s0\"]}", NULL);
    struct cf_model *b = parse("name: chat\nsource: { path: c.gguf }\nctx_cap: 512\ndies: s0\n", NULL);
    assert_string_equal(a->name, "chat");
    assert_int_equal(a->max_sessions, 4);
    assert_int_equal(a->queue_timeout_ms, 120000);
    assert_same(a, b);
    cf_model_free(a);
    cf_model_free(b);
}

static void a_body_starts_as_the_manifests_defaults(void **state) {
    (void)state;
    struct cf_manifest *m = manifest("version: 1\ndefaults: { max_sessions: 1, queue: { depth: 3 } }\n");
    struct cf_model *a = parse("{\"name\": \"x\", \"source\": {\"path\": \"p\"}}", &m->defaults);
    cf_manifest_free(m); /* it stands alone */
    assert_int_equal(a->max_sessions, 1);
    assert_int_equal(a->max_concurrent, 1); /* follows */
    assert_int_equal(a->queue_depth, 3);
    cf_model_free(a);
}

static void says_what_is_wrong_with_a_body(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
        int line, col;
    } rows[] = {
        { "", "a model is a mapping", 1, 1 },
        { "[]", "a model is a mapping", 1, 1 },
        { "{\"name\": \"a\"}", "'source' is missing", 1, 1 },
        { "name: a\nsource: { path: p }\nctx_kap: 1\n", "did you mean 'ctx_cap'", 3, 1 },
        { "name: a\nsource: { path: p }\ndies: [ x ]\nreplicas: [ [ z ] ]\n", "not together", 4, 1 },
        { "name: a\nsource: { path: p }\ndies: auto:0\n", "auto:2", 3, 7 },
        { "name: a\nsource: { path: p }\nmax_sessions: 1\nmax_concurrent: 2\n", "needs a session", 4, 17 },
        { "name: a\nsource: { path: p }\nttl: 5m\n", "loaded on demand", 3, 1 },
        { "{\"name\": \"a\"", "", 0, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cf_model *m = NULL;
        struct cf_report rep;
        struct fo_err e;
        assert_int_equal(cf_model_parse(rows[i].text, strlen(rows[i].text), NULL, &m, &rep, &e), FO_EFORMAT);
        assert_null(m);
        assert_true(rep.n > 0);
        if (!strstr(e.msg, rows[i].said)) fail_msg("%s: %s", rows[i].text, e.msg);
        if (rows[i].line && (e.line != rows[i].line || e.col != rows[i].col)) fail_msg("%s: at %d:%d", rows[i].text, e.line, e.col);
        cf_report_done(&rep);
    }
}

static void writes_what_it_reads(void **state) {
    (void)state;
    static const char *const texts[] = { full, "{\"name\": \"x\", \"source\": {\"path\": \"p\"}}",
                                         "{\"name\": \"x\", \"source\": {\"path\": \"p\"}, \"dies\": \"auto:2\"}" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct cf_model *a = parse(texts[i], NULL), *b, *copy;
        struct cf_manifest *other =
            manifest("version: 1\ndefaults: { max_sessions: 9, max_concurrent: 9, decode_stall: 10ms, queue: { depth: 99 } }\n");
        struct fo_err e;
        struct fo_buf json;
        fo_buf_init(&json, 1 << 16);
        cf_model_write(a, &json);
        assert_int_equal(cf_model_copy(a, &copy, &e), FO_OK);
        b = parse(fo_buf_str(&json), &other->defaults); /* whatever its defaults */
        assert_same(a, b);
        cf_model_free(a);
        assert_same(copy, b);
        fo_buf_done(&json);
        cf_model_free(b);
        cf_model_free(copy);
        cf_manifest_free(other);
    }
}

/* Each key of a model against the full one: that it is found, under its name, and what it costs. */
static void finds_every_change_and_its_cost(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *key;
        enum cf_change change;
    } rows[] = {
        { "name: chat", "name: chat2", "name", CF_RELOAD },
        { "aliases: [ a, \"1.10\" ]", "aliases: [ a ]", "aliases", CF_LIVE },
        { "aliases: [ a, \"1.10\" ]", "aliases: [ \"1.10\", a ]", "aliases", CF_LIVE },
        { "dir/", "dirs/", "source.path", CF_RELOAD },
        { "[ s1, s2 ]", "[ s1 ]", "replicas", CF_RELOAD },
        { "[ s0 ], ", "", "replicas", CF_RELOAD },
        { "[ s0 ]", "[ s9 ]", "replicas", CF_RELOAD },
        { "replicas: [ [ s0 ], [ s1, s2 ], [ \"auto:2\" ] ]", "", "replicas", CF_RELOAD },
        { "ctx_cap: 512", "ctx_cap: auto", "ctx_cap", CF_RELOAD },
        { "max_sessions: 7", "max_sessions: 8", "max_sessions", CF_RELOAD },
        { "max_concurrent: 3", "max_concurrent: 4", "max_concurrent", CF_LIVE },
        { "type: q8_0", "type: f16", "kv.type", CF_RELOAD },
        { "kv: { type: q8_0 }\n", "", "kv.type", CF_RELOAD },
        { "depth: 0", "depth: 1", "queue.depth", CF_LIVE },
        { "timeout: 90s", "timeout: 91s", "queue.timeout", CF_LIVE },
        { "1500ms", "1501ms", "decode_stall", CF_LIVE },
        { "speculation: off", "speculation: auto", "speculation", CF_LIVE },
        { "speculation: off\n", "", "speculation", CF_LIVE },
        { "state: absent", "state: loaded", "state", CF_LIVE },
        { "priority: 9", "priority: 8", "priority", CF_LIVE },
        { "memory: trust", "memory: gated", "memory", CF_LIVE },
        { "temperature: 0.7", "temperature: 0.8", "sampling.temperature", CF_LIVE },
        { "temperature: 0.7, ", "", "sampling.temperature", CF_LIVE },
        { "top_p: 0.123456789", "top_p: 0.12345679", "sampling.top_p", CF_LIVE },
        { "top_k: 40", "top_k: 41", "sampling.top_k", CF_LIVE },
        { "min_p: 0,", "min_p: 0.1,", "sampling.min_p", CF_LIVE },
        { "1.00001", "1.00002", "sampling.repeat_penalty", CF_LIVE },
        { "presence_penalty: -2", "presence_penalty: -1", "sampling.presence_penalty", CF_LIVE },
        { "frequency_penalty: 0.5", "frequency_penalty: 0", "sampling.frequency_penalty", CF_LIVE },
        { "reasoning_budget: 0", "reasoning_budget: 16", "reasoning_budget", CF_LIVE },
        { "reasoning_budget: 0\n", "", "reasoning_budget", CF_LIVE }, /* none is not 0 */
        { "chat_template: t.jinja", "chat_template: auto", "chat_template", CF_RELOAD },
    };
    struct cf_model *a = parse(full, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        const char *at = strstr(full, rows[i].from);
        struct cf_diff d[CF_MAX_DIFFS];
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - full), full, rows[i].to, at + strlen(rows[i].from));
        struct cf_model *b = parse(text, NULL);
        if (cf_model_diff(a, b, d) != 1) fail_msg("%s: %zu differences", rows[i].key, cf_model_diff(a, b, d));
        assert_string_equal(d[0].key, rows[i].key);
        assert_int_equal(d[0].change, rows[i].change);
        assert_string_not_equal(d[0].was, d[0].is);
        cf_model_free(b);
    }
    cf_model_free(a);
}

static void shows_changes_as_people_write_them(void **state) {
    (void)state;
    struct cf_diff d[CF_MAX_DIFFS];
#define UMLAUTS "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4"
    struct cf_model *a = parse("name: x\nsource: { path: p }\n", NULL);
    struct cf_model *b = parse("name: x\nsource: { path: /a/very/long/path/" UMLAUTS UMLAUTS ".gguf }\nctx_cap: 512\naliases: [ b, c ]\n"
                               "queue: { timeout: 3min }\n",
                               NULL);
    assert_int_equal(cf_model_diff(a, b, d), 4);
    assert_string_equal(d[0].was, "unset");
    assert_string_equal(d[0].is, "[b, c]");
    assert_true(strlen(d[1].is) < sizeof d[1].is);
    assert_string_equal(d[1].is + strlen(d[1].is) - 5, "\xC3\xA4..."); /* cut at a character */
    assert_string_equal(d[2].was, "auto");
    assert_string_equal(d[2].is, "512");
    assert_string_equal(d[3].was, "2min");
    assert_string_equal(d[3].is, "3min");
    cf_model_free(a);
    cf_model_free(b);
}

static void tells_what_changing_a_manifest_costs(void **state) {
    (void)state;
    static const char base[] = "version: 1\nserver: { listen: [ \"127.0.0.1:1\" ], limits: { connections: 5 } }\nhost: { threads: 2 }\n"
                               "dies: [ { name: s0, kind: sim, memory: 1GiB }, { name: s1, kind: sim, memory: 1GiB, reserve: 1MiB } ]\n"
                               "models: [ { name: a, source: { path: p } } ]\n";
    static const struct {
        const char *from, *to, *key;
        enum cf_change change;
    } rows[] = {
        { "127.0.0.1:1", "127.0.0.1:2", "server.listen", CF_DRAIN },
        { "connections: 5", "connections: 6", "server.limits.connections", CF_LIVE },
        { "threads: 2", "threads: auto", "host.threads", CF_RELOAD },
        { "reserve: 1MiB", "reserve: 2MiB", "dies", CF_LIVE },
        { "name: s1", "name: s2", "dies", CF_RELOAD },
        { "{ name: s0, kind: sim, memory: 1GiB }, ", "", "dies", CF_RELOAD },
        { "host: {", "host: { load_timeout: 5m, ", "host.load_timeout", CF_LIVE },
        { "host: {", "host: { settle: { stable: 1s }, ", "host.settle.stable", CF_LIVE },
        { "path: p", "path: q", NULL, CF_LIVE }, /* a model's business */
        { "models", "defaults: { max_sessions: 1 }\nmodels", NULL, CF_LIVE },
    };
    struct cf_manifest *a = manifest(base);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        struct cf_diff d[CF_MAX_DIFFS];
        const char *at = strstr(base, rows[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - base), base, rows[i].to, at + strlen(rows[i].from));
        struct cf_manifest *b = manifest(text);
        size_t n = cf_manifest_diff(a, b, d);
        assert_int_equal(n, rows[i].key != NULL);
        if (n) assert_string_equal(d[0].key, rows[i].key);
        if (n) assert_int_equal(d[0].change, rows[i].change);
        cf_manifest_free(b);
    }
    cf_manifest_free(a);
}

static void knows_auto_dies(void **state) {
    (void)state;
    struct cf_manifest *m =
        manifest("version: 1\nmodels:\n  - { name: a, source: { path: p }, dies: auto:2 }\n  - { name: b, source: { path: p }, dies: s0 }\n"
                 "  - { name: c, source: { path: p } }\n  - { name: d, source: { path: p }, dies: [ autobahn ] }\n");
    assert_int_equal(cf_dies_auto(&m->models[0].dies), 2);
    assert_int_equal(cf_dies_auto(&m->models[1].dies), 0);
    assert_int_equal(cf_dies_auto(&m->models[2].dies), 0);
    assert_int_equal(cf_dies_auto(&m->models[3].dies), 0);
    cf_manifest_free(m);
}

static void survives_every_failed_allocation(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        struct cf_model *m = NULL, *copy = NULL;
        struct cf_report rep;
        struct fo_err e;
        struct fo_buf json;
        fo_buf_init(&json, 1 << 16);
        test_fail_alloc(n);
        int rc = cf_model_parse(full, strlen(full), NULL, &m, &rep, &e);
        if (rc == FO_OK) rc = cf_model_copy(m, &copy, &e);
        if (rc == FO_OK) cf_model_write(copy, &json);
        bool failed = test_alloc_failed();
        if (!failed) assert_true(rc == FO_OK && !json.failed);
        if (rc) assert_int_equal(e.code, FO_ENOMEM);
        fo_buf_done(&json);
        cf_report_done(&rep);
        cf_model_free(m);
        cf_model_free(copy);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_may_be_json_or_yaml),           cmocka_unit_test(a_body_starts_as_the_manifests_defaults),
        cmocka_unit_test(says_what_is_wrong_with_a_body),       cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(finds_every_change_and_its_cost),      cmocka_unit_test(shows_changes_as_people_write_them),
        cmocka_unit_test(tells_what_changing_a_manifest_costs), cmocka_unit_test(knows_auto_dies),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
