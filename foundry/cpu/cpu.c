/* The cpu device: splits each op into units for the pool and calls the kernel table on ranges of them. Weights stay in the mapped file
 * (weights_in_place); memory comes from mmap, zeroed and untouched, so that a reserved KV pool costs nothing until it is used.
 *
 * matmul      1. the activations are converted (and normalised before, if asked), row by row, to what the weights' dots want (struct fo_act
 *                in the stream's scratch);
 *             2. the rows of all matrices of the call form one range [0, rows), which the threads share, some rows at a time; a batch
 *             goes through the type's gemm where there is one, which gives the same bits as its dot.
 *             What follows rows of the result, a gate or a sum, their thread does at once.
 *             A weight type without a dot, and every type on an exact device, is dequantised row by row into the thread's own line
 *             of scratch and goes through the f32 dot.
 * attention   is in attend.c.
 *
 * Scratch of a stream (scratch_layout, the same function measures and carves): converted activations, one dequantised row a thread,
 * a thread's tile of attention and its partial results, and the rotation table of the batch, which serves q and k of every layer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "foundry/base/arena.h"
#include "foundry/base/err.h"
#include "foundry/cpu/cpu_impl.h"

enum {
    ROPE_PAIRS = 128,     /* most pairs of a head whose rotation is kept for the batch; more are computed anew each time */
    GRAIN_BYTES = 32768,  /* of weights that a thread takes at a time: two microseconds of reading against an atomic addition */
    GRAIN_ROWS = 32,      /* takings are of so many rows or a multiple: whole strips of every gemm */
    GRAINS_A_THREAD = 8,  /* in a batch, which passes all its activations by each taking */
    BLOCK_BYTES = 16384,  /* of weight rows that stay in the first cache while tiles of activations pass */
    HUGE_FROM_BYTES = 1 << 25, /* blocks from here on are asked to be of huge pages; smaller ones would grow by too much */
};

/* --- memory -------------------------------------------------------------------------------------------------------------------- */

static uint64_t total_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static int cpu_memory(struct fo_device *d, uint64_t *ret_total, uint64_t *ret_free, struct fo_err *e) {
    uint64_t total = total_bytes(), available = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    if (f) {
        char line[128];
        unsigned long long kib;
        while (fgets(line, sizeof line, f))
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) available = (uint64_t)kib * 1024;
        fclose(f);
    }
    if (!available) available = (uint64_t)(sysconf(_SC_AVPHYS_PAGES) > 0 ? sysconf(_SC_AVPHYS_PAGES) : 0) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (!total) return fo_fail(e, FO_EIO, "%s: the system does not say how much memory it has", d->die.name);
    *ret_total = total;
    *ret_free = available < total ? available : total;
    return FO_OK;
}

static int cpu_alloc(struct fo_device *d, uint64_t bytes, void **ret, struct fo_err *e) {
    void *p = bytes && bytes <= SIZE_MAX / 2 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        uint64_t total = 0, available = 0;
        struct fo_err ignored;
        cpu_memory(d, &total, &available, &ignored);
        return fo_fail_need(e, FO_ENOMEM, bytes, available, "%s: no block of %llu bytes", d->die.name, (unsigned long long)bytes);
    }
    /* Weights and KV are read end to end every step; with pages of 4 KiB the walks of their tables cost a tenth of it. */
    if (bytes >= HUGE_FROM_BYTES) madvise(p, bytes, MADV_HUGEPAGE);
    *ret = p;
    return FO_OK;
}

static void cpu_free(struct fo_device *d, void *block, uint64_t bytes) {
    (void)d;
    if (block) munmap(block, bytes);
}

static void cpu_discard(struct fo_device *d, void *p, uint64_t bytes) {
    (void)d;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), lo = ((uintptr_t)p + page - 1) / page * page, hi = ((uintptr_t)p + bytes) / page * page;
    if (lo < hi) madvise((char *)p + (lo - (uintptr_t)p), hi - lo, MADV_DONTNEED);
}

static int cpu_upload(struct fo_device *d, void *dst, const void *host, uint64_t bytes, struct fo_err *e) {
    (void)d, (void)e;
    memcpy(dst, host, bytes);
    return FO_OK;
}

static int cpu_download(struct fo_device *d, void *host, const void *src, uint64_t bytes, struct fo_err *e) {
    return cpu_upload(d, host, src, bytes, e);
}

