/* Directories as HuggingFace's tools save them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/gguf.h"
#include "foundry/hf.h"
#include "foundry/model_file.h"
#include "tests/support/alloc.h"
#include "tests/support/hf.h"
#include "tests/support/odd.h"
#include "tests/support/sigbus.h"

static char dir[] = "/tmp/hf-XXXXXX", gguf[64];

/* A whole config.json of the Llama kind with `more` in front of it (of a key that is there twice JSON's reader wants none). */
#define SIZES "\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":96,\"max_position_embeddings\":256," \
              "\"rms_norm_eps\":1e-05"
#define CONFIG(arch, more) "{\"architectures\":[\"" arch "\"]," SIZES more "}"
#define LLAMA(more) CONFIG("LlamaForCausalLM", ",\"num_key_value_heads\":2" more)

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return 1;
    snprintf(gguf, sizeof gguf, "%s.gguf", dir);
    odd_write(gguf, &(struct odd){ .type = FO_BF16, .vectors = FO_BF16, .n_vocab = 96, .untied = true });
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    unlink(gguf);
    test_hf_remove(dir);
    return 0;
}

static const char *in_dir(const char *file) {
    static char path[4][512];
    static int at;
    char *p = path[at++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, file);
    return p;
}

static void refused(enum fo_code code, const char *says) {
    struct fo_gguf *g = NULL;
    struct fo_err e = { .msg = "" };
    int rc = fo_model_open(dir, &g, &e);
    if (rc != (int)code) fail_msg("%s, expected %s: %s", rc ? e.msg : "opened", fo_code_name(code), says);
    char parts[256];
    const char *at = e.msg;
    snprintf(parts, sizeof parts, "%s", says);
    for (char *part = parts, *next; part; part = next) {
        next = strchr(part, '|');
        if (next) *next++ = '\0';
        const char *found = strstr(at, part);
        if (!found) fail_msg("'%s' does not say \"%s\" there", e.msg, part);
        at = found + strlen(part);
    }
    assert_null(g);
}

static struct fo_gguf *opened(void) {
    struct fo_gguf *g;
    struct fo_err e;
    if (fo_model_open(dir, &g, &e)) fail_msg("%s", e.msg);
    return g;
}

/* --- names --- */

static void names_become_those_of_gguf(void **state) {
    (void)state;
    static const char *const names[][2] = {
        { "model.embed_tokens.weight", "token_embd.weight" },
        { "model.norm.weight", "output_norm.weight" },
        { "lm_head.weight", "output.weight" },
        { "model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight" },
        { "model.layers.79.post_attention_layernorm.weight", "blk.79.ffn_norm.weight" },
        { "model.layers.10.self_attn.q_proj.bias", "blk.10.attn_q.bias" },
        { "model.layers.1.self_attn.k_norm.weight", "blk.1.attn_k_norm.weight" },
        { "model.layers.1.self_attn.qkv_proj.weight", "blk.1.attn_qkv.weight" },
        { "model.layers.1.mlp.gate_up_proj.weight", "blk.1.ffn_up.weight" },
        { "model.layers.1.block_sparse_moe.gate.weight", "blk.1.ffn_gate_inp.weight" },
        { "model.layers.1.block_sparse_moe.experts.12.w1.weight", "blk.1.ffn_gate.12.weight" },
        { "model.layers.1.block_sparse_moe.experts.0.w2.weight", "blk.1.ffn_down.0.weight" },
        { "model.layers.1.block_sparse_moe.experts.0.w3.weight", "blk.1.ffn_up.0.weight" },
        /* saved without the output */
        { "embed_tokens.weight", "token_embd.weight" },
        { "norm.weight", "output_norm.weight" },
        { "layers.27.self_attn.q_norm.weight", "blk.27.attn_q_norm.weight" },
        /* no names of theirs: as they are */
        { "model.model.norm.weight", "model.model.norm.weight" },
        { "model.layers.01.input_layernorm.weight", "model.layers.01.input_layernorm.weight" },
        { "model.layers..input_layernorm.weight", "model.layers..input_layernorm.weight" },
        { "model.layers.1234567.input_layernorm.weight", "model.layers.1234567.input_layernorm.weight" },
        { "model.layers.1.input_layernorm", "model.layers.1.input_layernorm" },
        { "model.layers.1.", "model.layers.1." },
        { "model.layers.1", "model.layers.1" },
        { "model.layers.1.mlp.router.weight", "model.layers.1.mlp.router.weight" },
        { "model.layers.1.block_sparse_moe.experts.0.w4.weight", "model.layers.1.block_sparse_moe.experts.0.w4.weight" },
        { "model.layers.1.block_sparse_moe.experts.0.", "model.layers.1.block_sparse_moe.experts.0." },
        { "model.layers.1.block_sparse_moe.experts.7", "model.layers.1.block_sparse_moe.experts.7" },
        { "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.weight" },
    };
    char out[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(fo_hf_tensor_name(names[i][0], out, sizeof out));
        assert_string_equal(out, names[i][1]);
    }
    assert_false(fo_hf_tensor_name("model.layers.3.self_attn.rotary_emb.inv_freq", out, sizeof out));
}

