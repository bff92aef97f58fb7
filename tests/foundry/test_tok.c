/* Tokenizers on vocabularies made here: special tokens and who wrote them, limits, hostile metadata, running out of memory.
 * References are in test_tok_golden.c. */
#include "foundry/tok.h"
#include "foundry/tok_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "tests/support/alloc.h"
#include "tests/support/gguf_write.h"
#include "tests/support/tok_vocab.h"

/* A model: the file, the reader over it, the tokenizer. */
struct model {
    struct fo_buf file;
    struct fo_gguf *g;
    struct fo_tok *t;
};

static int model_open(struct model *m, struct test_gguf *w, struct fo_err *e) {
    *m = (struct model){ .g = NULL };
    assert_true(test_gguf_finish(w, &m->file));
    if (fo_gguf_parse(m->file.data, m->file.len, "test", &m->g, e)) fail_msg("%s", e->msg);
    return fo_tok_open(m->g, &m->t, e);
}

static void model_close(struct model *m) {
    fo_tok_free(m->t);
    fo_gguf_close(m->g);
    fo_buf_done(&m->file);
}

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

/* A byte-level vocabulary of the 95 printable ASCII characters with the space as U+0120 (ids 0..94), then what is given. */
struct vocab {
    const char *token[512];
    int32_t type[512];
    size_t n;
    const char *merge[64];
    size_t n_merges;
    char text[95][3];
};

static void vocab_init(struct vocab *v) {
    memset(v, 0, sizeof *v);
    for (int c = 0x20; c < 0x7F; c++) {
        v->text[v->n][0] = (char)c;
        if (c == ' ') memcpy(v->text[v->n], "\xC4\xA0", 3);
        v->token[v->n] = v->text[v->n];
        v->type[v->n++] = NORMAL;
    }
}

static int32_t vocab_add(struct vocab *v, const char *text, int32_t type) {
    v->token[v->n] = text;
    v->type[v->n] = type;
    return (int32_t)v->n++;
}

static void vocab_merge(struct vocab *v, const char *pair) {
    v->merge[v->n_merges++] = pair;
}

static void vocab_write(const struct vocab *v, struct test_gguf *w) {
    test_gguf_init(w, 3);
    test_gguf_str(w, "general.architecture", "llama");
    test_gguf_str(w, "tokenizer.ggml.model", "gpt2");
    test_gguf_str(w, "tokenizer.ggml.pre", "smollm");
    test_gguf_strs(w, "tokenizer.ggml.tokens", v->token, v->n);
    test_gguf_i32s(w, "tokenizer.ggml.token_type", v->type, v->n);
    test_gguf_strs(w, "tokenizer.ggml.merges", v->merge, v->n_merges);
}

static void vocab_open(const struct vocab *v, struct model *m) {
    struct test_gguf w;
    struct fo_err e;
    vocab_write(v, &w);
    if (model_open(m, &w, &e)) fail_msg("%s", e.msg);
}

/* The tokens of a text, each in brackets as its text stands in the file. */
static const char *shown(const struct fo_tok *t, const char *s, const char *user, unsigned flags) {
    static char out[4096];
    uint8_t marks[1024];
    struct fo_tok_ids ids = { 0 };
    struct fo_buf piece;
    struct fo_err e;
    size_t len = 0, n = strlen(s);
    for (size_t i = 0; user && i < n; i++) marks[i] = user[i] == 'u';
    if (user) assert_int_equal(strlen(user), n);
    if (fo_tok_encode(t, s, n, user ? marks : NULL, flags, 0, &ids, &e)) fail_msg("%s", e.msg);
    out[0] = '\0';
    fo_buf_init(&piece, 4096);
    for (size_t i = 0; i < ids.n; i++) {
        fo_buf_clear(&piece);
        fo_tok_piece(t, ids.ids[i], true, &piece);
        len += (size_t)snprintf(out + len, sizeof out - len, "[%s]", fo_buf_str(&piece));
    }
    fo_buf_done(&piece);
    free(ids.ids);
    return out;
}

static void merges_the_earliest_pair_first_and_the_leftmost_of_equals(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    vocab_init(&v);
    vocab_add(&v, "aa", NORMAL);
    vocab_add(&v, "bc", NORMAL);
    vocab_add(&v, "ab", NORMAL);
    vocab_add(&v, "abc", NORMAL);
    vocab_add(&v, "aaaa", NORMAL);
    vocab_merge(&v, "a a");
    vocab_merge(&v, "b c");
    vocab_merge(&v, "a b");
    vocab_merge(&v, "ab c");
    vocab_merge(&v, "aa aa");
    vocab_open(&v, &m);
    assert_string_equal(shown(m.t, "abc", NULL, 0), "[a][bc]");
    assert_string_equal(shown(m.t, "abd", NULL, 0), "[ab][d]");
    assert_string_equal(shown(m.t, "aaa", NULL, 0), "[aa][a]");
    assert_string_equal(shown(m.t, "aaab", NULL, 0), "[aa][ab]");
    assert_string_equal(shown(m.t, "aaaaaaa", NULL, 0), "[aaaa][aa][a]");
    assert_string_equal(shown(m.t, "ab ab", NULL, 0), "[ab][ ][ab]");
    model_close(&m);
}

