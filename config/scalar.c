/* Scalars: see scalar.h. A reader per kind; each says what it wanted, and where it can, what to write instead. */
#include "config/scalar.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/report.h"
#include "config/text.h"
#include "config/url.h"
#include "config/yaml.h"
#include "foundry/base/buf.h"
#include "foundry/base/units.h"

enum { SHA256_DIGITS = 64 };

/* --- what YAML 1.1 makes of words (yaml.org/type, version 1.1: bool, null, int, float, timestamp) ------------------------------ */
static size_t run_of(const char *s, const char *set) {
    return strspn(s, set);
}

static bool among(const char *s, const char *const *words) {
    for (; *words; words++)
        if (strcasecmp(s, *words) == 0) return true;
    return false;
}

static bool base60(const char *s) {
    size_t n = run_of(s, "0123456789_");
    if (n == 0 || s[n] != ':') return false;
    while (s[n] == ':') {
        size_t d = run_of(s + n + 1, "0123456789");
        if (d < 1 || d > 2) return false;
        n += 1 + d;
    }
    return s[n] == '\0' || (s[n] == '.' && s[n + 1 + run_of(s + n + 1, "0123456789_")] == '\0');
}

static bool date(const char *s) {
    size_t y = run_of(s, "0123456789");
    if (y != 4 || s[4] != '-') return false;
    size_t m = run_of(s + 5, "0123456789");
    if (m < 1 || m > 2 || s[5 + m] != '-') return false;
    size_t d = run_of(s + 6 + m, "0123456789");
    char after = s[6 + m + d];
    return d >= 1 && d <= 2 && (after == '\0' || after == 'T' || after == 't' || after == ' ');
}

const char *cf_yaml11(const char *word) {
    static const char *const truths[] = { "y", "n", "yes", "no", "on", "off", "true", "false", NULL };
    static const char *const nothings[] = { "", "~", "null", NULL };
    static const char *const specials[] = { ".inf", ".nan", NULL };
    if (among(word, truths)) return "true or false";
    if (among(word, nothings)) return "no value";
    if (date(word)) return "a date";
    const char *s = word + (*word == '+' || *word == '-');
    if (among(s, specials)) return "a number";
    if (base60(s)) return "a number in base 60";
    size_t digits = run_of(s, "0123456789");
    if (s[0] == '0' && s[1] == 'x' && s[2] && s[2 + run_of(s + 2, "0123456789abcdefABCDEF_")] == '\0') return "a number in base 16";
    if (s[0] == '0' && s[1] == 'b' && s[2] && s[2 + run_of(s + 2, "01_")] == '\0') return "a number in base 2";
    if (s[0] == '0' && s[1] == 'o' && s[2] && s[2 + run_of(s + 2, "01234567")] == '\0') return "a number in base 8";
    if (s[0] == '0' && s[1] && s[run_of(s, "01234567_")] == '\0') return "a number in base 8";
    if (digits == 0 && s[0] != '.') return NULL;
    size_t n = run_of(s, "0123456789_");
    size_t fraction = s[n] == '.' ? 1 + run_of(s + n + 1, "0123456789_") : 0;
    if (n == 0 && fraction < 2) return NULL;
    n += fraction;
    if (s[n] == 'e' || s[n] == 'E') {
        size_t sign = s[n + 1] == '+' || s[n + 1] == '-', e = run_of(s + n + 1 + sign, "0123456789");
        if (e) n += 1 + sign + e;
    }
    return s[n] == '\0' ? "a number" : NULL;
}

/* --- messages --------------------------------------------------------------------------------------------------------------- */
struct fault {
    const struct cf_key *k;
    const struct cf_node *n;
    struct cf_report *rep;
};

__attribute__((format(printf, 3, 4))) static bool bad(const struct fault *f, enum cf_class class, const char *fmt, ...) {
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cf_report_add(f->rep, class, f->n->line, f->n->col, f->n->width, "'%s': %s", f->k->name, text);
    return false;
}

/* The value as a message shows it. */
#define SHOWN(f) cf_shown((f)->n->text, (f)->n->len, (char[CF_SHOWN_BYTES]){ 0 })

