/* Masks: each token is allowed exactly when its bytes, tried alone, are the beginning of what may follow; and the list of compiled grammars. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/dialect.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/masks.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/regex.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/clock.h"
#include "tests/support/tok_vocab.h"

struct vocabulary {
    struct fo_buf file;
    struct fo_gguf *g;
    struct fo_tok *tok;
};

static void open_vocabulary(const char *folder, struct vocabulary *ret) {
    struct fo_err e;
    char path[128];
    snprintf(path, sizeof path, "tests/data/tokenizers/%s", folder);
    assert_true(test_vocab_load(path, &ret->file));
    if (fo_gguf_parse(ret->file.data, ret->file.len, folder, &ret->g, &e) || fo_tok_open(ret->g, &ret->tok, &e)) fail_msg("%s", e.msg);
}

static void close_vocabulary(struct vocabulary *v) {
    fo_tok_free(v->tok);
    fo_gguf_close(v->g);
    fo_buf_done(&v->file);
}

static struct pn_program *program(enum pn_grammar_kind kind, const char *text) {
    struct pn_ir *ir;
    struct pn_program *p = NULL;
    struct fo_err e;
    if (pn_ir_new(&ir, &e) || (kind == PN_GRAMMAR_REGEX ? pn_regex_build : pn_gbnf_build)(ir, text, strlen(text), &e) || pn_program_new(ir, &p, &e)) fail_msg("%s", e.msg);
    pn_ir_free(ir);
    return p;
}

static const struct {
    enum pn_grammar_kind kind;
    const char *grammar, *text; /* the text is walked along; masks are compared behind each of its bytes */
} cases[] = {
    { PN_GRAMMAR_GBNF, "root ::= obj\nobj ::= \"{\" ( str \":\" val ( \",\" str \":\" val )* )? \"}\"\nval ::= obj | str | [0-9]+ | \"[\" ( val ( \",\" val )* )? \"]\"\nstr ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"nt\\\\] )* \"\\\"\"",
      "{\"a\":[1,[[\"caf\xc3\xa9\",{}]]],\"b\":{\"c\":\"d\\n\"}}" },
    { PN_GRAMMAR_GBNF, "root ::= [^\\n]{3,40} \"\\n\"", "the counter of this text is near both\n" },
    { PN_GRAMMAR_GBNF, "root ::= ( [a-z]{1,3} \" \" ){30,2000} \".\"", "a bc def g h i jj kkk l m n o p q r s t u v w x y z aa bb cc dd ee f g ." },
    { PN_GRAMMAR_GBNF, "root ::= ( [a-z ]{1,100000} \"\\n\" ){5,10}", "one\ntwo words\nthree\nfour\nfive\n" },
    { PN_GRAMMAR_GBNF, "root ::= p\np ::= \"(\" p \")\" | \"\"", "((((((((((((((((((((((((((((((((((((((((((((((((((()))))))))))))))))))))))))))))))))))))))))))))))))))" },
    { PN_GRAMMAR_REGEX, "(\\d{4}-\\d\\d|[\xd0\xb0-\xd1\x8f\xe4\xb8\x80-\xe9\xbf\xbf]+|\\s{2,}x)*", "2026-11\xd0\xb6\xe4\xb8\xad  x" },
    { PN_GRAMMAR_REGEX, "(a|b|ab|the|the end)*(\\.|!{2,9})", "theabab!!!!" },
};

