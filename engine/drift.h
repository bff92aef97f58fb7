/* `pantheon drift`: a model runs on two devices at once, op by op, and the first op whose result is not what the other device makes of the same
 * input is named. Two passes over the same tokens (foundry/tap.h has the two modes and the tolerances):
 *
 *   same inputs   each op is judged by itself, so the first one past its tolerance is the one at fault
 *   own inputs    how much the differences add up to, layer by layer, and in the logits
 *
 * The tokens go through in three kinds of steps, since they meet different kernels: a batch, a batch of three, one token. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "foundry/dtype.h"

struct fo_device;
struct fo_err;

enum { PN_DRIFT_NAME = 128, PN_DRIFT_MAX_KINDS = 64, PN_DRIFT_MAX_STEPS = 64, PN_DRIFT_MAX_TOKENS = 2048 };

struct pn_drift_opts {
    struct fo_device *dev, *against; /* the caller's; the first one's results count for what follows */
    const int32_t *ids;              /* [n]; NULL: n of all over the vocabulary */
    uint32_t n;
    uint32_t ctx_cap;                /* as pn_model_opts: how positions turn may depend on it */
    enum fo_dtype k_type, v_type;    /* as pn_model_opts; read with has_kv_type */
    bool has_kv_type;                /* false: what dev keeps by default */
    /* Called before each step; a code other than 0, with *e set, ends the work with it. NULL = never. */
    int (*progress)(void *ctx, uint32_t step, uint32_t n_steps, struct fo_err *e);
    void *ctx;
};

/* One result of an op, and where it belongs. */
struct pn_drift_op {
    const char *op;            /* "matmul" */
    char name[PN_DRIFT_NAME];  /* "blk.3.ffn_down.weight", with [expert] where a tensor has several matrices; "" = no weights */
    enum fo_dtype type;        /* of the weights, or of the KV of attend; F32 where there is neither */
    int layer;                 /* -1: before the first; n_layer: behind the last */
    uint32_t step, number;     /* of the steps, and of the ops in it, from 0 */
    int n;                     /* rows of the op */
    int64_t k_in, k;           /* elements of a row of its input, and of its result */
    double share;              /* of what is allowed: past 1 is past the tolerance */
    int row;
    int64_t index;
    float value, expected;     /* of dev, of against */
    double diff, allowed;
    bool has_truth;            /* a matrix: in double precision, of these inputs */
    double truth;
    const char *note;          /* or NULL */
};

/* All ops of one kind and type of weights. */
struct pn_drift_kind {
    const char *op;
    enum fo_dtype type;
    uint64_t n_ops, n_past;
    double tolerance;          /* relative, as in tap.h */
    struct pn_drift_op worst;  /* by its share */
};

struct pn_drift {
    bool past;                 /* some op passed its tolerance; `first` is that one */
    struct pn_drift_op first;
    uint64_t n_ops, n_past;    /* judged, and past */
    struct pn_drift_kind kinds[PN_DRIFT_MAX_KINDS];
    int n_kinds;
    uint32_t steps[PN_DRIFT_MAX_STEPS]; /* tokens of each */
    uint32_t n_steps;
    uint32_t n_layer, n_vocab;
    double *layers;            /* [n_layer] what adds up: RMS of the difference over RMS of the values, where the layer ends */
    double logits_max, logits_rms, logits_share; /* largest difference; RMS; RMS over the RMS of the logits */
    uint32_t n_tokens, same_top; /* the tokens; those after which both find the same one likeliest */
    enum fo_dtype k_type, v_type; /* of KV, that dev kept */
};

/* Blocking, minutes for a large model: the reference is slow. Errors of opening and computing; FO_EINVAL: no tokens, too many, one outside the
 * vocabulary. */
int pn_drift(const char *path, const struct pn_drift_opts *o, struct pn_drift *ret, struct fo_err *e);
void pn_drift_done(struct pn_drift *d);
