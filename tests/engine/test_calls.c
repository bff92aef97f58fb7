/* What the grammar of calls lets through is read back as those calls: random walks through it, in every dialect, cut into pieces anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dialect.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/program.h"
#include "engine/grammar/schema.h"
#include "engine/tools.h"
#include "engine/turn.h"
#include "engine/turn_json.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "tests/support/dialects.h"

enum { WALKS = 40, SHORT = 600, LONG = 6000 };

#define S(...) #__VA_ARGS__
static const struct {
    const char *name, *schema; /* NULL = none */
    bool strict;
} functions[] = {
    { "get", S({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":30}},"required":["city"],"additionalProperties":false}), true },
    { "get_all", S({"type":"object","properties":{"list":{"type":"array","items":{"anyOf":[{"type":"string","maxLength":3},{"type":"null"}]},"maxItems":3},"mode":{"enum":["r","</p>","\n"]},
                    "when":{"type":"string","pattern":"^[0-9]{2}$"},"deep":{"$ref":"#/$defs/n"}},"required":["list","mode"],"$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"},
                    "t":{"const":"a<\"b"}},"additionalProperties":false}},"additionalProperties":false}), true },
    { "none", NULL, true },
    { "any", NULL, false },
    { "loose", S({"type":"object","properties":{"text":{"type":"string","minLength":1},"n":{"type":"number"}},"required":["n"]}), false },
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

static struct pn_tools *offer(enum pn_tool_choice choice, bool one_call) {
    struct fo_buf b;
    struct pn_tools *t;
    char where[128];
    struct fo_err e;
    fo_buf_init(&b, 1 << 20);
    for (int i = 0; i < N_FUNCTIONS; i++)
        fo_buf_printf(&b, "%c{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"parameters\":%s,\"strict\":%s}}", i ? ',' : '[', functions[i].name,
                      functions[i].schema ? functions[i].schema : "null", functions[i].strict ? "true" : "false");
    fo_buf_putc(&b, ']');
    struct pn_tools_opts o = { .json = b.data, .len = b.len, .choice = choice, .one_call = one_call };
    if (pn_tools_new(&o, &t, where, &e)) fail_msg("%s", e.msg);
    fo_buf_done(&b);
    return t;
}

static struct pn_program *program_of(struct pn_ir *ir) {
    struct pn_program *p;
    struct fo_err e;
    if (pn_program_new(ir, &p, &e)) fail_msg("%s", e.msg);
    pn_ir_free(ir);
    return p;
}

static struct pn_program *grammar(const struct pn_tools *t, const struct pn_dialect *d) {
    struct fo_buf b;
    struct pn_ir *ir = NULL;
    char where[128];
    struct fo_err e;
    fo_buf_init(&b, 1 << 20);
    if (pn_tools_grammar(t, d, NULL, 0, &b, where, &e) || pn_ir_new(&ir, &e) || pn_pieces_build(ir, b.data, b.len, &e)) fail_msg("at '%s': %s", where, e.msg);
    fo_buf_done(&b);
    return program_of(ir);
}

/* --- walking ----------------------------------------------------------------------------------- */
struct walk {
    struct pn_pda *a;
    uint32_t state;
    struct fo_rng r;
    struct fo_buf text;
};

static size_t below(struct fo_rng *r, size_t n) {
    return (size_t)(fo_rng_u64(r) % n);
}

static uint32_t step(struct walk *w, uint32_t state, uint8_t byte) {
    struct fo_err e;
    uint32_t to = pn_pda_step(w->a, state, byte, &e);
    if (to == PN_STATE_NONE) fail_msg("%s", e.msg);
    return to;
}

/* All of s, if it may come. */
static bool say(struct walk *w, const char *s) {
    uint32_t state = w->state;
    for (const char *p = s; *p && state != PN_STATE_DEAD; p++) state = step(w, state, (uint8_t)*p);
    if (!*s || state == PN_STATE_DEAD) return false;
    w->state = state;
    fo_buf_puts(&w->text, s);
    return true;
}

