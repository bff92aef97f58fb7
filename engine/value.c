/* Values and how they are made: see value.h and value_impl.h. Dicts keep insertion order; from PN_SORTED_FROM keys on they carry a
 * sorted index instead of a hash table, so that no choice of keys makes a lookup slow. */
#include "engine/value_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/region.h"

enum pn_value_kind pn_value_kind(const struct pn_value *v) {
    return (enum pn_value_kind)v->kind;
}

int pn_region_full(const struct fo_region *r, struct fo_err *e) {
    if (errno == ENOMEM) return fo_fail(e, FO_ENOMEM, "no memory for a value");
    return fo_fail_need(e, FO_ELIMIT, r->cap_bytes + 1, r->cap_bytes, "more than %zu bytes of values are needed", r->cap_bytes);
}

/* --- strings ---------------------------------------------------------------------------------- */

bool pn_str_view(struct fo_region *r, const char *s, size_t len, enum pn_mark mark, struct pn_value *ret) {
    struct pn_str *str = fo_region_alloc(r, sizeof *str);
    if (!str) return false;
    *str = (struct pn_str){ .s = s, .len = len };
    *ret = (struct pn_value){ .kind = PN_V_STR, .mark = (uint8_t)mark, .s = str };
    return true;
}

bool pn_str_new(struct fo_region *r, const char *s, size_t len, enum pn_mark mark, struct pn_value *ret) {
    char *copy = fo_region_strndup(r, s, len);
    return copy && pn_str_view(r, copy, len, mark, ret);
}

bool pn_str_part(struct fo_region *r, struct pn_value v, size_t from, size_t len, struct pn_value *ret) {
    if (from == 0 && len == v.s->len) {
        *ret = v;
        return true;
    }
    struct pn_str *str = fo_region_alloc(r, sizeof *str);
    if (!str) return false;
    *str = (struct pn_str){ .s = v.s->s + from, .user = v.mark == PN_BY_BOTH ? v.s->user + from : NULL, .len = len };
    *ret = (struct pn_value){ .kind = PN_V_STR, .mark = v.mark, .s = str };
    return true;
}

/* --- lists and dicts --------------------------------------------------------------------------- */

static unsigned depth_of(struct pn_value v) {
    return v.kind == PN_V_LIST ? v.list->depth : v.kind == PN_V_DICT ? v.dict->depth : 0;
}

uint64_t pn_value_weight(struct pn_value v) {
    if (v.kind == PN_V_STR) return 1 + v.s->len / 64;
    return v.kind == PN_V_LIST ? v.list->weight : v.kind == PN_V_DICT ? v.dict->weight : 1;
}

static void add_weight(uint64_t *sum, struct pn_value v) {
    if (__builtin_add_overflow(*sum, pn_value_weight(v), sum)) *sum = UINT64_MAX;
}

static int too_deep(struct fo_err *e) {
    return fo_fail_need(e, FO_ELIMIT, PN_DEPTH_VALUE + 1, PN_DEPTH_VALUE, "a value is nested deeper than %d", PN_DEPTH_VALUE);
}

int pn_list_seal(struct pn_value list, struct fo_err *e) {
    unsigned deepest = 0;
    uint64_t weight = 1;
    for (size_t i = 0; i < list.list->n; i++) {
        unsigned d = depth_of(list.list->v[i]);
        add_weight(&weight, list.list->v[i]);
        if (d > deepest) deepest = d;
    }
    if (deepest >= PN_DEPTH_VALUE) return too_deep(e);
    list.list->depth = (uint8_t)(deepest + 1);
    list.list->weight = weight;
    return 0;
}

