/* What holds for every plan, over random manifests and facts (seeded: a failure names its seed, and prints the case). Memory is counted
 * here independently of the planner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/plan.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"
#include "foundry/base/rng.h"

#ifdef FO_DEBUG
enum { N_WORLDS = 3000 }; /* sanitizers are slow */
#else
enum { N_WORLDS = 100000 };
#endif
enum { MAX_DIES = 4, MAX_MODELS = 8, MAX_INSTANCES = 8, MAX_LAYERS = 12, RESERVE = 100, NOW = 100000 };

/* --- random worlds ---------------------------------------------------------------------------------------------------------- */
struct random_world {
    struct fo_region region;
    struct fo_rng rng;
    struct cf_manifest m;
    struct cf_facts f;
    unsigned flags;
    uint64_t seed;
};

static uint64_t below(struct random_world *w, uint64_t n) {
    return fo_rng_u64(&w->rng) % n;
}

static bool once_in(struct random_world *w, uint64_t n) {
    return below(w, n) == 0;
}

static void *get(struct random_world *w, size_t n, size_t size) {
    void *p = fo_region_array(&w->region, n ? n : 1, size);
    assert_non_null(p);
    return p;
}

static char *name_of(struct random_world *w, const char *prefix, uint64_t n) {
    char *s = get(w, 16, 1);
    snprintf(s, 16, "%s%llu", prefix, (unsigned long long)n);
    return s;
}

static struct cf_names random_dies(struct random_world *w) {
    struct cf_names d = { get(w, MAX_DIES, sizeof(char *)), 0 };
    switch (below(w, 5)) {
    case 0: /* one, at times not there */
        d.names[d.n++] = name_of(w, "d", below(w, once_in(w, 8) ? MAX_DIES + 2 : MAX_DIES));
        break;
    case 1: { /* several */
        uint64_t first = below(w, MAX_DIES), n = 2 + below(w, 2);
        for (uint64_t i = 0; i < n; i++) d.names[d.n++] = name_of(w, "d", (first + i) % MAX_DIES);
        break;
    }
    case 2:
        d.names[d.n++] = name_of(w, "auto:", 1 + below(w, 3));
        break;
    default:
        break;
    }
    return d;
}

static struct cf_model random_model(struct random_world *w, uint64_t name) {
    struct cf_model m = { .name = name_of(w, "m", name), .source_path = name_of(w, "p", below(w, 4)), .max_concurrent = 1 };
    m.ctx_cap = once_in(w, 4) ? CF_AUTO : once_in(w, 3) ? 1000 : 500;
    m.max_sessions = 1 + (int64_t)below(w, 2);
    m.max_concurrent = 1 + (int64_t)below(w, (uint64_t)m.max_sessions);
    m.kv_type = once_in(w, 2) ? CF_KV_F16 : (int)below(w, 3);
    m.queue_depth = (int64_t)below(w, 3);
    m.priority = (int64_t)below(w, 3);
    m.state = once_in(w, 10) ? CF_STATE_ABSENT : once_in(w, 2) ? CF_STATE_ON_DEMAND : CF_STATE_LOADED;
    if (m.state == CF_STATE_ON_DEMAND && once_in(w, 3)) m.ttl_ms = 5000 * (1 + below(w, 20));
    m.memory = once_in(w, 12) ? CF_MEMORY_TRUST : CF_MEMORY_GATED;
    if (once_in(w, 4)) {
        m.n_replicas = 1 + below(w, 3);
        m.replicas = get(w, m.n_replicas, sizeof *m.replicas);
        for (size_t i = 0; i < m.n_replicas; i++) {
            do m.replicas[i] = random_dies(w);
            while (m.replicas[i].n == 0);
        }
    } else
        m.dies = random_dies(w);
    return m;
}

/* The same model a while ago: some keys were different. */
static struct cf_model *older(struct random_world *w, const struct cf_model *m) {
    struct cf_model *old = get(w, 1, sizeof *old);
    *old = *m;
    if (once_in(w, 4)) old->queue_depth = 7;
    if (once_in(w, 6)) old->ctx_cap = 500;
    if (once_in(w, 8)) old->source_path = name_of(w, "p", below(w, 4));
    if (once_in(w, 8)) old->max_sessions = 3;
    if (once_in(w, 8)) old->kv_type = CF_KV_Q4_0;
    return old;
}

