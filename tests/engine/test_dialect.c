/* Dialects: which row a template is, its marks among the control tokens of a vocabulary, and the reference page. UPDATE=1 writes the tables of
 * docs/tools.md. */
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
#include "engine/turn_impl.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/clock.h"
#include "tests/support/dialects.h"
#include "tests/support/page.h"

#define PAGE "docs/tools.md"

/* What is found in a template: the row's name, "ours" or "-", a space, the open of thoughts or "-". */
static void found(const char *text, size_t n, const struct fo_tok *tok, char ret[128]) {
    struct pn_chat *c = NULL;
    struct pn_dialect *d = NULL;
    struct fo_err e = { 0 };
    if (pn_chat_open_text(text, n, "<s>", "</s>", &c, &e) || pn_dialect_new(c, tok, &d, &e)) fail_msg("%s", e.msg);
    const struct pn_call_format *f = pn_dialect_calls(d);
    const struct pn_reasoning *r = pn_dialect_reasoning(d);
    if (pn_dialect_is_ours(d)) assert_ptr_equal(f, pn_call_format_row(0));
    snprintf(ret, 128, "%s %s", pn_dialect_is_ours(d) ? "ours" : f ? f->name : "-", r ? r->open : "-");
    ret[strcspn(ret, "\n")] = 0;
    pn_dialect_free(d);
    pn_chat_free(c);
}

#define TOOLS "{% if tools %}{{ tools | tojson }}{% endif %}"
#define EACH "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
#define CALLS "{% for c in m.tool_calls or [] %}"
#define DONE "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
#define NAME "{{ c.function.name }}"
#define ARGS "{{ c.function.arguments | tojson }}"

static const struct {
    const char *template, *want;
} templates[] = {
    { "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "ours -" },
    /* Blanks, further members and their order do not matter. */
    { TOOLS EACH CALLS "<tool_call>{\"name\":\"" NAME "\",\"arguments\":" ARGS "}</tool_call>" DONE, "hermes -" },
    { TOOLS EACH CALLS "[TOOL_CALLS] [{\"id\": \"{{ c.id }}\", \"arguments\": " ARGS ", \"name\": \"" NAME "\"}]" DONE, "mistral -" },
    { TOOLS EACH CALLS "[TOOL_CALLS]" NAME "[CALL_ID]{{ c.id }}[ARGS]" ARGS DONE, "mistral-args -" },
    { TOOLS EACH CALLS "{\"name\": \"" NAME "\", \"parameters\": " ARGS "}" DONE, "llama3 -" },
    { TOOLS EACH CALLS "<|python_tag|>{\"name\": \"" NAME "\", \"parameters\": " ARGS "}" DONE, "llama3 -" },
    { TOOLS EACH CALLS "<tool_call>\n<function=" NAME ">\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>" DONE,
      "qwen3-xml -" },
    /* Arguments are taken as text only, or written as the text that they are. */
    { TOOLS EACH CALLS "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments }}" DONE, "mistral-args -" },
    /* Calls are written only where there is no content. */
    { TOOLS "{% for m in messages %}[{{ m.role }}]{% if m.content is none %}" CALLS "<tool_call>{\"name\": \"" NAME "\", \"arguments\": " ARGS
            "}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
      "hermes -" },
    /* What the model is told of the tools decides where no call is written, */
    { "{% if tools %}Answer with functools[...] of {{ tools | tojson }}{% endif %}" EACH "{% endfor %}", "functools -" },
    { "{% if tools %}<|tool_call|> and a list. {{ tools | tojson }}{% endif %}" EACH "{% endfor %}", "granite -" },
    { "{% if tools %}<tool_call><function=x><parameter=k>v</parameter></function></tool_call> {{ tools | tojson }}{% endif %}" EACH "{% endfor %}", "qwen3-xml -" },
    /* and no row is guessed where one is in a form that is none. */
    { "{% if tools %}<tool_call></tool_call> {{ tools | tojson }}{% endif %}" EACH CALLS "{{ '{' }}call " NAME " with " ARGS DONE, "- -" },
    { TOOLS EACH CALLS "say {\"name\": \"" NAME "\", \"parameters\": " ARGS "}" DONE, "- -" },
    { TOOLS EACH "{% endfor %}", "- -" },
    { EACH CALLS "<tool_call>{\"name\": \"" NAME "\", \"arguments\": " ARGS "}</tool_call>" DONE, "ours -" },
    { "{{ raise_exception('no') }}", "- -" },
    { "{% for %}", "- -" },
    /* Thoughts. */
    { EACH "{% endfor %}{% if add_generation_prompt %}[assistant]<think>\n{% endif %}", "ours <think>" },
    { EACH "{% endfor %}{% if add_generation_prompt %}[assistant]{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}", "ours <think>" },
    { "Think between [THINK] and [/THINK]." EACH "{% endfor %}", "ours [THINK]" },
    { "{% for m in messages %}{% if m.thinking %}<seed:think>{{ m.thinking }}</seed:think>{% endif %}{{ m.content }}{% endfor %}", "ours <seed:think>" },
    { "{% for m in messages %}{{ m.reasoning_content }}<think>{{ m.content }}{% endfor %}", "ours -" },
};

static void a_template_shows_its_row(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        char got[128];
        found(templates[i].template, strlen(templates[i].template), NULL, got);
        if (strcmp(got, templates[i].want) != 0) fail_msg("%s\nis %s and not %s", templates[i].template, got, templates[i].want);
    }
}

