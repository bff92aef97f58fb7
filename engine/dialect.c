/* The dialect of a model: see dialect.h.
 *
 * What a template writes for a call that was made, or a thought that was had, is what its model was taught to say, so it is let write one of
 * each, with names that nothing else has, and the row that would have written the same is the model's. Blanks are left out of the comparison:
 * templates differ in them and so do models. Some templates show no call but tell the model in words how to make one: where the text that comes
 * with the tools has all of a row's marks, it is that row. A template that writes calls in a form that is no row has none, whatever its words are
 * like.
 *
 * A template whose text does not change with the functions on offer cannot tell its model of them, so somebody else has to, and may choose the
 * form: that of the first row. */
#include "engine/dialect.h"

#include <stdlib.h>
#include <string.h>

#include "engine/blank.h"
#include "engine/chat.h"
#include "engine/jinja.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"

#define OFFERED "pn_offered"
#define CALLED "pn_called"
#define KEY "pn_key"
#define VALUE "pn-value"
#define THOUGHT "pn-thought"
#define ID "call00001"

static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"" OFFERED "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
                            "\"properties\":{\"" KEY "\":{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"" KEY "\"]}}}]";
static const char asked[] = "[{\"role\":\"user\",\"content\":\"q\"}]";

#define CALL(content, more, arguments)                                                                                                              \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":" content more ",\"tool_calls\":[{\"id\":\"" ID                      \
    "\",\"type\":\"function\",\"function\":{\"name\":\"" CALLED "\",\"arguments\":" arguments "}}]},"                                                \
    "{\"role\":\"tool\",\"tool_call_id\":\"" ID "\",\"name\":\"" CALLED "\",\"content\":\"r\"}]"
#define AS_OBJECT "{\"" KEY "\":\"" VALUE "\"}"
#define AS_TEXT "\"{\\\"" KEY "\\\":\\\"" VALUE "\\\"}\""
#define THINKS ",\"reasoning_content\":\"" THOUGHT "\",\"thinking\":\"" THOUGHT "\",\"reasoning\":\"" THOUGHT "\""

/* Templates want a call's arguments in either form, and some write a call only where there is no content. */
static const char *const made_calls[] = { CALL("\"\"", "", AS_OBJECT), CALL("null", "", AS_OBJECT), CALL("\"\"", "", AS_TEXT), CALL("null", "", AS_TEXT) };
/* Some write a thought only where it led to a call, some only without. */
static const char *const had_thoughts[] = {
    CALL("\"\"", THINKS, AS_OBJECT),
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"" THINKS "}]",
};
static const char *const prompts[] = { "{}", "{\"enable_thinking\":true,\"thinking\":true}", "{\"enable_thinking\":false,\"thinking\":false}" };

enum { N_TEXTS = PN_N_CALL_TEXTS + 2, OPEN = PN_N_CALL_TEXTS, CLOSE };

struct pn_dialect {
    const struct pn_reasoning *reasoning;
    const struct pn_call_format *calls;
    bool is_ours;
    bool endless; /* a probe passed the limits of a render */
    char *text[N_TEXTS]; /* with marks; NULL = "" */
    struct mark {
        int32_t id;
        const char *text; /* [len] within a text of a row */
        size_t len;
    } *marks; /* [n_marks] */
    size_t n_marks;
    struct fo_tok_ids close; /* close and after */
    size_t n_close;          /* of these, those of close alone, when close_whole; else after is on its own */
    bool close_whole;
    struct fo_tok_ids after;
    int32_t open;
};

static const char *row_text(const struct pn_call_format *f, int which) {
    return f->text[which] ? f->text[which] : "";
}

/* --- texts without their blanks ----------------------------------------------------------------------------------------------- */

struct run {
    const char *at, *end;
};

static void squeeze(struct pn_render *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->len; i++)
        if (!pn_is_blank((unsigned char)r->text[i])) r->text[n++] = r->text[i];
    r->text[r->len = n] = 0;
}

