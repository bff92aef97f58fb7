/* /v1/responses: what items mean to a chat, which fields are taken, by which path each mistake is named, and the events of a stream to the
 * letter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/items.h"
#include "daemon/logprobs.h"
#include "daemon/messages.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/responses.h"
#include "foundry/base/buf.h"
#include "tests/support/alloc.h"

static json_t *parse(const char *text) {
    json_error_t err;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &err);
    if (!v) fail_msg("%s in: %s", err.text, text);
    return v;
}

static struct pd_params take(const char *body) {
    struct pd_params p;
    struct pd_error x;
    if (!pd_params_parse(PD_API_RESPONSES, body, strlen(body), &p, &x)) fail_msg("%s: refused: %s", body, x.message);
    return p;
}

static void items_become_the_turns_of_a_chat(void **state) {
    (void)state;
    static const struct {
        const char *fields, *messages;
    } rows[] = {
        { "\"input\":\"a\"", "[{'role':'user','content':'a'}]" },
        { "\"instructions\":\"s\",\"input\":\"a\\u0000b\"", "[{'role':'system','content':'s'},{'role':'user','content':'a\\u0000b'}]" },
        { "\"input\":\"a\",\"instructions\":\"\"", "[{'role':'system','content':''},{'role':'user','content':'a'}]" },
        { "\"input\":\"a\",\"instructions\":null", "[{'role':'user','content':'a'}]" },
        { "\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"system\",\"content\":\"s\",\"type\":null},{\"type\":\"message\",\"role\":\"user\",\"content\":\"u\"}]",
          "[{'role':'system','content':'d'},{'role':'system','content':'s'},{'role':'user','content':'u'}]" },
        { "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]},"
          "{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[],\"logprobs\":[]},{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
          "[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]},{'role':'assistant','content':[{'type':'text','text':'c'},{'type':'text','text':'no'}]}]" },
        /* what was thought, said and called in one turn is one message */
        { "\"input\":[{\"role\":\"user\",\"content\":\"u\"},{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t1\"},{\"type\":\"reasoning_text\",\"text\":\"t2\"}]},"
          "{\"type\":\"reasoning\",\"id\":\"rs_2\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"left out\"}],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t3\"}]},"
          "{\"role\":\"assistant\",\"content\":\"said\"},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"g\",\"arguments\":\"1\"},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"o1\"},{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\",\"text\":\"o2\"}]},"
          "{\"type\":\"function_call\",\"call_id\":\"c3\",\"name\":\"f\",\"arguments\":\"\"}]",
          "[{'role':'user','content':'u'},{'role':'assistant','reasoning_content':'t1t2t3','content':'said','tool_calls':["
          "{'id':'c1','type':'function','function':{'name':'f','arguments':'{}'}},{'id':'c2','type':'function','function':{'name':'g','arguments':'1'}}]},"
          "{'role':'tool','tool_call_id':'c1','content':'o1'},{'role':'tool','tool_call_id':'c2','content':[{'type':'text','text':'o2'}]},"
          "{'role':'assistant','content':null,'tool_calls':[{'id':'c3','type':'function','function':{'name':'f','arguments':''}}]}]" },
        { "\"input\":[{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
          "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"alone\"}]},{\"role\":\"user\",\"content\":\"u\"},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"last\"}]}]",
          "[{'role':'assistant','reasoning_content':'t','content':null,'tool_calls':[{'id':'c','type':'function','function':{'name':'f','arguments':'{}'}}]},"
          "{'role':'assistant','reasoning_content':'alone'},{'role':'user','content':'u'},{'role':'assistant','reasoning_content':'last'}]" },
        { "\"input\":[{\"role\":\"assistant\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"two\"},{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null}]",
          "[{'role':'assistant','content':'one'},{'role':'assistant','content':'two'}]" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[4096], want[2048];
        snprintf(body, sizeof body, "{\"model\":\"m\",%s}", rows[i].fields);
        snprintf(want, sizeof want, "%s", rows[i].messages);
        for (char *c = want; *c; c++)
            if (*c == '\'') *c = '"';
        struct pd_params p = take(body);
        json_t *got = parse(p.messages_json), *w = parse(want);
        if (!json_equal(got, w)) fail_msg("%s\nnot %s", p.messages_json, want);
        json_decref(got);
        json_decref(w);
        pd_params_done(&p);
    }
}

