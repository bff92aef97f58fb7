/* Lists of pointers that grow by one: the numbers are small and change rarely. */
#include "daemon/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/estimate.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/device.h"

enum { MAX_DIES = 64 };

static bool push(void ***list, size_t *n, void *item) {
    void **p = realloc(*list, (*n + 1) * sizeof *p);
    if (!p) return false;
    *list = p;
    p[(*n)++] = item;
    return true;
}

/* --- instances and histories --- */

static void instance_free(struct pd_instance *i) {
    if (!i) return;
    free(i->name);
    free(i->parts);
    cf_model_free(i->spec);
    free(i);
}

static void history_free(struct pd_history *h) {
    if (!h) return;
    free(h->name);
    cf_model_free(h->ad_hoc);
    free(h);
}

struct pd_instance *pd_world_instance(struct pd_world *w, const char *name, int64_t replica) {
    for (size_t i = 0; i < w->n_instances; i++)
        if (w->instances[i]->replica == replica && strcmp(w->instances[i]->name, name) == 0) return w->instances[i];
    return NULL;
}

struct pd_instance *pd_world_add(struct pd_world *w, const char *name, int64_t replica) {
    struct pd_instance *i = calloc(1, sizeof *i);
    if (i) i->name = strdup(name);
    if (!i || !i->name || !push((void ***)&w->instances, &w->n_instances, i)) {
        instance_free(i);
        return NULL;
    }
    i->replica = replica;
    return i;
}

void pd_world_remove(struct pd_world *w, struct pd_instance *inst) {
    for (size_t i = 0; i < w->n_instances; i++) {
        if (w->instances[i] != inst) continue;
        memmove(&w->instances[i], &w->instances[i + 1], (--w->n_instances - i) * sizeof(struct pd_instance *));
        break;
    }
    instance_free(inst);
}

struct pd_history *pd_world_find_history(struct pd_world *w, const char *name) {
    for (size_t i = 0; i < w->n_histories; i++)
        if (strcmp(w->histories[i]->name, name) == 0) return w->histories[i];
    return NULL;
}

struct pd_history *pd_world_history(struct pd_world *w, const char *name) {
    struct pd_history *h = pd_world_find_history(w, name);
    if (h) return h;
    h = calloc(1, sizeof *h);
    if (h) h->name = strdup(name);
    if (!h || !h->name || !push((void ***)&w->histories, &w->n_histories, h)) {
        history_free(h);
        return NULL;
    }
    return h;
}

void pd_world_forget(struct pd_world *w, const struct cf_manifest *m) {
    for (size_t i = 0; i < w->n_histories;) {
        struct pd_history *h = w->histories[i];
        bool keep = h->ad_hoc != NULL;
        for (size_t k = 0; k < m->n_models && !keep; k++) keep = strcmp(m->models[k].name, h->name) == 0;
        if (keep) {
            i++;
            continue;
        }
        history_free(h);
        memmove(&w->histories[i], &w->histories[i + 1], (--w->n_histories - i) * sizeof(struct pd_history *));
    }
}

/* --- dies --- */

static void die_done(struct pd_die *d) {
    fo_device_close(d->dev);
    free(d->decl.name);
    free(d->decl.pci);
    free(d->decl.script);
    *d = (struct pd_die){ 0 };
}

static const char *const kinds[] = { [CF_DIE_CPU] = "cpu", [CF_DIE_CUDA] = "cuda", [CF_DIE_TT] = "tt", [CF_DIE_METAL] = "metal", [CF_DIE_SIM] = "sim" };

