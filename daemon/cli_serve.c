/* `pantheon serve`: flags become the manifest's own text, parsed by the manifest's own rows, and run the daemon's own code: whatever
 * holds for pantheond holds here. Flags after a --model belong to it, flags before the first to all. A name twice is two copies of one
 * model, between which requests are shared out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/manifest.h"
#include "daemon/cli.h"
#include "daemon/log.h"
#include "daemon/serve.h"
#include "daemon/source.h"
#include "engine/model.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

static void put_int(struct fo_buf *y, const char *key, int64_t own, int64_t all) {
    int64_t v = own ? own : all;
    if (v) fo_buf_printf(y, "    %s: %lld\n", key, (long long)v);
}

static bool put_name(const char *path, struct fo_buf *y) {
    size_t n;
    const char *base = pn_model_path_name(path, &n);
    char *name = strndup(base, n);
    bool ok = name && pd_cli_put_text(y, "--model", name);
    if (!name) y->failed = true;
    free(name);
    return ok;
}

/* --- which model is a copy of which --- */

/* What model i (from 1) is called. */
static const char *name_of(const struct pd_cli_model *m, size_t *ret_len) {
    if (!m->name) return pn_model_path_name(m->path, ret_len);
    *ret_len = strlen(m->name);
    return m->name;
}

static bool same_name(const struct pd_cli_model *a, const struct pd_cli_model *b) {
    size_t na, nb;
    const char *x = name_of(a, &na), *y = name_of(b, &nb);
    return na == nb && memcmp(x, y, na) == 0;
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_kv(const char *a, const char *b) {
    return a == b || (a && b && strcasecmp(a, b) == 0);
}

/* The first model of that name when i is a copy of it, else i; 0 after a message when they differ in what copies share. */
static int first_of(const struct pd_cli_args *a, int i) {
    const struct pd_cli_model *m = &a->models[i];
    for (int k = 1; k < i; k++) {
        const struct pd_cli_model *f = &a->models[k];
        if (!same_name(m, f)) continue;
        size_t n;
        const char *name = name_of(m, &n);
        if (!same_text(m->path, f->path)) pd_cli_failf("--name %.*s stands for two files, %s and %s: a name twice means two copies of one file", (int)n, name, f->path, m->path);
        else if (m->ctx_cap != f->ctx_cap || m->max_sessions != f->max_sessions || m->max_concurrent != f->max_concurrent || !same_kv(m->kv, f->kv) ||
                 m->has_reasoning_budget != f->has_reasoning_budget || m->reasoning_budget != f->reasoning_budget || !same_text(m->speculation, f->speculation) ||
                 !same_text(m->chat_template, f->chat_template))
            pd_cli_failf("%.*s: its copies differ in a cap, a budget, type of KV, speculation or template: give them the same flags, or names of their own", (int)n, name);
        else return k;
        return 0;
    }
    return i;
}

/* --- dies --- */

enum { MAX_DIES = 64 };
struct found {
    struct fo_die dies[MAX_DIES]; /* accelerators only */
    int n;
};

static void find_dies(struct found *f) {
    struct fo_die all[MAX_DIES];
    char why[512];
    int n = fo_device_probe(all, MAX_DIES, why, sizeof why);
    f->n = 0;
    for (int i = 0; i < n && i < MAX_DIES; i++)
        if (strcmp(all[i].kind, "cpu") != 0) f->dies[f->n++] = all[i];
}

/* "0,1" or "s0,s1" as a list of names; false after a message. */
static bool put_dies(struct fo_buf *y, const struct found *f, const char *list) {
    fo_buf_puts(y, "[ ");
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        char word[64];
        if (n == 0 || n >= sizeof word) return pd_cli_failf("--dies %s: numbers or names of dies, with commas between", list), false;
        memcpy(word, p, n);
        word[n] = '\0';
        if (strspn(word, "0123456789") == n) {
            long k = n > 6 ? MAX_DIES : strtol(word, NULL, 10);
            if (f->n == 0) return pd_cli_failf("--dies %s: this machine has no accelerator dies (backend=%s)", list, fo_device_build_backend()), false;
            if (k >= f->n) return pd_cli_failf("--dies %s: there is no accelerator die %s; there are %d, from 0", list, word, f->n), false;
            snprintf(word, sizeof word, "%s", f->dies[k].name);
        }
        if (!pd_cli_put_text(y, "--dies", word)) return false;
        p += n;
        if (!*p) break;
        fo_buf_puts(y, ", ");
    }
    fo_buf_puts(y, " ]");
    return true;
}

/* `dies`, or `replicas` when there are several copies. */
static bool put_placement(const struct pd_cli_args *a, int i, const struct found *f, struct fo_buf *y) {
    int copies = 0;
    for (int k = i; k <= a->n_models; k++) copies += same_name(&a->models[k], &a->models[i]);
    const char *all = a->models[0].dies, *own = a->models[i].dies ? a->models[i].dies : all;
    if (copies == 1) {
        if (!own) return true;
        fo_buf_puts(y, "    dies: ");
        bool ok = put_dies(y, f, own);
        fo_buf_putc(y, '\n');
        return ok;
    }
    fo_buf_puts(y, "    replicas: [ ");
    for (int k = i, n = 0; k <= a->n_models; k++) {
        if (!same_name(&a->models[k], &a->models[i])) continue;
        if (n++) fo_buf_puts(y, ", ");
        const char *dies = a->models[k].dies ? a->models[k].dies : all;
        if (!dies) fo_buf_puts(y, "[ \"auto:1\" ]");
        else if (!put_dies(y, f, dies)) return false;
    }
    fo_buf_puts(y, " ]\n");
    return true;
}

