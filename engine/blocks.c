/* Shared blocks: see blocks.h. Buffers of a step and who uses them when:
 *
 *     x     the residual stream, all through
 *     h     normalised input -> q k v | output of o     normalised input -> gate up | output of down     normalised rows: states | -> logits
 *     q k v att                 attention                                  gate up  feed-forward
 */
#include "engine/blocks.h"

#include <assert.h>

#include "engine/bind.h"
#include "engine/family.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"

/* --- bind --- */

static int attn_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, const struct pn_decoder_kind *kind, struct pn_attn *ret,
                     struct fo_err *e) {
    int64_t n_embd = h->n_embd, n_q = (int64_t)h->n_head * h->head_dim, n_kv = (int64_t)h->n_head_kv * h->head_dim;
    if (pn_bind_vector(b, layer, "attn_norm.weight", n_embd, &ret->norm, e) ||
        pn_bind_matrix(b, layer, "attn_output.weight", n_q, n_embd, &ret->o, e) ||
        pn_bind_vector_opt(b, layer, "attn_output.bias", n_embd, &ret->o_bias, e))
        return e->code;
    if (kind->qk_norm && (pn_bind_vector(b, layer, "attn_q_norm.weight", h->head_dim, &ret->q_norm, e) ||
                          pn_bind_vector(b, layer, "attn_k_norm.weight", h->head_dim, &ret->k_norm, e)))
        return e->code;
    if (kind->fused) return pn_bind_matrix(b, layer, "attn_qkv.weight", n_embd, n_q + 2 * n_kv, &ret->qkv, e);
    if (pn_bind_matrix(b, layer, "attn_q.weight", n_embd, n_q, &ret->q, e) ||
        pn_bind_matrix(b, layer, "attn_k.weight", n_embd, n_kv, &ret->k, e) ||
        pn_bind_matrix(b, layer, "attn_v.weight", n_embd, n_kv, &ret->v, e) ||
        pn_bind_vector_opt(b, layer, "attn_q.bias", n_q, &ret->q_bias, e) ||
        pn_bind_vector_opt(b, layer, "attn_k.bias", n_kv, &ret->k_bias, e) ||
        pn_bind_vector_opt(b, layer, "attn_v.bias", n_kv, &ret->v_bias, e))
        return e->code;
    return FO_OK;
}

static int ffn_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, const struct pn_decoder_kind *kind, struct pn_ffn *ret,
                    struct fo_err *e) {
    int64_t n_embd = h->n_embd, n_ff = h->n_ff;
    if (pn_bind_vector(b, layer, "ffn_norm.weight", n_embd, &ret->norm, e) ||
        pn_bind_matrix(b, layer, "ffn_down.weight", n_ff, n_embd, &ret->down, e) ||
        pn_bind_vector_opt(b, layer, "ffn_down.bias", n_embd, &ret->down_bias, e))
        return e->code;
    if (kind->fused) return pn_bind_matrix(b, layer, "ffn_up.weight", n_embd, 2 * n_ff, &ret->gate_up, e);
    if (pn_bind_matrix(b, layer, "ffn_gate.weight", n_embd, n_ff, &ret->gate, e) ||
        pn_bind_matrix(b, layer, "ffn_up.weight", n_embd, n_ff, &ret->up, e) ||
        pn_bind_vector_opt(b, layer, "ffn_gate.bias", n_ff, &ret->gate_bias, e) ||
        pn_bind_vector_opt(b, layer, "ffn_up.bias", n_ff, &ret->up_bias, e))
        return e->code;
    return FO_OK;
}

int pn_decoder_bind(struct pn_bind *b, const struct pn_hparams *h, const struct pn_decoder_kind *kind, void **ret, struct fo_err *e) {
    struct pn_decoder *w = fo_region_alloc(b->region, sizeof *w);
    if (!w || !(w->layers = fo_region_array(b->region, h->n_layer, sizeof *w->layers)))
        return fo_fail(e, FO_ENOMEM, "no memory to bind %u layers", h->n_layer);

    if (pn_bind_matrix(b, PN_AT_INPUT, "token_embd.weight", h->n_embd, h->n_vocab, &w->embed, e)) return e->code;
    for (uint32_t i = 0; i < h->n_layer; i++)
        if (attn_bind(b, (int)i, h, kind, &w->layers[i].attn, e) ||
            (h->n_expert ? pn_moe_bind(b, (int)i, h, &w->layers[i].moe, e) : ffn_bind(b, (int)i, h, kind, &w->layers[i].ffn, e)))
            return e->code;
    if (pn_bind_vector(b, PN_AT_OUTPUT, "output_norm.weight", h->n_embd, &w->norm, e) ||
        pn_bind_matrix_opt(b, PN_AT_OUTPUT, "output.weight", h->n_embd, h->n_vocab, &w->output, e) ||
        pn_rope_bind(b, h, kind->rope, &w->rope, e) || (!w->output.data && pn_bind_tied(b, "token_embd.weight", &w->output, e)))
        return e->code;
    *ret = w;
    return FO_OK;
}

