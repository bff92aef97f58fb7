/* /v1/sessions/{id}: a session as bytes, out and in again (engine/blob.h), so that its state can live where its user does. Sessions are those of the key
 * that asks: another one finds nothing under the same id. Bytes are neither collected nor kept here, and the memory that all transfers
 * together take for their pages has a bound. */
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/routes.h"
#include "daemon/sessions.h"
#include "daemon/text.h"
#include "daemon/whose.h"
#include "engine/blob.h"
#include "engine/engine.h"
#include "foundry/base/err.h"

enum { MAX_COPIES = 64 /* of one name */ };
#define WORK_BYTES (UINT64_C(256) << 20) /* of all transfers, unless there is but one */

static atomic_uint_fast64_t work;

static bool work_begin(uint64_t n, struct pd_error *x) {
    uint64_t before = atomic_fetch_add(&work, n);
    if (before == 0 || before + n <= WORK_BYTES) return true;
    atomic_fetch_sub(&work, n);
    return pd_error_set(x, PD_ERR_MEMORY, NULL, "As many sessions are on their way as there is memory for.");
}

/* --- who and what ---------------------------------------------------------------------------- */
static const char *tenant_of(const struct pd_call *c) {
    return c->note.key[0] ? c->note.key : NULL;
}

static bool id_ok(const char *id, struct pd_error *x) {
    size_t n = strlen(id);
    if (n == 0 || n > PD_MAX_SESSION_BYTES) return pd_error_set(x, PD_ERR_VALUE, "id", "A session's id has 1 to %d bytes, this one %zu.", PD_MAX_SESSION_BYTES, n);
    return pd_utf8_ok(id, n) || pd_error_set(x, PD_ERR_VALUE, "id", "The session's id is not UTF-8.");
}

/* The name that is asked for, or that of the only model, else `default`. */
static bool model_name(struct pd_app *app, const struct pd_call *c, char name[128], struct pd_error *x) {
    if (pd_query_get(c->head->query, "model", name, 128) && name[0]) return true;
    struct pd_view *v = pd_app_view(app);
    bool one = v->n == 1, known = one || pd_view_find(v, "default") != NULL;
    if (known) snprintf(name, 128, "%s", one ? v->entries[0].decl->name : "default");
    else pd_error_set(x, PD_ERR_INVALID, "model", "Which model's? Several are declared and none is called `default`: add ?model=.");
    pd_view_put(v);
    return known;
}

/* The model: one of its copies, a reference of the caller's. */
static bool find(struct pd_app *app, struct pd_call *c, const char *id, struct pn_served **ret, struct pd_error *x) {
    char name[128];
    struct cf_sampling ignored;
    if (!id_ok(id, x) || !model_name(app, c, name, x) || !pd_app_find(app, name, ret, &ignored, x)) return false;
    snprintf(c->note.model, sizeof c->note.model, "%s", pn_served_name(*ret));
    return true;
}

struct copies {
    const char *name;
    struct pn_served *list[MAX_COPIES];
    size_t n;
};

static void collect(void *ctx, struct pn_served *s) {
    struct copies *all = ctx;
    if (all->n < MAX_COPIES && strcmp(pn_served_name(s), all->name) == 0) all->list[all->n++] = pn_served_ref(s);
}

static void copies_of(struct pd_app *app, const struct pn_served *s, struct copies *ret) {
    *ret = (struct copies){ .name = pn_served_name(s) };
    pn_engine_each(app->engine, collect, ret);
}

static void copies_done(struct copies *all) {
    for (size_t i = 0; i < all->n; i++) pn_served_put(all->list[i]);
}

static void session_error(struct pd_app *app, struct pn_served *s, const struct fo_err *e, const char *field, struct pd_error *x) {
    static const struct {
        enum fo_code code;
        enum pd_error_id id;
    } rows[] = { { FO_ENOENT, PD_ERR_NO_SESSION }, { FO_EBUSY, PD_ERR_NO_SESSION }, { FO_EFORMAT, PD_ERR_SESSION }, { FO_EUNSUPPORTED, PD_ERR_SESSION_OTHER }, { FO_ELIMIT, PD_ERR_BODY_SIZE }, { FO_ENOMEM, PD_ERR_NO_ROOM } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].code != e->code) continue;
        pd_error_set(x, rows[i].id, field, "%s", e->msg);
        return;
    }
    pd_app_error(app, s, e, x);
}

/* --- out ------------------------------------------------------------------------------------- */
struct out {
    struct pd_call *call;
    bool begun;
};

static int left(struct fo_err *e) {
    return fo_fail(e, FO_ECANCELLED, "the client left");
}

static int out_begin(void *ctx, uint64_t bytes, uint32_t tokens, struct fo_err *e) {
    struct out *o = ctx;
    char line[64];
    snprintf(line, sizeof line, "x-session-tokens: %u\r\n", tokens);
    o->begun = true;
    if (!pd_stream_open_sized(o->call, 200, "application/octet-stream", line, bytes)) return left(e);
    return strcmp(o->call->head->method, "HEAD") == 0 ? left(e) : 0; /* that was all of it */
}

static int out_write(void *ctx, const void *bytes, size_t n, struct fo_err *e) {
    const struct out *o = ctx;
    return pd_stream_write(o->call, bytes, n) ? 0 : left(e);
}

/* The text that was used last, of all copies. */
static int newest(const struct copies *all, const char *tenant, const char *session, struct pn_served **ret, uint64_t *ret_id, struct fo_err *e) {
    struct pn_text_info t, best = { 0 };
    struct fo_err one;
    bool found = false;
    fo_fail(e, FO_ENOENT, "nothing is kept of this session");
    for (size_t i = 0; i < all->n; i++) {
        if (pn_served_text(all->list[i], tenant, session, &t, &one)) {
            if (one.code != FO_ENOENT && !found) *e = one;
        } else if (!found || t.used_ms > best.used_ms) {
            found = true;
            best = t;
            *ret = all->list[i];
        }
    }
    if (!found) return e->code;
    *ret_id = best.id;
    return 0;
}

