/* A conversation as the API has it becomes one that the template understands: see chat.h. What a template understands was found out when it was
 * opened. One that knows no functions at all still gets them: they are described in the system message, calls stand as text in an assistant's
 * content, in the form that is asked for there, and results in a user's. */
#include "engine/blank.h"
#include "engine/chat_impl.h"
#include "engine/dialect.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"
#include "foundry/base/sha256.h"

#include <string.h>

enum { TEXT_BYTES = 64 << 20, SHORT_ID = 9 };

static const char *const roles[PN_N_PROBES] = { "user", "system", "assistant", "tool" };

static const struct pn_value *field(struct pn_value v, const char *name) {
    return v.kind == PN_V_DICT ? pn_dict_find(v.dict, name, strlen(name)) : NULL;
}

/* Parts that are all text as one string; anything else stays. */
static int join_parts(struct fo_region *r, struct pn_value *content, struct fo_err *e) {
    struct pn_out t;
    const struct pn_list *parts = content->list;
    for (size_t i = 0; i < parts->n; i++) {
        const struct pn_value *type = field(parts->v[i], "type"), *text = field(parts->v[i], "text");
        if (!type || !text || text->kind != PN_V_STR ||
            !pn_value_eq(*type, (struct pn_value){ .kind = PN_V_STR, .s = &(struct pn_str){ .s = "text", .len = 4 } }))
            return 0;
    }
    pn_out_init(&t, TEXT_BYTES);
    for (size_t i = 0; i < parts->n; i++) pn_out_put_str(&t, *field(parts->v[i], "text"));
    int rc = pn_out_pop(&t, 0, r, content, e);
    pn_out_done(&t);
    return rc;
}

/* A copy of a dict with one value replaced. */
static int replace_field(struct fo_region *r, struct pn_value *dict, const char *name, struct pn_value v, struct fo_err *e) {
    return pn_dict_with(r, *dict, name, v, dict, e);
}

/* Clients send blank text for the arguments of a function that has none. */
static bool is_blank_text(const struct pn_str *s) {
    size_t i = 0;
    while (i < s->len && pn_is_blank((unsigned char)s->s[i])) i++;
    return i == s->len;
}

/* One call: {"function": {"arguments": ...}} or {"arguments": ...}. What is text becomes what the template needs; text that is no JSON
 * object becomes the one member of an object. */
static int fit_arguments(const struct pn_chat *c, struct fo_region *r, struct pn_value *call, struct fo_err *e) {
    static const char none[] = "{}";
    const struct pn_value *function = field(*call, "function");
    struct pn_value holder = function && function->kind == PN_V_DICT ? *function : *call, text, *json;
    const struct pn_value *arguments = field(holder, "arguments");
    if (!arguments || arguments->kind != PN_V_STR) return 0;
    text = *arguments;
    bool blank = is_blank_text(text.s);
    if (blank && !pn_str_view(r, none, sizeof none - 1, PN_BY_USER, &text)) return pn_region_full(r, e);
    struct fo_err unused = { 0 };
    if (c->objects && pn_value_from_json(r, text.s->s, text.s->len, &json, &unused) == 0 && json->kind == PN_V_DICT) text = *json;
    else if (!blank && !c->objects) return 0;
    else if (!blank && pn_dict_with(r, pn_none(), "arguments", *arguments, &text, e)) return e->code; /* cut by max_tokens, say: nothing of it is lost */
    if (replace_field(r, &holder, "arguments", text, e)) return e->code;
    if (!function || function->kind != PN_V_DICT) {
        *call = holder;
        return 0;
    }
    return replace_field(r, call, "function", holder, e);
}

