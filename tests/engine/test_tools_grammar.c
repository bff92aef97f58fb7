/* The grammar of calls: what it lets through and what not, in each form that models have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/program.h"
#include "engine/tools.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"
#include "tests/support/clock.h"
#include "tests/support/dialects.h"

struct tools_case {
    const char *tools; /* a list */
    enum pn_tool_choice choice;
    const char *named;
    bool one_call;
    const char *content; /* a schema */
};

static struct tools_case offer(const char *tools, enum pn_tool_choice choice) {
    return (struct tools_case){ .tools = tools, .choice = choice };
}

static int build_of(const struct pn_dialect *d, const struct tools_case *k, struct pn_program **ret, char where[128], struct fo_err *e) {
    struct pn_tools *t = NULL;
    struct pn_ir *ir = NULL;
    struct fo_buf b;
    struct pn_tools_opts o = { .json = k->tools, .len = strlen(k->tools), .choice = k->choice, .named = k->named, .one_call = k->one_call };
    fo_buf_init(&b, 1 << 20);
    int rc = pn_tools_new(&o, &t, where, e);
    if (rc == 0) rc = pn_tools_grammar(t, d, k->content, k->content ? strlen(k->content) : 0, &b, where, e);
    if (rc == 0) rc = pn_ir_new(&ir, e);
    if (rc == 0) rc = pn_pieces_build(ir, b.data, b.len, e);
    if (rc == 0) rc = pn_program_new(ir, ret, e);
    pn_ir_free(ir);
    fo_buf_done(&b);
    pn_tools_put(t);
    return rc;
}

static int build(const char *row, const struct tools_case *k, struct pn_program **ret, char where[128], struct fo_err *e) {
    struct test_dialect d;
    test_dialect_open(&d, test_call_row(row), NULL, false);
    int rc = build_of(d.d, k, ret, where, e);
    test_dialect_close(&d);
    return rc;
}

static bool runs(const struct pn_program *p, const char *text, bool whole) {
    struct pn_pda *a;
    struct fo_err e = { 0 };
    assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 20, 1 << 24, &a, &e), 0);
    uint32_t s = pn_pda_start(a, &e);
    for (; *text && s != PN_STATE_NONE && s != PN_STATE_DEAD; text++) {
        if (pn_pda_full(a)) assert_int_equal(pn_pda_keep(a, &s, 1, &e), 0);
        s = pn_pda_step(a, s, (uint8_t)*text, &e);
    }
    if (s == PN_STATE_NONE) fail_msg("%s", e.msg);
    bool yes = s != PN_STATE_DEAD && (!whole || pn_pda_state(a, s)->may_end);
    pn_pda_free(a);
    return yes;
}

#define MAX_TEXTS 20
static void hold(const char *row, struct tools_case k, const char *const yes[MAX_TEXTS], const char *const no[MAX_TEXTS]) {
    struct pn_program *p = NULL;
    char where[128];
    struct fo_err e = { 0 };
    if (build(row, &k, &p, where, &e)) fail_msg("%s: at '%s': %s", k.tools, where, e.msg);
    for (int i = 0; i < MAX_TEXTS && yes[i]; i++)
        if (!runs(p, yes[i], true)) fail_msg("%s should allow %s", row, yes[i]);
    for (int i = 0; i < MAX_TEXTS && no[i]; i++)
        if (runs(p, no[i], true)) fail_msg("%s should not allow %s", row, no[i]);
    pn_program_free(p);
}
#define TEXTS(...) ((const char *const[MAX_TEXTS]){ __VA_ARGS__ })

#define F(name, more) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" more "}}"
#define STRICT ",\"strict\":true"
#define PARAMETERS(...) ",\"parameters\":" #__VA_ARGS__
#define CITY PARAMETERS({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1}},"required":["city"],"additionalProperties":false})

