/* One thread per connection, straight-line code: read a head, read a body, call the handler, again. Why not a library: a server for
 * agents must answer every refusal with a JSON body (some clients take a 400 or 413 without one for a context overflow and throw
 * their history away), must see a message exactly as a proxy in front sees it, and must notice a client that left while its request
 * waits. libmicrohttpd 0.9.75 answers its own refusals in HTML, accepts bare line feeds and duplicate lengths, and cannot bound a
 * slow head.
 *
 * Locks: `lock` guards the list of connections and the counts; it is held for pointer work only. A connection's own fields belong to
 * its thread; others only call shutdown on its socket, under the lock, while it is in the list (the thread closes the socket after
 * it has left the list). */
#include "daemon/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/listen.h"
#include "daemon/oai.h"
#include "daemon/tls.h"
#include "daemon/wire.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/base/rng.h"

enum {
    STACK_BYTES = 512 * 1024,   /* address space; what is touched counts. Templates render on this stack. */
    KEEP_ALIVE_MS = 75 * 1000,  /* an idle connection; clients give up theirs after 5 to 60 s */
    LARGE_BODY = 1 << 20,       /* bytes; memory is given back after one */
    LAST_ACCEPTS = 1024,        /* of each listener, when the server closes */
    LAST_WORDS_MS = 1000,       /* when the server closes: for the answers to requests that have come */
    LINGER_MS = 2000,           /* after a refusal: time for the client to read it before the connection is cut */
    PROBE_AFTER_S = 30,         /* of silence; then every PROBE_EVERY_S, at most PROBES */
    PROBE_EVERY_S = 10,
    PROBES = 3,
    MOST_DROPS = 64,            /* reads of 16 KiB of a client that is turned away: one that sends on and on gets no more of them */
    REFUSALS = 64,              /* connections over the cap that may be told so at one time */
    MIN_BODY_BYTES_PER_MS = 1,  /* a body slower than this on average is refused */
    BODIES_AT_ONCE = 4,         /* bodies of the largest size that may be in memory together */
    LOCAL_CONNECTIONS = 32,     /* over the Unix socket, besides the others: who administers gets in when all is in use */
    N_CLASSES = 6,              /* of statuses: by their first digit */
};

struct pd_http {
    pd_http_handler *handler, *done;
    pd_http_admit *admit;
    bool (*in_pieces)(const struct pd_head *head);
    void *ctx;
    struct pd_tls *tls; /* NULL = never any */
    struct { /* pd_http_limits, which may change at any time; each is read on its own */
        atomic_uint_fast64_t body_bytes, header_time_ms, body_idle_ms, write_idle_ms;
        atomic_uint connections, connections_per_address;
    } limits;
    struct pd_listeners listeners;
    int wake; /* eventfd: the acceptor shall stop */
    int spare; /* a descriptor to give up when there are no more: so that who comes then is told so. The acceptor's; -1 = none */
    uint64_t warned_ms; /* when the acceptor last complained */
    pthread_t acceptor;
    bool accepting;
    pthread_mutex_t lock;
    pthread_cond_t empty;
    struct pd_conn *conns;
    uint32_t n_conns, n_refusing, n_local;
    bool closing;
    struct fo_buf turned_away; /* the body for connections past REFUSALS; made once, before threads exist */
    atomic_bool draining;
    atomic_uint busy;
    atomic_uint_fast64_t body_bytes; /* held by all connections */
    atomic_uint_fast64_t answered[N_CLASSES], n_turned_away;
};

struct pd_conn {
    struct pd_http *http;
    struct pd_conn *next, **link;
    const struct pd_listener *at; /* where it came in */
    struct sockaddr_storage peer;
    struct pd_wire wire;
    bool mistaken;          /* HTTP in the clear where TLS is spoken */
    uint64_t head_deadline; /* of the first request: what TLS begins with counts into it */
    enum { SERVE, SERVE_LOCAL, REFUSE_TOTAL, REFUSE_ADDRESS } mode;
    char *in; /* [in_size], n_in bytes read and not yet used */
    size_t n_in, in_size;
    char *body;
    size_t n_body, body_size;
    struct { /* of a request, as far as it was read */
        bool whole, continued; /* all of it; the client was told to go on */
        struct pd_chunks chunks;
        uint64_t start, seen, got; /* when it should have begun; bytes that came, and of these of the body itself */
        uint64_t left_ms;          /* in pieces: when the handler got the last one */
    } from;
    /* of the answer being sent */
    bool head_only, chunked, close_after, gone;
};

/* --- bytes in and out --- */

