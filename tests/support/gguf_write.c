/* GGUF writer for tests: see gguf_write.h; the format is drawn in foundry/gguf.c. */
#include "tests/support/gguf_write.h"

#include <string.h>

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
    *w = (struct test_gguf){ .version = version, .alignment = 32 };
    fo_buf_init(&w->kv, CAP_BYTES);
    fo_buf_init(&w->infos, CAP_BYTES);
    fo_buf_init(&w->data, CAP_BYTES);
}

static void scalar(struct test_gguf *w, const char *key, enum fo_gguf_type type, const void *v, size_t bytes) {
    test_put_str(&w->kv, key);
    test_put_u32(&w->kv, type);
    fo_buf_append(&w->kv, v, bytes);
    w->n_kv++;
}

static void array(struct test_gguf *w, const char *key, enum fo_gguf_type elem, size_t n) {
    uint32_t type = elem;
    scalar(w, key, FO_GGUF_ARRAY, &type, sizeof type);
    test_put_u64(&w->kv, n);
}

void test_gguf_u8(struct test_gguf *w, const char *key, uint8_t v) {
    scalar(w, key, FO_GGUF_U8, &v, sizeof v);
}

void test_gguf_i8(struct test_gguf *w, const char *key, int8_t v) {
    scalar(w, key, FO_GGUF_I8, &v, sizeof v);
}

void test_gguf_u16(struct test_gguf *w, const char *key, uint16_t v) {
    scalar(w, key, FO_GGUF_U16, &v, sizeof v);
}

void test_gguf_i16(struct test_gguf *w, const char *key, int16_t v) {
    scalar(w, key, FO_GGUF_I16, &v, sizeof v);
}

void test_gguf_u32(struct test_gguf *w, const char *key, uint32_t v) {
    scalar(w, key, FO_GGUF_U32, &v, sizeof v);
    if (strcmp(key, "general.alignment") == 0) w->alignment = v;
}

void test_gguf_i32(struct test_gguf *w, const char *key, int32_t v) {
    scalar(w, key, FO_GGUF_I32, &v, sizeof v);
}

void test_gguf_u64(struct test_gguf *w, const char *key, uint64_t v) {
    scalar(w, key, FO_GGUF_U64, &v, sizeof v);
}

void test_gguf_i64(struct test_gguf *w, const char *key, int64_t v) {
    scalar(w, key, FO_GGUF_I64, &v, sizeof v);
}

void test_gguf_f32(struct test_gguf *w, const char *key, float v) {
    scalar(w, key, FO_GGUF_F32, &v, sizeof v);
}

void test_gguf_f64(struct test_gguf *w, const char *key, double v) {
    scalar(w, key, FO_GGUF_F64, &v, sizeof v);
}

void test_gguf_bool(struct test_gguf *w, const char *key, bool v) {
    uint8_t byte = v;
    scalar(w, key, FO_GGUF_BOOL, &byte, sizeof byte);
}

void test_gguf_str(struct test_gguf *w, const char *key, const char *v) {
    scalar(w, key, FO_GGUF_STRING, "", 0);
    test_put_str(&w->kv, v);
}

void test_gguf_strs(struct test_gguf *w, const char *key, const char *const *v, size_t n) {
    array(w, key, FO_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) test_put_str(&w->kv, v[i]);
}

void test_gguf_i32s(struct test_gguf *w, const char *key, const int32_t *v, size_t n) {
    array(w, key, FO_GGUF_I32, n);
    fo_buf_append(&w->kv, v, n * sizeof *v);
}

void test_gguf_f32s(struct test_gguf *w, const char *key, const float *v, size_t n) {
    array(w, key, FO_GGUF_F32, n);
    fo_buf_append(&w->kv, v, n * sizeof *v);
}

static void pad(struct fo_buf *b, size_t alignment) {
    while (!b->failed && b->len % alignment) fo_buf_putc(b, 0);
}

void test_gguf_data(struct test_gguf *w, const void *data, size_t bytes) {
    pad(&w->data, w->alignment);
    fo_buf_append(&w->data, data, bytes);
}

void test_gguf_tensor_at(struct test_gguf *w, const char *name, uint32_t type, const uint64_t *dims, uint32_t n_dims, uint64_t offset) {
    test_put_str(&w->infos, name);
    test_put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) test_put_u64(&w->infos, dims[i]);
    test_put_u32(&w->infos, type);
    test_put_u64(&w->infos, offset);
    w->n_tensors++;
}

void test_gguf_tensor(struct test_gguf *w, const char *name, uint32_t type, const uint64_t *dims, uint32_t n_dims, const void *data,
                      size_t bytes) {
    pad(&w->data, w->alignment);
    test_gguf_tensor_at(w, name, type, dims, n_dims, w->data.len);
    fo_buf_append(&w->data, data, bytes);
}

bool test_gguf_finish(struct test_gguf *w, struct fo_buf *ret) {
    fo_buf_init(ret, CAP_BYTES);
    fo_buf_puts(ret, "GGUF");
    test_put_u32(ret, w->version);
    test_put_u64(ret, w->n_tensors);
    test_put_u64(ret, w->n_kv);
    fo_buf_append(ret, w->kv.data, w->kv.len);
    fo_buf_append(ret, w->infos.data, w->infos.len);
    if (w->n_tensors) pad(ret, w->alignment);
    fo_buf_append(ret, w->data.data, w->data.len);
    bool ok = !ret->failed && !w->kv.failed && !w->infos.failed && !w->data.failed;
    fo_buf_done(&w->kv);
    fo_buf_done(&w->infos);
    fo_buf_done(&w->data);
    if (!ok) fo_buf_done(ret);
    return ok;
}
