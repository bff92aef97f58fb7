/* Quantising a file: see quantize.h. The output's header is known before any weight is read, since types and shapes fix all sizes; the data
 * follows in one pass, tensor by tensor. A tensor is a run of elements, cut into pieces that suit every block; threads take ranges of the
 * pieces of one slab, widen each to float32 in a buffer of their own, and quantise it to its place in the slab, which is then written.
 * Every block depends on its own values alone, so the result does not depend on the number of threads. */
#include "engine/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/mix.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/outfile.h"
#include "foundry/base/pool.h"
#include "foundry/gguf.h"
#include "foundry/gguf_write.h"
#include "foundry/model_file.h"
#include "foundry/quant.h"

enum {
    PIECE = 8192,            /* elements: a multiple of every block */
    SLAB_BYTES = 8 << 20,    /* of output in flight, at most */
    QUANTISATION_VERSION = 2 /* of the block formats, as llama.cpp counts it */
};

/* Set where rows of q and k lie as they were trained, in two halves of a head that rotate together; in a GGUF of the llama architecture they
 * are neighbours. */
#define HALVES "pantheon.rope.neox"

/* Keys that say something about the input file only. */
static const char *const dropped[] = { "general.file_type", "general.quantization_version", "general.alignment", "split.no", "split.count",
                                       "split.tensors.count", HALVES };

struct job {
    struct fo_gguf *g;
    struct fo_pool *pool;
    struct fo_outfile *out;
    enum fo_dtype *types; /* [n_tensors] to write */
    uint8_t *slab;        /* [SLAB_BYTES] */
    uint8_t *rows;        /* [SLAB_BYTES] rows put in order, or NULL: they are */
    uint32_t n_head, n_head_kv, n_rot; /* when they are not */
    float *wide;          /* [n_threads, 2, PIECE] a piece widened, and one moved to where it can be read */
    int64_t *bad;         /* [n_threads] first piece that the type cannot hold, or -1 */
    const struct pn_quantize_opts *o;
    uint64_t done, total; /* bytes of data written, and to write */
    /* the slab being filled */
    const struct fo_dtype_info *from, *to;
    const uint8_t *src;
    uint64_t n; /* elements */
};

/* Above this a half-precision scale may become infinite; the types without one hold any float (or saturate, as NVFP4 does by design). */
static float most(const struct fo_dtype_info *t) {
    return t == fo_dtype_info(FO_F32) || t == fo_dtype_info(FO_BF16) || t == fo_dtype_info(FO_MXFP4) ? INFINITY : 65504.0f;
}

static void convert(void *arg, int lo, int hi, int thread) {
    struct job *j = arg;
    float *wide = j->wide + (size_t)thread * 2 * PIECE, top = most(j->to);
    for (int p = lo; p < hi; p++) {
        uint64_t at = (uint64_t)p * PIECE;
        size_t n = j->n - at < PIECE ? (size_t)(j->n - at) : PIECE;
        const uint8_t *src = j->src + at / j->from->block * j->from->block_bytes;
        if ((uintptr_t)src & 1) src = memcpy(wide + PIECE, src, n / j->from->block * j->from->block_bytes); /* safetensors may lie anywhere */
        j->from->to_f32(src, wide, n);
        if (j->bad[thread] < 0 && !(fo_abs_max(wide, (int)n) <= top)) j->bad[thread] = p;
        j->to->from_f32(wide, j->slab + at / j->to->block * j->to->block_bytes, n);
    }
}

static uint64_t padding(uint64_t bytes) {
    return (FO_GGUF_ALIGNMENT - bytes % FO_GGUF_ALIGNMENT) % FO_GGUF_ALIGNMENT;
}

/* Asks the caller whether to go on, and the input whether it is still what it was. */
static int step(struct job *j, struct fo_err *e) {
    if (fo_gguf_state(j->g, e)) return (int)e->code;
    return j->o->go_on ? j->o->go_on(j->o->ctx, j->done, j->total, e) : FO_OK;
}

