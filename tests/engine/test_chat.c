/* Conversations: where the template comes from, what is done to messages before it sees them, and what a client is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/jinja.h"
#include "engine/value_impl.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/gguf_write.h"

enum { NOW = 1741338302 }; /* 2025-03-07 09:05:02 UTC */

/* --- a chat over bare template text ----------------------------------------------------------------------------------- */

static struct pn_chat *open_text(const char *text) {
    struct pn_chat *c = NULL;
    struct fo_err e;
    assert_int_equal(pn_chat_open_text(text, strlen(text), "<s>", "</s>", &c, &e), 0);
    return c;
}

static void expect(const struct pn_chat *c, struct pn_chat_input in, const char *want) {
    struct pn_render r;
    struct fo_err e;
    in.now = NOW;
    if (pn_chat_render(c, &in, &r, &e)) fail_msg("%s: %s", in.messages_json, e.msg);
    assert_string_equal(r.text, want);
    assert_int_equal(r.len, strlen(want));
    pn_render_done(&r);
}

static void expect_error(const struct pn_chat *c, struct pn_chat_input in, enum fo_code code, const char *part) {
    struct pn_render r;
    struct fo_err e;
    int rc = pn_chat_render(c, &in, &r, &e);
    assert_int_equal(rc, code);
    if (!strstr(e.msg, part)) fail_msg("%s", e.msg);
}

#define PARTS "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"},{\"type\":\"text\",\"text\":\"cd\"}]}]"

static void parts_of_text_are_joined_for_a_template_that_wants_strings(void **state) {
    (void)state;
    struct pn_chat *c = open_text("{% for m in messages %}[{{ m.role + ':' + m.content }}]{% endfor %}");
    expect(c, (struct pn_chat_input){ .messages_json = PARTS }, "[user:abcd]");
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":[]}]" }, "[user:]");
    expect_error(c, (struct pn_chat_input){ .messages_json = PARTS, .as_is = true }, FO_EFORMAT, "concatenate");
    pn_chat_free(c);
    /* One that would print the list as Python does is not one that handles lists. */
    c = open_text("{% for m in messages %}[{{ m.content }}]{% endfor %}");
    expect(c, (struct pn_chat_input){ .messages_json = PARTS }, "[abcd]");
    pn_chat_free(c);
}

static void parts_reach_a_template_that_handles_lists(void **state) {
    (void)state;
    struct pn_chat *c =
        open_text("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                  "{{ p.text if p.type == 'text' else '<picture>' }}{{ '+' if not loop.last }}{% endfor %}{% endif %}{% endfor %}");
    expect(c, (struct pn_chat_input){ .messages_json = PARTS }, "ab+cd");
    expect(c,
           (struct pn_chat_input){ .messages_json =
                                       "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"x\"}]}]" },
           "<picture>+x");
    pn_chat_free(c);
    /* Only for the user's messages: the system's are joined. */
    c = open_text(
        "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}{{ m.content|map(attribute='text')|join('+') }}"
        "{% else %}{{ m.content + ';' if m.role == 'system' else m.content }}{% endif %}{% endfor %}");
    expect(c,
           (struct pn_chat_input){
               .messages_json =
                   "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"t\"}]},"
                   "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]" },
           "st;a+b");
    pn_chat_free(c);
}

#define CALL(arguments)                                                                                                                    \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call00001\",\"type\":"      \
    "\"function\","                                                                                                                        \
    "\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]}]"

static void arguments_as_text_become_objects_where_the_template_needs_them(void **state) {
    (void)state;
    static const char head[] = "{% for m in messages %}{% for c in m.tool_calls or [] %}";
    static const struct {
        const char *body, *want;
    } cases[] = {
        { "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=x;" }, /* text would fail */
        { "{{ c.function.arguments|tojson }}", "{\"a\": 1, \"b\": \"x\"}" },                          /* text would be quoted twice */
        { "{{ c.function.arguments }}", "{\"a\":1,\"b\":\"x\"}" },                                    /* an object would be Python's repr */
        { "{{ c.function.arguments + '' }}", "{\"a\":1,\"b\":\"x\"}" },                               /* an object would fail */
        { "{{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}",
          "{\"a\":1,\"b\":\"x\"}" }, /* both work */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s{%% endfor %%}{%% endfor %%}", head, cases[i].body);
        struct pn_chat *c = open_text(text);
        expect(c, (struct pn_chat_input){ .messages_json = CALL("\"{\\\"a\\\":1,\\\"b\\\":\\\"x\\\"}\"") }, cases[i].want);
        pn_chat_free(c);
    }
    struct pn_chat *c =
        open_text("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}");
    expect(c, (struct pn_chat_input){ .messages_json = CALL("\"no json\"") }, "{\"arguments\": \"no json\"}");
    expect(c, (struct pn_chat_input){ .messages_json = CALL("\"[1]\"") }, "{\"arguments\": \"[1]\"}");
    expect(c, (struct pn_chat_input){ .messages_json = CALL("{\"k\":[true]}") }, "{\"k\": [true]}");
    expect(c, (struct pn_chat_input){ .messages_json = CALL("\"{\\\"a\\\":1}\""), .as_is = true }, "\"{\\\"a\\\":1}\"");
    pn_chat_free(c);
}

static void blank_arguments_are_an_object_without_members(void **state) {
    (void)state;
    static const char *const bodies[] = { "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{{ '{}' }}", /* text would fail */
                                          "{{ c.function.arguments|tojson }}", "{{ c.function.arguments + '' }}",
                                          "{{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}" };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char text[512];
        snprintf(text, sizeof text, "{%% for m in messages %%}{%% for c in m.tool_calls or [] %%}%s{%% endfor %%}{%% endfor %%}", bodies[i]);
        struct pn_chat *c = open_text(text);
        expect(c, (struct pn_chat_input){ .messages_json = CALL("\"\"") }, "{}");
        expect(c, (struct pn_chat_input){ .messages_json = CALL("\" \\n\"") }, "{}");
        pn_chat_free(c);
    }
}

