/* The server over real sockets, with a handler of the test's own: keep-alive, framing, limits, deadlines, and clients that leave. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/http.h"
#include "foundry/base/err.h"

static atomic_int handled, left_early;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

static void nap(int ms) {
    poll(NULL, 0, ms);
}

static bool in_pieces(const struct pd_head *head) {
    return strcmp(head->path, "/pieces") == 0;
}

/* /echo gives the body back, /wait streams a piece every 20 ms until the client leaves (at most 5 s), /big answers 8 MiB, /none
 * does not answer. */
static void handler(void *ctx, struct pd_call *c) {
    (void)ctx;
    atomic_fetch_add(&handled, 1);
    if (strcmp(c->head->path, "/wait") == 0) {
        pd_stream_open(c, 200, "text/plain", NULL);
        for (int i = 0; i < 250; i++) {
            if (pd_client_gone(c) || !pd_stream_write(c, "piece\n", 6)) {
                atomic_fetch_add(&left_early, 1);
                return;
            }
            nap(20);
        }
        pd_stream_close(c);
    } else if (strcmp(c->head->path, "/pieces") == 0) { /* how many bytes, their sum, and how many reads of at most 1000 it took */
        unsigned char piece[1000];
        unsigned long n = 0, sum = 0;
        ptrdiff_t k;
        if (pd_head_get(c->head, "x-unread")) {
            pd_reply(c, 200, "text/plain", NULL, "unread", 6);
            return;
        }
        while ((k = pd_body_read(c, piece, sizeof piece)) > 0)
            for (ptrdiff_t i = 0; i < k; i++) n++, sum += piece[i];
        char text[64];
        if (k < 0) atomic_fetch_add(&left_early, 1);
        else pd_reply(c, 200, "text/plain", NULL, text, (size_t)snprintf(text, sizeof text, "%lu %lu", n, sum));
    } else if (strcmp(c->head->path, "/sized") == 0) {
        pd_stream_open_sized(c, 200, "text/plain", NULL, 18);
        for (int i = 0; i < 3; i++) pd_stream_write(c, "piece\n", 6);
        pd_stream_close(c);
    } else if (strcmp(c->head->path, "/few") == 0) {
        pd_stream_open(c, 200, "text/plain", NULL);
        for (int i = 0; i < 3; i++) pd_stream_write(c, "piece\n", 6);
        pd_stream_close(c);
    } else if (strcmp(c->head->path, "/big") == 0) {
        size_t n = 8 << 20;
        char *p = malloc(n);
        memset(p, 'x', n);
        if (!pd_reply(c, 200, "text/plain", NULL, p, n)) atomic_fetch_add(&left_early, 1);
        free(p);
    } else if (strcmp(c->head->path, "/none") != 0) {
        pd_reply(c, 200, "text/plain", c->draining ? "X-Draining: yes\r\n" : NULL, c->body, c->n_body);
    }
}

struct server {
    struct pd_http *http;
    uint16_t port;
};

static struct server start(uint32_t connections) {
    struct server s = { 0 };
    /* a port that was free a moment ago; another try when somebody else was faster */
    for (int tries = 0; tries < 20 && !s.http; tries++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
        close(fd);
        s.port = ntohs(a.sin_port);
        char text[32];
        snprintf(text, sizeof text, "127.0.0.1:%u", s.port);
        struct pd_http_opts o = { .listen = { .rows = (const char *const[]){ text }, .n_rows = 1 }, .handler = handler, .in_pieces = in_pieces,
                                  .limits = { .body_bytes = 100000, .header_time_ms = 400, .body_idle_ms = 400, .write_idle_ms = 400,
                                              .connections = connections, .connections_per_address = 1 } };
        struct fo_err e;
        if (pd_http_open(&o, &s.http, &e) == FO_OK) assert_int_equal(pd_http_start(s.http, &e), FO_OK);
    }
    assert_non_null(s.http);
    return s;
}

static int dial(const struct server *s) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(s->port) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval t = { .tv_sec = 10 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *text, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0) return; /* the server may have refused already */
        text += k;
        n -= (size_t)k;
    }
}

static void say_text(int fd, const char *text) {
    say(fd, text, strlen(text));
}

