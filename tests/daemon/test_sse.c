/* The JSON of answers: every chunk and every whole answer is what OpenAI's schema says, log-probabilities in both shapes, timings under
 * llama-server's names. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/logprobs.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/sse.h"
#include "engine/logprobs.h"
#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/tiny.h"

/* Ids of the tiny model: control tokens, then the bytes in GPT-2's order. */
enum { CONTROL = 2, QUOTE = 4, A = 35, B = 36, LEAD = 175 /* 0xF0 */, NUL = 191, MERGE = 259, UNUSED = 511 };

static struct fo_device *dev;
static struct pn_model *model;

static int set_up(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_err e;
    if (test_tiny_write(&t, odd_path(0), &e) || fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &dev, &e)) return -1;
    return pn_model_open(odd_path(0), &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &model, &e);
}

static int tear_down(void **state) {
    (void)state;
    pn_model_free(model);
    fo_device_close(dev);
    return unlink(odd_path(0));
}

static json_t *parse(const char *text, size_t len) {
    json_error_t err;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &err);
    if (!v) fail_msg("%s in: %s", err.text, text);
    return v;
}

/* The one event in the buffer, which is then empty. */
static json_t *event(struct fo_buf *b) {
    assert_false(b->failed);
    assert_true(b->len > 8 && memcmp(b->data, "data: ", 6) == 0 && memcmp(b->data + b->len - 2, "\n\n", 2) == 0);
    assert_null(memchr(b->data, '\n', b->len - 2));
    json_t *v = parse(b->data + 6, b->len - 8);
    fo_buf_clear(b);
    return v;
}

static void says(const json_t *got, const char *want) {
    json_t *w = parse(want, strlen(want));
    char *text = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!json_equal(got, w)) fail_msg("%s\nnot %s", text, want);
    free(text);
    json_decref(w);
}

static const json_t *choice(const json_t *chunk) {
    assert_int_equal(json_array_size(json_object_get(chunk, "choices")), 1);
    return json_array_get(json_object_get(chunk, "choices"), 0);
}

/* What stands around the choices. */
static void check_around(const json_t *v, const struct pd_answer *a, const char *object, size_t n_members) {
    assert_string_equal(json_string_value(json_object_get(v, "id")), a->id);
    assert_string_equal(json_string_value(json_object_get(v, "object")), object);
    assert_int_equal(json_integer_value(json_object_get(v, "created")), a->created);
    assert_string_equal(json_string_value(json_object_get(v, "model")), a->model);
    assert_memory_equal(json_string_value(json_object_get(v, "system_fingerprint")), "pantheon-", 9);
    assert_int_equal(json_object_size(v), n_members);
}

static void chunks_are_what_clients_parse(void **state) {
    (void)state;
    struct pd_params p = { 0 };
    struct pd_answer a;
    struct fo_buf out;
    json_t *v;
    fo_buf_init(&out, 1 << 20);
    for (int asked = 0; asked < 2; asked++) {
        struct { unsigned api; const char *object, *role, *text, *finish; } rows[] = {
            { PD_API_CHAT, "chat.completion.chunk", "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}",
              "{\"index\":2,\"delta\":{\"content\":\"a\\\"\\n\\u00e9\"},\"logprobs\":null,\"finish_reason\":null}",
              "{\"index\":3,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}" },
            { PD_API_TEXT, "text_completion", NULL, "{\"index\":2,\"text\":\"a\\\"\\n\\u00e9\",\"logprobs\":null,\"finish_reason\":null}",
              "{\"index\":3,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}" },
        };
        for (size_t i = 0; i < 2; i++) {
            p = (struct pd_params){ .api = rows[i].api, .stream = true, .include_usage = asked };
            pd_answer_init(&a, &p, "my \"model\" \xC3\xA4", 1 << 20);
            if (rows[i].role) {
                pd_writer_choices.begin(&a, 1, NULL, 0, &out);
                v = event(&out);
                says(choice(v), rows[i].role);
                json_decref(v);
            }
            pd_writer_choices.part(&a, 2, PN_PART_CONTENT, "a\"\n\xC3\xA9", 5, NULL, &out);
            v = event(&out);
            check_around(v, &a, rows[i].object, (size_t)(asked ? 7 : 6));
            says(choice(v), rows[i].text);
            assert_true(!asked || json_is_null(json_object_get(v, "usage")));
            json_decref(v);
            pd_writer_choices.finish(&a, 3, PN_FINISH_LENGTH, NULL, &out);
            v = event(&out);
            says(choice(v), rows[i].finish);
            json_decref(v);
        }
    }
    pd_writer_choices.part(&a, 0, PN_PART_CONTENT, "\xFF", 1, NULL, &out); /* no text of ours: fails, and sends nothing that is no JSON */
    assert_true(out.failed);
    fo_buf_done(&out);
}