static bool cpu_serves(struct fo_device *d, uint32_t dtype) {
    (void)d;
    const struct fo_dtype_info *t = fo_dtype_info(dtype);
    return t && t->to_f32;
}

/* --- streams ------------------------------------------------------------------------------------------------------------------- */

struct scratch {
    uint64_t act, line, strip, tiles, parts, parts_floats, cosine, sine, freq, pos;
};

static int scratch_layout(const struct cpu *c, struct fo_arena *a, int max_rows, int64_t max_k, int64_t max_ctx, struct scratch *ret, struct fo_err *e) {
    if (max_rows <= 0 || max_k <= 0 || max_k > INT32_MAX)
        return fo_fail(e, FO_EINTERNAL, "stream for %d rows of %lld elements", max_rows, (long long)max_k);
    uint64_t q8_0 = fo_act_row_bytes(FO_Q8_0, max_k), q8_k = fo_act_row_bytes(FO_Q8_K, max_k), rows = (uint64_t)max_rows;
    uint64_t table = rows * ROPE_PAIRS * sizeof(float);
    int rc = fo_arena_take(a, rows * (q8_0 > q8_k ? q8_0 : q8_k), 64, &ret->act, e);
    if (!rc) rc = fo_arena_take(a, (uint64_t)fo_pool_threads(c->pool) * (uint64_t)max_k * sizeof(float), 64, &ret->line, e);
    uint64_t strips = c->exact || max_rows < FO_GEMM_FROM ? 0 : (uint64_t)fo_pool_threads(c->pool) * fo_gemm_scratch_bytes(max_k);
    if (!rc) rc = fo_arena_take(a, strips, 64, &ret->strip, e);
    ret->parts_floats = fo_cpu_attend_parts(fo_pool_threads(c->pool), max_rows, max_k, max_ctx);
    if (!rc) rc = fo_arena_take(a, (uint64_t)fo_pool_threads(c->pool) * fo_cpu_attend_bytes(), 64, &ret->tiles, e);
    if (!rc) rc = fo_arena_take(a, ret->parts_floats * sizeof(float), 64, &ret->parts, e);
    if (!rc) rc = fo_arena_take(a, table, 64, &ret->cosine, e);
    if (!rc) rc = fo_arena_take(a, table, 64, &ret->sine, e);
    if (!rc) rc = fo_arena_take(a, ROPE_PAIRS * sizeof(double), 64, &ret->freq, e);
    if (!rc) rc = fo_arena_take(a, rows * sizeof(int32_t), 64, &ret->pos, e);
    return rc;
}

static uint64_t cpu_stream_bytes(struct fo_device *d, int max_rows, int64_t max_k, int64_t max_ctx) {
    struct fo_arena a;
    struct scratch at;
    struct fo_err ignored;
    fo_arena_init_measure(&a);
    return scratch_layout(d->priv, &a, max_rows, max_k, max_ctx, &at, &ignored) ? 0 : a.used;
}

static void cpu_stream_close(struct fo_stream *s) {
    if (!s) return;
    struct cpu_stream *cs = (struct cpu_stream *)s;
    cpu_free(s->dev, cs->block, cs->block_bytes);
    free(cs);
}

static int cpu_stream_open(struct fo_device *d, int max_rows, int64_t max_k, int64_t max_ctx, struct fo_stream **ret, struct fo_err *e) {
    struct scratch at;
    struct fo_arena a;
    fo_arena_init_measure(&a);
    int rc = scratch_layout(d->priv, &a, max_rows, max_k, max_ctx, &at, e);
    if (rc) return rc;
    struct cpu_stream *s = calloc(1, sizeof *s);
    if (!s) return fo_fail_need(e, FO_ENOMEM, sizeof *s, 0, "%s: no memory for a stream", d->die.name);
    s->base = (struct fo_stream){ .dev = d, .max_rows = max_rows, .max_k = max_k, .max_ctx = max_ctx };
    s->block_bytes = a.used;
    rc = cpu_alloc(d, s->block_bytes, &s->block, e);
    if (rc) goto fail;
    fo_arena_init_host(&a, s->block, s->block_bytes);
    rc = scratch_layout(d->priv, &a, max_rows, max_k, max_ctx, &at, e);
    if (rc) goto fail;
    s->act = fo_arena_ptr(&a, at.act);
    s->line = fo_arena_ptr(&a, at.line);
    s->strip = fo_arena_ptr(&a, at.strip);
    s->tiles = fo_arena_ptr(&a, at.tiles);
    s->parts = fo_arena_ptr(&a, at.parts);
    s->parts_floats = at.parts_floats;
    s->rope_cos = fo_arena_ptr(&a, at.cosine);
    s->rope_sin = fo_arena_ptr(&a, at.sine);
    s->rope_freq = fo_arena_ptr(&a, at.freq);
    s->rope_pos = fo_arena_ptr(&a, at.pos);
    *ret = &s->base;
    return FO_OK;
fail:
    cpu_stream_close(&s->base);
    return rc;
}

