/* OpenBLAS for long batches on F32 weights: `--isa blas` (or PANTHEON_ISA=blas) in builds with USE_BLAS=1. Only by that name, never by itself,
 * because it breaks THE rule of kernels.h: its kernels add in another order than the dots, and in yet another where a row lies elsewhere
 * within a register tile. What it computes for a token so depends on the tokens beside it, on the chunk, and on where the threads divide the
 * weights. Measured of 0.3.21 on Haswell's and Zen's kernels, whatever whole tiles it is called with: padding does not help, and a result that
 * depends on its own row alone would take a call a token.
 *
 * What it brings (one thread of a Zen 3 at about 3 GHz, GFLOP/s, rows of 2,048): at 32 rows 56 against the dot's 35, at 128 82 against 31, at
 * 16 and fewer nothing; SmolLM2 in F32, a prompt of 512: 1.6 to 1.9 times as fast. F16 and BF16 would have to be widened into memory for it first: at 128 rows 48 against 41, for a megabyte of scratch
 * a thread, which is not worth it. Quantised weights have integer kernels.
 *
 * The library is opened at run time, nothing is linked; it computes on the thread that calls it, each of the pool's on its own rows. */
#include "foundry/cpu/kernels.h"

#include "foundry/base/err.h"

#ifdef FO_BLAS
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { WORTH_ROWS = 32, ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                      float beta, float *c, int ldc);

static struct {
    sgemm_fn *sgemm;
    fo_dot_fn *dot; /* of the best overlay below, for what is shorter */
    char why[256];  /* there is no sgemm */
} blas;

static void *symbol(void *lib, const char *name) {
    void *p = dlsym(lib, name);
    if (!p) snprintf(blas.why, sizeof blas.why, "libopenblas.so.0 has no %s", name);
    return p;
}

static void open_library(void) {
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL); /* stays open: its threads and buffers cannot be taken back */
    if (!lib) {
        snprintf(blas.why, sizeof blas.why, "%s", dlerror());
        return;
    }
    union {
        void *p;
        sgemm_fn *sgemm;
        void (*set_threads)(int);
    } sgemm = { symbol(lib, "cblas_sgemm") }, threads = { symbol(lib, "openblas_set_num_threads") };
    struct fo_cpu_kernels best;
    struct fo_err e;
    if (!sgemm.p || !threads.p) return;
    if (fo_cpu_kernels_for("auto", &best, &e)) {
        snprintf(blas.why, sizeof blas.why, "%.*s", (int)sizeof blas.why - 1, e.msg);
        return;
    }
    blas.dot = best.dot[FO_F32];
    threads.set_threads(1);
    blas.sgemm = sgemm.sgemm;
}

static void gemm_f32(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int n, float *y, size_t y_stride, void *scratch) {
    (void)scratch;
    if (n >= WORTH_ROWS) {
        blas.sgemm(ROW_MAJOR, AS_IT_IS, TRANSPOSED, n, (int)n_rows, (int)a->k, 1, a->x, (int)a->k, (const float *)(const void *)w, (int)a->k, 0, y,
                   (int)y_stride);
        return;
    }
    for (int t = 0; t < n; t += FO_TILE)
        blas.dot(w, w_row_bytes, n_rows, a, t, n - t < FO_TILE ? n - t : FO_TILE, y + (size_t)t * y_stride, y_stride);
}

int fo_cpu_blas(struct fo_cpu_kernels *k, struct fo_err *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (!blas.sgemm) return fo_fail(e, FO_EUNSUPPORTED, "instruction set 'blas': %s", blas.why);
    k->gemm[FO_F32] = gemm_f32;
    k->isa = "blas";
    return FO_OK;
}
#else
int fo_cpu_blas(struct fo_cpu_kernels *k, struct fo_err *e) {
    (void)k;
    return fo_fail(e, FO_EUNSUPPORTED, "instruction set 'blas': this build has none (make USE_BLAS=1)");
}
#endif
