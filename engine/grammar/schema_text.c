/* JSON's text: the spellings of characters, strings, numbers and whole values, and automata as rules.
 *
 * An automaton becomes a rule for each state that is reached in more than one way; what is reached once stands where it is reached. Ways
 * from which no end can be reached are left out. A rule's last part is a jump, so a string may be as long as it likes. */
#include <jansson.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"

/* --- characters within a string ---------------------------------------------------------------- */
struct alts {
    struct pn_ir *ir;
    uint32_t list[64], n;
};

static void alts_add(struct alts *a, uint32_t node) {
    if (a->n == sizeof a->list / sizeof *a->list) {
        a->list[0] = pn_ir_alt(a->ir, a->list, a->n);
        a->n = 1;
    }
    a->list[a->n++] = node;
}

static uint32_t hex_set(struct pn_ir *ir, unsigned first, unsigned last) {
    static const char low[] = "0123456789abcdef", high[] = "0123456789ABCDEF";
    uint64_t set[4] = { 0 };
    for (unsigned i = first; i <= last; i++) {
        set[low[i] >> 6] |= 1ULL << (low[i] & 63);
        set[high[i] >> 6] |= 1ULL << (high[i] & 63);
    }
    return pn_ir_bytes(ir, set);
}

/* The `n` hexadecimal digits of first .. last. */
static uint32_t hex_range(struct pn_ir *ir, unsigned first, unsigned last, unsigned n) {
    unsigned shift = (n - 1) * 4, mask = (1u << shift) - 1, a = first >> shift, b = last >> shift;
    uint32_t alts[3], k = 0, seq[5];
    if (n == 1) return hex_set(ir, first, last);
    if (a == b) {
        seq[0] = hex_set(ir, a, a);
        seq[1] = hex_range(ir, first & mask, last & mask, n - 1);
        return pn_ir_seq(ir, seq, 2);
    }
    if (first & mask) {
        seq[0] = hex_set(ir, a, a);
        seq[1] = hex_range(ir, first & mask, mask, n - 1);
        alts[k++] = pn_ir_seq(ir, seq, 2);
        a++;
    }
    bool tail = (last & mask) != mask;
    if (tail) b--;
    if (a <= b) {
        seq[0] = hex_set(ir, a, b);
        for (unsigned i = 1; i < n; i++) seq[i] = hex_set(ir, 0, 15);
        alts[k++] = pn_ir_seq(ir, seq, n);
    }
    if (tail) {
        seq[0] = hex_set(ir, b + 1, b + 1);
        seq[1] = hex_range(ir, 0, last & mask, n - 1);
        alts[k++] = pn_ir_seq(ir, seq, 2);
    }
    return pn_ir_alt(ir, alts, k);
}

static uint32_t escaped(struct pn_ir *ir, unsigned first, unsigned last) {
    uint32_t seq[2] = { pn_ir_literal(ir, "\\u", 2), hex_range(ir, first, last, 4) };
    return pn_ir_seq(ir, seq, 2);
}

/* Characters past U+FFFF as two escapes; they share their first where they can. */
static void add_pairs(struct alts *out, uint32_t first, uint32_t last) {
    while (first <= last) {
        uint32_t a = first - 0x10000, b = last - 0x10000, high = a >> 10, high_end = high, low = a & 0x3FF, low_end = 0x3FF;
        if (high == b >> 10)
            low_end = b & 0x3FF;
        else if (low == 0)
            high_end = (b & 0x3FF) == 0x3FF ? b >> 10 : (b >> 10) - 1;
        uint32_t seq[2] = { escaped(out->ir, 0xD800 + high, 0xD800 + high_end), escaped(out->ir, 0xDC00 + low, 0xDC00 + low_end) };
        alts_add(out, pn_ir_seq(out->ir, seq, 2));
        first = 0x10000 + (high_end << 10) + low_end + 1;
    }
}

static void add_escapes(struct alts *out, uint32_t first, uint32_t last) {
    static const struct pn_ir_span parts[] = { { 0, 0xD7FF },
                                               { 0xE000, 0xFFFF },
                                               { 0x10000, PN_SC_MAX_CHAR } }; /* a lone surrogate is no character */
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t a = first > parts[i].first ? first : parts[i].first, b = last < parts[i].last ? last : parts[i].last;
        if (a > b) continue;
        if (i == 2)
            add_pairs(out, a, b);
        else
            alts_add(out, escaped(out->ir, a, b));
    }
}