/* --- layout --- */

static int take(struct fo_arena *a, unsigned char *block, int rows, uint64_t columns, float **ret, struct fo_err *e) {
    uint64_t off;
    if (fo_arena_take(a, (uint64_t)rows * columns * sizeof(float), 64, &off, e)) return e->code;
    *ret = block ? (float *)(block + off) : NULL;
    return FO_OK;
}

int pn_blocks_layout(const struct pn_hparams *h, int rows, int logit_rows, struct fo_arena *a, unsigned char *block, struct pn_buffers *ret,
                     struct fo_err *e) {
    uint64_t n_q = (uint64_t)h->n_head * h->head_dim, n_kv = (uint64_t)h->n_head_kv * h->head_dim;
    if (take(a, block, rows, h->n_embd, &ret->x, e) || take(a, block, rows, h->n_embd, &ret->h, e) ||
        take(a, block, rows, n_q, &ret->q, e) || take(a, block, rows, n_q, &ret->att, e) || take(a, block, rows, n_kv, &ret->k, e) ||
        take(a, block, rows, n_kv, &ret->v, e) || take(a, block, rows, h->n_ff, &ret->gate, e) ||
        take(a, block, rows, h->n_ff, &ret->up, e) ||
        (h->n_expert && (take(a, block, rows, h->n_expert, &ret->router, e) || take(a, block, rows, h->n_embd, &ret->expert_in, e) ||
                         take(a, block, rows, h->n_embd, &ret->expert_out, e))) ||
        take(a, block, logit_rows, h->n_vocab, &ret->logits, e))
        return e->code;
    return FO_OK;
}

/* --- forward --- */

/* The matrices whose rows lie below each other in `w`: n_rows[i] of them each. */
static void split_rows(const struct fo_tensor *w, const int64_t *n_rows, int n, struct fo_tensor *ret) {
    uint64_t row_bytes = fo_dtype_bytes(w->type, (uint64_t)w->ne[0]);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        ret[i] = fo_tensor_2d(w->type, w->ne[0], n_rows[i], (unsigned char *)w->data + (uint64_t)at * row_bytes);
        at += n_rows[i];
    }
    assert(at == w->ne[1]); /* as bound */
}

/* RMSNorm of each head of x [n_rows][n_head][head_dim], if there is one; a stream takes n_rows rows at a time. */
static int norm_heads(const struct pn_step *s, float *x, const struct fo_tensor *norm, uint32_t n_head, struct fo_err *e) {
    uint64_t some = (uint64_t)s->n_rows * s->h->head_dim;
    for (uint32_t i = 0; norm->data && i < n_head; i++)
        if (fo_rms_norm(s->stream, x + i * some, norm->data, s->n_rows, s->h->head_dim, s->h->rms_eps, x + i * some, e)) return e->code;
    return FO_OK;
}

/* y += bias, if there is one. */
static int add_bias(const struct pn_step *s, float *y, const struct fo_tensor *bias, struct fo_err *e) {
    return bias->data ? fo_add(s->stream, y, bias->data, s->n_rows, bias->ne[0], true, y, e) : FO_OK;
}

/* x += w . in + bias */
static int add_product(const struct pn_step *s, const struct fo_tensor *w, const struct fo_tensor *bias, const float *in, struct fo_err *e) {
    const struct pn_buffers *b = &s->buf;
    if (!bias->data)
        return fo_matmul_fused(s->stream, &(struct fo_fused){ .add_to = b->x }, &w, 1, in, s->n_rows, &b->h, e);
    if (fo_matmul(s->stream, w, in, s->n_rows, b->h, e) || add_bias(s, b->h, bias, e) ||
        fo_add(s->stream, b->x, b->h, s->n_rows, s->h->n_embd, false, b->x, e))
        return e->code;
    return FO_OK;
}

