/* Two kinds of people are kept out. Those who can reach the port and have no key: see pd_keys_find and the order of pd_access_judge.
 * And pages of the web, whose browser can reach a port that the page's author cannot: a page asks under its own host's name,
 * which then means this machine (DNS rebinding; the Host header tells), or under our name as a foreign origin. The browser keeps the
 * answer to the latter from the page unless we name its origin (CORS), but it does send a plain POST, and that alone costs a generation: so
 * without keys a POST of an origin that is neither our own nor configured is refused. A key settles that too, because no page has it. */
#include "daemon/access.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/oai.h"
#include "foundry/base/err.h"

enum { MAX_HOST = 255, DIGITS = 2 * FO_SHA256_BYTES, MAX_CONCURRENT = 65536 };

#define ALNUM "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#define BLANKS " \t\r"

/* --- the file of keys --- */

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
    return -1;
}

static size_t word_len(const char *p, const char *end) {
    size_t n = 0;
    while (p + n < end && !strchr(BLANKS, p[n])) n++;
    return n;
}

static const char *skip_blanks(const char *p, const char *end) {
    while (p < end && strchr(BLANKS, *p)) p++;
    return p;
}

/* 64 hexadecimal digits. */
static bool read_digest(const char *p, size_t n, uint8_t ret[FO_SHA256_BYTES]) {
    if (n != DIGITS) return false;
    for (size_t i = 0; i < FO_SHA256_BYTES; i++) {
        int hi = hex(p[2 * i]), lo = hex(p[2 * i + 1]);
        if (hi < 0 || lo < 0) return false;
        ret[i] = (uint8_t)(hi * 16 + lo);
    }
    return true;
}

static bool same_digest(const uint8_t *a, const uint8_t *b) {
    volatile uint8_t differ = 0; /* volatile: not to be left early */
    for (int i = 0; i < FO_SHA256_BYTES; i++) differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return differ == 0;
}

static int read_priority(const char *p, size_t n, struct pd_key *k, struct fo_err *e) {
    static const char *const names[] = { "low", "normal", "high" }; /* ascending, as the priorities */
    if (k->has_priority) return fo_fail(e, FO_EFORMAT, "'priority' stands here twice");
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        if (strlen(names[i]) != n || memcmp(p, names[i], n) != 0) continue;
        k->priority = (enum pn_priority)(PN_PRIORITY_LOW + i);
        k->has_priority = true;
        return FO_OK;
    }
    return fo_fail(e, FO_EFORMAT, "'priority' must be low, normal or high");
}

/* One of the words behind a digest. */
static int read_word(const char *p, size_t n, struct pd_key *k, struct fo_err *e) {
    static const char most[] = "max_concurrent=", priority[] = "priority=";
    size_t n_most = sizeof most - 1, n_priority = sizeof priority - 1;
    if (n == 5 && memcmp(p, "admin", 5) == 0) {
        if (k->admin) return fo_fail(e, FO_EFORMAT, "'admin' stands here twice");
        k->admin = true;
        return FO_OK;
    }
    if (n >= n_priority && memcmp(p, priority, n_priority) == 0) return read_priority(p + n_priority, n - n_priority, k, e);
    if (n <= n_most || memcmp(p, most, n_most) != 0)
        return fo_fail(e, FO_EFORMAT, "after the digest only the words 'admin', 'max_concurrent=N' and 'priority=low|normal|high' may stand, with blanks between");
    if (k->max_concurrent) return fo_fail(e, FO_EFORMAT, "'max_concurrent' stands here twice");
    for (size_t i = n_most; i < n && k->max_concurrent <= MAX_CONCURRENT; i++) {
        if (p[i] < '0' || p[i] > '9') return fo_fail(e, FO_EFORMAT, "'max_concurrent' is not a whole number");
        k->max_concurrent = k->max_concurrent * 10 + (uint32_t)(p[i] - '0');
    }
    if (k->max_concurrent < 1 || k->max_concurrent > MAX_CONCURRENT) return fo_fail(e, FO_EFORMAT, "'max_concurrent' must be 1 to %d", MAX_CONCURRENT);
    return FO_OK;
}

