/* The loaded copies of the declared models, each with its counters: what pages that list them look at. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "engine/engine.h"

struct pd_app;
struct pd_entry;
struct pd_view;

struct pd_copy {
    const struct pd_entry *entry; /* the view's */
    struct pn_served *served;
    struct pn_served_status status;
};
struct pd_copies {
    struct pd_copy *copy; /* [n], those of a model side by side, in the view's order */
    size_t n;
};

/* Takes a reference to each copy that is in the engine. Waits for no model. The view outlives the copies. False without memory. Any thread. */
bool pd_copies_look(struct pd_app *app, const struct pd_view *v, struct pd_copies *ret);
void pd_copies_done(struct pd_copies *c);
