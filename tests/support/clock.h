/* Time for tests. */
#pragma once
#include <time.h>

/* CPU time of this thread in milliseconds, so that a busy machine fails nothing. */
static inline double test_cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}
