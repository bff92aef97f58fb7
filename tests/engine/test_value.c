/* Values of templates: JSON in, and what Python would print of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/value_impl.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"

static int parse(struct fo_region *r, const char *json, struct pn_value **ret, struct fo_err *e) {
    memset(e, 0, sizeof *e);
    return pn_value_from_json(r, json, strlen(json), ret, e);
}

/* JSON to a value and back, and its repr. */
static void expect(const char *json, const char *dumped, const char *repr) {
    struct fo_region r;
    struct pn_value *v;
    struct fo_err e;
    struct pn_out t;
    const struct pn_json_style style = { .item = ", ", .item_len = 2, .key = ": ", .key_len = 2 };
    fo_region_init(&r, 1 << 20);
    pn_out_init(&t, 1 << 20);
    if (parse(&r, json, &v, &e)) fail_msg("%s: %s", json, e.msg);
    assert_int_equal(pn_out_put_json(&t, *v, &style, &e), 0);
    pn_out_put(&t, "\n", 2, 0);
    size_t at = t.len;
    pn_out_put_repr(&t, *v);
    pn_out_put(&t, "", 1, 0);
    for (size_t i = 0; i < t.len; i++)
        if (i != at - 1 && i != at - 2 && i != t.len - 1) assert_int_equal(t.user[i], 1);
    t.s[at - 2] = '\0';
    assert_string_equal(t.s, dumped);
    assert_string_equal(t.s + at, repr);
    pn_out_done(&t);
    fo_region_done(&r);
}

static void json_reads_and_writes_as_in_python(void **state) {
    (void)state;
    expect("null", "null", "None");
    expect(" [true, false , null] ", "[true, false, null]", "[True, False, None]");
    expect("{\"a\":1,\"b\":[{}],\"c\":{\"d\":[]}}", "{\"a\": 1, \"b\": [{}], \"c\": {\"d\": []}}", "{'a': 1, 'b': [{}], 'c': {'d': []}}");
    expect("[0, -0, 1.0, -0.0, 1e5, 1e16, 1e-5, 0.1, 123456789.125, 5e-324, 1.7976931348623157e308, 1e400]",
           "[0, 0, 1.0, -0.0, 100000.0, 1e+16, 1e-05, 0.1, 123456789.125, 5e-324, 1.7976931348623157e+308, Infinity]",
           "[0, 0, 1.0, -0.0, 100000.0, 1e+16, 1e-05, 0.1, 123456789.125, 5e-324, 1.7976931348623157e+308, inf]");
    expect("[9223372036854775807, 9223372036854775808, -9223372036854775808, -99999999999999999999]",
           "[9223372036854775807, 9223372036854775808, -9223372036854775808, -99999999999999999999]",
           "[9223372036854775807, 9223372036854775808, -9223372036854775808, -99999999999999999999]");
    expect("\"\\u00e9\\ud83d\\ude00\\n\\/\\\\\\\"\\u0001\"", "\"é😀\\n/\\\\\\\"\\u0001\"", "'é😀\\n/\\\\\"\\x01'");
    expect("\"\\ud800 \\udc00\\ud800x\"", "\"\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBDx\"", "'\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBDx'");
    expect("\"it's\"", "\"it's\"", "\"it's\"");
    expect("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}", "{'a': 3, 'b': 2}");
}

static void malformed_json_names_its_place(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int line, col;
    } bad[] = { { "", 1, 1 },        { "[1,]", 1, 4 },       { "[1", 1, 3 },       { "{\"a\" 1}", 1, 6 },   { "{a:1}", 1, 2 },
                { "[1]\n x", 2, 2 }, { "\"abc", 1, 1 },      { "\"\\x\"", 1, 3 },  { "\"\\u12g4\"", 1, 6 }, { "01", 1, 1 },
                { "1.", 1, 1 },      { "1e", 1, 1 },         { "-", 1, 1 },        { "nul", 1, 1 },         { "NaN", 1, 1 },
                { "[1}", 1, 3 },     { "{\"a\":1,}", 1, 8 }, { "\"a\nb\"", 1, 3 }, { "\"\xff\"", 1, 1 },    { "\"\xed\xa0\x80\"", 1, 1 },
                { "'a'", 1, 1 },     { "\"\\", 1, 1 },       { "{\"a\"", 1, 5 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fo_region r;
        struct pn_value *v = NULL;
        struct fo_err e;
        fo_region_init(&r, 1 << 20);
        assert_int_equal(parse(&r, bad[i].json, &v, &e), FO_EFORMAT);
        assert_null(v);
        if (e.line != bad[i].line || e.col != bad[i].col) fail_msg("%s: %d:%d %s", bad[i].json, e.line, e.col, e.msg);
        fo_region_done(&r);
    }
}