static int cpu_sync(struct fo_stream *s, struct fo_err *e) {
    (void)s, (void)e;
    return FO_OK;
}

/* --- matmul -------------------------------------------------------------------------------------------------------------------- */

/* Rows of activations for the dots: normalised first where f says so. In type FO_F32 that is all, and goes to f->work. */
struct quant_job {
    const struct cpu *cpu;
    struct cpu_stream *s;
    const struct fo_fused *f;
    const float *x;
    struct fo_act act;
};

static void quant_part(void *arg, int lo, int hi, int thread) {
    const struct quant_job *j = arg;
    const struct fo_cpu_kernels *kern = &j->cpu->kern;
    float *line = j->s->line + (int64_t)thread * j->s->base.max_k;
    for (int i = lo; i < hi; i++) {
        const float *x = j->x + (int64_t)i * j->act.k;
        if (j->f->norm) {
            float *out = j->act.type == FO_F32 ? j->f->work + (int64_t)i * j->act.k : line;
            kern->rms_norm(x, j->f->norm, j->act.k, j->f->eps, out);
            x = out;
        }
        if (j->act.type == FO_F32) continue;
        if (j->act.type == FO_Q8_0)
            kern->quant_q8_0(x, j->act.k, fo_act_q8_0(&j->act, i));
        else
            kern->quant_q8_k(x, j->act.k, fo_act_q8_k(&j->act, i));
    }
}

struct matmul_job {
    const struct cpu *cpu;
    struct cpu_stream *s;
    const struct fo_fused *f;
    const struct fo_tensor *const *w;
    float *const *y;
    int n_w, n;
    struct fo_act act;
};

/* The activations a weight type's dot takes on this device. */
static enum fo_dtype act_type(const struct cpu *c, enum fo_dtype type) {
    return c->exact || !c->kern.dot[type] ? FO_F32 : fo_dtype_info(type)->act;
}

/* Rows [lo, hi) of one matrix against all n rows of activations. */
static void matmul_rows(const struct matmul_job *j, const struct fo_tensor *w, float *y, int64_t lo, int64_t hi, int thread) {
    const struct cpu *c = j->cpu;
    size_t row_bytes = fo_dtype_bytes(w->type, (uint64_t)w->ne[0]), stride = (size_t)w->ne[1];
    const unsigned char *rows = w->data;
    bool dequantise = w->type != FO_F32 && (c->exact || !c->kern.dot[w->type]);
    fo_dot_fn *dot = c->kern.dot[dequantise ? FO_F32 : w->type];
    fo_gemm_fn *gemm = c->kern.gemm[w->type];
    int gemm_from = c->kern.gemm_from[w->type] ? c->kern.gemm_from[w->type] : FO_GEMM_FROM;
    if (!dequantise && gemm && j->n >= gemm_from) {
        gemm(rows + (size_t)lo * row_bytes, row_bytes, hi - lo, &j->act, j->n, y + (size_t)lo, stride,
             j->s->strip + (size_t)thread * fo_gemm_scratch_bytes(j->s->base.max_k));
        return;
    }
    int64_t block = dequantise ? 1 : j->n <= FO_TILE ? hi - lo : (int64_t)(BLOCK_BYTES / row_bytes) + 1;
    for (int64_t r = lo; r < hi; r += block) {
        int64_t n_rows = hi - r < block ? hi - r : block;
        const unsigned char *from = rows + (size_t)r * row_bytes;
        if (dequantise) {
            float *line = j->s->line + (int64_t)thread * j->s->base.max_k;
            fo_dtype_info(w->type)->to_f32(from, line, (size_t)w->ne[0]);
            from = (const unsigned char *)line;
        }
        for (int t = 0; t < j->n; t += FO_TILE)
            dot(from, row_bytes, n_rows, &j->act, t, j->n - t < FO_TILE ? j->n - t : FO_TILE, y + (size_t)t * stride + (size_t)r, stride);
    }
}

