/* GET /slots: what each loaded copy of a model is doing, slot by slot, and its limits. Counts and ids of requests only, never what they
 * say. As of each worker's last step: no model is waited for. */
#include <jansson.h>
#include <stdlib.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/copies.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "foundry/base/clock.h"

static json_t *slot_object(const struct pn_slot_status *s, uint32_t id, double now_ms) {
    if (!s->busy) return json_pack("{s:I, s:s, s:b}", "id", (json_int_t)id, "state", "idle", "is_processing", 0);
    double ms = now_ms - s->started_ms;
    return json_pack("{s:I, s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "id", (json_int_t)id, "state", s->generated_tokens ? "decode" : "prefill", "is_processing", 1,
                     "request", s->request, "prompt_tokens", (json_int_t)s->prompt_tokens, "cached_tokens", (json_int_t)s->cached_tokens, "computed_tokens",
                     (json_int_t)s->computed_tokens, "generated_tokens", (json_int_t)s->generated_tokens, "max_tokens", (json_int_t)s->max_tokens, "running_ms",
                     (json_int_t)(ms > 0 ? ms : 0));
}

static json_t *copy_object(const struct pd_copy *c) {
    const struct pn_model_info *info = pn_model_info(pn_served_model(c->served));
    const struct pn_served_status *st = &c->status;
    uint32_t n = pn_served_slots(c->served, NULL, 0);
    struct pn_slot_status *slots = calloc(n, sizeof *slots);
    json_t *list = json_array();
    if (slots) pn_served_slots(c->served, slots, n);
    double now = (double)fo_now_ms();
    for (uint32_t i = 0; i < n && slots; i++) json_array_append_new(list, slot_object(&slots[i], i, now));
    bool ok = json_array_size(list) == n;
    free(slots);
    if (!ok) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "id", pn_served_name(c->served), "replica", (json_int_t)pn_served_replica(c->served), "status",
                     st->ready ? "ready" : st->draining ? "draining" : "failed", "running", (json_int_t)st->running, "queued", (json_int_t)st->queued, "max_concurrent",
                     (json_int_t)st->max_concurrent, "max_sessions", (json_int_t)info->max_sessions, "queue_depth", (json_int_t)c->entry->decl->queue_depth, "n_ctx",
                     (json_int_t)info->ctx_cap, "kv_bytes", (json_int_t)info->kv_bytes, "kv_bytes_used", (json_int_t)st->kv_bytes_used, "slots", list);
}

void pd_get_slots(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_view *v = pd_app_view(app);
    struct pd_copies copies;
    json_t *list = json_array();
    bool ok = pd_copies_look(app, v, &copies);
    for (size_t i = 0; i < copies.n && ok; i++) ok = json_array_append_new(list, copy_object(&copies.copy[i])) == 0;
    pd_copies_done(&copies);
    pd_view_put(v);
    if (!ok) {
        json_decref(list);
        list = NULL;
    }
    pd_reply_object(c, 200, list ? json_pack("{s:o}", "models", list) : NULL);
}
