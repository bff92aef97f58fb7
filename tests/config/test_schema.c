/* Rows against nodes, with a table of our own that has every kind; and the invariants of THE key table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/report.h"
#include "config/scalar.h"
#include "config/schema.h"
#include "config/yaml.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"

struct item {
    char *name;
    int64_t n;
};
struct thing {
    bool flag, has_number;
    int64_t count, nested;
    double number, percent;
    uint64_t bytes, ms;
    char *text, *path, *name, *address;
    int choice;
    char **list;
    size_t n_list;
    struct item *items, first;
    size_t n_items;
};

static const struct cf_key item_rows[] = {
    { .name = "name", .kind = CF_NAME, CF_AT(struct item, name), .must = true, .help = "h" },
    { .name = "n", .kind = CF_COUNT, CF_AT(struct item, n), .min = 0, .max = 9, .def = "3", .help = "h" },
};
static const struct cf_keys item = { .in = "an item", .rows = item_rows, .n = 2, .size = sizeof(struct item) };
static const struct cf_key nested_rows[] = {
    { .name = "nested", .kind = CF_COUNT, CF_AT(struct thing, nested), .min = -1, .max = 5, .def = "2", .help = "h" }
};
static const struct cf_keys nested = { .in = "'group'", .rows = nested_rows, .n = 1, .size = sizeof(struct thing) };
static const struct cf_key thing_rows[] = {
    { .name = "flag", .kind = CF_FLAG, CF_AT(struct thing, flag), .def = "true", .help = "h" },
    { .name = "count", .kind = CF_COUNT, CF_AT(struct thing, count), .autos = true, .min = 1, .max = 100, .def = "auto", .help = "h" },
    { .name = "number",
      .kind = CF_NUMBER,
      CF_AT(struct thing, number),
      CF_HAS(struct thing, has_number),
      .min = -1000000,
      .max = 1000000,
      .help = "h" },
    { .name = "percent", .kind = CF_PERCENT, CF_AT(struct thing, percent), .min = 1, .max = 100, .def = "80%", .help = "h" },
    { .name = "bytes", .kind = CF_BYTES, CF_AT(struct thing, bytes), .min = 0, .max = 1e15, .help = "h" },
    { .name = "ms", .kind = CF_MS, CF_AT(struct thing, ms), .min = 0, .max = 1e15, .help = "h" },
    { .name = "text", .kind = CF_TEXT, CF_AT(struct thing, text), .autos = true, .help = "h" },
    { .name = "path", .kind = CF_PATH, CF_AT(struct thing, path), .help = "h" },
    { .name = "name", .kind = CF_NAME, CF_AT(struct thing, name), .help = "h" },
    { .name = "address", .kind = CF_ADDRESS, CF_AT(struct thing, address), .help = "h" },
    { .name = "choice", .kind = CF_CHOICE, CF_AT(struct thing, choice), .words = "red|green|blue", .def = "green", .help = "h" },
    { .name = "list",
      .kind = CF_LIST,
      .each = CF_TEXT,
      CF_AT(struct thing, list),
      .count = offsetof(struct thing, n_list),
      .max = 3,
      .def = "x",
      .help = "h" },
    { .name = "group", .kind = CF_GROUP, .keys = &nested, .help = "h" },
    { .name = "items",
      .kind = CF_LIST,
      .each = CF_GROUP,
      .keys = &item,
      CF_AT(struct thing, items),
      .count = offsetof(struct thing, n_items),
      .has_from = true,
      .from = offsetof(struct thing, first),
      .max = 5,
      .help = "h" },
    { .name = "future", .kind = CF_COUNT, .later = true, .min = 0, .max = 1, .help = "h" },
};
static const struct cf_keys thing = {
    .in = "a thing", .rows = thing_rows, .n = sizeof thing_rows / sizeof *thing_rows, .size = sizeof(struct thing)
};

struct world {
    struct fo_region region;
    struct cf_report rep;
    struct fo_err e;
    struct thing t;
};

static void read_thing(struct world *w, const char *text) {
    struct cf_node *root;
    bool whole;
    *w = (struct world){ 0 };
    fo_region_init(&w->region, 1 << 20);
    assert_int_equal(cf_report_init(&w->rep, &w->e), FO_OK);
    assert_int_equal(cf_schema_defaults(&thing, &w->t, &w->region, &w->e), FO_OK);
    assert_int_equal(cf_schema_defaults(&item, &w->t.first, &w->region, &w->e), FO_OK);
    assert_int_equal(cf_yaml_read(text, strlen(text), NULL, &w->region, &w->rep, &root, &whole, &w->e), FO_OK);
    const struct cf_schema s = { .root = &thing, .region = &w->region, .rep = &w->rep, .e = &w->e, .whole = whole };
    if (root) assert_int_equal(cf_schema_read(&s, &thing, root, &w->t), FO_OK);
}

static void done(struct world *w) {
    cf_report_done(&w->rep);
    fo_region_done(&w->region);
}

static void writes_defaults_of_every_kind(void **state) {
    (void)state;
    struct world w;
    read_thing(&w, "");
    assert_int_equal(w.rep.n, 0);
    assert_true(w.t.flag);
    assert_int_equal(w.t.count, CF_AUTO);
    assert_false(w.t.has_number);
    assert_true(w.t.percent == 80);
    assert_null(w.t.text);
    assert_int_equal(w.t.choice, 1);
    assert_int_equal(w.t.n_list, 1);
    assert_string_equal(w.t.list[0], "x");
    assert_int_equal(w.t.nested, 2);
    assert_int_equal(w.t.n_items, 0);
    done(&w);
}

static void writes_values_of_every_kind(void **state) {
    (void)state;
    struct world w;
    read_thing(&w,
               "flag: false\ncount: 77\nnumber: -12.5\npercent: 12.5%\nbytes: 1.5KiB\nms: 2min\ntext: a text\npath: ../a~b.gguf\nname: m\n"
               "address: \"[::1]:80\"\nchoice: blue\nlist: [ a, b, c ]\ngroup: { nested: 4 }\nitems: [ { name: i }, { name: j, n: 9 } ]\n");
    assert_int_equal(w.rep.n, 0);
    assert_false(w.t.flag);
    assert_int_equal(w.t.count, 77);
    assert_true(w.t.has_number && w.t.number == -12.5);
    assert_true(w.t.percent == 12.5);
    assert_int_equal(w.t.bytes, 1536);
    assert_int_equal(w.t.ms, 120000);
    assert_string_equal(w.t.text, "a text");
    assert_string_equal(w.t.path, "../a~b.gguf");
    assert_string_equal(w.t.name, "m");
    assert_string_equal(w.t.address, "[::1]:80");
    assert_int_equal(w.t.choice, 2);
    assert_int_equal(w.t.n_list, 3);
    assert_string_equal(w.t.list[2], "c");
    assert_int_equal(w.t.nested, 4);
    assert_int_equal(w.t.n_items, 2);
    assert_string_equal(w.t.items[0].name, "i");
    assert_int_equal(w.t.items[0].n, 3);
    assert_int_equal(w.t.items[1].n, 9);
    done(&w);
}

/* Each row: a text with one mistake, its class, a piece of what is said. */
static void says_what_is_wrong_with_each_kind(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum cf_class class;
        const char *says;
    } rows[] = {
        { "flag: yes", CF_TYPE, "write true, not 'yes'" },
        { "flag: n", CF_TYPE, "write false" },
        { "count: 101", CF_RANGE, "at most 100" },
        { "count: 0x10", CF_TYPE, "write 16" },
        { "count: 010", CF_TYPE, "write 10" },
        { "count: 1_0", CF_TYPE, "write 10" },
        { "count: AUTO", CF_TYPE, "write auto" },
        { "percent: 80", CF_TYPE, "write 80%" },
        { "percent: 0%", CF_RANGE, "at least 1%" },
        { "percent: 101%", CF_RANGE, "at most 100%" },
        { "percent: most", CF_TYPE, "not a share" },
        { "bytes: 10", CF_TYPE, "needs a unit" },
        { "ms: 10mins", CF_TYPE, "'10min'" },
        { "number: 0x1p3", CF_TYPE, "not a number" },
        { "text: \"\"", CF_RANGE, "empty" },
        { "text: 1.10", CF_TYPE, "write \"1.10\"" },
        { "path: ~/m.gguf", CF_RANGE, "'~' is not expanded" },
        { "path: $HOME/m.gguf", CF_RANGE, "variables are not expanded" },
        { "path: \"a\\nb\"", CF_RANGE, "control character (0x0A)" },
        { "name: a b", CF_RANGE, "holds a space" },
        { "address: a", CF_TYPE, "no port" },
        { "choice: gren", CF_RANGE, "did you mean 'green'" },
        { "choice: violet", CF_RANGE, "not one of red, green, blue" },
        { "list: [ a, b, c, d ]", CF_RANGE, "4 entries; at most 3" },
        { "list: a", CF_TYPE, "must be a list" },
        { "group: []", CF_TYPE, "must be a mapping" },
        { "group: { nested: 6 }", CF_RANGE, "at most 5" },
        { "items: [ { n: 1 } ]", CF_MISSING, "'name' is missing in an item" },
        { "items: [ { name: a, name: b } ]", CF_DUPLICATE, "first in line 1, column 12" },
        { "future: 1", CF_NOT_YET, "does not honour it yet" },
        { "futrue: 1", CF_UNKNOWN_KEY, "did you mean 'future'?" },
        { "nested: 1", CF_UNKNOWN_KEY, "belongs in 'group'" },
        { "group: { count: 1 }", CF_UNKNOWN_KEY, "belongs in a thing" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct world w;
        read_thing(&w, rows[i].text);
        if (w.rep.n != 1) fail_msg("%s: %zu findings", rows[i].text, w.rep.n);
        if (w.rep.findings[0].class != rows[i].class) fail_msg("%s: class %d", rows[i].text, (int)w.rep.findings[0].class);
        if (!strstr(w.rep.findings[0].text, rows[i].says)) fail_msg("%s: %s", rows[i].text, w.rep.findings[0].text);
        done(&w);
    }
}

