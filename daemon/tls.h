/* TLS for the server's connections: the only user of OpenSSL. One certificate is in force at a time; connections keep the one they began
 * with. TLS 1.2 and 1.3, ALPN http/1.1, no renegotiation, no sessions kept. The process must ignore SIGPIPE. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

struct fo_err;
struct pd_tls;      /* what is in force; any thread */
struct pd_tls_conn; /* one connection; its thread's */

int pd_tls_new(struct pd_tls **ret, struct fo_err *e);
void pd_tls_free(struct pd_tls *t); /* no connection is made of it any more; NULL is allowed */

/* PEM texts: a certificate with the chain behind it, and its key. The names are for messages. */
struct pd_tls_pem {
    const char *cert_file, *cert;
    size_t n_cert;
    const char *key_file, *key;
    size_t n_key;
};
struct pd_tls_about {
    char subject[160]; /* "CN=api.example.org" */
    time_t until;      /* no longer valid then */
};
/* In force from now on, for connections that come. FO_EFORMAT (the message names the file and the way out), FO_ENOMEM: what was in
 * force stays. */
int pd_tls_set(struct pd_tls *t, const struct pd_tls_pem *pem, struct pd_tls_about *ret, struct fo_err *e);
/* None is in force from now on. */
void pd_tls_clear(struct pd_tls *t);
bool pd_tls_on(struct pd_tls *t);

/* --- one connection, over a socket that does not block. None of these waits: PD_TLS_WAIT says that nothing could be done yet, and
 * *ret_events what to wait for (POLLIN, POLLOUT); PD_TLS_OVER that the other side has ended it, or that it broke. --- */
enum { PD_TLS_WAIT = -1, PD_TLS_OVER = 0 };

struct pd_tls_conn *pd_tls_conn_new(struct pd_tls *t, int fd); /* NULL when none is in force, or without memory */
void pd_tls_conn_free(struct pd_tls_conn *c);                  /* the socket stays open; NULL is allowed */
int pd_tls_handshake(struct pd_tls_conn *c, short *ret_events);  /* 1 = done */
ssize_t pd_tls_read(struct pd_tls_conn *c, char *buf, size_t n, short *ret_events);
ssize_t pd_tls_write(struct pd_tls_conn *c, const char *bytes, size_t n, short *ret_events);
const char *pd_tls_why(const struct pd_tls_conn *c); /* for the log: why there was no handshake. Static storage */
/* Whether the other side has ended it, with nothing before that end which is not read yet. Loses no bytes. */
bool pd_tls_ended(struct pd_tls_conn *c);
/* Says that nothing follows, if that can be said at once. */
void pd_tls_end(struct pd_tls_conn *c);
