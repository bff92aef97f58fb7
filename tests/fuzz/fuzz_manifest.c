/* Any bytes as a manifest: parsed, every finding drawn, the invariants checked that every caller relies on. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "config/manifest.h"
#include "foundry/base/buf.h"

/* The same bytes as a file that is included, and what they include themselves. */
static void check_files(const char *text, size_t size) {
    static const char head[] = "version: 1\nmodels: [ { name: own, source: { path: p } } ]\n";
    const struct cf_text texts[] = { { "m.yaml", head, sizeof head - 1 }, { "i.yaml", text, size } };
    struct cf_manifest *m = NULL;
    struct cf_includes in;
    struct cf_report rep;
    struct fo_err e;
    if (cf_manifest_includes(text, size, &in, &e) || in.n > 64) abort();
    for (size_t i = 0; i < in.n; i++)
        if (!in.list[i].pattern || in.list[i].line < 1 || in.list[i].col < 1) abort();
    cf_includes_done(&in);
    int rc = cf_manifest_parse_files(texts, 2, NULL, 0, &m, &rep, &e);
    if ((rc == FO_OK) != (m != NULL) || (rc == FO_OK) != (rep.n == 0)) abort();
    char *s = rep.n ? cf_report_format(&rep, texts) : NULL;
    if (rep.n && !s) abort();
    for (size_t i = 0; m && i < m->n_models; i++)
        if (!m->models[i].name || m->models[i].line < 1) abort();
    free(s);
    cf_manifest_free(m);
    cf_report_done(&rep);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is written reads back as an equal model. */
static void check_model(const struct cf_model *m) {
    struct cf_model *again, *copy;
    struct cf_diff diffs[CF_MAX_DIFFS];
    struct cf_report rep;
    struct fo_err e;
    struct fo_buf json;
    fo_buf_init(&json, 8 << 20);
    cf_model_write(m, &json);
    if (json.failed || cf_model_parse(json.data, json.len, NULL, &again, &rep, &e) || cf_model_copy(again, &copy, &e)) abort();
    if (cf_model_diff(m, again, diffs) || cf_model_diff(m, copy, diffs)) abort();
    cf_model_free(again);
    cf_model_free(copy);
    fo_buf_done(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    const char *text = (const char *)data;
    int rc = cf_manifest_parse(text, size, &m, &rep, &e);
    if ((rc == FO_OK) != (m != NULL) || (rc == FO_OK) != (rep.n == 0)) abort();
    for (size_t i = 0; i < rep.n; i++) {
        const struct cf_finding *f = &rep.findings[i];
        if (f->line < 1 || f->col < 1 || f->width < 1) abort();
        char *s = cf_finding_format(f, "m.yaml", text, size);
        if (!s) abort();
        free(s);
    }
    for (size_t i = 0; m && i < m->n_models; i++) {
        const struct cf_model *x = &m->models[i];
        if (!x->name || !x->source_path || x->max_concurrent > x->max_sessions || x->max_concurrent < 1) abort();
    }
    for (size_t i = 0; m && i < m->n_models; i++) check_model(&m->models[i]);
    cf_manifest_free(m);
    cf_report_done(&rep);
    check_files(text, size);
    return 0;
}
