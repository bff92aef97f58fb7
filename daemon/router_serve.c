/* See router_serve.h. Stopping: new requests get 503 draining, running ones go on until they are done or `drain` has passed, then their answers end with an
 * error, and the connections to the backends with them. */
#include "daemon/router_serve.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "config/manifest.h"
#include "daemon/cert.h"
#include "daemon/gate.h"
#include "daemon/listen.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/router.h"
#include "daemon/router_pages.h"
#include "daemon/router_probe.h"
#include "daemon/serve.h"
#include "daemon/source.h"
#include "engine/version.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/base/units.h"

enum { TICK_MS = 250, DRAIN_LOOK_MS = 20, CUT_MS = 5000 /* for answers that are ended to be so */ };

/* Waits up to timeout_ms for a signal; 0 = none came. */
static int wait_signal(int fd, int timeout_ms) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct signalfd_siginfo si;
    if (poll(&p, 1, timeout_ms) <= 0 || read(fd, &si, sizeof si) != (ssize_t)sizeof si) return 0;
    return (int)si.ssi_signo;
}

static void drain(struct pd_router *r, uint64_t drain_ms, int signals) {
    struct pd_app *app = &r->app;
    uint64_t deadline = fo_now_ms() + drain_ms;
    char text[16];
    atomic_store(&app->draining, true);
    pd_http_drain(app->http);
    pd_notify_stopping();
    pd_notify_extend((drain_ms + 2 * CUT_MS) * 1000ull);
    fo_log(FO_LOG_INFO, "router", "event=draining requests=%u drain=\"%s\"", pd_http_busy(app->http), fo_format_ms(drain_ms, text, sizeof text));
    while (pd_http_busy(app->http) && fo_now_ms() < deadline + CUT_MS) {
        if (fo_now_ms() >= deadline && !atomic_exchange(&r->cut, true))
            fo_log(FO_LOG_WARN, "router", "event=drain_over requests=%u next=\"ending them\"", pd_http_busy(app->http));
        if (wait_signal(signals, DRAIN_LOOK_MS) == SIGINT) {
            fo_log(FO_LOG_WARN, "router", "event=interrupted next=\"ending at once\"");
            _exit(130);
        }
    }
    atomic_store(&r->cut, true);
}

static void serve(struct pd_router *r, uint64_t drain_ms, int signals) {
    int sig = 0;
    fo_log(FO_LOG_INFO, "router", "event=ready backends=%zu", r->n);
    pd_notify_ready();
    while (sig != SIGTERM && sig != SIGINT) {
        pd_gate_look(&r->app, sig == SIGHUP);
        pd_cert_look(&r->app, sig == SIGHUP);
        pd_notify_watchdog();
        sig = wait_signal(signals, TICK_MS);
    }
    fo_log(FO_LOG_INFO, "router", "event=stopping signal=%s", sig == SIGTERM ? "SIGTERM" : "SIGINT");
    drain(r, drain_ms, signals);
}

/* A request has a descriptor for its client, one for its backend, and two that libcurl wakes itself by: all that this process may have, so that it is
 * the limit on connections that is felt. */
static void raise_files(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == r.rlim_max) return;
    r.rlim_cur = r.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &r)) fo_log(FO_LOG_WARN, "router", "event=few_files reason=\"%s\"", strerror(errno));
}

/* Puts keys and certificate in force; takes the manifest over. */
static int use_manifest(struct pd_app *app, struct pd_reading *reading, struct pd_counted_manifest **ret, struct fo_err *e) {
    struct pd_counted_manifest *c = calloc(1, sizeof *c);
    if (!c) return fo_fail(e, FO_ENOMEM, "no memory for the settings");
    atomic_init(&c->refs, 1);
    c->m = reading->manifest;
    c->generation = 1;
    reading->manifest = NULL;
    *ret = c;
    if (pd_gate_may_use(app, c->m, e) || pd_cert_use(app, c->m, NULL, e)) return e->code;
    return pd_gate_use(app, c, NULL, e);
}

int pd_router_serve(struct pd_router *r, struct pd_reading *reading) {
    struct pd_probes *probes = NULL;
    struct pd_counted_manifest *m = NULL;
    struct pd_passed passed;
    struct fo_err e;
    sigset_t mask;
    int signals = -1, status = PD_SERVED;
    pd_serve_prepare(&mask);
    raise_files();
    fo_log(FO_LOG_INFO, "router", "event=start version=%s build=\"%s\"", pn_version(), pn_build());
    int code = pd_hop_init(&e);
    if (code == FO_OK) code = pd_gate_new(&r->app.gate, &e);
    if (code == FO_OK) code = pd_cert_new(&r->app.cert, &e);
    if (code == FO_OK) code = pd_notify_sockets(&passed, &e);
    if (code == FO_OK) code = pd_serve_open(&r->app, reading->manifest, &passed, NULL, pd_router_dispatch, &e);
    if (code == FO_OK) code = use_manifest(&r->app, reading, &m, &e);
    if (code == FO_OK && (signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) code = fo_fail_errno(&e, errno, "signalfd");
    if (code == FO_OK) code = pd_probes_start(r, &probes, &e);
    if (code == FO_OK) code = pd_http_start(r->app.http, &e);
    if (code == FO_OK) {
        serve(r, m->m->server.drain_ms, signals);
    } else {
        char why[512];
        fo_log(FO_LOG_ERROR, "router", "event=cannot_start code=%s reason=%s", fo_code_name(e.code), pd_log_quote(e.msg, why, sizeof why));
        status = PD_CANNOT_SERVE;
    }
    pd_http_close(r->app.http);
    pd_probes_stop(probes);
    pd_gate_free(r->app.gate);
    pd_cert_free(r->app.cert);
    pd_counted_manifest_put(m);
    if (signals >= 0) close(signals);
    if (status == PD_SERVED) fo_log(FO_LOG_INFO, "router", "event=stopped");
    return status;
}
