/* Pull reader of JSON: see json.h. */
#include "foundry/json.h"

#include <string.h>

#include "foundry/base/err.h"

struct fo_json fo_json_over(const char *text, size_t n, const char *name, uint64_t base, struct fo_err *e) {
    return (struct fo_json){ .start = text, .p = text, .end = text + n, .name = name, .base = base, .e = e };
}

int fo_json_fail(struct fo_json *j, const char *what) {
    return (int)fo_fail(j->e, FO_EFORMAT, "%s: offset %llu: %s", j->name, (unsigned long long)(j->base + (uint64_t)(j->p - j->start)), what);
}

static void skip_space(struct fo_json *j) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r')) j->p++;
}

/* The next character that counts; 0 at the end. */
static char next(struct fo_json *j) {
    skip_space(j);
    return j->p < j->end ? *j->p : '\0';
}

static int expect(struct fo_json *j, char c, const char *what) {
    if (next(j) != c || j->p == j->end) return fo_json_fail(j, what);
    j->p++;
    return FO_OK;
}

int fo_json_open(struct fo_json *j, char bracket) {
    return expect(j, bracket, bracket == '{' ? "expected an object" : "expected an array");
}

int fo_json_more(struct fo_json *j, char closing, bool first, bool *ret_more) {
    char c = next(j);
    *ret_more = c != closing || j->p == j->end;
    if (!*ret_more) {
        j->p++;
        return FO_OK;
    }
    if (first) return FO_OK;
    if (expect(j, ',', closing == '}' ? "expected ',' or '}'" : "expected ',' or ']'")) return (int)j->e->code;
    return next(j) == closing ? fo_json_fail(j, "an element is missing behind ','") : FO_OK;
}

/* --- text --- */

static int hex4(struct fo_json *j, uint32_t *ret) {
    uint32_t v = 0;
    if (j->end - j->p < 4) return fo_json_fail(j, "\\u needs four hex digits");
    for (int i = 0; i < 4; i++) {
        char c = j->p[i], low = (char)(c | 32);
        if (c >= '0' && c <= '9') v = v * 16 + (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f') v = v * 16 + (uint32_t)(low - 'a' + 10);
        else return fo_json_fail(j, "\\u needs four hex digits");
    }
    j->p += 4;
    *ret = v;
    return FO_OK;
}

/* What a backslash and what follows stand for, as UTF-8. */
static int escape(struct fo_json *j, char out[3], size_t *ret_len) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = j->p < j->end ? *j->p++ : '\0';
    const char *known = c ? strchr(names, c) : NULL;
    *ret_len = 1;
    if (known) {
        out[0] = values[known - names];
        return FO_OK;
    }
    uint32_t u = 0;
    if (c != 'u') return fo_json_fail(j, "no such escape");
    if (hex4(j, &u)) return (int)j->e->code;
    if (u == 0) return fo_json_fail(j, "a NUL in a text");
    if (u >= 0xD800 && u <= 0xDFFF) return fo_json_fail(j, "a surrogate in a text");
    if (u < 0x80) {
        out[0] = (char)u;
    } else if (u < 0x800) {
        out[0] = (char)(0xC0 | u >> 6);
        out[1] = (char)(0x80 | (u & 63));
        *ret_len = 2;
    } else {
        out[0] = (char)(0xE0 | u >> 12);
        out[1] = (char)(0x80 | (u >> 6 & 63));
        out[2] = (char)(0x80 | (u & 63));
        *ret_len = 3;
    }
    return FO_OK;
}

int fo_json_str(struct fo_json *j, char *out, size_t size, size_t *ret_len) {
    size_t n = 0, len;
    if (expect(j, '"', "expected a text")) return (int)j->e->code;
    for (;;) {
        char piece[3];
        len = 1;
        if (j->p == j->end) return fo_json_fail(j, "the text ends within quotes");
        piece[0] = *j->p++;
        if (piece[0] == '"') break;
        if ((unsigned char)piece[0] < 0x20) return fo_json_fail(j, "a control character in a text");
        if (piece[0] == '\\' && escape(j, piece, &len)) return (int)j->e->code;
        if (len >= size - n) return fo_json_fail(j, "the text is too long");
        memcpy(out + n, piece, len);
        n += len;
    }
    out[n] = '\0';
    if (ret_len) *ret_len = n;
    return FO_OK;
}

int fo_json_key(struct fo_json *j, char *out, size_t size, size_t *ret_len) {
    if (fo_json_str(j, out, size, ret_len)) return (int)j->e->code;
    return expect(j, ':', "expected ':'");
}

/* --- other values --- */

int fo_json_u64(struct fo_json *j, uint64_t *ret) {
    uint64_t v = 0;
    char c = next(j);
    if (c < '0' || c > '9') return fo_json_fail(j, "expected a whole number");
    const char *from = j->p;
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*j->p - '0'), &v))
            return fo_json_fail(j, "the number is too large");
    if (*from == '0' && j->p - from > 1) return fo_json_fail(j, "a number must not begin with 0");
    if (j->p < j->end && (*j->p == '.' || *j->p == 'e' || *j->p == 'E')) return fo_json_fail(j, "expected a whole number");
    *ret = v;
    return FO_OK;
}

/* Steps over a text without looking at its escapes. */
static int skip_text(struct fo_json *j) {
    for (j->p++; j->p < j->end && *j->p != '"'; j->p++)
        if (*j->p == '\\' && j->p + 1 < j->end) j->p++;
    return expect(j, '"', "the text ends within quotes");
}

static int skip_plain(struct fo_json *j) {
    static const char *const words[] = { "true", "false", "null" };
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->p) < n || memcmp(j->p, words[i], n) != 0) continue;
        j->p += n;
        return FO_OK;
    }
    const char *from = j->p;
    while (j->p < j->end && strchr("+-.0123456789eE", *j->p) && *j->p) j->p++;
    return j->p == from ? fo_json_fail(j, "expected a value") : FO_OK;
}

int fo_json_skip(struct fo_json *j) {
    char closing[FO_JSON_DEPTH];
    int depth = 0;
    do {
        char c = next(j);
        bool more = true, opened = c == '{' || c == '[';
        if (opened) {
            if (depth == FO_JSON_DEPTH) return fo_json_fail(j, "nested too deeply");
            closing[depth++] = c == '{' ? '}' : ']';
            j->p++;
        } else if (c == '"' ? skip_text(j) : skip_plain(j)) {
            return (int)j->e->code;
        }
        /* behind a value, or at the start of a container: what closes here, and whether an element follows */
        while (depth > 0) {
            if (fo_json_more(j, closing[depth - 1], opened, &more)) return (int)j->e->code;
            opened = false;
            if (more) break;
            depth--;
        }
        if (depth > 0 && closing[depth - 1] == '}') {
            if (next(j) != '"') return fo_json_fail(j, "expected a text");
            if (skip_text(j) || expect(j, ':', "expected ':'")) return (int)j->e->code;
        }
    } while (depth > 0);
    return FO_OK;
}

int fo_json_end(struct fo_json *j) {
    skip_space(j);
    return j->p == j->end ? FO_OK : fo_json_fail(j, "more text behind the end");
}
