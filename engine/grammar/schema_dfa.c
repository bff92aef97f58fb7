/* Deterministic automata over characters: what patterns, formats, bounds and lists of names become, because "and" and "not" of them are
 * needed (a pattern in allOf; additional properties, whose names no pattern matches), which the grammar's own rules cannot say.
 *
 * All are complete, so that "not" swaps what is accepted, and "and" is the product of what is reachable. Edges are spans of characters. */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"
#include "foundry/unicode.h"

/* Room for one item more in an array of the region's: twice as much, copied. The region frees nothing singly, so all of it costs twice. */
static void *more(struct pn_sc *c, void *old, uint32_t n, uint32_t *cap, size_t size) {
    if (n < *cap) return old;
    uint32_t to = *cap ? *cap * 2 : 32;
    void *fresh = pn_sc_alloc(c, to, size);
    if (!fresh) return NULL;
    if (n > 0) memcpy(fresh, old, n * size);
    *cap = to;
    return fresh;
}

uint32_t pn_dfa_state(struct pn_dfa_build *b, bool accept) {
    if (b->c->err.code) return 0;
    pn_sc_work(b->c, 1);
    if (b->n >= PN_SC_MAX_STATES) {
        pn_sc_fail(b->c, FO_ELIMIT, b->c->at, b->c->at_key, "it needs more than %d states", PN_SC_MAX_STATES);
        return 0;
    }
    uint32_t cap = b->cap;
    bool *grown = more(b->c, b->accept, b->n, &cap, sizeof *grown);
    if (!grown) return 0;
    b->accept = grown;
    cap = b->cap;
    uint32_t *at = more(b->c, b->at, b->n, &cap, sizeof *at);
    if (!at) return 0;
    b->at = at;
    b->cap = cap;
    b->accept[b->n] = accept;
    return b->n++;
}

void pn_dfa_edge(struct pn_dfa_build *b, uint32_t last, uint32_t to) {
    struct pn_dfa_edge *edges = more(b->c, b->edges, b->n_edges, &b->cap_edges, sizeof *edges);
    if (!edges) return;
    b->edges = edges;
    if ((b->n_edges & 63) == 0) pn_sc_work(b->c, 16);
    edges[b->n_edges++] = (struct pn_dfa_edge){ last, to };
}

const struct pn_dfa *pn_dfa_done(struct pn_dfa_build *b) {
    struct pn_dfa *a = pn_sc_alloc(b->c, 1, sizeof *a);
    uint32_t *at = a ? pn_sc_alloc(b->c, (size_t)b->n + 1, sizeof *at) : NULL;
    if (!at || b->c->err.code) return NULL;
    uint32_t state = 0;
    for (uint32_t i = 0; i < b->n_edges && state < b->n; i++)
        if (b->edges[i].last == PN_SC_MAX_CHAR) at[++state] = i + 1;
    *a = (struct pn_dfa){ .n = b->n, .accept = b->accept, .at = at, .edges = b->edges };
    for (uint32_t i = 0; i < a->n; i++) a->some |= a->accept[i];
    return a;
}

/* As the last edge of the state, where that leads to the same. */
static void edge_merged(struct pn_dfa_build *b, uint32_t from_edge, uint32_t last, uint32_t to) {
    if (b->n_edges > from_edge && b->edges[b->n_edges - 1].to == to)
        b->edges[b->n_edges - 1].last = last;
    else
        pn_dfa_edge(b, last, to);
}

/* --- and, not ---------------------------------------------------------------------------------- */
/* Numbers for 64-bit keys, in order of being met. */
struct numbers {
    struct pn_sc *c;
    uint64_t *keys;
    uint32_t n, cap, *index;
    unsigned bits;
};

static uint32_t slot(uint64_t key, unsigned bits) {
    return (uint32_t)((key ^ key >> 29) * 0x9E3779B97F4A7C15u >> (64 - bits));
}