static void the_tier_is_told_to_who_asked_for_one(void **state) {
    (void)state;
    static const struct { enum pn_priority priority; const char *name; } rows[] = { { PN_PRIORITY_NORMAL, "default" }, { PN_PRIORITY_LOW, "flex" }, { PN_PRIORITY_HIGH, "priority" } };
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    for (size_t i = 0; i < 3; i++)
        for (int asked = 0; asked < 2; asked++) {
            const struct pd_params p = { .api = PD_API_CHAT, .stream = true, .has_tier = asked };
            struct pd_answer a;
            pd_answer_init(&a, &p, "m", 1 << 20);
            a.priority = rows[i].priority;
            pd_writer_choices.begin(&a, 0, NULL, 0, &out);
            json_t *v = event(&out);
            const json_t *tier = json_object_get(v, "service_tier");
            if (asked) assert_string_equal(json_string_value(tier), rows[i].name);
            else assert_null(tier);
            json_decref(v);
            pd_answer_done(&a);
        }
    fo_buf_done(&out);
}

static void usage_and_timings_say_what_an_answer_took(void **state) {
    (void)state;
    struct pd_answer a;
    struct fo_buf out;
    struct pn_usage u = { .prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 5, .reasoning_tokens = 2 };
    struct pd_timings t = { .cache_n = 4, .prompt_n = 6, .predicted_n = 5, .draft_n = 3, .draft_n_accepted = 2, .queue_ms = 1.5, .prompt_ms = 12, .predicted_ms = 20,
                            .cache_hit = 4, .cache_small = 2, .cache_shared = 5, .cache_reason = PN_CACHE_DIVERGED };
    static const char usage[] = "{\"prompt_tokens\":10,\"completion_tokens\":5,\"total_tokens\":15,\"prompt_tokens_details\":{\"cached_tokens\":4},"
                                "\"completion_tokens_details\":{\"reasoning_tokens\":2}}";
    static const char timings[] = "{\"cache_n\":4,\"prompt_n\":6,\"prompt_ms\":12.0,\"prompt_per_token_ms\":2.0,\"prompt_per_second\":500.0,\"predicted_n\":5,"
                                  "\"predicted_ms\":20.0,\"predicted_per_token_ms\":4.0,\"predicted_per_second\":250.0,\"draft_n\":3,\"draft_n_accepted\":2,\"queue_ms\":1.5,"
                                  "\"cache\":{\"hit\":4,\"shared\":5,\"reason\":\"diverged\",\"floor\":2}}";
    static const char nothing[] = "{\"cache_n\":0,\"prompt_n\":0,\"prompt_ms\":0.0,\"prompt_per_token_ms\":0.0,\"prompt_per_second\":0.0,\"predicted_n\":0,"
                                  "\"predicted_ms\":0.0,\"predicted_per_token_ms\":0.0,\"predicted_per_second\":0.0,\"draft_n\":0,\"draft_n_accepted\":0,\"queue_ms\":0.0,"
                                  "\"cache\":{\"hit\":0,\"shared\":0,\"reason\":\"full\"}}";
    fo_buf_init(&out, 1 << 20);
    const struct pd_params chat = { .api = PD_API_CHAT, .stream = true, .include_usage = true }, text = { .api = PD_API_TEXT };
    pd_answer_init(&a, &chat, "m", 1 << 20);
    pd_writer_choices.finish(&a, 0, PN_FINISH_STOP, &t, &out); /* not here: the usage comes yet */
    json_t *v = event(&out);
    check_around(v, &a, "chat.completion.chunk", 7);
    json_decref(v);
    pd_writer_choices.close(&a, &u, &t, &out);
    static const char done[] = "data: [DONE]\n\n";
    assert_true(out.len > sizeof done && strcmp(out.data + out.len - (sizeof done - 1), done) == 0);
    out.len -= sizeof done - 1;
    v = event(&out);
    check_around(v, &a, "chat.completion.chunk", 8);
    says(json_object_get(v, "choices"), "[]");
    says(json_object_get(v, "usage"), usage);
    says(json_object_get(v, "timings"), timings);
    json_decref(v);
    a.usage_asked = false; /* then the last finish has them, and no usage */
    pd_writer_choices.finish(&a, 0, PN_FINISH_STOP, &(struct pd_timings){ 0 }, &out);
    v = event(&out);
    check_around(v, &a, "chat.completion.chunk", 7);
    says(json_object_get(v, "timings"), nothing);
    json_decref(v);

    struct pd_choice two[] = { { .finish = PN_FINISH_STOP }, { .finish = PN_FINISH_LENGTH, .logprobs = (char[]){ "{\"content\":[],\"refusal\":null}" } } };
    pd_parts_init(&two[0].parts, 100);
    assert_non_null(pd_parts_add(&two[0].parts, PN_PART_CONTENT, "a\t", 2));
    pd_writer_choices.whole(&a, two, 2, &u, &t, &out);
    v = parse(out.data, out.len);
    check_around(v, &a, "chat.completion", 8);
    says(json_object_get(v, "choices"), "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\\t\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"},"
                                        "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":{\"content\":[],\"refusal\":null},\"finish_reason\":\"length\"}]");
    says(json_object_get(v, "usage"), usage);
    says(json_object_get(v, "timings"), timings);
    json_decref(v);
    fo_buf_clear(&out);
    pd_answer_init(&a, &text, "m", 1 << 20);
    pd_writer_choices.whole(&a, two, 1, &u, &t, &out);
    v = parse(out.data, out.len);
    check_around(v, &a, "text_completion", 8);
    says(json_object_get(v, "choices"), "[{\"index\":0,\"text\":\"a\\t\",\"logprobs\":null,\"finish_reason\":\"stop\"}]");
    json_decref(v);
    pd_parts_done(&two[0].parts);
    fo_buf_done(&out);
}

