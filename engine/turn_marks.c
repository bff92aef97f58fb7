/* The ground that the turn parser stands on: bytes become symbols, texts of the dialect become patterns of symbols, what is held back is kept as
 * symbols, and what comes out becomes text again. See turn_impl.h. */
#include "engine/turn_impl.h"

#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"

/* --- symbols ------------------------------------------------------------------------------------------------------------------- */

/* The number of the control token whose text is text[0..n), -1 = none; *ret_more: some token's text goes on from there. */
static int mark_of(const struct pn_dialect *d, const char *text, size_t n, bool *ret_more) {
    const char *mark;
    size_t len;
    *ret_more = false;
    for (size_t i = 0; i < SYM_BLANKS - SYM_MARK && (mark = pn_dialect_mark_text(d, i, &len)); i++) {
        if (len < n || memcmp(mark, text, n) != 0) continue;
        if (len == n) return (int)i;
        *ret_more = true;
    }
    return -1;
}

/* What turned out to be no control token is text, but for its PN_MARK. */
void pn_turn_flush_mark(struct pn_turn *t) {
    char text[sizeof t->mark];
    size_t n = t->n_mark;
    memcpy(text, t->mark, n);
    t->in_mark = false;
    t->n_mark = 0;
    for (size_t i = 0; i < n; i++) pn_turn_step(t, (uint8_t)text[i]);
}

/* A byte of an answer. */
void pn_turn_byte(struct pn_turn *t, uint8_t c) {
    bool more;
    if (c == PN_MARK) {
        if (t->in_mark) pn_turn_flush_mark(t);
        t->in_mark = true;
        return;
    }
    if (!t->in_mark) {
        pn_turn_step(t, c);
        return;
    }
    t->mark[t->n_mark++] = (char)c;
    int mark = mark_of(t->o.dialect, t->mark, t->n_mark, &more);
    if (mark >= 0) {
        t->in_mark = false;
        t->n_mark = 0;
        pn_turn_step(t, SYM_MARK + (unsigned)mark);
    } else if (!more || t->n_mark == sizeof t->mark) {
        pn_turn_flush_mark(t);
    }
}

/* --- patterns -------------------------------------------------------------------------------------------------------------------- */

static void add(struct pattern *p, unsigned sym) {
    if (p->n < PATTERN_SYMS) p->sym[p->n++] = (uint16_t)sym;
}

/* `whole`: its blanks are part of it as they stand, and it is one word. */
static void compile(const struct pn_dialect *d, struct pattern *p, const char *text, bool whole) {
    size_t len = strlen(text);
    *p = (struct pattern){ 0 };
    for (size_t i = 0; i < len;) {
        size_t n = 1;
        int mark = -1;
        if ((uint8_t)text[i] == PN_MARK) {
            bool more = true;
            for (i++; mark < 0 && more && i + n <= len; n++) mark = mark_of(d, text + i, n, &more);
            n--;
        }
        if (mark >= 0) add(p, SYM_MARK + (unsigned)mark);
        else if (whole || !pn_is_blank((uint8_t)text[i])) add(p, (uint8_t)text[i]);
        else if (p->n && p->sym[p->n - 1] != SYM_BLANKS) add(p, SYM_BLANKS);
        i += n ? n : 1;
    }
    while (p->n && (p->sym[p->n - 1] == SYM_BLANKS || pn_is_blank(p->sym[p->n - 1]))) p->n--;
    while (p->first < p->n && p->sym[p->first] != SYM_BLANKS) p->first++;
    for (uint16_t i = 1, q = 0; i < p->first; i++) {
        while (q > 0 && p->sym[q] != p->sym[i]) q = p->back[q - 1];
        if (p->sym[q] == p->sym[i]) q++;
        p->back[i] = q;
    }
}

void pn_turn_compile(struct pn_turn *t) {
    const struct pn_dialect *d = t->o.dialect;
    for (int i = 0; i < PN_N_CALL_TEXTS; i++) compile(d, &t->pattern[i], t->f ? pn_dialect_call_text(d, (enum pn_call_text)i) : "", false);
    compile(d, &t->pattern[P_OPEN_THOUGHT], pn_dialect_open(d), true);
    compile(d, &t->pattern[P_CLOSE_THOUGHT], pn_dialect_close(d), true);
    static const char blanks[] = " \n\t\r";
    const struct pattern *close = &t->pattern[P_CLOSE_THOUGHT];
    t->stop[PN_MARK] = t->stop_thought[PN_MARK] = true;
    for (const char *b = blanks; *b; b++) t->stop_thought[(uint8_t)*b] = true;
    if (close->n && close->sym[0] < SYM_MARK) t->stop_thought[close->sym[0]] = true;
    if (!t->f) return;
    for (const char *b = blanks; *b; b++) t->stop[(uint8_t)*b] = true;
    static const int begins[] = { PN_CALL_BEGIN, PN_CALL_OPEN, PN_CALL_ALSO };
    for (int i = 0; i < 3; i++)
        if (t->pattern[begins[i]].n && t->pattern[begins[i]].sym[0] < SYM_MARK) t->stop[t->pattern[begins[i]].sym[0]] = true;
}

/* A step of automaton k over the first word of a pattern: 1 = the word is whole. */
int pn_turn_scan_step(struct pn_turn *t, int k, int pattern, unsigned sym) {
    const struct pattern *p = &t->pattern[pattern];
    uint16_t q = t->q[k];
    if (p->first == 0) return 0;
    while (q > 0 && p->sym[q] != sym) q = p->back[q - 1];
    if (p->sym[q] == sym) q++;
    t->q[k] = q == p->first ? 0 : q;
    return q == p->first;
}