static void takes_the_fields_of_the_api(void **state) {
    (void)state;
    struct pd_params p = take("{\"model\":\"m\",\"input\":\"a\",\"max_output_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,\"seed\":3,\"stop\":\"x\",\"stream\":true,\"stream_options\":{\"include_obfuscation\":true},"
                              "\"include\":[\"reasoning.encrypted_content\",\"message.output_text.logprobs\"],\"top_logprobs\":4,\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":\"low\"},"
                              "\"metadata\":{\"a\":\"b\"},\"store\":true,\"reasoning\":{\"effort\":\"low\"},\"truncation\":\"disabled\",\"background\":false,\"previous_response_id\":null,\"tools\":[],"
                              "\"tool_choice\":\"auto\",\"parallel_tool_calls\":false,\"service_tier\":\"auto\",\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\",\"max_tool_calls\":3,\"user\":\"u\","
                              "\"prompt_cache_options\":{\"mode\":\"implicit\"},\"chat_template_kwargs\":{\"k\":1}}");
    assert_true(p.has_max_tokens && p.max_tokens == 7 && p.stream && p.sampling.temperature == 0.5f && p.sampling.top_p == 0.25f && p.sampling.seed == 3);
    assert_int_equal(p.n_top, 4);
    assert_int_equal(p.n_stops, 1);
    assert_int_equal(p.n, 1);
    assert_string_equal(p.extra_json, "{\"k\":1,\"reasoning_effort\":\"low\"}");
    assert_string_equal(pd_params_prompt(&p), "input");
    pd_params_done(&p);
    p = take("{\"model\":\"m\",\"input\":\"a\",\"include\":[\"message.output_text.logprobs\"]}");
    assert_true(p.n_top == 0 && !p.has_max_tokens);
    pd_params_done(&p);
    p = take("{\"model\":\"m\",\"input\":\"a\",\"top_logprobs\":0,\"include\":[],\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":\"none\",\"text\":{\"format\":null}}");
    assert_int_equal(p.n_top, -1);
    pd_params_done(&p);
}

