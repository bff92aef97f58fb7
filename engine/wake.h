/* A bell: how other threads tell a worker that there is something to look at. It is counted, because a request whose reader is
 * still there may outlive the worker it would ring. A leaf lock: rung and waited for with any other lock held or none. */
#pragma once
#include <stdint.h>

struct pn_wake;

struct pn_wake *pn_wake_new(void); /* one reference; NULL without memory */
struct pn_wake *pn_wake_ref(struct pn_wake *w);
void pn_wake_unref(struct pn_wake *w); /* NULL is allowed */

/* How often it has rung. Read before looking for work, so that a ring in between is not missed by the wait. */
uint64_t pn_wake_count(struct pn_wake *w);
void pn_wake_ring(struct pn_wake *w);
/* Waits until it has rung more often than `seen`, or timeout_ms have passed. */
void pn_wake_wait(struct pn_wake *w, uint64_t seen, int timeout_ms);

/* Milliseconds of the monotonic clock. */
double pn_now_ms(void);
