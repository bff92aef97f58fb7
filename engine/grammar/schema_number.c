/* Numbers as automata over their decimal digits: bounds are comparisons digit by digit, multipleOf is a remainder.
 *
 * JSON has many spellings of one number. Where nothing is asked of a number any of them may come; as soon as something is, it is
 * written without an exponent, which says each number that there is, and so an automaton can tell. An integer has no fraction at all. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/schema_impl.h"

enum { MAX_DIGITS = 400, MAX_REMAINDERS = 4096 };

/* The shortest digits that mean this very double, then moved to where the point is. */
static bool decimal_of(double d, char out[PN_DECIMAL_BYTES]) {
    char text[40], digits[32];
    int n = 0, precision = 0;
    if (!isfinite(d)) return false;
    do snprintf(text, sizeof text, "%.*e", precision, d);
    while (strtod(text, NULL) != d && ++precision < 17); /* NOLINT: numbers in the C locale's form; the daemon sets no other */
    char *p = text, *o = out;
    if (*p == '-') p++;
    for (; *p && *p != 'e'; p++)
        if (*p != '.') digits[n++] = *p;
    int exponent = (int)strtol(p + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0') n--;
    if (d < 0) *o++ = '-';
    if (exponent < 0) { /* 0.000ddd */
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > exponent; i--) *o++ = '0';
        for (int i = 0; i < n; i++) *o++ = digits[i];
    } else {
        for (int i = 0; i < n || i <= exponent; i++) {
            if (i == exponent + 1) *o++ = '.';
            *o++ = i < n ? digits[i] : '0';
        }
    }
    *o = '\0';
    return true;
}

bool pn_decimal(const json_t *v, char out[PN_DECIMAL_BYTES]) {
    if (json_is_integer(v)) {
        snprintf(out, PN_DECIMAL_BYTES, "%lld", (long long)json_integer_value(v));
        return true;
    }
    double d = json_real_value(v);
    if (d == 0.0) d = 0.0; /* -0 is 0 */
    if (d == 0.0) {
        memcpy(out, "0", 2);
        return true;
    }
    return fabs(d) >= 1e-300 && decimal_of(d, out); /* 300 zeros behind a point are more than anyone means */
}

void pn_sc_numbers(struct pn_sc *c) {
    static const char decimal[] = "^-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?$", integer[] = "^-?(?:0|[1-9][0-9]*)$",
                      fraction[] = "^-?(?:0|[1-9][0-9]*)\\.[0-9]*[1-9][0-9]*$";
    c->decimal = pn_regex_dfa(c, c->root, NULL, decimal, sizeof decimal - 1);
    c->fraction = pn_regex_dfa(c, c->root, NULL, fraction, sizeof fraction - 1);
    c->integer = pn_regex_dfa(c, c->root, NULL, integer, sizeof integer - 1);
}

const struct pn_dfa *pn_number_not(struct pn_sc *c, const struct pn_dfa *a) {
    return pn_dfa_and(c, c->decimal, pn_dfa_not(c, a));
}

/* --- comparing --------------------------------------------------------------------------------- */
/* A code: how far, in which part, how the magnitude so far compares with the bound's, the sign, and whether it is 0 so far. */
struct compare {
    bool negative, zero; /* of the bound */
    bool less, equal, greater;
    int n_whole, n_part;
    const char *whole, *part; /* the bound's digits before and behind the point, none needless */
};
enum { LT, EQ, GT };
enum part { START, WHOLE, PART };

static uint64_t code_of(uint64_t at, enum part part, int order, bool negative, bool nonzero) {
    return at << 8 | (uint64_t)part << 4 | (uint64_t)order << 2 | (uint64_t)negative << 1 | nonzero;
}

static uint64_t compare_next(const void *ctx, uint64_t code, char ch) {
    const struct compare *b = ctx;
    int at = (int)(code >> 8), order = code >> 2 & 3;
    enum part part = code >> 4 & 3;
    bool negative = code >> 1 & 1, nonzero = code & 1;
    if (ch == '-') return part == START && !negative ? code_of(0, START, EQ, true, false) : PN_DFA_DEAD;
    if (part == START && code == 0) order = EQ;
    if (ch == '.') {
        if (part != WHOLE) return PN_DFA_DEAD;
        return code_of(0, PART, at < b->n_whole ? LT : order, negative, nonzero);
    }
    nonzero |= ch != '0';
    if (part == PART) {
        char want = at < b->n_part ? b->part[at] : '0';
        if (order == EQ) order = ch < want ? LT : ch > want ? GT : EQ;
        return code_of((uint64_t)(at < b->n_part ? at + 1 : at), PART, order, negative, nonzero);
    }
    if (at >= b->n_whole)
        order = GT;
    else if (order == EQ)
        order = ch < b->whole[at] ? LT : ch > b->whole[at] ? GT : EQ;
    return code_of((uint64_t)(at < b->n_whole ? at + 1 : at), WHOLE, order, negative, nonzero);
}

