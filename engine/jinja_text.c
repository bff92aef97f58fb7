/* Strings with their marks. Pieces of a string (strip, split, slices) share its bytes; whatever builds a new one writes it behind the
 * render's output and takes it off again, marks and all. */
#include "engine/jinja_impl.h"

#include <string.h>

#include "foundry/unicode.h"

int pn_out_end(struct pn_rt *rt, size_t from, struct pn_value *ret) {
    if (rt->out.failed) {
        pn_out_error(&rt->out, rt->e);
        return pn_rt_place(rt);
    }
    if (pn_charge_bytes(rt, rt->out.len - from)) return rt->e->code;
    return pn_out_pop(&rt->out, from, rt->region, ret, rt->e) ? pn_rt_place(rt) : 0;
}

int pn_to_str(struct pn_rt *rt, struct pn_value v, struct pn_value *ret) {
    if (v.kind == PN_V_STR) {
        *ret = v;
        return 0;
    }
    size_t from = rt->out.len;
    if (pn_charge_walk(rt, v)) return rt->e->code;
    pn_out_put_value(&rt->out, v);
    return pn_out_end(rt, from, ret);
}

/* --- growing -------------------------------------------------------------------------------------------------------- */

enum { GROW_FROM = 1024 }; /* shorter results are copied exactly */

/* A string over the first `len` bytes of a growing buffer. */
static int grown(struct pn_rt *rt, struct pn_strbuf *b, size_t len, uint8_t mark, struct pn_value *ret) {
    struct pn_str *s = fo_region_alloc(rt->region, sizeof *s);
    if (!s) return pn_rt_full(rt);
    *s = (struct pn_str){ .s = b->s, .user = mark == PN_BY_BOTH ? b->user : NULL, .len = len, .grow = b };
    *ret = (struct pn_value){ .kind = PN_V_STR, .mark = mark, .s = s };
    return 0;
}

int pn_str_extend(struct pn_rt *rt, struct pn_value a, size_t from, struct pn_value *ret) {
    struct pn_out *t = &rt->out;
    size_t n = t->len - from, len = a.s->len;
    bool safe = a.safe;
    if (n == 0) {
        *ret = a;
        return 0;
    }
    if (len + n < GROW_FROM) {
        pn_out_fill(t, 0, len, 0); /* the head goes in front of the tail: both are short */
        if (!t->failed && len) {
            memmove(t->s + from + len, t->s + from, n);
            memmove(t->user + from + len, t->user + from, n);
            memcpy(t->s + from, a.s->s, len);
            if (a.mark == PN_BY_BOTH)
                memcpy(t->user + from, a.s->user, len);
            else
                memset(t->user + from, a.mark, len);
        }
        if (pn_out_end(rt, from, ret)) return rt->e->code;
        ret->safe = safe;
        return 0;
    }
    uint8_t mark = t->user[from];
    if (memchr(t->user + from, !mark, n) || (len && a.mark != mark)) mark = PN_BY_BOTH;
    struct pn_strbuf *b = a.s->grow;
    if (!b || a.s->s + len != b->s + b->used || b->cap - b->used < n) {
        size_t cap = 2 * (len + n);
        if (pn_charge_bytes(rt, cap)) return rt->e->code;
        b = fo_region_alloc(rt->region, sizeof *b);
        if (!b) return pn_rt_full(rt);
        *b = (struct pn_strbuf){ .s = fo_region_alloc(rt->region, cap), .user = fo_region_alloc(rt->region, cap), .cap = cap, .used = len };
        if (!b->s || !b->user) return pn_rt_full(rt);
        if (len) memcpy(b->s, a.s->s, len);
        if (a.mark == PN_BY_BOTH)
            memcpy(b->user, a.s->user, len);
        else
            memset(b->user, a.mark, len);
    }
    memcpy(b->s + b->used, t->s + from, n);
    memcpy(b->user + b->used, t->user + from, n);
    b->used += n;
    t->len = from;
    if (grown(rt, b, len + n, mark, ret)) return rt->e->code;
    ret->safe = safe;
    return 0;
}

/* --- characters and case ----------------------------------------------------------------------------------------------------------------
 */

bool pn_char_is_alpha(uint32_t c) {
    if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    enum fo_ucat cat = fo_unicode_category(c);
    return cat >= FO_UC_LL && cat <= FO_UC_LU;
}

