/* Expressions: precedence climbing over the operators of Jinja. From loose to tight: x if c else y; or; and; not; comparisons with
 * in and not in; + and -; ~; * / // %; **; unary + and -; then .name [key] (call) |filter and is-tests. All binary operators group
 * to the left (** too, as in Jinja), and operators of one level make one chain node. */
#include "engine/jinja_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 16384 }; /* different names in a template: bounds what colliding hashes can cost */

const struct pn_token *pn_peek(const struct pn_parser *p, size_t ahead) {
    size_t i = p->at + ahead;
    return &p->tokens.t[i < p->tokens.n ? i : p->tokens.n - 1];
}

static const char *text_of(const struct pn_parser *p, const struct pn_token *t) {
    return p->j->text + t->start;
}

bool pn_at_op(const struct pn_parser *p, uint16_t op) {
    return pn_peek(p, 0)->kind == PN_T_OP && pn_peek(p, 0)->op == op;
}

static bool token_is_name(const struct pn_parser *p, const struct pn_token *t, const char *name) {
    size_t n = strlen(name);
    return t->kind == PN_T_NAME && t->len == n && memcmp(text_of(p, t), name, n) == 0;
}

bool pn_at_name(const struct pn_parser *p, const char *name) {
    return token_is_name(p, pn_peek(p, 0), name);
}

bool pn_take_op(struct pn_parser *p, uint16_t op) {
    bool yes = pn_at_op(p, op);
    p->at += yes;
    return yes;
}

bool pn_take_name(struct pn_parser *p, const char *name) {
    bool yes = pn_at_name(p, name);
    p->at += yes;
    return yes;
}

int pn_expect_op(struct pn_parser *p, uint16_t op) {
    if (pn_take_op(p, op)) return 0;
    char text[3] = { (char)(op & 0xFF), (char)(op >> 8), 0 };
    return pn_parse_fail(p, FO_EFORMAT, "expected '%s'", text);
}

/* The message gets the line, what stands there, and the tag it stands in. */
int pn_parse_fail(struct pn_parser *p, enum fo_code code, const char *fmt, ...) {
    const struct pn_token *t = pn_peek(p, 0);
    char what[128], found[48];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (t->kind == PN_T_END)
        snprintf(found, sizeof found, "the end of the template");
    else
        snprintf(found, sizeof found, "'%.*s'", (int)(t->len < 32 ? t->len : 32), text_of(p, t));
    size_t from = p->at < p->tokens.n ? p->at : p->tokens.n - 1;
    while (from > 0 && p->tokens.t[from].kind != PN_T_BLOCK_BEGIN && p->tokens.t[from].kind != PN_T_VAR_BEGIN) from--;
    size_t start = p->tokens.t[from].start, shown = p->j->len - start < 80 ? p->j->len - start : 80;
    int col = 1;
    for (size_t i = t->start; i > 0 && p->j->text[i - 1] != '\n'; i--) col++;
    return fo_fail_at(p->e, code, t->line, col, "template line %d: %s at %s, in `%.*s`", t->line, what, found, (int)shown,
                      p->j->text + start);
}

int pn_parse_enter(struct pn_parser *p) {
    if (++p->depth <= PN_DEPTH_PARSE) return 0;
    return pn_parse_fail(p, FO_ELIMIT, "nested deeper than %d", PN_DEPTH_PARSE);
}

void *pn_parse_alloc(struct pn_parser *p, size_t n, size_t size) {
    void *v = fo_region_array(&p->j->region, n, size);
    if (!v) pn_region_full(&p->j->region, p->e);
    return v;
}

/* Room for one more element: the array doubles whenever its length is a power of two. */
static bool grow(struct pn_parser *p, void *array, size_t n, size_t size) {
    if (n & (n - 1)) return true;
    void *old, *more = pn_parse_alloc(p, n ? 2 * n : 1, size);
    if (!more) return false;
    memcpy(&old, array, sizeof old);
    if (n) memcpy(more, old, n * size);
    memcpy(array, &more, sizeof more);
    return true;
}

struct pn_node *pn_node_new(struct pn_parser *p, enum pn_node_type type) {
    struct pn_node *n = pn_parse_alloc(p, 1, sizeof *n);
    if (!n) return NULL;
    n->type = (uint8_t)type;
    n->at = (struct pn_place){ .start = pn_peek(p, 0)->start, .end = pn_peek(p, 0)->start, .line = pn_peek(p, 0)->line };
    return n;
}

