/* Shapes as rules. An object is a chain of rules, one for each declared property and number of members before it (as far as that number
 * matters), each with the property or, where it is optional, without; additional properties stand at the end of the chain. An array with
 * `contains` is a chain of the same kind, in which each item counts as found or not. */
#include <jansson.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"

static uint32_t seq2(struct pn_sc *c, uint32_t a, uint32_t b) {
    return pn_ir_seq(c->ir, (const uint32_t[]){ a, b }, 2);
}

static uint32_t seq3(struct pn_sc *c, uint32_t a, uint32_t b, uint32_t d) {
    return pn_ir_seq(c->ir, (const uint32_t[]){ a, b, d }, 3);
}

static uint32_t optional(struct pn_sc *c, uint32_t a) {
    return pn_ir_repeat(c->ir, a, 0, 1);
}

static uint32_t text(struct pn_sc *c, const char *s) {
    return pn_ir_literal(c->ir, s, strlen(s));
}

/* The node of what all those terms allow; 0 when that is surely nothing. */
static uint32_t value_of(struct pn_sc *c, struct pn_terms t) {
    for (uint32_t i = 0; i < t.n; i++)
        if (t.list[i].schema && (t.list[i].neg ? json_is_true(t.list[i].schema) : json_is_false(t.list[i].schema))) return 0;
    return pn_ir_ref(c->ir, pn_sc_rule(c, t.list, t.n));
}

/* One more of min to max of a node, of which there have been `before`, each after a comma but the first of all. */
static uint32_t list_tail(struct pn_sc *c, uint32_t node, uint32_t before, uint32_t min, uint32_t max) {
    uint32_t lo = min > before ? min - before : 0, hi = max == PN_SC_NO_END ? max : max - before;
    if (node == 0 || hi == 0) return lo == 0 ? pn_ir_empty(c->ir) : pn_ir_never(c->ir);
    uint32_t next = seq2(c, pn_text_comma(c), node);
    if (before > 0) return pn_ir_repeat(c->ir, next, lo, hi);
    uint32_t all = seq2(c, node, pn_ir_repeat(c->ir, next, lo > 0 ? lo - 1 : 0, hi == PN_SC_NO_END ? hi : hi - 1));
    return lo == 0 ? optional(c, all) : all;
}

static uint32_t new_rule(struct pn_sc *c, uint32_t node) {
    uint32_t rule = pn_ir_rule(c->ir, "", 0, 0, 0);
    pn_ir_define(c->ir, rule, node);
    return rule;
}

/* --- objects ----------------------------------------------------------------------------------- */
struct member {
    const char *name;
    uint32_t node; /* the whole member; 0 = it must not come */
    bool required;
};

struct object {
    const struct pn_shape *s;
    struct member *list;
    uint32_t n, cap;
    const struct pn_pattern *patterns[8]; /* one of each automaton */
    uint32_t n_patterns;
};

static uint32_t slot_of(const char *name, uint32_t mask) {
    uint32_t hash = 2166136261u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (hash ^ hash >> 15) & mask;
}

static bool name_fits(struct pn_sc *c, const struct pn_shape *s, const char *name) {
    for (const struct pn_names_term *t = s->names; t; t = t->next) {
        json_t *text_of = json_string(name);
        bool fits = text_of && pn_sc_holds(c, t->term, text_of);
        json_decref(text_of);
        if (!fits) return false;
    }
    return true;
}

/* All names that the groups declare and that are required, each once, in order. */
static bool list_members(struct pn_sc *c, struct object *o) {
    uint32_t n = 1, bits = 4;
    for (const struct pn_group *g = o->s->groups; g; g = g->next)
        for (const struct pn_prop *p = g->props; p; p = p->next) n++;
    for (const struct pn_name *r = o->s->required; r; r = r->next) n++;
    while (1u << bits < n * 2) bits++;
    uint32_t *index = pn_sc_alloc(c, (size_t)1 << bits, sizeof *index), mask = (1u << bits) - 1;
    o->list = pn_sc_alloc(c, n, sizeof *o->list);
    if (!index || !o->list) return false;
    const struct pn_group *g = o->s->groups;
    const struct pn_prop *p = g ? g->props : NULL;
    const struct pn_name *r = o->s->required;
    for (;;) {
        while (g && !p) p = (g = g->next) ? g->props : NULL;
        const char *name = p ? p->name : r ? r->name : NULL;
        if (!name) return true;
        uint32_t at = slot_of(name, mask);
        while (index[at] && strcmp(o->list[index[at] - 1].name, name) != 0) at = (at + 1) & mask;
        if (!index[at]) {
            o->list[o->n] = (struct member){ .name = name };
            index[at] = ++o->n;
        }
        if (p) {
            p = p->next;
        } else {
            o->list[index[at] - 1].required = true;
            r = r->next;
        }
        pn_sc_work(c, 2);
    }
}

