/* Tokenizers against references made with HuggingFace tokenizers and llama.cpp: the committed cases, with GOLDENS=DIR in the environment
 * every case of DIR/tokenizers, and with VOCABS=DIR every vocabulary of DIR that has texts (tests/goldens/vocabs.py gets them). */
#include "foundry/tok.h"

#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "tests/support/tok_vocab.h"

static size_t from_hex(const char *hex, char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    return n;
}

static bool ids_equal(const json_t *want, const struct fo_tok_ids *have) {
    if (json_array_size(want) != have->n) return false;
    for (size_t i = 0; i < have->n; i++) {
        if (json_integer_value(json_array_get(want, i)) != have->ids[i]) return false;
    }
    return true;
}

/* For invalid UTF-8 references differ: any of theirs will do. */
static bool any_equal(const json_t *c, const struct fo_tok_ids *have) {
    static const char *const keys[] = { "ids_bytewise", "ids_llamacpp", "ids_hf_of_replaced_text" };
    const json_t *any = json_object_get(c, "any_of"), *one;
    bool known = json_array_size(any) > 0;
    for (size_t i = 0; i < json_array_size(any); i++) {
        if (ids_equal(json_array_get(any, i), have)) return true;
    }
    for (size_t i = 0; i < 3; i++) {
        if (!json_is_array(one = json_object_get(c, keys[i]))) continue;
        known = true;
        if (ids_equal(one, have)) return true;
    }
    return !known;
}

static int check_encode(const struct fo_tok *t, const json_t *c, const char *where) {
    static char text[1 << 20];
    struct fo_err e;
    struct fo_tok_ids have = { 0 };
    size_t n = from_hex(json_string_value(json_object_get(c, "hex")), text);
    unsigned flags = 0;
    if (json_is_true(json_object_get(c, "add_special"))) flags |= FO_TOK_ADD;
    if (json_is_true(json_object_get(c, "parse_special"))) flags |= FO_TOK_SPECIAL;
    char *exact = malloc(n + !n); /* so that a sanitizer sees a read past the end */
    memcpy(exact, text, n);
    if (fo_tok_encode(t, exact, n, NULL, flags, 0, &have, &e)) fail_msg("%s: %s", where, e.msg);
    free(exact);
    const json_t *want = json_object_get(c, "ids");
    bool ok = json_is_array(want) ? ids_equal(want, &have) : any_equal(c, &have);
    if (!ok) {
        print_message("%s: encode of %s (flags %u) gives", where, json_string_value(json_object_get(c, "hex")), flags);
        for (size_t i = 0; i < have.n; i++) print_message(" %d", have.ids[i]);
        print_message("\n");
    }
    free(have.ids);
    return ok;
}

static int check_decode(const struct fo_tok *t, const json_t *c, const char *where) {
    static char bytes[1 << 16];
    const json_t *ids = json_object_get(c, "ids"), *pieces = json_object_get(c, "pieces_hex"), *emit = json_object_get(c, "stream_emit");
    struct fo_detok d = { { 0 }, 0 };
    struct fo_buf out;
    bool ok = true;
    fo_buf_init(&out, 1 << 20);
    for (size_t i = 0; i < json_array_size(ids) && ok; i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, i));
        const char *want = json_string_value(json_array_get(emit, i));
        size_t n = from_hex(json_string_value(json_array_get(pieces, i)), bytes);
        fo_buf_clear(&out);
        fo_tok_piece(t, id, true, &out);
        ok = out.len == n && !memcmp(fo_buf_str(&out), bytes, n);
        fo_buf_clear(&out);
        fo_detok_push(&d, t, id, true, &out);
        ok = ok && out.len == json_string_length(json_array_get(emit, i)) && !memcmp(fo_buf_str(&out), want, out.len);
        if (!ok) print_message("%s: decode: token %d at %zu gives '%s'\n", where, id, i, fo_buf_str(&out));
    }
    fo_buf_clear(&out);
    fo_detok_end(&d, &out);
    if (ok && strcmp(fo_buf_str(&out), json_string_value(json_object_get(c, "stream_tail")))) {
        print_message("%s: decode: the tail is '%s'\n", where, fo_buf_str(&out));
        ok = false;
    }
    fo_buf_done(&out);
    return ok;
}