/* The definition, as slow as it is: the pair of the least rank, the leftmost among equals, until there is none. */
struct naive {
    int n_merges;
    char text[40][64]; /* what merge i makes */
    char left[40][64], right[40][64];
};

static size_t naive_merge(const struct naive *v, char (*sym)[64], size_t n) {
    for (;;) {
        int best = v->n_merges;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (int k = 0; k < best; k++) {
                if (!strcmp(sym[i], v->left[k]) && !strcmp(sym[i + 1], v->right[k])) best = k, at = i;
            }
        }
        if (best == v->n_merges) return n;
        memcpy(sym[at], v->text[best], 64);
        memmove(sym[at + 1], sym[at + 2], (n - at - 2) * sizeof *sym);
        n--;
    }
}

static const char *const letters4[] = { "a", "b", "c", "d" };

/* Merges drawn at random from a few letters (at most 8), so that overlaps, repeats and merges out of order are common; before them those of
 * `given`, pairs of texts up to a NULL. */
static void naive_draw(struct naive *v, struct fo_rng *r, struct vocab *out, const char *const *letters, int n_letters, const char *const *given) {
    static char pair[40][130];
    char part[48][64];
    int n = n_letters;
    for (int i = 0; i < n; i++) snprintf(part[i], sizeof part[i], "%s", letters[i]);
    memset(v, 0, sizeof *v);
    while (v->n_merges < 40) {
        int i = v->n_merges, k;
        const char *left = part[fo_rng_u64(r) % (uint64_t)n], *right = part[fo_rng_u64(r) % (uint64_t)n];
        if (given && *given) left = given[0], right = given[1], given += 2;
        if (strlen(left) + strlen(right) > 12 * strlen(letters[0])) continue;
        for (k = 0; k < i && (strcmp(v->left[k], left) || strcmp(v->right[k], right)); k++) {}
        if (k < i) continue;
        snprintf(v->left[i], 64, "%s", left);
        snprintf(v->right[i], 64, "%s", right);
        snprintf(v->text[i], 64, "%.31s%.31s", left, right);
        for (k = 0; k < n && strcmp(part[k], v->text[i]); k++) {}
        if (k == n) {
            memcpy(part[n++], v->text[i], 64);
            vocab_add(out, v->text[i], NORMAL);
        }
        snprintf(pair[i], sizeof pair[i], "%s %s", left, right);
        vocab_merge(out, pair[i]);
        v->n_merges++;
    }
}

static void merges_words_of_every_length_as_the_definition_says(void **state) {
    (void)state;
    static char sym[1500][64], word[1500];
    struct fo_rng r;
    fo_rng_seed(&r, 11);
    for (int draw = 0; draw < 12; draw++) {
        struct vocab v;
        struct naive naive;
        struct model m;
        vocab_init(&v);
        naive_draw(&naive, &r, &v, letters4, 4, NULL);
        vocab_open(&v, &m);
        for (int round = 0; round < (draw < 4 ? 62 : 60); round++) { /* the last two: longer than a window, once the same again and again */
            size_t n = round >= 60 ? 1100 + fo_rng_u64(&r) % 400 : 1 + fo_rng_u64(&r) % (round < 30 ? 60 : 390);
            size_t letters = 1 + fo_rng_u64(&r) % 4;
            struct fo_tok_ids ids = { 0 };
            struct fo_err e;
            for (size_t i = 0; i < n; i++) {
                word[i] = round == 61 && i >= 7 ? word[i - 7] : (char)('a' + fo_rng_u64(&r) % letters);
                snprintf(sym[i], sizeof sym[i], "%c", word[i]);
            }
            assert_int_equal(fo_tok_encode(m.t, word, n, NULL, 0, 0, &ids, &e), 0);
            size_t want = naive_merge(&naive, sym, n);
            if (ids.n != want) fail_msg("%.*s: %zu tokens, not %zu", (int)n, word, ids.n, want);
            for (size_t i = 0; i < want; i++) assert_int_equal(ids.ids[i], fo_tok_find(m.t, sym[i], strlen(sym[i])));
            free(ids.ids);
        }
        model_close(&m);
    }
}

