/* See odd.h; the format itself is gguf_write's. */
#include "tests/support/odd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foundry/base/buf.h"
#include "foundry/base/rng.h"
#include "tests/support/gguf_write.h"

struct out {
    const struct odd *t;
    struct test_gguf w;
    struct fo_rng rng;
};

static void need(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "odd model: %s\n", what);
    abort();
}

static void put_key(struct out *o, const struct odd_key *k) {
    switch (k->kind) {
    case 'u':
        test_gguf_u32(&o->w, k->key, (uint32_t)k->number);
        break;
    case 'f':
        test_gguf_f32(&o->w, k->key, (float)k->number);
        break;
    case 'b':
        test_gguf_bool(&o->w, k->key, k->number != 0);
        break;
    case 's':
        test_gguf_str(&o->w, k->key, k->text);
        break;
    }
}

/* A key of the architecture. */
static void key(struct out *o, const char *name, int kind, double number, const char *text);
static void arch_key(struct out *o, const char *suffix, int kind, double number) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", o->t->arch ? o->t->arch : "llama", suffix);
    key(o, name, kind, number, NULL);
}

/* The spec's own version of a key, if it has one, wins. */
static void key(struct out *o, const char *name, int kind, double number, const char *text) {
    for (const struct odd_key *k = o->t->keys; k && k->key; k++)
        if (strcmp(k->key, name) == 0) return;
    put_key(o, &(struct odd_key){ name, kind, number, text });
}

static void put_tensors(struct out *o, const char *name, enum fo_dtype type, int64_t ne0, int64_t ne1, int64_t ne2, const float *values, float mean, float spread) {
    const struct fo_dtype_info *d = fo_dtype_info(type);
    uint64_t dims[] = { (uint64_t)ne0, (uint64_t)ne1, (uint64_t)ne2 }, n = dims[0] * dims[1] * dims[2], bytes = fo_dtype_bytes(type, n);
    float *f = malloc(n * sizeof *f + 1);
    void *packed = calloc(1, n * sizeof *f + bytes + 1);
    need(f && packed, "memory");
    for (uint64_t i = 0; i < n; i++) f[i] = values ? values[i] : mean + spread * (float)(2 * fo_rng_unit(&o->rng) - 1);
    if (type == o->t->vectors && dims[1] * dims[2] == 1 && o->t->rounded) {
        fo_dtype_info(o->t->rounded)->from_f32(f, packed, n);
        fo_dtype_info(o->t->rounded)->to_f32(packed, f, n);
    }
    if (d->from_f32) d->from_f32(f, packed, n); /* else it is no weight type: only its place in the directory matters */
    test_gguf_tensor(&o->w, name, type, dims, ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1, packed, bytes);
    free(f);
    free(packed);
}

static void put_tensor(struct out *o, const char *name, enum fo_dtype type, int64_t ne0, int64_t ne1, const float *values, float mean, float spread) {
    put_tensors(o, name, type, ne0, ne1, 1, values, mean, spread);
}

static void tensor(struct out *o, const char *name, enum fo_dtype type, int64_t ne0, int64_t ne1, float mean, float spread) {
    if (ne1 == 1 && type == FO_F32) type = o->t->vectors;
    for (const struct odd_tensor *t = o->t->tensors; t && t->name; t++)
        if (strcmp(t->name, name) == 0) return;
    put_tensor(o, name, type, ne0, ne1, NULL, mean, spread);
}

static void layer_tensor(struct out *o, uint32_t layer, const char *suffix, enum fo_dtype type, int64_t ne0, int64_t ne1, float mean, float spread) {
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    tensor(o, name, type, ne0, ne1, mean, spread);
}

static void layer_experts(struct out *o, uint32_t layer, const char *suffix, int64_t ne0, int64_t ne1, float spread) {
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", layer, suffix);
    for (const struct odd_tensor *t = o->t->tensors; t && t->name; t++)
        if (strcmp(t->name, name) == 0) return;
    if (!o->t->expert_files) put_tensors(o, name, o->t->type, ne0, ne1, o->t->n_expert, NULL, 0, spread);
    for (uint32_t i = 0; o->t->expert_files && i < o->t->n_expert; i++) {
        snprintf(name, sizeof name, "blk.%u.%.*s.%u.weight", layer, (int)(strlen(suffix) - strlen("_exps.weight")), suffix, i);
        put_tensors(o, name, o->t->type, ne0, ne1, 1, NULL, 0, spread);
    }
}

static uint32_t or_else(uint32_t v, uint32_t unset) {
    return v ? v : unset;
}

