/* Whether a backend may be asked: what probes and requests say of it. A backend is down at its first refused or broken connection, or after a few
 * failed answers in a row; it is tried again after a while that doubles, by one probe, and serves when that succeeds. A value: whoever
 * has it locks it. Times are fo_now_ms. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    PD_PROBE_EVERY_MS = 1000,
    PD_BACKOFF_FIRST_MS = 250,
    PD_BACKOFF_MOST_MS = 5000,
    PD_FAILED_ANSWERS = 5,   /* 500, 502 or 504 in a row with none between that is right: the backend is down. A 503 is none: it is of a
                              * model or a moment, and says when to come back */
    PD_STEADY_MS = 30000,    /* so long without a failure: the next backoff starts from the first again */
};

struct pd_health {
    enum pd_health_state { PD_HEALTH_UNKNOWN, PD_HEALTH_UP, PD_HEALTH_DOWN } state; /* UNKNOWN: no probe is over yet; not asked */
    bool probing;         /* a probe is under way */
    uint32_t bad_answers; /* in a row */
    uint64_t backoff_ms;  /* of the next failure */
    uint64_t next_ms;     /* when the next probe is due */
    uint64_t failed_ms;   /* when it failed last */
    uint64_t downs;       /* how often it went down */
    char why[160];        /* it is down; "" = it is not */
};

/* Whether a probe is due; true also marks it as under way: pd_health_probed follows. */
bool pd_health_probe(struct pd_health *h, uint64_t now);
/* What a probe says: why NULL = it may be asked. Returns whether the state has changed. */
bool pd_health_probed(struct pd_health *h, const char *why, uint64_t now);
/* A request could not reach it, or it died under one. Returns whether it went down. */
bool pd_health_failed(struct pd_health *h, const char *why, uint64_t now);
/* It answered a request, with this status. Returns whether it went down. */
bool pd_health_answered(struct pd_health *h, int status, uint64_t now);

/* "unknown", "up", "down". */
const char *pd_health_name(enum pd_health_state s);
