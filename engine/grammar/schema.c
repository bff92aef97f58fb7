/* JSON Schema as a grammar: the driver. The story:
 *
 * A schema says what an instance may look like; a grammar says which texts there are. In between stand shapes (schema_impl.h): a shape is
 * one way for a value of one type to look, everything in it at once, and a set of shapes is any of them. Each keyword is a set, or its
 * opposite (schema_types.c, schema_expand.c), so that allOf is "and", anyOf "or", and not, oneOf and if become both by taking the opposite
 * where it is a set of shapes again. Strings and numbers are automata inside (schema_dfa.c), because those can be joined and turned round.
 *
 * What stands in properties and items is not looked into: a rule is made for it, named by the schemas that all hold there, and written when
 * its turn comes (schema_emit.c), which is when the document is closed. Schemas that recur are the same rule again; recursion ends by itself, and nothing recurses with an
 * instance's depth.
 *
 * All of this is bounded: the schema's size and depth, the memory, and the work, which is counted. */
#include "engine/grammar/schema_impl.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- failing, memory, work --------------------------------------------------------------------- */
static uint32_t place_of(const struct pn_sc *c, const json_t *v) {
    uint32_t lo = 0, hi = c->n_places;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)c->places[mid].value < (uintptr_t)v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < c->n_places && c->places[lo].value == v ? lo : UINT32_MAX;
}

/* Writes the pointer from its end; what does not fit loses its front. */
static void write_pointer(const struct pn_sc *c, const json_t *s, const char *key, char out[PN_SCHEMA_POINTER_BYTES]) {
    char text[PN_SCHEMA_POINTER_BYTES], number[16];
    size_t at = sizeof text - 1;
    uint32_t i = s ? place_of(c, s) : UINT32_MAX;
    text[at] = '\0';
    for (const char *part = key;;) {
        for (size_t n = part ? strlen(part) : 0; n > 0 && at > 2; n--) {
            char ch = part[n - 1];
            if (ch == '~' || ch == '/') {
                text[--at] = ch == '~' ? '0' : '1';
                ch = '~';
            }
            text[--at] = ch;
        }
        if (part && at > 0) text[--at] = '/';
        if (i == UINT32_MAX || !c->places[i].parent) break;
        snprintf(number, sizeof number, "%u", c->places[i].index);
        part = c->places[i].key ? c->places[i].key : number;
        i = place_of(c, c->places[i].parent);
    }
    while (((unsigned char)text[at] & 0xC0) == 0x80) at++;
    memcpy(out, text + at, sizeof text - at);
    fo_text_defuse(out);
}

void pn_sc_fail(struct pn_sc *c, enum fo_code code, const json_t *s, const char *key, const char *fmt, ...) {
    char why[256], at[PN_SCHEMA_POINTER_BYTES];
    va_list ap;
    if (c->err.code) return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    write_pointer(c, s, key, at);
    memcpy(c->pointer, at, sizeof at);
    if (!key)
        fo_fail(&c->err, code, "JSON Schema: at '%s': %s", at, why);
    else if (code == FO_EUNSUPPORTED)
        fo_fail(&c->err, code, "JSON Schema: '%s' at '%s' is not supported: %s", key, at, why);
    else
        fo_fail(&c->err, code, "JSON Schema: '%s' at '%s': %s", key, at, why);
}

void *pn_sc_alloc(struct pn_sc *c, size_t n, size_t size) {
    if (c->err.code) return NULL;
    void *p = fo_region_array(&c->r, n > 0 ? n : 1, size);
    if (p) return p;
    if (c->r.used_bytes + n * size > c->r.cap_bytes)
        pn_sc_fail(c, FO_ELIMIT, c->at, c->at_key, "working it out takes more than %d MiB", PN_SC_REGION_BYTES >> 20);
    else
        fo_fail(&c->err, FO_ENOMEM, "no memory for a JSON Schema");
    return NULL;
}

