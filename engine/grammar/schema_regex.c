/* `pattern`: regular expressions of ECMA-262 as automata over characters. Parsed to a tree, whose repetitions are then written out into a
 * nondeterministic automaton, which becomes a deterministic one by the construction of subsets. Anchors are ways that are open only
 * before the first character, or behind the last. The pattern may be found anywhere: any characters come before and behind.
 *
 * Refused: what no automaton of this kind can do (back references), and what would need one that looks both ways (look-around, \b), Unicode
 * properties, and what grows past the limits. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"
#include "foundry/base/utf8.h"

enum { MAX_NFA = 1 << 14, MAX_COUNT = 4096, MAX_NESTED = 64, MAX_TREE = 1 << 14, NO_END = MAX_COUNT + 1 };
enum kind { EMPTY, CHARS, SEQ, ALT, REPEAT, BEGIN, END };

struct tree {
    enum kind kind;
    uint32_t a, b; /* SEQ, ALT: both; REPEAT: a; 0 = none */
    uint32_t min, max;
    const struct pn_ir_span *spans; /* sorted, apart */
    uint32_t n_spans;
};

struct nfa_state {
    uint32_t to, also; /* 0 = none */
    enum kind kind;    /* EMPTY: to and also at once; CHARS, BEGIN, END: to */
    const struct pn_ir_span *spans;
    uint32_t n_spans;
};

struct regex {
    struct pn_sc *c;
    const json_t *s;
    const char *key, *text, *p, *end;
    struct tree *trees;
    uint32_t n_trees;
    struct nfa_state *nfa;
    uint32_t n_nfa;
    unsigned depth;
};

static uint32_t refuse(struct regex *x, enum fo_code code, const char *why) {
    pn_sc_fail(x->c, code, x->s, x->key, "regular expression, character %u: %s", (unsigned)fo_utf8_count(x->text, (size_t)(x->p - x->text)) + 1,
               why);
    x->p = x->end;
    return 0;
}

static uint32_t tree(struct regex *x, struct tree t) {
    if (x->c->err.code) return 0;
    if (x->n_trees == MAX_TREE) return refuse(x, FO_ELIMIT, "it is too long");
    x->trees[x->n_trees] = t;
    return x->n_trees++;
}

/* --- sets of characters ------------------------------------------------------------------------ */
/* While a class is read. */
struct chars {
    struct pn_ir_span list[512];
    uint32_t n;
};

static const struct pn_ir_span digits[] = { { '0', '9' } }, words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } },
                               spaces[] = { { 9, 13 },          { ' ', ' ' },       { 0xA0, 0xA0 },     { 0x1680, 0x1680 },
                                            { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F },
                                            { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF } },
                               lines[] = { { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } };
#define COUNT(x) (uint32_t)(sizeof(x) / sizeof *(x))

static void chars_add(struct regex *x, struct chars *s, uint32_t first, uint32_t last) {
    if (s->n == COUNT(s->list))
        refuse(x, FO_ELIMIT, "a class of too many spans");
    else
        s->list[s->n++] = (struct pn_ir_span){ first, last };
}

static int by_first(const void *p, const void *q) {
    const struct pn_ir_span *a = p, *b = q;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Sorts, joins what touches, and turns it round. */
static void chars_settle(struct regex *x, struct chars *s, bool negated) {
    struct chars out = { .n = 0 };
    qsort(s->list, s->n, sizeof *s->list, by_first);
    for (uint32_t i = 0; i < s->n; i++)
        if (out.n > 0 && s->list[i].first <= out.list[out.n - 1].last + 1) {
            if (s->list[i].last > out.list[out.n - 1].last) out.list[out.n - 1].last = s->list[i].last;
        } else {
            out.list[out.n++] = s->list[i];
        }
    if (!negated) {
        *s = out;
        return;
    }
    uint32_t next = 0;
    s->n = 0;
    for (uint32_t i = 0; i < out.n; i++) {
        if (out.list[i].first > next) chars_add(x, s, next, out.list[i].first - 1);
        next = out.list[i].last + 1;
    }
    if (next <= PN_SC_MAX_CHAR) chars_add(x, s, next, PN_SC_MAX_CHAR);
}

static uint32_t chars_tree(struct regex *x, const struct chars *s) {
    struct pn_ir_span *spans = pn_sc_alloc(x->c, s->n + 1, sizeof *spans);
    if (!spans) return 0;
    memcpy(spans, s->list, s->n * sizeof *spans);
    return tree(x, (struct tree){ .kind = CHARS, .spans = spans, .n_spans = s->n });
}

static bool hex(struct regex *x, int n, uint32_t *ret) {
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        char h = x->p < x->end ? *x->p : 0, low = h | 32;
        if (h >= '0' && h <= '9')
            v = v << 4 | (uint32_t)(h - '0');
        else if (low >= 'a' && low <= 'f')
            v = v << 4 | (uint32_t)(low - 'a' + 10);
        else
            return refuse(x, FO_EINVAL, "hexadecimal digits are missing"), false;
        x->p++;
    }
    *ret = v;
    return true;
}

