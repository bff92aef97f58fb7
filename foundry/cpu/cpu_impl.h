/* What the files of the cpu device share: cpu.c opens it and multiplies, attend.c keeps KV and attends. Nobody else includes this. */
#pragma once
#include "foundry/base/pool.h"
#include "foundry/cpu/kernels.h"
#include "foundry/device.h"
#include "foundry/ops.h"

enum { WORTH_BYTES = 1 << 15 /* of operands of a job for more than one thread */ };

struct cpu {
    struct fo_device dev;
    struct fo_cpu_kernels kern;
    struct fo_attn_kernels ref_attn; /* the reference's */
    bool exact;
    struct fo_pool *pool;
};

struct tile_scratch;
struct cpu_stream {
    struct fo_stream base;
    void *block;
    uint64_t block_bytes;
    unsigned char *act;
    float *line;          /* [threads][max_k] */
    unsigned char *strip; /* [threads][fo_gemm_scratch_bytes(max_k)], none where no batch is that large */
    struct tile_scratch *tiles; /* [threads], of fo_cpu_attend_bytes */
    float *parts;               /* [parts_floats], of fo_cpu_attend_parts */
    uint64_t parts_floats;
    /* The rotation of the last batch: valid while inv_freq, attn_factor and pos are what they were. */
    float *rope_cos, *rope_sin; /* [max_rows][ROPE_PAIRS] */
    double *rope_freq;          /* [ROPE_PAIRS] */
    int32_t *rope_pos;          /* [max_rows] */
    float rope_factor;
    int rope_n, rope_pairs;
};

static inline struct cpu *cpu_of(const struct fo_stream *s) {
    return s->dev->priv;
}

/* Units on the pool; here, where the operands are so small that waking a thread costs more than it brings. */
static inline void run(struct cpu *c, fo_pool_fn *fn, void *arg, int units, uint64_t bytes) {
    if (units <= 1 || bytes < WORTH_BYTES)
        fn(arg, 0, units, 0);
    else
        fo_pool_run(c->pool, fn, arg, units);
}

/* Units that any thread may take, `grain` at a time. */
static inline void share(struct cpu *c, fo_pool_fn *fn, void *arg, int units, int grain, uint64_t bytes) {
    if (units <= 1 || bytes < WORTH_BYTES)
        fn(arg, 0, units, 0);
    else
        fo_pool_share(c->pool, fn, arg, units, grain);
}

/* Slots of the device in attend.c: see ops.h. */
int fo_cpu_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                    struct fo_err *e);
int fo_cpu_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                  struct fo_err *e);
int fo_cpu_kv_requantise(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e);
/* Scratch that they need: bytes of a thread, and floats of a stream. */
uint64_t fo_cpu_attend_bytes(void);
uint64_t fo_cpu_attend_parts(int n_threads, int max_rows, int64_t max_k, int64_t max_ctx);