/* Additional members: those whose name is none of the declared ones, apart by which patterns it matches. 0 = there are none. */
static uint32_t additional(struct pn_sc *c, struct object *o) {
    uint32_t alts[64], n_alts = 0;
    const char **words = pn_sc_alloc(c, (size_t)o->n + 1, sizeof *words);
    size_t *lens = pn_sc_alloc(c, (size_t)o->n + 1, sizeof *lens);
    const struct pn_dfa *others = NULL;
    if (!words || !lens) return 0;
    for (const struct pn_group *g = o->s->groups; g; g = g->next)
        for (const struct pn_pattern *p = g->patterns; p; p = p->next) {
            uint32_t k = 0;
            while (k < o->n_patterns && o->patterns[k]->dfa != p->dfa) k++;
            if (k < o->n_patterns) continue;
            if (k == 6) {
                pn_sc_fail(c, FO_EUNSUPPORTED, c->at, "patternProperties", "more than 6 patterns for one object");
                return 0;
            }
            o->patterns[o->n_patterns++] = p;
        }
    for (unsigned which = 0; which < 1u << o->n_patterns && c->err.code == FO_OK; which++) {
        struct pn_term *terms = NULL;
        uint32_t n = 0;
        for (int fill = 0; fill < 2; fill++) { /* counts, then writes */
            if (fill && !(terms = pn_sc_alloc(c, (size_t)n + 1, sizeof *terms))) return 0;
            n = 0;
            for (const struct pn_group *g = o->s->groups; g; g = g->next) {
                bool named = false;
                for (const struct pn_pattern *p = g->patterns; p; p = p->next) {
                    uint32_t k = 0;
                    while (o->patterns[k]->dfa != p->dfa) k++;
                    if (!(which >> k & 1)) continue;
                    named = true;
                    if (fill) terms[n] = p->term;
                    n++;
                }
                if (named || !g->has_rest) continue;
                if (fill) terms[n] = g->rest;
                n++;
            }
        }
        uint32_t value = value_of(c, (struct pn_terms){ terms, n });
        if (value == 0) continue;
        if (o->n > 0 && !others) {
            for (uint32_t i = 0; i < o->n; i++) {
                words[i] = o->list[i].name;
                lens[i] = strlen(words[i]);
            }
            others = pn_dfa_not(c, pn_dfa_words(c, words, lens, o->n));
        }
        const struct pn_dfa *name = others;
        for (uint32_t k = 0; k < o->n_patterns && c->err.code == FO_OK; k++)
            name = pn_dfa_and(c, name, which >> k & 1 ? o->patterns[k]->dfa : pn_dfa_not(c, o->patterns[k]->dfa));
        if (c->err.code || (name && !name->some)) continue;
        struct pn_set names = pn_set_one(c, pn_shape_any(PN_T_STRING));
        for (const struct pn_names_term *t = o->s->names; t; t = t->next) names = pn_set_and(c, names, pn_sc_expand(c, t->term));
        for (uint32_t i = 0; i < names.n && c->err.code == FO_OK; i++) {
            const struct pn_shape *shape = &names.list[i];
            const struct pn_dfa *both = pn_dfa_and(c, name, shape->dfa);
            for (uint32_t k = 0; k < shape->n_values && shape->values; k++) {
                const char **list = pn_sc_alloc(c, shape->n_values, sizeof *list);
                size_t *list_lens = pn_sc_alloc(c, shape->n_values, sizeof *list_lens);
                if (!list || !list_lens) return 0;
                for (k = 0; k < shape->n_values; k++) {
                    list[k] = json_string_value(shape->values[k]);
                    list_lens[k] = json_string_length(shape->values[k]);
                }
                both = pn_dfa_and(c, both, pn_dfa_words(c, list, list_lens, k));
            }
            if (c->err.code || (both && !both->some)) continue;
            if (n_alts == 64) alts[0] = pn_ir_alt(c->ir, alts, n_alts), n_alts = 1;
            alts[n_alts++] = seq3(c, pn_text_string_of(c, both, shape->min, shape->max), pn_text_colon(c), value);
        }
    }
    if (n_alts == 0 || c->err.code) return 0;
    return pn_ir_ref(c->ir, new_rule(c, pn_ir_alt(c->ir, alts, n_alts)));
}

