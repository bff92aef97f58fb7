/* The router in one process: our own HTTP server as its front and as its backends, many clients at once. Meant for ThreadSanitizer and
 * AddressSanitizer too; what real daemons do behind it stands in tests/e2e/test_router*.py. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/hop.h"
#include "daemon/http.h"
#include "daemon/router.h"
#include "daemon/router_pages.h"
#include "daemon/router_probe.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

enum { BACKENDS = 3, CLIENTS = 8, EACH = 40 };

struct backend {
    struct pd_http *http;
    char url[64];
    atomic_int asked, left;  /* requests; those whose client went */
    atomic_int mode;         /* what it does with the next ones */
};
enum { ANSWER, REFUSE, HOLD };

static struct backend backends[BACKENDS];
static struct pd_router *router;
static struct pd_probes *probes;
static struct pd_lanes front; /* to the router */
static char front_url[64];

static void sink(void *ctx, enum fo_log_level level, const char *area, const char *line) {
    (void)ctx, (void)level, (void)area, (void)line;
}

static void reply(struct pd_call *c, int status, const char *headers, const char *text) {
    pd_reply(c, status, "application/json", headers, text, strlen(text));
}

static void stream(struct pd_call *c) {
    char event[64];
    pd_stream_open(c, 200, "text/event-stream", NULL);
    for (int i = 0; i < 5; i++) {
        int n = snprintf(event, sizeof event, "data: {\"n\":%d}\n\n", i);
        pd_stream_write(c, event, (size_t)n / 2); /* in two pieces */
        pd_stream_write(c, event + n / 2, (size_t)n - (size_t)n / 2);
    }
    pd_stream_write(c, "data: [DONE]\n\n", 14);
    pd_stream_close(c);
}

static void backend_handler(void *ctx, struct pd_call *c) {
    struct backend *b = ctx;
    if (strcmp(c->head->path, "/ready") == 0) reply(c, 200, NULL, "{}");
    else if (strcmp(c->head->path, "/v1/models") == 0) reply(c, 200, NULL, "{\"data\":[{\"id\":\"m\",\"max_concurrent\":4}]}");
    else {
        atomic_fetch_add(&b->asked, 1);
        if (atomic_load(&b->mode) == REFUSE) {
            reply(c, 429, "Retry-After: 4\r\n", "{\"error\":{}}");
        } else if (atomic_load(&b->mode) == HOLD) {
            while (!pd_client_gone(c)) poll(NULL, 0, 5);
            atomic_fetch_add(&b->left, 1);
        } else if (strstr(c->body, "stream")) {
            stream(c);
        } else {
            pd_reply(c, 200, "application/json", "X-Mine: 1\r\n", c->body, c->n_body);
        }
    }
}

/* A server of ours at a port that is free. */
static struct pd_http *open_at(char *url, size_t size, pd_http_handler *handler, void *ctx) {
    struct fo_err e;
    struct pd_http *h = NULL;
    for (int tries = 0; tries < 20 && !h; tries++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &len)) fail_msg("no port");
        close(fd);
        snprintf(url, size, "http://127.0.0.1:%u", ntohs(a.sin_port));
        struct pd_http_opts o = { .listen = { .rows = (const char *const[]){ url + 7 }, .n_rows = 1 }, .handler = handler, .ctx = ctx,
                                  .limits = { .body_bytes = 1 << 20, .header_time_ms = 20000, .body_idle_ms = 20000, .write_idle_ms = 20000, .connections = 100, .connections_per_address = 100 } };
        if (pd_http_open(&o, &h, &e) != FO_OK) h = NULL;
    }
    if (!h || pd_http_start(h, &e)) fail_msg("no server");
    return h;
}

static size_t up(void) {
    size_t n = 0;
    pthread_mutex_lock(&router->lock);
    for (size_t i = 0; i < router->n; i++) n += router->list[i].health.state == PD_HEALTH_UP;
    pthread_mutex_unlock(&router->lock);
    return n;
}

static int open_all(void **state) {
    (void)state;
    struct fo_err e;
    const char *urls[BACKENDS];
    signal(SIGPIPE, SIG_IGN);
    fo_log_set(sink, NULL, NULL);
    if (pd_hop_init(&e)) return -1;
    for (int i = 0; i < BACKENDS; i++) {
        memset(&backends[i], 0, sizeof backends[i]);
        backends[i].http = open_at(backends[i].url, sizeof backends[i].url, backend_handler, &backends[i]);
        urls[i] = backends[i].url;
    }
    struct pd_router_opts o = { .backends = urls, .n_backends = BACKENDS, .connect_ms = 10000, .head_ms = 20000, .idle_ms = 20000 };
    if (pd_router_new(&o, &router, &e) || pd_probes_start(router, &probes, &e)) return -1;
    router->app.http = open_at(front_url, sizeof front_url, pd_router_dispatch, router);
    pd_lanes_init(&front, front_url, NULL);
    for (int i = 0; i < 2000 && up() < BACKENDS; i++) poll(NULL, 0, 10);
    return up() == BACKENDS ? 0 : -1;
}

static int close_all(void **state) {
    (void)state;
    pd_lanes_done(&front);
    pd_http_close(router->app.http);
    pd_probes_stop(probes);
    pd_router_free(router);
    for (int i = 0; i < BACKENDS; i++) pd_http_close(backends[i].http);
    return 0;
}

/* --- a client, which is a hop too --- */

struct got {
    int status;
    char lines[2048];
    struct fo_buf body;
    atomic_bool stop;
};

