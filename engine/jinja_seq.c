/* The filters on sequences. Those that are generators in Jinja (map, select, reject and so on) give a value that can be gone through
 * once, is always true and has no length, as there. They do their work at once, but an error waits until someone looks. */
#include "engine/jinja_impl.h"

#include <stdlib.h>
#include <string.h>

static bool flag(const struct pn_value *v, bool def) {
    return v ? pn_value_truth(*v) : def;
}

static int make_list(struct pn_rt *rt, const struct pn_value *v, size_t n, enum pn_seq seq, struct pn_value *ret) {
    if (pn_charge(rt, n)) return rt->e->code;
    return pn_list_new(rt->region, n ? v : NULL, n, seq, ret, rt->e) ? pn_rt_place(rt) : 0;
}

static struct pn_value *room(struct pn_rt *rt, size_t n) {
    struct pn_value *v = fo_region_array(rt->region, n, sizeof *v);
    if (!v) pn_rt_full(rt);
    return v;
}

/* What a generator filter made, or, when it failed with a mistake of the template's, something that fails when gone through. */
static int lazily(struct pn_rt *rt, int rc, unsigned depth, struct pn_value *ret) {
    if (rc != FO_EFORMAT) return rc;
    struct fo_err *why = fo_region_alloc(rt->region, sizeof *why);
    struct pn_value list;
    if (!why) return pn_rt_full(rt);
    *why = *rt->e;
    if (make_list(rt, NULL, 0, PN_SEQ_ITER, &list)) return rt->e->code;
    list.list->broken = why;
    rt->depth = depth;
    *ret = list;
    return 0;
}

static bool given(const struct pn_value *v) {
    return v && v->kind != PN_V_NULL;
}

/* --- attributes and order ---------------------------------------------------------------------------------------------- */

int pn_attribute(struct pn_rt *rt, struct pn_value v, struct pn_value path, struct pn_value *ret) {
    if (path.kind == PN_V_INT) return pn_op_item(rt, v, path, ret);
    if (path.kind != PN_V_STR) return pn_rt_fail(rt, "an attribute must be a string or an integer, not %s", pn_value_type(path));
    for (size_t from = 0; from <= path.s->len;) {
        const char *dot = memchr(path.s->s + from, '.', path.s->len - from);
        size_t len = dot ? (size_t)(dot - path.s->s) - from : path.s->len - from;
        struct pn_value key;
        int64_t i = 0;
        size_t digits = 0;
        while (digits < len && digits < 9 && path.s->s[from + digits] >= '0' && path.s->s[from + digits] <= '9')
            i = i * 10 + (path.s->s[from + digits++] - '0');
        if (!pn_str_part(rt->region, path, from, len, &key)) return pn_rt_full(rt);
        if (len && digits == len) key = pn_int(i);
        if (pn_charge(rt, 1) || pn_op_item(rt, v, key, &v)) return rt->e->code;
        from += len + 1;
    }
    *ret = v;
    return 0;
}

/* What `attribute` and `case_sensitive` make of an element, to compare it by. */
static int sort_key(struct pn_rt *rt, struct pn_value v, const struct pn_value *attribute, bool cased, struct pn_value *ret) {
    if (given(attribute) && pn_attribute(rt, v, *attribute, &v)) return rt->e->code;
    *ret = v;
    return v.kind == PN_V_STR && !cased ? pn_str_case(rt, v, PN_CASE_LOWER, ret) : 0;
}

/* attribute="a,b": by a, then by b. */
static int sort_keys(struct pn_rt *rt, struct pn_value v, const struct pn_value *attributes, bool cased, struct pn_value *ret) {
    struct pn_list parts;
    struct pn_value comma, names;
    if (!attributes || attributes->kind != PN_V_STR || !memchr(attributes->s->s, ',', attributes->s->len))
        return sort_key(rt, v, attributes, cased, ret);
    if (!pn_str_view(rt->region, ",", 1, PN_BY_TEMPLATE, &comma)) return pn_rt_full(rt);
    if (pn_str_split(rt, *attributes, &comma, -1, false, &names) || pn_op_iter(rt, names, &parts)) return rt->e->code;
    for (size_t i = 0; i < parts.n; i++)
        if (sort_key(rt, v, &parts.v[i], cased, &parts.v[i])) return rt->e->code;
    return make_list(rt, parts.v, parts.n, PN_SEQ_LIST, ret);
}

