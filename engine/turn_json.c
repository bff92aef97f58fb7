/* JSON read byte by byte: see turn_json.h. RFC 8259; surrogates must come in pairs, for what has a single one is no text. */
#include "engine/turn_json.h"

#include "engine/blank.h"

enum state {
    VALUE,
    LIST_FIRST,   /* a value or "]" */
    OBJECT_FIRST, /* a key or "}" */
    KEY,
    COLON,
    NEXT, /* "," or the container's end */
    TEXT,
    ESCAPE,
    UNIT, /* of the four digits of \u */
    LOW,  /* a high surrogate is to be followed by "\" ... */
    LOW_U, /* ... "u" */
    LITERAL,
    MINUS,
    ZERO,
    DIGITS,
    POINT,
    FRACTION,
    EXPONENT,
    EXPONENT_SIGN,
    EXPONENT_DIGITS,
    DONE
};

static const char *const literals[] = { "true", "false", "null" };

void pn_json_scan_init(struct pn_json_scan *s) {
    *s = (struct pn_json_scan){ .state = VALUE };
}

static bool is_digit(uint8_t c) {
    return c >= '0' && c <= '9';
}

static bool ends_number(enum state s) {
    return s == ZERO || s == DIGITS || s == FRACTION || s == EXPONENT_DIGITS;
}

static enum pn_json_step ended(struct pn_json_scan *s) {
    s->state = s->depth ? NEXT : DONE;
    return s->depth ? PN_JSON_MORE : PN_JSON_DONE;
}

static bool in_list(const struct pn_json_scan *s) {
    return s->lists[(s->depth - 1) / 64] >> ((s->depth - 1) % 64) & 1;
}

static enum pn_json_step enter(struct pn_json_scan *s, bool list) {
    if (s->depth == PN_JSON_DEPTH) return PN_JSON_BREAK;
    uint64_t bit = (uint64_t)1 << (s->depth % 64);
    if (list) s->lists[s->depth / 64] |= bit;
    else s->lists[s->depth / 64] &= ~bit;
    s->depth++;
    s->state = list ? LIST_FIRST : OBJECT_FIRST;
    return PN_JSON_MORE;
}

static enum pn_json_step leave(struct pn_json_scan *s) {
    s->depth--;
    return ended(s);
}

static enum pn_json_step text(struct pn_json_scan *s, bool key) {
    s->key = key;
    s->state = TEXT;
    return PN_JSON_MORE;
}

static enum pn_json_step value(struct pn_json_scan *s, uint8_t c) {
    switch (c) {
    case '{': return enter(s, false);
    case '[': return enter(s, true);
    case '"': return text(s, false);
    case '-': s->state = MINUS; return PN_JSON_MORE;
    case '0': s->state = ZERO; return PN_JSON_MORE;
    case 't': s->literal = 0; break;
    case 'f': s->literal = 1; break;
    case 'n': s->literal = 2; break;
    default:
        if (!is_digit(c)) return PN_JSON_BREAK;
        s->state = DIGITS;
        return PN_JSON_MORE;
    }
    s->at = 1;
    s->state = LITERAL;
    return PN_JSON_MORE;
}

static enum pn_json_step go(struct pn_json_scan *s, enum state to) {
    s->state = (uint8_t)to;
    return PN_JSON_MORE;
}

static int hex(uint8_t c) {
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A digit of \u. */
static enum pn_json_step unit(struct pn_json_scan *s, uint8_t c) {
    int digit = hex(c);
    if (digit < 0) return PN_JSON_BREAK;
    uint16_t next = (uint16_t)(s->unit << 4 | digit);
    bool high = false;
    if (s->at == 3) {
        bool low = next >= 0xDC00 && next <= 0xDFFF;
        high = next >= 0xD800 && next <= 0xDBFF;
        if (low != (s->surrogate != 0) || (high && s->surrogate)) return PN_JSON_BREAK;
    }
    s->unit = next;
    if (++s->at < 4) return PN_JSON_MORE;
    s->surrogate = high;
    return go(s, high ? LOW : TEXT);
}

static enum pn_json_step in_text(struct pn_json_scan *s, uint8_t c) {
    switch (s->state) {
    case TEXT:
        if (c == '"') return s->key ? go(s, COLON) : ended(s);
        if (c == '\\') return go(s, ESCAPE);
        return c < 0x20 ? PN_JSON_BREAK : PN_JSON_MORE;
    case ESCAPE:
        if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' || c == 't') return go(s, TEXT);
        break;
    case UNIT: return unit(s, c);
    case LOW: return c == '\\' ? go(s, LOW_U) : PN_JSON_BREAK;
    default: break;
    }
    if (c != 'u') return PN_JSON_BREAK;
    s->at = 0;
    s->unit = 0;
    return go(s, UNIT);
}

static enum pn_json_step number(struct pn_json_scan *s, uint8_t c) {
    bool digit = is_digit(c);
    switch (s->state) {
    case MINUS: return c == '0' ? go(s, ZERO) : digit ? go(s, DIGITS) : PN_JSON_BREAK;
    case POINT: return digit ? go(s, FRACTION) : PN_JSON_BREAK;
    case EXPONENT:
        if (c == '+' || c == '-') return go(s, EXPONENT_SIGN);
        return digit ? go(s, EXPONENT_DIGITS) : PN_JSON_BREAK;
    case EXPONENT_SIGN: return digit ? go(s, EXPONENT_DIGITS) : PN_JSON_BREAK;
    default: break;
    }
    if (digit) return s->state == ZERO ? PN_JSON_BREAK : PN_JSON_MORE;
    if (c == '.' && (s->state == ZERO || s->state == DIGITS)) return go(s, POINT);
    if ((c == 'e' || c == 'E') && s->state != EXPONENT_DIGITS) return go(s, EXPONENT);
    if (s->depth == 0) return PN_JSON_AFTER;
    s->state = NEXT;
    return pn_json_scan_step(s, c);
}

enum pn_json_step pn_json_scan_step(struct pn_json_scan *s, uint8_t c) {
    enum state now = s->state;
    if (now >= TEXT && now <= LOW_U) return in_text(s, c);
    if (now == LITERAL) {
        const char *word = literals[s->literal];
        if (c != (uint8_t)word[s->at]) return PN_JSON_BREAK;
        return word[++s->at] ? PN_JSON_MORE : ended(s);
    }
    if (now >= MINUS && now <= EXPONENT_DIGITS) return number(s, c);
    if (now == DONE) return PN_JSON_AFTER;
    if (pn_is_blank(c)) return PN_JSON_MORE;
    switch (now) {
    case LIST_FIRST: return c == ']' ? leave(s) : value(s, c);
    case OBJECT_FIRST:
        if (c == '}') return leave(s);
        return c == '"' ? text(s, true) : PN_JSON_BREAK;
    case KEY: return c == '"' ? text(s, true) : PN_JSON_BREAK;
    case COLON: return c == ':' ? go(s, VALUE) : PN_JSON_BREAK;
    case NEXT:
        if (c == ',') return go(s, in_list(s) ? VALUE : KEY);
        return c == (in_list(s) ? ']' : '}') ? leave(s) : PN_JSON_BREAK;
    default: return value(s, c);
    }
}

bool pn_json_scan_is_whole(const struct pn_json_scan *s) {
    return s->state == DONE || (s->depth == 0 && ends_number(s->state));
}

bool pn_json_scan_in_text(const struct pn_json_scan *s) {
    return s->state == TEXT;
}