static int fit_message(const struct pn_chat *c, struct fo_region *r, struct pn_value *message, struct fo_err *e) {
    const struct pn_value *role = field(*message, "role"), *content = field(*message, "content"), *calls = field(*message, "tool_calls");
    bool lists = false;
    for (size_t i = 0; role && i < PN_N_PROBES; i++)
        if (pn_str_is(*role, roles[i], strlen(roles[i]))) lists = c->lists[i];
    if (content && content->kind == PN_V_LIST && !lists) {
        struct pn_value joined = *content;
        if (join_parts(r, &joined, e)) return e->code;
        if (joined.kind == PN_V_STR && replace_field(r, message, "content", joined, e)) return e->code;
    }
    if (content && content->kind == PN_V_NULL && c->no_nulls) {
        struct pn_value empty;
        if (!pn_str_view(r, "", 0, PN_BY_USER, &empty)) return fo_fail(e, FO_ENOMEM, "no memory for a message");
        if (replace_field(r, message, "content", empty, e)) return e->code;
    }
    if (!calls || calls->kind != PN_V_LIST) return 0;
    struct pn_value list;
    if (pn_list_new(r, calls->list->n ? calls->list->v : NULL, calls->list->n, PN_SEQ_LIST, &list, e)) return e->code;
    for (size_t i = 0; i < list.list->n; i++)
        if (fit_arguments(c, r, &list.list->v[i], e)) return e->code;
    list.mark = PN_BY_USER;
    return pn_list_seal(list, e) ? (int)e->code : replace_field(r, message, "tool_calls", list, e);
}

static bool is_tool(struct pn_value message) {
    const struct pn_value *role = field(message, "role");
    return role && pn_str_is(*role, roles[PN_PROBE_TOOL], strlen(roles[PN_PROBE_TOOL]));
}

/* --- several calls, for a template that takes one a message --------------------------------------------------------------------- */

/* The call that a result [of n] is of; n = none. */
static size_t call_of(struct pn_value result, const struct pn_list *calls) {
    const struct pn_value *of = field(result, "tool_call_id");
    for (size_t k = 0; k < calls->n && of; k++) {
        const struct pn_value *id = field(calls->v[k], "id");
        if (id && pn_value_eq(*id, *of)) return k;
    }
    return calls->n;
}

/* A message [from] with its call k alone. */
static int with_one_call(struct fo_region *r, struct pn_value from, size_t k, struct pn_value *ret, struct fo_err *e) {
    static const char *const once[] = { "content", "reasoning_content" };
    struct pn_value list;
    if (pn_list_new(r, &field(from, "tool_calls")->list->v[k], 1, PN_SEQ_LIST, &list, e)) return e->code;
    list.mark = PN_BY_USER;
    *ret = from;
    if (replace_field(r, ret, "tool_calls", list, e)) return e->code;
    for (size_t i = 0; k > 0 && i < sizeof once / sizeof *once; i++)
        if (field(from, once[i]) && replace_field(r, ret, once[i], pn_none(), e)) return e->code;
    return 0;
}

/* Each call gets a message of its own, its results behind it; results that are of none come last. */
static int split_calls(struct fo_region *r, const struct pn_value *v, size_t n, struct pn_value *ret, size_t *ret_n, struct fo_err *e) {
    enum { MOST_PAIRS = 1 << 20 }; /* what is more is no conversation, and stays as it is */
    size_t most = n, to = 0;
    for (size_t i = 0; i < n; i++) {
        const struct pn_value *calls = field(v[i], "tool_calls");
        if (calls && calls->kind == PN_V_LIST) most += calls->list->n;
    }
    if (pn_list_new(r, NULL, most + 1, PN_SEQ_LIST, ret, e)) return e->code;
    struct pn_value *out = ret->list->v;
    for (size_t i = 0; i < n;) {
        const struct pn_value *calls = field(v[i], "tool_calls"), *results = v + i + 1;
        size_t n_calls = calls && calls->kind == PN_V_LIST ? calls->list->n : 0, n_results = 0;
        while (n_calls > 1 && i + 1 + n_results < n && is_tool(results[n_results])) n_results++;
        if (n_calls < 2 || n_calls * (n_results + 1) > MOST_PAIRS) {
            out[to++] = v[i++];
            continue;
        }
        for (size_t k = 0; k < n_calls; k++) {
            if (with_one_call(r, v[i], k, &out[to++], e)) return e->code;
            for (size_t j = 0; j < n_results; j++)
                if (call_of(results[j], calls->list) == k) out[to++] = results[j];
        }
        for (size_t j = 0; j < n_results; j++)
            if (call_of(results[j], calls->list) == n_calls) out[to++] = results[j];
        i += 1 + n_results;
    }
    *ret_n = to;
    return 0;
}