static int keys_of(struct pn_rt *rt, const struct pn_list *items, const struct pn_value *attribute, bool cased, struct pn_value **ret) {
    struct pn_value *keys = room(rt, items->n);
    if (!keys) return rt->e->code;
    for (size_t i = 0; i < items->n; i++)
        if (sort_keys(rt, items->v[i], attribute, cased, &keys[i])) return rt->e->code;
    *ret = keys;
    return 0;
}

/* Orders a[0..n) (indices into keys), stably; tmp is [n]. */
static int merge_sort(struct pn_rt *rt, const struct pn_value *keys, uint32_t *a, uint32_t *tmp, size_t n, bool reverse) {
    if (n < 2) return 0;
    size_t half = n / 2, o = 0;
    if (merge_sort(rt, keys, a, tmp, half, reverse) || merge_sort(rt, keys, a + half, tmp, n - half, reverse)) return rt->e->code;
    memcpy(tmp, a, half * sizeof *a);
    for (size_t i = 0, j = half; i < half;) {
        int c = -1;
        if (j < n) {
            struct pn_value x = keys[a[j]], y = keys[tmp[i]];
            if (pn_charge(rt, pn_value_weight(x)) || pn_op_order(rt, x, y, &c)) return rt->e->code;
            c = reverse ? -c : c;
        }
        a[o++] = j < n && c < 0 ? a[j++] : tmp[i++];
    }
    return 0;
}

int pn_sort_values(struct pn_rt *rt, struct pn_value *v, struct pn_value *keys, size_t n, bool reverse) {
    if (n > UINT32_MAX / 4) return pn_rt_limit(rt, "too many values to sort");
    uint32_t *order = fo_region_array(rt->region, n, 2 * sizeof *order);
    struct pn_value *old = fo_region_array(rt->region, n, 2 * sizeof *old);
    if (!order || !old) return pn_rt_full(rt);
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    if (merge_sort(rt, keys, order, order + n, n, reverse)) return rt->e->code;
    if (n) {
        memcpy(old, v, n * sizeof *v);
        memcpy(old + n, keys, n * sizeof *keys);
    }
    for (size_t i = 0; i < n; i++) {
        v[i] = old[order[i]];
        keys[i] = old[n + order[i]];
    }
    return 0;
}

static int copy_items(struct pn_rt *rt, struct pn_value self, struct pn_list *ret) {
    struct pn_list items;
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    struct pn_value *v = room(rt, items.n);
    if (!v) return rt->e->code;
    if (items.n) memcpy(v, items.v, items.n * sizeof *v);
    *ret = (struct pn_list){ .v = v, .n = items.n };
    return 0;
}

static int f_sort(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    struct pn_value *keys;
    if (copy_items(rt, self, &items) || keys_of(rt, &items, a->v[2], flag(a->v[1], false), &keys)) return rt->e->code;
    for (size_t i = 0; i < items.n; i++) /* as Jinja's keys: in a list, where equal ones need no order */
        if (make_list(rt, &keys[i], 1, PN_SEQ_LIST, &keys[i])) return rt->e->code;
    if (pn_sort_values(rt, items.v, keys, items.n, flag(a->v[0], false))) return rt->e->code;
    return make_list(rt, items.v, items.n, PN_SEQ_LIST, ret);
}

static int pairs_of(struct pn_rt *rt, const struct pn_dict *d, struct pn_list *ret) {
    struct pn_value *v = room(rt, d->n);
    if (!v) return rt->e->code;
    for (size_t i = 0; i < d->n; i++) {
        struct pn_value pair[2] = { d->k[i], d->v[i] };
        if (make_list(rt, pair, 2, PN_SEQ_TUPLE, &v[i])) return rt->e->code;
    }
    *ret = (struct pn_list){ .v = v, .n = d->n };
    return 0;
}