static bool within(const struct pn_ir_span *spans, size_t n, uint32_t ch) {
    for (size_t i = 0; i < n; i++)
        if (ch >= spans[i].first && ch <= spans[i].last) return true;
    return false;
}

/* The characters that stand in a string as they are: RFC 8259's, without the one that is wanted escaped. Returns how many spans. */
static size_t bare_spans(uint32_t escaped, struct pn_ir_span ret[4]) {
    static const struct pn_ir_span bare[] = { { ' ', '!' }, { '#', '[' }, { ']', PN_SC_MAX_CHAR } };
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        bool cut = escaped >= bare[i].first && escaped <= bare[i].last;
        if (!cut || escaped > bare[i].first) ret[n++] = (struct pn_ir_span){ bare[i].first, cut ? escaped - 1 : bare[i].last };
        if (cut && escaped < bare[i].last) ret[n++] = (struct pn_ir_span){ escaped + 1, bare[i].last };
    }
    return n;
}

uint32_t pn_json_chars(struct pn_sc *c, const struct pn_ir_span *spans, size_t n, bool negated) {
    struct pn_ir *ir = c->ir;
    struct pn_ir_span bare[4];
    size_t n_bare = bare_spans(c->escaped, bare);
    static const char shorts[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    struct alts out = { .ir = ir };
    uint64_t letters[4] = { 0 };
    for (size_t i = 0; i < n_bare; i++) { /* what is in both, or in the one and not the other */
        struct pn_ir_span in[64];
        size_t k = 0;
        if (negated) {
            uint32_t next = bare[i].first;
            for (size_t j = 0; j <= n; j++) { /* spans are sorted and apart */
                uint32_t end = j < n ? spans[j].first : PN_SC_MAX_CHAR + 1;
                if (end > next && next <= bare[i].last)
                    in[k++] = (struct pn_ir_span){ next, end - 1 < bare[i].last ? end - 1 : bare[i].last };
                if (j < n && spans[j].last + 1 > next) next = spans[j].last + 1;
                if (k == 64 || j == n) {
                    if (k > 0) alts_add(&out, pn_ir_chars(ir, in, k, false));
                    k = 0;
                }
            }
            continue;
        }
        for (size_t j = 0; j < n; j++) {
            uint32_t a = spans[j].first > bare[i].first ? spans[j].first : bare[i].first,
                     b = spans[j].last < bare[i].last ? spans[j].last : bare[i].last;
            if (a <= b) in[k++] = (struct pn_ir_span){ a, b };
            if (k == 64 || (j + 1 == n && k > 0)) {
                alts_add(&out, pn_ir_chars(ir, in, k, false));
                k = 0;
            }
        }
    }
    for (const char *s = shorts; *s; s += 2)
        if (within(spans, n, (unsigned char)s[1]) != negated) letters[s[0] >> 6] |= 1ULL << (s[0] & 63);
    if (letters[0] | letters[1]) {
        uint32_t seq[2] = { pn_ir_literal(ir, "\\", 1), pn_ir_bytes(ir, letters) };
        alts_add(&out, pn_ir_seq(ir, seq, 2));
    }
    uint32_t next = 0;
    for (size_t j = 0; j < n; j++) {
        if (negated && spans[j].first > next) add_escapes(&out, next, spans[j].first - 1);
        if (!negated) add_escapes(&out, spans[j].first, spans[j].last);
        next = spans[j].last + 1;
    }
    if (negated && next <= PN_SC_MAX_CHAR) add_escapes(&out, next, PN_SC_MAX_CHAR);
    return pn_ir_alt(ir, out.list, out.n);
}

/* --- automata ---------------------------------------------------------------------------------- */
enum { MAX_INLINE = 24 };

struct writer {
    struct pn_sc *c;
    const struct pn_dfa *a;
    bool *live;   /* an end can be reached */
    uint32_t *in; /* ways into a state, 2 = more than one */
    uint32_t *rules;
    uint32_t end; /* the node of an end, or 0 = the empty text */
    bool json;
};

static void find_live(struct writer *w) {
    struct pn_sc *c = w->c;
    const struct pn_dfa *a = w->a;
    uint32_t n_edges = a->at[a->n], *start = pn_sc_alloc(c, (size_t)a->n + 2, sizeof *start), *from = pn_sc_alloc(c, n_edges, sizeof *from);
    uint32_t *queue = pn_sc_alloc(c, a->n, sizeof *queue), n = 0;
    if (!start || !from || !queue) return;
    for (uint32_t i = 0; i < n_edges; i++) start[a->edges[i].to + 2]++;
    for (uint32_t i = 2; i < a->n + 2; i++) start[i] += start[i - 1];
    for (uint32_t s = 0; s < a->n; s++)
        for (uint32_t i = a->at[s]; i < a->at[s + 1]; i++) from[start[a->edges[i].to + 1]++] = s;
    for (uint32_t s = 0; s < a->n; s++)
        if (a->accept[s]) w->live[s] = true, queue[n++] = s;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = start[queue[i]]; k < start[queue[i] + 1]; k++)
            if (!w->live[from[k]]) w->live[from[k]] = true, queue[n++] = from[k];
    pn_sc_work(c, n_edges);
}