/* x += Attention(RMSNorm(x)): rotates q and k, appends k and v to the sequences' pages. */
static int attn_forward(const struct pn_step *s, const struct pn_attn *w, const struct fo_rope *rope, int layer, struct fo_err *e) {
    const struct pn_hparams *h = s->h;
    const struct pn_buffers *b = &s->buf;
    int kept = layer - (int)s->first_layer; /* in this die's pages */
    struct fo_tensor part[3] = { w->q, w->k, w->v };
    const struct fo_tensor *const qkv[] = { &part[0], &part[1], &part[2] };
    float *const out[] = { b->q, b->k, b->v };
    int n = s->n_rows;
    int64_t n_kv = (int64_t)h->n_head_kv * h->head_dim, rows[] = { (int64_t)h->n_head * h->head_dim, n_kv, n_kv };

    if (w->qkv.data) split_rows(&w->qkv, rows, 3, part);
    if (fo_matmul_fused(s->stream, &(struct fo_fused){ .norm = w->norm.data, .eps = h->rms_eps, .work = b->h }, qkv, 3, b->x, n, out, e) ||
        add_bias(s, b->q, &w->q_bias, e) || add_bias(s, b->k, &w->k_bias, e) || add_bias(s, b->v, &w->v_bias, e) ||
        norm_heads(s, b->q, &w->q_norm, h->n_head, e) || norm_heads(s, b->k, &w->k_norm, h->n_head_kv, e) ||
        fo_rope(s->stream, rope, b->q, s->pos, n, (int)h->n_head, e) || fo_rope(s->stream, rope, b->k, s->pos, n, (int)h->n_head_kv, e) ||
        fo_kv_store(s->stream, s->kv, b->k, b->v, &s->batch, kept, e) ||
        fo_attend(s->stream, s->kv, b->q, &s->batch, kept, b->att, e) ||
        add_product(s, &w->o, &w->o_bias, b->att, e))
        return fo_wrap(e, "layer %d, attention", layer);
    return FO_OK;
}

/* x += Down(SiLU(Gate(h)) * Up(h)), h = RMSNorm(x). */
static int ffn_forward(const struct pn_step *s, const struct pn_ffn *w, struct fo_err *e) {
    const struct pn_hparams *h = s->h;
    const struct pn_buffers *b = &s->buf;
    struct fo_tensor part[2] = { w->gate, w->up };
    const struct fo_tensor *const gate_up[] = { &part[0], &part[1] };
    float *const out[] = { b->gate, b->up };
    int n = s->n_rows;

    if (w->gate_up.data) split_rows(&w->gate_up, (const int64_t[]){ h->n_ff, h->n_ff }, 2, part);
    struct fo_fused f = { .norm = w->norm.data, .eps = h->rms_eps, .work = b->h, .gated = !w->gate_bias.data && !w->up_bias.data };
    if (fo_matmul_fused(s->stream, &f, gate_up, 2, b->x, n, out, e) ||
        (!f.gated && (add_bias(s, b->gate, &w->gate_bias, e) || add_bias(s, b->up, &w->up_bias, e) ||
                      fo_silu_mul(s->stream, b->gate, b->up, n, h->n_ff, b->gate, e))) ||
        add_product(s, &w->down, &w->down_bias, b->gate, e))
        return fo_wrap(e, "feed-forward");
    return FO_OK;
}

/* h = RMSNorm(x) of `rows` alone, side by side: runs of them are done together. */
static int gather(const struct pn_step *s, const struct fo_tensor *norm, const int32_t *rows, int n, float *h, struct fo_err *e) {
    uint64_t k = s->h->n_embd;
    for (int i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && rows[i + run] == rows[i] + run;) run++;
        if (fo_rms_norm(s->stream, s->buf.x + (uint64_t)rows[i] * k, norm->data, run, (int64_t)k, s->h->rms_eps, h + (uint64_t)i * k, e)) return e->code;
    }
    return FO_OK;
}

/* The rows that are asked for: states = RMSNorm(x), or logits = Output(RMSNorm(x)). */
static int head_forward(const struct pn_step *s, const struct fo_tensor *norm, const struct fo_tensor *output, struct fo_err *e) {
    const struct pn_buffers *b = &s->buf;
    float *wanted = b->h + (uint64_t)s->n_stated * s->h->n_embd;
    if (gather(s, norm, s->stated, s->n_stated, b->h, e) || gather(s, norm, s->wanted, s->n_wanted, wanted, e) ||
        (s->n_wanted && fo_matmul(s->stream, output, wanted, s->n_wanted, b->logits, e)))
        return fo_wrap(e, "output");
    return FO_OK;
}

int pn_decoder_forward(const void *decoder, const struct pn_step *s, struct fo_err *e) {
    const struct pn_decoder *w = decoder;
    if (s->first_layer == 0 && fo_get_rows(s->stream, &w->embed, s->ids, s->n_rows, s->buf.x, e)) return e->code;
    for (uint32_t i = s->first_layer; i < s->end_layer; i++)
        if (attn_forward(s, &w->layers[i].attn, &w->rope, (int)i, e) ||
            (s->h->n_expert ? pn_moe_forward(s, &w->layers[i].moe, e) : ffn_forward(s, &w->layers[i].ffn, e)))
            return e->code;
    return s->end_layer == s->h->n_layer ? head_forward(s, &w->norm, &w->output, e) : FO_OK;
}
