/* The inside of calls, in the four shapes of dialect.h: see turn.c. Until a head is whole (begin) all of it is held, and whatever breaks makes
 * content of it. From there on arguments come out as they are read; what breaks then ends the call where it stands. */
#include "engine/turn_impl.h"

#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"

/* Within ST_OBJECT. */
enum { IN_OPEN, IN_FIRST, IN_KEY, IN_KEY_TEXT, IN_COLON, IN_VALUE, IN_NAME_TEXT, IN_HELD_ARGS, IN_QUOTE, IN_OTHER, IN_NEXT };
/* Within ST_NAME. */
enum { NAME_TEXT, NAME_MIDDLE, NAME_ID, NAME_OBJECT };
/* Within ST_TEXT. */
enum { TEXT_PLAIN, TEXT_ESCAPE, TEXT_DIGITS, TEXT_LOW, TEXT_LOW_U };
/* Within ST_TAGS. */
enum { TAG_NEXT, TAG_KEY, TAG_MIDDLE, TAG_PLAIN, TAG_JSON };

enum { KEY_NAME, KEY_ARGUMENTS, KEY_KNOWN, KEY_OTHER };
enum { ARGS_NONE, ARGS_OBJECT, ARGS_TEXT, ARGS_EMPTY };

static bool is_name_char(unsigned c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static void put_args(struct pn_turn *t, const char *text) {
    pn_turn_put(t, PN_PART_ARGUMENTS, text, strlen(text));
}

/* --- heads --------------------------------------------------------------------------------------------------------------------------- */

static void enter_object(struct pn_turn *t, int sub) {
    t->state = ST_OBJECT;
    t->sub = sub;
    t->function = -1;
    t->begun = false;
    t->first_key = true;
    t->kind = ARGS_NONE;
}

static void enter_name(struct pn_turn *t) {
    t->state = ST_NAME;
    t->sub = NAME_TEXT;
    t->n_name = 0;
    t->function = -1;
    t->begun = false;
    t->n_args = 0;
}

/* A mark in front of a call is whole. */
static void mark_done(struct pn_turn *t, int pattern) {
    if (pattern == PN_CALL_OPEN) {
        t->state = ST_MARKS;
        t->in_group = true;
        pn_turn_candidates(t, PN_CALL_BEGIN, -1, -1);
    } else if (t->f->shape == PN_CALL_OBJECT || t->f->shape == PN_CALL_LIST) {
        t->in_list = false;
        enter_object(t, IN_OPEN);
    } else {
        enter_name(t);
    }
}

/* The first word of a mark (candidate 0) is held, or the brace of a bare call. */
void pn_turn_call_start(struct pn_turn *t, bool bare) {
    const struct candidate *c = &t->candidate[0];
    if (bare) {
        t->in_list = false;
        enter_object(t, IN_FIRST);
    } else if (c->at == t->pattern[c->pattern].n) {
        mark_done(t, c->pattern);
    } else {
        t->state = ST_MARKS;
    }
}

static void in_marks(struct pn_turn *t, unsigned sym) {
    int whole = pn_turn_follow(t, sym);
    pn_turn_hold(t, sym);
    if (whole >= 0) mark_done(t, whole);
    else if (whole == -2) pn_turn_fail_mark(t);
}

/* The head of a call is whole, its arguments stand from `from` on in what is held; before those comes `instead`. False = it is content. */
static bool begin(struct pn_turn *t, size_t from, const char *instead) {
    if (t->o.begin_call) {
        struct fo_buf rest;
        fo_buf_init(&rest, SIZE_MAX / 2);
        fo_buf_puts(&rest, instead);
        pn_turn_rest(t, from, &rest);
        bool failed = rest.failed, ok = !failed && t->o.begin_call(t->o.ctx, t->function, fo_buf_str(&rest), rest.len);
        fo_buf_done(&rest);
        if (failed) pn_turn_give_up(t);
        if (!ok) return false;
    }
    const char *name = pn_tools_name(t->o.tools, t->function);
    pn_turn_put(t, PN_PART_CALL, name, strlen(name));
    t->n_calls++;
    t->begun = true;
    t->bare_ok = false;
    return true;
}

/* What is held breaks at its last symbol. */
static void refuse(struct pn_turn *t) {
    if (t->dead) return;
    unsigned sym = t->held[--t->n_held];
    pn_turn_fail(t, sym);
}

/* The last symbol held, which made the head whole, is part of what nobody wants: all is content, and nothing is to be read again. */
static void refuse_whole(struct pn_turn *t) {
    if (t->dead) return;
    t->bare_ok = false;
    pn_turn_release(t, PN_PART_CONTENT, t->n_held);
    pn_turn_scan_from(t);
}

/* Arguments that stand at args_from are read from there. */
static void begin_args(struct pn_turn *t) {
    if (!begin(t, t->args_from, "")) {
        refuse_whole(t);
        return;
    }
    t->state = t->kind == ARGS_TEXT ? ST_TEXT : ST_ARGS;
    t->sub = TEXT_PLAIN;
    t->inner = false;
    t->n_digits = 0;
    pn_json_scan_init(&t->scan);
    pn_turn_replay(t, t->args_from + (t->kind == ARGS_TEXT ? 1 : 0));
}

/* --- arguments as they come ------------------------------------------------------------------------------------------------------------- */

static void args_done(struct pn_turn *t) {
    t->n_held = 0;
    if (t->f->shape == PN_CALL_NAMED) {
        pn_turn_call_done(t, false);
        return;
    }
    t->state = ST_OBJECT;
    t->sub = IN_NEXT;
}

static void in_args(struct pn_turn *t, unsigned sym) {
    enum pn_json_step s = sym < SYM_MARK ? pn_json_scan_step(&t->scan, (uint8_t)sym) : PN_JSON_BREAK;
    if (s == PN_JSON_BREAK || s == PN_JSON_AFTER) {
        pn_turn_fail(t, sym);
        return;
    }
    pn_turn_put_sym(t, PN_PART_ARGUMENTS, sym);
    if (s == PN_JSON_DONE) args_done(t);
}

/* A byte of the object that stands in a string. Blanks around it are left out. */
static bool inner_byte(struct pn_turn *t, uint8_t c) {
    bool over = pn_json_scan_is_whole(&t->scan);
    if ((!t->inner || over) && pn_is_blank(c)) return true;
    if (over || pn_json_scan_step(&t->scan, c) == PN_JSON_BREAK) return false;
    t->inner = true;
    pn_turn_put_sym(t, PN_PART_ARGUMENTS, c);
    return true;
}

static bool inner_char(struct pn_turn *t, uint32_t c) {
    if (c < 0x80) return inner_byte(t, (uint8_t)c);
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = { 0, 0xC0, 0xE0, 0xF0 };
    bool ok = inner_byte(t, (uint8_t)(lead[more] | c >> (6 * more)));
    while (ok && more-- > 0) ok = inner_byte(t, (uint8_t)(0x80 | (c >> (6 * more) & 0x3F)));
    return ok;
}

/* The four digits of \u are read. */
static bool unit_done(struct pn_turn *t) {
    bool high = t->unit >= 0xD800 && t->unit <= 0xDBFF, low = t->unit >= 0xDC00 && t->unit <= 0xDFFF;
    uint32_t c = t->unit;
    if (low != (t->high != 0)) return false;
    if (high) {
        t->high = t->unit;
        t->sub = TEXT_LOW;
        return true;
    }
    if (low) c = 0x10000 + ((t->high - 0xD800) << 10) + (t->unit - 0xDC00);
    t->high = 0;
    t->sub = TEXT_PLAIN;
    return inner_char(t, c);
}

static bool escape(struct pn_turn *t, unsigned sym) {
    static const char names[] = "\"\\/bfnrt", chars[] = "\"\\/\b\f\n\r\t";
    if (sym == 'u') {
        t->sub = TEXT_DIGITS;
        t->unit = 0;
        t->n_digits = 0;
        return true;
    }
    const char *at = sym && sym < SYM_MARK ? strchr(names, (int)sym) : NULL;
    t->sub = TEXT_PLAIN;
    return at && inner_byte(t, (uint8_t)chars[at - names]);
}

static bool digit(struct pn_turn *t, unsigned sym) {
    uint32_t v = sym >= '0' && sym <= '9' ? sym - '0' : (sym | 0x20) >= 'a' && (sym | 0x20) <= 'f' ? (sym | 0x20) - 'a' + 10 : 16;
    if (v > 15 || sym >= SYM_MARK) return false;
    t->unit = t->unit << 4 | v;
    return ++t->n_digits < 4 || unit_done(t);
}

/* Arguments within a string; an escape is held until it is whole. */
static void in_text(struct pn_turn *t, unsigned sym) {
    bool ok = true;
    pn_turn_hold(t, sym);
    if (t->dead) return;
    switch (t->sub) {
    case TEXT_PLAIN:
        if (sym == '\\') {
            t->sub = TEXT_ESCAPE;
            t->high = 0;
            return;
        }
        if (sym == '"' && pn_json_scan_is_whole(&t->scan)) {
            args_done(t);
            return;
        }
        ok = sym != '"' && sym >= 0x20 && sym < SYM_MARK && inner_byte(t, (uint8_t)sym);
        break;
    case TEXT_ESCAPE: ok = escape(t, sym); break;
    case TEXT_DIGITS: ok = digit(t, sym); break;
    case TEXT_LOW:
        ok = sym == '\\';
        t->sub = TEXT_LOW_U;
        break;
    default:
        ok = sym == 'u';
        t->sub = TEXT_DIGITS;
        t->unit = 0;
        t->n_digits = 0;
        break;
    }
    if (!ok) refuse(t);
    else if (t->sub == TEXT_PLAIN) t->n_held = 0;
}

/* --- a call's object ---------------------------------------------------------------------------------------------------------------------- */

static void object_done(struct pn_turn *t) {
    if (!t->begun) {
        if (t->function < 0) {
            refuse(t);
            return;
        }
        if (!begin(t, t->n_held - 1, "{}")) {
            refuse_whole(t);
            return;
        }
        put_args(t, "{}");
    }
    t->n_held = 0;
    bool list = t->in_list;
    if (list && !pn_tools_one_call(t->o.tools)) t->state = ST_NEXT;
    else pn_turn_call_done(t, false);
}

/* The key that was read, by its bytes. */
static int key_of(const struct pn_turn *t) {
    static const char *const known[] = { "id", "type", "index" };
    if (strcmp(t->name, "name") == 0) return KEY_NAME;
    if (strcmp(t->name, "arguments") == 0 || strcmp(t->name, "parameters") == 0) return KEY_ARGUMENTS;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(t->name, known[i]) == 0) return KEY_KNOWN;
    return KEY_OTHER;
}

