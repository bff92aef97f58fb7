/* From a GGUF's metadata and directory to a family's fields: hyperparameters within stated bounds, tensor names to struct fields with
 * every shape and type checked, and the weights' place on the device. Used once, by the loader, while a model opens; hot code never
 * sees a name. Nothing here trusts the file: a number is compared with its bounds before it sizes anything. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/region.h"
#include "foundry/tensor.h"

struct fo_arena;
struct fo_device;
struct fo_err;
struct fo_gguf;
struct fo_gguf_tensor;
struct fo_str;

/* --- hyperparameters: key is "<arch>.<suffix>"; a value outside [min, max] is FO_EFORMAT with value and bounds --- */
int pn_key_u32(const struct fo_gguf *g, const char *arch, const char *suffix, uint32_t min, uint32_t max, uint32_t *ret, struct fo_err *e);
/* *ret keeps its value when the key is absent. */
int pn_key_u32_opt(const struct fo_gguf *g, const char *arch, const char *suffix, uint32_t min, uint32_t max, uint32_t *inout, struct fo_err *e);
int pn_key_f32(const struct fo_gguf *g, const char *arch, const char *suffix, float min, float max, float *ret, struct fo_err *e);
int pn_key_f32_opt(const struct fo_gguf *g, const char *arch, const char *suffix, float min, float max, float *inout, struct fo_err *e);
/* *ret keeps its value when the key is absent; text in the map. */
int pn_key_str_opt(const struct fo_gguf *g, const char *arch, const char *suffix, struct fo_str *inout, struct fo_err *e);
/* FO_EUNSUPPORTED naming the key and its value when it is there with anything but a neutral value: "none" or "" (text), 0 or 1
 * (numbers), false. */
int pn_key_refuse(const struct fo_gguf *g, const char *arch, const char *suffix, struct fo_err *e);

/* --- tensors --- */

/* Where a tensor belongs: a layer, or before the first or behind the last one, on these layers' dies. */
enum { PN_AT_INPUT = -1, PN_AT_OUTPUT = -2 };

struct pn_bound {
    struct fo_tensor *field; /* NULL: read by the host alone, not placed */
    const struct fo_gguf_tensor *src;
    int layer, die;
    struct pn_bound *first; /* of a tensor used in two places: its other use, when that is on the same die and serves both */
    bool again;             /* the second use */
    bool moved;             /* cannot be read where the file is mapped: widened to F32, or at an odd address */
    uint64_t bytes;         /* what it takes where it is placed */
    uint64_t offset;        /* in the die's block of weights, once laid out */
};
struct pn_bind_die {
    struct fo_device *dev;
    int end_layer; /* it has the layers from the end of the one before to this */
};
struct pn_bind {
    const struct fo_gguf *g;
    const struct pn_bind_die *dies; /* [n_dies] */
    int n_dies;
    struct fo_region *region; /* of the model: what bind functions allocate lives as long */
    struct pn_bound *bound;   /* [fo_gguf_n_tensors + 1] */
    size_t n_bound, n_again;
    int64_t max_k;            /* longest row of any matrix: what the streams must be able to hold */
};

/* `dies` is the caller's, as long as the bind. */
int pn_bind_init(struct pn_bind *b, const struct fo_gguf *g, const struct pn_bind_die *dies, int n_dies, struct fo_region *region,
                 struct fo_err *e);

/* Name is "blk.<layer>.<suffix>", or the bare suffix at the input or output. A matrix [ne1][ne0] has any type that its die serves; a
 * vector is F32 to whoever reads it; a file may have it in F16 or BF16. FO_EFORMAT (missing, other shape) and FO_EUNSUPPORTED (type) name the tensor, what was found and what was expected.
 * Each tensor is bound once. */
int pn_bind_matrix(struct pn_bind *b, int layer, const char *suffix, int64_t ne0, int64_t ne1, struct fo_tensor *ret, struct fo_err *e);
/* n matrices of one shape in one tensor [n][ne1][ne0]. */
int pn_bind_matrices(struct pn_bind *b, int layer, const char *suffix, int64_t ne0, int64_t ne1, int64_t n, struct fo_tensor *ret, struct fo_err *e);
int pn_bind_vector(struct pn_bind *b, int layer, const char *suffix, int64_t n, struct fo_tensor *ret, struct fo_err *e);
/* Whether there is a tensor of that name: of two ways to write a model, which one this file chose. */
bool pn_bind_has(const struct pn_bind *b, int layer, const char *suffix);
/* As above; an absent tensor leaves ret->data NULL and is no error. */
int pn_bind_matrix_opt(struct pn_bind *b, int layer, const char *suffix, int64_t ne0, int64_t ne1, struct fo_tensor *ret, struct fo_err *e);
int pn_bind_vector_opt(struct pn_bind *b, int layer, const char *suffix, int64_t n, struct fo_tensor *ret, struct fo_err *e);
/* A matrix that was bound at the input, used at the output too (tied embeddings): on another die it is placed there a second time. At
 * most one in a model. */
int pn_bind_tied(struct pn_bind *b, const char *name, struct fo_tensor *ret, struct fo_err *e);
/* An F32 vector for the host alone (it stays in the map): NULL when absent. */
int pn_bind_host_vector_opt(struct pn_bind *b, const char *name, int64_t n, const float **ret, struct fo_err *e);

/* FO_EUNSUPPORTED naming a tensor of the file that nothing was bound to: the model has a part that this family's forward lacks. */
int pn_bind_complete(const struct pn_bind *b, const char *arch, struct fo_err *e);

/* The layout of a die's weights, in the order of binding; the arena may be measuring. Each tensor takes a multiple of 64 bytes, so sums
 * are those of the parts. in_place: what can be read in the map takes nothing. */
int pn_bind_layout(struct pn_bind *b, int die, bool in_place, struct fo_arena *a, struct fo_err *e);
/* What pn_bind_layout takes for the tensors of one layer (or PN_AT_INPUT, PN_AT_OUTPUT), and *ret_again (may be NULL) for a second use,
 * were it on another die. */
uint64_t pn_bind_layer_bytes(const struct pn_bind *b, int layer, uint64_t *ret_again);
/* Copies the tensors of a die that were laid out to their places in `block` (at most a chunk of the file, pn_bind_chunk_bytes, is resident at a time) and
 * points their fields there. `go_on` as in pn_model_opts. */
int pn_bind_upload(struct pn_bind *b, int die, bool in_place, unsigned char *block, int (*go_on)(void *ctx, struct fo_err *e), void *go_on_ctx,
                   struct fo_err *e);
uint64_t pn_bind_chunk_bytes(void);
