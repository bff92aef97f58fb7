/* `pantheon bench` and `pantheon logits`: the forward pass alone, without queue, sampler or HTTP. Bench measures what a user feels:
 * prefill of a prompt of N tokens in the chunks that serving uses, and decode at a depth, of one sequence or of several together as a server
 * steps them. */
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

/* One thing to measure: the prefill of n tokens on an empty sequence (n_seqs 0), or n steps in each of which every one of n_seqs sequences
 * that hold `depth` tokens decodes its next, with so many drafted tokens behind it, which are taken back. */
struct work {
    int n_seqs;
    int64_t depth, n;
    uint32_t drafts;
};

/* Its seconds, once. Sequence i reads its tokens i places further on in `ids`, so that a step's tokens differ. */
static int once(struct pn_model *m, const struct work *w, const int32_t *ids, double *ret_seconds, struct fo_err *e) {
    struct pn_seq *seqs[PD_CLI_MAX_BATCH] = { 0 };
    struct pn_batch_item items[PD_CLI_MAX_BATCH];
    int n_seqs = w->n_seqs ? w->n_seqs : 1, rc = FO_OK;
    for (int i = 0; !rc && i < n_seqs; i++) {
        rc = pn_seq_new(m, &seqs[i], e);
        if (!rc) rc = pn_seq_reserve(seqs[i], (uint32_t)(w->depth + w->n + w->drafts), e);
        if (!rc && w->depth) rc = prefill(m, seqs[i], ids + i, w->depth, e);
    }
    double start = seconds();
    if (!rc && !w->n_seqs) rc = prefill(m, seqs[0], ids, w->n, e);
    for (int64_t k = 0; !rc && w->n_seqs && k < w->n; k++) {
        float *logits;
        for (int i = 0; i < n_seqs; i++)
            items[i] = (struct pn_batch_item){ .seq = seqs[i], .tokens = ids + i + w->depth + k, .n = 1 + (w->drafts ? pn_seq_drafts(seqs[i], w->drafts) : 0),
                                               .want = PN_WANT_ALL };
        rc = pn_model_forward(m, items, n_seqs, &logits, e);
        for (int i = 0; !rc && i < n_seqs; i++) pn_seq_take_back(seqs[i], (uint32_t)(w->depth + k + 1));
    }
    if (!rc) *ret_seconds = seconds() - start;
    for (int i = 0; i < n_seqs; i++) pn_seq_free(seqs[i]);
    return rc;
}

/* Tokens per second, all sequences together: the median of `repeat` runs. */
static int measure(struct pn_model *m, const struct work *w, int repeat, const int32_t *ids, double *ret_rate, struct fo_err *e) {
    double *t = calloc((size_t)repeat, sizeof *t);
    int rc = t ? FO_OK : fo_fail(e, FO_ENOMEM, "no memory");
    for (int i = 0; !rc && i < repeat; i++) rc = once(m, w, ids, &t[i], e);
    if (!rc) {
        qsort(t, (size_t)repeat, sizeof *t, compare);
        double median = repeat % 2 ? t[repeat / 2] : (t[repeat / 2 - 1] + t[repeat / 2]) / 2;
        *ret_rate = (double)(w->n * (w->n_seqs ? w->n_seqs : 1)) / median;
    }
    free(t);
    return rc;
}

static int64_t largest(const struct pd_cli_list *l) {
    int64_t most = 0;
    for (int i = 0; i < l->n; i++)
        if (l->v[i] > most) most = l->v[i];
    return most;
}

static struct pd_cli_list list_or(struct pd_cli_list l, int64_t otherwise) {
    return l.n ? l : (struct pd_cli_list){ .v = { otherwise }, .n = 1 };
}

