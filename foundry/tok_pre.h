/* Pre-tokenizer rules: how byte-level BPE cuts text into words before it merges. One row per name that GGUF files use
 * (`tokenizer.ggml.pre`). Internal to the tokenizers. */
#pragma once
#include <stdbool.h>
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
size_t fo_pre_bytes(const struct fo_pre *p); /* of heap; 0 of NULL */

/* A rule that a model brings along. */
enum {
    FO_PRE_MAX_PASSES = 8,
    FO_PASS_DROP = 1, /* what lies between matches is dropped */
    FO_PASS_BYTES = 2 /* matches the characters that stand for bytes in a byte-level vocabulary */
};
struct fo_pre_pass {
    const char *re; /* not NUL-terminated */
    size_t len;
    unsigned flags;
};

/* Compiles passes of a file; n = 0 leaves text uncut. FO_EUNSUPPORTED quotes an expression that tok_re.h does not take. */
int fo_pre_open_passes(const struct fo_pre_pass *pass, size_t n, struct fo_pre **ret, struct fo_err *e);

/* The first name of the table whose rule has exactly these passes and that flag; NULL = none. */
const char *fo_pre_recognise(const struct fo_pre_pass *pass, size_t n, bool whole_words);

/* The i-th name of the table, NULL past the end. */
const char *fo_pre_name(size_t i);

/* Calls word(ctx, s, n) for each word of the text, in order and without gaps; stops at the first result other than 0 and returns
 * it. *ret_read (may be NULL) is how many bytes the passes looked at: at most a small multiple of n, and FO_ELIMIT is returned where
 * passes of a file look at more than 64 n. */
int fo_pre_split(const struct fo_pre *p, const char *s, size_t n, int (*word)(void *ctx, const char *s, size_t n), void *ctx,
                 size_t *ret_read);