static void names_each_mistake_by_its_path(void **state) {
    (void)state;
#define U(content) "\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":" content "}]"
#define I(item) "\"input\":[" item "]"
    static const struct {
        const char *fields, *param, *code; /* code NULL = null */
    } rows[] = {
        { "\"temperature\":1", "input", NULL },
        { "\"input\":5", "input", NULL },
        { "\"input\":[]", "input", "invalid_value" },
        { "\"input\":null", "input", NULL },
        { I("5"), "input.0", NULL },
        { I("{}"), "input.0.role", NULL },
        { I("{\"type\":5}"), "input.0.type", NULL },
        { I("{\"type\":\"item_reference\",\"id\":\"msg_1\"}"), "input.0.type", "unsupported_parameter" },
        { I("{\"type\":\"web_search_call\"}"), "input.0.type", "unsupported_parameter" },
        { I("{\"role\":\"user\"}"), "input.0.content", NULL },
        { I("{\"role\":\"tool\",\"content\":\"a\"}"), "input.0.role", "invalid_value" },
        { I("{\"role\":5,\"content\":\"a\"}"), "input.0.role", NULL },
        { U("5"), "input.1.content", NULL },
        { U("[]"), "input.1.content", "invalid_value" },
        { U("[5]"), "input.1.content.0", NULL },
        { U("[{\"type\":\"input_text\",\"text\":\"a\"},{\"text\":\"a\"}]"), "input.1.content.1.type", NULL },
        { U("[{\"type\":\"input_text\"}]"), "input.1.content.0.text", NULL },
        { U("[{\"type\":\"text\",\"text\":\"a\"}]"), "input.1.content.0.type", "invalid_value" },
        { U("[{\"type\":\"refusal\",\"text\":\"a\"}]"), "input.1.content.0.refusal", NULL },
        { U("[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_image\",\"image_url\":\"data:\"}]"), "input.1.content.1.type", "unsupported_parameter" },
        { U("[{\"type\":\"input_file\",\"file_id\":\"f\"}]"), "input.1.content.0.type", "unsupported_parameter" },
        { I("{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}"), "input.0.call_id", NULL },
        { I("{\"type\":\"function_call\",\"call_id\":\"c\",\"arguments\":\"{}\"}"), "input.0.name", NULL },
        { I("{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":{}}"), "input.0.arguments", NULL },
        { I("{\"type\":\"function_call_output\",\"output\":\"o\"}"), "input.0.call_id", NULL },
        { I("{\"type\":\"function_call_output\",\"call_id\":\"c\"}"), "input.0.output", NULL },
        { I("{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":\"input_image\"}]}"), "input.0.output.0.type", "unsupported_parameter" },
        { I("{\"type\":\"reasoning\",\"summary\":[]}"), "input", "invalid_value" },
        { I("{\"type\":\"reasoning\",\"encrypted_content\":\"x\"}"), "input.0.encrypted_content", "unsupported_parameter" },
        { I("{\"type\":\"reasoning\",\"content\":\"x\"}"), "input.0.content", NULL },
        { I("{\"type\":\"reasoning\",\"content\":[5]}"), "input.0.content.0", NULL },
        { I("{\"type\":\"reasoning\",\"content\":[{}]}"), "input.0.content.0.type", NULL },
        { I("{\"type\":\"reasoning\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}"), "input.0.content.0.type", "invalid_value" },
        { I("{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\"}]}"), "input.0.content.0.text", NULL },
        { "\"input\":\"a\",\"instructions\":5", "instructions", NULL },
        { "\"instructions\":[],\"input\":\"a\"", "instructions", NULL },
        { "\"input\":\"a\",\"max_output_tokens\":0", "max_output_tokens", "invalid_value" },
        { "\"input\":\"a\",\"max_output_tokens\":\"5\"", "max_output_tokens", NULL },
        { "\"input\":\"a\",\"max_tokens\":5", "max_tokens", "unknown_parameter" },
        { "\"input\":\"a\",\"messages\":[]", "messages", "unknown_parameter" },
        { "\"input\":\"a\",\"n\":2", "n", "unknown_parameter" },
        { "\"input\":\"a\",\"response_format\":{\"type\":\"text\"}", "response_format", "unknown_parameter" },
        { "\"input\":\"a\",\"temperature\":3", "temperature", "invalid_value" },
        { "\"input\":\"a\",\"top_p\":2", "top_p", "invalid_value" },
        { "\"input\":\"a\",\"stream\":1", "stream", NULL },
        { "\"input\":\"a\",\"stream_options\":{}", "stream_options", NULL },
        { "\"input\":\"a\",\"stream\":true,\"stream_options\":{\"x\":1}", "stream_options.x", "unknown_parameter" },
        { "\"input\":\"a\",\"include\":\"x\"", "include", NULL },
        { "\"input\":\"a\",\"include\":[5]", "include.0", NULL },
        { "\"input\":\"a\",\"include\":[\"message.output_text.logprobs\",\"everything\"]", "include.1", "invalid_value" },
        { "\"input\":\"a\",\"top_logprobs\":21,\"include\":[\"message.output_text.logprobs\"]", "top_logprobs", "invalid_value" },
        { "\"input\":\"a\",\"top_logprobs\":2", "top_logprobs", "invalid_value" },
        { "\"input\":\"a\",\"text\":5", "text", NULL },
        { "\"input\":\"a\",\"text\":{\"format\":5}", "text.format", NULL },
        { "\"input\":\"a\",\"text\":{\"format\":{}}", "text.format.type", NULL },
        { "\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n n\",\"schema\":{}}}", "text.format.name", "invalid_value" },
        { "\"input\":\"a\",\"text\":{\"format\":{\"type\":\"poem\"}}", "text.format.type", "invalid_value" },
        { "\"input\":\"a\",\"text\":{\"colour\":1}", "text.colour", "unknown_parameter" },
        { "\"input\":\"a\",\"metadata\":[]", "metadata", NULL },
        { "\"input\":\"a\",\"metadata\":{\"a\":5}", "metadata.a", NULL },
        { "\"input\":\"a\",\"metadata\":{\"a\":\"\",\"b\":\"\",\"c\":\"\",\"d\":\"\",\"e\":\"\",\"f\":\"\",\"g\":\"\",\"h\":\"\",\"i\":\"\",\"j\":\"\",\"k\":\"\",\"l\":\"\",\"m\":\"\",\"n\":\"\",\"o\":\"\",\"p\":\"\",\"q\":\"\"}",
          "metadata", "invalid_value" },
        { "\"input\":\"a\",\"previous_response_id\":\"resp_1\"", "previous_response_id", "unsupported_parameter" },
        { "\"input\":\"a\",\"conversation\":{\"id\":\"conv_1\"}", "conversation", "unsupported_parameter" },
        { "\"input\":\"a\",\"background\":true", "background", "unsupported_parameter" },
        { "\"input\":\"a\",\"truncation\":\"auto\"", "truncation", "unsupported_parameter" },
        { "\"input\":\"a\",\"prompt\":{\"id\":\"p\"}", "prompt", "unsupported_parameter" },
        { "\"input\":\"a\",\"context_management\":[{\"type\":\"compaction\"}]", "context_management", "unsupported_parameter" },
        { "\"input\":\"a\",\"moderation\":{\"model\":\"m\"}", "moderation", "unsupported_parameter" },
        { "\"input\":\"a\",\"imput\":\"a\"", "imput", "unknown_parameter" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1024];
        struct pd_params p;
        struct pd_error x;
        snprintf(body, sizeof body, "{\"model\":\"m\",%s}", rows[i].fields);
        if (pd_params_parse(PD_API_RESPONSES, body, strlen(body), &p, &x)) fail_msg("taken: %s", body);
        const char *code = pd_error_row(x.id)->code;
        if (pd_error_row(x.id)->status != 400 || strcmp(x.param, rows[i].param) != 0 || strcmp(code ? code : "null", rows[i].code ? rows[i].code : "null") != 0)
            fail_msg("%s: %s %s, not %s %s: %s", body, x.param, code ? code : "null", rows[i].param, rows[i].code ? rows[i].code : "null", x.message);
    }
    static const char nobody[] = "{\"input\":\"a\"}";
    struct pd_params p;
    struct pd_error x;
    assert_false(pd_params_parse(PD_API_RESPONSES, nobody, sizeof nobody - 1, &p, &x));
    assert_string_equal(x.param, "model");
}

/* A path is cut where it would be long, never written past. */
static void many_items_are_no_trouble(void **state) {
    (void)state;
    json_t *input = json_array();
    struct pd_error x;
    for (int i = 0; i < 50000; i++)
        json_array_append_new(input, json_pack("{s:s, s:[{s:s, s:s}]}", "type", "reasoning", "content", "type", "reasoning_text", "text", "t"));
    json_t *m = pd_items_messages(NULL, input, &x);
    assert_int_equal(json_array_size(m), 1);
    assert_int_equal(json_string_length(json_object_get(json_array_get(m, 0), "reasoning_content")), 50000);
    json_decref(m);
    json_array_append_new(input, json_pack("{s:s, s:[i]}", "role", "user", "content", 5));
    assert_null(pd_items_messages(NULL, input, &x));
    assert_string_equal(x.param, "input.50000.content.0");
    json_decref(input);
}

static void gives_up_cleanly_without_memory(void **state) {
    (void)state;
    json_t *input = parse("[{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"a\"}]},"
                          "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"},"
                          "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}]");
    json_t *instructions = json_string("s");
    for (long n = 1;; n++) {
        struct pd_error x = { 0 };
        test_fail_alloc(n);
        json_t *m = pd_items_messages(instructions, input, &x);
        bool failed = test_alloc_failed();
        test_fail_alloc(0);
        if (m) {
            assert_int_equal(json_array_size(m), 4);
            json_decref(m);
        } else {
            assert_int_equal(x.id, PD_ERR_MEMORY);
        }
        if (!failed) {
            assert_true(m && n > 30);
            break;
        }
        assert_null(m);
    }
    json_decref(instructions);
    json_decref(input);
}

