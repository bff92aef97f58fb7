/* What host memory there is, from /proc and the control group of this process (v2, v1, or both at once as a hybrid host has them): the
 * smallest limit on the way up to the root counts. */
#pragma once
#include <stdint.h>

enum pd_mem_limit { PD_MEM_MEMINFO, PD_MEM_CGROUP2, PD_MEM_CGROUP1 }; /* in the order of enum cf_limited_by */

struct pd_hostmem {
    uint64_t total_bytes;     /* of the machine, or the group's limit when that is less */
    uint64_t available_bytes; /* MemAvailable, or the group's rest when that is less; page cache counts as available in both */
    enum pd_mem_limit limited_by;
};

/* `root` stands in front of every path ("" for the real ones; tests give a folder). What cannot be read limits nothing; without
 * /proc/meminfo everything is 0. Any thread. */
void pd_hostmem_read(const char *root, struct pd_hostmem *ret);

/* Anonymous memory that this process has touched (RssAnon); 0 when it cannot be read. */
uint64_t pd_hostmem_touched(const char *root);
