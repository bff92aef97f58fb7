/* The gate over real sockets: keys that come, go and break while requests run, what a key may have at one time, and what the log says. */
#include <arpa/inet.h>
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/gate.h"
#include "daemon/http.h"
#include "daemon/watch.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "tests/support/alloc.h"

/* sha256 of "secret" and of "other" */
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define OTHER  "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"

static char folder[] = "/tmp/pd-gate-XXXXXX";
static struct pd_app app;
static struct pd_counted_manifest *manifest;
static uint16_t port;
static atomic_int held, let_go;

/* What was logged of requests, newest last. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[64][2048];
static int n_logged;

static void sink(void *ctx, enum fo_log_level level, const char *area, const char *line) {
    (void)ctx, (void)level, (void)area;
    if (!strstr(line, " request=")) return;
    pthread_mutex_lock(&lock);
    snprintf(logged[n_logged++ % 64], sizeof logged[0], "%s", line);
    pthread_mutex_unlock(&lock);
}

/* Whether a line has both texts. */
static bool has(const char *a, const char *b) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 64 && i < n_logged; i++) found = found || (strstr(logged[i], a) && strstr(logged[i], b));
    pthread_mutex_unlock(&lock);
    return found;
}

/* The same, waiting for it: a request is logged after its answer. */
static bool has_logged(const char *a, const char *b) {
    for (int tries = 0; tries < 500 && !has(a, b); tries++) poll(NULL, 0, 10);
    return has(a, b);
}

static void handler(void *ctx, struct pd_call *c) {
    (void)ctx;
    if (strcmp(c->head->path, "/v1/hold") == 0) {
        atomic_fetch_add(&held, 1);
        for (int i = 0; i < 1000 && !atomic_load(&let_go); i++) poll(NULL, 0, 10);
        atomic_fetch_sub(&held, 1);
    }
    snprintf(c->note.model, sizeof c->note.model, "m\"x");
    c->note.polled = strncmp(c->head->path, "/v1/polled", 10) == 0;
    pd_reply(c, strcmp(c->head->path, "/v1/polled/bad") == 0 ? 503 : 200, "text/plain", NULL, c->body, c->n_body);
}

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Writes in place: the inode stays. */
static void put(const char *name, const char *text) {
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(in_folder(name), 0600);
}

static void use(const char *server) {
    char text[512];
    struct cf_report rep;
    struct fo_err e;
    snprintf(text, sizeof text, "version: 1\nserver: { %s }\n", server);
    struct pd_counted_manifest *m = calloc(1, sizeof *m);
    assert_non_null(m);
    atomic_init(&m->refs, 1);
    if (cf_manifest_parse(text, strlen(text), &m->m, &rep, &e)) fail_msg("%s", e.msg);
    cf_report_done(&rep);
    assert_int_equal(pd_gate_use(&app, m, folder, &e), FO_OK);
    pd_counted_manifest_put(manifest);
    manifest = m;
}

static int open_gate(void **state) {
    (void)state;
    struct fo_err e;
    if (!mkdtemp(folder) || pd_app_init(&app, &e) || pd_gate_new(&app.gate, &e)) return -1;
    fo_log_set(sink, NULL, NULL);
    for (int tries = 0; tries < 20 && !app.http; tries++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &len)) return -1;
        close(fd);
        port = ntohs(a.sin_port);
        char text[32];
        snprintf(text, sizeof text, "127.0.0.1:%u", port);
        struct pd_http_opts o = { .listen = { .rows = (const char *const[]){ text }, .n_rows = 1 }, .handler = handler, .admit = pd_gate_admit, .done = pd_gate_done, .ctx = &app,
                                  .limits = { .body_bytes = 100000, .header_time_ms = 5000, .body_idle_ms = 5000, .write_idle_ms = 5000, .connections = 50, .connections_per_address = 50 } };
        if (pd_http_open(&o, &app.http, &e) != FO_OK) app.http = NULL;
    }
    use("insecure: false");
    return app.http && pd_http_start(app.http, &e) == FO_OK ? 0 : -1;
}

static int close_gate(void **state) {
    (void)state;
    pd_http_close(app.http);
    pd_gate_free(app.gate);
    pd_counted_manifest_put(manifest);
    pd_app_done(&app);
    fo_log_set(NULL, NULL, NULL);
    unlink(in_folder("keys"));
    unlink(in_folder("more"));
    return rmdir(folder);
}

