/* Whether a request fits its context: a pure verdict with need and have. THE arithmetic behind every endpoint's admission. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fo_err;
struct pn_budget;

struct pn_admit_facts {
    uint64_t ctx_cap;        /* most tokens of a conversation */
    const char *limited_by;  /* who set it: "manifest" */
    uint64_t kv_bytes_per_token;
    uint64_t kv_tokens_cap;      /* most tokens of a conversation whose KV is kept at a time; 0 = all */
    uint64_t kv_bytes_available; /* of the pool, not held by running requests */
    bool prompt_only;            /* nothing is generated: an embedding */
    uint64_t max_tokens_default; /* when the request names none; 0 = all that fits */
};

/* max_tokens 0 = unset. Fills *ret_budget in every case; its max_tokens is what the completion gets. FO_EBUDGET when prompt and
 * completion pass the cap, or the prompt leaves no room for one token (which it need not with prompt_only): need = tokens asked, have = the cap, and the message that
 * clients of this protocol recognise as a context overflow. */
int pn_admit(const struct pn_admit_facts *f, uint64_t prompt_tokens, uint64_t max_tokens, struct pn_budget *ret_budget, struct fo_err *e);