/* Templates of the field, where the machine has them. */
static void templates_of_models_have_the_rows_of_these_models(void **state) {
    static const struct {
        const char *file, *want;
    } models[] = {
        { "Apertus-8B-Instruct", "- -" },
        { "Apriel-1.6-15b-Thinker-fixed", "apriel Here are my reasoning steps:" },
        { "ByteDance-Seed-OSS", "seed <seed:think>" },
        { "CohereForAI-c4ai-command-r-plus-tool_use", "- -" },
        { "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "- <|START_THINKING|>" },
        { "GLM-4.7-Flash", "glm-tight <think>" },
        { "GigaChat3.1-10B-A1.8B", "gigachat -" },
        { "HuggingFaceTB-SmolLM3-3B", "ours <think>" },
        { "Kimi-K2-Thinking", "- <think>" },
        { "LFM2-8B-A1B", "- -" },
        { "LFM2.5-8B-A1B", "- <think>" },
        { "MiMo-VL", "hermes -" },
        { "MiniMax-M2", "minimax <think>" },
        { "MiniMax-M3", "- <mm:think>" },
        { "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3-xml <think>" },
        { "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes -" },
        { "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes -" },
        { "Qwen-Qwen2.5-7B-Instruct", "hermes -" },
        { "Qwen-Qwen3-0.6B", "hermes <think>" },
        { "Qwen3-Coder", "qwen3-xml -" },
        { "Qwen3.5-4B", "qwen3-xml <think>" },
        { "Spark2.5", "glm-tight <think>" },
        { "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "ours <think>" },
        { "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "ours <think>" },
        { "deepseek-ai-DeepSeek-V3.2", "- <think>" },
        { "deepseek-ai-DeepSeek-V4", "- <think>" },
        { "fireworks-ai-llama-3-firefunction-v2", "- -" },
        { "google-gemma-4-31B-it-interleaved", "- <|channel>thought" },
        { "ibm-granite-granite-3.3-2B-Instruct", "granite <think>" },
        { "ibm-granite-granite-4.0", "hermes -" },
        { "inclusionai-ling-3.0-flash", "glm <think>" },
        { "llama-cpp-rwkv-world", "ours <think>" },
        { "meetkai-functionary-medium-v3.1", "functionary -" },
        { "meta-llama-Llama-3.1-8B-Instruct", "llama3 -" },
        { "meta-llama-Llama-3.3-70B-Instruct", "llama3 -" },
        { "microsoft-Phi-3.5-mini-instruct", "ours -" },
        { "mistralai-Mistral-Nemo-Instruct-2407", "mistral -" },
        { "muse-glimmer", "- -" },
        { "openai-gpt-oss-120b", "- -" },
        { "poolside-Laguna-S-2.1", "glm-tight <think>" },
        { "poolside-Laguna-XS.2", "glm <think>" },
        { "smollm2-135m-instruct", "ours -" },
        { "tiny-chatml", "ours -" },
        { "tiny-phi3", "ours -" },
        { "unsloth-Apriel-1.5", "apriel -" },
        { "unsloth-mistral-Devstral-Small-2507", "mistral-args -" },
    };
    size_t n_read = 0;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[256], got[128], *text;
        size_t n;
        struct fo_err e;
        snprintf(path, sizeof path, "../shared/goldens/templates/templates/%s.jinja", models[i].file);
        if (fo_file_read(path, 1 << 20, &text, &n, &e)) continue;
        found(text, n, NULL, got);
        if (strcmp(got, models[i].want) != 0) fail_msg("%s is %s and not %s", models[i].file, got, models[i].want);
        free(text);
        n_read++;
    }
    if (n_read == 0) skip();
}

static void a_template_without_end_is_asked_once(void **state) {
    static const char text[] = "{% for i in range(90000) %}{% for j in range(90000) %}{% if i == j %}{% endif %}{% endfor %}{% endfor %}";
    struct pn_chat *c = NULL;
    struct pn_dialect *d = NULL;
    struct fo_err e = { 0 };
    struct pn_render r;
    const struct pn_chat_input in = { .messages_json = "[]", .as_is = true };
    (void)state;
    assert_int_equal(pn_chat_open_text(text, sizeof text - 1, "", "", &c, &e), 0);
    double start = test_cpu_ms() / 1e3;
    assert_int_equal(pn_chat_render(c, &in, &r, &e), FO_ELIMIT);
    double one = test_cpu_ms() / 1e3 - start;
    start = test_cpu_ms() / 1e3;
    assert_int_equal(pn_dialect_new(c, NULL, &d, &e), 0);
    assert_null(pn_dialect_calls(d));
    if (test_cpu_ms() / 1e3 - start > 2 * one) fail_msg("a render takes %.3f s, the dialect %.3f", one, test_cpu_ms() / 1e3 - start);
    pn_dialect_free(d);
    pn_chat_free(c);
}

static void the_rows_are_sound(void **state) {
    const struct pn_call_format *f, *g;
    const struct pn_reasoning *r;
    (void)state;
    for (size_t i = 0; (f = pn_call_format_row(i)); i++) {
        assert_non_null(f->models);
        assert_true((f->shape == PN_CALL_OBJECT || f->shape == PN_CALL_LIST) == (f->arguments != NULL));
        assert_true(f->bare == (f->text[PN_CALL_BEGIN] == NULL));
        if (f->shape == PN_CALL_TAGS)
            for (int k = PN_CALL_ARG_BEGIN; k <= PN_CALL_END; k++) assert_non_null(f->text[k]);
        for (int k = 0; k < PN_N_CALL_TEXTS; k++) assert_true(!f->text[k] || strlen(f->text[k]) < PATTERN_SYMS);
        for (size_t k = 0; k < i && (g = pn_call_format_row(k)); k++) assert_string_not_equal(f->name, g->name);
    }
    for (size_t i = 0; (r = pn_reasoning_row(i)); i++) {
        assert_non_null(r->models);
        assert_true(strlen(r->close) + strlen(r->after) < 64 && strlen(r->open) < PATTERN_SYMS);
        assert_int_equal(strspn(r->after, " \n"), strlen(r->after));
    }
}

static void marks_are_the_control_tokens_in_the_texts(void **state) {
    struct test_dialect d;
    uint32_t n, n_after;
    size_t len;
    (void)state;
    test_dialect_open(&d, test_call_row("qwen3-xml"), pn_reasoning_row(0), true);
    int32_t call = fo_tok_find(d.tok, "<tool_call>", 11), open = fo_tok_find(d.tok, "<think>", 7);
    assert_string_equal(pn_dialect_call_text(d.d, PN_CALL_BEGIN), "\xff<tool_call>\n<function=");
    assert_string_equal(pn_dialect_call_text(d.d, PN_CALL_ARG_END), "\n\xff</parameter>\n");
    assert_string_equal(pn_dialect_call_text(d.d, PN_CALL_ALSO), "<function=");
    assert_string_equal(pn_dialect_call_text(d.d, PN_CALL_OPEN), "");
    assert_string_equal(pn_dialect_open(d.d), "\xff<think>");
    assert_string_equal(pn_dialect_close(d.d), "\xff</think>");
    assert_true(pn_dialect_is_mark(d.d, call) && pn_dialect_is_mark(d.d, open));
    assert_false(pn_dialect_is_mark(d.d, fo_tok_find(d.tok, "a", 1)));
    assert_false(pn_dialect_is_mark(d.d, fo_tok_find(d.tok, "<|end|>", 7)));
    assert_int_equal(pn_dialect_open_id(d.d), open);
    const int32_t *ids = pn_dialect_close_ids(d.d, &n), *after = pn_dialect_after_ids(d.d, &n_after);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], fo_tok_find(d.tok, "</think>", 8));
    assert_int_equal(n_after, 2);
    assert_ptr_equal(after, ids + 1);
    for (size_t i = 0; pn_dialect_mark_text(d.d, i, &len); i++) assert_true(len > 0);
    test_dialect_close(&d);
    /* Text alone. */
    test_dialect_open(&d, test_call_row("qwen3-xml"), pn_reasoning_row(0), false);
    assert_string_equal(pn_dialect_call_text(d.d, PN_CALL_BEGIN), "<tool_call>\n<function=");
    assert_null(pn_dialect_mark_text(d.d, 0, &len));
    pn_dialect_close_ids(d.d, &n);
    pn_dialect_after_ids(d.d, &n_after);
    assert_int_equal(n + n_after, 0);
    assert_int_equal(pn_dialect_open_id(d.d), -1);
    test_dialect_close(&d);
    /* Without thoughts. */
    test_dialect_open(&d, test_call_row("llama3"), NULL, true);
    assert_string_equal(pn_dialect_call_text(d.d, PN_CALL_ALSO), "\xff<|python_tag|>");
    assert_string_equal(pn_dialect_open(d.d), "");
    assert_null(pn_dialect_reasoning(d.d));
    assert_false(pn_dialect_begins_in_reasoning(d.d, "<think>", 7));
    test_dialect_close(&d);
}