static void check_file(const struct fo_tok *t, const char *folder, const char *file,
                       int (*check)(const struct fo_tok *t, const json_t *c, const char *where)) {
    char path[4096];
    size_t n = 0, n_ok = 0, size = 0;
    char *line = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (getline(&line, &size, f) > 0) {
        json_error_t error;
        json_t *c = json_loads(line, JSON_ALLOW_NUL, &error);
        if (!c) fail_msg("%s: %s", path, error.text);
        n_ok += (size_t)check(t, c, path);
        n++;
        json_decref(c);
    }
    free(line);
    fclose(f);
    if (n_ok != n || !n) fail_msg("%s: %zu of %zu cases are equal", path, n_ok, n);
}

static void check_cases(const char *folder, const struct fo_buf *file, const char *where) {
    struct fo_err e;
    struct fo_gguf *g = NULL;
    struct fo_tok *t = NULL;
    if (fo_gguf_parse(file->data, file->len, where, &g, &e) || fo_tok_open(g, &t, &e)) fail_msg("%s: %s", where, e.msg);
    check_file(t, folder, "encode.jsonl", check_encode);
    check_file(t, folder, "decode.jsonl", check_decode);
    fo_tok_free(t);
    fo_gguf_close(g);
}

/* The GGUF, then the tokenizer.json beside it where there is one: both give the same. */
static bool check_folder(const char *folder, const struct fo_buf *file) {
    struct fo_err e;
    struct fo_buf made;
    check_cases(folder, file, folder);
    int rc = test_hf_load(folder, &made, &e);
    if (rc && rc != FO_ENOENT) fail_msg("%s", e.msg);
    if (!rc) check_cases(folder, &made, "tokenizer.json");
    fo_buf_done(&made);
    return !rc;
}

static void check_committed(void **state) {
    char folder[512];
    struct fo_buf file;
    snprintf(folder, sizeof folder, "tests/data/tokenizers/%s", (const char *)*state);
    assert_true(test_vocab_load(folder, &file));
    assert_int_equal(check_folder(folder, &file), strcmp(*state, "smollm2-real") != 0); /* all others have a tokenizer.json */
    fo_buf_done(&file);
}

/* --- random text ----------------------------------------------------------------------------------------------------------- */

static uint64_t xorshift(uint64_t *x, uint64_t n) {
    *x ^= *x >> 12;
    *x ^= *x << 25;
    *x ^= *x >> 27;
    return (*x * 2685821657736338717u >> 33) % n;
}

static uint64_t fold(uint64_t h, uint32_t v) {
    for (int i = 0; i < 4; i++, v >>= 8) h = (h ^ (v & 0xFF)) * 1099511628211u;
    return h;
}

/* One string of tests/gen/tok_random.py; returns its bytes. */
static size_t random_text(uint64_t *rng, char *out) {
    static const uint32_t ranges[][2] = { { 0x20, 0x7E }, { 0x20, 0x7E }, { 0x20, 0x7E }, { 0x61, 0x7A }, { 0x30, 0x39 }, { 0x09, 0x0D }, { 0xA0, 0x24F },
                                          { 0x391, 0x3A1 }, { 0x410, 0x44F }, { 0x5D0, 0x5EA }, { 0x621, 0x63A }, { 0x905, 0x939 }, { 0x300, 0x36F }, { 0x4E00, 0x9FA5 },
                                          { 0xAC00, 0xD7A3 }, { 0x1F600, 0x1F64F }, { 0x2010, 0x2027 }, { 0x2000, 0x200A }, { 0xFF10, 0xFF19 }, { 0x20, 0x20 } };
    size_t len = 0, n = 1 + xorshift(rng, 24);
    for (size_t i = 0; i < n; i++) {
        const uint32_t *r = ranges[xorshift(rng, sizeof ranges / sizeof *ranges)];
        uint32_t c = r[0] + (uint32_t)xorshift(rng, r[1] - r[0] + 1);
        int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const uint8_t lead[] = { 0, 0xC0, 0xE0, 0xF0 };
        out[len++] = (char)(lead[more] | c >> 6 * more);
        while (more--) out[len++] = (char)(0x80 | (c >> 6 * more & 0x3F));
    }
    return len;
}