/* Converts the slab j->src of j->n elements, which begins at element `at` of t, and writes it. */
static int write_slab(struct job *j, const struct fo_gguf_tensor *t, uint64_t at, struct fo_err *e) {
    for (int i = 0; i < fo_pool_threads(j->pool); i++) j->bad[i] = -1;
    fo_pool_run(j->pool, convert, j, (int)((j->n + PIECE - 1) / PIECE));
    if (step(j, e)) return (int)e->code;
    int64_t first = -1;
    for (int i = 0; i < fo_pool_threads(j->pool); i++)
        if (j->bad[i] >= 0 && (first < 0 || j->bad[i] < first)) first = j->bad[i];
    if (first >= 0)
        return (int)fo_fail(e, FO_EFORMAT, "tensor %.*s: between elements %llu and %llu stands a value that %s cannot hold: not finite, or too large",
                            (int)t->name.len, t->name.s, (unsigned long long)at + (unsigned long long)first * PIECE,
                            (unsigned long long)at + ((unsigned long long)first + 1) * PIECE, j->to->name);
    uint64_t bytes = j->n / j->to->block * j->to->block_bytes;
    if (fo_outfile_write(j->out, j->slab, (size_t)bytes, e)) return (int)e->code;
    j->done += bytes;
    return FO_OK;
}

static int write_converted(struct job *j, const struct fo_gguf_tensor *t, struct fo_err *e) {
    uint64_t left = t->bytes / j->from->block_bytes * j->from->block, at = 0;
    uint64_t per_slab = (uint64_t)SLAB_BYTES / (PIECE / j->to->block * j->to->block_bytes) * PIECE;
    for (; left > 0; left -= j->n, at += j->n) {
        j->n = left < per_slab ? left : per_slab;
        j->src = (const uint8_t *)t->t.data + at / j->from->block * j->from->block_bytes;
        if (write_slab(j, t, at, e)) return (int)e->code;
        fo_map_forget(t->map, j->src, j->n / j->from->block * j->from->block_bytes);
    }
    return FO_OK;
}

/* Heads of a tensor whose rows are to be put in order, else 0. */
static uint32_t heads_to_order(const struct job *j, const struct fo_gguf_tensor *t) {
    static const char *const names[] = { "attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias" };
    for (size_t i = 0; j->rows && i < sizeof names / sizeof *names; i++)
        if (t->name.len >= strlen(names[i]) && memcmp(t->name.s + t->name.len - strlen(names[i]), names[i], strlen(names[i])) == 0)
            return i % 2 ? j->n_head_kv : j->n_head;
    return 0;
}

/* As write_converted, the rows of each head reordered: what stood at i and at n_rot / 2 + i, becomes 2 i and 2 i + 1. A bias is a row an
 * element. */
static int write_ordered(struct job *j, const struct fo_gguf_tensor *t, uint32_t n_head, struct fo_err *e) {
    uint64_t n_rows = (uint64_t)(t->t.ne[1] > 1 ? t->t.ne[1] : t->t.ne[0]), row = t->bytes / n_rows, head = n_rows / n_head;
    uint64_t elements = row / j->from->block_bytes * j->from->block, wide = elements * sizeof(float), per_slab = SLAB_BYTES / (wide ? wide : 1);
    if (n_rows % n_head || head < j->n_rot || j->n_rot % 2 || j->from->block > 1 || per_slab == 0 || t->t.ne[2] > 1)
        return (int)fo_fail(e, FO_EUNSUPPORTED, "tensor %.*s: rows of %u heads that cannot be put in order", (int)t->name.len, t->name.s, n_head);
    for (uint64_t at = 0; at < n_rows; at += per_slab) {
        uint64_t n = n_rows - at < per_slab ? n_rows - at : per_slab;
        for (uint64_t i = at; i < at + n; i++) {
            uint64_t in_head = i % head, from = in_head < j->n_rot ? in_head / 2 + in_head % 2 * (j->n_rot / 2) : in_head;
            memcpy(j->rows + (i - at) * row, (const uint8_t *)t->t.data + (i - in_head + from) * row, (size_t)row);
        }
        j->src = j->rows;
        j->n = n * elements;
        if (write_slab(j, t, at * elements, e)) return (int)e->code;
    }
    fo_map_forget(t->map, t->t.data, t->bytes);
    return FO_OK;
}

