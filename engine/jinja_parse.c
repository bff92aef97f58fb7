/* Statements, and the template as a whole: see jinja_impl.h. A body is a list of nodes linked by `next`; bodies within bodies are
 * counted like brackets. A tag that Jinja has and this build lacks (templates made of several files) is FO_EUNSUPPORTED. */
#include "engine/jinja_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUCKETS = 32768 }; /* a power of two, above the names that jinja_expr.c allows */

/* Ends of a body: a list of tag names, NULL-terminated. */
static int parse_body(struct pn_parser *p, const char *const *ends, struct pn_node **ret);

static int block_end(struct pn_parser *p) {
    if (pn_peek(p, 0)->kind != PN_T_BLOCK_END) return pn_parse_fail(p, FO_EFORMAT, "expected the end of the tag");
    p->at++;
    return pn_parse_check(p);
}

/* A body, its end tag and that tag's end. */
static int whole_body(struct pn_parser *p, const char *end, struct pn_node **ret) {
    const char *const ends[] = { end, NULL };
    if (parse_body(p, ends, ret)) return p->e->code;
    p->at++;
    return block_end(p);
}

/* --- assignments ----------------------------------------------------------------------------------------- */

static int parse_targets(struct pn_parser *p, bool attributes, struct pn_target *ret);

static int target(struct pn_parser *p, bool attributes, struct pn_target *ret) {
    struct pn_target t = { .at = { .start = pn_peek(p, 0)->start, .line = pn_peek(p, 0)->line } };
    if (pn_take_op(p, PN_OP('(', 0))) {
        if (pn_parse_enter(p) || parse_targets(p, attributes, ret)) return p->e->code;
        p->depth--;
        return pn_expect_op(p, PN_OP(')', 0));
    }
    struct pn_value name;
    if (pn_parse_name(p, &t.sym, &name)) return p->e->code;
    if (attributes && pn_take_op(p, PN_OP('.', 0)) && pn_parse_name(p, NULL, &t.attr)) return p->e->code;
    static const char *const words[] = { "true", "false", "none", "True", "False", "None" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (pn_str_is(name, words[i], strlen(words[i]))) {
            p->at--;
            return pn_parse_fail(p, FO_EFORMAT, "cannot assign to '%s'", words[i]);
        }
    pn_node_end(p, &t.at);
    *ret = t;
    return 0;
}

static bool targets_end(const struct pn_parser *p) {
    return pn_at_name(p, "in") || pn_at_op(p, PN_OP('=', 0)) || pn_at_op(p, PN_OP(')', 0)) || pn_peek(p, 0)->kind == PN_T_BLOCK_END;
}

/* One target, or several with commas. */
static int parse_targets(struct pn_parser *p, bool attributes, struct pn_target *ret) {
    struct pn_target first, all = { .at = { .start = pn_peek(p, 0)->start, .line = pn_peek(p, 0)->line } };
    if (target(p, attributes, &first)) return p->e->code;
    if (!pn_at_op(p, PN_OP(',', 0))) {
        *ret = first;
        return 0;
    }
    size_t size = 4;
    all.many = pn_parse_alloc(p, size, sizeof *all.many);
    if (!all.many) return p->e->code;
    all.many[all.n_many++] = first;
    while (pn_take_op(p, PN_OP(',', 0)) && !targets_end(p)) {
        if (all.n_many == size) {
            struct pn_target *more = pn_parse_alloc(p, size *= 2, sizeof *more);
            if (!more) return p->e->code;
            memcpy(more, all.many, all.n_many * sizeof *more);
            all.many = more;
        }
        if (target(p, attributes, &all.many[all.n_many])) return p->e->code;
        all.n_many++;
    }
    pn_node_end(p, &all.at);
    *ret = all;
    return 0;
}

static int parse_set(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_SET);
    if (!n) return p->e->code;
    n->set.target = pn_parse_alloc(p, 1, sizeof *n->set.target);
    if (!n->set.target || parse_targets(p, true, n->set.target)) return p->e->code;
    *ret = n;
    if (pn_take_op(p, PN_OP('=', 0))) {
        if (pn_parse_tuple(p, true, &n->set.value)) return p->e->code;
        pn_node_end(p, &n->at);
        return block_end(p);
    }
    n->type = PN_N_SET_BLOCK;
    if (pn_take_op(p, PN_OP('|', 0)) && pn_parse_filters(p, &n->set.value)) return p->e->code;
    pn_node_end(p, &n->at);
    if (block_end(p)) return p->e->code;
    return whole_body(p, "endset", &n->set.body);
}