void pn_node_end(const struct pn_parser *p, struct pn_place *at) {
    const struct pn_token *t = &p->tokens.t[p->at ? p->at - 1 : 0];
    at->end = t->start + t->len;
}

/* --- names and constants ---------------------------------------------------------------------------- */

int pn_intern(struct pn_parser *p, const char *s, size_t len, uint32_t *ret) {
    struct pn_jinja *j = p->j;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    size_t b = h & (p->n_buckets - 1);
    for (; p->buckets[b]; b = (b + 1) & (p->n_buckets - 1))
        if (pn_str_is(j->names[p->buckets[b] - 1], s, len)) {
            *ret = p->buckets[b] - 1;
            return 0;
        }
    if (j->n_names == MAX_NAMES) return pn_parse_fail(p, FO_ELIMIT, "more than %d different names", MAX_NAMES);
    if (!grow(p, &j->names, j->n_names, sizeof *j->names)) return p->e->code;
    if (!pn_str_view(&j->region, s, len, PN_BY_TEMPLATE, &j->names[j->n_names])) return pn_region_full(&j->region, p->e);
    *ret = (uint32_t)j->n_names;
    p->buckets[b] = (uint32_t)++j->n_names;
    return 0;
}

int pn_parse_name(struct pn_parser *p, uint32_t *ret_sym, struct pn_value *ret_name) {
    const struct pn_token *t = pn_peek(p, 0);
    if (t->kind != PN_T_NAME) return pn_parse_fail(p, FO_EFORMAT, "expected a name");
    uint32_t sym;
    if (pn_intern(p, text_of(p, t), t->len, &sym)) return p->e->code;
    p->at++;
    if (ret_sym) *ret_sym = sym;
    if (ret_name) *ret_name = p->j->names[sym];
    return 0;
}

static int name(struct pn_parser *p, struct pn_node **ret) {
    static const struct {
        const char *text;
        struct pn_value v;
    } words[] = { { "true", { .kind = PN_V_BOOL, .b = true } },
                  { "True", { .kind = PN_V_BOOL, .b = true } },
                  { "false", { .kind = PN_V_BOOL } },
                  { "False", { .kind = PN_V_BOOL } },
                  { "none", { .kind = PN_V_NULL } },
                  { "None", { .kind = PN_V_NULL } } };
    struct pn_node *n = pn_node_new(p, PN_N_NAME);
    if (!n) return p->e->code;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (pn_take_name(p, words[i].text)) {
            n->type = PN_N_CONST;
            n->value = words[i].v;
            *ret = n;
            return 0;
        }
    if (pn_parse_name(p, &n->sym, NULL)) return p->e->code;
    if (p->macro) {
        p->macro->uses_caller |= n->sym == p->j->sym_caller;
        p->macro->uses_varargs |= n->sym == p->j->sym_varargs;
        p->macro->uses_kwargs |= n->sym == p->j->sym_kwargs;
    }
    *ret = n;
    return 0;
}

static int number(struct pn_parser *p, struct pn_node **ret) {
    const struct pn_token *t = pn_peek(p, 0);
    char digits[64];
    size_t n = 0;
    for (size_t i = 0; i < t->len; i++) {
        if (text_of(p, t)[i] == '_') continue;
        if (n == sizeof digits - 1) return pn_parse_fail(p, FO_EFORMAT, "a number is too long");
        digits[n++] = text_of(p, t)[i];
    }
    digits[n] = '\0';
    char *end = digits + n;
    struct pn_node *node = pn_node_new(p, PN_N_CONST);
    if (!node) return p->e->code;
    if (t->kind == PN_T_FLOAT) {
        node->value = pn_float(strtod(digits, &end));
    } else {
        char kind = (char)(digits[0] == '0' ? digits[1] | 32 : 0);
        int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        errno = 0;
        node->value = pn_int(strtoll(digits + (base == 10 ? 0 : 2), &end, base));
        if (errno) return pn_parse_fail(p, FO_ELIMIT, "an integer beyond 64 bits");
    }
    if (*end || end == digits) return pn_parse_fail(p, FO_EFORMAT, "a malformed number");
    p->at++;
    *ret = node;
    return 0;
}

