/* The tap knows every op: a slot that struct fo_device gains must go through it, or `pantheon drift` would not see that op. (What the tap says of
 * right and wrong ops: tests/engine/test_drift.c.) */
#include "foundry/tap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/device.h"
#include "foundry/ops.h"

static int seen_nothing(void *ctx, const struct fo_tap_seen *seen, struct fo_err *e) {
    (void)ctx, (void)seen, (void)e;
    return FO_OK;
}

typedef void slot_fn(void);

static slot_fn *slot(const struct fo_device *d, size_t at) {
    slot_fn *f;
    memcpy(&f, (const char *)d + at, sizeof f);
    return f;
}

static void every_compute_slot_that_a_device_has_goes_through_the_tap(void **state) {
    (void)state;
    struct fo_device *cpu, *tap;
    struct fo_err e;
    assert_int_equal(fo_device_open("cpu", "", NULL, &cpu, &e), FO_OK);
    assert_int_equal(fo_tap_open(cpu, cpu, seen_nothing, NULL, &tap, &e), FO_OK);
    size_t first = offsetof(struct fo_device, get_rows), n = (sizeof(struct fo_device) - first) / sizeof(slot_fn *);
    assert_true(n >= 10);
    assert_int_equal(first + n * sizeof(slot_fn *), sizeof(struct fo_device)); /* nothing but slots behind the first op */
    for (size_t i = 0; i < n; i++) {
        size_t at = first + i * sizeof(slot_fn *);
        if (!slot(cpu, at)) continue;
        if (!slot(tap, at) || slot(tap, at) == slot(cpu, at)) fail_msg("op %zu of struct fo_device (from get_rows = 0 on) is not in foundry/tap.c", i);
    }
    fo_device_close(tap);
    fo_device_close(cpu);
}

static void every_op_has_a_tolerance_and_kv_in_whole_numbers_a_wider_one(void **state) {
    (void)state;
    static const char *const ops[] = { "get_rows", "matmul", "rms_norm", "add", "add_rows", "silu_mul", "rope", "attend", "matmul_fused" };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) assert_true(fo_tap_tolerance(ops[i], FO_F32) > 0 && fo_tap_tolerance(ops[i], FO_F32) < 1e-2);
    assert_true(fo_tap_tolerance("attend", FO_Q8_0) > fo_tap_tolerance("attend", FO_F16));
    assert_true(fo_tap_tolerance("attend", FO_Q4_0) > fo_tap_tolerance("attend", FO_Q8_0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_compute_slot_that_a_device_has_goes_through_the_tap),
        cmocka_unit_test(every_op_has_a_tolerance_and_kv_in_whole_numbers_a_wider_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
