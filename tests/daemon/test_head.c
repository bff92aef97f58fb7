/* Request heads and chunked framing: what is read, what is refused with which status, and that no split of the bytes matters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/head.h"
#include "foundry/base/rng.h"

/* Parses a copy with exactly its own size, so that the address sanitizer sees every step past it. */
static int parse(const char *text, size_t n, char **ret_copy, struct pd_head *h, const char **why) {
    char *copy = malloc(n ? n : 1);
    memcpy(copy, text, n);
    *ret_copy = copy;
    return pd_head_parse(copy, n, h, why);
}

static void reads_a_head(void **state) {
    (void)state;
    static const char text[] = "\r\nPOST /v1/models/a%2Fb?x=1 HTTP/1.1\r\nHost: here\r\ncontent-LENGTH:  12 \r\nX-Empty:\r\nExpect: 100-continue\r\n\r\nbody";
    struct pd_head h;
    const char *why;
    char *copy;
    size_t end = pd_head_end(text, sizeof text - 1);
    assert_int_equal(end, sizeof text - 1 - 4);
    assert_int_equal(parse(text, end, &copy, &h, &why), 0);
    assert_string_equal(h.method, "POST");
    assert_string_equal(h.path, "/v1/models/a%2Fb");
    assert_string_equal(h.query, "x=1");
    assert_int_equal(h.minor, 1);
    assert_true(h.has_length && h.length == 12 && !h.chunked && h.keep_alive && h.expect_continue);
    assert_string_equal(pd_head_get(&h, "Content-Length"), "12");
    assert_string_equal(pd_head_get(&h, "x-empty"), "");
    assert_null(pd_head_get(&h, "none"));
    free(copy);
}

static void takes_the_absolute_form(void **state) {
    (void)state;
    static const char text[] = "GET http://host:80/v1/models HTTP/1.1\r\nHost: host\r\n\r\n";
    struct pd_head h;
    const char *why;
    char *copy;
    assert_int_equal(parse(text, sizeof text - 1, &copy, &h, &why), 0);
    assert_string_equal(h.path, "/v1/models");
    free(copy);
}