/* --- answers --- */

/* `body` either is refused with 400, or gives what a chat could have sent and an answer that is JSON. Returns whether it was taken. */
static bool is_refused_or_good(const json_t *body) {
    struct pd_params p;
    struct pd_error x;
    char *text = json_dumps(body, JSON_COMPACT);
    assert_non_null(text);
    bool ok = pd_params_parse(PD_API_RESPONSES, text, strlen(text), &p, &x);
    if (ok) {
        json_t *messages = parse(p.messages_json);
        if (!pd_messages_check(messages, &x)) fail_msg("%s\ngives %s: %s", text, p.messages_json, x.message);
        json_decref(messages);
        struct pd_answer a;
        struct fo_buf out;
        fo_buf_init(&out, 1 << 20);
        pd_answer_init(&a, &p, "m", 1 << 20);
        a.writer->whole(&a, &(struct pd_choice){ .finish = PN_FINISH_STOP }, 1, &(struct pn_usage){ 0 }, NULL, &out);
        assert_false(out.failed);
        json_decref(parse(out.data));
        pd_answer_done(&a);
        fo_buf_done(&out);
        pd_params_done(&p);
    } else if (pd_error_row(x.id)->status != 400 || !x.message[0]) {
        fail_msg("%s: %d", text, pd_error_row(x.id)->status);
    }
    free(text);
    return ok;
}

/* Every value below `v` in turn is another one; counts how many bodies were taken and how many refused. */
static void vary(const json_t *body, json_t *v, size_t n[2]) {
    static const char odd[] = "[null,true,0,-1,1.5,\"\",\"a\",\"message\",\"reasoning\",\"function_call\",\"function_call_output\",\"assistant\",[],{},[[]],[{}],[\"a\"],{\"type\":\"input_text\",\"text\":\"\"}]";
    json_t *others = parse(odd), *was, *list = json_is_array(v) ? v : NULL;
    const char *key;
    void *next;
    if (json_is_object(v)) json_object_foreach_safe(v, next, key, was) {
            json_incref(was);
            for (size_t i = 0; i < json_array_size(others); i++) {
                json_object_set(v, key, json_array_get(others, i));
                n[is_refused_or_good(body)]++;
            }
            json_object_set(v, key, was);
            vary(body, was, n);
            json_decref(was);
        }
    for (size_t k = 0; k < json_array_size(list); k++) {
        was = json_incref(json_array_get(list, k));
        for (size_t i = 0; i < json_array_size(others); i++) {
            json_array_set(list, k, json_array_get(others, i));
            n[is_refused_or_good(body)]++;
        }
        json_array_set(list, k, was);
        vary(body, was, n);
        json_decref(was);
    }
    json_decref(others);
}

static void whatever_stands_in_the_place_of_a_value_is_refused_or_good(void **state) {
    (void)state;
    static const char whole[] =
        "{\"model\":\"m\",\"instructions\":\"s\",\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}],\"encrypted_content\":null},"
        "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"c\"},{\"type\":\"refusal\",\"refusal\":\"no\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":\"input_text\",\"text\":\"o\"}]}],"
        "\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2,\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":\"low\"},\"metadata\":{\"a\":\"b\"},\"max_output_tokens\":5,\"temperature\":1,"
        "\"top_p\":1,\"stream\":true,\"stream_options\":{\"include_obfuscation\":true},\"store\":true,\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\",\"parallel_tool_calls\":true,"
        "\"truncation\":\"disabled\",\"user\":\"u\",\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\",\"reasoning\":{\"effort\":\"low\"},\"previous_response_id\":null}";
    size_t n[2] = { 0 };
    json_t *body = parse(whole);
    assert_true(is_refused_or_good(body));
    vary(body, body, n);
    assert_true(n[0] > 500 && n[1] > 200);
    json_decref(body);
}

