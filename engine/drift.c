/* Drift: see drift.h. The model is opened on a tap over both devices and computes the tokens twice, once a mode. Here each op that the tap shows
 * gets its name: the tap knows addresses, the model what it bound there. Ops without weights belong to the layer of the op before, whose norm
 * began it. */
#include "engine/drift.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_impl.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "foundry/tap.h"

enum { MAX_BATCH = 64, FEW = 3, LEAST_FOR_FEW = 8 };

/* What a layer's last op so far was off by. */
struct sums {
    double diff2, ref2;
};

struct drift {
    const struct pn_drift_opts *o;
    int32_t *ids; /* [o->n] */
    struct pn_drift *d;
    struct pn_model *m;
    bool own;
    uint32_t step, number;
    int layer;
    struct sums last, *layers; /* [n_layer] */
    struct sums logits;
};

/* --- names --------------------------------------------------------------------------------------------------------------------- */

/* What the model bound at an address of the subject. A tied table is bound twice, at both ends of the model. */
static const struct pn_bound *bound_at(const struct pn_model *m, const void *p, bool output) {
    const struct pn_bound *found = NULL;
    for (size_t i = 0; i < m->bind.n_bound; i++) {
        const struct pn_bound *b = &m->bind.bound[i];
        if (!b->field || (uintptr_t)p < (uintptr_t)b->field->data || (uintptr_t)p - (uintptr_t)b->field->data >= b->bytes) continue;
        if (!found || (b->layer == PN_AT_OUTPUT) == output) found = b;
    }
    return found;
}

static void name_op(struct drift *x, const struct fo_tap_seen *s, struct pn_drift_op *ret) {
    const struct pn_model *m = x->m;
    const void *weights = s->w ? s->w->data : s->vector;
    const struct pn_bound *b = weights ? bound_at(m, weights, strcmp(s->op, "get_rows") != 0) : NULL;
    ret->name[0] = '\0';
    if (b) {
        const struct fo_str *name = &b->src->name;
        uint64_t matrix = s->w ? fo_tensor_bytes(s->w) : 0, off = (uintptr_t)weights - (uintptr_t)b->field->data;
        int len = snprintf(ret->name, sizeof ret->name, "%.*s", (int)(name->len < 96 ? name->len : 96), name->s);
        if (s->w && b->src->t.ne[2] > 1 && matrix) snprintf(ret->name + len, sizeof ret->name - (size_t)len, "[%llu]", (unsigned long long)(off / matrix));
        fo_text_defuse(ret->name);
        x->layer = b->layer == PN_AT_INPUT ? -1 : b->layer == PN_AT_OUTPUT ? (int)m->h.n_layer : b->layer;
    }
    if (s->layer >= 0) x->layer = s->layer; /* all layers are on the one die */
    ret->op = s->op;
    ret->type = s->w ? s->w->type : s->g ? s->g->k_type : FO_F32;
    ret->layer = x->layer;
    ret->step = x->step;
    ret->number = x->number;
    ret->n = s->n;
    ret->k_in = s->k_in;
    ret->k = s->k;
    ret->share = s->share;
    ret->row = s->row;
    ret->index = s->index;
    ret->value = s->sub;
    ret->expected = s->ref;
    ret->diff = s->diff;
    ret->allowed = s->allowed;
    ret->has_truth = s->has_truth;
    ret->truth = s->truth;
    ret->note = s->note;
}

/* --- what is seen -------------------------------------------------------------------------------------------------------------- */

static struct pn_drift_kind *kind_of(struct pn_drift *d, const struct pn_drift_op *op) {
    for (int i = 0; i < d->n_kinds; i++)
        if (d->kinds[i].type == op->type && strcmp(d->kinds[i].op, op->op) == 0) return &d->kinds[i];
    if (d->n_kinds == PN_DRIFT_MAX_KINDS) return NULL;
    struct pn_drift_kind *k = &d->kinds[d->n_kinds++];
    *k = (struct pn_drift_kind){ .op = op->op, .type = op->type, .tolerance = fo_tap_tolerance(op->op, op->type), .worst = { .share = -1 } };
    return k;
}

/* A layer ends where the next one's norm, or the step, shows that it did. */
static void end_layer(struct drift *x, int layer) {
    if (layer >= 0 && layer < (int)x->m->h.n_layer) {
        x->layers[layer].diff2 += x->last.diff2;
        x->layers[layer].ref2 += x->last.ref2;
    }
    x->last = (struct sums){ 0, 0 };
}

