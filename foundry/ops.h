/* Ops: each checks its shapes, then calls the device's slot. A shape that does not fit is a bug of the caller and comes back as
 * FO_EINTERNAL with both shapes, never as a wild write. All activations are float32, row-major, one row a token. Called by the
 * worker that owns the stream; the buffers are the device's. Outputs may alias inputs only where said. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "foundry/tensor.h"

struct fo_err;
struct fo_stream;

/* out[i][0..k) = row ids[i] of table [rows, k], dequantised. ids are checked against the rows. */
int fo_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e);

/* y[n][rows] = x[n][k] . w[rows][k]: the activations are converted to the weight type's `act` type first (exact mode: the weights
 * to f32 instead). A row of y depends only on its own row of x: not on n, nor on the number of threads. */
int fo_matmul(struct fo_stream *s, const struct fo_tensor *w, const float *x, int n, float *y, struct fo_err *e);

/* Several matrices that share their input (q,k,v; gate,up): y[i] = x . w[i]; the activations are converted once per act type. */
int fo_matmul_many(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y, struct fo_err *e);

/* What may be done on the way into matrices and out of them, without a pass over memory of its own. The results are the same, bit for bit, as of the
 * ops that it stands for, which serve where a device has no slot for it. */
struct fo_fused {
    const float *norm; /* [k]: the input is rms_norm(x, norm, eps); NULL = x itself */
    float eps;
    float *work;   /* [n][k], with norm: what is left in it is not said */
    bool gated;    /* of two matrices of one shape: y[0] = silu_mul(y[0], y[1]); y[1] is then scratch */
    float *add_to; /* [n][rows] or NULL: of one matrix: add_to += y[0], which is then scratch; may be x */
};
int fo_matmul_fused(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                    struct fo_err *e);

/* out = x / sqrt(mean(x^2) + eps) * weight, over rows of k. out may be x. */
int fo_rms_norm(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e);

/* out = a + b over [n][k]; with broadcast_b b is one row [k] (a bias). out may be a or b. */
int fo_add(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e);

/* out[row[i]] += scale[i] * a[i] over [n][k], out [n_out][k]. row and scale are the host's; rows are checked against n_out, ascend, and come
 * once each. */
int fo_add_rows(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out, struct fo_err *e);

/* out = gate / (1 + exp(-gate)) * up over [n][k]. out may be gate or up. */
int fo_silu_mul(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e);

/* Rotary embedding (Su et al., RoFormer, arXiv 2104.09864). */
enum fo_rope_kind {
    FO_ROPE_PAIRS, /* rotates (2i, 2i+1): GGUF "llama", whose q and k rows are permuted for it */
    FO_ROPE_HALVES /* rotates (i, i + n_rot/2): "NeoX" */
};
struct fo_rope {
    enum fo_rope_kind kind;
    int head_dim, n_rot;       /* n_rot <= head_dim, even: the first n_rot dimensions of a head turn */
    const double *inv_freq;    /* [n_rot / 2] on the host, all scaling folded in by the family */
    float attn_factor;         /* multiplies cos and sin */
};
/* x [n][n_head * head_dim] in place; pos[i] is the position of row i. Angles are computed in double. */
int fo_rope(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e);

/* --- paged KV ----------------------------------------------------------------------------------------------------------------
 * A page holds `page_tokens` consecutive positions of one sequence for ALL layers of a die, so that sharing, evicting and counting
 * need one number a page. What lies where within a page is the device's business; the engine only asks for bytes. */
enum { FO_KV_LAYOUT = 1 }; /* grows whenever what is stored in a page, or where, becomes another: pages that were kept elsewhere are of no use then */
#ifdef FO_DEBUG
enum { FO_KV_PAGE_TOKENS = 4 }; /* small in debug builds, so that page edges are everywhere */
#else
enum { FO_KV_PAGE_TOKENS = 64 };
#endif

struct fo_kv_geom {
    enum fo_dtype k_type, v_type;   /* of a page: FO_F32 (exact), FO_F16; FO_Q8_0, FO_Q4_0 with a head_dim that is a multiple of 32 */
    enum fo_dtype k_floor, v_floor; /* of a small page, likewise; both as above: there are none */
    int n_layer;                  /* layers that keep KV on this die */
    int n_head_kv, head_dim;      /* of both K and V */
    int page_tokens;
    unsigned char *pool;          /* the device block of all pages */
    uint64_t n_pages;
    float scale;                  /* of q.k, usually 1/sqrt(head_dim) */
    int n_head;                   /* query heads, a multiple of n_head_kv */
    int window;                   /* 0 = none; else position i sees j with i - window < j <= i */
};
/* Positions that the K or V of one head in one page has room for: quantised types are kept in groups of eight. */
uint64_t fo_kv_block_tokens(enum fo_dtype type, int page_tokens);
/* Its bytes; 0 when the head does not fit the type, or they pass 2^64. */
uint64_t fo_kv_block_bytes(enum fo_dtype type, int head_dim, int page_tokens);
/* Bytes of one page, a multiple of 64: the same function serves the estimate and the allocation. */
uint64_t fo_kv_page_bytes(const struct fo_kv_geom *g);

/* A page's number says what it is and where it lies. [0, n_pages) are pages of k_type and v_type; page p lies at pool + p * fo_kv_page_bytes(g),
 * which is its place. In a place there may be, instead, up to fo_kv_small(g) small pages, of k_floor and v_floor: number
 * n_pages + p * fo_kv_small(g) + i lies at the place's start + i * fo_kv_small_bytes(g). A sequence's pages may be of both kinds. */
uint32_t fo_kv_small(const struct fo_kv_geom *g);       /* small pages in a place; 0: there are none, for the floors take no less. 1 saves only what is discarded */
uint64_t fo_kv_small_bytes(const struct fo_kv_geom *g); /* of a small page, a multiple of 64; 0: there are none */
/* Where a page lies in the pool, and what it is. */
struct fo_kv_place {
    uint64_t off, bytes;
    enum fo_dtype k_type, v_type;
};
struct fo_kv_place fo_kv_place(const struct fo_kv_geom *g, uint32_t page);
/* Writes page `from`, of either kind, again as small page `to`, all layers and tokens. `to` lies in another place, or is the first of from's own,
 * or beside a `from` that is small itself. FO_EUNSUPPORTED on a die that cannot; nothing was written then. */
int fo_kv_requantise(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e);

/* One sequence's part of a batch: rows [row, row + n) are its tokens at positions [pos, pos + n). */
struct fo_attn_seq {
    int row, n;
    int32_t pos;
    const uint32_t *pages; /* [(pos + n + page_tokens - 1) / page_tokens] page numbers, in order */
};
struct fo_attn_batch {
    const struct fo_attn_seq *seqs;
    int n_seqs;
    int n_rows; /* of the whole batch */
};
/* Writes rows of k and v [n_rows][n_head_kv * head_dim] (rope already done) into their pages, each as its page's types say. */
int fo_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                struct fo_err *e);
/* out[row] = softmax(scale * q.K) V over the row's visible positions (its own included; kv_store came before), per head.
 * q and out [n_rows][n_head * head_dim]. The order of summation depends on positions only. */
int fo_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
              struct fo_err *e);
