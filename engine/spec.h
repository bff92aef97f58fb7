/* Drafts for speculative decoding, without a second model: the tokens that followed where the text last was as it is now (Saxena,
 * "Prompt Lookup Decoding"; Leviathan et al., arXiv 2211.17192, for what a step gives that checks several tokens at once). A draft is only
 * ever a guess at what will be chosen: each of its rows is chosen from as if it had been computed alone, so the text is the same.
 *
 * pn_spec is one answer's: what is kept of a text is never another's. pn_spec_costs is a model's: what steps of so many rows take. Pure, but
 * for memory; one owner each, the worker. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_spec;

enum {
    PN_DRAFT_MAX = 8,          /* tokens of a draft, and rows of a step for the drafts of all answers together */
    PN_SPEC_MAX_ROWS = 1 << 8, /* steps whose cost is remembered */
    PN_SPEC_KINDS = 6          /* lengths of a repeated run that are told apart */
};

/* Whether drafts are made. */
enum pn_speculation {
    PN_SPECULATION_AUTO, /* where they pay, by what was measured */
    PN_SPECULATION_OFF,
    PN_SPECULATION_ALWAYS /* wherever there is one: for tests and measurements */
};

/* An empty text that may grow to n_tokens. FO_ENOMEM. */
int pn_spec_new(uint32_t n_tokens, struct pn_spec **ret, struct fo_err *e);
void pn_spec_free(struct pn_spec *s); /* NULL is allowed */
/* The most memory that one takes. */
size_t pn_spec_bytes(uint32_t n_tokens);

/* n more tokens that nobody guesses at: the prompt. Past the n_tokens it was made for they are left out, and nothing is guessed any more. */
void pn_spec_prompt(struct pn_spec *s, const int32_t *ids, uint32_t n);
/* One more token of the answer; what was guessed for its place, drafted or not, is judged by it. */
void pn_spec_add(struct pn_spec *s, int32_t id);

/* At most cap (up to PN_DRAFT_MAX) tokens that may follow, and for each the odds that it and all before it are what will be chosen, as far
 * as this text has shown: falling, 0 .. 1. Returns how many; 0 = nothing like it came before. */
uint32_t pn_spec_draft(const struct pn_spec *s, uint32_t cap, int32_t *ret_ids, float *ret_odds);

/* What a step of n rows took lately: [n]; 0 = not known. Fields are spec.c's. */
struct pn_spec_costs {
    float ms[PN_SPEC_MAX_ROWS + 1];
    uint32_t seen[PN_SPEC_MAX_ROWS + 1]; /* the step at which it was last measured */
    uint32_t step;
};
/* A step of n rows took ms. */
void pn_spec_cost_add(struct pn_spec_costs *c, uint32_t n, double ms);
/* What one of n rows would take: measured, or guessed from those that were. 0 = nothing was measured. */
double pn_spec_cost(const struct pn_spec_costs *c, uint32_t n);

/* How many drafted tokens are worth their rows in a step of n_answers that decode: odds[n] falling, of all their drafts. 0 unless what the
 * step gives per second is clearly more than without. */
uint32_t pn_spec_worth(const struct pn_spec_costs *c, uint32_t n_answers, const float *odds, uint32_t n);
