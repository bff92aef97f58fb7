/* What a scheduler does when it is told that memory is short: fewer run, what runs goes on, what is kept becomes less and goes, and all of it comes
 * back. Over the scripted model, whose text nothing of this may change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { SLOTS = 4, CTX = 1024, WAIT_MS = 20000 };

struct world {
    struct fo_device *dev;
    struct pn_engine *en;
    struct pn_served *s;
};

static void world_open(struct world *w, uint32_t pace_us, enum fo_dtype floor) {
    struct fo_err e;
    struct test_script t = test_script_default();
    t.endless = true;
    t.n_ctx = CTX;
    t.pace_us = pace_us;
    t.kv_bytes_per_token = 4 * 2 * 32 * 2;
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    if (fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &w->dev, &e) || pn_engine_new(&w->en, &e)) fail_msg("%s", e.msg);
    struct pn_serve_opts o = { .name = "m", .max_concurrent = SLOTS, .queue_depth = 64, .model = { .dev = w->dev, .ctx_cap = CTX, .max_sessions = SLOTS, .max_concurrent = SLOTS, .k_type = FO_F16, .v_type = FO_F16, .has_floor = true, .k_floor = floor, .v_floor = floor } };
    if (pn_engine_load(w->en, odd_path(0), &o, &e)) fail_msg("%s", e.msg);
    w->s = pn_engine_get(w->en, "m");
    unlink(odd_path(0));
}

static void world_close(struct world *w) {
    pn_served_put(w->s);
    pn_engine_free(w->en);
    fo_device_close(w->dev);
}

static struct pn_served_status status(const struct world *w) {
    struct pn_served_status st;
    pn_served_status(w->s, &st);
    return st;
}

/* Requests that have begun: one that is only tried is among `running` for a moment. */
static uint32_t busy(const struct world *w) {
    struct pn_slot_status slots[SLOTS];
    uint32_t n = pn_served_slots(w->s, slots, SLOTS), k = 0;
    for (uint32_t i = 0; i < n; i++) k += slots[i].busy;
    return k;
}

static void nap(void) {
    nanosleep(&(struct timespec){ .tv_nsec = 2 * 1000 * 1000 }, NULL);
}

#define WAIT_FOR(what)                                             \
    do {                                                           \
        int left = WAIT_MS / 2;                                    \
        while (!(what) && --left > 0) nap();                       \
        if (left == 0) fail_msg("%s did not come", #what);         \
    } while (0)

static struct pn_request *ask(const struct world *w, uint64_t seed, uint32_t n, uint32_t max_tokens) {
    static int32_t ids[CTX];
    test_prompt(ids, n, seed);
    struct pn_request_opts o = test_opts(ids, n, max_tokens);
    return test_submit(w->s, &o);
}

/* Answers that are read as they come: one that nobody pulls pauses. */
struct reader {
    struct pn_request *r; /* NULL = at its end */
    struct test_answer a;
};

static void begin(struct reader *x, const struct world *w, uint64_t seed, uint32_t n, uint32_t max_tokens) {
    memset(&x->a, 0, sizeof x->a);
    x->r = ask(w, seed, n, max_tokens);
}

/* What is there of each; true while any goes on. */
static bool pump(struct reader *x, int n) {
    enum pn_event_kind kind;
    bool any = false;
    for (int i = 0; i < n; i++) {
        bool more = true;
        while (x[i].r && (more = test_take(x[i].r, 0, &x[i].a, &kind)) && kind != PN_EV_TIMEOUT) {}
        if (x[i].r && !more) {
            pn_request_release(x[i].r);
            x[i].r = NULL;
        }
        any |= x[i].r != NULL;
    }
    nap();
    return any;
}

static void those_above_the_lowered_number_end_and_new_ones_wait(void **state) {
    (void)state;
    static struct reader x[SLOTS + 3];
    struct world w;
    world_open(&w, 2000, FO_F16);
    for (int i = 0; i < SLOTS; i++) begin(&x[i], &w, (uint64_t)i, 20, 150);
    WAIT_FOR((pump(x, SLOTS), status(&w).running == SLOTS));
    pn_served_set_memory(w.s, PN_CRITICAL, UINT64_MAX);
    assert_int_equal(status(&w).max_concurrent, 1);
    assert_int_equal(status(&w).declared.max_concurrent, SLOTS);
    for (int i = SLOTS; i < SLOTS + 3; i++) begin(&x[i], &w, 10 + (uint64_t)i, 20, 30);
    uint32_t before = SLOTS;
    bool alone = false;
    while (pump(x, SLOTS + 3)) { /* nobody starts beside those, and then one at a time */
        uint32_t now = status(&w).running;
        assert_true(now <= before || now == 1);
        alone |= now <= 1;
        assert_true(!alone || now <= 1);
        before = now;
    }
    for (int i = 0; i < SLOTS + 3; i++) {
        assert_int_equal(x[i].a.code, 0);
        assert_int_equal(x[i].a.n_ids, i < SLOTS ? 150 : 30);
    }
    pn_served_set_memory(w.s, PN_NORMAL, UINT64_MAX);
    assert_int_equal(status(&w).max_concurrent, SLOTS);
    for (int i = 0; i < SLOTS; i++) begin(&x[i], &w, (uint64_t)i, 20, 100);
    WAIT_FOR((pump(x, SLOTS), status(&w).running == SLOTS));
    while (pump(x, SLOTS)) {}
    world_close(&w);
}

/* With no room but what is there one runs at a time, however many slots there are; with some, as many as it is for. */
static void the_hosts_room_bounds_what_begins(void **state) {
    (void)state;
    static struct reader x[SLOTS];
    struct world w;
    world_open(&w, 1000, FO_F16);
    const struct pn_model_info *info = pn_model_info(pn_served_model(w.s));
    uint64_t page = info->kv_bytes_per_token * info->page_tokens, need = (300 + info->page_tokens - 1) / info->page_tokens * page;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t most = 0;
        uint64_t before = status(&w).completed;
        pn_served_set_memory(w.s, PN_NORMAL, pass == 1 ? 2 * need + page : 0);
        for (int i = 0; i < SLOTS; i++) begin(&x[i], &w, 100 * (uint64_t)pass + (uint64_t)i, 200, 101);
        do {
            uint32_t now = busy(&w);
            if (now > most) most = now;
            pump(x, SLOTS);
            if (pass == 1 && status(&w).completed > before) break; /* from here on kept KV is taken again */
        } while (status(&w).running + status(&w).queued > 0);
        while (pump(x, SLOTS)) {}
        for (int i = 0; i < SLOTS; i++) {
            assert_int_equal(x[i].a.code, 0);
            assert_int_equal(x[i].a.n_ids, 101);
        }
        assert_in_range(most, 1, pass == 1 ? 2 : 1);
        pn_served_set_memory(w.s, PN_CRITICAL, UINT64_MAX); /* nothing is kept, and the host has its memory back */
        WAIT_FOR(status(&w).kv_bytes_used == 0);
    }
    world_close(&w);
}

