/* Python's methods of strings, lists and dicts as far as templates may use them, and those of Jinja's own objects. Methods that would
 * change a list or a dict do not exist here, as in the sandbox that templates are written for; naming one is an error of its own. */
#include "engine/jinja_impl.h"

#include <string.h>

#include "foundry/unicode.h"

#define METHOD(name) static int name(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret)

static int need_str(struct pn_rt *rt, const struct pn_value *v) {
    if (v->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *v);
    return v->kind == PN_V_STR ? 0 : pn_rt_fail(rt, "must be str, not %s", pn_value_type(*v));
}

static int int_arg(struct pn_rt *rt, const struct pn_value *v, int64_t def, int64_t *ret) {
    *ret = def;
    if (!v || v->kind == PN_V_NULL) return 0;
    if (v->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *v);
    if (v->kind != PN_V_INT && v->kind != PN_V_BOOL)
        return pn_rt_fail(rt, "'%s' object cannot be interpreted as an integer", pn_value_type(*v));
    *ret = v->kind == PN_V_BOOL ? v->b : v->i;
    return 0;
}

/* An optional string; None counts as not given. */
static int str_arg(struct pn_rt *rt, const struct pn_value *v, const struct pn_value **ret) {
    *ret = v && v->kind != PN_V_NULL ? v : NULL;
    return *ret ? need_str(rt, *ret) : 0;
}

static int boolean(struct pn_value *ret, bool b) {
    *ret = pn_bool(b);
    return 0;
}

static int part(struct pn_rt *rt, struct pn_value v, size_t from, size_t to, struct pn_value *ret) {
    return pn_str_part(rt->region, v, from, to - from, ret) ? 0 : pn_rt_full(rt);
}

static int list_of(struct pn_rt *rt, const struct pn_value *v, size_t n, enum pn_seq seq, struct pn_value *ret) {
    return pn_list_new(rt->region, n ? v : NULL, n, seq, ret, rt->e) ? pn_rt_place(rt) : 0;
}

/* --- str: case and white space ------------------------------------------------------------------------------------------ */

METHOD(s_upper) {
    (void)a;
    return pn_str_case(rt, self, PN_CASE_UPPER, ret);
}

METHOD(s_lower) {
    (void)a;
    return pn_str_case(rt, self, PN_CASE_LOWER, ret);
}

METHOD(s_title) {
    (void)a;
    return pn_str_case(rt, self, PN_CASE_TITLE, ret);
}

METHOD(s_capitalize) {
    (void)a;
    return pn_str_case(rt, self, PN_CASE_CAPITALIZE, ret);
}

METHOD(s_casefold) {
    (void)a;
    return pn_str_case(rt, self, PN_CASE_FOLD, ret);
}

METHOD(s_swapcase) {
    (void)a;
    return pn_str_case(rt, self, PN_CASE_SWAP, ret);
}

static int strip(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, unsigned sides, struct pn_value *ret) {
    const struct pn_value *chars;
    if (str_arg(rt, a->v[0], &chars)) return rt->e->code;
    return pn_str_strip(rt, self, sides, chars, ret);
}

METHOD(s_strip) {
    return strip(rt, self, a, PN_STRIP_LEFT | PN_STRIP_RIGHT, ret);
}

METHOD(s_lstrip) {
    return strip(rt, self, a, PN_STRIP_LEFT, ret);
}

METHOD(s_rstrip) {
    return strip(rt, self, a, PN_STRIP_RIGHT, ret);
}

/* Puts self into `width` with `before` of the missing characters in front. */
static int justify(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, int side, struct pn_value *ret) {
    int64_t width, n = (int64_t)pn_count_chars(self.s->s, self.s->len);
    const struct pn_value *fill;
    if (int_arg(rt, a->v[0], 0, &width) || str_arg(rt, a->v[1], &fill)) return rt->e->code;
    if (width > 1 << 20) return pn_rt_limit(rt, "a width of more than %d", 1 << 20);
    if (fill && pn_count_chars(fill->s->s, fill->s->len) != 1)
        return pn_rt_fail(rt, "The fill character must be exactly one character long");
    int64_t gap = width > n ? width - n : 0, left = side < 0 ? 0 : side > 0 ? gap : gap / 2 + (gap & width & 1);
    size_t from = rt->out.len;
    for (int64_t i = 0; i < gap; i++) {
        if (i == left) pn_out_put_str(&rt->out, self);
        if (fill)
            pn_out_put_str(&rt->out, *fill);
        else
            pn_out_put(&rt->out, " ", 1, PN_BY_TEMPLATE);
    }
    if (left == gap) pn_out_put_str(&rt->out, self);
    return pn_out_end(rt, from, ret);
}

