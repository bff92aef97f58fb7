/* The router's table without a network: addresses, lists of models, what a body says, and which backend a request goes to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/head.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/router.h"
#include "daemon/router_ask.h"
#include "daemon/router_metrics.h"
#include "daemon/router_models.h"
#include "daemon/router_pages.h"
#include "daemon/routes.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"

/* --- addresses --- */

static void reads_addresses_and_says_what_is_wrong_with_one(void **state) {
    (void)state;
    static const struct {
        const char *text, *name, *why; /* why NULL = good */
    } rows[] = {
        { "http://10.0.0.1:8080", "http://10.0.0.1:8080", NULL },
        { "http://10.0.0.1:8080/", "http://10.0.0.1:8080", NULL },
        { "https://host.example", "https://host.example", NULL },
        { "HTTP://host:1", "HTTP://host:1", NULL },
        { "http://[::1]:8080", "http://[::1]:8080", NULL },
        { "http://[::1]", "http://[::1]", NULL },
        { "unix:/run/p.sock", "unix:/run/p.sock", NULL },
        { "unix:p.sock", NULL, "begins with /" },
        { "10.0.0.1:8080", NULL, "http://HOST:PORT" },
        { "ftp://host", NULL, "http://HOST:PORT" },
        { "", NULL, "http://HOST:PORT" },
        { "http://", NULL, "the host is missing" },
        { "http://:80", NULL, "the host is missing" },
        { "http://host:", NULL, "the port" },
        { "http://host:0", NULL, "the port" },
        { "http://host:65536", NULL, "the port" },
        { "http://host:8a", NULL, "the port" },
        { "http://[::1", NULL, "no end" },
        { "http://[::1]8080", NULL, "the port" },
        { "http://[]:80", NULL, "no IPv6 address" },
        { "http://[zz]:80", NULL, "no IPv6 address" },
        { "http://[1.2.3.4]", NULL, "no IPv6 address" },
        { "http://::1:80", NULL, "the host is missing" },
        { "http://fe80::1:80", NULL, "stands in []" },
        { "http://user:pw@host", NULL, "--backend-key-file" },
        { "http://host/v1", NULL, "ends with the port" },
        { "http://host?x", NULL, "ends with the port" },
        { "http://ho st", NULL, "a character" },
        { "http://h%41st", NULL, "a character" },
        { "http://h\"ost", NULL, "a character" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_backend b;
        struct fo_err e;
        int code = pd_backend_parse(rows[i].text, &b, &e);
        if ((code != FO_OK) != (rows[i].why != NULL) || (code && !strstr(e.msg, rows[i].why))) fail_msg("%s: %s", rows[i].text, code ? e.msg : "taken");
        if (!code) assert_string_equal(b.name, rows[i].name);
        if (!code) assert_int_equal(b.socket != NULL, strncmp(rows[i].text, "unix:", 5) == 0);
    }
    char path[200] = "unix:/", host[2000] = "http://";
    struct pd_backend b;
    struct fo_err e;
    memset(path + 6, 'x', sizeof path - 7);
    assert_int_equal(pd_backend_parse(path, &b, &e), FO_EINVAL);
    memset(host + 7, 'x', sizeof host - 8);
    assert_int_equal(pd_backend_parse(host, &b, &e), FO_EINVAL);
}

/* --- lists --- */

static struct pd_models *listed(const char *text) {
    struct pd_models *m;
    struct fo_err e;
    if (pd_models_parse(text, strlen(text), &m, &e)) fail_msg("%s", e.msg);
    return m;
}

static void reads_lists_of_any_server(void **state) {
    (void)state;
    struct pd_models *m = listed("{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"aliases\":[\"b\",7,\"\"],\"status\":\"ready\",\"max_concurrent\":8},{\"id\":\"c\",\"status\":\"loading\",\"max_concurrent\":-1},"
                                 "{\"id\":\"plain\",\"object\":\"model\"},{\"object\":\"model\"},7,{\"id\":\"x\\u0000y\"},{\"id\":\"x\\ny\"}]}");
    assert_int_equal(m->n, 3);
    assert_string_equal(pd_models_find(m, "b")->id, "a");
    assert_int_equal(pd_models_find(m, "a")->room, 8);
    assert_true(pd_models_find(m, "a")->serves && pd_models_find(m, "plain")->serves && !pd_models_find(m, "c")->serves);
    assert_int_equal(pd_models_find(m, "c")->room, 0);
    assert_null(pd_models_find(m, "x"));
    pd_models_put(m);
    static const char *const bad[] = { "", "[]", "{}", "{\"data\":{}}", "<html>", "{\"data\":[" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fo_err e;
        if (pd_models_parse(bad[i], strlen(bad[i]), &m, &e) != FO_EFORMAT) fail_msg("%s", bad[i]);
    }
}

static void lists_each_model_once_as_who_serves_it_says(void **state) {
    (void)state;
    struct pd_source s[] = {
        { "http://a", false, listed("{\"data\":[{\"id\":\"m\",\"n\":1},{\"id\":\"only-a\",\"backends\":[{\"url\":\"http://behind-a\"}]}]}") }, /* a router too */
        { "http://b", true, listed("{\"data\":[{\"id\":\"m\",\"n\":2,\"status\":\"loading\"}]}") },
        { "http://c", true, listed("{\"data\":[{\"id\":\"m\",\"n\":3},{\"id\":\"m\",\"n\":4}]}") },
        { "http://d", true, NULL },
    };
    struct fo_buf out;
    fo_buf_init(&out, 4096);
    pd_models_merge(s, 4, &out);
    assert_string_equal(fo_buf_str(&out), "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"n\":3,\"backends\":[{\"url\":\"http://a\",\"serves\":false},{\"url\":\"http://b\",\"serves\":false},"
                                          "{\"url\":\"http://c\",\"serves\":true}]},{\"id\":\"only-a\",\"backends\":[{\"url\":\"http://a\",\"serves\":false}]}]}");
    fo_buf_clear(&out);
    pd_models_names(s, 4, &out);
    assert_string_equal(fo_buf_str(&out), "m, only-a");
    fo_buf_clear(&out);
    assert_true(pd_models_merge_one(s, 4, "only-a", &out));
    assert_false(pd_models_merge_one(s, 4, "none", &out));
    pd_router_sources_put(s, 4);
    fo_buf_done(&out);
}

/* --- what a body says --- */

/* The key of a body under a header; 0 after an error. */
static uint64_t key_of(const char *session, const char *whose, const char *body) {
    struct pd_head h = { 0 };
    struct pd_router_ask a;
    struct pd_error x;
    char name[] = "X-Session-Id", value[64];
    snprintf(value, sizeof value, "%s", session);
    if (*session) h.headers[h.n_headers++] = (struct pd_header){ name, value };
    uint64_t key = pd_router_ask(&h, body, strlen(body), whose, &a, &x) ? a.key : 0;
    pd_body_done(&a.body);
    return key;
}

#define SYS "{\"role\":\"system\",\"content\":\"Be brief.\"},"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define CHAT(model, rest) "{\"model\":\"" model "\",\"messages\":[" rest "]}"

static void a_conversation_that_grows_keeps_its_key(void **state) {
    (void)state;
    static const char *const grows[][3] = {
        { CHAT("m", SYS USER("Hi")), CHAT("m", SYS USER("Hi") ",{\"role\":\"assistant\",\"content\":\"Yes?\"}," USER("Go on")), CHAT("m", SYS USER("Hi") ",{\"role\":\"tool\"}") },
        { "{\"model\":\"m\",\"input\":\"Hi\"}", "{\"model\":\"m\",\"input\":\"Hi\",\"stream\":true}", NULL },
        { "{\"model\":\"m\",\"instructions\":\"X\",\"input\":[" USER("Hi") "]}", "{\"model\":\"m\",\"instructions\":\"X\",\"input\":[" USER("Hi") ",{\"type\":\"message\",\"role\":\"assistant\"}]}", NULL },
    };
    for (size_t i = 0; i < sizeof grows / sizeof *grows; i++)
        for (size_t k = 1; k < 3 && grows[i][k]; k++) assert_int_equal(key_of("", "", grows[i][0]), key_of("", "", grows[i][k]));
    char a[600], b[600], text[300];
    memset(text, 'x', sizeof text);
    snprintf(a, sizeof a, "{\"model\":\"m\",\"prompt\":\"%.200s\"}", text);
    snprintf(b, sizeof b, "{\"model\":\"m\",\"prompt\":\"%.290s\"}", text);
    assert_int_equal(key_of("", "", a), key_of("", "", b));
}

static void what_differs_has_another_key(void **state) {
    (void)state;
    static const char *const bodies[] = {
        CHAT("m", SYS USER("Hi")), CHAT("m", USER("Hi")), CHAT("n", SYS USER("Hi")), CHAT("m", SYS USER("Ho")), "{\"model\":\"m\",\"prompt\":\"Hi\"}", "{\"model\":\"m\",\"prompt\":\"Ho\"}",
        "{\"model\":\"m\",\"prompt\":[1,2,3]}", "{\"model\":\"m\",\"prompt\":[1,2,4]}", "{\"model\":\"m\",\"prompt\":[[5,6],[7]]}", "{\"model\":\"m\",\"session_id\":\"s\"}", "{\"model\":\"m\",\"prompt_cache_key\":\"t\"}",
    };
    enum { N = sizeof bodies / sizeof *bodies };
    for (size_t i = 0; i < N; i++) {
        assert_int_not_equal(key_of("", "", bodies[i]), 0);
        assert_int_not_equal(key_of("", "", bodies[i]), key_of("", "another key", bodies[i]));
        for (size_t k = 0; k < i; k++)
            if (key_of("", "", bodies[i]) == key_of("", "", bodies[k])) fail_msg("%s\n%s", bodies[i], bodies[k]);
    }
}

static void a_sessions_name_counts_alone_and_in_order(void **state) {
    (void)state;
    uint64_t s = key_of("s", "", CHAT("m", USER("Hi")));
    assert_int_equal(s, key_of("s", "", CHAT("m", USER("else"))));
    assert_int_equal(s, key_of("", "", "{\"model\":\"m\",\"session_id\":\"s\",\"prompt_cache_key\":\"t\",\"prompt\":\"x\"}"));
    assert_int_equal(s, key_of("", "", "{\"model\":\"m\",\"session_id\":null,\"prompt_cache_key\":\"s\"}"));
    assert_int_equal(s, key_of("s", "", "{\"model\":\"m\",\"session_id\":\"t\"}"));
    assert_int_not_equal(s, key_of("s", "", "{\"model\":\"n\"}"));
}

static void refuses_bodies_that_name_no_model(void **state) {
    (void)state;
    static const char *const bad[] = { "", "[]", "{", "{}", "{\"model\":null}", "{\"model\":7}", "{\"model\":\"a\\u0000b\"}", "{\"model\":\"m\",\"model\":\"n\"}", "--boundary\r\n" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(key_of("", "", bad[i]), 0);
    char deep[4000] = "{\"model\":\"m\",\"x\":";
    size_t at = strlen(deep);
    memset(deep + at, '[', 1000);
    assert_int_equal(key_of("", "", deep), 0);
}

/* --- choosing --- */

static struct pd_router *router_of(size_t n) {
    static const char *const urls[] = { "http://a:1", "http://b:1", "http://c:1", "http://d:1" };
    struct pd_router_opts o = { .backends = urls, .n_backends = n };
    struct pd_router *r;
    struct fo_err e;
    if (pd_router_new(&o, &r, &e)) fail_msg("%s", e.msg);
    return r;
}

static void probed(struct pd_router *r, size_t i, const char *list) {
    pd_router_probed(r, &r->list[i], NULL, list ? listed(list) : NULL, !list);
}

static int choose(struct pd_router *r, const char *model, uint64_t key, uint64_t tried, struct pd_error *x) {
    struct pd_backend *b = pd_router_choose(r, model, key, tried, x);
    if (!b) return -1;
    pd_router_end(r, b, PD_TRY_ANSWERED, 200, "", false);
    return (int)(b - r->list);
}

static void a_request_goes_where_its_model_serves(void **state) {
    (void)state;
    struct pd_router *r = router_of(4);
    struct pd_error x;
    assert_int_equal(choose(r, "m", 1, 0, &x), -1);
    assert_int_equal(x.id, PD_ERR_NO_BACKEND); /* nobody has said anything yet */
    probed(r, 0, "{\"data\":[{\"id\":\"m\",\"aliases\":[\"mm\"]}]}");
    probed(r, 1, "{\"data\":[{\"id\":\"m\",\"status\":\"loading\"},{\"id\":\"n\"}]}");
    probed(r, 2, "{\"data\":[{\"id\":\"o\"}]}");
    for (uint64_t key = 0; key < 50; key++) {
        assert_int_equal(choose(r, "m", key, 0, &x), 0);
        assert_int_equal(choose(r, "mm", key, 0, &x), 0);
        assert_int_equal(choose(r, "m", key, 1, &x), 1); /* who loads it says when to come back */
        assert_int_equal(choose(r, "n", key, 0, &x), 1);
    }
    assert_int_equal(choose(r, "p", 1, 0, &x), -1);
    assert_int_equal(x.id, PD_ERR_NO_MODEL);
    assert_non_null(strstr(x.message, "m, n, o"));
    assert_non_null(strstr(x.message, "1 of 4"));
    probed(r, 3, NULL); /* it keeps its list from us */
    assert_int_equal(choose(r, "p", 1, 0, &x), 3);
    assert_int_equal(choose(r, "o", 1, 0, &x), 2);
    pd_router_end(r, pd_router_choose(r, "o", 1, 0, &x), PD_TRY_UNREACHED, 0, "refused", false);
    assert_int_equal(choose(r, "o", 1, 0, &x), 3);
    assert_int_equal(choose(r, "o", 1, 8, &x), -1);
    assert_int_equal(x.id, PD_ERR_NO_BACKEND);
    assert_non_null(strstr(x.message, "refused"));
    pd_router_free(r);
}

static void overflow_begins_where_the_models_room_ends(void **state) {
    (void)state;
    struct pd_router *r = router_of(2);
    struct pd_backend *held[8];
    struct pd_error x;
    for (size_t i = 0; i < 2; i++) probed(r, i, "{\"data\":[{\"id\":\"m\",\"max_concurrent\":3}]}");
    for (int i = 0; i < 4; i++) held[i] = pd_router_choose(r, "m", 5, 0, &x);
    assert_true(held[0] == held[1] && held[1] == held[2] && held[3] != held[0]);
    for (int i = 0; i < 4; i++) pd_router_end(r, held[i], PD_TRY_ANSWERED, 200, "", false);
    assert_int_equal(r->list[0].load + r->list[1].load, 0);
    pd_router_free(r);
}

static void refuses_a_backend_twice_and_too_many(void **state) {
    (void)state;
    static const char *const twice[] = { "http://a:1", "http://A:1/" };
    struct pd_router_opts o = { .backends = twice, .n_backends = 2 };
    struct pd_router *r;
    struct fo_err e;
    assert_int_equal(pd_router_new(&o, &r, &e), FO_EINVAL);
    const char *many[PD_MAX_BACKENDS + 1];
    char names[PD_MAX_BACKENDS + 1][32];
    for (int i = 0; i <= PD_MAX_BACKENDS; i++) {
        snprintf(names[i], sizeof names[i], "http://h%d:1", i);
        many[i] = names[i];
    }
    o = (struct pd_router_opts){ .backends = many, .n_backends = PD_MAX_BACKENDS + 1 };
    assert_int_equal(pd_router_new(&o, &r, &e), FO_ELIMIT);
    o.n_backends = PD_MAX_BACKENDS;
    assert_int_equal(pd_router_new(&o, &r, &e), FO_OK);
    pd_router_free(r);
}

/* --- without memory --- */

static void fails_whole_without_memory(void **state) {
    (void)state;
    static const char list[] = "{\"data\":[{\"id\":\"a\",\"aliases\":[\"b\",\"c\"]},{\"id\":\"d\"}]}";
    static const char *const urls[] = { "http://a:1", "http://b:1" };
    struct fo_err e;
    for (long n = 1;; n++) {
        struct pd_models *m = NULL;
        test_fail_alloc(n);
        int code = pd_models_parse(list, sizeof list - 1, &m, &e);
        bool failed = test_alloc_failed();
        if (code) assert_int_equal(code, FO_ENOMEM);
        else assert_int_equal(m->n, 2);
        assert_int_equal(code != FO_OK, failed);
        pd_models_put(m);
        if (!failed) break;
    }
    for (long n = 1;; n++) {
        struct pd_router_opts o = { .backends = urls, .n_backends = 2 };
        struct pd_router *r = NULL;
        test_fail_alloc(n);
        int code = pd_router_new(&o, &r, &e);
        bool failed = test_alloc_failed();
        assert_int_equal(code, failed ? FO_ENOMEM : FO_OK);
        pd_router_free(r);
        if (!failed) break;
    }
}

/* --- the page --- */

static void the_page_has_every_path_and_metric(void **state) {
    (void)state;
    char *page, line[600];
    size_t len;
    struct fo_err e;
    struct pd_router_metric_doc m;
    if (fo_file_read("docs/router.md", 1 << 20, &page, &len, &e)) fail_msg("%s", e.msg);
    for (const struct pd_route *r = pd_router_routes(); r->method; r++) {
        snprintf(line, sizeof line, "| %s | `%s` | %s |\n", r->method, r->path, r->doc);
        if (!strstr(page, line)) fail_msg("docs/router.md lacks: %s", line);
    }
    for (size_t i = 0; pd_router_metric_doc(i, &m); i++) {
        if (!m.help) continue;
        snprintf(line, sizeof line, "| `%s` | %s | %s | %s |\n", m.name, m.type, m.labels, m.help);
        if (!strstr(page, line)) fail_msg("docs/router.md lacks: %s", line);
    }
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_addresses_and_says_what_is_wrong_with_one),
        cmocka_unit_test(reads_lists_of_any_server),
        cmocka_unit_test(lists_each_model_once_as_who_serves_it_says),
        cmocka_unit_test(a_conversation_that_grows_keeps_its_key),
        cmocka_unit_test(what_differs_has_another_key),
        cmocka_unit_test(a_sessions_name_counts_alone_and_in_order),
        cmocka_unit_test(refuses_bodies_that_name_no_model),
        cmocka_unit_test(a_request_goes_where_its_model_serves),
        cmocka_unit_test(overflow_begins_where_the_models_room_ends),
        cmocka_unit_test(refuses_a_backend_twice_and_too_many),
        cmocka_unit_test(fails_whole_without_memory),
        cmocka_unit_test(the_page_has_every_path_and_metric),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
