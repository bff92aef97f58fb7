/* config.json: see hf_config.h. Everything that an architecture adds is a row; a key that is absent has the value that transformers gives
 * it, since a config.json written by hand may leave it out. What would change the mathematics and is not computed here is refused by name,
 * never ignored. The numbers' bounds are checked later, where every model's are (engine/hparams.c). */
#include "foundry/hf_config.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/gguf_write.h"

enum { MAX_HEAD_DIM = 1024, MAX_KEY = 96, MAX_NAME = 128 };
enum window { NO_WINDOW, WINDOW, WINDOW_IF_USED };

/* THE architectures. */
struct row {
    const char *name, *model_type, *arch;
    uint32_t n_head_kv; /* what is meant when the key is absent; 0: as many as heads */
    uint32_t head_dim;  /* the same; 0: hidden_size / heads */
    double rope_theta;
    enum window window;
    uint32_t window_size;
    bool experts, biases; /* biases: always there, whatever attention_bias says */
};
static const struct row rows[] = {
    { "LlamaForCausalLM", "llama", "llama", 0, 0, 1e4, NO_WINDOW, 0, false, false },
    { "MistralForCausalLM", "mistral", "llama", 8, 0, 1e4, WINDOW, 4096, false, false },
    { "MixtralForCausalLM", "mixtral", "llama", 8, 0, 1e6, WINDOW, 0, true, false },
    { "Qwen2ForCausalLM", "qwen2", "qwen2", 32, 0, 1e4, WINDOW_IF_USED, 4096, false, true },
    { "Qwen3ForCausalLM", "qwen3", "qwen3", 32, 128, 1e4, WINDOW_IF_USED, 4096, false, false },
    { "Phi3ForCausalLM", "phi3", "phi3", 0, 0, 1e4, WINDOW, 0, false, false },
};
enum { N_ROWS = sizeof rows / sizeof *rows };

struct config {
    const json_t *top;
    const char *name; /* of the file */
    const struct row *row;
    struct fo_gguf_writer *w;
    struct fo_region *region;
    struct fo_hf_config out;
    struct fo_err *e;
    uint32_t n_layer, n_ctx, head_dim, n_rot;
};

/* --- values --- */

/* NULL when the key is absent or null, which mean the same. */
static const json_t *member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static int wrong(struct config *c, const char *key, const char *expected) {
    return (int)fo_fail(c->e, FO_EFORMAT, "%s: %s is not %s", c->name, key, expected);
}

static int unsupported(struct config *c, const char *key, const json_t *v) {
    if (json_is_string(v)) return (int)fo_fail(c->e, FO_EUNSUPPORTED, "%s: %s is \"%.64s\", which this build does not serve", c->name, key, json_string_value(v));
    if (json_is_number(v)) return (int)fo_fail(c->e, FO_EUNSUPPORTED, "%s: %s is %g, which this build does not serve", c->name, key, json_number_value(v));
    return (int)fo_fail(c->e, FO_EUNSUPPORTED, "%s: %s is set, which this build does not serve", c->name, key);
}

/* A whole number; *inout keeps its value when the key is absent. */
static int whole(struct config *c, const json_t *o, const char *key, uint32_t *inout) {
    const json_t *v = member(o, key);
    if (!v) return FO_OK;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n > UINT32_MAX) return wrong(c, key, "a whole number from 0 to 4294967295");
    *inout = (uint32_t)n;
    return FO_OK;
}

/* A positive number. */
static int real(struct config *c, const json_t *o, const char *key, double *inout) {
    const json_t *v = member(o, key);
    if (!v) return FO_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x > 0) || !(x < 1e30)) return wrong(c, key, "a positive number");
    *inout = x;
    return FO_OK;
}

static int boolean(struct config *c, const char *key, bool *inout) {
    const json_t *v = member(c->top, key);
    if (!v) return FO_OK;
    if (!json_is_boolean(v)) return wrong(c, key, "true or false");
    *inout = json_is_true(v);
    return FO_OK;
}

static const char *key_name(const struct config *c, char out[MAX_KEY], const char *suffix) {
    snprintf(out, MAX_KEY, "%s.%s", c->row->arch, suffix);
    return out;
}

