/* Unicode look-ups: see unicode.h. Categories are found by binary search, since whoever needs them fast (the pre-tokenizer)
 * folds the ranges into a table of its own when it compiles a rule. */
#include "foundry/unicode.h"

static uint32_t range_of(uint32_t cp) {
    if (cp >= FO_UNICODE_END) return FO_UC_CN;
    size_t low = 0, high = fo_unicode_n_ranges; /* ranges[low] starts at or before cp, ranges[high] after it */
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (fo_unicode_ranges[mid] >> 8 <= cp) low = mid;
        else high = mid;
    }
    return fo_unicode_ranges[low];
}

enum fo_ucat fo_unicode_category(uint32_t cp) {
    return (enum fo_ucat)(range_of(cp) & 0x7F);
}

bool fo_unicode_is_space(uint32_t cp) {
    return range_of(cp) & 0x80;
}

uint32_t fo_utf8_next(const char *s, size_t n, size_t *ret_len) {
    const uint8_t *p = (const uint8_t *)s;
    unsigned len = fo_utf8_lead_len(p[0]);
    *ret_len = 1;
    if (len == 1) return p[0];
    if (len == 0 || n < 2 || !fo_utf8_second_ok(p[0], p[1])) return FO_UNICODE_END;
    uint32_t cp = (p[0] & (0x7Fu >> len)) << 6 | (p[1] & 0x3Fu);
    for (*ret_len = 2; *ret_len < len; ++*ret_len) {
        if (*ret_len >= n || (p[*ret_len] & 0xC0) != 0x80) return FO_UNICODE_END;
        cp = cp << 6 | (p[*ret_len] & 0x3Fu);
    }
    return cp;
}
