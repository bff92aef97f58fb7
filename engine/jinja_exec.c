/* Statements, scopes, loops and macros. All output goes to one buffer; whoever captures a body (macros, call, set and filter
 * blocks) notes where the buffer stood and takes the rest off again, so nothing has to be freed on the way out.
 *
 * Scopes are looked up at run time, innermost first: a round of a loop, a macro call, a captured body has its own; `if` has none.
 * The template's own variables lie in an array by symbol. A macro remembers the scopes around its definition. */
#include "engine/jinja_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- errors --------------------------------------------------------------------------------------------------- */

static int column_of(const struct pn_rt *rt) {
    int col = 1;
    for (size_t i = rt->at.start; i > 0 && rt->j->text[i - 1] != '\n'; i--) col++;
    return col;
}

/* The expression at rt->at, cut at a character. */
static int shown(const struct pn_rt *rt) {
    const char *s = rt->j->text + rt->at.start;
    size_t len = rt->at.end > rt->at.start ? rt->at.end - rt->at.start : 0, n = len < 100 ? len : 100;
    while (n > 0 && n < len && ((unsigned char)s[n] & 0xC0) == 0x80) n--;
    return (int)n;
}

static int __attribute__((format(printf, 3, 0))) fail_with(struct pn_rt *rt, enum fo_code code, const char *fmt, va_list ap) {
    char what[256];
    vsnprintf(what, sizeof what, fmt, ap);
    return fo_fail_at(rt->e, code, rt->at.line, column_of(rt), "template line %d: %s, in `%.*s`", rt->at.line, what, shown(rt),
                      rt->j->text + rt->at.start);
}

int pn_rt_fail(struct pn_rt *rt, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int rc = fail_with(rt, FO_EFORMAT, fmt, ap);
    va_end(ap);
    return rc;
}

int pn_rt_limit(struct pn_rt *rt, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int rc = fail_with(rt, FO_ELIMIT, fmt, ap);
    va_end(ap);
    return rc;
}

int pn_rt_place(struct pn_rt *rt) {
    rt->e->line = rt->at.line;
    rt->e->col = column_of(rt);
    return fo_wrap(rt->e, "template line %d", rt->at.line);
}

int pn_rt_full(struct pn_rt *rt) {
    pn_region_full(rt->region, rt->e);
    return pn_rt_place(rt);
}

int pn_rt_undefined(struct pn_rt *rt, struct pn_value v) {
    const char *kind = pn_kind_name((enum pn_value_kind)v.big);
    int len = v.safe != PN_U_PLAIN && v.safe != PN_U_ITEM ? (int)(v.s->len < 100 ? v.s->len : 100) : 0;
    switch ((enum pn_undef)v.safe) {
    case PN_U_NAME: return pn_rt_fail(rt, "'%.*s' is undefined", len, v.s->s);
    case PN_U_ATTR: return pn_rt_fail(rt, "'%s object' has no attribute '%.*s'", kind, len, v.s->s);
    case PN_U_ITEM: return pn_rt_fail(rt, "%s object has no element %lld", kind, (long long)v.i);
    case PN_U_UNSAFE: return pn_rt_fail(rt, "access to attribute '%.*s' of '%s' object is unsafe.", len, v.s->s, kind);
    case PN_U_PLAIN: break;
    }
    return pn_rt_fail(rt, "an undefined value was used");
}

/* --- scopes ------------------------------------------------------------------------------------------------------ */

static struct pn_scope *scope_new(struct pn_rt *rt, struct pn_scope *parent) {
    struct pn_scope *s = fo_region_alloc(rt->region, sizeof *s);
    if (!s) {
        pn_rt_full(rt);
        return NULL;
    }
    s->parent = parent;
    s->vars = s->first;
    s->size = sizeof s->first / sizeof *s->first;
    return s;
}