static void start_text(struct pn_turn *t, int sub) {
    pn_json_scan_init(&t->scan);
    pn_json_scan_step(&t->scan, '"');
    t->n_name = 0;
    t->sub = sub;
}

/* A byte of a string that is kept in name, which an escape or too much text makes one that nothing is called. 0 = goes on, 1 = it ends here. */
static int keep_text(struct pn_turn *t, unsigned sym) {
    enum pn_json_step s = sym < SYM_MARK ? pn_json_scan_step(&t->scan, (uint8_t)sym) : PN_JSON_BREAK;
    if (s == PN_JSON_BREAK) return -1;
    if (s == PN_JSON_DONE) {
        t->name[t->n_name < sizeof t->name ? t->n_name : 0] = 0;
        return 1;
    }
    if (t->n_name < sizeof t->name) t->name[t->n_name++] = (char)sym;
    return 0;
}

/* In front of a member's value. */
static bool start_value(struct pn_turn *t, unsigned sym) {
    if (!t->begun && t->key == KEY_NAME && t->function < 0) {
        if (sym != '"') return false;
        start_text(t, IN_NAME_TEXT);
        return true;
    }
    pn_json_scan_init(&t->scan);
    if (pn_json_scan_step(&t->scan, (uint8_t)sym) == PN_JSON_BREAK) return false;
    t->sub = IN_OTHER;
    if (t->begun || t->key != KEY_ARGUMENTS || t->kind != ARGS_NONE) return true;
    t->args_from = t->n_held - 1;
    t->sub = sym == '"' ? IN_QUOTE : IN_HELD_ARGS;
    t->kind = sym == '{' ? ARGS_OBJECT : sym == 'n' ? ARGS_EMPTY : ARGS_NONE;
    if (t->kind == ARGS_NONE && sym != '"') return false;
    if (t->kind == ARGS_OBJECT && t->function >= 0) begin_args(t);
    return true;
}

