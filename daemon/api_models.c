/* GET /v1/models and /v1/models/{id}: every declared model is listed, whether it serves or not, because a client that cannot see a
 * model cannot say what is wrong with it. */
#include <jansson.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "daemon/text.h"
#include "engine/engine.h"

/* What is known only once the model is loaded. */
static void add_loaded(json_t *obj, struct pn_served *s) {
    const struct pn_model_info *info = pn_model_info(pn_served_model(s));
    struct pn_served_status st;
    pn_served_status(s, &st);
    json_int_t cap = info->ctx_cap;
    json_object_set_new(obj, "created", json_integer(st.loaded_at));
    json_object_set_new(obj, "status", json_string(st.ready ? "ready" : "failed"));
    json_object_set_new(obj, "reason", st.ready ? json_null() : json_string(st.reason));
    json_object_set_new(obj, "context_window", json_integer(cap));
    json_object_set_new(obj, "max_output_tokens", json_integer(cap - 1)); /* a prompt has at least one token */
    json_object_set_new(obj, "ctx_cap", json_integer(cap));
    json_object_set_new(obj, "effective_ctx", json_integer(cap));
    json_object_set_new(obj, "max_concurrent", json_integer(info->max_concurrent));
    struct pd_dialect_words w = pd_dialect_words(pn_served_model(s));
    json_object_set_new(obj, "tools", w.tools ? json_string(w.tools) : json_null());
    json_object_set_new(obj, "reasoning", w.reasoning ? json_string(w.reasoning) : json_null());
    json_object_set_new(obj, "meta",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "n_ctx", cap, "n_ctx_train", (json_int_t)info->n_ctx_train, "n_vocab",
                                  (json_int_t)info->n_vocab, "n_embd", (json_int_t)info->n_embd, "n_params", (json_int_t)info->n_params, "size",
                                  (json_int_t)info->weights_bytes, "kv_bytes", (json_int_t)info->kv_bytes, "ftype", info->ftype, "arch", info->arch));
}

static json_t *model_object(struct pd_app *app, const struct pd_entry *e) {
    json_t *aliases = json_array();
    for (size_t k = 0; k < e->decl->n_aliases; k++) json_array_append_new(aliases, json_string(e->decl->aliases[k]));
    json_t *obj = json_pack("{s:s, s:s, s:I, s:s, s:o, s:s}", "id", e->decl->name, "object", "model", "created", (json_int_t)e->since, "owned_by", "pantheon", "aliases",
                            aliases, "status", pd_model_state_name(e->state));
    if (!obj) return NULL;
    if (e->reason[0]) json_object_set_new(obj, "reason", json_string(e->reason));
    struct pn_served *s = e->state == PD_MODEL_READY ? pn_engine_get(app->engine, e->decl->name) : NULL;
    if (s) add_loaded(obj, s);
    pn_served_put(s);
    return obj;
}

void pd_get_models(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_view *v = pd_app_view(app);
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) json_array_append_new(list, model_object(app, &v->entries[i]));
    pd_view_put(v);
    pd_reply_object(c, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void pd_get_model(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *e = pd_view_find(v, param);
    struct pd_error x;
    if (e) {
        pd_reply_object(c, 200, model_object(app, e));
    } else {
        pd_view_not_found(v, param, &x);
        pd_error_reply(c, &x);
    }
    pd_view_put(v);
}
