/* What a model would take, die by die of whatever placement: see model.h. The numbers come from the layouts that allocate, run over one
 * layer at a time; a planner adds them up. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/model_impl.h"
#include "engine/prefix.h"
#include "engine/spec.h"
#include "foundry/device.h"

static int compute_bytes(const struct pn_model *m, uint32_t logit_rows, uint64_t *ret, struct fo_err *e) {
    struct fo_arena a;
    struct pn_buffers ignored;
    fo_arena_init_measure(&a);
    if (m->family->layout(&m->h, (int)m->info.max_batch, (int)logit_rows, &a, NULL, &ignored, e)) return e->code;
    *ret = a.used;
    return FO_OK;
}

static int estimate(const struct pn_model *m, struct pn_estimate *ret, struct fo_err *e) {
    const struct pn_model_info *i = &m->info;
    const struct pn_part *p = &m->part[0];
    uint64_t scratch = 0, with_logits = 0, sessions;
    if (compute_bytes(m, 0, &scratch, e) || compute_bytes(m, m->logit_rows, &with_logits, e)) return e->code;
    struct fo_kv_geom one = p->kv;
    one.n_layer = 1;
    uint64_t running = i->max_concurrent < i->max_sessions ? i->max_concurrent : i->max_sessions;
    sessions = running * pn_kv_seq_bytes(&m->kv, i->ctx_cap) + pn_prefix_bytes(&m->kv, i->max_sessions) +
               (uint64_t)(m->draft_rows ? i->max_concurrent : 0) * pn_spec_bytes(i->ctx_cap);
    struct pn_estimate est = {
        .ctx_cap = i->ctx_cap,
        .max_sessions = i->max_sessions,
        .max_concurrent = i->max_concurrent,
        .n_layer = m->h.n_layer,
        .layer_bytes = calloc(m->h.n_layer, sizeof *est.layer_bytes),
        .layer_kv_bytes = calloc(m->h.n_layer, sizeof *est.layer_kv_bytes),
        .input_bytes = pn_bind_layer_bytes(&m->bind, PN_AT_INPUT, NULL),
        .scratch_bytes = scratch + p->stream_bytes,
        .logits_bytes = with_logits - scratch,
        .host_bytes = m->host_bytes + sessions + i->text_bytes,
        .staging_bytes = pn_bind_chunk_bytes() < i->weights_bytes ? pn_bind_chunk_bytes() : i->weights_bytes,
    };
    if (!est.layer_bytes || !est.layer_kv_bytes) {
        pn_estimate_done(&est);
        return fo_fail(e, FO_ENOMEM, "no memory for an estimate");
    }
    est.output_bytes = pn_bind_layer_bytes(&m->bind, PN_AT_OUTPUT, &est.tied_bytes);
    for (uint32_t l = 0; l < m->h.n_layer; l++) {
        est.layer_bytes[l] = pn_bind_layer_bytes(&m->bind, (int)l, NULL);
        est.layer_kv_bytes[l] = fo_kv_page_bytes(&one) * one.n_pages + m->kv.states.n_blocks * pn_model_state_bytes(m, 1);
    }
    *ret = est;
    return FO_OK;
}

int pn_model_estimate(const char *path, const struct pn_model_opts *o, struct pn_estimate *ret, char *ret_why, size_t why_size, struct fo_err *e) {
    struct pn_model *m;
    struct fo_err why = { 0 };
    struct pn_model_opts whole = *o;
    whole.n_parts = 0;
    if (pn_model_start(path, &m, e)) return e->code;
    int rc = pn_model_prepare(m, &whole, &why);
    if (!rc) rc = pn_model_open_tok(m, &why);
    if (!rc) rc = estimate(m, ret, &why);
    pn_model_free(m);
    if (rc == FO_ENOMEM) {
        *e = why;
        return fo_wrap(e, "%s", path);
    }
    if (why_size) snprintf(ret_why, why_size, "%s", rc ? why.msg : "");
    return FO_OK;
}

void pn_estimate_done(struct pn_estimate *est) {
    free(est->layer_bytes);
    free(est->layer_kv_bytes);
    *est = (struct pn_estimate){ 0 };
}
