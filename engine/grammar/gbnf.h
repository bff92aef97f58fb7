/* GBNF, the notation of llama.cpp's grammars, into rules. */
#pragma once
#include <stddef.h>

struct fo_err;
struct pn_ir;

/* text[0..len): rules `name ::= alternatives`, of which `root` is where an answer begins. Literals in double quotes, classes in brackets
 * (ranges, ^ negates), `.`, groups, * + ? {m} {m,} {m,n}, comments from # on, escapes \n \r \t \xHH \uHHHH \UHHHHHHHH (all of them code
 * points) and \ in front of any punctuation. A rule ends with its line but inside a group, behind `::=` or `|`, and where the next line
 * begins with `|`. Errors have line and column: FO_EINVAL, FO_EFORMAT (not UTF-8), FO_EUNSUPPORTED (tokens in angle brackets), FO_ELIMIT,
 * FO_ENOMEM. */
int pn_gbnf_build(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e);
