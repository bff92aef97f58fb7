/* Quantising files: tiny models in, every mix out. Weights and what became of them are compared with the definitions of the types. */
#include "engine/quantize.h"

#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/mix.h"
#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "tests/support/alloc.h"
#include "tests/support/folder.h"
#include "tests/support/gguf_write.h"
#include "tests/support/hf.h"
#include "tests/support/odd.h"
#include "tests/support/shards.h"
#include "tests/support/sigbus.h"
#include "tests/support/tiny.h"

static char folder[] = "/tmp/quantize-XXXXXX", in[64], out[64], again[64];

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(in, sizeof in, "%s/in.gguf", folder);
    snprintf(out, sizeof out, "%s/out.gguf", folder);
    snprintf(again, sizeof again, "%s/again.gguf", folder);
    return 0;
}

static int clean(void **state) {
    (void)state;
    unlink(in);
    unlink(out);
    unlink(again);
    return test_n_files(folder); /* a test that leaves a file behind fails */
}

static int tear_down(void **state) {
    (void)state;
    return rmdir(folder);
}

static struct test_tiny wide(void) {
    struct test_tiny t = test_tiny_default();
    t.n_embd = t.n_ff = 256;
    return t;
}

static void write_tiny(struct test_tiny t) {
    struct fo_err e;
    if (test_tiny_write(&t, in, &e)) fail_msg("%s", e.msg);
}

static int quantise(const char *from, const char *to, const char *mix, int n_threads, bool replace, struct pn_quantize_result *r, struct fo_err *e) {
    struct pn_quantize_opts o = { .mix = pn_mix_find(mix), .n_threads = n_threads, .replace = replace };
    assert_non_null(o.mix);
    return pn_quantize(from, to, &o, r, e);
}

static void must(const char *from, const char *to, const char *mix, int n_threads) {
    struct pn_quantize_result r;
    struct fo_err e;
    if (quantise(from, to, mix, n_threads, true, &r, &e)) fail_msg("%s: %s", mix, e.msg);
}

static struct fo_gguf *open_file(const char *path) {
    struct fo_gguf *g;
    struct fo_err e;
    if (fo_gguf_open(path, &g, &e)) fail_msg("%s", e.msg);
    return g;
}

static float *widen(const struct fo_gguf_tensor *t, size_t *ret_n) {
    const struct fo_dtype_info *info = fo_dtype_info(t->t.type);
    *ret_n = t->bytes / info->block_bytes * info->block;
    float *x = malloc(*ret_n * sizeof *x);
    assert_non_null(x);
    info->to_f32(t->t.data, x, *ret_n);
    return x;
}

/* Root mean square of the difference over that of the weights. */
static double error_of(const struct fo_gguf_tensor *a, const struct fo_gguf_tensor *b) {
    size_t n, m;
    float *x = widen(a, &n), *y = widen(b, &m);
    assert_int_equal(n, m);
    double diff = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        all += (double)x[i] * (double)x[i];
    }
    free(x);
    free(y);
    return sqrt(diff / all);
}

static void assert_same_files(const char *a, const char *b) {
    char *x, *y;
    size_t n, m;
    struct fo_err e;
    assert_int_equal(fo_file_read(a, 64 << 20, &x, &n, &e), FO_OK);
    assert_int_equal(fo_file_read(b, 64 << 20, &y, &m, &e), FO_OK);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* --- what comes out --------------------------------------------------------------------------------------------------------- */

/* Largest relative error of a tensor of uniformly random weights, which are harder than real ones. */
static const struct {
    enum fo_dtype type;
    double error;
} bounds[] = {
    { FO_F32, 0 },      { FO_F16, 4e-4 },    { FO_BF16, 3e-3 },   { FO_Q4_0, 0.09 },   { FO_Q4_1, 0.09 },   { FO_Q5_0, 0.045 },
    { FO_Q5_1, 0.043 }, { FO_Q8_0, 0.006 },  { FO_Q2_K, 0.32 },   { FO_Q3_K, 0.17 },   { FO_Q4_K, 0.08 },   { FO_Q5_K, 0.042 },
    { FO_Q6_K, 0.02 },  { FO_IQ4_NL, 0.09 }, { FO_IQ4_XS, 0.09 }, { FO_TQ1_0, 0.8 },   { FO_TQ2_0, 0.8 },   { FO_MXFP4, 0.13 },
    { FO_NVFP4, 0.13 },
};

static double bound_of(enum fo_dtype type) {
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].type == type) return bounds[i].error;
    return -1;
}

