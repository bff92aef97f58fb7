/* A schema, or its opposite, as the shapes that it allows: each keyword's, all together. Schemas that apply in place are looked into here;
 * those of properties and items are not: they become rules of their own.
 *
 * unevaluatedProperties and unevaluatedItems ask which parts of the schema looked at a member. Under them each branch of an anyOf stands
 * for itself and together with others: an instance that two branches accept may use what either of them knows. */
#include <jansson.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"

enum { MAX_TRACKED = 5 }; /* branches of which all subsets are written out */

static bool has_unevaluated(const json_t *s) {
    return json_object_get(s, "unevaluatedProperties") || json_object_get(s, "unevaluatedItems");
}

static void check_keyword(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, const struct pn_keyword *k) {
    static const char *const drafts[] = { "//json-schema.org/draft/2020-12/schema", "//json-schema.org/draft/2019-09/schema",
                                          "//json-schema.org/draft-07/schema",      "//json-schema.org/draft-06/schema",
                                          "//json-schema.org/draft-04/schema",      "//json-schema.org/schema" };
    if (k->row.use == PN_SCHEMA_REFUSED) pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "%s", k->row.note);
    if (strcmp(key, "$schema") != 0) return;
    const char *at = json_is_string(v) ? strstr(json_string_value(v), "//") : NULL;
    for (size_t i = 0; at && i < sizeof drafts / sizeof *drafts; i++)
        if (strncmp(at, drafts[i], strlen(drafts[i])) == 0) return;
    pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "a dialect that is not known here");
}

struct pn_set pn_sc_expand(struct pn_sc *c, struct pn_term t) {
    const json_t *s = t.schema, *at = c->at;
    const char *at_key = c->at_key, *key;
    json_t *v;
    if (c->err.code) return (struct pn_set){ 0 };
    pn_sc_work(c, 8);
    if (!s || json_is_boolean(s)) return (!s || json_is_true(s)) != t.neg ? pn_set_any(c) : (struct pn_set){ 0 };
    if (!json_is_object(s)) {
        pn_sc_fail(c, FO_EINVAL, s, NULL, "a schema is an object, true or false");
        return (struct pn_set){ 0 };
    }
    if (c->depth == PN_SC_MAX_INLINE) {
        pn_sc_fail(c, FO_ELIMIT, s, NULL,
                   "more than %d schemas are applied in place of one another here: they refer to themselves without end", PN_SC_MAX_INLINE);
        return (struct pn_set){ 0 };
    }
    c->depth++;
    bool tracked = !t.neg && has_unevaluated(s);
    c->tracked += tracked;
    struct pn_set all = t.neg ? (struct pn_set){ 0 } : pn_set_any(c);
    for (int in_place = 0; in_place < 2; in_place++) json_object_foreach((json_t *)s, key, v) {
            const struct pn_keyword *k = pn_keyword_find(key);
            if (!k || k->in_place != in_place || c->err.code) continue;
            c->at = s;
            c->at_key = key;
            check_keyword(c, s, key, v, k);
            if (!k->fn || c->err.code) continue;
            struct pn_set set = k->fn(c, s, key, v, t.neg);
            all = t.neg ? pn_set_or(c, all, set) : pn_set_and(c, all, set);
        }
    static const char *const unevaluated[] = { "unevaluatedProperties", "unevaluatedItems" };
    for (int i = 0; i < 2 && c->err.code == FO_OK; i++) {
        v = json_object_get(s, unevaluated[i]);
        if (!v) continue;
        if (t.neg && !json_is_true(v)) all = pn_sc_no_opposite(c, s, unevaluated[i], "is not supported");
        if (!t.neg) all = pn_kw_unevaluated(c, s, unevaluated[i], v, all);
    }
    c->tracked -= tracked;
    c->depth--;
    c->at = at;
    c->at_key = at_key;
    return all;
}

struct pn_set pn_sc_expand_all(struct pn_sc *c, struct pn_terms t) {
    struct pn_set all = t.n > 0 ? pn_sc_expand(c, t.list[0]) : pn_set_any(c);
    for (uint32_t i = 1; i < t.n && c->err.code == FO_OK; i++) all = pn_set_and(c, all, pn_sc_expand(c, t.list[i]));
    return all;
}

/* --- in place ---------------------------------------------------------------------------------- */
struct pn_set pn_kw_ref(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    if (!json_is_string(v)) {
        pn_sc_fail(c, FO_EINVAL, s, key, "it must be a string");
        return (struct pn_set){ 0 };
    }
    const json_t *target = pn_sc_resolve(c, s, key, json_string_value(v));
    if (!target) return (struct pn_set){ 0 };
    if (key[1] == 'd') target = pn_sc_dynamic(c, target, json_string_value(v));
    if (!target) {
        pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "it may mean more than one schema");
        return (struct pn_set){ 0 };
    }
    return pn_sc_expand(c, (struct pn_term){ target, neg });
}

