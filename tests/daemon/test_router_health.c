/* The state of a backend, by made-up times: no clock and no network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/router_health.h"

/* Up, by a probe at this time. */
static struct pd_health well(uint64_t now) {
    struct pd_health h = { 0 };
    assert_true(pd_health_probe(&h, now));
    assert_true(pd_health_probed(&h, NULL, now));
    return h;
}

static void is_not_asked_before_the_first_probe(void **state) {
    (void)state;
    struct pd_health h = { 0 };
    assert_int_equal(h.state, PD_HEALTH_UNKNOWN);
    assert_string_equal(pd_health_name(h.state), "unknown");
    assert_true(pd_health_probe(&h, 5)); /* due at once */
    assert_false(pd_health_probe(&h, 5)); /* one at a time */
    assert_true(pd_health_probed(&h, NULL, 9));
    assert_int_equal(h.state, PD_HEALTH_UP);
}

static void is_probed_every_second_while_it_is_well(void **state) {
    (void)state;
    struct pd_health h = well(100);
    assert_false(pd_health_probe(&h, 100 + PD_PROBE_EVERY_MS - 1));
    assert_true(pd_health_probe(&h, 100 + PD_PROBE_EVERY_MS));
    assert_false(pd_health_probed(&h, NULL, 1200));
    assert_int_equal(h.state, PD_HEALTH_UP);
}

static void one_broken_connection_takes_it_down(void **state) {
    (void)state;
    struct pd_health h = well(100);
    assert_true(pd_health_failed(&h, "refused", 200));
    assert_int_equal(h.state, PD_HEALTH_DOWN);
    assert_string_equal(h.why, "refused");
    assert_int_equal(h.downs, 1);
    assert_false(pd_health_probe(&h, 200 + PD_BACKOFF_FIRST_MS - 1));
    assert_true(pd_health_probe(&h, 200 + PD_BACKOFF_FIRST_MS)); /* half open: one probe decides */
    assert_true(pd_health_probed(&h, NULL, 460));
    assert_int_equal(h.state, PD_HEALTH_UP);
    assert_string_equal(h.why, "");
}

static void many_that_fail_by_one_death_are_one_failure(void **state) {
    (void)state;
    struct pd_health h = well(100);
    assert_true(pd_health_failed(&h, "reset", 200));
    for (int i = 0; i < 50; i++) assert_false(pd_health_failed(&h, "reset", 201));
    assert_true(pd_health_probe(&h, 200 + PD_BACKOFF_FIRST_MS));
    assert_int_equal(h.downs, 1);
}

static void the_backoff_doubles_to_a_limit(void **state) {
    (void)state;
    struct pd_health h = well(100);
    uint64_t now = 200, wait = PD_BACKOFF_FIRST_MS;
    pd_health_failed(&h, "refused", now);
    for (int i = 0; i < 12; i++) {
        assert_false(pd_health_probe(&h, now + wait - 1));
        now += wait;
        assert_true(pd_health_probe(&h, now));
        assert_false(pd_health_probed(&h, "refused", now));
        wait = 2 * wait < PD_BACKOFF_MOST_MS ? 2 * wait : PD_BACKOFF_MOST_MS;
    }
    assert_int_equal(wait, PD_BACKOFF_MOST_MS);
    assert_int_equal(h.downs, 1);
}

static void who_answers_probes_alone_comes_back_ever_more_seldom(void **state) {
    (void)state;
    struct pd_health h = well(100);
    uint64_t now = 200, last = 0;
    for (int i = 0; i < 5; i++) {
        assert_true(pd_health_failed(&h, "reset", now));
        uint64_t wait = h.next_ms - now;
        assert_true(wait > last);
        last = wait;
        now += wait;
        assert_true(pd_health_probe(&h, now));
        assert_true(pd_health_probed(&h, NULL, now));
    }
    now += PD_STEADY_MS;
    pd_health_failed(&h, "reset", now);
    assert_int_equal(h.next_ms - now, PD_BACKOFF_FIRST_MS); /* it was well for long */
}

static void failed_answers_in_a_row_take_it_down(void **state) {
    (void)state;
    struct pd_health h = well(100);
    for (int i = 1; i < PD_FAILED_ANSWERS; i++) assert_false(pd_health_answered(&h, 504, 200));
    assert_false(pd_health_answered(&h, 200, 200)); /* one that is right ends the row */
    for (int i = 1; i < PD_FAILED_ANSWERS; i++) assert_false(pd_health_answered(&h, 500, 200));
    assert_false(pd_health_answered(&h, 404, 200));
    assert_false(pd_health_answered(&h, 429, 200));
    for (int i = 0; i < 100; i++) assert_false(pd_health_answered(&h, 503, 200)); /* one model's, or for now */
    for (int i = 1; i < PD_FAILED_ANSWERS; i++) assert_false(pd_health_answered(&h, 502, 200));
    assert_true(pd_health_answered(&h, 504, 200));
    assert_int_equal(h.state, PD_HEALTH_DOWN);
    assert_non_null(strstr(h.why, "504"));
}

static void a_failure_while_a_probe_is_under_way_outweighs_it(void **state) {
    (void)state;
    struct pd_health h = well(100);
    assert_true(pd_health_probe(&h, 1100));
    assert_true(pd_health_failed(&h, "reset", 1105));
    pd_health_probed(&h, NULL, 1110); /* its answer is older than the death */
    assert_int_equal(h.state, PD_HEALTH_DOWN);
    assert_false(h.probing);
    assert_true(pd_health_probe(&h, 1105 + PD_BACKOFF_FIRST_MS));
    pd_health_probed(&h, NULL, 1105 + PD_BACKOFF_FIRST_MS);
    assert_int_equal(h.state, PD_HEALTH_UP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_not_asked_before_the_first_probe),
        cmocka_unit_test(is_probed_every_second_while_it_is_well),
        cmocka_unit_test(one_broken_connection_takes_it_down),
        cmocka_unit_test(many_that_fail_by_one_death_are_one_failure),
        cmocka_unit_test(the_backoff_doubles_to_a_limit),
        cmocka_unit_test(who_answers_probes_alone_comes_back_ever_more_seldom),
        cmocka_unit_test(failed_answers_in_a_row_take_it_down),
        cmocka_unit_test(a_failure_while_a_probe_is_under_way_outweighs_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
