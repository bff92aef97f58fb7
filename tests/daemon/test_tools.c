/* Functions and reasoning in a request's body: what is taken, in both APIs' forms, and the path of what is at fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

#include "config/manifest.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/reasoning.h"
#include "engine/tools.h"
#include "tests/support/alloc.h"

#define CHAT "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define RESPONSE "{\"model\":\"m\",\"input\":\"a\""
#define F "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}"
#define G "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"strict\":true}}"
#define FLAT "{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},\"strict\":false}"

static struct pd_params take(unsigned api, const char *body) {
    struct pd_params p;
    struct pd_error x;
    if (!pd_params_parse(api, body, strlen(body), &p, &x)) fail_msg("%s: refused: %s", body, x.message);
    return p;
}

static void reads_functions_in_both_forms(void **state) {
    (void)state;
    static const struct {
        unsigned api;
        const char *body, *json; /* NULL = none are offered */
        enum pn_tool_choice choice;
        int n;
        bool one_call;
    } rows[] = {
        { PD_API_CHAT, CHAT "}", NULL, PN_TOOL_AUTO, 0, false },
        { PD_API_CHAT, CHAT ",\"tools\":[]}", NULL, PN_TOOL_AUTO, 0, false },
        { PD_API_CHAT, CHAT ",\"tools\":null,\"tool_choice\":\"auto\"}", NULL, PN_TOOL_AUTO, 0, false },
        { PD_API_CHAT, CHAT ",\"tool_choice\":\"none\"}", NULL, PN_TOOL_AUTO, 0, false },
        { PD_API_CHAT, CHAT ",\"tools\":[" F "," G "]}", "[" F "," G "]", PN_TOOL_AUTO, 2, false },
        { PD_API_CHAT, CHAT ",\"tools\":[" F "],\"tool_choice\":\"none\"}", NULL, PN_TOOL_AUTO, 0, false },
        { PD_API_CHAT, CHAT ",\"tool_choice\":\"required\",\"tools\":[" F "],\"parallel_tool_calls\":false}", "[" F "]", PN_TOOL_REQUIRED, 1, true },
        { PD_API_CHAT, CHAT ",\"tools\":[" F "," G "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}", "[" F "," G "]", PN_TOOL_NAMED, 2, true },
        { PD_API_CHAT, CHAT ",\"tools\":[" F "],\"response_format\":{\"type\":\"json_object\"}}", "[" F "]", PN_TOOL_AUTO, 1, false },
        { PD_API_RESPONSES, RESPONSE ",\"tools\":[" FLAT "],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}",
          "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},\"strict\":false}}]", PN_TOOL_NAMED, 1, true },
        { PD_API_RESPONSES, RESPONSE ",\"tools\":[" FLAT "],\"tool_choice\":\"none\"}", NULL, PN_TOOL_AUTO, 0, false },
        { PD_API_CHAT | PD_API_TEMPLATE, CHAT ",\"tools\":[" F "]}", "[" F "]", PN_TOOL_AUTO, 1, false },
        { PD_API_TOKENIZE, CHAT ",\"tools\":[" F "],\"tool_choice\":\"required\"}", "[" F "]", PN_TOOL_REQUIRED, 1, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_params p = take(rows[i].api, rows[i].body);
        assert_true(!p.tools == !rows[i].json && !p.tools_json == !rows[i].json);
        if (rows[i].json) {
            assert_string_equal(p.tools_json, rows[i].json);
            assert_int_equal(pn_tools_n(p.tools), rows[i].n);
            assert_int_equal(pn_tools_choice(p.tools), rows[i].choice);
            assert_int_equal(pn_tools_one_call(p.tools), rows[i].one_call);
        }
        pd_params_done(&p);
    }
}