static void nesting_has_a_limit(void **state) {
    (void)state;
    char json[4096];
    for (size_t n = 60; n < 70; n++)
        for (int dict = 0; dict < 2; dict++) {
            struct fo_region r;
            struct pn_value *v;
            struct fo_err e;
            size_t o = 0;
            for (size_t i = 0; i < n; i++) o += (size_t)snprintf(json + o, sizeof json - o, dict ? "{\"a\":" : "[");
            o += (size_t)snprintf(json + o, sizeof json - o, "1");
            for (size_t i = 0; i < n; i++) o += (size_t)snprintf(json + o, sizeof json - o, dict ? "}" : "]");
            fo_region_init(&r, 1 << 20);
            assert_int_equal(parse(&r, json, &v, &e), n <= PN_DEPTH_JSON ? 0 : FO_EFORMAT);
            fo_region_done(&r);
        }
}

static void a_million_open_brackets_cost_nothing(void **state) {
    (void)state;
    size_t n = 1000000;
    char *json = malloc(n + 1);
    memset(json, '[', n);
    json[n] = '\0';
    struct fo_region r;
    struct pn_value *v;
    struct fo_err e;
    fo_region_init(&r, 1 << 20);
    assert_int_equal(parse(&r, json, &v, &e), FO_EFORMAT);
    assert_true(r.used_bytes < 65536);
    fo_region_done(&r);
    free(json);
}

/* Against a linear search, across the size where dicts get their index. */
static void dicts_find_every_key_at_any_size(void **state) {
    (void)state;
    struct fo_rng rng;
    fo_rng_seed(&rng, 7);
    for (size_t n = 0; n < 200; n = n < 20 ? n + 1 : n * 2) {
        struct fo_region r;
        struct fo_err e;
        fo_region_init(&r, 1 << 22);
        struct pn_value *k = fo_region_array(&r, n + 1, sizeof *k), *v = fo_region_array(&r, n + 1, sizeof *v), dict;
        struct pn_value *k2 = fo_region_array(&r, n + 1, sizeof *k), *v2 = fo_region_array(&r, n + 1, sizeof *v);
        size_t distinct = 0;
        for (size_t i = 0; i < n; i++) {
            char name[16];
            int len = snprintf(name, sizeof name, "k%d", (int)(fo_rng_u64(&rng) % (n + 1)));
            assert_true(pn_str_new(&r, name, (size_t)len, PN_BY_USER, &k[i]));
            v[i] = pn_int((int64_t)i);
            size_t j = 0;
            while (j < distinct && !pn_value_eq(k2[j], k[i])) j++;
            k2[j] = k[i];
            v2[j] = v[i];
            distinct += j == distinct;
        }
        assert_int_equal(pn_dict_new(&r, k, v, n, &dict, &e), 0);
        assert_int_equal(dict.dict->n, distinct);
        for (size_t j = 0; j < distinct; j++) {
            assert_true(pn_value_eq(dict.dict->k[j], k2[j]));
            assert_int_equal(dict.dict->v[j].i, v2[j].i);
            const struct pn_value *found = pn_dict_get(dict.dict, k2[j]);
            assert_ptr_equal(found, &dict.dict->v[j]);
        }
        assert_null(pn_dict_find(dict.dict, "absent", 6));
        fo_region_done(&r);
    }
}

