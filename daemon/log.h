/* The daemon's log: one event a line, key=value, on stderr; with a journald priority in front when systemd reads it. Everything
 * goes through fo_log (foundry/base/log.h), so the libraries' debug notes and the daemon's events share one sink. */
#pragma once
#include <stddef.h>

/* Installs the sink. debug_areas: NULL, "all" or a comma list. Called once, before threads exist. */
void pd_log_open(const char *debug_areas);

/* `s` in double quotes with escapes, cut to fit `size` (at least 8): for values that people or clients wrote. Returns out. */
const char *pd_log_quote(const char *s, char *out, size_t size);