static void hold(const char *folder, size_t every) {
    struct vocabulary voc;
    struct pn_tokens *v;
    struct fo_err e;
    open_vocabulary(folder, &voc);
    assert_int_equal(pn_tokens_new(voc.tok, &v, &e), 0);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct pn_program *p = program(cases[c].kind, cases[c].grammar);
        struct pn_masks *m;
        struct pn_pda *a;
        assert_int_equal(pn_masks_new(p, v, &m, &e), 0);
        assert_int_equal(pn_pda_new(p, UINT32_MAX, 1 << 22, 1 << 26, &a, &e), 0);
        uint32_t s = pn_pda_start(a, &e);
        size_t n = strlen(cases[c].text);
        for (size_t at = 0; at <= n; at++) {
            const struct pn_mask *mask;
            uint32_t allowed = 0;
            if (at % every == 0 || at + 3 > n) {
                if (pn_masks_get(m, a, s, &mask, &e)) fail_msg("%s", e.msg);
                for (int32_t id = 0; id < v->n_vocab; id++) {
                    struct fo_buf piece;
                    fo_buf_init(&piece, 1 << 16);
                    bool text = !fo_tok_is_control(voc.tok, id) && !fo_tok_is_end(voc.tok, id);
                    if (text) fo_tok_piece(voc.tok, id, false, &piece);
                    uint32_t t = s;
                    for (size_t i = 0; i < piece.len && t != PN_STATE_DEAD; i++) t = pn_pda_step(a, t, (uint8_t)piece.data[i], &e);
                    bool right = piece.len > 0 && t != PN_STATE_DEAD;
                    allowed += right;
                    if (right != (mask->bits[id >> 6] >> (id & 63) & 1))
                        fail_msg("%s: case %zu behind byte %zu: token %d '%s' is %s", folder, c, at, id, fo_buf_str(&piece), right ? "left out" : "let through");
                    fo_buf_done(&piece);
                }
                assert_int_equal(mask->n_allowed, allowed);
                if (pn_pda_full(a)) assert_int_equal(pn_pda_keep(a, &s, 1, &e), 0);
            }
            if (at < n) s = pn_pda_step(a, s, (uint8_t)cases[c].text[at], &e);
            if (s == PN_STATE_DEAD) fail_msg("case %zu ends at byte %zu", c, at);
        }
        assert_true(pn_pda_state(a, s)->may_end);
        pn_pda_free(a);
        pn_masks_free(m);
        pn_program_free(p);
    }
    pn_tokens_free(v);
    close_vocabulary(&voc);
}

static void a_mask_is_every_token_tried_alone(void **state) {
    (void)state;
    hold("bpe352-smollm", 1);
    hold("bpe768-gpt-2", 1);
    hold("spm768", 1);
}

static void and_so_it_is_on_a_real_vocabulary(void **state) {
    (void)state;
    hold("smollm2-real", 17);
}

