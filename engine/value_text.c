/* Values as text: the marked text buffer, UTF-8, str() and repr() as Python writes them, json.dumps. Bytes that stand for a value
 * and not for a string's contents (digits, brackets, quotes) are a user's as soon as anything in the value is: a control token
 * must not arise from how user data is written down. */
#include "engine/value_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/unicode.h"

/* --- UTF-8 ------------------------------------------------------------------------------------- */

uint32_t pn_char_at(const char *s, size_t left, size_t *ret_len) {
    const unsigned char *p = (const unsigned char *)s;
    size_t n = pn_char_len(s, left);
    *ret_len = n;
    switch (n) {
    case 2: return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    case 3: return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    case 4: return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    default: return p[0];
    }
}

size_t pn_count_chars(const char *s, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i += pn_char_len(s + i, len - i)) n++;
    return n;
}

size_t pn_char_offset(const char *s, size_t len, size_t i) {
    size_t at = 0;
    while (at < len && i-- > 0) at += pn_char_len(s + at, len - at);
    return at;
}

bool pn_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t pn_utf8_valid(const char *s, size_t len) {
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        size_t n = pn_char_len(s + i, len - i);
        if (c < 0xC2 || c > 0xF4 || n == 1) return i;
        for (size_t k = 1; k < n; k++)
            if (((unsigned char)s[i + k] & 0xC0) != 0x80) return i;
        size_t unused;
        uint32_t u = pn_char_at(s + i, n, &unused);
        if ((n == 3 && (u < 0x800 || (u >= 0xD800 && u < 0xE000))) || (n == 4 && (u < 0x10000 || u > 0x10FFFF))) return i;
        i += n;
    }
    return len;
}

/* --- the text buffer ----------------------------------------------------------------------------- */

void pn_out_init(struct pn_out *t, size_t cap_bytes) {
    *t = (struct pn_out){ .cap_bytes = cap_bytes };
}

void pn_out_done(struct pn_out *t) {
    if (!t) return;
    free(t->s);
    free(t->user);
    pn_out_init(t, t->cap_bytes);
}

/* Room for n more bytes (and a NUL). */
static bool reserve(struct pn_out *t, size_t n) {
    if (t->failed) return false;
    if (n > t->cap_bytes - t->len) {
        t->failed = FO_ELIMIT;
        return false;
    }
    if (t->size > t->len + n) return true;
    size_t size = t->size ? t->size : 512;
    while (size <= t->len + n) size *= 2;
    char *s = realloc(t->s, size);
    if (s) t->s = s;
    uint8_t *user = s ? realloc(t->user, size) : NULL;
    if (!user) {
        t->failed = FO_ENOMEM;
        return false;
    }
    t->user = user;
    t->size = size;
    return true;
}

void pn_out_put(struct pn_out *t, const char *s, size_t n, uint8_t mark) {
    if (n == 0 || !reserve(t, n)) return;
    memcpy(t->s + t->len, s, n);
    memset(t->user + t->len, mark, n);
    t->len += n;
}

void pn_out_puts(struct pn_out *t, const char *s, uint8_t mark) {
    pn_out_put(t, s, strlen(s), mark);
}

void pn_out_fill(struct pn_out *t, char c, size_t n, uint8_t mark) {
    if (n == 0 || !reserve(t, n)) return;
    memset(t->s + t->len, c, n);
    memset(t->user + t->len, mark, n);
    t->len += n;
}

void pn_out_put_part(struct pn_out *t, struct pn_value str, size_t from, size_t len) {
    if (str.mark != PN_BY_BOTH) {
        pn_out_put(t, str.s->s + from, len, str.mark);
        return;
    }
    if (len == 0 || !reserve(t, len)) return;
    memcpy(t->s + t->len, str.s->s + from, len);
    memcpy(t->user + t->len, str.s->user + from, len);
    t->len += len;
}

void pn_out_put_str(struct pn_out *t, struct pn_value str) {
    pn_out_put_part(t, str, 0, str.s->len);
}

