/* Attention by kind of KV, with 32 query heads on 8 KV heads of 64 dimensions (those of llama-1b): a token at depth 8,192, as GB/s of KV that one thread
 * reads, and a prompt of 512, as milliseconds a layer for attending and for storing. One thread and its CPU time, the best of many runs, the
 * kinds taking turns: what others do on the machine hardly shows.
 *     make bench, or build/release/tests/bench/bench_attend [DEPTH [PROMPT]]; PANTHEON_ISA chooses the kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/ops.h"

enum { N_LAYER = 8, N_HEAD = 32, N_HEAD_KV = 8, HEAD_DIM = 64, ROUNDS = 12, K = N_HEAD * HEAD_DIM };
static const enum fo_dtype kinds[] = { FO_F32, FO_F16, FO_Q8_0, FO_Q4_0 };
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double least(double a, double b) {
    return a == 0 || b < a ? b : a;
}

struct cache {
    struct fo_kv_geom g;
    uint64_t bytes;
    double decode, attend, store; /* seconds of a layer, the best so far */
};

/* KV of the whole depth, in every layer, in pieces of `rows`. */
static int fill(struct fo_stream *s, const struct cache *c, const float *x, const uint32_t *pages, int depth, int rows, struct fo_err *e) {
    int rc = FO_OK;
    for (int l = 0; l < N_LAYER; l++)
        for (int at = 0; at < depth && !rc; at += rows) {
            struct fo_attn_seq seq = { .n = depth - at < rows ? depth - at : rows, .pos = at, .pages = pages };
            struct fo_attn_batch b = { .seqs = &seq, .n_seqs = 1, .n_rows = seq.n };
            rc = fo_kv_store(s, &c->g, x, x + rows, &b, l, e);
        }
    return rc;
}

static int round_of(struct fo_stream *s, struct cache *c, const float *x, float *out, const uint32_t *pages, int depth, int prompt, struct fo_err *e) {
    struct fo_attn_seq last = { .n = 1, .pos = depth - 1, .pages = pages }, all = { .n = prompt, .pages = pages };
    struct fo_attn_batch one = { .seqs = &last, .n_seqs = 1, .n_rows = 1 }, many = { .seqs = &all, .n_seqs = 1, .n_rows = prompt };
    int rc = FO_OK;
    for (int l = 0; l < N_LAYER && !rc; l++) {
        double t = cpu_seconds();
        rc = fo_attend(s, &c->g, x, &one, l, out, e);
        c->decode = least(c->decode, cpu_seconds() - t);
    }
    double t = cpu_seconds();
    if (!rc) rc = fo_kv_store(s, &c->g, x, x + prompt, &many, 0, e);
    c->store = least(c->store, cpu_seconds() - t);
    t = cpu_seconds();
    if (!rc) rc = fo_attend(s, &c->g, x, &many, 0, out, e);
    c->attend = least(c->attend, cpu_seconds() - t);
    return rc;
}

int main(int argc, char **argv) {
    int depth = argc > 1 ? atoi(argv[1]) : 8192, prompt = argc > 2 ? atoi(argv[2]) : 512, rc;
    if (depth < prompt || prompt < 1 || depth > 1 << 20) {
        fprintf(stderr, "bench_attend: DEPTH of at most a million, PROMPT no longer\n");
        return 1;
    }
    int n_pages = (depth + FO_KV_PAGE_TOKENS - 1) / FO_KV_PAGE_TOKENS;
    struct cache caches[N_KINDS] = { 0 };
    struct fo_device *d = NULL;
    struct fo_stream *s = NULL;
    struct fo_err e = { .msg = "no memory" };
    float *x = malloc(((size_t)prompt * K + (size_t)prompt) * sizeof *x), *out = malloc((size_t)prompt * K * sizeof *out);
    uint32_t *pages = malloc((size_t)n_pages * sizeof *pages);
    rc = x && out && pages ? fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &d, &e) : FO_ENOMEM;
    if (!rc) rc = d->stream_open(d, prompt, K, depth, &s, &e);
    struct fo_rng rng;
    fo_rng_seed(&rng, 1);
    for (size_t i = 0; !rc && i < (size_t)prompt * K + (size_t)prompt; i++) x[i] = 2 * (float)fo_rng_unit(&rng) - 1;
    for (int i = 0; !rc && i < n_pages; i++) pages[i] = (uint32_t)i;
    for (int i = 0; !rc && i < N_KINDS; i++) {
        struct cache *c = &caches[i];
        void *pool = NULL;
        c->g = (struct fo_kv_geom){ .k_type = kinds[i], .v_type = kinds[i], .n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .head_dim = HEAD_DIM,
                                    .page_tokens = FO_KV_PAGE_TOKENS, .n_pages = (uint64_t)n_pages, .scale = 0.125f, .n_head = N_HEAD };
        c->bytes = fo_kv_page_bytes(&c->g) * c->g.n_pages;
        rc = d->alloc(d, c->bytes, &pool, &e);
        c->g.pool = pool;
        if (!rc) rc = fill(s, c, x, pages, depth, prompt, &e);
    }
    for (int n = 0; n < ROUNDS && !rc; n++)
        for (int i = 0; i < N_KINDS && !rc; i++) rc = round_of(s, &caches[i], x, out, pages, depth, prompt, &e);
    if (!rc) printf("%s, 1 thread, %d heads on %d of %d dimensions\n  %-6s %18s %12s %16s %14s\n", fo_device_isa(d), N_HEAD, N_HEAD_KV, HEAD_DIM, "KV", "at depth, GB/s", "ms a layer",
                    "prompt, ms", "storing, ms");
    for (int i = 0; i < N_KINDS; i++) {
        struct cache *c = &caches[i];
        if (!rc)
            printf("  %-6s %18.1f %12.3f %16.2f %14.3f\n", fo_dtype_name(kinds[i]), (double)c->bytes / N_LAYER / c->decode / 1e9, c->decode * 1e3, c->attend * 1e3, c->store * 1e3);
        if (d) d->free(d, c->g.pool, c->bytes);
    }
    if (rc) fprintf(stderr, "bench_attend: %s\n", e.msg);
    free(x), free(out), free(pages);
    if (s) d->stream_close(s);
    fo_device_close(d);
    return rc ? 1 : 0;
}
