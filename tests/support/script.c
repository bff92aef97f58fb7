/* Scripted models: see script.h. */
#include "tests/support/script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/dtype.h"
#include "tests/support/gguf_write.h"
#include "tests/support/tiny.h"

enum { EMBD = 64, N_CONTROL = 3, IM_START = 1, IM_END = 2, N_BYTES = 256 };
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4 };

static const char *const control[N_CONTROL] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };

struct test_script test_script_default(void) {
    return (struct test_script){ .text = "Hello from a script.", .n_layer = 4, .n_ctx = 4096, .kv_bytes_per_token = 64, .chat_template = test_tiny_chatml() };
}

/* ids: control, specials, then the bytes in order. */
static int32_t byte_id(const struct test_script *t, unsigned char byte) {
    return N_CONTROL + t->n_specials + byte;
}

/* The special token that stands at s, the longest one; its length in *ret_len. -1 = none. */
static int32_t special_at(const struct test_script *t, const char *s, size_t *ret_len) {
    int32_t id = -1;
    *ret_len = 0;
    for (int i = 0; i < N_CONTROL + t->n_specials; i++) {
        const char *text = i < N_CONTROL ? control[i] : t->specials[i - N_CONTROL];
        size_t n = strlen(text);
        if (n <= *ret_len || strncmp(s, text, n) != 0) continue;
        id = i;
        *ret_len = n;
    }
    return id;
}

static bool put_text(struct test_gguf *w, const struct test_script *t, const char *key, const char *text) {
    int32_t *ids = malloc((strlen(text) + 1) * sizeof *ids);
    size_t n = 0, len;
    if (!ids) return false;
    for (const char *s = text; *s; s += len) {
        int32_t id = special_at(t, s, &len);
        if (id < 0) id = byte_id(t, (unsigned char)*s), len = 1;
        ids[n++] = id;
    }
    if (!t->endless) ids[n++] = IM_END;
    test_gguf_i32s(w, key, ids, n);
    free(ids);
    return true;
}

static bool put_tokenizer(struct test_gguf *w, const struct test_script *t) {
    size_t n = (size_t)(N_CONTROL + t->n_specials + N_BYTES);
    char bytes[N_BYTES][4] = { { 0 } };
    const char **list = calloc(n, sizeof *list);
    int32_t *types = calloc(n, sizeof *types);
    if (list && types) {
        for (size_t i = 0; i < n; i++) {
            size_t at = i - (n - N_BYTES);
            bool special = i < n - N_BYTES;
            types[i] = i < (size_t)(N_CONTROL + t->n_controls) ? TOKEN_CONTROL : special ? TOKEN_USER : TOKEN_NORMAL;
            if (!special) test_put_byte_char(bytes[at], (int)at);
            list[i] = i < N_CONTROL ? control[i] : special ? t->specials[i - N_CONTROL] : bytes[at];
        }
        test_gguf_str(w, "tokenizer.ggml.model", "gpt2");
        test_gguf_str(w, "tokenizer.ggml.pre", "smollm");
        test_gguf_strs(w, "tokenizer.ggml.tokens", list, n);
        test_gguf_i32s(w, "tokenizer.ggml.token_type", types, n);
        test_gguf_strs(w, "tokenizer.ggml.merges", list, 0);
        test_gguf_u32(w, "tokenizer.ggml.bos_token_id", IM_START);
        test_gguf_u32(w, "tokenizer.ggml.eos_token_id", IM_END);
        test_gguf_u32(w, "tokenizer.ggml.unknown_token_id", 0);
        test_gguf_bool(w, "tokenizer.ggml.add_bos_token", false);
    }
    bool good = list && types;
    free(list);
    free(types);
    return good;
}

/* Heads and their size so that K and V in F16 take at least `bytes` a token and layer. */
static void choose_heads(uint64_t bytes, uint32_t *ret_heads, uint32_t *ret_dim) {
    uint64_t elements = (bytes + 3) / 4;
    if (elements == 0) elements = 1;
    *ret_heads = (uint32_t)((elements + 1023) / 1024);
    *ret_dim = (uint32_t)((elements + *ret_heads - 1) / *ret_heads);
}

