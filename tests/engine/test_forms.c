/* Models that are more than one file, as far as the forward pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/device.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/hf.h"
#include "tests/support/odd.h"
#include "tests/support/shards.h"
#include "tests/support/sigbus.h"

enum { VOCAB = 96, N = 3 };
static struct fo_device *dev;

static int open_device(void **state) {
    (void)state;
    struct fo_err e;
    return fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &dev, &e);
}

static int close_device(void **state) {
    (void)state;
    fo_device_close(dev);
    return 0;
}

static struct pn_model *open_model(const char *path, bool no_mmap) {
    struct pn_model_opts o = { .dev = dev, .kv_default = true, .no_mmap = no_mmap };
    struct pn_model *m;
    struct fo_err e;
    if (pn_model_open(path, &o, &m, &e)) fail_msg("%s", e.msg);
    return m;
}

static int step(struct pn_model *m, float *ret, struct fo_err *e) {
    static const int32_t ids[] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    struct pn_seq *s;
    float *logits;
    if (pn_seq_new(m, &s, e)) return e->code;
    struct pn_batch_item item = { s, ids, 8, PN_WANT_LAST };
    int rc = pn_model_forward(m, &item, 1, &logits, e);
    if (!rc) memcpy(ret, logits, VOCAB * sizeof *ret);
    pn_seq_free(s);
    return rc;
}

static void a_model_in_shards_says_what_it_says_whole(void **state) {
    (void)state;
    float want[VOCAB], have[VOCAB];
    struct fo_err e;
    odd_write(odd_path(0), &(struct odd){ .type = FO_Q4_0, .n_vocab = VOCAB, .untied = true, .biases = true });
    test_shards_write(odd_path(0), odd_path(1), N);
    struct pn_model *m = open_model(odd_path(0), false);
    assert_int_equal(step(m, want, &e), FO_OK);
    struct pn_model_info one = *pn_model_info(m);
    pn_model_free(m);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        m = open_model(test_shard_path(odd_path(1), 1, N), no_mmap);
        assert_int_equal(step(m, have, &e), FO_OK);
        assert_memory_equal(have, want, sizeof want);
        assert_int_equal(pn_model_info(m)->weights_bytes, one.weights_bytes);
        assert_int_equal(pn_model_info(m)->parts[0].mapped, !no_mmap);
        pn_model_free(m);
    }
    test_shards_remove(odd_path(1), N);
    unlink(odd_path(0));
}

static void a_shard_that_is_truncated_under_a_model_fails_it_with_the_reason(void **state) {
    (void)state;
    test_sigbus_guard();
    for (int no_mmap = 0; no_mmap < 2; no_mmap++)
        for (uint32_t i = 0; i < N; i++) {
            float logits[VOCAB];
            struct fo_err e;
            odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .n_vocab = VOCAB, .untied = true });
            test_shards_write(odd_path(0), odd_path(1), N);
            struct pn_model *m = open_model(test_shard_path(odd_path(1), 0, N), no_mmap);
            assert_int_equal(truncate(test_shard_path(odd_path(1), i, N), 4096), 0);
            step(m, logits, &e); /* on zeros, where a page is gone; what it says is not to be believed */
            assert_int_equal(pn_model_state(m, &e), FO_ELOST);
            assert_non_null(strstr(e.msg, test_shard_path(odd_path(1), i, N)));
            assert_non_null(strstr(e.msg, "truncated"));
            pn_model_free(m);
            test_shards_remove(odd_path(1), N);
            unlink(odd_path(0));
        }
}

/* Both written, opened in place and copied: what they say is the same to the bit, and they take what was estimated. */
static void say_the_same(const struct odd *one, const struct odd *other) {
    float want[VOCAB], have[VOCAB];
    struct fo_err e;
    odd_write(odd_path(0), one);
    odd_write(odd_path(1), other);
    struct pn_model *m = open_model(odd_path(0), false);
    assert_int_equal(step(m, want, &e), FO_OK);
    pn_model_free(m);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        m = open_model(odd_path(1), no_mmap); /* opening compares what is laid out with what was measured */
        assert_int_equal(step(m, have, &e), FO_OK);
        assert_memory_equal(have, want, sizeof want);
        struct pn_estimate est;
        char why[64];
        assert_int_equal(pn_model_estimate(odd_path(1), &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &est, why, sizeof why, &e), FO_OK);
        assert_string_equal(why, "");
        uint64_t bytes = est.input_bytes + est.output_bytes;
        for (uint32_t i = 0; i < est.n_layer; i++) bytes += est.layer_bytes[i];
        uint64_t taken = pn_model_info(m)->parts[0].weights_bytes;
#ifdef FO_DEBUG
        assert_true(bytes >= taken && bytes - taken < 64 * (est.n_layer + 2)); /* each part is rounded up by itself, and redzones are no multiple of 64 */
#else
        assert_int_equal(bytes, taken);
#endif
        pn_estimate_done(&est);
        pn_model_free(m);
    }
    unlink(odd_path(0));
    unlink(odd_path(1));
}