/* Rows [lo, hi) of what follows the matrices: they are still in the cache of the thread that computed them. */
static void finish_rows(const struct matmul_job *j, int64_t lo, int64_t hi) {
    const struct fo_cpu_kernels *kern = &j->cpu->kern;
    int64_t stride = j->w[0]->ne[1];
    for (int64_t t = 0; t < j->n; t++) {
        float *y = j->y[0] + t * stride + lo;
        if (j->f->gated) kern->silu_mul(y, j->y[1] + t * stride + lo, hi - lo, y);
        if (j->f->add_to) kern->add(j->f->add_to + t * stride + lo, y, hi - lo, j->f->add_to + t * stride + lo);
    }
}

/* Units are the rows of all matrices whose activations are of this job's type, one matrix after the other; of gated ones, the rows of both
 * together. */
static void matmul_part(void *arg, int lo, int hi, int thread) {
    const struct matmul_job *j = arg;
    if (j->f->gated || j->f->add_to) {
        for (int i = 0; i < j->n_w; i++) matmul_rows(j, j->w[i], j->y[i], lo, hi, thread);
        finish_rows(j, lo, hi);
        return;
    }
    int64_t first = 0;
    for (int i = 0; i < j->n_w; i++) {
        const struct fo_tensor *w = j->w[i];
        if (act_type(j->cpu, w->type) != j->act.type) continue;
        int64_t from = lo > first ? lo - first : 0, to = hi - first < w->ne[1] ? hi - first : w->ne[1];
        if (from < to) matmul_rows(j, w, j->y[i], from, to, thread);
        first += w->ne[1];
    }
}

/* Units that a thread takes at a time of work on `bytes` of weights with n rows of activations. */
static int grain_of(const struct cpu *c, int units, uint64_t bytes, int n) {
    uint64_t grain = (uint64_t)GRAIN_BYTES * (uint64_t)units / bytes;
    if (n >= FO_GEMM_FROM) grain = (uint64_t)units / (uint64_t)fo_pool_threads(c->pool) / GRAINS_A_THREAD;
    return (int)(grain / GRAIN_ROWS + 1) * GRAIN_ROWS;
}

/* One conversion and one pass over all matrices that take it. */
static void matmul_of(struct cpu_stream *cs, const struct fo_fused *f, enum fo_dtype kind, const struct fo_tensor *const *w, int n_w, const float *x, int n,
                      float *const *y) {
    struct cpu *c = cpu_of(&cs->base);
    uint64_t bytes = 0;
    int units = 0;
    for (int j = 0; j < n_w; j++) {
        if (act_type(c, w[j]->type) != kind) continue;
        units += (int)w[j]->ne[1];
        bytes += fo_tensor_bytes(w[j]);
    }
    if (!units) return;
    int64_t k = w[0]->ne[0];
    struct fo_act act = { .type = kind, .k = k, .x = f->norm ? f->work : x, .rows = cs->act, .row_bytes = fo_act_row_bytes(kind, k) };
    if (kind != FO_F32 || f->norm) {
        struct quant_job q = { .cpu = c, .s = cs, .f = f, .x = x, .act = act };
        run(c, quant_part, &q, n, (uint64_t)n * (uint64_t)k * sizeof(float));
    }
    struct matmul_job job = { .cpu = c, .s = cs, .f = f, .w = w, .y = y, .n_w = n_w, .n = n, .act = act };
    if (f->gated) units /= 2;
    share(c, matmul_part, &job, units, grain_of(c, units, bytes, n), bytes * (uint64_t)n);
}