/* --- functions that lack parts ------------------------------------------------------------------------------------------------ */

int pn_chat_fit_tools(const struct pn_chat *c, struct fo_region *r, struct pn_value *tools, struct fo_err *e) {
    static const char no_parameters[] = "{\"type\":\"object\",\"properties\":{}}";
    struct pn_value list, empty, *parameters;
    if (!c->whole_tools || tools->kind != PN_V_LIST || tools->list->n == 0) return 0;
    if (pn_list_new(r, tools->list->v, tools->list->n, PN_SEQ_LIST, &list, e)) return e->code;
    if (!pn_str_view(r, "", 0, PN_BY_USER, &empty)) return pn_region_full(r, e);
    if (pn_value_from_json(r, no_parameters, sizeof no_parameters - 1, &parameters, e)) return e->code;
    for (size_t i = 0; i < list.list->n; i++) {
        const struct pn_value *function = field(list.list->v[i], "function");
        if (!function || function->kind != PN_V_DICT) continue;
        struct pn_value whole = *function;
        const struct pn_value *about = field(whole, "description"), *takes = field(whole, "parameters");
        if ((!about || about->kind == PN_V_NULL) && replace_field(r, &whole, "description", empty, e)) return e->code;
        if ((!takes || takes->kind == PN_V_NULL) && replace_field(r, &whole, "parameters", *parameters, e)) return e->code;
        if (replace_field(r, &list.list->v[i], "function", whole, e)) return e->code;
    }
    list.mark = PN_BY_USER;
    if (pn_list_seal(list, e)) return e->code;
    *tools = list;
    return 0;
}

/* --- ids of calls ------------------------------------------------------------------------------------------------------------ */

/* Another id for each id, the same for the same, of letters and digits. */
static int shorten_id(struct fo_region *r, struct pn_value *holder, const char *name, struct fo_err *e) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const struct pn_value *id = field(*holder, name);
    uint8_t hash[FO_SHA256_BYTES];
    char text[SHORT_ID];
    struct pn_value v;
    if (!id || id->kind != PN_V_STR) return 0;
    bool fits = id->s->len == SHORT_ID;
    for (size_t i = 0; i < id->s->len && fits; i++) fits = id->s->s[i] != '\0' && strchr(digits, id->s->s[i]);
    if (fits) return 0;
    fo_sha256(id->s->s, id->s->len, hash);
    for (int i = 0; i < SHORT_ID; i++) text[i] = digits[hash[i] % (sizeof digits - 1)];
    if (!pn_str_new(r, text, SHORT_ID, PN_BY_USER, &v)) return pn_region_full(r, e);
    return replace_field(r, holder, name, v, e);
}

static int shorten_ids(struct fo_region *r, struct pn_value *message, struct fo_err *e) {
    const struct pn_value *calls = field(*message, "tool_calls");
    struct pn_value list;
    if (shorten_id(r, message, "tool_call_id", e)) return e->code;
    if (!calls || calls->kind != PN_V_LIST || calls->list->n == 0) return 0;
    if (pn_list_new(r, calls->list->v, calls->list->n, PN_SEQ_LIST, &list, e)) return e->code;
    for (size_t i = 0; i < list.list->n; i++)
        if (list.list->v[i].kind == PN_V_DICT && shorten_id(r, &list.list->v[i], "id", e)) return e->code;
    list.mark = PN_BY_USER;
    return pn_list_seal(list, e) ? (int)e->code : replace_field(r, message, "tool_calls", list, e);
}

/* --- functions, for a template that knows none ------------------------------------------------------------------------------- */

static const struct pn_json_style one_line = { .item = ", ", .item_len = 2, .key = ": ", .key_len = 2, .sep_mark = PN_BY_USER, .indent = { .kind = PN_V_UNDEFINED } };

/* What can be shown of a content: its text, or its parts'. */
static void put_content(struct pn_out *t, const struct pn_value *content) {
    if (!content) return;
    if (content->kind == PN_V_STR) pn_out_put_str(t, *content);
    for (size_t i = 0; content->kind == PN_V_LIST && i < content->list->n; i++) {
        const struct pn_value *text = field(content->list->v[i], "text");
        if (text && text->kind == PN_V_STR) pn_out_put_str(t, *text);
    }
}

