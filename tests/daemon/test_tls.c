/* TLS and the wire over a pair of sockets, with OpenSSL's own client at the other end; certificates that cannot be used; and watching the
 * files they come from. */
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/tls.h"
#include "daemon/watch.h"
#include "daemon/wire.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "tests/support/alloc.h"

static struct pem {
    char cert[4096], key[4096];
} one, two;

static void to_text(BIO *b, char out[4096]) {
    int n = BIO_read(b, out, 4095);
    assert_true(n > 0);
    out[n] = '\0';
    BIO_free(b);
}

static void make_pem(struct pem *p) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_set_pubkey(x, key);
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    BIO *b = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(b, x);
    to_text(b, p->cert);
    b = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL);
    to_text(b, p->key);
    X509_free(x);
    EVP_PKEY_free(key);
}

static int set(struct pd_tls *t, const char *cert, const char *key, struct fo_err *e) {
    struct pd_tls_about about;
    const struct pd_tls_pem pem = { .cert_file = "CERT", .cert = cert, .n_cert = strlen(cert), .key_file = "KEY", .key = key, .n_key = strlen(key) };
    int code = pd_tls_set(t, &pem, &about, e);
    if (code == FO_OK) assert_true(strstr(about.subject, "CN=test") && about.until > time(NULL) + 3000 && about.until < time(NULL) + 4000);
    return code;
}

static int set_up(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    make_pem(&one);
    make_pem(&two);
    return 0;
}

/* A server's end of a pair, and a client that shakes hands with it from a thread of its own. */
struct both {
    struct pd_tls *tls;
    struct pd_wire wire;
    SSL_CTX *ctx;
    SSL *client;
    int fd; /* the client's */
    pthread_t thread;
    int rc;
};

static void *shake(void *arg) {
    struct both *b = arg;
    b->rc = SSL_connect(b->client);
    return NULL;
}

