/* Merging: both BPE algorithms join neighbouring symbols of a word, always the pair of the best rank, the leftmost among equals,
 * until no pair has a rank. A symbol is a 32-bit value whose meaning is the algorithm's (an id; a length); the algorithm says how
 * many bytes of the word a symbol covers and what a pair makes. Included by the algorithms so that those two are inlined.
 *
 * Short words: arrays on the stack, a scan for the best pair each time.
 * Windows of up to FO_MERGE_WINDOW bytes: the same with neighbours linked, and the best pair of each 16 kept.
 * Longer words: window after window, glued where a token ends well before the end of a window. Such a boundary is right for the whole
 * word when no merge crosses it, and whether one does depends on the two tokens beside it alone: the pairs within them are merged in the
 * same order whatever stands around, since always the best of all is taken. So the boundary stands if the two, merged by themselves,
 * stay two; and they do if the window before already had the same two side by side. Windows that come again are copied.
 * Where that fails (tokens longer than a window, or texts made for it), the whole word at once: one struct per byte of the word, of which those at symbols' first bytes count; the one at a symbol's last byte
 * repeats its value, as a boundary tag, so that the neighbour on either side is found by its length. Pairs wait in a list per
 * rank (tok_merge.c), so that a merge costs a handful of steps, however long the word is. */
#pragma once
#include "foundry/tok_int.h"

enum { FO_MERGE_SHORT = 24, FO_MERGE_WINDOW = 512, FO_MERGE_BLOCK = 16, FO_MERGE_MARGIN = 64, FO_MERGE_SEEN = 64 };
#define FO_MERGE_NONE UINT32_MAX

struct fo_merge_short {
    uint32_t sym[FO_MERGE_SHORT], rank[FO_MERGE_SHORT], made[FO_MERGE_SHORT]; /* rank and made: of the pair (i, i + 1) */
    uint16_t at[FO_MERGE_SHORT + 1];                                          /* first byte */
    unsigned n;
};

/* The rank of a pair, FO_MERGE_NONE when it does not merge; s is its text, n its length. */
typedef uint32_t fo_merge_pair_fn(const struct fo_tok *t, uint32_t a, uint32_t b, const char *s, size_t n, uint32_t *ret_made);
typedef size_t fo_merge_len_fn(const struct fo_tok *t, uint32_t sym);