static bool send_all(struct pd_conn *c, const char *bytes, size_t n) {
    if (!c->gone && !pd_wire_write(&c->wire, bytes, n, c->http->limits.write_idle_ms)) c->gone = true;
    return !c->gone;
}

bool pd_client_gone(struct pd_call *call) {
    struct pd_conn *c = call->conn;
    c->gone = c->gone || pd_wire_gone(&c->wire);
    return c->gone;
}

/* --- answers --- */

static const char *reason(int status) {
    static const struct {
        int status;
        const char *text;
    } rows[] = { { 200, "OK" },
                 { 202, "Accepted" },
                 { 204, "No Content" },
                 { 400, "Bad Request" },
                 { 401, "Unauthorized" },
                 { 403, "Forbidden" },
                 { 404, "Not Found" },
                 { 405, "Method Not Allowed" },
                 { 408, "Request Timeout" },
                 { 409, "Conflict" },
                 { 413, "Content Too Large" },
                 { 414, "URI Too Long" },
                 { 417, "Expectation Failed" },
                 { 429, "Too Many Requests" },
                 { 431, "Request Header Fields Too Large" },
                 { 500, "Internal Server Error" },
                 { 501, "Not Implemented" },
                 { 502, "Bad Gateway" },
                 { 503, "Service Unavailable" },
                 { 504, "Gateway Timeout" },
                 { 505, "HTTP Version Not Supported" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status) return rows[i].text;
    return "Status";
}

/* The head of an answer, up to the framing. */
static void put_head(struct fo_buf *out, struct pd_call *call, int status, const char *type, const char *headers) {
    struct pd_conn *c = call->conn;
    char date[64];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    call->status = status;
    atomic_fetch_add(&c->http->answered[status / 100 % N_CLASSES], 1);
    c->close_after = c->close_after || !c->from.whole || !call->head || !call->head->keep_alive || atomic_load(&c->http->draining);
    c->head_only = call->head && call->head->method && strcmp(call->head->method, "HEAD") == 0;
    fo_buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: pantheon/%s\r\nx-request-id: %s\r\n", status, reason(status), date, pn_version(),
                  call->id);
    if (type) fo_buf_printf(out, "Content-Type: %s\r\n", type);
    if (headers) fo_buf_puts(out, headers);
    fo_buf_puts(out, call->headers);
    fo_buf_puts(out, c->close_after ? "Connection: close\r\n" : call->head->minor == 0 ? "Connection: keep-alive\r\n" : "");
}

bool pd_reply(struct pd_call *call, int status, const char *type, const char *headers, const char *body, size_t n_body) {
    struct pd_conn *c = call->conn;
    struct fo_buf out;
    fo_buf_init(&out, SIZE_MAX / 2);
    put_head(&out, call, status, type, headers);
    if (status != 204) fo_buf_printf(&out, "Content-Length: %zu\r\n", n_body);
    fo_buf_puts(&out, "\r\n");
    /* a small body goes with its head, in one packet */
    bool apart = n_body > 64 * 1024;
    if (!c->head_only && !apart) fo_buf_append(&out, body, n_body);
    if (out.failed) c->gone = true;
    bool ok = send_all(c, out.data, out.len);
    if (ok && apart && !c->head_only) ok = send_all(c, body, n_body);
    fo_buf_done(&out);
    return ok;
}

