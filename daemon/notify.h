/* What systemd is told (sd_notify): the only user of libsystemd. Without NOTIFY_SOCKET every call does nothing. Any thread. */
#pragma once

void pd_notify_ready(void);
void pd_notify_stopping(void);
void pd_notify_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The start takes longer: systemd waits this much more before it gives up. */
void pd_notify_extend(unsigned long long usec);
