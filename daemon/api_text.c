/* POST /tokenize, /detokenize and /apply-template: a model's vocabulary and template without the model. Nothing waits in its queue. The
 * bodies are those that callers of llama-server and of vLLM send, and the answers have what both read. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/routes.h"
#include "daemon/text.h"
#include "engine/engine.h"
#include "engine/jinja.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { MAX_TEXT = 64 << 20, MAX_ANSWER = 512 << 20, MAX_PIECE = 64 * 1024 };

/* Appends s [n], which is UTF-8, as a JSON text. */
static void put_text(struct fo_buf *out, const char *s, size_t n) {
    json_t *v = json_stringn(n ? s : "", n);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    if (text) fo_buf_puts(out, text);
    else out->failed = true;
    free(text);
    json_decref(v);
}

/* {"id":5,"piece":"ab"}, or the piece as a list of bytes. `piece` is scratch. */
static bool put_piece(const struct pn_model *m, int32_t id, struct fo_buf *piece, struct fo_buf *out, struct fo_err *e) {
    fo_buf_clear(piece);
    if (pn_text_decode(m, &id, 1, true, piece, e)) return false;
    fo_buf_printf(out, "{\"id\":%d,\"piece\":", (int)id);
    if (pd_utf8_ok(piece->data, piece->len)) {
        put_text(out, piece->data, piece->len);
    } else {
        for (size_t i = 0; i < piece->len; i++) fo_buf_printf(out, "%c%d", i ? ',' : '[', (unsigned char)piece->data[i]);
        fo_buf_putc(out, ']');
    }
    fo_buf_putc(out, '}');
    return true;
}

/* "tokens":[...],"count":n: the members that tell of ids. */
static bool put_ids(const struct pn_model *m, const struct pn_ids *ids, bool with_pieces, struct fo_buf *out, struct pd_error *x) {
    struct fo_buf piece;
    struct fo_err e;
    bool ok = true;
    fo_buf_init(&piece, MAX_PIECE);
    fo_buf_puts(out, "\"tokens\":[");
    for (uint32_t i = 0; i < ids->n && ok && !out->failed; i++) {
        if (i) fo_buf_putc(out, ',');
        if (!with_pieces) fo_buf_printf(out, "%d", (int)ids->ids[i]);
        else if (!put_piece(m, ids->ids[i], &piece, out, &e)) ok = false;
    }
    fo_buf_printf(out, "],\"count\":%u", ids->n);
    fo_buf_done(&piece);
    if (!ok) pd_error_from(x, &e, false);
    return ok;
}

/* An error of the text functions that is about field `param`, or about the model when it has no tokenizer. */
static bool refuse(struct pd_error *x, const struct fo_err *e, const char *param) {
    pd_error_from(x, e, false);
    if (pd_error_row(x->id)->status == 400) snprintf(x->param, sizeof x->param, "%s", x->id == PD_ERR_UNSUPPORTED ? "model" : param);
    return false;
}

/* The ids of a text. Its name for errors is the one that the request gave it. */
static bool encode(const struct pn_model *m, const struct pd_params *p, struct pn_ids *ret, struct pd_error *x) {
    struct fo_err e;
    const struct pd_prompt *text = p->prompts;
    if (!pn_text_encode(m, text->text, text->len, p->parse_special, p->add_special, PD_MAX_IDS, ret, &e)) return true;
    return refuse(x, &e, json_is_string(json_object_get(p->root, "content")) ? "content" : "prompt");
}

static void answer(struct pd_call *c, bool ok, struct fo_buf *out, const struct pd_error *x) {
    if (ok) pd_json_reply(c, 200, out);
    else pd_error_reply(c, x);
    fo_buf_done(out);
}

