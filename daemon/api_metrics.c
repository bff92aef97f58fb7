/* GET /metrics: Prometheus' text exposition format, version 0.0.4. A row of the table is one kind of sample: its scope says for which
 * objects there is one and which labels that brings, its function what the value is. Rows of one name make one metric and stand together.
 *
 * Everything comes from snapshots; no model is waited for. A copy's counters start at 0 when it is loaded, which is why `replica` is a
 * label: a counter that starts again is understood, a sum that shrinks is not. */
#include "daemon/metrics.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/copies.h"
#include "daemon/exposition.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/device.h"

enum { MAX_PAGE = 32 << 20 };

enum scope { BUILD, SERVER, DIE, MODEL, STATE, COPY, PART, N_SCOPES };
static const char *const scope_labels[N_SCOPES] = {
    [BUILD] = "version, build, backend", [SERVER] = "", [DIE] = "die", [MODEL] = "model", [STATE] = "model, state", [COPY] = "model, replica", [PART] = "model, replica, die",
};

/* What a sample is of; the scope says which members are set. */
struct at {
    struct pd_app *app;
    const struct pd_view *view;
    const struct cf_die_fact *die;
    const struct fo_sensors *sensors; /* of it; no reading is there when nobody knows */
    const struct pd_entry *entry;
    enum pd_model_state state;
    const struct pd_copy *copy;
    const struct pn_model_info *info;
    const struct pn_part_info *part;
};

#define VALUE(name, expr)                                                                                                                  \
    static double name(const struct at *a) {                                                                                               \
        return (double)(expr);                                                                                                             \
    }
VALUE(one, a->app != NULL)
VALUE(started_at, a->app->started_at)
VALUE(draining, atomic_load(&a->app->draining))
VALUE(connections, pd_http_connections(a->app->http))
VALUE(in_progress, pd_http_busy(a->app->http))
VALUE(answered_2xx, pd_http_answered(a->app->http, 2))
VALUE(answered_4xx, pd_http_answered(a->app->http, 4))
VALUE(answered_5xx, pd_http_answered(a->app->http, 5))
VALUE(not_answered, pd_http_answered(a->app->http, 0))
VALUE(turned_away, pd_http_turned_away(a->app->http))
VALUE(generation, a->view->manifest->generation)
VALUE(manifest_valid, a->view->conditions[PD_S_MANIFEST_VALID].is)
VALUE(reconciled, a->view->conditions[PD_S_RECONCILED].is)
VALUE(host_total, a->view->facts->host.total_bytes)
VALUE(host_available, a->view->facts->host.available_bytes)
VALUE(die_up, a->die->health == CF_HEALTH_OK)
VALUE(die_total, a->die->total_bytes)
VALUE(die_reserve, a->die->reserve_bytes)
VALUE(die_ours, a->die->ours_bytes)
VALUE(die_foreign, a->die->foreign_bytes)
VALUE(host_pressure, a->view->facts->host.pressure)
VALUE(die_pressure, a->die->pressure)
VALUE(die_temperature, a->sensors->has_temperature ? a->sensors->temperature_celsius : (double)NAN)
VALUE(die_power, a->sensors->has_power ? a->sensors->power_watts : (double)NAN)
VALUE(die_corrected, a->sensors->has_ecc ? (double)a->sensors->ecc_corrected : (double)NAN)
VALUE(die_uncorrected, a->sensors->has_ecc ? (double)a->sensors->ecc_uncorrected : (double)NAN)
VALUE(model_ready, a->entry->state == PD_MODEL_READY)
VALUE(model_in_state, a->entry->state == a->state)
static const struct cf_file *file_of(const struct at *a) {
    static const struct cf_file none;
    const struct cf_file *f = cf_file_find(a->view->facts, a->entry->decl);
    return f ? f : &none;
}
VALUE(fetched, atomic_load(&a->app->fetched_bytes))
VALUE(file_bytes, file_of(a)->bytes)
VALUE(file_here, file_of(a)->part_bytes)
VALUE(file_rate, file_of(a)->bytes_per_second)
VALUE(loads, a->entry->loads)
VALUE(load_failures, a->entry->load_failures)
VALUE(ready, a->copy->status.ready)
VALUE(completed, a->copy->status.completed)
VALUE(failed, a->copy->status.failed)
VALUE(cancelled, a->copy->status.cancelled)
VALUE(refused, a->copy->status.refused)
VALUE(handed_over, a->copy->status.handed_over)
VALUE(running, a->copy->status.running)
VALUE(queued, a->copy->status.queued)
VALUE(max_concurrent, a->copy->status.max_concurrent)
VALUE(queue_depth, a->entry->decl->queue_depth)
VALUE(prefilled, a->copy->status.tokens_prefilled)
VALUE(cached, a->copy->status.tokens_cached)
VALUE(missed_off, a->copy->status.cache_misses[PN_CACHE_OFF])
VALUE(missed_empty, a->copy->status.cache_misses[PN_CACHE_EMPTY])
VALUE(missed_diverged, a->copy->status.cache_misses[PN_CACHE_DIVERGED])
VALUE(missed_evicted, a->copy->status.cache_misses[PN_CACHE_EVICTED])
VALUE(missed_window, a->copy->status.cache_misses[PN_CACHE_WINDOW])
VALUE(missed_state, a->copy->status.cache_misses[PN_CACHE_STATE])
VALUE(generated, a->copy->status.tokens_generated)
VALUE(drafted, a->copy->status.tokens_drafted)
VALUE(accepted, a->copy->status.tokens_accepted)
VALUE(reasoning, a->copy->status.tokens_reasoning)
VALUE(calls, a->copy->status.calls)
VALUE(grammars_compiled, a->copy->status.grammars_compiled)
VALUE(grammars_found, a->copy->status.grammars_found)
VALUE(grammar_seconds, a->copy->status.grammar_compile_s)
VALUE(grammar_bytes, a->copy->status.grammar_bytes)
VALUE(queue_seconds, a->copy->status.queue_s)
VALUE(prefill_seconds, a->copy->status.prefill_s)
VALUE(decode_seconds, a->copy->status.decode_s)
VALUE(turns, a->copy->status.heartbeat)
VALUE(context, a->info->ctx_cap)
VALUE(kv_total, a->info->kv_bytes)
VALUE(kv_used, a->copy->status.kv_bytes_used)
VALUE(kv_small, a->copy->status.kv_small_pages)
VALUE(kv_promised, a->copy->status.promised_bytes)
VALUE(pressure, a->copy->status.level)
VALUE(rungs, a->copy->status.rungs)
VALUE(prefill_limit, a->copy->status.effective.prefill_chunk)
VALUE(part_weights, a->part->weights_bytes)
VALUE(part_kv, a->part->kv_bytes)
VALUE(part_scratch, a->part->scratch_bytes)

