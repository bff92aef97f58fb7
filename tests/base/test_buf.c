/* Growable buffers: caps, sticky failure, and what stays valid when memory runs out. */
#include "foundry/base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/alloc.h"

static void appends_and_always_ends_with_a_nul(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 1 << 20);
    assert_string_equal(fo_buf_str(&b), "");
    assert_true(fo_buf_puts(&b, "ab"));
    assert_true(fo_buf_putc(&b, 'c'));
    assert_true(fo_buf_append(&b, "\0d", 2));
    assert_true(fo_buf_append(&b, NULL, 0));
    assert_true(fo_buf_printf(&b, "%d-%s", 42, "x"));
    assert_int_equal(b.len, 9);
    assert_memory_equal(b.data, "abc\0d42-x", 10);
    fo_buf_clear(&b);
    assert_string_equal(fo_buf_str(&b), "");
    for (int i = 0; i < 10000; i++) assert_true(fo_buf_printf(&b, "%d,", i));
    assert_int_equal(strlen(fo_buf_str(&b)), b.len);
    assert_memory_equal(b.data + b.len - 6, ",9999,", 7);
    fo_buf_done(&b);
    assert_true(fo_buf_puts(&b, "again"));
    fo_buf_done(&b);
}

static void what_was_reserved_is_appended_without_memory(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 5000);
    assert_true(fo_buf_reserve(&b, 3000));
    assert_int_equal(b.len, 0);
    test_fail_alloc(1);
    for (int i = 0; i < 3000; i++) assert_true(fo_buf_putc(&b, 'x'));
    fo_buf_clear(&b);
    for (int i = 0; i < 3000; i++) assert_true(fo_buf_putc(&b, 'y'));
    assert_int_equal(test_allocs(), 0);
    test_alloc_failed();
    assert_int_equal(strlen(fo_buf_str(&b)), 3000);
    assert_false(fo_buf_reserve(&b, 2001));
    assert_true(b.failed);
    fo_buf_done(&b);
}

static void the_cap_is_exact_and_failure_sticks_until_cleared(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 10);
    assert_true(fo_buf_puts(&b, "1234567890"));
    assert_false(b.failed);
    assert_false(fo_buf_putc(&b, 'x'));
    assert_true(b.failed);
    assert_string_equal(fo_buf_str(&b), "1234567890");
    assert_false(fo_buf_append(&b, "", 0)); /* everything after the failure is ignored */
    fo_buf_clear(&b);
    assert_false(b.failed);
    assert_false(fo_buf_printf(&b, "%s", "12345678901"));
    assert_int_equal(b.len, 0);
    fo_buf_clear(&b);
    assert_true(fo_buf_puts(&b, "fits"));
    fo_buf_done(&b);
}

static void a_length_that_would_overflow_fails(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, SIZE_MAX);
    assert_true(fo_buf_puts(&b, "some"));
    assert_false(fo_buf_append(&b, "x", SIZE_MAX - 3));
    fo_buf_clear(&b);
    assert_false(fo_buf_append(&b, "x", SIZE_MAX));
    fo_buf_done(&b);
}

static void memory_can_be_taken_over(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 100);
    assert_null(fo_buf_steal(&b));
    fo_buf_puts(&b, "mine");
    char *s = fo_buf_steal(&b);
    assert_string_equal(s, "mine");
    assert_int_equal(b.len, 0);
    free(s);
    while (fo_buf_puts(&b, "0123456789")) {
    }
    assert_null(fo_buf_steal(&b)); /* failed: nothing half-written is given away */
    assert_false(b.failed);
    fo_buf_done(&b);
}

static void running_out_of_memory_fails_and_keeps_what_was_there(void **state) {
    (void)state;
    struct fo_buf b;
    for (long n = 1;; n++) {
        fo_buf_init(&b, 1 << 20);
        test_fail_alloc(n);
        for (int i = 0; i < 1000; i++) fo_buf_puts(&b, "0123456789");
        bool failed = test_alloc_failed();
        assert_int_equal(b.failed, failed);
        assert_int_equal(strlen(fo_buf_str(&b)), b.len);
        assert_int_equal(b.len % 10, 0);
        fo_buf_done(&b);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_and_always_ends_with_a_nul),
        cmocka_unit_test(what_was_reserved_is_appended_without_memory),
        cmocka_unit_test(the_cap_is_exact_and_failure_sticks_until_cleared),
        cmocka_unit_test(a_length_that_would_overflow_fails),
        cmocka_unit_test(memory_can_be_taken_over),
        cmocka_unit_test(running_out_of_memory_fails_and_keeps_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
