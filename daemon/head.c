/* Request heads: see head.h. One pass over the lines; every refusal says which rule was broken, because the text goes to whoever
 * wrote the client. */
#include "daemon/head.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* RFC 9110 5.6.2: the characters of methods and header names. */
static bool is_token(unsigned char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

bool pd_head_is_token(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_token((unsigned char)s[i])) return false;
    return n > 0;
}

/* Bytes of empty lines in front, which robust servers skip (RFC 9112 2.2). */
static size_t blank_front(const char *buf, size_t n) {
    size_t i = 0;
    while (i + 1 < n && i < 8 && buf[i] == '\r' && buf[i + 1] == '\n') i += 2;
    return i;
}

size_t pd_head_end(const char *buf, size_t n) {
    if (n == 0) return 0;
    size_t at = blank_front(buf, n);
    const char *p = buf + at, *end = buf + n;
    /* A head ends at the first empty line, also one written with bare line feeds: the parser refuses those, but must see them. */
    while ((p = memchr(p, '\n', (size_t)(end - p)))) {
        p++;
        if (p < end && *p == '\n') return (size_t)(p + 1 - buf);
        if (p + 1 < end && p[0] == '\r' && p[1] == '\n') return (size_t)(p + 2 - buf);
    }
    return 0;
}

bool pd_head_is_none(const char *buf, size_t n) {
    size_t at = blank_front(buf, n);
    return at < n && !is_token((unsigned char)buf[at]) && !(buf[at] == '\r' && at + 1 == n) && buf[at] != '\n';
}

int pd_head_too_long(const char *buf, size_t n) {
    size_t at = blank_front(buf, n);
    if (n - at > PD_MAX_URI_BYTES + 64 && !memchr(buf + at, '\n', PD_MAX_URI_BYTES + 64)) return 414;
    return n > PD_MAX_HEAD_BYTES ? 431 : 0;
}

static int refuse(int status, const char *why, const char **ret_why) {
    *ret_why = why;
    return status;
}

/* METHOD SP target SP HTTP/1.x */
static int request_line(char *line, struct pd_head *h, const char **ret_why) {
    char *sp = strchr(line, ' ');
    if (!sp || sp == line || sp - line > 32) return refuse(400, "the request line does not start with a method", ret_why);
    if (!pd_head_is_token(line, (size_t)(sp - line))) return refuse(400, "the method has a character that no method has", ret_why);
    char *target = sp + 1, *sp2 = strchr(target, ' ');
    if (!sp2 || sp2 == target) return refuse(400, "the request line is not METHOD, TARGET and VERSION", ret_why);
    *sp = *sp2 = '\0';
    h->method = line;
    const char *version = sp2 + 1;
    if (strncmp(version, "HTTP/", 5) != 0) return refuse(400, "the request line does not end in an HTTP version", ret_why);
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return refuse(505, "this server speaks HTTP/1.1 and HTTP/1.0", ret_why);
    h->minor = version[7] - '0';
    if (strlen(target) > PD_MAX_URI_BYTES) return refuse(414, "the request target is longer than 8192 bytes", ret_why);
    for (char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7F) return refuse(400, "the request target has a byte that must be percent-encoded", ret_why);
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) { /* absolute form, as proxies send it */
        char *host = strstr(target, "://") + 3, *slash = strchr(host, '/');
        if (!slash) return refuse(400, "the request target has no path", ret_why);
        size_t n = (size_t)(slash - host);
        if (n == 0 || memchr(host, '@', n) || memchr(host, '?', n) || memchr(host, '#', n)) return refuse(400, "the request target has no host, or more than one", ret_why);
        memmove(host - 1, host, n); /* room for a NUL in front of the path */
        host[n - 1] = '\0';
        h->authority = host - 1;
        target = slash;
    }
    if (*target != '/' && strcmp(target, "*") != 0) return refuse(400, "the request target does not start with '/'", ret_why);
    char *mark = strchr(target, '?');
    if (mark) *mark = '\0';
    h->path = target;
    h->query = mark ? mark + 1 : target + strlen(target);
    return 0;
}

