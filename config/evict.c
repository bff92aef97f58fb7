/* Making room: see evict.h.
 *
 * Candidates are copies of models that are declared on_demand, of no higher priority than what needs the room: those that run, and those
 * that the steps so far load. In the order of their last use they are imagined gone, one by one, until the item has a place; then, from the
 * last to the first, each stays after all without which there is a place too. So one that frees nothing where memory is short stays, and
 * when the first of those that go has gone, planning again finds the same others.
 *
 * Nobody may take turns so fast that nothing is served: what was loaded a moment ago stays until it has served, and for as long as its
 * load took; but not for longer than a client may take to come back for it. What needs its room then waits, and its place is kept for it.
 * Those who wait have their turn in the order in which they were asked for (plan.c), so that two that are asked for in turn are both served.
 *
 * Room is not made when what was tried before, and found none, would take it: it would go for nothing. */
#include "config/evict.h"

#include <stdlib.h>
#include <string.h>

#include "config/planner.h"
#include "foundry/base/region.h"
#include "foundry/base/units.h"

enum {
    STAY_MS = 1000,      /* least time that a model serves between two loads */
    MAX_STAY_MS = 60000, /* and the most, however long its load took */
    UNUSED_MS = 20000    /* how long one that has not been used yet is kept for those who asked for it */
};

struct cf_candidate {
    const struct cf_want *w;
    int64_t replica;
    const struct cf_part *parts;
    size_t n_parts, instance; /* n_instances: of a step */
    uint64_t host_bytes, used_ms, until_ms;
    bool gone;
};

struct cf_candidate *cf_evict_candidates(struct fo_region *r, size_t n) {
    return fo_region_array(r, n, sizeof(struct cf_candidate));
}

static bool on_demand(const struct cf_want *w) {
    return w->m->state == CF_STATE_ON_DEMAND;
}

static uint64_t later_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* When it was used last, as far as that is known; running requests use it now. */
static uint64_t last_use(const struct cf_planner *p, const struct cf_instance *i) {
    return i->running ? p->f->now_ms : later_of(i->used_at_ms, i->loaded_at_ms);
}

/* Until when one that was loaded then stays. */
static uint64_t stays_until(const struct cf_want *w, uint64_t loaded_ms, bool used) {
    uint64_t stay = w->history && w->history->load_ms > STAY_MS ? w->history->load_ms : STAY_MS;
    if (loaded_ms == 0) return 0;
    if (stay > MAX_STAY_MS) stay = MAX_STAY_MS;
    return cf_add(loaded_ms, used || stay > UNUSED_MS ? stay : UNUSED_MS);
}

/* --- idle --------------------------------------------------------------------------------------------------------------------- */
static bool stands(enum cf_act act) {
    return act == CF_ACT_KEEP || act == CF_ACT_SET || act == CF_ACT_RELOAD;
}

void cf_evict_idle(struct cf_planner *p) {
    for (size_t k = 0; k < p->n_wants; k++) {
        const struct cf_want *w = &p->wants[k];
        bool runs = false;
        char ttl[32];
        if (!on_demand(w) || !w->m->ttl_ms || !w->history || w->history->wanted_at_ms) continue;
        for (size_t i = 0; i < p->f->n_instances; i++) runs |= p->owner[i] == w && p->f->instances[i].running;
        if (runs || w->history->used_at_ms == 0) continue; /* 0: not known, which is no reason to go */
        uint64_t end = cf_add(w->history->used_at_ms, w->m->ttl_ms);
        if (end > p->f->now_ms) {
            if (cf_evict_up(p, w)) cf_planner_look_at(p, end);
            continue;
        }
        for (size_t i = 0; i < p->f->n_instances; i++)
            if (p->owner[i] == w && stands(p->judged[i].act))
                cf_judge_surplus(&p->f->instances[i], cf_planner_text(p, "idle for its ttl of %s", fo_format_ms(w->m->ttl_ms, ttl, sizeof ttl)), &p->judged[i]);
    }
}