static int f_dictsort(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list pairs;
    struct pn_value *keys, which = pn_int(0);
    if (self.kind != PN_V_DICT) return pn_rt_fail(rt, "'%s' object has no attribute 'items'", pn_value_type(self));
    if (a->v[1] && pn_str_is(*a->v[1], "value", 5))
        which = pn_int(1);
    else if (a->v[1] && !pn_str_is(*a->v[1], "key", 3))
        return pn_rt_fail(rt, "You can only sort by either \"key\" or \"value\"");
    if (pairs_of(rt, self.dict, &pairs) || keys_of(rt, &pairs, &which, flag(a->v[0], false), &keys)) return rt->e->code;
    if (pn_sort_values(rt, pairs.v, keys, pairs.n, flag(a->v[2], false))) return rt->e->code;
    return make_list(rt, pairs.v, pairs.n, PN_SEQ_LIST, ret);
}

static int run_items(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list pairs = { 0 };
    (void)a;
    if (self.kind != PN_V_DICT && self.kind != PN_V_UNDEFINED) return pn_rt_fail(rt, "Can only get item pairs from a mapping.");
    if (self.kind == PN_V_DICT && pairs_of(rt, self.dict, &pairs)) return rt->e->code;
    return make_list(rt, pairs.v, pairs.n, PN_SEQ_ITER, ret);
}

/* The least or greatest. */
static int extreme(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, int sign, struct pn_value *ret) {
    struct pn_list items;
    struct pn_value *keys;
    size_t best = 0;
    if (pn_op_iter(rt, self, &items) || keys_of(rt, &items, a->v[1], flag(a->v[0], false), &keys)) return rt->e->code;
    for (size_t i = 1; i < items.n; i++) {
        int c;
        if (pn_charge(rt, pn_value_weight(keys[i])) || pn_op_order(rt, keys[i], keys[best], &c)) return rt->e->code;
        if (c * sign > 0) best = i;
    }
    *ret = items.n ? items.v[best] : pn_undefined(PN_U_PLAIN, pn_none(), NULL);
    return 0;
}

static int f_min(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    return extreme(rt, self, a, -1, ret);
}

static int f_max(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    return extreme(rt, self, a, 1, ret);
}

/* The first of each kind: sorts keys by the total order of pn_key_cmp, so any mix of types is fine. */
static int by_key(const void *x, const void *y) {
    const struct pn_value *a = x, *b = y;
    int c = pn_key_cmp(a[0], b[0]);
    return c ? c : (a[1].i > b[1].i) - (a[1].i < b[1].i);
}

static int run_unique(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    struct pn_value *keys, *pairs, *kept;
    if (pn_op_iter(rt, self, &items) || keys_of(rt, &items, a->v[1], flag(a->v[0], false), &keys)) return rt->e->code;
    pairs = fo_region_array(rt->region, items.n, 2 * sizeof *pairs);
    kept = room(rt, items.n);
    bool *first = fo_region_array(rt->region, items.n, sizeof *first);
    if (!pairs || !kept || !first) return pn_rt_full(rt);
    for (size_t i = 0; i < items.n; i++) {
        if (pn_charge(rt, 20 * pn_value_weight(keys[i]))) return rt->e->code;
        if (!pn_value_hashable(keys[i])) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(keys[i]));
        pairs[2 * i] = keys[i];
        pairs[2 * i + 1] = pn_int((int64_t)i);
    }
    if (items.n) qsort(pairs, items.n, 2 * sizeof *pairs, by_key);
    for (size_t i = 0; i < items.n; i++) first[pairs[2 * i + 1].i] = i == 0 || pn_key_cmp(pairs[2 * i - 2], pairs[2 * i]) != 0;
    size_t n = 0;
    for (size_t i = 0; i < items.n; i++)
        if (first[i]) kept[n++] = items.v[i];
    return make_list(rt, kept, n, PN_SEQ_ITER, ret);
}