/* A model that has the tokens for it and a template that says nothing of calls. */
static void tokens_decide_where_a_template_is_silent(void **state) {
    static const char text[] = TOOLS EACH "{% endfor %}";
    struct test_dialect d;
    char got[128];
    (void)state;
    test_dialect_open(&d, test_call_row("phi"), NULL, true);
    found(text, sizeof text - 1, d.tok, got);
    assert_string_equal(got, "phi -");
    test_dialect_close(&d);
}

static void a_prompt_that_ends_with_an_open_thought_is_known(void **state) {
    static const struct {
        const char *prompt;
        bool yes;
    } prompts[] = { { "a<think>", true }, { "a<think>\n", true }, { "<think> \n\n", true }, { "<think>\n\n</think>\n\n", false }, { "<think>a", false }, { "", false }, { "hink>", false } };
    struct test_dialect d;
    (void)state;
    test_dialect_open(&d, test_call_row("hermes"), pn_reasoning_row(0), false);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        assert_int_equal(pn_dialect_begins_in_reasoning(d.d, prompts[i].prompt, strlen(prompts[i].prompt)), prompts[i].yes);
    test_dialect_close(&d);
}

/* A render that ran out of memory may look like one that passed its limits: then the probe says nothing, as if the template could not do it. */
static void without_memory_nothing_leaks(void **state) {
    struct test_dialect d;
    struct fo_err e = { 0 };
    bool told = false;
    (void)state;
    test_dialect_open(&d, test_call_row("hermes"), pn_reasoning_row(0), true);
    for (long n = 1;; n++) {
        struct pn_dialect *again = NULL;
        test_fail_alloc(n);
        int rc = pn_dialect_new(d.chat, d.tok, &again, &e);
        bool failed = test_alloc_failed();
        if (rc) assert_int_equal(rc, FO_ENOMEM);
        told |= rc != 0;
        if (!failed) assert_ptr_equal(pn_dialect_calls(again), test_call_row("hermes"));
        pn_dialect_free(again);
        if (!failed) break;
        e = (struct fo_err){ 0 };
    }
    assert_true(told);
    test_dialect_close(&d);
}