/* --- config.json --- */

/* A key and the number it must have (absent: NAN), or its text. */
struct want {
    const char *key;
    double number;
    const char *text;
};

static const struct {
    const char *name, *config;
    struct want want[10];
} configs[] = {
    { "a llama",
      LLAMA(""),
      { { "general.architecture", 0, "llama" }, { "pantheon.rope.neox", 1, NULL }, { "llama.block_count", 2, NULL }, { "llama.attention.head_count_kv", 2, NULL },
        { "llama.attention.key_length", 32, NULL }, { "llama.rope.dimension_count", 32, NULL }, { "llama.rope.freq_base", 1e4, NULL },
        { "llama.attention.sliding_window", NAN, NULL }, { "llama.attention.layer_norm_rms_epsilon", (double)1e-5f, NULL }, { "llama.vocab_size", 96, NULL } } },
    { "no architectures, but a model_type", "{\"model_type\":\"qwen2\",\"rope_theta\":1e6," SIZES ",\"num_key_value_heads\":null}",
      { { "general.architecture", 0, "qwen2" }, { "qwen2.attention.head_count_kv", 32, NULL }, { "pantheon.rope.neox", NAN, NULL }, { "qwen2.rope.freq_base", 1e6, NULL } } },
    { "what mistral means by nothing", CONFIG("MistralForCausalLM", ""),
      { { "llama.attention.head_count_kv", 8, NULL }, { "llama.attention.sliding_window", 4096, NULL } } },
    { "a window", CONFIG("MistralForCausalLM", ",\"sliding_window\":16,\"head_dim\":64,\"num_key_value_heads\":4"),
      { { "llama.attention.head_count_kv", 4, NULL }, { "llama.attention.sliding_window", 16, NULL }, { "llama.attention.key_length", 64, NULL } } },
    { "no window", CONFIG("MistralForCausalLM", ",\"sliding_window\":null"), { { "llama.attention.sliding_window", NAN, NULL } } },
    { "a mixtral", CONFIG("MixtralForCausalLM", ",\"num_local_experts\":4"),
      { { "llama.expert_count", 4, NULL }, { "llama.expert_used_count", 2, NULL }, { "llama.rope.freq_base", 1e6, NULL }, { "llama.attention.sliding_window", NAN, NULL } } },
    { "a window that is not used", CONFIG("Qwen2ForCausalLM", ",\"sliding_window\":64,\"use_sliding_window\":false,\"max_window_layers\":0"),
      { { "qwen2.attention.sliding_window", NAN, NULL } } },
    { "a window in every layer", CONFIG("Qwen2ForCausalLM", ",\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":0"),
      { { "qwen2.attention.sliding_window", 64, NULL } } },
    { "a window in no layer", CONFIG("Qwen2ForCausalLM", ",\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":2"),
      { { "qwen2.attention.sliding_window", NAN, NULL } } },
    { "layer types", CONFIG("Qwen3ForCausalLM", ",\"sliding_window\":64,\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]"),
      { { "qwen3.attention.sliding_window", 64, NULL }, { "qwen3.attention.key_length", 128, NULL } } },
    { "layer types without a window", CONFIG("Qwen3ForCausalLM", ",\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"full_attention\"],\"head_dim\":32"),
      { { "qwen3.attention.sliding_window", NAN, NULL }, { "qwen3.attention.key_length", 32, NULL } } },
    { "a part of a head that turns", CONFIG("Phi3ForCausalLM", ",\"partial_rotary_factor\":0.75,\"sliding_window\":2047"),
      { { "phi3.rope.dimension_count", 24, NULL }, { "phi3.attention.sliding_window", 2047, NULL } } },
    { "linear scaling", LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}"),
      { { "llama.rope.scaling.type", 0, "linear" }, { "llama.rope.scaling.factor", 2.5, NULL } } },
    { "YaRN", LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64}"),
      { { "llama.rope.scaling.type", 0, "yarn" }, { "llama.rope.scaling.factor", 4, NULL }, { "llama.rope.scaling.original_context_length", 64, NULL },
        { "llama.rope.scaling.yarn_beta_fast", 32, NULL }, { "llama.rope.scaling.attn_factor", NAN, NULL } } },
    { "YaRN with its own attention factor", LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1.0,\"attention_factor\":1.5,\"beta_fast\":8,\"beta_slow\":2}"),
      { { "llama.rope.scaling.original_context_length", 256, NULL }, { "llama.rope.scaling.attn_factor", 1.5, NULL }, { "llama.rope.scaling.yarn_beta_fast", 8, NULL },
        { "llama.rope.scaling.yarn_beta_slow", 2, NULL } } },
    { "rope_parameters", LLAMA(",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":5e5,\"partial_rotary_factor\":0.5}"),
      { { "llama.rope.scaling.factor", 2, NULL }, { "llama.rope.freq_base", 5e5, NULL }, { "llama.rope.dimension_count", 16, NULL } } },
    { "rope_parameters that scale nothing", LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}"),
      { { "llama.rope.scaling.type", NAN, NULL }, { "llama.rope.freq_base", 5e5, NULL } } },
    { "a name", LLAMA(",\"_name_or_path\":\"someone/Model-1B\""), { { "general.name", 0, "Model-1B" } } },
};

