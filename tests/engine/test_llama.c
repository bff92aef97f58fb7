/* The decoder families (llama, qwen2, qwen3, phi3, Mixtral) against references. Two of them:
 *
 *   - HuggingFace transformers, in tests/data/models and tests/data/goldens/models (and in $GOLDENS/models when that is set): logits at every
 *     prompt position and a greedy continuation, for the tolerances of the goldens' README;
 *   - a forward pass in double precision, written here straight from the papers and sharing nothing with the engine, for what those files
 *     do not exercise: biases, rope_freqs, odd head sizes, windows across pages, norms of q and k, scaled positions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model.h"
#include "engine/moe.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "tests/support/odd.h"

enum { MAX_TOKENS = 512 };

static struct fo_device *open_cpu(bool exact) {
    struct fo_device *d;
    struct fo_err e;
    struct fo_device_opts o = { .exact = exact };
    if (fo_device_open("cpu", "", &o, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

/* Logits of every token, [n][n_vocab], in chunks of at most `chunk`; the caller frees. */
static float *run(struct pn_model *m, const int32_t *ids, uint32_t n, uint32_t chunk) {
    const struct pn_model_info *info = pn_model_info(m);
    float *all = malloc((size_t)n * info->n_vocab * sizeof *all), *logits;
    struct pn_seq *s;
    struct fo_err e;
    assert_non_null(all);
    if (pn_seq_new(m, &s, &e)) fail_msg("%s", e.msg);
    if (chunk > info->max_batch) chunk = info->max_batch;
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        struct pn_batch_item item = { s, ids + at, k, PN_WANT_ALL };
        if (pn_model_forward(m, &item, 1, &logits, &e)) fail_msg("%s", e.msg);
        memcpy(all + (size_t)at * info->n_vocab, logits, (size_t)k * info->n_vocab * sizeof *all);
    }
    pn_seq_free(s);
    return all;
}

struct diff {
    double max, mean;
};

static struct diff compare(const float *got, const float *want, size_t n) {
    struct diff d = { 0, 0 };
    for (size_t i = 0; i < n; i++) {
        double x = fabs((double)got[i] - (double)want[i]);
        if (!(x <= d.max)) d.max = x; /* a NaN is the largest */
        d.mean += x / (double)n;
    }
    return d;
}

static int argmax(const float *row, uint32_t n) {
    int best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = (int)i;
    return best;
}

/* --- goldens --- */

/* NumPy's format 1.0: magic, version, u16 header length, a header that we only size-check, then float32 little endian. */
static float *read_npy(const char *path, size_t want_floats) {
    char *bytes;
    size_t n;
    struct fo_err e;
    if (fo_file_read(path, 64 << 20, &bytes, &n, &e)) fail_msg("%s", e.msg);
    assert_true(n > 10 && memcmp(bytes, "\x93NUMPY\x01", 7) == 0);
    size_t head = 10 + (unsigned char)bytes[8] + 256u * (unsigned char)bytes[9];
    assert_non_null(strstr(bytes + 10, "'<f4'"));
    assert_int_equal(n - head, want_floats * sizeof(float));
    float *f = malloc(n - head);
    assert_non_null(f);
    memcpy(f, bytes + head, n - head);
    free(bytes);
    return f;
}

