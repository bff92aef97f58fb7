/* Regular expressions: see regex.h. A parser by descent. What ^ and $ stand for is only known at the outermost alternatives, so a sequence
 * tells its caller whether it begins with the one and ends with the other. */
#include "engine/grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#include "engine/grammar/front.h"

/* A part of an expression, and which ends of the text it stands at. */
struct part {
    uint32_t node;
    bool starts, ends;
};

/* --- characters -------------------------------------------------------------------------------- */
/* \d and its kin: the spans of the small letter. */
static const struct {
    char letter;
    size_t n;
    struct pn_ir_span spans[4];
} kinds[] = {
    { 'd', 1, { { '0', '9' } } },
    { 'w', 4, { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } } },
    { 's', 2, { { '\t', '\r' }, { ' ', ' ' } } },
};

/* Escapes that are refused, and what they are. */
static const struct {
    const char *letters, *what;
} refused[] = {
    { "bB", "a word boundary" },
    { "AzZG", "an anchor other than ^ and $" },
    { "123456789k", "a back-reference" },
    { "pPX", "a class of Unicode properties" },
    { "cQEKR", "an escape of another dialect" },
};

/* What a class or an escape adds to a set of characters. */
struct spans {
    struct pn_ir_span *at; /* heap */
    size_t n, cap;
};

static int add(struct pn_front *f, struct spans *s, uint32_t first, uint32_t last) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        struct pn_ir_span *more = realloc(s->at, cap * sizeof *more);
        if (!more) return (int)fo_fail(f->e, FO_ENOMEM, "no memory for a grammar");
        s->at = more;
        s->cap = cap;
    }
    s->at[s->n++] = (struct pn_ir_span){ first, last };
    return 0;
}

/* \u{...}: the digits and the brace. */
static int braced(struct pn_front *f, uint32_t *ret) {
    size_t from = f->at;
    int n = 0;
    while (f->at < f->len && f->text[f->at] != '}' && n <= 6) f->at++, n++;
    if (pn_front_peek(f) != '}' || n == 0 || n > 6) return pn_front_fail(f, from, FO_EINVAL, "one to six hexadecimal digits and } are needed here");
    f->at = from;
    if (pn_front_hex(f, n, ret)) return f->e->code;
    f->at++;
    return 0;
}

