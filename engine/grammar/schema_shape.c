/* Shapes: what a place of an instance may look like, and "and", "or" and "holds" of that. See schema.c. */
#include <jansson.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"
#include "foundry/base/utf8.h"

struct pn_shape pn_shape_any(enum pn_sc_type type) {
    return (struct pn_shape){ .type = type, .max = PN_SC_NO_END };
}

struct pn_set pn_set_one(struct pn_sc *c, struct pn_shape s) {
    struct pn_shape *list = pn_sc_alloc(c, 1, sizeof *list);
    if (!list) return (struct pn_set){ 0 };
    *list = s;
    return (struct pn_set){ list, 1 };
}

struct pn_set pn_set_any(struct pn_sc *c) {
    struct pn_shape *list = pn_sc_alloc(c, PN_N_TYPES, sizeof *list);
    if (!list) return (struct pn_set){ 0 };
    for (int t = 0; t < PN_N_TYPES; t++) list[t] = pn_shape_any((enum pn_sc_type)t);
    return (struct pn_set){ list, PN_N_TYPES };
}

struct pn_set pn_set_if(struct pn_sc *c, struct pn_shape s) {
    struct pn_set any = pn_set_any(c);
    if (any.n > 0) any.list[s.type] = s;
    return any;
}

static bool asks_nothing(const struct pn_shape *s) {
    return !s->values && !s->dfa && s->min == 0 && s->max == PN_SC_NO_END && !s->groups && !s->contains && !s->required && !s->names &&
           !s->unique;
}

/* Of b what a does not have whole already. */
static struct pn_set without_covered(struct pn_sc *c, struct pn_set a, struct pn_set b) {
    bool covered[PN_N_TYPES] = { false }, any = false;
    for (uint32_t i = 0; i < a.n; i++) any |= covered[a.list[i].type] |= asks_nothing(&a.list[i]);
    if (!any) return b;
    struct pn_shape *list = pn_sc_alloc(c, (size_t)b.n + 1, sizeof *list);
    uint32_t n = 0;
    for (uint32_t i = 0; i < b.n && list; i++)
        if (!covered[b.list[i].type]) list[n++] = b.list[i];
    return (struct pn_set){ list, n };
}

struct pn_set pn_set_or(struct pn_sc *c, struct pn_set a, struct pn_set b) {
    if (!c->tracked) {
        b = without_covered(c, a, b);
        a = without_covered(c, b, a);
    }
    if (a.n == 0) return b;
    if (b.n == 0) return a;
    if (a.n + b.n > PN_SC_MAX_SHAPES) {
        pn_sc_fail(c, FO_ELIMIT, c->at, c->at_key, "it allows more than %d ways to look", PN_SC_MAX_SHAPES);
        return a;
    }
    struct pn_shape *list = pn_sc_alloc(c, (size_t)a.n + b.n, sizeof *list);
    if (!list) return a;
    memcpy(list, a.list, a.n * sizeof *list);
    memcpy(list + a.n, b.list, b.n * sizeof *list);
    pn_sc_work(c, a.n + b.n);
    return (struct pn_set){ list, a.n + b.n };
}

/* --- lists, one behind the other --------------------------------------------------------------- */
#define JOIN(name, type)                                                                                                                   \
    static const type *name(struct pn_sc *c, const type *a, const type *b) {                                                               \
        if (!a || !b) return a ? a : b;                                                                                                    \
        type *first = NULL, **last = &first;                                                                                               \
        for (; a; a = a->next) {                                                                                                           \
            type *copy = pn_sc_alloc(c, 1, sizeof *copy);                                                                                  \
            if (!copy) return b;                                                                                                           \
            *copy = *a;                                                                                                                    \
            copy->next = NULL;                                                                                                             \
            *last = copy;                                                                                                                  \
            last = (type **)(void *)&copy->next;                                                                                           \
            pn_sc_work(c, 1);                                                                                                              \
        }                                                                                                                                  \
        *(const type **)(void *)last = b;                                                                                                  \
        return first;                                                                                                                      \
    }
JOIN(join_groups, struct pn_group)
JOIN(join_contains, struct pn_contains)
JOIN(join_required, struct pn_name)
JOIN(join_names, struct pn_names_term)

/* --- holds ------------------------------------------------------------------------------------- */
bool pn_sc_equal(const json_t *a, const json_t *b) {
    char x[PN_DECIMAL_BYTES], y[PN_DECIMAL_BYTES];
    if (json_is_number(a) && json_is_number(b)) return pn_decimal(a, x) && pn_decimal(b, y) && strcmp(x, y) == 0;
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!pn_sc_equal(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a)) {
        const char *key;
        json_t *v;
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)a, key, v) {
            const json_t *w = json_object_get(b, key);
            if (!w || !pn_sc_equal(v, w)) return false;
        }
        return true;
    }
    return json_equal(a, b);
}

