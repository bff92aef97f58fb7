/* Renewal replaces two files, one after the other: between the two they do not fit together. So files that cannot be used change nothing
 * but the condition TlsValid, and are read at every look until they can. */
#include "daemon/cert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/reach.h"
#include "daemon/tls.h"
#include "daemon/watch.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/sha256.h"

enum { LOOK_MS = 1000, MAX_PEM_BYTES = 1 << 20 };

struct pd_cert {
    struct pd_tls *tls;
    char *paths[2]; /* of certificate and key; NULL = the manifest names none */
    struct pd_watch watches[2];
    uint8_t digests[2][FO_SHA256_BYTES]; /* of the texts in force */
    struct pd_tls_about about;
    uint64_t next_look_ms;
    struct pd_file_state state;
};

int pd_cert_new(struct pd_cert **ret, struct fo_err *e) {
    struct pd_cert *c = calloc(1, sizeof *c);
    if (!c) return fo_fail(e, FO_ENOMEM, "no memory for TLS");
    if (pd_tls_new(&c->tls, e)) {
        free(c);
        return e->code;
    }
    c->state = (struct pd_file_state){ .ok = true, .reason = "NotConfigured" };
    *ret = c;
    return FO_OK;
}

void pd_cert_free(struct pd_cert *c) {
    if (!c) return;
    pd_tls_free(c->tls);
    free(c->paths[0]);
    free(c->paths[1]);
    free(c);
}

struct pd_tls *pd_cert_tls(struct pd_cert *c) {
    return c->tls;
}

const struct pd_file_state *pd_cert_state(const struct pd_cert *c) {
    return &c->state;
}

/* One of the two files. Its text is freed with drop. */
static int read_one(int which, const char *path, struct pd_watch *w, char **ret, size_t *ret_len, struct fo_err *e) {
    static const char *const keys[] = { "server.tls.cert", "server.tls.key" };
    static const char way[] = "let the daemon's user read it, or name another file, or take 'tls' out of 'server'";
    pd_watch_mark(w, path);
    if (which == 1 && (w->seen.st_mode & (S_IROTH | S_IWOTH)))
        return fo_fail(e, FO_EACCES, "%s: %s may be read or written by everybody (mode %04o), who could pose as this server then; chmod 640 it, for the daemon's group", keys[which], path,
                       (unsigned)w->seen.st_mode & 07777);
    if (fo_file_read(path, MAX_PEM_BYTES, ret, ret_len, e) == FO_OK) return FO_OK;
    pd_reach_explain(path, e);
    char why[sizeof e->msg];
    memcpy(why, e->msg, sizeof why);
    return fo_fail(e, e->code, "%s: %.300s; %s", keys[which], why, way);
}

/* A key does not stay in memory that is free. */
static void drop(char *text, size_t n) {
    if (text) explicit_bzero(text, n);
    free(text);
}

/* Reads both files and puts them in force. *ret_new: they are other texts than before. */
static int load(struct pd_cert *c, char *const paths[2], bool *ret_new, struct fo_err *e) {
    char *texts[2] = { NULL, NULL };
    size_t lens[2] = { 0, 0 };
    uint8_t digests[2][FO_SHA256_BYTES];
    int code = FO_OK;
    *ret_new = false;
    for (int i = 0; i < 2 && code == FO_OK; i++) code = read_one(i, paths[i], &c->watches[i], &texts[i], &lens[i], e);
    for (int i = 0; i < 2 && code == FO_OK; i++) fo_sha256(texts[i], lens[i], digests[i]);
    if (code == FO_OK && !(pd_tls_on(c->tls) && memcmp(digests, c->digests, sizeof digests) == 0)) {
        const struct pd_tls_pem pem = { .cert_file = paths[0], .cert = texts[0], .n_cert = lens[0], .key_file = paths[1], .key = texts[1], .n_key = lens[1] };
        code = pd_tls_set(c->tls, &pem, &c->about, e);
        if (code == FO_OK) memcpy(c->digests, digests, sizeof digests);
        *ret_new = code == FO_OK;
    }
    drop(texts[0], lens[0]);
    drop(texts[1], lens[1]);
    return code;
}