static size_t put_utf8(char *o, uint32_t c) {
    if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; c >>= 6) o[i] = (char)(0x80 | (c & 0x3F));
    o[0] = (char)(lead[n] | c);
    return n;
}

/* Reads up to `max` digits of a base; *ret_n how many there were. */
static uint32_t escape_digits(const char *s, size_t left, size_t max, uint32_t base, size_t *ret_n) {
    uint32_t c = 0;
    size_t n = 0;
    for (; n < max && n < left; n++) {
        char h = s[n];
        uint32_t d = h >= '0' && h <= '9' ? (uint32_t)(h - '0') : (h | 32) >= 'a' && (h | 32) <= 'f' ? (uint32_t)((h | 32) - 'a' + 10) : 99;
        if (d >= base) break;
        c = c * base + d;
    }
    *ret_n = n;
    return c;
}

/* Undoes the escapes of a string literal's inside as Python reads them (an unknown one stays as it is). No escape is shorter than
 * what it stands for, so o has room. Returns the length, or SIZE_MAX for a broken escape. */
static size_t unescape(const char *s, size_t len, char *o) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (s[i] != '\\' || i + 1 == len) {
            o[n++] = s[i++];
            continue;
        }
        char c = s[i + 1];
        const char *simple = c ? strchr(from, c) : NULL;
        size_t got, want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        i += 2;
        if (simple) {
            o[n++] = to[simple - from];
        } else if (want) {
            uint32_t u = escape_digits(s + i, len - i, want, 16, &got);
            if (got != want || u > 0x10FFFF) return SIZE_MAX;
            n += put_utf8(o + n, u);
            i += got;
        } else if (c >= '0' && c <= '7') {
            n += put_utf8(o + n, escape_digits(s + i - 1, len - i + 1, 3, 8, &got));
            i += got - 1;
        } else if (c == 'N') {
            return SIZE_MAX;
        } else if (c != '\n') {
            o[n++] = '\\';
            o[n++] = c;
        }
    }
    return n;
}

/* Strings side by side are one. */
static int string(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *node = pn_node_new(p, PN_N_CONST);
    size_t room = 0, n = 0;
    for (size_t i = 0; pn_peek(p, i)->kind == PN_T_STRING; i++) room += pn_peek(p, i)->len;
    char *o = node ? pn_parse_alloc(p, room, 1) : NULL;
    if (!o) return p->e->code;
    for (; pn_peek(p, 0)->kind == PN_T_STRING; p->at++) {
        const struct pn_token *t = pn_peek(p, 0);
        size_t got = unescape(text_of(p, t) + 1, t->len - 2, o + n);
        if (got == SIZE_MAX) return pn_parse_fail(p, FO_EFORMAT, "a malformed escape in a string");
        n += got;
    }
    if (!pn_str_view(&p->j->region, o, n, PN_BY_TEMPLATE, &node->value)) return pn_region_full(&p->j->region, p->e);
    *ret = node;
    return 0;
}

/* --- brackets ------------------------------------------------------------------------------------------- */

static int push_node(struct pn_parser *p, struct pn_node *list, struct pn_node *x) {
    if (!grow(p, &list->list.x, list->list.n, sizeof *list->list.x)) return p->e->code;
    list->list.x[list->list.n++] = x;
    return 0;
}

static int list_or_dict(struct pn_parser *p, bool dict, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, dict ? PN_N_DICT : PN_N_LIST), *x;
    uint16_t close = dict ? PN_OP('}', 0) : PN_OP(']', 0);
    if (!n) return p->e->code;
    p->at++;
    while (!pn_at_op(p, close)) {
        if (n->list.n) {
            if (pn_expect_op(p, PN_OP(',', 0))) return p->e->code;
            if (pn_at_op(p, close)) break;
        }
        if (pn_parse_expr(p, &x) || push_node(p, n, x)) return p->e->code;
        if (dict && (pn_expect_op(p, PN_OP(':', 0)) || pn_parse_expr(p, &x) || push_node(p, n, x))) return p->e->code;
    }
    p->at++;
    pn_node_end(p, &n->at);
    *ret = n;
    return 0;
}

static int or_expr(struct pn_parser *p, struct pn_node **ret);

static bool tuple_ends(const struct pn_parser *p) {
    const struct pn_token *t = pn_peek(p, 0);
    return t->kind == PN_T_VAR_END || t->kind == PN_T_BLOCK_END || pn_at_op(p, PN_OP(')', 0)) || pn_at_name(p, "recursive");
}

