/* A conversation as the API has it becomes prompt text: see chat.h. What a template can take is found out by trying: at open the
 * template renders small probe conversations, each in two forms (content as a string and as a list of parts; a call's arguments as
 * text and as an object), and the two results tell which form it understands. Reading the template's source for hints would guess. */
#include "engine/chat.h"

#include <stdlib.h>
#include <string.h>

#include "engine/chat_impl.h"
#include "engine/dialect.h"
#include "engine/jinja_impl.h"
#include "foundry/base/buf.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"

enum { OUTPUT_BYTES = 4 << 20, REGION_BYTES = 64 << 20, STEPS = 50 * 1000 * 1000, GROWTH = 8, TOKEN_BYTES = 4096 };

static const char chatml[] = "{% for message in messages %}"
                             "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
                             "{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* The roles whose content is probed, each in a conversation that ends with it. %CONTENT% is either form of the same text. */
static const struct probe {
    const char *role, *before, *after;
} probes[] = {
    { "user", "[{\"role\":\"user\",\"content\":", "}]" },
    { "system", "[{\"role\":\"system\",\"content\":", "},{\"role\":\"user\",\"content\":\"q\"}]" },
    { "assistant",
      "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":", "},{\"role\":\"user\",\"content\":\"r\"}]" },
    { "tool",
      "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":"
      "\"function\","
      "\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"f\",\"content\":",
      "}]" },
};
_Static_assert(sizeof probes / sizeof *probes == PN_N_PROBES, "a probe for each role of chat_impl.h");

/* --- rendering ------------------------------------------------------------------------------------------------------------ */

static int set_var(struct fo_region *r, struct pn_value *vars, const char *name, struct pn_value v, struct fo_err *e) {
    return pn_dict_with(r, *vars, name, v, vars, e);
}

