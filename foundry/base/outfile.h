/* A file that appears whole or not at all: written under another name in the same directory, synchronised, and renamed at the end. Until
 * then nothing stands under its own name, or what stood there before. One owner, any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_outfile;

/* Starts `path`, which will need about need_bytes (0 = unknown). FO_EINVAL when something stands there that is no regular file, or a file
 * and `replace` is false; FO_ELIMIT with need and have when the file system has less room; FO_ENOENT, FO_EACCES and FO_EIO as the system
 * says. Symbolic links are followed: the file they name is replaced, not the link. */
int fo_outfile_open(const char *path, bool replace, uint64_t need_bytes, struct fo_outfile **ret, struct fo_err *e);

/* All of it, or FO_EIO (a full disk says so). */
int fo_outfile_write(struct fo_outfile *f, const void *bytes, size_t n, struct fo_err *e);

/* Synchronises and renames; frees f in any case. On failure nothing is left behind. With `replace` false a file that has appeared at
 * `path` meanwhile stays, and this fails. */
int fo_outfile_commit(struct fo_outfile *f, struct fo_err *e);

/* Removes what was written and frees; NULL is allowed. */
void fo_outfile_drop(struct fo_outfile *f);
