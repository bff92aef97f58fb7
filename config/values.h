/* Rows over C objects: what schema.h does for reading, this does for values that exist already. Written, copied and compared by the same
 * table, so that a key added there is kept, shown and planned for. Pure; any thread. */
#pragma once
#include <stddef.h>

struct cf_diff;
struct cf_keys;
struct fo_buf;
struct fo_err;
struct fo_region;

/* Appends the object as JSON: every key that has a value. */
void cf_values_write(const struct cf_keys *keys, const void *object, struct fo_buf *out);

/* Replaces every text and list in *object, a flat copy of another object, by a copy of its own. FO_ENOMEM. */
int cf_values_own(const struct cf_keys *keys, void *object, struct fo_region *r, struct fo_err *e);

/* Writes the keys that differ to ret[cap] and returns how many. `but`: names of rows of this table to leave out, NULL-terminated. */
size_t cf_values_diff(const struct cf_keys *keys, const void *was, const void *is, const char *const *but, struct cf_diff *ret, size_t cap);