static void norms_and_biases_in_half_of_32_bits_are_widened(void **state) {
    (void)state;
    const enum fo_dtype types[] = { FO_F16, FO_BF16 };
    for (int i = 0; i < 2; i++) {
        struct odd one = { .type = FO_Q4_0, .n_vocab = VOCAB, .biases = true, .rounded = types[i] }, other = one;
        other.vectors = types[i];
        say_the_same(&one, &other);
        one.untied = other.untied = true;
        say_the_same(&one, &other);
    }
}

static void experts_in_a_tensor_each_say_what_they_say_in_one(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct odd one = { .type = i ? FO_Q4_K : FO_F32, .n_vocab = VOCAB, .n_expert = 5, .n_expert_used = 2 }, other = one;
        other.expert_files = true;
        say_the_same(&one, &other);
    }
}

static void refused(const struct odd *odd, const char *says, const char *names) {
    struct pn_model *m = NULL;
    struct fo_err e;
    odd_write(odd_path(0), odd);
    int rc = pn_model_open(odd_path(0), &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &m, &e);
    if (!rc || !strstr(e.msg, says) || !strstr(e.msg, names)) fail_msg("%s; expected \"%s\" and \"%s\"", rc ? e.msg : "opened", says, names);
    unlink(odd_path(0));
}

static void an_expert_that_is_missing_or_one_too_many_is_refused_by_name(void **state) {
    (void)state;
    struct odd o = { .n_vocab = VOCAB, .n_expert = 3, .n_expert_used = 2, .expert_files = true };
    o.keys = (const struct odd_key[]){ { "llama.expert_count", 'u', 4, NULL }, { 0 } };
    o.tensors = (const struct odd_tensor[]){ { "blk.0.ffn_gate_inp.weight", 256, 4, FO_F32 }, { 0 } };
    refused(&o, "is missing", "blk.0.ffn_gate.3.weight");
    o.keys = (const struct odd_key[]){ { "llama.expert_count", 'u', 2, NULL }, { 0 } };
    o.tensors = (const struct odd_tensor[]){ { "blk.0.ffn_gate_inp.weight", 256, 2, FO_F32 }, { "blk.1.ffn_gate_inp.weight", 256, 2, FO_F32 }, { 0 } };
    refused(&o, "is not one that this build knows", "blk.0.ffn_gate.2.weight");
}

static void pairs_of_a_rotation_are_neighbours_or_halves_as_the_file_says(void **state) {
    (void)state;
    float pairs[VOCAB], halves[VOCAB];
    struct fo_err e;
    struct odd o = { .n_vocab = VOCAB };
    odd_write(odd_path(0), &o);
    struct pn_model *m = open_model(odd_path(0), false);
    assert_int_equal(step(m, pairs, &e), FO_OK);
    pn_model_free(m);
    o.keys = (const struct odd_key[]){ { "pantheon.rope.neox", 'b', 0, NULL }, { 0 } };
    say_the_same(&(struct odd){ .n_vocab = VOCAB }, &o);
    o.keys = (const struct odd_key[]){ { "pantheon.rope.neox", 'b', 1, NULL }, { 0 } };
    odd_write(odd_path(0), &o);
    m = open_model(odd_path(0), false);
    assert_int_equal(step(m, halves, &e), FO_OK);
    pn_model_free(m);
    assert_memory_not_equal(halves, pairs, sizeof pairs);
    o.keys = (const struct odd_key[]){ { "pantheon.rope.neox", 's', 0, "yes" }, { 0 } };
    refused(&o, "pantheon.rope.neox", "string");
}

/* --- directories --- */

#define SHAPE "\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":2," \
              "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05"
#define SIZES SHAPE ",\"vocab_size\":96"

static const char *dir_path(void) {
    static char dir[300];
    snprintf(dir, sizeof dir, "%s.hf", odd_path(2));
    return dir;
}