void pn_out_put_char(struct pn_out *t, uint32_t c, uint8_t mark) {
    char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; c >>= 6) b[i] = (char)(0x80 | (c & 0x3F));
    b[0] = (char)(lead[n] | c);
    pn_out_put(t, b, n, mark);
}

int pn_out_error(const struct pn_out *t, struct fo_err *e) {
    if (t->failed == FO_ELIMIT)
        return fo_fail_need(e, FO_ELIMIT, t->cap_bytes + 1, t->cap_bytes, "more than %zu bytes of text", t->cap_bytes);
    return t->failed ? fo_fail(e, FO_ENOMEM, "no memory for the text") : 0;
}

int pn_out_pop(struct pn_out *t, size_t from, struct fo_region *r, struct pn_value *ret, struct fo_err *e) {
    if (t->failed) return pn_out_error(t, e);
    size_t len = t->len - from;
    t->len = from;
    uint8_t mark = len ? t->user[from] : PN_BY_TEMPLATE;
    const uint8_t *user = NULL;
    if (len && memchr(t->user + from, !mark, len)) {
        uint8_t *copy = fo_region_alloc(r, len);
        if (!copy) return pn_region_full(r, e);
        memcpy(copy, t->user + from, len);
        user = copy;
        mark = PN_BY_BOTH;
    }
    struct pn_value v;
    if (!pn_str_new(r, len ? t->s + from : "", len, PN_BY_TEMPLATE, &v)) return pn_region_full(r, e);
    if (user) {
        struct pn_str *with = fo_region_alloc(r, sizeof *with);
        if (!with) return pn_region_full(r, e);
        *with = (struct pn_str){ .s = v.s->s, .user = user, .len = len };
        v.s = with;
    }
    v.mark = mark;
    *ret = v;
    return 0;
}

/* --- str and repr ---------------------------------------------------------------------------------- */

/* PN_BY_USER when anything in the value is a user's. Depth is bounded by construction. */
static uint8_t whose(struct pn_value v) {
    if (v.mark != PN_BY_TEMPLATE) return PN_BY_USER;
    if (v.kind == PN_V_LIST)
        for (size_t i = 0; i < v.list->n; i++)
            if (whose(v.list->v[i])) return PN_BY_USER;
    if (v.kind == PN_V_DICT)
        for (size_t i = 0; i < v.dict->n; i++)
            if (whose(v.dict->k[i]) || whose(v.dict->v[i])) return PN_BY_USER;
    return PN_BY_TEMPLATE;
}

