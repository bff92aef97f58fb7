/* Consistent hashing with bounded loads: what moves, how even it is, and where overflow goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/router_ring.h"
#include "foundry/base/hash.h"

enum { N = 5, KEYS = 20000, ROOM = 1 << 20 };

static void make(struct pd_ring_node *nodes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char name[64];
        int len = snprintf(name, sizeof name, "http://10.0.0.%zu:8080", i + 1); /* they differ in one byte */
        nodes[i] = (struct pd_ring_node){ .id = fo_fnv1a(FO_FNV_SEED, name, (size_t)len), .usable = true, .room = ROOM };
    }
}

static uint64_t key_of(int i) {
    return fo_fnv1a(FO_FNV_SEED, &i, sizeof i);
}

static void spreads_keys_evenly(void **state) {
    (void)state;
    for (size_t n = 1; n <= 16; n++) {
        struct pd_ring_node nodes[16];
        int had[16] = { 0 };
        make(nodes, n);
        for (int i = 0; i < KEYS; i++) had[pd_ring_pick(nodes, n, key_of(i))]++;
        for (size_t k = 0; k < n; k++) assert_in_range(had[k], KEYS / n * 85 / 100, KEYS / n * 115 / 100);
    }
}

static void moves_only_what_was_the_lost_ones(void **state) {
    (void)state;
    struct pd_ring_node nodes[N];
    int before[KEYS], got[N] = { 0 }, moved = 0;
    make(nodes, N);
    for (int i = 0; i < KEYS; i++) before[i] = pd_ring_pick(nodes, N, key_of(i));
    nodes[2].usable = false;
    for (int i = 0; i < KEYS; i++) {
        int now = pd_ring_pick(nodes, N, key_of(i));
        assert_int_not_equal(now, 2);
        if (before[i] != 2) assert_int_equal(now, before[i]);
        else got[now]++, moved++;
    }
    for (int k = 0; k < N; k++) /* and that is shared out among all that are left */
        if (k != 2) assert_in_range(got[k], moved / 4 * 80 / 100, moved / 4 * 120 / 100);
    nodes[2].usable = true;
    for (int i = 0; i < KEYS; i++) assert_int_equal(pd_ring_pick(nodes, N, key_of(i)), before[i]);
}

static void does_not_depend_on_the_order_of_backends(void **state) {
    (void)state;
    struct pd_ring_node nodes[N], turned[N];
    make(nodes, N);
    for (int k = 0; k < N; k++) turned[k] = nodes[N - 1 - k];
    for (int i = 0; i < 1000; i++) assert_int_equal(pd_ring_pick(turned, N, key_of(i)), N - 1 - pd_ring_pick(nodes, N, key_of(i)));
}

static void nobody_has_much_more_than_its_share(void **state) {
    (void)state;
    struct pd_ring_node nodes[N];
    make(nodes, N);
    for (int k = 0; k < N; k++) nodes[k].room = 1;
    for (int i = 0; i < 1000; i++) nodes[pd_ring_pick(nodes, N, key_of(7))].load++; /* all of one conversation */
    uint32_t total = 0;
    for (int k = 0; k < N; k++) {
        assert_in_range(nodes[k].load, 0, 1000 / N * PD_RING_SLACK_PERCENT / 100);
        total += nodes[k].load;
    }
    assert_int_equal(total, 1000);
}

static void overflow_goes_to_the_next_and_comes_back(void **state) {
    (void)state;
    struct pd_ring_node nodes[N];
    make(nodes, N);
    for (int k = 0; k < N; k++) nodes[k].room = 2;
    int first = pd_ring_pick(nodes, N, key_of(1));
    nodes[first].usable = false;
    int second = pd_ring_pick(nodes, N, key_of(1));
    nodes[first].usable = true;
    nodes[first].load = 1;
    assert_int_equal(pd_ring_pick(nodes, N, key_of(1)), first); /* it has room */
    nodes[first].load = 2;
    assert_int_equal(pd_ring_pick(nodes, N, key_of(1)), second);
    nodes[first].load = 0;
    assert_int_equal(pd_ring_pick(nodes, N, key_of(1)), first);
}

static void the_least_over_its_bound_is_next_when_all_are_full(void **state) {
    (void)state;
    struct pd_ring_node nodes[2];
    make(nodes, 2);
    nodes[0].usable = false;
    nodes[1].load = 100000;
    nodes[1].room = 1;
    assert_int_equal(pd_ring_pick(nodes, 2, key_of(3)), 1); /* one alone takes all there is */
    nodes[1].usable = false;
    assert_int_equal(pd_ring_pick(nodes, 2, key_of(3)), -1);
    assert_int_equal(pd_ring_pick(nodes, 0, key_of(3)), -1);
}

static void bounds_are_the_share_and_a_quarter(void **state) {
    (void)state;
    static const struct {
        uint64_t total;
        size_t n;
        uint32_t room, bound;
    } rows[] = { { 0, 1, 0, 2 }, { 0, 3, 0, 1 }, { 7, 4, 0, 3 }, { 7, 4, 4, 4 }, { 99, 4, 4, 32 }, { UINT64_C(1) << 40, 1, 4, UINT32_MAX } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_int_equal(pd_ring_bound(rows[i].total, rows[i].n, rows[i].room), rows[i].bound);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spreads_keys_evenly),
        cmocka_unit_test(moves_only_what_was_the_lost_ones),
        cmocka_unit_test(does_not_depend_on_the_order_of_backends),
        cmocka_unit_test(nobody_has_much_more_than_its_share),
        cmocka_unit_test(overflow_goes_to_the_next_and_comes_back),
        cmocka_unit_test(the_least_over_its_bound_is_next_when_all_are_full),
        cmocka_unit_test(bounds_are_the_share_and_a_quarter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
