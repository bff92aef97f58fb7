/* Building grammars: see ir.h.
 *
 * Characters as bytes: the code points are cut first where UTF-8 changes length and around the surrogates, then so that each piece is a
 * fixed head, one byte of a range, and then nothing but full continuation bytes (80-BF):
 *
 *     U+0800 .. U+0FFF   E0    A0-BF 80-BF
 *     U+1000 .. U+CFFF   E1-EC 80-BF 80-BF
 *
 * which is what Unicode's table of well-formed UTF-8 says, for any range. Pieces of one byte are one set; the others are alternatives, and
 * neighbours with the same head and tail are one piece. */
#include "engine/grammar/ir.h"

#include <stdlib.h>
#include <string.h>

#include "engine/grammar/ir_impl.h"

/* --- memory ------------------------------------------------------------------------------------ */
void pn_ir_fail(struct pn_ir *ir, const struct fo_err *e) {
    if (ir->err.code == FO_OK) ir->err = *e;
}

/* One more item of `size` bytes, or n more; NULL with the failure noted. */
static void *grow(struct pn_ir *ir, struct pn_ir_array *a, size_t size, size_t n, size_t most, const char *what) {
    struct fo_err e;
    if (ir->err.code) return NULL;
    if (n > most - a->n) {
        fo_fail_need(&e, FO_ELIMIT, (uint64_t)a->n + n, most, "the grammar is too big: it may have %zu %s", most, what);
        pn_ir_fail(ir, &e);
        return NULL;
    }
    if (a->n + n > a->cap) {
        size_t cap = a->cap ? (size_t)a->cap * 2 : 64;
        while (cap < a->n + n) cap *= 2;
        size_t more = (cap - a->cap) * size;
        if (ir->total_bytes + more > PN_IR_MAX_BYTES) {
            fo_fail_need(&e, FO_ELIMIT, ir->total_bytes + more, PN_IR_MAX_BYTES, "the grammar is too big: it may take %d MiB", PN_IR_MAX_BYTES >> 20);
            pn_ir_fail(ir, &e);
            return NULL;
        }
        void *at = realloc(a->at, cap * size);
        if (!at) {
            fo_fail(&e, FO_ENOMEM, "no memory for a grammar");
            pn_ir_fail(ir, &e);
            return NULL;
        }
        ir->total_bytes += more;
        a->at = at;
        a->cap = (uint32_t)cap;
    }
    void *item = (char *)a->at + a->n * size;
    a->n += (uint32_t)n;
    return item;
}

static uint32_t add(struct pn_ir *ir, enum pn_ir_kind kind, uint32_t at, uint32_t n, uint32_t max, unsigned depth) {
    struct fo_err e;
    if (depth > PN_IR_MAX_DEPTH) {
        fo_fail_need(&e, FO_ELIMIT, depth, PN_IR_MAX_DEPTH, "the grammar is nested too deep: %d levels are allowed within one rule", PN_IR_MAX_DEPTH);
        pn_ir_fail(ir, &e);
    }
    struct pn_ir_node *d = grow(ir, &ir->nodes, sizeof *d, 1, PN_IR_MAX_NODES, "parts");
    if (!d) return 0;
    *d = (struct pn_ir_node){ .kind = (uint8_t)kind, .depth = (uint16_t)depth, .at = at, .n = n, .max = max };
    return ir->nodes.n - 1;
}

int pn_ir_new(struct pn_ir **ret, struct fo_err *e) {
    struct pn_ir *ir = calloc(1, sizeof *ir);
    if (!ir) return fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    struct pn_ir_rule *none = grow(ir, &ir->rules, sizeof *none, 1, PN_IR_MAX_RULES, "rules");
    if (none) *none = (struct pn_ir_rule){ 0 };
    add(ir, PN_IR_NEVER, 0, 0, 0, 0);
    if (pn_ir_state(ir, e)) {
        pn_ir_free(ir);
        return e->code;
    }
    *ret = ir;
    return 0;
}

