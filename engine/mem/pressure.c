/* Levels: see pressure.h.
 *
 * Stalls. MemAvailable and a group's limit say how much is left, not what it costs to get at it: a host that pages weights in and out has
 * memory "available" and does no work. PSI says that. 10 % of the time with somebody waiting is felt in every answer and harms nobody yet;
 * 30 % is a host that thrashes now and then; where everybody waited for 20 % of the time it does little else, and the next
 * thing is the kernel's own choice. Half of each is where the level is left again: the averages fade slowly enough. */
#include "engine/mem/pressure.h"

static const struct stall {
    double some, full; /* percent; 0 = this kind says nothing of this level */
} stalls[PN_N_LEVELS] = {
    [PN_WATCH] = { .some = 10 },
    [PN_TIGHT] = { .some = 30, .full = 10 },
    [PN_CRITICAL] = { .full = 20 },
};

const char *pn_level_name(enum pn_level level) {
    static const char *const names[PN_N_LEVELS] = { "normal", "watch", "tight", "critical" };
    return names[level];
}

double pn_reading_use(const struct pn_reading *r) {
    if (r->total == 0 || r->available >= r->total) return 0;
    return (double)(r->total - r->available) / (double)r->total * 100;
}

static bool reaches(const struct pn_thresholds *t, const struct pn_reading *r, int level, double leave, double share) {
    const struct stall *s = &stalls[level];
    if (r->total > 0 && pn_reading_use(r) >= t->at[level] - leave) return true;
    return (s->some > 0 && r->psi_some >= s->some * share) || (s->full > 0 && r->psi_full >= s->full * share);
}

/* The highest level whose threshold, less so much, is reached. */
static enum pn_level level_of(const struct pn_thresholds *t, const struct pn_reading *r, double leave, double share) {
    int level = PN_CRITICAL;
    while (level > PN_NORMAL && !reaches(t, r, level, leave, share)) level--;
    return (enum pn_level)level;
}

enum pn_level pn_pressure_of(const struct pn_thresholds *t, const struct pn_reading *r) {
    return level_of(t, r, 0, 1);
}

bool pn_pressure_take(struct pn_pressure *p, const struct pn_thresholds *t, const struct pn_reading *r, uint64_t now_ms) {
    enum pn_level up = pn_pressure_of(t, r);
    if (up > p->level) {
        *p = (struct pn_pressure){ .level = up };
        return true;
    }
    if (level_of(t, r, t->leave, 0.5) >= p->level) {
        p->falling = false;
        return false;
    }
    if (!p->falling) {
        p->falling = true;
        p->since_ms = now_ms;
    }
    if (now_ms - p->since_ms < t->hold_ms) return false;
    *p = (struct pn_pressure){ .level = p->level - 1 };
    return true;
}