static uint32_t read_ids(const json_t *list, int32_t *out) {
    size_t n = json_array_size(list);
    assert_true(n <= MAX_TOKENS);
    for (size_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

/* The row of the tolerance table: by what the engine computes with. */
static struct diff tolerance(const struct pn_model *m, bool exact, uint32_t n_prompt) {
    struct diff t = { 5e-2, 1e-2 }; /* f32 weights, f16 KV */
    if (exact) return n_prompt < 100 ? (struct diff){ 5e-4, 5e-5 } : (struct diff){ 2e-3, 1e-4 };
    const struct fo_gguf *g = pn_model_gguf(m);
    for (size_t i = 0; i < fo_gguf_n_tensors(g); i++) {
        uint32_t type = fo_gguf_tensor_at(g, i)->t.type;
        struct diff row = type == FO_F32                  ? (struct diff){ 5e-2, 1e-2 }
                          : type == FO_F16 || type == FO_BF16 ? (struct diff){ 0.1, 1.5e-2 }
                          : fo_dtype_info(type)->block == 32  ? (struct diff){ 2.0, 0.25 }
                                                              : (struct diff){ 3.0, 0.4 };
        if (row.max > t.max) t = row;
    }
    return t;
}

struct tally {
    int ran, left_out;
};

/* The context at which an entry is meant (which rope factors are chosen depends on it), 0 = any. One that does not say has that of the others
 * with its reference. */
static uint32_t context_of(const json_t *golden, const json_t *entry) {
    const char *logits = json_string_value(json_object_get(entry, "logits"));
    json_int_t n = json_integer_value(json_object_get(entry, "n_ctx"));
    json_t *other;
    size_t i;
    json_array_foreach(json_object_get(golden, "entries"), i, other)
        if (!n && strcmp(json_string_value(json_object_get(other, "logits")), logits) == 0) n = json_integer_value(json_object_get(other, "n_ctx"));
    return (uint32_t)n;
}

/* One file of golden.json on one device. */
static void check_entry(const char *dir, const json_t *golden, const json_t *entry, bool exact, struct tally *tally) {
    const char *file = json_string_value(json_object_get(entry, "file"));
    char path[1024], ref_path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    snprintf(ref_path, sizeof ref_path, "%s/%s", dir, json_string_value(json_object_get(entry, "logits")));
    struct fo_device *d = open_cpu(exact);
    struct pn_model_opts o = { .dev = d, .kv_default = true, .all_logits = true, .max_batch = MAX_TOKENS,
                               .ctx_cap = context_of(golden, entry) };
    const char *prompt = json_string_value(json_object_get(entry, "prompt"));
    struct pn_model *m;
    struct fo_err e;
    int rc = pn_model_open(path, &o, &m, &e);
    if (rc == FO_EUNSUPPORTED) {
        print_message("  left out: %s\n", e.msg);
        tally->left_out++;
        fo_device_close(d);
        return;
    }
    if (rc) fail_msg("%s", e.msg);

    int32_t ids[MAX_TOKENS];
    uint32_t n = read_ids(json_object_get(golden, prompt ? prompt : "prompt_ids"), ids), vocab = pn_model_info(m)->n_vocab;
    uint32_t n_greedy = read_ids(json_object_get(entry, "greedy_ids"), ids + n);
    float *want = read_npy(ref_path, (size_t)n * vocab);
    /* Fed with the reference's own continuation, every step must choose its next id: that is greedy decoding, in one call. */
    float *got = run(m, ids, n + n_greedy - 1, MAX_TOKENS);
    float *again = run(m, ids, n + n_greedy - 1, 17); /* and bit for bit in chunks, where a window lets go of KV between them */
    assert_memory_equal(got, again, (size_t)(n + n_greedy - 1) * vocab * sizeof *got);
    free(again);

    struct diff tol = tolerance(m, exact, n), diff = compare(got, want, (size_t)n * vocab);
    print_message("  %-34s %-5s max %.2e mean %.2e\n", file, exact ? "exact" : "fast", diff.max, diff.mean);
    if (!(diff.max <= tol.max && diff.mean <= tol.mean)) fail_msg("%s: max %g mean %g past %g, %g", path, diff.max, diff.mean, tol.max, tol.mean);
    for (uint32_t i = 0; i < n && (exact || n < 100); i++) /* a long prompt is not chosen free of near ties */
        if (argmax(got + (size_t)i * vocab, vocab) != argmax(want + (size_t)i * vocab, vocab)) fail_msg("%s: argmax differs at %u", path, i);
    for (uint32_t i = 0; i < n_greedy; i++) {
        if (json_number_value(json_array_get(json_object_get(entry, "greedy_gap"), i)) < 2 * tol.max) break;
        if (argmax(got + (size_t)(n - 1 + i) * vocab, vocab) != ids[n + i]) fail_msg("%s: greedy id %u differs", path, i);
    }
    tally->ran++;
    free(want);
    free(got);
    pn_model_free(m);
    fo_device_close(d);
}

/* Every file of DIR/golden.json that is there; entries that ignore a window the file names are not ours. */
static void check_dir(const char *dir, bool exact, struct tally *tally) {
    char path[1024];
    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_error_t je;
    json_t *golden = json_load_file(path, 0, &je), *entry;
    size_t i;
    if (!golden) fail_msg("%s: %s", path, je.text);
    json_array_foreach(json_object_get(golden, "entries"), i, entry) {
        const char *file = json_string_value(json_object_get(entry, "file"));
        const char *window = json_string_value(json_object_get(entry, "window"));
        snprintf(path, sizeof path, "%s/%s", dir, file);
        if (access(path, R_OK) || (window && strcmp(window, "ignored") == 0)) continue;
        check_entry(dir, golden, entry, exact, tally);
    }
    json_decref(golden);
}

static int shown(const struct dirent *d) {
    return d->d_name[0] != '.' && strcmp(d->d_name, "README") != 0;
}

static void check_models(const char *root, bool exact, struct tally *tally) {
    struct dirent **found;
    int n = scandir(root, &found, shown, alphasort);
    if (n < 0) fail_msg("%s: no folder of models", root);
    for (int i = 0; i < n; i++) {
        char dir[512];
        snprintf(dir, sizeof dir, "%s/%s", root, found[i]->d_name);
        check_dir(dir, exact, tally);
        free(found[i]);
    }
    free(found);
}

static void check_goldens(bool exact) {
    struct tally t = { 0, 0 };
    check_models("tests/data/models", exact, &t);
    check_models("tests/data/goldens/models", exact, &t);
    assert_true(t.ran >= 6 + 19);
    assert_int_equal(t.left_out, 0);
    const char *root = getenv("GOLDENS");
    if (root) {
        char dir[512];
        snprintf(dir, sizeof dir, "%s/models", root);
        check_models(dir, exact, &t);
    }
    print_message("  %d files right, %d left out\n", t.ran, t.left_out);
}

static void the_exact_path_equals_transformers(void **state) {
    (void)state;
    check_goldens(true);
}

static void the_fast_path_stays_within_its_row_and_keeps_every_argmax(void **state) {
    (void)state;
    check_goldens(false);
}

/* --- the independent forward pass --- */

static const float *weights(const struct fo_gguf *g, int layer, const char *suffix) {
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, suffix);
    const struct fo_gguf_tensor *t = fo_gguf_tensor(g, name);
    return t ? t->t.data : NULL;
}

static void matvec(const float *w, const double *x, int rows, int k, const float *bias, double *y) {
    for (int r = 0; r < rows; r++) {
        double sum = bias ? (double)bias[r] : 0;
        for (int i = 0; i < k; i++) sum += (double)w[(size_t)r * k + i] * x[i];
        y[r] = sum;
    }
}

static void norm(const double *x, const float *w, int n, double *y) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / n + (double)1e-5f) * (double)w[i];
}

