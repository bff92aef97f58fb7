/* Tiny models: see tiny.h. */
#include "tests/support/tiny.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/dtype.h"
#include "tests/support/gguf_write.h"

enum { N_CONTROL = 3, N_BYTES = 256 };
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 };

/* Pairs that are merged, first ones first. "_" stands for the space, as \u0120 does in the file. */
static const char *const merges[] = {
    "_ t", "h e", "_ a", "i n", "_t he", "r e", "o n", "_ s",  "n d", "e r",  "_ w",   "o u",    "_ o",  "a t", "_ b",    "_ m",
    "i s", "_ y", "e n", "in g", "o r",  "_y ou", "l l", "H e", "He ll", "Hell o", "_w or", "l d", "_wor ld", "_a nd",
};
enum { N_MERGES = sizeof merges / sizeof *merges };

struct test_tiny test_tiny_default(void) {
    return (struct test_tiny){ .dtype = FO_F32, .n_layer = 2, .n_embd = 64, .n_head = 4, .n_head_kv = 2, .n_ff = 128, .n_vocab = 512,
                               .n_ctx = 256, .tied = true, .tokenizer = true, .seed = 1, .version = 3 };
}

const char *test_tiny_chatml(void) {
    return "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
           "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
}

/* --- vocabulary ----------------------------------------------------------------------------------------------------------- */

/* GPT-2 writes every byte as a printable character: those that are one stand for themselves, the others follow from U+0100 in order
 * of the byte. */
static bool is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

static int put_utf8(char *out, int code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

int test_put_byte_char(char *out, int byte) {
    if (is_printable(byte)) return put_utf8(out, byte);
    int before = 0;
    for (int b = 0; b < byte; b++) before += !is_printable(b);
    return put_utf8(out, 0x100 + before);
}

/* ids 3 .. 258: the printable bytes, then the others, each in order. */
static int byte_at(int rank) {
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++)
            if (is_printable(b) == (pass == 0) && rank-- == 0) return b;
    return 0;
}

/* A merge as the file has it ("\u0120 t"), or joined as a token ("\u0120t"). */
static void put_merge(char *out, const char *merge, bool joined) {
    for (const char *p = merge; *p; p++)
        if (*p == '_') out += test_put_byte_char(out, ' ');
        else if (*p != ' ' || !joined) *out++ = *p;
    *out = '\0';
}

static void put_tokenizer(struct test_gguf *w, const struct test_tiny *t, char (*texts)[32], const char **list, int32_t *types) {
    static const char *const control[N_CONTROL] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        list[i] = texts[i];
        types[i] = TOKEN_NORMAL;
        if (i < N_CONTROL) {
            types[i] = TOKEN_CONTROL;
            snprintf(texts[i], sizeof texts[i], "%s", control[i]);
        } else if (i < N_CONTROL + N_BYTES) {
            texts[i][test_put_byte_char(texts[i], byte_at((int)i - N_CONTROL))] = '\0';
        } else if (i < N_CONTROL + N_BYTES + N_MERGES) {
            put_merge(texts[i], merges[i - N_CONTROL - N_BYTES], true);
        } else {
            types[i] = TOKEN_UNUSED;
            snprintf(texts[i], sizeof texts[i], "<|unused_%u|>", i);
        }
    }
    test_gguf_str(w, "tokenizer.ggml.model", "gpt2");
    test_gguf_str(w, "tokenizer.ggml.pre", "smollm");
    test_gguf_strs(w, "tokenizer.ggml.tokens", list, t->n_vocab);
    test_gguf_i32s(w, "tokenizer.ggml.token_type", types, t->n_vocab);
    for (int i = 0; i < N_MERGES; i++) {
        put_merge(texts[i], merges[i], false);
        list[i] = texts[i];
    }
    test_gguf_strs(w, "tokenizer.ggml.merges", list, N_MERGES);
    test_gguf_u32(w, "tokenizer.ggml.bos_token_id", 1);
    test_gguf_u32(w, "tokenizer.ggml.eos_token_id", 2);
    test_gguf_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    test_gguf_u32(w, "tokenizer.ggml.padding_token_id", 2);
    test_gguf_bool(w, "tokenizer.ggml.add_bos_token", t->add_bos);
}

