/* Sizes and durations: see units.h. */
#include "foundry/base/units.h"

#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit sizes[] = {
    { "B", 1 },
    { "KiB", 1ull << 10 }, { "MiB", 1ull << 20 }, { "GiB", 1ull << 30 }, { "TiB", 1ull << 40 },
    { "KB", 1000 }, { "MB", 1000000 }, { "GB", 1000000000 }, { "TB", 1000000000000 },
    { NULL, 0 },
};
static const struct unit times[] = {
    { "ms", 1 }, { "s", 1000 }, { "min", 60000 }, { "m", 60000 }, { "h", 3600000 }, { "d", 86400000 }, { NULL, 0 },
};

/* Exact for what people write: whole part times factor, plus the fraction (at most 9 digits) rounded down. */
static bool parse(const char *s, const struct unit *units, uint64_t *ret) {
    uint64_t whole = 0, frac = 0, scale = 1;
    const char *p = s;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(whole, 10u, &whole) || __builtin_add_overflow(whole, (uint64_t)(*p - '0'), &whole)) return false;
    if (*p == '.') {
        p++;
        if (*p < '0' || *p > '9') return false;
        for (; *p >= '0' && *p <= '9'; p++)
            if (scale < 1000000000) {
                frac = frac * 10 + (uint64_t)(*p - '0');
                scale *= 10;
            }
    }
    for (const struct unit *u = units; u->name; u++) {
        if (strcmp(p, u->name) != 0) continue;
        uint64_t v, f = (uint64_t)((unsigned __int128)frac * u->factor / scale);
        if (__builtin_mul_overflow(whole, u->factor, &v) || __builtin_add_overflow(v, f, &v)) return false;
        *ret = v;
        return true;
    }
    return false;
}

bool fo_parse_bytes(const char *s, uint64_t *ret_bytes) {
    return parse(s, sizes, ret_bytes);
}

bool fo_parse_ms(const char *s, uint64_t *ret_ms) {
    return parse(s, times, ret_ms);
}

/* Three significant digits, decided by what the number is rounded to: 9.999 is "10.0". */
static char *format(double v, const char *unit, char *out, size_t size) {
    bool whole = v == (double)(uint64_t)v;
    snprintf(out, size, whole || v >= 99.95 ? "%.0f %s" : v >= 9.995 ? "%.1f %s" : "%.2f %s", v, unit);
    return out;
}

char *fo_format_bytes(uint64_t bytes, char *out, size_t size) {
    static const char *const names[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double v = (double)bytes;
    int i = 0;
    for (; v >= 1023.5 && i < 6; i++) v /= 1024; /* never "1024 KiB" */
    return format(v, names[i], out, size);
}

char *fo_format_ms(uint64_t ms, char *out, size_t size) {
    double v = (double)ms;
    return ms < 1000       ? format(v, "ms", out, size)
           : ms < 120000   ? format(v / 1000, "s", out, size)
           : ms < 7200000  ? format(v / 60000, "min", out, size)
           : ms < 172800000 ? format(v / 3600000, "h", out, size)
                           : format(v / 86400000, "d", out, size);
}
