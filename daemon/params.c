/* The table of fields and the parser over it: see params.h. A row says which API has the field, what values it takes and what the
 * server does with it; docs/http-api.md is made from the same rows. Fields whose shape is their own have a function. */
#include "daemon/params.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/body.h"
#include "daemon/grammar.h"
#include "daemon/items.h"
#include "daemon/messages.h"
#include "daemon/oai.h"
#include "daemon/reasoning.h"
#include "daemon/tools.h"
#include "daemon/whose.h"
#include "foundry/base/rng.h"
#include "foundry/base/utf8.h"

enum kind {
    FLOAT,   /* a number in [min, max] into a float */
    INT32,   /* a whole number in [min, max] into an int32_t */
    INT64,   /* the same into an int64_t */
    BOOL,
    FN,      /* its own function */
    NAMED,   /* one that several fields share, and is told which */
    IGNORED, /* any value: nothing in the output depends on it */
    REFUSED  /* null, false, 0, "", [], {} or the `off` word: not used, fine; anything else is refused by name */
};

struct row {
    const char *name;
    unsigned api;
    enum kind kind;
    double min, max;
    bool open_min, open_max; /* the bound itself is out of range */
    size_t at;               /* offset into struct pd_params */
    bool (*fn)(struct pd_params *p, json_t *v, struct pd_error *x);
    bool (*named)(struct pd_params *p, const char *field, json_t *v, struct pd_error *x);
    const char *off;
    const char *doc;
};

#define AT(field) .at = offsetof(struct pd_params, field)
#define SAMPLING(field) .at = offsetof(struct pd_params, sampling) + offsetof(struct pn_sampling, field)