static int scope_set(struct pn_rt *rt, uint32_t sym, struct pn_value v) {
    struct pn_scope *s = rt->scope;
    if (!s) {
        rt->globals[sym] = v;
        return 0;
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].sym == sym) {
            s->vars[i].v = v;
            return pn_charge(rt, i / 8);
        }
    if (s->n == s->size) {
        struct pn_var *more = fo_region_array(rt->region, s->size * 2, sizeof *more);
        if (!more) return pn_rt_full(rt);
        memcpy(more, s->vars, s->n * sizeof *more);
        s->vars = more;
        s->size *= 2;
    }
    s->vars[s->n++] = (struct pn_var){ sym, v };
    return pn_charge(rt, s->n / 8);
}

/* For a macro made here. */
static void keep_scopes(struct pn_scope *s) {
    for (; s && !s->kept; s = s->parent) s->kept = true;
}

bool pn_object_new(struct pn_rt *rt, enum pn_object_type type, struct pn_value *ret) {
    struct pn_object *o = fo_region_alloc(rt->region, sizeof *o);
    if (!o) {
        pn_rt_full(rt);
        return false;
    }
    o->type = (uint8_t)type;
    *ret = (struct pn_value){ .kind = PN_V_CALLABLE, .obj = o };
    return true;
}

static int namespace_set(struct pn_rt *rt, const struct pn_target *t, struct pn_value v) {
    struct pn_node name = { .type = PN_N_NAME, .at = t->at, .sym = t->sym };
    struct pn_value ns;
    if (pn_eval(rt, &name, &ns)) return rt->e->code;
    if (ns.kind != PN_V_CALLABLE || ns.obj->type != PN_O_NAMESPACE)
        return pn_rt_fail(rt, "cannot assign attribute on non-namespace object");
    struct pn_object *o = ns.obj;
    for (size_t i = 0; i < o->n; i++)
        if (pn_str_is(o->names[i], t->attr.s->s, t->attr.s->len)) {
            o->values[i] = v;
            return pn_charge(rt, i / 8);
        }
    if (o->n == o->size) {
        size_t size = o->size ? 2 * o->size : 4;
        struct pn_value *names = fo_region_array(rt->region, size, sizeof *names),
                        *values = fo_region_array(rt->region, size, sizeof *values);
        if (!names || !values) return pn_rt_full(rt);
        if (o->n) {
            memcpy(names, o->names, o->n * sizeof *names);
            memcpy(values, o->values, o->n * sizeof *values);
        }
        o->names = names;
        o->values = values;
        o->size = size;
    }
    o->names[o->n] = t->attr;
    o->values[o->n++] = v;
    return 0;
}

static int assign(struct pn_rt *rt, const struct pn_target *t, struct pn_value v) {
    if (t->attr.kind == PN_V_STR) return namespace_set(rt, t, v);
    if (!t->many) return scope_set(rt, t->sym, v);
    struct pn_list items;
    rt->at = t->at;
    if (pn_op_iter(rt, v, &items)) return rt->e->code;
    if (items.n != t->n_many)
        return pn_rt_fail(rt,
                          items.n > t->n_many ? "too many values to unpack (expected %zu)" : "not enough values to unpack (expected %zu)",
                          t->n_many);
    for (size_t i = 0; i < items.n; i++)
        if (assign(rt, &t->many[i], items.v[i])) return rt->e->code;
    return 0;
}

/* --- captured bodies and macros ------------------------------------------------------------------------------------- */

static int capture(struct pn_rt *rt, const struct pn_node *body, struct pn_value *ret) {
    size_t from = rt->out.len;
    if (pn_exec(rt, body)) return rt->e->code;
    return pn_out_end(rt, from, ret);
}

/* The same in a scope of its own. */
static int capture_scoped(struct pn_rt *rt, const struct pn_node *body, struct pn_value *ret) {
    struct pn_scope *outer = rt->scope;
    rt->scope = scope_new(rt, outer);
    if (!rt->scope || capture(rt, body, ret)) return rt->e->code;
    rt->scope = outer;
    return 0;
}

