/* Phi-3 and Phi-4 mini (Abdin et al., arXiv 2404.14219): the layers of Llama, kept as two matrices: attn_qkv has the rows of q, k and v one
 * below the other, ffn_up those of gate and up. A head's first half turns with its second. For long contexts a file has two sets of
 * divisors of the inverse frequencies and an attention factor: see rope.h. */
#include "engine/bind.h"
#include "engine/blocks.h"
#include "engine/family.h"
#include "engine/hparams.h"
#include "foundry/base/err.h"

static const char arch[] = "phi3";

static int phi3_probe(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e) {
    if (pn_key_refuse(g, arch, "expert_count", e)) return e->code;
    return pn_hparams_probe(g, arch, ret, e);
}

static int phi3_bind(struct pn_bind *b, const struct pn_hparams *h, void **ret, struct fo_err *e) {
    static const struct pn_decoder_kind kind = { .rope = FO_ROPE_HALVES, .fused = true };
    return pn_decoder_bind(b, h, &kind, ret, e);
}

const struct pn_family pn_family_phi3 = { arch, phi3_probe, phi3_bind, pn_blocks_layout, pn_decoder_forward };