/* The brace of an object. Models that lay arguments out on lines have done so by the time that they are held to a schema. */
static uint32_t brace(struct pn_sc *c) {
    if (!c->begun) return text(c, "{");
    uint32_t indent = pn_ir_repeat(c->ir, pn_ir_alt(c->ir, (const uint32_t[]){ text(c, " "), text(c, "\t") }, 2), 0, 64);
    uint32_t blank[] = { pn_ir_empty(c->ir), text(c, " "), seq2(c, text(c, "\n"), indent) };
    return seq2(c, text(c, "{"), pn_ir_alt(c->ir, blank, 3));
}

static uint32_t emit_object(struct pn_sc *c, const struct pn_shape *s) {
    struct object o = { .s = s };
    uint32_t n = 0, n_required = 0;
    if (!list_members(c, &o)) return 0;
    uint32_t others = s->max > 0 ? additional(c, &o) : 0;
    for (uint32_t i = 0; i < o.n && c->err.code == FO_OK; i++) { /* what must not come leaves the list */
        struct member m = o.list[i];
        uint32_t value = name_fits(c, s, m.name) ? value_of(c, pn_shape_property(c, s, m.name)) : 0;
        if (value == 0 && m.required) return pn_ir_never(c->ir);
        if (value == 0) continue;
        m.node = seq3(c, pn_text_string(c, m.name, strlen(m.name)), pn_text_colon(c), value);
        n_required += m.required;
        o.list[n++] = m;
    }
    if (c->err.code || n_required > s->max) return pn_ir_never(c->ir);
    /* How many members there were is told apart up to where it does not matter any more; with an upper bound that can be met, all along. */
    bool bounded = s->max < PN_SC_NO_END && (others || s->max < n);
    uint32_t most = bounded ? n : s->min > 1 ? s->min : 1;
    if (most > n) most = n > 0 ? n : 1;
    if ((uint64_t)(n + 1) * ((uint64_t)most + 1) > PN_SC_MAX_CELLS && most > 1) {
        pn_sc_fail(c, FO_EUNSUPPORTED, c->at, s->max < PN_SC_NO_END ? "maxProperties" : "minProperties",
                   "so many declared properties cannot be counted");
        return 0;
    }
    uint32_t *next = pn_sc_alloc(c, (size_t)most + 1, sizeof *next), *now = pn_sc_alloc(c, (size_t)most + 1, sizeof *now);
    if (!next || !now) return 0;
    for (uint32_t k = 0; k <= most; k++) next[k] = k > s->max ? pn_ir_never(c->ir) : list_tail(c, others, k, s->min, s->max);
    for (uint32_t i = n; i-- > 0 && c->err.code == FO_OK;) {
        for (uint32_t k = 0; k <= most && k <= i; k++) {
            uint32_t ways[2], n_ways = 0, after = k < most ? k + 1 : most;
            bool full = k >= s->max;
            if (!full) {
                uint32_t tail = pn_ir_ref(c->ir, new_rule(c, next[after]));
                ways[n_ways++] = k > 0 ? seq3(c, pn_text_comma(c), o.list[i].node, tail) : seq2(c, o.list[i].node, tail);
            }
            if (!o.list[i].required) ways[n_ways++] = pn_ir_ref(c->ir, new_rule(c, next[k]));
            now[k] = pn_ir_alt(c->ir, ways, n_ways);
        }
        uint32_t *swap = next;
        next = now;
        now = swap;
        pn_sc_work(c, most + 1);
    }
    return seq3(c, brace(c), pn_ir_ref(c->ir, new_rule(c, next[0])), text(c, "}"));
}