/* --- branches and loops ----------------------------------------------------------------------------------- */

static int parse_if(struct pn_parser *p, struct pn_node **ret) {
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct pn_node *n = pn_node_new(p, PN_N_IF);
    if (!n) return p->e->code;
    size_t size = 0;
    bool more = true, otherwise = false;
    while (more) {
        if (n->cases.n == size) {
            struct pn_branch *b = pn_parse_alloc(p, size = size ? 2 * size : 2, sizeof *b);
            if (!b) return p->e->code;
            if (n->cases.n) memcpy(b, n->cases.branches, n->cases.n * sizeof *b);
            n->cases.branches = b;
        }
        struct pn_branch *b = &n->cases.branches[n->cases.n++];
        if (!otherwise && pn_parse_tuple(p, true, &b->test)) return p->e->code;
        if (n->cases.n == 1) pn_node_end(p, &n->at);
        if (block_end(p)) return p->e->code;
        p->n_conditional++;
        if (parse_body(p, ends, &b->body)) return p->e->code;
        p->n_conditional--;
        more = !pn_at_name(p, "endif");
        if (more && otherwise) return pn_parse_fail(p, FO_EFORMAT, "expected endif");
        otherwise = pn_at_name(p, "else");
        p->at++;
    }
    *ret = n;
    return block_end(p);
}

static int parse_for(struct pn_parser *p, struct pn_node **ret) {
    static const char *const ends[] = { "else", "endfor", NULL };
    struct pn_node *n = pn_node_new(p, PN_N_FOR);
    if (!n) return p->e->code;
    struct pn_loop_def *loop = n->loop = pn_parse_alloc(p, 1, sizeof *n->loop);
    if (!loop || parse_targets(p, false, &loop->target)) return p->e->code;
    if (!pn_take_name(p, "in")) return pn_parse_fail(p, FO_EFORMAT, "expected 'in'");
    if (pn_parse_tuple(p, false, &loop->iter)) return p->e->code;
    if (pn_take_name(p, "if") && pn_parse_expr(p, &loop->filter)) return p->e->code;
    loop->recursive = pn_take_name(p, "recursive");
    pn_node_end(p, &n->at);
    if (block_end(p)) return p->e->code;
    p->n_loops++;
    if (parse_body(p, ends, &loop->body)) return p->e->code;
    p->n_loops--;
    *ret = n;
    if (pn_take_name(p, "else")) {
        if (block_end(p)) return p->e->code;
        return whole_body(p, "endfor", &loop->otherwise);
    }
    p->at++;
    return block_end(p);
}

static int parse_jump(struct pn_parser *p, enum pn_node_type type, struct pn_node **ret) {
    if (!p->n_loops) {
        p->at--;
        return pn_parse_fail(p, FO_EFORMAT, "outside of a loop");
    }
    *ret = pn_node_new(p, type);
    return *ret ? block_end(p) : (int)p->e->code;
}

static int parse_break(struct pn_parser *p, struct pn_node **ret) {
    return parse_jump(p, PN_N_BREAK, ret);
}

static int parse_continue(struct pn_parser *p, struct pn_node **ret) {
    return parse_jump(p, PN_N_CONTINUE, ret);
}

/* --- macros, calls, captured bodies -------------------------------------------------------------------------- */