/* Behind the quote of arguments that are text: an object begins, or there are none. */
static bool in_quote(struct pn_turn *t, unsigned sym) {
    if (sym == ' ') return true;
    if (sym == '"') {
        t->kind = ARGS_EMPTY;
        t->sub = IN_NEXT;
        return true;
    }
    if (sym != '{') return false;
    t->kind = ARGS_TEXT;
    t->sub = IN_HELD_ARGS;
    if (t->function >= 0) begin_args(t);
    return true;
}

static bool name_done(struct pn_turn *t) {
    t->function = pn_tools_find(t->o.tools, t->name, strlen(t->name));
    t->sub = IN_NEXT;
    if (t->function < 0) return false;
    if (t->kind == ARGS_OBJECT || t->kind == ARGS_TEXT) begin_args(t);
    return true;
}

static bool object_symbol(struct pn_turn *t, unsigned sym) {
    enum pn_json_step s;
    int r;
    bool blank = pn_is_blank(sym);
    switch (t->sub) {
    case IN_OPEN:
        if (sym == '[' && !t->in_list) t->in_list = true;
        else if (sym == '{') t->sub = IN_FIRST;
        else return blank;
        return true;
    case IN_FIRST:
    case IN_KEY:
        if (sym == '"') start_text(t, IN_KEY_TEXT);
        else if (sym == '}' && t->sub == IN_FIRST) object_done(t);
        else return blank;
        return true;
    case IN_KEY_TEXT:
        r = keep_text(t, sym);
        if (r != 1) return r == 0;
        t->key = key_of(t);
        t->sub = IN_COLON;
        if (t->f->bare && t->first_key && t->key == KEY_OTHER) return false;
        t->first_key = false;
        return true;
    case IN_COLON:
        if (sym == ':') t->sub = IN_VALUE;
        return sym == ':' || blank;
    case IN_VALUE: return blank || (sym < SYM_MARK && start_value(t, sym));
    case IN_NAME_TEXT: r = keep_text(t, sym); return r == 1 ? name_done(t) : r == 0;
    case IN_QUOTE:
        if (sym >= SYM_MARK || pn_json_scan_step(&t->scan, (uint8_t)sym) == PN_JSON_BREAK) return false;
        return in_quote(t, sym);
    case IN_HELD_ARGS:
    case IN_OTHER:
        s = sym < SYM_MARK ? pn_json_scan_step(&t->scan, (uint8_t)sym) : PN_JSON_BREAK;
        if (s == PN_JSON_MORE) return true;
        t->sub = IN_NEXT;
        if (s != PN_JSON_AFTER) return s == PN_JSON_DONE;
        break;
    default: break;
    }
    if (sym == ',') t->sub = IN_KEY;
    else if (sym == '}') object_done(t);
    else return blank;
    return true;
}

