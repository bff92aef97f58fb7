/* Qwen3, the dense ones (Qwen team, arXiv 2505.09388): the layers of Llama without biases; each head of q and of k passes an RMSNorm, one
 * weight vector for all heads, before it turns. A head's first half turns with its second, and its size is the file's own. */
#include "engine/bind.h"
#include "engine/blocks.h"
#include "engine/family.h"
#include "engine/hparams.h"
#include "foundry/base/err.h"

static const char arch[] = "qwen3";

static int qwen3_probe(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e) {
    if (pn_key_refuse(g, arch, "expert_count", e)) return e->code;
    return pn_hparams_probe(g, arch, ret, e);
}

static int qwen3_bind(struct pn_bind *b, const struct pn_hparams *h, void **ret, struct fo_err *e) {
    static const struct pn_decoder_kind kind = { .rope = FO_ROPE_HALVES, .qk_norm = true };
    return pn_decoder_bind(b, h, &kind, ret, e);
}

const struct pn_family pn_family_qwen3 = { arch, qwen3_probe, qwen3_bind, pn_blocks_layout, pn_decoder_forward };
