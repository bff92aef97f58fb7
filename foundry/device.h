/* Devices ("dies"): where weights and KV live and ops run. One flat table of functions a device; THE list of backends is in
 * device.c. A device is opened once and shared by all workers on it; each worker has its own stream. Ops are called through
 * ops.h, which checks shapes; slots may trust them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_tensor;
struct fo_device;
struct fo_stream;
struct fo_rope;
struct fo_fused;
struct fo_kv_geom;
struct fo_attn_batch;

/* One die that a backend found (or was told of), opened or not. A value. */
struct fo_die {
    char name[32];         /* "cpu" or what the manifest calls it */
    char kind[16];         /* "cpu", "cuda", "tt", "metal", "sim" */
    char address[32];      /* stable address (PCI; sim: its name), "" for cpu */
    char model[64];        /* "AMD EPYC 7B13", "Tesla K80" */
    uint64_t memory_bytes; /* total */
};

struct fo_device_opts {
    int n_threads;   /* cpu: 0 = as fo_cpu_count says */
    const char *isa; /* cpu: "auto" (or NULL), "scalar", "sse", "avx2", "avx512", "neon", "dotprod": the highest overlay to use;
                        the environment variable PANTHEON_ISA wins. One that this CPU lacks is an error. */
    bool exact;      /* cpu, sim: reference kernels on dequantised weights, f32 activations: the definition of every result */
    const char *name;      /* what the die is called in messages (die.name); NULL = the backend's own word */
    uint64_t memory_bytes; /* sim: its size; 0 = as PANTHEON_SIM says */
    const char *script;    /* sim: its faults (foundry/sim/README.md); NULL = none, or as PANTHEON_SIM says */
};

/* What a die's driver says of its health. Each kind of reading is there or not, by itself. */
struct fo_sensors {
    bool has_temperature, has_power, has_ecc;
    double temperature_celsius, power_watts;
    uint64_t ecc_corrected, ecc_uncorrected; /* errors of its memory since the driver was loaded */
};

/* The flat table. Every address is the device's own; `bytes` never 0. Compute slots return 0 or FO_ELOST/FO_EUNSUPPORTED with
 * the op's name; they may return before the work is done (a GPU), sync waits. On the cpu `stream` only carries scratch. */
struct fo_device {
    const char *kind;
    struct fo_die die;
    void *priv; /* the backend's own state */

    void (*close)(struct fo_device *d);
    /* FO_ELOST while the die is lost: asking again is how one learns that it came back. What was allocated before is gone then (ops on
     * it give FO_ELOST for good) but is still to be freed. */
    int (*memory)(struct fo_device *d, uint64_t *ret_total, uint64_t *ret_free, struct fo_err *e);
    int (*alloc)(struct fo_device *d, uint64_t bytes, void **ret, struct fo_err *e); /* aligned to 4096; zeroed or untouched pages */
    void (*free)(struct fo_device *d, void *block, uint64_t bytes);
    int (*upload)(struct fo_device *d, void *dst, const void *host, uint64_t bytes, struct fo_err *e);
    int (*download)(struct fo_device *d, void *host, const void *src, uint64_t bytes, struct fo_err *e);
    /* Readings as they are now; those that cannot be had are left out, also of a die that is lost. NULL: the driver has none. Waits for nothing
     * that computes. */
    void (*sensors)(struct fo_device *d, struct fo_sensors *ret);
    /* What lies in [p, p + bytes) of one of its blocks is of no use any more and may be anything from now on: memory that is the host's goes back to
     * it (whole OS pages within). NULL: a die whose blocks hold what they hold. */
    void (*discard)(struct fo_device *d, void *p, uint64_t bytes);
    /* Contexts that this process holds on the die: 0 once nothing is allocated and no stream is open, so that it may idle. NULL on
     * a device without such a thing. */
    uint32_t (*contexts)(struct fo_device *d);
    bool weights_in_place; /* weights may stay in the mapped file (cpu): no upload, `data` points into the map */
    bool exact;            /* opened with fo_device_opts.exact: a model then keeps its KV in f32 unless told otherwise */
    /* Whether this device serves an op on weights of a type; asked at load for every tensor. */
    bool (*serves)(struct fo_device *d, uint32_t dtype);

    /* scratch_bytes for a stream that runs matmuls of at most max_rows activation rows of at most max_k elements and attends over
     * at most max_ctx positions: measured, so that the budget can count it. */
    uint64_t (*stream_bytes)(struct fo_device *d, int max_rows, int64_t max_k, int64_t max_ctx);
    int (*stream_open)(struct fo_device *d, int max_rows, int64_t max_k, int64_t max_ctx, struct fo_stream **ret, struct fo_err *e);
    void (*stream_close)(struct fo_stream *s);
    int (*sync)(struct fo_stream *s, struct fo_err *e);

    /* --- compute slots: documented in ops.h, same order, same arguments --- */
    int (*get_rows)(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e);
    int (*matmul_many)(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                       struct fo_err *e); /* fo_matmul is this with one matrix */
    /* NULL: ops.c puts it together from the others. */
    int (*matmul_fused)(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                        struct fo_err *e);
    int (*rms_norm)(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e);
    int (*add)(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e);
    int (*add_rows)(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out,
                    struct fo_err *e);
    int (*silu_mul)(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e);
    int (*rope)(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e);
    int (*kv_store)(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                    struct fo_err *e);
    int (*attend)(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                  struct fo_err *e);
    int (*kv_requantise)(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e); /* NULL: it cannot */
};

struct fo_stream {
    struct fo_device *dev; /* backends embed this struct first in their own */
    int max_rows;          /* what it was opened for; ops.h checks against these */
    int64_t max_k, max_ctx;
};

/* Dies that this build can drive on this host, cpu first; returns how many were written. `why` (may be NULL) gets one line per
 * backend that found none, for the start-up message. */
int fo_device_probe(struct fo_die *ret, int cap, char *why, size_t why_size);

/* Opens a die by kind (and address; of a sim die: its name). FO_EUNSUPPORTED names the backends of this build. */
int fo_device_open(const char *kind, const char *address, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e);
void fo_device_close(struct fo_device *d); /* NULL is allowed; all streams are closed before */

/* "cpu", "cuda", ...: the accelerator backend this binary was built for ("cpu" = none). */
const char *fo_device_build_backend(void);

/* As the slot; 0 without one. */
uint32_t fo_device_contexts(struct fo_device *d);
/* As the slot; without one no reading is there. */
void fo_device_sensors(struct fo_device *d, struct fo_sensors *ret);

/* The overlay that an open cpu device uses, named as in its options; "" for other devices. */
const char *fo_device_isa(const struct fo_device *d);