/* Reads until the server closes, or until `enough` is in what came. */
static char *hear(int fd, const char *enough) {
    static char buf[1 << 20];
    size_t n = 0;
    for (;;) {
        ssize_t k = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        if (k <= 0) break;
        n += (size_t)k;
        buf[n] = '\0';
        if (enough && strstr(buf, enough)) break;
    }
    buf[n] = '\0';
    return buf;
}

static char *ask(const struct server *s, const char *text, size_t n) {
    int fd = dial(s);
    say(fd, text, n);
    char *answer = hear(fd, NULL);
    close(fd);
    return answer;
}

#define ASK(s, text) ask(s, text, sizeof(text) - 1)

static void assert_refused(const char *answer, const char *status, const char *code) {
    char want[64];
    snprintf(want, sizeof want, "HTTP/1.1 %s ", status);
    if (strncmp(answer, want, strlen(want)) != 0) fail_msg("not %s: %.300s", status, answer);
    assert_non_null(strstr(answer, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(answer, "\r\nx-request-id: req_"));
    assert_non_null(strstr(answer, "\r\nConnection: close\r\n"));
    snprintf(want, sizeof want, "\"code\":\"%s\"", code);
    if (!strstr(answer, want) || !strstr(answer, "{\"error\":{\"message\":\"")) fail_msg("no error object with %s: %s", want, answer);
}

static void keeps_a_connection_for_many_requests(void **state) {
    (void)state;
    struct server s = start(10);
    int fd = dial(&s);
    for (int i = 0; i < 5; i++) {
        static const char text[] = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        say(fd, text, sizeof text - 1);
        assert_non_null(strstr(hear(fd, "hello"), "Content-Length: 5\r\n"));
    }
    assert_int_equal(pd_http_connections(s.http), 1);
    close(fd);
    pd_http_close(s.http);
}

static void answers_pipelined_requests_in_order(void **state) {
    (void)state;
    struct server s = start(10);
    char *a = ASK(&s, "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n"
                      "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo"
                      "POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthree");
    char *one = strstr(a, "\r\n\r\none"), *two = strstr(a, "\r\n\r\ntwo"), *three = strstr(a, "\r\n\r\nthree");
    assert_true(one && two && three && one < two && two < three);
    pd_http_close(s.http);
}

static void reads_a_body_in_any_pieces(void **state) {
    (void)state;
    struct server s = start(10);
    static const char text[] = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    int fd = dial(&s);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        say(fd, text + i, 1);
        if (i % 16 == 0) nap(1);
    }
    assert_non_null(strstr(hear(fd, NULL), "\r\n\r\nhello world"));
    close(fd);
    pd_http_close(s.http);
}

