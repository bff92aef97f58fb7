/* Functions of a request: see tools.h. A chat has {"type": "function", "function": {"name", ...}}, a Response the same without the inner object;
 * templates and the engine know the first. */
#include "daemon/tools.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/oai.h"
#include "daemon/params.h"
#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/engine.h"
#include "engine/grammar/grammar.h"
#include "engine/tools.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { PATH_BYTES = 128 };

static bool is_response(const struct pd_params *p) {
    return p->api == PD_API_RESPONSES;
}

/* --- fields --- */

/* A Response's function as a chat has it: a new reference, NULL with the error. */
static json_t *chat_form(json_t *tool, size_t i, struct pd_error *x) {
    static const char *const members[] = { "name", "description", "parameters", "strict" };
    char at[PATH_BYTES];
    snprintf(at, sizeof at, "tools.%zu", i);
    if (!json_is_object(tool)) {
        pd_error_set(x, PD_ERR_INVALID, at, "'%s' must be an object.", at);
        return NULL;
    }
    json_t *type = json_object_get(tool, "type"), *function = json_object();
    bool ok = function != NULL;
    for (size_t k = 0; k < sizeof members / sizeof *members && ok; k++) {
        json_t *v = json_object_get(tool, members[k]);
        if (v) ok = json_object_set(function, members[k], v) == 0;
    }
    json_t *all = json_object();
    ok = ok && all && (!type || json_object_set(all, "type", type) == 0) && json_object_set(all, "function", function) == 0;
    json_decref(function);
    if (ok) return all;
    json_decref(all);
    pd_error_memory(x);
    return NULL;
}

bool pd_tools_list(struct pd_params *p, json_t *v, struct pd_error *x) {
    if (!json_is_array(v)) return pd_error_set(x, PD_ERR_INVALID, "tools", "'tools' must be a list.");
    if (json_array_size(v) == 0) return true;
    if (!is_response(p)) {
        p->tools_json = json_dumps(v, JSON_COMPACT);
        return p->tools_json || pd_error_memory(x);
    }
    json_t *list = json_array();
    bool ok = list || pd_error_memory(x);
    for (size_t i = 0; i < json_array_size(v) && ok; i++) {
        json_t *tool = chat_form(json_array_get(v, i), i, x);
        ok = tool && (json_array_append_new(list, tool) == 0 || pd_error_memory(x));
    }
    if (ok) {
        p->tools_json = json_dumps(list, JSON_COMPACT);
        ok = p->tools_json || pd_error_memory(x);
    }
    json_decref(list);
    return ok;
}

bool pd_tools_choice(struct pd_params *p, json_t *v, struct pd_error *x) {
    static const char *const words[] = { "none", "auto", "required" };
    const char *word = pd_json_word(v);
    if (json_is_string(v)) {
        size_t k = 0;
        while (word && k < sizeof words / sizeof *words && strcmp(word, words[k]) != 0) k++;
        if (!word || k == sizeof words / sizeof *words) return pd_error_set(x, PD_ERR_VALUE, "tool_choice", "'tool_choice' must be none, auto, required or an object that names a function.");
        p->no_tools = k == 0;
        p->choice = k == 2 ? PN_TOOL_REQUIRED : PN_TOOL_AUTO;
        return true;
    }
    if (!json_is_object(v)) return pd_error_set(x, PD_ERR_INVALID, "tool_choice", "'tool_choice' must be none, auto, required or an object that names a function.");
    const char *type = pd_json_word(json_object_get(v, "type")), *at = is_response(p) ? "tool_choice.name" : "tool_choice.function.name";
    if (!type) return pd_error_set(x, PD_ERR_INVALID, "tool_choice.type", "'tool_choice.type' must be a text.");
    if (strcmp(type, "function") != 0)
        return pd_error_set(x, PD_ERR_UNSUPPORTED, "tool_choice.type", "'tool_choice.type': this server calls functions, and knows no '%.60s'. Leave out of tools what is not to be called.", type);
    const json_t *in = is_response(p) ? v : json_object_get(v, "function");
    p->named = pd_json_word(json_object_get(in, "name"));
    p->choice = PN_TOOL_NAMED;
    return p->named || pd_error_set(x, PD_ERR_INVALID, at, "'%s' must be a text.", at);
}

/* --- all of them --- */

