/* UTF-8 where ids may have cut it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/text.h"
#include "foundry/base/buf.h"

static void tells_characters_from_bytes(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n, len; /* len 0 = no character */
    } rows[] = {
        { "a", 1, 1 },           { "\0", 1, 1 },              { "\xC3\xA4", 2, 2 },         { "\xE2\x98\x83x", 4, 3 },     { "\xF0\x9F\x98\x80", 4, 4 }, { "\xF4\x8F\xBF\xBF", 4, 4 },
        { "\xED\x9F\xBF", 3, 3 }, { "\xEE\x80\x80", 3, 3 },    { "\x80", 1, 0 },             { "\xC3", 1, 0 },              { "\xE2\x98", 2, 0 },         { "\xF0\x9F\x98", 3, 0 },
        { "\xC0\x80", 2, 0 },    { "\xC1\xBF", 2, 0 },        { "\xE0\x9F\xBF", 3, 0 },     { "\xF0\x8F\xBF\xBF", 4, 0 },  { "\xED\xA0\x80", 3, 0 },     { "\xF4\x90\x80\x80", 4, 0 },
        { "\xF5\x80\x80\x80", 4, 0 }, { "\xFF", 1, 0 },       { "\xC3\x28", 2, 0 },         { "\xE2\x28\xA1", 3, 0 },      { "\xF0\x9F\x28\x80", 4, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(pd_utf8_char(rows[i].bytes, rows[i].n), rows[i].len);
        assert_int_equal(pd_utf8_ok(rows[i].bytes, rows[i].n), rows[i].len > 0);
    }
    assert_true(pd_utf8_ok(NULL, 0));
}

static void replaces_what_is_no_character(void **state) {
    (void)state;
    struct fo_buf out;
    fo_buf_init(&out, 1024);
    pd_utf8_clean("a\xC3\xA4\xE2\x98z\xFF\0\xF0\x9F\x98\x80\xC3", 13, &out);
    static const char want[] = "a\xC3\xA4\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\0\xF0\x9F\x98\x80\xEF\xBF\xBD";
    assert_int_equal(out.len, sizeof want - 1);
    assert_memory_equal(out.data, want, out.len);
    assert_true(pd_utf8_ok(out.data, out.len));
    fo_buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_characters_from_bytes),
        cmocka_unit_test(replaces_what_is_no_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
