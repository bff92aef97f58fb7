/* Fields that hold an answer to a grammar: see grammar.h. They are parsed here as far as JSON goes; what their text means is the engine's to
 * say, and its message, with line and column, goes to the client as it is. */
#include "daemon/grammar.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/oai.h"
#include "daemon/params.h"
#include "engine/engine.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/schema.h"
#include "foundry/base/err.h"

enum { MAX_CHOICES = 4096 };

/* The answer is held to this; text is heap and becomes ours. */
static bool set(struct pd_params *p, const char *field, enum pn_grammar_kind kind, char *text, size_t len, struct pd_error *x) {
    if (!text || p->grammar_field) {
        free(text);
        if (p->grammar_field) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' and '%s' are both given; an answer is held to one.", p->grammar_field, field);
        return pd_error_memory(x);
    }
    p->grammar_field = field;
    p->grammar_kind = kind;
    p->grammar_text = text;
    p->n_grammar_text = len;
    return true;
}

static bool text_field(struct pd_params *p, const char *field, enum pn_grammar_kind kind, const json_t *v, struct pd_error *x) {
    size_t len = json_string_length(v);
    if (!json_is_string(v)) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' must be a text.", field);
    if (len == 0) return true;
    char *text = malloc(len);
    if (text) memcpy(text, json_string_value(v), len);
    return set(p, field, kind, text, len, x);
}

bool pd_grammar_gbnf(struct pd_params *p, const char *field, json_t *v, struct pd_error *x) {
    return text_field(p, field, PN_GRAMMAR_GBNF, v, x);
}

bool pd_grammar_regex(struct pd_params *p, const char *field, json_t *v, struct pd_error *x) {
    return text_field(p, field, PN_GRAMMAR_REGEX, v, x);
}

bool pd_grammar_choice(struct pd_params *p, const char *field, json_t *v, struct pd_error *x) {
    size_t n = json_array_size(v), bytes = 0, at = 0;
    if (!json_is_array(v)) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' must be a list of texts.", field);
    if (n > MAX_CHOICES) return pd_error_set(x, PD_ERR_VALUE, field, "'%s' has more than %d texts.", field, MAX_CHOICES);
    for (size_t i = 0; i < n; i++) {
        const json_t *choice = json_array_get(v, i);
        char where[96];
        snprintf(where, sizeof where, "%.60s.%zu", field, i);
        if (!json_is_string(choice)) return pd_error_set(x, PD_ERR_INVALID, where, "'%s' must be a text.", where);
        bytes += sizeof(uint32_t) + json_string_length(choice);
    }
    if (n == 0) return true;
    char *text = malloc(bytes);
    for (size_t i = 0; i < n && text; i++) { /* as PN_GRAMMAR_CHOICE has them */
        const json_t *choice = json_array_get(v, i);
        uint32_t len = (uint32_t)json_string_length(choice);
        memcpy(text + at, &len, sizeof len);
        memcpy(text + at + sizeof len, json_string_value(choice), len);
        at += sizeof len + len;
    }
    return set(p, field, PN_GRAMMAR_CHOICE, text, bytes, x);
}

bool pd_grammar_schema(struct pd_params *p, const char *field, json_t *v, struct pd_error *x) {
    if (json_is_string(v)) return text_field(p, field, PN_GRAMMAR_JSON_SCHEMA, v, x);
    if (!json_is_object(v) && !json_is_boolean(v)) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' must be a JSON Schema: an object.", field);
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    return set(p, field, PN_GRAMMAR_JSON_SCHEMA, text, text ? strlen(text) : 0, x);
}