static void a_null_content_is_empty_where_the_template_cannot_take_it(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}", "user:q;assistant:;" },      /* null would fail */
        { "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "user:q;assistant:;" },             /* it would print None */
        { "{% for m in messages %}{{ m.content if m.content is not none else '-' }};{% endfor %}", "q;-;" },      /* it knows null */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "{%% if tools %%}{{ tools }}{%% endif %%}%s", cases[i].text); /* it knows of functions: its calls are its own affair */
        struct pn_chat *c = open_text(text);
        expect(c, (struct pn_chat_input){ .messages_json = CALL("{}") }, cases[i].want);
        pn_chat_free(c);
    }
}

#define PLAIN "{% for m in messages %}[{{ m.role + ':' + m.content }}]{% endfor %}"
#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"does it\",\"parameters\":{\"type\":\"object\"}}}]"
#define DESCRIPTION                                                                                                                        \
    "These functions can be called, each given as a JSON object:\n{\"name\": \"f\", \"description\": \"does it\", \"parameters\": {\"type\": \"object\"}}\n"  \
    "A call is written like this, with the function's name and an object of its arguments:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>\n" \
    "An answer that calls functions holds the calls and nothing else. Their results come next, each between <tool_response> and </tool_response>."

static void a_template_that_knows_no_functions_is_told_of_them_in_words(void **state) {
    (void)state;
    struct pn_chat *c = open_text(PLAIN);
    assert_true(pn_dialect_is_ours(pn_chat_dialect(c)));
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]", .tools_json = TOOLS }, "[system:" DESCRIPTION "][user:q]");
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"system\",\"content\":\"Be kind\"},{\"role\":\"user\",\"content\":\"q\"}]", .tools_json = TOOLS },
           "[system:Be kind\n\n" DESCRIPTION "][user:q]");
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]" }, "[user:q]");
    expect(c,
           (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
                                                    "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},"
                                                    "{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                                                    "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"one\"},"
                                                    "{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":[{\"type\":\"text\",\"text\":\"two\"}]},{\"role\":\"assistant\",\"content\":\"So.\"}]" },
           "[user:q][assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>]"
           "[user:<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>][assistant:So.]");
    pn_chat_free(c);
    c = open_text("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.role + ':' + m.content }}]{% endfor %}");
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]", .tools_json = TOOLS }, "[user:" DESCRIPTION "\n\nq]");
    pn_chat_free(c);
}