static void names_what_is_at_fault_by_its_path(void **state) {
    (void)state;
    static const struct {
        unsigned api;
        const char *fields, *param, *code; /* code NULL = null */
    } rows[] = {
        { PD_API_CHAT, "\"tools\":{}", "tools", NULL },
        { PD_API_CHAT, "\"tools\":[5]", "tools.0", NULL },
        { PD_API_CHAT, "\"tools\":[{}]", "tools.0.type", NULL },
        { PD_API_CHAT, "\"tools\":[" F ",{\"type\":\"web_search\"}]", "tools.1.type", "unsupported_parameter" },
        { PD_API_CHAT, "\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"f\"}}]", "tools.0.type", "unsupported_parameter" },
        { PD_API_CHAT, "\"tools\":[{\"type\":\"function\"}]", "tools.0.function", NULL },
        { PD_API_CHAT, "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]", "tools.0.function", NULL },
        { PD_API_CHAT, "\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools.0.function.name", NULL },
        { PD_API_CHAT, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools.0.function.name", NULL },
        { PD_API_CHAT, "\"tools\":[" F "," F "]", "tools.1.function.name", NULL },
        { PD_API_CHAT, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]", "tools.0.function.parameters", NULL },
        { PD_API_CHAT, "\"tool_choice\":\"required\"", "tool_choice", NULL },
        { PD_API_CHAT, "\"tools\":[],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "tool_choice", NULL },
        { PD_API_CHAT, "\"tools\":[" F "],\"tool_choice\":\"any\"", "tool_choice", "invalid_value" },
        { PD_API_CHAT, "\"tools\":[" F "],\"tool_choice\":5", "tool_choice", NULL },
        { PD_API_CHAT, "\"tools\":[" F "],\"tool_choice\":{}", "tool_choice.type", NULL },
        { PD_API_CHAT, "\"tools\":[" F "],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}", "tool_choice.function.name", NULL },
        { PD_API_CHAT, "\"tools\":[" F "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}", "tool_choice.function.name", "invalid_value" },
        { PD_API_CHAT, "\"tools\":[" F "],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{}}", "tool_choice.type", "unsupported_parameter" },
        { PD_API_CHAT, "\"tools\":[" F "],\"parallel_tool_calls\":1", "parallel_tool_calls", NULL },
        { PD_API_CHAT, "\"tools\":[" F "],\"grammar\":\"root ::= \\\"a\\\"\"", "grammar", "unsupported_parameter" },
        { PD_API_CHAT, "\"regex\":\"a\",\"tools\":[" F "]", "regex", "unsupported_parameter" },
        { PD_API_CHAT, "\"guided_choice\":[\"a\"],\"tools\":[" F "],\"tool_choice\":\"required\"", "guided_choice", "unsupported_parameter" },
        { PD_API_CHAT, "\"functions\":[{\"name\":\"f\"}]", "functions", "unsupported_parameter" },
        { PD_API_CHAT, "\"function_call\":\"auto\"", "function_call", "unsupported_parameter" },
        { PD_API_RESPONSES, "\"tools\":[5]", "tools.0", NULL },
        { PD_API_RESPONSES, "\"tools\":[" F "]", "tools.0.name", NULL },
        { PD_API_RESPONSES, "\"tools\":[" FLAT "," FLAT "]", "tools.1.name", NULL },
        { PD_API_RESPONSES, "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":5}]", "tools.0.strict", NULL },
        { PD_API_RESPONSES, "\"tools\":[{\"type\":\"mcp\"}]", "tools.0.type", "unsupported_parameter" },
        { PD_API_RESPONSES, "\"tools\":[" FLAT "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "tool_choice.name", NULL },
        { PD_API_RESPONSES, "\"tools\":[" FLAT "],\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}", "tool_choice.name", "invalid_value" },
        { PD_API_RESPONSES, "\"tools\":[" FLAT "],\"tool_choice\":{\"type\":\"file_search\"}", "tool_choice.type", "unsupported_parameter" },
        { PD_API_CHAT, "\"reasoning_effort\":\"huge\"", "reasoning_effort", "invalid_value" },
        { PD_API_CHAT, "\"reasoning_effort\":5", "reasoning_effort", NULL },
        { PD_API_CHAT, "\"reasoning_budget\":-2", "reasoning_budget", "invalid_value" },
        { PD_API_CHAT, "\"reasoning_budget\":0.5", "reasoning_budget", NULL },
        { PD_API_CHAT, "\"reasoning\":{\"effort\":\"low\"}", "reasoning", "unknown_parameter" },
        { PD_API_RESPONSES, "\"reasoning\":\"low\"", "reasoning", NULL },
        { PD_API_RESPONSES, "\"reasoning\":{\"effort\":\"huge\"}", "reasoning.effort", "invalid_value" },
        { PD_API_RESPONSES, "\"reasoning\":{\"effrt\":\"low\"}", "reasoning.effrt", "unknown_parameter" },
        { PD_API_RESPONSES, "\"reasoning_effort\":\"low\"", "reasoning_effort", "unknown_parameter" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1024];
        snprintf(body, sizeof body, "%s,%s}", rows[i].api == PD_API_CHAT ? CHAT : RESPONSE, rows[i].fields);
        struct pd_params p;
        struct pd_error x;
        if (pd_params_parse(rows[i].api, body, strlen(body), &p, &x)) fail_msg("taken: %s", body);
        const char *code = pd_error_row(x.id)->code;
        if (strcmp(x.param, rows[i].param) != 0 || pd_error_row(x.id)->status != 400) fail_msg("%s: %s at '%s'", body, x.message, x.param);
        if (!code != !rows[i].code || (code && strcmp(code, rows[i].code) != 0)) fail_msg("%s: code %s", body, code ? code : "null");
        assert_true(x.message[0]);
    }
}

/* The budget of an answer: the request's own, else none where no thought is wanted, else the manifest's. */
static void effort_and_budget_mean_this(void **state) {
    (void)state;
    static const struct {
        unsigned api;
        const char *fields, *extra; /* NULL = none */
        int64_t manifest, budget;   /* manifest -1 = says nothing */
    } rows[] = {
        { PD_API_CHAT, "", NULL, -1, -1 },
        { PD_API_CHAT, "", NULL, 7, 7 },
        { PD_API_CHAT, ",\"reasoning_budget\":3", NULL, 7, 3 },
        { PD_API_CHAT, ",\"reasoning_budget\":-1", NULL, 7, -1 },
        { PD_API_CHAT, ",\"reasoning_budget\":0", NULL, -1, 0 },
        { PD_API_CHAT, ",\"reasoning_budget\":null", NULL, 0, 0 },
        { PD_API_CHAT, ",\"reasoning_effort\":\"high\"", "{\"reasoning_effort\":\"high\"}", 7, 7 },
        { PD_API_CHAT, ",\"reasoning_effort\":\"none\"", "{\"reasoning_effort\":\"none\",\"enable_thinking\":false}", 7, 0 },
        { PD_API_CHAT, ",\"reasoning_effort\":\"none\",\"reasoning_budget\":2", "{\"reasoning_effort\":\"none\",\"enable_thinking\":false}", 7, 2 },
        { PD_API_CHAT, ",\"chat_template_kwargs\":{\"enable_thinking\":true,\"a\":1},\"reasoning_effort\":\"none\"", "{\"enable_thinking\":true,\"a\":1,\"reasoning_effort\":\"none\"}", -1, -1 },
        { PD_API_CHAT, ",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"reasoning_effort\":\"mine\"}", "{\"reasoning_effort\":\"mine\"}", -1, -1 },
        { PD_API_CHAT, ",\"chat_template_kwargs\":{\"a\":1}", "{\"a\":1}", -1, -1 },
        { PD_API_RESPONSES, ",\"reasoning\":{\"effort\":\"none\",\"summary\":\"auto\"}", "{\"reasoning_effort\":\"none\",\"enable_thinking\":false}", 7, 0 },
        { PD_API_RESPONSES, ",\"reasoning\":{\"effort\":null}", NULL, 7, 7 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        snprintf(body, sizeof body, "%s%s}", rows[i].api == PD_API_CHAT ? CHAT : RESPONSE, rows[i].fields);
        struct pd_params p = take(rows[i].api, body);
        pd_params_defaults(&p, &(struct cf_sampling){ .has_reasoning_budget = rows[i].manifest >= 0, .reasoning_budget = rows[i].manifest });
        assert_int_equal(p.reasoning_budget, rows[i].budget);
        if (rows[i].extra) assert_string_equal(p.extra_json, rows[i].extra);
        else assert_null(p.extra_json);
        pd_params_done(&p);
    }
}

static void a_thought_that_comes_back_has_one_name(void **state) {
    (void)state;
    static const struct {
        const char *members, *want;
    } rows[] = {
        { "\"reasoning_content\":\"t\"", "t" }, { "\"reasoning\":\"t\"", "t" }, { "\"reasoning\":\"other\",\"reasoning_content\":\"t\"", "t" }, { "\"reasoning\":null", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",%s}]}", rows[i].members);
        struct pd_params p = take(PD_API_CHAT, body);
        json_t *v = json_loads(p.messages_json, 0, NULL);
        const char *got = json_string_value(json_object_get(json_array_get(v, 0), "reasoning_content"));
        assert_true(!got == !rows[i].want && (!got || strcmp(got, rows[i].want) == 0));
        json_decref(v);
        pd_params_done(&p);
    }
    struct pd_params p;
    struct pd_error x;
    static const char body[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":5}]}";
    assert_false(pd_params_parse(PD_API_CHAT, body, sizeof body - 1, &p, &x));
    assert_string_equal(x.param, "messages.0.reasoning");
}

static void gives_up_cleanly_without_memory(void **state) {
    (void)state;
    static const char *const bodies[] = {
        CHAT ",\"tools\":[" F "," G "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}},\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"a\":1}}",
        RESPONSE ",\"tools\":[" FLAT "],\"tool_choice\":\"required\",\"reasoning\":{\"effort\":\"low\"}}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        test_fail_alloc(0); /* jansson's reader may go on without a byte that had no room, and then finds what is no JSON */
        json_decref(json_loads(bodies[i], JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL));
        for (long n = test_allocs() + 1;; n++) {
            struct pd_params p;
            struct pd_error x = { 0 };
            test_fail_alloc(n);
            bool ok = pd_params_parse(i ? PD_API_RESPONSES : PD_API_CHAT, bodies[i], strlen(bodies[i]), &p, &x), failed = test_alloc_failed();
            test_fail_alloc(0);
            if (!ok && x.id != PD_ERR_MEMORY && !strstr(x.message, "is not JSON")) fail_msg("%ld: %s", n, x.message);
            if (ok) pd_params_done(&p);
            if (failed) continue;
            assert_true(ok && n > 30);
            break;
        }
    }
}

int main(void) {
    json_set_alloc_funcs(malloc, free); /* jansson's allocations fail on demand too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_functions_in_both_forms),
        cmocka_unit_test(names_what_is_at_fault_by_its_path),
        cmocka_unit_test(effort_and_budget_mean_this),
        cmocka_unit_test(a_thought_that_comes_back_has_one_name),
        cmocka_unit_test(gives_up_cleanly_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