/* The one random id in a text is "call_X" from here on. */
static void hide_ids(struct fo_buf *b) {
    for (char *at = b->data; at && (at = strstr(at, "\"call_")); at++) {
        at += 6;
        assert_int_equal(strspn(at, "0123456789abcdef"), 24);
        *at = 'X';
        memmove(at + 1, at + 24, strlen(at + 24) + 1);
        b->len -= 23;
    }
}

#define FIRST(i) "{\"tool_calls\":[{\"index\":" i ",\"id\":\"call_X\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}"
#define NEXT(i, text) "{\"tool_calls\":[{\"index\":" i ",\"function\":{\"arguments\":\"" text "\"}}]}"
#define CALL(text) "{\"id\":\"call_X\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"" text "\"}}"

/* Rows: what was said, the deltas of a stream, the message of a whole answer. A function that is offered makes the first delta's content null. */
static void thoughts_and_calls_have_their_own_members(void **state) {
    (void)state;
    static const struct {
        struct { enum pn_part part; const char *text; } said[8];
        const char *deltas[8], *message, *finish;
        enum pn_finish f;
    } rows[] = {
        { { { PN_PART_REASONING, "t" }, { PN_PART_REASONING, "u" }, { PN_PART_CONTENT, "a" } },
          { "{\"reasoning_content\":\"t\"}", "{\"reasoning_content\":\"u\"}", "{\"content\":\"a\"}" },
          "{\"role\":\"assistant\",\"content\":\"a\",\"refusal\":null,\"reasoning_content\":\"tu\"}", "stop", PN_FINISH_STOP },
        { { { PN_PART_CALL, "f" }, { PN_PART_ARGUMENTS, "{" }, { PN_PART_ARGUMENTS, "}" }, { PN_PART_CALL, "f" }, { PN_PART_ARGUMENTS, "{}" } },
          { FIRST("0"), NEXT("0", "{"), NEXT("0", "}"), FIRST("1"), NEXT("1", "{}") },
          "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"tool_calls\":[" CALL("{}") "," CALL("{}") "]}", "tool_calls", PN_FINISH_CALLS },
        { { { PN_PART_CONTENT, "a" }, { PN_PART_CALL, "f" }, { PN_PART_ARGUMENTS, "{" }, { PN_PART_CONTENT, "b" } },
          { "{\"content\":\"a\"}", FIRST("0"), NEXT("0", "{"), "{\"content\":\"b\"}" },
          "{\"role\":\"assistant\",\"content\":\"ab\",\"refusal\":null,\"tool_calls\":[" CALL("{") "]}", "length", PN_FINISH_LENGTH },
        { { { PN_PART_REASONING, "t" } }, { "{\"reasoning_content\":\"t\"}", "{\"content\":\"\"}" },
          "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null,\"reasoning_content\":\"t\"}", "length", PN_FINISH_LENGTH },
    };
    static const char body[] = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}";
    struct pd_params p;
    struct pd_error x;
    struct pd_answer a;
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    assert_true(pd_params_parse(PD_API_CHAT, body, strlen(body), &p, &x));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_choice c = { .finish = rows[i].f };
        json_t *v;
        pd_parts_init(&c.parts, 1000);
        pd_answer_init(&a, &p, "m", 1 << 20);
        pd_writer_choices.begin(&a, 0, NULL, 0, &out);
        v = event(&out);
        says(json_object_get(choice(v), "delta"), "{\"role\":\"assistant\",\"content\":null}");
        json_decref(v);
        size_t k = 0;
        for (; rows[i].said[k].text; k++) {
            const char *text = rows[i].said[k].text;
            pd_writer_choices.part(&a, 0, rows[i].said[k].part, text, strlen(text), NULL, &out);
            hide_ids(&out);
            v = event(&out);
            says(json_object_get(choice(v), "delta"), rows[i].deltas[k]);
            json_decref(v);
            assert_non_null(pd_parts_add(&c.parts, rows[i].said[k].part, text, strlen(text)));
        }
        pd_writer_choices.finish(&a, 0, rows[i].f, NULL, &out);
        if (rows[i].deltas[k]) { /* what a whole answer has too comes at last */
            char *behind = strstr(out.data, "\n\n") + 2;
            struct fo_buf first;
            fo_buf_init(&first, 1 << 20);
            fo_buf_append(&first, out.data, (size_t)(behind - out.data));
            v = event(&first);
            says(json_object_get(choice(v), "delta"), rows[i].deltas[k]);
            json_decref(v);
            fo_buf_done(&first);
            out.len -= (size_t)(behind - out.data);
            memmove(out.data, behind, out.len + 1);
        }
        v = event(&out);
        says(json_object_get(choice(v), "delta"), "{}");
        assert_string_equal(json_string_value(json_object_get(choice(v), "finish_reason")), rows[i].finish);
        json_decref(v);
        pd_writer_choices.whole(&a, &c, 1, &(struct pn_usage){ 0 }, NULL, &out);
        hide_ids(&out);
        v = parse(out.data, out.len);
        says(json_object_get(choice(v), "message"), rows[i].message);
        assert_string_equal(json_string_value(json_object_get(choice(v), "finish_reason")), rows[i].finish);
        json_decref(v);
        fo_buf_clear(&out);
        pd_parts_done(&c.parts);
        pd_answer_done(&a);
    }
    pd_params_done(&p);
    fo_buf_done(&out);
}

