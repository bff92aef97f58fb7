/* Facts as JSON: what is saved is read back, what is wrong is said with its path, and nothing hostile passes or crashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/facts.h"
#include "foundry/base/buf.h"
#include "tests/support/alloc.h"

static const char full[] =
    "{\"now_ms\": 5, \"host\": {\"total_bytes\": 8, \"available_bytes\": 7, \"limited_by\": \"cgroup1\"}, \"dies\": [{\"name\": \"s0\", "
    "\"kind\": "
    "\"sim\", \"address\": \"a\", \"model\": \"m\", \"total_bytes\": 1, \"reserve_bytes\": 2, \"ours_bytes\": 3, \"foreign_bytes\": 4, "
    "\"health\": "
    "\"lost\", \"reason\": \"r\", \"host\": true, \"accelerator\": true, \"contexts\": 6}], \"instances\": [{\"name\": \"chat\", \"replica\": 1, "
    "\"generation\": 2, "
    "\"state\": \"draining\", \"spec\": {\"name\": \"chat\", \"source\": {\"path\": \"c.gguf\"}, \"replicas\": [[\"s0\"], [\"s1\", "
    "\"s2\"]], "
    "\"sampling\": {\"temperature\": 0.7}}, \"concurrent_room\": 3, \"ad_hoc\": true, \"reason\": \"x\", \"parts\": [{\"die\": \"s0\", "
    "\"first_layer\": 1, \"n_layers\": 2, \"weights_bytes\": 3, \"kv_bytes\": 4, \"scratch_bytes\": 5}], \"host_bytes\": 6, \"running\": "
    "7}], "
    "\"histories\": [{\"name\": \"guest\", \"ad_hoc\": {\"name\": \"guest\", \"source\": {\"path\": \"g\"}}, \"admin_unloaded\": true, "
    "\"failures\": 2, \"retry_at_ms\": 9, \"last_error\": \"e\"}], \"estimates\": [{\"path\": \"c.gguf\", \"ctx_declared\": -1, "
    "\"max_sessions\": 4, \"max_concurrent\": 2, \"kv\": {\"k_type\": \"q8_0\", \"v_type\": \"q4_0\", \"k_floor\": \"q8_0\", \"v_floor\": \"q4_0\", \"overcommit\": 150}, \"ctx_cap\": 8192, \"error\": \"no\", \"layer_bytes\": [1, 2], \"layer_kv_bytes\": [3, "
    "4], "
    "\"input_bytes\": 5, \"output_bytes\": 6, \"tied_bytes\": 7, \"die_kv_bytes\": 8, \"scratch_bytes\": 9, \"logits_bytes\": 12, \"host_bytes\": 10, "
    "\"staging_bytes\": 11}]}";

static struct cf_facts *parse(const char *json) {
    struct cf_facts *f = NULL;
    struct fo_err e;
    if (cf_facts_parse(json, strlen(json), &f, &e)) fail_msg("%s\n%s", e.msg, json);
    return f;
}

static void reads_every_field(void **state) {
    (void)state;
    struct cf_facts *f = parse(full);
    assert_int_equal(f->now_ms, 5);
    assert_int_equal(f->host.limited_by, CF_BY_CGROUP1);
    const struct cf_die_fact *d = &f->dies[0];
    assert_int_equal(f->n_dies, 1);
    assert_string_equal(d->name, "s0");
    assert_int_equal(d->total_bytes + 10 * d->reserve_bytes + 100 * d->ours_bytes + 1000 * d->foreign_bytes, 4321);
    assert_int_equal(d->health, CF_HEALTH_LOST);
    assert_true(d->host && d->accelerator);
    assert_int_equal(d->contexts, 6);
    const struct cf_instance *i = &f->instances[0];
    assert_int_equal(i->state, CF_I_DRAINING);
    assert_string_equal(i->spec->replicas[1].names[1], "s2");
    assert_int_equal(i->spec->max_sessions, 4); /* the table's own default */
    assert_true(i->spec->sampling.has_temperature && i->spec->sampling.temperature > 0.69 && i->spec->sampling.temperature < 0.71);
    assert_int_equal(i->parts[0].scratch_bytes, 5);
    assert_int_equal(i->running, 7);
    assert_string_equal(f->histories[0].ad_hoc->source_path, "g");
    assert_int_equal(f->histories[0].failures, 2);
    const struct cf_estimate *est = &f->estimates[0];
    assert_int_equal(est->ctx_declared, CF_AUTO);
    assert_int_equal(est->kv.k_type, CF_KV_Q8_0);
    assert_int_equal(est->kv.v_type, CF_KV_Q4_0);
    assert_int_equal(est->kv.overcommit, 150);
    assert_int_equal(est->layer_kv_bytes[1], 4);
    assert_int_equal(est->staging_bytes, 11);
    assert_int_equal(est->logits_bytes, 12);
    cf_facts_free(f);
}