bool pd_stream_open(struct pd_call *call, int status, const char *type, const char *headers) {
    struct pd_conn *c = call->conn;
    struct fo_buf out;
    fo_buf_init(&out, 2 * PD_MAX_HEAD_BYTES);
    c->chunked = call->head->minor == 1;
    if (!c->chunked) c->close_after = true; /* HTTP/1.0: the end of the connection is the end of the body */
    put_head(&out, call, status, type, headers);
    fo_buf_puts(&out, c->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    if (out.failed) c->gone = true;
    bool ok = send_all(c, out.data, out.len);
    fo_buf_done(&out);
    return ok;
}

bool pd_stream_open_sized(struct pd_call *call, int status, const char *type, const char *headers, uint64_t n_bytes) {
    struct pd_conn *c = call->conn;
    struct fo_buf out;
    fo_buf_init(&out, 2 * PD_MAX_HEAD_BYTES);
    c->chunked = false;
    put_head(&out, call, status, type, headers);
    fo_buf_printf(&out, "Content-Length: %llu\r\n\r\n", (unsigned long long)n_bytes);
    if (out.failed) c->gone = true;
    bool ok = send_all(c, out.data, out.len);
    fo_buf_done(&out);
    return ok;
}

bool pd_stream_write(struct pd_call *call, const char *bytes, size_t n) {
    struct pd_conn *c = call->conn;
    if (n == 0 || c->head_only) return !c->gone;
    if (!c->chunked) return send_all(c, bytes, n);
    struct fo_buf out;
    fo_buf_init(&out, n + 32);
    fo_buf_printf(&out, "%zx\r\n", n);
    fo_buf_append(&out, bytes, n);
    fo_buf_puts(&out, "\r\n");
    if (out.failed) c->gone = true;
    bool ok = send_all(c, out.data, out.len);
    fo_buf_done(&out);
    return ok;
}

bool pd_stream_close(struct pd_call *call) {
    struct pd_conn *c = call->conn;
    return c->chunked && !c->head_only ? send_all(c, "0\r\n\r\n", 5) : !c->gone;
}

void pd_stream_cut(struct pd_call *call) {
    call->conn->close_after = true;
}

/* --- one connection --- */

/* An IP address without its port; "" for any other. */
static const char *address_text(const struct sockaddr_storage *a, char out[46]) {
    const void *ip = a->ss_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr : &((const struct sockaddr_in *)a)->sin_addr;
    if ((a->ss_family != AF_INET && a->ss_family != AF_INET6) || !inet_ntop(a->ss_family, ip, out, 46)) *out = '\0';
    return out;
}

const char *pd_call_own_address(const struct pd_call *call, char out[46]) {
    struct sockaddr_storage own = { 0 };
    socklen_t len = sizeof own;
    if (getsockname(call->conn->wire.fd, (struct sockaddr *)&own, &len)) own.ss_family = AF_UNSPEC;
    pd_address_unmap(&own);
    return address_text(&own, out);
}

const char *pd_call_who(const struct pd_call *call, char *out, size_t size) {
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (*call->note.key) snprintf(out, size, "key %s", call->note.key);
    else if (call->from == PD_FROM_UNIX && getsockopt(call->conn->wire.fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0) snprintf(out, size, "uid %u, pid %d", (unsigned)peer.uid, (int)peer.pid);
    else snprintf(out, size, "%s", call->from == PD_FROM_LOOPBACK ? "loopback" : call->client);
    return out;
}

static void call_init(struct pd_call *call, struct pd_conn *c) {
    *call = (struct pd_call){ .conn = c, .body = "" };
    bool file = c->peer.ss_family == AF_UNIX;
    call->from = c->at->admin ? PD_FROM_UNIX : file ? PD_FROM_SOCKET : pd_address_is_loopback(&c->peer) ? PD_FROM_LOOPBACK : PD_FROM_REMOTE;
    if (file) snprintf(call->client, sizeof call->client, "unix");
    else address_text(&c->peer, call->client);
    snprintf(call->id, sizeof call->id, "req_%016llx", (unsigned long long)fo_rng_entropy());
    c->chunked = c->head_only = c->close_after = false;
}

/* A refusal of the connection layer: answers and marks the connection for closing. */
static void refuse(struct pd_call *call, enum pd_error_id id, const char *why) {
    struct pd_error x;
    pd_error_set(&x, id, NULL, "%s", why);
    call->conn->close_after = true;
    pd_error_reply(call, &x);
}

static enum pd_error_id head_error(int status) {
    static const struct {
        int status;
        enum pd_error_id id;
    } rows[] = { { 414, PD_ERR_URI_SIZE }, { 417, PD_ERR_EXPECT }, { 431, PD_ERR_HEAD_SIZE }, { 501, PD_ERR_CODING }, { 505, PD_ERR_HTTP_VERSION } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status) return rows[i].id;
    return PD_ERR_MALFORMED;
}

static bool grow(char **buf, size_t *size, size_t want, size_t most) {
    if (want <= *size) return true;
    size_t n = *size ? *size : 2048;
    while (n < want) n *= 2;
    if (n > most) n = most;
    char *p = n < want ? NULL : realloc(*buf, n);
    if (!p) return false;
    *buf = p;
    *size = n;
    return true;
}

/* Reads until a whole head is in c->in: its length, or 0 when the connection is over (refused with an answer where there is
 * somebody to tell). The time starts with the first byte, so an idle connection may wait for its next request. */
static size_t read_head(struct pd_conn *c, struct pd_call *call, bool first) {
    uint64_t deadline = first ? c->head_deadline : fo_now_ms() + (c->n_in ? c->http->limits.header_time_ms : KEEP_ALIVE_MS);
    for (;;) {
        size_t end = pd_head_end(c->in, c->n_in);
        if (end) return end;
        if (pd_head_is_none(c->in, c->n_in)) { /* a TLS client would wait, and say nothing of the reason */
            refuse(call, PD_ERR_MALFORMED, *c->in == 0x16 ? "this port speaks no TLS: use http:// in the client's base URL" : "these bytes begin no HTTP request");
            return 0;
        }
        int status = pd_head_too_long(c->in, c->n_in);
        if (status) {
            refuse(call, head_error(status), status == 414 ? "the request target is longer than 8192 bytes" : "the headers are larger than 32768 bytes");
            return 0;
        }
        enum { MOST = PD_MAX_HEAD_BYTES + 8192 };
        if (!grow(&c->in, &c->in_size, c->n_in + 1024, MOST)) return 0;
        ssize_t n = pd_wire_read(&c->wire, c->in + c->n_in, c->in_size - c->n_in, deadline);
        if (n == PD_WIRE_TIMEOUT && c->n_in > 0) refuse(call, PD_ERR_TIMEOUT, "the request head did not arrive in time");
        if (n <= 0) return 0;
        if (c->n_in == 0 && !first) deadline = fo_now_ms() + c->http->limits.header_time_ms;
        c->n_in += (size_t)n;
    }
}

/* Room for `more` body bytes, counted against what all connections may hold. */
static bool body_room(struct pd_conn *c, size_t more) {
    struct pd_http *h = c->http;
    size_t before = c->body_size;
    if (!grow(&c->body, &c->body_size, c->n_body + more + 1, h->limits.body_bytes + 64 * 1024 + 1)) return false;
    size_t added = c->body_size - before;
    return atomic_fetch_add(&h->body_bytes, added) + added <= BODIES_AT_ONCE * (h->limits.body_bytes + 64 * 1024);
}

static void body_free(struct pd_conn *c) {
    bool large = c->body_size >= LARGE_BODY;
    atomic_fetch_sub(&c->http->body_bytes, c->body_size);
    free(c->body);
    if (large) malloc_trim(0); /* what was made of it is free too, in pieces that the library would keep */
    c->body = NULL;
    c->n_body = c->body_size = 0;
}

static bool body_too_large(struct pd_call *call) {
    char why[128];
    /* agents take some wordings of a 413 for a context overflow; this one says what it is */
    snprintf(why, sizeof why, "The request body is larger than this server's limit of %llu bytes (server.limits.body).",
             (unsigned long long)call->conn->http->limits.body_bytes);
    refuse(call, PD_ERR_BODY_SIZE, why);
    return false;
}

/* The next bytes of a body, which should have `begun` at that time, had it come at the least rate. PD_WIRE_TIMEOUT also when the server stops:
 * its request would be refused when it is there. */
static ssize_t wait_body(struct pd_conn *c, char *to, size_t want, uint64_t begun) {
    enum { SLICE_MS = 250 };
    uint64_t now = fo_now_ms(), deadline = now + c->http->limits.body_idle_ms;
    ssize_t n = PD_WIRE_TIMEOUT;
    if (now > begun + c->http->limits.body_idle_ms) return n;
    for (; n == PD_WIRE_TIMEOUT && now < deadline && !atomic_load(&c->http->draining); now = fo_now_ms())
        n = pd_wire_read(&c->wire, to, want, now + SLICE_MS < deadline ? now + SLICE_MS : deadline);
    return n;
}

/* The request has this body, of which nothing was read. */
static void body_begin(struct pd_conn *c, const struct pd_head *head) {
    memset(&c->from, 0, sizeof c->from);
    c->from.whole = !head->chunked && head->length == 0;
    c->from.start = c->from.left_ms = fo_now_ms();
}

/* What came behind the body's end is the next request's. */
static bool give_back(struct pd_conn *c, const char *bytes, size_t n) {
    if (n == 0) return true;
    if (!grow(&c->in, &c->in_size, c->n_in + n, PD_MAX_HEAD_BYTES + 64 * 1024)) return false;
    memmove(c->in + n, c->in, c->n_in);
    memcpy(c->in, bytes, n);
    c->n_in += n;
    return true;
}

/* Up to n bytes of the body: how many, which may be 0 before its end too (c->from.whole); -1 when the request was refused or the client left. */
static ptrdiff_t body_piece(struct pd_conn *c, struct pd_call *call, char *to, size_t n) {
    const struct pd_head *head = call->head;
    if (c->from.whole) return 0;
    if (head->expect_continue && !c->from.continued && c->n_in == 0 && !send_all(c, "HTTP/1.1 100 Continue\r\n\r\n", 25)) return -1;
    c->from.continued = true;
    size_t want = head->chunked || head->length - c->from.got > n ? n : (size_t)(head->length - c->from.got), got;
    if (c->n_in > 0) { /* what came in with the head */
        got = c->n_in < want ? c->n_in : want;
        memcpy(to, c->in, got);
        memmove(c->in, c->in + got, c->n_in -= got);
    } else {
        ssize_t k = wait_body(c, to, want, c->from.start + c->from.seen / MIN_BODY_BYTES_PER_MS);
        if (k == PD_WIRE_TIMEOUT && atomic_load(&c->http->draining)) refuse(call, PD_ERR_DRAINING, "The server is stopping and takes no new requests.");
        else if (k == PD_WIRE_TIMEOUT) refuse(call, PD_ERR_TIMEOUT, "the request body did not arrive in time");
        if (k <= 0) return -1;
        got = (size_t)k;
    }
    c->from.seen += got;
    if (!head->chunked) {
        c->from.got += got;
        c->from.whole = c->from.got == head->length;
        return (ptrdiff_t)got;
    }
    size_t used, payload = pd_chunks_feed(&c->from.chunks, to, got, &used);
    c->from.got += payload;
    if (c->from.chunks.state == PD_CH_BAD) {
        refuse(call, PD_ERR_MALFORMED, "the chunked body is broken");
        return -1;
    }
    c->from.whole = c->from.chunks.state == PD_CH_DONE;
    return give_back(c, to + used, got - used) ? (ptrdiff_t)payload : -1;
}

ptrdiff_t pd_body_read(struct pd_call *call, void *to, size_t n) {
    struct pd_conn *c = call->conn;
    ptrdiff_t k = 0;
    if (call->status || c->gone) return -1;
    c->from.start += fo_now_ms() - c->from.left_ms; /* the client is not to blame for what the handler took */
    while (k == 0 && !c->from.whole) k = body_piece(c, call, to, n);
    if (k < 0 && !call->status) c->gone = true;
    c->from.left_ms = fo_now_ms();
    return k;
}

/* The body into c->body; false when the request was refused or the client left. */
static bool read_body(struct pd_conn *c, struct pd_call *call, const struct pd_head *head) {
    if (c->from.whole) return true;
    if (head->length > c->http->limits.body_bytes) return body_too_large(call);
    while (!c->from.whole) {
        enum { PIECE = 16 * 1024 };
        size_t want = head->chunked || head->length - c->n_body > PIECE ? PIECE : (size_t)(head->length - c->n_body);
        if (!body_room(c, want)) {
            refuse(call, PD_ERR_MEMORY, "The bodies of all requests together are larger than the server holds at one time.");
            return false;
        }
        ptrdiff_t k = body_piece(c, call, c->body + c->n_body, want);
        if (k < 0) return false;
        c->n_body += (size_t)k;
        if (c->n_body > c->http->limits.body_bytes) return body_too_large(call);
    }
    return true;
}

/* Whether whoever decides that lets the request in. A client that is not let in sends its body for nothing: it is not read. */
static bool admitted(struct pd_conn *c, struct pd_call *call, const struct pd_head *head) {
    struct pd_http *h = c->http;
    if (!h->admit) return true;
    c->close_after = head->chunked || head->length > 0;
    if (!h->admit(h->ctx, call)) return false;
    c->close_after = false;
    return true;
}

/* Answers the request whose head is text[0..n); true = the connection may carry another. */
static bool answer_one(struct pd_conn *c, struct pd_call *call, struct pd_head *head, char *text, size_t n) {
    struct pd_http *h = c->http;
    const char *why = NULL;
    int status = pd_head_parse(text, n, head, &why);
    if (status) {
        refuse(call, head_error(status), why);
        return false;
    }
    call->head = head;
    body_begin(c, head);
    if (c->mistaken) {
        refuse(call, PD_ERR_TLS, "This port speaks TLS, and the request came in the clear: use https:// in the client's base URL.");
        return false;
    }
    if (c->mode > SERVE_LOCAL) {
        refuse(call, PD_ERR_CONNECTIONS, c->mode == REFUSE_TOTAL ? "All connections of this server are in use." : "Your address has all the connections it may have.");
        return false;
    }
    atomic_fetch_add(&h->busy, 1);
    bool again = true;
    bool pieces = h->in_pieces && h->in_pieces(head);
    if (admitted(c, call, head) && (again = pieces || read_body(c, call, head))) {
        if (c->body) c->body[c->n_body] = '\0';
        call->body = c->body ? c->body : "";
        call->n_body = c->n_body;
        call->draining = atomic_load(&h->draining);
        h->handler(h->ctx, call);
        if (!call->status && !c->gone) refuse(call, PD_ERR_INTERNAL, "The request was not answered.");
    }
    body_free(c);
    atomic_fetch_sub(&h->busy, 1);
    return again && c->from.whole && !c->close_after && !c->gone;
}

/* One request and its answer; true = the connection may carry another. */
static bool serve_one(struct pd_conn *c, bool first) {
    struct pd_http *h = c->http;
    struct pd_call call;
    struct pd_head head;
    call_init(&call, c);
    size_t n = read_head(c, &call, first);
    char *text = n ? malloc(n) : NULL;
    bool again = false;
    call.start_ms = fo_now_ms();
    if (text) {
        memcpy(text, c->in, n);
        memmove(c->in, c->in + n, c->n_in -= n);
        again = answer_one(c, &call, &head, text, n);
    }
    if (call.head && !call.status) atomic_fetch_add(&h->answered[0], 1);
    if (h->done && (call.status || call.head)) h->done(h->ctx, &call);
    free(text);
    return again;
}

/* The count that a connection is part of. Under the lock. */
static uint32_t *place_of(struct pd_conn *c) {
    struct pd_http *h = c->http;
    return c->mode == SERVE ? &h->n_conns : c->mode == SERVE_LOCAL ? &h->n_local : &h->n_refusing;
}

static bool speaks_tls(const struct pd_http *h, const struct pd_listener *at) {
    return at->at.ss_family != AF_UNIX && (at->scheme == PD_HTTPS || (at->scheme == PD_BARE && h->tls && pd_tls_on(h->tls)));
}

/* What comes before the first request; false = nothing will. */
static bool begin(struct pd_conn *c) {
    c->head_deadline = fo_now_ms() + c->http->limits.header_time_ms;
    enum pd_wire_begun begun = speaks_tls(c->http, c->at) ? pd_wire_begin(&c->wire, c->http->tls, c->head_deadline) : PD_WIRE_BEGUN;
    c->mistaken = begun == PD_WIRE_PLAIN;
    if (begun == PD_WIRE_FAILED) {
        char client[46];
        FO_DEBUGF("http", "event=no_tls client=\"%s\" reason=\"%s\"", address_text(&c->peer, client), c->wire.tls ? pd_tls_why(c->wire.tls) : "nothing came, or there is no certificate");
    }
    return begun != PD_WIRE_FAILED;
}

static void *conn_main(void *arg) {
    struct pd_conn *c = arg;
    struct pd_http *h = c->http;
    bool first = true;
    bool more = begin(c);
    while (more && serve_one(c, first)) {
        first = false;
        if (c->n_in == 0) { /* an idle connection holds no buffer */
            free(c->in);
            c->in = NULL;
            c->in_size = 0;
        }
    }
    if (!c->gone) pd_wire_linger(&c->wire, LINGER_MS);
    pd_wire_done(&c->wire);
    free(c->in);
    pthread_mutex_lock(&h->lock);
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    *place_of(c) -= 1;
    close(c->wire.fd);
    if (!h->conns) pthread_cond_broadcast(&h->empty);
    pthread_mutex_unlock(&h->lock);
    free(c);
    return NULL;
}

/* --- accepting --- */

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    /* one host has a whole /64 */
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 8) == 0;
}

