/* The grammar of calls: see tools.h.
 *
 * Each of the four shapes of calls is written once, as models spell it; where models differ in blanks, blanks may stand. Arguments are one of
 * three things: any object; what the schema of the parameters accepts; or, for a strict function without parameters, nothing. A schema is tried
 * alone before it is taken, so that what is at fault in it is told with its place, and a function that is not strict gets any object instead.
 *
 * In tags (PN_CALL_TAGS) arguments are not JSON: the schema has to be a list of properties, which stand in its order, those not required or not.
 * Text is written bare and ends with the first end tag; other values are JSON, in whose strings the tag's first character is escaped, so that
 * whoever looks for the tag does not find it within a value. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/blank.h"
#include "engine/dialect.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/program.h"
#include "engine/grammar/schema.h"
#include "engine/tools_impl.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { WHERE_BYTES = 128, MARK_BYTES = 256, TAG_NAME_BYTES = 128, DOC_TEXT = 0, DOC_ID, DOC_NAME, N_DOCS };

/* Documents 0 to 2: any text, an id as models write them, the name of an argument that nobody declared. */
static const char *const own_documents[N_DOCS] = {
    [DOC_TEXT] = "{\"type\":\"string\"}",
    [DOC_ID] = "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9]{9}$\"}",
    [DOC_NAME] = "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_.-]{1,64}$\"}",
};

enum held { ANY, EMPTY, SCHEMA };

struct maker {
    const struct pn_tools *t;
    const struct pn_dialect *d;
    const struct pn_call_format *f;
    struct fo_buf *out; /* documents, then the tree */
    struct fo_buf tree;
    uint32_t n_documents;
    char mark[MARK_BYTES]; /* the end tag of an argument, without the blanks around it */
    char escaped;          /* its first character */
    uint64_t work;
    struct {
        enum held how;
        uint32_t document;
    } held[PN_MAX_TOOLS];
    char *where; /* [WHERE_BYTES] */
    struct fo_err *e;
};

static const char *text_of(const struct maker *m, enum pn_call_text which) {
    return pn_dialect_call_text(m->d, which);
}

/* Without the blanks at both ends. */
static void trim(const char *s, char ret[MARK_BYTES]) {
    size_t n = strlen(s);
    while (n > 0 && pn_is_blank((unsigned char)*s)) s++, n--;
    while (n > 0 && pn_is_blank((unsigned char)s[n - 1])) n--;
    if (n >= MARK_BYTES) n = MARK_BYTES - 1;
    memcpy(ret, s, n);
    ret[n] = '\0';
}

/* --- schemas ----------------------------------------------------------------------------------- */
/* "/properties/a" below `head` as "head.properties.a". */
static void put_where(struct maker *m, const char *head, const char *pointer) {
    int n = snprintf(m->where, WHERE_BYTES, "%.63s", head);
    snprintf(m->where + n, (size_t)(WHERE_BYTES - n), "%.*s", WHERE_BYTES - 1 - n, pointer);
    for (char *p = m->where + n; n > 0 && *p; p++)
        if (*p == '/') *p = '.';
}

static bool is_tag_name(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n > TAG_NAME_BYTES || pn_is_blank((unsigned char)*s) || pn_is_blank((unsigned char)s[n - 1])) return false;
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || strchr("<>\"\\", *s)) return false;
    return true;
}

static bool is_required(const struct pn_tool *t, const char *name) {
    const json_t *list = json_object_get(t->parameters, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (s && strcmp(s, name) == 0) return true;
    }
    return false;
}

static bool is_annotation(const char *keyword) {
    const struct pn_schema_row *row;
    for (size_t i = 0; (row = pn_schema_row(i)); i++)
        if (strcmp(row->keyword, keyword) == 0) return row->use == PN_SCHEMA_ANNOTATION;
    return true;
}

/* Any text at all, said without a reference. */
static bool is_any_text(const json_t *schema) {
    const char *key;
    json_t *v;
    bool string = false;
    json_object_foreach((json_t *)schema, key, v) {
        string |= strcmp(key, "type") == 0 && json_is_string(v) && strcmp(json_string_value(v), "string") == 0;
        if (strcmp(key, "type") != 0 && !is_annotation(key)) return false;
    }
    return string;
}

