/* Fork-join threads: the only compute threads of the process. One job at a time; a second caller waits for the first, as it would
 * for a die. A job's units are split into contiguous ranges, one a thread, or taken by whoever is free; while other processes hold up the
 * threads, the caller runs whole jobs alone. Results must not depend on who ran what. */
#pragma once
#include <stdbool.h>

struct fo_err;
struct fo_pool;

/* Works on units [lo, hi). `thread` is 0 .. n_threads-1 and names a private scratch slot. */
typedef void fo_pool_fn(void *arg, int lo, int hi, int thread);

/* n_threads counts the caller: 1 starts none. 0 = fo_cpu_count(). */
int fo_pool_new(int n_threads, struct fo_pool **ret, struct fo_err *e);
void fo_pool_free(struct fo_pool *p); /* joins the threads; NULL is allowed */

int fo_pool_threads(const struct fo_pool *p);

/* Runs fn over [0, units) and returns when all is done. May be called from any thread, not from within a job. Allocates
 * nothing. Workers spin for a short while after a job (the next one usually follows at once) and then sleep. */
void fo_pool_run(struct fo_pool *p, fo_pool_fn *fn, void *arg, int units);

/* The same for work whose units may go to any thread: fn is called for ranges of `grain` units that start at a multiple of it (the last
 * may be shorter; the caller alone may get all at once), as often as there are ranges left; each thread begins with a contiguous part
 * of its own. */
void fo_pool_share(struct fo_pool *p, fo_pool_fn *fn, void *arg, int units, int grain);

/* Cores this process may use: physical ones (not their hyperthreads) within its affinity, and the cgroup quota (v1 and v2), at least 1. */
int fo_cpu_count(void);

/* How many physical cores the CPUs i < n with allowed[i] belong to. One whose topology is not shown counts as a core of its own. `root` as
 * below. */
int fo_cpu_cores(const char *root, const bool *allowed, int n);

/* CPUs that the cgroups of this process grant, rounded up; 0 = no limit. `root` is put in front of /proc and /sys: "" for the real
 * ones, a made tree in tests. */
int fo_cpu_quota(const char *root);
