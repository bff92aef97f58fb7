/* Request bodies: what is taken, and that everything malformed is a 400 that names its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "config/manifest.h"
#include "daemon/head.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/whose.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"

#define MESSAGES "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static struct pd_params take(unsigned api, const char *body) {
    struct pd_params p;
    struct pd_error x;
    if (!pd_params_parse(api, body, strlen(body), &p, &x)) fail_msg("%s: refused: %s", body, x.message);
    return p;
}

static void refuses_each_malformed_request_by_its_place(void **state) {
    (void)state;
    FILE *f = fopen("tests/cases/http/malformed.txt", "r");
    assert_non_null(f);
    char line[4096];
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line == '#') continue;
        char *param = strchr(line, ' '), *body = param ? strchr(param + 1, ' ') : NULL;
        assert_non_null(body);
        *param++ = *body++ = '\0';
        struct pd_params p;
        struct pd_error x;
        if (pd_params_parse(strcmp(line, "chat") == 0 ? PD_API_CHAT : PD_API_TEXT, body, strlen(body), &p, &x)) fail_msg("taken: %s", body);
        if (pd_error_row(x.id)->status != 400) fail_msg("%s: status %d", body, pd_error_row(x.id)->status);
        if (strcmp(x.param, strcmp(param, "-") == 0 ? "" : param) != 0) fail_msg("%s: param '%s', not '%s': %s", body, x.param, param, x.message);
        assert_true(x.message[0]);
        n++;
    }
    fclose(f);
    assert_true(n >= 100);
}

/* Agents search the text of a 400 for these; only a real overflow may use them. */
static void never_words_a_refusal_as_an_overflow(void **state) {
    (void)state;
    static const char *const words[] = { "context size", "context length", "context window", "too many tokens", "entity too large", "exceeds the limit of", "too many images", "too many requests", "rate limit" };
    FILE *f = fopen("tests/cases/http/malformed.txt", "r");
    assert_non_null(f);
    char line[4096];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *param = strchr(line, ' '), *body = param ? strchr(param + 1, ' ') : NULL;
        if (*line == '#' || !body) continue;
        struct pd_params p;
        struct pd_error x;
        assert_false(pd_params_parse(line[0] == 'c' ? PD_API_CHAT : PD_API_TEXT, body + 1, strlen(body + 1), &p, &x));
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strstr(x.message, words[i])) fail_msg("'%s' in: %s", words[i], x.message);
    }
    fclose(f);
}

