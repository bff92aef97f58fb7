/* GBNF: see gbnf.h. The notation as its documentation in llama.cpp's grammars/README.md describes it; a parser by descent. */
#include "engine/grammar/gbnf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/front.h"
#include "foundry/base/buf.h"

/* --- blanks and names -------------------------------------------------------------------------- */
/* Blanks and comments; with `lines` also line ends. */
static void skip(struct pn_front *f, bool lines) {
    for (int c; (c = pn_front_peek(f)) >= 0;) {
        if (c == '#')
            while (pn_front_peek(f) >= 0 && pn_front_peek(f) != '\n') f->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            f->at++;
        else
            break;
    }
}

static bool is_name(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* A name at the cursor as a rule; 0 with *f->e set. */
static int name(struct pn_front *f, uint32_t *ret) {
    size_t from = f->at;
    int line, col;
    while (is_name(pn_front_peek(f))) f->at++;
    if (f->at == from) {
        int c = pn_front_peek(f);
        if (c < 0) return pn_front_fail(f, f->at, FO_EINVAL, "the grammar ends where a name is needed");
        return pn_front_fail(f, f->at, FO_EINVAL, "a name of a rule is needed here");
    }
    pn_front_place(f, from, &line, &col);
    *ret = pn_ir_rule(f->ir, f->text + from, f->at - from, line, col);
    return pn_ir_state(f->ir, f->e);
}

/* --- parts ------------------------------------------------------------------------------------- */
/* One character of a literal or a class; *ret_escaped: it had a backslash. */
static int character(struct pn_front *f, uint32_t *ret, bool *ret_escaped) {
    size_t from = f->at;
    *ret_escaped = pn_front_take(f, "\\");
    if (!*ret_escaped) return pn_front_char(f, ret);
    int c = pn_front_peek(f);
    f->at += c >= 0;
    switch (c) {
    case 'n': *ret = '\n'; return 0;
    case 'r': *ret = '\r'; return 0;
    case 't': *ret = '\t'; return 0;
    case 'x': return pn_front_hex(f, 2, ret);
    case 'u': return pn_front_hex(f, 4, ret);
    case 'U': return pn_front_hex(f, 8, ret);
    default: break;
    }
    if (c < 0x21 || c > 0x7E || (is_name(c) && c != '-' && c != '_'))
        return pn_front_fail(f, from, FO_EINVAL, "an escape that is none: there are \\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH and \\ in front of punctuation");
    *ret = (uint32_t)c;
    return 0;
}

static int literal(struct pn_front *f, uint32_t *ret) {
    size_t from = f->at++;
    struct fo_buf bytes;
    int rc = 0;
    fo_buf_init(&bytes, f->len); /* no character is longer than what it is written as */
    while (rc == 0 && !pn_front_take(f, "\"")) {
        uint32_t c;
        bool escaped;
        char utf8[4];
        if (pn_front_peek(f) < 0 || pn_front_peek(f) == '\n')
            rc = pn_front_fail(f, from, FO_EINVAL, "a literal without its closing quote");
        else if ((rc = character(f, &c, &escaped)) == 0 && !fo_buf_append(&bytes, utf8, (size_t)pn_ir_utf8(c, utf8)))
            rc = (int)fo_fail(f->e, FO_ENOMEM, "no memory for a grammar");
    }
    if (rc == 0) *ret = pn_ir_literal(f->ir, fo_buf_str(&bytes), bytes.len);
    fo_buf_done(&bytes);
    return rc;
}

static int class(struct pn_front *f, uint32_t *ret) {
    size_t from = f->at++, n = 0, cap = 0;
    struct pn_ir_span *spans = NULL;
    bool negated = pn_front_take(f, "^"), escaped;
    int rc = 0;
    while (rc == 0 && !pn_front_take(f, "]")) {
        struct pn_ir_span s;
        size_t at = f->at;
        if (pn_front_peek(f) < 0 || pn_front_peek(f) == '\n') {
            rc = pn_front_fail(f, from, FO_EINVAL, "a class without its closing bracket");
            break;
        }
        if ((rc = character(f, &s.first, &escaped)) != 0) break;
        s.last = s.first;
        if (pn_front_peek(f) == '-' && f->at + 1 < f->len && f->text[f->at + 1] != ']' && f->text[f->at + 1] != '\n') {
            f->at++;
            if ((rc = character(f, &s.last, &escaped)) != 0) break;
            if (s.last < s.first) rc = pn_front_fail(f, at, FO_EINVAL, "a range whose end comes before its start");
        }
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            struct pn_ir_span *more = realloc(spans, cap * sizeof *more);
            if (!more) {
                rc = (int)fo_fail(f->e, FO_ENOMEM, "no memory for a grammar");
                break;
            }
            spans = more;
        }
        spans[n++] = s;
    }
    if (rc == 0) *ret = pn_ir_chars(f->ir, spans, n, negated);
    free(spans);
    return rc;
}

static int alternatives(struct pn_front *f, bool nested, uint32_t *ret);

static int group(struct pn_front *f, uint32_t *ret) {
    size_t from = f->at++;
    if (++f->depth > PN_FRONT_MAX_DEPTH) return pn_front_fail(f, from, FO_ELIMIT, "groups nest deeper than %d", PN_FRONT_MAX_DEPTH);
    if (alternatives(f, true, ret)) return f->e->code;
    f->depth--;
    if (!pn_front_take(f, ")")) return pn_front_fail(f, pn_front_peek(f) < 0 ? from : f->at, FO_EINVAL, pn_front_peek(f) < 0 ? "a group without its closing parenthesis" : "this belongs in no group");
    return 0;
}

