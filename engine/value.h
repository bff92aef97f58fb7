/* Values of the template language: null, booleans, integers, floats, strings, lists, dicts (in insertion order), made in a region
 * and freed with it. Strings know who wrote them: each byte is the template's or a user's, and every string operation keeps that,
 * so that a control token is never made out of user text (see foundry/tok.h). Not thread-safe: one render, one owner. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_region;

enum pn_value_kind { PN_V_UNDEFINED, PN_V_NULL, PN_V_BOOL, PN_V_INT, PN_V_FLOAT, PN_V_STR, PN_V_LIST, PN_V_DICT, PN_V_CALLABLE };

struct pn_value; /* opaque here; engine/value.c and the jinja files know its inside */

/* Parses JSON text (any top-level value) into values. User text: all string bytes are marked as a user's. Depth at most 64.
 * FO_EFORMAT with line and column; FO_ENOMEM/FO_ELIMIT when the region's cap is passed. */
int pn_value_from_json(struct fo_region *r, const char *json, size_t len, struct pn_value **ret, struct fo_err *e);

enum pn_value_kind pn_value_kind(const struct pn_value *v);
