/* A stream of server-sent events on its way through the router: whole events are passed on as they come, and where the backend breaks off, the piece
 * of an event that nobody could read is left out, so that an error event can follow. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/base/buf.h"

enum {
    PD_MAX_EVENT_BYTES = 4 << 20,  /* of one event that is held until it is whole; a longer one passes in pieces */
    PD_MAX_FIRST_BYTES = 64 << 10, /* of the first event that are kept, for its names */
};

struct pd_events {
    struct fo_buf held;   /* of the event that is not whole yet */
    struct fo_buf first;  /* the first event with data, for what it says of the stream; empty when it is too long */
    size_t looked;        /* bytes of `held` that were looked through */
    bool passing;         /* the event under way is too long to hold, and begun to pass */
    uint64_t n;           /* events with data that have passed */
    bool ended;           /* the last that a stream of an OpenAI API has, or an error, has passed: nothing is missing behind it */
};

void pd_events_init(struct pd_events *v);
void pd_events_done(struct pd_events *v);

/* Takes bytes[0..n) and appends what may be passed on to `out`; false without memory. */
bool pd_events_feed(struct pd_events *v, const char *bytes, size_t n, struct fo_buf *out);

/* The rest, for a stream that ended as it should. */
void pd_events_finish(struct pd_events *v, struct fo_buf *out);