const char *cf_format_bound(enum cf_kind kind, double v, char out[32]) {
    static const struct {
        uint64_t factor;
        const char *unit;
    } sizes[] = { { 1ull << 40, "TiB" }, { 1ull << 30, "GiB" }, { 1ull << 20, "MiB" }, { 1ull << 10, "KiB" }, { 1, "B" } },
      times[] = { { 86400000, "d" }, { 3600000, "h" }, { 60000, "min" }, { 1000, "s" }, { 1, "ms" } };
    if (kind == CF_BYTES || kind == CF_MS) {
        uint64_t n = (uint64_t)v;
        size_t i = n ? 0 : kind == CF_BYTES ? 4 : 3; /* nothing is written 0B and 0s */
        while (i < 4 && n % (kind == CF_BYTES ? sizes[i].factor : times[i].factor)) i++;
        snprintf(out, 32, "%llu%s", (unsigned long long)(n / (kind == CF_BYTES ? sizes[i].factor : times[i].factor)),
                 kind == CF_BYTES ? sizes[i].unit : times[i].unit);
    } else
        snprintf(out, 32, "%.10g%s", v, kind == CF_PERCENT ? "%" : "");
    return out;
}

static bool in_bounds(const struct fault *f, enum cf_kind kind, double v) {
    char lo[32], hi[32];
    const struct cf_key *k = f->k;
    if (v < k->min || (k->above_min && v <= k->min))
        return bad(f, CF_RANGE, "%s is too small; %s %s is allowed", SHOWN(f), k->above_min ? "more than" : "at least",
                   cf_format_bound(kind, k->min, lo));
    if (v > k->max || (k->below_max && v >= k->max))
        return bad(f, CF_RANGE, "%s is too large; %s %s is allowed", SHOWN(f), k->below_max ? "less than" : "at most",
                   cf_format_bound(kind, k->max, hi));
    return true;
}

/* --- one reader a kind ------------------------------------------------------------------------------------------------------ */
static bool read_flag(const struct fault *f, union cf_value *ret) {
    static const char *const yes[] = { "y", "yes", "on", "true", "1", NULL }, *const no[] = { "n", "no", "off", "false", "0", NULL };
    const char *s = f->n->text;
    if (f->n->plain && (strcmp(s, "true") == 0 || strcmp(s, "false") == 0)) {
        ret->flag = *s == 't';
        return true;
    }
    const char *meant = among(s, yes) ? "true" : among(s, no) ? "false" : NULL;
    if (!f->n->plain && meant) return bad(f, CF_TYPE, "\"%s\" is a text; write %s without quotes", SHOWN(f), meant);
    if (meant) return bad(f, CF_TYPE, "write %s, not '%s'", meant, SHOWN(f));
    return bad(f, CF_TYPE, "'%s' is not true or false", SHOWN(f));
}

/* Why `s` is not a plain decimal number, and what to write. */
static bool not_a_number(const struct fault *f, const char *what) {
    const char *s = f->n->text, *seen = cf_yaml11(s);
    size_t digits = run_of(s, "0123456789");
    if (!f->n->plain && seen && strcmp(seen, "a number") == 0)
        return bad(f, CF_TYPE, "\"%s\" is a text; write %s without quotes", SHOWN(f), SHOWN(f));
    if (*s == '+' && seen) return bad(f, CF_TYPE, "write %s, without the '+'", SHOWN(f) + 1);
    if (digits && s[digits] == '\0') { /* so it begins with 0 */
        size_t zeros = run_of(s, "0");
        return bad(f, CF_TYPE, "'%s': to some YAML readers a leading 0 means base 8; write %s", SHOWN(f),
                   s + (zeros < digits ? zeros : digits - 1));
    }
    if (s[run_of(s, "0123456789_,")] == '\0' && digits) {
        char plain[24];
        size_t n = 0;
        for (const char *p = s; *p; p++)
            if (*p != '_' && *p != ',' && n < sizeof plain - 1) plain[n++] = *p;
        plain[n] = '\0';
        return bad(f, CF_TYPE, "'%s': numbers are written without '_' or ','; write %s", SHOWN(f), plain);
    }
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X') && s[2] && s[2 + run_of(s + 2, "0123456789abcdefABCDEF")] == '\0' && strlen(s) < 17)
        return bad(f, CF_TYPE, "'%s': numbers are written in base 10; write %llu", SHOWN(f), strtoull(s, NULL, 16));
    if (seen && strstr(seen, "base")) return bad(f, CF_TYPE, "'%s' is %s to some YAML readers; write it in base 10", SHOWN(f), seen);
    if (seen && strcmp(seen, "a number") == 0) return bad(f, CF_TYPE, "'%s' is not %s", SHOWN(f), what);
    if (digits) return bad(f, CF_TYPE, "'%s' is not %s; write it out in digits, without a unit", SHOWN(f), what);
    return bad(f, CF_TYPE, "'%s' is not %s", SHOWN(f), what);
}

