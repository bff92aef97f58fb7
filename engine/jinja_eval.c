/* Expressions. Strings joined by + and ~ are collected behind the output buffer and become one string at the end of the chain, so
 * that a chain costs its length once; see pn_str_extend for what makes s = s + x cheap too. */
#include "engine/jinja_impl.h"

#include <string.h>

/* --- calls ----------------------------------------------------------------------------------------------------- */

static int push(struct pn_rt *rt, struct pn_value v) {
    if (rt->n_stack == PN_STACK_VALUES) return pn_rt_limit(rt, "more than %d arguments in calls", PN_STACK_VALUES);
    rt->stack[rt->n_stack++] = v;
    return 0;
}

static int push_star(struct pn_rt *rt, struct pn_value v) {
    struct pn_list items;
    if (pn_op_iter(rt, v, &items)) return rt->e->code;
    for (size_t i = 0; i < items.n; i++)
        if (push(rt, items.v[i])) return rt->e->code;
    return 0;
}

static int push_starstar(struct pn_rt *rt, struct pn_value v) {
    if (v.kind != PN_V_DICT) return pn_rt_fail(rt, "argument after ** must be a mapping, not %s", pn_value_type(v));
    for (size_t i = 0; i < v.dict->n; i++) {
        if (v.dict->k[i].kind != PN_V_STR) return pn_rt_fail(rt, "keywords must be strings");
        if (push(rt, v.dict->k[i]) || push(rt, v.dict->v[i])) return rt->e->code;
    }
    return 0;
}

/* Evaluates the arguments onto rt->stack; the caller drops them. Named ones stand behind the positional ones. */
static int eval_args(struct pn_rt *rt, const struct pn_post *op, const struct pn_value *caller, struct pn_call *ret) {
    size_t from = rt->n_stack, named_from;
    struct pn_value v;
    for (size_t i = 0; i < op->n_args; i++) {
        const struct pn_arg *a = &op->args[i];
        if (a->kind != PN_A_POS && a->kind != PN_A_STAR) continue;
        if (pn_eval(rt, a->x, &v)) return rt->e->code;
        if (a->kind == PN_A_POS ? push(rt, v) : push_star(rt, v)) return rt->e->code;
    }
    named_from = rt->n_stack;
    for (size_t i = 0; i < op->n_args; i++) {
        const struct pn_arg *a = &op->args[i];
        if (a->kind != PN_A_NAMED && a->kind != PN_A_STARSTAR) continue;
        if (pn_eval(rt, a->x, &v)) return rt->e->code;
        if (a->kind == PN_A_NAMED ? push(rt, a->name) || push(rt, v) : push_starstar(rt, v)) return rt->e->code;
    }
    if (caller && (push(rt, rt->j->names[rt->j->sym_caller]) || push(rt, *caller))) return rt->e->code;
    *ret = (struct pn_call){
        .pos = rt->stack + from, .n_pos = named_from - from, .named = rt->stack + named_from, .n_named = (rt->n_stack - named_from) / 2
    };
    return 0;
}

/* Gives the arguments to the parameters that the row names. */
static int bind(struct pn_rt *rt, const struct pn_builtin *row, const struct pn_call *call, struct pn_args *ret) {
    const char *names[PN_MAX_PARAMS];
    size_t lens[PN_MAX_PARAMS], n = 0;
    bool rest = false;
    for (const char *p = row->params; *p;) {
        size_t len = strcspn(p, " ");
        if (*p == '*') {
            rest = true;
        } else {
            names[n] = p;
            lens[n++] = len;
        }
        p += len + (p[len] == ' ');
    }
    *ret = (struct pn_args){ .rest = *call };
    size_t taken = call->n_pos < n ? call->n_pos : n;
    for (size_t i = 0; i < taken; i++) ret->v[i] = &call->pos[i];
    if (taken) ret->rest.pos += taken;
    ret->rest.n_pos -= taken;
    for (size_t i = 0; i < call->n_named && !rest; i++) {
        struct pn_value name = call->named[2 * i];
        size_t k = 0;
        while (k < n && !pn_str_is(name, names[k], lens[k])) k++;
        if (k == n)
            return pn_rt_fail(rt, "%s() got an unexpected keyword argument '%.*s'", row->name, (int)(name.s->len < 60 ? name.s->len : 60),
                              name.s->s);
        if (ret->v[k]) return pn_rt_fail(rt, "%s() got several values for argument '%.*s'", row->name, (int)lens[k], names[k]);
        ret->v[k] = &call->named[2 * i + 1];
    }
    if (ret->rest.n_pos && !rest) return pn_rt_fail(rt, "%s() takes at most %zu argument(s)", row->name, n);
    for (size_t i = 0; i < row->n_required; i++)
        if (!ret->v[i]) return pn_rt_fail(rt, "%s() needs the argument '%.*s'", row->name, (int)lens[i], names[i]);
    return 0;
}