/* More connections over the cap than REFUSALS, and those that there is no thread or descriptor for, get their answer from the thread that
 * accepts, which waits for nobody. What came already is read and dropped: bytes unread at the close would take the answer back. */
static void turn_away(struct pd_http *h, const struct pd_listener *at, int fd) {
    char drop[16 * 1024], answer[1024];
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 503 Service Unavailable\r\nServer: pantheon/%s\r\nx-request-id: req_%016llx\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Retry-After: 1\r\nConnection: close\r\n\r\n%s",
                     pn_version(), (unsigned long long)fo_rng_entropy(), h->turned_away.len, fo_buf_str(&h->turned_away));
    atomic_fetch_add(&h->n_turned_away, 1);
    bool whole = !h->turned_away.failed && n > 0 && (size_t)n < sizeof answer && !speaks_tls(h, at); /* under TLS nothing can be said without waiting */
    for (int i = 0; i < MOST_DROPS && recv(fd, drop, sizeof drop, MSG_DONTWAIT) == (ssize_t)sizeof drop; i++) {
    }
    if (whole && send(fd, answer, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
        shutdown(fd, SHUT_WR);
        for (int i = 0; i < MOST_DROPS && recv(fd, drop, sizeof drop, MSG_DONTWAIT) == (ssize_t)sizeof drop; i++) {
        }
    }
    close(fd);
}

