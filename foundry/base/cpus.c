/* How many threads are worth starting: the smaller of the physical cores in this process's affinity and of what control groups grant
 * (see pool.h). A container with a quota of 1.5 CPUs on a machine of 64 must not start 64 threads that stop each other, and two threads on
 * the two halves of one core share its multipliers and its path to memory: they gain nothing and make every join wait for the slower.
 *
 * Where a quota stands (Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1): /proc/self/cgroup has a line per hierarchy,
 * "0::PATH" for v2 and "N:cpu,cpuacct:PATH" for v1. PATH is below the mount, and every group above it limits too. Within a container
 * PATH may not be visible; then the mount's own root is the container's group. */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/pool.h"

enum { FILE_CAP_BYTES = 65536 };

/* CPUs granted by "<dir>/<name>", or 0 for no limit. v2: "QUOTA PERIOD" or "max PERIOD"; v1: the quota alone, -1 = none. */
static int quota_in(const char *dir, const char *name, long period) {
    char path[512], *text;
    size_t len;
    struct fo_err e;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path) return 0;
    if (fo_file_read(path, FILE_CAP_BYTES, &text, &len, &e)) return 0;
    char *end;
    long quota = strtol(text, &end, 10);
    if (!period) period = strtol(end, NULL, 10);
    free(text);
    if (quota <= 0 || period <= 0) return 0;
    long cpus = quota / period + (quota % period != 0);
    return cpus < 1 << 20 ? (int)cpus : 0;
}

static int v1_quota(const char *dir) {
    char path[512], *text;
    size_t len;
    struct fo_err e;
    if ((size_t)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir) >= sizeof path) return 0;
    if (fo_file_read(path, FILE_CAP_BYTES, &text, &len, &e)) return 0;
    long period = strtol(text, NULL, 10);
    free(text);
    return period > 0 ? quota_in(dir, "cpu.cfs_quota_us", period) : 0;
}

/* The smallest quota from `mount`/`group` up to the mount itself; 0 = no limit. */
static int quota_of_group(const char *mount, const char *group, int (*read_quota)(const char *dir)) {
    char dir[512];
    size_t root = strlen(mount);
    int least = 0;
    if ((size_t)snprintf(dir, sizeof dir, "%s%s", mount, group) >= sizeof dir) return 0;
    for (;;) {
        int n = read_quota(dir);
        if (n && (!least || n < least)) least = n;
        char *slash = strrchr(dir + root, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static int v2_quota(const char *dir) {
    return quota_in(dir, "cpu.max", 0);
}

/* Whether the comma list has the word. */
static bool lists(const char *list, size_t len, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list, *end = list + len; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t m = (size_t)((comma ? comma : end) - p);
        if (m == n && memcmp(p, word, n) == 0) return true;
        p += m + 1;
    }
    return false;
}

int fo_cpu_quota(const char *root) {
    char path[256], *text;
    size_t len;
    struct fo_err e;
    int least = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (fo_file_read(path, FILE_CAP_BYTES, &text, &len, &e)) return 0;
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        const char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        list++;
        size_t list_len = (size_t)(group - list);
        group++;
        if (strcmp(group, "/") == 0) group = "";
        int n = 0;
        if (list_len == 0) {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup", root);
            n = quota_of_group(path, group, v2_quota);
        } else if (lists(list, list_len, "cpu")) {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup/%.*s", root, (int)list_len, list);
            n = quota_of_group(path, group, v1_quota);
            if (!n) { /* the usual link */
                snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu", root);
                n = quota_of_group(path, group, v1_quota);
            }
        }
        if (n && (!least || n < least)) least = n;
    }
    free(text);
    return least;
}

/* Whether a list like "0,4" or "2-3,10" (Linux, Documentation/admin-guide/cputopology.rst) names an allowed CPU below `cpu`. */
static bool names_lower(const char *list, const bool *allowed, int cpu) {
    while (*list >= '0' && *list <= '9') {
        char *end;
        long lo = strtol(list, &end, 10), hi = *end == '-' ? strtol(end + 1, &end, 10) : lo;
        for (long i = lo; i <= hi && i < cpu; i++)
            if (allowed[i]) return true;
        if (*end != ',') return false;
        list = end + 1;
    }
    return false;
}

int fo_cpu_cores(const char *root, const bool *allowed, int n) {
    int cores = 0;
    for (int cpu = 0; cpu < n; cpu++) {
        if (!allowed[cpu]) continue;
        char path[256], *text;
        size_t len;
        struct fo_err e;
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
        if (fo_file_read(path, FILE_CAP_BYTES, &text, &len, &e)) {
            cores++;
            continue;
        }
        cores += !names_lower(text, allowed, cpu);
        free(text);
    }
    return cores;
}

/* Physical cores that this process may run on. */
static int affinity(void) {
#ifdef __linux__
    for (int n = 1024; n <= 1 << 20; n *= 4) { /* a set smaller than the kernel's is refused */
        cpu_set_t *set = CPU_ALLOC((size_t)n);
        bool *allowed = calloc((size_t)n, sizeof *allowed);
        size_t size = CPU_ALLOC_SIZE((size_t)n);
        int cores = 0;
        if (set && allowed && sched_getaffinity(0, size, set) == 0) {
            for (int i = 0; i < n; i++) allowed[i] = CPU_ISSET_S((size_t)i, size, set);
            cores = fo_cpu_cores("", allowed, n);
        }
        bool enough = set && allowed;
        CPU_FREE(set);
        free(allowed);
        if (cores > 0) return cores;
        if (!enough) break;
    }
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

int fo_cpu_count(void) {
    int n = affinity(), quota = fo_cpu_quota("");
    if (quota && quota < n) n = quota;
    return n < 1 ? 1 : n;
}