void pn_sc_work(struct pn_sc *c, uint64_t n) {
    *c->work += n;
    if (*c->work > PN_SC_MAX_WORK) pn_sc_fail(c, FO_ELIMIT, c->at, c->at_key, "working it out takes too many steps");
}

/* --- where everything is ----------------------------------------------------------------------- */
static int by_place(const void *x, const void *y) {
    uintptr_t a = (uintptr_t)((const struct pn_sc_place *)x)->value, b = (uintptr_t)((const struct pn_sc_place *)y)->value;
    return a < b ? -1 : a > b;
}

/* What ref means where `base` is; the region's. RFC 3986, without "..". */
static const char *join_uri(struct pn_sc *c, const char *base, const char *ref, size_t len) {
    size_t scheme = strcspn(ref, ":/?#"), keep = 0;
    if (scheme < len && ref[scheme] == ':') base = NULL;
    if (base) {
        const char *authority = strstr(base, "://"), *path = authority ? strchr(authority + 3, '/') : NULL, *slash = strrchr(base, '/');
        if (len > 0 && ref[0] == '/')
            keep = authority ? (path ? (size_t)(path - base) : strlen(base)) : 0;
        else if (slash && (!authority || slash > authority + 2))
            keep = (size_t)(slash - base) + 1;
        else if (authority)
            keep = strlen(base);
    }
    char *uri = pn_sc_alloc(c, keep + len + 1, 1);
    if (!uri) return "";
    if (keep > 0) memcpy(uri, base, keep);
    memcpy(uri + keep, ref, len);
    return uri;
}

/* Notes a value and all in it. `real`: schemas may stand here; what enum and const hold only looks like them. */
static void note(struct pn_sc *c, const json_t *v, struct pn_sc_place place, unsigned depth, bool real) {
    const char *key, *uri = place.uri;
    json_t *child;
    if (c->err.code || (!json_is_object(v) && !json_is_array(v))) return;
    pn_sc_work(c, 1);
    if (depth > PN_SC_MAX_DEPTH) {
        pn_sc_fail(c, FO_ELIMIT, NULL, NULL, "it is nested deeper than %d levels", PN_SC_MAX_DEPTH);
        return;
    }
    if (c->n_places == c->cap_places) {
        uint32_t cap = c->cap_places ? c->cap_places * 2 : 256;
        struct pn_sc_place *grown = pn_sc_alloc(c, cap, sizeof *grown);
        if (!grown) return;
        if (c->n_places > 0) memcpy(grown, c->places, c->n_places * sizeof *grown);
        c->places = grown;
        c->cap_places = cap;
    }
    const char *id = real ? json_string_value(json_object_get(v, "$id")) : NULL;
    place.value = v;
    if (id && id[0] != '#') {
        uri = place.uri = join_uri(c, place.uri, id, strcspn(id, "#"));
        place.resource = v;
    }
    if (!place.resource) place.resource = v;
    c->places[c->n_places++] = place;
    struct pn_sc_place next = { .parent = v, .resource = place.resource, .uri = uri };
    json_object_foreach((json_t *)v, key, child) {
        next.key = key;
        note(c, child, next, depth + 1, real && strcmp(key, "enum") != 0 && strcmp(key, "const") != 0);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        next.key = NULL;
        next.index = (uint32_t)i;
        note(c, json_array_get(v, i), next, depth + 1, real);
    }
}

/* --- references -------------------------------------------------------------------------------- */
static int hex_digit(char h) {
    return h >= '0' && h <= '9' ? h - '0' : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10 : -1;
}

