/* Jinja as chat templates use it (the language of Jinja2 3.1 with trim_blocks, lstrip_blocks, loop controls and HuggingFace's
 * additions): lexer, parser, evaluator. A template is parsed once, at load, and rendered for every request. Bounded: nesting,
 * steps, output bytes and region bytes have caps, so that no template or conversation can hang or fill the process. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;
struct fo_region;
struct pn_value;
struct pn_jinja;

/* Parses. The text is copied. FO_EFORMAT with line, column and the expression at fault; FO_EUNSUPPORTED for syntax that Jinja has
 * and this build lacks. Immutable after parse: any thread. */
int pn_jinja_parse(const char *text, size_t len, struct pn_jinja **ret, struct fo_err *e);
void pn_jinja_free(struct pn_jinja *j); /* NULL is allowed */

struct pn_jinja_limits {
    size_t output_bytes, region_bytes;
    uint64_t steps;
};

/* What a render gives: text and, for each byte, 0 = written by the template, 1 = by a user. Heap; free both with pn_render_done. */
struct pn_render {
    char *text;    /* [len + 1] */
    uint8_t *user; /* [len] */
    size_t len;
};
void pn_render_done(struct pn_render *r);

enum { PN_RAISED_BYTES = 4096 }; /* of raise_exception's text; what is longer is cut there and ends in "..." */

/* Renders with `vars`, a dict of the template's global variables made in `region`. Errors: FO_EINVAL with the text of
 * raise_exception(...) alone as the message (it is meant for the user), which ends in "..." where it does not fit; `raised`, when not
 * NULL, gets all PN_RAISED_BYTES of it, newlines and all; FO_EFORMAT for a Python-like error (undefined attribute,
 * wrong type) with the template's line; FO_ELIMIT when a cap is passed. `limits` NULL = defaults (4 MiB output, 64 MiB region,
 * 50 million steps). */
int pn_jinja_render(const struct pn_jinja *j, struct fo_region *region, struct pn_value *vars, const struct pn_jinja_limits *limits,
                    struct fo_buf *raised, struct pn_render *ret, struct fo_err *e);