/* The keyword for which the parameters are not a plain list of properties; NULL = they are one. */
static const char *not_plain(const struct pn_tool *t) {
    static const char *const plain[] = { "properties", "additionalProperties", "$defs", "definitions", "$id" };
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)t->parameters, key, v) {
        bool ok = is_annotation(key);
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) ok |= strcmp(key, plain[i]) == 0;
        if (strcmp(key, "type") == 0) {
            const json_t *one = json_is_array(v) && json_array_size(v) == 1 ? json_array_get(v, 0) : v;
            ok = json_is_string(one) && strcmp(json_string_value(one), "object") == 0;
        }
        if (strcmp(key, "required") == 0) {
            ok = json_is_array(v);
            for (size_t i = 0; i < json_array_size(v); i++) {
                const char *s = json_string_value(json_array_get(v, i));
                ok &= s && pn_tool_param(t, s, strlen(s));
            }
        }
        if (!ok) return key;
    }
    json_object_foreach(json_object_get(t->parameters, "properties"), key, v) {
        if (!is_tag_name(key)) return "properties";
    }
    return NULL;
}

static enum pn_schema_form form_of(const struct pn_tool *t, const json_t *schema) {
    return pn_tool_is_text(t->parameters, schema) ? PN_SCHEMA_TEXT : PN_SCHEMA_JSON;
}

/* The rule of arguments in tags, for a trial: all properties behind one another. */
static uint32_t try_tags(struct maker *m, const struct pn_tool *tool, struct pn_schema *s, struct pn_ir *ir) {
    const char *key;
    json_t *v;
    size_t n = 0;
    uint32_t *nodes = malloc((json_object_size(json_object_get(tool->parameters, "properties")) + 1) * sizeof *nodes);
    if (!nodes) {
        fo_fail(m->e, FO_ENOMEM, "no memory for the grammar of calls");
        return 0;
    }
    json_object_foreach(json_object_get(tool->parameters, "properties"), key, v) {
        uint32_t part = pn_ir_ref(ir, pn_schema_part(s, key, form_of(tool, v), m->mark, text_of(m, PN_CALL_ARG_END)));
        nodes[n++] = is_required(tool, key) ? part : pn_ir_repeat(ir, part, 0, 1);
    }
    uint32_t all = pn_ir_seq(ir, nodes, n);
    free(nodes);
    return all;
}

/* Whether a schema can be held: it is written as it will be, alone. tool NULL: a value of it, not arguments. */
static int try_schema(struct maker *m, const struct pn_tool *tool, const char *json, size_t len, char pointer[PN_SCHEMA_POINTER_BYTES]) {
    struct pn_ir *ir = NULL;
    struct pn_schema *s;
    struct pn_program *p = NULL;
    bool tags = tool && m->f->shape == PN_CALL_TAGS;
    pointer[0] = '\0';
    if (pn_ir_new(&ir, m->e)) return (int)m->e->code;
    int rc = pn_schema_open(json, len, tags ? m->escaped : '\0', ir, &m->work, &s, m->e);
    if (rc == 0) {
        m->e->code = FO_OK;
        uint32_t root = pn_ir_rule(ir, "", 0, 0, 0);
        uint32_t node = tags ? try_tags(m, tool, s, ir) : pn_ir_ref(ir, pn_schema_part(s, NULL, tool ? PN_SCHEMA_OBJECT : PN_SCHEMA_JSON, "", ""));
        pn_ir_define(ir, root, node);
        pn_ir_root(ir, root);
        rc = pn_schema_close(s, pointer, m->e);
    }
    if (rc == 0 && (rc = pn_program_new(ir, &p, m->e)) == FO_EINVAL) fo_fail(m->e, FO_EINVAL, "JSON Schema: nothing is of it");
    pn_program_free(p);
    pn_ir_free(ir);
    return rc;
}

