/* What rows cannot say: see check.h. Findings stand at the node that is wrong; a value that has one from its row already (the wrong
 * shape, a misspelt word) is not told of twice. */
#include "config/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "config/report.h"
#include "config/scalar.h"
#include "config/url.h"
#include "config/yaml.h"
#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/base/shard.h"

enum { MAX_AUTO = 64, MAX_DIE_NAME = 63, MAX_SOCKET_PATH = 107 }; /* fields of cf_die_fact; sockaddr_un */

struct check {
    struct cf_report *rep;
    const struct cf_node *tree;
};

static const char *shown(const struct cf_node *n, char out[CF_SHOWN_BYTES]) {
    return cf_shown(n->text, n->len, out);
}
#define SHOWN(n) shown(n, (char[CF_SHOWN_BYTES]){ 0 })

static bool is_scalar(const struct cf_node *n) {
    return n && n->kind == CF_NODE_SCALAR;
}

static bool same_address(const struct cf_address *a, const struct cf_address *b) {
    if (a->path || b->path) return a->path && b->path && strcmp(a->path, b->path) == 0;
    return a->port != 0 && a->v6 == b->v6 && a->port == b->port && memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

static void check_listen(const struct check *c, const struct cf_server *s) {
    const struct cf_node *list = cf_node_find(cf_node_find(c->tree, "server"), "listen");
    struct cf_address seen[16], a;
    const struct cf_node *places[16];
    size_t n_seen = 0;
    if (!list || list->kind != CF_NODE_LIST || list->n > 16) return;
    for (const struct cf_node *n = list->first; n; n = n->next) {
        if (n->kind != CF_NODE_SCALAR || !cf_address_parse(n->text, &a)) continue;
        if (a.path && strlen(a.path) > MAX_SOCKET_PATH)
            cf_report_add(c->rep, CF_RANGE, n->line, n->col, n->width, "'listen': a path of %zu bytes; a Unix socket's has at most %d", strlen(a.path), MAX_SOCKET_PATH);
        if (a.path && s->admin_socket && strcmp(a.path, s->admin_socket) == 0)
            cf_report_add(c->rep, CF_CONFLICT, n->line, n->col, n->width,
                          "'listen': %s is the 'admin_socket'; whoever opens that one administers, whoever opens this one only asks: they need two paths", a.path);
        if (a.scheme == CF_HTTPS && !s->tls_cert)
            cf_report_add(c->rep, CF_CONFLICT, n->line, n->col, n->width, "'listen': %s needs a certificate: write 'tls: { cert: FILE, key: FILE }' in 'server'", n->text);
        if (!a.loopback && !s->insecure && !s->api_keys_file)
            cf_report_add(c->rep, CF_CONFLICT, n->line, n->col, n->width,
                          "'listen': %s is reachable from outside and nothing protects the API; listen on 127.0.0.1, name an "
                          "'api_keys_file', or write 'insecure: true' in 'server'",
                          n->text);
        for (size_t i = 0; i < n_seen; i++)
            if (same_address(&seen[i], &a)) {
                cf_report_add(c->rep, CF_DUPLICATE, n->line, n->col, n->width,
                              "'listen': %s stands here twice; first in line %d, column %d", n->text, places[i]->line, places[i]->col);
                break;
            }
        seen[n_seen] = a;
        places[n_seen++] = n;
    }
}

/* --- hosts and origins ------------------------------------------------------------------------------------------------------- */
#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define ALNUM "0123456789" LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
enum { MAX_ORIGIN = 200 };

/* A name, or an address with or without brackets; no port. */
static bool is_host(const char *s) {
    char address[64];
    struct cf_address a;
    size_t n = strlen(s);
    if (!strchr(s, ':')) return n > 0 && n <= 253 && strspn(s, ALNUM ".-_") == n && strchr(ALNUM, *s);
    snprintf(address, sizeof address, *s == '[' ? "%s:1" : "[%s]:1", s);
    return n < sizeof address - 4 && cf_address_parse(address, &a);
}

/* scheme://host or scheme://host:port, as browsers send it. */
static bool is_origin(const char *s) {
    char host[MAX_ORIGIN + 1];
    const char *rest = strstr(s, "://"), *port;
    size_t n = strlen(s), scheme = strspn(s, LOWER "0123456789+.-");
    if (n > MAX_ORIGIN || !rest || (size_t)(rest - s) != scheme || scheme == 0 || !strchr(LOWER, *s)) return false;
    rest += 3;
    n = *rest == '[' ? strcspn(rest, "]") + 1 : strcspn(rest, ":");
    if (n == 0 || n > strlen(rest)) return false;
    memcpy(host, rest, n);
    host[n] = '\0';
    port = rest + n;
    if (*port && (*port != ':' || port[1] == '\0' || strlen(port) > 6 || strspn(port + 1, "0123456789") != strlen(port + 1))) return false;
    return strpbrk(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == NULL && is_host(host);
}

static void check_texts(const struct check *c, const char *key, bool (*good)(const char *), const char *what) {
    const struct cf_node *list = cf_node_find(cf_node_find(c->tree, "server"), key);
    if (!list || list->kind != CF_NODE_LIST) return;
    for (const struct cf_node *n = list->first; n; n = n->next)
        if (is_scalar(n) && n->len > 0 && strcmp(n->text, "*") != 0 && !good(n->text))
            cf_report_add(c->rep, CF_TYPE, n->line, n->col, n->width, "'%s': '%s' is not %s", key, SHOWN(n), what);
}

struct named {
    const struct cf_node *node;
    bool alias;
    int file; /* of parts */
};

static int by_name(const void *a, const void *b) {
    const struct named *p = a, *q = b;
    const struct cf_node *x = p->node, *y = q->node;
    int c = strcmp(x->text, y->text);
    if (c) return c;
    if (p->file != q->file) return p->file < q->file ? -1 : 1;
    return x->line != y->line ? (x->line < y->line ? -1 : 1) : (x->col > y->col) - (x->col < y->col);
}

static const struct cf_node *models_of(const struct cf_part *p) {
    const struct cf_node *models = cf_node_find(p->tree, "models");
    return models && models->kind == CF_NODE_LIST ? models->first : NULL;
}

/* Names and aliases share one space, over all texts: what a client sends must mean one model. */
static int check_names(struct cf_report *rep, const struct cf_part *parts, size_t n_parts, struct fo_region *scratch, struct fo_err *e) {
    size_t n = 0, most = 0;
    for (size_t i = 0; i < n_parts; i++)
        for (const struct cf_node *m = models_of(&parts[i]); m; m = m->next) {
            const struct cf_node *aliases = cf_node_find(m, "aliases");
            most += 1 + (aliases ? aliases->n : 0);
        }
    struct named *all = fo_region_array(scratch, most, sizeof *all);
    if (most && !all) return fo_fail(e, FO_ENOMEM, "no memory to check the manifest");
    for (size_t i = 0; i < n_parts; i++)
        for (const struct cf_node *m = models_of(&parts[i]); m; m = m->next) {
            const struct cf_node *name = cf_node_find(m, "name"), *aliases = cf_node_find(m, "aliases");
            if (name && name->kind == CF_NODE_SCALAR) all[n++] = (struct named){ name, false, (int)i };
            if (!aliases || aliases->kind != CF_NODE_LIST) continue;
            for (const struct cf_node *a = aliases->first; a; a = a->next)
                if (a->kind == CF_NODE_SCALAR) all[n++] = (struct named){ a, true, (int)i };
        }
    if (n) qsort(all, n, sizeof *all, by_name);
    for (size_t i = 1, first = 0; i < n; i++) {
        const struct named *was = &all[first], *is = &all[i];
        if (strcmp(is->node->text, was->node->text) != 0) {
            first = i;
            continue;
        }
        if (is->node->len == 0) continue; /* told already */
        cf_report_file(rep, is->file);
        cf_report_add(rep, CF_DUPLICATE, is->node->line, is->node->col, is->node->width, "'%s' is taken already: %s in %s%sline %d, column %d", SHOWN(is->node), was->alias ? "an alias" : "a name",
                      was->file == is->file ? "" : parts[was->file].name, was->file == is->file ? "" : ", ", was->node->line, was->node->col);
    }
    return FO_OK;
}

/* A request that runs needs a session. An unwritten max_concurrent follows a lower max_sessions; a written one must fit. */
static void check_concurrency(struct cf_report *rep, const struct cf_node *map, struct cf_model *m) {
    if (m->max_concurrent <= m->max_sessions) return;
    const struct cf_node *n = cf_node_find(map, "max_concurrent"), *sessions = cf_node_find(map, "max_sessions");
    if (sessions && (sessions->kind != CF_NODE_SCALAR || strtoll(sessions->text, NULL, 10) != m->max_sessions)) return; /* told already */
    if (n)
        cf_report_add(
            rep, CF_CONFLICT, n->line, n->col, n->width,
            "'max_concurrent': each running request needs a session, and 'max_sessions' is %lld%s; write at most that, or raise it",
            (long long)m->max_sessions, sessions ? "" : " where it is not written");
    else
        m->max_concurrent = m->max_sessions;
}

/* Levels come one after the other; what stands in the text is told of, a default is not. */
static void check_pressure(const struct check *c, const struct cf_pressure *p) {
    const struct {
        const char *name;
        double at;
    } level[] = { { "watch", p->watch }, { "tight", p->tight }, { "critical", p->critical } };
    const struct cf_node *map = cf_node_find(c->tree, "pressure");
    for (int i = 1; i < 3; i++) {
        const struct cf_node *here = cf_node_find(map, level[i].name), *n = here ? here : cf_node_find(map, level[i - 1].name);
        if (level[i].at > level[i - 1].at || !is_scalar(n)) continue;
        cf_report_add(c->rep, CF_CONFLICT, n->line, n->col, n->width, "'%s': %g%% must be above '%s', which is %g%%%s", level[i].name, level[i].at, level[i - 1].name, level[i - 1].at,
                      here ? "" : "; it is not written here, and this is its default");
    }
    const struct cf_node *leave = cf_node_find(map, "leave");
    if (is_scalar(leave) && p->leave >= p->watch)
        cf_report_add(c->rep, CF_CONFLICT, leave->line, leave->col, leave->width, "'leave': %g points below 'watch', which is %g%%, is never reached", p->leave, p->watch);
}

/* What is always loaded, or never, is not idle. */
static void check_ttl(struct cf_report *rep, const struct cf_node *map, const struct cf_model *m) {
    const struct cf_node *n = cf_node_find(map, "ttl"), *state = cf_node_find(map, "state");
    if (!is_scalar(n) || m->state == CF_STATE_ON_DEMAND) return;
    if (state && (!is_scalar(state) || !cf_word_in("loaded|absent", state->text, state->len))) return; /* told already */
    cf_report_add(rep, CF_CONFLICT, n->key->line, n->key->col, n->key->width, "'ttl': only a model that is loaded on demand has one; write 'state: on_demand', or take it out");
}

/* --- where a file comes from ------------------------------------------------------------------------------------------------- */
/* One of `url` and `mirrors`, whose text is good by itself. n_shards: what the path says of the file, 0 = it is one. */
static void check_url(struct cf_report *rep, const char *key, const struct cf_node *n, bool has_sum, uint32_t n_shards) {
    struct cf_url u;
    if (!is_scalar(n) || cf_url_parse(n->text, &u)) return; /* told already */
    if (u.scheme == CF_URL_HTTP && !u.loopback && !has_sum)
        cf_report_add(rep, CF_CONFLICT, n->line, n->col, n->width, "'%s': what http:// brings, anybody on the way may change: write https://, or the file's 'sha256'", key);
    if (u.n_shards != n_shards && u.n_shards && n_shards)
        cf_report_add(rep, CF_CONFLICT, n->line, n->col, n->width, "'%s': a model of %u files, and its 'path' is of %u", key, u.n_shards, n_shards);
    else if (u.n_shards != n_shards && u.n_shards)
        cf_report_add(rep, CF_CONFLICT, n->line, n->col, n->width, "'%s': one of %u files; 'path' ends in -%05u-of-%05u.gguf too then, and the others are put beside it", key, u.n_shards,
                      u.shard + 1, u.n_shards);
    else if (u.n_shards != n_shards)
        cf_report_add(rep, CF_CONFLICT, n->line, n->col, n->width, "'%s': 'path' is one of %u files; this ends in -00001-of-%05u.gguf too then, and all are fetched", key, n_shards, n_shards);
}

/* What is fetched is a file, or the files of a model in shards; of each there is one sum. */
static void check_source(struct cf_report *rep, const struct cf_node *map, const struct cf_model *m) {
    const struct cf_node *source = cf_node_find(map, "source"), *path = cf_node_find(source, "path"), *url = cf_node_find(source, "url"), *mirrors = cf_node_find(source, "mirrors"),
                         *sums = cf_node_find(source, "sha256");
    uint32_t no, n_shards = 0;
    if (!source || source->kind != CF_NODE_MAP || !is_scalar(path)) return;
    if (!fo_shard_name(path->text, &no, &n_shards)) n_shards = 0;
    if (mirrors && !url)
        cf_report_add(rep, CF_CONFLICT, mirrors->key->line, mirrors->key->col, mirrors->key->width, "'mirrors': a file that has mirrors has a 'url', which is tried first");
    if (url && path->len && path->text[path->len - 1] == '/')
        cf_report_add(rep, CF_CONFLICT, path->line, path->col, path->width, "'path': a folder is not fetched; write the path of the file that comes from 'url'");
    if (url && n_shards > CF_MAX_SHARDS)
        cf_report_add(rep, CF_RANGE, path->line, path->col, path->width, "'path': a model of %u files; at most %d are fetched", n_shards, CF_MAX_SHARDS);
    check_url(rep, "url", url, m->n_source_sha256 > 0, n_shards);
    for (const struct cf_node *n = mirrors && mirrors->kind == CF_NODE_LIST ? mirrors->first : NULL; n; n = n->next) check_url(rep, "mirrors", n, m->n_source_sha256 > 0, n_shards);
    size_t want = n_shards ? n_shards : 1;
    if (m->n_source_sha256 && m->n_source_sha256 != want && want <= CF_MAX_SHARDS)
        cf_report_add(rep, CF_CONFLICT, sums->line, sums->col, sums->width, "'sha256': %zu for %zu file%s; there is one for each, in the order of the shards", m->n_source_sha256, want,
                      want == 1 ? "" : "s");
}

static void check_socket(const struct check *c) {
    const struct cf_node *n = cf_node_find(cf_node_find(c->tree, "server"), "admin_socket");
    if (is_scalar(n) && n->len > MAX_SOCKET_PATH)
        cf_report_add(c->rep, CF_RANGE, n->line, n->col, n->width, "'admin_socket': a path of %u bytes; a Unix socket's has at most %d",
                      n->len, MAX_SOCKET_PATH);
}

/* --- dies ------------------------------------------------------------------------------------------------------------------- */
static void check_die(struct cf_report *rep, const struct cf_node *map, const struct cf_die *d) {
    const struct cf_node *name = cf_node_find(map, "name"), *kind = cf_node_find(map, "kind"), *pci = cf_node_find(map, "pci"),
                         *script = cf_node_find(map, "script");
    if (is_scalar(name) && name->len > MAX_DIE_NAME)
        cf_report_add(rep, CF_RANGE, name->line, name->col, name->width, "'name': a die's has at most %d characters", MAX_DIE_NAME);
    if (is_scalar(name) && (strcmp(name->text, "auto") == 0 || strncmp(name->text, "auto:", 5) == 0))
        cf_report_add(rep, CF_CONFLICT, name->line, name->col, name->width,
                      "'name': a die cannot be called '%s': in a model's 'dies', 'auto:2' means any two", SHOWN(name));
    if (!is_scalar(kind) || !cf_word_in("cpu|sim", kind->text, kind->len)) return; /* told already */
    if (pci)
        cf_report_add(rep, CF_CONFLICT, pci->key->line, pci->key->col, pci->key->width, "'pci': a %s die has no PCI address", kind->text);
    if (d->kind == CF_DIE_SIM && !cf_node_find(map, "memory"))
        cf_report_add(rep, CF_MISSING, map->line, map->col, map->width, "'memory' is missing: a sim die has what is written here");
    if (d->kind != CF_DIE_SIM && script)
        cf_report_add(rep, CF_CONFLICT, script->key->line, script->key->col, script->key->width, "'script': only a sim die has one");
}

static void check_dies(const struct check *c, struct cf_manifest *m) {
    const struct cf_node *dies = cf_node_find(c->tree, "dies"), *cpu = NULL, *n;
    if (!dies || dies->kind != CF_NODE_LIST || m->n_dies != dies->n) return;
    size_t i = 0;
    for (n = dies->first; n; n = n->next, i++) {
        const struct cf_node *name = cf_node_find(n, "name"), *kind = cf_node_find(n, "kind");
        m->dies[i].line = n->line;
        if (n->kind != CF_NODE_MAP) continue;
        check_die(c->rep, n, &m->dies[i]);
        if (is_scalar(kind) && strcmp(kind->text, "cpu") == 0) {
            if (cpu)
                cf_report_add(c->rep, CF_CONFLICT, n->line, n->col, n->width, "a second cpu die; the machine is one, declared in line %d",
                              cpu->line);
            cpu = n;
        }
        for (const struct cf_node *before = dies->first; is_scalar(name) && before != n; before = before->next) {
            const struct cf_node *taken = cf_node_find(before, "name");
            if (!is_scalar(taken) || strcmp(taken->text, name->text) != 0) continue;
            cf_report_add(c->rep, CF_DUPLICATE, name->line, name->col, name->width, "'%s' is taken already: a die in line %d, column %d",
                          SHOWN(name), taken->line, taken->col);
            break;
        }
    }
}

/* Digits of "auto:N", or NULL when it is no such word. */
static const char *auto_count(const char *word) {
    return strcmp(word, "auto") == 0 ? word + 4 : strncmp(word, "auto:", 5) == 0 ? word + 5 : NULL;
}

int64_t cf_dies_auto(const struct cf_names *dies) {
    const char *digits = dies->n == 1 && dies->names[0] ? auto_count(dies->names[0]) : NULL;
    return digits ? (int64_t)strtoll(digits, NULL, 10) : 0;
}

/* One `dies` list, or one of `replicas`: `n` is the first of its names. */
static void check_placement(struct cf_report *rep, const char *key, const struct cf_node *first, const struct cf_manifest *m) {
    for (const struct cf_node *n = first; n; n = n->next) {
        if (!is_scalar(n)) continue;
        const char *digits = auto_count(n->text);
        if (digits) {
            long long count = strtoll(digits, NULL, 10);
            if (strspn(digits, "0123456789") != strlen(digits) || count < 1 || count > MAX_AUTO || *digits == '0')
                cf_report_add(
                    rep, CF_RANGE, n->line, n->col, n->width,
                    "'%s': '%s' means nothing; 'auto:2' means any two dies, up to auto:%d; without 'dies' the engine places the model", key,
                    SHOWN(n), MAX_AUTO);
            else if (n != first || n->next)
                cf_report_add(rep, CF_CONFLICT, n->line, n->col, n->width,
                              "'%s': '%s' stands alone: the engine chooses the dies, or you do", key, n->text);
            continue;
        }
        for (const struct cf_node *before = first; before != n; before = before->next)
            if (is_scalar(before) && strcmp(before->text, n->text) == 0) {
                cf_report_add(rep, CF_DUPLICATE, n->line, n->col, n->width, "'%s': the die '%s' stands here twice", key, SHOWN(n));
                break;
            }
        if (!m || m->n_dies == 0) continue;
        size_t i = 0;
        while (i < m->n_dies && (!m->dies[i].name || strcmp(m->dies[i].name, n->text) != 0)) i++;
        if (i == m->n_dies)
            cf_report_add(rep, CF_CONFLICT, n->line, n->col, n->width, "'%s': no die is called '%s'; the first of the manifest's 'dies' is '%s'",
                          key, SHOWN(n), m->dies[0].name ? m->dies[0].name : "?");
    }
}

static void check_placements(struct cf_report *rep, const struct cf_node *map, const struct cf_manifest *m) {
    const struct cf_node *dies = cf_node_find(map, "dies"), *replicas = cf_node_find(map, "replicas");
    if (dies && replicas)
        cf_report_add(rep, CF_CONFLICT, replicas->key->line, replicas->key->col, replicas->key->width,
                      "'replicas': not together with 'dies'; each replica names its own");
    if (is_scalar(dies)) {
        struct cf_node alone = *dies;
        alone.next = NULL;
        check_placement(rep, "dies", &alone, m);
    } else if (dies && dies->kind == CF_NODE_LIST)
        check_placement(rep, "dies", dies->first, m);
    if (replicas && replicas->kind == CF_NODE_LIST)
        for (const struct cf_node *n = replicas->first; n; n = n->next)
            if (n->kind == CF_NODE_LIST) check_placement(rep, "replicas", n->first, m);
}

/* --- all of it -------------------------------------------------------------------------------------------------------------- */
void cf_check_model(const struct cf_node *map, struct cf_model *m, struct cf_report *rep) {
    check_concurrency(rep, map, m);
    check_ttl(rep, map, m);
    check_source(rep, map, m);
    check_placements(rep, map, NULL);
}

int cf_check_manifest(const struct cf_part *parts, size_t n_parts, struct cf_manifest *m, struct fo_region *scratch, struct cf_report *rep, struct fo_err *e) {
    const struct check c = { rep, parts->tree };
    cf_report_file(rep, 0);
    check_listen(&c, &m->server);
    check_socket(&c);
    check_pressure(&c, &m->pressure);
    check_texts(&c, "allowed_hosts", is_host, "a name or an address alone, as in api.example.org (no port, no https://), nor \"*\"");
    check_texts(&c, "cors_origins", is_origin, "an origin as browsers send it, as in https://app.example.org (small letters, nothing behind the host and port), nor \"*\"");
    check_dies(&c, m);
    check_concurrency(rep, cf_node_find(parts->tree, "defaults"), &m->defaults);
    for (size_t k = 0; k < n_parts; k++) {
        const struct cf_node *n = models_of(&parts[k]);
        cf_report_file(rep, (int)k);
        for (size_t i = parts[k].first; i < parts[k].first + parts[k].n && n; i++, n = n->next) {
            m->models[i].line = n->line;
            check_concurrency(rep, n, &m->models[i]);
            check_ttl(rep, n, &m->models[i]);
            check_source(rep, n, &m->models[i]);
            check_placements(rep, n, m);
        }
    }
    return check_names(rep, parts, n_parts, scratch, e);
}
