/* Checked reading of what a model file says about itself: see bind.h. */
#include "engine/bind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/arena.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/device.h"
#include "foundry/gguf.h"

enum {
    KEY_MAX = 192,                    /* longest key or tensor name looked up */
    UPLOAD_CHUNK_BYTES = 8 * 1024 * 1024 /* staging: file pages resident at a time while weights are copied */
};

/* --- hyperparameters --- */

static const char *key_name(char out[KEY_MAX], const char *arch, const char *suffix) {
    snprintf(out, KEY_MAX, "%s.%s", arch, suffix);
    return out;
}

int pn_key_u32_opt(const struct fo_gguf *g, const char *arch, const char *suffix, uint32_t min, uint32_t max, uint32_t *inout,
                   struct fo_err *e) {
    char key[KEY_MAX];
    if (!fo_gguf_find(g, key_name(key, arch, suffix))) return FO_OK;
    return pn_key_u32(g, arch, suffix, min, max, inout, e);
}

int pn_key_u32(const struct fo_gguf *g, const char *arch, const char *suffix, uint32_t min, uint32_t max, uint32_t *ret, struct fo_err *e) {
    char key[KEY_MAX];
    uint64_t v;
    if (!fo_gguf_find(g, key_name(key, arch, suffix))) return fo_fail(e, FO_EFORMAT, "the key %s is missing", key);
    if (fo_gguf_get_u64(g, key, &v, e)) return e->code;
    if (v < min || v > max)
        return fo_fail(e, FO_EFORMAT, "%s is %llu, expected %u to %u", key, (unsigned long long)v, min, max);
    *ret = (uint32_t)v;
    return FO_OK;
}

int pn_key_f32_opt(const struct fo_gguf *g, const char *arch, const char *suffix, float min, float max, float *inout, struct fo_err *e) {
    char key[KEY_MAX];
    if (!fo_gguf_find(g, key_name(key, arch, suffix))) return FO_OK;
    return pn_key_f32(g, arch, suffix, min, max, inout, e);
}

int pn_key_f32(const struct fo_gguf *g, const char *arch, const char *suffix, float min, float max, float *ret, struct fo_err *e) {
    char key[KEY_MAX];
    float v;
    if (!fo_gguf_find(g, key_name(key, arch, suffix))) return fo_fail(e, FO_EFORMAT, "the key %s is missing", key);
    if (fo_gguf_get_f32(g, key, &v, e)) return e->code;
    if (!(v >= min && v <= max)) /* a NaN fails too */
        return fo_fail(e, FO_EFORMAT, "%s is %g, expected %g to %g", key, (double)v, (double)min, (double)max);
    *ret = v;
    return FO_OK;
}

int pn_key_str_opt(const struct fo_gguf *g, const char *arch, const char *suffix, struct fo_str *inout, struct fo_err *e) {
    char key[KEY_MAX];
    if (!fo_gguf_find(g, key_name(key, arch, suffix))) return FO_OK;
    return fo_gguf_get_str(g, key, inout, e);
}

int pn_key_refuse(const struct fo_gguf *g, const char *arch, const char *suffix, struct fo_err *e) {
    char key[KEY_MAX];
    const struct fo_gguf_kv *kv = fo_gguf_find(g, key_name(key, arch, suffix));
    if (!kv) return FO_OK;
    struct fo_str text;
    float number;
    bool flag;
    switch (kv->type) {
    case FO_GGUF_STRING:
        if (fo_gguf_get_str(g, key, &text, e)) return e->code;
        if (text.len == 0 || (text.len == 4 && memcmp(text.s, "none", 4) == 0)) return FO_OK;
        return fo_fail(e, FO_EUNSUPPORTED, "%s is \"%.*s\", which this build does not serve", key, (int)(text.len < 64 ? text.len : 64), text.s);
    case FO_GGUF_BOOL:
        if (fo_gguf_get_bool(g, key, &flag, e)) return e->code;
        if (!flag) return FO_OK;
        return fo_fail(e, FO_EUNSUPPORTED, "%s is true, which this build does not serve", key);
    case FO_GGUF_ARRAY:
        return fo_fail(e, FO_EUNSUPPORTED, "%s is an array, which this build does not serve", key);
    default:
        if (fo_gguf_get_f32(g, key, &number, e)) return e->code;
        if (number == 0.0f || number == 1.0f) return FO_OK;
        return fo_fail(e, FO_EUNSUPPORTED, "%s is %g, which this build does not serve", key, (double)number);
    }
}

/* --- tensors --- */