static void random_parts(struct random_world *w, struct cf_instance *inst, const struct cf_names *dies) {
    size_t n = dies->n && !cf_dies_auto(dies) && !once_in(w, 4) ? dies->n : 1 + below(w, 2);
    inst->parts = get(w, n, sizeof *inst->parts);
    if (once_in(w, 20)) n = 0;
    inst->n_parts = n;
    inst->host_bytes = below(w, 4);
    for (size_t i = 0; i < n; i++) {
        struct cf_part *p = &inst->parts[i];
        if (dies->n == n && !cf_dies_auto(dies))
            snprintf(p->die, sizeof p->die, "%s", dies->names[i]);
        else
            snprintf(p->die, sizeof p->die, "d%llu", (unsigned long long)((below(w, MAX_DIES) + i) % (MAX_DIES + 1)));
        p->first_layer = (int64_t)i * 2;
        p->n_layers = 2;
        p->weights_bytes = 5 + below(w, 60);
        p->kv_bytes = below(w, 30);
        p->scratch_bytes = below(w, 5);
        for (size_t d = 0; d < w->f.n_dies; d++) {
            if (strcmp(w->f.dies[d].name, p->die) != 0) continue;
            w->f.dies[d].ours_bytes += p->weights_bytes + p->kv_bytes + p->scratch_bytes;
        }
    }
}

static void add_estimate(struct random_world *w, const struct cf_model *m) {
    struct cf_estimate *e = &w->f.estimates[w->f.n_estimates];
    struct cf_kv kv = cf_model_kv(m);
    for (size_t i = 0; i < w->f.n_estimates; i++)
        if (strcmp(w->f.estimates[i].path, m->source_path) == 0 && w->f.estimates[i].ctx_declared == m->ctx_cap &&
            w->f.estimates[i].max_sessions == m->max_sessions && w->f.estimates[i].max_concurrent == m->max_concurrent &&
            cf_kv_equal(&w->f.estimates[i].kv, &kv))
            return;
    if (once_in(w, 15)) return; /* not looked at yet */
    w->f.n_estimates++;
    /* the file decides the weights, the caps the rest */
    uint64_t file = (uint64_t)(m->source_path[1] - '0'), ctx = m->ctx_cap == CF_AUTO ? (file == 1 ? 500 : 1000) : (uint64_t)m->ctx_cap;
    *e = (struct cf_estimate){ .path = m->source_path,
                               .ctx_declared = m->ctx_cap,
                               .max_sessions = m->max_sessions,
                               .max_concurrent = m->max_concurrent,
                               .kv = kv,
                               .ctx_cap = (int64_t)ctx };
    if (once_in(w, 15)) {
        e->error = name_of(w, "broken", file);
        return;
    }
    e->n_layers = e->n_layer_kv = file == 0 ? 1 : 2 + file * 3;
    e->layer_bytes = get(w, e->n_layers, sizeof(uint64_t));
    e->layer_kv_bytes = get(w, e->n_layers, sizeof(uint64_t));
    for (size_t i = 0; i < e->n_layers; i++) {
        e->layer_bytes[i] = 4 + (i * 7 + file) % 5;
        e->layer_kv_bytes[i] = (ctx * (uint64_t)m->max_sessions / 500) >> kv.k_type;
    }
    e->input_bytes = 3 + file;
    e->output_bytes = 2;
    e->tied_bytes = file == 2 ? 5 : 0;
    e->die_kv_bytes = 1;
    e->scratch_bytes = (uint64_t)m->max_concurrent;
    e->logits_bytes = file % 2;
    e->host_bytes = 1;
    e->staging_bytes = file;
}

static void add_instances(struct random_world *w, const struct cf_model *m, bool ad_hoc) {
    size_t n = m->n_replicas ? m->n_replicas : 1;
    if (once_in(w, 6)) n++;
    for (size_t r = 0; r < n && w->f.n_instances < MAX_INSTANCES; r++) {
        if (once_in(w, 3)) continue;
        struct cf_instance *inst = &w->f.instances[w->f.n_instances++];
        *inst = (struct cf_instance){ .name = m->name, .replica = (int64_t)r, .spec = older(w, m), .ad_hoc = ad_hoc };
        inst->state = once_in(w, 4) ? (enum cf_instance_state)below(w, 5) : CF_I_READY;
        if (!once_in(w, 4)) inst->loaded_at_ms = NOW - 1000 * below(w, 90);
        if (inst->loaded_at_ms && !once_in(w, 4)) inst->used_at_ms = inst->loaded_at_ms + below(w, NOW - inst->loaded_at_ms + 1);
        inst->running = once_in(w, 5);
        inst->concurrent_room = once_in(w, 2) ? 0 : inst->spec->max_concurrent;
        static const struct cf_names none;
        random_parts(w, inst, m->n_replicas && r < m->n_replicas ? &m->replicas[r] : m->n_replicas ? &none : &m->dies);
        add_estimate(w, inst->spec);
    }
}

