/* HTTP to the daemon's admin socket, or to a URL: the only user of libcurl, and only of pantheon-reconcile. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;

struct pd_client {
    const char *socket;  /* path of the Unix socket; NULL = url */
    const char *url;     /* "http://127.0.0.1:8080" */
    const char *key;     /* API key to ask with; NULL = none */
    uint64_t timeout_ms; /* of a whole call; 0 = none */
};

/* Called with each line of an answer as it comes, without its newline; false = stop. */
typedef bool pd_client_line(void *ctx, const char *line, size_t n);

/* One call. `path` begins with '/'. The answer's body is appended to out, or, when `line` is not NULL and the status is 200, given to it line
 * by line. FO_EUNAVAIL: nobody answers there (the message says where); FO_ETIMEOUT; FO_EIO. Any HTTP status is FO_OK. */
int pd_client_call(const struct pd_client *c, const char *method, const char *path, pd_client_line *line, void *ctx, long *ret_status, struct fo_buf *out,
                   struct fo_err *e);
