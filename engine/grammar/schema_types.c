/* Keywords that ask something of one type of value: each as the shapes that it allows, and as the shapes that are its opposite. */
#include <jansson.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"

struct pn_set pn_sc_no_opposite(struct pn_sc *c, const json_t *s, const char *key, const char *why) {
    pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "its opposite (it stands in not, if or oneOf) %s", why);
    return (struct pn_set){ 0 };
}

/* All that an atom allows, or its opposite: two shapes of one type. */
static struct pn_set atom(struct pn_sc *c, struct pn_shape yes, struct pn_shape no, bool neg) {
    return neg ? pn_set_one(c, no) : pn_set_if(c, yes);
}

static struct pn_set wrong(struct pn_sc *c, const json_t *s, const char *key, const char *want) {
    pn_sc_fail(c, FO_EINVAL, s, key, "it must be %s", want);
    return (struct pn_set){ 0 };
}

uint32_t pn_sc_count(struct pn_sc *c, const json_t *s, const char *key, const json_t *v) {
    double d = json_is_number(v) ? json_number_value(v) : -1.0;
    if (!(d >= 0.0) || (json_is_real(v) && d < 1e15 && d != (double)(uint64_t)d)) {
        pn_sc_fail(c, FO_EINVAL, s, key, "it must be a whole number from 0");
        return 0;
    }
    return d >= (double)(PN_SC_NO_END - 1) ? PN_SC_NO_END - 1 : (uint32_t)d;
}

/* --- any type ---------------------------------------------------------------------------------- */
struct pn_set pn_kw_type(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    static const struct {
        const char *name;
        unsigned types;
    } names[] = { { "null", 1 << PN_T_NULL },     { "boolean", 1 << PN_T_FALSE | 1 << PN_T_TRUE },
                  { "number", 1 << PN_T_NUMBER }, { "integer", 1 << PN_N_TYPES },
                  { "string", 1 << PN_T_STRING }, { "array", 1 << PN_T_ARRAY },
                  { "object", 1 << PN_T_OBJECT } };
    unsigned types = json_is_true(json_object_get(s, "nullable")) ? 1u << PN_T_NULL : 0;
    for (size_t i = 0, n = json_is_array(v) ? json_array_size(v) : 1; i < n; i++) {
        const char *name = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        size_t k = 0;
        while (name && k < sizeof names / sizeof *names && strcmp(names[k].name, name) != 0) k++;
        if (!name || k == sizeof names / sizeof *names)
            return wrong(c, s, key, "null, boolean, number, integer, string, array, object, or a list of them");
        types |= names[k].types;
    }
    struct pn_set set = { 0 };
    for (int t = 0; t < PN_N_TYPES; t++) {
        struct pn_shape shape = pn_shape_any((enum pn_sc_type)t);
        if (t == PN_T_NUMBER && (types & 1u << PN_T_NUMBER) == 0 && (types & 1u << PN_N_TYPES)) {
            shape.dfa = neg ? c->fraction : c->integer;
            set = pn_set_or(c, set, pn_set_one(c, shape));
        } else if (((types >> t & 1) != 0) != neg) {
            set = pn_set_or(c, set, pn_set_one(c, shape));
        }
    }
    return set;
}