static void objects_in_tags_are_held_to_the_schema_where_a_call_is_demanded(void **state) {
    (void)state;
    hold("hermes", offer("[" F("get", CITY) "," F("get_all", "") "]", PN_TOOL_REQUIRED),
         TEXTS("<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Bath\"}}\n</tool_call>",
               "<tool_call>\n{\"name\":\"get\",\"arguments\":{\"city\":\"Bath\",\"days\":3}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"get_all\", \"arguments\": {\"x\" : [1, {}]}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_all\", \"arguments\": {}}\n</tool_call>"),
         TEXTS("", "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": 1}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"a\", \"days\": 0}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"ge\", \"arguments\": {\"city\": \"Bath\"}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Bath\"}}",
               "<tool_call>\n{\"name\": \"get_all\", \"arguments\": []}\n</tool_call>", "{\"city\": \"Bath\"}"));
}

static void without_a_demand_only_strict_functions_are_held(void **state) {
    (void)state;
    hold("hermes", offer("[" F("loose", CITY) "," F("tight", CITY STRICT) "," F("none", STRICT) "," F("empty", PARAMETERS({}) STRICT) "]", PN_TOOL_AUTO),
         TEXTS("<tool_call>\n{\"name\": \"loose\", \"arguments\": {\"town\": 1}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"tight\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"tight\", \"arguments\": {\n    \"city\": \"a\"}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>", "<tool_call>\n{\"name\": \"empty\", \"arguments\": {}}\n</tool_call>"),
         TEXTS("<tool_call>\n{\"name\": \"tight\", \"arguments\": {\"town\": \"a\"}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"none\", \"arguments\": {\"a\": 1}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"empty\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
}

static void one_function_and_one_call_are_all_that_comes_when_they_are_asked_for(void **state) {
    (void)state;
    hold("hermes", (struct tools_case){ "[" F("a", "") "," F("b", "") "]", PN_TOOL_NAMED, "b", true, NULL },
         TEXTS("<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"),
         TEXTS("<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"));
}

static void content_of_a_schema_may_come_in_the_place_of_calls(void **state) {
    (void)state;
    hold("hermes", (struct tools_case){ "[" F("a", "") "]", PN_TOOL_AUTO, NULL, false, "{\"type\":\"object\",\"required\":[\"x\"],\"properties\":{\"x\":{\"$ref\":\"#/$defs/n\"}},"
                                        "\"additionalProperties\":false,\"$defs\":{\"n\":{\"type\":\"integer\"}}}" },
         TEXTS("<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>", "{\"x\": 1}"),
         TEXTS("{\"x\": \"1\"}", "{}", "{\"x\": 1}<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call>"));
}

static void lists_have_their_calls_between_brackets_with_or_without_ids(void **state) {
    (void)state;
    hold("mistral", offer("[" F("a", CITY STRICT) "," F("b", "") "]", PN_TOOL_REQUIRED),
         TEXTS("[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {}}]", "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {\"city\": \"x\"}, \"id\": \"a1B2c3D4e\"}]",
               "[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {}}, {\"name\": \"b\", \"arguments\": {\"k\": [\"\\ud83d\\ude00\"]}}]"),
         TEXTS("[TOOL_CALLS][]", "[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {}}", "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {}}]",
               "[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {}, \"id\": \"short\"}]", "[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {\"k\": \"\\ud83d\"}}]",
               "[TOOL_CALLS][{\"name\": \"b\", \"arguments\": {}}{\"name\": \"b\", \"arguments\": {}}]"));
}

static void names_may_stand_in_front_of_the_arguments(void **state) {
    (void)state;
    hold("mistral-args", offer("[" F("a", CITY STRICT) "," F("ab", "") "]", PN_TOOL_REQUIRED),
         TEXTS("[TOOL_CALLS]a[ARGS]{\"city\": \"x\"}", "[TOOL_CALLS]ab[CALL_ID]123456789[ARGS]{\"city\": 1}[TOOL_CALLS]a[ARGS]{\"city\": \"x\"}"),
         TEXTS("[TOOL_CALLS]a[ARGS]{}", "[TOOL_CALLS]b[ARGS]{}", "[TOOL_CALLS]ab{}"));
}

#define TAGGED PARAMETERS({"type":"object","required":["path","n"],"properties":{"path":{"type":"string","description":"d"},"mode":{"enum":["r","rw"]},"n":{"type":"integer"},\
    "list":{"type":"array","items":{"type":"string"}},"when":{"type":"string","pattern":"^[0-9]{4}$"}}})
