/* Foreign use of a die is what its driver says is taken beyond what our copies hold. Memory that an unload is still giving back is counted
 * there too, which is what a gate needs. A host die has no free memory of its own: its gate is the host's. What the kernel calls available
 * there is less by what our copies were promised: mapped weights are page cache, which counts as available, and KV and scratch that no
 * token has touched yet take no page. */
#include "daemon/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/estimate.h"
#include "daemon/hostmem.h"
#include "daemon/world.h"
#include "engine/engine.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

static bool on_lost_die(struct pd_world *w, const struct pd_instance *i, const struct pd_die **ret) {
    for (size_t k = 0; k < i->n_parts; k++) {
        const struct pd_die *d = pd_world_die(w, i->parts[k].die);
        if (!d || !d->lost) continue;
        *ret = d;
        return true;
    }
    return false;
}

/* A copy that has requests, or had some since the last look, is used now. Whether that is the first time: others may wait for it. */
static bool note_use(struct pd_world *w, struct pd_instance *inst, const struct pn_served_status *st) {
    if (st->running + st->queued == 0 && st->requests == inst->requests) return false;
    bool first = inst->used_at_ms == 0;
    struct pd_history *h = pd_world_find_history(w, inst->name);
    inst->requests = st->requests;
    inst->used_at_ms = fo_now_ms();
    if (h) h->used_at_ms = inst->used_at_ms;
    return first;
}

void pd_facts_look(struct pd_world *w, struct pn_engine *en, bool *ret_changed) {
    bool changed = false;
    for (size_t i = 0; i < w->n_dies; i++) {
        struct pd_die *d = &w->dies[i];
        struct fo_err e;
        uint64_t total, free_bytes;
        if (d->host) continue;
        bool lost = d->dev->memory(d->dev, &total, &free_bytes, &e) != FO_OK;
        d->total_bytes = lost ? 0 : total;
        d->free_bytes = lost ? 0 : free_bytes;
        if (lost != d->lost) {
            changed = true;
            d->lost = lost;
            snprintf(d->reason, sizeof d->reason, "%.*s", (int)sizeof d->reason - 1, lost ? e.msg : "");
        }
    }
    for (size_t i = 0; i < w->n_instances; i++) {
        struct pd_instance *inst = w->instances[i];
        const struct pd_die *d;
        if (inst->state != CF_I_READY) continue;
        struct pn_served *s = pn_engine_get_replica(en, inst->name, (uint32_t)inst->replica);
        struct pn_served_status st = { .ready = false, .reason = "it is not in the engine any more" };
        if (s) pn_served_status(s, &st);
        pn_served_put(s);
        changed |= note_use(w, inst, &st);
        bool die_lost = on_lost_die(w, inst, &d);
        if (st.ready && !die_lost) continue;
        changed = true;
        inst->state = CF_I_FAILED; /* for good: what it had on the die is gone, or it failed in the middle of a step */
        if (die_lost) snprintf(inst->reason, sizeof inst->reason, "%s", d->reason);
        else snprintf(inst->reason, sizeof inst->reason, "%s", st.reason);
        inst->mourned = die_lost; /* not the model's fault: no backoff */
    }
    if (ret_changed) *ret_changed = changed;
}