int pn_str_case(struct pn_rt *rt, struct pn_value v, enum pn_case how, struct pn_value *ret) {
    size_t from = rt->out.len;
    bool in_word = false;
    for (size_t i = 0, n; i < v.s->len; i += n) {
        uint32_t c = pn_char_at(v.s->s + i, v.s->len - i, &n);
        bool upper = how == PN_CASE_UPPER;
        if (how == PN_CASE_TITLE) upper = !in_word;
        if (how == PN_CASE_CAPITALIZE) upper = i == 0;
        if (how == PN_CASE_SWAP) upper = pn_char_case(c, true) != c || c == 0xDF;
        in_word = pn_char_is_alpha(c);
        if (c == 0xDF && how == PN_CASE_FOLD)
            pn_out_puts(&rt->out, "ss", pn_str_by(v, i));
        else if (c == 0xDF && upper)
            pn_out_puts(&rt->out, how == PN_CASE_UPPER || how == PN_CASE_SWAP ? "SS" : "Ss", pn_str_by(v, i));
        else
            pn_out_put_char(&rt->out, pn_char_case(c, upper), pn_str_by(v, i));
    }
    return pn_out_end(rt, from, ret);
}

/* --- searching -------------------------------------------------------------------------------------------------------------- */

ptrdiff_t pn_str_find(struct pn_value v, size_t from, size_t to, struct pn_value what, bool last) {
    size_t m = what.s->len;
    const char *s = v.s->s;
    if (from > to || m > to - from) return -1;
    if (!last) {
        if (m == 0) return (ptrdiff_t)from;
        const char *at = memmem(s + from, to - from, what.s->s, m);
        return at ? at - s : -1;
    }
    for (size_t i = to - m + 1; i-- > from;)
        if (memcmp(s + i, what.s->s, m) == 0) return (ptrdiff_t)i;
    return -1;
}

static bool has_char(struct pn_value set, const char *s, size_t n) {
    for (size_t i = 0, k; i < set.s->len; i += k) {
        k = pn_char_len(set.s->s + i, set.s->len - i);
        if (k == n && memcmp(set.s->s + i, s, n) == 0) return true;
    }
    return false;
}

static bool strips(const struct pn_value *chars, const char *s, size_t left, size_t *ret_n) {
    uint32_t c = pn_char_at(s, left, ret_n);
    return chars ? has_char(*chars, s, *ret_n) : pn_is_space(c);
}

/* Where the character before `at` starts. */
static size_t back(const char *s, size_t at) {
    size_t k = at - 1;
    while (k > 0 && at - k < 4 && ((unsigned char)s[k] & 0xC0) == 0x80) k--;
    return k + pn_char_len(s + k, at - k) == at ? k : at - 1;
}

int pn_str_strip(struct pn_rt *rt, struct pn_value v, unsigned sides, const struct pn_value *chars, struct pn_value *ret) {
    size_t from = 0, to = v.s->len, n;
    const char *s = v.s->s;
    uint64_t each = chars ? chars->s->len / 16 : 0; /* what a look at one character costs */
    while ((sides & PN_STRIP_LEFT) && from < to && strips(chars, s + from, to - from, &n)) {
        if (pn_charge(rt, each)) return rt->e->code;
        from += n;
    }
    while ((sides & PN_STRIP_RIGHT) && to > from) {
        size_t k = back(s, to);
        if (k < from || !strips(chars, s + k, to - k, &n)) break;
        if (pn_charge(rt, each)) return rt->e->code;
        to = k;
    }
    if (pn_charge_bytes(rt, from + v.s->len - to)) return rt->e->code;
    return pn_str_part(rt->region, v, from, to - from, ret) ? 0 : pn_rt_full(rt);
}

int pn_str_replace(struct pn_rt *rt, struct pn_value v, struct pn_value what, struct pn_value to, int64_t max, struct pn_value *ret) {
    size_t from = rt->out.len, at = 0, len = v.s->len;
    if (pn_charge_bytes(rt, len)) return rt->e->code;
    if (what.s->len == 0) { /* between all characters, and at both ends */
        for (; max; max--) {
            pn_out_put_str(&rt->out, to);
            if (at == len || rt->out.failed) break;
            size_t n = pn_char_len(v.s->s + at, len - at);
            pn_out_put_part(&rt->out, v, at, n);
            at += n;
        }
    }
    while (what.s->len && max && !rt->out.failed) {
        ptrdiff_t hit = pn_str_find(v, at, len, what, false);
        if (hit < 0) break;
        pn_out_put_part(&rt->out, v, at, (size_t)hit - at);
        pn_out_put_str(&rt->out, to);
        at = (size_t)hit + what.s->len;
        if (max > 0) max--;
    }
    pn_out_put_part(&rt->out, v, at, len - at);
    return pn_out_end(rt, from, ret);
}