static bool list_of(struct pn_sc *c, const json_t *s, const char *key, const json_t *v) {
    if (json_is_array(v) && json_array_size(v) > 0) return true;
    pn_sc_fail(c, FO_EINVAL, s, key, "it must be a list of at least one schema");
    return false;
}

static struct pn_set all_of(struct pn_sc *c, const json_t *v, bool neg) {
    struct pn_set set = pn_set_any(c);
    for (size_t i = 0; i < json_array_size(v) && c->err.code == FO_OK; i++)
        set = pn_set_and(c, set, pn_sc_expand(c, (struct pn_term){ json_array_get(v, i), neg }));
    return set;
}

static struct pn_set any_of(struct pn_sc *c, const json_t *v, bool neg) {
    struct pn_set set = { 0 };
    for (size_t i = 0; i < json_array_size(v) && c->err.code == FO_OK; i++)
        set = pn_set_or(c, set, pn_sc_expand(c, (struct pn_term){ json_array_get(v, i), neg }));
    return set;
}

struct pn_set pn_kw_all(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    if (!list_of(c, s, key, v)) return (struct pn_set){ 0 };
    return neg ? any_of(c, v, true) : all_of(c, v, false);
}

struct pn_set pn_kw_any(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    size_t n = json_array_size(v);
    if (!list_of(c, s, key, v)) return (struct pn_set){ 0 };
    if (neg) return all_of(c, v, true);
    if (!c->tracked || n == 1) return any_of(c, v, false);
    if (n > MAX_TRACKED) {
        pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "more than %d branches under unevaluatedProperties or unevaluatedItems", MAX_TRACKED);
        return (struct pn_set){ 0 };
    }
    struct pn_set each[MAX_TRACKED], set = { 0 };
    for (size_t i = 0; i < n; i++) each[i] = pn_sc_expand(c, (struct pn_term){ json_array_get(v, i), false });
    for (unsigned some = 1; some < 1u << n && c->err.code == FO_OK; some++) {
        struct pn_set both = pn_set_any(c);
        for (size_t i = 0; i < n; i++)
            if (some >> i & 1) both = pn_set_and(c, both, each[i]);
        set = pn_set_or(c, set, both);
    }
    return set;
}

struct pn_set pn_kw_one(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    size_t n = json_array_size(v);
    struct pn_set all = { 0 };
    if (!list_of(c, s, key, v)) return all;
    struct pn_set *each = pn_sc_alloc(c, n, sizeof *each);
    if (!each) return all;
    for (size_t i = 0; i < n; i++) each[i] = pn_sc_expand(c, (struct pn_term){ json_array_get(v, i), false });
    if (neg) { /* none, or two */
        all = all_of(c, v, true);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i && c->err.code == FO_OK; j++) all = pn_set_or(c, all, pn_set_and(c, each[i], each[j]));
        return all;
    }
    bool *overlaps = pn_sc_alloc(c, n * n, sizeof *overlaps);
    if (!overlaps) return all;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i && c->err.code == FO_OK; j++)
            overlaps[i * n + j] = overlaps[j * n + i] = !pn_set_empty(c, pn_set_and(c, each[i], each[j]), 2);
    for (size_t i = 0; i < n; i++) {
        struct pn_set only = each[i];
        for (size_t j = 0; j < n && c->err.code == FO_OK; j++)
            if (overlaps[i * n + j]) only = pn_set_and(c, only, pn_sc_expand(c, (struct pn_term){ json_array_get(v, j), true }));
        all = pn_set_or(c, all, only);
    }
    return all;
}

struct pn_set pn_kw_not(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    struct pn_set set = pn_sc_expand(c, (struct pn_term){ v, !neg });
    (void)s;
    (void)key;
    for (uint32_t i = 0; i < set.n && c->tracked; i++) { /* what fails has looked at nothing, also not when that fails again */
        struct pn_group *groups = NULL, *g, **last = &groups;
        struct pn_contains *contains = NULL, *k, **end = &contains;
        for (const struct pn_group *from = set.list[i].groups; from && (g = pn_sc_alloc(c, 1, sizeof *g)); from = from->next) {
            *g = *from;
            g->evaluates = false;
            g->next = NULL;
            *last = g;
            last = (struct pn_group **)(void *)&g->next;
        }
        for (const struct pn_contains *from = set.list[i].contains; from && (k = pn_sc_alloc(c, 1, sizeof *k)); from = from->next) {
            *k = *from;
            k->evaluates = false;
            k->next = NULL;
            *end = k;
            end = (struct pn_contains **)(void *)&k->next;
        }
        set.list[i].groups = groups;
        set.list[i].contains = contains;
    }
    return set;
}

