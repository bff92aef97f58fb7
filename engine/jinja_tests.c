/* The tests behind `is`: each gives true or false. */
#include "engine/jinja_impl.h"

#include <math.h>
#include <string.h>

#define TEST(name) static int name(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret)

static int answer(struct pn_value *ret, bool yes) {
    *ret = pn_bool(yes);
    return 0;
}

TEST(t_defined) {
    (void)rt, (void)a;
    return answer(ret, self.kind != PN_V_UNDEFINED);
}

TEST(t_undefined) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_UNDEFINED);
}

TEST(t_none) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_NULL);
}

TEST(t_boolean) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_BOOL);
}

TEST(t_true) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_BOOL && self.b);
}

TEST(t_false) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_BOOL && !self.b);
}

TEST(t_integer) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_INT || (self.kind == PN_V_FLOAT && self.big));
}

TEST(t_float) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_FLOAT && !self.big);
}

TEST(t_number) {
    (void)rt, (void)a;
    return answer(ret, pn_is_number(self));
}

TEST(t_string) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_STR);
}

TEST(t_mapping) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_DICT);
}

/* What Python can iterate: undefined too. */
TEST(t_iterable) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_STR || self.kind == PN_V_LIST || self.kind == PN_V_DICT || self.kind == PN_V_UNDEFINED ||
                           (self.kind == PN_V_CALLABLE && self.obj->type == PN_O_LOOP));
}

/* What has a length and subscripts: strings and dicts too. */
TEST(t_sequence) {
    (void)rt, (void)a;
    bool list = self.kind == PN_V_LIST && pn_is_indexed(self.list);
    return answer(ret, self.kind == PN_V_STR || self.kind == PN_V_DICT || self.kind == PN_V_UNDEFINED || list);
}

TEST(t_callable) {
    (void)rt, (void)a;
    bool yes = self.kind == PN_V_CALLABLE && self.obj->type != PN_O_NAMESPACE && self.obj->type != PN_O_CYCLER;
    return answer(ret, yes || self.kind == PN_V_UNDEFINED);
}

TEST(t_escaped) {
    (void)rt, (void)a;
    return answer(ret, self.kind == PN_V_STR && self.safe);
}

static int case_test(struct pn_rt *rt, struct pn_value self, bool upper, struct pn_value *ret) {
    struct pn_value s;
    bool any = false;
    if (pn_to_str(rt, self, &s) || pn_charge_bytes(rt, s.s->len)) return rt->e->code;
    for (size_t i = 0, n; i < s.s->len; i += n) {
        uint32_t c = pn_char_at(s.s->s + i, s.s->len - i, &n);
        if (pn_char_case(c, upper) != c) return answer(ret, false);
        any |= pn_char_case(c, !upper) != c;
    }
    return answer(ret, any);
}

TEST(t_lower) {
    (void)a;
    return case_test(rt, self, false, ret);
}

TEST(t_upper) {
    (void)a;
    return case_test(rt, self, true, ret);
}

static int modulo(struct pn_rt *rt, struct pn_value self, int64_t by, bool *ret_zero) {
    struct pn_value rest;
    if (pn_op_arith(rt, PN_OP('%', 0), self, pn_int(by), &rest)) return rt->e->code;
    *ret_zero = !pn_value_truth(rest);
    return 0;
}

TEST(t_even) {
    bool zero = false;
    (void)a;
    if (!pn_is_number(self) && self.kind != PN_V_UNDEFINED) return pn_rt_fail(rt, "even of a %s", pn_value_type(self));
    return modulo(rt, self, 2, &zero) ? (int)rt->e->code : answer(ret, zero);
}

TEST(t_odd) {
    if (t_even(rt, self, a, ret)) return rt->e->code;
    ret->b = !ret->b && pn_is_number(self) && (self.kind != PN_V_FLOAT || fmod(self.f, 1) == 0);
    return 0;
}