static void writes_what_it_reads(void **state) {
    (void)state;
    struct cf_facts *f = parse(full), *copy, *again;
    struct fo_err e;
    char *text = cf_facts_write(f);
    assert_int_equal(cf_facts_copy(f, &copy, &e), FO_OK);
    cf_facts_free(f); /* a copy owns all it has */
    again = parse(text);
    char *second = cf_facts_write(again), *third = cf_facts_write(copy);
    assert_string_equal(text, second);
    assert_string_equal(text, third);
    free(text);
    free(second);
    free(third);
    cf_facts_free(again);
    cf_facts_free(copy);
}

static void writes_a_part_of_them(void **state) {
    (void)state;
    struct cf_facts *f = parse(full);
    struct fo_buf b;
    fo_buf_init(&b, 1 << 16);
    cf_facts_write_some(f, CF_FACTS_DIES, &b);
    assert_non_null(strstr(fo_buf_str(&b), "\"dies\""));
    assert_null(strstr(fo_buf_str(&b), "\"instances\""));
    fo_buf_clear(&b);
    cf_facts_write_some(f, CF_FACTS_MODELS, &b);
    assert_null(strstr(fo_buf_str(&b), "\"dies\": [{"));
    assert_non_null(strstr(fo_buf_str(&b), "\"estimates\""));
    fo_buf_done(&b);
    cf_facts_free(f);
}

