/* What the reader of tokenizer.json shares between its files; nobody else includes this. struct json_t is jansson's. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/buf.h"
#include "foundry/gguf_write.h"
#include "foundry/tok_pre.h"

struct json_t;

struct fo_hf_token {
    const char *s; /* in the JSON; NULL = no token has this id */
    size_t len;
    uint8_t type; /* FO_TT_* */
    bool lstrip, rstrip;
};

struct fo_hf {
    struct fo_err *e;
    struct fo_gguf_writer *w;
    struct json_t *tokenizer, *tokenizer_config, *special_tokens_map, *generation_config, *config, *template_json; /* NULL = not there */
    const struct json_t *model, *vocab, *merges;
    struct json_t *added; /* text -> id of added tokens */
    struct fo_hf_token *token; /* [n_tokens] by id */
    size_t n_tokens;
    int64_t bos, eos; /* -1 = none */
    bool add_bos, add_eos;
    bool byte_level; /* else SPM-style */
    /* pre-tokenizer and normaliser */
    struct fo_buf pass[FO_PRE_MAX_PASSES]; /* expressions */
    unsigned pass_flags[FO_PRE_MAX_PASSES];
    size_t n_passes;
    bool mapped; /* passes from here on see the characters that stand for bytes */
    bool nfc, spaced, marked; /* marked: spaces become U+2581 */
    bool split_spaces;
    const char *space_prefix;
};

/* The text of a member, "" when it is absent or no string. */
const char *fo_hf_text(const struct json_t *object, const char *key);

/* The normaliser and the pre-tokenizer of h->tokenizer into h's fields, byte_level included. FO_EUNSUPPORTED names what is not known. */
int fo_hf_read_pipeline(struct fo_hf *h);

/* Which tokens the post-processor puts around a text: into h->bos, add_bos and so on. */
int fo_hf_read_post(struct fo_hf *h);

/* Appends the keys of fo_hf_read_pipeline. */
void fo_hf_write_pipeline(struct fo_hf *h);