struct pn_set pn_kw_enum(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    bool is_enum = strcmp(key, "enum") == 0;
    if (is_enum && !json_is_array(v)) return wrong(c, s, key, "a list");
    size_t n = is_enum ? json_array_size(v) : 1;
    struct pn_set set = { 0 };
    for (int t = 0; t < PN_N_TYPES && c->err.code == FO_OK; t++) {
        const json_t **values = pn_sc_alloc(c, n + 1, sizeof *values);
        struct pn_shape shape = pn_shape_any((enum pn_sc_type)t);
        uint32_t k = 0;
        if (!values) return set;
        for (size_t i = 0; i < n; i++) {
            const json_t *value = is_enum ? json_array_get(v, i) : v;
            if (pn_sc_type_of(value) == (enum pn_sc_type)t) values[k++] = value;
        }
        pn_sc_work(c, n);
        if (!neg) {
            shape.values = values;
            shape.n_values = k;
            if (k > 0) set = pn_set_or(c, set, pn_set_one(c, shape));
            continue;
        }
        if (k > 0 && (t == PN_T_ARRAY || t == PN_T_OBJECT)) return pn_sc_no_opposite(c, s, key, "is not supported for arrays and objects");
        if (k > 0 && t != PN_T_STRING && t != PN_T_NUMBER) continue;
        if (k > 0 && t == PN_T_STRING) {
            const char **words = pn_sc_alloc(c, k, sizeof *words);
            size_t *lens = pn_sc_alloc(c, k, sizeof *lens);
            if (!words || !lens) return set;
            for (uint32_t i = 0; i < k; i++) {
                words[i] = json_string_value(values[i]);
                lens[i] = json_string_length(values[i]);
            }
            shape.dfa = pn_dfa_not(c, pn_dfa_words(c, words, lens, k));
        }
        for (uint32_t i = 0; i < k && t == PN_T_NUMBER; i++) {
            char decimal[PN_DECIMAL_BYTES];
            if (pn_decimal(values[i], decimal)) shape.dfa = pn_dfa_and(c, shape.dfa, pn_number_compare(c, decimal, true, false, true));
        }
        set = pn_set_or(c, set, pn_set_one(c, shape));
    }
    return set;
}

/* --- numbers and strings ----------------------------------------------------------------------- */
struct pn_set pn_kw_bound(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    char decimal[PN_DECIMAL_BYTES];
    if (json_is_boolean(v)) {
        pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "as a boolean it is of draft 4; write the bound here");
        return (struct pn_set){ 0 };
    }
    if (!json_is_number(v)) return wrong(c, s, key, "a number");
    if (!pn_decimal(v, decimal)) {
        pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "a number this small");
        return (struct pn_set){ 0 };
    }
    bool upper = strstr(key, "aximum") != NULL, equal = key[0] == 'm';
    struct pn_shape yes = pn_shape_any(PN_T_NUMBER), no = yes;
    if (neg)
        no.dfa = pn_number_compare(c, decimal, !upper, !equal, upper);
    else
        yes.dfa = pn_number_compare(c, decimal, upper, equal, !upper);
    return atom(c, yes, no, neg);
}

struct pn_set pn_kw_multiple(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    char decimal[PN_DECIMAL_BYTES];
    if (!json_is_number(v) || !(json_number_value(v) > 0.0)) return wrong(c, s, key, "a number greater than 0");
    if (!pn_decimal(v, decimal)) {
        pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "a number this small");
        return (struct pn_set){ 0 };
    }
    struct pn_shape yes = pn_shape_any(PN_T_NUMBER), no = yes;
    yes.dfa = pn_number_multiple(c, s, decimal);
    if (neg) no.dfa = pn_number_not(c, yes.dfa);
    return atom(c, yes, no, neg);
}

/* minLength, maxLength, minItems, maxItems, minProperties, maxProperties. */
struct pn_set pn_kw_length(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    uint32_t n = pn_sc_count(c, s, key, v);
    struct pn_shape yes = pn_shape_any(key[3] == 'L' ? PN_T_STRING : key[3] == 'I' ? PN_T_ARRAY : PN_T_OBJECT), no = yes;
    if (key[1] == 'i') { /* min */
        yes.min = n;
        if (n > 0) no.max = n - 1;
        if (n == 0 && neg) return (struct pn_set){ 0 };
    } else {
        yes.max = n;
        no.min = n + 1;
    }
    return atom(c, yes, no, neg);
}

static struct pn_set string_dfa(struct pn_sc *c, const struct pn_dfa *a, bool neg) {
    struct pn_shape yes = pn_shape_any(PN_T_STRING), no = yes;
    if (!a) return (struct pn_set){ 0 };
    yes.dfa = a;
    if (neg) no.dfa = pn_dfa_not(c, a);
    return atom(c, yes, no, neg);
}