static void put_u32(struct config *c, const char *suffix, uint32_t v) {
    char key[MAX_KEY];
    fo_gguf_put_u32(c->w, key_name(c, key, suffix), v);
}

static void put_f32(struct config *c, const char *suffix, double v) {
    char key[MAX_KEY];
    fo_gguf_put_f32(c->w, key_name(c, key, suffix), (float)v);
}

static void put_str(struct config *c, const char *suffix, const char *v) {
    char key[MAX_KEY];
    fo_gguf_put_str(c->w, key_name(c, key, suffix), (struct fo_str){ v, strlen(v) });
}

/* --- which architecture --- */

static int find_row(struct config *c) {
    const json_t *list = member(c->top, "architectures"), *type = member(c->top, "model_type");
    const char *name = json_string_value(json_array_get(list, 0)), *model_type = json_string_value(type);
    char known[256] = "";
    for (int i = 0; i < N_ROWS; i++) {
        if (name ? strcmp(name, rows[i].name) == 0 : model_type && strcmp(model_type, rows[i].model_type) == 0) {
            c->row = &rows[i];
            return FO_OK;
        }
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", rows[i].name);
    }
    if (!name && !model_type) return (int)fo_fail(c->e, FO_EFORMAT, "%s: architectures is missing: this is no language model", c->name);
    return (int)fo_fail(c->e, FO_EUNSUPPORTED, "%s: architecture \"%.64s\" is not one that this build serves from safetensors (%s)", c->name,
                        name ? name : model_type, known);
}

/* What a model may have and none here is computed with. */
static int refuse(struct config *c) {
    static const char *const keys[] = { "quantization_config", "compression_config" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = member(c->top, keys[i]), *method = member(v, "quant_method");
        if (v)
            return (int)fo_fail(c->e, FO_EUNSUPPORTED, "%s: %s (%.64s): quantised safetensors are not served by this build", c->name, keys[i],
                                json_is_string(method) ? json_string_value(method) : "no quant_method");
    }
    const json_t *act = member(c->top, "hidden_act"), *mrope = member(c->top, "use_mrope");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0)) return unsupported(c, "hidden_act", act);
    return mrope && !json_is_false(mrope) ? unsupported(c, "use_mrope", mrope) : FO_OK;
}

/* --- sizes --- */

static int sizes(struct config *c) {
    static const struct {
        const char *config, *key;
    } needed[] = {
        { "num_hidden_layers", "block_count" },        { "max_position_embeddings", "context_length" },
        { "hidden_size", "embedding_length" },         { "intermediate_size", "feed_forward_length" },
        { "num_attention_heads", "attention.head_count" }, { "vocab_size", "vocab_size" },
    };
    enum { N_NEEDED = sizeof needed / sizeof *needed, LAYERS = 0, CTX = 1, HIDDEN = 2, HEADS = 4 };
    uint32_t v[N_NEEDED] = { 0 };
    for (int i = 0; i < N_NEEDED; i++) {
        if (!member(c->top, needed[i].config)) return (int)fo_fail(c->e, FO_EFORMAT, "%s: %s is missing", c->name, needed[i].config);
        if (whole(c, c->top, needed[i].config, &v[i])) return (int)c->e->code;
        put_u32(c, needed[i].key, v[i]);
    }
    double eps = 0;
    uint32_t n_head_kv = c->row->n_head_kv ? c->row->n_head_kv : v[HEADS], head_dim = c->row->head_dim;
    if (!member(c->top, "rms_norm_eps")) return (int)fo_fail(c->e, FO_EFORMAT, "%s: rms_norm_eps is missing", c->name);
    if (real(c, c->top, "rms_norm_eps", &eps) || whole(c, c->top, "num_key_value_heads", &n_head_kv) || whole(c, c->top, "head_dim", &head_dim))
        return (int)c->e->code;
    if (!head_dim && v[HEADS]) head_dim = v[HIDDEN] / v[HEADS];
    if (head_dim < 1 || head_dim > MAX_HEAD_DIM)
        return (int)fo_fail(c->e, FO_EFORMAT, "%s: heads of %u (head_dim, or hidden_size over num_attention_heads), expected 1 to %d", c->name, head_dim, MAX_HEAD_DIM);
    put_f32(c, "attention.layer_norm_rms_epsilon", eps);
    put_u32(c, "attention.head_count_kv", n_head_kv);
    put_u32(c, "attention.key_length", head_dim);
    put_u32(c, "attention.value_length", head_dim);
    c->n_layer = v[LAYERS];
    c->n_ctx = v[CTX];
    c->head_dim = head_dim;
    return FO_OK;
}