/* The variables of a render; what `extra` names wins. */
static int make_vars(const struct pn_chat *c, const struct pn_chat_input *in, struct pn_value messages, struct fo_region *r,
                     struct pn_value *ret, struct fo_err *e) {
    struct pn_value vars = pn_none(), tools = pn_none(), clock, bos, eos, *json;
    if (in->tools_json) {
        if (pn_value_from_json(r, in->tools_json, strlen(in->tools_json), &json, e)) return fo_wrap(e, "tools");
        tools = *json;
        if (!in->as_is && pn_chat_fit_tools(c, r, &tools, e)) return e->code;
    } else if (!in->as_is && c->wants_tools && pn_list_new(r, NULL, 0, PN_SEQ_LIST, &tools, e)) {
        return e->code;
    }
    if (!pn_clock_value(r, in->now, &clock) || !pn_str_view(r, c->bos, strlen(c->bos), PN_BY_TEMPLATE, &bos) ||
        !pn_str_view(r, c->eos, strlen(c->eos), PN_BY_TEMPLATE, &eos))
        return pn_region_full(r, e);
    const struct {
        const char *name;
        struct pn_value v;
    } all[] = { { "messages", messages },   { "tools", tools },
                { "documents", pn_none() }, { "add_generation_prompt", pn_bool(in->add_generation_prompt) },
                { "bos_token", bos },       { "eos_token", eos },
                { "strftime_now", clock } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (set_var(r, &vars, all[i].name, all[i].v, e)) return e->code;
    if (in->extra_json) {
        if (pn_value_from_json(r, in->extra_json, strlen(in->extra_json), &json, e)) return fo_wrap(e, "template variables");
        if (json->kind != PN_V_DICT) return fo_fail(e, FO_EINVAL, "template variables must be an object");
        size_t n = vars.dict->n, more = json->dict->n;
        struct pn_value *k = fo_region_array(r, n + more, sizeof *k), *v = fo_region_array(r, n + more, sizeof *v);
        if (!k || !v) return pn_region_full(r, e);
        memcpy(k, vars.dict->k, n * sizeof *k);
        memcpy(v, vars.dict->v, n * sizeof *v);
        if (more) {
            memcpy(k + n, json->dict->k, more * sizeof *k);
            memcpy(v + n, json->dict->v, more * sizeof *v);
        }
        if (pn_dict_new(r, k, v, n + more, &vars, e)) return e->code;
    }
    *ret = vars;
    return 0;
}

static int render_in(const struct pn_chat *c, const struct pn_chat_input *in, struct fo_region *r, const struct pn_jinja_limits *limits,
                     struct pn_render *ret, struct fo_err *e) {
    struct pn_value *messages, list, vars;
    if (pn_value_from_json(r, in->messages_json, strlen(in->messages_json), &messages, e)) return fo_wrap(e, "messages");
    list = *messages;
    if (!in->as_is && pn_chat_fit(c, in, r, &list, e)) return e->code;
    if (make_vars(c, in, list, r, &vars, e)) return e->code;
    return pn_jinja_render(c->jinja, r, &vars, limits, in->raised, ret, e);
}

static int render(const struct pn_chat *c, const struct pn_chat_input *in, const struct pn_jinja_limits *limits, struct pn_render *ret,
                  struct fo_err *e) {
    if (pn_chat_state(c, e)) return e->code;
    struct fo_region r;
    fo_region_init(&r, limits->region_bytes);
    int rc = render_in(c, in, &r, limits, ret, e);
    fo_region_done(&r);
    return rc;
}

/* Of the probes at open: a template that works without end must not hold up a load for long, and again and again. */
static const struct pn_jinja_limits probe_limits = { .output_bytes = 1 << 20, .region_bytes = 4 << 20, .steps = 1000 * 1000 };

int pn_chat_render(const struct pn_chat *c, const struct pn_chat_input *in, struct pn_render *ret, struct fo_err *e) {
    if (!c->dialect) return render(c, in, &probe_limits, ret, e); /* which is being found */
    /* What a template may take grows with what it was given: a conversation past the model's cap is to fail there, with the numbers,
     * and not here. Values are copied some times on their way through a template. */
    size_t n = strlen(in->messages_json) + (in->tools_json ? strlen(in->tools_json) : 0);
    const struct pn_jinja_limits limits = { .output_bytes = OUTPUT_BYTES + 2 * n, .region_bytes = REGION_BYTES + GROWTH * n, .steps = STEPS + GROWTH * (uint64_t)n };
    return render(c, in, &limits, ret, e);
}

/* --- probing --------------------------------------------------------------------------------------------------------------------- */

/* Renders before + middle + after untouched, with `tools` or NULL. False when the template cannot. */
static bool try_tools(struct pn_chat *c, const char *before, const char *middle, const char *after, const char *tools, struct pn_render *ret) {
    struct fo_buf b;
    struct fo_err e = { 0 };
    if (c->endless) return false;
    fo_buf_init(&b, 1 << 16);
    fo_buf_puts(&b, before);
    fo_buf_puts(&b, middle);
    fo_buf_puts(&b, after);
    const struct pn_chat_input in = { .messages_json = fo_buf_str(&b), .tools_json = tools, .add_generation_prompt = true, .as_is = true };
    bool ok = !b.failed && render(c, &in, &probe_limits, ret, &e) == 0;
    fo_buf_done(&b);
    c->endless = e.code == FO_ELIMIT;
    return ok;
}

static bool try(struct pn_chat *c, const char *before, const char *middle, const char *after, struct pn_render *ret) {
    return try_tools(c, before, middle, after, c->wants_tools ? "[]" : NULL, ret);
}

static bool same(const struct pn_render *a, const struct pn_render *b) {
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

static bool contains(const struct pn_render *a, const char *what) {
    return memmem(a->text, a->len, what, strlen(what)) != NULL;
}

/* Parts are understood where they give what the same text as a string gives, and the text is in it. */
static bool takes_lists(struct pn_chat *c, const struct probe *p) {
    struct pn_render plain = { 0 }, parts = { 0 };
    bool yes = try(c, p->before, "\"pn-probe\"", p->after, &plain) && contains(&plain, "pn-probe") &&
               try(c, p->before, "[{\"type\":\"text\",\"text\":\"pn-probe\"}]", p->after, &parts) && same(&plain, &parts);
    pn_render_done(&plain);
    pn_render_done(&parts);
    return yes;
}

/* Objects are needed where they render, and not as Python would print a dict, and text gives something else or nothing. */
static bool needs_objects(struct pn_chat *c) {
    static const char before[] =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":";
    static const char after[] = "}}]},{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"f\",\"content\":\"r\"}]";
    struct pn_render object = { 0 }, text = { 0 };
    bool yes = try(c, before, "{\"pn_key\": \"pn-value\"}", after, &object) && contains(&object, "pn-value") &&
               !contains(&object, "'pn_key'") &&
               !(try(c, before, "\"{\\\"pn_key\\\": \\\"pn-value\\\"}\"", after, &text) && same(&object, &text));
    pn_render_done(&object);
    pn_render_done(&text);
    return yes;
}

/* The API allows null as the content of a message that only calls tools. A template that fails on it, or prints Python's "None", gets an
 * empty text instead. */
static bool refuses_nulls(struct pn_chat *c) {
    static const char before[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":";
    static const char after[] = ",\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                                "{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"f\",\"content\":\"r\"}]";
    struct pn_render null = { 0 }, empty = { 0 };
    bool takes = try(c, before, "null", after, &null), can = try(c, before, "\"\"", after, &empty);
    bool yes = can && (!takes || (contains(&null, "None") && !contains(&empty, "None")));
    pn_render_done(&null);
    pn_render_done(&empty);
    return yes;
}

/* A system message has to be put in front of the user's own where the template takes none. */
static bool refuses_system(struct pn_chat *c) {
    struct pn_render with = { 0 }, without = { 0 };
    bool yes = try(c, "[{\"role\":\"user\",\"content\":", "\"pn-probe\"", "}]", &without) &&
               !(try(c, probes[1].before, "\"pn-probe\"", probes[1].after, &with) && contains(&with, "pn-probe"));
    pn_render_done(&with);
    pn_render_done(&without);
    return yes;
}

/* Templates written for functions alone go through `tools` without a look whether there are any. */
static bool fails_without_tools(struct pn_chat *c) {
    static const char before[] = "[{\"role\":\"user\",\"content\":", after[] = "}]";
    struct pn_render none = { 0 }, empty = { 0 };
    bool yes = !try_tools(c, before, "\"q\"", after, NULL, &none) && try_tools(c, before, "\"q\"", after, "[]", &empty);
    pn_render_done(&none);
    pn_render_done(&empty);
    return yes;
}

/* Descriptions and parameters may be left out of a function; some templates go through them unasked. */
static bool fails_without_parts(struct pn_chat *c) {
    static const char before[] = "[{\"role\":\"user\",\"content\":", after[] = "}]";
    struct pn_render bare = { 0 }, whole = { 0 };
    bool yes = !try_tools(c, before, "\"q\"", after, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", &bare) &&
               try_tools(c, before, "\"q\"", after, "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]", &whole);
    pn_render_done(&bare);
    pn_render_done(&whole);
    return yes;
}

/* Llama's templates refuse a message with several calls. */
static bool refuses_two_calls(struct pn_chat *c) {
#define ONE_CALL "{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}"
    static const char before[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[";
    static const char after[] = "]},{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"f\",\"content\":\"r\"}]";
    struct pn_render one = { 0 }, two = { 0 };
    bool yes = !try(c, before, ONE_CALL "," ONE_CALL, after, &two) && try(c, before, ONE_CALL, after, &one);
#undef ONE_CALL
    pn_render_done(&one);
    pn_render_done(&two);
    return yes;
}

/* Mistral's templates take ids of calls of nine letters and digits, and no others. */
static bool needs_short_ids(struct pn_chat *c) {
    static const char before[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":"
                                 "{\"name\":\"f\",\"arguments\":{}},\"id\":";
    static const char after[] = "}]}]";
    struct pn_render long_id = { 0 }, short_id = { 0 };
    bool yes = !try(c, before, "\"call_0123456789abcdef\"", after, &long_id) && try(c, before, "\"call00001\"", after, &short_id);
    pn_render_done(&long_id);
    pn_render_done(&short_id);
    return yes;
}

/* --- open and close --------------------------------------------------------------------------------------------------------------- */

/* Takes over bos and eos (heap); tok as pn_dialect_new has it. */
static int chat_new(const char *text, size_t len, enum pn_chat_source source, const struct fo_tok *tok, char *bos, char *eos, struct pn_chat **ret,
                    struct fo_err *e) {
    struct pn_chat *c = calloc(1, sizeof *c);
    if (!c || !bos || !eos) {
        free(c);
        free(bos);
        free(eos);
        return fo_fail(e, FO_ENOMEM, "no memory for a chat template");
    }
    *c = (struct pn_chat){ .source = source, .bos = bos, .eos = eos };
    if (source != PN_CHAT_NONE && pn_jinja_parse(text, len, &c->jinja, &c->state)) {
        if (c->state.code == FO_ENOMEM) {
            *e = c->state;
            pn_chat_free(c);
            return e->code;
        }
        fo_wrap(&c->state, "chat template");
    }
    if (c->jinja) {
        c->wants_tools = fails_without_tools(c);
        for (size_t i = 0; i < PN_N_PROBES; i++) c->lists[i] = takes_lists(c, &probes[i]);
        c->objects = needs_objects(c);
        c->no_nulls = refuses_nulls(c);
        c->no_system = refuses_system(c);
        c->short_ids = needs_short_ids(c);
        c->whole_tools = fails_without_parts(c);
        c->one_call = refuses_two_calls(c);
    }
    if (pn_dialect_new(c, tok, &c->dialect, e)) {
        pn_chat_free(c);
        return e->code;
    }
    *ret = c;
    return 0;
}

/* The text of a token, or "" when the model has none. */
static char *token_text(const struct fo_tok *tok, int32_t id) {
    struct fo_buf b;
    fo_buf_init(&b, TOKEN_BYTES);
    if (id >= 0) fo_tok_piece(tok, id, true, &b);
    char *text = b.len && !b.failed ? fo_buf_steal(&b) : b.failed ? NULL : calloc(1, 1);
    fo_buf_done(&b);
    return text;
}

int pn_chat_open(const struct fo_gguf *g, const struct fo_tok *tok, const char *override_text, struct pn_chat **ret, struct fo_err *e) {
    static const char start[] = "<|im_start|>", end[] = "<|im_end|>";
    struct fo_str text = { override_text, override_text ? strlen(override_text) : 0 };
    enum pn_chat_source source = PN_CHAT_OVERRIDE;
    struct fo_err unused = { 0 };
    if (!override_text) {
        source = PN_CHAT_FILE;
        if (fo_gguf_get_str(g, "tokenizer.chat_template", &text, &unused) || text.len == 0) {
            bool has = fo_tok_find(tok, start, sizeof start - 1) >= 0 && fo_tok_find(tok, end, sizeof end - 1) >= 0;
            source = has ? PN_CHAT_CHATML : PN_CHAT_NONE;
            text = (struct fo_str){ chatml, sizeof chatml - 1 };
        }
    }
    return chat_new(text.s, text.len, source, tok, token_text(tok, fo_tok_bos(tok)), token_text(tok, fo_tok_eos(tok)), ret, e);
}

int pn_chat_open_text(const char *text, size_t len, const char *bos, const char *eos, struct pn_chat **ret, struct fo_err *e) {
    return chat_new(text, len, PN_CHAT_OVERRIDE, NULL, strdup(bos ? bos : ""), strdup(eos ? eos : ""), ret, e);
}

void pn_chat_free(struct pn_chat *c) {
    if (!c) return;
    pn_dialect_free(c->dialect);
    pn_jinja_free(c->jinja);
    free(c->bos);
    free(c->eos);
    free(c);
}

const struct pn_dialect *pn_chat_dialect(const struct pn_chat *c) {
    return c->dialect;
}

enum pn_chat_source pn_chat_source(const struct pn_chat *c) {
    return c->source;
}

int pn_chat_state(const struct pn_chat *c, struct fo_err *e) {
    if (c->source == PN_CHAT_NONE) return fo_fail(e, FO_EUNSUPPORTED, "the model has no chat template; use /v1/completions");
    if (c->state.code) *e = c->state;
    return c->state.code;
}
