/* Any bytes as what a backend of the router says: a stream of events, whose cuts must change nothing; the lines of a head, of which only whole
 * ones pass; a list of models, which stays JSON when it is put together with another; and an address. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/router.h"
#include "daemon/router_events.h"
#include "daemon/router_head.h"
#include "daemon/router_models.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void events(const char *s, size_t n) {
    struct pd_events whole, cut;
    struct fo_buf a, b;
    pd_events_init(&whole);
    pd_events_init(&cut);
    fo_buf_init(&a, 2 * n + 1);
    fo_buf_init(&b, 2 * n + 1);
    if (!pd_events_feed(&whole, s, n, &a)) abort();
    for (size_t at = 0, k; at < n; at += k) {
        k = 1 + (unsigned char)s[at] % 13;
        if (k > n - at) k = n - at;
        if (!pd_events_feed(&cut, s + at, k, &b)) abort();
    }
    pd_events_finish(&whole, &a);
    pd_events_finish(&cut, &b);
    if (a.len != n || b.len != n || (n && (memcmp(a.data, s, n) != 0 || memcmp(b.data, s, n) != 0))) abort();
    if (whole.ended && !cut.ended) abort();
    pd_events_done(&whole);
    pd_events_done(&cut);
    fo_buf_done(&a);
    fo_buf_done(&b);
}

static void lines(const char *s, size_t n) {
    struct pd_router_answer about;
    struct fo_buf out;
    fo_buf_init(&out, 4 * n + 64);
    pd_router_answer_lines(s, n, &about, &out);
    if (out.failed || memchr(fo_buf_str(&out), '\0', out.len)) abort();
    for (const char *p = fo_buf_str(&out); *p; p = strchr(p, '\n') + 1) {
        const char *end = strstr(p, "\r\n");
        if (!end || strcspn(p, "\r\n") != (size_t)(end - p) || !memchr(p, ':', (size_t)(end - p))) abort();
    }
    for (const char *p = about.type; *p; p++)
        if ((unsigned char)*p < 0x20 && *p != '\t') abort();
    fo_buf_done(&out);
}

static void models(const char *s, size_t n) {
    struct pd_models *m, *again;
    struct fo_err e;
    struct fo_buf out;
    if (pd_models_parse(s, n, &m, &e)) return;
    const struct pd_source two[] = { { "http://a", true, m }, { "http://b", false, m } };
    fo_buf_init(&out, 64 * n + 4096);
    pd_models_merge(two, 2, &out);
    if (!out.failed) {
        if (pd_models_parse(out.data, out.len, &again, &e) || again->n > m->n) abort();
        for (size_t i = 0; i < m->n; i++)
            if (!pd_models_find(again, m->list[i].id)) abort();
        pd_models_put(again);
    }
    fo_buf_done(&out);
    pd_models_put(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pd_backend b;
    struct fo_err e;
    char *s = malloc(size + 1);
    if (!s) return 0;
    if (size) memcpy(s, data, size);
    s[size] = '\0';
    events(s, size);
    lines(s, size);
    models(s, size);
    if (pd_backend_parse(s, &b, &e) == FO_OK && (strlen(b.url) < 7 || strpbrk(b.url, " \"\r\n") || (b.socket && *b.socket != '/'))) abort();
    free(s);
    return 0;
}