static int experts(struct config *c) {
    uint32_t n = 8, used = 2;
    if (!c->row->experts) return FO_OK;
    if (whole(c, c->top, "num_local_experts", &n) || whole(c, c->top, "num_experts_per_tok", &used)) return (int)c->e->code;
    put_u32(c, "expert_count", n);
    put_u32(c, "expert_used_count", used);
    return FO_OK;
}

/* --- the window --- */

/* Newer files say for each layer whether it has one. All or none can be served. */
static int windowed_layers(struct config *c, uint32_t *ret_n) {
    const json_t *list = member(c->top, "layer_types");
    uint32_t n = 0;
    if (!json_is_array(list) || json_array_size(list) != c->n_layer) return wrong(c, "layer_types", "a list of one text a layer");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));
        bool sliding = type && strcmp(type, "sliding_attention") == 0;
        if (!sliding && (!type || strcmp(type, "full_attention") != 0)) return unsupported(c, "an entry of layer_types", json_array_get(list, i));
        n += sliding;
    }
    *ret_n = n;
    return FO_OK;
}

static int window(struct config *c) {
    uint32_t size = c->row->window_size, with = c->n_layer, first = 28;
    bool used = c->row->window == WINDOW;
    if (c->row->window == NO_WINDOW) return FO_OK;
    if (json_object_get(c->top, "sliding_window") && !member(c->top, "sliding_window")) size = 0; /* null: there is none */
    if (whole(c, c->top, "sliding_window", &size)) return (int)c->e->code;
    if (c->row->window == WINDOW_IF_USED && (boolean(c, "use_sliding_window", &used) || whole(c, c->top, "max_window_layers", &first))) return (int)c->e->code;
    if (!used || !size) return FO_OK;
    if (c->row->window == WINDOW_IF_USED) with = first < c->n_layer ? c->n_layer - first : 0;
    if (member(c->top, "layer_types") && windowed_layers(c, &with)) return (int)c->e->code;
    if (with == 0) return FO_OK;
    if (with != c->n_layer)
        return (int)fo_fail(c->e, FO_EUNSUPPORTED, "%s: %u of %u layers have a sliding window, the others none, which this build does not serve", c->name, with,
                            c->n_layer);
    put_u32(c, "attention.sliding_window", size);
    return FO_OK;
}

/* --- rotary embedding --- */

static float *region_floats(struct config *c, size_t n) {
    float *out = fo_region_array(c->region, n, sizeof *out);
    if (!out) fo_fail(c->e, FO_ENOMEM, "%s: no memory for rotary factors", c->name);
    return out;
}

static int rope_default(struct config *c, const json_t *o, double theta) {
    (void)c, (void)o, (void)theta;
    return FO_OK;
}

static int needed_factor(struct config *c, const json_t *o, double *ret) {
    *ret = 0;
    if (real(c, o, "factor", ret)) return (int)c->e->code;
    return *ret > 0 ? FO_OK : (int)fo_fail(c->e, FO_EFORMAT, "%s: the factor of its rope scaling is missing", c->name);
}

static int rope_linear(struct config *c, const json_t *o, double theta) {
    double factor;
    (void)theta;
    if (needed_factor(c, o, &factor)) return (int)c->e->code;
    put_str(c, "rope.scaling.type", "linear");
    put_f32(c, "rope.scaling.factor", factor);
    return FO_OK;
}