/* Nobody waits for a model that serves. */
static void take_back_wishes(struct random_world *w) {
    for (size_t i = 0; i < w->f.n_histories; i++)
        for (size_t k = 0; k < w->f.n_instances; k++)
            if (w->f.instances[k].state == CF_I_READY && strcmp(w->f.instances[k].name, w->f.histories[i].name) == 0) w->f.histories[i].wanted_at_ms = 0;
}

/* Where some of the files come from, and how far they are. */
static void add_files(struct random_world *w) {
    static char url[] = "https://h.example.org/f.gguf";
    w->f.files = get(w, MAX_MODELS, sizeof *w->f.files);
    for (size_t i = 0; i < w->m.n_models; i++) {
        struct cf_model *m = &w->m.models[i];
        if (once_in(w, 2)) continue;
        m->source_url = url;
        w->f.files[w->f.n_files++] = (struct cf_file){ .model = m->name, .path = m->source_path, .state = (enum cf_file_state)below(w, once_in(w, 4) ? 6 : 3), .bytes = below(w, 100),
                                                        .part_bytes = below(w, 50), .retry_at_ms = once_in(w, 4) ? NOW + 1000 : 0 };
    }
}

static void world_make(struct random_world *w, uint64_t seed) {
    fo_region_init(&w->region, 4 << 20);
    fo_rng_seed(&w->rng, seed);
    w->seed = seed;
    w->m = (struct cf_manifest){ .version = 1, .host.ram_reserve_bytes = RESERVE };
    w->f = (struct cf_facts){ .now_ms = NOW, .host = { .total_bytes = 2000, .available_bytes = RESERVE + below(w, 600) } };
    w->flags = once_in(w, 5) ? CF_PLAN_PRUNE : 0;
    w->f.dies = get(w, MAX_DIES, sizeof *w->f.dies);
    w->f.instances = get(w, MAX_INSTANCES, sizeof *w->f.instances);
    w->f.histories = get(w, MAX_MODELS, sizeof *w->f.histories);
    w->f.estimates = get(w, 64, sizeof *w->f.estimates);
    w->m.models = get(w, MAX_MODELS, sizeof *w->m.models);
    for (uint64_t i = 0; i < MAX_DIES; i++) {
        struct cf_die_fact *d = &w->f.dies[w->f.n_dies];
        if (once_in(w, 5)) continue; /* not seen */
        w->f.n_dies++;
        snprintf(d->name, sizeof d->name, "d%llu", (unsigned long long)i);
        d->host = i == 3;
        d->accelerator = !d->host;
        d->total_bytes = 40 + below(w, 260);
        d->reserve_bytes = below(w, 10);
        d->foreign_bytes = once_in(w, 3) ? below(w, 80) : 0;
        d->health = once_in(w, 10) ? CF_HEALTH_LOST : CF_HEALTH_OK;
    }
    for (uint64_t i = 0; i < MAX_MODELS; i++) {
        struct cf_model m = random_model(w, i);
        bool declared = !once_in(w, 3), ad_hoc = !declared && once_in(w, 2);
        if (once_in(w, 3)) continue;
        if (declared) {
            w->m.models[w->m.n_models++] = m;
            add_estimate(w, &m);
        }
        if (!once_in(w, 3)) add_instances(w, &m, ad_hoc);
        if (!once_in(w, m.state == CF_STATE_ON_DEMAND ? 2 : 3) && !ad_hoc) continue;
        struct cf_history *h = &w->f.histories[w->f.n_histories++];
        *h = (struct cf_history){ .name = m.name, .admin_unloaded = once_in(w, 5) };
        if (once_in(w, 3)) h->failures = 1, h->retry_at_ms = once_in(w, 3) ? NOW - 100 : NOW + 1000;
        if (m.state == CF_STATE_ON_DEMAND && !once_in(w, 4)) h->wanted_at_ms = NOW - below(w, 50);
        if (once_in(w, 2)) h->load_ms = below(w, 9000);
        if (!once_in(w, 4)) h->used_at_ms = NOW - below(w, 90000);
        if (ad_hoc && !once_in(w, 4)) {
            h->ad_hoc = get(w, 1, sizeof *h->ad_hoc);
            *h->ad_hoc = m;
            add_estimate(w, &m);
        }
    }
    take_back_wishes(w);
    if (seed % 4 == 0) add_files(w);
}

