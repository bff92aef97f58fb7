/* `pantheon inspect`: what a model file holds, what it would take here, and why it cannot be served. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config/manifest.h"
#include "config/place.h"
#include "daemon/cli.h"
#include "daemon/estimate.h"
#include "engine/inspect.h"
#include "engine/model.h"
#include "engine/spec.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/device.h"

enum { MAX_DIES = PN_MAX_PARTS };

/* The dies of --dies as the planner would fill them if they were alike and had room enough: what a model takes there depends on neither. */
struct split {
    char names[MAX_DIES][64];
    size_t n;
    struct pn_inspect_part parts[MAX_DIES];
};

static bool read_dies(const char *list, struct split *s) {
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= sizeof s->names[0]) {
            pd_cli_failf("--dies %s: must be names or numbers with commas between them, as in 0,1", list);
            return false;
        }
        if (s->n == MAX_DIES) {
            pd_cli_failf("--dies %s: at most %d", list, MAX_DIES);
            return false;
        }
        memcpy(s->names[s->n], p, n);
        for (size_t i = 0; i < s->n; i++)
            if (strcmp(s->names[i], s->names[s->n]) == 0) {
                pd_cli_failf("--dies %s: '%s' stands there twice", list, s->names[i]);
                return false;
            }
        s->n++;
        p += n;
        if (!*p) return true;
    }
}

/* The same split as the daemon's: from the estimate that its planner has. n = 0 afterwards when the file cannot be served, which the report
 * says. */
static int split_over(const char *path, const struct pn_model_opts *o, struct split *s, struct fo_err *e) {
    static const uint64_t endless = 1ull << 50;
    struct pd_estimate *est = NULL;
    struct cf_die_fact dies[MAX_DIES] = { 0 };
    char *names[MAX_DIES];
    struct fo_region r;
    struct cf_placer p;
    struct cf_place place;
    int rc = pd_estimate_measure(path, o, &est, e);
    if (rc) return rc;
    if (est->v.error) {
        s->n = 0;
        pd_estimate_free(est);
        return FO_OK;
    }
    for (size_t i = 0; i < s->n; i++) {
        memcpy(dies[i].name, s->names[i], sizeof dies[i].name);
        dies[i].accelerator = true;
        names[i] = s->names[i];
    }
    struct cf_facts facts = { .dies = dies, .n_dies = s->n, .estimates = &est->v, .n_estimates = 1 };
    fo_region_init(&r, 64u << 20);
    rc = cf_placer_init(&p, &facts, &r, e);
    if (rc == FO_OK) {
        for (size_t i = 0; i < s->n; i++) p.die_room[i] = endless;
        p.host_room = endless;
        cf_place(&p, &est->v, &(struct cf_names){ names, s->n }, false, &place);
        if (place.kind != CF_PLACED)
            rc = fo_fail(e, FO_EINVAL, "%s %s", path, place.why);
    }
    for (size_t i = 0; rc == FO_OK && i < s->n; i++)
        s->parts[i] = (struct pn_inspect_part){ .die = s->names[i],
                                                .first_layer = (uint32_t)place.parts[i].first_layer,
                                                .n_layers = (uint32_t)place.parts[i].n_layers,
                                                .weights_bytes = place.parts[i].weights_bytes,
                                                .kv_bytes = place.parts[i].kv_bytes,
                                                .scratch_bytes = place.parts[i].scratch_bytes };
    fo_region_done(&r);
    pd_estimate_free(est);
    return rc;
}

int pd_cli_inspect(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    const struct pd_cli_model *m = &a->models[a->n_models];
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct fo_buf out;
    bool servable = false;
    struct split split = { .n = 0 };
    int rc;
    if (m->dies && !read_dies(m->dies, &split)) return PD_EXIT_USAGE;
    struct pn_model_opts o = {
        .ctx_cap = (uint32_t)m->ctx_cap,
        .max_sessions = m->max_sessions ? (uint32_t)m->max_sessions : 4, /* the manifest's defaults */
        .max_concurrent = m->max_concurrent ? (uint32_t)m->max_concurrent : 2,
        .draft_rows = PN_DRAFT_MAX,
    };
    if (pd_cli_kv(a, &o, &e)) return pd_cli_fail(&e), PD_EXIT_USAGE;
    fo_buf_init(&out, 1 << 20);
    if (pd_cli_open_device(a, &dev, &e) || (o.dev = dev, split.n && split_over(path, &o, &split, &e)) ||
        pn_inspect(path, &o, split.parts, split.n, a->json, &out, &servable, &e)) {
        rc = pd_cli_fail(&e);
    } else {
        fwrite(fo_buf_str(&out), 1, out.len, stdout);
        rc = fflush(stdout) ? pd_cli_failf("writing the output: %s", strerror(errno)) : servable ? PD_EXIT_OK : PD_EXIT_FAILURE;
    }
    fo_buf_done(&out);
    fo_device_close(dev);
    return rc;
}