/* Whether r begins with text, which is eaten then. */
static bool eat(struct run *r, const char *text) {
    const char *p = r->at;
    for (; *text; text++) {
        if (pn_is_blank((unsigned char)*text)) continue;
        if (p == r->end || *p++ != *text) return false;
    }
    r->at = p;
    return true;
}

/* Whether r ends with text, which is cut off then. */
static bool cut(struct run *r, const char *text) {
    const char *p = r->end;
    for (size_t n = strlen(text); n > 0; n--) {
        if (pn_is_blank((unsigned char)text[n - 1])) continue;
        if (p == r->at || *--p != text[n - 1]) return false;
    }
    r->end = p;
    return true;
}

static bool says_something(const char *text) {
    while (pn_is_blank((unsigned char)*text)) text++;
    return *text != 0;
}

static bool has(const struct pn_render *squeezed, const char *text) {
    for (struct run r = { squeezed->text, squeezed->text + squeezed->len }; r.at < r.end; r.at++) {
        struct run here = r;
        if (eat(&here, text)) return true;
    }
    return false;
}

/* --- a call as a row would write it ----------------------------------------------------------------------------------------------- */

static bool eat_arguments(struct run *r) {
    return eat(r, AS_OBJECT) || eat(r, AS_TEXT);
}

/* An object with the name and the arguments, in any order, and members that say nothing more. */
static bool eat_object(struct run *r, const char *arguments) {
    bool name = false, args = false;
    if (!eat(r, "{")) return false;
    do {
        if (!name && eat(r, "\"name\":\"" CALLED "\"")) name = true;
        else if (eat(r, "\"id\":\"" ID "\"") || eat(r, "\"type\":\"function\"")) continue;
        else if (args || !eat(r, "\"") || !eat(r, arguments) || !eat(r, "\":") || !eat_arguments(r)) return false;
        else args = true;
    } while (eat(r, ","));
    return name && args && eat(r, "}");
}

/* `before` ends with what stands in front of a call's own text. `turn` is how the text ends where an answer is to begin. */
static bool begins(struct run *before, const struct pn_call_format *f, const struct pn_render *turn) {
    enum { ENOUGH = 24 };
    if (f->bare) {
        struct run end = { turn->text + (turn->len > ENOUGH ? turn->len - ENOUGH : 0), turn->text + turn->len };
        size_t n = (size_t)(end.end - end.at);
        cut(before, row_text(f, PN_CALL_ALSO));
        return n > 0 && (size_t)(before->end - before->at) >= n && memcmp(before->end - n, end.at, n) == 0;
    }
    return cut(before, row_text(f, PN_CALL_BEGIN)) && cut(before, row_text(f, PN_CALL_OPEN));
}

/* Whether the call whose name stands at `name` in text is written as f has it. */
static bool is_written(const struct pn_call_format *f, struct run text, const char *name, const struct pn_render *turn) {
    struct run before = { text.at, name }, rest = { name + strlen(CALLED), text.end };
    enum { LONGEST_OBJECT = 256 };
    bool list = f->shape == PN_CALL_LIST, yes = false;
    switch (f->shape) {
    case PN_CALL_OBJECT:
    case PN_CALL_LIST:
        /* The object begins with a brace in front of the name; of the arguments there is one too, where they come first. */
        for (const char *p = name; !yes && (p = memrchr(text.at, '{', (size_t)(p - text.at))) && name - p < LONGEST_OBJECT;) {
            rest.at = before.end = p;
            yes = (!list || cut(&before, "[")) && eat_object(&rest, f->arguments) && (!list || eat(&rest, "]"));
        }
        break;
    case PN_CALL_NAMED:
        if (says_something(row_text(f, PN_CALL_ID)) && eat(&rest, f->text[PN_CALL_ID]))
            while (rest.at < rest.end && ((*rest.at >= '0' && *rest.at <= '9') || (*rest.at >= 'a' && *rest.at <= 'z'))) rest.at++;
        yes = eat(&rest, row_text(f, PN_CALL_MIDDLE)) && eat_arguments(&rest);
        break;
    case PN_CALL_TAGS:
        yes = eat(&rest, row_text(f, PN_CALL_MIDDLE)) && eat(&rest, row_text(f, PN_CALL_ARG_BEGIN)) && eat(&rest, KEY) &&
              eat(&rest, row_text(f, PN_CALL_ARG_MIDDLE)) && eat(&rest, VALUE) && eat(&rest, row_text(f, PN_CALL_ARG_END));
        break;
    }
    return yes && begins(&before, f, turn) && eat(&rest, row_text(f, PN_CALL_END)) && eat(&rest, row_text(f, PN_CALL_CLOSE));
}