/* At the opening bracket: parameters with defaults. */
static int parse_params(struct pn_parser *p, struct pn_macro_def *def) {
    size_t size = 0;
    if (pn_expect_op(p, PN_OP('(', 0))) return p->e->code;
    while (!pn_at_op(p, PN_OP(')', 0))) {
        if (def->n_params) {
            if (pn_expect_op(p, PN_OP(',', 0))) return p->e->code;
            if (pn_at_op(p, PN_OP(')', 0))) break;
        }
        if (def->n_params == size) {
            struct pn_param *more = pn_parse_alloc(p, size = size ? 2 * size : 4, sizeof *more);
            if (!more) return p->e->code;
            if (def->n_params) memcpy(more, def->params, def->n_params * sizeof *more);
            def->params = more;
        }
        struct pn_param *param = &def->params[def->n_params];
        if (pn_parse_name(p, &param->sym, &param->name)) return p->e->code;
        if (pn_take_op(p, PN_OP('=', 0))) {
            if (pn_parse_expr(p, &param->def)) return p->e->code;
        } else if (def->n_params && def->params[def->n_params - 1].def) {
            return pn_parse_fail(p, FO_EFORMAT, "a parameter without a default after one with a default");
        }
        def->n_params++;
    }
    p->at++;
    return 0;
}

/* The body of a macro or call block: nothing outside surrounds it. */
static int macro_body(struct pn_parser *p, struct pn_macro_def *def, const char *end) {
    struct pn_macro_def *outer = p->macro;
    unsigned n_loops = p->n_loops, n_conditional = p->n_conditional;
    p->macro = def;
    p->n_loops = p->n_conditional = 0;
    if (whole_body(p, end, &def->body)) return p->e->code;
    if (outer) { /* a macro takes what a macro inside it names */
        outer->uses_caller |= def->uses_caller;
        outer->uses_varargs |= def->uses_varargs;
        outer->uses_kwargs |= def->uses_kwargs;
    }
    p->macro = outer;
    p->n_loops = n_loops;
    p->n_conditional = n_conditional;
    return 0;
}

static int parse_macro(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_MACRO);
    struct pn_macro_def *def = n ? pn_parse_alloc(p, 1, sizeof *def) : NULL, *outer = p->macro;
    if (!def || pn_parse_name(p, &n->macro.sym, &def->name)) return p->e->code;
    n->macro.def = def;
    p->macro = def; /* a default may mention `caller` too */
    if (parse_params(p, def)) return p->e->code;
    p->macro = outer;
    pn_node_end(p, &n->at);
    *ret = n;
    if (block_end(p)) return p->e->code;
    return macro_body(p, def, "endmacro");
}

static int parse_call(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_CALL_BLOCK);
    struct pn_macro_def *def = n ? pn_parse_alloc(p, 1, sizeof *def) : NULL;
    if (!def) return p->e->code;
    n->call.def = def;
    def->name = p->j->names[p->j->sym_caller];
    if (pn_at_op(p, PN_OP('(', 0)) && parse_params(p, def)) return p->e->code;
    if (pn_parse_postfix(p, &n->call.call)) return p->e->code;
    const struct pn_node *call = n->call.call;
    if (call->type != PN_N_POSTFIX || call->post.ops[call->post.n - 1].kind != PN_P_CALL)
        return pn_parse_fail(p, FO_EFORMAT, "expected a call");
    pn_node_end(p, &n->at);
    *ret = n;
    if (block_end(p)) return p->e->code;
    return macro_body(p, def, "endcall");
}

static int parse_filter(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_FILTER_BLOCK);
    if (!n || pn_parse_filters(p, &n->filter.filter)) return p->e->code;
    *ret = n;
    if (block_end(p)) return p->e->code;
    return whole_body(p, "endfilter", &n->filter.body);
}

static int parse_with(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_WITH);
    size_t size = 0;
    if (!n) return p->e->code;
    while (pn_peek(p, 0)->kind != PN_T_BLOCK_END) {
        if (n->with.n && pn_expect_op(p, PN_OP(',', 0))) return p->e->code;
        if (n->with.n == size) {
            size = size ? 2 * size : 2;
            struct pn_target *t = pn_parse_alloc(p, size, sizeof *t);
            struct pn_node **v = t ? pn_parse_alloc(p, size, sizeof *v) : NULL;
            if (!v) return p->e->code;
            if (n->with.n) {
                memcpy(t, n->with.targets, n->with.n * sizeof *t);
                memcpy(v, n->with.values, n->with.n * sizeof *v);
            }
            n->with.targets = t;
            n->with.values = v;
        }
        if (target(p, false, &n->with.targets[n->with.n]) || pn_expect_op(p, PN_OP('=', 0))) return p->e->code;
        if (pn_parse_expr(p, &n->with.values[n->with.n])) return p->e->code;
        n->with.n++;
    }
    *ret = n;
    if (block_end(p)) return p->e->code;
    return whole_body(p, "endwith", &n->with.body);
}