METHOD(s_center) {
    return justify(rt, self, a, 0, ret);
}

METHOD(s_ljust) {
    return justify(rt, self, a, -1, ret);
}

METHOD(s_rjust) {
    return justify(rt, self, a, 1, ret);
}

METHOD(s_zfill) {
    int64_t width, n = (int64_t)pn_count_chars(self.s->s, self.s->len);
    if (int_arg(rt, a->v[0], 0, &width)) return rt->e->code;
    if (width > 1 << 20) return pn_rt_limit(rt, "a width of more than %d", 1 << 20);
    size_t from = rt->out.len, sign = self.s->len && (self.s->s[0] == '-' || self.s->s[0] == '+');
    pn_out_put_part(&rt->out, self, 0, sign);
    if (width > n) pn_out_fill(&rt->out, '0', (size_t)(width - n), PN_BY_TEMPLATE);
    pn_out_put_part(&rt->out, self, sign, self.s->len - sign);
    return pn_out_end(rt, from, ret);
}

METHOD(s_expandtabs) {
    int64_t size;
    size_t from = rt->out.len, col = 0;
    if (int_arg(rt, a->v[0], 8, &size)) return rt->e->code;
    if (size > 256) return pn_rt_limit(rt, "tabs of more than 256");
    for (size_t i = 0, n; i < self.s->len; i += n) {
        n = pn_char_len(self.s->s + i, self.s->len - i);
        char c = self.s->s[i];
        if (c == '\t') {
            size_t width = size > 0 ? (size_t)size - col % (size_t)size : 0;
            pn_out_fill(&rt->out, ' ', width, pn_str_by(self, i));
            col += width;
            continue;
        }
        pn_out_put_part(&rt->out, self, i, n);
        col = c == '\n' || c == '\r' ? 0 : col + 1;
    }
    return pn_out_end(rt, from, ret);
}

/* --- str: searching ----------------------------------------------------------------------------------------------------------- */

/* Byte bounds of self[start:stop]; *ret_skip is how many characters come before. False for an empty range past the end. */
static int bounds(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, size_t *from, size_t *to, int64_t *ret_skip) {
    int64_t n = (int64_t)pn_count_chars(self.s->s, self.s->len), start, stop;
    if (pn_charge_bytes(rt, self.s->len) || int_arg(rt, a->v[1], 0, &start) || int_arg(rt, a->v[2], n, &stop)) return rt->e->code;
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    if (stop < 0) stop = stop + n < 0 ? 0 : stop + n;
    if (stop > n) stop = n;
    *ret_skip = start;
    *from = start > n ? self.s->len + 1 : pn_char_offset(self.s->s, self.s->len, (size_t)start);
    *to = pn_char_offset(self.s->s, self.s->len, (size_t)stop);
    return 0;
}

static int find(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, bool last, int64_t *ret) {
    size_t from = 0, to = 0;
    int64_t skip = 0;
    if (need_str(rt, a->v[0]) || bounds(rt, self, a, &from, &to, &skip)) return rt->e->code;
    if (last && pn_charge(rt, self.s->len / 64 * a->v[0]->s->len)) return rt->e->code;
    ptrdiff_t at = pn_str_find(self, from, to, *a->v[0], last);
    *ret = at < 0 ? -1 : skip + (int64_t)pn_count_chars(self.s->s + from, (size_t)at - from);
    return 0;
}

static int find_value(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, bool last, bool must, struct pn_value *ret) {
    int64_t at = -1;
    if (find(rt, self, a, last, &at)) return rt->e->code;
    if (at < 0 && must) return pn_rt_fail(rt, "substring not found");
    *ret = pn_int(at);
    return 0;
}

METHOD(s_find) {
    return find_value(rt, self, a, false, false, ret);
}

METHOD(s_rfind) {
    return find_value(rt, self, a, true, false, ret);
}