int pd_cli_bench(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    struct pd_cli_list p = list_or(a->prefill, 512), d = list_or(a->depth, 0), q = list_or(a->sequences, 1);
    int64_t gen = list_or(a->decode, 64).v[0], most = largest(&d) + gen + largest(&a->drafts), n_seqs = largest(&q);
    if (largest(&p) > most) most = largest(&p);
    if (most < 1) most = 1;
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct pn_model *m = NULL;
    int32_t *ids = NULL;
    int rc = PD_EXIT_FAILURE, repeat = a->repeat ? (int)a->repeat : 3;
    pd_cli_progress("loading %s ...", path);
    if (pd_cli_open_device(a, &dev, &e)) goto fail;
    int64_t cap = a->models[a->n_models].ctx_cap ? a->models[a->n_models].ctx_cap : most;
    struct pn_model_opts o = { .dev = dev, .ctx_cap = (uint32_t)cap, .no_mmap = a->no_mmap };
    o.max_sessions = o.max_concurrent = (uint32_t)n_seqs;
    o.draft_rows = (uint32_t)largest(&a->drafts);
    if (pd_cli_kv(a, &o, &e) || pn_model_open(path, &o, &m, &e)) goto fail;
    const struct pn_model_info *info = pn_model_info(m);
    ids = calloc((size_t)(most + n_seqs), sizeof *ids);
    if (!ids) {
        fo_fail(&e, FO_ENOMEM, "no memory");
        goto fail;
    }
    fill(ids, most + n_seqs, info->n_vocab);
    double rate;
    if (measure(m, &(struct work){ .n = most < 16 ? most : 16 }, 1, ids, &rate, &e)) goto fail; /* touch every weight once */
    if (a->json)
        printf("{\"model\":\"%s\",\"type\":\"%s\",\"backend\":\"%s\",\"isa\":\"%s\",\"build\":\"%s\",\"repeat\":%d,\"prefill\":[", info->arch, info->ftype,
               fo_device_build_backend(), fo_device_isa(dev), pn_build(), repeat);
    int shown = 0;
    for (int i = 0; i < p.n; i++) {
        if (!p.v[i]) continue;
        pd_cli_progress("prefill %lld ...", (long long)p.v[i]);
        if (measure(m, &(struct work){ .n = p.v[i] }, repeat, ids, &rate, &e)) goto fail;
        pd_cli_progress(NULL);
        if (a->json) printf("%s{\"tokens\":%lld,\"tokens_per_second\":%.3f}", shown++ ? "," : "", (long long)p.v[i], rate);
        else printf("prefill %6lld tokens  %10.2f tok/s\n", (long long)p.v[i], rate);
    }
    if (a->json) fputs("],\"decode\":[", stdout);
    shown = 0;
    for (int i = 0; gen && i < d.n * q.n; i++) {
        struct work w = { .n_seqs = (int)q.v[i % q.n], .depth = d.v[i / q.n], .n = gen };
        pd_cli_progress("decode at %lld, %d together ...", (long long)w.depth, w.n_seqs);
        if (measure(m, &w, repeat, ids, &rate, &e)) goto fail;
        pd_cli_progress(NULL);
        if (a->json) printf("%s{\"depth\":%lld,\"sequences\":%d,\"tokens_per_second\":%.3f}", shown++ ? "," : "", (long long)w.depth, w.n_seqs, rate);
        else if (w.n_seqs == 1) printf("decode at depth %6lld  %6.2f tok/s\n", (long long)w.depth, rate);
        else printf("decode at depth %6lld  %6.2f tok/s of %d sequences together\n", (long long)w.depth, rate, w.n_seqs);
    }
    if (a->json && a->drafts.n) fputs("],\"drafts\":[", stdout);
    shown = 0;
    for (int i = 0; gen && i < d.n * a->drafts.n; i++) {
        struct work w = { .n_seqs = 1, .depth = d.v[i / a->drafts.n], .n = gen, .drafts = (uint32_t)a->drafts.v[i % a->drafts.n] };
        pd_cli_progress("decode at %lld, %u drafted ...", (long long)w.depth, w.drafts);
        if (measure(m, &w, repeat, ids, &rate, &e)) goto fail;
        pd_cli_progress(NULL);
        double all = rate * (1 + w.drafts);
        if (a->json) printf("%s{\"depth\":%lld,\"drafted\":%u,\"none_accepted_per_second\":%.3f,\"all_accepted_per_second\":%.3f}", shown++ ? "," : "", (long long)w.depth, w.drafts, rate, all);
        else printf("decode at depth %6lld  %6.2f tok/s with %u drafted and none accepted, %.2f with all\n", (long long)w.depth, rate, w.drafts, all);
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
int32_t *pd_cli_token_ids(const char *s, size_t *ret_n) {
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
    int32_t *ids = pd_cli_token_ids(a->tokens, &n);
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
    struct pn_model_opts o = { .dev = dev, .ctx_cap = (uint32_t)cap, .all_logits = true };
    if (pd_cli_kv(a, &o, &e) || pn_model_open(path, &o, &m, &e)) goto done;
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