static void prepare_turned_away(struct pd_http *h) {
    struct pd_error x;
    fo_buf_init(&h->turned_away, 512);
    pd_error_set(&x, PD_ERR_CONNECTIONS, NULL, "All connections of this server are in use, and many wait to be told so.");
    pd_error_json(&x, NULL, &h->turned_away);
}

/* What is written goes at once. And a client that vanishes without a word (a laptop that is shut) is found out: by probes while nothing is
 * sent to it, by the write deadline when what is sent is not taken; else it would hold its model's turn for a quarter of an hour. */
static void tune(const struct pd_http *h, int fd) {
    unsigned write_idle = (unsigned)h->limits.write_idle_ms; /* at most an hour */
    const struct {
        int level, name;
        unsigned value;
    } rows[] = { { IPPROTO_TCP, TCP_NODELAY, 1 },        { SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_KEEPIDLE, PROBE_AFTER_S }, { IPPROTO_TCP, TCP_KEEPINTVL, PROBE_EVERY_S },
                 { IPPROTO_TCP, TCP_KEEPCNT, PROBES }, { IPPROTO_TCP, TCP_USER_TIMEOUT, write_idle } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) setsockopt(fd, rows[i].level, rows[i].name, &rows[i].value, sizeof rows[i].value);
}

/* Of the acceptor: once a second, however many come. */
static void complain(struct pd_http *h, const char *event, int err) {
    uint64_t now = fo_now_ms();
    if (h->warned_ms && now - h->warned_ms < 1000) return;
    h->warned_ms = now;
    fo_log(FO_LOG_WARN, "http", "event=%s reason=\"%s\" next=\"clients are turned away\"", event, strerror(err));
}

