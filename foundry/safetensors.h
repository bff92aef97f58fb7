/* The safetensors format (its specification is the README of huggingface/safetensors):
 *
 *     u64 length, little endian | JSON, `length` bytes | data
 *
 *     JSON: { "NAME": { "dtype": "BF16", "shape": [352, 256], "data_offsets": [0, 180224] }, ..., "__metadata__": { texts } }
 *
 * Offsets count from the start of the data. The tensors cover the data wholly, without gap or overlap. */
#pragma once
#include <stddef.h>

#include "foundry/tensor.h"

struct fo_err;
struct fo_map;

enum { FO_SAFETENSORS_NAME = 256 /* bytes of a name, with its NUL */ };

/* A tensor as a file has it; the shape the other way round (ne[0] is the fastest). The name is the reader's, for the length of the call. */
struct fo_safetensor {
    const char *name;
    struct fo_tensor t; /* data points into the bytes, at any alignment */
    uint64_t offset, bytes;
};

/* Calls `each` for every tensor, in the order of the header, and then checks that they cover the data. A code of `each` other than 0, with
 * *e set, ends the reading with it. FO_EFORMAT names the file, the tensor and what is wrong; FO_EUNSUPPORTED a type other than F32, F16
 * and BF16; FO_ELIMIT a header past 64 MiB or more than 65,536 tensors; FO_ENOMEM. Any thread. */
int fo_safetensors_read(const void *bytes, uint64_t n, const char *file, int (*each)(void *ctx, const struct fo_safetensor *t, struct fo_err *e),
                        void *ctx, struct fo_err *e);

/* model.safetensors.index.json, which says in which of several files each tensor is: calls `each` with every pair of weight_map, in order. The
 * names are the reader's, for the length of the call; nothing is known of them. Errors as above. */
int fo_safetensors_index(const char *text, size_t n, const char *file, int (*each)(void *ctx, const char *tensor, const char *in, struct fo_err *e), void *ctx,
                         struct fo_err *e);