static int write_copied(struct job *j, const struct fo_gguf_tensor *t, struct fo_err *e) {
    const uint8_t *src = t->t.data;
    for (uint64_t left = t->bytes; left > 0;) {
        size_t n = left < SLAB_BYTES ? (size_t)left : SLAB_BYTES;
        memcpy(j->slab, src, n); /* a fault in write() would be an error of the system, not the map's to notice */
        fo_map_forget(t->map, src, n);
        if (step(j, e) || fo_outfile_write(j->out, j->slab, n, e)) return (int)e->code;
        src += n;
        left -= n;
        j->done += n;
    }
    return FO_OK;
}

static int write_data(struct job *j, struct fo_err *e) {
    static const char zeros[FO_GGUF_ALIGNMENT];
    for (size_t i = 0; i < fo_gguf_n_tensors(j->g); i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(j->g, i);
        uint64_t before = j->done;
        j->from = fo_dtype_info(t->t.type);
        j->to = fo_dtype_info(j->types[i]);
        uint32_t n_head = heads_to_order(j, t);
        if (n_head ? write_ordered(j, t, n_head, e) : j->from == j->to ? write_copied(j, t, e) : write_converted(j, t, e)) return (int)e->code;
        size_t pad = (size_t)padding(j->done - before);
        if (fo_outfile_write(j->out, zeros, pad, e)) return (int)e->code;
        j->done += pad;
    }
    return FO_OK;
}

/* --- the header ------------------------------------------------------------------------------------------------------------- */

static bool is_dropped(struct fo_str key) {
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (key.len == strlen(dropped[i]) && memcmp(key.s, dropped[i], key.len) == 0) return true;
    return false;
}

/* Plans the output: its header in `head`, and the bytes of data behind it. */
static int plan(struct job *j, struct fo_buf *head, struct pn_quantize_result *r, struct fo_err *e) {
    struct fo_gguf_writer w;
    size_t cap = 1 << 16; /* of each kind of record: as much as the input takes, and some more */
    for (size_t i = 0; i < fo_gguf_n_kv(j->g); i++) cap += fo_gguf_kv_at(j->g, i)->key.len + (size_t)fo_gguf_kv_at(j->g, i)->bytes + 64;
    cap += fo_gguf_n_tensors(j->g) * 192;
    fo_buf_init(head, 2 * cap);
    fo_gguf_writer_init(&w, cap);
    for (size_t i = 0; i < fo_gguf_n_kv(j->g); i++) {
        const struct fo_gguf_kv *kv = fo_gguf_kv_at(j->g, i);
        if (!is_dropped(kv->key)) fo_gguf_put_kv(&w, kv);
    }
    fo_gguf_put_u32(&w, "general.quantization_version", QUANTISATION_VERSION);
    fo_gguf_put_u32(&w, "general.file_type", pn_mix_file_type(j->o->mix));
    int rc = FO_OK;
    for (size_t i = 0; i < fo_gguf_n_tensors(j->g) && !rc; i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(j->g, i);
        const struct fo_dtype_info *from = fo_dtype_info(t->t.type), *to = fo_dtype_info(j->types[i]);
        uint64_t ne[FO_MAX_DIMS], bytes = t->bytes / from->block_bytes * from->block / to->block * to->block_bytes; /* at most 21 times as many */
        uint32_t n_dims = 1;
        for (uint32_t d = 0; d < FO_MAX_DIMS; d++) {
            ne[d] = (uint64_t)t->t.ne[d];
            if (ne[d] > 1) n_dims = d + 1;
        }
        if (from != to && (!from->to_f32 || !to->from_f32))
            rc = (int)fo_fail(e, FO_EUNSUPPORTED, "tensor %.*s is %s, which cannot become %s", (int)t->name.len, t->name.s, from->name, to->name);
        fo_gguf_put_tensor(&w, t->name, j->types[i], ne, n_dims, j->total);
        r->in_bytes += t->bytes;
        r->out_bytes += bytes;
        r->n_requantised += from != to && from->block > 1;
        j->total += bytes + padding(bytes);
    }
    if (!rc) rc = fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, head, e);
    fo_gguf_writer_done(&w);
    return rc;
}