int pn_call_row(struct pn_rt *rt, const struct pn_builtin *row, struct pn_value self, const struct pn_call *call, struct pn_value *ret) {
    struct pn_args args;
    if (bind(rt, row, call, &args)) return rt->e->code;
    return row->fn(rt, self, &args, ret);
}

static int call_object(struct pn_rt *rt, struct pn_object *o, const struct pn_call *call, struct pn_value *ret) {
    switch ((enum pn_object_type)o->type) {
    case PN_O_BUILTIN:
    case PN_O_METHOD: return pn_call_row(rt, o->row, o->self, call, ret);
    case PN_O_MACRO: return pn_call_macro(rt, o, call, ret);
    case PN_O_LOOP: return pn_call_loop(rt, o, call, ret);
    case PN_O_JOINER:
        if (o->i++)
            *ret = o->self;
        else if (!pn_str_view(rt->region, "", 0, PN_BY_TEMPLATE, ret))
            return pn_rt_full(rt);
        return 0;
    case PN_O_CLOCK:
        if (call->n_pos != 1 || call->n_named || call->pos[0].kind != PN_V_STR) return pn_rt_fail(rt, "strftime_now() takes one string");
        return pn_format_time(rt, call->pos[0], o->self.i, ret);
    case PN_O_CYCLER:
    case PN_O_NAMESPACE: break;
    }
    return pn_rt_fail(rt, "object is not callable");
}

int pn_call(struct pn_rt *rt, struct pn_value f, const struct pn_call *call, struct pn_value *ret) {
    if (f.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, f);
    if (f.kind != PN_V_CALLABLE) return pn_rt_fail(rt, "'%s' object is not callable", pn_value_type(f));
    if (++rt->depth > PN_DEPTH_EVAL) return pn_rt_limit(rt, "nested deeper than %d while rendering", PN_DEPTH_EVAL);
    int rc = call_object(rt, f.obj, call, ret);
    rt->depth--;
    return rc;
}

/* --- postfix chains ------------------------------------------------------------------------------------------------ */

static const struct pn_builtin *method_of(const struct pn_post *op, struct pn_value v) {
    return v.kind == PN_V_STR ? op->method[0] : v.kind == PN_V_LIST ? op->method[1] : v.kind == PN_V_DICT ? op->method[2] : NULL;
}

static int unknown_row(struct pn_rt *rt, const struct pn_post *op) {
    const char *what = op->kind == PN_P_FILTER ? "filter" : "test";
    return pn_rt_fail(rt, op->row ? "the %s '%.*s' is not supported" : "no %s named '%.*s'", what,
                      (int)(op->name.s->len < 60 ? op->name.s->len : 60), op->name.s->s);
}

/* A filter, a test or a method: a row with the arguments of op. */
static int apply_row(struct pn_rt *rt, const struct pn_builtin *row, const struct pn_post *op, struct pn_value v,
                     const struct pn_value *caller, struct pn_value *ret) {
    size_t keep = rt->n_stack;
    struct pn_call call;
    if (eval_args(rt, op, caller, &call)) return rt->e->code;
    rt->at = op->at;
    if (pn_call_row(rt, row, v, &call, ret)) return rt->e->code;
    rt->n_stack = keep;
    return 0;
}

static int apply_call(struct pn_rt *rt, const struct pn_post *op, struct pn_value v, const struct pn_value *caller, struct pn_value *ret) {
    size_t keep = rt->n_stack;
    struct pn_call call;
    rt->at = op->at;
    if (v.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, v);
    if (eval_args(rt, op, caller, &call)) return rt->e->code;
    rt->at = op->at;
    if (pn_call(rt, v, &call, ret)) return rt->e->code;
    rt->n_stack = keep;
    return 0;
}

static int apply_item(struct pn_rt *rt, const struct pn_post *op, struct pn_value v, struct pn_value *ret) {
    struct pn_value x[3] = { pn_none(), pn_none(), pn_none() };
    for (int i = 0; i < 3; i++)
        if (op->x[i] && pn_eval(rt, op->x[i], &x[i])) return rt->e->code;
    rt->at = op->at;
    return op->kind == PN_P_ITEM ? pn_op_item(rt, v, x[0], ret) : pn_op_slice(rt, v, x, ret);
}