void pn_ir_free(struct pn_ir *ir) {
    if (!ir) return;
    free(ir->nodes.at);
    free(ir->rules.at);
    free(ir->parts.at);
    free(ir->bytes.at);
    free(ir->sets.at);
    free(ir);
}

int pn_ir_state(const struct pn_ir *ir, struct fo_err *e) {
    if (ir->err.code) *e = ir->err;
    return (int)ir->err.code;
}

/* --- nodes ------------------------------------------------------------------------------------- */
uint32_t pn_ir_empty(struct pn_ir *ir) {
    return add(ir, PN_IR_EMPTY, 0, 0, 0, 1);
}

uint32_t pn_ir_never(struct pn_ir *ir) {
    return add(ir, PN_IR_NEVER, 0, 0, 0, 1);
}

uint32_t pn_ir_literal(struct pn_ir *ir, const char *bytes, size_t n) {
    if (n == 0) return pn_ir_empty(ir);
    char *copy = grow(ir, &ir->bytes, 1, n, PN_IR_MAX_BYTES, "bytes of text");
    if (!copy) return 0;
    memcpy(copy, bytes, n);
    return add(ir, PN_IR_LITERAL, ir->bytes.n - (uint32_t)n, (uint32_t)n, 0, 1);
}

uint32_t pn_ir_bytes(struct pn_ir *ir, const uint64_t set[4]) {
    if (!(set[0] | set[1] | set[2] | set[3])) return pn_ir_never(ir);
    uint64_t hash = 0;
    for (int i = 0; i < 4; i++) hash = (hash ^ set[i]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    enum { MASK = PN_IR_BUCKETS * 4 - 1 };
    uint32_t at = (uint32_t)hash & MASK;
    for (int tries = 0; ir->set_index[at] && tries < 16; tries++, at = (at + 1) & MASK) /* a table that is full only means that a set is kept twice */
        if (memcmp(pn_ir_set_at(ir, ir->set_index[at] - 1), set, 32) == 0) return add(ir, PN_IR_SET, ir->set_index[at] - 1, 0, 0, 1);
    uint64_t *copy = grow(ir, &ir->sets, 32, 1, PN_IR_MAX_NODES, "sets of bytes");
    if (!copy) return 0;
    memcpy(copy, set, 32);
    ir->set_index[at] = ir->sets.n;
    return add(ir, PN_IR_SET, ir->sets.n - 1, 0, 0, 1);
}

/* SEQ or ALT of nodes[0..n). */
static uint32_t join(struct pn_ir *ir, enum pn_ir_kind kind, const uint32_t *nodes, size_t n) {
    if (ir->err.code) return 0;
    if (n == 1) return nodes[0];
    unsigned depth = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned d = pn_ir_node_at(ir, nodes[i])->depth;
        if (d > depth) depth = d;
    }
    uint32_t *copy = grow(ir, &ir->parts, sizeof *copy, n, PN_IR_MAX_NODES * 4, "parts");
    if (!copy) return 0;
    memcpy(copy, nodes, n * sizeof *copy);
    return add(ir, kind, ir->parts.n - (uint32_t)n, (uint32_t)n, 0, depth + 1);
}

uint32_t pn_ir_seq(struct pn_ir *ir, const uint32_t *nodes, size_t n) {
    return n == 0 ? pn_ir_empty(ir) : join(ir, PN_IR_SEQ, nodes, n);
}

uint32_t pn_ir_alt(struct pn_ir *ir, const uint32_t *nodes, size_t n) {
    return n == 0 ? pn_ir_never(ir) : join(ir, PN_IR_ALT, nodes, n);
}

uint32_t pn_ir_repeat(struct pn_ir *ir, uint32_t node, uint32_t min, uint32_t max) {
    struct fo_err e;
    if (ir->err.code) return 0;
    if (min > max || min == PN_IR_INFINITE) {
        fo_fail(&e, FO_EINVAL, "a repetition of at least %u and at most %u times", min, max);
        pn_ir_fail(ir, &e);
        return 0;
    }
    if (max == 0) return pn_ir_empty(ir);
    if (min == 1 && max == 1) return node;
    return add(ir, PN_IR_REPEAT, node, min, max, pn_ir_node_at(ir, node)->depth + 1u);
}

