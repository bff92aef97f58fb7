/* wordwrap: each line of a text broken so that no line is longer than a width, as Python's textwrap does it. A line is first cut into
 * chunks, which are white space, words, parts of a hyphenated word and dashes between words; lines are then filled with whole chunks. A
 * chunk longer than a line is cut, at a hyphen where there is one. White space is dropped where a line breaks. */
#include "engine/jinja_impl.h"

#include <string.h>

#include "foundry/unicode.h"

struct wrap {
    struct pn_rt *rt;
    struct pn_value s;                      /* the whole text: chunks are parts of it, by bytes */
    struct pn_value newline;
    size_t width;                           /* characters, at least 1 */
    bool cut_words, at_hyphens;
    size_t line_from, line_to;              /* the line at hand, without its end */
    size_t cut_from, cut_to;                /* what is left of a chunk that was cut: it stays one chunk, and is not looked for again */
    bool written;                           /* a line of the result stands there already: the next one begins with `newline` */
};

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(uint32_t c) {
    return pn_char_is_alpha(c) || c == '_' || (c < 0x80 ? c >= '0' && c <= '9' : fo_unicode_category(c) == FO_UC_ND);
}

static bool is_letter(uint32_t c) {
    return pn_char_is_alpha(c) || c == '_';
}

static uint32_t char_after(const struct wrap *w, size_t at, size_t *ret_n) {
    *ret_n = 0;
    return at < w->line_to ? pn_char_at(w->s.s->s + at, w->line_to - at, ret_n) : 0;
}

static uint32_t char_before(const struct wrap *w, size_t at, size_t *ret_n) {
    size_t k = at;
    *ret_n = 0;
    if (at == w->line_from) return 0;
    do k--;
    while (k > w->line_from && ((unsigned char)w->s.s->s[k] & 0xC0) == 0x80);
    return pn_char_at(w->s.s->s + k, at - k, ret_n);
}

/* Whether dashes between two words begin at `at`; *ret_n is how many. */
static bool dashes_at(const struct wrap *w, size_t at, size_t *ret_n) {
    size_t n = 0, len;
    uint32_t before = char_before(w, at, &len);
    if (!len || !(is_word(before) || (before < 0x80 && strchr("!\"'&.,?", (int)before)))) return false;
    while (at + n < w->line_to && w->s.s->s[at + n] == '-') n++;
    uint32_t after = char_after(w, at + n, &len);
    *ret_n = n;
    return n >= 2 && len && is_word(after);
}

/* Whether a word may break after the hyphen at `at`: two letters (or letter, hyphen, letter) before it and two after it, the latter
 * perhaps with a hyphen between. */
static bool breaks_after(const struct wrap *w, size_t at) {
    size_t n, m;
    if (w->s.s->s[at] != '-') return false;
    uint32_t c = char_before(w, at, &n), d = n ? char_before(w, at - n, &m) : 0;
    if (!n || !is_letter(c) || !m) return false;
    if (!is_letter(d)) {
        size_t k;
        if (d != '-' || !is_letter(char_before(w, at - n - m, &k)) || !k) return false;
    }
    c = char_after(w, at + 1, &n);
    if (!n || !is_letter(c)) return false;
    d = char_after(w, at + 1 + n, &m);
    if (m && d == '-') d = char_after(w, at + 2 + n, &m);
    return m && is_letter(d);
}

/* The end of the chunk that begins at `at`. */
static size_t chunk_end(const struct wrap *w, size_t at) {
    const char *s = w->s.s->s;
    size_t end = at, n;
    if (at == w->cut_from && at < w->cut_to) return w->cut_to;
    if (is_blank(s[at])) {
        while (end < w->line_to && is_blank(s[end])) end++;
        return end;
    }
    if (w->at_hyphens && dashes_at(w, at, &n)) return at + n;
    for (end += pn_char_len(s + at, w->line_to - at); end < w->line_to && !is_blank(s[end]); end += pn_char_len(s + end, w->line_to - end)) {
        if (!w->at_hyphens) continue;
        if (breaks_after(w, end)) return end + 1;
        if (dashes_at(w, end, &n)) return end;
    }
    return end;
}

