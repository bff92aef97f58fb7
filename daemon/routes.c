/* Routing is a walk over a short table: see routes.h. */
#include "daemon/routes.h"

#include <stdio.h>
#include <string.h>

#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/log.h"
#include "daemon/metrics.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/reasoning.h"
#include "daemon/responses.h"
#include "daemon/sse.h"
#include "daemon/tools.h"
#include "daemon/whose.h"
#include "foundry/base/buf.h"
#include "foundry/base/log.h"

static const struct pd_route routes[] = {
    { "GET", "/", pd_get_root, true, .doc = "Name, version, build, backend, and the models with their status. To a browser (Accept: text/html) a page with the state of the server, for whoever may see /admin, and a chat to try a model." },
    { "GET", "/health", pd_get_health, true, .doc = "That the process answers, and each model's counters: a snapshot that waits for no model.", .polled = true },
    { "GET", "/ready", pd_get_ready, true, .doc = "200 when the first pass over the manifest is done and a declared model serves (or none is declared); else 503 with the reason.", .polled = true },
    { "GET", "/v1/models", pd_get_models, false, .doc = "The declared models, whether they serve, and what they hold (context_window, max_output_tokens, status)." },
    { "GET", "/v1/models/{id}", pd_get_model, false, .doc = "One of them, by name or alias; `/` and `:` in the name may be percent-encoded." },
    { "POST", "/v1/chat/completions", pd_post_chat, false, .doc = "A conversation through the model's own template; whole or as a stream.", .fields = PD_API_CHAT },
    { "POST", "/v1/completions", pd_post_completions, false, .doc = "Plain text or token ids, no template; whole or as a stream.", .fields = PD_API_TEXT },
    { "POST", "/v1/embeddings", pd_post_embeddings, false, .doc = "A vector of unit length for each input, pooled as the model's metadata says.", .fields = PD_API_EMBED },
    { "POST", "/v1/responses", pd_post_responses, false, .doc = "The part of OpenAI's Responses API that is a chat; whole or as a stream.", .fields = PD_API_RESPONSES },
    { "POST", "/tokenize", pd_post_tokenize, false,
      .doc = "The token ids of a text or of a conversation's prompt: `tokens`, `count`, and `max_model_len`, the most that the model takes.", .fields = PD_API_TOKENIZE },
    { "POST", "/detokenize", pd_post_detokenize, false,
      .doc = "The text of token ids, as `content` and as `prompt`: the bytes of each, one after the other; what is not UTF-8 becomes U+FFFD.", .fields = PD_API_DETOKENIZE },
    { "POST", "/apply-template", pd_post_apply_template, false, .doc = "What /v1/chat/completions would give the model for the same body: `prompt`.", .fields = PD_API_CHAT | PD_API_TEMPLATE },
    { "GET", "/v1/sessions/{id}", pd_get_session, false,
      .doc = "A session as bytes, of the key that asks, to be kept by its user: the text of it that was used last, whole or as far as it can be gone on from while it runs. `x-session-tokens` has its tokens. Without `model` it is the only one, or `default`.",
      .query = "model", .type = "application/octet-stream", .answers_at_once = true },
    { "PUT", "/v1/sessions/{id}", pd_put_session, false,
      .doc = "Takes the bytes of a session back, under any id: `tokens` of it are not computed again when its conversation goes on. They may be as many as the longest session of the model has, whatever server.limits.body says; what is cut or altered, or of another model, is refused, and nothing of it stays.",
      .query = "model", .takes = "application/octet-stream", .answers_at_once = true },
    { "DELETE", "/v1/sessions/{id}", pd_delete_session, false, .doc = "Forgets what is kept of a session, also on disk; what runs of it is kept when it ends.", .query = "model", .answers_at_once = true },
    { "GET", "/slots", pd_get_slots, true,
      .doc = "What each loaded copy of a model is doing, slot by slot: state, counts of tokens, the request's id, and the limits. A snapshot that waits for no model; nothing of what requests say.", .polled = true },
    { "GET", "/metrics", pd_get_metrics, true, .doc = "For Prometheus (text format 0.0.4): the metrics below. A snapshot that waits for no model.", .type = "text/plain", .polled = true },
    { "GET", "/openapi.json", pd_get_openapi, true, .doc = "This API as OpenAPI 3.1, made of the same tables as this page." },
    { "GET", "/admin/dies", pd_get_admin_dies, true, .doc = "Host memory and dies: budget, reserve, held by us, used by others, health; temperature, power and ECC errors where the driver says them." },
    { "GET", "/admin/models", pd_get_admin_models, true,
      .doc = "Each model's status: generation and observed_generation, placement with the type of its KV and the bytes estimated and measured, limits, conditions, counters, last events; and the server's conditions." },
    { "GET", "/admin/events", pd_get_admin_events, true,
      .doc = "What happened (events.md): the newest `limit` (100; 1,000 are kept), of `model` alone if it is given; `?since=N` has those behind number N, the oldest of them first. With Accept: text/event-stream all of them, and then each as "
      "it happens; a client that comes back goes on behind its Last-Event-ID.", .query = "since limit model", .answers_at_once = true },
    { "GET", "/admin/plan", pd_get_admin_plan, true,
      .doc = "The last plan: what it was made for and when, its verdicts and the steps that are left (`plan`, and as `text`), and the steps that were performed, with their times." },
    { "GET", "/admin/live", pd_get_admin_live, true,
      .doc = "What the page at / shows, as it changes (text/event-stream): `part` events with the HTML of a part, and each second a `sample` of the counters.", .type = "text/event-stream" },
    { "GET", "/admin/facts", pd_get_admin_facts, true, .doc = "What the planner is given, looked at afresh: for `pantheon-reconcile --save-facts`." },
    { "POST", "/admin/models/load", pd_post_admin_load, false,
      .doc = "Loads a model that the manifest does not declare (the body has the manifest's model keys), or ends an unload by hand (the body has `name` alone). `?wait=1` answers when it serves or not; `?dry_run=1` changes nothing and answers which keys would be changed, and what that costs.", .query = "wait dry_run" },
    { "POST", "/admin/models/unload", pd_post_admin_unload, false, .doc = "Unloads `name`; a declared model stays so until it is loaded here or a new manifest comes. `?wait=1` answers when it is done.", .query = "wait" },
    { "POST", "/admin/reconcile", pd_post_admin_reconcile, false,
      .doc = "Reads the manifest again. `?wait=1` answers when it is accepted or refused (400 with `report`), `?wait=applied` when everything is done; `?stream=1` sends what happens, one JSON object a line, "
      "and the result last. `prune=1` unloads ad hoc models, `if_generation=N` refuses with 409 when another generation is in force.", .query = "wait stream prune if_generation" },
    { 0 },
};
enum { N_ROUTES = sizeof routes / sizeof *routes - 1 };

