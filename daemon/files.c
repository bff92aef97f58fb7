/* See files.h. A download belongs to a path: models that share one share it. It goes on as long as a model that is wanted declares that path
 * from those places; a manifest that drops or changes it cancels it, and what came so far stays beside its place for the next time. */
#include "daemon/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config/manifest.h"
#include "config/plan.h"
#include "config/url.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/fetch.h"
#include "daemon/loop.h"
#include "daemon/part.h"
#include "daemon/verified.h"
#include "engine/model.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/units.h"

enum { PROGRESS_BYTES = 1 << 20 /* so much of a try that failed in the end begins a new row of failures */ };

/* --- what there is --- */

/* Adds up a model's files as they lie there; false = one is missing. */
static bool add_up(const char *path, struct cf_file *ret) {
    size_t n = pd_fetch_n_files(path);
    bool all = true;
    uint64_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        struct pd_part_note note;
        char *file = pd_fetch_file(path, i, n), *part = NULL;
        if (file && stat(file, &st) == 0) {
            ret->part_bytes += (uint64_t)st.st_size;
            ret->bytes += (uint64_t)st.st_size;
        } else if (file && asprintf(&part, "%s.part", file) >= 0) {
            all = false;
            missing++;
            if (stat(part, &st) == 0) ret->part_bytes += (uint64_t)st.st_size;
            if (pd_part_note_read(part, &note) && note.size_bytes) {
                ret->bytes += note.size_bytes;
                missing--;
            }
            free(part);
        } else {
            all = false;
        }
        free(file);
    }
    if (missing) ret->bytes = 0; /* not known of all of them */
    return all;
}

bool pd_file_look(const char *dir, const struct cf_model *m, const struct pd_verified *v, struct cf_file *ret) {
    if (!m->source_url && !m->n_source_sha256) return false;
    char *path = pd_resolve(dir, m->source_path);
    const char *error = NULL;
    if (!path) return false;
    *ret = (struct cf_file){ .model = m->name, .path = m->source_path };
    if (pd_fetch_n_files(path) > CF_MAX_SHARDS) {
        ret->state = CF_FILE_WRONG;
        ret->reason = (char *)pd_fetch_end_name(PD_F_WRONG_FILE);
        ret->error = (char *)"a sha256 of a model in more than 256 files is not checked: take it out, or merge the files";
        free(path);
        return true;
    }
    bool there = add_up(path, ret), known = there || m->source_url;
    if (!there) ret->state = CF_FILE_ABSENT;
    else if (m->n_source_sha256) {
        static const enum cf_file_state states[] = { [PD_FILE_UNKNOWN] = CF_FILE_UNVERIFIED, [PD_FILE_RIGHT] = CF_FILE_PRESENT, [PD_FILE_WRONG] = CF_FILE_WRONG };
        ret->state = states[pd_verified_look(v, m, pn_model_identity(path), &error)];
    }
    if (ret->state == CF_FILE_WRONG) {
        ret->reason = (char *)pd_fetch_end_name(PD_F_WRONG_FILE);
        ret->error = (char *)error;
    }
    free(path);
    return known;
}

static bool same_texts(char *const *a, size_t n, char *const *b, size_t k) {
    if (n != k) return false;
    for (size_t i = 0; i < n; i++)
        if (strcmp(a[i], b[i]) != 0) return false;
    return true;
}

/* Whether the download at work is this model's file. */
static bool is_of(const struct pd_loop *l, const struct cf_model *m) {
    const struct pd_fetch_job *j = l->fetch;
    char *path = pd_resolve(l->opts.dir, m->source_path);
    bool same = path && strcmp(path, j->path) == 0 && same_texts(m->source_sha256, m->n_source_sha256, j->sums, j->n_sums);
    free(path);
    if (!same || !m->source_url) return same && j->n_urls == 0;
    return j->n_urls == 1 + m->n_source_mirrors && strcmp(m->source_url, j->urls[0]) == 0 && same_texts(m->source_mirrors, m->n_source_mirrors, j->urls + 1, j->n_urls - 1);
}

static void add_history(const struct pd_history *h, struct cf_file *f) {
    if (!h || !h->fetch_failures || f->state == CF_FILE_WRONG) return;
    f->failures = h->fetch_failures;
    f->retry_at_ms = h->fetch_retry_at_ms;
    f->reason = (char *)pd_fetch_end_name(h->fetch_end);
    f->error = (char *)h->fetch_error;
}

static void add_progress(struct pd_loop *l, struct cf_file *f) {
    struct pd_progress *p = &l->fetch->progress;
    f->state = atomic_load(&p->verifying) || l->fetch->n_urls == 0 ? CF_FILE_VERIFYING : CF_FILE_FETCHING;
    f->bytes = atomic_load(&p->size);
    f->part_bytes = atomic_load(&p->done);
    f->bytes_per_second = atomic_load(&p->rate);
    f->retry_at_ms = 0;
}

/* Calls fn for each model that may have files, until it says false. */
static void each_model(struct pd_loop *l, bool (*fn)(struct pd_loop *l, const struct cf_model *m, void *ctx), void *ctx) {
    for (size_t i = 0; i < l->manifest->m->n_models; i++)
        if (!fn(l, &l->manifest->m->models[i], ctx)) return;
    for (size_t i = 0; i < l->world.n_histories; i++)
        if (l->world.histories[i]->ad_hoc && !fn(l, l->world.histories[i]->ad_hoc, ctx)) return;
}

