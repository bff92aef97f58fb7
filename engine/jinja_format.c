/* Formatting: "%s" % x, "{}".format(x) and strftime, each the part of Python's that templates use. A directive that is not known is
 * an error of the template. Marks: what a value wrote keeps its marks, fill characters are the template's. */
#include "engine/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_WIDTH = 4096, MAX_PRECISION = 60 };

struct spec {
    char fill[4], align, sign, type; /* align: < > ^ =; 0 = the type's own */
    size_t fill_len;
    bool alt, zero; /* zero: aligned by a 0 in front of the width */
    char group; /* ',' or '_' between thousands; 0 = nothing */
    int64_t width, precision; /* precision -1 = none */
};

static int bad(struct pn_rt *rt, const char *what) {
    return pn_rt_fail(rt, "format: %s", what);
}

/* Puts what stands behind rt->out from `from` on into its width; the digits of a number start after `lead` bytes (its sign). */
static void pad(struct pn_rt *rt, size_t from, size_t lead, const struct spec *s, char align) {
    struct pn_out *t = &rt->out;
    if (t->failed) return;
    size_t len = t->len - from, have = len ? pn_count_chars(t->s + from, len) : 0, want = s->width > 0 ? (size_t)s->width : 0;
    if (have >= want) return;
    size_t n = want - have, before = align == '<' ? 0 : align == '^' ? n / 2 : n, after = n - before, at = align == '=' ? lead : 0;
    for (size_t i = 0; i < n; i++) pn_out_put(t, s->fill, s->fill_len, PN_BY_TEMPLATE);
    if (t->failed) return;
    size_t shift = before * s->fill_len, body = from + at;
    memmove(t->s + body + shift, t->s + body, len - at);
    memmove(t->user + body + shift, t->user + body, len - at);
    for (size_t i = 0; i < shift; i++) t->s[body + i] = s->fill[i % s->fill_len];
    memset(t->user + body, PN_BY_TEMPLATE, shift);
    for (size_t i = 0; i < after * s->fill_len; i++) t->s[from + shift + len + i] = s->fill[i % s->fill_len];
    memset(t->user + from + shift + len, PN_BY_TEMPLATE, after * s->fill_len);
}

/* Digits with a sign every three. */
static void put_grouped(struct pn_rt *rt, const char *digits, size_t n, char group, uint8_t mark) {
    size_t whole = strcspn(digits, ".e");
    if (whole > n) whole = n;
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % 3 == 0) pn_out_put(&rt->out, &group, 1, mark);
        pn_out_put(&rt->out, digits + i, 1, mark);
    }
}

static int put_int(struct pn_rt *rt, int64_t i, uint8_t mark, const struct spec *s) {
    char digits[72];
    size_t from = rt->out.len, n = 0;
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *prefix = "";
    if (s->type == 'b') {
        for (int bit = 63; bit >= 0; bit--)
            if (n || (u >> bit & 1) || bit == 0) digits[n++] = (char)('0' + (u >> bit & 1));
        digits[n] = '\0';
        prefix = "0b";
    } else {
        bool hex = s->type == 'x' || s->type == 'X', oct = s->type == 'o';
        n = (size_t)snprintf(digits, sizeof digits,
                             hex   ? (s->type == 'x' ? "%llx" : "%llX")
                             : oct ? "%llo"
                                   : "%llu",
                             (unsigned long long)u);
        prefix = hex ? (s->type == 'x' ? "0x" : "0X") : oct ? "0o" : "";
    }
    if (i < 0)
        pn_out_put(&rt->out, "-", 1, mark);
    else if (s->sign == '+' || s->sign == ' ')
        pn_out_put(&rt->out, &s->sign, 1, mark);
    if (s->alt) pn_out_puts(&rt->out, prefix, mark);
    size_t lead = rt->out.len - from;
    for (size_t k = n; s->precision > 0 && k < (size_t)s->precision; k++) pn_out_put(&rt->out, "0", 1, mark); /* of % only */
    if (s->group)
        put_grouped(rt, digits, n, s->group, mark);
    else
        pn_out_put(&rt->out, digits, n, mark);
    pad(rt, from, lead, s, s->align ? s->align : '>');
    return 0;
}

