/* Pages of docs/ a part of which is made of a table. */
#pragma once

struct fo_buf;

/* The page's part between `mark`, a line of its own, and the next "<!-- end -->" is `want`, else the test fails; with UPDATE set in the environment
 * it becomes that. */
void test_page_part(const char *path, const char *mark, const struct fo_buf *want);