static void takes_the_sampling_fields(void **state) {
    (void)state;
    struct pd_params p = take(PD_API_CHAT, "{" MESSAGES ",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,\"repeat_penalty\":1.5,\"repeat_last_n\":-1,"
                                           "\"presence_penalty\":-2,\"frequency_penalty\":2,\"seed\":-7,\"max_tokens\":5.0,\"max_completion_tokens\":5,\"n\":3,"
                                           "\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"3\":-100,\"9\":5.5},\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    assert_true(p.sampling.temperature == 0.5f && p.sampling.top_p == 0.25f && p.sampling.min_p == 0.125f && p.sampling.repeat_penalty == 1.5f);
    assert_true(p.sampling.presence_penalty == -2 && p.sampling.frequency_penalty == 2);
    assert_int_equal(p.sampling.top_k, 40);
    assert_int_equal(p.sampling.repeat_last_n, -1);
    assert_true(p.sampling.seed == (uint64_t)-7);
    assert_true(p.has_max_tokens && p.max_tokens == 5 && p.n == 3);
    assert_int_equal(p.n_stops, 2);
    assert_string_equal(p.stops[1], "b");
    assert_int_equal(p.sampling.n_bias, 2);
    assert_int_equal(p.sampling.bias[1].id, 9);
    assert_true(p.sampling.bias[0].bias == -100);
    assert_true(p.stream && p.include_usage);
    pd_params_done(&p);
}

static void takes_log_probabilities_in_both_forms(void **state) {
    (void)state;
    static const struct {
        unsigned api;
        const char *fields;
        int n_top; /* -1 = none */
    } rows[] = {
        { PD_API_CHAT, "", -1 },
        { PD_API_CHAT, ",\"logprobs\":false", -1 },
        { PD_API_CHAT, ",\"logprobs\":false,\"top_logprobs\":0", -1 },
        { PD_API_CHAT, ",\"top_logprobs\":null,\"logprobs\":true", 0 },
        { PD_API_CHAT, ",\"logprobs\":true,\"top_logprobs\":0", 0 },
        { PD_API_CHAT, ",\"top_logprobs\":20,\"logprobs\":true", 20 },
        { PD_API_TEXT, "", -1 },
        { PD_API_TEXT, ",\"logprobs\":null,\"echo\":true", -1 },
        { PD_API_TEXT, ",\"logprobs\":0", 0 },
        { PD_API_TEXT, ",\"logprobs\":5.0", 5 },
        { PD_API_TEXT, ",\"logprobs\":20,\"echo\":false", 20 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        snprintf(body, sizeof body, "{%s%s}", rows[i].api == PD_API_CHAT ? MESSAGES : "\"model\":\"m\",\"prompt\":\"a\"", rows[i].fields);
        struct pd_params p = take(rows[i].api, body);
        assert_int_equal(p.n_top, rows[i].n_top);
        pd_params_done(&p);
    }
}

static void takes_null_as_unset(void **state) {
    (void)state;
    struct pd_params p = take(PD_API_CHAT, "{" MESSAGES ",\"temperature\":null,\"max_tokens\":null,\"stop\":null,\"stream\":null,\"stream_options\":null,\"n\":null,\"tools\":null,"
                                           "\"tool_choice\":null,\"response_format\":null,\"logprobs\":null,\"logit_bias\":null,\"seed\":null,\"user\":null}");
    assert_true(p.sampling.temperature == 1 && !p.has_max_tokens && p.n == 1 && p.n_stops == 0 && !p.stream && p.has == 0);
    pd_params_done(&p);
}

static void takes_the_harmless_fields(void **state) {
    (void)state;
    struct pd_params p = take(PD_API_CHAT, "{" MESSAGES ",\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,\"service_tier\":\"auto\",\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\","
                                           "\"verbosity\":\"low\",\"modalities\":[\"text\"],\"parallel_tool_calls\":true,\"reasoning_effort\":\"low\",\"logprobs\":false,"
                                           "\"top_logprobs\":0,\"tools\":[],\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},\"functions\":[]}");
    pd_params_done(&p);
    p = take(PD_API_CHAT, "{" MESSAGES ",\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\"}");
    pd_params_done(&p);
    p = take(PD_API_TEXT, "{\"model\":\"m\",\"prompt\":\"a\",\"best_of\":1,\"suffix\":\"\",\"echo\":true,\"max_tokens\":0}");
    assert_true(p.echo && p.has_max_tokens && p.max_tokens == 0);
    pd_params_done(&p);
}

static void takes_whose_turn_it_is(void **state) {
    (void)state;
    static const struct { const char *tier; enum pn_priority priority; } tiers[] = { { "auto", PN_PRIORITY_NORMAL }, { "default", PN_PRIORITY_NORMAL }, { "scale", PN_PRIORITY_NORMAL },
                                                                                     { "flex", PN_PRIORITY_LOW },     { "priority", PN_PRIORITY_HIGH } };
    char body[1024], longest[PD_MAX_SESSION_BYTES + 2];
    struct pd_error x;
    struct pd_params p = take(PD_API_CHAT, "{" MESSAGES ",\"service_tier\":null,\"session_id\":null,\"prompt_cache_key\":\"\",\"cache_prompt\":null}");
    assert_true(!p.has_tier && p.priority == PN_PRIORITY_NORMAL && !p.session && !p.cache_key && p.cache_prompt);
    pd_params_done(&p);
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        snprintf(body, sizeof body, "{" MESSAGES ",\"service_tier\":\"%s\",\"session_id\":\"\u00e4\",\"prompt_cache_key\":\"k\",\"cache_prompt\":false}", tiers[i].tier);
        p = take(PD_API_CHAT, body);
        assert_true(p.has_tier && p.priority == tiers[i].priority && !p.cache_prompt);
        assert_string_equal(p.session, "\xC3\xA4");
        assert_string_equal(p.cache_key, "k");
        pd_params_done(&p);
    }
    static const struct { const char *fields, *param; } bad[] = {
        { "\"service_tier\":\"fast\"", "service_tier" }, { "\"service_tier\":1", "service_tier" },      { "\"service_tier\":\"flex\\u0000\"", "service_tier" },
        { "\"session_id\":7", "session_id" },            { "\"session_id\":\"a\\u0000b\"", "session_id" }, { "\"prompt_cache_key\":[]", "prompt_cache_key" },
        { "\"cache_prompt\":\"no\"", "cache_prompt" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", bad[i].fields);
        assert_false(pd_params_parse(PD_API_CHAT, body, strlen(body), &p, &x));
        assert_string_equal(x.param, bad[i].param);
        assert_int_equal(pd_error_row(x.id)->status, 400);
    }
    /* As long as it may be, and one byte more. */
    for (size_t n = PD_MAX_SESSION_BYTES; n <= PD_MAX_SESSION_BYTES + 1; n++) {
        memset(longest, 'x', n);
        longest[n] = '\0';
        snprintf(body, sizeof body, "{" MESSAGES ",\"session_id\":\"%s\"}", longest);
        assert_int_equal(pd_params_parse(PD_API_CHAT, body, strlen(body), &p, &x), n == PD_MAX_SESSION_BYTES);
        pd_params_done(&p);
    }
    assert_string_equal(x.param, "session_id");
}

/* The header goes before the fields; the key says how urgent it may be. */
static void asks_for_no_more_than_its_key_may(void **state) {
    (void)state;
    static const enum pn_priority low = PN_PRIORITY_LOW, normal = PN_PRIORITY_NORMAL, high = PN_PRIORITY_HIGH;
    const struct { enum pn_priority asks, may, gets; } rows[] = { { low, low, low },       { low, high, low },     { normal, low, low },   { normal, normal, normal },
                                                                  { normal, high, normal }, { high, low, low },     { high, normal, normal }, { high, high, high } };
    char value[PD_MAX_SESSION_BYTES + 2] = "turn", name[] = "X-SESSION-ID";
    struct pd_head head = { .headers = { { name, value } }, .n_headers = 1 };
    struct pd_call c = { .head = &head };
    struct pn_request_opts o = { 0 };
    struct pd_error x;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_params p = { .priority = rows[i].asks, .cache_prompt = i % 2, .session = "field", .cache_key = "key" };
        c.most_priority = rows[i].may;
        assert_true(pd_whose_fill(&p, &c, &o, &x));
        assert_int_equal(o.priority, rows[i].gets);
        assert_int_equal(o.keep_nothing, i % 2 == 0);
        assert_string_equal(o.session, "turn");
        assert_null(o.tenant);
    }
    struct pd_params p = { .session = "field", .cache_key = "key" };
    strcpy(c.note.key, "alice");
    value[0] = '\0';
    assert_true(pd_whose_fill(&p, &c, &o, &x));
    assert_string_equal(o.session, "field");
    assert_string_equal(o.tenant, "alice");
    p.session = NULL;
    head.n_headers = 0;
    assert_true(pd_whose_fill(&p, &c, &o, &x));
    assert_string_equal(o.session, "key");
    p.cache_key = NULL;
    assert_true(pd_whose_fill(&p, &c, &o, &x));
    assert_null(o.session);
    head.n_headers = 1;
    memset(value, 'x', PD_MAX_SESSION_BYTES);
    assert_true(pd_whose_fill(&p, &c, &o, &x));
    value[PD_MAX_SESSION_BYTES] = 'x';
    assert_false(pd_whose_fill(&p, &c, &o, &x));
    assert_string_equal(x.param, "X-Session-Id");
    strcpy(value, "\xFF");
    assert_false(pd_whose_fill(&p, &c, &o, &x));
    assert_int_equal(pd_error_row(x.id)->status, 400);
}

static void takes_every_form_of_prompt(void **state) {
    (void)state;
    static const struct {
        const char *prompt;
        size_t n, n_ids;
    } rows[] = { { "\"a\"", 1, 0 }, { "[1,2,3]", 1, 3 }, { "[\"a\"]", 1, 0 }, { "[[1,2]]", 1, 2 }, { "[\"a\",\"b\"]", 2, 0 }, { "[[1],[2]]", 2, 1 }, { "\"\"", 1, 0 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":%s}", rows[i].prompt);
        struct pd_params p = take(PD_API_TEXT, body);
        assert_int_equal(p.n_prompts, rows[i].n);
        assert_int_equal(p.prompts[0].n_ids, rows[i].n_ids);
        assert_int_equal(p.prompts[0].ids != NULL, rows[i].n_ids > 0);
        pd_params_done(&p);
    }
}

static void gives_templates_the_roles_and_parts_they_know(void **state) {
    (void)state;
    struct pd_params p = take(PD_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]},"
                                           "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
                                           "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"x\\u0000y\"}]}");
    assert_non_null(strstr(p.messages_json, "{\"role\":\"system\",\"content\":\"be brief\"}"));
    assert_non_null(strstr(p.messages_json, "\"type\":\"text\""));
    assert_non_null(strstr(p.messages_json, "\"text\":\"no\""));
    assert_non_null(strstr(p.messages_json, "x\\u0000y"));
    pd_params_done(&p);
}