static void check(const struct fo_gguf *g, const char *name, const struct want *w) {
    struct fo_err e;
    struct fo_str s;
    float f;
    bool b;
    const struct fo_gguf_kv *kv = fo_gguf_find(g, w->key);
    if (isnan(w->number) ? kv != NULL : kv == NULL) fail_msg("%s: %s is %s", name, w->key, kv ? "there" : "missing");
    if (!kv) return;
    if (w->text) {
        if (fo_gguf_get_str(g, w->key, &s, &e) || s.len != strlen(w->text) || memcmp(s.s, w->text, s.len) != 0) fail_msg("%s: %s is not %s", name, w->key, w->text);
    } else if (kv->type == FO_GGUF_BOOL) {
        assert_int_equal(fo_gguf_get_bool(g, w->key, &b, &e), FO_OK);
        assert_int_equal(b, w->number != 0);
    } else {
        assert_int_equal(fo_gguf_get_f32(g, w->key, &f, &e), FO_OK);
        if ((double)f != w->number) fail_msg("%s: %s is %g, expected %g", name, w->key, (double)f, w->number);
    }
}

static void what_config_json_says_is_said_in_gguf_s_words(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct test_st w;
        test_st_init(&w);
        test_st_add(&w, "lm_head.weight", "F32", (const uint64_t[]){ 1 }, 1, "\0\0\0", 4);
        test_st_write(&w, in_dir("model.safetensors"));
        test_write_text(in_dir("config.json"), configs[i].config);
        struct fo_gguf *g = opened();
        for (const struct want *x = configs[i].want; x->key && x < configs[i].want + 10; x++) check(g, configs[i].name, x);
        assert_string_equal(fo_gguf_format(g), "safetensors");
        fo_gguf_close(g);
    }
}

static void the_directory_s_name_is_the_model_s(void **state) {
    (void)state;
    struct fo_gguf *g;
    struct fo_err e;
    test_hf_write(gguf, dir, 1, 0, LLAMA(""));
    g = opened();
    check(g, "name", &(struct want){ "general.name", 0, strrchr(dir, '/') + 1 });
    fo_gguf_close(g);
    assert_int_equal(fo_model_open(in_dir("///"), &g, &e), FO_OK);
    check(g, "name with slashes", &(struct want){ "general.name", 0, strrchr(dir, '/') + 1 });
    fo_gguf_close(g);
}

#define LONGROPE "\"short_factor\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1.5],\"long_factor\":[1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2.5]"

