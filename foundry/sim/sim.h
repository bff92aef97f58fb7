/* The sim device: a die of made-up name and size that computes with the cpu's slots and whose faults follow a script, so that loading,
 * gates, pressure and loss can be tested without hardware. How scripts are written: foundry/sim/README.md. Any thread, as any device. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_device;
struct fo_device_opts;
struct fo_die;
struct fo_err;

/* The backend's row in device.c. Dies are those of PANTHEON_SIM; one that opts gives a size needs no mention there. FO_ENOENT when
 * neither knows the name, FO_EINVAL naming the word of a script that is not understood. */
int fo_sim_probe(struct fo_die *ret, int cap, char *why, size_t why_size);
int fo_sim_open(const char *name, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e);

/* What a sim die counted since it was opened. Attempts count, those that failed too. */
struct fo_sim_stats {
    uint64_t allocs, frees, uploads, downloads, ops;
    uint64_t used_bytes, late_bytes, foreign_bytes; /* now */
    uint64_t peak_bytes;                            /* most that was ever used at once */
};
void fo_sim_stats(struct fo_device *d, struct fo_sim_stats *ret); /* d is a sim die */