/* The cap is that of all parts together, and what passes it leaves a mark. */
static void parts_are_kept_up_to_their_cap(void **state) {
    (void)state;
    struct pd_parts p;
    pd_parts_init(&p, 5);
    assert_non_null(pd_parts_add(&p, PN_PART_CALL, "f", 1));
    assert_non_null(pd_parts_add(&p, PN_PART_ARGUMENTS, "{", 1));
    assert_non_null(pd_parts_add(&p, PN_PART_ARGUMENTS, "}", 1));
    assert_non_null(pd_parts_add(&p, PN_PART_CONTENT, "ab", 2));
    assert_int_equal(p.n, 2);
    assert_int_equal(pd_parts_count(&p, PN_PART_CALL), 1);
    assert_string_equal(fo_buf_str(&p.list[0].name), "f");
    assert_string_equal(fo_buf_str(&p.list[0].text), "{}");
    assert_null(pd_parts_add(&p, PN_PART_CONTENT, "c", 1));
    assert_true(p.failed);
    assert_null(pd_parts_add(&p, PN_PART_CONTENT, "", 0));
    pd_parts_done(&p);
    for (long n = 1;; n++) {
        pd_parts_init(&p, 1000);
        test_fail_alloc(n);
        bool ok = true;
        for (int i = 0; i < 6 && ok; i++) ok = pd_parts_add(&p, PN_PART_CALL, "f", 1) && pd_parts_add(&p, PN_PART_ARGUMENTS, "{}", 2);
        bool failed = test_alloc_failed();
        test_fail_alloc(0);
        assert_true(ok != p.failed && ok != failed);
        pd_parts_done(&p);
        if (ok) break;
    }
}