static bool writes(const struct pn_call_format *f, const struct pn_render *squeezed, const struct pn_render *turn) {
    struct run text = { squeezed->text, squeezed->text + squeezed->len };
    for (const char *p = text.at; (p = memmem(p, (size_t)(text.end - p), CALLED, strlen(CALLED))); p++)
        if (is_written(f, text, p, turn)) return true;
    return false;
}

/* Whether the text has the row's marks as they stand in the table, blanks and all: of two rows that differ in nothing else, this one. */
static bool writes_exactly(const struct pn_call_format *f, const struct pn_render *raw) {
    for (int i = 0; i < PN_CALL_END; i++)
        if (!memmem(raw->text, raw->len, row_text(f, i), strlen(row_text(f, i)))) return false;
    return true;
}

/* Whether what is said along with the tools, and else is not, has the marks of the row. */
static bool teaches(const struct pn_call_format *f, const struct pn_render *with, const struct pn_render *without) {
    bool news = false;
    if (f->bare || !says_something(row_text(f, PN_CALL_BEGIN))) return false;
    for (int i = 0; i < PN_N_CALL_TEXTS; i++) {
        const char *text = row_text(f, i);
        if (i == PN_CALL_BETWEEN || i == PN_CALL_ALSO || i == PN_CALL_ID || !says_something(text)) continue;
        if (!has(with, text)) return false;
        news |= !has(without, text);
    }
    return news;
}

/* Whether all marks of the row are control tokens: nobody has those for nothing. */
static bool has_tokens(const struct pn_call_format *f, const struct fo_tok *tok) {
    if (!tok || f->bare || !says_something(row_text(f, PN_CALL_END))) return false;
    for (int i = 0; i < PN_N_CALL_TEXTS; i++) {
        const char *text = row_text(f, i);
        if (i == PN_CALL_BETWEEN || i == PN_CALL_ALSO || i == PN_CALL_ID || !says_something(text)) continue;
        int32_t id = fo_tok_find(tok, text, strlen(text));
        if (id < 0 || !fo_tok_is_control(tok, id)) return false;
    }
    return true;
}

/* --- probes ------------------------------------------------------------------------------------------------------------------------ */

/* *ret is empty where the template cannot, and then nothing is to be freed. FO_ENOMEM alone is an error. A template that works without end is not
 * asked again: it must not hold up a load ten times. */
static int render(struct pn_dialect *d, const struct pn_chat *c, const char *messages, bool with_tools, const char *extra, bool prompt, struct pn_render *ret, struct fo_err *e) {
    const struct pn_chat_input in = {
        .messages_json = messages, .tools_json = with_tools ? tools : NULL, .extra_json = extra, .add_generation_prompt = prompt, .as_is = true
    };
    *ret = (struct pn_render){ 0 };
    if (d->endless || pn_chat_render(c, &in, ret, e) == 0) return 0;
    *ret = (struct pn_render){ 0 };
    d->endless = e->code == FO_ELIMIT;
    return e->code == FO_ENOMEM ? FO_ENOMEM : 0;
}

