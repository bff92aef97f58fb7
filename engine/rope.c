/* Rope scaling: see rope.h. Every kind ends as inverse frequencies and a factor on cos and sin, so no kernel knows of any. */
#include "engine/rope.h"

#include <math.h>
#include <string.h>

#include "engine/bind.h"
#include "engine/family.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/gguf.h"

/* --- probe --- */

static bool is(struct fo_str s, const char *text) {
    return s.len == strlen(text) && memcmp(s.s, text, s.len) == 0;
}

int pn_rope_scaling_probe(const struct fo_gguf *g, const char *arch, uint32_t n_ctx_train, struct pn_rope_scaling *ret, struct fo_err *e) {
    struct pn_rope_scaling s = { .factor = 1, .attn_factor = 1, .beta_fast = 32, .beta_slow = 1, .n_ctx_orig = n_ctx_train };
    struct fo_str type = { "", 0 };
    float ext_factor = 1, yarn_attn_factor = 1;
    uint32_t named = 0; /* the original length, when the file has it */
    if (pn_key_str_opt(g, arch, "rope.scaling.type", &type, e) ||
        pn_key_f32_opt(g, arch, "rope.scale_linear", 0.0f, 1e6f, &s.factor, e) ||
        pn_key_f32_opt(g, arch, "rope.scaling.factor", 0.0f, 1e6f, &s.factor, e) ||
        pn_key_f32_opt(g, arch, "rope.scaling.attn_factor", 1e-6f, 1e6f, &s.attn_factor, e) ||
        pn_key_u32_opt(g, arch, "rope.scaling.original_context_length", 1, PN_MAX_CTX, &named, e) ||
        pn_key_f32_opt(g, arch, "rope.scaling.yarn_ext_factor", 0.0f, 1e6f, &ext_factor, e) ||
        pn_key_f32_opt(g, arch, "rope.scaling.yarn_attn_factor", 1e-6f, 1e6f, &yarn_attn_factor, e) ||
        pn_key_f32_opt(g, arch, "rope.scaling.yarn_beta_fast", 1e-6f, 1e6f, &s.beta_fast, e) ||
        pn_key_f32_opt(g, arch, "rope.scaling.yarn_beta_slow", 1e-6f, 1e6f, &s.beta_slow, e) ||
        pn_key_refuse(g, arch, "rope.scaling.yarn_log_multiplier", e))
        return e->code;
    if (named) s.n_ctx_orig = named;
    if (s.factor == 0.0f) s.factor = 1; /* how a file says that there is none */
    if (ext_factor != 1.0f || yarn_attn_factor != 1.0f)
        return fo_fail(e, FO_EUNSUPPORTED, "%s.rope.scaling.yarn_%s_factor is %g, which this build does not serve", arch,
                       ext_factor != 1.0f ? "ext" : "attn", (double)(ext_factor != 1.0f ? ext_factor : yarn_attn_factor));
    if (s.factor < 1e-6f) return fo_fail(e, FO_EFORMAT, "%s.rope.scaling.factor is %g, expected 1e-06 to 1e+06", arch, (double)s.factor);

    if (is(type, "yarn"))
        s.kind = PN_ROPE_YARN;
    else if (is(type, "linear") || (type.len == 0 && s.factor != 1.0f)) /* before there was a type, a factor meant linear */
        s.kind = PN_ROPE_LINEAR;
    else if (is(type, "longrope") && !fo_gguf_tensor(g, "rope_factors_long.weight"))
        return fo_fail(e, FO_EFORMAT, "%s.rope.scaling.type is \"longrope\", but tensor rope_factors_long.weight is missing", arch);
    else if (type.len && !is(type, "none") && !is(type, "longrope"))
        return fo_fail(e, FO_EUNSUPPORTED, "%s.rope.scaling.type is \"%.*s\", which this build does not serve", arch,
                       (int)(type.len < 64 ? type.len : 64), type.s);
    double reach = s.kind == PN_ROPE_UNSCALED ? 0 : (double)named * (double)s.factor;
    s.n_ctx_reach = reach < PN_MAX_CTX ? (uint32_t)reach : PN_MAX_CTX;
    *ret = s;
    return FO_OK;
}

