/* The daemon's log: one event a line, key=value or one JSON object, on stderr; with a journald priority in front when systemd reads it.
 * Everything goes through fo_log (foundry/base/log.h), so the libraries' debug notes and the daemon's events share one sink. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_buf;

/* Installs the sink. debug_areas: NULL, "all" or a comma list. Called once, before threads exist. */
void pd_log_open(const char *debug_areas, bool json);

/* Whether `word` names a form of the log, "text" or "json". */
bool pd_log_format(const char *word, bool *ret_json);

/* Appends the line as one JSON object: time (left out when empty), level, area, and a member for each key=value of `line`. A plain number is
 * a number; a value in quotes is always a text. What is not key=value stands in `text`. */
void pd_log_json(const char *time, const char *level, const char *area, const char *line, struct fo_buf *out);

/* `s` in double quotes with escapes, cut to fit `size` (at least 8): for values that people or clients wrote. Returns out. */
const char *pd_log_quote(const char *s, char *out, size_t size);