#define P(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define CALLED(name, parameters) "<tool_call>\n<function=" name ">\n" parameters "</function>\n</tool_call>"

static void values_in_tags_are_bare_text_or_json_in_the_order_of_the_schema(void **state) {
    (void)state;
    hold("qwen3-xml", offer("[" F("f", TAGGED STRICT) "," F("none", STRICT) "]", PN_TOOL_AUTO),
         TEXTS(CALLED("f", P("path", "/tmp/a \"b\" <c>\n\n</parameter\n</d>") P("n", "12")),
               CALLED("f", P("path", "") P("mode", "rw") P("n", "-1") P("list", "[\"a\", \"\\u003cb\"]") P("when", "1999")), CALLED("none", ""),
               CALLED("none", "") "\n" CALLED("f", P("path", "\xf0\x9f\x98\x80") P("n", "0"))),
         TEXTS(CALLED("f", P("path", "a")), CALLED("f", P("n", "1") P("path", "a")), CALLED("f", P("path", "a") P("n", "x")),
               CALLED("f", P("path", "a") P("n", "\"1\"")), CALLED("f", P("path", "a") P("mode", "w") P("n", "1")),
               CALLED("f", P("path", "a") P("n", "1") P("when", "12")), CALLED("f", P("path", "a") P("n", "1") P("when", "\"1234\"")),
               CALLED("f", P("path", "a") P("n", "1") P("list", "[\"</parameter>\"]")), CALLED("f", P("path", "a") P("n", "1") P("else", "1")),
               CALLED("none", P("path", "a")), CALLED("f", P("path", "a</parameter>b") P("n", "1")), CALLED("f", P("path", "\xff") P("n", "1"))));
}

static void a_function_that_is_not_strict_takes_any_arguments_in_tags(void **state) {
    (void)state;
    hold("qwen3-xml", offer("[" F("f", TAGGED) "," F("g", "") "]", PN_TOOL_AUTO),
         TEXTS(CALLED("f", P("n", "x") P("path", "a")), CALLED("f", ""), CALLED("g", P("some.name-1", "{\"a\": 1}"))),
         TEXTS(CALLED("f", P("other", "x")), CALLED("g", P("a name", "x")), CALLED("g", P("", "x"))));
    /* What cannot be written so is held to nothing, where that is allowed. */
    hold("qwen3-xml", offer("[" F("f", PARAMETERS({"type":"object","minProperties":2,"properties":{"a":{"type":"integer"}}})) "]", PN_TOOL_REQUIRED),
         TEXTS(CALLED("f", P("a", "x"))), TEXTS(CALLED("f", P("b", "x"))));
}