/* Characters of three bytes, some of which can be started from (tok_chars.c) and some not, and letters of one. */
static void starts_from_characters_only_where_that_changes_nothing(void **state) {
    (void)state;
    static const char *const bytes[] = { "\xC3\xA4", "\xC3\xA5", "\xC2\xB8", "\xC2\xBB", "\xC2\xA1" }; /* as the file writes E4 E5 B8 BB A1 */
    static const char raw[] = { '\xE4', '\xE5', '\xB8', '\xBB', '\xA1' };
    /* The first pair crosses an edge: with it the characters beside that edge cannot be started from. */
    static const char *const given[] = { "\xC2\xBB", "\xC3\xA4", "\xC3\xA4", "\xC2\xB8", "\xC3\xA4\xC2\xB8", "\xC2\xBB", "\xC2\xBB", "\xC2\xA1", "\xC3\xA5", "\xC2\xBB\xC2\xA1",
                                         "\xC3\xA4\xC2\xB8", "\xC2\xA1", NULL };
    static char sym[900][64], word[900];
    unsigned eligible = 0, not_eligible = 0;
    struct fo_rng r;
    fo_rng_seed(&r, 17);
    for (int draw = 0; draw < 40; draw++) {
        struct vocab v;
        struct naive naive;
        struct model m;
        vocab_init(&v);
        for (size_t k = 0; k < 5; k++) vocab_add(&v, bytes[k], NORMAL);
        naive_draw(&naive, &r, &v, bytes, 5, draw % 3 == 0 ? given : draw % 3 == 1 ? given + 2 : NULL);
        vocab_open(&v, &m);
        static const unsigned chars[] = { 0x4E3B, 0x5EE1, 0x4E21 };
        for (size_t i = 0; i < 3; i++) *(m.t->chars[chars[i]] != UINT32_MAX ? &eligible : &not_eligible) += 1;
        for (int round = 0; round < 40; round++) {
            size_t n = 0, most = round % 4 ? 3 + fo_rng_u64(&r) % 40 : 300 + fo_rng_u64(&r) % 590;
            while (n + 3 <= most) {
                uint64_t kind = fo_rng_u64(&r) % 12;
                if (kind == 0) word[n++] = 'a';
                else if (kind < 9) n += (size_t)snprintf(word + n, 4, "%s", kind < 4 ? "\xE4\xB8\xBB" : kind < 7 ? "\xE5\xBB\xA1" : "\xE4\xB8\xA1");
                else for (int b = 0; b < 3; b++) word[n++] = raw[b ? 2 + fo_rng_u64(&r) % 3 : fo_rng_u64(&r) % 2];
            }
            struct fo_tok_ids ids = { 0 };
            struct fo_err e;
            for (size_t i = 0; i < n; i++) {
                snprintf(sym[i], sizeof sym[i], "a");
                for (size_t k = 0; k < 5; k++)
                    if (word[i] == raw[k]) snprintf(sym[i], sizeof sym[i], "%s", bytes[k]);
            }
            assert_int_equal(fo_tok_encode(m.t, word, n, NULL, 0, 0, &ids, &e), 0);
            size_t want = naive_merge(&naive, sym, n);
            assert_int_equal(ids.n, want);
            for (size_t i = 0; i < want; i++) assert_int_equal(ids.ids[i], fo_tok_find(m.t, sym[i], strlen(sym[i])));
            free(ids.ids);
        }
        model_close(&m);
    }
    print_message("%u characters started from, %u not\n", eligible, not_eligible);
    assert_true(eligible > 10 && not_eligible > 10);
}

static void remembers_words_within_a_text_without_changing_them(void **state) {
    (void)state;
    struct vocab v;
    struct naive naive;
    struct model m;
    struct fo_rng r;
    struct fo_err e;
    struct fo_tok_ids whole = { 0 }, part = { 0 };
    enum { N = 20000 };
    static char text[N];
    fo_rng_seed(&r, 3);
    vocab_init(&v);
    naive_draw(&naive, &r, &v, letters4, 4, NULL);
    vocab_open(&v, &m);
    for (size_t i = 0; i < N; i++) text[i] = fo_rng_u64(&r) % 4 ? (char)('a' + fo_rng_u64(&r) % 4) : ' ';
    assert_int_equal(fo_tok_encode(m.t, text, N, NULL, 0, 0, &whole, &e), 0);
    size_t at = 0;
    for (size_t i = 0, end; i < N; i = end) { /* word by word: too short to remember anything */
        for (end = i + 1; end < N && (text[end] != ' ' || text[end - 1] == ' '); end++) {}
        while (end < N && text[end] == ' ' && end + 1 < N && text[end + 1] == ' ') end++; /* a run of spaces leaves one to the word */
        assert_int_equal(fo_tok_encode(m.t, text + i, end - i, NULL, 0, 0, &part, &e), 0);
        assert_true(at + part.n <= whole.n);
        assert_memory_equal(whole.ids + at, part.ids, part.n * sizeof *part.ids);
        at += part.n;
        free(part.ids);
    }
    assert_int_equal(at, whole.n);
    free(whole.ids);
    model_close(&m);
}

static void special_vocab(struct vocab *v, struct model *m) {
    vocab_init(v);
    vocab_add(v, "<|im_start|>", CONTROL);
    vocab_add(v, "<|im_end|>", CONTROL);
    vocab_add(v, "<|im|>", CONTROL);
    vocab_add(v, "<|im|><|im|>", USER);
    vocab_add(v, "<think>", USER);
    vocab_add(v, "<unk>", UNKNOWN);
    vocab_open(v, m);
}

