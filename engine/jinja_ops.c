/* Operators, subscripts, attributes, iteration: Python's meaning, with integers that end at 64 bits (beyond is an error, never a
 * wrong number). Everything that walks data is charged to the render's steps. */
#include "engine/jinja_impl.h"

#include <math.h>
#include <string.h>

/* --- arithmetic ------------------------------------------------------------------------------------------------- */

static int bad_operands(struct pn_rt *rt, const char *op, struct pn_value a, struct pn_value b) {
    if (op[0] == '+' && a.kind == PN_V_STR) return pn_rt_fail(rt, "can only concatenate str (not \"%s\") to str", pn_value_type(b));
    return pn_rt_fail(rt, "unsupported operand type(s) for %s: '%s' and '%s'", op, pn_value_type(a), pn_value_type(b));
}

static int beyond(struct pn_rt *rt) {
    return pn_rt_limit(rt, "an integer beyond 64 bits");
}

static bool is_whole(struct pn_value v) {
    return v.kind == PN_V_INT || v.kind == PN_V_BOOL;
}

static int64_t whole(struct pn_value v) {
    return v.kind == PN_V_BOOL ? v.b : v.i;
}

static int int_power(struct pn_rt *rt, int64_t base, int64_t exp, struct pn_value *ret) {
    int64_t r = 1;
    for (; exp; exp >>= 1) {
        if ((exp & 1) && __builtin_mul_overflow(r, base, &r)) return beyond(rt);
        if (exp > 1 && __builtin_mul_overflow(base, base, &base)) return beyond(rt);
    }
    *ret = pn_int(r);
    return 0;
}

static int int_arith(struct pn_rt *rt, uint16_t op, int64_t a, int64_t b, struct pn_value *ret) {
    int64_t r = 0, rest;
    bool over = false;
    switch (op) {
    case PN_OP('+', 0): over = __builtin_add_overflow(a, b, &r); break;
    case PN_OP('-', 0): over = __builtin_sub_overflow(a, b, &r); break;
    case PN_OP('*', 0): over = __builtin_mul_overflow(a, b, &r); break;
    case PN_OP('*', '*'):
        if (b >= 0) return int_power(rt, a, b, ret);
        if (a == 0) return pn_rt_fail(rt, "0.0 cannot be raised to a negative power");
        *ret = pn_float(pow((double)a, (double)b));
        return 0;
    default:
        if (b == 0) return pn_rt_fail(rt, "division by zero");
        if (op == PN_OP('/', 0)) {
            *ret = pn_float((double)a / (double)b);
            return 0;
        }
        if (a == INT64_MIN && b == -1) {
            if (op != PN_OP('%', 0)) return beyond(rt);
            r = 0;
            break;
        }
        r = a / b;
        rest = a % b;
        if (rest && (rest < 0) != (b < 0)) { /* Python rounds down, C towards zero */
            r--;
            rest += b;
        }
        if (op == PN_OP('%', 0)) r = rest;
        break;
    }
    if (over) return beyond(rt);
    *ret = pn_int(r);
    return 0;
}

static int float_arith(struct pn_rt *rt, uint16_t op, double a, double b, struct pn_value *ret) {
    double r;
    switch (op) {
    case PN_OP('+', 0): r = a + b; break;
    case PN_OP('-', 0): r = a - b; break;
    case PN_OP('*', 0): r = a * b; break;
    case PN_OP('*', '*'):
        if (a == 0 && b < 0) return pn_rt_fail(rt, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) return pn_rt_fail(rt, "a complex number, which templates do not have");
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b)) return pn_rt_fail(rt, "the result of ** is too large");
        break;
    default:
        if (b == 0) return pn_rt_fail(rt, "float division by zero");
        if (op == PN_OP('/', 0)) {
            r = a / b;
        } else {
            double rest = fmod(a, b);
            if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
            if (rest == 0) rest = copysign(0, b);
            r = op == PN_OP('%', 0) ? rest : floor((a - rest) / b + 0.5);
            if (r == 0 && op != PN_OP('%', 0)) r = copysign(0, a / b);
        }
        break;
    }
    *ret = pn_float(r);
    return 0;
}

