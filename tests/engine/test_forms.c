/* Models that are more than one file, as far as the forward pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_in_shards_says_what_it_says_whole),
        cmocka_unit_test(a_shard_that_is_truncated_under_a_model_fails_it_with_the_reason),
    };
    test_sigbus_init();
    return cmocka_run_group_tests(tests, open_device, close_device);
}