/* A line that is not empty. What stands where a digest should may be the key itself: no message quotes it, nor a name that is none. */
static int read_line(const char *p, const char *end, struct pd_key *ret, struct fo_err *e) {
    struct pd_key k = { .admin = false };
    uint8_t nothing[FO_SHA256_BYTES];
    const char *colon = memchr(p, ':', (size_t)(end - p));
    if (!colon) return fo_fail(e, FO_EFORMAT, "a line is 'name:sha256', and this one has no ':'");
    size_t n = (size_t)(colon - p);
    for (size_t i = 0; i < n; i++)
        if (!strchr(ALNUM "._-", p[i])) return fo_fail(e, FO_EFORMAT, "a name has letters, digits, '.', '_' and '-' only");
    if (n == 0 || n > PD_MAX_KEY_NAME || !strchr(ALNUM, *p)) return fo_fail(e, FO_EFORMAT, "a name begins with a letter or a digit and has at most %d characters", PD_MAX_KEY_NAME);
    memcpy(k.name, p, n);
    p = colon + 1;
    n = word_len(p, end);
    if (!read_digest(p, n, k.digest))
        return fo_fail(e, FO_EFORMAT, "the key of '%s' must be its SHA-256, %d hexadecimal digits right behind the ':', and not the key itself (printf %%s KEY | sha256sum)", k.name, DIGITS);
    fo_sha256("", 0, nothing);
    if (same_digest(k.digest, nothing)) return fo_fail(e, FO_EFORMAT, "the digest of '%s' is that of an empty text, not of a key", k.name);
    for (p = skip_blanks(p + n, end); p < end; p = skip_blanks(p + n, end)) {
        n = word_len(p, end);
        if (read_word(p, n, &k, e)) return e->code;
    }
    *ret = k;
    return FO_OK;
}

static int check_new(const struct pd_keys *keys, const struct pd_key *k, struct fo_err *e) {
    for (size_t i = 0; i < keys->n; i++) {
        if (strcmp(keys->list[i].name, k->name) == 0) return fo_fail(e, FO_EFORMAT, "'%s' has a key already, further up", k->name);
        if (memcmp(keys->list[i].digest, k->digest, FO_SHA256_BYTES) == 0) return fo_fail(e, FO_EFORMAT, "'%s' and '%s' have the same key", keys->list[i].name, k->name);
    }
    return FO_OK;
}

/* The line at *p [.., end) without the blanks around it, and *p behind it. False = it says nothing. */
static bool next_line(const char **p, const char *end, const char **ret, const char **ret_end) {
    const char *lf = memchr(*p, '\n', (size_t)(end - *p)), *stop = lf ? lf : end;
    *ret = skip_blanks(*p, stop);
    *p = lf ? lf + 1 : end;
    while (stop > *ret && strchr(BLANKS, stop[-1])) stop--;
    *ret_end = stop;
    return *ret < stop && **ret != '#';
}

int pd_keys_parse(const char *file, const char *text, size_t len, struct pd_keys **ret, struct fo_err *e) {
    const char *p = text, *end = text + len, *line, *stop;
    size_t n = 0;
    if (memchr(text, '\0', len)) return fo_fail(e, FO_EFORMAT, "%s: not a text file (it has a NUL byte)", file);
    while (p < end) n += next_line(&p, end, &line, &stop);
    if (n == 0) return fo_fail(e, FO_EFORMAT, "%s: no key in it; without keys, leave api_keys_file out of the manifest", file);
    if (n > PD_MAX_KEYS) return fo_fail_need(e, FO_ELIMIT, n, PD_MAX_KEYS, "%s: %zu keys; at most %d are taken", file, n, PD_MAX_KEYS);
    struct pd_keys *keys = calloc(1, sizeof *keys + n * sizeof *keys->list);
    if (!keys) return fo_fail(e, FO_ENOMEM, "%s: no memory for its keys", file);
    atomic_init(&keys->refs, 1);
    p = text;
    for (int no = 1; p < end; no++) {
        struct pd_key k;
        if (!next_line(&p, end, &line, &stop)) continue;
        if (read_line(line, stop, &k, e) || check_new(keys, &k, e)) {
            e->line = no;
            free(keys);
            return fo_wrap(e, "%s:%d", file, no);
        }
        keys->list[keys->n++] = k;
    }
    *ret = keys;
    return FO_OK;
}

void pd_keys_put(struct pd_keys *k) {
    if (k && atomic_fetch_sub(&k->refs, 1) == 1) free(k);
}

const struct pd_key *pd_keys_find(const struct pd_keys *k, const char *presented) {
    uint8_t digest[FO_SHA256_BYTES];
    const struct pd_key *found = NULL;
    fo_sha256(presented, strlen(presented), digest);
    for (size_t i = 0; i < k->n; i++)
        if (same_digest(k->list[i].digest, digest)) found = &k->list[i];
    return found;
}

/* --- hosts and origins --- */

