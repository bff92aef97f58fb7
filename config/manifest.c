/* The manifest: THE key table, and reading a text by it.
 *
 * Every key of the language is a row here, also those that this version does not honour yet (`later`): they are refused in their
 * own words instead of as unknown, and stand in the reference page. From a row come the parse, the bounds error with its place, the
 * default, did-you-mean, docs/manifest.md, the JSON Schema, and what changing the key costs (live, drain, reload).
 *
 * `defaults:` describes one model; each model starts as a copy of that one. */
#include "config/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "config/check.h"
#include "config/model.h"
#include "config/report.h"
#include "config/scalar.h"
#include "config/schema.h"
#include "config/url.h"
#include "config/yaml.h"
#include "foundry/base/region.h"

#define KiB       1024.0
#define MiB       (1024.0 * KiB)
#define GiB       (1024.0 * MiB)
#define TiB       (1024.0 * GiB)
#define SECONDS   1000.0
#define MINUTES   (60 * SECONDS)
#define HOURS     (60 * MINUTES)
#define IN(field)  CF_AT(struct cf_manifest, field)
#define OF(field)  CF_AT(struct cf_model, field)
#define DIE(field) CF_AT(struct cf_die, field)
#define KEYS(id, where, type)                                                                                                              \
    static const struct cf_keys id = { .in = where, .rows = id##_rows, .n = sizeof id##_rows / sizeof *id##_rows, .size = sizeof(type) }

enum { MAX_MANIFEST_BYTES = 8 << 20, MAX_TREE_BYTES = 12 << 20, MAX_MODELS = 1000 };

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

static const struct cf_key tls_rows[] = {
    { .name = "cert", .kind = CF_PATH, IN(server.tls_cert), .must = true, .change = CF_LIVE, .also = "certificate cert_file ssl_cert tls_cert chain",
      .help = "The certificate in PEM form, behind it those that lead to its root (`fullchain.pem`)." },
    { .name = "key", .kind = CF_PATH, IN(server.tls_key), .must = true, .change = CF_LIVE, .also = "key_file private_key ssl_key tls_key",
      .help = "Its private key in PEM form, without a passphrase; only its owner and group may read the file." },
};
KEYS(tls, "'server.tls'", struct cf_manifest);

static const struct cf_key server_rows[] = {
    { .name = "listen", .kind = CF_LIST, .each = CF_ADDRESS, IN(server.listen),
      .count = offsetof(struct cf_manifest, server.n_listen), .min = 1, .max = 16, .def = "127.0.0.1:8080", .change = CF_DRAIN,
      .also = "port bind address addr host_port listen_address",
      .help = "Where HTTP is served: `\"127.0.0.1:8080\"`, `\"[::1]:8080\"`; port 0 takes a free one. Anything but loopback needs "
              "`api_keys_file`, or `insecure: true`. With `tls` these speak TLS, unless they are written `\"http://127.0.0.1:8080\"`; `\"https://...\"` "
              "insists on it. `\"unix:/run/pantheon/api.sock\"` is a Unix socket for requests (mode 0660, group `pantheon`), never with TLS, under the rules of "
              "TCP: administration has its own." },
    { .name = "tls", .kind = CF_GROUP, .keys = &tls, .also = "ssl https certificate", .help = "A certificate: TCP then speaks TLS 1.2 or 1.3. The files are read again when they change." },
    { .name = "insecure", .kind = CF_FLAG, IN(server.insecure), .def = "false", .change = CF_LIVE,
      .help = "Permits listening off loopback although no keys protect the API." },
    { .name = "admin_socket", .kind = CF_PATH, IN(server.admin_socket), .def = "/run/pantheon/admin.sock", .change = CF_DRAIN,
      .help = "The Unix socket of the admin API, group `pantheon`, mode 0660." },
    { .name = "api_keys_file", .kind = CF_PATH, IN(server.api_keys_file), .change = CF_LIVE, .also = "api_key api_keys keys auth",
      .help = "API keys: `name:sha256` a line, then optional words: `admin`, `max_concurrent=N`, `priority=P` (low, normal or high). With it every request needs a key, but for "
              "/health, /ready and the admin socket; a change of the file counts within a second. Without it any key is taken." },
    { .name = "allowed_hosts", .kind = CF_LIST, .each = CF_TEXT, IN(server.allowed_hosts), .count = offsetof(struct cf_manifest, server.n_allowed_hosts),
      .max = 64, .change = CF_LIVE, .also = "trusted_hosts server_names hostnames",
      .help = "Names and addresses, without a port, that requests may have as Host besides loopback and the address they reach: what a proxy passes "
              "on, or the machine's name. Anything else is 403, so that no web page reaches the server under a name of its own; `\"*\"` gives that up." },
    { .name = "cors_origins", .kind = CF_LIST, .each = CF_TEXT, IN(server.cors_origins), .count = offsetof(struct cf_manifest, server.n_cors_origins),
      .max = 64, .change = CF_LIVE, .also = "cors origins allowed_origins cors_allow_origins cors_allowed_origins",
      .help = "Origins whose web pages may use the API: `https://app.example.org`; `\"*\"` is any. Without it no page of another origin may." },
    { .name = "limits", .kind = CF_GROUP, .keys = &limits, .help = "What a client may take." },
    { .name = "sse_ping", .kind = CF_MS, IN(server.sse_ping_ms), .min = 100, .max = HOURS, .def = "10s", .change = CF_LIVE,
      .also = "ping sse_ping_interval keepalive heartbeat",
      .help = "Silence after which a stream gets a comment, so that neither a client nor a proxy takes it for dead." },
    { .name = "drain", .kind = CF_MS, IN(server.drain_ms), .min = 0, .max = 24 * HOURS, .def = "30s", .change = CF_LIVE,
      .help = "How long running requests may go on when the daemon stops." },
};
KEYS(server, "'server'", struct cf_manifest);

static const struct cf_key settle_rows[] = {
    { .name = "timeout", .kind = CF_MS, IN(host.settle_timeout_ms), .min = 0, .max = HOURS, .def = "10s", .change = CF_LIVE,
      .help = "How long to wait after an unload for memory to come back." },
    { .name = "stable", .kind = CF_MS, IN(host.settle_stable_ms), .min = 0, .max = HOURS, .def = "500ms", .change = CF_LIVE,
      .help = "Free memory counts as settled when it has not risen for this long." },
};
KEYS(settle, "'host.settle'", struct cf_manifest);

static const struct cf_key host_rows[] = {
    { .name = "ram_reserve", .kind = CF_BYTES, IN(host.ram_reserve_bytes), .min = 0, .max = 64 * TiB, .def = "1GiB",
      .change = CF_LIVE, .help = "Available memory (MemAvailable, or what the cgroup has left) is never taken below this." },
    { .name = "threads", .kind = CF_COUNT, IN(host.threads), .autos = true, .min = 1, .max = 1024, .def = "auto",
      .change = CF_RELOAD, .also = "n_threads num_thread num_threads cpus",
      .help = "Compute threads; `auto` is every physical core that affinity and the cgroup allow." },
    { .name = "settle", .kind = CF_GROUP, .keys = &settle, .help = "When freed memory counts as back." },
    { .name = "load_timeout", .kind = CF_MS, IN(host.load_timeout_ms), .min = SECONDS, .max = 24 * HOURS, .def = "10min", .change = CF_LIVE,
      .help = "A load that takes longer is given up and tried again later." },
};
KEYS(host, "'host'", struct cf_manifest);

static const struct cf_key die_rows[] = {
    { .name = "name", .kind = CF_NAME, DIE(name), .must = true, .change = CF_RELOAD, .help = "What models call it; at most 63 characters." },
    { .name = "kind", .kind = CF_CHOICE, DIE(kind), .must = true, .words = "cpu|cuda|tt|metal|sim", .only = "cpu|sim",
      .change = CF_RELOAD, .also = "type backend",
      .help = "The backend. `sim` is a made-up die for trying things out: it computes on the cpu, and its memory is a number." },
    { .name = "pci", .kind = CF_TEXT, DIE(pci), .change = CF_RELOAD, .also = "address bus bus_id",
      .help = "PCI address, `\"0000:04:00.0\"`: stays the same when cards are added." },
    { .name = "memory", .kind = CF_BYTES, DIE(memory_bytes), .min = MiB, .max = 64 * TiB, .change = CF_RELOAD, .also = "vram size",
      .help = "Budget, where it is not all the die has; a `cpu` die's is carved out of host memory. A `sim` die needs one." },
    { .name = "reserve", .kind = CF_BYTES, DIE(reserve_bytes), .min = 0, .max = 64 * TiB, .change = CF_LIVE,
      .help = "Memory left to others." },
    { .name = "script", .kind = CF_TEXT, DIE(script), .change = CF_RELOAD,
      .help = "`sim` only: the faults it shows, `\"alloc 3 fail; lost after 10s\"`." },
};
KEYS(die, "a die", struct cf_die);

static const struct cf_key pressure_rows[] = {
    { .name = "watch", .kind = CF_PERCENT, IN(pressure.watch), .min = 1, .max = 100, .def = "80%", .change = CF_LIVE,
      .help = "Use of a die's or the host's memory from which on new KV is written at its floor type." },
    { .name = "tight", .kind = CF_PERCENT, IN(pressure.tight), .min = 1, .max = 100, .def = "90%", .change = CF_LIVE,
      .help = "Use at which half as many requests run, prompts come in smaller chunks and kept conversations are given up." },
    { .name = "critical", .kind = CF_PERCENT, IN(pressure.critical), .min = 1, .max = 100, .def = "96%", .change = CF_LIVE,
      .help = "Use at which one request runs and the others wait." },
    { .name = "leave", .kind = CF_PERCENT, IN(pressure.leave), .min = 0, .max = 50, .def = "5%", .change = CF_LIVE,
      .help = "How far below a level's own use it must fall to leave it, in points." },
    { .name = "hold", .kind = CF_MS, IN(pressure.hold_ms), .min = 0, .max = 24 * HOURS, .def = "60s", .change = CF_LIVE,
      .help = "How long it must stay there." },
};
KEYS(pressure, "'pressure'", struct cf_manifest);

static const struct cf_key sessions_rows[] = {
    { .name = "path", .kind = CF_PATH, IN(sessions.path), .change = CF_LIVE, .also = "dir directory folder",
      .help = "The folder, which nobody else may look into; absent: `sessions` in the state directory." },
    { .name = "quota", .kind = CF_BYTES, IN(sessions.quota_bytes), .min = MiB, .max = 64 * TiB, .def = "2GiB", .change = CF_LIVE, .also = "size limit max",
      .help = "What all of them may take; those used least recently go first." },
};
KEYS(sessions, "'sessions'", struct cf_manifest);

static const struct cf_key queue_rows[] = {
    { .name = "depth", .kind = CF_COUNT, OF(queue_depth), .min = 0, .max = 4096, .def = "8", .change = CF_LIVE,
      .also = "size length max", .help = "Requests that may wait; one more is answered 429 with Retry-After." },
    { .name = "timeout", .kind = CF_MS, OF(queue_timeout_ms), .min = 100, .max = 24 * HOURS, .def = "120s", .change = CF_LIVE,
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
    { .name = "decode_stall", .kind = CF_MS, OF(decode_stall_ms), .min = 10, .max = MINUTES, .def = "500ms", .change = CF_LIVE,                  \
      .help = "Longest pause that a long prompt may cause in running answers." }

static const struct cf_key defaults_rows[] = { MAX_SESSIONS, MAX_CONCURRENT, QUEUE, DECODE_STALL };
KEYS(defaults, "'defaults'", struct cf_model);

static const struct cf_key source_rows[] = {
    { .name = "path", .kind = CF_PATH, OF(source_path), .must = true, .change = CF_RELOAD, .also = "file model gguf filename",
      .help = "The GGUF file (of a sharded model any shard), or a HuggingFace directory with safetensors. A relative path starts at the manifest's folder." },
    { .name = "url", .kind = CF_URL, OF(source_url), .change = CF_LIVE, .also = "uri link download from hf huggingface repo",
      .help = "Where the file is fetched from when it is absent: `https://...`, `hf:OWNER/REPO/FILE` or `hf:OWNER/REPO@REVISION/FILE`. `http://` only from this machine, or with "
              "`sha256`: what comes over an open line must be known before. No names or passwords: a token for Hugging Face comes from the environment. Of a model in shards any one stands for all." },
    { .name = "sha256", .kind = CF_LIST, .each = CF_SHA256, OF(source_sha256), .count = offsetof(struct cf_model, n_source_sha256), .one = true, .min = 1, .max = CF_MAX_SHARDS,
      .change = CF_RELOAD, .also = "checksum digest hash sha sha256sum",
      .help = "The file's checksum, as `sha256sum` prints it; of a model in shards a list, one for each in their order. Another checksum is another file: the model is loaded anew." },
    { .name = "mirrors", .kind = CF_LIST, .each = CF_URL, OF(source_mirrors), .count = offsetof(struct cf_model, n_source_mirrors), .max = 16, .change = CF_LIVE, .also = "mirror urls",
      .help = "Other places with the same file, tried in this order when `url` fails." },
};
KEYS(source, "'source'", struct cf_model);

#define KV_TYPES "f16|q8_0|q4_0"
const char *const cf_kv_types[] = { [CF_KV_F16] = "f16", [CF_KV_Q8_0] = "q8_0", [CF_KV_Q4_0] = "q4_0", NULL };

static const struct cf_key kv_rows[] = {
    { .name = "type", .kind = CF_CHOICE, OF(kv_type), .words = KV_TYPES, .def = "f16", .change = CF_RELOAD,
      .also = "cache_type kv_cache_dtype kv_cache_type dtype",
      .help = "How keys and values are stored: `q8_0` takes about half the memory of `f16`, `q4_0` about a quarter; both need a model whose "
              "heads have a multiple of 32 dimensions." },
    { .name = "k", .kind = CF_CHOICE, OF(kv_k), CF_HAS(struct cf_model, has_kv_k), .words = KV_TYPES, .change = CF_RELOAD,
      .also = "key keys k_type cache_type_k ctk type_k", .help = "How keys are stored; without it as `type` says." },
    { .name = "v", .kind = CF_CHOICE, OF(kv_v), CF_HAS(struct cf_model, has_kv_v), .words = KV_TYPES, .change = CF_RELOAD,
      .also = "value values v_type cache_type_v ctv type_v", .help = "How values are stored; without it as `type` says. They bear fewer bits better than keys do: `{ k: q8_0, v: q4_0 }`." },
    { .name = "floor", .kind = CF_CHOICE, OF(kv_floor), .words = KV_TYPES, .def = "q4_0", .change = CF_RELOAD, .also = "min minimum lowest",
      .help = "The smallest type that memory pressure may turn them into; `f16` forbids it. Where it is no smaller than what they are stored as, nothing is turned." },
    { .name = "overcommit", .kind = CF_PERCENT, OF(kv_overcommit), .min = 100, .max = 1000, .def = "100%", .change = CF_RELOAD, .also = "over_commit oversubscribe",
      .help = "Sessions that may be at `ctx_cap`, for each for which memory is taken: with `200%` the KV of half of `max_sessions` is, of one at least. Sessions are rarely all that long; "
              "a request for which nothing is left waits, or idle sessions' KV gives way to it." },
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
    { .name = "dies", .kind = CF_LIST, .each = CF_NAME, OF(dies.names), .count = offsetof(struct cf_model, dies.n), .one = true, .min = 1,
      .max = 64, .change = CF_RELOAD, .also = "device devices gpus main_gpu tensor_split",
      .help = "The dies it is split over by layers, in order; one name: the whole model there; `auto:2` means any two. Absent: the engine "
              "places it whole." },
    { .name = "replicas", .kind = CF_LIST, .each = CF_LIST, OF(replicas), .count = offsetof(struct cf_model, n_replicas), .min = 1,
      .max = 64, .change = CF_RELOAD,
      .help = "Copies of the model, each with its dies: `[ [ k80-1a ], [ k80-1b ] ]`, or `[ [ \"auto:1\" ], [ \"auto:1\" ] ]`. Not together with `dies`." },
    { .name = "ctx_cap", .kind = CF_COUNT, OF(ctx_cap), .autos = true, .min = 256, .max = 1 << 20, .def = "auto",
      .change = CF_RELOAD, .also = "n_ctx num_ctx ctx_size context context_length context_size ctx max_model_len max_context",
      .help = "Most tokens a session may hold, prompt and answer. `auto` is 8192, or what the model was trained for where that is less." },
    MAX_SESSIONS,
    MAX_CONCURRENT,
    QUEUE,
    DECODE_STALL,
    { .name = "speculation", .kind = CF_CHOICE, OF(speculation), .words = "auto|off", .def = "auto", .change = CF_LIVE,
      .also = "draft speculative lookup prompt_lookup", .help = "Guessing tokens that repeat earlier text and checking several in a step: the same answers, sooner. `auto` does "
              "so while it pays." },
    { SAMPLING(reasoning_budget, CF_COUNT, .min = 0, .max = 1 << 20), .also = "thinking_budget reasoning_budget_tokens",
      .help = "Most tokens of a thought, for requests that do not say; without it, as many as the model likes. 0 keeps it from thinking." },
    { .name = "kv", .kind = CF_GROUP, .keys = &kv, .help = "The cache of keys and values." },
    { .name = "state", .kind = CF_CHOICE, OF(state), .words = "loaded|on_demand|absent", .def = "loaded", .change = CF_LIVE,
      .also = "load preload autoload", .help = "`loaded`: always there. `on_demand`: loaded by the first request, and unloaded when another model needs its memory. `absent`: kept in the file only." },
    { .name = "ttl", .kind = CF_MS, OF(ttl_ms), .min = SECONDS, .max = 30 * 24 * HOURS, .change = CF_LIVE, .also = "keep_alive idle_timeout unload_after",
      .help = "`on_demand` only: unloaded after this long without a request. Without it, it stays until another model needs its memory." },
    { .name = "priority", .kind = CF_COUNT, OF(priority), .min = 0, .max = 1000, .def = "0", .change = CF_LIVE,
      .help = "Higher ones are loaded first, and do not give way to lower ones." },
    { .name = "memory", .kind = CF_CHOICE, OF(memory), .words = "gated|trust", .def = "gated", .change = CF_LIVE,
      .help = "`gated`: not loaded unless the estimate fits. `trust`: loaded although it says no." },
    { .name = "save_on_unload", .kind = CF_FLAG, OF(save_on_unload), .def = "false", .change = CF_LIVE,
      .help = "Keeps its sessions on disk (`sessions`) when it is unloaded, and has them back when it is loaded." },
    { .name = "sampling", .kind = CF_GROUP, .keys = &sampling, .also = "parameters options generation",
      .help = "For requests that leave a field out; without it, the API's defaults." },
    { .name = "chat_template", .kind = CF_PATH, OF(chat_template), .autos = true, .def = "auto", .change = CF_RELOAD,
      .also = "template jinja",
      .help = "`auto` is the model's own; else the path of a Jinja template, relative to the manifest's folder." },
};
KEYS(model, "a model", struct cf_model);

#define MODELS                                                                                                                            \
    { .name = "models", .kind = CF_LIST, .each = CF_GROUP, .keys = &model, IN(models), .count = offsetof(struct cf_manifest, n_models), .has_from = true, \
      .from = offsetof(struct cf_manifest, defaults), .max = MAX_MODELS, .also = "model", .help = "What should run, in order of importance." }

static const struct cf_key root_rows[] = {
    { .name = "version", .kind = CF_COUNT, IN(version), .must = true, .min = 1, .max = 1, .change = CF_LIVE,
      .help = "The manifest language's version: 1." },
    { .name = "include", .kind = CF_LIST, .each = CF_PATH, IN(include), .count = offsetof(struct cf_manifest, n_include), .max = 64, .change = CF_LIVE, .also = "includes import imports",
      .help = "Further files, which have `models:` alone: `[ models.d/*.yaml ]`. Several that fit a pattern come sorted by name; none is fine, but a name without `*`, `?` or `[` must be there. "
              "Relative paths, also those in these files, start at this manifest's folder." },
    { .name = "server", .kind = CF_GROUP, .keys = &server, .also = "http api", .help = "How clients reach the daemon." },
    { .name = "host", .kind = CF_GROUP, .keys = &host, .also = "machine system", .help = "What the machine gives." },
    { .name = "dies", .kind = CF_LIST, .each = CF_GROUP, .keys = &die, IN(dies),
      .count = offsetof(struct cf_manifest, n_dies), .max = 64, .also = "devices gpus",
      .help = "The devices to use; absent: all that the build can drive." },
    { .name = "pressure", .kind = CF_GROUP, .keys = &pressure, .help = "When memory counts as short." },
    { .name = "sessions", .kind = CF_GROUP, .keys = &sessions, .help = "Where sessions lie while their model is not loaded (`save_on_unload`)." },
    { .name = "defaults", .kind = CF_GROUP, .keys = &defaults, .at = offsetof(struct cf_manifest, defaults),
      .help = "For models that leave a key out." },
    MODELS,
};
KEYS(root, "the manifest", struct cf_manifest);

/* What an included file may say. */
static const struct cf_key included_rows[] = { MODELS };
KEYS(included, "an included file", struct cf_manifest);
/* clang-format on */

const struct cf_keys *cf_manifest_keys(void) {
    return &root;
}

const struct cf_keys *cf_model_keys(void) {
    return &model;
}

/* --- in and out ------------------------------------------------------------------------------------------------------------- */
struct owner {
    struct fo_region region;
    struct cf_manifest m;
};

void cf_manifest_free(struct cf_manifest *m) {
    if (!m) return;
    struct owner *o = m->memory;
    fo_region_done(&o->region);
    free(o);
}

int cf_model_read(const struct cf_node *map, bool whole, const struct cf_model *start, struct fo_region *r, struct cf_report *rep,
                  struct cf_model *ret, struct fo_err *e) {
    const struct cf_schema s = { .root = &root, .region = r, .rep = rep, .e = e, .whole = whole };
    int rc = FO_OK;
    *ret = (struct cf_model){ 0 };
    if (start)
        *ret = *start;
    else
        rc = cf_schema_defaults(&model, ret, r, e);
    if (rc == FO_OK) rc = cf_schema_read(&s, &model, map, ret);
    ret->owner = NULL;
    if (rc == FO_OK) cf_check_model(map, ret, rep);
    return rc;
}

/* Reads the text to its tree; *ret_tree is NULL when there is nothing to go on with (the report says why, but for an empty one). */
static int read_tree(const struct cf_text *t, int *n_nodes, const char *what, struct fo_region *r, struct cf_report *rep, const struct cf_node **ret_tree, bool *ret_whole, struct fo_err *e) {
    struct cf_node *top;
    int rc = cf_yaml_read(t->text ? t->text : "", t->text ? t->len : 0, n_nodes, r, rep, &top, ret_whole, e);
    *ret_tree = NULL;
    if (rc || !top) return rc;
    if (top->kind == CF_NODE_MAP)
        *ret_tree = top;
    else
        cf_report_add(rep, CF_TYPE, top->line, top->col, top->width, "%s, not %s", what, top->kind == CF_NODE_LIST ? "a list" : "one value");
    return FO_OK;
}

/* The models of an included file behind those that are there. */
static int add_models(struct owner *o, const struct cf_manifest *part, struct cf_part *p, struct cf_report *rep, struct fo_err *e) {
    size_t n = o->m.n_models + part->n_models;
    if (part->n_models == 0) return FO_OK;
    if (n > MAX_MODELS) {
        cf_report_add(rep, CF_RANGE, 1, 1, 1, "with this file there are %zu models; at most %d are allowed", n, MAX_MODELS);
        return FO_OK;
    }
    struct cf_model *all = fo_region_array(&o->region, n, sizeof *all);
    if (!all) return fo_fail(e, FO_ENOMEM, "no memory to read the manifest");
    if (o->m.n_models) memcpy(all, o->m.models, o->m.n_models * sizeof *all);
    memcpy(all + o->m.n_models, part->models, part->n_models * sizeof *all);
    p->first = o->m.n_models;
    p->n = part->n_models;
    o->m.models = all;
    o->m.n_models = n;
    return FO_OK;
}

static int read_included(const struct cf_text *t, int file, int *n_nodes, struct owner *o, struct fo_region *tree, struct cf_part *p, struct cf_report *rep, struct fo_err *e) {
    struct cf_manifest part = { .defaults = o->m.defaults };
    bool whole;
    cf_report_file(rep, file);
    int rc = read_tree(t, n_nodes, "an included file is a mapping with 'models'", tree, rep, &p->tree, &whole, e);
    if (rc || !p->tree) return rc; /* an empty one is fine: its models may be comments for a while */
    const struct cf_schema s = { .root = &root, .region = &o->region, .rep = rep, .e = e, .whole = whole };
    rc = cf_schema_read(&s, &included, p->tree, &part);
    return rc ? rc : add_models(o, &part, p, rep, e);
}

/* Fills `o` from the texts. FO_OK also with findings. */
static int build(const struct cf_text *texts, size_t n, struct owner *o, struct fo_region *tree, struct cf_report *rep, struct fo_err *e) {
    bool whole;
    int n_nodes = 0;
    size_t bytes = 0;
    struct cf_part *parts = fo_region_array(tree, n, sizeof *parts);
    if (!parts) return fo_fail(e, FO_ENOMEM, "no memory to read the manifest");
    for (size_t i = 0; i < n; i++) {
        parts[i].name = texts[i].name;
        bytes += texts[i].text ? texts[i].len : 0;
        if (i == 0 || bytes <= CF_MAX_TEXT_BYTES) continue; /* of one alone yaml.c says it */
        cf_report_file(rep, (int)i);
        cf_report_add(rep, CF_SYNTAX, 1, 1, 1, "with this file the manifest has more than %d bytes; that many are read", CF_MAX_TEXT_BYTES);
        return fo_fail_need(e, FO_ELIMIT, bytes, CF_MAX_TEXT_BYTES, "%s: with this file the manifest has more than %d bytes", texts[i].name, CF_MAX_TEXT_BYTES);
    }
    int rc = read_tree(&texts[0], &n_nodes, "the manifest is a mapping ('version: 1', 'models: ...')", tree, rep, &parts[0].tree, &whole, e);
    if (rc) return rc;
    if (!parts[0].tree) {
        if (whole && rep->n == 0) cf_report_add(rep, CF_MISSING, 1, 1, 1, "the manifest is empty; the least it says is 'version: 1'");
        return FO_OK;
    }
    const struct cf_schema s = { .root = &root, .region = &o->region, .rep = rep, .e = e, .whole = whole };
    if ((rc = cf_schema_defaults(&root, &o->m, &o->region, e))) return rc;
    if ((rc = cf_schema_defaults(&model, &o->m.defaults, &o->region, e))) return rc;
    if ((rc = cf_schema_read(&s, &root, parts[0].tree, &o->m))) return rc;
    parts[0].n = o->m.n_models;
    for (size_t i = 1; i < n; i++)
        if ((rc = read_included(&texts[i], (int)i, &n_nodes, o, tree, &parts[i], rep, e))) return rc;
    return cf_check_manifest(parts, n, &o->m, tree, rep, e);
}

int cf_manifest_parse_files(const struct cf_text *texts, size_t n, const struct cf_finding *faults, size_t n_faults, struct cf_manifest **ret, struct cf_report *ret_report,
                            struct fo_err *e) {
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
    o->m.memory = o;
    for (size_t i = 0; i < n_faults; i++) cf_report_add(&rep, faults[i].class, faults[i].line, faults[i].col, faults[i].width, "%s", faults[i].text);
    rc = build(texts, n, o, &tree, &rep, e);
    fo_region_done(&tree);
    rc = cf_report_close(&rep, rc, e);
    if (rc)
        cf_manifest_free(&o->m);
    else
        *ret = &o->m;
    *ret_report = rep;
    return rc;
}

int cf_manifest_parse(const char *text, size_t len, struct cf_manifest **ret, struct cf_report *ret_report, struct fo_err *e) {
    return cf_manifest_parse_files(&(struct cf_text){ "the manifest", text, len }, 1, NULL, 0, ret, ret_report, e);
}

/* --- what it includes ------------------------------------------------------------------------------------------------------- */
struct includes {
    struct fo_region region;
    struct cf_report unheard; /* what is wrong with the text is told when it is parsed */
};

void cf_includes_done(struct cf_includes *i) {
    struct includes *m = i ? i->memory : NULL;
    if (!m) return;
    cf_report_done(&m->unheard);
    fo_region_done(&m->region);
    free(m);
    *i = (struct cf_includes){ 0 };
}

int cf_manifest_includes(const char *text, size_t len, struct cf_includes *ret, struct fo_err *e) {
    struct cf_node *top;
    bool whole;
    union cf_value v;
    const struct cf_key *row = root_rows;
    *ret = (struct cf_includes){ 0 };
    struct includes *m = calloc(1, sizeof *m);
    if (!m) return fo_fail(e, FO_ENOMEM, "no memory to read the manifest");
    ret->memory = m;
    fo_region_init(&m->region, MAX_TREE_BYTES);
    int rc = cf_report_init(&m->unheard, e);
    if (rc) return rc;
    rc = cf_yaml_read(text, len, NULL, &m->region, &m->unheard, &top, &whole, e);
    if (rc) return rc == FO_ENOMEM ? rc : FO_OK;
    while (strcmp(row->name, "include") != 0) row++;
    const struct cf_node *list = cf_node_find(top, row->name);
    if (!list || list->kind != CF_NODE_LIST || list->n == 0 || (double)list->n > row->max) return FO_OK;
    ret->list = fo_region_array(&m->region, list->n, sizeof *ret->list);
    if (!ret->list) return fo_fail(e, FO_ENOMEM, "no memory to read the manifest");
    for (const struct cf_node *n = list->first; n; n = n->next)
        if (n->kind == CF_NODE_SCALAR && cf_scalar_read(row, row->each, n, &m->unheard, &v)) ret->list[ret->n++] = (struct cf_include){ v.text, n->line, n->col, n->width };
    return FO_OK;
}