/* Follows up to three patterns from here, each from its start; -1 = none. A pattern without text is none. */
void pn_turn_candidates(struct pn_turn *t, int a, int b, int c) {
    const int all[N_CANDIDATES] = { a, b, c };
    for (int i = 0; i < N_CANDIDATES; i++)
        t->candidate[i] = (struct candidate){ .pattern = all[i], .alive = all[i] >= 0 && t->pattern[all[i]].n > 0 };
    t->from = SIZE_MAX;
}

/* One more symbol for the candidates: the pattern that is whole with it, -1 = some go on (blanks in front of all count for none), -2 = none does. */
int pn_turn_follow(struct pn_turn *t, unsigned sym) {
    bool any = false, blank = pn_is_blank(sym);
    if (t->n_held >= HELD_SYMS) return -2;
    if (t->from == SIZE_MAX) {
        if (blank) return -1;
        t->from = t->n_held;
    }
    for (int i = 0; i < N_CANDIDATES; i++) {
        struct candidate *c = &t->candidate[i];
        if (!c->alive) continue;
        const struct pattern *p = &t->pattern[c->pattern];
        if (p->sym[c->at] == SYM_BLANKS) {
            if (blank) {
                any = true;
                continue;
            }
            c->at++;
        }
        c->alive = p->sym[c->at] == sym;
        if (!c->alive) continue;
        if (++c->at == p->n) return c->pattern;
        any = true;
    }
    return any ? -1 : -2;
}

/* --- what is held and what comes out ------------------------------------------------------------------------------------------------ */

void pn_part_put(struct fo_buf *parts, enum pn_part part, const char *text, size_t len) {
    char head[1 + sizeof(size_t)] = { (char)part };
    memcpy(head + 1, &len, sizeof len);
    fo_buf_append(parts, head, sizeof head);
    fo_buf_append(parts, text, len);
}

bool pn_part_next(const struct fo_buf *parts, size_t *at, struct pn_part_text *ret) {
    size_t len;
    if (*at >= parts->len) return false;
    memcpy(&len, parts->data + *at + 1, sizeof len);
    *ret = (struct pn_part_text){ (enum pn_part)parts->data[*at], parts->data + *at + 1 + sizeof len, len };
    *at += 1 + sizeof len + len;
    return true;
}

/* Text of a part, which goes on with the last one of this push where it is of the same kind. */
void pn_turn_put(struct pn_turn *t, enum pn_part part, const char *text, size_t n) {
    size_t len;
    if (n == 0) return;
    if (part == PN_PART_CALL || t->last == SIZE_MAX || t->parts->data[t->last] != (char)part) {
        t->last = t->parts->len;
        pn_part_put(t->parts, part, text, n);
    } else if (fo_buf_append(t->parts, text, n)) {
        memcpy(&len, t->parts->data + t->last + 1, sizeof len);
        len += n;
        memcpy(t->parts->data + t->last + 1, &len, sizeof len);
    }
    if (t->parts->failed) pn_turn_give_up(t);
}

void pn_turn_put_sym(struct pn_turn *t, enum pn_part part, unsigned sym) {
    size_t len;
    const char c = (char)sym;
    if (sym < SYM_MARK) pn_turn_put(t, part, &c, 1);
    else {
        const char *text = pn_dialect_mark_text(t->o.dialect, sym - SYM_MARK, &len);
        pn_turn_put(t, part, text, len);
    }
}

void pn_turn_hold(struct pn_turn *t, unsigned sym) {
    if (t->n_held == t->size_held) {
        size_t size = t->size_held ? 2 * t->size_held : 64;
        uint16_t *more = realloc(t->held, size * sizeof *more);
        if (!more) {
            pn_turn_give_up(t);
            return;
        }
        t->held = more;
        t->size_held = size;
    }
    t->held[t->n_held++] = (uint16_t)sym;
}

/* The first n symbols of what is held come out. */
void pn_turn_release(struct pn_turn *t, enum pn_part part, size_t n) {
    char text[256];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (t->held[i] < SYM_MARK) text[len++] = (char)t->held[i];
        if (len && (len == sizeof text || t->held[i] >= SYM_MARK)) {
            pn_turn_put(t, part, text, len);
            len = 0;
        }
        if (t->held[i] >= SYM_MARK) pn_turn_put_sym(t, part, t->held[i]);
    }
    if (len) pn_turn_put(t, part, text, len);
    t->n_held -= n;
    if (t->n_held) memmove(t->held, t->held + n, t->n_held * sizeof *t->held);
}

/* Forgets what is held, and reads what of it stands from `from` on once more, in the state that the parser is in now. */
void pn_turn_replay(struct pn_turn *t, size_t from) {
    uint16_t *old = t->held;
    size_t n = t->n_held;
    t->held = NULL;
    t->n_held = t->size_held = 0;
    for (size_t i = from; i < n; i++) pn_turn_step(t, old[i]);
    free(old);
}

/* What is held from `from` on, with its marks, and all of the piece that was not read yet. */
void pn_turn_rest(const struct pn_turn *t, size_t from, struct fo_buf *ret) {
    size_t len;
    for (size_t i = from; i < t->n_held; i++) {
        if (t->held[i] < SYM_MARK) {
            fo_buf_putc(ret, (char)t->held[i]);
            continue;
        }
        const char *text = pn_dialect_mark_text(t->o.dialect, t->held[i] - SYM_MARK, &len);
        fo_buf_putc(ret, (char)PN_MARK);
        fo_buf_append(ret, text, len);
    }
    fo_buf_append(ret, t->cur, (size_t)(t->end - t->cur));
}