struct pn_set pn_kw_pattern(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    if (!json_is_string(v)) return wrong(c, s, key, "a string");
    return string_dfa(c, pn_regex_dfa(c, s, key, json_string_value(v), json_string_length(v)), neg);
}

struct pn_set pn_kw_format(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    if (!json_is_string(v)) return wrong(c, s, key, "a string");
    const char *regex = pn_format_regex(json_string_value(v));
    if (!regex) return neg ? (struct pn_set){ 0 } : pn_set_any(c);
    return string_dfa(c, pn_regex_dfa(c, s, key, regex, strlen(regex)), neg);
}

/* --- arrays ------------------------------------------------------------------------------------ */
/* prefixItems and items, or items and additionalItems of draft 7; at the first of them that the schema has. */
struct pn_set pn_kw_items(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    const json_t *prefix = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items");
    const char *prefix_key = "prefixItems", *rest_key = "items";
    (void)v;
    if (!prefix && json_is_array(rest)) {
        prefix = rest;
        prefix_key = "items";
        rest = json_object_get(s, rest_key = "additionalItems");
    } else if (strcmp(key, "additionalItems") == 0) {
        return neg ? (struct pn_set){ 0 } : pn_set_any(c); /* without a list it says nothing */
    }
    const char *first = prefix ? prefix_key : rest_key;
    if (strcmp(key, first) != 0) return neg ? (struct pn_set){ 0 } : pn_set_any(c);
    if (prefix && !json_is_array(prefix)) return wrong(c, s, prefix_key, "a list of schemas");
    uint32_t n = (uint32_t)json_array_size(prefix);
    struct pn_term *terms = pn_sc_alloc(c, (size_t)n + 1, sizeof *terms);
    struct pn_group *g = pn_sc_alloc(c, 1, sizeof *g);
    struct pn_shape shape = pn_shape_any(PN_T_ARRAY);
    struct pn_set set = { 0 };
    if (!terms || !g) return set;
    if (!neg) {
        for (uint32_t i = 0; i < n; i++) terms[i].schema = json_array_get(prefix, i);
        *g = (struct pn_group){ .prefix = terms, .n_prefix = n, .has_rest = rest != NULL, .rest.schema = rest, .evaluates = true };
        shape.groups = g;
        return pn_set_if(c, shape);
    }
    for (uint32_t i = 0; i < n && c->err.code == FO_OK; i++) { /* an item there is, and is not what it should be */
        terms = pn_sc_alloc(c, (size_t)i + 1, sizeof *terms);
        g = pn_sc_alloc(c, 1, sizeof *g);
        if (!terms || !g) return set;
        terms[i] = (struct pn_term){ json_array_get(prefix, i), true };
        *g = (struct pn_group){ .prefix = terms, .n_prefix = i + 1 };
        shape.groups = g;
        shape.min = i + 1;
        set = pn_set_or(c, set, pn_set_one(c, shape));
    }
    if (!rest || json_is_true(rest)) return set;
    shape = pn_shape_any(PN_T_ARRAY);
    if (json_is_false(rest)) {
        shape.min = n + 1;
    } else {
        if (n > 0) return pn_sc_no_opposite(c, s, rest_key, "is not supported behind prefixItems");
        struct pn_contains *k = pn_sc_alloc(c, 1, sizeof *k);
        if (!k) return set;
        *k = (struct pn_contains){ .term = { rest, true }, .min = 1, .max = PN_SC_NO_END };
        shape.contains = k;
    }
    return pn_set_or(c, set, pn_set_one(c, shape));
}

static struct pn_shape containing(struct pn_sc *c, const json_t *v, uint32_t min, uint32_t max, bool evaluates) {
    struct pn_shape shape = pn_shape_any(PN_T_ARRAY);
    struct pn_contains *k = pn_sc_alloc(c, 1, sizeof *k);
    if (k) *k = (struct pn_contains){ .term = { v, false }, .min = min, .max = max, .evaluates = evaluates };
    shape.contains = k;
    return shape;
}