static bool read_count(const struct fault *f, union cf_value *ret) {
    char lo[32];
    const char *s = f->n->text;
    if (f->n->plain && *s == '-' && s[1] && s[1 + run_of(s + 1, "0123456789")] == '\0')
        return bad(f, CF_RANGE, "%s is too small; at least %s is allowed", SHOWN(f), cf_format_bound(CF_COUNT, f->k->min, lo));
    int64_t v = 0;
    size_t n = run_of(s, "0123456789");
    if (!f->n->plain || n == 0 || s[n] || (s[0] == '0' && n > 1)) return not_a_number(f, "a whole number");
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, s[i] - '0', &v)) {
            v = INT64_MAX;
            break;
        }
    if (!in_bounds(f, CF_COUNT, (double)v)) return false;
    ret->count = v;
    return true;
}

/* [-]digits[.digits], at most 15 digits: both parts are exact in a double then, and the division rounds once, so this is the
 * nearest double, whatever the locale says about points. */
static bool decimal(const char *s, const char *suffix, double *ret) {
    const char *p = s + (*s == '-');
    size_t whole = run_of(p, "0123456789"), fraction = 0;
    if (whole == 0 || (p[0] == '0' && whole > 1)) return false;
    if (p[whole] == '.' && (fraction = run_of(p + whole + 1, "0123456789")) == 0) return false;
    size_t len = whole + (fraction ? 1 + fraction : 0);
    if (strcmp(p + len, suffix) != 0 || whole + fraction > 15) return false;
    int64_t digits = 0;
    double scale = 1;
    for (size_t i = 0; i < len; i++)
        if (p[i] != '.') digits = digits * 10 + (p[i] - '0');
    for (size_t i = 0; i < fraction; i++) scale *= 10;
    *ret = (*s == '-' ? -1.0 : 1.0) * (double)digits / scale;
    return true;
}

static bool read_number(const struct fault *f, union cf_value *ret) {
    double v;
    const char *s = f->n->text + (*f->n->text == '-');
    if (f->n->plain && s[run_of(s, "0123456789.")] == '\0' && strlen(s) > 16)
        return bad(f, CF_RANGE, "%s has more than 15 digits", SHOWN(f));
    if (!f->n->plain || !decimal(f->n->text, "", &v)) return not_a_number(f, "a number such as 0.7");
    if (!in_bounds(f, CF_NUMBER, v)) return false;
    ret->number = v;
    return true;
}

static bool read_percent(const struct fault *f, union cf_value *ret) {
    double v, bare;
    if (!decimal(f->n->text, "%", &v))
        return decimal(f->n->text, "", &bare) ? bad(f, CF_TYPE, "a share needs its sign: write %s%%", SHOWN(f))
                                              : bad(f, CF_TYPE, "'%s' is not a share such as 80%%", SHOWN(f));
    if (!in_bounds(f, CF_PERCENT, v)) return false;
    ret->number = v;
    return true;
}

/* The unit that was probably meant, or NULL. */
static const char *near_unit(const char *unit, enum cf_kind kind) {
    static const struct {
        const char *seen, *meant;
    } sizes[] = { { "b", "B" },     { "k", "KiB" },  { "kib", "KiB" }, { "ki", "KiB" }, { "kb", "KB" },   { "m", "MiB" },
                  { "mib", "MiB" }, { "mi", "MiB" }, { "mb", "MB" },   { "g", "GiB" },  { "gib", "GiB" }, { "gi", "GiB" },
                  { "gb", "GB" },   { "t", "TiB" },  { "tib", "TiB" }, { "ti", "TiB" }, { "tb", "TB" },   { NULL, NULL } },
      times[] = { { "msec", "ms" },     { "millis", "ms" }, { "ms", "ms" }, { "s", "s" },     { "sec", "s" },    { "secs", "s" },
                  { "second", "s" },    { "seconds", "s" }, { "m", "m" },   { "min", "min" }, { "mins", "min" }, { "minute", "min" },
                  { "minutes", "min" }, { "h", "h" },       { "hr", "h" },  { "hour", "h" },  { "hours", "h" },  { "d", "d" },
                  { "day", "d" },       { "days", "d" },    { NULL, NULL } };
    for (size_t i = 0; kind == CF_BYTES ? sizes[i].seen != NULL : times[i].seen != NULL; i++)
        if (strcasecmp(unit, kind == CF_BYTES ? sizes[i].seen : times[i].seen) == 0)
            return kind == CF_BYTES ? sizes[i].meant : times[i].meant;
    return NULL;
}

