/* The filters on single values and strings, and the table's search. jinja_seq.c has those on sequences. A row without a function is
 * a filter of Jinja's that this build does not have. */
#include "engine/jinja_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text of an argument that must be a string. */
static int need_str(struct pn_rt *rt, const struct pn_value *v, const char *what) {
    if (v->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *v);
    if (v->kind != PN_V_STR) return pn_rt_fail(rt, "%s must be a string, not %s", what, pn_value_type(*v));
    return 0;
}

/* An integer argument, or `def` when it is not given or None. */
static int int_arg(struct pn_rt *rt, const struct pn_value *v, int64_t def, int64_t *ret) {
    *ret = def;
    if (!v || v->kind == PN_V_NULL) return 0;
    if (v->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *v);
    if (v->kind != PN_V_INT && v->kind != PN_V_BOOL) return pn_rt_fail(rt, "an integer is needed, not %s", pn_value_type(*v));
    *ret = v->kind == PN_V_BOOL ? v->b : v->i;
    return 0;
}

static bool flag(const struct pn_value *v, bool def) {
    return v ? pn_value_truth(*v) : def;
}

/* --- text ------------------------------------------------------------------------------------------------------------ */

static int change_case(struct pn_rt *rt, struct pn_value self, enum pn_case how, struct pn_value *ret) {
    struct pn_value s;
    return pn_to_str(rt, self, &s) ? (int)rt->e->code : pn_str_case(rt, s, how, ret);
}

static int f_upper(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    (void)a;
    return change_case(rt, self, PN_CASE_UPPER, ret);
}

static int f_lower(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    (void)a;
    return change_case(rt, self, PN_CASE_LOWER, ret);
}

static int f_capitalize(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    (void)a;
    return change_case(rt, self, PN_CASE_CAPITALIZE, ret);
}

/* Jinja's title: words end at white space, - and opening brackets only, so "it's" stays one word. */
static int f_title(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    size_t from = rt->out.len;
    bool first = true;
    (void)a;
    if (pn_to_str(rt, self, &s)) return rt->e->code;
    for (size_t i = 0, n; i < s.s->len; i += n) {
        uint32_t c = pn_char_at(s.s->s + i, s.s->len - i, &n);
        pn_out_put_char(&rt->out, pn_char_case(c, first), pn_str_by(s, i));
        first = pn_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    }
    return pn_out_end(rt, from, ret);
}

static int f_trim(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    const struct pn_value *chars = a->v[0] && a->v[0]->kind != PN_V_NULL ? a->v[0] : NULL;
    if (chars && need_str(rt, chars, "chars")) return rt->e->code;
    return pn_to_str(rt, self, &s) ? (int)rt->e->code : pn_str_strip(rt, s, PN_STRIP_LEFT | PN_STRIP_RIGHT, chars, ret);
}

static int f_replace(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s, from, to;
    int64_t max;
    if (pn_to_str(rt, self, &s) || pn_to_str(rt, *a->v[0], &from) || pn_to_str(rt, *a->v[1], &to) || int_arg(rt, a->v[2], -1, &max))
        return rt->e->code;
    return pn_str_replace(rt, s, from, to, max, ret);
}

static int f_string(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    (void)a;
    return pn_to_str(rt, self, ret);
}

static int f_safe(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    (void)a;
    if (pn_to_str(rt, self, ret)) return rt->e->code;
    ret->safe = 1;
    return 0;
}

static int f_forceescape(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    (void)a;
    if (pn_to_str(rt, self, &s)) return rt->e->code;
    size_t from = rt->out.len;
    pn_out_escape_html(&rt->out, s);
    if (pn_out_end(rt, from, ret)) return rt->e->code;
    ret->safe = 1;
    return 0;
}

static int f_escape(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    if (self.kind != PN_V_STR || !self.safe) return f_forceescape(rt, self, a, ret);
    *ret = self;
    return 0;
}