/* The path of what is at fault below the list, as the request has it. */
static void path_of(const struct pd_params *p, const char *where, char *out) {
    const char *inner = is_response(p) ? strstr(where, ".function") : NULL;
    if (!*where) snprintf(out, PATH_BYTES + 16, "tools");
    else if (inner) snprintf(out, PATH_BYTES + 16, "tools.%.*s%s", (int)(inner - where), where, inner + strlen(".function"));
    else snprintf(out, PATH_BYTES + 16, "tools.%s", where);
}

static void give_up(struct pd_params *p) {
    free(p->tools_json);
    p->tools_json = NULL;
}

static bool offers(const struct pn_tools *t, const char *name) {
    for (int i = 0; i < pn_tools_n(t); i++)
        if (strcmp(pn_tools_name(t, i), name) == 0) return true;
    return false;
}

/* What the engine says of the list; the function that is named is looked for here, because its path is another. */
static bool make(struct pd_params *p, enum pn_tool_choice choice, struct pn_tools **ret, struct pd_error *x) {
    char where[128] = "", at[PATH_BYTES + 16];
    struct fo_err e;
    struct pn_tools_opts o = { .json = p->tools_json, .len = strlen(p->tools_json), .choice = choice, .named = p->named, .one_call = !p->parallel_calls };
    if (pn_tools_new(&o, ret, where, &e) == FO_OK) return true;
    pd_error_from(x, &e, false);
    if (pd_error_row(x->id)->status != 400) return false;
    path_of(p, where, at);
    return pd_error_set(x, e.code == FO_EUNSUPPORTED ? PD_ERR_UNSUPPORTED : PD_ERR_INVALID, at, "'%s': %s", at, e.msg);
}

bool pd_tools_settle(struct pd_params *p, struct pd_error *x) {
    if (p->no_tools) give_up(p);
    if (!p->tools_json) {
        if (p->choice == PN_TOOL_AUTO) return true;
        return pd_error_set(x, PD_ERR_INVALID, "tool_choice", "'tool_choice' asks for a call, and there are no tools.");
    }
    if (p->grammar_field && p->grammar_kind != PN_GRAMMAR_JSON_OBJECT && p->grammar_kind != PN_GRAMMAR_JSON_SCHEMA)
        return pd_error_set(x, PD_ERR_UNSUPPORTED, p->grammar_field, "'%s' and tools are both given: an answer that may be calls is held to a JSON Schema at most (response_format).", p->grammar_field);
    struct pn_tools *all = NULL;
    if (!make(p, PN_TOOL_AUTO, &all, x)) return false;
    bool ok = true;
    if (p->choice == PN_TOOL_NAMED && !offers(all, p->named)) {
        const char *at = is_response(p) ? "tool_choice.name" : "tool_choice.function.name";
        ok = pd_error_set(x, PD_ERR_VALUE, at, "'%s': there is no function '%.64s' in tools.", at, p->named);
    } else if (p->choice == PN_TOOL_AUTO) {
        p->tools = pn_tools_ref(all);
    } else {
        ok = make(p, p->choice, &p->tools, x);
    }
    pn_tools_put(all);
    return ok;
}

/* The grammar of calls, for whoever writes its text. */
struct calls {
    const struct pd_params *p;
    const struct pn_dialect *dialect;
    const char *content; /* [n_content] a schema of what may come in their place; NULL = nothing may */
    size_t n_content;
    char where[128];
};

static int write_calls(void *ctx, struct fo_buf *ret, struct fo_err *e) {
    struct calls *c = ctx;
    return pn_tools_grammar(c->p->tools, c->dialect, c->content, c->n_content, ret, c->where, e);
}

/* All that the grammar's text depends on but the model. */
static void put_key(const struct calls *c, struct fo_buf *out) {
    fo_buf_printf(out, "%d %d %s\n", (int)pn_tools_choice(c->p->tools), pn_tools_one_call(c->p->tools), c->p->named ? c->p->named : "");
    fo_buf_puts(out, c->p->tools_json); /* on one line */
    fo_buf_putc(out, '\n');
    if (c->content) fo_buf_append(out, c->content, c->n_content);
}

