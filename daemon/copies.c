/* See copies.h. */
#include "daemon/copies.h"

#include <stdlib.h>
#include <string.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/app.h"

bool pd_copies_look(struct pd_app *app, const struct pd_view *v, struct pd_copies *ret) {
    const struct cf_facts *f = v->facts;
    *ret = (struct pd_copies){ .copy = calloc(f->n_instances + 1, sizeof *ret->copy) };
    if (!ret->copy) return false;
    for (size_t i = 0; i < v->n; i++)
        for (size_t k = 0; k < f->n_instances && ret->n < f->n_instances; k++) {
            const struct cf_instance *inst = &f->instances[k];
            if (strcmp(inst->name, v->entries[i].decl->name) != 0) continue;
            struct pn_served *s = pn_engine_get_replica(app->engine, inst->name, (uint32_t)inst->replica);
            if (!s) continue; /* still loading, or gone since the view was made */
            struct pd_copy *c = &ret->copy[ret->n++];
            *c = (struct pd_copy){ .entry = &v->entries[i], .served = s };
            pn_served_status(s, &c->status);
        }
    return true;
}

void pd_copies_done(struct pd_copies *c) {
    for (size_t i = 0; i < c->n; i++) pn_served_put(c->copy[i].served);
    free(c->copy);
    *c = (struct pd_copies){ 0 };
}
