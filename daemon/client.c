/* See client.h. */
#include "daemon/client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { MAX_ANSWER = 64 << 20, MAX_LINE = 8 << 20 };

struct sink {
    CURL *curl;
    struct fo_buf *out, line;
    pd_client_line *fn;
    void *ctx;
    bool stopped;
};

static size_t receive(char *data, size_t one, size_t n, void *ctx) {
    struct sink *s = ctx;
    long status = 0;
    size_t bytes = one * n;
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &status);
    if (!s->fn || status != 200) return fo_buf_append(s->out, data, bytes) ? bytes : 0;
    for (const char *p = data, *end = data + bytes; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        if (!fo_buf_append(&s->line, p, (size_t)((nl ? nl : end) - p))) return 0;
        if (!nl) break;
        if (s->line.len && !s->fn(s->ctx, s->line.data, s->line.len)) {
            s->stopped = true;
            return 0;
        }
        fo_buf_clear(&s->line);
        p = nl + 1;
    }
    return bytes;
}

int pd_client_call(const struct pd_client *c, const char *method, const char *path, pd_client_line *line, void *ctx, long *ret_status, struct fo_buf *out,
                   struct fo_err *e) {
    char url[2048], why[CURL_ERROR_SIZE] = "";
    const char *ca = getenv("SSL_CERT_FILE"); /* as curl itself and OpenSSL's programs take it */
    const char *where = c->socket ? c->socket : c->url, *base = c->socket ? "http://localhost" : c->url;
    size_t n = strlen(base);
    while (n && base[n - 1] == '/') n--;
    if (snprintf(url, sizeof url, "%.*s%s", (int)n, base, path) >= (int)sizeof url) return fo_fail(e, FO_EINVAL, "%s: the address is too long", where);
    CURL *curl = curl_easy_init();
    if (!curl) return fo_fail(e, FO_ENOMEM, "no memory for a connection");
    struct sink s = { .curl = curl, .out = out, .fn = line, .ctx = ctx };
    fo_buf_init(&s.line, MAX_LINE);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    if (c->socket) curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, c->socket);
    if (c->key && *c->key) {
        curl_easy_setopt(curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, c->key);
    }
    if (ca && *ca) curl_easy_setopt(curl, CURLOPT_CAINFO, ca);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    if (strcmp(method, "POST") == 0) curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)c->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &s);
    CURLcode rc = curl_easy_perform(curl);
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    long os_errno = 0;
    curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &os_errno);
    curl_easy_cleanup(curl);
    fo_buf_done(&s.line);
    if (rc == CURLE_OK || s.stopped) {
        *ret_status = status;
        return FO_OK;
    }
    const char *text = *why ? why : curl_easy_strerror(rc);
    if (rc == CURLE_OPERATION_TIMEDOUT) return fo_fail(e, FO_ETIMEOUT, "%s: %s", where, text);
    if (rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST) return fo_fail(e, FO_EUNAVAIL, "no daemon answers at %s: %s", where, os_errno ? strerror((int)os_errno) : text);
    if (rc == CURLE_PEER_FAILED_VERIFICATION) return fo_fail(e, FO_EACCES, "%s: %s; SSL_CERT_FILE=FILE in the environment names certificates to trust", where, text);
    return fo_fail(e, FO_EIO, "%s: %s", where, text);
}
