/* The turn parser: every row of dialects, each text whole, cut at every place, byte by byte, and with its marks as control tokens and as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat.h"
#include "engine/grammar/pda.h"
#include "engine/jinja.h"
#include "engine/tools.h"
#include "engine/turn.h"
#include "engine/turn_json.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"
#include "tests/support/dialects.h"

static const char functions[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"unit\":{\"enum\":[\"c\",\"f\"]},\"n\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"},\"any\":{}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather-2\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"none\"}}]";

static struct pn_tools *make_tools(bool one_call) {
    struct pn_tools *t = NULL;
    char where[128];
    struct fo_err e = { 0 };
    const struct pn_tools_opts o = { .json = functions, .len = sizeof functions - 1, .one_call = one_call };
    if (pn_tools_new(&o, &t, where, &e)) fail_msg("%s: %s", where, e.msg);
    return t;
}

/* Parts as text: C(content) R(reasoning) F(name) A(arguments). No part is empty or has a mark, and arguments begin some JSON. */
static void show(const struct fo_buf *parts, struct fo_buf *out) {
    struct pn_part_text p;
    struct pn_json_scan s;
    int last = -1;
    for (size_t at = 0; pn_part_next(parts, &at, &p);) {
        if (p.len == 0) fail_msg("an empty part");
        if (memchr(p.text, PN_MARK, p.len)) fail_msg("a mark came out");
        if ((int)p.part != last || p.part == PN_PART_CALL) fo_buf_printf(out, "%s%c(", last < 0 ? "" : ") ", "CRFA"[p.part]);
        fo_buf_append(out, p.text, p.len);
        last = (int)p.part;
        if (p.part == PN_PART_CALL) pn_json_scan_init(&s);
        for (size_t i = 0; p.part == PN_PART_ARGUMENTS && i < p.len; i++) {
            enum pn_json_step step = pn_json_scan_step(&s, (uint8_t)p.text[i]);
            if (step != PN_JSON_MORE && step != PN_JSON_DONE) fail_msg("arguments are no JSON: %.*s", (int)p.len, p.text);
        }
    }
    if (last >= 0) fo_buf_putc(out, ')');
}

/* Reads text, cut at a and b, or into bytes. */
static void read_in(const struct pn_turn_opts *o, const struct fo_buf *text, size_t a, size_t b, bool bytes, struct fo_buf *out) {
    struct pn_turn *t = NULL;
    struct fo_err e = { 0 };
    struct fo_buf parts;
    const char *s = fo_buf_str(text);
    assert_int_equal(pn_turn_new(o, &t, &e), 0);
    fo_buf_init(&parts, 1 << 24);
    fo_buf_init(out, 1 << 24);
    if (bytes) {
        for (size_t i = 0; i < text->len; i++) pn_turn_push(t, s + i, 1, &parts);
    } else {
        pn_turn_push(t, s, a, &parts);
        pn_turn_push(t, s + a, b - a, &parts);
        pn_turn_push(t, s + b, text->len - b, &parts);
    }
    pn_turn_end(t, &parts);
    assert_false(parts.failed);
    show(&parts, out);
    pn_turn_free(t);
    fo_buf_done(&parts);
}

static void hold_equal(const struct fo_buf *got, const char *want, const char *text, const char *how, size_t at) {
    if (strcmp(fo_buf_str(got), want) != 0) fail_msg("\n%s\n(%s %zu) became\n%s\nand not\n%s", text, how, at, fo_buf_str(got), want);
}

/* All ways of cutting text give what the whole gives, which is `want` (NULL = whatever it is). */
static void check_cuts(const struct pn_turn_opts *o, const struct fo_buf *text, const char *want) {
    struct fo_buf whole, got;
    read_in(o, text, text->len, text->len, false, &whole);
    if (want) hold_equal(&whole, want, fo_buf_str(text), "whole", 0);
    for (size_t a = 0; a <= text->len; a++) {
        read_in(o, text, a, text->len, false, &got);
        hold_equal(&got, fo_buf_str(&whole), fo_buf_str(text), "cut at", a);
        fo_buf_done(&got);
    }
    read_in(o, text, 0, 0, true, &got);
    hold_equal(&got, fo_buf_str(&whole), fo_buf_str(text), "in bytes", 0);
    fo_buf_done(&got);
    fo_buf_done(&whole);
}

/* Cut short at every byte, the answer is what it is, however it came. */
static void check_ends(const struct pn_turn_opts *o, const struct fo_buf *text) {
    for (size_t n = 0; n < text->len; n++) {
        struct fo_buf part, whole, bytes;
        fo_buf_init(&part, 1 << 20);
        fo_buf_append(&part, fo_buf_str(text), n);
        read_in(o, &part, n, n, false, &whole);
        read_in(o, &part, 0, 0, true, &bytes);
        hold_equal(&bytes, fo_buf_str(&whole), fo_buf_str(&part), "ends at", n);
        fo_buf_done(&part);
        fo_buf_done(&whole);
        fo_buf_done(&bytes);
    }
}

static void check(const struct pn_turn_opts *o, const char *text, size_t n, bool marked, const char *want) {
    struct fo_buf in;
    fo_buf_init(&in, 1 << 20);
    if (marked) test_dialect_mark(o->dialect, text, n, &in);
    else fo_buf_append(&in, text, n);
    check_cuts(o, &in, want);
    check_ends(o, &in);
    fo_buf_done(&in);
}