static const char *kv_word(enum fo_dtype type) {
    return type == FO_F16 ? cf_kv_types[CF_KV_F16] : type == FO_Q8_0 ? cf_kv_types[CF_KV_Q8_0] : type == FO_Q4_0 ? cf_kv_types[CF_KV_Q4_0] : NULL;
}

/* As the other commands take it, in either case; f32 is for the reference path alone. */
static bool put_kv(const char *kv, struct fo_buf *y) {
    struct pn_model_opts o;
    struct fo_err e;
    if (!kv) return true;
    if (pn_kv_type_parse(kv, &o, &e) == FO_OK && kv_word(o.k_type) && kv_word(o.v_type)) {
        fo_buf_printf(y, "    kv: { k: %s, v: %s }\n", kv_word(o.k_type), kv_word(o.v_type));
        return true;
    }
    pd_cli_failf("--kv %s: a server keeps KV as f16, q8_0 or q4_0, or keys and values apart, as in k=q8_0,v=q4_0", kv);
    return false;
}

static bool put_speculation(const char *how, struct fo_buf *y) {
    if (!how) return true;
    if (strcmp(how, "auto") != 0 && strcmp(how, "off") != 0) return pd_cli_failf("--speculation %s: auto or off", how), false;
    fo_buf_printf(y, "    speculation: %s\n", how);
    return true;
}

static bool put_model(const struct pd_cli_args *a, int i, const struct found *f, struct fo_buf *y) {
    const struct pd_cli_model *m = &a->models[i], *all = &a->models[0];
    const char *template = m->chat_template ? m->chat_template : all->chat_template;
    fo_buf_puts(y, "  - name: ");
    if (m->name ? !pd_cli_put_text(y, "--name", m->name) : !put_name(m->path, y)) return false;
    fo_buf_puts(y, "\n    source: { path: ");
    if (!pd_cli_put_text(y, "--model", m->path)) return false;
    fo_buf_puts(y, " }\n");
    put_int(y, "ctx_cap", m->ctx_cap, all->ctx_cap);
    int64_t concurrent = m->max_concurrent ? m->max_concurrent : all->max_concurrent;
    int64_t sessions = m->max_sessions ? m->max_sessions : all->max_sessions;
    /* one of the two is enough on a command line: the other follows */
    if (concurrent && !sessions) sessions = concurrent > 4 ? concurrent : 4;
    if (sessions == 1 && !concurrent) concurrent = 1;
    put_int(y, "max_sessions", sessions, 0);
    put_int(y, "max_concurrent", concurrent, 0);
    const struct pd_cli_model *thinks = m->has_reasoning_budget ? m : all;
    if (thinks->has_reasoning_budget) fo_buf_printf(y, "    reasoning_budget: %lld\n", (long long)thinks->reasoning_budget);
    if (!put_kv(m->kv ? m->kv : all->kv, y) || !put_speculation(m->speculation ? m->speculation : all->speculation, y)) return false;
    if (template) {
        fo_buf_puts(y, "    chat_template: ");
        if (!pd_cli_put_text(y, "--chat-template", template)) return false;
        fo_buf_putc(y, '\n');
    }
    return put_placement(a, i, f, y);
}

static bool write_manifest(const struct pd_cli_args *a, const struct found *f, struct fo_buf *y) {
    if (!pd_cli_put_server(a, y)) return false;
    if (a->threads) fo_buf_printf(y, "host:\n  threads: %lld\n", (long long)a->threads);
    fo_buf_puts(y, "models:\n");
    for (int i = 1; i <= a->n_models; i++) {
        int first = first_of(a, i);
        if (first == 0 || (first == i && !put_model(a, i, f, y))) return false;
    }
    return true;
}

int pd_cli_serve(const struct pd_cli_args *a) {
    if (a->n_models == 0) {
        pd_cli_failf("which model? Give --model FILE");
        return PD_EXIT_USAGE;
    }
    struct pd_cli_log log;
    if (!pd_cli_log(a, &log)) return PD_EXIT_USAGE;
    if (a->models[0].name && a->n_models > 0) {
        pd_cli_failf("--name %s stands before the first --model: put it after the model it names", a->models[0].name);
        return PD_EXIT_USAGE;
    }
    struct fo_buf y;
    fo_buf_init(&y, PD_MAX_MANIFEST_BYTES);
    struct found found;
    find_dies(&found);
    struct pd_reading r = { 0 };
    int rc = PD_EXIT_USAGE;
    if (pd_cli_parse_manifest(write_manifest(a, &found, &y), &y, &r)) {
        const char *backend = fo_device_build_backend();
        printf("backend=%s build=%s accelerator=%s\ndies=%d\n", backend, pn_build(), found.n ? found.dies[0].kind : "none", found.n);
        fflush(stdout);
        pd_log_open(log.areas, log.json);
        rc = pd_serve(&r, &(struct pd_serve_opts){ .isa = a->isa, .no_mmap = a->no_mmap, .must_serve = true });
    }
    pd_reading_done(&r);
    fo_buf_done(&y);
    return rc;
}