static const struct pn_value *find_named(const struct pn_call *call, struct pn_value name) {
    for (size_t i = 0; i < call->n_named; i++)
        if (pn_str_is(call->named[2 * i], name.s->s, name.s->len)) return &call->named[2 * i + 1];
    return NULL;
}

static bool is_param(const struct pn_macro_def *def, struct pn_value name) {
    for (size_t i = 0; i < def->n_params; i++)
        if (pn_str_is(def->params[i].name, name.s->s, name.s->len)) return true;
    return false;
}

/* The named arguments that no parameter takes: for `kwargs`, or an error. `caller` is no argument. */
static int extra_named(struct pn_rt *rt, const struct pn_macro_def *def, const struct pn_call *call, struct pn_value *ret) {
    struct pn_value *k = fo_region_array(rt->region, call->n_named, sizeof *k), *v = fo_region_array(rt->region, call->n_named, sizeof *v);
    size_t n = 0;
    if (!k || !v) return pn_rt_full(rt);
    for (size_t i = 0; i < call->n_named; i++) {
        struct pn_value name = call->named[2 * i];
        if (is_param(def, name)) continue;
        if (def->uses_caller && pn_str_is(name, "caller", 6)) continue;
        if (!def->uses_kwargs)
            return pn_rt_fail(rt, "macro '%.*s' takes no keyword argument '%.*s'", (int)(def->name.s->len < 60 ? def->name.s->len : 60),
                              def->name.s->s, (int)(name.s->len < 60 ? name.s->len : 60), name.s->s);
        k[n] = name;
        v[n++] = call->named[2 * i + 1];
    }
    return pn_dict_new(rt->region, k, v, n, ret, rt->e) ? pn_rt_place(rt) : 0;
}

/* Fills the scope of a call (rt->scope). */
static int bind_params(struct pn_rt *rt, const struct pn_macro_def *def, const struct pn_call *call) {
    struct pn_value v;
    if (call->n_pos > def->n_params && !def->uses_varargs)
        return pn_rt_fail(rt, "macro '%.*s' takes not more than %zu argument(s)", (int)(def->name.s->len < 60 ? def->name.s->len : 60),
                          def->name.s->s, def->n_params);
    for (size_t i = 0; i < def->n_params; i++) {
        const struct pn_param *p = &def->params[i];
        const struct pn_value *named = find_named(call, p->name);
        if (i < call->n_pos) {
            if (named)
                return pn_rt_fail(rt, "macro got several values for argument '%.*s'", (int)(p->name.s->len < 60 ? p->name.s->len : 60),
                                  p->name.s->s);
            v = call->pos[i];
        } else if (named) {
            v = *named;
        } else if (p->def) {
            if (pn_eval(rt, p->def, &v)) return rt->e->code;
        } else {
            v = pn_undefined(PN_U_NAME, pn_none(), p->name.s);
        }
        if (scope_set(rt, p->sym, v)) return rt->e->code;
    }
    if (def->uses_varargs) {
        size_t n = call->n_pos > def->n_params ? call->n_pos - def->n_params : 0;
        if (pn_list_new(rt->region, n ? call->pos + def->n_params : NULL, n, PN_SEQ_TUPLE, &v, rt->e)) return pn_rt_place(rt);
        if (scope_set(rt, rt->j->sym_varargs, v)) return rt->e->code;
    }
    if (def->uses_kwargs || call->n_named) {
        if (extra_named(rt, def, call, &v)) return rt->e->code;
        if (def->uses_kwargs && scope_set(rt, rt->j->sym_kwargs, v)) return rt->e->code;
    }
    if (def->uses_caller && !is_param(def, rt->j->names[rt->j->sym_caller])) {
        const struct pn_value *caller = find_named(call, rt->j->names[rt->j->sym_caller]);
        v = caller ? *caller : pn_undefined(PN_U_NAME, pn_none(), rt->j->names[rt->j->sym_caller].s);
        if (scope_set(rt, rt->j->sym_caller, v)) return rt->e->code;
    }
    return 0;
}