#define BODY "{\"model\":\"m\",\"input\":\"a\",\"stream\":true,\"instructions\":\"be \\\"brief\\\"\",\"metadata\":{\"k\":\"v\"},\"temperature\":0.7,\"max_output_tokens\":5,\"user\":\"u\",\"parallel_tool_calls\":false}"
#define REST                                                                                                                                     \
    ",\"instructions\":\"be \\\"brief\\\"\",\"metadata\":{\"k\":\"v\"},\"parallel_tool_calls\":false,\"prompt_cache_key\":null,\"safety_identifier\":null,\"user\":\"u\",\"tools\":[],"                          \
    "\"tool_choice\":\"auto\",\"max_output_tokens\":5,\"previous_response_id\":null,\"reasoning\":{\"effort\":null,\"summary\":null},\"service_tier\":\"default\",\"store\":false,"                              \
    "\"text\":{\"format\":{\"type\":\"text\"}},\"truncation\":\"disabled\",\"temperature\":0.7,\"top_p\":1,\"top_logprobs\":0,\"usage\":"
#define HEAD(status, error, why) "{\"id\":\"resp_1\",\"object\":\"response\",\"created_at\":9,\"status\":\"" status "\",\"background\":false,\"error\":" error ",\"incomplete_details\":" why ",\"model\":\"m\",\"output\":["
#define PART(text) "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"" text "\"}"
#define ITEM(status, parts) "{\"id\":\"msg_1\",\"type\":\"message\",\"status\":\"" status "\",\"role\":\"assistant\",\"content\":[" parts "]}"
#define EVENT(type, n, members) "event: " type "\ndata: {\"type\":\"" type "\",\"sequence_number\":" n members "}\n\n"
#define AT ",\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0"
#define USAGE "{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":4,\"cache_write_tokens\":0},\"output_tokens\":5,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":15}"
#define BEGIN                                                                                                                                    \
    EVENT("response.created", "0", ",\"response\":" HEAD("in_progress", "null", "null") "]" REST "null}")                                            \
    EVENT("response.in_progress", "1", ",\"response\":" HEAD("in_progress", "null", "null") "]" REST "null}")                                        \
    EVENT("response.output_item.added", "2", ",\"output_index\":0,\"item\":" ITEM("in_progress", ""))                                                \
    EVENT("response.content_part.added", "3", AT ",\"part\":" PART(""))                                                                              \
    EVENT("response.output_text.delta", "4", AT ",\"delta\":\"a\\\"\",\"logprobs\":[]")                                                              \
    EVENT("response.output_text.delta", "5", AT ",\"delta\":\"b\",\"logprobs\":[]")

static const struct pn_usage usage = { .prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 5 };

static struct pd_answer answer(const struct pd_params *p) {
    struct pd_answer a;
    pd_answer_init(&a, p, "m", 1 << 20);
    assert_ptr_equal(a.writer, &pd_writer_responses);
    assert_true(memcmp(a.id, "resp_", 5) == 0 && strlen(a.id) == 29);
    strcpy(a.id, "resp_1");
    a.created = 9;
    return a;
}

static void say(struct pd_answer *a, struct fo_buf *out) {
    struct pd_logprobs none;
    pd_logprobs_init(&none, PD_API_RESPONSES, NULL, 1 << 20);
    a->writer->open(a, out);
    a->writer->begin(a, 0, NULL, 0, out);
    a->writer->part(a, 0, PN_PART_CONTENT, "a\"", 2, &none, out);
    a->writer->part(a, 0, PN_PART_CONTENT, "b", 1, &none, out);
    pd_logprobs_done(&none);
}

/* The random ends of ids become their numbers, in the order in which they first come. */
static void number_ids(char *text) {
    static const char *const prefixes[] = { "\"msg_", "\"rs_", "\"fc_", "\"call_" };
    enum { DIGITS = 24, MOST = 8 };
    for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
        char seen[MOST][DIGITS];
        int n = 0;
        for (char *at = text; (at = strstr(at, prefixes[k]));) {
            at += strlen(prefixes[k]);
            if (strspn(at, "0123456789abcdef") != DIGITS || at[DIGITS] != '"') continue;
            int i = 0;
            while (i < n && memcmp(seen[i], at, DIGITS) != 0) i++;
            assert_true(i < MOST);
            if (i == n) memcpy(seen[n++], at, DIGITS);
            *at = (char)('1' + i);
            memmove(at + 1, at + DIGITS, strlen(at + DIGITS) + 1);
        }
    }
}

static void is(const struct fo_buf *out, const char *want) {
    assert_false(out->failed);
    if (out->data) number_ids(out->data);
    assert_string_equal(fo_buf_str(out), want);
}

