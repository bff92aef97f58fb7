/* The lines of heads on their way through the router, both ways: what is between two parties stays between them (RFC 9110, 7.6.1), what is the router's
 * own business (keys, origins, ids) is answered for here, the rest passes. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_buf;
struct pd_head;

/* What the router adds to a request. */
struct pd_via {
    const char *client; /* its address; "unix" */
    const char *id;     /* the request's, where the client gave none */
    const char *bearer; /* in the place of the client's Authorization; NULL = that passes */
};

/* The lines that a backend gets, "Name: value" and LF each, appended to out. Host and the body's length are the connection's. */
void pd_router_request_lines(const struct pd_head *head, const struct pd_via *via, struct fo_buf *out);

/* A backend's answer, from its lines as they came. */
struct pd_router_answer {
    char type[128];       /* Content-Type; "" = none */
    char id[64];          /* x-request-id; "" = none that could be passed on */
    bool events;          /* it is a stream of server-sent events */
};

/* Takes lines[0..n), "Name: value" with a LF behind each: the lines that the client gets, each ended by CR LF, appended to out. Lines that are none are left out. */
void pd_router_answer_lines(const char *lines, size_t n, struct pd_router_answer *ret, struct fo_buf *out);
