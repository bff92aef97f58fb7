/* The planner: see plan.h.
 *
 * Wants (declared models, and ad hoc ones that were asked for) are set against instances (what the facts say is there). Each instance is
 * judged once: kept, changed in place, reloaded, unloaded, or waited for. Then the steps are tried in the order in which they will run,
 * and every one changes two imagined worlds that the next is tried in:
 *
 *   now    memory as it will be when the steps so far have run, and nothing else has happened;
 *   later  the same, with what is on its way (drains finished, backoffs over) taken as done.
 *
 * A load needs room in both: `now` keeps it from running into memory that a drain still holds, `later` keeps a less important model from
 * taking the place of one that is only waiting for its next try.
 *
 * Order: files to be fetched (files.c); live keys (instant, and they free nothing); unloads; reloads to a smaller form, which free memory too; then loads and
 * other reloads by priority, then as the manifest lists them: first what is declared loaded, then what is loaded on demand and was asked for, those
 * that have waited longest first. What does not fit may have others give way (evict.c), whose unloads stand in front of it. What did not fit is
 * tried again after every reload, because those give memory back. Further copies of what is loaded on demand come last. Nothing here looks at
 * anything but its arguments, so performing the first step and planning again gives the rest of
 * the same plan. */
#include "config/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/evict.h"
#include "config/judge.h"
#include "config/model.h"
#include "config/place.h"
#include "config/planner.h"
#include "config/world.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/base/units.h"

enum { MAX_SCRATCH_BYTES = 256 << 20 };

/* --- small things ----------------------------------------------------------------------------------------------------------- */
char *cf_planner_text(struct cf_planner *p, const char *fmt, ...) {
    static char nothing[] = "";
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fo_text_defuse(line);
    char *copy = fo_region_strndup(p->region, line, strlen(line));
    p->failed |= !copy;
    return copy ? copy : nothing;
}

void cf_planner_rule(struct cf_verdict *v, enum cf_verdict_kind kind, char *why) {
    static const int grave[] = { [CF_V_IN_SYNC] = 0, [CF_V_CHANGES] = 1, [CF_V_WAITING] = 2, [CF_V_REFUSED] = 3, [CF_V_HELD] = 4 };
    if (v->why && grave[v->kind] >= grave[kind]) return;
    v->kind = kind;
    v->why = why;
}

static int64_t n_copies(const struct cf_model *m) {
    return m->n_replicas ? (int64_t)m->n_replicas : 1;
}

static const struct cf_names *dies_of(const struct cf_model *m, int64_t replica) {
    return m->n_replicas ? &m->replicas[replica] : &m->dies;
}

static const struct cf_history *history_of(const struct cf_facts *f, const char *name) {
    for (size_t i = 0; i < f->n_histories; i++)
        if (strcmp(f->histories[i].name, name) == 0) return &f->histories[i];
    return NULL;
}

struct cf_want *cf_planner_want(struct cf_planner *p, const char *name) {
    for (size_t i = 0; i < p->n_wants; i++)
        if (strcmp(p->wants[i].m->name, name) == 0) return &p->wants[i];
    return NULL;
}

/* Where a step has brought the imagined now: the table's columns. */
static void note_peaks(struct cf_planner *p, uint64_t staging) {
    struct cf_plan *plan = p->plan;
    for (size_t i = 0; i < plan->n_dies; i++) {
        uint64_t used = cf_world_used(&p->now, i);
        plan->dies[i].after_bytes = used;
        if (used > plan->dies[i].peak_bytes) plan->dies[i].peak_bytes = used;
    }
    uint64_t host = cf_add(cf_less(p->f->host.total_bytes, p->now.available), p->m->host.ram_reserve_bytes);
    plan->host.after_bytes = host;
    if (cf_add(host, staging) > plan->host.peak_bytes) plan->host.peak_bytes = cf_add(host, staging);
}

static struct cf_step *add_step(struct cf_planner *p, enum cf_step_kind kind, const char *model, int64_t replica, const char *why) {
    struct cf_step *s = &p->plan->steps[p->plan->n_steps++];
    *s = (struct cf_step){ .kind = kind, .model = model, .replica = replica, .why = cf_planner_text(p, "%s", why) };
    return s;
}

/* --- what is there ---------------------------------------------------------------------------------------------------------- */
bool cf_planner_is_wanted(const struct cf_want *w) {
    return w->m->state != CF_STATE_ABSENT && !(w->history && w->history->admin_unloaded);
}

