/* `pantheon drift`: which op is wrong. The work is engine/drift.h's; here it is told. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cli.h"
#include "engine/drift.h"
#include "engine/model.h"
#include "engine/vocab.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

enum { MAX_TEXT = 1 << 20, DEFAULT_TOKENS = 64 };

static const char default_text[] =
    "The first machines that could be told what to do were looms. A card with holes decided which threads were lifted, and a chain of "
    "cards wove a picture: in 1805 one portrait took 24,000 of them. int main(void) { return 0; } Wer das Muster \xC3\xA4ndern wollte, "
    "tauschte eine Karte.";

/* --- devices ------------------------------------------------------------------------------------------------------------------- */

/* "exact", "cpu", "cpu:avx2", "sim:NAME", "cuda:0000:04:00.0". */
static int open_device(const struct pd_cli_args *a, const char *spec, struct fo_device **ret, struct fo_err *e) {
    char kind[16];
    size_t len = strcspn(spec, ":");
    const char *rest = spec[len] ? spec + len + 1 : "";
    bool exact = strcmp(spec, "exact") == 0, cpu = exact || (len == 3 && memcmp(spec, "cpu", 3) == 0);
    if (len == 0 || len >= sizeof kind) return fo_fail(e, FO_EINVAL, "device '%s': expected exact, cpu, cpu:ISA, or KIND:ADDRESS", spec);
    memcpy(kind, spec, len);
    kind[len] = '\0';
    struct fo_device_opts o = { .n_threads = (int)a->threads, .isa = cpu && rest[0] ? rest : NULL, .exact = exact };
    return fo_device_open(cpu ? "cpu" : kind, cpu ? NULL : rest, &o, ret, e);
}

static void describe(const struct fo_device *d, char *out, size_t size) {
    const char *isa = d->exact ? "exact" : fo_device_isa(d);
    snprintf(out, size, "%s%s%s", d->die.name, isa[0] ? ", " : "", isa);
}

/* --- tokens -------------------------------------------------------------------------------------------------------------------- */

/* *ret_ids NULL: pn_drift chooses. */
static int choose_tokens(const struct pd_cli_args *a, const char *path, struct pn_ids *ret, struct fo_err *e) {
    struct pn_vocab *v = NULL;
    char *text = NULL;
    size_t len = 0;
    uint32_t most = a->max_tokens ? (uint32_t)a->max_tokens : DEFAULT_TOKENS;
    if (a->file && pd_cli_read(a->file, MAX_TEXT, &text, &len, e)) return e->code;
    const char *from = text ? text : a->prompt ? a->prompt : default_text;
    if (!text) len = strlen(from);
    int rc = pn_vocab_open(path, &v, e);
    if (!rc) rc = pn_vocab_encode(v, from, len, false, true, ret, e);
    if (rc && from == default_text) {
        *ret = (struct pn_ids){ .ids = NULL, .n = most };
        rc = FO_OK;
    }
    if (!rc && ret->n > most) ret->n = most;
    pn_vocab_free(v);
    free(text);
    return rc;
}

/* --- text ---------------------------------------------------------------------------------------------------------------------- */

static void where(const struct pn_drift *d, const struct pn_drift_op *op, char *out, size_t size) {
    if (op->layer < 0)
        snprintf(out, size, "input%s%s", op->name[0] ? ", " : "", op->name);
    else if (op->layer >= (int)d->n_layer)
        snprintf(out, size, "output%s%s", op->name[0] ? ", " : "", op->name);
    else
        snprintf(out, size, "layer %d%s%s", op->layer, op->name[0] ? ", " : "", op->name);
}

static bool has_type(const char *op) {
    return strncmp(op, "matmul", 6) == 0 || strcmp(op, "get_rows") == 0 || strcmp(op, "attend") == 0;
}

/* The position of a row, when the op has a row for each token of its step; -1 otherwise (an expert has its own rows). */
static int64_t token_of(const struct pn_drift *d, const struct pn_drift_op *op) {
    int64_t before = 0;
    if ((uint32_t)op->n != d->steps[op->step]) return -1;
    for (uint32_t i = 0; i < op->step; i++) before += d->steps[i];
    return before + op->row;
}

