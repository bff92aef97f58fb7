/* The observed world as plain data: what dies and memory there are, what runs where, what each declared model would need. The
 * daemon fills it from its registry, the devices and a probe of each file's header; /admin/dies and /admin/models print it;
 * `pantheon-reconcile --save-facts` keeps it and `--facts` replays it. Pure values; a facts object owns everything in it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/manifest.h"

enum cf_health { CF_HEALTH_OK, CF_HEALTH_LOST };

/* How short memory is: the numbers are enum pn_level's. */
enum cf_pressure_level { CF_P_NORMAL, CF_P_WATCH, CF_P_TIGHT, CF_P_CRITICAL };

struct cf_die_fact {
    char name[64], kind[16], address[32], model[64];
    uint64_t total_bytes;   /* the budget: the card's memory, or what the manifest carves out of host RAM */
    uint64_t reserve_bytes; /* kept free, from the manifest */
    uint64_t ours_bytes;    /* held by our models; one that is being loaded counts in full */
    uint64_t foreign_bytes; /* used by others, as the driver says */
    enum cf_health health;
    char reason[128]; /* why it is lost */
    bool host;        /* its memory is host RAM (cpu): counted against the host's gate too */
    bool accelerator;
    uint32_t contexts; /* that this process holds on it: 0 lets it idle */
    enum cf_pressure_level pressure; /* a host die's is the host's */
};

enum cf_limited_by { CF_BY_MEMINFO, CF_BY_CGROUP2, CF_BY_CGROUP1 };

struct fo_region;

struct cf_host_fact {
    uint64_t total_bytes;
    uint64_t available_bytes; /* MemAvailable or the cgroup's rest, whichever is less, and of that what is not spoken for: weights that
                                 models map from files are page cache, which the kernel calls available, so they are taken off */
    enum cf_limited_by limited_by;
    enum cf_pressure_level pressure;
};

/* One contiguous run of layers on one die, with what it takes there. */
struct cf_part {
    char die[64];
    int64_t first_layer, n_layers;
    uint64_t weights_bytes, kv_bytes, scratch_bytes;
};

enum cf_instance_state { CF_I_LOADING, CF_I_READY, CF_I_DRAINING, CF_I_UNLOADING, CF_I_FAILED };

/* A loaded (or loading) copy of a model; replicas are several instances of one name. */
struct cf_instance {
    char *name;
    int64_t replica;
    uint64_t generation; /* of the manifest it was loaded for */
    enum cf_instance_state state;
    struct cf_model *spec;   /* as it was loaded, and as SET changed it since: what a new manifest is compared with */
    int64_t concurrent_room; /* the max_concurrent it was loaded for: raising it past that is a reload; 0 = any is live */
    bool ad_hoc;             /* asked for over the admin API, not declared */
    char *reason;            /* of a failure; NULL */
    struct cf_part *parts;   /* on a host die they are host memory too */
    size_t n_parts;
    uint64_t host_bytes; /* host memory besides the parts */
    uint64_t running;    /* requests now */
    uint64_t loaded_at_ms, used_at_ms; /* on the clock of cf_facts.now_ms; used: the end of its last request, 0 = none yet. Both 0: not known */
};

/* What is remembered of a model beyond its instances. */
struct cf_history {
    char *name;
    struct cf_model *ad_hoc; /* wanted over the admin API though the manifest does not declare it: its keys; NULL */
    bool admin_unloaded;     /* held until POST load or a new manifest */
    uint32_t failures;       /* loads in a row that failed */
    uint64_t retry_at_ms;    /* backoff ends; on the clock of cf_facts.now_ms */
    char *last_error;
    uint64_t wanted_at_ms;   /* a request asked for it first then, and it was not loaded; 0 = nobody waits. On demand only */
    uint64_t load_ms;        /* what its last load took; 0 = none yet */
    uint64_t used_at_ms;     /* its last load, or the end of the last request to any copy; 0 = not known */
};

/* What a model would take, from its file's header, by the layout code that allocates. One for each (path, ctx_cap as declared,
 * max_sessions, max_concurrent, kv) that the manifest, an ad hoc wish or an instance names. */