static json_t *taken(struct pd_logprobs *l) {
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    pd_logprobs_take(l, &out);
    assert_false(out.failed);
    json_t *v = parse(fo_buf_str(&out), out.len);
    fo_buf_done(&out);
    return v;
}

static const struct pn_logprobs plain = { .text_at = 7, .token = { A, -0.5F }, .n_top = 2, .top = { { A, -0.5F }, { QUOTE, -1.25F } } };
static const struct pn_logprobs odd = { .text_at = 8, .token = { LEAD, -2 }, .n_top = 3, .top = { { CONTROL, 0 }, { NUL, -3 }, { UNUSED, -INFINITY } } };

static void chat_has_tokens_with_bytes(void **state) {
    (void)state;
    struct pd_logprobs l;
    pd_logprobs_init(&l, PD_API_CHAT, model, 1 << 20);
    json_t *v = taken(&l);
    says(v, "{\"content\":[],\"refusal\":null}");
    json_decref(v);
    pd_logprobs_add(&l, &plain);
    pd_logprobs_add(&l, &odd);
    v = taken(&l);
    says(v, "{\"content\":["
            "{\"token\":\"A\",\"logprob\":-0.5,\"bytes\":[65],\"top_logprobs\":[{\"token\":\"A\",\"logprob\":-0.5,\"bytes\":[65]},{\"token\":\"\\\"\",\"logprob\":-1.25,\"bytes\":[34]}]},"
            "{\"token\":\"\\\\xf0\",\"logprob\":-2,\"bytes\":[240],\"top_logprobs\":[{\"token\":\"<|im_end|>\",\"logprob\":0,\"bytes\":null},"
            "{\"token\":\"\\u0000\",\"logprob\":-3,\"bytes\":[0]},{\"token\":\"\",\"logprob\":-9999,\"bytes\":null}]}],\"refusal\":null}");
    json_decref(v);
    pd_logprobs_add(&l, &plain); /* begins anew, and goes with a chunk */
    struct pd_answer a;
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    pd_answer_init(&a, &(struct pd_params){ .api = PD_API_CHAT }, "m", 1 << 20);
    pd_writer_choices.part(&a, 0, PN_PART_CONTENT, "A", 1, &l, &out);
    v = event(&out);
    assert_int_equal(json_array_size(json_object_get(json_object_get(choice(v), "logprobs"), "content")), 1);
    json_decref(v);
    fo_buf_done(&out);
    pd_logprobs_done(&l);
}