static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool copy_text(char **to, const char *from) {
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

/* Opens a die into *ret. */
static int die_open(const struct pd_world *w, const struct cf_die *decl, const char *address, struct pd_die *ret, struct fo_err *e) {
    struct pd_die d = { .decl = *decl, .wanted = true };
    struct fo_device_opts o = { .n_threads = w->threads, .isa = w->isa, .name = decl->name, .memory_bytes = decl->memory_bytes, .script = decl->script };
    snprintf(d.name, sizeof d.name, "%s", decl->name);
    d.decl.name = d.decl.pci = d.decl.script = NULL;
    if (!copy_text(&d.decl.name, decl->name) || !copy_text(&d.decl.pci, decl->pci) || !copy_text(&d.decl.script, decl->script)) {
        die_done(&d);
        return fo_fail(e, FO_ENOMEM, "die '%s': no memory", decl->name);
    }
    if (fo_device_open(kinds[decl->kind], address, &o, &d.dev, e)) {
        die_done(&d);
        return fo_wrap(e, "die '%s'", decl->name);
    }
    d.host = decl->kind == CF_DIE_CPU;
    *ret = d;
    fo_log(FO_LOG_INFO, "reconcile", "event=die_open die=%s kind=%s address=%s model=\"%s\" memory=%llu", d.name, kinds[decl->kind], d.dev->die.address[0] ? d.dev->die.address : "-",
           d.dev->die.model, (unsigned long long)(decl->memory_bytes ? decl->memory_bytes : d.dev->die.memory_bytes));
    return FO_OK;
}

struct pd_die *pd_world_die(struct pd_world *w, const char *name) {
    for (size_t i = 0; i < w->n_dies; i++)
        if (strcmp(w->dies[i].name, name) == 0) return &w->dies[i];
    return NULL;
}

static bool die_used(const struct pd_world *w, const struct pd_die *d) {
    for (size_t i = 0; i < w->n_instances; i++)
        for (size_t k = 0; k < w->instances[i]->n_parts; k++)
            if (strcmp(w->instances[i]->parts[k].die, d->name) == 0) return true;
    return false;
}

static int kind_of(const char *word) {
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        if (strcmp(kinds[i], word) == 0) return i;
    return -1;
}

int pd_world_set_dies(struct pd_world *w, const struct cf_manifest *m, char *ret_restart, size_t restart_size, struct fo_err *e) {
    struct fo_die found[MAX_DIES];
    struct cf_die automatic[MAX_DIES];
    const struct cf_die *decls = m->dies;
    size_t n = m->n_dies;
    char why[512] = "";
    *ret_restart = '\0';
    if (n == 0) {
        int k = fo_device_probe(found, MAX_DIES, why, sizeof why);
        if (k > MAX_DIES) k = MAX_DIES;
        for (int i = 0; i < k; i++) {
            int kind = kind_of(found[i].kind);
            /* memory stays 0 = all it has, so that the die of a later manifest without `dies` is the same */
            if (kind >= 0) automatic[n++] = (struct cf_die){ .name = found[i].name, .kind = kind, .pci = found[i].address[0] && kind != CF_DIE_SIM ? found[i].address : NULL };
        }
        decls = automatic;
    }
    struct pd_die *list = realloc(w->dies, (w->n_dies + n + 1) * sizeof *list);
    if (!list) return fo_fail(e, FO_ENOMEM, "no memory for %zu dies", n);
    w->dies = list;
    size_t before = w->n_dies;
    for (size_t i = 0; i < n; i++) {
        struct pd_die *d = pd_world_die(w, decls[i].name);
        if (d) continue;
        const char *address = decls[i].kind == CF_DIE_SIM ? decls[i].name : decls[i].pci ? decls[i].pci : "";
        if (die_open(w, &decls[i], address, &w->dies[w->n_dies], e)) {
            while (w->n_dies > before) die_done(&w->dies[--w->n_dies]);
            return e->code;
        }
        w->n_dies++;
    }
    for (size_t i = 0; i < w->n_dies; i++) w->dies[i].wanted = false;
    for (size_t i = 0; i < n; i++) {
        struct pd_die *d = pd_world_die(w, decls[i].name);
        d->wanted = true;
        d->reserve_bytes = decls[i].reserve_bytes;
        bool same = d->decl.kind == decls[i].kind && same_text(d->decl.pci, decls[i].pci) && same_text(d->decl.script, decls[i].script);
        if (same && d->host) d->decl.memory_bytes = decls[i].memory_bytes; /* a budget: may change at any time */
        if (same && d->decl.memory_bytes == decls[i].memory_bytes) continue;
        size_t len = strlen(ret_restart);
        snprintf(ret_restart + len, restart_size - len, "%sdie '%s' changed", len ? ", " : "", d->name);
    }
    return FO_OK;
}

void pd_world_close_dies(struct pd_world *w) {
    for (size_t i = 0; i < w->n_dies;) {
        /* a connection that still sends its last words holds a model that was unloaded, and its memory; the host's die costs nothing */
        if (w->dies[i].wanted || w->dies[i].host || die_used(w, &w->dies[i]) || fo_device_contexts(w->dies[i].dev) > 0) {
            i++;
            continue;
        }
        die_done(&w->dies[i]);
        memmove(&w->dies[i], &w->dies[i + 1], (--w->n_dies - i) * sizeof *w->dies);
    }
}

void pd_world_done(struct pd_world *w) {
    for (size_t i = 0; i < w->n_instances; i++) instance_free(w->instances[i]);
    for (size_t i = 0; i < w->n_histories; i++) history_free(w->histories[i]);
    for (size_t i = 0; i < w->n_estimates; i++) pd_estimate_free(w->estimates[i]);
    for (size_t i = 0; i < w->n_dies; i++) die_done(&w->dies[i]);
    free(w->instances);
    free(w->histories);
    free(w->estimates);
    free(w->files);
    free(w->dies);
    *w = (struct pd_world){ 0 };
}
