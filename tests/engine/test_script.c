/* The scripted model: says its text whatever the batch, the chunks, the temperature or the die; through tokens, chat templates and the
 * scheduler; and files that are no scripts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/gguf_write.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { MIB = 1 << 20 };

static struct fo_device *cpu, *die;

static int open_dies(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct fo_device_opts o = { .n_threads = 1, .memory_bytes = 64 * MIB };
    if (fo_device_open("cpu", "", &o, &cpu, &e) || fo_device_open("sim", "s0", &o, &die, &e)) fail_msg("%s", e.msg);
    return 0;
}

static int close_dies(void **state) {
    (void)state;
    assert_int_equal(fo_device_contexts(die), 0);
    fo_device_close(cpu);
    fo_device_close(die);
    return 0;
}

static const char *write_script(const struct test_script *t) {
    struct fo_err e = { 0 };
    if (test_script_write(t, odd_path(0), &e)) fail_msg("%s", e.msg);
    return odd_path(0);
}

static struct pn_model *open_model(const char *path, struct fo_device *dev) {
    struct pn_model *m = NULL;
    struct fo_err e = { 0 };
    struct pn_model_opts o = { .dev = dev, .max_sessions = 2, .max_concurrent = 2, .max_batch = 16, .kv_default = true };
    if (pn_model_open(path, &o, &m, &e)) fail_msg("%s", e.msg);
    return m;
}

static int32_t best(const float *logits, uint32_t n) {
    int32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    for (uint32_t i = 0; i < n; i++) assert_true((int32_t)i == best || logits[i] < logits[best] - 1e6f); /* at any temperature */
    return best;
}

static uint32_t encode(const struct pn_model *m, const char *text, int32_t *ids, uint32_t cap) {
    struct fo_err e = { 0 };
    struct fo_tok_ids got = { 0 };
    if (fo_tok_encode(pn_model_tok(m), text, strlen(text), NULL, FO_TOK_SPECIAL, 0, &got, &e)) fail_msg("%s", e.msg);
    uint32_t n = (uint32_t)got.n;
    assert_true(n <= cap);
    memcpy(ids, got.ids, n * sizeof *ids);
    free(got.ids);
    return n;
}

/* What the model answers to a text (marks are tokens), up to its end token; prompts go in chunks of `chunk`. */
static void answer(struct pn_model *m, const char *prompt, uint32_t chunk, char *out, size_t size) {
    int32_t ids[1024];
    uint32_t n = encode(m, prompt, ids, 1024);
    struct pn_seq *s;
    struct fo_err e = { 0 };
    struct fo_buf text;
    float *logits = NULL;
    fo_buf_init(&text, 1 << 16);
    assert_int_equal(pn_seq_new(m, &s, &e), FO_OK);
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        struct pn_batch_item item = { s, ids + at, k, at + k == n ? PN_WANT_LAST : PN_WANT_NONE };
        if (pn_model_forward(m, &item, 1, &logits, &e)) fail_msg("%s", e.msg);
    }
    for (int i = 0; i < 500; i++) {
        int32_t id = best(logits, pn_model_info(m)->n_vocab);
        if (fo_tok_is_end(pn_model_tok(m), id)) break;
        fo_tok_piece(pn_model_tok(m), id, true, &text);
        struct pn_batch_item item = { s, &id, 1, PN_WANT_LAST };
        if (pn_model_forward(m, &item, 1, &logits, &e)) fail_msg("%s", e.msg);
    }
    snprintf(out, size, "%s", fo_buf_str(&text));
    fo_buf_done(&text);
    pn_seq_free(s);
}

#define USER(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"

static void says_its_text_whatever_the_prompt_and_its_chunks(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    t.text = "H\xc3\xa9llo, <tool>w\n\nworld</tool>.";
    t.specials[0] = "<tool>";
    t.specials[1] = "</tool>";
    t.n_specials = 2;
    const char *path = write_script(&t);
    char out[1024];
    for (int d = 0; d < 2; d++) {
        struct pn_model *m = open_model(path, d ? die : cpu);
        for (uint32_t chunk = 1; chunk <= 16; chunk += 5) {
            answer(m, USER("Say something."), chunk, out, sizeof out);
            assert_string_equal(out, t.text);
            answer(m, "No turns here, and it ends like the text begins: H", chunk, out, sizeof out); /* then it is taken as begun */
            assert_string_equal(out, t.text + 1);
            answer(m, "x", chunk, out, sizeof out);
            assert_string_equal(out, t.text);
        }
        answer(m, USER("Hi") "an answer of 18 ch", 16, out, sizeof out); /* a begun answer counts by its length */
        assert_string_equal(out, ".");
        pn_model_free(m);
    }
    unlink(path);
}