static int add_strings(struct pn_rt *rt, struct pn_value a, struct pn_value b, struct pn_value *ret) {
    size_t from = rt->out.len;
    bool markup = a.safe || b.safe;
    for (int i = 0; i < 2; i++) {
        struct pn_value v = i ? b : a;
        if (markup && !v.safe)
            pn_out_escape_html(&rt->out, v);
        else
            pn_out_put_str(&rt->out, v);
    }
    if (pn_out_end(rt, from, ret)) return rt->e->code;
    ret->safe = markup;
    return 0;
}

static int add_lists(struct pn_rt *rt, struct pn_list *a, struct pn_list *b, struct pn_value *ret) {
    if (pn_charge(rt, a->n + b->n)) return rt->e->code;
    if (pn_list_new(rt->region, NULL, a->n + b->n, (enum pn_seq)a->seq, ret, rt->e)) return pn_rt_place(rt);
    if (a->n) memcpy(ret->list->v, a->v, a->n * sizeof *a->v);
    if (b->n) memcpy(ret->list->v + a->n, b->v, b->n * sizeof *b->v);
    return pn_list_seal(*ret, rt->e) ? pn_rt_place(rt) : 0;
}

static int repeat(struct pn_rt *rt, struct pn_value v, int64_t times, struct pn_value *ret) {
    if (times < 0) times = 0;
    uint64_t n = v.kind == PN_V_STR ? v.s->len : v.list->n, total;
    if (__builtin_mul_overflow(n, (uint64_t)times, &total)) return pn_rt_limit(rt, "repeated too often");
    if (v.kind == PN_V_STR) {
        size_t from = rt->out.len;
        if (pn_charge(rt, (uint64_t)times + total / 64)) return rt->e->code;
        for (int64_t i = 0; i < times && n && !rt->out.failed; i++) pn_out_put_str(&rt->out, v);
        return pn_out_end(rt, from, ret);
    }
    if (pn_charge(rt, total)) return rt->e->code;
    if (pn_list_new(rt->region, NULL, total, (enum pn_seq)v.list->seq, ret, rt->e)) return pn_rt_place(rt);
    for (uint64_t i = 0; i < total; i++) ret->list->v[i] = v.list->v[i % n];
    return pn_list_seal(*ret, rt->e) ? pn_rt_place(rt) : 0;
}

static bool is_sequence(struct pn_value v) {
    return v.kind == PN_V_STR || (v.kind == PN_V_LIST && (v.list->seq == PN_SEQ_LIST || v.list->seq == PN_SEQ_TUPLE));
}

int pn_op_arith(struct pn_rt *rt, uint16_t op, struct pn_value a, struct pn_value b, struct pn_value *ret) {
    char text[3] = { (char)(op & 0xFF), (char)(op >> 8), 0 };
    if (a.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, a);
    if (op == PN_OP('%', 0) && a.kind == PN_V_STR) return pn_format_percent(rt, a, b, ret);
    if (b.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, b);
    if (is_whole(a) && is_whole(b)) return int_arith(rt, op, whole(a), whole(b), ret);
    if (pn_is_number(a) && pn_is_number(b)) {
        if (a.big || b.big) return beyond(rt);
        return float_arith(rt, op, pn_value_num(a), pn_value_num(b), ret);
    }
    if (op == PN_OP('+', 0) && a.kind == PN_V_STR && b.kind == PN_V_STR) return add_strings(rt, a, b, ret);
    if (op == PN_OP('+', 0) && a.kind == PN_V_LIST && is_sequence(a) && b.kind == PN_V_LIST && b.list->seq == a.list->seq)
        return add_lists(rt, a.list, b.list, ret);
    if (op == PN_OP('*', 0) && is_sequence(a) && is_whole(b)) return repeat(rt, a, whole(b), ret);
    if (op == PN_OP('*', 0) && is_sequence(b) && is_whole(a)) return repeat(rt, b, whole(a), ret);
    return bad_operands(rt, text, a, b);
}