static void pair_up(struct both *b) {
    struct fo_err e;
    int fds[2];
    memset(b, 0, sizeof *b);
    assert_int_equal(pd_tls_new(&b->tls, &e), FO_OK);
    assert_int_equal(set(b->tls, one.cert, one.key, &e), FO_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    b->wire.fd = fds[0];
    b->fd = fds[1];
    b->ctx = SSL_CTX_new(TLS_client_method());
    b->client = SSL_new(b->ctx);
    SSL_set_fd(b->client, b->fd);
}

static void meet(struct both *b) {
    pthread_create(&b->thread, NULL, shake, b);
    assert_int_equal(pd_wire_begin(&b->wire, b->tls, fo_now_ms() + 10000), PD_WIRE_BEGUN);
    pthread_join(b->thread, NULL);
    assert_int_equal(b->rc, 1);
}

static void part(struct both *b) {
    SSL_free(b->client);
    SSL_CTX_free(b->ctx);
    pd_wire_done(&b->wire);
    close(b->wire.fd);
    if (b->fd >= 0) close(b->fd);
    pd_tls_free(b->tls);
}

static void carries_bytes_both_ways(void **state) {
    (void)state;
    struct both b;
    char got[16], *big = malloc(100000), *back = malloc(100000);
    pair_up(&b);
    meet(&b);
    assert_int_equal(SSL_write(b.client, "hello", 5), 5);
    assert_int_equal(pd_wire_read(&b.wire, got, sizeof got, fo_now_ms() + 5000), 5);
    assert_memory_equal(got, "hello", 5);
    assert_int_equal(pd_wire_read(&b.wire, got, sizeof got, fo_now_ms() + 20), PD_WIRE_TIMEOUT);
    /* a new certificate is for others: this connection goes on */
    struct fo_err e;
    assert_int_equal(set(b.tls, two.cert, two.key, &e), FO_OK);
    memset(big, 'x', 100000);
    assert_true(pd_wire_write(&b.wire, big, 50000, 5000)); /* as much as the socket holds */
    for (int n = 0; n < 50000;) {
        int k = SSL_read(b.client, back + n, 50000 - n);
        assert_true(k > 0);
        n += k;
    }
    assert_memory_equal(back, big, 50000);
    /* nobody reads: the deadline of each pause */
    uint64_t start = fo_now_ms();
    bool ok = true;
    for (int i = 0; i < 100 && ok; i++) ok = pd_wire_write(&b.wire, big, 100000, 50);
    assert_false(ok);
    assert_true(fo_now_ms() - start < 5000);
    free(big);
    free(back);
    part(&b);
}

static void notices_a_goodbye_and_loses_no_bytes_before_it(void **state) {
    (void)state;
    struct both b;
    char got[16];
    pair_up(&b);
    meet(&b);
    assert_false(pd_wire_gone(&b.wire));
    SSL_write(b.client, "next", 4);
    assert_false(pd_wire_gone(&b.wire));
    SSL_shutdown(b.client); /* the connection stays open */
    assert_false(pd_wire_gone(&b.wire)); /* what it asked before comes first */
    assert_int_equal(pd_wire_read(&b.wire, got, sizeof got, fo_now_ms() + 5000), 4);
    assert_memory_equal(got, "next", 4);
    assert_true(pd_wire_gone(&b.wire));
    assert_int_equal(pd_wire_read(&b.wire, got, sizeof got, fo_now_ms() + 5000), PD_WIRE_EOF);
    part(&b);
    /* and one that closes without a word of TLS, with bytes unread */
    pair_up(&b);
    meet(&b);
    SSL_write(b.client, "next", 4);
    close(b.fd);
    b.fd = -1;
    assert_true(pd_wire_gone(&b.wire));
    part(&b);
}

static void a_client_is_told_that_nothing_follows(void **state) {
    (void)state;
    struct both b;
    char got[16];
    pair_up(&b);
    meet(&b);
    assert_true(pd_wire_write(&b.wire, "bye", 3, 1000));
    pd_wire_linger(&b.wire, 20);
    assert_int_equal(SSL_read(b.client, got, sizeof got), 3);
    int rc = SSL_read(b.client, got, sizeof got);
    assert_int_equal(SSL_get_error(b.client, rc), SSL_ERROR_ZERO_RETURN);
    part(&b);
}

static void handshakes_that_come_to_nothing_end_in_time(void **state) {
    (void)state;
    static const char *const starts[] = { "", "\x16\x03\x01", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" };
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        struct both b;
        pair_up(&b);
        if (*starts[i]) assert_true(send(b.fd, starts[i], i == 1 ? 3 : 11, 0) > 0);
        uint64_t start = fo_now_ms();
        assert_int_equal(pd_wire_begin(&b.wire, b.tls, start + 60), PD_WIRE_FAILED);
        assert_true(fo_now_ms() - start >= 60 && fo_now_ms() - start < 3000);
        part(&b);
    }
    /* noise, a client that leaves, and no certificate at all: at once */
    for (int i = 0; i < 3; i++) {
        struct both b;
        pair_up(&b);
        if (i == 1) shutdown(b.fd, SHUT_WR);
        else assert_true(send(b.fd, "\x01noise noise noise noise noise", 30, 0) > 0);
        if (i == 2) pd_tls_clear(b.tls);
        assert_int_equal(pd_tls_on(b.tls), i != 2);
        assert_int_equal(pd_wire_begin(&b.wire, b.tls, fo_now_ms() + 60000), PD_WIRE_FAILED);
        pd_wire_linger(&b.wire, 0); /* of what never began, nothing is said */
        part(&b);
    }
}

static void http_in_the_clear_is_left_to_be_read(void **state) {
    (void)state;
    struct both b;
    char got[16];
    pair_up(&b);
    assert_int_equal(send(b.fd, "GET / HTTP", 10, 0), 10);
    assert_int_equal(pd_wire_begin(&b.wire, b.tls, fo_now_ms() + 5000), PD_WIRE_PLAIN);
    assert_int_equal(pd_wire_read(&b.wire, got, sizeof got, fo_now_ms() + 5000), 10);
    assert_memory_equal(got, "GET / HTTP", 10);
    part(&b);
}

static void refuses_what_cannot_be_used_and_keeps_what_is_in_force(void **state) {
    (void)state;
    struct pd_tls *t;
    struct fo_err e;
    char chain[9000];
    assert_int_equal(pd_tls_new(&t, &e), FO_OK);
    assert_false(pd_tls_on(t));
    const struct {
        const char *cert, *key, *says[2];
    } rows[] = {
        { "", one.key, { "CERT", "no certificate" } },         { "hello", one.key, { "CERT", "-----BEGIN CERTIFICATE-----" } },
        { one.key, one.key, { "CERT", "swapped" } },           { one.cert, one.cert, { "KEY", "swapped" } },
        { one.cert, "hello", { "KEY", "no private key" } },    { one.cert, two.key, { "CERT", "not the key of the certificate" } },
        { "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", one.key, { "CERT", "no certificate" } },
    };
    for (int in_force = 0; in_force < 2; in_force++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            assert_int_equal(set(t, rows[i].cert, rows[i].key, &e), FO_EFORMAT);
            if (!strstr(e.msg, rows[i].says[0]) || !strstr(e.msg, rows[i].says[1])) fail_msg("row %zu: %s", i, e.msg);
            assert_int_equal(pd_tls_on(t), in_force);
        }
        snprintf(chain, sizeof chain, "%s%s", one.cert, two.cert);
        assert_int_equal(set(t, chain, one.key, &e), FO_OK);
    }
    snprintf(chain, sizeof chain, "%s-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", one.cert);
    assert_int_equal(set(t, chain, one.key, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "behind its first certificate"));
    pd_tls_free(t);
    test_fail_alloc(1);
    assert_int_equal(pd_tls_new(&t, &e), FO_ENOMEM);
    assert_true(test_alloc_failed());
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

/* As if it had been written an hour ago. */
static void age(const char *path, int seconds) {
    struct timespec t[2] = { { .tv_sec = time(NULL) - seconds }, { .tv_sec = time(NULL) - seconds } };
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void a_file_that_changed_is_read_again(void **state) {
    (void)state;
    char path[] = "/tmp/pd-watch-XXXXXX", other[64];
    struct pd_watch w;
    close(mkstemp(path));
    snprintf(other, sizeof other, "%s.new", path);
    put(path, "a");
    pd_watch_mark(&w, path);
    assert_true(w.young && pd_watch_changed(&w, path)); /* may change within the clock's tick */
    w.young = false; /* the change of inode that `age` is, is young too */
    assert_false(pd_watch_changed(&w, path));
    age(path, 3600);
    assert_true(pd_watch_changed(&w, path));
    pd_watch_mark(&w, path);
    w.young = false;
    put(other, "b"); /* the same size under the same name */
    assert_int_equal(rename(other, path), 0);
    assert_true(pd_watch_changed(&w, path));
    pd_watch_mark(&w, path);
    w.young = false;
    assert_int_equal(chmod(path, 0640), 0);
    assert_true(pd_watch_changed(&w, path));
    unlink(path);
    assert_true(pd_watch_changed(&w, path));
    pd_watch_mark(&w, path);
    assert_false(pd_watch_changed(&w, path)); /* still not there */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(carries_bytes_both_ways),
        cmocka_unit_test(notices_a_goodbye_and_loses_no_bytes_before_it),
        cmocka_unit_test(a_client_is_told_that_nothing_follows),
        cmocka_unit_test(handshakes_that_come_to_nothing_end_in_time),
        cmocka_unit_test(http_in_the_clear_is_left_to_be_read),
        cmocka_unit_test(refuses_what_cannot_be_used_and_keeps_what_is_in_force),
        cmocka_unit_test(a_file_that_changed_is_read_again),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
