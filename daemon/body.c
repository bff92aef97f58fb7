/* See body.h. */
#include "daemon/body.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "daemon/oai.h"
#include "daemon/params.h"

/* Of all bodies that are parsed now: see check_size. */
static atomic_uint_fast64_t parts_held;

/* Looks before the parser does, which recurses, and makes of three bytes an object of a hundred and more. False with the error. */
static bool check_size(const char *s, size_t n, struct pd_body *b, struct pd_error *x) {
    /* of about 48 bytes each: a list or an object takes four of them, a text or a member's name another two */
    enum { LIST = 4, TEXT = 2, MAX_PARTS = 4 << 20, BODIES_AT_ONCE = 4 };
    uint64_t parts = 0;
    int depth = 0;
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        if (text) {
            if (s[i] == '\\') i++;
            else if (s[i] == '"') text = false;
        } else if (s[i] == '"') {
            text = true;
            parts += TEXT;
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > PD_MAX_JSON_DEPTH) return pd_error_set(x, PD_ERR_INVALID, NULL, "The body is nested deeper than %d levels.", PD_MAX_JSON_DEPTH);
            parts += LIST;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        } else if (s[i] == ',') {
            parts++;
        }
    }
    if (parts > MAX_PARTS) return pd_error_set(x, PD_ERR_VALUE, NULL, "The body has too many values: it may have %d numbers, or a quarter as many lists.", MAX_PARTS);
    b->parts = parts; /* pd_body_done gives them back */
    return atomic_fetch_add(&parts_held, parts) + parts <= (uint64_t)BODIES_AT_ONCE * MAX_PARTS || pd_error_memory(x);
}

/* The field of the body's own that the byte before `at` is in the value of: its name as it is written, NULL where that has an escape. */
static const char *field_at(const char *s, size_t at, size_t *ret_len) {
    const char *name = NULL;
    int depth = 0;
    size_t begin = 0; /* of a text that is under way, behind its quote; 0 = none */
    for (size_t i = 0; i < at; i++) {
        if (begin) {
            if (s[i] == '\\') {
                i++;
                continue;
            }
            if (s[i] != '"') continue;
            if (depth == 1 && !name) name = s + begin, *ret_len = i - begin;
            begin = 0;
        } else if (s[i] == '"') {
            begin = i + 1;
        } else if (s[i] == '[' || s[i] == '{') {
            depth++;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        } else if (s[i] == ',' && depth == 1) {
            name = NULL;
        }
    }
    return name && !memchr(name, '\\', *ret_len) ? name : NULL;
}

/* A number beyond what is held. It is JSON all the same. */
static bool too_large(const char *body, size_t len, const json_error_t *err, struct pd_error *x) {
    static const char way[] = "whole numbers go from -9223372036854775808 to 9223372036854775807, others to 1.7e308";
    size_t n = 0, at = err->position > 0 ? (size_t)err->position : 0;
    const char *name = field_at(body, at < len ? at : len, &n);
    if (!name || n >= sizeof x->param) return pd_error_set(x, PD_ERR_VALUE, NULL, "The number at line %d, column %d is out of range: %s.", err->line, err->column, way);
    pd_error_set(x, PD_ERR_VALUE, NULL, "'%.*s': the number at line %d, column %d is out of range: %s.", (int)n, name, err->line, err->column, way);
    snprintf(x->param, sizeof x->param, "%.*s", (int)n, name);
    return false;
}

bool pd_body_parse(const char *body, size_t len, struct pd_body *ret, struct pd_error *x) {
    json_error_t err;
    if (len == 0) return pd_error_set(x, PD_ERR_INVALID, NULL, "The body is empty; a JSON object is needed.");
    if (!check_size(body, len, ret, x)) return false;
    ret->root = json_loadb(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &err);
    if (!ret->root) {
        if (json_error_code(&err) == json_error_out_of_memory || !err.text[0]) return pd_error_memory(x); /* most of its allocations fail without a word */
        if (json_error_code(&err) == json_error_numeric_overflow) return too_large(body, len, &err, x);
        for (char *c = err.text; *c; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F) *c = '?'; /* it quotes the body, which may not be UTF-8 */
        return pd_error_set(x, PD_ERR_INVALID, NULL, "The body is not JSON: line %d, column %d: %s", err.line, err.column, err.text);
    }
    if (!json_is_object(ret->root)) return pd_error_set(x, PD_ERR_INVALID, NULL, "The body is not a JSON object.");
    return true;
}

void pd_body_done(struct pd_body *b) {
    json_decref(b->root);
    atomic_fetch_sub(&parts_held, b->parts);
}