static void fills_in_what_the_manifest_says_and_no_more(void **state) {
    (void)state;
    struct cf_sampling d = { .has_temperature = true, .temperature = 0.7, .has_top_k = true, .top_k = 20, .has_repeat_penalty = true, .repeat_penalty = 1.25 };
    struct pd_params p = take(PD_API_CHAT, "{" MESSAGES ",\"temperature\":0,\"repetition_penalty\":1}");
    pd_params_defaults(&p, &d);
    assert_true(p.sampling.temperature == 0 && p.sampling.repeat_penalty == 1 && p.sampling.top_p == 1);
    assert_int_equal(p.sampling.top_k, 20);
    pd_params_done(&p);
}

static void checks_ids_against_the_vocabulary(void **state) {
    (void)state;
    struct pd_error x;
    struct pd_params p = take(PD_API_TEXT, "{\"model\":\"m\",\"prompt\":[[1,2],[3,100]]}");
    assert_true(pd_params_check_ids(&p, 101, &x));
    assert_false(pd_params_check_ids(&p, 100, &x));
    assert_string_equal(x.param, "prompt.1.1");
    pd_params_done(&p);
    p = take(PD_API_TEXT, "{\"model\":\"m\",\"prompt\":[7],\"logit_bias\":{\"50\":1}}");
    assert_false(pd_params_check_ids(&p, 50, &x));
    assert_string_equal(x.param, "logit_bias.50");
    assert_false(pd_params_check_ids(&p, 7, &x));
    pd_params_done(&p);
}

