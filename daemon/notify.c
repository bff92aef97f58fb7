/* sd_notify behind one seam: see notify.h. */
#include "daemon/notify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <systemd/sd-daemon.h>
#define SD_JOURNAL_SUPPRESS_LOCATION /* it would be this file's, for all */
#include <systemd/sd-journal.h>
#include <time.h>

#include "daemon/listen.h"
#include "daemon/log.h"
#include "foundry/base/buf.h"
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

bool pd_notify_journal(int priority, const char *text, const struct pd_log_fields *f) {
    enum { FIELD_BYTES = 160 };
    const struct {
        const char *name, *value;
    } rows[] = { { "MESSAGE_ID", f->message_id }, { "PANTHEON_EVENT", f->event }, { "PANTHEON_MODEL", f->model }, { "PANTHEON_WHO", f->who } };
    char fields[sizeof rows / sizeof *rows][FIELD_BYTES], level[16];
    struct fo_buf message;
    struct iovec v[sizeof rows / sizeof *rows + 2];
    int n = 0;
    fo_buf_init(&message, 32 * 1024);
    fo_buf_printf(&message, "MESSAGE=%s", text);
    snprintf(level, sizeof level, "PRIORITY=%d", priority);
    v[n++] = (struct iovec){ message.data, message.len };
    v[n++] = (struct iovec){ level, strlen(level) };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!*rows[i].value) continue;
        snprintf(fields[i], sizeof fields[i], "%s=%s", rows[i].name, rows[i].value);
        v[n++] = (struct iovec){ fields[i], strlen(fields[i]) };
    }
    bool ok = !message.failed && sd_journal_sendv(v, n) == 0;
    fo_buf_done(&message);
    return ok;
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