struct pn_set pn_kw_contains(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    const json_t *low = json_object_get(s, "minContains"), *high = json_object_get(s, "maxContains");
    uint32_t min = low ? pn_sc_count(c, s, "minContains", low) : 1, max = high ? pn_sc_count(c, s, "maxContains", high) : PN_SC_NO_END;
    (void)key;
    if (!neg) {
        if (min > max) return pn_set_and(c, pn_set_any(c), pn_set_if(c, (struct pn_shape){ .type = PN_T_ARRAY, .min = 1, .max = 0 }));
        return pn_set_if(c, containing(c, v, min, max, true));
    }
    struct pn_set set = { 0 };
    if (min > 0) set = pn_set_one(c, containing(c, v, 0, min - 1, false));
    if (max < PN_SC_NO_END) set = pn_set_or(c, set, pn_set_one(c, containing(c, v, max + 1, PN_SC_NO_END, false)));
    return set;
}

struct pn_set pn_kw_unique(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    struct pn_shape shape = pn_shape_any(PN_T_ARRAY);
    if (!json_is_boolean(v)) return wrong(c, s, key, "true or false");
    if (json_is_false(v)) return neg ? (struct pn_set){ 0 } : pn_set_any(c);
    if (neg) return pn_sc_no_opposite(c, s, key, "is not supported");
    shape.unique = true;
    return pn_set_if(c, shape);
}

/* --- objects ----------------------------------------------------------------------------------- */
static struct pn_shape with_required(struct pn_sc *c, struct pn_shape s, const char *name) {
    struct pn_name *r = pn_sc_alloc(c, 1, sizeof *r);
    if (!r) return s;
    *r = (struct pn_name){ name, s.required };
    s.required = r;
    return s;
}

/* A property of that name is `term` where it comes. */
static struct pn_shape with_property(struct pn_sc *c, struct pn_shape s, const char *name, struct pn_term term) {
    struct pn_group *g = pn_sc_alloc(c, 1, sizeof *g);
    struct pn_prop *p = pn_sc_alloc(c, 1, sizeof *p);
    if (!g || !p) return s;
    *p = (struct pn_prop){ .name = name, .term = term };
    *g = (struct pn_group){ .props = p, .next = s.groups };
    s.groups = g;
    return s;
}

static struct pn_shape without(struct pn_sc *c, struct pn_shape s, const char *name) {
    return with_property(c, s, name, (struct pn_term){ json_false(), false });
}

/* properties, patternProperties and additionalProperties together; at the first of them that the schema has. */
struct pn_set pn_kw_properties(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    const json_t *props = json_object_get(s, "properties"), *patterns = json_object_get(s, "patternProperties"),
                 *rest = json_object_get(s, "additionalProperties");
    const char *first = props ? "properties" : patterns ? "patternProperties" : "additionalProperties", *name;
    struct pn_shape shape = pn_shape_any(PN_T_OBJECT);
    struct pn_set set = { 0 };
    json_t *schema;
    (void)v;
    if (strcmp(key, first) != 0) return neg ? set : pn_set_any(c);
    if (props && !json_is_object(props)) return wrong(c, s, "properties", "an object of schemas");
    if (patterns && !json_is_object(patterns)) return wrong(c, s, "patternProperties", "an object of schemas");
    if (neg) {
        json_object_foreach((json_t *)props, name, schema) {
            if (!json_is_true(schema))
                set = pn_set_or(c, set,
                                pn_set_one(c, with_property(c, with_required(c, shape, name), name, (struct pn_term){ schema, true })));
        }
        json_object_foreach((json_t *)patterns, name, schema) {
            if (!json_is_true(schema)) return pn_sc_no_opposite(c, s, "patternProperties", "is not supported");
        }
        if (rest && !json_is_true(rest)) {
            if (json_object_size(props) + json_object_size(patterns) > 0 || !json_is_false(rest))
                return pn_sc_no_opposite(c, s, "additionalProperties", "is not supported");
            shape.min = 1;
            set = pn_set_or(c, set, pn_set_one(c, shape));
        }
        return set;
    }
    struct pn_group *g = pn_sc_alloc(c, 1, sizeof *g);
    if (!g) return set;
    *g = (struct pn_group){ .has_rest = rest != NULL, .rest.schema = rest, .evaluates = true };
    const struct pn_prop **last = &g->props;
    json_object_foreach((json_t *)props, name, schema) {
        struct pn_prop *p = pn_sc_alloc(c, 1, sizeof *p);
        if (!p) return set;
        *p = (struct pn_prop){ .name = name, .term = { schema, false } };
        *last = p;
        last = &p->next;
    }
    json_object_foreach((json_t *)patterns, name, schema) {
        struct pn_pattern *p = pn_sc_alloc(c, 1, sizeof *p);
        if (!p) return set;
        *p = (struct pn_pattern){ .dfa = pn_regex_dfa(c, s, "patternProperties", name, strlen(name)),
                                  .term = { schema, false },
                                  .next = g->patterns };
        if (!p->dfa) return set;
        g->patterns = p;
    }
    shape.groups = g;
    return pn_set_if(c, shape);
}

