/* A model's turn: the text of an answer, in pieces of any size, becomes its parts. What a piece has comes out at once, unless it may yet turn
 * out to be something else (the beginning of a mark, the head of a call). However the text is cut into pieces, the parts, put together, are the
 * same.
 *
 * A call is one once its head is whole: the marks, the name of a function that was offered, and the beginning of an object. Whatever ends or
 * breaks before that is content, as it was written. One owner: the worker. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/dialect.h"

struct fo_buf;
struct fo_err;
struct pn_tools;
struct pn_turn;

enum pn_part {
    PN_PART_CONTENT,
    PN_PART_REASONING, /* without its marks and without the blanks at its ends */
    PN_PART_CALL,      /* a new call: the whole text is the function's name */
    PN_PART_ARGUMENTS  /* more JSON of the last call's; all of it together is one object, unless max_tokens cut it */
};

struct pn_turn_opts {
    const struct pn_dialect *dialect; /* outlives it */
    const struct pn_tools *tools;     /* the functions that were offered; NULL = calls are not looked for. Outlives it */
    bool in_reasoning;                /* the prompt ends within a thought */
    bool no_reasoning;                /* no thought is looked for: it is content, marks and all (a text that was asked for raw) */
    /* A call's head is whole and `rest` is what came with it, from the arguments' own beginning ("{", or the first tag) on; the call is part of
     * the answer when this says so, else it is content. NULL = it is. */
    bool (*begin_call)(void *ctx, int function, const char *rest, size_t n);
    void *ctx;
};
int pn_turn_new(const struct pn_turn_opts *o, struct pn_turn **ret, struct fo_err *e);
void pn_turn_free(struct pn_turn *t); /* NULL is allowed */

/* Appends the parts that text[0..n) (whole UTF-8 characters, and marks) has completed to `parts`. Without memory parts->failed is set. */
void pn_turn_push(struct pn_turn *t, const char *text, size_t n, struct fo_buf *parts);
/* The answer is over: what was held back comes out. */
void pn_turn_end(struct pn_turn *t, struct fo_buf *parts);
/* Content begins here, and blanks in front of it belong to it (a grammar has begun that may want them). */
void pn_turn_settle(struct pn_turn *t);
/* A thought is ended for the model, whose close mark is pushed next. The model may not have noticed, and say its own later: those are dropped. */
void pn_turn_cut(struct pn_turn *t);

bool pn_turn_in_reasoning(const struct pn_turn *t);
bool pn_turn_in_content(const struct pn_turn *t); /* neither in a thought nor in a call, nor in what may become one */
uint32_t pn_turn_n_calls(const struct pn_turn *t); /* that have begun */
/* A call is complete and no other may follow (one call was asked for): the answer is over. */
bool pn_turn_is_over(const struct pn_turn *t);

/* Parts as they stand in `parts`: each a run of text of one kind. Neighbours of a kind may be put together, but for PN_PART_CALL. */
struct pn_part_text {
    enum pn_part part;
    const char *text; /* [len], points into the buffer; UTF-8, no marks */
    size_t len;
};
void pn_part_put(struct fo_buf *parts, enum pn_part part, const char *text, size_t len);
/* The one at *at, which goes behind it; false at the end. */
bool pn_part_next(const struct fo_buf *parts, size_t *at, struct pn_part_text *ret);
