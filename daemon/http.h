/* The HTTP/1.1 server: listeners, one thread per connection, limits, and the calls that a handler answers with. It knows nothing of
 * routes or models. A handler runs on its connection's thread and may block there: for its model's next event, or for a client that
 * reads slowly, within the write deadline. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/head.h"
#include "daemon/listen.h"
#include "engine/request.h"

struct fo_err;
struct pd_conn;
struct pd_http;
struct pd_tls;

enum { PD_MAX_KEY_NAME = 64 };

/* What a request's line in the log says besides its head and its status: whoever answers fills in what it knows. */
struct pd_note {
    const char *verdict;                /* "answered", "failed", "client_left", ...: static storage; NULL = as the status says */
    const char *code;                   /* of the error that was sent: static storage; NULL = none */
    char why[512];                      /* the text of a failure that is the server's; "" = none */
    char key[PD_MAX_KEY_NAME + 1];      /* whose request it is; "" = nobody's */
    char model[128];                    /* "" = none */
    const char *backend;                /* a router's: which server it was passed to last; NULL = none. It outlives the request */
    uint32_t tries;                     /* ... and to how many in all */
    bool polled;                        /* a good answer is worth no line of the log */
    bool generates, stream;             /* generates: what follows stands in the line */
    uint32_t prompt_tokens, completion_tokens, reasoning_tokens, calls /* of functions */;
    const char *thought;                /* why a thought was ended for the model: "budget", "loop"; NULL = none was. Static storage */
    double queue_ms, prefill_ms, decode_ms;
    uint64_t kv_need, kv_have;          /* bytes of KV that it was admitted with, of those that were free or could be freed */
};

/* One request. Owned by the connection's thread, gone when the handler returns. */
struct pd_call {
    char id[24];                /* x-request-id of the answer: "req_" and 16 hexadecimal digits */
    const struct pd_head *head; /* method, path (still percent-encoded), headers */
    const char *body;           /* [n_body], followed by a NUL; "" when there is none, or it comes in pieces */
    size_t n_body;
    struct pd_conn *conn;
    int status;                 /* of the answer; 0 = none yet */
    bool draining;              /* the server was told to stop before this request came */
    enum pd_from { /* where the client is */
        PD_FROM_REMOTE, PD_FROM_LOOPBACK,
        PD_FROM_SOCKET, /* a Unix socket for requests: a proxy's client may be anywhere */
        PD_FROM_UNIX    /* the Unix socket for administration */
    } from;
    char client[46];            /* its address; "unix" */
    uint64_t start_ms;          /* when its head had arrived (fo_now_ms) */
    char headers[512];          /* further lines for whatever answers it, as in pd_reply; "" = none */
    bool admin;                 /* whoever let it in would let it see the pages of /admin */
    enum pn_priority most_priority; /* of a request for a model: the highest that whoever admits it allows */
    struct pd_note note;
    struct pd_call *held, **held_link; /* whoever admits it may keep it in a list, until `done` */
};

typedef void pd_http_handler(void *ctx, struct pd_call *call);
/* Asked before a request's body is read. False = it has answered; the body is not read then, and a connection with one is closed. */
typedef bool pd_http_admit(void *ctx, struct pd_call *call);

struct pd_http_limits {
    uint64_t body_bytes, header_time_ms, body_idle_ms, write_idle_ms;
    uint32_t connections, connections_per_address; /* loopback is exempt from the second */
};

struct pd_http_opts {
    struct pd_listen_opts listen;
    struct pd_tls *tls;    /* whose certificate TCP listeners speak TLS with, while there is one; NULL = in the clear. Unix sockets never do */
    struct pd_http_limits limits;
    pd_http_handler *handler;
    bool (*in_pieces)(const struct pd_head *head); /* whether a request's handler reads its body itself (pd_body_read), of any length; NULL = none does */
    pd_http_admit *admit;  /* NULL = everybody is admitted */
    pd_http_handler *done; /* told of each request when all is over, also of those refused before anybody was asked (call->head is NULL when it could
                            * not be read) and of those that left before their answer (status 0); NULL = nobody wants to know */
    void *ctx;
};

/* Opens the listeners (pd_listen_open, whose errors it has). Clients can connect; nobody is answered before pd_http_start. */
int pd_http_open(const struct pd_http_opts *opts, struct pd_http **ret, struct fo_err *e);
/* Accepts from now on: the handler may be called before this returns. Once. */
int pd_http_start(struct pd_http *h, struct fo_err *e);

/* From now on every call has `draining` and every answer closes its connection. New connections are still taken, to be told so. */
void pd_http_drain(struct pd_http *h);

/* Other limits from now on: for requests and connections that come, and for the next piece of those that are there. Any thread. */
void pd_http_set_limits(struct pd_http *h, const struct pd_http_limits *l);

/* The address of the first listener that other machines may reach; NULL = none (also of NULL). */
const char *pd_http_outside(const struct pd_http *h);

/* Calls whose handler has not returned. */
uint32_t pd_http_busy(const struct pd_http *h);

/* Open connections now. */
uint32_t pd_http_connections(const struct pd_http *h);

/* Requests by the class of their answer's status: 2 for 200 .. 299, 0 when the client left before one. They are those that `done` is told of,
 * and one is counted before its answer goes out: who has the answer finds it counted. */
uint64_t pd_http_answered(const struct pd_http *h, int status_class);

/* Connections over a limit, since the start. */
uint64_t pd_http_turned_away(const struct pd_http *h);

/* Stops accepting, cuts every connection, waits for their threads (handlers see a client that left), frees. NULL is allowed. */
void pd_http_close(struct pd_http *h);

/* --- a body that comes in pieces --- */

/* Up to n >= 1 bytes of it: how many; 0 = that was all; -1 = there will be no more, and the client is gone or has been told why (408, 400, 503). What a handler
 * leaves unread is not read: the answer closes the connection. */
ptrdiff_t pd_body_read(struct pd_call *c, void *to, size_t n);

/* --- answering: one of pd_reply or pd_stream_open, once per call. False = the client is gone (nothing more can be sent). --- */

/* A whole answer. `headers` is NULL or further lines, each ended by CR LF, made of our own words only. HEAD gets no body. */
bool pd_reply(struct pd_call *c, int status, const char *type, const char *headers, const char *body, size_t n_body);

/* An answer of unknown length: head at once, then pieces as they come, each sent whole, then the end. */
bool pd_stream_open(struct pd_call *c, int status, const char *type, const char *headers);
/* The same of a length that is known: so many bytes will be written, or the answer is cut. */
bool pd_stream_open_sized(struct pd_call *c, int status, const char *type, const char *headers, uint64_t n_bytes);
bool pd_stream_write(struct pd_call *c, const char *bytes, size_t n);
bool pd_stream_close(struct pd_call *c);
/* In the place of pd_stream_close: the answer is not whole, and the connection's end without its last chunk says so. */
void pd_stream_cut(struct pd_call *c);

/* The address that the client connected to, without the port, as "127.0.0.1" or "::1"; "" when there is none. Returns out. */
const char *pd_call_own_address(const struct pd_call *c, char out[46]);

/* Who asks, for the log: "key alice", "uid 0, pid 71" of the Unix socket for administration, "loopback", or the address. Returns out. */
const char *pd_call_who(const struct pd_call *c, char *out, size_t size);

/* Whether the client has closed its side: nobody waits for the answer, and none will be sent. A client that only closes its sending
 * side counts as gone; no OpenAI client does that. No waiting. */
bool pd_client_gone(struct pd_call *c);
