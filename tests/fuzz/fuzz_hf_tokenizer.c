/* HuggingFace tokenizer files: tokenizer.json, tokenizer_config.json, config.json and a text, each ended by a NUL byte. What is taken becomes
 * metadata, is read back, and encodes the text. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/gguf_write.h"
#include "foundry/hf_tokenizer.h"
#include "foundry/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fo_str part(const uint8_t **p, const uint8_t *end) {
    const uint8_t *nul = *p < end ? memchr(*p, 0, (size_t)(end - *p)) : NULL, *stop = nul ? nul : end;
    struct fo_str s = { *p < end ? (const char *)*p : NULL, (size_t)(stop - *p) };
    *p = nul ? nul + 1 : end;
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fo_gguf_writer w;
    struct fo_buf file, out;
    struct fo_gguf *g = NULL;
    struct fo_tok *t = NULL;
    struct fo_tok_ids ids = { 0 };
    struct fo_err e;
    const uint8_t *end = data + size;
    struct fo_hf_files f = { .tokenizer = part(&data, end) };
    f.tokenizer_config = part(&data, end);
    f.config = part(&data, end);
    struct fo_str text = part(&data, end);
    if (!text.s) text = (struct fo_str){ "The 3 caf\xC3\xA9s  don't\n<s> \xE2\x96\x81 e\xCC\x81", 31 };
    fo_buf_init(&file, 1 << 26);
    fo_buf_init(&out, 1 << 26);
    fo_gguf_writer_init(&w, 1 << 26);
    int rc = fo_hf_tokenizer_parse(&f, &w, &e);
    if (rc && w.n_kv) abort(); /* all or nothing */
    if (!rc && fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, &file, &e)) abort();
    if (!rc && fo_gguf_parse(file.data, file.len, "fuzz", &g, &e)) abort();
    if (!rc && !fo_tok_open(g, &t, &e) && !fo_tok_encode(t, text.s, text.len, NULL, FO_TOK_SPECIAL | FO_TOK_ADD, 0, &ids, &e)) {
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= fo_tok_n_vocab(t)) abort();
            fo_tok_piece(t, ids.ids[i], true, &out);
        }
        free(ids.ids);
    }
    fo_tok_free(t);
    fo_gguf_close(g);
    fo_gguf_writer_done(&w);
    fo_buf_done(&file);
    fo_buf_done(&out);
    return 0;
}
