/* See estimate.h. */
#include "daemon/estimate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/reach.h"
#include "engine/model.h"
#include "engine/spec.h"
#include "foundry/base/err.h"

char *pd_resolve(const char *dir, const char *path) {
    char *out = NULL;
    if (*path == '/' || !dir || !*dir) return strdup(path);
    return asprintf(&out, "%s/%s", dir, path) < 0 ? NULL : out;
}

void pd_estimate_free(struct pd_estimate *p) {
    if (!p) return;
    free(p->v.path);
    free(p->v.error);
    free(p->v.layer_bytes);
    free(p->v.layer_kv_bytes);
    free(p);
}

bool pd_estimate_stale(const struct pd_estimate *p, const char *dir) {
    char *path = pd_resolve(dir, p->v.path);
    if (!path) return false;
    bool stale = pn_model_identity(path) != p->identity;
    free(path);
    return stale;
}

/* 0 is the engine's own choice, as CF_AUTO is. */
static uint32_t count(int64_t v) {
    return v < 0 ? 0 : v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

void pd_model_opts(const struct cf_model *spec, struct pn_model_opts *o) {
    static const enum fo_dtype kv_types[] = { [CF_KV_F16] = FO_F16, [CF_KV_Q8_0] = FO_Q8_0, [CF_KV_Q4_0] = FO_Q4_0 };
    struct cf_kv kv = cf_model_kv(spec);
    o->ctx_cap = count(spec->ctx_cap);
    o->max_sessions = count(spec->max_sessions);
    o->max_concurrent = count(spec->max_concurrent);
    o->draft_rows = PN_DRAFT_MAX; /* with speculation off too: it may be switched on while the model serves */
    o->k_type = kv_types[kv.k_type];
    o->v_type = kv_types[kv.v_type];
    o->has_floor = true;
    o->k_floor = kv_types[kv.k_floor];
    o->v_floor = kv_types[kv.v_floor];
    o->kv_overcommit = kv.overcommit;
}

static int fill(struct pd_estimate *p, const char *path, const struct pn_model_opts *o, struct fo_err *e) {
    struct pn_estimate est;
    char why[384] = "";
    int code = pn_model_estimate(path, o, &est, why, sizeof why, e);
    if (code == FO_ENOMEM) return code;
    if (code) pd_reach_explain(path, e);
    if (code || *why) {
        p->v.error = strdup(code ? e->msg : why);
        return p->v.error ? FO_OK : (int)fo_fail(e, FO_ENOMEM, "no memory for an estimate");
    }
    p->v.ctx_cap = est.ctx_cap;
    p->v.n_layers = p->v.n_layer_kv = est.n_layer;
    p->v.layer_bytes = est.layer_bytes; /* both are freed with the estimate from here on */
    p->v.layer_kv_bytes = est.layer_kv_bytes;
    p->v.input_bytes = est.input_bytes;
    p->v.output_bytes = est.output_bytes;
    p->v.tied_bytes = est.tied_bytes;
    p->v.scratch_bytes = est.scratch_bytes;
    p->v.logits_bytes = est.logits_bytes;
    p->v.host_bytes = est.host_bytes;
    p->v.staging_bytes = est.staging_bytes;
    return FO_OK;
}

int pd_estimate_measure(const char *path, const struct pn_model_opts *o, struct pd_estimate **ret, struct fo_err *e) {
    struct pd_estimate *p = calloc(1, sizeof *p);
    if (!p) return fo_fail(e, FO_ENOMEM, "no memory for an estimate");
    p->identity = pn_model_identity(path); /* before: a change in between makes it stale */
    int code = fill(p, path, o, e);
    if (code) {
        pd_estimate_free(p);
        return code;
    }
    *ret = p;
    return FO_OK;
}

int pd_estimate_make(const char *dir, const struct cf_model *spec, struct fo_device *dev, struct pd_estimate **ret, struct fo_err *e) {
    struct pd_estimate *p = NULL;
    struct pn_model_opts o = { .dev = dev };
    char *name = strdup(spec->source_path), *path = pd_resolve(dir, spec->source_path);
    int code = name && path ? FO_OK : fo_fail(e, FO_ENOMEM, "no memory for an estimate");
    pd_model_opts(spec, &o);
    if (code == FO_OK) code = pd_estimate_measure(path, &o, &p, e);
    free(path);
    if (code) {
        free(name);
        return code;
    }
    p->v.path = name;
    p->v.ctx_declared = spec->ctx_cap;
    p->v.max_sessions = spec->max_sessions;
    p->v.max_concurrent = spec->max_concurrent;
    p->v.kv = cf_model_kv(spec);
    *ret = p;
    return FO_OK;
}
