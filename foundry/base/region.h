/* Region allocation: many small objects with one lifetime (a parsed file, one template render), freed together. Grows in
 * chunks up to a hard cap, so that hostile input cannot take more than its share. Memory comes zeroed and aligned to 16. Not
 * thread-safe: one owner. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_region_chunk;

struct fo_region {
    struct fo_region_chunk *chunks; /* newest first */
    size_t cap_bytes;               /* most the chunks may hold together */
    size_t used_bytes;              /* taken from the heap so far */
};

void fo_region_init(struct fo_region *r, size_t cap_bytes);

/* Frees everything; the region may be used again. NULL is allowed. */
void fo_region_done(struct fo_region *r);

/* `bytes` zeroed bytes, valid until fo_region_done. NULL when the cap is passed or the heap is empty: the caller reports
 * FO_ELIMIT or FO_ENOMEM with its own place. */
void *fo_region_alloc(struct fo_region *r, size_t bytes);

/* n * size bytes, checked for overflow. */
void *fo_region_array(struct fo_region *r, size_t n, size_t size);

/* Copies s[0..len) and adds a NUL. */
char *fo_region_strndup(struct fo_region *r, const char *s, size_t len);