static void llama3_and_longrope_scaling_become_divisors(void **state) {
    (void)state;
    struct fo_gguf *g;
    test_hf_write(gguf, dir, 1, 0, LLAMA(",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                                         "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}"));
    g = opened();
    const struct fo_gguf_tensor *t = fo_gguf_tensor(g, "rope_freqs.weight");
    assert_non_null(t);
    assert_true(t->t.type == FO_F32 && t->t.ne[0] == 16 && t->bytes == 64 && !t->map);
    const float *f = t->t.data;
    assert_true(f[0] == 1 && f[15] == 8); /* turns 10 times, and hardly at all */
    /* the second: frequency 500000^(-1/16), 64 positions turn 4.4857 times: over 4; the third 1.9749: mixed */
    assert_true(f[1] == 1);
    double turns = 64 * pow(500000, -2.0 / 16) / (2 * 3.14159265358979323846), mix = (turns - 1) / 3;
    assert_true(fabs((double)f[2] - 1 / ((1 - mix) / 8 + mix)) < 1e-6);
    check(g, "llama3", &(struct want){ "llama.rope.scaling.type", NAN, NULL });
    fo_gguf_close(g);

    for (int i = 0; i < 3; i++) {
        static const char *const texts[] = {
            CONFIG("Phi3ForCausalLM", ",\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"longrope\"," LONGROPE "}"),
            CONFIG("Phi3ForCausalLM", ",\"rope_scaling\":{\"type\":\"su\",\"original_max_position_embeddings\":64," LONGROPE "}"),
            CONFIG("Phi3ForCausalLM", ",\"original_max_position_embeddings\":64,\"rope_parameters\":{\"rope_type\":\"longrope\",\"attention_factor\":1.25," LONGROPE "}"),
        };
        test_hf_write(gguf, dir, 1, 0, texts[i]);
        g = opened();
        const struct fo_gguf_tensor *s = fo_gguf_tensor(g, "rope_factors_short.weight"), *l = fo_gguf_tensor(g, "rope_factors_long.weight");
        assert_true(s && l && ((const float *)s->t.data)[15] == 1.5f && ((const float *)l->t.data)[8] == 2 && l->t.ne[0] == 16);
        check(g, "longrope", &(struct want){ "phi3.rope.scaling.type", 0, "longrope" });
        check(g, "longrope", &(struct want){ "phi3.rope.scaling.original_context_length", 64, NULL });
        check(g, "longrope", &(struct want){ "phi3.rope.scaling.attn_factor", i == 2 ? 1.25 : (double)(float)sqrt(1 + log(4) / log(64)), NULL });
        fo_gguf_close(g);
    }
}

static const struct {
    const char *config;
    enum fo_code code;
    const char *says;
} bad[] = {
    { "", FO_EFORMAT, "config.json: line 1" },
    { "[]", FO_EFORMAT, "config.json: not an object" },
    { "{\"a\":1,\"a\":2}", FO_EFORMAT, "config.json: line 1|duplicate" },
    { "{}", FO_EFORMAT, "architectures is missing: this is no language model" },
    { "{\"architectures\":[7]}", FO_EFORMAT, "architectures is missing" },
    { CONFIG("GemmaForCausalLM", ""), FO_EUNSUPPORTED, "architecture \"GemmaForCausalLM\" is not one that this build serves|LlamaForCausalLM" },
    { "{\"model_type\":\"rwkv\"}", FO_EUNSUPPORTED, "architecture \"rwkv\"" },
    { LLAMA(",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}"), FO_EUNSUPPORTED, "quantization_config (gptq)" },
    { LLAMA(",\"quantization_config\":{}"), FO_EUNSUPPORTED, "quantization_config (no quant_method)" },
    { LLAMA(",\"compression_config\":{\"quant_method\":\"compressed-tensors\"}"), FO_EUNSUPPORTED, "compression_config (compressed-tensors)" },
    { LLAMA(",\"hidden_act\":\"gelu\""), FO_EUNSUPPORTED, "hidden_act is \"gelu\"" },
    { CONFIG("Qwen2ForCausalLM", ",\"use_mrope\":true"), FO_EUNSUPPORTED, "use_mrope" },
    { "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64}", FO_EFORMAT, "num_hidden_layers is missing" },
    { "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":-1}", FO_EFORMAT, "num_hidden_layers is not a whole number" },
    { LLAMA(",\"head_dim\":\"32\""), FO_EFORMAT, "head_dim is not a whole number" },
    { LLAMA(",\"head_dim\":1025"), FO_EFORMAT, "heads of 1025" },
    { LLAMA(",\"tie_word_embeddings\":1"), FO_EFORMAT, "tie_word_embeddings is not true or false" },
    { LLAMA(",\"rope_theta\":-1"), FO_EFORMAT, "rope_theta is not a positive number" },
    { LLAMA(",\"partial_rotary_factor\":1.5"), FO_EFORMAT, "partial_rotary_factor is not a number up to 1" },
    { LLAMA(",\"rope_scaling\":[]"), FO_EFORMAT, "rope_scaling is not an object" },
    { LLAMA(",\"rope_scaling\":{\"factor\":2}"), FO_EFORMAT, "a factor, but no rope_type" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}"), FO_EUNSUPPORTED, "rope_type of its rope scaling is \"dynamic\"" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"linear\"}"), FO_EFORMAT, "the factor of its rope scaling is missing" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"mscale\":1}"), FO_EUNSUPPORTED, "mscale is 1" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":false}"), FO_EUNSUPPORTED, "truncate is set" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2}"), FO_EFORMAT, "llama3 rope scaling needs" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1]}"), FO_EFORMAT, "short_factor is not a list of 16" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0]}"), FO_EFORMAT, "short_factor is not a list of positive" },
    { LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"long_mscale\":1.2," LONGROPE "}"), FO_EUNSUPPORTED, "long_mscale is 1.2" },
    { LLAMA(",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}"), FO_EUNSUPPORTED, "full_attention is set" },
    { CONFIG("Qwen2ForCausalLM", ",\"use_sliding_window\":true,\"max_window_layers\":1"), FO_EUNSUPPORTED, "1 of 2 layers have a sliding window" },
    { CONFIG("MistralForCausalLM", ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]"), FO_EUNSUPPORTED, "1 of 2 layers" },
    { CONFIG("MistralForCausalLM", ",\"layer_types\":[\"full_attention\"]"), FO_EFORMAT, "layer_types is not a list" },
    { CONFIG("MistralForCausalLM", ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]"), FO_EUNSUPPORTED, "layer_types is \"chunked_attention\"" },
};

