/* What systemd is told (sd_notify): the only user of libsystemd. Without NOTIFY_SOCKET every call does nothing. Any thread. */
#pragma once
#include <stdint.h>

void pd_notify_ready(void);
void pd_notify_stopping(void);
void pd_notify_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The start or the reload takes longer: systemd waits this much more before it gives up. */
void pd_notify_extend(unsigned long long usec);
/* A reload begins; READY=1 ends it. With the time that systemd orders such messages by. */
void pd_notify_reloading(void);
/* The watchdog's interval, 0 = there is none; and its food. */
uint64_t pd_notify_watchdog_ms(void);
void pd_notify_watchdog(void);
