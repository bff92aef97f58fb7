/* Form C: see unicode_nfc.h. Nearly all text has nothing to do. Where a character needs care, it and its like, with the character in
 * front of them, are a run: decomposed, put in the order of combining classes, and composed again. Runs do not touch each other. */
#include "foundry/unicode_nfc.h"

#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/unicode.h"

/* Hangul syllables: three parts, computed (Unicode, chapter 3.12). */
enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, N_L = 19, N_V = 21, N_T = 28, N_S = N_L * N_V * N_T };

struct mark {
    uint32_t cp;
    uint32_t class;
};

struct run {
    struct mark *c, *sorted; /* [size] */
    size_t n, size;
};

/* The last index whose key (every `stride`th number, shifted) is not above cp; the first key is 0 or the caller checks. */
static size_t find(const uint32_t *table, size_t n, size_t stride, unsigned shift, uint32_t cp) {
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (table[mid * stride] >> shift <= cp) low = mid;
        else high = mid;
    }
    return low;
}

static uint32_t class_of(uint32_t cp) {
    return fo_nfc_classes[find(fo_nfc_classes, fo_nfc_n_classes, 1, 8, cp)] & 0xFF;
}

static bool needs_care(uint32_t cp) {
    if (cp < fo_nfc_care[0] || cp >= FO_UNICODE_END) return false;
    if (cp >= 0x3100 && cp < 0xA66F) return false; /* most of what has three bytes */
    return cp <= fo_nfc_care[find(fo_nfc_care, fo_nfc_n_care, 2, 0, cp) * 2 + 1];
}

bool fo_nfc_is_certain(const char *s, size_t n) {
    size_t len;
    for (size_t i = 0; i < n; i += len) {
        len = 1;
        if ((uint8_t)s[i] < 0xCC) continue; /* below U+0300; bytes that go on a character too */
        if (needs_care(fo_utf8_next(s + i, n - i, &len))) return false;
    }
    return true;
}

static bool run_add(struct run *r, uint32_t cp) {
    if (cp - S_BASE < N_S) {
        uint32_t at = cp - S_BASE, t = at % N_T;
        return run_add(r, L_BASE + at / (N_V * N_T)) && run_add(r, V_BASE + at % (N_V * N_T) / N_T) && (!t || run_add(r, T_BASE + t));
    }
    const uint32_t *d = fo_nfc_decomposed + 3 * find(fo_nfc_decomposed, fo_nfc_n_decomposed, 3, 0, cp);
    if (d[0] == cp) return run_add(r, d[1]) && (!d[2] || run_add(r, d[2]));
    if (r->n == r->size) {
        size_t size = r->size ? r->size * 2 : 32;
        struct mark *c = realloc(r->c, size * sizeof *c), *sorted = c ? realloc(r->sorted, size * sizeof *sorted) : NULL;
        if (c) r->c = c;
        if (!sorted) return false;
        r->sorted = sorted;
        r->size = size;
    }
    r->c[r->n++] = (struct mark){ cp, class_of(cp) };
    return true;
}

/* Marks c[0..n) by class, equal ones in the order they are in: counted, so that a long row of them costs no more than a short one. */
static void sort_marks(struct mark *c, struct mark *sorted, size_t n) {
    size_t count[257] = { 0 };
    bool in_order = true;
    for (size_t i = 1; i < n; i++) in_order = in_order && c[i - 1].class <= c[i].class;
    if (in_order) return;
    for (size_t i = 0; i < n; i++) count[c[i].class + 1]++;
    for (int i = 1; i < 257; i++) count[i] += count[i - 1];
    for (size_t i = 0; i < n; i++) sorted[count[c[i].class]++] = c[i];
    memcpy(c, sorted, n * sizeof *c);
}

/* What two characters make, 0 = nothing. */
static uint32_t compose(uint32_t a, uint32_t b) {
    if (a - L_BASE < N_L && b - V_BASE < N_V) return S_BASE + ((a - L_BASE) * N_V + (b - V_BASE)) * N_T;
    if (a - S_BASE < N_S && (a - S_BASE) % N_T == 0 && b - T_BASE - 1 < N_T - 1) return a + (b - T_BASE);
    size_t low = 0, high = fo_nfc_n_composed;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const uint32_t *t = fo_nfc_composed + 3 * mid;
        if (t[0] == a && t[1] == b) return t[2];
        if (t[0] < a || (t[0] == a && t[1] < b)) low = mid + 1;
        else high = mid;
    }
    return 0;
}

static void put_utf8(struct fo_buf *out, uint32_t cp) {
    char s[4];
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; cp >>= 6) s[i] = (char)(0x80 | (cp & 0x3F));
    s[0] = (char)(n == 1 ? cp : (0xF00u >> n & 0xFF) | cp);
    fo_buf_append(out, s, n);
}

/* Orders, composes and writes the run, and empties it. */
static void run_flush(struct run *r, struct fo_buf *out) {
    size_t n = 0, starter = SIZE_MAX;
    for (size_t i = 0, end; i < r->n; i = end) {
        for (end = i; end < r->n && r->c[end].class; end++) {}
        if (end > i) sort_marks(r->c + i, r->sorted, end - i);
        else end++;
    }
    int64_t last = -1; /* class of what stands between the starter and this; -1 = nothing */
    for (size_t i = 0; i < r->n; i++) {
        struct mark m = r->c[i];
        uint32_t made = starter != SIZE_MAX && last < (int64_t)m.class ? compose(r->c[starter].cp, m.cp) : 0;
        if (made) {
            r->c[starter].cp = made;
            continue;
        }
        if (m.class) last = m.class;
        else starter = n, last = -1;
        r->c[n++] = m;
    }
    for (size_t i = 0; i < n; i++) put_utf8(out, r->c[i].cp);
    r->n = 0;
}

int fo_nfc(const char *s, size_t n, struct fo_buf *out, struct fo_err *e) {
    struct run r = { 0 };
    size_t len, from = 0, before = 0; /* from: what is not written yet; before: the last character */
    bool ok = true, broken = true;    /* broken: there is no character before */
    for (size_t i = 0; i < n && ok; i += len) {
        uint32_t cp = fo_utf8_next(s + i, n - i, &len);
        if (!needs_care(cp)) {
            if (r.n) run_flush(&r, out), from = i;
            before = i;
            broken = cp >= FO_UNICODE_END;
            continue;
        }
        if (!r.n) {
            size_t start = broken ? i : before, n_before;
            if (start > from) fo_buf_append(out, s + from, start - from);
            if (!broken) ok = run_add(&r, fo_utf8_next(s + start, n - start, &n_before));
        }
        ok = ok && run_add(&r, cp);
        from = i + len;
    }
    if (r.n) run_flush(&r, out);
    if (from < n) fo_buf_append(out, s + from, n - from);
    free(r.c);
    free(r.sorted);
    return ok && !out->failed ? 0 : fo_fail(e, FO_ENOMEM, "no memory for normalising %zu bytes of text", n);
}