int pn_call_macro(struct pn_rt *rt, const struct pn_object *macro, const struct pn_call *call, struct pn_value *ret) {
    struct pn_scope *outer = rt->scope;
    rt->scope = scope_new(rt, macro->scope);
    if (!rt->scope || bind_params(rt, macro->def, call) || capture(rt, macro->def->body, ret)) return rt->e->code;
    rt->scope = outer;
    return 0;
}

static int make_macro(struct pn_rt *rt, const struct pn_macro_def *def, struct pn_value *ret) {
    if (!pn_object_new(rt, PN_O_MACRO, ret)) return rt->e->code;
    ret->obj->def = def;
    ret->obj->scope = rt->scope;
    keep_scopes(rt->scope);
    return 0;
}

/* --- loops --------------------------------------------------------------------------------------------------------------- */

/* Keeps the items for which the loop's condition holds. */
static int filter_items(struct pn_rt *rt, const struct pn_loop_def *def, struct pn_list *items) {
    struct pn_value *kept = fo_region_array(rt->region, items->n, sizeof *kept), yes;
    size_t n = 0;
    if (!kept) return pn_rt_full(rt);
    struct pn_scope *outer = rt->scope;
    rt->scope = scope_new(rt, outer);
    if (!rt->scope) return rt->e->code;
    for (size_t i = 0; i < items->n; i++) {
        if (assign(rt, &def->target, items->v[i]) || pn_eval(rt, def->filter, &yes)) return rt->e->code;
        if (pn_value_truth(yes)) kept[n++] = items->v[i];
    }
    rt->scope = outer;
    items->v = kept;
    items->n = n;
    return 0;
}

static int loop_over(struct pn_rt *rt, const struct pn_loop_def *def, struct pn_value over, unsigned level) {
    struct pn_list items;
    struct pn_value loop;
    rt->at = def->iter->at;
    if (pn_op_iter(rt, over, &items)) return rt->e->code;
    if (def->filter && filter_items(rt, def, &items)) return rt->e->code;
    if (items.n == 0) return pn_exec(rt, def->otherwise);
    bool whole = false; /* a round ran to its end: as Jinja has it, else is also for loops of nothing but break and continue */
    if (!pn_object_new(rt, PN_O_LOOP, &loop)) return rt->e->code;
    struct pn_scope *outer = rt->scope, *inner = scope_new(rt, outer);
    loop.obj->loop = def;
    loop.obj->scope = outer;
    loop.obj->items = items.v;
    loop.obj->n = items.n;
    loop.obj->level = level;
    for (size_t i = 0; inner && i < items.n; i++) {
        loop.obj->i = i;
        rt->scope = inner;
        inner->n = 0;
        if (pn_charge(rt, 1) || scope_set(rt, rt->j->sym_loop, loop) || assign(rt, &def->target, items.v[i]) || pn_exec(rt, def->body))
            return rt->e->code;
        enum pn_flow flow = rt->flow;
        rt->flow = PN_FLOW_NEXT;
        whole |= flow == PN_FLOW_NEXT;
        if (flow == PN_FLOW_BREAK) break;
        if (inner->kept) inner = scope_new(rt, outer);
    }
    rt->scope = outer;
    if (!inner) return rt->e->code;
    return whole ? 0 : pn_exec(rt, def->otherwise);
}

int pn_call_loop(struct pn_rt *rt, struct pn_object *loop, const struct pn_call *call, struct pn_value *ret) {
    if (!loop->loop->recursive) return pn_rt_fail(rt, "the loop must have the 'recursive' marker to be called");
    if (call->n_pos != 1 || call->n_named) return pn_rt_fail(rt, "a recursive loop takes one argument");
    struct pn_scope *outer = rt->scope;
    size_t from = rt->out.len;
    rt->scope = loop->scope;
    if (loop_over(rt, loop->loop, call->pos[0], loop->level + 1)) return rt->e->code;
    rt->scope = outer;
    return pn_out_end(rt, from, ret);
}

