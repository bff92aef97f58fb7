/* JSON Schema (draft 2020-12, and what pydantic and zod emit) as a grammar: the texts of it are the instances that the schema accepts, as
 * JSON.
 *
 * How the JSON looks: properties stand in the schema's order, those of allOf and $ref behind the schema's own, then those that are only
 * required, then any additional ones; one space may stand behind ':' and ',', and there is no other whitespace. Strings are any JSON
 * spelling of their characters. Numbers have no exponent where anything is asked of them, integers no fraction; what enum and const name is
 * spelled in its shortest form.
 *
 * What a keyword does is a row of one table (pn_schema_row); a keyword without a row is an annotation. What cannot be held exactly is
 * refused: nothing that was asked for is dropped in silence. The one thing a grammar of this kind cannot see is that an additional property
 * comes twice. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_ir;

enum {
    PN_SCHEMA_MAX_BYTES = 1 << 20, /* of the schema's text */
    PN_SCHEMA_POINTER_BYTES = 256  /* of the place in it that an error is about, its end included */
};

/* Writes the schema json[0..len) into ir, its root included. On failure the JSON pointer of what is at fault stands in
 * pointer ("" = the whole schema; cut where it is longer). FO_EFORMAT: no JSON, with line and column. FO_EINVAL: no schema.
 * FO_EUNSUPPORTED: a keyword that this cannot hold it to; the message names it. FO_ELIMIT: too big, too deep, too much work. FO_ENOMEM.
 * Needs at most 64 MiB beside ir, all given back. */
int pn_schema_compile(const char *json, size_t len, struct pn_ir *ir, char pointer[PN_SCHEMA_POINTER_BYTES], struct fo_err *e);

/* The same as parts of a grammar: rules of a schema and of its properties, as many as are asked for, are written into ir when it is closed.
 * One owner; several may be open over one ir. */
struct pn_schema;

/* escaped: this character stands in no string of such JSON as it is, only as \u and four digits; 0 = none. *work counts over all schemas that are
 * given it, so that they do as much together as one may do alone; it begins with 0. Errors of parsing, and FO_ENOMEM. */
int pn_schema_open(const char *json, size_t len, char escaped, struct pn_ir *ir, uint64_t *work, struct pn_schema **ret, struct fo_err *e);

enum pn_schema_form {
    PN_SCHEMA_JSON,   /* any value that it accepts */
    PN_SCHEMA_OBJECT, /* any object that it accepts */
    PN_SCHEMA_BEGUN,  /* the same where its brace is written before it is held to anything: behind that may stand a space, or a line break and indent */
    PN_SCHEMA_TEXT    /* any text that it accepts, bare: without quotes and escapes */
};
/* The rule of what the schema of properties/`property` accepts, or with NULL the whole one; defined once it is closed. 0 when there is no such
 * property, or after a failure. Behind a PN_SCHEMA_TEXT comes `end`, within the rule: the text has no `mark`, and the one in `end` is the first
 * behind its begin. Both are "" where the text ends by itself; bytes that are no UTF-8 are no part of any text. */
uint32_t pn_schema_part(struct pn_schema *s, const char *property, enum pn_schema_form form, const char *mark, const char *end);

/* Frees it, and before that writes all that was asked for when *e has no error yet. Errors as above; `pointer` as above. */
int pn_schema_close(struct pn_schema *s, char pointer[PN_SCHEMA_POINTER_BYTES], struct fo_err *e);

enum pn_schema_use { PN_SCHEMA_ENFORCED, PN_SCHEMA_ANNOTATION, PN_SCHEMA_REFUSED };

/* What a keyword does, for the reference (docs/structured-output.md). `note`: how far, or why not. */
struct pn_schema_row {
    const char *keyword;
    enum pn_schema_use use;
    const char *note;
};
const struct pn_schema_row *pn_schema_row(size_t i); /* NULL past the last */

/* The formats that are enforced; all others are annotations. NULL past the last. */
const char *pn_schema_format_name(size_t i);