size_t pn_float_repr(double f, char out[32]) {
    if (isnan(f)) return (size_t)snprintf(out, 32, "nan");
    if (isinf(f)) return (size_t)snprintf(out, 32, f > 0 ? "inf" : "-inf");
    char sci[32];
    int digits = fabs(f) < 1e-290 ? 1 : 15; /* any 15 digits read back the same, but not among the subnormals */
    do snprintf(sci, sizeof sci, "%.*e", digits - 1, f);
    while (strtod(sci, NULL) != f && ++digits <= 17);
    char *e = strchr(sci, 'e'), mant[32];
    int exp = (int)strtol(e + 1, NULL, 10), n = 0;
    for (const char *p = sci; p < e; p++)
        if (*p >= '0' && *p <= '9') mant[n++] = *p;
    while (n > 1 && mant[n - 1] == '0') n--;
    size_t o = 0;
    if (signbit(f)) out[o++] = '-';
    if (exp >= 16 || exp < -4) {
        out[o++] = mant[0];
        if (n > 1) out[o++] = '.';
        for (int i = 1; i < n; i++) out[o++] = mant[i];
        return o + (size_t)snprintf(out + o, 32 - o, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
    }
    if (exp < 0) {
        o += (size_t)snprintf(out + o, 32 - o, "0.%.*s", -exp - 1, "000");
        for (int i = 0; i < n; i++) out[o++] = mant[i];
    } else {
        for (int i = 0; i <= exp || i < n; i++) {
            if (i == exp + 1) out[o++] = '.';
            out[o++] = i < n ? mant[i] : '0';
        }
        if (n <= exp + 1) {
            out[o++] = '.';
            out[o++] = '0';
        }
    }
    out[o] = '\0';
    return o;
}

static bool put_number(struct pn_out *t, struct pn_value v, uint8_t mark) {
    char b[32];
    if (v.kind == PN_V_INT)
        pn_out_put(t, b, (size_t)snprintf(b, sizeof b, "%lld", (long long)v.i), mark);
    else if (v.kind == PN_V_FLOAT && v.big)
        pn_out_put(t, v.s->s, v.s->len, mark);
    else if (v.kind == PN_V_FLOAT)
        pn_out_put(t, b, pn_float_repr(v.f, b), mark);
    else
        return false;
    return true;
}

/* What repr shows as \x, \u or \U: what is neither a visible character nor a plain space. */
bool pn_is_unprintable(uint32_t c) {
    if (c < 0x7F) return c < 0x20;
    enum fo_ucat cat = fo_unicode_category(c);
    return cat <= FO_UC_CS || cat >= FO_UC_ZL;
}

static void put_str_repr(struct pn_out *t, struct pn_value v, uint8_t mark, bool ascii) {
    const char *s = v.s->s;
    size_t len = v.s->len;
    char quote = len && memchr(s, '\'', len) && !memchr(s, '"', len) ? '"' : '\'';
    pn_out_put(t, &quote, 1, mark);
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = pn_char_at(s + i, len - i, &n);
        uint8_t by = pn_str_by(v, i);
        const char *simple = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : NULL;
        if (simple) {
            pn_out_put(t, simple, 2, by);
        } else if (c == (unsigned char)quote) {
            pn_out_put(t, "\\", 1, by);
            pn_out_put(t, &quote, 1, by);
        } else if (pn_is_unprintable(c) || (ascii && c >= 0x80)) {
            char b[12];
            pn_out_put(t, b, (size_t)snprintf(b, sizeof b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c), by);
        } else {
            pn_out_put_part(t, v, i, n);
        }
    }
    pn_out_put(t, &quote, 1, mark);
}

static void put_repr(struct pn_out *t, struct pn_value v, uint8_t mark, bool ascii);

static void put_list_repr(struct pn_out *t, struct pn_value v, uint8_t mark, bool ascii) {
    const struct pn_list *l = v.list;
    if (l->seq == PN_SEQ_ITER) {
        pn_out_puts(t, "<generator object>", mark);
        return;
    }
    if (l->seq == PN_SEQ_RANGE && l->range) {
        char b[80];
        int n = snprintf(b, sizeof b, "range(%lld, %lld", (long long)l->range[0], (long long)l->range[1]);
        if (l->range[2] != 1) n += snprintf(b + n, sizeof b - (size_t)n, ", %lld", (long long)l->range[2]);
        pn_out_put(t, b, (size_t)n, mark);
        pn_out_puts(t, ")", mark);
        return;
    }
    bool tuple = l->seq == PN_SEQ_TUPLE || l->seq == PN_SEQ_GROUP;
    bool view = !pn_is_indexed(l);
    if (view) {
        pn_out_puts(t, pn_value_type(v), mark);
        pn_out_puts(t, "(", mark);
    }
    pn_out_puts(t, tuple ? "(" : "[", mark);
    for (size_t i = 0; i < l->n && !t->failed; i++) {
        if (i) pn_out_puts(t, ", ", mark);
        put_repr(t, l->v[i], mark, ascii);
    }
    if (tuple && l->n == 1) pn_out_puts(t, ",", mark);
    pn_out_puts(t, tuple ? ")" : "]", mark);
    if (view) pn_out_puts(t, ")", mark);
}