static void a_template_that_goes_through_tools_unasked_gets_an_empty_list(void **state) {
    (void)state;
    static const char text[] = "{% for t in tools %}<{{ t.function.name }}>{% endfor %}{% for m in messages %}[{{ m.role + ':' + m.content }}]{% endfor %}";
    struct pn_chat *c = open_text(text);
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]" }, "[user:q]");
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]", .tools_json = TOOLS }, "<f>[user:q]");
    expect(c, (struct pn_chat_input){ .messages_json = PARTS }, "[user:abcd]"); /* and the other probes see what they look for */
    expect_error(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]", .as_is = true }, FO_EFORMAT, "not iterable");
    pn_chat_free(c);
}

#define CALL_OF(id, name) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":\"{}\"}}"
#define RESULT_OF(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"

static void calls_are_told_one_by_one_where_the_template_takes_no_two(void **state) {
    (void)state;
    static const char text[] = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}{{ raise_exception('one!') }}{% endif %}"
                               "({{ m.content or '' }}{{ m.tool_calls[0].function.name }}){% else %}[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}";
    struct pn_chat *c = open_text(text);
    expect(c,
           (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"I look. \",\"tool_calls\":[" CALL_OF("1", "f") "," CALL_OF("2", "g") ","
                                                    CALL_OF("3", "h") "]}," RESULT_OF("3", "three") "," RESULT_OF("1", "one") "," RESULT_OF("9", "nobody's") "," RESULT_OF("2", "two") ",{\"role\":\"user\",\"content\":\"r\"}]" },
           "[user:q](I look. f)[tool:one](g)[tool:two](h)[tool:three][tool:nobody's][user:r]");
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL_OF("1", "f") "," CALL_OF("1", "g") "]}," RESULT_OF("1", "one") "]" },
           "(f)[tool:one](g)");
    pn_chat_free(c);
}

static void functions_get_the_parts_that_a_template_goes_through_unasked(void **state) {
    (void)state;
    struct pn_chat *c = open_text("{% for t in tools or [] %}{{ t.function.name }}:{{ t.function.description + '' }}:{% for k, v in t.function.parameters.properties.items() %}{{ k }}{% endfor %};{% endfor %}"
                                  "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}");
    expect(c,
           (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"q\"}]",
                                   .tools_json = "[{\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":\"g\",\"description\":null,\"parameters\":null}},"
                                                 "{\"function\":{\"name\":\"h\",\"description\":\"d\",\"parameters\":{\"properties\":{\"a\":{}}}}}]" },
           "f::;g::;h:d:a;[user:q]");
    pn_chat_free(c);
}

static void ids_of_calls_are_short_where_the_template_takes_no_others(void **state) {
    (void)state;
    static const char strict[] = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
                                 "[TOOL_CALLS][{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}, \"id\": \"{{ c.id }}\"}]{% endfor %}"
                                 "{% if m.role == 'tool' %}<{{ m.tool_call_id }}>{% endif %}{% endfor %}{{ tools }}";
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_0123456789abcdef01234567\",\"type\":\"function\","
                                   "\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_0123456789abcdef01234567\",\"content\":\"r\"}]";
    struct pn_chat *c = open_text(strict);
    struct pn_render r;
    struct fo_err e;
    const struct pn_chat_input in = { .messages_json = messages };
    if (pn_chat_render(c, &in, &r, &e)) fail_msg("%s", e.msg);
    const char *id = strstr(r.text, "\"id\": \"") + 7, *again = strchr(strstr(r.text, "}]"), '<') + 1;
    assert_int_equal(strcspn(id, "\""), 9);
    assert_int_equal(strcspn(again, ">"), 9);
    assert_memory_equal(id, again, 9);
    pn_render_done(&r);
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"tool\",\"tool_call_id\":\"abcDEF123\",\"content\":\"r\"}]" }, "<abcDEF123>None");
    pn_chat_free(c);
    c = open_text("{% for m in messages %}{% for c in m.tool_calls or [] %}[TOOL_CALLS][{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}, \"id\": \"{{ c.id }}\"}]"
                  "{% endfor %}{% endfor %}{{ tools }}");
    if (pn_chat_render(c, &in, &r, &e)) fail_msg("%s", e.msg);
    assert_non_null(strstr(r.text, "call_0123456789abcdef01234567"));
    pn_render_done(&r);
    pn_chat_free(c);
}

