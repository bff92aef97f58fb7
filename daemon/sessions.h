/* Sessions on disk, of models with `save_on_unload`: what a copy of one keeps when it is unloaded is written out, and read back when it is loaded
 * again. A file a text; who it belongs to and what it goes with stands in it, and its name is made of hashes alone. What is written is
 * bounded by a quota and by time, most recently used first, and nothing that goes wrong with it keeps a model from leaving or from serving: an event
 * says so. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cf_manifest;
struct pd_app;
struct pn_served;

enum { PD_SESSIONS_SAVE_MS = 20000 /* longest that saving keeps a model from leaving, or the daemon from ending */ };

/* Writes out what it keeps until deadline_ms (fo_now_ms), when its newest declaration says so. It drains, or nobody asks it any more. */
void pd_sessions_save(struct pd_app *app, struct pn_served *s, uint64_t deadline_ms);
/* As pn_engine_on_leave wants it; ctx is the app. */
void pd_sessions_leave(void *app, struct pn_served *s);
/* All that are still there, when the daemon ends. */
void pd_sessions_save_all(struct pd_app *app);

/* Of a model that wants it (save_on_unload): reads back what fits its KV, some seconds at most. What goes with something else by now, or is damaged, is
 * deleted. */
void pd_sessions_restore(struct pd_app *app, struct pn_served *s, bool wants);

/* Deletes what there is on disk of a session of a model; whether there was anything. */
bool pd_sessions_forget(struct pd_app *app, const char *model, const char *tenant, const char *session);
