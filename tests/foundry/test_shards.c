#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/gguf.h"
#include "foundry/model_file.h"
#include "tests/support/alloc.h"
#include "tests/support/shards.h"
#include "tests/support/sigbus.h"
#include "tests/support/tiny.h"

enum { N = 3 };
static char folder[] = "/tmp/shards-XXXXXX", whole[64], prefix[64];
static uint32_t n_tensors;

static int set_up(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_err e;
    struct fo_gguf *g;
    if (!mkdtemp(folder)) return 1;
    snprintf(whole, sizeof whole, "%s/whole.gguf", folder);
    snprintf(prefix, sizeof prefix, "%s/tiny", folder);
    if (test_tiny_write(&t, whole, &e) || fo_gguf_open(whole, &g, &e)) return 1;
    n_tensors = (uint32_t)fo_gguf_n_tensors(g);
    fo_gguf_close(g);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    unlink(whole);
    return rmdir(folder); /* not empty: a test left something behind */
}

static void refused(const char *path, enum fo_code code, const char *says, const char *names) {
    struct fo_gguf *g = NULL;
    struct fo_err e;
    int rc = fo_model_open(path, &g, &e);
    if (rc != (int)code || !strstr(e.msg, says) || !strstr(e.msg, names)) fail_msg("%s: %d %s; expected \"%s\" and \"%s\"", path, rc, rc ? e.msg : "opened", says, names);
    assert_null(g);
}

/* --- what is read --- */

static void any_shard_opens_the_whole_model(void **state) {
    (void)state;
    struct fo_gguf *g, *one;
    struct fo_err e;
    test_shards_write(whole, prefix, N);
    assert_int_equal(fo_model_open(whole, &one, &e), FO_OK);
    for (uint32_t i = 0; i < N; i++) {
        if (fo_model_open(test_shard_path(prefix, i, N), &g, &e)) fail_msg("%s", e.msg);
        assert_int_equal(fo_gguf_n_tensors(g), n_tensors);
        assert_int_equal(fo_gguf_n_files(g), N);
        assert_string_equal(fo_gguf_format(g), "GGUF");
        assert_int_equal(fo_gguf_n_kv(g), fo_gguf_n_kv(one) + 3);
        uint64_t bytes = 0;
        for (uint32_t f = 0; f < N; f++) bytes += fo_map_size(fo_gguf_file(g, f));
        assert_int_equal(fo_gguf_file_bytes(g), bytes);
        for (uint32_t t = 0; t < n_tensors; t++) {
            const struct fo_gguf_tensor *want = fo_gguf_tensor_at(one, t), *have = fo_gguf_tensor_at(g, t);
            char name[65];
            snprintf(name, sizeof name, "%.*s", (int)want->name.len, want->name.s);
            assert_ptr_equal(fo_gguf_tensor(g, name), have);
            assert_int_equal(have->bytes, want->bytes);
            assert_memory_equal(have->t.data, want->t.data, want->bytes);
            assert_ptr_equal(have->t.data, fo_map_data(have->map) + have->offset);
        }
        assert_null(fo_gguf_tensor(g, "no.such"));
        assert_int_equal(fo_gguf_state(g, &e), FO_OK);
        fo_gguf_close(g);
    }
    fo_gguf_close(one);
    test_shards_remove(prefix, N);
}

static void a_file_named_like_a_shard_may_hold_the_whole_model(void **state) {
    (void)state;
    struct fo_gguf *g;
    struct fo_err e;
    const char *path = test_shard_path(prefix, 1, 2);
    for (int i = 0; i < 2; i++) { /* without keys, and as one of one */
        test_shard_write(whole, path, 0, n_tensors, 1, i ? (struct test_shard_keys){ 0, 1, n_tensors } : (struct test_shard_keys){ ~0u, ~0u, ~0u });
        if (fo_model_open(path, &g, &e)) fail_msg("%s", e.msg);
        assert_int_equal(fo_gguf_n_files(g), 1);
        fo_gguf_close(g);
        unlink(path);
    }
}

/* --- what is refused --- */