static int cpu_matmul_fused(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n,
                            float *const *y, struct fo_err *e) {
    static const enum fo_dtype kinds[] = { FO_F32, FO_Q8_0, FO_Q8_K };
    struct cpu *c = cpu_of(s);
    struct fo_fused now = *f;
    bool apart = f->gated && act_type(c, w[0]->type) != act_type(c, w[1]->type); /* two conversions: the gate has to wait for both */
    if (apart) now.gated = false;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) matmul_of((struct cpu_stream *)s, &now, kinds[i], w, n_w, x, n, y);
    return apart ? s->dev->silu_mul(s, y[0], y[1], n, w[0]->ne[1], y[0], e) : FO_OK;
}

static int cpu_matmul_many(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                           struct fo_err *e) {
    return cpu_matmul_fused(s, &(struct fo_fused){ 0 }, w, n_w, x, n, y, e);
}

/* --- rows ---------------------------------------------------------------------------------------------------------------------- */

static int cpu_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e) {
    (void)s, (void)e;
    size_t k = (size_t)table->ne[0], row_bytes = fo_dtype_bytes(table->type, k);
    for (int i = 0; i < n; i++)
        fo_dtype_info(table->type)->to_f32((const unsigned char *)table->data + (size_t)ids[i] * row_bytes, out + (size_t)i * k, k);
    return FO_OK;
}

enum row_op { ROW_RMS_NORM, ROW_ADD, ROW_SILU_MUL };
struct row_job {
    const struct fo_cpu_kernels *kern;
    enum row_op op;
    const float *a, *b;
    int64_t k, b_stride;
    float eps;
    float *out;
};

static void row_part(void *arg, int lo, int hi, int thread) {
    (void)thread;
    const struct row_job *j = arg;
    for (int64_t i = lo; i < hi; i++) {
        const float *a = j->a + i * j->k, *b = j->b + i * j->b_stride;
        float *out = j->out + i * j->k;
        switch (j->op) {
        case ROW_RMS_NORM: j->kern->rms_norm(a, b, j->k, j->eps, out); break;
        case ROW_ADD: j->kern->add(a, b, j->k, out); break;
        case ROW_SILU_MUL: j->kern->silu_mul(a, b, j->k, out); break;
        }
    }
}

static int run_rows(struct fo_stream *s, struct row_job j, int n) {
    struct cpu *c = cpu_of(s);
    j.kern = &c->kern;
    run(c, row_part, &j, n, (uint64_t)n * (uint64_t)j.k * sizeof(float));
    return FO_OK;
}

static int cpu_rms_norm(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e) {
    (void)e;
    return run_rows(s, (struct row_job){ .op = ROW_RMS_NORM, .a = x, .b = weight, .k = k, .eps = eps, .out = out }, n);
}

static int cpu_add(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e) {
    (void)e;
    return run_rows(s, (struct row_job){ .op = ROW_ADD, .a = a, .b = b, .k = k, .b_stride = broadcast_b ? 0 : k, .out = out }, n);
}

static int cpu_add_rows(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out,
                        struct fo_err *e) {
    (void)s, (void)n_out, (void)e;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++) out[row[i] * k + j] += scale[i] * a[i * k + j];
    return FO_OK;
}

static int cpu_silu_mul(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e) {
    (void)e;
    return run_rows(s, (struct row_job){ .op = ROW_SILU_MUL, .a = gate, .b = up, .k = k, .b_stride = k, .out = out }, n);
}

/* cos and sin of one position, each [n_rot / 2]. */
static void rotation(const struct fo_rope *r, int32_t pos, float *cosine, float *sine) {
    for (int i = 0; i < r->n_rot / 2; i++) {
        double angle = pos * r->inv_freq[i];
        cosine[i] = (float)cos(angle) * r->attn_factor;
        sine[i] = (float)sin(angle) * r->attn_factor;
    }
}

struct rope_job {
    const struct fo_cpu_kernels *kern;
    const struct cpu_stream *s;
    const struct fo_rope *r;
    float *x;
    int n_head;
};

static void rope_part(void *arg, int lo, int hi, int thread) {
    (void)thread;
    const struct rope_job *j = arg;
    int64_t k = (int64_t)j->n_head * j->r->head_dim;
    for (int64_t i = lo; i < hi; i++)
        j->kern->rope(j->x + i * k, j->n_head, j->r, j->s->rope_cos + i * ROPE_PAIRS, j->s->rope_sin + i * ROPE_PAIRS);
}