void odd_write(const char *path, const struct odd *t) {
    struct out o = { .t = t };
    test_gguf_init(&o.w, 3);
    fo_rng_seed(&o.rng, t->seed);
    uint32_t layers = or_else(t->n_layer, 2), embd = or_else(t->n_embd, 256), ff = or_else(t->n_ff, 256), heads = or_else(t->n_head, 8),
             kv = or_else(t->n_head_kv, 2), vocab = or_else(t->n_vocab, 96), hd = or_else(t->head_dim, embd / heads);

    key(&o, "general.architecture", 's', 0, t->arch ? t->arch : "llama");
    key(&o, "general.name", 's', 0, "tiny");
    arch_key(&o, "block_count", 'u', layers);
    arch_key(&o, "context_length", 'u', or_else(t->n_ctx, 256));
    arch_key(&o, "embedding_length", 'u', embd);
    arch_key(&o, "feed_forward_length", 'u', ff);
    arch_key(&o, "attention.head_count", 'u', heads);
    arch_key(&o, "attention.head_count_kv", 'u', kv);
    arch_key(&o, "attention.layer_norm_rms_epsilon", 'f', 1e-5);
    if (t->head_dim) {
        arch_key(&o, "attention.key_length", 'u', hd);
        arch_key(&o, "attention.value_length", 'u', hd);
    }
    if (t->window) arch_key(&o, "attention.sliding_window", 'u', t->window);
    if (t->n_expert) {
        arch_key(&o, "expert_count", 'u', t->n_expert);
        arch_key(&o, "expert_used_count", 'u', t->n_expert_used);
    }
    for (const struct odd_key *k = t->keys; k && k->key; k++) put_key(&o, k);

    float w = 0.12f;
    tensor(&o, "token_embd.weight", t->type, embd, vocab, 0, 1);
    for (uint32_t i = 0; i < layers; i++) {
        layer_tensor(&o, i, "attn_norm.weight", FO_F32, embd, 1, 1, 0.2f);
        if (t->fused) {
            layer_tensor(&o, i, "attn_qkv.weight", t->type, embd, (heads + 2 * kv) * hd, 0, w);
        } else {
            layer_tensor(&o, i, "attn_q.weight", t->type, embd, heads * hd, 0, w);
            layer_tensor(&o, i, "attn_k.weight", t->type, embd, kv * hd, 0, w);
            layer_tensor(&o, i, "attn_v.weight", t->type, embd, kv * hd, 0, w);
        }
        if (t->qk_norm) {
            layer_tensor(&o, i, "attn_q_norm.weight", FO_F32, hd, 1, 1, 0.5f);
            layer_tensor(&o, i, "attn_k_norm.weight", FO_F32, hd, 1, 1, 0.5f);
        }
        layer_tensor(&o, i, "attn_output.weight", t->type, heads * hd, embd, 0, w);
        layer_tensor(&o, i, "ffn_norm.weight", FO_F32, embd, 1, 1, 0.2f);
        if (t->n_expert) {
            layer_tensor(&o, i, "ffn_gate_inp.weight", FO_F32, embd, t->n_expert, 0, 0.5f);
            layer_experts(&o, i, "ffn_gate_exps.weight", embd, ff, w);
            layer_experts(&o, i, "ffn_up_exps.weight", embd, ff, w);
            layer_experts(&o, i, "ffn_down_exps.weight", ff, embd, w);
        } else {
            if (!t->fused) layer_tensor(&o, i, "ffn_gate.weight", t->type, embd, ff, 0, w);
            layer_tensor(&o, i, "ffn_up.weight", t->type, embd, t->fused ? 2 * ff : ff, 0, w);
            layer_tensor(&o, i, "ffn_down.weight", t->type, ff, embd, 0, w);
        }
        if (!t->biases) continue;
        layer_tensor(&o, i, "attn_q.bias", FO_F32, heads * hd, 1, 0, 0.5f);
        layer_tensor(&o, i, "attn_k.bias", FO_F32, kv * hd, 1, 0, 0.5f);
        layer_tensor(&o, i, "attn_v.bias", FO_F32, kv * hd, 1, 0, 0.5f);
        layer_tensor(&o, i, "attn_output.bias", FO_F32, embd, 1, 0, 0.5f);
        layer_tensor(&o, i, "ffn_gate.bias", FO_F32, ff, 1, 0, 0.5f);
        layer_tensor(&o, i, "ffn_up.bias", FO_F32, ff, 1, 0, 0.5f);
        layer_tensor(&o, i, "ffn_down.bias", FO_F32, embd, 1, 0, 0.5f);
    }
    tensor(&o, "output_norm.weight", FO_F32, embd, 1, 1, 0.2f);
    if (t->untied) tensor(&o, "output.weight", t->type, embd, vocab, 0, w);
    if (t->rope_freqs) put_tensor(&o, "rope_freqs.weight", FO_F32, hd / 2, 1, t->rope_freqs, 0, 0);
    if (t->rope_long) put_tensor(&o, "rope_factors_long.weight", FO_F32, hd / 2, 1, t->rope_long, 0, 0);
    if (t->rope_short) put_tensor(&o, "rope_factors_short.weight", FO_F32, hd / 2, 1, t->rope_short, 0, 0);
    for (const struct odd_tensor *x = t->tensors; x && x->name; x++)
        if (x->ne0) put_tensor(&o, x->name, (enum fo_dtype)x->type, x->ne0, x->ne1, NULL, 0, w);

    struct fo_buf file;
    need(test_gguf_finish(&o.w, &file), "memory");
    FILE *f = fopen(path, "wb");
    need(f, path);
    bool ok = fwrite(file.data, 1, file.len, f) == file.len;
    need(fclose(f) == 0 && ok, path);
    fo_buf_done(&file);
}

const char *odd_path(int n) {
    static char names[8][256];
    const char *dir = getenv("TMPDIR");
    snprintf(names[n & 7], sizeof names[0], "%s/odd-%ld-%d.gguf", dir && *dir ? dir : "/tmp", (long)getpid(), n);
    return names[n & 7];
}
