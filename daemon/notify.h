/* What systemd is told (sd_notify) and its journal, and the sockets that come from it (sd_listen_fds): the only user of libsystemd. Without
 * NOTIFY_SOCKET every call of the first kind does nothing. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fo_err;
struct pd_log_fields;
struct pd_passed;

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

/* An entry of the journal's own kind, with its priority, its text and fields (those that are "" are left out); false = it could not be sent. */
bool pd_notify_journal(int priority, const char *text, const struct pd_log_fields *fields);

/* The sockets that a socket unit opened for this process; *ret has none when there is no such unit. Takes the variables that tell of them
 * out of the environment, also when they were for another process. FO_EINVAL when what they say cannot be. Before other threads exist. */
int pd_notify_sockets(struct pd_passed *ret, struct fo_err *e);