static void what_is_kept_becomes_less_and_is_found_all_the_same(void **state) {
    (void)state;
    static struct test_answer a, again;
    static int32_t ids[CTX];
    struct world w;
    world_open(&w, 0, FO_Q4_0);
    bool small = pn_model_info(pn_served_model(w.s))->page_tokens > 8; /* debug builds' pages are too short to be smaller */
    pn_served_set_memory(w.s, PN_WATCH, UINT64_MAX);
    test_prompt(ids, 300, 3);
    struct pn_request_opts o = test_opts(ids, 300, 20);
    test_ask(w.s, &o, &a);
    uint64_t floor = status(&w).kv_bytes_used; /* new KV at the floor type: several pages in a place */
    assert_true(!small || status(&w).kv_small_pages > 0);
    pn_served_set_memory(w.s, PN_NORMAL, UINT64_MAX);
    test_prompt(ids, 300, 4);
    test_ask(w.s, &o, &again);
    uint64_t both = status(&w).kv_bytes_used, pages = status(&w).kv_small_pages;
    assert_true(!small || both - floor > 2 * floor);
    pn_served_set_memory(w.s, PN_WATCH, UINT64_MAX);
    if (small) WAIT_FOR(status(&w).kv_small_pages > pages && status(&w).kv_bytes_used <= 2 * floor); /* when it is cold */
    test_ask(w.s, &o, &again);
    assert_true(again.usage.cached_tokens > 250);
    assert_int_equal(again.n_ids, a.n_ids);
    pn_served_set_memory(w.s, PN_CRITICAL, UINT64_MAX);
    WAIT_FOR(status(&w).kv_bytes_used == 0);
    assert_int_equal(status(&w).kv_small_pages, 0);
    world_close(&w);
}

/* What is told of the KV that there is never passes what the host has memory for. */
static void have_is_what_the_host_has_too(void **state) {
    (void)state;
    struct world w;
    struct pn_budget b;
    struct fo_err e;
    static int32_t ids[8];
    struct pn_request_opts o = test_opts(ids, 8, 8);
    world_open(&w, 0, FO_F16);
    assert_int_equal(pn_fits(w.s, &o, &b, &e), FO_OK);
    uint64_t all = b.kv_bytes_available;
    const struct pn_model_info *info = pn_model_info(pn_served_model(w.s));
    assert_int_equal(all, info->n_pages * info->page_tokens * info->kv_bytes_per_token);
    pn_served_set_memory(w.s, PN_NORMAL, all / 4);
    assert_int_equal(pn_fits(w.s, &o, &b, &e), FO_OK);
    uint64_t touched = b.kv_bytes_available - all / 4; /* by the steps that tried it at load */
    assert_true(b.kv_bytes_available >= all / 4 && touched < all);
    world_close(&w);
}

/* Levels at random while requests come and go: every one ends as it was promised. */
static void levels_come_and_go_and_every_answer_is_whole(void **state) {
    (void)state;
    static struct reader x[12];
    struct world w;
    world_open(&w, 200, FO_Q4_0);
    for (uint64_t round = 0; round < 6; round++) {
        for (uint64_t i = 0; i < 12; i++) {
            begin(&x[i], &w, round * 5 + i % 7, 30 + 20 * (uint32_t)i, 60);
            pn_served_set_memory(w.s, (enum pn_level)((round * 12 + i) * 2654435761u >> 7 & 3), i % 3 ? UINT64_MAX : i << 12);
            pump(x, (int)i + 1);
        }
        while (pump(x, 12)) {}
        for (uint64_t i = 0; i < 12; i++) {
            assert_int_equal(x[i].a.code, 0);
            assert_int_equal(x[i].a.n_ids, 60);
        }
    }
    pn_served_set_memory(w.s, PN_NORMAL, UINT64_MAX);
    struct pn_served_status st = status(&w);
    assert_memory_equal(&st.effective, &st.declared, sizeof st.declared);
    assert_int_equal(st.rungs, 0);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_above_the_lowered_number_end_and_new_ones_wait),
        cmocka_unit_test(the_hosts_room_bounds_what_begins),
        cmocka_unit_test(what_is_kept_becomes_less_and_is_found_all_the_same),
        cmocka_unit_test(have_is_what_the_host_has_too),
        cmocka_unit_test(levels_come_and_go_and_every_answer_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