METHOD(s_index) {
    return find_value(rt, self, a, false, true, ret);
}

METHOD(s_rindex) {
    return find_value(rt, self, a, true, true, ret);
}

METHOD(s_count) {
    size_t from = 0, to = 0;
    int64_t skip = 0, n = 0;
    if (need_str(rt, a->v[0]) || bounds(rt, self, a, &from, &to, &skip)) return rt->e->code;
    if (a->v[0]->s->len == 0) {
        n = from <= to ? (int64_t)pn_count_chars(self.s->s + from, to - from) + 1 : 0;
    } else {
        for (ptrdiff_t at; (at = pn_str_find(self, from, to, *a->v[0], false)) >= 0; n++) from = (size_t)at + a->v[0]->s->len;
    }
    *ret = pn_int(n);
    return 0;
}

/* One string or a tuple of them. */
static int starts_or_ends(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, bool end, struct pn_value *ret) {
    size_t from = 0, to = 0;
    int64_t skip = 0;
    const struct pn_value *v = a->v[0];
    size_t n = 1;
    if (v->kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, *v);
    if (v->kind == PN_V_LIST && v->list->seq == PN_SEQ_TUPLE) {
        n = v->list->n;
        v = v->list->v;
    } else if (v->kind != PN_V_STR) {
        return pn_rt_fail(rt, "%s first arg must be str or a tuple of str, not %s", end ? "endswith" : "startswith", pn_value_type(*v));
    }
    if (a->v[1] || a->v[2]) {
        if (bounds(rt, self, a, &from, &to, &skip)) return rt->e->code;
    } else {
        from = 0;
        to = self.s->len;
    }
    bool yes = false;
    for (size_t i = 0; i < n && !yes; i++) {
        if (need_str(rt, &v[i]) || pn_charge(rt, 1)) return rt->e->code;
        size_t len = v[i].s->len;
        yes = from <= to && len <= to - from && memcmp(self.s->s + (end ? to - len : from), v[i].s->s, len) == 0;
    }
    return boolean(ret, yes);
}

METHOD(s_startswith) {
    return starts_or_ends(rt, self, a, false, ret);
}

METHOD(s_endswith) {
    return starts_or_ends(rt, self, a, true, ret);
}

METHOD(s_removeprefix) {
    if (need_str(rt, a->v[0])) return rt->e->code;
    size_t n = a->v[0]->s->len, len = self.s->len;
    bool yes = n <= len && memcmp(self.s->s, a->v[0]->s->s, n) == 0;
    return part(rt, self, yes ? n : 0, len, ret);
}

METHOD(s_removesuffix) {
    if (need_str(rt, a->v[0])) return rt->e->code;
    size_t n = a->v[0]->s->len, len = self.s->len;
    bool yes = n <= len && memcmp(self.s->s + len - n, a->v[0]->s->s, n) == 0;
    return part(rt, self, 0, yes ? len - n : len, ret);
}

/* --- str: taking apart and putting together ------------------------------------------------------------------------------------ */

METHOD(s_replace) {
    int64_t max;
    if (need_str(rt, a->v[0]) || need_str(rt, a->v[1]) || int_arg(rt, a->v[2], -1, &max)) return rt->e->code;
    return pn_str_replace(rt, self, *a->v[0], *a->v[1], max, ret);
}

static int split(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, bool right, struct pn_value *ret) {
    const struct pn_value *sep;
    int64_t max;
    if (str_arg(rt, a->v[0], &sep) || int_arg(rt, a->v[1], -1, &max)) return rt->e->code;
    return pn_str_split(rt, self, sep, max < 0 ? -1 : max, right, ret);
}

METHOD(s_split) {
    return split(rt, self, a, false, ret);
}

METHOD(s_rsplit) {
    return split(rt, self, a, true, ret);
}

METHOD(s_splitlines) {
    return pn_str_lines(rt, self, a->v[0] && pn_value_truth(*a->v[0]), ret);
}

