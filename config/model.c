/* One model apart from a manifest: parsed from a body, written as JSON, copied, compared; and the same comparison for the rest of a
 * manifest. All by the rows of the key table. */
#include "config/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/manifest.h"
#include "config/report.h"
#include "config/values.h"
#include "config/yaml.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"

enum { MAX_MODEL_BYTES = 1 << 20, MAX_TREE_BYTES = 12 << 20 };

struct owner {
    struct fo_region region;
    struct cf_model m;
};

static struct owner *owner_new(struct fo_err *e) {
    struct owner *o = calloc(1, sizeof *o);
    if (!o)
        fo_fail(e, FO_ENOMEM, "no memory for a model's settings");
    else
        fo_region_init(&o->region, MAX_MODEL_BYTES);
    return o;
}

void cf_model_free(struct cf_model *m) {
    if (!m) return;
    struct owner *o = m->owner;
    fo_region_done(&o->region);
    free(o);
}

int cf_model_copy_to(const struct cf_model *m, struct fo_region *r, struct cf_model *ret, struct fo_err *e) {
    struct cf_model copy = *m;
    copy.owner = NULL;
    int rc = cf_values_own(cf_model_keys(), &copy, r, e);
    if (rc == FO_OK) *ret = copy;
    return rc;
}

int cf_model_copy(const struct cf_model *m, struct cf_model **ret, struct fo_err *e) {
    struct owner *o = owner_new(e);
    if (!o) return e->code;
    int rc = cf_model_copy_to(m, &o->region, &o->m, e);
    o->m.owner = o;
    if (rc)
        cf_model_free(&o->m);
    else
        *ret = &o->m;
    return rc;
}

static int build(const char *text, size_t len, const struct cf_model *defaults, struct owner *o, struct fo_region *tree,
                 struct cf_report *rep, struct fo_err *e) {
    struct cf_node *top;
    bool whole;
    struct cf_model m;
    int rc = cf_yaml_read(text, len, NULL, tree, rep, &top, &whole, e);
    if (rc) return rc;
    if (!top || top->kind != CF_NODE_MAP) {
        if (whole || top) cf_report_add(rep, CF_TYPE, top ? top->line : 1, top ? top->col : 1, 1, "a model is a mapping of its keys");
        return FO_OK;
    }
    rc = cf_model_read(top, whole, defaults, tree, rep, &m, e);
    /* what came from the defaults must not be borrowed: the model stands alone */
    return rc ? rc : cf_model_copy_to(&m, &o->region, &o->m, e);
}

int cf_model_parse(const char *text, size_t len, const struct cf_model *defaults, struct cf_model **ret, struct cf_report *ret_report,
                   struct fo_err *e) {
    struct cf_report rep;
    struct fo_region tree;
    *ret_report = (struct cf_report){ 0 };
    struct owner *o = owner_new(e);
    if (!o) return e->code;
    int rc = cf_report_init(&rep, e);
    if (rc) {
        free(o);
        return rc;
    }
    fo_region_init(&tree, MAX_TREE_BYTES);
    rc = build(text ? text : "", text ? len : 0, defaults, o, &tree, &rep, e);
    o->m.owner = o;
    fo_region_done(&tree);
    rc = cf_report_close(&rep, rc, e);
    if (rc)
        cf_model_free(&o->m);
    else
        *ret = &o->m;
    *ret_report = rep;
    return rc;
}

void cf_model_write(const struct cf_model *m, struct fo_buf *out) {
    cf_values_write(cf_model_keys(), m, out);
}

size_t cf_model_diff(const struct cf_model *was, const struct cf_model *is, struct cf_diff *ret) {
    return cf_values_diff(cf_model_keys(), was, is, NULL, ret, CF_MAX_DIFFS);
}

size_t cf_manifest_diff(const struct cf_manifest *was, const struct cf_manifest *is, struct cf_diff *ret) {
    static const char *const but[] = { "defaults", "models", NULL };
    return cf_values_diff(cf_manifest_keys(), was, is, but, ret, CF_MAX_DIFFS);
}

struct cf_kv cf_model_kv(const struct cf_model *m) {
    struct cf_kv kv = { .k_type = (enum cf_kv_type)(m->has_kv_k ? m->kv_k : m->kv_type), .v_type = (enum cf_kv_type)(m->has_kv_v ? m->kv_v : m->kv_type) };
    enum cf_kv_type floor = (enum cf_kv_type)m->kv_floor;
    kv.k_floor = floor > kv.k_type ? floor : kv.k_type;
    kv.v_floor = floor > kv.v_type ? floor : kv.v_type;
    kv.overcommit = m->kv_overcommit > 100 ? (uint32_t)m->kv_overcommit : 0;
    return kv;
}

bool cf_kv_equal(const struct cf_kv *a, const struct cf_kv *b) {
    return a->k_type == b->k_type && a->v_type == b->v_type && a->k_floor == b->k_floor && a->v_floor == b->v_floor && a->overcommit == b->overcommit;
}

const char *cf_kv_text(const struct cf_kv *kv, char out[CF_KV_TEXT]) {
    bool both = kv->k_type == kv->v_type;
    snprintf(out, CF_KV_TEXT, "%s%s%s", cf_kv_types[kv->k_type], both ? "" : "/", both ? "" : cf_kv_types[kv->v_type]);
    return out;
}