static void hostile_grammars_cost_no_step_a_second(void **state) {
    (void)state;
    struct vocabulary voc;
    struct pn_grammars *all;
    struct fo_err e = { 0 };
    open_vocabulary("smollm2-real", &voc);
    assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
    uint32_t n = (uint32_t)fo_tok_n_vocab(voc.tok);
    float *logits = malloc(n * sizeof *logits);
    char *text = malloc(1 << 16);
    for (int kind = 0; kind < 6; kind++) {
        struct pn_grammar *g;
        struct pn_grammar_run *r = NULL;
        int len = 0;
        if (kind == 0) { /* exponentially many stacks */
            len = sprintf(text, "root ::= r0\n");
            for (int i = 0; i < 60; i++) len += sprintf(text + len, "r%d ::= r%d [a-z ]{0,9} | r%d [a-y ]{0,8} \"z\"?\n", i, i + 1, i + 1);
            len += sprintf(text + len, "r60 ::= [a-z ]{1,9}");
        } else if (kind == 1) /* as many counts as letters */
            len = sprintf(text, "root ::= ( [a-z ]{1,3} | \"a\" ){1,4000}");
        else if (kind == 2) /* pairs of counts */
            len = sprintf(text, "root ::= ( ( [a-z ]{1,40} ){1,40} ){1,40}");
        else if (kind == 3) /* each letter nests, in two ways */
            len = sprintf(text, "root ::= [a-z ] root [a-z ] | [a-y ] root [b-z ] | \"\"");
        else if (kind == 4) /* a state of its own for each text */
            len = sprintf(text, "root ::= ( [a-m ] x | [n-z] y )\nx ::= root \"0\" | \"1\"\ny ::= root \"1\" | \"0\"");
        else /* many alternatives at once */
            for (int i = 0; i < 4000; i++) len += sprintf(text + len, "%s\"%c%d\"", i ? " | " : "root ::= ", 'a' + i % 26, i * 7919 % 100003);
        double from = test_cpu_ms();
        int rc = pn_grammars_get(all, PN_GRAMMAR_GBNF, text, (size_t)len, &g, &e);
        double most = test_cpu_ms() - from;
        if (rc != 0) fail_msg("kind %d: %s", kind, e.msg);
        rc = pn_grammar_run_new(g, &r, &e);
        for (int step = 0; step < 40 && rc == 0; step++) {
            bool over = false;
            for (uint32_t i = 0; i < n; i++) logits[i] = 1;
            from = test_cpu_ms();
            rc = pn_grammar_run_mask(r, true, logits, n, &over, &e);
            int32_t id = -1;
            for (uint32_t i = 0; i < n && rc == 0 && id < 0; i++)
                if (logits[(i * 977 + (uint32_t)step * 31) % n] == 1) id = (int32_t)((i * 977 + (uint32_t)step * 31) % n);
            if (rc == 0 && (over || id < 0)) break;
            if (rc == 0) rc = pn_grammar_run_accept(r, id, &over, &e);
            if (test_cpu_ms() - from > most) most = test_cpu_ms() - from;
            if (over) break;
        }
        if (rc != 0) assert_int_equal(rc, FO_ELIMIT);
        print_message("kind %d: at most %.0f ms%s%s\n", kind, most, rc ? ", then: " : "", rc ? e.msg : "");
        if (most > 1000) fail_msg("kind %d took %.0f ms", kind, most);
        if (r) pn_grammar_run_free(r);
        pn_grammar_put(g);
    }
    free(text);
    free(logits);
    pn_grammars_free(all);
    close_vocabulary(&voc);
}

/* Everything that a grammar holds, with these logits. */
static uint32_t mask(struct pn_grammar_run *r, bool ignore_end, float *logits, uint32_t n, bool *ret_over) {
    struct fo_err e = { 0 };
    uint32_t allowed = 0;
    for (uint32_t i = 0; i < n; i++) logits[i] = 1;
    if (pn_grammar_run_mask(r, ignore_end, logits, n, ret_over, &e)) fail_msg("%s", e.msg);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(logits[i] == 1 || logits[i] == -INFINITY);
        allowed += logits[i] == 1;
    }
    return allowed;
}

static void end_tokens_may_come_exactly_where_the_text_may_end(void **state) {
    (void)state;
    struct vocabulary voc;
    struct pn_grammars *all;
    struct pn_grammar *g;
    struct pn_grammar_run *r;
    struct fo_err e;
    bool over;
    open_vocabulary("bpe352-smollm", &voc);
    uint32_t n = (uint32_t)fo_tok_n_vocab(voc.tok) + 7; /* a model's logits may be padded */
    float *logits = malloc(n * sizeof *logits);
    int32_t a = fo_tok_find(voc.tok, "a", 1), end = fo_tok_eos(voc.tok);
    assert_true(a >= 0 && end >= 0);
    assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_GBNF, "root ::= \"a\"{2,3}", 17, &g, &e), 0);
    assert_int_equal(pn_grammar_run_new(g, &r, &e), 0);
    for (int i = 0; i < 3; i++) {
        uint32_t allowed = mask(r, false, logits, n, &over);
        assert_true(logits[a] == 1 && allowed >= 1 && !over);
        assert_int_equal(logits[end] == 1, i == 2);
        mask(r, true, logits, n, &over);
        assert_true(logits[end] == -INFINITY && logits[a] == 1 && !over);
        assert_int_equal(pn_grammar_run_accept(r, a, &over, &e), 0);
        assert_int_equal(over, i == 2);
    }
    uint32_t allowed = mask(r, false, logits, n, &over);
    assert_true(allowed >= 1 && logits[end] == 1 && !over);
    assert_int_equal(mask(r, true, logits, n, &over), 0);
    assert_true(over);
    assert_int_equal(pn_grammar_run_accept(r, a, &over, &e), FO_ELIMIT);
    assert_int_equal(pn_grammar_run_accept(r, end, &over, &e), FO_EINTERNAL);
    pn_grammar_run_free(r);
    pn_grammar_put(g);
    pn_grammars_free(all);
    close_vocabulary(&voc);
    free(logits);
}

