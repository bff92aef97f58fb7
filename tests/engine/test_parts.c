/* Thoughts and calls of an answer, through a scripted model, the scheduler and the request: what budgets, circles and grammars make of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/engine.h"
#include "engine/request_worker.h"
#include "engine/text.h"
#include "engine/tools.h"
#include "engine/wake.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

/* Qwen's way: thoughts in tags, which the template opens when it is told to, and calls as JSON in tags. */
static const char template_text[] =
    "{% if tools %}<|im_start|>system\n<tools>{{ tools|tojson }}</tools> <tool_call></tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<think>\n{% endif %}{% endif %}";

static const char functions[] = "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"at\":{\"type\":\"integer\"}},\"required\":[\"at\"],"
                                "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"wait\"}}]";
static const char strict[] = "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"at\":{\"type\":\"integer\"}},"
                             "\"required\":[\"at\"],\"additionalProperties\":false}}}]";

#define RUN "The same again, word for word: " /* 31 tokens */

static const char *const says[TEST_SCRIPT_CASES] = {
    "<think>\nI think, so\n\n it is.\n</think>\n\nYes, <think> is a tag.",
    "<think>\nSo it is.\n\n</think>\n\nYes.", /* of which the prompt may have the first two tokens */
    "<think>\nThere is no end to what can be thought about this, and therefore I go on and on and on until somebody stops me, which takes a while.\n</think>\n\nDone.",
    "<think>\nLet me see. " RUN "a" RUN "a" RUN "a" RUN "a\n</think>\n\nDone.",
    "I look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 7}}\n</tool_call>\n<tool_call>\n{\"name\": \"wait\", \"arguments\": {}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": oops!}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"jump\", \"arguments\": {\"at\": 1}}\n</tool_call>",
    "<think>\nhm",
    "I would rather talk.",
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"on\": true, \"at\": \"x\"}}\n</tool_call>",
};

static struct test_die die;
static struct pn_engine *engine;
static struct pn_served *served;
static enum pn_speculation speculation;

static int open_all(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct test_script t = test_script_default();
    memcpy(t.cases, says, sizeof says);
    t.specials[t.n_specials++] = "<think>";
    t.specials[t.n_specials++] = "</think>";
    t.chat_template = template_text;
    if (test_script_write(&t, odd_path(0), &e) || pn_engine_new(&engine, &e)) fail_msg("%s", e.msg);
    test_die_open(&die);
    served = test_serve(engine, &die, odd_path(0), "script", 4, 4, 64, 8, 0);
    struct pn_serve_opts set = { .name = "script", .speculation = speculation };
    assert_int_equal(pn_engine_set(engine, &set, &e), 0);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    pn_served_put(served);
    pn_engine_free(engine);
    test_die_close(&die);
    unlink(odd_path(0));
    return 0;
}

/* An answer by its parts. */
struct parts {
    char content[4096], reasoning[4096], calls[4096]; /* calls: name(arguments); */
    enum pn_finish finish;
    struct pn_usage usage;
    int code;
    char msg[384];
};

struct wish {
    int number; /* of the script */
    bool think; /* the template opens a thought */
    const char *tools;
    enum pn_tool_choice choice;
    bool one_call;
    const char *regex;
    int32_t budget; /* 0 = none, -1 = 0 */
    uint32_t max_tokens;
};

static void add(char *to, const char *text, size_t len) {
    size_t n = strlen(to);
    assert_true(n + len < 4096);
    memcpy(to + n, text, len);
    to[n + len] = '\0';
}

static void put_tools(const struct wish *w, struct pn_request_opts *o) {
    const struct pn_dialect *d = pn_chat_dialect(pn_model_chat(pn_served_model(served)));
    struct pn_tools_opts t = { .json = w->tools, .len = strlen(w->tools), .choice = w->choice, .one_call = w->one_call };
    struct fo_buf text;
    struct fo_err e;
    char where[128];
    fo_buf_init(&text, 1 << 20);
    if (pn_tools_new(&t, &o->tools, where, &e) || pn_tools_grammar(o->tools, d, NULL, 0, &text, where, &e) ||
        pn_served_grammar(served, PN_GRAMMAR_PIECES, fo_buf_str(&text), text.len, &o->calls, &e))
        fail_msg("%s: %s", where, e.msg);
    if (w->choice != PN_TOOL_AUTO) o->grammar = o->calls;
    fo_buf_done(&text);
}

