/* Template text to tokens. Outside tags everything is data; white space around tags goes as trim_blocks and lstrip_blocks say (a
 * newline right after a block or comment tag, blanks between the start of a line and one) and as the signs in {%- +%} say, which
 * take all white space on their side or none. A closing marker counts only where all brackets inside the tag are closed, so
 * {{ {'a': {}} }} works. Newlines are already normalised, and one at the very end already gone (jinja_parse.c). */
#include "engine/jinja_impl.h"

#include <stdlib.h>
#include <string.h>

struct lexer {
    const char *text;
    size_t len, at;
    int line;
    size_t counted; /* newlines before this offset are in `line` */
    bool line_starting;
    struct pn_tokens *out;
    struct fo_err *e;
};

static int line_at(struct lexer *x, size_t offset) {
    for (; x->counted < offset; x->counted++) x->line += x->text[x->counted] == '\n';
    return x->line;
}

static int fail(struct lexer *x, size_t offset, const char *what) {
    int line = 1, col = 1;
    for (size_t i = 0; i < offset && i < x->len; i++) {
        col = x->text[i] == '\n' ? 1 : col + 1;
        line += x->text[i] == '\n';
    }
    return fo_fail_at(x->e, FO_EFORMAT, line, col, "template line %d: %s", line, what);
}

static int emit(struct lexer *x, enum pn_tok kind, size_t from, size_t to, uint16_t op) {
    struct pn_tokens *o = x->out;
    if (o->n == o->size) {
        size_t size = o->size ? o->size * 2 : 64;
        struct pn_token *t = realloc(o->t, size * sizeof *t);
        if (!t) return fo_fail(x->e, FO_ENOMEM, "no memory for a template");
        o->t = t;
        o->size = size;
    }
    o->t[o->n++] = (struct pn_token){
        .kind = (uint8_t)kind, .op = op, .start = (uint32_t)from, .len = (uint32_t)(to - from), .line = line_at(x, from)
    };
    return 0;
}