/* How the model under test turns: independent of the engine's own reading of the file. */
struct turn {
    bool halves;          /* a head's first half with its second, else neighbours */
    const float *divisor; /* [dim / 2] or NULL */
    double linear;        /* positions are divided by it; 0 = not */
    double yarn;          /* the scale s of YaRN; 0 = none */
    int n_orig;           /* L of YaRN */
    double factor;        /* on cos and sin; 0 = 1 */
};

/* YaRN's theta_d, by parts (arXiv 2309.00071, definitions 2 and 3), with beta 32 and alpha 1. The borders are whole dimensions, as in every
 * published implementation. */
static double yarn_theta(const struct turn *t, double theta, int d, int dim) {
    double per_dim = dim / (2 * log(10000.0)); /* dimensions for a factor e in wavelength */
    double first = floor(per_dim * log(t->n_orig / (32 * 2 * M_PI))), last = ceil(per_dim * log(t->n_orig / (1 * 2 * M_PI)));
    if (first < 0) first = 0;
    if (last > dim - 1) last = dim - 1;
    double gamma = d <= first ? 1 : d >= last ? 0 : 1 - (d - first) / (last - first);
    return (1 - gamma) * theta / t->yarn + gamma * theta;
}

static void rotate(double *head, int dim, int pos, const struct turn *t) {
    double m = (t->factor != 0 ? t->factor : 1) * (t->yarn != 0 ? 0.1 * log(t->yarn) + 1 : 1);
    for (int i = 0; i < dim / 2; i++) {
        double theta = pow(10000.0, -2.0 * i / dim) / (t->divisor ? (double)t->divisor[i] : 1);
        if (t->linear != 0) theta /= t->linear;
        if (t->yarn != 0) theta = yarn_theta(t, theta, i, dim);
        double *one = head + (t->halves ? i : 2 * i), *other = head + (t->halves ? i + dim / 2 : 2 * i + 1), x = *one, y = *other;
        *one = m * (x * cos(pos * theta) - y * sin(pos * theta));
        *other = m * (x * sin(pos * theta) + y * cos(pos * theta));
    }
}