static void check_text(const struct pn_turn_opts *o, const char *text, const char *want) {
    check(o, text, strlen(text), false, want);
}

enum { SINGLE, TWO, NONE_OF_ARGUMENTS, ODD, TEXT_BEFORE, THOUGHT_BEFORE, TEXT_BEHIND, N_SCENES };

static const char *const some[] = { "s", "\"Lima\"", "n", "4", NULL };
static const char *const more[] = { "s", "\"Hanoi\"", NULL };
static const char *const nothing[] = { NULL };
static const char *const odd[] = { "s", "\"a \\\"b\\\" {c} \\\\ ]\\n  K\xc3\xb6ln <b> \xf0\x9f\x98\x80 </tool\"", "o", "{\"x\": [1, {\"y\": \"}\"}], \"z\": null}", "any", "[true, -1.5e3]", NULL };

static void write_scene(const struct pn_call_format *f, const struct pn_reasoning *r, int scene, struct fo_buf *text, struct fo_buf *want) {
    const char *const *args = scene == NONE_OF_ARGUMENTS ? nothing : scene == ODD ? odd : some;
    const char *name = scene == NONE_OF_ARGUMENTS ? "none" : "f";
    if (scene == TEXT_BEFORE) {
        fo_buf_puts(text, "Let me see,\n\nx < y.\n\n");
        fo_buf_puts(want, "C(Let me see,\n\nx < y.) ");
    }
    if (scene == THOUGHT_BEFORE && r) {
        fo_buf_printf(text, "\n%s\n which? <x\n\n f\n%s%s", r->open, r->close, r->after);
        fo_buf_puts(want, "R(which? <x\n\n f) ");
    }
    test_call_write(f, text, name, args, 0, scene != TWO);
    fo_buf_printf(want, "F(%s) A(", name);
    test_call_arguments(f, want, args);
    fo_buf_puts(want, ")");
    if (scene == TWO) {
        test_call_write(f, text, "get_weather-2", more, 1, true);
        fo_buf_puts(want, " F(get_weather-2) A(");
        test_call_arguments(f, want, more);
        fo_buf_puts(want, ")");
    }
    if (scene == TEXT_BEHIND) {
        fo_buf_puts(text, "\n\nDone. \n");
        fo_buf_puts(want, " C(Done. \n)");
    }
}

static void every_row_reads_what_it_writes_however_it_is_cut(void **state) {
    (void)state;
    const struct pn_call_format *f;
    struct pn_tools *tools = make_tools(false);
    for (size_t i = 0; (f = pn_call_format_row(i)); i++) {
        const struct pn_reasoning *r = pn_reasoning_row(i) ? pn_reasoning_row(i) : pn_reasoning_row(0);
        for (int marks = 0; marks < 2; marks++) {
            struct test_dialect d;
            test_dialect_open(&d, f, r, marks);
            assert_ptr_equal(pn_dialect_calls(d.d), f);
            assert_ptr_equal(pn_dialect_reasoning(d.d), r);
            for (int scene = 0; scene < N_SCENES; scene++) {
                if (f->bare && scene == TEXT_BEFORE) continue;
                struct fo_buf text, want;
                fo_buf_init(&text, 1 << 16);
                fo_buf_init(&want, 1 << 16);
                write_scene(f, r, scene, &text, &want);
                const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
                check(&o, fo_buf_str(&text), text.len, marks, fo_buf_str(&want));
                fo_buf_done(&text);
                fo_buf_done(&want);
            }
            test_dialect_close(&d);
        }
    }
    pn_tools_put(tools);
}

