/* The log: who hears what, and that nobody can forge a line. */
#include "foundry/base/log.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct heard {
    int n;
    enum fo_log_level level;
    char area[16], line[2100];
} heard;

static void listen(void *ctx, enum fo_log_level level, const char *area, const char *line) {
    struct heard *h = ctx;
    h->n++;
    h->level = level;
    strncpy(h->area, area, sizeof h->area - 1);
    strncpy(h->line, line, sizeof h->line - 1);
}

static int counted;

static int count(void) {
    return ++counted;
}

static void without_a_sink_nothing_is_said_or_computed(void **state) {
    (void)state;
    heard.n = counted = 0;
    fo_log_set(NULL, NULL, "all");
    fo_log(FO_LOG_ERROR, "mem", "lost");
    FO_DEBUGF("mem", "%d", count());
    assert_int_equal(heard.n, 0);
    assert_int_equal(counted, 0);
    assert_false(fo_log_debug_on("mem"));
}

static void levels_above_debug_always_pass(void **state) {
    (void)state;
    heard.n = 0;
    fo_log_set(listen, &heard, NULL);
    fo_log(FO_LOG_INFO, "http", "%s=%d", "port", 8080);
    assert_int_equal(heard.n, 1);
    assert_int_equal(heard.level, FO_LOG_INFO);
    assert_string_equal(heard.area, "http");
    assert_string_equal(heard.line, "port=8080");
    fo_log(FO_LOG_DEBUG, "http", "no");
    assert_int_equal(heard.n, 1);
}

static void debug_areas_are_chosen_by_whole_names(void **state) {
    (void)state;
    counted = 0;
    fo_log_set(listen, &heard, "sched,kv");
    assert_true(fo_log_debug_on("sched"));
    assert_true(fo_log_debug_on("kv"));
    assert_false(fo_log_debug_on("sch"));
    assert_false(fo_log_debug_on("kvx"));
    assert_false(fo_log_debug_on("sched,kv,"));
    assert_false(fo_log_debug_on(""));
    heard.n = 0;
    FO_DEBUGF("kv", "page %d", count());
    FO_DEBUGF("mem", "page %d", count());
    assert_int_equal(heard.n, 1);
    assert_int_equal(counted, 1);
    assert_string_equal(heard.line, "page 1");
    fo_log_set(listen, &heard, "all");
    assert_true(fo_log_debug_on("anything"));
    fo_log_set(listen, &heard, "");
    assert_false(fo_log_debug_on(""));
    assert_false(fo_log_debug_on("kv"));
}

static void user_text_cannot_forge_a_line_and_a_long_one_is_cut(void **state) {
    (void)state;
    char text[5000];
    fo_log_set(listen, &heard, NULL);
    fo_log(FO_LOG_WARN, "http", "model=\"%s\"", "x\nlevel=error\x1b[2J\xC2\x9B\xFF");
    assert_string_equal(heard.line, "model=\"x?level=error?[2J???\"");
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    fo_log(FO_LOG_WARN, "http", "%s", text);
    assert_int_equal(strlen(heard.line), 2000);
    for (size_t i = 0; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 3);
    fo_log(FO_LOG_WARN, "http", "%s", text);
    assert_true(strlen(heard.line) <= 2000);
    assert_string_equal(heard.line + 1998, "??"); /* the character that the cut went through */
}

static void *talk(void *arg) {
    (void)arg;
    for (int i = 0; i < 500; i++) fo_log(FO_LOG_INFO, "x", "line %d", i);
    return NULL;
}

static void threads_speak_one_at_a_time(void **state) {
    (void)state;
    pthread_t t[4];
    heard.n = 0;
    fo_log_set(listen, &heard, NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, talk, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_int_equal(heard.n, 2000);
    fo_log_set(NULL, NULL, NULL);
}

static void names_the_first_area_that_does_not_exist(void **state) {
    (void)state;
    size_t n = 0;
    assert_null(fo_log_unknown_area("all", &n));
    assert_null(fo_log_unknown_area("sched,http", &n));
    const char *list = "sched,typo,http", *bad = fo_log_unknown_area(list, &n);
    assert_ptr_equal(bad, list + 6);
    assert_int_equal(n, 4);
    assert_non_null(fo_log_unknown_area("", &n));
    assert_int_equal(n, 0);
    assert_non_null(fo_log_unknown_area("sched,", &n));
    assert_non_null(fo_log_unknown_area("sche", &n));
    assert_non_null(fo_log_unknown_area("ALL", &n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_sink_nothing_is_said_or_computed),
        cmocka_unit_test(levels_above_debug_always_pass),
        cmocka_unit_test(debug_areas_are_chosen_by_whole_names),
        cmocka_unit_test(user_text_cannot_forge_a_line_and_a_long_one_is_cut),
        cmocka_unit_test(threads_speak_one_at_a_time),
        cmocka_unit_test(names_the_first_area_that_does_not_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