/* --- the reference page ------------------------------------------------------------------------------------------------------------------ */

/* Text within a table's cell: a code span on one line. */
static void put_code(struct fo_buf *out, const char *text, size_t n) {
    fo_buf_puts(out, "<code>");
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n') fo_buf_puts(out, "&#9166;");
        else if (text[i] == '|') fo_buf_puts(out, "&#124;");
        else if (text[i] == '<') fo_buf_puts(out, "&lt;");
        else fo_buf_putc(out, text[i]);
    }
    fo_buf_puts(out, "</code>");
}

static void put_calls(struct fo_buf *out) {
    static const char *const some[] = { "city", "\"Lima\"", NULL }, *const others[] = { "n", "1", NULL };
    const struct pn_call_format *f;
    fo_buf_puts(out, "| Name | Two calls of functions f and g | Models |\n|---|---|---|\n");
    for (size_t i = 0; (f = pn_call_format_row(i)); i++) {
        struct fo_buf text;
        fo_buf_init(&text, 1 << 16);
        test_call_write(f, &text, "f", some, 0, false);
        test_call_write(f, &text, "g", others, 1, true);
        fo_buf_printf(out, "| %s | ", f->name);
        put_code(out, text.data, text.len);
        if (f->text[PN_CALL_ALSO]) {
            fo_buf_puts(out, "; may also begin with ");
            put_code(out, f->text[PN_CALL_ALSO], strlen(f->text[PN_CALL_ALSO]));
        }
        if (f->text[PN_CALL_ID]) {
            fo_buf_puts(out, "; an id behind ");
            put_code(out, f->text[PN_CALL_ID], strlen(f->text[PN_CALL_ID]));
            fo_buf_puts(out, " may follow the name");
        }
        fo_buf_printf(out, " | %s |\n", f->models);
        fo_buf_done(&text);
    }
    fo_buf_puts(out, "\n&#9166; is a newline; models write blanks as they like.\n");
}

