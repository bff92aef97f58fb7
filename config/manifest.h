/* The manifest: the declared state as plain values, and THE key table that defines its language. Pure: bytes in, values out; no
 * files, clock, threads or globals. A manifest owns all its strings and is immutable after cf_manifest_parse. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/err.h"

enum { CF_AUTO = -1 }; /* a count or size left to the engine */

struct cf_limits {
    uint64_t body_bytes, header_time_ms, body_idle_ms, write_idle_ms;
    int64_t connections, connections_per_address;
};

struct cf_server {
    char **listen; /* "127.0.0.1:8080", "[::1]:8080", these behind "http://" or "https://", "unix:/path" */
    size_t n_listen;
    bool insecure; /* permits listening off loopback without keys */
    char *admin_socket;
    char *api_keys_file; /* as written; relative to the manifest's folder (the daemon joins them); NULL = no keys are asked for */
    char *tls_cert, *tls_key; /* as written, relative as the above; NULL = no TLS */
    char **allowed_hosts; /* names and addresses without ports, besides loopback and the address asked at; "*" = any */
    size_t n_allowed_hosts;
    char **cors_origins; /* "https://app.example.org", no slash at the end; "*" = any */
    size_t n_cors_origins;
    struct cf_limits limits;
    uint64_t sse_ping_ms; /* silence after which a stream gets a comment */
    uint64_t drain_ms;
};

struct cf_host {
    uint64_t ram_reserve_bytes;
    int64_t threads; /* CF_AUTO = all allowed */
    uint64_t settle_timeout_ms, settle_stable_ms;
    uint64_t load_timeout_ms;
};

enum cf_die_kind { CF_DIE_CPU, CF_DIE_CUDA, CF_DIE_TT, CF_DIE_METAL, CF_DIE_SIM }; /* in the order of the key's words */

struct cf_die {
    char *name;
    int kind;              /* enum cf_die_kind */
    char *pci;             /* stable address; NULL */
    uint64_t memory_bytes; /* its budget; 0 = all it has. Never 0 for sim */
    uint64_t reserve_bytes;
    char *script; /* sim: its faults, in the words of the sim device, which parses them; NULL */
    int line;
};

struct cf_sampling { /* defaults for requests that leave a field out; has_x tells which the manifest sets */
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repeat_penalty, has_presence_penalty, has_frequency_penalty, has_reasoning_budget;
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k;
    int64_t reasoning_budget; /* the model's own key, beside `sampling` */
};

struct cf_names {
    char **names; /* [n] */
    size_t n;
};

enum cf_state { CF_STATE_LOADED, CF_STATE_ON_DEMAND, CF_STATE_ABSENT }; /* in the order of the keys' words, as the next one */
enum cf_memory { CF_MEMORY_GATED, CF_MEMORY_TRUST };
enum cf_speculation { CF_SPECULATION_AUTO, CF_SPECULATION_OFF };
enum cf_kv_type { CF_KV_F16, CF_KV_Q8_0, CF_KV_Q4_0 }; /* from the largest to the smallest */
extern const char *const cf_kv_types[]; /* their words, as in the manifest; NULL at the end */

struct cf_model {
    char *name;
    char **aliases;
    size_t n_aliases;
    char *source_path; /* as written; relative paths are relative to the manifest's folder (the daemon joins them) */
    char *source_url;     /* as written (config/url.h); NULL = never fetched. Of a model in shards any of them stands for all */
    char **source_sha256; /* [n] 64 lower-case digits each: of the file, or of every shard in order; n = 0: not declared */
    size_t n_source_sha256;
    char **source_mirrors; /* other URLs of the same file, to be tried in this order after source_url */
    size_t n_source_mirrors;
    struct cf_names dies; /* names of dies, in the order of the layers; or one word "auto:N" (cf_dies_auto); n = 0: placed freely */
    struct cf_names *replicas; /* [n_replicas] each as `dies`, never empty */
    size_t n_replicas;         /* 0 = one copy, placed as `dies` says */
    int64_t ctx_cap;           /* CF_AUTO */
    int64_t max_sessions, max_concurrent;
    int kv_type;               /* enum cf_kv_type; of keys and values where kv_k and kv_v are not written. cf_model_kv says what follows */
    bool has_kv_k, has_kv_v;
    int kv_k, kv_v, kv_floor;
    double kv_overcommit;      /* percent, from 100 */
    int64_t queue_depth;
    uint64_t queue_timeout_ms;
    uint64_t decode_stall_ms;
    int speculation;     /* enum cf_speculation */
    int64_t priority;
    int state;           /* enum cf_state */
    uint64_t ttl_ms;     /* of CF_STATE_ON_DEMAND; 0 = it stays until something else needs its memory */
    int memory;          /* enum cf_memory */
    bool save_on_unload;
    char *chat_template; /* NULL = auto, else a path of a template file */
    struct cf_sampling sampling;
    int line;      /* where it stands in the manifest, for messages; 0 = elsewhere */
    void *owner;   /* of a model that stands alone (cf_model_parse, cf_model_copy): its memory; NULL inside a manifest */
};