static void the_events_of_a_stream_are_these(void **state) {
    (void)state;
    static const char *const golden[] = {
        [PN_FINISH_STOP] = BEGIN EVENT("response.output_text.done", "6", AT ",\"text\":\"a\\\"b\",\"logprobs\":[]") EVENT("response.content_part.done", "7", AT ",\"part\":" PART("a\\\"b"))
            EVENT("response.output_item.done", "8", ",\"output_index\":0,\"item\":" ITEM("completed", PART("a\\\"b")))
                EVENT("response.completed", "9", ",\"response\":" HEAD("completed", "null", "null") ITEM("completed", PART("a\\\"b")) "]" REST USAGE "}"),
        [PN_FINISH_LENGTH] = BEGIN EVENT("response.output_text.done", "6", AT ",\"text\":\"a\\\"b\",\"logprobs\":[]") EVENT("response.content_part.done", "7", AT ",\"part\":" PART("a\\\"b"))
            EVENT("response.output_item.done", "8", ",\"output_index\":0,\"item\":" ITEM("incomplete", PART("a\\\"b")))
                EVENT("response.incomplete", "9", ",\"response\":" HEAD("incomplete", "null", "{\"reason\":\"max_output_tokens\"}") ITEM("incomplete", PART("a\\\"b")) "]" REST USAGE "}"),
    };
    struct pd_params p = take(BODY);
    for (enum pn_finish f = PN_FINISH_STOP; f <= PN_FINISH_LENGTH; f++) {
        struct pd_answer a = answer(&p);
        struct fo_buf out;
        fo_buf_init(&out, 1 << 20);
        say(&a, &out);
        a.writer->finish(&a, 0, f, NULL, &out);
        a.writer->close(&a, &usage, NULL, &out);
        is(&out, golden[f]);
        pd_answer_done(&a);
        fo_buf_done(&out);
    }
    pd_params_done(&p);
}

#define CALLS_BODY "{\"model\":\"m\",\"input\":\"a\",\"stream\":true,\"reasoning\":{\"effort\":\"high\"},\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":\"required\"}"
#define THOUGHT(status, parts) "{\"id\":\"rs_1\",\"type\":\"reasoning\",\"status\":\"" status "\",\"summary\":[],\"content\":[" parts "]}"
#define THINKS(text) "{\"type\":\"reasoning_text\",\"text\":\"" text "\"}"
#define CALL(n, status, arguments) "{\"id\":\"fc_" n "\",\"type\":\"function_call\",\"status\":\"" status "\",\"call_id\":\"call_" n "\",\"name\":\"f\",\"arguments\":\"" arguments "\"}"
#define OF(item, index) ",\"item_id\":\"" item "\",\"output_index\":" index
#define PLACE ",\"content_index\":0"

/* A thought, two calls and what was said after them: an item each, in this order, and all of them in the last event. */
static void each_part_of_an_answer_is_an_item(void **state) {
    (void)state;
    static const struct {
        enum pn_part part;
        const char *text;
    } said[] = { { PN_PART_REASONING, "t1" }, { PN_PART_REASONING, "t2" }, { PN_PART_CALL, "f" }, { PN_PART_ARGUMENTS, "{" }, { PN_PART_ARGUMENTS, "}" }, { PN_PART_CALL, "f" },
                 { PN_PART_ARGUMENTS, "{}" }, { PN_PART_CONTENT, "c" } };
    static const char want[] =
        EVENT("response.output_item.added", "0", ",\"output_index\":0,\"item\":" THOUGHT("in_progress", ""))
        EVENT("response.content_part.added", "1", OF("rs_1", "0") PLACE ",\"part\":" THINKS(""))
        EVENT("response.reasoning_text.delta", "2", OF("rs_1", "0") PLACE ",\"delta\":\"t1\"")
        EVENT("response.reasoning_text.delta", "3", OF("rs_1", "0") PLACE ",\"delta\":\"t2\"")
        EVENT("response.reasoning_text.done", "4", OF("rs_1", "0") PLACE ",\"text\":\"t1t2\"")
        EVENT("response.content_part.done", "5", OF("rs_1", "0") PLACE ",\"part\":" THINKS("t1t2"))
        EVENT("response.output_item.done", "6", ",\"output_index\":0,\"item\":" THOUGHT("completed", THINKS("t1t2")))
        EVENT("response.output_item.added", "7", ",\"output_index\":1,\"item\":" CALL("1", "in_progress", ""))
        EVENT("response.function_call_arguments.delta", "8", OF("fc_1", "1") ",\"delta\":\"{\"")
        EVENT("response.function_call_arguments.delta", "9", OF("fc_1", "1") ",\"delta\":\"}\"")
        EVENT("response.function_call_arguments.done", "10", OF("fc_1", "1") ",\"name\":\"f\",\"arguments\":\"{}\"")
        EVENT("response.output_item.done", "11", ",\"output_index\":1,\"item\":" CALL("1", "completed", "{}"))
        EVENT("response.output_item.added", "12", ",\"output_index\":2,\"item\":" CALL("2", "in_progress", ""))
        EVENT("response.function_call_arguments.delta", "13", OF("fc_2", "2") ",\"delta\":\"{}\"")
        EVENT("response.function_call_arguments.done", "14", OF("fc_2", "2") ",\"name\":\"f\",\"arguments\":\"{}\"")
        EVENT("response.output_item.done", "15", ",\"output_index\":2,\"item\":" CALL("2", "completed", "{}"))
        EVENT("response.output_item.added", "16", ",\"output_index\":3,\"item\":" ITEM("in_progress", ""))
        EVENT("response.content_part.added", "17", OF("msg_1", "3") PLACE ",\"part\":" PART(""))
        EVENT("response.output_text.delta", "18", OF("msg_1", "3") PLACE ",\"delta\":\"c\",\"logprobs\":[]")
        EVENT("response.output_text.done", "19", OF("msg_1", "3") PLACE ",\"text\":\"c\",\"logprobs\":[]")
        EVENT("response.content_part.done", "20", OF("msg_1", "3") PLACE ",\"part\":" PART("c"))
        EVENT("response.output_item.done", "21", ",\"output_index\":3,\"item\":" ITEM("incomplete", PART("c")));
    static const char output[] = "\"output\":[" THOUGHT("completed", THINKS("t1t2")) "," CALL("1", "completed", "{}") "," CALL("2", "completed", "{}") "," ITEM("incomplete", PART("c")) "]";
    static const char asked[] = "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":null,\"parameters\":null,\"strict\":null}],\"tool_choice\":\"required\"";
    struct pd_params p = take(CALLS_BODY);
    struct pd_answer a = answer(&p);
    struct pd_choice c = { .finish = PN_FINISH_LENGTH };
    struct pd_logprobs none;
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    pd_parts_init(&c.parts, 1 << 20);
    pd_logprobs_init(&none, PD_API_RESPONSES, NULL, 1 << 20);
    a.writer->begin(&a, 0, NULL, 0, &out);
    assert_int_equal(out.len, 0);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        a.writer->part(&a, 0, said[i].part, said[i].text, strlen(said[i].text), &none, &out);
        assert_non_null(pd_parts_add(&c.parts, said[i].part, said[i].text, strlen(said[i].text)));
    }
    a.writer->finish(&a, 0, PN_FINISH_LENGTH, NULL, &out);
    is(&out, want);
    for (int whole = 0; whole < 2; whole++) {
        fo_buf_clear(&out);
        if (whole) a.writer->whole(&a, &c, 1, &usage, NULL, &out);
        else a.writer->close(&a, &usage, NULL, &out);
        assert_false(out.failed);
        number_ids(out.data);
        assert_non_null(strstr(out.data, output));
        assert_non_null(strstr(out.data, asked));
        assert_non_null(strstr(out.data, "\"reasoning\":{\"effort\":\"high\",\"summary\":null}"));
    }
    pd_logprobs_done(&none);
    pd_parts_done(&c.parts);
    pd_answer_done(&a);
    pd_params_done(&p);
    fo_buf_done(&out);
}