bool cf_evict_up(const struct cf_planner *p, const struct cf_want *w) {
    for (size_t i = 0; i < p->f->n_instances; i++)
        if (p->owner[i] == w && (stands(p->judged[i].act) || p->judged[i].act == CF_ACT_WAIT)) return true;
    for (size_t i = 0; i < p->plan->n_steps; i++)
        if (p->plan->steps[i].kind == CF_STEP_LOAD && p->plan->steps[i].spec == w->m) return true;
    return false;
}

/* --- candidates --------------------------------------------------------------------------------------------------------------- */
static bool gives_way(const struct cf_want *w, const struct cf_item *it) {
    return w && w != it->w && on_demand(w) && w->m->priority <= it->w->m->priority;
}

/* What makes room: a model that is declared loaded, or the first copy of one that is asked for. */
static bool may_evict(const struct cf_item *it, size_t n_instances) {
    return !it->extra && (it->w->m->state == CF_STATE_LOADED || it->old == n_instances);
}

static int by_use(const void *a, const void *b) {
    const struct cf_candidate *x = a, *y = b;
    if (x->until_ms != y->until_ms && (x->until_ms == 0 || y->until_ms == 0)) return x->until_ms == 0 ? -1 : 1;
    if (x->used_ms != y->used_ms) return x->used_ms < y->used_ms ? -1 : 1;
    if (x->w->m->priority != y->w->m->priority) return x->w->m->priority < y->w->m->priority ? -1 : 1;
    if (x->w != y->w) return x->w < y->w ? -1 : 1;
    return (x->replica > y->replica) - (x->replica < y->replica);
}

/* Fills p->candidates, those first that go first; until_ms is 0 where that time is over. */
static size_t collect(struct cf_planner *p, const struct cf_item *it) {
    size_t n = 0, n_instances = p->f->n_instances;
    uint64_t now = p->f->now_ms;
    for (size_t i = 0; may_evict(it, n_instances) && i < n_instances; i++) {
        const struct cf_instance *inst = &p->f->instances[i];
        enum cf_act act = p->judged[i].act;
        if (!gives_way(p->owner[i], it) || p->moved[i] || !(stands(act) || act == CF_ACT_WAIT)) continue;
        uint64_t until = act == CF_ACT_WAIT ? cf_add(now, UNUSED_MS) : stays_until(p->owner[i], inst->loaded_at_ms, inst->used_at_ms || inst->running);
        p->candidates[n++] = (struct cf_candidate){ p->owner[i], inst->replica, inst->parts, inst->n_parts, i, inst->host_bytes, last_use(p, inst), until > now ? until : 0, false };
    }
    for (size_t i = 0; may_evict(it, n_instances) && i < p->plan->n_steps; i++) {
        const struct cf_step *s = &p->plan->steps[i];
        const struct cf_want *w = s->spec && s->n_parts ? cf_planner_want(p, s->model) : NULL;
        if (!gives_way(w, it)) continue;
        p->candidates[n++] = (struct cf_candidate){ w, s->replica, s->parts, s->n_parts, n_instances, s->host_bytes, now, stays_until(w, now ? now : 1, false), false };
    }
    if (n) qsort(p->candidates, n, sizeof *p->candidates, by_use);
    return n;
}

/* The item's worlds without those that are marked as gone. */
static void imagine_gone(struct cf_planner *p, const struct cf_item *it, size_t n) {
    cf_planner_imagine(p, it);
    for (size_t i = 0; i < n; i++) {
        const struct cf_candidate *c = &p->candidates[i];
        if (!c->gone) continue;
        cf_world_give(&p->try_now, c->parts, c->n_parts, c->host_bytes);
        cf_world_give(&p->try_later, c->parts, c->n_parts, c->host_bytes);
    }
}

/* Marks who has to go; false: not even all are enough. The worlds are those without them then. */
static bool choose(struct cf_planner *p, const struct cf_item *it, size_t n, struct cf_place *ret) {
    size_t last = 0;
    bool fits = false;
    for (; last < n && !fits; last++) {
        p->candidates[last].gone = true;
        imagine_gone(p, it, n);
        cf_planner_place(p, it, true, false, ret);
        fits = ret->kind == CF_PLACED;
    }
    if (!fits) return false;
    for (size_t i = last; i-- > 0;) {
        p->candidates[i].gone = false;
        imagine_gone(p, it, n);
        cf_planner_place(p, it, true, false, ret);
        p->candidates[i].gone = ret->kind != CF_PLACED;
    }
    imagine_gone(p, it, n);
    cf_planner_place(p, it, true, false, ret);
    return ret->kind == CF_PLACED;
}

