/* See tls.h. OpenSSL does the protocol; what is decided here: versions, ALPN, and that an idle connection holds no record buffers
 * (SSL_MODE_RELEASE_BUFFERS: 16 KiB each way otherwise). */
#include "daemon/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"

struct pd_tls {
    pthread_mutex_t lock; /* guards ctx; pointer work only */
    SSL_CTX *ctx;         /* NULL = none in force */
};

struct pd_tls_conn {
    SSL *ssl;
    bool open, broken; /* open: the handshake is done. broken: nothing may be said any more */
    const char *why;   /* it broke; static storage */
};

int pd_tls_new(struct pd_tls **ret, struct fo_err *e) {
    struct pd_tls *t = calloc(1, sizeof *t);
    if (!t) return fo_fail(e, FO_ENOMEM, "no memory for TLS");
    pthread_mutex_init(&t->lock, NULL);
    *ret = t;
    return FO_OK;
}

static void install(struct pd_tls *t, SSL_CTX *ctx) {
    pthread_mutex_lock(&t->lock);
    SSL_CTX *old = t->ctx;
    t->ctx = ctx;
    pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(old);
}

void pd_tls_free(struct pd_tls *t) {
    if (!t) return;
    SSL_CTX_free(t->ctx);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void pd_tls_clear(struct pd_tls *t) {
    install(t, NULL);
}

bool pd_tls_on(struct pd_tls *t) {
    pthread_mutex_lock(&t->lock);
    bool on = t->ctx != NULL;
    pthread_mutex_unlock(&t->lock);
    return on;
}

/* --- a certificate and its key --- */

/* OpenSSL's word for what it disliked last. */
static const char *reason(void) {
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    return why ? why : "no reason given";
}

static bool has(const char *text, size_t n, const char *what) {
    return memmem(text, n, what, strlen(what)) != NULL;
}

/* Nobody sits at a daemon to type a passphrase. */
static int no_passphrase(char *buf, int size, int writing, void *asked) {
    (void)buf, (void)size, (void)writing;
    *(bool *)asked = true;
    return -1;
}

static int use_chain(SSL_CTX *ctx, const struct pd_tls_pem *pem, BIO *bio, struct pd_tls_about *ret, struct fo_err *e) {
    bool asked = false;
    X509 *x = PEM_read_bio_X509_AUX(bio, NULL, no_passphrase, &asked);
    struct tm tm;
    if (!x)
        return fo_fail(e, FO_EFORMAT, "%s: no certificate in PEM form in it (%s)%s", pem->cert_file, reason(),
                       has(pem->cert, pem->n_cert, "PRIVATE KEY-----") ? "; it has a private key: are 'cert' and 'key' swapped?" : "; it begins with -----BEGIN CERTIFICATE-----");
    X509_NAME_oneline(X509_get_subject_name(x), ret->subject, sizeof ret->subject);
    ret->until = ASN1_TIME_to_tm(X509_get0_notAfter(x), &tm) ? timegm(&tm) : 0;
    bool ok = SSL_CTX_use_certificate(ctx, x) == 1;
    X509_free(x);
    if (!ok) return fo_fail(e, FO_EFORMAT, "%s: the certificate cannot be used (%s)", pem->cert_file, reason());
    while ((x = PEM_read_bio_X509(bio, NULL, no_passphrase, &asked)))
        if (SSL_CTX_add0_chain_cert(ctx, x) != 1) {
            X509_free(x);
            return fo_fail(e, FO_EFORMAT, "%s: a certificate of its chain cannot be used (%s)", pem->cert_file, reason());
        }
    unsigned long last = ERR_peek_last_error();
    if (ERR_GET_LIB(last) != ERR_LIB_PEM || ERR_GET_REASON(last) != PEM_R_NO_START_LINE) return fo_fail(e, FO_EFORMAT, "%s: broken behind its first certificate (%s)", pem->cert_file, reason());
    return FO_OK;
}

static int use_key(SSL_CTX *ctx, const struct pd_tls_pem *pem, BIO *bio, struct fo_err *e) {
    bool asked = false;
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked);
    if (!key && asked) return fo_fail(e, FO_EFORMAT, "%s: the key has a passphrase, which nobody can type at a start; write it without one: openssl pkey -in %s -out NEW", pem->key_file, pem->key_file);
    if (!key)
        return fo_fail(e, FO_EFORMAT, "%s: no private key in PEM form in it (%s)%s", pem->key_file, reason(),
                       has(pem->key, pem->n_key, "-----BEGIN CERTIFICATE-----") ? "; it has a certificate: are 'cert' and 'key' swapped?" : "");
    bool ok = SSL_CTX_use_PrivateKey(ctx, key) == 1 && SSL_CTX_check_private_key(ctx) == 1;
    EVP_PKEY_free(key);
    if (ok) return FO_OK;
    return fo_fail(e, FO_EFORMAT, "%s: not the key of the certificate in %s (%s); the two are made and renewed together", pem->key_file, pem->cert_file, reason());
}

