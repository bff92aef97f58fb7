/* A bounded little-endian reader for untrusted bytes. Reading past the end returns zero and sets `bad`, which stays set: a
 * parser reads a whole record and checks once. Positions only move forward and never leave the block. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct fo_cursor {
    const uint8_t *start, *p, *end;
    bool bad;
};

static inline struct fo_cursor fo_cursor_over(const void *bytes, size_t n) {
    const uint8_t *b = bytes;
    return (struct fo_cursor){ .start = b, .p = b, .end = b + n };
}

static inline size_t fo_cursor_offset(const struct fo_cursor *c) {
    return (size_t)(c->p - c->start);
}

static inline size_t fo_cursor_left(const struct fo_cursor *c) {
    return (size_t)(c->end - c->p);
}

/* n bytes in place, or NULL (and bad). */
static inline const uint8_t *fo_cursor_take(struct fo_cursor *c, uint64_t n) {
    if (c->bad || n > fo_cursor_left(c)) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    return p;
}

#define FO_CURSOR_READ(name, type)                                \
    static inline type name(struct fo_cursor *c) {                \
        type v = 0;                                               \
        const uint8_t *p = fo_cursor_take(c, sizeof v);           \
        if (p) memcpy(&v, p, sizeof v);                           \
        return v;                                                 \
    }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are little endian and so must the host be");
FO_CURSOR_READ(fo_cursor_u8, uint8_t)
FO_CURSOR_READ(fo_cursor_u16, uint16_t)
FO_CURSOR_READ(fo_cursor_u32, uint32_t)
FO_CURSOR_READ(fo_cursor_u64, uint64_t)
FO_CURSOR_READ(fo_cursor_f32, float)
FO_CURSOR_READ(fo_cursor_f64, double)
#undef FO_CURSOR_READ
