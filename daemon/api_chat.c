/* POST /v1/chat/completions: the body becomes messages, the model's template makes text of them, the tokenizer ids, and generate.c the
 * answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/generate.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/routes.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "engine/jinja.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

/* The conversation as ids; false with the error: what a template says of a conversation it does not take is the client's to read. */
static bool render(const struct pn_model *m, const struct pd_params *p, struct pn_ids *ret, struct pd_error *x) {
    struct fo_err e;
    struct fo_buf raised;
    fo_buf_init(&raised, PN_RAISED_BYTES);
    struct pn_chat_input in = {
        .raised = &raised,
        .messages_json = p->messages_json,
        .extra_json = p->extra_json,
        .add_generation_prompt = true,
        .now = (int64_t)time(NULL),
    };
    bool ok = pn_text_encode_chat(m, &in, 0, ret, &e) == FO_OK;
    struct fo_err state;
    const struct pn_chat *chat = pn_model_chat(m);
    if (!ok && chat && pn_chat_source(chat) != PN_CHAT_NONE && pn_chat_state(chat, &state))
        pd_error_set(x, PD_ERR_TEMPLATE, NULL, "Model '%s' cannot chat: %s; use /v1/completions", p->model, state.msg);
    else if (!ok)
        pd_error_from(x, &e, false);
    if (!ok && e.code == FO_EINVAL && raised.len && !raised.failed) pd_error_set(x, x->id, NULL, "%s", fo_buf_str(&raised));
    fo_buf_done(&raised);
    if (ok) return true;
    if (x->id == PD_ERR_UNSUPPORTED && !strstr(x->message, "/v1/completions")) /* no tokenizer at all */
        pd_error_set(x, PD_ERR_UNSUPPORTED, NULL, "%s; use /v1/completions with token ids", e.msg);
    if (pd_error_row(x->id)->status == 400 && x->id != PD_ERR_TEMPLATE) snprintf(x->param, sizeof x->param, "messages");
    if (pd_error_row(x->id)->status == 503) x->retry_after_s = 1;
    return false;
}

void pd_post_chat(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_params p;
    struct pd_error x;
    struct pn_served *s = NULL;
    struct cf_sampling sampling;
    struct pn_ids ids = { 0 };
    bool ok = pd_params_parse(PD_API_CHAT, c->body, c->n_body, &p, &x) && pd_app_find(app, p.model, &s, &sampling, &x);
    if (ok) {
        const struct pn_model *m = pn_served_model(s);
        pd_params_defaults(&p, &sampling);
        ok = pd_params_check_ids(&p, pn_model_info(m)->n_vocab, &x) && render(m, &p, &ids, &x);
    }
    if (ok) pd_generate(app, c, s, &p, &(struct pd_job){ .ids = ids.ids, .n_ids = ids.n }, 1);
    else pd_error_reply(c, &x);
    free(ids.ids);
    pn_served_put(s);
    pd_params_done(&p);
}