static uint32_t rule_of(struct writer *w, uint32_t state) {
    if (!w->rules[state]) w->rules[state] = pn_ir_rule(w->c->ir, "", 0, 0, 0);
    return w->rules[state];
}

static uint32_t state_node(struct writer *w, uint32_t state, unsigned depth);

/* The node behind an edge to `state`. */
static uint32_t target(struct writer *w, uint32_t state, unsigned depth) {
    if (depth < MAX_INLINE && w->in[state] < 2 && state != 0 && !w->rules[state]) return state_node(w, state, depth + 1);
    return pn_ir_ref(w->c->ir, rule_of(w, state));
}

/* One character of a set, in any spelling. Its spellings are many and the sets few: each is a rule, written once. */
static uint32_t json_char(struct pn_sc *c, const struct pn_ir_span *spans, uint32_t n) {
    uint32_t hash = n;
    if (n == 1 && spans[0].first == 0 && spans[0].last == PN_SC_MAX_CHAR) return pn_ir_ref(c->ir, c->character);
    for (uint32_t i = 0; i < n; i++) hash = ((hash * 31 + spans[i].first) * 31 + spans[i].last) ^ hash >> 13;
    struct pn_chars_memo **bucket = &c->chars[hash % PN_SC_MEMO_BUCKETS], *memo;
    for (memo = *bucket; memo; memo = memo->next)
        if (memo->n == n && memcmp(memo->spans, spans, n * sizeof *spans) == 0) return pn_ir_ref(c->ir, memo->rule);
    if (!(memo = pn_sc_alloc(c, 1, sizeof *memo))) return 0;
    *memo = (struct pn_chars_memo){ spans, n, pn_ir_rule(c->ir, "", 0, 0, 0), *bucket }; /* the spans are the region's */
    pn_ir_define(c->ir, memo->rule, pn_json_chars(c, spans, n, false));
    *bucket = memo;
    return pn_ir_ref(c->ir, memo->rule);
}

/* All of a state: its end, and for each state that it leads to the characters that do. */
static uint32_t state_node(struct writer *w, uint32_t state, unsigned depth) {
    struct pn_sc *c = w->c;
    const struct pn_dfa *a = w->a;
    uint32_t n = a->at[state + 1] - a->at[state], *alts = pn_sc_alloc(c, n + 1, sizeof *alts), n_alts = 0;
    bool *done = pn_sc_alloc(c, n, sizeof *done);
    struct pn_ir_span *spans = pn_sc_alloc(c, n, sizeof *spans);
    const struct pn_dfa_edge *e = a->edges + a->at[state];
    if (!alts || !done || !spans) return 0;
    if (a->accept[state]) alts[n_alts++] = w->end ? w->end : pn_ir_empty(c->ir);
    for (uint32_t i = 0; i < n && c->err.code == FO_OK; i++) {
        uint32_t k = 0;
        if (done[i] || !w->live[e[i].to]) continue;
        for (uint32_t j = i; j < n; j++) {
            if (e[j].to != e[i].to) continue;
            done[j] = true;
            spans[k++] = (struct pn_ir_span){ j > 0 ? e[j - 1].last + 1 : 0, e[j].last };
        }
        pn_sc_work(c, n + 20);
        uint32_t seq[2];
        seq[0] = w->json ? json_char(c, spans, k) : pn_ir_chars(c->ir, spans, k, false);
        seq[1] = target(w, e[i].to, depth);
        alts[n_alts++] = pn_ir_seq(c->ir, seq, 2);
        spans += k; /* what is remembered stays */
    }
    return pn_ir_alt(c->ir, alts, n_alts);
}