/* m->sym, m->at (with the end as at[n]) and m->n are filled. */
static inline __attribute__((always_inline)) void fo_merge_few(const struct fo_tok *t, struct fo_merge_short *m, const char *s,
                                                               fo_merge_pair_fn *first_pair, fo_merge_pair_fn *pair) {
    unsigned n = m->n;
    for (unsigned i = 0; i + 1 < n; i++) m->rank[i] = first_pair(t, m->sym[i], m->sym[i + 1], s + m->at[i], m->at[i + 2] - m->at[i], &m->made[i]);
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

/* By index of the first symbols, of which those that next links are left: every symbol is named by the first of those it covers. */
struct fo_merge_window {
    uint32_t sym[FO_MERGE_WINDOW], rank[FO_MERGE_WINDOW], made[FO_MERGE_WINDOW]; /* rank and made: of the pair that starts here */
    uint32_t least[FO_MERGE_WINDOW / FO_MERGE_BLOCK];                            /* rank in a block */
    uint16_t next[FO_MERGE_WINDOW + 1], prev[FO_MERGE_WINDOW + 1];
    uint16_t at[FO_MERGE_WINDOW + 1]; /* first byte; at[n] is the end */
    unsigned n;                       /* first symbols */
};

static inline uint32_t fo_merge_least(const uint32_t *rank, unsigned n) {
    uint32_t best = rank[0];
    for (unsigned i = 1; i < n; i++) best = rank[i] < best ? rank[i] : best;
    return best;
}

/* m->sym, m->at and m->n are filled; pair is called for neighbours, and first_pair for those that are both unmerged. */
static inline __attribute__((always_inline)) void fo_merge_some(const struct fo_tok *t, struct fo_merge_window *m, const char *s,
                                                                fo_merge_pair_fn *first_pair, fo_merge_pair_fn *pair) {
    unsigned n = m->n, n_blocks = (n + FO_MERGE_BLOCK - 1) / FO_MERGE_BLOCK;
    for (unsigned i = 0; i < n; i++) {
        m->next[i] = (uint16_t)(i + 1);
        m->prev[i + 1] = (uint16_t)i;
        m->rank[i] = i + 1 == n ? FO_MERGE_NONE : first_pair(t, m->sym[i], m->sym[i + 1], s + m->at[i], (size_t)(m->at[i + 2] - m->at[i]), &m->made[i]);
    }
    for (unsigned i = n; i < n_blocks * FO_MERGE_BLOCK; i++) m->rank[i] = FO_MERGE_NONE;
    for (unsigned b = 0; b < n_blocks; b++) m->least[b] = fo_merge_least(m->rank + b * FO_MERGE_BLOCK, FO_MERGE_BLOCK);
    for (;;) {
        uint32_t best = fo_merge_least(m->least, n_blocks);
        if (best == FO_MERGE_NONE) return;
        unsigned b = 0, i, right, end, left;
        while (m->least[b] != best) b++;
        for (i = b * FO_MERGE_BLOCK; m->rank[i] != best;) i++;
        right = m->next[i];
        end = m->next[right];
        m->sym[i] = m->made[i];
        m->rank[right] = FO_MERGE_NONE;
        m->next[i] = (uint16_t)end;
        m->prev[end] = (uint16_t)i;
        m->rank[i] = end == n ? FO_MERGE_NONE : pair(t, m->sym[i], m->sym[end], s + m->at[i], (size_t)(m->at[m->next[end]] - m->at[i]), &m->made[i]);
        left = i ? m->prev[i] : i;
        if (i) m->rank[left] = pair(t, m->sym[left], m->sym[i], s + m->at[left], (size_t)(m->at[end] - m->at[left]), &m->made[left]);
        m->least[b] = fo_merge_least(m->rank + b * FO_MERGE_BLOCK, FO_MERGE_BLOCK);
        if (right / FO_MERGE_BLOCK != b) m->least[right / FO_MERGE_BLOCK] = fo_merge_least(m->rank + right / FO_MERGE_BLOCK * FO_MERGE_BLOCK, FO_MERGE_BLOCK);
        if (left / FO_MERGE_BLOCK != b) m->least[left / FO_MERGE_BLOCK] = fo_merge_least(m->rank + left / FO_MERGE_BLOCK * FO_MERGE_BLOCK, FO_MERGE_BLOCK);
    }
}

/* What a full window became, up to the boundary where the next one starts. */
struct fo_merge_seen {
    const char *s; /* [FO_MERGE_WINDOW]; NULL = free */
    size_t ids_at, n_ids;
    uint32_t first, expected; /* symbols: the first, and the one behind the boundary */
    uint16_t last_at, end;    /* bytes: the last symbol before the boundary, the boundary */
};

/* Fills m->sym, m->at and m->n for s[0..n), n at most FO_MERGE_WINDOW. */
typedef void fo_merge_fill_fn(const struct fo_tok *t, struct fo_merge_window *m, const char *s, size_t n);
/* Appends the ids of a symbol with that text. */
typedef int fo_merge_push_fn(const struct fo_tok *t, struct fo_tok_work *w, uint32_t sym, const char *s, size_t n);

/* The slot of a full window; NULL when there is no memory for them. */
struct fo_merge_seen *fo_merge_seen_slot(struct fo_tok_work *w, const char *s);

/* A word in windows. *ret_done = false: it cannot be done that way, and w->ids holds nothing of it. */
static inline __attribute__((always_inline)) int fo_merge_windows(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n,
                                                                  fo_merge_fill_fn *fill, fo_merge_pair_fn *first_pair,
                                                                  fo_merge_pair_fn *pair, fo_merge_push_fn *push, bool *ret_done) {
    struct fo_merge_window m;
    size_t before = w->n, last_at = 0;
    uint32_t expected = 0;
    int rc = 0;
    *ret_done = false;
    for (size_t pos = 0; pos < n && !rc;) {
        size_t len = n - pos < FO_MERGE_WINDOW ? n - pos : FO_MERGE_WINDOW, first_len;
        struct fo_merge_seen *seen = len == FO_MERGE_WINDOW ? fo_merge_seen_slot(w, s + pos) : NULL;
        bool hit = seen && seen->s && !memcmp(seen->s, s + pos, len) && len < n - pos;
        if (!hit) {
            fill(t, &m, s + pos, len);
            fo_merge_some(t, &m, s + pos, first_pair, pair);
        }
        if (pos && (hit ? seen->first : m.sym[0]) != expected) { /* the two beside the boundary, by themselves */
            if (hit) {
                fill(t, &m, s + pos, len);
                fo_merge_some(t, &m, s + pos, first_pair, pair);
                hit = false;
            }
            first_len = m.at[m.next[0]];
            if (pos - last_at + first_len > FO_MERGE_WINDOW) break;
            struct fo_merge_window two;
            fill(t, &two, s + last_at, pos - last_at + first_len);
            fo_merge_some(t, &two, s + last_at, first_pair, pair);
            if (two.at[two.next[0]] != pos - last_at || two.next[two.next[0]] != two.n) break;
        }
        if (hit) {
            for (size_t i = 0; i < seen->n_ids && !rc; i++) rc = fo_tok_push(w, w->ids[seen->ids_at + i]);
            last_at = pos + seen->last_at;
            pos += seen->end;
            expected = seen->expected;
            continue;
        }
        size_t ids_at = w->n, limit = len == n - pos ? len : len - FO_MERGE_MARGIN, end = 0;
        unsigned i = 0, last = 0;
        for (; i < m.n && m.at[m.next[i]] <= limit && !rc; i = m.next[i]) {
            last = i;
            end = m.at[m.next[i]];
            rc = push(t, w, m.sym[i], s + pos + m.at[i], end - m.at[i]);
        }
        if (!end) break;
        if (i < m.n) expected = m.sym[i];
        if (seen && i < m.n && !rc) {
            *seen = (struct fo_merge_seen){ s + pos, ids_at, w->n - ids_at, m.sym[0], expected, m.at[last], (uint16_t)end };
        }
        last_at = pos + m.at[last];
        pos += end;
        *ret_done = pos == n;
    }
    if (!*ret_done && !rc) w->n = before;
    return rc;
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