static void a_template_sees_the_usual_variables(void **state) {
    (void)state;
    struct pn_chat *c =
        open_text("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ messages|length }}"
                  "{{ strftime_now('%Y-%m-%d %H:%M') }}");
    expect(c, (struct pn_chat_input){ .messages_json = "[]" }, "<s></s>TrueTrueFalse02025-03-07 09:05");
    expect(c, (struct pn_chat_input){ .messages_json = "[{}]", .add_generation_prompt = true, .tools_json = "[1]" },
           "<s></s>FalseTrueTrue12025-03-07 09:05");
    pn_chat_free(c);
    c = open_text("{{ enable_thinking|default('unset') }} {{ tools|length }} {{ bos_token }}");
    expect(c, (struct pn_chat_input){ .messages_json = "[]", .tools_json = "[1,2]" }, "unset 2 <s>");
    expect(c,
           (struct pn_chat_input){
               .messages_json = "[]", .tools_json = "[1,2]", .extra_json = "{\"enable_thinking\":false,\"bos_token\":\"B\",\"tools\":[]}" },
           "False 0 B");
    expect_error(c, (struct pn_chat_input){ .messages_json = "[]", .extra_json = "[]" }, FO_EINVAL, "object");
    expect_error(c, (struct pn_chat_input){ .messages_json = "[" }, FO_EFORMAT, "messages");
    expect_error(c, (struct pn_chat_input){ .messages_json = "{}" }, FO_EINVAL, "array");
    pn_chat_free(c);
}

static void bos_is_the_templates_and_extra_variables_are_a_users(void **state) {
    (void)state;
    struct pn_chat *c = open_text("{{ bos_token }}{{ x }}{{ messages[0].content }}");
    struct pn_render r;
    struct fo_err e;
    const struct pn_chat_input in = { .messages_json = "[{\"role\":\"user\",\"content\":\"<s>\"}]", .extra_json = "{\"x\":\"</s>\"}" };
    assert_int_equal(pn_chat_render(c, &in, &r, &e), 0);
    assert_string_equal(r.text, "<s></s><s>");
    for (size_t i = 0; i < r.len; i++) assert_int_equal(r.user[i], i >= 3);
    pn_render_done(&r);
    pn_chat_free(c);
}

static void what_a_template_raises_is_the_whole_message(void **state) {
    (void)state;
    struct pn_chat *c =
        open_text("{% if messages[0].role != 'user' %}{{ raise_exception('The first message must be the user\\'s.') }}{% endif %}");
    struct pn_render r;
    struct fo_err e;
    const struct pn_chat_input in = { .messages_json = "[{\"role\":\"assistant\",\"content\":\"x\"}]" };
    assert_int_equal(pn_chat_render(c, &in, &r, &e), FO_EINVAL);
    assert_string_equal(e.msg, "The first message must be the user's.");
    pn_chat_free(c);
}

/* An error has room for a line; who asks gets the text as it is, up to a stated length, and a cut shows. */
static void a_long_text_that_a_template_raises_is_whole_up_to_its_limit_and_never_cut_silently(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        bool cut;
    } cases[] = {
        { "{{ raise_exception('first line\n' ~ 'é' * 1000) }}", 11 + 2000, false },
        { "{{ raise_exception('a' * 4096) }}", PN_RAISED_BYTES, false },
        { "{{ raise_exception('a' * 4097) }}", PN_RAISED_BYTES, true },
        { "{{ raise_exception('é' * 100000) }}", PN_RAISED_BYTES - 1, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pn_chat *c = open_text(cases[i].text);
        struct fo_buf raised;
        struct pn_render r;
        struct fo_err e;
        fo_buf_init(&raised, PN_RAISED_BYTES);
        const struct pn_chat_input in = { .messages_json = "[]", .raised = &raised };
        assert_int_equal(pn_chat_render(c, &in, &r, &e), FO_EINVAL);
        assert_int_equal(raised.len, cases[i].n);
        assert_int_equal(pn_utf8_valid(raised.data, raised.len), raised.len);
        assert_int_equal(strcmp(raised.data + raised.len - 3, "...") == 0, cases[i].cut);
        assert_string_equal(e.msg + strlen(e.msg) - 3, "...");
        if (i == 0) assert_memory_equal(raised.data, "first line\n\xC3\xA9", 13);
        fo_buf_done(&raised);
        pn_chat_free(c);
    }
}

