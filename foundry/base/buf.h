/* A growable byte buffer with a hard cap. Failure is sticky: after an append that does not fit (cap or heap) every later one is
 * ignored and `failed` stays set, so that a writer checks once, at the end. The bytes are always followed by a NUL that is not
 * counted. Not thread-safe: one owner. */
#pragma once
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>

struct fo_buf {
    char *data; /* [len + 1] once something was appended, else NULL */
    size_t len, size;
    size_t cap_bytes; /* `len` never passes it */
    bool failed;
};

void fo_buf_init(struct fo_buf *b, size_t cap_bytes);
void fo_buf_done(struct fo_buf *b);  /* frees; may be used again */
void fo_buf_clear(struct fo_buf *b); /* empties, keeps the memory, forgets a failure */

/* All return false once the buffer has failed. */
bool fo_buf_reserve(struct fo_buf *b, size_t n); /* room for n more bytes: appending them needs no memory */
bool fo_buf_append(struct fo_buf *b, const void *bytes, size_t n);
bool fo_buf_puts(struct fo_buf *b, const char *s);
bool fo_buf_putc(struct fo_buf *b, char c);
bool fo_buf_printf(struct fo_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool fo_buf_vprintf(struct fo_buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* The bytes as a C string; "" when empty. Valid until the next change. */
const char *fo_buf_str(const struct fo_buf *b);

/* Gives the memory to the caller (free it with free); the buffer is empty again. NULL when it failed or holds nothing. */
char *fo_buf_steal(struct fo_buf *b);
