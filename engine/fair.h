/* Whose turn it is, by tokens: an account for each tenant, and within it one for each of its sessions, which count the tokens that were
 * computed for it. Who has had least comes first (the virtual token counters of Sheng et al., "Fairness in Serving Large Language Models",
 * 2024), so that over time all who have work get the same number of tokens, however many requests they send and however long those are.
 *
 * A newcomer is not owed the past: whoever had nothing to do is lifted to the least of those that have. An account that nobody uses
 * stays only as long as it stands above that, because until then it says that its owner had more than others; of those some hundreds.
 *
 * A prompt token and a token of an answer count alike; what was found in kept KV costs nothing. Whoever calls holds the scheduler's lock;
 * nothing here allocates but pn_account_new, which needs none. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/request.h"

struct pn_account;

struct pn_accounts {
    struct pn_account *list;
    uint32_t n_idle;
    uint64_t level; /* of the last that left: where a newcomer begins when nobody is there */
};

struct pn_account {
    struct pn_account *next, *of;  /* of: the session's tenant; NULL = a tenant */
    struct pn_accounts sessions;   /* of a tenant */
    uint64_t served;               /* tokens, and what it was lifted by */
    uint64_t pending;              /* prompt tokens of what has started that are not computed yet: they count for who starts next */
    uint64_t started;              /* when one of its requests last started, in starts: of equals the one that has waited longer is next */
    uint32_t n_active, n_waiting;  /* requests that run or wait, and those that wait */
    char name[];
};

struct pn_fair {
    struct pn_accounts tenants;
    uint64_t starts;
};

/* An account to enter with; name NULL = "". NULL without memory. */
struct pn_account *pn_account_new(const char *name);
void pn_account_free(struct pn_account *a); /* with its sessions; NULL is allowed */
void pn_fair_done(struct pn_fair *f);

/* A request that waits comes in: the account of its session. The two fresh ones are taken where there was none of that name; what is
 * left of them is the caller's (NULL = taken). */
struct pn_account *pn_fair_enter(struct pn_fair *f, struct pn_account **tenant, struct pn_account **session);
/* One that does not wait goes: the account may be gone afterwards. */
void pn_fair_leave(struct pn_fair *f, struct pn_account *session);
/* One that waited starts, with so many prompt tokens to compute. */
void pn_fair_start(struct pn_fair *f, struct pn_account *session, uint32_t n_prompt);
/* One that waited leaves the queue otherwise. */
void pn_fair_drop(struct pn_fair *f, struct pn_account *session);
/* Tokens that were computed: of a prompt that had started, or of an answer. */
void pn_fair_prompt(struct pn_account *session, uint32_t n);
void pn_fair_answer(struct pn_account *session, uint32_t n);
/* Prompt tokens of one that ends which are never computed. */
void pn_fair_forgo(struct pn_account *session, uint32_t n);

/* The requests of this tenant that wait. */
uint32_t pn_fair_waiting(const struct pn_fair *f, const char *tenant);

/* Whether one of a's requests comes before one of b's: to start, or (else) to have its prompt computed. False of equals. */
bool pn_fair_before(const struct pn_account *a, const struct pn_account *b, bool starts);

/* How urgent a request is that was sent so long ago: 0 low, 1 normal, 2 high, and one more for each step_ms. Among those that reach the
 * highest priority that anybody has, accounts decide: so what is urgent comes first, and nothing waits for ever. */
uint32_t pn_fair_urgency(enum pn_priority p);
uint32_t pn_fair_reach(enum pn_priority p, double since_ms, double step_ms);