/* Of what is in force. */
static void accept(struct pd_app *app, bool is_new) {
    struct pd_cert *c = app->cert;
    char until[32];
    struct tm tm;
    bool over = time(NULL) >= c->about.until, was_over = strcmp(c->state.reason, "Expired") == 0;
    strftime(until, sizeof until, "%Y-%m-%d %H:%M UTC", gmtime_r(&c->about.until, &tm));
    c->state = (struct pd_file_state){ .ok = !over, .reason = over ? "Expired" : "Accepted" };
    snprintf(c->state.message, sizeof c->state.message, "%.150s, %s %s", c->about.subject, over ? "expired at" : "valid until", until);
    if (is_new || over != was_over) pd_app_event(app, over ? PD_EV_TLS_EXPIRED : PD_EV_TLS_ACCEPTED, NULL, "%.150s: %s", c->paths[0], c->state.message);
}

static void refuse(struct pd_app *app, const char *why) {
    struct pd_cert *c = app->cert;
    char before[sizeof c->state.message];
    memcpy(before, c->state.message, sizeof before);
    c->state = (struct pd_file_state){ .reason = "Refused" };
    snprintf(c->state.message, sizeof c->state.message, "%.320s; the certificate before stays in force", why);
    if (strcmp(before, c->state.message) != 0) pd_app_event(app, PD_EV_TLS_REFUSED, NULL, "%s", c->state.message);
}

bool pd_cert_look(struct pd_app *app, bool now) {
    struct pd_cert *c = app->cert;
    struct pd_file_state was = c->state;
    struct fo_err e;
    bool is_new, refused = strcmp(c->state.reason, "Refused") == 0;
    if (!c->paths[0] || (!now && fo_now_ms() < c->next_look_ms)) return false;
    c->next_look_ms = fo_now_ms() + LOOK_MS;
    if (!now && !refused && !pd_watch_changed(&c->watches[0], c->paths[0]) && !pd_watch_changed(&c->watches[1], c->paths[1])) accept(app, false);
    else if (load(c, c->paths, &is_new, &e)) refuse(app, e.msg);
    else accept(app, is_new);
    return was.ok != c->state.ok || was.reason != c->state.reason || strcmp(was.message, c->state.message) != 0;
}

/* The two paths in heap memory; NULL where the manifest has no `tls`. */
static int resolve(const struct cf_server *s, const char *dir, char *ret[2], struct fo_err *e) {
    ret[0] = s->tls_cert ? pd_resolve(dir, s->tls_cert) : NULL;
    ret[1] = s->tls_cert ? pd_resolve(dir, s->tls_key) : NULL;
    return s->tls_cert && (!ret[0] || !ret[1]) ? fo_fail(e, FO_ENOMEM, "no memory for a path") : FO_OK;
}

int pd_cert_check(const struct cf_manifest *m, const char *dir, struct fo_err *e) {
    struct pd_cert *c;
    char *paths[2];
    bool is_new;
    if (pd_cert_new(&c, e)) return e->code;
    int code = resolve(&m->server, dir, paths, e);
    if (code == FO_OK && paths[0]) code = load(c, paths, &is_new, e);
    free(paths[0]);
    free(paths[1]);
    pd_cert_free(c);
    return code;
}

static bool same_text(const char *a, const char *b) {
    return a && b && strcmp(a, b) == 0;
}

int pd_cert_use(struct pd_app *app, const struct cf_manifest *m, const char *dir, struct fo_err *e) {
    struct pd_cert *c = app->cert;
    char *paths[2];
    int code = resolve(&m->server, dir, paths, e);
    bool is_new = false, same = same_text(paths[0], c->paths[0]) && same_text(paths[1], c->paths[1]);
    if (code == FO_OK && same) {
        pd_cert_look(app, true);
    } else if (code == FO_OK && paths[0]) {
        struct pd_watch before[2] = { c->watches[0], c->watches[1] };
        code = load(c, paths, &is_new, e);
        if (code) memcpy(c->watches, before, sizeof before);
    }
    if (code || same) {
        free(paths[0]);
        free(paths[1]);
        return code;
    }
    free(c->paths[0]);
    free(c->paths[1]);
    memcpy(c->paths, paths, sizeof paths);
    if (paths[0]) {
        accept(app, true);
    } else {
        pd_tls_clear(c->tls);
        c->state = (struct pd_file_state){ .ok = true, .reason = "NotConfigured" };
    }
    return FO_OK;
}
