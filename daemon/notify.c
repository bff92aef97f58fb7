/* sd_notify behind one seam: see notify.h. */
#include "daemon/notify.h"
#include "foundry/base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <systemd/sd-daemon.h>
#include <time.h>

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