static void a_vocabulary_that_lacks_bytes_is_an_error_and_never_lets_anything_through(void **state) {
    (void)state;
    struct vocabulary voc;
    struct pn_tokens *v;
    struct pn_grammars *all;
    struct pn_grammar *g;
    struct pn_grammar_run *r;
    struct fo_err e = { 0 };
    bool has[256] = { 0 }, over;
    char text[64];
    open_vocabulary("smollm2-real", &voc);
    assert_int_equal(pn_tokens_new(voc.tok, &v, &e), 0);
    for (uint32_t i = 0; i < v->n_ids; i++) has[(uint8_t)v->text[v->text_at[v->ids[i]]]] = true;
    pn_tokens_free(v);
    int lacks = 1;
    while (lacks < 128 && has[lacks]) lacks++;
    assert_in_range(lacks, 1, 127); /* this one has no token for some control characters */
    uint32_t n = (uint32_t)fo_tok_n_vocab(voc.tok);
    float *logits = calloc(n, sizeof *logits);
    int len = snprintf(text, sizeof text, "root ::= \"\\x%02x\"", (unsigned)lacks);
    assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_GBNF, text, (size_t)len, &g, &e), 0);
    assert_int_equal(pn_grammar_run_new(g, &r, &e), 0);
    assert_int_equal(pn_grammar_run_mask(r, false, logits, n, &over, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "no token of this model's vocabulary"));
    for (uint32_t i = 0; i < n; i++) assert_true(logits[i] == -INFINITY);
    pn_grammar_run_free(r);
    pn_grammar_put(g);
    pn_grammars_free(all);
    close_vocabulary(&voc);
    free(logits);
}

/* The mask of a grammar's start. */
static void first_mask(struct pn_grammars *all, enum pn_grammar_kind kind, const char *text, size_t len, float *logits, uint32_t n) {
    struct pn_grammar *g;
    struct pn_grammar_run *r;
    struct fo_err e;
    bool over;
    if (pn_grammars_get(all, kind, text, len, &g, &e)) fail_msg("%s", e.msg);
    assert_int_equal(pn_grammar_run_new(g, &r, &e), 0);
    mask(r, false, logits, n, &over);
    pn_grammar_run_free(r);
    pn_grammar_put(g);
}