struct pn_set pn_kw_if(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, bool neg) {
    const json_t *then = json_object_get(s, "then"), *other = json_object_get(s, "else");
    (void)key;
    if (!then && !other && !c->tracked) return neg ? (struct pn_set){ 0 } : pn_set_any(c);
    struct pn_set yes = pn_set_and(c, pn_sc_expand(c, (struct pn_term){ v, false }), pn_sc_expand(c, (struct pn_term){ then, neg }));
    struct pn_set no = pn_set_and(c, pn_sc_expand(c, (struct pn_term){ v, true }), pn_sc_expand(c, (struct pn_term){ other, neg }));
    return pn_set_or(c, yes, no);
}

/* --- what was not evaluated -------------------------------------------------------------------- */
static void close_object(struct pn_sc *c, struct pn_shape *shape, const json_t *v) {
    struct pn_group *g = pn_sc_alloc(c, 1, sizeof *g);
    if (!g) return;
    *g = (struct pn_group){ .has_rest = true, .rest.schema = v, .evaluates = true, .next = shape->groups };
    for (const struct pn_group *k = shape->groups; k; k = k->next) {
        if (!k->evaluates) continue;
        if (k->has_rest) return; /* that has looked at all */
        for (const struct pn_prop *p = k->props; p; p = p->next) {
            struct pn_prop *copy = pn_sc_alloc(c, 1, sizeof *copy);
            if (!copy) return;
            *copy = (struct pn_prop){ .name = p->name, .next = g->props };
            g->props = copy;
        }
        for (const struct pn_pattern *p = k->patterns; p; p = p->next) {
            struct pn_pattern *copy = pn_sc_alloc(c, 1, sizeof *copy);
            if (!copy) return;
            *copy = (struct pn_pattern){ .dfa = p->dfa, .next = g->patterns };
            g->patterns = copy;
        }
    }
    /* last, so that the order of the properties stays that of those who declare them */
    struct pn_shape closing = pn_shape_any(PN_T_OBJECT);
    g->next = NULL;
    closing.groups = g;
    struct pn_set both = pn_set_and(c, pn_set_one(c, *shape), pn_set_one(c, closing));
    if (both.n == 1) *shape = both.list[0];
}

static void close_array(struct pn_sc *c, struct pn_shape *shape, const json_t *s, const char *key, const json_t *v) {
    struct pn_group *g = pn_sc_alloc(c, 1, sizeof *g);
    const struct pn_contains *looked = NULL;
    if (!g) return;
    *g = (struct pn_group){ .has_rest = true, .rest.schema = v, .evaluates = true, .next = shape->groups };
    for (const struct pn_group *k = shape->groups; k; k = k->next) {
        if (!k->evaluates) continue;
        if (k->has_rest) return;
        if (k->n_prefix > g->n_prefix) g->n_prefix = k->n_prefix;
    }
    for (const struct pn_contains *k = shape->contains; k; k = k->next) {
        if (!k->evaluates) continue;
        if (looked || !json_is_false(v)) {
            pn_sc_fail(c, FO_EUNSUPPORTED, s, key, looked ? "with more than one contains" : "with contains it must be false");
            return;
        }
        looked = k;
    }
    if (looked) g->rest = looked->term;
    g->prefix = pn_sc_alloc(c, (size_t)g->n_prefix + 1, sizeof *g->prefix);
    if (g->prefix) shape->groups = g;
}

struct pn_set pn_kw_unevaluated(struct pn_sc *c, const json_t *s, const char *key, const json_t *v, struct pn_set set) {
    bool object = strcmp(key, "unevaluatedProperties") == 0;
    struct pn_shape *list = pn_sc_alloc(c, (size_t)set.n + 1, sizeof *list);
    if (!list) return set;
    if (set.n > 0) memcpy(list, set.list, set.n * sizeof *list);
    for (uint32_t i = 0; i < set.n && c->err.code == FO_OK; i++) {
        if (list[i].values) { /* which of its members were looked at is not known any more */
            if (list[i].type == (object ? PN_T_OBJECT : PN_T_ARRAY) && !json_is_true(v))
                pn_sc_fail(c, FO_EUNSUPPORTED, s, key, "beside enum or const");
            continue;
        }
        if (list[i].type == PN_T_OBJECT && object) close_object(c, &list[i], v);
        if (list[i].type == PN_T_ARRAY && !object) close_array(c, &list[i], s, key, v);
    }
    return (struct pn_set){ list, set.n };
}