static void a_value_that_does_not_fit_leaves_the_default(void **state) {
    (void)state;
    struct world w;
    read_thing(&w, "flag: no\ncount: 1000\nchoice: pink\nlist: [ a, b, c, d ]\nnumber: x\n");
    assert_int_equal(w.rep.n, 5);
    assert_true(w.t.flag);
    assert_int_equal(w.t.count, CF_AUTO);
    assert_int_equal(w.t.choice, 1);
    assert_int_equal(w.t.n_list, 1);
    assert_false(w.t.has_number);
    done(&w);
}

static void counts_edits(void **state) {
    (void)state;
    assert_int_equal(cf_distance("ctx_cap", "ctx_cap", 3), 0);
    assert_int_equal(cf_distance("ctx-Cap", "ctx_cap", 3), 0);
    assert_int_equal(cf_distance("ctx_kap", "ctx_cap", 3), 1);
    assert_int_equal(cf_distance("ctx_cpa", "ctx_cap", 3), 1);
    assert_int_equal(cf_distance("tx_cap", "ctx_cap", 3), 1);
    assert_int_equal(cf_distance("cctx_cap", "ctx_cap", 3), 1);
    assert_int_equal(cf_distance("kitten", "sitting", 3), 3);
    assert_int_equal(cf_distance("kitten", "sitting", 2), 3);
    assert_int_equal(cf_distance("", "abc", 3), 3);
    assert_int_equal(cf_distance("abc", "", 3), 3);
    char longest[64];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(cf_distance(longest, longest, 3), 4);
}