static void in_object(struct pn_turn *t, unsigned sym) {
    pn_turn_hold(t, sym);
    if (t->dead) return;
    if (t->n_held > HELD_SYMS || !object_symbol(t, sym)) refuse(t);
}

/* Behind a call of a list. */
static void in_next(struct pn_turn *t, unsigned sym) {
    if (pn_is_blank(sym)) return;
    if (sym == ',') {
        pn_turn_hold(t, sym);
        enter_object(t, IN_OPEN);
        return;
    }
    pn_turn_call_done(t, false);
    if (sym != ']') pn_turn_step(t, sym);
}

/* --- a name that stands alone -------------------------------------------------------------------------------------------------------------- */

static void enter_tags(struct pn_turn *t) {
    t->state = ST_TAGS;
    t->sub = TAG_NEXT;
    pn_turn_candidates(t, PN_CALL_ARG_BEGIN, PN_CALL_END, -1);
}

static void middle_done(struct pn_turn *t) {
    if (t->f->shape == PN_CALL_TAGS) {
        enter_tags(t);
        return;
    }
    t->sub = NAME_OBJECT;
    pn_turn_candidates(t, PN_CALL_END, -1, -1);
}

/* sym is not held yet and may be what comes behind the name. */
static void name_ends(struct pn_turn *t, unsigned sym) {
    t->name[t->n_name] = 0;
    t->function = pn_tools_find(t->o.tools, t->name, t->n_name);
    if (t->function < 0) {
        pn_turn_fail(t, sym);
        return;
    }
    t->sub = NAME_MIDDLE;
    if (t->pattern[PN_CALL_MIDDLE].n) pn_turn_candidates(t, PN_CALL_MIDDLE, PN_CALL_ID, -1);
    else middle_done(t);
    pn_turn_step(t, sym);
}