#define LABEL(name, is) .label = name, .label_value = is
static const struct metric {
    const char *name;
    enum { GAUGE, COUNTER } type;
    enum scope scope;
    double (*value)(const struct at *a);
    const char *help;
    const char *label, *label_value; /* one more label, which tells rows of one name apart */
} metrics[] = {
    { "pantheon_build_info", GAUGE, BUILD, one, .help = "Always 1; the labels say what runs." },
    { "process_start_time_seconds", GAUGE, SERVER, started_at, .help = "When the process started, in seconds since 1970." },
    { "pantheon_draining", GAUGE, SERVER, draining, .help = "1 while the server is stopping." },
    { "pantheon_http_connections", GAUGE, SERVER, connections, .help = "Open connections." },
    { "pantheon_http_requests_in_progress", GAUGE, SERVER, in_progress, .help = "HTTP requests that are being read or answered." },
    { "pantheon_http_requests_total", COUNTER, SERVER, answered_2xx, .help = "HTTP requests, broken ones too, by the class of their answer's status; none: the client left before one. The log has a line for each.", LABEL("code", "2xx") },
    { "pantheon_http_requests_total", COUNTER, SERVER, answered_4xx, LABEL("code", "4xx") },
    { "pantheon_http_requests_total", COUNTER, SERVER, answered_5xx, LABEL("code", "5xx") },
    { "pantheon_http_requests_total", COUNTER, SERVER, not_answered, LABEL("code", "none") },
    { "pantheon_http_connections_refused_total", COUNTER, SERVER, turned_away, .help = "Connections that were told that there are too many (503 connection_limit), or cut where that took too long." },
    { "pantheon_manifest_generation", GAUGE, SERVER, generation, .help = "Number of the manifest in force." },
    { "pantheon_manifest_valid", GAUGE, SERVER, manifest_valid, .help = "1 when the manifest was accepted as it was last read." },
    { "pantheon_reconciled", GAUGE, SERVER, reconciled, .help = "1 when everything runs as declared and nothing is left to do." },
    { "pantheon_host_memory_bytes", GAUGE, SERVER, host_total, .help = "Memory of the host, or what the control group may have." },
    { "pantheon_host_memory_available_bytes", GAUGE, SERVER, host_available, .help = "What of the host's memory is not spoken for." },
    { "pantheon_host_pressure_level", GAUGE, SERVER, host_pressure, .help = "How short the host's memory is: 0 normal, 1 watch, 2 tight, 3 critical." },
    { "pantheon_die_up", GAUGE, DIE, die_up, .help = "1 while the die answers." },
    { "pantheon_die_memory_bytes", GAUGE, DIE, die_total, .help = "Memory of the die that may be planned with, reserve included." },
    { "pantheon_die_memory_reserved_bytes", GAUGE, DIE, die_reserve, .help = "What the manifest keeps free." },
    { "pantheon_die_memory_held_bytes", GAUGE, DIE, die_ours, .help = "Held by our models; one that is being loaded counts in full." },
    { "pantheon_die_memory_foreign_bytes", GAUGE, DIE, die_foreign, .help = "Held by others, as the driver says." },
    { "pantheon_die_pressure_level", GAUGE, DIE, die_pressure, .help = "How short the die's memory is, as that of the host; a host die's is the host's." },
    { "pantheon_die_temperature_celsius", GAUGE, DIE, die_temperature, .help = "Where the driver says it." },
    { "pantheon_die_power_watts", GAUGE, DIE, die_power, .help = "Where the driver says it." },
    { "pantheon_die_ecc_errors_total", COUNTER, DIE, die_corrected, .help = "Errors of the die's memory since its driver was loaded, where it says them.", LABEL("kind", "corrected") },
    { "pantheon_die_ecc_errors_total", COUNTER, DIE, die_uncorrected, LABEL("kind", "uncorrected") },
    { "pantheon_model_ready", GAUGE, MODEL, model_ready, .help = "1 while the model serves." },
    { "pantheon_model_state", GAUGE, STATE, model_in_state, .help = "1 for the state that the model is in, 0 for the others." },
    { "pantheon_model_loads_total", COUNTER, MODEL, loads, .help = "Loads that succeeded." },
    { "pantheon_model_load_failures_total", COUNTER, MODEL, load_failures, .help = "Loads that failed." },
    { "pantheon_file_bytes", GAUGE, MODEL, file_bytes, .help = "Size of the model's file, if a URL or a sha256 is declared for it and the size is known; else 0." },
    { "pantheon_file_here_bytes", GAUGE, MODEL, file_here, .help = "What of it is on the disk; of one that is being checked, what has been read." },
    { "pantheon_file_bytes_per_second", GAUGE, MODEL, file_rate, .help = "How fast it is coming; 0 while it is not." },
    { "pantheon_fetched_bytes_total", COUNTER, SERVER, fetched, .help = "Bytes of model files that came over the network, summed up when each download ends." },
    { "pantheon_replica_ready", GAUGE, COPY, ready, .help = "1 while this copy takes requests." },
    { "pantheon_requests_total", COUNTER, COPY, completed, .help = "Requests that ended, by outcome; refused ones were not taken (queue full, draining, failed), those handed over went to another copy when this one failed, and end there.", LABEL("outcome", "completed") },
    { "pantheon_requests_total", COUNTER, COPY, failed, LABEL("outcome", "failed") },
    { "pantheon_requests_total", COUNTER, COPY, cancelled, LABEL("outcome", "cancelled") },
    { "pantheon_requests_total", COUNTER, COPY, refused, LABEL("outcome", "refused") },
    { "pantheon_requests_total", COUNTER, COPY, handed_over, LABEL("outcome", "handed_over") },
    { "pantheon_requests_running", GAUGE, COPY, running, .help = "Requests that run." },
    { "pantheon_requests_queued", GAUGE, COPY, queued, .help = "Requests that wait for a slot." },
    { "pantheon_slots", GAUGE, COPY, max_concurrent, .help = "Requests that may run at once." },
    { "pantheon_queue_places", GAUGE, COPY, queue_depth, .help = "Requests that may wait, as declared." },
    { "pantheon_prompt_tokens_total", COUNTER, COPY, prefilled, .help = "Tokens of prompts that were computed." },
    { "pantheon_prompt_tokens_cached_total", COUNTER, COPY, cached, .help = "Tokens of prompts that were found in kept KV." },
    { "pantheon_cache_misses_total", COUNTER, COPY, missed_off, .help = "Prompts of which more might have been found in kept KV, by why it was not; not those of embeddings.", LABEL("reason", "off") },
    { "pantheon_cache_misses_total", COUNTER, COPY, missed_empty, LABEL("reason", "empty") },
    { "pantheon_cache_misses_total", COUNTER, COPY, missed_diverged, LABEL("reason", "diverged") },
    { "pantheon_cache_misses_total", COUNTER, COPY, missed_evicted, LABEL("reason", "evicted") },
    { "pantheon_cache_misses_total", COUNTER, COPY, missed_window, LABEL("reason", "window") },
    { "pantheon_cache_misses_total", COUNTER, COPY, missed_state, LABEL("reason", "state") },
    { "pantheon_generated_tokens_total", COUNTER, COPY, generated, .help = "Tokens of answers." },
    { "pantheon_draft_tokens_total", COUNTER, COPY, drafted, .help = "Tokens that were guessed and checked in steps of decoding." },
    { "pantheon_draft_tokens_accepted_total", COUNTER, COPY, accepted, .help = "Those of them that were right, and went into answers." },
    { "pantheon_reasoning_tokens_total", COUNTER, COPY, reasoning, .help = "Those of them that were thoughts, summed up when each request ends." },
    { "pantheon_tool_calls_total", COUNTER, COPY, calls, .help = "Calls of functions in answers, summed up when each request ends." },
    { "pantheon_grammars_total", COUNTER, COPY, grammars_compiled, .help = "Grammars, schemas and lists of tools that requests brought.", LABEL("outcome", "compiled") },
    { "pantheon_grammars_total", COUNTER, COPY, grammars_found, LABEL("outcome", "found") },
    { "pantheon_grammar_compile_seconds_total", COUNTER, COPY, grammar_seconds, .help = "Seconds that compiling them took." },
    { "pantheon_grammar_bytes", GAUGE, COPY, grammar_bytes, .help = "Host memory of those that are kept, and of what they remember of the vocabulary." },
    { "pantheon_queue_seconds_total", COUNTER, COPY, queue_seconds, .help = "Seconds that requests waited before they ran, summed up when each ends." },
    { "pantheon_prefill_seconds_total", COUNTER, COPY, prefill_seconds, .help = "Seconds from a request's start to its first token, summed up when each ends." },
    { "pantheon_decode_seconds_total", COUNTER, COPY, decode_seconds, .help = "Seconds from a request's first token to its end, summed up when each ends." },
    { "pantheon_worker_turns_total", COUNTER, COPY, turns, .help = "Steps and idle ticks of the copy's worker; one that stands still hangs." },
    { "pantheon_context_limit_tokens", GAUGE, COPY, context, .help = "Most tokens of prompt and answer together." },
    { "pantheon_kv_cache_bytes", GAUGE, COPY, kv_total, .help = "Size of the KV pool." },
    { "pantheon_kv_cache_used_bytes", GAUGE, COPY, kv_used, .help = "What of it running requests and kept conversations hold." },
    { "pantheon_kv_floor_pages", GAUGE, COPY, kv_small, .help = "Pages of KV that are held at the floor type." },
    { "pantheon_kv_cache_promised_bytes", GAUGE, COPY, kv_promised, .help = "Host memory that running requests hold of it and have not touched yet." },
    { "pantheon_pressure_level", GAUGE, COPY, pressure, .help = "How short memory is where the copy is: 0 normal, 1 watch, 2 tight, 3 critical." },
    { "pantheon_pressure_rungs", GAUGE, COPY, rungs, .help = "Rungs of the ladder (docs/memory.md) that the copy gives way by." },
    { "pantheon_prefill_limit_tokens", GAUGE, COPY, prefill_limit, .help = "Most tokens of prompts in a step." },
    { "pantheon_model_memory_bytes", GAUGE, PART, part_weights, .help = "Memory that a copy takes on a die, as measured; weights may be a mapped file.", LABEL("kind", "weights") },
    { "pantheon_model_memory_bytes", GAUGE, PART, part_kv, LABEL("kind", "kv") },
    { "pantheon_model_memory_bytes", GAUGE, PART, part_scratch, LABEL("kind", "scratch") },
};
enum { N_METRICS = sizeof metrics / sizeof *metrics };

