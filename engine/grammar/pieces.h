/* Grammars that are put together by the engine itself: parts in the notation of others (JSON Schemas, any JSON object, bare text) with literals
 * around them, control tokens included. A grammar of this kind is text like any other, so that equal ones are compiled once.
 *
 * Documents (JSON Schemas) stand in front, then one node, each node before its parts:
 *
 *     struct fo_buf b;
 *     pn_piece_document(&b, schema, n, '\0');                   // document 0
 *     pn_piece_seq(&b, 3);
 *     pn_piece_literal(&b, "<tool_call>\n", 12);
 *     pn_piece_schema(&b, &(struct pn_piece_schema){ .document = 0, .form = PN_SCHEMA_OBJECT });
 *     pn_piece_literal(&b, "\n</tool_call>", 13);
 *
 * Whoever builds looks once, at b.failed. No request can say this notation; it is checked all the same. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/schema.h"

struct fo_buf;
struct fo_err;
struct pn_ir;

enum { PN_PIECES_MAX_DOCUMENTS = 512, PN_PIECES_MAX_DEPTH = 32 };

/* A JSON Schema of its own; `escaped` as pn_schema_open has it. Equal ones are read once. */
void pn_piece_document(struct fo_buf *b, const char *json, size_t n, char escaped);

void pn_piece_literal(struct fo_buf *b, const char *bytes, size_t n); /* PN_MARK (dialect.h) and a control token's text behind it are that token */
void pn_piece_seq(struct fo_buf *b, uint32_t n); /* of the n nodes that follow; */
void pn_piece_alt(struct fo_buf *b, uint32_t n); /* one of them */
void pn_piece_repeat(struct fo_buf *b, uint32_t min, uint32_t max); /* of the node that follows; max PN_IR_INFINITE */
void pn_piece_list(struct fo_buf *b); /* of the node that follows, one or more, and between them the node behind it */
void pn_piece_object(struct fo_buf *b); /* any JSON object, as PN_GRAMMAR_JSON_OBJECT has it */
void pn_piece_blank(struct fo_buf *b);  /* what may stand between two tokens of that: nothing, a space, or a line break and some indent */

/* As pn_schema_part. */
struct pn_piece_schema {
    uint32_t document; /* the how manieth, from 0 */
    enum pn_schema_form form;
    const char *property;   /* NULL = the whole */
    const char *mark, *end; /* of PN_SCHEMA_TEXT; NULL = "" */
};
void pn_piece_schema(struct fo_buf *b, const struct pn_piece_schema *s);

/* Writes text[0..len) into ir, its root included. FO_EINVAL: it is not of this notation; else as the parts fail. */
int pn_pieces_build(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e);