/* --- arrays ------------------------------------------------------------------------------------ */
static uint32_t item(struct pn_sc *c, const struct pn_shape *s, uint32_t i, const struct pn_term *also) {
    struct pn_terms t = pn_shape_item(c, s, i);
    if (!also) return value_of(c, t);
    struct pn_term *list = pn_sc_alloc(c, (size_t)t.n + 1, sizeof *list);
    if (!list) return 0;
    if (t.n > 0) memcpy(list, t.list, t.n * sizeof *list);
    list[t.n] = *also;
    return value_of(c, (struct pn_terms){ list, t.n + 1 });
}

static uint32_t emit_containing(struct pn_sc *c, const struct pn_shape *s, uint32_t n_prefix) {
    const struct pn_contains *k = s->contains;
    if (k->next) {
        pn_sc_fail(c, FO_EUNSUPPORTED, c->at, "contains", "more than one for one array");
        return 0;
    }
    uint32_t n_at = s->max < PN_SC_NO_END ? s->max : n_prefix > s->min ? n_prefix : s->min, n_found;
    if (n_at == 0 && s->max > 0) n_at = 1; /* no comma before the first */
    n_found = k->max < PN_SC_NO_END ? k->max : k->min;
    uint64_t cells = ((uint64_t)n_at + 1) * ((uint64_t)n_found + 1);
    if (cells > PN_SC_MAX_CELLS) {
        pn_sc_fail(c, FO_EUNSUPPORTED, c->at, "contains", "it cannot be counted that far: positions times counts pass %d", PN_SC_MAX_CELLS);
        return 0;
    }
    uint32_t *rules = pn_sc_alloc(c, cells, sizeof *rules), w = n_found + 1;
    if (!rules) return 0;
    for (uint64_t i = 0; i < cells; i++) rules[i] = pn_ir_rule(c->ir, "", 0, 0, 0);
    struct pn_term yes = k->term, no = { yes.schema, !yes.neg };
    for (uint32_t i = 0; i <= n_at && c->err.code == FO_OK; i++) {
        bool last = i == n_at && s->max < PN_SC_NO_END;
        uint32_t found = last ? 0 : item(c, s, i, &yes), any = last || k->max < PN_SC_NO_END ? 0 : item(c, s, i, NULL);
        uint32_t other = last || k->max == PN_SC_NO_END ? 0 : item(c, s, i, &no);
        for (uint32_t f = 0; f < w; f++) {
            /* Beyond the prefix and the least number positions are alike. */
            uint32_t ways[3], n = 0, at = i < n_at ? i + 1 : n_at, row = at * w;
            bool enough = k->max == PN_SC_NO_END && f == k->min;
            if (i >= s->min && f >= k->min) ways[n++] = pn_ir_empty(c->ir);
            uint32_t comma = i > 0 ? pn_text_comma(c) : pn_ir_empty(c->ir);
            if (found && !enough && f < n_found) ways[n++] = seq3(c, comma, found, pn_ir_ref(c->ir, rules[row + f + 1]));
            uint32_t stay = k->max == PN_SC_NO_END ? any : other;
            if (stay) ways[n++] = seq3(c, comma, stay, pn_ir_ref(c->ir, rules[row + f]));
            pn_ir_define(c->ir, rules[i * w + f], pn_ir_alt(c->ir, ways, n));
            pn_sc_work(c, 4);
        }
    }
    return seq3(c, text(c, "["), pn_ir_ref(c->ir, rules[0]), text(c, "]"));
}