static void in_name(struct pn_turn *t, unsigned sym) {
    int whole;
    if (t->n_held > HELD_SYMS) {
        pn_turn_fail(t, sym);
        return;
    }
    switch (t->sub) {
    case NAME_TEXT:
        if (sym < SYM_MARK && is_name_char(sym) && t->n_name + 1 < sizeof t->name) t->name[t->n_name++] = (char)sym;
        else if (t->n_name > 0 || !pn_is_blank(sym)) {
            name_ends(t, sym);
            return;
        }
        pn_turn_hold(t, sym);
        return;
    case NAME_ID:
        if (sym < SYM_MARK && is_name_char(sym)) {
            pn_turn_hold(t, sym);
            return;
        }
        t->sub = NAME_MIDDLE;
        pn_turn_candidates(t, PN_CALL_MIDDLE, -1, -1);
        pn_turn_step(t, sym);
        return;
    case NAME_OBJECT:
        if (t->from == SIZE_MAX && sym == '{') {
            pn_turn_hold(t, sym);
            t->args_from = t->n_held - 1;
            t->kind = ARGS_OBJECT;
            begin_args(t);
            return;
        }
        break;
    default: break;
    }
    whole = pn_turn_follow(t, sym);
    pn_turn_hold(t, sym);
    if (whole == -1 || t->dead) return;
    if (whole == -2) {
        pn_turn_fail_mark(t);
    } else if (whole == PN_CALL_ID) {
        t->sub = NAME_ID;
    } else if (whole == PN_CALL_MIDDLE) {
        middle_done(t);
    } else if (begin(t, t->from, "{}")) { /* the end, and nothing before it */
        put_args(t, "{}");
        pn_turn_call_done(t, true);
    } else {
        refuse_whole(t);
    }
}

/* --- arguments in tags ------------------------------------------------------------------------------------------------------------------------ */

static void put_escaped(struct pn_turn *t, unsigned sym) {
    static const char names[] = "btn\0fr"; /* of 8 to 13 */
    char text[8] = { '\\', (char)sym };
    if (sym >= SYM_MARK || (sym >= 0x20 && sym != '"' && sym != '\\')) {
        pn_turn_put_sym(t, PN_PART_ARGUMENTS, sym);
        return;
    }
    if (sym < 0x20) {
        static const char hex[] = "0123456789abcdef";
        text[1] = sym >= 8 && sym <= 13 && names[sym - 8] ? names[sym - 8] : 'u';
        if (text[1] == 'u') memcpy(text + 2, (const char[]){ '0', '0', hex[sym >> 4], hex[sym & 15] }, 4);
    }
    put_args(t, text);
}