static void a_directory_says_what_the_gguf_file_of_its_tensors_says(void **state) {
    (void)state;
    static const struct odd_key neox[] = { { "pantheon.rope.neox", 'b', 1, NULL }, { 0 } };
    static const struct {
        const char *config;
        struct odd odd;
    } cases[] = {
        { "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}", { .keys = neox, .untied = true } },
        { "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":true,\"tie_word_embeddings\":true," SIZES "}", { .keys = neox, .biases = true } },
        { "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":5," SIZES "}", { .keys = neox, .untied = true, .window = 5 } },
        { "{\"architectures\":[\"MixtralForCausalLM\"],\"num_local_experts\":4,\"rope_theta\":10000," SIZES "}",
          { .keys = neox, .untied = true, .n_expert = 4, .n_expert_used = 2, .expert_files = true } },
        { "{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES "}", { .arch = "qwen2", .untied = true, .biases = true } },
        { "{\"architectures\":[\"Qwen3ForCausalLM\"],\"head_dim\":64,\"tie_word_embeddings\":true," SIZES "}", { .arch = "qwen3", .head_dim = 64, .qk_norm = true } },
        { "{\"architectures\":[\"Phi3ForCausalLM\"]," SIZES "}", { .arch = "phi3", .untied = true, .fused = true } },
    };
    const enum fo_dtype types[] = { FO_F32, FO_F16, FO_BF16 };
    const char *dir = dir_path();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct odd odd = cases[i].odd;
        float want[VOCAB], have[VOCAB];
        struct fo_err e;
        odd.n_vocab = VOCAB;
        odd.type = odd.vectors = types[i % 3];
        odd_write(odd_path(0), &odd);
        struct pn_model *m = open_model(odd_path(0), false);
        assert_int_equal(step(m, want, &e), FO_OK);
        uint64_t weights = pn_model_info(m)->parts[0].weights_bytes;
        pn_model_free(m);
        /* where the data lies at a multiple of 8, of 1 and of 2; as mapped, and copied */
        for (int k = 0; k < 6; k++) {
            test_hf_write(odd_path(0), dir, i % 2 ? 1 : 3, (unsigned)k / 2, cases[i].config);
            m = open_model(dir, k % 2);
            assert_string_equal(pn_model_info(m)->arch, odd.arch ? odd.arch : "llama");
            assert_false(pn_model_info(m)->has_tokenizer);
            assert_int_equal(step(m, have, &e), FO_OK);
            if (memcmp(have, want, sizeof want)) fail_msg("case %zu, %d: %g, expected %g", i, k, (double)have[0], (double)want[0]);
            assert_int_equal(pn_model_info(m)->parts[0].weights_bytes, weights);
            pn_model_free(m);
            test_hf_remove(dir);
        }
        unlink(odd_path(0));
    }
}

static void a_safetensors_file_that_is_truncated_under_a_model_fails_it_with_the_reason(void **state) {
    (void)state;
    test_sigbus_guard();
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        float logits[VOCAB];
        struct fo_err e;
        char path[400];
        odd_write(odd_path(0), &(struct odd){ .type = FO_BF16, .n_vocab = VOCAB, .untied = true });
        test_hf_write(odd_path(0), dir_path(), 2, 0, "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}");
        struct pn_model *m = open_model(dir_path(), no_mmap);
        assert_int_equal(step(m, logits, &e), FO_OK);
        assert_int_equal(pn_model_state(m, &e), FO_OK);
        snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", dir_path());
        assert_int_equal(truncate(path, 4096), 0);
        step(m, logits, &e);
        assert_int_equal(pn_model_state(m, &e), FO_ELOST);
        assert_non_null(strstr(e.msg, "model-00002-of-00002.safetensors: the file was truncated while in use"));
        pn_model_free(m);
        test_hf_remove(dir_path());
        unlink(odd_path(0));
    }
}

static void a_tensor_of_a_directory_that_no_family_knows_is_refused_by_its_own_name(void **state) {
    (void)state;
    struct odd o = { .type = FO_F32, .n_vocab = VOCAB, .untied = true };
    struct pn_model *m = NULL;
    struct fo_err e;
    o.tensors = (const struct odd_tensor[]){ { "model.layers.0.mlp.shared_expert_gate.weight", 256, 1, FO_F32 }, { 0 } };
    odd_write(odd_path(0), &o);
    test_hf_write(odd_path(0), dir_path(), 1, 0, "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}");
    assert_int_equal(pn_model_open(dir_path(), &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &m, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "tensor model.layers.0.mlp.shared_expert_gate.weight is not one that this build knows in a llama model"));
    test_hf_remove(dir_path());
    unlink(odd_path(0));
}

static void copy_file(const char *from, const char *to) {
    char *bytes;
    size_t n;
    struct fo_err e;
    if (fo_file_read(from, 1 << 20, &bytes, &n, &e)) fail_msg("%s", e.msg);
    test_write_bytes(to, bytes, n);
    free(bytes);
}

