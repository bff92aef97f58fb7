/* The vocabulary of a model file alone: see vocab.h. */
#include "engine/vocab.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "engine/chat.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/gguf_write.h"
#include "foundry/hf_tokenizer.h"
#include "foundry/model_file.h"
#include "foundry/tok.h"

enum { MAX_METADATA_BYTES = 256 << 20 }; /* of a tokenizer; a tokenizer.json has 64 MiB at most */

struct pn_vocab {
    struct fo_buf made; /* the metadata of a directory, as a GGUF */
    struct fo_gguf *gguf;
    struct fo_tok *tok;
    struct pn_chat *chat;
};

/* The tokenizer.json of a HuggingFace directory; nothing else of it has to be there. */
static int open_dir(struct pn_vocab *v, const char *path, struct fo_err *e) {
    struct fo_gguf_writer w;
    fo_gguf_writer_init(&w, MAX_METADATA_BYTES);
    int rc = fo_hf_tokenizer(path, &w, e);
    if (!rc) rc = fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, &v->made, e);
    fo_gguf_writer_done(&w);
    return rc ? rc : fo_gguf_parse(v->made.data, v->made.len, path, &v->gguf, e);
}

int pn_vocab_open(const char *path, struct pn_vocab **ret, struct fo_err *e) {
    struct pn_vocab *v = calloc(1, sizeof *v);
    struct stat st;
    if (!v) return fo_fail(e, FO_ENOMEM, "%s: no memory", path);
    fo_buf_init(&v->made, MAX_METADATA_BYTES);
    int rc = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_dir(v, path, e) : fo_model_open(path, &v->gguf, e);
    if (!rc && (rc = fo_tok_open(v->gguf, &v->tok, e))) fo_wrap(e, "%s", path);
    if (!rc) rc = pn_chat_open(v->gguf, v->tok, NULL, &v->chat, e);
    if (rc) {
        pn_vocab_free(v);
        return rc;
    }
    *ret = v;
    return FO_OK;
}

void pn_vocab_free(struct pn_vocab *v) {
    if (!v) return;
    pn_chat_free(v->chat);
    fo_tok_free(v->tok);
    fo_gguf_close(v->gguf);
    fo_buf_done(&v->made);
    free(v);
}

int pn_vocab_encode(const struct pn_vocab *v, const char *text, size_t len, bool special, bool add, struct pn_ids *ret, struct fo_err *e) {
    struct fo_tok_ids ids;
    unsigned flags = (special ? FO_TOK_SPECIAL : 0u) | (add ? FO_TOK_ADD : 0u);
    int rc = fo_tok_encode(v->tok, text, len, NULL, flags, UINT32_MAX, &ids, e);
    if (rc) return rc;
    *ret = (struct pn_ids){ .ids = ids.ids, .n = (uint32_t)ids.n };
    return FO_OK;
}

int pn_vocab_decode(const struct pn_vocab *v, const int32_t *ids, size_t n, bool special, struct fo_buf *out, struct fo_err *e) {
    int32_t n_vocab = fo_tok_n_vocab(v->tok);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return fo_fail(e, FO_EINVAL, "id %d (number %zu) is out of range: the vocabulary has %d tokens", ids[i], i, n_vocab);
        fo_tok_piece(v->tok, ids[i], special, out);
    }
    return out->failed ? fo_fail(e, FO_ELIMIT, "the text is longer than %zu bytes", out->cap_bytes) : FO_OK;
}

const struct pn_chat *pn_vocab_chat(const struct pn_vocab *v) {
    return v->chat;
}
