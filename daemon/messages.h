/* The `messages` of a chat request: checked, and brought into the one shape that templates read. Pure: any thread. */
#pragma once
#include <stdbool.h>

struct json_t;
struct pd_error;

/* Checks the list and every message in it; false with the JSON path of what is wrong. Changes in place: role developer becomes system
 * (templates know only that), and parts of type refusal become parts of type text. */
bool pd_messages_check(struct json_t *messages, struct pd_error *ret_error);
