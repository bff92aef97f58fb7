/* Who gives way: models that are loaded on demand, to one that is asked for and to those that are declared `loaded`; and to nobody, after
 * their `ttl`. Pure; a part of one plan. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct cf_candidate;
struct cf_item;
struct cf_place;
struct cf_planner;
struct cf_want;
struct fo_region;

/* Room for n of them; NULL without memory. */
struct cf_candidate *cf_evict_candidates(struct fo_region *r, size_t n);

/* Those that have been idle for their `ttl` are judged to go. */
void cf_evict_idle(struct cf_planner *p);

/* Whether a copy of the model runs, or will when the steps so far have run. */
bool cf_evict_up(const struct cf_planner *p, const struct cf_want *w);

/* Makes room for an item that has none: emits unloads, after which *ret is a place for it in both worlds, which try_now and try_later are. Or
 * nothing is emitted, and it waits for one that was loaded just before (ruled, its place reserved; ret->n_parts is 0). False: it has to do
 * without. */
bool cf_evict(struct cf_planner *p, struct cf_item *it, struct cf_place *ret);

/* An item that found no room at the end. */
enum cf_evictable {
    CF_E_TURN,  /* there will be, when others that give way have had theirs */
    CF_E_NONE,  /* not with all gone that may be: *ret has need and have */
    CF_E_PINNED /* as before, but it would fit without those that may not */
};
enum cf_evictable cf_evict_judge(struct cf_planner *p, const struct cf_item *it, struct cf_place *ret);
