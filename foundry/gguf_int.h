/* For foundry's own readers alone: how one description is put together from several files. After an error of any of these the fo_gguf
 * is good for closing only. One owner, before anybody else sees it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/region.h"
#include "foundry/gguf.h"

struct fo_err;
struct fo_map;

/* The most files of one model. */
enum { FO_MAX_FILES = 512 };

/* g owns the map from here on, also when this fails (FO_ENOMEM). */
int fo_gguf_take_map(struct fo_gguf *g, struct fo_map *map, struct fo_err *e);
/* g owns what lies in the region (names, values) and the bytes that it was parsed from; the caller may go on taking from the region that is
 * returned. `format` as fo_gguf_format says it: static. */
struct fo_region *fo_gguf_keep(struct fo_gguf *g, struct fo_region *region, char *meta, const char *format);
/* Adds n tensors, every field set and checked. FO_EFORMAT when there is one of that name, naming the tensor, `where` (the file that they
 * are in) and the file of the other; FO_ELIMIT past what one file may hold; FO_ENOMEM. */
int fo_gguf_add(struct fo_gguf *g, const struct fo_gguf_tensor *tensors, size_t n, const char *where, struct fo_err *e);
/* Adds the tensors of an opened file; its metadata is dropped. `part` is gone afterwards, also when this fails. */
int fo_gguf_absorb(struct fo_gguf *g, struct fo_gguf *part, struct fo_err *e);

/* shards.c. What fo_model_open does of one file: `path` is any of its shards. */
int fo_shards_open(const char *path, struct fo_gguf **ret, struct fo_err *e);