/* Row `skip` and on of a fused matrix, or the matrix of its own. */
static const float *rows_of(const struct fo_gguf *g, int layer, const char *own, const char *fused, int skip, int k) {
    const float *w = weights(g, layer, own);
    return w ? w : weights(g, layer, fused) + (size_t)skip * k;
}

enum { REF_MAX = 512 }; /* widest row of the models below */

/* x += share * Down(SiLU(Gate h) * Up h) */
static void feed_forward(const float *gate, const float *gate_bias, const float *up, const float *up_bias, const float *down, const float *down_bias,
                         int embd, int ff, const double *h, double share, double *x) {
    double a[REF_MAX], b[REF_MAX], y[REF_MAX];
    matvec(gate, h, ff, embd, gate_bias, a);
    matvec(up, h, ff, embd, up_bias, b);
    for (int j = 0; j < ff; j++) a[j] = a[j] / (1 + exp(-a[j])) * b[j];
    matvec(down, a, embd, ff, down_bias, y);
    for (int j = 0; j < embd; j++) x[j] += share * y[j];
}

/* The softmax of all router logits; the largest are taken and divided by their sum. */
static void mixture(const struct fo_gguf *g, int layer, const struct odd *t, const double *h, double *x) {
    int n = (int)t->n_expert, embd = (int)t->n_embd, ff = (int)t->n_ff, taken[REF_MAX];
    double p[REF_MAX], all = 0, of_taken = 0;
    matvec(weights(g, layer, "ffn_gate_inp.weight"), h, n, embd, NULL, p);
    for (int i = 0; i < n; i++) all += p[i] = exp(p[i]);
    for (int i = 0; i < n; i++) p[i] /= all;
    for (int k = 0; k < (int)t->n_expert_used; k++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            bool had = false;
            for (int j = 0; j < k; j++) had = had || taken[j] == i;
            if (!had && (best < 0 || p[i] > p[best])) best = i;
        }
        taken[k] = best;
        of_taken += p[best];
    }
    for (int k = 0; k < (int)t->n_expert_used; k++) {
        size_t at = (size_t)taken[k] * (size_t)embd * (size_t)ff;
        feed_forward(weights(g, layer, "ffn_gate_exps.weight") + at, NULL, weights(g, layer, "ffn_up_exps.weight") + at, NULL,
                     weights(g, layer, "ffn_down_exps.weight") + at, NULL, embd, ff, h, p[taken[k]] / of_taken, x);
    }
}