static void a_template_that_does_not_parse_opens_and_says_so_at_every_use(void **state) {
    (void)state;
    struct pn_chat *c = open_text("{% for m in messages %}{{ m.content }}");
    struct fo_err e;
    assert_int_equal(pn_chat_state(c, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "chat template"));
    expect_error(c, (struct pn_chat_input){ .messages_json = "[]" }, FO_EFORMAT, "endfor");
    pn_chat_free(c);
    c = open_text("ok");
    assert_int_equal(pn_chat_state(c, &e), FO_OK);
    pn_chat_free(c);
    pn_chat_free(NULL);
}

/* --- a chat over a model file -------------------------------------------------------------------------------------------- */

struct model {
    struct fo_buf bytes;
    struct fo_gguf *g;
    struct fo_tok *tok;
};

/* A vocabulary of five tokens; the last two have these texts. */
static void model_open(struct model *m, const char *start, const char *end, const char *template_text) {
    struct test_gguf w;
    struct fo_err e;
    const char *tokens[] = { "<bos>", "<eos>", "a", start, end };
    const int32_t types[] = { 3, 3, 1, 3, 3 };
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_str(&w, "tokenizer.ggml.model", "gpt2");
    test_gguf_str(&w, "tokenizer.ggml.pre", "smollm");
    test_gguf_strs(&w, "tokenizer.ggml.tokens", tokens, 5);
    test_gguf_i32s(&w, "tokenizer.ggml.token_type", types, 5);
    test_gguf_strs(&w, "tokenizer.ggml.merges", tokens, 0);
    test_gguf_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    test_gguf_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    if (template_text) test_gguf_str(&w, "tokenizer.chat_template", template_text);
    assert_true(test_gguf_finish(&w, &m->bytes));
    if (fo_gguf_parse(m->bytes.data, m->bytes.len, "test", &m->g, &e)) fail_msg("%s", e.msg);
    if (fo_tok_open(m->g, &m->tok, &e)) fail_msg("%s", e.msg);
}

static void model_close(struct model *m) {
    fo_tok_free(m->tok);
    fo_gguf_close(m->g);
    fo_buf_done(&m->bytes);
}

static struct pn_chat *open_model(const struct model *m, const char *override_text, enum pn_chat_source want) {
    struct pn_chat *c = NULL;
    struct fo_err e;
    if (pn_chat_open(m->g, m->tok, override_text, &c, &e)) fail_msg("%s", e.msg);
    assert_int_equal(pn_chat_source(c), want);
    return c;
}

static void the_files_template_is_used_and_an_override_wins(void **state) {
    (void)state;
    struct model m;
    model_open(&m, "b", "c", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    struct pn_chat *c = open_model(&m, NULL, PN_CHAT_FILE);
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"hi\"}]" }, "<bos>hi<eos>");
    pn_chat_free(c);
    c = open_model(&m, "mine: {{ messages[0].content }}", PN_CHAT_OVERRIDE);
    expect(c, (struct pn_chat_input){ .messages_json = "[{\"role\":\"user\",\"content\":\"hi\"}]" }, "mine: hi");
    pn_chat_free(c);
    model_close(&m);
}

static void a_model_without_a_template_gets_chatml_where_its_tokens_exist(void **state) {
    (void)state;
    struct model m;
    model_open(&m, "<|im_start|>", "<|im_end|>", NULL);
    struct pn_chat *c = open_model(&m, NULL, PN_CHAT_CHATML);
    expect(c,
           (struct pn_chat_input){
               .messages_json =
                   "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},"
                   "{\"role\":\"assistant\",\"content\":null}]",
               .add_generation_prompt = true },
           "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n");
    pn_chat_free(c);
    model_close(&m);
    model_open(&m, "<|im_start|>", "c", "");
    c = open_model(&m, NULL, PN_CHAT_NONE);
    struct fo_err e;
    assert_int_equal(pn_chat_state(c, &e), FO_EUNSUPPORTED);
    expect_error(c, (struct pn_chat_input){ .messages_json = "[]" }, FO_EUNSUPPORTED, "/v1/completions");
    pn_chat_free(c);
    model_close(&m);
}

