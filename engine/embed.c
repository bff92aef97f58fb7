/* Pooling: see embed.h. */
#include "engine/embed.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/bind.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"

struct pn_pooled {
    enum pn_pooling pooling;
    uint32_t n_embd, n_tokens, n_seen;
    double *sum;  /* [n_embd] */
    float vector[]; /* [n_embd] */
};

/* --- what the model says --- */

static const char *const names[] = {
    [PN_POOLING_NONE] = "none", [PN_POOLING_MEAN] = "mean", [PN_POOLING_CLS] = "cls", [PN_POOLING_LAST] = "last", [PN_POOLING_RANK] = "rank",
};

const char *pn_pooling_name(enum pn_pooling p) {
    return names[p];
}

int pn_pooling_probe(const struct fo_gguf *g, const char *arch, enum pn_pooling *ret, struct fo_err *e) {
    uint32_t type = PN_POOLING_LAST;
    char key[160];
    bool causal = true;
    snprintf(key, sizeof key, "%s.attention.causal", arch);
    if (fo_gguf_find(g, key) && fo_gguf_get_bool(g, key, &causal, e)) return e->code;
    if (!causal) return fo_fail(e, FO_EUNSUPPORTED, "%s is false: tokens that see those behind them are not served by this build", key);
    if (pn_key_u32_opt(g, arch, "pooling_type", PN_POOLING_NONE, PN_POOLING_RANK, &type, e)) return e->code;
    *ret = (enum pn_pooling)type;
    return FO_OK;
}

int pn_pooling_check(enum pn_pooling p, struct fo_err *e) {
    if (p == PN_POOLING_MEAN || p == PN_POOLING_CLS || p == PN_POOLING_LAST) return FO_OK;
    return fo_fail(e, FO_EUNSUPPORTED, "this model has no embeddings: its metadata says pooling '%s', which makes no vector of a text", names[p]);
}

/* --- one vector --- */

int pn_pooled_new(enum pn_pooling p, uint32_t n_embd, uint32_t n_tokens, struct pn_pooled **ret, struct fo_err *e) {
    if (pn_pooling_check(p, e)) return e->code;
    struct pn_pooled *v = calloc(1, sizeof *v + n_embd * sizeof v->vector[0]);
    double *sum = calloc(n_embd, sizeof *sum);
    if (!v || !sum) {
        free(v);
        free(sum);
        return fo_fail(e, FO_ENOMEM, "no memory for a vector of %u numbers", n_embd);
    }
    v->pooling = p;
    v->n_embd = n_embd;
    v->n_tokens = n_tokens;
    v->sum = sum;
    *ret = v;
    return FO_OK;
}

void pn_pooled_free(struct pn_pooled *v) {
    if (!v) return;
    free(v->sum);
    free(v);
}

enum pn_want pn_pooled_want(const struct pn_pooled *v, uint32_t n) {
    if (v->pooling == PN_POOLING_MEAN) return PN_WANT_ALL_STATES;
    if (v->pooling == PN_POOLING_CLS) return v->n_seen == 0 ? PN_WANT_FIRST_STATE : PN_WANT_NONE;
    return v->n_seen + n == v->n_tokens ? PN_WANT_LAST_STATE : PN_WANT_NONE;
}

uint32_t pn_pooled_add(struct pn_pooled *v, uint32_t n, const float *states) {
    enum pn_want want = pn_pooled_want(v, n);
    uint32_t rows = want == PN_WANT_ALL_STATES ? n : want == PN_WANT_NONE ? 0 : 1;
    assert(n <= v->n_tokens - v->n_seen);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < v->n_embd; i++) v->sum[i] += (double)states[(size_t)r * v->n_embd + i];
    v->n_seen += n;
    return rows;
}

int pn_pooled_finish(struct pn_pooled *v, struct fo_err *e) {
    double squares = 0;
    assert(v->n_seen == v->n_tokens);
    /* What a mean divides by goes with the length. */
    for (uint32_t i = 0; i < v->n_embd; i++) squares += v->sum[i] * v->sum[i];
    double length = sqrt(squares);
    if (!(length > 0) || !isfinite(length))
        return fo_fail(e, FO_EIO, "the model computes no numbers (a vector of zeros, infinite ones or not-a-number): its file is damaged");
    for (uint32_t i = 0; i < v->n_embd; i++) v->vector[i] = (float)(v->sum[i] / length);
    return FO_OK;
}

const float *pn_pooled_vector(const struct pn_pooled *v, uint32_t *ret_n) {
    *ret_n = v->n_embd;
    return v->vector;
}
