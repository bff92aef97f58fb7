/* `pantheon bench` and `pantheon logits`: the forward pass alone, without queue, sampler or HTTP. Bench measures what a user feels:
 * prefill of a prompt of N tokens in the chunks that serving uses, and decode of single tokens at a depth. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/cli.h"
#include "engine/model.h"
#include "engine/version.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"

static double seconds(void) {
    return (double)fo_now_ns() * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Random ids, the same in every run; what a token is does not change what it costs. */
static void fill(int32_t *ids, int64_t n, uint32_t n_vocab) {
    struct fo_rng r;
    fo_rng_seed(&r, 1);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(fo_rng_u64(&r) % n_vocab);
}

/* Feeds n tokens in chunks of max_batch, logits of the last only. */
static int prefill(struct pn_model *m, struct pn_seq *s, const int32_t *ids, int64_t n, struct fo_err *e) {
    uint32_t chunk = pn_model_info(m)->max_batch;
    for (int64_t at = 0; at < n;) {
        uint32_t k = n - at < chunk ? (uint32_t)(n - at) : chunk;
        float *logits;
        struct pn_batch_item item = { .seq = s, .tokens = ids + at, .n = k, .want = at + k == n ? PN_WANT_LAST : PN_WANT_NONE };
        int rc = pn_model_forward(m, &item, 1, &logits, e);
        if (rc) return rc;
        at += k;
    }
    return FO_OK;
}

/* Median seconds of `repeat` runs: prefill n tokens on an empty sequence (decode 0), or generate n after `depth` (decode 1). */
static int measure(struct pn_model *m, bool decode, int64_t depth, int64_t n, int repeat, const int32_t *ids, double *ret_seconds, struct fo_err *e) {
    double *t = calloc((size_t)repeat, sizeof *t);
    struct pn_seq *s = NULL;
    int rc = t ? FO_OK : fo_fail(e, FO_ENOMEM, "no memory");
    for (int i = 0; !rc && i < repeat; i++) {
        rc = pn_seq_new(m, &s, e);
        if (!rc) rc = pn_seq_reserve(s, (uint32_t)(depth + n), e);
        if (!rc && depth) rc = prefill(m, s, ids, depth, e);
        double start = seconds();
        for (int64_t k = 0; !rc && decode && k < n; k++) rc = prefill(m, s, ids + depth + k, 1, e);
        if (!rc && !decode) rc = prefill(m, s, ids, n, e);
        t[i] = seconds() - start;
        pn_seq_free(s);
        s = NULL;
    }
    if (!rc) {
        qsort(t, (size_t)repeat, sizeof *t, compare);
        *ret_seconds = repeat % 2 ? t[repeat / 2] : (t[repeat / 2 - 1] + t[repeat / 2]) / 2;
    }
    free(t);
    return rc;
}

int pd_cli_bench(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    struct pd_cli_list p = a->prefill, d = a->depth, n = a->decode;
    if (!p.n) p = (struct pd_cli_list){ .v = { 512 }, .n = 1 };
    if (!d.n) d = (struct pd_cli_list){ .v = { 0 }, .n = 1 };
    if (!n.n) n = (struct pd_cli_list){ .v = { 64 }, .n = 1 };
    int64_t gen = n.v[0], most = 1;
    for (int i = 0; i < p.n; i++)
        if (p.v[i] > most) most = p.v[i];
    for (int i = 0; i < d.n; i++)
        if (d.v[i] + gen > most) most = d.v[i] + gen;
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct pn_model *m = NULL;
    int32_t *ids = NULL;
    int rc = PD_EXIT_FAILURE, repeat = a->repeat ? (int)a->repeat : 3;
    pd_cli_progress("loading %s ...", path);
    if (pd_cli_open_device(a, &dev, &e)) goto fail;
    int64_t cap = a->models[a->n_models].ctx_cap ? a->models[a->n_models].ctx_cap : most;
    struct pn_model_opts o = { .dev = dev, .ctx_cap = (uint32_t)cap, .kv_default = true, .no_mmap = a->no_mmap };
    if (pn_model_open(path, &o, &m, &e)) goto fail;
    const struct pn_model_info *info = pn_model_info(m);
    ids = calloc((size_t)most, sizeof *ids);
    if (!ids) {
        fo_fail(&e, FO_ENOMEM, "no memory");
        goto fail;
    }
    fill(ids, most, info->n_vocab);
    double warm;
    if (measure(m, false, 0, most < 16 ? most : 16, 1, ids, &warm, &e)) goto fail; /* touch every weight once */
    if (a->json)
        printf("{\"model\":\"%s\",\"type\":\"%s\",\"backend\":\"%s\",\"isa\":\"%s\",\"build\":\"%s\",\"repeat\":%d,\"prefill\":[", info->arch, info->ftype,
               fo_device_build_backend(), fo_device_isa(dev), pn_build(), repeat);
    int shown = 0;
    for (int i = 0; i < p.n; i++) {
        double s;
        if (!p.v[i]) continue;
        pd_cli_progress("prefill %lld ...", (long long)p.v[i]);
        if (measure(m, false, 0, p.v[i], repeat, ids, &s, &e)) goto fail;
        pd_cli_progress(NULL);
        printf(a->json ? "%s{\"tokens\":%lld,\"tokens_per_second\":%.3f}" : "%sprefill %6lld tokens  %10.2f tok/s\n", a->json && shown++ ? "," : "",
               (long long)p.v[i], (double)p.v[i] / s);
    }
    if (a->json) fputs("],\"decode\":[", stdout);
    shown = 0;
    for (int i = 0; gen && i < d.n; i++) {
        double s;
        pd_cli_progress("decode at %lld ...", (long long)d.v[i]);
        if (measure(m, true, d.v[i], gen, repeat, ids, &s, &e)) goto fail;
        pd_cli_progress(NULL);
        printf(a->json ? "%s{\"depth\":%lld,\"tokens_per_second\":%.3f}" : "%sdecode at depth %6lld  %6.2f tok/s\n", a->json && shown++ ? "," : "",
               (long long)d.v[i], (double)gen / s);
    }
    if (a->json) fputs("]}\n", stdout);
    rc = fflush(stdout) == 0 ? PD_EXIT_OK : pd_cli_failf("writing the output: %s", strerror(errno));
    goto out;
fail:
    rc = pd_cli_fail(&e);
out:
    free(ids);
    pn_model_free(m);
    fo_device_close(dev);
    return rc;
}