static void every_mix_gives_a_file_with_the_same_weights_as_near_as_its_types_are(void **state) {
    (void)state;
    struct fo_device *dev;
    struct fo_err e;
    write_tiny(wide());
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &dev, &e), FO_OK);
    struct fo_gguf *a = open_file(in);
    for (size_t i = 0; pn_mix_at(i); i++) {
        struct pn_quantize_result r;
        if (quantise(in, out, pn_mix_name(pn_mix_at(i)), 2, true, &r, &e)) fail_msg("%s", e.msg);
        struct fo_gguf *b = open_file(out);
        assert_int_equal(fo_gguf_n_tensors(b), fo_gguf_n_tensors(a));
        assert_int_equal(r.n_tensors, fo_gguf_n_tensors(a));
        assert_int_equal(r.n_requantised, 0);
        enum fo_dtype types[64];
        size_t n_fallback;
        assert_int_equal(pn_mix_types(pn_mix_at(i), a, types, &n_fallback, &e), FO_OK);
        assert_int_equal(r.n_fallback, n_fallback);
        uint64_t bytes = 0;
        for (size_t k = 0; k < fo_gguf_n_tensors(a); k++) {
            const struct fo_gguf_tensor *x = fo_gguf_tensor_at(a, k), *y = fo_gguf_tensor_at(b, k);
            assert_int_equal(x->name.len, y->name.len);
            assert_memory_equal(x->name.s, y->name.s, x->name.len);
            assert_memory_equal(x->t.ne, y->t.ne, sizeof x->t.ne);
            assert_int_equal(y->t.type, types[k]);
            double error = error_of(x, y);
            if (error > bound_of(y->t.type)) fail_msg("%s: %.*s: error %g", pn_mix_name(pn_mix_at(i)), (int)x->name.len, x->name.s, error);
            bytes += y->bytes;
        }
        assert_int_equal(r.out_bytes, bytes);
        uint32_t v = 0;
        assert_int_equal(fo_gguf_get_u32(b, "general.file_type", &v, &e), FO_OK);
        assert_int_equal(v, pn_mix_file_type(pn_mix_at(i)));
        assert_int_equal(fo_gguf_get_u32(b, "general.quantization_version", &v, &e), FO_OK);
        assert_int_equal(v, 2);
        assert_int_equal(fo_gguf_alignment(b), 32);
        for (size_t k = 0; k < fo_gguf_n_kv(a); k++) { /* every other key as it was */
            const struct fo_gguf_kv *x = fo_gguf_kv_at(a, k), *y;
            char key[256];
            snprintf(key, sizeof key, "%.*s", (int)x->key.len, x->key.s);
            if (strncmp(key, "general.", 8) == 0 && strcmp(key, "general.architecture") != 0) continue;
            assert_non_null(y = fo_gguf_find(b, key));
            assert_int_equal(y->type, x->type);
            assert_int_equal(y->bytes, x->bytes);
            assert_memory_equal(y->data, x->data, (size_t)x->bytes);
        }
        fo_gguf_close(b);
        struct pn_model *m; /* and it runs */
        struct pn_seq *s;
        float *logits;
        if (pn_model_open(out, &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &m, &e)) fail_msg("%s", e.msg);
        assert_int_equal(pn_seq_new(m, &s, &e), FO_OK);
        struct pn_batch_item item = { s, (int32_t[]){ 5, 6, 7 }, 3, PN_WANT_LAST };
        assert_int_equal(pn_model_forward(m, &item, 1, &logits, &e), FO_OK);
        assert_true(isfinite(logits[0]));
        pn_seq_free(s);
        pn_model_free(m);
    }
    fo_gguf_close(a);
    fo_device_close(dev);
}