static void what_a_config_cannot_mean_here_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test_write_text(in_dir("config.json"), bad[i].config);
        refused(bad[i].code, bad[i].says);
    }
}

/* --- the directory --- */

static void one_file_or_several_hold_the_same_tensors_where_they_are_mapped(void **state) {
    (void)state;
    struct fo_gguf *whole;
    struct fo_err e;
    assert_int_equal(fo_gguf_open(gguf, &whole, &e), FO_OK);
    for (uint32_t n_files = 1; n_files <= 3; n_files += 2) {
        test_hf_remove(dir);
        test_hf_write(gguf, dir, n_files, 1, LLAMA(""));
        struct fo_gguf *g = opened();
        assert_int_equal(fo_gguf_n_files(g), n_files);
        assert_int_equal(fo_gguf_n_tensors(g), fo_gguf_n_tensors(whole));
        for (size_t i = 0; i < fo_gguf_n_tensors(whole); i++) {
            const struct fo_gguf_tensor *want = fo_gguf_tensor_at(whole, i);
            char name[65];
            snprintf(name, sizeof name, "%.*s", (int)want->name.len, want->name.s);
            const struct fo_gguf_tensor *have = fo_gguf_tensor(g, name);
            if (!have) fail_msg("%s is missing", name);
            assert_int_equal(have->t.type, want->t.type);
            assert_memory_equal(have->t.ne, want->t.ne, sizeof want->t.ne);
            assert_memory_equal(have->t.data, want->t.data, want->bytes);
            assert_ptr_equal(have->t.data, fo_map_data(have->map) + have->offset);
        }
        assert_int_equal(fo_gguf_state(g, &e), FO_OK);
        fo_gguf_close(g);
    }
    fo_gguf_close(whole);
}

static void a_tied_output_and_old_buffers_are_left_out(void **state) {
    (void)state;
    struct test_st w;
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 1, 0, LLAMA(",\"tie_word_embeddings\":true"));
    struct fo_gguf *g = opened();
    assert_null(fo_gguf_tensor(g, "output.weight"));
    fo_gguf_close(g);
    test_st_init(&w);
    test_st_add(&w, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (const uint64_t[]){ 1 }, 1, "\0\0\0", 4);
    test_st_write(&w, in_dir("model.safetensors"));
    g = opened();
    assert_int_equal(fo_gguf_n_tensors(g), 0);
    fo_gguf_close(g);
}

static void what_config_json_promises_must_be_there(void **state) {
    (void)state;
    struct test_st w;
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 1, 0, LLAMA(",\"attention_bias\":true"));
    refused(FO_EFORMAT, "model.layers.0.self_attn.q_proj.bias is missing");
    test_hf_write(gguf, dir, 1, 0, CONFIG("Qwen2ForCausalLM", ""));
    refused(FO_EFORMAT, "model.layers.0.self_attn.q_proj.bias is missing");
    test_hf_write(gguf, dir, 1, 0, LLAMA(""));
    test_st_init(&w);
    test_st_add(&w, "model.norm.weight", "F32", (const uint64_t[]){ 1 }, 1, "\0\0\0", 4);
    test_st_write(&w, in_dir("model.safetensors"));
    refused(FO_EFORMAT, "lm_head.weight is missing, but tie_word_embeddings is not true");
}

static void a_directory_that_is_no_model_says_what_it_lacks(void **state) {
    (void)state;
    test_hf_remove(dir);
    refused(FO_ENOENT, dir);
    mkdir(dir, 0755);
    refused(FO_ENOENT, "no config.json in this directory");
    test_write_text(in_dir("config.json"), LLAMA(""));
    refused(FO_ENOENT, "neither model.safetensors nor model.safetensors.index.json");
    test_write_text(in_dir("pytorch_model.bin"), "x");
    refused(FO_ENOENT, "pytorch_model.bin is not read: convert it");
    test_write_text(in_dir("model.safetensors"), "");
    refused(FO_EFORMAT, "model.safetensors: the file is empty");
    test_write_text(in_dir("model.safetensors"), "GGUF");
    refused(FO_EFORMAT, "model.safetensors: 4 bytes are no safetensors file");
}

