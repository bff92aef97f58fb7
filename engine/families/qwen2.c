/* Qwen2 and Qwen2.5 (Qwen team, arXiv 2407.10671): the layers of Llama with biases on q, k and v. GGUF keeps the rows of q and k as they
 * were trained, so a head's first half turns with its second. */
#include "engine/bind.h"
#include "engine/blocks.h"
#include "engine/family.h"
#include "engine/hparams.h"
#include "foundry/base/err.h"

static const char arch[] = "qwen2";

static int qwen2_probe(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e) {
    if (pn_key_refuse(g, arch, "expert_count", e)) return e->code;
    return pn_hparams_probe(g, arch, ret, e);
}

static int qwen2_bind(struct pn_bind *b, const struct pn_hparams *h, void **ret, struct fo_err *e) {
    static const struct pn_decoder_kind kind = { .rope = FO_ROPE_HALVES };
    return pn_decoder_bind(b, h, &kind, ret, e);
}

const struct pn_family pn_family_qwen2 = { arch, qwen2_probe, qwen2_bind, pn_blocks_layout, pn_decoder_forward };