static void ask(struct wish w, struct parts *ret) {
    char messages[64];
    snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"Case %d\"}]", w.number);
    struct pn_chat_input in = { .messages_json = messages, .extra_json = w.think ? "{\"think\": true}" : NULL, .add_generation_prompt = true };
    struct pn_ids ids = { 0 };
    struct fo_err e = { 0 };
    if (pn_text_encode_chat(pn_served_model(served), &in, 0, &ids, &e)) fail_msg("%s", e.msg);
    assert_int_equal(ids.in_reasoning, w.think);
    struct pn_request_opts o = { .tokens = ids.ids, .n_tokens = ids.n, .max_tokens = w.max_tokens ? w.max_tokens : 600, .sampling = pn_sampling_default, .want_text = true,
                                 .parts = true, .in_reasoning = ids.in_reasoning, .reasoning_budget = w.budget == 0 ? -1 : w.budget < 0 ? 0 : w.budget };
    o.sampling.temperature = 0;
    if (w.tools) put_tools(&w, &o);
    if (w.regex && pn_served_grammar(served, PN_GRAMMAR_REGEX, w.regex, strlen(w.regex), &o.grammar, &e)) fail_msg("%s", e.msg);
    struct pn_request *r = test_submit(served, &o);
    struct pn_event ev;
    memset(ret, 0, sizeof *ret);
    do {
        pn_request_next(r, 30000, &ev);
        assert_int_not_equal(ev.kind, PN_EV_TIMEOUT);
        if (ev.kind != PN_EV_TEXT) continue;
        if (ev.part == PN_PART_CONTENT) add(ret->content, ev.text, ev.text_len);
        if (ev.part == PN_PART_REASONING) add(ret->reasoning, ev.text, ev.text_len);
        if (ev.part == PN_PART_CALL) add(ret->calls, ";", 1);
        if (ev.part == PN_PART_CALL || ev.part == PN_PART_ARGUMENTS) add(ret->calls, ev.text, ev.text_len);
    } while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR);
    ret->finish = ev.finish;
    ret->usage = ev.usage;
    if (ev.err) ret->code = ev.err->code, snprintf(ret->msg, sizeof ret->msg, "%s", ev.err->msg);
    pn_request_release(r);
    if (o.grammar != o.calls) pn_grammar_put(o.grammar);
    pn_grammar_put(o.calls);
    pn_tools_put(o.tools);
    free(ids.ids);
}

static void expect(struct wish w, enum pn_finish finish, const char *reasoning, const char *content, const char *calls) {
    struct parts p;
    ask(w, &p);
    if (p.code) fail_msg("case %d: %s", w.number, p.msg);
    assert_string_equal(p.reasoning, reasoning);
    assert_string_equal(p.content, content);
    assert_string_equal(p.calls, calls);
    assert_int_equal(p.finish, finish);
}

static void thoughts_come_apart_whoever_opened_them(void **state) {
    (void)state;
    expect((struct wish){ .number = 0 }, PN_FINISH_STOP, "I think, so\n\n it is.", "Yes, <think> is a tag.", "");
    expect((struct wish){ .number = 1, .think = true }, PN_FINISH_STOP, "So it is.", "Yes.", "");
    expect((struct wish){ .number = 8, .think = true }, PN_FINISH_STOP, "would rather talk.", "", "");
    expect((struct wish){ .number = 7 }, PN_FINISH_STOP, "hm", "", "");
}