/* When memory counts as short, in percent of what there is; ascending. */
struct cf_pressure {
    double watch, tight, critical, leave;
    uint64_t hold_ms;
};

/* Sessions on disk. */
struct cf_sessions {
    char *path; /* as written; NULL = in the state directory */
    uint64_t quota_bytes;
};

struct cf_manifest {
    int64_t version;
    char **include; /* patterns of files, as written; whoever reads the manifest reads those too (cf_manifest_includes) */
    size_t n_include;
    struct cf_server server;
    struct cf_host host;
    struct cf_pressure pressure;
    struct cf_sessions sessions;
    struct cf_die *dies; /* n_dies = 0: all that the build can drive */
    size_t n_dies;
    struct cf_model defaults; /* what each model starts as: `defaults:` over the table's own; name and source are NULL */
    struct cf_model *models;
    size_t n_models;
    void *memory; /* owns everything above */
};

/* One finding. Sorted by place in a cf_report. */
struct cf_finding {
    enum cf_class { CF_SYNTAX, CF_UNKNOWN_KEY, CF_DUPLICATE, CF_TYPE, CF_RANGE, CF_MISSING, CF_CONFLICT, CF_NOT_YET } class;
    int file;      /* which of the manifest's texts, from 0 */
    int line, col; /* from 1; columns are characters */
    int width;     /* characters to underline, at least 1 */
    char *text;    /* "'ctx_kap': no such key in a model; did you mean 'ctx_cap'?" */
};
struct cf_report {
    struct cf_finding *findings;
    size_t n;
    bool cut; /* more than the 100 that are kept */
    void *memory;
};

/* Parses and checks `text`. Returns FO_OK and fills *ret, or FO_EFORMAT with every mistake of the text in *ret_report (never
 * empty then; *e has the first); FO_ELIMIT when a cap is passed (the report says where), FO_ENOMEM (the report may be empty).
 * *ret_report is always set: cf_report_done it, whatever is returned. Time and memory are linear in len (caps: 1 MiB of text,
 * 65,536 values, depth 16), but for the sort of the names.
 *
 * A program that has values instead of a file (the command line's `serve`) writes the same text into a buffer, with cf_quote
 * (config/text.h) around every value that a person typed, and parses that: flags and files then cannot differ. */
int cf_manifest_parse(const char *text, size_t len, struct cf_manifest **ret, struct cf_report *ret_report, struct fo_err *e);
void cf_manifest_free(struct cf_manifest *m); /* NULL is allowed */

/* One text of a manifest that `include` makes several of. */
struct cf_text {
    const char *name; /* what messages call it: its path */
    const char *text; /* [len] */
    size_t len;
};

/* One entry of a manifest's `include`, with its place. */
struct cf_include {
    const char *pattern; /* a path; * ? [ ] as shells read them */
    int line, col, width;
};
struct cf_includes {
    struct cf_include *list; /* [n], as written */
    size_t n;
    void *memory;
};

/* What the text includes: for whoever reads files, before cf_manifest_parse_files. FO_OK also of a text with mistakes, which are told when it is
 * parsed: entries that are no paths are left out then. FO_ENOMEM. cf_includes_done *ret, whatever is returned. */
int cf_manifest_includes(const char *text, size_t len, struct cf_includes *ret, struct fo_err *e);
void cf_includes_done(struct cf_includes *i);