static bool read_unit(const struct fault *f, enum cf_kind kind, union cf_value *ret) {
    const char *s = f->n->text;
    uint64_t v;
    if (kind == CF_BYTES ? fo_parse_bytes(s, &v) : fo_parse_ms(s, &v)) {
        if (!in_bounds(f, kind, (double)v)) return false;
        ret->bytes = v;
        return true;
    }
    const char *what = kind == CF_BYTES ? "a size" : "a time", *example = kind == CF_BYTES ? "32MiB" : "10s";
    size_t digits = run_of(s, "0123456789"), n = digits, space;
    if (digits && s[n] == '.') n += 1 + run_of(s + n + 1, "0123456789");
    if (digits && s[n] == '\0')
        return bad(f, CF_TYPE, "%s needs a unit: '%s' alone means nothing; write it as in %s", what, SHOWN(f), example);
    space = run_of(s + n, " ");
    const char *unit = digits ? near_unit(s + n + space, kind) : NULL;
    if (unit && (space || strcmp(unit, s + n) != 0))
        return bad(f, CF_TYPE, "'%s' is not %s; did you mean '%.*s%s'?", SHOWN(f), what, (int)(n < 24 ? n : 24), s, unit);
    if (unit) return bad(f, CF_RANGE, "%s is too large", SHOWN(f)); /* the number overflowed */
    if (digits && base60(s))
        return bad(f, CF_TYPE, "'%s' is a number in base 60 to some YAML readers; write it as in %s", SHOWN(f), example);
    return bad(f, CF_TYPE, "'%s' is not %s; write it as in %s", SHOWN(f), what, example);
}

/* A text that another reader takes for a number or a truth must be quoted: 1.10 would be 1.1 there. */
static bool is_text(const struct fault *f) {
    const char *seen = f->n->plain ? cf_yaml11(f->n->text) : NULL;
    if (seen) return bad(f, CF_TYPE, "%s without quotes is %s to YAML readers; write \"%s\"", SHOWN(f), seen, SHOWN(f));
    return true;
}

static bool read_text(const struct fault *f, union cf_value *ret) {
    if (!is_text(f)) return false;
    if (f->n->len == 0) return bad(f, CF_RANGE, "an empty text is not allowed");
    if (f->n->len > CF_MAX_SCALAR_BYTES) return bad(f, CF_RANGE, "a text of %u bytes; at most %d are allowed", f->n->len, CF_MAX_SCALAR_BYTES);
    for (const char *s = f->n->text; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F)
            return bad(f, CF_RANGE, "a text with a control character (0x%02X) is not allowed", (unsigned char)*s);
    ret->text = f->n->text;
    return true;
}

static bool read_path(const struct fault *f, union cf_value *ret) {
    const char *s = f->n->text;
    if (s[0] == '~' && s[1] == '/') return bad(f, CF_RANGE, "'%s': '~' is not expanded here; write the whole path", SHOWN(f));
    if (s[0] == '$') return bad(f, CF_RANGE, "'%s': variables are not expanded here; write the whole path", SHOWN(f));
    return read_text(f, ret);
}

static bool read_url(const struct fault *f, union cf_value *ret) {
    struct cf_url u;
    if (!read_text(f, ret)) return false;
    const char *why = cf_url_parse(f->n->text, &u);
    return !why || bad(f, CF_RANGE, "'%s' %s", SHOWN(f), why);
}

static bool read_sha256(const struct fault *f, union cf_value *ret) {
    const char *s = f->n->text;
    if (strncasecmp(s, "sha256:", 7) == 0) return bad(f, CF_RANGE, "write the digits alone, without 'sha256:'");
    if (run_of(s, "0123456789abcdefABCDEF") != f->n->len) return bad(f, CF_RANGE, "'%s' is no checksum: 64 hexadecimal digits, as sha256sum prints them", SHOWN(f));
    if (f->n->len != SHA256_DIGITS) return bad(f, CF_RANGE, "a checksum of %u digits; a SHA-256 has %d", f->n->len, SHA256_DIGITS);
    return read_text(f, ret);
}