static int put_float(struct pn_rt *rt, double f, uint8_t mark, const struct spec *s) {
    char digits[512];
    size_t from = rt->out.len;
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    if (s->type == '%') f *= 100;
    double size = fabs(f);
    switch (s->type) {
    case 'e': snprintf(digits, sizeof digits, "%.*e", precision, size); break;
    case 'E': snprintf(digits, sizeof digits, "%.*E", precision, size); break;
    case 'g':
    case 'n': snprintf(digits, sizeof digits, s->alt ? "%#.*g" : "%.*g", precision, size); break;
    case 'G': snprintf(digits, sizeof digits, s->alt ? "%#.*G" : "%.*G", precision, size); break;
    case 0: snprintf(digits, sizeof digits, "%.*g", s->precision < 0 ? 17 : precision, size); break;
    default: snprintf(digits, sizeof digits, "%.*f", precision, size); break;
    }
    if (s->type == 0 && s->precision < 0) digits[pn_float_repr(size, digits)] = '\0';
    if (signbit(f) && !isnan(f))
        pn_out_put(&rt->out, "-", 1, mark);
    else if (s->sign == '+' || s->sign == ' ')
        pn_out_put(&rt->out, &s->sign, 1, mark);
    size_t lead = rt->out.len - from;
    if (s->group)
        put_grouped(rt, digits, strlen(digits), s->group, mark);
    else
        pn_out_puts(&rt->out, digits, mark);
    if (s->type == '%') pn_out_put(&rt->out, "%", 1, mark);
    pad(rt, from, lead, s, s->align ? s->align : '>');
    return 0;
}

/* A string, cut to the precision. */
static int put_text(struct pn_rt *rt, struct pn_value v, const struct spec *s, char align) {
    size_t from = rt->out.len, len = v.s->len;
    if (s->precision >= 0) len = pn_char_offset(v.s->s, v.s->len, (size_t)s->precision);
    pn_out_put_part(&rt->out, v, 0, len);
    pad(rt, from, 0, s, s->align ? s->align : align);
    return 0;
}

/* `how`: 's' as str, 'r' as repr, 'a' as ascii. */
static int put_any(struct pn_rt *rt, struct pn_value v, const struct spec *s, char how, char align) {
    struct pn_value text;
    size_t from = rt->out.len;
    if (how == 's') {
        if (pn_to_str(rt, v, &text)) return rt->e->code;
    } else {
        if (pn_charge_walk(rt, v)) return rt->e->code;
        if (how == 'a')
            pn_out_put_ascii(&rt->out, v);
        else
            pn_out_put_repr(&rt->out, v);
        if (pn_out_end(rt, from, &text)) return rt->e->code;
    }
    return put_text(rt, text, s, align);
}

/* At most MAX of a decimal number; false when it is larger. */
static bool read_number(const char **p, const char *end, int64_t max, int64_t *ret) {
    int64_t n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p)
        if ((n = n * 10 + (**p - '0')) > max) return false;
    *ret = n;
    return true;
}

/* --- % -------------------------------------------------------------------------------------------------------------------- */

static int percent_one(struct pn_rt *rt, const struct spec *s, struct pn_value v) {
    if (v.kind == PN_V_UNDEFINED && !strchr("sra", s->type)) return pn_rt_undefined(rt, v);
    switch (s->type) {
    case 's':
    case 'r':
    case 'a': return put_any(rt, v, s, s->type, '>');
    case 'c':
        if (v.kind == PN_V_STR && pn_count_chars(v.s->s, v.s->len) == 1) return put_text(rt, v, s, '>');
        if (v.kind == PN_V_BOOL) v.i = v.b;
        if ((v.kind != PN_V_INT && v.kind != PN_V_BOOL) || v.i < 0 || v.i > 0x10FFFF || (v.i >= 0xD800 && v.i < 0xE000)) return bad(rt, "%c requires int or char");
        pn_out_put_char(&rt->out, (uint32_t)v.i, v.mark);
        return 0;
    default: break;
    }
    if (!pn_is_number(v)) return pn_rt_fail(rt, "%%%c format: a number is required, not %s", s->type, pn_value_type(v));
    if (strchr("eEfFgG", s->type)) return put_float(rt, pn_value_num(v), v.mark, s);
    if (v.big) return bad(rt, "an integer beyond 64 bits");
    if (v.kind == PN_V_FLOAT && strchr("xXo", s->type)) return pn_rt_fail(rt, "%%%c format: an integer is required, not float", s->type);
    if (v.kind == PN_V_FLOAT && !(fabs(v.f) < 0x1p63)) return bad(rt, "a float beyond 64 bits");
    return put_int(rt, v.kind == PN_V_FLOAT ? (int64_t)v.f : v.kind == PN_V_BOOL ? v.b : v.i, v.mark, s);
}