static int tuple_items(struct pn_parser *p, bool cond, bool brackets, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_TUPLE), *x;
    bool comma = false;
    if (!n) return p->e->code;
    while (!tuple_ends(p)) {
        if ((cond ? pn_parse_expr(p, &x) : or_expr(p, &x)) || push_node(p, n, x)) return p->e->code;
        if (!pn_take_op(p, PN_OP(',', 0))) break;
        comma = true;
    }
    if (n->list.n == 0 && !brackets) return pn_parse_fail(p, FO_EFORMAT, "expected an expression");
    pn_node_end(p, &n->at);
    *ret = n->list.n == 1 && !comma ? n->list.x[0] : n;
    return 0;
}

int pn_parse_tuple(struct pn_parser *p, bool cond, struct pn_node **ret) {
    if (pn_parse_enter(p) || tuple_items(p, cond, false, ret)) return p->e->code;
    p->depth--;
    return 0;
}

static int primary(struct pn_parser *p, struct pn_node **ret) {
    switch (pn_peek(p, 0)->kind) {
    case PN_T_NAME: return name(p, ret);
    case PN_T_STRING: return string(p, ret);
    case PN_T_INT:
    case PN_T_FLOAT: return number(p, ret);
    default: break;
    }
    if (pn_parse_enter(p)) return p->e->code;
    int rc;
    if (pn_at_op(p, PN_OP('[', 0))) {
        rc = list_or_dict(p, false, ret);
    } else if (pn_at_op(p, PN_OP('{', 0))) {
        rc = list_or_dict(p, true, ret);
    } else if (pn_take_op(p, PN_OP('(', 0))) {
        rc = tuple_items(p, true, true, ret);
        if (rc == 0) rc = pn_expect_op(p, PN_OP(')', 0));
    } else {
        rc = pn_parse_fail(p, FO_EFORMAT, "expected an expression");
    }
    p->depth--;
    return rc;
}

/* --- what follows a value: .name [key] (call) |filter is-test ---------------------------------------------- */

static int push_arg(struct pn_parser *p, struct pn_post *op, struct pn_arg a) {
    if (!grow(p, &op->args, op->n_args, sizeof *op->args)) return p->e->code;
    op->args[op->n_args++] = a;
    return 0;
}

/* At the opening bracket. */
static int arguments(struct pn_parser *p, struct pn_post *op) {
    p->at++;
    while (!pn_at_op(p, PN_OP(')', 0))) {
        struct pn_arg a = { .kind = PN_A_POS };
        if (op->n_args) {
            if (pn_expect_op(p, PN_OP(',', 0))) return p->e->code;
            if (pn_at_op(p, PN_OP(')', 0))) break;
        }
        const struct pn_token *next = pn_peek(p, 1);
        if (pn_take_op(p, PN_OP('*', '*'))) {
            a.kind = PN_A_STARSTAR;
        } else if (pn_take_op(p, PN_OP('*', 0))) {
            a.kind = PN_A_STAR;
        } else if (pn_peek(p, 0)->kind == PN_T_NAME && next->kind == PN_T_OP && next->op == PN_OP('=', 0)) {
            a.kind = PN_A_NAMED;
            if (pn_parse_name(p, NULL, &a.name)) return p->e->code;
            p->at++;
        } else if (op->n_args && (op->args[op->n_args - 1].kind == PN_A_NAMED || op->args[op->n_args - 1].kind == PN_A_STARSTAR)) {
            return pn_parse_fail(p, FO_EFORMAT, "a positional argument after a named one");
        }
        if (pn_parse_expr(p, &a.x) || push_arg(p, op, a)) return p->e->code;
    }
    p->at++;
    return 0;
}

static bool slice_ends(const struct pn_parser *p) {
    return pn_at_op(p, PN_OP(']', 0)) || pn_at_op(p, PN_OP(',', 0));
}

