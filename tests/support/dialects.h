/* Dialects for tests: a row of each kind, found in a template that writes as the rows say; and calls written as a row has them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "engine/dialect.h"
#include "foundry/base/buf.h"

struct fo_gguf;
struct fo_tok;
struct pn_chat;

struct test_dialect {
    struct fo_buf file; /* of a vocabulary of bytes and, with marks, of the words of the rows that look like tags as control tokens */
    struct fo_gguf *g;
    struct fo_tok *tok; /* NULL without marks */
    struct pn_chat *chat;
    struct pn_dialect *d;
};

/* A template in Jinja that writes calls and thoughts as these rows do (NULL = writes none), to be freed. */
char *test_dialect_template(const struct pn_call_format *f, const struct pn_reasoning *r);
/* Aborts where something does not go. */
void test_dialect_open(struct test_dialect *t, const struct pn_call_format *f, const struct pn_reasoning *r, bool marks);
void test_dialect_close(struct test_dialect *t);

const struct pn_call_format *test_call_row(const char *name);

/* A call as the row writes it; arguments alternate names and values in JSON, NULL at the end. `nth` of a run of calls, the last of which has `last`. */
void test_call_write(const struct pn_call_format *f, struct fo_buf *out, const char *name, const char *const *arguments, int nth, bool last);
/* The arguments that are to come out of it. */
void test_call_arguments(const struct pn_call_format *f, struct fo_buf *out, const char *const *arguments);
/* text with PN_MARK in front of the control tokens of d. */
void test_dialect_mark(const struct pn_dialect *d, const char *text, size_t n, struct fo_buf *out);
