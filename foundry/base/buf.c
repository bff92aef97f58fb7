/* Growable byte buffer: see buf.h. */
#include "foundry/base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FO_DEBUG
enum { FIRST = 16 };
#else
enum { FIRST = 256 };
#endif

void fo_buf_init(struct fo_buf *b, size_t cap_bytes) {
    *b = (struct fo_buf){ .cap_bytes = cap_bytes };
}

void fo_buf_done(struct fo_buf *b) {
    free(b->data);
    fo_buf_init(b, b->cap_bytes);
}

void fo_buf_clear(struct fo_buf *b) {
    b->len = 0;
    b->failed = false;
    if (b->data) b->data[0] = '\0';
}

bool fo_buf_reserve(struct fo_buf *b, size_t n) {
    size_t want;
    if (b->failed) return false;
    if (n > b->cap_bytes - b->len || __builtin_add_overflow(b->len, n, &want) || __builtin_add_overflow(want, (size_t)1, &want))
        return !(b->failed = true);
    if (b->data && want <= b->size) return true;
    size_t size = b->size ? b->size : FIRST;
    while (size < want) size = size > SIZE_MAX / 2 ? want : size * 2;
    char *p = realloc(b->data, size);
    if (!p) return !(b->failed = true);
    b->data = p;
    b->size = size;
    return true;
}

bool fo_buf_append(struct fo_buf *b, const void *bytes, size_t n) {
    if (!fo_buf_reserve(b, n)) return false;
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
    return true;
}

bool fo_buf_puts(struct fo_buf *b, const char *s) {
    return fo_buf_append(b, s, strlen(s));
}

bool fo_buf_putc(struct fo_buf *b, char c) {
    return fo_buf_append(b, &c, 1);
}

bool fo_buf_vprintf(struct fo_buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    bool ok = n >= 0 && fo_buf_reserve(b, (size_t)n);
    if (ok) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return ok;
}

bool fo_buf_printf(struct fo_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    bool ok = fo_buf_vprintf(b, fmt, ap);
    va_end(ap);
    return ok;
}

const char *fo_buf_str(const struct fo_buf *b) {
    return b->data ? b->data : "";
}

char *fo_buf_steal(struct fo_buf *b) {
    char *p = b->failed ? NULL : b->data;
    if (b->failed) free(b->data);
    fo_buf_init(b, b->cap_bytes);
    return p;
}
