/* GGUF writer for tests: see gguf_write.h; the format is drawn in foundry/gguf.c. */
#include "tests/support/gguf_write.h"

#include <string.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"

enum { CAP_BYTES = 1 << 28 };

void test_put_u32(struct fo_buf *b, uint32_t v) {
    fo_buf_append(b, &v, sizeof v);
}

void test_put_u64(struct fo_buf *b, uint64_t v) {
    fo_buf_append(b, &v, sizeof v);
}

void test_put_str(struct fo_buf *b, const char *s) {
    test_put_u64(b, strlen(s));
    fo_buf_puts(b, s);
}

void test_gguf_init(struct test_gguf *w, uint32_t version) {
    *w = (struct test_gguf){ .version = version, .alignment = FO_GGUF_ALIGNMENT };
    fo_gguf_writer_init(&w->w, CAP_BYTES);
    fo_buf_init(&w->data, CAP_BYTES);
}

void test_gguf_u8(struct test_gguf *w, const char *key, uint8_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_U8, &v);
}

void test_gguf_i8(struct test_gguf *w, const char *key, int8_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_I8, &v);
}

void test_gguf_u16(struct test_gguf *w, const char *key, uint16_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_U16, &v);
}

void test_gguf_i16(struct test_gguf *w, const char *key, int16_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_I16, &v);
}

void test_gguf_u32(struct test_gguf *w, const char *key, uint32_t v) {
    fo_gguf_put_u32(&w->w, key, v);
    if (strcmp(key, "general.alignment") == 0) w->alignment = v;
}

void test_gguf_i32(struct test_gguf *w, const char *key, int32_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_I32, &v);
}

void test_gguf_u64(struct test_gguf *w, const char *key, uint64_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_U64, &v);
}

void test_gguf_i64(struct test_gguf *w, const char *key, int64_t v) {
    fo_gguf_put(&w->w, key, FO_GGUF_I64, &v);
}

void test_gguf_f64(struct test_gguf *w, const char *key, double v) {
    fo_gguf_put(&w->w, key, FO_GGUF_F64, &v);
}

void test_gguf_f32(struct test_gguf *w, const char *key, float v) {
    fo_gguf_put_f32(&w->w, key, v);
}

void test_gguf_bool(struct test_gguf *w, const char *key, bool v) {
    fo_gguf_put_bool(&w->w, key, v);
}

void test_gguf_str(struct test_gguf *w, const char *key, const char *v) {
    fo_gguf_put_str(&w->w, key, (struct fo_str){ v, strlen(v) });
}

void test_gguf_strs(struct test_gguf *w, const char *key, const char *const *v, size_t n) {
    fo_gguf_put_array(&w->w, key, FO_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) fo_gguf_put_elem(&w->w, (struct fo_str){ v[i], strlen(v[i]) });
}

void test_gguf_i32s(struct test_gguf *w, const char *key, const int32_t *v, size_t n) {
    fo_gguf_put_i32s(&w->w, key, v, n);
}

void test_gguf_f32s(struct test_gguf *w, const char *key, const float *v, size_t n) {
    fo_gguf_put_f32s(&w->w, key, v, n);
}

static void pad(struct fo_buf *b, size_t alignment) {
    while (!b->failed && b->len % alignment) fo_buf_putc(b, 0);
}

void test_gguf_data(struct test_gguf *w, const void *data, size_t bytes) {
    pad(&w->data, w->alignment);
    fo_buf_append(&w->data, data, bytes);
}

void test_gguf_tensor_at(struct test_gguf *w, const char *name, uint32_t type, const uint64_t *dims, uint32_t n_dims, uint64_t offset) {
    fo_gguf_put_tensor(&w->w, (struct fo_str){ name, strlen(name) }, type, dims, n_dims, offset);
}

void test_gguf_tensor(struct test_gguf *w, const char *name, uint32_t type, const uint64_t *dims, uint32_t n_dims, const void *data,
                      size_t bytes) {
    pad(&w->data, w->alignment);
    test_gguf_tensor_at(w, name, type, dims, n_dims, w->data.len);
    fo_buf_append(&w->data, data, bytes);
}

bool test_gguf_finish(struct test_gguf *w, struct fo_buf *ret) {
    struct fo_err e;
    fo_buf_init(ret, CAP_BYTES);
    bool ok = fo_gguf_header(&w->w, w->version, w->alignment, ret, &e) == FO_OK;
    fo_buf_append(ret, w->data.data, w->data.len);
    ok = ok && !ret->failed && !w->data.failed;
    fo_gguf_writer_done(&w->w);
    fo_buf_done(&w->data);
    if (!ok) fo_buf_done(ret);
    return ok;
}
