/* What the loop knows and nobody else writes: dies, instances of models, and what is remembered of a model beyond its instances. Main
 * thread only, but that the loader uses the devices which its job names. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/facts.h"
#include "daemon/transfer.h"
#include "engine/mem/pressure.h"

struct fo_device;
struct fo_err;

struct pd_die {
    char name[64];
    struct cf_die decl;       /* as it was opened: kind, address, memory, script; its texts are this die's own */
    struct fo_device *dev;
    uint64_t reserve_bytes;
    bool host, wanted;        /* wanted: in the manifest (or it names none) */
    bool lost;
    char reason[128];
    uint64_t total_bytes, free_bytes; /* as its driver said when it was looked at last; 0 of a host die */
    struct pn_pressure pressure;      /* of a host die: the host's, in the world */
};

/* A copy of a model in the engine, or on its way in or out. */
struct pd_instance {
    char *name;
    int64_t replica;
    uint64_t generation;
    enum cf_instance_state state;
    struct cf_model *spec;
    int64_t concurrent_room;
    bool ad_hoc;
    char reason[384]; /* of CF_I_FAILED */
    const char *chat_word;   /* CF_I_READY: whether it can chat, in a word (static; "Template" = yes), */
    char chat_why[384];      /* and why not */
    struct cf_part *parts;
    size_t n_parts;
    uint64_t host_bytes;
    uint64_t loaded_at_ms, used_at_ms; /* used: a request ran or waited there, as far as the loop has looked; 0 = never */
    uint64_t requests;     /* that it had when the loop looked */
    bool mourned;          /* its failure has been counted */
    enum pn_level level;   /* of memory, as it was told last */
};

struct pd_history {
    char *name;
    struct cf_model *ad_hoc; /* NULL = not wanted so */
    bool admin_unloaded;
    uint32_t failures;        /* in a row, up to now */
    uint32_t streak;          /* as failures, but a good load does not end it, only good service does */
    uint64_t retry_at_ms;
    bool retry_seen;          /* the loop has looked since that time came */
    uint64_t served_since_ms; /* of the last good load: failures are forgotten after a while */
    char last_error[384];
    uint64_t loads, load_failures;
    uint64_t wanted_at_ms, asked_at_ms; /* requests asked for it and it was not loaded: the first and the last of them; 0 = nobody waits */
    uint32_t fetch_failures; /* of its files, in a row; why, and when the next try is: */
    enum pd_fetch_end fetch_end;
    uint64_t fetch_retry_at_ms;
    char fetch_error[384];
    uint64_t load_ms, used_at_ms;       /* what its last load took; its last load, or the end of its last request. 0 = none yet */
};

struct pd_world {
    struct pd_die *dies;
    size_t n_dies;
    struct pd_instance **instances;
    size_t n_instances;
    struct pd_history **histories;
    size_t n_histories;
    struct pd_estimate **estimates; /* estimate.h */
    size_t n_estimates;
    struct cf_file *files; /* files.h: as they were looked at last; their texts are the manifest's, the histories' */
    size_t n_files;
    struct pn_pressure pressure; /* of the host */
    uint64_t pressure_look_ms;   /* when it and the dies were judged last */
    int threads;     /* for devices */
    const char *isa;
};

void pd_world_done(struct pd_world *w); /* no model uses a die any more */

/* Opens the manifest's dies, or all that the build finds when it names none; those that are open already stay, those that are not
 * named any more stay until pd_world_close_dies. A die whose kind, address, memory or script changed stays as it was: *ret_restart then says what needs a
 * restart ("" = nothing). A die that cannot be opened is an error that names it; what was open stays open. */
int pd_world_set_dies(struct pd_world *w, const struct cf_manifest *m, char *ret_restart, size_t restart_size, struct fo_err *e);
/* Closes the dies that the manifest does not name and no instance is on. Not while the loader is at work: it may be on its way to one. */
void pd_world_close_dies(struct pd_world *w);
struct pd_die *pd_world_die(struct pd_world *w, const char *name); /* NULL = none */

struct pd_instance *pd_world_instance(struct pd_world *w, const char *name, int64_t replica); /* NULL = none */
/* A new one without spec and parts. NULL without memory. */
struct pd_instance *pd_world_add(struct pd_world *w, const char *name, int64_t replica);
void pd_world_remove(struct pd_world *w, struct pd_instance *i);

struct pd_history *pd_world_find_history(struct pd_world *w, const char *name); /* NULL = none */
struct pd_history *pd_world_history(struct pd_world *w, const char *name);      /* made when there is none; NULL without memory */
/* Forgets histories that say nothing: no wish, no failure, not declared. */
void pd_world_forget(struct pd_world *w, const struct cf_manifest *m);