/* A text of the grammar into w->text; false when it became too long. */
static bool walk(struct walk *w, const struct pn_program *p, const struct pn_dialect *d) {
    const char *ends[] = { "\"", "}", "]", pn_dialect_call_text(d, PN_CALL_ARG_END), pn_dialect_call_text(d, PN_CALL_MIDDLE), pn_dialect_call_text(d, PN_CALL_ARG_MIDDLE),
                           pn_dialect_call_text(d, PN_CALL_END), "0", "r" };
    enum { N_ENDS = sizeof ends / sizeof *ends };
    /* What is like an end and none, or needs care. */
    static const char *const snares[] = { "\n", "</", "</parameter", "\n</parameter >", "</tool_call>", "<", "\\\"", "\\u003c", "\\ud83d\\ude00", "\xF0\x9F\x98\x80", "{\"name\": \"get\"", "null", "  ", "true" };
    struct fo_err e;
    assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 22, 1 << 26, &w->a, &e), 0);
    w->state = pn_pda_start(w->a, &e);
    fo_buf_clear(&w->text);
    bool over = false;
    while (!over && w->text.len < LONG) {
        const struct pn_state *s = pn_pda_state(w->a, w->state);
        bool finish = w->text.len > SHORT, moved = false;
        if (s->may_end && (finish || s->n == 0 || below(&w->r, 2))) over = true;
        if (over) break;
        if (pn_pda_full(w->a)) assert_int_equal(pn_pda_keep(w->a, &w->state, 1, &e), 0);
        if (finish || below(&w->r, 4) == 0)
            for (int i = 0; i < N_ENDS && !moved; i++) moved = say(w, ends[finish ? (size_t)i : below(&w->r, N_ENDS)]);
        if (!moved && below(&w->r, 4) == 0) moved = say(w, snares[below(&w->r, sizeof snares / sizeof *snares)]);
        while (!moved) {
            uint8_t b = (uint8_t)(below(&w->r, 5) ? 32 + below(&w->r, 95) : below(&w->r, 256));
            uint32_t to = step(w, w->state, b);
            if (to == PN_STATE_DEAD) continue;
            w->state = to;
            fo_buf_putc(&w->text, (char)b);
            moved = true;
        }
    }
    pn_pda_free(w->a);
    return over;
}

/* --- reading back ------------------------------------------------------------------------------ */
struct calls {
    struct fo_buf content, name, arguments; /* of the last call */
    const struct pn_program *schemas[N_FUNCTIONS]; /* NULL = any object */
    int n;
};

static bool runs(const struct pn_program *p, const char *text) {
    struct pn_pda *a;
    struct fo_err e;
    assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 22, 1 << 26, &a, &e), 0);
    uint32_t s = pn_pda_start(a, &e);
    for (; *text && s != PN_STATE_DEAD; text++) {
        s = pn_pda_step(a, s, (uint8_t)*text, &e);
        assert_int_not_equal(s, PN_STATE_NONE);
    }
    bool yes = pn_pda_state(a, s)->may_end;
    pn_pda_free(a);
    return yes;
}

static void check_call(struct calls *c, const char *row, const char *text) {
    int i = 0;
    while (i < N_FUNCTIONS && strcmp(functions[i].name, fo_buf_str(&c->name)) != 0) i++;
    if (i == N_FUNCTIONS) fail_msg("%s: a call of '%s' in %s", row, fo_buf_str(&c->name), text);
    struct pn_json_scan scan;
    pn_json_scan_init(&scan);
    for (size_t k = 0; k < c->arguments.len; k++)
        if (pn_json_scan_step(&scan, (uint8_t)c->arguments.data[k]) == PN_JSON_BREAK) fail_msg("%s: arguments %s of %s", row, c->arguments.data, text);
    if (!pn_json_scan_is_whole(&scan) || c->arguments.data[0] != '{') fail_msg("%s: arguments %s of %s", row, fo_buf_str(&c->arguments), text);
    if (functions[i].strict && !functions[i].schema) assert_string_equal(fo_buf_str(&c->arguments), "{}");
    if (!c->schemas[i]) return;
    /* In the shortest spelling, as the schema's own grammar has what it names; numbers that no double has stay as they are. */
    json_t *v = json_loadb(c->arguments.data, c->arguments.len, JSON_ALLOW_NUL, NULL);
    char *spelled = v ? json_dumps(v, JSON_COMPACT) : NULL;
    if (!runs(c->schemas[i], spelled ? spelled : c->arguments.data)) fail_msg("%s: arguments %s of %s", row, c->arguments.data, text);
    free(spelled);
    json_decref(v);
}