int pn_bind_init(struct pn_bind *b, const struct fo_gguf *g, const struct pn_bind_die *dies, int n_dies, struct fo_region *region,
                 struct fo_err *e) {
    size_t n = fo_gguf_n_tensors(g) + 1;
    struct pn_bound *bound = fo_region_array(region, n, sizeof *bound);
    if (!bound) return fo_fail(e, FO_ENOMEM, "no memory to bind %zu tensors", n);
    *b = (struct pn_bind){ .g = g, .dies = dies, .n_dies = n_dies, .region = region, .bound = bound };
    return FO_OK;
}

static int die_of(const struct pn_bind *b, int layer) {
    if (layer == PN_AT_OUTPUT) return b->n_dies - 1;
    int die = 0;
    while (die + 1 < b->n_dies && layer >= b->dies[die].end_layer) die++;
    return die;
}

static const struct fo_gguf_tensor *find(const struct pn_bind *b, int layer, const char *suffix, char name[KEY_MAX]) {
    if (layer < 0)
        snprintf(name, KEY_MAX, "%s", suffix);
    else
        snprintf(name, KEY_MAX, "blk.%d.%s", layer, suffix);
    return fo_gguf_tensor(b->g, name);
}

/* "[256, 352]" without the trailing ones. */
static const char *shape_text(const struct fo_tensor *t, char *out, size_t size) {
    int n = FO_MAX_DIMS;
    while (n > 1 && t->ne[n - 1] == 1) n--;
    size_t at = 0;
    for (int i = 0; i < n && at < size; i++) at += (size_t)snprintf(out + at, size - at, "%s%lld", i ? ", " : "[", (long long)t->ne[i]);
    if (at < size) snprintf(out + at, size - at, "]");
    return out;
}

static int check_shape(const struct fo_gguf_tensor *t, const char *name, int64_t ne0, int64_t ne1, int64_t ne2, struct fo_err *e) {
    if (t->t.ne[0] == ne0 && t->t.ne[1] == ne1 && t->t.ne[2] == ne2 && t->t.ne[3] == 1) return FO_OK;
    struct fo_tensor want = { .ne = { ne0, ne1, ne2, 1 } };
    char found[96], expected[96];
    return fo_fail(e, FO_EFORMAT, "tensor %s has the shape %s, expected %s", name, shape_text(&t->t, found, sizeof found),
                   shape_text(&want, expected, sizeof expected));
}

/* Float tensors are read through their own type where they lie, so they must be aligned for it (quantised blocks are bytes). GGUF aligns
 * all, safetensors promises nothing. */
static uint64_t alignment_of(enum fo_dtype type) {
    return type == FO_F32 ? sizeof(float) : type == FO_F16 || type == FO_BF16 ? sizeof(uint16_t) : 1;
}

static bool is_aligned(const struct fo_gguf_tensor *t) {
    return (uintptr_t)t->t.data % alignment_of(t->t.type) == 0;
}

static int bind(struct pn_bind *b, int layer, const struct fo_gguf_tensor *t, const char *name, enum fo_dtype type, int64_t ne0, int64_t ne1, int64_t ne2,
                struct fo_tensor *ret, struct fo_err *e) {
    if (check_shape(t, name, ne0, ne1, ne2, e)) return e->code;
    if (!ret && !is_aligned(t))
        return fo_fail(e, FO_EFORMAT, "tensor %s of type %s lies at the odd offset %llu, expected a multiple of %llu", name, fo_dtype_name(t->t.type),
                       (unsigned long long)t->offset, (unsigned long long)alignment_of(t->t.type));
    if (b->n_bound - b->n_again >= fo_gguf_n_tensors(b->g)) return fo_fail(e, FO_EINTERNAL, "tensor %s is bound twice", name);
    struct pn_bound *bound = &b->bound[b->n_bound++];
    *bound = (struct pn_bound){ .field = ret, .src = t, .layer = layer, .die = die_of(b, layer), .bytes = t->bytes };
    bound->moved = type != t->t.type || !is_aligned(t);
    if (type != t->t.type) bound->bytes = fo_dtype_bytes(type, (uint64_t)ne0); /* a vector, no longer than a dimension that was checked */
    if (ret) {
        *ret = t->t;
        ret->type = type;
    }
    return FO_OK;
}

static int check_served(const struct pn_bind *b, int layer, const struct fo_gguf_tensor *t, const char *name, struct fo_err *e) {
    const struct fo_dtype_info *type = fo_dtype_info(t->t.type);
    struct fo_device *dev = b->dies[die_of(b, layer)].dev;
    if (type && type->to_f32 && dev->serves(dev, t->t.type)) return FO_OK;
    return fo_fail(e, FO_EUNSUPPORTED, "tensor %s has the type %s, which %s", name, fo_dtype_name(t->t.type),
                   type && type->to_f32 ? "this device does not serve" : "this build does not serve");
}