const struct pd_route *pd_routes(void) {
    return routes;
}

const struct pd_route *pd_route_at(size_t i) {
    return i < N_ROUTES ? &routes[i] : NULL;
}

/* Whether `path` [len] is the row's; *ret_rest is where its {id} starts, NULL when it has none. */
static bool matches(const struct pd_route *r, const char *path, size_t len, const char **ret_rest) {
    const char *brace = strchr(r->path, '{');
    *ret_rest = NULL;
    if (!brace) return strlen(r->path) == len && memcmp(r->path, path, len) == 0;
    size_t fixed = (size_t)(brace - r->path);
    if (len <= fixed || memcmp(r->path, path, fixed) != 0) return false;
    *ret_rest = path + fixed;
    return true;
}

static void allow_add(char *allow, size_t size, const char *method) {
    size_t n = strlen(allow);
    snprintf(allow + n, size - n, "%s%s", n ? ", " : "", method);
}

const struct pd_route *pd_route_find(const struct pd_route *rows, const char *method, const char *path, char *param, size_t param_size, char *allow, size_t allow_size, bool *ret_ok) {
    const struct pd_route *found = NULL;
    size_t len = strlen(path);
    bool head = strcmp(method, "HEAD") == 0, star = strcmp(path, "*") == 0;
    while (len > 1 && path[len - 1] == '/') len--;
    allow[0] = param[0] = '\0';
    *ret_ok = true;
    for (const struct pd_route *r = rows; r->method; r++) {
        const char *rest = NULL;
        if (!star && !matches(r, path, len, &rest)) continue;
        if (!strstr(allow, r->method)) allow_add(allow, allow_size, r->method);
        if (star || found || strcmp(r->method, head ? "GET" : method) != 0) continue;
        found = r;
        if (rest) {
            snprintf(param, param_size, "%.*s", (int)(len - (size_t)(rest - path)), rest);
            *ret_ok = pd_percent_decode(param);
        }
    }
    if (strstr(allow, "GET")) allow_add(allow, allow_size, "HEAD");
    if (allow[0]) allow_add(allow, allow_size, "OPTIONS");
    return found;
}