/* An answer without anything has a message all the same: clients look for one. */
static void an_answer_that_has_nothing_is_an_empty_message(void **state) {
    (void)state;
    struct pd_params p = take(BODY);
    struct pd_answer a = answer(&p);
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    a.writer->finish(&a, 0, PN_FINISH_STOP, NULL, &out);
    fo_buf_clear(&out);
    a.writer->close(&a, &usage, NULL, &out);
    number_ids(out.data);
    assert_non_null(strstr(out.data, "\"output\":[" ITEM("completed", PART("")) "]"));
    pd_answer_done(&a);
    pd_params_done(&p);
    fo_buf_done(&out);
}

static void an_error_is_told_twice_and_ends_the_stream(void **state) {
    (void)state;
    static const struct {
        enum pd_error_id id;
        const char *param, *code, *failed, *type;
    } rows[] = {
        { PD_ERR_DEVICE, NULL, "\"device_error\"", "server_error", "server_error" },
        { PD_ERR_QUEUE_TIMEOUT, NULL, "\"queue_timeout\"", "rate_limit_exceeded", "rate_limit_error" },
        { PD_ERR_INVALID, "input", "null", "invalid_prompt", "invalid_request_error" },
    };
    struct pd_params p = take(BODY);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_answer a = answer(&p);
        struct pd_error x;
        struct fo_buf out, want;
        char param[16] = "null";
        if (rows[i].param) snprintf(param, sizeof param, "\"%s\"", rows[i].param);
        fo_buf_init(&out, 1 << 20);
        fo_buf_init(&want, 1 << 20);
        say(&a, &out);
        pd_error_set(&x, rows[i].id, rows[i].param, "it \"broke\"");
        a.writer->error(&a, &x, "req_1", &out);
        fo_buf_puts(&want, BEGIN);
        fo_buf_printf(&want, "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":6,\"response\":" HEAD("failed", "{\"code\":\"%s\",\"message\":\"it \\\"broke\\\"\"}", "null") "]" REST "null}}\n\n",
                      rows[i].failed);
        fo_buf_printf(&want, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":7,\"code\":%s,\"message\":\"it \\\"broke\\\"\",\"param\":%s,"
                             "\"error\":{\"message\":\"it \\\"broke\\\"\",\"type\":\"%s\",\"param\":%s,\"code\":%s,\"request_id\":\"req_1\"}}\n\n",
                      rows[i].code, param, rows[i].type, param, rows[i].code);
        is(&out, want.data);
        /* bytes that are no UTF-8 become U+FFFD: an error is told all the same */
        fo_buf_clear(&out);
        pd_error_set(&x, rows[i].id, NULL, "\xFF");
        a.writer->error(&a, &x, "req_1", &out);
        assert_false(out.failed);
        assert_non_null(strstr(out.data, "\xEF\xBF\xBD"));
        pd_answer_done(&a);
        fo_buf_done(&out);
        fo_buf_done(&want);
    }
    pd_params_done(&p);
}

