/* Streams of events on their way through: whole events pass as they come, pieces wait, and the end is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/router_events.h"

static const char stream[] = ": ping\n\ndata: {\"response\":{\"id\":\"a\"}}\n\nevent: x\r\ndata: 1\r\n\r\ndata: 2\r\rdata: [DONE]\n\n";

static void passes_every_event_whatever_the_cuts(void **state) {
    (void)state;
    for (size_t step = 1; step <= sizeof stream; step++) {
        struct pd_events v;
        struct fo_buf out;
        pd_events_init(&v);
        fo_buf_init(&out, 4096);
        for (size_t at = 0; at < sizeof stream - 1; at += step) {
            size_t n = sizeof stream - 1 - at < step ? sizeof stream - 1 - at : step;
            assert_true(pd_events_feed(&v, stream + at, n, &out));
        }
        pd_events_finish(&v, &out);
        assert_int_equal(out.len, sizeof stream - 1);
        assert_memory_equal(out.data, stream, out.len);
        assert_int_equal(v.n, 4); /* a comment is none */
        assert_true(v.ended);
        assert_string_equal(fo_buf_str(&v.first), "{\"response\":{\"id\":\"a\"}}");
        pd_events_done(&v);
        fo_buf_done(&out);
    }
}

static void an_event_passes_with_its_last_byte_and_a_piece_stays(void **state) {
    (void)state;
    struct pd_events v;
    struct fo_buf out;
    pd_events_init(&v);
    fo_buf_init(&out, 4096);
    assert_true(pd_events_feed(&v, "data: 1\n", 8, &out));
    assert_int_equal(out.len, 0);
    assert_true(pd_events_feed(&v, "\ndata: {\"half", 13, &out));
    assert_string_equal(fo_buf_str(&out), "data: 1\n\n"); /* what nobody could read is not sent */
    assert_int_equal(v.n, 1);
    assert_false(v.ended);
    pd_events_done(&v);
    fo_buf_done(&out);
}

static void knows_what_ends_a_stream(void **state) {
    (void)state;
    static const struct {
        const char *event;
        bool ends;
    } rows[] = {
        { "data: [DONE]\n\n", true },
        { "data:[DONE]\n\n", true },
        { "data: {\"error\":{\"message\":\"x\"}}\n\n", true },
        { "event: response.completed\ndata: {}\n\n", true },
        { "event: response.incomplete\ndata: {}\n\n", true },
        { "event: response.failed\ndata: {}\n\n", true },
        { "event: error\ndata: {}\n\n", true },
        { "event: response.created\ndata: {}\n\n", false },
        { "event: error\n\n", false }, /* no data: no event */
        { "data: [DONE] \n\n", false },
        { "data: {\"text\":\"[DONE]\"}\n\n", false },
        { ": [DONE]\n\n", false },
        { "database: [DONE]\n\n", false },
        { "data\n\n", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_events v;
        struct fo_buf out;
        pd_events_init(&v);
        fo_buf_init(&out, 4096);
        assert_true(pd_events_feed(&v, rows[i].event, strlen(rows[i].event), &out));
        if (v.ended != rows[i].ends) fail_msg("%s", rows[i].event);
        assert_string_equal(fo_buf_str(&out), rows[i].event);
        pd_events_done(&v);
        fo_buf_done(&out);
    }
}

static void an_event_without_end_is_not_held_without_bound(void **state) {
    (void)state;
    enum { PIECE = 64 << 10, PIECES = 3 * PD_MAX_EVENT_BYTES / PIECE };
    struct pd_events v;
    struct fo_buf out;
    char *piece = malloc(PIECE);
    uint64_t passed = 0;
    assert_non_null(piece);
    memset(piece, 'x', PIECE);
    pd_events_init(&v);
    fo_buf_init(&out, 2 * (size_t)PD_MAX_EVENT_BYTES);
    assert_true(pd_events_feed(&v, "data: ", 6, &out));
    for (int i = 0; i < PIECES; i++) {
        assert_true(pd_events_feed(&v, piece, PIECE, &out));
        assert_true(v.held.len <= PD_MAX_EVENT_BYTES + PIECE);
        passed += out.len;
        fo_buf_clear(&out);
    }
    assert_true(v.passing);
    assert_true(pd_events_feed(&v, "\n\ndata: 2\n\n", 11, &out));
    passed += out.len;
    assert_false(v.passing);
    assert_int_equal(passed, 6 + (uint64_t)PIECES * PIECE + 11);
    assert_int_equal(v.n, 2);
    assert_int_equal(v.first.len, 0); /* nothing was kept of it */
    pd_events_done(&v);
    fo_buf_done(&out);
    free(piece);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_every_event_whatever_the_cuts),
        cmocka_unit_test(an_event_passes_with_its_last_byte_and_a_piece_stays),
        cmocka_unit_test(knows_what_ends_a_stream),
        cmocka_unit_test(an_event_without_end_is_not_held_without_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
