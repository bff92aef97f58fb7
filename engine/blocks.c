/* Shared blocks: see blocks.h. Buffers of a step and who uses them when:
 *
 *     x     the residual stream, all through
 *     h     normalised input -> q k v | output of o     normalised input -> gate up | output of down     normalised rows -> logits
 *     q k v att                 attention                                  gate up  feed-forward
 */
#include "engine/blocks.h"

#include "engine/bind.h"
#include "engine/family.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"

int pn_attn_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, struct pn_attn *ret, struct fo_err *e) {
    int64_t n_embd = h->n_embd, n_q = (int64_t)h->n_head * h->head_dim, n_kv = (int64_t)h->n_head_kv * h->head_dim;
    if (pn_bind_vector(b, layer, "attn_norm.weight", n_embd, &ret->norm, e) ||
        pn_bind_matrix(b, layer, "attn_q.weight", n_embd, n_q, &ret->q, e) ||
        pn_bind_matrix(b, layer, "attn_k.weight", n_embd, n_kv, &ret->k, e) ||
        pn_bind_matrix(b, layer, "attn_v.weight", n_embd, n_kv, &ret->v, e) ||
        pn_bind_matrix(b, layer, "attn_output.weight", n_q, n_embd, &ret->o, e) ||
        pn_bind_vector_opt(b, layer, "attn_q.bias", n_q, &ret->q_bias, e) ||
        pn_bind_vector_opt(b, layer, "attn_k.bias", n_kv, &ret->k_bias, e) ||
        pn_bind_vector_opt(b, layer, "attn_v.bias", n_kv, &ret->v_bias, e) ||
        pn_bind_vector_opt(b, layer, "attn_output.bias", n_embd, &ret->o_bias, e))
        return e->code;
    return FO_OK;
}

int pn_ffn_bind(struct pn_bind *b, int layer, const struct pn_hparams *h, struct pn_ffn *ret, struct fo_err *e) {
    int64_t n_embd = h->n_embd, n_ff = h->n_ff;
    if (pn_bind_vector(b, layer, "ffn_norm.weight", n_embd, &ret->norm, e) ||
        pn_bind_matrix(b, layer, "ffn_gate.weight", n_embd, n_ff, &ret->gate, e) ||
        pn_bind_matrix(b, layer, "ffn_up.weight", n_embd, n_ff, &ret->up, e) ||
        pn_bind_matrix(b, layer, "ffn_down.weight", n_ff, n_embd, &ret->down, e) ||
        pn_bind_vector_opt(b, layer, "ffn_gate.bias", n_ff, &ret->gate_bias, e) ||
        pn_bind_vector_opt(b, layer, "ffn_up.bias", n_ff, &ret->up_bias, e) ||
        pn_bind_vector_opt(b, layer, "ffn_down.bias", n_embd, &ret->down_bias, e))
        return e->code;
    return FO_OK;
}

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
        take(a, block, rows, h->n_ff, &ret->up, e) || take(a, block, logit_rows, h->n_vocab, &ret->logits, e))
        return e->code;
    return FO_OK;
}

/* y += bias, if there is one. */
static int add_bias(const struct pn_step *s, float *y, const struct fo_tensor *bias, struct fo_err *e) {
    return bias->data ? fo_add(s->stream, y, bias->data, s->n_rows, bias->ne[0], true, y, e) : FO_OK;
}

int pn_attn_forward(const struct pn_step *s, const struct pn_attn *w, const struct fo_rope *rope, int layer, struct fo_err *e) {
    const struct pn_hparams *h = s->h;
    const struct pn_buffers *b = &s->buf;
    int kept = layer - (int)s->first_layer; /* in this die's pages */
    const struct fo_tensor *const qkv[] = { &w->q, &w->k, &w->v };
    float *const out[] = { b->q, b->k, b->v };
    int n = s->n_rows;

    if (fo_rms_norm(s->stream, b->x, w->norm.data, n, h->n_embd, h->rms_eps, b->h, e) ||
        fo_matmul_many(s->stream, qkv, 3, b->h, n, out, e) ||
        add_bias(s, b->q, &w->q_bias, e) || add_bias(s, b->k, &w->k_bias, e) || add_bias(s, b->v, &w->v_bias, e) ||
        fo_rope(s->stream, rope, b->q, s->pos, n, (int)h->n_head, e) || fo_rope(s->stream, rope, b->k, s->pos, n, (int)h->n_head_kv, e) ||
        fo_kv_store(s->stream, s->kv, b->k, b->v, &s->batch, kept, e) ||
        fo_attend(s->stream, s->kv, b->q, &s->batch, kept, b->att, e) ||
        fo_matmul(s->stream, &w->o, b->att, n, b->h, e) || add_bias(s, b->h, &w->o_bias, e) ||
        fo_add(s->stream, b->x, b->h, n, h->n_embd, false, b->x, e))
        return fo_wrap(e, "layer %d, attention", layer);
    return FO_OK;
}

int pn_ffn_forward(const struct pn_step *s, const struct pn_ffn *w, struct fo_err *e) {
    const struct pn_hparams *h = s->h;
    const struct pn_buffers *b = &s->buf;
    const struct fo_tensor *const gate_up[] = { &w->gate, &w->up };
    float *const out[] = { b->gate, b->up };
    int n = s->n_rows;

    if (fo_rms_norm(s->stream, b->x, w->norm.data, n, h->n_embd, h->rms_eps, b->h, e) ||
        fo_matmul_many(s->stream, gate_up, 2, b->h, n, out, e) ||
        add_bias(s, b->gate, &w->gate_bias, e) || add_bias(s, b->up, &w->up_bias, e) ||
        fo_silu_mul(s->stream, b->gate, b->up, n, h->n_ff, b->gate, e) ||
        fo_matmul(s->stream, &w->down, b->gate, n, b->h, e) || add_bias(s, b->h, &w->down_bias, e) ||
        fo_add(s->stream, b->x, b->h, n, h->n_embd, false, b->x, e))
        return fo_wrap(e, "feed-forward");
    return FO_OK;
}

int pn_head_forward(const struct pn_step *s, const struct fo_tensor *norm, const struct fo_tensor *output, struct fo_err *e) {
    const struct pn_buffers *b = &s->buf;
    uint64_t k = s->h->n_embd;
    /* Normalising also gathers: runs of wanted rows land side by side in h. */
    for (int i = 0, run; i < s->n_wanted; i += run) {
        for (run = 1; i + run < s->n_wanted && s->wanted[i + run] == s->wanted[i] + run;) run++;
        if (fo_rms_norm(s->stream, b->x + (uint64_t)s->wanted[i] * k, norm->data, run, (int64_t)k, s->h->rms_eps, b->h + (uint64_t)i * k, e))
            return fo_wrap(e, "output");
    }
    if (s->n_wanted && fo_matmul(s->stream, output, b->h, s->n_wanted, b->logits, e)) return fo_wrap(e, "output");
    return FO_OK;
}