/* --- weights -------------------------------------------------------------------------------------------------------------- */

struct weights {
    struct test_gguf *w;
    struct fo_rng rng;
    float *values; /* room for the largest tensor */
    void *blocks;
};

/* Nearly normal (the sum of four uniforms), with plain arithmetic only: the same everywhere. */
static float bell(struct fo_rng *r, double deviation) {
    double sum = fo_rng_unit(r) + fo_rng_unit(r) + fo_rng_unit(r) + fo_rng_unit(r) - 2;
    return (float)(sum * 1.7320508075688772 * deviation);
}

static void put_matrix(struct weights *k, const char *name, uint32_t dtype, uint64_t in, uint64_t out, double gain) {
    const struct fo_dtype_info *info = fo_dtype_info(dtype);
    double deviation = gain / sqrt((double)in);
    for (uint64_t i = 0; i < in * out; i++) k->values[i] = bell(&k->rng, deviation);
    info->from_f32(k->values, k->blocks, (size_t)(in * out));
    test_gguf_tensor(k->w, name, dtype, (const uint64_t[]){ in, out }, 2, k->blocks, (size_t)fo_dtype_bytes(dtype, in * out));
}

static void put_norm(struct weights *k, const char *name, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) k->values[i] = 1 + bell(&k->rng, 0.1);
    test_gguf_tensor(k->w, name, FO_F32, &n, 1, k->values, (size_t)n * sizeof(float));
}

static void put_layer(struct weights *k, const struct test_tiny *t, uint32_t layer) {
    uint64_t embd = t->n_embd, kv = embd / t->n_head * t->n_head_kv;
    const struct {
        const char *name;
        uint64_t in, out; /* out 0: a norm */
        double gain;      /* what a layer adds outweighs the token it started from, or a tied model would only repeat itself */
    } parts[] = {
        { "attn_norm", embd, 0, 0 },       { "attn_q", embd, embd, 1 },   { "attn_k", embd, kv, 1 },        { "attn_v", embd, kv, 1 },
        { "attn_output", embd, embd, 4 },  { "ffn_norm", embd, 0, 0 },    { "ffn_gate", embd, t->n_ff, 1 }, { "ffn_up", embd, t->n_ff, 1 },
        { "ffn_down", t->n_ff, embd, 4 },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", layer, parts[i].name);
        if (parts[i].out) put_matrix(k, name, t->dtype, parts[i].in, parts[i].out, parts[i].gain);
        else put_norm(k, name, embd);
    }
}

/* --- the file ------------------------------------------------------------------------------------------------------------- */

static int check(const struct test_tiny *t, struct fo_err *e) {
    const struct fo_dtype_info *info = fo_dtype_info(t->dtype);
    if (!info || !info->from_f32) return (int)fo_fail(e, FO_EINVAL, "%s cannot be written", fo_dtype_name(t->dtype));
    if (t->n_embd == 0 || t->n_ff == 0 || t->n_embd % info->block || t->n_ff % info->block)
        return (int)fo_fail(e, FO_EINVAL, "%s needs widths that are multiples of %d: embd %u, ff %u", info->name, info->block, t->n_embd, t->n_ff);
    if (t->n_head == 0 || t->n_head_kv == 0 || t->n_embd % t->n_head || t->n_embd / t->n_head % 2 || t->n_head % t->n_head_kv)
        return (int)fo_fail(e, FO_EINVAL, "%u heads, %u of KV do not divide %u", t->n_head, t->n_head_kv, t->n_embd);
    if (t->n_embd > 4096 || t->n_ff > 16384 || t->n_vocab > 1 << 20 || t->n_layer > 1024) return (int)fo_fail(e, FO_EINVAL, "not tiny");
    if (t->n_vocab == 0 || (t->tokenizer && t->n_vocab < N_CONTROL + N_BYTES + N_MERGES))
        return (int)fo_fail(e, FO_EINVAL, "a vocabulary of %u; %d or more with a tokenizer", t->n_vocab, N_CONTROL + N_BYTES + N_MERGES);
    return FO_OK;
}