static int f_groupby(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    struct pn_value *keys, *groups;
    bool cased = flag(a->v[2], false);
    size_t n = 0;
    if (copy_items(rt, self, &items)) return rt->e->code;
    keys = room(rt, items.n);
    groups = room(rt, items.n);
    if (!keys || !groups) return rt->e->code;
    for (size_t i = 0; i < items.n; i++) {
        if (pn_attribute(rt, items.v[i], *a->v[0], &keys[i])) return rt->e->code;
        if (keys[i].kind == PN_V_UNDEFINED && a->v[1]) keys[i] = *a->v[1];
        if (keys[i].kind == PN_V_STR && !cased && pn_str_case(rt, keys[i], PN_CASE_LOWER, &keys[i])) return rt->e->code;
    }
    if (pn_sort_values(rt, items.v, keys, items.n, false)) return rt->e->code;
    for (size_t i = 0, j; i < items.n; i = j) {
        struct pn_value pair[2];
        for (j = i + 1; j < items.n && pn_value_eq(keys[i], keys[j]); j++)
            if (pn_charge(rt, pn_value_weight(keys[i]))) return rt->e->code;
        /* The name of a group is its first element's, in its own case. */
        if (pn_attribute(rt, items.v[i], *a->v[0], &pair[0])) return rt->e->code;
        if (pair[0].kind == PN_V_UNDEFINED && a->v[1]) pair[0] = *a->v[1];
        if (make_list(rt, items.v + i, j - i, PN_SEQ_LIST, &pair[1]) || make_list(rt, pair, 2, PN_SEQ_GROUP, &groups[n++]))
            return rt->e->code;
    }
    return make_list(rt, groups, n, PN_SEQ_LIST, ret);
}

/* --- taking elements ---------------------------------------------------------------------------------------------------------- */

static int f_first(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    (void)a;
    if (self.kind == PN_V_STR) return pn_op_item(rt, self, pn_int(0), ret);
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    *ret = items.n ? items.v[0] : pn_undefined(PN_U_PLAIN, pn_none(), NULL);
    return 0;
}

static int f_last(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    (void)a;
    if (self.kind == PN_V_STR) return pn_op_item(rt, self, pn_int(-1), ret);
    if (self.kind == PN_V_LIST && self.list->seq == PN_SEQ_ITER) return pn_rt_fail(rt, "'generator' object is not reversible");
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    *ret = items.n ? items.v[items.n - 1] : pn_undefined(PN_U_PLAIN, pn_none(), NULL);
    return 0;
}

static int f_list(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    (void)a;
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    return make_list(rt, items.v, items.n, PN_SEQ_LIST, ret);
}

static int f_reverse(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    (void)a;
    if (copy_items(rt, self, &items)) return rt->e->code;
    for (size_t i = 0; i < items.n / 2; i++) {
        struct pn_value x = items.v[i];
        items.v[i] = items.v[items.n - 1 - i];
        items.v[items.n - 1 - i] = x;
    }
    /* What Python cannot reverse becomes a list first, and stays one. */
    bool once = self.kind == PN_V_LIST && self.list->seq == PN_SEQ_ITER;
    if (self.kind != PN_V_STR) return make_list(rt, items.v, items.n, once ? PN_SEQ_LIST : PN_SEQ_ITER, ret);
    size_t from = rt->out.len;
    for (size_t i = 0; i < items.n; i++) pn_out_put_str(&rt->out, items.v[i]);
    return pn_out_end(rt, from, ret);
}

static int f_join(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    struct pn_value sep, v;
    size_t from = rt->out.len;
    if (a->v[0]) {
        if (pn_to_str(rt, *a->v[0], &sep)) return rt->e->code;
    } else if (!pn_str_view(rt->region, "", 0, PN_BY_TEMPLATE, &sep)) {
        return pn_rt_full(rt);
    }
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    for (size_t i = 0; i < items.n && !rt->out.failed; i++) {
        v = items.v[i];
        if (given(a->v[1]) && pn_attribute(rt, v, *a->v[1], &v)) return rt->e->code;
        if (pn_charge(rt, 1) || pn_charge_walk(rt, v)) return rt->e->code;
        if (i) pn_out_put_str(&rt->out, sep);
        pn_out_put_value(&rt->out, v);
    }
    return pn_out_end(rt, from, ret);
}

static int f_sum(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    struct pn_value sum = a->v[1] ? *a->v[1] : pn_int(0), v;
    if (sum.kind == PN_V_STR) return pn_rt_fail(rt, "sum() can't sum strings [use ''.join(seq) instead]");
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    for (size_t i = 0; i < items.n; i++) {
        v = items.v[i];
        if (given(a->v[0]) && pn_attribute(rt, v, *a->v[0], &v)) return rt->e->code;
        if (pn_charge(rt, 1) || pn_op_arith(rt, PN_OP('+', 0), sum, v, &sum)) return rt->e->code;
    }
    *ret = sum;
    return 0;
}