static bool take_head(void *ctx, int status, const char *lines, size_t n) {
    struct got *g = ctx;
    g->status = status;
    snprintf(g->lines, sizeof g->lines, "%.*s", (int)n, lines);
    return true;
}

static bool take_bytes(void *ctx, const char *bytes, size_t n) {
    return fo_buf_append(&((struct got *)ctx)->body, bytes, n);
}

static bool go_on(void *ctx) {
    return !atomic_load(&((struct got *)ctx)->stop);
}

static enum pd_hop_end ask(struct got *g, const char *body) {
    char why[PD_HOP_WHY];
    struct pd_hop h = { .method = "POST", .path = "/v1/chat/completions", .lines = "", .body = body, .n_body = strlen(body), .connect_ms = 10000, .head_ms = 30000, .idle_ms = 30000,
                        .head = take_head, .bytes = take_bytes, .go_on = go_on, .ctx = g };
    g->status = 0;
    fo_buf_init(&g->body, 1 << 20);
    return pd_hop_run(&front, &h, why);
}

/* --- tests --- */

static void *client(void *arg) {
    int *wrong = arg;
    for (int i = 0; i < EACH; i++) {
        struct got g = { 0 };
        char body[200];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":\"%d of %p\"%s}", i, arg, i % 2 ? ",\"stream\":true" : "");
        enum pd_hop_end end = ask(&g, body);
        bool ok = end == PD_HOP_DONE && g.status == 200;
        if (i % 2) ok = ok && strcmp(fo_buf_str(&g.body), "data: {\"n\":0}\n\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: {\"n\":3}\n\ndata: {\"n\":4}\n\ndata: [DONE]\n\n") == 0;
        else ok = ok && strcmp(fo_buf_str(&g.body), body) == 0 && strstr(g.lines, "X-Mine: 1");
        *wrong += !ok;
        fo_buf_done(&g.body);
    }
    return NULL;
}

static void many_clients_get_their_own_answers_while_a_backend_refuses(void **state) {
    (void)state;
    pthread_t t[CLIENTS];
    int wrong[CLIENTS] = { 0 }, asked = 0;
    for (int i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&t[i], NULL, client, &wrong[i]), 0);
    for (int i = 0; i < 10; i++) { /* it comes and goes */
        atomic_store(&backends[1].mode, i % 2 ? ANSWER : REFUSE);
        poll(NULL, 0, 10);
    }
    atomic_store(&backends[1].mode, ANSWER);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(wrong[i], 0);
    }
    for (int i = 0; i < BACKENDS; i++) {
        assert_int_not_equal(atomic_load(&backends[i].asked), 0);
        asked += atomic_load(&backends[i].asked);
    }
    assert_true(asked >= CLIENTS * EACH);
    for (int i = 0; i < BACKENDS; i++) assert_int_equal(router->list[i].load, 0);
}

static void a_refusal_passes_when_all_refuse(void **state) {
    (void)state;
    struct got g = { 0 };
    int before = 0, after = 0;
    for (int i = 0; i < BACKENDS; i++) {
        before += atomic_load(&backends[i].asked);
        atomic_store(&backends[i].mode, REFUSE);
    }
    assert_int_equal(ask(&g, "{\"model\":\"m\"}"), PD_HOP_DONE);
    for (int i = 0; i < BACKENDS; i++) {
        after += atomic_load(&backends[i].asked);
        atomic_store(&backends[i].mode, ANSWER);
    }
    assert_int_equal(g.status, 429);
    assert_non_null(strstr(g.lines, "Retry-After: 4"));
    assert_int_equal(after - before, BACKENDS); /* each was asked, once */
    fo_buf_done(&g.body);
}

static void *leaver(void *arg) {
    ask(arg, "{\"model\":\"m\"}");
    fo_buf_done(&((struct got *)arg)->body);
    return NULL;
}

static void who_leaves_is_left(void **state) {
    (void)state;
    pthread_t t;
    struct got g = { 0 };
    int left = 0;
    for (int i = 0; i < BACKENDS; i++) atomic_store(&backends[i].mode, HOLD);
    assert_int_equal(pthread_create(&t, NULL, leaver, &g), 0);
    for (int i = 0, n = 0; i < 1000 && !n; i++, poll(NULL, 0, 10)) {
        pthread_mutex_lock(&router->lock);
        for (int k = 0; k < BACKENDS; k++) n += (int)router->list[k].load;
        pthread_mutex_unlock(&router->lock);
    }
    atomic_store(&g.stop, true);
    pthread_join(t, NULL);
    for (int i = 0; i < 1000 && !left; i++, poll(NULL, 0, 10))
        for (int k = 0; k < BACKENDS; k++) left += atomic_load(&backends[k].left);
    assert_int_equal(left, 1);
    for (int i = 0; i < BACKENDS; i++) atomic_store(&backends[i].mode, ANSWER);
}

static void a_backend_that_goes_is_gone_for_nobody(void **state) {
    (void)state;
    pd_http_close(backends[2].http);
    backends[2].http = NULL;
    for (int i = 0; i < 30; i++) {
        struct got g = { 0 };
        char body[64];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":\"%d\"}", i);
        assert_int_equal(ask(&g, body), PD_HOP_DONE);
        assert_int_equal(g.status, 200);
        fo_buf_done(&g.body);
    }
    assert_int_equal(up(), BACKENDS - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_clients_get_their_own_answers_while_a_backend_refuses),
        cmocka_unit_test(a_refusal_passes_when_all_refuse),
        cmocka_unit_test(who_leaves_is_left),
        cmocka_unit_test(a_backend_that_goes_is_gone_for_nobody),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