int pn_op_negate(struct pn_rt *rt, struct pn_value v, bool plus, struct pn_value *ret) {
    if (v.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, v);
    if (!pn_is_number(v)) return pn_rt_fail(rt, "bad operand type for unary %c: '%s'", plus ? '+' : '-', pn_value_type(v));
    if (v.big) return beyond(rt);
    if (v.kind == PN_V_FLOAT)
        *ret = pn_float(plus ? v.f : -v.f);
    else if (plus)
        *ret = pn_int(whole(v));
    else
        return int_arith(rt, PN_OP('-', 0), 0, whole(v), ret);
    return 0;
}

/* --- comparison ----------------------------------------------------------------------------------------------------- */

int pn_op_order(struct pn_rt *rt, struct pn_value a, struct pn_value b, int *ret) {
    if (a.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, a);
    if (b.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, b);
    if ((pn_is_number(a) && pn_is_number(b)) || (a.kind == PN_V_STR && b.kind == PN_V_STR)) {
        *ret = pn_key_cmp(a, b);
        return 0;
    }
    bool lists = a.kind == PN_V_LIST && b.kind == PN_V_LIST, groups = lists && a.list->seq == PN_SEQ_GROUP && b.list->seq == PN_SEQ_GROUP;
    if (!lists || !(groups || (is_sequence(a) && is_sequence(b) && a.list->seq == b.list->seq)))
        return pn_rt_fail(rt, "'<' not supported between instances of '%s' and '%s'", pn_value_type(a), pn_value_type(b));
    size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
    for (size_t i = 0; i < n; i++)
        if (!pn_value_eq(a.list->v[i], b.list->v[i])) return pn_op_order(rt, a.list->v[i], b.list->v[i], ret);
    *ret = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    return 0;
}

/* Comparing ends at the smaller of the two. */
static int charge_compare(struct pn_rt *rt, struct pn_value a, struct pn_value b) {
    uint64_t wa = pn_value_weight(a), wb = pn_value_weight(b);
    return pn_charge(rt, wa < wb ? wa : wb);
}

int pn_op_contains(struct pn_rt *rt, struct pn_value box, struct pn_value x, bool *ret) {
    switch ((enum pn_value_kind)box.kind) {
    case PN_V_UNDEFINED: *ret = false; return box.safe == PN_U_UNSAFE ? pn_rt_undefined(rt, box) : 0;
    case PN_V_STR:
        if (x.kind != PN_V_STR) return pn_rt_fail(rt, "'in <string>' requires string as left operand, not %s", pn_value_type(x));
        if (pn_charge_bytes(rt, box.s->len)) return rt->e->code;
        *ret = pn_str_find(box, 0, box.s->len, x, false) >= 0;
        return 0;
    case PN_V_DICT:
        if (pn_charge_walk(rt, x)) return rt->e->code;
        if (!pn_value_hashable(x)) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(x));
        *ret = pn_dict_get(box.dict, x) != NULL;
        return 0;
    case PN_V_LIST: {
        struct pn_list items;
        bool found = false;
        if (pn_op_iter(rt, box, &items)) return rt->e->code;
        for (size_t i = 0; i < items.n && !found; i++) {
            if (charge_compare(rt, items.v[i], x)) return rt->e->code;
            found = pn_value_eq(items.v[i], x);
        }
        *ret = found;
        return 0;
    }
    default: return pn_rt_fail(rt, "argument of type '%s' is not iterable", pn_value_type(box));
    }
}

int pn_op_compare(struct pn_rt *rt, uint16_t op, struct pn_value a, struct pn_value b, bool *ret) {
    int c;
    if (op == PN_CMP_IN || op == PN_CMP_NOT_IN) {
        if (pn_op_contains(rt, b, a, ret)) return rt->e->code;
        *ret ^= op == PN_CMP_NOT_IN;
        return 0;
    }
    if (charge_compare(rt, a, b)) return rt->e->code;
    if (op == PN_OP('=', '=') || op == PN_OP('!', '=')) {
        *ret = pn_value_eq(a, b) == (op == PN_OP('=', '='));
        return 0;
    }
    if (pn_op_order(rt, a, b, &c)) return rt->e->code;
    bool nan = (a.kind == PN_V_FLOAT && !a.big && isnan(a.f)) || (b.kind == PN_V_FLOAT && !b.big && isnan(b.f));
    *ret = !nan && (op == PN_OP('<', 0) ? c < 0 : op == PN_OP('<', '=') ? c <= 0 : op == PN_OP('>', 0) ? c > 0 : c >= 0);
    return 0;
}