/* The name in a Host header, in lower case, without its port, brackets and the root's dot. False when it is none. */
static bool host_name(const char *host, char name[MAX_HOST + 1]) {
    bool v6 = *host == '[';
    size_t n = strcspn(host + v6, v6 ? "]" : ":"), skip = n + 2 * (size_t)v6;
    if (n == 0 || n > MAX_HOST || (v6 && host[n + 1] != ']')) return false;
    const char *port = host + skip;
    if (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1))) return false;
    for (size_t i = 0; i < n; i++) name[i] = (char)(host[v6 + i] >= 'A' && host[v6 + i] <= 'Z' ? host[v6 + i] | 0x20 : host[v6 + i]);
    if (!v6 && n > 1 && name[n - 1] == '.') n--;
    name[n] = '\0';
    return v6 == (strchr(name, ':') != NULL);
}

struct literal {
    int family; /* 0 = a name */
    uint8_t bytes[16];
};

/* An address, with or without brackets. */
static struct literal literal_of(const char *name) {
    struct literal a = { 0 };
    char bare[INET6_ADDRSTRLEN];
    if (*name == '[' && strlen(name) < sizeof bare) {
        snprintf(bare, sizeof bare, "%.*s", (int)strcspn(name + 1, "]"), name + 1);
        name = bare;
    }
    if (inet_pton(AF_INET, name, a.bytes) == 1) a.family = AF_INET;
    else if (inet_pton(AF_INET6, name, a.bytes) == 1) a.family = AF_INET6;
    return a;
}

static bool is_loopback(const char *name) {
    static const uint8_t one[16] = { [15] = 1 };
    struct literal a = literal_of(name);
    if (a.family == 0) return strcmp(name, "localhost") == 0;
    return a.family == AF_INET ? a.bytes[0] == 127 : memcmp(a.bytes, one, sizeof one) == 0;
}

bool pd_host_is_loopback(const char *host) {
    char name[MAX_HOST + 1];
    return host_name(host, name) && is_loopback(name);
}

/* An address may be written in several ways. */
static bool same_host(const char *name, const char *other) {
    struct literal a = literal_of(name), b = literal_of(other);
    return a.family ? a.family == b.family && memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0 : strcasecmp(name, other) == 0;
}

bool pd_host_allowed(const char *host, const char *const *hosts, size_t n_hosts, const char *own) {
    char name[MAX_HOST + 1];
    for (size_t i = 0; i < n_hosts; i++)
        if (strcmp(hosts[i], "*") == 0) return true;
    if (!host_name(host, name)) return false;
    if (is_loopback(name) || (*own && same_host(name, own))) return true;
    for (size_t i = 0; i < n_hosts; i++)
        if (same_host(name, hosts[i])) return true;
    return false;
}

/* The configured origin that this one is; "*" is any. NULL = none. */
static const char *origin_of(const struct pd_rules *r, const char *origin) {
    const char *any = NULL;
    for (size_t i = 0; i < r->n_origins; i++) {
        if (strcmp(r->origins[i], origin) == 0) return r->origins[i];
        if (strcmp(r->origins[i], "*") == 0) any = r->origins[i];
    }
    return any;
}

/* A page that came from where it asks. */
static bool is_own_origin(const struct pd_asked *q) {
    const char *rest = strstr(q->origin, "://");
    return rest && q->host && strcasecmp(rest + 3, q->host) == 0;
}

/* --- the decision --- */

void pd_asked_of(const struct pd_head *head, enum pd_from from, const char *own, struct pd_asked *ret) {
    const char *method = NULL;
    *ret = (struct pd_asked){ .from = from, .method = head->method, .path = head->path, .own = own, .host = head->authority };
    for (int i = 0; i < head->n_headers; i++) {
        const char *name = head->headers[i].name, *value = head->headers[i].value;
        if (strcasecmp(name, "host") == 0 && !ret->host) ret->host = value;
        else if (strcasecmp(name, "origin") == 0) ret->origin = value;
        else if (strcasecmp(name, "access-control-request-method") == 0) method = value;
        else if (strcasecmp(name, "forwarded") == 0) ret->proxied = "Forwarded";
        else if (strncasecmp(name, "x-forwarded-", 12) == 0) ret->proxied = "X-Forwarded-...";
        else if (strcasecmp(name, "authorization") == 0) {
            ret->many_authorizations = ret->authorization != NULL;
            ret->authorization = value;
        }
    }
    const char *accept = pd_head_get(head, "accept");
    ret->page = accept && strstr(accept, "text/html");
    ret->body = head->chunked || head->length > 0;
    ret->preflight = method && ret->origin && strcmp(head->method, "OPTIONS") == 0 && !ret->body;
}

/* "/health/" is "/health" for the router, so it is here. */
static bool is_path(const char *path, const char *what) {
    size_t n = strlen(path), k = strlen(what);
    while (n > 1 && path[n - 1] == '/') n--;
    return n == k && memcmp(path, what, n) == 0;
}

/* What is answered to those who have no key: browsers and probes. With a body it is neither, and whoever has no key shall not fill our
 * memory. The page at / has a field for the key then, and nothing else. */
