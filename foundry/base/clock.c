/* The monotonic clock: see clock.h. */
#include "foundry/base/clock.h"

enum { NS_PER_S = 1000000000, NS_PER_MS = 1000000 };

uint64_t fo_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t fo_now_ms(void) {
    return fo_now_ns() / NS_PER_MS;
}

struct timespec fo_deadline(int64_t timeout_ms) {
    uint64_t ns = fo_now_ns();
    if (timeout_ms > 0) ns += (uint64_t)timeout_ms * NS_PER_MS;
    return (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };
}