/* Where a chunk too long for a line is cut to fill `room` characters: after its last hyphen there, unless all before that are hyphens. */
static size_t cut_at(const struct wrap *w, size_t from, size_t to, size_t room) {
    const char *s = w->s.s->s;
    size_t end = from + pn_char_offset(s + from, to - from, room);
    for (size_t k = end; w->at_hyphens && k-- > from + 1;)
        if (s[k] == '-') {
            for (size_t i = from; i < k; i++)
                if (s[i] != '-') return k + 1;
            break;
        }
    return end;
}

static int put_line(struct wrap *w, size_t from, size_t to) {
    if (w->written) pn_out_put_str(&w->rt->out, w->newline);
    w->written = true;
    pn_out_put_part(&w->rt->out, w->s, from, to - from);
    return 0;
}

/* Chunks follow one another in the text, so a line of the result is a part of it: [from, end of its last chunk). */
static int wrap_line(struct wrap *w) {
    const char *s = w->s.s->s;
    bool first = true;
    for (size_t at = w->line_from; at < w->line_to;) {
        size_t from, end, used = 0, to, last;
        if (!first && is_blank(s[at])) at = chunk_end(w, at);
        for (from = end = last = at; end < w->line_to; end = to) {
            if (pn_charge(w->rt, 1)) return w->rt->e->code;
            to = chunk_end(w, end);
            if (pn_char_offset(s + end, to - end, w->width - used) == to - end) { /* fits; a long chunk is not gone through for that */
                used += pn_count_chars(s + end, to - end);
                last = end;
                continue;
            }
            bool too_long = pn_char_offset(s + end, to - end, w->width) < to - end;
            if (too_long && w->cut_words) {
                last = end;
                end = w->width > used ? cut_at(w, end, to, w->width - used) : end; /* of a full line, nothing: its white space stays then */
                w->cut_from = end;
                w->cut_to = to;
            } else if (too_long && end == from) {
                end = to;
            }
            break;
        }
        at = end;
        if (last < end && is_blank(s[last])) end = last; /* a line does not end in white space */
        if (end > from) {
            first = false;
            put_line(w, from, end);
        }
    }
    return 0;
}

int pn_filter_wordwrap(struct pn_rt *rt, struct pn_value self, const struct pn_args *a, struct pn_value *ret) {
    struct wrap w = { .rt = rt, .s = self, .width = 79, .cut_words = !a->v[1] || pn_value_truth(*a->v[1]), .at_hyphens = !a->v[3] || pn_value_truth(*a->v[3]) };
    struct pn_value lines;
    size_t from = rt->out.len;
    if (self.kind == PN_V_UNDEFINED) return pn_rt_undefined(rt, self);
    if (self.kind != PN_V_STR) return pn_rt_fail(rt, "what is wrapped must be a string, not %s", pn_value_type(self));
    if (a->v[0]) {
        if (a->v[0]->kind != PN_V_INT || a->v[0]->i <= 0) return pn_rt_fail(rt, "a width of at least 1 is needed");
        w.width = (uint64_t)a->v[0]->i < SIZE_MAX ? (size_t)a->v[0]->i : SIZE_MAX;
    }
    if (a->v[2] && a->v[2]->kind == PN_V_STR)
        w.newline = *a->v[2];
    else if (a->v[2] && a->v[2]->kind != PN_V_NULL)
        return pn_rt_fail(rt, "what lines are joined by must be a string");
    else if (!pn_str_view(rt->region, "\n", 1, PN_BY_TEMPLATE, &w.newline))
        return pn_rt_full(rt);
    if (pn_charge_bytes(rt, self.s->len) || pn_str_lines(rt, self, false, &lines)) return rt->e->code;
    for (size_t i = 0; i < lines.list->n; i++) {
        struct pn_value line = lines.list->v[i];
        if (i && !w.written) w.written = true;
        w.line_from = (size_t)(line.s->s - self.s->s);
        w.line_to = w.line_from + line.s->len;
        size_t before = rt->out.len;
        if (wrap_line(&w)) return rt->e->code;
        if (rt->out.len == before && i) pn_out_put_str(&rt->out, w.newline); /* an empty line stays one */
        w.written = true;
    }
    return pn_out_end(rt, from, ret);
}