static void what_cannot_be_held_is_refused_for_a_strict_function_and_let_go_for_others(void **state) {
    (void)state;
    static const struct {
        const char *row, *parameters, *where;
        enum fo_code code;
    } rows[] = {
        { "hermes", "{\"type\":\"object\",\"properties\":{\"a/b\":{\"items\":{\"type\":\"string\"},\"uniqueItems\":true}}}", "0.function.parameters.properties.a~1b.uniqueItems", FO_EUNSUPPORTED },
        { "hermes", "{\"type\":1}", "0.function.parameters.type", FO_EINVAL },
        { "hermes", "{\"type\":\"string\"}", "0.function.parameters", FO_EINVAL },
        { "qwen3-xml", "{\"type\":\"object\",\"minProperties\":1}", "0.function.parameters.minProperties", FO_EUNSUPPORTED },
        { "qwen3-xml", "{\"properties\":{\"a b>\":{}}}", "0.function.parameters.properties", FO_EUNSUPPORTED },
        { "qwen3-xml", "{\"properties\":{},\"required\":[\"a\"]}", "0.function.parameters.required", FO_EUNSUPPORTED },
        { "qwen3-xml", "{\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":1000000}}}", "0.function.parameters.properties.a", FO_ELIMIT },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int strict = 0; strict < 2; strict++) {
            struct fo_buf b;
            struct pn_program *p = NULL;
            char where[128];
            struct fo_err e = { 0 };
            fo_buf_init(&b, 1 << 16);
            fo_buf_printf(&b, "[" F("f", ",\"strict\":%s,\"parameters\":%s") "]", strict ? "true" : "false", rows[i].parameters);
            struct tools_case k = offer(fo_buf_str(&b), PN_TOOL_REQUIRED);
            int rc = build(rows[i].row, &k, &p, where, &e);
            if (strict ? rc != (int)rows[i].code || p || strcmp(where, rows[i].where) != 0 : rc != 0) fail_msg("%s: %d at '%s': %s", fo_buf_str(&b), rc, where, e.msg);
            pn_program_free(p);
            fo_buf_done(&b);
        }
    struct pn_program *p = NULL;
    char where[128];
    struct fo_err e = { 0 };
    struct tools_case long_text = offer("[" F("f", PARAMETERS({"properties":{"a":{"type":"string","minLength":1,"maxLength":400}}}) STRICT) "]", PN_TOOL_AUTO);
    if (build("qwen3-xml", &long_text, &p, where, &e)) fail_msg("%s", e.msg);
    pn_program_free(p);
    p = NULL;
    assert_int_equal(build("hermes", &(struct tools_case){ .tools = "[" F("f", "") "]", .content = "{\"properties\":{\"a\":{\"type\":1}}}" }, &p, where, &e), FO_EINVAL);
    assert_string_equal(where, "/properties/a/type");
}

static void the_head_of_a_call_begins_the_answer_in_every_dialect(void **state) {
    (void)state;
    const struct pn_call_format *f;
    for (size_t i = 0; (f = pn_call_format_row(i / 2)); i++) {
        static const char tools[] = "[" F("f", TAGGED) "," F("ff", STRICT) "]";
        struct pn_tools_opts o = { .json = tools, .len = sizeof tools - 1, .choice = PN_TOOL_REQUIRED };
        struct pn_tools *t;
        struct pn_program *p = NULL;
        char where[128];
        struct fo_err e = { 0 };
        struct test_dialect test;
        test_dialect_open(&test, f, NULL, i % 2);
        const struct pn_dialect *d = test.d;
        assert_int_equal(pn_tools_new(&o, &t, where, &e), 0);
        struct tools_case c = offer(tools, PN_TOOL_REQUIRED);
        if (build_of(d, &c, &p, where, &e)) fail_msg("%s: %s", f->name, e.msg);
        for (int k = 0; k < 2; k++) {
            struct fo_buf head;
            fo_buf_init(&head, 1 << 16);
            pn_tools_head(t, d, k, &head);
            if (!runs(p, fo_buf_str(&head), false)) fail_msg("%s: %s", f->name, fo_buf_str(&head));
            fo_buf_puts(&head, f->shape == PN_CALL_TAGS ? pn_dialect_call_text(d, k ? PN_CALL_END : PN_CALL_ARG_BEGIN) : k ? "{}" : "{\"path\"");
            if (!runs(p, fo_buf_str(&head), false)) fail_msg("%s: %s", f->name, fo_buf_str(&head));
            fo_buf_done(&head);
        }
        pn_program_free(p);
        pn_tools_put(t);
        test_dialect_close(&test);
    }
}

static void a_model_whose_calls_nobody_knows_is_held_to_none(void **state) {
    (void)state;
    static const char template[] = "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}please do {{ c.function.name }} with "
                                   "{{ c.function.arguments|tojson }} now{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    struct pn_chat *c;
    struct pn_dialect *d;
    struct pn_program *p = NULL;
    char where[128] = "?";
    struct fo_err e = { 0 };
    assert_int_equal(pn_chat_open_text(template, sizeof template - 1, "", "", &c, &e), 0);
    assert_int_equal(pn_dialect_new(c, NULL, &d, &e), 0);
    assert_null(pn_dialect_calls(d));
    struct tools_case k = offer("[" F("f", "") "]", PN_TOOL_REQUIRED);
    assert_int_equal(build_of(d, &k, &p, where, &e), FO_EUNSUPPORTED);
    assert_string_equal(where, "");
    pn_dialect_free(d);
    pn_chat_free(c);
}

