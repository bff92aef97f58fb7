/* Characters and lines: see text.h. */
#include "config/text.h"

#include <string.h>

#include "foundry/base/buf.h"

size_t cf_utf8(const char *s, size_t n, uint32_t *ret_c) {
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (n == 0) return 0;
    unsigned char lead = (unsigned char)s[0];
    size_t want = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
    if (want == 0 || want > n) return 0;
    uint32_t c = want == 1 ? lead : lead & (0x7Fu >> want);
    for (size_t i = 1; i < want; i++) {
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | ((unsigned char)s[i] & 0x3F);
    }
    if (c < least[want] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    *ret_c = c;
    return want;
}

size_t cf_line_break(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    switch (u[0]) {
    case '\n':
        return 1;
    case '\r':
        return n > 1 && u[1] == '\n' ? 2 : 1;
    case 0xC2:
        return n > 1 && u[1] == 0x85 ? 2 : 0;
    case 0xE2:
        return n > 2 && u[1] == 0x80 && (u[2] == 0xA8 || u[2] == 0xA9) ? 3 : 0;
    default:
        return 0;
    }
}

size_t cf_bom(const char *s, size_t n) {
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

bool cf_quote(const char *text, struct fo_buf *out) {
    size_t len = strlen(text), step;
    uint32_t c;
    for (size_t at = 0; at < len; at += step)
        if ((step = cf_utf8(text + at, len - at, &c)) == 0) return false;
    fo_buf_putc(out, '"');
    for (size_t at = 0; at < len; at += step) {
        step = cf_utf8(text + at, len - at, &c);
        if (c == '"' || c == '\\')
            fo_buf_printf(out, "\\%c", (int)c);
        else if (c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF)
            fo_buf_printf(out, "\\u%04X", (unsigned)c);
        else
            fo_buf_append(out, text + at, step);
    }
    fo_buf_putc(out, '"');
    return true;
}
