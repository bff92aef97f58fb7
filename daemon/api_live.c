/* GET /admin/live: the page's parts as they change. Each viewer's own thread makes them anew every second and sends those that differ from what it
 * sent last; nothing waits for a model. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/api_events.h"
#include "daemon/app.h"
#include "daemon/copies.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/page.h"
#include "daemon/routes.h"
#include "daemon/sse.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"

enum { PERIOD_MS = 1000, SLICE_MS = 250, MAX_PART = 2 << 20 };

/* A part when it is another than `last`, which it then is. True unless the client is gone. */
static bool send_part(struct pd_call *c, const struct pd_seen *s, const struct pd_page_part *part, struct fo_buf *last) {
    struct fo_buf html, out;
    bool ok = true;
    fo_buf_init(&html, MAX_PART);
    part->put(s, &html);
    if (!html.failed && (html.len != last->len || memcmp(html.data, last->data, html.len) != 0)) {
        fo_buf_init(&out, 2 * MAX_PART);
        fo_buf_printf(&out, "event: part\ndata: {\"id\":\"%s\",\"html\":", part->id);
        pd_json_text(&out, html.data, html.len);
        fo_buf_puts(&out, "}\n\n");
        ok = out.failed || pd_stream_write(c, out.data, out.len);
        fo_buf_done(&out);
        fo_buf_done(last);
        *last = html;
        return ok;
    }
    fo_buf_done(&html);
    return ok;
}

/* The counters that charts are drawn from; they start at 0 with each copy. */
static bool send_sample(struct pd_call *c, const struct pd_seen *s) {
    json_t *models = json_array();
    struct fo_buf out;
    for (size_t i = 0; i < s->copies->n; i++) {
        const struct pn_served_status *st = &s->copies->copy[i].status;
        json_array_append_new(models, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I}", "name", s->copies->copy[i].entry->decl->name, "generated", (json_int_t)st->tokens_generated, "prompt",
                                                (json_int_t)st->tokens_prefilled, "ended", (json_int_t)(st->completed + st->failed + st->cancelled), "queue_s", st->queue_s, "prefill_s", st->prefill_s, "decode_s",
                                                st->decode_s, "running", (json_int_t)st->running, "queued", (json_int_t)st->queued));
    }
    json_t *o = json_pack("{s:I, s:o}", "ms", (json_int_t)fo_now_ms(), "models", models);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    fo_buf_init(&out, MAX_PART);
    if (text) fo_buf_printf(&out, "event: sample\ndata: %s\n\n", text);
    free(text);
    bool ok = out.failed || out.len == 0 || pd_stream_write(c, out.data, out.len);
    fo_buf_done(&out);
    return ok;
}

void pd_get_admin_live(struct pd_app *app, struct pd_call *c, const char *param) {
    struct fo_buf last[PD_MAX_PAGE_PARTS];
    uint64_t at = 0;
    (void)param;
    for (size_t i = 0; i < PD_MAX_PAGE_PARTS; i++) fo_buf_init(&last[i], MAX_PART);
    bool ok = pd_stream_begin(c);
    while (ok && !pd_client_gone(c)) {
        bool stops = atomic_load(&app->draining);
        uint64_t now = fo_now_ms();
        if (stops || now >= at) {
            struct pd_view *v = pd_app_view(app);
            struct pd_copies copies;
            const struct pd_seen s = { .app = app, .view = v, .copies = &copies };
            bool looked = pd_copies_look(app, v, &copies);
            for (size_t i = 0; looked && ok && pd_page_part_at(i); i++) ok = send_part(c, &s, pd_page_part_at(i), &last[i]);
            if (looked && ok) ok = send_sample(c, &s);
            pd_copies_done(&copies);
            pd_view_put(v);
            at = now + PERIOD_MS;
        }
        if (stops) break; /* the last that is sent says so */
        if (ok) pd_view_put(pd_app_wait(app, UINT64_MAX, false, pd_app_last_event(app), SLICE_MS));
    }
    pd_stream_close(c);
    for (size_t i = 0; i < PD_MAX_PAGE_PARTS; i++) fo_buf_done(&last[i]);
}
