/* A HuggingFace directory: see hf.h. What config.json and the tokenizer's files say is written as the metadata of a GGUF file in memory and
 * read back by the one parser, so that nothing is believed here which would not be believed of a file. The tensors point into the mapped
 * safetensors files, under GGUF's names:
 *
 *     config.json, tokenizer.json ...   ->  metadata, and the rope's divisors as tensors
 *     modules.json, 1_Pooling           ->  how embeddings are pooled, where sentence-transformers has been
 *     model.safetensors.index.json      ->  which files there are; every tensor it names must be in its file
 *     *.safetensors                     ->  tensors */
#include "foundry/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/region.h"
#include "foundry/gguf_int.h"
#include "foundry/gguf_write.h"
#include "foundry/hf_config.h"
#include "foundry/hf_pooling.h"
#include "foundry/hf_tokenizer.h"
#include "foundry/safetensors.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_INDEX_BYTES = 64 << 20, MAX_META_BYTES = 256 << 20, MAX_REGION_BYTES = 32 << 20, MAX_PATH = 4096 };
#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* --- names --- */

/* THE names, behind "model.layers.N." and before the last dot. "model." is left out where the model was saved without its output. */
static const struct {
    const char *hf, *gguf;
} layer_names[] = {
    { "input_layernorm", "attn_norm" },
    { "self_attn.q_proj", "attn_q" },
    { "self_attn.k_proj", "attn_k" },
    { "self_attn.v_proj", "attn_v" },
    { "self_attn.qkv_proj", "attn_qkv" },
    { "self_attn.o_proj", "attn_output" },
    { "self_attn.q_norm", "attn_q_norm" },
    { "self_attn.k_norm", "attn_k_norm" },
    { "post_attention_layernorm", "ffn_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
    { "mlp.gate_up_proj", "ffn_up" },
    { "block_sparse_moe.gate", "ffn_gate_inp" },
};
static const struct {
    const char *hf, *gguf;
} expert_names[] = { { "w1", "ffn_gate" }, { "w2", "ffn_down" }, { "w3", "ffn_up" } }, whole_names[] = {
    { "embed_tokens.weight", "token_embd.weight" },
    { "norm.weight", "output_norm.weight" },
    { "lm_head.weight", "output.weight" },
};
#define EACH(list) for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

/* Digits without a leading 0 and the '.' behind them; NULL when something else stands there. */
static const char *number(const char *s, const char *prefix, unsigned *ret) {
    size_t n = strlen(prefix);
    if (strncmp(s, prefix, n) != 0) return NULL;
    s += n;
    unsigned v = 0, digits = 0;
    for (; *s >= '0' && *s <= '9' && digits < 6; s++, digits++) v = v * 10 + (unsigned)(*s - '0');
    if (digits == 0 || *s != '.' || (digits > 1 && s[-(int)digits] == '0')) return NULL;
    *ret = v;
    return s + 1;
}

static bool is_part(const char *s, const char *dot, const char *name) {
    size_t n = (size_t)(dot - s);
    return strlen(name) == n && memcmp(s, name, n) == 0;
}

bool fo_hf_tensor_name(const char *name, char *out, size_t size) {
    unsigned layer, expert;
    const char *bare = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    snprintf(out, size, "%s", name);
    EACH(whole_names)
        if (strcmp(bare, whole_names[i].hf) == 0) snprintf(out, size, "%s", whole_names[i].gguf);
    const char *rest = number(bare, "layers.", &layer), *dot = rest ? strrchr(rest, '.') : NULL;
    if (!dot) return true;
    if (strcmp(rest, "self_attn.rotary_emb.inv_freq") == 0) return false;
    EACH(layer_names)
        if (is_part(rest, dot, layer_names[i].hf)) snprintf(out, size, "blk.%u.%s%s", layer, layer_names[i].gguf, dot);
    if (!(rest = number(rest, "block_sparse_moe.experts.", &expert)) || dot < rest) return true;
    EACH(expert_names)
        if (is_part(rest, dot, expert_names[i].hf)) snprintf(out, size, "blk.%u.%s.%u%s", layer, expert_names[i].gguf, expert, dot);
    return true;
}

/* --- the reader --- */

struct hf {
    const char *dir;
    struct fo_err *e;
    struct fo_hf_config config;
    struct fo_gguf *g;
    struct fo_region *region; /* the fo_gguf's */
    const struct fo_map *map; /* the file being read */
    char path[MAX_PATH];
    char **files; /* [n_files] names within the directory */
    size_t n_files;
};

static int path_of(struct hf *h, const char *file) {
    if ((size_t)snprintf(h->path, sizeof h->path, "%s/%s", h->dir, file) < sizeof h->path) return FO_OK;
    return (int)fo_fail(h->e, FO_ELIMIT, "%s: the path is too long", h->dir);
}

static bool is_there(struct hf *h, const char *file) {
    struct stat st;
    return path_of(h, file) == FO_OK && stat(h->path, &st) == 0;
}

static int no_memory(struct hf *h) {
    return (int)fo_fail(h->e, FO_ENOMEM, "%s: no memory for its directory", h->dir);
}

/* --- metadata --- */

/* The directory's own name: what the model is called unless config.json knows better. */
static void title_of(const char *dir, char *out, size_t size) {
    size_t n = strlen(dir), from;
    while (n > 0 && dir[n - 1] == '/') n--;
    for (from = n; from > 0 && dir[from - 1] != '/'; from--) {}
    snprintf(out, size, "%.*s", (int)(n - from), dir + from);
}

static int write_metadata(struct hf *h, struct fo_region *region, struct fo_gguf_writer *w) {
    char *text, title[128];
    size_t len;
    if (path_of(h, "config.json")) return (int)h->e->code;
    if (fo_file_read(h->path, MAX_CONFIG_BYTES, &text, &len, h->e)) {
        if (h->e->code == FO_ENOENT) fo_fail(h->e, FO_ENOENT, "%s: there is no config.json in this directory, so it is no model", h->dir);
        return (int)h->e->code;
    }
    title_of(h->dir, title, sizeof title);
    int rc = fo_hf_config_read(text, len, h->path, title, region, w, &h->config, h->e);
    free(text);
    return rc ? rc : fo_hf_pooling(h->dir, h->config.arch, w, h->e);
}

/* A model without a tokenizer, or with one that this build lacks, takes and gives token ids: why is kept for whoever asks for text. */
static int write_tokenizer(struct hf *h, struct fo_gguf_writer *w) {
    struct fo_err why;
    int rc = fo_hf_tokenizer(h->dir, w, &why);
    if (rc == FO_ENOMEM) {
        *h->e = why;
        return rc;
    }
    if (rc) fo_gguf_put_str(w, "tokenizer.pantheon.error", (struct fo_str){ why.msg, strlen(why.msg) });
    return FO_OK;
}

/* The metadata becomes a GGUF header of its own and is read as every other. */
static int open_metadata(struct hf *h) {
    struct fo_gguf_writer w;
    struct fo_buf header;
    struct fo_region region;
    fo_region_init(&region, MAX_REGION_BYTES);
    fo_gguf_writer_init(&w, MAX_META_BYTES);
    fo_buf_init(&header, MAX_META_BYTES);
    int rc = write_metadata(h, &region, &w);
    if (!rc) rc = write_tokenizer(h, &w);
    if (!rc) rc = fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, &header, h->e);
    fo_gguf_writer_done(&w);
    if (!rc) rc = fo_gguf_parse(header.data, header.len, h->dir, &h->g, h->e);
    if (rc) {
        fo_buf_done(&header);
        fo_region_done(&region);
        return rc;
    }
    h->region = fo_gguf_keep(h->g, &region, fo_buf_steal(&header), "safetensors");
    return FO_OK;
}