int pn_list_new(struct fo_region *r, const struct pn_value *items, size_t n, enum pn_seq seq, struct pn_value *ret, struct fo_err *e) {
    struct pn_list *list = fo_region_alloc(r, sizeof *list);
    struct pn_value *v = fo_region_array(r, n, sizeof *v);
    if (!list || !v) return pn_region_full(r, e);
    if (items && n) memcpy(v, items, n * sizeof *v);
    *list = (struct pn_list){ .v = v, .n = n, .seq = (uint8_t)seq, .depth = 1, .weight = 1 };
    struct pn_value made = { .kind = PN_V_LIST, .list = list };
    if (items && pn_list_seal(made, e)) return e->code;
    *ret = made;
    return 0;
}

/* Stable merge sort of key indices; tmp is [n]. */
static void sort_keys(const struct pn_value *k, uint32_t *a, uint32_t *tmp, size_t n) {
    if (n < 2) return;
    size_t half = n / 2;
    sort_keys(k, a, tmp, half);
    sort_keys(k, a + half, tmp, n - half);
    memcpy(tmp, a, half * sizeof *a);
    for (size_t i = 0, j = half, o = 0; i < half;) a[o++] = j < n && pn_key_cmp(k[a[j]], k[tmp[i]]) < 0 ? a[j++] : tmp[i++];
}

/* Drops repeated keys: the first place stays, the last value counts. Returns how many are left. */
static size_t drop_repeats(struct pn_value *k, struct pn_value *v, const uint32_t *order, size_t n, bool *gone) {
    for (size_t i = 0; i < n;) {
        size_t j = i + 1;
        while (j < n && pn_key_cmp(k[order[i]], k[order[j]]) == 0) gone[order[j++]] = true;
        v[order[i]] = v[order[j - 1]];
        i = j;
    }
    size_t o = 0;
    for (size_t i = 0; i < n; i++)
        if (!gone[i]) {
            k[o] = k[i];
            v[o++] = v[i];
        }
    return o;
}

static int index_keys(struct fo_region *r, struct pn_dict *d, struct fo_err *e) {
    size_t n = d->n;
    if (n > UINT32_MAX / 4) return fo_fail(e, FO_ELIMIT, "a dict has too many keys");
    uint32_t *order = fo_region_array(r, n, sizeof *order);
    uint32_t *tmp = malloc(n * sizeof *tmp);
    bool *gone = calloc(n, sizeof *gone);
    int rc = 0;
    if (!order) {
        rc = pn_region_full(r, e);
        goto out;
    }
    if (!tmp || !gone) {
        rc = fo_fail(e, FO_ENOMEM, "no memory to index a dict");
        goto out;
    }
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    sort_keys(d->k, order, tmp, n);
    d->n = drop_repeats(d->k, d->v, order, n, gone);
    if (d->n < n) {
        for (size_t i = 0; i < d->n; i++) order[i] = (uint32_t)i;
        sort_keys(d->k, order, tmp, d->n);
    }
    d->order = d->n >= PN_SORTED_FROM ? order : NULL;
out:
    free(tmp);
    free(gone);
    return rc;
}

int pn_dict_new(struct fo_region *r, struct pn_value *k, struct pn_value *v, size_t n, struct pn_value *ret, struct fo_err *e) {
    struct pn_dict *d = fo_region_alloc(r, sizeof *d);
    if (!d) return pn_region_full(r, e);
    *d = (struct pn_dict){ .k = k, .v = v };
    if (n >= PN_SORTED_FROM) {
        d->n = n;
        if (index_keys(r, d, e)) return e->code;
    } else {
        for (size_t i = 0; i < n; i++) {
            const struct pn_value *old = pn_dict_get(d, k[i]);
            if (old) {
                d->v[old - d->v] = v[i];
                continue;
            }
            d->k[d->n] = k[i];
            d->v[d->n++] = v[i];
        }
    }
    unsigned deepest = 0;
    d->weight = 1;
    for (size_t i = 0; i < d->n; i++) {
        add_weight(&d->weight, d->k[i]);
        add_weight(&d->weight, d->v[i]);
        unsigned dk = depth_of(d->k[i]), dv = depth_of(d->v[i]);
        if (dk > deepest) deepest = dk;
        if (dv > deepest) deepest = dv;
    }
    if (deepest >= PN_DEPTH_VALUE) return too_deep(e);
    d->depth = (uint8_t)(deepest + 1);
    *ret = (struct pn_value){ .kind = PN_V_DICT, .dict = d };
    return 0;
}