/* --- splitting ------------------------------------------------------------------------------------------------------------------ */

struct parts {
    struct pn_rt *rt;
    struct pn_value v;
    struct pn_value *list; /* [size], in the region */
    size_t n, size;
};

static int add_part(struct parts *p, size_t from, size_t to) {
    struct pn_rt *rt = p->rt;
    if (p->n == p->size) {
        size_t size = p->size ? 2 * p->size : 8;
        struct pn_value *more = fo_region_array(rt->region, size, sizeof *more);
        if (!more) return pn_rt_full(rt);
        if (p->n) memcpy(more, p->list, p->n * sizeof *more);
        p->list = more;
        p->size = size;
    }
    if (!pn_str_part(rt->region, p->v, from, to - from, &p->list[p->n])) return pn_rt_full(rt);
    p->n++;
    return pn_charge(rt, 1);
}

static int end_parts(struct parts *p, bool reverse, struct pn_value *ret) {
    for (size_t i = 0; reverse && i < p->n / 2; i++) {
        struct pn_value x = p->list[i];
        p->list[i] = p->list[p->n - 1 - i];
        p->list[p->n - 1 - i] = x;
    }
    return pn_list_new(p->rt->region, p->list, p->n, PN_SEQ_LIST, ret, p->rt->e) ? pn_rt_place(p->rt) : 0;
}

static int split_spaces(struct parts *p, int64_t max, bool right, struct pn_value *ret) {
    const char *s = p->v.s->s;
    size_t from = 0, to = p->v.s->len, n;
    for (;;) {
        if (right)
            while (to > 0 && strips(NULL, s + back(s, to), to - back(s, to), &n)) to = back(s, to);
        else
            while (from < to && strips(NULL, s + from, to - from, &n)) from += n;
        if (from == to) break;
        size_t a = from, b = to;
        if (max == 0) { /* the rest keeps the space at its far end */
            if (add_part(p, a, b)) return p->rt->e->code;
            break;
        }
        if (right) {
            for (a = b; a > 0 && !strips(NULL, s + back(s, a), a - back(s, a), &n);) a = back(s, a);
            to = a;
        } else {
            for (b = a; b < to && !strips(NULL, s + b, to - b, &n);) b += n;
            from = b;
        }
        if (add_part(p, a, b)) return p->rt->e->code;
        if (max > 0) max--;
    }
    return end_parts(p, right, ret);
}

int pn_str_split(struct pn_rt *rt, struct pn_value v, const struct pn_value *sep, int64_t max, bool right, struct pn_value *ret) {
    struct parts p = { .rt = rt, .v = v };
    size_t from = 0, to = v.s->len;
    if (pn_charge(rt, 1 + v.s->len / 64 * (sep && right ? 1 + sep->s->len : 1))) return rt->e->code;
    if (!sep) return split_spaces(&p, max, right, ret);
    if (sep->s->len == 0) return pn_rt_fail(rt, "empty separator");
    for (; max; max -= max > 0) {
        ptrdiff_t hit = pn_str_find(v, from, to, *sep, right);
        if (hit < 0) break;
        size_t after = (size_t)hit + sep->s->len;
        if (right ? add_part(&p, after, to) : add_part(&p, from, (size_t)hit)) return rt->e->code;
        if (right)
            to = (size_t)hit;
        else
            from = after;
    }
    if (add_part(&p, from, to)) return rt->e->code;
    return end_parts(&p, right, ret);
}

int pn_str_lines(struct pn_rt *rt, struct pn_value v, bool keep_ends, struct pn_value *ret) {
    struct parts p = { .rt = rt, .v = v };
    size_t from = 0, n;
    if (pn_charge_bytes(rt, v.s->len)) return rt->e->code;
    for (size_t i = 0; i < v.s->len; i += n) {
        uint32_t c = pn_char_at(v.s->s + i, v.s->len - i, &n);
        bool ends = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (!ends) continue;
        if (c == '\r' && i + 1 < v.s->len && v.s->s[i + 1] == '\n') n = 2;
        if (add_part(&p, from, keep_ends ? i + n : i)) return rt->e->code;
        from = i + n;
    }
    if (from < v.s->len && add_part(&p, from, v.s->len)) return rt->e->code;
    return end_parts(&p, false, ret);
}
