/* Who may ask: the file of keys as people write it and as nobody should, hosts, origins, and the decision as a table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/access.h"
#include "daemon/oai.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"

/* sha256 of "secret" and of "other" */
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define OTHER  "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"

static struct pd_keys *keys_of(const char *text) {
    struct pd_keys *k = NULL;
    struct fo_err e;
    if (pd_keys_parse("keys", text, strlen(text), &k, &e)) fail_msg("%s", e.msg);
    return k;
}

/* --- the file of keys --- */

static void reads_names_digests_and_words(void **state) {
    (void)state;
    struct pd_keys *k = keys_of("# who may\r\n\n  alice:" SECRET "\t max_concurrent=3  admin priority=high\r\n\t\nbob.x_y-2:D9298A10D1B0735837DC4BD85DAC641B0F3CEF27A47E5D53A54F2F3F5B2FCFFA");
    assert_int_equal(k->n, 2);
    assert_string_equal(k->list[0].name, "alice");
    assert_true(k->list[0].admin);
    assert_int_equal(k->list[0].max_concurrent, 3);
    assert_int_equal(k->list[0].priority, PN_PRIORITY_HIGH);
    assert_int_equal(k->list[1].priority, PN_PRIORITY_NORMAL);
    assert_string_equal(k->list[1].name, "bob.x_y-2");
    assert_false(k->list[1].admin);
    assert_int_equal(k->list[1].max_concurrent, 0);
    assert_ptr_equal(pd_keys_find(k, "secret"), &k->list[0]);
    assert_ptr_equal(pd_keys_find(k, "other"), &k->list[1]);
    pd_keys_put(k);
}

static void finds_no_key_but_its_own(void **state) {
    (void)state;
    struct pd_keys *k = keys_of("alice:" SECRET "\n");
    static const char *const wrong[] = { "", "Secret", "secret ", "secre", "secrett", "alice", SECRET, ("alice:" SECRET) };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (pd_keys_find(k, wrong[i])) fail_msg("'%s' is a key", wrong[i]);
    pd_keys_put(k);
}

