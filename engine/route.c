/* Which instance of a name takes a request: see engine.h.
 *
 * Loads are looked at under each scheduler's lock and are old at once; that is good enough to spread requests. The registry's lock is held to
 * collect references only, so that nothing that takes longer (looking up prefixes, submitting) keeps the loader waiting. */
#include "engine/engine_impl.h"

#include <string.h>

#include "engine/request_worker.h"
#include "engine/sched.h"

enum { MAX_CANDIDATES = 64 }; /* of one name; those that were loaded later are not looked at */

struct candidate {
    struct pn_served *s;
    bool serves;
    uint32_t busy, slots;
    uint64_t requests;
};

static struct candidate look(struct pn_served *s) {
    struct candidate c = { .s = s };
    c.serves = pn_sched_load(s->sched, &c.busy, &c.slots, &c.requests);
    return c;
}

/* The smaller share of its slots taken, then fewer requests so far; what serves comes first in any case. */
static bool better(const struct candidate *a, const struct candidate *b) {
    uint64_t x = (uint64_t)a->busy * b->slots, y = (uint64_t)b->busy * a->slots;
    return a->serves != b->serves ? a->serves : x != y ? x < y : a->requests < b->requests;
}

bool pn_served_is_called(const struct pn_served *s, const char *name) {
    if (strcmp(s->name, name) == 0) return true;
    for (int i = 0; i < s->aliases.n; i++)
        if (strcmp(s->aliases.name[i], name) == 0) return true;
    return false;
}

struct pn_served *pn_route_find(const struct pn_engine *en, const char *name) {
    struct candidate best = { 0 };
    for (size_t i = 0; i < en->n; i++) {
        if (!pn_served_is_called(en->list[i], name)) continue;
        struct candidate c = look(en->list[i]);
        if (!best.s || better(&c, &best)) best = c;
    }
    return best.s;
}

/* References to the instances that a request for s could as well go to, s not among them: same name, same files. */
static size_t others(struct pn_engine *en, const struct pn_served *s, struct candidate ret[MAX_CANDIDATES]) {
    size_t n = 0;
    pthread_rwlock_rdlock(&en->lock);
    for (size_t i = 0; i < en->n && n < MAX_CANDIDATES && s->identity; i++) {
        struct pn_served *o = en->list[i];
        if (o == s || o->identity != s->identity || strcmp(o->name, s->name) != 0) continue;
        ret[n++].s = pn_served_ref(o);
    }
    pthread_rwlock_unlock(&en->lock);
    for (size_t i = 0; i < n; i++) ret[i] = look(ret[i].s);
    return n;
}

/* The one that keeps most of the prompt, when that is more than `least` does, the least busy one, and it is not twice as loaded. The request
 * itself counts as load, so that a little of it does not drive conversations off. */
static const struct candidate *at_home(const struct candidate *least, const struct candidate *all, size_t n, const struct pn_request_opts *o) {
    const struct candidate *best = NULL;
    uint32_t most = pn_sched_kept(least->s->sched, o->tenant, o->tokens, o->n_tokens);
    for (size_t i = 0; i < n; i++) {
        if (!all[i].serves || all[i].s == least->s) continue;
        uint32_t kept = pn_sched_kept(all[i].s->sched, o->tenant, o->tokens, o->n_tokens);
        if (kept < most || (kept == most && !(best && better(&all[i], best)))) continue;
        most = kept;
        best = &all[i];
    }
    if (!best) return least;
    uint64_t here = ((uint64_t)best->busy + 1) * least->slots, there = ((uint64_t)least->busy + 1) * best->slots;
    return here > 2 * there ? least : best;
}

struct pn_served *pn_engine_route(struct pn_engine *en, struct pn_served *s, const struct pn_request_opts *o) {
    struct candidate all[MAX_CANDIDATES + 1];
    if (o->goes_on && !pn_sched_failed(s->sched)) return pn_served_ref(s); /* where what it goes on with ran */
    size_t n = others(en, s, all);
    all[n] = look(s);
    const struct candidate *best = &all[n];
    for (size_t i = 0; i < n; i++)
        if (better(&all[i], best)) best = &all[i];
    if (n > 0 && best->serves && !o->keep_nothing && !o->embed) best = at_home(best, all, n + 1, o);
    struct pn_served *to = pn_served_ref(best->s);
    for (size_t i = 0; i < n; i++) pn_served_put(all[i].s);
    return to;
}

static void put_home(void *served) {
    pn_served_put(served);
}

bool pn_route_hand_over(void *ctx, struct pn_request *r) {
    struct pn_served *s = ctx;
    struct candidate all[MAX_CANDIDATES];
    struct fo_err ignored; /* what is told is why the model failed */
    size_t n = others(s->en, s, all), tried = 0;
    bool taken = false;
    while (!taken && tried < n) {
        size_t best = tried;
        for (size_t i = tried + 1; i < n; i++)
            if (better(&all[i], &all[best])) best = i;
        struct candidate c = all[best];
        all[best] = all[tried];
        all[tried++] = c;
        if ((uint64_t)r->n_tokens + r->max_tokens > pn_model_info(c.s->model)->ctx_cap) continue;
        pn_request_settle(r, put_home, pn_served_ref(s)); /* it may hold what is s's: how answers are taken apart */
        taken = pn_sched_take_over(c.s->sched, r, &ignored) == 0;
    }
    for (size_t i = 0; i < n; i++) pn_served_put(all[i].s);
    return taken;
}