static uint32_t number_of(struct numbers *m, uint64_t key) {
    if (m->c->err.code) return 0;
    if (!m->index || ((uint64_t)m->n + 1) * 2 > 1ULL << m->bits) {
        unsigned bits = m->index ? m->bits + 1 : 6;
        uint32_t *index = pn_sc_alloc(m->c, (size_t)1 << bits, sizeof *index);
        if (!index) return 0;
        for (uint32_t i = 0; i < m->n; i++) {
            uint32_t at = slot(m->keys[i], bits);
            while (index[at]) at = (at + 1) & ((1u << bits) - 1);
            index[at] = i + 1;
        }
        m->index = index;
        m->bits = bits;
    }
    uint32_t at = slot(key, m->bits);
    for (; m->index[at]; at = (at + 1) & ((1u << m->bits) - 1))
        if (m->keys[m->index[at] - 1] == key) return m->index[at] - 1;
    uint64_t *keys = more(m->c, m->keys, m->n, &m->cap, sizeof *keys);
    if (!keys) return 0;
    m->keys = keys;
    keys[m->n] = key;
    m->index[at] = m->n + 1;
    return m->n++;
}

const struct pn_dfa *pn_dfa_and(struct pn_sc *c, const struct pn_dfa *a, const struct pn_dfa *b) {
    if (!a || !b || a == b || c->err.code) return a ? a : b;
    struct pn_dfa_memo **bucket = &c->ands[((uintptr_t)a / 16 * 31 + (uintptr_t)b / 16) % PN_SC_MEMO_BUCKETS], *memo;
    for (memo = *bucket; memo; memo = memo->next)
        if (memo->a == (uintptr_t)a && memo->b == (uintptr_t)b) return memo->dfa;
    if (!(memo = pn_sc_alloc(c, 1, sizeof *memo))) return NULL;
    struct pn_dfa_build x = { .c = c };
    struct numbers m = { .c = c };
    number_of(&m, 0);
    for (uint32_t i = 0; i < m.n && c->err.code == FO_OK; i++) {
        uint32_t p = (uint32_t)(m.keys[i] >> 32), q = (uint32_t)m.keys[i], from = x.n_edges;
        pn_dfa_state(&x, a->accept[p] && b->accept[q]);
        const struct pn_dfa_edge *ea = a->edges + a->at[p], *eb = b->edges + b->at[q];
        for (uint32_t last = 0; last < PN_SC_MAX_CHAR && c->err.code == FO_OK;) {
            last = ea->last < eb->last ? ea->last : eb->last;
            edge_merged(&x, from, last, number_of(&m, (uint64_t)ea->to << 32 | eb->to));
            if (ea->last == last) ea++;
            if (eb->last == last) eb++;
        }
    }
    const struct pn_dfa *both = c->err.code ? NULL : pn_dfa_done(&x);
    if (!both) return NULL;
    *memo = (struct pn_dfa_memo){ (uintptr_t)a, (uintptr_t)b, both, *bucket };
    *bucket = memo;
    return both;
}

const struct pn_dfa *pn_dfa_not(struct pn_sc *c, const struct pn_dfa *a) {
    if (!a) {
        struct pn_dfa_build b = { .c = c };
        pn_dfa_state(&b, false);
        pn_dfa_edge(&b, PN_SC_MAX_CHAR, 0);
        return pn_dfa_done(&b);
    }
    struct pn_dfa *x = pn_sc_alloc(c, 1, sizeof *x);
    bool *accept = x ? pn_sc_alloc(c, a->n, sizeof *accept) : NULL;
    if (!accept) return NULL;
    *x = (struct pn_dfa){ .n = a->n, .accept = accept, .at = a->at, .edges = a->edges };
    for (uint32_t i = 0; i < a->n; i++) x->some |= accept[i] = !a->accept[i];
    return x;
}

/* --- words, lengths ---------------------------------------------------------------------------- */
uint32_t pn_utf8_next(const char **p, const char *end) {
    size_t n;
    uint32_t ch = fo_utf8_next(*p, (size_t)(end - *p), &n);
    *p += n;
    return ch <= PN_SC_MAX_CHAR ? ch : 0xFFFD; /* JSON's texts are UTF-8; an automaton has no edge for more */
}