/* When a request asked for a model that is loaded on demand, and is not; 0 = nobody waits. */
static uint64_t wished_at(const struct cf_want *w) {
    return w->m->state == CF_STATE_ON_DEMAND && w->history ? w->history->wanted_at_ms : 0;
}

static void judge_instances(struct cf_planner *p, bool prune) {
    for (size_t i = 0; i < p->f->n_instances; i++) {
        const struct cf_instance *inst = &p->f->instances[i];
        const struct cf_want *w = cf_planner_want(p, inst->name);
        struct cf_judgement *j = &p->judged[i];
        p->owner[i] = w;
        if (!w)
            cf_judge_orphan(p->f, inst, prune, j);
        else if (!cf_planner_is_wanted(w) || inst->replica < 0 || inst->replica >= n_copies(w->m))
            cf_judge_surplus(inst,
                             w->m->state == CF_STATE_ABSENT ? "declared absent"
                             : !cf_planner_is_wanted(w)                ? "unloaded by hand"
                                                            : "this copy is no longer declared",
                             j);
        else
            cf_judge(p->f, inst, w->m, dies_of(w->m, inst->replica), j);
        if (j->act == CF_ACT_GOES) cf_world_give(&p->later, inst->parts, inst->n_parts, inst->host_bytes);
    }
    cf_evict_idle(p);
}

static void set_live_keys(struct cf_planner *p) {
    for (size_t i = 0; i < p->f->n_instances; i++) {
        if (p->judged[i].act != CF_ACT_SET) continue;
        const struct cf_instance *inst = &p->f->instances[i];
        struct cf_want *w = cf_planner_want(p, inst->name);
        struct cf_step *s = add_step(p, CF_STEP_SET, w->m->name, inst->replica, p->judged[i].why);
        s->spec = w->m;
        s->ad_hoc = !w->declared;
        cf_planner_rule(w->verdict, CF_V_CHANGES, s->why);
    }
}

void cf_planner_unload(struct cf_planner *p, size_t instance, const char *why) {
    const struct cf_instance *inst = &p->f->instances[instance];
    struct cf_step *s = add_step(p, CF_STEP_UNLOAD, inst->name, inst->replica, why);
    s->ad_hoc = inst->ad_hoc;
    cf_world_give(&p->now, inst->parts, inst->n_parts, inst->host_bytes);
    cf_world_give(&p->later, inst->parts, inst->n_parts, inst->host_bytes);
    note_peaks(p, 0);
    struct cf_want *w = cf_planner_want(p, inst->name);
    if (w) cf_planner_rule(w->verdict, CF_V_CHANGES, s->why);
}

static void unload(struct cf_planner *p) {
    for (size_t i = 0; i < p->f->n_instances; i++)
        if (p->judged[i].act == CF_ACT_UNLOAD) cf_planner_unload(p, i, p->judged[i].why);
}

/* --- what has to be loaded -------------------------------------------------------------------------------------------------- */
static uint64_t total_bytes(const struct cf_estimate *est) {
    uint64_t n = cf_add(cf_add(est->input_bytes, est->output_bytes), cf_add(est->die_kv_bytes, cf_add(est->scratch_bytes, est->logits_bytes)));
    for (size_t i = 0; i < est->n_layers; i++) n = cf_add(n, cf_add(est->layer_bytes[i], est->layer_kv_bytes[i]));
    return n;
}

static void add_item(struct cf_planner *p, struct cf_want *w, int64_t replica, size_t old, const char *why, const char *moves) {
    struct cf_item *it = &p->items[p->n_items++];
    *it = (struct cf_item){ .w = w, .replica = replica, .order = (size_t)(w - p->wants), .old = old, .why = why, .moves = moves };
    it->est = cf_estimate_find(p->f, w->m);
    if (old == p->f->n_instances || !it->est || it->est->error) return;
    uint64_t held = 0;
    for (size_t i = 0; i < p->f->instances[old].n_parts; i++) held = cf_add(held, cf_part_bytes(&p->f->instances[old].parts[i]));
    it->shrinks = total_bytes(it->est) < held;
}

/* What is declared loaded comes before what is loaded on demand; of that, at equal priority, who has waited longest. */
static int by_turn(const void *a, const void *b) {
    const struct cf_item *x = a, *y = b;
    bool x_demand = x->w->m->state == CF_STATE_ON_DEMAND, y_demand = y->w->m->state == CF_STATE_ON_DEMAND;
    uint64_t x_wish = x->extra ? 0 : wished_at(x->w), y_wish = y->extra ? 0 : wished_at(y->w);
    if (x->shrinks != y->shrinks) return x->shrinks ? -1 : 1;
    if (x_demand != y_demand) return y_demand ? -1 : 1;
    if (x->w->m->priority != y->w->m->priority) return x->w->m->priority > y->w->m->priority ? -1 : 1;
    if (x_wish != y_wish) return x_wish && (!y_wish || x_wish < y_wish) ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return (x->replica > y->replica) - (x->replica < y->replica);
}