static void matches_special_tokens_only_when_asked(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    special_vocab(&v, &m);
    assert_string_equal(shown(m.t, "a<|im_end|>b", NULL, FO_TOK_SPECIAL), "[a][<|im_end|>][b]");
    assert_string_equal(shown(m.t, "<|im|>", NULL, 0), "[<][|][i][m][|][>]");
    assert_string_equal(shown(m.t, "<unk>", NULL, 0), "[<][u][n][k][>]");
    assert_string_equal(shown(m.t, "<unk>", NULL, FO_TOK_SPECIAL), "[<unk>]");
    assert_string_equal(shown(m.t, "a<think>", NULL, 0), "[a][<think>]");
    assert_string_equal(shown(m.t, "<|im_end|<|im|>", NULL, FO_TOK_SPECIAL), "[<][|][i][m][_][e][n][d][|][<|im|>]");
    model_close(&m);
}

static void prefers_the_longest_special_token_that_may_match(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    special_vocab(&v, &m);
    assert_string_equal(shown(m.t, "<|im|><|im|><|im|>", NULL, FO_TOK_SPECIAL), "[<|im|><|im|>][<|im|>]");
    assert_string_equal(shown(m.t, "<|im|><|im|", NULL, FO_TOK_SPECIAL), "[<|im|>][<][|][i][m][|]");
    model_close(&m);
}

static void never_makes_a_control_token_of_what_a_user_wrote(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    special_vocab(&v, &m);
    assert_string_equal(shown(m.t, "<|im|>x<|im|>", "tttttttuuuuuu", FO_TOK_SPECIAL), "[<|im|>][x][<][|][i][m][|][>]");
    /* One byte of a user is enough, wherever it stands: a template cannot be tricked into completing a token. */
    for (int i = 0; i < 6; i++) {
        char marks[7] = "tttttt";
        marks[i] = 'u';
        assert_string_equal(shown(m.t, "<|im|>", marks, FO_TOK_SPECIAL), "[<][|][i][m][|][>]");
    }
    /* A user-defined token is ordinary text that has a token, for anyone; a control token inside it does not matter. */
    assert_string_equal(shown(m.t, "<|im|><|im|>", "uuuuuuuuuuuu", FO_TOK_SPECIAL), "[<|im|><|im|>]");
    assert_string_equal(shown(m.t, "<|im|><|im|x", "ttttttuuuuuu", FO_TOK_SPECIAL), "[<|im|>][<][|][i][m][|][x]");
    model_close(&m);
}

static void never_merges_text_into_a_control_token(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    vocab_init(&v);
    vocab_add(&v, "st", NORMAL);
    vocab_add(&v, "op", NORMAL);
    vocab_add(&v, "stop", CONTROL);
    vocab_merge(&v, "s t");
    vocab_merge(&v, "o p");
    vocab_merge(&v, "st op");
    vocab_open(&v, &m);
    assert_string_equal(shown(m.t, "stop", NULL, 0), "[st][op]");
    assert_string_equal(shown(m.t, "stop", "uuuu", FO_TOK_SPECIAL), "[st][op]");
    assert_string_equal(shown(m.t, "stop", NULL, FO_TOK_SPECIAL), "[stop]");
    model_close(&m);
}

static void an_end_token_is_control_even_where_the_file_says_user_defined(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    vocab_init(&v);
    int32_t end = vocab_add(&v, "<|im_end|>", USER), plain = vocab_add(&v, "</s>", NORMAL), control = vocab_add(&v, "<|eot_id|>", CONTROL);
    int32_t start = vocab_add(&v, "<|im_start|>", CONTROL);
    vocab_open(&v, &m);
    assert_true(fo_tok_is_end(m.t, end));
    assert_true(fo_tok_is_control(m.t, end));
    assert_true(fo_tok_is_end(m.t, control));
    assert_false(fo_tok_is_end(m.t, plain)); /* plain text that looks like one */
    assert_false(fo_tok_is_end(m.t, start));
    assert_false(fo_tok_is_end(m.t, -1));
    assert_false(fo_tok_is_end(m.t, (int32_t)v.n));
    assert_false(fo_tok_is_control(m.t, INT32_MIN));
    assert_string_equal(shown(m.t, "<|im_end|>", "uuuuuuuuuu", FO_TOK_SPECIAL), "[<][|][i][m][_][e][n][d][|][>]");
    model_close(&m);
}