static bool all_hold(struct pn_sc *c, struct pn_terms t, const json_t *v) {
    for (uint32_t i = 0; i < t.n; i++)
        if (!pn_sc_holds(c, t.list[i], v)) return false;
    return true;
}

static bool array_holds(struct pn_sc *c, const struct pn_shape *s, const json_t *v) {
    size_t n = json_array_size(v);
    if (n < s->min || n > s->max) return false;
    for (size_t i = 0; i < n; i++)
        if (!all_hold(c, pn_shape_item(c, s, (uint32_t)i), json_array_get(v, i))) return false;
    for (const struct pn_contains *k = s->contains; k; k = k->next) {
        uint32_t found = 0;
        for (size_t i = 0; i < n; i++) found += pn_sc_holds(c, k->term, json_array_get(v, i));
        if (found < k->min || found > k->max) return false;
    }
    for (size_t i = 0; s->unique && i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (pn_sc_equal(json_array_get(v, i), json_array_get(v, j))) return false;
    return true;
}

static bool object_holds(struct pn_sc *c, const struct pn_shape *s, const json_t *v) {
    size_t n = json_object_size(v);
    const char *key;
    json_t *value;
    if (n < s->min || n > s->max) return false;
    for (const struct pn_name *r = s->required; r; r = r->next)
        if (!json_object_get(v, r->name)) return false;
    json_object_foreach((json_t *)v, key, value) {
        if (!all_hold(c, pn_shape_property(c, s, key), value)) return false;
        for (const struct pn_names_term *t = s->names; t; t = t->next) {
            json_t *name = json_string(key);
            bool fits = name && pn_sc_holds(c, t->term, name);
            json_decref(name);
            if (!fits) return false;
        }
    }
    return true;
}

enum pn_sc_type pn_sc_type_of(const json_t *v) {
    static const enum pn_sc_type types[] = {
        [JSON_OBJECT] = PN_T_OBJECT, [JSON_ARRAY] = PN_T_ARRAY, [JSON_STRING] = PN_T_STRING, [JSON_INTEGER] = PN_T_NUMBER,
        [JSON_REAL] = PN_T_NUMBER,   [JSON_TRUE] = PN_T_TRUE,   [JSON_FALSE] = PN_T_FALSE,   [JSON_NULL] = PN_T_NULL
    };
    return types[json_typeof(v)];
}

static bool shape_holds(struct pn_sc *c, const struct pn_shape *s, const json_t *v) {
    char decimal[PN_DECIMAL_BYTES];
    bool listed = !s->values;
    pn_sc_work(c, 8);
    if (c->err.code || pn_sc_type_of(v) != s->type) return false;
    for (uint32_t i = 0; i < s->n_values && !listed; i++) {
        pn_sc_work(c, 1);
        listed = pn_sc_equal(s->values[i], v);
    }
    if (!listed) return false;
    switch (s->type) {
    case PN_T_NUMBER:
        return !s->dfa || (pn_decimal(v, decimal) && pn_dfa_run(s->dfa, decimal, strlen(decimal)));
    case PN_T_STRING: {
        const char *text = json_string_value(v);
        size_t len = json_string_length(v);
        uint32_t n = (uint32_t)fo_utf8_count(text, len);
        pn_sc_work(c, n);
        return n >= s->min && n <= s->max && (!s->dfa || pn_dfa_run(s->dfa, text, len));
    }
    case PN_T_ARRAY:
        return array_holds(c, s, v);
    case PN_T_OBJECT:
        return object_holds(c, s, v);
    default:
        return true;
    }
}

bool pn_sc_holds(struct pn_sc *c, struct pn_term t, const json_t *v) {
    struct pn_set set = pn_sc_expand(c, t);
    for (uint32_t i = 0; i < set.n; i++)
        if (shape_holds(c, &set.list[i], v)) return true;
    return false;
}

/* --- what stands at a place -------------------------------------------------------------------- */
static struct pn_terms terms_add(struct pn_sc *c, struct pn_terms t, struct pn_term term, uint32_t *cap) {
    if (!term.schema) return t;
    if (t.n == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        struct pn_term *list = pn_sc_alloc(c, *cap, sizeof *list);
        if (!list) return t;
        if (t.n > 0) memcpy(list, t.list, t.n * sizeof *list);
        t.list = list;
    }
    ((struct pn_term *)t.list)[t.n++] = term;
    return t;
}

struct pn_terms pn_shape_property(struct pn_sc *c, const struct pn_shape *s, const char *name) {
    struct pn_terms t = { 0 };
    uint32_t cap = 0;
    for (const struct pn_group *g = s->groups; g && c->err.code == FO_OK; g = g->next) {
        bool named = false;
        pn_sc_work(c, 2);
        for (const struct pn_prop *p = g->props; p; p = p->next)
            if (strcmp(p->name, name) == 0) {
                t = terms_add(c, t, p->term, &cap);
                named = true;
            }
        for (const struct pn_pattern *p = g->patterns; p; p = p->next)
            if (pn_dfa_run(p->dfa, name, strlen(name))) {
                t = terms_add(c, t, p->term, &cap);
                named = true;
            }
        if (!named && g->has_rest) t = terms_add(c, t, g->rest, &cap);
    }
    return t;
}

struct pn_terms pn_shape_item(struct pn_sc *c, const struct pn_shape *s, uint32_t index) {
    struct pn_terms t = { 0 };
    uint32_t cap = 0;
    for (const struct pn_group *g = s->groups; g && c->err.code == FO_OK; g = g->next) {
        if (index < g->n_prefix)
            t = terms_add(c, t, g->prefix[index], &cap);
        else if (g->has_rest)
            t = terms_add(c, t, g->rest, &cap);
    }
    pn_sc_work(c, 2);
    return t;
}

/* --- and --------------------------------------------------------------------------------------- */
/* false: nothing is both. */
static bool shape_and(struct pn_sc *c, const struct pn_shape *a, const struct pn_shape *b, struct pn_shape *ret) {
    if (a->values || b->values) {
        const struct pn_shape *listed = a->values ? a : b, *other = a->values ? b : a;
        const json_t **values = pn_sc_alloc(c, listed->n_values, sizeof *values);
        struct pn_shape rest = *listed;
        uint32_t n = 0;
        if (!values) return false;
        rest.values = NULL;
        for (uint32_t i = 0; i < listed->n_values && c->err.code == FO_OK; i++)
            if (shape_holds(c, other, listed->values[i]) && shape_holds(c, &rest, listed->values[i])) values[n++] = listed->values[i];
        *ret = pn_shape_any(a->type);
        ret->values = values;
        ret->n_values = n;
        return n > 0;
    }
    struct pn_shape s = { .type = a->type, .min = a->min > b->min ? a->min : b->min, .max = a->max < b->max ? a->max : b->max };
    s.dfa = pn_dfa_and(c, a->dfa, b->dfa);
    s.groups = join_groups(c, a->groups, b->groups);
    s.contains = join_contains(c, a->contains, b->contains);
    s.required = join_required(c, a->required, b->required);
    s.names = join_names(c, a->names, b->names);
    s.unique = a->unique || b->unique;
    *ret = s;
    return s.min <= s.max && (!s.dfa || s.dfa->some);
}

struct pn_set pn_set_and(struct pn_sc *c, struct pn_set a, struct pn_set b) {
    uint32_t cap = a.n > b.n ? a.n : b.n, n = 0;
    struct pn_shape *list = pn_sc_alloc(c, cap + 1, sizeof *list), s;
    if (!list) return (struct pn_set){ 0 };
    for (uint32_t i = 0; i < a.n && c->err.code == FO_OK; i++)
        for (uint32_t j = 0; j < b.n && c->err.code == FO_OK; j++) {
            if (a.list[i].type != b.list[j].type) continue;
            pn_sc_work(c, 2);
            if (!shape_and(c, &a.list[i], &b.list[j], &s)) continue;
            if (n == PN_SC_MAX_SHAPES) {
                pn_sc_fail(c, FO_ELIMIT, c->at, c->at_key, "it allows more than %d ways to look", PN_SC_MAX_SHAPES);
                break;
            }
            if (n == cap) {
                struct pn_shape *grown = pn_sc_alloc(c, (size_t)cap * 2, sizeof *grown);
                if (!grown) break;
                memcpy(grown, list, n * sizeof *grown);
                list = grown;
                cap *= 2;
            }
            list[n++] = s;
        }
    return (struct pn_set){ list, n };
}

/* --- empty ------------------------------------------------------------------------------------- */
static bool shape_empty(struct pn_sc *c, const struct pn_shape *s, int depth) {
    if (s->values) return s->n_values == 0;
    if (s->min > s->max || (s->dfa && !s->dfa->some)) return true;
    if (depth == 0) return false;
    if (s->type == PN_T_OBJECT) {
        for (const struct pn_name *r = s->required; r && c->err.code == FO_OK; r = r->next)
            if (pn_set_empty(c, pn_sc_expand_all(c, pn_shape_property(c, s, r->name)), depth - 1)) return true;
    }
    if (s->type == PN_T_ARRAY) {
        for (uint32_t i = 0; i < s->min && i < 16 && c->err.code == FO_OK; i++)
            if (pn_set_empty(c, pn_sc_expand_all(c, pn_shape_item(c, s, i)), depth - 1)) return true;
    }
    return false;
}

bool pn_set_empty(struct pn_sc *c, struct pn_set s, int depth) {
    if (c->err.code) return false;
    for (uint32_t i = 0; i < s.n; i++)
        if (!shape_empty(c, &s.list[i], depth)) return false;
    return true;
}
