/* Collects what is wrong with one manifest. A report has room for its 100 findings from the start, so that adding one never fails;
 * once full it keeps those that stand first in the text. Not thread-safe: one owner. */
#pragma once
#include <stddef.h>

#include "config/manifest.h"

enum { CF_MAX_FINDINGS = 100, CF_SHOWN_BYTES = 64 };

/* FO_OK or FO_ENOMEM. cf_report_done frees it. */
int cf_report_init(struct cf_report *r, struct fo_err *e);

/* Adds one finding. Text over 383 bytes is cut and ends in "...", control characters become '?'. width is in characters. */
void cf_report_add(struct cf_report *r, enum cf_class class, int line, int col, int width, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* What is added from here on stands in this text of the manifest. A new report is at 0. */
void cf_report_file(struct cf_report *r, int file);

/* By text, then line, then column, then class, then as added. */
void cf_report_sort(struct cf_report *r);

/* Ends a parse that returned `rc`: sorts, and makes an error of findings: FO_EFORMAT with the first one's text. Returns what the parse
 * returns; a report without findings is emptied, so that it is never more than zeros then. */
int cf_report_close(struct cf_report *r, int rc, struct fo_err *e);

/* Untrusted text for a message: at most CF_SHOWN_BYTES - 1 bytes of it, cut at a character and then ended with "...". Returns out. */
const char *cf_shown(const char *s, size_t len, char out[CF_SHOWN_BYTES]);