static int partition(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, bool right, struct pn_value *ret) {
    struct pn_value v[3];
    if (need_str(rt, a->v[0])) return rt->e->code;
    size_t n = a->v[0]->s->len, len = self.s->len;
    if (n == 0) return pn_rt_fail(rt, "empty separator");
    if (pn_charge(rt, 1 + len / 64 * (right ? n : 1))) return rt->e->code;
    ptrdiff_t at = pn_str_find(self, 0, len, *a->v[0], right);
    size_t cut = at >= 0 ? (size_t)at : right ? 0 : len, after = at >= 0 ? cut + n : cut;
    if (part(rt, self, 0, cut, &v[0]) || part(rt, self, cut, after, &v[1]) || part(rt, self, after, len, &v[2])) return rt->e->code;
    return list_of(rt, v, 3, PN_SEQ_TUPLE, ret);
}

METHOD(s_partition) {
    return partition(rt, self, a, false, ret);
}

METHOD(s_rpartition) {
    return partition(rt, self, a, true, ret);
}

METHOD(s_join) {
    struct pn_list items;
    size_t from = rt->out.len;
    if (pn_op_iter(rt, *a->v[0], &items)) return rt->e->code;
    for (size_t i = 0; i < items.n && !rt->out.failed; i++) {
        if (items.v[i].kind != PN_V_STR)
            return pn_rt_fail(rt, "sequence item %zu: expected str instance, %s found", i, pn_value_type(items.v[i]));
        if (pn_charge(rt, 1)) return rt->e->code;
        if (i) pn_out_put_str(&rt->out, self);
        pn_out_put_str(&rt->out, items.v[i]);
    }
    return pn_out_end(rt, from, ret);
}

METHOD(s_format) {
    return pn_format_braces(rt, self, &a->rest, ret);
}

/* --- str: what it is made of ---------------------------------------------------------------------------------------------------- */

enum made_of { ALPHA = 1, DIGIT = 2, SPACE = 4, ASCII = 8 };

static int made_of(struct pn_value self, unsigned what, struct pn_value *ret) {
    for (size_t i = 0, n; i < self.s->len; i += n) {
        uint32_t c = pn_char_at(self.s->s + i, self.s->len - i, &n);
        bool yes = ((what & ALPHA) && pn_char_is_alpha(c)) || ((what & DIGIT) && fo_unicode_category(c) == FO_UC_ND) ||
                   ((what & SPACE) && pn_is_space(c)) || ((what & ASCII) && c < 0x80);
        if (!yes) return boolean(ret, false);
    }
    return boolean(ret, self.s->len > 0 || what == ASCII);
}

METHOD(s_isalpha) {
    (void)a;
    return pn_charge_bytes(rt, self.s->len) ? (int)rt->e->code : made_of(self, ALPHA, ret);
}

METHOD(s_isdigit) {
    (void)a;
    return pn_charge_bytes(rt, self.s->len) ? (int)rt->e->code : made_of(self, DIGIT, ret);
}

METHOD(s_isalnum) {
    (void)a;
    return pn_charge_bytes(rt, self.s->len) ? (int)rt->e->code : made_of(self, ALPHA | DIGIT, ret);
}

METHOD(s_isspace) {
    (void)a;
    return pn_charge_bytes(rt, self.s->len) ? (int)rt->e->code : made_of(self, SPACE, ret);
}

METHOD(s_isascii) {
    (void)a;
    return pn_charge_bytes(rt, self.s->len) ? (int)rt->e->code : made_of(self, ASCII, ret);
}

METHOD(s_isprintable) {
    (void)a;
    if (pn_charge_bytes(rt, self.s->len)) return rt->e->code;
    for (size_t i = 0, n; i < self.s->len; i += n)
        if (pn_is_unprintable(pn_char_at(self.s->s + i, self.s->len - i, &n))) return boolean(ret, false);
    return boolean(ret, true);
}

/* Upper case where a word begins and only there. */
METHOD(s_istitle) {
    bool any = false, in_word = false;
    (void)a;
    if (pn_charge_bytes(rt, self.s->len)) return rt->e->code;
    for (size_t i = 0, n; i < self.s->len; i += n) {
        uint32_t c = pn_char_at(self.s->s + i, self.s->len - i, &n);
        bool upper = pn_char_case(c, false) != c, lower = pn_char_case(c, true) != c;
        if ((upper && in_word) || (lower && !in_word)) return boolean(ret, false);
        any |= upper;
        in_word = upper || lower;
    }
    return boolean(ret, any);
}

static int is_case(struct pn_rt *rt, struct pn_value self, bool upper, struct pn_value *ret) {
    const struct pn_builtin *test = pn_find_test(upper ? "upper" : "lower", 5);
    const struct pn_call none = { 0 };
    return pn_call_row(rt, test, self, &none, ret);
}