/* Different ones of at most 8 values: which have come is told apart. 0 with a refusal where the items are not of that kind. */
static uint32_t emit_unique(struct pn_sc *c, const struct pn_shape *s, uint32_t n_prefix) {
    struct pn_set set = pn_sc_expand_all(c, pn_shape_item(c, s, n_prefix));
    const json_t *values[8];
    uint32_t n = 0;
    bool listed = n_prefix == 0 && !s->contains;
    for (uint32_t i = 0; i < set.n && listed; i++) {
        const struct pn_shape *shape = &set.list[i];
        if (!shape->values) {
            listed = shape->type <= PN_T_TRUE && n < 8;
            if (listed) values[n++] = shape->type == PN_T_NULL ? json_null() : shape->type == PN_T_TRUE ? json_true() : json_false();
            continue;
        }
        for (uint32_t k = 0; k < shape->n_values && listed; k++) {
            bool before = false;
            for (uint32_t j = 0; j < n; j++) before |= pn_sc_equal(values[j], shape->values[k]);
            if (before) continue;
            listed = n < 8;
            if (listed) values[n++] = shape->values[k];
        }
    }
    if (!listed) {
        pn_sc_fail(c, FO_EUNSUPPORTED, c->at, "uniqueItems",
                   "a grammar does not remember items: only up to 8 values of an enum can be kept apart");
        return 0;
    }
    uint32_t rules[256];
    for (unsigned had = 0; had < 1u << n; had++) rules[had] = pn_ir_rule(c->ir, "", 0, 0, 0);
    for (unsigned had = 0; had < 1u << n && c->err.code == FO_OK; had++) {
        uint32_t ways[9], k = 0, count = (uint32_t)__builtin_popcount(had);
        if (count >= s->min) ways[k++] = pn_ir_empty(c->ir);
        for (uint32_t i = 0; i < n && count < s->max; i++)
            if (!(had >> i & 1))
                ways[k++] = seq3(c, had ? pn_text_comma(c) : pn_ir_empty(c->ir), pn_text_value(c, values[i], 0),
                                 pn_ir_ref(c->ir, rules[had | 1u << i]));
        pn_ir_define(c->ir, rules[had], pn_ir_alt(c->ir, ways, k));
    }
    return seq3(c, text(c, "["), pn_ir_ref(c->ir, rules[0]), text(c, "]"));
}

static uint32_t emit_array(struct pn_sc *c, const struct pn_shape *s) {
    uint32_t n_prefix = 0;
    for (const struct pn_group *g = s->groups; g; g = g->next)
        if (g->n_prefix > n_prefix) n_prefix = g->n_prefix;
    if (s->unique && s->max > 1) return emit_unique(c, s, n_prefix);
    if (s->contains) return emit_containing(c, s, n_prefix);
    uint32_t tail = n_prefix > s->max ? pn_ir_empty(c->ir) : list_tail(c, item(c, s, n_prefix, NULL), n_prefix, s->min, s->max);
    for (uint32_t i = n_prefix; i-- > 0 && c->err.code == FO_OK;) {
        uint32_t ways[2], n = 0, node = i < s->max ? item(c, s, i, NULL) : 0;
        if (i >= s->min) ways[n++] = pn_ir_empty(c->ir);
        if (node) ways[n++] = seq3(c, i > 0 ? pn_text_comma(c) : pn_ir_empty(c->ir), node, pn_ir_ref(c->ir, new_rule(c, tail)));
        tail = pn_ir_alt(c->ir, ways, n);
    }
    return seq3(c, text(c, "["), tail, text(c, "]"));
}

/* --- any --------------------------------------------------------------------------------------- */
static uint32_t emit_values(struct pn_sc *c, const struct pn_shape *s) {
    uint32_t *alts = pn_sc_alloc(c, (size_t)s->n_values + 1, sizeof *alts);
    if (!alts) return 0;
    for (uint32_t i = 0; i < s->n_values && c->err.code == FO_OK; i++) alts[i] = pn_text_value(c, s->values[i], 0);
    return c->err.code ? 0 : pn_ir_alt(c->ir, alts, s->n_values);
}

static uint32_t emit_shape(struct pn_sc *c, const struct pn_shape *s) {
    if (s->min > s->max) return pn_ir_never(c->ir);
    if (s->values) return emit_values(c, s);
    switch (s->type) {
    case PN_T_NULL:
        return text(c, "null");
    case PN_T_FALSE:
        return text(c, "false");
    case PN_T_TRUE:
        return text(c, "true");
    case PN_T_NUMBER:
        return pn_text_number_of(c, s->dfa);
    case PN_T_STRING:
        return pn_text_string_of(c, s->dfa, s->min, s->max);
    case PN_T_ARRAY:
        return emit_array(c, s);
    case PN_T_OBJECT:
        return emit_object(c, s);
    case PN_N_TYPES:
        break;
    }
    return 0;
}

uint32_t pn_sc_emit(struct pn_sc *c, struct pn_set set) {
    uint32_t *alts = pn_sc_alloc(c, (size_t)set.n + 1, sizeof *alts);
    if (!alts) return 0;
    for (uint32_t i = 0; i < set.n && c->err.code == FO_OK; i++) alts[i] = emit_shape(c, &set.list[i]);
    return c->err.code ? 0 : pn_ir_alt(c->ir, alts, set.n);
}
