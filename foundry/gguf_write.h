/* Writes GGUF metadata and tensor entries; the format is drawn in gguf.c. A writer collects records in growing buffers: memory is the
 * caller's concern through cap_bytes, failure is sticky (fo_buf), and fo_gguf_header says so at the end. Keys and names are not
 * checked against each other: the reader is the judge of a file. One owner, no locks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/buf.h"
#include "foundry/gguf.h"

struct fo_err;

enum { FO_GGUF_ALIGNMENT = 32, FO_GGUF_VERSION = 3 };

struct fo_gguf_writer {
    struct fo_buf kv, infos;
    uint64_t n_kv, n_tensors;
};

/* Each of the two buffers holds at most cap_bytes. */
void fo_gguf_writer_init(struct fo_gguf_writer *w, size_t cap_bytes);
void fo_gguf_writer_done(struct fo_gguf_writer *w); /* frees; may be initialised again */

/* A scalar of any type but string and array: `v` is its bytes, little endian, of the type's size. */
void fo_gguf_put(struct fo_gguf_writer *w, const char *key, enum fo_gguf_type type, const void *v);
void fo_gguf_put_u32(struct fo_gguf_writer *w, const char *key, uint32_t v);
void fo_gguf_put_f32(struct fo_gguf_writer *w, const char *key, float v);
void fo_gguf_put_bool(struct fo_gguf_writer *w, const char *key, bool v);
void fo_gguf_put_str(struct fo_gguf_writer *w, const char *key, struct fo_str v);
/* The head of an array of n elements; for strings fo_gguf_put_elem follows n times, for numbers the n elements are appended to w->kv. */
void fo_gguf_put_array(struct fo_gguf_writer *w, const char *key, enum fo_gguf_type elem, uint64_t n);
void fo_gguf_put_elem(struct fo_gguf_writer *w, struct fo_str v);
void fo_gguf_put_i32s(struct fo_gguf_writer *w, const char *key, const int32_t *v, size_t n);
void fo_gguf_put_f32s(struct fo_gguf_writer *w, const char *key, const float *v, size_t n);
/* An entry of another file, as it stands there. */
void fo_gguf_put_kv(struct fo_gguf_writer *w, const struct fo_gguf_kv *kv);

/* A tensor's entry: ne[n_dims], the fastest first; offset counts from the start of the data. */
void fo_gguf_put_tensor(struct fo_gguf_writer *w, struct fo_str name, uint32_t type, const uint64_t *ne, uint32_t n_dims, uint64_t offset);

/* Appends everything before the data to `out`: magic, version, counts, records, and zeros up to the alignment (not when there is no
 * tensor). FO_ENOMEM when a buffer failed on the way. */
int fo_gguf_header(const struct fo_gguf_writer *w, uint32_t version, uint64_t alignment, struct fo_buf *out, struct fo_err *e);
