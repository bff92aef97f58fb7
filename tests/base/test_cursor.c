/* The bounded reader: little endian, never past the end, and once bad always bad. */
#include "foundry/base/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint8_t bytes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 0, 0x80, 0x3F };

static void reads_little_endian_values_in_order(void **state) {
    (void)state;
    struct fo_cursor c = fo_cursor_over(bytes, sizeof bytes);
    assert_int_equal(fo_cursor_u8(&c), 1);
    assert_int_equal(fo_cursor_u16(&c), 0x0302);
    assert_int_equal(fo_cursor_u32(&c), 0x07060504);
    assert_true(fo_cursor_u64(&c) == 0x0F0E0D0C0B0A0908u);
    assert_int_equal(fo_cursor_offset(&c), 15);
    assert_int_equal(fo_cursor_left(&c), 4);
    assert_true(fo_cursor_f32(&c) == 1.0f);
    assert_false(c.bad);
    assert_int_equal(fo_cursor_left(&c), 0);
}

static void reading_past_the_end_gives_zero_and_stays_bad(void **state) {
    (void)state;
    for (size_t n = 0; n < 8; n++) { /* exactly that many bytes are there */
        struct fo_cursor c = fo_cursor_over(bytes, n);
        assert_true(fo_cursor_u64(&c) == 0);
        assert_true(c.bad);
        assert_int_equal(fo_cursor_offset(&c), 0);
        assert_int_equal(fo_cursor_u8(&c), 0); /* although one byte may be left */
        assert_null(fo_cursor_take(&c, 0));
    }
    struct fo_cursor c = fo_cursor_over(bytes, 8);
    assert_true(fo_cursor_f64(&c) != 0 && !c.bad);
}

static void takes_bytes_in_place(void **state) {
    (void)state;
    static const uint64_t hostile[] = { 20, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT64_MAX };
    struct fo_cursor c = fo_cursor_over(bytes, sizeof bytes);
    assert_ptr_equal(fo_cursor_take(&c, 5), bytes);
    assert_ptr_equal(fo_cursor_take(&c, 0), bytes + 5);
    assert_ptr_equal(fo_cursor_take(&c, sizeof bytes - 5), bytes + 5);
    assert_false(c.bad);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        c = fo_cursor_over(bytes, sizeof bytes);
        assert_null(fo_cursor_take(&c, hostile[i]));
        assert_true(c.bad);
        assert_int_equal(fo_cursor_left(&c), sizeof bytes);
    }
}

static void nothing_can_be_read_from_nothing(void **state) {
    (void)state;
    struct fo_cursor c = fo_cursor_over(NULL, 0);
    assert_int_equal(fo_cursor_left(&c), 0);
    assert_int_equal(fo_cursor_u8(&c), 0);
    assert_true(c.bad);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_little_endian_values_in_order),
        cmocka_unit_test(reading_past_the_end_gives_zero_and_stays_bad),
        cmocka_unit_test(takes_bytes_in_place),
        cmocka_unit_test(nothing_can_be_read_from_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