/* HTTP/1.1 is what is spoken; a client that offers none of ours is told so and not answered in a language it does not know. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out, const unsigned char *in, unsigned n_in, void *ctx) {
    static const unsigned char ours[] = "\x08http/1.1\x08http/1.0";
    (void)ssl, (void)ctx;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, n_out, ours, sizeof ours - 1, in, n_in) != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static SSL_CTX *context(void) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); /* clients keep their tickets; we keep nothing */
    SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    return ctx;
}

int pd_tls_set(struct pd_tls *t, const struct pd_tls_pem *pem, struct pd_tls_about *ret, struct fo_err *e) {
    struct pd_tls_about about = { .subject = "" };
    ERR_clear_error();
    SSL_CTX *ctx = context();
    BIO *cert = BIO_new_mem_buf(pem->cert, (int)pem->n_cert), *key = BIO_new_mem_buf(pem->key, (int)pem->n_key);
    int code = ctx && cert && key ? FO_OK : fo_fail(e, FO_ENOMEM, "no memory for TLS");
    if (code == FO_OK) code = use_chain(ctx, pem, cert, &about, e);
    ERR_clear_error();
    if (code == FO_OK) code = use_key(ctx, pem, key, e);
    ERR_clear_error();
    BIO_free(cert);
    BIO_free(key);
    if (code != FO_OK) {
        SSL_CTX_free(ctx);
        return code;
    }
    install(t, ctx);
    *ret = about;
    return FO_OK;
}

/* --- connections --- */

struct pd_tls_conn *pd_tls_conn_new(struct pd_tls *t, int fd) {
    pthread_mutex_lock(&t->lock);
    SSL_CTX *ctx = t->ctx;
    if (ctx) SSL_CTX_up_ref(ctx);
    pthread_mutex_unlock(&t->lock);
    struct pd_tls_conn *c = ctx ? calloc(1, sizeof *c) : NULL;
    if (c) c->ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    if (c && c->ssl && SSL_set_fd(c->ssl, fd) == 1) {
        SSL_set_accept_state(c->ssl);
        return c;
    }
    pd_tls_conn_free(c);
    return NULL;
}

void pd_tls_conn_free(struct pd_tls_conn *c) {
    if (!c) return;
    SSL_free(c->ssl);
    free(c);
}

/* What a call that did not succeed means. */
static int verdict(struct pd_tls_conn *c, int rc, short *ret_events) {
    int why = SSL_get_error(c->ssl, rc);
    *ret_events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return PD_TLS_WAIT;
    if (why == SSL_ERROR_SSL) c->why = reason();
    c->broken = c->broken || why == SSL_ERROR_SSL || why == SSL_ERROR_SYSCALL; /* the library forbids to go on then */
    return PD_TLS_OVER;
}

const char *pd_tls_why(const struct pd_tls_conn *c) {
    return c->why ? c->why : c->broken ? "the client left" : "it took too long";
}

int pd_tls_handshake(struct pd_tls_conn *c, short *ret_events) {
    ERR_clear_error(); /* of this thread's last connection: SSL_get_error would take it for this one's */
    int rc = SSL_do_handshake(c->ssl);
    c->open = rc == 1;
    return rc == 1 ? 1 : verdict(c, rc, ret_events);
}

ssize_t pd_tls_read(struct pd_tls_conn *c, char *buf, size_t n, short *ret_events) {
    size_t got;
    if (c->broken) return PD_TLS_OVER;
    ERR_clear_error();
    int rc = SSL_read_ex(c->ssl, buf, n, &got);
    return rc == 1 ? (ssize_t)got : verdict(c, rc, ret_events);
}

ssize_t pd_tls_write(struct pd_tls_conn *c, const char *bytes, size_t n, short *ret_events) {
    size_t sent;
    if (c->broken) return PD_TLS_OVER;
    ERR_clear_error();
    int rc = SSL_write_ex(c->ssl, bytes, n, &sent);
    return rc == 1 ? (ssize_t)sent : verdict(c, rc, ret_events);
}

bool pd_tls_ended(struct pd_tls_conn *c) {
    char byte;
    size_t got;
    short events;
    if (c->broken) return true;
    ERR_clear_error();
    int rc = SSL_peek_ex(c->ssl, &byte, 1, &got);
    return rc != 1 && verdict(c, rc, &events) == PD_TLS_OVER;
}

void pd_tls_end(struct pd_tls_conn *c) {
    if (c->broken || !c->open) return;
    ERR_clear_error();
    SSL_shutdown(c->ssl);
}
