/* Pre-tokenizer rules: how byte-level BPE cuts text into words before it merges. One row per name that GGUF files use
 * (`tokenizer.ggml.pre`). Internal to the tokenizers. */
#pragma once
#include <stddef.h>

struct fo_err;
struct fo_pre;

enum {
    FO_PRE_WHOLE_WORDS = 1, /* a word that is a token is that token, whatever the merges say */
    FO_PRE_ADD_BOS = 2      /* text starts with BOS unless the metadata says otherwise */
};

/* Compiles the rule of that name (not NUL-terminated). FO_EUNSUPPORTED names it when there is no such row. Immutable. */
int fo_pre_open(const char *name, size_t len, struct fo_pre **ret, unsigned *ret_flags, struct fo_err *e);
void fo_pre_free(struct fo_pre *p); /* NULL is allowed */

/* The i-th name of the table, NULL past the end. */
const char *fo_pre_name(size_t i);

/* Calls word(ctx, s, n) for each word of the text, in order and without gaps; stops at the first result other than 0 and returns
 * it. *ret_read (may be NULL) is how many bytes the passes looked at: at most a small multiple of n. */
int fo_pre_split(const struct fo_pre *p, const char *s, size_t n, int (*word)(void *ctx, const char *s, size_t n), void *ctx,
                 size_t *ret_read);