static bool put_model(struct test_gguf *w, const struct test_script *t) {
    uint32_t heads, dim;
    choose_heads((t->kv_bytes_per_token + t->n_layer - 1) / t->n_layer, &heads, &dim);
    test_gguf_str(w, "general.architecture", "script");
    test_gguf_str(w, "general.name", "script");
    test_gguf_u32(w, "script.block_count", t->n_layer);
    test_gguf_u32(w, "script.context_length", t->n_ctx);
    test_gguf_u32(w, "script.attention.head_count_kv", heads);
    test_gguf_u32(w, "script.attention.key_length", dim);
    if (t->state_bytes) test_gguf_u32(w, "script.state_bytes", t->state_bytes);
    test_gguf_u32(w, "script.pace_us", t->pace_us);
    test_gguf_u32(w, "script.row_us", t->row_us);
    test_gguf_u32(w, "script.turn_token", IM_START);
    test_gguf_u32(w, "script.newline_token", (uint32_t)byte_id(t, '\n'));
    int32_t digits[TEST_SCRIPT_CASES];
    for (int i = 0; i < TEST_SCRIPT_CASES; i++) digits[i] = byte_id(t, (unsigned char)('0' + i));
    test_gguf_i32s(w, "script.digit_tokens", digits, TEST_SCRIPT_CASES);
    bool good = put_text(w, t, "script.tokens", t->text);
    for (int i = 0; i < TEST_SCRIPT_CASES && good; i++) {
        char key[32];
        snprintf(key, sizeof key, "script.case.%d", i);
        if (t->cases[i]) good = put_text(w, t, key, t->cases[i]);
    }
    if (t->chat_template) test_gguf_str(w, "tokenizer.chat_template", t->chat_template);
    return good && put_tokenizer(w, t);
}

static int write_all(const char *path, const struct fo_buf *file, uint64_t size, struct fo_err *e) {
    char part[4096];
    if ((size_t)snprintf(part, sizeof part, "%s.part", path) >= sizeof part) return (int)fo_fail(e, FO_EINVAL, "%s: too long", path);
    FILE *f = fopen(part, "wb");
    if (!f) return (int)fo_fail_errno(e, errno, "%s", part);
    bool good = fwrite(file->data, 1, file->len, f) == file->len && fflush(f) == 0 && ftruncate(fileno(f), (off_t)size) == 0;
    int err = errno;
    if (fclose(f) != 0) good = false;
    if (good && rename(part, path) == 0) return FO_OK;
    unlink(part);
    return (int)fo_fail_errno(e, good ? errno : err, "%s", path);
}

int test_script_write(const struct test_script *t, const char *path, struct fo_err *e) {
    if (!t->text || !t->text[0] || t->n_layer < 1 || t->n_layer > 1024 || t->n_ctx < 1 || t->n_specials < 0 || t->n_specials > TEST_SCRIPT_SPECIALS ||
        t->weights_bytes >> 44 || t->kv_bytes_per_token >> 24)
        return (int)fo_fail(e, FO_EINVAL, "a scripted model needs a text, 1 to 1024 layers, positions, and sizes within reason");
    struct test_gguf w;
    struct fo_buf file;
    uint64_t n_vocab = (uint64_t)(N_CONTROL + t->n_specials + N_BYTES), rows = (t->weights_bytes / t->n_layer + 255) / 256, size = 0;
    float *ones = malloc(n_vocab * EMBD * sizeof *ones);
    if (!ones) return (int)fo_fail(e, FO_ENOMEM, "no memory for a scripted model");
    for (uint64_t i = 0; i < n_vocab * EMBD; i++) ones[i] = 1;
    test_gguf_init(&w, 3);
    bool good = put_model(&w, t);
    test_gguf_tensor(&w, "token_embd.weight", FO_F32, (const uint64_t[]){ EMBD, n_vocab }, 2, ones, (size_t)n_vocab * EMBD * sizeof *ones);
    for (uint32_t i = 0; i < t->n_layer; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%u.norm.weight", i);
        test_gguf_tensor(&w, name, FO_F32, (const uint64_t[]){ EMBD }, 1, ones, EMBD * sizeof *ones);
    }
    free(ones);
    uint64_t data = w.data.len, at = (data + 63) & ~(uint64_t)63;
    for (uint32_t i = 0; i < t->n_layer && rows; i++, at += rows * 256) {
        char name[32];
        snprintf(name, sizeof name, "blk.%u.bulk.weight", i);
        test_gguf_tensor_at(&w, name, FO_F32, (const uint64_t[]){ EMBD, rows }, 2, at);
    }
    if (!test_gguf_finish(&w, &file) || !good) {
        fo_buf_done(&file);
        return (int)fo_fail(e, FO_ENOMEM, "no memory for a scripted model");
    }
    size = file.len - data + (rows ? at : data);
    int rc = write_all(path, &file, size, e);
    fo_buf_done(&file);
    return rc;
}
