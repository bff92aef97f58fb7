/* Who may ask for what: API keys, hosts and origins. Pure: texts and requests in, decisions out; what reads the file, counts what runs and
 * answers is gate.h. Any thread. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/http.h"
#include "engine/request.h"
#include "foundry/base/sha256.h"

struct fo_err;
struct pd_error;

/* --- the file of keys ---
 *
 * One key a line, `name:sha256`, then words after spaces: `admin`, `max_concurrent=N`, `priority=low|normal|high`. Empty lines and those that begin with '#' say nothing.
 * The file has digests, so that whoever reads it cannot ask; keys are long and random (docs/operating.md), so that a digest cannot be
 * turned back by trying. */
enum { PD_MAX_KEYS = 1000, PD_MAX_KEYS_BYTES = 1 << 20 };

struct pd_key {
    char name[PD_MAX_KEY_NAME + 1]; /* for logs: letters, digits, '.', '_', '-' */
    uint8_t digest[FO_SHA256_BYTES];
    bool admin;
    bool has_priority;
    enum pn_priority priority; /* the highest that its requests may have */
    uint32_t max_concurrent; /* requests of it that are answered at one time; 0 = any number */
};

struct pd_keys {
    atomic_int refs;
    size_t n; /* never 0 */
    struct pd_key list[];
};

/* Reads the whole text or nothing. FO_EFORMAT (with the line; a file without a key is one), FO_ELIMIT, FO_ENOMEM; the message begins
 * with "FILE:LINE: " and never quotes what may be a key. Give *ret back with pd_keys_put. */
int pd_keys_parse(const char *file, const char *text, size_t len, struct pd_keys **ret, struct fo_err *e);
void pd_keys_put(struct pd_keys *k); /* NULL is allowed */

/* The entry of a presented key, NULL = none. Every entry is compared in full, whichever it is: the time tells nothing of the digests. */
const struct pd_key *pd_keys_find(const struct pd_keys *k, const char *presented);

/* --- hosts and origins --- */

/* Whether a Host header ("localhost", "127.0.0.1:8080", "[::1]") means this machine's loopback, which no page of the wider web can be. */
bool pd_host_is_loopback(const char *host);

/* Whether a Host header may be served: loopback, `own` (the address that the client connected to, as a literal; "" = unknown), or one of the
 * list, where "*" is any. The port does not count. */
bool pd_host_allowed(const char *host, const char *const *hosts, size_t n_hosts, const char *own);

/* --- the decision --- */

/* What requests are judged by: of the manifest and its file of keys. */
struct pd_rules {
    bool keyed;                 /* the manifest names a file of keys: without one nobody gets in, */
    const struct pd_keys *keys; /* also while there is none that can be used (NULL) */
    const char *const *hosts;         /* [n_hosts] server.allowed_hosts */
    size_t n_hosts;
    const char *const *origins;       /* [n_origins] server.cors_origins */
    size_t n_origins;
};

/* What is known of a request before its body. Texts are NULL where it has none. */
struct pd_asked {
    enum pd_from from;
    const char *method, *path;
    const char *host;          /* of the target or the Host header */
    const char *own;           /* as in pd_host_allowed */
    const char *origin, *authorization;
    bool many_authorizations;  /* more than one header of that name */
    bool body;                 /* one is announced */
    bool preflight;            /* OPTIONS with Origin and Access-Control-Request-Method, no body */
    const char *proxied;       /* the name of a header that only proxies send */
    bool page;                 /* a browser asks for what it can show (Accept: text/html) */
};

/* Takes it from a head; texts stay the head's. */
void pd_asked_of(const struct pd_head *head, enum pd_from from, const char *own, struct pd_asked *ret);

struct pd_leave {
    enum pd_leave_kind { PD_LEAVE, PD_LEAVE_PREFLIGHT, PD_LEAVE_REFUSED } kind; /* PREFLIGHT: answer it, it goes no further */
    const struct pd_key *key; /* whose request it is; NULL = nobody's */
    bool counted;             /* it is one of the key's max_concurrent */
    bool admin;               /* the pages of /admin would be answered too */
    const char *allow_origin; /* what Access-Control-Allow-Origin says; NULL = no such header */
    bool vary;                /* another Origin might get another answer */
};

/* True = it may go on (or it is a preflight). False = *x says why not; the rest of *ret stands in both cases. */
bool pd_access_judge(const struct pd_rules *r, const struct pd_asked *q, struct pd_leave *ret, struct pd_error *x);
