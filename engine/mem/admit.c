/* Admission: see admit.h.
 *
 * The wording is a contract. Agents tell an overflow (compact the conversation and try again) from any other 400 by phrases in the
 * message, and no two agents by the same one; so one sentence carries all of them, with plain digits. It must not contain the words
 * by which they recognise a rate limit. */
#include "engine/mem/admit.h"

#include <inttypes.h>

#include "engine/engine.h"
#include "foundry/base/err.h"

static uint64_t add(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t mul(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

int pn_admit(const struct pn_admit_facts *f, uint64_t prompt, uint64_t max_tokens, struct pn_budget *ret, struct fo_err *e) {
    uint64_t fit = prompt < f->ctx_cap ? f->ctx_cap - prompt : 0, want = max_tokens;
    if (want == 0 && !f->prompt_only) {
        want = f->max_tokens_default && f->max_tokens_default < fit ? f->max_tokens_default : fit;
        if (want == 0) want = 1; /* an answer has at least one token */
    }
    uint64_t all = add(prompt, want), kept = f->kv_tokens_cap && f->kv_tokens_cap < all ? f->kv_tokens_cap : all;
    *ret = (struct pn_budget){
        .prompt_tokens = prompt,
        .max_tokens = want,
        .ctx_cap = f->ctx_cap,
        .effective_ctx = f->ctx_cap,
        .limited_by = f->limited_by,
        .kv_bytes_per_token = f->kv_bytes_per_token,
        .kv_bytes_needed = mul(kept, f->kv_bytes_per_token),
        .kv_bytes_available = f->kv_bytes_available,
        .max_tokens_that_fit = fit,
    };
    if (all <= f->ctx_cap) return 0;
    if (f->prompt_only)
        return fo_fail_need(e, FO_EBUDGET, all, f->ctx_cap,
                            "This model's maximum context length is %" PRIu64 " tokens. However, your input has %" PRIu64
                            " tokens and exceeds the available context size. Shorten it, or send it in parts.",
                            f->ctx_cap, all);
    return fo_fail_need(e, FO_EBUDGET, all, f->ctx_cap,
                        "This model's maximum context length is %" PRIu64 " tokens. However, your request has %" PRIu64 " tokens (%" PRIu64
                        " in the prompt, %" PRIu64
                        " for the completion) and exceeds the available context size. Reduce the messages or max_tokens.",
                        f->ctx_cap, all, prompt, want);
}