static int dial(void) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval t = { .tv_sec = 20 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static const char *hear(int fd) {
    static char buf[8192];
    size_t n = 0;
    for (ssize_t k; n < sizeof buf - 1 && (k = recv(fd, buf + n, sizeof buf - 1 - n, 0)) > 0;) n += (size_t)k;
    buf[n] = '\0';
    return buf;
}

static int begin(const char *method, const char *path, const char *headers, const char *body) {
    char text[1024];
    int fd = dial(), n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, headers, strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    return fd;
}

static const char *ask(const char *method, const char *path, const char *headers, const char *body) {
    int fd = begin(method, path, headers, body);
    const char *answer = hear(fd);
    close(fd);
    return answer;
}

static int status_of(const char *answer) {
    return strncmp(answer, "HTTP/1.1 ", 9) == 0 ? (int)strtol(answer + 9, NULL, 10) : 0;
}

#define SECRET_KEY "Authorization: Bearer secret\r\n"
#define OTHER_KEY  "Authorization: Bearer other\r\n"

static int with(const char *key) {
    return status_of(ask("POST", "/v1/x", key, "{}"));
}

static const struct pd_file_state *keys(void) {
    return pd_gate_keys(app.gate);
}

static void everybody_is_let_in_without_keys(void **state) {
    (void)state;
    use("insecure: false");
    assert_true(keys()->ok);
    assert_string_equal(keys()->reason, "NotConfigured");
    assert_int_equal(with(""), 200);
    assert_int_equal(with("Authorization: Bearer anything\r\n"), 200);
    assert_false(pd_gate_look(&app, true));
}

static void a_key_is_asked_for_and_its_name_is_logged_but_never_the_key(void **state) {
    (void)state;
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys");
    assert_string_equal(keys()->reason, "Accepted");
    assert_string_equal(keys()->message, "1 key");
    const char *a = ask("POST", "/v1/none", "", "{}");
    assert_int_equal(status_of(a), 401);
    assert_non_null(strstr(a, "\r\nWWW-Authenticate: Bearer\r\n"));
    assert_non_null(strstr(a, "\r\nConnection: close\r\n"));
    assert_non_null(strstr(a, "\"code\":\"invalid_api_key\""));
    assert_int_equal(with(OTHER_KEY), 401);
    assert_int_equal(status_of(ask("POST", "/v1/mine?api_key=secret", SECRET_KEY, "{}")), 200);
    assert_true(has_logged("event=answered ", "path=\"/v1/mine\" status=200 key=\"alice\" model=\"m\\\"x\" ms="));
    assert_true(has_logged("event=refused ", "path=\"/v1/none\" status=401 code=invalid_api_key ms="));
    assert_false(has("secret", ""));
}

static void what_is_asked_every_second_is_logged_when_it_is_not_well(void **state) {
    (void)state;
    use("");
    assert_int_equal(status_of(ask("GET", "/v1/polled", "", "")), 200);
    assert_int_equal(status_of(ask("GET", "/v1/polled/bad", "", "")), 503);
    assert_true(has_logged("event=refused ", "path=\"/v1/polled/bad\" status=503"));
    assert_int_equal(status_of(ask("GET", "/v1/after", "", "")), 200);
    assert_true(has_logged("event=answered ", "path=\"/v1/after\" status=200"));
    assert_false(has("event=answered ", "path=\"/v1/polled\""));
}

/* Whoever has no key cannot make the server read a body either. */
static void a_body_is_not_read_before_its_key_is(void **state) {
    (void)state;
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys");
    static const char text[] = "POST /v1/x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 90000\r\n\r\n";
    int fd = dial();
    assert_int_equal(send(fd, text, sizeof text - 1, MSG_NOSIGNAL), sizeof text - 1);
    const char *a = hear(fd);
    assert_int_equal(status_of(a), 401);
    assert_null(strstr(a, "100 Continue"));
    close(fd);
    /* a refusal without a body leaves the connection open */
    static const char two[] = "GET /v1/x HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" SECRET_KEY "\r\n";
    fd = dial();
    assert_int_equal(send(fd, two, sizeof two - 1, MSG_NOSIGNAL), sizeof two - 1);
    a = hear(fd);
    assert_int_equal(status_of(a), 401);
    assert_non_null(strstr(a, "HTTP/1.1 200 OK"));
    close(fd);
}

static void keys_are_changed_while_requests_run(void **state) {
    (void)state;
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys");
    atomic_store(&let_go, 0);
    int fd = begin("POST", "/v1/hold", SECRET_KEY, "kept");
    while (atomic_load(&held) < 1) poll(NULL, 0, 5);
    put("keys", "alice:" OTHER "\n"); /* as long as before, in the same tick perhaps */
    assert_true(pd_gate_look(&app, true));
    assert_int_equal(with(SECRET_KEY), 401);
    assert_int_equal(with(OTHER_KEY), 200);
    atomic_store(&let_go, 1);
    const char *a = hear(fd);
    assert_int_equal(status_of(a), 200);
    assert_non_null(strstr(a, "kept"));
    close(fd);
}

/* Without being told: the look that the loop makes finds it. */
static void a_change_is_found_by_looking(void **state) {
    (void)state;
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys");
    put("keys", "alice:" OTHER "\n");
    bool changed = false;
    for (int i = 0; i < 300 && !changed; i++) {
        changed = pd_gate_look(&app, false);
        poll(NULL, 0, 10);
    }
    assert_true(with(OTHER_KEY) == 200 && with(SECRET_KEY) == 401);
}

static void a_broken_file_keeps_the_keys_before(void **state) {
    (void)state;
    static const char *const broken[] = { "", "alice\n", "alice:" SECRET " x\n", "\n\n#\n" };
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys");
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        put("keys", broken[i]);
        assert_true(pd_gate_look(&app, true));
        assert_false(keys()->ok);
        assert_string_equal(keys()->reason, "Refused");
        assert_non_null(strstr(keys()->message, "the keys before stay in force"));
        assert_false(pd_gate_look(&app, true)); /* and is said once */
        assert_int_equal(with(SECRET_KEY), 200);
        assert_int_equal(with(""), 401);
    }
    unlink(in_folder("keys"));
    assert_true(pd_gate_look(&app, true));
    assert_int_equal(with(SECRET_KEY), 200);
    assert_int_equal(mkdir(in_folder("keys"), 0700), 0);
    assert_true(pd_gate_look(&app, true));
    assert_int_equal(with(SECRET_KEY), 200);
    assert_int_equal(rmdir(in_folder("keys")), 0);
    assert_int_equal(mkfifo(in_folder("keys"), 0600), 0);
    pd_gate_look(&app, true); /* does not wait for a writer */
    assert_int_equal(with(SECRET_KEY), 200);
    unlink(in_folder("keys"));
    put("keys", "bob:" OTHER "\n");
    assert_true(pd_gate_look(&app, true));
    assert_true(keys()->ok);
    assert_true(with(OTHER_KEY) == 200 && with(SECRET_KEY) == 401);
}

