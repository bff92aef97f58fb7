/* The regular expressions of pre-tokenizer rules, compiled to one deterministic automaton over classes of code points: a match
 * costs one table look-up per character, whatever the expression. Internal to the tokenizers.
 *
 * Syntax: literals, . * + ? {n} {n,} {n,m}, |, (...) and (?:...), (?i:...) for ASCII letters of either case, [...] with ranges, ^ and
 * [A&&[B]], \s \S \d \D \w \W \r \n \t \uXXXX \xXX \x{X}, \p{X} and \P{X} for a general category or its first letter, (?=C) and
 * (?!C) where C is one character or class, and $ (the end of the text or of a line). Alternatives are ordered as in Perl: the first
 * that matches wins, not the longest. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_re;

/* Where `skip` (may be NULL) matches and `re` does not, that text is passed over as unmatched in one go. FO_EUNSUPPORTED for an
 * expression outside the syntax, or one whose automaton is too large or would take long to make; FO_ENOMEM.
 * Hostile expressions are safe. Immutable; free with fo_re_free. */
int fo_re_compile(const char *re, const char *skip, struct fo_re **ret, struct fo_err *e);
void fo_re_free(struct fo_re *re); /* NULL is allowed */
size_t fo_re_bytes(const struct fo_re *re); /* of heap; 0 of NULL */

/* From now on (before the first match) each byte of a text is one character, the one that char_of gives. */
void fo_re_map_bytes(struct fo_re *re, uint32_t (*char_of)(unsigned byte));

/* The match that starts at s[0], in bytes; 0 = none. *ret_skip: bytes of unmatched text to pass over when there is none (at least
 * the first character). *ret_read: bytes looked at. n >= 1. Invalid UTF-8 counts as an unassigned character. */
size_t fo_re_match(const struct fo_re *re, const char *s, size_t n, size_t *ret_skip, size_t *ret_read);
