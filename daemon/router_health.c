/* See router_health.h. The backoff outlives a probe that succeeds: a backend that answers probes and breaks under requests comes back more and more
 * seldom, until it has been steady for a while. */
#include "daemon/router_health.h"

#include <stdio.h>

bool pd_health_probe(struct pd_health *h, uint64_t now) {
    if (h->probing || now < h->next_ms) return false;
    h->probing = true;
    return true;
}

static bool go_down(struct pd_health *h, const char *why, uint64_t now) {
    bool changed = h->state != PD_HEALTH_DOWN;
    snprintf(h->why, sizeof h->why, "%.159s", why);
    if (now - h->failed_ms >= PD_STEADY_MS || h->backoff_ms == 0) h->backoff_ms = PD_BACKOFF_FIRST_MS;
    /* many requests may fail by one death: it is one failure, until the next probe */
    if (changed || h->probing) {
        h->next_ms = now + h->backoff_ms;
        h->backoff_ms = h->backoff_ms * 2 < PD_BACKOFF_MOST_MS ? h->backoff_ms * 2 : PD_BACKOFF_MOST_MS;
        h->failed_ms = now;
    }
    h->downs += changed && h->state == PD_HEALTH_UP;
    h->state = PD_HEALTH_DOWN;
    h->bad_answers = 0;
    return changed;
}

bool pd_health_probed(struct pd_health *h, const char *why, uint64_t now) {
    bool was_up = h->state == PD_HEALTH_UP, changed = false;
    if (why) {
        changed = go_down(h, why, now);
    } else if (now >= h->next_ms) { /* else a request failed while the probe was under way */
        h->state = PD_HEALTH_UP;
        h->why[0] = '\0';
        h->next_ms = now + PD_PROBE_EVERY_MS;
        changed = !was_up;
    }
    h->probing = false;
    return changed;
}

bool pd_health_failed(struct pd_health *h, const char *why, uint64_t now) {
    bool probing = h->probing;
    h->probing = false; /* what a probe under way finds does not lengthen the backoff */
    bool changed = go_down(h, why, now);
    h->probing = probing;
    return changed;
}

bool pd_health_answered(struct pd_health *h, int status, uint64_t now) {
    char why[64];
    if (status != 500 && status != 502 && status != 504) {
        h->bad_answers = 0;
        return false;
    }
    if (h->state != PD_HEALTH_UP || ++h->bad_answers < PD_FAILED_ANSWERS) return false;
    snprintf(why, sizeof why, "%d answers in a row failed, the last with %d", PD_FAILED_ANSWERS, status);
    return go_down(h, why, now);
}

const char *pd_health_name(enum pd_health_state s) {
    static const char *const names[] = { "unknown", "up", "down" };
    return names[s];
}
