/* How many bytes a load needs, and whether they are there: pure arithmetic over numbers that the layouts measured, so that a plan, an
 * estimate and a load give the same answer. Any thread. */
#pragma once
#include <stdint.h>

struct fo_err;

/* What a model takes of a device, by part. Weights that stay in the mapped file count 0: the kernel gives their pages back under
 * pressure. */
struct pn_need {
    uint64_t weights, kv, compute;
};

/* The context cap that holds: asked, or min(8192, trained) when asked is 0. FO_EINVAL naming both numbers above the trained length. */
int pn_budget_ctx_cap(uint32_t asked, uint32_t trained, uint32_t *ret, struct fo_err *e);

/* FO_ENOMEM when the parts, taken in the order above, do not fit `have` bytes: the message names the first part that does not, need is
 * its bytes and have what the ones before it leave. */
int pn_budget_fit(const struct pn_need *need, uint64_t have, struct fo_err *e);
