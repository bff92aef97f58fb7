/* Errors as values. Every function that can fail takes a `struct fo_err *e` as its last argument (never NULL, on the caller's
 * stack), returns 0 or the code, and leaves its outputs untouched on failure. Nothing has to be freed, so an error can be
 * reported with no memory left. Any thread; an error belongs to the thread whose stack holds it. */
#pragma once
#include <stdint.h>

enum fo_code {
    FO_OK = 0,
    FO_EINVAL,       /* an argument or a request makes no sense */
    FO_EFORMAT,      /* a file or text breaks its format */
    FO_EUNSUPPORTED, /* well-formed, but this build cannot serve it */
    FO_ENOENT,       /* what was named does not exist */
    FO_EACCES,       /* permission denied */
    FO_EIO,          /* the operating system failed a read or a write */
    FO_ENOMEM,       /* memory ran out, or a budget did; need and have are set where they are known */
    FO_ELIMIT,       /* a stated limit was passed (depth, size, time) */
    FO_EBUDGET,      /* a request does not fit its cap */
    FO_EBUSY,        /* a bounded queue is full */
    FO_EUNAVAIL,     /* known, but not serving now: loading, held, draining */
    FO_ECANCELLED,   /* the caller went away */
    FO_ETIMEOUT,     /* a deadline passed */
    FO_ELOST,        /* a device or a mapped file failed under us */
    FO_EINTERNAL,    /* our own bug, caught */
    FO_N_CODES
};

struct fo_err {
    enum fo_code code;
    int line, col;       /* place in the text at fault, from 1; 0 = none */
    uint64_t need, have; /* bytes, tokens or counts as the message says; 0 and 0 = none */
    char msg[384];       /* UTF-8, NUL-terminated, no newline */
};

/* Sets *e and returns `code`, so that failing is one line: return fo_fail(e, FO_EFORMAT, "tensor %s: ...", name). Text that
 * does not fit is cut at a character and ends in "...". Messages quote hostile input: it is defused as fo_text_defuse says. */
enum fo_code fo_fail(struct fo_err *e, enum fo_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4), cold));

/* As fo_fail, with the numbers that every refusal carries. */
enum fo_code fo_fail_need(struct fo_err *e, enum fo_code code, uint64_t need, uint64_t have, const char *fmt, ...)
    __attribute__((format(printf, 5, 6), cold));

/* As fo_fail, with the place (line and column from 1). */
enum fo_code fo_fail_at(struct fo_err *e, enum fo_code code, int line, int col, const char *fmt, ...)
    __attribute__((format(printf, 5, 6), cold));

/* As fo_fail, with ": " and the text of errno `err` appended; ENOENT, EACCES/EPERM and ENOMEM choose their own code, every
 * other errno FO_EIO. Of a text too long the front is kept, and the reason. */
enum fo_code fo_fail_errno(struct fo_err *e, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4), cold));

/* Puts "<text>: " in front of e->msg on the way up and returns e->code; place and numbers stay. */
enum fo_code fo_wrap(struct fo_err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

/* "format", "budget", ...: a stable lower-case word for logs and JSON. Static storage. */
const char *fo_code_name(enum fo_code code);

/* Replaces control characters and bytes that are not UTF-8 by '?', in place: what is left can stand in a log line, a terminal or
 * JSON. */
void fo_text_defuse(char *s);