/* How the arguments of function i are held. */
static int hold(struct maker *m, int i) {
    const struct pn_tool *t = &m->t->list[i];
    char head[64], pointer[PN_SCHEMA_POINTER_BYTES];
    m->held[i].how = ANY;
    if (!t->strict && m->t->choice == PN_TOOL_AUTO) return 0;
    if (json_object_size(t->parameters) == 0) { /* also NULL */
        if (t->strict) m->held[i].how = EMPTY;
        return 0;
    }
    snprintf(head, sizeof head, "%d.function.parameters", i);
    const char *key = m->f->shape == PN_CALL_TAGS ? not_plain(t) : NULL;
    if (key && !t->strict) return 0;
    if (key) {
        snprintf(pointer, sizeof pointer, "/%s", key);
        put_where(m, head, pointer);
        return (int)fo_fail(m->e, FO_EUNSUPPORTED, "JSON Schema: '%.64s' is not supported here: this model writes arguments in tags, a list of which is what a strict "
                            "function's parameters have to be", key);
    }
    char *json = json_dumps(t->parameters, JSON_COMPACT);
    if (!json) return (int)fo_fail(m->e, FO_ENOMEM, "no memory for the grammar of calls");
    size_t len = strlen(json);
    int rc = try_schema(m, t, json, len, pointer);
    if (rc == 0) {
        m->held[i].how = SCHEMA;
        m->held[i].document = m->n_documents++;
        pn_piece_document(m->out, json, len, m->f->shape == PN_CALL_TAGS ? m->escaped : '\0');
    } else if (rc != FO_ENOMEM && !t->strict) {
        rc = 0;
    } else {
        put_where(m, head, pointer);
    }
    free(json);
    return rc;
}

/* --- calls ------------------------------------------------------------------------------------- */
static void literal(struct maker *m, const char *s) {
    pn_piece_literal(&m->tree, s, strlen(s));
}

/* A node for each word, and for each `_` one that may be blank; returns how many. */
static uint32_t spell(struct maker *m, const char *s, bool write) {
    uint32_t n = 0;
    while (*s) {
        size_t len = *s == '_' ? 1 : strcspn(s, "_");
        if (write && *s == '_') pn_piece_blank(&m->tree);
        if (write && *s != '_') pn_piece_literal(&m->tree, s, len);
        s += len;
        n++;
    }
    return n;
}

static void text_piece(struct maker *m, uint32_t document, const char *property, const char *mark, const char *end) {
    pn_piece_schema(&m->tree, &(struct pn_piece_schema){ .document = document, .form = PN_SCHEMA_TEXT, .property = property, .mark = mark, .end = end });
}

/* One node: an argument whose name and value are written. */
static void any_argument(struct maker *m, const struct pn_tool *t) {
    const char *key, *end = text_of(m, PN_CALL_ARG_END);
    const json_t *properties = json_object_get(t->parameters, "properties");
    json_t *v;
    uint32_t n = 0;
    json_object_foreach((json_t *)properties, key, v) {
        n += is_tag_name(key);
    }
    pn_piece_seq(&m->tree, 4);
    literal(m, text_of(m, PN_CALL_ARG_BEGIN));
    if (n > 0) {
        pn_piece_alt(&m->tree, n);
        json_object_foreach((json_t *)properties, key, v) {
            if (is_tag_name(key)) literal(m, key);
        }
    } else {
        text_piece(m, DOC_NAME, NULL, NULL, NULL);
    }
    literal(m, text_of(m, PN_CALL_ARG_MIDDLE));
    text_piece(m, DOC_TEXT, NULL, m->mark, end);
}

static void declared_argument(struct maker *m, int i, const char *name, const json_t *schema) {
    const struct pn_tool *t = &m->t->list[i];
    bool text = form_of(t, schema) == PN_SCHEMA_TEXT;
    if (!is_required(t, name)) pn_piece_repeat(&m->tree, 0, 1);
    pn_piece_seq(&m->tree, text ? 4 : 5);
    literal(m, text_of(m, PN_CALL_ARG_BEGIN));
    literal(m, name);
    literal(m, text_of(m, PN_CALL_ARG_MIDDLE));
    if (text) {
        bool any = is_any_text(schema); /* one rule for all */
        text_piece(m, any ? DOC_TEXT : m->held[i].document, any ? NULL : name, m->mark, text_of(m, PN_CALL_ARG_END));
    } else {
        pn_piece_schema(&m->tree, &(struct pn_piece_schema){ .document = m->held[i].document, .form = PN_SCHEMA_JSON, .property = name });
        literal(m, text_of(m, PN_CALL_ARG_END));
    }
}