static void put_thoughts(struct fo_buf *out) {
    const struct pn_reasoning *r;
    fo_buf_puts(out, "| Opens | Closes | Models |\n|---|---|---|\n");
    for (size_t i = 0; (r = pn_reasoning_row(i)); i++) {
        fo_buf_puts(out, "| ");
        put_code(out, r->open, strcspn(r->open, "\n"));
        fo_buf_puts(out, " | ");
        put_code(out, r->close, strlen(r->close));
        fo_buf_printf(out, " | %s |\n", r->models);
    }
}

static void the_reference_says_what_the_rows_say(void **state) {
    struct fo_buf calls, thoughts;
    (void)state;
    fo_buf_init(&calls, 1 << 20);
    fo_buf_init(&thoughts, 1 << 20);
    put_calls(&calls);
    put_thoughts(&thoughts);
    test_page_part(PAGE, "<!-- calls -->\n", &calls);
    test_page_part(PAGE, "<!-- thoughts -->\n", &thoughts);
    fo_buf_done(&calls);
    fo_buf_done(&thoughts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_shows_its_row),
        cmocka_unit_test(templates_of_models_have_the_rows_of_these_models),
        cmocka_unit_test(a_template_without_end_is_asked_once),
        cmocka_unit_test(the_rows_are_sound),
        cmocka_unit_test(marks_are_the_control_tokens_in_the_texts),
        cmocka_unit_test(tokens_decide_where_a_template_is_silent),
        cmocka_unit_test(a_prompt_that_ends_with_an_open_thought_is_known),
        cmocka_unit_test(without_memory_nothing_leaks),
        cmocka_unit_test(the_reference_says_what_the_rows_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