static void a_thought_ends_at_its_budget_through_the_same_parser(void **state) {
    (void)state;
    struct parts p;
    ask((struct wish){ .number = 2, .budget = 16 }, &p);
    assert_string_equal(p.reasoning, "There is no end"); /* the newline behind the tag is the first of 16 */
    assert_null(strstr(p.content, "think>"));
    assert_int_equal(p.usage.reasoning_tokens, 16);
    assert_int_equal(p.usage.thought, PN_THOUGHT_BUDGET);
    assert_int_equal(p.code, 0);
    ask((struct wish){ .number = 2, .think = true, .budget = -1 }, &p);
    assert_string_equal(p.reasoning, "");
    assert_int_equal(p.usage.reasoning_tokens, 0);
    ask((struct wish){ .number = 2, .budget = -1 }, &p); /* it opens the thought itself */
    assert_string_equal(p.reasoning, "");
    assert_null(strstr(p.content, "think>"));
    ask((struct wish){ .number = 0, .budget = 200 }, &p);
    assert_string_equal(p.content, "Yes, <think> is a tag.");
    assert_int_equal(p.usage.thought, PN_THOUGHT_FREE);
    assert_true(p.usage.reasoning_tokens > 20 && p.usage.reasoning_tokens < 30);
}

static void a_thought_that_goes_round_in_circles_is_ended(void **state) {
    (void)state;
    struct parts p;
    ask((struct wish){ .number = 3 }, &p);
    assert_string_equal(p.reasoning, "Let me see. " RUN "a" RUN "a");
    assert_int_equal(p.usage.thought, PN_THOUGHT_LOOP);
    assert_null(strstr(p.content, "think>"));
    ask((struct wish){ .number = 2 }, &p);
    assert_int_equal(p.usage.thought, PN_THOUGHT_FREE);
    assert_string_equal(p.content, "Done.");
}

static void a_grammar_waits_for_the_thought_and_never_lets_the_answer_end_before(void **state) {
    (void)state;
    struct parts p;
    expect((struct wish){ .number = 0, .regex = "Yes.{0,40}" }, PN_FINISH_STOP, "I think, so\n\n it is.", "Yes, <think> is a tag.", "");
    expect((struct wish){ .number = 1, .think = true, .regex = "[A-Z]es\\." }, PN_FINISH_STOP, "So it is.", "Yes.", "");
    expect((struct wish){ .number = 1, .think = true, .regex = "(no|on)" }, PN_FINISH_STOP, "So it is.", "no", "");
    ask((struct wish){ .number = 7, .budget = 8, .regex = "[0-9]{3}" }, &p); /* the model would end within the thought */
    assert_int_equal(p.code, 0);
    assert_int_equal(strspn(p.content, "0123456789"), 3);
    assert_int_equal(strlen(p.content), 3);
    assert_int_equal(p.usage.thought, PN_THOUGHT_BUDGET);
    expect((struct wish){ .number = 8, .regex = "(I|you) would .*" }, PN_FINISH_STOP, "", "I would rather talk.", ""); /* it need not think */
}

static void calls_come_apart_and_one_ends_the_answer_where_one_was_asked_for(void **state) {
    (void)state;
    expect((struct wish){ .number = 4, .tools = functions }, PN_FINISH_CALLS, "", "I look.", ";look{\"at\": 7};wait{}");
    expect((struct wish){ .number = 4, .tools = functions, .one_call = true }, PN_FINISH_CALLS, "", "I look.", ";look{\"at\": 7}");
    expect((struct wish){ .number = 4 }, PN_FINISH_STOP, "", strchr(says[4], 'I'), "");
    expect((struct wish){ .number = 4, .tools = functions, .max_tokens = 85 }, PN_FINISH_LENGTH, "", "I look.", ";look{\"at\": 7}"); /* in the second head */
    expect((struct wish){ .number = 4, .tools = functions, .max_tokens = 25 }, PN_FINISH_LENGTH, "", "I look.\n<tool_call>\n{\"nam", ""); /* what it would be is not known */
    expect((struct wish){ .number = 9, .tools = strict, .choice = PN_TOOL_REQUIRED, .max_tokens = 20 }, PN_FINISH_LENGTH, "", "", "");
    expect((struct wish){ .number = 4, .tools = functions, .max_tokens = 55 }, PN_FINISH_LENGTH, "", "I look.", ";look{\"at\"");
}

/* A call of look whose first argument is `at`, however it is laid out. */
static void expect_look(const struct parts *p) {
    assert_int_equal(p->code, 0);
    assert_string_equal(p->content, "");
    assert_int_equal(strncmp(p->calls, ";look{", 6), 0);
    const char *key = p->calls + 6 + strspn(p->calls + 6, " \t\r\n");
    if (strncmp(key, "\"at\"", 4) != 0) fail_msg("%s", p->calls);
}

