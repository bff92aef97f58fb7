/* Writes safetensors files and whole HuggingFace directories for tests, well-formed unless told otherwise. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/buf.h"

struct test_st {
    struct fo_buf header, data; /* the header's members, without the brackets */
    unsigned odd;               /* spaces behind the padding: how far the data is from a multiple of 8 */
};

void test_st_init(struct test_st *w);
/* A tensor behind those before it; shape as safetensors has it, the slowest first. */
void test_st_add(struct test_st *w, const char *name, const char *dtype, const uint64_t *shape, int n_dims, const void *data, size_t bytes);
/* A member of the header as it stands: "\"x\": {...}". */
void test_st_member(struct test_st *w, const char *json);
/* The file, in *ret (fo_buf_done it); empties the writer. */
void test_st_finish(struct test_st *w, struct fo_buf *ret);
void test_st_write(struct test_st *w, const char *path);

void test_write_text(const char *path, const char *text);
void test_write_bytes(const char *path, const void *bytes, size_t n);

/* The tensors of a GGUF file under the names that transformers has for them, in n_files files (one: no index), with this config.json. What the
 * directory is called is the caller's; it is made when it is not there. `odd` as in test_st. Rotary factors are left out: config.json has them. */
void test_hf_write(const char *gguf, const char *dir, uint32_t n_files, unsigned odd, const char *config);
/* Removes the directory and every file in it. */
void test_hf_remove(const char *dir);