static void complain(const struct random_world *w, const struct cf_plan *p, const char *what) {
    char *facts = cf_facts_write(&w->f), *text = cf_plan_text(p, &w->f);
    fprintf(stderr, "seed %llu: %s\n%s\n%s\n", (unsigned long long)w->seed, what, facts, text); /* cmocka's own printer cuts it */
    for (size_t i = 0; i < w->m.n_models; i++) {
        struct fo_buf b;
        fo_buf_init(&b, 1 << 16);
        cf_model_write(&w->m.models[i], &b);
        fprintf(stderr, "%s\n", fo_buf_str(&b));
        fo_buf_done(&b);
    }
    free(facts);
    free(text);
    fail();
}

/* --- counting memory -------------------------------------------------------------------------------------------------------- */
struct ledger {
    const struct cf_facts *f;
    uint64_t ours[MAX_DIES], peak[MAX_DIES], host, host_peak;
};

static uint64_t bytes_of(const struct cf_part *p) {
    return p->weights_bytes + p->kv_bytes + p->scratch_bytes;
}

static size_t die_at(const struct cf_facts *f, const char *name) {
    size_t i = 0;
    while (i < f->n_dies && strcmp(f->dies[i].name, name) != 0) i++;
    return i;
}

static uint64_t host_share(const struct cf_facts *f, const struct cf_part *parts, size_t n, uint64_t host) {
    for (size_t i = 0; i < n; i++) {
        size_t d = die_at(f, parts[i].die);
        if (d < f->n_dies && f->dies[d].host) host += bytes_of(&parts[i]);
    }
    return host;
}

static void give(struct ledger *l, const struct cf_instance *inst) {
    for (size_t i = 0; i < inst->n_parts; i++) {
        size_t d = die_at(l->f, inst->parts[i].die);
        if (d < l->f->n_dies) l->ours[d] -= bytes_of(&inst->parts[i]);
    }
    l->host += host_share(l->f, inst->parts, inst->n_parts, inst->host_bytes);
}

/* Takes what a step takes; false when a gate is broken. */
static bool take(struct ledger *l, const struct cf_step *s) {
    bool ok = true, staged = false;
    for (size_t i = 0; i < s->n_parts; i++) {
        size_t d = die_at(l->f, s->parts[i].die);
        if (d == l->f->n_dies || l->f->dies[d].health == CF_HEALTH_LOST) return false;
        const struct cf_die_fact *die = &l->f->dies[d];
        l->ours[d] += bytes_of(&s->parts[i]);
        ok &= l->ours[d] + die->foreign_bytes + die->reserve_bytes <= die->total_bytes;
        staged |= !die->host;
    }
    uint64_t share = host_share(l->f, s->parts, s->n_parts, s->host_bytes);
    ok &= share + s->staging_bytes + RESERVE <= l->host && (staged || s->staging_bytes == 0);
    l->host -= share < l->host ? share : l->host;
    return ok;
}

static const struct cf_instance *instance_at(const struct cf_facts *f, const char *name, int64_t replica) {
    for (size_t i = 0; i < f->n_instances; i++)
        if (f->instances[i].replica == replica && strcmp(f->instances[i].name, name) == 0) return &f->instances[i];
    return NULL;
}

static const struct cf_model *model_at(const struct random_world *w, const char *name, bool *ret_declared) {
    for (size_t i = 0; i < w->m.n_models; i++)
        if (strcmp(w->m.models[i].name, name) == 0) {
            *ret_declared = true;
            return &w->m.models[i];
        }
    *ret_declared = false;
    for (size_t i = 0; i < w->f.n_histories; i++)
        if (w->f.histories[i].ad_hoc && strcmp(w->f.histories[i].name, name) == 0 && !(w->flags & CF_PLAN_PRUNE))
            return w->f.histories[i].ad_hoc;
    return NULL;
}