/* Whether a comma list has the word, in any case. */
static bool list_has(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; *p;) {
        p += strspn(p, " \t,");
        size_t len = strcspn(p, " \t,");
        if (len == n && strncasecmp(p, word, n) == 0) return true;
        p += len;
    }
    return false;
}

/* What the headers say about length and connection. */
static int framing(struct pd_head *h, const char **ret_why) {
    int hosts = 0, lengths = 0, codings = 0;
    h->keep_alive = h->minor == 1;
    for (int i = 0; i < h->n_headers; i++) {
        const char *name = h->headers[i].name, *value = h->headers[i].value;
        if (strcasecmp(name, "Host") == 0) {
            if (++hosts > 1) return refuse(400, "more than one Host header", ret_why);
            if (h->authority) h->headers[i].value = h->authority; /* what the header says is ignored then (RFC 9112 3.2.2) */
        } else if (strcasecmp(name, "Content-Length") == 0) {
            if (++lengths > 1) return refuse(400, "more than one Content-Length header", ret_why);
            size_t n = strlen(value);
            if (n == 0 || n > 18 || strspn(value, "0123456789") != n) return refuse(400, "Content-Length is not a number", ret_why);
            for (const char *p = value; *p; p++) h->length = h->length * 10 + (uint64_t)(*p - '0');
            h->has_length = true;
        } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
            if (++codings > 1) return refuse(400, "more than one Transfer-Encoding header", ret_why);
            if (strcasecmp(value, "chunked") != 0) return refuse(501, "the only Transfer-Encoding taken is chunked", ret_why);
            h->chunked = true;
        } else if (strcasecmp(name, "Connection") == 0) {
            if (list_has(value, "close")) h->keep_alive = false;
            else if (h->minor == 0 && list_has(value, "keep-alive")) h->keep_alive = true;
        } else if (strcasecmp(name, "Expect") == 0) {
            if (strcasecmp(value, "100-continue") != 0) return refuse(417, "the only Expect taken is 100-continue", ret_why);
            h->expect_continue = h->minor == 1;
        }
    }
    if (h->chunked && h->has_length) return refuse(400, "Transfer-Encoding and Content-Length together", ret_why);
    if (h->chunked && h->minor == 0) return refuse(400, "Transfer-Encoding in an HTTP/1.0 request", ret_why);
    if (hosts == 0 && h->minor == 1) return refuse(400, "no Host header", ret_why);
    return 0;
}

int pd_head_parse(char *buf, size_t n, struct pd_head *ret, const char **ret_why) {
    memset(ret, 0, sizeof *ret);
    if (n > PD_MAX_HEAD_BYTES) return refuse(431, "the headers are larger than 32768 bytes", ret_why);
    if (memchr(buf, '\0', n)) return refuse(400, "the request head has a NUL byte", ret_why);
    char *p = buf + blank_front(buf, n), *end = buf + n;
    for (int line = 0; p < end; line++) {
        char *lf = memchr(p, '\n', (size_t)(end - p));
        if (!lf || lf == p || lf[-1] != '\r') return refuse(400, "a line of the request head does not end in CR LF", ret_why);
        char *cr = lf - 1;
        if (memchr(p, '\r', (size_t)(cr - p))) return refuse(400, "a line of the request head has a bare CR", ret_why);
        *cr = '\0';
        if (line == 0) {
            int status = request_line(p, ret, ret_why);
            if (status) return status;
        } else if (p < cr) {
            if (*p == ' ' || *p == '\t') return refuse(400, "a header is folded over two lines", ret_why);
            if (ret->n_headers == PD_MAX_HEADERS) return refuse(431, "more than 100 headers", ret_why);
            char *colon = strchr(p, ':');
            if (!colon || colon == p) return refuse(400, "a header has no name or no colon", ret_why);
            if (!pd_head_is_token(p, (size_t)(colon - p))) return refuse(400, "a header's name has a character that no name has", ret_why);
            *colon = '\0';
            char *value = colon + 1 + strspn(colon + 1, " \t");
            for (char *q = value; *q; q++)
                if (((unsigned char)*q < 0x20 && *q != '\t') || *q == 0x7F) return refuse(400, "a header's value has a control character", ret_why);
            while (cr > value && (cr[-1] == ' ' || cr[-1] == '\t')) *--cr = '\0';
            ret->headers[ret->n_headers++] = (struct pd_header){ p, value };
        }
        p = lf + 1;
    }
    if (!ret->path) return refuse(400, "an empty request", ret_why);
    return framing(ret, ret_why);
}