/* A key of the query that the row does not have: into `key`. Of a row that has none anything is taken: some clients always send one. */
static bool has_unknown(const struct pd_route *r, const char *query, char *key, size_t size) {
    for (const char *p = query; r->query && *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t n = strcspn(p, "=&");
        bool known = n == 0;
        for (const char *w = r->query; !known && *w; w += strcspn(w, " "), w += *w == ' ') known = strcspn(w, " ") == n && memcmp(w, p, n) == 0;
        if (known) continue;
        snprintf(key, size, "%.*s", (int)n, p);
        return true;
    }
    return false;
}

bool pd_route_in_pieces(const struct pd_head *head) {
    char param[PD_MAX_URI_BYTES + 1], allow[64];
    bool ok;
    const struct pd_route *r = pd_route_find(routes, head->method, head->path, param, sizeof param, allow, sizeof allow, &ok);
    return r && ok && r->takes;
}

void pd_dispatch(void *ctx, struct pd_call *c) {
    pd_dispatch_by(routes, ctx, c);
}

void pd_dispatch_by(const struct pd_route *rows, struct pd_app *app, struct pd_call *c) {
    char param[PD_MAX_URI_BYTES + 1], allow[64], quoted[256], key[64];
    bool ok;
    struct pd_error x;
    const char *method = c->head->method, *path = c->head->path;
    const struct pd_route *r = pd_route_find(rows, method, path, param, sizeof param, allow, sizeof allow, &ok);
    FO_DEBUGF("http", "event=request request=%s method=%s path=%s body_bytes=%zu", c->id, method, pd_log_quote(path, quoted, sizeof quoted), c->n_body);
    if (c->draining && (!r || !r->while_draining)) {
        pd_error_set(&x, PD_ERR_DRAINING, NULL, "The server is stopping and takes no new requests.");
    } else if (!ok) {
        pd_error_set(&x, PD_ERR_MALFORMED, NULL, "The path has a broken percent escape.");
    } else if (r && has_unknown(r, c->head->query, key, sizeof key)) {
        pd_error_set(&x, PD_ERR_UNKNOWN_PARAM, key, "'%s' is not known here; the query may have %s.", key, r->query);
    } else if (r) {
        c->note.polled = r->polled;
        r->fn(app, c, param);
        return;
    } else if (!allow[0]) {
        pd_error_set(&x, PD_ERR_NO_ROUTE, NULL, "There is no path '%.200s' here. The API begins at /v1, as in /v1/models and /v1/chat/completions.", path);
    } else if (strcmp(method, "OPTIONS") == 0) {
        char line[96];
        snprintf(line, sizeof line, "Allow: %s\r\n", allow);
        pd_reply(c, 204, NULL, line, "", 0);
        return;
    } else {
        pd_error_set(&x, PD_ERR_METHOD, NULL, "'%.200s' has no method %s; it has %s.", path, method, allow);
        x.allow = allow;
    }
    pd_error_reply(c, &x);
}

static void doc_params(struct fo_buf *out, unsigned api) {
    static const struct {
        int verdict;
        const char *title;
    } parts[] = { { PD_HONOURED, "Honoured" }, { PD_REFUSED, "Known and refused (unless null, false, 0 or empty)" }, { PD_IGNORED, "Taken and ignored: the text does not depend on them" } };
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        struct pd_param_doc d;
        bool any = false;
        for (size_t i = 0; pd_param_doc(i, &d); i++) {
            if (!(d.api & api) || (int)d.verdict != parts[k].verdict) continue;
            if (!any) fo_buf_printf(out, "\n**%s**\n\n| field | values | |\n|---|---|---|\n", parts[k].title);
            any = true;
            fo_buf_printf(out, "| `%s` | %s | %s |\n", d.name, d.range, d.doc);
        }
    }
}

static void doc_metrics(struct fo_buf *out) {
    struct pd_metric_doc d;
    fo_buf_puts(out, "\n## Metrics\n\nOf /metrics. A model's copies are told apart by `replica`; their counters start at 0 when they are loaded.\n\n"
                     "| name | type | labels | |\n|---|---|---|---|\n");
    for (size_t i = 0; pd_metric_doc(i, &d); i++)
        if (d.help) fo_buf_printf(out, "| `%s` | %s | %s | %s |\n", d.name, d.type, d.labels, d.help);
}

