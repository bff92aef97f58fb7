/* The daemon's log: one event a line, key=value or one JSON object, on stderr; with a journald priority in front when systemd reads it.
 * Everything goes through fo_log (foundry/base/log.h), so the libraries' debug notes and the daemon's events share one sink. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "foundry/base/log.h"

struct fo_buf;

/* Installs the sink. debug_areas: NULL, "all" or a comma list. Called once, before threads exist. */
void pd_log_open(const char *debug_areas, bool json);

/* Whether `word` names a form of the log, "text" or "json". */
bool pd_log_format(const char *word, bool *ret_json);

/* Appends the line as one JSON object: time (left out when empty), level, area, and a member for each key=value of `line`. A plain number is
 * a number; a value in quotes is always a text. What is not key=value stands in `text`. */
void pd_log_json(const char *time, const char *level, const char *area, const char *line, struct fo_buf *out);

/* What the journal has of a line beside its text: fields to find it by. Texts may be "". */
struct pd_log_fields {
    const char *message_id, *event, *model, *who;
};

/* As fo_log, with fields for the journal when that is where the log goes. Any thread. */
void pd_log_with(const struct pd_log_fields *fields, enum fo_log_level level, const char *area, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* `s` in double quotes with escapes, cut to fit `size` (at least 8): for values that people or clients wrote. Returns out. */
const char *pd_log_quote(const char *s, char *out, size_t size);