static int add_factors(struct hf *h, const char *name, const float *v) {
    if (!v) return FO_OK;
    struct fo_gguf_tensor t = { .name = { name, strlen(name) }, .bytes = h->config.n_rope * sizeof *v };
    t.t = fo_tensor_2d(FO_F32, (int64_t)h->config.n_rope, 1, (void *)(uintptr_t)v);
    return fo_gguf_add(h->g, &t, 1, h->dir, h->e);
}

/* --- tensors --- */

static int add_tensor(void *ctx, const struct fo_safetensor *x, struct fo_err *e) {
    struct hf *h = ctx;
    char name[FO_SAFETENSORS_NAME];
    if (!fo_hf_tensor_name(x->name, name, sizeof name) || (h->config.tied && strcmp(name, "output.weight") == 0)) return FO_OK;
    struct fo_gguf_tensor t = { .name.len = strlen(name), .t = x->t, .offset = x->offset, .bytes = x->bytes, .map = h->map };
    t.name.s = fo_region_strndup(h->region, name, t.name.len);
    return t.name.s ? fo_gguf_add(h->g, &t, 1, fo_map_path(h->map), e) : no_memory(h);
}

static int add_file(struct hf *h, const char *file) {
    struct fo_map *map;
    if (path_of(h, file) || fo_map_open(h->path, &map, h->e) || fo_gguf_take_map(h->g, map, h->e)) return (int)h->e->code;
    h->map = map;
    return fo_safetensors_read(fo_map_data(map), fo_map_size(map), h->path, add_tensor, h, h->e);
}

/* --- the index --- */

/* A name and nothing else: no folder, no way out of the directory. */
static bool is_plain(const char *file) {
    size_t n = strlen(file), end = strlen(".safetensors");
    return n > end && strcmp(file + n - end, ".safetensors") == 0 && !strchr(file, '/') && file[0] != '.';
}