static bool starts(const struct lexer *x, size_t at, const char *lit) {
    size_t n = strlen(lit);
    return x->len - at >= n && memcmp(x->text + at, lit, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at) {
    while (at < x->len) {
        size_t n;
        if (!pn_is_space(pn_char_at(x->text + at, x->len - at, &n))) break;
        at += n;
    }
    return at;
}

/* The end of [from, to) without trailing white space. */
static size_t strip_end(const struct lexer *x, size_t from, size_t to) {
    while (to > from) {
        size_t k = to - 1, n;
        while (k > from && ((unsigned char)x->text[k] & 0xC0) == 0x80) k--;
        if (!pn_is_space(pn_char_at(x->text + k, to - k, &n))) break;
        to = k;
    }
    return to;
}

/* Emits the data [from, tag) in front of a tag with this sign. */
static int emit_data(struct lexer *x, size_t from, size_t tag, char sign, bool is_var) {
    size_t to = tag;
    if (sign == '-') {
        to = strip_end(x, from, tag);
    } else if (sign != '+' && !is_var) {
        size_t line = tag;
        while (line > from && x->text[line - 1] != '\n') line--;
        if ((line > from || x->line_starting) && strip_end(x, line, tag) == line) to = line;
    }
    return to > from ? emit(x, PN_T_DATA, from, to, 0) : 0;
}

/* Past a closing marker of two characters at `end`, with the sign before it. */
static void after_tag(struct lexer *x, size_t end, char sign, bool trim) {
    x->at = end + 2;
    if (sign == '-')
        x->at = skip_space(x, x->at);
    else if (trim && sign != '+' && x->at < x->len && x->text[x->at] == '\n')
        x->at++;
    x->line_starting = x->text[x->at - 1] == '\n';
}

static char sign_at(const struct lexer *x, size_t at) {
    return at < x->len && (x->text[at] == '-' || x->text[at] == '+') ? x->text[at] : 0;
}

static int comment(struct lexer *x, size_t tag) {
    size_t from = tag + 2 + (sign_at(x, tag + 2) != 0);
    for (size_t i = from; i + 1 < x->len; i++)
        if (x->text[i] == '#' && x->text[i + 1] == '}') {
            after_tag(x, i, i > from ? sign_at(x, i - 1) : 0, true);
            return 0;
        }
    return fail(x, tag, "a comment is not closed (missing #})");
}

/* At "{%": whether `word` and the end of the tag follow. *ret_end is where "%}" stands, *ret_sign the sign before it. */
static bool bare_tag(const struct lexer *x, size_t tag, const char *word, size_t *ret_end, char *ret_sign) {
    size_t p = skip_space(x, tag + 2 + (sign_at(x, tag + 2) != 0));
    if (!starts(x, p, word)) return false;
    p = skip_space(x, p + strlen(word));
    char sign = sign_at(x, p);
    if (!starts(x, p + (sign != 0), "%}")) return false;
    *ret_end = p + (sign != 0);
    *ret_sign = sign;
    return true;
}

static int raw(struct lexer *x, size_t tag, size_t end, char sign) {
    after_tag(x, end, sign, false);
    size_t from = x->at;
    for (size_t i = from; i + 1 < x->len; i++)
        if (starts(x, i, "{%") && bare_tag(x, i, "endraw", &end, &sign)) {
            if (emit_data(x, from, i, sign_at(x, i + 2), false)) return x->e->code;
            after_tag(x, end, sign, true);
            return 0;
        }
    return fail(x, tag, "a raw block is not closed (missing endraw)");
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_word(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

/* Digits with single underscores between them. */
static size_t digits(const struct lexer *x, size_t p) {
    while (p < x->len && (is_digit(x->text[p]) || (x->text[p] == '_' && p + 1 < x->len && is_digit(x->text[p + 1])))) p++;
    return p;
}

static int number(struct lexer *x) {
    size_t from = x->at, p = from;
    enum pn_tok kind = PN_T_INT;
    char second = p + 1 < x->len ? (char)(x->text[p + 1] | 32) : 0;
    if (x->text[p] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
        for (p += 2; p < x->len && is_word(x->text[p]);) p++;
    } else {
        p = digits(x, p);
        if (p + 1 < x->len && x->text[p] == '.' && is_digit(x->text[p + 1])) {
            kind = PN_T_FLOAT;
            p = digits(x, p + 1);
        }
        if (p < x->len && (x->text[p] | 32) == 'e') {
            size_t q = p + 1;
            if (q < x->len && (x->text[q] == '+' || x->text[q] == '-')) q++;
            if (q < x->len && is_digit(x->text[q])) {
                kind = PN_T_FLOAT;
                p = digits(x, q);
            }
        }
    }
    x->at = p;
    return emit(x, kind, from, p, 0);
}

static int string(struct lexer *x) {
    size_t from = x->at, p = from + 1;
    char quote = x->text[from];
    while (p < x->len && x->text[p] != quote) p += x->text[p] == '\\' ? 2 : 1;
    if (p >= x->len) return fail(x, from, "a string is not closed");
    x->at = p + 1;
    return emit(x, PN_T_STRING, from, x->at, 0);
}

static int operator_(struct lexer *x, int *depth) {
    static const char two[][3] = { "//", "**", "==", "!=", "<=", ">=" };
    size_t from = x->at;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(x, from, two[i])) {
            x->at += 2;
            return emit(x, PN_T_OP, from, x->at, PN_OP(two[i][0], two[i][1]));
        }
    char c = x->text[from];
    if (!strchr("+-/*%~[](){}<>=.:|,;", c) || c == '\0') return fail(x, from, "an unexpected character in a tag");
    if (strchr("([{", c)) ++*depth;
    if (strchr(")]}", c) && --*depth < 0) return fail(x, from, "a closing bracket without its opening one");
    x->at++;
    return emit(x, PN_T_OP, from, x->at, PN_OP(c, 0));
}

/* The inside of {{ }} or {% %}, up to and with its end. */
static int tag_inside(struct lexer *x, size_t tag, bool is_var) {
    int depth = 0;
    x->at = tag + 2 + (sign_at(x, tag + 2) != 0);
    if (emit(x, is_var ? PN_T_VAR_BEGIN : PN_T_BLOCK_BEGIN, tag, x->at, 0)) return x->e->code;
    for (;;) {
        x->at = skip_space(x, x->at);
        if (x->at >= x->len) return fail(x, tag, is_var ? "a tag is not closed (missing }})" : "a tag is not closed (missing %})");
        char c = x->text[x->at], sign = c == '-' || (c == '+' && !is_var) ? c : 0;
        if (depth == 0 && starts(x, x->at + (sign != 0), is_var ? "}}" : "%}")) {
            size_t end = x->at + (sign != 0);
            if (emit(x, is_var ? PN_T_VAR_END : PN_T_BLOCK_END, x->at, end + 2, 0)) return x->e->code;
            after_tag(x, end, sign, !is_var);
            return 0;
        }
        int rc;
        if (is_digit(c)) {
            rc = number(x);
        } else if (is_word(c)) {
            size_t from = x->at;
            while (x->at < x->len && is_word(x->text[x->at])) x->at++;
            rc = emit(x, PN_T_NAME, from, x->at, 0);
        } else {
            rc = c == '"' || c == '\'' ? string(x) : operator_(x, &depth);
        }
        if (rc) return rc;
    }
}

static int run(struct lexer *x) {
    while (x->at < x->len) {
        size_t from = x->at, tag = from;
        while (tag + 1 < x->len && !(x->text[tag] == '{' && strchr("{%#", x->text[tag + 1]) && x->text[tag + 1])) tag++;
        if (tag + 1 >= x->len) {
            x->at = x->len;
            if (emit(x, PN_T_DATA, from, x->len, 0)) return x->e->code;
            break;
        }
        char what = x->text[tag + 1], end_sign;
        size_t end;
        if (emit_data(x, from, tag, sign_at(x, tag + 2), what == '{')) return x->e->code;
        int rc;
        if (what == '#')
            rc = comment(x, tag);
        else if (what == '%' && bare_tag(x, tag, "raw", &end, &end_sign) && end_sign != '+')
            rc = raw(x, tag, end, end_sign);
        else
            rc = tag_inside(x, tag, what == '{');
        if (rc) return rc;
    }
    return emit(x, PN_T_END, x->len, x->len, 0);
}

int pn_lex(const char *text, size_t len, struct pn_tokens *ret, struct fo_err *e) {
    struct pn_tokens out = { 0 };
    struct lexer x = { .text = text, .len = len, .line = 1, .line_starting = true, .out = &out, .e = e };
    int rc = run(&x);
    if (rc) {
        free(out.t);
        return rc;
    }
    *ret = out;
    return 0;
}
