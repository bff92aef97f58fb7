/* Region allocation: zeroed, aligned, never past its cap, freed together. */
#include "foundry/base/region.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "foundry/base/rng.h"
#include "tests/support/alloc.h"

static void pieces_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    struct fo_region r;
    struct fo_rng rng;
    unsigned char *pieces[500];
    size_t sizes[500];
    fo_region_init(&r, 1 << 22);
    fo_rng_seed(&rng, 3);
    for (int i = 0; i < 500; i++) {
        sizes[i] = fo_rng_u64(&rng) % 3000;
        pieces[i] = fo_region_alloc(&r, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(pieces[i][k], 0);
        memset(pieces[i], i, sizes[i]);
    }
    for (int i = 0; i < 500; i++)
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(pieces[i][k], (unsigned char)i);
    fo_region_done(&r);
    assert_int_equal(r.used_bytes, 0);
    assert_non_null(fo_region_alloc(&r, 10)); /* may be used again */
    fo_region_done(&r);
    fo_region_done(NULL);
}

static void the_cap_holds(void **state) {
    (void)state;
    static const size_t caps[] = { 0, 1, 15, 16, 17, 1000, 5000, 100000 };
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        struct fo_region r;
        size_t taken = 0;
        fo_region_init(&r, caps[i]);
        while (fo_region_alloc(&r, 16)) taken += 16;
        assert_true(taken <= caps[i] && r.used_bytes <= caps[i]);
        assert_true(taken + 16 + caps[i] / 16 > caps[i]); /* nearly all of it can be had */
        assert_null(fo_region_alloc(&r, caps[i] + 1));
        fo_region_done(&r);
    }
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    struct fo_region r;
    fo_region_init(&r, SIZE_MAX);
    assert_null(fo_region_array(&r, SIZE_MAX / 2, 3));
    assert_null(fo_region_alloc(&r, SIZE_MAX));
    assert_null(fo_region_alloc(&r, SIZE_MAX - 15));
    assert_null(fo_region_alloc(&r, SIZE_MAX - 40));
    assert_null(fo_region_strndup(&r, "x", SIZE_MAX));
    int *a = fo_region_array(&r, 10, sizeof *a);
    assert_non_null(a);
    a[9] = 1;
    fo_region_done(&r);
}

static void copies_text_and_ends_it(void **state) {
    (void)state;
    struct fo_region r;
    fo_region_init(&r, 1000);
    char *s = fo_region_strndup(&r, "hello world", 5);
    assert_string_equal(s, "hello");
    assert_string_equal(fo_region_strndup(&r, "", 0), "");
    fo_region_done(&r);
}

static void an_empty_heap_is_null_and_leaves_the_region_whole(void **state) {
    (void)state;
    struct fo_region r;
    for (long n = 1;; n++) {
        fo_region_init(&r, 1 << 20);
        test_fail_alloc(n);
        int got = 0;
        for (int i = 0; i < 200; i++) got += fo_region_alloc(&r, 100) != NULL;
        bool failed = test_alloc_failed();
        assert_int_equal(got == 200, !failed);
        fo_region_done(&r);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(the_cap_holds),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(copies_text_and_ends_it),
        cmocka_unit_test(an_empty_heap_is_null_and_leaves_the_region_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