/* As cf_manifest_parse for a manifest of n >= 1 texts: its own first, then what it includes, which have `models` alone and add to its own in
 * this order. All that is in `defaults` holds for them too. `faults`: why something that is included cannot be had, by its place in the
 * first text (class CF_MISSING). The caps are those of one text, for all together. */
int cf_manifest_parse_files(const struct cf_text *texts, size_t n, const struct cf_finding *faults, size_t n_faults, struct cf_manifest **ret, struct cf_report *ret_report,
                            struct fo_err *e);
void cf_report_done(struct cf_report *r);

/* N of a `dies` (or one of `replicas`) that is "auto:N", else 0. */
int64_t cf_dies_auto(const struct cf_names *dies);

/* One model's keys as a YAML or JSON mapping: the body of POST /admin/models/load, and what facts keep. `defaults` (a manifest's; NULL
 * = the table's own) is what it starts as. Findings and codes as cf_manifest_parse. Free with cf_model_free. */
int cf_model_parse(const char *text, size_t len, const struct cf_model *defaults, struct cf_model **ret, struct cf_report *ret_report,
                   struct fo_err *e);

/* Appends the model as one JSON object of the manifest's keys, all that have a value; cf_model_parse reads back an equal model
 * (cf_model_diff finds nothing) whatever its defaults. Whether the buffer took it, out->failed tells. */
struct fo_buf;
void cf_model_write(const struct cf_model *m, struct fo_buf *out);

/* What of a model's KV a load depends on: what its `kv` comes to. */
struct cf_kv {
    enum cf_kv_type k_type, v_type;
    enum cf_kv_type k_floor, v_floor; /* what pressure may turn them into, never larger: the same as above is nothing */
    uint32_t overcommit;              /* percent: sessions at ctx_cap for each that there is KV for; 0 and 100 are one */
};
struct cf_kv cf_model_kv(const struct cf_model *m);
bool cf_kv_equal(const struct cf_kv *a, const struct cf_kv *b);
/* "q8_0", or of keys and of values "q8_0/q4_0". */
enum { CF_KV_TEXT = 16 };
const char *cf_kv_text(const struct cf_kv *kv, char out[CF_KV_TEXT]);

/* A copy that stands alone. FO_ENOMEM. */
int cf_model_copy(const struct cf_model *m, struct cf_model **ret, struct fo_err *e);
void cf_model_free(struct cf_model *m); /* of the two above; NULL is allowed */

/* What changing a key costs a running daemon: nothing, the end of what is connected or running, a reload. */
enum cf_change { CF_LIVE, CF_DRAIN, CF_RELOAD };

/* A key whose value differs. Texts are cut at the arrays' ends (at a character, then "..."). */
struct cf_diff {
    char key[48];         /* "queue.depth" */
    enum cf_change change;
    char was[64], is[64]; /* as people write it; "auto", or "unset" */
};
enum { CF_MAX_DIFFS = 64 }; /* more keys than a model, or a manifest without its models, has */

/* Writes the keys that differ to ret[CF_MAX_DIFFS], in the table's order, and returns how many. cf_manifest_diff compares what is not
 * in `defaults` and `models`; a list of mappings (`dies`) is one key, whose cost is that of its costliest change. */
size_t cf_model_diff(const struct cf_model *was, const struct cf_model *is, struct cf_diff *ret);
size_t cf_manifest_diff(const struct cf_manifest *was, const struct cf_manifest *is, struct cf_diff *ret);

/* One finding as people read it, appended by the caller to a terminal or log:
 *     models.yaml:14:5: error: 'ctx_kap': no such key in a model; did you mean 'ctx_cap'?
 *        14 |     ctx_kap: 8192
 *           |     ^~~~~~~
 * Returns heap text (free it) or NULL without memory. */
char *cf_finding_format(const struct cf_finding *f, const char *file, const char *text, size_t len);

/* All findings of a report as above, each with its text's name, then one line: "models.yaml: 3 errors". `texts`: those that were parsed. Heap
 * text (free it) or NULL without memory. */
char *cf_report_format(const struct cf_report *r, const struct cf_text *texts);

/* THE key table, for pages, schemas and plans (config/schema.h). Static storage. */
struct cf_keys;
const struct cf_keys *cf_manifest_keys(void);