static int apply_attr(struct pn_rt *rt, const struct pn_post *op, struct pn_value v, struct pn_value *ret) {
    if (v.kind == PN_V_DICT && !op->method[2]) { /* the usual case, without a search for a method */
        const struct pn_value *found = pn_dict_get(v.dict, op->name);
        if (found) {
            *ret = *found;
            return 0;
        }
    }
    return pn_op_attr(rt, v, op->name, ret);
}

int pn_eval_post(struct pn_rt *rt, const struct pn_node *n, struct pn_value v, const struct pn_value *caller, struct pn_value *ret) {
    for (size_t i = 0; i < n->post.n; i++) {
        const struct pn_post *op = &n->post.ops[i], *next = i + 1 < n->post.n ? op + 1 : NULL;
        const struct pn_builtin *row;
        int rc;
        rt->at = op->at;
        if (pn_charge(rt, 1)) return rt->e->code;
        switch ((enum pn_post_kind)op->kind) {
        case PN_P_ATTR:
            row = method_of(op, v);
            if (row && next && next->kind == PN_P_CALL) {
                rc = apply_row(rt, row, next, v, NULL, &v);
                i++;
            } else {
                rc = apply_attr(rt, op, v, &v);
            }
            break;
        case PN_P_ITEM:
        case PN_P_SLICE: rc = apply_item(rt, op, v, &v); break;
        case PN_P_CALL: rc = apply_call(rt, op, v, next ? NULL : caller, &v); break;
        case PN_P_FILTER:
            if (!op->row || !op->row->fn) return unknown_row(rt, op);
            rc = apply_row(rt, op->row, op, v, NULL, &v);
            break;
        default: /* PN_P_TEST, PN_P_TEST_NOT */
            if (!op->row || !op->row->fn) return unknown_row(rt, op);
            rc = apply_row(rt, op->row, op, v, NULL, &v);
            if (rc == 0) v = pn_bool(pn_value_truth(v) != (op->kind == PN_P_TEST_NOT));
            break;
        }
        if (rc) return rc;
    }
    *ret = v;
    return 0;
}

/* --- operators --------------------------------------------------------------------------------------------------------- */

static int check_text(struct pn_rt *rt, size_t from) {
    if (rt->out.failed) {
        pn_out_error(&rt->out, rt->e);
        return pn_rt_place(rt);
    }
    return pn_charge_bytes(rt, rt->out.len - from);
}

static int eval_concat(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value head, x;
    if (pn_eval(rt, n->chain.first, &head)) return rt->e->code;
    if (head.kind != PN_V_STR && pn_to_str(rt, head, &head)) return rt->e->code;
    size_t from = rt->out.len;
    for (size_t i = 0; i < n->chain.n; i++) {
        if (pn_eval(rt, n->chain.more[i].x, &x)) return rt->e->code;
        size_t at = rt->out.len;
        if (pn_charge_walk(rt, x)) return rt->e->code;
        pn_out_put_value(&rt->out, x);
        if (check_text(rt, at)) return rt->e->code;
    }
    rt->at = n->at;
    return pn_str_extend(rt, head, from, ret);
}

static int eval_chain(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value acc, x;
    bool joining = false; /* acc is a string whose end lies behind the output, from `from` on */
    size_t from = 0;
    if (pn_eval(rt, n->chain.first, &acc)) return rt->e->code;
    for (size_t i = 0; i < n->chain.n; i++) {
        const struct pn_operand *more = &n->chain.more[i];
        if (pn_eval(rt, more->x, &x)) return rt->e->code;
        rt->at = n->at;
        if (more->op == PN_OP('+', 0) && acc.kind == PN_V_STR && x.kind == PN_V_STR && acc.safe == x.safe) {
            if (!joining) from = rt->out.len;
            joining = true;
            size_t at = rt->out.len;
            pn_out_put_str(&rt->out, x);
            if (check_text(rt, at)) return rt->e->code;
            continue;
        }
        if (joining && pn_str_extend(rt, acc, from, &acc)) return rt->e->code;
        joining = false;
        if (pn_op_arith(rt, more->op, acc, x, &acc)) return rt->e->code;
    }
    *ret = acc;
    return joining ? pn_str_extend(rt, acc, from, ret) : 0;
}

static int eval_compare(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value a, b;
    bool yes = true;
    if (pn_eval(rt, n->chain.first, &a)) return rt->e->code;
    for (size_t i = 0; i < n->chain.n && yes; i++) {
        const struct pn_operand *more = &n->chain.more[i];
        if (pn_eval(rt, more->x, &b)) return rt->e->code;
        rt->at = n->at;
        if (pn_op_compare(rt, more->op, a, b, &yes)) return rt->e->code;
        a = b;
    }
    *ret = pn_bool(yes);
    return 0;
}