/* The index of the copy's instance, or n_instances. */
static size_t copy_at(const struct cf_planner *p, const struct cf_want *w, int64_t replica) {
    size_t at = 0;
    while (at < p->f->n_instances && (p->owner[at] != w || p->f->instances[at].replica != replica)) at++;
    return at;
}

static void collect_copies(struct cf_planner *p, struct cf_want *w) {
    bool wished = w->m->state == CF_STATE_LOADED || (wished_at(w) && !cf_evict_up(p, w));
    for (int64_t r = 0; r < n_copies(w->m); r++) {
        size_t at = copy_at(p, w, r), before = p->n_items;
        const struct cf_judgement *j = at < p->f->n_instances ? &p->judged[at] : NULL;
        if (j && j->act == CF_ACT_RELOAD)
            add_item(p, w, r, at, j->why, NULL);
        else if (j && j->act == CF_ACT_WAIT)
            cf_planner_rule(w->verdict, CF_V_WAITING, cf_planner_text(p, "%s", j->why));
        else if (!wished)
            continue;
        else if (!j)
            add_item(p, w, r, at, wished_at(w) ? "asked for" : w->declared ? "declared" : "asked for by hand", NULL);
        else if (j->act == CF_ACT_UNLOAD)
            add_item(p, w, r, p->f->n_instances, cf_planner_text(p, "again: %s", j->why), NULL);
        else if (j->act == CF_ACT_GOES)
            add_item(p, w, r, p->f->n_instances, "declared", j->why);
        if (w->m->state == CF_STATE_ON_DEMAND && p->n_items > before && p->items[before].old == p->f->n_instances) wished = false; /* the first copy answers the wish */
    }
}

static void collect_items(struct cf_planner *p) {
    for (size_t i = 0; i < p->n_wants; i++)
        if (cf_planner_is_wanted(&p->wants[i])) collect_copies(p, &p->wants[i]);
    if (p->n_items) qsort(p->items, p->n_items, sizeof *p->items, by_turn);
}

/* The other copies of what is loaded on demand and runs, or will: behind everything else. */
static void collect_extras(struct cf_planner *p) {
    size_t first = p->n_items;
    for (size_t i = 0; i < p->n_wants; i++) {
        struct cf_want *w = &p->wants[i];
        if (w->m->state != CF_STATE_ON_DEMAND || !cf_planner_is_wanted(w) || n_copies(w->m) == 1 || !cf_evict_up(p, w)) continue;
        for (int64_t r = 0; r < n_copies(w->m); r++) {
            size_t at = copy_at(p, w, r);
            bool there = at < p->f->n_instances && p->judged[at].act != CF_ACT_UNLOAD && p->judged[at].act != CF_ACT_GOES;
            for (size_t k = 0; k < first && !there; k++) there = p->items[k].w == w && p->items[k].replica == r && p->items[k].old == p->f->n_instances;
            if (there) continue;
            add_item(p, w, r, p->f->n_instances, "another copy", at < p->f->n_instances && p->judged[at].act == CF_ACT_GOES ? p->judged[at].why : NULL);
            p->items[p->n_items - 1].extra = true;
        }
    }
    if (p->n_items > first) qsort(p->items + first, p->n_items - first, sizeof *p->items, by_turn);
}

/* --- trying one ------------------------------------------------------------------------------------------------------------- */
static void mark_taken(struct cf_planner *p, const struct cf_item *it) {
    size_t n_dies = p->f->n_dies;
    if (n_dies) memset(p->placer.taken, 0, n_dies * sizeof *p->placer.taken);
    if (n_copies(it->w->m) == 1) return;
    for (size_t i = 0; i < p->f->n_instances; i++) {
        const struct cf_instance *inst = &p->f->instances[i];
        if (p->owner[i] != it->w || i == it->old || p->judged[i].act == CF_ACT_UNLOAD || p->judged[i].act == CF_ACT_GOES || p->moved[i])
            continue;
        for (size_t j = 0; j < inst->n_parts; j++) {
            size_t d = cf_die_find(p->f, inst->parts[j].die);
            if (d < n_dies) p->placer.taken[d] = true;
        }
    }
    for (size_t i = 0; i < p->plan->n_steps; i++) {
        const struct cf_step *s = &p->plan->steps[i];
        if (s->spec != it->w->m) continue;
        for (size_t j = 0; j < s->n_parts; j++) p->placer.taken[cf_die_find(p->f, s->parts[j].die)] = true;
    }
}

