#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/mem/budget.h"
#include "foundry/base/err.h"

static void takes_the_smaller_of_8192_and_the_trained_length_by_default(void **state) {
    (void)state;
    struct fo_err e;
    uint32_t cap = 0;
    assert_int_equal(pn_budget_ctx_cap(0, 131072, &cap, &e), FO_OK);
    assert_int_equal(cap, 8192);
    assert_int_equal(pn_budget_ctx_cap(0, 2048, &cap, &e), FO_OK);
    assert_int_equal(cap, 2048);
    assert_int_equal(pn_budget_ctx_cap(131072, 131072, &cap, &e), FO_OK);
    assert_int_equal(cap, 131072);
}

static void refuses_a_cap_above_the_trained_length_and_names_both(void **state) {
    (void)state;
    struct fo_err e;
    uint32_t cap = 7;
    assert_int_equal(pn_budget_ctx_cap(2049, 2048, &cap, &e), FO_EINVAL);
    assert_int_equal(cap, 7);
    assert_int_equal(e.need, 2049);
    assert_int_equal(e.have, 2048);
    assert_non_null(strstr(e.msg, "2049"));
    assert_non_null(strstr(e.msg, "2048"));
}

static void names_the_first_part_that_does_not_fit(void **state) {
    (void)state;
    char part[32];
    const struct {
        struct pn_need need;
        uint64_t have, part_need, part_have;
        const char *name; /* NULL = fits */
    } cases[] = {
        { { 10, 20, 30 }, 60, 0, 0, NULL },
        { { 10, 20, 30 }, 59, 30, 29, "compute" },
        { { 10, 20, 30 }, 29, 20, 19, "kv" },
        { { 10, 20, 30 }, 9, 10, 9, "weights" },
        { { 0, 0, 0 }, 0, 0, 0, NULL },
        { { UINT64_MAX, UINT64_MAX, UINT64_MAX }, UINT64_MAX, UINT64_MAX, 0, "kv" }, /* their sum overflows */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fo_err e = { 0 };
        int rc = pn_budget_fit(&cases[i].need, cases[i].have, &e);
        assert_int_equal(rc, cases[i].name ? FO_ENOMEM : FO_OK);
        if (!cases[i].name) continue;
        snprintf(part, sizeof part, "(part=%s)", cases[i].name);
        assert_non_null(strstr(e.msg, part));
        assert_true(e.need == cases[i].part_need);
        assert_true(e.have == cases[i].part_have);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_smaller_of_8192_and_the_trained_length_by_default),
        cmocka_unit_test(refuses_a_cap_above_the_trained_length_and_names_both),
        cmocka_unit_test(names_the_first_part_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