static void adopt(struct pd_http *h, const struct pd_listener *at, int fd, const struct sockaddr_storage *peer) {
    struct pd_conn *c = calloc(1, sizeof *c);
    if (peer->ss_family != AF_UNIX) tune(h, fd);
    if (!c) {
        turn_away(h, at, fd);
        return;
    }
    c->http = h;
    c->at = at;
    c->wire.fd = fd;
    c->peer = *peer;
    pthread_mutex_lock(&h->lock);
    uint32_t same = 0;
    if (!pd_address_is_loopback(peer))
        for (const struct pd_conn *k = h->conns; k; k = k->next) same += same_address(&k->peer, peer);
    c->mode = at->admin && h->n_local < LOCAL_CONNECTIONS ? SERVE_LOCAL : h->n_conns >= h->limits.connections ? REFUSE_TOTAL : same >= h->limits.connections_per_address ? REFUSE_ADDRESS : SERVE;
    bool over = c->mode > SERVE_LOCAL, take = !h->closing && (!over || h->n_refusing < REFUSALS);
    int rc = 0;
    if (take) {
        *place_of(c) += 1;
        c->next = h->conns;
        c->link = &h->conns;
        if (c->next) c->next->link = &c->next;
        h->conns = c;
        pthread_attr_t attr;
        pthread_t thread;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&attr, STACK_BYTES);
        rc = pthread_create(&thread, &attr, conn_main, c);
        if (rc) {
            h->conns = c->next;
            if (c->next) c->next->link = &h->conns;
            *place_of(c) -= 1;
            take = false;
        }
        pthread_attr_destroy(&attr);
    }
    pthread_mutex_unlock(&h->lock);
    if (rc) complain(h, "no_thread", rc);
    if (!take) {
        turn_away(h, at, fd);
        free(c);
    } else if (over) {
        atomic_fetch_add(&h->n_turned_away, 1);
    }
}

