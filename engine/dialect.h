/* A dialect: how a model marks the parts of what it says, its thoughts and its calls of functions. It is chosen once, at load, by what the
 * model's own template makes of a conversation that has them. Immutable: any thread.
 *
 * Marks. A mark may be a control token ("[TOOL_CALLS]" of Mistral), which the model alone can say: text that spells it is no mark. Wherever
 * text of an answer and texts of a dialect meet (turn.h, tools.h, the tokens of a grammar), a control token's text has the byte PN_MARK in front
 * of it, which no UTF-8 has; the texts of a dialect are resolved so against the model's vocabulary. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_tok;
struct pn_chat;
struct pn_dialect;

enum { PN_MARK = 0xFF };

/* How thoughts are marked: a row. */
struct pn_reasoning {
    const char *open, *close;
    const char *after; /* what a model says between the close and its content: blank, and no part of either */
    const char *models; /* whose it is, for people */
};

/* How calls are written: a row. */
enum pn_call_shape {
    PN_CALL_OBJECT, /* begin, {"name": "f", "arguments": {...}}, end, for each call */
    PN_CALL_LIST,   /* begin, [{"name": "f", "arguments": {...}}, ...], end, once */
    PN_CALL_NAMED,  /* begin, f, middle, {...}, end, for each call */
    PN_CALL_TAGS    /* begin, f, middle, for each argument a tag that has its name and its value as plain text, end, for each call */
};
enum pn_call_text {
    PN_CALL_BEGIN,
    PN_CALL_MIDDLE,
    PN_CALL_ARG_BEGIN,
    PN_CALL_ARG_MIDDLE,
    PN_CALL_ARG_END,
    PN_CALL_END,
    PN_CALL_BETWEEN, /* the end of a call and the begin of the next; in a list, its items */
    PN_CALL_OPEN,    /* once, in front of the first call */
    PN_CALL_CLOSE,   /* once, behind the last */
    PN_CALL_ALSO,    /* may stand in the place of begin; is read and never demanded */
    PN_CALL_ID,      /* may stand between the name and the middle, an id of letters and digits behind it; is read and never demanded */
    PN_N_CALL_TEXTS
};
/* Blanks in a text are how models write them; who reads takes any number of them there, also none. */
struct pn_call_format {
    const char *name; /* as it is told at load: "hermes" */
    enum pn_call_shape shape;
    const char *arguments; /* the member that has them, of the first two shapes */
    const char *text[PN_N_CALL_TEXTS]; /* as a model writes them; NULL = "" */
    bool bare; /* a call has no mark at its begin and is told from content by its form, at the start of an answer only */
    const char *models; /* whose it is, for people */
};

/* From what c's template makes of probes; tok gives the control tokens, NULL = none. Never fails for a template that has neither. FO_ENOMEM. */
int pn_dialect_new(const struct pn_chat *c, const struct fo_tok *tok, struct pn_dialect **ret, struct fo_err *e);
void pn_dialect_free(struct pn_dialect *d); /* NULL is allowed */

/* The rows; NULL = the template has no such thing. */
const struct pn_reasoning *pn_dialect_reasoning(const struct pn_dialect *d);
const struct pn_call_format *pn_dialect_calls(const struct pn_dialect *d);
/* The template knows no functions: calls are PN_CALL_OBJECT in tags, and whoever renders a conversation describes them in a system message. */
bool pn_dialect_is_ours(const struct pn_dialect *d);
/* A text of pn_dialect_calls with its marks; never NULL. */
const char *pn_dialect_call_text(const struct pn_dialect *d, enum pn_call_text which);
/* Open and close with their marks, "" without reasoning. */
const char *pn_dialect_open(const struct pn_dialect *d);
const char *pn_dialect_close(const struct pn_dialect *d);
/* The tokens that end a thought: close and after. *ret_n is 0 without reasoning or tokenizer. */
const int32_t *pn_dialect_close_ids(const struct pn_dialect *d, uint32_t *ret_n);
/* Of these, those of `after` alone. */
const int32_t *pn_dialect_after_ids(const struct pn_dialect *d, uint32_t *ret_n);
/* The token that opens one, -1 when it is no single token. */
int32_t pn_dialect_open_id(const struct pn_dialect *d);
/* Whether this control token is part of a mark, so that its text matters. */
bool pn_dialect_is_mark(const struct pn_dialect *d, int32_t id);
/* The texts of these tokens, without PN_MARK: a pointer to *ret_n bytes, NULL past the last. */
const char *pn_dialect_mark_text(const struct pn_dialect *d, size_t i, size_t *ret_n);
/* Whether a rendered prompt ends within a thought: the template has opened it (blanks may follow). */
bool pn_dialect_begins_in_reasoning(const struct pn_dialect *d, const char *prompt, size_t len);

/* All rows, for the reference (docs/tools.md) and tests; NULL past the last. */
const struct pn_call_format *pn_call_format_row(size_t i);
const struct pn_reasoning *pn_reasoning_row(size_t i);