static void put_repr(struct pn_out *t, struct pn_value v, uint8_t mark, bool ascii) {
    if (put_number(t, v, mark)) return;
    switch ((enum pn_value_kind)v.kind) {
    case PN_V_UNDEFINED: pn_out_puts(t, "Undefined", mark); break;
    case PN_V_NULL: pn_out_puts(t, "None", mark); break;
    case PN_V_BOOL: pn_out_puts(t, v.b ? "True" : "False", mark); break;
    case PN_V_STR: put_str_repr(t, v, mark, ascii); break;
    case PN_V_LIST: put_list_repr(t, v, mark, ascii); break;
    case PN_V_DICT:
        pn_out_puts(t, "{", mark);
        for (size_t i = 0; i < v.dict->n && !t->failed; i++) {
            if (i) pn_out_puts(t, ", ", mark);
            put_repr(t, v.dict->k[i], mark, ascii);
            pn_out_puts(t, ": ", mark);
            put_repr(t, v.dict->v[i], mark, ascii);
        }
        pn_out_puts(t, "}", mark);
        break;
    default: pn_out_puts(t, "<function>", mark); break;
    }
}

void pn_out_put_repr(struct pn_out *t, struct pn_value v) {
    put_repr(t, v, whose(v), false);
}

void pn_out_put_ascii(struct pn_out *t, struct pn_value v) {
    put_repr(t, v, whose(v), true);
}

void pn_out_put_value(struct pn_out *t, struct pn_value v) {
    if (v.kind == PN_V_STR)
        pn_out_put_str(t, v);
    else if (v.kind != PN_V_UNDEFINED)
        pn_out_put_repr(t, v);
}

void pn_out_escape_html(struct pn_out *t, struct pn_value str) {
    static const struct {
        char c;
        const char *text;
    } subs[] = { { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '"', "&#34;" }, { '\'', "&#39;" } };
    size_t from = 0;
    for (size_t i = 0; i < str.s->len; i++)
        for (size_t k = 0; k < sizeof subs / sizeof *subs; k++)
            if (str.s->s[i] == subs[k].c) {
                pn_out_put_part(t, str, from, i - from);
                pn_out_puts(t, subs[k].text, pn_str_by(str, i));
                from = i + 1;
            }
    pn_out_put_part(t, str, from, str.s->len - from);
}

/* --- json.dumps --------------------------------------------------------------------------------------- */

struct dump {
    struct pn_out *t;
    const struct pn_json_style *style;
    struct fo_err *e;
    uint8_t mark;
    unsigned level;
};

static void put_json_str(struct dump *d, struct pn_value v) {
    const char *s = v.s->s;
    size_t len = v.s->len, from = 0;
    pn_out_put(d->t, "\"", 1, d->mark);
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = pn_char_at(s + i, len - i, &n);
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !d->style->ensure_ascii)) continue;
        static const char from_c[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *simple = c ? strchr(from_c, c < 0x80 ? (int)c : 1) : NULL;
        char b[16];
        size_t k;
        if (simple)
            k = (size_t)snprintf(b, sizeof b, "\\%c", to[simple - from_c]);
        else if (c < 0x10000)
            k = (size_t)snprintf(b, sizeof b, "\\u%04x", c);
        else
            k = (size_t)snprintf(b, sizeof b, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
        pn_out_put_part(d->t, v, from, i - from);
        pn_out_put(d->t, b, k, pn_str_by(v, i));
        from = i + n;
    }
    pn_out_put_part(d->t, v, from, len - from);
    pn_out_put(d->t, "\"", 1, d->mark);
}

static void put_float_json(struct dump *d, struct pn_value v) {
    if (!v.big && isnan(v.f))
        pn_out_puts(d->t, "NaN", d->mark);
    else if (!v.big && isinf(v.f))
        pn_out_puts(d->t, v.f > 0 ? "Infinity" : "-Infinity", d->mark);
    else
        put_number(d->t, v, d->mark);
}

/* A newline and the indentation of this level. */
static void put_break(struct dump *d) {
    if (d->style->indent.kind != PN_V_STR) return;
    pn_out_put(d->t, "\n", 1, d->mark);
    for (unsigned i = 0; i < d->level && !d->t->failed; i++) pn_out_put(d->t, d->style->indent.s->s, d->style->indent.s->len, d->mark);
}

