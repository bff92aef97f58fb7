/* Merging: both BPE algorithms join neighbouring symbols of a word, always the pair of the best rank, the leftmost among equals,
 * until no pair has a rank. A symbol is a 32-bit value whose meaning is the algorithm's (an id; a length); the algorithm says how
 * many bytes of the word a symbol covers and what a pair makes. Included by the algorithms so that those two are inlined.
 *
 * Short words: arrays on the stack, a scan for the best pair each time.
 * Long words: one struct per byte of the word, of which those at symbols' first bytes count; the one at a symbol's last byte
 * repeats its value, as a boundary tag, so that the neighbour on either side is found by its length. Pairs wait in a list per
 * rank (tok_merge.c), so that a merge costs a handful of steps, however long the word is. */
#pragma once
#include "foundry/tok_int.h"

enum { FO_MERGE_SHORT = 24 };
#define FO_MERGE_NONE UINT32_MAX

struct fo_merge_short {
    uint32_t sym[FO_MERGE_SHORT], rank[FO_MERGE_SHORT], made[FO_MERGE_SHORT]; /* rank and made: of the pair (i, i + 1) */
    uint32_t at[FO_MERGE_SHORT + 1];                                          /* first byte */
    unsigned n;
};

/* The rank of a pair, FO_MERGE_NONE when it does not merge; s is its text, n its length. */
typedef uint32_t fo_merge_pair_fn(const struct fo_tok *t, uint32_t a, uint32_t b, const char *s, size_t n, uint32_t *ret_made);
typedef size_t fo_merge_len_fn(const struct fo_tok *t, uint32_t sym);

/* m->sym, m->at (with the end as at[n]) and m->n are filled. */
static inline __attribute__((always_inline)) void fo_merge_few(const struct fo_tok *t, struct fo_merge_short *m, const char *s,
                                                               fo_merge_pair_fn *pair) {
    unsigned n = m->n;
    for (unsigned i = 0; i + 1 < n; i++) m->rank[i] = pair(t, m->sym[i], m->sym[i + 1], s + m->at[i], m->at[i + 2] - m->at[i], &m->made[i]);
    while (n > 1) {
        uint32_t best = FO_MERGE_NONE;
        unsigned at = 0;
        for (unsigned i = 0; i + 1 < n; i++) {
            if (m->rank[i] < best) best = m->rank[i], at = i;
        }
        if (best == FO_MERGE_NONE) break;
        m->sym[at] = m->made[at];
        n--;
        for (unsigned i = at + 1; i < n; i++) {
            m->sym[i] = m->sym[i + 1];
            m->at[i] = m->at[i + 1];
            m->rank[i - 1] = m->rank[i];
            m->made[i - 1] = m->made[i];
        }
        m->at[n] = m->at[n + 1];
        if (at) m->rank[at - 1] = pair(t, m->sym[at - 1], m->sym[at], s + m->at[at - 1], m->at[at + 1] - m->at[at - 1], &m->made[at - 1]);
        if (at + 1 < n) m->rank[at] = pair(t, m->sym[at], m->sym[at + 1], s + m->at[at], m->at[at + 2] - m->at[at], &m->made[at]);
    }
    m->n = n;
}

/* At a symbol's first byte; `value` at its last byte too. */
struct fo_merge_sym {
    uint32_t value;
    uint32_t rank, made; /* of the pair that starts here; rank = FO_MERGE_NONE: it waits in no list */
    uint32_t next, prev; /* places in the list of its rank, plus one; 0 = none */
};

/* Lists of pairs by rank, each in the order of the text. Between words all are empty. */
struct fo_merge_list {
    uint32_t head, tail; /* place plus one */
};
struct fo_merge_queue {
    struct fo_merge_list *list; /* [n_ranks] */
    uint64_t *used[4];          /* bit i of used[0]: list i is not empty; of used[k]: word i of used[k - 1] is not zero */
    uint64_t *messy;            /* bit i: list i is out of order */
    size_t n_ranks, n_top;
};

/* Room for words of n bytes in w->sym and for all ranks in w->queue. FO_ENOMEM. */
int fo_merge_room(struct fo_tok_work *w, size_t n);
void fo_merge_done(struct fo_tok_work *w);
void fo_merge_add(struct fo_tok_work *w, size_t place, uint32_t rank, uint32_t made);
void fo_merge_drop(struct fo_tok_work *w, size_t place); /* nothing when it waits in no list */
/* Takes the best pair out of its list; false when there is none. */
bool fo_merge_take(struct fo_tok_work *w, size_t *ret_place);

/* Over the values in w->sym (filled by the caller for the word s[0..len), boundary tags included). */
static inline __attribute__((always_inline)) void fo_merge_many(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t len,
                                                                fo_merge_pair_fn *pair, fo_merge_len_fn *length) {
    struct fo_merge_sym *sym = w->sym;
    uint32_t rank, made;
    for (size_t i = 0, next; i < len; i = next) {
        next = i + length(t, sym[i].value);
        sym[i].rank = FO_MERGE_NONE;
        if (next == len) break;
        rank = pair(t, sym[i].value, sym[next].value, s + i, next + length(t, sym[next].value) - i, &made);
        if (rank != FO_MERGE_NONE) fo_merge_add(w, i, rank, made);
    }
    for (size_t i; fo_merge_take(w, &i);) {
        size_t right = i + length(t, sym[i].value), end = right + length(t, sym[right].value);
        uint32_t value = sym[i].made;
        fo_merge_drop(w, right);
        sym[i].value = sym[end - 1].value = value;
        if (i) {
            size_t left = i - length(t, sym[i - 1].value);
            fo_merge_drop(w, left);
            rank = pair(t, sym[left].value, value, s + left, end - left, &made);
            if (rank != FO_MERGE_NONE) fo_merge_add(w, left, rank, made);
        }
        if (end < len) {
            rank = pair(t, value, sym[end].value, s + i, end + length(t, sym[end].value) - i, &made);
            if (rank != FO_MERGE_NONE) fo_merge_add(w, i, rank, made);
        }
    }
}