static void completions_have_four_lists(void **state) {
    (void)state;
    struct pd_logprobs l;
    pd_logprobs_init(&l, PD_API_TEXT, model, 1 << 20);
    json_t *v = taken(&l);
    says(v, "{\"tokens\":[],\"token_logprobs\":[],\"top_logprobs\":[],\"text_offset\":[]}");
    json_decref(v);
    static const struct pn_logprobs same = { .text_at = 9, .token = { B, -4 }, .n_top = 2, .top = { { UNUSED, -1 }, { UNUSED - 1, -2 } } };
    static const struct pn_logprobs alone = { .text_at = 10, .token = { MERGE, -0.125F } };
    static const struct pn_logprobs other = { .text_at = 8, .token = { LEAD, -2 }, .n_top = 3, .top = { { CONTROL, 0 }, { B, -3 }, { UNUSED, -INFINITY } } };
    pd_logprobs_add(&l, &plain);
    pd_logprobs_add(&l, &other);
    pd_logprobs_add(&l, &same); /* two that read the same: the likeliest */
    pd_logprobs_add(&l, &alone);
    v = taken(&l);
    const char *merged = json_string_value(json_array_get(json_object_get(v, "tokens"), 3));
    assert_non_null(merged);
    assert_true(json_real_value(json_object_get(json_array_get(json_object_get(v, "top_logprobs"), 3), merged)) == -0.125);
    json_array_remove(json_object_get(v, "tokens"), 3);
    json_array_remove(json_object_get(v, "top_logprobs"), 3);
    says(v, "{\"tokens\":[\"A\",\"bytes:\\\\xf0\",\"B\"],\"token_logprobs\":[-0.5,-2,-4,-0.125],"
            "\"top_logprobs\":[{\"A\":-0.5,\"\\\"\":-1.25},{\"<|im_end|>\":0,\"B\":-3,\"\":-9999,\"bytes:\\\\xf0\":-2},{\"\":-1,\"B\":-4}],"
            "\"text_offset\":[7,8,9,10]}");
    json_decref(v);
    pd_logprobs_done(&l);
}

static void who_does_not_ask_gets_null(void **state) {
    (void)state;
    struct pd_logprobs l;
    pd_logprobs_init(&l, PD_API_CHAT, NULL, 1 << 20);
    test_fail_alloc(0);
    pd_logprobs_add(&l, &plain);
    assert_int_equal(test_allocs(), 0);
    json_t *v = taken(&l);
    assert_true(json_is_null(v));
    json_decref(v);
    pd_logprobs_done(&l);
}

/* A list that is full or without memory fails what takes it; nothing half goes out as if it were whole. */
static void a_list_past_its_cap_or_without_memory_fails_the_answer(void **state) {
    (void)state;
    for (unsigned api = PD_API_CHAT; api <= PD_API_TEXT; api++) {
        struct pd_logprobs l;
        struct fo_buf out;
        fo_buf_init(&out, 1 << 20);
        pd_logprobs_init(&l, api, model, 100);
        for (int i = 0; i < 10; i++) pd_logprobs_add(&l, &odd);
        pd_logprobs_take(&l, &out);
        assert_true(out.failed);
        pd_logprobs_done(&l);
        long n = 1;
        for (;; n++) {
            fo_buf_clear(&out);
            pd_logprobs_init(&l, api, model, 1 << 20);
            test_fail_alloc(n);
            pd_logprobs_add(&l, &plain);
            pd_logprobs_add(&l, &odd);
            pd_logprobs_take(&l, &out);
            bool failed = test_alloc_failed();
            pd_logprobs_done(&l);
            if (!failed) break;
            assert_true(out.failed);
        }
        assert_false(out.failed);
        assert_true(n > 4);
        fo_buf_done(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_what_clients_parse),
        cmocka_unit_test(the_tier_is_told_to_who_asked_for_one),
        cmocka_unit_test(usage_and_timings_say_what_an_answer_took),
        cmocka_unit_test(thoughts_and_calls_have_their_own_members),
        cmocka_unit_test(parts_are_kept_up_to_their_cap),
        cmocka_unit_test(chat_has_tokens_with_bytes),
        cmocka_unit_test(completions_have_four_lists),
        cmocka_unit_test(who_does_not_ask_gets_null),
        cmocka_unit_test(a_list_past_its_cap_or_without_memory_fails_the_answer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