uint32_t pn_ir_ref(struct pn_ir *ir, uint32_t rule) {
    if (ir->err.code || rule == 0) return 0;
    return add(ir, PN_IR_REF, rule, 0, 0, 1);
}

/* --- characters -------------------------------------------------------------------------------- */
enum { MAX_POINT = 0x10FFFF };

int pn_ir_utf8(uint32_t c, char ret[4]) {
    if (c < 0x80) {
        ret[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) ret[i] = (char)(0x80 | (c & 0x3F));
    ret[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

static void set_range(uint64_t set[4], unsigned first, unsigned last) {
    for (unsigned b = first; b <= last; b++) set[b >> 6] |= 1ULL << (b & 63);
}

/* Alternatives on their way, flushed into one node when there are many. */
struct alts {
    struct pn_ir *ir;
    uint64_t single[4]; /* characters of one byte */
    uint32_t list[64];
    size_t n;
};

static void alts_add(struct alts *a, uint32_t node) {
    if (a->n == sizeof a->list / sizeof *a->list) {
        a->list[0] = pn_ir_alt(a->ir, a->list, a->n);
        a->n = 1;
    }
    a->list[a->n++] = node;
}

/* [first, last], whose UTF-8 has one length and differs in byte `at` (and then in nothing or in everything behind it). */
static void add_piece(struct alts *a, uint32_t first, uint32_t last) {
    char lo[4], hi[4];
    int n = pn_ir_utf8(first, lo);
    pn_ir_utf8(last, hi);
    if (n == 1) {
        set_range(a->single, first, last);
        return;
    }
    uint32_t seq[4];
    for (int i = 0; i < n; i++) {
        uint64_t set[4] = { 0 };
        set_range(set, (unsigned char)lo[i], (unsigned char)hi[i]);
        seq[i] = pn_ir_bytes(a->ir, set);
    }
    alts_add(a, pn_ir_seq(a->ir, seq, (size_t)n));
}

/* Cuts [first, last] into pieces. */
static void add_points(struct alts *a, uint32_t first, uint32_t last) {
    static const uint32_t ends[] = { 0x7F, 0x7FF, 0xD7FF, 0xFFFF, MAX_POINT };
    while (first <= last && a->ir->err.code == FO_OK) {
        if (first >= 0xD800 && first <= 0xDFFF) { /* surrogates */
            first = 0xE000;
            continue;
        }
        uint32_t end = last;
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            if (first <= ends[i] && end > ends[i]) {
                end = ends[i];
                break;
            }
        if (first >= 0x80)
            for (int shift = 6; shift <= 18; shift += 6) { /* from the last byte to the first: cut where what is behind is not full */
                uint32_t m = (1u << shift) - 1;
                if ((first & ~m) == (end & ~m)) break;
                if (first & m) {
                    end = first | m;
                    break;
                }
                if ((end & m) != m) {
                    uint32_t cut = (end & ~m) - 1;
                    if (cut >= first) end = cut;
                }
            }
        add_piece(a, first, end);
        first = end + 1;
    }
}

static int by_first(const void *x, const void *y) {
    const struct pn_ir_span *a = x, *b = y;
    return a->first < b->first ? -1 : a->first > b->first;
}

uint32_t pn_ir_chars(struct pn_ir *ir, const struct pn_ir_span *ranges, size_t n, bool negated) {
    struct fo_err e;
    if (ir->err.code) return 0;
    struct pn_ir_span *sorted = n > 0 ? malloc(n * sizeof *sorted) : NULL;
    if (n > 0 && !sorted) {
        fo_fail(&e, FO_ENOMEM, "no memory for a grammar");
        pn_ir_fail(ir, &e);
        return 0;
    }
    if (n > 0) {
        memcpy(sorted, ranges, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_first);
    }
    struct alts a = { .ir = ir };
    uint32_t next = 0; /* the first code point that is not done yet */
    for (size_t i = 0; i < n && next <= MAX_POINT;) {
        uint32_t first = sorted[i].first, last = sorted[i].last;
        for (i++; i < n && (last == UINT32_MAX || sorted[i].first <= last + 1); i++) /* one run */
            if (sorted[i].last > last) last = sorted[i].last;
        if (last < first) continue;
        if (last > MAX_POINT) last = MAX_POINT;
        if (negated) {
            if (first > next) add_points(&a, next, first - 1 > MAX_POINT ? MAX_POINT : first - 1);
        } else if (first <= last) {
            add_points(&a, first, last);
        }
        next = last + 1;
    }
    free(sorted);
    if (negated && next <= MAX_POINT) add_points(&a, next, MAX_POINT);
    if (a.single[0] | a.single[1]) alts_add(&a, pn_ir_bytes(ir, a.single));
    return pn_ir_alt(ir, a.list, a.n);
}

uint32_t pn_ir_range(struct pn_ir *ir, uint32_t first, uint32_t last) {
    return pn_ir_chars(ir, &(struct pn_ir_span){ first, last }, 1, false);
}

/* --- rules ------------------------------------------------------------------------------------- */
uint32_t pn_ir_rule(struct pn_ir *ir, const char *name, size_t n, int line, int col) {
    uint32_t hash = 2166136261u;
    struct pn_ir_rule *r;
    struct fo_err e;
    if (n > PN_IR_NAME_BYTES) {
        fo_fail_at(&e, FO_ELIMIT, line, col, "the name of a rule is longer than %d bytes", PN_IR_NAME_BYTES);
        pn_ir_fail(ir, &e);
    }
    if (ir->err.code) return 0;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    uint32_t *bucket = &ir->names[hash % PN_IR_BUCKETS];
    for (uint32_t i = n > 0 ? *bucket : 0; i; i = r->next) {
        r = (struct pn_ir_rule *)ir->rules.at + i;
        if (r->n_name != n || memcmp((const char *)ir->bytes.at + r->name, name, n) != 0) continue;
        if (r->line == 0) r->line = line, r->col = col;
        return i;
    }
    char *copy = n > 0 ? grow(ir, &ir->bytes, 1, n, PN_IR_MAX_BYTES, "bytes of text") : NULL;
    if (copy) memcpy(copy, name, n);
    r = grow(ir, &ir->rules, sizeof *r, 1, PN_IR_MAX_RULES, "rules");
    if (!r) return 0;
    *r = (struct pn_ir_rule){ .line = line, .col = col, .name = ir->bytes.n - (uint32_t)n, .n_name = (uint32_t)n };
    if (n > 0) {
        r->next = *bucket;
        *bucket = ir->rules.n - 1;
    }
    return ir->rules.n - 1;
}

const char *pn_ir_rule_name(const struct pn_ir *ir, uint32_t rule, int *ret_len) {
    const struct pn_ir_rule *r = pn_ir_rule_at(ir, rule);
    *ret_len = r->n_name > 64 ? 64 : (int)r->n_name;
    return r->n_name > 0 ? (const char *)ir->bytes.at + r->name : "";
}

bool pn_ir_defined(const struct pn_ir *ir, uint32_t rule) {
    return rule > 0 && rule < ir->rules.n && pn_ir_rule_at(ir, rule)->node != 0;
}

void pn_ir_define(struct pn_ir *ir, uint32_t rule, uint32_t node) {
    struct fo_err e;
    if (ir->err.code) return;
    struct pn_ir_rule *r = (struct pn_ir_rule *)ir->rules.at + rule;
    if (r->node) {
        int len;
        const char *name = pn_ir_rule_name(ir, rule, &len);
        fo_fail_at(&e, FO_EINVAL, r->line, r->col, "rule '%.*s' is defined twice", len, name);
        pn_ir_fail(ir, &e);
        return;
    }
    r->node = node;
}

void pn_ir_root(struct pn_ir *ir, uint32_t rule) {
    ir->root = rule;
}