void cf_planner_place(struct cf_planner *p, const struct cf_item *it, bool both, bool trust, struct cf_place *ret) {
    uint64_t later = cf_less(p->try_later.available, p->m->host.ram_reserve_bytes);
    uint64_t now = both ? cf_less(p->try_now.available, p->m->host.ram_reserve_bytes) : UINT64_MAX;
    p->placer.host_room = now < later ? now : later;
    for (size_t i = 0; i < p->f->n_dies; i++) {
        later = cf_world_room(&p->try_later, i);
        now = both ? cf_world_room(&p->try_now, i) : UINT64_MAX;
        p->placer.die_room[i] = now < later ? now : later;
    }
    cf_place(&p->placer, it->est, dies_of(it->w->m, it->replica), trust, ret);
}

void cf_planner_imagine(struct cf_planner *p, const struct cf_item *it) {
    cf_world_copy(&p->try_now, &p->now);
    cf_world_copy(&p->try_later, &p->later);
    mark_taken(p, it);
    if (it->old == p->f->n_instances) return;
    const struct cf_instance *old = &p->f->instances[it->old];
    cf_world_give(&p->try_now, old->parts, old->n_parts, old->host_bytes);
    cf_world_give(&p->try_later, old->parts, old->n_parts, old->host_bytes);
}

static void emit(struct cf_planner *p, struct cf_item *it, const struct cf_place *got) {
    bool reload = it->old != p->f->n_instances;
    struct cf_step *s = add_step(p, reload ? CF_STEP_RELOAD : CF_STEP_LOAD, it->w->m->name, it->replica, it->why);
    s->spec = it->w->m;
    s->ad_hoc = !it->w->declared;
    s->host_bytes = got->host_bytes;
    s->staging_bytes = got->staging_bytes;
    s->trusted = got->kind == CF_TRUSTED;
    if (s->trusted) s->why = cf_planner_text(p, "%s%smemory: trust, although it %s", reload ? it->why : "", reload ? "; " : "", got->why);
    s->parts = fo_region_array(p->region, got->n_parts, sizeof *s->parts);
    p->failed |= !s->parts;
    if (s->parts) {
        memcpy(s->parts, got->parts, got->n_parts * sizeof *s->parts);
        s->n_parts = got->n_parts;
    }
    if (reload) p->moved[it->old] = true;
    it->emitted = true;
    cf_world_take(&p->try_now, got->parts, got->n_parts, got->host_bytes);
    cf_world_take(&p->try_later, got->parts, got->n_parts, got->host_bytes);
    cf_world_copy(&p->now, &p->try_now);
    cf_world_copy(&p->later, &p->try_later);
    note_peaks(p, got->staging_bytes);
    cf_planner_rule(it->w->verdict, CF_V_CHANGES, s->why);
}

void cf_planner_reserve(struct cf_planner *p, struct cf_item *it, const struct cf_place *got) {
    it->reserved = true;
    cf_world_take(&p->try_later, got->parts, got->n_parts, got->host_bytes);
    cf_world_copy(&p->later, &p->try_later);
}

char *cf_planner_waits(struct cf_planner *p, const struct cf_item *it) {
    const struct cf_history *h = it->w->history;
    char wait[32];
    if (it->moves) return cf_planner_text(p, "%s", it->moves);
    if (!h || h->retry_at_ms <= p->f->now_ms) return NULL;
    return cf_planner_text(p, "%u load%s failed%s%s; again in %s", h->failures, h->failures == 1 ? "" : "s", h->last_error ? ": " : "",
                h->last_error ? h->last_error : "", fo_format_ms(h->retry_at_ms - p->f->now_ms, wait, sizeof wait));
}

/* Finds a place for an item that may go now. False: no room. */
static bool try_now(struct cf_planner *p, struct cf_item *it, struct cf_want *w) {
    struct cf_place got, soon;
    cf_planner_place(p, it, true, false, &got);
    if (got.kind == CF_PLACED) {
        emit(p, it, &got);
        return true;
    }
    cf_planner_place(p, it, false, false, &soon);
    if (soon.kind == CF_PLACED) {
        cf_planner_reserve(p, it, &soon);
        cf_planner_rule(w->verdict, CF_V_WAITING, cf_planner_text(p, "%s; more is on its way back", got.why));
        return true;
    }
    if (cf_evict(p, it, &got)) {
        if (got.n_parts) emit(p, it, &got);
        return true;
    }
    if (w->m->memory != CF_MEMORY_TRUST) return false;
    cf_planner_imagine(p, it);
    cf_planner_place(p, it, true, true, &got);
    if (got.kind == CF_TRUSTED) emit(p, it, &got);
    return got.kind == CF_TRUSTED;
}

