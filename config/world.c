/* Imagined memory: see world.h. */
#include "config/world.h"

#include <string.h>

#include "config/facts.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"

int cf_world_init(struct cf_world *w, const struct cf_facts *f, struct fo_region *r, struct fo_err *e) {
    *w = (struct cf_world){ f, fo_region_array(r, f->n_dies ? f->n_dies : 1, sizeof *w->ours), f->host.available_bytes };
    if (!w->ours) return fo_fail(e, FO_ENOMEM, "no memory to plan");
    for (size_t i = 0; i < f->n_dies; i++) w->ours[i] = f->dies[i].ours_bytes;
    return FO_OK;
}

void cf_world_copy(struct cf_world *to, const struct cf_world *from) {
    if (from->facts->n_dies) memcpy(to->ours, from->ours, from->facts->n_dies * sizeof *to->ours);
    to->available = from->available;
}

size_t cf_die_find(const struct cf_facts *f, const char *name) {
    size_t i = 0;
    while (i < f->n_dies && strcmp(f->dies[i].name, name) != 0) i++;
    return i;
}

uint64_t cf_part_bytes(const struct cf_part *p) {
    return cf_add(cf_add(p->weights_bytes, p->kv_bytes), p->scratch_bytes);
}

void cf_world_give(struct cf_world *w, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes) {
    for (size_t i = 0; i < n_parts; i++) {
        size_t d = cf_die_find(w->facts, parts[i].die);
        if (d == w->facts->n_dies) continue;
        w->ours[d] = cf_less(w->ours[d], cf_part_bytes(&parts[i]));
        if (w->facts->dies[d].host) host_bytes = cf_add(host_bytes, cf_part_bytes(&parts[i]));
    }
    w->available = cf_add(w->available, host_bytes);
}

void cf_world_take(struct cf_world *w, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes) {
    for (size_t i = 0; i < n_parts; i++) {
        size_t d = cf_die_find(w->facts, parts[i].die);
        if (d == w->facts->n_dies) continue;
        w->ours[d] = cf_add(w->ours[d], cf_part_bytes(&parts[i]));
        if (w->facts->dies[d].host) host_bytes = cf_add(host_bytes, cf_part_bytes(&parts[i]));
    }
    w->available = cf_less(w->available, host_bytes);
}

uint64_t cf_world_used(const struct cf_world *w, size_t die) {
    const struct cf_die_fact *d = &w->facts->dies[die];
    return cf_add(cf_add(w->ours[die], d->foreign_bytes), d->reserve_bytes);
}

uint64_t cf_world_room(const struct cf_world *w, size_t die) {
    const struct cf_die_fact *d = &w->facts->dies[die];
    return d->health == CF_HEALTH_LOST ? 0 : cf_less(d->total_bytes, cf_world_used(w, die));
}