/* logits [n][vocab] of an F32 tiny model, whole prompt at once, keys and values kept as doubles. */
static void reference(const struct fo_gguf *g, const struct odd *t, const struct turn *turn, const int32_t *ids, int n, float *logits) {
    int embd = (int)t->n_embd, ff = (int)t->n_ff, heads = (int)t->n_head, kv = (int)t->n_head_kv, vocab = (int)t->n_vocab;
    int hd = t->head_dim ? (int)t->head_dim : embd / heads;
    double *x = calloc((size_t)n * embd, sizeof *x), *k = calloc((size_t)n * kv * hd, sizeof *k), *v = calloc((size_t)n * kv * hd, sizeof *v);
    assert_true(x && k && v && embd <= REF_MAX && ff <= REF_MAX && heads * hd <= REF_MAX && n <= REF_MAX);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < embd; j++) x[i * embd + j] = (double)weights(g, -1, "token_embd.weight")[(size_t)ids[i] * embd + j];
    for (int l = 0; l < (int)t->n_layer; l++) {
        for (int i = 0; i < n; i++) {
            double h[REF_MAX];
            norm(x + i * embd, weights(g, l, "attn_norm.weight"), embd, h);
            matvec(rows_of(g, l, "attn_k.weight", "attn_qkv.weight", heads * hd, embd), h, kv * hd, embd, weights(g, l, "attn_k.bias"), k + i * kv * hd);
            matvec(rows_of(g, l, "attn_v.weight", "attn_qkv.weight", (heads + kv) * hd, embd), h, kv * hd, embd, weights(g, l, "attn_v.bias"), v + i * kv * hd);
            for (int j = 0; j < kv; j++) {
                if (t->qk_norm) norm(k + (i * kv + j) * hd, weights(g, l, "attn_k_norm.weight"), hd, k + (i * kv + j) * hd);
                rotate(k + (i * kv + j) * hd, hd, i, turn);
            }
        }
        for (int i = 0; i < n; i++) {
            double h[REF_MAX], q[REF_MAX], att[REF_MAX] = { 0 }, p[REF_MAX];
            norm(x + i * embd, weights(g, l, "attn_norm.weight"), embd, h);
            matvec(rows_of(g, l, "attn_q.weight", "attn_qkv.weight", 0, embd), h, heads * hd, embd, weights(g, l, "attn_q.bias"), q);
            for (int head = 0; head < heads; head++) {
                int first = t->window && i >= (int)t->window ? i - (int)t->window + 1 : 0, of = head / (heads / kv);
                double top = -HUGE_VAL, sum = 0;
                if (t->qk_norm) norm(q + head * hd, weights(g, l, "attn_q_norm.weight"), hd, q + head * hd);
                rotate(q + head * hd, hd, i, turn);
                for (int j = first; j <= i; j++) {
                    p[j] = 0;
                    for (int c = 0; c < hd; c++) p[j] += q[head * hd + c] * k[(j * kv + of) * hd + c];
                    p[j] /= sqrt(hd);
                    top = fmax(top, p[j]);
                }
                for (int j = first; j <= i; j++) sum += p[j] = exp(p[j] - top);
                for (int j = first; j <= i; j++)
                    for (int c = 0; c < hd; c++) att[head * hd + c] += p[j] / sum * v[(j * kv + of) * hd + c];
            }
            matvec(weights(g, l, "attn_output.weight"), att, embd, heads * hd, weights(g, l, "attn_output.bias"), h);
            for (int j = 0; j < embd; j++) x[i * embd + j] += h[j];
            norm(x + i * embd, weights(g, l, "ffn_norm.weight"), embd, h);
            if (t->n_expert)
                mixture(g, l, t, h, x + i * embd);
            else
                feed_forward(rows_of(g, l, "ffn_gate.weight", "ffn_up.weight", 0, embd), weights(g, l, "ffn_gate.bias"),
                             weights(g, l, "ffn_up.weight") + (t->fused ? (size_t)ff * embd : 0), weights(g, l, "ffn_up.bias"),
                             weights(g, l, "ffn_down.weight"), weights(g, l, "ffn_down.bias"), embd, ff, h, 1, x + i * embd);
        }
    }
    const float *out = weights(g, -1, "output.weight") ? weights(g, -1, "output.weight") : weights(g, -1, "token_embd.weight");
    for (int i = 0; i < n; i++) {
        double h[REF_MAX], y[REF_MAX];
        norm(x + i * embd, weights(g, -1, "output_norm.weight"), embd, h);
        matvec(out, h, vocab, embd, NULL, y);
        for (int j = 0; j < vocab; j++) logits[i * vocab + j] = (float)y[j];
    }
    free(x);
    free(k);
    free(v);
}

/* One model against the reference, in chunks that end everywhere; then once more in one chunk, bit for bit. */
static void check_odd(struct fo_device *d, const struct odd *spec, const struct turn *turn, uint32_t ctx_cap, uint64_t seed) {
    enum { N = 150 };
    struct odd t = *spec;
    t.seed = seed;
    t.type = FO_F32;
    odd_write(odd_path(0), &t);
    float *first = NULL;
    for (int chunked = 0; chunked < 2; chunked++) {
        struct pn_model_opts o = { .dev = d, .kv_default = true, .all_logits = true, .ctx_cap = ctx_cap, .max_batch = chunked ? 7 : 256 };
        struct pn_model *m;
        struct fo_err e;
        if (pn_model_open(odd_path(0), &o, &m, &e)) fail_msg("%s", e.msg);
        int32_t ids[N];
        struct fo_rng rng;
        fo_rng_seed(&rng, seed);
        for (int i = 0; i < N; i++) ids[i] = (int32_t)(fo_rng_u64(&rng) % t.n_vocab);
        float *got = run(m, ids, N, UINT32_MAX);
        size_t n = (size_t)N * t.n_vocab;
        if (!chunked) {
            float *want = malloc(sizeof(float) * n);
            reference(pn_model_gguf(m), &t, turn, ids, N, want);
            struct diff diff = compare(got, want, n);
            if (!(diff.max < 2e-4)) fail_msg("case %llu: max %g mean %g", (unsigned long long)seed, diff.max, diff.mean);
            free(want);
            first = got;
        } else {
            assert_memory_equal(got, first, n * sizeof *got);
            free(got);
        }
        pn_model_free(m);
    }
    free(first);
    unlink(odd_path(0));
}

