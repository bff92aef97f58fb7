/* The functions of a request: what is read, what is refused and where, and what is known of their parameters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tools.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"

#define F(name, more) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" more "}}"

static int make(const char *json, enum pn_tool_choice choice, const char *named, struct pn_tools **ret, char where[128], struct fo_err *e) {
    struct pn_tools_opts o = { .json = json, .len = strlen(json), .choice = choice, .named = named };
    return pn_tools_new(&o, ret, where, e);
}

static struct pn_tools *made(const char *json, enum pn_tool_choice choice, const char *named) {
    struct pn_tools *t = NULL;
    char where[128];
    struct fo_err e = { 0 };
    if (make(json, choice, named, &t, where, &e)) fail_msg("%s: at '%s': %s", json, where, e.msg);
    return t;
}

static void knows_its_functions_by_name(void **state) {
    (void)state;
    struct pn_tools *t = made("[" F("a", "") "," F("b-2_C", ",\"description\":null,\"parameters\":null,\"strict\":null") "," F("c", ",\"parameters\":{},\"strict\":true") "]",
                              PN_TOOL_AUTO, NULL);
    assert_int_equal(pn_tools_n(t), 3);
    assert_string_equal(pn_tools_name(t, 1), "b-2_C");
    assert_int_equal(pn_tools_find(t, "a,", 1), 0);
    assert_int_equal(pn_tools_find(t, "b-2_C", 5), 1);
    assert_int_equal(pn_tools_find(t, "b-2_", 4), -1);
    assert_int_equal(pn_tools_find(t, "", 0), -1);
    assert_int_equal(pn_tools_choice(t), PN_TOOL_AUTO);
    assert_false(pn_tools_one_call(t));
    assert_ptr_equal(pn_tools_ref(t), t);
    pn_tools_put(t);
    pn_tools_put(t);
    pn_tools_put(NULL);
}

static void finds_only_the_function_that_is_demanded(void **state) {
    (void)state;
    struct pn_tools *t = made("[" F("a", "") "," F("b", "") "]", PN_TOOL_NAMED, "b");
    assert_int_equal(pn_tools_find(t, "a", 1), -1);
    assert_int_equal(pn_tools_find(t, "b", 1), 1);
    pn_tools_put(t);
    t = made("[" F("a", "") "," F("b", "") "]", PN_TOOL_REQUIRED, NULL);
    assert_int_equal(pn_tools_find(t, "a", 1), 0);
    pn_tools_put(t);
}

static void refuses_what_is_no_function_and_says_where(void **state) {
    (void)state;
    static const struct {
        const char *json, *where;
        enum fo_code code;
    } rows[] = {
        { "{}", "", FO_EINVAL },
        { "[", "", FO_EINVAL },
        { "", "", FO_EINVAL },
        { "[1]", "0", FO_EINVAL },
        { "[" F("a", "") ",null]", "1", FO_EINVAL },
        { "[{}]", "0.type", FO_EINVAL },
        { "[{\"type\":1}]", "0.type", FO_EINVAL },
        { "[{\"type\":\"code_interpreter\"}]", "0.type", FO_EUNSUPPORTED },
        { "[{\"type\":\"function\"}]", "0.function", FO_EINVAL },
        { "[{\"type\":\"function\",\"function\":[]}]", "0.function", FO_EINVAL },
        { "[{\"type\":\"function\",\"function\":{}}]", "0.function.name", FO_EINVAL },
        { "[" F("", "") "]", "0.function.name", FO_EINVAL },
        { "[" F("a b", "") "]", "0.function.name", FO_EINVAL },
        { "[" F("a\\u0000", "") "]", "0.function.name", FO_EINVAL },
        { "[" F("\xc3\xa9", "") "]", "0.function.name", FO_EINVAL },
        { "[" F("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "") "]", "0.function.name", FO_EINVAL },
        { "[" F("a", "") "," F("a", "") "]", "1.function.name", FO_EINVAL },
        { "[" F("a", ",\"description\":1") "]", "0.function.description", FO_EINVAL },
        { "[" F("a", ",\"parameters\":true") "]", "0.function.parameters", FO_EINVAL },
        { "[" F("a", ",\"parameters\":[]") "]", "0.function.parameters", FO_EINVAL },
        { "[" F("a", ",\"strict\":\"yes\"") "]", "0.function.strict", FO_EINVAL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pn_tools *t = NULL;
        char where[128] = "?";
        struct fo_err e = { 0 };
        int rc = make(rows[i].json, PN_TOOL_AUTO, NULL, &t, where, &e);
        if (rc != (int)rows[i].code || e.code != rows[i].code || t || strcmp(where, rows[i].where) != 0 || !e.msg[0])
            fail_msg("%s: %d at '%s': %s", rows[i].json, rc, where, e.msg);
    }
}

static void refuses_a_demand_that_nothing_meets(void **state) {
    (void)state;
    struct pn_tools *t = NULL;
    char where[128];
    struct fo_err e = { 0 };
    assert_int_equal(make("[" F("a", "") "]", PN_TOOL_NAMED, "b", &t, where, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "function b "));
    assert_int_equal(make("[]", PN_TOOL_REQUIRED, NULL, &t, where, &e), FO_EINVAL);
    assert_int_equal(make("[]", PN_TOOL_AUTO, NULL, &t, where, &e), 0);
    assert_int_equal(pn_tools_n(t), 0);
    pn_tools_put(t);
}

static void refuses_too_many(void **state) {
    (void)state;
    for (int n = PN_MAX_TOOLS; n <= PN_MAX_TOOLS + 1; n++) {
        struct fo_buf b;
        struct pn_tools *t = NULL;
        char where[128];
        struct fo_err e = { 0 };
        fo_buf_init(&b, 1 << 20);
        for (int i = 0; i < n; i++) fo_buf_printf(&b, "%c" F("f%d", ""), i ? ',' : '[', i);
        fo_buf_puts(&b, "]");
        assert_int_equal(make(fo_buf_str(&b), PN_TOOL_AUTO, NULL, &t, where, &e), n > PN_MAX_TOOLS ? FO_EINVAL : FO_OK);
        if (n > PN_MAX_TOOLS) assert_true(e.need == (uint64_t)n && e.have == PN_MAX_TOOLS);
        pn_tools_put(t);
        fo_buf_done(&b);
    }
}

static void knows_which_parameters_are_text(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        bool text;
    } rows[] = {
        { "{\"type\":\"string\"}", true },
        { "{\"type\":[\"string\"],\"maxLength\":3}", true },
        { "{\"type\":[\"string\",\"null\"]}", false },
        { "{\"enum\":[\"a\",\"b\"]}", true },
        { "{\"enum\":[\"a\",1]}", false },
        { "{\"enum\":[]}", false },
        { "{\"const\":\"a\"}", true },
        { "{\"const\":null}", false },
        { "{\"type\":\"integer\"}", false },
        { "{\"$ref\":\"#/$defs/T\"}", true },
        { "{\"$ref\":\"#/$defs/a~1b~0\"}", true },
        { "{\"$ref\":\"#/$defs/N\"}", false },
        { "{\"$ref\":\"#/$defs/missing\"}", false },
        { "{\"$ref\":\"https://example.org/x\"}", false },
        { "{\"$ref\":\"#/$defs/Loop\"}", false },
        { "{\"allOf\":[{\"title\":\"x\"},{\"$ref\":\"#/$defs/T\"}]}", true },
        { "{\"anyOf\":[{\"type\":\"string\"},{\"const\":\"a\"}]}", true },
        { "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", false },
        { "{\"oneOf\":[]}", false },
        { "{}", false },
        { "true", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fo_buf b;
        fo_buf_init(&b, 1 << 16);
        fo_buf_printf(&b,
                      "[" F("f", ",\"parameters\":{\"properties\":{\"p\":%s},\"$defs\":{\"T\":{\"type\":\"string\"},\"a/b~\":{\"type\":\"string\"},"
                                "\"N\":{\"type\":\"number\"},\"Loop\":{\"$ref\":\"#/$defs/Loop\"}}}") "," F("g", "") "]",
                      rows[i].schema);
        struct pn_tools *t = made(fo_buf_str(&b), PN_TOOL_AUTO, NULL);
        if (pn_tools_param_is_text(t, 0, "p!", 1) != rows[i].text) fail_msg("%s", rows[i].schema);
        assert_false(pn_tools_param_is_text(t, 0, "q", 1));
        assert_false(pn_tools_param_is_text(t, 1, "p", 1));
        pn_tools_put(t);
        fo_buf_done(&b);
    }
}

static void is_made_without_memory_or_not_at_all(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        struct pn_tools *t = NULL;
        char where[128];
        struct fo_err e = { 0 };
        test_fail_alloc(n);
        int rc = make("[" F("a", ",\"parameters\":{\"type\":\"object\"}") "]", PN_TOOL_AUTO, NULL, &t, where, &e);
        bool failed = test_alloc_failed();
        assert_int_equal(rc, failed ? FO_ENOMEM : FO_OK);
        pn_tools_put(t);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_functions_by_name),
        cmocka_unit_test(finds_only_the_function_that_is_demanded),
        cmocka_unit_test(refuses_what_is_no_function_and_says_where),
        cmocka_unit_test(refuses_a_demand_that_nothing_meets),
        cmocka_unit_test(refuses_too_many),
        cmocka_unit_test(knows_which_parameters_are_text),
        cmocka_unit_test(is_made_without_memory_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
