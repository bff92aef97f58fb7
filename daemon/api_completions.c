/* POST /v1/completions: text or token ids, as they are. Control tokens in a text stay text; whoever means them sends their ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/generate.h"
#include "daemon/grammar.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/routes.h"
#include "daemon/text.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

/* What a prompt of ids says, for echo: heap, or NULL with the error. Ids can cut a character; JSON cannot, so its bytes become U+FFFD. */
static char *text_of(const struct pn_model *m, const struct pd_prompt *prompt, size_t *ret_len, struct pd_error *x) {
    struct fo_buf raw, clean;
    struct fo_err e;
    char *text = NULL;
    fo_buf_init(&raw, 64 << 20);
    fo_buf_init(&clean, 256 << 20);
    if (pn_text_decode(m, prompt->ids, prompt->n_ids, true, &raw, &e) == FO_OK) {
        fo_buf_puts(&clean, "");
        pd_utf8_clean(raw.data, raw.len, &clean);
        *ret_len = clean.len;
        text = fo_buf_steal(&clean);
        if (!text) text = strdup(""); /* control tokens alone have no text */
        if (!text || clean.failed) pd_error_set(x, PD_ERR_MEMORY, NULL, "There is no memory for the prompt's text.");
    } else {
        pd_error_from(x, &e, false);
    }
    fo_buf_done(&raw);
    fo_buf_done(&clean);
    return text;
}

/* One prompt as a job. What it allocates is noted in *ret_ids and *ret_text for the caller to free. */
static bool make_job(const struct pn_model *m, const struct pd_params *p, size_t i, struct pd_job *ret, int32_t **ret_ids, char **ret_text, struct pd_error *x) {
    const struct pd_prompt *prompt = &p->prompts[i];
    char at[32] = "prompt";
    if (p->n_prompts > 1) snprintf(at, sizeof at, "prompt.%zu", i);
    *ret = (struct pd_job){ .ids = prompt->ids, .n_ids = prompt->n_ids };
    if (prompt->ids) {
        if (!p->echo) return true;
        *ret_text = text_of(m, prompt, &ret->n_echo, x);
        ret->echo = *ret_text;
        return *ret_text != NULL;
    }
    struct pn_ids ids;
    struct fo_err e;
    if (pn_text_encode(m, prompt->text, prompt->len, false, true, 0, &ids, &e)) {
        pd_error_from(x, &e, false);
        if (pd_error_row(x->id)->status == 400) snprintf(x->param, sizeof x->param, "%s", at);
        return false;
    }
    *ret_ids = ids.ids;
    ret->ids = ids.ids;
    ret->n_ids = ids.n;
    if (p->echo) {
        ret->echo = prompt->text;
        ret->n_echo = prompt->len;
    }
    if (ids.n > 0) return true;
    return pd_error_set(x, PD_ERR_VALUE, at, "'%s' is empty and this model has no token that begins a text; at least one token is needed.", at);
}

void pd_post_completions(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_params p;
    struct pd_error x;
    struct pn_served *s = NULL;
    struct cf_sampling sampling;
    struct pd_job *jobs = NULL;
    int32_t **ids = NULL;
    char **texts = NULL;
    bool ok = pd_params_parse(PD_API_TEXT, c->body, c->n_body, &p, &x) && pd_app_find(app, p.model, &s, &sampling, &x);
    size_t n = p.n_prompts;
    if (ok) {
        pd_params_defaults(&p, &sampling);
        jobs = calloc(n, sizeof *jobs);
        ids = calloc(n, sizeof *ids);
        texts = calloc(n, sizeof *texts);
        if (!jobs || !ids || !texts) ok = pd_error_memory(&x);
    }
    if (ok) ok = pd_params_check_ids(&p, pn_model_info(pn_served_model(s))->n_vocab, &x) && pd_grammar_compile(s, &p, &x);
    for (size_t i = 0; i < n && ok; i++) ok = make_job(pn_served_model(s), &p, i, &jobs[i], &ids[i], &texts[i], &x);
    if (ok) pd_generate(app, c, s, &p, jobs, n);
    else pd_error_reply(c, &x);
    for (size_t i = 0; i < n && ids && texts; i++) {
        free(ids[i]);
        free(texts[i]);
    }
    free(jobs);
    free(ids);
    free(texts);
    pn_served_put(s);
    pd_params_done(&p);
}
