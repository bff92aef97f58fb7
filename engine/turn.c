/* The turn parser: see turn.h. A machine that reads symbols (bytes, and control tokens as one each) and holds back no more than it must:
 *
 *   ANCHOR --the open of a thought--> THOUGHT --its close--> ANCHOR            (before any content)
 *   OPENED --anything, the open once more left out--> THOUGHT                  (the prompt has opened it)
 *   ANCHOR --anything else--> SCAN (content) --the first word of a mark--> MARKS --> OBJECT or NAME (a call's head)
 *   a head --whole--> ARGS, TEXT or TAGS (arguments come out as they are read) --> OBJECT, NEXT (the call's end) --> ANCHOR
 *
 * Whatever breaks on its way is content from there on: a head with all that was held of it; of the beginning of a mark that is none the rest is read
 * once more, so that a mark right behind it is found. That is at most one mark's length each time, hence time is linear. What a head may hold is
 * capped. */
#include "engine/turn_impl.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tools.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

static const int content_patterns[N_SCANNED] = { PN_CALL_BEGIN, PN_CALL_OPEN, PN_CALL_ALSO, P_CLOSE_THOUGHT /* behind one that was cut */ };

int pn_turn_new(const struct pn_turn_opts *o, struct pn_turn **ret, struct fo_err *e) {
    struct pn_turn *t = calloc(1, sizeof *t);
    if (!t) return fo_fail(e, FO_ENOMEM, "no memory to read an answer");
    t->o = *o;
    t->f = o->tools ? pn_dialect_calls(o->dialect) : NULL;
    pn_turn_compile(t);
    t->bare_ok = t->f && t->f->bare;
    t->last = SIZE_MAX;
    bool thinks = pn_dialect_reasoning(o->dialect) && !o->no_reasoning;
    t->state = thinks && o->in_reasoning ? ST_OPENED : thinks ? ST_ANCHOR : ST_SCAN;
    pn_turn_candidates(t, thinks ? P_OPEN_THOUGHT : -1, -1, -1);
    *ret = t;
    return 0;
}

void pn_turn_free(struct pn_turn *t) {
    if (!t) return;
    free(t->held);
    free(t);
}

/* --- content and thoughts ---------------------------------------------------------------------------------------------------------- */

/* Content goes on from here, behind nothing but blanks that are held. */
void pn_turn_scan_from(struct pn_turn *t) {
    t->state = ST_SCAN;
    memset(t->q, 0, sizeof t->q);
    t->n_blank = t->n_held;
}

/* Content has come: what may only stand at a beginning cannot any more. */
static void release_content(struct pn_turn *t, size_t n) {
    if (n > t->n_blank) t->bare_ok = false;
    pn_turn_release(t, PN_PART_CONTENT, n);
}

/* All that is held is content after all, and so is sym, unless something begins with it. */
void pn_turn_fail(struct pn_turn *t, unsigned sym) {
    if (t->dead) return;
    t->bare_ok = false;
    pn_turn_release(t, PN_PART_CONTENT, t->n_held);
    pn_turn_scan_from(t);
    pn_turn_step(t, sym);
}

/* The same where a mark broke that was followed, at the last symbol held: what there is of it (but for a first word that was whole) is read once
 * more. */
void pn_turn_fail_mark(struct pn_turn *t) {
    if (t->dead) return;
    size_t n = t->from < t->n_held ? t->from : t->n_held - 1;
    t->bare_ok = false;
    pn_turn_release(t, PN_PART_CONTENT, n);
    pn_turn_scan_from(t);
    t->n_blank = 0;
    pn_turn_replay(t, 0);
}

static void release_scanned(struct pn_turn *t, bool thought, size_t n) {
    if (thought) {
        pn_turn_release(t, PN_PART_REASONING, n);
        t->drops_blanks = false;
    } else {
        release_content(t, n);
    }
    t->n_blank = 0;
}