/* --- bind --- */

/* *ret is NULL when the file has none. */
static int divisors(struct pn_bind *b, const char *name, int n, const float **ret, struct fo_err *e) {
    if (pn_bind_host_vector_opt(b, name, n, ret, e)) return e->code;
    for (int i = 0; *ret && i < n; i++)
        if (!((*ret)[i] > 0.0f) || isinf((*ret)[i]))
            return fo_fail(e, FO_EFORMAT, "tensor %s has %g at %d, expected a positive number", name, (double)(*ret)[i], i);
    return FO_OK;
}

static int choose_divisors(struct pn_bind *b, const struct pn_hparams *h, int n, const float **ret, struct fo_err *e) {
    const float *all = NULL, *shorter = NULL, *longer = NULL;
    if (divisors(b, "rope_freqs.weight", n, &all, e) || divisors(b, "rope_factors_short.weight", n, &shorter, e) ||
        divisors(b, "rope_factors_long.weight", n, &longer, e))
        return e->code;
    if (!shorter != !longer) return fo_fail(e, FO_EFORMAT, "tensor rope_factors_%s.weight is missing", shorter ? "long" : "short");
    if (all && longer) return fo_fail(e, FO_EFORMAT, "tensors rope_freqs.weight and rope_factors_long.weight exclude each other");
    *ret = all ? all : h->ctx_cap > h->rope.n_ctx_orig ? longer : shorter;
    return FO_OK;
}

/* The dimension (fractional) that turns `rotations` times over the original context. */
static double turning(const struct pn_hparams *h, double rotations) {
    return h->n_rot * log(h->rope.n_ctx_orig / (rotations * 2 * 3.14159265358979323846)) / (2 * log((double)h->rope_base));
}

/* How much of dimension i is interpolated: 0 below `low` (fast: its pattern stays), 1 above `high` (slow: its range stays). */
static double ramp(double low, double high, int i) {
    double x = (i - low) / fmax(high - low, 0.001);
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

int pn_rope_bind(struct pn_bind *b, const struct pn_hparams *h, enum fo_rope_kind kind, struct fo_rope *ret, struct fo_err *e) {
    const struct pn_rope_scaling *s = &h->rope;
    int n = (int)h->n_rot / 2;
    const float *divisor = NULL; /* [n] or NULL */
    double *inv_freq = fo_region_array(b->region, (size_t)n, sizeof *inv_freq), attn_factor = (double)s->attn_factor, low = 0, high = 0;
    if (!inv_freq) return fo_fail(e, FO_ENOMEM, "no memory for %d rotary frequencies", n);
    if (choose_divisors(b, h, n, &divisor, e)) return e->code;
    if (s->kind == PN_ROPE_YARN) {
        low = fmax(floor(turning(h, (double)s->beta_fast)), 0);
        high = fmin(ceil(turning(h, (double)s->beta_slow)), h->n_rot - 1.0);
        if (s->factor > 1) attn_factor *= 0.1 * log((double)s->factor) + 1;
    }
    for (int i = 0; i < n; i++) {
        double f = pow((double)h->rope_base, -2.0 * i / h->n_rot);
        if (divisor) f /= (double)divisor[i];
        double share = s->kind == PN_ROPE_YARN ? ramp(low, high, i) : s->kind == PN_ROPE_LINEAR;
        inv_freq[i] = f / (double)s->factor * share + f * (1 - share);
    }
    *ret = (struct fo_rope){ .kind = kind, .head_dim = (int)h->head_dim, .n_rot = (int)h->n_rot, .inv_freq = inv_freq,
                             .attn_factor = (float)attn_factor };
    return FO_OK;
}
