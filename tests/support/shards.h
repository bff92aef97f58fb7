/* Cuts a GGUF file into shards, as gguf-split names and numbers them. */
#pragma once
#include <stdint.h>

/* What one shard says of itself; ~0u: it says nothing. */
struct test_shard_keys {
    uint32_t no, count, n_tensors;
};

/* Path of shard `no` (from 0) of n: "PREFIX-00001-of-00003.gguf". Static storage of 8 names. */
const char *test_shard_path(const char *prefix, uint32_t no, uint32_t n);
/* Writes the tensors of `whole`, in order, into n shards of nearly as many tensors each. The metadata goes into the first. Fails the test
 * when it cannot. */
void test_shards_write(const char *whole, const char *prefix, uint32_t n);
/* Writes one shard: tensors [from, to) of `whole`, with these keys, and the metadata when with_kv. */
void test_shard_write(const char *whole, const char *path, uint32_t from, uint32_t to, int with_kv, struct test_shard_keys k);
void test_shards_remove(const char *prefix, uint32_t n);
