/* The table of events, the ring that keeps them, and the page that the table makes (UPDATE=1 writes it). */
#include "daemon/events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/app.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/log.h"

static char said[2001];

static void hear(void *ctx, enum fo_log_level level, const char *area, const char *line) {
    (void)ctx;
    snprintf(said, sizeof said, "%d %s %s", (int)level, area, line);
}

static void every_kind_has_a_name_and_an_id_of_its_own(void **state) {
    (void)state;
    for (int i = 0; i < PD_N_EVENT_KINDS; i++) {
        const struct pd_event_kind *k = pd_event_kind((enum pd_event_id)i);
        assert_non_null(k->name);
        assert_true(*k->name && strspn(k->name, "abcdefghijklmnopqrstuvwxyz_") == strlen(k->name));
        assert_true(strlen(k->message_id) == 32 && strspn(k->message_id, "0123456789abcdef") == 32);
        assert_true(k->doc && k->doc[strlen(k->doc) - 1] == '.');
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(k->name, pd_event_kind((enum pd_event_id)j)->name);
            assert_string_not_equal(k->message_id, pd_event_kind((enum pd_event_id)j)->message_id);
        }
    }
}

/* What others filter by must not change with a release. */
static void known_ids_stay_as_they_are(void **state) {
    (void)state;
    assert_string_equal(pd_event_kind(PD_EV_MANIFEST_ACCEPTED)->message_id, "56b1b63578bb473e9040a06d63e6314c");
    assert_string_equal(pd_event_kind(PD_EV_MODEL_FAILED)->message_id, "0e9bbdcdc0eb4141931b0dab3ac42d48");
    assert_string_equal(pd_event_kind(PD_EV_DIE_LOST)->message_id, "61eb94672d7f4d9ebd4a6541490ba941");
}

static void the_ring_keeps_the_newest(void **state) {
    (void)state;
    struct pd_app app;
    struct fo_err e;
    struct pd_event ev;
    char text[32];
    assert_int_equal(pd_app_init(&app, &e), FO_OK);
    assert_false(pd_app_next_event(&app, 0, NULL, &ev));
    for (int i = 1; i <= PD_MAX_EVENTS + 10; i++) pd_app_event(&app, PD_EV_CHANGED, i % 2 ? "odd" : "even", "number %d", i);
    assert_true(pd_app_next_event(&app, 0, NULL, &ev));
    assert_int_equal(ev.seq, 11);
    assert_true(pd_app_next_event(&app, 11, "odd", &ev));
    assert_string_equal(ev.text, "number 13");
    assert_true(pd_app_next_event(&app, PD_MAX_EVENTS + 9, NULL, &ev));
    snprintf(text, sizeof text, "number %d", PD_MAX_EVENTS + 10);
    assert_string_equal(ev.text, text);
    assert_false(pd_app_next_event(&app, PD_MAX_EVENTS + 10, NULL, &ev));
    assert_false(pd_app_next_event(&app, UINT64_MAX, NULL, &ev)); /* as a client may ask */
    pd_app_done(&app);
}

static void an_event_says_who_asked_and_is_one_line(void **state) {
    (void)state;
    struct pd_app app;
    struct fo_err e;
    struct pd_event ev;
    assert_int_equal(pd_app_init(&app, &e), FO_OK);
    fo_log_set(hear, NULL, NULL);
    pd_app_event_by(&app, PD_EV_ADMIN_LOAD, "a \"b\"", "key alice", "line\nevent=forged");
    assert_string_equal(said, "1 reconcile event=admin_load model=\"a \\\"b\\\"\" who=\"key alice\" text=\"line?event=forged\"");
    assert_true(pd_app_next_event(&app, 0, NULL, &ev));
    assert_string_equal(ev.who, "key alice");
    pd_app_event(&app, PD_EV_DIE_LOST, NULL, "%s", "d0: gone");
    assert_string_equal(said, "2 reconcile event=die_lost text=\"d0: gone\"");
    fo_log_set(NULL, NULL, NULL);
    pd_app_done(&app);
}

static void the_reference_page_is_what_the_table_says(void **state) {
    (void)state;
    struct fo_buf out;
    struct fo_err e;
    char *text;
    size_t len;
    fo_buf_init(&out, 1 << 16);
    pd_events_doc(&out);
    assert_false(out.failed);
    if (getenv("UPDATE")) {
        FILE *f = fopen("docs/events.md", "w");
        assert_non_null(f);
        assert_true(fputs(fo_buf_str(&out), f) >= 0 && fclose(f) == 0);
    }
    assert_int_equal(fo_file_read("docs/events.md", 1 << 16, &text, &len, &e), FO_OK);
    assert_string_equal(text, fo_buf_str(&out));
    free(text);
    fo_buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_a_name_and_an_id_of_its_own),
        cmocka_unit_test(known_ids_stay_as_they_are),
        cmocka_unit_test(the_ring_keeps_the_newest),
        cmocka_unit_test(an_event_says_who_asked_and_is_one_line),
        cmocka_unit_test(the_reference_page_is_what_the_table_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