static bool get_model(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_messages(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_prompt(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_input(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_encoding(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_content(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_plain_prompt(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_tokens(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_stream_options(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_stop(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_seed(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_bias(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_modalities(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_template_kwargs(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_items(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_instructions(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_include(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_text_format(struct pd_params *p, json_t *v, struct pd_error *x);
static bool get_metadata(struct pd_params *p, json_t *v, struct pd_error *x);

#define TWO53 9007199254740992.0

/* The order is that of the reference page. */
static const struct row rows[] = {
    { "model", PD_API_ANSWERS | PD_API_EMBED, FN, .fn = get_model, .doc = "Required. A name or alias of /v1/models." },
    { "model", PD_API_NO_ANSWER, FN, .fn = get_model, .doc = "A name or alias of /v1/models. May be left out while one model alone serves." },
    { "content", PD_API_TOKENIZE, FN, .fn = get_content, .doc = "The text. One of content, prompt and messages is required." },
    { "prompt", PD_API_TOKENIZE, FN, .fn = get_plain_prompt, .doc = "The text, read as /v1/completions reads its prompt: by default add_special is then true and parse_special false." },
    { "messages", PD_API_TOKENIZE, FN, .fn = get_messages, .doc = "A conversation as /v1/chat/completions takes it; the tokens are those of its prompt." },
    { "add_special", PD_API_TOKENIZE, BOOL, AT(add_special), .doc = "Adds the tokens that begin and end a text where the model's metadata asks for them. Default: true with prompt, else false. With messages the template decides." },
    { "add_special_tokens", PD_API_TOKENIZE, BOOL, AT(add_special_too), .doc = "Another name of add_special." },
    { "parse_special", PD_API_TOKENIZE, BOOL, AT(parse_special), .doc = "Control tokens match where their words stand in the text; false: they are text like any other. Default: false with prompt, else true. In messages they never match." },
    { "with_pieces", PD_API_TOKENIZE, BOOL, AT(with_pieces), .doc = "Each token as `{\"id\", \"piece\"}`; a piece that is not UTF-8 is a list of its bytes." },
    { "return_token_strs", PD_API_TOKENIZE, REFUSED, .doc = "Ask with_pieces." },
    { "tokens", PD_API_DETOKENIZE, FN, .fn = get_tokens, .doc = "Required. A list of token ids." },
    { "messages", PD_API_CHAT, FN, .fn = get_messages,
      .doc = "Required, not empty. Roles system, developer (read as system), user, assistant, tool; content as text or as parts of type text." },
    { "prompt", PD_API_TEXT, FN, .fn = get_prompt, .doc = "Required. A text, a list of token ids, or a list of either (one choice for each)." },
    { "input", PD_API_EMBED, FN, .fn = get_input,
      .doc = "Required. A text, a list of token ids, or a list of up to 2048 of either (one vector for each); none is empty. Texts get the tokens that begin and end a text where the model's metadata asks for them, ids are taken as they are." },
    { "encoding_format", PD_API_EMBED, FN, .fn = get_encoding, .doc = "`float` (default): a list of numbers; `base64`: the same numbers as 32-bit floats, little endian." },
    { "dimensions", PD_API_EMBED, INT64, 1, TWO53, AT(dimensions), .doc = "Only the length that the model's vectors have: no model file says that its vectors may be cut." },
    { "input", PD_API_RESPONSES, FN, .fn = get_items,
      .doc = "Required. A text, or a list of items: messages (roles user, assistant, system, developer; content as text or as parts of type input_text, output_text, refusal), function_call and "
             "function_call_output, reasoning (its content; never its summary). What an assistant thought, said and called becomes one turn." },
    { "instructions", PD_API_RESPONSES, FN, .fn = get_instructions, .doc = "A system message in front of the input." },
    { "max_output_tokens", PD_API_RESPONSES, INT64, 1, TWO53, AT(max_tokens), .doc = "Most tokens of the answer; unset: what fits the model's cap. An answer that it cuts has status incomplete." },
    { "max_tokens", PD_API_CHAT | PD_API_TEXT, INT64, 0, TWO53, AT(max_tokens), .doc = "Most tokens of the answer; unset: what fits the model's cap. 0 only on completions with echo." },
    { "max_completion_tokens", PD_API_CHAT, INT64, 1, TWO53, AT(max_completion_tokens), .doc = "The newer name of max_tokens; both given and different is an error." },
    { "stream", PD_API_ANSWERS, BOOL, AT(stream), .doc = "Server-sent events instead of one answer." },
    { "stream_options", PD_API_ANSWERS, FN, .fn = get_stream_options, .doc = "`include_usage`: one more chunk with the usage before [DONE] (/v1/responses always has it). Only with stream." },
    { "temperature", PD_API_ANSWERS, FLOAT, 0, 2, SAMPLING(temperature), .doc = "0 takes the likeliest token. Default: the manifest's, else 1." },
    { "top_p", PD_API_ANSWERS, FLOAT, 0, 1, SAMPLING(top_p), .doc = "Smallest set of tokens whose probability reaches it; 1 is off." },
    { "top_k", PD_API_ANSWERS, INT32, -1, INT32_MAX, SAMPLING(top_k), .doc = "The k likeliest tokens; 0 and -1 are off." },
    { "min_p", PD_API_ANSWERS, FLOAT, 0, 1, .open_max = true, SAMPLING(min_p), .doc = "Tokens at least this likely, relative to the likeliest; 0 is off." },
    { "repeat_penalty", PD_API_ANSWERS, FLOAT, 0, 10, .open_min = true, SAMPLING(repeat_penalty), .doc = "Divides the logits of tokens seen lately; 1 is off." },
    { "repetition_penalty", PD_API_ANSWERS, FLOAT, 0, 10, .open_min = true, SAMPLING(repeat_penalty), .doc = "Another name of repeat_penalty." },
    { "repeat_last_n", PD_API_ANSWERS, INT32, -1, INT32_MAX, SAMPLING(repeat_last_n), .doc = "How many tokens repeat_penalty looks back over; 0 is off, -1 all. Default 64." },
    { "presence_penalty", PD_API_ANSWERS, FLOAT, -2, 2, SAMPLING(presence_penalty), .doc = "Taken once from the logit of each token generated so far." },
    { "frequency_penalty", PD_API_ANSWERS, FLOAT, -2, 2, SAMPLING(frequency_penalty), .doc = "Taken from the logit of a token for each time it was generated." },
    { "logit_bias", PD_API_ANSWERS, FN, .fn = get_bias, .doc = "Object of token id to -100 .. 100, added to its logit." },
    { "seed", PD_API_ANSWERS, FN, .fn = get_seed, .doc = "A whole number; the same seed and request give the same text. Unset: a new one for each request." },
    { "stop", PD_API_ANSWERS, FN, .fn = get_stop, .doc = "A text or up to 16 texts of 1 to 256 bytes that end the answer and are not part of it." },
    { "n", PD_API_CHAT | PD_API_TEXT, INT64, 1, PD_MAX_CHOICES, AT(n), .doc = "Choices for each prompt, made one after the other (choice i uses seed + i)." },
    { "logprobs", PD_API_CHAT, BOOL, AT(logprobs), .doc = "The log-probability of each token of the answer, in `logprobs` of its choice." },
    { "top_logprobs", PD_API_CHAT, INT32, 0, PN_MAX_TOP_LOGPROBS, AT(n_top), .doc = "With logprobs: also the log-probabilities of this many of the likeliest tokens in each place." },
    { "include", PD_API_RESPONSES, FN, .fn = get_include,
      .doc = "A list. `message.output_text.logprobs`: the log-probability of each token of the answer. What else the API knows asks for parts that no answer here has, encrypted reasoning among them." },
    { "top_logprobs", PD_API_RESPONSES, INT32, 0, PN_MAX_TOP_LOGPROBS, AT(n_top), .doc = "With the log-probabilities of `include`: also those of this many of the likeliest tokens in each place." },
    { "logprobs", PD_API_TEXT, INT32, 0, PN_MAX_TOP_LOGPROBS, AT(n_top),
      .doc = "The log-probability of each token of the answer, and of this many of the likeliest in its place. Not with echo in this version." },
    { "echo", PD_API_TEXT, BOOL, AT(echo), .doc = "The answer begins with the prompt." },
    { "ignore_eos", PD_API_ANSWERS, BOOL, AT(ignore_end), .doc = "Goes on after the end token, up to max_tokens (for benchmarks)." },
    { "add_generation_prompt", PD_API_TEMPLATE | PD_API_TOKENIZE, BOOL, AT(add_generation_prompt), .doc = "The prompt ends where the answer begins, as a chat's does. Default true." },
    { "with_tokens", PD_API_TEMPLATE, BOOL, AT(with_tokens), .doc = "The answer has `tokens` and `count` too." },
    { "chat_template_kwargs", PD_API_TALK | PD_API_TOKENIZE, FN, .fn = get_template_kwargs, .doc = "Object of further variables for the model's template." },
    { "modalities", PD_API_CHAT, FN, .fn = get_modalities, .doc = "Only [\"text\"]." },
    { "response_format", PD_API_CHAT, NAMED, .named = pd_grammar_format, .doc = "`{\"type\":\"json_object\"}`: the answer is a JSON object, by the tokens that may come and not by asking the model for it. `{\"type\":\"text\"}`: any text. `{\"type\":\"json_schema\",\"json_schema\":{\"name\":...,\"schema\":{...}}}`: JSON that the schema accepts, strict or not; see structured-output.md for what is held of a schema." },
    { "text", PD_API_RESPONSES, FN, .fn = get_text_format, .doc = "`format` is what response_format is on /v1/chat/completions. `verbosity` is ignored: no model of this version has the setting." },
    { "grammar", PD_API_ANSWERS, NAMED, .named = pd_grammar_gbnf, .doc = "Rules in GBNF, of which `root` is the whole answer: no token comes that they do not allow, and where they end, so does it. One that does not parse is an error with its line and column. Of grammar, regex, response_format and their other names one is taken." },
    { "regex", PD_API_ANSWERS, NAMED, .named = pd_grammar_regex, .doc = "A regular expression that the whole answer matches." },
    { "guided_grammar", PD_API_ANSWERS, NAMED, .named = pd_grammar_gbnf, .doc = "vLLM's name of grammar." },
    { "guided_regex", PD_API_ANSWERS, NAMED, .named = pd_grammar_regex, .doc = "vLLM's name of regex." },
    { "guided_choice", PD_API_ANSWERS, NAMED, .named = pd_grammar_choice, .doc = "A list of texts, one of which the answer is." },
    { "guided_json", PD_API_ANSWERS, NAMED, .named = pd_grammar_schema, .doc = "vLLM's name of a response_format with a JSON Schema: the schema, or its text." },
    { "json_schema", PD_API_ANSWERS, NAMED, .named = pd_grammar_schema, .doc = "llama.cpp's name of the same." },
    { "metadata", PD_API_RESPONSES, FN, .fn = get_metadata, .doc = "Object of up to 16 texts, the caller's own labels, of up to 512 characters under names of up to 64; the answer has them." },
    { "tools", PD_API_TALK | PD_API_TOKENIZE, FN, .fn = pd_tools_list, .doc = "A list of up to 128 functions that the model may call: `{\"type\":\"function\",\"function\":{\"name\",\"description\",\"parameters\",\"strict\"}}`, on /v1/responses the same without the inner object. Functions alone: what other servers run themselves (web_search, code_interpreter, mcp ...) is refused by its type. See Tools below." },
    { "tool_choice", PD_API_TALK | PD_API_TOKENIZE, FN, .fn = pd_tools_choice, .doc = "`auto` (default): the model answers or calls. `required`: it calls. `{\"type\":\"function\",\"function\":{\"name\":...}}`, on /v1/responses `{\"type\":\"function\",\"name\":...}`: it calls that function, once. Calls that are demanded are held to the functions' parameters, and a response_format beside them does not count. `none`: the functions are left out of the prompt, and no call is looked for." },
    { "parallel_tool_calls", PD_API_TALK, BOOL, AT(parallel_calls), .doc = "false: at most one call in an answer. Default true." },
    { "reasoning_effort", PD_API_CHAT | PD_API_TOKENIZE, FN, .fn = pd_reasoning_effort, .doc = "none, minimal, low, medium, high or xhigh: the variable `reasoning_effort` for templates that know it. `none` is no thought at all: `enable_thinking` is false, and the budget 0. What chat_template_kwargs says of either stands." },
    { "reasoning", PD_API_RESPONSES, FN, .fn = pd_reasoning_object, .doc = "`effort` is what reasoning_effort is on /v1/chat/completions. `summary` is ignored: the answer has the thought itself, and nothing to sum it up with." },
    { "reasoning_budget", PD_API_TALK, INT64, -1, INT32_MAX, AT(reasoning_budget), .doc = "Most tokens of a thought, which is then ended as the model itself would; -1: as many as it likes. Default: the manifest's, else -1. See Reasoning below." },
    { "best_of", PD_API_TEXT, INT64, 1, 1, AT(best_of), .doc = "Only 1." },
    { "service_tier", PD_API_ANSWERS, FN, .fn = pd_whose_tier, .doc = "`flex`, `default` or `priority`: how urgent it is, at most as its key may be. `auto` and `scale` are default. The answer has the one that it got. See Whose turn it is below." },
    { "session_id", PD_API_ANSWERS, NAMED, .named = pd_whose_session, .doc = "The conversation that it is part of, a text of up to 256 bytes: sessions of a key take turns. The header X-Session-Id goes before it." },
    { "prompt_cache_key", PD_API_ANSWERS, NAMED, .named = pd_whose_session, .doc = "The same where session_id is not given. KV is found by the prompt itself, whatever this says." },
    { "cache_prompt", PD_API_ANSWERS, BOOL, AT(cache_prompt), .doc = "false: the prompt is computed in full, and nothing of it and the answer is kept. Default true." },
    /* refused by name: each would change the output */
    { "functions", PD_API_CHAT, REFUSED, .doc = "The old name of tools; send tools." },
    { "function_call", PD_API_CHAT, REFUSED, .off = "none", .doc = "The old name of tool_choice; send tool_choice." },
    { "previous_response_id", PD_API_RESPONSES, REFUSED, .doc = "Nothing is stored; send the whole conversation in input." },
    { "conversation", PD_API_RESPONSES, REFUSED, .doc = "Nothing is stored; send the whole conversation in input." },
    { "background", PD_API_RESPONSES, REFUSED, .doc = "Nothing is stored that could be asked for later." },
    { "prompt", PD_API_RESPONSES, REFUSED, .doc = "Nothing is stored; templates of prompts are the client's." },
    { "truncation", PD_API_RESPONSES, REFUSED, .off = "disabled", .doc = "Only disabled: nothing of a conversation is dropped silently." },
    { "context_management", PD_API_RESPONSES, REFUSED, .doc = "Nothing of a conversation is dropped or summed up silently." },
    { "moderation", PD_API_RESPONSES, REFUSED, .doc = "This server moderates nothing." },
    { "suffix", PD_API_TEXT, REFUSED, .doc = "Insertion is not in this version." },
    { "audio", PD_API_CHAT, REFUSED, .doc = "Text only." },
    { "web_search_options", PD_API_CHAT, REFUSED, .doc = "This server has no web search." },
    { "structured_outputs", PD_API_ANSWERS, REFUSED, .doc = "Send grammar, regex, guided_choice, guided_json or response_format." },
    { "chat_template", PD_API_CHAT, REFUSED, .doc = "The template is the model's or the manifest's, not the request's." },
    { "continue_final_message", PD_API_CHAT, REFUSED, .doc = "Not in this version." },
    { "mirostat", PD_API_ANSWERS, REFUSED, .doc = "Not a sampler of this server." },
    { "typical_p", PD_API_ANSWERS, REFUSED, .doc = "Not a sampler of this server." },
    { "min_tokens", PD_API_ANSWERS, REFUSED, .doc = "Not in this version." },
    /* ignored: nothing in the text depends on them */
    { "user", PD_API_ANSWERS | PD_API_EMBED, IGNORED, .doc = "The caller's own label." },
    { "metadata", PD_API_CHAT | PD_API_TEXT, IGNORED, .doc = "The caller's own labels." },
    { "store", PD_API_ANSWERS, IGNORED, .doc = "Nothing is stored; a Response says so." },
    { "safety_identifier", PD_API_ANSWERS, IGNORED, .doc = "The caller's own label." },
    { "prompt_cache_retention", PD_API_ANSWERS, IGNORED, .doc = "A hint for caches." },
    { "prediction", PD_API_CHAT, IGNORED, .doc = "A hint that changes speed only." },
    { "verbosity", PD_API_CHAT, IGNORED, .doc = "No model of this version has the setting." },
    { "max_tool_calls", PD_API_RESPONSES, IGNORED, .doc = "Of built-in tools; there are none." },
    { "prompt_cache_options", PD_API_RESPONSES, IGNORED, .doc = "A hint for caches." },
};

enum { N_ROWS = sizeof rows / sizeof *rows };

bool pd_param_doc(size_t i, struct pd_param_doc *ret) {
    static _Thread_local char range[64];
    if (i >= N_ROWS) return false;
    const struct row *r = &rows[i];
    range[0] = '\0';
    if (r->kind == BOOL) snprintf(range, sizeof range, "true or false");
    if (r->kind == FLOAT) snprintf(range, sizeof range, "%s%g .. %g%s", r->open_min ? "above " : "", r->min, r->max, r->open_max ? " (excluded)" : "");
    if (r->kind == INT32 || r->kind == INT64) {
        if (r->max >= INT32_MAX) snprintf(range, sizeof range, "from %g", r->min);
        else snprintf(range, sizeof range, "%g .. %g", r->min, r->max);
    }
    ret->name = r->name;
    ret->range = range;
    ret->doc = r->doc;
    ret->api = r->api;
    ret->type = r->kind == FLOAT ? PD_NUMBER : r->kind == INT32 || r->kind == INT64 ? PD_INTEGER : r->kind == BOOL ? PD_BOOLEAN : r->kind == FN || r->kind == NAMED ? PD_OWN_SHAPE : PD_ANY;
    ret->min = r->min;
    ret->max = r->max;
    ret->open_min = r->open_min;
    ret->open_max = r->open_max;
    ret->off = r->off;
    ret->verdict = r->kind == REFUSED ? PD_REFUSED : r->kind == IGNORED ? PD_IGNORED : PD_HONOURED;
    return true;
}

/* --- fields of their own shape --- */

static bool wrong_type(struct pd_error *x, const char *param, const char *want) {
    return pd_error_set(x, PD_ERR_INVALID, param, "'%s' must be %s.", param, want);
}

static bool get_model(struct pd_params *p, json_t *v, struct pd_error *x) {
    p->model = pd_json_word(v);
    if (!p->model || !*p->model) return wrong_type(x, "model", "a model's name");
    return true;
}

static bool get_messages(struct pd_params *p, json_t *v, struct pd_error *x) {
    if (!pd_messages_check(v, x)) return false;
    p->messages_json = json_dumps(v, JSON_COMPACT);
    return p->messages_json || pd_error_memory(x);
}

/* A list of ids into heap memory. `path` is that of the list. */
static bool get_ids(json_t *v, const char *path, struct pd_prompt *ret, struct pd_error *x) {
    size_t n = json_array_size(v);
    if (n > UINT32_MAX / sizeof *ret->ids) return pd_error_set(x, PD_ERR_VALUE, path, "'%s' has more ids than any model takes.", path);
    int32_t *ids = calloc(n ? n : 1, sizeof *ids);
    if (!ids) return pd_error_memory(x);
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_array_get(v, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
            char at[64];
            snprintf(at, sizeof at, "%s.%zu", path, i);
            free(ids);
            return json_is_integer(id) ? pd_error_set(x, PD_ERR_VALUE, at, "'%s' is not a token id.", at) : wrong_type(x, at, "a token id like its neighbours");
        }
        ids[i] = (int32_t)json_integer_value(id);
    }
    ret->ids = ids;
    ret->n_ids = (uint32_t)n;
    return true;
}

/* Field `name`: a text, ids, or a list of at most `most` of either. */
static bool get_texts(struct pd_params *p, json_t *v, const char *name, size_t most, struct pd_error *x) {
    if (!json_is_string(v) && !json_is_array(v)) return wrong_type(x, name, "a text or a list");
    if (json_is_array(v) && json_array_size(v) == 0) return pd_error_set(x, PD_ERR_VALUE, name, "'%s' is an empty list.", name);
    bool many = json_is_array(v) && !json_is_number(json_array_get(v, 0));
    size_t n = many ? json_array_size(v) : 1;
    if (n > most) return pd_error_set(x, PD_ERR_VALUE, name, "'%s' has %zu entries; at most %zu are taken.", name, n, most);
    p->prompts = calloc(n, sizeof *p->prompts);
    if (!p->prompts) return pd_error_memory(x);
    p->n_prompts = n;
    for (size_t i = 0; i < n; i++) {
        json_t *one = many ? json_array_get(v, i) : v;
        char at[48];
        if (many) snprintf(at, sizeof at, "%s.%zu", name, i);
        else snprintf(at, sizeof at, "%s", name);
        if (json_is_string(one)) {
            p->prompts[i].text = json_string_value(one);
            p->prompts[i].len = json_string_length(one);
        } else if (json_is_array(one)) {
            if (json_array_size(one) == 0) return pd_error_set(x, PD_ERR_VALUE, at, "'%s' is an empty list.", at);
            if (!get_ids(one, at, &p->prompts[i], x)) return false;
        } else {
            return wrong_type(x, at, "a text or a list of token ids");
        }
    }
    return true;
}

static bool get_prompt(struct pd_params *p, json_t *v, struct pd_error *x) {
    return get_texts(p, v, "prompt", PD_MAX_CHOICES, x);
}

static bool get_input(struct pd_params *p, json_t *v, struct pd_error *x) {
    if (!get_texts(p, v, "input", PD_MAX_INPUTS, x)) return false;
    for (size_t i = 0; i < p->n_prompts; i++) {
        if (p->prompts[i].ids || p->prompts[i].len) continue;
        char at[32] = "input";
        if (json_is_array(v)) snprintf(at, sizeof at, "input.%zu", i);
        return pd_error_set(x, PD_ERR_VALUE, at, "'%s' is empty: there is nothing to embed.", at);
    }
    return true;
}

static bool get_encoding(struct pd_params *p, json_t *v, struct pd_error *x) {
    const char *s = pd_json_word(v);
    if (!s) return wrong_type(x, "encoding_format", "a text");
    p->base64 = strcmp(s, "base64") == 0;
    return p->base64 || strcmp(s, "float") == 0 || pd_error_set(x, PD_ERR_VALUE, "encoding_format", "'encoding_format' must be float or base64.");
}

/* The one text or list of ids of /tokenize and /detokenize. */
static struct pd_prompt *one_prompt(struct pd_params *p) {
    if (!p->prompts) p->prompts = calloc(1, sizeof *p->prompts);
    if (p->prompts) p->n_prompts = 1;
    return p->prompts;
}

static bool get_plain(struct pd_params *p, const json_t *v, const char *name, struct pd_error *x) {
    if (!json_is_string(v)) return wrong_type(x, name, "a text");
    if (!one_prompt(p)) return pd_error_memory(x);
    p->prompts->text = json_string_value(v);
    p->prompts->len = json_string_length(v);
    return true;
}

static bool get_content(struct pd_params *p, json_t *v, struct pd_error *x) {
    return get_plain(p, v, "content", x);
}

static bool get_plain_prompt(struct pd_params *p, json_t *v, struct pd_error *x) {
    return get_plain(p, v, "prompt", x);
}

static bool get_tokens(struct pd_params *p, json_t *v, struct pd_error *x) {
    if (!json_is_array(v)) return wrong_type(x, "tokens", "a list of token ids");
    if (json_array_size(v) > PD_MAX_IDS) return pd_error_set(x, PD_ERR_VALUE, "tokens", "'tokens' has %zu ids; at most %d are taken.", json_array_size(v), PD_MAX_IDS);
    if (!one_prompt(p)) return pd_error_memory(x);
    return get_ids(v, "tokens", p->prompts, x);
}

static bool get_stream_options(struct pd_params *p, json_t *v, struct pd_error *x) {
    const char *key;
    json_t *opt;
    if (!json_is_object(v)) return wrong_type(x, "stream_options", "an object");
    json_object_foreach(v, key, opt) {
        bool usage = strcmp(key, "include_usage") == 0;
        char at[96];
        snprintf(at, sizeof at, "stream_options.%.60s", key);
        if (!usage && strcmp(key, "include_obfuscation") != 0)
            return pd_error_set(x, PD_ERR_UNKNOWN_PARAM, at, "'%s' is not known to this server.", at);
        if (json_is_null(opt)) continue;
        if (!json_is_boolean(opt)) return wrong_type(x, at, "true or false");
        if (usage) p->include_usage = json_is_true(opt);
    }
    return true;
}

static bool add_stop(struct pd_params *p, json_t *v, const char *at, struct pd_error *x) {
    if (!json_is_string(v)) return wrong_type(x, at, "a text");
    size_t n = json_string_length(v);
    if (n == 0 || n > PN_MAX_STOP_BYTES || !pd_json_word(v))
        return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be 1 to %d bytes long, without a NUL.", at, PN_MAX_STOP_BYTES);
    if (p->n_stops == PN_MAX_STOPS) return pd_error_set(x, PD_ERR_VALUE, "stop", "'stop' has more than %d texts.", PN_MAX_STOPS);
    p->stops[p->n_stops++] = json_string_value(v);
    return true;
}

static bool get_stop(struct pd_params *p, json_t *v, struct pd_error *x) {
    if (json_is_string(v)) return add_stop(p, v, "stop", x);
    if (!json_is_array(v)) return wrong_type(x, "stop", "a text or a list of texts");
    for (size_t i = 0; i < json_array_size(v); i++) {
        char at[32];
        snprintf(at, sizeof at, "stop.%zu", i);
        if (!add_stop(p, json_array_get(v, i), at, x)) return false;
    }
    return true;
}

/* JavaScript writes whole numbers as it likes: 5 and 5.0 are both five. */
static bool whole_number(const json_t *v, int64_t *ret) {
    if (json_is_integer(v)) {
        *ret = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    if (d != floor(d) || fabs(d) > TWO53) return false;
    *ret = (int64_t)d;
    return true;
}

static bool get_seed(struct pd_params *p, json_t *v, struct pd_error *x) {
    int64_t seed;
    if (!whole_number(v, &seed)) return wrong_type(x, "seed", "a whole number");
    p->sampling.seed = (uint64_t)seed;
    p->has_seed = true;
    return true;
}

static bool get_bias(struct pd_params *p, json_t *v, struct pd_error *x) {
    const char *key;
    json_t *bias;
    if (!json_is_object(v)) return wrong_type(x, "logit_bias", "an object of token id to number");
    if (json_object_size(v) == 0) return true;
    if (json_object_size(v) > 65536) return pd_error_set(x, PD_ERR_VALUE, "logit_bias", "'logit_bias' has more than 65536 tokens.");
    p->bias = calloc(json_object_size(v), sizeof *p->bias);
    if (!p->bias) return pd_error_memory(x);
    json_object_foreach(v, key, bias) {
        char at[64];
        snprintf(at, sizeof at, "logit_bias.%.40s", key);
        size_t n = strlen(key);
        if (n == 0 || n > 9 || strspn(key, "0123456789") != n || (n > 1 && *key == '0')) return pd_error_set(x, PD_ERR_VALUE, at, "'%s' is not a token id.", at);
        if (!json_is_number(bias)) return wrong_type(x, at, "a number");
        double b = json_number_value(bias);
        if (b < -100 || b > 100) return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be between -100 and 100.", at);
        p->bias[p->sampling.n_bias++] = (struct pn_logit_bias){ (int32_t)strtol(key, NULL, 10), (float)b };
    }
    p->sampling.bias = p->bias;
    return true;
}

static bool get_modalities(struct pd_params *p, json_t *v, struct pd_error *x) {
    (void)p;
    if (!json_is_array(v)) return wrong_type(x, "modalities", "a list");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = pd_json_word(json_array_get(v, i));
        char at[32];
        snprintf(at, sizeof at, "modalities.%zu", i);
        if (!s) return wrong_type(x, at, "a text");
        if (strcmp(s, "text") != 0) return pd_error_set(x, PD_ERR_UNSUPPORTED, at, "'%s': this server answers in text only.", at);
    }
    return true;
}

static bool get_template_kwargs(struct pd_params *p, json_t *v, struct pd_error *x) {
    if (!json_is_object(v)) return wrong_type(x, "chat_template_kwargs", "an object");
    if (json_object_size(v) == 0) return true;
    p->extra_json = json_dumps(v, JSON_COMPACT);
    return p->extra_json || pd_error_memory(x);
}

/* --- /v1/responses --- */

static bool get_items(struct pd_params *p, json_t *v, struct pd_error *x) {
    json_t *instructions = json_object_get(p->root, "instructions"); /* its own row says what is wrong with it */
    json_t *messages = pd_items_messages(json_is_string(instructions) ? instructions : NULL, v, x);
    if (!messages) return false;
    p->messages_json = json_dumps(messages, JSON_COMPACT);
    json_decref(messages);
    return p->messages_json || pd_error_memory(x);
}

static bool get_instructions(struct pd_params *p, json_t *v, struct pd_error *x) {
    (void)p;
    return json_is_string(v) || wrong_type(x, "instructions", "a text");
}

static bool get_include(struct pd_params *p, json_t *v, struct pd_error *x) {
    static const char *const known[] = { "message.output_text.logprobs", "reasoning.encrypted_content", "message.input_image.image_url", "file_search_call.results", "web_search_call.results",
                                         "web_search_call.action.sources", "computer_call_output.output.image_url", "code_interpreter_call.outputs" };
    if (!json_is_array(v)) return wrong_type(x, "include", "a list");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = pd_json_word(json_array_get(v, i));
        char at[32];
        snprintf(at, sizeof at, "include.%zu", i);
        if (!s) return wrong_type(x, at, "a text");
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(s, known[k]) != 0) k++;
        if (k == sizeof known / sizeof *known) return pd_error_set(x, PD_ERR_VALUE, at, "'%s': there is no part '%.60s' of an answer.", at, s);
        if (k == 0) p->logprobs = true;
    }
    return true;
}

static bool get_text_format(struct pd_params *p, json_t *v, struct pd_error *x) {
    const char *key;
    json_t *member;
    if (!json_is_object(v)) return wrong_type(x, "text", "an object");
    json_object_foreach(v, key, member) {
        char at[96];
        snprintf(at, sizeof at, "text.%.60s", key);
        if (strcmp(key, "verbosity") == 0 || (strcmp(key, "format") == 0 && json_is_null(member))) continue;
        if (strcmp(key, "format") != 0) return pd_error_set(x, PD_ERR_UNKNOWN_PARAM, at, "'%s' is not known to this server.", at);
        if (!pd_grammar_format(p, "text.format", member, x)) return false;
    }
    return true;
}

static bool get_metadata(struct pd_params *p, json_t *v, struct pd_error *x) {
    enum { LABEL_NAME = 64, LABEL = 512 };
    const char *key;
    json_t *label;
    (void)p;
    if (!json_is_object(v)) return wrong_type(x, "metadata", "an object of texts");
    if (json_object_size(v) > PD_MAX_LABELS) return pd_error_set(x, PD_ERR_VALUE, "metadata", "'metadata' has more than %d labels.", PD_MAX_LABELS);
    json_object_foreach(v, key, label) {
        char at[96];
        snprintf(at, sizeof at, "metadata.%.60s", key);
        if (!json_is_string(label)) return wrong_type(x, at, "a text");
        if (fo_utf8_count(key, strlen(key)) > LABEL_NAME) return pd_error_set(x, PD_ERR_VALUE, at, "'%s': a label's name has at most %d characters.", at, LABEL_NAME);
        if (fo_utf8_count(json_string_value(label), json_string_length(label)) > LABEL) return pd_error_set(x, PD_ERR_VALUE, at, "'%s' has more than %d characters.", at, LABEL);
    }
    return true;
}

/* --- the loop over the table --- */

static const struct row *find_row(unsigned api, const char *name) {
    for (int i = 0; i < N_ROWS; i++)
        if ((rows[i].api & api) && strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

static uint32_t sampling_bit(size_t at) {
    return at >= offsetof(struct pd_params, sampling) && at < offsetof(struct pd_params, sampling) + sizeof(struct pn_sampling)
               ? 1u << ((at - offsetof(struct pd_params, sampling)) / 4)
               : 0;
}

static bool out_of_range(const struct row *r, double value, struct pd_error *x) {
    struct pd_param_doc d;
    pd_param_doc((size_t)(r - rows), &d);
    if (value > r->max && r->max >= INT32_MAX) return pd_error_set(x, PD_ERR_VALUE, r->name, "'%s' is out of range (at most %.0f).", r->name, r->max);
    return pd_error_set(x, PD_ERR_VALUE, r->name, "'%s' is out of range (%s).", r->name, d.range);
}

static bool is_off(const struct row *r, const json_t *v) {
    const char *s = pd_json_word(v);
    if (s && r->off && strcmp(s, r->off) == 0) return true;
    return json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) || (s && !*s) ||
           (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

static bool take(const struct row *r, struct pd_params *p, json_t *v, struct pd_error *x) {
    char *to = (char *)p + r->at;
    if (json_is_null(v) || r->kind == IGNORED) return true; /* null is "unset" for every field */
    switch (r->kind) {
    case FLOAT: {
        if (!json_is_number(v)) return wrong_type(x, r->name, "a number");
        double d = json_number_value(v);
        if (d < r->min || d > r->max || (r->open_min && d <= r->min) || (r->open_max && d >= r->max)) return out_of_range(r, d, x);
        float f = (float)d, old = *(float *)to;
        if ((p->has & sampling_bit(r->at)) && old != f) return pd_error_set(x, PD_ERR_VALUE, r->name, "'%s' is given twice, under two names, with different values.", r->name);
        *(float *)to = f;
        p->has |= sampling_bit(r->at);
        return true;
    }
    case INT32:
    case INT64: {
        int64_t n;
        if (!whole_number(v, &n)) return wrong_type(x, r->name, "a whole number");
        if ((double)n < r->min || (double)n > r->max) return out_of_range(r, (double)n, x);
        if (r->kind == INT64) *(int64_t *)to = n;
        else *(int32_t *)to = (int32_t)n;
        p->has |= sampling_bit(r->at);
        return true;
    }
    case BOOL:
        if (!json_is_boolean(v)) return wrong_type(x, r->name, "true or false");
        *(bool *)to = json_is_true(v);
        return true;
    case FN:
        return r->fn(p, v, x);
    case NAMED:
        return r->named(p, r->name, v, x);
    case REFUSED:
        return is_off(r, v) || pd_error_set(x, PD_ERR_UNSUPPORTED, r->name, "'%s' is not honoured by this version: %s", r->name, r->doc);
    case IGNORED:
        break;
    }
    return true;
}

static bool given(const struct pd_params *p, const char *name) {
    const json_t *v = json_object_get(p->root, name);
    return v && !json_is_null(v);
}

/* Two names of one thing, and what the name of the text says of the other defaults. */
static bool check_tokenize(struct pd_params *p, struct pd_error *x) {
    static const char *const names[] = { "content", "prompt", "messages" };
    const char *has = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!given(p, names[i])) continue;
        if (has) return pd_error_set(x, PD_ERR_INVALID, names[i], "'%s' and '%s' are both given; one is taken.", has, names[i]);
        has = names[i];
    }
    if (!has) return pd_error_set(x, PD_ERR_INVALID, "content", "'content' is missing (or 'prompt', or 'messages').");
    bool first = given(p, "add_special"), second = given(p, "add_special_tokens");
    if (first && second && p->add_special != p->add_special_too)
        return pd_error_set(x, PD_ERR_VALUE, "add_special_tokens", "'add_special' and 'add_special_tokens' are both given and differ.");
    bool completes = strcmp(has, "prompt") == 0;
    if (!first) p->add_special = second ? p->add_special_too : completes;
    if (!given(p, "parse_special")) p->parse_special = !completes;
    return true;
}

const char *pd_params_prompt(const struct pd_params *p) {
    return p->api & (PD_API_RESPONSES | PD_API_EMBED) ? "input" : p->api & PD_API_TEXT ? "prompt" : "messages";
}

/* What one field alone cannot tell. */
static bool cross_check(struct pd_params *p, struct pd_error *x) {
    bool talks = p->api & PD_API_TALK;
    const char *needed = pd_params_prompt(p);
    if (p->api == PD_API_TOKENIZE) return check_tokenize(p, x);
    if (p->api == PD_API_DETOKENIZE) return p->prompts || pd_error_set(x, PD_ERR_INVALID, "tokens", "'tokens' is missing.");
    if (!p->model && !(p->api & PD_API_NO_ANSWER)) return pd_error_set(x, PD_ERR_INVALID, "model", "'model' is missing.");
    if (talks ? !p->messages_json : !p->prompts) return pd_error_set(x, PD_ERR_INVALID, needed, "'%s' is missing.", needed);
    if (p->api == PD_API_EMBED) return true;
    if (!p->stream && json_is_object(json_object_get(p->root, "stream_options")))
        return pd_error_set(x, PD_ERR_INVALID, "stream_options", "'stream_options' is only allowed with stream: true.");
    if (p->max_completion_tokens >= 0) {
        if (p->max_tokens >= 0 && p->max_tokens != p->max_completion_tokens)
            return pd_error_set(x, PD_ERR_VALUE, "max_completion_tokens", "'max_tokens' and 'max_completion_tokens' are both given and differ.");
        p->max_tokens = p->max_completion_tokens;
    }
    if (p->max_tokens == 0 && !p->echo) return pd_error_set(x, PD_ERR_VALUE, "max_tokens", "'max_tokens' must be at least 1.");
    p->has_max_tokens = p->max_tokens >= 0;
    if (p->n_prompts > 0 && (uint64_t)p->n * p->n_prompts > PD_MAX_CHOICES)
        return pd_error_set(x, PD_ERR_VALUE, "n", "'n' times the number of prompts is over %d choices.", PD_MAX_CHOICES);
    if (talks && !p->logprobs && p->n_top > 0)
        return pd_error_set(x, PD_ERR_VALUE, "top_logprobs", "'top_logprobs' is only allowed with %s.", p->api == PD_API_RESPONSES ? "include: [\"message.output_text.logprobs\"]" : "logprobs: true");
    if (talks) p->n_top = !p->logprobs ? -1 : p->n_top < 0 ? 0 : p->n_top;
    if (p->echo && p->n_top >= 0)
        return pd_error_set(x, PD_ERR_UNSUPPORTED, "logprobs", "'logprobs' with 'echo' is not honoured by this version: there are none of the prompt's tokens.");
    if (p->sampling.top_k < 0) p->sampling.top_k = 0;
    if (p->sampling.top_p < 1e-6f) p->sampling.top_p = 1e-6f; /* 0: the likeliest token alone */
    return true;
}

bool pd_params_parse(unsigned api, const char *body, size_t len, struct pd_params *ret, struct pd_error *x) {
    struct pd_params p = { .api = api, .max_tokens = -1, .max_completion_tokens = -1, .n = 1, .best_of = 1, .n_top = -1, .dimensions = -1, .parallel_calls = true, .cache_prompt = true, .reasoning_budget = PD_BUDGET_UNSET, .sampling = pn_sampling_default,
                           .add_generation_prompt = true };
    p.sampling.repeat_last_n = 64; /* without it a repeat_penalty would do nothing */
    struct pd_body parsed = { 0 };
    const char *key;
    json_t *v;
    bool ok = pd_body_parse(body, len, &parsed, x);
    p.root = parsed.root;
    p.parts = parsed.parts;
    if (ok) json_object_foreach(p.root, key, v) {
            const struct row *r = find_row(api, key);
            if (r) ok = take(r, &p, v, x);
            else ok = pd_error_set(x, PD_ERR_UNKNOWN_PARAM, key, "'%.100s' is not a field of this endpoint.", key);
            if (!ok) break;
        }
    ok = ok && cross_check(&p, x) && pd_tools_settle(&p, x) && pd_reasoning_settle(&p, x);
    if (!p.has_seed) p.sampling.seed = fo_rng_entropy();
    if (!ok) {
        pd_params_done(&p);
        p = (struct pd_params){ 0 };
    }
    *ret = p;
    return ok;
}

void pd_params_done(struct pd_params *p) {
    for (size_t i = 0; i < p->n_prompts; i++) free(p->prompts[i].ids);
    free(p->prompts);
    free(p->bias);
    free(p->messages_json);
    free(p->extra_json);
    free(p->tools_json);
    free(p->grammar_text);
    pn_tools_put(p->tools);
    pn_grammar_put(p->calls);
    pn_grammar_put(p->grammar);
    pd_body_done(&(struct pd_body){ p->root, p->parts });
}

void pd_params_defaults(struct pd_params *p, const struct cf_sampling *d) {
#define DEFAULT(field, type)                                                                                                               \
    if (d->has_##field && !(p->has & sampling_bit(offsetof(struct pd_params, sampling) + offsetof(struct pn_sampling, field))))            \
    p->sampling.field = (type)d->field
    DEFAULT(temperature, float);
    DEFAULT(top_p, float);
    DEFAULT(top_k, int32_t);
    DEFAULT(min_p, float);
    DEFAULT(repeat_penalty, float);
    DEFAULT(presence_penalty, float);
    DEFAULT(frequency_penalty, float);
#undef DEFAULT
    if (p->reasoning_budget == PD_BUDGET_UNSET) p->reasoning_budget = d->has_reasoning_budget ? d->reasoning_budget : PD_BUDGET_NONE;
}

bool pd_params_check_ids(const struct pd_params *p, uint32_t n_vocab, struct pd_error *x) {
    char at[64];
    for (int32_t i = 0; i < p->sampling.n_bias; i++)
        if ((uint32_t)p->bias[i].id >= n_vocab) {
            snprintf(at, sizeof at, "logit_bias.%d", (int)p->bias[i].id);
            return pd_error_set(x, PD_ERR_VALUE, at, "'%s': the model's token ids end at %u.", at, n_vocab - 1);
        }
    for (size_t k = 0; k < p->n_prompts; k++)
        for (uint32_t i = 0; p->prompts[k].ids && i < p->prompts[k].n_ids; i++)
            if ((uint32_t)p->prompts[k].ids[i] >= n_vocab) {
                const char *name = p->api == PD_API_EMBED ? "input" : "prompt";
                bool many = json_is_array(json_array_get(json_object_get(p->root, name), 0));
                if (many) snprintf(at, sizeof at, "%s.%zu.%u", name, k, i);
                else snprintf(at, sizeof at, "%s.%u", name, i);
                return pd_error_set(x, PD_ERR_VALUE, at, "'%s': the model's token ids end at %u.", at, n_vocab - 1);
            }
    return true;
}