/* The counts behind a part, as often as they come. */
static int counts(struct pn_front *f, uint32_t *node) {
    for (;;) {
        size_t from = f->at;
        uint32_t min, max;
        if (pn_front_take(f, "*"))
            min = 0, max = PN_IR_INFINITE;
        else if (pn_front_take(f, "+"))
            min = 1, max = PN_IR_INFINITE;
        else if (pn_front_take(f, "?"))
            min = 0, max = 1;
        else if (pn_front_take(f, "{")) {
            skip(f, false);
            if (pn_front_number(f, &min)) return f->e->code;
            skip(f, false);
            max = min;
            if (pn_front_take(f, ",")) {
                skip(f, false);
                max = PN_IR_INFINITE;
                if (pn_front_peek(f) != '}' && pn_front_number(f, &max)) return f->e->code;
                skip(f, false);
            }
            if (!pn_front_take(f, "}")) return pn_front_fail(f, f->at, FO_EINVAL, "a count is {m}, {m,} or {m,n}");
            if (max < min) return pn_front_fail(f, from, FO_EINVAL, "at least %u times and at most %u", min, max);
        } else {
            return 0;
        }
        *node = pn_ir_repeat(f->ir, *node, min, max);
        if (pn_ir_state(f->ir, f->e)) return f->e->code;
        skip(f, false);
    }
}

/* Whether the line ends here and the rule with it: the next line that has something does not begin with `|`. */
static bool rule_ends(struct pn_front *f) {
    size_t at = f->at;
    if (pn_front_peek(f) != '\n' && pn_front_peek(f) != '\r') return pn_front_peek(f) < 0;
    skip(f, true);
    if (pn_front_peek(f) == '|') return false;
    f->at = at;
    return true;
}

static int sequence(struct pn_front *f, bool nested, uint32_t *ret) {
    size_t list = f->n_nodes;
    for (;;) {
        uint32_t node, rule;
        skip(f, nested);
        int c = pn_front_peek(f), rc;
        if (c < 0 || c == '|' || c == ')' || (!nested && (c == '\n' || c == '\r') && rule_ends(f))) break;
        if (!nested && pn_front_peek(f) == '|') break;
        if (c == '"')
            rc = literal(f, &node);
        else if (c == '[')
            rc = class(f, &node);
        else if (c == '(')
            rc = group(f, &node);
        else if (c == '.') {
            f->at++;
            node = pn_ir_chars(f->ir, NULL, 0, true);
            rc = pn_ir_state(f->ir, f->e);
        } else if (is_name(c)) {
            rc = name(f, &rule);
            if (rc == 0) node = pn_ir_ref(f->ir, rule);
        } else if (c == '<' || c == '!') {
            rc = pn_front_fail(f, f->at, FO_EUNSUPPORTED, "tokens in angle brackets are not in this version");
        } else {
            rc = pn_front_fail(f, f->at, FO_EINVAL, "this is neither a literal, a class, a group nor a name");
        }
        if (rc != 0) return rc;
        skip(f, nested);
        if (counts(f, &node) || pn_front_push(f, node)) return f->e->code;
    }
    *ret = pn_front_seq(f, list);
    return 0;
}

static int alternatives(struct pn_front *f, bool nested, uint32_t *ret) {
    size_t list = f->n_nodes;
    do {
        uint32_t node = 0;
        skip(f, true);
        if (sequence(f, nested, &node) || pn_front_push(f, node)) return f->e->code;
    } while (pn_front_take(f, "|"));
    *ret = pn_front_alt(f, list);
    return 0;
}

static int rules(struct pn_front *f) {
    for (skip(f, true); f->at < f->len; skip(f, true)) {
        uint32_t rule, node = 0;
        size_t from = f->at;
        if (name(f, &rule)) return f->e->code;
        if (pn_ir_defined(f->ir, rule)) return pn_front_fail(f, from, FO_EINVAL, "rule '%.*s' is defined twice", f->at - from > 64 ? 64 : (int)(f->at - from), f->text + from);
        skip(f, false);
        if (!pn_front_take(f, "::=")) return pn_front_fail(f, f->at, FO_EINVAL, "::= is needed behind the name of a rule");
        if (alternatives(f, false, &node)) return f->e->code;
        if (pn_front_peek(f) == ')') return pn_front_fail(f, f->at, FO_EINVAL, "a closing parenthesis without its group");
        pn_ir_define(f->ir, rule, node);
        if (pn_ir_state(f->ir, f->e)) return f->e->code;
    }
    return 0;
}

int pn_gbnf_build(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    struct pn_front f = { .ir = ir, .text = text, .len = len, .e = e };
    int rc = rules(&f);
    free(f.nodes);
    if (rc != 0) return rc;
    uint32_t root = pn_ir_rule(ir, "root", 4, 0, 0);
    if (pn_ir_state(ir, e)) return e->code;
    if (!pn_ir_defined(ir, root)) return (int)fo_fail(e, FO_EINVAL, "there is no rule 'root', with which a grammar begins");
    pn_ir_root(ir, root);
    return 0;
}