static bool out_of(int err) {
    return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS;
}

/* Nobody hangs because this process has no descriptor left. False = the spare one did not help. */
static bool turn_away_with_spare(struct pd_http *h, const struct pd_listener *at) {
    if (h->spare >= 0) close(h->spare);
    int fd = accept4(at->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) turn_away(h, at, fd);
    h->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

/* False when nobody waits there, or cannot be taken. */
static bool accept_one(struct pd_http *h, const struct pd_listener *at) {
    struct sockaddr_storage peer = { 0 };
    socklen_t len = sizeof peer;
    int fd = accept4(at->fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        pd_address_unmap(&peer);
        adopt(h, at, fd, &peer);
        return true;
    }
    if (!out_of(errno)) return false;
    complain(h, "accept_failed", errno);
    struct pollfd wake = { .fd = h->wake, .events = POLLIN };
    if (turn_away_with_spare(h, at)) return true;
    poll(&wake, 1, 100); /* the listener stays readable; do not spin on it */
    return false;
}

static void *accept_main(void *arg) {
    struct pd_http *h = arg;
    const int n = h->listeners.n;
    struct pollfd p[PD_MAX_LISTENERS + 1];
    for (int i = 0; i < n; i++) p[i] = (struct pollfd){ .fd = h->listeners.list[i].fd, .events = POLLIN };
    p[n] = (struct pollfd){ .fd = h->wake, .events = POLLIN };
    for (;;) {
        if (poll(p, (nfds_t)n + 1, -1) < 0 && errno != EINTR) return NULL;
        if (p[n].revents) break;
        for (int i = 0; i < n; i++)
            if (p[i].revents & POLLIN) accept_one(h, &h->listeners.list[i]);
    }
    /* whoever has connected to a listener that is closed now has an answer coming; those of a passed one wait for the next daemon */
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LAST_ACCEPTS && !h->listeners.list[i].passed && accept_one(h, &h->listeners.list[i]); k++) {}
    return NULL;
}