bool pd_tools_compile(struct pn_served *s, struct pd_params *p, struct pd_error *x) {
    static const char any_object[] = "{\"type\":\"object\"}";
    const struct pn_chat *chat = pn_model_chat(pn_served_model(s));
    struct fo_err e = { 0 };
    if (!p->tools || !chat || pn_chat_state(chat, &e)) return true; /* who renders the conversation says what is wrong with the model */
    bool calls_alone = p->choice != PN_TOOL_AUTO, object = p->grammar_kind == PN_GRAMMAR_JSON_OBJECT;
    struct calls calls = { .p = p, .dialect = pn_chat_dialect(chat), .content = !p->grammar || calls_alone ? NULL : object ? any_object : p->grammar_text };
    calls.n_content = !calls.content ? 0 : object ? sizeof any_object - 1 : p->n_grammar_text;
    if (!pn_dialect_calls(calls.dialect))
        return pd_error_set(x, PD_ERR_UNSUPPORTED, "tools", "'tools': the chat template of model '%s' writes calls in a form that this server does not know.", pn_served_name(s));
    char at[PATH_BYTES + 16];
    struct fo_buf key;
    fo_buf_init(&key, SIZE_MAX / 2);
    put_key(&calls, &key);
    if (key.failed) {
        fo_buf_done(&key);
        return pd_error_memory(x);
    }
    int rc = pn_served_made_grammar(s, fo_buf_str(&key), key.len, write_calls, &calls, &p->calls, &e);
    fo_buf_done(&key);
    if (rc != FO_OK) {
        pd_error_from(x, &e, false);
        if (pd_error_row(x->id)->status != 400) return false;
        path_of(p, calls.where, at);
        return pd_error_set(x, PD_ERR_SCHEMA, at, "'%s': %s", at, e.msg);
    }
    if (!p->grammar && !calls_alone) return true;
    pn_grammar_put(p->grammar);
    p->grammar = pn_grammar_ref(p->calls);
    return true;
}

void pd_tools_repeat(const struct pd_params *p, struct fo_buf *out) {
    static const char *const members[] = { "description", "parameters", "strict" };
    const json_t *given = json_object_get(p->root, "tools");
    if (!json_is_array(given)) {
        fo_buf_puts(out, "[]");
        return;
    }
    json_t *list = json_deep_copy(given), *tool;
    size_t i;
    json_array_foreach(list, i, tool) /* clients' types want them there */
        for (size_t k = 0; k < sizeof members / sizeof *members; k++)
            if (json_is_object(tool) && !json_object_get(tool, members[k]) && json_object_set_new(tool, members[k], json_null())) out->failed = true;
    char *text = json_dumps(list, JSON_COMPACT);
    if (text) fo_buf_puts(out, text);
    else out->failed = true;
    free(text);
    json_decref(list);
}

void pd_tools_doc(struct fo_buf *out) {
    fo_buf_puts(out, "\n## Tools\n\nFunctions go to the model through its own chat template, and its calls are read in the form that the template writes them; a template that knows no functions gets them "
                     "described in a system message. Which of the forms of [tools.md](tools.md) it is, the log says when a model is loaded (`event=dialect`), /v1/models in `tools`, and "
                     "`pantheon inspect`. A template that writes calls in a form that is none of these makes `tools` an error.\n");
    fo_buf_puts(out, "\nA call is one once its marks, the name of a function that was offered and the beginning of its arguments have come. From there on the model is held to a form that parses: the arguments "
                     "are one JSON object, `{}` where a function has no parameters, whatever the form they are written in. With `strict`, and of all functions where tool_choice demands a call, they are what "
                     "`parameters` accepts; a schema that cannot be held to is an error with its path (`unsupported_schema`), or any object where the function is not strict; `strict` that is left out is false, on /v1/responses too. What breaks before it is a call is "
                     "content, as the model wrote it, and never an error.\n\n"
                     "`message.tool_calls` has `id`, `type` and `function` with `name` and `arguments` (a text); `content` is null where there is nothing but calls, and `finish_reason` is tool_calls where the "
                     "answer ended by itself. In a stream the first delta of a call has its `index`, `id`, `type` and `name`, the others its `index` and more of `arguments`. An answer that max_tokens cut "
                     "within a call has what there is of it, and nothing is repaired.\n\n"
                     "With response_format an answer is calls or JSON that the schema accepts. grammar, regex and guided_choice are refused beside tools.\n");
}