/* RFC 9112 3.2.2: a proxy's target says which host is meant, whatever the header says; the Host check must see that one. */
static void the_host_of_an_absolute_target_stands_in_for_the_header(void **state) {
    (void)state;
    static const struct {
        const char *text, *host;
        int status;
    } rows[] = {
        { "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", "evil.example", 0 },
        { "GET HTTP://localhost:8080/ HTTP/1.1\r\nhost: evil.example\r\n\r\n", "localhost:8080", 0 },
        { "GET http://[::1]:8080/a?b=c HTTP/1.1\r\nHost: a\r\n\r\n", "[::1]:8080", 0 },
        { "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", "localhost", 0 },
        { "GET http://localhost/ HTTP/1.1\r\n\r\n", NULL, 400 },
        { "GET http:///v1/models HTTP/1.1\r\nHost: a\r\n\r\n", NULL, 400 },
        { "GET http://a@evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n", NULL, 400 },
        { "GET http://a?/ HTTP/1.1\r\nHost: a\r\n\r\n", NULL, 400 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_head h;
        const char *why;
        char *copy;
        assert_int_equal(parse(rows[i].text, strlen(rows[i].text), &copy, &h, &why), rows[i].status);
        if (rows[i].host) assert_string_equal(pd_head_get(&h, "Host"), rows[i].host);
        free(copy);
    }
}

static void knows_when_a_connection_stays(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool stays;
    } rows[] = {
        { "GET / HTTP/1.1\r\nHost: a\r\n\r\n", true },
        { "GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", false },
        { "GET / HTTP/1.1\r\nHost: a\r\nConnection: foo, close\r\n\r\n", false },
        { "GET / HTTP/1.1\r\nHost: a\r\nConnection: closed\r\n\r\n", true },
        { "GET / HTTP/1.0\r\n\r\n", false },
        { "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_head h;
        const char *why;
        char *copy;
        assert_int_equal(parse(rows[i].text, strlen(rows[i].text), &copy, &h, &why), 0);
        assert_int_equal(h.keep_alive, rows[i].stays);
        free(copy);
    }
}

static void refuses_what_two_parties_could_read_differently(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        { "GET / HTTP/1.1\r\n\r\n", 400 },                                                              /* no Host */
        { "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501 },
        { "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 501 },
        { "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400 },
        { "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400 },
        { "GET / HTTP/1.1\nHost: a\n\n", 400 },                                                         /* bare LF */
        { "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400 },                                             /* bare CR */
        { "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: a\r\n: none\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: a\r\nX: a\x01\r\n\r\n", 400 },
        { "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400 },
        { "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 505 },
        { "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505 },
        { "PRI * HTTP/2.0\r\n\r\n", 505 },
        { "GET /\r\n\r\n", 400 },                                                                       /* HTTP/0.9 */
        { "G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400 },
        { "GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400 },
        { "GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400 },
        { "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", 400 },
        { "GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417 },
        { "\x16\x03\x01\x02 TLS\r\n\r\n", 400 },
        { "\r\n\r\n\r\n\r\n\r\n\r\n", 400 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_head h;
        const char *why = NULL;
        char *copy;
        int status = parse(rows[i].text, strlen(rows[i].text), &copy, &h, &why);
        if (status != rows[i].status) fail_msg("row %zu: %d, not %d", i, status, rows[i].status);
        assert_non_null(why);
        free(copy);
    }
}

static void bounds_heads_and_targets(void **state) {
    (void)state;
    size_t n = 64 * 1024;
    char *big = malloc(n);
    memset(big, 'a', n);
    memcpy(big, "GET /", 5);
    assert_int_equal(pd_head_too_long(big, 8000), 0);
    assert_int_equal(pd_head_too_long(big, 9000), 414);
    memcpy(big, "GET / HTTP/1.1\r\nX: ", 19);
    assert_int_equal(pd_head_too_long(big, 9000), 0);
    assert_int_equal(pd_head_too_long(big, PD_MAX_HEAD_BYTES + 1), 431);
    /* complete, but over a limit */
    struct pd_head h;
    const char *why;
    memset(big, 'a', n);
    memcpy(big, "GET /", 5);
    memcpy(big + 8300, " HTTP/1.1\r\nHost: a\r\n\r\n", 22);
    assert_int_equal(pd_head_parse(big, 8322, &h, &why), 414);
    size_t at = (size_t)snprintf(big, n, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < PD_MAX_HEADERS; i++) at += (size_t)snprintf(big + at, n - at, "X-%d: 1\r\n", i);
    at += (size_t)snprintf(big + at, n - at, "\r\n");
    assert_int_equal(pd_head_parse(big, at, &h, &why), 431);
    free(big);
}

static void knows_at_the_first_byte_what_is_no_http(void **state) {
    (void)state;
    assert_true(pd_head_is_none("\x16\x03\x01", 3)); /* TLS */
    assert_true(pd_head_is_none("\r\n\x16", 3));
    assert_true(pd_head_is_none("{\"a\"", 4));
    assert_true(pd_head_is_none(" GET", 4));
    static const char *const may_be[] = { "", "\r", "\r\n", "\n", "G", "\r\nP", "\r\n\r" };
    for (size_t i = 0; i < sizeof may_be / sizeof *may_be; i++) assert_false(pd_head_is_none(may_be[i], strlen(may_be[i])));
}

static void refuses_a_nul(void **state) {
    (void)state;
    char text[] = "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n";
    struct pd_head h;
    const char *why;
    assert_int_equal(pd_head_parse(text, sizeof text - 1, &h, &why), 400);
}

static void decodes_percent_escapes(void **state) {
    (void)state;
    static const struct {
        const char *in, *out; /* NULL = refused */
    } rows[] = { { "a", "a" }, { "a%2Fb%3ac", "a/b:c" }, { "%25", "%" }, { "", "" }, { "%C3%A4", "\xc3\xa4" }, { "a%", NULL }, { "a%2", NULL }, { "%zz", NULL }, { "%00", NULL }, { "%2525", "%25" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[32];
        strcpy(text, rows[i].in);
        bool ok = pd_percent_decode(text);
        assert_int_equal(ok, rows[i].out != NULL);
        if (ok) assert_string_equal(text, rows[i].out);
    }
}

/* Feeds `text` in pieces of random sizes; returns the payload's length or -1 when it is broken or unfinished. */
static long unchunk(const char *text, size_t n, char *out, struct fo_rng *rng, size_t *ret_used) {
    struct pd_chunks c = { 0 };
    size_t len = 0, at = 0;
    while (at < n && c.state != PD_CH_DONE) {
        char piece[64];
        size_t k = 1 + fo_rng_u64(rng) % 40, used;
        if (k > n - at) k = n - at;
        memcpy(piece, text + at, k);
        size_t got = pd_chunks_feed(&c, piece, k, &used);
        if (c.state == PD_CH_BAD) return -1;
        memcpy(out + len, piece, got);
        len += got;
        at += used;
    }
    *ret_used = at;
    return c.state == PD_CH_DONE ? (long)len : -1;
}

static void joins_chunks_however_they_are_split(void **state) {
    (void)state;
    static const char text[] = "5\r\nhello\r\n1;ext=1\r\n \r\n00006\r\nworld!\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET / next";
    struct fo_rng rng;
    fo_rng_seed(&rng, 1);
    for (int i = 0; i < 500; i++) {
        char out[128];
        size_t used;
        long n = unchunk(text, sizeof text - 1, out, &rng, &used);
        assert_int_equal(n, 22);
        assert_memory_equal(out, "hello world!0123456789", 22);
        assert_int_equal(used, sizeof text - 1 - 10);
    }
}

static void refuses_broken_chunks(void **state) {
    (void)state;
    static const char *const rows[] = { "x\r\n", "\r\n", "5\nhello\r\n0\r\n\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhelloX\r\n", "-1\r\n", "0x5\r\nhello\r\n", "1000000000000000\r\n", "5 \r\nhello\r\n", "5\r\rhello", "0\r\nA: b\n\r\n", "5;a\nb\r\nhello\r\n0\r\n\r\n" };
    struct fo_rng rng;
    fo_rng_seed(&rng, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[128];
        size_t used;
        if (unchunk(rows[i], strlen(rows[i]), out, &rng, &used) >= 0) fail_msg("row %zu is taken", i);
    }
}

/* Any bytes: no crash, no step outside, and a status for each. */
static void survives_mutants(void **state) {
    (void)state;
    static const char text[] = "POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: keep-alive\r\n\r\n";
    struct fo_rng rng;
    fo_rng_seed(&rng, 3);
    for (int i = 0; i < 20000; i++) {
        char m[sizeof text];
        memcpy(m, text, sizeof text);
        for (uint64_t k = 1 + fo_rng_u64(&rng) % 4; k > 0; k--) {
            static const char spice[] = "\r\n :\0\t%?/HC0";
            uint64_t r = fo_rng_u64(&rng);
            m[r % (sizeof text - 1)] = r & (1u << 20) ? spice[(r >> 24) % (sizeof spice - 1)] : (char)(r >> 32);
        }
        size_t end = pd_head_end(m, sizeof text - 1);
        if (!end) continue;
        struct pd_head h;
        const char *why = NULL;
        char *copy;
        int status = parse(m, end, &copy, &h, &why);
        assert_true(status == 0 || (status >= 400 && status <= 505 && why));
        free(copy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_head),
        cmocka_unit_test(takes_the_absolute_form),
        cmocka_unit_test(the_host_of_an_absolute_target_stands_in_for_the_header),
        cmocka_unit_test(knows_when_a_connection_stays),
        cmocka_unit_test(refuses_what_two_parties_could_read_differently),
        cmocka_unit_test(bounds_heads_and_targets),
        cmocka_unit_test(knows_at_the_first_byte_what_is_no_http),
        cmocka_unit_test(refuses_a_nul),
        cmocka_unit_test(decodes_percent_escapes),
        cmocka_unit_test(joins_chunks_however_they_are_split),
        cmocka_unit_test(refuses_broken_chunks),
        cmocka_unit_test(survives_mutants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
