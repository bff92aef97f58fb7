/* What host memory there is, from /proc and the control group of this process (v2, v1, or both at once as a hybrid host has them): the
 * smallest limit on the way up to the root counts. */
#pragma once
#include <stdint.h>

enum pd_mem_limit { PD_MEM_MEMINFO, PD_MEM_CGROUP2, PD_MEM_CGROUP1 }; /* in the order of enum cf_limited_by */

struct pd_hostmem {
    uint64_t total_bytes;     /* of the machine, or the group's limit when that is less */
    uint64_t available_bytes; /* MemAvailable, or the group's rest when that is less; page cache counts as available in both */
    enum pd_mem_limit limited_by;
    double psi_some, psi_full; /* percent of the last ten seconds in which some, all tasks waited for memory: the host's, or the group's where that is more */
};

/* `root` stands in front of every path ("" for the real ones; tests give a folder). What cannot be read limits nothing; without
 * /proc/meminfo everything is 0. Any thread. */
void pd_hostmem_read(const char *root, struct pd_hostmem *ret);

/* Anonymous memory that this process has touched (RssAnon); 0 when it cannot be read. */
uint64_t pd_hostmem_touched(const char *root);
/* Pages of mapped files that this process uses (RssFile): page cache that is called available and is not to be had while it does. */
uint64_t pd_hostmem_mapped(const char *root);

/* The root of the daemon's own readings: "", or what PANTHEON_HOST_ROOT says (a made-up host, for tests). */
const char *pd_hostmem_root(void);