static bool read_name(const struct fault *f, union cf_value *ret) {
    static const char start[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    static const char rest[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
    const char *s = f->n->text;
    if (!is_text(f)) return false;
    if (f->n->len == 0) return bad(f, CF_RANGE, "an empty text is not allowed");
    if (f->n->len > CF_MAX_NAME_BYTES) return bad(f, CF_RANGE, "a text of %u bytes; at most %d are allowed", f->n->len, CF_MAX_NAME_BYTES);
    if (!run_of(s, start)) return bad(f, CF_RANGE, "'%s' does not start with a letter or a digit", SHOWN(f));
    size_t n = run_of(s, rest);
    uint32_t c = 0;
    if (s[n] == ' ') return bad(f, CF_RANGE, "'%s' holds a space; letters, digits and . _ : / - are allowed", SHOWN(f));
    if (s[n] && cf_utf8(s + n, f->n->len - n, &c) && c >= 0x20)
        return bad(f, CF_RANGE, "'%s' holds '%.*s'; letters, digits and . _ : / - are allowed", SHOWN(f),
                   (int)cf_utf8(s + n, f->n->len - n, &c), s + n);
    if (s[n]) return bad(f, CF_RANGE, "a text with a control character (0x%02X) is not allowed", (unsigned char)s[n]);
    ret->text = s;
    return true;
}

static bool port_parse(const char *s, uint16_t *ret) {
    size_t n = run_of(s, "0123456789");
    if (n == 0 || n > 5 || s[n] || (n > 1 && *s == '0')) return false;
    unsigned port = 0;
    for (; *s; s++) port = port * 10 + (unsigned)(*s - '0');
    *ret = (uint16_t)port;
    return port <= 65535;
}

bool cf_address_parse(const char *s, struct cf_address *ret) {
    struct cf_address a = { 0 };
    char host[INET6_ADDRSTRLEN];
    if (strncmp(s, "unix:", 5) == 0) {
        if (s[5] != '/') return false;
        *ret = (struct cf_address){ .path = s + 5, .loopback = true };
        return true;
    }
    if (strncmp(s, "http://", 7) == 0) a.scheme = CF_HTTP;
    if (strncmp(s, "https://", 8) == 0) a.scheme = CF_HTTPS;
    s += a.scheme == CF_HTTP ? 7 : a.scheme == CF_HTTPS ? 8 : 0;
    const char *colon = strrchr(s, ':'), *from = s, *to = colon;
    if (!colon) return false;
    if (*s == '[') {
        a.v6 = true;
        from = s + 1;
        to = colon - 1;
        if (to < from || *to != ']') return false;
    }
    if ((size_t)(to - from) >= sizeof host) return false;
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    if (inet_pton(a.v6 ? AF_INET6 : AF_INET, host, a.ip) != 1) return false;
    if (!port_parse(colon + 1, &a.port)) return false;
    static const uint8_t one[16] = { [15] = 1 }, mapped[13] = { [10] = 0xFF, [11] = 0xFF, [12] = 127 };
    a.loopback = a.v6 ? memcmp(a.ip, one, 16) == 0 || memcmp(a.ip, mapped, 13) == 0 : a.ip[0] == 127;
    *ret = a;
    return true;
}

static bool read_address(const struct fault *f, union cf_value *ret) {
    const char *s = f->n->text;
    struct cf_address a;
    if (cf_address_parse(s, &a)) {
        ret->text = s;
        return true;
    }
    if (strncmp(s, "unix:", 5) == 0) return bad(f, CF_TYPE, "'%s': a Unix socket is written with its whole path, as in \"unix:/run/pantheon/api.sock\"", SHOWN(f));
    if (strncmp(s, "http://", 7) == 0 || strncmp(s, "https://", 8) == 0) s = strstr(s, "://") + 3;
    size_t digits = run_of(s, "0123456789");
    if (digits && s[digits] == '\0') return bad(f, CF_TYPE, "a port alone is no address; write \"127.0.0.1:%s\"", SHOWN(f));
    if (*s == ':' && s[1] != ':') return bad(f, CF_TYPE, "'%s' has no host; write \"127.0.0.1%s\"", SHOWN(f), SHOWN(f));
    if (strncasecmp(s, "localhost", 9) == 0)
        return bad(f, CF_TYPE, "addresses are numbers: write \"127.0.0.1%s\"", s[9] == ':' ? s + 9 : ":8080");
    if (*s == '*')
        return bad(f, CF_TYPE, "addresses are numbers: every address of the machine is \"0.0.0.0%s\"",
                   strchr(s, ':') ? strchr(s, ':') : ":8080");
    if (strstr(s, "://")) return bad(f, CF_TYPE, "'%s' is a URL; an address is as in \"127.0.0.1:8080\"", SHOWN(f));
    const char *first = strchr(s, ':'), *last = strrchr(s, ':');
    if (!first) return bad(f, CF_TYPE, "'%s' has no port; write \"%s:8080\"", SHOWN(f), SHOWN(f));
    if (first != last && *s != '[') return bad(f, CF_TYPE, "'%s': an IPv6 address needs brackets, as in \"[::1]:8080\"", SHOWN(f));
    uint16_t port;
    if (!port_parse(last + 1, &port)) return bad(f, CF_RANGE, "'%s' does not end in a port from 0 to 65535", SHOWN(f));
    return bad(f, CF_TYPE, "'%s' is not an address such as \"127.0.0.1:8080\" or \"[::1]:8080\"", SHOWN(f));
}

/* "a|b|c" as "a, b, c". */
static const char *listed(const char *words, char out[96]) {
    size_t n = 0;
    for (; *words && n < 93; words++) {
        out[n++] = *words == '|' ? ',' : *words;
        if (*words == '|') out[n++] = ' ';
    }
    out[n] = '\0';
    return out;
}

bool cf_word_in(const char *words, const char *word, size_t len) {
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, "|");
        if (n == len && memcmp(w, word, n) == 0) return true;
        w += n + (w[n] == '|');
    }
    return false;
}