static void control_tokens_come_only_where_a_grammar_names_them(void **state) {
    (void)state;
    static const char *const folders[] = { "bpe352-smollm", "bpe768-gpt-2", "spm352-phi3", "spm768", "smollm2-real" };
    uint32_t asked = 0;
    for (size_t k = 0; k < sizeof folders / sizeof *folders; k++) {
        struct vocabulary voc;
        struct pn_grammars *all;
        struct fo_err e;
        open_vocabulary(folders[k], &voc);
        uint32_t n = (uint32_t)fo_tok_n_vocab(voc.tok);
        float *logits = malloc(n * sizeof *logits);
        assert_non_null(logits);
        assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
        static const char any[] = "root ::= [\\x00-\\U0010FFFF]{1,100} \"\\xFF\"";
        first_mask(all, PN_GRAMMAR_GBNF, any, sizeof any - 1, logits, n);
        for (uint32_t i = 0; i < n; i++)
            if (logits[i] == 1 && (fo_tok_is_control(voc.tok, (int32_t)i) || fo_tok_is_end(voc.tok, (int32_t)i))) fail_msg("%s: token %u", folders[k], i);
        for (int32_t id = 0; id < (int32_t)n; id++) {
            struct fo_buf name, b;
            fo_buf_init(&name, 1 << 16);
            fo_buf_init(&b, 1 << 16);
            fo_buf_putc(&name, (char)PN_MARK);
            if (fo_tok_is_control(voc.tok, id) && !fo_tok_is_end(voc.tok, id)) fo_tok_piece(voc.tok, id, true, &name);
            if (name.len > 1) {
                pn_piece_literal(&b, name.data, name.len);
                first_mask(all, PN_GRAMMAR_PIECES, b.data, b.len, logits, n);
                assert_true(logits[id] == 1);
                for (uint32_t i = 0; i < n; i++) { /* nothing else, but for a control token that its text begins with */
                    struct fo_buf other;
                    fo_buf_init(&other, 1 << 16);
                    fo_tok_piece(voc.tok, (int32_t)i, true, &other);
                    bool begins = fo_tok_is_control(voc.tok, (int32_t)i) && other.len < name.len && memcmp(name.data + 1, fo_buf_str(&other), other.len) == 0;
                    if (logits[i] == 1 && !begins) fail_msg("%s: token %u in the place of %d", folders[k], i, id);
                    fo_buf_done(&other);
                }
                asked++;
            }
            fo_buf_done(&name);
            fo_buf_done(&b);
        }
        pn_grammars_free(all);
        close_vocabulary(&voc);
        free(logits);
    }
    assert_true(asked > 10);
}

static void no_notation_of_a_request_has_the_byte_of_marks(void **state) {
    (void)state;
    struct vocabulary voc;
    struct pn_grammars *all;
    struct fo_err e;
    open_vocabulary("bpe352-smollm", &voc);
    assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
    static const struct {
        enum pn_grammar_kind kind;
        const char *text; /* of U+00FF, somehow */
    } texts[] = {
        { PN_GRAMMAR_GBNF, "root ::= \"\\xFF\"" },      { PN_GRAMMAR_GBNF, "root ::= [\\xFF]" }, { PN_GRAMMAR_GBNF, "root ::= [^\\x00-\\xFE]" },
        { PN_GRAMMAR_REGEX, "\\xFF" },                   { PN_GRAMMAR_REGEX, "[\\xFF]" },         { PN_GRAMMAR_CHOICE, "\2\0\0\0\xC3\xBF" },
        { PN_GRAMMAR_JSON_SCHEMA, "{\"const\":\"\\u00ff\"}" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pn_grammar *g;
        struct pn_grammar_run *r;
        bool alive, quoted = texts[i].kind == PN_GRAMMAR_JSON_SCHEMA;
        size_t len = texts[i].kind == PN_GRAMMAR_CHOICE ? 6 : strlen(texts[i].text);
        if (pn_grammars_get(all, texts[i].kind, texts[i].text, len, &g, &e)) fail_msg("%zu: %s", i, e.msg);
        for (int bad = 0; bad < 2; bad++) {
            assert_int_equal(pn_grammar_run_new(g, &r, &e), 0);
            if (quoted) assert_int_equal(pn_grammar_run_bytes(r, "\"", 1, &alive, &e), 0);
            assert_int_equal(pn_grammar_run_bytes(r, bad ? "\xFF" : "\xC3\xBF", bad ? 1 : 2, &alive, &e), 0);
            if (alive == bad) fail_msg("%zu", i);
            pn_grammar_run_free(r);
        }
        pn_grammar_put(g);
    }
    static const struct {
        enum pn_grammar_kind kind;
        const char *text;
        size_t len;
    } broken[] = {
        { PN_GRAMMAR_GBNF, "root ::= \"\xFF\"", 12 }, { PN_GRAMMAR_GBNF, "root ::= [\xFF]", 12 },     { PN_GRAMMAR_REGEX, "\xFF", 1 },
        { PN_GRAMMAR_REGEX, "[\xFF]", 3 },            { PN_GRAMMAR_CHOICE, "\1\0\0\0\xFF", 5 }, { PN_GRAMMAR_JSON_SCHEMA, "{\"const\":\"\xFF\"}", 13 },
        { PN_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"\xFF\"}", 15 },
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct pn_grammar *g;
        assert_int_equal(pn_grammars_get(all, broken[i].kind, broken[i].text, broken[i].len, &g, &e), FO_EFORMAT);
    }
    pn_grammars_free(all);
    close_vocabulary(&voc);
}

/* --- the list --------------------------------------------------------------------------------- */
struct asker {
    struct pn_grammars *all;
    struct pn_grammar *got[64];
};

static void *ask(void *ctx) {
    struct asker *a = ctx;
    struct fo_err e;
    char text[64];
    for (int i = 0; i < 64; i++) {
        int len = snprintf(text, sizeof text, "root ::= \"a\"{%d,2000}", i % 8);
        if (pn_grammars_get(a->all, PN_GRAMMAR_GBNF, text, (size_t)len, &a->got[i], &e)) a->got[i] = NULL;
    }
    return NULL;
}

static void one_text_is_compiled_once_however_many_ask(void **state) {
    (void)state;
    enum { N = 6 };
    static struct asker askers[N];
    struct vocabulary voc;
    struct fo_err e;
    pthread_t threads[N];
    open_vocabulary("bpe352-smollm", &voc);
    assert_int_equal(pn_grammars_new(voc.tok, &askers[0].all, &e), 0);
    for (int i = 0; i < N; i++) {
        askers[i].all = askers[0].all;
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 64; k++) {
            assert_non_null(askers[i].got[k]);
            assert_ptr_equal(askers[i].got[k], askers[0].got[k % 8]);
        }
    pn_grammars_free(askers[0].all); /* what is held lives on */
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 64; k++) pn_grammar_put(askers[i].got[k]);
    close_vocabulary(&voc);
}

