/* Vocabularies for tests and benchmarks. */
#pragma once
#include <stdbool.h>

struct fo_buf;
struct fo_err;

/* The bytes of a GGUF from a folder under tests/data/tokenizers: vocab.gguf as it is, or made from vocab.bin (the format is in
 * tests/gen/tok_cases.py). *ret is initialised here; fo_buf_done it. False when there is neither. */
bool test_vocab_load(const char *folder, struct fo_buf *ret);

/* A GGUF made of the tokenizer.json (and what is beside it) in a folder: the result of fo_hf_tokenizer. */
int test_hf_load(const char *folder, struct fo_buf *ret, struct fo_err *e);

/* A whole file; as above. */
bool test_file_load(const char *path, struct fo_buf *ret);