/* Behind a backslash: a class (true, added to s) or one character (false, *ret). */
static bool escape(struct regex *x, struct chars *s, uint32_t *ret) {
    static const char controls[] = "t\tn\nr\rf\fv\v";
    struct chars class = { .n = 0 };
    const struct pn_ir_span *spans = NULL;
    uint32_t n = 0;
    *ret = 0;
    if (x->p == x->end) return refuse(x, FO_EINVAL, "a backslash at the end"), true;
    const char *at = x->p;
    uint32_t ch = pn_utf8_next(&x->p, x->end);
    switch (ch | 32) {
    case 'd':
        spans = digits, n = COUNT(digits);
        break;
    case 'w':
        spans = words, n = COUNT(words);
        break;
    case 's':
        spans = spaces, n = COUNT(spaces);
        break;
    default:
        break;
    }
    if (spans) {
        for (uint32_t i = 0; i < n; i++) chars_add(x, &class, spans[i].first, spans[i].last);
        chars_settle(x, &class, ch < 'a');
        for (uint32_t i = 0; i < class.n; i++) chars_add(x, s, class.list[i].first, class.list[i].last);
        return true;
    }
    for (const char *k = controls; *k; k += 2)
        if (ch == (uint32_t)*k) return *ret = (uint32_t)k[1], false;
    if (ch == '0' && !(x->p < x->end && *x->p >= '0' && *x->p <= '9')) return *ret = 0, false;
    if (ch == 'x') return hex(x, 2, ret), false;
    if (ch == 'c' && x->p < x->end && (*x->p | 32) >= 'a' && (*x->p | 32) <= 'z') return *ret = (uint32_t)*x->p++ & 31, false;
    if (ch == 'u' && x->p < x->end && *x->p == '{') {
        uint32_t v = 0;
        for (x->p++; x->p < x->end && *x->p != '}' && v <= PN_SC_MAX_CHAR;) {
            uint32_t digit;
            if (!hex(x, 1, &digit)) return false;
            v = v << 4 | digit;
        }
        if (x->p == x->end || v > PN_SC_MAX_CHAR) return refuse(x, FO_EINVAL, "no such character"), false;
        x->p++;
        return *ret = v, false;
    }
    if (ch == 'u') {
        uint32_t low;
        if (!hex(x, 4, ret) || *ret < 0xD800 || *ret > 0xDBFF || x->end - x->p < 6 || x->p[0] != '\\' || x->p[1] != 'u') return false;
        const char *before = x->p;
        x->p += 2;
        if (!hex(x, 4, &low)) return false;
        if (low >= 0xDC00 && low <= 0xDFFF)
            *ret = 0x10000 + ((*ret - 0xD800) << 10) + (low - 0xDC00);
        else
            x->p = before;
        return false;
    }
    if (ch < 0x80 && ((ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z'))) {
        x->p = at;
        if ((ch >= '1' && ch <= '9') || ch == 'k') return refuse(x, FO_EUNSUPPORTED, "back references are not supported"), true;
        if ((ch | 32) == 'p') return refuse(x, FO_EUNSUPPORTED, "Unicode properties (\\p) are not supported"), true;
        if ((ch | 32) == 'b') return refuse(x, FO_EUNSUPPORTED, "word boundaries (\\b) are not supported"), true;
        return refuse(x, FO_EINVAL, "no such escape"), true;
    }
    return *ret = ch, false;
}

static uint32_t parse_class(struct regex *x) {
    struct chars s = { .n = 0 };
    bool negated = x->p < x->end && *x->p == '^';
    if (negated) x->p++;
    while (x->p < x->end && *x->p != ']' && x->c->err.code == FO_OK) {
        uint32_t first = 0, last = 0;
        for (int i = 0; i < 2; i++) {
            uint32_t *ch = i == 0 ? &first : &last;
            bool class = false;
            if (*x->p != '\\')
                *ch = pn_utf8_next(&x->p, x->end);
            else if (x->end - x->p > 1 && x->p[1] == 'b')
                x->p += 2, *ch = '\b';
            else
                x->p++, class = escape(x, &s, ch);
            if (class) {
                if (i == 1) chars_add(x, &s, first, first), chars_add(x, &s, '-', '-');
                break;
            }
            bool span = i == 0 && x->end - x->p > 1 && x->p[0] == '-' && x->p[1] != ']';
            if (span) {
                x->p++;
                continue;
            }
            if (i == 0) last = first;
            if (last < first) return refuse(x, FO_EINVAL, "a span whose end is before its start");
            chars_add(x, &s, first, last);
            break;
        }
    }
    if (x->p == x->end) return refuse(x, FO_EINVAL, "a class without its ']'");
    x->p++;
    chars_settle(x, &s, negated);
    return chars_tree(x, &s);
}

/* --- parsing ----------------------------------------------------------------------------------- */
static uint32_t parse_alt(struct regex *x);

static uint32_t parse_atom(struct regex *x) {
    struct chars s = { .n = 0 };
    uint32_t ch, t;
    switch (*x->p) {
    case '^':
        x->p++;
        return tree(x, (struct tree){ .kind = BEGIN });
    case '$':
        x->p++;
        return tree(x, (struct tree){ .kind = END });
    case '[':
        x->p++;
        return parse_class(x);
    case '(':
        x->p++;
        if (x->p < x->end && *x->p == '?') {
            const char *q = x->p + 1;
            if (q < x->end && *q == ':')
                x->p = q + 1;
            else if (q + 1 < x->end && *q == '<' && q[1] != '=' && q[1] != '!' && memchr(q, '>', (size_t)(x->end - q)))
                x->p = (const char *)memchr(q, '>', (size_t)(x->end - q)) + 1;
            else
                return refuse(x, FO_EUNSUPPORTED, "looking ahead or behind is not supported");
        }
        if (++x->depth > MAX_NESTED) return refuse(x, FO_ELIMIT, "its groups are nested too deep");
        t = parse_alt(x);
        x->depth--;
        if (x->p == x->end || *x->p != ')') return refuse(x, FO_EINVAL, "a '(' without its ')'");
        x->p++;
        return t;
    case '*':
    case '+':
    case '?':
        return refuse(x, FO_EINVAL, "nothing to repeat");
    case '.':
        x->p++;
        for (uint32_t i = 0; i < COUNT(lines); i++) chars_add(x, &s, lines[i].first, lines[i].last);
        chars_settle(x, &s, true);
        return chars_tree(x, &s);
    case '\\':
        x->p++;
        if (!escape(x, &s, &ch)) chars_add(x, &s, ch, ch);
        chars_settle(x, &s, false);
        return chars_tree(x, &s);
    default:
        ch = pn_utf8_next(&x->p, x->end);
        chars_add(x, &s, ch, ch);
        return chars_tree(x, &s);
    }
}

static bool number(struct regex *x, const char **p, uint32_t *ret) {
    const char *from = *p;
    for (*ret = 0; *p < x->end && **p >= '0' && **p <= '9'; ++*p)
        if (*ret <= MAX_COUNT) *ret = *ret * 10 + (uint32_t)(**p - '0');
    return *p > from;
}

/* {m}, {m,} or {m,n}; anything else is characters, as browsers read it. */
static bool counts(struct regex *x, uint32_t *min, uint32_t *max) {
    const char *p = x->p + 1;
    if (!number(x, &p, min)) return false;
    *max = *min;
    if (p < x->end && *p == ',') {
        p++;
        if (!number(x, &p, max))
            *max = NO_END;
        else if (*max < *min)
            refuse(x, FO_EINVAL, "a repetition whose most is less than its least");
        else if (*max > MAX_COUNT)
            refuse(x, FO_EUNSUPPORTED, "it repeats more than 4096 times (minLength and maxLength count without end)");
    }
    if (p >= x->end || *p != '}') return false;
    if (*min > MAX_COUNT) refuse(x, FO_EUNSUPPORTED, "it repeats more than 4096 times (minLength and maxLength count without end)");
    x->p = p + 1;
    return true;
}

static uint32_t parse_repeat(struct regex *x) {
    uint32_t t = parse_atom(x), min, max;
    for (int n = 0; x->p < x->end && x->c->err.code == FO_OK; n++) {
        if (*x->p == '*')
            min = 0, max = NO_END, x->p++;
        else if (*x->p == '+')
            min = 1, max = NO_END, x->p++;
        else if (*x->p == '?')
            min = 0, max = 1, x->p++;
        else if (*x->p != '{' || !counts(x, &min, &max))
            break;
        if (n > 0) return refuse(x, FO_EINVAL, "a repetition of a repetition");
        if (x->p < x->end && *x->p == '?') x->p++; /* as few as will do: the same texts */
        t = tree(x, (struct tree){ .kind = REPEAT, .a = t, .min = min, .max = max });
    }
    return t;
}

static uint32_t parse_seq(struct regex *x) {
    uint32_t t = tree(x, (struct tree){ .kind = EMPTY });
    while (x->p < x->end && *x->p != '|' && *x->p != ')' && x->c->err.code == FO_OK) {
        uint32_t a = t, b = parse_repeat(x);
        t = tree(x, (struct tree){ .kind = SEQ, .a = a, .b = b });
    }
    return t;
}

static uint32_t parse_alt(struct regex *x) {
    uint32_t t = parse_seq(x);
    while (x->p < x->end && *x->p == '|' && x->c->err.code == FO_OK) {
        x->p++;
        uint32_t a = t, b = parse_seq(x);
        t = tree(x, (struct tree){ .kind = ALT, .a = a, .b = b });
    }
    return t;
}

/* --- the nondeterministic automaton ------------------------------------------------------------ */
static uint32_t put(struct regex *x, struct nfa_state s) {
    if (x->c->err.code) return 0;
    if (x->n_nfa == MAX_NFA) {
        pn_sc_fail(x->c, FO_EUNSUPPORTED, x->s, x->key,
                   "regular expression: it needs more than %d steps (minLength and maxLength count without end)", MAX_NFA);
        return 0;
    }
    x->nfa[x->n_nfa] = s;
    return x->n_nfa++;
}

/* The state from which the tree is read, and then `next`. Sequences lean left, so this recurses into their first parts in a loop. */
static uint32_t build(struct regex *x, uint32_t t, uint32_t next) {
    for (;;) {
        struct tree d = x->trees[t];
        if (x->c->err.code) return 0;
        switch (d.kind) {
        case EMPTY:
            return next;
        case BEGIN:
        case END:
        case CHARS:
            return put(x, (struct nfa_state){ .kind = d.kind, .to = next, .spans = d.spans, .n_spans = d.n_spans });
        case SEQ:
            next = build(x, d.b, next);
            t = d.a;
            continue;
        case ALT: {
            uint32_t also = build(x, d.b, next), split = put(x, (struct nfa_state){ .kind = EMPTY, .also = also });
            uint32_t to = build(x, d.a, next);
            x->nfa[split].to = to;
            return split;
        }
        case REPEAT: {
            if (d.max == NO_END) {
                uint32_t again = put(x, (struct nfa_state){ .kind = EMPTY, .also = next }), body = build(x, d.a, again);
                x->nfa[again].to = body;
                next = again;
            } else {
                uint32_t out = next;
                for (uint32_t i = d.min; i < d.max && x->c->err.code == FO_OK; i++) {
                    uint32_t body = build(x, d.a, next);
                    next = put(x, (struct nfa_state){ .kind = EMPTY, .to = body, .also = out });
                }
            }
            for (uint32_t i = 0; i < d.min && x->c->err.code == FO_OK; i++) next = build(x, d.a, next);
            return next;
        }
        }
    }
}

/* --- subsets ----------------------------------------------------------------------------------- */
struct subsets {
    struct regex *x;
    uint32_t *items; /* all subsets, one behind the other: states that read, $, and the end (1) */
    uint32_t n_items, cap_items;
    uint32_t *at; /* [n + 1] */
    uint32_t n, index[1 << 15], cap_at;
    uint32_t *mark, *stack, round; /* [n_nfa] */
};

static bool grow(struct pn_sc *c, uint32_t **a, uint32_t *cap, uint32_t need) {
    if (need <= *cap) return true;
    uint32_t to = *cap ? *cap * 2 : 1024;
    while (to < need) to *= 2;
    uint32_t *fresh = pn_sc_alloc(c, to, sizeof *fresh);
    if (!fresh) return false;
    if (*cap > 0) memcpy(fresh, *a, *cap * sizeof *fresh);
    *a = fresh;
    *cap = to;
    return true;
}

static int by_number(const void *p, const void *q) {
    uint32_t a = *(const uint32_t *)p, b = *(const uint32_t *)q;
    return a < b ? -1 : a > b;
}

/* Adds what is reached from `state` without reading; behind the subset that is being made. */
static void reach(struct subsets *u, uint32_t state, bool at_start, bool at_end) {
    struct regex *x = u->x;
    uint32_t n = 0;
    if (u->mark[state] == u->round) return;
    u->mark[state] = u->round;
    u->stack[n++] = state;
    while (n > 0) {
        uint32_t i = u->stack[--n], to[2] = { x->nfa[i].to, x->nfa[i].also };
        pn_sc_work(x->c, 1);
        if (i == 1 || x->nfa[i].kind == CHARS || (x->nfa[i].kind == END && !at_end)) {
            if (!grow(x->c, &u->items, &u->cap_items, u->n_items + 1)) return;
            u->items[u->n_items++] = i;
        }
        if (x->nfa[i].kind == CHARS || (x->nfa[i].kind == BEGIN && !at_start) || (x->nfa[i].kind == END && !at_end)) continue;
        for (int k = 0; k < 2; k++) {
            if (to[k] == 0 || u->mark[to[k]] == u->round) continue;
            u->mark[to[k]] = u->round;
            u->stack[n++] = to[k];
        }
    }
}

/* The number of the subset that begins at items[from]; taken off again where it was there before. */
static uint32_t settle(struct subsets *u, uint32_t from) {
    struct pn_sc *c = u->x->c;
    enum { MASK = (1 << 15) - 1 };
    uint32_t n = u->n_items - from, hash = n;
    if (c->err.code) return 0;
    if (n > 1) qsort(u->items + from, n, sizeof *u->items, by_number);
    for (uint32_t i = from; i < u->n_items; i++) hash = (hash ^ u->items[i]) * 0x9E3779B1u, hash ^= hash >> 15;
    uint32_t at = hash & MASK;
    for (; u->index[at]; at = (at + 1) & MASK) {
        uint32_t k = u->index[at] - 1;
        if (u->at[k + 1] - u->at[k] == n && memcmp(u->items + u->at[k], u->items + from, n * sizeof *u->items) == 0) {
            u->n_items = from;
            return k;
        }
    }
    if (u->n >= PN_SC_MAX_STATES) {
        pn_sc_fail(c, FO_EUNSUPPORTED, u->x->s, u->x->key, "regular expression: it needs more than %d states", PN_SC_MAX_STATES);
        return 0;
    }
    if (!grow(c, &u->at, &u->cap_at, u->n + 2)) return 0;
    u->index[at] = u->n + 1;
    u->at[u->n] = from;
    u->at[u->n + 1] = u->n_items;
    return u->n++;
}

/* Whether the text may end in subset k. State 1 is the end of the expression. */
static bool accepts(struct subsets *u, uint32_t k, bool at_start) {
    uint32_t from = u->n_items;
    bool yes = false;
    u->round++;
    for (uint32_t i = u->at[k]; i < u->at[k + 1]; i++) reach(u, u->items[i], at_start, true);
    yes = u->mark[1] == u->round;
    u->n_items = from;
    return yes;
}

static const struct pn_dfa *determine(struct regex *x, uint32_t start) {
    struct pn_sc *c = x->c;
    struct pn_dfa_build b = { .c = c };
    struct subsets *u = pn_sc_alloc(c, 1, sizeof *u);
    if (!u) return NULL;
    u->x = x;
    u->mark = pn_sc_alloc(c, x->n_nfa, sizeof *u->mark);
    u->stack = pn_sc_alloc(c, x->n_nfa, sizeof *u->stack);
    uint32_t *cuts = NULL, cap_cuts = 0;
    if (!u->stack || !u->mark) return NULL;
    u->round = 1;
    reach(u, start, true, false);
    settle(u, 0);
    /* Only the first subset may go through ^; the one with the same states later is the same, since those ways are then followed already.
     */
    for (uint32_t k = 0; k < u->n && c->err.code == FO_OK; k++) {
        uint32_t n_cuts = 0;
        pn_dfa_state(&b, accepts(u, k, k == 0));
        for (uint32_t i = u->at[k]; i < u->at[k + 1] && c->err.code == FO_OK; i++) {
            const struct nfa_state *s = &x->nfa[u->items[i]];
            if (s->kind != CHARS) continue;
            if (!grow(c, &cuts, &cap_cuts, n_cuts + s->n_spans * 2)) return NULL;
            for (uint32_t j = 0; j < s->n_spans; j++) {
                if (s->spans[j].first > 0) cuts[n_cuts++] = s->spans[j].first - 1;
                if (s->spans[j].last < PN_SC_MAX_CHAR) cuts[n_cuts++] = s->spans[j].last;
            }
        }
        if (n_cuts > 1) qsort(cuts, n_cuts, sizeof *cuts, by_number);
        uint32_t before = UINT32_MAX, last_to = UINT32_MAX;
        for (uint32_t i = 0; i <= n_cuts && c->err.code == FO_OK; i++) { /* spans that end at each cut, and the rest */
            uint32_t last = i < n_cuts ? cuts[i] : PN_SC_MAX_CHAR, from = u->n_items;
            if (i > 0 && last == before) continue;
            before = last;
            u->round++;
            for (uint32_t j = u->at[k]; j < u->at[k + 1] && c->err.code == FO_OK; j++) {
                const struct nfa_state *s = &x->nfa[u->items[j]];
                if (s->kind != CHARS) continue;
                uint32_t lo = 0, hi = s->n_spans; /* the first span that does not end before */
                while (lo < hi) {
                    uint32_t mid = (lo + hi) / 2;
                    if (s->spans[mid].last < last)
                        lo = mid + 1;
                    else
                        hi = mid;
                }
                if (lo < s->n_spans && s->spans[lo].first <= last) reach(u, s->to, false, false);
            }
            pn_sc_work(c, 4);
            uint32_t to = settle(u, from);
            if (to == last_to && c->err.code == FO_OK)
                b.edges[b.n_edges - 1].last = last;
            else
                pn_dfa_edge(&b, last, to);
            last_to = to;
        }
    }
    return c->err.code ? NULL : pn_dfa_done(&b);
}

const struct pn_dfa *pn_regex_dfa(struct pn_sc *c, const json_t *s, const char *key, const char *text, size_t len) {
    if (c->err.code) return NULL;
    for (struct pn_regex_memo *m = c->regexes; m; m = m->next)
        if (m->len == len && memcmp(m->text, text, len) == 0) return m->dfa;
    struct regex *x = calloc(1, sizeof *x);
    struct tree *trees = calloc(MAX_TREE, sizeof *trees);
    struct nfa_state *nfa = calloc(MAX_NFA, sizeof *nfa);
    struct pn_regex_memo *m = pn_sc_alloc(c, 1, sizeof *m);
    const struct pn_dfa *dfa = NULL;
    if (!x || !trees || !nfa) pn_sc_fail(c, FO_ENOMEM, s, key, "no memory for a regular expression");
    if (c->err.code == FO_OK) {
        static const struct pn_ir_span all[] = { { 0, PN_SC_MAX_CHAR } };
        *x = (struct regex){
            .c = c, .s = s, .key = key, .text = text, .p = text, .end = text + len, .trees = trees, .nfa = nfa, .n_nfa = 1
        };
        uint32_t t = parse_alt(x);
        if (x->p < x->end) refuse(x, FO_EINVAL, "a ')' without its '('");
        uint32_t end = put(x, (struct nfa_state){ .kind = EMPTY }); /* 1 */
        uint32_t rest = put(x, (struct nfa_state){ .kind = CHARS, .spans = all, .n_spans = 1 });
        uint32_t tail = put(x, (struct nfa_state){ .kind = EMPTY, .to = end, .also = rest });
        nfa[rest].to = tail;
        uint32_t body = build(x, t, tail);
        uint32_t skip = put(x, (struct nfa_state){ .kind = CHARS, .spans = all, .n_spans = 1 });
        uint32_t start = put(x, (struct nfa_state){ .kind = EMPTY, .to = body, .also = skip });
        nfa[skip].to = start;
        dfa = c->err.code ? NULL : determine(x, start);
    }
    if (dfa) {
        *m = (struct pn_regex_memo){ .text = text, .len = len, .dfa = dfa, .next = c->regexes };
        c->regexes = m;
    }
    free(x);
    free(trees);
    free(nfa);
    return dfa;
}
