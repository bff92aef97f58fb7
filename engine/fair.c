/* Accounts of tokens: see fair.h. Lists are short: those who have work, and the few that had more than they. */
#include "engine/fair.h"

#include <stdlib.h>
#include <string.h>

#ifdef FO_DEBUG
enum { MAX_IDLE = 4 }; /* few, so that tests see them go */
#else
enum { MAX_IDLE = 256 };
#endif

struct pn_account *pn_account_new(const char *name) {
    size_t n = name ? strlen(name) : 0;
    struct pn_account *a = calloc(1, sizeof *a + n + 1);
    if (a && name) memcpy(a->name, name, n);
    return a;
}

void pn_account_free(struct pn_account *a) {
    if (!a) return;
    while (a->sessions.list) {
        struct pn_account *s = a->sessions.list;
        a->sessions.list = s->next;
        free(s);
    }
    free(a);
}

void pn_fair_done(struct pn_fair *f) {
    while (f->tenants.list) {
        struct pn_account *a = f->tenants.list;
        f->tenants.list = a->next;
        pn_account_free(a);
    }
}

static struct pn_account *find(const struct pn_accounts *all, const char *name) {
    struct pn_account *a = all->list;
    while (a && strcmp(a->name, name) != 0) a = a->next;
    return a;
}

/* Where a newcomer begins. */
static uint64_t floor_of(const struct pn_accounts *all) {
    uint64_t least = UINT64_MAX;
    for (const struct pn_account *a = all->list; a; a = a->next)
        if (a->n_active > 0 && a->served < least) least = a->served;
    return least == UINT64_MAX ? all->level : least;
}

/* The account of this name, with one request more. */
static struct pn_account *enter(struct pn_accounts *all, struct pn_account **fresh) {
    struct pn_account *a = find(all, (*fresh)->name);
    if (a && a->n_active > 0) {
        a->n_active++;
        return a;
    }
    uint64_t least = floor_of(all);
    if (a) {
        all->n_idle--;
    } else {
        a = *fresh;
        *fresh = NULL;
        a->next = all->list;
        all->list = a;
    }
    if (a->served < least) a->served = least;
    a->n_active = 1;
    return a;
}

/* Accounts that nobody uses and that say nothing go; of the others, while there are too many, the one that says least. */
static void prune(struct pn_accounts *all) {
    uint64_t least = floor_of(all), keep = 0;
    for (;;) {
        uint64_t lowest = UINT64_MAX;
        for (struct pn_account **link = &all->list; *link;) {
            struct pn_account *a = *link;
            if (a->n_active > 0 || (a->served > least && a->served > keep)) {
                if (a->n_active == 0 && a->served < lowest) lowest = a->served;
                link = &a->next;
                continue;
            }
            *link = a->next;
            all->n_idle--;
            pn_account_free(a);
        }
        if (all->n_idle <= MAX_IDLE) return;
        keep = lowest;
    }
}

static void leave(struct pn_accounts *all, struct pn_account *a) {
    if (--a->n_active > 0) return;
    all->n_idle++;
    all->level = a->served;
    prune(all);
}

struct pn_account *pn_fair_enter(struct pn_fair *f, struct pn_account **tenant, struct pn_account **session) {
    struct pn_account *t = enter(&f->tenants, tenant), *s = enter(&t->sessions, session);
    s->of = t;
    t->n_waiting++;
    s->n_waiting++;
    return s;
}

void pn_fair_leave(struct pn_fair *f, struct pn_account *s) {
    struct pn_account *t = s->of;
    leave(&t->sessions, s);
    leave(&f->tenants, t);
}

void pn_fair_start(struct pn_fair *f, struct pn_account *s, uint32_t n_prompt) {
    f->starts++;
    for (struct pn_account *a = s; a; a = a->of) {
        a->n_waiting--;
        a->pending += n_prompt;
        a->started = f->starts;
    }
}

void pn_fair_drop(struct pn_fair *f, struct pn_account *s) {
    for (struct pn_account *a = s; a; a = a->of) a->n_waiting--;
    pn_fair_leave(f, s);
}

void pn_fair_prompt(struct pn_account *s, uint32_t n) {
    pn_fair_forgo(s, n);
    pn_fair_answer(s, n);
}

void pn_fair_answer(struct pn_account *s, uint32_t n) {
    for (struct pn_account *a = s; a; a = a->of) a->served += n;
}

void pn_fair_forgo(struct pn_account *s, uint32_t n) {
    for (struct pn_account *a = s; a; a = a->of) a->pending -= n;
}

uint32_t pn_fair_waiting(const struct pn_fair *f, const char *tenant) {
    const struct pn_account *t = find(&f->tenants, tenant ? tenant : "");
    return t ? t->n_waiting : 0;
}

bool pn_fair_before(const struct pn_account *a, const struct pn_account *b, bool starts) {
    if (a->of && a->of != b->of) { /* sessions of two tenants */
        a = a->of;
        b = b->of;
    }
    uint64_t x = a->served + (starts ? a->pending : 0), y = b->served + (starts ? b->pending : 0);
    return x != y ? x < y : starts && a->started < b->started;
}

uint32_t pn_fair_urgency(enum pn_priority p) {
    return (uint32_t)(p - PN_PRIORITY_LOW);
}

uint32_t pn_fair_reach(enum pn_priority p, double since_ms, double step_ms) {
    double steps = step_ms > 0 && since_ms > 0 ? since_ms / step_ms : 0;
    return pn_fair_urgency(p) + (steps < 2 ? (uint32_t)steps : 2);
}