static int matrix(struct pn_bind *b, int layer, const struct fo_gguf_tensor *t, const char *name, int64_t ne0, int64_t ne1, int64_t ne2,
                  struct fo_tensor *ret, struct fo_err *e) {
    if (check_served(b, layer, t, name, e) || bind(b, layer, t, name, t->t.type, ne0, ne1, ne2, ret, e)) return e->code;
    if (ne0 > b->max_k) b->max_k = ne0;
    return FO_OK;
}

/* Norms and biases are F32 to every kernel; what a file keeps in half of that is widened where it is placed. */
static int vector_type(const struct fo_gguf_tensor *t, const char *name, bool widened, struct fo_err *e) {
    if (t->t.type == FO_F32 || (widened && (t->t.type == FO_F16 || t->t.type == FO_BF16))) return FO_OK;
    return fo_fail(e, FO_EUNSUPPORTED, "tensor %s has the type %s, expected F32%s", name, fo_dtype_name(t->t.type), widened ? ", F16 or BF16" : "");
}

bool pn_bind_has(const struct pn_bind *b, int layer, const char *suffix) {
    char name[KEY_MAX];
    return find(b, layer, suffix, name) != NULL;
}

int pn_bind_matrices(struct pn_bind *b, int layer, const char *suffix, int64_t ne0, int64_t ne1, int64_t n, struct fo_tensor *ret, struct fo_err *e) {
    char name[KEY_MAX];
    const struct fo_gguf_tensor *t = find(b, layer, suffix, name);
    if (!t) return fo_fail(e, FO_EFORMAT, "tensor %s is missing", name);
    return matrix(b, layer, t, name, ne0, ne1, n, ret, e);
}

int pn_bind_matrix(struct pn_bind *b, int layer, const char *suffix, int64_t ne0, int64_t ne1, struct fo_tensor *ret, struct fo_err *e) {
    return pn_bind_matrices(b, layer, suffix, ne0, ne1, 1, ret, e);
}

int pn_bind_vector(struct pn_bind *b, int layer, const char *suffix, int64_t n, struct fo_tensor *ret, struct fo_err *e) {
    char name[KEY_MAX];
    const struct fo_gguf_tensor *t = find(b, layer, suffix, name);
    if (!t) return fo_fail(e, FO_EFORMAT, "tensor %s is missing", name);
    if (vector_type(t, name, true, e)) return e->code;
    return bind(b, layer, t, name, FO_F32, n, 1, 1, ret, e);
}

int pn_bind_matrix_opt(struct pn_bind *b, int layer, const char *suffix, int64_t ne0, int64_t ne1, struct fo_tensor *ret, struct fo_err *e) {
    char name[KEY_MAX];
    if (find(b, layer, suffix, name)) return pn_bind_matrix(b, layer, suffix, ne0, ne1, ret, e);
    *ret = (struct fo_tensor){ 0 };
    return FO_OK;
}

int pn_bind_vector_opt(struct pn_bind *b, int layer, const char *suffix, int64_t n, struct fo_tensor *ret, struct fo_err *e) {
    char name[KEY_MAX];
    if (find(b, layer, suffix, name)) return pn_bind_vector(b, layer, suffix, n, ret, e);
    *ret = (struct fo_tensor){ 0 };
    return FO_OK;
}

int pn_bind_tied(struct pn_bind *b, const char *name, struct fo_tensor *ret, struct fo_err *e) {
    size_t i = 0;
    while (i < b->n_bound && b->bound[i].src != fo_gguf_tensor(b->g, name)) i++;
    if (i == b->n_bound || b->n_again) return fo_fail(e, FO_EINTERNAL, "tensor %s is tied before it is bound, or is the second that is tied", name);
    struct pn_bound *first = &b->bound[i], *t = &b->bound[b->n_bound];
    *t = (struct pn_bound){ .field = ret, .src = first->src, .layer = PN_AT_OUTPUT, .die = die_of(b, PN_AT_OUTPUT), .again = true,
                             .moved = first->moved, .bytes = first->bytes };
    if (check_served(b, PN_AT_OUTPUT, t->src, name, e)) return e->code;
    if (t->die == first->die) t->first = first;
    *ret = t->src->t;
    b->n_bound++;
    b->n_again++;
    return FO_OK;
}

int pn_bind_host_vector_opt(struct pn_bind *b, const char *name, int64_t n, const float **ret, struct fo_err *e) {
    const struct fo_gguf_tensor *t = fo_gguf_tensor(b->g, name);
    if (t && (vector_type(t, name, false, e) || bind(b, PN_AT_INPUT, t, name, FO_F32, n, 1, 1, NULL, e))) return e->code;
    *ret = t ? t->t.data : NULL;
    return FO_OK;
}

static int by_src(const void *a, const void *b) {
    const struct fo_gguf_tensor *x = ((const struct pn_bound *)a)->src, *y = ((const struct pn_bound *)b)->src;
    return (x > y) - (x < y);
}

