/* URLs by hand instead of by a library: config knows none, and what is taken here is far less than what RFC 3986 allows. Every text that
 * a person could mean differently from how a program reads it is refused. */
#include "config/url.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/shard.h"

#define ALNUM "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
enum { MAX_HOST = 253 };

static bool starts(const char *s, const char *with) {
    return strncmp(s, with, strlen(with)) == 0;
}

/* One part of "a/b/c": letters, digits and . _ - alone; neither "." nor "..". */
static bool is_word(const char *s, size_t n) {
    return n > 0 && strspn(s, ALNUM "._-") >= n && !(s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.')));
}

static void shard_of(struct cf_url *u) {
    char name[FO_SHARD_END_BYTES + 1];
    if (u->path.len < FO_SHARD_END_BYTES) return;
    memcpy(name, u->path.at + u->path.len - FO_SHARD_END_BYTES, FO_SHARD_END_BYTES);
    name[FO_SHARD_END_BYTES] = '\0';
    fo_shard_name(name, &u->shard, &u->n_shards);
}

static const char *parse_hf(const char *s, struct cf_url *u) {
    static const char form[] = "is written hf:OWNER/REPO/FILE, or hf:OWNER/REPO@REVISION/FILE";
    size_t n = strcspn(s, "/");
    u->owner = (struct cf_span){ s, n };
    if (!is_word(s, n) || s[n] != '/') return form;
    s += n + 1;
    n = strcspn(s, "/@");
    u->repo = (struct cf_span){ s, n };
    if (!is_word(s, n)) return form;
    s += n;
    if (*s == '@') {
        n = strcspn(++s, "/");
        u->revision = (struct cf_span){ s, n };
        if (!is_word(s, n)) return "has a revision that is no branch, tag or commit (letters, digits and . _ - are allowed)";
        s += n;
    }
    if (*s != '/' || s[1] == '\0') return "names no file in the repository";
    s++;
    u->path = (struct cf_span){ s, strlen(s) };
    for (;; s += n + 1) {
        n = strcspn(s, "/");
        if (!is_word(s, n)) return "has a part that is no name of a file (letters, digits and . _ - are allowed, and / between folders)";
        if (s[n] == '\0') break;
    }
    shard_of(u);
    return NULL;
}

static bool is_loopback(const struct cf_span *host) {
    char text[64];
    uint8_t ip[16] = { 0 };
    static const uint8_t one[16] = { [15] = 1 };
    if (host->len >= sizeof text) return false;
    memcpy(text, host->at, host->len);
    text[host->len] = '\0';
    return strcmp(text, "localhost") == 0 || (inet_pton(AF_INET, text, ip) == 1 && ip[0] == 127) || (inet_pton(AF_INET6, text, ip) == 1 && memcmp(ip, one, sizeof ip) == 0);
}

/* HOST[:PORT], n bytes. */
static const char *parse_host(const char *s, size_t n, struct cf_url *u) {
    size_t len;
    if (memchr(s, '@', n)) return "has a name or a password in front of its host; a manifest is no place for them";
    if (*s == '[') {
        len = strcspn(s, "]");
        u->host = (struct cf_span){ s + 1, len - 1 };
        char ip[64] = "";
        uint8_t bytes[16];
        if (len >= n || len - 1 >= sizeof ip) return "has no host";
        memcpy(ip, s + 1, len - 1);
        if (inet_pton(AF_INET6, ip, bytes) != 1) return "has no IPv6 address in its brackets";
        len++;
    } else {
        len = strspn(s, ALNUM ".-");
        if (len > n) len = n;
        u->host = (struct cf_span){ s, len };
        if (len == 0 || len > MAX_HOST || *s == '.' || *s == '-') return "has no host";
    }
    if (len < n) {
        size_t digits = s[len] == ':' ? strspn(s + len + 1, "0123456789") : 0;
        long port = digits && digits <= 5 ? strtol(s + len + 1, NULL, 10) : 0;
        if (len + 1 + digits != n || port < 1 || port > 65535) return "has a host that is none, or a port that is not 1 to 65535";
    }
    u->loopback = is_loopback(&u->host);
    return NULL;
}

static const char *parse_http(const char *s, struct cf_url *u) {
    size_t n = strcspn(s, "/?#");
    const char *why = parse_host(s, n, u);
    if (why) return why;
    s += n;
    u->path = (struct cf_span){ s, strcspn(s, "?#") };
    for (const char *p = s; *p; p++)
        if (*p <= 0x20 || *p >= 0x7F || strchr("\"<>\\^`{|}", *p)) return "has a character that a URL writes as %XX (a space is %20)";
    if (strchr(s, '#')) return "has a '#': what follows it never reaches a server";
    if (u->path.len < 2 || u->path.at[u->path.len - 1] == '/') return "names no file";
    if (u->host.len == 14 && starts(u->host.at, "huggingface.co") && memmem(u->path.at, u->path.len, "/blob/", 6))
        return "is the page about the file; the file itself has /resolve/ in the place of /blob/";
    shard_of(u);
    return NULL;
}

const char *cf_url_parse(const char *text, struct cf_url *ret) {
    struct cf_url u = { 0 };
    const char *why = "is no place to fetch from: write https://HOST/FILE, or hf:OWNER/REPO/FILE";
    if (starts(text, "https://"))
        why = parse_http(text + 8, &u);
    else if (starts(text, "http://")) {
        u.scheme = CF_URL_HTTP;
        why = parse_http(text + 7, &u);
    } else if (starts(text, "hf:")) {
        u.scheme = CF_URL_HF;
        why = parse_hf(text + 3, &u);
    }
    if (!why) *ret = u;
    return why;
}

void cf_url_shard(const char *text, uint32_t no, struct fo_buf *out) {
    struct cf_url u;
    if (cf_url_parse(text, &u) || !u.n_shards) return;
    const char *end = u.path.at + u.path.len;
    fo_buf_printf(out, "%.*s-%05u-of-%05u.gguf%s", (int)(end - text - FO_SHARD_END_BYTES), text, no + 1, u.n_shards, end);
}