bool pd_metric_doc(size_t i, struct pd_metric_doc *ret) {
    static _Thread_local char labels[96];
    if (i >= N_METRICS) return false;
    const struct metric *m = &metrics[i];
    const char *of_scope = scope_labels[m->scope];
    snprintf(labels, sizeof labels, "%s%s%s", of_scope, *of_scope && m->label ? ", " : "", m->label ? m->label : "");
    *ret = (struct pd_metric_doc){ .name = m->name, .type = m->type == COUNTER ? "counter" : "gauge", .help = m->help, .labels = labels, .value = m->label_value };
    return true;
}

static void put_sample(struct fo_buf *out, const struct metric *m, const struct at *a) {
    double v = m->value(a);
    char before = '{', replica[16];
    if (isnan(v)) return; /* nobody says it */
    fo_buf_puts(out, m->name);
    if (m->scope == BUILD) {
        pd_metric_label(out, &before, "version", pn_version());
        pd_metric_label(out, &before, "build", pn_build());
        pd_metric_label(out, &before, "backend", fo_device_build_backend());
    }
    if (a->entry) pd_metric_label(out, &before, "model", a->entry->decl->name);
    if (m->scope == STATE) pd_metric_label(out, &before, "state", pd_model_state_name(a->state));
    if (a->copy) {
        snprintf(replica, sizeof replica, "%u", pn_served_replica(a->copy->served));
        pd_metric_label(out, &before, "replica", replica);
    }
    if (a->die) pd_metric_label(out, &before, "die", a->die->name);
    if (a->part) pd_metric_label(out, &before, "die", a->part->dev->die.name);
    if (m->label) pd_metric_label(out, &before, m->label, m->label_value);
    bool whole = v == floor(v) && fabs(v) < 0x1p53;
    fo_buf_printf(out, whole ? "%s %.0f\n" : "%s %.9g\n", before == ',' ? "}" : "", v);
}

