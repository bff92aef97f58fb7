/* Which files were held against their sha256, and what came of it: so that a model of 40 GB is not read from end to end at every start. A file is
 * known by its identity (device, inode, size, mtime of all its shards); one that was written to is another one and is checked again.
 * What was right is kept in the state directory, what was wrong as long as the process lives. Main thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cf_model;
struct pd_verified_row;

struct pd_verified {
    char *file; /* NULL = kept nowhere */
    struct pd_verified_row *rows;
    size_t n;
};

/* Reads what is kept there; a file that is absent or broken says nothing. `state_dir` NULL = nowhere. */
void pd_verified_init(struct pd_verified *v, const char *state_dir);
void pd_verified_done(struct pd_verified *v);

enum pd_verdict_of_file { PD_FILE_UNKNOWN, PD_FILE_RIGHT, PD_FILE_WRONG };
/* Of a file of this identity and the model's sums; *ret_error (may be NULL) says of a wrong one why: valid until the next note. */
enum pd_verdict_of_file pd_verified_look(const struct pd_verified *v, const struct cf_model *m, uint64_t identity, const char **ret_error);
/* `error` NULL = it is right. */
void pd_verified_note(struct pd_verified *v, const struct cf_model *m, uint64_t identity, const char *error);