METHOD(s_isupper) {
    (void)a;
    return is_case(rt, self, true, ret);
}

METHOD(s_islower) {
    (void)a;
    return is_case(rt, self, false, ret);
}

/* --- list and dict --------------------------------------------------------------------------------------------------------------- */

METHOD(l_count) {
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++) {
        if (pn_charge(rt, pn_value_weight(*a->v[0]))) return rt->e->code;
        n += pn_value_eq(self.list->v[i], *a->v[0]);
    }
    *ret = pn_int(n);
    return 0;
}

METHOD(l_index) {
    for (size_t i = 0; i < self.list->n; i++) {
        if (pn_charge(rt, pn_value_weight(*a->v[0]))) return rt->e->code;
        if (pn_value_eq(self.list->v[i], *a->v[0])) {
            *ret = pn_int((int64_t)i);
            return 0;
        }
    }
    return pn_rt_fail(rt, "the value is not in the list");
}

METHOD(x_copy) {
    (void)rt, (void)a;
    *ret = self; /* nothing can change it */
    return 0;
}

METHOD(d_get) {
    if (pn_charge_walk(rt, *a->v[0])) return rt->e->code;
    if (!pn_value_hashable(*a->v[0])) return pn_rt_fail(rt, "unhashable type: '%s'", pn_value_type(*a->v[0]));
    const struct pn_value *found = pn_dict_get(self.dict, *a->v[0]);
    *ret = found ? *found : a->v[1] ? *a->v[1] : pn_none();
    return 0;
}

METHOD(d_keys) {
    (void)a;
    return pn_charge(rt, self.dict->n) ? (int)rt->e->code : list_of(rt, self.dict->k, self.dict->n, PN_SEQ_KEYS, ret);
}

METHOD(d_values) {
    (void)a;
    return pn_charge(rt, self.dict->n) ? (int)rt->e->code : list_of(rt, self.dict->v, self.dict->n, PN_SEQ_VALUES, ret);
}

METHOD(d_items) {
    (void)a;
    if (pn_charge(rt, self.dict->n)) return rt->e->code;
    if (pn_list_new(rt->region, NULL, self.dict->n, PN_SEQ_ITEMS, ret, rt->e)) return pn_rt_place(rt);
    for (size_t i = 0; i < self.dict->n; i++) {
        struct pn_value pair[2] = { self.dict->k[i], self.dict->v[i] };
        if (list_of(rt, pair, 2, PN_SEQ_TUPLE, &ret->list->v[i])) return rt->e->code;
    }
    return pn_list_seal(*ret, rt->e) ? pn_rt_place(rt) : 0;
}

/* --- loop and cycler --------------------------------------------------------------------------------------------------------------- */

METHOD(o_cycle) {
    if (self.obj->type != PN_O_LOOP || a->rest.n_pos == 0) return pn_rt_fail(rt, "no items for cycling given");
    *ret = a->rest.pos[self.obj->i % a->rest.n_pos];
    return 0;
}

METHOD(o_changed) {
    struct pn_value now;
    if (self.obj->type != PN_O_LOOP) return pn_rt_fail(rt, "changed() belongs to a loop");
    if (list_of(rt, a->rest.pos, a->rest.n_pos, PN_SEQ_TUPLE, &now) || pn_charge(rt, pn_value_weight(now))) return rt->e->code;
    bool same = self.obj->seen && pn_value_eq(self.obj->last, now);
    self.obj->seen = true;
    self.obj->last = now;
    return boolean(ret, !same);
}

METHOD(o_next) {
    (void)a;
    if (self.obj->type != PN_O_CYCLER) return pn_rt_fail(rt, "next() belongs to a cycler");
    *ret = self.obj->self.list->v[self.obj->i++ % self.obj->self.list->n];
    return 0;
}

METHOD(o_reset) {
    (void)a;
    if (self.obj->type != PN_O_CYCLER) return pn_rt_fail(rt, "reset() belongs to a cycler");
    self.obj->i = 0;
    *ret = pn_none();
    return 0;
}

