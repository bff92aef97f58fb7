/* Where the manifest comes from: a file, and those that it includes, all read again at every reload; and a copy of the last good ones, kept in
 * the state directory, that serves when they are bad at start. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cf_manifest;
struct cf_text;
struct fo_err;

enum { PD_MAX_MANIFEST_BYTES = 1 << 20, PD_MAX_INCLUDED = 256 }; /* bytes of all files together */

/* The manifest's own text, then those of its included files in order, each with its path. Names and texts are on the heap. */
struct pd_texts {
    struct cf_text *list; /* [n] */
    size_t n;
};
void pd_texts_done(struct pd_texts *t);
bool pd_texts_equal(const struct pd_texts *a, const struct pd_texts *b);

/* What a reading gave. */
struct pd_reading {
    struct pd_texts texts;        /* what could be read */
    struct cf_manifest *manifest; /* NULL = bad */
    char *report;                 /* why, as people read it: every mistake with file:line:column. NULL when good or without memory */
};

/* Reads the file and what it includes, and parses them; true = good. Patterns that are relative start at the file's folder. Free with pd_reading_done,
 * whatever came. */
bool pd_source_read(const char *path, struct pd_reading *ret);
/* The same for texts that are in memory, at least one; nothing is read. Takes them over. */
bool pd_source_parse(struct pd_texts *texts, struct pd_reading *ret);
void pd_reading_done(struct pd_reading *r);

/* STATE_DIRECTORY as systemd sets it (the first, when there are several), else /var/lib/pantheon when it exists; NULL = nowhere. */
const char *pd_source_state_dir(void);

/* The copy that was kept of `path`, with all that it included, and the generation it had. FO_ENOENT when there is none, or it is of another file. */
int pd_source_last(const char *state_dir, const char *path, struct pd_texts *ret, uint64_t *ret_generation, struct fo_err *e);
/* Keeps the texts as the last accepted ones: a temporary file, renamed. A disk that is full or read-only is an error like any other; what
 * was kept before stays. */
int pd_source_keep(const char *state_dir, const struct pd_texts *texts, uint64_t generation, struct fo_err *e);