static int need_count(struct pn_rt *rt, const struct pn_value *v, size_t *ret) {
    if (v->kind != PN_V_INT || v->i < 1 || v->i > PN_RANGE_MAX) return pn_rt_fail(rt, "a number from 1 to %d is needed", PN_RANGE_MAX);
    *ret = (size_t)v->i;
    return 0;
}

static int run_batch(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    size_t size = 1;
    if (need_count(rt, a->v[0], &size) || pn_op_iter(rt, self, &items)) return rt->e->code;
    size_t n = (items.n + size - 1) / size;
    struct pn_value *rows = room(rt, n), *padded = room(rt, size);
    if (!rows || !padded) return rt->e->code;
    for (size_t i = 0; i < n; i++) {
        size_t have = items.n - i * size < size ? items.n - i * size : size;
        memcpy(padded, items.v + i * size, have * sizeof *padded);
        for (; have < size && given(a->v[1]); have++) padded[have] = *a->v[1];
        if (make_list(rt, padded, have, PN_SEQ_LIST, &rows[i])) return rt->e->code;
    }
    return make_list(rt, rows, n, PN_SEQ_ITER, ret);
}

static int run_slice(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_list items;
    size_t n = 1, at = 0;
    if (need_count(rt, a->v[0], &n) || pn_op_iter(rt, self, &items)) return rt->e->code;
    size_t each = items.n / n, more = items.n % n;
    struct pn_value *rows = room(rt, n), *padded = room(rt, each + 1);
    if (!rows || !padded) return rt->e->code;
    for (size_t i = 0; i < n; i++) {
        size_t have = each + (i < more);
        if (have) memcpy(padded, items.v + at, have * sizeof *padded);
        at += have;
        if (given(a->v[1]) && i >= more) padded[have++] = *a->v[1];
        if (make_list(rt, padded, have, PN_SEQ_LIST, &rows[i])) return rt->e->code;
    }
    return make_list(rt, rows, n, PN_SEQ_ITER, ret);
}

/* --- map and select -------------------------------------------------------------------------------------------------------------- */

static const struct pn_value *named_arg(const struct pn_call *call, const char *name) {
    for (size_t i = 0; i < call->n_named; i++)
        if (pn_str_is(call->named[2 * i], name, strlen(name))) return &call->named[2 * i + 1];
    return NULL;
}

/* A filter or test by the name in the first argument; the rest of the arguments are for it. */
static int row_by_name(struct pn_rt *rt, struct pn_call *call, bool test, const struct pn_builtin **ret) {
    if (call->n_pos == 0) return pn_rt_fail(rt, "the name of a %s is missing", test ? "test" : "filter");
    struct pn_value name = *call->pos++;
    call->n_pos--;
    if (name.kind != PN_V_STR) return pn_rt_fail(rt, "the name of a %s must be a string", test ? "test" : "filter");
    *ret = test ? pn_find_test(name.s->s, name.s->len) : pn_find_filter(name.s->s, name.s->len);
    if (!*ret || !(*ret)->fn)
        return pn_rt_fail(rt, "no %s named '%.*s'", test ? "test" : "filter", (int)(name.s->len < 60 ? name.s->len : 60), name.s->s);
    return 0;
}

static int call_deeper(struct pn_rt *rt, const struct pn_builtin *row, struct pn_value v, const struct pn_call *call,
                       struct pn_value *ret) {
    if (++rt->depth > PN_DEPTH_EVAL) return pn_rt_limit(rt, "nested deeper than %d while rendering", PN_DEPTH_EVAL);
    if (pn_charge(rt, 1) || pn_call_row(rt, row, v, call, ret)) return rt->e->code;
    rt->depth--;
    return 0;
}