static void the_tools_of_an_agent_are_compiled_in_milliseconds(void **state) {
    (void)state;
    json_t *body = json_load_file("tests/cases/clients/opencode_first.json", 0, NULL);
    char *tools = json_dumps(json_object_get(body, "tools"), 0);
    assert_non_null(tools);
    static const char *const rows[] = { "hermes", "qwen3-xml", "mistral" };
    for (size_t i = 0; i < 3; i++) {
        struct test_dialect test;
        test_dialect_open(&test, test_call_row(rows[i]), NULL, false);
        const struct pn_dialect *d = test.d;
        double most = 0;
        for (int choice = 0; choice < 2; choice++) {
            struct pn_tools_opts o = { .json = tools, .len = strlen(tools), .choice = choice ? PN_TOOL_REQUIRED : PN_TOOL_AUTO };
            double best[2] = { 1e9, 1e9 };
            size_t n_text = 0, n_ops = 0;
            for (int k = 0; k < 5; k++) {
                struct pn_tools *t;
                struct pn_program *p = NULL;
                struct pn_ir *ir = NULL;
                struct fo_buf b;
                char where[128];
                struct fo_err e = { 0 };
                fo_buf_init(&b, 1 << 20);
                double from = test_cpu_ms();
                if (pn_tools_new(&o, &t, where, &e) || pn_tools_grammar(t, d, NULL, 0, &b, where, &e)) fail_msg("%s", e.msg);
                double text = test_cpu_ms();
                if (pn_ir_new(&ir, &e) || pn_pieces_build(ir, b.data, b.len, &e) || pn_program_new(ir, &p, &e)) fail_msg("%s", e.msg);
                double end = test_cpu_ms();
                best[0] = text - from < best[0] ? text - from : best[0];
                best[1] = end - text < best[1] ? end - text : best[1];
                n_text = b.len;
                n_ops = p->n_ops;
                pn_program_free(p);
                pn_ir_free(ir);
                fo_buf_done(&b);
                pn_tools_put(t);
            }
            print_message("%s, %s: text in %.2f ms (%zu bytes), code in %.2f ms (%zu ops)\n", rows[i], choice ? "required" : "auto", best[0], n_text, best[1], n_ops);
            most = best[0] + best[1] > most ? best[0] + best[1] : most;
        }
        if (most > 200) fail_msg("%.1f ms", most); /* a tenth of that in a release build */
        test_dialect_close(&test);
    }
    free(tools);
    json_decref(body);
}

static void is_made_without_memory_or_not_at_all(void **state) {
    (void)state;
    static const char *const rows[] = { "hermes", "qwen3-xml" };
    static const char tools[] = "[" F("f", TAGGED) "," F("ff", STRICT) "]", content[] = "{\"type\":\"integer\"}";
    struct pn_tools_opts o = { .json = tools, .len = sizeof tools - 1, .choice = PN_TOOL_REQUIRED };
    for (size_t i = 0; i < 2; i++) {
        struct pn_tools *t;
        char where[128];
        struct fo_err e = { 0 };
        struct test_dialect test;
        test_dialect_open(&test, test_call_row(rows[i]), NULL, false);
        const struct pn_dialect *d = test.d;
        assert_int_equal(pn_tools_new(&o, &t, where, &e), 0);
        bool failed = true;
        for (long n = 1; failed; n++) {
            struct pn_ir *ir = NULL;
            struct fo_buf b;
            fo_buf_init(&b, 1 << 20);
            test_fail_alloc(n);
            int rc = pn_tools_grammar(t, d, content, sizeof content - 1, &b, where, &e);
            if (rc == 0) rc = pn_ir_new(&ir, &e);
            if (rc == 0) rc = pn_pieces_build(ir, b.data, b.len, &e);
            failed = test_alloc_failed();
            /* A function that is not strict may get any object instead, but not for want of memory. */
            if (rc != (failed ? FO_ENOMEM : FO_OK)) fail_msg("allocation %ld: %d %s", n, rc, e.msg);
            pn_ir_free(ir);
            fo_buf_done(&b);
        }
        pn_tools_put(t);
        test_dialect_close(&test);
    }
}

