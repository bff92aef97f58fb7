/* The page is one answer: style and script stand in it, and its policy lets the browser load nothing else. A script that came in by any text
 * would lack the nonce, and would not run. */
#include "daemon/page.h"

#include <stdio.h>
#include <string.h>

#include "daemon/app.h"
#include "daemon/copies.h"
#include "daemon/html.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/rng.h"

enum { MAX_PAGE = 4 << 20 };

/* What is asked of a template's mark. */
struct filling {
    struct pd_seen seen;
    bool state;
    char nonce[33];
};

static void put_nonce(const struct filling *f, struct fo_buf *out) {
    fo_buf_puts(out, f->nonce);
}

static void put_css(const struct filling *f, struct fo_buf *out) {
    (void)f;
    fo_buf_puts(out, pd_page_css);
}

static void put_js(const struct filling *f, struct fo_buf *out) {
    (void)f;
    fo_buf_puts(out, pd_page_js);
}

static void put_version(const struct filling *f, struct fo_buf *out) {
    if (f->state) pd_html_text(out, pn_version());
}

static void put_link(const struct filling *f, struct fo_buf *out) {
    fo_buf_puts(out, f->state ? "as of when the page was loaded" : "the state is not shown");
}

static void put_access_hidden(const struct filling *f, struct fo_buf *out) {
    if (f->state) fo_buf_puts(out, " hidden");
}

static void put_state_hidden(const struct filling *f, struct fo_buf *out) {
    if (!f->state) fo_buf_puts(out, " hidden");
}

static void put_access_text(const struct filling *f, struct fo_buf *out) {
    (void)f;
    fo_buf_puts(out, "The state of the server is for this machine itself and for keys with <code>admin</code>. A key without it can try the models below. It is kept in this "
                     "tab alone, and only until it is closed.");
}

static const struct {
    const char *name;
    void (*put)(const struct filling *f, struct fo_buf *out);
} marks[] = {
    { "nonce", put_nonce }, { "css", put_css }, { "js", put_js }, { "version", put_version }, { "link", put_link }, { "access_hidden", put_access_hidden }, { "access_text", put_access_text },
    { "state_hidden", put_state_hidden },
};

/* A part stays empty for who may not see it. */
static void put_mark(const struct filling *f, const char *name, size_t n, struct fo_buf *out) {
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strlen(marks[i].name) == n && memcmp(marks[i].name, name, n) == 0) marks[i].put(f, out);
    for (size_t i = 0; f->state && pd_page_part_at(i); i++)
        if (strlen(pd_page_part_at(i)->id) == n && memcmp(pd_page_part_at(i)->id, name, n) == 0) pd_page_part_at(i)->put(&f->seen, out);
}

static void fill(const struct filling *f, struct fo_buf *out) {
    for (const char *p = pd_page_html, *mark; *p; p = mark) {
        mark = strstr(p, "{{");
        if (!mark) {
            fo_buf_puts(out, p);
            return;
        }
        fo_buf_append(out, p, (size_t)(mark - p));
        size_t n = strcspn(mark + 2, "}");
        put_mark(f, mark + 2, n, out);
        mark += 2 + n + 2;
    }
}

void pd_page_reply(struct pd_app *app, struct pd_call *c) {
    struct pd_view *v = pd_app_view(app);
    struct pd_copies copies = { 0 };
    struct filling f = { .seen = { .app = app, .view = v, .copies = &copies }, .state = c->admin };
    struct fo_buf out;
    struct pd_error x;
    char headers[600];
    snprintf(f.nonce, sizeof f.nonce, "%016llx%016llx", (unsigned long long)fo_rng_entropy(), (unsigned long long)fo_rng_entropy());
    snprintf(headers, sizeof headers,
             "Content-Security-Policy: default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
             "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n"
             "Cache-Control: no-store\r\nVary: Accept, Authorization\r\n",
             f.nonce, f.nonce);
    fo_buf_init(&out, MAX_PAGE);
    if (!pd_copies_look(app, v, &copies)) out.failed = true;
    fill(&f, &out);
    if (out.failed) {
        pd_error_memory(&x);
        pd_error_reply(c, &x);
    } else {
        pd_reply(c, 200, "text/html; charset=utf-8", headers, out.data, out.len);
    }
    fo_buf_done(&out);
    pd_copies_done(&copies);
    pd_view_put(v);
}
