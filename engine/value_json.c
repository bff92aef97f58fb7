/* JSON text to values (RFC 8259), iteratively: open containers stand on a stack of at most PN_DEPTH_JSON, and the elements read so
 * far of all of them in one growing array, so that nothing is allocated from a count that the text claims. Every value is marked
 * as a user's. A lone surrogate (\ud800) has no UTF-8 form and becomes U+FFFD. Integers that int64 cannot hold keep their digits. */
#include "engine/value_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/region.h"

struct json {
    struct fo_region *r;
    struct fo_err *e;
    const char *text, *p, *end;
    struct pn_value *items; /* elements of all open containers; dicts: key, value, key, value */
    size_t n_items, size;
    struct {
        size_t from; /* where its elements start */
        bool dict;
    } open[PN_DEPTH_JSON];
    unsigned n_open;
};

static int fail(struct json *j, const char *at, const char *what) {
    int line = 1, col = 1;
    for (const char *p = j->text; p < at; p++) {
        if (*p == '\n') {
            line++;
            col = 1;
        } else if (((unsigned char)*p & 0xC0) != 0x80) {
            col++;
        }
    }
    return fo_fail_at(j->e, FO_EFORMAT, line, col, "JSON: %s (line %d, column %d)", what, line, col);
}

static void skip_space(struct json *j) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r')) j->p++;
}

static int push(struct json *j, struct pn_value v) {
    if (j->n_items == j->size) {
        size_t size = j->size ? j->size * 2 : 64;
        struct pn_value *items = realloc(j->items, size * sizeof *items);
        if (!items) return fo_fail(j->e, FO_ENOMEM, "no memory for a JSON value");
        j->items = items;
        j->size = size;
    }
    j->items[j->n_items++] = v;
    return 0;
}

static int hex4(struct json *j, uint32_t *ret) {
    if (j->end - j->p < 4) return fail(j, j->p, "a \\u escape needs four hex digits");
    uint32_t c = 0;
    for (int i = 0; i < 4; i++) {
        char h = j->p[i];
        uint32_t d = h >= '0' && h <= '9' ? (uint32_t)(h - '0') : (h | 32) >= 'a' && (h | 32) <= 'f' ? (uint32_t)((h | 32) - 'a' + 10) : 16;
        if (d == 16) return fail(j, j->p + i, "a \\u escape needs four hex digits");
        c = c * 16 + d;
    }
    j->p += 4;
    *ret = c;
    return 0;
}

static char *put_utf8(char *o, uint32_t c) {
    if (c < 0x80) {
        *o++ = (char)c;
    } else if (c < 0x800) {
        *o++ = (char)(0xC0 | c >> 6);
        *o++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *o++ = (char)(0xE0 | c >> 12);
        *o++ = (char)(0x80 | (c >> 6 & 0x3F));
        *o++ = (char)(0x80 | (c & 0x3F));
    } else {
        *o++ = (char)(0xF0 | c >> 18);
        *o++ = (char)(0x80 | (c >> 12 & 0x3F));
        *o++ = (char)(0x80 | (c >> 6 & 0x3F));
        *o++ = (char)(0x80 | (c & 0x3F));
    }
    return o;
}

/* After the backslash. At most 6 bytes of text become at most 3, 12 at most 4. */
static int escape(struct json *j, char **o) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (j->p == j->end) return fail(j, j->p, "a string is not closed");
    char c = *j->p++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *(*o)++ = to[simple - from];
        return 0;
    }
    if (c != 'u') return fail(j, j->p - 1, "unknown escape in a string");
    uint32_t hi = 0, lo = 0;
    if (hex4(j, &hi)) return j->e->code;
    if (hi >= 0xD800 && hi < 0xDC00 && j->end - j->p >= 6 && j->p[0] == '\\' && j->p[1] == 'u') {
        const char *back = j->p;
        j->p += 2;
        if (hex4(j, &lo)) return j->e->code;
        if (lo >= 0xDC00 && lo < 0xE000) {
            *o = put_utf8(*o, 0x10000 + ((hi - 0xD800) << 10) + (lo - 0xDC00));
            return 0;
        }
        j->p = back;
    }
    *o = put_utf8(*o, hi >= 0xD800 && hi < 0xE000 ? 0xFFFD : hi);
    return 0;
}

/* At the opening quote. */
static int string(struct json *j, struct pn_value *ret) {
    const char *quote = j->p++, *close = j->p;
    while (close < j->end && *close != '"') close += *close == '\\' && close + 1 < j->end ? 2 : 1;
    if (close >= j->end) return fail(j, quote, "a string is not closed");
    char *buf = fo_region_alloc(j->r, (size_t)(close - j->p) + 1), *o = buf;
    if (!buf) return pn_region_full(j->r, j->e);
    while (j->p < close) {
        if (*j->p == '\\') {
            j->p++;
            if (escape(j, &o)) return j->e->code;
            continue;
        }
        if ((unsigned char)*j->p < 0x20) return fail(j, j->p, "a control character must be escaped in a string");
        *o++ = *j->p++;
    }
    size_t len = (size_t)(o - buf), ok = pn_utf8_valid(buf, len);
    if (ok < len) return fail(j, quote, "a string is not UTF-8");
    j->p = close + 1;
    return pn_str_view(j->r, buf, len, PN_BY_USER, ret) ? 0 : pn_region_full(j->r, j->e);
}

