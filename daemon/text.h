/* Between what requests say and token ids, for the endpoints that do one or both; and UTF-8, where ids may cut a character. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct pd_app;
struct pd_error;
struct pd_params;
struct pn_ids;
struct pn_model;
struct pn_render;
struct pn_served;

/* The conversation of a request through its model's template: as text (pn_render_done it), as ids (free them), or both; NULL = not
 * wanted. More ids than max_ids (0 = no limit) are refused. False with the error: what a template says of a conversation it does not take is
 * the client's to read. */
bool pd_chat_encode(const struct pn_served *s, const struct pd_params *p, uint32_t max_ids, struct pn_render *ret_text, struct pn_ids *ret_ids,
                    struct pd_error *ret_error);

/* How the model writes calls ("hermes") and what opens a thought of its ("<think>"), as its template shows; NULL = it has none. Live as long as
 * the model. */
struct pd_dialect_words {
    const char *tools, *reasoning;
};
struct pd_dialect_words pd_dialect_words(const struct pn_model *m);

/* The model that a request names, or without a name the only one that serves: *ret, to give back with pn_served_put. False with the
 * error. */
bool pd_text_model(struct pd_app *app, const char *name, struct pn_served **ret, struct pd_error *ret_error);

/* The length of the UTF-8 character that s [n >= 1] begins with, 0 when it begins with none. */
size_t pd_utf8_char(const char *s, size_t n);
bool pd_utf8_ok(const char *s, size_t n);
/* Appends s [n] with U+FFFD for each byte that belongs to no character: JSON cannot have it. */
void pd_utf8_clean(const char *s, size_t n, struct fo_buf *out);
