/* The dtype table and the 16-bit floats. Golden roundings: tests/data/quants/round.*. */
#include "foundry/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"

static void *load(const char *path, size_t *ret_len) {
    char *data;
    struct fo_err e;
    if (fo_file_read(path, 1 << 20, &data, ret_len, &e)) fail_msg("%s", e.msg);
    return data;
}

static void every_row_is_consistent(void **state) {
    (void)state;
    int n_named = 0;
    for (uint32_t i = 0; i < FO_N_DTYPES + 5; i++) {
        const struct fo_dtype_info *t = fo_dtype_info(i);
        if (!t) continue;
        n_named++;
        assert_true(t->block > 0 && t->block_bytes > 0);
        assert_string_equal(fo_dtype_name(i), t->name);
        assert_int_equal(fo_dtype_bytes(i, (uint64_t)t->block * 3), (uint64_t)t->block_bytes * 3);
        if (t->block > 1) assert_int_equal(fo_dtype_bytes(i, (uint64_t)t->block + 1), 0);
        const struct fo_dtype_info *act = fo_dtype_info(t->act);
        assert_non_null(act);
        assert_non_null(act->from_f32);
        assert_non_null(act->to_f32);
        assert_int_equal(t->block % act->block, 0);
        if (t->from_f32) assert_non_null(t->to_f32);
    }
    assert_int_equal(n_named, 33);
}

static void every_type_of_weights_is_served(void **state) {
    (void)state;
    static const enum fo_dtype served[] = { FO_F32,   FO_F16,   FO_BF16,    FO_Q4_0,   FO_Q4_1,   FO_Q5_0,    FO_Q5_1,  FO_Q8_0,  FO_Q2_K,
                                            FO_Q3_K,  FO_Q4_K,  FO_Q5_K,    FO_Q6_K,   FO_IQ4_NL, FO_IQ4_XS,  FO_IQ3_S, FO_IQ2_S, FO_IQ1_S,
                                            FO_IQ1_M, FO_TQ1_0, FO_IQ2_XXS, FO_IQ2_XS, FO_TQ2_0,  FO_IQ3_XXS, FO_MXFP4, FO_NVFP4 };
    for (size_t i = 0; i < sizeof served / sizeof *served; i++) assert_non_null(fo_dtype_info(served[i])->to_f32);
}

static void numbers_that_are_no_type_have_no_row(void **state) {
    (void)state;
    static const uint32_t none[] = { 4, 5, 31, 32, 33, 36, 37, 38, FO_N_DTYPES, 77, UINT32_MAX };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_null(fo_dtype_info(none[i]));
        assert_int_equal(fo_dtype_bytes(none[i], 256), 0);
    }
    assert_string_equal(fo_dtype_name(77), "type 77");
    assert_string_equal(fo_dtype_name(UINT32_MAX), "type 4294967295");
}

static void sizes_that_overflow_are_zero(void **state) {
    (void)state;
    assert_int_equal(fo_dtype_bytes(FO_F32, UINT64_MAX / 4 + 1), 0);
    assert_true(fo_dtype_bytes(FO_F32, UINT64_MAX / 4) == UINT64_MAX / 4 * 4);
    assert_int_equal(fo_dtype_bytes(FO_Q8_0, UINT64_MAX - 31), 0);
}

static void f32_rounds_to_f16_and_bf16_as_the_goldens_do(void **state) {
    (void)state;
    size_t n, n16, nb;
    float *f = load("tests/data/quants/round.f32.bin", &n);
    uint16_t *h = load("tests/data/quants/round.f16.bin", &n16), *b = load("tests/data/quants/round.bf16.bin", &nb);
    n /= sizeof *f;
    assert_int_equal(n16, n * 2);
    assert_int_equal(nb, n * 2);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(fo_f32_to_f16(f[i]), h[i]);
        assert_int_equal(fo_f32_to_bf16(f[i]), b[i]);
    }
    free(f);
    free(h);
    free(b);
}

static void every_half_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = fo_f16_to_f32((uint16_t)h), g = fo_bf16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_int_equal(h & 0x7C00, 0x7C00);
            assert_true(isnan(fo_f16_to_f32(fo_f32_to_f16(f))));
        } else {
            assert_int_equal(fo_f32_to_f16(f), h);
        }
        if (isnan(g)) {
            assert_int_equal(h & 0x7F80, 0x7F80);
            assert_true(isnan(fo_bf16_to_f32(fo_f32_to_bf16(g))));
        } else {
            assert_int_equal(fo_f32_to_bf16(g), h);
        }
    }
}

/* Between every two neighbouring halves: just below the middle goes down, just above goes up, the middle goes to the even one. */
static void f16_rounds_to_nearest_even_everywhere(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7BFF; h++) {
        float lo = fo_f16_to_f32(h), hi = fo_f16_to_f32((uint16_t)(h + 1)), mid = lo + (hi - lo) / 2;
        assert_int_equal(fo_f32_to_f16(mid), h & 1 ? h + 1 : h);
        assert_int_equal(fo_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(fo_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(fo_f32_to_f16(-mid), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(fo_f32_to_f16(65519.996f), 0x7BFF);
    assert_int_equal(fo_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(fo_f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(fo_f32_to_f16(1e-30f), 0);
    assert_int_equal(fo_f32_to_bf16(INFINITY), 0x7F80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_consistent),
        cmocka_unit_test(every_type_of_weights_is_served),
        cmocka_unit_test(numbers_that_are_no_type_have_no_row),
        cmocka_unit_test(sizes_that_overflow_are_zero),
        cmocka_unit_test(f32_rounds_to_f16_and_bf16_as_the_goldens_do),
        cmocka_unit_test(every_half_survives_the_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