static int parse_scope(struct pn_parser *p, const char *end, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_SCOPE);
    if (!n) return p->e->code;
    *ret = n;
    if (block_end(p)) return p->e->code;
    return whole_body(p, end, &n->body);
}

/* What an assistant wrote, for training: it renders as if the tag were not there. */
static int parse_generation(struct pn_parser *p, struct pn_node **ret) {
    return parse_scope(p, "endgeneration", ret);
}

static int parse_block(struct pn_parser *p, struct pn_node **ret) {
    static const char *const ends[] = { "endblock", NULL };
    struct pn_node *n = pn_node_new(p, PN_N_SCOPE);
    struct pn_value name;
    if (!n || pn_parse_name(p, NULL, &name)) return p->e->code;
    while (pn_take_name(p, "scoped") || pn_take_name(p, "required")) {
    }
    if (block_end(p) || parse_body(p, ends, &n->body)) return p->e->code;
    p->at++;
    if (pn_peek(p, 0)->kind == PN_T_NAME && pn_str_is(name, p->j->text + pn_peek(p, 0)->start, pn_peek(p, 0)->len)) p->at++;
    *ret = n;
    return block_end(p);
}

static int parse_autoescape(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *how;
    if (pn_parse_expr(p, &how)) return p->e->code;
    if (how->type != PN_N_CONST || pn_value_truth(how->value)) return pn_parse_fail(p, FO_EUNSUPPORTED, "autoescape is not supported");
    return parse_scope(p, "endautoescape", ret);
}

static int parse_print(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node **link = ret;
    do {
        struct pn_node *n = pn_node_new(p, PN_N_PRINT);
        if (!n || pn_parse_expr(p, &n->x)) return p->e->code;
        pn_node_end(p, &n->at);
        *link = n;
        link = &n->next;
    } while (pn_take_op(p, PN_OP(',', 0)));
    return block_end(p);
}

static int parse_unsupported(struct pn_parser *p, struct pn_node **ret) {
    (void)ret;
    p->at--;
    return pn_parse_fail(p, FO_EUNSUPPORTED, "templates made of several files are not supported");
}

static const struct {
    const char *name;
    int (*parse)(struct pn_parser *p, struct pn_node **ret); /* after the name; takes the tag's end too */
} tags[] = {
    { "for", parse_for },
    { "if", parse_if },
    { "set", parse_set },
    { "macro", parse_macro },
    { "call", parse_call },
    { "filter", parse_filter },
    { "with", parse_with },
    { "block", parse_block },
    { "print", parse_print },
    { "break", parse_break },
    { "continue", parse_continue },
    { "generation", parse_generation },
    { "autoescape", parse_autoescape },
    { "extends", parse_unsupported },
    { "include", parse_unsupported },
    { "import", parse_unsupported },
    { "from", parse_unsupported },
};

/* After {%: one statement. */
static int statement(struct pn_parser *p, struct pn_node **ret) {
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (pn_take_name(p, tags[i].name)) return tags[i].parse(p, ret);
    return pn_parse_fail(p, FO_EFORMAT, "unknown tag");
}

static int print_tag(struct pn_parser *p, struct pn_node **ret) {
    p->at++;
    struct pn_node *n = pn_node_new(p, PN_N_PRINT);
    if (!n || pn_parse_tuple(p, true, &n->x)) return p->e->code;
    pn_node_end(p, &n->at);
    if (pn_peek(p, 0)->kind != PN_T_VAR_END) return pn_parse_fail(p, FO_EFORMAT, "expected the end of the tag");
    p->at++;
    *ret = n;
    return pn_parse_check(p);
}