/* --- subscripts and attributes --------------------------------------------------------------------------------------- */

/* Start, stop and step of a slice of n elements, as Python works them out. */
static int slice_bounds(struct pn_rt *rt, const struct pn_value b[3], int64_t n, int64_t ret[3]) {
    int64_t v[3], step = 1;
    for (int i = 0; i < 3; i++) {
        if (b[i].kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, b[i]);
        if (b[i].kind != PN_V_NULL && !is_whole(b[i])) return pn_rt_fail(rt, "slice indices must be integers or None");
        v[i] = b[i].kind == PN_V_NULL ? 0 : whole(b[i]);
    }
    if (b[2].kind != PN_V_NULL) step = v[2];
    if (step == 0) return pn_rt_fail(rt, "slice step cannot be zero");
    if (step < -INT64_MAX) step = -INT64_MAX;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        if (b[i].kind == PN_V_NULL)
            v[i] = (i == 0) == (step > 0) ? low : high;
        else if (v[i] < 0)
            v[i] = v[i] + n < low ? low : v[i] + n;
        else if (v[i] > high)
            v[i] = high;
    }
    ret[0] = v[0];
    ret[1] = v[1];
    ret[2] = step;
    return 0;
}

static int64_t slice_len(const int64_t b[3]) {
    if (b[2] > 0) return b[0] < b[1] ? (b[1] - b[0] - 1) / b[2] + 1 : 0;
    return b[1] < b[0] ? (b[0] - b[1] - 1) / -b[2] + 1 : 0;
}

static int slice_str(struct pn_rt *rt, struct pn_value v, const struct pn_value bounds[3], struct pn_value *ret) {
    int64_t b[3];
    if (pn_charge_bytes(rt, v.s->len)) return rt->e->code;
    size_t n = pn_count_chars(v.s->s, v.s->len);
    if (slice_bounds(rt, bounds, (int64_t)n, b)) return rt->e->code;
    int64_t len = slice_len(b);
    if (b[2] == 1) {
        size_t from = pn_char_offset(v.s->s, v.s->len, (size_t)b[0]);
        size_t bytes = pn_char_offset(v.s->s + from, v.s->len - from, (size_t)len);
        return pn_str_part(rt->region, v, from, bytes, ret) ? 0 : pn_rt_full(rt);
    }
    struct pn_list chars;
    if (pn_op_iter(rt, v, &chars)) return rt->e->code;
    size_t from = rt->out.len;
    for (int64_t i = 0, at = b[0]; i < len; i++, at += b[2]) pn_out_put_str(&rt->out, chars.v[at]);
    return pn_out_end(rt, from, ret);
}

int pn_op_slice(struct pn_rt *rt, struct pn_value v, const struct pn_value bounds[3], struct pn_value *ret) {
    int64_t b[3];
    if (v.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, v);
    if (v.kind == PN_V_STR) return slice_str(rt, v, bounds, ret);
    if (v.kind != PN_V_LIST || !pn_is_indexed(v.list)) return pn_rt_fail(rt, "'%s' object is not subscriptable", pn_value_type(v));
    if (slice_bounds(rt, bounds, (int64_t)v.list->n, b)) return rt->e->code;
    int64_t len = slice_len(b);
    if (pn_charge(rt, (uint64_t)len)) return rt->e->code;
    if (pn_list_new(rt->region, NULL, (size_t)len, (enum pn_seq)v.list->seq, ret, rt->e)) return pn_rt_place(rt);
    for (int64_t i = 0, at = b[0]; i < len; i++, at += b[2]) ret->list->v[i] = v.list->v[at];
    if (v.list->range) {
        const int64_t *r = v.list->range;
        ret->list->range = pn_range_new(rt, r[0] + b[0] * r[2], r[0] + b[1] * r[2], r[2] * b[2]);
        if (!ret->list->range) return rt->e->code;
    }
    return pn_list_seal(*ret, rt->e) ? pn_rt_place(rt) : 0;
}

