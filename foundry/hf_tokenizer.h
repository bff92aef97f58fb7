/* The tokenizer of a HuggingFace model directory, as the metadata that a GGUF would hold: tok.h reads both alike.
 *
 * Byte-level BPE and SPM-style BPE (with byte fallback) are served. What GGUF has no key for is written under tokenizer.pantheon.*:
 *
 *   split              array of strings   the pre-tokenizer's passes, where no name of tokenizer.ggml.pre has them: flags
 *                                         (d = unmatched text is dropped, b = over the characters that stand for bytes), ':', regex
 *   ignore_merges      bool               a word that is a token is that token
 *   nfc                bool               text is brought to Unicode form C
 *   spaced             bool               byte-level: every piece of text starts with a space
 *   merges             bool               SPM: tokenizer.ggml.merges decide, not the scores
 *   split_spaces       bool               SPM: nothing merges across the front of a space
 *   space_prefix       string             SPM: none, all, missing (pieces that start with no space), first (so, the first piece only)
 *   error              string             why the directory's tokenizer cannot be served (written by hf.c)
 *   end_token_ids      array of i32       tokens that end a generation
 *   lstrip_token_ids, rstrip_token_ids    tokens that swallow the white space before and behind them */
#pragma once
#include "foundry/gguf.h"

struct fo_err;
struct fo_gguf_writer;

/* Appends tokenizer.* entries made of DIR/tokenizer.json and, where they are there, tokenizer_config.json, special_tokens_map.json,
 * generation_config.json, config.json, chat_template.jinja, chat_template.json and additional_chat_templates/tool_use.jinja. All or
 * nothing. FO_ENOENT without a tokenizer.json, FO_EUNSUPPORTED names the kind or the part that cannot be served, FO_EFORMAT, FO_ELIMIT
 * (64 MiB of text, 8 million values, 64 levels), FO_ENOMEM. Memory is a multiple of the files' size. Any thread. */
int fo_hf_tokenizer(const char *dir, struct fo_gguf_writer *w, struct fo_err *e);

/* The texts of those files; s = NULL is a file that is not there. */
struct fo_hf_files {
    struct fo_str tokenizer, tokenizer_config, special_tokens_map, generation_config, config, jinja, template_json, tool_use_jinja;
};

/* As fo_hf_tokenizer, of texts in memory. */
int fo_hf_tokenizer_parse(const struct fo_hf_files *files, struct fo_gguf_writer *w, struct fo_err *e);
