/* Vocabularies for tests: see tok_vocab.h. */
#include "tests/support/tok_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/cursor.h"
#include "foundry/base/err.h"
#include "foundry/gguf_write.h"
#include "foundry/hf_tokenizer.h"
#include "tests/support/gguf_write.h"

bool test_file_load(const char *path, struct fo_buf *ret) {
    char chunk[65536];
    FILE *f = fopen(path, "rb");
    fo_buf_init(ret, (size_t)1 << 30);
    if (!f) return false;
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) fo_buf_append(ret, chunk, n);
    fclose(f);
    return !ret->failed;
}

static char *text_of(const void *a, size_t n, const void *b, size_t m) {
    char *s = malloc(n + m + 1);
    if (!s) abort();
    memcpy(s, a, n);
    memcpy(s + n, b, m);
    s[n + m] = '\0';
    return s;
}

static bool from_bin(const struct fo_buf *bin, struct fo_buf *ret) {
    struct fo_cursor c = fo_cursor_over(bin->data, bin->len);
    struct test_gguf w;
    uint32_t n_first = fo_cursor_u32(&c), n = n_first, n_merges;
    char **token = calloc(65536, sizeof *token), **merge = calloc(65536, sizeof *merge);
    int32_t *type = calloc(65536, sizeof *type);
    if (!token || !merge || !type || n_first > 65536) abort();
    for (uint32_t i = 0; i < n_first; i++) {
        type[i] = fo_cursor_u8(&c);
        uint16_t len = fo_cursor_u16(&c);
        const uint8_t *s = fo_cursor_take(&c, len);
        if (s) token[i] = text_of(s, len, "", 0);
    }
    n_merges = fo_cursor_u32(&c);
    for (uint32_t i = 0; i < n_merges && n < 65536; i++) {
        uint16_t a = fo_cursor_u16(&c), b = fo_cursor_u16(&c);
        if (a >= n || b >= n) abort();
        token[n] = text_of(token[a], strlen(token[a]), token[b], strlen(token[b]));
        char *left = text_of(token[a], strlen(token[a]), " ", 1);
        merge[i] = text_of(left, strlen(left), token[b], strlen(token[b]));
        type[n++] = 1;
        free(left);
    }
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_str(&w, "tokenizer.ggml.model", "gpt2");
    test_gguf_str(&w, "tokenizer.ggml.pre", "smollm");
    test_gguf_strs(&w, "tokenizer.ggml.tokens", (const char *const *)token, n);
    test_gguf_i32s(&w, "tokenizer.ggml.token_type", type, n);
    test_gguf_strs(&w, "tokenizer.ggml.merges", (const char *const *)merge, n_merges);
    test_gguf_u32(&w, "tokenizer.ggml.bos_token_id", 1);
    test_gguf_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    test_gguf_bool(&w, "tokenizer.ggml.add_bos_token", false);
    for (uint32_t i = 0; i < 65536; i++) free(token[i]), free(merge[i]);
    free(token);
    free(merge);
    free(type);
    return !c.bad && test_gguf_finish(&w, ret);
}

bool test_vocab_load(const char *folder, struct fo_buf *ret) {
    char path[4096];
    struct fo_buf bin;
    snprintf(path, sizeof path, "%s/vocab.gguf", folder);
    if (test_file_load(path, ret)) return true;
    snprintf(path, sizeof path, "%s/vocab.bin", folder);
    bool ok = test_file_load(path, &bin) && from_bin(&bin, ret);
    fo_buf_done(&bin);
    return ok;
}

int test_hf_load(const char *folder, struct fo_buf *ret, struct fo_err *e) {
    struct fo_gguf_writer w;
    fo_buf_init(ret, (size_t)1 << 30);
    fo_gguf_writer_init(&w, (size_t)1 << 30);
    fo_gguf_put_str(&w, "general.architecture", (struct fo_str){ "llama", 5 });
    int rc = fo_hf_tokenizer(folder, &w, e);
    if (!rc) rc = fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, ret, e);
    fo_gguf_writer_done(&w);
    return rc;
}
