/* Memory as the planner imagines it: what each die and the host hold while steps are tried. Sums saturate, so that hostile figures only
 * ever make things look full. Pure values; the arrays live in the region given at the start. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct cf_facts;
struct cf_part;
struct fo_err;
struct fo_region;

struct cf_world {
    const struct cf_facts *facts;
    uint64_t *ours;     /* [facts->n_dies] */
    uint64_t available; /* of the host */
};

/* As the facts say. FO_ENOMEM. */
int cf_world_init(struct cf_world *w, const struct cf_facts *f, struct fo_region *r, struct fo_err *e);
void cf_world_copy(struct cf_world *to, const struct cf_world *from); /* of the same facts */

/* What an instance holds, given back or taken. Parts on dies that are not in the facts count nowhere. */
void cf_world_give(struct cf_world *w, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes);
void cf_world_take(struct cf_world *w, const struct cf_part *parts, size_t n_parts, uint64_t host_bytes);

/* Bytes of ours, others and the reserve on a die; and what is left of its budget (0 when it is lost). */
uint64_t cf_world_used(const struct cf_world *w, size_t die);
uint64_t cf_world_room(const struct cf_world *w, size_t die);

uint64_t cf_part_bytes(const struct cf_part *p);
/* Index of a die, or n_dies. */
size_t cf_die_find(const struct cf_facts *f, const char *name);

static inline uint64_t cf_add(uint64_t a, uint64_t b) {
    uint64_t v;
    return __builtin_add_overflow(a, b, &v) ? UINT64_MAX : v;
}
static inline uint64_t cf_less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}