/* After "%": flags, width, precision, type. `*` takes a number from the arguments. */
static int percent_spec(struct pn_rt *rt, const char **p, const char *end, struct spec *s) {
    bool left = false, zero = false;
    for (; *p < end && **p && strchr("-+ #0", **p); ++*p) {
        left |= **p == '-';
        zero |= **p == '0';
        s->alt |= **p == '#';
        if (**p == '+' || (**p == ' ' && !s->sign)) s->sign = **p;
    }
    if (!read_number(p, end, MAX_WIDTH, &s->width)) return bad(rt, "width too big");
    if (*p < end && **p == '.') {
        ++*p;
        if (!read_number(p, end, MAX_PRECISION, &s->precision)) return bad(rt, "precision too big");
    }
    while (*p < end && **p && strchr("hlL", **p)) ++*p;
    if (*p == end) return bad(rt, "incomplete format");
    s->type = *(*p)++;
    if (!s->type || !strchr("sracdiuoxXeEfFgG", s->type)) return bad(rt, "unsupported format character");
    if (strchr("sra", s->type)) zero = false;
    s->align = left ? '<' : zero ? '=' : '>';
    s->fill[0] = zero && !left ? '0' : ' ';
    return 0;
}

int pn_format_percent(struct pn_rt *rt, struct pn_value fmt, struct pn_value args, struct pn_value *ret) {
    bool tuple = args.kind == PN_V_LIST && args.list->seq == PN_SEQ_TUPLE;
    size_t n = tuple ? args.list->n : 1, used = 0, from = rt->out.len;
    const struct pn_value *v = tuple ? args.list->v : &args;
    const char *s = fmt.s->s, *end = s + fmt.s->len, *p = s;
    if (pn_charge_bytes(rt, fmt.s->len)) return rt->e->code;
    while (p < end && !rt->out.failed) {
        const char *next = memchr(p, '%', (size_t)(end - p));
        if (!next) next = end;
        pn_out_put_part(&rt->out, fmt, (size_t)(p - s), (size_t)(next - p));
        if (next == end) break;
        p = next + 1;
        if (p < end && *p == '%') {
            pn_out_put_part(&rt->out, fmt, (size_t)(p - s), 1);
            p++;
            continue;
        }
        struct spec spec = { .fill = " ", .fill_len = 1, .precision = -1 };
        const struct pn_value *one = NULL;
        if (p < end && *p == '(') {
            const char *close = memchr(p, ')', (size_t)(end - p));
            if (!close) return bad(rt, "incomplete format key");
            if (args.kind != PN_V_DICT) return bad(rt, "format requires a mapping");
            one = pn_dict_find(args.dict, p + 1, (size_t)(close - p - 1));
            if (!one) return bad(rt, "a key is missing");
            p = close + 1;
            n = used = 0;
        }
        if (percent_spec(rt, &p, end, &spec)) return rt->e->code;
        if (!one && used == n) return bad(rt, "not enough arguments for format string");
        if (!one) one = &v[used++];
        if (percent_one(rt, &spec, *one)) return rt->e->code;
    }
    bool mapping = args.kind == PN_V_DICT || args.kind == PN_V_UNDEFINED || (args.kind == PN_V_LIST && !tuple && pn_is_indexed(args.list)); /* what has subscripts */
    if (used < n && !mapping) return bad(rt, "not all arguments converted during string formatting");
    return pn_out_end(rt, from, ret);
}

/* --- {} --------------------------------------------------------------------------------------------------------------------- */

