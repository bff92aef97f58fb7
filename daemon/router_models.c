/* See router_models.h. Objects are kept as text: pages of many are put together without a parser. */
#include "daemon/router_models.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/body.h"
#include "daemon/oai.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { MAX_ID = 512, MAX_ALIASES = 64, MAX_ROOM = 65536 };

static void listed_done(struct pd_listed *l) {
    for (size_t i = 0; i < l->n_aliases; i++) free(l->aliases[i]);
    free(l->aliases);
    free(l->id);
    free(l->text);
}

void pd_models_put(struct pd_models *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1) return;
    for (size_t i = 0; i < m->n; i++) listed_done(&m->list[i]);
    free(m);
}

struct pd_models *pd_models_get(struct pd_models *m) {
    if (m) atomic_fetch_add(&m->refs, 1);
    return m;
}

/* A name that can stand in a log and in a label. */
static const char *name_of(const json_t *v) {
    const char *s = pd_json_word(v);
    if (!s || !*s || strlen(s) > MAX_ID) return NULL;
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F) return NULL;
    return s;
}

/* False without memory; what it took is in *l all the same. */
static bool read_one(json_t *o, const char *id, struct pd_listed *l) {
    const char *status = pd_json_word(json_object_get(o, "status"));
    const json_t *aliases = json_object_get(o, "aliases"), *a, *room = json_object_get(o, "max_concurrent");
    size_t i, n = json_array_size(aliases);
    l->id = strdup(id);
    l->serves = !status || strcmp(status, "ready") == 0;
    if (json_is_integer(room) && json_integer_value(room) > 0 && json_integer_value(room) <= MAX_ROOM) l->room = (uint32_t)json_integer_value(room);
    json_object_del(o, "backends"); /* of a router behind this one: ours takes its place */
    l->text = json_dumps(o, JSON_COMPACT);
    l->aliases = calloc(n < MAX_ALIASES ? n + 1 : MAX_ALIASES, sizeof *l->aliases);
    if (!l->id || !l->text || !l->aliases) return false;
    json_array_foreach(aliases, i, a) {
        const char *name = name_of(a);
        if (!name || l->n_aliases == MAX_ALIASES) continue;
        l->aliases[l->n_aliases] = strdup(name);
        if (!l->aliases[l->n_aliases]) return false;
        l->n_aliases++;
    }
    return true;
}

int pd_models_parse(const char *text, size_t len, struct pd_models **ret, struct fo_err *e) {
    struct pd_body body = { 0 };
    struct pd_error x;
    if (!pd_body_parse(text, len, &body, &x)) {
        pd_body_done(&body);
        return fo_fail(e, FO_EFORMAT, "its list of models: %.150s", x.message);
    }
    json_t *data = json_object_get(body.root, "data"), *o;
    size_t i, n = json_array_size(data);
    int code = FO_OK;
    struct pd_models *m = NULL;
    if (!json_is_array(data)) code = fo_fail(e, FO_EFORMAT, "its list of models has no `data`");
    else if (n > PD_MAX_LISTED) code = fo_fail_need(e, FO_ELIMIT, n, PD_MAX_LISTED, "its list has %zu models, and %d may be", n, PD_MAX_LISTED);
    else if (!(m = calloc(1, sizeof *m + n * sizeof *m->list))) code = fo_fail(e, FO_ENOMEM, "no memory for a list of models");
    if (code == FO_OK) {
        atomic_init(&m->refs, 1);
        json_array_foreach(data, i, o) {
            const char *id = name_of(json_object_get(o, "id"));
            if (!id || code) continue;
            if (!read_one(o, id, &m->list[m->n++])) code = fo_fail(e, FO_ENOMEM, "no memory for a list of models");
        }
    }
    pd_body_done(&body);
    if (code) pd_models_put(m);
    else *ret = m;
    return code;
}

const struct pd_listed *pd_models_find(const struct pd_models *m, const char *name) {
    for (size_t i = 0; m && i < m->n; i++)
        if (strcmp(m->list[i].id, name) == 0) return &m->list[i];
    for (size_t i = 0; m && i < m->n; i++)
        for (size_t k = 0; k < m->list[i].n_aliases; k++)
            if (strcmp(m->list[i].aliases[k], name) == 0) return &m->list[i];
    return NULL;
}

/* --- pages --- */

static const struct pd_listed *by_id(const struct pd_models *m, const char *id) {
    for (size_t i = 0; m && i < m->n; i++)
        if (strcmp(m->list[i].id, id) == 0) return &m->list[i];
    return NULL;
}

static bool serves(const struct pd_source *s, const struct pd_listed *l) {
    return s->up && l->serves;
}

/* The object of an id that somebody has. */
static void put_object(const struct pd_source *s, size_t n, const char *id, struct fo_buf *out) {
    const struct pd_listed *best = NULL, *l;
    bool first = true, served = false;
    for (size_t i = 0; i < n; i++) {
        if (!(l = by_id(s[i].models, id)) || (best && (served || !serves(&s[i], l)))) continue;
        best = l;
        served = serves(&s[i], l);
    }
    fo_buf_append(out, best->text, strlen(best->text) - 1); /* without its brace */
    fo_buf_puts(out, ",\"backends\":[");
    for (size_t i = 0; i < n; i++) {
        if (!(l = by_id(s[i].models, id))) continue;
        fo_buf_puts(out, first ? "{\"url\":" : ",{\"url\":");
        pd_json_text(out, s[i].name, strlen(s[i].name));
        fo_buf_printf(out, ",\"serves\":%s}", serves(&s[i], l) ? "true" : "false");
        first = false;
    }
    fo_buf_puts(out, "]}");
}

/* Whether no backend before s[i] has the id of its entry k. */
static bool is_first(const struct pd_source *s, size_t i, size_t k) {
    const char *id = s[i].models->list[k].id;
    for (size_t j = 0; j < i; j++)
        if (by_id(s[j].models, id)) return false;
    return by_id(s[i].models, id) == &s[i].models->list[k];
}

void pd_models_merge(const struct pd_source *s, size_t n, struct fo_buf *out) {
    bool any = false;
    fo_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; s[i].models && k < s[i].models->n; k++) {
            if (!is_first(s, i, k)) continue;
            if (any) fo_buf_putc(out, ',');
            any = true;
            put_object(s, n, s[i].models->list[k].id, out);
        }
    fo_buf_puts(out, "]}");
}

bool pd_models_merge_one(const struct pd_source *s, size_t n, const char *name, struct fo_buf *out) {
    for (size_t i = 0; i < n; i++) {
        const struct pd_listed *l = pd_models_find(s[i].models, name);
        if (!l) continue;
        put_object(s, n, l->id, out);
        return true;
    }
    return false;
}

void pd_models_names(const struct pd_source *s, size_t n, struct fo_buf *out) {
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; s[i].models && k < s[i].models->n && !out->failed; k++)
            if (is_first(s, i, k)) fo_buf_printf(out, "%s%s", out->len ? ", " : "", s[i].models->list[k].id);
}
