/* Any bytes as facts: parsed, written and parsed again, and planned against a small manifest; steps are performed until none is left. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char manifest[] =
    "version: 1\nmodels:\n  - { name: a, source: { path: a.gguf }, ctx_cap: 4096 }\n"
    "  - { name: b, source: { path: a.gguf }, ctx_cap: 4096, dies: auto:2, priority: 3 }\n"
    "  - { name: c, source: { path: a.gguf }, ctx_cap: 4096, replicas: [ [ s0 ], [ s1, s0 ] ], memory: trust }\n";

static void plan(const struct cf_facts *f) {
    struct cf_manifest *m;
    struct cf_report rep;
    struct cf_facts *now;
    struct cf_plan *p;
    struct fo_err e;
    if (cf_manifest_parse(manifest, sizeof manifest - 1, &m, &rep, &e) || cf_facts_copy(f, &now, &e)) abort();
    for (int i = 0; i < 4; i++) {
        int rc = cf_plan_make(m, now, i & CF_PLAN_PRUNE, &p, &e);
        if (rc == FO_ELIMIT) break;
        if (rc) abort();
        char *text = cf_plan_text(p, now), *json = cf_plan_json(p);
        if (!text || !json) abort();
        free(text);
        free(json);
        if (p->n_steps && cf_plan_apply(p, 0, now, &e) && e.code != FO_ELIMIT) abort();
        cf_plan_free(p);
    }
    cf_facts_free(now);
    cf_manifest_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cf_facts *f = NULL, *again = NULL;
    struct fo_err e;
    int rc = cf_facts_parse((const char *)data, size, &f, &e);
    if ((rc == FO_OK) != (f != NULL)) abort();
    if (!f) return 0;
    char *text = cf_facts_write(f);
    if (!text) abort();
    if (cf_facts_parse(text, strlen(text), &again, &e)) abort();
    char *second = cf_facts_write(again);
    if (!second || strcmp(text, second) != 0) abort();
    plan(f);
    free(text);
    free(second);
    cf_facts_free(f);
    cf_facts_free(again);
    return 0;
}
