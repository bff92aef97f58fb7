/* The page at /: text is text wherever it stands, and every mark of the template is known. */
#include "daemon/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/html.h"
#include "foundry/base/buf.h"

static void text_stays_text(void **state) {
    (void)state;
    struct fo_buf out;
    fo_buf_init(&out, 4096);
    pd_html_put(&out, "<td title=\"%s\">100%% %s</td>", "\"><script>alert('1')</script>", "a & b\n\001\xc3\xa4");
    assert_string_equal(fo_buf_str(&out), "<td title=\"&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;\">100% a &amp; b\n \xc3\xa4</td>");
    fo_buf_done(&out);
}

/* Nothing from elsewhere, nothing that the policy would block, and no end of an element inside it. */
static void its_files_stand_alone(void **state) {
    (void)state;
    static const char *const never[] = { "http://", "https://", "url(", "@import", "src=", "<link", "style=", "onclick", "eval(", "document.write" };
    const char *const files[] = { pd_page_html, pd_page_css, pd_page_js };
    for (size_t f = 0; f < 3; f++)
        for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
            const char *at = strstr(files[f], never[i]);
            if (at && strncmp(at, "http://www.w3.org/2000/svg", 26) != 0) fail_msg("file %zu has %s", f, never[i]);
        }
    assert_null(strstr(pd_page_css, "</"));
    assert_null(strstr(pd_page_js, "</"));
    assert_null(strstr(pd_page_css, "{{"));
    assert_null(strstr(pd_page_js, "{{"));
}

static void every_part_has_its_place(void **state) {
    (void)state;
    size_t n = 0, places = 0;
    char mark[64];
    for (; pd_page_part_at(n); n++) {
        snprintf(mark, sizeof mark, "<div data-part=\"%s\">{{%s}}</div>", pd_page_part_at(n)->id, pd_page_part_at(n)->id);
        if (!strstr(pd_page_html, mark)) fail_msg("%s", mark);
    }
    for (const char *p = pd_page_html; (p = strstr(p, "data-part=")); p++) places++;
    assert_int_equal(places, n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_stays_text),
        cmocka_unit_test(its_files_stand_alone),
        cmocka_unit_test(every_part_has_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