/* YaRN (arXiv 2309.00071). The attention factor is written as what it has over YaRN's own, which is what GGUF keeps. */
static int rope_yarn(struct config *c, const json_t *o, double theta) {
    static const char *const refused[] = { "mscale", "mscale_all_dim" };
    double factor, attention = 0, fast = 32, slow = 1;
    uint32_t original = c->n_ctx;
    const json_t *truncate = member(o, "truncate");
    (void)theta;
    for (int i = 0; i < 2; i++)
        if (member(o, refused[i])) return unsupported(c, refused[i], member(o, refused[i]));
    if (truncate && !json_is_true(truncate)) return unsupported(c, "truncate", truncate);
    if (needed_factor(c, o, &factor) || real(c, o, "attention_factor", &attention) || real(c, o, "beta_fast", &fast) || real(c, o, "beta_slow", &slow) ||
        whole(c, o, "original_max_position_embeddings", &original))
        return (int)c->e->code;
    put_str(c, "rope.scaling.type", "yarn");
    put_f32(c, "rope.scaling.factor", factor);
    put_u32(c, "rope.scaling.original_context_length", original);
    put_f32(c, "rope.scaling.yarn_beta_fast", fast);
    put_f32(c, "rope.scaling.yarn_beta_slow", slow);
    if (attention > 0) put_f32(c, "rope.scaling.attn_factor", attention / (factor > 1 ? 0.1 * log(factor) + 1 : 1));
    return FO_OK;
}

/* Llama 3.1's: high frequencies stay, low ones are divided by the factor, those between are mixed. */
static int rope_llama3(struct config *c, const json_t *o, double theta) {
    static const double pi = 3.14159265358979323846;
    double factor, low = 0, high = 0, original = 0;
    size_t n = c->n_rot / 2;
    if (needed_factor(c, o, &factor) || real(c, o, "low_freq_factor", &low) || real(c, o, "high_freq_factor", &high) ||
        real(c, o, "original_max_position_embeddings", &original))
        return (int)c->e->code;
    if (!(low > 0) || !(high > low) || !(original > 0))
        return (int)fo_fail(c->e, FO_EFORMAT, "%s: llama3 rope scaling needs low_freq_factor, a larger high_freq_factor and original_max_position_embeddings", c->name);
    float *out = region_floats(c, n);
    if (!out) return (int)c->e->code;
    for (size_t i = 0; i < n; i++) {
        double turns = original * pow(theta, -2.0 * (double)i / c->n_rot) / (2 * pi); /* over the original context */
        double mix = turns < low ? 0 : turns > high ? 1 : (turns - low) / (high - low);
        out[i] = (float)(1 / ((1 - mix) / factor + mix));
    }
    c->out.rope_freqs = out;
    return FO_OK;
}

static int factors(struct config *c, const json_t *o, const char *key, const float **ret) {
    const json_t *list = member(o, key);
    size_t n = c->n_rot / 2;
    if (!json_is_array(list) || json_array_size(list) != n)
        return (int)fo_fail_need(c->e, FO_EFORMAT, n, json_array_size(list), "%s: %s is not a list of %zu numbers", c->name, key, n);
    float *out = region_floats(c, n);
    if (!out) return (int)c->e->code;
    for (size_t i = 0; i < n; i++) {
        double v = json_number_value(json_array_get(list, i));
        if (!(v > 1e-6) || !(v < 1e9)) return wrong(c, key, "a list of positive numbers");
        out[i] = (float)v;
    }
    *ret = out;
    return FO_OK;
}

/* LongRoPE (arXiv 2402.13753), as Phi-3 has it: two sets of divisors, and a factor on cos and sin by how far the context was stretched. */
static int rope_longrope(struct config *c, const json_t *o, double theta) {
    static const char *const refused[] = { "short_mscale", "long_mscale" };
    uint32_t original = 0;
    double stretched = 1, attention = 0;
    (void)theta;
    for (int i = 0; i < 2; i++)
        if (member(o, refused[i])) return unsupported(c, refused[i], member(o, refused[i]));
    if (whole(c, o, "original_max_position_embeddings", &original) || whole(c, c->top, "original_max_position_embeddings", &original) ||
        real(c, o, "factor", &stretched) || real(c, o, "attention_factor", &attention) || factors(c, o, "short_factor", &c->out.rope_short) ||
        factors(c, o, "long_factor", &c->out.rope_long))
        return (int)c->e->code;
    if (original > 1) stretched = (double)c->n_ctx / original;
    else original = c->n_ctx;
    if (!(attention > 0)) attention = stretched > 1 && original > 1 ? sqrt(1 + log(stretched) / log(original)) : 1;
    put_str(c, "rope.scaling.type", "longrope");
    put_u32(c, "rope.scaling.original_context_length", original);
    put_f32(c, "rope.scaling.attn_factor", attention);
    return FO_OK;
}