static void opening_and_rendering_survive_any_failed_allocation(void **state) {
    (void)state;
    struct model m;
    model_open(&m, "<|im_start|>", "<|im_end|>", NULL);
    const struct pn_chat_input in = { .messages_json = CALL("\"{}\""), .tools_json = "[{}]", .extra_json = "{\"x\":1}", .now = NOW };
    for (long n = 1;; n++) {
        struct pn_chat *c = NULL;
        struct pn_render r = { 0 };
        struct fo_err e;
        test_fail_alloc(n);
        int rc = pn_chat_open(m.g, m.tok, NULL, &c, &e);
        if (rc == 0) rc = pn_chat_render(c, &in, &r, &e);
        bool failed = test_alloc_failed();
        assert_true(rc == 0 || (failed && (rc == FO_ENOMEM || rc == FO_ELIMIT))); /* a probe that found no memory counts as "cannot" */
        if (rc == 0) pn_render_done(&r);
        pn_chat_free(c);
        if (!failed) break;
    }
    model_close(&m);
}

static void a_template_without_an_end_does_not_hold_up_the_load(void **state) {
    (void)state;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    struct pn_chat *c = open_text("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    clock_gettime(CLOCK_MONOTONIC, &to);
    assert_true(to.tv_sec - from.tv_sec < 5);
    expect_error(c, (struct pn_chat_input){ .messages_json = "[]" }, FO_ELIMIT, "more than");
    pn_chat_free(c);
}

/* Twenty messages with a template like SmolLM2's: well under a millisecond even on a busy machine; the figure is printed. */
static void rendering_a_conversation_takes_microseconds(void **state) {
    (void)state;
    struct pn_chat *c =
        open_text("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe "
                  "kind<|im_end|>\n' }}"
                  "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
    struct fo_buf b;
    fo_buf_init(&b, 1 << 20);
    for (int i = 0; i < 20; i++)
        fo_buf_printf(&b, "%s{\"role\":\"%s\",\"content\":\"Message %d: how much wood would a woodchuck chuck if it could?\"}",
                      i ? "," : "[", i % 2 ? "assistant" : "user", i);
    fo_buf_puts(&b, "]");
    const struct pn_chat_input in = { .messages_json = fo_buf_str(&b), .add_generation_prompt = true };
    double best = 1;
    for (int i = 0; i < 50; i++) {
        struct timespec from, to;
        struct pn_render r;
        struct fo_err e;
        clock_gettime(CLOCK_MONOTONIC, &from);
        assert_int_equal(pn_chat_render(c, &in, &r, &e), 0);
        clock_gettime(CLOCK_MONOTONIC, &to);
        pn_render_done(&r);
        double took = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        if (took < best) best = took;
    }
    print_message("20 messages: %.0f us\n", best * 1e6);
#ifndef FO_DEBUG
    assert_true(best < 1e-3);
#endif
    fo_buf_done(&b);
    pn_chat_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_text_are_joined_for_a_template_that_wants_strings),
        cmocka_unit_test(parts_reach_a_template_that_handles_lists),
        cmocka_unit_test(a_null_content_is_empty_where_the_template_cannot_take_it),
        cmocka_unit_test(arguments_as_text_become_objects_where_the_template_needs_them),
        cmocka_unit_test(blank_arguments_are_an_object_without_members),
        cmocka_unit_test(a_template_that_knows_no_functions_is_told_of_them_in_words),
        cmocka_unit_test(a_template_that_goes_through_tools_unasked_gets_an_empty_list),
        cmocka_unit_test(calls_are_told_one_by_one_where_the_template_takes_no_two),
        cmocka_unit_test(functions_get_the_parts_that_a_template_goes_through_unasked),
        cmocka_unit_test(ids_of_calls_are_short_where_the_template_takes_no_others),
        cmocka_unit_test(a_template_sees_the_usual_variables),
        cmocka_unit_test(bos_is_the_templates_and_extra_variables_are_a_users),
        cmocka_unit_test(what_a_template_raises_is_the_whole_message),
        cmocka_unit_test(a_long_text_that_a_template_raises_is_whole_up_to_its_limit_and_never_cut_silently),
        cmocka_unit_test(a_template_that_does_not_parse_opens_and_says_so_at_every_use),
        cmocka_unit_test(the_files_template_is_used_and_an_override_wins),
        cmocka_unit_test(a_model_without_a_template_gets_chatml_where_its_tokens_exist),
        cmocka_unit_test(opening_and_rendering_survive_any_failed_allocation),
        cmocka_unit_test(a_template_without_an_end_does_not_hold_up_the_load),
        cmocka_unit_test(rendering_a_conversation_takes_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
