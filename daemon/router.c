/* See router.h. */
#include "daemon/router.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/log.h"
#include "daemon/oai.h"
#include "daemon/router_models.h"
#include "daemon/router_ring.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/hash.h"
#include "foundry/base/log.h"

/* --- addresses --- */

static bool is_ipv6(const char *s, size_t n) {
    char text[INET6_ADDRSTRLEN];
    struct in6_addr unused;
    if (n >= sizeof text) return false;
    memcpy(text, s, n);
    text[n] = '\0';
    return inet_pton(AF_INET6, text, &unused) == 1;
}

/* "host", "host:port", "[::1]:port"; NULL, or what is wrong with it. */
static const char *check_authority(const char *s, size_t n) {
    const char *end = s + n, *close = *s == '[' ? memchr(s, ']', n) : NULL, *colon = close ? close + 1 : memchr(s, ':', n);
    size_t digits = colon && colon < end ? (size_t)(end - colon - 1) : 0;
    if (n == 0 || *s == ':') return "the host is missing";
    if (memchr(s, '@', n)) return "a name and password in it are not sent; a key for the backends is in --backend-key-file";
    if (*s == '[' && !close) return "the address in [] has no end";
    if (close && !is_ipv6(s + 1, (size_t)(close - s - 1))) return "what stands in [] is no IPv6 address";
    if (!close && colon && memchr(colon + 1, ':', digits)) return "an IPv6 address stands in []";
    if (colon && colon < end && (*colon != ':' || digits == 0 || digits > 5 || strspn(colon + 1, "0123456789") < digits)) return "the port is a number from 1 to 65535";
    if (digits) {
        long port = strtol(colon + 1, NULL, 10);
        if (port < 1 || port > 65535) return "the port is a number from 1 to 65535";
    }
    for (const char *p = s; p < end; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7F || strchr("\"<>\\^`{|}%", *p)) return "the host has a character that none can have";
    return NULL;
}

int pd_backend_parse(const char *text, struct pd_backend *b, struct fo_err *e) {
    size_t n = strlen(text), scheme = strncasecmp(text, "http://", 7) == 0 ? 7 : strncasecmp(text, "https://", 8) == 0 ? 8 : 0;
    if (n >= sizeof b->name) return fo_fail(e, FO_EINVAL, "--backend %.60s...: longer than %zu bytes", text, sizeof b->name - 1);
    memset(b, 0, sizeof *b);
    if (strncmp(text, "unix:", 5) == 0) {
        if (text[5] != '/') return fo_fail(e, FO_EINVAL, "--backend %s: the path of a Unix socket begins with /, as in unix:/run/pantheon.sock", text);
        if (n - 5 > 107) return fo_fail(e, FO_EINVAL, "--backend %s: the path of a Unix socket has at most 107 bytes", text);
        memcpy(b->name, text, n + 1);
        snprintf(b->url, sizeof b->url, "http://localhost");
        b->socket = b->name + 5;
        return FO_OK;
    }
    if (!scheme) return fo_fail(e, FO_EINVAL, "--backend %s: an address is http://HOST:PORT, https://HOST:PORT or unix:/PATH", text);
    size_t host = strcspn(text + scheme, "/?#");
    const char *wrong = check_authority(text + scheme, host), *path = text + scheme + host;
    if (wrong) return fo_fail(e, FO_EINVAL, "--backend %s: %s", text, wrong);
    if (*path && strcmp(path, "/") != 0) return fo_fail(e, FO_EINVAL, "--backend %s: the address ends with the port; what follows ('%.40s') is the client's, which asks for /v1/...", text, path);
    memcpy(b->name, text, scheme + host);
    memcpy(b->url, text, scheme + host);
    return FO_OK;
}

/* --- making and freeing --- */

static int add(struct pd_router *r, const char *text, struct fo_err *e) {
    if (r->n == PD_MAX_BACKENDS) return fo_fail(e, FO_ELIMIT, "more than %d backends", PD_MAX_BACKENDS);
    struct pd_backend *b = &r->list[r->n];
    if (pd_backend_parse(text, b, e)) return e->code;
    for (size_t i = 0; i < r->n; i++)
        if (strcasecmp(r->list[i].name, b->name) == 0) return fo_fail(e, FO_EINVAL, "--backend %s stands there twice", text);
    b->id = fo_fnv1a(FO_FNV_SEED, b->name, strlen(b->name));
    pd_lanes_init(&b->lanes, b->url, b->socket);
    r->n++;
    return FO_OK;
}

int pd_router_new(struct pd_router_opts *o, struct pd_router **ret, struct fo_err *e) {
    struct pd_router *r = calloc(1, sizeof *r);
    if (!r) return fo_fail(e, FO_ENOMEM, "no memory for the router");
    r->bearer = o->bearer;
    o->bearer = NULL;
    r->pass_keys = o->pass_keys;
    r->connect_ms = o->connect_ms;
    r->head_ms = o->head_ms;
    r->idle_ms = o->idle_ms;
    pthread_mutex_init(&r->lock, NULL);
    int code = pd_app_init(&r->app, e);
    for (size_t i = 0; i < o->n_backends && code == FO_OK; i++) code = add(r, o->backends[i], e);
    if (code) pd_router_free(r);
    else *ret = r;
    return code;
}

void pd_router_free(struct pd_router *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) {
        pd_lanes_done(&r->list[i].lanes);
        pd_models_put(r->list[i].models);
    }
    pd_app_done(&r->app);
    pthread_mutex_destroy(&r->lock);
    free(r->bearer);
    free(r);
}

/* --- choosing --- */

