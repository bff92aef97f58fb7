/* Shards: see shards.h. */
#include "tests/support/shards.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/gguf_write.h"
#include "tests/support/gguf_write.h"

const char *test_shard_path(const char *prefix, uint32_t no, uint32_t n) {
    static char names[8][512];
    static int at;
    char *name = names[at++ % 8];
    snprintf(name, sizeof names[0], "%s-%05u-of-%05u.gguf", prefix, no + 1, n);
    return name;
}

static void put_number(struct test_gguf *w, const char *key, uint32_t v) {
    if (v != UINT32_MAX) test_gguf_u32(w, key, v);
}

void test_shard_write(const char *whole, const char *path, uint32_t from, uint32_t to, int with_kv, struct test_shard_keys k) {
    struct fo_gguf *g;
    struct fo_err e;
    struct test_gguf w;
    struct fo_buf out;
    if (fo_gguf_open(whole, &g, &e)) fail_msg("%s", e.msg);
    test_gguf_init(&w, 3);
    for (size_t i = 0; with_kv && i < fo_gguf_n_kv(g); i++) fo_gguf_put_kv(&w.w, fo_gguf_kv_at(g, i));
    put_number(&w, "split.no", k.no);
    put_number(&w, "split.count", k.count);
    put_number(&w, "split.tensors.count", k.n_tensors);
    for (uint32_t i = from; i < to; i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(g, i);
        char name[65];
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.s);
        test_gguf_tensor(&w, name, t->t.type, (const uint64_t *)t->t.ne, 4, t->t.data, (size_t)t->bytes);
    }
    assert_true(test_gguf_finish(&w, &out));
    fo_gguf_close(g);
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(out.data, 1, out.len, f) == out.len && fclose(f) == 0);
    fo_buf_done(&out);
}

void test_shards_write(const char *whole, const char *prefix, uint32_t n) {
    struct fo_gguf *g;
    struct fo_err e;
    if (fo_gguf_open(whole, &g, &e)) fail_msg("%s", e.msg);
    uint32_t n_tensors = (uint32_t)fo_gguf_n_tensors(g);
    fo_gguf_close(g);
    for (uint32_t i = 0; i < n; i++)
        test_shard_write(whole, test_shard_path(prefix, i, n), n_tensors * i / n, n_tensors * (i + 1) / n, i == 0,
                         (struct test_shard_keys){ i, n, n_tensors });
}

void test_shards_remove(const char *prefix, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) unlink(test_shard_path(prefix, i, n));
}