bool pn_dfa_run(const struct pn_dfa *a, const char *utf8, size_t len) {
    uint32_t state = 0;
    for (const char *p = utf8, *end = utf8 + len; p < end;) {
        uint32_t ch = pn_utf8_next(&p, end);
        const struct pn_dfa_edge *e = a->edges + a->at[state];
        while (e->last < ch) e++;
        state = e->to;
    }
    return a->accept[state];
}

struct word {
    const char *s;
    size_t len;
};

static int by_bytes(const void *x, const void *y) { /* UTF-8 sorts as its code points */
    const struct word *a = x, *b = y;
    int d = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);
    return d != 0 ? d : a->len < b->len ? -1 : a->len > b->len;
}

/* A state is a span of the sorted words that begin alike, and how far. */
const struct pn_dfa *pn_dfa_words(struct pn_sc *c, const char *const *words, const size_t *lens, uint32_t n) {
    struct span {
        uint32_t first, end;
        size_t depth;
    } *todo = NULL;
    struct word *w = pn_sc_alloc(c, (size_t)n + 1, sizeof *w);
    struct pn_dfa_build b = { .c = c };
    uint32_t n_todo = 0, cap = 0;
    if (!w) return NULL;
    for (uint32_t i = 0; i < n; i++) w[i] = (struct word){ words[i], lens[i] };
    qsort(w, n, sizeof *w, by_bytes);
    todo = more(c, todo, n_todo, &cap, sizeof *todo); /* state 0: all; state 1: none */
    if (!todo) return NULL;
    todo[n_todo++] = (struct span){ 0, n, 0 };
    todo[n_todo++] = (struct span){ 0, 0, 0 };
    for (uint32_t i = 0; i < n_todo && c->err.code == FO_OK; i++) {
        struct span s = todo[i];
        bool accept = false;
        while (s.first < s.end && w[s.first].len == s.depth) accept = true, s.first++;
        pn_dfa_state(&b, accept);
        uint32_t next = 0; /* the first character without an edge */
        while (s.first < s.end && c->err.code == FO_OK) {
            const char *p = w[s.first].s + s.depth;
            uint32_t ch = pn_utf8_next(&p, w[s.first].s + w[s.first].len), end = s.first + 1;
            size_t depth = (size_t)(p - w[s.first].s);
            while (end < s.end && w[end].len >= depth && memcmp(w[end].s, w[s.first].s, depth) == 0) end++;
            if (ch > next) pn_dfa_edge(&b, ch - 1, 1);
            struct span *grown = more(c, todo, n_todo, &cap, sizeof *grown);
            if (!grown) return NULL;
            todo = grown;
            pn_dfa_edge(&b, ch, n_todo);
            todo[n_todo++] = (struct span){ s.first, end, depth };
            s.first = end;
            next = ch + 1;
        }
        if (next <= PN_SC_MAX_CHAR) pn_dfa_edge(&b, PN_SC_MAX_CHAR, 1);
    }
    return c->err.code ? NULL : pn_dfa_done(&b);
}

const struct pn_dfa *pn_dfa_length(struct pn_sc *c, uint32_t min, uint32_t max) {
    struct pn_dfa_build b = { .c = c };
    struct pn_dfa_memo *memo;
    for (memo = c->lengths; memo; memo = memo->next)
        if (memo->a == min && memo->b == max) return memo->dfa;
    if (!(memo = pn_sc_alloc(c, 1, sizeof *memo))) return NULL;
    uint64_t n = max == PN_SC_NO_END ? (uint64_t)min + 1 : (uint64_t)max + 2; /* the last: for ever */
    for (uint32_t i = 0; i < n && c->err.code == FO_OK; i++) {
        pn_dfa_state(&b, i >= min && i <= max);
        pn_dfa_edge(&b, PN_SC_MAX_CHAR, i + 1 < n ? i + 1 : i);
    }
    const struct pn_dfa *dfa = c->err.code ? NULL : pn_dfa_done(&b);
    if (!dfa) return NULL;
    *memo = (struct pn_dfa_memo){ min, max, dfa, c->lengths };
    c->lengths = memo;
    return dfa;
}

/* --- up to a mark ------------------------------------------------------------------------------ */
enum { MAX_MARK = 64 };

