/* THE table of the router's metrics: a row is a metric, or one more value of its second label. */
#include "daemon/router_metrics.h"

#include "daemon/exposition.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/router.h"
#include "daemon/router_models.h"
#include "engine/version.h"
#include "foundry/base/buf.h"

enum { MAX_PAGE = 4 << 20 };

/* What a sample is of. */
struct at {
    const struct pd_router *r;
    const struct pd_backend *b; /* NULL = the router itself */
    int arg;
};

#define VALUE(name, expr)                                                                                                                  \
    static uint64_t name(const struct at *a) {                                                                                             \
        return (uint64_t)(expr);                                                                                                           \
    }
VALUE(one, a->r != NULL)
VALUE(started_at, a->r->app.started_at)
VALUE(draining, atomic_load(&a->r->app.draining))
VALUE(connections, pd_http_connections(a->r->app.http))
VALUE(in_progress, pd_http_busy(a->r->app.http))
VALUE(answered, pd_http_answered(a->r->app.http, a->arg))
VALUE(turned_away, pd_http_turned_away(a->r->app.http))
VALUE(is_up, a->b->health.state == PD_HEALTH_UP)
VALUE(load, a->b->load)
VALUE(tries, a->b->tries[a->arg])
VALUE(retries, a->b->retries)
VALUE(downs, a->b->health.downs)
VALUE(models, a->b->models ? a->b->models->n : 0)

#define TRY(t, name) .label = "outcome", .label_value = name, .arg = t
static const struct metric {
    const char *name;
    enum { GAUGE, COUNTER } type;
    bool backend; /* of each */
    uint64_t (*value)(const struct at *a);
    const char *help;
    const char *label, *label_value; /* one more label, which tells rows of one name apart */
    int arg;
} metrics[] = {
    { "pantheon_router_info", GAUGE, false, one, .help = "Always 1; the label says what runs." },
    { "pantheon_router_start_time_seconds", GAUGE, false, started_at, .help = "When the process started, in seconds since 1970." },
    { "pantheon_router_draining", GAUGE, false, draining, .help = "1 while the router is stopping." },
    { "pantheon_router_connections", GAUGE, false, connections, .help = "Open connections of clients." },
    { "pantheon_router_requests_in_progress", GAUGE, false, in_progress, .help = "Requests that are being read or answered." },
    { "pantheon_router_requests_total", COUNTER, false, answered, .help = "Requests by the class of their answer's status; none: the client left before one.", .label = "code", .label_value = "2xx", .arg = 2 },
    { "pantheon_router_requests_total", COUNTER, false, answered, .label = "code", .label_value = "4xx", .arg = 4 },
    { "pantheon_router_requests_total", COUNTER, false, answered, .label = "code", .label_value = "5xx", .arg = 5 },
    { "pantheon_router_requests_total", COUNTER, false, answered, .label = "code", .label_value = "none", .arg = 0 },
    { "pantheon_router_connections_refused_total", COUNTER, false, turned_away, .help = "Connections that were told that there are too many." },
    { "pantheon_router_backend_up", GAUGE, true, is_up, .help = "1 while the backend may be asked." },
    { "pantheon_router_backend_models", GAUGE, true, models, .help = "Models that it listed last." },
    { "pantheon_router_backend_requests_in_progress", GAUGE, true, load, .help = "Requests that it has now." },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, .help = "Requests that were passed to it, by how that ended; refused: 429 or 503.", TRY(PD_TRY_ANSWERED, "answered") },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, TRY(PD_TRY_REFUSED, "refused") },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, TRY(PD_TRY_UNREACHED, "unreachable") },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, TRY(PD_TRY_DIED, "died") },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, TRY(PD_TRY_BROKE, "broke_off") },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, TRY(PD_TRY_TIMEOUT, "timeout") },
    { "pantheon_router_backend_tries_total", COUNTER, true, tries, TRY(PD_TRY_LEFT, "stopped") },
    { "pantheon_router_backend_retries_total", COUNTER, true, retries, .help = "Those of them that went on to another backend." },
    { "pantheon_router_backend_downs_total", COUNTER, true, downs, .help = "How often it went from up to down." },
};
enum { N_METRICS = sizeof metrics / sizeof *metrics };

bool pd_router_metric_doc(size_t i, struct pd_router_metric_doc *ret) {
    if (i >= N_METRICS) return false;
    const struct metric *m = &metrics[i];
    *ret = (struct pd_router_metric_doc){ m->name, m->type == COUNTER ? "counter" : "gauge", m->value == one ? "version" : m->backend ? (m->label ? "backend, outcome" : "backend") : m->label ? m->label : "", m->help };
    return true;
}

static void put_sample(struct fo_buf *out, const struct metric *m, const struct at *a) {
    char before = '{';
    fo_buf_puts(out, m->name);
    if (m->value == one) pd_metric_label(out, &before, "version", pn_version());
    if (a->b) pd_metric_label(out, &before, "backend", a->b->name);
    if (m->label) pd_metric_label(out, &before, m->label, m->label_value);
    fo_buf_printf(out, "%s %llu\n", before == ',' ? "}" : "", (unsigned long long)m->value(a));
}

void pd_router_metrics(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_router *r = (struct pd_router *)app;
    struct fo_buf out;
    (void)param;
    fo_buf_init(&out, MAX_PAGE);
    for (size_t i = 0; i < N_METRICS; i++) {
        const struct metric *m = &metrics[i];
        if (m->help) pd_metric_head(&out, m->name, m->type == COUNTER ? "counter" : "gauge", m->help);
        struct at a = { .r = r, .arg = m->arg };
        if (!m->backend) {
            put_sample(&out, m, &a);
            continue;
        }
        pthread_mutex_lock(&r->lock);
        for (size_t k = 0; k < r->n; k++) {
            a.b = &r->list[k];
            put_sample(&out, m, &a);
        }
        pthread_mutex_unlock(&r->lock);
    }
    pd_metric_reply(c, &out);
    fo_buf_done(&out);
}