/* How fit a backend is for a model: a request goes to one of the fittest. */
enum fitness { NO, ANY, LOADING, FIT };

static enum fitness fitness_of(const struct pd_backend *b, const char *model, uint32_t *ret_room) {
    const struct pd_listed *l = pd_models_find(b->models, model);
    *ret_room = l && l->room ? l->room : PD_DEFAULT_ROOM;
    return l ? (l->serves ? FIT : LOADING) : b->any ? ANY : NO;
}

void pd_router_unknown(struct pd_router *r, const char *model, struct pd_error *x) {
    struct pd_source s[PD_MAX_BACKENDS];
    struct fo_buf list;
    size_t silent = 0, n = pd_router_sources(r, s);
    char more[96] = "";
    fo_buf_init(&list, 400); /* the message is bounded; more names than fit are left out */
    pd_models_names(s, n, &list);
    for (size_t i = 0; i < n; i++) silent += !s[i].models;
    if (silent) snprintf(more, sizeof more, " (%zu of %zu backends have not said what they have.)", silent, n);
    pd_error_set(x, PD_ERR_NO_MODEL, "model", "The model '%.100s' does not exist here. %s%s.%s", model, list.len ? "There is: " : "No backend has a model", fo_buf_str(&list), more);
    pd_router_sources_put(s, n);
    fo_buf_done(&list);
}

/* Why nobody can be asked. */
static void refuse(struct pd_router *r, const char *model, struct pd_error *x) {
    size_t silent = 0, have = 0;
    uint32_t room;
    char why[300] = "";
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        const struct pd_backend *b = &r->list[i];
        silent += !b->models && !b->any;
        if (fitness_of(b, model, &room) == NO) continue;
        have++;
        if (b->health.state == PD_HEALTH_DOWN) snprintf(why, sizeof why, " %.100s: %s.", b->name, b->health.why);
    }
    pthread_mutex_unlock(&r->lock);
    if (!have && silent < r->n) pd_router_unknown(r, model, x);
    else pd_error_set(x, PD_ERR_NO_BACKEND, NULL, "No backend answers that %s '%.100s'.%s", have ? "has" : "might have", model, why);
}

struct pd_backend *pd_router_choose(struct pd_router *r, const char *model, uint64_t key, uint64_t tried, struct pd_error *x) {
    struct pd_ring_node nodes[PD_MAX_BACKENDS];
    enum fitness fit[PD_MAX_BACKENDS], best = NO;
    struct pd_backend *b = NULL;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        struct pd_backend *k = &r->list[i];
        nodes[i] = (struct pd_ring_node){ .id = k->id, .load = k->load };
        fit[i] = k->health.state == PD_HEALTH_UP && !(tried >> i & 1) ? fitness_of(k, model, &nodes[i].room) : NO;
        if (fit[i] > best) best = fit[i];
    }
    for (size_t i = 0; i < r->n; i++) nodes[i].usable = best != NO && fit[i] == best;
    int i = pd_ring_pick(nodes, r->n, key);
    if (i >= 0) {
        b = &r->list[i];
        b->load++;
    }
    pthread_mutex_unlock(&r->lock);
    if (!b) refuse(r, model, x);
    return b;
}

/* --- what happens to backends --- */

static void say(const struct pd_backend *b, const char *event, const char *why) {
    char name[PD_MAX_BACKEND_URL + 16], text[256];
    fo_log(why ? FO_LOG_WARN : FO_LOG_INFO, "router", "event=%s backend=%s%s%s", event, pd_log_quote(b->name, name, sizeof name), why ? " reason=" : "", why ? pd_log_quote(why, text, sizeof text) : "");
}

void pd_router_end(struct pd_router *r, struct pd_backend *b, enum pd_try how, int status, const char *why, bool goes_on) {
    uint64_t now = fo_now_ms();
    bool down = false;
    char text[160] = "";
    pthread_mutex_lock(&r->lock);
    b->load--;
    b->tries[how]++;
    b->retries += goes_on;
    if (how == PD_TRY_ANSWERED || how == PD_TRY_REFUSED) down = pd_health_answered(&b->health, status, now);
    else if (how == PD_TRY_UNREACHED || how == PD_TRY_DIED || how == PD_TRY_BROKE) down = pd_health_failed(&b->health, why, now);
    if (down) snprintf(text, sizeof text, "%s", b->health.why);
    pthread_mutex_unlock(&r->lock);
    if (down) say(b, "backend_down", text);
}

void pd_router_probed(struct pd_router *r, struct pd_backend *b, const char *why, struct pd_models *models, bool any) {
    pthread_mutex_lock(&r->lock);
    bool changed = pd_health_probed(&b->health, why, fo_now_ms()), opened = any && !b->any, up = b->health.state == PD_HEALTH_UP;
    struct pd_models *old = models ? b->models : NULL;
    if (models) b->models = models;
    if (!why) b->any = any;
    pthread_mutex_unlock(&r->lock);
    pd_models_put(old);
    if (changed) say(b, up ? "backend_up" : "backend_down", up ? NULL : why);
    if (opened && !why) say(b, "backend_keeps_its_list", "it asks for a key: --backend-key-file; until then it is asked for what nobody lists");
}

size_t pd_router_sources(struct pd_router *r, struct pd_source *ret) {
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) ret[i] = (struct pd_source){ r->list[i].name, r->list[i].health.state == PD_HEALTH_UP, pd_models_get(r->list[i].models) };
    pthread_mutex_unlock(&r->lock);
    return r->n;
}

void pd_router_sources_put(const struct pd_source *s, size_t n) {
    for (size_t i = 0; i < n; i++) pd_models_put(s[i].models);
}