void pd_get_session(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_error x;
    struct fo_err e;
    struct pn_served *s, *at = NULL;
    struct copies all;
    struct out out = { .call = c };
    uint64_t id = 0;
    uint32_t n;
    if (!find(app, c, param, &s, &x)) {
        pd_error_reply(c, &x);
        return;
    }
    copies_of(app, s, &all);
    uint64_t bytes = pn_blob_work_bytes(pn_served_model(s));
    int rc = newest(&all, tenant_of(c), param, &at, &id, &e);
    if (rc) {
        session_error(app, s, &e, NULL, &x);
    } else if (!work_begin(bytes, &x)) {
        rc = FO_ENOMEM;
    } else {
        const struct pn_blob_sink to = { out_begin, out_write, &out };
        rc = pn_served_save(at, id, &to, &n, &e);
        atomic_fetch_sub(&work, bytes);
        if (rc) session_error(app, at, &e, NULL, &x);
    }
    if (rc && !out.begun) {
        pd_error_reply(c, &x);
    } else if (rc && rc != FO_ECANCELLED) { /* shorter than was said: nobody takes it for whole */
        pd_error_note(&x, c);
        c->note.verdict = "failed";
        pd_stream_cut(c);
    } else if (rc == 0) {
        pd_stream_close(c);
    }
    copies_done(&all);
    pn_served_put(s);
}

/* --- in -------------------------------------------------------------------------------------- */
struct in {
    struct pd_call *call;
    uint64_t most; /* bytes that the body may have */
    bool begun;
};

/* The head of one that is too long is read all the same: if it goes with something else, that is the reason. */
static int in_read(void *ctx, void *bytes, size_t n, struct fo_err *e) {
    struct in *in = ctx;
    struct pd_call *c = in->call;
    if (in->begun && c->head->length > in->most)
        return fo_fail_need(e, FO_ELIMIT, c->head->length, in->most, "The body has %llu bytes, and no session of this model more than %llu.", (unsigned long long)c->head->length,
                            (unsigned long long)in->most);
    in->begun = true;
    for (unsigned char *p = bytes; n > 0;) {
        ptrdiff_t k = pd_body_read(c, p, n);
        if (k < 0) return left(e); /* or it has been told */
        if (k == 0) return fo_fail(e, FO_EFORMAT, "the session is cut: the body ends within it");
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int in_end(void *ctx, struct fo_err *e) {
    const struct in *in = ctx;
    unsigned char more;
    ptrdiff_t k = pd_body_read(in->call, &more, 1);
    return k < 0 ? left(e) : k > 0 ? (int)fo_fail(e, FO_EFORMAT, "something follows the session") : 0;
}

void pd_put_session(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_error x;
    struct fo_err e = { 0 };
    struct pn_served *s;
    const char *field = NULL;
    uint32_t n = 0;
    bool ok = find(app, c, param, &s, &x);
    if (!ok) {
        pd_error_reply(c, &x);
        return;
    }
    const struct pn_model *m = pn_served_model(s);
    uint64_t bytes = pn_blob_work_bytes(m);
    if ((ok = work_begin(bytes, &x))) {
        struct in in = { .call = c, .most = pn_blob_most_bytes(m) };
        const struct pn_blob_source from = { .read = in_read, .end = in_end, .ctx = &in };
        ok = pn_served_restore(s, tenant_of(c), param, &from, &n, &field, &e) == 0;
        atomic_fetch_sub(&work, bytes);
        if (!ok) session_error(app, s, &e, field, &x);
    }
    if (ok) pd_reply_object(c, 200, json_pack("{s:s, s:s, s:s, s:I}", "id", param, "object", "session", "model", pn_served_name(s), "tokens", (json_int_t)n));
    else if (!c->status && e.code != FO_ECANCELLED) pd_error_reply(c, &x);
    pn_served_put(s);
}

/* --- away ------------------------------------------------------------------------------------ */
void pd_delete_session(struct pd_app *app, struct pd_call *c, const char *param) {
    struct pd_error x;
    struct fo_err e = { 0 };
    struct pn_served *s;
    struct copies all = { .n = 0 };
    char name[128];
    uint32_t n = 0, one;
    int rc = 0;
    if (!id_ok(param, &x) || !model_name(app, c, name, &x)) {
        pd_error_reply(c, &x);
        return;
    }
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *entry = pd_view_find(v, name);
    if (entry) snprintf(name, sizeof name, "%s", entry->decl->name);
    pd_view_put(v);
    bool on_disk = entry && pd_sessions_forget(app, name, tenant_of(c), param), loaded = find(app, c, param, &s, &x);
    if (on_disk) n++;
    if (loaded) copies_of(app, s, &all);
    for (size_t i = 0; i < all.n; i++) {
        if (pn_served_drop(all.list[i], tenant_of(c), param, &one, &e)) rc = (int)e.code;
        else n += one;
    }
    copies_done(&all);
    if (n == 0 && rc == 0) fo_fail(&e, FO_ENOENT, "nothing is kept of this session");
    if (n > 0) {
        pd_reply_object(c, 200, json_pack("{s:s, s:s, s:s, s:b}", "id", param, "object", "session", "model", name, "deleted", 1));
    } else {
        if (loaded) session_error(app, s, &e, NULL, &x);
        pd_error_reply(c, &x);
    }
    if (loaded) pn_served_put(s);
}
