/* Blobs in memory, for tests: engine/blob.h's sink and source over a buffer. */
#pragma once
#include <stddef.h>

#include "engine/blob.h"
#include "foundry/base/buf.h"

struct test_blob {
    struct fo_buf bytes;
    size_t at;          /* what was read of it */
    uint64_t announced; /* by begin */
    uint32_t tokens;
    size_t pause_at;    /* `pause` is called once, when so many bytes have been written or read; 0 = never */
    void (*pause)(void *ctx);
    void *ctx;
};
void test_blob_init(struct test_blob *b);
void test_blob_done(struct test_blob *b);
/* Empties it; what was read counts from the start again. */
struct pn_blob_sink test_blob_sink(struct test_blob *b);
struct pn_blob_source test_blob_source(struct test_blob *b);

/* Makes every checksum in it right again, as far as its sections reach. */
void test_blob_reseal(struct test_blob *b);
