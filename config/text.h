/* Characters and lines of a manifest's text, decided in one place: what yaml.c counts, report.c draws. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;

/* Bytes of the UTF-8 sequence at s (at most n are there) and its code point; 0 when it is not one (overlong forms and surrogates
 * are not). */
size_t cf_utf8(const char *s, size_t n, uint32_t *ret_c);

/* Bytes of the line break at s: CR LF, LF, CR, and U+0085, U+2028, U+2029, which YAML 1.1 counts too. 0 = none here. */
size_t cf_line_break(const char *s, size_t n);

/* 3 when the text starts with a byte order mark, else 0. */
size_t cf_bom(const char *s, size_t n);

/* Appends `text` as a double-quoted scalar that YAML and JSON both read back as exactly the same bytes; how a program (the command
 * line's `serve`) writes a manifest in memory. False, and nothing appended, when `text` is not UTF-8: YAML cannot say it. Whether the
 * buffer took it, out->failed tells. */
bool cf_quote(const char *text, struct fo_buf *out);
