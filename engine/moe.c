/* Mixtures of experts: see moe.h. Rows are grouped by expert, so that each expert's weights are read once a step; a row's sum goes over
 * its experts in ascending order whatever else is in the step, so it does not depend on its batch mates. */
#include "engine/moe.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "engine/bind.h"
#include "engine/family.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "foundry/ops.h"

/* `name` is "ffn_gate": see moe.h. */
static int bind_experts(struct pn_bind *b, int layer, const char *name, int64_t n_in, int64_t n_out, uint32_t n, struct pn_experts *ret, struct fo_err *e) {
    char suffix[64];
    snprintf(suffix, sizeof suffix, "%s.0.weight", name);
    if (!pn_bind_has(b, layer, suffix)) {
        snprintf(suffix, sizeof suffix, "%s_exps.weight", name);
        return pn_bind_matrices(b, layer, suffix, n_in, n_out, n, &ret->all, e);
    }
    ret->each = fo_region_array(b->region, n, sizeof *ret->each);
    if (!ret->each) return fo_fail(e, FO_ENOMEM, "no memory to bind %u experts", n);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(suffix, sizeof suffix, "%s.%u.weight", name, i);
        if (pn_bind_matrix(b, layer, suffix, n_in, n_out, &ret->each[i], e)) return e->code;
    }
    return FO_OK;
}

int pn_moe_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, struct pn_moe *ret, struct fo_err *e) {
    int64_t n_embd = h->n_embd, n_ff = h->n_ff, n_expert = h->n_expert;
    if (pn_bind_vector(b, layer, "ffn_norm.weight", n_embd, &ret->norm, e) ||
        pn_bind_matrix(b, layer, "ffn_gate_inp.weight", n_embd, n_expert, &ret->router, e) ||
        bind_experts(b, layer, "ffn_gate", n_embd, n_ff, h->n_expert, &ret->gate, e) ||
        bind_experts(b, layer, "ffn_up", n_embd, n_ff, h->n_expert, &ret->up, e) ||
        bind_experts(b, layer, "ffn_down", n_ff, n_embd, h->n_expert, &ret->down, e))
        return e->code;
    return FO_OK;
}

void pn_route(float *logits, uint32_t n, uint32_t used) {
    bool chosen[PN_MAX_EXPERTS] = { false };
    double sum = 0, top = 0;
    assert(n <= PN_MAX_EXPERTS && used >= 1 && used <= n);
    for (uint32_t k = 0; k < used; k++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!chosen[i] && (best == n || logits[i] > logits[best])) best = i;
        chosen[best] = true; /* there are at least `used` of them, NaN or not */
        if (k == 0) top = (double)logits[best];
        sum += exp((double)logits[best] - top);
    }
    for (uint32_t i = 0; i < n; i++) logits[i] = chosen[i] ? (float)(exp((double)logits[i] - top) / sum) : 0.0f;
}

static struct fo_tensor expert(const struct pn_experts *w, uint32_t i) {
    const struct fo_tensor *all = &w->all;
    if (w->each) return w->each[i];
    uint64_t bytes = fo_dtype_bytes(all->type, (uint64_t)all->ne[0]) * (uint64_t)all->ne[1];
    assert(i < all->ne[2]);
    return fo_tensor_2d(all->type, all->ne[0], all->ne[1], (unsigned char *)all->data + i * bytes);
}

/* The shares of every row, on the host. */
static int route(const struct pn_step *s, const struct pn_moe *w, struct fo_err *e) {
    const struct pn_hparams *h = s->h;
    struct fo_device *dev = s->stream->dev;
    uint64_t bytes = (uint64_t)s->n_rows * h->n_expert * sizeof(float);
    if (fo_matmul(s->stream, &w->router, s->buf.h, s->n_rows, s->buf.router, e) || dev->sync(s->stream, e) ||
        dev->download(dev, s->routes.share, s->buf.router, bytes, e))
        return e->code;
    for (int i = 0; i < s->n_rows; i++) pn_route(s->routes.share + (uint64_t)i * h->n_expert, h->n_expert, h->n_expert_used);
    return FO_OK;
}

/* The rows that ask an expert, ascending. */
static int rows_of(const struct pn_step *s, uint32_t i) {
    int n = 0;
    for (int row = 0; row < s->n_rows; row++) {
        float share = s->routes.share[(uint64_t)row * s->h->n_expert + i];
        if (share == 0.0f) continue;
        s->routes.row[n] = row;
        s->routes.scale[n++] = share;
    }
    return n;
}

int pn_moe_forward(const struct pn_step *s, const struct pn_moe *w, struct fo_err *e) {
    const struct pn_hparams *h = s->h;
    const struct pn_buffers *b = &s->buf;
    const struct fo_tensor input = fo_tensor_2d(FO_F32, h->n_embd, s->n_rows, b->h);
    if (fo_rms_norm(s->stream, b->x, w->norm.data, s->n_rows, h->n_embd, h->rms_eps, b->h, e) || route(s, w, e)) return fo_wrap(e, "router");
    for (uint32_t i = 0; i < h->n_expert; i++) {
        struct fo_tensor gate = expert(&w->gate, i), up = expert(&w->up, i), down = expert(&w->down, i);
        int n = rows_of(s, i);
        if (n == 0) continue;
        if (fo_get_rows(s->stream, &input, s->routes.row, n, b->expert_in, e) ||
            fo_matmul_fused(s->stream, &(struct fo_fused){ .gated = true }, (const struct fo_tensor *const[]){ &gate, &up }, 2, b->expert_in, n,
                            (float *const[]){ b->gate, b->up }, e) ||
            fo_matmul(s->stream, &down, b->gate, n, b->expert_out, e) ||
            fo_add_rows(s->stream, b->expert_out, s->routes.row, s->routes.scale, n, h->n_embd, b->x, s->n_rows, e))
            return fo_wrap(e, "expert %u", i);
    }
    return FO_OK;
}
