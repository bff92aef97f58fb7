/* Deterministic tiny models of the Llama family for tests: random weights (the same on every machine), a byte-level BPE vocabulary
 * small enough to read, real tensor names and metadata. What they say is gibberish; that they load, run and always say the same is
 * the point.
 *
 * Vocabulary: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (control), 3 .. 258 the 256 bytes in GPT-2's order, then one token a
 * merge, then unused ones up to n_vocab. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "foundry/base/buf.h"

struct fo_err;

struct test_tiny {
    uint32_t dtype; /* of the matrices; norms are always F32 */
    uint32_t n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab, n_ctx;
    bool tied;                 /* no output.weight: the token table serves */
    bool tokenizer;            /* else tokens in, tokens out only */
    bool add_bos;              /* plain text begins with <|im_start|> */
    const char *chat_template; /* NULL = none */
    uint64_t seed;
    uint32_t yarn;             /* factor of YaRN over n_ctx; 0 = no scaling */
    uint32_t version; /* of the file format */
};

/* F32, 2 layers of 64 (4 heads, 2 of KV, feed-forward 128), 512 tokens, context 256, tied, with tokenizer, without template. A
 * K-quant needs n_embd and n_ff to be multiples of 256. */
struct test_tiny test_tiny_default(void);

/* The ChatML template, without a system prompt of its own. */
const char *test_tiny_chatml(void);

/* The whole file in *ret (fo_buf_done it). FO_EINVAL when the numbers do not fit together, FO_ENOMEM. */
int test_tiny_build(const struct test_tiny *t, struct fo_buf *ret, struct fo_err *e);

/* The same into a file, written beside it and renamed. */
int test_tiny_write(const struct test_tiny *t, const char *path, struct fo_err *e);

/* GPT-2's character for a byte; writes at most 2 bytes of UTF-8 and returns how many. */
int test_put_byte_char(char *out, int byte);
