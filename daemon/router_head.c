/* See router_head.h. */
#include "daemon/router_head.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "daemon/head.h"
#include "foundry/base/buf.h"

enum { ASKED = 1, ANSWERED = 2 };

/* Names that do not pass, in a request, an answer, or both. */
static const struct {
    const char *name;
    unsigned ways;
} stays[] = {
    { "connection", ASKED | ANSWERED },
    { "keep-alive", ASKED | ANSWERED },
    { "proxy-connection", ASKED | ANSWERED },
    { "proxy-authenticate", ANSWERED },
    { "proxy-authorization", ASKED },
    { "te", ASKED },
    { "trailer", ASKED | ANSWERED },
    { "transfer-encoding", ASKED | ANSWERED },
    { "upgrade", ASKED | ANSWERED },
    { "content-length", ASKED | ANSWERED },
    { "host", ASKED },             /* the backend's own */
    { "expect", ASKED },           /* the body is here already */
    { "accept-encoding", ASKED },  /* what is between the parties here is not compressed: an event may have to follow */
    { "origin", ASKED },           /* the router has judged it */
    { "x-forwarded-for", ASKED },  /* written anew */
    { "x-request-id", ASKED | ANSWERED },
    { "content-type", ANSWERED },  /* these are the server's own lines */
    { "date", ANSWERED },
    { "server", ANSWERED },
    { "vary", ANSWERED },          /* by origin, which the backend was not told */
};

/* Whether a comma list has the name. */
static bool lists(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; *p; p += *p != '\0') {
        p += strspn(p, " \t,");
        size_t len = strcspn(p, " \t,");
        if (len == n && strncasecmp(p, name, n) == 0) return true;
        p += len;
        if (!*p) break;
    }
    return false;
}

static bool stays_here(const char *name, unsigned way) {
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++)
        if ((stays[i].ways & way) && strcasecmp(stays[i].name, name) == 0) return true;
    return way == ANSWERED && strncasecmp(name, "access-control-", 15) == 0;
}

/* Whether some Connection line of the head names it. */
static bool is_of_connection(const struct pd_head *h, const char *name) {
    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, "connection") == 0 && lists(h->headers[i].value, name)) return true;
    return false;
}

void pd_router_request_lines(const struct pd_head *h, const struct pd_via *via, struct fo_buf *out) {
    const char *id = pd_head_get(h, "x-request-id");
    fo_buf_puts(out, "X-Forwarded-For: ");
    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, "x-forwarded-for") == 0 && h->headers[i].value[0]) fo_buf_printf(out, "%s, ", h->headers[i].value);
    fo_buf_printf(out, "%s\nX-Request-Id: %s\n", via->client, id && *id ? id : via->id);
    if (!pd_head_get(h, "content-type")) fo_buf_puts(out, "Content-Type:\n"); /* none: libcurl would name a form's */
    if (via->bearer) fo_buf_printf(out, "Authorization: Bearer %s\n", via->bearer);
    for (int i = 0; i < h->n_headers; i++) {
        const char *name = h->headers[i].name, *value = h->headers[i].value;
        if (stays_here(name, ASKED) || is_of_connection(h, name) || (via->bearer && strcasecmp(name, "authorization") == 0)) continue;
        fo_buf_printf(out, "%s: %s\n", name, value);
    }
}

/* --- answers --- */

/* Cuts a line [n] into a name and a value without blanks around it, both into the caller's buffers; false when it is none that may pass. */
static bool cut(const char *line, size_t n, char *name, size_t name_size, char *value, size_t value_size) {
    const char *colon = memchr(line, ':', n);
    size_t k = colon ? (size_t)(colon - line) : 0, from = k + 1;
    if (k == 0 || k >= name_size) return false;
    while (from < n && (line[from] == ' ' || line[from] == '\t')) from++;
    while (n > from && (line[n - 1] == ' ' || line[n - 1] == '\t')) n--;
    if (n - from >= value_size) return false;
    memcpy(name, line, k);
    name[k] = '\0';
    memcpy(value, line + from, n - from);
    value[n - from] = '\0';
    for (const char *p = value; p < value + (n - from); p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7F) return false;
    return pd_head_is_token(name, k);
}

void pd_router_answer_lines(const char *lines, size_t n, struct pd_router_answer *ret, struct fo_buf *out) {
    char name[128], value[8192], connection[512] = "";
    *ret = (struct pd_router_answer){ 0 };
    for (int pass = 0; pass < 2; pass++) { /* what the Connection lines name is known after the first */
        for (const char *p = lines, *end = lines + n, *nl; p < end; p = nl + 1) {
            nl = memchr(p, '\n', (size_t)(end - p));
            if (!nl) nl = end;
            if (!cut(p, (size_t)(nl - p), name, sizeof name, value, sizeof value)) continue;
            if (pass == 0) {
                size_t k = strlen(connection);
                if (strcasecmp(name, "connection") == 0) snprintf(connection + k, sizeof connection - k, "%.200s,", value);
                else if (strcasecmp(name, "content-type") == 0 && strlen(value) < sizeof ret->type) memcpy(ret->type, value, strlen(value) + 1);
                else if (strcasecmp(name, "x-request-id") == 0 && strlen(value) < sizeof ret->id) memcpy(ret->id, value, strlen(value) + 1);
            } else if (!stays_here(name, ANSWERED) && !lists(connection, name)) {
                fo_buf_printf(out, "%s: %s\r\n", name, value);
            }
        }
    }
    ret->events = strncasecmp(ret->type, "text/event-stream", 17) == 0;
}
