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
#include "foundry/base/err.h"

enum { MAX_CHOICES = 4096 };

/* The answer is held to this; text is heap and becomes ours. */
static bool set(struct pd_params *p, const char *field, enum pn_grammar_kind kind, char *text, size_t len, struct pd_error *x) {
    if (!text || p->grammar_field) {
        free(text);
        if (p->grammar_field) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' and '%s' are both given; an answer is held to one.", p->grammar_field, field);
        pd_error_set(x, PD_ERR_MEMORY, NULL, "There is no memory for this request.");
        x->retry_after_s = 1;
        return false;
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

bool pd_grammar_format(struct pd_params *p, const char *field, json_t *v, struct pd_error *x) {
    char path[96];
    snprintf(path, sizeof path, "%.60s.type", field);
    if (!json_is_object(v)) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' must be an object.", field);
    const char *type = pd_json_word(json_object_get(v, "type"));
    if (!type) return pd_error_set(x, PD_ERR_INVALID, path, "'%s' must be a text.", path);
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_object") == 0) return set(p, field, PN_GRAMMAR_JSON_OBJECT, malloc(1), 0, x);
    if (strcmp(type, "json_schema") == 0)
        return pd_error_set(x, PD_ERR_UNSUPPORTED, path, "'%s': '%s' is not honoured by this version; 'text' and 'json_object' are.", path, type);
    return pd_error_set(x, PD_ERR_VALUE, path, "'%s' must be text, json_object or json_schema.", path);
}

bool pd_grammar_compile(struct pn_served *s, struct pd_params *p, struct pd_error *x) {
    struct fo_err e;
    if (!p->grammar_field || pn_served_grammar(s, p->grammar_kind, p->grammar_text, p->n_grammar_text, &p->grammar, &e) == FO_OK) return true;
    pd_error_from(x, &e, false);
    if (pd_error_row(x->id)->status == 400) pd_error_set(x, x->id, p->grammar_field, "'%s': %s", p->grammar_field, e.msg);
    return false;
}