static bool is_held(const struct random_world *w, const char *name) {
    for (size_t i = 0; i < w->f.n_histories; i++)
        if (strcmp(w->f.histories[i].name, name) == 0) return w->f.histories[i].admin_unloaded;
    return false;
}

static bool is_broken(const struct cf_facts *f, const struct cf_instance *inst) {
    if (inst->state == CF_I_FAILED) return true;
    for (size_t i = 0; i < inst->n_parts; i++) {
        size_t d = die_at(f, inst->parts[i].die);
        if (d < f->n_dies && f->dies[d].health == CF_HEALTH_LOST) return true;
    }
    return false;
}

/* Whether it may give way: it is loaded on demand, and something of its priority or above, which is declared loaded or was asked for and does not
 * run, is loaded by this plan. */
static bool gives_way(const struct random_world *w, const struct cf_plan *p, const struct cf_instance *inst) {
    bool declared;
    const struct cf_model *m = model_at(w, inst->name, &declared);
    if (!m || m->state != CF_STATE_ON_DEMAND) return false;
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct cf_step *s = &p->steps[i];
        if ((s->kind != CF_STEP_LOAD && s->kind != CF_STEP_RELOAD) || strcmp(s->model, inst->name) == 0 || s->spec->priority < m->priority) continue;
        if (s->spec->state == CF_STATE_LOADED) return true;
        for (size_t k = 0; k < w->f.n_histories; k++)
            if (strcmp(w->f.histories[k].name, s->model) == 0 && w->f.histories[k].wanted_at_ms) return true;
    }
    return false;
}

/* Whether nothing has used the model for its ttl, as far as that is known. */
static bool is_idle(const struct random_world *w, const struct cf_model *m) {
    uint64_t used = 0;
    for (size_t i = 0; i < w->f.n_instances; i++)
        if (w->f.instances[i].running && strcmp(w->f.instances[i].name, m->name) == 0) return false;
    for (size_t i = 0; i < w->f.n_histories; i++)
        if (strcmp(w->f.histories[i].name, m->name) == 0) used = w->f.histories[i].used_at_ms;
    return m->state == CF_STATE_ON_DEMAND && m->ttl_ms && used && used + m->ttl_ms <= w->f.now_ms;
}

/* Whether there is a reason to unload it: the manifest, an administrator, that it does not work, is idle, or gives way. */
static bool may_unload(const struct random_world *w, const struct cf_plan *p, const struct cf_instance *inst) {
    bool declared;
    const struct cf_model *m = model_at(w, inst->name, &declared);
    if (inst->state != CF_I_READY && inst->state != CF_I_FAILED) return false;
    if (is_broken(&w->f, inst)) return true;
    if (!m) return !inst->ad_hoc || (w->flags & CF_PLAN_PRUNE);
    if (is_idle(w, m) || gives_way(w, p, inst)) return true;
    return m->state == CF_STATE_ABSENT || is_held(w, inst->name) || inst->replica >= (int64_t)(m->n_replicas ? m->n_replicas : 1);
}

static bool placed_as(const struct cf_instance *inst, const struct cf_model *m) {
    const struct cf_names *d = m->n_replicas ? &m->replicas[inst->replica] : &m->dies;
    if (d->n == 0 || inst->n_parts == 0) return true;
    if (cf_dies_auto(d)) return inst->n_parts == (size_t)cf_dies_auto(d);
    if (d->n != inst->n_parts) return false;
    for (size_t i = 0; i < d->n; i++)
        if (strcmp(d->names[i], inst->parts[i].die) != 0) return false;
    return true;
}

/* Whether there is a reason to reload it: a key that costs one differs, or it is in the wrong place. */
static bool may_reload(const struct random_world *w, const struct cf_instance *inst) {
    struct cf_diff d[CF_MAX_DIFFS];
    bool declared;
    const struct cf_model *m = model_at(w, inst->name, &declared);
    if (!m || inst->state != CF_I_READY) return false;
    size_t n = cf_model_diff(inst->spec, m, d);
    for (size_t i = 0; i < n; i++)
        if ((d[i].change == CF_RELOAD && strcmp(d[i].key, "dies") != 0 && strcmp(d[i].key, "replicas") != 0) ||
            strcmp(d[i].key, "max_concurrent") == 0)
            return true;
    return !placed_as(inst, m);
}