static void nobody_is_let_in_while_there_never_were_keys(void **state) {
    (void)state;
    use("insecure: false");
    use("api_keys_file: more");
    assert_false(keys()->ok);
    assert_non_null(strstr(keys()->message, "nobody is let in"));
    const char *a = ask("POST", "/v1/x", SECRET_KEY, "{}");
    assert_int_equal(status_of(a), 503);
    assert_non_null(strstr(a, "\"code\":\"keys_unavailable\""));
    assert_int_equal(status_of(ask("GET", "/health", "", "")), 200);
    put("more", "alice:" SECRET "\n");
    assert_true(pd_gate_look(&app, true));
    assert_int_equal(with(SECRET_KEY), 200);
    /* another file: its keys, not these; and none when the manifest names none */
    put("keys", "alice:" OTHER "\n");
    use("api_keys_file: keys");
    assert_true(with(OTHER_KEY) == 200 && with(SECRET_KEY) == 401);
    use("insecure: false");
    assert_int_equal(with(""), 200);
}

static void a_file_that_others_may_read_is_said(void **state) {
    (void)state;
    put("keys", "alice:" SECRET "\n");
    chmod(in_folder("keys"), 0644);
    use("api_keys_file: keys");
    assert_true(keys()->ok);
    assert_non_null(strstr(keys()->message, "chmod 600"));
    chmod(in_folder("keys"), 0600);
    assert_true(pd_gate_look(&app, true));
    assert_string_equal(keys()->message, "1 key");
}

static void a_key_has_no_more_requests_than_it_may(void **state) {
    (void)state;
    put("keys", "alice:" SECRET " max_concurrent=2\nbob:" OTHER "\n");
    use("api_keys_file: keys");
    atomic_store(&let_go, 0);
    int a = begin("POST", "/v1/hold", SECRET_KEY, ""), b = begin("POST", "/v1/hold", SECRET_KEY, "");
    while (atomic_load(&held) < 2) poll(NULL, 0, 5);
    const char *third = ask("POST", "/v1/x", SECRET_KEY, "{}");
    assert_int_equal(status_of(third), 429);
    assert_non_null(strstr(third, "\r\nRetry-After: 1\r\n"));
    assert_non_null(strstr(third, "\"code\":\"key_limit\""));
    assert_null(strstr(third, "context"));
    assert_int_equal(status_of(ask("GET", "/v1/models", SECRET_KEY, "")), 200); /* reading costs nothing */
    assert_int_equal(with(OTHER_KEY), 200);
    /* the count goes on when the file is read again */
    put("keys", "alice:" SECRET " max_concurrent=3\n");
    assert_true(pd_gate_look(&app, true));
    assert_int_equal(with(SECRET_KEY), 200);
    put("keys", "alice:" SECRET " max_concurrent=1\n");
    assert_true(pd_gate_look(&app, true));
    assert_int_equal(with(SECRET_KEY), 429);
    atomic_store(&let_go, 1);
    assert_int_equal(status_of(hear(a)), 200);
    assert_int_equal(status_of(hear(b)), 200);
    close(a);
    close(b);
    for (int i = 0; i < 20; i++) assert_int_equal(with(SECRET_KEY), 200); /* one after the other is never too many */
}

