/* The names of a model's files when there are several: NAME-00001-of-00003.gguf. Names alone; nothing is opened. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define FO_SHARD_END "-00001-of-00001.gguf" /* what such a name ends in, with other numbers */
enum { FO_SHARD_END_BYTES = sizeof FO_SHARD_END - 1 };

/* Whether a path ends as a shard's does: its place, counted from 0, and how many there are. */
bool fo_shard_name(const char *path, uint32_t *ret_no, uint32_t *ret_n);
/* The path of another shard, in place of one; free it. NULL: no memory. */
char *fo_shard_path(const char *path, uint32_t no, uint32_t n);
