/* Writes whole GGUF files for tests, well-formed unless told otherwise: foundry/gguf_write.h with the data beside it. One owner. Running out of memory fails test_gguf_finish. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/buf.h"
#include "foundry/dtype.h"
#include "foundry/gguf_write.h"

struct test_gguf {
    uint32_t version;
    uint64_t alignment;
    struct fo_gguf_writer w;
    struct fo_buf data;
};

void test_gguf_init(struct test_gguf *w, uint32_t version);

void test_gguf_u8(struct test_gguf *w, const char *key, uint8_t v);
void test_gguf_i8(struct test_gguf *w, const char *key, int8_t v);
void test_gguf_u16(struct test_gguf *w, const char *key, uint16_t v);
void test_gguf_i16(struct test_gguf *w, const char *key, int16_t v);
void test_gguf_u32(struct test_gguf *w, const char *key, uint32_t v); /* general.alignment takes effect for what follows */
void test_gguf_i32(struct test_gguf *w, const char *key, int32_t v);
void test_gguf_u64(struct test_gguf *w, const char *key, uint64_t v);
void test_gguf_i64(struct test_gguf *w, const char *key, int64_t v);
void test_gguf_f32(struct test_gguf *w, const char *key, float v);
void test_gguf_f64(struct test_gguf *w, const char *key, double v);
void test_gguf_bool(struct test_gguf *w, const char *key, bool v);
void test_gguf_str(struct test_gguf *w, const char *key, const char *v);
void test_gguf_strs(struct test_gguf *w, const char *key, const char *const *v, size_t n);
void test_gguf_i32s(struct test_gguf *w, const char *key, const int32_t *v, size_t n);
void test_gguf_f32s(struct test_gguf *w, const char *key, const float *v, size_t n);

/* A tensor with its data, at the next aligned offset; dims[0] is the fastest. */
void test_gguf_tensor(struct test_gguf *w, const char *name, uint32_t type, const uint64_t *dims, uint32_t n_dims, const void *data,
                      size_t bytes);
/* An entry alone, at any offset; the caller adds data as it likes. */
void test_gguf_tensor_at(struct test_gguf *w, const char *name, uint32_t type, const uint64_t *dims, uint32_t n_dims, uint64_t offset);
/* Data at the next aligned place. */
void test_gguf_data(struct test_gguf *w, const void *data, size_t bytes);

/* Puts the file into *ret (fo_buf_done it) and empties the writer. False when memory ran out: *ret is empty then. */
bool test_gguf_finish(struct test_gguf *w, struct fo_buf *ret);

/* The pieces, for files that are wrong on purpose. */
void test_put_u32(struct fo_buf *b, uint32_t v);
void test_put_u64(struct fo_buf *b, uint64_t v);
void test_put_str(struct fo_buf *b, const char *s); /* u64 length, then the bytes */