static void put_separator(struct dump *d, const char *s, size_t len) {
    pn_out_put(d->t, s, len, d->style->sep_mark == PN_BY_TEMPLATE ? d->mark : PN_BY_USER);
}

static int put_json(struct dump *d, struct pn_value v);

static int put_json_key(struct dump *d, struct pn_value k) {
    if (k.kind == PN_V_STR) {
        put_json_str(d, k);
        return 0;
    }
    if (k.kind == PN_V_LIST || k.kind == PN_V_CALLABLE || k.kind == PN_V_UNDEFINED)
        return fo_fail(d->e, FO_EFORMAT, "keys must be str, int, float, bool or None, not %s", pn_value_type(k));
    pn_out_put(d->t, "\"", 1, d->mark);
    int rc = put_json(d, k);
    pn_out_put(d->t, "\"", 1, d->mark);
    return rc;
}

/* The i-th entry of a small dict in the order of its keys: how many keys are less decides. */
static size_t sorted_at(const struct pn_dict *d, size_t i) {
    if (d->order) return d->order[i];
    for (size_t k = 0; k < d->n; k++) {
        size_t less = 0;
        for (size_t m = 0; m < d->n; m++) less += pn_key_cmp(d->k[m], d->k[k]) < 0;
        if (less == i) return k;
    }
    return i;
}

static int put_json_dict(struct dump *d, const struct pn_dict *dict) {
    pn_out_put(d->t, "{", 1, d->mark);
    d->level++;
    for (size_t i = 0; i < dict->n && !d->t->failed; i++) {
        size_t at = d->style->sort_keys ? sorted_at(dict, i) : i;
        if (i) put_separator(d, d->style->item, d->style->item_len);
        put_break(d);
        if (put_json_key(d, dict->k[at])) return d->e->code;
        put_separator(d, d->style->key, d->style->key_len);
        if (put_json(d, dict->v[at])) return d->e->code;
    }
    d->level--;
    if (dict->n) put_break(d);
    pn_out_put(d->t, "}", 1, d->mark);
    return 0;
}

static int put_json_list(struct dump *d, struct pn_value v) {
    const struct pn_list *l = v.list;
    if (l->seq != PN_SEQ_LIST && l->seq != PN_SEQ_TUPLE && l->seq != PN_SEQ_GROUP)
        return fo_fail(d->e, FO_EFORMAT, "Object of type %s is not JSON serializable", pn_value_type(v));
    pn_out_put(d->t, "[", 1, d->mark);
    d->level++;
    for (size_t i = 0; i < l->n && !d->t->failed; i++) {
        if (i) put_separator(d, d->style->item, d->style->item_len);
        put_break(d);
        if (put_json(d, l->v[i])) return d->e->code;
    }
    d->level--;
    if (l->n) put_break(d);
    pn_out_put(d->t, "]", 1, d->mark);
    return 0;
}

static int put_json(struct dump *d, struct pn_value v) {
    switch ((enum pn_value_kind)v.kind) {
    case PN_V_NULL: pn_out_puts(d->t, "null", d->mark); return 0;
    case PN_V_BOOL: pn_out_puts(d->t, v.b ? "true" : "false", d->mark); return 0;
    case PN_V_INT: put_number(d->t, v, d->mark); return 0;
    case PN_V_FLOAT: put_float_json(d, v); return 0;
    case PN_V_STR: put_json_str(d, v); return 0;
    case PN_V_LIST: return put_json_list(d, v);
    case PN_V_DICT: return put_json_dict(d, v.dict);
    case PN_V_UNDEFINED:
    case PN_V_CALLABLE: break;
    }
    return fo_fail(d->e, FO_EFORMAT, "Object of type %s is not JSON serializable", pn_value_type(v));
}

int pn_out_put_json(struct pn_out *t, struct pn_value v, const struct pn_json_style *style, struct fo_err *e) {
    struct dump d = { .t = t, .style = style, .e = e, .mark = whose(v) };
    return put_json(&d, v);
}
