/* Where files are fetched from: what each part of a URL is. What is refused, and in what words, tests/cases/manifest says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "config/manifest.h"
#include "config/url.h"
#include "foundry/base/buf.h"

static struct cf_url parsed(const char *text) {
    struct cf_url u;
    const char *why = cf_url_parse(text, &u);
    if (why) fail_msg("%s %s", text, why);
    return u;
}

static void assert_span(struct cf_span s, const char *want) {
    if (s.len != strlen(want) || memcmp(s.at, want, s.len) != 0) fail_msg("'%.*s' instead of '%s'", (int)s.len, s.at, want);
}

static void reads_a_place_on_a_server(void **state) {
    (void)state;
    struct cf_url u = parsed("https://models.example.org:8443/a/b.gguf?token=x&y=1");
    assert_int_equal(u.scheme, CF_URL_HTTPS);
    assert_span(u.host, "models.example.org");
    assert_span(u.path, "/a/b.gguf");
    assert_false(u.loopback);
    assert_int_equal(u.n_shards, 0);
    u = parsed("https://[2001:db8::1]/b.gguf");
    assert_span(u.host, "2001:db8::1");
    assert_span(u.path, "/b.gguf");
}

static void knows_this_machine(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool loopback;
    } rows[] = {
        { "http://127.0.0.1/f", true },  { "http://127.8.9.1:80/f", true }, { "http://localhost:9/f", true },       { "http://[::1]:9/f", true },
        { "http://128.0.0.1/f", false }, { "http://127.0.0.1.example.org/f", false }, { "http://localhost.example.org/f", false }, { "http://[::2]/f", false },
        { "http://0.0.0.0/f", false },   { "http://127.1/f", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (parsed(rows[i].text).loopback != rows[i].loopback) fail_msg("%s", rows[i].text);
}

static void reads_a_file_of_a_repository(void **state) {
    (void)state;
    struct cf_url u = parsed("hf:some-one/Model_1.5-GGUF/Q4_K_M/m.gguf");
    assert_int_equal(u.scheme, CF_URL_HF);
    assert_span(u.owner, "some-one");
    assert_span(u.repo, "Model_1.5-GGUF");
    assert_int_equal(u.revision.len, 0);
    assert_span(u.path, "Q4_K_M/m.gguf");
    assert_int_equal(u.host.len, 0);
    u = parsed("hf:o/r@0123abc/m-00002-of-00012.gguf");
    assert_span(u.revision, "0123abc");
    assert_span(u.path, "m-00002-of-00012.gguf");
    assert_int_equal(u.shard, 1);
    assert_int_equal(u.n_shards, 12);
}

static void writes_the_other_shards(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t no;
        const char *want;
    } rows[] = {
        { "hf:o/r@main/m-00001-of-00003.gguf", 2, "hf:o/r@main/m-00003-of-00003.gguf" },
        { "https://h/a/m-00002-of-00200.gguf?download=true", 0, "https://h/a/m-00001-of-00200.gguf?download=true" },
        { "https://h/a-00001-of-00002.gguf/m-00001-of-00002.gguf", 1, "https://h/a-00001-of-00002.gguf/m-00002-of-00002.gguf" },
        { "https://h/whole.gguf", 1, "" },
        { "nonsense", 1, "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fo_buf b;
        fo_buf_init(&b, 1 << 12);
        cf_url_shard(rows[i].text, rows[i].no, &b);
        assert_string_equal(fo_buf_str(&b), rows[i].want);
        fo_buf_done(&b);
    }
}

static void a_manifest_keeps_what_was_written(void **state) {
    (void)state;
    static const char text[] = "version: 1\nmodels:\n- name: m\n  source: { path: p-00001-of-00002.gguf, url: hf:o/r/p-00001-of-00002.gguf, mirrors: [ \"https://h/p-00002-of-00002.gguf\" ],\n"
                               "    sha256: [ BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD, e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ] }\n"
                               "- { name: two, source: { path: n.gguf } }\n";
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    if (cf_manifest_parse(text, sizeof text - 1, &m, &rep, &e)) fail_msg("%s", e.msg);
    const struct cf_model *a = &m->models[0], *b = &m->models[1];
    assert_string_equal(a->source_url, "hf:o/r/p-00001-of-00002.gguf");
    assert_int_equal(a->n_source_mirrors, 1);
    assert_string_equal(a->source_mirrors[0], "https://h/p-00002-of-00002.gguf");
    assert_int_equal(a->n_source_sha256, 2);
    assert_string_equal(a->source_sha256[0], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_null(b->source_url);
    assert_int_equal(b->n_source_sha256 + b->n_source_mirrors, 0);
    cf_manifest_free(m);
    cf_report_done(&rep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_place_on_a_server), cmocka_unit_test(knows_this_machine),           cmocka_unit_test(reads_a_file_of_a_repository),
        cmocka_unit_test(writes_the_other_shards),   cmocka_unit_test(a_manifest_keeps_what_was_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
