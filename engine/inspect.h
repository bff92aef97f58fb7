/* What a model file holds, what serving it would take, and why it cannot be served: the report behind `pantheon inspect`. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;
struct pn_model_opts;

/* What one die of a split would hold. */
struct pn_inspect_part {
    const char *die;
    uint32_t first_layer, n_layers;
    uint64_t weights_bytes, kv_bytes, scratch_bytes;
};

/* Appends the report to `out`, for people or as one JSON object. The numbers are those that a load with these options would take
 * (o->dev is an open device; nothing is allocated on it). `parts` [n_parts] are shown as a table, die by die (0 = no
 * table). *ret_servable tells whether this build can serve the file. Fails only when
 * the file cannot be read as a GGUF at all, or without memory. Blocking; any thread. */
int pn_inspect(const char *path, const struct pn_model_opts *o, const struct pn_inspect_part *parts, size_t n_parts, bool json, struct fo_buf *out, bool *ret_servable, struct fo_err *e);
