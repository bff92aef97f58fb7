/* The manifest: THE key table, and what rows cannot say.
 *
 * Every key of the language is a row here, also those that this version does not honour yet (`later`): they are refused in their
 * own words instead of as unknown, and stand in the reference page. From a row come the parse, the bounds error with its place, the
 * default, did-you-mean, docs/manifest.md, the JSON Schema, and what changing the key costs (live, drain, reload).
 *
 * Two C objects are filled: the manifest, and one model that `defaults:` describes; each model starts as a copy of that one. */
#include "config/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "config/report.h"
#include "config/scalar.h"
#include "config/schema.h"
#include "config/yaml.h"
#include "foundry/base/region.h"

#define KiB       1024.0
#define MiB       (1024.0 * KiB)
#define GiB       (1024.0 * MiB)
#define TiB       (1024.0 * GiB)
#define SECONDS   1000.0
#define MINUTES   (60 * SECONDS)
#define HOURS     (60 * MINUTES)
#define IN(field) CF_AT(struct cf_manifest, field)
#define OF(field) CF_AT(struct cf_model, field)
#define KEYS(id, where, type)                                                                                                              \
    static const struct cf_keys id = { .in = where, .rows = id##_rows, .n = sizeof id##_rows / sizeof *id##_rows, .size = sizeof(type) }

enum { MAX_MANIFEST_BYTES = 8 << 20, MAX_TREE_BYTES = 12 << 20 };

struct root {
    struct cf_manifest m;
    struct cf_model defaults;
};

/* --- THE key table ---------------------------------------------------------------------------------------------------------- */
/* A row reads better in two lines than in ten: */
/* clang-format off */
static const struct cf_key limits_rows[] = {
    { .name = "body", .kind = CF_BYTES, IN(server.limits.body_bytes), .min = KiB, .max = GiB, .def = "32MiB",
      .change = CF_LIVE, .help = "Largest request body; a larger one is answered 413." },
    { .name = "header_time", .kind = CF_MS, IN(server.limits.header_time_ms), .min = 100, .max = 10 * MINUTES,
      .def = "10s", .change = CF_LIVE, .help = "Most time a client may take to send a request's header." },
    { .name = "body_idle", .kind = CF_MS, IN(server.limits.body_idle_ms), .min = 100, .max = HOURS, .def = "30s",
      .change = CF_LIVE, .help = "Longest pause while a body arrives." },
    { .name = "write_idle", .kind = CF_MS, IN(server.limits.write_idle_ms), .min = 100, .max = HOURS, .def = "60s",
      .change = CF_LIVE, .help = "Longest time a client may leave what was sent to it unread." },
    { .name = "connections", .kind = CF_COUNT, IN(server.limits.connections), .min = 1, .max = 65536, .def = "512",
      .change = CF_LIVE, .help = "Connections open at once." },
    { .name = "connections_per_address", .kind = CF_COUNT, IN(server.limits.connections_per_address), .min = 1,
      .max = 65536, .def = "64", .change = CF_LIVE,
      .help = "Connections open at once from one address. Loopback and Unix sockets are exempt." },
};
KEYS(limits, "'server.limits'", struct cf_manifest);

static const struct cf_key server_rows[] = {
    { .name = "listen", .kind = CF_LIST, .each = CF_ADDRESS, IN(server.listen),
      .count = offsetof(struct cf_manifest, server.n_listen), .min = 1, .max = 16, .def = "127.0.0.1:8080", .change = CF_DRAIN,
      .also = "port bind address addr host_port listen_address",
      .help = "Where HTTP is served: `\"127.0.0.1:8080\"`, `\"[::1]:8080\"`; port 0 takes a free one. Anything but loopback needs "
              "`insecure: true`." },
    { .name = "insecure", .kind = CF_FLAG, IN(server.insecure), .def = "false", .change = CF_LIVE,
      .help = "Permits listening off loopback although no keys protect the API." },
    { .name = "admin_socket", .kind = CF_PATH, .later = true, .def = "/run/pantheon/admin.sock", .change = CF_DRAIN,
      .help = "The Unix socket of the admin API, group `pantheon`, mode 0660." },
    { .name = "api_keys_file", .kind = CF_PATH, .later = true, .change = CF_LIVE, .also = "api_key api_keys keys",
      .help = "API keys: `name:sha256` a line, then optional words: `admin`, `max_concurrent=N`." },
    { .name = "limits", .kind = CF_GROUP, .keys = &limits, .help = "What a client may take." },
    { .name = "drain", .kind = CF_MS, IN(server.drain_ms), .min = 0, .max = 24 * HOURS, .def = "30s", .change = CF_LIVE,
      .help = "How long running requests may go on when the daemon stops." },
};
KEYS(server, "'server'", struct cf_manifest);

static const struct cf_key settle_rows[] = {
    { .name = "timeout", .kind = CF_MS, .later = true, .min = 0, .max = HOURS, .def = "10s", .change = CF_LIVE,
      .help = "How long to wait after an unload for memory to come back." },
    { .name = "stable", .kind = CF_MS, .later = true, .min = 0, .max = HOURS, .def = "500ms", .change = CF_LIVE,
      .help = "Free memory counts as settled when it has not risen for this long." },
};
KEYS(settle, "'host.settle'", struct cf_manifest);

static const struct cf_key host_rows[] = {
    { .name = "ram_reserve", .kind = CF_BYTES, IN(host.ram_reserve_bytes), .min = 0, .max = 64 * TiB, .def = "1GiB",
      .change = CF_LIVE, .help = "Available memory (MemAvailable, or what the cgroup has left) is never taken below this." },
    { .name = "threads", .kind = CF_COUNT, IN(host.threads), .autos = true, .min = 1, .max = 1024, .def = "auto",
      .change = CF_RELOAD, .also = "n_threads num_thread num_threads cpus",
      .help = "Compute threads; `auto` is every CPU that affinity and the cgroup allow." },
    { .name = "settle", .kind = CF_GROUP, .keys = &settle, .later = true, .help = "When freed memory counts as back." },
    { .name = "load_timeout", .kind = CF_MS, .later = true, .min = SECONDS, .max = 24 * HOURS, .def = "10min", .change = CF_LIVE,
      .help = "A load that takes longer is given up and tried again later." },
};
KEYS(host, "'host'", struct cf_manifest);

static const struct cf_key die_rows[] = {
    { .name = "name", .kind = CF_NAME, .later = true, .must = true, .change = CF_RELOAD, .help = "What models call it." },
    { .name = "kind", .kind = CF_CHOICE, .later = true, .must = true, .words = "cpu|cuda|tt|metal|sim", .change = CF_RELOAD,
      .help = "The backend." },
    { .name = "pci", .kind = CF_TEXT, .later = true, .change = CF_RELOAD,
      .help = "PCI address, `\"0000:04:00.0\"`: stays the same when cards are added." },
    { .name = "memory", .kind = CF_BYTES, .later = true, .min = MiB, .max = 64 * TiB, .change = CF_RELOAD,
      .help = "Budget, where it is not all the die has; a `cpu` die's is carved out of host memory." },
    { .name = "reserve", .kind = CF_BYTES, .later = true, .min = 0, .max = 64 * TiB, .change = CF_LIVE, .help = "Memory left to others." },
};
KEYS(die, "a die", struct cf_manifest);

static const struct cf_key pressure_rows[] = {
    { .name = "watch", .kind = CF_PERCENT, .later = true, .min = 1, .max = 100, .def = "80%", .change = CF_LIVE,
      .help = "Use at which caches are given back." },
    { .name = "tight", .kind = CF_PERCENT, .later = true, .min = 1, .max = 100, .def = "90%", .change = CF_LIVE,
      .help = "Use at which concurrency is lowered." },
    { .name = "critical", .kind = CF_PERCENT, .later = true, .min = 1, .max = 100, .def = "96%", .change = CF_LIVE,
      .help = "Use at which nothing new is admitted." },
    { .name = "leave", .kind = CF_PERCENT, .later = true, .min = 0, .max = 50, .def = "5%", .change = CF_LIVE,
      .help = "How far below a level use must fall to leave it." },
    { .name = "hold", .kind = CF_MS, .later = true, .min = 0, .max = 24 * HOURS, .def = "60s", .change = CF_LIVE,
      .help = "How long it must stay there." },
};
KEYS(pressure, "'pressure'", struct cf_manifest);

static const struct cf_key queue_rows[] = {
    { .name = "depth", .kind = CF_COUNT, OF(queue_depth), .min = 0, .max = 4096, .def = "8", .change = CF_LIVE,
      .also = "size length max", .help = "Requests that may wait; one more is answered 429 with Retry-After." },
    { .name = "timeout", .kind = CF_MS, OF(queue_timeout_ms), .min = 0, .max = 24 * HOURS, .def = "120s", .change = CF_LIVE,
      .help = "Longest wait in the queue; then 429." },
};
KEYS(queue, "'queue'", struct cf_model);

#define MAX_SESSIONS                                                                                                                      \
    { .name = "max_sessions", .kind = CF_COUNT, OF(max_sessions), .min = 1, .max = 1024, .def = "4", .change = CF_RELOAD, \
      .also = "sessions slots n_slots", .help = "Sessions whose memory is held at once." }
#define MAX_CONCURRENT                                                                                                                    \
    { .name = "max_concurrent", .kind = CF_COUNT, OF(max_concurrent), .min = 1, .max = 64, .def = "2", .change = CF_LIVE, \
      .also = "parallel n_parallel num_parallel concurrency max_num_seqs",                                                               \
      .help = "Requests decoded together, at most `max_sessions`; where it is not written, it follows a lower `max_sessions`." }
#define QUEUE { .name = "queue", .kind = CF_GROUP, .keys = &queue, .help = "Requests that wait for their turn." }
#define DECODE_STALL                                                                                                                      \
    { .name = "decode_stall", .kind = CF_MS, .later = true, .min = 10, .max = MINUTES, .def = "500ms", .change = CF_LIVE,                  \
      .help = "Longest pause that a long prompt may cause in running answers." }

static const struct cf_key defaults_rows[] = { MAX_SESSIONS, MAX_CONCURRENT, QUEUE, DECODE_STALL };
KEYS(defaults, "'defaults'", struct cf_model);

static const struct cf_key source_rows[] = {
    { .name = "path", .kind = CF_PATH, OF(source_path), .must = true, .change = CF_RELOAD, .also = "file model gguf filename",
      .help = "The GGUF file. A relative path starts at the manifest's folder." },
    { .name = "url", .kind = CF_TEXT, .later = true, .change = CF_LIVE, .help = "Where to fetch the file from when it is absent." },
    { .name = "sha256", .kind = CF_TEXT, .later = true, .change = CF_RELOAD, .help = "The file's checksum, 64 hexadecimal digits." },
    { .name = "mirrors", .kind = CF_LIST, .each = CF_TEXT, .later = true, .max = 16, .change = CF_LIVE,
      .help = "Other places with the same file." },
};
KEYS(source, "'source'", struct cf_model);

static const struct cf_key kv_rows[] = {
    { .name = "type", .kind = CF_CHOICE, .words = "f16|q8_0|q4_0", .only = "f16", .def = "f16", .change = CF_RELOAD,
      .help = "How keys and values are stored." },
    { .name = "floor", .kind = CF_CHOICE, .later = true, .words = "f16|q8_0|q4_0", .def = "q4_0", .change = CF_LIVE,
      .help = "The smallest type that memory pressure may turn them into; `f16` forbids it." },
};
KEYS(kv, "'kv'", struct cf_model);

#define SAMPLING(field, k, ...)                                                                                                           \
    .name = #field, .kind = k, OF(sampling.field), CF_HAS(struct cf_model, sampling.has_##field), .change = CF_LIVE, __VA_ARGS__
static const struct cf_key sampling_rows[] = {
    { SAMPLING(temperature, CF_NUMBER, .min = 0, .max = 2), .also = "temp", .help = "0 always takes the likeliest token." },
    { SAMPLING(top_p, CF_NUMBER, .min = 0, .max = 1, .above_min = true),
      .help = "Keeps the likeliest tokens that add up to this; 1 keeps all." },
    { SAMPLING(top_k, CF_COUNT, .min = 0, .max = 1 << 20), .help = "Keeps this many tokens; 0 keeps all." },
    { SAMPLING(min_p, CF_NUMBER, .min = 0, .max = 1, .below_max = true),
      .help = "Drops tokens less likely than this share of the likeliest; 0 drops none." },
    { SAMPLING(repeat_penalty, CF_NUMBER, .min = 0, .max = 10, .above_min = true), .also = "repetition_penalty", .help = "1 is none." },
    { SAMPLING(presence_penalty, CF_NUMBER, .min = -2, .max = 2), .help = "As in OpenAI's API." },
    { SAMPLING(frequency_penalty, CF_NUMBER, .min = -2, .max = 2), .help = "As in OpenAI's API." },
};
KEYS(sampling, "'sampling'", struct cf_model);

static const struct cf_key model_rows[] = {
    { .name = "name", .kind = CF_NAME, OF(name), .must = true, .change = CF_RELOAD, .also = "id model model_name served_model_name",
      .help = "What clients send as `model`." },
    { .name = "aliases", .kind = CF_LIST, .each = CF_NAME, OF(aliases), .count = offsetof(struct cf_model, n_aliases), .max = 64,
      .change = CF_LIVE, .also = "alias", .help = "Other names for the same model." },
    { .name = "source", .kind = CF_GROUP, .keys = &source, .must = true, .also = "model_path gguf file", .help = "Where its weights are." },
    { .name = "dies", .kind = CF_LIST, .each = CF_NAME, .later = true, .max = 64, .change = CF_RELOAD,
      .also = "device devices gpus main_gpu tensor_split",
      .help = "The dies it is split over, in order; `auto:2` means any two. Absent: the engine places it." },
    { .name = "replicas", .kind = CF_LIST, .each = CF_LIST, .later = true, .max = 64, .change = CF_RELOAD,
      .help = "Copies of the model, each with its dies: `[ [ k80-1a ], [ k80-1b ] ]`. Not together with `dies`." },
    { .name = "ctx_cap", .kind = CF_COUNT, OF(ctx_cap), .autos = true, .min = 256, .max = 1 << 20, .def = "auto",
      .change = CF_RELOAD, .also = "n_ctx num_ctx ctx_size context context_length context_size ctx max_model_len max_context",
      .help = "Most tokens a session may hold, prompt and answer. `auto` is 8192, or what the model was trained for where that is less." },
    MAX_SESSIONS,
    MAX_CONCURRENT,
    QUEUE,
    DECODE_STALL,
    { .name = "reasoning_budget", .kind = CF_COUNT, .later = true, .min = 0, .max = 1 << 20, .change = CF_LIVE,
      .help = "Most tokens of thought before an answer." },
    { .name = "kv", .kind = CF_GROUP, .keys = &kv, .help = "The cache of keys and values." },
    { .name = "state", .kind = CF_CHOICE, .words = "loaded|on_demand|absent", .only = "loaded", .def = "loaded", .change = CF_LIVE,
      .help = "`loaded`: always there. `on_demand`: loaded by the first request. `absent`: kept in the file only." },
    { .name = "ttl", .kind = CF_MS, .later = true, .min = SECONDS, .max = 30 * 24 * HOURS, .change = CF_LIVE,
      .help = "`on_demand` only: unloaded after this long without a request." },
    { .name = "priority", .kind = CF_COUNT, .later = true, .min = 0, .max = 1000, .def = "0", .change = CF_LIVE,
      .help = "Higher ones are loaded first." },
    { .name = "memory", .kind = CF_CHOICE, .words = "gated|trust", .only = "gated", .def = "gated", .change = CF_RELOAD,
      .help = "`gated`: not loaded unless the estimate fits. `trust`: loaded although it says no." },
    { .name = "save_on_unload", .kind = CF_FLAG, .later = true, .def = "false", .change = CF_LIVE,
      .help = "Keeps its sessions on disk when it is unloaded." },
    { .name = "sampling", .kind = CF_GROUP, .keys = &sampling, .also = "parameters options generation",
      .help = "For requests that leave a field out; without it, the API's defaults." },
    { .name = "chat_template", .kind = CF_PATH, OF(chat_template), .autos = true, .def = "auto", .change = CF_LIVE,
      .also = "template jinja",
      .help = "`auto` is the model's own; else the path of a Jinja template, relative to the manifest's folder." },
};
KEYS(model, "a model", struct cf_model);

static const struct cf_key root_rows[] = {
    { .name = "version", .kind = CF_COUNT, CF_AT(struct root, m.version), .must = true, .min = 1, .max = 1, .change = CF_LIVE,
      .help = "The manifest language's version: 1." },
    { .name = "include", .kind = CF_LIST, .each = CF_PATH, .later = true, .max = 64, .change = CF_LIVE,
      .help = "Further files with models: `[ models.d/*.yaml ]`." },
    { .name = "server", .kind = CF_GROUP, .keys = &server, .also = "http api", .help = "How clients reach the daemon." },
    { .name = "host", .kind = CF_GROUP, .keys = &host, .also = "machine system", .help = "What the machine gives." },
    { .name = "dies", .kind = CF_LIST, .each = CF_GROUP, .keys = &die, .later = true, .max = 64, .also = "devices gpus",
      .help = "The devices to use; absent: all that the build can drive." },
    { .name = "pressure", .kind = CF_GROUP, .keys = &pressure, .later = true, .help = "When memory counts as short." },
    { .name = "defaults", .kind = CF_GROUP, .keys = &defaults, .at = offsetof(struct root, defaults),
      .help = "For models that leave a key out." },
    { .name = "models", .kind = CF_LIST, .each = CF_GROUP, .keys = &model, CF_AT(struct root, m.models),
      .count = offsetof(struct root, m.n_models),
      .has_from = true, .from = offsetof(struct root, defaults), .max = 1000, .also = "model",
      .help = "What should run, in order of importance." },
};
KEYS(root, "the manifest", struct root);
/* clang-format on */

const struct cf_keys *cf_manifest_keys(void) {
    return &root;
}

/* --- what rows cannot say --------------------------------------------------------------------------------------------------- */
struct check {
    struct cf_report *rep;
    const struct cf_node *tree;
};

static void check_listen(const struct check *c, const struct cf_server *s) {
    const struct cf_node *list = cf_node_find(cf_node_find(c->tree, "server"), "listen");
    struct cf_address seen[16], a;
    const struct cf_node *places[16];
    size_t n_seen = 0;
    if (!list || list->kind != CF_NODE_LIST || list->n > 16) return;
    for (const struct cf_node *n = list->first; n; n = n->next) {
        if (n->kind != CF_NODE_SCALAR || !cf_address_parse(n->text, &a)) continue;
        if (!a.loopback && !s->insecure)
            cf_report_add(c->rep, CF_CONFLICT, n->line, n->col, n->width,
                          "'listen': %s is reachable from outside and nothing protects the API; listen on 127.0.0.1, or write 'insecure: "
                          "true' in 'server'",
                          n->text);
        for (size_t i = 0; i < n_seen; i++)
            if (a.port != 0 && seen[i].v6 == a.v6 && seen[i].port == a.port && memcmp(seen[i].ip, a.ip, sizeof a.ip) == 0) {
                cf_report_add(c->rep, CF_DUPLICATE, n->line, n->col, n->width,
                              "'listen': %s stands here twice; first in line %d, column %d", n->text, places[i]->line, places[i]->col);
                break;
            }
        seen[n_seen] = a;
        places[n_seen++] = n;
    }
}

struct named {
    const struct cf_node *node;
    bool alias;
};

static int by_name(const void *a, const void *b) {
    const struct cf_node *x = ((const struct named *)a)->node, *y = ((const struct named *)b)->node;
    int c = strcmp(x->text, y->text);
    if (c) return c;
    return x->line != y->line ? (x->line < y->line ? -1 : 1) : (x->col > y->col) - (x->col < y->col);
}

/* Names and aliases share one space: what a client sends must mean one model. */
static int check_names(const struct check *c, struct fo_region *scratch, struct fo_err *e) {
    const struct cf_node *models = cf_node_find(c->tree, "models");
    size_t n = 0, most = 0;
    if (!models || models->kind != CF_NODE_LIST) return FO_OK;
    for (const struct cf_node *m = models->first; m; m = m->next) {
        const struct cf_node *aliases = cf_node_find(m, "aliases");
        most += 1 + (aliases ? aliases->n : 0);
    }
    struct named *all = fo_region_array(scratch, most, sizeof *all);
    if (most && !all) return fo_fail(e, FO_ENOMEM, "no memory to check the manifest");
    for (const struct cf_node *m = models->first; m; m = m->next) {
        const struct cf_node *name = cf_node_find(m, "name"), *aliases = cf_node_find(m, "aliases");
        if (name && name->kind == CF_NODE_SCALAR) all[n++] = (struct named){ name, false };
        if (!aliases || aliases->kind != CF_NODE_LIST) continue;
        for (const struct cf_node *a = aliases->first; a; a = a->next)
            if (a->kind == CF_NODE_SCALAR) all[n++] = (struct named){ a, true };
    }
    if (n) qsort(all, n, sizeof *all, by_name);
    size_t first = 0;
    for (size_t i = 1; i < n; i++) {
        if (strcmp(all[i].node->text, all[first].node->text) != 0) {
            first = i;
            continue;
        }
        const struct cf_node *was = all[first].node, *is = all[i].node;
        char shown[CF_SHOWN_BYTES];
        if (is->len == 0) continue; /* told already */
        cf_report_add(c->rep, CF_DUPLICATE, is->line, is->col, is->width, "'%s' is taken already: %s in line %d, column %d",
                      cf_shown(is->text, is->len, shown), all[first].alias ? "an alias" : "a name", was->line, was->col);
    }
    return FO_OK;
}

/* A request that runs needs a session. An unwritten max_concurrent follows a lower max_sessions; a written one must fit. */
static void check_concurrency(const struct check *c, const struct cf_node *map, struct cf_model *m) {
    if (m->max_concurrent <= m->max_sessions) return;
    const struct cf_node *n = cf_node_find(map, "max_concurrent"), *sessions = cf_node_find(map, "max_sessions");
    if (sessions && (sessions->kind != CF_NODE_SCALAR || strtoll(sessions->text, NULL, 10) != m->max_sessions)) return; /* told already */
    if (n)
        cf_report_add(
            c->rep, CF_CONFLICT, n->line, n->col, n->width,
            "'max_concurrent': each running request needs a session, and 'max_sessions' is %lld%s; write at most that, or raise it",
            (long long)m->max_sessions, sessions ? "" : " where it is not written");
    else
        m->max_concurrent = m->max_sessions;
}

static int check(const struct check *c, struct root *r, struct fo_region *scratch, struct fo_err *e) {
    check_listen(c, &r->m.server);
    const struct cf_node *models = cf_node_find(c->tree, "models"), *n = models ? models->first : NULL;
    for (size_t i = 0; i < r->m.n_models && n; i++, n = n->next) {
        r->m.models[i].line = n->line;
        check_concurrency(c, n, &r->m.models[i]);
    }
    return check_names(c, scratch, e);
}

/* --- in and out ------------------------------------------------------------------------------------------------------------- */
struct owner {
    struct fo_region region;
    struct root root;
};

void cf_manifest_free(struct cf_manifest *m) {
    if (!m) return;
    struct owner *o = m->memory;
    fo_region_done(&o->region);
    free(o);
}

/* Fills `o` from the text. FO_OK also with findings. */
static int build(const char *text, size_t len, struct owner *o, struct fo_region *tree, struct cf_report *rep, struct fo_err *e) {
    struct cf_node *top;
    bool whole;
    int rc = cf_yaml_read(text, len, tree, rep, &top, &whole, e);
    if (rc) return rc;
    if (!top) {
        if (whole) cf_report_add(rep, CF_MISSING, 1, 1, 1, "the manifest is empty; the least it says is 'version: 1'");
        return FO_OK;
    }
    if (top->kind != CF_NODE_MAP) {
        cf_report_add(rep, CF_TYPE, top->line, top->col, top->width, "the manifest is a mapping ('version: 1', 'models: ...'), not %s",
                      top->kind == CF_NODE_LIST ? "a list" : "one value");
        return FO_OK;
    }
    const struct cf_schema s = { .root = &root, .region = &o->region, .rep = rep, .e = e, .whole = whole };
    const struct check c = { rep, top };
    if ((rc = cf_schema_defaults(&root, &o->root, &o->region, e))) return rc;
    if ((rc = cf_schema_defaults(&model, &o->root.defaults, &o->region, e))) return rc;
    const struct cf_node *defaults_map = cf_node_find(top, "defaults");
    if ((rc = cf_schema_read(&s, &root, top, &o->root))) return rc;
    check_concurrency(&c, defaults_map, &o->root.defaults);
    return check(&c, &o->root, tree, e);
}

int cf_manifest_parse(const char *text, size_t len, struct cf_manifest **ret, struct cf_report *ret_report, struct fo_err *e) {
    struct cf_report rep;
    struct fo_region tree;
    *ret_report = (struct cf_report){ 0 };
    struct owner *o = calloc(1, sizeof *o);
    if (!o) return fo_fail(e, FO_ENOMEM, "no memory to read the manifest");
    int rc = cf_report_init(&rep, e);
    if (rc) {
        free(o);
        return rc;
    }
    fo_region_init(&o->region, MAX_MANIFEST_BYTES);
    fo_region_init(&tree, MAX_TREE_BYTES);
    o->root.m.memory = o;
    rc = build(text ? text : "", text ? len : 0, o, &tree, &rep, e);
    fo_region_done(&tree);
    cf_report_sort(&rep);
    if (rc == FO_OK && rep.n > 0) {
        const struct cf_finding *f = &rep.findings[0];
        rc = rep.n == 1 ? fo_fail_at(e, FO_EFORMAT, f->line, f->col, "%s", f->text)
                        : fo_fail_at(e, FO_EFORMAT, f->line, f->col, "%s (and %zu%s more)", f->text, rep.n - 1, rep.cut ? " or" : "");
    }
    if (rc == FO_OK) {
        cf_report_done(&rep);
        *ret = &o->root.m;
        return FO_OK;
    }
    cf_manifest_free(&o->root.m);
    if (rep.n > 0)
        *ret_report = rep;
    else
        cf_report_done(&rep);
    return rc;
}
