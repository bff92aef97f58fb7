/* The choices of types against those that llama-quantize makes (tests/data/mixes, written by tests/gen/mix_cases.py). */
#include "engine/mix.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/gguf.h"
#include "tests/support/alloc.h"
#include "tests/support/gguf_write.h"

enum { MAX_MIXES = 32, MAX_TENSORS = 320 };

/* A case file, parsed; names point into `text`. */
struct golden {
    char *text, *arch;
    const struct pn_mix *mixes[MAX_MIXES];
    enum fo_dtype letters[128];
    struct {
        const char *name, *types; /* a letter a mix */
        uint64_t ne[4];
        uint32_t n_dims;
    } tensors[MAX_TENSORS];
    size_t n_mixes, n_tensors;
};

static enum fo_dtype type_named(const char *name) {
    for (uint32_t i = 0; i < FO_N_DTYPES; i++)
        if (fo_dtype_info(i) && strcmp(fo_dtype_name(i), name) == 0) return (enum fo_dtype)i;
    fail_msg("no type %s", name);
    return FO_F32;
}

/* Reads a case and starts a GGUF with its metadata. */
static void load(const char *path, struct golden *g, struct test_gguf *w) {
    struct fo_err e;
    size_t len;
    memset(g, 0, sizeof *g);
    test_gguf_init(w, 3);
    if (fo_file_read(path, 1 << 20, &g->text, &len, &e)) fail_msg("%s", e.msg);
    char *rest = NULL, *in = NULL;
    for (char *line = strtok_r(g->text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *word = strtok_r(line, " ", &in), *a = strtok_r(NULL, " ", &in);
        if (strcmp(word, "#") == 0) continue;
        if (strcmp(word, "arch") == 0) {
            g->arch = a;
            test_gguf_str(w, "general.architecture", a);
        } else if (strcmp(word, "key") == 0) {
            char key[128];
            snprintf(key, sizeof key, "%s.%s", g->arch, a);
            test_gguf_u32(w, key, (uint32_t)strtoul(strtok_r(NULL, " ", &in), NULL, 10));
        } else if (strcmp(word, "mixes") == 0) {
            for (; a; a = strtok_r(NULL, " ", &in)) {
                assert_true(g->n_mixes < MAX_MIXES);
                assert_non_null(g->mixes[g->n_mixes++] = pn_mix_find(a));
            }
        } else if (strcmp(word, "letters") == 0) {
            for (; a; a = strtok_r(NULL, " ", &in)) g->letters[(unsigned char)a[0] & 127] = type_named(a + 2);
        } else {
            assert_true(g->n_tensors < MAX_TENSORS);
            g->tensors[g->n_tensors].name = word;
            uint32_t n = 0;
            for (char *d = a; *d; n++) {
                assert_true(n < 4);
                g->tensors[g->n_tensors].ne[n] = strtoul(d, &d, 10);
                d += *d == 'x';
            }
            g->tensors[g->n_tensors].n_dims = n;
            g->tensors[g->n_tensors].types = strtok_r(NULL, " ", &in);
            assert_int_equal(strlen(g->tensors[g->n_tensors++].types), g->n_mixes);
        }
    }
    assert_true(g->n_mixes > 20 && g->n_tensors > 30);
}

static struct fo_gguf *build(struct golden *g, struct test_gguf *w, struct fo_buf *file) {
    static const float zeros[1 << 16];
    struct fo_gguf *ret;
    struct fo_err e;
    for (size_t i = 0; i < g->n_tensors; i++) {
        uint64_t n = 1;
        for (uint32_t d = 0; d < g->tensors[i].n_dims; d++) n *= g->tensors[i].ne[d];
        assert_true(n <= sizeof zeros / sizeof *zeros);
        test_gguf_tensor(w, g->tensors[i].name, FO_F32, g->tensors[i].ne, g->tensors[i].n_dims, zeros, n * sizeof *zeros);
    }
    assert_true(test_gguf_finish(w, file));
    if (fo_gguf_parse(file->data, file->len, "case", &ret, &e)) fail_msg("%s", e.msg);
    return ret;
}

static void every_mix_chooses_as_llama_quantize_does(void **state) {
    (void)state;
    static struct golden g;
    glob_t files;
    assert_int_equal(glob("tests/data/mixes/*.txt", 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 9);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        struct test_gguf w;
        struct fo_buf bytes;
        load(files.gl_pathv[f], &g, &w);
        struct fo_gguf *model = build(&g, &w, &bytes);
        for (size_t m = 0; m < g.n_mixes; m++) {
            enum fo_dtype types[MAX_TENSORS];
            size_t n_fallback;
            struct fo_err e;
            if (pn_mix_types(g.mixes[m], model, types, &n_fallback, &e)) fail_msg("%s", e.msg);
            for (size_t i = 0; i < g.n_tensors; i++) {
                enum fo_dtype want = g.letters[(unsigned char)g.tensors[i].types[m] & 127];
                if (types[i] != want)
                    fail_msg("%s: %s: %s is %s, expected %s", files.gl_pathv[f], pn_mix_name(g.mixes[m]), g.tensors[i].name,
                             fo_dtype_name(types[i]), fo_dtype_name(want));
            }
        }
        fo_gguf_close(model);
        fo_buf_done(&bytes);
        free(g.text);
    }
    globfree(&files);
}

static void every_row_of_the_table_can_be_written_and_found(void **state) {
    (void)state;
    size_t n = 0;
    for (; pn_mix_at(n); n++) {
        const struct pn_mix *m = pn_mix_at(n);
        assert_ptr_equal(pn_mix_find(pn_mix_name(m)), m);
    }
    assert_int_equal(n, 25);
    assert_null(pn_mix_find("IQ2_XXS"));
    assert_null(pn_mix_find(""));
    assert_string_equal(pn_mix_name(pn_mix_find("q4_k")), "Q4_K_M");
    assert_string_equal(pn_mix_name(pn_mix_find("Q3_k")), "Q3_K_M");
    assert_string_equal(pn_mix_name(pn_mix_find("q5_K")), "Q5_K_M");
    assert_int_equal(pn_mix_file_type(pn_mix_find("Q4_K_M")), 15);
}

/* One tensor of `name` in a model with that metadata; the mix's choice for it, or the error. */
static int one(const char *mix, uint32_t n_layer, uint32_t n_expert, const char *name, const uint64_t *ne, uint32_t n_dims, enum fo_dtype *ret,
               size_t *ret_n_fallback, struct fo_err *e) {
    static const float zeros[4096];
    struct test_gguf w;
    struct fo_buf file;
    struct fo_gguf *g;
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_u32(&w, "llama.block_count", n_layer);
    test_gguf_u32(&w, "llama.expert_count", n_expert);
    uint64_t n = 1;
    for (uint32_t d = 0; d < n_dims; d++) n *= ne[d];
    assert_true(n <= 4096);
    test_gguf_tensor(&w, name, FO_F32, ne, n_dims, zeros, n * sizeof *zeros);
    assert_true(test_gguf_finish(&w, &file));
    if (fo_gguf_parse(file.data, file.len, "one", &g, e)) fail_msg("%s", e->msg);
    int rc = pn_mix_types(pn_mix_find(mix), g, ret, ret_n_fallback, e);
    fo_gguf_close(g);
    fo_buf_done(&file);
    return rc;
}

static void rows_that_no_block_divides_become_half_precision(void **state) {
    (void)state;
    enum fo_dtype type;
    size_t n;
    struct fo_err e;
    assert_int_equal(one("Q4_K_M", 2, 0, "blk.1.ffn_up.weight", (uint64_t[]){ 40, 2 }, 2, &type, &n, &e), FO_OK);
    assert_int_equal(type, FO_F16);
    assert_int_equal(n, 1);
    assert_int_equal(one("NVFP4", 2, 0, "blk.1.ffn_up.weight", (uint64_t[]){ 96, 2 }, 2, &type, &n, &e), FO_OK);
    assert_int_equal(type, FO_MXFP4);
    assert_int_equal(one("F16", 2, 0, "blk.1.ffn_up.weight", (uint64_t[]){ 40, 2 }, 2, &type, &n, &e), FO_OK);
    assert_int_equal(n, 0);
    assert_int_equal(one("Q8_0", 2, 0, "blk.1.ffn_up.weight", (uint64_t[]){ 64, 1 }, 2, &type, &n, &e), FO_OK);
    assert_int_equal(type, FO_F32); /* one row is a vector */
}

static void names_that_lie_are_refused_or_harmless(void **state) {
    (void)state;
    static const char *const names[] = { "blk.7.ffn_down.weight", "blk..ffn_down.weight", "ffn_down.weight", "blk.99999999999999.ffn_down.weight", "blk.-1.ffn_down.weight" };
    enum fo_dtype type;
    size_t n;
    struct fo_err e;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(one("Q4_K_M", 7, 8, names[i], (uint64_t[]){ 256, 2 }, 2, &type, &n, &e), FO_EFORMAT);
        assert_non_null(strstr(e.msg, names[i]));
        assert_int_equal(one("Q4_K_M", 7, 0, names[i], (uint64_t[]){ 256, 2 }, 2, &type, &n, &e), FO_OK); /* counted, not read */
    }
    assert_int_equal(one("Q4_K_M", UINT32_MAX, 0, "blk.0.ffn_down.weight", (uint64_t[]){ 256, 2 }, 2, &type, &n, &e), FO_OK);
    assert_int_equal(type, FO_Q6_K);
}

static void running_out_of_memory_is_an_error(void **state) {
    (void)state;
    static struct golden g;
    struct test_gguf w;
    struct fo_buf bytes;
    struct fo_err e = { 0 };
    enum fo_dtype types[MAX_TENSORS];
    size_t n_fallback = 77;
    load("tests/data/mixes/phi3.txt", &g, &w);
    struct fo_gguf *model = build(&g, &w, &bytes);
    test_fail_alloc(1);
    assert_int_equal(pn_mix_types(g.mixes[0], model, types, &n_fallback, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
    assert_int_equal(n_fallback, 77);
    fo_gguf_close(model);
    fo_buf_done(&bytes);
    free(g.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mix_chooses_as_llama_quantize_does),
        cmocka_unit_test(every_row_of_the_table_can_be_written_and_found),
        cmocka_unit_test(rows_that_no_block_divides_become_half_precision),
        cmocka_unit_test(names_that_lie_are_refused_or_harmless),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
