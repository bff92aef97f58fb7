/* What the notations that are text share: see front.h. */
#include "engine/grammar/front.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/unicode.h"

void pn_front_place(struct pn_front *f, size_t at, int *ret_line, int *ret_col) {
    if (at < f->place_at || f->line == 0) f->place_at = 0, f->line = f->col = 1;
    for (; f->place_at < at && f->place_at < f->len; f->place_at++) {
        if (f->text[f->place_at] == '\n')
            f->line++, f->col = 1;
        else if (((unsigned char)f->text[f->place_at] & 0xC0) != 0x80)
            f->col++;
    }
    *ret_line = f->line;
    *ret_col = f->col;
}

int pn_front_fail(struct pn_front *f, size_t at, enum fo_code code, const char *fmt, ...) {
    int line, col;
    pn_front_place(f, at, &line, &col);
    char msg[sizeof f->e->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return (int)fo_fail_at(f->e, code, line, col, "%s", msg);
}

bool pn_front_take(struct pn_front *f, const char *text) {
    size_t n = strlen(text);
    if (f->len - f->at < n || memcmp(f->text + f->at, text, n) != 0) return false;
    f->at += n;
    return true;
}

int pn_front_char(struct pn_front *f, uint32_t *ret) {
    size_t n;
    uint32_t c = fo_utf8_next(f->text + f->at, f->len - f->at, &n);
    if (c == FO_UNICODE_END) return pn_front_fail(f, f->at, FO_EFORMAT, "this is not UTF-8");
    f->at += n;
    *ret = c;
    return 0;
}

int pn_front_hex(struct pn_front *f, int n, uint32_t *ret) {
    size_t from = f->at;
    uint32_t c = 0;
    for (int i = 0; i < n; i++, f->at++) {
        int d = pn_front_peek(f);
        int v = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : d >= 'A' && d <= 'F' ? d - 'A' + 10 : -1;
        if (v < 0) return pn_front_fail(f, f->at, FO_EINVAL, "%d hexadecimal digits are needed here", n);
        c = c << 4 | (uint32_t)v;
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return pn_front_fail(f, from, FO_EINVAL, "U+%04X is no character", c);
    *ret = c;
    return 0;
}

int pn_front_number(struct pn_front *f, uint32_t *ret) {
    size_t from = f->at;
    uint64_t v = 0;
    for (int c; (c = pn_front_peek(f)) >= '0' && c <= '9'; f->at++) {
        v = v * 10 + (uint64_t)(c - '0');
        if (v > INT32_MAX) return pn_front_fail(f, from, FO_ELIMIT, "a count above %d", INT32_MAX);
    }
    if (f->at == from) return pn_front_fail(f, from, FO_EINVAL, "a number is needed here");
    *ret = (uint32_t)v;
    return 0;
}

int pn_front_push(struct pn_front *f, uint32_t node) {
    if (f->n_nodes == f->cap_nodes) {
        size_t cap = f->cap_nodes ? f->cap_nodes * 2 : 64;
        uint32_t *more = realloc(f->nodes, cap * sizeof *more);
        if (!more) return (int)fo_fail(f->e, FO_ENOMEM, "no memory for a grammar");
        f->nodes = more;
        f->cap_nodes = cap;
    }
    f->nodes[f->n_nodes++] = node;
    return pn_ir_state(f->ir, f->e); /* a limit is told where it is passed, and no loop goes on behind it */
}

uint32_t pn_front_seq(struct pn_front *f, size_t from) {
    size_t n = f->n_nodes - from;
    f->n_nodes = from;
    return n == 0 ? pn_ir_empty(f->ir) : pn_ir_seq(f->ir, f->nodes + from, n);
}

uint32_t pn_front_alt(struct pn_front *f, size_t from) {
    size_t n = f->n_nodes - from;
    f->n_nodes = from;
    return n == 0 ? pn_ir_never(f->ir) : pn_ir_alt(f->ir, f->nodes + from, n);
}