struct writer {
    const char *text;
    int n, code;
};

static int write_text(void *ctx, struct fo_buf *ret, struct fo_err *e) {
    struct writer *w = ctx;
    w->n++;
    if (w->code) return fo_fail(e, (enum fo_code)w->code, "no text");
    pn_piece_literal(ret, w->text, strlen(w->text));
    return 0;
}

static void a_text_that_is_made_for_a_key_is_made_once(void **state) {
    (void)state;
    struct vocabulary voc;
    struct pn_grammars *all;
    struct pn_grammar *first, *again, *other;
    struct pn_grammars_info info;
    struct fo_err e;
    struct writer w = { .text = "yes" }, bad = { .code = FO_EUNSUPPORTED };
    open_vocabulary("bpe352-smollm", &voc);
    assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
    assert_int_equal(pn_grammars_made(all, "k", 1, write_text, &bad, &first, &e), FO_EUNSUPPORTED); /* and nothing is kept of it */
    assert_int_equal(pn_grammars_made(all, "k", 1, write_text, &w, &first, &e), 0);
    assert_int_equal(pn_grammars_made(all, "k", 1, write_text, &w, &again, &e), 0);
    assert_ptr_equal(again, first);
    assert_int_equal(w.n, 1);
    w.text = "no";
    assert_int_equal(pn_grammars_made(all, "l", 1, write_text, &w, &other, &e), 0);
    assert_ptr_not_equal(other, first);
    assert_int_equal(w.n, 2);
    pn_grammars_info(all, &info);
    assert_int_equal(info.compiled, 2);
    assert_int_equal(info.found, 1);
    pn_grammar_put(first);
    pn_grammar_put(again);
    pn_grammar_put(other);
    pn_grammars_free(all);
    close_vocabulary(&voc);
}

