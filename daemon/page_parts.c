/* The parts of the state as HTML: see page.h. They hold nothing that one can operate, so that each may be replaced while somebody looks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/api_events.h"
#include "daemon/app.h"
#include "daemon/copies.h"
#include "daemon/html.h"
#include "daemon/http.h"
#include "daemon/page.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

enum { SHOWN_EVENTS = 50, BAR = 1000 };

/* --- small things --- */

static const char *bytes(uint64_t n) {
    static _Thread_local char text[8][16]; /* of one line */
    static _Thread_local unsigned next;
    return fo_format_bytes(n, text[next++ % 8], sizeof text[0]);
}

static const char *number(double v, int digits) {
    static _Thread_local char text[8][32];
    static _Thread_local unsigned next;
    char *out = text[next++ % 8];
    snprintf(out, sizeof text[0], "%.*f", digits, v);
    return out;
}

static uint64_t sub(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static void put_time(struct fo_buf *out, int64_t at) {
    char date[32], clock[16];
    struct tm tm;
    time_t t = (time_t)at;
    if (!gmtime_r(&t, &tm)) return;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    pd_html_put(out, "<time datetime=\"%s\" title=\"%s\">%s</time>", date, date, clock);
}

/* Yes is good news of most conditions, bad news of these. */
static bool bad_when_true(const char *type) {
    return strcmp(type, "Degraded") == 0 || strcmp(type, "Draining") == 0;
}

static void put_condition(struct fo_buf *out, const char *type, const struct pd_condition *k) {
    const char *class = k->is == bad_when_true(type) ? k->is || strcmp(type, "Healthy") == 0 || strcmp(type, "ManifestValid") == 0 ? "bad" : "warn" : "good";
    pd_html_put(out, "<li class=\"%s\" title=\"%s\">%s: %s (%s)</li>", class, k->message, type, k->is ? "yes" : "no", k->reason);
}

static const char *level_class(int level) {
    return level == CF_P_NORMAL ? "good" : level == CF_P_CRITICAL ? "bad" : "warn";
}

/* --- server --- */

static void put_server(const struct pd_seen *s, struct fo_buf *out) {
    const struct pd_view *v = s->view;
    char up[24];
    int64_t seconds = (int64_t)time(NULL) - s->app->started_at;
    size_t serving = 0, declared = 0;
    for (size_t i = 0; i < v->n; i++) {
        declared += v->entries[i].declared;
        serving += v->entries[i].declared && v->entries[i].state == PD_MODEL_READY;
    }
    snprintf(up, sizeof up, "%lld min", (long long)(seconds / 60));
    pd_html_put(out, "<p><b>%s of %s</b> declared models serve. Generation %s, observed %s. Up for %s; build %s; %s connections, this one among them.</p>", number((double)serving, 0), number((double)declared, 0),
                number((double)v->manifest->generation, 0), number((double)v->observed_generation, 0), up, pn_build(), number(pd_http_connections(s->app->http), 0));
    fo_buf_puts(out, "<ul class=\"list\">");
    for (int i = 0; i < PD_N_SERVER_CONDITIONS; i++) put_condition(out, pd_server_condition_name(i), &v->conditions[i]);
    fo_buf_puts(out, "</ul>");
    if (*v->report) pd_html_put(out, "<h3 class=\"bad\">The manifest's file is bad</h3><pre tabindex=\"0\" aria-label=\"What is wrong with the manifest\">%s</pre>", v->report);
}

/* --- memory --- */

enum part { WEIGHTS, KV, SCRATCH, RESERVE, OTHERS, N_PARTS };
static const struct {
    const char *class, *name;
} parts[N_PARTS] = { { "weights", "weights" }, { "kv", "KV" }, { "scratch", "scratch" }, { "reserve", "reserve" }, { "others", "others" } };

/* What our copies hold there: on one die, or (NULL) of the host's memory, whose dies' parts are the host's. */
static void sum_up(const struct cf_facts *f, const char *die, uint64_t sums[N_PARTS]) {
    for (size_t i = 0; i < f->n_instances; i++) {
        const struct cf_instance *inst = &f->instances[i];
        if (!die) sums[SCRATCH] += inst->host_bytes;
        for (size_t k = 0; k < inst->n_parts; k++) {
            const struct cf_part *p = &inst->parts[k];
            bool counts = die && strcmp(die, p->die) == 0;
            for (size_t d = 0; !die && d < f->n_dies; d++) counts |= f->dies[d].host && strcmp(f->dies[d].name, p->die) == 0;
            if (!counts) continue;
            sums[WEIGHTS] += p->weights_bytes;
            sums[KV] += p->kv_bytes;
            sums[SCRATCH] += p->scratch_bytes;
        }
    }
}

static void put_bar(struct fo_buf *out, const uint64_t sums[N_PARTS], uint64_t total) {
    double at = 0;
    fo_buf_printf(out, "<svg class=\"bar\" viewBox=\"0 0 %d 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">", BAR);
    for (int i = 0; i < N_PARTS; i++) {
        double width = total ? (double)sums[i] / (double)total * BAR : 0;
        if (width > BAR - at) width = BAR - at;
        fo_buf_printf(out, "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=\"10\"/>", parts[i].class, at, width);
        at += width;
    }
    fo_buf_puts(out, "</svg><ul class=\"list\">");
    uint64_t rest = total;
    for (int i = 0; i < N_PARTS; i++) {
        pd_html_put(out, "<li class=\"key %s\">%s %s</li>", parts[i].class, parts[i].name, bytes(sums[i]));
        rest = sub(rest, sums[i]);
    }
    pd_html_put(out, "<li>free %s of %s</li></ul>", bytes(rest), bytes(total));
}

static void put_die(const struct pd_seen *s, size_t i, struct fo_buf *out) {
    const struct cf_facts *f = s->view->facts;
    const struct cf_die_fact *d = &f->dies[i];
    const struct fo_sensors *x = s->view->sensors ? &s->view->sensors[i] : NULL;
    uint64_t sums[N_PARTS] = { [RESERVE] = d->reserve_bytes, [OTHERS] = d->foreign_bytes };
    sum_up(f, d->name, sums);
    pd_html_put(out, "<h3>%s <small>%s%s%s%s%s</small></h3>", d->name, d->kind, *d->model ? ", " : "", d->model, *d->address ? ", " : "", d->address);
    if (d->health == CF_HEALTH_LOST) pd_html_put(out, "<p class=\"bad\">lost: %s</p>", d->reason);
    put_bar(out, sums, d->total_bytes);
    fo_buf_puts(out, "<ul class=\"list\">");
    if (x && x->has_temperature) pd_html_put(out, "<li>%s \302\260C</li>", number(x->temperature_celsius, 0));
    if (x && x->has_power) pd_html_put(out, "<li>%s W</li>", number(x->power_watts, 0));
    if (x && x->has_ecc)
        pd_html_put(out, "<li class=\"%s\">ECC errors: %s corrected, %s not</li>", x->ecc_uncorrected ? "bad" : "good", number((double)x->ecc_corrected, 0), number((double)x->ecc_uncorrected, 0));
    fo_buf_puts(out, "</ul>");
}

static void put_dies(const struct pd_seen *s, struct fo_buf *out) {
    static const char *const by[] = { [CF_BY_MEMINFO] = "the machine's", [CF_BY_CGROUP2] = "the control group's", [CF_BY_CGROUP1] = "the control group's" };
    const struct cf_host_fact *h = &s->view->facts->host;
    uint64_t sums[N_PARTS] = { [RESERVE] = s->view->manifest->m->host.ram_reserve_bytes };
    sum_up(s->view->facts, NULL, sums);
    sums[OTHERS] = sub(sub(h->total_bytes, h->available_bytes), sums[WEIGHTS] + sums[KV] + sums[SCRATCH]);
    pd_html_put(out, "<h3>Host memory <small>%s</small></h3>", by[h->limited_by]);
    put_bar(out, sums, h->total_bytes);
    for (size_t i = 0; i < s->view->facts->n_dies; i++) put_die(s, i, out);
}

/* --- models --- */

/* Of all copies of a model. */
struct totals {
    uint32_t running, queued, slots, copies;
    uint64_t kv_used, kv_total;
    double prefill_tps, decode_tps;
    bool serves;
};

static struct totals totals_of(const struct pd_seen *s, const struct pd_entry *e) {
    struct totals t = { 0 };
    for (size_t i = 0; i < s->copies->n; i++) {
        const struct pd_copy *c = &s->copies->copy[i];
        if (c->entry != e) continue;
        t.serves = true;
        t.copies++;
        t.running += c->status.running;
        t.queued += c->status.queued;
        t.slots += c->status.max_concurrent;
        t.kv_used += c->status.kv_bytes_used;
        t.kv_total += pn_model_info(pn_served_model(c->served))->kv_bytes;
        t.prefill_tps += c->status.prefill_tps;
        t.decode_tps += c->status.decode_tps;
    }
    return t;
}

static void put_places(const struct cf_facts *f, const char *name, struct fo_buf *out) {
    bool any = false;
    for (size_t i = 0; i < f->n_instances; i++) {
        if (strcmp(f->instances[i].name, name) != 0) continue;
        for (size_t k = 0; k < f->instances[i].n_parts; k++) {
            const struct cf_part *p = &f->instances[i].parts[k];
            pd_html_put(out, "%s%s", k ? " + " : any ? ", " : "", p->die);
            any = true;
        }
    }
    if (!any) fo_buf_puts(out, "\342\200\223");
}

/* How far a download is. */
static void put_fetch(const struct cf_file *file, struct fo_buf *out) {
    bool checks = file && file->state == CF_FILE_VERIFYING;
    if (!file || (!checks && file->state != CF_FILE_FETCHING)) return;
    pd_html_put(out, "<p>%s: %s", checks ? "checking its sha256" : "fetching", bytes(file->part_bytes));
    if (file->bytes) pd_html_put(out, " of %s, %s%%", bytes(file->bytes), number((double)file->part_bytes * 100 / (double)file->bytes, 0));
    if (file->bytes_per_second) pd_html_put(out, ", %s a second", bytes(file->bytes_per_second));
    fo_buf_puts(out, "</p>");
}

static void put_model(const struct pd_seen *s, const struct pd_entry *e, struct fo_buf *out) {
    const struct cf_model *d = e->decl;
    struct totals t = totals_of(s, e);
    bool bad = e->state == PD_MODEL_FAILED || e->state == PD_MODEL_REFUSED;
    pd_html_put(out, "<tr><th scope=\"row\">%s", d->name);
    for (size_t i = 0; i < d->n_aliases; i++) pd_html_put(out, "<br><small>%s</small>", d->aliases[i]);
    pd_html_put(out, "</th><td class=\"%s\">%s%s</td><td>", e->state == PD_MODEL_READY ? "good" : bad ? "bad" : "warn", pd_model_state_name(e->state), e->declared ? "" : " (not declared)");
    put_places(s->view->facts, d->name, out);
    if (t.serves)
        pd_html_put(out, "</td><td class=\"n\">%s of %s</td><td class=\"n\">%s of %s</td><td class=\"n\">%s of %s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>", number(t.running, 0), number(t.slots, 0),
                    number(t.queued, 0), number((double)d->queue_depth * t.copies, 0), bytes(t.kv_used), bytes(t.kv_total), number(t.decode_tps, 1), number(t.prefill_tps, 1));
    else fo_buf_puts(out, "</td><td class=\"n\">\342\200\223</td><td class=\"n\">\342\200\223</td><td class=\"n\">\342\200\223</td><td class=\"n\">\342\200\223</td><td class=\"n\">\342\200\223</td>");
    pd_html_put(out, "<td class=\"n\">%s / %s</td></tr><tr><td colspan=\"9\">", number((double)e->observed_generation, 0), number((double)s->view->manifest->generation, 0));
    if (*e->reason) pd_html_put(out, "<p class=\"%s\">%s</p>", bad ? "bad" : "muted", e->reason);
    put_fetch(cf_file_find(s->view->facts, d), out);
    fo_buf_puts(out, "<ul class=\"list\">");
    for (int i = 0; i < PD_N_CONDITIONS; i++) put_condition(out, pd_condition_name(i), &e->conditions[i]);
    fo_buf_puts(out, "</ul></td></tr>");
}

static void put_models(const struct pd_seen *s, struct fo_buf *out) {
    if (s->view->n == 0) {
        fo_buf_puts(out, "<p>The manifest declares none.</p>");
        return;
    }
    fo_buf_puts(out, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Models\"><table><thead><tr><th scope=\"col\">Model</th><th scope=\"col\">Status</th><th scope=\"col\">Dies</th>"
                     "<th scope=\"col\" class=\"n\">Running</th><th scope=\"col\" class=\"n\">Waiting</th><th scope=\"col\" class=\"n\">KV in use</th><th scope=\"col\" class=\"n\">Tokens/s</th>"
                     "<th scope=\"col\" class=\"n\">Prompt tokens/s</th><th scope=\"col\" class=\"n\">Generation</th></tr></thead><tbody>");
    for (size_t i = 0; i < s->view->n; i++) put_model(s, &s->view->entries[i], out);
    fo_buf_puts(out, "</tbody></table></div>");
}

/* --- pressure --- */

static void put_pressure(const struct pd_seen *s, struct fo_buf *out) {
    const struct cf_facts *f = s->view->facts;
    pd_html_put(out, "<ul class=\"list\"><li class=\"%s\">host: %s</li>", level_class((int)f->host.pressure), pn_level_name((enum pn_level)f->host.pressure));
    for (size_t i = 0; i < f->n_dies; i++)
        if (!f->dies[i].host) pd_html_put(out, "<li class=\"%s\">%s: %s</li>", level_class((int)f->dies[i].pressure), f->dies[i].name, pn_level_name((enum pn_level)f->dies[i].pressure));
    fo_buf_puts(out, "</ul><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Rungs\"><table><thead><tr><th scope=\"col\">Rung</th><th scope=\"col\">From</th><th scope=\"col\">What it does</th><th scope=\"col\">In force for</th></tr></thead><tbody>");
    for (size_t r = 0; r < pn_rung_count(); r++) {
        const struct pn_rung *rung = pn_rung_at(r);
        bool any = false;
        pd_html_put(out, "<tr><th scope=\"row\">%s</th><td>%s</td><td class=\"t\">%s</td><td>", rung->name, pn_level_name(rung->level), rung->what);
        for (size_t i = 0; i < s->copies->n; i++) {
            if (s->copies->copy[i].status.rungs <= r) continue;
            pd_html_put(out, "%s%s", any ? ", " : "", s->copies->copy[i].entry->decl->name);
            any = true;
        }
        fo_buf_puts(out, any ? "</td></tr>" : "nobody</td></tr>");
    }
    fo_buf_puts(out, "</tbody></table></div>");
}

/* --- plan and events --- */

static void put_plan(const struct pd_seen *s, struct fo_buf *out) {
    const struct pd_view *v = s->view;
    if (!v->plan_text) fo_buf_puts(out, "<p>None was made yet.</p>");
    else pd_html_put(out, "<pre tabindex=\"0\" aria-label=\"The plan in force\">%s</pre>", v->plan_text);
    if (v->n_performed == 0) return;
    fo_buf_puts(out, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Steps performed\"><table><caption class=\"muted\">Steps performed, the newest first</caption><thead><tr><th scope=\"col\">Time (UTC)</th>"
                     "<th scope=\"col\">Step</th><th scope=\"col\">Model</th><th scope=\"col\" class=\"n\">Took</th><th scope=\"col\">Why</th></tr></thead><tbody>");
    for (size_t i = v->n_performed; i-- > 0;) {
        const struct pd_performed *d = &v->performed[i];
        char took[24];
        fo_buf_puts(out, "<tr><td>");
        put_time(out, d->at);
        pd_html_put(out, "</td><td>%s</td><td>%s</td><td class=\"n\">%s</td><td class=\"t\">%s", d->step, d->model, d->result == PD_STEP_RUNS ? pd_step_result_name(d) : fo_format_ms(d->took_ms, took, sizeof took), d->why);
        if (*d->error) pd_html_put(out, "<br><span class=\"bad\">%s</span>", d->error);
        fo_buf_puts(out, "</td></tr>");
    }
    fo_buf_puts(out, "</tbody></table></div>");
}

static void put_events(const struct pd_seen *s, struct fo_buf *out) {
    uint64_t newest = pd_app_last_event(s->app), after = newest > SHOWN_EVENTS ? newest - SHOWN_EVENTS : 0;
    struct pd_event *list = calloc(SHOWN_EVENTS, sizeof *list);
    size_t n = 0;
    if (!list) {
        out->failed = true;
        return;
    }
    while (n < SHOWN_EVENTS && pd_app_next_event(s->app, after, NULL, &list[n])) after = list[n++].seq;
    fo_buf_puts(out, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Events\"><table><thead><tr><th scope=\"col\">Time (UTC)</th><th scope=\"col\">Event</th><th scope=\"col\">Model</th><th scope=\"col\">Text</th></tr></thead><tbody>");
    while (n-- > 0) {
        const struct pd_event *ev = &list[n];
        fo_buf_puts(out, "<tr><td>");
        put_time(out, ev->time);
        pd_html_put(out, "</td><td class=\"%s\">%s</td><td>%s</td><td class=\"t\">%s", pd_event_kind(ev->id)->bad ? "bad" : "good", pd_event_kind(ev->id)->name, ev->model, ev->text);
        if (*ev->who) pd_html_put(out, " <small>by %s</small>", ev->who);
        fo_buf_puts(out, "</td></tr>");
    }
    fo_buf_puts(out, "</tbody></table></div>");
    free(list);
}

/* --- the table --- */

static const struct pd_page_part page_parts[] = {
    { "server", put_server }, { "dies", put_dies }, { "models", put_models }, { "pressure", put_pressure }, { "plan", put_plan }, { "events", put_events },
};
_Static_assert(sizeof page_parts / sizeof *page_parts <= PD_MAX_PAGE_PARTS, "more parts than a stream keeps");

const struct pd_page_part *pd_page_part_at(size_t i) {
    return i < sizeof page_parts / sizeof *page_parts ? &page_parts[i] : NULL;
}