static int braces_spec(struct pn_rt *rt, const char *p, const char *end, struct spec *s) {
    size_t first = p < end ? pn_char_len(p, (size_t)(end - p)) : 0;
    if (first && p + first < end && strchr("<>^=", p[first])) {
        memcpy(s->fill, p, first);
        s->fill_len = first;
        s->align = p[first];
        p += first + 1;
    } else if (p < end && *p && strchr("<>^=", *p)) {
        s->align = *p++;
    }
    if (p < end && *p && strchr("+- ", *p)) s->sign = *p++;
    if (p < end && *p == '#') {
        s->alt = true;
        p++;
    }
    if (p < end && *p == '0') {
        p++;
        if (!s->align) {
            s->align = '=';
            s->fill[0] = '0';
            s->zero = true;
        }
    }
    if (!read_number(&p, end, MAX_WIDTH, &s->width)) return bad(rt, "width too big");
    if (p < end && (*p == ',' || *p == '_')) s->group = *p++;
    if (p < end && *p == '.') {
        p++;
        if (!read_number(&p, end, MAX_PRECISION, &s->precision)) return bad(rt, "precision too big");
    }
    if (p < end && *p) s->type = *p++;
    return p == end ? 0 : bad(rt, "invalid format specifier");
}

static int braces_value(struct pn_rt *rt, struct pn_value v, char conversion, const char *spec, const char *end) {
    struct spec s = { .fill = " ", .fill_len = 1, .precision = -1 };
    if (braces_spec(rt, spec, end, &s)) return rt->e->code;
    if (conversion || (v.kind == PN_V_STR && (s.type == 0 || s.type == 's'))) {
        if (s.sign || s.alt || s.group) return bad(rt, "a sign, '#' or ',' for text");
        if (s.align == '=' && !s.zero) return bad(rt, "'=' alignment not allowed in string format specifier");
        if (s.align == '=') s.align = '<';
        return put_any(rt, v, &s, conversion ? conversion : 's', '<');
    }
    bool whole = v.kind == PN_V_INT || (v.kind == PN_V_BOOL && spec < end);
    if (whole && s.type == 'c') {
        struct pn_value one;
        if (s.precision >= 0 || s.sign) return bad(rt, "a sign or precision not allowed with 'c'");
        if (v.kind == PN_V_BOOL) v.i = v.b;
        if (v.i < 0 || v.i > 0x10FFFF || (v.i >= 0xD800 && v.i < 0xE000)) return bad(rt, "%c arg not in range(0x110000)");
        size_t from = rt->out.len;
        pn_out_put_char(&rt->out, (uint32_t)v.i, v.mark);
        return pn_out_end(rt, from, &one) ? (int)rt->e->code : put_text(rt, one, &s, '>');
    }
    if (whole && (s.type == 0 || strchr("dbxXon", s.type))) {
        if (s.precision >= 0) return bad(rt, "precision not allowed in integer format specifier");
        return put_int(rt, v.kind == PN_V_BOOL ? v.b : v.i, v.mark, &s);
    }
    if (v.kind == PN_V_FLOAT && v.big && s.type == 0) return put_any(rt, v, &s, 's', '>');
    if (pn_is_number(v) && (v.kind == PN_V_FLOAT || whole) && (s.type == 0 || strchr("eEfFgGn%", s.type)))
        return put_float(rt, pn_value_num(v), v.mark, &s);
    if (spec == end) return put_any(rt, v, &s, 's', '<');
    return pn_rt_fail(rt, "unsupported format string for %s", pn_value_type(v));
}

/* The value that a field names: a number, a keyword, or nothing (the next one), then .attributes and [keys]. */
static int braces_field(struct pn_rt *rt, const struct pn_call *call, const char *p, const char *end, size_t *next, struct pn_value *ret) {
    const char *name = p;
    int64_t i = -1;
    while (p < end && *p != '.' && *p != '[') p++;
    size_t len = (size_t)(p - name);
    struct pn_value v = pn_undefined(PN_U_PLAIN, pn_none(), NULL), key;
    if (len == 0) {
        if (*next == SIZE_MAX) return bad(rt, "cannot switch from manual field specification to automatic field numbering");
        i = (int64_t)(*next)++;
    } else if (name[0] >= '0' && name[0] <= '9') {
        if (*next != 0 && *next != SIZE_MAX) return bad(rt, "cannot switch from automatic field numbering to manual field specification");
        *next = SIZE_MAX;
        if (!read_number(&name, p, 1 << 20, &i) || name != p) return bad(rt, "a bad field number");
    }
    if (i >= 0) {
        if ((uint64_t)i >= call->n_pos) return bad(rt, "Replacement index out of range for positional args tuple");
        v = call->pos[i];
    } else {
        size_t k = 0;
        while (k < call->n_named && !pn_str_is(call->named[2 * k], name, len)) k++;
        if (k == call->n_named) return bad(rt, "a field name is not among the arguments");
        v = call->named[2 * k + 1];
    }
    while (p < end) {
        bool item = *p++ == '[';
        const char *from = p;
        while (p < end && (item ? *p != ']' : *p != '.' && *p != '[')) p++;
        const char *digits = from;
        int64_t at;
        if (!pn_str_new(rt->region, from, (size_t)(p - from), PN_BY_TEMPLATE, &key)) return pn_rt_full(rt);
        if (item && from < p && read_number(&digits, p, 1 << 20, &at) && digits == p) key = pn_int(at);
        if (item ? pn_op_item(rt, v, key, &v) : pn_op_attr(rt, v, key, &v)) return rt->e->code;
        if (item && p < end) p++;
    }
    *ret = v;
    return 0;
}

