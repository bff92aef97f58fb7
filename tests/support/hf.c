/* HuggingFace directories: see hf.h. */
#include "tests/support/hf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"

enum { CAP_BYTES = 1 << 28 };

void test_st_init(struct test_st *w) {
    *w = (struct test_st){ .odd = 0 };
    fo_buf_init(&w->header, CAP_BYTES);
    fo_buf_init(&w->data, CAP_BYTES);
}

void test_st_member(struct test_st *w, const char *json) {
    fo_buf_printf(&w->header, "%s%s", w->header.len ? "," : "", json);
}

void test_st_add(struct test_st *w, const char *name, const char *dtype, const uint64_t *shape, int n_dims, const void *data, size_t bytes) {
    fo_buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->header.len ? "," : "", name, dtype);
    for (int i = 0; i < n_dims; i++) fo_buf_printf(&w->header, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
    fo_buf_printf(&w->header, "],\"data_offsets\":[%zu,%zu]}", w->data.len, w->data.len + bytes);
    if (bytes) fo_buf_append(&w->data, data, bytes);
}

void test_st_finish(struct test_st *w, struct fo_buf *ret) {
    uint64_t padded = (w->header.len + 2 + 7) / 8 * 8 + w->odd;
    fo_buf_init(ret, CAP_BYTES);
    fo_buf_append(ret, &padded, sizeof padded);
    fo_buf_printf(ret, "{%s}", fo_buf_str(&w->header));
    while (!ret->failed && ret->len < sizeof padded + padded) fo_buf_putc(ret, ' ');
    if (w->data.len) fo_buf_append(ret, w->data.data, w->data.len);
    assert_false(ret->failed || w->header.failed || w->data.failed);
    fo_buf_done(&w->header);
    fo_buf_done(&w->data);
}

void test_write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) fail_msg("%s: cannot be written", path);
}

void test_write_text(const char *path, const char *text) {
    test_write_bytes(path, text, strlen(text));
}

void test_st_write(struct test_st *w, const char *path) {
    struct fo_buf out;
    test_st_finish(w, &out);
    test_write_bytes(path, out.data, out.len);
    fo_buf_done(&out);
}

/* --- a directory of a GGUF file --- */

/* What stands between "blk.N." and the last dot, both ways. */
static const struct {
    const char *gguf, *hf;
} names[] = {
    { "attn_norm", "input_layernorm" },       { "attn_q", "self_attn.q_proj" },       { "attn_k", "self_attn.k_proj" },
    { "attn_v", "self_attn.v_proj" },         { "attn_qkv", "self_attn.qkv_proj" },   { "attn_output", "self_attn.o_proj" },
    { "attn_q_norm", "self_attn.q_norm" },    { "attn_k_norm", "self_attn.k_norm" },  { "ffn_norm", "post_attention_layernorm" },
    { "ffn_gate", "mlp.gate_proj" },          { "ffn_up", "mlp.up_proj" },            { "ffn_down", "mlp.down_proj" },
    { "ffn_gate_inp", "block_sparse_moe.gate" },
};

static void hf_name(const char *gguf, bool fused, char *out, size_t size) {
    unsigned layer, expert;
    char part[64], end[16];
    if (strcmp(gguf, "token_embd.weight") == 0) {
        snprintf(out, size, "model.embed_tokens.weight");
    } else if (strcmp(gguf, "output_norm.weight") == 0) {
        snprintf(out, size, "model.norm.weight");
    } else if (strcmp(gguf, "output.weight") == 0) {
        snprintf(out, size, "lm_head.weight");
    } else if (sscanf(gguf, "blk.%u.ffn_%15[a-z].%u.weight", &layer, part, &expert) == 3) {
        snprintf(out, size, "model.layers.%u.block_sparse_moe.experts.%u.w%d.weight", layer, expert, *part == 'g' ? 1 : *part == 'd' ? 2 : 3);
    } else if (sscanf(gguf, "blk.%u.%63[a-z_].%15s", &layer, part, end) == 3) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(names[i].gguf, part) == 0)
                snprintf(out, size, "model.layers.%u.%s.%s", layer, fused && strcmp(part, "ffn_up") == 0 ? "mlp.gate_up_proj" : names[i].hf, end);
    } else {
        snprintf(out, size, "%s", gguf);
    }
}

static void add(struct test_st *w, const struct fo_gguf_tensor *t, const char *name) {
    uint64_t shape[4];
    int n = t->t.ne[1] > 1 ? 2 : 1;
    for (int i = 0; i < n; i++) shape[i] = (uint64_t)t->t.ne[n - 1 - i];
    test_st_add(w, name, fo_dtype_name(t->t.type), shape, n, t->t.data, (size_t)t->bytes);
}

void test_hf_write(const char *gguf, const char *dir, uint32_t n_files, unsigned odd, const char *config) {
    struct fo_gguf *g;
    struct fo_err e;
    struct test_st w;
    struct fo_buf index;
    char path[512], file[64], name[256];
    if (fo_gguf_open(gguf, &g, &e)) fail_msg("%s", e.msg);
    mkdir(dir, 0755);
    fo_buf_init(&index, CAP_BYTES);
    fo_buf_puts(&index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    size_t n = fo_gguf_n_tensors(g), at = 0;
    bool fused = fo_gguf_tensor(g, "blk.0.attn_qkv.weight");
    for (uint32_t i = 0; i < n_files; i++) {
        snprintf(file, sizeof file, n_files == 1 ? "model.safetensors" : "model-%05u-of-%05u.safetensors", i + 1, n_files);
        test_st_init(&w);
        w.odd = odd;
        test_st_member(&w, "\"__metadata__\":{\"format\":\"pt\"}");
        for (; at < n * (i + 1) / n_files; at++) {
            const struct fo_gguf_tensor *t = fo_gguf_tensor_at(g, at);
            char own[65];
            snprintf(own, sizeof own, "%.*s", (int)t->name.len, t->name.s);
            if (strncmp(own, "rope_", 5) == 0) continue;
            hf_name(own, fused, name, sizeof name);
            add(&w, t, name);
            fo_buf_printf(&index, "%s\n  \"%s\": \"%s\"", index.data[index.len - 1] == '{' ? "" : ",", name, file);
        }
        snprintf(path, sizeof path, "%s/%s", dir, file);
        test_st_write(&w, path);
    }
    fo_gguf_close(g);
    fo_buf_puts(&index, "\n}}\n");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    if (n_files > 1) test_write_text(path, fo_buf_str(&index));
    fo_buf_done(&index);
    snprintf(path, sizeof path, "%s/config.json", dir);
    test_write_text(path, config);
}

void test_hf_remove(const char *dir) {
    DIR *d = opendir(dir);
    char path[512];
    for (const struct dirent *entry; d && (entry = readdir(d));) {
        snprintf(path, sizeof path, "%.255s/%.255s", dir, entry->d_name);
        if (entry->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}