/* The next part of a JSON pointer in a URI, decoded, into the region. */
static const char *pointer_part(struct pn_sc *c, const char **p) {
    size_t len = strcspn(*p, "/"), n = 0;
    char *out = pn_sc_alloc(c, len + 1, 1);
    if (!out) return NULL;
    for (size_t i = 0; i < len; i++) {
        char ch = (*p)[i];
        if (ch == '%' && i + 2 < len && hex_digit((*p)[i + 1]) >= 0 && hex_digit((*p)[i + 2]) >= 0) {
            ch = (char)(hex_digit((*p)[i + 1]) << 4 | hex_digit((*p)[i + 2]));
            i += 2;
        }
        out[n++] = ch;
    }
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        bool tilde = out[i] == '~' && i + 1 < n && (out[i + 1] == '0' || out[i + 1] == '1');
        out[k++] = !tilde ? out[i] : out[i + 1] == '0' ? '~' : '/';
        i += tilde;
    }
    out[k] = '\0';
    *p += len + ((*p)[len] == '/');
    return out;
}

static const json_t *follow_pointer(struct pn_sc *c, const json_t *v, const char *p) {
    while (v) { /* "#/" is the member named "" */
        bool last = !strchr(p, '/');
        const char *part = pointer_part(c, &p);
        if (!part) return NULL;
        if (json_is_array(v)) {
            char *stop;
            unsigned long i = strtoul(part, &stop, 10);
            v = *part && !*stop ? json_array_get(v, i) : NULL;
        } else {
            v = json_object_get(v, part);
        }
        if (last) break;
    }
    return v;
}

const json_t *pn_sc_resolve(struct pn_sc *c, const json_t *s, const char *key, const char *ref) {
    uint32_t here = place_of(c, s);
    const json_t *resource = here == UINT32_MAX ? c->root : c->places[here].resource, *target = NULL;
    size_t len = strcspn(ref, "#");
    const char *fragment = ref[len] == '#' ? ref + len + 1 : "";
    pn_sc_work(c, c->n_places / 4 + 1);
    if (len > 0) {
        const char *uri = join_uri(c, here == UINT32_MAX ? NULL : c->places[here].uri, ref, len);
        resource = NULL;
        for (uint32_t i = 0; i < c->n_places && !resource; i++)
            if (c->places[i].resource == c->places[i].value && c->places[i].uri && strcmp(c->places[i].uri, uri) == 0)
                resource = c->places[i].value;
        if (!resource) {
            pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "'%.80s' is not in this document, and nothing is fetched", ref);
            return NULL;
        }
    }
    if (fragment[0] == '\0') {
        target = resource;
    } else if (fragment[0] == '/') {
        target = follow_pointer(c, resource, fragment + 1);
    } else {
        for (uint32_t i = 0; i < c->n_places && !target; i++) {
            const json_t *v = c->places[i].value;
            if (c->places[i].resource != resource || !json_is_object(v)) continue;
            const char *anchor = json_string_value(json_object_get(v, "$anchor")),
                       *dynamic = json_string_value(json_object_get(v, "$dynamicAnchor"));
            const char *old = json_string_value(json_object_get(v, "$id")); /* draft 7: "#name" */
            if ((anchor && strcmp(anchor, fragment) == 0) || (dynamic && strcmp(dynamic, fragment) == 0) ||
                (old && old[0] == '#' && strcmp(old + 1, fragment) == 0))
                target = v;
        }
    }
    if (!target) pn_sc_fail(c, FO_EINVAL, s, key, "there is nothing at '%.80s'", ref);
    return target;
}

const json_t *pn_sc_dynamic(struct pn_sc *c, const json_t *target, const char *ref) {
    const char *fragment = strchr(ref, '#'), *name = json_string_value(json_object_get(target, "$dynamicAnchor"));
    const json_t *outermost = NULL;
    bool others = false;
    if (!name || !fragment || strcmp(fragment + 1, name) != 0) return target;
    pn_sc_work(c, c->n_places / 4 + 1);
    for (uint32_t i = 0; i < c->n_places; i++) {
        const char *other = json_string_value(json_object_get(c->places[i].value, "$dynamicAnchor"));
        if (!other || strcmp(other, name) != 0) continue;
        if (c->places[i].resource == c->root) outermost = c->places[i].value;
        others |= c->places[i].value != target;
    }
    return outermost ? outermost : others ? NULL : target;
}