int pn_format_braces(struct pn_rt *rt, struct pn_value fmt, const struct pn_call *call, struct pn_value *ret) {
    const char *s = fmt.s->s, *end = s + fmt.s->len, *p = s;
    size_t next = 0, from = rt->out.len;
    if (pn_charge_bytes(rt, fmt.s->len)) return rt->e->code;
    while (p < end && !rt->out.failed) {
        const char *q = p;
        while (q < end && *q != '{' && *q != '}') q++;
        pn_out_put_part(&rt->out, fmt, (size_t)(p - s), (size_t)(q - p));
        if (q == end) break;
        if (q + 1 < end && q[1] == *q) {
            pn_out_put_part(&rt->out, fmt, (size_t)(q - s), 1);
            p = q + 2;
            continue;
        }
        const char *close = *q == '{' ? memchr(q, '}', (size_t)(end - q)) : NULL;
        if (!close) return bad(rt, *q == '{' ? "expected '}' before end of string" : "Single '}' encountered in format string");
        const char *name_end = q + 1, *spec;
        while (name_end < close && *name_end != ':' && *name_end != '!') name_end++;
        char conversion = 0;
        spec = name_end;
        if (spec < close && *spec == '!') {
            conversion = spec + 1 < close ? spec[1] : 0;
            if (!conversion || !strchr("sra", conversion)) return bad(rt, "unknown conversion");
            spec += 2;
        }
        if (spec < close && *spec != ':') return bad(rt, "expected ':' after conversion specifier");
        if (spec < close) spec++;
        struct pn_value v;
        if (pn_charge(rt, 1) || braces_field(rt, call, q + 1, name_end, &next, &v)) return rt->e->code;
        if (braces_value(rt, v, conversion, spec, close)) return rt->e->code;
        p = close + 1;
    }
    return pn_out_end(rt, from, ret);
}

/* --- time ----------------------------------------------------------------------------------------------------------------------- */

/* The week of ISO 8601: weeks begin on Monday, and the first is the one with 4 January. *year may become the one before or after. */
static int iso_week(const struct tm *t, int *year) {
    int monday = (t->tm_wday + 6) % 7, week = (t->tm_yday - monday + 10) / 7;
    int y = *year, before = y - 1;
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0, leap_before = (before % 4 == 0 && before % 100 != 0) || before % 400 == 0;
    if (week < 1) {
        *year = before;
        return (t->tm_yday + 365 + leap_before - monday + 10) / 7;
    }
    if (week == 53 && t->tm_yday - monday + 3 >= 365 + leap) { /* that week's Thursday is in the next year */
        *year = y + 1;
        return 1;
    }
    return week;
}