const struct pn_value *pn_dict_get(const struct pn_dict *d, struct pn_value key) {
    if (!d->order) {
        for (size_t i = 0; i < d->n; i++)
            if (pn_key_cmp(d->k[i], key) == 0) return &d->v[i];
        return NULL;
    }
    size_t lo = 0, hi = d->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = pn_key_cmp(d->k[d->order[mid]], key);
        if (c == 0) return &d->v[d->order[mid]];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const struct pn_value *pn_dict_find(const struct pn_dict *d, const char *key, size_t len) {
    const struct pn_str str = { .s = key, .len = len };
    return pn_dict_get(d, (struct pn_value){ .kind = PN_V_STR, .s = &str });
}

int pn_dict_with(struct fo_region *r, struct pn_value d, const char *key, struct pn_value v, struct pn_value *ret, struct fo_err *e) {
    size_t n = d.kind == PN_V_DICT ? d.dict->n : 0;
    struct pn_value *ks = fo_region_array(r, n + 1, sizeof *ks), *vs = fo_region_array(r, n + 1, sizeof *vs), name;
    if (!ks || !vs || !pn_str_view(r, key, strlen(key), PN_BY_TEMPLATE, &name)) return pn_region_full(r, e);
    if (n) {
        memcpy(ks, d.dict->k, n * sizeof *ks);
        memcpy(vs, d.dict->v, n * sizeof *vs);
    }
    ks[n] = name;
    vs[n] = v;
    return pn_dict_new(r, ks, vs, n + 1, ret, e);
}

/* --- comparison ---------------------------------------------------------------------------------- */

double pn_value_num(struct pn_value v) {
    if (v.kind == PN_V_FLOAT && v.big) return strtod(v.s->s, NULL); /* digits are NUL-terminated */
    return v.kind == PN_V_FLOAT ? v.f : v.kind == PN_V_INT ? (double)v.i : v.kind == PN_V_BOOL ? (double)v.b : 0;
}

static int64_t whole(struct pn_value v) {
    return v.kind == PN_V_BOOL ? v.b : v.i;
}

/* An integer against a double, exactly: int64 does not fit in a double. */
static int cmp_int_float(int64_t i, double f) {
    if (isnan(f) || f >= 0x1p63) return -1;
    if (f < -0x1p63) return 1;
    int64_t t = (int64_t)f;
    if (i != t) return i < t ? -1 : 1;
    double rest = f - (double)t;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int cmp_numbers(struct pn_value a, struct pn_value b) {
    bool fa = a.kind == PN_V_FLOAT, fb = b.kind == PN_V_FLOAT;
    if (!fa && !fb) return (whole(a) > whole(b)) - (whole(a) < whole(b));
    if (a.big && b.big) {
        bool na = a.s->s[0] == '-', nb = b.s->s[0] == '-';
        if (na != nb) return na ? -1 : 1;
        int c = a.s->len != b.s->len ? (a.s->len < b.s->len ? -1 : 1) : memcmp(a.s->s, b.s->s, a.s->len);
        return na ? -c : c;
    }
    if (!fa) return cmp_int_float(whole(a), pn_value_num(b));
    if (!fb) return -cmp_int_float(whole(b), pn_value_num(a));
    double x = pn_value_num(a), y = pn_value_num(b);
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return (x > y) - (x < y);
}

static int cmp_bytes(const struct pn_str *a, const struct pn_str *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->s, b->s, n);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static int rank(struct pn_value v) {
    static const uint8_t ranks[] = { [PN_V_UNDEFINED] = 0, [PN_V_NULL] = 1, [PN_V_BOOL] = 2, [PN_V_INT] = 2,     [PN_V_FLOAT] = 2,
                                     [PN_V_STR] = 3,       [PN_V_LIST] = 4, [PN_V_DICT] = 6, [PN_V_CALLABLE] = 7 };
    return v.kind == PN_V_LIST && v.list->seq != PN_SEQ_LIST ? 5 : ranks[v.kind];
}

static int cmp_lists(const struct pn_list *a, const struct pn_list *b) {
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        int c = pn_key_cmp(a->v[i], b->v[i]);
        if (c) return c;
    }
    return (a->n > b->n) - (a->n < b->n);
}

static int cmp_dicts(const struct pn_dict *a, const struct pn_dict *b) {
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    for (size_t i = 0; i < a->n; i++) {
        const struct pn_value *other = pn_dict_get(b, a->k[i]);
        int c = other ? pn_key_cmp(a->v[i], *other) : 1;
        if (c) return c;
    }
    return 0;
}

int pn_key_cmp(struct pn_value a, struct pn_value b) {
    int ra = rank(a), rb = rank(b);
    if (ra != rb) return ra < rb ? -1 : 1;
    switch (ra) {
    case 2: return cmp_numbers(a, b);
    case 3: return cmp_bytes(a.s, b.s);
    case 4:
    case 5: return cmp_lists(a.list, b.list);
    case 6: return cmp_dicts(a.dict, b.dict);
    case 7: return (a.obj > b.obj) - (a.obj < b.obj);
    default: return 0;
    }
}

bool pn_value_eq(struct pn_value a, struct pn_value b) {
    if (a.kind == PN_V_FLOAT && !a.big && isnan(a.f)) return false;
    return pn_key_cmp(a, b) == 0;
}

bool pn_value_hashable(struct pn_value v) {
    if (v.kind == PN_V_DICT) return false;
    if (v.kind != PN_V_LIST) return true;
    if (v.list->seq != PN_SEQ_TUPLE && v.list->seq != PN_SEQ_GROUP) return v.list->seq == PN_SEQ_RANGE;
    for (size_t i = 0; i < v.list->n; i++)
        if (!pn_value_hashable(v.list->v[i])) return false;
    return true;
}

bool pn_value_truth(struct pn_value v) {
    switch ((enum pn_value_kind)v.kind) {
    case PN_V_UNDEFINED:
    case PN_V_NULL: return false;
    case PN_V_BOOL: return v.b;
    case PN_V_INT: return v.i != 0;
    case PN_V_FLOAT: return v.big || v.f != 0;
    case PN_V_STR: return v.s->len > 0;
    case PN_V_LIST: return v.list->seq == PN_SEQ_ITER || v.list->n > 0;
    case PN_V_DICT: return v.dict->n > 0;
    case PN_V_CALLABLE: break;
    }
    return true;
}

const char *pn_kind_name(enum pn_value_kind kind) {
    static const char *const names[] = { [PN_V_UNDEFINED] = "Undefined", [PN_V_NULL] = "None", [PN_V_BOOL] = "bool", [PN_V_INT] = "int",
                                         [PN_V_FLOAT] = "float",         [PN_V_STR] = "str",   [PN_V_LIST] = "list", [PN_V_DICT] = "dict",
                                         [PN_V_CALLABLE] = "function" };
    return names[kind];
}

const char *pn_value_type(struct pn_value v) {
    static const char *const seqs[] = { "list", "tuple", "range", "tuple", "dict_keys", "dict_values", "dict_items", "generator" };
    if (v.kind == PN_V_LIST) return seqs[v.list->seq];
    if (v.kind == PN_V_NULL) return "NoneType";
    return v.kind == PN_V_FLOAT && v.big ? "int" : pn_kind_name((enum pn_value_kind)v.kind);
}