static bool is_open(const struct pd_asked *q, bool reads) {
    bool page = q->page && !q->authorization && is_path(q->path, "/");
    return !q->body && (strcmp(q->method, "OPTIONS") == 0 || (reads && (page || is_path(q->path, "/health") || is_path(q->path, "/ready"))));
}

static bool refuse(struct pd_leave *ret, struct pd_error *x, enum pd_error_id id, const char *why) {
    ret->kind = PD_LEAVE_REFUSED;
    return pd_error_set(x, id, NULL, "%s", why);
}

static bool refuse_admin(struct pd_leave *ret, struct pd_error *x, const char *why) {
    ret->kind = PD_LEAVE_REFUSED;
    return pd_error_set(x, PD_ERR_FORBIDDEN, NULL, "Administration is for the admin socket (server.admin_socket), for this machine itself, and for keys with `admin`; this request is refused because %s.", why);
}

/* Why a request is not plainly from this machine, but a web page's that its browser shows there, or of somebody behind a proxy that runs there: "" = it is. */
static const char *why_not_here(const struct pd_asked *q, char *why, size_t size) {
    if (q->from == PD_FROM_SOCKET) return "it comes over a socket of server.listen, whose clients may be a proxy's";
    if (q->from != PD_FROM_LOOPBACK) return "it comes from another machine";
    if (!q->host || !pd_host_is_loopback(q->host)) return "its Host is not this machine's loopback";
    if (q->origin) return "it comes from a web page (Origin)";
    if (!q->proxied) return "";
    snprintf(why, size, "it comes through a proxy (%s)", q->proxied);
    return why;
}

static bool judge_key(const struct pd_rules *r, const struct pd_asked *q, bool admin, struct pd_leave *ret, struct pd_error *x) {
    const char *key = q->authorization;
    if (!r->keys) return refuse(ret, x, PD_ERR_KEYS, "This server's file of API keys cannot be used, so nobody is let in until it is repaired.");
    if (!key) return refuse(ret, x, PD_ERR_KEY, "This server asks for an API key: send it as 'Authorization: Bearer KEY'.");
    if (q->many_authorizations) return refuse(ret, x, PD_ERR_KEY, "There is more than one Authorization header.");
    if (strncasecmp(key, "bearer", 6) != 0 || !strchr(" \t", key[6]) || !key[6])
        return refuse(ret, x, PD_ERR_KEY, "The Authorization header is not of the form 'Bearer KEY'.");
    ret->key = pd_keys_find(r->keys, key + 6 + strspn(key + 6, " \t"));
    if (!ret->key) return refuse(ret, x, PD_ERR_KEY, "The API key is not one of this server's.");
    if (admin && !ret->key->admin) return refuse_admin(ret, x, "its key has no `admin`");
    ret->admin = ret->key->admin;
    ret->counted = !admin && ret->key->max_concurrent && strcmp(q->method, "POST") == 0;
    return true;
}

bool pd_access_judge(const struct pd_rules *r, const struct pd_asked *q, struct pd_leave *ret, struct pd_error *x) {
    bool admin = strncmp(q->path, "/admin", 6) == 0, reads = strcmp(q->method, "GET") == 0 || strcmp(q->method, "HEAD") == 0;
    *ret = (struct pd_leave){ .kind = PD_LEAVE };
    ret->admin = q->from == PD_FROM_UNIX; /* who may open the socket, its mode says */
    if (ret->admin) return true;
    if (!r->keyed) {
        char text[96];
        const char *why = why_not_here(q, text, sizeof text);
        ret->admin = !*why;
        if (admin) return ret->admin || refuse_admin(ret, x, why);
    }
    if (q->host && !pd_host_allowed(q->host, r->hosts, r->n_hosts, q->own)) {
        char why[400];
        snprintf(why, sizeof why, "This server is not called '%.200s'. Ask for it by a loopback name or by its own address, or list the name in the manifest's server.allowed_hosts.", q->host);
        return refuse(ret, x, PD_ERR_HOST, why);
    }
    if (!admin) { /* administration is for no web page */
        ret->vary = r->n_origins > 0;
        ret->allow_origin = q->origin ? origin_of(r, q->origin) : NULL;
    }
    if (q->preflight && ret->allow_origin) {
        ret->kind = PD_LEAVE_PREFLIGHT;
        return true;
    }
    if (r->keyed) return is_open(q, reads) || judge_key(r, q, admin, ret, x);
    if (!reads && strcmp(q->method, "OPTIONS") != 0 && q->origin && !ret->allow_origin && !is_own_origin(q))
        return refuse(ret, x, PD_ERR_ORIGIN, "This comes from a web page of another origin. List the origin in the manifest's server.cors_origins to let its pages ask.");
    return true;
}
