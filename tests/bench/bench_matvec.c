/* Matrix times vector and times a batch, per weight type, on weights that no cache holds: GB/s of weights beside a pure read of the same
 * bytes in the same second (a rate without its read says nothing on a shared host), and GOP/s for a batch. The last column is what the
 * kernel itself can do: the best of many runs over rows that stay in the cache, too short for others to disturb them all.
 *     make bench, or build/release/tests/bench/bench_matvec [TYPE|all [K]]; PANTHEON_ISA chooses the kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "foundry/base/err.h"
#include "foundry/base/pool.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/ops.h"

enum { BATCH = 64, SAMPLES = 7, SHORT_RUNS = 400, CACHED_BYTES = 192 << 10 };
static const uint64_t WEIGHT_BYTES = 160u << 20;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v) {
    qsort(v, SAMPLES, sizeof *v, by_value);
    return v[SAMPLES / 2];
}

struct read_job {
    const uint64_t *p;
    uint64_t sums[64];
};

/* Units are pages. */
static void read_part(void *arg, int lo, int hi, int thread) {
    struct read_job *j = arg;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (const uint64_t *p = j->p + (size_t)lo * 512, *end = j->p + (size_t)hi * 512; p < end; p += 32)
        for (int i = 0; i < 32; i += 4) a += p[i], b += p[i + 1], c += p[i + 2], d += p[i + 3];
    j->sums[thread & 63] += a + b + c + d;
}

static int measure(struct fo_stream *s, struct fo_pool *pool, enum fo_dtype type, int64_t k, void *w, const float *x, struct fo_err *e) {
    uint64_t row_bytes = fo_dtype_bytes(type, (uint64_t)k);
    int64_t rows = (int64_t)(WEIGHT_BYTES / row_bytes), few = rows < 4096 ? rows : 4096;
    int64_t cached = CACHED_BYTES / (int64_t)row_bytes + 1;
    struct fo_tensor all = fo_tensor_2d(type, k, rows, w), part = fo_tensor_2d(type, k, few, w), short_part = fo_tensor_2d(type, k, cached, w);
    float *y = malloc((size_t)(rows > BATCH * few ? rows : BATCH * few) * sizeof *y);
    if (!y) return fo_fail(e, FO_ENOMEM, "no memory for the results");
    struct read_job job = { .p = w };
    double vec[SAMPLES], read[SAMPLES], mat[SAMPLES];
    int rc = FO_OK;
    for (int n = -1; n < SAMPLES && !rc; n++) { /* the first round warms up */
        double t0 = now();
        rc = fo_matmul(s, &all, x, 1, y, e);
        double t1 = now();
        fo_pool_run(pool, read_part, &job, (int)(row_bytes * (uint64_t)rows / 4096));
        double t2 = now();
        if (!rc) rc = fo_matmul(s, &part, x, BATCH, y, e);
        if (n >= 0) vec[n] = t1 - t0, read[n] = t2 - t1, mat[n] = now() - t2;
    }
    double best = 1;
    for (int n = 0; n < SHORT_RUNS && !rc; n++) {
        double t0 = now();
        rc = fo_matmul(s, &short_part, x, 1, y, e);
        double t = now() - t0;
        best = t < best ? t : best;
    }
    free(y);
    if (rc) return rc;
    double bytes = (double)(row_bytes * (uint64_t)rows);
    printf("  %-8s %10.1f %10.1f %10.0f %10.1f\n", fo_dtype_name(type), bytes / median(vec) / 1e9, bytes / median(read) / 1e9,
           2.0 * (double)few * (double)k * BATCH / median(mat) / 1e9, (double)row_bytes * (double)cached / best / 1e9);
    fflush(stdout);
    return FO_OK;
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "all";
    int64_t k = argc > 2 ? strtoll(argv[2], NULL, 10) : 2048;
    struct fo_rng rng;
    struct fo_err e = { .msg = "K is a number of elements" };
    int rc = k > 0 && k < 1 << 20 ? FO_OK : FO_EINVAL;
    fo_rng_seed(&rng, 1);
    for (int threads = 1; threads <= fo_cpu_count() && !rc; threads *= 2) {
        struct fo_device *d = NULL;
        struct fo_stream *s = NULL;
        struct fo_pool *pool = NULL;
        void *w = NULL;
        float *x = calloc((size_t)(BATCH * k), sizeof *x);
        rc = x ? fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = threads }, &d, &e) : FO_ENOMEM;
        if (!rc) rc = d->stream_open(d, BATCH, k, 1, &s, &e);
        if (!rc) rc = d->alloc(d, WEIGHT_BYTES, &w, &e);
        if (!rc) rc = fo_pool_new(threads, &pool, &e);
        if (rc) break;
        for (uint64_t i = 0; i < WEIGHT_BYTES / 8; i++) ((uint64_t *)w)[i] = fo_rng_u64(&rng) & UINT64_C(0x3BFF3BFF3BFF3BFF); /* finite halves */
        for (int64_t i = 0; i < BATCH * k; i++) x[i] = (float)fo_rng_unit(&rng) - 0.5f;
        printf("%s, %d thread%s, K = %lld\n  %-8s %10s %10s %10s %10s\n", fo_device_isa(d), threads, threads > 1 ? "s" : "", (long long)k, "type", "GB/s",
               "read GB/s", "GOP/s x64", "cached");
        for (uint32_t i = 0; i < FO_N_DTYPES && !rc; i++) {
            const struct fo_dtype_info *type = fo_dtype_info(i);
            if (!type || !type->to_f32 || i == FO_Q8_K || k % type->block != 0) continue;
            if (strcmp(only, "all") == 0 || strcmp(only, type->name) == 0) rc = measure(s, pool, (enum fo_dtype)i, k, w, x, &e);
        }
        free(x);
        fo_pool_free(pool);
        d->free(d, w, WEIGHT_BYTES);
        d->stream_close(s);
        fo_device_close(d);
    }
    if (rc) fprintf(stderr, "bench_matvec: %s\n", e.msg);
    return rc ? 1 : 0;
}
