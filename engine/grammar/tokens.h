/* The tokens of a vocabulary as bytes, in the order in which a grammar is held against all of them at once: a trie, so that what many tokens
 * begin with is walked once. Made once for a model; immutable: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct fo_tok;

/* In depth-first order: a node's first child, if any, is the next one, and `skip` the next one that is not below it. */
struct pn_token_node {
    uint32_t skip;
    uint32_t id;     /* of the token that ends here, or n_vocab rounded up to a multiple of 64, whose bit nobody reads: no branch for it */
    uint32_t below;  /* into `below`: the bytes that stand below here, this one not included; 0 = few, or not worth it */
    uint16_t depth;  /* bytes up to here, this one included */
    uint8_t byte;
};

struct pn_tokens {
    int32_t n_vocab;
    uint32_t n_nodes;
    struct pn_token_node *nodes; /* [n_nodes] */
    uint64_t (*below)[4];        /* [n_below], the first is nothing */
    uint32_t n_below;
    int32_t *ids;                /* [n_ids] tokens that have bytes, sorted by them; a control token's are PN_MARK (dialect.h) and its text */
    int32_t (*twins)[2];         /* [n_twins] a token and an earlier one of the same bytes, which has the node */
    uint32_t n_twins;
    int32_t *ends;               /* [n_ends] those that end a generation */
    uint32_t n_ids, n_ends;
    uint32_t longest;            /* bytes of the longest token */
    uint32_t *text_at;           /* [n_vocab + 1] a token's bytes: [text_at[id] .. text_at[id + 1]) of `text`; none for what no grammar allows */
    char *text;
    size_t bytes;                /* of memory, all of it */
};

/* FO_ENOMEM. Not needed any more afterwards: t. */
int pn_tokens_new(const struct fo_tok *t, struct pn_tokens **ret, struct fo_err *e);
void pn_tokens_free(struct pn_tokens *v); /* NULL is allowed */