static void what_was_used_longest_ago_goes_first(void **state) {
    (void)state;
    struct vocabulary voc;
    struct pn_grammars *all;
    struct pn_grammar *first, *again, *g;
    struct fo_err e;
    char text[64];
    open_vocabulary("bpe352-smollm", &voc);
    assert_int_equal(pn_grammars_new(voc.tok, &all, &e), 0);
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, "kept", 4, &first, &e), 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < PN_GRAMMARS_KEPT - 1; i++) {
            int len = snprintf(text, sizeof text, "x%dy%d", round, i);
            assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, text, (size_t)len, &g, &e), 0);
            pn_grammar_put(g);
        }
        assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, "kept", 4, &again, &e), 0);
        assert_ptr_equal(first, again);
        pn_grammar_put(again);
    }
    for (int i = 0; i < PN_GRAMMARS_KEPT; i++) {
        int len = snprintf(text, sizeof text, "z%d", i);
        assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, text, (size_t)len, &g, &e), 0);
        pn_grammar_put(g);
    }
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, "kept", 4, &again, &e), 0);
    assert_ptr_not_equal(first, again); /* `first` is still held, so its place in memory is not free */
    pn_grammar_put(again);
    pn_grammar_put(first);
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, "(", 1, &g, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "line 1, column 1: "));
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, "(", 1, &g, &e), FO_EINVAL);
    pn_grammars_free(all);
    assert_int_equal(pn_grammars_new(NULL, &all, &e), 0);
    assert_int_equal(pn_grammars_get(all, PN_GRAMMAR_REGEX, "a", 1, &g, &e), FO_EUNSUPPORTED);
    pn_grammars_free(all);
    close_vocabulary(&voc);
}

static void runs_out_of_memory_cleanly(void **state) {
    (void)state;
    struct vocabulary voc;
    open_vocabulary("bpe352-smollm", &voc);
    uint32_t n_vocab = (uint32_t)fo_tok_n_vocab(voc.tok);
    float *logits = malloc(n_vocab * sizeof *logits);
    int32_t brace = fo_tok_find(voc.tok, "{", 1);
    for (long n = 1;; n++) {
        struct pn_grammars *all = NULL;
        struct pn_grammar *g = NULL;
        struct pn_grammar_run *r = NULL;
        struct fo_err e = { 0 };
        bool over;
        for (uint32_t i = 0; i < n_vocab; i++) logits[i] = 1;
        test_fail_alloc(n);
        int rc = pn_grammars_new(voc.tok, &all, &e);
        if (rc == 0) rc = pn_grammars_get(all, PN_GRAMMAR_JSON_OBJECT, "", 0, &g, &e);
        if (rc == 0) rc = pn_grammar_run_new(g, &r, &e);
        if (rc == 0) rc = pn_grammar_run_mask(r, false, logits, n_vocab, &over, &e);
        if (rc == 0) rc = pn_grammar_run_accept(r, brace, &over, &e);
        if (rc == 0) rc = pn_grammar_run_mask(r, false, logits, n_vocab, &over, &e);
        bool failed = test_alloc_failed();
        if (rc == 0) {
            assert_true(logits[brace] == -INFINITY);
        } else {
            assert_true(failed);
            assert_int_equal(e.code, FO_ENOMEM);
        }
        pn_grammar_run_free(r);
        pn_grammar_put(g);
        pn_grammars_free(all);
        if (!failed) break;
    }
    free(logits);
    close_vocabulary(&voc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_is_every_token_tried_alone),
        cmocka_unit_test(and_so_it_is_on_a_real_vocabulary),
        cmocka_unit_test(hostile_grammars_cost_no_step_a_second),
        cmocka_unit_test(end_tokens_may_come_exactly_where_the_text_may_end),
        cmocka_unit_test(a_vocabulary_that_lacks_bytes_is_an_error_and_never_lets_anything_through),
        cmocka_unit_test(control_tokens_come_only_where_a_grammar_names_them),
        cmocka_unit_test(no_notation_of_a_request_has_the_byte_of_marks),
        cmocka_unit_test(one_text_is_compiled_once_however_many_ask),
        cmocka_unit_test(a_text_that_is_made_for_a_key_is_made_once),
        cmocka_unit_test(what_was_used_longest_ago_goes_first),
        cmocka_unit_test(runs_out_of_memory_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