void pd_routes_doc(struct fo_buf *out) {
    fo_buf_puts(out, "<!-- Generated by the tables in daemon/routes.c, params.c, api_metrics.c and oai.c (UPDATE=1 tests/daemon/test_routes): do not edit. -->\n"
                     "# The HTTP API\n\nThe conventions are OpenAI's. Every answer has an `x-request-id` header; every error has a JSON body. An answer that was touched by what the server gives way by when memory is short says how, in `x-pantheon-pressure` (memory.md).\n\n## Endpoints\n\n"
                     "| method | path | |\n|---|---|---|\n");
    for (size_t i = 0; i < N_ROUTES; i++) fo_buf_printf(out, "| %s | `%s` | %s |\n", routes[i].method, routes[i].path, routes[i].doc);
    fo_buf_puts(out, "\nA slash at the end of a path does not count, nor does a query, but for the POST pages of /admin, which refuse keys that they do not know. Where GET is, HEAD is; OPTIONS answers 204 with Allow on every path there is. While the server stops, "
                     "everything but /, /health, /ready, /slots, /metrics, /openapi.json and the pages of /admin is a 503 `draining`. A client that closes its connection, also only its sending side, cancels its request.\n");
    fo_buf_puts(out, "\n## Fields of /v1/chat/completions\n\nnull means unset. A field that is in none of these tables is an error (`unknown_parameter`): "
                     "ignoring it would hide a typo.\n");
    doc_params(out, PD_API_CHAT);
    fo_buf_puts(out, "\n## Fields of /v1/completions\n");
    doc_params(out, PD_API_TEXT);
    fo_buf_puts(out, "\n## Fields of /v1/embeddings\n");
    doc_params(out, PD_API_EMBED);
    fo_buf_puts(out, "\nThe answer is `{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\",\"embedding\"}],\"model\",\"usage\":{\"prompt_tokens\",\"total_tokens\"}}`, in the order of "
                     "the inputs. A vector is what the model makes of the input behind its last norm, pooled as `<architecture>.pooling_type` of its metadata says (1: the mean over all "
                     "tokens, 2: the first token, 3: the last; without the key the last, which alone has seen all of the input) and divided by its length. Models whose pooling makes no vector of a "
                     "text (0: none, 4: rank) are refused by `model`. An input may be as long as the model's cap; one that is longer refuses the request, `param` says which. Inputs are "
                     "computed one after the other in one place of the queue, each behind the requests that wait already, and a vector depends on its input alone.\n");
    fo_buf_puts(out, "\n## Fields of /v1/responses\n");
    doc_params(out, PD_API_RESPONSES);
    fo_buf_puts(out, "\n## Fields of /tokenize\n");
    doc_params(out, PD_API_TOKENIZE);
    fo_buf_puts(out, "\n## Fields of /detokenize\n");
    doc_params(out, PD_API_DETOKENIZE);
    fo_buf_puts(out, "\n## Fields of /apply-template\n\nThose of /v1/chat/completions, so that the same body can be sent, and:\n");
    doc_params(out, PD_API_TEMPLATE);
    pd_tools_doc(out);
    pd_reasoning_doc(out);
    pd_responses_doc(out);
    pd_sse_doc(out);
    pd_whose_doc(out);
    fo_buf_puts(out, "\n## Streams\n\n`Content-Type: " "text/event-stream; charset=utf-8" "`, one JSON object a `data:` line, the end is `data: [DONE]`. The head is sent right after "
                     "admission; a silent stream carries the comment `: ping` every `server.sse_ping` (10 seconds). With `stream_options.include_usage` one more chunk with empty `choices` "
                     "has the usage. An error in a stream is an event with an `error` object (with `request_id`), and no [DONE] follows. "
                     "The events of /v1/responses are told of above.\n");
    doc_metrics(out);
    fo_buf_puts(out, "\n## Errors\n\n`{\"error\":{\"message\",\"type\",\"param\",\"code\"}}`; `param` is the JSON path of what is wrong (`messages.2.content`) or null.\n\n"
                     "| status | type | code | |\n|---|---|---|---|\n");
    for (int i = 0; i < PD_N_ERRORS; i++) {
        const struct pd_error_row *r = pd_error_row((enum pd_error_id)i);
        fo_buf_printf(out, "| %d | %s | %s | %s%s |\n", r->status, r->type, r->code ? r->code : "null", r->doc, r->no_retry ? " Carries `x-should-retry: false`." : "");
    }
    fo_buf_puts(out, "\n`budget` of a context_length_exceeded error: model, prompt_tokens, max_tokens, ctx_cap, effective_ctx, limited_by, kv_bytes_per_token, "
                     "kv_bytes_needed, kv_bytes_available, max_tokens_that_fit.\n");
}