static void takes_what_callers_of_two_servers_send_to_tokenize(void **state) {
    (void)state;
    static const struct {
        const char *body;
        bool add, parse, pieces;
    } rows[] = {
        { "{\"content\":\"a\"}", false, true, false },
        { "{\"prompt\":\"a\"}", true, false, false },
        { "{\"prompt\":\"a\",\"parse_special\":true}", true, true, false },
        { "{\"content\":\"a\",\"add_special\":true,\"parse_special\":false,\"with_pieces\":true}", true, false, true },
        { "{\"model\":\"m\",\"prompt\":\"a\",\"add_special_tokens\":false,\"return_token_strs\":false}", false, false, false },
        { "{\"prompt\":\"a\",\"content\":null,\"add_special\":null,\"add_special_tokens\":true,\"parse_special\":null}", true, false, false },
        { "{\"add_special\":true,\"add_special_tokens\":true,\"content\":\"a\"}", true, true, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_params p = take(PD_API_TOKENIZE, rows[i].body);
        assert_int_equal(p.n_prompts, 1);
        assert_int_equal(p.prompts[0].len, 1);
        assert_string_equal(p.prompts[0].text, "a");
        assert_int_equal(p.add_special, rows[i].add);
        assert_int_equal(p.parse_special, rows[i].parse);
        assert_int_equal(p.with_pieces, rows[i].pieces);
        pd_params_done(&p);
    }
    struct pd_params p = take(PD_API_TOKENIZE, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"add_generation_prompt\":false,\"chat_template_kwargs\":{\"k\":1}}");
    assert_true(p.messages_json && p.extra_json && !p.add_generation_prompt && p.n_prompts == 0);
    pd_params_done(&p);
    p = take(PD_API_TOKENIZE, "{\"content\":\"\\u0000\"}");
    assert_int_equal(p.prompts[0].len, 1);
    pd_params_done(&p);
    p = take(PD_API_DETOKENIZE, "{\"tokens\":[0,2147483647]}");
    assert_true(p.prompts[0].n_ids == 2 && p.prompts[0].ids[1] == INT32_MAX);
    pd_params_done(&p);
    p = take(PD_API_DETOKENIZE, "{\"tokens\":[]}");
    assert_int_equal(p.prompts[0].n_ids, 0);
    pd_params_done(&p);
    /* a chat's body as it is */
    p = take(PD_API_CHAT | PD_API_TEMPLATE, "{" MESSAGES ",\"temperature\":1,\"stream\":true,\"max_tokens\":5,\"with_tokens\":true}");
    assert_true(p.messages_json && p.with_tokens && p.add_generation_prompt);
    pd_params_done(&p);
}

static void refuses_what_cannot_be_tokenized_by_its_place(void **state) {
    (void)state;
    static const struct {
        unsigned api;
        const char *param, *body;
    } rows[] = {
        { PD_API_TOKENIZE, "", "" },
        { PD_API_TOKENIZE, "", "[]" },
        { PD_API_TOKENIZE, "content", "{}" },
        { PD_API_TOKENIZE, "content", "{\"content\":null}" },
        { PD_API_TOKENIZE, "content", "{\"content\":1}" },
        { PD_API_TOKENIZE, "content", "{\"content\":[\"a\"]}" },
        { PD_API_TOKENIZE, "prompt", "{\"prompt\":{}}" },
        { PD_API_TOKENIZE, "prompt", "{\"content\":\"a\",\"prompt\":\"a\"}" },
        { PD_API_TOKENIZE, "messages", "{\"content\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}" },
        { PD_API_TOKENIZE, "messages", "{\"messages\":[]}" },
        { PD_API_TOKENIZE, "messages.0.role", "{\"messages\":[{}]}" },
        { PD_API_TOKENIZE, "", "{\"content\":\"\\ud800\"}" },
        { PD_API_TOKENIZE, "", "{\"content\":\"\xff\"}" },
        { PD_API_TOKENIZE, "add_special", "{\"content\":\"a\",\"add_special\":1}" },
        { PD_API_TOKENIZE, "add_special_tokens", "{\"content\":\"a\",\"add_special\":true,\"add_special_tokens\":false}" },
        { PD_API_TOKENIZE, "parse_special", "{\"content\":\"a\",\"parse_special\":\"yes\"}" },
        { PD_API_TOKENIZE, "with_pieces", "{\"content\":\"a\",\"with_pieces\":[]}" },
        { PD_API_TOKENIZE, "return_token_strs", "{\"content\":\"a\",\"return_token_strs\":true}" },
        { PD_API_TOKENIZE, "model", "{\"content\":\"a\",\"model\":\"\"}" },
        { PD_API_TOKENIZE, "model", "{\"content\":\"a\",\"model\":5}" },
        { PD_API_TOKENIZE, "tokens", "{\"content\":\"a\",\"tokens\":[1]}" },
        { PD_API_TOKENIZE, "temperature", "{\"content\":\"a\",\"temperature\":1}" },
        { PD_API_DETOKENIZE, "tokens", "{}" },
        { PD_API_DETOKENIZE, "tokens", "{\"tokens\":null}" },
        { PD_API_DETOKENIZE, "tokens", "{\"tokens\":5}" },
        { PD_API_DETOKENIZE, "tokens", "{\"tokens\":\"5\"}" },
        { PD_API_DETOKENIZE, "tokens.0", "{\"tokens\":[\"5\"]}" },
        { PD_API_DETOKENIZE, "tokens.1", "{\"tokens\":[5,-1]}" },
        { PD_API_DETOKENIZE, "tokens.0", "{\"tokens\":[1.5]}" },
        { PD_API_DETOKENIZE, "tokens.0", "{\"tokens\":[true]}" },
        { PD_API_DETOKENIZE, "tokens.0", "{\"tokens\":[[1]]}" },
        { PD_API_DETOKENIZE, "tokens.0", "{\"tokens\":[2147483648]}" },
        { PD_API_DETOKENIZE, "content", "{\"tokens\":[1],\"content\":\"a\"}" },
        { PD_API_CHAT | PD_API_TEMPLATE, "messages", "{}" },
        { PD_API_CHAT | PD_API_TEMPLATE, "messages", "{\"messages\":\"a\"}" },
        { PD_API_CHAT | PD_API_TEMPLATE, "temperature", "{" MESSAGES ",\"temperature\":9}" },
        { PD_API_CHAT | PD_API_TEMPLATE, "with_tokens", "{" MESSAGES ",\"with_tokens\":1}" },
        { PD_API_CHAT | PD_API_TEMPLATE, "add_generation_prompt", "{" MESSAGES ",\"add_generation_prompt\":\"a\"}" },
        { PD_API_CHAT | PD_API_TEMPLATE, "prompt", "{" MESSAGES ",\"prompt\":\"a\"}" },
        { PD_API_CHAT, "with_tokens", "{" MESSAGES ",\"with_tokens\":true}" },
        { PD_API_TEXT, "content", "{\"model\":\"m\",\"prompt\":\"a\",\"content\":\"a\"}" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_params p;
        struct pd_error x;
        if (pd_params_parse(rows[i].api, rows[i].body, strlen(rows[i].body), &p, &x)) fail_msg("taken: %s", rows[i].body);
        assert_int_equal(pd_error_row(x.id)->status, 400);
        if (strcmp(x.param, rows[i].param) != 0) fail_msg("%s: param '%s': %s", rows[i].body, x.param, x.message);
    }
}

static void takes_inputs_for_embeddings_in_each_of_their_forms(void **state) {
    (void)state;
    static const struct {
        const char *body;
        size_t n, n_ids; /* inputs; ids of the last one, 0 = it is a text */
        bool base64;
        int64_t dimensions;
    } rows[] = {
        { "{\"model\":\"m\",\"input\":\"a\"}", 1, 0, false, -1 },
        { "{\"model\":\"m\",\"input\":\"a\",\"encoding_format\":\"float\",\"dimensions\":null,\"user\":\"u\"}", 1, 0, false, -1 },
        { "{\"model\":\"m\",\"input\":[\"a\",\"b\"],\"encoding_format\":\"base64\"}", 2, 0, true, -1 },
        { "{\"model\":\"m\",\"input\":[1,2,3],\"encoding_format\":null,\"dimensions\":64}", 1, 3, false, 64 },
        { "{\"model\":\"m\",\"input\":[[1],[2,3]]}", 2, 2, false, -1 },
        { "{\"model\":\"m\",\"input\":[\"a\",[2,3]]}", 2, 2, false, -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_params p = take(PD_API_EMBED, rows[i].body);
        assert_int_equal(p.n_prompts, rows[i].n);
        assert_int_equal(p.prompts[p.n_prompts - 1].n_ids, rows[i].n_ids);
        assert_int_equal(p.prompts[p.n_prompts - 1].len, rows[i].n_ids ? 0 : 1);
        assert_int_equal(p.base64, rows[i].base64);
        assert_int_equal(p.dimensions, rows[i].dimensions);
        pd_params_done(&p);
    }
}

static void refuses_what_cannot_be_embedded_by_its_place(void **state) {
    (void)state;
    static const struct {
        const char *param, *fields;
    } rows[] = {
        { "input", "" },
        { "input", ",\"input\":null" },
        { "input", ",\"input\":\"\"" },
        { "input", ",\"input\":[]" },
        { "input", ",\"input\":5" },
        { "input", ",\"input\":{}" },
        { "input.0", ",\"input\":[\"\"]" },
        { "input.2", ",\"input\":[\"a\",\"b\",\"\"]" },
        { "input.1", ",\"input\":[\"a\",null]" },
        { "input.1", ",\"input\":[[1],[]]" },
        { "input.1.0", ",\"input\":[[1],[-1]]" },
        { "input.1", ",\"input\":[1,1.5]" },
        { "input.1", ",\"input\":[1,\"a\"]" },
        { "input.0", ",\"input\":[{\"text\":\"a\"}]" },
        { "encoding_format", ",\"input\":\"a\",\"encoding_format\":\"hex\"" },
        { "encoding_format", ",\"input\":\"a\",\"encoding_format\":1" },
        { "dimensions", ",\"input\":\"a\",\"dimensions\":0" },
        { "dimensions", ",\"input\":\"a\",\"dimensions\":\"64\"" },
        { "prompt", ",\"input\":\"a\",\"prompt\":\"a\"" },
        { "stream", ",\"input\":\"a\",\"stream\":true" },
        { "task", ",\"input\":\"a\",\"task\":\"query\"" },
    };
    struct pd_params p;
    struct pd_error x;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"model\":\"m\"%s}", rows[i].fields);
        if (pd_params_parse(PD_API_EMBED, body, strlen(body), &p, &x)) fail_msg("taken: %s", body);
        assert_int_equal(pd_error_row(x.id)->status, 400);
        if (strcmp(x.param, rows[i].param) != 0) fail_msg("%s: param '%s': %s", body, x.param, x.message);
    }
    assert_false(pd_params_parse(PD_API_EMBED, "{\"input\":\"a\"}", 13, &p, &x));
    assert_string_equal(x.param, "model");

    static char many[5 * (PD_MAX_INPUTS + 2)];
    for (int n = PD_MAX_INPUTS; n <= PD_MAX_INPUTS + 1; n++) {
        size_t len = (size_t)snprintf(many, sizeof many, "{\"model\":\"m\",\"input\":[");
        for (int i = 0; i < n; i++) len += (size_t)snprintf(many + len, sizeof many - len, "%s\"a\"", i ? "," : "");
        len += (size_t)snprintf(many + len, sizeof many - len, "]}");
        bool ok = pd_params_parse(PD_API_EMBED, many, len, &p, &x);
        assert_true(ok == (n == PD_MAX_INPUTS));
        if (ok) pd_params_done(&p);
        else assert_string_equal(x.param, "input");
    }
}

static void names_ids_that_an_embedding_model_does_not_have(void **state) {
    (void)state;
    struct pd_error x;
    struct pd_params p = take(PD_API_EMBED, "{\"model\":\"m\",\"input\":[[1,2],[3,100]]}");
    assert_true(pd_params_check_ids(&p, 101, &x));
    assert_false(pd_params_check_ids(&p, 100, &x));
    assert_string_equal(x.param, "input.1.1");
    pd_params_done(&p);
    p = take(PD_API_EMBED, "{\"model\":\"m\",\"input\":[7,100]}");
    assert_false(pd_params_check_ids(&p, 100, &x));
    assert_string_equal(x.param, "input.1");
    pd_params_done(&p);
}

static void refuses_more_ids_than_it_takes(void **state) {
    (void)state;
    struct pd_params p;
    struct pd_error x;
    static char body[2 * (PD_MAX_IDS + 1) + 32];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"tokens\":[");
    for (int i = 0; i <= PD_MAX_IDS; i++) {
        body[n++] = '7';
        body[n++] = ',';
    }
    memcpy(body + n - 1, "]}", 2);
    assert_false(pd_params_parse(PD_API_DETOKENIZE, body, n + 1, &p, &x));
    assert_string_equal(x.param, "tokens");
    memcpy(body + n - 3, "]} ", 3); /* one less */
    assert_true(pd_params_parse(PD_API_DETOKENIZE, body, n, &p, &x));
    assert_int_equal(p.prompts[0].n_ids, PD_MAX_IDS);
    pd_params_done(&p);
}