static const struct pn_builtin of_str[] = {
    { "capitalize", s_capitalize, "", 0 },
    { "casefold", s_casefold, "", 0 },
    { "center", s_center, "width fillchar", 1 },
    { "count", s_count, "sub start end", 1 },
    { "endswith", s_endswith, "suffix start end", 1 },
    { "expandtabs", s_expandtabs, "tabsize", 0 },
    { "find", s_find, "sub start end", 1 },
    { "format", s_format, "*", 0 },
    { "index", s_index, "sub start end", 1 },
    { "isalnum", s_isalnum, "", 0 },
    { "isalpha", s_isalpha, "", 0 },
    { "isascii", s_isascii, "", 0 },
    { "isdecimal", s_isdigit, "", 0 },
    { "isdigit", s_isdigit, "", 0 },
    { "islower", s_islower, "", 0 },
    { "isnumeric", s_isdigit, "", 0 },
    { "isprintable", s_isprintable, "", 0 },
    { "isspace", s_isspace, "", 0 },
    { "istitle", s_istitle, "", 0 },
    { "isupper", s_isupper, "", 0 },
    { "join", s_join, "iterable", 1 },
    { "ljust", s_ljust, "width fillchar", 1 },
    { "lower", s_lower, "", 0 },
    { "lstrip", s_lstrip, "chars", 0 },
    { "partition", s_partition, "sep", 1 },
    { "removeprefix", s_removeprefix, "prefix", 1 },
    { "removesuffix", s_removesuffix, "suffix", 1 },
    { "replace", s_replace, "old new count", 2 },
    { "rfind", s_rfind, "sub start end", 1 },
    { "rindex", s_rindex, "sub start end", 1 },
    { "rjust", s_rjust, "width fillchar", 1 },
    { "rpartition", s_rpartition, "sep", 1 },
    { "rsplit", s_rsplit, "sep maxsplit", 0 },
    { "rstrip", s_rstrip, "chars", 0 },
    { "split", s_split, "sep maxsplit", 0 },
    { "splitlines", s_splitlines, "keepends", 0 },
    { "startswith", s_startswith, "prefix start end", 1 },
    { "strip", s_strip, "chars", 0 },
    { "swapcase", s_swapcase, "", 0 },
    { "title", s_title, "", 0 },
    { "upper", s_upper, "", 0 },
    { "zfill", s_zfill, "width", 1 },
    { NULL, NULL, NULL, 0 },
};

static const struct pn_builtin of_list[] = {
    { "copy", x_copy, "", 0 },
    { "count", l_count, "value", 1 },
    { "index", l_index, "value", 1 },
    { NULL, NULL, NULL, 0 },
};

static const struct pn_builtin of_dict[] = {
    { "copy", x_copy, "", 0 }, { "get", d_get, "key default", 1 }, { "items", d_items, "", 0 },
    { "keys", d_keys, "", 0 }, { "values", d_values, "", 0 },      { NULL, NULL, NULL, 0 },
};

static const struct pn_builtin of_object[] = {
    { "changed", o_changed, "*", 0 }, { "cycle", o_cycle, "*", 0 }, { "next", o_next, "", 0 },
    { "reset", o_reset, "", 0 },      { NULL, NULL, NULL, 0 },
};

const struct pn_builtin *pn_find_method(enum pn_value_kind kind, const char *name, size_t len) {
    const struct pn_builtin *row = kind == PN_V_STR ? of_str : kind == PN_V_LIST ? of_list : kind == PN_V_DICT ? of_dict : of_object;
    if (kind != PN_V_STR && kind != PN_V_LIST && kind != PN_V_DICT && kind != PN_V_CALLABLE) return NULL;
    for (; row->name; row++)
        if (strlen(row->name) == len && memcmp(row->name, name, len) == 0) return row;
    return NULL;
}

bool pn_is_unsafe_method(enum pn_value_kind kind, const char *name, size_t len) {
    static const char *const of_lists[] = { "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort" };
    static const char *const of_dicts[] = { "clear", "pop", "popitem", "setdefault", "update" };
    const char *const *names = kind == PN_V_LIST ? of_lists : of_dicts;
    size_t n = kind == PN_V_LIST ? sizeof of_lists / sizeof *of_lists : kind == PN_V_DICT ? sizeof of_dicts / sizeof *of_dicts : 0;
    for (size_t i = 0; i < n; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0) return true;
    return false;
}