/* "1,2,3" to ids; NULL after a message. */
static int32_t *parse_tokens(const char *s, size_t *ret_n) {
    size_t n = 1;
    for (const char *p = s; *p; p++) n += *p == ',';
    int32_t *ids = calloc(n, sizeof *ids);
    if (!ids) {
        pd_cli_failf("no memory for %zu tokens", n);
        return NULL;
    }
    const char *p = s;
    for (size_t i = 0; i < n; i++) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX || (*end != (i + 1 < n ? ',' : '\0'))) {
            pd_cli_failf("--tokens: number %zu is no token id", i + 1);
            free(ids);
            return NULL;
        }
        ids[i] = (int32_t)v;
        p = end + 1;
    }
    *ret_n = n;
    return ids;
}

int pd_cli_logits(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    if (!a->tokens || !a->out) {
        pd_cli_failf("give --tokens 1,2,3 and --out FILE");
        return PD_EXIT_USAGE;
    }
    size_t n;
    int32_t *ids = parse_tokens(a->tokens, &n);
    if (!ids) return PD_EXIT_USAGE;
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct pn_model *m = NULL;
    struct pn_seq *s = NULL;
    FILE *out = NULL;
    bool to_stdout = strcmp(a->out, "-") == 0;
    int rc = PD_EXIT_FAILURE;
    if (pd_cli_open_device(a, &dev, &e)) goto done;
    int64_t cap = a->models[a->n_models].ctx_cap;
    struct pn_model_opts o = { .dev = dev, .ctx_cap = (uint32_t)cap, .kv_default = true, .all_logits = true };
    if (pn_model_open(path, &o, &m, &e)) goto done;
    const struct pn_model_info *info = pn_model_info(m);
    if (n > info->ctx_cap) {
        fo_fail_need(&e, FO_EBUDGET, n, info->ctx_cap, "%zu tokens are more than the cap of %u", n, info->ctx_cap);
        goto done;
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= (int32_t)info->n_vocab) {
            fo_fail(&e, FO_EINVAL, "token %d (number %zu) is out of range: the vocabulary has %u", ids[i], i + 1, info->n_vocab);
            goto done;
        }
    if (pn_seq_new(m, &s, &e) || pn_seq_reserve(s, (uint32_t)n, &e)) goto done;
    out = to_stdout ? stdout : fopen(a->out, "wb");
    if (!out) {
        fo_fail_errno(&e, errno, "%s", a->out);
        goto done;
    }
    for (size_t at = 0; at < n;) {
        uint32_t k = n - at < info->max_batch ? (uint32_t)(n - at) : info->max_batch;
        float *logits;
        struct pn_batch_item item = { .seq = s, .tokens = ids + at, .n = k, .want = PN_WANT_ALL };
        if (pn_model_forward(m, &item, 1, &logits, &e) || pn_model_state(m, &e)) goto done;
        if (fwrite(logits, sizeof *logits * info->n_vocab, k, out) != k) {
            fo_fail_errno(&e, errno, "%s", a->out);
            goto done;
        }
        at += k;
    }
    if (fflush(out) != 0) {
        fo_fail_errno(&e, errno, "%s", a->out);
        goto done;
    }
    rc = PD_EXIT_OK;
done:
    if (rc != PD_EXIT_OK) pd_cli_fail(&e);
    if (out && !to_stdout) {
        struct stat st;
        bool file = fstat(fileno(out), &st) == 0 && S_ISREG(st.st_mode); /* never takes a device away */
        if (fclose(out) != 0 && rc == PD_EXIT_OK) rc = pd_cli_failf("%s: %s", a->out, strerror(errno));
        if (rc != PD_EXIT_OK && file) unlink(a->out); /* no half file that looks like a result */
    }
    pn_seq_free(s);
    pn_model_free(m);
    fo_device_close(dev);
    free(ids);
    return rc;
}