static void takes_a_seed_of_its_own_each_time(void **state) {
    (void)state;
    struct pd_params a = take(PD_API_CHAT, "{" MESSAGES "}"), b = take(PD_API_CHAT, "{" MESSAGES "}");
    assert_true(a.sampling.seed != b.sampling.seed);
    pd_params_done(&a);
    pd_params_done(&b);
}

/* JSON numbers have no end; what is held has. The field is named, not "not JSON". */
static void a_number_beyond_64_bits_names_its_field(void **state) {
    (void)state;
    static const struct {
        const char *field, *param;
    } rows[] = {
        { "\"seed\":9223372036854775808", "seed" },
        { "\"seed\":18446744073709551615", "seed" },
        { "\"seed\":-9223372036854775809", "seed" },
        { "\"max_tokens\":99999999999999999999", "max_tokens" },
        { "\"temperature\":1e999", "temperature" },
        { "\"user\":\"a\\\"\",\"top_p\" : -1e999,\"seed\":5", "top_p" },
        { "\"temperature\":1e300,\"seed\":99999999999999999999", "seed" }, /* the first that cannot be held, not the first that is large */
        { "\"logit_bias\":{\"3\":99999999999999999999}", "logit_bias" },
        { "\"stop\":[\"x\"],\"metadata\":{\"a\":[\"b\",1e999]}", "metadata" },
        { "\"s\\u0065ed\":1e999", "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[256];
        struct pd_params p;
        struct pd_error x;
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", rows[i].field);
        assert_false(pd_params_parse(PD_API_CHAT, body, strlen(body), &p, &x));
        assert_int_equal(x.id, PD_ERR_VALUE);
        assert_string_equal(x.param, rows[i].param);
        assert_non_null(strstr(x.message, "out of range"));
    }
    struct pd_params p = take(PD_API_CHAT, "{" MESSAGES ",\"seed\":9223372036854775807}");
    assert_true(p.sampling.seed == INT64_MAX);
    pd_params_done(&p);
}

/* Behind a NUL, which a text may have, a comparison of C strings does not look. */
/* Three bytes of a body become an object of a hundred: they are counted before any is made, and what is counted is given back. */
static void bounds_labels_as_the_api_does(void **state) {
    (void)state;
    static const struct {
        size_t n_name, n_label; /* of a character of two bytes */
        bool taken;
    } rows[] = { { 64, 512, true }, { 65, 1, false }, { 1, 513, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[2048] = "{\"model\":\"m\",\"input\":\"a\",\"metadata\":{\"";
        for (size_t k = 0; k < rows[i].n_name; k++) strcat(body, "\xc3\xbc");
        strcat(body, "\":\"");
        for (size_t k = 0; k < rows[i].n_label; k++) strcat(body, "\xc3\xbc");
        strcat(body, "\"}}");
        struct pd_params p;
        struct pd_error x;
        bool taken = pd_params_parse(PD_API_RESPONSES, body, strlen(body), &p, &x);
        assert_int_equal(taken, rows[i].taken);
        if (taken) pd_params_done(&p);
        else assert_int_equal(x.id, PD_ERR_VALUE);
        if (!taken) assert_int_equal(strncmp(x.param, "metadata.\xc3\xbc", 11), 0);
    }
}

static void refuses_more_values_than_memory_should_hold(void **state) {
    (void)state;
    size_t n = 4 << 20;
    char *body = malloc(n);
    struct pd_params p;
    struct pd_error x;
    memcpy(body, "{\"user\":[", 9);
    for (size_t i = 9; i < n; i++) body[i] = "[],"[i % 3];
    assert_false(pd_params_parse(PD_API_CHAT, body, n, &p, &x));
    assert_int_equal(x.id, PD_ERR_VALUE);
    assert_non_null(strstr(x.message, "too many values"));
    /* as many as may be, and no JSON: were they kept, the fifth would be told of memory */
    memcpy(body, "{!", 2);
    for (int i = 0; i < 9; i++) {
        assert_false(pd_params_parse(PD_API_CHAT, body, 9 + 3 * (((4 << 20) - 16) / 5), &p, &x));
        assert_int_equal(x.id, PD_ERR_INVALID);
        assert_non_null(strstr(x.message, "not JSON"));
    }
    /* a list of ids as long as any model's context */
    size_t at = (size_t)snprintf(body, n, "{\"model\":\"m\",\"prompt\":[1");
    for (int i = 1; i < 1 << 20; i++, at += 2) memcpy(body + at, ",1", 2);
    memcpy(body + at, "]}", 2);
    assert_true(pd_params_parse(PD_API_TEXT, body, at + 2, &p, &x));
    assert_int_equal(p.prompts[0].n_ids, 1 << 20);
    pd_params_done(&p);
    free(body);
}

static void takes_no_word_with_more_behind_it(void **state) {
    (void)state;
#define NUL "\\u0000"
    static const struct {
        unsigned api;
        const char *body, *param;
    } rows[] = {
        { PD_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user" NUL "\",\"content\":\"a\"}]}", "messages.0.role" },
        { PD_API_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text" NUL "x\",\"text\":\"a\"}]}]}", "messages.0.content.0.type" },
        { PD_API_CHAT, "{\"model\":\"m" NUL "\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "model" },
        { PD_API_CHAT, "{" MESSAGES ",\"logit_bias\":{\"05\":1}}", "logit_bias.05" }, /* in front either: 5 has one name */
        { PD_API_CHAT, "{" MESSAGES ",\"modalities\":[\"text" NUL "\"]}", "modalities.0" },
        { PD_API_CHAT, "{" MESSAGES ",\"response_format\":{\"type\":\"text" NUL "\"}}", "response_format.type" },
        { PD_API_CHAT, "{" MESSAGES ",\"tool_choice\":\"none" NUL "\"}", "tool_choice" },
        { PD_API_CHAT, "{" MESSAGES ",\"function_call\":\"" NUL "auto\"}", "function_call" },
        { PD_API_CHAT, "{" MESSAGES ",\"user\":\"" NUL "\",\"stop\":\"a" NUL "\"}", "stop" },
        { PD_API_CHAT, "{" MESSAGES ",\"reasoning_effort\":\"low" NUL "\"}", "reasoning_effort" },
        { PD_API_EMBED, "{\"model\":\"m\",\"input\":\"a\",\"encoding_format\":\"float" NUL "\"}", "encoding_format" },
        { PD_API_RESPONSES, "{\"model\":\"m\",\"input\":\"a\",\"include\":[\"message.output_text.logprobs" NUL "\"]}", "include.0" },
        { PD_API_RESPONSES, "{\"model\":\"m\",\"input\":[{\"type\":\"message" NUL "\",\"role\":\"user\",\"content\":\"a\"}]}", "input.0.type" },
        { PD_API_RESPONSES, "{\"model\":\"m\",\"input\":[{\"role\":\"user" NUL "\",\"content\":\"a\"}]}", "input.0.role" },
        { PD_API_RESPONSES, "{\"model\":\"m\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text" NUL "\",\"text\":\"a\"}]}]}", "input.0.content.0.type" },
    };
#undef NUL
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_params p;
        struct pd_error x;
        if (pd_params_parse(rows[i].api, rows[i].body, strlen(rows[i].body), &p, &x)) fail_msg("taken: %s", rows[i].body);
        if (strcmp(x.param, rows[i].param) != 0) fail_msg("%s: %s", x.param, rows[i].body);
    }
}

static void refuses_deep_nesting_before_parsing(void **state) {
    (void)state;
    size_t n = 200000;
    char *body = malloc(n);
    memset(body, '[', n);
    struct pd_params p;
    struct pd_error x;
    assert_false(pd_params_parse(PD_API_CHAT, body, n, &p, &x));
    assert_non_null(strstr(x.message, "64"));
    /* brackets inside a text do not nest */
    int at = snprintf(body, n, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\\\"");
    memset(body + at, '[', 1000);
    snprintf(body + at + 1000, 16, "\"}]}");
    p = take(PD_API_CHAT, body);
    pd_params_done(&p);
    free(body);
}

static void survives_mutants(void **state) {
    (void)state;
    static const char text[] = "{" MESSAGES ",\"temperature\":0.5,\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"3\":-100},\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":2,\"seed\":7}";
    struct fo_rng rng;
    fo_rng_seed(&rng, 4);
    for (int i = 0; i < 20000; i++) {
        char m[sizeof text];
        memcpy(m, text, sizeof text);
        for (uint64_t k = 1 + fo_rng_u64(&rng) % 3; k > 0; k--) {
            static const char spice[] = "{}[]\",:0-e.\\ntf";
            uint64_t r = fo_rng_u64(&rng);
            m[r % (sizeof text - 1)] = r & (1u << 20) ? spice[(r >> 24) % (sizeof spice - 1)] : (char)(r >> 32);
        }
        struct pd_params p;
        struct pd_error x;
        if (pd_params_parse(PD_API_CHAT, m, sizeof text - 1, &p, &x)) pd_params_done(&p);
        else assert_int_equal(pd_error_row(x.id)->status, 400);
    }
}

/* Without memory a request is refused as that (or taken, where the library's own allocations are not ours to fail), and nothing leaks. */
static void gives_up_cleanly_without_memory(void **state) {
    (void)state;
    static const char body[] = "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"logit_bias\":{\"1\":2}}";
    long n = 1;
    for (;; n++) {
        struct pd_params p;
        struct pd_error x;
        test_fail_alloc(n);
        bool ok = pd_params_parse(PD_API_TEXT, body, sizeof body - 1, &p, &x), failed = test_alloc_failed();
        if (ok) pd_params_done(&p);
        if (!failed) {
            assert_true(ok);
            break;
        }
        assert_false(ok);
        assert_int_equal(x.id, PD_ERR_MEMORY);
        assert_int_equal(x.retry_after_s, 1);
    }
    assert_true(n >= 4);
}

static void every_field_has_its_page(void **state) {
    (void)state;
    struct pd_param_doc d, other;
    size_t n = 0;
    for (; pd_param_doc(n, &d); n++) {
        assert_true(d.name[0] && d.doc[0]);
        for (size_t k = 0; k < n; k++) {
            assert_true(pd_param_doc(k, &other));
            if (strcmp(d.name, other.name) == 0 && (d.api & other.api)) fail_msg("two rows for %s", d.name);
        }
    }
    assert_true(n > 40);
}

static void whatever_a_wait_can_help_says_how_long(void **state) {
    (void)state;
    for (int i = 0; i < PD_N_ERRORS; i++) {
        struct pd_error x;
        const struct pd_error_row *row = pd_error_row((enum pd_error_id)i);
        pd_error_set(&x, (enum pd_error_id)i, NULL, "why");
        assert_int_equal(x.retry_after_s, row->retry_after_s);
        if (row->status == 503) assert_in_range(x.retry_after_s, 1, 120); /* what clients wait for: a longer one means never */
        if (row->status < 429) assert_int_equal(x.retry_after_s, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_a_wait_can_help_says_how_long),
        cmocka_unit_test(refuses_each_malformed_request_by_its_place),
        cmocka_unit_test(never_words_a_refusal_as_an_overflow),
        cmocka_unit_test(takes_the_sampling_fields),
        cmocka_unit_test(takes_log_probabilities_in_both_forms),
        cmocka_unit_test(takes_null_as_unset),
        cmocka_unit_test(takes_the_harmless_fields),
        cmocka_unit_test(takes_whose_turn_it_is),
        cmocka_unit_test(asks_for_no_more_than_its_key_may),
        cmocka_unit_test(takes_every_form_of_prompt),
        cmocka_unit_test(gives_templates_the_roles_and_parts_they_know),
        cmocka_unit_test(fills_in_what_the_manifest_says_and_no_more),
        cmocka_unit_test(checks_ids_against_the_vocabulary),
        cmocka_unit_test(takes_what_callers_of_two_servers_send_to_tokenize),
        cmocka_unit_test(refuses_what_cannot_be_tokenized_by_its_place),
        cmocka_unit_test(takes_inputs_for_embeddings_in_each_of_their_forms),
        cmocka_unit_test(refuses_what_cannot_be_embedded_by_its_place),
        cmocka_unit_test(names_ids_that_an_embedding_model_does_not_have),
        cmocka_unit_test(refuses_more_ids_than_it_takes),
        cmocka_unit_test(takes_a_seed_of_its_own_each_time),
        cmocka_unit_test(a_number_beyond_64_bits_names_its_field),
        cmocka_unit_test(bounds_labels_as_the_api_does),
        cmocka_unit_test(refuses_more_values_than_memory_should_hold),
        cmocka_unit_test(takes_no_word_with_more_behind_it),
        cmocka_unit_test(refuses_deep_nesting_before_parsing),
        cmocka_unit_test(survives_mutants),
        cmocka_unit_test(gives_up_cleanly_without_memory),
        cmocka_unit_test(every_field_has_its_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