#define SWITCH(name) "{\"word_embedding_dimension\":256,\"pooling_mode_cls_token\":false,\"" name "\":true,\"pooling_mode_max_tokens\":false}"
#define MODULE(class, path) "{\"idx\":0,\"name\":\"0\",\"path\":\"" path "\",\"type\":\"sentence_transformers.models." class "\"}"
#define MODULES "[" MODULE("Transformer", "") "," MODULE("Pooling", "1_Pooling") "," MODULE("Normalize", "2_Normalize")

static const struct {
    const char *modules, *pooling; /* the files; NULL = there is none */
    int type;                      /* -1 = no key, -2 = refused */
    const char *says;
} poolings[] = {
    { NULL, NULL, -1, NULL },
    { NULL, SWITCH("pooling_mode_mean_tokens"), 1, NULL },
    { NULL, "{\"pooling_mode_cls_token\":true}", 2, NULL },
    { NULL, SWITCH("pooling_mode_lasttoken"), 3, NULL },
    { NULL, SWITCH("pooling_mode_mean_sqrt_len_tokens"), 1, NULL },
    { NULL, SWITCH("pooling_mode_weightedmean_tokens"), 0, NULL },
    { NULL, "{\"pooling_mode_max_tokens\":true}", 0, NULL },
    { NULL, "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":true}", 0, NULL },
    { NULL, "{\"pooling_mode_mean_tokens\":true,\"include_prompt\":true}", 1, NULL },
    { NULL, "{\"pooling_mode_mean_tokens\":true,\"include_prompt\":false}", 0, NULL },
    { NULL, "{\"pooling_mode\":\"lasttoken\"}", 3, NULL },
    { NULL, "{\"pooling_mode\":\"mean\",\"pooling_mode_cls_token\":false}", 1, NULL },
    { NULL, "{\"pooling_mode\":\"median\"}", 0, NULL },
    { NULL, "{}", 0, NULL },
    { MODULES "]", SWITCH("pooling_mode_lasttoken"), 3, NULL },
    { MODULES "," MODULE("Dense", "3_Dense") "]", SWITCH("pooling_mode_lasttoken"), 0, NULL },
    { MODULES "," MODULE("Pooling", "1_Pooling") "]", SWITCH("pooling_mode_lasttoken"), 0, NULL },
    { "[" MODULE("Transformer", "") "]", SWITCH("pooling_mode_lasttoken"), 0, NULL },
    { MODULES "]", NULL, 0, NULL },
    { "{}", NULL, -2, "modules.json: not a list" },
    { "[5]", NULL, -2, "modules.json: entry 0 has no type" },
    { "[" MODULE("Pooling", "../elsewhere") "]", NULL, -2, "modules.json: the path of entry 0 is not the name of a folder" },
    { "[" MODULE("Pooling", "") "]", NULL, -2, "modules.json: the path of entry 0" },
    { "[", NULL, -2, "modules.json: line 1" },
    { NULL, "[]", -2, "1_Pooling/config.json: not an object" },
    { NULL, "{\"pooling_mode\":1}", -2, "1_Pooling/config.json: pooling_mode is not a text" },
    { NULL, "{\"pooling_mode_cls_token\":1}", -2, "1_Pooling/config.json: pooling_mode_cls_token is not true or false" },
    { NULL, "{\"a\":1,\"a\":1}", -2, "1_Pooling/config.json: line 1" },
};

static void sentence_transformers_files_say_how_to_pool(void **state) {
    (void)state;
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 1, 0, LLAMA(""));
    mkdir(in_dir("1_Pooling"), 0755);
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++) {
        unlink(in_dir("modules.json"));
        unlink(in_dir("1_Pooling/config.json"));
        if (poolings[i].modules) test_write_text(in_dir("modules.json"), poolings[i].modules);
        if (poolings[i].pooling) test_write_text(in_dir("1_Pooling/config.json"), poolings[i].pooling);
        if (poolings[i].type == -2) {
            refused(FO_EFORMAT, poolings[i].says);
            continue;
        }
        struct fo_gguf *g = opened();
        uint32_t type = 99;
        struct fo_err e;
        bool there = fo_gguf_find(g, "llama.pooling_type") != NULL;
        if (there != (poolings[i].type >= 0)) fail_msg("row %zu: a pooling is %sthere", i, there ? "" : "not ");
        if (there) assert_int_equal(fo_gguf_get_u32(g, "llama.pooling_type", &type, &e), FO_OK);
        if (there && (int)type != poolings[i].type) fail_msg("row %zu: pooling %u, not %d", i, type, poolings[i].type);
        fo_gguf_close(g);
    }
    unlink(in_dir("modules.json"));
    unlink(in_dir("1_Pooling/config.json"));
    rmdir(in_dir("1_Pooling"));
}