/* --- rules ------------------------------------------------------------------------------------- */
static int by_term(const void *x, const void *y) {
    const struct pn_term *a = x, *b = y;
    if (a->schema != b->schema) return (uintptr_t)a->schema < (uintptr_t)b->schema ? -1 : 1;
    return (int)a->neg - (int)b->neg;
}

uint32_t pn_sc_rule(struct pn_sc *c, const struct pn_term *terms, uint32_t n) {
    struct pn_term *own = pn_sc_alloc(c, (size_t)n + 1, sizeof *own);
    uint32_t k = 0, hash = 0;
    if (!own) return 0;
    for (uint32_t i = 0; i < n; i++)
        if (terms[i].schema && !(terms[i].neg ? json_is_false(terms[i].schema) : json_is_true(terms[i].schema))) own[k++] = terms[i];
    /* Sorted they name the rule; as they come they say the order of properties: two orders are two rules. */
    struct pn_term *name = pn_sc_alloc(c, (size_t)k + 1, sizeof *name);
    if (!name) return 0;
    n = 0;
    for (uint32_t i = 0; i < k; i++) {
        bool before = false;
        for (uint32_t j = 0; j < n && !before; j++) before = by_term(&name[j], &own[i]) == 0;
        if (before) continue;
        name[n++] = own[i];
        uint64_t mixed = ((uint64_t)(uintptr_t)own[i].schema + own[i].neg + (uint64_t)hash * 31) * 0x9E3779B97F4A7C15u;
        hash = (uint32_t)(mixed >> 32);
    }
    pn_sc_work(c, (uint64_t)k * k / 8 + 1);
    uint32_t *bucket = &c->buckets[hash % PN_SC_BUCKETS];
    for (uint32_t i = *bucket; i; i = c->rules[i - 1].next) {
        const struct pn_sc_rule *r = &c->rules[i - 1];
        bool same = r->terms.n == n;
        for (uint32_t j = 0; j < n && same; j++) same = by_term(&r->terms.list[j], &name[j]) == 0;
        if (same) return r->rule;
    }
    if (c->n_rules == c->cap_rules) {
        uint32_t cap = c->cap_rules ? c->cap_rules * 2 : 64;
        struct pn_sc_rule *grown = pn_sc_alloc(c, cap, sizeof *grown);
        if (!grown) return 0;
        if (c->n_rules > 0) memcpy(grown, c->rules, c->n_rules * sizeof *grown);
        c->rules = grown;
        c->cap_rules = cap;
    }
    c->rules[c->n_rules] = (struct pn_sc_rule){ .terms = { name, n }, .rule = pn_ir_rule(c->ir, "", 0, 0, 0), .next = *bucket };
    *bucket = ++c->n_rules;
    return c->rules[c->n_rules - 1].rule;
}

/* --- the whole --------------------------------------------------------------------------------- */
struct pn_schema {
    struct pn_sc c;
    json_t *root, *object, *begun; /* {"type": "object"}, both: what a rule is for is told by which it has */
};

static int fail_memory(struct pn_schema *s, struct fo_err *e) {
    if (s) {
        json_decref(s->root);
        json_decref(s->object);
        json_decref(s->begun);
    }
    free(s);
    return (int)fo_fail(e, FO_ENOMEM, "no memory for a JSON Schema");
}