static int eval_logic(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    for (size_t i = 0; i < n->list.n; i++) {
        if (pn_eval(rt, n->list.x[i], ret)) return rt->e->code;
        if (pn_value_truth(*ret) == (n->type == PN_N_OR)) break;
    }
    return 0;
}

static int eval_cond(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value yes;
    if (pn_eval(rt, n->cond.test, &yes)) return rt->e->code;
    const struct pn_node *x = pn_value_truth(yes) ? n->cond.yes : n->cond.no;
    if (x) return pn_eval(rt, x, ret);
    *ret = pn_undefined(PN_U_PLAIN, pn_none(), NULL);
    return 0;
}

static int eval_list(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value list;
    enum pn_seq seq = n->type == PN_N_TUPLE ? PN_SEQ_TUPLE : PN_SEQ_LIST;
    if (pn_list_new(rt->region, NULL, n->list.n, seq, &list, rt->e)) return pn_rt_place(rt);
    for (size_t i = 0; i < n->list.n; i++)
        if (pn_eval(rt, n->list.x[i], &list.list->v[i])) return rt->e->code;
    if (pn_list_seal(list, rt->e)) return pn_rt_place(rt);
    *ret = list;
    return 0;
}

static int eval_dict(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    size_t len = n->list.n / 2;
    struct pn_value *k = fo_region_array(rt->region, len, sizeof *k), *v = fo_region_array(rt->region, len, sizeof *v);
    if (!k || !v) return pn_rt_full(rt);
    for (size_t i = 0; i < len; i++) {
        if (pn_eval(rt, n->list.x[2 * i], &k[i]) || pn_eval(rt, n->list.x[2 * i + 1], &v[i])) return rt->e->code;
        rt->at = n->at;
        if (pn_charge_walk(rt, k[i])) return rt->e->code;
        if (!pn_value_hashable(k[i])) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(k[i]));
    }
    return pn_dict_new(rt->region, k, v, len, ret, rt->e) ? pn_rt_place(rt) : 0;
}

static int eval_name(struct pn_rt *rt, uint32_t sym, struct pn_value *ret) {
    for (const struct pn_scope *s = rt->scope; s; s = s->parent) {
        for (uint32_t i = 0; i < s->n; i++)
            if (s->vars[i].sym == sym) {
                *ret = s->vars[i].v;
                return pn_charge(rt, i / 8);
            }
        if (pn_charge(rt, s->n / 8)) return rt->e->code;
    }
    *ret = rt->globals[sym];
    return 0;
}

static int eval_unary(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value v;
    if (pn_eval(rt, n->x, &v)) return rt->e->code;
    rt->at = n->at;
    if (n->type != PN_N_NOT) return pn_op_negate(rt, v, n->type == PN_N_POS, ret);
    *ret = pn_bool(!pn_value_truth(v));
    return 0;
}

static int eval_postfix(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    struct pn_value v;
    if (pn_eval(rt, n->post.base, &v)) return rt->e->code;
    return pn_eval_post(rt, n, v, NULL, ret);
}

static int dispatch(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    switch ((enum pn_node_type)n->type) {
    case PN_N_LIST:
    case PN_N_TUPLE: return eval_list(rt, n, ret);
    case PN_N_DICT: return eval_dict(rt, n, ret);
    case PN_N_COND: return eval_cond(rt, n, ret);
    case PN_N_OR:
    case PN_N_AND: return eval_logic(rt, n, ret);
    case PN_N_NOT:
    case PN_N_NEG:
    case PN_N_POS: return eval_unary(rt, n, ret);
    case PN_N_CHAIN: return eval_chain(rt, n, ret);
    case PN_N_CONCAT: return eval_concat(rt, n, ret);
    case PN_N_COMPARE: return eval_compare(rt, n, ret);
    case PN_N_POSTFIX: return eval_postfix(rt, n, ret);
    default: return pn_rt_fail(rt, "a statement where an expression belongs");
    }
}

int pn_eval(struct pn_rt *rt, const struct pn_node *n, struct pn_value *ret) {
    rt->at = n->at;
    if (pn_charge(rt, 1)) return rt->e->code;
    if (n->type == PN_N_CONST) {
        *ret = n->value;
        return 0;
    }
    if (n->type == PN_N_NAME) return eval_name(rt, n->sym, ret);
    if (++rt->depth > PN_DEPTH_EVAL) return pn_rt_limit(rt, "nested deeper than %d while rendering", PN_DEPTH_EVAL);
    int rc = dispatch(rt, n, ret);
    rt->depth--;
    return rc;
}