static const char *digits(const char *p, const char *end) {
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

static int number(struct json *j, struct pn_value *ret) {
    const char *start = j->p, *p = start, *d;
    bool real = false;
    if (*p == '-') p++;
    d = digits(p, j->end);
    if (d == p) return fail(j, start, "a value was expected here");
    if (*p == '0' && d > p + 1) return fail(j, start, "a number starts with 0");
    p = d;
    if (p < j->end && *p == '.') {
        d = digits(++p, j->end);
        if (d == p) return fail(j, start, "a number lacks digits after its point");
        p = d;
        real = true;
    }
    if (p < j->end && (*p | 32) == 'e') {
        p++;
        if (p < j->end && (*p == '+' || *p == '-')) p++;
        d = digits(p, j->end);
        if (d == p) return fail(j, start, "a number lacks digits in its exponent");
        p = d;
        real = true;
    }
    char *copy = fo_region_strndup(j->r, start, (size_t)(p - start));
    if (!copy) return pn_region_full(j->r, j->e);
    j->p = p;
    if (real) {
        *ret = (struct pn_value){ .kind = PN_V_FLOAT, .mark = PN_BY_USER, .f = strtod(copy, NULL) };
        return 0;
    }
    errno = 0;
    long long i = strtoll(copy, NULL, 10);
    if (errno == 0) {
        *ret = (struct pn_value){ .kind = PN_V_INT, .mark = PN_BY_USER, .i = i };
        return 0;
    }
    if (!pn_str_view(j->r, copy, (size_t)(p - start), PN_BY_USER, ret)) return pn_region_full(j->r, j->e);
    ret->kind = PN_V_FLOAT;
    ret->big = 1;
    return 0;
}

static int word(struct json *j, struct pn_value *ret) {
    static const struct {
        const char *text;
        struct pn_value v;
    } words[] = { { "true", { .kind = PN_V_BOOL, .b = true } }, { "false", { .kind = PN_V_BOOL } }, { "null", { .kind = PN_V_NULL } } };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].text);
        if ((size_t)(j->end - j->p) < n || memcmp(j->p, words[i].text, n) != 0) continue;
        j->p += n;
        *ret = words[i].v;
        ret->mark = PN_BY_USER;
        return 0;
    }
    return number(j, ret);
}

/* Makes the innermost container out of its elements. */
static int close_container(struct json *j, struct pn_value *ret) {
    size_t from = j->open[j->n_open - 1].from, n = j->n_items - from;
    struct pn_value *items = n ? j->items + from : NULL;
    int rc;
    if (j->open[j->n_open - 1].dict) {
        n /= 2;
        struct pn_value *k = fo_region_array(j->r, n, sizeof *k), *v = fo_region_array(j->r, n, sizeof *v);
        if (!k || !v) return pn_region_full(j->r, j->e);
        for (size_t i = 0; i < n; i++) {
            k[i] = items[2 * i];
            v[i] = items[2 * i + 1];
        }
        rc = pn_dict_new(j->r, k, v, n, ret, j->e);
    } else {
        rc = pn_list_new(j->r, items, n, PN_SEQ_LIST, ret, j->e);
    }
    if (rc) return rc;
    ret->mark = PN_BY_USER;
    j->n_items = from;
    j->n_open--;
    return 0;
}

static int key(struct json *j) {
    struct pn_value k;
    skip_space(j);
    if (j->p == j->end || *j->p != '"') return fail(j, j->p, "a key in quotes was expected here");
    if (string(j, &k) || push(j, k)) return j->e->code;
    skip_space(j);
    if (j->p == j->end || *j->p != ':') return fail(j, j->p, "':' was expected here");
    j->p++;
    return 0;
}

/* Reads one value or opens a container; *ret_open says which. */
static int begin(struct json *j, struct pn_value *ret, bool *ret_open) {
    *ret_open = false;
    skip_space(j);
    if (j->p == j->end) return fail(j, j->p, "the text ends where a value was expected");
    if (*j->p == '"') return string(j, ret);
    if (*j->p != '{' && *j->p != '[') return word(j, ret);
    bool dict = *j->p == '{';
    if (j->n_open == PN_DEPTH_JSON) return fail(j, j->p, "nested too deeply");
    j->open[j->n_open].from = j->n_items;
    j->open[j->n_open++].dict = dict;
    j->p++;
    skip_space(j);
    if (j->p < j->end && *j->p == (dict ? '}' : ']')) {
        j->p++;
        return close_container(j, ret);
    }
    *ret_open = true;
    return dict ? key(j) : 0;
}

static int parse(struct json *j, struct pn_value *ret) {
    for (;;) {
        struct pn_value v;
        bool opened;
        if (begin(j, &v, &opened)) return j->e->code;
        if (opened) continue;
        for (;;) { /* v is complete: it goes into its container, which may be complete with it */
            skip_space(j);
            if (j->n_open == 0) {
                if (j->p < j->end) return fail(j, j->p, "something follows the value");
                *ret = v;
                return 0;
            }
            if (push(j, v)) return j->e->code;
            bool dict = j->open[j->n_open - 1].dict;
            if (j->p < j->end && *j->p == ',') {
                j->p++;
                if (dict && key(j)) return j->e->code;
                break;
            }
            if (j->p == j->end || *j->p != (dict ? '}' : ']'))
                return fail(j, j->p, dict ? "',' or '}' was expected here" : "',' or ']' was expected here");
            j->p++;
            if (close_container(j, &v)) return j->e->code;
        }
    }
}

int pn_value_from_json(struct fo_region *r, const char *json, size_t len, struct pn_value **ret, struct fo_err *e) {
    struct json j = { .r = r, .e = e, .text = json, .p = json, .end = json + len };
    errno = 0;
    struct pn_value *v = fo_region_alloc(r, sizeof *v);
    int rc = v ? parse(&j, v) : pn_region_full(r, e);
    free(j.items);
    if (rc == 0) *ret = v;
    return rc;
}
