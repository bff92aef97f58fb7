/* OpenBLAS as an instruction set: in builds with USE_BLAS=1 and the library at hand its products are those of the dots but for rounding; elsewhere
 * it is refused by name, and no one gets it who did not ask. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/cpu/kernels.h"
#include "foundry/device.h"

static void is_never_chosen_unasked(void **state) {
    (void)state;
    struct fo_cpu_kernels k;
    struct fo_err e;
    assert_int_equal(fo_cpu_kernels_for("auto", &k, &e), FO_OK);
    assert_string_not_equal(k.isa, "blas");
    for (int i = 0; fo_cpu_overlay(i); i++) assert_string_not_equal(fo_cpu_overlay(i), "blas");
}

/* The table, or a skipped test with the reason checked. */
static struct fo_cpu_kernels need_blas(void) {
    struct fo_cpu_kernels k;
    struct fo_err e;
    int rc = fo_cpu_kernels_for("blas", &k, &e);
    if (rc) {
        assert_int_equal(rc, FO_EUNSUPPORTED);
#ifdef FO_BLAS
        assert_non_null(strstr(e.msg, "libopenblas.so.0"));
#else
        assert_non_null(strstr(e.msg, "USE_BLAS=1"));
#endif
        print_message("%s\n", e.msg);
        skip();
    }
    return k;
}

static void multiplies_as_the_dots_do_but_for_rounding(void **state) {
    (void)state;
    static const struct {
        int64_t k, rows;
        int n;
    } shapes[] = { { 64, 1, 32 }, { 576, 50, 33 }, { 100, 17, 5 }, { 2048, 48, 31 }, { 2048, 100, 64 }, { 1000, 7, 129 } };
    struct fo_cpu_kernels blas = need_blas(), best;
    struct fo_err e;
    struct fo_rng rng;
    fo_rng_seed(&rng, 1);
    assert_int_equal(fo_cpu_kernels_for("auto", &best, &e), FO_OK);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t k = shapes[s].k, rows = shapes[s].rows;
        int n = shapes[s].n;
        size_t stride = (size_t)rows + 3;
        float *w = malloc((size_t)(rows * k) * sizeof *w), *x = malloc((size_t)(n * k) * sizeof *x);
        float *got = calloc((size_t)n * stride, sizeof *got), *want = calloc((size_t)n * stride, sizeof *want);
        assert_true(w && x && got && want);
        for (int64_t i = 0; i < rows * k; i++) w[i] = (float)(fo_rng_u64(&rng) >> 40) / (1 << 23) - 1;
        for (int64_t i = 0; i < n * k; i++) x[i] = (float)(fo_rng_u64(&rng) >> 40) / (1 << 23) - 1;
        struct fo_act a = { .type = FO_F32, .k = k, .x = x };
        blas.gemm[FO_F32]((const unsigned char *)w, (size_t)k * sizeof *w, rows, &a, n, got, stride, NULL);
        for (int t = 0; t < n; t += FO_TILE)
            best.dot[FO_F32]((const unsigned char *)w, (size_t)k * sizeof *w, rows, &a, t, n - t < FO_TILE ? n - t : FO_TILE, want + (size_t)t * stride, stride);
        for (int j = 0; j < n; j++) {
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0;
                for (int64_t i = 0; i < k; i++) sum += fabs((double)w[r * k + i] * (double)x[j * k + i]);
                double diff = fabs((double)got[(size_t)j * stride + (size_t)r] - (double)want[(size_t)j * stride + (size_t)r]);
                assert_true(diff <= (double)FO_TOL_DOT * sum);
            }
            for (int64_t r = rows; r < rows + 3; r++) assert_true(got[(size_t)j * stride + (size_t)r] == 0);
        }
        free(w);
        free(x);
        free(got);
        free(want);
    }
}

static void a_device_opens_with_it_by_name_and_an_exact_one_without_it(void **state) {
    (void)state;
    struct fo_device *d;
    struct fo_err e;
    need_blas();
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .isa = "blas", .n_threads = 1 }, &d, &e), FO_OK);
    assert_string_equal(fo_device_isa(d), "blas");
    fo_device_close(d);
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .isa = "blas", .exact = true, .n_threads = 1 }, &d, &e), FO_OK);
    assert_string_equal(fo_device_isa(d), "scalar");
    fo_device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_never_chosen_unasked),
        cmocka_unit_test(multiplies_as_the_dots_do_but_for_rounding),
        cmocka_unit_test(a_device_opens_with_it_by_name_and_an_exact_one_without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
