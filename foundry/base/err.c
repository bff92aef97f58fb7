/* Errors as values: see err.h. */
#include "foundry/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char *const names[FO_N_CODES] = {
    [FO_OK] = "ok",           [FO_EINVAL] = "invalid",     [FO_EFORMAT] = "format",   [FO_EUNSUPPORTED] = "unsupported",
    [FO_ENOENT] = "not_found", [FO_EACCES] = "permission", [FO_EIO] = "io",           [FO_ENOMEM] = "no_memory",
    [FO_ELIMIT] = "limit",    [FO_EBUDGET] = "budget",     [FO_EBUSY] = "busy",       [FO_EUNAVAIL] = "unavailable",
    [FO_ECANCELLED] = "cancelled", [FO_ETIMEOUT] = "timeout", [FO_ELOST] = "lost",    [FO_EINTERNAL] = "internal",
};

/* Length of s[0..n) without a UTF-8 sequence that the cut left incomplete. */
static size_t whole_chars(const char *s, size_t n) {
    size_t k = n;
    while (k > 0 && ((unsigned char)s[k - 1] & 0xC0) == 0x80) k--;
    if (k == 0) return n;
    unsigned char lead = (unsigned char)s[k - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return n - (k - 1) >= want ? n : k - 1;
}

/* Bytes of the well-formed UTF-8 character at s (The Unicode Standard, table 3-7), 0 for anything else. */
static size_t char_bytes(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xC2 && s[0] <= 0xDF ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : 0;
    unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80, high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (n == 0 || s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return n;
}

void fo_text_defuse(char *s) {
    for (unsigned char *p = (unsigned char *)s; *p;) {
        size_t n = char_bytes(p);
        bool control = (n == 1 && (*p < 0x20 || *p == 0x7F)) || (n == 2 && p[0] == 0xC2 && p[1] < 0xA0);
        if (n && !control) {
            p += n;
            continue;
        }
        do *p++ = '?';
        while (n-- > 1);
    }
}

/* Formats into msg at `at`; marks a cut with "..." and defuses what was quoted. */
__attribute__((format(printf, 3, 0))) static void put(struct fo_err *e, size_t at, const char *fmt, va_list ap) {
    int n = vsnprintf(e->msg + at, sizeof e->msg - at, fmt, ap);
    if (n < 0) e->msg[at] = '\0';
    if (n >= (int)(sizeof e->msg - at)) {
        size_t keep = whole_chars(e->msg, sizeof e->msg - 4);
        memcpy(e->msg + keep, "...", 4);
    }
    fo_text_defuse(e->msg + at);
}

#define PUT(at)                                                                                                                            \
    do {                                                                                                                                   \
        va_list ap;                                                                                                                        \
        va_start(ap, fmt);                                                                                                                 \
        put(e, at, fmt, ap);                                                                                                               \
        va_end(ap);                                                                                                                        \
    } while (0)

static void reset(struct fo_err *e, enum fo_code code) {
    e->code = code;
    e->line = e->col = 0;
    e->need = e->have = 0;
}

enum fo_code fo_fail(struct fo_err *e, enum fo_code code, const char *fmt, ...) {
    reset(e, code);
    PUT(0);
    return code;
}

enum fo_code fo_fail_need(struct fo_err *e, enum fo_code code, uint64_t need, uint64_t have, const char *fmt, ...) {
    reset(e, code);
    e->need = need;
    e->have = have;
    PUT(0);
    return code;
}

enum fo_code fo_fail_at(struct fo_err *e, enum fo_code code, int line, int col, const char *fmt, ...) {
    reset(e, code);
    e->line = line;
    e->col = col;
    PUT(0);
    return code;
}

enum fo_code fo_fail_errno(struct fo_err *e, int err, const char *fmt, ...) {
    reset(e, err == ENOENT                    ? FO_ENOENT
             : err == EACCES || err == EPERM ? FO_EACCES
             : err == ENOMEM                  ? FO_ENOMEM
                                              : FO_EIO);
    PUT(0);
    char text[96];
#ifdef __APPLE__
    const char *why = strerror_r(err, text, sizeof text) == 0 ? text : "unknown error";
#else
    const char *why = strerror_r(err, text, sizeof text); /* the GNU form; _GNU_SOURCE is set for every file */
#endif
    size_t n = strlen(e->msg), room = sizeof e->msg - strlen(why) - sizeof ": ";
    if (n > room) { /* a long path must not push the reason out */
        n = whole_chars(e->msg, room - 3);
        memcpy(e->msg + n, "...", 3);
        n += 3;
    }
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", why);
    return e->code;
}

enum fo_code fo_wrap(struct fo_err *e, const char *fmt, ...) {
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    PUT(0);
    size_t n = strlen(e->msg);
    int m = snprintf(e->msg + n, sizeof e->msg - n, ": %s", old);
    if (m >= (int)(sizeof e->msg - n)) memcpy(e->msg + whole_chars(e->msg, sizeof e->msg - 4), "...", 4);
    return e->code;
}

const char *fo_code_name(enum fo_code code) {
    return (unsigned)code < FO_N_CODES ? names[code] : "unknown";
}