/* Emits the item's step, or rules what it waits for; else leaves it undone. */
static void try_item(struct cf_planner *p, struct cf_item *it) {
    struct cf_place got;
    struct cf_want *w = &p->wants[it->order];
    it->done = true;
    if (cf_planner_waits_for_file(p, w)) return;
    if (!it->est) {
        cf_planner_rule(w->verdict, CF_V_WAITING, cf_planner_text(p, "its file has not been looked at yet"));
        return;
    }
    if (it->est->error) {
        cf_planner_rule(w->verdict, CF_V_REFUSED, cf_planner_text(p, "%s", it->est->error));
        return;
    }
    cf_planner_imagine(p, it);
    cf_planner_place(p, it, false, w->m->memory == CF_MEMORY_TRUST, &got);
    if (got.kind == CF_DIE_LOST) {
        cf_planner_rule(w->verdict, CF_V_WAITING, cf_planner_text(p, "%s", got.why));
        return;
    }
    if (got.kind == CF_DIE_ABSENT) {
        cf_planner_rule(w->verdict, CF_V_REFUSED, cf_planner_text(p, "%s", got.why));
        return;
    }
    char *waits = cf_planner_waits(p, it);
    if (!waits)
        it->done = try_now(p, it, w);
    else if (got.kind == CF_NO_ROOM)
        it->done = false;
    else {
        if (it->moves || w->m->state == CF_STATE_LOADED) cf_planner_reserve(p, it, &got); /* one that fails on demand keeps no other from its place */
        if (!it->moves) w->verdict->retry_at_ms = w->history->retry_at_ms;
        cf_planner_rule(w->verdict, CF_V_WAITING, waits);
    }
}

/* What stands in the way and may not give way, for people. */
static void put_pinned(struct cf_planner *p, const struct cf_item *it, struct fo_buf *out) {
    size_t n = 0;
    for (size_t i = 0; i < p->f->n_instances && n < 4; i++) {
        const struct cf_want *w = p->owner[i];
        if (p->judged[i].act == CF_ACT_UNLOAD || p->judged[i].act == CF_ACT_GOES || w == it->w) continue;
        if (w && w->m->state == CF_STATE_ON_DEMAND && w->m->priority <= it->w->m->priority) continue;
        fo_buf_printf(out, "%s'%s'", n++ ? ", " : "", p->f->instances[i].name);
    }
}

static void refuse(struct cf_planner *p, struct cf_item *it) {
    struct cf_place got;
    struct fo_buf instead, pinned;
    struct cf_want *w = &p->wants[it->order];
    if (w->verdict->why && w->verdict->kind == CF_V_REFUSED) return; /* one copy speaks for all */
    enum cf_evictable can = cf_evict_judge(p, it, &got);
    if (can == CF_E_TURN) {
        char *waits = cf_planner_waits(p, it);
        if (waits && !it->moves) w->verdict->retry_at_ms = w->history->retry_at_ms;
        cf_planner_rule(w->verdict, CF_V_WAITING, waits ? waits : cf_planner_text(p, "its turn comes when others have had theirs"));
        return;
    }
    fo_buf_init(&pinned, 512);
    fo_buf_init(&instead, 512);
    if (can == CF_E_PINNED) {
        w->verdict->code = "would_evict_pinned";
        put_pinned(p, it, &pinned);
    }
    cf_planner_rule(w->verdict, CF_V_REFUSED,
                    cf_planner_text(p, "%s%s%s%s", got.why, it->old != p->f->n_instances ? "; the old form stays" : "",
                                    pinned.len ? "; what is loaded does not give way to it: " : "", fo_buf_str(&pinned)));
    w->verdict->need_bytes = got.need;
    w->verdict->have_bytes = got.have;
    cf_planner_imagine(p, it);
    cf_planner_place(p, it, false, false, &got);
    cf_place_instead(&p->placer, it->est, dies_of(it->w->m, it->replica), &instead);
    p->failed |= instead.failed;
    if (instead.len) w->verdict->would_fit = cf_planner_text(p, "%s", fo_buf_str(&instead));
    fo_buf_done(&instead);
    fo_buf_done(&pinned);
}

