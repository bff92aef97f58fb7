/* One hop further: requests to other HTTP servers, for the router. The only user of libcurl beside client.h. A lane is a connection to one
 * server that is kept for the next request; a request takes one, has it for itself, and is answered on its own thread through calls. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pd_lane;

/* Where a server is; texts are the caller's, until pd_lanes_done. */
struct pd_lanes {
    const char *url;    /* "https://host:port", no slash at its end */
    const char *socket; /* path of a Unix socket to reach it by; NULL = none */
    pthread_mutex_t lock; /* guards what follows; pointer work only */
    struct pd_lane *idle;
    unsigned n_idle;
};

void pd_lanes_init(struct pd_lanes *l, const char *url, const char *socket);
void pd_lanes_done(struct pd_lanes *l); /* no request is under way */

/* Once, before other threads exist. FO_EINTERNAL. */
int pd_hop_init(struct fo_err *e);

struct pd_hop {
    const char *method, *path; /* with its query */
    const char *lines;         /* "Name: value" and LF each; "" = none */
    const char *body;          /* [n_body]; NULL = none */
    size_t n_body;
    uint64_t connect_ms; /* until there is a connection, */
    uint64_t head_ms;    /* from then, or from the last piece of the body that it took, until the answer's head has come, */
    uint64_t idle_ms;    /* and between two pieces of its body */
    /* On the caller's thread. False = no more of it. lines: those of the head, as above. */
    bool (*head)(void *ctx, int status, const char *lines, size_t n_lines);
    bool (*bytes)(void *ctx, const char *bytes, size_t n);
    bool (*go_on)(void *ctx); /* asked every 100 ms at the least */
    void *ctx;
};

enum pd_hop_end {
    PD_HOP_DONE,
    PD_HOP_UNREACHED, /* there is no connection: it has not seen the request */
    PD_HOP_DIED,      /* it closed or broke the connection before a byte of its answer */
    PD_HOP_BROKE,     /* ... in its answer */
    PD_HOP_NO_HTTP,   /* what it says is none, or a head past all measure */
    PD_HOP_NO_HEAD,   /* head_ms */
    PD_HOP_SILENT,    /* idle_ms */
    PD_HOP_STOPPED,   /* a call returned false */
    PD_HOP_NO_MEMORY,
};

enum { PD_HOP_WHY = 256, PD_MAX_ANSWER_HEAD = 64 << 10 };

/* Asks, and waits for the end of the answer. why: what to tell people unless it is DONE or STOPPED. A request that is not over when it stops
 * closes its connection. A connection that was kept and turns out to be closed, before a byte has come over it, is replaced by a new one without a word;
 * where there is no new one, the server DIED: it may have seen the request. */
enum pd_hop_end pd_hop_run(struct pd_lanes *l, const struct pd_hop *h, char why[PD_HOP_WHY]);