static int f_indent(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s, lines, by;
    int64_t width = 4;
    bool first = flag(a->v[1], false), blank = flag(a->v[2], false);
    if (need_str(rt, &self, "what is indented")) return rt->e->code;
    s = self;
    bool by_str = a->v[0] && a->v[0]->kind == PN_V_STR;
    if (by_str)
        by = *a->v[0];
    else if (int_arg(rt, a->v[0], 4, &width))
        return rt->e->code;
    if (width > 4096) return pn_rt_limit(rt, "an indentation of more than 4096");
    if (pn_str_lines(rt, s, false, &lines)) return rt->e->code;
    /* Jinja adds a newline before it splits, so text that ends in one keeps it. */
    bool ends = s.s->len == 0 || s.s->s[s.s->len - 1] == '\n';
    size_t from = rt->out.len, n = lines.list->n + ends;
    for (size_t i = 0; i < n && !rt->out.failed; i++) {
        bool empty = i == lines.list->n || lines.list->v[i].s->len == 0;
        if (i) pn_out_put(&rt->out, "\n", 1, PN_BY_TEMPLATE);
        if (i ? blank || !empty : first) {
            if (by_str)
                pn_out_put_str(&rt->out, by);
            else if (width > 0)
                pn_out_fill(&rt->out, ' ', (size_t)width, PN_BY_TEMPLATE);
        }
        if (!empty) pn_out_put_str(&rt->out, lines.list->v[i]);
    }
    return pn_out_end(rt, from, ret);
}

static int f_center(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    int64_t width;
    if (pn_to_str(rt, self, &s) || int_arg(rt, a->v[0], 80, &width)) return rt->e->code;
    int64_t n = (int64_t)pn_count_chars(s.s->s, s.s->len);
    if (width > 4096) return pn_rt_limit(rt, "a width of more than 4096");
    int64_t gap = width > n ? width - n : 0, left = gap / 2 + (gap & width & 1);
    size_t from = rt->out.len;
    pn_out_fill(&rt->out, ' ', (size_t)left, PN_BY_TEMPLATE);
    pn_out_put_str(&rt->out, s);
    pn_out_fill(&rt->out, ' ', (size_t)(gap - left), PN_BY_TEMPLATE);
    return pn_out_end(rt, from, ret);
}

static int f_truncate(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s, end;
    int64_t length, leeway;
    if (int_arg(rt, a->v[0], 255, &length) || int_arg(rt, a->v[3], 5, &leeway)) return rt->e->code;
    if (a->v[2]) {
        if (need_str(rt, a->v[2], "end")) return rt->e->code;
        end = *a->v[2];
    } else if (!pn_str_view(rt->region, "...", 3, PN_BY_TEMPLATE, &end)) {
        return pn_rt_full(rt);
    }
    int64_t n, n_end = (int64_t)pn_count_chars(end.s->s, end.s->len);
    if (length < n_end) return pn_rt_fail(rt, "expected length >= %lld", (long long)n_end);
    if (leeway < 0) return pn_rt_fail(rt, "expected leeway >= 0");
    if (pn_op_len(rt, self, &n)) return rt->e->code;
    if (n <= length || n - length <= leeway) {
        *ret = self;
        return 0;
    }
    if (need_str(rt, &self, "what is truncated")) return rt->e->code;
    s = self;
    size_t cut = pn_char_offset(s.s->s, s.s->len, (size_t)(length - n_end)), from = rt->out.len;
    if (!flag(a->v[1], false)) /* not in the middle of a word, where there is one before */
        for (size_t k = cut; k-- > 0;)
            if (s.s->s[k] == ' ') {
                cut = k;
                break;
            }
    pn_out_put_part(&rt->out, s, 0, cut);
    pn_out_put_str(&rt->out, end);
    return pn_out_end(rt, from, ret);
}

static int f_wordcount(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    int64_t words = 0;
    bool in = false;
    (void)a;
    if (pn_to_str(rt, self, &s) || pn_charge_bytes(rt, s.s->len)) return rt->e->code;
    for (size_t i = 0, n; i < s.s->len; i += n) {
        uint32_t c = pn_char_at(s.s->s + i, s.s->len - i, &n);
        bool word = pn_char_is_alpha(c) || (c >= '0' && c <= '9') || c == '_';
        words += word && !in;
        in = word;
    }
    *ret = pn_int(words);
    return 0;
}