static void put_text(const struct pn_chat *c, struct pn_out *t, enum pn_call_text which) {
    const char *text = pn_dialect_calls(c->dialect)->text[which];
    if (text) pn_out_puts(t, text, PN_BY_TEMPLATE);
}

static int put_call(const struct pn_chat *c, struct pn_out *t, struct pn_value call, struct fo_err *e) {
    const struct pn_value *function = field(call, "function"), *name = function ? field(*function, "name") : NULL, *arguments = function ? field(*function, "arguments") : NULL;
    if (!name || name->kind != PN_V_STR) return 0;
    put_text(c, t, PN_CALL_BEGIN);
    pn_out_puts(t, "{\"name\": ", PN_BY_TEMPLATE);
    if (pn_out_put_json(t, *name, &one_line, e)) return e->code;
    pn_out_puts(t, ", \"arguments\": ", PN_BY_TEMPLATE);
    if (!arguments || (arguments->kind == PN_V_STR && arguments->s->len == 0)) pn_out_puts(t, "{}", PN_BY_TEMPLATE);
    else if (arguments->kind == PN_V_STR) pn_out_put_str(t, *arguments);
    else if (pn_out_put_json(t, *arguments, &one_line, e)) return e->code;
    pn_out_puts(t, "}", PN_BY_TEMPLATE);
    put_text(c, t, PN_CALL_END);
    return 0;
}

/* What was written to t becomes the message's content, and t is done. */
static int set_content(struct fo_region *r, struct pn_value *message, struct pn_out *t, int rc, struct fo_err *e) {
    struct pn_value content;
    if (rc == 0) rc = pn_out_pop(t, 0, r, &content, e);
    pn_out_done(t);
    return rc ? rc : replace_field(r, message, "content", content, e);
}

/* An assistant's calls become text of its content. */
static int tell_calls(const struct pn_chat *c, struct fo_region *r, struct pn_value *message, struct fo_err *e) {
    const struct pn_value *calls = field(*message, "tool_calls");
    struct pn_out t;
    if (!calls || calls->kind != PN_V_LIST || calls->list->n == 0) return 0;
    pn_out_init(&t, TEXT_BYTES);
    put_content(&t, field(*message, "content"));
    int rc = 0;
    for (size_t i = 0; i < calls->list->n && rc == 0; i++) {
        if (t.len > 0) pn_out_puts(&t, "\n", PN_BY_TEMPLATE);
        rc = put_call(c, &t, calls->list->v[i], e);
    }
    if (set_content(r, message, &t, rc, e)) return e->code;
    return replace_field(r, message, "tool_calls", pn_none(), e);
}

/* Results that follow one another [n] become one message of a user. */
static int tell_results(struct fo_region *r, const struct pn_value *results, size_t n, struct pn_value *ret, struct fo_err *e) {
    struct pn_out t;
    struct pn_value role;
    pn_out_init(&t, TEXT_BYTES);
    for (size_t i = 0; i < n; i++) {
        pn_out_puts(&t, i ? "\n<tool_response>\n" : "<tool_response>\n", PN_BY_TEMPLATE);
        put_content(&t, field(results[i], "content"));
        pn_out_puts(&t, "\n</tool_response>", PN_BY_TEMPLATE);
    }
    *ret = pn_none();
    if (!pn_str_view(r, roles[PN_PROBE_USER], strlen(roles[PN_PROBE_USER]), PN_BY_USER, &role)) {
        pn_out_done(&t);
        return pn_region_full(r, e);
    }
    return set_content(r, ret, &t, 0, e) ? (int)e->code : replace_field(r, ret, "role", role, e);
}