static void every_option_of_the_family_equals_an_independent_forward(void **state) {
    (void)state;
    static const float freqs[] = { 1, 1, 1.5f, 2, 4, 8, 8, 8, 1, 1, 1.5f, 2, 4, 8, 8, 8 };
    const struct odd cases[] = {
        { .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 4, .n_vocab = 50 },                                  /* plain */
        { .n_layer = 1, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 1, .n_vocab = 50, .untied = true },                  /* one kv head */
        { .n_layer = 3, .n_embd = 64, .n_ff = 32, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .biases = true },                  /* biases */
        { .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 2, .n_head_kv = 1, .n_vocab = 50, .rope_freqs = freqs },             /* llama 3 rope */
        { .n_layer = 2, .n_embd = 96, .n_ff = 64, .n_head = 6, .n_head_kv = 2, .n_vocab = 50, .head_dim = 24 },                  /* own head_dim */
        { .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .window = 1 },                     /* itself alone */
        { .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .window = 67, .biases = true },    /* past a page */
    };
    struct fo_device *d = open_cpu(true);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        check_odd(d, &cases[c], &(struct turn){ .divisor = cases[c].rope_freqs }, 0, c);
    fo_device_close(d);
}

#define KEYS(...) .keys = (const struct odd_key[]){ __VA_ARGS__, { 0 } }

static void the_other_families_equal_an_independent_forward(void **state) {
    (void)state;
    static const float longer[] = { 1, 1.5f, 2, 4, 8, 9, 10, 11 }, shorter[] = { 1, 1, 1.1f, 1.2f, 1.3f, 1.4f, 1.5f, 2 };
    const struct {
        struct odd model;
        struct turn turn;
        uint32_t ctx_cap;
    } cases[] = {
        { { .n_layer = 2, .n_embd = 64, .n_ff = 32, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .n_expert = 8, .n_expert_used = 2 }, { 0 }, 0 },
        { { .n_layer = 1, .n_embd = 32, .n_ff = 96, .n_head = 4, .n_head_kv = 1, .n_vocab = 50, .n_expert = 5, .n_expert_used = 5, .untied = true }, { 0 }, 0 },
        { { .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_head = 4, .n_head_kv = 4, .n_vocab = 50, .n_expert = 3, .n_expert_used = 1 }, { 0 }, 0 },
        { { .n_layer = 1, .n_embd = 32, .n_ff = 32, .n_head = 4, .n_head_kv = 4, .n_vocab = 50, .n_expert = 1, .n_expert_used = 1 }, { 0 }, 0 },
        { { .arch = "qwen2", .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .biases = true }, { .halves = true }, 0 },
        { { .arch = "qwen2", .n_layer = 1, .n_embd = 32, .n_ff = 160, .n_head = 4, .n_head_kv = 1, .n_vocab = 51, .biases = true, .untied = true }, { .halves = true }, 0 },
        { { .arch = "qwen3", .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .head_dim = 32, .qk_norm = true }, { .halves = true }, 0 },
        { { .arch = "qwen3", .n_layer = 3, .n_embd = 64, .n_ff = 32, .n_head = 6, .n_head_kv = 3, .n_vocab = 50, .head_dim = 24, .qk_norm = true, .untied = true }, { .halves = true }, 0 },
        { { .arch = "phi3", .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 1, .n_vocab = 50, .fused = true, .untied = true }, { .halves = true }, 0 },
        { { .arch = "phi3", .n_layer = 2, .n_embd = 96, .n_ff = 32, .n_head = 6, .n_head_kv = 3, .n_vocab = 50, .fused = true, .window = 20 }, { .halves = true }, 0 },
        { { .arch = "phi3", .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .fused = true, .rope_long = longer, .rope_short = shorter,
            KEYS({ "phi3.rope.scaling.original_context_length", 'u', 160, 0 }, { "phi3.rope.scaling.attn_factor", 'f', 1.25, 0 }) },
          { .halves = true, .divisor = shorter, .factor = 1.25 }, 160 },
        { { .arch = "phi3", .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 4, .n_head_kv = 2, .n_vocab = 50, .fused = true, .rope_long = longer, .rope_short = shorter,
            KEYS({ "phi3.rope.scaling.original_context_length", 'u', 160, 0 }, { "phi3.rope.scaling.attn_factor", 'f', 1.25, 0 }) },
          { .halves = true, .divisor = longer, .factor = 1.25 }, 161 },
    };
    struct fo_device *d = open_cpu(true);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) check_odd(d, &cases[c].model, &cases[c].turn, cases[c].ctx_cap, 100 + c);
    fo_device_close(d);
}