static void print_first(const struct pn_drift *d) {
    const struct pn_drift_op *op = &d->first;
    char at[192];
    int64_t token = token_of(d, op);
    where(d, op, at, sizeof at);
    printf("FIRST PAST ITS TOLERANCE: %s, %s\n", op->op, at);
    printf("  shapes      [%d, %lld] -> [%d, %lld]%s%s; step %u of %u, op %u of it\n", op->n, (long long)op->k_in, op->n, (long long)op->k,
           has_type(op->op) ? strcmp(op->op, "attend") == 0 ? ", KV in " : ", weights in " : "", has_type(op->op) ? fo_dtype_name(op->type) : "",
           op->step + 1, d->n_steps, op->number + 1);
    printf("  worst at    row %d, element %lld", op->row, (long long)op->index);
    if (token >= 0) printf(" (token %lld of the text)", (long long)token + 1);
    printf("\n  values      %.9g, expected %.9g\n", (double)op->value, (double)op->expected);
    printf("  difference  %.3g, allowed %.3g: %.3g times as much\n", op->diff, op->allowed, op->share);
    if (op->has_truth)
        printf("  in double   %.9g: off by %.2g, what it is held against by %.2g\n", op->truth, fabs((double)op->value - op->truth),
               fabs((double)op->expected - op->truth));
    if (op->note) printf("  note        %s\n", op->note);
}

static void print_kinds(const struct pn_drift *d) {
    printf("%-12s %-7s %6s %6s %9s %11s %11s  %s\n", "op", "type", "ops", "past", "tolerance", "difference", "of allowed", "largest at");
    for (int i = 0; i < d->n_kinds; i++) {
        const struct pn_drift_kind *k = &d->kinds[i];
        char at[192];
        where(d, &k->worst, at, sizeof at);
        printf("%-12s %-7s %6llu %6llu %9.0e %11.3g %11.3g  %s\n", k->op, has_type(k->op) ? fo_dtype_name(k->type) : "", (unsigned long long)k->n_ops,
               (unsigned long long)k->n_past, k->tolerance, k->worst.diff, k->worst.share, at);
    }
}

/* "F16", or of keys and of values "Q8_0/Q4_0". */
static const char *kv_text(const struct pn_drift *d, char out[32]) {
    bool both = d->k_type == d->v_type;
    snprintf(out, 32, "%s%s%s", fo_dtype_name(d->k_type), both ? "" : "/", both ? "" : fo_dtype_name(d->v_type));
    return out;
}

static void print_report(const struct pn_drift *d, const char *path, const char *dev, const char *against) {
    char kv[32];
    printf("%s: %s, held against %s\n%u tokens in steps of", path, dev, against, d->n_tokens);
    for (uint32_t i = 0; i < d->n_steps; i++) printf("%s%u", i ? ", " : " ", d->steps[i]);
    printf("; KV in %s\n\nEach op from the same inputs:\n", kv_text(d, kv));
    print_kinds(d);
    printf("\n");
    if (d->past)
        print_first(d);
    else
        printf("No difference of %llu ops passes its tolerance.\n", (unsigned long long)d->n_ops);
    printf("\nEach side from its own results (RMS of the difference over that of the values, at the end of each layer):\n");
    for (uint32_t i = 0; i < d->n_layer; i++) printf("%s%4u %8.2e%s", i % 6 ? "  " : "  ", i, d->layers[i], i % 6 == 5 || i + 1 == d->n_layer ? "\n" : "");
    printf("logits: largest difference %.3g, RMS %.3g (%.3g of theirs); the likeliest token is the same after %u of %u\n", d->logits_max,
           d->logits_rms, d->logits_share, d->same_top, d->n_tokens);
}

/* --- JSON ---------------------------------------------------------------------------------------------------------------------- */

