/* The `input` of /v1/responses: a text or a list of items, made into the messages of a chat. Pure: any thread. */
#pragma once

struct json_t;
struct pd_error;

/* The messages that `instructions` (a text, or NULL) and `input` mean, in the form of messages.h: a new reference. NULL with the error, whose
 * param is the path in the body ("input.2.content.0.type"). */
struct json_t *pd_items_messages(struct json_t *instructions, struct json_t *input, struct pd_error *ret_error);
