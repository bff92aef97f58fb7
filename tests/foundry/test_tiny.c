/* The tiny models that other tests stand on: the same bytes everywhere, well-formed, refused when the numbers do not fit. */
#include "tests/support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"

static void every_served_type_makes_a_model(void **state) {
    (void)state;
    for (uint32_t d = 0; d < FO_N_DTYPES; d++) {
        const struct fo_dtype_info *info = fo_dtype_info(d);
        if (!info || !info->from_f32) continue;
        struct test_tiny t = test_tiny_default();
        struct fo_buf file;
        struct fo_gguf *g;
        struct fo_err e;
        t.dtype = d;
        t.tied = d & 1;
        t.chat_template = test_tiny_chatml();
        if (info->block == 256) t.n_embd = t.n_ff = 256;
        if (test_tiny_build(&t, &file, &e)) fail_msg("%s", e.msg);
        if (fo_gguf_parse(file.data, file.len, info->name, &g, &e)) fail_msg("%s", e.msg);
        const struct fo_gguf_tensor *q = fo_gguf_tensor(g, "blk.1.attn_k.weight");
        assert_non_null(q);
        assert_int_equal(q->t.type, d);
        assert_int_equal(q->t.ne[0], t.n_embd);
        assert_int_equal(q->t.ne[1], t.n_embd / 2);
        assert_int_equal(fo_gguf_tensor(g, "output.weight") != NULL, !t.tied);
        assert_int_equal(fo_gguf_find(g, "tokenizer.ggml.tokens")->n, t.n_vocab);
        fo_gguf_close(g);
        fo_buf_done(&file);
    }
}

static uint64_t fnv1a(const char *s, size_t n) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return h;
}

static void the_bytes_are_the_same_on_every_machine(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_buf a, b;
    struct fo_err e;
    assert_int_equal(test_tiny_build(&t, &a, &e), 0);
    t.seed = 2;
    assert_int_equal(test_tiny_build(&t, &b, &e), 0);
    assert_int_equal(a.len, b.len);
    assert_memory_not_equal(a.data, b.data, a.len);
    if (fnv1a(a.data, a.len) != 0x309e30a0260e1732u) fail_msg("the file hashes to 0x%016llx", (unsigned long long)fnv1a(a.data, a.len));
    fo_buf_done(&a);
    fo_buf_done(&b);
}

static void every_byte_has_its_own_token(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_buf file;
    struct fo_gguf *g;
    struct fo_err e;
    struct fo_str s, seen[512];
    assert_int_equal(test_tiny_build(&t, &file, &e), 0);
    assert_int_equal(fo_gguf_parse(file.data, file.len, "tiny", &g, &e), 0);
    uint64_t at = 0;
    int n = 0;
    for (; fo_gguf_array_str(fo_gguf_find(g, "tokenizer.ggml.tokens"), &at, &s); n++) {
        assert_true(s.len > 0);
        for (int i = 0; i < n; i++) assert_false(seen[i].len == s.len && memcmp(seen[i].s, s.s, s.len) == 0);
        seen[n] = s;
    }
    assert_int_equal(n, 512);
    assert_memory_equal(seen[3].s, "!", 1);
    assert_memory_equal(seen[97 - 33 + 3].s, "a", 1);
    assert_int_equal(seen[259].len, 3); /* U+0120 and "t" */
    assert_memory_equal(seen[259].s, "\xC4\xA0t", 3);
    fo_gguf_close(g);
    fo_buf_done(&file);
}

static void its_tokenizer_merges_words_and_knows_its_control_tokens(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_buf file, text;
    struct fo_gguf *g;
    struct fo_tok *tok;
    struct fo_tok_ids ids;
    struct fo_err e;
    static const char said[] = "Hello you and the world\xC3\xA4\x01 in other<|im_end|>";
    assert_int_equal(test_tiny_build(&t, &file, &e), 0);
    assert_int_equal(fo_gguf_parse(file.data, file.len, "tiny", &g, &e), 0);
    if (fo_tok_open(g, &tok, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_tok_n_vocab(tok), t.n_vocab);
    assert_true(fo_tok_is_end(tok, 2) && fo_tok_is_control(tok, 1) && !fo_tok_is_control(tok, 3));
    if (fo_tok_encode(tok, said, sizeof said - 1, NULL, FO_TOK_SPECIAL, 0, &ids, &e)) fail_msg("%s", e.msg);
    assert_int_equal(ids.ids[ids.n - 1], 2);
    assert_true(ids.n < 18); /* words, not bytes */
    fo_buf_init(&text, 1000);
    for (size_t i = 0; i < ids.n; i++) fo_tok_piece(tok, ids.ids[i], true, &text);
    assert_string_equal(fo_buf_str(&text), said);
    fo_buf_done(&text);
    free(ids.ids);
    fo_tok_free(tok);
    fo_gguf_close(g);
    fo_buf_done(&file);
}

static void numbers_that_do_not_fit_are_refused(void **state) {
    (void)state;
    struct fo_buf file;
    struct fo_err e;
    struct test_tiny t = test_tiny_default();
    t.dtype = FO_Q4_K;
    assert_int_equal(test_tiny_build(&t, &file, &e), FO_EINVAL);
    t = test_tiny_default();
    t.n_head = 3;
    assert_int_equal(test_tiny_build(&t, &file, &e), FO_EINVAL);
    t = test_tiny_default();
    t.n_vocab = 100;
    assert_int_equal(test_tiny_build(&t, &file, &e), FO_EINVAL);
    t.tokenizer = false;
    assert_int_equal(test_tiny_build(&t, &file, &e), 0);
    fo_buf_done(&file);
    t.dtype = 77;
    assert_int_equal(test_tiny_build(&t, &file, &e), FO_EINVAL);
}

static void running_out_of_memory_is_an_error(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_buf file;
    struct fo_err e;
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int rc = test_tiny_build(&t, &file, &e);
        if (!test_alloc_failed()) break;
        assert_int_equal(rc, FO_ENOMEM);
    }
    fo_buf_done(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_served_type_makes_a_model),     cmocka_unit_test(the_bytes_are_the_same_on_every_machine),
        cmocka_unit_test(its_tokenizer_merges_words_and_knows_its_control_tokens),
        cmocka_unit_test(every_byte_has_its_own_token),        cmocka_unit_test(numbers_that_do_not_fit_are_refused),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