/* --- statements ----------------------------------------------------------------------------------------------------------- */

static int print(struct pn_rt *rt, struct pn_value v) {
    size_t from = rt->out.len;
    if (pn_charge_walk(rt, v)) return rt->e->code;
    pn_out_put_value(&rt->out, v);
    if (rt->out.failed) {
        pn_out_error(&rt->out, rt->e);
        return pn_rt_place(rt);
    }
    return pn_charge_bytes(rt, rt->out.len - from);
}

static int exec_if(struct pn_rt *rt, const struct pn_node *n) {
    for (size_t i = 0; i < n->cases.n; i++) {
        const struct pn_branch *b = &n->cases.branches[i];
        struct pn_value yes = pn_bool(true);
        if (b->test && pn_eval(rt, b->test, &yes)) return rt->e->code;
        if (pn_value_truth(yes)) return pn_exec(rt, b->body);
    }
    return 0;
}

static int exec_with(struct pn_rt *rt, const struct pn_node *n) {
    struct pn_scope *outer = rt->scope, *inner = scope_new(rt, outer);
    struct pn_value v;
    if (!inner) return rt->e->code;
    for (size_t i = 0; i < n->with.n; i++) {
        rt->scope = outer;
        if (pn_eval(rt, n->with.values[i], &v)) return rt->e->code;
        rt->scope = inner;
        if (assign(rt, &n->with.targets[i], v)) return rt->e->code;
    }
    rt->scope = inner;
    if (pn_exec(rt, n->with.body)) return rt->e->code;
    rt->scope = outer;
    return 0;
}

static int exec_scope(struct pn_rt *rt, const struct pn_node *n) {
    struct pn_scope *outer = rt->scope;
    rt->scope = scope_new(rt, outer);
    if (!rt->scope || pn_exec(rt, n->body)) return rt->e->code;
    rt->scope = outer;
    return 0;
}

static int exec_call_block(struct pn_rt *rt, const struct pn_node *n) {
    struct pn_value caller, v;
    const struct pn_node *call = n->call.call;
    if (make_macro(rt, n->call.def, &caller)) return rt->e->code;
    if (pn_eval(rt, call->post.base, &v) || pn_eval_post(rt, call, v, &caller, &v)) return rt->e->code;
    rt->at = call->at;
    return print(rt, v);
}

static int exec_captured(struct pn_rt *rt, const struct pn_node *body, const struct pn_node *filter, struct pn_value *ret) {
    if (capture_scoped(rt, body, ret)) return rt->e->code;
    return filter ? pn_eval_post(rt, filter, *ret, NULL, ret) : 0;
}

static int exec_one(struct pn_rt *rt, const struct pn_node *n) {
    struct pn_value v;
    switch ((enum pn_node_type)n->type) {
    case PN_N_DATA: return print(rt, n->value);
    case PN_N_PRINT:
        if (pn_eval(rt, n->x, &v)) return rt->e->code;
        rt->at = n->at;
        return print(rt, v);
    case PN_N_IF: return exec_if(rt, n);
    case PN_N_FOR: return pn_eval(rt, n->loop->iter, &v) ? (int)rt->e->code : loop_over(rt, n->loop, v, 0);
    case PN_N_SET: return pn_eval(rt, n->set.value, &v) ? (int)rt->e->code : assign(rt, n->set.target, v);
    case PN_N_SET_BLOCK: return exec_captured(rt, n->set.body, n->set.value, &v) ? (int)rt->e->code : assign(rt, n->set.target, v);
    case PN_N_FILTER_BLOCK: return exec_captured(rt, n->filter.body, n->filter.filter, &v) ? (int)rt->e->code : print(rt, v);
    case PN_N_MACRO: return make_macro(rt, n->macro.def, &v) ? (int)rt->e->code : scope_set(rt, n->macro.sym, v);
    case PN_N_CALL_BLOCK: return exec_call_block(rt, n);
    case PN_N_WITH: return exec_with(rt, n);
    case PN_N_SCOPE: return exec_scope(rt, n);
    case PN_N_BREAK: rt->flow = PN_FLOW_BREAK; return 0;
    case PN_N_CONTINUE: rt->flow = PN_FLOW_CONTINUE; return 0;
    default: return pn_rt_fail(rt, "an expression where a statement belongs");
    }
}