/* One download at a time, before everything else, of what is wanted and may be fetched now. */
static void check_fetch(const struct random_world *w, const struct cf_plan *p, size_t i) {
    const struct cf_step *s = &p->steps[i];
    const struct cf_file *file = cf_file_find(&w->f, s->spec);
    if (i && p->steps[i - 1].kind != CF_STEP_FETCH) complain(w, p, "a fetch behind another step");
    if (!file || (file->state != CF_FILE_ABSENT && file->state != CF_FILE_UNVERIFIED) || file->retry_at_ms > w->f.now_ms) complain(w, p, "fetches what it may not");
    if (s->spec->state == CF_STATE_ABSENT) complain(w, p, "fetches for a model that is declared absent");
    for (size_t k = 0; k < w->f.n_files; k++)
        if (w->f.files[k].state == CF_FILE_FETCHING || w->f.files[k].state == CF_FILE_VERIFYING) complain(w, p, "fetches two at once");
    for (size_t k = 0; k < i; k++)
        if (strcmp(p->steps[k].spec->source_path, s->spec->source_path) == 0) complain(w, p, "fetches a path twice");
}

/* --- the properties --------------------------------------------------------------------------------------------------------- */
static void check_steps(const struct random_world *w, const struct cf_plan *p) {
    struct ledger l = { .f = &w->f, .host = w->f.host.available_bytes };
    bool all_gated = true, over[MAX_DIES];
    for (size_t i = 0; i < w->f.n_dies; i++) {
        const struct cf_die_fact *d = &w->f.dies[i];
        l.ours[i] = d->ours_bytes;
        over[i] = d->ours_bytes + d->foreign_bytes + d->reserve_bytes > d->total_bytes;
    }
    for (size_t i = 0; i < p->n_steps; i++) {
        const struct cf_step *s = &p->steps[i];
        const struct cf_instance *inst = instance_at(&w->f, s->model, s->replica);
        bool unloaded_before = false;
        if (s->kind == CF_STEP_FETCH) {
            check_fetch(w, p, i);
            continue;
        }
        const struct cf_file *file = s->spec && s->kind != CF_STEP_SET ? cf_file_find(&w->f, s->spec) : NULL;
        if (file && file->state != CF_FILE_PRESENT) complain(w, p, "loads what is not there"); /* even with a fetch before: what it takes is known then */
        for (size_t j = 0; j < i; j++)
            unloaded_before |=
                p->steps[j].kind == CF_STEP_UNLOAD && p->steps[j].replica == s->replica && strcmp(p->steps[j].model, s->model) == 0;
        for (size_t j = 0; j < i; j++)
            if (p->steps[j].kind == s->kind && p->steps[j].replica == s->replica && strcmp(p->steps[j].model, s->model) == 0)
                complain(w, p, "the same step twice");
        if (s->kind == CF_STEP_LOAD ? inst && !unloaded_before : !inst) complain(w, p, "a step on what is not there, or a load of what is");
        if (s->kind == CF_STEP_UNLOAD && !may_unload(w, p, inst)) complain(w, p, "an unload without a reason");
        if (s->kind == CF_STEP_RELOAD && !may_reload(w, inst)) complain(w, p, "a reload without a reason");
        if (s->kind == CF_STEP_LOAD && unloaded_before && !is_broken(&w->f, inst) && s->spec->state != CF_STATE_ON_DEMAND) complain(w, p, "unloads what it loads again");
        if (s->kind == CF_STEP_UNLOAD || s->kind == CF_STEP_RELOAD) give(&l, inst);
        if (s->kind == CF_STEP_LOAD || s->kind == CF_STEP_RELOAD) {
            if (s->n_parts == 0) complain(w, p, "a load to nowhere");
            bool fits = take(&l, s);
            if (!fits && !s->trusted) complain(w, p, "a step breaks a gate");
            if (s->trusted && (s->spec->memory != CF_MEMORY_TRUST)) complain(w, p, "trusts what is gated");
            all_gated &= !s->trusted;
        }
    }
    for (size_t i = 0; i < p->n_dies; i++) {
        const struct cf_die_fact *d = &w->f.dies[i];
        if (p->dies[i].after_bytes != l.ours[i] + d->foreign_bytes + d->reserve_bytes) complain(w, p, "the table's last column is wrong");
        if (p->dies[i].peak_bytes < p->dies[i].after_bytes || p->dies[i].peak_bytes < p->dies[i].now_bytes)
            complain(w, p, "a peak is no peak");
        if (all_gated && !over[i] && p->dies[i].peak_bytes > p->dies[i].budget_bytes) complain(w, p, "a peak is over its budget");
    }
}

