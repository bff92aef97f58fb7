/* Llama (Touvron et al., arXiv 2302.13971) and those of its shape: Mistral (arXiv 2310.06825), SmolLM. Per layer
 *
 *     x = x + Attention(RMSNorm(x))           rotary embedding, grouped queries, a sliding window where the file names one
 *     x = x + FeedForward(RMSNorm(x))         SwiGLU
 *
 * between an embedding and a normalised output matrix, which may be the embedding itself (tied). In GGUF the rows of q and k are
 * permuted so that rotary pairs are neighbours. Llama 3's frequency scaling is the tensor rope_freqs.weight: divisors of the inverse
 * frequencies. The architecture name "llama" also stands over mixtures of experts, which this build refuses. */
#include <math.h>

#include "engine/bind.h"
#include "engine/blocks.h"
#include "engine/family.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"

static const char arch[] = "llama";

struct llama_layer {
    struct pn_attn attn;
    struct pn_ffn ffn;
};

struct llama {
    struct fo_tensor embed;     /* [n_vocab][n_embd] */
    struct llama_layer *layers; /* [n_layer] */
    struct fo_tensor norm;      /* [n_embd] */
    struct fo_tensor output;    /* [n_vocab][n_embd]; tied: the embedding's values */
    struct fo_rope rope;
};

/* --- probe --- */

/* What would change the result and is not computed here: a file that asks for it is refused by the key's name. */
static const char *const refused[] = {
    "expert_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear",
};

static int llama_probe(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e) {
    struct pn_hparams h = { .rope_base = 10000.0f };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (pn_key_refuse(g, arch, refused[i], e)) return e->code;

    if (pn_key_u32(g, arch, "block_count", 1, PN_MAX_LAYERS, &h.n_layer, e) ||
        pn_key_u32(g, arch, "context_length", 1, PN_MAX_CTX, &h.n_ctx_train, e) ||
        pn_key_u32(g, arch, "embedding_length", 1, PN_MAX_EMBD, &h.n_embd, e) ||
        pn_key_u32(g, arch, "feed_forward_length", 1, PN_MAX_FF, &h.n_ff, e) ||
        pn_key_u32(g, arch, "attention.head_count", 1, PN_MAX_HEADS, &h.n_head, e) ||
        pn_key_f32(g, arch, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f, &h.rms_eps, e) ||
        pn_key_f32_opt(g, arch, "rope.freq_base", 1.0f, 1e12f, &h.rope_base, e) ||
        pn_key_u32_opt(g, arch, "attention.sliding_window", 0, UINT32_MAX, &h.window, e))
        return e->code;

    h.n_head_kv = h.n_head;
    if (pn_key_u32_opt(g, arch, "attention.head_count_kv", 1, h.n_head, &h.n_head_kv, e)) return e->code;
    if (h.n_head % h.n_head_kv)
        return fo_fail(e, FO_EFORMAT, "llama.attention.head_count is %u, expected a multiple of head_count_kv, %u", h.n_head, h.n_head_kv);

    h.head_dim = h.n_embd / h.n_head;
    if (pn_key_u32_opt(g, arch, "attention.key_length", 1, PN_MAX_HEAD_DIM, &h.head_dim, e)) return e->code;
    if (h.head_dim < 1 || h.head_dim > PN_MAX_HEAD_DIM)
        return fo_fail(e, FO_EFORMAT, "llama.embedding_length %u over head_count %u gives no usable head size", h.n_embd, h.n_head);
    uint32_t value_length = h.head_dim;
    if (pn_key_u32_opt(g, arch, "attention.value_length", 1, PN_MAX_HEAD_DIM, &value_length, e)) return e->code;
    if (value_length != h.head_dim)
        return fo_fail(e, FO_EUNSUPPORTED, "llama.attention.value_length is %u and key_length %u: this build serves equal ones only",
                       value_length, h.head_dim);

    h.n_rot = h.head_dim;
    if (pn_key_u32_opt(g, arch, "rope.dimension_count", 2, h.head_dim, &h.n_rot, e)) return e->code;
    if (h.n_rot % 2) return fo_fail(e, FO_EFORMAT, "%u dimensions of a head rotate (llama.rope.dimension_count), expected an even number", h.n_rot);

    const struct fo_gguf_tensor *embed = fo_gguf_tensor(g, "token_embd.weight");
    if (!embed) return fo_fail(e, FO_EFORMAT, "tensor token_embd.weight is missing");
    if (embed->t.ne[1] < 1 || embed->t.ne[1] > PN_MAX_VOCAB)
        return fo_fail(e, FO_EFORMAT, "tensor token_embd.weight has %lld rows, expected 1 to %d", (long long)embed->t.ne[1], PN_MAX_VOCAB);
    h.n_vocab = (uint32_t)embed->t.ne[1];
    uint32_t vocab_size = h.n_vocab;
    if (pn_key_u32_opt(g, arch, "vocab_size", 1, PN_MAX_VOCAB, &vocab_size, e)) return e->code;
    if (vocab_size != h.n_vocab)
        return fo_fail(e, FO_EFORMAT, "llama.vocab_size is %u, but token_embd.weight has %u rows", vocab_size, h.n_vocab);
    *ret = h;
    return FO_OK;
}