static void the_number_of_threads_changes_no_bit(void **state) {
    (void)state;
    write_tiny(wide());
    must(in, out, "Q4_K_M", 1);
    must(in, again, "Q4_K_M", 5);
    assert_same_files(out, again);
}

static void a_file_of_its_own_type_comes_out_as_it_went_in(void **state) {
    (void)state;
    write_tiny(wide());
    must(in, out, "Q3_K_M", 1);
    must(out, again, "Q3_K_M", 1);
    assert_same_files(out, again);
}

static void quantised_files_widen_to_the_values_they_stand_for(void **state) {
    (void)state;
    struct test_tiny t = wide();
    struct pn_quantize_result r;
    struct fo_err e;
    t.dtype = FO_IQ4_XS;
    write_tiny(t);
    assert_int_equal(quantise(in, out, "F32", 2, false, &r, &e), FO_OK);
    assert_true(r.n_requantised > 10);
    struct fo_gguf *a = open_file(in), *b = open_file(out);
    for (size_t k = 0; k < fo_gguf_n_tensors(a); k++) {
        assert_int_equal(fo_gguf_tensor_at(b, k)->t.type, FO_F32);
        assert_true(error_of(fo_gguf_tensor_at(a, k), fo_gguf_tensor_at(b, k)) == 0);
    }
    fo_gguf_close(a);
    fo_gguf_close(b);
}

static void a_model_in_shards_becomes_one_file(void **state) {
    (void)state;
    struct fo_err e;
    struct pn_quantize_result r;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s/part", folder);
    write_tiny(wide());
    must(in, again, "Q5_K_M", 2);
    test_shards_write(in, prefix, 3);
    const char *second = test_shard_path(prefix, 1, 3);
    must(second, out, "Q5_K_M", 2);
    struct fo_gguf *g = open_file(out);
    assert_null(fo_gguf_find(g, "split.count"));
    fo_gguf_close(g);
    assert_same_files(out, again);
    for (uint32_t i = 0; i < 3; i++) { /* none of the input's files may be the output */
        assert_int_equal(quantise(second, test_shard_path(prefix, i, 3), "Q8_0", 1, true, &r, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, "is the input"));
    }
    test_shards_remove(prefix, 3);
}

/* Rows of q and k lie in halves in a HuggingFace directory of this architecture, as pairs in a GGUF; norms and biases are F32 there. */
static void a_directory_becomes_a_file_that_says_the_same(void **state) {
    (void)state;
    char dir[64];
    struct fo_device *dev;
    struct fo_err e;
    snprintf(dir, sizeof dir, "%s/hf", folder);
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1, .exact = true }, &dev, &e), FO_OK);
    for (int odd = 0; odd < 2; odd++) {
        odd_write(in, &(struct odd){ .n_embd = 64, .n_ff = 128, .n_head = 4, .n_head_kv = 2, .type = odd ? FO_BF16 : FO_F32, .vectors = odd ? FO_BF16 : FO_F32,
                                     .untied = true, .biases = true });
        test_hf_write(in, dir, 2, odd, "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":96,\"hidden_size\":64,\"intermediate_size\":128,"
                      "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,"
                      "\"attention_bias\":true}");
        must(dir, out, odd ? "BF16" : "F32", 2);
        struct fo_gguf *g = open_file(out);
        assert_null(fo_gguf_find(g, "pantheon.rope.neox"));
        assert_int_equal(fo_gguf_tensor(g, "blk.0.attn_norm.weight")->t.type, FO_F32);
        assert_int_equal(fo_gguf_tensor(g, "blk.1.attn_q.bias")->t.type, FO_F32);
        fo_gguf_close(g);
        float logits[2][96];
        for (int k = 0; k < 2; k++) {
            struct pn_model *m;
            struct pn_seq *s;
            float *row;
            if (pn_model_open(k ? out : dir, &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &m, &e)) fail_msg("%s", e.msg);
            assert_int_equal(pn_seq_new(m, &s, &e), FO_OK);
            struct pn_batch_item item = { s, (int32_t[]){ 3, 1, 4, 1, 5, 9 }, 6, PN_WANT_LAST };
            assert_int_equal(pn_model_forward(m, &item, 1, &row, &e), FO_OK);
            memcpy(logits[k], row, sizeof logits[k]);
            pn_seq_free(s);
            pn_model_free(m);
        }
        /* sums over a head's elements run in another order */
        for (int i = 0; i < 96; i++) assert_true(fabsf(logits[0][i] - logits[1][i]) <= 1e-4f * (1 + fabsf(logits[0][i])));
        test_hf_remove(dir);
    }
    fo_device_close(dev);
}