/* Escapes for a path, or for a part of a query: there "/" is escaped too, and a space is "+". */
static int put_url(struct pn_rt *rt, struct pn_value v, bool query) {
    struct pn_value s;
    if (pn_to_str(rt, v, &s)) return rt->e->code;
    for (size_t i = 0; i < s.s->len; i++) {
        unsigned char c = (unsigned char)s.s->s[i];
        char b[4];
        if (c < 0x80 && c && (isalnum(c) || strchr(query ? "_.-~" : "_.-~/", c)))
            pn_out_put_part(&rt->out, s, i, 1);
        else if (query && c == ' ')
            pn_out_put(&rt->out, "+", 1, pn_str_by(s, i));
        else
            pn_out_put(&rt->out, b, (size_t)snprintf(b, sizeof b, "%%%02X", c), pn_str_by(s, i));
    }
    return 0;
}

static int f_urlencode(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    size_t from = rt->out.len;
    struct pn_list items, pair;
    struct pn_value pairs = self;
    (void)a;
    if (self.kind != PN_V_DICT && self.kind != PN_V_LIST) return put_url(rt, self, false) ? (int)rt->e->code : pn_out_end(rt, from, ret);
    const struct pn_call none = { 0 };
    if (self.kind == PN_V_DICT && pn_call_row(rt, pn_find_method(PN_V_DICT, "items", 5), self, &none, &pairs)) return rt->e->code;
    if (pn_op_iter(rt, pairs, &items)) return rt->e->code;
    for (size_t i = 0; i < items.n; i++) {
        if (pn_charge(rt, 1) || pn_op_iter(rt, items.v[i], &pair)) return rt->e->code;
        if (pair.n != 2) return pn_rt_fail(rt, "a sequence of pairs is needed");
        if (i) pn_out_puts(&rt->out, "&", PN_BY_TEMPLATE);
        if (put_url(rt, pair.v[0], true)) return rt->e->code;
        pn_out_puts(&rt->out, "=", PN_BY_TEMPLATE);
        if (put_url(rt, pair.v[1], true)) return rt->e->code;
    }
    return pn_out_end(rt, from, ret);
}

/* key="value" for each entry that is not None or undefined; a key may not hold what would end it. */
static int f_xmlattr(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    size_t from = rt->out.len;
    bool any = false;
    if (self.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, self);
    if (self.kind != PN_V_DICT) return pn_rt_fail(rt, "'%s' object has no attribute 'items'", pn_value_type(self));
    for (size_t i = 0; i < self.dict->n; i++) {
        struct pn_value k = self.dict->k[i], v = self.dict->v[i];
        if (pn_charge(rt, 1)) return rt->e->code;
        if (v.kind == PN_V_NULL || v.kind == PN_V_UNDEFINED) continue;
        if (need_str(rt, &k, "an attribute's name")) return rt->e->code;
        for (size_t at = 0, n; at < k.s->len; at += n) {
            uint32_t c = pn_char_at(k.s->s + at, k.s->len - at, &n);
            if (pn_is_space(c) || c == '/' || c == '>' || c == '=') return pn_rt_fail(rt, "Invalid character in attribute name");
        }
        bool safe = v.kind == PN_V_STR && v.safe;
        if (!safe && pn_to_str(rt, v, &v)) return rt->e->code;
        if (any || flag(a->v[0], true)) pn_out_puts(&rt->out, " ", PN_BY_TEMPLATE);
        any = true;
        if (k.safe)
            pn_out_put_str(&rt->out, k);
        else
            pn_out_escape_html(&rt->out, k);
        pn_out_puts(&rt->out, "=\"", PN_BY_TEMPLATE);
        if (safe)
            pn_out_put_str(&rt->out, v);
        else
            pn_out_escape_html(&rt->out, v);
        pn_out_puts(&rt->out, "\"", PN_BY_TEMPLATE);
    }
    return pn_out_end(rt, from, ret);
}

/* Drops tags and comments, and makes white space single. */
static int f_striptags(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value s;
    (void)a;
    if (pn_to_str(rt, self, &s)) return rt->e->code;
    const char *p = s.s->s;
    size_t len = s.s->len, from = rt->out.len;
    bool space = false;
    for (size_t i = 0, n; i < len; i += n) {
        const char *close = p[i] == '<' ? memchr(p + i, '>', len - i) : NULL;
        if (len - i >= 4 && memcmp(p + i, "<!--", 4) == 0) {
            const char *end = memmem(p + i, len - i, "-->", 3);
            if (end) close = end + 2;
        }
        if (close) {
            n = (size_t)(close - p) + 1 - i;
            continue;
        }
        if (pn_is_space(pn_char_at(p + i, len - i, &n))) {
            space = true;
            continue;
        }
        if (space && rt->out.len > from) pn_out_put(&rt->out, " ", 1, pn_str_by(s, i));
        space = false;
        pn_out_put_part(&rt->out, s, i, n);
    }
    return pn_out_end(rt, from, ret);
}