static void load(struct cf_planner *p) {
    for (size_t i = 0; i < p->n_items; i++) {
        size_t n_steps = p->plan->n_steps;
        if (p->items[i].done) continue;
        try_item(p, &p->items[i]);
        if (p->plan->n_steps > n_steps && p->items[i].old != p->f->n_instances) i = (size_t)-1; /* a reload: from the top again */
    }
    size_t n = p->n_items;
    collect_extras(p);
    for (size_t i = n; i < p->n_items; i++) try_item(p, &p->items[i]);
    for (size_t i = 0; i < n; i++)
        if (!p->items[i].done) refuse(p, &p->items[i]);
}

/* --- verdicts --------------------------------------------------------------------------------------------------------------- */
static void settle_wants(struct cf_planner *p) {
    for (size_t i = 0; i < p->n_wants; i++) {
        struct cf_want *w = &p->wants[i];
        int64_t n = n_copies(w->m);
        if (w->m->state == CF_STATE_ABSENT)
            cf_planner_rule(w->verdict, CF_V_IN_SYNC, cf_planner_text(p, "declared absent"));
        else if (!cf_planner_is_wanted(w))
            cf_planner_rule(w->verdict, CF_V_HELD, cf_planner_text(p, "unloaded by hand, until it is loaded by hand or a new manifest comes"));
        else if (w->m->state == CF_STATE_ON_DEMAND && !cf_evict_up(p, w)) {
            if (cf_planner_waits_for_file(p, w)) continue;
            const struct cf_estimate *est = cf_estimate_find(p->f, w->m);
            if (est && est->error)
                cf_planner_rule(w->verdict, CF_V_REFUSED, cf_planner_text(p, "%s", est->error)); /* not only when somebody asks for it */
            else
                cf_planner_rule(w->verdict, CF_V_IN_SYNC, cf_planner_text(p, "loaded by its first request"));
        } else if (w->m->state == CF_STATE_ON_DEMAND)
            cf_planner_rule(w->verdict, CF_V_IN_SYNC, cf_planner_text(p, "was asked for, and runs"));
        else
            cf_planner_rule(w->verdict, CF_V_IN_SYNC, n > 1 ? cf_planner_text(p, "its %lld copies run as declared", (long long)n) : cf_planner_text(p, "runs as declared"));
    }
}

/* Instances that nobody wants get one verdict a name. */
static void judge_orphans(struct cf_planner *p) {
    static const enum cf_verdict_kind kinds[] = {
        [CF_ACT_KEEP] = CF_V_IN_SYNC, [CF_ACT_UNLOAD] = CF_V_CHANGES, [CF_ACT_WAIT] = CF_V_WAITING, [CF_ACT_GOES] = CF_V_WAITING
    };
    struct cf_plan *plan = p->plan;
    for (size_t i = 0; i < p->f->n_instances; i++) {
        const struct cf_instance *inst = &p->f->instances[i];
        size_t at = p->n_wants;
        if (p->owner[i]) continue;
        while (at < plan->n_verdicts && strcmp(plan->verdicts[at].model, inst->name) != 0) at++;
        if (at == plan->n_verdicts) plan->verdicts[plan->n_verdicts++] = (struct cf_verdict){ .model = inst->name };
        cf_planner_rule(&plan->verdicts[at], kinds[p->judged[i].act], cf_planner_text(p, "%s", p->judged[i].why));
    }
}

void cf_planner_look_at(struct cf_planner *p, uint64_t at_ms) {
    if (p->plan->look_at_ms == 0 || at_ms < p->plan->look_at_ms) p->plan->look_at_ms = at_ms;
}

/* --- from start to end ------------------------------------------------------------------------------------------------------ */
static void add_want(struct cf_planner *p, const struct cf_model *m, bool declared) {
    struct cf_verdict *v = &p->plan->verdicts[p->plan->n_verdicts++];
    *v = (struct cf_verdict){ .model = m->name, .declared = declared };
    p->wants[p->n_wants++] = (struct cf_want){ m, history_of(p->f, m->name), declared, v };
}