int pn_schema_open(const char *json, size_t len, char escaped, struct pn_ir *ir, uint64_t *work, struct pn_schema **ret, struct fo_err *e) {
    json_error_t parse;
    if (len > PN_SCHEMA_MAX_BYTES)
        return (int)fo_fail_need(e, FO_ELIMIT, len, PN_SCHEMA_MAX_BYTES, "JSON Schema: it is larger than %d KiB", PN_SCHEMA_MAX_BYTES >> 10);
    json_t *root = json_loadb(json, len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &parse);
    if (!root)
        return (int)fo_fail_at(e, FO_EFORMAT, parse.line > 0 ? parse.line : 1, parse.column > 0 ? parse.column : 1, "JSON Schema: %s", parse.text);
    struct pn_schema *s = calloc(1, sizeof *s);
    if (!s) {
        json_decref(root);
        return fail_memory(NULL, e);
    }
    s->root = root;
    s->object = json_pack("{s:s}", "type", "object");
    s->begun = json_pack("{s:s}", "type", "object");
    if (!s->object || !s->begun) return fail_memory(s, e);
    s->c = (struct pn_sc){ .ir = ir, .root = root, .escaped = (unsigned char)escaped, .work = work };
    struct pn_sc *c = &s->c;
    fo_region_init(&c->r, PN_SC_REGION_BYTES);
    note(c, c->root, (struct pn_sc_place){ 0 }, 0, true);
    if (c->n_places > 1) qsort(c->places, c->n_places, sizeof *c->places, by_place);
    pn_sc_numbers(c);
    c->character = pn_ir_rule(c->ir, "", 0, 0, 0);
    pn_ir_define(c->ir, c->character, pn_json_chars(c, NULL, 0, true));
    *ret = s;
    return 0;
}

uint32_t pn_schema_part(struct pn_schema *s, const char *property, enum pn_schema_form form, const char *mark, const char *end) {
    struct pn_sc *c = &s->c;
    const json_t *part = property ? json_object_get(json_object_get(s->root, "properties"), property) : s->root;
    if (!part || c->err.code) return 0;
    struct pn_term terms[] = { { part, false }, { form == PN_SCHEMA_BEGUN ? s->begun : s->object, false } };
    if (form != PN_SCHEMA_TEXT) return pn_sc_rule(c, terms, form == PN_SCHEMA_JSON ? 1 : 2);
    c->at = part;
    c->at_key = NULL;
    uint32_t rule = pn_ir_rule(c->ir, "", 0, 0, 0);
    pn_ir_define(c->ir, rule, pn_text_bare(c, pn_sc_expand(c, terms[0]), mark, end));
    return rule;
}

int pn_schema_close(struct pn_schema *s, char pointer[PN_SCHEMA_POINTER_BYTES], struct fo_err *e) {
    struct pn_sc *c = &s->c;
    struct fo_err state;
    for (uint32_t i = 0; i < c->n_rules && e->code == FO_OK && c->err.code == FO_OK && pn_ir_state(c->ir, &state) == 0; i++) {
        struct pn_sc_rule r = c->rules[i];
        c->at = r.terms.n > 0 ? r.terms.list[0].schema : c->root;
        c->at_key = NULL;
        c->begun = false;
        for (uint32_t k = 0; k < r.terms.n; k++) c->begun |= r.terms.list[k].schema == s->begun;
        pn_ir_define(c->ir, r.rule, pn_sc_emit(c, pn_sc_expand_all(c, r.terms)));
    }
    if (e->code == FO_OK && c->err.code != FO_OK) {
        memcpy(pointer, c->pointer, PN_SCHEMA_POINTER_BYTES);
        *e = c->err;
    }
    if (e->code == FO_OK) pn_ir_state(c->ir, e);
    fo_region_done(&c->r);
    json_decref(s->root);
    json_decref(s->object);
    json_decref(s->begun);
    free(s);
    return (int)e->code;
}

int pn_schema_compile(const char *json, size_t len, struct pn_ir *ir, char pointer[PN_SCHEMA_POINTER_BYTES], struct fo_err *e) {
    struct pn_schema *s;
    uint64_t work = 0;
    pointer[0] = '\0';
    if (pn_schema_open(json, len, '\0', ir, &work, &s, e)) return (int)e->code;
    pn_ir_root(ir, pn_schema_part(s, NULL, PN_SCHEMA_JSON, "", ""));
    e->code = FO_OK;
    return pn_schema_close(s, pointer, e);
}