int test_tiny_build(const struct test_tiny *t, struct fo_buf *ret, struct fo_err *e) {
    if (check(t, e)) return (int)e->code;
    struct test_gguf w;
    uint64_t widest = t->n_ff > t->n_embd ? t->n_ff : t->n_embd, tallest = t->n_vocab > widest ? t->n_vocab : widest;
    size_t n = (size_t)(widest * tallest);
    struct weights k = { .w = &w, .values = malloc(n * sizeof(float)), .blocks = malloc(n * sizeof(float)) };
    char(*texts)[32] = calloc(t->n_vocab, sizeof *texts);
    const char **list = calloc(t->n_vocab, sizeof *list);
    int32_t *types = calloc(t->n_vocab, sizeof *types);
    int rc = FO_OK;
    if (!k.values || !k.blocks || !texts || !list || !types) {
        rc = (int)fo_fail(e, FO_ENOMEM, "no memory for a tiny model");
        goto out;
    }
    fo_rng_seed(&k.rng, t->seed);
    test_gguf_init(&w, t->version);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_str(&w, "general.name", "tiny");
    test_gguf_u32(&w, "llama.block_count", t->n_layer);
    test_gguf_u32(&w, "llama.context_length", t->n_ctx);
    test_gguf_u32(&w, "llama.embedding_length", t->n_embd);
    test_gguf_u32(&w, "llama.feed_forward_length", t->n_ff);
    test_gguf_u32(&w, "llama.attention.head_count", t->n_head);
    test_gguf_u32(&w, "llama.attention.head_count_kv", t->n_head_kv);
    test_gguf_u32(&w, "llama.rope.dimension_count", t->n_embd / t->n_head);
    test_gguf_u32(&w, "llama.vocab_size", t->n_vocab);
    test_gguf_f32(&w, "llama.rope.freq_base", 10000);
    if (t->yarn) {
        test_gguf_str(&w, "llama.rope.scaling.type", "yarn");
        test_gguf_f32(&w, "llama.rope.scaling.factor", (float)t->yarn);
        test_gguf_u32(&w, "llama.rope.scaling.original_context_length", t->n_ctx);
    }
    test_gguf_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (t->tokenizer) put_tokenizer(&w, t, texts, list, types);
    if (t->chat_template) test_gguf_str(&w, "tokenizer.chat_template", t->chat_template);

    put_matrix(&k, "token_embd.weight", t->dtype, t->n_embd, t->n_vocab, 4); /* logits of deviation 4 or so: clear winners */
    for (uint32_t i = 0; i < t->n_layer; i++) put_layer(&k, t, i);
    put_norm(&k, "output_norm.weight", t->n_embd);
    if (!t->tied) put_matrix(&k, "output.weight", t->dtype, t->n_embd, t->n_vocab, 4);
    if (!test_gguf_finish(&w, ret)) rc = (int)fo_fail(e, FO_ENOMEM, "no memory for a tiny model");
out:
    free(k.values);
    free(k.blocks);
    free(texts);
    free(list);
    free(types);
    return rc;
}

int test_tiny_write(const struct test_tiny *t, const char *path, struct fo_err *e) {
    struct fo_buf file;
    char part[4096];
    if ((size_t)snprintf(part, sizeof part, "%s.part", path) >= sizeof part) return (int)fo_fail(e, FO_EINVAL, "%s: too long", path);
    int rc = test_tiny_build(t, &file, e);
    if (rc) return rc;
    FILE *f = fopen(part, "wb");
    bool ok = f && fwrite(file.data, 1, file.len, f) == file.len;
    if (f && fclose(f) != 0) ok = false;
    if (!ok || rename(part, path) != 0) {
        rc = (int)fo_fail_errno(e, errno, "%s", path);
        unlink(part);
    }
    fo_buf_done(&file);
    return rc;
}
