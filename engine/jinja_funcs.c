/* The functions that every template has, and strftime_now, which chat.c binds to a time. */
#include "engine/jinja_impl.h"

#include <string.h>

#include "foundry/base/buf.h"

static int whole(struct pn_rt *rt, const struct pn_value *v, int64_t *ret) {
    if (v->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *v);
    if (v->kind != PN_V_INT && v->kind != PN_V_BOOL)
        return pn_rt_fail(rt, "'%s' object cannot be interpreted as an integer", pn_value_type(*v));
    *ret = v->kind == PN_V_BOOL ? v->b : v->i;
    return 0;
}

static int g_range(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    int64_t start = 0, stop = 0, step = 1;
    (void)self;
    if (whole(rt, a->v[0], &stop)) return rt->e->code;
    if (a->v[1]) {
        start = stop;
        if (whole(rt, a->v[1], &stop)) return rt->e->code;
    }
    if (a->v[2] && whole(rt, a->v[2], &step)) return rt->e->code;
    if (step == 0) return pn_rt_fail(rt, "range() arg 3 must not be zero");
    uint64_t span =
        step > 0 ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0) : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span ? (span - 1) / by + 1 : 0;
    if (n > PN_RANGE_MAX) return pn_rt_limit(rt, "range() of more than %d", PN_RANGE_MAX);
    if (pn_charge(rt, n)) return rt->e->code;
    if (pn_list_new(rt->region, NULL, n, PN_SEQ_RANGE, ret, rt->e)) return pn_rt_place(rt);
    for (uint64_t i = 0; i < n; i++) ret->list->v[i] = pn_int((int64_t)((uint64_t)start + i * (uint64_t)step));
    ret->list->range = pn_range_new(rt, start, stop, step);
    if (!ret->list->range) return rt->e->code;
    return pn_list_seal(*ret, rt->e) ? pn_rt_place(rt) : 0;
}

const int64_t *pn_range_new(struct pn_rt *rt, int64_t start, int64_t stop, int64_t step) {
    int64_t *r = fo_region_array(rt->region, 3, sizeof *r);
    if (!r) {
        pn_rt_full(rt);
        return NULL;
    }
    r[0] = start, r[1] = stop, r[2] = step;
    return r;
}

/* The entries of a dict and the named arguments, as two arrays. */
static int entries(struct pn_rt *rt, const struct pn_args *a, struct pn_value **k, struct pn_value **v, size_t *ret_n) {
    const struct pn_dict *from = NULL;
    struct pn_list pairs = { 0 };
    const struct pn_value *first = a->rest.n_pos ? &a->rest.pos[0] : NULL;
    if (a->rest.n_pos > 1) return pn_rt_fail(rt, "at most one positional argument is taken");
    if (first && first->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *first);
    if (first && first->kind == PN_V_DICT)
        from = first->dict;
    else if (first && pn_op_iter(rt, *first, &pairs))
        return rt->e->code;
    size_t n = 0, size = (from ? from->n : pairs.n) + a->rest.n_named;
    if (pn_charge(rt, size)) return rt->e->code;
    *k = fo_region_array(rt->region, size, sizeof **k);
    *v = fo_region_array(rt->region, size, sizeof **v);
    if (!*k || !*v) return pn_rt_full(rt);
    for (size_t i = 0; from && i < from->n; i++, n++) {
        (*k)[n] = from->k[i];
        (*v)[n] = from->v[i];
    }
    for (size_t i = 0; i < pairs.n; i++, n++) {
        struct pn_list pair;
        if (pn_op_iter(rt, pairs.v[i], &pair)) return rt->e->code;
        if (pair.n != 2) return pn_rt_fail(rt, "a sequence of pairs is needed");
        if (!pn_value_hashable(pair.v[0])) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(pair.v[0]));
        (*k)[n] = pair.v[0];
        (*v)[n] = pair.v[1];
    }
    for (size_t i = 0; i < a->rest.n_named; i++, n++) {
        (*k)[n] = a->rest.named[2 * i];
        (*v)[n] = a->rest.named[2 * i + 1];
    }
    *ret_n = n;
    return 0;
}

static int g_dict(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value *k = NULL, *v = NULL;
    size_t n = 0;
    (void)self;
    if (entries(rt, a, &k, &v, &n)) return rt->e->code;
    return pn_dict_new(rt->region, k, v, n, ret, rt->e) ? pn_rt_place(rt) : 0;
}

static int g_namespace(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value dict;
    if (g_dict(rt, self, a, &dict)) return rt->e->code; /* drops repeated names */
    for (size_t i = 0; i < dict.dict->n; i++)
        if (dict.dict->k[i].kind != PN_V_STR) return pn_rt_fail(rt, "the names of a namespace must be strings");
    if (!pn_object_new(rt, PN_O_NAMESPACE, ret)) return rt->e->code;
    ret->obj->names = dict.dict->k;
    ret->obj->values = dict.dict->v;
    ret->obj->n = ret->obj->size = dict.dict->n;
    return 0;
}

static int g_cycler(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value items;
    (void)self;
    if (a->rest.n_pos == 0) return pn_rt_fail(rt, "at least one item has to be provided");
    if (pn_list_new(rt->region, a->rest.pos, a->rest.n_pos, PN_SEQ_TUPLE, &items, rt->e)) return pn_rt_place(rt);
    if (!pn_object_new(rt, PN_O_CYCLER, ret)) return rt->e->code;
    ret->obj->self = items;
    return 0;
}

static int g_joiner(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value sep;
    (void)self;
    if (a->v[0])
        sep = *a->v[0];
    else if (!pn_str_view(rt->region, ", ", 2, PN_BY_TEMPLATE, &sep))
        return pn_rt_full(rt);
    if (!pn_object_new(rt, PN_O_JOINER, ret)) return rt->e->code;
    ret->obj->self = sep;
    return 0;
}

/* Its text alone is the message: it is meant for whoever sent the conversation. */
static int g_raise_exception(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    (void)self, (void)ret;
    if (pn_to_str(rt, *a->v[0], &s)) return rt->e->code;
    size_t n = s.s->len;
    if (n > PN_RAISED_BYTES) { /* cut at a character */
        n = PN_RAISED_BYTES - 3;
        while (n > 0 && ((unsigned char)s.s->s[n] & 0xC0) == 0x80) n--;
    }
    if (rt->raised) {
        fo_buf_append(rt->raised, s.s->s, n);
        if (n < s.s->len) fo_buf_puts(rt->raised, "...");
    }
    if (n == 0) return fo_fail(rt->e, FO_EINVAL, "the template calls raise_exception without a text");
    return fo_fail(rt->e, FO_EINVAL, "%.*s%s", (int)n, s.s->s, n < s.s->len ? "..." : "");
}

static const struct pn_builtin functions[] = {
    { "cycler", g_cycler, "*", 0 },
    { "dict", g_dict, "*", 0 },
    { "joiner", g_joiner, "sep", 0 },
    { "namespace", g_namespace, "*", 0 },
    { "raise_exception", g_raise_exception, "message", 1 },
    { "range", g_range, "start stop step", 1 },
};

const struct pn_builtin *pn_find_function(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strlen(functions[i].name) == len && memcmp(functions[i].name, name, len) == 0) return &functions[i];
    return NULL;
}

bool pn_clock_value(struct fo_region *r, int64_t now, struct pn_value *ret) {
    struct pn_object *o = fo_region_alloc(r, sizeof *o);
    if (!o) return false;
    o->type = PN_O_CLOCK;
    o->self = pn_int(now);
    *ret = (struct pn_value){ .kind = PN_V_CALLABLE, .obj = o };
    return true;
}
