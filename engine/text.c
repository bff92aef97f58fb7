/* Text to ids: see text.h. What a chat template wrote and what a user wrote travel side by side from the render to the tokenizer, so
 * that "<|im_end|>" in a message is seven characters and more, and never the token that ends a turn. */
#include "engine/text.h"

#include <stdlib.h>
#include <string.h>

#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/jinja.h"
#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"
#include "foundry/unicode.h"

/* NULL, with *e set, when the model has no tokenizer. */
static const struct fo_tok *need_tokenizer(const struct pn_model *m, struct fo_err *e) {
    const struct fo_tok *t = pn_model_tok(m);
    const char *why = pn_model_info(m)->tokenizer_error;
    if (!t) fo_fail(e, FO_EUNSUPPORTED, "this model takes token ids only: %s", why && *why ? why : "it has no tokenizer");
    return t;
}

static int take(struct fo_tok_ids ids, struct pn_ids *ret, struct fo_err *e) {
    if (ids.n > UINT32_MAX) {
        free(ids.ids);
        return fo_fail_need(e, FO_ELIMIT, ids.n, UINT32_MAX, "the text has %zu tokens", ids.n);
    }
    ret->ids = ids.ids;
    ret->n = (uint32_t)ids.n;
    return FO_OK;
}

int pn_text_encode(const struct pn_model *m, const char *text, size_t len, bool special, bool add, uint32_t max_ids, struct pn_ids *ret,
                   struct fo_err *e) {
    const struct fo_tok *t = need_tokenizer(m, e);
    struct fo_tok_ids ids;
    if (!t) return e->code;
    unsigned flags = (special ? FO_TOK_SPECIAL : 0u) | (add ? FO_TOK_ADD : 0u);
    if (fo_tok_encode(t, text, len, NULL, flags, max_ids, &ids, e)) return e->code;
    return take(ids, ret, e);
}

/* Whether the render already begins with the BOS that the metadata asks for, written by the template. */
static bool has_bos(const struct fo_tok *t, const struct pn_render *r) {
    struct fo_buf bos;
    fo_buf_init(&bos, 256);
    fo_tok_piece(t, fo_tok_bos(t), true, &bos);
    bool same = bos.len > 0 && bos.len <= r->len && memcmp(bos.data, r->text, bos.len) == 0;
    for (size_t i = 0; same && i < bos.len; i++) same = r->user[i] == 0;
    fo_buf_done(&bos);
    return same;
}

int pn_text_encode_chat(const struct pn_model *m, const struct pn_chat_input *in, uint32_t max_ids, struct pn_ids *ret, struct fo_err *e) {
    const struct fo_tok *t = need_tokenizer(m, e);
    struct pn_render r;
    struct fo_tok_ids ids;
    if (!t || pn_chat_render(pn_model_chat(m), in, &r, e)) return e->code;
    bool add_bos = fo_tok_add_bos(t) && fo_tok_bos(t) >= 0 && !has_bos(t, &r);
    int code = fo_tok_encode(t, r.text, r.len, r.user, FO_TOK_SPECIAL, max_ids, &ids, e);
    /* What a user wrote at the end opens nothing. */
    bool in_reasoning = in->add_generation_prompt && r.len > 0 && !r.user[r.len - 1] && pn_dialect_begins_in_reasoning(pn_chat_dialect(pn_model_chat(m)), r.text, r.len);
    pn_render_done(&r);
    if (code) return e->code;
    if (add_bos) {
        int32_t *more = realloc(ids.ids, (ids.n + 1) * sizeof *more);
        if (!more) {
            free(ids.ids);
            return fo_fail(e, FO_ENOMEM, "no memory for %zu token ids", ids.n + 1);
        }
        memmove(more + 1, more, ids.n * sizeof *more);
        more[0] = fo_tok_bos(t);
        ids.ids = more;
        ids.n++;
    }
    ret->in_reasoning = in_reasoning;
    return take(ids, ret, e);
}

int pn_text_decode(const struct pn_model *m, const int32_t *ids, size_t n, bool special, struct fo_buf *out, struct fo_err *e) {
    const struct fo_tok *t = need_tokenizer(m, e);
    if (!t) return e->code;
    int32_t n_vocab = fo_tok_n_vocab(t);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab) return fo_fail(e, FO_EINVAL, "id %d at place %zu: the model's ids end at %d", (int)ids[i], i, (int)n_vocab - 1);
    for (size_t i = 0; i < n; i++) fo_tok_piece(t, ids[i], special, out);
    if (out->failed) return fo_fail(e, FO_ENOMEM, "no memory for the text of %zu tokens", n);
    return FO_OK;
}

bool pn_text_token(const struct pn_model *m, int32_t id, struct fo_buf *bytes, struct fo_buf *name) {
    const struct fo_tok *t = pn_model_tok(m);
    struct fo_buf raw;
    bool whole = true;
    if (!t) return true;
    fo_buf_init(&raw, SIZE_MAX / 4);
    fo_tok_piece(t, id, false, bytes);
    fo_tok_piece(t, id, true, &raw);
    for (size_t i = 0, len; i < raw.len; i += len) {
        if (fo_utf8_next(raw.data + i, raw.len - i, &len) != FO_UNICODE_END) {
            fo_buf_append(name, raw.data + i, len);
            continue;
        }
        whole = false;
        for (size_t k = 0; k < len; k++) fo_buf_printf(name, "\\x%02x", (unsigned char)raw.data[i + k]);
    }
    if (raw.failed) name->failed = true;
    fo_buf_done(&raw);
    return whole;
}