static void the_last_digit_of_the_prompt_chooses_the_script(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    t.text = "plain";
    t.cases[0] = "0123";
    t.cases[7] = "seven";
    const char *path = write_script(&t);
    struct pn_model *m = open_model(path, die);
    static const char *const cases[][2] = {
        { USER("hello"), "plain" },
        { USER("case 7"), "seven" },
        { USER("case 7, not 5"), "plain" },
        { USER("first 7 then 0"), "0123" }, /* the digits that it says itself change nothing */
        { USER("7") "0123<|im_end|>\n" USER("more"), "plain" },
        { "raw 7", "seven" },
        { "raw 0", "0123" },
        { "raw", "plain" },
    };
    char out[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        answer(m, cases[i][0], 16, out, sizeof out);
        if (strcmp(out, cases[i][1]) != 0) fail_msg("%s: %s", cases[i][0], out);
    }
    pn_model_free(m);
    unlink(path);
}

static void an_endless_script_repeats_its_last_token(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    t.text = "go";
    t.endless = true;
    const char *path = write_script(&t);
    struct pn_model *m = open_model(path, cpu);
    char out[1024];
    answer(m, USER("?"), 16, out, sizeof out);
    assert_int_equal(strlen(out), 500);
    assert_memory_equal(out, "gooooo", 6);
    pn_model_free(m);
    unlink(path);
}

static void every_row_of_a_batch_follows_its_own_sequence(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    t.text = "abcdef";
    t.cases[1] = "uvwxyz";
    const char *path = write_script(&t);
    struct fo_err e = { 0 };
    struct pn_model *m = NULL;
    struct pn_model_opts o = { .dev = die, .max_sessions = 2, .max_concurrent = 2, .max_batch = 16, .all_logits = true, .kv_default = true };
    if (pn_model_open(path, &o, &m, &e)) fail_msg("%s", e.msg);
    int32_t a[8], b[8];
    uint32_t n = pn_model_info(m)->n_vocab, n_a = encode(m, "abc", a, 8), n_b = encode(m, "1uv", b, 8);
    struct pn_seq *s[2];
    float *logits;
    for (int i = 0; i < 2; i++) assert_int_equal(pn_seq_new(m, &s[i], &e), FO_OK);
    struct pn_batch_item items[] = { { s[0], a, n_a, PN_WANT_ALL }, { s[1], b, n_b, PN_WANT_ALL } };
    if (pn_model_forward(m, items, 2, &logits, &e)) fail_msg("%s", e.msg);
    const char *want = "bcduvw";
    for (int i = 0; i < 6; i++) {
        int32_t id;
        char text[2] = { want[i], 0 };
        encode(m, text, &id, 1);
        assert_int_equal(best(logits + (size_t)i * n, n), id);
    }
    for (int i = 0; i < 2; i++) pn_seq_free(s[i]);
    pn_model_free(m);
    unlink(path);
}

static void takes_the_memory_that_it_states_and_no_room_on_disk(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    t.weights_bytes = 32 * MIB;
    t.kv_bytes_per_token = 8192;
    t.n_ctx = 1000;
    const char *path = write_script(&t);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size >= 32 * MIB);
    assert_true(st.st_blocks * 512 < 2 * MIB);
    struct pn_model *m = open_model(path, die);
    const struct pn_model_info *i = pn_model_info(m);
    assert_int_equal(i->kv_bytes_per_token, 8192);
    assert_true(i->parts[0].weights_bytes >= 32 * MIB && i->parts[0].weights_bytes < 33 * MIB);
    uint64_t total, left;
    struct fo_err e = { 0 };
    assert_int_equal(die->memory(die, &total, &left, &e), FO_OK);
    assert_int_equal(total - left, i->parts[0].weights_bytes + i->parts[0].kv_bytes + i->parts[0].scratch_bytes);
    pn_model_free(m);
    unlink(path);
}

