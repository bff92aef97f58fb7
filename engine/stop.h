/* Stop strings: text that ends an answer and is never shown, in part or whole. Text goes in as it is decoded, in pieces of any
 * size; what cannot become part of a stop string any more comes out at once. One owner: the worker. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_buf;
struct fo_err;
struct pn_stop;

/* Copies the strings (n <= PN_MAX_STOPS of engine/request.h, each of 1 .. PN_MAX_STOP_BYTES bytes and valid UTF-8, else FO_EINVAL
 * that says `stop`). n = 0 gives NULL, which the functions below take as "no stops". */
int pn_stop_new(const char *const *stops, int n, struct pn_stop **ret, struct fo_err *e);
void pn_stop_free(struct pn_stop *s); /* NULL is allowed */

/* Appends to out what may be shown after text[0..len), whole UTF-8 characters. True when a stop string was completed: what came
 * before it has been appended, it and all that follows is gone, and the answer is over. Of several stop strings the one that is
 * complete first wins; of those complete at the same byte, the longest. Without memory out->failed is set. */
bool pn_stop_push(struct pn_stop *s, const char *text, size_t len, struct fo_buf *out);

/* The text ended in another way: appends what was held back. What is pushed afterwards is a text of its own. */
void pn_stop_end(struct pn_stop *s, struct fo_buf *out);