static void knows_what_yaml_1_1_makes_of_words(void **state) {
    (void)state;
    static const char *const taken[] = {
        "y",  "N",   "yes", "No",   "ON",  "off",    "true", "False", "",      "~",     "null",       "NULL",     "0",
        "12", "-12", "+1",  "010",  "0_1", "0x1F",   "0b10", "0o17",  "1_000", "12:30", "12:30:45",   "-1:20",    "1:20.5",
        "1.", "1.5", ".5",  "-1.5", "1e3", "1.5e+3", "1E-3", ".inf",  "-.INF", ".nan",  "2024-05-01", "2024-5-1", "2024-05-01T12:00:00Z"
    };
    static const char *const free_words[] = { "a",        "yesterday", "nope",           "1.5b",  "qwen2.5", "0x", "0xZZ", "1:2:3x",
                                              "7:latest", "127.0.0.1", "127.0.0.1:8080", "1.2.3", "-",       "+",  ".",    "-a",
                                              "2024-05",  "e3",        "12:345",         "_1",    "v1" };
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!cf_yaml11(taken[i])) fail_msg("'%s' is a plain text?", taken[i]);
    for (size_t i = 0; i < sizeof free_words / sizeof *free_words; i++)
        if (cf_yaml11(free_words[i])) fail_msg("'%s' is %s?", free_words[i], cf_yaml11(free_words[i]));
}

