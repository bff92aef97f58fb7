/* The queue in front of a worker: requests that wait, linked by `next`, in the order in which they start. It is no thread's: whoever
 * looks at it holds the scheduler's lock, and none of this waits, rings or allocates.
 *
 * What leaves otherwise than by starting (cancelled, expired, ended by order) comes back as a list linked by `next`, which the caller ends
 * once it has let go of the lock (pn_queue_end). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fo_err;
struct pn_request;

struct pn_queue {
    struct pn_request *head, **tail;
    uint32_t n;
};

void pn_queue_init(struct pn_queue *q);
void pn_queue_push(struct pn_queue *q, struct pn_request *r);
void pn_queue_push_front(struct pn_queue *q, struct pn_request *r);
/* The next one to start; NULL when nobody waits. */
struct pn_request *pn_queue_pop(struct pn_queue *q);

/* Takes out whatever was cancelled, and with `all` everything else too. *ret_cancelled and *ret_others: how many of each. */
struct pn_request *pn_queue_sweep(struct pn_queue *q, bool all, uint32_t *ret_cancelled, uint32_t *ret_others);
/* Takes out what has waited for timeout_ms at now_ms (pn_now_ms) and was not part of something that runs (goes_on). *ret_n: how many. */
struct pn_request *pn_queue_expire(struct pn_queue *q, double now_ms, uint32_t timeout_ms, uint32_t *ret_n);
/* When the next one expires; 0 = none does. */
double pn_queue_expires_ms(const struct pn_queue *q, uint32_t timeout_ms);

/* Ends a list of requests that never started: the cancelled ones as such, the others with `why` (NULL: there are none). Without the lock. */
void pn_queue_end(struct pn_request *list, const struct fo_err *why);
