/* Grammars for requests: what an answer may be, as text in one of several notations, compiled once and then followed token by token.
 *
 * Nothing is ever let through that the grammar does not allow. Where something cannot be decided (a limit of memory or work, a vocabulary
 * that lacks a byte) the request fails and says why.
 *
 * A compiled grammar belongs to one vocabulary and is shared by all requests that give the same text: it is immutable but for the masks that it
 * remembers, which have their own lock. A run is one answer's way through it and belongs to one request. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;
struct fo_tok;
struct pn_grammar;     /* counted references */
struct pn_grammar_run;
struct pn_grammars;    /* those of one model */

enum pn_grammar_kind {
    PN_GRAMMAR_GBNF,        /* grammar/gbnf.h */
    PN_GRAMMAR_REGEX,       /* grammar/regex.h: the whole answer matches */
    PN_GRAMMAR_CHOICE,      /* one of several texts, each behind its length in four bytes of the host's order */
    PN_GRAMMAR_JSON_OBJECT, /* any JSON object; its text is empty */
    PN_GRAMMAR_JSON_SCHEMA, /* grammar/schema.h: JSON that the schema accepts */
    PN_GRAMMAR_PIECES,      /* grammar/pieces.h: put together by the engine, never a request's own text */
    PN_N_GRAMMARS
};

enum {
    PN_GRAMMAR_MAX_TEXT = 1 << 20,
    PN_GRAMMARS_KEPT = 64,             /* compiled grammars that are kept beside those in use, */
    PN_GRAMMARS_KEPT_BYTES = 64 << 20 /* and what they and their masks may take together */
};

/* t is the model's, or NULL for one that has no tokenizer (then every grammar is refused); it outlives all. The trie over its tokens is made
 * with the first grammar. Any thread. */
int pn_grammars_new(const struct fo_tok *t, struct pn_grammars **ret, struct fo_err *e);
void pn_grammars_free(struct pn_grammars *all); /* NULL is allowed. Grammars that are still held live on */

/* The grammar of text[0..len), compiled now or found; the caller's reference is given back with pn_grammar_put. Whoever comes while another
 * compiles the same text waits for it. FO_EINVAL: it does not parse or makes no sense (line and col, which the message says too);
 * FO_EUNSUPPORTED: it asks for what this build lacks, or the model has no tokenizer; FO_ELIMIT, FO_ENOMEM. */
int pn_grammars_get(struct pn_grammars *all, enum pn_grammar_kind kind, const char *text, size_t len, struct pn_grammar **ret, struct fo_err *e);
/* The same for a grammar whose text (PN_GRAMMAR_PIECES) is written for the request and costs more than finding it: `key` [n_key] says all that it
 * depends on, and `write` appends it to *ret, once for each key that is kept. Its errors are told too; FO_ELIMIT also where the text is too big. */
int pn_grammars_made(struct pn_grammars *all, const char *key, size_t n_key, int (*write)(void *ctx, struct fo_buf *ret, struct fo_err *e), void *ctx,
                     struct pn_grammar **ret, struct fo_err *e);
struct pn_grammar *pn_grammar_ref(struct pn_grammar *g);
void pn_grammar_put(struct pn_grammar *g); /* NULL is allowed */

/* What all grammars of a model took so far, and what those that are kept take now. Any thread; waits for no compilation. */
struct pn_grammars_info {
    uint64_t compiled, found; /* asked for and made, or there already */
    double compile_s;
    size_t bytes;             /* programs and masks that are kept, and the trie of the vocabulary */
};
void pn_grammars_info(struct pn_grammars *all, struct pn_grammars_info *ret);

/* What was spent on it. Any thread. */
struct pn_grammar_info {
    double compile_ms;
    size_t program_bytes, masks_bytes, tokens_bytes; /* tokens: shared by all grammars of the model */
    uint64_t mask_hits, mask_walks;
};
void pn_grammar_info(struct pn_grammar *g, struct pn_grammar_info *ret);

/* An answer from its start; takes a reference. */
int pn_grammar_run_new(struct pn_grammar *g, struct pn_grammar_run **ret, struct fo_err *e);
void pn_grammar_run_free(struct pn_grammar_run *r); /* NULL is allowed */

/* logits [n_vocab]: minus infinity for every token that must not come now. Tokens that end a generation stay where the answer may end, and
 * with ignore_end not even there. *ret_over: nothing may come, not even such a token, and the answer may end: it is over.
 * FO_EUNSUPPORTED: the answer must go on, but no token has any of the bytes that may come; FO_ELIMIT, FO_ENOMEM. */
int pn_grammar_run_mask(struct pn_grammar_run *r, bool ignore_end, float *logits, uint32_t n_vocab, bool *ret_over, struct fo_err *e);

/* logits [n_vocab]: minus infinity for every token that ends a generation, for an answer whose grammar has not begun yet. */
void pn_grammar_run_ban_ends(const struct pn_grammar_run *r, float *logits, uint32_t n_vocab);

/* A token that was chosen of such logits and ends nothing. *ret_over: the answer is whole and nothing may follow. FO_EINVAL when the grammar
 * does not allow it (our own bug, or nesting deeper than is followed); FO_ELIMIT, FO_ENOMEM. */
int pn_grammar_run_accept(struct pn_grammar_run *r, int32_t id, bool *ret_over, struct fo_err *e);

/* How many of ids[0..n) could come one after the other as things stand; the run stays where it is. Where it cannot tell, fewer. */
uint32_t pn_grammar_run_allows(struct pn_grammar_run *r, const int32_t *ids, uint32_t n);

/* The same byte by byte, for tests and tools: false in *ret_alive when the text so far is the beginning of nothing. */
int pn_grammar_run_bytes(struct pn_grammar_run *r, const char *bytes, size_t n, bool *ret_alive, struct fo_err *e);
bool pn_grammar_run_may_end(const struct pn_grammar_run *r);