static int subscript(struct pn_parser *p, struct pn_post *op) {
    p->at++;
    op->kind = PN_P_ITEM;
    if (!pn_at_op(p, PN_OP(':', 0)) && pn_parse_expr(p, &op->x[0])) return p->e->code;
    for (int i = 1; i < 3 && pn_take_op(p, PN_OP(':', 0)); i++) {
        op->kind = PN_P_SLICE;
        if (!slice_ends(p) && !pn_at_op(p, PN_OP(':', 0)) && pn_parse_expr(p, &op->x[i])) return p->e->code;
    }
    if (pn_at_op(p, PN_OP(',', 0)) && op->kind == PN_P_ITEM) { /* x[a, b]: the key is a tuple */
        struct pn_node *n = pn_node_new(p, PN_N_TUPLE), *x = op->x[0];
        if (!n || push_node(p, n, x)) return p->e->code;
        while (pn_take_op(p, PN_OP(',', 0)) && !slice_ends(p))
            if (pn_parse_expr(p, &x) || push_node(p, n, x)) return p->e->code;
        op->x[0] = n;
    }
    return pn_expect_op(p, PN_OP(']', 0));
}

static int attribute(struct pn_parser *p, struct pn_post *op) {
    p->at++;
    if (pn_peek(p, 0)->kind == PN_T_INT) {
        op->kind = PN_P_ITEM;
        return number(p, &op->x[0]);
    }
    op->kind = PN_P_ATTR;
    if (pn_parse_name(p, NULL, &op->name)) return p->e->code;
    static const enum pn_value_kind kinds[3] = { PN_V_STR, PN_V_LIST, PN_V_DICT };
    for (int i = 0; i < 3; i++) op->method[i] = pn_find_method(kinds[i], op->name.s->s, op->name.s->len);
    return 0;
}

/* The name of a filter or test, with dots. */
static int dotted(struct pn_parser *p, struct pn_value *ret) {
    const struct pn_token *first = pn_peek(p, 0), *last = first;
    if (first->kind != PN_T_NAME) return pn_parse_fail(p, FO_EFORMAT, "expected a name");
    p->at++;
    while (pn_at_op(p, PN_OP('.', 0)) && pn_peek(p, 1)->kind == PN_T_NAME) {
        last = pn_peek(p, 1);
        p->at += 2;
    }
    uint32_t sym;
    if (pn_intern(p, text_of(p, first), last->start + last->len - first->start, &sym)) return p->e->code;
    *ret = p->j->names[sym];
    return 0;
}

/* An unknown filter or test is the template's error, but under a condition only when it is reached, as in Jinja. Whether an `if`
 * follows is not known yet: the parser remembers the first one, and pn_parse_check looks when the tag has ended. */
static void check_row(struct pn_parser *p, const struct pn_post *op) {
    if ((op->row && op->row->fn) || p->n_conditional || p->unknown_at) return;
    p->unknown_at = p->at;
    p->unknown = *op;
}

int pn_parse_check(struct pn_parser *p) {
    if (!p->unknown_at) return 0;
    const struct pn_post *op = &p->unknown;
    const char *what = op->kind == PN_P_FILTER ? "filter" : "test";
    p->at = p->unknown_at - 1;
    if (op->row) return pn_parse_fail(p, FO_EUNSUPPORTED, "the %s '%.*s' is not supported", what, (int)op->name.s->len, op->name.s->s);
    return pn_parse_fail(p, FO_EFORMAT, "no %s named '%.*s'", what, (int)op->name.s->len, op->name.s->s);
}

/* After "|" (or at the name, for {% filter %}). */
static int filter(struct pn_parser *p, struct pn_post *op) {
    op->kind = PN_P_FILTER;
    if (dotted(p, &op->name)) return p->e->code;
    op->row = pn_find_filter(op->name.s->s, op->name.s->len);
    check_row(p, op);
    return pn_at_op(p, PN_OP('(', 0)) ? arguments(p, op) : 0;
}

static int postfix(struct pn_parser *p, struct pn_node *base, bool filters, struct pn_node **ret);