void pd_http_set_limits(struct pd_http *h, const struct pd_http_limits *l) {
    atomic_store(&h->limits.body_bytes, l->body_bytes);
    atomic_store(&h->limits.header_time_ms, l->header_time_ms);
    atomic_store(&h->limits.body_idle_ms, l->body_idle_ms);
    atomic_store(&h->limits.write_idle_ms, l->write_idle_ms);
    atomic_store(&h->limits.connections, l->connections);
    atomic_store(&h->limits.connections_per_address, l->connections_per_address);
}

int pd_http_open(const struct pd_http_opts *opts, struct pd_http **ret, struct fo_err *e) {
    struct pd_http *h = calloc(1, sizeof *h);
    if (!h) return fo_fail(e, FO_ENOMEM, "no memory for the HTTP server");
    h->handler = opts->handler;
    h->admit = opts->admit;
    h->in_pieces = opts->in_pieces;
    h->done = opts->done;
    h->ctx = opts->ctx;
    h->tls = opts->tls;
    pd_http_set_limits(h, &opts->limits);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->empty, &attr);
    pthread_condattr_destroy(&attr);
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    prepare_turned_away(h);
    int code = h->wake < 0 ? fo_fail_errno(e, errno, "eventfd") : FO_OK;
    if (code == FO_OK) code = pd_listen_open(&opts->listen, &h->listeners, e);
    if (code != FO_OK) {
        pd_http_close(h);
        return code;
    }
    *ret = h;
    return FO_OK;
}

int pd_http_start(struct pd_http *h, struct fo_err *e) {
    int rc = pthread_create(&h->acceptor, NULL, accept_main, h);
    if (rc) return fo_fail_errno(e, rc, "cannot start the thread that accepts connections");
    h->accepting = true;
    return FO_OK;
}

void pd_http_drain(struct pd_http *h) {
    atomic_store(&h->draining, true);
}

const char *pd_http_outside(const struct pd_http *h) {
    const struct pd_listener *p = h ? pd_listen_outside(&h->listeners) : NULL;
    return p ? p->text : NULL;
}

uint32_t pd_http_busy(const struct pd_http *h) {
    return atomic_load(&h->busy);
}

uint32_t pd_http_connections(const struct pd_http *h) {
    struct pd_http *m = (struct pd_http *)h;
    pthread_mutex_lock(&m->lock);
    uint32_t n = m->n_conns;
    pthread_mutex_unlock(&m->lock);
    return n;
}

uint64_t pd_http_answered(const struct pd_http *h, int status_class) {
    return atomic_load(&h->answered[status_class]);
}

uint64_t pd_http_turned_away(const struct pd_http *h) {
    return atomic_load(&h->n_turned_away);
}

void pd_http_close(struct pd_http *h) {
    if (!h) return;
    if (h->accepting) {
        uint64_t one = 1;
        if (write(h->wake, &one, sizeof one) < 0) fo_log(FO_LOG_WARN, "http", "event=wake_failed reason=\"%s\"", strerror(errno));
        pthread_join(h->acceptor, NULL);
    }
    pd_listen_close(&h->listeners);
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    /* nothing is read any more but what has come, so that each request that has gets its answer; then all is cut */
    struct timespec until = fo_deadline(LAST_WORDS_MS);
    for (struct pd_conn *c = h->conns; c; c = c->next) shutdown(c->wire.fd, SHUT_RD);
    while (h->conns && pthread_cond_timedwait(&h->empty, &h->lock, &until) == 0) {}
    for (struct pd_conn *c = h->conns; c; c = c->next) shutdown(c->wire.fd, SHUT_RDWR);
    while (h->conns) pthread_cond_wait(&h->empty, &h->lock);
    pthread_mutex_unlock(&h->lock);
    if (h->wake >= 0) close(h->wake);
    if (h->spare >= 0) close(h->spare);
    fo_buf_done(&h->turned_away);
    pthread_cond_destroy(&h->empty);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
