/* Merging: both BPE algorithms join neighbouring symbols of a word, always the pair of the best rank, the leftmost among equals,
 * until no pair has a rank. A symbol is a 32-bit value whose meaning is the algorithm's (an id; a length); the algorithm says how
 * many bytes of the word a symbol covers and what a pair makes. Included by the algorithms so that those two are inlined.
 *
 * Short words: arrays on the stack, a scan for the best pair each time.
 * Long words: a heap of (rank, place), and symbols kept IN PLACE so that a word costs 4 bytes a byte: sym[first byte] and
 * sym[last byte] of a symbol both hold its value, as boundary tags, so the neighbour on either side is found by its length. A
 * bitmap says where symbols start. Entries of the heap are not updated: one whose pair is gone, or has another rank, is dropped
 * when it comes up. n log n in the worst case, and at most 2 n entries (each merge removes one and adds two). */
#pragma once
#include "foundry/tok_int.h"

enum { FO_MERGE_SHORT = 96 };
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

static inline void fo_heap_down(uint64_t *h, size_t n, size_t i) {
    uint64_t v = h[i];
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) break;
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (h[c] >= v) break;
        h[i] = h[c];
        i = c;
    }
    h[i] = v;
}

static inline void fo_heap_push(uint64_t *h, size_t *n, uint64_t v) {
    size_t i = (*n)++;
    while (i && h[(i - 1) / 2] > v) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = v;
}

/* Over w->sym and w->start (filled by the caller for the word s[0..len), boundary tags included); w->heap has room for 2 len. */
static inline __attribute__((always_inline)) void fo_merge_many(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t len,
                                                                fo_merge_pair_fn *pair, fo_merge_len_fn *length) {
    uint32_t *sym = w->sym, made;
    uint64_t *start = w->start, *heap = w->heap;
    size_t n = 0;
    for (size_t i = 0, next; i < len; i = next) {
        next = i + length(t, sym[i]);
        if (next == len) break;
        uint32_t rank = pair(t, sym[i], sym[next], s + i, next + length(t, sym[next]) - i, &made);
        if (rank != FO_MERGE_NONE) heap[n++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = n / 2; i-- > 0;) fo_heap_down(heap, n, i);
    while (n) {
        uint64_t top = heap[0];
        heap[0] = heap[--n];
        if (n) fo_heap_down(heap, n, 0);
        size_t i = (uint32_t)top;
        if (!(start[i / 64] >> (i % 64) & 1)) continue;
        size_t right = i + length(t, sym[i]);
        if (right == len) continue;
        size_t end = right + length(t, sym[right]);
        uint32_t rank = pair(t, sym[i], sym[right], s + i, end - i, &made);
        if (rank != top >> 32 || rank == FO_MERGE_NONE) continue;
        start[right / 64] &= ~(UINT64_C(1) << (right % 64));
        sym[i] = sym[end - 1] = made;
        if (i) {
            size_t left = i - length(t, sym[i - 1]);
            rank = pair(t, sym[left], made, s + left, end - left, &(uint32_t){ 0 });
            if (rank != FO_MERGE_NONE) fo_heap_push(heap, &n, (uint64_t)rank << 32 | left);
        }
        if (end < len) {
            rank = pair(t, made, sym[end], s + i, end + length(t, sym[end]) - i, &(uint32_t){ 0 });
            if (rank != FO_MERGE_NONE) fo_heap_push(heap, &n, (uint64_t)rank << 32 | i);
        }
    }
}