/* pains 57: added tokens, spaces and rules of every kind, on 10,000 random strings for each tokenizer, against HuggingFace tokenizers:
 * the ids folded into one number, which tests/gen/tok_random.py prints. */
static void pain_57_random_text_has_the_references_ids(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t want;
    } rows[] = {
        { "bpe352-llama-bpe", 0xcded0e4da24ea839 }, { "bpe352-qwen2", 0xcded0e4da24ea839 }, { "bpe352-smollm", 0xcded0e4da24ea839 },
        { "bpe768-gpt-2", 0x335a7f07a7679ef9 },     { "spm352", 0xeed1269f067c7764 },       { "spm352-phi3", 0xeed1269f067c7764 },
        { "spm768", 0x4d3abd66cc5aed2f },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[512], text[128];
        struct fo_buf file;
        struct fo_err e;
        struct fo_gguf *g = NULL;
        struct fo_tok *t = NULL;
        uint64_t rng = 57, h = 14695981039346656037u;
        snprintf(folder, sizeof folder, "tests/data/tokenizers/%s", rows[i].name);
        assert_true(test_vocab_load(folder, &file));
        if (fo_gguf_parse(file.data, file.len, folder, &g, &e) || fo_tok_open(g, &t, &e)) fail_msg("%s: %s", folder, e.msg);
        for (int k = 0; k < 10000; k++) {
            struct fo_tok_ids ids;
            size_t n = random_text(&rng, text);
            assert_int_equal(fo_tok_encode(t, text, n, NULL, FO_TOK_SPECIAL, 0, &ids, &e), FO_OK);
            for (size_t j = 0; j < ids.n; j++) h = fold(h, (uint32_t)ids.ids[j]);
            h = fold(h, UINT32_MAX);
            free(ids.ids);
        }
        if (h != rows[i].want) fail_msg("%s: 0x%016llx", rows[i].name, (unsigned long long)h);
        fo_tok_free(t);
        fo_gguf_close(g);
        fo_buf_done(&file);
    }
}

static size_t heap_in_use(void) {
    struct mallinfo2 i = mallinfo2();
    return i.uordblks + i.hblkhd;
}

static void counts_the_heap_that_it_holds(void **state) {
    (void)state;
    static const char *const names[] = { "bpe352-llama-bpe", "bpe352-qwen2", "bpe352-smollm", "bpe768-gpt-2", "spm352", "spm352-phi3", "spm768", "smollm2-real" };
    if (heap_in_use() == 0) skip(); /* a sanitizer's allocator does not say */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char folder[512];
        struct fo_buf file;
        struct fo_err e;
        struct fo_gguf *g = NULL;
        struct fo_tok *t = NULL;
        snprintf(folder, sizeof folder, "tests/data/tokenizers/%s", names[i]);
        assert_true(test_vocab_load(folder, &file));
        if (fo_gguf_parse(file.data, file.len, folder, &g, &e)) fail_msg("%s: %s", folder, e.msg);
        size_t before = heap_in_use();
        if (fo_tok_open(g, &t, &e)) fail_msg("%s: %s", folder, e.msg);
        size_t held = heap_in_use() - before, said = fo_tok_bytes(t);
        /* what malloc adds to each block, pages of a block of its own, and small blocks that it keeps and counts as in use */
        size_t apart = said > held ? said - held : held - said;
        if (apart > said / 50 + 16384) fail_msg("%s holds %zu bytes and says %zu", names[i], held, said);
        fo_tok_free(t);
        fo_gguf_close(g);
        fo_buf_done(&file);
    }
}

static void equals_every_golden_of_the_folder_in_GOLDENS(void **state) {
    (void)state;
    char parent[2048], folder[3072], path[4096];
    const char *goldens = getenv("GOLDENS");
    if (!goldens) {
        print_message("GOLDENS is not set: only the committed cases ran\n");
        skip();
    }
    snprintf(parent, sizeof parent, "%s/tokenizers", goldens);
    DIR *d = opendir(parent);
    assert_non_null(d);
    unsigned n = 0, n_json = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        struct fo_buf file;
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
        snprintf(folder, sizeof folder, "%s/%s", parent, entry->d_name);
        snprintf(path, sizeof path, "%s/%s-vocab.gguf", folder, entry->d_name);
        assert_true(test_file_load(path, &file));
        n_json += check_folder(folder, &file);
        fo_buf_done(&file);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
    print_message("%u vocabularies are equal, %u of them from their tokenizer.json too\n", n, n_json);
    assert_true(n_json > 0);
}

