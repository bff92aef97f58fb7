/* Stop strings: see stop.h.
 *
 * Each string has its own Knuth-Morris-Pratt automaton: state q = the length of its longest prefix that the text so far ends with.
 * q = the whole length is a match; the largest q of all strings is what has to be held back, and no more. The strings are valid
 * UTF-8 and so is the text, hence a held prefix always starts at a character and what comes out is whole characters. */
#include "engine/stop.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/request.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

struct automaton {
    size_t len, q;
    char text[PN_MAX_STOP_BYTES];
    uint16_t back[PN_MAX_STOP_BYTES]; /* [len] length of the longest proper prefix of text[0..=i] that is also its suffix */
};

struct pn_stop {
    int n;
    size_t n_held;
    char held[PN_MAX_STOP_BYTES]; /* [n_held] < the longest stop string */
    struct automaton a[];         /* [n] */
};

/* The next state after byte c. */
static size_t step(const struct automaton *a, size_t q, char c) {
    while (q > 0 && a->text[q] != c) q = a->back[q - 1];
    return a->text[q] == c ? q + 1 : 0;
}

static void automaton_make(struct automaton *a, const char *text, size_t len) {
    memcpy(a->text, text, len);
    a->len = len;
    for (size_t i = 1, q = 0; i < len; i++) {
        q = step(a, q, text[i]);
        a->back[i] = (uint16_t)q;
    }
}

static bool utf8_valid(const char *s, size_t len) {
    const unsigned char *p = (const unsigned char *)s, *end = p + len;
    while (p < end) {
        unsigned char c = *p++;
        int more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : -1;
        if (more < 0 || end - p < more) return false;
        if (more > 1 && ((c == 0xE0 && *p < 0xA0) || (c == 0xED && *p >= 0xA0) || (c == 0xF0 && *p < 0x90) || (c == 0xF4 && *p >= 0x90)))
            return false;
        for (; more > 0; more--)
            if ((*p++ & 0xC0) != 0x80) return false;
    }
    return true;
}

int pn_stop_new(const char *const *stops, int n, struct pn_stop **ret, struct fo_err *e) {
    if (n < 0 || n > PN_MAX_STOPS) return fo_fail_need(e, FO_EINVAL, (uint64_t)(n < 0 ? 0 : n), PN_MAX_STOPS, "stop: at most %d strings", PN_MAX_STOPS);
    if (n == 0) {
        *ret = NULL;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        size_t len = strnlen(stops[i], PN_MAX_STOP_BYTES + 1);
        if (len == 0) return fo_fail(e, FO_EINVAL, "stop: string %d is empty", i);
        if (len > PN_MAX_STOP_BYTES) return fo_fail(e, FO_EINVAL, "stop: string %d has more than %d bytes", i, PN_MAX_STOP_BYTES);
        if (!utf8_valid(stops[i], len)) return fo_fail(e, FO_EINVAL, "stop: string %d is not UTF-8", i);
    }
    struct pn_stop *s = calloc(1, sizeof *s + (size_t)n * sizeof s->a[0]);
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for %d stop strings", n);
    s->n = n;
    for (int i = 0; i < n; i++) automaton_make(&s->a[i], stops[i], strlen(stops[i]));
    *ret = s;
    return 0;
}

void pn_stop_free(struct pn_stop *s) {
    free(s);
}

/* Releases the first n bytes of held + text[0..len); the rest, which fits, stays held. */
static void release(struct pn_stop *s, const char *text, size_t len, size_t n, struct fo_buf *out) {
    size_t from_held = n < s->n_held ? n : s->n_held, from_text = n - from_held;
    fo_buf_append(out, s->held, from_held);
    fo_buf_append(out, text, from_text);
    s->n_held -= from_held;
    memmove(s->held, s->held + from_held, s->n_held);
    memcpy(s->held + s->n_held, text + from_text, len - from_text);
    s->n_held += len - from_text;
}

bool pn_stop_push(struct pn_stop *s, const char *text, size_t len, struct fo_buf *out) {
    if (!s) {
        fo_buf_append(out, text, len);
        return false;
    }
    size_t hold = 0;
    for (size_t i = 0; i < len; i++) {
        size_t matched = 0;
        hold = 0;
        for (int k = 0; k < s->n; k++) {
            struct automaton *a = &s->a[k];
            a->q = step(a, a->q, text[i]);
            if (a->q > hold) hold = a->q;
            if (a->q == a->len && a->len > matched) matched = a->len;
        }
        if (matched > 0) {
            release(s, text, i + 1, s->n_held + i + 1 - matched, out);
            s->n_held = 0;
            return true;
        }
    }
    if (len > 0) release(s, text, len, s->n_held + len - hold, out);
    return false;
}

void pn_stop_end(struct pn_stop *s, struct fo_buf *out) {
    if (!s) return;
    fo_buf_append(out, s->held, s->n_held);
    s->n_held = 0;
    for (int k = 0; k < s->n; k++) s->a[k].q = 0;
}
