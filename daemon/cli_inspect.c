/* `pantheon inspect`: what a model file holds, what it would take here, and why it cannot be served. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cli.h"
#include "engine/inspect.h"
#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

int pd_cli_inspect(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    const struct pd_cli_model *m = &a->models[a->n_models];
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct fo_buf out;
    bool servable = false;
    int rc;
    fo_buf_init(&out, 1 << 20);
    struct pn_model_opts o = {
        .ctx_cap = (uint32_t)m->ctx_cap,
        .max_sessions = m->max_sessions ? (uint32_t)m->max_sessions : 4, /* the manifest's defaults */
        .max_concurrent = m->max_concurrent ? (uint32_t)m->max_concurrent : 2,
        .kv_default = true,
    };
    if (pd_cli_open_device(a, &dev, &e) || (o.dev = dev, pn_inspect(path, &o, a->json, &out, &servable, &e))) {
        rc = pd_cli_fail(&e);
    } else {
        fwrite(fo_buf_str(&out), 1, out.len, stdout);
        rc = fflush(stdout) ? pd_cli_failf("writing the output: %s", strerror(errno)) : servable ? PD_EXIT_OK : PD_EXIT_FAILURE;
    }
    fo_buf_done(&out);
    fo_device_close(dev);
    return rc;
}
