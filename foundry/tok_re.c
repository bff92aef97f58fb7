/* Regular expressions to automata: see tok_re.h.
 *
 *   text  -> tree          parse_*     one node per operator
 *   tree  -> program       emit        CHAR, SPLIT (two ways, the first preferred), LOOK, END, MATCH
 *   sets  -> classes       classify    code points that no set of the expression tells apart become one class
 *   program -> automaton   determinize a state is the ORDERED list of program positions that are still in the race
 *
 * Order is what makes the automaton answer like a backtracking matcher: a position that reaches MATCH strikes out every position
 * behind it. Positions are stored before their zero-width steps (SPLIT, LOOK, END) are followed: those are followed when the next
 * class is known, so a look-ahead of one character needs no look-ahead at run time. Hence a transition says two things: whether a
 * match ends before the character just read, and the next state. */
#include "foundry/tok_re.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/unicode.h"

enum { MAX_NODES = 512, MAX_INSTS = 4096, MAX_SETS = 64, MAX_STATES = 0x3FFF, MAX_DEPTH = 16, MAX_REPEAT = 512 };
enum { MAX_WORK = 10000000 }; /* steps of compiling: a tenth of a second. The rules of tok_pre.c need up to 105,006 */
enum { T_MATCH = 0x8000, T_SKIP = 0x4000, T_STATE = 0x3FFF };
#define DOMAIN_LAST FO_UNICODE_END /* stands for an invalid byte; negated sets have it */

struct fo_re {
    uint8_t ascii[128];      /* class by byte */
    uint8_t mapped[256];     /* class by byte, where every byte is matched as a character of its own: */
    const uint8_t *byte;     /* `mapped` then, else NULL */
    uint16_t page[0x1100];   /* index of the block of 256 code points */
    uint8_t *blocks;         /* [n_blocks, 256] class */
    uint16_t *next;          /* [n_states, n_classes]; state 0 = dead, 1 = start */
    unsigned n_classes;
    size_t n_blocks, n_states; /* that there is room for */
    uint8_t invalid, end;    /* the classes of an invalid byte and of the end of the text */
};

struct range {
    uint32_t first, last;
};

struct set {
    struct range *r;
    size_t n, size;
};

enum node_kind { N_EMPTY, N_SET, N_CAT, N_ALT, N_REP, N_LOOK, N_END };
struct node {
    enum node_kind kind;
    int a, b; /* children; N_SET and N_LOOK: a = set, b = negated; N_REP: a = child, b = least, most = -1 for no bound */
    int most;
};

enum op { I_CHAR, I_SPLIT, I_JUMP, I_LOOK, I_END, I_MATCH };
struct inst {
    enum op op;
    uint16_t x, y; /* CHAR, LOOK: x = set, y = negated; SPLIT, JUMP: where to; MATCH: x = the transition's bit */
};

struct build {
    const char *p; /* what is left of the expression */
    bool icase;
    int depth;
    struct node node[MAX_NODES];
    int n_nodes;
    struct inst inst[MAX_INSTS];
    int n_insts;
    struct set set[MAX_SETS];
    int n_sets;
    uint64_t member[256]; /* by class: bit i = the class is in set i */
    unsigned n_classes;
    uint64_t work;
    struct fo_re *re;
    struct fo_err *e;
};

/* The cost of compiling is exponential in hostile expressions: this ends it. */
static int spend(struct build *b, uint64_t steps) {
    b->work += steps;
    return b->work <= MAX_WORK ? 0 : fo_fail(b->e, FO_EUNSUPPORTED, "a pre-tokenizer rule takes too long to compile");
}

/* --- sets ------------------------------------------------------------------------------------ */