static void is_served_like_any_other_at_its_pace(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    t.text = "Slowly.";
    t.pace_us = 3000;
    const char *path = write_script(&t);
    struct pn_engine *en;
    struct fo_err e = { 0 };
    assert_int_equal(pn_engine_new(&en, &e), FO_OK);
    struct pn_serve_opts o = { .name = "m", .model = { .dev = die, .kv_default = true, .max_concurrent = 2, .max_sessions = 2 } };
    if (pn_engine_load(en, path, &o, &e)) fail_msg("%s", e.msg);
    struct pn_served *s = pn_engine_get(en, "m");
    int32_t ids[64];
    uint32_t n = encode(pn_served_model(s), USER("Go"), ids, 64);
    static struct test_answer a;
    struct pn_request_opts ask = test_opts(ids, n, 100);
    ask.ignore_end = false;
    ask.sampling.temperature = 2;
    for (int i = 0; i < 2; i++) {
        test_ask(s, &ask, &a);
        assert_int_equal(a.code, 0);
        assert_string_equal(a.text, "Slowly.");
        assert_int_equal(a.finish, PN_FINISH_STOP);
        assert_true(a.usage.decode_ms >= 7 * 3 - 1); /* seven more steps behind the first token */
    }
    pn_served_put(s);
    pn_engine_free(en);
    unlink(path);
}

/* --- files that are none --- */

/* A complete little script, one key of which is `key` with a wrong value or missing. */
static void write_broken(const char *path, const char *key, const int32_t *ids, size_t n_ids) {
    struct test_gguf w;
    struct fo_buf file;
    float ones[4 * 8];
    for (int i = 0; i < 4 * 8; i++) ones[i] = 1;
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = { { "script.block_count", 1 }, { "script.context_length", 64 }, { "script.attention.head_count_kv", 1 }, { "script.attention.key_length", 4 } };
    static const int32_t good[] = { 1, 2, 3 };
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "script");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].key, key) != 0) test_gguf_u32(&w, keys[i].key, keys[i].value);
    if (strcmp(key, "script.tokens") != 0) test_gguf_i32s(&w, "script.tokens", good, 3);
    if (n_ids) test_gguf_i32s(&w, key, ids, n_ids);
    if (strcmp(key, "script.turn_token") == 0) test_gguf_u32(&w, key, 8);
    if (strcmp(key, "script.pace_us") == 0) test_gguf_u32(&w, key, UINT32_MAX);
    if (strcmp(key, "script.state_bytes") == 0) test_gguf_u32(&w, key, UINT32_MAX);
    if (strcmp(key, "script.case.3") == 0) test_gguf_str(&w, key, "text");
    if (strcmp(key, "token_embd.weight") != 0) test_gguf_tensor(&w, "token_embd.weight", FO_F32, (const uint64_t[]){ 4, 8 }, 2, ones, sizeof ones);
    if (strcmp(key, "blk.0.norm.weight") != 0) test_gguf_tensor(&w, "blk.0.norm.weight", FO_F32, (const uint64_t[]){ 4 }, 1, ones, 16);
    assert_true(test_gguf_finish(&w, &file));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file.data, 1, file.len, f), file.len);
    fclose(f);
    fo_buf_done(&file);
}

static void a_file_that_is_no_script_is_refused_by_its_fault(void **state) {
    (void)state;
    static const int32_t outside[] = { 1, 8 }, few[] = { 1, 2 };
    static const struct {
        const char *key;
        const int32_t *ids;
        size_t n;
        const char *says;
    } bad[] = {
        { "script.block_count", NULL, 0, "script.block_count" },
        { "script.context_length", NULL, 0, "script.context_length" },
        { "script.attention.head_count_kv", NULL, 0, "head_count_kv" },
        { "script.attention.key_length", NULL, 0, "key_length" },
        { "script.tokens", NULL, 0, "script.tokens is missing" },
        { "script.tokens", outside, 2, "8" },
        { "script.case.9", outside, 2, "script.case.9" },
        { "script.case.3", NULL, 0, "script.case.3" },
        { "script.digit_tokens", few, 2, "digit_tokens has 2" },
        { "script.turn_token", NULL, 0, "turn_token" },
        { "script.pace_us", NULL, 0, "pace_us" },
        { "script.state_bytes", NULL, 0, "state_bytes" },
        { "token_embd.weight", NULL, 0, "token_embd.weight" },
        { "blk.0.norm.weight", NULL, 0, "blk.0.norm.weight" },
    };
    const char *path = odd_path(1);
    struct pn_model_opts o = { .dev = cpu, .kv_default = true };
    struct fo_err e = { 0 };
    struct pn_model *m = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_broken(path, bad[i].key, bad[i].ids, bad[i].n);
        assert_int_equal(pn_model_open(path, &o, &m, &e), FO_EFORMAT);
        if (!strstr(e.msg, bad[i].says)) fail_msg("%s: %s", bad[i].key, e.msg);
    }
    write_broken(path, "", NULL, 0);
    if (pn_model_open(path, &o, &m, &e)) fail_msg("%s", e.msg);
    pn_model_free(m);
    long n = 1;
    for (;; n++) {
        test_fail_alloc(n);
        int rc = pn_model_open(path, &o, &m, &e);
        bool failed = test_alloc_failed();
        if (!rc) pn_model_free(m);
        if (!failed) break;
        if (rc) assert_int_equal(rc, FO_ENOMEM);
    }
    assert_true(n > 8);
    unlink(path);
}

