/* A request's body as JSON: looked at before the parser is, so that no client makes it recurse without end or fill the memory. Any
 * thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;
struct pd_error;

/* A body that was parsed. A value: start with all zero. */
struct pd_body {
    struct json_t *root; /* an object */
    uint64_t parts;      /* of it, as counted against what all bodies may have */
};

/* Parses body[0..len), which must be an object. False with the error: not JSON, nested deeper than PD_MAX_JSON_DEPTH, too many values,
 * too many in all bodies together. Give it back in both cases. */
bool pd_body_parse(const char *body, size_t len, struct pd_body *ret, struct pd_error *x);
void pd_body_done(struct pd_body *b);
