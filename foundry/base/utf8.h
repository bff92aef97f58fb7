/* Text that is known to be UTF-8. What may be broken: foundry/unicode.h. Pure functions. */
#pragma once
#include <stddef.h>

/* Characters that begin in text[0..n). */
static inline size_t fo_utf8_count(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}
