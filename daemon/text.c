/* Text and ids: see text.h. */
#include "daemon/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/engine.h"
#include "engine/jinja.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

static int render(const struct pn_model *m, const struct pn_chat_input *in, struct pn_render *ret, struct fo_err *e) {
    const struct pn_chat *chat = pn_model_chat(m);
    if (!chat) return fo_fail(e, FO_EUNSUPPORTED, "this model takes token ids only: %s", pn_model_info(m)->tokenizer_error);
    return pn_chat_render(chat, in, ret, e);
}

/* Says why a conversation was not encoded; `raised` is what its template said. */
static bool refuse(const struct pn_served *s, const struct pd_params *p, const struct fo_err *e, const struct fo_buf *raised, struct pd_error *x) {
    struct fo_err state;
    const struct pn_chat *chat = pn_model_chat(pn_served_model(s));
    if (chat && pn_chat_source(chat) != PN_CHAT_NONE && pn_chat_state(chat, &state))
        pd_error_set(x, PD_ERR_TEMPLATE, NULL, "Model '%s' cannot chat: %s; use /v1/completions", pn_served_name(s), state.msg);
    else
        pd_error_from(x, e, false);
    if (e->code == FO_EINVAL && raised->len && !raised->failed) pd_error_set(x, x->id, NULL, "%s", raised->data);
    if (x->id == PD_ERR_UNSUPPORTED && !strstr(x->message, "/v1/completions")) /* no tokenizer at all */
        pd_error_set(x, PD_ERR_UNSUPPORTED, NULL, "%s; use /v1/completions with token ids", e->msg);
    if (pd_error_row(x->id)->status == 400 && x->id != PD_ERR_TEMPLATE) snprintf(x->param, sizeof x->param, "%s", pd_params_prompt(p));
    return false;
}

bool pd_chat_encode(const struct pn_served *s, const struct pd_params *p, uint32_t max_ids, struct pn_render *ret_text, struct pn_ids *ret_ids,
                    struct pd_error *x) {
    const struct pn_model *m = pn_served_model(s);
    struct fo_err e = { 0 };
    struct fo_buf raised;
    fo_buf_init(&raised, PN_RAISED_BYTES);
    struct pn_chat_input in = {
        .raised = &raised,
        .messages_json = p->messages_json,
        .tools_json = p->tools_json,
        .extra_json = p->extra_json,
        .add_generation_prompt = p->add_generation_prompt,
        .now = (int64_t)time(NULL),
    };
    struct pn_render text = { 0 };
    int rc = ret_text ? render(m, &in, &text, &e) : FO_OK;
    if (rc == FO_OK && ret_ids) rc = pn_text_encode_chat(m, &in, max_ids, ret_ids, &e);
    if (rc == FO_OK && ret_text) *ret_text = text;
    else pn_render_done(&text);
    bool ok = rc == FO_OK || refuse(s, p, &e, &raised, x);
    fo_buf_done(&raised);
    return ok;
}

struct pd_dialect_words pd_dialect_words(const struct pn_model *m) {
    const struct pn_chat *chat = pn_model_chat(m);
    struct fo_err e;
    if (!chat || pn_chat_state(chat, &e)) return (struct pd_dialect_words){ NULL, NULL };
    const struct pn_call_format *calls = pn_dialect_calls(pn_chat_dialect(chat));
    const struct pn_reasoning *reasoning = pn_dialect_reasoning(pn_chat_dialect(chat));
    return (struct pd_dialect_words){ calls ? calls->name : NULL, reasoning ? reasoning->open : NULL };
}

bool pd_text_model(struct pd_app *app, const char *name, struct pn_served **ret, struct pd_error *x) {
    struct cf_sampling unused;
    if (name) return pd_app_find(app, name, ret, &unused, x);
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *only = NULL;
    size_t serving = 0;
    for (size_t i = 0; i < v->n; i++) {
        if (v->entries[i].state != PD_MODEL_READY) continue;
        only = &v->entries[i];
        serving++;
    }
    if (serving == 0 && v->n == 1) only = &v->entries[0]; /* whose refusal says when it will serve */
    bool ok = false;
    if (serving > 1 || !only)
        pd_error_set(x, PD_ERR_INVALID, "model", "'model' is missing; it may be left out only while one model alone serves, and %zu do.", serving);
    else
        ok = pd_app_find(app, only->decl->name, ret, &unused, x);
    pd_view_put(v);
    return ok;
}

size_t pd_utf8_char(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4 : 0;
    if (len == 0 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    bool bad = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F);
    return bad ? 0 : len;
}

bool pd_utf8_ok(const char *s, size_t n) {
    size_t i = 0, len;
    while (i < n && (len = pd_utf8_char(s + i, n - i)) > 0) i += len;
    return i == n;
}

void pd_utf8_clean(const char *s, size_t n, struct fo_buf *out) {
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        len = pd_utf8_char(s + i, n - i);
        if (len) fo_buf_append(out, s + i, len);
        else fo_buf_puts(out, "\xEF\xBF\xBD");
    }
}