const char *pd_head_get(const struct pd_head *h, const char *name) {
    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0) return h->headers[i].value;
    return NULL;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
    return -1;
}

bool pd_percent_decode(char *s) {
    char *out = s;
    for (; *s; s++) {
        if (*s != '%') {
            *out++ = *s;
            continue;
        }
        int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);
        if (lo < 0 || (hi == 0 && lo == 0)) return false;
        *out++ = (char)(hi * 16 + lo);
        s += 2;
    }
    *out = '\0';
    return true;
}

/* One byte of what is not payload. */
static void frame_byte(struct pd_chunks *c, char b) {
    switch (c->state) {
    case PD_CH_SIZE: {
        int v = hex(b);
        if (v >= 0 && c->digits < 15) {
            c->left = c->left * 16 + (uint64_t)v;
            c->digits++;
            return;
        }
        c->state = c->digits == 0 || v >= 0 ? PD_CH_BAD : b == '\r' ? PD_CH_SIZE_LF : b == ';' ? PD_CH_EXT : PD_CH_BAD;
        return;
    }
    case PD_CH_EXT:
        if (++c->side_bytes > 8192 || b == '\n') c->state = PD_CH_BAD;
        else if (b == '\r') c->state = PD_CH_SIZE_LF;
        return;
    case PD_CH_SIZE_LF:
        c->state = b != '\n' ? PD_CH_BAD : c->left > 0 ? PD_CH_DATA : PD_CH_LINE;
        return;
    case PD_CH_DATA_CR:
        c->state = b == '\r' ? PD_CH_DATA_LF : PD_CH_BAD;
        return;
    case PD_CH_DATA_LF:
        c->state = b == '\n' ? PD_CH_SIZE : PD_CH_BAD;
        c->digits = 0;
        return;
    case PD_CH_LINE: /* the start of a trailer line, or of the last, empty one */
        if (++c->side_bytes > 8192 || b == '\n') c->state = PD_CH_BAD;
        else c->state = b == '\r' ? PD_CH_LAST_LF : PD_CH_LINE_TEXT;
        return;
    case PD_CH_LINE_TEXT:
        if (++c->side_bytes > 8192 || b == '\n') c->state = PD_CH_BAD;
        else if (b == '\r') c->state = PD_CH_LINE_LF;
        return;
    case PD_CH_LINE_LF:
        c->state = b == '\n' ? PD_CH_LINE : PD_CH_BAD;
        return;
    case PD_CH_LAST_LF:
        c->state = b == '\n' ? PD_CH_DONE : PD_CH_BAD;
        return;
    case PD_CH_DATA:
    case PD_CH_DONE:
    case PD_CH_BAD:
        return;
    }
}

size_t pd_chunks_feed(struct pd_chunks *c, char *buf, size_t n, size_t *ret_used) {
    size_t out = 0, i = 0;
    while (i < n && c->state != PD_CH_DONE && c->state != PD_CH_BAD) {
        if (c->state != PD_CH_DATA) {
            frame_byte(c, buf[i++]);
            continue;
        }
        size_t take = c->left < n - i ? (size_t)c->left : n - i;
        memmove(buf + out, buf + i, take);
        out += take;
        i += take;
        c->left -= take;
        if (c->left == 0) c->state = PD_CH_DATA_CR;
    }
    *ret_used = i;
    return out;
}

bool pd_query_get(const char *query, const char *key, char *value, size_t size) {
    size_t n = strlen(key);
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        if (strncmp(p, key, n) != 0 || (p[n] != '=' && p[n] != '&' && p[n] != '\0')) continue;
        const char *v = p + n + (p[n] == '=');
        snprintf(value, size, "%.*s", (int)strcspn(v, "&"), v);
        return pd_percent_decode(value);
    }
    return false;
}