static int loop_attr(struct pn_rt *rt, struct pn_value v, struct pn_value name, struct pn_value *ret) {
    const struct pn_object *o = v.obj;
    int64_t i = (int64_t)o->i, n = (int64_t)o->n;
    const struct {
        const char *name;
        struct pn_value v;
    } attrs[] = { { "index", pn_int(i + 1) },         { "index0", pn_int(i) },           { "first", pn_bool(i == 0) },
                  { "last", pn_bool(i == n - 1) },    { "length", pn_int(n) },           { "revindex", pn_int(n - i) },
                  { "revindex0", pn_int(n - i - 1) }, { "depth", pn_int(o->level + 1) }, { "depth0", pn_int(o->level) } };
    for (size_t k = 0; k < sizeof attrs / sizeof *attrs; k++)
        if (pn_str_is(name, attrs[k].name, strlen(attrs[k].name))) {
            *ret = attrs[k].v;
            return 0;
        }
    bool prev = pn_str_is(name, "previtem", 8), next = pn_str_is(name, "nextitem", 8);
    if ((prev && i > 0) || (next && i < n - 1))
        *ret = o->items[prev ? i - 1 : i + 1];
    else
        *ret = pn_undefined(PN_U_ATTR, v, name.s);
    (void)rt;
    return 0;
}

static bool namespace_attr(const struct pn_object *o, struct pn_value name, struct pn_value *ret) {
    for (size_t i = 0; i < o->n; i++)
        if (pn_str_is(o->names[i], name.s->s, name.s->len)) {
            *ret = o->values[i];
            return true;
        }
    return false;
}

/* The part of x.name that is not a dict's key. False when there is none. */
static bool own_attr(struct pn_rt *rt, struct pn_value v, struct pn_value name, struct pn_value *ret, int *rc) {
    const struct pn_builtin *row = pn_find_method((enum pn_value_kind)v.kind, name.s->s, name.s->len);
    *rc = 0;
    if (v.kind == PN_V_CALLABLE && v.obj->type != PN_O_LOOP && v.obj->type != PN_O_CYCLER) row = NULL;
    if (row) {
        if (!pn_object_new(rt, PN_O_METHOD, ret)) {
            *rc = rt->e->code;
            return true;
        }
        ret->obj->row = row;
        ret->obj->self = v;
        return true;
    }
    if (pn_is_unsafe_method((enum pn_value_kind)v.kind, name.s->s, name.s->len)) {
        *ret = pn_undefined(PN_U_UNSAFE, v, name.s);
        return true;
    }
    if (v.kind == PN_V_LIST && v.list->seq == PN_SEQ_GROUP && v.list->n == 2) {
        bool grouper = pn_str_is(name, "grouper", 7);
        if (!grouper && !pn_str_is(name, "list", 4)) return false;
        *ret = v.list->v[!grouper];
        return true;
    }
    if (v.kind != PN_V_CALLABLE) return false;
    if (v.obj->type == PN_O_NAMESPACE) return namespace_attr(v.obj, name, ret);
    if (v.obj->type == PN_O_MACRO && pn_str_is(name, "name", 4)) {
        *ret = v.obj->def->name;
        return true;
    }
    if (v.obj->type == PN_O_CYCLER && pn_str_is(name, "current", 7) && v.obj->self.list->n) {
        *ret = v.obj->self.list->v[v.obj->i % v.obj->self.list->n];
        return true;
    }
    if (v.obj->type != PN_O_LOOP) return false;
    *rc = loop_attr(rt, v, name, ret);
    return true;
}

int pn_op_attr(struct pn_rt *rt, struct pn_value v, struct pn_value name, struct pn_value *ret) {
    int rc;
    if (v.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, v);
    if (own_attr(rt, v, name, ret, &rc)) return rc;
    const struct pn_value *found = v.kind == PN_V_DICT ? pn_dict_get(v.dict, name) : NULL;
    *ret = found ? *found : pn_undefined(PN_U_ATTR, v, name.s);
    return 0;
}