static int prepare(struct cf_planner *p, struct fo_region *scratch, unsigned flags, struct fo_err *e) {
    const struct cf_facts *f = p->f;
    size_t n_wants = p->m->n_models + f->n_histories, n_copies_all = 0;
    int rc;
    p->plan->verdicts = fo_region_array(p->region, n_wants + f->n_instances + 1, sizeof *p->plan->verdicts);
    p->plan->dies = fo_region_array(p->region, f->n_dies + 1, sizeof *p->plan->dies);
    p->wants = fo_region_array(scratch, n_wants + 1, sizeof *p->wants);
    p->judged = fo_region_array(scratch, f->n_instances + 1, sizeof *p->judged);
    p->owner = fo_region_array(scratch, f->n_instances + 1, sizeof *p->owner);
    p->moved = fo_region_array(scratch, f->n_instances + 1, sizeof *p->moved);
    if (!p->plan->verdicts || !p->plan->dies || !p->wants || !p->judged || !p->owner || !p->moved)
        return fo_fail(e, FO_ENOMEM, "no memory to plan");
    for (size_t i = 0; i < p->m->n_models; i++) add_want(p, &p->m->models[i], true);
    for (size_t i = 0; i < f->n_histories; i++)
        if (f->histories[i].ad_hoc && !(flags & CF_PLAN_PRUNE) && !cf_planner_want(p, f->histories[i].ad_hoc->name))
            add_want(p, f->histories[i].ad_hoc, false);
    for (size_t i = 0; i < p->n_wants; i++) n_copies_all += (size_t)n_copies(p->wants[i].m);
    p->items = fo_region_array(scratch, n_copies_all + 1, sizeof *p->items);
    p->plan->steps = fo_region_array(p->region, n_wants + n_copies_all + 2 * f->n_instances + 1, sizeof *p->plan->steps); /* what gives way may have been changed before */
    p->candidates = cf_evict_candidates(scratch, n_copies_all + f->n_instances + 1);
    if (!p->items || !p->plan->steps || !p->candidates) return fo_fail(e, FO_ENOMEM, "no memory to plan");
    if ((rc = cf_world_init(&p->now, f, scratch, e)) || (rc = cf_world_init(&p->later, f, scratch, e)) ||
        (rc = cf_world_init(&p->try_now, f, scratch, e)) || (rc = cf_world_init(&p->try_later, f, scratch, e)))
        return rc;
    p->plan->n_dies = f->n_dies;
    for (size_t i = 0; i < f->n_dies; i++)
        p->plan->dies[i] =
            (struct cf_die_plan){ .die = f->dies[i].name, .budget_bytes = f->dies[i].total_bytes, .now_bytes = cf_world_used(&p->now, i) };
    uint64_t host = cf_add(cf_less(f->host.total_bytes, f->host.available_bytes), p->m->host.ram_reserve_bytes);
    p->plan->host = (struct cf_die_plan){ .die = "host", .budget_bytes = f->host.total_bytes, .now_bytes = host };
    note_peaks(p, 0);
    return cf_placer_init(&p->placer, f, scratch, e);
}

struct owner {
    struct fo_region region;
    struct cf_plan plan;
};

void cf_plan_free(struct cf_plan *p) {
    if (!p) return;
    struct owner *o = p->memory;
    fo_region_done(&o->region);
    free(o);
}

int cf_plan_make(const struct cf_manifest *m, const struct cf_facts *f, unsigned flags, struct cf_plan **ret, struct fo_err *e) {
    struct fo_region scratch;
    struct owner *o = calloc(1, sizeof *o);
    if (!o) return fo_fail(e, FO_ENOMEM, "no memory to plan");
    fo_region_init(&o->region, CF_MAX_PLAN_BYTES);
    fo_region_init(&scratch, MAX_SCRATCH_BYTES);
    struct cf_planner p = { .m = m, .f = f, .plan = &o->plan, .region = &o->region };
    o->plan.memory = o;
    int rc = prepare(&p, &scratch, flags, e);
    if (rc == FO_OK) {
        judge_instances(&p, flags & CF_PLAN_PRUNE);
        cf_planner_fetch(&p, &scratch);
        set_live_keys(&p);
        unload(&p);
        collect_items(&p);
        load(&p);
        settle_wants(&p);
        judge_orphans(&p);
        if (p.failed)
            rc = o->region.used_bytes > CF_MAX_PLAN_BYTES / 2
                     ? fo_fail(e, FO_ELIMIT, "the plan takes more than %d MiB", CF_MAX_PLAN_BYTES >> 20)
                     : fo_fail(e, FO_ENOMEM, "no memory to plan");
    }
    fo_region_done(&scratch);
    if (rc)
        cf_plan_free(&o->plan);
    else
        *ret = &o->plan;
    return rc;
}

