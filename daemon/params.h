/* Request bodies: THE table of fields that the endpoints of models know, and the parser that turns a JSON body into values. Every field is honoured, or named as harmless and ignored, or refused by name: none is dropped where it would change the
 * output, and a field that is in no row is an error, because ignoring it would hide a typo. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/grammar.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/tools.h"

struct json_t;
struct pd_error;
struct cf_sampling;

/* Whose field a row is. /apply-template takes a chat's body: its rows are those of PD_API_CHAT | PD_API_TEMPLATE. */
enum {
    PD_API_CHAT = 1,
    PD_API_TEXT = 2,
    PD_API_TOKENIZE = 4,
    PD_API_DETOKENIZE = 8,
    PD_API_TEMPLATE = 16,
    PD_API_EMBED = 32,
    PD_API_RESPONSES = 64,
    PD_API_TALK = PD_API_CHAT | PD_API_RESPONSES, /* through the model's template */
    PD_API_ANSWERS = PD_API_TALK | PD_API_TEXT,   /* a model's own text */
    PD_API_NO_ANSWER = PD_API_TOKENIZE | PD_API_DETOKENIZE | PD_API_TEMPLATE /* no model computes for these, and `model` may be left out */
};
enum { PD_MAX_JSON_DEPTH = 64, PD_MAX_CHOICES = 128, PD_MAX_INPUTS = 2048 /* of one request for embeddings, as OpenAI has it */, PD_MAX_IDS = 1 << 20 /* in one body of /tokenize and /detokenize */, PD_MAX_LABELS = 16 };

struct pd_params {
    unsigned api;
    struct json_t *root; /* owns what points into the body */
    const char *model;
    bool stream, include_usage, echo, ignore_end;
    bool logprobs;  /* not of completions: asked for */
    int32_t n_top;  /* log-probabilities: this many of the likeliest with each token; -1 = none are asked for */
    bool has_max_tokens;
    int64_t max_tokens, max_completion_tokens; /* -1 = unset */
    int64_t n, best_of;
    struct pn_sampling sampling; /* bias points to `bias` */
    uint32_t has;                /* bit i: row i of the table was given (PD_HAS) */
    bool has_seed;
    /* whose turn it is (whose.h) */
    const char *session, *cache_key; /* NULL = not given */
    enum pn_priority priority;       /* of service_tier */
    bool has_tier, cache_prompt;
    struct pn_logit_bias *bias; /* heap */
    const char *stops[PN_MAX_STOPS];
    int n_stops;
    /* what the answer is held to: the field that says so, NULL = nothing */
    const char *grammar_field;
    enum pn_grammar_kind grammar_kind;
    char *grammar_text; /* [n_grammar_text], heap */
    size_t n_grammar_text;
    struct pn_grammar *grammar; /* compiled, by pd_grammar_compile; ours */
    /* chat and Responses, whose items are messages by now */
    char *messages_json, *extra_json; /* heap; extra NULL = none */
    char *tools_json;        /* the functions as a chat has them, heap; NULL = none are offered */
    enum pn_tool_choice choice;
    const char *named;       /* the function that is to be called */
    bool no_tools, parallel_calls;
    struct pn_tools *tools;  /* ours; NULL = no call is looked for */
    struct pn_grammar *calls; /* what they are held to, by pd_tools_compile; ours */
    const char *effort;      /* of reasoning, static; NULL = not given */
    int64_t reasoning_budget; /* PD_BUDGET_... or tokens */
    /* /tokenize, /detokenize, /apply-template: their text or ids are prompts[0] */
    bool add_special, add_special_too, parse_special, with_pieces, with_tokens, add_generation_prompt;
    /* embeddings */
    bool base64;
    int64_t dimensions; /* -1 = unset */
    /* completions, and the inputs of embeddings: [n_prompts]; each a text or ids */
    struct pd_prompt {
        const char *text;
        size_t len;
        int32_t *ids; /* heap, NULL = text */
        uint32_t n_ids;
    } *prompts;
    size_t n_prompts;
    uint64_t parts; /* of the body, as counted against what all bodies may have */
};

/* Parses and checks a body. False with *ret_error set, whose param is the JSON path at fault; *ret is then empty. Free with
 * pd_params_done. */
bool pd_params_parse(unsigned api, const char *body, size_t len, struct pd_params *ret, struct pd_error *ret_error);
void pd_params_done(struct pd_params *p);

/* The field that the prompt came from, for errors about its length. */
const char *pd_params_prompt(const struct pd_params *p);

/* What needs the model: the manifest's defaults for fields the request left out, and token ids against the vocabulary. */
void pd_params_defaults(struct pd_params *p, const struct cf_sampling *d);
bool pd_params_check_ids(const struct pd_params *p, uint32_t n_vocab, struct pd_error *ret_error);

/* The table, for the reference page, /openapi.json and the tests. */
struct pd_param_doc {
    const char *name, *range, *doc;
    unsigned api;
    enum { PD_NUMBER, PD_INTEGER, PD_BOOLEAN, PD_OWN_SHAPE, PD_ANY } type;
    double min, max; /* of a number; the bound itself is out of range when open */
    bool open_min, open_max;
    const char *off; /* of a refused field: the word that asks for nothing, or NULL */
    enum { PD_HONOURED, PD_IGNORED, PD_REFUSED } verdict;
};
bool pd_param_doc(size_t i, struct pd_param_doc *ret); /* false past the last */
