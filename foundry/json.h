/* Reads JSON (RFC 8259) piece by piece where it lies, for large files whose shape is known: nothing is allocated and nothing recurses, so
 * hostile text costs its own length and no more. The caller asks for what the format has at that place; anything else is FO_EFORMAT naming
 * the file and the byte offset. After an error nothing more is read. One owner. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;

struct fo_json {
    const char *start, *p, *end;
    const char *name; /* of the file, in errors */
    uint64_t base;    /* offset of `start` in it */
    struct fo_err *e;
};

enum { FO_JSON_DEPTH = 64 /* of what fo_json_skip steps over */ };

struct fo_json fo_json_over(const char *text, size_t n, const char *name, uint64_t base, struct fo_err *e);

/* Steps over the opening '{' or '['. */
int fo_json_open(struct fo_json *j, char bracket);
/* Whether another element follows: steps over a ',' between elements, or over the closing bracket. `first`: none was read yet. */
int fo_json_more(struct fo_json *j, char closing, bool first, bool *ret_more);
/* A member's name and the ':' behind it, or a text value, into out[size] with a NUL; *ret_len may be NULL. No NUL within, no surrogate
 * pairs (\ud83d\ude00), at most size - 1 bytes. */
int fo_json_key(struct fo_json *j, char *out, size_t size, size_t *ret_len);
int fo_json_str(struct fo_json *j, char *out, size_t size, size_t *ret_len);
/* A whole number below 2^64, without sign, point or exponent. */
int fo_json_u64(struct fo_json *j, uint64_t *ret);
/* Any value. Checks its form, but no number's and no escape's. */
int fo_json_skip(struct fo_json *j);
/* Nothing but white space follows. */
int fo_json_end(struct fo_json *j);
/* FO_EFORMAT at the place reached. */
int fo_json_fail(struct fo_json *j, const char *what);