/* Longer than a slab and no multiple of a piece: the joints show nothing. */
static void long_tensors_have_no_joints(void **state) {
    (void)state;
    enum { COLS = 1056, ROWS = 2600 };
    struct test_gguf w;
    struct fo_buf file;
    float *x = malloc(sizeof *x * COLS * ROWS), *want = malloc(sizeof *want * COLS * ROWS);
    for (size_t i = 0; i < COLS * ROWS; i++) x[i] = sinf((float)(i % 99991)) * (1.0f + (float)(i % 7));
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_tensor(&w, "blk.0.ffn_up.weight", FO_F32, (uint64_t[]){ COLS, ROWS }, 2, x, sizeof *x * COLS * ROWS);
    assert_true(test_gguf_finish(&w, &file));
    FILE *f = fopen(in, "wb");
    assert_int_equal(fwrite(file.data, 1, file.len, f), file.len);
    fclose(f);
    fo_buf_done(&file);
    static const char *const mixes[] = { "Q8_0", "F16", "F32", "BF16" };
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        must(in, out, mixes[i], 3);
        struct fo_gguf *g = open_file(out);
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(g, 0);
        size_t bytes = (size_t)fo_dtype_bytes(t->t.type, COLS * ROWS);
        fo_dtype_info(t->t.type)->from_f32(x, want, COLS * ROWS);
        assert_int_equal(t->bytes, bytes);
        assert_memory_equal(t->t.data, want, bytes);
        fo_gguf_close(g);
    }
    free(x);
    free(want);
}

/* --- what is refused -------------------------------------------------------------------------------------------------------- */

static void the_input_is_never_the_output(void **state) {
    (void)state;
    struct pn_quantize_result r;
    struct fo_err e;
    write_tiny(wide());
    assert_int_equal(quantise(in, in, "Q8_0", 1, true, &r, &e), FO_EINVAL);
    assert_int_equal(link(in, out), 0);
    assert_int_equal(quantise(in, out, "Q8_0", 1, true, &r, &e), FO_EINVAL);
    unlink(out);
    assert_int_equal(symlink("in.gguf", out), 0);
    assert_int_equal(quantise(in, out, "Q8_0", 1, true, &r, &e), FO_EINVAL);
    fo_gguf_close(open_file(in));
    assert_int_equal(test_n_files(folder), 2);
}

static void an_existing_file_stays_unless_told(void **state) {
    (void)state;
    struct pn_quantize_result r;
    struct fo_err e;
    write_tiny(wide());
    must(in, out, "Q8_0", 1);
    assert_int_equal(quantise(in, out, "Q4_0", 1, false, &r, &e), FO_EINVAL);
    struct fo_gguf *g = open_file(out);
    uint32_t v = 0;
    assert_int_equal(fo_gguf_get_u32(g, "general.file_type", &v, &e), FO_OK);
    assert_int_equal(v, 7);
    fo_gguf_close(g);
}

/* A file of one matrix in 256 columns with the given bytes. */
static void write_one(const char *name, uint32_t type, const void *data, size_t bytes, uint64_t rows) {
    struct test_gguf w;
    struct fo_buf file;
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_tensor(&w, name, type, (uint64_t[]){ 256, rows }, 2, data, bytes);
    assert_true(test_gguf_finish(&w, &file));
    FILE *f = fopen(in, "wb");
    assert_int_equal(fwrite(file.data, 1, file.len, f), file.len);
    fclose(f);
    fo_buf_done(&file);
}