static void reads_bos_eos_and_whether_to_add_them(void **state) {
    (void)state;
    struct vocab v;
    struct test_gguf w;
    struct model m;
    struct fo_err e;
    vocab_init(&v);
    int32_t bos = vocab_add(&v, "<s>", CONTROL), eos = vocab_add(&v, "</end>", CONTROL), eot = vocab_add(&v, "<eot>", CONTROL);
    vocab_open(&v, &m); /* no keys at all */
    assert_int_equal(fo_tok_bos(m.t), -1);
    assert_int_equal(fo_tok_eos(m.t), -1);
    assert_false(fo_tok_add_bos(m.t));
    assert_string_equal(shown(m.t, "a", NULL, FO_TOK_ADD), "[a]");
    model_close(&m);

    vocab_write(&v, &w);
    test_gguf_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    test_gguf_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    test_gguf_u32(&w, "tokenizer.ggml.eot_token_id", (uint32_t)eot);
    test_gguf_u32(&w, "tokenizer.ggml.eom_token_id", UINT32_MAX); /* none */
    test_gguf_bool(&w, "tokenizer.ggml.add_bos_token", true);
    test_gguf_bool(&w, "tokenizer.ggml.add_eos_token", true);
    assert_int_equal(model_open(&m, &w, &e), 0);
    assert_true(fo_tok_add_bos(m.t) && fo_tok_add_eos(m.t));
    assert_true(fo_tok_is_end(m.t, eos) && fo_tok_is_end(m.t, eot));
    assert_string_equal(shown(m.t, "a", NULL, FO_TOK_ADD), "[<s>][a][</end>]");
    assert_string_equal(shown(m.t, "", NULL, FO_TOK_ADD), "[<s>][</end>]");
    assert_string_equal(shown(m.t, "a", NULL, 0), "[a]");
    model_close(&m);

    vocab_write(&v, &w); /* adding what does not exist */
    test_gguf_bool(&w, "tokenizer.ggml.add_bos_token", true);
    assert_int_equal(model_open(&m, &w, &e), 0);
    assert_false(fo_tok_add_bos(m.t));
    model_close(&m);
}

static void refuses_more_tokens_than_allowed_with_both_numbers(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    struct fo_err e;
    struct fo_tok_ids ids = { NULL, 77 };
    static char text[200000];
    vocab_init(&v);
    vocab_open(&v, &m);
    memset(text, 'a', sizeof text);
    assert_int_equal(fo_tok_encode(m.t, text, 10, NULL, 0, 9, &ids, &e), FO_ELIMIT);
    assert_int_equal(e.need, 10);
    assert_int_equal(e.have, 9);
    assert_int_equal(ids.n, 77); /* untouched */
    assert_int_equal(fo_tok_encode(m.t, text, 10, NULL, 0, 10, &ids, &e), 0);
    assert_int_equal(ids.n, 10);
    free(ids.ids);
    /* One enormous word is refused before it is merged: no allocation of its size. */
    test_fail_alloc(0);
    assert_int_equal(fo_tok_encode(m.t, text, sizeof text, NULL, 0, 100, &ids, &e), FO_ELIMIT);
    assert_true(e.need > 100 && e.have == 100);
    assert_true(test_allocs() <= 3);
    model_close(&m);
}

static void gives_back_every_byte_where_the_vocabulary_has_all(void **state) {
    (void)state;
    static const char *const folders[] = { "tests/data/tokenizers/bpe352-qwen2", "tests/data/tokenizers/spm352" };
    struct fo_rng r;
    fo_rng_seed(&r, 9);
    for (size_t f = 0; f < 2; f++) {
        struct model m = { .g = NULL };
        struct fo_err e;
        assert_true(test_vocab_load(folders[f], &m.file));
        assert_int_equal(fo_gguf_parse(m.file.data, m.file.len, "x", &m.g, &e), 0);
        assert_int_equal(fo_tok_open(m.g, &m.t, &e), 0);
        for (int round = 0; round < 2000; round++) {
            char text[64];
            size_t n = fo_rng_u64(&r) % sizeof text;
            struct fo_tok_ids ids = { 0 };
            struct fo_buf out;
            for (size_t i = 0; i < n; i++) text[i] = (char)(round % 2 ? fo_rng_u64(&r) : 0x20 + fo_rng_u64(&r) % 0x5F);
            assert_int_equal(fo_tok_encode(m.t, text, n, NULL, 0, 0, &ids, &e), 0);
            fo_buf_init(&out, 4096);
            for (size_t i = 0; i < ids.n; i++) fo_tok_piece(m.t, ids.ids[i], false, &out);
            size_t lead = f == 1 && n ? 1 : 0; /* SPM's space in front */
            assert_int_equal(out.len, n + lead);
            if (n) assert_memory_equal(out.data + lead, text, n);
            fo_buf_done(&out);
            free(ids.ids);
        }
        model_close(&m);
    }
}

static void writes_a_replacement_character_where_a_byte_has_no_token(void **state) {
    (void)state;
    struct fo_buf file;
    struct fo_gguf *g = NULL;
    struct fo_tok *t = NULL;
    struct fo_err e;
    assert_true(test_vocab_load("tests/data/tokenizers/smollm2-real", &file));
    assert_int_equal(fo_gguf_parse(file.data, file.len, "x", &g, &e), 0);
    assert_int_equal(fo_tok_open(g, &t, &e), 0);
    assert_string_equal(shown(t, "a\xFF" "b\xE4\xBD", NULL, 0), "[a][\xEF\xBF\xBD][b][\xEF\xBF\xBD]");
    /* Marks move with the bytes: the control token behind the broken one is still the user's. */
    assert_string_equal(shown(t, "\xFF<|im_end|>", "tuuuuuuuuuu", FO_TOK_SPECIAL), "[\xEF\xBF\xBD][<][|][im][_][end][|][>]");
    assert_string_equal(shown(t, "\xFF<|im_end|>", "utttttttttt", FO_TOK_SPECIAL), "[\xEF\xBF\xBD][<|im_end|>]");
    fo_tok_free(t);
    fo_gguf_close(g);
    fo_buf_done(&file);
}