static void a_directory_s_tokenizer_is_opened_with_it_or_is_why_there_is_none(void **state) {
    (void)state;
    static const char from[] = "tests/data/tokenizers/bpe352-smollm";
    char path[400], name[200];
    static const char *const files[] = { "tokenizer.json", "tokenizer_config.json" };
    const char *dir = dir_path();
    odd_write(odd_path(0), &(struct odd){ .type = FO_BF16, .n_vocab = 352 });
    test_hf_write(odd_path(0), dir, 1, 0, "{\"architectures\":[\"LlamaForCausalLM\"],\"tie_word_embeddings\":true,\"vocab_size\":352," SHAPE "}");
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", from, files[i]);
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        copy_file(name, path);
    }
    struct pn_model *m = open_model(dir, false);
    if (!pn_model_info(m)->has_tokenizer) fail_msg("%s", pn_model_info(m)->tokenizer_error);
    assert_int_equal(fo_tok_n_vocab(pn_model_tok(m)), 352);
    assert_non_null(pn_model_chat(m));
    struct pn_model_info measured;
    char why[200];
    struct fo_err e;
    assert_int_equal(pn_model_measure(dir, &(struct pn_model_opts){ .dev = dev, .kv_default = true }, &measured, why, sizeof why, &e), FO_OK);
    assert_true(measured.text_bytes > 100000); /* tables over characters and pairs of bytes alone are more */
    assert_int_equal(measured.text_bytes, pn_model_info(m)->text_bytes);
    pn_model_free(m);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    for (int i = 0; i < 2; i++) {
        if (i) unlink(path);
        else test_write_text(path, "{\"model\":{\"type\":\"WordPiece\"}}");
        m = open_model(dir, false);
        assert_false(pn_model_info(m)->has_tokenizer);
        if (!strstr(pn_model_info(m)->tokenizer_error, i ? "there is no tokenizer.json" : "WordPiece")) fail_msg("'%s'", pn_model_info(m)->tokenizer_error);
        pn_model_free(m);
    }
    test_hf_remove(dir);
    unlink(odd_path(0));
}

static void every_failing_allocation_of_a_directory_is_an_error(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_BF16, .vectors = FO_BF16, .n_vocab = VOCAB, .untied = true, .n_expert = 2, .n_expert_used = 1, .expert_files = true });
    test_hf_write(odd_path(0), dir_path(), 2, 1, "{\"architectures\":[\"MixtralForCausalLM\"],\"num_local_experts\":2,\"num_experts_per_tok\":1," SIZES "}");
    for (int no_mmap = 0; no_mmap < 2; no_mmap++)
        for (long n = 1;; n++) {
            struct pn_model *m = NULL;
            struct fo_err e;
            test_fail_alloc(n);
            int rc = pn_model_open(dir_path(), &(struct pn_model_opts){ .dev = dev, .kv_default = true, .no_mmap = no_mmap }, &m, &e);
            if (!test_alloc_failed()) {
                assert_int_equal(rc, FO_OK);
                pn_model_free(m);
                break;
            }
            if (rc != FO_ENOMEM) fail_msg("allocation %ld: %s", n, rc ? e.msg : "opened");
            assert_null(m);
        }
    test_hf_remove(dir_path());
    unlink(odd_path(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_in_shards_says_what_it_says_whole),
        cmocka_unit_test(norms_and_biases_in_half_of_32_bits_are_widened),
        cmocka_unit_test(experts_in_a_tensor_each_say_what_they_say_in_one),
        cmocka_unit_test(an_expert_that_is_missing_or_one_too_many_is_refused_by_name),
        cmocka_unit_test(pairs_of_a_rotation_are_neighbours_or_halves_as_the_file_says),
        cmocka_unit_test(a_directory_says_what_the_gguf_file_of_its_tensors_says),
        cmocka_unit_test(a_safetensors_file_that_is_truncated_under_a_model_fails_it_with_the_reason),
        cmocka_unit_test(a_tensor_of_a_directory_that_no_family_knows_is_refused_by_its_own_name),
        cmocka_unit_test(a_directory_s_tokenizer_is_opened_with_it_or_is_why_there_is_none),
        cmocka_unit_test(every_failing_allocation_of_a_directory_is_an_error),
        cmocka_unit_test(a_shard_that_is_truncated_under_a_model_fails_it_with_the_reason),
    };
    test_sigbus_init();
    return cmocka_run_group_tests(tests, open_device, close_device);
}