static void a_missing_shard_is_named_in_full_before_any_is_read(void **state) {
    (void)state;
    for (uint32_t gone = 0; gone < N; gone++) {
        test_shards_write(whole, prefix, N);
        unlink(test_shard_path(prefix, gone, N));
        for (uint32_t i = 0; i < N; i++) refused(test_shard_path(prefix, i, N), FO_ENOENT, "is missing: the model is in 3 files", test_shard_path(prefix, gone, N));
        unlink(test_shard_path(prefix, gone == 2 ? 0 : 2, N)); /* a second one */
        refused(test_shard_path(prefix, gone, N), FO_ENOENT, "is missing, and 1 more of the 3 files", test_shard_path(prefix, gone == 2 ? 0 : gone, N));
        test_shards_remove(prefix, N);
    }
}

static void shards_that_do_not_belong_together_are_refused_naming_the_file(void **state) {
    (void)state;
    static const struct {
        uint32_t which;
        struct test_shard_keys keys; /* of that one; 99: as it should be */
        const char *says;
    } cases[] = {
        { 0, { 1, 3, 99 }, "split.no is 1, expected 0" },
        { 2, { 1, 3, 99 }, "split.no is 1, expected 2" },
        { 1, { 1, 4, 99 }, "split.count is 4, expected 3" },
        { 1, { 1, ~0u, 99 }, "'split.count' is missing" },
        { 2, { ~0u, 3, 99 }, "'split.no' is missing" },
        { 0, { 0, 3, ~0u }, "'split.tensors.count' is missing" },
        { 1, { 1, 3, 7 }, "split.tensors.count is 7, expected" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct test_shard_keys k = cases[i].keys;
        if (k.n_tensors == 99) k.n_tensors = n_tensors;
        uint32_t w = cases[i].which;
        const char *path = test_shard_path(prefix, w, N);
        test_shards_write(whole, prefix, N);
        test_shard_write(whole, path, n_tensors * w / N, n_tensors * (w + 1) / N, w == 0, k);
        refused(test_shard_path(prefix, w == 0, N), FO_EFORMAT, cases[i].says, path);
        test_shards_remove(prefix, N);
    }
}

static void a_tensor_in_two_shards_is_refused_naming_both(void **state) {
    (void)state;
    test_shards_write(whole, prefix, N);
    const char *last = test_shard_path(prefix, 2, N);
    test_shard_write(whole, last, 0, 1, 0, (struct test_shard_keys){ 2, N, n_tensors });
    refused(last, FO_EFORMAT, "tensor token_embd.weight is in", test_shard_path(prefix, 0, N));
    refused(last, FO_EFORMAT, "00003-of-00003.gguf: tensor", "");
    test_shards_remove(prefix, N);
}

static void a_tensor_that_no_shard_has_is_missed(void **state) {
    (void)state;
    test_shards_write(whole, prefix, N);
    test_shard_write(whole, test_shard_path(prefix, 1, N), n_tensors / 3, n_tensors * 2 / 3 - 1, 0, (struct test_shard_keys){ 1, N, n_tensors });
    char says[64];
    snprintf(says, sizeof says, "%u tensors together, expected %u", n_tensors - 1, n_tensors);
    refused(test_shard_path(prefix, 0, N), FO_EFORMAT, says, "split.tensors.count");
    test_shards_remove(prefix, N);
}

static void each_shard_is_wholly_checked(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        test_shards_write(whole, prefix, N);
        const char *path = test_shard_path(prefix, i, N);
        struct fo_map *m;
        struct fo_err e;
        assert_int_equal(fo_map_open(path, &m, &e), FO_OK);
        uint64_t size = fo_map_size(m);
        fo_map_close(m);
        assert_int_equal(truncate(path, (off_t)size - 1), 0);
        refused(test_shard_path(prefix, (i + 1) % N, N), FO_EFORMAT, "truncated?", path);
        test_shards_remove(prefix, N);
    }
}