static void numbers_compare_exactly_across_types(void **state) {
    (void)state;
    struct fo_region r;
    struct pn_value *v;
    struct fo_err e;
    fo_region_init(&r, 1 << 20);
    assert_int_equal(
        parse(&r,
              "[-99999999999999999999, -9223372036854775808, -2.5, -2, 0, 1.5, 2, 9007199254740993, 9223372036854775807, 9.3e18, "
              "18446744073709551616, 1e30]",
              &v, &e),
        0);
    for (size_t i = 0; i < v->list->n; i++)
        for (size_t k = 0; k < v->list->n; k++) {
            int c = pn_key_cmp(v->list->v[i], v->list->v[k]);
            assert_int_equal((c > 0) - (c < 0), (i > k) - (i < k));
        }
    assert_true(pn_value_eq(pn_int(1), pn_bool(true)));
    assert_true(pn_value_eq(pn_float(2.0), pn_int(2)));
    assert_false(pn_value_eq(pn_float(9007199254740992.0), pn_int(9007199254740993)));
    assert_false(pn_value_eq(pn_float(0.0 / 0.0 * 1), pn_float(0.0 / 0.0 * 1)));
    fo_region_done(&r);
}

static void floats_print_the_shortest_digits_that_read_back(void **state) {
    (void)state;
    struct fo_rng rng;
    char text[32];
    fo_rng_seed(&rng, 3);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = fo_rng_u64(&rng);
        double f, back;
        memcpy(&f, &bits, sizeof f);
        if (f != f || f - f != 0) continue;
        text[pn_float_repr(f, text)] = '\0';
        back = strtod(text, NULL);
        assert_memory_equal(&back, &f, sizeof f);
        assert_non_null(strpbrk(text, ".e"));
    }
}

static void utf8_is_checked_and_counted_by_character(void **state) {
    (void)state;
    static const char text[] = "aé中😀";
    assert_int_equal(pn_utf8_valid(text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(pn_count_chars(text, sizeof text - 1), 4);
    assert_int_equal(pn_char_offset(text, sizeof text - 1, 3), 6);
    for (size_t cut = 1; cut < sizeof text - 1; cut++) {
        bool whole = cut == 1 || cut == 3 || cut == 6;
        assert_int_equal(pn_utf8_valid(text, cut) == cut, whole);
    }
    static const char *const bad[] = {
        "\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(pn_utf8_valid(bad[i], strlen(bad[i])), 0);
}

static void weight_grows_with_every_place_a_value_is_in(void **state) {
    (void)state;
    struct fo_region r;
    struct fo_err e;
    fo_region_init(&r, 1 << 20);
    struct pn_value v = pn_int(1);
    for (int i = 0; i < 100; i++) {
        struct pn_value pair[2] = { v, v };
        assert_int_equal(pn_list_new(&r, pair, 2, PN_SEQ_LIST, &v, &e), 0);
    }
    assert_true(pn_value_weight(v) == UINT64_MAX);
    for (int i = 100; i < PN_DEPTH_VALUE; i++)
        assert_int_equal(pn_list_new(&r, &(struct pn_value){ v.kind, .list = v.list }, 1, PN_SEQ_LIST, &v, &e), 0);
    assert_int_equal(pn_list_new(&r, &v, 1, PN_SEQ_LIST, &v, &e), FO_ELIMIT);
    fo_region_done(&r);
}

static void reading_json_survives_any_failed_allocation(void **state) {
    (void)state;
    static const char json[] = "{\"a\":[1,2.5,\"x\",99999999999999999999],\"b\":{\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,"
                               "\"j\":1,\"k\":1,\"c\":2}}";
    for (long n = 1;; n++) {
        struct fo_region r;
        struct pn_value *v;
        struct fo_err e;
        fo_region_init(&r, 1 << 20);
        test_fail_alloc(n);
        int rc = parse(&r, json, &v, &e);
        bool failed = test_alloc_failed();
        assert_true(failed ? rc == FO_ENOMEM || rc == FO_ELIMIT : rc == 0);
        fo_region_done(&r);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_reads_and_writes_as_in_python),
        cmocka_unit_test(malformed_json_names_its_place),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(a_million_open_brackets_cost_nothing),
        cmocka_unit_test(dicts_find_every_key_at_any_size),
        cmocka_unit_test(numbers_compare_exactly_across_types),
        cmocka_unit_test(floats_print_the_shortest_digits_that_read_back),
        cmocka_unit_test(utf8_is_checked_and_counted_by_character),
        cmocka_unit_test(weight_grows_with_every_place_a_value_is_in),
        cmocka_unit_test(reading_json_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