/* THE kinds of rope scaling. */
static const struct {
    const char *name;
    int (*read)(struct config *c, const json_t *o, double theta);
} ropes[] = { { "default", rope_default }, { "linear", rope_linear }, { "yarn", rope_yarn }, { "llama3", rope_llama3 }, { "longrope", rope_longrope }, { "su", rope_longrope } };

static int rope(struct config *c) {
    /* transformers 5 moved rope_theta and what was rope_scaling into rope_parameters */
    const json_t *o = member(c->top, "rope_parameters");
    if (!o) o = member(c->top, "rope_scaling");
    if (o && !json_is_object(o)) return wrong(c, "rope_scaling", "an object");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
        if (json_is_object(v)) return unsupported(c, key, v); /* other frequencies for each type of layer */

    double theta = c->row->rope_theta, share = 1;
    if (real(c, c->top, "rope_theta", &theta) || real(c, o, "rope_theta", &theta) || real(c, c->top, "partial_rotary_factor", &share) ||
        real(c, o, "partial_rotary_factor", &share))
        return (int)c->e->code;
    if (share > 1) return wrong(c, "partial_rotary_factor", "a number up to 1");
    c->n_rot = (uint32_t)(c->head_dim * share);
    c->out.n_rope = c->n_rot / 2;
    put_f32(c, "rope.freq_base", theta);
    put_u32(c, "rope.dimension_count", c->n_rot);

    const json_t *type = member(o, "rope_type") ? member(o, "rope_type") : member(o, "type");
    if (type && !json_is_string(type)) return wrong(c, "rope_type", "a text");
    if (o && !type && member(o, "factor")) return (int)fo_fail(c->e, FO_EFORMAT, "%s: rope_scaling has a factor, but no rope_type", c->name);
    const char *name = type ? json_string_value(type) : "default";
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        if (strcmp(ropes[i].name, name) == 0) return ropes[i].read(c, o, theta);
    return unsupported(c, "the rope_type of its rope scaling", type);
}

/* --- all of it --- */

static void general(struct config *c, const char *title) {
    const char *name = json_string_value(member(c->top, "_name_or_path")), *slash = name ? strrchr(name, '/') : NULL;
    if (slash) name = slash + 1;
    if (!name || !*name) name = title;
    size_t len = strlen(name);
    fo_gguf_put_str(c->w, "general.architecture", (struct fo_str){ c->row->arch, strlen(c->row->arch) });
    fo_gguf_put_str(c->w, "general.name", (struct fo_str){ name, len < MAX_NAME ? len : MAX_NAME });
    /* Rows of q and k stand as they were trained, where GGUF's architecture "llama" has them permuted: see engine/families/llama.c. */
    if (strcmp(c->row->arch, "llama") == 0) fo_gguf_put_bool(c->w, "pantheon.rope.neox", true);
}

static int read_config(struct config *c, const char *title) {
    c->out.biases = false;
    if (!json_is_object(c->top)) return (int)fo_fail(c->e, FO_EFORMAT, "%s: not an object", c->name);
    if (find_row(c) || refuse(c)) return (int)c->e->code;
    general(c, title);
    if (sizes(c) || experts(c) || window(c) || rope(c) || boolean(c, "tie_word_embeddings", &c->out.tied) || boolean(c, "attention_bias", &c->out.biases))
        return (int)c->e->code;
    c->out.arch = c->row->arch;
    c->out.biases = c->out.biases || c->row->biases;
    return FO_OK;
}

int fo_hf_config_read(const char *text, size_t len, const char *name, const char *title, struct fo_region *region, struct fo_gguf_writer *w,
                      struct fo_hf_config *ret, struct fo_err *e) {
    json_error_t why;
    json_t *top = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!top) {
        if (json_error_code(&why) == json_error_out_of_memory) return (int)fo_fail(e, FO_ENOMEM, "%s: no memory", name);
        return (int)fo_fail_at(e, FO_EFORMAT, why.line, why.column, "%s: line %d, column %d: %s", name, why.line, why.column, why.text);
    }
    struct config c = { .top = top, .name = name, .w = w, .region = region, .e = e };
    int rc = read_config(&c, title);
    json_decref(top);
    if (!rc) *ret = c.out;
    return rc;
}
