/* What the router reads in a request's body: the model, and what tells the conversation from others. The body itself is passed on as it came.
 * Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "daemon/body.h"

struct pd_error;
struct pd_head;

struct pd_router_ask {
    struct pd_body body;
    const char *model; /* the body's */
    uint64_t key;      /* of the conversation, for router_ring.h */
};

/* `whose` is the API key's name, or what stands in its place. False with the error: what pd_body_parse refuses, no `model`, one that is no text.
 * Give it back with pd_body_done(&ret->body) in both cases. */
bool pd_router_ask(const struct pd_head *head, const char *body, size_t len, const char *whose, struct pd_router_ask *ret, struct pd_error *x);