struct found {
    const struct pn_call_format *row;
    bool any; /* a call was written, in whatever form */
};

static void look_for_call(struct pn_render *r, const struct pn_render *turn, struct found *f) {
    const struct pn_call_format *row, *first = NULL, *exact = NULL;
    bool fits[64] = { false };
    if (!r->len) return;
    for (size_t i = 0; i < sizeof fits && (row = pn_call_format_row(i)); i++) fits[i] = writes_exactly(row, r);
    squeeze(r);
    f->any |= has(r, VALUE);
    for (size_t i = 0; (row = pn_call_format_row(i)); i++) {
        if (!writes(row, r, turn)) continue;
        if (!first) first = row;
        if (!exact && i < sizeof fits && fits[i]) exact = row;
    }
    f->row = exact ? exact : first;
}

static size_t bytes_of(const struct pn_call_format *f) {
    size_t n = 0;
    for (int i = 0; i < PN_N_CALL_TEXTS; i++) n += strlen(row_text(f, i));
    return n;
}

/* The row that a template tells of: of those that it may be, the one that says most. */
static const struct pn_call_format *told(const struct pn_render *with, const struct pn_render *without, const struct fo_tok *tok) {
    const struct pn_call_format *row, *best = NULL;
    for (size_t i = 0; (row = pn_call_format_row(i)); i++)
        if ((teaches(row, with, without) || has_tokens(row, tok)) && (!best || bytes_of(row) > bytes_of(best))) best = row;
    return best;
}

static int find_calls(struct pn_dialect *d, const struct pn_chat *c, const struct fo_tok *tok, struct fo_err *e) {
    struct pn_render with = { 0 }, without = { 0 }, r = { 0 };
    struct found f = { 0 };
    if (render(d, c, asked, true, NULL, true, &with, e) || render(d, c, asked, false, NULL, true, &without, e)) goto out;
    if (!with.len && !without.len) goto out;
    if (with.len) squeeze(&with);
    if (without.len) squeeze(&without);
    d->is_ours = !has(&with, OFFERED);
    if (d->is_ours) {
        d->calls = pn_call_format_row(0);
        goto out;
    }
    for (size_t i = 0; !f.row && i < sizeof made_calls / sizeof *made_calls; i++) {
        if (render(d, c, made_calls[i], true, NULL, false, &r, e)) goto out;
        look_for_call(&r, &with, &f);
        pn_render_done(&r);
    }
    r = (struct pn_render){ 0 };
    d->calls = f.row || f.any ? f.row : told(&with, &without, tok);
out:
    pn_render_done(&with);
    pn_render_done(&without);
    return e->code == FO_ENOMEM ? FO_ENOMEM : 0;
}

static bool shows_thought(const struct pn_reasoning *row, const struct pn_render *squeezed) {
    const char *p = memmem(squeezed->text, squeezed->len, THOUGHT, strlen(THOUGHT)), *end = squeezed->text + squeezed->len;
    if (p) {
        struct run before = { squeezed->text, p }, rest = { p + strlen(THOUGHT), end };
        return cut(&before, row->open) && eat(&rest, row->close);
    }
    /* Some leave out a thought of the past, but not its marks. */
    for (struct run r = { squeezed->text, end }; r.at < r.end; r.at++) {
        struct run here = r;
        if (eat(&here, row->open) && eat(&here, row->close)) return true;
    }
    return false;
}

/* A prompt that ends where a thought begins, or which has or tells of one. */
static bool speaks_of_thoughts(const struct pn_reasoning *row, const struct pn_render *squeezed) {
    struct run r = { squeezed->text, squeezed->text + squeezed->len };
    return squeezed->len && (cut(&r, row->open) || (has(squeezed, row->open) && has(squeezed, row->close)));
}

