/* The queue in front of a worker: requests that wait, linked by `next`, oldest first, and the accounts that say whose turn it is (fair.h). It is
 * no thread's: whoever looks at it holds the scheduler's lock, and none of this waits, rings or allocates.
 *
 * Who starts next: what goes on with something that ran (pn_request_opts.goes_on) or was put back; then by urgency, then the tenant that has
 * had least, then its session that has, then the oldest. A request is as urgent as its priority, and by one priority more for each quarter of
 * the queue's timeout that it has waited.
 *
 * Who is taken: each priority has queue_depth places that only its own and higher ones fill, so that what is less urgent never keeps
 * out what is more; nobody who waits is thrown out for another. A tenant of whom nothing waits is taken even so: what others send does not shut
 * it out, and there are not more of those than tenants.
 *
 * What leaves otherwise than by starting (cancelled, expired, ended by order) comes back as a list linked by `next`, which the caller ends
 * once it has let go of the lock (pn_queue_end). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/fair.h"

struct fo_err;
struct pn_request;

struct pn_queue {
    struct pn_request *head, **tail;
    uint32_t n;
    struct pn_fair fair;
};

void pn_queue_init(struct pn_queue *q);
void pn_queue_done(struct pn_queue *q); /* which is empty */
/* The request's account is there already, and it waits there. First: before all others. */
void pn_queue_push(struct pn_queue *q, struct pn_request *r, bool first);
/* The next one to start, still counted as waiting; NULL when nobody waits. */
struct pn_request *pn_queue_pop(struct pn_queue *q, double now_ms, uint32_t timeout_ms);

/* Whether one more of this tenant and priority is taken, beside so many that run in so many slots. */
bool pn_queue_takes(const struct pn_queue *q, const char *tenant, enum pn_priority priority, uint32_t n_running, uint32_t slots, uint32_t depth);
/* Those that wait whose priority is at least this one. */
uint32_t pn_queue_ahead(const struct pn_queue *q, enum pn_priority priority);

/* Takes out whatever was cancelled, and with `all` everything else too. *ret_cancelled and *ret_others: how many of each. */
struct pn_request *pn_queue_sweep(struct pn_queue *q, bool all, uint32_t *ret_cancelled, uint32_t *ret_others);
/* Takes out what has waited for timeout_ms at now_ms (pn_now_ms) and was not part of something that runs (goes_on). *ret_n: how many. */
struct pn_request *pn_queue_expire(struct pn_queue *q, double now_ms, uint32_t timeout_ms, uint32_t *ret_n);
/* When the next one expires; 0 = none does. */
double pn_queue_expires_ms(const struct pn_queue *q, uint32_t timeout_ms);

/* Ends a list of requests that never started: the cancelled ones as such, the others with `why` (NULL: there are none). Without the lock. */
void pn_queue_end(struct pn_request *list, const struct fo_err *why);
