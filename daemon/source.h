/* Where the manifest comes from: a file that is read again at every reload, and a copy of the last good one, kept in the state
 * directory, that serves when the file is bad at start. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cf_manifest;
struct fo_err;

enum { PD_MAX_MANIFEST_BYTES = 1 << 20 };

/* What a reading gave. */
struct pd_reading {
    char *text; /* [len], NULL when it could not be read */
    size_t len;
    struct cf_manifest *manifest; /* NULL = bad */
    char *report;                 /* why, as people read it: every mistake with file:line:column. NULL when good or without memory */
};

/* Reads and parses; true = good. Free with pd_reading_done, whatever came. */
bool pd_source_read(const char *path, struct pd_reading *ret);
/* The same for text that is in memory; `path` is what messages call it. Takes `text` over (heap). */
bool pd_source_parse(const char *path, char *text, size_t len, struct pd_reading *ret);
void pd_reading_done(struct pd_reading *r);

/* STATE_DIRECTORY as systemd sets it (the first, when there are several), else /var/lib/pantheon when it exists; NULL = nowhere. */
const char *pd_source_state_dir(void);

/* The copy that was kept of `path`: *ret_text (heap) and the generation it had. FO_ENOENT when there is none, or it is of another file. */
int pd_source_last(const char *state_dir, const char *path, char **ret_text, size_t *ret_len, uint64_t *ret_generation, struct fo_err *e);
/* Keeps `text` as the last accepted one: a temporary file, renamed. A disk that is full or read-only is an error like any other; what
 * was kept before stays. */
int pd_source_keep(const char *state_dir, const char *path, const char *text, size_t len, uint64_t generation, struct fo_err *e);