static int set_add(struct build *b, struct set *s, uint32_t first, uint32_t last) {
    if (s->n == s->size) {
        size_t size = s->size ? s->size * 2 : 8;
        struct range *r = realloc(s->r, size * sizeof *r);
        if (!r) return fo_fail(b->e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
        s->r = r;
        s->size = size;
    }
    s->r[s->n++] = (struct range){ first, last };
    return 0;
}

static int by_first(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorted, disjoint, not adjacent. */
static void set_normalize(struct set *s) {
    bool sorted = true;
    for (size_t i = 1; i < s->n; i++) sorted = sorted && s->r[i - 1].first <= s->r[i].first;
    if (!sorted) qsort(s->r, s->n, sizeof *s->r, by_first);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->r[i].first <= s->r[n - 1].last + 1) {
            if (s->r[i].last > s->r[n - 1].last) s->r[n - 1].last = s->r[i].last;
        } else {
            s->r[n++] = s->r[i];
        }
    }
    s->n = n;
}

/* Over a normalised set. */
static int set_negate(struct build *b, struct set *s) {
    struct set out = { 0 };
    uint32_t at = 0;
    int rc = 0;
    for (size_t i = 0; i < s->n && !rc; i++) {
        if (s->r[i].first > at) rc = set_add(b, &out, at, s->r[i].first - 1);
        at = s->r[i].last + 1;
    }
    if (!rc && at <= DOMAIN_LAST) rc = set_add(b, &out, at, DOMAIN_LAST);
    free(s->r);
    *s = out;
    return rc;
}

static int set_add_set(struct build *b, struct set *s, const struct set *more) {
    int rc = 0;
    for (size_t i = 0; i < more->n && !rc; i++) rc = set_add(b, s, more->r[i].first, more->r[i].last);
    return rc;
}

/* Every code point whose range of the table says so: `mask` has a bit per category; space = White_Space instead. */
static int set_add_property(struct build *b, struct set *s, uint32_t mask, bool space, bool negate) {
    struct set own = { 0 };
    int rc = 0;
    for (size_t i = 0; i < fo_unicode_n_ranges && !rc; i++) {
        uint32_t r = fo_unicode_ranges[i];
        uint32_t end = i + 1 < fo_unicode_n_ranges ? fo_unicode_ranges[i + 1] >> 8 : FO_UNICODE_END;
        if (space ? (r & 0x80) != 0 : (mask >> (r & 0x7F) & 1) != 0) rc = set_add(b, &own, r >> 8, end - 1);
    }
    if (!rc) set_normalize(&own);
    if (!rc && negate) rc = set_negate(b, &own);
    if (!rc) rc = set_add_set(b, s, &own);
    free(own.r);
    return rc;
}

/* Gives the set an index (an equal one that is there already), and takes it over in any case. */
static int set_intern(struct build *b, struct set *s, int *ret) {
    set_normalize(s);
    for (int i = 0; i < b->n_sets; i++) {
        if (b->set[i].n == s->n && (!s->n || !memcmp(b->set[i].r, s->r, s->n * sizeof *s->r))) {
            free(s->r);
            *ret = i;
            return 0;
        }
    }
    if (b->n_sets == MAX_SETS) {
        free(s->r);
        return fo_fail(b->e, FO_EUNSUPPORTED, "a pre-tokenizer rule has more than %d classes", MAX_SETS);
    }
    b->set[b->n_sets] = *s;
    *ret = b->n_sets++;
    return 0;
}

/* --- parse ----------------------------------------------------------------------------------- */

static int syntax(struct build *b) {
    return fo_fail(b->e, FO_EUNSUPPORTED, "a pre-tokenizer rule is not understood at '%.40s'", b->p);
}

static int node_new(struct build *b, enum node_kind kind, int x, int y, int *ret) {
    if (b->n_nodes == MAX_NODES) return syntax(b);
    b->node[b->n_nodes] = (struct node){ .kind = kind, .a = x, .b = y };
    *ret = b->n_nodes++;
    return 0;
}

static uint32_t next_char(struct build *b) {
    size_t len;
    uint32_t cp = fo_utf8_next(b->p, strlen(b->p), &len);
    b->p += len;
    return cp;
}