static void web_pages_of_listed_origins_only(void **state) {
    (void)state;
    static const char preflight[] = "Origin: https://app.example.org\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-stainless-os\r\n";
    use("insecure: false");
    assert_null(strstr(ask("OPTIONS", "/v1/x", preflight, ""), "ccess-Control"));
    const char *a = ask("GET", "/v1/x", "Origin: https://app.example.org\r\n", "");
    assert_true(status_of(a) == 200 && !strstr(a, "ccess-Control") && !strstr(a, "Vary"));
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys, cors_origins: [ \"https://app.example.org\" ]");
    a = ask("OPTIONS", "/v1/x", preflight, "");
    assert_int_equal(status_of(a), 204);
    static const char *const lines[] = { "Access-Control-Allow-Origin: https://app.example.org", "Access-Control-Allow-Methods: GET, HEAD, POST, PUT, DELETE, OPTIONS", "Access-Control-Allow-Headers: authorization,x-stainless-os",
                                         "Vary: Origin" };
    for (size_t i = 0; i < 4; i++) {
        char want[128];
        snprintf(want, sizeof want, "\r\n%s\r\n", lines[i]);
        if (!strstr(a, want)) fail_msg("no %s in %s", lines[i], a);
    }
    a = ask("POST", "/v1/x", "Origin: https://app.example.org\r\n", "{}"); /* a page must be able to read what was wrong */
    assert_true(status_of(a) == 401 && strstr(a, "\r\nAccess-Control-Allow-Origin: https://app.example.org\r\n") && strstr(a, "\r\nAccess-Control-Expose-Headers: x-request-id"));
    a = ask("POST", "/v1/x", "Origin: https://evil.example\r\n" SECRET_KEY, "{}");
    assert_true(status_of(a) == 200 && !strstr(a, "ccess-Control") && strstr(a, "\r\nVary: Origin\r\n"));
    a = ask("OPTIONS", "/v1/x", "Origin: https://app.example.org\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: a:b\r\n", "");
    assert_true(status_of(a) == 204 && !strstr(a, "Access-Control-Allow-Headers"));
}

static void every_request_has_its_line(void **state) {
    (void)state;
    use("insecure: false");
    int fd = dial();
    assert_int_equal(send(fd, "BAD\r\n\r\n", 7, MSG_NOSIGNAL), 7);
    assert_int_equal(status_of(hear(fd)), 400);
    close(fd);
    assert_true(has_logged("event=refused ", "method=\"\" path=\"\" status=400 code=malformed_request"));
    fd = dial();
    static const char half[] = "POST /v1/half HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab";
    assert_int_equal(send(fd, half, sizeof half - 1, MSG_NOSIGNAL), sizeof half - 1);
    close(fd);
    assert_true(has_logged("event=client_left ", "path=\"/v1/half\" status=0 ms="));
}

static void without_memory_the_rules_before_stay(void **state) {
    (void)state;
    struct fo_err e;
    put("keys", "alice:" SECRET "\n");
    use("api_keys_file: keys");
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int code = pd_gate_use(&app, manifest, folder, &e);
        bool failed = test_alloc_failed();
        assert_int_equal(with(""), 401);
        assert_int_equal(with(SECRET_KEY), 200);
        if (!failed) {
            assert_int_equal(code, FO_OK);
            break;
        }
    }
    assert_true(keys()->ok);
    struct pd_gate *g = NULL;
    test_fail_alloc(1);
    assert_int_equal(pd_gate_new(&g, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_is_let_in_without_keys),
        cmocka_unit_test(a_key_is_asked_for_and_its_name_is_logged_but_never_the_key),
        cmocka_unit_test(what_is_asked_every_second_is_logged_when_it_is_not_well),
        cmocka_unit_test(a_body_is_not_read_before_its_key_is),
        cmocka_unit_test(keys_are_changed_while_requests_run),
        cmocka_unit_test(a_change_is_found_by_looking),
        cmocka_unit_test(a_broken_file_keeps_the_keys_before),
        cmocka_unit_test(nobody_is_let_in_while_there_never_were_keys),
        cmocka_unit_test(a_file_that_others_may_read_is_said),
        cmocka_unit_test(a_key_has_no_more_requests_than_it_may),
        cmocka_unit_test(web_pages_of_listed_origins_only),
        cmocka_unit_test(every_request_has_its_line),
        cmocka_unit_test(without_memory_the_rules_before_stay),
    };
    return cmocka_run_group_tests(tests, open_gate, close_gate);
}