/* A symbol of content or of a thought. Blanks are held until it is known that no mark follows them, which would take them along. */
static void scan(struct pn_turn *t, unsigned sym) {
    bool thought = t->state == ST_THOUGHT, held_mark = t->n_held > t->n_blank, found = false;
    size_t q = 0;
    int pattern = P_CLOSE_THOUGHT;
    if (!thought && t->bare_ok && !held_mark && sym == '{') {
        pn_turn_hold(t, sym);
        pn_turn_call_start(t, true);
        return;
    }
    for (int i = 0; i < (thought ? 1 : t->was_cut ? N_SCANNED : N_SCANNED - 1) && !found; i++) {
        pattern = thought ? P_CLOSE_THOUGHT : content_patterns[i];
        found = pn_turn_scan_step(t, i, pattern, sym);
        if (found) {
            q = t->pattern[pattern].first;
            pn_turn_candidates(t, pattern, -1, -1);
            t->candidate[0].at = (uint16_t)q;
        } else if (t->q[i] > q) {
            q = t->q[i];
        }
    }
    bool goes_on = q == t->n_held - t->n_blank + 1;
    if (q == 0 && (sym >= SYM_MARK || pn_is_blank(sym))) {
        if (held_mark || t->n_blank >= HELD_SYMS) release_scanned(t, thought, t->n_held);
        if (sym >= SYM_MARK) return; /* a control token that means nothing here */
        if (thought && t->drops_blanks) return;
        pn_turn_hold(t, sym);
        t->n_blank++;
        return;
    }
    pn_turn_hold(t, sym);
    if (t->dead) return;
    if (!goes_on) release_scanned(t, thought, t->n_held - q);
    if (!found) return;
    if (thought) {
        t->n_held = t->n_blank = 0;
        t->state = ST_ANCHOR;
        t->drops_blanks = true;
        pn_turn_candidates(t, P_OPEN_THOUGHT, -1, -1);
        return;
    }
    if (pattern == P_CLOSE_THOUGHT) { /* the model goes on with a thought that was ended for it */
        t->n_held = t->n_blank = 0;
        return;
    }
    t->from = t->n_held;
    pn_turn_call_start(t, false);
}

/* Content in which nothing is looked for. */
static void pass(struct pn_turn *t, unsigned sym) {
    if (t->n_held) pn_turn_release(t, PN_PART_CONTENT, t->n_held);
    if (sym < SYM_MARK) pn_turn_put_sym(t, PN_PART_CONTENT, sym);
}

/* --- between the parts ---------------------------------------------------------------------------------------------------------------- */

/* A call is over. end_word_seen: the first word of its end mark was read already. */
void pn_turn_call_done(struct pn_turn *t, bool end_word_seen) {
    const struct pattern *end = &t->pattern[PN_CALL_END];
    t->n_held = 0;
    t->is_over = t->o.tools && pn_tools_one_call(t->o.tools);
    t->state = t->is_over ? ST_OVER : ST_ANCHOR;
    t->drops_blanks = true;
    t->bare_ok = t->f->bare;
    pn_turn_candidates(t, PN_CALL_END, t->in_group ? PN_CALL_CLOSE : -1, -1);
    if (!end_word_seen) return;
    t->candidate[0].at = end->first;
    t->candidate[0].alive = end->first < end->n;
}

static void begin_thought(struct pn_turn *t) {
    t->state = ST_THOUGHT;
    t->n_blank = 0;
    memset(t->q, 0, sizeof t->q);
    t->drops_blanks = true;
}

static void opened(struct pn_turn *t, unsigned sym) {
    if (t->from == SIZE_MAX && pn_is_blank(sym)) return;
    int whole = pn_turn_follow(t, sym);
    pn_turn_hold(t, sym);
    if (whole == -1 || t->dead) return;
    begin_thought(t);
    if (whole == -2) pn_turn_replay(t, 0);
    else t->n_held = 0;
}

/* Blanks, then a candidate or content. */
static void anchor(struct pn_turn *t, unsigned sym) {
    bool blank = pn_is_blank(sym), between = t->f && t->f->bare && t->n_calls > 0 && sym == ';';
    if (t->from == SIZE_MAX && (blank || between)) {
        if (t->n_held >= HELD_SYMS) pn_turn_scan_from(t);
        if (!t->drops_blanks) pn_turn_hold(t, sym);
        return;
    }
    int whole = pn_turn_follow(t, sym);
    pn_turn_hold(t, sym);
    if (whole == -1 || t->dead) return;
    if (whole == -2) {
        pn_turn_scan_from(t);
        t->n_blank = 0;
        pn_turn_replay(t, 0);
        return;
    }
    t->n_held = 0;
    if (whole == P_OPEN_THOUGHT) {
        begin_thought(t);
        return;
    }
    if (whole == PN_CALL_CLOSE) t->in_group = false;
    t->drops_blanks = true;
    pn_turn_candidates(t, t->in_group ? PN_CALL_CLOSE : -1, -1, -1);
}

/* Without memory. */
void pn_turn_give_up(struct pn_turn *t) {
    t->dead = t->parts->failed = true;
}

