/* The functions that a request offers: see tools.h. The list is read once and checked; its JSON is kept, because the schemas of parameters are
 * written out again when a grammar is made of them. */
#include "engine/tools_impl.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"

enum { WHERE_BYTES = 128, MAX_FOLLOWED = 16 /* references and alternatives, one within another */ };

static int fail_at(char where[WHERE_BYTES], struct fo_err *e, enum fo_code code, const char *path, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static int fail_at(char where[WHERE_BYTES], struct fo_err *e, enum fo_code code, const char *path, const char *fmt, ...) {
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    snprintf(where, WHERE_BYTES, "%s", path);
    return (int)fo_fail(e, code, "%s", why);
}

static bool is_name(const char *s, size_t len) {
    if (len == 0 || len > PN_TOOL_NAME_BYTES) return false;
    for (size_t i = 0; i < len; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '_' || s[i] == '-')) return false;
    return true;
}

static bool is_null(const json_t *v) {
    return !v || json_is_null(v);
}

/* One entry of the list, with those before it. */
static int read_tool(struct pn_tools *t, const json_t *entry, char where[WHERE_BYTES], struct fo_err *e) {
    char path[WHERE_BYTES];
    int i = t->n;
    snprintf(path, sizeof path, "%d", i);
    if (!json_is_object(entry)) return fail_at(where, e, FO_EINVAL, path, "a tool is an object");
    snprintf(path, sizeof path, "%d.type", i);
    const json_t *type = json_object_get(entry, "type");
    if (!json_is_string(type)) return fail_at(where, e, FO_EINVAL, path, "the type of a tool is a string: \"function\"");
    if (strcmp(json_string_value(type), "function") != 0)
        return fail_at(where, e, FO_EUNSUPPORTED, path, "tools of type \"%.40s\" are not served here, functions are", json_string_value(type));
    snprintf(path, sizeof path, "%d.function", i);
    const json_t *f = json_object_get(entry, "function");
    if (!json_is_object(f)) return fail_at(where, e, FO_EINVAL, path, "an object that describes the function is needed here");
    snprintf(path, sizeof path, "%d.function.name", i);
    const json_t *name = json_object_get(f, "name");
    if (!json_is_string(name)) return fail_at(where, e, FO_EINVAL, path, "the name of a function is a string");
    if (!is_name(json_string_value(name), json_string_length(name)))
        return fail_at(where, e, FO_EINVAL, path, "the name of a function is 1 to %d of the letters a to z and A to Z, digits, '_' and '-'", PN_TOOL_NAME_BYTES);
    for (int k = 0; k < i; k++)
        if (strcmp(t->list[k].name, json_string_value(name)) == 0)
            return fail_at(where, e, FO_EINVAL, path, "there are two functions of the name %s", json_string_value(name));
    snprintf(path, sizeof path, "%d.function.description", i);
    const json_t *description = json_object_get(f, "description");
    if (!is_null(description) && !json_is_string(description)) return fail_at(where, e, FO_EINVAL, path, "a description is a string");
    snprintf(path, sizeof path, "%d.function.strict", i);
    const json_t *strict = json_object_get(f, "strict");
    if (!is_null(strict) && !json_is_boolean(strict)) return fail_at(where, e, FO_EINVAL, path, "strict is true or false");
    snprintf(path, sizeof path, "%d.function.parameters", i);
    const json_t *parameters = json_object_get(f, "parameters");
    if (!is_null(parameters) && !json_is_object(parameters)) return fail_at(where, e, FO_EINVAL, path, "parameters are a JSON Schema, an object");
    t->list[t->n++] = (struct pn_tool){ .name = json_string_value(name), .parameters = is_null(parameters) ? NULL : parameters, .strict = json_is_true(strict) };
    return 0;
}

static int choose(struct pn_tools *t, const struct pn_tools_opts *o, struct fo_err *e) {
    t->choice = o->choice;
    t->one_call = o->one_call || o->choice == PN_TOOL_NAMED;
    if (o->choice != PN_TOOL_AUTO && t->n == 0) return (int)fo_fail(e, FO_EINVAL, "a call is demanded, and no function is offered");
    if (o->choice != PN_TOOL_NAMED) return 0;
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->list[i].name, o->named) == 0) {
            t->named = i;
            return 0;
        }
    return (int)fo_fail(e, FO_EINVAL, "a call of the function %.64s is demanded, which is not among those offered", o->named);
}

