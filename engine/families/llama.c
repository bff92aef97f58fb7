/* Llama (Touvron et al., arXiv 2302.13971) and those of its shape: Mistral (arXiv 2310.06825), SmolLM. Per layer
 *
 *     x = x + Attention(RMSNorm(x))           rotary embedding, grouped queries, a sliding window where the file names one
 *     x = x + FeedForward(RMSNorm(x))         SwiGLU
 *
 * between an embedding and a normalised output matrix, which may be the embedding itself (tied). In GGUF the rows of q and k are
 * permuted so that rotary pairs are neighbours; in safetensors they are as they were trained, and the key pantheon.rope.neox says so: a
 * head's first half turns with its second. Llama 3's frequency scaling is the tensor rope_freqs.weight: divisors of the inverse
 * frequencies. The architecture name "llama" also stands over Mixtral, whose feed-forward
 * block is a mixture of experts: see moe.h. */
#include "engine/bind.h"
#include "engine/blocks.h"
#include "engine/family.h"
#include "engine/hparams.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"

static const char arch[] = "llama";

static int llama_probe(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e) {
    return pn_hparams_probe(g, arch, ret, e);
}

static int llama_bind(struct pn_bind *b, const struct pn_hparams *h, void **ret, struct fo_err *e) {
    struct pn_decoder_kind kind = { .rope = FO_ROPE_PAIRS };
    bool halves;
    if (fo_gguf_find(b->g, "pantheon.rope.neox")) {
        if (fo_gguf_get_bool(b->g, "pantheon.rope.neox", &halves, e)) return e->code;
        if (halves) kind.rope = FO_ROPE_HALVES;
    }
    return pn_decoder_bind(b, h, &kind, ret, e);
}

const struct pn_family pn_family_llama = { arch, llama_probe, llama_bind, pn_blocks_layout, pn_decoder_forward };
