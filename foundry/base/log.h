/* Debug notes from the libraries and events from the daemon, through one sink. foundry, engine and config use FO_DEBUGF only;
 * what happened is the daemon's to say, once. Without a sink nothing is formatted. Any thread. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum fo_log_level { FO_LOG_DEBUG, FO_LOG_INFO, FO_LOG_WARN, FO_LOG_ERROR };

/* A finished line without newline. `area` is a short static word ("sched", "kv", "mem", "http"). Called under a lock. */
typedef void fo_log_sink(void *ctx, enum fo_log_level level, const char *area, const char *line);

/* Sets the sink and which debug areas pass: NULL = none, "all", or a comma list ("sched,kv"; the text is copied). Called once at
 * start, before threads exist. */
void fo_log_set(fo_log_sink *sink, void *ctx, const char *debug_areas);

/* The areas there are, as "grammar, http, reconcile, sched", and the first of a comma list that is none of them and not "all": *ret_len bytes, NULL =
 * all are known. */
const char *fo_log_areas(void);
const char *fo_log_unknown_area(const char *list, size_t *ret_len);

bool fo_log_debug_on(const char *area);

/* One line, cut at 2,000 bytes; control characters become '?', so that user text cannot forge a line. */
void fo_log(enum fo_log_level level, const char *area, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define FO_DEBUGF(area, ...)                                                   \
    do {                                                                       \
        if (fo_log_debug_on(area)) fo_log(FO_LOG_DEBUG, area, __VA_ARGS__);    \
    } while (0)
