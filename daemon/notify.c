/* sd_notify behind one seam: see notify.h. */
#include "daemon/notify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "daemon/listen.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

void pd_notify_ready(void) {
    sd_notify(0, "READY=1");
}

void pd_notify_stopping(void) {
    sd_notify(0, "STOPPING=1");
}

void pd_notify_status(const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if (*p == '\n') *p = ' '; /* a newline would start another assignment */
    sd_notifyf(0, "STATUS=%s", text);
}

void pd_notify_extend(unsigned long long usec) {
    sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu", usec);
}

void pd_notify_reloading(void) {
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(fo_now_ns() / 1000));
}

uint64_t pd_notify_watchdog_ms(void) {
    uint64_t usec = 0;
    return sd_watchdog_enabled(0, &usec) > 0 ? usec / 1000 : 0;
}

void pd_notify_watchdog(void) {
    sd_notify(0, "WATCHDOG=1");
}

int pd_notify_sockets(struct pd_passed *ret, struct fo_err *e) {
    static const char *const variables[] = { "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES" };
    char **names = NULL, was[3][64];
    for (int i = 0; i < 3; i++) { /* for the message: the call forgets them */
        const char *v = getenv(variables[i]);
        snprintf(was[i], sizeof was[i], "%s", v ? v : "");
    }
    int n = sd_listen_fds_with_names(1, &names), code = FO_OK;
    *ret = (struct pd_passed){ 0 };
    if (n < 0)
        code = fo_fail(e, FO_EINVAL, "LISTEN_PID=%s LISTEN_FDS=%s LISTEN_FDNAMES=%s: no sockets can have been passed so (%s); start pantheond from its socket unit, or without these variables",
                       was[0], was[1], was[2], strerror(-n));
    else if (n > PD_MAX_PASSED) code = fo_fail(e, FO_ELIMIT, "LISTEN_FDS=%s: at most %d sockets may be passed", was[1], PD_MAX_PASSED);
    else if (n == 0 && was[1][0]) fo_log(FO_LOG_WARN, "http", "event=sockets_ignored reason=\"LISTEN_FDS is set, but LISTEN_PID names another process\" pid=\"%s\"", was[0]);
    for (int i = 0; i < n; i++) {
        if (code == FO_OK) {
            ret->list[ret->n].fd = SD_LISTEN_FDS_START + i;
            snprintf(ret->list[ret->n++].name, sizeof ret->list[0].name, "%s", names[i]);
        }
        free(names[i]);
    }
    free(names);
    return code;
}