TEST(t_divisibleby) {
    struct pn_value rest;
    if (!pn_is_number(self) && self.kind != PN_V_UNDEFINED) return pn_rt_fail(rt, "divisibleby of a %s", pn_value_type(self));
    if (pn_op_arith(rt, PN_OP('%', 0), self, *a->v[0], &rest)) return rt->e->code;
    return answer(ret, !pn_value_truth(rest));
}

static int compare(struct pn_rt *rt, uint16_t op, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    bool yes;
    if (pn_op_compare(rt, op, self, *a->v[0], &yes)) return rt->e->code;
    return answer(ret, yes);
}

TEST(t_eq) {
    return compare(rt, PN_OP('=', '='), self, a, ret);
}

TEST(t_ne) {
    return compare(rt, PN_OP('!', '='), self, a, ret);
}

TEST(t_lt) {
    return compare(rt, PN_OP('<', 0), self, a, ret);
}

TEST(t_le) {
    return compare(rt, PN_OP('<', '='), self, a, ret);
}

TEST(t_gt) {
    return compare(rt, PN_OP('>', 0), self, a, ret);
}

TEST(t_ge) {
    return compare(rt, PN_OP('>', '='), self, a, ret);
}

TEST(t_in) {
    return compare(rt, PN_CMP_IN, self, a, ret);
}

/* Identity: the same object, or equal values of the same simple type. */
TEST(t_sameas) {
    (void)rt;
    struct pn_value other = *a->v[0];
    if (self.kind != other.kind) return answer(ret, false);
    if (self.kind == PN_V_LIST || self.kind == PN_V_DICT || self.kind == PN_V_CALLABLE) return answer(ret, self.obj == other.obj);
    return answer(ret, pn_value_eq(self, other));
}

TEST(t_filter) {
    (void)a;
    if (!pn_value_hashable(self)) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(self));
    const struct pn_builtin *row = self.kind == PN_V_STR ? pn_find_filter(self.s->s, self.s->len) : NULL;
    return answer(ret, row && row->fn);
}

TEST(t_test) {
    (void)a;
    if (!pn_value_hashable(self)) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(self));
    return answer(ret, self.kind == PN_V_STR && pn_find_test(self.s->s, self.s->len) != NULL);
}

static const struct pn_builtin tests[] = {
    { "!=", t_ne, "other", 1 },
    { "<", t_lt, "other", 1 },
    { "<=", t_le, "other", 1 },
    { "==", t_eq, "other", 1 },
    { ">", t_gt, "other", 1 },
    { ">=", t_ge, "other", 1 },
    { "boolean", t_boolean, "", 0 },
    { "callable", t_callable, "", 0 },
    { "defined", t_defined, "", 0 },
    { "divisibleby", t_divisibleby, "num", 1 },
    { "eq", t_eq, "other", 1 },
    { "equalto", t_eq, "other", 1 },
    { "escaped", t_escaped, "", 0 },
    { "even", t_even, "", 0 },
    { "false", t_false, "", 0 },
    { "filter", t_filter, "", 0 },
    { "float", t_float, "", 0 },
    { "ge", t_ge, "other", 1 },
    { "greaterthan", t_gt, "other", 1 },
    { "gt", t_gt, "other", 1 },
    { "in", t_in, "seq", 1 },
    { "integer", t_integer, "", 0 },
    { "iterable", t_iterable, "", 0 },
    { "le", t_le, "other", 1 },
    { "lessthan", t_lt, "other", 1 },
    { "lower", t_lower, "", 0 },
    { "lt", t_lt, "other", 1 },
    { "mapping", t_mapping, "", 0 },
    { "ne", t_ne, "other", 1 },
    { "none", t_none, "", 0 },
    { "number", t_number, "", 0 },
    { "odd", t_odd, "", 0 },
    { "sameas", t_sameas, "other", 1 },
    { "sequence", t_sequence, "", 0 },
    { "string", t_string, "", 0 },
    { "test", t_test, "", 0 },
    { "true", t_true, "", 0 },
    { "undefined", t_undefined, "", 0 },
    { "upper", t_upper, "", 0 },
};

const struct pn_builtin *pn_find_test(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0) return &tests[i];
    return NULL;
}
