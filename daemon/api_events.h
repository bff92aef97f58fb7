/* What pages that show events share. */
#pragma once
#include <stdbool.h>

struct json_t;
struct pd_call;
struct pd_event;
struct pd_performed;

/* The event as pages and streams have it: seq, time, event, text, and model, who and bad where there is one. NULL without memory. */
struct json_t *pd_event_object(const struct pd_event *ev);
/* The event as a block of a stream that is open (text/event-stream). False = the client is gone, or there is no memory. */
bool pd_stream_event(struct pd_call *c, const struct pd_event *ev);
/* Whether the client asks for a stream (Accept: text/event-stream). */
bool pd_wants_stream(const struct pd_call *c);
/* Opens such a stream. False = there is nothing more to send: the client is gone, or asked for the head alone. */
bool pd_stream_begin(struct pd_call *c);
/* "running", "done" or "failed". */
const char *pd_step_result_name(const struct pd_performed *d);