struct pn_set pn_kw_required(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    struct pn_shape shape = pn_shape_any(PN_T_OBJECT), object = shape;
    struct pn_set set = { 0 };
    if (json_is_boolean(v)) return neg ? set : pn_set_any(c); /* draft 3, and what some libraries leave behind */
    if (!json_is_array(v)) return wrong(c, s, key, "a list of names");
    for (size_t i = json_array_size(v); i-- > 0 && c->err.code == FO_OK;) {
        const char *name = json_string_value(json_array_get(v, i));
        if (!name) return wrong(c, s, key, "a list of names");
        if (neg)
            set = pn_set_or(c, set, pn_set_one(c, without(c, object, name)));
        else
            shape = with_required(c, shape, name);
    }
    return neg ? set : pn_set_if(c, shape);
}

struct pn_set pn_kw_names(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    struct pn_shape shape = pn_shape_any(PN_T_OBJECT), none = shape;
    struct pn_names_term *t = pn_sc_alloc(c, 1, sizeof *t);
    if (!t || json_is_true(v)) return neg ? (struct pn_set){ 0 } : pn_set_any(c);
    if (neg && !json_is_false(v)) return pn_sc_no_opposite(c, s, key, "is not supported");
    *t = (struct pn_names_term){ .term = { v, false } };
    shape.names = t;
    none.min = 1;
    return atom(c, shape, none, neg);
}

/* dependentRequired, dependentSchemas, and dependencies, which is either for each name. */
struct pn_set pn_kw_dependent(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    struct pn_set all = neg ? (struct pn_set){ 0 } : pn_set_any(c);
    const char *name;
    json_t *then;
    if (!json_is_object(v)) return wrong(c, s, key, "an object");
    json_object_foreach((json_t *)v, name, then) {
        struct pn_shape has = with_required(c, pn_shape_any(PN_T_OBJECT), name);
        struct pn_set set;
        if (c->err.code) return all;
        if (json_is_array(then)) {
            set = (struct pn_set){ 0 };
            struct pn_shape full = has;
            for (size_t i = 0; i < json_array_size(then); i++) {
                const char *other = json_string_value(json_array_get(then, i));
                if (!other) return wrong(c, s, key, "an object of lists of names");
                full = with_required(c, full, other);
                if (neg) set = pn_set_or(c, set, pn_set_one(c, without(c, has, other)));
            }
            if (!neg) set = pn_set_one(c, full);
        } else {
            set = pn_set_and(c, pn_set_one(c, has), pn_sc_expand(c, (struct pn_term){ then, neg }));
        }
        if (neg)
            all = pn_set_or(c, all, set);
        else
            all = pn_set_and(c, all, pn_set_or(c, pn_set_if(c, without(c, pn_shape_any(PN_T_OBJECT), name)), set));
    }
    return all;
}
