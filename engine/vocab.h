/* The vocabulary of a model file alone, without its weights: for tools that only turn text into tokens and back. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text.h"

struct fo_buf;
struct fo_err;
struct pn_chat;
struct pn_vocab;

/* Opens the tokenizer and chat template of a model file (which may hold no weights at all) or of a directory with a tokenizer.json.
 * Errors as fo_model_open, fo_hf_tokenizer and fo_tok_open. */
int pn_vocab_open(const char *path, struct pn_vocab **ret, struct fo_err *e);
void pn_vocab_free(struct pn_vocab *v); /* NULL is allowed */

/* As pn_text_encode and pn_text_decode. */
int pn_vocab_encode(const struct pn_vocab *v, const char *text, size_t len, bool special, bool add, struct pn_ids *ret, struct fo_err *e);
int pn_vocab_decode(const struct pn_vocab *v, const int32_t *ids, size_t n, bool special, struct fo_buf *out, struct fo_err *e);

/* The model's chat; opened with the vocabulary, so never NULL. */
const struct pn_chat *pn_vocab_chat(const struct pn_vocab *v);
