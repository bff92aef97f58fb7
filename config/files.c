/* What the planner makes of files that are fetched. A model whose file is not there, or not known to be the declared one, is not loaded; the
 * step that gets it stands in front of all others, because it takes no memory and others go on while it runs. One is at work at a time: while
 * there is one in the facts, the plan has no step for another, and says what waits for what. A copy that runs needs no file: it is left alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "config/planner.h"
#include "foundry/base/region.h"
#include "foundry/base/units.h"

enum { LOOK_MS = 1000 };

static bool at_work(const struct cf_file *file) {
    return file->state == CF_FILE_FETCHING || file->state == CF_FILE_VERIFYING;
}

/* Whether a copy is still to be loaded, now or when it is asked for. */
static bool needs_file(const struct cf_planner *p, const struct cf_want *w) {
    size_t n = w->m->n_replicas ? w->m->n_replicas : 1, there = 0;
    for (size_t i = 0; i < p->f->n_instances; i++)
        there += p->owner[i] == w && (p->judged[i].act == CF_ACT_KEEP || p->judged[i].act == CF_ACT_SET || p->judged[i].act == CF_ACT_WAIT);
    return there < n;
}

static bool may_start(const struct cf_planner *p, const struct cf_want *w, const struct cf_file *file) {
    if (!file || file->retry_at_ms > p->f->now_ms || !cf_planner_is_wanted(w) || !needs_file(p, w)) return false;
    return (file->state == CF_FILE_ABSENT && w->m->source_url) || file->state == CF_FILE_UNVERIFIED;
}

/* As loads are ordered: what is declared loaded, then by priority, then as the manifest lists them. */
static int by_turn(const void *a, const void *b) {
    const struct cf_want *x = *(struct cf_want *const *)a, *y = *(struct cf_want *const *)b;
    bool x_demand = x->m->state == CF_STATE_ON_DEMAND, y_demand = y->m->state == CF_STATE_ON_DEMAND;
    if (x_demand != y_demand) return y_demand ? -1 : 1;
    if (x->m->priority != y->m->priority) return x->m->priority > y->m->priority ? -1 : 1;
    return x < y ? -1 : x > y;
}

static const struct cf_step *step_for(const struct cf_planner *p, const char *path) {
    for (size_t i = 0; i < p->plan->n_steps; i++)
        if (p->plan->steps[i].kind == CF_STEP_FETCH && strcmp(p->plan->steps[i].spec->source_path, path) == 0) return &p->plan->steps[i];
    return NULL;
}

static void emit(struct cf_planner *p, struct cf_want *w, const struct cf_file *file) {
    struct cf_step *s = &p->plan->steps[p->plan->n_steps++];
    char had[32];
    *s = (struct cf_step){ .kind = CF_STEP_FETCH, .model = w->m->name, .spec = w->m, .ad_hoc = !w->declared };
    s->bytes = file->state == CF_FILE_ABSENT && file->bytes > file->part_bytes ? file->bytes - file->part_bytes : 0;
    if (file->state == CF_FILE_UNVERIFIED)
        s->why = cf_planner_text(p, "its file is there, and its sha256 is checked before it is loaded");
    else if (file->part_bytes)
        s->why = cf_planner_text(p, "from %s, which goes on after %s", w->m->source_url, fo_format_bytes(file->part_bytes, had, sizeof had));
    else
        s->why = cf_planner_text(p, "from %s", w->m->source_url);
    cf_planner_rule(w->verdict, CF_V_CHANGES, s->why);
}

void cf_planner_fetch(struct cf_planner *p, struct fo_region *scratch) {
    struct cf_want **turn = fo_region_array(scratch, p->n_wants + 1, sizeof(struct cf_want *));
    size_t n = 0;
    p->failed |= !turn;
    for (size_t i = 0; i < p->f->n_files; i++)
        if (at_work(&p->f->files[i])) return;
    for (size_t i = 0; turn && i < p->n_wants; i++)
        if (may_start(p, &p->wants[i], cf_file_find(p->f, p->wants[i].m))) turn[n++] = &p->wants[i];
    if (n) qsort(turn, n, sizeof(struct cf_want *), by_turn);
    for (size_t i = 0; i < n; i++)
        if (!step_for(p, turn[i]->m->source_path)) emit(p, turn[i], cf_file_find(p->f, turn[i]->m));
}

static char *progress(struct cf_planner *p, const struct cf_file *file) {
    char all[32], rate[32], left[32];
    const char *what = file->state == CF_FILE_VERIFYING ? "its sha256 is being checked" : "its file is being fetched";
    if (!file->bytes) return cf_planner_text(p, "%s", what);
    unsigned percent = (unsigned)((double)file->part_bytes * 100 / (double)file->bytes);
    fo_format_bytes(file->bytes, all, sizeof all);
    if (!file->bytes_per_second || file->part_bytes >= file->bytes) return cf_planner_text(p, "%s: %u%% of %s", what, percent, all);
    return cf_planner_text(p, "%s: %u%% of %s, %s/s, about %s left", what, percent, all, fo_format_bytes(file->bytes_per_second, rate, sizeof rate),
                           fo_format_ms((file->bytes - file->part_bytes) / file->bytes_per_second * 1000, left, sizeof left));
}

bool cf_planner_waits_for_file(struct cf_planner *p, struct cf_want *w) {
    const struct cf_file *file = cf_file_find(p->f, w->m);
    char wait[32];
    if (!file || file->state == CF_FILE_PRESENT) return false;
    if (file->state == CF_FILE_WRONG) {
        cf_planner_rule(w->verdict, CF_V_REFUSED, cf_planner_text(p, "%s", file->error ? file->error : "its file is not what sha256 says"));
        return true;
    }
    if (file->retry_at_ms > p->f->now_ms) {
        w->verdict->retry_at_ms = file->retry_at_ms;
        cf_planner_look_at(p, file->retry_at_ms);
        cf_planner_rule(w->verdict, CF_V_WAITING, cf_planner_text(p, "%s; again in %s", file->error ? file->error : "its file was not fetched", fo_format_ms(file->retry_at_ms - p->f->now_ms, wait, sizeof wait)));
        return true;
    }
    if (at_work(file)) {
        cf_planner_look_at(p, p->f->now_ms + LOOK_MS);
        cf_planner_rule(w->verdict, CF_V_WAITING, progress(p, file));
    } else if (step_for(p, w->m->source_path) && step_for(p, w->m->source_path)->spec == w->m) {
        return true; /* ruled with its step */
    } else {
        cf_planner_rule(w->verdict, CF_V_WAITING, cf_planner_text(p, "its file is %s when the one before it is done", file->state == CF_FILE_UNVERIFIED ? "checked" : "fetched"));
    }
    w->verdict->fetching = true;
    return true;
}
