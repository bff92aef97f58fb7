/* POST /v1/chat/completions and /v1/responses: the body becomes messages, the model's template makes text of them, the tokenizer ids, and
 * generate.c the answer. */
#include <stdlib.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/generate.h"
#include "daemon/grammar.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/routes.h"
#include "daemon/text.h"
#include "daemon/tools.h"
#include "engine/engine.h"
#include "engine/text.h"

static void talk(struct pd_app *app, struct pd_call *c, unsigned api) {
    struct pd_params p;
    struct pd_error x;
    struct pn_served *s = NULL;
    struct cf_sampling sampling;
    struct pn_ids ids = { 0 };
    bool ok = pd_params_parse(api, c->body, c->n_body, &p, &x) && pd_app_find(app, p.model, &s, &sampling, &x);
    if (ok) {
        const struct pn_model *m = pn_served_model(s);
        pd_params_defaults(&p, &sampling);
        ok = pd_params_check_ids(&p, pn_model_info(m)->n_vocab, &x) && pd_grammar_compile(s, &p, &x) && pd_tools_compile(s, &p, &x) && pd_chat_encode(s, &p, 0, NULL, &ids, &x);
    }
    if (ok) pd_generate(app, c, s, &p, &(struct pd_job){ .ids = ids.ids, .n_ids = ids.n, .in_reasoning = ids.in_reasoning }, 1);
    else pd_error_reply(c, &x);
    free(ids.ids);
    pn_served_put(s);
    pd_params_done(&p);
}

void pd_post_chat(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    talk(app, c, PD_API_CHAT);
}

void pd_post_responses(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    talk(app, c, PD_API_RESPONSES);
}
