/* Devices: the list, the cpu's memory, and streams whose measured scratch is what they take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/cpu/kernels.h"
#include "foundry/device.h"
#include "tests/support/alloc.h"

static struct fo_device *open_cpu(const struct fo_device_opts *opts) {
    struct fo_device *d = NULL;
    struct fo_err e;
    assert_int_equal(fo_device_open("cpu", "", opts, &d, &e), FO_OK);
    return d;
}

static void finds_the_cpu_first(void **state) {
    (void)state;
    struct fo_die dies[4];
    char why[256] = "x";
    int n = fo_device_probe(dies, 4, why, sizeof why);
    assert_true(n >= 1);
    assert_string_equal(dies[0].kind, "cpu");
    assert_string_equal(dies[0].address, "");
    assert_true(dies[0].memory_bytes > 0);
    assert_true(dies[0].model[0] != '\0');
    assert_string_equal(why, "");
    assert_int_equal(fo_device_probe(dies, 0, why, sizeof why), 0);
    assert_non_null(strstr(why, "cpu: "));
    assert_string_equal(fo_device_build_backend(), "cpu");
}

static void names_the_backends_it_has(void **state) {
    (void)state;
    struct fo_device *d = NULL;
    struct fo_err e;
    assert_int_equal(fo_device_open("abacus", "", NULL, &d, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "abacus"));
    assert_non_null(strstr(e.msg, "cpu"));
    assert_int_equal(fo_device_open("cpu", "0000:04:00.0", NULL, &d, &e), FO_ENOENT);
    assert_null(d);
    fo_device_close(NULL);
}

static void says_which_instruction_set_is_missing(void **state) {
    (void)state;
    static const char *const names[] = { "scalar", "sse", "avx2", "avx512", "neon", "dotprod" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fo_device *d = NULL;
        struct fo_err e;
        int rc = fo_device_open("cpu", "", &(struct fo_device_opts){ .isa = names[i], .n_threads = 1 }, &d, &e);
        if (rc) {
            assert_int_equal(rc, FO_EUNSUPPORTED);
            assert_non_null(strstr(e.msg, names[i]));
            assert_non_null(strstr(e.msg, "lacks"));
        } else {
            assert_string_equal(fo_device_isa(d), names[i]);
        }
        fo_device_close(d);
    }
    struct fo_device *d = NULL;
    struct fo_err e;
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .isa = "mmx" }, &d, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "mmx"));
}

static void lets_the_environment_choose_the_instruction_set(void **state) {
    (void)state;
    char *before = getenv("PANTHEON_ISA");
    char *kept = before ? strdup(before) : NULL;
    setenv("PANTHEON_ISA", "scalar", 1);
    struct fo_device *d = open_cpu(&(struct fo_device_opts){ .isa = "auto", .n_threads = 1 });
    assert_string_equal(fo_device_isa(d), "scalar");
    fo_device_close(d);
    setenv("PANTHEON_ISA", "abacus", 1);
    struct fo_err e;
    d = NULL;
    assert_int_equal(fo_device_open("cpu", "", NULL, &d, &e), FO_EINVAL);
    if (kept)
        setenv("PANTHEON_ISA", kept, 1);
    else
        unsetenv("PANTHEON_ISA");
    free(kept);
}

static void runs_the_reference_when_it_must_be_exact(void **state) {
    (void)state;
    struct fo_device *d = open_cpu(&(struct fo_device_opts){ .exact = true, .n_threads = 1 });
    assert_true(d->exact);
    assert_string_equal(fo_device_isa(d), "scalar");
    fo_device_close(d);
}

static void gives_zeroed_pages_and_refuses_the_impossible(void **state) {
    (void)state;
    struct fo_device *d = open_cpu(NULL);
    struct fo_err e;
    uint64_t total = 0, available = 0;
    assert_int_equal(d->memory(d, &total, &available, &e), FO_OK);
    assert_true(total > 0 && available > 0 && available <= total);
    void *p = NULL;
    assert_int_equal(d->alloc(d, 100000, &p, &e), FO_OK);
    assert_int_equal((uintptr_t)p % 4096, 0);
    for (int i = 0; i < 100000; i++) assert_int_equal(((unsigned char *)p)[i], 0);
    unsigned char host[16] = "fifteen letters", back[16];
    assert_int_equal(d->upload(d, p, host, sizeof host, &e), FO_OK);
    assert_int_equal(d->download(d, back, p, sizeof back, &e), FO_OK);
    assert_memory_equal(host, back, sizeof host);
    d->free(d, p, 100000);
    d->free(d, NULL, 0);
    p = NULL;
    assert_int_equal(d->alloc(d, UINT64_C(1) << 60, &p, &e), FO_ENOMEM);
    assert_true(e.need == UINT64_C(1) << 60 && e.have > 0);
    assert_int_equal(d->alloc(d, UINT64_MAX, &p, &e), FO_ENOMEM);
    assert_null(p);
    fo_device_close(d);
}

static void serves_the_types_it_can_unpack(void **state) {
    (void)state;
    struct fo_device *d = open_cpu(NULL);
    for (uint32_t t = 0; t < FO_N_DTYPES + 3; t++) {
        const struct fo_dtype_info *info = fo_dtype_info(t);
        assert_int_equal(d->serves(d, t), info && info->to_f32);
    }
    assert_false(d->serves(d, UINT32_MAX));
    fo_device_close(d);
}

static void takes_exactly_the_scratch_it_measured(void **state) {
    (void)state;
    static const struct {
        int rows;
        int64_t k, ctx;
    } cases[] = { { 1, 32, 1 }, { 1, 576, 8192 }, { 7, 1536, 100 }, { 256, 4096, 32768 }, { 512, 14336, 1 << 20 } };
    for (int exact = 0; exact < 2; exact++) {
        struct fo_device *d = open_cpu(&(struct fo_device_opts){ .exact = exact, .n_threads = 2 });
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct fo_err e;
            struct fo_stream *s = NULL;
            uint64_t want = d->stream_bytes(d, cases[i].rows, cases[i].k, cases[i].ctx);
            assert_true(want > 0);
            test_fail_alloc(0);
            assert_int_equal(d->stream_open(d, cases[i].rows, cases[i].k, cases[i].ctx, &s, &e), FO_OK);
            assert_int_equal(test_mapped_bytes(), want);
            assert_int_equal(s->max_rows, cases[i].rows);
            assert_int_equal(s->max_k, cases[i].k);
            assert_int_equal(s->max_ctx, cases[i].ctx);
            assert_int_equal(d->sync(s, &e), FO_OK);
            d->stream_close(s);
        }
        struct fo_err e;
        struct fo_stream *s = NULL;
        assert_int_equal(d->stream_open(d, 0, 576, 1, &s, &e), FO_EINTERNAL);
        assert_int_equal(d->stream_open(d, 1, 0, 1, &s, &e), FO_EINTERNAL);
        assert_int_equal(d->stream_bytes(d, 1, INT64_MAX, 1), 0);
        d->stream_close(NULL);
        fo_device_close(d);
    }
}

static void survives_every_failing_allocation(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        struct fo_device *d = NULL;
        struct fo_stream *s = NULL;
        struct fo_err e;
        test_fail_alloc(n);
        int rc = fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 2 }, &d, &e);
        if (!rc) rc = d->stream_open(d, 4, 256, 64, &s, &e);
        bool failed = test_alloc_failed();
        if (s) d->stream_close(s);
        fo_device_close(d);
        if (!failed) {
            assert_int_equal(rc, FO_OK);
            break;
        }
        if (rc) assert_int_equal(rc, FO_ENOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_cpu_first),
        cmocka_unit_test(names_the_backends_it_has),
        cmocka_unit_test(says_which_instruction_set_is_missing),
        cmocka_unit_test(lets_the_environment_choose_the_instruction_set),
        cmocka_unit_test(runs_the_reference_when_it_must_be_exact),
        cmocka_unit_test(gives_zeroed_pages_and_refuses_the_impossible),
        cmocka_unit_test(serves_the_types_it_can_unpack),
        cmocka_unit_test(takes_exactly_the_scratch_it_measured),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