static void a_call_is_held_to_its_grammar_from_its_head_on(void **state) {
    (void)state;
    struct parts p;
    ask((struct wish){ .number = 5, .tools = functions }, &p); /* no JSON: another token takes the place of the model's */
    assert_int_equal(p.code, 0);
    assert_int_equal(strncmp(p.calls, ";look{\"at\": ", 12), 0);
    assert_null(strstr(p.calls, ": o"));
    ask((struct wish){ .number = 9, .tools = strict, .max_tokens = 200 }, &p);
    expect_look(&p);
    expect((struct wish){ .number = 9, .tools = functions }, PN_FINISH_CALLS, "", "", ";look{\"on\": true, \"at\": \"x\"}");
}

/* What a turn holds of a head may be long: arguments that stand in front of the name. */
static void a_long_head_is_a_call_or_content_and_never_a_failure(void **state) {
    (void)state;
    enum { N = 100000 };
    const struct wish w = { .tools = functions };
    const int32_t prompt = 5;
    struct pn_request_opts o = { .tokens = &prompt, .n_tokens = 1, .sampling = pn_sampling_default, .want_text = true, .parts = true, .reasoning_budget = -1 };
    struct pn_request *r = NULL;
    struct pn_wake *wake = pn_wake_new();
    struct fo_err e = { 0 };
    char *rest = malloc(N);
    assert_non_null(rest);
    memset(rest, 'x', N);
    memcpy(rest, "{\"at\": \"", 8);
    memcpy(rest + N - 18, "\"}, \"name\": \"look\"", 18);
    put_tools(&w, &o);
    const struct pn_model *m = pn_served_model(served);
    if (pn_request_new(&o, 10, (int32_t)pn_model_info(m)->n_vocab, pn_chat_dialect(pn_model_chat(m)), wake, &r, &e)) fail_msg("%s", e.msg);
    assert_true(pn_request_begin_call(r, 0, rest, N)); /* not strict: it stands, held to nothing */
    assert_int_equal(r->hook_err.code, 0);
    pn_request_discard(r);
    pn_grammar_put(o.calls);
    pn_tools_put(o.tools);
    pn_wake_unref(wake);
    free(rest);
}

static void what_is_no_call_of_a_function_that_was_offered_is_content(void **state) {
    (void)state;
    expect((struct wish){ .number = 6, .tools = functions }, PN_FINISH_STOP, "", says[6], "");
    expect((struct wish){ .number = 8, .tools = functions }, PN_FINISH_STOP, "", says[8], "");
}

static void a_call_that_is_demanded_comes(void **state) {
    (void)state;
    struct parts p;
    ask((struct wish){ .number = 8, .tools = strict, .choice = PN_TOOL_REQUIRED, .max_tokens = 3000 }, &p);
    expect_look(&p);
    ask((struct wish){ .number = 1, .think = true, .tools = strict, .choice = PN_TOOL_REQUIRED, .max_tokens = 3000 }, &p);
    assert_string_equal(p.reasoning, "So it is.");
    expect_look(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_come_apart_whoever_opened_them),
        cmocka_unit_test(a_thought_ends_at_its_budget_through_the_same_parser),
        cmocka_unit_test(a_thought_that_goes_round_in_circles_is_ended),
        cmocka_unit_test(a_grammar_waits_for_the_thought_and_never_lets_the_answer_end_before),
        cmocka_unit_test(calls_come_apart_and_one_ends_the_answer_where_one_was_asked_for),
        cmocka_unit_test(a_call_is_held_to_its_grammar_from_its_head_on),
        cmocka_unit_test(a_long_head_is_a_call_or_content_and_never_a_failure),
        cmocka_unit_test(what_is_no_call_of_a_function_that_was_offered_is_content),
        cmocka_unit_test(a_call_that_is_demanded_comes),
    };
    /* What a token means for an answer must not depend on whether it was guessed. */
    speculation = PN_SPECULATION_OFF;
    int n_failed = cmocka_run_group_tests(tests, open_all, close_all);
    speculation = PN_SPECULATION_ALWAYS;
    return n_failed + cmocka_run_group_tests(tests, open_all, close_all);
}