static int item_at(struct pn_rt *rt, struct pn_value v, int64_t i, struct pn_value *ret) {
    struct pn_value missing = pn_undefined(PN_U_ITEM, v, NULL);
    missing.i = i;
    if (v.kind == PN_V_LIST && pn_is_indexed(v.list)) {
        int64_t n = (int64_t)v.list->n;
        if (i < 0) i += n;
        *ret = i >= 0 && i < n ? v.list->v[i] : missing;
        return 0;
    }
    if (v.kind == PN_V_STR) {
        if (pn_charge_bytes(rt, v.s->len)) return rt->e->code;
        if (i < 0) i += (int64_t)pn_count_chars(v.s->s, v.s->len);
        size_t from = i < 0 ? v.s->len : pn_char_offset(v.s->s, v.s->len, (size_t)i);
        if (from < v.s->len) return pn_str_part(rt->region, v, from, pn_char_len(v.s->s + from, v.s->len - from), ret) ? 0 : pn_rt_full(rt);
    }
    *ret = missing;
    return 0;
}

int pn_op_item(struct pn_rt *rt, struct pn_value v, struct pn_value key, struct pn_value *ret) {
    if (v.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, v);
    if (v.kind == PN_V_DICT) {
        if (pn_charge_walk(rt, key)) return rt->e->code;
        const struct pn_value *found = pn_value_hashable(key) ? pn_dict_get(v.dict, key) : NULL;
        if (found) {
            *ret = *found;
            return 0;
        }
    } else if (is_whole(key)) {
        return item_at(rt, v, whole(key), ret);
    }
    int rc;
    if (key.kind == PN_V_STR) {
        if (own_attr(rt, v, key, ret, &rc)) return rc;
        *ret = pn_undefined(PN_U_ATTR, v, key.s);
        return 0;
    }
    *ret = pn_undefined(PN_U_PLAIN, v, NULL);
    return 0;
}

/* --- iteration --------------------------------------------------------------------------------------------------------- */

static int chars_of(struct pn_rt *rt, struct pn_value v, struct pn_list *ret) {
    size_t n = pn_count_chars(v.s->s, v.s->len), at = 0;
    if (pn_charge(rt, n)) return rt->e->code;
    struct pn_value *items = fo_region_array(rt->region, n, sizeof *items);
    struct pn_str *strs = fo_region_array(rt->region, n, sizeof *strs);
    if (!items || !strs) return pn_rt_full(rt);
    for (size_t i = 0; i < n; i++) {
        size_t len = pn_char_len(v.s->s + at, v.s->len - at);
        strs[i] = (struct pn_str){ .s = v.s->s + at, .user = v.mark == PN_BY_BOTH ? v.s->user + at : NULL, .len = len };
        items[i] = (struct pn_value){ .kind = PN_V_STR, .mark = v.mark, .s = &strs[i] };
        at += len;
    }
    *ret = (struct pn_list){ .v = items, .n = n };
    return 0;
}

int pn_op_iter(struct pn_rt *rt, struct pn_value v, struct pn_list *ret) {
    switch ((enum pn_value_kind)v.kind) {
    case PN_V_UNDEFINED:
        if (v.safe == PN_U_UNSAFE) return pn_rt_undefined(rt, v);
        *ret = (struct pn_list){ 0 };
        return 0;
    case PN_V_STR: return chars_of(rt, v, ret);
    case PN_V_LIST:
        if (v.list->broken) {
            *rt->e = *v.list->broken;
            return rt->e->code;
        }
        *ret = *v.list;
        if (v.list->seq == PN_SEQ_ITER) {
            if (v.list->taken) ret->n = 0;
            v.list->taken = true;
        }
        return 0;
    case PN_V_DICT: *ret = (struct pn_list){ .v = v.dict->k, .n = v.dict->n }; return 0;
    default: return pn_rt_fail(rt, "'%s' object is not iterable", pn_value_type(v));
    }
}

int pn_op_len(struct pn_rt *rt, struct pn_value v, int64_t *ret) {
    switch ((enum pn_value_kind)v.kind) {
    case PN_V_UNDEFINED: *ret = 0; return 0;
    case PN_V_STR: *ret = (int64_t)pn_count_chars(v.s->s, v.s->len); return pn_charge_bytes(rt, v.s->len);
    case PN_V_DICT: *ret = (int64_t)v.dict->n; return 0;
    case PN_V_LIST:
        if (v.list->seq == PN_SEQ_ITER) break;
        *ret = (int64_t)v.list->n;
        return 0;
    default: break;
    }
    return pn_rt_fail(rt, "object of type '%s' has no len()", pn_value_type(v));
}
