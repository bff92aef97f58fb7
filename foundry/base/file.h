/* Files: reading a small one whole, and mapping a big one that somebody may change under us.
 *
 * A mapped file that is truncated raises SIGBUS on the next touch. The guard keeps the process alive: the fault handler puts a
 * page of zeros where the file ended, marks the map lost, and execution goes on; whoever owns the map asks fo_map_state between
 * steps and fails what was built on it, with the reason. The handler is installed once per process, on the first map, and passes
 * on every fault that is not ours (the only process-wide state of the library; it cannot be otherwise, a signal has one
 * handler). A thread that reads a map must not block SIGBUS: a blocked fault kills the process.
 *
 * A rewrite in place is seen by the file's mtime, whose grain is a few milliseconds: one within the same tick as the last write
 * before the map goes unseen. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_map;

/* Reads a regular file of at most cap_bytes (files of /proc and /sys too, which claim to be empty). *ret_data is NUL-terminated (not counted in *ret_len); free it with free.
 * FO_ENOENT, FO_EACCES, FO_EIO; FO_ELIMIT with need and have when it is larger. */
int fo_file_read(const char *path, size_t cap_bytes, char **ret_data, size_t *ret_len, struct fo_err *e);

/* Maps a regular file read-only and private. An empty file, a directory or a device is FO_EFORMAT. Any thread. */
int fo_map_open(const char *path, struct fo_map **ret, struct fo_err *e);

/* Unmaps and closes. NULL is allowed. Nobody may read the bytes any more. */
void fo_map_close(struct fo_map *m);

const uint8_t *fo_map_data(const struct fo_map *m); /* [fo_map_size], page aligned */
uint64_t fo_map_size(const struct fo_map *m);
const char *fo_map_path(const struct fo_map *m);

/* FO_OK while the bytes are those that were mapped. FO_ELOST when a touch faulted, or the file was truncated, rewritten in place
 * or written to (size or mtime of the open file differ): what was computed since the last FO_OK cannot be trusted. Replacing the
 * path by rename leaves the mapped bytes alone and is not a loss; see fo_map_replaced. One fstat: cheap enough for every step. */
int fo_map_state(const struct fo_map *m, struct fo_err *e);

/* [p, p + n) of a map will not be read again soon: the memory of its whole pages is given back (they are clean), and a later read fetches
 * them anew. NULL is allowed and does nothing. */
void fo_map_forget(const struct fo_map *m, const void *p, uint64_t n);

/* As fo_map_forget, of the whole map, and the system's own copy of the file is not wanted any more either. */
void fo_map_drop(const struct fo_map *m);

/* True when the path now names another file (other device or inode), or none. */
bool fo_map_replaced(const struct fo_map *m);
