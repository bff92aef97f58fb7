/* One connection's bytes, in the clear or under TLS, with deadlines: the only reads and writes of a client's socket. A value that its
 * connection's thread uses; others may shut the socket down. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pd_tls;
struct pd_tls_conn;

struct pd_wire {
    int fd; /* does not block; the caller closes it */
    struct pd_tls_conn *tls; /* NULL = in the clear */
};

enum { PD_WIRE_TIMEOUT = -1, PD_WIRE_EOF = 0 };

/* Begins TLS. PLAIN: what comes is HTTP in the clear, none of it is read yet, and the wire stays in the clear, so that it can be told.
 * FAILED: no TLS within the deadline (fo_now_ms), none that both sides know, or no certificate. */
enum pd_wire_begun { PD_WIRE_BEGUN, PD_WIRE_PLAIN, PD_WIRE_FAILED } pd_wire_begin(struct pd_wire *w, struct pd_tls *t, uint64_t deadline);

/* Up to `size` bytes: how many, PD_WIRE_EOF when the client closed or the connection broke, PD_WIRE_TIMEOUT. */
ssize_t pd_wire_read(struct pd_wire *w, char *buf, size_t size, uint64_t deadline);

/* All bytes; false when the connection broke, or the client took nothing for idle_ms. */
bool pd_wire_write(struct pd_wire *w, const char *bytes, size_t n, uint64_t idle_ms);

/* Whether the client has closed its side. Does not wait, and loses no bytes. */
bool pd_wire_gone(struct pd_wire *w);

/* Ends: says that nothing follows, then reads on for up to `ms`. Closing a socket with unread bytes resets it, and the reset can overtake
 * the last answer. */
void pd_wire_linger(struct pd_wire *w, uint64_t ms);
void pd_wire_done(struct pd_wire *w); /* frees what is not the socket */
