/* See blob.h. */
#include "tests/support/blob.h"

#include <string.h>

#include "engine/blob_impl.h"
#include "foundry/base/err.h"

void test_blob_init(struct test_blob *b) {
    *b = (struct test_blob){ 0 };
    fo_buf_init(&b->bytes, (size_t)1 << 30);
}

void test_blob_done(struct test_blob *b) {
    fo_buf_done(&b->bytes);
}

static void pass(struct test_blob *b, size_t at) {
    if (b->pause_at == 0 || at < b->pause_at) return;
    b->pause_at = 0;
    b->pause(b->ctx);
}

static int begin(void *ctx, uint64_t bytes, uint32_t tokens, struct fo_err *e) {
    struct test_blob *b = ctx;
    (void)e;
    b->announced = bytes;
    b->tokens = tokens;
    return 0;
}

static int write_bytes(void *ctx, const void *bytes, size_t n, struct fo_err *e) {
    struct test_blob *b = ctx;
    if (!fo_buf_append(&b->bytes, bytes, n)) return fo_fail(e, FO_ENOMEM, "no memory for a blob");
    pass(b, b->bytes.len);
    return 0;
}

static int read_bytes(void *ctx, void *bytes, size_t n, struct fo_err *e) {
    struct test_blob *b = ctx;
    if (n > b->bytes.len - b->at) return fo_fail(e, FO_EFORMAT, "it is cut at %zu bytes", b->bytes.len);
    memcpy(bytes, b->bytes.data + b->at, n);
    b->at += n;
    pass(b, b->at);
    return 0;
}

static int end(void *ctx, struct fo_err *e) {
    const struct test_blob *b = ctx;
    return b->at == b->bytes.len ? 0 : (int)fo_fail(e, FO_EFORMAT, "something follows it");
}

struct pn_blob_sink test_blob_sink(struct test_blob *b) {
    fo_buf_clear(&b->bytes);
    return (struct pn_blob_sink){ begin, write_bytes, b };
}

struct pn_blob_source test_blob_source(struct test_blob *b) {
    b->at = 0;
    return (struct pn_blob_source){ .read = read_bytes, .end = end, .ctx = b };
}

void test_blob_reseal(struct test_blob *b) {
    struct pn_blob_head head;
    struct pn_section_head h;
    size_t at = sizeof head;
    if (b->bytes.len < sizeof head) return;
    memcpy(&head, b->bytes.data, sizeof head);
    pn_blob_seal(&head);
    memcpy(b->bytes.data, &head, sizeof head);
    while (b->bytes.len - at >= sizeof h + sizeof(uint64_t)) {
        memcpy(&h, b->bytes.data + at, sizeof h);
        if (h.bytes > b->bytes.len - at - sizeof h - sizeof(uint64_t)) return;
        uint64_t sum = pn_section_sum(&h, b->bytes.data + at + sizeof h);
        at += sizeof h + h.bytes;
        memcpy(b->bytes.data + at, &sum, sizeof sum);
        at += sizeof sum;
    }
}
