/* THE list of backends, and nothing else: what a kind is called, how its dies are found, how one is opened. The cpu comes first and
 * is always there; a build adds at most one accelerator (see BACKEND in the makefile). */
#include "foundry/device.h"

#include <stdio.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/cpu/kernels.h"
#include "foundry/sim/sim.h"

struct backend {
    const char *kind;
    /* Writes up to cap dies and returns how many; none: why not, in one line, "" = not worth one. */
    int (*probe)(struct fo_die *ret, int cap, char *why, size_t why_size);
    int (*open)(const char *address, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e);
    const char *(*isa)(const struct fo_device *d); /* NULL: has none */
    bool made_up;                                  /* no hardware: no build is named for it */
};

static const struct backend backends[] = {
    { "cpu", fo_cpu_probe, fo_cpu_open, fo_cpu_isa, false },
    { "sim", fo_sim_probe, fo_sim_open, NULL, true },
};
enum { N_BACKENDS = sizeof backends / sizeof backends[0] };

int fo_device_probe(struct fo_die *ret, int cap, char *why, size_t why_size) {
    int n = 0;
    size_t at = 0;
    if (why && why_size) why[0] = '\0';
    for (int i = 0; i < N_BACKENDS; i++) {
        char line[160] = "";
        int found = backends[i].probe(ret + n, cap - n, line, sizeof line);
        n += found;
        if (found || !line[0] || !why || at >= why_size) continue;
        int len = snprintf(why + at, why_size - at, "%s: %s\n", backends[i].kind, line);
        at += len > 0 ? (size_t)len : 0;
    }
    return n;
}

int fo_device_open(const char *kind, const char *address, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e) {
    static const struct fo_device_opts defaults = { 0 };
    char names[128] = "";
    size_t at = 0;
    for (int i = 0; i < N_BACKENDS; i++) {
        if (strcmp(kind, backends[i].kind) == 0) {
            struct fo_device *d;
            if (!opts) opts = &defaults;
            if (backends[i].open(address ? address : "", opts, &d, e)) return e->code;
            if (opts->name) snprintf(d->die.name, sizeof d->die.name, "%s", opts->name);
            *ret = d;
            return FO_OK;
        }
        int len = snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", backends[i].kind);
        at += len > 0 && (size_t)len < sizeof names - at ? (size_t)len : 0;
    }
    return fo_fail(e, FO_EUNSUPPORTED, "no device of kind '%s' in this build, which has: %s", kind, names);
}

void fo_device_close(struct fo_device *d) {
    if (d) d->close(d);
}

const char *fo_device_build_backend(void) {
    int i = N_BACKENDS - 1;
    while (backends[i].made_up) i--;
    return backends[i].kind;
}

void fo_device_sensors(struct fo_device *d, struct fo_sensors *ret) {
    *ret = (struct fo_sensors){ 0 };
    if (d->sensors) d->sensors(d, ret);
}

uint32_t fo_device_contexts(struct fo_device *d) {
    return d->contexts ? d->contexts(d) : 0;
}

const char *fo_device_isa(const struct fo_device *d) {
    for (int i = 0; i < N_BACKENDS; i++)
        if (strcmp(d->kind, backends[i].kind) == 0) return backends[i].isa ? backends[i].isa(d) : "";
    return "";
}
