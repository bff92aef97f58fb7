/* `pantheon quantize` and `pantheon perplexity`: making a model smaller, and what that costs. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cli.h"
#include "engine/mix.h"
#include "engine/model.h"
#include "engine/perplexity.h"
#include "engine/quantize.h"
#include "engine/text.h"
#include "foundry/base/err.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

enum { MAX_TEXT = 256 << 20, DEFAULT_WINDOW = 512 };

void pd_cli_list_types(FILE *to) {
    fputs("TYPE is one of", to);
    for (size_t i = 0; pn_mix_at(i); i++) fprintf(to, "%s %s", i ? "," : "", pn_mix_name(pn_mix_at(i)));
    fputc('\n', to);
}

static int interrupted(struct fo_err *e) {
    return pd_cli_interrupted() ? (int)fo_fail(e, FO_ECANCELLED, "interrupted") : FO_OK;
}

static int quantize_progress(void *ctx, uint64_t done, uint64_t total, struct fo_err *e) {
    (void)ctx;
    char size[32];
    pd_cli_progress("%3.0f%% of %s ...", total ? 100.0 * (double)done / (double)total : 100.0, fo_format_bytes(total, size, sizeof size));
    return interrupted(e);
}

/* "pantheon: <message>"; the exit status of an error: one that Ctrl-C made is none of the program's. */
static int ended(const struct fo_err *e) {
    pd_cli_fail(e);
    return e->code == FO_ECANCELLED ? PD_EXIT_INTERRUPTED : PD_EXIT_FAILURE;
}

int pd_cli_quantize(const struct pd_cli_args *a) {
    struct fo_err e;
    struct pn_quantize_result r;
    if (a->n_rest != 3) {
        pd_cli_failf("give IN, OUT and TYPE: pantheon quantize model-f16.gguf model-q4.gguf Q4_K_M");
        return PD_EXIT_USAGE;
    }
    struct pn_quantize_opts o = { .mix = pn_mix_find(a->rest[2]), .replace = a->force, .n_threads = (int)a->threads, .go_on = quantize_progress };
    if (!o.mix) {
        pd_cli_failf("'%s' is no type to quantise to", a->rest[2]);
        pd_cli_list_types(stderr);
        return PD_EXIT_USAGE;
    }
    if (!a->force && access(a->rest[1], F_OK) == 0) return pd_cli_failf("%s exists: --force replaces it", a->rest[1]);
    pd_cli_catch_end();
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write() */
    if (pn_quantize(a->rest[0], a->rest[1], &o, &r, &e)) return ended(&e);
    pd_cli_progress(NULL);
    char in[32], out[32];
    printf("%s: %s, %zu tensors, %s (was %s)\n", a->rest[1], pn_mix_name(o.mix), r.n_tensors, fo_format_bytes(r.out_bytes, out, sizeof out),
           fo_format_bytes(r.in_bytes, in, sizeof in));
    if (r.n_fallback) printf("%zu tensors have rows that do not suit this type: another stands in for it\n", r.n_fallback);
    if (r.n_requantised) printf("%zu tensors were quantised before: a file made from F32, F16 or BF16 is better\n", r.n_requantised);
    return fflush(stdout) == 0 ? PD_EXIT_OK : pd_cli_failf("writing the output: %s", strerror(errno));
}

static int perplexity_progress(void *ctx, const struct pn_perplexity *p, uint32_t n_windows, struct fo_err *e) {
    (void)ctx;
    pd_cli_progress("window %u of %u: perplexity %.4f +/- %.4f", p->n_windows, n_windows, p->value, p->error);
    return interrupted(e);
}

int pd_cli_perplexity(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    if (!a->file) {
        pd_cli_failf("which text? Give --file TEXT (- = stdin)");
        return PD_EXIT_USAGE;
    }
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct pn_model *m = NULL;
    struct pn_ids ids = { 0 };
    struct pn_perplexity p;
    char *text = NULL;
    size_t len;
    int rc;
    uint32_t window = a->window ? (uint32_t)a->window : DEFAULT_WINDOW;
    pd_cli_catch_end();
    pd_cli_progress("loading %s ...", path);
    struct pn_model_opts o = { .ctx_cap = window, .max_batch = 128, .no_mmap = a->no_mmap, .all_logits = true };
    if (pd_cli_read(a->file, MAX_TEXT, &text, &len, &e) || pd_cli_open_device(a, &dev, &e) || pd_cli_kv(a, &o, &e) || (o.dev = dev, pn_model_open(path, &o, &m, &e)) ||
        pn_text_encode(m, text, len, false, true, 0, &ids, &e) ||
        pn_perplexity(m, ids.ids, ids.n, window, perplexity_progress, NULL, &p, &e)) {
        rc = ended(&e);
        goto out;
    }
    pd_cli_progress(NULL);
    printf(a->json ? "{\"perplexity\":%.6f,\"error\":%.6f,\"tokens\":%llu,\"windows\":%u,\"window\":%u}\n"
                   : "perplexity %.4f +/- %.4f over %llu tokens (%u windows of %u)\n",
           p.value, p.error, (unsigned long long)p.n_scored, p.n_windows, p.window);
    rc = fflush(stdout) == 0 ? PD_EXIT_OK : pd_cli_failf("writing the output: %s", strerror(errno));
out:
    free(ids.ids);
    free(text);
    pn_model_free(m);
    fo_device_close(dev);
    return rc;
}
