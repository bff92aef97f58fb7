/* Pages: see page.h. */
#include "tests/support/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"

void test_page_part(const char *path, const char *mark, const struct fo_buf *want) {
    struct fo_err e;
    size_t n;
    char *page;
    if (fo_file_read(path, 1 << 20, &page, &n, &e)) fail_msg("%s", e.msg);
    const char *from = strstr(page, mark), *to = from ? strstr(from, "<!-- end -->") : NULL;
    if (!to) fail_msg("%s has no part between %s and its end", path, mark);
    from += strlen(mark);
    assert_false(want->failed);
    if (getenv("UPDATE")) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(page, 1, (size_t)(from - page), f), from - page);
        assert_int_equal(fwrite(want->data, 1, want->len, f), want->len);
        assert_int_equal(fwrite(to, 1, strlen(to), f), strlen(to));
        assert_int_equal(fclose(f), 0);
    } else if ((size_t)(to - from) != want->len || memcmp(from, fo_buf_str(want), want->len) != 0) {
        fail_msg("%s is not what the table behind %s says: run this test with UPDATE=1", path, mark);
    }
    free(page);
}