int pn_bind_complete(const struct pn_bind *b, const char *arch, struct fo_err *e) {
    size_t n = fo_gguf_n_tensors(b->g);
    if (b->n_bound - b->n_again == n) return FO_OK;
    qsort(b->bound, b->n_bound, sizeof *b->bound, by_src);
    for (size_t i = 0; i < n; i++) {
        struct pn_bound key = { .src = fo_gguf_tensor_at(b->g, i) };
        if (b->n_bound && bsearch(&key, b->bound, b->n_bound, sizeof key, by_src)) continue;
        return fo_fail(e, FO_EUNSUPPORTED, "tensor %.*s is not one that this build knows in a %s model",
                       (int)(key.src->name.len < 100 ? key.src->name.len : 100), key.src->name.s, arch);
    }
    return fo_fail(e, FO_EINTERNAL, "%zu tensors are bound of %zu", b->n_bound, n);
}

static int take(struct fo_arena *a, const struct pn_bound *t, uint64_t *ret_offset, struct fo_err *e) {
    return fo_arena_take(a, (t->bytes + 63) & ~(uint64_t)63, 64, ret_offset, e); /* a file's tensor is far from 2^64 bytes */
}

/* Whether a use of a tensor needs memory of its die. */
static bool is_placed(const struct pn_bound *t, int die, bool in_place) {
    return t->field && t->die == die && (t->moved || !in_place);
}

int pn_bind_layout(struct pn_bind *b, int die, bool in_place, struct fo_arena *a, struct fo_err *e) {
    for (size_t i = 0; i < b->n_bound; i++) {
        struct pn_bound *t = &b->bound[i];
        if (!is_placed(t, die, in_place)) continue;
        if (t->first)
            t->offset = t->first->offset; /* bound before, laid out before */
        else if (take(a, t, &t->offset, e))
            return e->code;
    }
    return FO_OK;
}

uint64_t pn_bind_layer_bytes(const struct pn_bind *b, int layer, uint64_t *ret_again) {
    struct fo_arena own, again;
    uint64_t ignored;
    struct fo_err e; /* measuring always succeeds */
    fo_arena_init_measure(&own);
    fo_arena_init_measure(&again);
    for (size_t i = 0; i < b->n_bound; i++) {
        const struct pn_bound *t = &b->bound[i];
        if (t->field && t->layer == layer) take(t->again ? &again : &own, t, &ignored, &e);
    }
    if (ret_again) *ret_again = (again.used + 63) & ~(uint64_t)63;
    return (own.used + 63) & ~(uint64_t)63; /* redzones of debug builds have other sizes */
}

uint64_t pn_bind_chunk_bytes(void) {
    return UPLOAD_CHUNK_BYTES;
}

/* Widens a vector of F16 or BF16, piece by piece: it may lie at any address. */
static int upload_widened(struct fo_device *dev, unsigned char *to, const struct fo_gguf_tensor *t, struct fo_err *e) {
    uint16_t piece[1024];
    float wide[1024];
    const unsigned char *from = t->t.data;
    for (uint64_t at = 0, n, all = t->bytes / sizeof *piece; at < all; at += n) {
        n = all - at < 1024 ? all - at : 1024;
        memcpy(piece, from + at * sizeof *piece, n * sizeof *piece);
        fo_dtype_info(t->t.type)->to_f32(piece, wide, n);
        if (dev->upload(dev, to + at * sizeof *wide, wide, n * sizeof *wide, e)) return e->code;
    }
    return FO_OK;
}

int pn_bind_upload(struct pn_bind *b, int die, bool in_place, unsigned char *block, int (*go_on)(void *ctx, struct fo_err *e), void *go_on_ctx,
                   struct fo_err *e) {
    struct fo_device *dev = b->dies[die].dev;
    for (size_t i = 0; i < b->n_bound; i++) {
        struct pn_bound *t = &b->bound[i];
        if (!is_placed(t, die, in_place)) continue;
        const unsigned char *from = t->src->t.data;
        bool widened = t->field->type != t->src->t.type;
        if (widened && upload_widened(dev, block + t->offset, t->src, e)) return e->code;
        for (uint64_t at = 0, n; at < t->src->bytes && !t->first && !widened; at += n) {
            n = t->src->bytes - at < UPLOAD_CHUNK_BYTES ? t->src->bytes - at : UPLOAD_CHUNK_BYTES;
            if (go_on && go_on(go_on_ctx, e)) return e->code;
            if (dev->upload(dev, block + t->offset + at, from + at, n, e)) return e->code;
            fo_map_forget(t->src->map, from + at, n);
        }
        t->field->data = block + t->offset;
    }
    return FO_OK;
}