static void a_shard_of_another_name_or_of_too_many_is_refused(void **state) {
    (void)state;
    static const char *const ends[] = { "", "-00001-of-00003.GGUF", "-0001-of-0003.gguf", "-00004-of-00003.gguf", "-00000-of-00003.gguf", "_00001-of-00003.gguf" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s%s", prefix, ends[i]);
        test_shard_write(whole, path, 0, 4, 1, (struct test_shard_keys){ 0, N, n_tensors });
        refused(path, FO_EFORMAT, "does not end like -00001-of-00001.gguf", path);
        unlink(path);
    }
    const char *path = test_shard_path(prefix, 0, 99999);
    test_shard_write(whole, path, 0, 4, 1, (struct test_shard_keys){ 0, 99999, n_tensors });
    refused(path, FO_ELIMIT, "a model of 99999 files, at most 512", "");
    unlink(path);
}

/* --- while it is open --- */

static void any_file_that_changes_is_a_loss_that_names_it(void **state) {
    (void)state;
    test_sigbus_guard();
    for (uint32_t i = 0; i < N; i++) {
        struct fo_gguf *g;
        struct fo_err e;
        test_shards_write(whole, prefix, N);
        const char *path = test_shard_path(prefix, i, N);
        assert_int_equal(fo_model_open(test_shard_path(prefix, 0, N), &g, &e), FO_OK);
        uint64_t before = fo_model_identity(test_shard_path(prefix, 0, N));
        assert_int_equal(truncate(path, 1), 0);
        assert_int_equal(fo_gguf_state(g, &e), FO_ELOST);
        assert_non_null(strstr(e.msg, path));
        volatile unsigned char sum = 0;
        for (uint32_t t = 0; t < n_tensors; t++) sum ^= *(unsigned char *)fo_gguf_tensor_at(g, t)->t.data; /* no fault ends the process */
        assert_true(before != 0 && fo_model_identity(test_shard_path(prefix, 0, N)) != before);
        fo_gguf_close(g);
        test_shards_remove(prefix, N);
    }
    assert_int_equal(fo_model_identity(test_shard_path(prefix, 0, N)), 0);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    test_shards_write(whole, prefix, N);
    const char *path = test_shard_path(prefix, 1, N);
    int n_failed = 0;
    for (long n = 1;; n++) {
        struct fo_gguf *g = NULL;
        struct fo_err e;
        test_fail_alloc(n);
        int rc = fo_model_open(path, &g, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, FO_OK);
            fo_gguf_close(g);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
        assert_null(g);
        n_failed++;
    }
    assert_true(n_failed > 20);
    test_shards_remove(prefix, N);
}

static void a_path_gives_the_name_that_people_use(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        { "/m/Llama-3.gguf", "Llama-3" },         { "x", "x" },          { "/m/dir/", "dir" },       { "/m/dir//", "dir" },
        { "a-00001-of-00003.gguf", "a" },         { "/", "" },           { "./b-00003-of-00003.gguf", "b" },
        { "a-00004-of-00003.gguf", "a-00004-of-00003" }, { ".gguf", ".gguf" }, { "model.safetensors", "model.safetensors" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        const char *name = fo_model_path_name(cases[i][0], &n);
        if (n != strlen(cases[i][1]) || memcmp(name, cases[i][1], n) != 0) fail_msg("%s: %.*s", cases[i][0], (int)n, name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_gives_the_name_that_people_use),
        cmocka_unit_test(any_shard_opens_the_whole_model),
        cmocka_unit_test(a_file_named_like_a_shard_may_hold_the_whole_model),
        cmocka_unit_test(a_missing_shard_is_named_in_full_before_any_is_read),
        cmocka_unit_test(shards_that_do_not_belong_together_are_refused_naming_the_file),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused_naming_both),
        cmocka_unit_test(a_tensor_that_no_shard_has_is_missed),
        cmocka_unit_test(each_shard_is_wholly_checked),
        cmocka_unit_test(a_shard_of_another_name_or_of_too_many_is_refused),
        cmocka_unit_test(any_file_that_changes_is_a_loss_that_names_it),
        cmocka_unit_test(every_failing_allocation_is_an_error_and_leaks_nothing),
    };
    test_sigbus_init();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
