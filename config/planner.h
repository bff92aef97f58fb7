/* What the planner's files share: wants against instances, the imagined worlds, and what both do to them (plan.c, evict.c). See plan.c for
 * the story. One plan, one owner; nobody else includes this. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/judge.h"
#include "config/place.h"
#include "config/plan.h"
#include "config/world.h"

struct cf_candidate;
struct fo_region;

struct cf_want {
    const struct cf_model *m;
    const struct cf_history *history; /* or NULL */
    bool declared;
    struct cf_verdict *verdict;
};

/* One copy that has to be loaded, or reloaded from `old`. */
struct cf_item {
    const struct cf_want *w;
    int64_t replica;
    size_t order, old; /* of the want; index of the instance, or n_instances */
    const struct cf_estimate *est;
    const char *why;
    const char *moves; /* what is there has to go first: why it waits; NULL */
    bool shrinks, done;
    bool extra;    /* another copy of what is loaded on demand: goes where there is room, and nobody makes some for it */
    bool emitted;  /* has its step */
    bool reserved; /* has its place in `later`, and not now */
};

struct cf_planner {
    const struct cf_manifest *m;
    const struct cf_facts *f;
    struct cf_plan *plan;
    struct fo_region *region; /* what the plan keeps */
    bool failed;              /* no memory: found once, told at the end */
    struct cf_want *wants;
    size_t n_wants, n_items;
    struct cf_item *items;
    struct cf_judgement *judged;  /* [n_instances] */
    const struct cf_want **owner; /* [n_instances] */
    bool *moved;                  /* [n_instances] its reload is among the steps */
    struct cf_world now, later, try_now, try_later;
    struct cf_placer placer;
    struct cf_candidate *candidates; /* [one an instance and one a copy], evict.c's */
};

__attribute__((format(printf, 2, 3))) char *cf_planner_text(struct cf_planner *p, const char *fmt, ...);
/* The gravest verdict on a model stands, of equals the first. */
void cf_planner_rule(struct cf_verdict *v, enum cf_verdict_kind kind, char *why);
struct cf_want *cf_planner_want(struct cf_planner *p, const char *name); /* NULL = none */
/* The worlds as they are for one item, into try_now and try_later: without what it would free itself. */
void cf_planner_imagine(struct cf_planner *p, const struct cf_item *it);
/* Places an item where there is room in try_later, or in both. */
void cf_planner_place(struct cf_planner *p, const struct cf_item *it, bool both, bool trust, struct cf_place *ret);
/* Its place in try_later is kept for it, though it does not go there now. */
void cf_planner_reserve(struct cf_planner *p, struct cf_item *it, const struct cf_place *got);
/* Emits the unload of an instance, in both worlds. */
void cf_planner_unload(struct cf_planner *p, size_t instance, const char *why);
/* Why an item must not go now, though there may be room: it stays in its place of the order. NULL = it may. */
char *cf_planner_waits(struct cf_planner *p, const struct cf_item *it);
/* The plan is looked at again then. */
void cf_planner_look_at(struct cf_planner *p, uint64_t at_ms);
/* Whether it shall be there at all: neither declared absent nor held. */
bool cf_planner_is_wanted(const struct cf_want *w);
/* The steps that fetch files, in front of all others; after the instances were judged (files.c). */
void cf_planner_fetch(struct cf_planner *p, struct fo_region *scratch);
/* Rules what a model waits for whose file is not there yet, or not checked. False = its file is no matter. */
bool cf_planner_waits_for_file(struct cf_planner *p, struct cf_want *w);