/* One node: all arguments of a call of function i. */
static void arguments(struct maker *m, int i) {
    const struct pn_tool *t = &m->t->list[i];
    bool tags = m->f->shape == PN_CALL_TAGS;
    const char *key;
    json_t *v;
    switch (m->held[i].how) {
    case ANY:
        if (tags) {
            pn_piece_repeat(&m->tree, 0, PN_IR_INFINITE);
            any_argument(m, t);
        } else {
            pn_piece_object(&m->tree);
        }
        return;
    case EMPTY:
        literal(m, tags ? "" : "{}");
        return;
    case SCHEMA:
        if (!tags) {
            /* Where a call may come and need not, it has begun by the time that it is held. */
            pn_piece_schema(&m->tree, &(struct pn_piece_schema){ .document = m->held[i].document,
                                                                  .form = m->t->choice == PN_TOOL_AUTO ? PN_SCHEMA_BEGUN : PN_SCHEMA_OBJECT });
            return;
        }
        pn_piece_seq(&m->tree, (uint32_t)json_object_size(json_object_get(t->parameters, "properties")));
        json_object_foreach(json_object_get(t->parameters, "properties"), key, v) {
            declared_argument(m, i, key, v);
        }
        return;
    }
}

static bool may_call(const struct pn_tools *t, int i) {
    return t->choice != PN_TOOL_NAMED || i == t->named;
}

/* One node: the name of a function, what stands behind it, and its arguments. `behind`: as spell has it, or NULL for the row's own texts. */
static void named_call(struct maker *m, const char *behind) {
    uint32_t n = 0;
    for (int i = 0; i < m->t->n; i++) n += may_call(m->t, i);
    pn_piece_alt(&m->tree, n);
    for (int i = 0; i < m->t->n; i++) {
        if (!may_call(m->t, i)) continue;
        bool id = !behind && *text_of(m, PN_CALL_ID);
        pn_piece_seq(&m->tree, 2 + (behind ? spell(m, behind, false) : 1u + id));
        literal(m, m->t->list[i].name);
        if (behind) spell(m, behind, true);
        if (id) {
            pn_piece_repeat(&m->tree, 0, 1);
            pn_piece_seq(&m->tree, 2);
            literal(m, text_of(m, PN_CALL_ID));
            text_piece(m, DOC_ID, NULL, NULL, NULL);
        }
        if (!behind) literal(m, text_of(m, PN_CALL_MIDDLE));
        arguments(m, i);
    }
}

/* One node: {"name": "f", "arguments": {...}}. */
static void json_call(struct maker *m, bool with_id) {
    static const char before[] = "{_\"name\"_:_\"", id[] = "_,_\"id\"_:_\"";
    char behind[64];
    snprintf(behind, sizeof behind, "\"_,_\"%.40s\"_:_", m->f->arguments);
    pn_piece_seq(&m->tree, spell(m, before, false) + 1 + with_id + 2);
    spell(m, before, true);
    named_call(m, behind);
    if (with_id) {
        pn_piece_repeat(&m->tree, 0, 1);
        pn_piece_seq(&m->tree, spell(m, id, false) + 2);
        spell(m, id, true);
        text_piece(m, DOC_ID, NULL, NULL, NULL);
        literal(m, "\"");
    }
    spell(m, "_}", true);
}

/* One node: a call with its marks; of a list, without the list's. */
static void call(struct maker *m) {
    switch (m->f->shape) {
    case PN_CALL_LIST:
        json_call(m, true);
        return;
    case PN_CALL_OBJECT:
        pn_piece_seq(&m->tree, 3);
        literal(m, text_of(m, PN_CALL_BEGIN));
        json_call(m, false);
        literal(m, text_of(m, PN_CALL_END));
        return;
    case PN_CALL_NAMED:
    case PN_CALL_TAGS:
        pn_piece_seq(&m->tree, 3);
        literal(m, text_of(m, PN_CALL_BEGIN));
        named_call(m, NULL);
        literal(m, text_of(m, PN_CALL_END));
        return;
    }
}