/* What \w is: letters, marks, numbers, connectors. */
#define WORD_MASK                                                                                                          \
    (1u << FO_UC_LL | 1u << FO_UC_LM | 1u << FO_UC_LO | 1u << FO_UC_LT | 1u << FO_UC_LU | 1u << FO_UC_MC | 1u << FO_UC_ME | \
     1u << FO_UC_MN | 1u << FO_UC_ND | 1u << FO_UC_NL | 1u << FO_UC_NO | 1u << FO_UC_PC)

/* After "\p" or "\P": {Name}. */
static int parse_property(struct build *b, struct set *s, bool negate) {
    static const char names[] = "CnCcCfCoCsLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs"; /* as enum fo_ucat */
    uint32_t mask = 0;
    size_t len = b->p[0] == '{' ? strcspn(b->p + 1, "}") : 0;
    if (len < 1 || len > 2 || b->p[1 + len] != '}') return syntax(b);
    for (unsigned i = 0; i < FO_UC_N; i++) mask |= (uint32_t)!strncmp(names + 2 * i, b->p + 1, len) << i;
    if (!mask) return syntax(b);
    b->p += len + 2;
    return set_add_property(b, s, mask, false, negate);
}

/* After "\\u" or "\\x": four or two digits, or any number of them in braces after x. */
static int parse_hex(struct build *b, char kind, uint32_t *ret_cp) {
    bool braces = kind == 'x' && *b->p == '{';
    int n = 0, most = kind == 'u' ? 4 : braces ? 6 : 2;
    uint32_t cp = 0;
    if (braces) b->p++;
    for (; n < most; n++, b->p++) {
        char c = *b->p;
        if (c >= '0' && c <= '9') cp = cp << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') cp = cp << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else break;
    }
    if (!n || (!braces && n < most) || (braces && *b->p++ != '}') || cp >= FO_UNICODE_END) return syntax(b);
    *ret_cp = cp;
    return 0;
}

/* After '\': a class goes into s, a character into *ret_cp (else FO_UNICODE_END). */
static int parse_escape(struct build *b, struct set *s, uint32_t *ret_cp) {
    char c = *b->p;
    *ret_cp = FO_UNICODE_END;
    if (!c) return syntax(b);
    b->p++;
    switch (c) {
    case 'p':
    case 'P': return parse_property(b, s, c == 'P');
    case 's':
    case 'S': return set_add_property(b, s, 0, true, c == 'S');
    case 'd':
    case 'D': return set_add_property(b, s, 1u << FO_UC_ND, false, c == 'D');
    case 'w':
    case 'W': return set_add_property(b, s, WORD_MASK, false, c == 'W');
    case 'x':
    case 'u': return parse_hex(b, c, ret_cp);
    case 'r': *ret_cp = '\r'; return 0;
    case 'n': *ret_cp = '\n'; return 0;
    case 't': *ret_cp = '\t'; return 0;
    }
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return syntax(b);
    *ret_cp = (uint8_t)c;
    return 0;
}

static int set_add_char(struct build *b, struct set *s, uint32_t cp) {
    int rc = set_add(b, s, cp, cp);
    uint32_t lower = cp | 0x20, third = lower == 's' ? 0x17F : lower == 'k' ? 0x212A : 0; /* the long s and the Kelvin sign */
    if (rc || !b->icase || lower < 'a' || lower > 'z') return rc;
    rc = set_add(b, s, cp ^ 0x20, cp ^ 0x20);
    return rc || !third ? rc : set_add(b, s, third, third);
}

static int set_add_range(struct build *b, struct set *s, uint32_t low, uint32_t high) {
    if (high == FO_UNICODE_END || high < low) return syntax(b);
    int rc = set_add(b, s, low, high);
    for (uint32_t cp = low > 'A' ? low : 'A'; b->icase && !rc && cp <= high && cp <= 'z'; cp++) rc = set_add_char(b, s, cp);
    return rc;
}

