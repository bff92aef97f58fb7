/* See wire.h. */
#include "daemon/wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/tls.h"
#include "foundry/base/clock.h"

/* Waits until the socket is ready or `deadline` passes: false on timeout. */
static bool wait_for(const struct pd_wire *w, short events, uint64_t deadline) {
    for (;;) {
        int64_t left = (int64_t)(deadline - fo_now_ms());
        struct pollfd p = { .fd = w->fd, .events = events };
        int n = poll(&p, 1, left < 0 ? 0 : left > 60000 ? 60000 : (int)left);
        if (n > 0) return true;
        if (n == 0 && fo_now_ms() >= deadline) return false;
    }
}

/* The first byte that comes, which stays there. False when none does. */
static bool first_byte(const struct pd_wire *w, uint64_t deadline, char *ret) {
    for (;;) {
        ssize_t n = recv(w->fd, ret, 1, MSG_PEEK);
        if (n >= 0) return n == 1;
        if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (errno != EINTR && !wait_for(w, POLLIN, deadline)) return false;
    }
}

enum pd_wire_begun pd_wire_begin(struct pd_wire *w, struct pd_tls *t, uint64_t deadline) {
    char first;
    short events;
    int rc;
    if (!first_byte(w, deadline, &first)) return PD_WIRE_FAILED;
    if ((first >= 'A' && first <= 'Z') || first == '\r') return PD_WIRE_PLAIN; /* a method, or the empty line before one: no TLS begins so */
    w->tls = pd_tls_conn_new(t, w->fd);
    if (!w->tls) return PD_WIRE_FAILED;
    while ((rc = pd_tls_handshake(w->tls, &events)) == PD_TLS_WAIT)
        if (!wait_for(w, events, deadline)) return PD_WIRE_FAILED;
    return rc == 1 ? PD_WIRE_BEGUN : PD_WIRE_FAILED;
}

ssize_t pd_wire_read(struct pd_wire *w, char *buf, size_t size, uint64_t deadline) {
    for (;;) {
        short events = POLLIN;
        ssize_t n = w->tls ? pd_tls_read(w->tls, buf, size, &events) : recv(w->fd, buf, size, 0);
        if (n >= 0) return n;
        if (!w->tls && errno == EINTR) continue;
        if (!w->tls && errno != EAGAIN && errno != EWOULDBLOCK) return PD_WIRE_EOF;
        if (!wait_for(w, events, deadline)) return PD_WIRE_TIMEOUT;
    }
}

bool pd_wire_write(struct pd_wire *w, const char *bytes, size_t n, uint64_t idle_ms) {
    while (n > 0) {
        short events = POLLOUT;
        ssize_t sent = w->tls ? pd_tls_write(w->tls, bytes, n, &events) : send(w->fd, bytes, n, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            n -= (size_t)sent;
        } else if (w->tls ? sent == PD_TLS_OVER : errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
            return false;
        } else if ((w->tls || errno != EINTR) && !wait_for(w, events, fo_now_ms() + idle_ms)) {
            return false;
        }
    }
    return true;
}

bool pd_wire_gone(struct pd_wire *w) {
    struct pollfd p = { .fd = w->fd, .events = w->tls ? POLLRDHUP | POLLIN : POLLRDHUP };
    if (poll(&p, 1, 0) <= 0) return false;
    if (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) return true;
    return w->tls && pd_tls_ended(w->tls); /* its goodbye may come in a record, with the socket left open */
}

void pd_wire_linger(struct pd_wire *w, uint64_t ms) {
    char sink[4096];
    struct pd_wire under = { .fd = w->fd };
    uint64_t deadline = fo_now_ms() + ms;
    if (w->tls) pd_tls_end(w->tls);
    shutdown(w->fd, SHUT_WR);
    while (fo_now_ms() < deadline && pd_wire_read(&under, sink, sizeof sink, deadline) > 0) {}
}

void pd_wire_done(struct pd_wire *w) {
    pd_tls_conn_free(w->tls);
    w->tls = NULL;
}