/* The rule of an automaton from its start. */
static uint32_t dfa_rule(struct pn_sc *c, const struct pn_dfa *a, bool json, uint32_t end) {
    struct writer w = { .c = c, .a = a, .end = end, .json = json };
    if (c->err.code) return 0;
    w.live = pn_sc_alloc(c, a->n, sizeof *w.live);
    w.in = pn_sc_alloc(c, a->n, sizeof *w.in);
    w.rules = pn_sc_alloc(c, a->n, sizeof *w.rules);
    uint32_t *defined = pn_sc_alloc(c, a->n, sizeof *defined);
    if (!w.live || !w.in || !w.rules || !defined) return 0;
    find_live(&w);
    for (uint32_t s = 0; s < a->n; s++) {
        uint32_t before = UINT32_MAX; /* many edges of one state to one other are one way, mostly: those one behind the other */
        for (uint32_t i = a->at[s]; i < a->at[s + 1]; i++)
            if (a->edges[i].to != before && w.live[a->edges[i].to]) {
                before = a->edges[i].to;
                w.in[before] += w.in[before] < 2;
            }
        if (w.live[s]) { /* itself is met again: a loop */
            for (uint32_t i = a->at[s]; i < a->at[s + 1]; i++)
                if (a->edges[i].to == s) w.in[s] = 2;
        }
    }
    rule_of(&w, 0);
    for (bool again = true; again && c->err.code == FO_OK;) { /* states come up while others are written */
        again = false;
        for (uint32_t s = 0; s < a->n && c->err.code == FO_OK; s++) {
            if (!w.rules[s] || defined[s]) continue;
            defined[s] = 1;
            again = true;
            pn_ir_define(c->ir, w.rules[s], state_node(&w, s, 0));
            struct fo_err e;
            if (pn_ir_state(c->ir, &e)) return 0;
        }
    }
    return w.rules[0];
}

uint32_t pn_text_number_of(struct pn_sc *c, const struct pn_dfa *a) {
    struct pn_dfa *own = (struct pn_dfa *)a; /* the region's: only the memo is written */
    if (!own) return pn_text_any_number(c);
    if (!own->string_rule) own->string_rule = dfa_rule(c, a, false, 0);
    return pn_ir_ref(c->ir, own->string_rule);
}

uint32_t pn_text_any_number(struct pn_sc *c) {
    static const char regex[] = "^-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$";
    const struct pn_dfa *a = pn_regex_dfa(c, c->root, NULL, regex, sizeof regex - 1);
    return a ? pn_text_number_of(c, a) : 0;
}

static uint32_t quote(struct pn_sc *c) {
    return pn_ir_literal(c->ir, "\"", 1);
}

uint32_t pn_text_any_string(struct pn_sc *c) {
    return pn_text_string_of(c, NULL, 0, PN_SC_NO_END);
}

uint32_t pn_text_string_of(struct pn_sc *c, const struct pn_dfa *a, uint32_t min, uint32_t max) {
    if (!a) {
        uint32_t seq[] = { quote(c), pn_ir_repeat(c->ir, pn_ir_ref(c->ir, c->character), min, max), quote(c) };
        return pn_ir_seq(c->ir, seq, 3);
    }
    if (min > 0 || max != PN_SC_NO_END) a = pn_dfa_and(c, a, pn_dfa_length(c, min, max));
    if (!a) return 0;
    struct pn_dfa *own = (struct pn_dfa *)a;
    if (!a->some) return pn_ir_never(c->ir);
    if (!own->string_rule) own->string_rule = dfa_rule(c, a, true, quote(c));
    uint32_t seq[] = { quote(c), pn_ir_ref(c->ir, own->string_rule) };
    return pn_ir_seq(c->ir, seq, 2);
}

