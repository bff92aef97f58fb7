/* Region allocation: see region.h. */
#include "foundry/base/region.h"

#include <stdlib.h>
#include <string.h>

struct fo_region_chunk {
    struct fo_region_chunk *next;
    size_t size, used;
    _Alignas(16) unsigned char data[];
};

#ifdef FO_DEBUG
enum { FIRST_CHUNK = 256 }; /* small, so that tests walk the growth path */
#else
enum { FIRST_CHUNK = 4096 };
#endif
enum { LARGEST_CHUNK = 1 << 20 };

void fo_region_init(struct fo_region *r, size_t cap_bytes) {
    *r = (struct fo_region){ .cap_bytes = cap_bytes };
}

void fo_region_done(struct fo_region *r) {
    if (!r) return;
    for (struct fo_region_chunk *c = r->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    fo_region_init(r, r->cap_bytes);
}

void *fo_region_alloc(struct fo_region *r, size_t bytes) {
    if (bytes > r->cap_bytes || bytes > SIZE_MAX - 15 - sizeof(struct fo_region_chunk)) return NULL;
    size_t want = (bytes + 15) & ~(size_t)15;
    struct fo_region_chunk *c = r->chunks;
    if (!c || c->size - c->used < want) {
        size_t size = c ? c->size * 2 : FIRST_CHUNK;
        if (size > LARGEST_CHUNK) size = LARGEST_CHUNK;
        if (size < want) size = want;
        if (size > r->cap_bytes - r->used_bytes) size = r->cap_bytes - r->used_bytes;
        if (size < want) return NULL;
        struct fo_region_chunk *fresh = calloc(1, sizeof *fresh + size);
        if (!fresh) return NULL;
        fresh->size = size;
        fresh->next = c;
        r->chunks = c = fresh;
        r->used_bytes += size;
    }
    void *p = c->data + c->used;
    c->used += want;
    return p;
}

void *fo_region_array(struct fo_region *r, size_t n, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : fo_region_alloc(r, bytes);
}

char *fo_region_strndup(struct fo_region *r, const char *s, size_t len) {
    if (len == SIZE_MAX) return NULL;
    char *p = fo_region_alloc(r, len + 1);
    if (p) memcpy(p, s, len);
    return p;
}
