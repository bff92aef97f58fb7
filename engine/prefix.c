/* Idle conversations: see prefix.h. A handful of entries, oldest first; looking through all of them costs less than one op. */
#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "foundry/base/err.h"

struct entry {
    char *key;
    struct pn_seq *seq;
};

struct pn_prefix {
    uint32_t n, cap;
    struct entry e[]; /* [cap], least recently used first */
};

int pn_prefix_new(uint32_t cap, struct pn_prefix **ret, struct fo_err *e) {
    struct pn_prefix *p = calloc(1, sizeof *p + cap * sizeof p->e[0]);
    if (!p) return fo_fail(e, FO_ENOMEM, "no memory for %u idle sequences", cap);
    p->cap = cap;
    *ret = p;
    return 0;
}

static struct entry remove_at(struct pn_prefix *p, uint32_t i) {
    struct entry was = p->e[i];
    memmove(&p->e[i], &p->e[i + 1], (--p->n - i) * sizeof p->e[0]);
    return was;
}

static void drop_at(struct pn_prefix *p, uint32_t i) {
    struct entry was = remove_at(p, i);
    free(was.key);
    pn_seq_free(was.seq);
}

int pn_prefix_evict(struct pn_prefix *p) {
    if (p->n == 0) return 0;
    drop_at(p, 0);
    return 1;
}

void pn_prefix_forget(struct pn_prefix *p, const char *key) {
    for (uint32_t i = p->n; i-- > 0;)
        if (strcmp(p->e[i].key, key) == 0) drop_at(p, i);
}

void pn_prefix_free(struct pn_prefix *p) {
    if (!p) return;
    while (pn_prefix_evict(p)) {}
    free(p);
}

uint32_t pn_prefix_count(const struct pn_prefix *p) {
    return p->n;
}

uint64_t pn_prefix_pages(const struct pn_prefix *p) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n; i++) sum += pn_seq_pages(p->e[i].seq);
    return sum;
}

static uint32_t shared(const struct pn_seq *s, const int32_t *tokens, uint32_t n) {
    const int32_t *have = pn_seq_tokens(s);
    uint32_t len = pn_seq_len(s), k = 0;
    while (k < len && k < n && have[k] == tokens[k]) k++;
    return k;
}

struct pn_seq *pn_prefix_take(struct pn_prefix *p, const char *key, const int32_t *tokens, uint32_t n) {
    uint32_t best = 0, best_at = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (strcmp(p->e[i].key, key) != 0) continue;
        uint32_t k = shared(p->e[i].seq, tokens, n - 1);
        if (k > 0 && k >= best) best = k, best_at = i;
    }
    if (best == 0) return NULL;
    struct entry was = remove_at(p, best_at);
    free(was.key);
    pn_seq_truncate(was.seq, best);
    return was.seq;
}

void pn_prefix_put(struct pn_prefix *p, char *key, struct pn_seq *seq) {
    if (p->n == p->cap && !pn_prefix_evict(p)) {
        free(key);
        pn_seq_free(seq);
        return;
    }
    pn_seq_truncate(seq, pn_seq_len(seq)); /* pages reserved for an answer that came out shorter */
    p->e[p->n++] = (struct entry){ key, seq };
}
