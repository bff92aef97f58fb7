/* Bring-up and tear-down around the loop (reconcile.c). HTTP listens before the first load: bring-up can be watched, and a client is told
 * "loading" and not "connection refused".
 *
 * Stopping: new requests get 503 draining (the listeners stay open to say so), running ones go on until they are done or `drain` has
 * passed, then they are cancelled and end with an error event; then the connections are cut and everything is freed. */
#include "daemon/serve.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/cert.h"
#include "daemon/gate.h"
#include "daemon/http.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/reconcile.h"
#include "daemon/routes.h"
#include "daemon/sessions.h"
#include "daemon/source.h"
#include "engine/engine.h"
#include "engine/version.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/device.h"

int pd_serve_open(struct pd_app *app, const struct cf_manifest *m, const struct pd_passed *passed, const char *admin_socket, pd_http_handler *handler, struct fo_err *e) {
    struct pd_http_opts http = {
        .listen = { .rows = (const char *const *)m->server.listen, .n_rows = m->server.n_listen, .admin_socket = admin_socket, .passed = passed },
        .tls = pd_cert_tls(app->cert),
        .handler = handler,
        .in_pieces = handler == pd_dispatch ? pd_route_in_pieces : NULL,
        .admit = pd_gate_admit,
        .done = pd_gate_done,
        .ctx = app,
    };
    pd_loop_limits(m, &http.limits);
    return pd_http_open(&http, &app->http, e);
}

void pd_serve_prepare(sigset_t *ret) {
    /* hundreds of connection threads would each keep their own heap arena */
    mallopt(M_ARENA_MAX, 2);
    sigemptyset(ret);
    sigaddset(ret, SIGTERM);
    sigaddset(ret, SIGINT);
    sigaddset(ret, SIGHUP);
    pthread_sigmask(SIG_BLOCK, ret, NULL); /* inherited by every thread: signals are read by the main thread alone */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write(), and no end of the daemon */
}

int pd_serve(struct pd_reading *r, const struct pd_serve_opts *opts) {
    struct pd_app app;
    struct pd_loop *loop = NULL;
    struct pd_passed passed;
    struct pd_loop_opts loop_opts = { .config = opts->config, .dir = opts->dir, .state_dir = opts->state_dir, .isa = opts->isa, .no_mmap = opts->no_mmap, .must_serve = opts->must_serve };
    struct fo_err e;
    sigset_t mask;
    pd_serve_prepare(&mask);
    fo_log(FO_LOG_INFO, "serve", "event=start version=%s build=\"%s\" backend=%s", pn_version(), pn_build(), fo_device_build_backend());
    int status = PD_SERVED, code = pd_app_init(&app, &e);
    app.config = opts->config;
    if (code == FO_OK) code = pn_engine_new(&app.engine, &e);
    if (code == FO_OK) pn_engine_on_leave(app.engine, pd_sessions_leave, &app);
    if (code == FO_OK) code = pd_gate_new(&app.gate, &e);
    if (code == FO_OK) code = pd_cert_new(&app.cert, &e);
    if (code == FO_OK) code = pd_notify_sockets(&passed, &e);
    if (code == FO_OK) code = pd_serve_open(&app, r->manifest, &passed, r->manifest->server.admin_socket, pd_dispatch, &e);
    if (code == FO_OK) code = pd_loop_new(&app, r, opts->generation, opts->bad_report, &loop_opts, &loop, &e);
    if (code == FO_OK) code = pd_http_start(app.http, &e);
    if (code == FO_OK) {
        if (!pd_loop_run(loop)) status = PD_CANNOT_SERVE;
    } else {
        char why[512];
        fo_log(FO_LOG_ERROR, "serve", "event=cannot_start code=%s reason=%s", fo_code_name(e.code), pd_log_quote(e.msg, why, sizeof why));
        status = PD_CANNOT_SERVE;
    }
    pd_http_close(app.http);
    if (code == FO_OK) pd_sessions_save_all(&app);
    pn_engine_free(app.engine);
    pd_loop_free(loop);
    pd_gate_free(app.gate);
    pd_cert_free(app.cert);
    pd_app_done(&app);
    if (status == PD_SERVED) fo_log(FO_LOG_INFO, "serve", "event=stopped");
    return status;
}