static void read_back(struct calls *c, const struct fo_buf *text, const struct pn_tools *t, const struct pn_dialect *d, struct fo_rng *r) {
    const char *row = pn_dialect_calls(d)->name;
    struct pn_turn *turn;
    struct fo_err e;
    assert_int_equal(pn_turn_new(&(struct pn_turn_opts){ .dialect = d, .tools = t }, &turn, &e), 0);
    c->n = 0;
    fo_buf_clear(&c->content);
    for (size_t at = 0, n; at <= text->len; at += n) {
        struct fo_buf parts;
        struct pn_part_text part;
        fo_buf_init(&parts, 1 << 24);
        n = 1 + below(r, 9);
        if (n > text->len - at) n = text->len - at;
        if (n > 0)
            pn_turn_push(turn, text->data + at, n, &parts);
        else
            pn_turn_end(turn, &parts);
        for (size_t k = 0; pn_part_next(&parts, &k, &part);) {
            if (part.part == PN_PART_CALL) {
                if (c->n++) check_call(c, row, fo_buf_str(text));
                fo_buf_clear(&c->name);
                fo_buf_clear(&c->arguments);
                fo_buf_append(&c->name, part.text, part.len);
            } else {
                fo_buf_append(part.part == PN_PART_ARGUMENTS ? &c->arguments : &c->content, part.text, part.len);
            }
        }
        fo_buf_done(&parts);
        if (n == 0) break;
    }
    if (c->n == 0 || c->content.len > 0) fail_msg("%s: %d calls, and the content '%s', of %s", row, c->n, fo_buf_str(&c->content), fo_buf_str(text));
    check_call(c, row, fo_buf_str(text));
    pn_turn_free(turn);
}

static void what_the_grammar_lets_through_is_read_back_as_calls(void **state) {
    (void)state;
    const struct pn_call_format *f;
    struct calls c = { .n = 0 };
    struct walk w;
    struct pn_program *own[N_FUNCTIONS] = { NULL };
    fo_buf_init(&c.content, 1 << 20);
    fo_buf_init(&c.name, 1 << 20);
    fo_buf_init(&c.arguments, 1 << 20);
    fo_buf_init(&w.text, 1 << 20);
    fo_rng_seed(&w.r, 49);
    for (int i = 0; i < N_FUNCTIONS; i++) {
        struct pn_ir *ir;
        char pointer[PN_SCHEMA_POINTER_BYTES];
        struct fo_err e;
        if (!functions[i].schema) continue;
        assert_int_equal(pn_ir_new(&ir, &e), 0);
        struct pn_schema *schema;
        uint64_t work = 0;
        if (pn_schema_open(functions[i].schema, strlen(functions[i].schema), '\0', ir, &work, &schema, &e)) fail_msg("%s", e.msg);
        pn_ir_root(ir, pn_schema_part(schema, NULL, PN_SCHEMA_BEGUN, "", ""));
        e.code = FO_OK;
        if (pn_schema_close(schema, pointer, &e)) fail_msg("%s", e.msg);
        own[i] = program_of(ir);
    }
    for (size_t i = 0; (f = pn_call_format_row(i / 2)); i++) { /* with marks as control tokens, and without */
        struct test_dialect test;
        test_dialect_open(&test, f, NULL, i % 2);
        const struct pn_dialect *d = test.d;
        int whole = 0, calls = 0;
        for (int way = 0; way < 3; way++) { /* auto, demanded, one demanded */
            struct pn_tools *t = offer(way ? PN_TOOL_REQUIRED : PN_TOOL_AUTO, way == 2);
            struct pn_program *p = grammar(t, d);
            for (int k = 0; k < N_FUNCTIONS; k++) c.schemas[k] = way || functions[k].strict ? own[k] : NULL;
            for (int k = 0; k < WALKS; k++) {
                if (!walk(&w, p, d)) continue;
                read_back(&c, &w.text, t, d, &w.r);
                if (way == 2) assert_int_equal(c.n, 1);
                whole++;
                calls += c.n;
            }
            pn_program_free(p);
            pn_tools_put(t);
        }
        print_message("%s%s: %d of %d walks, %d calls\n", f->name, i % 2 ? " of control tokens" : "", whole, WALKS * 3, calls);
        assert_true(whole > WALKS && calls > whole);
        test_dialect_close(&test);
    }
    for (int i = 0; i < N_FUNCTIONS; i++) pn_program_free(own[i]);
    fo_buf_done(&c.content);
    fo_buf_done(&c.name);
    fo_buf_done(&c.arguments);
    fo_buf_done(&w.text);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_the_grammar_lets_through_is_read_back_as_calls) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