static void says_what_is_wrong_and_where(void **state) {
    (void)state;
    static const struct {
        const char *json, *said;
    } rows[] = {
        { "", "" },
        { "[]", "facts: a mapping" },
        { "{\"nope\": 1}", "facts.nope: no such key" },
        { "{\"now_ms\": 1, \"now_ms\": 2}", "duplicate" },
        { "{\"now_ms\": -1}", "facts.now_ms: a number from 0" },
        { "{\"now_ms\": 1.5}", "facts.now_ms: a whole number" },
        { "{\"now_ms\": 99999999999999999999}", "" },
        { "{\"host\": {\"limited_by\": \"luck\"}}", "facts.host.limited_by: not one of" },
        { "{\"dies\": {}}", "facts.dies: a list" },
        { "{\"dies\": [{}]}", "facts.dies[0].name: is missing" },
        { "{\"dies\": [{\"name\": \"\"}]}", "facts.dies[0].name: the text is empty" },
        { "{\"dies\": [{\"name\": \"0123456789012345678901234567890123456789012345678901234567890123\"}]}",
          "facts.dies[0].name: the text is too long" },
        { "{\"dies\": [{\"name\": \"a\"}, {\"name\": \"a\"}]}", "facts.dies[1]: a second die" },
        { "{\"dies\": [{\"name\": \"a\", \"host\": 1}]}", "facts.dies[0].host: true or false" },
        { "{\"instances\": [{\"name\": \"a\"}]}", "facts.instances[0].spec: is missing" },
        { "{\"instances\": [{\"name\": \"a\", \"spec\": {}}]}", "facts.instances[0].spec: 'name' is missing" },
        { "{\"instances\": [{\"name\": \"a\", \"spec\": {\"name\": \"a\", \"source\": {\"path\": \"p\"}, \"ctx_kap\": 1}}]}",
          "did you mean 'ctx_cap'" },
        { "{\"instances\": [{\"name\": \"a\", \"spec\": {\"name\": \"a\", \"source\": {\"path\": \"p\"}, \"ctx_cap\": 1}}]}", "too small" },
        { "{\"instances\": [{\"name\": \"a\", \"spec\": 3}]}", "facts.instances[0].spec: a model is expected" },
        { "{\"instances\": [{\"name\": \"a\", \"state\": 3, \"spec\": {\"name\": \"a\", \"source\": {\"path\": \"p\"}}}]}",
          "state: not one of" },
        { "{\"instances\": [{\"name\": \"a\", \"spec\": {\"name\": \"a\", \"source\": {\"path\": \"p\"}}}, {\"name\": \"a\", \"spec\": "
          "{\"name\": "
          "\"a\", \"source\": {\"path\": \"p\"}}}]}",
          "facts.instances[1]: a second instance" },
        { "{\"histories\": [{\"name\": \"a\", \"failures\": 4294967296}]}", "facts.histories[0].failures: the number is too large" },
        { "{\"estimates\": [{\"path\": \"p\", \"layer_bytes\": [1]}]}", "different lengths" },
        { "{\"estimates\": [{\"path\": \"p\", \"layer_bytes\": [-1], \"layer_kv_bytes\": [1]}]}",
          "facts.estimates[0].layer_bytes[0]: a whole" },
        { "{\"estimates\": [{\"path\": \"p\", \"layer_bytes\": \"x\"}]}", "facts.estimates[0].layer_bytes: a list" },
        { "{\"estimates\": [{\"path\": \"a\\u0000b\"}]}", "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cf_facts *f = NULL;
        struct fo_err e;
        if (cf_facts_parse(rows[i].json, strlen(rows[i].json), &f, &e) != FO_EFORMAT) fail_msg("accepted: %s", rows[i].json);
        assert_null(f);
        if (!strstr(e.msg, rows[i].said)) fail_msg("%s: said '%s', not '%s'", rows[i].json, e.msg, rows[i].said);
    }
}

static void refuses_what_is_too_much(void **state) {
    (void)state;
    struct cf_facts *f = NULL;
    struct fo_err e;
    struct fo_buf b;
    char *spaces = malloc(CF_MAX_FACTS_BYTES + 1);
    assert_non_null(spaces);
    memset(spaces, ' ', CF_MAX_FACTS_BYTES + 1);
    assert_int_equal(cf_facts_parse(spaces, CF_MAX_FACTS_BYTES + 1, &f, &e), FO_ELIMIT);
    free(spaces);
    fo_buf_init(&b, 1 << 20);
    fo_buf_puts(&b, "{\"estimates\": [{\"path\": \"p\", \"layer_bytes\": [0");
    for (int i = 0; i < CF_MAX_LAYERS; i++) fo_buf_puts(&b, ",0");
    fo_buf_puts(&b, "]}]}");
    assert_int_equal(cf_facts_parse(b.data, b.len, &f, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "1024 layers"));
    fo_buf_clear(&b);
    for (int i = 0; i < 100000; i++) fo_buf_putc(&b, '[');
    assert_int_equal(cf_facts_parse(b.data, b.len, &f, &e), FO_EFORMAT);
    fo_buf_done(&b);
}

static void refuses_every_truncation(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof full - 1; n++) {
        struct cf_facts *f = NULL;
        struct fo_err e;
        assert_int_equal(cf_facts_parse(full, n, &f, &e), FO_EFORMAT);
        assert_null(f);
    }
}

/* What a driver says is not to be trusted, nor cut at a character. */
static void writes_hostile_texts_as_json(void **state) {
    (void)state;
    struct cf_die_fact die = { .name = "s\"0\\", .reason = "\x1B[31m\xFF\xC3 broken \xE2\x80" };
    struct cf_facts f = { .dies = &die, .n_dies = 1, .now_ms = UINT64_MAX };
    char *text = cf_facts_write(&f);
    assert_non_null(text);
    struct cf_facts *again = parse(text);
    assert_string_equal(again->dies[0].name, die.name);
    assert_non_null(strstr(again->dies[0].reason, "broken"));
    assert_int_equal(again->now_ms, INT64_MAX);
    free(text);
    cf_facts_free(again);
}

static void survives_every_failed_allocation(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        struct cf_facts *f = NULL, *copy = NULL;
        struct fo_err e;
        char *text = NULL;
        test_fail_alloc(n);
        int rc = cf_facts_parse(full, sizeof full - 1, &f, &e);
        if (rc == FO_OK) rc = cf_facts_copy(f, &copy, &e);
        if (rc == FO_OK) text = cf_facts_write(copy);
        bool failed = test_alloc_failed();
        if (!failed) assert_non_null(text);
        if (rc) assert_int_equal(e.code, FO_ENOMEM);
        free(text);
        cf_facts_free(f);
        cf_facts_free(copy);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_field),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(writes_a_part_of_them),
        cmocka_unit_test(says_what_is_wrong_and_where),
        cmocka_unit_test(refuses_what_is_too_much),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test(writes_hostile_texts_as_json),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