static const struct {
    const char *index;
    enum fo_code code;
    const char *says;
} indexes[] = {
    { "[]", FO_EFORMAT, "index.json: offset 0: expected an object" },
    { "{}", FO_EFORMAT, "index.json: offset 2: weight_map is missing" },
    { "{\"metadata\":{\"a\":[1,{}]}}", FO_EFORMAT, "weight_map is missing" },
    { "{\"weight_map\":{},\"weight_map\":{}}", FO_EFORMAT, "weight_map is there twice" },
    { "{\"weight_map\":{}} x", FO_EFORMAT, "more text" },
    { "{\"weight_map\":{\"a\":\"../model-00001-of-00003.safetensors\"}}", FO_EFORMAT, "\"../model-00001-of-00003.safetensors\" is not the name of" },
    { "{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", FO_EFORMAT, "\"/etc/x.safetensors\" is not the name of" },
    { "{\"weight_map\":{\"a\":\".safetensors\"}}", FO_EFORMAT, "\".safetensors\" is not the name of" },
    { "{\"weight_map\":{\"a\":\".x.safetensors\"}}", FO_EFORMAT, "\".x.safetensors\" is not the name of" },
    { "{\"weight_map\":{\"a\":\"config.json\"}}", FO_EFORMAT, "\"config.json\" is not the name of" },
    { "{\"weight_map\":{\"a\":7}}", FO_EFORMAT, "expected a text" },
    { "{\"weight_map\":{\"a\":\"none.safetensors\"}}", FO_ENOENT, "none.safetensors is missing: the model is in 1 files" },
    { "{\"weight_map\":{\"a\":\"none.safetensors\",\"b\":\"nor.safetensors\"}}", FO_ENOENT, "none.safetensors is missing, and 1 more of the 2" },
    { "{\"weight_map\":{\"model.layers.9.mlp.up_proj.weight\":\"model-00001-of-00003.safetensors\"}}", FO_EFORMAT,
      "model-00001-of-00003.safetensors: tensor model.layers.9.mlp.up_proj.weight is missing" },
    { "{\"weight_map\":{\"model.embed_tokens.weight\":\"model-00003-of-00003.safetensors\",\"a\":\"model-00001-of-00003.safetensors\"}}", FO_EFORMAT,
      "model-00003-of-00003.safetensors: tensor model.embed_tokens.weight is missing" },
};

static void an_index_is_checked_file_by_file_and_tensor_by_tensor(void **state) {
    (void)state;
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 3, 0, LLAMA(""));
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        test_write_text(in_dir("model.safetensors.index.json"), indexes[i].index);
        refused(indexes[i].code, indexes[i].says);
    }
    for (int i = 1; i <= 3; i++) {
        char file[64];
        test_hf_write(gguf, dir, 3, 0, LLAMA(""));
        snprintf(file, sizeof file, "model-%05d-of-00003.safetensors", i);
        unlink(in_dir(file));
        refused(FO_ENOENT, file);
    }
}

static void a_tensor_in_two_files_is_refused_naming_both(void **state) {
    (void)state;
    struct test_st w;
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 2, 0, LLAMA(""));
    test_st_init(&w);
    test_st_add(&w, "model.embed_tokens.weight", "F32", (const uint64_t[]){ 1 }, 1, "\0\0\0", 4);
    test_st_write(&w, in_dir("model-00002-of-00002.safetensors"));
    refused(FO_EFORMAT, "model-00002-of-00002.safetensors: tensor token_embd.weight is in|model-00001-of-00002.safetensors too");
    /* and twice in one */
    test_st_init(&w);
    for (int i = 0; i < 2; i++) test_st_add(&w, "model.norm.weight", "F32", (const uint64_t[]){ 1 }, 1, "\0\0\0", 4);
    test_st_write(&w, in_dir("model.safetensors"));
    refused(FO_EFORMAT, "model.safetensors: tensor output_norm.weight is in");
}

static void a_file_that_changes_is_a_loss_and_another_identity(void **state) {
    (void)state;
    struct fo_err e;
    test_sigbus_guard();
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 2, 0, LLAMA(""));
    struct fo_gguf *g = opened();
    uint64_t one = fo_model_identity(dir), other;
    assert_true(one != 0 && one == fo_model_identity(dir));
    test_write_text(in_dir("notes.txt"), "no part of the model");
    assert_true(one == fo_model_identity(dir));
    test_write_text(in_dir("chat_template.jinja"), "x");
    assert_true(one != (other = fo_model_identity(dir)));
    assert_int_equal(fo_gguf_state(g, &e), FO_OK);
    assert_int_equal(truncate(in_dir("model-00002-of-00002.safetensors"), 100), 0);
    assert_true(other != fo_model_identity(dir));
    assert_int_equal(fo_gguf_state(g, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "model-00002-of-00002.safetensors: the file was truncated"));
    fo_gguf_close(g);
}