/* Which files there are. */
static int keep_file(void *ctx, const char *tensor, const char *file, struct fo_err *e) {
    struct hf *h = ctx;
    (void)tensor;
    if (h->n_files && strcmp(h->files[h->n_files - 1], file) == 0) return FO_OK; /* nearly always */
    for (size_t i = 0; i < h->n_files; i++)
        if (strcmp(h->files[i], file) == 0) return FO_OK;
    if (!is_plain(file)) return (int)fo_fail(e, FO_EFORMAT, "%s: \"%.100s\" is not the name of a safetensors file in this directory", h->path, file);
    if (h->n_files == FO_MAX_FILES) return (int)fo_fail_need(e, FO_ELIMIT, FO_MAX_FILES + 1, FO_MAX_FILES, "%s: more than %d files", h->path, FO_MAX_FILES);
    if (!h->files && !(h->files = fo_region_array(h->region, FO_MAX_FILES, sizeof *h->files))) return no_memory(h);
    if (!(h->files[h->n_files] = fo_region_strndup(h->region, file, strlen(file)))) return no_memory(h);
    h->n_files++;
    return FO_OK;
}

/* A tensor that the index names is in the file that it says. */
static int check_tensor(void *ctx, const char *hf_name, const char *file, struct fo_err *e) {
    struct hf *h = ctx;
    char name[FO_SAFETENSORS_NAME];
    if (!fo_hf_tensor_name(hf_name, name, sizeof name) || (h->config.tied && strcmp(name, "output.weight") == 0)) return FO_OK;
    const struct fo_gguf_tensor *t = fo_gguf_tensor(h->g, name);
    if (path_of(h, file)) return (int)e->code;
    if (t && t->map && strcmp(fo_map_path(t->map), h->path) == 0) return FO_OK;
    return (int)fo_fail(e, FO_EFORMAT, "%s: tensor %.100s is missing, which " INDEX " says is there", h->path, hf_name);
}

/* Nothing is read before all files are there: what is missing is said at once. */
static int all_there(struct hf *h) {
    size_t n_missing = 0, first = 0;
    for (size_t i = h->n_files; i-- > 0;)
        if (!is_there(h, h->files[i])) {
            n_missing++;
            first = i;
        }
    if (!n_missing) return FO_OK;
    if (path_of(h, h->files[first])) return (int)h->e->code;
    if (n_missing == 1) return (int)fo_fail_need(h->e, FO_ENOENT, h->n_files, h->n_files - 1, "%s is missing: the model is in %zu files", h->path, h->n_files);
    return (int)fo_fail_need(h->e, FO_ENOENT, h->n_files, h->n_files - n_missing, "%s is missing, and %zu more of the %zu files of this model", h->path,
                             n_missing - 1, h->n_files);
}

static int add_indexed(struct hf *h) {
    char *text;
    size_t len;
    if (path_of(h, INDEX) || fo_file_read(h->path, MAX_INDEX_BYTES, &text, &len, h->e)) return (int)h->e->code;
    int rc = fo_safetensors_index(text, len, h->path, keep_file, h, h->e);
    if (!rc) rc = all_there(h);
    for (size_t i = 0; i < h->n_files && !rc; i++) rc = add_file(h, h->files[i]);
    if (!rc) rc = fo_safetensors_index(text, len, h->dir, check_tensor, h, h->e);
    free(text);
    return rc;
}

/* --- all of it --- */

/* What config.json says is there is there: the family's bind takes an absent output for a tied one, and absent biases for none. */
static int check_config(struct hf *h) {
    const char *missing = !h->config.tied && !fo_gguf_tensor(h->g, "output.weight")           ? "lm_head.weight is missing, but tie_word_embeddings is not true"
                          : h->config.biases && fo_gguf_tensor(h->g, "blk.0.attn_q.weight") &&
                                  !fo_gguf_tensor(h->g, "blk.0.attn_q.bias")                    ? "model.layers.0.self_attn.q_proj.bias is missing"
                                                                                                : NULL;
    return missing ? (int)fo_fail(h->e, FO_EFORMAT, "%s: tensor %s", h->dir, missing) : FO_OK;
}

static int read_all(struct hf *h) {
    if (open_metadata(h) || add_factors(h, "rope_freqs.weight", h->config.rope_freqs) || add_factors(h, "rope_factors_short.weight", h->config.rope_short) ||
        add_factors(h, "rope_factors_long.weight", h->config.rope_long))
        return (int)h->e->code;
    if (is_there(h, SINGLE)) {
        if (add_file(h, SINGLE)) return (int)h->e->code;
    } else if (is_there(h, INDEX)) {
        if (add_indexed(h)) return (int)h->e->code;
    } else {
        bool pickled = is_there(h, "pytorch_model.bin") || is_there(h, "pytorch_model.bin.index.json");
        return (int)fo_fail(h->e, FO_ENOENT, "%s: there is neither " SINGLE " nor " INDEX "%s", h->dir,
                            pickled ? "; pytorch_model.bin is not read: convert it to safetensors" : "");
    }
    return check_config(h) ? (int)h->e->code : fo_gguf_state(h->g, h->e);
}

int fo_hf_open(const char *dir, struct fo_gguf **ret, struct fo_err *e) {
    struct hf h = { .dir = dir, .e = e };
    int rc = read_all(&h);
    if (rc) fo_gguf_close(h.g);
    else *ret = h.g;
    return rc;
}