void pn_turn_step(struct pn_turn *t, unsigned sym) {
    if (t->dead) return;
    switch (t->state) {
    case ST_ANCHOR: anchor(t, sym); break;
    case ST_THOUGHT: scan(t, sym); break;
    case ST_OPENED: opened(t, sym); break;
    case ST_SCAN:
        if (t->f || t->was_cut) scan(t, sym);
        else pass(t, sym);
        break;
    case ST_OVER: break;
    default: pn_turn_call_step(t, sym); break;
    }
}

/* --- pieces ------------------------------------------------------------------------------------------------------------------------------ */

/* How many bytes of text are plain content. Blanks are, where what is behind them is. */
static size_t plain(const bool stop[256], const char *text, size_t n) {
    size_t i = 0;
    while (i < n) {
        if (!stop[(uint8_t)text[i]]) {
            i++;
            continue;
        }
        size_t k = i;
        while (k < n && pn_is_blank((uint8_t)text[k])) k++;
        if (k == i || k == n || stop[(uint8_t)text[k]]) break;
        i = k;
    }
    return i;
}

/* How many bytes of text are arguments and within a string. */
static size_t plain_text(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && (uint8_t)text[i] >= 0x20 && text[i] != '"' && text[i] != '\\' && (uint8_t)text[i] != PN_MARK) i++;
    return i;
}

void pn_turn_push(struct pn_turn *t, const char *text, size_t n, struct fo_buf *parts) {
    t->parts = parts;
    t->last = SIZE_MAX;
    t->cur = text;
    t->end = text + n;
    if (t->dead) parts->failed = true;
    while (t->cur < t->end && t->state != ST_OVER && !t->dead) {
        size_t left = (size_t)(t->end - t->cur), run = 0;
        enum pn_part part = PN_PART_CONTENT;
        if (t->in_mark || t->n_held > 0) {
            run = 0;
        } else if (t->state == ST_SCAN && !t->bare_ok) {
            run = plain(t->stop, t->cur, left);
        } else if (t->state == ST_THOUGHT && !t->drops_blanks) {
            part = PN_PART_REASONING;
            run = plain(t->stop_thought, t->cur, left);
        } else if (t->state == ST_ARGS && pn_json_scan_in_text(&t->scan)) {
            part = PN_PART_ARGUMENTS;
            run = plain_text(t->cur, left);
        }
        pn_turn_put(t, part, t->cur, run);
        t->cur += run;
        if (run < left) pn_turn_byte(t, (uint8_t)*t->cur++);
    }
}

void pn_turn_cut(struct pn_turn *t) {
    const struct pattern *close = &t->pattern[P_CLOSE_THOUGHT];
    t->was_cut = true;
    if (close->n && close->sym[0] < SYM_MARK) t->stop[close->sym[0]] = true;
}

void pn_turn_end(struct pn_turn *t, struct fo_buf *parts) {
    t->parts = parts;
    t->last = SIZE_MAX;
    t->cur = t->end = "";
    if (t->in_mark) pn_turn_flush_mark(t);
    if (t->dead) {
        parts->failed = true;
        return;
    }
    switch (t->state) {
    case ST_THOUGHT:
    case ST_OPENED: /* where a close mark was being said for the model, its beginning is none of its words */
        if (t->n_held > t->n_blank && !t->was_cut) pn_turn_release(t, PN_PART_REASONING, t->n_held);
        break;
    case ST_ANCHOR:
        if (t->n_calls == 0) pn_turn_release(t, PN_PART_CONTENT, t->n_held);
        break;
    case ST_SCAN:
    case ST_MARKS: pn_turn_release(t, PN_PART_CONTENT, t->n_held); break;
    case ST_OBJECT:
    case ST_NAME:
    case ST_TAGS:
        if (!t->begun) pn_turn_release(t, PN_PART_CONTENT, t->n_held);
        break;
    default: break;
    }
    t->n_held = 0;
    t->state = ST_OVER;
}

void pn_turn_settle(struct pn_turn *t) {
    if (t->state != ST_ANCHOR || t->n_calls > 0) return;
    t->drops_blanks = false;
    if (t->from == SIZE_MAX) pn_turn_scan_from(t);
}

/* --- what it says ------------------------------------------------------------------------------------------------------------------------ */

bool pn_turn_in_reasoning(const struct pn_turn *t) {
    return t->state == ST_THOUGHT || t->state == ST_OPENED;
}

bool pn_turn_in_content(const struct pn_turn *t) {
    if (t->in_mark) return false;
    return (t->state == ST_SCAN && t->n_held <= t->n_blank) || (t->state == ST_ANCHOR && t->from == SIZE_MAX);
}

uint32_t pn_turn_n_calls(const struct pn_turn *t) {
    return t->n_calls;
}

bool pn_turn_is_over(const struct pn_turn *t) {
    return t->is_over;
}
