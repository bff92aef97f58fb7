/* Files read: /proc/meminfo (MemTotal, MemAvailable); /proc/self/cgroup, whose line "0::/path" names the group of v2 and
 * "N:memory:/path" that of v1; of each group on the path up to the root
 *     v2: memory.max, memory.high, memory.current, memory.stat (inactive_file + active_file), memory.pressure
 *     v1: memory.limit_in_bytes, memory.usage_in_bytes, memory.stat (total_inactive_file + total_active_file)
 * and /proc/pressure/memory, for who waits. Above memory.high the kernel does not kill, it makes whoever asks for memory wait: to us that
 * is a limit like any. A group's usage includes page cache, which the kernel gives back before it kills anybody; so that is not counted as used. Inside a
 * container the path is often not visible under the mount; the mount's own root is then the group. */
#include "daemon/hostmem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"

enum { MAX_TEXT = 256 * 1024, MAX_PATH = 1024 };

static char *slurp(const char *path) {
    struct fo_err e;
    char *text;
    size_t len;
    return fo_file_read(path, MAX_TEXT, &text, &len, &e) ? NULL : text;
}

/* The number after `key` at the start of a line; false when there is no such line. */
static bool number_after(const char *text, const char *key, uint64_t *ret) {
    size_t n = strlen(key);
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        if (strncmp(p, key, n) != 0) continue;
        p += n + strspn(p + n, " \t:");
        if (*p < '0' || *p > '9') return false;
        *ret = strtoull(p, NULL, 10);
        return true;
    }
    return false;
}

/* A file that holds one number; "max" and what is absent are no number. */
static bool number_in(const char *dir, const char *file, uint64_t *ret) {
    char path[MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *text = slurp(path);
    bool ok = text && *text >= '0' && *text <= '9';
    if (ok) *ret = strtoull(text, NULL, 10);
    free(text);
    return ok;
}

static uint64_t cache_of(const char *dir, const char *inactive, const char *active) {
    char path[MAX_PATH + 64];
    uint64_t a = 0, b = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    char *text = slurp(path);
    if (text) {
        number_after(text, inactive, &a);
        number_after(text, active, &b);
    }
    free(text);
    return a + b;
}

/* Takes the numbers of a file of stalls where they are higher. */
static void read_stalls(const char *dir, const char *file, struct pd_hostmem *ret) {
    char path[MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *text = slurp(path);
    if (!text) return;
    for (char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) { /* "some avg10=0.00 avg60=..." */
        double *to = strncmp(line, "some avg10=", 11) == 0 ? &ret->psi_some : strncmp(line, "full avg10=", 11) == 0 ? &ret->psi_full : NULL, x = to ? strtod(line + 11, NULL) : 0;
        if (to && x > *to) *to = x;
    }
    free(text);
}

/* One version of control groups: its mount points, and the names of its files. */
struct version {
    enum pd_mem_limit kind;
    const char *mounts[3], *max, *high, *current, *inactive, *active, *stalls; /* high, stalls: NULL = there is no such file */
};
static const struct version versions[] = {
    { PD_MEM_CGROUP2, { "/sys/fs/cgroup", "/sys/fs/cgroup/unified", NULL }, "memory.max", "memory.high", "memory.current", "inactive_file", "active_file", "memory.pressure" },
    { PD_MEM_CGROUP1, { "/sys/fs/cgroup/memory", NULL, NULL }, "memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_inactive_file", "total_active_file", NULL },
};

/* Narrows *ret by the group at `dir`. */
static void narrow(const struct version *v, const char *dir, struct pd_hostmem *ret) {
    uint64_t max, high, current;
    if (v->stalls) read_stalls(dir, v->stalls, ret);
    if (!number_in(dir, v->max, &max)) max = UINT64_MAX;
    if (v->high && number_in(dir, v->high, &high) && high < max) max = high;
    if (max == UINT64_MAX || !number_in(dir, v->current, &current)) return;
    if (max >= (uint64_t)1 << 62) return; /* v1 says "none" by a number near 2^63 */
    uint64_t cache = cache_of(dir, v->inactive, v->active), used = current > cache ? current - cache : 0, rest = max > used ? max - used : 0;
    if (max < ret->total_bytes) ret->total_bytes = max;
    if (rest >= ret->available_bytes) return;
    ret->available_bytes = rest;
    ret->limited_by = v->kind;
}

/* The path of this process's group in /proc/self/cgroup; "" when the version is not in use. */
static void group_path(const char *list, enum pd_mem_limit kind, char *ret, size_t size) {
    *ret = '\0';
    for (const char *p = list; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        const char *controllers = strchr(p, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) return;
        size_t n = (size_t)(path - controllers - 1);
        char names[256];
        snprintf(names, sizeof names, ",%.*s,", (int)(n < 200 ? n : 200), controllers + 1);
        if (kind == PD_MEM_CGROUP2 ? n == 0 : strstr(names, ",memory,") != NULL) {
            snprintf(ret, size, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
            return;
        }
    }
}

void pd_hostmem_read(const char *root, struct pd_hostmem *ret) {
    char path[MAX_PATH], group[MAX_PATH / 2];
    uint64_t kib;
    *ret = (struct pd_hostmem){ .limited_by = PD_MEM_MEMINFO };
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    char *meminfo = slurp(path);
    if (meminfo && number_after(meminfo, "MemTotal", &kib)) ret->total_bytes = kib * 1024;
    if (meminfo && number_after(meminfo, "MemAvailable", &kib)) ret->available_bytes = kib * 1024;
    free(meminfo);
    snprintf(path, sizeof path, "%s/proc/pressure", root);
    read_stalls(path, "memory", ret);
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    char *list = slurp(path);
    for (size_t i = 0; list && i < sizeof versions / sizeof *versions; i++) {
        group_path(list, versions[i].kind, group, sizeof group);
        if (!*group) continue;
        for (const char *const *mount = versions[i].mounts; *mount; mount++) {
            for (char *end = group;; *end = '\0') {
                int n = snprintf(path, sizeof path, "%s%s%s", root, *mount, strcmp(group, "/") == 0 ? "" : group);
                if (n > 0 && (size_t)n < sizeof path) narrow(&versions[i], path, ret);
                if (!*group || strcmp(group, "/") == 0) break;
                end = strrchr(group, '/');
                if (!end) break;
            }
            group_path(list, versions[i].kind, group, sizeof group);
        }
    }
    free(list);
}

/* A line of /proc/self/status, in bytes. */
static uint64_t of_this_process(const char *root, const char *key) {
    char path[MAX_PATH];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    char *text = slurp(path);
    if (text && !number_after(text, key, &kib)) kib = 0;
    free(text);
    return kib * 1024;
}

uint64_t pd_hostmem_touched(const char *root) {
    return of_this_process(root, "RssAnon");
}

uint64_t pd_hostmem_mapped(const char *root) {
    return of_this_process(root, "RssFile");
}

const char *pd_hostmem_root(void) {
    const char *root = getenv("PANTHEON_HOST_ROOT");
    return root ? root : "";
}