static int run_map(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_call call = a->rest;
    const struct pn_value *attribute = call.n_pos == 0 ? named_arg(&call, "attribute") : NULL, *def = named_arg(&call, "default");
    const struct pn_builtin *row = NULL;
    struct pn_list items;
    if (!pn_value_truth(self)) return make_list(rt, NULL, 0, PN_SEQ_ITER, ret); /* also None, as in Jinja */
    if (!attribute && row_by_name(rt, &call, false, &row)) return rt->e->code;
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    struct pn_value *v = room(rt, items.n);
    if (!v) return rt->e->code;
    for (size_t i = 0; i < items.n; i++) {
        if (attribute ? pn_attribute(rt, items.v[i], *attribute, &v[i]) : call_deeper(rt, row, items.v[i], &call, &v[i]))
            return rt->e->code;
        if (attribute && def && v[i].kind == PN_V_UNDEFINED) v[i] = *def;
    }
    return make_list(rt, v, items.n, PN_SEQ_ITER, ret);
}

static int choose(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, bool by_attribute, bool keep, struct pn_value *ret) {
    struct pn_call call = a->rest;
    const struct pn_value *attribute = NULL;
    const struct pn_builtin *row = NULL;
    struct pn_list items;
    if (!pn_value_truth(self)) return make_list(rt, NULL, 0, PN_SEQ_ITER, ret); /* also None, as in Jinja */
    if (by_attribute) {
        if (call.n_pos == 0) return pn_rt_fail(rt, "the name of an attribute is missing");
        attribute = call.pos++;
        call.n_pos--;
    }
    if (call.n_pos && row_by_name(rt, &call, true, &row)) return rt->e->code;
    if (pn_op_iter(rt, self, &items)) return rt->e->code;
    struct pn_value *v = room(rt, items.n), x;
    size_t n = 0;
    if (!v) return rt->e->code;
    for (size_t i = 0; i < items.n; i++) {
        x = items.v[i];
        if (attribute && pn_attribute(rt, x, *attribute, &x)) return rt->e->code;
        if (row ? call_deeper(rt, row, x, &call, &x) : pn_charge(rt, 1)) return rt->e->code;
        if (pn_value_truth(x) == keep) v[n++] = items.v[i];
    }
    return make_list(rt, v, n, PN_SEQ_ITER, ret);
}

static int f_select(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, choose(rt, self, a, false, true, ret), depth, ret);
}

static int f_reject(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, choose(rt, self, a, false, false, ret), depth, ret);
}

static int f_selectattr(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, choose(rt, self, a, true, true, ret), depth, ret);
}

static int f_rejectattr(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, choose(rt, self, a, true, false, ret), depth, ret);
}

static int f_items(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, run_items(rt, self, a, ret), depth, ret);
}

static int f_unique(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, run_unique(rt, self, a, ret), depth, ret);
}

static int f_batch(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, run_batch(rt, self, a, ret), depth, ret);
}

static int f_slice(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, run_slice(rt, self, a, ret), depth, ret);
}

static int f_map(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    unsigned depth = rt->depth;
    return lazily(rt, run_map(rt, self, a, ret), depth, ret);
}

const struct pn_builtin pn_seq_filters[] = {
    { "batch", f_batch, "linecount fill_with", 1 },
    { "dictsort", f_dictsort, "case_sensitive by reverse", 0 },
    { "first", f_first, "", 0 },
    { "groupby", f_groupby, "attribute default case_sensitive", 1 },
    { "items", f_items, "", 0 },
    { "join", f_join, "d attribute", 0 },
    { "last", f_last, "", 0 },
    { "list", f_list, "", 0 },
    { "map", f_map, "*", 0 },
    { "max", f_max, "case_sensitive attribute", 0 },
    { "min", f_min, "case_sensitive attribute", 0 },
    { "reject", f_reject, "*", 0 },
    { "rejectattr", f_rejectattr, "*", 0 },
    { "reverse", f_reverse, "", 0 },
    { "select", f_select, "*", 0 },
    { "selectattr", f_selectattr, "*", 0 },
    { "slice", f_slice, "slices fill_with", 1 },
    { "sort", f_sort, "reverse case_sensitive attribute", 0 },
    { "sum", f_sum, "attribute start", 0 },
    { "unique", f_unique, "case_sensitive attribute", 0 },
    { NULL, NULL, NULL, 0 },
};
