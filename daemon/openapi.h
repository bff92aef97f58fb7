/* /openapi.json: the API as OpenAPI 3.1, made of the tables of routes, fields and errors. */
#pragma once
#include <stddef.h>

struct json_t;

/* The document, a new reference; NULL without memory. Any thread. */
struct json_t *pd_openapi(void);

/* Row i of what is said here of single fields and of answers, for the test that they say it of something: a field's name with the PD_API_...
 * bits whose it is, or a path with 0. NULL past the last. */
const char *pd_openapi_said(size_t i, unsigned *ret_api);
