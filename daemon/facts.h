/* Observing: what the dies, the host, the engine and the loop's own memory say now, as one value for the planner and the pages. Asks
 * each die for its free memory and each copy for its status; waits for nothing. Main thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cf_facts;
struct cf_manifest;
struct fo_err;
struct pd_instance;
struct pd_world;
struct pn_engine;

/* Notes in the world what was found out: dies lost and back, copies that failed. *ret_changed (may be NULL) tells whether any of that
 * is new. Cheap: for the loop's tick. */
void pd_facts_look(struct pd_world *w, struct pn_engine *en, bool *ret_changed);

/* Host memory that copies were promised: what they map from files, and the rest. */
struct pd_held {
    uint64_t anonymous_bytes, mapped_bytes;
};
/* Of all copies but one (NULL = all). */
struct pd_held pd_facts_held(const struct pd_world *w, bool no_mmap, const struct pd_instance *but);
/* How much of that the kernel calls available still: page cache, and what no token has touched yet. Any thread. */
uint64_t pd_facts_promised(const struct pd_held *h);

/* The facts, after a look. `no_mmap`: weights are anonymous memory, which the kernel does not call available. Free with
 * cf_facts_free. FO_ENOMEM. */
int pd_facts_gather(struct pd_world *w, struct pn_engine *en, bool no_mmap, uint64_t now_ms, struct cf_facts **ret, struct fo_err *e);