/* JSON has no infinity and no NaN: null. */
static json_t *number(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *op_json(const struct pn_drift *d, const struct pn_drift_op *op) {
    json_t *j = json_pack("{s:s, s:s, s:i, s:i, s:i, s:[i,I], s:[i,I], s:i, s:I}", "op", op->op, "weights", op->name, "layer",
                          op->layer >= 0 && op->layer < (int)d->n_layer ? op->layer : -1, "step", (int)op->step, "number", (int)op->number, "input", op->n,
                          (json_int_t)op->k_in, "output", op->n, (json_int_t)op->k, "row", op->row, "element", (json_int_t)op->index);
    if (has_type(op->op)) json_object_set_new(j, "type", json_string(fo_dtype_name(op->type)));
    json_object_set_new(j, "value", number((double)op->value));
    json_object_set_new(j, "expected", number((double)op->expected));
    json_object_set_new(j, "difference", number(op->diff));
    json_object_set_new(j, "allowed", number(op->allowed));
    json_object_set_new(j, "share", number(op->share));
    if (op->has_truth) json_object_set_new(j, "double", number(op->truth));
    if (op->note) json_object_set_new(j, "note", json_string(op->note));
    return j;
}

static int print_json(const struct pn_drift *d, const char *path, const char *dev, const char *against) {
    char kv[32];
    json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:i, s:s}", "model", path, "device", dev, "against", against, "past", d->past, "ops",
                          (json_int_t)d->n_ops, "ops_past", (json_int_t)d->n_past, "tokens", (int)d->n_tokens, "kv", kv_text(d, kv));
    json_t *steps = json_array(), *kinds = json_array(), *layers = json_array(), *logits = json_object();
    for (uint32_t i = 0; i < d->n_steps; i++) json_array_append_new(steps, json_integer(d->steps[i]));
    for (int i = 0; i < d->n_kinds; i++) {
        const struct pn_drift_kind *k = &d->kinds[i];
        json_t *one = json_pack("{s:s, s:I, s:I, s:f, s:o?}", "op", k->op, "ops", (json_int_t)k->n_ops, "past", (json_int_t)k->n_past, "tolerance",
                                k->tolerance, "worst", op_json(d, &k->worst));
        if (has_type(k->op)) json_object_set_new(one, "type", json_string(fo_dtype_name(k->type)));
        json_array_append_new(kinds, one);
    }
    for (uint32_t i = 0; i < d->n_layer; i++) json_array_append_new(layers, number(d->layers[i]));
    json_object_set_new(logits, "largest", number(d->logits_max));
    json_object_set_new(logits, "rms", number(d->logits_rms));
    json_object_set_new(logits, "rms_share", number(d->logits_share));
    json_object_set_new(logits, "same_top", json_integer(d->same_top));
    json_object_set_new(j, "steps", steps);
    json_object_set_new(j, "first", d->past ? op_json(d, &d->first) : json_null());
    json_object_set_new(j, "kinds", kinds);
    json_object_set_new(j, "layers", layers);
    json_object_set_new(j, "logits", logits);
    char *text = json_dumps(j, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(j);
    if (!text) return pd_cli_failf("no memory for the report");
    puts(text);
    free(text);
    return PD_EXIT_OK;
}

/* --- the command --------------------------------------------------------------------------------------------------------------- */

static int progress(void *ctx, uint32_t step, uint32_t n_steps, struct fo_err *e) {
    (void)ctx;
    pd_cli_progress("step %u of %u ...", step + 1, n_steps);
    return pd_cli_interrupted() ? (int)fo_fail(e, FO_ECANCELLED, "interrupted") : FO_OK;
}

int pd_cli_drift(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    if (!!a->tokens + !!a->prompt + !!a->file > 1) {
        pd_cli_failf("give one of --tokens, --text and --file");
        return PD_EXIT_USAGE;
    }
    struct fo_err e;
    struct fo_device *dev = NULL, *against = NULL;
    struct pn_ids ids = { 0 };
    struct pn_drift d;
    struct pn_model_opts kv = { 0 };
    char names[2][64];
    int rc;
    if (pd_cli_kv(a, &kv, &e)) return pd_cli_fail(&e), PD_EXIT_USAGE;
    pd_cli_catch_interrupt();
    if (a->tokens) {
        size_t n = 0;
        ids.ids = pd_cli_token_ids(a->tokens, &n);
        if (!ids.ids) return PD_EXIT_USAGE;
        ids.n = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    }
    if ((!a->tokens && choose_tokens(a, path, &ids, &e)) || open_device(a, a->device ? a->device : "cpu", &dev, &e) ||
        open_device(a, a->against ? a->against : "exact", &against, &e)) {
        rc = pd_cli_fail(&e);
        goto out;
    }
    struct pn_drift_opts o = { .dev = dev,
                               .against = against,
                               .ids = ids.ids,
                               .n = ids.n,
                               .ctx_cap = (uint32_t)a->models[a->n_models].ctx_cap,
                               .k_type = kv.k_type,
                               .v_type = kv.v_type,
                               .has_kv_type = !kv.kv_default,
                               .progress = progress };
    if (pn_drift(path, &o, &d, &e)) {
        pd_cli_progress(NULL);
        rc = e.code == FO_ECANCELLED ? PD_EXIT_INTERRUPTED : PD_EXIT_FAILURE;
        pd_cli_fail(&e);
        goto out;
    }
    pd_cli_progress(NULL);
    describe(dev, names[0], sizeof names[0]);
    describe(against, names[1], sizeof names[1]);
    rc = PD_EXIT_OK;
    if (a->json)
        rc = print_json(&d, path, names[0], names[1]);
    else
        print_report(&d, path, names[0], names[1]);
    if (fflush(stdout) != 0) rc = pd_cli_failf("writing the output: %s", strerror(errno));
    if (rc == PD_EXIT_OK && d.past) rc = PD_EXIT_DIFFERS;
    pn_drift_done(&d);
out:
    free(ids.ids);
    fo_device_close(against);
    fo_device_close(dev);
    return rc;
}