/* Of one row each: text, and what it is. */
static const struct odd_case {
    const char *row, *text, *want;
} odd_cases[] = {
#define H "<tool_call>"
#define E "</tool_call>"
    /* Heads are read with tolerance. */
    { "hermes", H "{\"name\":\"f\",\"arguments\":{}}" E, "F(f) A({})" },
    { "hermes", H " \n { \"id\" : \"x\", \"arguments\" : { \"n\" : 1 } , \"name\" : \"f\", \"type\": \"function\" } \n" E "\n", "F(f) A({ \"n\" : 1 })" },
    { "hermes", H "{\"name\": \"f\", \"parameters\": {\"n\": 1}, \"extra\": [1, {\"a\": \"}\"}]}" E, "F(f) A({\"n\": 1})" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": \\\"a\\\\n\\u00e9\\ud83d\\ude00\\\"}\"}" E, "F(f) A({\"s\": \"a\\n\xc3\xa9\xf0\x9f\x98\x80\"})" },
    { "hermes", H "{\"arguments\": \"{\\\"n\\\": 1}\", \"name\": \"f\"}" E, "F(f) A({\"n\": 1})" },
    { "hermes", H "{\"name\": \"none\", \"arguments\": \"\"}" E, "F(none) A({})" },
    { "hermes", H "{\"name\": \"none\", \"arguments\": null}" E, "F(none) A({})" },
    { "hermes", H "{\"arguments\": null, \"name\": \"none\"}" E, "F(none) A({})" },
    { "hermes", H "{\"name\": \"none\"}" E, "F(none) A({})" },
    { "hermes", H "[{\"name\": \"none\"}, {\"name\": \"f\", \"arguments\": {}}]" E, "F(none) A({}) F(f) A({})" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": {\"s\": \"" E H "{\\\"name\\\"\"}}" E, "F(f) A({\"s\": \"" E H "{\\\"name\\\"\"})" },
    { "hermes", H "{\"name\": \"none\"}\n\n then", "F(none) A({}) C(then)" },
    { "hermes", H "{\"name\": \"none\"}\n" H "{\"name\": \"none\"}", "F(none) A({}) F(none) A({})" },
    /* What is no call is content as it was written, */
    { "hermes", "a\n" H "\n{\"name\": \"unknown\", \"arguments\": {}}\n" E " b", "C(a\n" H "\n{\"name\": \"unknown\", \"arguments\": {}}\n" E " b)" },
    { "hermes", H "hello" E, "C(" H "hello" E ")" },
    { "hermes", H "{\"name\": f}" E, "C(" H "{\"name\": f}" E ")" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": [1]}" E, "C(" H "{\"name\": \"f\", \"arguments\": [1]}" E ")" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": \"no\"}" E, "C(" H "{\"name\": \"f\", \"arguments\": \"no\"}" E ")" },
    { "hermes", H "{\"arguments\": {\"n\": 01}, \"name\": \"f\"}" E, "C(" H "{\"arguments\": {\"n\": 01}, \"name\": \"f\"}" E ")" },
    { "hermes", H "{'name': 'f'}" E, "C(" H "{'name': 'f'}" E ")" },
    { "hermes", H "{}" E, "C(" H "{}" E ")" },
    { "hermes", H "{\"name\": \"f\"", "C(" H "{\"name\": \"f\")" },
    { "hermes", "<tool_cal" H "{\"name\": \"none\"}" E, "C(<tool_cal) F(none) A({})" },
    { "hermes", H H "{\"name\": \"none\"}" E, "C(" H ") F(none) A({})" },
    { "hermes", E " " E, "C(" E " " E ")" },
    /* and what breaks behind its head ends the call where it stands. */
    { "hermes", H "{\"name\": \"f\", \"arguments\": {\"n\": tru}}" E, "F(f) A({\"n\": tru) C(}}" E ")" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": {\"s\": \"a\nb\"}}", "F(f) A({\"s\": \"a) C(\nb\"}})" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": {}, oops}", "F(f) A({}) C(, oops})" },
    { "hermes", H "{\"name\": \"f\", \"arguments\": {\"s\": \"\\ud800x\"}}", "F(f) A({\"s\": \"\\ud800) C(x\"}})" },
    /* Thoughts. */
    { "hermes", "<think>\n\n</think>\n\nHi", "C(Hi)" },
    { "hermes", "<think>a</think> <think> b\n</think>\n c ", "R(ab) C(c )" },
    { "hermes", "  <think>a</think>\n\n" H "{\"name\": \"none\"}" E, "R(a) F(none) A({})" },
    { "hermes", "Hi <think>a</think>", "C(Hi <think>a</think>)" },
    { "hermes", "a</think>b", "C(a</think>b)" },
    { "hermes", "<think>a <b> </thin k> </ </thi</think>x", "R(a <b> </thin k> </ </thi) C(x)" },
    { "hermes", "<think>a " H "{\"name\": \"none\"}" E, "R(a " H "{\"name\": \"none\"}" E ")" },
    { "hermes", "<thinking>a", "C(<thinking>a)" },
    { "hermes", "<thin", "C(<thin)" },
    { "hermes", "<think>a  \n", "R(a)" },
    { "hermes", " \n", "C( \n)" },
    { "hermes", "a \n\n", "C(a \n\n)" },
    { "hermes", "", "" },
    /* Tags. */
    { "qwen3-xml", H "<function=f><parameter=s>a</parameter></function>" E, "F(f) A({\"s\": \"a\"})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=s>\n\n a\t\"b\" \n\n</parameter>\n</function>\n" E, "F(f) A({\"s\": \"\\n a\\t\\\"b\\\" \\n\"})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=s>\n42\n</parameter>\n<parameter=n>\n42\n</parameter>\n</function>\n" E, "F(f) A({\"s\": \"42\", \"n\": 42})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=any>\nhello\n</parameter>\n<parameter=n>\nnope\n</parameter>\n</function>\n" E,
      "F(f) A({\"any\": \"hello\", \"n\": \"nope\"})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=any>\n{\"a\": \"</par\"}\n</parameter>\n<parameter=n>\n\n</parameter>\n</function>\n" E,
      "F(f) A({\"any\": {\"a\": \"</par\"}, \"n\": \"\"})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=s>\n</parameter>\n</function>\n" E, "F(f) A({\"s\": \"\"})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=s>\n</par\n</parameter>\n</function>\n" E, "F(f) A({\"s\": \"</par\"})" },
    { "qwen3-xml", H "\n<function=none>\n</function>\n" E, "F(none) A({})" },
    { "qwen3-xml", "So:\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n" E "\n<function=none></function>", "C(So:) F(f) A({\"s\": \"a\"}) F(none) A({})" },
    { "qwen3-xml", H "\n<function=none>\n</function> so", "F(none) A({}) C(so)" },
    { "qwen3-xml", H "\n<function=nobody>\n</function>\n" E, "C(" H "\n<function=nobody>\n</function>\n" E ")" },
    { "qwen3-xml", H "\n<function=none>\nhello", "C(" H "\n<function=none>\nhello)" },
    { "qwen3-xml", H "\n<func" H "\n<function=none>\n</function>\n" E, "C(" H "\n<func) F(none) A({})" },
    { "qwen3-xml", H "<" H "\n<function=none></function>" E, "C(" H "<) F(none) A({})" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=s\n>a", "F(f) C(<parameter=s\n>a)" },
    { "qwen3-xml", H "\n<function=f>\n<parameter=n>\n1\n</parameter>\noops</function>", "F(f) A({\"n\": 1) C(\noops</function>)" },
    { "glm", H "f\n<arg_key>s</arg_key>\n<arg_value>\na\n</arg_value>\n" E, "F(f) A({\"s\": \"\\na\\n\"})" },
    { "glm", H "f<arg_key>s</arg_key>\n<arg_value>a</arg_value><arg_key>n</arg_key><arg_value>1</arg_value>" E, "F(f) A({\"s\": \"a\", \"n\": 1})" },
    { "glm-tight", H "none" E, "F(none) A({})" },
    { "minimax", "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a</parameter>\n</invoke>\n</minimax:tool_call>\n bye",
      "F(f) A({\"s\": \"a\"}) C(bye)" },
    /* Names. */
    { "mistral-args", "[TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{\"n\": 1}", "F(f) A({\"n\": 1})" },
    { "mistral-args", "[TOOL_CALLS] f [ARGS] {\"n\": 1} [TOOL_CALLS]none[ARGS]{}", "F(f) A({\"n\": 1}) F(none) A({})" },
    { "mistral-args", "[TOOL_CALLS]f[ARGS]no", "C([TOOL_CALLS]f[ARGS]no)" },
    { "mistral-args", "[TOOL_CALLS]nobody[ARGS]{}", "C([TOOL_CALLS]nobody[ARGS]{})" },
    { "functionary", "<function=none></function><function=f>{}</function>", "F(none) A({}) F(f) A({})" },
    { "functionary", "a <function=none>{} b", "C(a) F(none) A({}) C(b)" },
    /* Lists. */
    { "mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefghi\"},\n {\"name\": \"none\"}] ok", "F(f) A({\"n\": 1}) F(none) A({}) C(ok)" },
    { "mistral", "[TOOL_CALLS]{\"name\": \"none\", \"arguments\": {}}", "F(none) A({})" },
    { "mistral", "[TOOL_CALLS][]", "C([TOOL_CALLS][])" },
    { "mistral", "[TOOL_CALLS][{\"name\": \"none\"}, {\"name\": \"nobody\"}]", "F(none) A({}) C(, {\"name\": \"nobody\"}])" },
    { "mistral", "[TOOL_CALLS][{\"name\": \"none\"} {", "F(none) A({}) C({)" },
    { "functools", "use functools, or functools[{\"name\": \"none\", \"arguments\": {}}]", "C(use functools, or) F(none) A({})" },
    /* Without a mark. */
    { "llama3", " {\"name\": \"f\", \"parameters\": {\"n\": 1}}", "F(f) A({\"n\": 1})" },
    { "llama3", "{\"name\": \"f\", \"arguments\": {}}; {\"name\": \"none\", \"parameters\": {}}\n{\"name\": \"none\"}", "F(f) A({}) F(none) A({}) F(none) A({})" },
    { "llama3", "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "F(f) A({})" },
    { "llama3", "Well: <|python_tag|>{\"name\": \"none\"}", "C(Well:) F(none) A({})" },
    { "llama3", "{\"city\": {\"name\": \"f\"}}", "C({\"city\": {\"name\": \"f\"}})" },
    { "llama3", "{\"name\": \"Bob\"}", "C({\"name\": \"Bob\"})" },
    { "llama3", "{}", "C({})" },
    { "llama3", "I say {\"name\": \"f\", \"parameters\": {}}", "C(I say {\"name\": \"f\", \"parameters\": {}})" },
    { "llama3", "<think>a</think>{\"name\": \"none\"}", "R(a) F(none) A({})" },
#undef H
#undef E
};

static void calls_are_read_with_tolerance_and_what_is_none_is_content(void **state) {
    (void)state;
    struct pn_tools *tools = make_tools(false);
    for (size_t i = 0; i < sizeof odd_cases / sizeof *odd_cases; i++) {
        const struct odd_case *c = &odd_cases[i];
        struct test_dialect d;
        test_dialect_open(&d, test_call_row(c->row), pn_reasoning_row(0), false);
        const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
        check_text(&o, c->text, c->want);
        test_dialect_close(&d);
    }
    pn_tools_put(tools);
}

/* Texts in which \xff stands in front of each control token. */
static const struct odd_case marked_cases[] = {
    { "hermes", "[TOOL_CALLS] <tool_call>{\"name\": \"none\"}</tool_call>", "C([TOOL_CALLS] <tool_call>{\"name\": \"none\"}</tool_call>)" },
    { "hermes", "\xff<tool_call>{\"name\": \"none\"}\xff</tool_call>", "F(none) A({})" },
    { "hermes", "a\xff</tool_call>b", "C(ab)" },
    { "hermes", "a \xff<tool_call>{\"name\": 1}\xff</tool_call>", "C(a <tool_call>{\"name\": 1})" },
    { "hermes", "\xff<think>a\xff<tool_call>b</think>c\xff</think>d", "R(ab</think>c) C(d)" },
    { "hermes", "\xff<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\xff</tool_call>", "F(f) A({\"s\": \"a)" },
    { "hermes", "\xff<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"<tool_call></tool_call>\"}}\xff</tool_call>",
      "F(f) A({\"s\": \"<tool_call></tool_call>\"})" },
    { "mistral-args", "a[TOOL_CALLS]f[ARGS]{} \xff[TOOL_CALLS]none\xff[ARGS]{}", "C(a[TOOL_CALLS]f[ARGS]{}) F(none) A({})" },
    { "mistral-args", "\xff[TOOL_CALLS]f[ARGS]{}", "C([TOOL_CALLS]f[ARGS]{})" },
    { "qwen3-xml", "\xff<tool_call>\n<function=f>\n<parameter=s>\na\xff<tool_call>b\n\xff</parameter>\n\xff</function>\n\xff</tool_call>", "F(f) A({\"s\": \"ab\"})" },
    { "hermes", "a\xff<tool_cal", "C(a<tool_cal)" },
    { "hermes", "a\xff" "b\xff\xff<tool_call>{\"name\": \"none\"}", "C(ab) F(none) A({})" },
};

static void a_control_token_is_no_text_and_text_is_no_control_token(void **state) {
    (void)state;
    struct pn_tools *tools = make_tools(false);
    for (size_t i = 0; i < sizeof marked_cases / sizeof *marked_cases; i++) {
        const struct odd_case *c = &marked_cases[i];
        struct test_dialect d;
        test_dialect_open(&d, test_call_row(c->row), pn_reasoning_row(0), true);
        const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
        check_text(&o, c->text, c->want);
        test_dialect_close(&d);
    }
    pn_tools_put(tools);
}

static void without_functions_calls_are_content_and_thoughts_are_not(void **state) {
    (void)state;
    static const char text[] = "<think> a </think>\n\n <tool_call>{\"name\": \"none\"}</tool_call> ";
    struct test_dialect d;
    test_dialect_open(&d, test_call_row("hermes"), pn_reasoning_row(0), false);
    struct pn_turn_opts o = { .dialect = d.d };
    check_text(&o, text, "R(a) C(<tool_call>{\"name\": \"none\"}</tool_call> )");
    o.no_reasoning = true;
    check_text(&o, text, "C(<think> a </think>\n\n <tool_call>{\"name\": \"none\"}</tool_call> )");
    test_dialect_close(&d);
}

static void a_thought_that_the_prompt_opened_ends_with_its_mark_alone(void **state) {
    (void)state;
    struct pn_tools *tools = make_tools(false);
    struct test_dialect d;
    test_dialect_open(&d, test_call_row("hermes"), pn_reasoning_row(0), false);
    const struct pn_turn_opts o = { .dialect = d.d, .tools = tools, .in_reasoning = true };
    check_text(&o, "\n so </think>\n\nHi", "R(so) C(Hi)");
    check_text(&o, "\n\n</think>\n\n<tool_call>{\"name\": \"none\"}</tool_call>", "F(none) A({})");
    check_text(&o, "never ends <think> \n", "R(never ends <think>)");
    check_text(&o, " <think>\nonce more </think>Hi", "R(once more) C(Hi)"); /* some models open it again */
    check_text(&o, "<thinking", "R(<thinking)");
    check_text(&o, "<th", "R(<th)");
    test_dialect_close(&d);
    pn_tools_put(tools);
}

static void a_thought_that_was_ended_for_the_model_leaves_no_mark(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "So it</think>\n\n goes on </think> and\n</think>\n\nDone. </thin", "R(So it) C(goes on  and\n\n\nDone. </thin)" },
        { "So it</thi", "R(So it)" },
        { "</think></think>Done", "C(Done)" },
    };
    struct fo_err e = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) {
            struct test_dialect d;
            struct fo_buf parts, told;
            struct pn_turn *t;
            test_dialect_open(&d, test_call_row("hermes"), pn_reasoning_row(0), false);
            const struct pn_turn_opts o = { .dialect = d.d, .in_reasoning = true };
            assert_int_equal(pn_turn_new(&o, &t, &e), 0);
            fo_buf_init(&parts, 1 << 16);
            fo_buf_init(&told, 1 << 16);
            pn_turn_cut(t);
            pn_turn_push(t, cases[i].text, cut, &parts);
            pn_turn_push(t, cases[i].text + cut, strlen(cases[i].text) - cut, &parts);
            pn_turn_end(t, &parts);
            show(&parts, &told);
            assert_string_equal(fo_buf_str(&told), cases[i].want);
            fo_buf_done(&parts);
            fo_buf_done(&told);
            pn_turn_free(t);
            test_dialect_close(&d);
        }
    }
}

