/* What every overlay's dots and attention share: the copies of a template for 1 to FO_TILE activation rows, and for 1 to FO_ATTN_HEADS
 * query heads. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "foundry/cpu/kernels.h"

#define EACH(X) X(0) X(1) X(2) X(3)
_Static_assert(FO_TILE == 4, "EACH has four");

/* A dot slot from a template whose last parameter is the number of activation rows, a constant in each copy. */
#define DOT_SLOT(name, template, kind)                                                                                                            \
    static void name(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, int n_t, float *y,   \
                     size_t y_stride) {                                                                                                  \
        switch (n_t) {                                                                                                                   \
        case 1: template(kind, w, w_row_bytes, n_rows, a, t, y, y_stride, 1); break;                                                       \
        case 2: template(kind, w, w_row_bytes, n_rows, a, t, y, y_stride, 2); break;                                                       \
        case 3: template(kind, w, w_row_bytes, n_rows, a, t, y, y_stride, 3); break;                                                       \
        default: template(kind, w, w_row_bytes, n_rows, a, t, y, y_stride, 4); break;                                                      \
        }                                                                                                                                \
    }

_Static_assert(FO_ATTN_HEADS == 4, "the slots below have four");

/* The attention slots from a template whose last parameter is the number of queries, a constant in each copy. */
#define QK_SLOT(name, template, kind)                                                                                                    \
    static void name(const void *q, int n_q, int head_dim, const struct fo_kv_run *k, float scale, float *s) {                           \
        switch (n_q) {                                                                                                                   \
        case 1: template(kind, q, head_dim, k, scale, s, 1); break;                                                                      \
        case 2: template(kind, q, head_dim, k, scale, s, 2); break;                                                                      \
        case 3: template(kind, q, head_dim, k, scale, s, 3); break;                                                                      \
        default: template(kind, q, head_dim, k, scale, s, 4); break;                                                                     \
        }                                                                                                                                \
    }
#define PV_SLOT(name, template, kind)                                                                                                    \
    static void name(const float *s, const float *r, int n_q, int head_dim, const struct fo_kv_run *v, float *out) {                     \
        switch (n_q) {                                                                                                                   \
        case 1: template(kind, s, r, head_dim, v, out, 1); break;                                                                        \
        case 2: template(kind, s, r, head_dim, v, out, 2); break;                                                                        \
        case 3: template(kind, s, r, head_dim, v, out, 3); break;                                                                        \
        default: template(kind, s, r, head_dim, v, out, 4); break;                                                                       \
        }                                                                                                                                \
    }