uint32_t pn_text_bare(struct pn_sc *c, struct pn_set set, const char *mark, const char *end) {
    const struct pn_dfa *before = pn_dfa_before(c, mark, end);
    uint32_t *alts = pn_sc_alloc(c, (size_t)set.n + 1, sizeof *alts), n = 0, last = pn_ir_literal(c->ir, end, strlen(end));
    for (uint32_t i = 0; i < set.n && c->err.code == FO_OK; i++) {
        const struct pn_shape *s = &set.list[i];
        const struct pn_dfa *a = s->dfa;
        if (s->type != PN_T_STRING || s->min > s->max) continue;
        if (s->values) {
            const char **words = pn_sc_alloc(c, (size_t)s->n_values + 1, sizeof *words);
            size_t *lens = pn_sc_alloc(c, (size_t)s->n_values + 1, sizeof *lens);
            for (uint32_t k = 0; k < s->n_values && c->err.code == FO_OK; k++) {
                words[k] = json_string_value(s->values[k]);
                lens[k] = json_string_length(s->values[k]);
            }
            a = c->err.code ? NULL : pn_dfa_words(c, words, lens, s->n_values);
        } else if (s->min > 0 || s->max != PN_SC_NO_END) {
            a = pn_dfa_and(c, a, pn_dfa_length(c, s->min, s->max));
        }
        if (!(a = pn_dfa_and(c, a, before)) && c->err.code == FO_OK) a = pn_dfa_length(c, 0, PN_SC_NO_END); /* anything at all */
        if (a && a->some) alts[n++] = pn_ir_ref(c->ir, dfa_rule(c, a, false, last));
    }
    return c->err.code ? 0 : pn_ir_alt(c->ir, alts, n);
}

/* --- values ------------------------------------------------------------------------------------ */
uint32_t pn_text_string(struct pn_sc *c, const char *s, size_t len) {
    char *out = pn_sc_alloc(c, len + 1, 6), *o = out;
    if (!out) return 0;
    *o++ = '"';
    for (size_t i = 0; i < len; i++) {
        static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt", hex[] = "0123456789abcdef";
        const char *k = shorts;
        while (*k && *k != s[i]) k += 2;
        if (*k) {
            *o++ = '\\';
            *o++ = k[1];
        } else if ((unsigned char)s[i] < 0x20 || (unsigned char)s[i] == c->escaped) {
            memcpy(o, "\\u00", 4);
            o[4] = hex[s[i] >> 4];
            o[5] = hex[s[i] & 15];
            o += 6;
        } else {
            *o++ = s[i];
        }
    }
    *o++ = '"';
    return pn_ir_literal(c->ir, out, (size_t)(o - out));
}

static uint32_t mark(struct pn_sc *c, const char *ch) {
    uint32_t seq[] = { pn_ir_literal(c->ir, ch, 1), pn_ir_repeat(c->ir, pn_ir_literal(c->ir, " ", 1), 0, 1) };
    return pn_ir_seq(c->ir, seq, 2);
}

uint32_t pn_text_comma(struct pn_sc *c) {
    return mark(c, ",");
}

uint32_t pn_text_colon(struct pn_sc *c) {
    return mark(c, ":");
}

uint32_t pn_text_value(struct pn_sc *c, const json_t *v, unsigned depth) {
    char decimal[PN_DECIMAL_BYTES];
    if (depth > PN_SC_MAX_DEPTH || c->err.code) return 0;
    pn_sc_work(c, 4);
    switch (json_typeof(v)) {
    case JSON_NULL:
        return pn_ir_literal(c->ir, "null", 4);
    case JSON_TRUE:
        return pn_ir_literal(c->ir, "true", 4);
    case JSON_FALSE:
        return pn_ir_literal(c->ir, "false", 5);
    case JSON_STRING:
        return pn_text_string(c, json_string_value(v), json_string_length(v));
    case JSON_INTEGER:
    case JSON_REAL:
        if (!pn_decimal(v, decimal)) {
            pn_sc_fail(c, FO_EUNSUPPORTED, c->at, c->at_key, "a number this small");
            return 0;
        }
        return pn_ir_literal(c->ir, decimal, strlen(decimal));
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    bool array = json_is_array(v);
    size_t n = array ? json_array_size(v) : json_object_size(v), k = 0;
    uint32_t *seq = pn_sc_alloc(c, n * 4 + 2, sizeof *seq);
    if (!seq) return 0;
    seq[k++] = pn_ir_literal(c->ir, array ? "[" : "{", 1);
    void *it = array ? NULL : json_object_iter((json_t *)v);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) seq[k++] = pn_text_comma(c);
        if (array) {
            seq[k++] = pn_text_value(c, json_array_get(v, i), depth + 1);
        } else {
            const char *key = json_object_iter_key(it);
            seq[k++] = pn_text_string(c, key, strlen(key));
            seq[k++] = pn_text_colon(c);
            seq[k++] = pn_text_value(c, json_object_iter_value(it), depth + 1);
            it = json_object_iter_next((json_t *)v, it);
        }
    }
    seq[k++] = pn_ir_literal(c->ir, array ? "]" : "}", 1);
    return pn_ir_seq(c->ir, seq, k);
}