/* strftime for UTC in the C locale, the same on every system and whatever the process's locale is. */
static bool put_time(struct pn_rt *rt, char c, bool plain, const struct tm *t, int64_t now) {
    static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
    static const char *const months[] = { "January", "February", "March",     "April",   "May",      "June",
                                          "July",    "August",   "September", "October", "November", "December" };
    static const struct {
        char c;
        const char *same_as;
    } aliases[] = { { 'D', "%m/%d/%y" },
                    { 'F', "%Y-%m-%d" },
                    { 'T', "%H:%M:%S" },
                    { 'R', "%H:%M" },
                    { 'X', "%H:%M:%S" },
                    { 'x', "%m/%d/%y" },
                    { 'c', "%a %b %e %H:%M:%S %Y" },
                    { 'r', "%I:%M:%S %p" } };
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (aliases[i].c == c) {
            for (const char *p = aliases[i].same_as; *p; p++)
                if (*p == '%')
                    put_time(rt, *++p, false, t, now);
                else
                    pn_out_put(&rt->out, p, 1, PN_BY_TEMPLATE);
            return true;
        }
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, monday = (t->tm_wday + 6) % 7;
    char b[32] = "";
    int n = -1, width = 2;
    switch (c) {
    case 'a': snprintf(b, sizeof b, "%.3s", days[t->tm_wday]); break;
    case 'A': snprintf(b, sizeof b, "%s", days[t->tm_wday]); break;
    case 'b':
    case 'h': snprintf(b, sizeof b, "%.3s", months[t->tm_mon]); break;
    case 'B': snprintf(b, sizeof b, "%s", months[t->tm_mon]); break;
    case 'p': snprintf(b, sizeof b, t->tm_hour < 12 ? "AM" : "PM"); break;
    case 'e': snprintf(b, sizeof b, plain ? "%d" : "%2d", t->tm_mday); break;
    case 's': snprintf(b, sizeof b, "%lld", (long long)now); break;
    case 'f': snprintf(b, sizeof b, "000000"); break;
    case 'n': snprintf(b, sizeof b, "\n"); break;
    case 't': snprintf(b, sizeof b, "\t"); break;
    case '%': snprintf(b, sizeof b, "%%"); break;
    case 'z':
    case 'Z': return true; /* a time without a zone, as datetime.now() gives it */
    case 'd': n = t->tm_mday; break;
    case 'm': n = t->tm_mon + 1; break;
    case 'y': n = t->tm_year % 100; break;
    case 'C': n = (t->tm_year + 1900) / 100; break;
    case 'H': n = t->tm_hour; break;
    case 'I': n = hour12; break;
    case 'M': n = t->tm_min; break;
    case 'S': n = t->tm_sec; break;
    case 'Y': n = t->tm_year + 1900, width = 4; break;
    case 'j': n = t->tm_yday + 1, width = 3; break;
    case 'w': n = t->tm_wday, width = 1; break;
    case 'u': n = monday + 1, width = 1; break;
    case 'U': n = (t->tm_yday + 7 - t->tm_wday) / 7; break;
    case 'V':
    case 'G':
    case 'g': {
        int year = t->tm_year + 1900, week = iso_week(t, &year);
        n = c == 'V' ? week : c == 'G' ? year : year % 100;
        width = c == 'G' ? 4 : 2;
        break;
    }
    case 'k': snprintf(b, sizeof b, plain ? "%d" : "%2d", t->tm_hour); break;
    case 'l': snprintf(b, sizeof b, plain ? "%d" : "%2d", hour12); break;
    case 'P': snprintf(b, sizeof b, t->tm_hour < 12 ? "am" : "pm"); break;
    case 'W': n = (t->tm_yday + 7 - monday) / 7; break;
    default: return false;
    }
    if (n >= 0) snprintf(b, sizeof b, "%0*d", plain ? 1 : width, n);
    pn_out_puts(&rt->out, b, PN_BY_TEMPLATE);
    return true;
}

int pn_format_time(struct pn_rt *rt, struct pn_value fmt, int64_t now, struct pn_value *ret) {
    time_t seconds = (time_t)now;
    struct tm t;
    if (!gmtime_r(&seconds, &t) || t.tm_year + 1900 < 0 || t.tm_year + 1900 > 9999) return bad(rt, "a time outside of the years 0 to 9999");
    size_t from = rt->out.len;
    for (size_t i = 0; i < fmt.s->len && !rt->out.failed; i++) {
        if (fmt.s->s[i] != '%' || i + 1 == fmt.s->len) {
            pn_out_put_part(&rt->out, fmt, i, 1);
            continue;
        }
        bool plain = fmt.s->s[i + 1] == '-' && i + 2 < fmt.s->len;
        i += plain ? 2 : 1;
        if (!put_time(rt, fmt.s->s[i], plain, &t, now)) return bad(rt, "an unknown directive of strftime");
    }
    return pn_out_end(rt, from, ret);
}