static void check_verdicts(const struct random_world *w, const struct cf_plan *p) {
    if (p->n_verdicts < w->m.n_models) complain(w, p, "a declared model has no verdict");
    for (size_t i = 0; i < p->n_verdicts; i++) {
        const struct cf_verdict *v = &p->verdicts[i];
        size_t n_steps = 0;
        for (size_t j = 0; j < p->n_steps; j++) n_steps += strcmp(p->steps[j].model, v->model) == 0;
        if (i < w->m.n_models && (!v->declared || strcmp(v->model, w->m.models[i].name) != 0)) complain(w, p, "verdicts are out of order");
        if (!v->why || (v->kind == CF_V_CHANGES && n_steps == 0) || (v->kind == CF_V_IN_SYNC && n_steps))
            complain(w, p, "a verdict is wrong");
        if (v->kind == CF_V_REFUSED && (v->need_bytes || v->have_bytes) && v->need_bytes <= v->have_bytes)
            complain(w, p, "refused although it fits");
    }
}

static bool same_step(const struct cf_step *a, const struct cf_step *b) {
    if (a->kind != b->kind || a->replica != b->replica || strcmp(a->model, b->model) != 0 || a->n_parts != b->n_parts ||
        a->trusted != b->trusted)
        return false;
    return a->n_parts == 0 || memcmp(a->parts, b->parts, a->n_parts * sizeof *a->parts) == 0;
}

static const struct cf_verdict *verdict_at(const struct cf_plan *p, const char *name) {
    for (size_t i = 0; i < p->n_verdicts; i++)
        if (strcmp(p->verdicts[i].model, name) == 0) return &p->verdicts[i];
    return NULL;
}

/* Whether a place is kept for a model that goes there later: where, depends on what is free when the plan is made. */
static bool any_waiting(const struct random_world *w, const struct cf_plan *p) {
    for (size_t i = 0; i < p->n_verdicts; i++)
        if (p->verdicts[i].kind == CF_V_WAITING || p->verdicts[i].retry_at_ms) return true; /* the latter: of one copy, while another is refused */
    for (size_t i = 0; i < w->f.n_files; i++)
        if (w->f.files[i].state != CF_FILE_PRESENT) return true; /* what it takes is known when it is there */
    for (size_t i = 0; i < w->f.n_histories; i++)
        if (w->f.histories[i].retry_at_ms > w->f.now_ms) return true;
    for (size_t i = 0; i < w->f.n_instances; i++)
        if (w->f.instances[i].state != CF_I_READY && w->f.instances[i].state != CF_I_FAILED) return true;
    return false;
}

/* All steps of one plan performed: nothing is left to do, and who was refused, held or waiting is so still. */
static void check_end(const struct random_world *w, const struct cf_plan *p, const struct cf_plan *q) {
    if (q->n_steps) {
        char *after = cf_plan_json(q);
        fprintf(stderr, "at the end:\n%s\n", after);
        free(after);
        complain(w, p, "the end is not a fixed point: steps are left");
    }
    for (size_t i = 0; i < p->n_verdicts; i++) {
        const struct cf_verdict *was = &p->verdicts[i], *is = verdict_at(q, was->model);
        enum cf_verdict_kind kind = was->kind == CF_V_CHANGES ? CF_V_IN_SYNC : was->kind;
        bool gone = false; /* what it was to become is asked about again when it is asked for */
        for (size_t k = 0; k < p->n_steps; k++)
            gone |= p->steps[k].kind == CF_STEP_UNLOAD && strcmp(p->steps[k].model, was->model) == 0;
        if (is && is->kind != kind && !(gone && is->kind == CF_V_IN_SYNC)) complain(w, p, "the end is not a fixed point: a verdict changes");
    }
}

/* As the daemon does: performs the first step, plans again, until there is none. What follows is what the first plan said; only the place
 * that is kept for who waits may be another one, and with it that of those who come later. */
