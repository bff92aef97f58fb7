/* Each tick: what the host and each die have free becomes a level, and the copies of models are told theirs and how much of the host's memory they
 * may still take. Main thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cf_manifest;
struct fo_buf;
struct pd_app;
struct pd_call;
struct pd_world;
struct pn_budget;
struct pn_model_info;
struct pn_served;
struct pn_served_status;

/* Behind pd_facts_look, whose readings of dies it takes. Looks at every call while requests run or memory is short, else every two seconds: an idle daemon
 * costs nothing. True when a level is another one, which pages show. Each change is an event, and a line of
 * the log, with its numbers; so is each rung of a model. */
bool pd_pressure_look(struct pd_app *app, struct pd_world *w, const struct cf_manifest *m, uint64_t now_ms);

/* What the rungs in force make other than declared, "kv=q4_0, max_concurrent=1"; "" = nothing. Any thread. */
void pd_pressure_effects(const struct pn_model_info *info, const struct pn_served_status *st, char *ret, size_t size);
/* Of a request that was admitted: its need of KV for the log, and, when rungs touch its answer, the header that says so. Any thread. */
void pd_pressure_note(struct pd_call *c, const struct pn_served *s, const struct pn_budget *budget);

/* For people: where memory is short, the highest level first, "memory tight on host and s1, watch on s0"; "" = nowhere. */
void pd_pressure_text(const struct pd_world *w, char *ret, size_t size);
