/* Lists of pairs by rank for merging long words: see tok_merge.h. The lowest list in use is found through a tree of bitmaps, 64
 * branches to a node. A pair is put in front of or behind its list, which keeps the order nearly always: a merge makes pairs from
 * left to right. Else the list is marked, and sorted when its turn comes. */
#include "foundry/tok_merge.h"

#include <stdlib.h>

#include "foundry/base/err.h"

struct fo_merge_seen *fo_merge_seen_slot(struct fo_tok_work *w, const char *s) {
    if (!w->windows) w->windows = calloc(FO_MERGE_SEEN, sizeof *w->windows);
    return w->windows ? &w->windows[fo_tok_hash_bytes(w->t->seed, s, FO_MERGE_WINDOW) % FO_MERGE_SEEN] : NULL;
}

int fo_merge_room(struct fo_tok_work *w, size_t n) {
    if (n > w->word_size) {
        free(w->sym);
        w->word_size = 0;
        w->sym = malloc(n * sizeof *w->sym);
        if (!w->sym) return fo_fail(w->e, FO_ENOMEM, "no memory for a word of %zu bytes", n);
        w->word_size = n;
    }
    if (w->queue) return 0;
    struct fo_merge_queue *q = w->queue = calloc(1, sizeof *q);
    bool ok = q;
    if (q) {
        q->n_ranks = w->t->n_ranks;
        q->list = calloc(q->n_ranks + 1, sizeof *q->list);
        q->messy = calloc(q->n_ranks / 64 + 1, sizeof *q->messy);
        ok = q->list && q->messy;
        q->n_top = q->n_ranks;
        for (int k = 0; k < 4; k++) {
            q->n_top = q->n_top / 64 + 1;
            q->used[k] = calloc(q->n_top, sizeof *q->used[k]);
            ok = ok && q->used[k];
        }
    }
    return ok ? 0 : fo_fail(w->e, FO_ENOMEM, "no memory for merging a word of %zu bytes", n);
}

void fo_merge_done(struct fo_tok_work *w) {
    struct fo_merge_queue *q = w->queue;
    free(w->sym);
    free(w->windows);
    if (!q) return;
    for (int k = 0; k < 4; k++) free(q->used[k]);
    free(q->list);
    free(q->messy);
    free(q);
}

void fo_merge_add(struct fo_tok_work *w, size_t place, uint32_t rank, uint32_t made) {
    struct fo_merge_queue *q = w->queue;
    struct fo_merge_list *l = &q->list[rank];
    struct fo_merge_sym *s = &w->sym[place];
    uint32_t me = (uint32_t)place + 1;
    s->rank = rank;
    s->made = made;
    if (!l->head) {
        s->prev = s->next = 0;
        *l = (struct fo_merge_list){ me, me };
        size_t i = rank;
        for (int k = 0; k < 4; k++, i /= 64) q->used[k][i / 64] |= UINT64_C(1) << (i % 64);
    } else if (me < l->head) {
        s->prev = 0;
        s->next = l->head;
        w->sym[l->head - 1].prev = me;
        l->head = me;
    } else {
        if (me < l->tail) q->messy[rank / 64] |= UINT64_C(1) << (rank % 64);
        s->next = 0;
        s->prev = l->tail;
        w->sym[l->tail - 1].next = me;
        l->tail = me;
    }
}

void fo_merge_drop(struct fo_tok_work *w, size_t place) {
    struct fo_merge_queue *q = w->queue;
    struct fo_merge_sym *s = &w->sym[place];
    if (s->rank == FO_MERGE_NONE) return;
    struct fo_merge_list *l = &q->list[s->rank];
    if (s->prev) w->sym[s->prev - 1].next = s->next;
    else l->head = s->next;
    if (s->next) w->sym[s->next - 1].prev = s->prev;
    else l->tail = s->prev;
    if (!l->head) {
        size_t i = s->rank;
        q->messy[i / 64] &= ~(UINT64_C(1) << (i % 64));
        for (int k = 0; k < 4; k++, i /= 64) {
            if (q->used[k][i / 64] &= ~(UINT64_C(1) << (i % 64))) break;
        }
    }
    s->rank = FO_MERGE_NONE;
}

/* Merges runs that are in order already, two and two, until one is left. */
static void sort_list(struct fo_merge_sym *sym, struct fo_merge_list *l) {
    for (unsigned n_runs = 2; n_runs > 1;) {
        uint32_t rest = l->head, *end = &l->head;
        for (n_runs = 0; rest; n_runs++) {
            uint32_t run[2] = { 0, 0 };
            for (int k = 0; k < 2 && rest; k++) { /* cut a run off */
                uint32_t at = run[k] = rest;
                while (sym[at - 1].next > at) at = sym[at - 1].next;
                rest = sym[at - 1].next;
                sym[at - 1].next = 0;
            }
            while (run[0] || run[1]) {
                int k = !run[0] || (run[1] && run[1] < run[0]);
                *end = run[k];
                end = &sym[run[k] - 1].next;
                run[k] = *end;
            }
        }
    }
    uint32_t before = 0;
    for (uint32_t at = l->head; at; at = sym[at - 1].next) {
        sym[at - 1].prev = before;
        before = at;
    }
    l->tail = before;
}

bool fo_merge_take(struct fo_tok_work *w, size_t *ret_place) {
    struct fo_merge_queue *q = w->queue;
    size_t i = 0;
    while (i < q->n_top && !q->used[3][i]) i++;
    if (i == q->n_top) return false;
    for (int k = 3; k >= 0; k--) i = i * 64 + (size_t)__builtin_ctzll(q->used[k][i]);
    if (q->messy[i / 64] >> (i % 64) & 1) {
        sort_list(w->sym, &q->list[i]);
        q->messy[i / 64] &= ~(UINT64_C(1) << (i % 64));
    }
    *ret_place = q->list[i].head - 1;
    fo_merge_drop(w, *ret_place);
    return true;
}