/* --- the whole -------------------------------------------------------------------------------------------------------------- */

static int refuse_input(const struct fo_gguf *g, const char *out, struct fo_err *e) {
    struct stat a, b;
    if (stat(out, &b) != 0) return FO_OK;
    for (size_t i = 0; i < fo_gguf_n_files(g); i++)
        if (stat(fo_map_path(fo_gguf_file(g, i)), &a) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return (int)fo_fail(e, FO_EINVAL, "%s is the input: write to another file", out);
    return FO_OK;
}

/* Whether, and in which heads, rows of q and k must be put in order. */
static int look_at_rows(struct job *j, struct fo_err *e) {
    bool halves;
    if (!fo_gguf_find(j->g, HALVES)) return FO_OK;
    if (fo_gguf_get_bool(j->g, HALVES, &halves, e)) return (int)e->code;
    if (!halves) return FO_OK;
    if (fo_gguf_get_u32(j->g, "llama.attention.head_count", &j->n_head, e)) return (int)e->code;
    j->n_head_kv = j->n_head;
    if (fo_gguf_find(j->g, "llama.attention.head_count_kv") && fo_gguf_get_u32(j->g, "llama.attention.head_count_kv", &j->n_head_kv, e))
        return (int)e->code;
    if (fo_gguf_find(j->g, "llama.rope.dimension_count")) {
        if (fo_gguf_get_u32(j->g, "llama.rope.dimension_count", &j->n_rot, e)) return (int)e->code;
    } else {
        uint32_t n_embd;
        if (fo_gguf_get_u32(j->g, "llama.embedding_length", &n_embd, e)) return (int)e->code;
        j->n_rot = j->n_head ? n_embd / j->n_head : 0;
    }
    if (!j->n_head || !j->n_head_kv || !j->n_rot) return (int)fo_fail(e, FO_EFORMAT, "no heads, or nothing in them that rotates");
    j->rows = malloc(SLAB_BYTES);
    return j->rows ? FO_OK : (int)fo_fail(e, FO_ENOMEM, "no memory to quantise with");
}

int pn_quantize(const char *in, const char *out, const struct pn_quantize_opts *o, struct pn_quantize_result *ret, struct fo_err *e) {
    struct job j = { .o = o };
    struct pn_quantize_result r = { 0 };
    struct fo_buf head = { 0 };
    if (fo_model_open(in, &j.g, e)) return (int)e->code;
    r.n_tensors = fo_gguf_n_tensors(j.g);
    int rc = refuse_input(j.g, out, e);
    if (!rc) rc = fo_pool_new(o->n_threads, &j.pool, e);
    if (rc) goto done;
    size_t n_threads = (size_t)fo_pool_threads(j.pool);
    j.types = calloc(r.n_tensors + 1, sizeof *j.types);
    j.slab = malloc(SLAB_BYTES);
    j.wide = calloc(n_threads, 2 * PIECE * sizeof *j.wide);
    j.bad = calloc(n_threads, sizeof *j.bad);
    if (!j.types || !j.slab || !j.wide || !j.bad) {
        rc = (int)fo_fail(e, FO_ENOMEM, "no memory to quantise with");
        goto done;
    }
    rc = look_at_rows(&j, e);
    if (!rc) rc = pn_mix_types(o->mix, j.g, j.types, &r.n_fallback, e);
    if (!rc) rc = plan(&j, &head, &r, e);
    if (rc) {
        fo_wrap(e, "%s", in);
        goto done;
    }
    rc = fo_outfile_open(out, o->replace, head.len + j.total, &j.out, e);
    if (!rc) rc = fo_outfile_write(j.out, head.data, head.len, e);
    if (!rc) rc = write_data(&j, e);
    if (!rc) {
        rc = fo_outfile_commit(j.out, e);
        j.out = NULL;
    }
    if (!rc) *ret = r;
done:
    fo_outfile_drop(j.out);
    fo_pool_free(j.pool);
    fo_gguf_close(j.g);
    fo_buf_done(&head);
    free(j.types);
    free(j.slab);
    free(j.rows);
    free(j.wide);
    free(j.bad);
    return rc;
}