/* Behind a backslash. One character goes to *ret_c; one of \d and its kin is added to s, and *ret_kind is set. */
static int escape(struct pn_front *f, struct spans *s, uint32_t *ret_c, bool *ret_kind) {
    static const char plain[] = "t\tn\nr\rf\fv\v";
    size_t from = f->at - 1;
    int c = pn_front_peek(f);
    *ret_kind = false;
    if (c < 0) return pn_front_fail(f, from, FO_EINVAL, "a backslash with nothing behind it");
    f->at++;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (c == plain[i]) {
            *ret_c = (unsigned char)plain[i + 1];
            return 0;
        }
    if (c == '0') {
        if (pn_front_peek(f) >= '0' && pn_front_peek(f) <= '9') return pn_front_fail(f, from, FO_EUNSUPPORTED, "an octal escape");
        *ret_c = 0;
        return 0;
    }
    if (c == 'x') return pn_front_hex(f, 2, ret_c);
    if (c == 'u') return pn_front_take(f, "{") ? braced(f, ret_c) : pn_front_hex(f, 4, ret_c);
    if (c == 'U') return pn_front_hex(f, 8, ret_c);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint32_t next = 0;
        if ((c | 0x20) != kinds[i].letter) continue;
        *ret_kind = true;
        for (size_t k = 0; k < kinds[i].n; k++) {
            struct pn_ir_span span = kinds[i].spans[k];
            if (c & 0x20 ? add(f, s, span.first, span.last) : span.first > next && add(f, s, next, span.first - 1)) return f->e->code;
            next = span.last + 1;
        }
        return c & 0x20 ? 0 : add(f, s, next, 0x10FFFF);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (c > 0 && strchr(refused[i].letters, c)) return pn_front_fail(f, from, FO_EUNSUPPORTED, "\\%c is %s, which is not supported", c, refused[i].what);
    if (c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return pn_front_fail(f, from, FO_EINVAL, "an escape that is none");
    *ret_c = (uint32_t)c;
    return 0;
}

/* One character or kind of a class. */
static int class_part(struct pn_front *f, struct spans *s, uint32_t *ret, bool *ret_kind) {
    *ret_kind = false;
    if (!pn_front_take(f, "\\")) return pn_front_char(f, ret);
    if (pn_front_take(f, "b")) { /* in a class it is a backspace */
        *ret = '\b';
        return 0;
    }
    return escape(f, s, ret, ret_kind);
}

static int class_spans(struct pn_front *f, size_t from, struct spans *s) {
    for (bool first = true; first || !pn_front_take(f, "]"); first = false) {
        uint32_t lo, hi;
        bool kind, kind_too;
        size_t at = f->at;
        if (pn_front_peek(f) < 0) return pn_front_fail(f, from, FO_EINVAL, "a class without its closing bracket");
        if (first && pn_front_take(f, "]")) return pn_front_fail(f, from, FO_EINVAL, "an empty class: write \\] for a bracket in it");
        if (class_part(f, s, &lo, &kind)) return f->e->code;
        if (kind) continue;
        hi = lo;
        if (pn_front_peek(f) == '-' && f->at + 1 < f->len && f->text[f->at + 1] != ']') {
            f->at++;
            if (class_part(f, s, &hi, &kind_too)) return f->e->code;
            if (kind_too) return pn_front_fail(f, at, FO_EINVAL, "a range that ends in a kind of characters");
            if (hi < lo) return pn_front_fail(f, at, FO_EINVAL, "a range whose end comes before its start");
        }
        if (add(f, s, lo, hi)) return f->e->code;
    }
    return 0;
}

static int class(struct pn_front *f, uint32_t *ret) {
    struct spans s = { 0 };
    size_t from = f->at++;
    bool negated = pn_front_take(f, "^");
    int rc = class_spans(f, from, &s);
    if (rc == 0) *ret = pn_ir_chars(f->ir, s.at, s.n, negated);
    free(s.at);
    return rc;
}

/* A character that stands for itself, or an escape. */
static int character(struct pn_front *f, uint32_t *ret) {
    struct spans s = { 0 };
    uint32_t c = 0;
    bool kind = false;
    int rc = pn_front_take(f, "\\") ? escape(f, &s, &c, &kind) : pn_front_char(f, &c);
    if (rc == 0 && !kind) rc = add(f, &s, c, c);
    if (rc == 0) *ret = pn_ir_chars(f->ir, s.at, s.n, false);
    free(s.at);
    return rc;
}

/* --- structure --------------------------------------------------------------------------------- */
static int alternatives(struct pn_front *f, struct part *ret);

static int group(struct pn_front *f, struct part *ret) {
    static const struct {
        const char *begins, *what;
    } kinds_of[] = { /* the longer one first */
        { "(?:", NULL },
        { "(?P<", "" },
        { "(?P=", "a back-reference" },
        { "(?=", "a look-ahead" },
        { "(?!", "a look-ahead" },
        { "(?<=", "a look-behind" },
        { "(?<!", "a look-behind" },
        { "(?<", "" },
        { "(?>", "an atomic group" },
        { "(?#", "a comment" },
        { "(?(", "a condition" },
        { "(?", "a setting" },
        { "(", NULL },
    };
    size_t from = f->at, i = 0;
    while (!pn_front_take(f, kinds_of[i].begins)) i++;
    if (kinds_of[i].what && *kinds_of[i].what) return pn_front_fail(f, from, FO_EUNSUPPORTED, "%s is %s, which is not supported", kinds_of[i].begins, kinds_of[i].what);
    if (kinds_of[i].what) { /* a name */
        while (pn_front_peek(f) >= 0 && pn_front_peek(f) != '>' && pn_front_peek(f) != ')') f->at++;
        if (!pn_front_take(f, ">")) return pn_front_fail(f, from, FO_EINVAL, "the name of a group without its >");
    }
    if (++f->depth > PN_FRONT_MAX_DEPTH) return pn_front_fail(f, from, FO_ELIMIT, "groups nest deeper than %d", PN_FRONT_MAX_DEPTH);
    if (alternatives(f, ret)) return f->e->code;
    f->depth--;
    return pn_front_take(f, ")") ? 0 : pn_front_fail(f, from, FO_EINVAL, "a group without its closing parenthesis");
}

/* A count at the cursor; *ret_any false: there is none, and a brace that is none stands for itself. */
static int count(struct pn_front *f, uint32_t *ret_min, uint32_t *ret_max, bool *ret_any) {
    size_t from = f->at;
    *ret_any = true;
    *ret_max = PN_IR_INFINITE;
    if (pn_front_take(f, "*")) {
        *ret_min = 0;
        return 0;
    }
    if (pn_front_take(f, "+")) {
        *ret_min = 1;
        return 0;
    }
    if (pn_front_take(f, "?")) {
        *ret_min = 0, *ret_max = 1;
        return 0;
    }
    *ret_any = false;
    if (!pn_front_take(f, "{")) return 0;
    size_t n = strspn(f->text + f->at, "0123456789"), more = 0; /* the text has a NUL behind it: see pn_regex_build */
    bool comma = f->text[f->at + n] == ',';
    if (comma) more = strspn(f->text + f->at + n + 1, "0123456789");
    if (f->text[f->at + n + comma + more] != '}' || (n == 0 && more == 0)) {
        f->at = from;
        return 0;
    }
    *ret_any = true;
    *ret_min = 0;
    if (n > 0 && pn_front_number(f, ret_min)) return f->e->code;
    if (!comma) *ret_max = *ret_min;
    f->at += comma;
    if (more > 0 && pn_front_number(f, ret_max)) return f->e->code;
    f->at++;
    if (*ret_max < *ret_min) return pn_front_fail(f, from, FO_EINVAL, "at least %u times and at most %u", *ret_min, *ret_max);
    return 0;
}

static int counted(struct pn_front *f, struct part *part) {
    uint32_t min, max, min_too, max_too;
    size_t from = f->at;
    bool any;
    if (count(f, &min, &max, &any)) return f->e->code;
    if (!any) return 0;
    if (part->starts || part->ends) return pn_front_fail(f, from, FO_EUNSUPPORTED, "a count of what begins with ^ or ends with $");
    part->node = pn_ir_repeat(f->ir, part->node, min, max);
    if (pn_front_take(f, "?")) return pn_ir_state(f->ir, f->e); /* as few as can be: the same language */
    if (pn_front_peek(f) == '+') return pn_front_fail(f, f->at, FO_EUNSUPPORTED, "a possessive count, which is not supported");
    from = f->at;
    if (count(f, &min_too, &max_too, &any)) return f->e->code;
    return any ? pn_front_fail(f, from, FO_EINVAL, "a count behind a count") : pn_ir_state(f->ir, f->e);
}

static int sequence(struct pn_front *f, struct part *ret) {
    size_t list = f->n_nodes;
    bool first = true;
    *ret = (struct part){ 0 };
    for (int c; (c = pn_front_peek(f)) >= 0 && c != '|' && c != ')'; first = false) {
        struct part part = { 0 };
        size_t from = f->at;
        uint32_t min, max;
        bool any;
        int rc;
        if (ret->ends) return pn_front_fail(f, from, FO_EUNSUPPORTED, "something behind $, which is only supported where an alternative ends");
        if (c == '^' || c == '$') {
            f->at++;
            if (c == '^' && !first && !ret->starts) return pn_front_fail(f, from, FO_EUNSUPPORTED, "^ is only supported where an alternative begins");
            if (c == '^')
                ret->starts = true;
            else
                ret->ends = true;
            from = f->at;
            if (count(f, &min, &max, &any)) return f->e->code;
            if (any) return pn_front_fail(f, from, FO_EINVAL, "a count of %c", c);
            continue;
        }
        if (count(f, &min, &max, &any)) return f->e->code;
        if (any) return pn_front_fail(f, from, FO_EINVAL, "a count with nothing in front of it");
        if (c == '(')
            rc = group(f, &part);
        else if (c == '[')
            rc = class(f, &part.node);
        else if (c == '.') {
            f->at++;
            part.node = pn_ir_chars(f->ir, &(struct pn_ir_span){ '\n', '\n' }, 1, true);
            rc = pn_ir_state(f->ir, f->e);
        } else {
            rc = character(f, &part.node);
        }
        if (rc != 0 || counted(f, &part)) return f->e->code;
        if (part.starts && !first && !ret->starts) return pn_front_fail(f, from, FO_EUNSUPPORTED, "^ is only supported where an alternative begins");
        ret->starts |= part.starts;
        ret->ends |= part.ends;
        if (pn_front_push(f, part.node)) return f->e->code;
    }
    ret->node = pn_front_seq(f, list);
    return pn_ir_state(f->ir, f->e);
}

static int alternatives(struct pn_front *f, struct part *ret) {
    size_t list = f->n_nodes;
    bool starts = false, ends = false;
    do {
        struct part part;
        if (sequence(f, &part)) return f->e->code;
        starts |= part.starts;
        ends |= part.ends;
        if (pn_front_push(f, part.node)) return f->e->code;
    } while (pn_front_take(f, "|"));
    *ret = (struct part){ pn_front_alt(f, list), starts, ends };
    return pn_ir_state(f->ir, f->e);
}

int pn_regex_build(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    char *copy = malloc(len + 1); /* with a NUL behind it */
    if (!copy) return (int)fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    if (len > 0) memcpy(copy, text, len);
    copy[len] = '\0';
    struct pn_front p = { .ir = ir, .text = copy, .len = len, .e = e };
    struct part part = { 0 };
    uint32_t rule = pn_ir_rule(ir, "regex", 5, 0, 0);
    int rc = alternatives(&p, &part);
    if (rc == 0 && p.at < len) rc = pn_front_fail(&p, p.at, FO_EINVAL, "a closing parenthesis without its group");
    free(p.nodes);
    free(copy);
    if (rc != 0) return rc;
    pn_ir_define(ir, rule, part.node);
    pn_ir_root(ir, rule);
    return pn_ir_state(ir, e);
}