static void the_writer_refuses_what_it_cannot_write(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct test_script t = test_script_default();
    t.n_layer = 0;
    assert_int_equal(test_script_write(&t, odd_path(2), &e), FO_EINVAL);
    t = test_script_default();
    t.text = "";
    assert_int_equal(test_script_write(&t, odd_path(2), &e), FO_EINVAL);
    t = test_script_default();
    assert_int_equal(test_script_write(&t, "/nonexistent/x.gguf", &e), FO_ENOENT);
    assert_int_equal(access(odd_path(2), F_OK), -1);
}

static int more(struct pn_model *m, struct pn_seq *s, const int32_t *ids, uint32_t n, float **ret, struct fo_err *e) {
    struct pn_batch_item it = { s, ids, n, PN_WANT_LAST };
    return pn_model_forward(m, &it, 1, ret, e);
}

/* Layers on two parts carry it from step to step; a step that fails leaves it as it was. */
static void a_state_that_does_not_belong_to_the_tokens_fails_the_step(void **state) {
    (void)state;
    struct test_script t = test_script_default();
    struct pn_model *m = NULL;
    struct pn_seq *s, *other;
    struct fo_err e = { 0 };
    float *logits;
    const int32_t ids[] = { 70, 71, 72, 73, 74, 75, 76, 77, 78, 79 };
    t.state_bytes = 100;
    struct pn_model_opts o = { .parts = { { die, 0, 1 }, { die, 1, 3 } }, .n_parts = 2, .max_sessions = 2, .max_concurrent = 2, .max_batch = 16, .kv_default = true };
    if (pn_model_open(write_script(&t), &o, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(pn_model_info(m)->state_bytes, (2 + PN_SEQ_BLOCKS * 2) * 4 * 128);
    assert_int_equal(pn_seq_new(m, &s, &e) | pn_seq_new(m, &other, &e), FO_OK);
    assert_int_equal(more(m, s, ids, 5, &logits, &e) | more(m, other, ids + 1, 5, &logits, &e) | more(m, s, ids + 5, 2, &logits, &e), FO_OK);
    s->tokens[3]++;
    assert_int_equal(more(m, s, ids + 7, 1, &logits, &e), FO_EINTERNAL);
    assert_non_null(strstr(e.msg, "the state of other tokens"));
    s->tokens[3]--;
    assert_int_equal(pn_seq_len(s), 7);
    assert_int_equal(more(m, s, ids + 7, 3, &logits, &e), FO_OK);
    uint32_t mine = s->state.block;
    s->state.block = other->state.block; /* another's */
    assert_int_equal(more(m, s, ids, 1, &logits, &e), FO_EINTERNAL);
    s->state.block = mine;
    assert_int_equal(more(m, s, ids, 1, &logits, &e) | more(m, other, ids, 1, &logits, &e), FO_OK);
    pn_seq_free(s);
    pn_seq_free(other);
    pn_model_free(m);
    unlink(odd_path(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_its_text_whatever_the_prompt_and_its_chunks),
        cmocka_unit_test(the_last_digit_of_the_prompt_chooses_the_script),
        cmocka_unit_test(an_endless_script_repeats_its_last_token),
        cmocka_unit_test(every_row_of_a_batch_follows_its_own_sequence),
        cmocka_unit_test(takes_the_memory_that_it_states_and_no_room_on_disk),
        cmocka_unit_test(is_served_like_any_other_at_its_pace),
        cmocka_unit_test(a_state_that_does_not_belong_to_the_tokens_fails_the_step),
        cmocka_unit_test(a_file_that_is_no_script_is_refused_by_its_fault),
        cmocka_unit_test(the_writer_refuses_what_it_cannot_write),
    };
    return cmocka_run_group_tests(tests, open_dies, close_dies);
}