/* The object with name, schema, strict and description. strict changes nothing: a schema is always held to. */
static bool named_schema(struct pd_params *p, const char *path, const char *schema_path, json_t *v, struct pd_error *x) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    char at[96];
    if (!json_is_object(v)) return pd_error_set(x, PD_ERR_INVALID, path, "'%s' must be an object with a name and a schema.", path);
    const json_t *name = json_object_get(v, "name"), *strict = json_object_get(v, "strict"), *about = json_object_get(v, "description");
    size_t len = json_string_length(name);
    snprintf(at, sizeof at, "%.60s.name", path);
    if (!json_is_string(name)) return pd_error_set(x, PD_ERR_INVALID, at, "'%s' must be a text.", at);
    if (len == 0 || len > 64 || strspn(json_string_value(name), allowed) != len)
        return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be 1 to 64 letters, digits, '_' and '-'.", at);
    snprintf(at, sizeof at, "%.60s.strict", path);
    if (strict && !json_is_boolean(strict) && !json_is_null(strict)) return pd_error_set(x, PD_ERR_INVALID, at, "'%s' must be true or false.", at);
    snprintf(at, sizeof at, "%.60s.description", path);
    if (about && !json_is_string(about) && !json_is_null(about)) return pd_error_set(x, PD_ERR_INVALID, at, "'%s' must be a text.", at);
    json_t *schema = json_object_get(v, "schema");
    if (!json_is_object(schema)) return pd_error_set(x, PD_ERR_INVALID, schema_path, "'%s' must be a JSON Schema: an object.", schema_path);
    return pd_grammar_schema(p, schema_path, schema, x);
}

bool pd_grammar_format(struct pd_params *p, const char *field, json_t *v, struct pd_error *x) {
    char path[96];
    snprintf(path, sizeof path, "%.60s.type", field);
    if (!json_is_object(v)) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' must be an object.", field);
    const char *type = pd_json_word(json_object_get(v, "type"));
    if (!type) return pd_error_set(x, PD_ERR_INVALID, path, "'%s' must be a text.", path);
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) return set(p, field, PN_GRAMMAR_JSON_OBJECT, malloc(1), 0, x);
    if (strcmp(type, "json_schema") == 0) /* a Response has the schema in the format itself */
        return strcmp(field, "text.format") == 0 ? named_schema(p, field, "text.format.schema", v, x)
                                                 : named_schema(p, "response_format.json_schema", "response_format.json_schema.schema", json_object_get(v, "json_schema"), x);
    return pd_error_set(x, PD_ERR_VALUE, path, "'%s' must be text, json_object or json_schema.", path);
}

/* What is wrong with a schema, and where: it is compiled once more for the place, which only errors pay for. */
static bool schema_error(const struct pd_params *p, const struct fo_err *why, struct pd_error *x) {
    char pointer[PN_SCHEMA_POINTER_BYTES] = "", at[PN_SCHEMA_POINTER_BYTES + 64];
    struct pn_ir *ir = NULL;
    struct fo_err e = *why;
    bool fits = pn_ir_new(&ir, &e) == FO_OK && pn_schema_compile(p->grammar_text, p->n_grammar_text, ir, pointer, &e) == FO_OK;
    pn_ir_free(ir);
    snprintf(at, sizeof at, "%.60s%s", p->grammar_field, pointer);
    for (char *c = at; *c; c++)
        if (*c == '/') *c = '.';
    if (fits && why->code == FO_EINVAL) return pd_error_set(x, PD_ERR_SCHEMA, at, "'%s': nothing is accepted by this schema.", p->grammar_field);
    return pd_error_set(x, PD_ERR_SCHEMA, at, "'%s': %s", p->grammar_field, fits ? why->msg : e.msg);
}

bool pd_grammar_compile(struct pn_served *s, struct pd_params *p, struct pd_error *x) {
    struct fo_err e;
    if (!p->grammar_field || pn_served_grammar(s, p->grammar_kind, p->grammar_text, p->n_grammar_text, &p->grammar, &e) == FO_OK) return true;
    bool fault = e.code == FO_EINVAL || e.code == FO_EFORMAT || e.code == FO_EUNSUPPORTED || e.code == FO_ELIMIT;
    if (p->grammar_kind == PN_GRAMMAR_JSON_SCHEMA && fault) return schema_error(p, &e, x);
    pd_error_from(x, &e, false);
    if (pd_error_row(x->id)->status == 400) pd_error_set(x, x->id, p->grammar_field, "'%s': %s", p->grammar_field, e.msg);
    return false;
}