/* The first n symbols held are text of a value. */
static void release_value(struct pn_turn *t, size_t n) {
    for (size_t i = 0; i < n; i++) put_escaped(t, t->held[i]);
    t->n_held -= n;
    if (t->n_held) memmove(t->held, t->held + n, t->n_held * sizeof *t->held);
}

static bool begins_with_newline(const char *text) {
    return text && text[0] == '\n';
}

static bool ends_with_newline(const char *text) {
    return text && text[0] && text[strlen(text) - 1] == '\n';
}

/* A parameter's name stands in what is held from args_from on, up to n_key, and its value begins. */
static void start_tag_value(struct pn_turn *t, size_t n_key) {
    char key[KEY_SYMS];
    size_t n = 0, from = t->args_from;
    while (from < n_key && pn_is_blank(t->held[from])) from++;
    while (n_key > from && pn_is_blank(t->held[n_key - 1])) n_key--;
    put_args(t, t->n_args++ ? ", \"" : "{\"");
    for (size_t i = from; i < n_key; i++) {
        put_escaped(t, t->held[i]);
        if (t->held[i] < SYM_MARK && n < sizeof key) key[n++] = (char)t->held[i];
    }
    put_args(t, "\": ");
    bool text = pn_tools_param_is_text(t->o.tools, t->function, key, n);
    if (text) put_args(t, "\"");
    t->n_held = t->n_blank = 0;
    t->sub = text ? TAG_PLAIN : TAG_JSON;
    t->skips_newline = ends_with_newline(t->f->text[PN_CALL_ARG_MIDDLE]);
    t->first_of_value = true;
    memset(t->q, 0, sizeof t->q);
}

static void value_done(struct pn_turn *t) {
    t->n_held = 0;
    t->sub = TAG_NEXT;
    pn_turn_candidates(t, PN_CALL_ARG_BEGIN, PN_CALL_END, -1);
}

/* A value that is text. One newline in front of its end tag may be the tag's and is held with it. */
static void plain_value(struct pn_turn *t, unsigned sym) {
    size_t old = t->n_held - t->n_blank;
    bool newline = sym == '\n' && begins_with_newline(t->f->text[PN_CALL_ARG_END]);
    if (t->skips_newline) {
        t->skips_newline = false;
        if (sym == '\n') return;
    }
    if (pn_turn_scan_step(t, 0, PN_CALL_ARG_END, sym)) {
        put_args(t, "\"");
        value_done(t);
        return;
    }
    size_t q = t->q[0];
    if (q == 0 && (newline || sym >= SYM_MARK)) {
        release_value(t, sym < SYM_MARK || old ? t->n_held : 0);
        if (newline) pn_turn_hold(t, sym);
        t->n_blank = t->n_held;
        return;
    }
    pn_turn_hold(t, sym);
    if (q == old + 1) return;
    release_value(t, t->n_held - q);
    t->n_blank = 0;
}

/* A value that was held as it may be JSON is text for certain. */
static void become_text(struct pn_turn *t) {
    put_args(t, "\"");
    t->sub = TAG_PLAIN;
    t->n_blank = 0;
    memset(t->q, 0, sizeof t->q);
    pn_turn_replay(t, 0);
}

/* The value that is held, in full: JSON as it is, else a string. */
static void put_value(struct pn_turn *t) {
    struct pn_json_scan scan;
    size_t from = 0, to = t->n_held;
    while (from < to && pn_is_blank(t->held[from])) from++;
    while (to > from && pn_is_blank(t->held[to - 1])) to--;
    pn_json_scan_init(&scan);
    bool json = true;
    for (size_t i = from; i < to && json; i++) {
        enum pn_json_step s = t->held[i] < SYM_MARK ? pn_json_scan_step(&scan, (uint8_t)t->held[i]) : PN_JSON_BREAK;
        json = s == PN_JSON_MORE || s == PN_JSON_DONE;
    }
    if (json && pn_json_scan_is_whole(&scan)) {
        for (size_t i = from; i < to; i++) pn_turn_put_sym(t, PN_PART_ARGUMENTS, t->held[i]);
        return;
    }
    if (t->n_held && t->held[t->n_held - 1] == '\n' && begins_with_newline(t->f->text[PN_CALL_ARG_END])) t->n_held--;
    put_args(t, "\"");
    release_value(t, t->n_held);
    put_args(t, "\"");
}

