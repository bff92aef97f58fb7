/* GGUF writer: see gguf_write.h. */
#include "foundry/gguf_write.h"

#include <string.h>

#include "foundry/base/err.h"

static void put_u32(struct fo_buf *b, uint32_t v) {
    fo_buf_append(b, &v, sizeof v);
}

static void put_u64(struct fo_buf *b, uint64_t v) {
    fo_buf_append(b, &v, sizeof v);
}

static void put_str(struct fo_buf *b, struct fo_str s) {
    put_u64(b, s.len);
    if (s.len) fo_buf_append(b, s.s, s.len);
}

static void put_key(struct fo_gguf_writer *w, struct fo_str key, enum fo_gguf_type type) {
    put_str(&w->kv, key);
    put_u32(&w->kv, type);
    w->n_kv++;
}

static struct fo_str str(const char *s) {
    return (struct fo_str){ s, strlen(s) };
}

void fo_gguf_writer_init(struct fo_gguf_writer *w, size_t cap_bytes) {
    *w = (struct fo_gguf_writer){ .n_kv = 0 };
    fo_buf_init(&w->kv, cap_bytes);
    fo_buf_init(&w->infos, cap_bytes);
}

void fo_gguf_writer_done(struct fo_gguf_writer *w) {
    fo_buf_done(&w->kv);
    fo_buf_done(&w->infos);
    w->n_kv = w->n_tensors = 0;
}

void fo_gguf_put(struct fo_gguf_writer *w, const char *key, enum fo_gguf_type type, const void *v) {
    put_key(w, str(key), type);
    fo_buf_append(&w->kv, v, fo_gguf_type_bytes(type));
}

void fo_gguf_put_u32(struct fo_gguf_writer *w, const char *key, uint32_t v) {
    fo_gguf_put(w, key, FO_GGUF_U32, &v);
}

void fo_gguf_put_f32(struct fo_gguf_writer *w, const char *key, float v) {
    fo_gguf_put(w, key, FO_GGUF_F32, &v);
}

void fo_gguf_put_bool(struct fo_gguf_writer *w, const char *key, bool v) {
    uint8_t byte = v;
    fo_gguf_put(w, key, FO_GGUF_BOOL, &byte);
}

void fo_gguf_put_str(struct fo_gguf_writer *w, const char *key, struct fo_str v) {
    put_key(w, str(key), FO_GGUF_STRING);
    put_str(&w->kv, v);
}

void fo_gguf_put_array(struct fo_gguf_writer *w, const char *key, enum fo_gguf_type elem, uint64_t n) {
    put_key(w, str(key), FO_GGUF_ARRAY);
    put_u32(&w->kv, elem);
    put_u64(&w->kv, n);
}

void fo_gguf_put_elem(struct fo_gguf_writer *w, struct fo_str v) {
    put_str(&w->kv, v);
}

void fo_gguf_put_i32s(struct fo_gguf_writer *w, const char *key, const int32_t *v, size_t n) {
    fo_gguf_put_array(w, key, FO_GGUF_I32, n);
    fo_buf_append(&w->kv, v, n * sizeof *v);
}

void fo_gguf_put_f32s(struct fo_gguf_writer *w, const char *key, const float *v, size_t n) {
    fo_gguf_put_array(w, key, FO_GGUF_F32, n);
    fo_buf_append(&w->kv, v, n * sizeof *v);
}

void fo_gguf_put_kv(struct fo_gguf_writer *w, const struct fo_gguf_kv *kv) {
    put_key(w, kv->key, kv->type);
    if (kv->type == FO_GGUF_ARRAY) {
        put_u32(&w->kv, kv->elem);
        put_u64(&w->kv, kv->n);
    }
    fo_buf_append(&w->kv, kv->data, (size_t)kv->bytes);
}

void fo_gguf_put_tensor(struct fo_gguf_writer *w, struct fo_str name, uint32_t type, const uint64_t *ne, uint32_t n_dims, uint64_t offset) {
    put_str(&w->infos, name);
    put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(&w->infos, ne[i]);
    put_u32(&w->infos, type);
    put_u64(&w->infos, offset);
    w->n_tensors++;
}

int fo_gguf_header(const struct fo_gguf_writer *w, uint32_t version, uint64_t alignment, struct fo_buf *out, struct fo_err *e) {
    size_t from = out->len;
    fo_buf_puts(out, "GGUF");
    put_u32(out, version);
    put_u64(out, w->n_tensors);
    put_u64(out, w->n_kv);
    fo_buf_append(out, w->kv.data, w->kv.len);
    fo_buf_append(out, w->infos.data, w->infos.len);
    while (w->n_tensors && !out->failed && (out->len - from) % alignment) fo_buf_putc(out, 0);
    if (!out->failed && !w->kv.failed && !w->infos.failed) return FO_OK;
    return (int)fo_fail_need(e, FO_ENOMEM, w->kv.len + w->infos.len, out->cap_bytes, "no memory for a GGUF header");
}