int pn_exec(struct pn_rt *rt, const struct pn_node *body) {
    if (++rt->depth > PN_DEPTH_EVAL) return pn_rt_limit(rt, "nested deeper than %d while rendering", PN_DEPTH_EVAL);
    for (const struct pn_node *n = body; n && rt->flow == PN_FLOW_NEXT; n = n->next) {
        rt->at = n->at;
        if (pn_charge(rt, 1) || exec_one(rt, n)) return rt->e->code;
    }
    rt->depth--;
    return 0;
}

/* --- a render -------------------------------------------------------------------------------------------------------------- */

/* The template's variables: what was given, then the built-in functions. */
static int set_globals(struct pn_rt *rt, const struct pn_value *vars) {
    for (size_t i = 0; i < rt->j->n_names; i++) {
        const struct pn_str *name = rt->j->names[i].s;
        const struct pn_value *given = vars && vars->kind == PN_V_DICT ? pn_dict_find(vars->dict, name->s, name->len) : NULL;
        const struct pn_builtin *row = given ? NULL : pn_find_function(name->s, name->len);
        if (given) {
            rt->globals[i] = *given;
        } else if (row) {
            if (!pn_object_new(rt, PN_O_BUILTIN, &rt->globals[i])) return rt->e->code;
            rt->globals[i].obj->row = row;
        } else {
            rt->globals[i] = pn_undefined(PN_U_NAME, pn_none(), name);
        }
    }
    return 0;
}

int pn_jinja_render(const struct pn_jinja *j, struct fo_region *region, struct pn_value *vars, const struct pn_jinja_limits *limits,
                    struct fo_buf *raised, struct pn_render *ret, struct fo_err *e) {
    static const struct pn_jinja_limits defaults = { .output_bytes = 4u << 20, .region_bytes = 64u << 20, .steps = 50u * 1000 * 1000 };
    if (!limits) limits = &defaults;
    struct pn_rt rt = { .j = j, .region = region, .e = e, .raised = raised, .steps_left = limits->steps };
    size_t cap = region->cap_bytes;
    errno = 0;
    if (limits->region_bytes < cap) region->cap_bytes = limits->region_bytes;
    pn_out_init(&rt.out, limits->output_bytes);
    rt.globals = calloc(j->n_names, sizeof *rt.globals);
    rt.stack = malloc(PN_STACK_VALUES * sizeof *rt.stack);
    int rc = 0;
    if (!rt.globals || !rt.stack || region->used_bytes > region->cap_bytes) {
        rc = region->used_bytes > region->cap_bytes ? pn_region_full(region, e)
                                                    : (int)fo_fail(e, FO_ENOMEM, "no memory to render a template");
        goto out;
    }
    rc = set_globals(&rt, vars);
    if (rc == 0) rc = pn_exec(&rt, j->body);
    if (rc == 0 && !rt.out.s) { /* nothing was written: an empty text is a text too */
        rt.out.s = malloc(1);
        rt.out.user = malloc(1);
        if (!rt.out.s || !rt.out.user) rc = fo_fail(e, FO_ENOMEM, "no memory to render a template");
    }
    if (rc == 0) {
        rt.out.s[rt.out.len] = '\0';
        *ret = (struct pn_render){ .text = rt.out.s, .user = rt.out.user, .len = rt.out.len };
        rt.out.s = NULL;
        rt.out.user = NULL;
    }
out:
    pn_out_done(&rt.out);
    free(rt.globals);
    free(rt.stack);
    region->cap_bytes = cap;
    return rc;
}

void pn_render_done(struct pn_render *r) {
    if (!r) return;
    free(r->text);
    free(r->user);
    *r = (struct pn_render){ 0 };
}