int pn_tools_new(const struct pn_tools_opts *o, struct pn_tools **ret, char where[WHERE_BYTES], struct fo_err *e) {
    json_error_t at;
    struct pn_tools *t = NULL;
    where[0] = '\0';
    json_t *root = json_loadb(o->json, o->len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);
    if (!root && json_error_code(&at) == json_error_out_of_memory) return (int)fo_fail(e, FO_ENOMEM, "no memory for the functions of a request");
    if (!root) return (int)fo_fail(e, FO_EINVAL, "the list of tools is not JSON: %s", at.text);
    int rc = 0;
    size_t n = json_array_size(root);
    if (!json_is_array(root))
        rc = (int)fo_fail(e, FO_EINVAL, "tools are a list");
    else if (n > PN_MAX_TOOLS)
        rc = (int)fo_fail_need(e, FO_EINVAL, n, PN_MAX_TOOLS, "%zu tools are offered, and at most %d are taken", n, PN_MAX_TOOLS);
    else if (!(t = calloc(1, sizeof *t + n * sizeof *t->list)))
        rc = (int)fo_fail(e, FO_ENOMEM, "no memory for the functions of a request");
    for (size_t i = 0; i < n && rc == 0; i++) rc = read_tool(t, json_array_get(root, i), where, e);
    if (rc == 0) rc = choose(t, o, e);
    if (rc != 0) {
        free(t);
        json_decref(root);
        return rc;
    }
    t->root = root;
    atomic_init(&t->refs, 1);
    *ret = t;
    return 0;
}

struct pn_tools *pn_tools_ref(struct pn_tools *t) {
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void pn_tools_put(struct pn_tools *t) {
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1) return;
    json_decref(t->root);
    free(t);
}

int pn_tools_n(const struct pn_tools *t) {
    return t->n;
}

const char *pn_tools_name(const struct pn_tools *t, int i) {
    return t->list[i].name;
}

int pn_tools_find(const struct pn_tools *t, const char *name, size_t len) {
    for (int i = 0; i < t->n; i++)
        if (strlen(t->list[i].name) == len && memcmp(t->list[i].name, name, len) == 0) return t->choice == PN_TOOL_NAMED && i != t->named ? -1 : i;
    return -1;
}

bool pn_tools_is_strict(const struct pn_tools *t, int i) {
    return t->list[i].strict;
}

bool pn_tools_one_call(const struct pn_tools *t) {
    return t->one_call;
}

enum pn_tool_choice pn_tools_choice(const struct pn_tools *t) {
    return t->choice;
}

/* --- what a parameter is ----------------------------------------------------------------------- */
const json_t *pn_tool_follow(const json_t *root, const char *ref) {
    const json_t *v = root;
    if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/')) return NULL;
    for (const char *p = ref + 1; *p == '/' && v;) {
        char part[256];
        size_t n = 0;
        for (p++; *p && *p != '/'; p++) {
            bool tilde = p[0] == '~' && (p[1] == '0' || p[1] == '1');
            if (n + 1 == sizeof part || *p == '%') return NULL;
            part[n++] = !tilde ? *p : p[1] == '0' ? '~' : '/';
            p += tilde;
        }
        part[n] = '\0';
        v = json_object_get(v, part); /* NULL where v is no object */
    }
    return v;
}

static bool is_text(const json_t *root, const json_t *s, int *left) {
    if (!json_is_object(s) || (*left)-- <= 0) return false;
    const json_t *v;
    if ((v = json_object_get(s, "const"))) return json_is_string(v);
    if (json_is_array(v = json_object_get(s, "enum"))) {
        for (size_t i = 0; i < json_array_size(v); i++)
            if (!json_is_string(json_array_get(v, i))) return false;
        return json_array_size(v) > 0;
    }
    v = json_object_get(s, "type");
    if (json_is_array(v)) v = json_array_size(v) == 1 ? json_array_get(v, 0) : NULL;
    if (json_is_string(v)) return strcmp(json_string_value(v), "string") == 0;
    if (json_is_string(v = json_object_get(s, "$ref"))) return is_text(root, pn_tool_follow(root, json_string_value(v)), left);
    v = json_object_get(s, "allOf");
    for (size_t i = 0; i < json_array_size(v); i++)
        if (is_text(root, json_array_get(v, i), left)) return true;
    static const char *const any[] = { "anyOf", "oneOf" };
    for (int k = 0; k < 2; k++) {
        v = json_object_get(s, any[k]);
        size_t n = json_array_size(v), i = 0;
        while (i < n && is_text(root, json_array_get(v, i), left)) i++;
        if (n > 0 && i == n) return true;
    }
    return false;
}

bool pn_tool_is_text(const json_t *root, const json_t *schema) {
    int left = MAX_FOLLOWED;
    return is_text(root, schema, &left);
}

const json_t *pn_tool_param(const struct pn_tool *t, const char *name, size_t len) {
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(t->parameters, "properties"), key, v) {
        if (strlen(key) == len && memcmp(key, name, len) == 0) return v;
    }
    return NULL;
}

bool pn_tools_param_is_text(const struct pn_tools *t, int i, const char *name, size_t len) {
    return pn_tool_is_text(t->list[i].parameters, pn_tool_param(&t->list[i], name, len));
}