static void values_that_a_type_cannot_hold_are_refused_with_the_tensor(void **state) {
    (void)state;
    static float x[256 * 70];
    static const float bad[] = { NAN, INFINITY, -INFINITY, 65536.0f };
    static const char *const mixes[] = { "F16", "Q4_K_M", "Q8_0", "BF16", "F32" };
    struct pn_quantize_result r;
    struct fo_err e;
    for (size_t k = 0; k < 4; k++) {
        x[256 * 64 + 5] = bad[k];
        write_one("blk.3.ffn_up.weight", FO_F32, x, sizeof x, 70);
        for (size_t i = 0; i < 3 + (size_t)(k < 3); i++) { /* BF16 holds the last, and F32 is copied as it is */
            assert_int_equal(quantise(in, out, mixes[i], 3, false, &r, &e), FO_EFORMAT);
            assert_non_null(strstr(e.msg, "blk.3.ffn_up.weight"));
            assert_non_null(strstr(e.msg, "16384"));
            assert_int_equal(test_n_files(folder), 1);
        }
    }
    must(in, out, "BF16", 1);
    must(in, out, "F32", 1);
}

static void types_that_cannot_be_read_are_refused_by_name(void **state) {
    (void)state;
    struct pn_quantize_result r;
    struct fo_err e;
    static const int64_t x[512];
    write_one("blk.0.ffn_up.weight", FO_I64, x, sizeof x, 2);
    assert_int_equal(quantise(in, out, "Q8_0", 1, false, &r, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "blk.0.ffn_up.weight is I64"));
    write_one("blk.0.ffn_gate_inp.weight", FO_I64, x, sizeof x, 2); /* not one to quantise: it is copied */
    must(in, out, "Q8_0", 1);
}

static void broken_files_leave_no_output(void **state) {
    (void)state;
    glob_t files;
    assert_int_equal(glob("tests/data/gguf/*.gguf", 0, NULL, &files), 0);
    assert_true(files.gl_pathc > 40);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct pn_quantize_result r;
        struct fo_err e;
        int rc = quantise(files.gl_pathv[i], out, "Q4_K_M", 1, true, &r, &e);
        assert_int_equal(test_n_files(folder), rc == FO_OK);
        unlink(out);
    }
    globfree(&files);
    struct pn_quantize_result r;
    struct fo_err e;
    assert_int_equal(quantise("/nowhere.gguf", out, "Q8_0", 1, false, &r, &e), FO_ENOENT);
    assert_int_equal(test_n_files(folder), 0);
}

/* --- what ends it early ----------------------------------------------------------------------------------------------------- */

struct stop {
    int calls, at;
    uint64_t done, total;
    bool truncate;
};

static int stop_at(void *ctx, uint64_t done, uint64_t total, struct fo_err *e) {
    struct stop *s = ctx;
    assert_true(done >= s->done && done <= total);
    s->done = done;
    s->total = total;
    if (++s->calls != s->at) return FO_OK;
    if (s->truncate) return truncate(in, 4096) ? (int)fo_fail(e, FO_EIO, "truncate") : FO_OK;
    return (int)fo_fail(e, FO_ECANCELLED, "stopped");
}

static void whoever_is_asked_may_end_it_and_nothing_is_left(void **state) {
    (void)state;
    write_tiny(wide());
    struct stop all = { 0 };
    struct pn_quantize_result r;
    struct fo_err e;
    struct pn_quantize_opts o = { .mix = pn_mix_find("Q4_0"), .n_threads = 1, .go_on = stop_at, .ctx = &all };
    assert_int_equal(pn_quantize(in, out, &o, &r, &e), FO_OK);
    assert_true(all.calls > 10);
    unlink(out);
    for (int at = 1; at <= all.calls; at++) {
        struct stop s = { .at = at };
        o.ctx = &s;
        assert_int_equal(pn_quantize(in, out, &o, &r, &e), FO_ECANCELLED);
        assert_int_equal(test_n_files(folder), 1);
    }
}

