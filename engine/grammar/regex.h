/* Regular expressions into rules. Membership in a language is all that counts: greedy and lazy are the same, and groups capture nothing.
 *
 * Literals; escapes \t \n \r \f \v \0 \xHH \uHHHH \u{H...} \UHHHHHHHH and \ in front of punctuation; \d \w \s and \D \W \S, which mean ASCII
 * digits, word characters and blanks and what is none of them; `.`, any character but a line feed; classes; alternatives; groups, (?:...) and
 * named ones; * + ? {m} {m,} {m,n} {,n}, each with a ? behind it or not; ^ where an alternative begins and $ where one ends. Refused by name:
 * look-around, back-references, \b, flags, atomic groups, possessive counts, \p. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/ir.h"

struct fo_err;

/* The grammar of the texts that match from start to end, with or without ^ and $. FO_EINVAL, FO_EFORMAT, FO_EUNSUPPORTED (line and col are
 * the place), FO_ELIMIT, FO_ENOMEM. */
int pn_regex_build(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e);