/* --- what a step does to the facts ------------------------------------------------------------------------------------------ */
static void hold(struct cf_facts *f, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes, bool take) {
    for (size_t i = 0; i < n_parts; i++) {
        size_t d = cf_die_find(f, parts[i].die);
        uint64_t n = cf_part_bytes(&parts[i]);
        if (d == f->n_dies) continue;
        f->dies[d].ours_bytes = take ? cf_add(f->dies[d].ours_bytes, n) : cf_less(f->dies[d].ours_bytes, n);
        if (f->dies[d].host) host_bytes = cf_add(host_bytes, n);
    }
    f->host.available_bytes = take ? cf_less(f->host.available_bytes, host_bytes) : cf_add(f->host.available_bytes, host_bytes);
}

/* The file is there, and is measured next. */
static void arrive(struct cf_facts *f, const struct cf_step *s) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_files; i++)
        if (strcmp(f->files[i].path, s->spec->source_path) == 0) f->files[i].state = CF_FILE_PRESENT;
    for (size_t i = 0; i < f->n_estimates; i++)
        if (!f->estimates[i].error || strcmp(f->estimates[i].path, s->spec->source_path) != 0) f->estimates[n++] = f->estimates[i];
    f->n_estimates = n;
}

int cf_plan_apply(const struct cf_plan *p, size_t i, struct cf_facts *f, struct fo_err *e) {
    const struct cf_step *s = &p->steps[i];
    if (s->kind == CF_STEP_FETCH) {
        arrive(f, s);
        return FO_OK;
    }
    struct fo_region *r = cf_facts_region(f);
    size_t at = 0;
    while (at < f->n_instances && (strcmp(f->instances[at].name, s->model) != 0 || f->instances[at].replica != s->replica)) at++;
    struct cf_instance next = at < f->n_instances ? f->instances[at] : (struct cf_instance){ 0 };
    if (s->kind != CF_STEP_UNLOAD) {
        next.spec = fo_region_alloc(r, sizeof *next.spec);
        next.name = fo_region_strndup(r, s->model, strlen(s->model));
        if (!next.spec || !next.name) return fo_fail(e, FO_ENOMEM, "no memory for facts");
        int rc = cf_model_copy_to(s->spec, r, next.spec, e);
        if (rc) return rc;
    }
    if (s->kind == CF_STEP_LOAD || s->kind == CF_STEP_RELOAD) {
        next.parts = fo_region_array(r, s->n_parts, sizeof *next.parts);
        if (!next.parts) return fo_fail(e, FO_ENOMEM, "no memory for facts");
        memcpy(next.parts, s->parts, s->n_parts * sizeof *next.parts);
        next.n_parts = s->n_parts;
        next.host_bytes = s->host_bytes;
        next.replica = s->replica;
        next.concurrent_room = s->spec->max_concurrent;
        next.state = CF_I_READY;
        next.ad_hoc = s->ad_hoc;
        next.reason = NULL;
        next.running = 0;
        next.loaded_at_ms = f->now_ms ? f->now_ms : 1;
        next.used_at_ms = 0;
    }
    for (size_t k = 0; k < f->n_histories && s->kind != CF_STEP_SET; k++) {
        struct cf_history *h = &f->histories[k];
        if (strcmp(h->name, s->model) != 0) continue;
        if (s->kind != CF_STEP_UNLOAD) h->wanted_at_ms = 0;
        if (s->kind != CF_STEP_UNLOAD || (at < f->n_instances && f->instances[at].running)) h->used_at_ms = f->now_ms;
    }
    if (at == f->n_instances && s->kind != CF_STEP_UNLOAD) {
        struct cf_instance *more = fo_region_array(r, f->n_instances + 1, sizeof *more);
        if (!more) return fo_fail(e, FO_ENOMEM, "no memory for facts");
        if (f->n_instances) memcpy(more, f->instances, f->n_instances * sizeof *more);
        more[f->n_instances] = (struct cf_instance){ 0 };
        f->instances = more;
        f->n_instances++;
    }
    if (s->kind != CF_STEP_SET && at < f->n_instances)
        hold(f, f->instances[at].parts, f->instances[at].n_parts, f->instances[at].host_bytes, false);
    if (s->kind == CF_STEP_LOAD || s->kind == CF_STEP_RELOAD) hold(f, next.parts, next.n_parts, next.host_bytes, true);
    if (s->kind != CF_STEP_UNLOAD)
        f->instances[at] = next;
    else if (at < f->n_instances) {
        memmove(&f->instances[at], &f->instances[at + 1], (f->n_instances - at - 1) * sizeof *f->instances);
        f->n_instances--;
    }
    return FO_OK;
}