/* After '[': up to and with ']'. */
static int parse_class(struct build *b, struct set *s) {
    int rc = ++b->depth > MAX_DEPTH ? syntax(b) : 0;
    bool negate = *b->p == '^';
    if (negate) b->p++;
    for (bool first = true; !rc && (*b->p != ']' || first); first = false) {
        if (!*b->p) return syntax(b);
        if (b->p[0] == '&' && b->p[1] == '&') { /* [A&&B]: not (not A or not B); B runs to the closing bracket */
            struct set right = { 0 };
            b->p += 2;
            set_normalize(s);
            rc = *b->p == '[' ? 0 : syntax(b);
            if (!rc) b->p++, rc = parse_class(b, &right);
            if (!rc) set_normalize(&right);
            if (!rc) rc = set_negate(b, s);
            if (!rc) rc = set_negate(b, &right);
            if (!rc) rc = set_add_set(b, s, &right);
            if (!rc) set_normalize(s);
            if (!rc) rc = set_negate(b, s);
            free(right.r);
            continue;
        }
        uint32_t low = 0, high;
        if (*b->p == '[') return syntax(b); /* a union of sets, or [:name:] */
        if (*b->p == '\\') b->p++, rc = parse_escape(b, s, &low);
        else low = next_char(b);
        if (rc || low == FO_UNICODE_END) continue;
        if (b->p[0] != '-' || b->p[1] == ']') {
            rc = set_add_char(b, s, low);
            continue;
        }
        b->p++;
        if (*b->p == '\\') b->p++, rc = parse_escape(b, s, &high);
        else high = next_char(b);
        if (!rc) rc = set_add_range(b, s, low, high);
    }
    if (rc) return rc;
    b->p++;
    b->depth--;
    set_normalize(s);
    return negate ? set_negate(b, s) : 0;
}

/* One character or class. */
static int parse_set(struct build *b, int *ret) {
    struct set s = { 0 };
    uint32_t cp = FO_UNICODE_END;
    int rc = 0;
    if (*b->p == '[') b->p++, rc = parse_class(b, &s);
    else if (*b->p == '\\') b->p++, rc = parse_escape(b, &s, &cp);
    else if (*b->p == '.') b->p++, rc = (rc = set_add(b, &s, 0, '\n' - 1)) ? rc : set_add(b, &s, '\n' + 1, DOMAIN_LAST);
    else cp = next_char(b);
    if (!rc && cp != FO_UNICODE_END) rc = set_add_char(b, &s, cp);
    if (rc) {
        free(s.r);
        return rc;
    }
    return set_intern(b, &s, ret);
}

static int parse_alt(struct build *b, int *ret);

static int parse_atom(struct build *b, int *ret) {
    int set = 0, rc;
    if (*b->p == '$') { /* the end of the text or of a line */
        struct set line = { 0 };
        int end = 0, look = 0;
        b->p++;
        if ((rc = set_add(b, &line, '\n', '\n')) || (rc = set_intern(b, &line, &set)) || (rc = node_new(b, N_END, 0, 0, &end)) ||
            (rc = node_new(b, N_LOOK, set, 0, &look))) {
            return rc;
        }
        return node_new(b, N_ALT, end, look, ret);
    }
    if (b->p[0] == '(' && b->p[1] == '?' && (b->p[2] == '=' || b->p[2] == '!')) {
        bool negate = b->p[2] == '!';
        b->p += 3;
        if ((rc = parse_set(b, &set))) return rc;
        if (*b->p != ')') return syntax(b);
        b->p++;
        return node_new(b, N_LOOK, set, negate, ret);
    }
    if (*b->p == '(') {
        bool icase = b->icase;
        if (!strncmp(b->p, "(?i:", 4)) b->icase = true, b->p += 4;
        else if (!strncmp(b->p, "(?:", 3)) b->p += 3;
        else if (b->p[1] == '?') return syntax(b);
        else b->p++; /* a group that remembers is a group */
        if ((rc = parse_alt(b, ret))) return rc;
        b->icase = icase;
        if (*b->p != ')') return syntax(b);
        b->p++;
        return 0;
    }
    if (!*b->p || strchr("*+?{^", *b->p)) return syntax(b);
    if ((rc = parse_set(b, &set))) return rc;
    return node_new(b, N_SET, set, 0, ret);
}

