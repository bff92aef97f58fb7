/* The page at /: its files are daemon/page/page.{html,css,js}, which the Makefile embeds, and its parts are made here, for the page as it is first sent
 * and for /admin/live, which sends each again when it has changed. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_buf;
struct pd_app;
struct pd_call;
struct pd_copies;
struct pd_view;

/* What a part is made of. */
struct pd_seen {
    struct pd_app *app;
    const struct pd_view *view;
    const struct pd_copies *copies;
};

/* A part of the state: where {{id}} stands in page.html, and what has data-part="id". */
struct pd_page_part {
    const char *id;
    void (*put)(const struct pd_seen *s, struct fo_buf *out);
};
const struct pd_page_part *pd_page_part_at(size_t i); /* NULL past the last */
enum { PD_MAX_PAGE_PARTS = 8 };

extern const char pd_page_html[], pd_page_css[], pd_page_js[]; /* the files; with marks in them: {{name}} */

/* Answers with the page: the state in it for whoever may see /admin, else a field for a key. */
void pd_page_reply(struct pd_app *app, struct pd_call *c);