static int test(struct pn_parser *p, struct pn_post *op) {
    p->at++;
    op->kind = pn_take_name(p, "not") ? PN_P_TEST_NOT : PN_P_TEST;
    if (dotted(p, &op->name)) return p->e->code;
    op->row = pn_find_test(op->name.s->s, op->name.s->len);
    check_row(p, op);
    if (pn_at_op(p, PN_OP('(', 0))) return arguments(p, op);
    const struct pn_token *t = pn_peek(p, 0);
    bool value =
        t->kind == PN_T_STRING || t->kind == PN_T_INT || t->kind == PN_T_FLOAT || pn_at_op(p, PN_OP('[', 0)) || pn_at_op(p, PN_OP('{', 0));
    if (t->kind == PN_T_NAME)
        value = !pn_at_name(p, "else") && !pn_at_name(p, "or") && !pn_at_name(p, "and") && !pn_at_name(p, "if") && !pn_at_name(p, "in") &&
                !pn_at_name(p, "not") && !pn_at_name(p, "recursive");
    if (!value) return 0;
    if (pn_at_name(p, "is")) return pn_parse_fail(p, FO_EFORMAT, "tests cannot be chained with is");
    struct pn_arg a = { .kind = PN_A_POS };
    struct pn_node *x;
    if (primary(p, &x) || postfix(p, x, false, &a.x)) return p->e->code;
    return push_arg(p, op, a);
}

static int postfix(struct pn_parser *p, struct pn_node *base, bool filters, struct pn_node **ret) {
    struct pn_node *n = NULL;
    *ret = base;
    for (;;) {
        struct pn_post op = { .at = { .start = base->at.start, .line = pn_peek(p, 0)->line } };
        int rc;
        if (pn_at_op(p, PN_OP('.', 0))) {
            rc = attribute(p, &op);
        } else if (pn_at_op(p, PN_OP('[', 0))) {
            rc = subscript(p, &op);
        } else if (pn_at_op(p, PN_OP('(', 0))) {
            op.kind = PN_P_CALL;
            rc = arguments(p, &op);
        } else if (filters && pn_take_op(p, PN_OP('|', 0))) {
            rc = filter(p, &op);
        } else if (filters && pn_at_name(p, "is")) {
            rc = test(p, &op);
        } else {
            return 0;
        }
        if (rc) return rc;
        if (!n) {
            n = pn_node_new(p, PN_N_POSTFIX);
            if (!n) return p->e->code;
            n->post.base = base;
            n->at = base->at;
            *ret = n;
        }
        pn_node_end(p, &op.at);
        if (!grow(p, &n->post.ops, n->post.n, sizeof *n->post.ops)) return p->e->code;
        n->post.ops[n->post.n++] = op;
        n->at.end = op.at.end;
    }
}

int pn_parse_filters(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *n = pn_node_new(p, PN_N_POSTFIX);
    if (!n) return p->e->code;
    do {
        struct pn_post op = { .at = { .start = pn_peek(p, 0)->start, .line = pn_peek(p, 0)->line } };
        if (filter(p, &op)) return p->e->code;
        pn_node_end(p, &op.at);
        if (!grow(p, &n->post.ops, n->post.n, sizeof *n->post.ops)) return p->e->code;
        n->post.ops[n->post.n++] = op;
    } while (pn_take_op(p, PN_OP('|', 0)));
    pn_node_end(p, &n->at);
    *ret = n;
    return 0;
}

int pn_parse_postfix(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *x;
    if (primary(p, &x)) return p->e->code;
    return postfix(p, x, true, ret);
}

/* --- operators --------------------------------------------------------------------------------------------- */

static int unary(struct pn_parser *p, bool filters, struct pn_node **ret) {
    struct pn_node *x;
    if (pn_at_op(p, PN_OP('-', 0)) || pn_at_op(p, PN_OP('+', 0))) {
        x = pn_node_new(p, pn_at_op(p, PN_OP('-', 0)) ? PN_N_NEG : PN_N_POS);
        if (!x || pn_parse_enter(p)) return p->e->code;
        p->at++;
        if (unary(p, false, &x->x)) return p->e->code;
        p->depth--;
        pn_node_end(p, &x->at);
    } else if (primary(p, &x)) {
        return p->e->code;
    }
    return postfix(p, x, filters, ret);
}

enum { COMPARE = 1, SUM, CONCAT, PRODUCT, POWER };