/* A number of at most MAX_REPEAT, or -1. */
static int parse_number(struct build *b) {
    int n = *b->p >= '0' && *b->p <= '9' ? 0 : -1;
    for (; *b->p >= '0' && *b->p <= '9' && n <= MAX_REPEAT; b->p++) n = n * 10 + (*b->p - '0');
    return n <= MAX_REPEAT ? n : -1;
}

static int parse_repeat(struct build *b, int *ret) {
    int rc = parse_atom(b, ret);
    if (!rc && *b->p && strchr("*+?{", *b->p)) {
        char c = *b->p++;
        int least = c == '+', most = c == '?' ? 1 : -1;
        if (c == '{') {
            least = parse_number(b);
            most = least;
            if (*b->p == ',') b->p++, most = *b->p == '}' ? -1 : parse_number(b);
            if (least < 0 || *b->p != '}' || (most >= 0 && most < least)) return syntax(b);
            b->p++;
        }
        rc = node_new(b, N_REP, *ret, least, ret);
        if (!rc) b->node[*ret].most = most;
        if (!rc && *b->p && strchr("*+?{", *b->p)) rc = syntax(b); /* lazy or possessive: not what an automaton does */
    }
    return rc;
}

static int parse_cat(struct build *b, int *ret) {
    int rc = node_new(b, N_EMPTY, 0, 0, ret);
    while (!rc && *b->p && *b->p != '|' && *b->p != ')') {
        int right = 0;
        rc = parse_repeat(b, &right);
        if (!rc) rc = node_new(b, N_CAT, *ret, right, ret);
    }
    return rc;
}

static int parse_alt(struct build *b, int *ret) {
    if (++b->depth > MAX_DEPTH) return syntax(b);
    int rc = parse_cat(b, ret);
    while (!rc && *b->p == '|') {
        int right = 0;
        b->p++;
        rc = parse_cat(b, &right);
        if (!rc) rc = node_new(b, N_ALT, *ret, right, ret);
    }
    b->depth--;
    return rc;
}

/* --- program --------------------------------------------------------------------------------- */

static int inst_add(struct build *b, enum op op, int x, int y) {
    if (b->n_insts == MAX_INSTS) return fo_fail(b->e, FO_EUNSUPPORTED, "a pre-tokenizer rule is too long");
    b->inst[b->n_insts++] = (struct inst){ op, (uint16_t)x, (uint16_t)y };
    return 0;
}

static int emit(struct build *b, int at) {
    const struct node *n = &b->node[at];
    int split, jump, rc = spend(b, 1);
    if (rc) return rc;
    switch (n->kind) {
    case N_EMPTY: return 0;
    case N_SET: return inst_add(b, I_CHAR, n->a, 0);
    case N_LOOK: return inst_add(b, I_LOOK, n->a, n->b);
    case N_END: return inst_add(b, I_END, 0, 0);
    case N_CAT: return (rc = emit(b, n->a)) ? rc : emit(b, n->b);
    case N_ALT:
        split = b->n_insts;
        if ((rc = inst_add(b, I_SPLIT, split + 1, 0)) || (rc = emit(b, n->a))) return rc;
        jump = b->n_insts;
        if ((rc = inst_add(b, I_JUMP, 0, 0))) return rc;
        b->inst[split].y = (uint16_t)b->n_insts;
        if ((rc = emit(b, n->b))) return rc;
        b->inst[jump].x = (uint16_t)b->n_insts;
        return 0;
    case N_REP:
        for (int i = 0; i < n->b && !rc; i++) rc = emit(b, n->a);
        if (n->most < 0) {
            split = b->n_insts;
            if (rc || (rc = inst_add(b, I_SPLIT, split + 1, 0)) || (rc = emit(b, n->a)) || (rc = inst_add(b, I_JUMP, split, 0))) return rc;
            b->inst[split].y = (uint16_t)b->n_insts;
            return 0;
        }
        int first = b->n_insts;
        for (int i = n->b; i < n->most && !rc; i++) {
            rc = inst_add(b, I_SPLIT, b->n_insts + 1, MAX_INSTS);
            if (!rc) rc = emit(b, n->a);
        }
        for (int i = first; i < b->n_insts; i++) {
            if (b->inst[i].op == I_SPLIT && b->inst[i].y == MAX_INSTS) b->inst[i].y = (uint16_t)b->n_insts;
        }
        return rc;
    }
    return rc;
}

