/* Heads on their way through: what stays between two parties, what passes, and what nobody may smuggle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/head.h"
#include "daemon/router_head.h"
#include "foundry/base/buf.h"

static char text[8192];
static struct pd_head head;

/* The lines that a backend gets for a client's lines. */
static const char *asked(const char *lines, const char *bearer, struct fo_buf *out) {
    const char *why;
    int n = snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: router:80\r\n%s\r\n", lines);
    if (pd_head_parse(text, (size_t)n, &head, &why)) fail_msg("%s", why);
    fo_buf_clear(out);
    pd_router_request_lines(&head, &(struct pd_via){ .client = "192.0.2.1", .id = "req_1", .bearer = bearer }, out);
    return fo_buf_str(out);
}

static void passes_what_is_the_clients_and_keeps_what_is_the_connections(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    assert_string_equal(asked("Content-Type: application/json\r\nX-Session-Id: s1\r\nOpenAI-Beta: a=b\r\nContent-Length: 5\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n"
                              "TE: trailers\r\nUpgrade: h2c\r\nExpect: 100-continue\r\nAccept-Encoding: gzip\r\nOrigin: http://page\r\nProxy-Authorization: x\r\nTrailer: x\r\n", NULL, &b),
                        "X-Forwarded-For: 192.0.2.1\nX-Request-Id: req_1\nContent-Type: application/json\nX-Session-Id: s1\nOpenAI-Beta: a=b\n");
    fo_buf_done(&b);
}

static void adds_the_client_behind_those_before(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    assert_non_null(strstr(asked("X-Forwarded-For: 10.1.1.1, 10.1.1.2\r\nX-Forwarded-For: 10.1.1.3\r\n", NULL, &b), "X-Forwarded-For: 10.1.1.1, 10.1.1.2, 10.1.1.3, 192.0.2.1\n"));
    assert_null(strstr(strstr(b.data, "192.0.2.1"), "10.1.1"));
    fo_buf_done(&b);
}

static void passes_a_request_id_or_makes_one(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    assert_non_null(strstr(asked("X-Request-Id: mine-7\r\n", NULL, &b), "X-Request-Id: mine-7\n"));
    assert_null(strstr(b.data, "req_1"));
    assert_non_null(strstr(asked("", NULL, &b), "X-Request-Id: req_1\n"));
    fo_buf_done(&b);
}

static void sends_the_clients_key_or_its_own(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    assert_non_null(strstr(asked("Authorization: Bearer theirs\r\n", NULL, &b), "Authorization: Bearer theirs\n"));
    assert_non_null(strstr(asked("Authorization: Bearer theirs\r\n", "ours", &b), "Authorization: Bearer ours\n"));
    assert_null(strstr(b.data, "theirs"));
    fo_buf_done(&b);
}

static void claims_no_type_for_a_body_without_one(void **state) {
    (void)state;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    assert_non_null(strstr(asked("", NULL, &b), "\nContent-Type:\n")); /* an empty line of libcurl's is none */
    fo_buf_done(&b);
}

static void gives_the_client_what_is_its_own(void **state) {
    (void)state;
    static const char lines[] = "Content-Type: text/event-stream; charset=utf-8\nContent-Length: 12\nTransfer-Encoding: chunked\nConnection: close, X-Hop\nX-Hop: 1\nServer: other\nDate: today\n"
                                "Access-Control-Allow-Origin: *\nVary: Origin\nx-request-id: req_77\nRetry-After: 3\nX-Should-Retry:false\nCache-Control: no-cache\t\n";
    struct pd_router_answer a;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    pd_router_answer_lines(lines, sizeof lines - 1, &a, &b);
    assert_string_equal(fo_buf_str(&b), "Retry-After: 3\r\nX-Should-Retry: false\r\nCache-Control: no-cache\r\n");
    assert_string_equal(a.type, "text/event-stream; charset=utf-8");
    assert_string_equal(a.id, "req_77");
    assert_true(a.events);
    fo_buf_done(&b);
}

static void drops_lines_that_are_none(void **state) {
    (void)state;
    static const char lines[] = "no colon\n: no name\nBad Name: x\nTab: a\tb\nCut: a\rInjected: b\nNul: a\0b\nOk: fine\nLast: without end";
    struct pd_router_answer a;
    struct fo_buf b;
    fo_buf_init(&b, 8192);
    pd_router_answer_lines(lines, sizeof lines - 1, &a, &b);
    assert_string_equal(fo_buf_str(&b), "Tab: a\tb\r\nOk: fine\r\nLast: without end\r\n");
    assert_string_equal(a.type, "");
    assert_false(a.events);
    static char wide[20000] = "Wide: ";
    memset(wide + 6, 'x', sizeof wide - 7);
    fo_buf_clear(&b);
    pd_router_answer_lines(wide, sizeof wide - 1, &a, &b);
    assert_int_equal(b.len, 0);
    fo_buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_what_is_the_clients_and_keeps_what_is_the_connections),
        cmocka_unit_test(adds_the_client_behind_those_before),
        cmocka_unit_test(passes_a_request_id_or_makes_one),
        cmocka_unit_test(sends_the_clients_key_or_its_own),
        cmocka_unit_test(claims_no_type_for_a_body_without_one),
        cmocka_unit_test(gives_the_client_what_is_its_own),
        cmocka_unit_test(drops_lines_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
