/* The arithmetic of memory: see budget.h. */
#include "engine/mem/budget.h"

#include "foundry/base/err.h"
#include "foundry/base/units.h"

enum { DEFAULT_CTX_CAP = 8192 };

int pn_budget_ctx_cap(uint32_t asked, uint32_t trained, uint32_t *ret, struct fo_err *e) {
    if (asked > trained)
        return fo_fail_need(e, FO_EINVAL, asked, trained, "ctx_cap %u is above the %u tokens that the model was trained for", asked, trained);
    *ret = asked ? asked : trained < DEFAULT_CTX_CAP ? trained : DEFAULT_CTX_CAP;
    return FO_OK;
}

int pn_budget_fit(const struct pn_need *need, uint64_t have, struct fo_err *e) {
    const struct {
        const char *name;
        uint64_t bytes;
    } part[] = { { "weights", need->weights }, { "kv", need->kv }, { "compute", need->compute } };
    uint64_t left = have;
    for (int i = 0; i < 3; left -= part[i++].bytes) {
        if (part[i].bytes <= left) continue;
        char a[16], b[16];
        return fo_fail_need(e, FO_ENOMEM, part[i].bytes, left, "asked %s, free %s (part=%s)",
                            fo_format_bytes(part[i].bytes, a, sizeof a), fo_format_bytes(left, b, sizeof b), part[i].name);
    }
    return FO_OK;
}