static void says_continue_before_a_body_it_wants(void **state) {
    (void)state;
    struct server s = start(10);
    int fd = dial(&s);
    static const char head[] = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    say(fd, head, sizeof head - 1);
    assert_non_null(strstr(hear(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue"));
    say(fd, "hello", 5);
    assert_non_null(strstr(hear(fd, NULL), "\r\n\r\nhello"));
    close(fd);
    /* and refuses one that it does not want, before it is sent */
    assert_refused(ASK(&s, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n"), "413", "body_too_large");
    pd_http_close(s.http);
}

static void gives_a_body_in_pieces_however_long_it_is(void **state) {
    (void)state;
    struct server s = start(10);
    size_t n = 3 << 20, room = n + 4096; /* thirty times body_bytes */
    char *text = malloc(room), want[64];
    unsigned long sum = 0;
    int at = snprintf(text, room, "PUT /pieces HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
    for (size_t i = 0; i < n; i++) sum += (unsigned char)(text[(size_t)at + i] = (char)(i % 251));
    snprintf(want, sizeof want, "\r\n\r\n%zu %lu", n, sum);
    int fd = dial(&s);
    say(fd, text, (size_t)at + n);
    assert_non_null(strstr(hear(fd, want), want));
    say_text(fd, "PUT /pieces HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nPUT /pieces HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    char *both = hear(fd, NULL); /* the connection goes on, and what came behind a body is the next request's */
    assert_non_null(strstr(both, "5 495"));
    assert_non_null(strstr(both, "\r\n\r\n0 0"));
    close(fd);
    static const char head[] = "PUT /pieces HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    fd = dial(&s);
    say(fd, head, sizeof head - 1);
    assert_non_null(strstr(hear(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue"));
    say(fd, "ab", 2);
    assert_non_null(strstr(hear(fd, NULL), "2 195"));
    close(fd);
    free(text);
    pd_http_close(s.http);
}

static void ends_a_body_in_pieces_that_breaks_off_stalls_or_is_not_read(void **state) {
    (void)state;
    struct server s = start(10);
    atomic_store(&left_early, 0);
    assert_refused(ASK(&s, "PUT /pieces HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"), "408", "request_timeout");
    assert_refused(ASK(&s, "PUT /pieces HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "400", "malformed_request");
    int fd = dial(&s);
    say_text(fd, "PUT /pieces HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
    close(fd);
    for (int i = 0; i < 100 && atomic_load(&left_early) < 3; i++) nap(20);
    assert_int_equal(atomic_load(&left_early), 3);
    char *answer = ASK(&s, "PUT /pieces HTTP/1.1\r\nHost: a\r\nX-Unread: 1\r\nContent-Length: 9\r\n\r\nabcdefghi"); /* ends: its connection is closed */
    assert_non_null(strstr(answer, "Connection: close"));
    assert_non_null(strstr(answer, "\r\n\r\nunread"));
    pd_http_close(s.http);
}

static void streams_what_has_a_length(void **state) {
    (void)state;
    struct server s = start(10);
    int fd = dial(&s);
    say_text(fd, "GET /sized HTTP/1.1\r\nHost: a\r\n\r\nHEAD /sized HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    char *answer = hear(fd, NULL), *second = strstr(answer, "piece\npiece\npiece\nHTTP/1.1 200 OK");
    assert_non_null(strstr(answer, "Content-Length: 18\r\n"));
    assert_null(strstr(answer, "chunked"));
    assert_non_null(second);
    assert_non_null(strstr(second, "Content-Length: 18\r\n"));
    assert_null(strstr(second + 18, "piece"));
    close(fd);
    pd_http_close(s.http);
}

static void refuses_large_bodies_with_a_body(void **state) {
    (void)state;
    struct server s = start(10);
    size_t n = 3 << 20;
    char *big = malloc(n);
    memset(big, 'x', n);
    int at = snprintf(big, n, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", n);
    big[at] = 'x';
    assert_refused(ask(&s, big, n), "413", "body_too_large");
    at = snprintf(big, n, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", (unsigned)n);
    big[at] = 'x';
    assert_refused(ask(&s, big, n), "413", "body_too_large");
    free(big);
    pd_http_close(s.http);
}

static void refuses_large_heads_with_a_body(void **state) {
    (void)state;
    struct server s = start(10);
    size_t n = 200000;
    char *big = malloc(n);
    memset(big, 'x', n);
    memcpy(big, "GET / HTTP/1.1\r\nHost: a\r\nX: ", 28);
    assert_refused(ask(&s, big, n), "431", "headers_too_large");
    memset(big, 'x', n);
    memcpy(big, "GET /", 5);
    assert_refused(ask(&s, big, n), "414", "uri_too_long");
    free(big);
    pd_http_close(s.http);
}

static void refuses_broken_http_with_a_body(void **state) {
    (void)state;
    struct server s = start(10);
    assert_refused(ASK(&s, "GET /\r\n\r\n"), "400", "malformed_request");
    assert_refused(ASK(&s, "GET / HTTP/1.1\nHost: a\n\n"), "400", "malformed_request");
    assert_refused(ASK(&s, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), "400", "malformed_request");
    assert_refused(ASK(&s, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "400", "malformed_request");
    assert_refused(ASK(&s, "GET / HTTP/3.0\r\nHost: a\r\n\r\n"), "505", "http_version");
    /* TLS to a port in the clear: said at once, not when the time for a head is over */
    char *answer = ASK(&s, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    assert_refused(answer, "400", "malformed_request");
    assert_non_null(strstr(answer, "http://"));
    pd_http_close(s.http);
}

static void gives_slow_senders_a_deadline(void **state) {
    (void)state;
    struct server s = start(10);
    int64_t start_ms = now_ms();
    int fd = dial(&s);
    say(fd, "GET / HTTP/1.1\r\nX: ", 19);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    while (now_ms() - start_ms < 5000 && poll(&p, 1, 50) == 0) say(fd, "a", 1); /* a byte every 50 ms: never idle */
    assert_refused(hear(fd, NULL), "408", "request_timeout");
    assert_true(now_ms() - start_ms < 3000);
    close(fd);
    assert_refused(ASK(&s, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"), "408", "request_timeout");
    /* a body whose bytes come steadily, and take for ever */
    start_ms = now_ms();
    fd = dial(&s);
    say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n", 51);
    p.fd = fd;
    while (now_ms() - start_ms < 5000 && poll(&p, 1, 50) == 0) say(fd, "a", 1);
    assert_refused(hear(fd, NULL), "408", "request_timeout");
    assert_true(now_ms() - start_ms < 3000);
    close(fd);
    /* a silent connection is closed without a word */
    fd = dial(&s);
    assert_string_equal(hear(fd, NULL), "");
    close(fd);
    pd_http_close(s.http);
}

static void tells_those_over_the_cap(void **state) {
    (void)state;
    struct server s = start(2);
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    int a = dial(&s), b = dial(&s);
    say(a, text, sizeof text - 1);
    hear(a, "\r\n\r\n");
    say(b, text, sizeof text - 1);
    hear(b, "\r\n\r\n");
    char *refused = ask(&s, text, sizeof text - 1);
    assert_refused(refused, "503", "connection_limit");
    assert_non_null(strstr(refused, "\r\nRetry-After: 1\r\n"));
    assert_int_equal(pd_http_turned_away(s.http), 1);
    close(a);
    /* room again, as soon as the first one's thread has ended */
    int64_t until = now_ms() + 5000;
    while (pd_http_connections(s.http) > 1 && now_ms() < until) nap(5);
    int c = dial(&s);
    say(c, text, sizeof text - 1);
    assert_non_null(strstr(hear(c, "\r\n\r\n"), "HTTP/1.1 200 "));
    close(b);
    close(c);
    pd_http_close(s.http);
}

/* A crowd over the cap, more than have a thread each: every one is told, none is closed without a word. */
static void tells_a_crowd_over_the_cap_too(void **state) {
    (void)state;
    enum { CROWD = 200 };
    struct server s = start(1);
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    int in = dial(&s), fd[CROWD];
    say(in, text, sizeof text - 1);
    hear(in, "\r\n\r\n");
    for (int i = 0; i < CROWD; i++) fd[i] = dial(&s); /* silent: those who have a thread keep it while they are waited for */
    for (int i = 0; i < CROWD; i++) say(fd[i], text, sizeof text - 1);
    for (int i = 0; i < CROWD; i++) {
        assert_refused(hear(fd[i], NULL), "503", "connection_limit");
        close(fd[i]);
    }
    assert_int_equal(pd_http_turned_away(s.http), CROWD);
    close(in);
    pd_http_close(s.http);
}

/* Nor when the process has no descriptor left: the one that is kept for that says so. */
static void tells_whom_it_has_no_descriptor_for(void **state) {
    (void)state;
    struct server s = start(1000);
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    int fd[3], fill[4096], n = 0;
    for (int i = 0; i < 3; i++) fd[i] = socket(AF_INET, SOCK_STREAM, 0);
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)fd[2] + 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (n < 4096 && (fill[n] = dup(fd[0])) >= 0) n++;
    assert_true(n < 4096);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(s.port) };
    struct timeval t = { .tv_sec = 10 };
    for (int i = 0; i < 3; i++) {
        setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        assert_int_equal(connect(fd[i], (struct sockaddr *)&a, sizeof a), 0);
        say(fd[i], text, sizeof text - 1);
        assert_refused(hear(fd[i], NULL), "503", "connection_limit");
    }
    assert_int_equal(pd_http_turned_away(s.http), 3);
    while (n > 0) close(fill[--n]);
    for (int i = 0; i < 3; i++) close(fd[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    char *answer = ASK(&s, "GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_non_null(strstr(answer, "HTTP/1.1 200 "));
    pd_http_close(s.http);
}

/* Every request that `done` hears of, and each before its answer has come. */
static void counts_requests_by_their_answer(void **state) {
    (void)state;
    struct server s = start(10);
    ASK(&s, "GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_int_equal(pd_http_answered(s.http, 2), 1);
    ASK(&s, "GET /\r\n\r\n"); /* broken */
    assert_int_equal(pd_http_answered(s.http, 4), 1);
    ASK(&s, "GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_int_equal(pd_http_answered(s.http, 5), 1);
    int fd = dial(&s); /* leaves in its body, before any answer */
    static const char half[] = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab";
    say(fd, half, sizeof half - 1);
    close(fd);
    for (int64_t until = now_ms() + 5000; pd_http_answered(s.http, 0) == 0 && now_ms() < until;) nap(5);
    assert_int_equal(pd_http_answered(s.http, 0), 1);
    assert_int_equal(pd_http_answered(s.http, 2), 1);
    assert_int_equal(pd_http_turned_away(s.http), 0);
    pd_http_close(s.http);
}

static void notices_a_client_that_leaves(void **state) {
    (void)state;
    struct server s = start(10);
    int before = atomic_load(&left_early), fd = dial(&s);
    say(fd, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", 31);
    hear(fd, "piece");
    close(fd);
    int64_t start_ms = now_ms();
    while (atomic_load(&left_early) == before && now_ms() - start_ms < 3000) nap(5);
    assert_int_equal(atomic_load(&left_early), before + 1);
    assert_true(now_ms() - start_ms < 500);
    /* and one that never reads, by the write deadline */
    fd = dial(&s);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    say(fd, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n", 30);
    start_ms = now_ms();
    while (atomic_load(&left_early) == before + 1 && now_ms() - start_ms < 5000) nap(10);
    assert_int_equal(atomic_load(&left_early), before + 2);
    close(fd);
    pd_http_close(s.http);
}

static void streams_in_chunks_or_to_the_end_of_the_connection(void **state) {
    (void)state;
    struct server s = start(10);
    char *a = ASK(&s, "GET /few HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_non_null(strstr(a, "\r\nTransfer-Encoding: chunked\r\n"));
    assert_non_null(strstr(a, "\r\n\r\n6\r\npiece\n\r\n6\r\npiece\n\r\n6\r\npiece\n\r\n0\r\n\r\n"));
    a = ASK(&s, "GET /few HTTP/1.0\r\n\r\n");
    assert_null(strstr(a, "chunked"));
    assert_non_null(strstr(a, "\r\n\r\npiece\npiece\npiece\n"));
    /* after a stream the connection carries the next request */
    a = ASK(&s, "GET /few HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nnext");
    assert_non_null(strstr(a, "\r\n\r\nnext"));
    pd_http_close(s.http);
}

static void answers_head_without_a_body(void **state) {
    (void)state;
    struct server s = start(10);
    char *a = ASK(&s, "HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
    assert_non_null(strstr(a, "\r\nContent-Length: 5\r\n"));
    assert_string_equal(strstr(a, "\r\n\r\n"), "\r\n\r\n");
    pd_http_close(s.http);
}

static void reports_a_handler_that_does_not_answer(void **state) {
    (void)state;
    struct server s = start(10);
    assert_refused(ASK(&s, "GET /none HTTP/1.1\r\nHost: a\r\n\r\n"), "500", "internal_error");
    pd_http_close(s.http);
}

static void tells_kept_connections_that_it_drains(void **state) {
    (void)state;
    struct server s = start(10);
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    int fd = dial(&s);
    say(fd, text, sizeof text - 1);
    assert_null(strstr(hear(fd, "\r\n\r\n"), "X-Draining"));
    pd_http_drain(s.http);
    say(fd, text, sizeof text - 1);
    char *a = hear(fd, NULL);
    assert_non_null(strstr(a, "X-Draining: yes\r\n"));
    assert_non_null(strstr(a, "Connection: close\r\n"));
    close(fd);
    pd_http_close(s.http);
}

/* A body that is still coming need not be waited for: its request would be refused. And what has come whole is answered before the end. */
static void stops_without_leaving_a_request_unanswered(void **state) {
    (void)state;
    struct server s = start(10);
    static const char half[] = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nab", whole[] = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    int fd[8], uploads = dial(&s);
    say(uploads, half, sizeof half - 1);
    for (int64_t until = now_ms() + 300; pd_http_busy(s.http) == 0 && now_ms() < until;) nap(5);
    pd_http_drain(s.http);
    assert_refused(hear(uploads, NULL), "503", "draining");
    close(uploads);
    for (int i = 0; i < 8; i++) { /* the last ones have not even been accepted */
        fd[i] = dial(&s);
        say(fd[i], whole, sizeof whole - 1);
    }
    pd_http_close(s.http);
    for (int i = 0; i < 8; i++) {
        char *answer = hear(fd[i], NULL);
        if (!strstr(answer, "HTTP/1.1 200 ") || !strstr(answer, "\r\n\r\nhello")) fail_msg("not answered: '%.200s'", answer);
        close(fd[i]);
    }
}

static void closes_while_clients_are_served(void **state) {
    (void)state;
    struct server s = start(100);
    int fds[20];
    for (int i = 0; i < 20; i++) {
        fds[i] = dial(&s);
        say(fds[i], i % 2 ? "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" : "GET / HT", i % 2 ? 31 : 8);
    }
    nap(50);
    int64_t start_ms = now_ms();
    pd_http_close(s.http);
    assert_true(now_ms() - start_ms < 2000);
    for (int i = 0; i < 20; i++) close(fds[i]);
}

static void refuses_an_address_that_it_cannot_have(void **state) {
    (void)state;
    struct server s = start(10);
    char text[32];
    snprintf(text, sizeof text, "127.0.0.1:%u", s.port);
    struct fo_err e;
    struct pd_http *h = NULL;
    struct pd_http_opts o = { .listen = { .rows = (const char *const[]){ text }, .n_rows = 1 }, .limits = { .connections = 1 }, .handler = handler };
    assert_int_equal(pd_http_open(&o, &h, &e), FO_EBUSY);
    assert_non_null(strstr(e.msg, text));
    static const char *const bad[] = { "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:x", "::1:80", "[::1]80", "[::1:80", "127.0.0.1:99999999" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.listen.rows = &bad[i];
        assert_int_equal(pd_http_open(&o, &h, &e), FO_EINVAL);
    }
    assert_null(h);
    pd_http_close(s.http);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_a_connection_for_many_requests),
        cmocka_unit_test(answers_pipelined_requests_in_order),
        cmocka_unit_test(reads_a_body_in_any_pieces),
        cmocka_unit_test(says_continue_before_a_body_it_wants),
        cmocka_unit_test(gives_a_body_in_pieces_however_long_it_is),
        cmocka_unit_test(ends_a_body_in_pieces_that_breaks_off_stalls_or_is_not_read),
        cmocka_unit_test(streams_what_has_a_length),
        cmocka_unit_test(refuses_large_bodies_with_a_body),
        cmocka_unit_test(refuses_large_heads_with_a_body),
        cmocka_unit_test(refuses_broken_http_with_a_body),
        cmocka_unit_test(gives_slow_senders_a_deadline),
        cmocka_unit_test(tells_those_over_the_cap),
        cmocka_unit_test(tells_a_crowd_over_the_cap_too),
        cmocka_unit_test(tells_whom_it_has_no_descriptor_for),
        cmocka_unit_test(counts_requests_by_their_answer),
        cmocka_unit_test(notices_a_client_that_leaves),
        cmocka_unit_test(streams_in_chunks_or_to_the_end_of_the_connection),
        cmocka_unit_test(answers_head_without_a_body),
        cmocka_unit_test(reports_a_handler_that_does_not_answer),
        cmocka_unit_test(tells_kept_connections_that_it_drains),
        cmocka_unit_test(stops_without_leaving_a_request_unanswered),
        cmocka_unit_test(closes_while_clients_are_served),
        cmocka_unit_test(refuses_an_address_that_it_cannot_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