/* llama.cpp's own test vocabularies: NAME.gguf with NAME.gguf.inp, texts with a line of `mark` between them, and NAME.gguf.out, the ids of
 * each text on a line. */
static void check_vocabulary(const char *folder, const char *name, unsigned *n_equal, unsigned *n_different) {
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char path[4096];
    struct fo_buf file, inp, out;
    struct fo_err e;
    struct fo_gguf *g = NULL;
    struct fo_tok *t = NULL;
    unsigned equal = 0, different = 0;
    snprintf(path, sizeof path, "%s/%s.inp", folder, name);
    bool has = test_file_load(path, &inp);
    snprintf(path, sizeof path, "%s/%s.out", folder, name);
    has = test_file_load(path, &out) && has;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!has) {
        print_message("vocabulary %s: left out: it has no texts\n", name);
    } else if (!test_file_load(path, &file) || fo_gguf_parse(file.data, file.len, path, &g, &e) || fo_tok_open(g, &t, &e)) {
        print_message("vocabulary %s: left out: %s\n", name, e.msg);
    } else {
        const char *line = fo_buf_str(&out);
        for (const char *from = fo_buf_str(&inp), *end = from; end; from = end + sizeof mark - 1) {
            struct fo_tok_ids ids = { 0 };
            end = strstr(from, mark);
            const char *after = strchr(line, '\n');
            if (!end && !*from && !*line) break; /* a mark behind the last text */
            assert_int_equal(fo_tok_encode(t, from, end ? (size_t)(end - from) : strlen(from), NULL, 0, 0, &ids, &e), 0);
            bool ok = true;
            for (size_t i = 0; i < ids.n && ok; i++) {
                char *next;
                ok = strtol(line, &next, 10) == ids.ids[i] && next > line && (!after || next <= after);
                line = next;
            }
            ok = ok && line[strspn(line, " ")] == (after ? '\n' : '\0');
            *(ok ? &equal : &different) += 1;
            free(ids.ids);
            line = after ? after + 1 : "";
        }
        print_message("vocabulary %s: %u equal, %u different\n", name, equal, different);
        fo_tok_free(t);
        fo_gguf_close(g);
    }
    if (has) fo_buf_done(&file);
    fo_buf_done(&inp);
    fo_buf_done(&out);
    *n_equal += equal;
    *n_different += different;
}

static void equals_every_vocabulary_of_the_folder_in_VOCABS(void **state) {
    (void)state;
    const char *folder = getenv("VOCABS");
    struct dirent **list;
    unsigned n_equal = 0, n_different = 0;
    if (!folder) {
        print_message("VOCABS is not set: no real vocabulary was read\n");
        skip();
    }
    int n = scandir(folder, &list, NULL, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(list[i]->d_name);
        if (len > 5 && !strcmp(list[i]->d_name + len - 5, ".gguf")) check_vocabulary(folder, list[i]->d_name, &n_equal, &n_different);
        free(list[i]);
    }
    free(list);
    assert_true(n_equal > 0);
    assert_int_equal(n_different, 0);
}

#define COMMITTED(name) { "equals_the_references_of_" name, check_committed, NULL, NULL, (void *)(uintptr_t)name }

int main(void) {
    static const struct CMUnitTest tests[] = {
        COMMITTED("smollm2-real"),
        COMMITTED("bpe352-smollm"),
        COMMITTED("bpe352-llama-bpe"),
        COMMITTED("bpe352-qwen2"),
        COMMITTED("bpe768-gpt-2"),
        COMMITTED("spm352"),
        COMMITTED("spm352-phi3"),
        COMMITTED("spm768"),
        cmocka_unit_test(pain_57_random_text_has_the_references_ids),
        cmocka_unit_test(counts_the_heap_that_it_holds),
        cmocka_unit_test(equals_every_golden_of_the_folder_in_GOLDENS),
        cmocka_unit_test(equals_every_vocabulary_of_the_folder_in_VOCABS),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