static int find_reasoning(struct pn_dialect *d, const struct pn_chat *c, struct fo_err *e) {
    enum { N_HAD = sizeof had_thoughts / sizeof *had_thoughts, N_PROMPTS = sizeof prompts / sizeof *prompts };
    const struct pn_reasoning *row;
    for (size_t i = 0; !d->reasoning && i < N_HAD + N_PROMPTS; i++) {
        struct pn_render r;
        bool had = i < N_HAD;
        if (render(d, c, had ? had_thoughts[i] : asked, had, had ? NULL : prompts[i - N_HAD], !had, &r, e)) return e->code;
        if (r.len) squeeze(&r);
        for (size_t k = 0; r.len && !d->reasoning && (row = pn_reasoning_row(k)); k++)
            if (had ? shows_thought(row, &r) : speaks_of_thoughts(row, &r)) d->reasoning = row;
        pn_render_done(&r);
    }
    return 0;
}

/* --- texts with their marks ----------------------------------------------------------------------------------------------------------- */

static bool add_mark(struct pn_dialect *d, struct mark m) {
    if (pn_dialect_is_mark(d, m.id)) return true;
    struct mark *more = realloc(d->marks, (d->n_marks + 1) * sizeof *more);
    if (!more) return false;
    d->marks = more;
    more[d->n_marks++] = m;
    return true;
}

/* The control token at text that is longest, -1 = none. */
static int32_t control_at(const struct fo_tok *tok, const char *text, size_t *ret_len) {
    for (size_t n = tok ? strlen(text) : 0; n > 0; n--) {
        int32_t id = fo_tok_find(tok, text, n);
        if (id < 0 || !fo_tok_is_control(tok, id)) continue;
        *ret_len = n;
        return id;
    }
    return -1;
}

/* A copy of text with PN_MARK in front of each control token in it. */
static char *resolve(struct pn_dialect *d, const struct fo_tok *tok, const char *text) {
    char *out = malloc(2 * strlen(text) + 1), *w = out;
    if (!out) return NULL;
    while (*text) {
        size_t n = 1;
        int32_t id = control_at(tok, text, &n);
        if (id >= 0) *w++ = (char)PN_MARK;
        if (id >= 0 && !add_mark(d, (struct mark){ id, text, n })) {
            free(out);
            return NULL;
        }
        memcpy(w, text, n);
        w += n;
        text += n;
    }
    *w = 0;
    return out;
}

static int set_texts(struct pn_dialect *d, const struct fo_tok *tok, struct fo_err *e) {
    for (int i = 0; i < N_TEXTS; i++) {
        const char *text = i == OPEN ? (d->reasoning ? d->reasoning->open : NULL) : i == CLOSE ? (d->reasoning ? d->reasoning->close : NULL) :
                           d->calls ? d->calls->text[i] : NULL;
        if (text && !(d->text[i] = resolve(d, tok, text))) return fo_fail(e, FO_ENOMEM, "no memory for a dialect");
    }
    return 0;
}

/* Close and after are encoded together, as they stand in a model's text. Where close is whole tokens of those, what is behind them is after. */
static int set_tokens(struct pn_dialect *d, const struct fo_tok *tok, struct fo_err *e) {
    char end[64];
    struct fo_tok_ids open, alone;
    size_t n = strlen(d->reasoning->close), more = strlen(d->reasoning->after);
    if (n + more > sizeof end) return fo_fail(e, FO_ELIMIT, "the end of a thought is longer than %zu bytes", sizeof end);
    memcpy(end, d->reasoning->close, n);
    memcpy(end + n, d->reasoning->after, more);
    if (fo_tok_encode(tok, d->reasoning->open, strlen(d->reasoning->open), NULL, FO_TOK_SPECIAL, 0, &open, e)) return e->code;
    if (open.n == 1) d->open = open.ids[0];
    free(open.ids);
    if (fo_tok_encode(tok, end, n + more, NULL, FO_TOK_SPECIAL, 0, &d->close, e)) return e->code;
    if (fo_tok_encode(tok, end, n, NULL, FO_TOK_SPECIAL, 0, &alone, e)) return e->code;
    d->close_whole = alone.n <= d->close.n && (alone.n == 0 || memcmp(alone.ids, d->close.ids, alone.n * sizeof *alone.ids) == 0);
    d->n_close = alone.n;
    free(alone.ids);
    if (d->close_whole) return 0;
    return fo_tok_encode(tok, d->reasoning->after, more, NULL, FO_TOK_SPECIAL, 0, &d->after, e);
}

