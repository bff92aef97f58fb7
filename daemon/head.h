/* The head of an HTTP/1.1 request: bytes in, values out, nothing else touched. Strict where leniency lets two parties read one
 * message differently (request smuggling): line ends are CR LF, a name has no space before its colon, lines are not folded, Host
 * and Content-Length come at most once, and Content-Length never beside Transfer-Encoding. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PD_MAX_HEAD_BYTES = 32 * 1024, /* request line and headers together */
    PD_MAX_URI_BYTES = 8 * 1024,
    PD_MAX_HEADERS = 100
};

struct pd_head {
    char *method, *path, *query; /* NUL-terminated inside the caller's buffer; path as sent (encoded), query "" when absent */
    char *authority;             /* of a target in absolute form: it stands in for the Host header; NULL = another form */
    int minor;                   /* HTTP/1.minor: 0 or 1 */
    struct pd_header {
        char *name, *value;
    } headers[PD_MAX_HEADERS];
    int n_headers;
    /* what the headers say about the message */
    bool chunked, has_length, keep_alive, expect_continue;
    uint64_t length;
};

/* The length of a complete head in buf[0..n), blank line included; 0 = more bytes are needed. Empty lines before the request line
 * belong to the head. */
size_t pd_head_end(const char *buf, size_t n);

/* Parses buf[0..n), n from pd_head_end, and writes NULs into it. Returns 0, or the HTTP status of the refusal with its reason in
 * *ret_why (static storage). */
int pd_head_parse(char *buf, size_t n, struct pd_head *ret, const char **ret_why);

/* Whether n bytes cannot become a head, however they go on: their first is of no method. */
bool pd_head_is_none(const char *buf, size_t n);

/* Whether n bytes without an end are already too much: 431, or 414 while the request line itself is too long; 0 = go on. */
int pd_head_too_long(const char *buf, size_t n);

/* The value of a header by its name in any case, or NULL. */
const char *pd_head_get(const struct pd_head *h, const char *name);

/* Whether s [n] is a token (RFC 9110, 5.6.2): a method, or a header's name. */
bool pd_head_is_token(const char *s, size_t n);

/* Whether a query has `key`, and its decoded value, cut at `size`; "" for a bare key. False also for a broken escape. */
bool pd_query_get(const char *query, const char *key, char *value, size_t size);

/* Decodes %XX in place; false for a broken escape or an encoded NUL. */
bool pd_percent_decode(char *s);

/* The body's framing when it comes in chunks: feed bytes, take the payload. A value: start with all zero. */
struct pd_chunks {
    enum { PD_CH_SIZE, PD_CH_EXT, PD_CH_SIZE_LF, PD_CH_DATA, PD_CH_DATA_CR, PD_CH_DATA_LF, PD_CH_LINE, PD_CH_LINE_TEXT, PD_CH_LINE_LF,
           PD_CH_LAST_LF, PD_CH_DONE, PD_CH_BAD } state;
    uint64_t left;       /* of the current chunk */
    unsigned digits;     /* of the current size */
    uint32_t side_bytes; /* extensions and trailers so far: bounded */
};
/* Reads buf[0..n): moves the payload to its front and returns how many payload bytes there are; *ret_used tells how many input bytes
 * were read (fewer than n only at the end of the body). c->state is PD_CH_DONE at the end, PD_CH_BAD on broken framing. */
size_t pd_chunks_feed(struct pd_chunks *c, char *buf, size_t n, size_t *ret_used);