static bool read_choice(const struct fault *f, union cf_value *ret) {
    char words[96];
    const char *s = f->n->text, *w = f->k->words, *near = NULL;
    int i = 0, best = 3;
    size_t near_len = 0;
    for (; *w; i++) {
        size_t n = strcspn(w, "|");
        if (n == f->n->len && memcmp(w, s, n) == 0) {
            if (f->k->only && !cf_word_in(f->k->only, s, n))
                return bad(f, CF_NOT_YET, "'%s' is known, but this version does only %s yet", SHOWN(f), listed(f->k->only, words));
            ret->choice = i;
            return true;
        }
        char word[32] = "";
        memcpy(word, w, n < sizeof word ? n : sizeof word - 1);
        int d = cf_distance(s, word, 2);
        if (d < best) {
            best = d;
            near = w;
            near_len = n;
        }
        w += n + (w[n] == '|');
    }
    if (near)
        return bad(f, CF_RANGE, "'%s' is not one of %s; did you mean '%.*s'?", SHOWN(f), listed(f->k->words, words), (int)near_len, near);
    return bad(f, CF_RANGE, "'%s' is not one of %s", SHOWN(f), listed(f->k->words, words));
}

bool cf_scalar_read(const struct cf_key *k, enum cf_kind kind, const struct cf_node *n, struct cf_report *rep, union cf_value *ret) {
    const struct fault f = { k, n, rep };
    if (k->autos && strcasecmp(n->text, "auto") == 0) {
        if (strcmp(n->text, "auto") != 0) return bad(&f, CF_TYPE, "write auto, not '%s'", n->text);
        if (kind == CF_COUNT)
            ret->count = CF_AUTO;
        else
            ret->text = NULL;
        return true;
    }
    switch (kind) {
    case CF_FLAG:
        return read_flag(&f, ret);
    case CF_COUNT:
        return read_count(&f, ret);
    case CF_NUMBER:
        return read_number(&f, ret);
    case CF_BYTES:
    case CF_MS:
        return read_unit(&f, kind, ret);
    case CF_PERCENT:
        return read_percent(&f, ret);
    case CF_TEXT:
        return read_text(&f, ret);
    case CF_PATH:
        return read_path(&f, ret);
    case CF_NAME:
        return read_name(&f, ret);
    case CF_URL:
        return read_url(&f, ret);
    case CF_SHA256:
        return read_sha256(&f, ret);
    case CF_ADDRESS:
        return read_address(&f, ret);
    case CF_CHOICE:
        return read_choice(&f, ret);
    default:
        assert(!"a group or a list");
        return false; /* those are schema.c's to read */
    }
}