static int f_format(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_value fmt, args;
    if (pn_to_str(rt, self, &fmt)) return rt->e->code;
    if (a->rest.n_named) {
        if (a->rest.n_pos) return pn_rt_fail(rt, "can't handle positional and keyword arguments at the same time");
        size_t n = a->rest.n_named;
        struct pn_value *k = fo_region_array(rt->region, n, sizeof *k), *v = fo_region_array(rt->region, n, sizeof *v);
        if (!k || !v) return pn_rt_full(rt);
        for (size_t i = 0; i < n; i++) {
            k[i] = a->rest.named[2 * i];
            v[i] = a->rest.named[2 * i + 1];
        }
        if (pn_dict_new(rt->region, k, v, n, &args, rt->e)) return pn_rt_place(rt);
    } else if (pn_list_new(rt->region, a->rest.pos, a->rest.n_pos, PN_SEQ_TUPLE, &args, rt->e)) {
        return pn_rt_place(rt);
    }
    return pn_format_percent(rt, fmt, args, ret);
}

static int f_tojson(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct pn_json_style style = { .item = ", ", .item_len = 2, .key = ": ", .key_len = 2 };
    const struct pn_value *indent = a->v[1], *separators = a->v[2];
    style.ensure_ascii = flag(a->v[0], false);
    style.sort_keys = flag(a->v[3], false);
    if (indent && indent->kind == PN_V_STR) {
        style.indent = *indent;
    } else if (indent && indent->kind != PN_V_NULL) {
        int64_t n;
        if (int_arg(rt, indent, 0, &n)) return rt->e->code;
        if (n > 64) return pn_rt_limit(rt, "an indentation of more than 64");
        static const char spaces[] = "                                                                ";
        if (!pn_str_view(rt->region, spaces, n > 0 ? (size_t)n : 0, PN_BY_TEMPLATE, &style.indent)) return pn_rt_full(rt);
    }
    if (style.indent.kind == PN_V_STR) style.item_len = 1; /* no space where a line ends */
    if (separators && separators->kind == PN_V_LIST && separators->list->n == 2) {
        const struct pn_value *s = separators->list->v;
        if (need_str(rt, &s[0], "a separator") || need_str(rt, &s[1], "a separator")) return rt->e->code;
        style.item = s[0].s->s;
        style.item_len = s[0].s->len;
        style.key = s[1].s->s;
        style.key_len = s[1].s->len;
        style.sep_mark = s[0].mark | s[1].mark ? PN_BY_USER : PN_BY_TEMPLATE;
    } else if (separators && separators->kind != PN_V_NULL) {
        return pn_rt_fail(rt, "separators must be two strings");
    }
    size_t from = rt->out.len;
    if (pn_charge_walk(rt, self)) return rt->e->code;
    if (pn_out_put_json(&rt->out, self, &style, rt->e)) return pn_rt_place(rt);
    return pn_out_end(rt, from, ret);
}

/* --- numbers ------------------------------------------------------------------------------------------------------------ */