static bool look_at(struct pd_loop *l, const struct cf_model *m, void *ctx) {
    struct cf_file f;
    (void)ctx;
    if (!pd_file_look(l->opts.dir, m, &l->verified, &f)) return true;
    add_history(pd_world_find_history(&l->world, m->name), &f);
    if (l->fetch && f.state != CF_FILE_PRESENT && is_of(l, m)) add_progress(l, &f);
    struct cf_file *list = realloc(l->world.files, (l->world.n_files + 1) * sizeof *list);
    if (!list) return false; /* the model's file is then no matter, and its load says that it is not there */
    l->world.files = list;
    list[l->world.n_files++] = f;
    return true;
}

void pd_files_look(struct pd_loop *l) {
    l->world.n_files = 0;
    each_model(l, look_at, NULL);
}

void pd_files_text(const struct pd_loop *l, char *out, size_t size) {
    const struct pd_fetch_job *j = l->fetch;
    *out = '\0';
    if (!j) return;
    uint64_t done = atomic_load(&j->progress.done), all = atomic_load(&j->progress.size);
    int n = snprintf(out, size, "; %s %.100s", atomic_load(&j->progress.verifying) ? "checking" : "fetching", j->model);
    if (all && n > 0 && (size_t)n < size) snprintf(out + n, size - (size_t)n, ": %u%%", (unsigned)((double)done * 100 / (double)all));
}

/* --- starting --- */

int pd_start_fetch(struct pd_loop *l, const struct cf_step *p, struct fo_err *e) {
    if (l->fetch) return fo_fail(e, FO_EINTERNAL, "the plan fetches two files at once");
    char *path = pd_resolve(l->opts.dir, p->spec->source_path);
    struct pd_fetch_job *j = path ? pd_fetch_job_new(p->spec, path) : NULL;
    free(path);
    if (!j) return fo_fail(e, FO_ENOMEM, "no memory for a download");
    if (!l->fetcher && pd_fetcher_new(l->app->bell, &l->fetcher, e)) {
        pd_fetch_job_free(j);
        return e->code;
    }
    pd_app_event(l->app, PD_EV_FETCH_STARTED, p->model, "%s", p->why);
    l->fetch = j;
    l->fetch_no = pd_note_step(l, p);
    pd_fetcher_start(l->fetcher, j);
    return FO_OK;
}

/* --- what it brings --- */

static bool find_owner(struct pd_loop *l, const struct cf_model *m, void *ctx) {
    const struct pd_history *h = pd_world_find_history(&l->world, m->name);
    const struct cf_model **ret = ctx;
    if (m->state == CF_STATE_ABSENT || (h && h->admin_unloaded) || !is_of(l, m)) return true;
    *ret = m;
    return false;
}

/* A model that wants the download at work; NULL = none does. */
static const struct cf_model *owner(struct pd_loop *l) {
    const struct cf_model *m = NULL;
    each_model(l, find_owner, &m);
    return m;
}

/* A failure is counted for the model that the step was for; others of the path come to it when they are tried. */
static void note_failure(struct pd_loop *l, const struct pd_fetch_job *j) {
    struct pd_history *h = pd_world_history(&l->world, j->model);
    char text[16];
    if (!h) return;
    if (atomic_load(&j->progress.fetched) >= PROGRESS_BYTES) h->fetch_failures = 0;
    uint64_t wait = pd_backoff_ms(l, ++h->fetch_failures);
    if (j->retry_after_s * 1000ull > wait) wait = j->retry_after_s * 1000ull;
    h->fetch_retry_at_ms = fo_now_ms() + wait;
    h->fetch_end = j->end;
    snprintf(h->fetch_error, sizeof h->fetch_error, "%s", j->err.msg);
    pd_app_event(l->app, PD_EV_FETCH_FAILED, j->model, "%s: %.300s; next try in %s", pd_fetch_end_name(j->end), j->err.msg, fo_format_ms(wait, text, sizeof text));
}

static void finish(struct pd_loop *l, struct pd_fetch_job *j) {
    const struct cf_model *m = owner(l);
    struct pd_history *h = pd_world_find_history(&l->world, j->model);
    uint64_t fetched = atomic_load(&j->progress.fetched);
    char took[16], bytes[32];
    l->fetch = NULL;
    atomic_fetch_add(&l->app->fetched_bytes, fetched);
    pd_note_step_end(l, l->fetch_no, j->end == PD_F_DONE ? FO_OK : (int)j->err.code, j->err.msg, j->took_ms);
    if (j->resumed) pd_app_event(l->app, PD_EV_FETCH_RESUMED, j->model, "went on where the download before had ended");
    if (j->end == PD_F_DONE) {
        if (m && j->n_sums) pd_verified_note(&l->verified, m, j->identity, NULL);
        if (h) h->fetch_failures = 0;
        if (h) h->fetch_retry_at_ms = 0;
        pd_app_event(l->app, PD_EV_FETCH_DONE, j->model, "%s after %s", fetched ? fo_format_bytes(fetched, bytes, sizeof bytes) : "sha256 is right", fo_format_ms(j->took_ms, took, sizeof took));
    } else if (j->end == PD_F_CANCELLED) {
        pd_app_event(l->app, PD_EV_FETCH_FAILED, j->model, "cancelled: %s; what came is kept for the next time", l->draining ? "the server stops" : "it is no longer wanted from there");
    } else if (j->end == PD_F_WRONG_FILE) {
        if (m) pd_verified_note(&l->verified, m, j->identity, j->err.msg);
        pd_app_event(l->app, PD_EV_FETCH_FAILED, j->model, "%s: %s", pd_fetch_end_name(j->end), j->err.msg);
    } else {
        note_failure(l, j);
    }
    pd_fetch_job_free(j);
}

bool pd_files_tick(struct pd_loop *l) {
    if (!l->fetch) return false;
    struct pd_fetch_job *j = pd_fetcher_take(l->fetcher);
    if (j) {
        finish(l, j);
        return true;
    }
    if (l->draining || !owner(l)) atomic_store(&l->fetch->progress.cancel, true);
    return false;
}
