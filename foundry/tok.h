/* Tokenizers: text to ids and back. Three algorithms (byte-level BPE, SPM with scores, the RWKV trie) stand behind one type; which
 * one a file needs, and with which rules, is read from its metadata. Immutable after open: any thread, no locks.
 *
 * Special tokens: a CONTROL token is never made out of user text. Each input byte says who wrote it (see `user`), and a control
 * token matches only where every byte of it was written by the template. USER_DEFINED tokens match anywhere. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/gguf.h"

struct fo_err;
struct fo_buf;
struct fo_tok;

/* From the metadata of a GGUF that stays open as long as the tokenizer (token texts are not copied). FO_EUNSUPPORTED names the
 * model or pre-tokenizer rule that this build lacks; FO_EFORMAT what is broken. */
int fo_tok_open(const struct fo_gguf *g, struct fo_tok **ret, struct fo_err *e);
void fo_tok_free(struct fo_tok *t); /* NULL is allowed */
size_t fo_tok_bytes(const struct fo_tok *t); /* of heap that it holds, for a plan of memory */

int32_t fo_tok_n_vocab(const struct fo_tok *t);
int32_t fo_tok_bos(const struct fo_tok *t); /* -1 = the model has none */
int32_t fo_tok_eos(const struct fo_tok *t);
bool fo_tok_add_bos(const struct fo_tok *t); /* whether plain text starts with BOS */
bool fo_tok_add_eos(const struct fo_tok *t);

/* True for every token that ends a generation: EOS, EOT, end-of-message and whatever else the metadata or the well-known names
 * mark as such. */
bool fo_tok_is_end(const struct fo_tok *t, int32_t id);
bool fo_tok_is_control(const struct fo_tok *t, int32_t id);

/* The id of a token by its exact text, or -1. */
int32_t fo_tok_find(const struct fo_tok *t, const char *text, size_t len);

struct fo_tok_ids {
    int32_t *ids; /* heap; the caller frees with free */
    size_t n;
};

enum {
    FO_TOK_SPECIAL = 1, /* match control tokens in the text (subject to `user`) */
    FO_TOK_ADD = 2      /* add BOS and EOS as the model's metadata says */
};

/* text[0..len) is any bytes; invalid UTF-8 is encoded byte by byte (as U+FFFD where a byte-level vocabulary lacks some byte), never
 * refused. `user` is NULL (all bytes may match as the
 * flags say) or [len] of 0 = written by the template, 1 = by a user. Time and memory are linear in len; FO_ELIMIT with need and
 * have as soon as there are more than max_ids ids (0 = no limit). */
int fo_tok_encode(const struct fo_tok *t, const char *text, size_t len, const uint8_t *user, unsigned flags, size_t max_ids,
                  struct fo_tok_ids *ret, struct fo_err *e);

/* The bytes of one token as they stand in running text (byte-level BPE undone, SPM's U+2581 as a space), appended to out. A
 * control token gives its text when `special`, else nothing. */
void fo_tok_piece(const struct fo_tok *t, int32_t id, bool special, struct fo_buf *out);

/* Incremental detokenisation: holds back the bytes of an incomplete UTF-8 character, replaces invalid ones by U+FFFD as Python's
 * incremental decoder does. A value: start with all zero. */
struct fo_detok {
    uint8_t held[4];
    uint8_t n_held;
};
/* Appends the text that may be shown after token `id`. */
void fo_detok_push(struct fo_detok *d, const struct fo_tok *t, int32_t id, bool special, struct fo_buf *out);
/* At the end: appends U+FFFD for what stayed incomplete. */
void fo_detok_end(struct fo_detok *d, struct fo_buf *out);