/* One node: all calls of an answer. */
static void calls(struct maker *m) {
    bool list = m->f->shape == PN_CALL_LIST;
    pn_piece_seq(&m->tree, list ? 7 + 2 : 3);
    literal(m, text_of(m, PN_CALL_OPEN));
    if (list) {
        literal(m, text_of(m, PN_CALL_BEGIN));
        literal(m, "[");
        pn_piece_blank(&m->tree);
    }
    if (!m->t->one_call) pn_piece_list(&m->tree);
    call(m);
    if (!m->t->one_call && list) {
        pn_piece_seq(&m->tree, 3);
        spell(m, "_,_", true);
    } else if (!m->t->one_call) {
        literal(m, text_of(m, PN_CALL_BETWEEN));
    }
    if (list) {
        pn_piece_blank(&m->tree);
        literal(m, "]");
        literal(m, text_of(m, PN_CALL_END));
    }
    literal(m, text_of(m, PN_CALL_CLOSE));
}

/* --- the whole --------------------------------------------------------------------------------- */
static int make(struct maker *m, const char *content_schema, size_t n_content) {
    uint32_t content = 0;
    for (int i = 0; i < N_DOCS; i++) pn_piece_document(m->out, own_documents[i], strlen(own_documents[i]), '\0');
    m->n_documents = N_DOCS;
    for (int i = 0; i < m->t->n; i++)
        if (may_call(m->t, i) && hold(m, i)) return (int)m->e->code;
    if (content_schema) {
        char pointer[PN_SCHEMA_POINTER_BYTES];
        int rc = try_schema(m, NULL, content_schema, n_content, pointer);
        if (rc != 0) put_where(m, "", pointer);
        if (rc != 0) return rc;
        content = m->n_documents++;
        pn_piece_document(m->out, content_schema, n_content, '\0');
        pn_piece_alt(&m->tree, 2);
        pn_piece_schema(&m->tree, &(struct pn_piece_schema){ .document = content, .form = PN_SCHEMA_JSON });
    }
    calls(m);
    if (m->tree.failed) return (int)fo_fail(m->e, FO_ENOMEM, "no memory for the grammar of calls");
    fo_buf_append(m->out, m->tree.data, m->tree.len);
    if (m->out->failed) return (int)fo_fail(m->e, FO_ENOMEM, "no memory for the grammar of calls");
    return 0;
}

int pn_tools_grammar(const struct pn_tools *t, const struct pn_dialect *d, const char *content_schema, size_t n_content, struct fo_buf *ret,
                     char where[WHERE_BYTES], struct fo_err *e) {
    struct maker *m = calloc(1, sizeof *m);
    where[0] = '\0';
    if (!m) return (int)fo_fail(e, FO_ENOMEM, "no memory for the grammar of calls");
    if (!pn_dialect_calls(d)) {
        free(m);
        return (int)fo_fail(e, FO_EUNSUPPORTED, "this model's template writes calls of functions in a form that is not known here: they cannot be held to anything");
    }
    m->t = t;
    m->d = d;
    m->f = pn_dialect_calls(d);
    m->out = ret;
    m->where = where;
    m->e = e;
    fo_buf_init(&m->tree, ret->cap_bytes);
    trim(text_of(m, PN_CALL_ARG_END), m->mark);
    m->escaped = (unsigned char)m->mark[0] == PN_MARK ? '\0' : m->mark[0]; /* no JSON has a mark */
    size_t before = ret->len;
    int rc = make(m, content_schema, n_content);
    if (rc != 0 && ret->len > before) ret->data[ret->len = before] = '\0';
    fo_buf_done(&m->tree);
    free(m);
    return rc;
}

void pn_tools_head(const struct pn_tools *t, const struct pn_dialect *d, int i, struct fo_buf *ret) {
    const struct pn_call_format *f = pn_dialect_calls(d);
    if (!f) return;
    bool list = f->shape == PN_CALL_LIST, json = list || f->shape == PN_CALL_OBJECT;
    fo_buf_puts(ret, pn_dialect_call_text(d, PN_CALL_OPEN));
    fo_buf_puts(ret, pn_dialect_call_text(d, PN_CALL_BEGIN));
    if (list) fo_buf_putc(ret, '[');
    if (json)
        fo_buf_printf(ret, "{\"name\": \"%s\", \"%s\": ", t->list[i].name, f->arguments);
    else
        fo_buf_printf(ret, "%s%s", t->list[i].name, pn_dialect_call_text(d, PN_CALL_MIDDLE));
}