static void put_samples(struct fo_buf *out, const struct metric *m, struct pd_app *app, const struct pd_view *v, const struct pd_copies *copies) {
    static const struct fo_sensors none;
    struct at a = { .app = app, .view = v };
    switch (m->scope) {
    case BUILD:
    case SERVER:
        put_sample(out, m, &a);
        break;
    case DIE:
        for (size_t i = 0; i < v->facts->n_dies; i++) {
            a.die = &v->facts->dies[i];
            a.sensors = v->sensors ? &v->sensors[i] : &none;
            put_sample(out, m, &a);
        }
        break;
    case MODEL:
    case STATE:
        for (size_t i = 0; i < v->n; i++) {
            a.entry = &v->entries[i];
            for (a.state = m->scope == STATE ? PD_MODEL_WAITING : PD_MODEL_LEAVING; a.state <= PD_MODEL_LEAVING; a.state++) put_sample(out, m, &a);
        }
        break;
    case COPY:
    case PART:
        for (size_t i = 0; i < copies->n; i++) {
            a.copy = &copies->copy[i];
            a.entry = a.copy->entry;
            a.info = pn_model_info(pn_served_model(a.copy->served));
            if (m->scope == COPY) put_sample(out, m, &a);
            for (int k = 0; m->scope == PART && k < a.info->n_parts; k++) {
                a.part = &a.info->parts[k];
                put_sample(out, m, &a);
            }
        }
        break;
    case N_SCOPES:
        break;
    }
}

void pd_get_metrics(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_copies copies;
    struct fo_buf out;
    struct pd_view *v = pd_app_view(app);
    bool ok = pd_copies_look(app, v, &copies);
    fo_buf_init(&out, MAX_PAGE);
    for (size_t i = 0; i < N_METRICS && ok; i++) {
        const struct metric *m = &metrics[i];
        if (m->help) pd_metric_head(&out, m->name, m->type == COUNTER ? "counter" : "gauge", m->help);
        put_samples(&out, m, app, v, &copies);
    }
    pd_copies_done(&copies);
    pd_view_put(v);
    if (!ok) out.failed = true;
    pd_metric_reply(c, &out);
    fo_buf_done(&out);
}