static bool compare_accept(const void *ctx, uint64_t code) {
    const struct compare *b = ctx;
    int at = (int)(code >> 8), order = code >> 2 & 3;
    enum part part = code >> 4 & 3;
    bool negative = code >> 1 & 1, nonzero = code & 1;
    if (part == START) return false;
    if (part == WHOLE && at < b->n_whole) order = LT;
    if (order == EQ && at < b->n_part && part == PART) order = LT;
    if (order == EQ && part == WHOLE && b->n_part > 0) order = LT;
    if (!nonzero) negative = false; /* -0 is 0 */
    if (b->zero && !nonzero) return b->equal;
    if (negative != b->negative) return negative ? b->less : b->greater;
    if (order == EQ) return b->equal;
    return (order == LT) != negative ? b->less : b->greater;
}

const struct pn_dfa *pn_number_compare(struct pn_sc *c, const char *decimal, bool less, bool equal, bool greater) {
    struct compare b = { .negative = *decimal == '-', .less = less, .equal = equal, .greater = greater };
    if (b.negative) decimal++;
    b.whole = decimal;
    b.n_whole = (int)strcspn(decimal, ".");
    b.part = decimal + b.n_whole + (decimal[b.n_whole] == '.');
    b.n_part = (int)strlen(b.part);
    b.zero = strspn(decimal, "0.") == strlen(decimal);
    return pn_dfa_and(c, c->decimal, pn_dfa_digits(c, compare_next, compare_accept, &b));
}

/* --- multiples --------------------------------------------------------------------------------- */
struct multiple {
    uint32_t m, scale; /* of m / 10^scale */
};

/* A code: the remainder, in which part, how many digits behind the point. */
static uint64_t multiple_next(const void *ctx, uint64_t code, char ch) {
    const struct multiple *x = ctx;
    uint64_t part = code >> 16 & 3, n = code & 0xFFFF, r = code >> 18;
    if (ch == '-') return code == 0 ? (uint64_t)3 << 16 : PN_DFA_DEAD;
    if (ch == '.') return part == WHOLE ? r << 18 | (uint64_t)PART << 16 : PN_DFA_DEAD;
    uint64_t digit = (uint64_t)(ch - '0');
    if (part == PART && n >= x->scale) return digit == 0 ? code : PN_DFA_DEAD;
    return (r * 10 + digit) % x->m << 18 | (uint64_t)(part == PART ? PART : WHOLE) << 16 | (part == PART ? n + 1 : 0);
}

static bool multiple_accept(const void *ctx, uint64_t code) {
    const struct multiple *x = ctx;
    uint64_t part = code >> 16 & 3, n = code & 0xFFFF, r = code >> 18;
    if (part != WHOLE && part != PART) return false;
    for (uint64_t i = part == PART ? n : 0; i < x->scale; i++) r = r * 10 % x->m;
    return r == 0;
}

const struct pn_dfa *pn_number_multiple(struct pn_sc *c, const json_t *s, const char *decimal) {
    struct multiple x = { 0 };
    uint64_t m = 0;
    bool part = false;
    for (const char *p = decimal; *p; p++) {
        if (*p == '.') {
            part = true;
            continue;
        }
        if (m > UINT32_MAX) break;
        m = m * 10 + (uint64_t)(*p - '0');
        x.scale += part;
    }
    if (m * ((uint64_t)x.scale + 1) > MAX_REMAINDERS) {
        pn_sc_fail(c, FO_EUNSUPPORTED, s, "multipleOf", "a step of %.40s needs more than %d remainders", decimal, MAX_REMAINDERS);
        return NULL;
    }
    x.m = (uint32_t)m;
    return pn_dfa_and(c, c->decimal, pn_dfa_digits(c, multiple_next, multiple_accept, &x));
}