static void an_input_that_is_truncated_meanwhile_is_noticed(void **state) {
    (void)state;
    test_sigbus_guard();
    write_tiny(wide());
    struct stop s = { .at = 3, .truncate = true };
    struct pn_quantize_result r;
    struct fo_err e;
    struct pn_quantize_opts o = { .mix = pn_mix_find("Q4_0"), .n_threads = 2, .go_on = stop_at, .ctx = &s };
    assert_int_equal(pn_quantize(in, out, &o, &r, &e), FO_ELOST);
    assert_int_equal(test_n_files(folder), 1);
}

static void running_out_of_memory_leaves_nothing(void **state) {
    (void)state;
    write_tiny(wide());
    struct pn_quantize_result r;
    struct fo_err e;
    int n = 0;
    for (bool failed = true; failed;) {
        test_fail_alloc(++n);
        int rc = quantise(in, out, "Q4_K_M", 1, false, &r, &e);
        failed = test_alloc_failed();
        if (failed) {
            if (rc != FO_ENOMEM) fail_msg("allocation %d: %d %s", n, rc, rc ? e.msg : "");
            assert_int_equal(test_n_files(folder), 1);
        } else {
            assert_int_equal(rc, FO_OK);
        }
    }
    assert_true(n > 10);
}

static void memory_is_that_of_a_few_rows_not_of_the_model(void **state) {
    (void)state;
    struct pn_quantize_result r;
    struct fo_err e;
    uint64_t one = 0;
    for (uint64_t rows = 1 << 10; rows <= 1 << 16; rows <<= 6) { /* 1 and 64 MiB of weights, all holes */
        struct test_gguf w;
        struct fo_buf file;
        test_gguf_init(&w, 3);
        test_gguf_str(&w, "general.architecture", "llama");
        test_gguf_tensor_at(&w, "blk.0.ffn_up.weight", FO_F32, (uint64_t[]){ 256, rows }, 2, 0);
        assert_true(test_gguf_finish(&w, &file));
        FILE *f = fopen(in, "wb");
        assert_int_equal(fwrite(file.data, 1, file.len, f), file.len);
        fclose(f);
        assert_int_equal(truncate(in, (off_t)(file.len + 32 + rows * 1024)), 0);
        fo_buf_done(&file);
        test_fail_alloc(0);
        if (quantise(in, out, "Q4_0", 1, true, &r, &e)) fail_msg("%s", e.msg);
        if (!one) one = test_alloc_bytes();
    }
    assert_true(test_alloc_bytes() <= one + 4096);
    assert_true(one < 16 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_mix_gives_a_file_with_the_same_weights_as_near_as_its_types_are, clean),
        cmocka_unit_test_teardown(the_number_of_threads_changes_no_bit, clean),
        cmocka_unit_test_teardown(a_file_of_its_own_type_comes_out_as_it_went_in, clean),
        cmocka_unit_test_teardown(quantised_files_widen_to_the_values_they_stand_for, clean),
        cmocka_unit_test_teardown(a_model_in_shards_becomes_one_file, clean),
        cmocka_unit_test_teardown(a_directory_becomes_a_file_that_says_the_same, clean),
        cmocka_unit_test_teardown(long_tensors_have_no_joints, clean),
        cmocka_unit_test_teardown(the_input_is_never_the_output, clean),
        cmocka_unit_test_teardown(an_existing_file_stays_unless_told, clean),
        cmocka_unit_test_teardown(values_that_a_type_cannot_hold_are_refused_with_the_tensor, clean),
        cmocka_unit_test_teardown(types_that_cannot_be_read_are_refused_by_name, clean),
        cmocka_unit_test_teardown(broken_files_leave_no_output, clean),
        cmocka_unit_test_teardown(whoever_is_asked_may_end_it_and_nothing_is_left, clean),
        cmocka_unit_test_teardown(an_input_that_is_truncated_meanwhile_is_noticed, clean),
        cmocka_unit_test_teardown(running_out_of_memory_leaves_nothing, clean),
        cmocka_unit_test_teardown(memory_is_that_of_a_few_rows_not_of_the_model, clean),
    };
    test_sigbus_init();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
