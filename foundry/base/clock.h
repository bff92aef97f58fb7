/* The monotonic clock: for measuring and for deadlines, never for what people read as a date. Any thread. */
#pragma once
#include <stdint.h>
#include <time.h>

uint64_t fo_now_ns(void);
uint64_t fo_now_ms(void); /* the same, rounded down */

/* The moment timeout_ms from now (below 0 = now), for pthread_cond_timedwait on a condition whose clock is CLOCK_MONOTONIC. */
struct timespec fo_deadline(int64_t timeout_ms);
