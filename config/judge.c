/* One instance against what is declared: see judge.h. Which keys differ, and what each costs, is the key table's to say; what is decided
 * here is when a difference is none: a placement that the declaration allows, an `auto` or a `kv` that comes to the same, a rise of
 * max_concurrent within what was loaded for. */
#include "config/judge.h"

#include <stdio.h>
#include <string.h>

#include "config/facts.h"
#include "config/model.h"
#include "config/values.h"
#include "config/world.h"

static void set(struct cf_judgement *j, enum cf_act act, const char *why) {
    j->act = act;
    snprintf(j->why, sizeof j->why, "%s", why);
}

/* Loading, draining, unloading: whatever is declared, the move under way ends first. */
static bool moves(const struct cf_instance *inst, bool stays, struct cf_judgement *ret) {
    if (inst->state == CF_I_LOADING)
        set(ret, stays ? CF_ACT_WAIT : CF_ACT_GOES, stays ? "is being loaded" : "is being loaded, and goes after that");
    else if (inst->state == CF_I_DRAINING)
        set(ret, CF_ACT_GOES, "is being drained");
    else if (inst->state == CF_I_UNLOADING)
        set(ret, CF_ACT_GOES, "is being unloaded");
    else
        return false;
    return true;
}

/* Failed by itself, or with a die that is lost. */
static bool broken(const struct cf_facts *f, const struct cf_instance *inst, struct cf_judgement *ret) {
    ret->act = CF_ACT_UNLOAD;
    if (inst->state == CF_I_FAILED) {
        snprintf(ret->why, sizeof ret->why, "failed%s%s", inst->reason ? ": " : "", inst->reason ? inst->reason : "");
        return true;
    }
    for (size_t i = 0; i < inst->n_parts; i++) {
        size_t d = cf_die_find(f, inst->parts[i].die);
        if (d == f->n_dies || f->dies[d].health != CF_HEALTH_LOST) continue;
        snprintf(ret->why, sizeof ret->why, "die %s is lost%s%s", f->dies[d].name, f->dies[d].reason[0] ? ": " : "", f->dies[d].reason);
        return true;
    }
    return false;
}

void cf_judge_surplus(const struct cf_instance *inst, const char *why, struct cf_judgement *ret) {
    if (!moves(inst, false, ret)) set(ret, CF_ACT_UNLOAD, why);
}

void cf_judge_orphan(const struct cf_facts *f, const struct cf_instance *inst, bool prune, struct cf_judgement *ret) {
    bool stays = inst->ad_hoc && !prune;
    if (moves(inst, stays, ret)) return;
    if (!stays)
        set(ret, CF_ACT_UNLOAD, inst->ad_hoc ? "loaded by hand, and pruned" : "no longer declared");
    else if (!broken(f, inst, ret))
        set(ret, CF_ACT_KEEP, "loaded by hand");
}

bool cf_same_needs(const struct cf_model *a, const struct cf_model *b) {
    struct cf_kv x = cf_model_kv(a), y = cf_model_kv(b);
    return a->ctx_cap == b->ctx_cap && a->max_sessions == b->max_sessions && a->max_concurrent == b->max_concurrent &&
           cf_kv_equal(&x, &y) && a->source_path && b->source_path && strcmp(a->source_path, b->source_path) == 0;
}

bool cf_estimate_is_of(const struct cf_estimate *e, const struct cf_model *m) {
    struct cf_kv kv = cf_model_kv(m);
    return e->ctx_declared == m->ctx_cap && e->max_sessions == m->max_sessions && e->max_concurrent == m->max_concurrent && cf_kv_equal(&e->kv, &kv) && m->source_path &&
           strcmp(e->path, m->source_path) == 0;
}

const struct cf_estimate *cf_estimate_find(const struct cf_facts *f, const struct cf_model *m) {
    for (size_t i = 0; i < f->n_estimates; i++)
        if (cf_estimate_is_of(&f->estimates[i], m)) return &f->estimates[i];
    return NULL;
}

/* Where it runs is one of the places that `dies` allows. Where that is not known it is not called wrong. */
static bool allowed(const struct cf_instance *inst, const struct cf_names *dies) {
    int64_t n_auto = cf_dies_auto(dies);
    if (dies->n == 0 || inst->n_parts == 0) return true;
    if (n_auto) return inst->n_parts == (uint64_t)n_auto;
    if (inst->n_parts != dies->n) return false;
    for (size_t i = 0; i < dies->n; i++)
        if (strcmp(inst->parts[i].die, dies->names[i]) != 0) return false;
    return true;
}

static void put_moved(const struct cf_instance *inst, const struct cf_names *dies, char *out, size_t size) {
    size_t n = (size_t)snprintf(out, size, "dies ");
    for (size_t i = 0; i < inst->n_parts && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", inst->parts[i].die);
    for (size_t i = 0; i < dies->n && n < size; i++) n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : " -> ", dies->names[i]);
}

/* What a changed key costs here. */
static enum cf_change cost(const struct cf_facts *f, const struct cf_instance *inst, const struct cf_model *m, const struct cf_diff *d) {
    if (strcmp(d->key, "max_concurrent") == 0 && inst->concurrent_room > 0 && m->max_concurrent > inst->concurrent_room) return CF_RELOAD;
    if (strcmp(d->key, "ctx_cap") == 0) {
        const struct cf_estimate *was = cf_estimate_find(f, inst->spec), *is = cf_estimate_find(f, m);
        if (was && is && !was->error && !is->error && was->ctx_cap == is->ctx_cap) return CF_LIVE;
    }
    if (strncmp(d->key, "kv.", 3) == 0) {
        struct cf_kv was = cf_model_kv(inst->spec), is = cf_model_kv(m);
        if (cf_kv_equal(&was, &is)) return CF_LIVE; /* said in other words, or a floor that was none */
    }
    return d->change;
}

void cf_judge(const struct cf_facts *f, const struct cf_instance *inst, const struct cf_model *m, const struct cf_names *dies,
              struct cf_judgement *ret) {
    static const char *const placed_apart[] = { "name", "dies", "replicas", NULL };
    struct cf_diff d[CF_MAX_DIFFS];
    bool reload[CF_MAX_DIFFS];
    if (moves(inst, true, ret) || broken(f, inst, ret)) return;
    size_t n = inst->spec ? cf_values_diff(cf_model_keys(), inst->spec, m, placed_apart, d, CF_MAX_DIFFS) : 0, at = 0, n_reload = 0;
    bool stays = allowed(inst, dies);
    for (size_t i = 0; i < n; i++) n_reload += reload[i] = cost(f, inst, m, &d[i]) != CF_LIVE;
    set(ret, CF_ACT_KEEP, "");
    if (n == 0 && stays) return;
    ret->act = n_reload || !stays ? CF_ACT_RELOAD : CF_ACT_SET;
    if (!stays) {
        put_moved(inst, dies, ret->why, sizeof ret->why);
        at = strlen(ret->why);
    }
    /* of a reload the keys that force it are named, the others come along */
    for (size_t i = 0; i < n && at < sizeof ret->why; i++)
        if (ret->act == CF_ACT_SET || reload[i])
            at += (size_t)snprintf(ret->why + at, sizeof ret->why - at, "%s%s %s -> %s", at ? ", " : "", d[i].key, d[i].was, d[i].is);
    if (ret->act == CF_ACT_RELOAD && at < sizeof ret->why)
        snprintf(ret->why + at, sizeof ret->why - at, n_reload + !stays > 1 ? " need a reload" : " needs a reload");
}