static int cpu_rope(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e) {
    struct cpu *c = cpu_of(s);
    struct cpu_stream *cs = (struct cpu_stream *)s;
    int pairs = r->n_rot / 2;
    if (pairs > ROPE_PAIRS) return fo_fail(e, FO_EUNSUPPORTED, "rope: %d pairs a head, at most %d", pairs, ROPE_PAIRS);
    size_t freq_bytes = (size_t)pairs * sizeof(double);
    if (cs->rope_n < n || cs->rope_pairs != pairs || cs->rope_factor != r->attn_factor || memcmp(cs->rope_freq, r->inv_freq, freq_bytes) != 0 ||
        memcmp(cs->rope_pos, pos, (size_t)n * sizeof *pos) != 0) {
        for (int i = 0; i < n; i++) rotation(r, pos[i], cs->rope_cos + i * ROPE_PAIRS, cs->rope_sin + i * ROPE_PAIRS);
        memcpy(cs->rope_freq, r->inv_freq, freq_bytes);
        memcpy(cs->rope_pos, pos, (size_t)n * sizeof *pos);
        cs->rope_n = n;
        cs->rope_pairs = pairs;
        cs->rope_factor = r->attn_factor;
    }
    struct rope_job j = { .kern = &c->kern, .s = cs, .r = r, .x = x, .n_head = n_head };
    run(c, rope_part, &j, n, (uint64_t)n * (uint64_t)n_head * (uint64_t)r->head_dim * sizeof(float));
    return FO_OK;
}

/* --- the device ---------------------------------------------------------------------------------------------------------------- */

static void cpu_name(char *out, size_t size) {
    snprintf(out, size, "cpu");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon || colon[1] != ' ') continue;
        snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    fclose(f);
}

int fo_cpu_probe(struct fo_die *ret, int cap, char *why, size_t why_size) {
    if (cap < 1) {
        if (why && why_size) snprintf(why, why_size, "no room in the list of dies");
        return 0;
    }
    *ret = (struct fo_die){ .name = "cpu", .kind = "cpu", .memory_bytes = total_bytes() };
    cpu_name(ret->model, sizeof ret->model);
    return 1;
}

static void cpu_close(struct fo_device *d) {
    struct cpu *c = d->priv;
    fo_pool_free(c->pool);
    free(c);
}

int fo_cpu_open(const char *address, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e) {
    if (address[0]) return fo_fail(e, FO_ENOENT, "the cpu has no address, '%s' was given", address);
    struct cpu *c = calloc(1, sizeof *c);
    if (!c) return fo_fail_need(e, FO_ENOMEM, sizeof *c, 0, "no memory for the cpu device");
    const char *isa = getenv("PANTHEON_ISA");
    if (!isa || !isa[0]) isa = opts->isa;
    c->exact = opts->exact;
    int rc = fo_cpu_kernels_for(isa, &c->kern, e);
    if (!rc && c->exact) fo_cpu_ref(&c->kern);
    fo_cpu_ref_attn(&c->ref_attn);
    if (!rc) rc = fo_pool_new(opts->n_threads, &c->pool, e);
    if (rc) {
        free(c);
        return rc;
    }
    c->dev = (struct fo_device){
        .kind = "cpu",
        .priv = c,
        .close = cpu_close,
        .memory = cpu_memory,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .upload = cpu_upload,
        .download = cpu_download,
        .discard = cpu_discard,
        .weights_in_place = true,
        .exact = opts->exact,
        .serves = cpu_serves,
        .stream_bytes = cpu_stream_bytes,
        .stream_open = cpu_stream_open,
        .stream_close = cpu_stream_close,
        .sync = cpu_sync,
        .get_rows = cpu_get_rows,
        .matmul_many = cpu_matmul_many,
        .matmul_fused = cpu_matmul_fused,
        .rms_norm = cpu_rms_norm,
        .add = cpu_add,
        .add_rows = cpu_add_rows,
        .silu_mul = cpu_silu_mul,
        .rope = cpu_rope,
        .kv_store = fo_cpu_kv_store,
        .attend = fo_cpu_attend,
        .kv_requantise = fo_cpu_kv_requantise,
    };
    fo_cpu_probe(&c->dev.die, 1, NULL, 0);
    *ret = &c->dev;
    return FO_OK;
}

const char *fo_cpu_isa(const struct fo_device *d) {
    return ((const struct cpu *)d->priv)->kern.isa;
}