/* The characters of a text; a byte that is no UTF-8 is one that no text has. */
static uint32_t points(const char *utf8, uint32_t ret[MAX_MARK]) {
    uint32_t n = 0;
    for (size_t len = strlen(utf8), used; len > 0 && n < MAX_MARK; utf8 += used, len -= used) {
        uint32_t ch = fo_utf8_next(utf8, len, &used);
        if (ch == FO_UNICODE_END) used = 1;
        ret[n++] = ch <= PN_SC_MAX_CHAR ? ch : UINT32_MAX;
    }
    return n;
}

/* How much of the mark stands at the end, one character on (Knuth, Morris and Pratt). */
static uint32_t marked(const uint32_t *mark, const uint32_t *fail, uint32_t have, uint32_t ch) {
    while (have > 0 && mark[have] != ch) have = fail[have];
    return mark[have] == ch ? have + 1 : 0;
}

const struct pn_dfa *pn_dfa_before(struct pn_sc *c, const char *mark, const char *end) {
    uint32_t m[MAX_MARK], tail[MAX_MARK], fail[MAX_MARK + 1] = { 0 }, n = points(mark, m), n_tail = points(end, tail);
    const char *first = strstr(end, mark);
    struct pn_dfa_build b = { .c = c };
    if (n == 0 || c->err.code) return NULL;
    if (!first || n == MAX_MARK || n_tail == MAX_MARK) {
        pn_sc_fail(c, FO_EINTERNAL, c->at, NULL, "the end of a text without its mark, or longer than %d characters", MAX_MARK - 1);
        return NULL;
    }
    for (uint32_t i = 1; i < n; i++) fail[i + 1] = marked(m, fail, fail[i], m[i]);
    /* State i: the first i characters of the mark stand at the end; state n: all of them have stood somewhere. */
    uint32_t lead[MAX_MARK], whole = points(end, lead) - points(first, lead) + n;
    for (uint32_t state = 0; state <= n && c->err.code == FO_OK; state++) {
        uint32_t at = 0, have = state, from = b.n_edges;
        while (have < n && at < n_tail) have = marked(m, fail, have, tail[at++]);
        pn_dfa_state(&b, state < n && at == whole);
        for (uint32_t next = 0; next <= PN_SC_MAX_CHAR && state < n;) { /* the mark's characters in ascending order, and what is between them */
            uint32_t ch = UINT32_MAX;
            for (uint32_t i = 0; i < n; i++)
                if (m[i] >= next && m[i] < ch) ch = m[i];
            if (ch > next) edge_merged(&b, from, ch > PN_SC_MAX_CHAR ? PN_SC_MAX_CHAR : ch - 1, 0);
            if (ch > PN_SC_MAX_CHAR) break;
            edge_merged(&b, from, ch, marked(m, fail, state, ch));
            next = ch + 1;
        }
        if (state == n) edge_merged(&b, from, PN_SC_MAX_CHAR, n);
    }
    return c->err.code ? NULL : pn_dfa_done(&b);
}

/* --- numbers ----------------------------------------------------------------------------------- */
const struct pn_dfa *pn_dfa_digits(struct pn_sc *c, uint64_t (*next)(const void *ctx, uint64_t code, char ch),
                                   bool (*accept)(const void *ctx, uint64_t code), const void *ctx) {
    static const char symbols[] = "-./0123456789"; /* in order; '/' leads nowhere */
    struct pn_dfa_build b = { .c = c };
    struct numbers m = { .c = c };
    number_of(&m, 0);
    for (uint32_t i = 0; i < m.n && c->err.code == FO_OK; i++) {
        uint64_t code = m.keys[i];
        uint32_t from = b.n_edges, dead = number_of(&m, PN_DFA_DEAD);
        pn_dfa_state(&b, code != PN_DFA_DEAD && accept(ctx, code));
        edge_merged(&b, from, '-' - 1, dead);
        for (const char *s = symbols; *s; s++)
            edge_merged(&b, from, (uint32_t)*s, number_of(&m, code == PN_DFA_DEAD || *s == '/' ? PN_DFA_DEAD : next(ctx, code, *s)));
        edge_merged(&b, from, PN_SC_MAX_CHAR, dead);
    }
    return c->err.code ? NULL : pn_dfa_done(&b);
}