static void json_value(struct pn_turn *t, unsigned sym) {
    if (t->skips_newline) {
        t->skips_newline = false;
        if (sym == '\n') return;
    }
    if (pn_turn_scan_step(t, 0, PN_CALL_ARG_END, sym)) {
        t->n_held -= t->pattern[PN_CALL_ARG_END].first - 1u;
        put_value(t);
        value_done(t);
        return;
    }
    if (sym >= SYM_MARK && t->q[0] == 0) return;
    pn_turn_hold(t, sym);
    if (t->dead) return;
    bool first = t->first_of_value && !pn_is_blank(sym), json = t->q[0] > 0 || (sym && strchr("{[\"-0123456789tfn", (int)sym));
    if (first) t->first_of_value = false;
    if ((first && !json) || t->n_held >= HELD_SYMS) become_text(t);
}

static void in_key(struct pn_turn *t, unsigned sym) {
    if (sym == '\n' || t->n_held - t->args_from >= KEY_SYMS) {
        pn_turn_fail(t, sym);
        return;
    }
    bool whole = pn_turn_scan_step(t, 0, PN_CALL_ARG_MIDDLE, sym);
    pn_turn_hold(t, sym);
    if (!whole || t->dead) return;
    const struct pattern *p = &t->pattern[PN_CALL_ARG_MIDDLE];
    t->n_blank = t->n_held - p->first; /* of the key */
    if (p->first == p->n) {
        start_tag_value(t, t->n_blank);
        return;
    }
    t->sub = TAG_MIDDLE;
    pn_turn_candidates(t, PN_CALL_ARG_MIDDLE, -1, -1);
    t->candidate[0].at = p->first;
}

/* Between the tags. The end counts from its first word on. */
static void next_tag(struct pn_turn *t, unsigned sym) {
    int whole = pn_turn_follow(t, sym);
    const struct candidate *end = &t->candidate[1];
    bool ends = end->alive && end->at == t->pattern[PN_CALL_END].first;
    pn_turn_hold(t, sym);
    if (t->dead) return;
    if (whole == -2) pn_turn_fail_mark(t);
    if (whole < 0 && !ends) return;
    if (!t->begun && !begin(t, t->from, "")) {
        refuse_whole(t);
        return;
    }
    if (ends) {
        put_args(t, t->n_args ? "}" : "{}");
        pn_turn_call_done(t, true);
        return;
    }
    t->n_held -= t->from;
    memmove(t->held, t->held + t->from, t->n_held * sizeof *t->held);
    t->args_from = t->n_held;
    t->sub = TAG_KEY;
    memset(t->q, 0, sizeof t->q);
}

static void in_tags(struct pn_turn *t, unsigned sym) {
    int whole;
    switch (t->sub) {
    case TAG_NEXT: next_tag(t, sym); break;
    case TAG_KEY: in_key(t, sym); break;
    case TAG_MIDDLE:
        whole = pn_turn_follow(t, sym);
        pn_turn_hold(t, sym);
        if (whole >= 0) start_tag_value(t, t->n_blank);
        else if (whole == -2) pn_turn_fail_mark(t);
        break;
    case TAG_PLAIN: plain_value(t, sym); break;
    default: json_value(t, sym); break;
    }
}

void pn_turn_call_step(struct pn_turn *t, unsigned sym) {
    switch (t->state) {
    case ST_MARKS: in_marks(t, sym); break;
    case ST_OBJECT: in_object(t, sym); break;
    case ST_NAME: in_name(t, sym); break;
    case ST_ARGS: in_args(t, sym); break;
    case ST_TEXT: in_text(t, sym); break;
    case ST_NEXT: in_next(t, sym); break;
    default: in_tags(t, sym); break;
    }
}