void pd_post_tokenize(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_params p;
    struct pd_error x;
    struct pn_served *s = NULL;
    struct pn_ids ids = { 0 };
    struct fo_buf out;
    fo_buf_init(&out, MAX_ANSWER);
    bool ok = pd_params_parse(PD_API_TOKENIZE, c->body, c->n_body, &p, &x) && pd_text_model(app, p.model, &s, &x);
    const struct pn_model *m = ok ? pn_served_model(s) : NULL;
    if (ok) ok = p.messages_json ? pd_chat_encode(s, &p, PD_MAX_IDS, NULL, &ids, &x) : encode(m, &p, &ids, &x);
    if (ok) {
        fo_buf_putc(&out, '{');
        ok = put_ids(m, &ids, p.with_pieces, &out, &x);
        fo_buf_printf(&out, ",\"max_model_len\":%u}", pn_model_info(m)->ctx_cap);
    }
    answer(c, ok, &out, &x);
    free(ids.ids);
    pn_served_put(s);
    pd_params_done(&p);
}

/* The text of p->prompts as JSON in `json`. */
static bool decode(const struct pn_model *m, const struct pd_params *p, struct fo_buf *json, struct pd_error *x) {
    const struct pd_prompt *t = p->prompts;
    uint32_t n_vocab = pn_model_info(m)->n_vocab;
    struct fo_buf raw, clean;
    struct fo_err e;
    for (uint32_t i = 0; i < t->n_ids; i++)
        if ((uint32_t)t->ids[i] >= n_vocab) {
            char at[32];
            snprintf(at, sizeof at, "tokens.%u", i);
            return pd_error_set(x, PD_ERR_VALUE, at, "'%s': the model's token ids end at %u.", at, n_vocab - 1);
        }
    fo_buf_init(&raw, MAX_TEXT);
    fo_buf_init(&clean, 3 * (size_t)MAX_TEXT);
    bool ok = pn_text_decode(m, t->ids, t->n_ids, true, &raw, &e) == FO_OK || refuse(x, &e, "tokens");
    if (ok) {
        pd_utf8_clean(raw.data, raw.len, &clean);
        if (clean.failed) json->failed = true;
        else put_text(json, clean.data, clean.len);
    }
    fo_buf_done(&raw);
    fo_buf_done(&clean);
    return ok;
}

void pd_post_detokenize(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_params p;
    struct pd_error x;
    struct pn_served *s = NULL;
    struct fo_buf text, out;
    fo_buf_init(&text, MAX_ANSWER / 2);
    fo_buf_init(&out, MAX_ANSWER);
    bool ok = pd_params_parse(PD_API_DETOKENIZE, c->body, c->n_body, &p, &x) && pd_text_model(app, p.model, &s, &x);
    if (ok) ok = decode(pn_served_model(s), &p, &text, &x);
    if (ok) { /* one name for each of the two servers whose callers come here */
        fo_buf_puts(&out, "{\"content\":");
        fo_buf_append(&out, text.data, text.len);
        fo_buf_puts(&out, ",\"prompt\":");
        fo_buf_append(&out, text.data, text.len);
        fo_buf_putc(&out, '}');
        if (text.failed) out.failed = true;
    }
    answer(c, ok, &out, &x);
    fo_buf_done(&text);
    pn_served_put(s);
    pd_params_done(&p);
}

void pd_post_apply_template(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_params p;
    struct pd_error x;
    struct pn_served *s = NULL;
    struct pn_render text = { 0 };
    struct pn_ids ids = { 0 };
    struct fo_buf out;
    fo_buf_init(&out, MAX_ANSWER);
    bool ok = pd_params_parse(PD_API_CHAT | PD_API_TEMPLATE, c->body, c->n_body, &p, &x) && pd_text_model(app, p.model, &s, &x);
    if (ok) ok = pd_chat_encode(s, &p, PD_MAX_IDS, &text, p.with_tokens ? &ids : NULL, &x);
    if (ok) {
        fo_buf_puts(&out, "{\"prompt\":");
        put_text(&out, text.text, text.len);
        if (p.with_tokens) {
            fo_buf_putc(&out, ',');
            ok = put_ids(pn_served_model(s), &ids, false, &out, &x);
        }
        fo_buf_putc(&out, '}');
    }
    answer(c, ok, &out, &x);
    pn_render_done(&text);
    free(ids.ids);
    pn_served_put(s);
    pd_params_done(&p);
}