/* Whether something that was tried before would take the room. */
static bool taken_before(struct cf_planner *p, const struct cf_item *it, size_t n) {
    struct cf_place got;
    for (const struct cf_item *x = p->items; x < it; x++) {
        if (x->emitted || x->extra || !x->est || x->est->error) continue;
        bool waits = cf_planner_waits(p, x) != NULL;
        if (waits && (x->reserved || (on_demand(x->w) && !x->moves))) continue;
        imagine_gone(p, x, n);
        if (x->reserved) cf_world_copy(&p->try_later, &p->try_now); /* its place there is its own */
        cf_planner_place(p, x, !waits, false, &got);
        if (got.kind == CF_PLACED) return true;
    }
    return false;
}

bool cf_evict(struct cf_planner *p, struct cf_item *it, struct cf_place *ret) {
    size_t n = collect(p, it);
    const struct cf_candidate *waits_for = NULL;
    char left[32];
    if (!choose(p, it, n, ret) || taken_before(p, it, n)) return false;
    for (size_t i = 0; i < n; i++)
        if (p->candidates[i].gone && p->candidates[i].until_ms && (!waits_for || p->candidates[i].until_ms > waits_for->until_ms)) waits_for = &p->candidates[i];
    imagine_gone(p, it, n);
    if (waits_for) {
        struct cf_verdict *v = it->w->verdict;
        cf_planner_reserve(p, it, ret);
        ret->n_parts = 0;
        cf_planner_look_at(p, waits_for->until_ms);
        v->retry_at_ms = waits_for->until_ms;
        cf_planner_rule(v, CF_V_WAITING, cf_planner_text(p, "its place is that of '%s', which was loaded just now: for at most %s", waits_for->w->m->name,
                                                         fo_format_ms(waits_for->until_ms - p->f->now_ms, left, sizeof left)));
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        const struct cf_candidate *c = &p->candidates[i];
        if (!c->gone) continue;
        for (size_t k = 0; k < p->n_items; k++)
            if (p->items[k].old == c->instance) p->items[k].done = true; /* what it should become is seen when it is asked for */
        p->judged[c->instance].act = CF_ACT_UNLOAD;
        cf_planner_unload(p, c->instance, cf_planner_text(p, "makes room for '%s'", it->w->m->name));
    }
    cf_planner_imagine(p, it);
    return true;
}

enum cf_evictable cf_evict_judge(struct cf_planner *p, const struct cf_item *it, struct cf_place *ret) {
    struct cf_place bare;
    size_t n = collect(p, it);
    for (size_t i = 0; i < n; i++) p->candidates[i].gone = true;
    imagine_gone(p, it, n);
    cf_planner_place(p, it, false, false, ret);
    if (ret->kind == CF_PLACED) return CF_E_TURN;
    if (!on_demand(it->w) || it->old != p->f->n_instances) return CF_E_NONE;
    for (size_t i = 0; i < p->f->n_instances; i++) {
        const struct cf_instance *inst = &p->f->instances[i];
        bool given = p->judged[i].act == CF_ACT_UNLOAD || p->judged[i].act == CF_ACT_GOES || p->moved[i];
        for (size_t k = 0; k < n && !given; k++) given = p->candidates[k].instance == i;
        if (!given) cf_world_give(&p->try_later, inst->parts, inst->n_parts, inst->host_bytes);
    }
    for (size_t i = 0; i < p->plan->n_steps; i++) {
        const struct cf_step *s = &p->plan->steps[i];
        bool given = s->n_parts == 0;
        for (size_t k = 0; k < n && !given; k++) given = p->candidates[k].parts == s->parts;
        if (!given) cf_world_give(&p->try_later, s->parts, s->n_parts, s->host_bytes);
    }
    cf_planner_place(p, it, false, false, &bare);
    return bare.kind == CF_PLACED ? CF_E_PINNED : CF_E_NONE;
}
