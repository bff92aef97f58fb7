/* Fetching a model's files: from the URLs that its manifest declares, one file after the other, each into a part beside its place
 * (transfer.h), checked, and only then renamed: nothing but a whole file ever has the name that is served. A job is a value that owns its inputs. It
 * is performed by whoever calls pd_fetch_perform, or by the fetcher: one thread of its own, apart from the loader, because an hour's
 * download must not keep other models from being loaded. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/transfer.h"
#include "foundry/base/err.h"

struct cf_model;
struct pd_fetcher;

struct pd_fetch_job {
    char *model;
    char *path;    /* of the file, or of one of its shards; as it is opened */
    char **urls;   /* [n_urls] as declared: the url, then the mirrors; 0 = the file is there and is only checked */
    size_t n_urls;
    char **sums;   /* [n_sums] 0, or one for each file */
    size_t n_sums;
    size_t n_files;
    struct pd_progress progress;
    void (*tick)(void *ctx); /* about once a second and more often while it runs; NULL */
    void *ctx;
    /* results */
    enum pd_fetch_end end;
    struct fo_err err; /* why not */
    bool resumed;
    uint32_t retry_after_s; /* a server's wish; 0 = none */
    uint64_t identity; /* of the files, as they were when they were checked (pn_model_identity); 0 = they were not */
    uint64_t took_ms;
};

/* What `path` (resolved against the manifest's folder) of a model takes. NULL without memory. */
struct pd_fetch_job *pd_fetch_job_new(const struct cf_model *m, const char *path);
void pd_fetch_job_free(struct pd_fetch_job *j); /* NULL is allowed */
/* Blocks until all files are in place and right, or a reason why they are not stands in the job. */
void pd_fetch_perform(struct pd_fetch_job *j);

/* "Stalled", "DiskFull", ...: a condition's reason. */
const char *pd_fetch_end_name(enum pd_fetch_end end);

/* What a declared URL is fetched from: "hf:..." becomes one of PANTHEON_HF_ENDPOINT (https://huggingface.co). *ret on the heap. */
int pd_fetch_url(const char *declared, char **ret, bool *ret_loopback, struct fo_err *e);

/* The path of file i of n: a shard's, or the path itself. Heap; NULL without memory. */
char *pd_fetch_file(const char *path, size_t i, size_t n);
/* How many files the model's path stands for. */
size_t pd_fetch_n_files(const char *path);

/* Starts the thread. `bell` (an eventfd) rings whenever a job is done. */
int pd_fetcher_new(int bell, struct pd_fetcher **ret, struct fo_err *e);
/* Hands a job over; there is none at work. Until it is taken back, others look at its progress and set progress.cancel only. */
void pd_fetcher_start(struct pd_fetcher *f, struct pd_fetch_job *j);
/* The job that is done, or NULL while it is at work or there is none. */
struct pd_fetch_job *pd_fetcher_take(struct pd_fetcher *f);
/* Cancels, joins, frees; a part stays for the next time. NULL is allowed. */
void pd_fetcher_free(struct pd_fetcher *f);
