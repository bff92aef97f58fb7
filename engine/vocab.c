/* The vocabulary of a model file alone: see vocab.h. */
#include "engine/vocab.h"

#include <stdlib.h>

#include "engine/chat.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/model_file.h"
#include "foundry/tok.h"

struct pn_vocab {
    struct fo_gguf *gguf;
    struct fo_tok *tok;
    struct pn_chat *chat;
};

int pn_vocab_open(const char *path, struct pn_vocab **ret, struct fo_err *e) {
    struct pn_vocab *v = calloc(1, sizeof *v);
    if (!v) return fo_fail(e, FO_ENOMEM, "%s: no memory", path);
    int rc = fo_model_open(path, &v->gguf, e);
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