static void reads_addresses(void **state) {
    (void)state;
    struct cf_address a;
    assert_true(cf_address_parse("127.0.0.1:8080", &a) && a.loopback && !a.v6 && a.port == 8080);
    assert_true(cf_address_parse("127.255.0.3:0", &a) && a.loopback && a.port == 0);
    assert_true(cf_address_parse("128.0.0.1:65535", &a) && !a.loopback && a.port == 65535);
    assert_true(cf_address_parse("[::1]:1", &a) && a.loopback && a.v6);
    assert_true(cf_address_parse("[::ffff:127.0.0.1]:1", &a) && a.loopback);
    assert_true(cf_address_parse("[::]:1", &a) && !a.loopback);
    static const char *const wrong[] = { "",
                                         ":",
                                         "127.0.0.1",
                                         "127.0.0.1:",
                                         "127.0.0.1:65536",
                                         "127.0.0.1:123456",
                                         "127.0.0.1:01",
                                         "127.0.0.1:-1",
                                         "127.0.0.1:1x",
                                         "127.1:80",
                                         "0127.0.0.1:80",
                                         "::1:80",
                                         "[::1]",
                                         "[::1:80",
                                         "[]:80",
                                         "]:80",
                                         "[127.0.0.1]:80",
                                         "[fe80::1%eth0]:80",
                                         "a:80",
                                         "[1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb]:1" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (cf_address_parse(wrong[i], &a)) fail_msg("'%s' is an address?", wrong[i]);
}

/* --- THE key table ---------------------------------------------------------------------------------------------------------- */
static void check_rows(const struct cf_keys *keys) {
    assert_non_null(keys->in);
    assert_true(keys->n > 0 && keys->n <= 32);
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        for (size_t j = 0; j < i; j++) assert_string_not_equal(k->name, keys->rows[j].name);
        for (const char *p = k->name; *p; p++)
            if (!(*p == '_' || (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9')))
                fail_msg("key '%s' has another style than the rest", k->name);
        if (!k->help || !*k->help || strpbrk(k->help, "|\n") || k->help[strlen(k->help) - 1] != '.')
            fail_msg("'%s': help is a sentence without '|'", k->name);
        if (k->kind >= CF_COUNT && k->kind <= CF_PERCENT && !(k->min < k->max || k->must)) fail_msg("'%s' has no bounds", k->name);
        if (k->kind == CF_LIST && k->max < 1) fail_msg("'%s': a list needs a cap", k->name);
        if ((k->kind == CF_CHOICE) != (k->words != NULL)) fail_msg("'%s': choices have words", k->name);
        if (k->kind == CF_GROUP || (k->kind == CF_LIST && k->each == CF_GROUP)) assert_non_null(k->keys);
        bool honoured = !k->later && k->kind != CF_GROUP && !k->only;
        if (honoured && !k->stored) fail_msg("'%s' is honoured, but its value goes nowhere", k->name);
        if (k->must && k->def) fail_msg("'%s' is required and has a default", k->name);
        if (k->def) { /* defaults fit their rows */
            struct cf_report rep;
            struct fo_err e;
            union cf_value v;
            const struct cf_node n = { .kind = CF_NODE_SCALAR, .plain = true, .text = k->def, .len = (uint32_t)strlen(k->def) };
            assert_int_equal(cf_report_init(&rep, &e), FO_OK);
            if (!cf_scalar_read(k, k->kind == CF_LIST ? k->each : k->kind, &n, &rep, &v))
                fail_msg("the default of '%s': %s", k->name, rep.findings[0].text);
            cf_report_done(&rep);
        }
        if (k->keys) check_rows(k->keys);
    }
}

static void all_are_honoured(const struct cf_keys *keys) {
    for (size_t i = 0; i < keys->n; i++) {
        if (keys->rows[i].later) fail_msg("'%s' is known and not honoured", keys->rows[i].name);
        if (keys->rows[i].keys) all_are_honoured(keys->rows[i].keys);
    }
}

static void every_key_is_honoured(void **state) {
    (void)state;
    all_are_honoured(cf_manifest_keys());
}

static void every_row_of_the_key_table_is_sound(void **state) {
    (void)state;
    check_rows(cf_manifest_keys());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_defaults_of_every_kind),
        cmocka_unit_test(writes_values_of_every_kind),
        cmocka_unit_test(says_what_is_wrong_with_each_kind),
        cmocka_unit_test(a_value_that_does_not_fit_leaves_the_default),
        cmocka_unit_test(counts_edits),
        cmocka_unit_test(knows_what_yaml_1_1_makes_of_words),
        cmocka_unit_test(reads_addresses),
        cmocka_unit_test(every_row_of_the_key_table_is_sound),
        cmocka_unit_test(every_key_is_honoured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
