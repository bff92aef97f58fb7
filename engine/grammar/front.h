/* What the notations that are text share: a cursor, places for messages, and lists of nodes while they grow. One owner. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/ir.h"
#include "foundry/base/err.h"

enum { PN_FRONT_MAX_DEPTH = 100 /* of groups in groups */ };

struct pn_front {
    struct pn_ir *ir;
    const char *text; /* UTF-8 */
    size_t len, at;
    int depth;
    size_t place_at; /* up to where line and col are known */
    int line, col;
    struct fo_err *e;
    uint32_t *nodes; /* [n_nodes] of all lists that are open, one behind the other; heap, the owner frees it */
    size_t n_nodes, cap_nodes;
};

/* Sets *f->e with the line and column (in characters) of text[at] and returns the code. */
int pn_front_fail(struct pn_front *f, size_t at, enum fo_code code, const char *fmt, ...) __attribute__((format(printf, 4, 5), cold));

/* Line and column of text[at]. Fast where at grows from call to call. */
void pn_front_place(struct pn_front *f, size_t at, int *ret_line, int *ret_col);

/* The byte at the cursor, or -1 at the end. */
static inline int pn_front_peek(const struct pn_front *f) {
    return f->at < f->len ? (unsigned char)f->text[f->at] : -1;
}
/* Whether text stands at the cursor; goes behind it. */
bool pn_front_take(struct pn_front *f, const char *text);
/* The code point at the cursor, which goes behind it; FO_EFORMAT when it is not UTF-8. Not at the end. */
int pn_front_char(struct pn_front *f, uint32_t *ret);
/* n hexadecimal digits as a code point; FO_EINVAL when they are none, or no character's. */
int pn_front_hex(struct pn_front *f, int n, uint32_t *ret);
/* A decimal number; FO_ELIMIT above 2^31 - 1, FO_EINVAL without a digit. */
int pn_front_number(struct pn_front *f, uint32_t *ret);

/* One more node of the list that is open. */
int pn_front_push(struct pn_front *f, uint32_t node);
/* Closes the list that began at n_nodes == from. */
uint32_t pn_front_seq(struct pn_front *f, size_t from);
uint32_t pn_front_alt(struct pn_front *f, size_t from);
