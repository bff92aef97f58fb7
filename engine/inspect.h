/* What a model file holds, what serving it would take, and why it cannot be served: the report behind `pantheon inspect`. */
#pragma once
#include <stdbool.h>

struct fo_buf;
struct fo_err;
struct pn_model_opts;

/* Appends the report to `out`, for people or as one JSON object. The numbers are those that a load with these options would take
 * (o->dev is an open device; nothing is allocated on it). *ret_servable tells whether this build can serve the file. Fails only when
 * the file cannot be read as a GGUF at all, or without memory. Blocking; any thread. */
int pn_inspect(const char *path, const struct pn_model_opts *o, bool json, struct fo_buf *out, bool *ret_servable, struct fo_err *e);