static void hostile_pieces_are_refused(void **state) {
    (void)state;
    struct fo_buf good;
    fo_buf_init(&good, 1 << 16);
    pn_piece_document(&good, "{\"type\":\"integer\"}", 18, '<');
    pn_piece_seq(&good, 4);
    pn_piece_literal(&good, "a", 1);
    pn_piece_list(&good);
    pn_piece_alt(&good, 2);
    pn_piece_schema(&good, &(struct pn_piece_schema){ .form = PN_SCHEMA_JSON });
    pn_piece_object(&good);
    pn_piece_blank(&good);
    pn_piece_repeat(&good, 0, 3);
    pn_piece_literal(&good, "b", 1);
    pn_piece_literal(&good, "", 0);
    char *copy = malloc(good.len);
    assert_non_null(copy);
    for (size_t cut = 0; cut <= good.len; cut++) { /* every beginning, and in the whole every byte changed in some ways */
        for (size_t at = 0; at < (cut == good.len ? good.len : 1); at++) {
            static const char changes[] = { 0, 1, 2, 0x40, (char)0x80, (char)0xFF };
            for (size_t c = 0; c < sizeof changes; c++) {
                struct pn_ir *ir;
                struct fo_err e = { 0 };
                memcpy(copy, good.data, cut);
                if (cut == good.len) copy[at] ^= changes[c];
                assert_int_equal(pn_ir_new(&ir, &e), 0);
                int rc = pn_pieces_build(ir, copy, cut, &e);
                bool whole = cut == good.len && changes[c] == 0;
                if (whole ? rc != 0 : cut < good.len && rc == 0) fail_msg("%zu bytes: %d %s", cut, rc, e.msg);
                if (rc != 0 && (!e.msg[0] || rc == FO_EINTERNAL)) fail_msg("byte %zu: %d %s", at, rc, e.msg);
                pn_ir_free(ir);
            }
        }
    }
    free(copy);
    fo_buf_clear(&good);
    for (int i = 0; i < 100; i++) pn_piece_seq(&good, 1);
    pn_piece_blank(&good);
    struct pn_ir *ir;
    struct fo_err e = { 0 };
    assert_int_equal(pn_ir_new(&ir, &e), 0);
    assert_int_equal(pn_pieces_build(ir, good.data, good.len, &e), FO_EINVAL);
    pn_ir_free(ir);
    fo_buf_done(&good);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_in_tags_are_held_to_the_schema_where_a_call_is_demanded),
        cmocka_unit_test(without_a_demand_only_strict_functions_are_held),
        cmocka_unit_test(one_function_and_one_call_are_all_that_comes_when_they_are_asked_for),
        cmocka_unit_test(content_of_a_schema_may_come_in_the_place_of_calls),
        cmocka_unit_test(lists_have_their_calls_between_brackets_with_or_without_ids),
        cmocka_unit_test(names_may_stand_in_front_of_the_arguments),
        cmocka_unit_test(values_in_tags_are_bare_text_or_json_in_the_order_of_the_schema),
        cmocka_unit_test(a_function_that_is_not_strict_takes_any_arguments_in_tags),
        cmocka_unit_test(what_cannot_be_held_is_refused_for_a_strict_function_and_let_go_for_others),
        cmocka_unit_test(the_head_of_a_call_begins_the_answer_in_every_dialect),
        cmocka_unit_test(a_model_whose_calls_nobody_knows_is_held_to_none),
        cmocka_unit_test(the_tools_of_an_agent_are_compiled_in_milliseconds),
        cmocka_unit_test(is_made_without_memory_or_not_at_all),
        cmocka_unit_test(hostile_pieces_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