/* Reads a string as Python's int() or float() does: white space around, single underscores between digits. */
static bool clean_number(struct pn_value s, char *out, size_t size) {
    size_t n = 0, from = 0, to = s.s->len;
    while (from < to && isspace((unsigned char)s.s->s[from])) from++;
    while (to > from && isspace((unsigned char)s.s->s[to - 1])) to--;
    for (size_t i = from; i < to; i++) {
        char c = s.s->s[i];
        if (c == '_' && i > from && i + 1 < to && isalnum((unsigned char)s.s->s[i - 1]) && isalnum((unsigned char)s.s->s[i + 1])) continue;
        if (n + 1 == size || c == '\0' || c == '_') return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return n > 0;
}

static bool str_to_float(struct pn_value s, double *ret) {
    char text[128], *end;
    if (!clean_number(s, text, sizeof text) || strpbrk(text, "xX(")) return false;
    *ret = strtod(text, &end);
    return *end == '\0';
}

static int float_to_int(struct pn_rt *rt, double f, struct pn_value *ret) {
    if (!(fabs(f) < 0x1p63)) return pn_rt_fail(rt, "a float that no 64-bit integer holds");
    *ret = pn_int((int64_t)f);
    return 0;
}

static int f_int(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    int64_t base;
    double f;
    if (self.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, self);
    if (int_arg(rt, a->v[1], 10, &base)) return rt->e->code;
    *ret = a->v[0] ? *a->v[0] : pn_int(0);
    if (self.kind == PN_V_BOOL) *ret = pn_int(self.b);
    if (self.kind == PN_V_INT || (self.kind == PN_V_FLOAT && self.big))
        *ret = self;
    else if (self.kind == PN_V_FLOAT && isfinite(self.f))
        return float_to_int(rt, self.f, ret);
    if (self.kind != PN_V_STR) return 0;
    char text[128], *end;
    if (!clean_number(self, text, sizeof text)) return 0;
    char *digits = text + (text[0] == '-' || text[0] == '+');
    char kind = (char)(digits[0] == '0' ? digits[1] | 32 : 0);
    bool prefixed = (kind == 'x' && base == 16) || (kind == 'o' && base == 8) || (kind == 'b' && base == 2);
    if (base != 0 && (base < 2 || base > 36)) return pn_rt_fail(rt, "int() base must be >= 2 and <= 36, or 0");
    if (prefixed && base != 16) memmove(digits, digits + 2, strlen(digits + 2) + 1); /* strtoll knows 0x only */
    long long i = strtoll(text, &end, (int)base);
    if (*end == '\0' && end != text && isalnum((unsigned char)*digits)) {
        if (i == INT64_MAX || i == INT64_MIN) return pn_rt_limit(rt, "an integer beyond 64 bits");
        *ret = pn_int(i);
    } else if (str_to_float(self, &f) && isfinite(f)) {
        return float_to_int(rt, f, ret);
    }
    return 0;
}

static int f_float(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    double f = 0;
    if (self.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, self);
    if (pn_is_number(self))
        *ret = pn_float(pn_value_num(self));
    else if (self.kind == PN_V_STR && str_to_float(self, &f))
        *ret = pn_float(f);
    else
        *ret = a->v[0] ? *a->v[0] : pn_float(0);
    return 0;
}

static int f_abs(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    (void)a;
    bool less = pn_is_number(self) && pn_value_num(self) < 0;
    return pn_op_negate(rt, self, !less, ret);
}

/* Half to even on the decimal digits, as Python's round. */
static int f_round(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    int64_t digits;
    if (self.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, self);
    if (!pn_is_number(self)) return pn_rt_fail(rt, "round() of a %s", pn_value_type(self));
    if (int_arg(rt, a->v[0], 0, &digits)) return rt->e->code;
    if (digits < -300 || digits > 300) return pn_rt_fail(rt, "round() to that many digits");
    double f = pn_value_num(self), scale = pow(10, (double)digits);
    struct pn_value method;
    if (!a->v[1] && !pn_str_view(rt->region, "common", 6, PN_BY_TEMPLATE, &method)) return pn_rt_full(rt);
    if (a->v[1]) method = *a->v[1];
    if (pn_str_is(method, "ceil", 4)) {
        *ret = pn_float(ceil(f * scale) / scale);
    } else if (pn_str_is(method, "floor", 5)) {
        *ret = pn_float(floor(f * scale) / scale);
    } else if (pn_str_is(method, "common", 6)) {
        char text[700];
        if (self.kind != PN_V_FLOAT && digits >= 0) {
            *ret = self.kind == PN_V_INT ? self : pn_int(self.b);
            return 0;
        }
        if (digits < 0) {
            *ret = self.kind == PN_V_FLOAT ? pn_float(nearbyint(f * scale) / scale) : pn_int((int64_t)(nearbyint(f * scale) / scale));
        } else {
            snprintf(text, sizeof text, "%.*f", (int)digits, f);
            *ret = pn_float(strtod(text, NULL));
        }
    } else {
        return pn_rt_fail(rt, "method must be common, ceil or floor");
    }
    return 0;
}

static int f_filesizeformat(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    bool binary = flag(a->v[0], false);
    struct pn_value number = pn_float(0);
    struct pn_args none = { 0 };
    double parsed;
    if (!pn_is_number(self) && self.kind != PN_V_UNDEFINED && (self.kind != PN_V_STR || !str_to_float(self, &parsed)))
        return pn_rt_fail(rt, "filesizeformat of a %s", pn_value_type(self));
    if (f_float(rt, self, &none, &number)) return rt->e->code;
    static const char units[] = "kMGTPEZY";
    double base = binary ? 1024 : 1000, f = number.f, unit = base;
    size_t i = 0, from = rt->out.len;
    char text[64];
    if (f == 1)
        snprintf(text, sizeof text, "1 Byte");
    else if (f < base)
        snprintf(text, sizeof text, "%.0f Bytes", trunc(f) + 0.0);
    else {
        while (i + 1 < sizeof units - 1 && f >= unit * base) {
            unit *= base;
            i++;
        }
        snprintf(text, sizeof text, "%.1f %c%s", f / unit, binary && i == 0 ? 'K' : units[i], binary ? "iB" : "B");
    }
    pn_out_puts(&rt->out, text, self.mark ? PN_BY_USER : PN_BY_TEMPLATE);
    return pn_out_end(rt, from, ret);
}

/* --- anything ----------------------------------------------------------------------------------------------------------------- */

static int f_default(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    bool falsy = flag(a->v[1], false);
    if (self.kind != PN_V_UNDEFINED && (!falsy || pn_value_truth(self)))
        *ret = self;
    else if (a->v[0])
        *ret = *a->v[0];
    else if (!pn_str_view(rt->region, "", 0, PN_BY_TEMPLATE, ret))
        return pn_rt_full(rt);
    return 0;
}

static int f_attr(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    if (need_str(rt, a->v[0], "an attribute's name")) return rt->e->code;
    if (self.kind == PN_V_DICT && !pn_find_method(PN_V_DICT, a->v[0]->s->s, a->v[0]->s->len)) {
        *ret = pn_undefined(PN_U_ATTR, self, a->v[0]->s); /* attributes only: never a dict's keys */
        return 0;
    }
    return pn_op_attr(rt, self, *a->v[0], ret);
}

static int f_length(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    int64_t n;
    (void)a;
    if (pn_op_len(rt, self, &n)) return rt->e->code;
    *ret = pn_int(n);
    return 0;
}

static const struct pn_builtin filters[] = {
    { "abs", f_abs, "", 0 },
    { "attr", f_attr, "name", 1 },
    { "capitalize", f_capitalize, "", 0 },
    { "center", f_center, "width", 0 },
    { "count", f_length, "", 0 },
    { "d", f_default, "default_value boolean", 0 },
    { "default", f_default, "default_value boolean", 0 },
    { "e", f_escape, "", 0 },
    { "escape", f_escape, "", 0 },
    { "filesizeformat", f_filesizeformat, "binary", 0 },
    { "float", f_float, "default", 0 },
    { "forceescape", f_forceescape, "", 0 },
    { "format", f_format, "*", 0 },
    { "indent", f_indent, "width first blank", 0 },
    { "int", f_int, "default base", 0 },
    { "length", f_length, "", 0 },
    { "lower", f_lower, "", 0 },
    { "pprint", NULL, "", 0 },
    { "random", NULL, "", 0 },
    { "replace", f_replace, "old new count", 2 },
    { "round", f_round, "precision method", 0 },
    { "safe", f_safe, "", 0 },
    { "string", f_string, "", 0 },
    { "striptags", f_striptags, "", 0 },
    { "title", f_title, "", 0 },
    { "tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0 },
    { "trim", f_trim, "chars", 0 },
    { "truncate", f_truncate, "length killwords end leeway", 0 },
    { "upper", f_upper, "", 0 },
    { "urlencode", f_urlencode, "", 0 },
    { "urlize", NULL, "", 0 },
    { "wordcount", f_wordcount, "", 0 },
    { "wordwrap", pn_filter_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0 },
    { "xmlattr", f_xmlattr, "autospace", 0 },
    { NULL, NULL, NULL, 0 },
};

const struct pn_builtin *pn_find_filter(const char *name, size_t len) {
    const struct pn_builtin *const tables[] = { filters, pn_seq_filters };
    for (size_t t = 0; t < 2; t++)
        for (const struct pn_builtin *row = tables[t]; row->name; row++)
            if (strlen(row->name) == len && memcmp(row->name, name, len) == 0) return row;
    return NULL;
}