/* --- bind --- */

static int bind_rope(struct pn_bind *b, const struct pn_hparams *h, struct fo_rope *ret, struct fo_err *e) {
    int n = (int)h->n_rot / 2;
    const float *divisor; /* [n] */
    double *inv_freq = fo_region_array(b->region, (size_t)n, sizeof *inv_freq);
    if (!inv_freq) return fo_fail(e, FO_ENOMEM, "no memory for %d rotary frequencies", n);
    if (pn_bind_host_vector_opt(b, "rope_freqs.weight", n, &divisor, e)) return e->code;
    for (int i = 0; i < n; i++) {
        inv_freq[i] = pow((double)h->rope_base, -2.0 * i / h->n_rot);
        if (!divisor) continue;
        if (!(divisor[i] > 0.0f) || isinf(divisor[i]))
            return fo_fail(e, FO_EFORMAT, "tensor rope_freqs.weight has %g at %d, expected a positive number", (double)divisor[i], i);
        inv_freq[i] /= (double)divisor[i];
    }
    *ret = (struct fo_rope){ .kind = FO_ROPE_PAIRS, .head_dim = (int)h->head_dim, .n_rot = (int)h->n_rot, .inv_freq = inv_freq, .attn_factor = 1.0f };
    return FO_OK;
}

static int llama_bind(struct pn_bind *b, const struct pn_hparams *h, void **ret, struct fo_err *e) {
    struct llama *w = fo_region_alloc(b->region, sizeof *w);
    if (!w || !(w->layers = fo_region_array(b->region, h->n_layer, sizeof *w->layers)))
        return fo_fail(e, FO_ENOMEM, "no memory to bind %u layers", h->n_layer);

    if (pn_bind_matrix(b, PN_AT_INPUT, "token_embd.weight", h->n_embd, h->n_vocab, &w->embed, e)) return e->code;
    for (uint32_t i = 0; i < h->n_layer; i++)
        if (pn_attn_bind(b, (int)i, h, &w->layers[i].attn, e) || pn_ffn_bind(b, (int)i, h, &w->layers[i].ffn, e)) return e->code;
    if (pn_bind_vector(b, PN_AT_OUTPUT, "output_norm.weight", h->n_embd, &w->norm, e) ||
        pn_bind_matrix_opt(b, PN_AT_OUTPUT, "output.weight", h->n_embd, h->n_vocab, &w->output, e) || bind_rope(b, h, &w->rope, e) ||
        (!w->output.data && pn_bind_tied(b, "token_embd.weight", &w->output, e)))
        return e->code;
    *ret = w;
    return FO_OK;
}

/* --- forward --- */

static int llama_forward(const void *weights, const struct pn_step *s, struct fo_err *e) {
    const struct llama *w = weights;
    if (s->first_layer == 0 && fo_get_rows(s->stream, &w->embed, s->ids, s->n_rows, s->buf.x, e)) return e->code;
    for (uint32_t i = s->first_layer; i < s->end_layer; i++)
        if (pn_attn_forward(s, &w->layers[i].attn, &w->rope, (int)i, e) || pn_ffn_forward(s, &w->layers[i].ffn, e)) return e->code;
    return s->end_layer == s->h->n_layer ? pn_head_forward(s, &w->norm, &w->output, e) : FO_OK;
}

const struct pn_family pn_family_llama = { arch, llama_probe, llama_bind, pn_blocks_layout, llama_forward };