static int64_t argmax(const float *row, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static void see_logits(struct drift *x, const struct fo_tap_seen *s) {
    x->logits.diff2 += s->sum2;
    x->logits.ref2 += s->ref2;
    if (s->max > x->d->logits_max) x->d->logits_max = s->max;
    for (int i = 0; i < s->n; i++) x->d->same_top += argmax(s->got + i * s->k, s->k) == argmax(s->want + i * s->k, s->k);
}

static int see(void *ctx, const struct fo_tap_seen *s, struct fo_err *e) {
    struct drift *x = ctx;
    struct pn_drift *d = x->d;
    struct pn_drift_op op = { 0 };
    int layer = x->layer;
    name_op(x, s, &op);
    x->number++;
    if (!s->compared) return FO_OK;
    if (x->own) {
        if (x->layer != layer) end_layer(x, layer);
        x->last = (struct sums){ s->sum2, s->ref2 };
        if (x->layer == (int)x->m->h.n_layer && strncmp(s->op, "matmul", 6) == 0) see_logits(x, s);
        return FO_OK;
    }
    struct pn_drift_kind *k = kind_of(d, &op);
    if (!k) return fo_fail(e, FO_ELIMIT, "more than %d kinds of ops", PN_DRIFT_MAX_KINDS);
    bool past = op.share > 1;
    if (past && !d->past) {
        d->past = true;
        d->first = op;
    }
    d->n_ops++;
    d->n_past += past;
    k->n_ops++;
    k->n_past += past;
    if (op.share > k->worst.share) k->worst = op;
    return FO_OK;
}

/* --- passes -------------------------------------------------------------------------------------------------------------------- */

static void plan_steps(struct pn_drift *d, uint32_t n) {
    uint32_t few = n >= LEAST_FOR_FEW ? FEW : 0, one = n > 1, body = n - few - one;
    d->n_tokens = n;
    for (uint32_t k; body; body -= k) {
        k = body < MAX_BATCH ? body : MAX_BATCH;
        d->steps[d->n_steps++] = k;
    }
    if (few) d->steps[d->n_steps++] = few;
    if (one) d->steps[d->n_steps++] = one;
}

static int pass(struct drift *x, bool own, struct fo_err *e) {
    const struct pn_drift *d = x->d;
    struct pn_seq *seq;
    uint32_t at = 0;
    x->own = own;
    if (pn_seq_new(x->m, &seq, e)) return e->code;
    int rc = pn_seq_reserve(seq, d->n_tokens, e);
    for (x->step = 0; !rc && x->step < d->n_steps; x->step++) {
        float *logits;
        struct pn_batch_item item = { .seq = seq, .tokens = x->ids + at, .n = d->steps[x->step], .want = PN_WANT_ALL };
        if (x->o->progress) rc = x->o->progress(x->o->ctx, x->step + (own ? d->n_steps : 0), 2 * d->n_steps, e);
        x->layer = -1;
        x->number = 0;
        if (!rc) rc = pn_model_forward(x->m, &item, 1, &logits, e);
        if (!rc) rc = pn_model_state(x->m, e);
        if (own) end_layer(x, x->layer);
        at += item.n;
    }
    pn_seq_free(seq);
    return rc;
}

static double share_of(const struct sums *s) {
    return s->ref2 > 0 ? sqrt(s->diff2 / s->ref2) : s->diff2 > 0 ? HUGE_VAL : 0;
}

static int both_passes(struct drift *x, struct fo_device *tap, struct fo_err *e) {
    struct pn_drift *d = x->d;
    const struct pn_model_info *info = &x->m->info;
    if (x->o->n > info->ctx_cap)
        return fo_fail_need(e, FO_EINVAL, x->o->n, info->ctx_cap, "%u tokens are more than the cap of %u", x->o->n, info->ctx_cap);
    x->ids = calloc(x->o->n, sizeof *x->ids);
    if (!x->ids) return fo_fail(e, FO_ENOMEM, "no memory for %u tokens", x->o->n);
    for (uint32_t i = 0; i < x->o->n; i++) {
        x->ids[i] = x->o->ids ? x->o->ids[i] : (int32_t)((i * 2654435761u + 1) % info->n_vocab);
        if (x->ids[i] < 0 || (uint32_t)x->ids[i] >= info->n_vocab)
            return fo_fail(e, FO_EINVAL, "token %d (number %u) is out of range: the vocabulary has %u", x->ids[i], i + 1, info->n_vocab);
    }
    d->n_layer = info->n_layer;
    d->n_vocab = info->n_vocab;
    d->k_type = info->k_type;
    d->v_type = info->v_type;
    d->layers = calloc(d->n_layer, sizeof *d->layers);
    x->layers = calloc(d->n_layer, sizeof *x->layers);
    if (!d->layers || !x->layers) return fo_fail(e, FO_ENOMEM, "no memory for %u layers", d->n_layer);
    if (pass(x, false, e)) return e->code;
    fo_tap_set_mode(tap, FO_TAP_OWN);
    if (pass(x, true, e)) return e->code;
    for (uint32_t i = 0; i < d->n_layer; i++) d->layers[i] = share_of(&x->layers[i]);
    d->logits_rms = sqrt(x->logits.diff2 / ((double)d->n_tokens * d->n_vocab));
    d->logits_share = share_of(&x->logits);
    return FO_OK;
}

int pn_drift(const char *path, const struct pn_drift_opts *o, struct pn_drift *ret, struct fo_err *e) {
    struct pn_drift d = { 0 };
    struct drift x = { .o = o, .d = &d };
    struct fo_device *tap;
    if (o->n == 0 || o->n > PN_DRIFT_MAX_TOKENS)
        return fo_fail_need(e, FO_EINVAL, o->n, PN_DRIFT_MAX_TOKENS, "%u tokens, expected 1 to %d", o->n, PN_DRIFT_MAX_TOKENS);
    plan_steps(&d, o->n);
    if (fo_tap_open(o->dev, o->against, see, &x, &tap, e)) return e->code;
    struct pn_model_opts mo = { .dev = tap,
                                .ctx_cap = o->ctx_cap,
                                .max_batch = MAX_BATCH,
                                .k_type = o->k_type,
                                .v_type = o->v_type,
                                .kv_default = !o->has_kv_type,
                                .all_logits = true };
    int rc = pn_model_open(path, &mo, &x.m, e);
    if (!rc) rc = both_passes(&x, tap, e);
    free(x.layers);
    free(x.ids);
    pn_model_free(x.m);
    fo_device_close(tap);
    if (rc) {
        pn_drift_done(&d);
        return rc;
    }
    *ret = d;
    return FO_OK;
}

void pn_drift_done(struct pn_drift *d) {
    free(d->layers);
    d->layers = NULL;
}