struct cf_estimate {
    char *path;                                         /* as in the manifest */
    int64_t ctx_declared, max_sessions, max_concurrent; /* ctx_declared may be CF_AUTO */
    struct cf_kv kv;
    int64_t ctx_cap;                                    /* what that resolves to */
    char *error;                                        /* the file cannot be served: why; the numbers are 0 then. NULL */
    uint64_t *layer_bytes;                              /* [n_layers <= CF_MAX_LAYERS] weights of each layer */
    size_t n_layers;
    uint64_t *layer_kv_bytes; /* [n_layer_kv = n_layers] its KV, all sessions at ctx_cap */
    size_t n_layer_kv;
    uint64_t input_bytes;   /* on the die of the first layer: the token embedding */
    uint64_t output_bytes;  /* on the die of the last layer: final norm and output matrix */
    uint64_t tied_bytes;    /* on the die of the last layer, unless it is that of the first: an output matrix that is the embedding */
    uint64_t die_kv_bytes;  /* per die: KV bookkeeping that does not depend on layers */
    uint64_t scratch_bytes; /* per die */
    uint64_t logits_bytes;  /* scratch besides, on the die of the last layer */
    uint64_t host_bytes;    /* host memory besides the parts, as long as it is loaded: tokenizer, sessions */
    uint64_t staging_bytes; /* host memory while it is loaded onto a die that is not the host's */
};

/* The files of a model that declares where they come from, or what they must be. A model without both has none of these. */
enum cf_file_state {
    CF_FILE_PRESENT,    /* there, and as declared */
    CF_FILE_ABSENT,     /* to be fetched */
    CF_FILE_UNVERIFIED, /* there, and not held against its sha256 yet */
    CF_FILE_FETCHING,
    CF_FILE_VERIFYING,  /* its sha256 is being taken */
    CF_FILE_WRONG       /* there, and not what sha256 says: it stays until somebody moves it */
};
struct cf_file {
    char *model;
    char *path;          /* as in the manifest */
    enum cf_file_state state;
    uint64_t bytes;      /* of the file, or of the shard at work; 0 = not known yet */
    uint64_t part_bytes; /* what of it is here */
    uint64_t bytes_per_second;
    uint32_t failures;   /* tries in a row that failed */
    uint64_t retry_at_ms;
    char *reason;        /* of the last failure, a word: "Stalled"; NULL */
    char *error;         /* and for people */
};

struct cf_facts {
    uint64_t now_ms;
    struct cf_host_fact host;
    struct cf_die_fact *dies;
    size_t n_dies;
    struct cf_instance *instances;
    size_t n_instances;
    struct cf_history *histories;
    size_t n_histories;
    struct cf_estimate *estimates;
    size_t n_estimates;
    struct cf_file *files;
    size_t n_files;
    void *memory; /* owns everything above when it came from cf_facts_parse or cf_facts_copy */
};

enum { CF_MAX_FACTS_BYTES = 8 << 20, CF_MAX_FACTS_MEMORY = 64 << 20, CF_MAX_LAYERS = 1024 };

/* JSON both ways: the keys are the fields' names, of one table. Parsing is strict (unknown keys and wrong types are errors, absent keys
 * are zeros, names must be there) and bounded (CF_MAX_FACTS_BYTES of text): FO_EFORMAT names the JSON path, FO_ELIMIT, FO_ENOMEM. Free
 * with cf_facts_free. */
int cf_facts_parse(const char *json, size_t len, struct cf_facts **ret, struct fo_err *e);
char *cf_facts_write(const struct cf_facts *f); /* heap JSON text, indented, ends in a newline; NULL without memory */
void cf_facts_free(struct cf_facts *f);         /* NULL is allowed */

/* Appends some of the keys as one JSON object. Whether the buffer took it, out->failed tells. */
struct fo_buf;
enum { CF_FACTS_DIES = 1 /* host, dies */, CF_FACTS_MODELS = 2 /* instances, histories, estimates, files */, CF_FACTS_ALL = 7 };
void cf_facts_write_some(const struct cf_facts *f, unsigned what, struct fo_buf *out);

/* A model's files; NULL = nothing is declared of them, or nobody has looked. */
const struct cf_file *cf_file_find(const struct cf_facts *f, const struct cf_model *m);

/* A copy that owns all its memory (the planner's simulation changes one). FO_ENOMEM, FO_ELIMIT. */
int cf_facts_copy(const struct cf_facts *f, struct cf_facts **ret, struct fo_err *e);

/* Where the objects of cf_facts_parse and cf_facts_copy live: what is added to them may live there too. */
struct fo_region *cf_facts_region(struct cf_facts *f);