static void check_performing(struct random_world *w, const struct cf_plan *p) {
    struct cf_facts *f, *all;
    struct cf_plan *q, *end;
    struct fo_err e;
    bool waiting = any_waiting(w, p);
    struct random_world now = *w;
    assert_int_equal(cf_facts_copy(&w->f, &f, &e), FO_OK);
    assert_int_equal(cf_facts_copy(&w->f, &all, &e), FO_OK);
    assert_int_equal(cf_plan_make(&w->m, f, w->flags, &q, &e), FO_OK);
    for (size_t i = 0; i < p->n_steps; i++) assert_int_equal(cf_plan_apply(p, i, all, &e), FO_OK);
    assert_int_equal(cf_plan_make(&w->m, all, w->flags, &end, &e), FO_OK);
    if (!waiting) check_end(w, p, end);
    for (size_t i = 0; q->n_steps; i++) {
        if (i > p->n_steps + 8 + (w->f.n_files ? 4 * MAX_MODELS : 0)) complain(w, p, "steps without end");
        assert_int_equal(cf_plan_apply(q, 0, f, &e), FO_OK);
        cf_plan_free(q);
        assert_int_equal(cf_plan_make(&w->m, f, w->flags, &q, &e), FO_OK);
        now.f = *f;
        check_steps(&now, q);
        if (waiting) continue;
        bool same = q->n_steps == p->n_steps - i - 1;
        for (size_t j = 0; same && j < q->n_steps; j++) same = same_step(&q->steps[j], &p->steps[i + 1 + j]);
        if (!same) {
            char *after = cf_plan_text(q, f);
            fprintf(stderr, "after step %zu:\n%s\n", i + 1, after);
            free(after);
            complain(w, p, "performing a step changes what follows");
        }
    }
    cf_plan_free(q);
    cf_plan_free(end);
    cf_facts_free(f);
    cf_facts_free(all);
}

static void holds_for_random_worlds(void **state) {
    (void)state;
    size_t n_steps = 0, n_refused = 0, n_waiting = 0, n_kind[5] = { 0 }, n_split = 0;
    uint64_t first = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 1; /* of a failure, or other worlds than usual */
    for (uint64_t seed = first; seed < first + N_WORLDS; seed++) {
        struct random_world w;
        struct cf_plan *p, *again;
        struct fo_err e;
        world_make(&w, seed);
        assert_int_equal(cf_plan_make(&w.m, &w.f, w.flags, &p, &e), FO_OK);
        check_steps(&w, p);
        check_verdicts(&w, p);
        if (seed % 8 == 0) { /* texts are slow to make */
            assert_int_equal(cf_plan_make(&w.m, &w.f, w.flags, &again, &e), FO_OK);
            char *a = cf_plan_json(p), *b = cf_plan_json(again);
            if (strcmp(a, b) != 0) complain(&w, p, "planning twice gives two plans");
            free(a);
            free(b);
            cf_plan_free(again);
        }
        check_performing(&w, p);
        for (size_t i = 0; i < p->n_steps; i++) {
            n_kind[p->steps[i].kind]++;
            n_split += p->steps[i].n_parts > 1;
        }
        for (size_t i = 0; i < p->n_verdicts; i++) {
            n_refused += p->verdicts[i].kind == CF_V_REFUSED;
            n_waiting += p->verdicts[i].kind == CF_V_WAITING;
        }
        n_steps += p->n_steps;
        cf_plan_free(p);
        fo_region_done(&w.region);
    }
    /* the worlds are not all trivial */
    print_message("%d worlds: %zu steps (%zu unload, %zu load, %zu set, %zu reload, %zu fetch; %zu splits), %zu refused, %zu waiting\n", N_WORLDS,
                  n_steps, n_kind[CF_STEP_UNLOAD], n_kind[CF_STEP_LOAD], n_kind[CF_STEP_SET], n_kind[CF_STEP_RELOAD], n_kind[CF_STEP_FETCH], n_split, n_refused,
                  n_waiting);
    for (int k = 0; k < 5; k++) assert_true(n_kind[k] > N_WORLDS / 20);
    assert_true(n_split > N_WORLDS / 50 && n_refused > N_WORLDS / 20 && n_waiting > N_WORLDS / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(holds_for_random_worlds) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