static void a_whole_answer_is_what_the_last_event_has(void **state) {
    (void)state;
    struct pd_params p = take(BODY);
    struct pd_answer a = answer(&p);
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    struct pd_choice c = { .finish = PN_FINISH_STOP };
    pd_parts_init(&c.parts, 1 << 20);
    assert_non_null(pd_parts_add(&c.parts, PN_PART_CONTENT, "a\"b", 3));
    a.writer->whole(&a, &c, 1, &usage, NULL, &out);
    is(&out, HEAD("completed", "null", "null") ITEM("completed", PART("a\\\"b")) "]" REST USAGE "}");
    fo_buf_clear(&out);
    pd_parts_done(&c.parts);
    c.finish = PN_FINISH_LENGTH;
    struct pd_part *said = pd_parts_add(&c.parts, PN_PART_CONTENT, "", 0);
    assert_true(said && fo_buf_puts(&said->logprobs, "1"));
    a.writer->whole(&a, &c, 1, &usage, &(struct pd_timings){ .prompt_n = 6 }, &out);
    json_t *v = parse(out.data);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(v, "timings"), "prompt_n")), 6);
    assert_string_equal(json_string_value(json_object_get(v, "status")), "incomplete");
    json_t *part = json_array_get(json_object_get(json_array_get(json_object_get(v, "output"), 0), "content"), 0);
    assert_int_equal(json_array_size(json_object_get(part, "logprobs")), 1);
    assert_string_equal(json_string_value(json_object_get(part, "text")), "");
    json_decref(v);
    pd_answer_done(&a);
    pd_params_done(&p);

    /* what a request says in the place of a word that asks for nothing is not repeated */
    pd_parts_done(&c.parts);
    p = take("{\"model\":\"m\",\"input\":\"a\",\"tool_choice\":null,\"tools\":null,\"user\":5,\"parallel_tool_calls\":null,\"metadata\":null}");
    a = answer(&p);
    fo_buf_clear(&out);
    a.writer->whole(&a, &c, 1, &usage, NULL, &out);
    assert_non_null(strstr(out.data, "\"instructions\":null,\"metadata\":{},\"parallel_tool_calls\":true,\"prompt_cache_key\":null,\"safety_identifier\":null,\"user\":null,\"tools\":[],\"tool_choice\":\"auto\",\"max_output_tokens\":null,"));
    pd_answer_done(&a);
    pd_params_done(&p);
    fo_buf_done(&out);
}

/* What is kept of a stream is bounded, and what is missing fails the answer: nothing half goes out as if it were whole. */
static void text_past_the_cap_or_without_memory_fails_the_answer(void **state) {
    (void)state;
    struct pd_params p = take(BODY);
    struct pd_answer a;
    struct fo_buf out;
    struct pd_logprobs none;
    fo_buf_init(&out, 1 << 20);
    pd_logprobs_init(&none, PD_API_RESPONSES, NULL, 1 << 20);
    pd_answer_init(&a, &p, "m", 10);
    a.writer->part(&a, 0, PN_PART_CONTENT, "1234567890", 10, &none, &out);
    assert_false(out.failed);
    a.writer->part(&a, 0, PN_PART_CONTENT, "1", 1, &none, &out);
    assert_true(out.failed);
    pd_answer_done(&a);
    long n = 1;
    for (;; n++) {
        pd_answer_init(&a, &p, "m", 1 << 20);
        fo_buf_done(&out);
        test_fail_alloc(n);
        say(&a, &out);
        a.writer->finish(&a, 0, PN_FINISH_STOP, NULL, &out);
        a.writer->close(&a, &usage, NULL, &out);
        bool failed = test_alloc_failed();
        test_fail_alloc(0);
        pd_answer_done(&a);
        if (!failed) break;
        assert_true(out.failed);
    }
    assert_false(out.failed);
    assert_true(n > 10);
    pd_logprobs_done(&none);
    fo_buf_done(&out);
    pd_params_done(&p);
}

int main(void) {
    json_set_alloc_funcs(malloc, free); /* jansson's allocations fail on demand too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_become_the_turns_of_a_chat),
        cmocka_unit_test(takes_the_fields_of_the_api),
        cmocka_unit_test(names_each_mistake_by_its_path),
        cmocka_unit_test(many_items_are_no_trouble),
        cmocka_unit_test(gives_up_cleanly_without_memory),
        cmocka_unit_test(whatever_stands_in_the_place_of_a_value_is_refused_or_good),
        cmocka_unit_test(the_events_of_a_stream_are_these),
        cmocka_unit_test(each_part_of_an_answer_is_an_item),
        cmocka_unit_test(an_answer_that_has_nothing_is_an_empty_message),
        cmocka_unit_test(an_error_is_told_twice_and_ends_the_stream),
        cmocka_unit_test(a_whole_answer_is_what_the_last_event_has),
        cmocka_unit_test(text_past_the_cap_or_without_memory_fails_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
