/* JSON Schemas as grammars: which texts come out, for what pydantic and zod write and for what is hard; what is refused, and where; hostile
 * ones. The official suite is `make check-schemas`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/program.h"
#include "engine/grammar/schema.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"
#include "tests/support/clock.h"
#include "tests/support/page.h"

static int compile(const char *schema, size_t len, struct pn_program **ret, char pointer[PN_SCHEMA_POINTER_BYTES], struct fo_err *e) {
    struct pn_ir *ir = NULL;
    int rc = pn_ir_new(&ir, e);
    pointer[0] = '\0';
    if (rc == 0) rc = pn_schema_compile(schema, len, ir, pointer, e);
    if (rc == 0) rc = pn_program_new(ir, ret, e);
    pn_ir_free(ir);
    return rc;
}

static bool runs(const struct pn_program *p, const char *text) {
    struct pn_pda *a;
    struct fo_err e = { 0 };
    assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 20, 1 << 24, &a, &e), 0);
    uint32_t s = pn_pda_start(a, &e);
    for (; *text && s != PN_STATE_NONE && s != PN_STATE_DEAD; text++) {
        if (pn_pda_full(a)) assert_int_equal(pn_pda_keep(a, &s, 1, &e), 0);
        s = pn_pda_step(a, s, (uint8_t)*text, &e);
    }
    if (s == PN_STATE_NONE) fail_msg("%s", e.msg);
    bool yes = s != PN_STATE_DEAD && pn_pda_state(a, s)->may_end;
    pn_pda_free(a);
    return yes;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
enum { SLOW = 10 };
#else
enum { SLOW = 1 };
#endif

#define MAX_TEXTS 16
struct language {
    const char *schema, *yes[MAX_TEXTS], *no[MAX_TEXTS];
};

static void hold(const struct language *l) {
    char pointer[PN_SCHEMA_POINTER_BYTES];
    struct pn_program *p = NULL;
    struct fo_err e = { 0 };
    if (compile(l->schema, strlen(l->schema), &p, pointer, &e)) fail_msg("%s: %s", l->schema, e.msg);
    for (int i = 0; i < MAX_TEXTS && l->yes[i]; i++)
        if (!runs(p, l->yes[i])) fail_msg("%s should allow %s", l->schema, l->yes[i]);
    for (int i = 0; i < MAX_TEXTS && l->no[i]; i++)
        if (runs(p, l->no[i])) fail_msg("%s should not allow %s", l->schema, l->no[i]);
    pn_program_free(p);
}

#define HOLD(...)                                                                        \
    static const struct language list[] = { __VA_ARGS__ };                               \
    (void)state;                                                                         \
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) hold(&list[i])

static void takes_a_recursive_model_of_pydantic(void **state) {
    HOLD({ "{\"$defs\":{\"Node\":{\"properties\":{\"value\":{\"title\":\"Value\",\"type\":\"integer\"},\"children\":{\"default\":[],\"items\":{\"$ref\":\"#/$defs/Node\"},"
           "\"title\":\"Children\",\"type\":\"array\"},\"parent\":{\"anyOf\":[{\"$ref\":\"#/$defs/Node\"},{\"type\":\"null\"}],\"default\":null}},\"required\":[\"value\"],"
           "\"title\":\"Node\",\"type\":\"object\",\"additionalProperties\":false}},\"$ref\":\"#/$defs/Node\"}",
           { "{\"value\": 1}", "{\"value\":1,\"children\":[{\"value\": -2, \"children\": [{\"value\":3}]}],\"parent\":null}", "{\"value\":0,\"parent\":{\"value\":9}}" },
           { "{}", "{\"value\":1.5}", "{\"value\":01}", "{\"children\":[],\"value\":1}", "{\"value\":1,\"other\":2}", "{\"value\":1,}", "{\"value\":  1}", "{\"value\":1,\"children\":[1]}" } });
}

static void takes_a_discriminated_union_of_pydantic(void **state) {
    HOLD({ "{\"$defs\":{\"Cat\":{\"properties\":{\"kind\":{\"const\":\"cat\",\"title\":\"Kind\",\"type\":\"string\"},\"lives\":{\"maximum\":9,\"minimum\":1,\"type\":\"integer\"}},"
           "\"required\":[\"kind\",\"lives\"],\"type\":\"object\",\"additionalProperties\":false},\"Dog\":{\"properties\":{\"kind\":{\"enum\":[\"dog\",\"wolf\"],\"type\":\"string\"},"
           "\"name\":{\"maxLength\":3,\"minLength\":1,\"type\":\"string\"}},\"required\":[\"kind\",\"name\"],\"type\":\"object\",\"additionalProperties\":false}},"
           "\"properties\":{\"pet\":{\"discriminator\":{\"mapping\":{\"cat\":\"#/$defs/Cat\",\"dog\":\"#/$defs/Dog\"},\"propertyName\":\"kind\"},"
           "\"oneOf\":[{\"$ref\":\"#/$defs/Cat\"},{\"$ref\":\"#/$defs/Dog\"}]}},\"required\":[\"pet\"],\"type\":\"object\",\"additionalProperties\":false}",
           { "{\"pet\":{\"kind\":\"cat\",\"lives\":9}}", "{\"pet\": {\"kind\": \"wolf\", \"name\": \"\\u00e9\xC3\xA9\\n\"}}" },
           { "{\"pet\":{\"kind\":\"cat\",\"lives\":10}}", "{\"pet\":{\"kind\":\"dog\",\"lives\":9}}", "{\"pet\":{\"kind\":\"wolf\",\"name\":\"abcd\"}}", "{\"pet\":{\"kind\":\"wolf\",\"name\":\"\"}}" } });
}

static void takes_what_zod_writes(void **state) {
    HOLD({ "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":\"uuid\"},\"tuple\":{\"type\":\"array\","
           "\"minItems\":2,\"maxItems\":2,\"items\":[{\"type\":\"string\"},{\"type\":\"number\"}]},\"tags\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"boolean\"}},"
           "\"opt\":{\"type\":[\"string\",\"null\"]},\"pos\":{\"type\":\"number\",\"exclusiveMinimum\":0}},\"required\":[\"id\",\"tuple\"],\"additionalProperties\":false}",
           { "{\"id\":\"01234567-89ab-cdef-0123-456789ABCDEF\",\"tuple\":[\"\",1e5],\"tags\":{\"a\":true,\"\\\"\":false},\"opt\":null,\"pos\":0.5}",
             "{\"id\": \"01234567-89ab-cdef-0123-456789abcdef\", \"tuple\": [\"x\", -0.25]}" },
           { "{\"id\":\"01234567-89ab-cdef-0123-456789abcde\",\"tuple\":[\"\",1]}", "{\"id\":\"01234567-89ab-cdef-0123-456789abcdef\",\"tuple\":[\"\"]}",
             "{\"id\":\"01234567-89ab-cdef-0123-456789abcdef\",\"tuple\":[\"\",1],\"pos\":0}", "{\"id\":\"01234567-89ab-cdef-0123-456789abcdef\",\"tuple\":[\"\",1],\"tags\":{\"a\":1}}" } });
}

static void additional_properties_have_other_names(void **state) {
    HOLD({ "{\"properties\":{\"ab\":{\"type\":\"null\"}},\"patternProperties\":{\"^x\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"string\"},\"type\":\"object\"}",
           { "{}", "{\"ab\":null}", "{\"ab\":null,\"x1\":1,\"abc\":\"\"}", "{\"a\":\"\"}", "{\"\":\"\"}" },
           { "{\"ab\":\"\"}", "{\"x1\":\"\"}", "{\"\\u0061b\":\"\"}", "{\"a\":\"\",\"ab\":null}", "{\"\\u0078\":\"\"}" } },
         { "{\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":3},\"minProperties\":1,\"maxProperties\":2,\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}",
           { "{\"a\":null}", "{\"abc\":null, \"x\":null}" }, { "{}", "{\"abcd\":null}", "{\"A\":null}", "{\"a\":null,\"b\":null,\"c\":null}" } },
         { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}},\"additionalProperties\":false,\"minProperties\":2,\"maxProperties\":2,\"required\":[\"b\"]}",
           { "{\"a\":null,\"b\":null}", "{\"b\":null,\"c\":null}" }, { "{\"b\":null}", "{\"a\":null,\"c\":null}", "{\"a\":null,\"b\":null,\"c\":null}" } });
}

static void patterns_see_characters_whatever_their_spelling(void **state) {
    HOLD({ "{\"type\":\"string\",\"pattern\":\"^(a|\\u00e9|\\ud83d\\ude00|\\\\n)$\"}",
           { "\"a\"", "\"\\u0061\"", "\"\xC3\xA9\"", "\"\\u00E9\"", "\"\xF0\x9F\x98\x80\"", "\"\\ud83d\\uDE00\"", "\"\\n\"", "\"\\u000a\"" },
           { "\"b\"", "\"\\u0062\"", "\"\n\"", "\"\\ud83d\"", "\"\\ud83d\\ude01\"", "\"\"", "a" } },
         { "{\"type\":\"string\",\"pattern\":\"[0-9]{2}\",\"maxLength\":4,\"not\":{\"const\":\"0042\"}}", { "\"12\"", "\"a12b\"", "\"0043\"" }, { "\"1a2\"", "\"0042\"", "\"a12bc\"" } },
         { "{\"type\":\"string\",\"minLength\":2,\"maxLength\":1000000}", { "\"ab\"", "\"\\\"\\\\\"" }, { "\"a\"", "\"\\u00e9\"", "\"a\tb\"" } },
         { "{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"}],\"type\":\"string\"}", { "\"ab\"", "\"axb\"" }, { "\"a\"", "\"b\"", "\"ba\"" } });
}

static void numbers_are_compared_digit_by_digit(void **state) {
    HOLD({ "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":305,\"multipleOf\":4}", { "-12", "0", "304", "-4", "100" }, { "-16", "305", "308", "2", "1000", "4.0", "04", "-0.0" } },
         { "{\"type\":\"number\",\"minimum\":0.5,\"maximum\":2.25}", { "0.5", "1", "2.25", "2.250", "0.51" }, { "0.4999", "2.2501", "-1", "1e0", "3", "" } },
         { "{\"type\":\"number\",\"multipleOf\":0.01}", { "0.01", "19.99", "5", "-0.10", "1.230" }, { "0.001", "1.234" } },
         { "{\"not\":{\"type\":\"integer\"},\"type\":\"number\"}", { "1.5", "-0.25" }, { "1", "1.0" } },
         { "{\"enum\":[1,1.0,2.5,1e3,-0.0]}", { "1", "2.5", "1000", "0" }, { "1.0", "3", "-1" } });
}

static void arrays_count_what_they_contain(void **state) {
    HOLD({ "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":1,\"maxContains\":2,\"maxItems\":4}",
           { "[5]", "[1,5,2,6]", "[1, 2, 3, 9]" }, { "[]", "[1]", "[5,6,7]", "[1,2,3,4,5]", "[,5]" } },
         { "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}", { "[]", "[1]", "[1,2]" }, { "[2]", "[1,2,3]" } },
         { "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",null]},\"uniqueItems\":true,\"minItems\":2}", { "[\"a\",null]", "[null,\"b\",\"a\"]" }, { "[\"a\"]", "[\"a\",\"a\"]" } },
         { "{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":3,\"maxItems\":4}", { "[null,null,null]", "[null,null,null,null]" }, { "[null,null]", "[null,null,null,null,null]" } });
}

static void conditions_and_opposites_are_worked_out(void **state) {
    HOLD({ "{\"type\":\"object\",\"properties\":{\"c\":{\"enum\":[\"US\",\"NL\"]},\"zip\":{\"type\":\"string\"}},\"required\":[\"c\",\"zip\"],\"additionalProperties\":false,"
           "\"if\":{\"properties\":{\"c\":{\"const\":\"US\"}}},\"then\":{\"properties\":{\"zip\":{\"pattern\":\"^[0-9]{5}$\"}}},\"else\":{\"properties\":{\"zip\":{\"pattern\":\"^[0-9]{4} [A-Z]{2}$\"}}}}",
           { "{\"c\":\"US\",\"zip\":\"12345\"}", "{\"c\":\"NL\",\"zip\":\"1234 AB\"}" }, { "{\"c\":\"NL\",\"zip\":\"12345\"}", "{\"c\":\"US\",\"zip\":\"1234 AB\"}" } },
         { "{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", { "1", "2.5", "\"a\"" }, { "3", "1.5" } },
         { "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":1}},\"dependentRequired\":{\"a\":[\"b\"]},\"unevaluatedProperties\":false}",
           { "{}", "{\"b\":1}", "{\"a\":1,\"b\":1}" }, { "{\"a\":1}", "{\"c\":1}" } });
}

static void formats_know_the_calendar(void **state) {
    HOLD({ "{\"type\":\"string\",\"format\":\"date\"}", { "\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"" }, { "\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"" } },
         { "{\"type\":\"string\",\"format\":\"date-time\"}", { "\"2024-02-29T23:59:59.5Z\"", "\"1998-12-31T23:59:60Z\"", "\"2024-01-01t00:00:00+05:30\"" }, { "\"2024-01-01T24:00:00Z\"", "\"2024-01-01\"" } },
         { "{\"type\":\"string\",\"format\":\"ipv6\"}", { "\"::1\"", "\"2001:db8::ff00:42:8329\"", "\"::ffff:192.0.2.1\"" }, { "\"1::2::3\"", "\"12345::\"", "\":1\"" } },
         { "{\"type\":\"string\",\"format\":\"email\"}", { "\"a.b@c.example\"" }, { "\"a@\"", "\"a..b@c\"" } });
}

/* --- refusals ---------------------------------------------------------------------------------- */
static void refusals_name_the_place(void **state) {
    static const struct {
        const char *schema, *pointer, *words;
        enum fo_code code;
    } list[] = {
        { "{\"type\":\"array\",\"uniqueItems\":true}", "/uniqueItems", "'uniqueItems' at '/uniqueItems' is not supported", FO_EUNSUPPORTED },
        { "{\"properties\":{\"a/b~\":{\"items\":[true,{\"pattern\":\"(?=x)\"}]}}}", "/properties/a~1b~0/items/1/pattern", "looking ahead", FO_EUNSUPPORTED },
        { "{\"$ref\":\"https://example.com/a.json\"}", "/$ref", "nothing is fetched", FO_EUNSUPPORTED },
        { "{\"$ref\":\"#/$defs/a\"}", "/$ref", "there is nothing at", FO_EINVAL },
        { "{\"$ref\":\"#\"}", "", "without end", FO_ELIMIT },
        { "{\"type\":\"text\"}", "/type", "it must be null, boolean", FO_EINVAL },
        { "{\"minLength\":-1}", "/minLength", "whole number", FO_EINVAL },
        { "{\"pattern\":\"a(\"}", "/pattern", "character 3", FO_EINVAL },
        { "{\"$recursiveRef\":\"#\"}", "/$recursiveRef", "2019-09", FO_EUNSUPPORTED },
        { "{\"multipleOf\":0.123456789}", "/multipleOf", "remainders", FO_EUNSUPPORTED },
        { "3", "", "a schema is an object", FO_EINVAL },
        { "{\"a\":", "", "JSON Schema", FO_EFORMAT },
        { "{\"type\":\"null\",\"type\":\"string\"}", "", "duplicate", FO_EFORMAT },
        { "{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", "", "no text", FO_EINVAL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char pointer[PN_SCHEMA_POINTER_BYTES];
        struct pn_program *p = NULL;
        struct fo_err e = { 0 };
        if (compile(list[i].schema, strlen(list[i].schema), &p, pointer, &e) == 0) fail_msg("%s was taken", list[i].schema);
        if (e.code != list[i].code || strcmp(pointer, list[i].pointer) != 0 || !strstr(e.msg, list[i].words))
            fail_msg("%s: %s at '%s': %s", list[i].schema, fo_code_name(e.code), pointer, e.msg);
    }
}

static void hostile_schemas_end_in_bounded_work(void **state) {
    static char text[PN_SCHEMA_MAX_BYTES + 64];
    char pointer[PN_SCHEMA_POINTER_BYTES];
    (void)state;
    for (int which = 0; which < 8; which++) {
        char *p = text, *end = text + sizeof text;
        struct pn_program *program = NULL;
        struct fo_err e = { 0 };
        switch (which) {
        case 0: /* depth */
            for (int i = 0; i < 20000; i++) p += snprintf(p, (size_t)(end - p), "{\"not\":");
            break;
        case 1: /* each reference twice the last */
            p += snprintf(p, (size_t)(end - p), "{\"$ref\":\"#/$defs/a40\",\"$defs\":{\"a0\":{\"minimum\":1}");
            for (int i = 1; i <= 40; i++) p += snprintf(p, (size_t)(end - p), ",\"a%d\":{\"allOf\":[{\"$ref\":\"#/$defs/a%d\"},{\"$ref\":\"#/$defs/a%d\"}]}", i, i - 1, i - 1);
            p += snprintf(p, (size_t)(end - p), "}}");
            break;
        case 2: /* all of many any of two */
            p += snprintf(p, (size_t)(end - p), "{\"allOf\":[true");
            for (int i = 0; i < 40; i++) p += snprintf(p, (size_t)(end - p), ",{\"anyOf\":[{\"required\":[\"a%d\"]},{\"required\":[\"b%d\"]}]}", i, i);
            p += snprintf(p, (size_t)(end - p), "]}");
            break;
        case 3: /* an enum as large as it gets */
            p += snprintf(p, (size_t)(end - p), "{\"enum\":[0");
            for (int i = 0; i < 60000; i++) p += snprintf(p, (size_t)(end - p), ",\"v%d\"", i);
            p += snprintf(p, (size_t)(end - p), "]}");
            break;
        case 4: p += snprintf(p, (size_t)(end - p), "{\"pattern\":\"(a|b)*a(a|b){20}$\"}"); break;
        case 5: p += snprintf(p, (size_t)(end - p), "{\"pattern\":\"((((a{99}){99}){99}){99}){99}\"}"); break;
        case 6: /* many alike properties */
            p += snprintf(p, (size_t)(end - p), "{\"minProperties\":5000,\"properties\":{\"a\":{}");
            for (int i = 0; i < 9000; i++) p += snprintf(p, (size_t)(end - p), ",\"a%d\":{\"pattern\":\"x%d\"}", i, i);
            p += snprintf(p, (size_t)(end - p), "}}");
            break;
        default: /* each rule asks for two larger ones */
            p += snprintf(p, (size_t)(end - p), "{\"items\":{\"allOf\":[{\"$ref\":\"#\"},{\"items\":{\"anyOf\":[{\"$ref\":\"#\"},{\"items\":{\"$ref\":\"#/items\"}}]}}]}}");
            break;
        }
        int rc = compile(text, (size_t)(p - text), &program, pointer, &e);
        if (which == 0) assert_int_equal(e.code, FO_EFORMAT);
        if (which > 0 && rc != 0 && e.code != FO_ELIMIT && e.code != FO_EUNSUPPORTED && e.code != FO_EINVAL) fail_msg("%d: %s: %s", which, fo_code_name(e.code), e.msg);
        if (rc == 0) pn_program_free(program);
    }
    struct pn_program *program = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(compile(text, sizeof text, &program, pointer, &e), FO_ELIMIT);
}

/* What the number of its properties does not ask to be counted for. */
static void an_open_object_of_a_thousand_properties_is_taken(void **state) {
    static char text[1 << 17];
    char pointer[PN_SCHEMA_POINTER_BYTES], *p = text, *end = text + sizeof text;
    struct pn_program *program = NULL;
    struct fo_err e = { 0 };
    (void)state;
    p += snprintf(p, (size_t)(end - p), "{\"type\":\"object\",\"properties\":{\"first\":{\"type\":\"null\"}");
    for (int i = 0; i < 1000; i++) p += snprintf(p, (size_t)(end - p), ",\"p%d\":{\"type\":\"null\"}", i);
    p += snprintf(p, (size_t)(end - p), "},\"required\":[\"p7\"]}");
    if (compile(text, (size_t)(p - text), &program, pointer, &e)) fail_msg("%s", e.msg);
    assert_true(runs(program, "{\"first\":null,\"p7\":null,\"p999\":null,\"other\":1}"));
    assert_false(runs(program, "{\"first\":null,\"p999\":null}"));
    assert_false(runs(program, "{\"p7\":null,\"p999\":1}"));
    pn_program_free(program);
}

static void every_failing_allocation_is_an_error(void **state) {
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"^a+$\",\"type\":\"string\"},\"b\":{\"oneOf\":[{\"minimum\":3,\"type\":\"integer\"},{\"$ref\":\"#\"}]}},"
                                 "\"patternProperties\":{\"^x\":{\"enum\":[1,\"2\",[3]]}},\"required\":[\"a\"],\"minProperties\":2}";
    (void)state;
    for (long n = 1;; n++) {
        char pointer[PN_SCHEMA_POINTER_BYTES] = "";
        struct pn_ir *ir = NULL;
        struct fo_err e = { 0 };
        assert_int_equal(pn_ir_new(&ir, &e), 0);
        test_fail_alloc(n);
        int rc = pn_schema_compile(schema, sizeof schema - 1, ir, pointer, &e);
        bool failed = test_alloc_failed();
        pn_ir_free(ir);
        if (!failed) {
            assert_int_equal(rc, 0);
            break;
        }
        if (rc != FO_ENOMEM) fail_msg("allocation %ld: %s: %s", n, fo_code_name(rc), e.msg);
    }
}

static void the_table_has_each_keyword_once(void **state) {
    (void)state;
    for (size_t i = 0; pn_schema_row(i); i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(pn_schema_row(i)->keyword, pn_schema_row(j)->keyword) == 0) fail_msg("%s stands twice", pn_schema_row(i)->keyword);
}

static void the_reference_says_what_the_table_says(void **state) {
    static const char *const uses[] = { "enforced", "annotation", "refused" };
    struct fo_buf want;
    (void)state;
    fo_buf_init(&want, 1 << 20);
    fo_buf_puts(&want, "| Keyword | | |\n|---|---|---|\n");
    for (size_t i = 0; pn_schema_row(i); i++) fo_buf_printf(&want, "| `%s` | %s | %s |\n", pn_schema_row(i)->keyword, uses[pn_schema_row(i)->use], pn_schema_row(i)->note);
    fo_buf_puts(&want, "\nFormats:");
    for (size_t i = 0; pn_schema_format_name(i); i++) fo_buf_printf(&want, "%s `%s`", i > 0 ? "," : "", pn_schema_format_name(i));
    fo_buf_puts(&want, ".\n");
    test_page_part("docs/structured-output.md", "<!-- keywords -->\n", &want);
    fo_buf_done(&want);
}

static void pain_54_a_maxlength_of_a_million_within_others_compiles_in_ten_milliseconds(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"maxItems\":1000000,\"items\":{\"type\":\"object\",\"properties\":{"
                                 "\"b\":{\"type\":\"string\",\"minLength\":2000,\"maxLength\":1000000},\"c\":{\"type\":\"array\",\"maxItems\":65536,\"items\":{\"maxLength\":999999}}}}}}}";
    char pointer[PN_SCHEMA_POINTER_BYTES];
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        struct pn_program *p;
        struct fo_err e;
        double from = test_cpu_ms();
        if (compile(schema, sizeof schema - 1, &p, pointer, &e)) fail_msg("%s", e.msg);
        double took = test_cpu_ms() - from;
        if (took < best) best = took;
        pn_program_free(p);
    }
    print_message("%.2f ms\n", best);
    if (best >= 10 * SLOW) fail_msg("%.1f ms", best);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_a_recursive_model_of_pydantic),
        cmocka_unit_test(takes_a_discriminated_union_of_pydantic),
        cmocka_unit_test(takes_what_zod_writes),
        cmocka_unit_test(additional_properties_have_other_names),
        cmocka_unit_test(patterns_see_characters_whatever_their_spelling),
        cmocka_unit_test(numbers_are_compared_digit_by_digit),
        cmocka_unit_test(arrays_count_what_they_contain),
        cmocka_unit_test(conditions_and_opposites_are_worked_out),
        cmocka_unit_test(formats_know_the_calendar),
        cmocka_unit_test(refusals_name_the_place),
        cmocka_unit_test(hostile_schemas_end_in_bounded_work),
        cmocka_unit_test(an_open_object_of_a_thousand_properties_is_taken),
        cmocka_unit_test(every_failing_allocation_is_an_error),
        cmocka_unit_test(the_table_has_each_keyword_once),
        cmocka_unit_test(the_reference_says_what_the_table_says),
        cmocka_unit_test(pain_54_a_maxlength_of_a_million_within_others_compiles_in_ten_milliseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