static void scaled_positions_equal_their_papers(void **state) {
    (void)state;
#define SHAPE .n_layer = 2, .n_embd = 64, .n_ff = 96, .n_head = 2, .n_head_kv = 1, .n_vocab = 50
    const struct {
        struct odd model;
        struct turn turn;
    } cases[] = {
        { { SHAPE, KEYS({ "llama.rope.scaling.type", 's', 0, "linear" }, { "llama.rope.scaling.factor", 'f', 4, 0 }) }, { .linear = 4 } },
        { { SHAPE, KEYS({ "llama.rope.scale_linear", 'f', 2.5, 0 }) }, { .linear = 2.5 } },
        { { SHAPE, KEYS({ "llama.rope.scaling.type", 's', 0, "none" }, { "llama.rope.scaling.factor", 'f', 4, 0 }) }, { 0 } },
        { { SHAPE, KEYS({ "llama.rope.scaling.type", 's', 0, "yarn" }, { "llama.rope.scaling.factor", 'f', 4, 0 },
                        { "llama.rope.scaling.original_context_length", 'u', 64, 0 }) }, { .yarn = 4, .n_orig = 64 } },
        { { SHAPE, KEYS({ "llama.rope.scaling.type", 's', 0, "yarn" }, { "llama.rope.scaling.factor", 'f', 8, 0 },
                        { "llama.rope.scaling.original_context_length", 'u', 4096, 0 }, { "llama.rope.scaling.attn_factor", 'f', 0.5, 0 }) },
          { .yarn = 8, .n_orig = 4096, .factor = 0.5 } },
        { { .arch = "qwen2", SHAPE, .biases = true, KEYS({ "qwen2.rope.scaling.type", 's', 0, "yarn" }, { "qwen2.rope.scaling.factor", 'f', 4, 0 },
                        { "qwen2.rope.scaling.original_context_length", 'u', 2048, 0 }) }, { .halves = true, .yarn = 4, .n_orig = 2048 } },
    };
    struct fo_device *d = open_cpu(true);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) check_odd(d, &cases[c].model, &cases[c].turn, 0, 200 + c);
    fo_device_close(d);
}

static void routing_chooses_the_largest_whatever_they_are(void **state) {
    (void)state;
    float equal[4] = { 1, 1, 1, 1 }, far[3] = { -1e30f, 1e30f, 0 }, nan[3] = { NAN, NAN, NAN }, one[1] = { -5 };
    pn_route(equal, 4, 2);
    assert_true(equal[0] == 0.5f && equal[1] == 0.5f && equal[2] == 0 && equal[3] == 0); /* of equal ones the first */
    pn_route(far, 3, 2);
    assert_true(far[0] == 0 && far[1] == 1 && far[2] == 0);
    pn_route(nan, 3, 2);
    assert_true(isnan(nan[0]) && isnan(nan[1]) && nan[2] == 0);
    pn_route(one, 1, 1);
    assert_true(one[0] == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_exact_path_equals_transformers),
        cmocka_unit_test(the_fast_path_stays_within_its_row_and_keeps_every_argmax),
        cmocka_unit_test(every_option_of_the_family_equals_an_independent_forward),
        cmocka_unit_test(the_other_families_equal_an_independent_forward),
        cmocka_unit_test(routing_chooses_the_largest_whatever_they_are),
        cmocka_unit_test(scaled_positions_equal_their_papers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