static void refuses_what_is_no_file_of_keys_and_says_where(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
    } rows[] = {
        { "", "keys: no key in it" },
        { "# alice:" SECRET "\n\n", "keys: no key in it" },
        { "alice\n", "keys:1: a line is 'name:sha256'" },
        { "\n\n" SECRET "\n", "keys:3: a line is 'name:sha256'" },
        { ":" SECRET, "keys:1: a name begins with" },
        { "-a:" SECRET, "keys:1: a name begins with" },
        { "a b:" SECRET, "keys:1: a name has letters" },
        { "a\x1b[2J:" SECRET, "keys:1: a name has letters" },
        { "\xef\xbb\xbf" "alice:" SECRET, "keys:1: a name has letters" },
        { "a23456789012345678901234567890123456789012345678901234567890123456:" SECRET, "keys:1: a name begins with" },
        { "alice:hunter2", "keys:1: the key of 'alice' must be its SHA-256" },
        { "alice: " SECRET, "keys:1: the key of 'alice' must be its SHA-256" },
        { "alice:" SECRET "0", "keys:1: the key of 'alice' must be its SHA-256" },
        { "alice:" SECRET ",admin", "keys:1: the key of 'alice' must be its SHA-256" },
        { "alice:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25g", "keys:1: the key of 'alice' must be its SHA-256" },
        { "alice:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "keys:1: the digest of 'alice' is that of an empty text" },
        { "alice:" SECRET "  -", "keys:1: after the digest only" },
        { "alice:" SECRET " Admin", "keys:1: after the digest only" },
        { "alice:" SECRET " hunter2", "keys:1: after the digest only" },
        { "alice:" SECRET " admin admin", "keys:1: 'admin' stands here twice" },
        { "alice:" SECRET " max_concurrent", "keys:1: after the digest only" },
        { "alice:" SECRET " max_concurrent=", "keys:1: after the digest only" },
        { "alice:" SECRET " max_concurrent=0", "keys:1: 'max_concurrent' must be 1 to 65536" },
        { "alice:" SECRET " max_concurrent=-1", "keys:1: 'max_concurrent' is not a whole number" },
        { "alice:" SECRET " max_concurrent=65537", "keys:1: 'max_concurrent' must be 1 to 65536" },
        { "alice:" SECRET " max_concurrent=4294967297", "keys:1: 'max_concurrent' must be 1 to 65536" },
        { "alice:" SECRET " priority", "keys:1: after the digest only" },
        { "alice:" SECRET " priority=", "keys:1: 'priority' must be low, normal or high" },
        { "alice:" SECRET " priority=High", "keys:1: 'priority' must be low, normal or high" },
        { "alice:" SECRET " priority=lowest", "keys:1: 'priority' must be low, normal or high" },
        { "alice:" SECRET " priority=low priority=low", "keys:1: 'priority' stands here twice" },
        { "alice:" SECRET " max_concurrent=1 max_concurrent=2", "keys:1: 'max_concurrent' stands here twice" },
        { "alice:" SECRET "\nalice:" OTHER, "keys:2: 'alice' has a key already" },
        { "alice:" SECRET "\nbob:" SECRET, "keys:2: 'alice' and 'bob' have the same key" },
        { "alice:" SECRET "\nbob:" OTHER " x\n", "keys:2: after the digest only" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_keys *k = NULL;
        struct fo_err e;
        assert_int_equal(pd_keys_parse("keys", rows[i].text, strlen(rows[i].text), &k, &e), FO_EFORMAT);
        assert_null(k);
        if (strncmp(e.msg, rows[i].said, strlen(rows[i].said)) != 0) fail_msg("%s: %s", rows[i].text, e.msg);
        if (strstr(e.msg, "hunter2") || strstr(e.msg, "2bb80d")) fail_msg("a message quotes what may be a key: %s", e.msg);
    }
    struct pd_keys *k;
    struct fo_err e;
    assert_int_equal(pd_keys_parse("keys", "a:" SECRET "\0x", 69, &k, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "NUL"));
}

static void takes_a_thousand_keys_and_no_more(void **state) {
    (void)state;
    size_t size = 1001 * 80, n = 0;
    char *text = malloc(size);
    struct pd_keys *k;
    struct fo_err e;
    assert_non_null(text);
    for (int i = 0; i < PD_MAX_KEYS; i++) n += (size_t)snprintf(text + n, size - n, "k%d:%064x\n", i, i + 1);
    assert_int_equal(pd_keys_parse("keys", text, n, &k, &e), FO_OK);
    assert_int_equal(k->n, PD_MAX_KEYS);
    pd_keys_put(k);
    n += (size_t)snprintf(text + n, size - n, "last:%064x\n", PD_MAX_KEYS + 1);
    assert_int_equal(pd_keys_parse("keys", text, n, &k, &e), FO_ELIMIT);
    assert_int_equal(e.need, PD_MAX_KEYS + 1);
    free(text);
}

static void gives_up_without_memory(void **state) {
    (void)state;
    struct pd_keys *k = NULL;
    struct fo_err e;
    static const char text[] = "alice:" SECRET "\n";
    test_fail_alloc(1);
    assert_int_equal(pd_keys_parse("keys", text, sizeof text - 1, &k, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
    assert_null(k);
}

/* --- hosts --- */

static void a_host_is_loopback_the_address_asked_at_or_listed(void **state) {
    (void)state;
    static const char *const hosts[] = { "api.example.org", "192.168.1.4", "[fd00::1]", "fd00::2" };
    static const struct {
        const char *host, *own;
        bool loopback, allowed;
    } rows[] = {
        { "localhost", "", true, true },
        { "LOCALHOST:8080", "", true, true },
        { "localhost.", "", true, true },
        { "127.0.0.1", "", true, true },
        { "127.8.9.1:1", "", true, true },
        { "[::1]", "", true, true },
        { "[::1]:80", "", true, true },
        { "[0:0::1]:80", "", true, true },
        { "api.example.org", "", false, true },
        { "API.example.org.:443", "", false, true },
        { "192.168.1.4:8080", "", false, true },
        { "[fd00::1]:8080", "", false, true },
        { "[fd00:0::2]", "", false, true },
        { "10.0.0.7:8080", "10.0.0.7", false, true },
        { "[fe80:0::7]:8080", "fe80::7", false, true },
        { "10.0.0.8:8080", "10.0.0.7", false, false },
        { "10.0.0.7", "", false, false },
        { "", "", false, false },
        { "", "10.0.0.7", false, false },
        { ":8080", "", false, false },
        { "evil.example", "127.0.0.1", false, false },
        { "localhost.evil.example", "", false, false },
        { "evil.localhost", "", false, false },
        { "127.0.0.1.evil.example", "", false, false },
        { "127.evil.example", "", false, false },
        { "127.1", "", false, false },
        { "127.0.0.1:80@evil.example", "", false, false },
        { "localhost:evil.example", "", false, false },
        { "localhost:80:80", "", false, false },
        { "localhost, evil.example", "", false, false },
        { "[::1].evil.example", "", false, false },
        { "[::1", "", false, false },
        { "[]", "", false, false },
        { "[localhost]", "", false, false },
        { "[127.0.0.1]", "", false, false },
        { "::1", "", false, false },
        { "0.0.0.0", "", false, false },
        { "api.example.org.evil.example", "", false, false },
        { "xapi.example.org", "", false, false },
        { "sub.api.example.org", "", false, false },
    };
    static const char *const any[] = { "*" };
    char longest[400];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (pd_host_is_loopback(rows[i].host) != rows[i].loopback) fail_msg("'%s' as loopback", rows[i].host);
        if (pd_host_allowed(rows[i].host, hosts, 4, rows[i].own) != rows[i].allowed) fail_msg("'%s' at '%s'", rows[i].host, rows[i].own);
        assert_true(pd_host_allowed(rows[i].host, any, 1, ""));
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_false(pd_host_allowed(longest, hosts, 4, ""));
}

/* --- the decision --- */

enum { REMOTE = PD_FROM_REMOTE, LOCAL = PD_FROM_LOOPBACK, SOCKET = PD_FROM_SOCKET, UNIX = PD_FROM_UNIX, OPEN = 0, KEYED = 1, BROKEN = 2 };

struct row {
    int rules; /* OPEN, KEYED, BROKEN */
    int from;
    const char *request; /* "METHOD /path" */
    const char *headers; /* "Name: value\r\n..." */
    int status;          /* 0 = it may go on, 204 = a preflight to answer */
    const char *code, *key;
    bool counted, cors;
};

#define HOST "Host: localhost\r\n"
#define OUT  "Host: api.example.org\r\n"
#define KEY  HOST "Authorization: Bearer secret\r\n"
#define ADM  HOST "Authorization: Bearer other\r\n"
#define PAGE "Origin: https://app.example.org\r\n"
#define EVIL "Origin: https://evil.example\r\n"
#define WEB  "Accept: text/html,*/*;q=0.8\r\n"
#define PRE  "Access-Control-Request-Method: POST\r\n"

static const struct row rows[] = {
    /* without keys: any Authorization, or none */
    { OPEN, LOCAL, "POST /v1/chat/completions", HOST, 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "POST /v1/chat/completions", KEY, 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "POST /v1/chat/completions", HOST "Authorization: Basic x\r\nAuthorization: y\r\n", 0, NULL, NULL, false, false },
    { OPEN, REMOTE, "GET /v1/models", OUT, 0, NULL, NULL, false, false },
    { OPEN, REMOTE, "GET /v1/models", "Host: 10.0.0.7:8080\r\n", 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "GET /health", "", 0, NULL, NULL, false, false },
    /* another name than the server's is a page that bound its own to this address */
    { OPEN, LOCAL, "GET /v1/models", "Host: evil.example\r\n", 403, "host_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "GET /health", "Host: evil.example\r\n", 403, "host_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "POST /v1/completions", "Host: evil.example\r\nOrigin: http://evil.example\r\n", 403, "host_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "OPTIONS /v1/completions", "Host: evil.example\r\n" PAGE PRE, 403, "host_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "GET http://evil.example/health", HOST, 403, "host_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "GET http://localhost/health", "Host: evil.example\r\n", 0, NULL, NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", "Host: evil.example\r\nAuthorization: Bearer secret\r\n", 403, "host_not_allowed", NULL, false, false },
    /* pages of other origins */
    { OPEN, LOCAL, "GET /v1/models", HOST EVIL, 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "POST /v1/completions", HOST EVIL, 403, "origin_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "POST /v1/completions", HOST "Origin: null\r\n", 403, "origin_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "POST /v1/completions", HOST "Origin: http://localhost\r\n", 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "POST /v1/completions", HOST "Origin: http://localhost:1\r\n", 403, "origin_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "POST /v1/completions", HOST PAGE, 0, NULL, NULL, false, true },
    { OPEN, LOCAL, "GET /v1/models", HOST PAGE, 0, NULL, NULL, false, true },
    { OPEN, LOCAL, "POST /v1/completions", HOST "Origin: https://app.example.org.evil.example\r\n", 403, "origin_not_allowed", NULL, false, false },
    { OPEN, LOCAL, "OPTIONS /v1/completions", HOST PAGE PRE, 204, NULL, NULL, false, true },
    { OPEN, LOCAL, "OPTIONS /v1/completions", HOST EVIL PRE, 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "OPTIONS /v1/completions", HOST PAGE, 0, NULL, NULL, false, true },
    { OPEN, LOCAL, "POST /v1/completions", HOST PAGE PRE, 0, NULL, NULL, false, true },
    { OPEN, LOCAL, "OPTIONS /v1/completions", HOST PAGE PRE "Content-Length: 5\r\n", 0, NULL, NULL, false, true },
    /* with keys */
    { KEYED, LOCAL, "POST /v1/chat/completions", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, REMOTE, "GET /v1/models", OUT, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "POST /tokenize", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /metrics", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /nothing", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /health", HOST, 0, NULL, NULL, false, false },
    { KEYED, LOCAL, "HEAD /ready/", HOST, 0, NULL, NULL, false, false },
    { KEYED, LOCAL, "GET /health", HOST "Content-Length: 0\r\n", 0, NULL, NULL, false, false },
    { KEYED, LOCAL, "GET /health", HOST "Content-Length: 5\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /health", HOST "Transfer-Encoding: chunked\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "POST /health", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "OPTIONS /v1/completions", HOST "Content-Length: 5\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "TRACE /health", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /healthy", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /health/../v1/models", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET //health", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "Authorization: Bearer\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "Authorization: Bearer wrong\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "Authorization: secret\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "Authorization: Bearersecret\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "Authorization: Basic secret\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "Authorization: Bearer secret x\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", KEY "Authorization: Bearer secret\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST "authorization:  bEaReR \t secret \r\n", 0, NULL, "alice", false, false },
    { KEYED, REMOTE, "POST /v1/completions", OUT "Authorization: Bearer secret\r\n", 0, NULL, "alice", true, false },
    { KEYED, LOCAL, "GET /v1/models", KEY, 0, NULL, "alice", false, false },
    { KEYED, LOCAL, "POST /v1/completions", ADM, 0, NULL, "root", false, false },
    { KEYED, LOCAL, "POST /v1/completions", KEY EVIL, 0, NULL, "alice", true, false },
    { KEYED, LOCAL, "POST /v1/completions", KEY PAGE, 0, NULL, "alice", true, true },
    { KEYED, LOCAL, "POST /v1/completions", HOST PAGE, 401, "invalid_api_key", NULL, false, true },
    { KEYED, LOCAL, "OPTIONS /v1/completions", HOST PAGE PRE, 204, NULL, NULL, false, true },
    { KEYED, LOCAL, "OPTIONS /v1/completions", HOST, 0, NULL, NULL, false, false },
    /* the page at / asks for the key itself */
    { KEYED, REMOTE, "GET /", OUT WEB, 0, NULL, NULL, false, false },
    { BROKEN, LOCAL, "HEAD /", HOST WEB, 0, NULL, NULL, false, false },
    { KEYED, LOCAL, "GET /", HOST WEB "Content-Length: 5\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /", HOST WEB "Authorization: Bearer wrong\r\n", 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "POST /", HOST WEB, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /v1/models", HOST WEB, 401, "invalid_api_key", NULL, false, false },
    { OPEN, LOCAL, "GET /", "Host: evil.example\r\n" WEB, 403, "host_not_allowed", NULL, false, false },
    { BROKEN, LOCAL, "GET /v1/models", KEY, 503, "keys_unavailable", NULL, false, false },
    { BROKEN, LOCAL, "GET /admin/models", ADM, 503, "keys_unavailable", NULL, false, false },
    { BROKEN, LOCAL, "GET /health", HOST, 0, NULL, NULL, false, false },
    /* administration without keys: plainly from this machine */
    { OPEN, LOCAL, "GET /admin/models", HOST, 0, NULL, NULL, false, false },
    { OPEN, LOCAL, "GET /admin/models", "Host: [::1]:80\r\n", 0, NULL, NULL, false, false },
    { OPEN, REMOTE, "GET /admin/models", HOST, 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "GET /admin/models", OUT, 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "GET /admin/models", "", 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "POST /admin/reconcile", HOST PAGE, 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "OPTIONS /admin/reconcile", HOST PAGE PRE, 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "GET /admin/models", HOST "Forwarded: for=1.2.3.4\r\n", 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "GET /admin/models", HOST "x-FORWARDED-proto: http\r\n", 403, "admin_forbidden", NULL, false, false },
    { OPEN, LOCAL, "GET /administer", HOST EVIL, 403, "admin_forbidden", NULL, false, false },
    /* and with them: a key that may */
    { KEYED, LOCAL, "GET /admin/models", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, LOCAL, "GET /admin/models", KEY, 403, "admin_forbidden", "alice", false, false },
    { KEYED, LOCAL, "POST /admin/reconcile", ADM, 0, NULL, "root", false, false },
    { KEYED, REMOTE, "POST /admin/reconcile", OUT "X-Forwarded-For: 1.2.3.4\r\nAuthorization: Bearer other\r\n", 0, NULL, "root", false, false },
    { KEYED, LOCAL, "OPTIONS /admin/reconcile", HOST PAGE PRE, 0, NULL, NULL, false, false },
    { KEYED, LOCAL, "POST /admin/reconcile", ADM PAGE, 0, NULL, "root", false, false },
    /* the socket: its mode says who */
    { OPEN, UNIX, "POST /admin/reconcile", "Host: evil.example\r\n" EVIL, 0, NULL, NULL, false, false },
    { KEYED, UNIX, "POST /admin/reconcile", "", 0, NULL, NULL, false, false },
    { BROKEN, UNIX, "GET /v1/models", "", 0, NULL, NULL, false, false },
    /* one for requests: as from anywhere */
    { OPEN, SOCKET, "GET /v1/models", HOST, 0, NULL, NULL, false, false },
    { OPEN, SOCKET, "GET /v1/models", "Host: evil.example\r\n", 403, "host_not_allowed", NULL, false, false },
    { OPEN, SOCKET, "GET /admin/models", HOST, 403, "admin_forbidden", NULL, false, false },
    { KEYED, SOCKET, "GET /v1/models", HOST, 401, "invalid_api_key", NULL, false, false },
    { KEYED, SOCKET, "POST /admin/reconcile", ADM, 0, NULL, "root", false, false },
};

static void decides_each_request_as_the_table_says(void **state) {
    (void)state;
    static const char *const hosts[] = { "api.example.org" }, *const origins[] = { "http://localhost:3000", "https://app.example.org" };
    struct pd_keys *keys = keys_of("alice:" SECRET " max_concurrent=2\nroot:" OTHER " admin\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        const struct pd_rules rules = { .keyed = r->rules != OPEN, .keys = r->rules == KEYED ? keys : NULL, .hosts = hosts, .n_hosts = 1, .origins = origins, .n_origins = 2 };
        char text[512];
        const char *why = "";
        struct pd_head head;
        struct pd_asked q;
        struct pd_leave leave;
        struct pd_error x;
        int n = snprintf(text, sizeof text, "%s HTTP/1.%d\r\n%s\r\n", r->request, strstr(r->headers, "Host:") ? 1 : 0, r->headers);
        if (pd_head_parse(text, (size_t)n, &head, &why)) fail_msg("row %zu: %s", i, why);
        pd_asked_of(&head, (enum pd_from)r->from, "10.0.0.7", &q);
        bool ok = pd_access_judge(&rules, &q, &leave, &x);
        int status = !ok ? pd_error_row(x.id)->status : leave.kind == PD_LEAVE_PREFLIGHT ? 204 : 0;
        if (status != r->status) fail_msg("row %zu, %s: %d instead of %d", i, r->request, status, r->status);
        assert_int_equal(leave.kind == PD_LEAVE_REFUSED, !ok);
        if (!ok) assert_string_equal(pd_error_row(x.id)->code, r->code);
        if (!ok) assert_null(strstr(x.message, "secret"));
        if ((leave.key != NULL) != (r->key != NULL) || (r->key && strcmp(leave.key->name, r->key) != 0)) fail_msg("row %zu: the key", i);
        if (leave.counted != r->counted) fail_msg("row %zu: counted", i);
        if ((leave.allow_origin != NULL) != r->cors) fail_msg("row %zu: CORS", i);
        if (r->cors) assert_string_equal(leave.allow_origin, "https://app.example.org");
    }
    pd_keys_put(keys);
}

/* The page at / shows what /admin would answer to the same client, and nothing more. */
static void says_of_every_request_whether_admin_pages_would_be_answered(void **state) {
    (void)state;
    static const char *const hosts[] = { "api.example.org" };
    struct pd_keys *keys = keys_of("alice:" SECRET " max_concurrent=2\nroot:" OTHER " admin\n");
    size_t seen[2] = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct pd_rules rules = { .keyed = rows[i].rules != OPEN, .keys = rows[i].rules == KEYED ? keys : NULL, .hosts = hosts, .n_hosts = 1 };
        struct pd_leave leave[2];
        bool ok[2];
        for (int admin = 0; admin < 2; admin++) {
            char text[512];
            const char *why = "";
            struct pd_head head;
            struct pd_asked q;
            struct pd_error x;
            int n = snprintf(text, sizeof text, "GET %s HTTP/1.%d\r\n%s\r\n", admin ? "/admin/models" : "/", strstr(rows[i].headers, "Host:") ? 1 : 0, rows[i].headers);
            if (pd_head_parse(text, (size_t)n, &head, &why)) fail_msg("row %zu: %s", i, why);
            pd_asked_of(&head, (enum pd_from)rows[i].from, "10.0.0.7", &q);
            ok[admin] = pd_access_judge(&rules, &q, &leave[admin], &x);
        }
        if (!ok[0]) continue;
        if (leave[0].admin != ok[1]) fail_msg("row %zu: %s %s", i, rows[i].request, rows[i].headers);
        seen[ok[1]]++;
    }
    assert_true(seen[0] > 10 && seen[1] > 10);
    pd_keys_put(keys);
}

static void without_origins_nothing_is_said_of_them(void **state) {
    (void)state;
    static const char *const any[] = { "*" };
    struct pd_asked q = { .from = PD_FROM_LOOPBACK, .method = "GET", .path = "/v1/models", .host = "localhost", .own = "", .origin = "https://evil.example" };
    struct pd_leave leave;
    struct pd_error x;
    assert_true(pd_access_judge(&(struct pd_rules){ 0 }, &q, &leave, &x));
    assert_false(leave.vary);
    assert_null(leave.allow_origin);
    assert_true(pd_access_judge(&(struct pd_rules){ .origins = any, .n_origins = 1 }, &q, &leave, &x));
    assert_string_equal(leave.allow_origin, "*");
    q.origin = NULL;
    assert_true(pd_access_judge(&(struct pd_rules){ .origins = any, .n_origins = 1 }, &q, &leave, &x));
    assert_true(leave.vary);
    assert_null(leave.allow_origin);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_names_digests_and_words),
        cmocka_unit_test(finds_no_key_but_its_own),
        cmocka_unit_test(refuses_what_is_no_file_of_keys_and_says_where),
        cmocka_unit_test(takes_a_thousand_keys_and_no_more),
        cmocka_unit_test(gives_up_without_memory),
        cmocka_unit_test(a_host_is_loopback_the_address_asked_at_or_listed),
        cmocka_unit_test(decides_each_request_as_the_table_says),
        cmocka_unit_test(says_of_every_request_whether_admin_pages_would_be_answered),
        cmocka_unit_test(without_origins_nothing_is_said_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
