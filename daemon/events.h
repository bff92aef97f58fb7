/* THE table of what can happen: each event's name, the id that the journal has it under, and whether it is bad news. A ring keeps the newest
 * for pages and for those who wait; the log gets each one once, and so does the journal, with fields to find it by. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct pd_app;

enum pd_event_id {
    PD_EV_MANIFEST_ACCEPTED,
    PD_EV_MANIFEST_UNCHANGED,
    PD_EV_MANIFEST_REFUSED,
    PD_EV_MANIFEST_KEPT_SERVES,
    PD_EV_MANIFEST_NOT_KEPT,
    PD_EV_RELOAD_IGNORED,
    PD_EV_ADMIN_RELOAD,
    PD_EV_ADMIN_LOAD,
    PD_EV_ADMIN_UNLOAD,
    PD_EV_ADMIN_PRUNE,
    PD_EV_LOAD_STARTED,
    PD_EV_LOAD_DONE,
    PD_EV_RELOAD_STARTED,
    PD_EV_RELOAD_DONE,
    PD_EV_UNLOAD_STARTED,
    PD_EV_UNLOAD_DONE,
    PD_EV_CHANGED,
    PD_EV_SETTLED,
    PD_EV_ROLLED_BACK,
    PD_EV_ROLLBACK_FAILED,
    PD_EV_FETCH_STARTED,
    PD_EV_FETCH_RESUMED,
    PD_EV_FETCH_DONE,
    PD_EV_FETCH_FAILED,
    PD_EV_MODEL_FAILED,
    PD_EV_MODEL_REFUSED,
    PD_EV_GATE_OVERRIDDEN,
    PD_EV_DIE_LOST,
    PD_EV_DIE_BACK,
    PD_EV_MEMORY_PRESSURE,
    PD_EV_MEMORY_RELIEVED,
    PD_EV_RUNG_APPLIED,
    PD_EV_RUNG_UNDONE,
    PD_EV_SESSIONS_SAVED,
    PD_EV_SESSIONS_NOT_SAVED,
    PD_EV_SESSIONS_RESTORED,
    PD_EV_SESSIONS_NOT_RESTORED,
    PD_EV_SESSION_DROPPED,
    PD_EV_SESSION_OUTDATED,
    PD_EV_KEYS_ACCEPTED,
    PD_EV_KEYS_EXPOSED,
    PD_EV_KEYS_REFUSED,
    PD_EV_TLS_ACCEPTED,
    PD_EV_TLS_EXPIRED,
    PD_EV_TLS_REFUSED,
    PD_N_EVENT_KINDS
};

struct pd_event_kind {
    const char *name;       /* "load_started" */
    const char *message_id; /* the journal's MESSAGE_ID: 32 hexadecimal digits, never changed once released */
    bool bad;               /* a warning in the log */
    const char *doc;
};
const struct pd_event_kind *pd_event_kind(enum pd_event_id id);

/* What happened. */
enum { PD_MAX_EVENTS = 1000, PD_MAX_WHO = 96 };
struct pd_event {
    uint64_t seq;
    int64_t time;         /* seconds since 1970 */
    enum pd_event_id id;
    char model[128];      /* "" = the server */
    char who[PD_MAX_WHO]; /* asked for it; "" = nobody did */
    char text[384];
};

/* Notes an event, logs it, and wakes who waits. `model` and `who` may be NULL. Any thread. */
void pd_app_event(struct pd_app *app, enum pd_event_id id, const char *model, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void pd_app_event_by(struct pd_app *app, enum pd_event_id id, const char *model, const char *who, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Copies the oldest event newer than `after` (of `model` only, unless NULL) to *ret; false = there is none. Any thread. */
bool pd_app_next_event(struct pd_app *app, uint64_t after, const char *model, struct pd_event *ret);

/* The number of the newest event; 0 = none yet. Any thread. */
uint64_t pd_app_last_event(struct pd_app *app);

/* The reference page docs/events.md. */
void pd_events_doc(struct fo_buf *out);