/* The level of the operator here (0 = none), its code and how many tokens it takes. */
static int binary_operator(const struct pn_parser *p, uint16_t *ret_op, size_t *ret_n) {
    static const struct {
        uint16_t op;
        uint8_t level;
    } ops[] = { { PN_OP('=', '='), COMPARE }, { PN_OP('!', '='), COMPARE }, { PN_OP('<', 0), COMPARE }, { PN_OP('<', '='), COMPARE },
                { PN_OP('>', 0), COMPARE },   { PN_OP('>', '='), COMPARE }, { PN_OP('+', 0), SUM },     { PN_OP('-', 0), SUM },
                { PN_OP('~', 0), CONCAT },    { PN_OP('*', 0), PRODUCT },   { PN_OP('/', 0), PRODUCT }, { PN_OP('/', '/'), PRODUCT },
                { PN_OP('%', 0), PRODUCT },   { PN_OP('*', '*'), POWER } };
    const struct pn_token *t = pn_peek(p, 0);
    *ret_n = 1;
    if (t->kind == PN_T_OP)
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            if (ops[i].op == t->op) {
                *ret_op = t->op;
                return ops[i].level;
            }
    if (pn_at_name(p, "in")) {
        *ret_op = PN_CMP_IN;
        return COMPARE;
    }
    if (pn_at_name(p, "not") && token_is_name(p, pn_peek(p, 1), "in")) {
        *ret_op = PN_CMP_NOT_IN;
        *ret_n = 2;
        return COMPARE;
    }
    return 0;
}

static int binary(struct pn_parser *p, int min_level, struct pn_node **ret) {
    static const uint8_t types[] = {
        [COMPARE] = PN_N_COMPARE, [SUM] = PN_N_CHAIN, [CONCAT] = PN_N_CONCAT, [PRODUCT] = PN_N_CHAIN, [POWER] = PN_N_CHAIN
    };
    struct pn_node *left;
    int chained = 0, level;
    uint16_t op;
    size_t n_tokens;
    if (unary(p, true, &left)) return p->e->code;
    while ((level = binary_operator(p, &op, &n_tokens)) >= min_level && level) {
        if (level != chained) {
            struct pn_node *n = pn_node_new(p, types[level]);
            if (!n) return p->e->code;
            n->at = left->at;
            n->chain.first = left;
            left = n;
            chained = level;
        }
        p->at += n_tokens;
        struct pn_operand more = { .op = op };
        if (level == POWER ? unary(p, true, &more.x) : binary(p, level + 1, &more.x)) return p->e->code;
        if (!grow(p, &left->chain.more, left->chain.n, sizeof *left->chain.more)) return p->e->code;
        left->chain.more[left->chain.n++] = more;
        pn_node_end(p, &left->at);
    }
    *ret = left;
    return 0;
}

static int not_expr(struct pn_parser *p, struct pn_node **ret) {
    if (!pn_at_name(p, "not")) return binary(p, COMPARE, ret);
    struct pn_node *n = pn_node_new(p, PN_N_NOT);
    if (!n || pn_parse_enter(p)) return p->e->code;
    p->at++;
    if (not_expr(p, &n->x)) return p->e->code;
    p->depth--;
    pn_node_end(p, &n->at);
    *ret = n;
    return 0;
}

static int logic(struct pn_parser *p, bool is_or, struct pn_node **ret) {
    struct pn_node *x, *n = NULL;
    for (;;) {
        if (is_or ? logic(p, false, &x) : not_expr(p, &x)) return p->e->code;
        if (n && push_node(p, n, x)) return p->e->code;
        if (!pn_take_name(p, is_or ? "or" : "and")) break;
        if (n) continue;
        n = pn_node_new(p, is_or ? PN_N_OR : PN_N_AND);
        if (!n || push_node(p, n, x)) return p->e->code;
        n->at = x->at;
    }
    if (n) pn_node_end(p, &n->at);
    *ret = n ? n : x;
    return 0;
}

static int or_expr(struct pn_parser *p, struct pn_node **ret) {
    return logic(p, true, ret);
}

int pn_parse_expr(struct pn_parser *p, struct pn_node **ret) {
    struct pn_node *x;
    size_t start = p->at;
    if (pn_parse_enter(p)) return p->e->code;
    if (or_expr(p, &x)) return p->e->code;
    while (pn_at_name(p, "if")) {
        struct pn_node *n = pn_node_new(p, PN_N_COND);
        if (!n) return p->e->code;
        n->at = x->at;
        p->at++;
        if (p->unknown_at > start) p->unknown_at = 0; /* what stands before `if` is conditional */
        n->cond.yes = x;
        if (or_expr(p, &n->cond.test)) return p->e->code;
        p->n_conditional++;
        if (pn_take_name(p, "else") && pn_parse_expr(p, &n->cond.no)) return p->e->code;
        p->n_conditional--;
        pn_node_end(p, &n->at);
        x = n;
    }
    p->depth--;
    *ret = x;
    return 0;
}