/* --- classes --------------------------------------------------------------------------------- */

struct edge { /* a set begins or ends here */
    uint32_t at;
    uint64_t flip;
};

static int by_place(const void *a, const void *b) {
    const struct edge *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int class_of(struct build *b, uint64_t member, uint8_t *ret) {
    int rc = spend(b, b->n_classes / 8);
    if (rc) return rc;
    for (unsigned i = 0; i < b->n_classes; i++) {
        if (b->member[i] == member) {
            *ret = (uint8_t)i;
            return 0;
        }
    }
    if (b->n_classes == 254) return fo_fail(b->e, FO_EUNSUPPORTED, "a pre-tokenizer rule tells too many classes apart");
    b->member[b->n_classes] = member;
    *ret = (uint8_t)b->n_classes++;
    return 0;
}

/* Stores each distinct block of 256 classes once. */
static int pack_blocks(struct build *b, const uint8_t *flat) {
    struct fo_re *re = b->re;
    size_t n = 0, size = 0;
    for (size_t i = 0; i < 0x1100; i++) {
        const uint8_t *block = flat + i * 256;
        size_t j = i && !memcmp(block, block - 256, 256) ? re->page[i - 1] : 0;
        while (j < n && memcmp(re->blocks + j * 256, block, 256)) j++;
        if (j == n) {
            if (n == size) {
                size = size ? size * 2 : 32;
                uint8_t *p = realloc(re->blocks, size * 256);
                if (!p) return fo_fail(b->e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
                re->blocks = p;
                re->n_blocks = size;
            }
            memcpy(re->blocks + n++ * 256, block, 256);
        }
        re->page[i] = (uint16_t)j;
    }
    memcpy(re->ascii, flat, sizeof re->ascii);
    return 0;
}

static int classify(struct build *b) {
    size_t n = 0, n_edges = 0;
    for (int i = 0; i < b->n_sets; i++) n += 2 * b->set[i].n;
    struct edge *edge = malloc((n + 1) * sizeof *edge);
    uint8_t *flat = malloc(FO_UNICODE_END);
    int rc = edge && flat ? 0 : fo_fail(b->e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
    for (int i = 0; i < b->n_sets && !rc; i++) {
        for (size_t j = 0; j < b->set[i].n; j++) {
            edge[n_edges++] = (struct edge){ b->set[i].r[j].first, UINT64_C(1) << i };
            edge[n_edges++] = (struct edge){ b->set[i].r[j].last + 1, UINT64_C(1) << i };
        }
    }
    if (!rc) qsort(edge, n_edges, sizeof *edge, by_place);
    uint64_t member = 0;
    uint32_t at = 0;
    for (size_t i = 0; !rc && at <= DOMAIN_LAST;) {
        for (; i < n_edges && edge[i].at == at; i++) member ^= edge[i].flip;
        uint32_t end = i < n_edges && edge[i].at <= DOMAIN_LAST ? edge[i].at : DOMAIN_LAST + 1;
        uint8_t c = 0;
        rc = class_of(b, member, &c);
        if (end > DOMAIN_LAST) b->re->invalid = c;
        if (at < FO_UNICODE_END) memset(flat + at, c, (end < FO_UNICODE_END ? end : FO_UNICODE_END) - at);
        at = end;
    }
    if (!rc) rc = pack_blocks(b, flat);
    free(edge);
    free(flat);
    b->re->end = (uint8_t)b->n_classes; /* one more, in no set */
    b->member[b->n_classes++] = 0;
    b->re->n_classes = b->n_classes;
    return rc;
}

/* --- automaton ------------------------------------------------------------------------------- */

struct states {
    uint16_t *pool; /* the lists, one behind the other */
    size_t n_pool, pool_size;
    size_t *start; /* [n + 1] where list i starts */
    size_t n, size;
};

/* The state with this list: found or made. */
static int state_of(struct build *b, struct states *s, const uint16_t *list, size_t n, uint16_t *ret) {
    int rc = spend(b, n + s->n / 4);
    if (rc) return rc;
    for (size_t i = 0; i < s->n; i++) {
        size_t have = s->start[i + 1] - s->start[i];
        if (have == n && (!n || !memcmp(s->pool + s->start[i], list, n * sizeof *list))) {
            *ret = (uint16_t)i;
            return 0;
        }
    }
    if (s->n == MAX_STATES) return fo_fail(b->e, FO_EUNSUPPORTED, "a pre-tokenizer rule needs too many states");
    if (s->n + 2 > s->size) {
        size_t size = s->size ? s->size * 2 : 64;
        size_t *start = realloc(s->start, size * sizeof *start);
        uint16_t *next = start ? realloc(b->re->next, size * b->n_classes * sizeof *next) : NULL;
        if (start) s->start = start;
        if (next) b->re->next = next;
        if (!start || !next) return fo_fail(b->e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
        b->re->n_states = size;
        if (!s->size) s->start[0] = 0;
        s->size = size;
    }
    if (s->n_pool + n > s->pool_size) {
        size_t size = s->n_pool + n + s->pool_size + 256;
        uint16_t *pool = realloc(s->pool, size * sizeof *pool);
        if (!pool) return fo_fail(b->e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
        s->pool = pool;
        s->pool_size = size;
    }
    if (n) memcpy(s->pool + s->n_pool, list, n * sizeof *list);
    s->n_pool += n;
    s->start[s->n + 1] = s->n_pool;
    *ret = (uint16_t)s->n++;
    return 0;
}

struct step {
    uint16_t list[MAX_INSTS], stack[MAX_INSTS + 1];
    uint16_t seen[MAX_INSTS], queued[MAX_INSTS]; /* `turn` = in this step */
    uint16_t turn;
};

/* Reads one character of class c in state `from`: follows its list in order, collects what survives, notes a match. */
static int step_state(struct build *b, struct states *s, struct step *t, size_t from, unsigned c, uint16_t *ret) {
    size_t n = 0, steps = 0;
    unsigned match = 0;
    if (++t->turn == 0) {
        memset(t->seen, 0, sizeof t->seen);
        memset(t->queued, 0, sizeof t->queued);
        t->turn = 1;
    }
    bool at_end = c == b->re->end;
    for (size_t i = s->start[from]; i < s->start[from + 1] && !match; i++) {
        size_t depth = 0;
        t->stack[depth++] = s->pool[i];
        for (; depth && !match; steps++) {
            uint16_t pc = t->stack[--depth];
            const struct inst *in = &b->inst[pc];
            if (t->seen[pc] == t->turn) continue;
            t->seen[pc] = t->turn;
            bool in_set = (in->op == I_CHAR || in->op == I_LOOK) && !at_end && (b->member[c] >> in->x & 1);
            switch (in->op) {
            case I_CHAR:
                if (in_set && t->queued[pc + 1] != t->turn) t->queued[pc + 1] = t->turn, t->list[n++] = (uint16_t)(pc + 1);
                break;
            case I_SPLIT: t->stack[depth++] = in->y; t->stack[depth++] = in->x; break;
            case I_JUMP: t->stack[depth++] = in->x; break;
            case I_LOOK: if (in_set != (bool)in->y) t->stack[depth++] = (uint16_t)(pc + 1); break;
            case I_END: if (at_end) t->stack[depth++] = (uint16_t)(pc + 1); break;
            case I_MATCH: match = in->x; break;
            }
        }
    }
    uint16_t to = 0;
    int rc = spend(b, steps);
    if (!rc) rc = state_of(b, s, t->list, n, &to);
    if (!rc) *ret = (uint16_t)(to | match);
    return rc;
}

static int determinize(struct build *b) {
    struct states s = { 0 };
    struct step *t = calloc(1, sizeof *t);
    int rc = t ? 0 : fo_fail(b->e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
    uint16_t id;
    if (!rc) rc = state_of(b, &s, NULL, 0, &id); /* 0: dead */
    if (!rc) rc = state_of(b, &s, &(uint16_t){ 0 }, 1, &id); /* 1: start */
    for (size_t i = 0; i < s.n && !rc; i++) {
        for (unsigned c = 0; c < b->n_classes && !rc; c++) {
            uint16_t to = 0;
            rc = step_state(b, &s, t, i, c, &to);
            if (!rc) b->re->next[i * b->n_classes + c] = to;
        }
    }
    free(t);
    free(s.pool);
    free(s.start);
    return rc;
}

int fo_re_compile(const char *re, const char *skip, struct fo_re **ret, struct fo_err *e) {
    int root = 0, other = 0, split, rc;
    struct build *b = calloc(1, sizeof *b);
    if (!b) return fo_fail(e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
    b->e = e;
    b->re = calloc(1, sizeof *b->re);
    if (!b->re) {
        rc = fo_fail(e, FO_ENOMEM, "no memory for a pre-tokenizer rule");
        goto out;
    }
    b->p = re;
    if ((rc = parse_alt(b, &root))) goto out;
    if (*b->p && (rc = syntax(b))) goto out;
    b->p = skip ? skip : "";
    if ((rc = parse_alt(b, &other))) goto out;
    if (*b->p && (rc = syntax(b))) goto out;
    split = b->n_insts;
    if (skip && (rc = inst_add(b, I_SPLIT, split + 1, 0))) goto out;
    if ((rc = emit(b, root)) || (rc = inst_add(b, I_MATCH, T_MATCH, 0))) goto out;
    if (skip) {
        b->inst[split].y = (uint16_t)b->n_insts;
        if ((rc = emit(b, other)) || (rc = inst_add(b, I_MATCH, T_SKIP, 0))) goto out;
    }
    if ((rc = classify(b)) || (rc = determinize(b))) goto out;
    *ret = b->re;
    b->re = NULL;
out:
    for (int i = 0; i < b->n_sets; i++) free(b->set[i].r);
    fo_re_free(b->re);
    free(b);
    return rc;
}

void fo_re_free(struct fo_re *re) {
    if (!re) return;
    free(re->blocks);
    free(re->next);
    free(re);
}

size_t fo_re_bytes(const struct fo_re *re) {
    return re ? sizeof *re + re->n_blocks * 256 + re->n_states * re->n_classes * sizeof *re->next : 0;
}

void fo_re_map_bytes(struct fo_re *re, uint32_t (*char_of)(unsigned byte)) {
    for (unsigned i = 0; i < 256; i++) {
        uint32_t cp = char_of(i);
        re->mapped[i] = re->blocks[re->page[cp >> 8] * 256u + (cp & 0xFF)];
    }
    re->byte = re->mapped;
}

size_t fo_re_match(const struct fo_re *re, const char *s, size_t n, size_t *ret_skip, size_t *ret_read) {
    size_t at = 0, match = 0, skip = 0, first = 0;
    unsigned state = 1;
    for (;;) {
        size_t len = 0;
        unsigned c = re->end;
        if (at < n) {
            uint8_t lead = (uint8_t)s[at];
            if (re->byte) {
                c = re->byte[lead];
                len = 1;
            } else if (lead < 0x80) {
                c = re->ascii[lead];
                len = 1;
            } else {
                uint32_t cp = fo_utf8_next(s + at, n - at, &len);
                c = cp < FO_UNICODE_END ? re->blocks[re->page[cp >> 8] * 256u + (cp & 0xFF)] : re->invalid;
            }
            if (!first) first = len;
        }
        unsigned to = re->next[state * re->n_classes + c];
        if (to & T_MATCH) match = at, skip = 0;
        if (to & T_SKIP) match = 0, skip = at;
        state = to & T_STATE;
        if (!state) break;
        at += len;
    }
    *ret_read = at;
    *ret_skip = skip ? skip : first;
    return match;
}