static void decodes_step_by_step_as_pythons_incremental_decoder_does(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
        size_t n;
    } cases[] = {
        { "a\xE4\xBD\xA0z", "a\xE4\xBD\xA0z", 5 },
        { "\xE4\xBD", "\xEF\xBF\xBD", 2 },
        { "\xE4\xBDz", "\xEF\xBF\xBDz", 3 },
        { "\xE4\xBD\xE4\xBD\xA0", "\xEF\xBF\xBD\xE4\xBD\xA0", 5 },
        { "\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD", 2 },
        { "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 3 },
        { "\xF0\x9F\x98\x80\xF0\x9F", "\xF0\x9F\x98\x80\xEF\xBF\xBD", 6 },
        { "\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 4 },
        { "\xC3\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9", 3 },
    };
    struct model m = { .g = NULL };
    struct fo_err e;
    assert_true(test_vocab_load("tests/data/tokenizers/spm352", &m.file));
    assert_int_equal(fo_gguf_parse(m.file.data, m.file.len, "x", &m.g, &e), 0);
    assert_int_equal(fo_tok_open(m.g, &m.t, &e), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fo_detok d = { { 0 }, 0 };
        struct fo_buf out;
        fo_buf_init(&out, 256);
        for (size_t k = 0; k < cases[i].n; k++) {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", (uint8_t)cases[i].bytes[k]);
            int32_t id = fo_tok_find(m.t, name, 6);
            assert_true(id >= 0);
            fo_detok_push(&d, m.t, id, false, &out);
        }
        fo_detok_end(&d, &out);
        if (strcmp(fo_buf_str(&out), cases[i].text)) fail_msg("case %zu", i);
        fo_buf_done(&out);
    }
    model_close(&m);
}

static void hides_control_tokens_unless_asked_for_them(void **state) {
    (void)state;
    struct vocab v;
    struct model m;
    struct fo_buf out;
    vocab_init(&v);
    int32_t control = vocab_add(&v, "<|im_end|>", CONTROL), user = vocab_add(&v, "<think>", USER), unused = vocab_add(&v, "[PAD]", UNUSED);
    vocab_open(&v, &m);
    fo_buf_init(&out, 256);
    fo_tok_piece(m.t, control, false, &out);
    fo_tok_piece(m.t, unused, true, &out);
    fo_tok_piece(m.t, -1, true, &out);
    fo_tok_piece(m.t, (int32_t)v.n, true, &out);
    assert_int_equal(out.len, 0);
    fo_tok_piece(m.t, control, true, &out);
    fo_tok_piece(m.t, user, false, &out);
    assert_string_equal(fo_buf_str(&out), "<|im_end|><think>");
    fo_buf_done(&out);
    model_close(&m);
}

/* --- hostile metadata ------------------------------------------------------------------------ */

enum flaw {
    NO_MODEL, ODD_MODEL, ODD_PRE, NO_TOKENS, EMPTY_TOKENS, TOKENS_OF_INTS, SHORT_TYPES, LONG_TYPES, TYPES_OF_STRINGS, NO_MERGES, MERGES_OF_INTS,
    BOS_OUT_OF_RANGE, EOS_OUT_OF_RANGE, BOS_A_STRING, ADD_BOS_A_STRING, NO_BYTES, SPM_NO_SCORES, SPM_SHORT_SCORES, N_FLAWS
};

static void refuses_broken_metadata_and_names_the_key(void **state) {
    (void)state;
    static const struct {
        enum fo_code code;
        const char *says;
    } want[N_FLAWS] = {
        [NO_MODEL] = { FO_ENOENT, "tokenizer.ggml.model" },
        [ODD_MODEL] = { FO_EUNSUPPORTED, "'odd'" },
        [ODD_PRE] = { FO_EUNSUPPORTED, "'odd'" },
        [NO_TOKENS] = { FO_EFORMAT, "tokenizer.ggml.tokens" },
        [EMPTY_TOKENS] = { FO_EFORMAT, "tokenizer.ggml.tokens" },
        [TOKENS_OF_INTS] = { FO_EFORMAT, "tokenizer.ggml.tokens" },
        [SHORT_TYPES] = { FO_EFORMAT, "tokenizer.ggml.token_type" },
        [LONG_TYPES] = { FO_EFORMAT, "tokenizer.ggml.token_type" },
        [TYPES_OF_STRINGS] = { FO_EFORMAT, "tokenizer.ggml.token_type" },
        [NO_MERGES] = { FO_EFORMAT, "tokenizer.ggml.merges" },
        [MERGES_OF_INTS] = { FO_EFORMAT, "tokenizer.ggml.merges" },
        [BOS_OUT_OF_RANGE] = { FO_EFORMAT, "tokenizer.ggml.bos_token_id" },
        [EOS_OUT_OF_RANGE] = { FO_EFORMAT, "tokenizer.ggml.eos_token_id" },
        [BOS_A_STRING] = { FO_EFORMAT, "tokenizer.ggml.bos_token_id" },
        [ADD_BOS_A_STRING] = { FO_EFORMAT, "tokenizer.ggml.add_bos_token" },
        [NO_BYTES] = { FO_EFORMAT, "tokenizer.ggml.tokens" },
        [SPM_NO_SCORES] = { FO_EFORMAT, "tokenizer.ggml.scores" },
        [SPM_SHORT_SCORES] = { FO_EFORMAT, "tokenizer.ggml.scores" },
    };
    static const char *const tokens[] = { "a", "b", "ab" }, *const unreal[] = { "\xE4\xBD\xA0", "longer", "" }, *const merges[] = { "a b" };
    static const int32_t ints[] = { 1, 1, 1, 1 };
    static const float floats[] = { 0, -1 };
    for (enum flaw f = 0; f < N_FLAWS; f++) {
        struct test_gguf w;
        struct model m;
        struct fo_err e = { 0 };
        bool spm = f == SPM_NO_SCORES || f == SPM_SHORT_SCORES;
        test_gguf_init(&w, 3);
        if (f != NO_MODEL) test_gguf_str(&w, "tokenizer.ggml.model", f == ODD_MODEL ? "odd" : spm ? "llama" : "gpt2");
        if (f == ODD_PRE) test_gguf_str(&w, "tokenizer.ggml.pre", "odd");
        if (f == TOKENS_OF_INTS) test_gguf_i32s(&w, "tokenizer.ggml.tokens", ints, 3);
        else if (f != NO_TOKENS) test_gguf_strs(&w, "tokenizer.ggml.tokens", f == NO_BYTES ? unreal : tokens, f == EMPTY_TOKENS ? 0 : 3);
        if (f == TYPES_OF_STRINGS) test_gguf_strs(&w, "tokenizer.ggml.token_type", tokens, 3);
        else test_gguf_i32s(&w, "tokenizer.ggml.token_type", ints, f == SHORT_TYPES ? 2 : f == LONG_TYPES ? 4 : 3);
        if (f == MERGES_OF_INTS) test_gguf_i32s(&w, "tokenizer.ggml.merges", ints, 3);
        else if (f != NO_MERGES) test_gguf_strs(&w, "tokenizer.ggml.merges", merges, 1);
        if (f == BOS_OUT_OF_RANGE) test_gguf_u32(&w, "tokenizer.ggml.bos_token_id", 3);
        if (f == EOS_OUT_OF_RANGE) test_gguf_u32(&w, "tokenizer.ggml.eos_token_id", 0x80000000u);
        if (f == BOS_A_STRING) test_gguf_str(&w, "tokenizer.ggml.bos_token_id", "1");
        if (f == ADD_BOS_A_STRING) test_gguf_str(&w, "tokenizer.ggml.add_bos_token", "yes");
        if (f == SPM_SHORT_SCORES) test_gguf_f32s(&w, "tokenizer.ggml.scores", floats, 2);
        int rc = model_open(&m, &w, &e);
        if (rc != (int)want[f].code || m.t || !strstr(e.msg, want[f].says)) fail_msg("flaw %d: %d '%s'", (int)f, rc, e.msg);
        model_close(&m);
    }
}

static void lives_with_vocabularies_that_make_little_sense(void **state) {
    (void)state;
    static const char *const tokens[] = { "a", "b", "ab", "ab", "", "a", "\xFF", "<|im_end|>", "<|im_end|>", "c\xE4", "\xBD\xA0", "c\xE4\xBD\xA0", "abab" };
    static const int32_t types[] = { 1, 1, 1, 1, 1, 3, 1, 3, 4, 1, 1, 1, 99 };
    static const char *const merges[] = { "a b", "a b", "", " ", "a", "a ", " b", "x y", "a x", "ab ab", "b  a", "c\xE4 \xBD\xA0", "a b c", "ab  " };
    struct test_gguf w;
    struct model m;
    struct fo_err e;
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "tokenizer.ggml.model", "gpt2");
    test_gguf_strs(&w, "tokenizer.ggml.tokens", tokens, sizeof tokens / sizeof tokens[0]);
    test_gguf_i32s(&w, "tokenizer.ggml.token_type", types, sizeof types / sizeof types[0]);
    test_gguf_strs(&w, "tokenizer.ggml.merges", merges, sizeof merges / sizeof merges[0]);
    if (model_open(&m, &w, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_tok_n_vocab(m.t), 13);
    assert_int_equal(fo_tok_find(m.t, "ab", 2), 2); /* the first of equal texts */
    assert_int_equal(fo_tok_find(m.t, "", 0), -1);
    assert_string_equal(shown(m.t, "abababab", NULL, 0), "[abab][abab]");
    assert_string_equal(shown(m.t, "zzaxb<|im_end|>", NULL, FO_TOK_SPECIAL), "[a][b][<|im_end|>]"); /* bytes without a token vanish */
    assert_string_equal(shown(m.t, "c\xE4\xBD\xA0", NULL, 0), "");
    model_close(&m);
}

static void survives_running_out_of_memory_at_any_point(void **state) {
    (void)state;
    static const char *const folders[] = { "tests/data/tokenizers/bpe352-smollm", "tests/data/tokenizers/spm352-phi3" };
    enum { N = 6000 };
    static char text[N];
    for (size_t i = 0; i < N; i++) text[i] = i < 300 ? 'a' : "the \xFFquick<s> fox "[i % 18];
    for (size_t f = 0; f < 2; f++) {
        struct fo_buf file;
        struct fo_gguf *g = NULL;
        struct fo_err e;
        assert_true(test_vocab_load(folders[f], &file));
        assert_int_equal(fo_gguf_parse(file.data, file.len, "x", &g, &e), 0);
        struct fo_tok *t = NULL;
        bool failed = true;
        for (long n = 1; failed; n++) {
            test_fail_alloc(n);
            int rc = fo_tok_open(g, &t, &e);
            failed = test_alloc_failed();
            assert_int_equal(rc, failed ? FO_ENOMEM : 0);
            assert_true(failed ? t == NULL : t != NULL);
        }
        struct fo_tok_ids ids = { NULL, 0 }, want = { NULL, 0 };
        assert_int_equal(fo_tok_encode(t, text, N, NULL, FO_TOK_SPECIAL, 0, &want, &e), 0);
        failed = true;
        for (long n = 1; failed; n++) {
            test_fail_alloc(n);
            int rc = fo_tok_encode(t, text, N, NULL, FO_TOK_SPECIAL, 0, &ids, &e);
            failed = test_alloc_failed();
            if (rc) {
                assert_int_equal(rc, FO_ENOMEM);
                continue;
            }
            /* Without memory to remember words the text is merged anew, with the same result. */
            assert_int_equal(ids.n, want.n);
            assert_memory_equal(ids.ids, want.ids, want.n * sizeof *want.ids);
            free(ids.ids);
        }
        free(want.ids);
        fo_tok_free(t);
        fo_gguf_close(g);
        fo_buf_done(&file);
    }
}

static void encodes_a_hostile_megabyte_in_a_few_seconds_at_most(void **state) {
    (void)state;
    static const char *const folders[] = { "tests/data/tokenizers/smollm2-real", "tests/data/tokenizers/spm768" };
    static const char *const parts[] = { "a", " ", "\xCC\x81", "<|im_start|", "\n", "<", "\xFF" };
    enum { N = 1 << 20 };
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t f = 0; f < 2; f++) {
        struct model m = { .g = NULL };
        struct fo_err e;
        assert_true(test_vocab_load(folders[f], &m.file));
        assert_int_equal(fo_gguf_parse(m.file.data, m.file.len, "x", &m.g, &e), 0);
        assert_int_equal(fo_tok_open(m.g, &m.t, &e), 0);
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            struct fo_tok_ids ids = { 0 };
            size_t len = strlen(parts[k]);
            struct timespec before, after;
            for (size_t i = 0; i < N; i++) text[i] = parts[k][i % len];
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
            assert_int_equal(fo_tok_encode(m.t, text, N, NULL, FO_TOK_SPECIAL, 0, &ids, &e), 0);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
            assert_true(ids.n > 0);
            assert_true(after.tv_sec - before.tv_sec < 10); /* quadratic would be hours; a sanitizer and a slow machine fit */
            free(ids.ids);
        }
        model_close(&m);
    }
    free(text);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_the_earliest_pair_first_and_the_leftmost_of_equals),
        cmocka_unit_test(merges_words_of_every_length_as_the_definition_says),
        cmocka_unit_test(starts_from_characters_only_where_that_changes_nothing),
        cmocka_unit_test(remembers_words_within_a_text_without_changing_them),
        cmocka_unit_test(matches_special_tokens_only_when_asked),
        cmocka_unit_test(prefers_the_longest_special_token_that_may_match),
        cmocka_unit_test(never_makes_a_control_token_of_what_a_user_wrote),
        cmocka_unit_test(never_merges_text_into_a_control_token),
        cmocka_unit_test(an_end_token_is_control_even_where_the_file_says_user_defined),
        cmocka_unit_test(reads_bos_eos_and_whether_to_add_them),
        cmocka_unit_test(refuses_more_tokens_than_allowed_with_both_numbers),
        cmocka_unit_test(gives_back_every_byte_where_the_vocabulary_has_all),
        cmocka_unit_test(writes_a_replacement_character_where_a_byte_has_no_token),
        cmocka_unit_test(decodes_step_by_step_as_pythons_incremental_decoder_does),
        cmocka_unit_test(hides_control_tokens_unless_asked_for_them),
        cmocka_unit_test(refuses_broken_metadata_and_names_the_key),
        cmocka_unit_test(lives_with_vocabularies_that_make_little_sense),
        cmocka_unit_test(survives_running_out_of_memory_at_any_point),
        cmocka_unit_test(encodes_a_hostile_megabyte_in_a_few_seconds_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