#define WEATHER(id) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"s\\\": \\\"L\\\\\\\"i\\\\nZw\\\", \\\"n\\\": 4}\"}}"
#define TURN(calls) "[{\"role\":\"user\",\"content\":\"QQQ\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" calls "]},"
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"RRR\"}"

/* Some templates want everything described. */
static const char described[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{"
                                "\"s\":{\"type\":\"string\",\"description\":\"d\"},\"n\":{\"type\":\"integer\",\"description\":\"d\"}}}}}]";

static size_t count(const char *text, const char *what) {
    size_t n = 0;
    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

/* What the template writes for two calls, or as many as it takes, is read back as those calls. False: it writes none, or has no row. */
static bool reads_back(const char *template, size_t len, const char *name, const struct pn_tools *tools) {
    static const char *const turns[] = { TURN(WEATHER("call00001") "," WEATHER("call00002")) RESULT("call00001") "," RESULT("call00002") "]",
                                         TURN(WEATHER("call00001")) RESULT("call00001") "]" };
    static const char want[] = "F(f) A({\"s\": \"L\\\"i\\nZw\", \"n\": 4})";
    struct pn_chat *c = NULL;
    struct fo_err e = { 0 };
    struct pn_render r = { 0 };
    bool yes = false;
    assert_int_equal(pn_chat_open_text(template, len, "<s>", "</s>", &c, &e), 0);
    const struct pn_dialect *d = pn_chat_dialect(c);
    const struct pn_turn_opts o = { .dialect = d, .tools = tools };
    for (int i = 0; i < 2 && !r.len && pn_dialect_calls(d) && !pn_dialect_is_ours(d); i++) {
        const struct pn_chat_input in = { .messages_json = turns[i], .tools_json = described };
        if (pn_chat_render(c, &in, &r, &e)) continue;
        char *from = r.text, *end;
        for (char *q; (q = strstr(from, "QQQ"));) from = q + 3;
        if ((end = strstr(from, "RRR"))) *end = 0;
        size_t n = count(from, "Zw");
        /* The answer begins somewhere behind the question. */
        for (; n > 0 && !yes && *from; from++) {
            struct fo_buf text, out;
            fo_buf_init(&text, 1 << 20);
            fo_buf_puts(&text, from);
            read_in(&o, &text, text.len, text.len, false, &out);
            yes = count(fo_buf_str(&out), want) == n;
            fo_buf_done(&text);
            fo_buf_done(&out);
        }
        if (n > 0 && !yes) fail_msg("the calls of %s are not read back", name);
    }
    pn_render_done(&r);
    pn_chat_free(c);
    return yes;
}

static void what_templates_of_models_write_is_read_back(void **state) {
    static const char folder[] = "../shared/goldens/templates/templates";
    DIR *dir = opendir(folder);
    size_t n_back = 0;
    (void)state;
    if (!dir) skip();
    struct pn_tools *tools = make_tools(false);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[512], *text;
        size_t n;
        struct fo_err e;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!strstr(entry->d_name, ".jinja") || fo_file_read(path, 1 << 20, &text, &n, &e)) continue;
        n_back += reads_back(text, n, entry->d_name, tools);
        free(text);
    }
    closedir(dir);
    pn_tools_put(tools);
    assert_int_equal(n_back, 24);
}

static void one_call_ends_the_answer(void **state) {
    (void)state;
    const struct pn_call_format *f;
    struct pn_tools *tools = make_tools(true);
    struct fo_err e = { 0 };
    for (size_t i = 0; (f = pn_call_format_row(i)); i++) {
        struct test_dialect d;
        struct fo_buf text, want;
        struct pn_turn *t;
        test_dialect_open(&d, f, NULL, false);
        fo_buf_init(&text, 1 << 16);
        fo_buf_init(&want, 1 << 16);
        write_scene(f, NULL, TWO, &text, &want);
        *strstr(want.data, " F(get") = 0;
        const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
        check(&o, fo_buf_str(&text), text.len, false, want.data);
        fo_buf_done(&text);
        fo_buf_init(&text, 1 << 16);
        test_call_write(f, &text, "f", some, 0, true);
        assert_int_equal(pn_turn_new(&o, &t, &e), 0);
        fo_buf_clear(&want);
        pn_turn_push(t, text.data, text.len / 2, &want);
        assert_false(pn_turn_is_over(t));
        pn_turn_push(t, text.data + text.len / 2, text.len - text.len / 2, &want);
        assert_true(pn_turn_is_over(t));
        assert_int_equal(pn_turn_n_calls(t), 1);
        pn_turn_free(t);
        fo_buf_done(&text);
        fo_buf_done(&want);
        test_dialect_close(&d);
    }
    pn_tools_put(tools);
}

struct asked {
    bool answer;
    int n, function;
    char rest[256];
};

static bool on_begin(void *ctx, int function, const char *rest, size_t n) {
    struct asked *a = ctx;
    assert_true(n < sizeof a->rest);
    memcpy(a->rest, rest, n);
    a->rest[n] = 0;
    a->function = function;
    a->n++;
    return a->answer;
}

static void a_call_is_asked_for_once_with_what_came_of_its_arguments(void **state) {
    (void)state;
    static const struct {
        const char *row, *head, *rest, *refused;
    } cases[] = {
        { "hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "{\"n\": 1", "C(<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1)" },
        { "mistral-args", "[TOOL_CALLS]f[ARGS]", "{\"n\": 1}[TOOL_", "C([TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_)" },
        { "qwen3-xml", "<tool_call>\n<function=f>\n", "<parameter=n>\n1", "C(<tool_call>\n<function=f>\n<parameter=n>\n1)" },
        { "qwen3-xml", "<tool_call>\n<function=f>\n", "</function>\n</tool", "C(<tool_call>\n<function=f>\n</function>\n</tool)" },
    };
    struct pn_tools *tools = make_tools(false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int answer = 0; answer < 2; answer++) {
            struct asked a = { .answer = answer };
            struct test_dialect d;
            struct fo_buf text, out;
            test_dialect_open(&d, test_call_row(cases[i].row), NULL, false);
            const struct pn_turn_opts o = { .dialect = d.d, .tools = tools, .begin_call = on_begin, .ctx = &a };
            fo_buf_init(&text, 1 << 16);
            fo_buf_puts(&text, cases[i].head);
            fo_buf_puts(&text, cases[i].rest);
            read_in(&o, &text, strlen(cases[i].head), text.len, false, &out);
            assert_int_equal(a.n, 1);
            assert_int_equal(a.function, 0);
            assert_string_equal(a.rest, cases[i].rest);
            if (!answer) assert_string_equal(fo_buf_str(&out), cases[i].refused);
            fo_buf_done(&out);
            fo_buf_done(&text);
            test_dialect_close(&d);
        }
    pn_tools_put(tools);
}

static void blanks_behind_a_thought_stay_where_a_grammar_wants_them(void **state) {
    (void)state;
    struct test_dialect d;
    struct fo_err e = { 0 };
    struct pn_turn *t;
    struct fo_buf parts, out;
    test_dialect_open(&d, test_call_row("hermes"), pn_reasoning_row(0), false);
    const struct pn_turn_opts o = { .dialect = d.d };
    assert_int_equal(pn_turn_new(&o, &t, &e), 0);
    fo_buf_init(&parts, 1 << 16);
    fo_buf_init(&out, 1 << 16);
    pn_turn_push(t, "<think>a", 8, &parts);
    assert_true(pn_turn_in_reasoning(t));
    assert_false(pn_turn_in_content(t));
    pn_turn_push(t, "</think>\n\n", 10, &parts);
    assert_false(pn_turn_in_reasoning(t));
    assert_true(pn_turn_in_content(t));
    pn_turn_settle(t);
    pn_turn_push(t, " \n<think>b", 10, &parts);
    assert_true(pn_turn_in_content(t));
    pn_turn_end(t, &parts);
    show(&parts, &out);
    assert_string_equal(fo_buf_str(&out), "R(a) C( \n<think>b)");
    pn_turn_free(t);
    fo_buf_done(&parts);
    fo_buf_done(&out);
    test_dialect_close(&d);
}

static void content_is_told_from_what_may_become_a_call(void **state) {
    (void)state;
    struct pn_tools *tools = make_tools(false);
    struct test_dialect d;
    struct fo_err e = { 0 };
    struct pn_turn *t;
    struct fo_buf parts;
    test_dialect_open(&d, test_call_row("hermes"), NULL, false);
    const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
    assert_int_equal(pn_turn_new(&o, &t, &e), 0);
    fo_buf_init(&parts, 1 << 16);
    assert_true(pn_turn_in_content(t));
    static const struct {
        const char *text;
        bool content;
        uint32_t calls;
    } steps[] = { { "Hi ", true, 0 }, { "<tool", false, 0 }, { "s>", true, 0 }, { "<tool_call>", false, 0 }, { "{\"name\": \"f\", ", false, 0 },
                  { "\"arguments\": {", false, 1 }, { "}}", true, 1 }, { "\n</tool_", false, 1 }, { "call>", true, 1 } };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        pn_turn_push(t, steps[i].text, strlen(steps[i].text), &parts);
        if (pn_turn_in_content(t) != steps[i].content || pn_turn_n_calls(t) != steps[i].calls) fail_msg("behind %s", steps[i].text);
    }
    pn_turn_free(t);
    fo_buf_done(&parts);
    test_dialect_close(&d);
    pn_tools_put(tools);
}

/* Else a call that a grammar holds would break where the grammar goes on. */
static void arguments_are_read_as_deep_as_a_grammar_follows_them(void **state) {
    (void)state;
    enum { DEPTH = PN_PDA_MAX_FRAMES - 1 }; /* within the object */
    struct pn_tools *tools = make_tools(false);
    struct test_dialect d;
    struct fo_buf arguments, text, want, got;
    test_dialect_open(&d, test_call_row("hermes"), NULL, false);
    const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
    fo_buf_init(&arguments, 1 << 20);
    fo_buf_init(&text, 1 << 20);
    fo_buf_init(&want, 1 << 20);
    fo_buf_puts(&arguments, "{\"any\": ");
    for (int i = 0; i < DEPTH; i++) fo_buf_putc(&arguments, '[');
    for (int i = 0; i < DEPTH; i++) fo_buf_putc(&arguments, ']');
    fo_buf_putc(&arguments, '}');
    fo_buf_printf(&text, "<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>", fo_buf_str(&arguments));
    fo_buf_printf(&want, "F(f) A(%s)", fo_buf_str(&arguments));
    read_in(&o, &text, 0, text.len, false, &got);
    assert_string_equal(fo_buf_str(&got), fo_buf_str(&want));
    fo_buf_done(&arguments);
    fo_buf_done(&text);
    fo_buf_done(&want);
    fo_buf_done(&got);
    test_dialect_close(&d);
    pn_tools_put(tools);
}

/* Heads, blanks and values that never end are let go, and memory is bounded. */
static void what_is_held_back_is_bounded(void **state) {
    (void)state;
    static const struct {
        const char *row, *head;
        char fill;
    } cases[] = {
        { "hermes", "<tool_call>{\"x\": \"", 'a' }, { "hermes", "a", ' ' }, { "hermes", "<tool_call>", ' ' }, { "hermes", "<tool_call>{", '\n' },
        { "hermes", "<think>a", '\n' }, { "hermes", "", ' ' }, { "qwen3-xml", "<tool_call>\n<function=f>", ' ' }, { "qwen3-xml", "<tool_call>\n<function=", ' ' },
        { "qwen3-xml", "<tool_call>\n<function=f><parameter=", 'k' }, { "qwen3-xml", "<tool_call>\n<function=f><parameter=any>[", '1' },
        { "mistral-args", "[TOOL_CALLS]f[CALL_ID]", 'a' }, { "mistral-args", "[TOOL_CALLS]f[ARGS]", ' ' },
    };
    enum { N = 1 << 20, CHUNK = 1 << 10 };
    struct pn_tools *tools = make_tools(false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct test_dialect d;
        struct fo_err e = { 0 };
        struct pn_turn *t;
        struct fo_buf parts;
        char chunk[CHUNK];
        size_t shown = 0, at = 0;
        struct pn_part_text p;
        memset(chunk, cases[i].fill, sizeof chunk);
        test_dialect_open(&d, test_call_row(cases[i].row), pn_reasoning_row(0), false);
        const struct pn_turn_opts o = { .dialect = d.d, .tools = tools };
        test_fail_alloc(0);
        assert_int_equal(pn_turn_new(&o, &t, &e), 0);
        fo_buf_init(&parts, 4 * N);
        pn_turn_push(t, cases[i].head, strlen(cases[i].head), &parts);
        for (size_t n = 0; n < N; n += CHUNK) {
            pn_turn_push(t, chunk, CHUNK, &parts);
            at = 0;
            while (pn_part_next(&parts, &at, &p)) shown += p.len;
            fo_buf_clear(&parts);
        }
        if (shown + (130 << 10) < N) fail_msg("of %s only %zu bytes came out", cases[i].head, shown);
        assert_true(test_alloc_bytes() < (4 << 20));
        pn_turn_free(t);
        fo_buf_done(&parts);
        test_dialect_close(&d);
    }
    pn_tools_put(tools);
}

static void no_memory_is_told_by_the_parts(void **state) {
    (void)state;
    struct pn_tools *tools = make_tools(false);
    const struct pn_call_format *f;
    for (size_t i = 0; (f = pn_call_format_row(i)); i++) {
        struct test_dialect d;
        struct fo_buf text, want, parts;
        test_dialect_open(&d, f, pn_reasoning_row(0), false);
        fo_buf_init(&text, 1 << 16);
        fo_buf_init(&want, 1 << 16);
        write_scene(f, pn_reasoning_row(0), THOUGHT_BEFORE, &text, &want);
        for (long n = 1;; n++) {
            struct asked a = { .answer = true };
            const struct pn_turn_opts o = { .dialect = d.d, .tools = tools, .begin_call = on_begin, .ctx = &a };
            struct pn_turn *t = NULL;
            struct fo_err e = { 0 };
            fo_buf_init(&parts, 1 << 16);
            test_fail_alloc(n);
            int rc = pn_turn_new(&o, &t, &e);
            for (size_t k = 0; !rc && k < text.len; k++) pn_turn_push(t, text.data + k, 1, &parts);
            if (!rc) pn_turn_end(t, &parts);
            bool failed = test_alloc_failed();
            if (failed && rc) assert_int_equal(e.code, FO_ENOMEM);
            else if (failed) assert_true(parts.failed);
            else assert_false(parts.failed);
            pn_turn_free(t);
            fo_buf_done(&parts);
            if (!failed) break;
        }
        fo_buf_done(&text);
        fo_buf_done(&want);
        test_dialect_close(&d);
    }
    pn_tools_put(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_reads_what_it_writes_however_it_is_cut),
        cmocka_unit_test(calls_are_read_with_tolerance_and_what_is_none_is_content),
        cmocka_unit_test(a_control_token_is_no_text_and_text_is_no_control_token),
        cmocka_unit_test(without_functions_calls_are_content_and_thoughts_are_not),
        cmocka_unit_test(a_thought_that_the_prompt_opened_ends_with_its_mark_alone),
        cmocka_unit_test(a_thought_that_was_ended_for_the_model_leaves_no_mark),
        cmocka_unit_test(what_templates_of_models_write_is_read_back),
        cmocka_unit_test(one_call_ends_the_answer),
        cmocka_unit_test(a_call_is_asked_for_once_with_what_came_of_its_arguments),
        cmocka_unit_test(blanks_behind_a_thought_stay_where_a_grammar_wants_them),
        cmocka_unit_test(content_is_told_from_what_may_become_a_call),
        cmocka_unit_test(arguments_are_read_as_deep_as_a_grammar_follows_them),
        cmocka_unit_test(what_is_held_back_is_bounded),
        cmocka_unit_test(no_memory_is_told_by_the_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