static int data(struct pn_parser *p, struct pn_node **ret) {
    const struct pn_token *t = pn_peek(p, 0);
    struct pn_node *n = pn_node_new(p, PN_N_DATA);
    if (!n) return p->e->code;
    if (!pn_str_view(&p->j->region, p->j->text + t->start, t->len, PN_BY_TEMPLATE, &n->value)) return pn_region_full(&p->j->region, p->e);
    p->at++;
    *ret = n;
    return 0;
}

static bool ends_body(const struct pn_parser *p, const char *const *ends) {
    for (; *ends; ends++)
        if (pn_at_name(p, *ends)) return true;
    return false;
}

/* The last of the list is the one that ends it all. */
static int missing_end(struct pn_parser *p, const char *const *ends) {
    while (ends[1]) ends++;
    return pn_parse_fail(p, FO_EFORMAT, "expected %s", *ends);
}

/* Up to one of the end tags, standing at its name; without any, up to the end of the template. */
static int parse_body(struct pn_parser *p, const char *const *ends, struct pn_node **ret) {
    struct pn_node **link = ret;
    *ret = NULL;
    if (pn_parse_enter(p)) return p->e->code;
    for (;;) {
        int rc;
        switch (pn_peek(p, 0)->kind) {
        case PN_T_DATA: rc = data(p, link); break;
        case PN_T_VAR_BEGIN: rc = print_tag(p, link); break;
        case PN_T_BLOCK_BEGIN:
            p->at++;
            if (ends_body(p, ends)) {
                p->depth--;
                return 0;
            }
            rc = statement(p, link);
            break;
        default:
            if (*ends) return missing_end(p, ends);
            p->depth--;
            return 0;
        }
        if (rc) return rc;
        while (*link) link = &(*link)->next;
    }
}

/* --- the template --------------------------------------------------------------------------------------------- */

/* One newline a line, and none at the very end, as Jinja reads a template. */
static void normalise(struct pn_jinja *j, const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r') {
            j->text[n++] = '\n';
            if (i + 1 < len && text[i + 1] == '\n') i++;
        } else {
            j->text[n++] = text[i];
        }
    }
    if (n && j->text[n - 1] == '\n') n--;
    j->len = n;
}

static int parse_template(struct pn_parser *p) {
    static const char *const none[] = { NULL };
    struct pn_jinja *j = p->j;
    if (pn_intern(p, "loop", 4, &j->sym_loop) || pn_intern(p, "caller", 6, &j->sym_caller)) return p->e->code;
    if (pn_intern(p, "varargs", 7, &j->sym_varargs) || pn_intern(p, "kwargs", 6, &j->sym_kwargs)) return p->e->code;
    return parse_body(p, none, &j->body);
}

int pn_jinja_parse(const char *text, size_t len, struct pn_jinja **ret, struct fo_err *e) {
    if (len > PN_TEMPLATE_BYTES)
        return fo_fail_need(e, FO_ELIMIT, len, PN_TEMPLATE_BYTES, "a template of %zu bytes; the most is %d", len, PN_TEMPLATE_BYTES);
    size_t bad = pn_utf8_valid(text, len);
    if (bad < len) return fo_fail(e, FO_EFORMAT, "the template is not UTF-8 (byte %zu)", bad);
    errno = 0;
    struct pn_jinja *j = calloc(1, sizeof *j);
    if (!j) return fo_fail(e, FO_ENOMEM, "no memory for a template");
    fo_region_init(&j->region, 64u << 20);
    struct pn_parser p = { .j = j, .e = e, .n_buckets = N_BUCKETS, .buckets = calloc(N_BUCKETS, sizeof *p.buckets) };
    j->text = fo_region_alloc(&j->region, len + 1);
    int rc = 0;
    if (!p.buckets || !j->text) {
        rc = fo_fail(e, FO_ENOMEM, "no memory for a template");
        goto out;
    }
    normalise(j, text, len);
    rc = pn_lex(j->text, j->len, &p.tokens, e);
    if (rc == 0) rc = parse_template(&p);
out:
    free(p.buckets);
    free(p.tokens.t);
    if (rc) {
        pn_jinja_free(j);
        return rc;
    }
    *ret = j;
    return 0;
}

void pn_jinja_free(struct pn_jinja *j) {
    if (!j) return;
    fo_region_done(&j->region);
    free(j);
}