static void mutants_of_every_file_are_refused_or_opened(void **state) {
    (void)state;
    static const char *const files[] = { "config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors" };
    struct fo_rng rng;
    int n_refused = 0, n = 0;
    fo_rng_seed(&rng, 7);
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 2, 0, LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\"," LONGROPE "}"));
    for (int f = 0; f < 3; f++) {
        char *good;
        size_t len;
        struct fo_err e;
        assert_int_equal(fo_file_read(in_dir(files[f]), 1 << 22, &good, &len, &e), FO_OK);
        size_t reach = f == 2 ? 2000 : len; /* of a safetensors file mostly the header */
        char *bytes = malloc(len);
        assert_non_null(bytes);
        for (int i = 0; i < 334; i++, n++) {
            struct timespec a, b;
            size_t size = len;
            memcpy(bytes, good, len);
            switch (fo_rng_u64(&rng) % 3) {
            case 0: size = (size_t)(fo_rng_u64(&rng) % len); break;
            case 1: bytes[fo_rng_u64(&rng) % reach] = "{}[]\",:0189eF-"[fo_rng_u64(&rng) % 14]; break;
            default: bytes[fo_rng_u64(&rng) % reach] ^= (char)(1 << fo_rng_u64(&rng) % 8); break;
            }
            test_write_bytes(in_dir(files[f]), bytes, size);
            struct fo_gguf *g = NULL;
            test_fail_alloc(0);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
            int rc = fo_model_open(dir, &g, &e);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
            assert_true(test_alloc_bytes() <= 16 << 20);
            assert_true((b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec) < 1.0);
            n_refused += rc != FO_OK;
            fo_gguf_close(rc ? NULL : g);
        }
        test_write_bytes(in_dir(files[f]), good, len);
        free(bytes);
        free(good);
    }
    assert_true(n > 1000 && n_refused > 400 && n_refused < n);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    test_hf_remove(dir);
    test_hf_write(gguf, dir, 2, 0, LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\"," LONGROPE "}"));
    test_write_text(in_dir("modules.json"), MODULES "]");
    mkdir(in_dir("1_Pooling"), 0755);
    test_write_text(in_dir("1_Pooling/config.json"), SWITCH("pooling_mode_lasttoken"));
    long n = 1;
    for (;; n++) {
        struct fo_gguf *g = NULL;
        struct fo_err e;
        test_fail_alloc(n);
        int rc = fo_model_open(dir, &g, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, FO_OK);
            fo_gguf_close(g);
            break;
        }
        if (rc != FO_ENOMEM) fail_msg("allocation %ld: %s", n, rc ? e.msg : "opened");
        assert_null(g);
    }
    assert_true(n > 20);
    unlink(in_dir("1_Pooling/config.json"));
    rmdir(in_dir("1_Pooling"));
}

/* Seeds of tests/fuzz/fuzz_safetensors.c: --write tests/data/safetensors; the others are written by test_safetensors. */
static int write_seeds(const char *to) {
    char path[512];
#define WRITE(list, what, text)                                        \
    for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++) {       \
        snprintf(path, sizeof path, "%s/" what "-%02zu.json", to, i);  \
        test_write_text(path, (list)[i].text);                         \
    }
    WRITE(configs, "config", config)
    WRITE(bad, "bad-config", config)
    WRITE(indexes, "index", index)
#undef WRITE
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_seeds(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_become_those_of_gguf),
        cmocka_unit_test(what_config_json_says_is_said_in_gguf_s_words),
        cmocka_unit_test(the_directory_s_name_is_the_model_s),
        cmocka_unit_test(llama3_and_longrope_scaling_become_divisors),
        cmocka_unit_test(what_a_config_cannot_mean_here_is_refused_by_name),
        cmocka_unit_test(one_file_or_several_hold_the_same_tensors_where_they_are_mapped),
        cmocka_unit_test(a_tied_output_and_old_buffers_are_left_out),
        cmocka_unit_test(what_config_json_promises_must_be_there),
        cmocka_unit_test(sentence_transformers_files_say_how_to_pool),
        cmocka_unit_test(a_directory_that_is_no_model_says_what_it_lacks),
        cmocka_unit_test(an_index_is_checked_file_by_file_and_tensor_by_tensor),
        cmocka_unit_test(a_tensor_in_two_files_is_refused_naming_both),
        cmocka_unit_test(a_file_that_changes_is_a_loss_and_another_identity),
        cmocka_unit_test(mutants_of_every_file_are_refused_or_opened),
        cmocka_unit_test(every_failing_allocation_is_an_error_and_leaks_nothing),
    };
    test_sigbus_init();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