int pn_dialect_new(const struct pn_chat *c, const struct fo_tok *tok, struct pn_dialect **ret, struct fo_err *e) {
    struct pn_dialect *d = calloc(1, sizeof *d);
    struct fo_err why = { 0 };
    if (!d) return fo_fail(e, FO_ENOMEM, "no memory for a dialect");
    d->open = -1;
    if (find_calls(d, c, tok, &why) || find_reasoning(d, c, &why) || set_texts(d, tok, &why) || (d->reasoning && tok && set_tokens(d, tok, &why))) {
        pn_dialect_free(d);
        *e = why;
        return e->code;
    }
    *ret = d;
    return 0;
}

void pn_dialect_free(struct pn_dialect *d) {
    if (!d) return;
    for (int i = 0; i < N_TEXTS; i++) free(d->text[i]);
    free(d->marks);
    free(d->close.ids);
    free(d->after.ids);
    free(d);
}

/* --- what it says -------------------------------------------------------------------------------------------------------------------- */

const struct pn_reasoning *pn_dialect_reasoning(const struct pn_dialect *d) {
    return d->reasoning;
}

const struct pn_call_format *pn_dialect_calls(const struct pn_dialect *d) {
    return d->calls;
}

bool pn_dialect_is_ours(const struct pn_dialect *d) {
    return d->is_ours;
}

static const char *text_of(const struct pn_dialect *d, int i) {
    return d->text[i] ? d->text[i] : "";
}

const char *pn_dialect_call_text(const struct pn_dialect *d, enum pn_call_text which) {
    return text_of(d, (int)which);
}

const char *pn_dialect_open(const struct pn_dialect *d) {
    return text_of(d, OPEN);
}

const char *pn_dialect_close(const struct pn_dialect *d) {
    return text_of(d, CLOSE);
}

const int32_t *pn_dialect_close_ids(const struct pn_dialect *d, uint32_t *ret_n) {
    *ret_n = (uint32_t)d->close.n;
    return d->close.ids;
}

const int32_t *pn_dialect_after_ids(const struct pn_dialect *d, uint32_t *ret_n) {
    *ret_n = (uint32_t)(d->close_whole ? d->close.n - d->n_close : d->after.n);
    return d->close_whole && *ret_n > 0 ? d->close.ids + d->n_close : d->after.ids;
}

int32_t pn_dialect_open_id(const struct pn_dialect *d) {
    return d->open;
}

bool pn_dialect_is_mark(const struct pn_dialect *d, int32_t id) {
    for (size_t i = 0; i < d->n_marks; i++)
        if (d->marks[i].id == id) return true;
    return false;
}

const char *pn_dialect_mark_text(const struct pn_dialect *d, size_t i, size_t *ret_n) {
    if (i >= d->n_marks) return NULL;
    *ret_n = d->marks[i].len;
    return d->marks[i].text;
}

bool pn_dialect_begins_in_reasoning(const struct pn_dialect *d, const char *prompt, size_t len) {
    if (!d->reasoning) return false;
    const char *open = d->reasoning->open;
    size_t n = strlen(open);
    while (n > 0 && pn_is_blank((unsigned char)open[n - 1])) n--;
    while (len > 0 && pn_is_blank((unsigned char)prompt[len - 1])) len--;
    return len >= n && memcmp(prompt + len - n, open, n) == 0;
}
