/* A tensor is a value: type, shape and where its bytes are. It owns nothing. Rows (dimension 0) are contiguous; the other
 * dimensions follow without gaps, as in GGUF (ne[0] is the fastest). */
#pragma once
#include <stdint.h>

#include "foundry/dtype.h"

enum { FO_MAX_DIMS = 4 };

struct fo_tensor {
    enum fo_dtype type;
    int64_t ne[FO_MAX_DIMS]; /* unused dimensions are 1 */
    void *data;              /* host or device address, as the device that runs the op expects; read-only for weights */
};

static inline struct fo_tensor fo_tensor_2d(enum fo_dtype type, int64_t ne0, int64_t ne1, void *data) {
    return (struct fo_tensor){ .type = type, .ne = { ne0, ne1, 1, 1 }, .data = data };
}

static inline int64_t fo_tensor_rows(const struct fo_tensor *t) {
    return t->ne[1] * t->ne[2] * t->ne[3];
}

static inline uint64_t fo_tensor_bytes(const struct fo_tensor *t) {
    return fo_dtype_bytes(t->type, (uint64_t)t->ne[0]) * (uint64_t)fo_tensor_rows(t);
}
