/* Shared hyperparameters: see hparams.h. */
#include "engine/hparams.h"

#include "engine/bind.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"

static int probe_sizes(const struct fo_gguf *g, const char *arch, struct pn_hparams *h, struct fo_err *e) {
    if (pn_key_u32(g, arch, "block_count", 1, PN_MAX_LAYERS, &h->n_layer, e) ||
        pn_key_u32(g, arch, "context_length", 1, PN_MAX_CTX, &h->n_ctx_train, e) ||
        pn_key_u32(g, arch, "embedding_length", 1, PN_MAX_EMBD, &h->n_embd, e) ||
        pn_key_u32(g, arch, "feed_forward_length", 1, PN_MAX_FF, &h->n_ff, e) ||
        pn_key_u32(g, arch, "attention.head_count", 1, PN_MAX_HEADS, &h->n_head, e) ||
        pn_key_f32(g, arch, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f, &h->rms_eps, e) ||
        pn_key_u32_opt(g, arch, "attention.sliding_window", 0, UINT32_MAX, &h->window, e))
        return e->code;

    h->n_head_kv = h->n_head;
    if (pn_key_u32_opt(g, arch, "attention.head_count_kv", 1, h->n_head, &h->n_head_kv, e)) return e->code;
    if (h->n_head % h->n_head_kv)
        return fo_fail(e, FO_EFORMAT, "%s.attention.head_count is %u, expected a multiple of head_count_kv, %u", arch, h->n_head, h->n_head_kv);

    h->head_dim = h->n_embd / h->n_head;
    if (pn_key_u32_opt(g, arch, "attention.key_length", 1, PN_MAX_HEAD_DIM, &h->head_dim, e)) return e->code;
    if (h->head_dim < 1 || h->head_dim > PN_MAX_HEAD_DIM)
        return fo_fail(e, FO_EFORMAT, "%s.embedding_length %u over head_count %u gives no usable head size", arch, h->n_embd, h->n_head);
    uint32_t value_length = h->head_dim;
    if (pn_key_u32_opt(g, arch, "attention.value_length", 1, PN_MAX_HEAD_DIM, &value_length, e)) return e->code;
    if (value_length != h->head_dim)
        return fo_fail(e, FO_EUNSUPPORTED, "%s.attention.value_length is %u and key_length %u: this build serves equal ones only", arch,
                       value_length, h->head_dim);
    return FO_OK;
}

static int probe_rope(const struct fo_gguf *g, const char *arch, struct pn_hparams *h, struct fo_err *e) {
    if (pn_key_f32_opt(g, arch, "rope.freq_base", 1.0f, 1e12f, &h->rope_base, e)) return e->code;
    h->n_rot = h->head_dim;
    if (pn_key_u32_opt(g, arch, "rope.dimension_count", 2, h->head_dim, &h->n_rot, e)) return e->code;
    if (h->n_rot % 2) return fo_fail(e, FO_EFORMAT, "%u dimensions of a head rotate (%s.rope.dimension_count), expected an even number", h->n_rot, arch);
    return pn_rope_scaling_probe(g, arch, h->n_ctx_train, &h->rope, e);
}

static int probe_experts(const struct fo_gguf *g, const char *arch, struct pn_hparams *h, struct fo_err *e) {
    /* what other mixtures have and this one lacks */
    static const char *const refused[] = { "expert_shared_count", "expert_weights_scale", "expert_gating_func", "leading_dense_block_count",
                                           "interleave_moe_layer_step" };
    if (pn_key_u32_opt(g, arch, "expert_count", 0, PN_MAX_EXPERTS, &h->n_expert, e)) return e->code;
    if (!h->n_expert) return FO_OK;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (pn_key_refuse(g, arch, refused[i], e)) return e->code;
    return pn_key_u32(g, arch, "expert_used_count", 1, h->n_expert, &h->n_expert_used, e);
}

static int probe_vocab(const struct fo_gguf *g, const char *arch, struct pn_hparams *h, struct fo_err *e) {
    const struct fo_gguf_tensor *embed = fo_gguf_tensor(g, "token_embd.weight");
    if (!embed) return fo_fail(e, FO_EFORMAT, "tensor token_embd.weight is missing");
    if (embed->t.ne[1] < 1 || embed->t.ne[1] > PN_MAX_VOCAB)
        return fo_fail(e, FO_EFORMAT, "tensor token_embd.weight has %lld rows, expected 1 to %d", (long long)embed->t.ne[1], PN_MAX_VOCAB);
    h->n_vocab = (uint32_t)embed->t.ne[1];
    uint32_t vocab_size = h->n_vocab;
    if (pn_key_u32_opt(g, arch, "vocab_size", 1, PN_MAX_VOCAB, &vocab_size, e)) return e->code;
    if (vocab_size != h->n_vocab)
        return fo_fail(e, FO_EFORMAT, "%s.vocab_size is %u, but token_embd.weight has %u rows", arch, vocab_size, h->n_vocab);
    return FO_OK;
}

int pn_hparams_probe(const struct fo_gguf *g, const char *arch, struct pn_hparams *ret, struct fo_err *e) {
    struct pn_hparams h = { .rope_base = 10000.0f };
    if (probe_sizes(g, arch, &h, e) || probe_rope(g, arch, &h, e) || probe_experts(g, arch, &h, e) || probe_vocab(g, arch, &h, e)) return e->code;
    *ret = h;
    return FO_OK;
}