/* The functions, and how they are called. */
static int describe(const struct pn_chat *c, struct pn_out *t, const struct pn_value *tools, struct fo_err *e) {
    pn_out_puts(t, "These functions can be called, each given as a JSON object:\n", PN_BY_TEMPLATE);
    for (size_t i = 0; tools->kind == PN_V_LIST && i < tools->list->n; i++) {
        const struct pn_value *function = field(tools->list->v[i], "function");
        if (pn_out_put_json(t, function ? *function : tools->list->v[i], &one_line, e)) return e->code;
        pn_out_puts(t, "\n", PN_BY_TEMPLATE);
    }
    pn_out_puts(t, "A call is written like this, with the function's name and an object of its arguments:\n", PN_BY_TEMPLATE);
    put_text(c, t, PN_CALL_BEGIN);
    pn_out_puts(t, "{\"name\": \"NAME\", \"arguments\": {}}", PN_BY_TEMPLATE);
    put_text(c, t, PN_CALL_END);
    pn_out_puts(t, "\nAn answer that calls functions holds the calls and nothing else. Their results come next, each between <tool_response> and </tool_response>.", PN_BY_TEMPLATE);
    return 0;
}

/* The description goes behind the system message at the front, or is one; where the template takes none, in front of the first message. */
static int add_description(const struct pn_chat *c, const struct pn_chat_input *in, struct fo_region *r, struct pn_value list, size_t *n, struct fo_err *e) {
    struct pn_value *v = list.list->v, *tools, system = pn_none(), role;
    const struct pn_value *first = *n > 0 ? field(v[0], "role") : NULL;
    bool has = first && pn_str_is(*first, roles[PN_PROBE_SYSTEM], strlen(roles[PN_PROBE_SYSTEM]));
    struct pn_out t;
    if (pn_value_from_json(r, in->tools_json, strlen(in->tools_json), &tools, e)) return fo_wrap(e, "tools");
    pn_out_init(&t, TEXT_BYTES);
    if (has) put_content(&t, field(v[0], "content"));
    if (has) pn_out_puts(&t, "\n\n", PN_BY_TEMPLATE);
    int rc = describe(c, &t, tools, e);
    if (has) return set_content(r, &v[0], &t, rc, e);
    if (c->no_system && *n > 0) {
        pn_out_puts(&t, "\n\n", PN_BY_TEMPLATE);
        put_content(&t, field(v[0], "content"));
        return set_content(r, &v[0], &t, rc, e);
    }
    if (set_content(r, &system, &t, rc, e)) return e->code;
    if (!pn_str_view(r, roles[PN_PROBE_SYSTEM], strlen(roles[PN_PROBE_SYSTEM]), PN_BY_USER, &role)) return pn_region_full(r, e);
    if (replace_field(r, &system, "role", role, e)) return e->code;
    memmove(v + 1, v, *n * sizeof *v);
    v[0] = system;
    ++*n;
    return 0;
}

/* The messages of `list`, whose array has room for one more. */
static int tell_functions(const struct pn_chat *c, const struct pn_chat_input *in, struct fo_region *r, struct pn_value list, size_t *n, struct fo_err *e) {
    struct pn_value *v = list.list->v;
    size_t to = 0;
    for (size_t i = 0; i < *n;) {
        size_t results = 0;
        while (i + results < *n && is_tool(v[i + results])) results++;
        struct pn_value m = v[i];
        if (results > 0 ? tell_results(r, v + i, results, &m, e) : tell_calls(c, r, &m, e)) return e->code;
        v[to++] = m;
        i += results ? results : 1;
    }
    *n = to;
    return in->tools_json ? add_description(c, in, r, list, n, e) : 0;
}

int pn_chat_fit(const struct pn_chat *c, const struct pn_chat_input *in, struct fo_region *r, struct pn_value *messages, struct fo_err *e) {
    struct pn_value list;
    if (messages->kind != PN_V_LIST) return fo_fail(e, FO_EINVAL, "messages must be an array");
    size_t n = messages->list->n;
    if (pn_list_new(r, NULL, n + 1, PN_SEQ_LIST, &list, e)) return e->code;
    if (n > 0) memcpy(list.list->v, messages->list->v, n * sizeof *list.list->v);
    if (pn_dialect_is_ours(c->dialect) && tell_functions(c, in, r, list, &n, e)) return e->code;
    if (c->one_call && split_calls(r, list.list->v, n, &list, &n, e)) return e->code;
    list.list->n = n;
    for (size_t i = 0; i < n; i++)
        if (fit_message(c, r, &list.list->v[i], e) || (c->short_ids && shorten_ids(r, &list.list->v[i], e))) return e->code;
    list.mark = PN_BY_USER;
    if (pn_list_seal(list, e)) return e->code;
    *messages = list;
    return 0;
}