static uint64_t sub(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static void fill_die(const struct pd_world *w, const struct pd_die *d, const struct pd_hostmem *host, struct cf_die_fact *ret) {
    struct fo_err e;
    uint64_t total = 0, free_bytes = 0;
    *ret = (struct cf_die_fact){ .reserve_bytes = d->reserve_bytes, .health = d->lost ? CF_HEALTH_LOST : CF_HEALTH_OK, .host = d->host, .accelerator = !d->host, .contexts = fo_device_contexts(d->dev), .pressure = (enum cf_pressure_level)(d->host ? w->pressure.level : d->pressure.level) };
    snprintf(ret->name, sizeof ret->name, "%s", d->name);
    snprintf(ret->kind, sizeof ret->kind, "%s", d->dev->kind);
    snprintf(ret->address, sizeof ret->address, "%s", d->dev->die.address);
    snprintf(ret->model, sizeof ret->model, "%s", d->dev->die.model);
    snprintf(ret->reason, sizeof ret->reason, "%s", d->reason);
    for (size_t i = 0; i < w->n_instances; i++)
        for (size_t k = 0; k < w->instances[i]->n_parts; k++) {
            const struct cf_part *p = &w->instances[i]->parts[k];
            if (strcmp(p->die, d->name) == 0) ret->ours_bytes += p->weights_bytes + p->kv_bytes + p->scratch_bytes;
        }
    if (d->host) {
        ret->total_bytes = d->decl.memory_bytes ? d->decl.memory_bytes : host->total_bytes;
        return;
    }
    ret->total_bytes = d->dev->die.memory_bytes;
    if (d->lost || d->dev->memory(d->dev, &total, &free_bytes, &e)) return;
    ret->total_bytes = total;
    ret->foreign_bytes = sub(sub(total, free_bytes), ret->ours_bytes);
    if (d->decl.memory_bytes && d->decl.memory_bytes < total) ret->total_bytes = d->decl.memory_bytes;
}

struct pd_held pd_facts_held(const struct pd_world *w, bool no_mmap, const struct pd_instance *but) {
    struct pd_held held = { 0 };
    for (size_t i = 0; i < w->n_instances; i++) {
        const struct pd_instance *inst = w->instances[i];
        if (inst == but) continue;
        held.anonymous_bytes += inst->host_bytes;
        for (size_t k = 0; k < inst->n_parts; k++) {
            const struct cf_part *p = &inst->parts[k];
            bool host = false;
            for (size_t d = 0; d < w->n_dies && !host; d++) host = w->dies[d].host && strcmp(w->dies[d].name, p->die) == 0;
            if (!host) continue;
            held.anonymous_bytes += p->kv_bytes + p->scratch_bytes + (no_mmap ? p->weights_bytes : 0);
            held.mapped_bytes += no_mmap ? 0 : p->weights_bytes;
        }
    }
    return held;
}

uint64_t pd_facts_promised(const struct pd_held *h) {
    return h->mapped_bytes + sub(h->anonymous_bytes, pd_hostmem_touched(pd_hostmem_root()));
}

static void fill_instance(const struct pd_instance *i, struct pn_engine *en, struct cf_instance *ret) {
    *ret = (struct cf_instance){
        .name = i->name,
        .replica = i->replica,
        .generation = i->generation,
        .state = i->state,
        .spec = i->spec,
        .concurrent_room = i->concurrent_room,
        .ad_hoc = i->ad_hoc,
        .reason = i->reason[0] ? (char *)i->reason : NULL,
        .parts = i->parts,
        .n_parts = i->n_parts,
        .host_bytes = i->host_bytes,
        .loaded_at_ms = i->loaded_at_ms,
        .used_at_ms = i->used_at_ms,
    };
    struct pn_served *s = i->state == CF_I_LOADING ? NULL : pn_engine_get_replica(en, i->name, (uint32_t)i->replica);
    if (!s) return;
    struct pn_served_status st;
    pn_served_status(s, &st);
    ret->running = (uint64_t)st.running + st.queued;
    pn_served_put(s);
}

int pd_facts_gather(struct pd_world *w, struct pn_engine *en, bool no_mmap, uint64_t now_ms, struct cf_facts **ret, struct fo_err *e) {
    struct cf_facts f = { .now_ms = now_ms };
    struct pd_hostmem host;
    f.dies = calloc(w->n_dies + 1, sizeof *f.dies);
    f.instances = calloc(w->n_instances + 1, sizeof *f.instances);
    f.histories = calloc(w->n_histories + 1, sizeof *f.histories);
    f.estimates = calloc(w->n_estimates + 1, sizeof *f.estimates);
    int code = FO_OK;
    if (!f.dies || !f.instances || !f.histories || !f.estimates) code = fo_fail(e, FO_ENOMEM, "no memory to observe");
    if (code == FO_OK) {
        struct pd_held held = pd_facts_held(w, no_mmap, NULL);
        pd_hostmem_read(pd_hostmem_root(), &host);
        f.host = (struct cf_host_fact){ .total_bytes = host.total_bytes, .available_bytes = sub(host.available_bytes, pd_facts_promised(&held)), .limited_by = (enum cf_limited_by)host.limited_by, .pressure = (enum cf_pressure_level)w->pressure.level };
        for (size_t i = 0; i < w->n_dies; i++)
            if (w->dies[i].wanted) fill_die(w, &w->dies[i], &host, &f.dies[f.n_dies++]);
        for (size_t i = 0; i < w->n_instances; i++) fill_instance(w->instances[i], en, &f.instances[f.n_instances++]);
        for (size_t i = 0; i < w->n_histories; i++) {
            struct pd_history *h = w->histories[i];
            f.histories[f.n_histories++] = (struct cf_history){ .name = h->name,
                                                                .ad_hoc = h->ad_hoc,
                                                                .admin_unloaded = h->admin_unloaded,
                                                                .failures = h->failures,
                                                                .retry_at_ms = h->retry_at_ms,
                                                                .last_error = h->last_error[0] ? h->last_error : NULL,
                                                                .wanted_at_ms = h->wanted_at_ms,
                                                                .load_ms = h->load_ms,
                                                                .used_at_ms = h->used_at_ms };
        }
        for (size_t i = 0; i < w->n_estimates; i++) f.estimates[f.n_estimates++] = w->estimates[i]->v;
        f.files = w->files;
        f.n_files = w->n_files;
        code = cf_facts_copy(&f, ret, e);
    }
    free(f.dies);
    free(f.instances);
    free(f.histories);
    free(f.estimates);
    return code;
}
