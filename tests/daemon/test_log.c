/* Lines of the log as JSON, whatever people and clients wrote into them. */
#include "daemon/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "foundry/base/buf.h"

static void makes_an_object_of_each_line(void **state) {
    (void)state;
    static const struct {
        const char *line, *json;
    } rows[] = {
        { "event=ready models=2 ms=-1.50", "\"event\":\"ready\",\"models\":2,\"ms\":-1.50" },
        { "event=x key=\"12\" path=\"/v1/a b=c\" status=200", "\"event\":\"x\",\"key\":\"12\",\"path\":\"/v1/a b=c\",\"status\":200" },
        { "event=x text=\"a \\\"b\\\" \\\\ c\" ms=1", "\"event\":\"x\",\"text\":\"a \\\"b\\\" \\\\ c\",\"ms\":1" },
        { "event=x text=\"a\\\" status=200 \\\\\" ms=1", "\"event\":\"x\",\"text\":\"a\\\" status=200 \\\\\",\"ms\":1" },
        { "event=x empty= none=\"\"", "\"event\":\"x\",\"empty\":\"\",\"none\":\"\"" },
        { "event=x a=007 b=1e5 c=12345678901234567 d=1. e=.5 f=- g=0 h=0.0 i=-0 j=1.2.3", "\"event\":\"x\",\"a\":\"007\",\"b\":\"1e5\",\"c\":\"12345678901234567\",\"d\":\"1.\",\"e\":\".5\",\"f\":\"-\",\"g\":0,\"h\":0.0,\"i\":-0,\"j\":\"1.2.3\"" },
        { "event=cut text=\"it goes on and", "\"event\":\"cut\",\"text\":\"it goes on and" "\"" },
        { "event=cut text=\"it ends in \\", "\"event\":\"cut\",\"text\":\"it ends in \\\\\"" },
        { "models.yaml:3:1: error: '\"x\\y\"'", "\"text\":\"models.yaml:3:1: error: '\\\"x\\\\y\\\"'\"" },
        { "event=x and more", "\"event\":\"x\",\"text\":\"and more\"" },
        { "", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fo_buf out;
        char want[512];
        fo_buf_init(&out, 1 << 14);
        pd_log_json("", "info", "http", rows[i].line, &out);
        snprintf(want, sizeof want, "{\"level\":\"info\",\"area\":\"http\"%s%s}", rows[i].json ? "," : "", rows[i].json ? rows[i].json : "");
        assert_string_equal(fo_buf_str(&out), want);
        json_t *o = json_loads(fo_buf_str(&out), JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(o);
        json_decref(o);
        fo_buf_done(&out);
    }
    struct fo_buf out;
    fo_buf_init(&out, 1 << 14);
    pd_log_json("2026-01-02T03:04:05.678Z", "warn", "serve", "event=x", &out);
    assert_string_equal(fo_buf_str(&out), "{\"time\":\"2026-01-02T03:04:05.678Z\",\"level\":\"warn\",\"area\":\"serve\",\"event\":\"x\"}");
    fo_buf_done(&out);
}

/* What a client wrote goes through pd_log_quote, and comes out as it was. */
static void quoted_texts_come_back_as_they_were(void **state) {
    (void)state;
    static const char *const texts[] = { "\" status=200 event=\"fake", "\\", "\\\"", "a\\", "\\\\\" x=\"", "{\"a\":1}", "\xc3\xa4\xe2\x82\xac", "" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char quoted[128], line[256];
        struct fo_buf out;
        fo_buf_init(&out, 1 << 14);
        snprintf(line, sizeof line, "event=x said=%s ms=1", pd_log_quote(texts[i], quoted, sizeof quoted));
        pd_log_json("", "info", "http", line, &out);
        json_t *o = json_loads(fo_buf_str(&out), JSON_REJECT_DUPLICATES, NULL);
        if (!o || json_object_size(o) != 5) fail_msg("%s", fo_buf_str(&out));
        assert_string_equal(json_string_value(json_object_get(o, "said")), texts[i]);
        assert_int_equal(json_integer_value(json_object_get(o, "ms")), 1);
        json_decref(o);
        fo_buf_done(&out);
    }
}

/* The sink's buffer holds whatever a line of 2,000 bytes becomes. */
static void the_longest_line_fits(void **state) {
    (void)state;
    static const char *const worst[] = { "a=1 ", "a= ", "\"", "a=\" ", "\\" };
    for (size_t i = 0; i < sizeof worst / sizeof *worst; i++) {
        char line[2001] = "";
        struct fo_buf out;
        for (size_t n = 0, k = strlen(worst[i]); n + k < sizeof line; n += k) memcpy(line + n, worst[i], k + 1);
        fo_buf_init(&out, 16 * 1024);
        pd_log_json("2026-01-02T03:04:05.678Z", "error", "reconcile", line, &out);
        assert_false(out.failed);
        json_t *o = json_loads(fo_buf_str(&out), 0, NULL);
        assert_non_null(o);
        json_decref(o);
        fo_buf_done(&out);
    }
}

static void knows_its_formats(void **state) {
    (void)state;
    bool json = false;
    assert_true(pd_log_format("json", &json) && json);
    assert_true(pd_log_format("text", &json) && !json);
    assert_false(pd_log_format("", &json) || pd_log_format("JSON", &json) || pd_log_format("yaml", &json));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_an_object_of_each_line),
        cmocka_unit_test(quoted_texts_come_back_as_they_were),
        cmocka_unit_test(the_longest_line_fits),
        cmocka_unit_test(knows_its_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
